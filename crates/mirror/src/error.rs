//! Why a conversation between a source and a destination failed.

use std::io;
use std::sync::Arc;

use cairn_base::{SnapshotId, VolumeId};
use cairn_stream::StreamError;
use cairn_volume::VolumeError;

use crate::limits::{HELD_PER_PEER, MIRRORS_PER_PEER};

/// Why a source refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no such volume, or this peer may not have it.
    #[error("the source has no such volume, or does not allow it to this peer")]
    NoSuchVolume,
    /// The volume is itself the destination of a mirror.
    #[error("the source's volume is itself the destination of a mirror; mirror its source, or fail it over")]
    NotASource,
    /// The volume is the destination of the very mirror that asks.
    #[error("the other side follows this one, so that neither takes writes")]
    Circle,
    /// The volume of that name is another one than the mirror was made from.
    #[error(
        "the source's volume of that name is {found}, and this mirror is of volume {expected}: the source was created again; delete the mirror and create it again, too"
    )]
    WrongVolume {
        /// The volume that the mirror is of.
        expected: VolumeId,
        /// The volume that was found.
        found: VolumeId,
    },
    /// Nothing is common: no snapshot, and no since map that began at the destination's image.
    #[error(
        "the source has none of the snapshots of this mirror and no record of changes, so there is no common base"
    )]
    NoCommonBase {
        /// Blocks of the source's image and its snapshots: the upper limit of a transfer.
        blocks: u64,
    },
    /// The same snapshot has another content on the two sides.
    #[error(
        "snapshot {0} differs between the two sides, or only one has it, as after a restore from an older copy: they have diverged, and you must choose one"
    )]
    Diverged(SnapshotId),
    /// The destination's block space is too short.
    #[error(
        "the source has grown to {need} blocks and the destination has {have}: grow it with `cairn volume grow`"
    )]
    DestinationTooSmall {
        /// Blocks.
        need: u64,
        /// Blocks.
        have: u64,
    },
    /// No room for another snapshot at the source.
    #[error("the source's volume is full: delete snapshots or LUNs there, trim, or grow it")]
    SourceFull,
    /// Its volume has failed; its own log has the reason.
    #[error("the source's volume has failed; see `cairn status` there")]
    SourceFailed,
    /// A later session of the same mirror took over.
    #[error("a later session of this mirror took over")]
    Superseded,
    /// The server of the source does not give its role away to this peer.
    #[error("the source does not give its role to this mirror; its own log says why")]
    NotTaken,
    /// Its owner has not allowed it.
    #[error("the owner of the source has not allowed a mirror to take over")]
    NotAllowed,
    /// The volume belongs to a group of the source that changes its role as a whole.
    #[error("the source's volume is one of group {0} there, whose roles change together")]
    InGroup(String),
    /// The source has no such group, or one of other volumes.
    #[error("the source has no group {0} of just these volumes")]
    OtherGroup(String),
    /// The destination does not have the source's last base, so a change of roles would take long
    /// or lose data.
    #[error("the destination does not have the last image: update it first")]
    Behind,
    /// The history under the source's volume has no room for its last writes, so no snapshot of
    /// them can be made. A peer that does not know this refusal gets [`Refusal::Hook`].
    #[error(
        "the source's volume takes no snapshot: its history is full and has nothing that is older than its floor, so the last writes wait for room, or have failed for lack of it"
    )]
    NoRoom,
    /// A command that the source's owner has run around snapshots failed, and none was made.
    #[error("a command around snapshots of the source failed, and none was made: see `cairn status` there")]
    Hook,
    /// One server has too many mirrors of a volume.
    #[error(
        "the source keeps at most {MIRRORS_PER_PEER} mirrors of a volume and {HELD_PER_PEER} snapshots for one server, and this server has as many"
    )]
    TooMany,
    /// A reason or request that one side does not know.
    #[error("the source does not know this request")]
    Unknown,
}

/// The number on the wire of the last [`Refusal`] that this version knows.
pub const LAST_REFUSAL: u32 = 18;

impl Refusal {
    /// The same for a destination that knows refusals up to the number `last`: it would take an
    /// unknown one for a version mismatch.
    pub fn for_who_knows(self, last: u32) -> Self {
        match self {
            // Its owner looks up the reason in `cairn status` of the source, also for this one.
            Refusal::NoRoom if last < 17 => Refusal::Hook,
            Refusal::TooMany if last < 18 => Refusal::Hook,
            known => known,
        }
    }
}

/// Why a destination aborted a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NackReason {
    /// The received data was damaged or inconsistent.
    Damaged,
    /// Its volume failed.
    VolumeFailed,
    /// It was cancelled.
    Cancelled,
    /// Its volume cannot take that image, or not now: it is too small, keeps a snapshot that the
    /// image lacks, waits for others of its group, or is of another volume.
    Unfit,
    /// A reason that this version does not know.
    Other,
}

impl std::fmt::Display for NackReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NackReason::Damaged => "what arrived is damaged; run `cairn volume check` at the source",
            NackReason::VolumeFailed => "its volume failed: `cairn status` there says how",
            NackReason::Cancelled => "it was told to stop",
            NackReason::Unfit => "its volume does not take this image: `cairn mirror status` there says why",
            NackReason::Other => "it did not say why",
        })
    }
}

/// Why a conversation failed. The destination still shows the previous image.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MirrorError {
    /// The connection.
    #[error("the connection to the other side broke off: {0}")]
    Io(Arc<io::Error>),
    /// The versions differ.
    #[error(
        "the other side speaks mirror protocol version {theirs} and this one {ours}: install the same cairn on both"
    )]
    Version {
        /// Theirs.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// A violation of the protocol.
    #[error("the other side does not speak the mirror protocol: {0}")]
    Protocol(&'static str),
    /// The source refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The stream.
    #[error(transparent)]
    Stream(StreamError),
    /// The volume at this end.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The destination aborted.
    #[error("the destination gave the transfer up: {0}")]
    Nack(NackReason),
    /// A transfer of this mirror is in progress.
    #[error("an update of this mirror is in progress; wait for it or abort it")]
    Busy,
    /// The mirror was failed over and follows no source.
    #[error("this mirror was failed over: it takes writes and follows no source")]
    FailedOver,
    /// Writes made here while this side was not the destination must be kept or given up first.
    #[error(
        "this side has writes of its own ({blocks} blocks that the other side may lack), and they were neither saved nor discarded"
    )]
    Undecided {
        /// Blocks that this side's head has and its base does not, at most.
        blocks: u64,
    },
    /// The source does not have a snapshot any more that stays here for a while.
    #[error(
        "the source has deleted snapshot {name}, which is locked here: nothing was changed, and updates wait until it was decided about"
    )]
    Locked {
        /// The snapshot.
        name: String,
    },
    /// The source has given another name to a snapshot that stays here for a while.
    #[error(
        "the source has renamed snapshot {name}, which is locked here: nothing was changed, and updates wait until it has its name again"
    )]
    Renamed {
        /// Its name here.
        name: String,
    },
    /// The source does not have a snapshot any more that the mirrors of a group show together, and
    /// nothing newer for all of them to show.
    #[error(
        "the source has deleted snapshot {snapshot}, which the volumes of group {group} show, and has no newer one of the group: nothing was changed, and updates wait for that"
    )]
    Withheld {
        /// The group.
        group: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Its source's image came from here.
    #[error(
        "this mirror follows itself: its source is a mirror of it, or of one of its mirrors, and no volume of that ring takes writes"
    )]
    FollowsItself,
    /// The other side does not take writes either, so it has nothing new.
    #[error("the other side is not the source of this volume now: {0}")]
    NotAhead(&'static str),
    /// Nothing is known to be common, and comparing has its price.
    #[error(
        "the source has none of the snapshots of this mirror and no record of changes; comparing checksums takes {compare_bytes} bytes over the network, and then at most {data_bytes_max} bytes of data"
    )]
    CompareNeeded {
        /// Bytes that comparing takes: exact, as long as nothing changes here.
        compare_bytes: u64,
        /// Bytes of blocks that may have to be sent then.
        data_bytes_max: u64,
    },
    /// This side was cancelled.
    #[error("the transfer was cancelled; the last image is whole")]
    Cancelled,
}

impl From<io::Error> for MirrorError {
    fn from(error: io::Error) -> Self {
        MirrorError::broke_off(Arc::new(error))
    }
}

impl MirrorError {
    /// The connection failed. The TLS library's words for a closed connection are meant for
    /// programmers.
    fn broke_off(error: Arc<io::Error>) -> Self {
        MirrorError::Io(match error.kind() {
            io::ErrorKind::UnexpectedEof => Arc::new(io::Error::new(error.kind(), "it ended in the middle")),
            _ => error,
        })
    }
}

impl From<StreamError> for MirrorError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Io(error) => MirrorError::broke_off(error),
            StreamError::Volume(error) => MirrorError::Volume(error),
            StreamError::Cancelled => MirrorError::Cancelled,
            StreamError::TooSmall { need, have } => Refusal::DestinationTooSmall { need, have }.into(),
            StreamError::Diverged { snapshot } => Refusal::Diverged(snapshot).into(),
            other => MirrorError::Stream(other),
        }
    }
}

impl From<&VolumeError> for Refusal {
    fn from(error: &VolumeError) -> Self {
        match error {
            VolumeError::NoSpace | VolumeError::NoRoomBelow | VolumeError::TableFull => Refusal::SourceFull,
            VolumeError::WrongRole(_) => Refusal::NotASource,
            _ => Refusal::SourceFailed,
        }
    }
}
