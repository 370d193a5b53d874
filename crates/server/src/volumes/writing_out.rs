//! Rounds of writing out the data of a volume in memory, one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cairn_volume::{Volume, VolumeError};
use parking_lot::{Condvar, Mutex};

/// Rounds of writing out data in memory, one at a time.
#[derive(Default)]
pub(super) struct WritingOut {
    pub(super) rounds: Mutex<Rounds>,
    pub(super) moved: Condvar,
}

#[derive(Default)]
pub(super) struct Rounds {
    pub(super) begun: u64,
    pub(super) over: u64,
    /// The outcome of the last completed round; `None` if it panicked.
    pub(super) outcome: Option<Result<(), VolumeError>>,
}

impl WritingOut {
    pub(super) fn run(&self, volume: &Arc<Volume>) {
        let outcome = catch_unwind(AssertUnwindSafe(|| volume.consistency_point().map(drop)));
        let mut rounds = self.rounds.lock();
        rounds.over += 1;
        rounds.outcome = outcome.ok();
        self.moved.notify_all();
    }
}
