//! Which node may use a volume.
//!
//! The server admits no client to a disk, or one node. It stores the rule, and beside it the
//! holder: the volume and the node. A change names the holder that was read, and the server refuses
//! it if there is another one by then. Before it answers, it has closed all sessions of the disk,
//! and every write of them is done or will not be.

use std::collections::HashMap;

use cairn_api::{self as api, ErrorKind};
use cairn_proto_csi::v1;
use tonic::Status;

use super::Controller;
use super::requests::{Use, check_there};
use crate::errors::status;
use crate::names::{Holder, Identity, NodeId};

/// An address that no client has: it keeps initiators away from a disk that is not for them.
const NOWHERE: &str = "255.255.255.255";

/// Keys of the context that a node gets.
pub(crate) mod context {
    /// The name of the export.
    pub(crate) const EXPORT: &str = "export";
    /// HOST:PORT or unix:PATH of the server for NBD.
    pub(crate) const NBD: &str = "nbd";
    /// The name of the iSCSI target.
    pub(crate) const TARGET: &str = "target";
    /// HOST:PORT of the server for iSCSI.
    pub(crate) const PORTAL: &str = "portal";
    /// `true` if the disk takes no writes.
    pub(crate) const READ_ONLY: &str = "readOnly";
    /// `true` if the server had no block of the disk.
    pub(crate) const BLANK: &str = "blank";
}

/// The node that a volume is published to.
pub(super) fn held_by(volume: &str, export: &api::Export) -> Option<Holder> {
    Holder::of(volume, export.access.holder.as_deref()?)
}

/// The rule that admits a node, or no client.
fn rule(node: Option<&NodeId>, read_only: bool) -> api::SetAccess {
    let nowhere = || vec![NOWHERE.to_owned()];
    let (nbd, initiators, networks) = match node.map(|node| &node.identity) {
        None => ("off".to_owned(), Vec::new(), nowhere()),
        Some(Identity::Address(address)) => (address.to_string(), Vec::new(), nowhere()),
        Some(Identity::Certificate(name)) => (format!("cert:{name}"), Vec::new(), nowhere()),
        Some(Identity::Unix) => ("unix".to_owned(), Vec::new(), nowhere()),
        Some(Identity::Initiator(name)) => ("off".to_owned(), vec![name.clone()], Vec::new()),
    };
    api::SetAccess {
        nbd: Some(vec![nbd]),
        initiators: Some(initiators),
        networks: Some(networks),
        read_only: Some(read_only),
        ..api::SetAccess::default()
    }
}

/// Whether access is as a rule has it.
fn is_as(access: &api::Access, rule: &api::SetAccess) -> bool {
    Some(&access.nbd) == rule.nbd.as_ref()
        && Some(&access.initiators) == rule.initiators.as_ref()
        && Some(&access.networks) == rule.networks.as_ref()
        && Some(access.read_only) == rule.read_only
}

impl Controller {
    /// Gives a disk another rule and holder, if its holder is still the one in `export`.
    fn hand_over(
        &self,
        volume: &str,
        export: &api::Export,
        mut rule: api::SetAccess,
        holder: Option<&Holder>,
    ) -> Result<api::Export, Status> {
        rule.holder = Some(holder.map_or(String::new(), Holder::to_string));
        rule.if_holder = Some(export.access.holder.clone().unwrap_or_default());
        self.cairn.set_access(volume, &rule).map_err(|error| match error.error {
            // Another controller was faster, or a session still waits for its disk.
            ErrorKind::Busy => Status::aborted(error.message),
            _ => status(&error),
        })
    }

    /// Makes a disk admit no client, unless the volume is published.
    pub(super) fn close_unless_held(&self, volume: &str) -> Result<(), Status> {
        let Some(export) = self.cairn.export(volume)? else {
            return Err(Status::unavailable(format!("the volume {volume} is not in service")));
        };
        let closed = rule(None, false);
        let is_closed = is_as(&export.access, &closed) && export.access.holder.is_none();
        if is_closed || held_by(volume, &export).is_some() {
            return Ok(());
        }
        self.hand_over(volume, &export, closed, None).map(drop)
    }

    /// Publishes a volume to a node.
    pub fn publish_volume(
        &self,
        asked: &v1::ControllerPublishVolumeRequest,
    ) -> Result<v1::ControllerPublishVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        check_there(&asked.node_id, "node id")?;
        let used = Use::of(asked.volume_capability.as_ref())?;
        let absent = || Status::not_found(format!("there is no volume {}", asked.volume_id));
        let name = self.options.prefix.volume(&asked.volume_id).ok_or_else(absent)?;
        let _turn = self.turns.take(name)?;
        let Some(export) = self.cairn.export(name)? else {
            return Err(match self.cairn.disk(name)? {
                None => absent(),
                Some(_) => Status::unavailable(format!("the volume {name} is not in service")),
            });
        };
        let node = NodeId::parse(&asked.node_id)
            .ok_or_else(|| Status::not_found(format!("there is no node {}", asked.node_id)))?;
        let read_only = asked.readonly || used.read_only;
        let wanted = rule(Some(&node), read_only);
        let export = match held_by(name, &export) {
            Some(held) if held.node.name != node.name => {
                let message = format!("the volume {name} is published to the node {}", held.node.name);
                return Err(Status::failed_precondition(message));
            }
            Some(_) if export.access.read_only != read_only => {
                let message = format!("the volume {name} is published to that node in another mode");
                return Err(Status::already_exists(message));
            }
            Some(_) if is_as(&export.access, &wanted) => export,
            _ => {
                let holder = Holder { volume: name.to_owned(), node };
                self.hand_over(name, &export, wanted, Some(&holder))?
            }
        };
        Ok(v1::ControllerPublishVolumeResponse { publish_context: self.context(name, &export)? })
    }

    fn context(&self, volume: &str, export: &api::Export) -> Result<HashMap<String, String>, Status> {
        let found = self.cairn.ranges(volume, None, None, 0, 1).map_err(|error| status(&error))?;
        let mut context = HashMap::from([
            (context::EXPORT, export.name.clone()),
            (context::TARGET, export.target.name.clone()),
            (context::READ_ONLY, export.access.read_only.to_string()),
            (context::BLANK, found.ranges.is_empty().to_string()),
        ]);
        let reach = |start: &str| export.uris.iter().find_map(|uri| uri.strip_prefix(start));
        let tcp =
            reach("nbd://").and_then(|rest| rest.split_once('/')).map(|(address, _)| address.to_owned());
        let unix = || {
            let socket = reach("nbd+unix:")?.split_once("?socket=")?.1;
            Some(format!("unix:{socket}"))
        };
        if let Some(address) = self.options.nbd.clone().or(tcp).or_else(unix) {
            context.insert(context::NBD, address);
        }
        if let Some(portal) = self.options.iscsi.clone().or_else(|| export.target.portals.first().cloned()) {
            context.insert(context::PORTAL, portal);
        }
        Ok(context.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Takes a volume from a node, or from any node without a node id. When it returns, that node
    /// has no session with the disk and gets none.
    pub fn unpublish_volume(
        &self,
        asked: &v1::ControllerUnpublishVolumeRequest,
    ) -> Result<v1::ControllerUnpublishVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let done = v1::ControllerUnpublishVolumeResponse {};
        let Some(name) = self.options.prefix.volume(&asked.volume_id) else { return Ok(done) };
        let _turn = self.turns.take(name)?;
        let Some(export) = self.cairn.export(name)? else {
            return match self.cairn.volume(name)? {
                Some(there) if there.luns > 0 || there.problem.is_some() => {
                    Err(Status::unavailable(format!("the volume {name} is not in service")))
                }
                _ => Ok(done),
            };
        };
        // The address of a node may have changed since; its name is what counts.
        let node = asked.node_id.split('~').next().unwrap_or_default();
        match held_by(name, &export) {
            Some(held) if !node.is_empty() && held.node.name != node => Ok(done),
            Some(_) => self.hand_over(name, &export, rule(None, false), None).map(|_| done),
            None => self.close_unless_held(name).map(|()| done),
        }
    }
}
