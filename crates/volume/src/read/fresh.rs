//! Recently written blocks, kept in memory while a mirror follows the volume from one consistency
//! point to the next. The mirror ships a consistency point's blocks from here instead of reading
//! them from the device that clients wait for.
//!
//! # Invariants
//! 1. The entry of a vbn is its last written content: the next write of the vbn replaces it, and a
//!    write that was not noted has no entry. A block that an image shows is not written again, so
//!    its entry is its content.
//! 2. At most `limit` blocks are kept; the oldest are evicted first. A block that is not found is
//!    read from the device. So a mirror that falls behind costs reads, but no memory and no time of
//!    other clients.
//! 3. Nothing is kept without a user, nor for blocks that a destination receives: there a vbn may
//!    be in two places.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_base::Vbn;
use cairn_device::Block;

use crate::locks::Mutex;
use crate::memory::number_hash::NumberHasher;

#[derive(Default)]
struct Kept {
    keepers: u64,
    /// By vbn: the number of the write, and the block.
    blocks: HashMap<u64, (u64, Block), BuildHasherDefault<NumberHasher>>,
    /// The writes in order; some are of blocks that were written again.
    order: VecDeque<(u64, u64)>,
    writes: u64,
}

/// The blocks that were written lately.
pub(crate) struct Fresh {
    limit: usize,
    /// As in `kept`, for callers that only need to know whether it is above 0.
    keepers: AtomicUsize,
    kept: Mutex<Kept>,
    from_memory: AtomicU64,
    from_device: AtomicU64,
}

impl Fresh {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit: limit as usize,
            keepers: AtomicUsize::new(0),
            kept: Mutex::new(Kept::default()),
            from_memory: AtomicU64::new(0),
            from_device: AtomicU64::new(0),
        }
    }

    /// Whether blocks are being kept.
    pub(crate) fn is_wanted(&self) -> bool {
        self.keepers.load(Ordering::Acquire) > 0
    }

    /// Notes blocks of the active state that are about to be written home.
    pub(crate) fn note<'a>(&self, writes: impl Iterator<Item = (Vbn, &'a Block)>) {
        if !self.is_wanted() {
            return;
        }
        let mut kept = self.kept.lock();
        // Checked again under the lock: evicted blocks must not return, as later writes of them are
        // not noted.
        if kept.keepers == 0 {
            return;
        }
        for (vbn, block) in writes {
            kept.writes += 1;
            let number = kept.writes;
            kept.blocks.insert(vbn.0, (number, block.clone()));
            kept.order.push_back((vbn.0, number));
        }
        // The order also has blocks that were written again: it is kept at most twice as long as
        // the blocks.
        while kept.blocks.len() > self.limit || kept.order.len() > 2 * self.limit {
            let Some((vbn, number)) = kept.order.pop_front() else { break };
            if kept.blocks.get(&vbn).is_some_and(|(newest, _)| *newest == number) {
                kept.blocks.remove(&vbn);
            }
        }
    }

    /// The blocks that are kept, in the order asked; `None` where the device must be read.
    pub(crate) fn find(&self, vbns: &[Vbn]) -> Option<Vec<Option<Block>>> {
        if !self.is_wanted() {
            return None;
        }
        let found: Vec<Option<Block>> = {
            let kept = self.kept.lock();
            vbns.iter().map(|vbn| kept.blocks.get(&vbn.0).map(|(_, block)| block.clone())).collect()
        };
        let here = found.iter().flatten().count();
        self.from_memory.fetch_add(here as u64, Ordering::Relaxed);
        self.from_device.fetch_add((found.len() - here) as u64, Ordering::Relaxed);
        Some(found)
    }

    /// Writers wait before they write blocks, as long as this lives.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.kept.lock()
    }

    /// Discards everything: from here on the places belong to another volume.
    pub(crate) fn forget(&self) {
        let mut kept = self.kept.lock();
        kept.blocks.clear();
        kept.order.clear();
    }

    pub(crate) fn keep(&self) {
        let mut kept = self.kept.lock();
        kept.keepers += 1;
        self.keepers.store(kept.keepers as usize, Ordering::Release);
    }

    pub(crate) fn let_go(&self) {
        let mut kept = self.kept.lock();
        kept.keepers -= 1;
        self.keepers.store(kept.keepers as usize, Ordering::Release);
        if kept.keepers == 0 {
            *kept = Kept::default();
        }
    }

    /// How many blocks of these runs are kept.
    pub(crate) fn count(&self, runs: &[(Vbn, u64)]) -> u64 {
        let kept = self.kept.lock();
        let here = |(first, count): &(Vbn, u64)| {
            (first.0..first.0 + count).filter(|vbn| kept.blocks.contains_key(vbn)).count() as u64
        };
        if kept.blocks.is_empty() { 0 } else { runs.iter().map(here).sum() }
    }

    /// Blocks that were found here, and those that were not, since opening.
    pub(crate) fn reads(&self) -> (u64, u64) {
        (self.from_memory.load(Ordering::Relaxed), self.from_device.load(Ordering::Relaxed))
    }
}
