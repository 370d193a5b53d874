//! The state that all handles of one volume share, and the numbers that tune it.

use std::sync::Arc;

use cairn_base::{Checksum, Mutex, Rng, VolumeId};

use crate::name::Name;
use crate::store::{Nonce, Store};
use crate::workers::Workers;

/// Where a root is, and its digest: the memory of a server between two uses of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The epoch.
    pub epoch: u32,
    /// The number in the epoch.
    pub seq: u32,
    /// The digest of the root.
    pub digest: Checksum,
}

/// Numbers that trade requests against bytes. The defaults suit real volumes; tests use less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Roots after a checkpoint before the next one is written. An open fetches as many at most.
    pub since_max: u32,
    /// Changes of the table in one root. With more, the update writes a checkpoint.
    pub delta_max: usize,
    /// Entries in one object of a list.
    pub list_entries: usize,
    /// The window of roots of invariant 7.
    pub window: u32,
    /// Regions after which an update writes its progress. Past 16 times as many, the interval is a
    /// 16th of the finished regions, so that a resumed update loses little and reads few objects.
    pub progress: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { since_max: 64, delta_max: 8192, list_entries: 128 << 10, window: 256, progress: 64 }
    }
}

/// The parts that all handles of one volume share.
pub(crate) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) workers: Arc<dyn Workers>,
    pub(super) volume: VolumeId,
    pub(super) tuning: Tuning,
    pub(super) seen: Mutex<Option<Seen>>,
    pub(super) rng: Mutex<Rng>,
}

impl Inner {
    /// A random one.
    pub(super) fn nonce(&self) -> Nonce {
        Nonce::random(&mut self.rng.lock())
    }
}

/// The nonce of an object with these bytes. A second put of the same bytes finds its own object.
pub(super) fn nonce_of(owner: Nonce, name: &Name, bytes: &[u8]) -> Nonce {
    Nonce(Checksum::of_pieces([&owner.0[..], name.as_str().as_bytes(), bytes].into_iter()).0)
}
