//! Access to exports, and the parameters negotiated with an iSCSI initiator.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How iSCSI initiators reach an export: LUN 0 of this target.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// HOST:PORT each; none when iSCSI is off.
    pub portals: Vec<String>,
}

/// Whether writes may be answered before they are durable. Then a client must flush, and must
/// notice when it reconnects to a restarted server: acknowledged writes that were not flushed are
/// lost after a kill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCache {
    /// Over NBD, where a session ends with its server. Not over iSCSI, where initiators outlive a
    /// server and continue with the next one.
    #[default]
    Auto,
    /// Over both.
    On,
    /// Over neither.
    Off,
}

/// Access to an export over iSCSI, and its settings. Snapshots of a LUN have its settings.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Access {
    /// iSCSI names of initiators; empty: any.
    pub initiators: Vec<String>,
    /// Addresses or networks of initiators; empty: any.
    pub networks: Vec<String>,
    /// The CHAP name with which initiators authenticate; none if they need not.
    pub chap: Option<String>,
    /// Nothing was set here: it is as at the source of the mirror, or as that was when it was heard
    /// last.
    pub from_source: bool,
    /// Every initiator is refused: initiators authenticate at the source, and their secret is
    /// unknown here.
    pub secret_lacks: bool,
    /// The CHAP name with which the target authenticates itself, on request.
    pub chap_target: Option<String>,
    /// The rule for NBD: `open`, `unix`, `off`, or networks and certificates. Empty: none. Without
    /// a rule, an export with initiators or CHAP is not offered over TCP.
    #[serde(default)]
    pub nbd: Vec<String>,
    /// It takes no writes, over iSCSI and NBD.
    pub read_only: bool,
    /// Initiators may eject it.
    pub removable: bool,
    /// Bytes of its logical blocks over iSCSI.
    pub block_bytes: u32,
    /// Whether writes may be answered before they are durable.
    pub write_cache: WriteCache,
    /// The client that a program has reserved it for, in the words of that program; none if it is
    /// not reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// Secrets of CHAP.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetChap {
    /// The initiator's name.
    pub name: String,
    /// The initiator's secret; at least 12 characters.
    pub secret: String,
    /// The target's name, for mutual authentication.
    pub target_name: Option<String>,
    /// The target's secret, a different one.
    pub target_secret: Option<String>,
}

impl std::fmt::Debug for SetChap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetChap").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Changes access to an export. Missing fields stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetAccess {
    /// iSCSI names of initiators; empty: any.
    pub initiators: Option<Vec<String>>,
    /// Addresses or networks of initiators; empty: any.
    pub networks: Option<Vec<String>>,
    /// Initiators must prove themselves from now on.
    pub chap: Option<SetChap>,
    /// Initiators need not prove themselves any more.
    pub no_chap: bool,
    /// The rule for NBD: `default`, `open`, `unix`, `off`, or networks, and certificates as
    /// `cert:NAME` or `cert:sha256:FINGERPRINT`.
    pub nbd: Option<Vec<String>>,
    /// It takes no writes.
    pub read_only: Option<bool>,
    /// Initiators may eject it.
    pub removable: Option<bool>,
    /// 512 or 4096.
    pub block_bytes: Option<u32>,
    /// Whether writes may be answered before they are durable.
    pub write_cache: Option<WriteCache>,
    /// The client that it is reserved for, in the words of the program that reserves it; empty for
    /// none. The server only stores and compares this text, of at most 512 printable characters.
    pub holder: Option<String>,
    /// Change nothing unless this is the present holder; empty for none.
    pub if_holder: Option<String>,
}

/// Parameters negotiated with an iSCSI initiator, in bytes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct IscsiParameters {
    /// Headers carry a CRC32C.
    pub header_digest: bool,
    /// Data carries a CRC32C.
    pub data_digest: bool,
    /// The longest data segment that the initiator takes.
    pub max_recv_data_segment_length: u32,
    /// The longest sequence of data.
    pub max_burst_length: u32,
    /// Data that may arrive unsolicited with a command.
    pub first_burst_length: u32,
    /// No Data-Out comes unasked.
    pub initial_r2t: bool,
    /// Data may come within a command.
    pub immediate_data: bool,
}
