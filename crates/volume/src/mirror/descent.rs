//! Checks whether the snapshots of an arrived image can descend from each other as their source
//! claims.
//!
//! The tree of descent alone tells which other snapshots show a block of a snapshot: its neighbours
//! (parent, children, siblings), or none. Deleting relies on that. A destination that trusted an
//! invented descent would, once failed over, free blocks that another snapshot shows.
//!
//! A property of every true descent: a block is created in one place of the tree and inherited from
//! there, so the *tops* of a block (snapshots that show it and whose parent does not) all have the
//! same parent. Deleting a snapshot makes its children those of its parent and keeps that true.
//! Hence:
//! - Of the blocks that a snapshot shows and its parent does not, only children of that parent show
//!   any.
//! - For snapshots that are already here this was checked, and stays true while each has the
//!   nearest ancestor that still exists as its parent. Then only new ones are checked.
//!
//! A descent that is not the true one and keeps to this is taken: deleting is as safe in it.
//!
//! Maps are compared, and maps are the source's too: an earlier check found that each names the
//! blocks that its image reaches (`reached`).

use std::collections::{BTreeMap, HashMap};

use cairn_base::{SnapshotId, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{Root, SnapshotEntry};

use crate::error::VolumeError;
use crate::mirror::claims::BlockSet;
use crate::read::compare::{Maps, Run};

/// Blocks that are looked up under one lock: clients wait for no more.
pub(crate) const PIECE: u64 = 1 << 16;
const INVENTED: &str =
    "the source's snapshots cannot descend from each other as it says: run `cairn volume check` there";

/// Compares the descent that a source reports with the snapshots `here` and with the maps of its
/// `image`. There are `space` blocks, and `in_use` gives those of a run that any root here shows.
///
/// # Errors
/// [`VolumeError::Refused`] when it can't be true, and errors of reading a map of a new snapshot.
pub(crate) fn check(
    maps: Maps<'_>,
    here: &[SnapshotEntry],
    image: &[SnapshotEntry],
    (space, in_use): (u64, &dyn Fn(Run) -> Vec<Vbn>),
) -> Result<(), VolumeError> {
    let listed: HashMap<SnapshotId, &SnapshotEntry> = image.iter().map(|entry| (entry.id, entry)).collect();
    if image.iter().any(|entry| is_parentless(entry, &listed)) {
        return Err(VolumeError::Refused(INVENTED));
    }
    let (kept, new) = sorted(here, image, &listed);
    // The blocks that several new snapshots have and their parents do not have.
    let mut brought = BlockSet::default();
    let several = new.len() > 1;
    let mut shown: Option<BlockSet> = None;
    for (parent, children) in new {
        let above: Vec<Root> = listed.get(&parent).map(|entry| entry.root).into_iter().collect();
        let tops = tops(maps, &children, &above, kept.iter().any(|entry| entry.id == parent))?;
        let is_outside = |(first, count): &Run| first.0.saturating_add(*count) > space;
        if tops.iter().any(is_outside) {
            // No root can have such a block; and sets have a bit for each up to the highest.
            return Err(refused(parent));
        }
        if several && blocks(&tops).any(|vbn| brought.has(vbn)) {
            return Err(refused(parent));
        }
        // Usually no new block uses the number of another one, and no map has to be read.
        let mut siblings: Option<BlockSet> = None;
        for piece in pieces(&tops).filter(|_| !kept.is_empty()) {
            let doubtful = in_use(piece);
            if doubtful.is_empty() {
                continue;
            }
            let shown = shown.get_or_insert_with(|| shown_by(maps, &kept, space));
            for vbn in doubtful.into_iter().filter(|vbn| shown.has(*vbn)) {
                // Those inherited it from a deleted snapshot, or none may have it.
                let siblings = match &mut siblings {
                    Some(siblings) => siblings,
                    none => none.insert(brought_by(maps, &kept, (parent, &above), space)?),
                };
                if !siblings.has(vbn) {
                    return Err(refused(parent));
                }
            }
        }
        if several {
            for vbn in blocks(&tops) {
                brought.insert(vbn);
            }
        }
    }
    Ok(())
}

/// New snapshots by their parent.
type ByParent<'a> = BTreeMap<SnapshotId, Vec<&'a SnapshotEntry>>;

/// Separates the snapshots of an image whose descent was checked before from the others.
fn sorted<'a>(
    here: &[SnapshotEntry],
    image: &'a [SnapshotEntry],
    listed: &HashMap<SnapshotId, &SnapshotEntry>,
) -> (Vec<&'a SnapshotEntry>, ByParent<'a>) {
    let here: HashMap<SnapshotId, &SnapshotEntry> = here.iter().map(|entry| (entry.id, entry)).collect();
    // Both sides of a mirror that was written to on both have given the same numbers to different
    // snapshots.
    let is_here = |entry: &SnapshotEntry| here.get(&entry.id).is_some_and(|known| known.root == entry.root);
    let above = |id: SnapshotId| {
        here.get(&id).map(|known| known.parent).filter(|parent| *parent < id).unwrap_or_default()
    };
    let is_left = |id: SnapshotId| id.0 == 0 || listed.get(&id).is_some_and(|entry| is_here(entry));
    let nearest = |entry: &SnapshotEntry| {
        let mut ancestor = above(entry.id);
        while !is_left(ancestor) {
            ancestor = above(ancestor);
        }
        ancestor
    };
    // A side that gives up its own head may have deleted ancestors that the other side still has:
    // then all are checked.
    let follows = image.iter().filter(|entry| is_here(entry)).all(|entry| entry.parent == nearest(entry));
    let (kept, fresh): (Vec<&SnapshotEntry>, Vec<&SnapshotEntry>) =
        image.iter().partition(|entry| follows && is_here(entry));
    let mut new = ByParent::new();
    for entry in fresh {
        new.entry(entry.parent).or_default().push(entry);
    }
    (kept, new)
}

/// The blocks that some snapshots show and the one above them does not.
fn tops(
    maps: Maps<'_>,
    children: &[&SnapshotEntry],
    above: &[Root],
    is_parent_here: bool,
) -> Result<Vec<Run>, VolumeError> {
    let mut tops: Vec<Run> = Vec::new();
    for child in children {
        match maps.only_in(&child.root, above) {
            Ok(runs) => tops.extend(runs),
            // The content of a damaged map here is unknown: damage here is no reason to refuse an
            // arriving image.
            Err(reason) if is_parent_here => {
                tracing::warn!(%reason, snapshot = child.name, "a map is damaged: the descent of a new snapshot is unknown");
            }
            Err(reason) => return Err(reason),
        }
    }
    Ok(tops)
}

/// The blocks that any of some snapshots shows.
fn shown_by(maps: Maps<'_>, kept: &[&SnapshotEntry], space: u64) -> BlockSet {
    let mut shown = BlockSet::default();
    maps.each_region(
        kept.iter().map(|entry| entry.root.active_map),
        &mut |region, bits| {
            let bytes = bits.iter().enumerate().filter(|(_, byte)| **byte != 0);
            for (at, byte) in bytes {
                let first = region.saturating_mul(BITS_PER_MAP_BLOCK).saturating_add(at as u64 * 8);
                for bit in (0..8).filter(|bit| byte >> bit & 1 == 1 && first.saturating_add(*bit) < space) {
                    shown.insert(Vbn(first + bit));
                }
            }
        },
        &mut |_, _, reason| tracing::warn!(%reason, "a map of a snapshot here is damaged"),
    );
    shown
}

/// The blocks created with those of `kept` that have this parent.
fn brought_by(
    maps: Maps<'_>,
    kept: &[&SnapshotEntry],
    (parent, above): (SnapshotId, &[Root]),
    space: u64,
) -> Result<BlockSet, VolumeError> {
    let mut runs: Vec<Run> = Vec::new();
    for sibling in kept.iter().filter(|entry| entry.parent == parent) {
        let own = maps.only_in(&sibling.root, above)?;
        runs.extend(own.into_iter().filter(|(first, count)| first.0.saturating_add(*count) <= space));
    }
    Ok(BlockSet::of(&runs))
}

fn refused(parent: SnapshotId) -> VolumeError {
    tracing::error!(%parent, "a block of a new snapshot is shown elsewhere in the tree of descent");
    VolumeError::Refused(INVENTED)
}

fn is_parentless(entry: &SnapshotEntry, listed: &HashMap<SnapshotId, &SnapshotEntry>) -> bool {
    entry.parent.0 != 0 && (entry.parent >= entry.id || !listed.contains_key(&entry.parent))
}

/// The blocks of some runs; number 0 is not a block.
fn blocks(runs: &[Run]) -> impl Iterator<Item = Vbn> {
    runs.iter().flat_map(|run| each(*run))
}

/// The blocks of a run.
pub(crate) fn each((first, count): Run) -> impl Iterator<Item = Vbn> {
    (first.0..first.0 + count).filter(|number| *number != 0).map(Vbn)
}

/// Runs in pieces that are looked up at once.
pub(crate) fn pieces(runs: &[Run]) -> impl Iterator<Item = Run> {
    runs.iter().flat_map(|(first, count)| {
        let starts = (0..*count).step_by(PIECE as usize);
        starts.map(move |start| (Vbn(first.0 + start), PIECE.min(count - start)))
    })
}
