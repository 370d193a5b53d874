//! Objects about LUNs, exports and sessions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Access, Activity, IscsiParameters, Target};

/// A LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lun {
    /// VOLUME/LUN.
    pub name: String,
    /// As clients see it.
    pub size_bytes: u64,
    /// When it was made.
    pub created_ms: u64,
    /// The URIs for NBD clients, the unix socket first.
    pub uris: Vec<String>,
    /// How iSCSI initiators reach it.
    pub target: Target,
    /// In the answer to its creation: the settings of an earlier LUN of this name apply to it, as
    /// snapshots or the volume's history still show that LUN.
    pub earlier_settings: bool,
}

/// Makes a LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateLun {
    /// Its name in the volume; the rule for volumes holds.
    pub name: String,
    /// A multiple of 512.
    pub size_bytes: u64,
}

/// Resizes a LUN.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeLun {
    /// A multiple of 512.
    pub size_bytes: u64,
    /// It may shrink; data past the new end is lost.
    #[serde(default)]
    pub allow_shrink: bool,
}

/// A session of an NBD client or an iSCSI initiator.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// The address of the client.
    pub peer: String,
    /// Requests so far.
    pub requests: u64,
    /// Read so far.
    pub read_bytes: u64,
    /// Written so far.
    pub written_bytes: u64,
    /// Its activity in the last seconds.
    pub activity: Activity,
    /// The iSCSI name of the initiator; none over NBD.
    pub initiator: Option<String>,
    /// The parameters negotiated at login; none over NBD.
    pub parameters: Option<IscsiParameters>,
}

/// An export that a client can open.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// VOLUME/LUN or VOLUME@SNAPSHOT/LUN.
    pub name: String,
    /// It takes no writes.
    pub read_only: bool,
    /// No client can connect to it at the moment: the device that it is adopted as is not open, or
    /// its volume shows no image.
    pub closed: bool,
    /// Its length.
    pub size_bytes: u64,
    /// The URIs for NBD clients.
    pub uris: Vec<String>,
    /// How iSCSI initiators reach it.
    pub target: Target,
    /// Access over iSCSI, and the iSCSI settings.
    pub access: Access,
    /// Where clients reach it, and the clients that do.
    #[serde(default)]
    pub reach: Vec<Reach>,
    /// Its open sessions.
    pub sessions: Vec<Session>,
    /// The totals of all sessions, open and closed.
    pub totals: ExportTotals,
}

/// A way to an export, and the clients that may take it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Reach {
    /// `NBD` or `iSCSI`.
    pub protocol: String,
    /// The address: HOST:PORT or unix:PATH.
    pub address: String,
    /// The clients, for people.
    pub clients: String,
    /// Any client of another machine gets in without proving its identity.
    pub open: bool,
}

/// The totals of an export's clients since the server started, including disconnected ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportTotals {
    /// Requests.
    pub requests: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
}
