//! Comparing active maps: which blocks one root reaches and others do not. Shared map blocks are
//! skipped.

use std::collections::HashSet;
use std::ops::Range;

use cairn_base::{Checksum, Lba, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{BlockPointer, FANOUT, NodeAddress, Root, TreeRef};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::known_files::ACTIVE_MAP;
use crate::read::store::{Store, Wanted};
use crate::read::tree::{BATCH, Tree, difference, pointer_in, span};

/// A run of blocks: the first and how many.
pub type Run = (Vbn, u64);

/// The bits of a block of a map.
pub(crate) type Words = [u64; (BITS_PER_MAP_BLOCK / 64) as usize];

/// Reads and compares the maps of one volume's roots.
#[derive(Clone, Copy)]
pub(crate) struct Maps<'a> {
    pub(crate) store: &'a Store,
    pub(crate) redirects: &'a Redirects,
}

impl<'a> Maps<'a> {
    pub(crate) fn tree(&self, map: TreeRef) -> Tree<'a> {
        Tree { store: self.store, redirects: self.redirects, file: ACTIVE_MAP, tree: map }
    }

    /// Blocks that `root` reaches and none of `others` does. Put the one that shares most first in
    /// `others`: regions whose map block is the same in it are skipped.
    pub(crate) fn only_in(&self, root: &Root, others: &[Root]) -> Result<Vec<Run>, VolumeError> {
        let mut runs = Vec::new();
        self.each_only_in(root, others, &mut |at, words| {
            append_runs(&mut runs, at * BITS_PER_MAP_BLOCK, words);
        })?;
        Ok(runs)
    }

    /// The same as words, for each block of the map that differs, in order.
    pub(crate) fn each_only_in(
        &self,
        root: &Root,
        others: &[Root],
        visit: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), VolumeError> {
        let mine = self.tree(root.active_map);
        let nothing = TreeRef::empty(root.active_map.length);
        let first = self.tree(others.first().map_or(nothing, |other| other.active_map));
        let mut regions: Vec<(u64, BlockPointer, BlockPointer)> = Vec::new();
        difference(&first, &mine, &mut |at, level, old, new| {
            if level == 0 && !new.is_hole() {
                regions.push((at, old, new));
            }
            Ok(())
        })?;
        for chunk in regions.chunks(BATCH) {
            let lbas: Vec<_> = chunk.iter().map(|(at, _, _)| Lba(*at)).collect();
            let mut masks = vec![chunk.iter().map(|(_, old, _)| *old).collect::<Vec<_>>()];
            for other in others.iter().skip(1) {
                let pointers: Result<Vec<_>, _> =
                    self.tree(other.active_map).pointers(&lbas).into_iter().collect();
                masks.push(pointers?);
            }
            let own = self.load(chunk.iter().map(|(at, _, new)| (*at, *new)))?;
            let masks: Vec<_> = masks
                .iter()
                .map(|pointers| self.load(lbas.iter().zip(pointers).map(|(lba, pointer)| (lba.0, *pointer))))
                .collect::<Result<_, _>>()?;
            for (index, (at, _, _)) in chunk.iter().enumerate() {
                let mut words = words_of(&own[index]);
                for mask in &masks {
                    for (word, other) in words.iter_mut().zip(words_of(&mask[index])) {
                        *word &= !other;
                    }
                }
                visit(*at, &words);
            }
        }
        Ok(())
    }

    /// Which of `vbns` the root reaches.
    pub(crate) fn holds(&self, root: &Root, vbns: &[Vbn]) -> Result<Vec<bool>, VolumeError> {
        let mut regions: Vec<Lba> = vbns.iter().map(|vbn| Lba(vbn.0 / BITS_PER_MAP_BLOCK)).collect();
        regions.sort_unstable();
        regions.dedup();
        let pointers: Vec<BlockPointer> =
            self.tree(root.active_map).pointers(&regions).into_iter().collect::<Result<_, _>>()?;
        let blocks = self.load(regions.iter().zip(pointers).map(|(region, pointer)| (region.0, pointer)))?;
        let held = vbns.iter().map(|vbn| {
            let within = vbn.0 % BITS_PER_MAP_BLOCK;
            let region = regions.binary_search(&Lba(vbn.0 / BITS_PER_MAP_BLOCK));
            region.is_ok_and(|region| blocks[region][(within / 8) as usize] >> (within % 8) & 1 == 1)
        });
        Ok(held.collect())
    }

    /// Whether the whole map of a root can be read.
    ///
    /// # Errors
    /// Of the first block that can't be.
    pub(crate) fn check_readable(&self, root: &Root) -> Result<(), VolumeError> {
        let mut outcome = Ok(());
        let mut damaged = |_, _, error| {
            if outcome.is_ok() {
                outcome = Err(error);
            }
        };
        self.each_region(std::iter::once(root.active_map), &mut |_, _| {}, &mut damaged);
        outcome
    }

    fn load(
        &self,
        blocks: impl Iterator<Item = (u64, BlockPointer)>,
    ) -> Result<Vec<cairn_device::Block>, VolumeError> {
        let wanted: Vec<_> = blocks.map(|(at, pointer)| wanted(pointer, 0, at)).collect();
        self.store.load(&wanted, self.redirects).into_iter().collect()
    }

    /// Calls `visit` with every block of every map, its region and its bits; a block that several
    /// maps share comes once. All maps are walked together, so that each round of reads is one
    /// large batch in order of place.
    ///
    /// A block that can't be read is handed to `damaged`: the first region below it, and how many
    /// at most.
    pub(crate) fn each_region(
        &self,
        maps: impl Iterator<Item = TreeRef>,
        visit: &mut dyn FnMut(u64, &[u8]),
        damaged: &mut dyn FnMut(u64, u64, VolumeError),
    ) {
        self.each_region_in(0..u64::MAX, maps, visit, damaged);
    }

    /// The same for the regions in `range`. It takes memory for each block of these.
    pub(crate) fn each_region_in(
        &self,
        range: Range<u64>,
        maps: impl Iterator<Item = TreeRef>,
        visit: &mut dyn FnMut(u64, &[u8]),
        damaged: &mut dyn FnMut(u64, u64, VolumeError),
    ) {
        // A block counts at its place: a source may give the number of a block of one region to
        // another one, and neither may hide the other.
        let mut seen: HashSet<(Vbn, Checksum, u8, u64)> = HashSet::new();
        let key =
            |(pointer, level, at): &(BlockPointer, u8, u64)| (pointer.vbn, pointer.checksum, *level, *at);
        let is_within = |level: u8, at: u64| {
            let regions = if level == 0 { 1 } else { span(level).saturating_mul(FANOUT) };
            at < range.end && at.saturating_add(regions) > range.start
        };
        let mut round: Vec<(BlockPointer, u8, u64)> = maps
            .filter(|map| !map.pointer.is_hole() && is_within(map.height, 0))
            .map(|map| (map.pointer, map.height, 0))
            .collect();
        while !round.is_empty() {
            round.retain(|block| seen.insert(key(block)));
            round.sort_unstable_by_key(|(pointer, _, _)| pointer.vbn);
            let mut below = Vec::new();
            for chunk in round.chunks(8 * BATCH) {
                let wanted: Vec<_> =
                    chunk.iter().map(|(pointer, level, at)| wanted(*pointer, *level, *at)).collect();
                for ((_, level, at), block) in chunk.iter().zip(self.store.load(&wanted, self.redirects)) {
                    let block = match block {
                        Ok(block) => block,
                        Err(error) => {
                            let regions = if *level == 0 { 1 } else { span(*level).saturating_mul(FANOUT) };
                            damaged(*at, regions, error);
                            continue;
                        }
                    };
                    if *level == 0 {
                        visit(*at, &block[..]);
                        continue;
                    }
                    let children = (0..FANOUT)
                        .map(|slot| (pointer_in(&block, slot as usize), level - 1, at + slot * span(*level)))
                        .filter(|block| is_within(block.1, block.2))
                        .filter(|block| !block.0.is_hole() && !seen.contains(&key(block)));
                    below.extend(children);
                }
            }
            round = below;
        }
    }
}

/// A block of a map's tree: a node, or at level 0 the bits of region `at`.
fn wanted(pointer: BlockPointer, level: u8, at: u64) -> Wanted {
    let place = match level {
        0 => Place::Data { file: ACTIVE_MAP, lba: Lba(at) },
        _ => Place::Node(NodeAddress { file: ACTIVE_MAP, level, index: at / (span(level) * FANOUT) }),
    };
    Wanted { pointer, place }
}

/// The bits of a map block as words.
pub(crate) fn words_of(block: &[u8; cairn_base::BLOCK_SIZE]) -> Words {
    let mut words = [0; (BITS_PER_MAP_BLOCK / 64) as usize];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(bytes);
        *word = u64::from_le_bytes(raw);
    }
    words
}

/// Appends the set bits of `words`, counted from `base`, as runs; joins the last run where it
/// touches.
pub(crate) fn append_runs(runs: &mut Vec<Run>, base: u64, words: &[u64]) {
    for (index, word) in words.iter().enumerate() {
        let mut word = *word;
        let mut shift = 0;
        while word != 0 {
            let skip = word.trailing_zeros();
            let count = (word >> skip).trailing_ones();
            let first = base + index as u64 * 64 + u64::from(shift + skip);
            match runs.last_mut() {
                Some((start, length)) if start.0 + *length == first => *length += u64::from(count),
                _ => runs.push((Vbn(first), u64::from(count))),
            }
            let taken = skip + count;
            shift += taken;
            word = word.checked_shr(taken).unwrap_or(0);
        }
    }
}

/// Byte and mask of a block's bit in its map block.
pub(crate) fn bit(vbn: Vbn) -> (usize, u8) {
    let within = vbn.0 % BITS_PER_MAP_BLOCK;
    ((within / 8) as usize, 1 << (within % 8))
}
