//! Every block of one root that another root does not have: its pointer and where in the volume it
//! belongs. On request also the reverse.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{FileId, Lba};
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode, Root, TreeRef};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::block_set::BlockSet;
use crate::read::inodes::inodes_at;
use crate::read::store::Store;
use crate::read::tree::{BATCH, Tree, difference, difference_past};

/// A block of a root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) file: FileId,
    /// 0 is data.
    pub(crate) level: u8,
    /// The number of its first block of file.
    pub(crate) at: u64,
    pub(crate) pointer: BlockPointer,
}

/// A root, and where its blocks are: two roots of a destination can have the same vbn with
/// different content, one of them in the redirect area.
#[derive(Clone, Copy)]
pub(crate) struct Rooted<'a> {
    pub(crate) root: &'a Root,
    pub(crate) redirects: &'a Redirects,
}

/// [`new_blocks_but`] of all files.
pub(crate) fn new_blocks(
    store: &Store,
    base: Option<Rooted<'_>>,
    new: Rooted<'_>,
    visit: &mut dyn FnMut(Reached) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    new_blocks_but(&BTreeSet::new(), store, base, new, visit)
}

/// Calls `visit` with each block that `new` reaches and `base` (nothing without one) does not have
/// in the same position. Where both have the same block the blocks below are skipped; so are the
/// trees of the files in `but`. A block is visited before its children are read.
pub(crate) fn new_blocks_but(
    but: &BTreeSet<FileId>,
    store: &Store,
    base: Option<Rooted<'_>>,
    new: Rooted<'_>,
    visit: &mut dyn FnMut(Reached) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    walk(but, store, base, new, &mut Told { visit, parted: None })
}

/// Blocks that a root no longer has in the place where its base has them.
#[derive(Debug, Default)]
pub(crate) struct Parted {
    /// Blocks of the base that the new root does not have in the same position.
    pub(crate) gone: BlockSet,
    /// Regions whose block of the active map is not the same, with the old and the new pointer.
    pub(crate) regions: BTreeMap<u64, (BlockPointer, BlockPointer)>,
    /// A node of a file that only the base has can't be read: more may be gone than is known.
    pub(crate) incomplete: bool,
}

/// [`new_blocks`], and the blocks that `base` has and `new` does not. Trees of files that only the
/// base has are walked as well.
pub(crate) fn both_sides(
    store: &Store,
    base: Option<Rooted<'_>>,
    new: Rooted<'_>,
    parted: &mut Parted,
    visit: &mut dyn FnMut(Reached) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    walk(&BTreeSet::new(), store, base, new, &mut Told { visit, parted: Some(parted) })
}

/// The receivers of a walk's findings.
struct Told<'a> {
    visit: &'a mut dyn FnMut(Reached) -> Result<(), VolumeError>,
    parted: Option<&'a mut Parted>,
}

fn walk(
    but: &BTreeSet<FileId>,
    store: &Store,
    base: Option<Rooted<'_>>,
    new: Rooted<'_>,
    told: &mut Told<'_>,
) -> Result<(), VolumeError> {
    let root = new.root;
    let old_redirects = base.map_or(new.redirects, |base| base.redirects);
    let before = |file, tree| Tree { store, redirects: old_redirects, file, tree };
    let after = |file, tree| Tree { store, redirects: new.redirects, file, tree };
    let of_base = |own: TreeRef, pick: fn(&Root) -> TreeRef| {
        base.map_or(TreeRef::empty(own.length), |base| pick(base.root))
    };
    let old_map = before(ACTIVE_MAP, of_base(root.active_map, |root| root.active_map));
    let mut regions = BTreeMap::new();
    one_tree(&old_map, &after(ACTIVE_MAP, root.active_map), told, &mut |region, old, new| {
        regions.insert(region, (old, new));
    })?;
    if let Some(parted) = &mut told.parted {
        parted.regions = regions;
    }
    let mut changed = Vec::new();
    let old_inodes = before(INODE_FILE, of_base(root.inode_file, |root| root.inode_file));
    one_tree(&old_inodes, &after(INODE_FILE, root.inode_file), told, &mut |at, old, new| {
        changed.push((at, old, new));
    })?;
    for chunk in changed.chunks(BATCH) {
        let old = inodes_at(store, old_redirects, chunk.iter().map(|(at, old, _)| (*at, *old)))?;
        let own = inodes_at(store, new.redirects, chunk.iter().map(|(at, _, own)| (*at, *own)))?;
        let blocks =
            chunk.iter().flat_map(|(at, _, own)| (0..INODES_PER_BLOCK as usize).map(move |n| (*at, n, own)));
        for ((at, slot, pointer), (old, inode)) in blocks.zip(old.into_iter().zip(own)) {
            let Some(inode) = inode else {
                if let Some(old) = old {
                    only_before(&before(old.id, old.tree), told);
                }
                continue;
            };
            if Inode::place(inode.id) != (at, slot) {
                // Its blocks would be looked for in the tree of another file.
                let place = Place::Data { file: INODE_FILE, lba: Lba(at) };
                return Err(VolumeError::Damaged { vbn: pointer.vbn, place });
            }
            if but.contains(&inode.id) {
                continue;
            }
            let old = old.map_or(TreeRef::empty(inode.tree.length), |inode| inode.tree);
            one_tree(&before(inode.id, old), &after(inode.id, inode.tree), told, &mut |_, _, _| {})?;
        }
    }
    Ok(())
}

/// The blocks of a file that the new root does not have. Nothing of it is needed, so damage there
/// ends no walk.
fn only_before(old: &Tree<'_>, told: &mut Told<'_>) {
    let Some(parted) = &mut told.parted else { return };
    let nothing = Tree { tree: TreeRef { pointer: BlockPointer::HOLE, ..old.tree }, ..*old };
    let mut incomplete = false;
    let gone = &mut parted.gone;
    let walked = difference_past(
        old,
        &nothing,
        &mut |_, _, before, _| {
            gone.insert(before.vbn);
            Ok(())
        },
        &mut |_| {
            incomplete = true;
            Ok(())
        },
    );
    parted.incomplete |= incomplete || walked.is_err();
}

/// `data` gets the blocks of data that differ: number, old and new pointer.
fn one_tree(
    old: &Tree<'_>,
    new: &Tree<'_>,
    told: &mut Told<'_>,
    data: &mut dyn FnMut(u64, BlockPointer, BlockPointer),
) -> Result<(), VolumeError> {
    difference(old, new, &mut |at, level, before, pointer| {
        if let Some(parted) = told.parted.as_mut().filter(|_| !before.is_hole()) {
            parted.gone.insert(before.vbn);
        }
        if !pointer.is_hole() {
            (told.visit)(Reached { file: new.file, level, at, pointer })?;
        }
        if level == 0 {
            data(at, before, pointer);
        }
        Ok(())
    })
}
