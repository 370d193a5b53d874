//! Differences between the trees of two images of a volume: files made, changed, renamed and
//! deleted.
//!
//! The images' inode files tell which files differ, and the differing blocks of a directory tell
//! which of its names do: blocks that both images share are not read. One case needs more: a file
//! that was written to, in a directory that did not change, has a name that is in no differing
//! block. For these the directories of the newer image are read, names alone, until all of them are
//! found.

use std::collections::{BTreeMap, HashMap, HashSet};

use cairn_base::FileId;
use cairn_format::{Extended, FileKind, Inode, Leaf, LeafPlace};
use cairn_volume::{Image, VolumeError};

use super::error::TreeError;
use super::source::{Blocks, Source, damaged};
use super::stat::{Entry, NodeKind, Stat};
use super::{Tree, as_directory};

/// Entries that are read at once.
const ENTRIES: usize = 1024;

/// The kind of change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// It was not there before.
    Created,
    /// Its content or its attributes are others.
    Changed,
    /// It has another name. A change of its content is reported separately.
    Renamed,
    /// It has a name more than before (a hard link).
    Linked,
    /// It has a name less, and others still.
    Unlinked,
    /// It no longer exists.
    Deleted,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeChange {
    /// From the root, without a slash before it; the later one of a file that has another name.
    /// `None` where no name could be found: the file is one that is open and deleted.
    pub path: Option<Vec<u8>>,
    /// The kind of its change.
    pub kind: ChangeKind,
    /// The path that it had, of one that was renamed.
    pub from: Option<Vec<u8>>,
    /// The file.
    pub file: FileId,
    /// The kind of the file.
    pub node: NodeKind,
}

/// A file that differs between two images, and the directories in which it lost and got names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDifference {
    /// Which.
    pub file: FileId,
    /// It exists in the later image, with a name. For a file whose names alone differ this is
    /// assumed, not looked up.
    pub is_there: bool,
    /// Its content or its attributes are others than in the earlier image, or it is new. The time
    /// of the last read does not count.
    pub is_changed: bool,
    /// Directories of the earlier image, once for each removed name.
    pub gone: Vec<FileId>,
    /// Directories of the later image, once for each name added there.
    pub fresh: Vec<FileId>,
}

/// Names of one file that are in one image alone: directory and name.
type Names = Vec<(FileId, Vec<u8>)>;

/// A file that differs.
#[derive(Default)]
struct Differing {
    before: Option<Inode>,
    after: Option<Inode>,
    /// Its extended attributes are others.
    extended: bool,
    gone: Names,
    fresh: Names,
}

impl Differing {
    fn node(&self) -> NodeKind {
        self.after.as_ref().or(self.before.as_ref()).map_or(NodeKind::File, NodeKind::of)
    }

    /// Whether anything of its inode differs; one that was only read is not among those that are
    /// compared.
    fn is_other(&self) -> bool {
        self.before != self.after || self.extended
    }

    /// Whether more than its names differs. A directory's content is its names.
    fn has_changed(&self) -> bool {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return false };
        let told = |inode: &Inode| {
            let stat = Stat::from(inode);
            let content =
                (stat.kind != NodeKind::Directory).then_some((inode.tree, stat.bytes, stat.modified_ns));
            (stat.mode, stat.uid, stat.gid, content)
        };
        told(before) != told(after) || self.extended
    }
}

/// Directories on a walk, with their paths from the root. Each is entered once: in a damaged or
/// hostile tree, a way down may lead back up.
struct Waiting {
    paths: Vec<(FileId, Vec<u8>)>,
    entered: HashSet<FileId>,
}

impl Waiting {
    fn from(root: FileId) -> Self {
        Self { paths: vec![(root, Vec::new())], entered: HashSet::from([root]) }
    }

    fn next(&mut self) -> Option<(FileId, Vec<u8>)> {
        self.paths.pop()
    }

    fn enter(&mut self, entry: &Entry, path: &[u8]) {
        if entry.kind == NodeKind::Directory && self.entered.insert(entry.file) {
            self.paths.push((entry.file, path.to_vec()));
        }
    }
}

/// The path of a name in a directory.
fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
    [path, slash, name].concat()
}

impl Tree {
    /// Differences between the tree of an earlier image of the same volume and this one, which is
    /// of a later image; by path.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for a live tree; damage; the volume's states.
    pub fn changes_since(&self, earlier: &Tree) -> Result<Vec<TreeChange>, TreeError> {
        let files = self.differing(earlier)?;
        let mut changes = Vec::new();
        let mut unnamed: HashMap<FileId, NodeKind> = HashMap::new();
        for (file, differing) in &files {
            self.tell(earlier, *file, differing, &mut changes, &mut unnamed)?;
        }
        self.name(unnamed, &mut changes)?;
        changes.sort();
        Ok(changes)
    }

    /// Differences between an empty tree and this one (`Created`), or this one and an empty tree
    /// (`Deleted`): all its names, by path.
    ///
    /// # Errors
    /// Damage; the volume's states.
    pub fn all_as(&self, kind: ChangeKind) -> Result<Vec<TreeChange>, TreeError> {
        let (mut changes, mut told) = (Vec::new(), HashSet::new());
        let mut waiting = Waiting::from(self.root);
        while let Some((directory, path)) = waiting.next() {
            for entry in self.all_names(directory)? {
                let whole = below(&path, &entry.name);
                waiting.enter(&entry, &whole);
                let (file, node) = (entry.file, entry.kind);
                let first = told.insert(file) || kind != ChangeKind::Created;
                let kind = if first { kind } else { ChangeKind::Linked };
                changes.push(TreeChange { path: Some(whole), kind, from: None, file, node });
            }
        }
        changes.sort();
        Ok(changes)
    }

    /// The same by number and without paths, in order of number: only differing blocks are read.
    ///
    /// # Errors
    /// As [`Tree::changes_since`].
    pub fn differing_since(&self, earlier: &Tree) -> Result<Vec<FileDifference>, TreeError> {
        let directories = |names: &Names| names.iter().map(|(directory, _)| *directory).collect();
        let show = |(file, differing): (FileId, Differing)| FileDifference {
            file,
            is_there: differing.after.is_some() || differing.before.is_none(),
            is_changed: differing.is_other(),
            gone: directories(&differing.gone),
            fresh: directories(&differing.fresh),
        };
        Ok(self.differing(earlier)?.into_iter().map(show).collect())
    }

    fn differing(&self, earlier: &Tree) -> Result<BTreeMap<FileId, Differing>, TreeError> {
        let (Source::Frozen(old), Source::Frozen(new)) = (&earlier.source, &self.source) else {
            return Err(TreeError::Invalid("only trees of images are compared"));
        };
        let mut files: BTreeMap<FileId, Differing> = BTreeMap::new();
        let is_named =
            |inode: &Inode| inode.kind == FileKind::Node && !inode.removed && inode.attributes.links > 0;
        let changed = new.changed_inodes(old)?;
        let is_extended = |inode: &&Inode| inode.kind == FileKind::Extended && !inode.removed;
        let lists = changed.iter().filter_map(|(_, after)| after.as_ref().filter(is_extended));
        for list in lists {
            // The file's own inode differs too, unless the clock stood still.
            let owner = self.owner_of(list.id)?;
            let inode_in = |image: &Image| match image.inode(owner) {
                Ok(inode) => Ok(Some(inode).filter(is_named)),
                Err(VolumeError::NoSuchFile(_)) => Ok(None),
                Err(error) => Err(error),
            };
            let (before, after) = (inode_in(old)?, inode_in(new)?);
            // One that is open and deleted has no part in either.
            if before.is_some() || after.is_some() {
                files.insert(owner, Differing { before, after, extended: true, ..Differing::default() });
            }
        }
        for (before, after) in changed {
            let (before, after) = (before.filter(is_named), after.filter(is_named));
            let Some(inode) = after.as_ref().or(before.as_ref()) else { continue };
            if self.is_own(inode.id) {
                continue;
            }
            let list = |inode: &Option<Inode>| inode.as_ref().map(|inode| inode.attributes.extended);
            let extended = list(&before) != list(&after) || files.contains_key(&inode.id);
            files.insert(inode.id, Differing { before, after, extended, ..Differing::default() });
        }
        let is_directory = |inode: &Option<Inode>| {
            inode.as_ref().is_some_and(|inode| NodeKind::of(inode) == NodeKind::Directory)
        };
        let directories: Vec<FileId> = files
            .iter()
            .filter(|(_, file)| is_directory(&file.before) || is_directory(&file.after))
            .map(|(id, _)| *id)
            .collect();
        for directory in directories {
            let (gone, fresh) = self.names_between(earlier, old, new, directory)?;
            for entry in gone {
                files.entry(entry.file).or_default().gone.push((directory, entry.name));
            }
            for entry in fresh {
                files.entry(entry.file).or_default().fresh.push((directory, entry.name));
            }
        }
        Ok(files)
    }

    /// The file whose extended attributes are in `list`.
    fn owner_of(&self, list: FileId) -> Result<FileId, TreeError> {
        let bytes = self.source.read(list, 0, 1)?.to_vec();
        Extended::owner(&bytes).map_err(|_| damaged(list, 0))
    }

    /// Names that one image has in a directory and the other has not, or for another file.
    fn names_between(
        &self,
        earlier: &Tree,
        old: &Image,
        new: &Image,
        directory: FileId,
    ) -> Result<(Vec<Entry>, Vec<Entry>), TreeError> {
        let there = |tree: &Tree| match tree.source.inode(directory) {
            Ok(inode) if inode.attributes.links > 0 => Ok(as_directory(inode).ok()),
            Ok(_) | Err(TreeError::NotFound) => Ok(None),
            Err(error) => Err(error),
        };
        let (before, after) = (there(earlier)?, there(self)?);
        let lbas: Vec<u64> = match (&before, &after) {
            (Some(_), Some(_)) => {
                let runs = new.changed_since(old, directory)?;
                runs.into_iter().flat_map(|(first, count)| first.0..first.0 + count).collect()
            }
            (None, None) => return Ok((Vec::new(), Vec::new())),
            (Some(_), None) => return Ok((earlier.all_names(directory)?, Vec::new())),
            (None, Some(_)) => return Ok((Vec::new(), self.all_names(directory)?)),
        };
        let mut gone = earlier.names_in(directory, &lbas)?;
        let mut fresh = self.names_in(directory, &lbas)?;
        // A leaf that was split or merged has its names elsewhere.
        let both: HashSet<(u64, FileId)> = gone.iter().map(|entry| (entry.cookie, entry.file)).collect();
        let both: HashSet<(u64, FileId)> =
            fresh.iter().map(|entry| (entry.cookie, entry.file)).filter(|one| both.contains(one)).collect();
        gone.retain(|entry| !both.contains(&(entry.cookie, entry.file)));
        fresh.retain(|entry| !both.contains(&(entry.cookie, entry.file)));
        Ok((gone, fresh))
    }

    /// The names in some leaves of a directory.
    fn names_in(&self, directory: FileId, lbas: &[u64]) -> Result<Vec<Entry>, TreeError> {
        let mut entries = Vec::new();
        let length = self.source.inode(directory)?.tree.length;
        for lba in lbas.iter().copied().filter(|lba| *lba < length) {
            let Some(place) = LeafPlace::at(lba) else { continue };
            let Some(block) = (&self.source).block(directory, lba)? else { continue };
            let leaf = Leaf::parse(&block, directory, place).map_err(|_| damaged(directory, lba))?;
            entries.extend(leaf.names().map(Entry::from));
        }
        Ok(entries)
    }

    fn all_names(&self, directory: FileId) -> Result<Vec<Entry>, TreeError> {
        let mut entries = Vec::new();
        let mut after = 0;
        loop {
            let found = self.read_directory(directory, after, ENTRIES)?;
            let Some(last) = found.last() else { return Ok(entries) };
            after = last.cookie;
            entries.extend(found.into_iter().filter(|entry| entry.name != b"." && entry.name != b".."));
        }
    }

    /// A path from the root, without a leading slash, of each of these files that has one.
    /// Unreadable directories are skipped, with their descendants.
    pub fn paths_of(&self, files: &HashSet<FileId>) -> HashMap<FileId, Vec<u8>> {
        let mut found = HashMap::new();
        if files.contains(&self.root) {
            found.insert(self.root, Vec::new());
        }
        let mut waiting = Waiting::from(self.root);
        while found.len() < files.len()
            && let Some((directory, path)) = waiting.next()
        {
            for entry in self.all_names(directory).unwrap_or_default() {
                let whole = below(&path, &entry.name);
                waiting.enter(&entry, &whole);
                if files.contains(&entry.file) {
                    found.entry(entry.file).or_insert(whole);
                }
            }
        }
        found
    }

    fn path_of(&self, (directory, name): &(FileId, Vec<u8>)) -> Result<Vec<u8>, TreeError> {
        let mut path = self.directory_path(*directory)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(name);
        Ok(path)
    }

    /// Reports the change of one file.
    fn tell(
        &self,
        earlier: &Tree,
        file: FileId,
        differing: &Differing,
        changes: &mut Vec<TreeChange>,
        unnamed: &mut HashMap<FileId, NodeKind>,
    ) -> Result<(), TreeError> {
        let node = differing.node();
        // A file with the same inode and different names existed in both.
        let names_only = differing.before.is_none() && differing.after.is_none();
        let there = (differing.before.is_some() || names_only, differing.after.is_some() || names_only);
        let mut put = |kind, path: Option<Vec<u8>>, from| {
            changes.push(TreeChange { path, kind, from, file, node });
        };
        match there {
            (false, true) => {
                for (index, name) in differing.fresh.iter().enumerate() {
                    let kind = if index == 0 { ChangeKind::Created } else { ChangeKind::Linked };
                    put(kind, Some(self.path_of(name)?), None);
                }
            }
            (true, false) => {
                for name in &differing.gone {
                    put(ChangeKind::Deleted, Some(earlier.path_of(name)?), None);
                }
            }
            _ => {
                let both = differing.gone.len().min(differing.fresh.len());
                for (from, to) in differing.gone.iter().zip(&differing.fresh) {
                    put(ChangeKind::Renamed, Some(self.path_of(to)?), Some(earlier.path_of(from)?));
                }
                for name in &differing.fresh[both..] {
                    put(ChangeKind::Linked, Some(self.path_of(name)?), None);
                }
                for name in &differing.gone[both..] {
                    put(ChangeKind::Unlinked, Some(earlier.path_of(name)?), None);
                }
                if differing.has_changed() {
                    match (differing.fresh.first(), node) {
                        (Some(name), _) => put(ChangeKind::Changed, Some(self.path_of(name)?), None),
                        (None, NodeKind::Directory) => {
                            put(ChangeKind::Changed, Some(self.directory_path(file)?), None);
                        }
                        (None, _) => {
                            unnamed.insert(file, node);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds names of files by reading the directories.
    fn name(
        &self,
        mut wanted: HashMap<FileId, NodeKind>,
        changes: &mut Vec<TreeChange>,
    ) -> Result<(), TreeError> {
        let mut waiting = Waiting::from(self.root);
        while !wanted.is_empty()
            && let Some((directory, path)) = waiting.next()
        {
            for entry in self.all_names(directory)? {
                if entry.kind == NodeKind::Directory {
                    waiting.enter(&entry, &below(&path, &entry.name));
                } else if let Some(node) = wanted.remove(&entry.file) {
                    let (path, kind) = (Some(below(&path, &entry.name)), ChangeKind::Changed);
                    changes.push(TreeChange { path, kind, from: None, file: entry.file, node });
                }
            }
        }
        let left = wanted.into_iter().map(|(file, node)| {
            let (path, kind) = (None, ChangeKind::Changed);
            TreeChange { path, kind, from: None, file, node }
        });
        changes.extend(left);
        Ok(())
    }
}
