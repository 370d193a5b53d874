//! Whether the map of an image that arrived names every block that the image reaches.
//!
//! Maps alone tell which blocks may be overwritten, and maps come from the source. An image that
//! reaches a block missing in its map would lose it to a later transfer, or after a failover to any
//! write. So before an image is committed its differences from its base must prove the following:
//! - Each block that it reaches and the base does not have in the same position is in its map,
//!   once, and was not born after the image.
//! - Each block that the base's map has and its own does not is one that the base reaches and it
//!   does not.
//! - It counts as many blocks as its map has.
//!
//! The base satisfies the same, so all blocks that both share are in the map of the image as well.
//! If that is not enough to decide, the whole image is walked.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::Lba;
use cairn_format::{BlockPointer, TreeRef};

use crate::error::{Contradiction, Place, VolumeError};
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::block_set::{BlockSet, Words};
use crate::read::compare::{Maps, words_of};
use crate::read::inodes::inodes_at;
use crate::read::store::{Store, Wanted};
use crate::read::tree::{BATCH, Tree};
use crate::read::walk::{Parted, Rooted};

/// The result of comparing an image with its base.
pub(crate) struct Compared<'a> {
    /// The image or snapshot that it was compared with, if any.
    pub(crate) base: Option<Rooted<'a>>,
    /// That is the snapshot from which it descends, and that stays in addition.
    pub(crate) is_parent: bool,
    /// Blocks that it has and the base does not have in the same position.
    pub(crate) added: &'a BlockSet,
    /// The reverse.
    pub(crate) parted: &'a Parted,
}

/// Notes a block that an image reaches.
///
/// # Errors
/// [`VolumeError::Contradicts`] when it reaches it in another place as well, or the block is
/// younger than the image.
pub(crate) fn note(
    reached: &mut BlockSet,
    image: Rooted<'_>,
    pointer: &BlockPointer,
) -> Result<(), VolumeError> {
    if pointer.birth > image.root.generation {
        return Err(VolumeError::Contradicts(Contradiction::Birth));
    }
    match reached.insert(pointer.vbn) {
        true => Ok(()),
        false => Err(VolumeError::Contradicts(Contradiction::Twice)),
    }
}

/// Compares the blocks that an image reaches with its map.
///
/// # Errors
/// [`VolumeError::Contradicts`] when a block is missing in the map, and errors of reading the map.
pub(crate) fn check(store: &Store, new: Rooted<'_>, compared: &Compared<'_>) -> Result<(), VolumeError> {
    let Compared { base, is_parent, added, parted } = *compared;
    // Blocks that it shares with a later image of another line may be younger than it.
    let mut doubtful =
        parted.incomplete || base.is_some_and(|base| base.root.generation > new.root.generation);
    let mut used = i128::from(base.map_or(0, |base| base.root.used));
    let mut is_counted = true;
    let regions: BTreeSet<u64> = added.regions().chain(parted.regions.keys().copied()).collect();
    let regions: Vec<u64> = regions.into_iter().collect();
    for chunk in regions.chunks(BATCH) {
        let own = Bits::of(store, new, chunk, &parted.regions, |(_, new)| *new)?;
        own.refuse_damage()?;
        let before = match base {
            Some(base) => Bits::of(store, base, chunk, &parted.regions, |(old, _)| *old)?,
            None => Bits::default(),
        };
        // Damage here is no reason to refuse an image, which is checked as a whole then.
        is_counted &= before.damaged.is_empty();
        doubtful |= !before.damaged.is_empty();
        for region in chunk {
            let (own, before) = (own.words(*region, 0), before.words(*region, 0));
            let (added, gone) = (added.words(*region), parted.gone.words(*region));
            for at in 0..own.len() {
                let (added, gone) = (added.map_or(0, |words| words[at]), gone.map_or(0, |words| words[at]));
                if added & !own[at] != 0 {
                    return Err(VolumeError::Contradicts(Contradiction::Map));
                }
                if is_parent && added & before[at] != 0 {
                    return Err(VolumeError::Contradicts(Contradiction::Twice));
                }
                doubtful |= (before[at] & !own[at] | added & before[at]) & !gone != 0;
                used += i128::from(own[at].count_ones()) - i128::from(before[at].count_ones());
            }
        }
    }
    if is_counted && used != i128::from(new.root.used) {
        // Numbers taken and freed after a failover count on from there.
        return Err(VolumeError::Contradicts(Contradiction::List));
    }
    if doubtful { check_whole(store, new) } else { Ok(()) }
}

/// The same check for all blocks that an image reaches. Blocks below a node that is damaged here
/// are unknown, and damage here is no reason to refuse an image.
fn check_whole(store: &Store, image: Rooted<'_>) -> Result<(), VolumeError> {
    let mut reached = BlockSet::default();
    let mut outcome = Ok(());
    let damaged = past_damage(store, image, &mut |pointer| {
        if outcome.is_ok() {
            outcome = note(&mut reached, image, pointer);
        }
        outcome.is_ok()
    });
    if let Some(reason) = damaged {
        if !reason.is_of_a_block() {
            return Err(reason);
        }
        tracing::warn!(%reason, "a block is damaged: the blocks below it can't be compared with the map of the image");
    }
    outcome?;
    let regions: Vec<u64> = reached.regions().collect();
    for chunk in regions.chunks(BATCH) {
        let own = Bits::of(store, image, chunk, &BTreeMap::new(), |_| BlockPointer::HOLE)?;
        for region in chunk {
            // The blocks of a damaged map block count as in use.
            let named = own.words(*region, u64::MAX);
            let words = reached.words(*region);
            if words
                .is_some_and(|words| words.iter().zip(named).any(|(reached, named)| reached & !named != 0))
            {
                return Err(VolumeError::Contradicts(Contradiction::Map));
            }
        }
    }
    Ok(())
}

/// Calls `enter` with the pointer to each block of an image, and descends where it returns true.
/// Blocks below a damaged block are skipped, and the last damage is returned.
pub(crate) fn past_damage(
    store: &Store,
    image: Rooted<'_>,
    enter: &mut dyn FnMut(&BlockPointer) -> bool,
) -> Option<VolumeError> {
    let mut damaged = None;
    let mut walk = |file, tree: TreeRef, data: &mut dyn FnMut(&BlockPointer, u64)| {
        let tree = Tree { store, redirects: image.redirects, file, tree };
        let mut enter = |pointer: &BlockPointer, level: u8, at: u64| {
            let goes_on = enter(pointer);
            if goes_on && level == 0 {
                data(pointer, at);
            }
            goes_on
        };
        tree.walk(&mut enter, &mut |error| damaged = Some(error));
    };
    walk(ACTIVE_MAP, image.root.active_map, &mut |_, _| {});
    let mut blocks = Vec::new();
    walk(INODE_FILE, image.root.inode_file, &mut |pointer, at| blocks.push((at, *pointer)));
    let mut lost = None;
    for block in blocks {
        match inodes_at(store, image.redirects, std::iter::once(block)) {
            Ok(inodes) => {
                inodes.into_iter().flatten().for_each(|inode| walk(inode.id, inode.tree, &mut |_, _| {}))
            }
            Err(error) => lost = Some(error),
        }
    }
    damaged.or(lost)
}

/// Some regions of a map; a missing region has no block in use.
#[derive(Default)]
struct Bits {
    regions: BTreeMap<u64, Box<Words>>,
    damaged: BTreeMap<u64, VolumeError>,
}

const COUNT: usize = std::mem::size_of::<Words>() / 8;

impl Bits {
    /// `known` has the pointers of regions that differ between two maps, of which `pick` takes one.
    fn of(
        store: &Store,
        image: Rooted<'_>,
        regions: &[u64],
        known: &BTreeMap<u64, (BlockPointer, BlockPointer)>,
        pick: fn(&(BlockPointer, BlockPointer)) -> BlockPointer,
    ) -> Result<Self, VolumeError> {
        let tree = Maps { store, redirects: image.redirects }.tree(image.root.active_map);
        let unknown: Vec<Lba> =
            regions.iter().filter(|region| !known.contains_key(region)).map(|region| Lba(*region)).collect();
        // A request for single blocks of a map does not look past its end.
        let within = |region: &&u64| **region < image.root.active_map.length;
        let differing = regions.iter().filter(within);
        let mut pointers: Vec<(u64, Result<BlockPointer, VolumeError>)> =
            differing.filter_map(|region| Some((*region, Ok(pick(known.get(region)?))))).collect();
        pointers.extend(unknown.iter().map(|lba| lba.0).zip(tree.pointers(&unknown)));
        let mut bits = Self::default();
        let mut wanted = Vec::new();
        for (region, pointer) in pointers {
            match pointer {
                Ok(pointer) => {
                    wanted
                        .push(Wanted { pointer, place: Place::Data { file: ACTIVE_MAP, lba: Lba(region) } });
                }
                Err(reason) => bits.note(region, reason)?,
            }
        }
        for (want, block) in wanted.iter().zip(store.load(&wanted, image.redirects)) {
            let Place::Data { lba: Lba(region), .. } = want.place else { continue };
            match block {
                Ok(block) => drop(bits.regions.insert(region, Box::new(words_of(&block)))),
                Err(reason) => bits.note(region, reason)?,
            }
        }
        Ok(bits)
    }

    fn note(&mut self, region: u64, reason: VolumeError) -> Result<(), VolumeError> {
        if !reason.is_of_a_block() {
            return Err(reason);
        }
        self.damaged.insert(region, reason);
        Ok(())
    }

    fn refuse_damage(&self) -> Result<(), VolumeError> {
        self.damaged.values().next().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// The bits of a region, with `unknown` for the words of a damaged one.
    fn words(&self, region: u64, unknown: u64) -> Words {
        match self.regions.get(&region) {
            Some(words) => **words,
            None if self.damaged.contains_key(&region) => [unknown; COUNT],
            None => [0; COUNT],
        }
    }
}
