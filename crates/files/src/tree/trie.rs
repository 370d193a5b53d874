//! A directory: names by key in a trie, whose leaves are at blocks that follow from the keys
//! (`docs/format.md`, "Directories of the tree of names").
//!
//! # Invariants
//! 1. Of the blocks on a key's way from level 0 down, one at most is a leaf with names. Block 0 is
//!    always there.
//! 2. A leaf below block 0 has a name. So a directory without names is block 0 alone, and as long.
//! 3. A name keeps its key as long as it exists. So a reader that continues after a key misses no
//!    name that existed all the time, and sees none twice.
//!
//! # Cost
//! A lookup reads one leaf, and one hole or two: keys are evenly spread, so leaves are usually on
//! two levels. Adding or removing a name changes one leaf; one time in a hundred it splits one.

use cairn_base::{BLOCK_SIZE, Checksum, FileId, VolumeId};
use cairn_device::{Block, BlockMut};
use cairn_format::{
    Inode, KEY_BITS, KEY_MIN, LEAF_BYTES, LEAF_LEVEL_MAX, Leaf, LeafHead, LeafName, LeafPlace, NAME_BYTES_MAX,
};

use super::edit::Edit;
use super::error::TreeError;
use super::source::{Blocks, damaged};
use super::stat::{Entry, NodeKind};

/// Keys that differ in these bits alone are of names with the same hash.
const SAME_HASH: u64 = 3;
/// Two leaves that have fewer bytes than this become one.
const MERGE_BELOW: usize = LEAF_BYTES / 2;

/// An existing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundName {
    pub(crate) key: u64,
    pub(crate) file: FileId,
    pub(crate) kind: NodeKind,
}

/// Whether a directory can have such a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), TreeError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(TreeError::NameTooLong);
    }
    if name.is_empty() {
        return Err(TreeError::NotFound);
    }
    if name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(TreeError::Invalid("a name is not `.` or `..` and has no slash and no zero"));
    }
    Ok(())
}

/// The first of the four keys that a name can have.
fn first_key(volume: VolumeId, directory: FileId, name: &[u8]) -> u64 {
    let mut bytes = Vec::with_capacity(24 + name.len());
    bytes.extend_from_slice(&volume.0);
    bytes.extend_from_slice(&directory.0.to_le_bytes());
    bytes.extend_from_slice(name);
    let [a, b, c, d, e, f, g, h, ..] = Checksum::of(&bytes).0;
    let hash = u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 4;
    hash.max(1) << 2
}

/// Whether a name can have a key.
pub(crate) fn is_key_of(volume: VolumeId, directory: FileId, name: &[u8], key: u64) -> bool {
    key | SAME_HASH == first_key(volume, directory, name) | SAME_HASH
}

/// A leaf that was checked when it was read: [`Blocks::leaf`].
fn known_leaf(block: &Block, directory: FileId, place: LeafPlace) -> Result<Leaf<'_>, TreeError> {
    Leaf::trusted(block, directory, place).ok_or_else(|| damaged(directory, place.lba()))
}

/// The head of block 0: where the directory is.
pub(crate) fn head(blocks: &mut impl Blocks, directory: FileId) -> Result<LeafHead, TreeError> {
    let block = blocks.leaf(directory, LeafPlace::TOP)?.ok_or_else(|| damaged(directory, 0))?;
    Ok(known_leaf(&block, directory, LeafPlace::TOP)?.head)
}

/// The leaf on a key's path; `None` when there is none.
fn leaf_of(
    blocks: &mut impl Blocks,
    directory: &Inode,
    key: u64,
) -> Result<Option<(LeafPlace, Block)>, TreeError> {
    for level in (0..=LeafPlace::level_of(directory.tree.length)).rev() {
        let place = LeafPlace::of(key, level);
        if let Some(block) = blocks.leaf(directory.id, place)? {
            let is_split = known_leaf(&block, directory.id, place)?.head.split;
            return Ok((!is_split).then_some((place, block)));
        }
    }
    Err(damaged(directory.id, 0))
}

/// Looks a name up.
pub(crate) fn find(
    blocks: &mut impl Blocks,
    directory: &Inode,
    name: &[u8],
) -> Result<Option<FoundName>, TreeError> {
    let first = first_key(blocks.volume_id(), directory.id, name);
    let Some((place, block)) = leaf_of(blocks, directory, first)? else { return Ok(None) };
    let leaf = known_leaf(&block, directory.id, place)?;
    let found = leaf.names().find(|other| other.key | SAME_HASH == first | SAME_HASH && other.name == name);
    Ok(found.map(|found| FoundName { key: found.key, file: found.file, kind: NodeKind::of_code(found.kind) }))
}

/// The name that has a key.
pub(crate) fn name_of(
    blocks: &mut impl Blocks,
    directory: &Inode,
    key: u64,
) -> Result<Option<Entry>, TreeError> {
    let Some((place, block)) = leaf_of(blocks, directory, key)? else { return Ok(None) };
    Ok(known_leaf(&block, directory.id, place)?.names().find(|name| name.key == key).map(Entry::from))
}

/// Up to `limit` names whose keys are `from` or larger, by key. Names before an unreadable block
/// are returned without the later ones: a caller that continues from there gets the error.
pub(crate) fn list(
    blocks: &mut impl Blocks,
    directory: &Inode,
    from: u64,
    limit: usize,
) -> Result<Vec<Entry>, TreeError> {
    let (mut entries, mut key) = (Vec::new(), from.max(KEY_MIN));
    while entries.len() < limit && key < 1 << KEY_BITS {
        let room = limit - entries.len();
        match list_leaf(blocks, directory, key, room, &mut entries) {
            Ok(Some(next)) => key = next,
            Err(error) if entries.is_empty() => return Err(error),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(entries)
}

/// Appends up to `room` names from `key` on of its leaf, if it has one. Returns the key to continue
/// with, `None` at the end.
fn list_leaf(
    blocks: &mut impl Blocks,
    directory: &Inode,
    key: u64,
    room: usize,
    entries: &mut Vec<Entry>,
) -> Result<Option<u64>, TreeError> {
    let Some((place, block)) = leaf_of(blocks, directory, key)? else {
        return next_leaf(blocks, directory, key);
    };
    let leaf = known_leaf(&block, directory.id, place)?;
    entries.extend(leaf.names().filter(|name| name.key >= key).take(room).map(Entry::from));
    Ok(Some(place.end()))
}

/// The last key of the first unreadable block from `from` on; `None` if there is no such block, or
/// if the next one is unknown.
pub(crate) fn end_of_damage(blocks: &mut impl Blocks, directory: &Inode, from: u64) -> Option<u64> {
    let mut key = from.max(KEY_MIN);
    while key < 1 << KEY_BITS {
        let levels = (0..=LeafPlace::level_of(directory.tree.length)).rev();
        let mut places = levels.map(|level| LeafPlace::of(key, level));
        let found = places.find_map(|place| match blocks.leaf(directory.id, place) {
            Ok(leaf) => leaf.map(|_| (place, true)),
            Err(_) => Some((place, false)),
        });
        key = match found {
            // Where names are in other blocks it has none.
            None | Some((LeafPlace::TOP, false)) => {
                return Some(next_leaf(blocks, directory, key).ok()?? - 1);
            }
            Some((place, false)) => return Some(place.end() - 1),
            Some((LeafPlace::TOP, true)) => next_leaf(blocks, directory, key).ok()??,
            Some((place, true)) => place.end(),
        };
    }
    None
}

/// The first key of the first leaf after a key that has none.
fn next_leaf(blocks: &mut impl Blocks, directory: &Inode, key: u64) -> Result<Option<u64>, TreeError> {
    let mut next: Option<u64> = None;
    for level in 1..=LeafPlace::level_of(directory.tree.length) {
        let (from, end) = (LeafPlace::of(key, level).lba(), 2 << level);
        if let Some(lba) = blocks.next_data(directory.id, from, end)? {
            let start = (lba - (1 << level)) << (KEY_BITS - level);
            next = Some(next.map_or(start, |next| next.min(start)));
        }
    }
    // The one that the key itself is in would have been found.
    Ok(next.filter(|next| *next > key))
}

fn leaf_block<'a>(head: &LeafHead, names: impl Iterator<Item = LeafName<'a>>) -> Block {
    let mut block = BlockMut::dirty();
    head.write(names, &mut block);
    block.freeze()
}

/// The head of a leaf that is not the top one.
fn lower(directory: FileId, place: LeafPlace) -> LeafHead {
    LeafHead { directory, place, split: false, parent: FileId(0), parent_key: 0 }
}

/// Writes block 0 of a directory that is made, or whose name is another one from here on.
pub(crate) fn set_parent(
    edit: &mut Edit<'_>,
    directory: FileId,
    parent: FileId,
    parent_key: u64,
) -> Result<(), TreeError> {
    let new = match edit.leaf(directory, LeafPlace::TOP)? {
        Some(block) => {
            let leaf = known_leaf(&block, directory, LeafPlace::TOP)?;
            leaf_block(&LeafHead { parent, parent_key, ..leaf.head }, leaf.names())
        }
        None => {
            let head = LeafHead { directory, place: LeafPlace::TOP, split: false, parent, parent_key };
            leaf_block(&head, std::iter::empty())
        }
    };
    edit.write_leaf(directory, LeafPlace::TOP, new)
}

/// Block 0 of a directory that is made outside of an edit.
pub(crate) fn top_block(directory: FileId, parent: FileId) -> Block {
    let head = LeafHead { directory, place: LeafPlace::TOP, split: false, parent, parent_key: 0 };
    leaf_block(&head, std::iter::empty())
}

/// Adds a new name. Returns its key.
pub(crate) fn insert(
    edit: &mut Edit<'_>,
    directory: FileId,
    name: &[u8],
    file: FileId,
    kind: NodeKind,
) -> Result<u64, TreeError> {
    let inode = edit.inode(directory)?;
    let first = first_key(edit.volume_id(), directory, name);
    let named = |key| LeafName { key, file, kind: kind.code(), name };
    let Some((place, block)) = leaf_of(edit, &inode, first)? else {
        // The deepest level: nothing can be below.
        let place = LeafPlace::of(first, LeafPlace::level_of(inode.tree.length));
        write_leaf(edit, &lower(directory, place), &[named(first)])?;
        return Ok(first);
    };
    let leaf = known_leaf(&block, directory, place)?;
    let is_free = |key: &u64| leaf.names().all(|name| name.key != *key);
    let key = (first..=first | SAME_HASH).find(is_free).ok_or(TreeError::NoSpace)?;
    let mut names: Vec<LeafName<'_>> = Vec::with_capacity(leaf.len() + 1);
    names.extend(leaf.names());
    names.insert(names.partition_point(|name| name.key < key), named(key));
    spread(edit, leaf.head, &names)?;
    Ok(key)
}

/// Writes names into the leaf `head`, or into leaves below it.
fn spread(edit: &mut Edit<'_>, head: LeafHead, names: &[LeafName<'_>]) -> Result<(), TreeError> {
    let bytes: usize = names.iter().map(LeafName::size).sum();
    if bytes <= LEAF_BYTES {
        return write_leaf(edit, &head, names);
    }
    let (directory, place) = (head.directory, head.place);
    if place.level == LEAF_LEVEL_MAX {
        return Err(TreeError::NoSpace);
    }
    if place == LeafPlace::TOP {
        write_leaf(edit, &LeafHead { split: true, ..head }, &[])?;
    } else {
        edit.punch_block(directory, place.lba())?;
    }
    let level = place.level + 1;
    let blocks = LeafPlace::blocks_to(level);
    let inode = edit.inode_mut(directory)?;
    if inode.tree.length < blocks {
        (inode.tree.length, inode.length_bytes) = (blocks, blocks * BLOCK_SIZE as u64);
    }
    let [low, high] = [place.prefix * 2, place.prefix * 2 + 1].map(|prefix| LeafPlace { level, prefix });
    let middle = names.partition_point(|name| name.key < high.start());
    let (lower_names, upper_names) = names.split_at(middle);
    for (place, part) in [(low, lower_names), (high, upper_names)] {
        if !part.is_empty() {
            spread(edit, lower(directory, place), part)?;
        }
    }
    Ok(())
}

fn write_leaf(edit: &mut Edit<'_>, head: &LeafHead, names: &[LeafName<'_>]) -> Result<(), TreeError> {
    edit.write_leaf(head.directory, head.place, leaf_block(head, names.iter().copied()))
}

/// Points an existing name to another file.
pub(crate) fn replace(
    edit: &mut Edit<'_>,
    directory: FileId,
    key: u64,
    file: FileId,
    kind: NodeKind,
) -> Result<(), TreeError> {
    let inode = edit.inode(directory)?;
    let (place, block) = leaf_of(edit, &inode, key)?.ok_or(TreeError::NotFound)?;
    let leaf = known_leaf(&block, directory, place)?;
    let mut names: Vec<LeafName<'_>> = leaf.names().collect();
    let name = names.iter_mut().find(|name| name.key == key).ok_or(TreeError::NotFound)?;
    (name.file, name.kind) = (file, kind.code());
    write_leaf(edit, &leaf.head, &names)
}

/// Takes a name away.
pub(crate) fn remove(edit: &mut Edit<'_>, directory: FileId, key: u64) -> Result<(), TreeError> {
    let inode = edit.inode(directory)?;
    let (place, block) = leaf_of(edit, &inode, key)?.ok_or(TreeError::NotFound)?;
    let leaf = known_leaf(&block, directory, place)?;
    let names: Vec<LeafName<'_>> = leaf.names().filter(|name| name.key != key).collect();
    if place == LeafPlace::TOP {
        return write_leaf(edit, &leaf.head, &names);
    }
    if !names.is_empty() {
        return write_or_merge(edit, directory, place, names);
    }
    edit.punch_block(directory, place.lba())?;
    if edit.inode(directory)?.attributes.blocks == 1 {
        // It was the last one.
        let head = LeafHead { split: false, ..head(edit, directory)? };
        write_leaf(edit, &head, &[])?;
        let inode = edit.inode_mut(directory)?;
        (inode.tree.length, inode.length_bytes) = (1, BLOCK_SIZE as u64);
    }
    Ok(())
}

/// Writes a leaf that has lost a name; with its neighbour it becomes one of the level above when
/// both are small.
fn write_or_merge(
    edit: &mut Edit<'_>,
    directory: FileId,
    place: LeafPlace,
    names: Vec<LeafName<'_>>,
) -> Result<(), TreeError> {
    let own: usize = names.iter().map(LeafName::size).sum();
    let other = LeafPlace { prefix: place.prefix ^ 1, ..place };
    let neighbour = match own < MERGE_BELOW / 2 {
        true => edit.leaf(directory, other),
        false => Ok(None),
    };
    let neighbour = match neighbour {
        // It loses its own names, and its neighbours are not merged.
        Err(TreeError::Damaged(_)) => None,
        neighbour => neighbour?,
    };
    let Some(neighbour) = neighbour else {
        return write_leaf(edit, &lower(directory, place), &names);
    };
    let leaf = known_leaf(&neighbour, directory, other)?;
    if own + leaf.used_bytes() >= MERGE_BELOW {
        return write_leaf(edit, &lower(directory, place), &names);
    }
    let mut all = names;
    all.extend(leaf.names());
    all.sort_unstable_by_key(|name| name.key);
    edit.punch_block(directory, place.lba())?;
    edit.punch_block(directory, other.lba())?;
    let above = LeafPlace { level: place.level - 1, prefix: place.prefix / 2 };
    if above != LeafPlace::TOP {
        return write_leaf(edit, &lower(directory, above), &all);
    }
    let head = LeafHead { split: false, ..head(edit, directory)? };
    write_leaf(edit, &head, &all)?;
    let inode = edit.inode_mut(directory)?;
    (inode.tree.length, inode.length_bytes) = (1, BLOCK_SIZE as u64);
    Ok(())
}

/// Whether a directory has no names.
pub(crate) fn is_empty(blocks: &mut impl Blocks, directory: FileId) -> Result<bool, TreeError> {
    let block = blocks.leaf(directory, LeafPlace::TOP)?.ok_or_else(|| damaged(directory, 0))?;
    let leaf = known_leaf(&block, directory, LeafPlace::TOP)?;
    Ok(!leaf.head.split && leaf.is_empty())
}
