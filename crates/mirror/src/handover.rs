//! Messages of two sides about a change of roles, and how a volume is demoted.

use cairn_base::{Checksum, Generation, SnapshotId, Timestamp, VolumeId};
use cairn_format::Role;
use cairn_volume::{Snapshot, VolumeError};

use crate::relationship::Relationship;

/// News of a mirror that was failed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The snapshot that it showed then.
    pub base: SnapshotId,
    /// Its content ([`root_digest`](cairn_format::stream::root_digest)).
    pub root: Checksum,
    /// Its generation, which the two sides have in common.
    pub generation: Generation,
    /// When, by the mirror's clock.
    pub at: Timestamp,
    /// The address of its server for mirrors: `HOST:PORT`, or `:PORT` at the host of the
    /// connection; empty when it is not given.
    pub address: String,
    /// The name of the volume there.
    pub volume: String,
}

/// The address of the side that takes over, and how to follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// As in [`Departure::address`].
    pub address: String,
    /// The name of the volume there.
    pub volume: String,
    /// How often to update.
    pub every_ms: Option<u64>,
    /// Or by which cron expression; empty for none.
    pub cron: String,
    /// Or continuously.
    pub continuous: bool,
    /// In which time zone; empty for UTC.
    pub zone: String,
    /// The wanted maximum lag.
    pub rpo_ms: Option<u64>,
}

/// A mirror of a group that wants the role of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heir {
    /// The volume, as the source calls it.
    pub volume: String,
    /// Which mirror of it.
    pub relationship: Relationship,
    /// How it is followed from then on.
    pub successor: Successor,
}

/// The state of a side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The volume.
    pub id: VolumeId,
    /// Whether it takes writes.
    pub role: Role,
    /// The snapshot of its own head, while it shows that; otherwise 0.
    pub own_head: SnapshotId,
    /// That head was handed over to the caller.
    pub handed_over: bool,
    /// Its last consistency point.
    pub generation: Generation,
    /// When its content last changed, by its clock.
    pub changed: Timestamp,
    /// Blocks that it uses.
    pub used: u64,
    /// Its snapshots and their content.
    pub snapshots: Vec<(SnapshotId, Checksum)>,
}

/// Demotes a volume.
pub type GiveWay<'a> = dyn FnMut() -> Result<Snapshot, VolumeError> + 'a;

/// Demotes all volumes of a group at one instant; each gets a snapshot with the given name. An
/// error has the index of its volume.
pub type GiveTogether<'a> = dyn FnMut(&str) -> Result<Vec<Snapshot>, (usize, VolumeError)> + 'a;
