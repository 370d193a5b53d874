//! A mirror that follows closely has blocks kept in memory that were written lately.

use std::sync::Arc;

use crate::read::compare::Run;
use crate::volume::Volume;

/// While it lives, blocks that are written stay in memory as far as there is room for them
/// ([`Volume::read_blocks`] finds them there).
pub struct KeepsFresh(Arc<Volume>);

impl KeepsFresh {
    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.0
    }
}

impl Drop for KeepsFresh {
    fn drop(&mut self) {
        self.0.store.fresh().let_go();
    }
}

impl Volume {
    /// Keeps new writes in memory, for a mirror that follows closely: a quarter of the volume's
    /// memory, in addition to it, and shared by all callers.
    pub fn keep_fresh(self: &Arc<Self>) -> KeepsFresh {
        self.store.fresh().keep();
        KeepsFresh(self.clone())
    }

    /// How many blocks of these runs would be read from memory, and how many there are.
    pub fn fresh_blocks(&self, runs: &[Run]) -> (u64, u64) {
        let total = runs.iter().map(|(_, count)| count).sum();
        (self.store.fresh().count(runs), total)
    }

    /// Blocks that [`Volume::read_blocks`] found in memory, and those that it read from the device
    /// while blocks were kept, since opening.
    pub fn fresh_reads(&self) -> (u64, u64) {
        self.store.fresh().reads()
    }
}
