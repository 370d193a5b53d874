//! A POSIX tree in a volume: names, directories, attributes and content of files.
//!
//! A [`Tree`] is of the live volume, or of an image (a snapshot, or the last consistency point),
//! which is read-only. Both have the same interface.
//!
//! # Invariants
//! 1. Every operation on names, attributes or directories is one [`cairn_volume::Change`]. After a
//!    crash it is present whole or not at all, and so is every earlier operation on the same
//!    objects. Everything that [`Tree::sync`] covered is present.
//! 2. A directory has at most one name, and its block 0 has its place. So `..` and the path of a
//!    directory are found without a search, and no directory is below itself.
//! 3. A file's `links` is the number of its names; a directory's 2 and one for each directory in
//!    it.
//! 4. A held file without names is in the orphan directory, and is freed when its last hold ends.
//!    (FUSE's kernel holds a file from the first lookup until it forgets the file.) Opening empties
//!    that directory.
//! 5. In the last block of a file the bytes past its end are zero.
//! 6. `blocks` of an inode is the number of blocks of its content that are not holes.
//!
//! # What it does not do
//! It checks no permissions: its server does (for FUSE the kernel, with `default_permissions`), and
//! also handles sticky bits, and the loss of set-user-ID by a write. It starts no threads and keeps
//! no cache but the volume's; when neighbouring files are read it fills that ahead (`ahead`).
//!
//! # Locks
//! `names` first (shared to look names up, alone to change them), then the files' own by number of
//! their shard, then `holds`. An operation takes those of all files that it changes before it reads
//! the first one. `missed` is taken alone, for a moment.

mod acl;
mod ahead;
mod check;
mod content;
mod difference;
mod edit;
mod error;
mod extended;
mod hold;
mod names;
mod quota;
mod source;
mod stat;
#[cfg(test)]
mod tests;
mod trie;

use std::collections::HashSet;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId};
use cairn_format::{Attributes, DirectoryEntry, FileKind, Inode, LeafHead, NAME_BYTES_MAX};
use cairn_volume::{Head, Image, Role, Volume, VolumeError};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::directory::Directory;

use ahead::Missed;
use hold::Holds;
use quota::Quotas;
use source::{Source, damaged};

pub use check::{TreeFinding, check_tree};
pub use difference::{ChangeKind, FileDifference, TreeChange};
pub use error::TreeError;
pub use quota::{Quota, QuotaLimits, Room};
pub use stat::{
    Allocate, Entry, New, NodeKind, ReadableNodes, Rename, SetStat, SetTime, SetXattr, Space, Stat,
};

/// Largest size of a file: 16 TiB less a block, so that blocks are counted in 32 bits.
pub const FILE_BYTES_MAX: u64 = (1 << 44) - BLOCK_SIZE as u64;
/// Most names of a file.
const LINKS_MAX: u32 = 65_000;
/// Locks of files; a file has the one of its number modulo this.
const SHARDS: usize = 64;
/// Cookie of `.` and of `..`.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

/// Names in the root directory other than LUNs, whose names don't begin with a dot.
const ROOT_NAME: &str = ".files";
const ORPHANS_NAME: &str = ".orphans";
const QUOTAS_NAME: &str = ".quotas";

/// Whose the root directory of a new tree is; root's by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The files that the root directory names.
#[derive(Debug, Clone, Copy)]
struct Roots {
    /// The directory that is the root of the tree.
    root: FileId,
    /// The directory of files without names.
    orphans: FileId,
    /// The records of quota trees.
    quotas: FileId,
}

/// A tree of files. Only one for a live volume at a time, as it holds the locks; any number for
/// images. After a rollback of the volume open it anew: its holds and quotas belong to another
/// state ([`Tree::is_current`]).
pub struct Tree {
    source: Source,
    root: FileId,
    orphans: FileId,
    /// Names of all directories.
    names: RwLock<()>,
    /// Inodes and content, by file.
    shards: Vec<RwLock<()>>,
    holds: Mutex<Holds>,
    quotas: Quotas,
    missed: Missed,
}

impl Tree {
    /// The tree of a live volume, which is root's when it is made: see [`Tree::open_for`].
    ///
    /// # Errors
    /// As [`Tree::open_for`].
    pub fn open(volume: Arc<Volume>) -> Result<Self, TreeError> {
        Self::open_for(volume, Owner::default())
    }

    /// The tree of a live volume. The first call makes an empty one, whose root directory is of
    /// `owner` (mode 0755). Every call frees files that were nameless and open when the volume was
    /// last used.
    ///
    /// # Errors
    /// [`TreeError::ReadOnly`] while the volume is a destination: [`Tree::of_image`] reads its
    /// image. [`TreeError::NoSpace`]; damage; the volume's states.
    pub fn open_for(volume: Arc<Volume>, owner: Owner) -> Result<Self, TreeError> {
        if volume.status_role() == Role::Destination {
            return Err(TreeError::ReadOnly);
        }
        // Before anything is read of it.
        let head = volume.head();
        let roots = {
            let turn = volume.directory_turn();
            let found = find_roots(&Directory::read(&volume)?)?;
            let roots = match found {
                Some(roots) => roots,
                None => make_roots(&volume, owner)?,
            };
            drop(turn);
            roots
        };
        let tree = Self::new(Source::Live(volume), roots, head)?;
        tree.free_orphans()?;
        Ok(tree)
    }

    /// The tree in an image.
    ///
    /// # Errors
    /// [`TreeError::NoTree`] when no file was ever stored in it; damage; the volume's states.
    pub fn of_image(image: Image) -> Result<Self, TreeError> {
        let roots = find_roots(&Directory::read_in(&image)?)?.ok_or(TreeError::NoTree)?;
        let head = image.volume().head();
        Self::new(Source::Frozen(image), roots, head)
    }

    fn new(source: Source, roots: Roots, head: Head) -> Result<Self, TreeError> {
        Ok(Self {
            root: roots.root,
            orphans: roots.orphans,
            quotas: Quotas::load(&source, roots.quotas, roots.orphans, head)?,
            source,
            names: RwLock::new(()),
            shards: (0..SHARDS).map(|_| RwLock::new(())).collect(),
            holds: Mutex::default(),
            missed: Missed::default(),
        })
    }

    /// True for the tree of an image.
    pub fn is_read_only(&self) -> bool {
        matches!(self.source, Source::Frozen(_))
    }

    /// False once a live tree has to be opened anew: the volume was rolled back, or a mirror's
    /// image has arrived. Changes are refused from then on ([`TreeError::Stale`]), and reads return
    /// the volume's present content.
    pub fn is_current(&self) -> bool {
        self.is_read_only() || self.volume().head() == self.quotas.head()
    }

    /// The root directory of the tree.
    pub fn root(&self) -> FileId {
        self.root
    }

    /// The image that it is of.
    pub fn image(&self) -> Option<&Image> {
        match &self.source {
            Source::Live(_) => None,
            Source::Frozen(image) => Some(image),
        }
    }

    /// The volume that it is in.
    pub fn volume(&self) -> &Arc<Volume> {
        self.source.volume()
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; [`TreeError::NotDirectory`]; [`TreeError::NameTooLong`];
    /// [`TreeError::Invalid`] for `.`, `..` and names that can't be.
    pub fn lookup(&self, directory: FileId, name: &[u8]) -> Result<Stat, TreeError> {
        trie::check_name(name)?;
        let _names = self.names.read();
        let inode = self.directory(directory)?;
        let found = trie::find(&mut &self.source, &inode, name)?.ok_or(TreeError::NotFound)?;
        self.stat(found.file)
    }

    /// Looks a path up from the root, without following links. `.` and empty parts are skipped,
    /// `..` goes up.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    pub fn resolve(&self, path: &[u8]) -> Result<Stat, TreeError> {
        let mut at = self.stat(self.root)?;
        for part in path.split(|byte| *byte == b'/') {
            at = match part {
                b"" | b"." => at,
                b".." => self.stat(self.parent(at.file)?)?,
                name => self.lookup(at.file, name)?,
            };
        }
        Ok(at)
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// [`TreeError::NotFound`] once it is gone.
    pub fn stat(&self, file: FileId) -> Result<Stat, TreeError> {
        Ok(Stat::from(&self.source.inode(file)?))
    }

    /// The directory that has a directory's name; the root's is the root.
    ///
    /// # Errors
    /// [`TreeError::NotDirectory`]; [`TreeError::NotFound`].
    pub fn parent(&self, directory: FileId) -> Result<FileId, TreeError> {
        self.directory(directory)?;
        Ok(trie::head(&mut &self.source, directory)?.parent)
    }

    /// The path of a directory from the root, without a slash before it; the root's is empty.
    ///
    /// # Errors
    /// [`TreeError::NotDirectory`]; [`TreeError::NotFound`] of one that has no name any more.
    pub fn directory_path(&self, directory: FileId) -> Result<Vec<u8>, TreeError> {
        let _names = self.names.read();
        self.directory(directory)?;
        let mut parts = Vec::new();
        self.go_up(directory, &mut |at, head| {
            let parent = self.directory(head.parent)?;
            let entry = trie::name_of(&mut &self.source, &parent, head.parent_key)?;
            parts.push(entry.filter(|entry| entry.file == at).ok_or(TreeError::NotFound)?.name);
            Ok(())
        })?;
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// Calls `visit` with a directory and all above it, except the root, and the content of block 0
    /// of each.
    fn go_up(
        &self,
        directory: FileId,
        visit: &mut dyn FnMut(FileId, &LeafHead) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let (mut at, mut passed) = (directory, HashSet::new());
        while at != self.root {
            // A circle is damage, and would have no end.
            if !passed.insert(at) {
                return Err(damaged(at, 0));
            }
            let head = trie::head(&mut &self.source, at)?;
            visit(at, &head)?;
            at = head.parent;
        }
        Ok(())
    }

    /// Names of a directory after the cookie `after` (0: from the beginning), at most `limit`; none
    /// at the end. The first ones are `.` and `..`.
    ///
    /// # Errors
    /// [`TreeError::NotDirectory`]; [`TreeError::NotFound`]; damage that precedes any name: see
    /// [`Tree::behind_damage`].
    pub fn read_directory(
        &self,
        directory: FileId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, TreeError> {
        let _names = self.names.read();
        let inode = self.directory(directory)?;
        let mut entries = Vec::new();
        let dots = |cookie, file, name: &[u8]| Entry {
            cookie,
            file,
            kind: NodeKind::Directory,
            name: name.to_vec(),
        };
        if after < COOKIE_SELF {
            entries.push(dots(COOKIE_SELF, directory, b"."));
        }
        if after < COOKIE_PARENT {
            entries.push(dots(COOKIE_PARENT, trie::head(&mut &self.source, directory)?.parent, b".."));
        }
        entries.truncate(limit);
        let room = limit - entries.len();
        if room > 0 && inode.attributes.links > 0 {
            entries.extend(trie::list(&mut &self.source, &inode, after.saturating_add(1), room)?);
        }
        Ok(entries)
    }

    /// Where to continue with [`Tree::read_directory`] after a failure following the cookie
    /// `after`: after the unreadable block of the directory, which loses the names in it and no
    /// others. `None` if the next block is unknown.
    pub fn behind_damage(&self, directory: FileId, after: u64) -> Option<u64> {
        let _names = self.names.read();
        let inode = self.directory(directory).ok()?;
        // The first block, which may have no names, has the link to the parent directory.
        if after < COOKIE_PARENT && trie::head(&mut &self.source, directory).is_err() {
            return Some(COOKIE_PARENT);
        }
        trie::end_of_damage(&mut &self.source, &inode, after.saturating_add(1))
    }

    /// Files by number from `from` on, at most `limit`, as of the image; of a live tree as of the
    /// last consistency point. None at the end. Files that have no name any more have no links.
    ///
    /// # Errors
    /// Damage; the volume's states.
    pub fn nodes(&self, from: FileId, limit: usize) -> Result<Vec<Stat>, TreeError> {
        let image = match &self.source {
            Source::Live(volume) => volume.image(None)?,
            Source::Frozen(image) => image.clone(),
        };
        let (mut stats, mut next) = (Vec::new(), Some(from));
        while let Some(at) = next.filter(|_| stats.is_empty()) {
            let (inodes, more) = image.inodes_from(at)?;
            let is_node =
                |inode: &&Inode| inode.kind == FileKind::Node && !inode.removed && !self.is_own(inode.id);
            stats.extend(inodes.iter().filter(is_node).map(Stat::from).take(limit));
            next = more;
        }
        Ok(stats)
    }

    /// The same of all files of an image from `from` on that one look gives, some thousand, as far
    /// as their inodes can be read.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for a live tree; damage above all inodes; the volume's states.
    pub fn readable_nodes(&self, from: FileId) -> Result<ReadableNodes, TreeError> {
        let image =
            self.image().ok_or(TreeError::Invalid("only files of an image are looked at in order"))?;
        let found = image.readable_inodes_from(from)?;
        let is_node =
            |inode: &&Inode| inode.kind == FileKind::Node && !inode.removed && !self.is_own(inode.id);
        let stats = found.inodes.iter().filter(is_node).map(Stat::from).collect();
        Ok(ReadableNodes { stats, lost: found.lost, next: found.next })
    }

    /// How full the volume is.
    ///
    /// # Errors
    /// None today.
    pub fn statfs(&self) -> Result<Space, TreeError> {
        let status = self.volume().status();
        let files_free = if self.is_read_only() { 0 } else { status.free };
        Ok(Space {
            blocks: status.blocks,
            free: files_free,
            block_bytes: BLOCK_SIZE as u32,
            name_max: NAME_BYTES_MAX as u32,
            files: status.blocks,
            files_free,
        })
    }

    /// Makes everything that was done to a file or directory, and its names, durable: all that was
    /// done to the volume before the call. Callers share flushes.
    ///
    /// # Errors
    /// After an error nothing more is guaranteed to be durable than before, and the volume takes no
    /// more changes.
    pub fn sync(&self, _file: FileId) -> Result<(), TreeError> {
        self.sync_all()
    }

    /// The same of the whole tree.
    ///
    /// # Errors
    /// As [`Tree::sync`].
    pub fn sync_all(&self) -> Result<(), TreeError> {
        match &self.source {
            Source::Live(volume) => Ok(volume.flush()?),
            Source::Frozen(_) => Ok(()),
        }
    }

    /// A file of the tree's own, which no name leads to: servers that get numbers of files from
    /// outside must not allow access to it.
    pub fn is_own(&self, file: FileId) -> bool {
        file == self.orphans || file == self.quotas.file()
    }

    /// The live volume's source, for a change.
    fn live(&self) -> Result<&Source, TreeError> {
        match &self.source {
            Source::Live(_) if !self.is_current() => Err(TreeError::Stale),
            Source::Live(_) => Ok(&self.source),
            Source::Frozen(_) => Err(TreeError::ReadOnly),
        }
    }

    /// The inode of a directory.
    fn directory(&self, file: FileId) -> Result<Inode, TreeError> {
        as_directory(self.source.inode(file)?)
    }

    fn shard(&self, file: FileId) -> usize {
        (file.0 % SHARDS as u64) as usize
    }

    /// The locks of these files, in order.
    fn lock_files(&self, files: &[FileId]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut shards: Vec<usize> = files.iter().map(|file| self.shard(*file)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().filter_map(|shard| self.shards.get(shard)).map(RwLock::write).collect()
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree(root {}{})", self.root, if self.is_read_only() { ", read-only" } else { "" })
    }
}

fn as_directory(inode: Inode) -> Result<Inode, TreeError> {
    match NodeKind::of(&inode) {
        NodeKind::Directory => Ok(inode),
        _ => Err(TreeError::NotDirectory),
    }
}

fn find_roots(directory: &Directory) -> Result<Option<Roots>, VolumeError> {
    let entries = directory.entries()?;
    let file = |name: &str| entries.iter().find(|(_, entry)| entry.name == name).map(|(_, entry)| entry.file);
    let all = (file(ROOT_NAME), file(ORPHANS_NAME), file(QUOTAS_NAME));
    Ok(match all {
        (Some(root), Some(orphans), Some(quotas)) => Some(Roots { root, orphans, quotas }),
        _ => None,
    })
}

/// Makes them in one generation: after a crash they exist, or the tree does not.
fn make_roots(volume: &Arc<Volume>, owner: Owner) -> Result<Roots, TreeError> {
    let now = volume.now().0.cast_signed();
    let directory = Attributes {
        uid: owner.uid,
        gid: owner.gid,
        mode: NodeKind::Directory.type_bits() | 0o755,
        links: 2,
        blocks: 1,
        accessed_ns: now,
        modified_ns: now,
        changed_ns: now,
        ..Attributes::default()
    };
    let quotas = Attributes { mode: NodeKind::File.type_bits() | 0o600, links: 1, blocks: 0, ..directory };
    let roots = {
        let compound = volume.compound();
        let make = |name: &str, attributes: Attributes| -> Result<FileId, VolumeError> {
            let file = compound.create_node(attributes, BLOCK_SIZE as u64)?;
            if attributes.blocks > 0 {
                compound.write(file, cairn_base::Lba(0), trie::top_block(file, file))?;
            }
            let directory = Directory::read(volume)?;
            let entry = DirectoryEntry { file, name: name.to_owned() };
            directory.put(&compound, directory.free_place(), Some(&entry))?;
            Ok(file)
        };
        Roots {
            root: make(ROOT_NAME, directory)?,
            orphans: make(ORPHANS_NAME, directory)?,
            quotas: make(QUOTAS_NAME, quotas)?,
        }
    };
    volume.consistency_point()?;
    Ok(roots)
}
