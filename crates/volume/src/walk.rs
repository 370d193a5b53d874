//! Every block of one root that another root does not have: its pointer and where in the volume it belongs.

use std::collections::BTreeSet;

use cairn_base::FileId;
use cairn_format::{BlockPointer, Root, TreeRef};

use crate::compare::{ACTIVE_MAP, INODE_FILE};
use crate::difference::inodes_at;
use crate::error::VolumeError;
use crate::space::Redirects;
use crate::store::Store;
use crate::tree::{BATCH, Tree, difference};

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

/// A root, and where its blocks are: two roots of a destination can have the same vbn with different content, one of them in the redirect area.
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

/// Calls `visit` with each block that `new` reaches and `base` (nothing without one) does not have in the same position. Where both have the same block
/// nothing below is looked at; nor are the trees of the files in `but`. A block is visited before anything that it points to is read.
pub(crate) fn new_blocks_but(
    but: &BTreeSet<FileId>,
    store: &Store,
    base: Option<Rooted<'_>>,
    new: Rooted<'_>,
    visit: &mut dyn FnMut(Reached) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let root = new.root;
    let old_redirects = base.map_or(new.redirects, |base| base.redirects);
    let before = |file, tree| Tree { store, redirects: old_redirects, file, tree };
    let after = |file, tree| Tree { store, redirects: new.redirects, file, tree };
    let of_base = |own: TreeRef, pick: fn(&Root) -> TreeRef| {
        base.map_or(TreeRef::empty(own.length), |base| pick(base.root))
    };
    let old_map = before(ACTIVE_MAP, of_base(root.active_map, |root| root.active_map));
    one_tree(&old_map, &after(ACTIVE_MAP, root.active_map), visit, &mut |_, _, _| {})?;
    let mut changed = Vec::new();
    let old_inodes = before(INODE_FILE, of_base(root.inode_file, |root| root.inode_file));
    one_tree(&old_inodes, &after(INODE_FILE, root.inode_file), visit, &mut |at, old, new| {
        changed.push((at, old, new));
    })?;
    for chunk in changed.chunks(BATCH) {
        let old = inodes_at(store, old_redirects, chunk.iter().map(|(at, old, _)| (*at, *old)))?;
        let own = inodes_at(store, new.redirects, chunk.iter().map(|(at, _, own)| (*at, *own)))?;
        for (old, inode) in old.into_iter().zip(own) {
            let Some(inode) = inode.filter(|inode| !but.contains(&inode.id)) else { continue };
            let old = old.map_or(TreeRef::empty(inode.tree.length), |inode| inode.tree);
            one_tree(&before(inode.id, old), &after(inode.id, inode.tree), visit, &mut |_, _, _| {})?;
        }
    }
    Ok(())
}

/// `data` gets the blocks of data that differ: number, old and new pointer.
fn one_tree(
    old: &Tree<'_>,
    new: &Tree<'_>,
    visit: &mut dyn FnMut(Reached) -> Result<(), VolumeError>,
    data: &mut dyn FnMut(u64, BlockPointer, BlockPointer),
) -> Result<(), VolumeError> {
    difference(old, new, &mut |at, level, before, pointer| {
        if !pointer.is_hole() {
            visit(Reached { file: new.file, level, at, pointer })?;
        }
        if level == 0 {
            data(at, before, pointer);
        }
        Ok(())
    })
}
