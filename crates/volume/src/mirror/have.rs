//! The arrivals of an unfinished transfer: the have map, the places of its blocks, and how both are
//! found again.
//!
//! After a lost connection the arrivals stay in memory, where the next transfer resumes with them.
//! After a restart the have map is on the device, which a *checkpoint* writes from time to time.
//! Its entries are then compared with the block in each place. So no entry is trusted without its
//! block, and neither the order of writes nor a torn one matters.
//!
//! # Invariants
//! 1. A vbn counts as arrived only while its place has the content of its checksum: the bit is
//!    taken back before the place is written, and set after.
//! 2. An arrived block is at home when no image here showed its vbn at that time, or the images
//!    show the same bytes there. Otherwise it is in an unused slot of the redirect area.
//! 3. Arrivals belong to the committed image on which they began (the epoch); the commit of another
//!    image, or a failover, ends them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Checksum, Vbn};
use cairn_device::{Block, BlockMut, Operation};
use cairn_format::{HaveBlock, RedirectRun, SegmentKind};

use crate::commit::space::Redirects;
use crate::error::VolumeError;
use crate::mirror::kept::compare_arrivals;
use crate::read::store::Store;

/// Have blocks in memory: 16 MiB, for 4 GiB of neighbouring blocks. Beyond it dirty ones are
/// written, and the memory is reused.
const CACHE_BLOCKS: usize = 4096;
/// Blocks after which a transfer makes a checkpoint: 64 MiB.
const CHECKPOINT_BLOCKS: u64 = 16384;
/// The time between checkpoints, when blocks have arrived.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// Slots of the redirect area in which a restart finds the block of one vbn.
const PROBES: u64 = 4;
/// Blocks that a recall compares at once, or a little more: 4 MiB.
const RECALL_BLOCKS: usize = 1024;
/// Blocks of the have map that it reads at once: 1 MiB.
const READ_HAVE: u64 = 256;

/// The blocks that have arrived.
pub(crate) struct Arrivals {
    epoch: Checksum,
    /// One bit for each block.
    arrived: Vec<u64>,
    count: u64,
    /// Those that are not at home.
    pub(crate) redirected: Redirects,
    /// Have blocks by number.
    blocks: HashMap<u64, BlockMut>,
    dirty: BTreeSet<u64>,
    /// Have blocks that the device has in this epoch.
    written: HashSet<u64>,
    /// Arrived since the last checkpoint.
    fresh: u64,
    checkpointed: Duration,
}

impl Arrivals {
    /// Nothing has arrived yet.
    pub(crate) fn new(epoch: Checksum, now: Duration) -> Self {
        Self {
            epoch,
            arrived: Vec::new(),
            count: 0,
            redirected: Redirects::default(),
            blocks: HashMap::new(),
            dirty: BTreeSet::new(),
            written: HashSet::new(),
            fresh: 0,
            checkpointed: now,
        }
    }

    /// Whether they began on that image.
    pub(crate) fn is_of(&self, epoch: Checksum) -> bool {
        self.epoch == epoch
    }

    /// Blocks that have arrived.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn has(&self, vbn: Vbn) -> bool {
        self.arrived.get((vbn.0 / 64) as usize).is_some_and(|word| word >> (vbn.0 % 64) & 1 == 1)
    }

    /// The first arrived block from `vbn` on.
    fn next_from(&self, vbn: Vbn) -> Option<Vbn> {
        let first = (vbn.0 / 64) as usize;
        let words = self.arrived.iter().enumerate().skip(first);
        let masked = words.map(|(index, word)| {
            let mask = if index == first { u64::MAX << (vbn.0 % 64) } else { u64::MAX };
            (index as u64, word & mask)
        });
        let mut found = masked.filter(|(_, word)| *word != 0);
        found.next().map(|(index, word)| Vbn(index * 64 + u64::from(word.trailing_zeros())))
    }

    /// The place of `vbn` is about to be written: it counts as missing until [`Self::note`].
    pub(crate) fn forget(&mut self, vbn: Vbn) {
        if self.has(vbn) {
            self.arrived[(vbn.0 / 64) as usize] &= !(1 << (vbn.0 % 64));
            self.count -= 1;
        }
    }

    /// Notes a block that is in its place.
    pub(crate) fn note(&mut self, vbn: Vbn, checksum: Checksum, store: &Store) -> Result<(), VolumeError> {
        let number = vbn.0 / HaveBlock::ENTRIES;
        let block = self.block(number, store)?;
        HaveBlock::set(block, vbn.0 % HaveBlock::ENTRIES, checksum);
        self.dirty.insert(number);
        self.mark(vbn);
        self.fresh += 1;
        Ok(())
    }

    fn mark(&mut self, vbn: Vbn) {
        let word = (vbn.0 / 64) as usize;
        if self.arrived.len() <= word {
            self.arrived.resize(word + 1, 0);
        }
        self.count += u64::from(!self.has(vbn));
        self.arrived[word] |= 1 << (vbn.0 % 64);
    }

    /// The checksum with which a block arrived.
    pub(crate) fn checksum(&mut self, vbn: Vbn, store: &Store) -> Result<Option<Checksum>, VolumeError> {
        if !self.has(vbn) {
            return Ok(None);
        }
        let block = self.block(vbn.0 / HaveBlock::ENTRIES, store)?;
        Ok(HaveBlock::get(block, vbn.0 % HaveBlock::ENTRIES))
    }

    /// Arrived blocks from `from` on, at most `most`.
    pub(crate) fn list(
        &mut self,
        from: Vbn,
        most: usize,
        store: &Store,
    ) -> Result<Vec<(Vbn, Checksum)>, VolumeError> {
        let mut list = Vec::new();
        let mut next = self.next_from(from);
        while let Some(vbn) = next.filter(|_| list.len() < most) {
            if let Some(checksum) = self.checksum(vbn, store)? {
                list.push((vbn, checksum));
            }
            next = self.next_from(Vbn(vbn.0 + 1));
        }
        Ok(list)
    }

    /// A have block; one that the device has from an earlier transfer counts as empty.
    fn block(&mut self, number: u64, store: &Store) -> Result<&mut BlockMut, VolumeError> {
        if !self.blocks.contains_key(&number) {
            if self.blocks.len() >= CACHE_BLOCKS {
                store.run(self.write_dirty(store))?;
                // Blocks without a place on the device stay.
                self.blocks.retain(|number, _| place(*number, store).is_none());
            }
            let mut bytes = BlockMut::zeroed();
            if self.written.contains(&number) {
                let offset = place(number, store).ok_or(VolumeError::Closed)?;
                store.device().read_into(offset, &mut bytes[..])?;
            }
            if !HaveBlock::is_of(&bytes, self.epoch) {
                HaveBlock::clear(&mut bytes, self.epoch);
            }
            self.blocks.insert(number, bytes);
        }
        self.blocks.get_mut(&number).ok_or(VolumeError::Closed)
    }

    /// The writes of every have block that changed since the last ones.
    fn write_dirty(&mut self, store: &Store) -> Vec<Operation> {
        // Block 0 shows that there are others.
        if !self.dirty.is_empty() && !self.written.contains(&0) && !self.blocks.contains_key(&0) {
            let mut bytes = BlockMut::zeroed();
            HaveBlock::clear(&mut bytes, self.epoch);
            self.blocks.insert(0, bytes);
            self.dirty.insert(0);
        }
        // The map of a destination that an early version made is a little short; its last blocks
        // are noted in memory alone.
        self.dirty.retain(|number| place(*number, store).is_some());
        let copies: Vec<(u64, Block)> = self
            .dirty
            .iter()
            .filter_map(|number| Some((*number, BlockMut::copy_of(self.blocks.get(number)?).freeze())))
            .collect();
        self.written.extend(&self.dirty);
        self.dirty.clear();
        store.write_kind(SegmentKind::Have, copies.iter().map(|(number, block)| (*number, block)))
    }

    /// Whether a checkpoint is due, by the number of arrivals or the time.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.fresh >= CHECKPOINT_BLOCKS
            || (self.fresh > 0 && now.saturating_sub(self.checkpointed) >= CHECKPOINT_INTERVAL)
    }

    /// Whether blocks arrived since the last checkpoint.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.fresh > 0
    }

    /// Makes the arrivals durable, for a restart.
    pub(crate) fn checkpoint(&mut self, store: &Store, now: Duration) -> Result<(), VolumeError> {
        store.run(self.write_dirty(store))?;
        store.device().flush()?;
        self.fresh = 0;
        self.checkpointed = now;
        Ok(())
    }

    /// A slot of the redirect area for `vbn`; the one that it has if it came before in this
    /// transfer.
    pub(crate) fn slot(&mut self, vbn: Vbn, taken: &mut HashSet<u64>, area: u64) -> Option<u64> {
        if let Some(slot) = self.redirected.get(vbn) {
            return Some(slot);
        }
        // The slots in which a restart looks; and when all are taken, any.
        let slot = probes(vbn, area).chain((0..area).rev()).find(|slot| !taken.contains(slot))?;
        taken.insert(slot);
        self.redirected.insert(RedirectRun { vbn, slot, count: 1 });
        Some(slot)
    }
}

/// The slots of the redirect area for a vbn, in order of preference.
fn probes(vbn: Vbn, area: u64) -> impl Iterator<Item = u64> {
    (0..PROBES.min(area)).map(move |probe| (vbn.0 + probe * (area / PROBES)) % area)
}

/// Where a have block is on the device.
fn place(number: u64, store: &Store) -> Option<u64> {
    store.space().locate(SegmentKind::Have, number).map(|(offset, _)| offset)
}

/// Where a block is looked for first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Home,
    Redirected,
}

/// A place in which a block may be.
struct Candidate {
    vbn: Vbn,
    checksum: Checksum,
    /// None: at home.
    slot: Option<u64>,
}

/// The state of the volume that a recall needs.
pub(crate) struct Surroundings<'a> {
    pub(crate) store: &'a Store,
    /// Whether an image here shows a vbn.
    pub(crate) used: &'a dyn Fn(Vbn) -> bool,
    /// Where the blocks of images here are.
    pub(crate) places: &'a [Arc<Redirects>],
    /// Slots of the redirect area that committed images need.
    pub(crate) taken: &'a mut HashSet<u64>,
}

impl Arrivals {
    /// Recalls the arrivals of a transfer before a restart: each entry of the have map whose block
    /// is present. `go_on` gets the number of have blocks read so far and their total; when it
    /// returns false, the rest is skipped.
    pub(crate) fn recall(
        &mut self,
        around: &mut Surroundings<'_>,
        go_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, VolumeError> {
        let store = around.store;
        let total = store.space().blocks(SegmentKind::Have);
        let is_of = |block: &Block| HaveBlock::is_of(block, self.epoch);
        if total == 0 || !read_have(store, 0..1).iter().flatten().any(is_of) {
            return Ok(true);
        }
        let mut candidates = Vec::new();
        for first in (0..total).step_by(READ_HAVE as usize) {
            if !go_on(first, total) {
                return Ok(false);
            }
            let numbers = first..(first + READ_HAVE).min(total);
            for (number, block) in numbers.clone().zip(read_have(store, numbers)) {
                // Entries in an unreadable part of the map are sent again.
                let Some(block) = block.filter(|block| HaveBlock::is_of(block, self.epoch)) else { continue };
                self.written.insert(number);
                for index in 0..HaveBlock::ENTRIES {
                    let vbn = Vbn(number * HaveBlock::ENTRIES + index);
                    let Some(checksum) = HaveBlock::get(&block, index) else { continue };
                    if vbn.0 != 0 && vbn.0 < store.space().blocks(SegmentKind::Space) && !self.has(vbn) {
                        let place = if (around.used)(vbn) { Where::Redirected } else { Where::Home };
                        candidates.push((vbn, checksum, place));
                    }
                }
                if candidates.len() >= RECALL_BLOCKS {
                    self.take_found(std::mem::take(&mut candidates), around);
                }
            }
        }
        self.take_found(candidates, around);
        Ok(true)
    }

    /// Reads the places of the candidates and takes those that match the map.
    fn take_found(&mut self, candidates: Vec<(Vbn, Checksum, Where)>, around: &mut Surroundings<'_>) {
        let area = around.store.space().blocks(SegmentKind::Redirect);
        let at_home: Vec<Candidate> = candidates
            .iter()
            .filter(|(_, _, place)| *place == Where::Home)
            .map(|(vbn, checksum, _)| Candidate { vbn: *vbn, checksum: *checksum, slot: None })
            .collect();
        self.take_from(at_home, around);
        // Also blocks that arrived while an earlier reader saw the old content at home.
        let mut elsewhere = Vec::new();
        for (vbn, checksum, _) in candidates.into_iter().filter(|(vbn, _, _)| !self.has(*vbn)) {
            let free = probes(vbn, area).filter(|slot| !around.taken.contains(slot));
            elsewhere.extend(free.map(|slot| Candidate { vbn, checksum, slot: Some(slot) }));
        }
        self.take_from(elsewhere, around);
    }

    fn take_from(&mut self, candidates: Vec<Candidate>, around: &mut Surroundings<'_>) {
        let store = around.store;
        let space = store.space();
        let locate = |candidate: &Candidate| {
            let found = match candidate.slot {
                None => space.locate(SegmentKind::Space, candidate.vbn.0),
                Some(slot) => space.locate(SegmentKind::Redirect, slot),
            };
            found.map(|(offset, _)| offset)
        };
        let places: Vec<Option<u64>> = candidates.iter().map(locate).collect();
        let mut found = Vec::new();
        for (candidate, read) in candidates.into_iter().zip(store.read_places(&places)) {
            // A block that can't be read is sent again.
            let there = read.ok().filter(|block| Checksum::of(&block[..]) == candidate.checksum);
            found.extend(there.map(|block| (candidate, block)));
        }
        for (Candidate { vbn, slot, .. }, block) in found {
            // A slot may have a block that was made to have that checksum.
            let is_forged = || compare_arrivals(store, around.places, &[(vbn, block)]).is_err();
            if self.has(vbn) || slot.is_some() && (around.used)(vbn) && is_forged() {
                continue;
            }
            if let Some(slot) = slot {
                if !around.taken.insert(slot) {
                    continue;
                }
                self.redirected.insert(RedirectRun { vbn, slot, count: 1 });
            }
            self.mark(vbn);
        }
    }
}

/// Reads blocks of the have map; `None` for an unreadable one.
fn read_have(store: &Store, numbers: std::ops::Range<u64>) -> Vec<Option<Block>> {
    let places: Vec<Option<u64>> = numbers.map(|number| place(number, store)).collect();
    store.read_places(&places).into_iter().map(Result::ok).collect()
}
