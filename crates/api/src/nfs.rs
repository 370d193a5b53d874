//! Exports of files over NFS.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ExportTotals, Session};

/// Which users of NFS clients become the anonymous user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NfsSquash {
    /// Root alone.
    #[default]
    Root,
    /// None: root of a client is root here.
    None,
    /// All.
    All,
}

/// Exports a directory of a volume over NFS, or changes such an export. Missing fields stay
/// unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetNfs {
    /// A snapshot of the volume, instead of its present state.
    pub snapshot: Option<String>,
    /// The directory, from the root of the volume's files, such as `/home`; `/` is the root.
    pub path: String,
    /// Clients change nothing.
    pub read_only: Option<bool>,
    /// Which users are anonymous.
    pub squash: Option<NfsSquash>,
    /// Addresses or networks of clients; empty: any.
    pub networks: Option<Vec<String>>,
}

/// Ends the export of a directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveNfs {
    /// As in [`SetNfs`].
    #[serde(default)]
    pub snapshot: Option<String>,
    /// As in [`SetNfs`].
    pub path: String,
}

/// A directory that is exported over NFS.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NfsExport {
    /// `VOLUME:/PATH` or `VOLUME@SNAPSHOT:/PATH`.
    pub name: String,
    /// The path that clients mount: `/VOLUME/PATH`.
    pub path: String,
    /// Clients change nothing, by its settings or as the volume takes no writes.
    pub read_only: bool,
    /// Which users are anonymous.
    pub squash: NfsSquash,
    /// Addresses or networks of clients; empty: any.
    pub networks: Vec<String>,
    /// The commands with which a Linux client mounts it, one for each address of the server.
    pub mounts: Vec<String>,
    /// Why it shows no files now.
    pub problem: Option<String>,
    /// The clients that have it in use.
    pub sessions: Vec<Session>,
    /// The activity of its clients since the server started.
    pub totals: ExportTotals,
}
