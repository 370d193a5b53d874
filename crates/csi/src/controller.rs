//! The Controller service: volumes, snapshots, and which node may use a volume.
//!
//! Each method is one request of CSI, synchronous, and may be repeated. A call that was cut off
//! leaves the server in a state from which the same call continues.

mod publish;
mod ranges;
mod requests;
mod snapshots;
mod volumes;

use cairn_proto_csi::v1;
use tonic::Status;

use crate::cairn::{Api, Cairn};
use crate::names::Prefix;
use crate::turns::Turns;

pub(crate) use publish::context;
pub(crate) use ranges::Ranges;
pub(crate) use requests::{FileSystem, Use, check_there, signed};

/// Settings of a controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// The prefix of its objects.
    pub prefix: Prefix,
    /// HOST:PORT at which nodes reach the server over NBD; by default the first address over TCP
    /// that the server reports.
    pub nbd: Option<String>,
    /// HOST:PORT at which nodes reach the server over iSCSI; by default as the server reports.
    pub iscsi: Option<String>,
}

/// The Controller service.
pub struct Controller {
    cairn: Cairn,
    options: ControllerOptions,
    turns: Turns,
}

impl Controller {
    /// A controller of the server behind `api`.
    pub fn new(api: Box<dyn Api>, options: ControllerOptions) -> Self {
        let cairn = Cairn { api, prefix: options.prefix.clone() };
        Self { cairn, options, turns: Turns::default() }
    }

    /// Whether the server answers.
    pub fn probe(&self) -> Result<bool, Status> {
        let answer: Result<serde_json::Value, _> = self.cairn.get("/v1/access");
        match answer {
            Ok(_) => Ok(true),
            Err(error) => match crate::errors::code(error.error) {
                tonic::Code::Unavailable => Ok(false),
                _ => Err(crate::errors::status(&error)),
            },
        }
    }

    /// The capabilities.
    pub fn capabilities(&self) -> v1::ControllerGetCapabilitiesResponse {
        use v1::controller_service_capability::rpc::Type as Rpc;
        use v1::controller_service_capability::{Rpc as Supported, Type};
        let all = [
            Rpc::CreateDeleteVolume,
            Rpc::PublishUnpublishVolume,
            Rpc::ListVolumes,
            Rpc::GetCapacity,
            Rpc::CreateDeleteSnapshot,
            Rpc::ListSnapshots,
            Rpc::CloneVolume,
            Rpc::PublishReadonly,
            Rpc::ExpandVolume,
            Rpc::ListVolumesPublishedNodes,
            Rpc::SingleNodeMultiWriter,
            Rpc::GetSnapshot,
        ];
        let capability = |rpc: Rpc| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Supported { r#type: rpc.into() })),
        };
        v1::ControllerGetCapabilitiesResponse { capabilities: all.into_iter().map(capability).collect() }
    }
}
