//! How far behind a mirror is, and the loss of a failover: only known facts, and the time since
//! which they are known.

use std::time::Duration;

use cairn_base::{BLOCK_SIZE, SnapshotId, Timestamp};

use crate::route::Route;

/// A source's report of itself and of a mirror's lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStatus {
    /// The source's clock.
    pub now: Timestamp,
    /// Its block space, in blocks.
    pub blocks: u64,
    /// Blocks in use there by anything.
    pub used: u64,
    /// The snapshot that the lag is counted from.
    pub base: SnapshotId,
    /// When the base was taken, by the source's clock; `None` when the source does not have it, and
    /// then it knows no lag.
    pub base_taken: Option<Timestamp>,
    /// The first change after the base, by the source's clock; none when nothing changed.
    pub first_change: Option<Timestamp>,
    /// Blocks that changed since the base.
    pub blocks_behind: u64,
    /// The volumes that its image came through, itself first.
    pub route: Route,
}

/// The last contact of a destination with its source. The server saves it, so that it survives a
/// restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// When, by the destination's clock.
    pub at: Timestamp,
    /// The source's status.
    pub status: SourceStatus,
}

/// How far behind a mirror is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// Since the first change that the destination lacks; grows while the source is silent.
    pub age: Duration,
    /// Bytes of changes as of `as_of`.
    pub bytes: u64,
    /// The time of the source's last report, by this side's clock.
    pub as_of: Timestamp,
    /// The source has been silent since `as_of`: there may be more changes, and the age counts them
    /// from then on.
    pub silent: Duration,
}

impl SourceStatus {
    /// The lag at the moment of this status.
    pub fn age(&self) -> Duration {
        self.first_change.map_or(Duration::ZERO, |first| self.now.since(first))
    }

    /// The same after `passed` more time.
    pub(crate) fn after(self, passed: Duration) -> Self {
        let nanos = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        Self { now: Timestamp(self.now.0.saturating_add(nanos)), ..self }
    }

    /// Bytes of changes.
    pub fn bytes(&self) -> u64 {
        self.blocks_behind.saturating_mul(BLOCK_SIZE as u64)
    }
}

impl Contact {
    /// The lag as a destination knows it, when its source has been silent for `silent`. The
    /// source's report is by its own clock alone, and the time since then is by this side's: the
    /// two are never compared.
    pub fn lag(&self, silent: Duration) -> Lag {
        Lag { age: self.status.age() + silent, bytes: self.status.bytes(), as_of: self.at, silent }
    }
}

/// The loss of a failover. Changes at the source after the last contact are unknown here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The snapshot that is kept; 0 when none has arrived.
    pub image: SnapshotId,
    /// Its name.
    pub image_name: String,
    /// When it was taken, by the source's clock.
    pub image_taken: Timestamp,
    /// Changes at the source that were not transferred, as of the last contact, in bytes; `None`
    /// without a contact.
    pub bytes_known: Option<u64>,
    /// From the first change that is lost to the last contact.
    pub age_known: Option<Duration>,
    /// The time since the last contact: everything that the source wrote in it is lost as well.
    pub silent: Option<Duration>,
    /// How old the image is: by the source's clock up to the last contact, by this side's from then
    /// on.
    pub image_age: Option<Duration>,
}

impl Loss {
    /// All lost data was written within this time before now, at most; `None` without a contact.
    pub fn age_at_most(&self) -> Option<Duration> {
        Some(self.age_known? + self.silent?)
    }
}
