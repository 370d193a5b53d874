//! The blocks that are known to be damaged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::{Checksum, Vbn};

use crate::error::Place;
use crate::locks::Mutex;

/// Damaged blocks that are remembered; more are counted.
const DAMAGED_MAX: usize = 1024;

/// A block that did not verify when it was read, by a client, a check or a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedBlock {
    /// Its number: the same on a mirror.
    pub vbn: Vbn,
    /// The checksum that its parent names: the correct bytes have this checksum.
    pub checksum: Checksum,
    /// The kind of block: a block of a file, or a node.
    pub place: Place,
}

/// The known damage.
#[derive(Default)]
pub(crate) struct Damage {
    blocks: Mutex<BTreeMap<(Vbn, [u8; 16]), DamagedBlock>>,
    repaired: AtomicU64,
}

impl Damage {
    /// It is reported once, however often it is found.
    pub(crate) fn note(&self, block: DamagedBlock) {
        if self.add(block) {
            tracing::error!(vbn = block.vbn.0, place = %block.place, "a block is damaged; it is not served");
        }
    }

    /// Whether it was not known.
    pub(crate) fn add(&self, block: DamagedBlock) -> bool {
        let mut blocks = self.blocks.lock();
        let is_new = !blocks.contains_key(&(block.vbn, block.checksum.0));
        if is_new && blocks.len() < DAMAGED_MAX {
            blocks.insert((block.vbn, block.checksum.0), block);
        }
        is_new
    }

    pub(crate) fn get(&self, vbn: Vbn, checksum: Checksum) -> Option<DamagedBlock> {
        self.blocks.lock().get(&(vbn, checksum.0)).copied()
    }

    pub(crate) fn forget(&self, vbn: Vbn, checksum: Checksum) {
        self.blocks.lock().remove(&(vbn, checksum.0));
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> Vec<DamagedBlock> {
        self.blocks.lock().values().copied().collect()
    }

    pub(crate) fn count_repaired(&self) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks that were repaired since opening.
    pub(crate) fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }
}
