//! Checks a whole tree from outside: its invariants, without relying on the state of operations. It
//! changes nothing.
//!
//! `cairn volume check` does this after the volume's own check, whose findings name the unreadable
//! blocks.

use std::collections::BTreeMap;

use cairn_base::{BLOCK_SIZE, FileId};
use cairn_format::{Extended, FileKind, Inode, KEY_BITS, Leaf, LeafPlace};
use cairn_volume::Image;

use super::error::TreeError;
use super::source::{Blocks, Source};
use super::stat::NodeKind;
use super::{Roots, find_roots, quota, trie};
use crate::directory::Directory;

/// One thing in a tree that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeFinding {
    /// A directory's block 0 is missing, or a block of it is no leaf of it, or can't be read.
    BadLeaf {
        /// The directory.
        directory: FileId,
        /// The block.
        lba: u64,
    },
    /// A leaf is above or below another one with names, or where the head excludes one: one of them
    /// is never read.
    CrossedLeaves {
        /// The directory.
        directory: FileId,
        /// The block of the leaf.
        lba: u64,
    },
    /// A name has a key that is not its own: it is not found.
    WrongKey {
        /// The directory.
        directory: FileId,
        /// The key.
        key: u64,
    },
    /// A name exists twice.
    NameTwice {
        /// The directory.
        directory: FileId,
        /// The second key.
        key: u64,
    },
    /// A name of a file that does not exist, or is of another kind.
    BadName {
        /// The directory.
        directory: FileId,
        /// The key of the name.
        key: u64,
        /// The file that it names.
        file: FileId,
    },
    /// A file counts another number of names, or of directories in it, than there are.
    Links {
        /// The file.
        file: FileId,
        /// The recorded count.
        says: u32,
        /// How many there are.
        found: u32,
    },
    /// A file that no name leads to.
    NoName {
        /// The file.
        file: FileId,
    },
    /// A directory names another place for its name than the real one, or has more than one.
    WrongParent {
        /// The directory.
        directory: FileId,
        /// The recorded parent.
        says: FileId,
    },
    /// A file counts another number of blocks than it has.
    Blocks {
        /// The file.
        file: FileId,
        /// The recorded number of blocks.
        says: u64,
        /// How many there are.
        found: u64,
    },
    /// The extended attributes of a file are missing or invalid.
    BadExtended {
        /// The file whose they are.
        file: FileId,
        /// The file that they should be in.
        extended: FileId,
    },
    /// A quota tree counts other blocks or files than are in it, or has none, or its top is another
    /// directory.
    Quota {
        /// Its number.
        number: u16,
        /// The recorded blocks and files.
        says: (u64, u64),
        /// The real blocks and files.
        found: (u64, u64),
    },
    /// Extended attributes that no file has.
    LostExtended {
        /// The file that they are in.
        extended: FileId,
    },
}

impl std::fmt::Display for TreeFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TreeFinding::BadLeaf { directory, lba } => {
                write!(f, "block {lba} of directory {directory} is not a leaf of it, or cannot be read")
            }
            TreeFinding::CrossedLeaves { directory, lba } => {
                write!(f, "block {lba} of directory {directory} is in the way of another leaf")
            }
            TreeFinding::WrongKey { directory, key } => {
                write!(f, "a name in directory {directory} has the key {key:#x}, which is not its own")
            }
            TreeFinding::NameTwice { directory, key } => {
                write!(f, "a name is twice in directory {directory}, the second time with the key {key:#x}")
            }
            TreeFinding::BadName { directory, key, file } => {
                write!(
                    f,
                    "directory {directory} names file {file} (key {key:#x}), which is not there or of another kind"
                )
            }
            TreeFinding::Links { file, says, found } => {
                write!(f, "file {file} counts {says} links and has {found}")
            }
            TreeFinding::NoName { file } => write!(f, "file {file} has no name"),
            TreeFinding::WrongParent { directory, says } => {
                write!(f, "directory {directory} says that its name is in directory {says}, where it is not")
            }
            TreeFinding::Blocks { file, says, found } => {
                write!(f, "file {file} counts {says} blocks and has {found}")
            }
            TreeFinding::BadExtended { file, extended } => {
                write!(f, "the extended attributes of file {file} (file {extended}) cannot be read")
            }
            TreeFinding::Quota { number, says, found } => write!(
                f,
                "quota tree {number} counts {} blocks in {} files and has {} in {}",
                says.0, says.1, found.0, found.1
            ),
            TreeFinding::LostExtended { extended } => {
                write!(f, "file {extended} has extended attributes of no file")
            }
        }
    }
}

/// The known facts of a file of the tree.
struct SeenFile {
    inode: Inode,
    /// Names that lead to it.
    names: u32,
    /// Directories in it.
    directories: u32,
}

struct Checker {
    source: Source,
    roots: Roots,
    nodes: BTreeMap<FileId, SeenFile>,
    /// Files of extended attributes, and whether a file owns them.
    extended: BTreeMap<FileId, bool>,
    findings: Vec<TreeFinding>,
}

/// Checks the tree of an image, if it has one. It takes some 300 bytes of memory a file.
///
/// # Errors
/// Only when checking is impossible; faults of the tree are in the findings.
pub fn check_tree(image: &Image) -> Result<Vec<TreeFinding>, TreeError> {
    let Some(roots) = find_roots(&Directory::read_in(image)?)? else { return Ok(Vec::new()) };
    let mut checker = Checker {
        source: Source::Frozen(image.clone()),
        roots,
        nodes: BTreeMap::new(),
        extended: BTreeMap::new(),
        findings: Vec::new(),
    };
    image.each_inode(&mut |inode| match inode.kind {
        FileKind::Node if !inode.removed => {
            checker.nodes.insert(inode.id, SeenFile { inode, names: 0, directories: 0 });
        }
        FileKind::Extended if !inode.removed => drop(checker.extended.insert(inode.id, false)),
        _ => {}
    })?;
    let files: Vec<FileId> = checker.nodes.keys().copied().collect();
    // The records of quota trees are not content that is counted.
    for file in files.iter().filter(|file| **file != roots.quotas) {
        checker.content(*file);
    }
    for file in files {
        checker.links(file);
    }
    checker.quotas();
    let lost = checker.extended.iter().filter(|(_, has_owner)| !**has_owner);
    checker.findings.extend(lost.map(|(extended, _)| TreeFinding::LostExtended { extended: *extended }));
    Ok(checker.findings)
}

impl Checker {
    /// Blocks, names and attributes of a file.
    fn content(&mut self, file: FileId) {
        let Some(inode) = self.nodes.get(&file).map(|known| known.inode) else { return };
        let says = u64::from(inode.attributes.blocks);
        let found = self.source.count_data(file, 0, inode.tree.length);
        if let Ok(found) = found
            && found != says
        {
            self.findings.push(TreeFinding::Blocks { file, says, found });
        }
        let extended = inode.attributes.extended;
        if extended.0 != 0 && !self.is_extended_good(file, extended) {
            self.findings.push(TreeFinding::BadExtended { file, extended });
        }
        if NodeKind::of(&inode) == NodeKind::Directory {
            self.directory(&inode);
        }
    }

    fn is_extended_good(&mut self, file: FileId, extended: FileId) -> bool {
        match self.extended.get_mut(&extended) {
            Some(has_owner) if !*has_owner => *has_owner = true,
            _ => return false,
        }
        let Ok(inode) = self.source.raw_inode(extended) else { return false };
        let blocks = inode.length_bytes.div_ceil(BLOCK_SIZE as u64);
        let Ok(read) = self.source.read(extended, 0, blocks.min(1024)) else { return false };
        let mut bytes = read.to_vec();
        bytes.truncate(inode.length_bytes as usize);
        Extended::parse(&bytes, file).is_ok()
    }

    /// All leaves of a directory, and their names.
    fn directory(&mut self, inode: &Inode) {
        let directory = inode.id;
        // The ends of the leaves found so far, by their starts: none may begin within another one.
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        let mut is_split = None;
        let mut at = 0;
        loop {
            let lba = match self.source.next_block(directory, at, inode.tree.length, false) {
                Ok(Some(lba)) => lba,
                Ok(None) => break,
                Err(_) => {
                    self.findings.push(TreeFinding::BadLeaf { directory, lba: at });
                    return;
                }
            };
            at = lba + 1;
            let mut source = &self.source;
            let place = LeafPlace::at(lba);
            let block = source.block(directory, lba).ok().flatten();
            let leaf = place.zip(block.as_ref()).and_then(|(p, block)| Leaf::parse(block, directory, p).ok());
            let (Some(place), Some(leaf)) = (place, leaf) else {
                self.findings.push(TreeFinding::BadLeaf { directory, lba });
                continue;
            };
            if place == LeafPlace::TOP {
                is_split = Some(leaf.head.split);
                self.parent(inode, &leaf);
            }
            if place != LeafPlace::TOP || !leaf.head.split {
                let before = ranges.range(..place.end()).next_back().map(|(_, end)| *end);
                let crosses = before.is_some_and(|end| end > place.start());
                let is_empty = leaf.is_empty() && place != LeafPlace::TOP;
                if crosses || is_empty || place != LeafPlace::TOP && is_split != Some(true) {
                    self.findings.push(TreeFinding::CrossedLeaves { directory, lba });
                }
                ranges.insert(place.start(), place.end());
            }
            self.names(directory, &leaf);
        }
        // A present block that is not a leaf was reported.
        let missing = TreeFinding::BadLeaf { directory, lba: 0 };
        if is_split.is_none() && !self.findings.contains(&missing) {
            self.findings.push(missing);
        }
    }

    /// A directory's name must be where its block 0 says.
    fn parent(&mut self, inode: &Inode, leaf: &Leaf<'_>) {
        let (directory, says) = (inode.id, leaf.head.parent);
        let is_root = [self.roots.root, self.roots.orphans].contains(&directory);
        if is_root && says == directory && leaf.head.parent_key == 0 || inode.attributes.links == 0 {
            return;
        }
        let mut source = &self.source;
        let name = self.nodes.get(&says).and_then(|parent| {
            trie::name_of(&mut source, &parent.inode, leaf.head.parent_key).ok().flatten()
        });
        if name.is_none_or(|name| name.file != directory) {
            self.findings.push(TreeFinding::WrongParent { directory, says });
        }
    }

    fn names(&mut self, directory: FileId, leaf: &Leaf<'_>) {
        let mut last: Option<(u64, Vec<&[u8]>)> = None;
        for name in leaf.names() {
            let key = name.key;
            if !trie::is_key_of(self.source.volume().id(), directory, name.name, key) || key >> KEY_BITS != 0
            {
                self.findings.push(TreeFinding::WrongKey { directory, key });
            }
            let hash = key >> 2;
            match &mut last {
                Some((same, names)) if *same == hash => {
                    if names.contains(&name.name) {
                        self.findings.push(TreeFinding::NameTwice { directory, key });
                    }
                    names.push(name.name);
                }
                _ => last = Some((hash, vec![name.name])),
            }
            let kind = NodeKind::of_code(name.kind);
            let good = match self.nodes.get_mut(&name.file) {
                Some(known) if NodeKind::of(&known.inode) == kind => {
                    known.names += 1;
                    true
                }
                _ => false,
            };
            if !good {
                self.findings.push(TreeFinding::BadName { directory, key, file: name.file });
            }
            if kind == NodeKind::Directory
                && let Some(known) = self.nodes.get_mut(&directory)
            {
                known.directories += 1;
            }
        }
    }

    /// The links of a file, once all names are known.
    fn links(&mut self, file: FileId) {
        let roots = self.roots;
        let Some(known) = self.nodes.get(&file) else { return };
        let says = known.inode.attributes.links;
        let is_root = [roots.root, roots.orphans, roots.quotas].contains(&file);
        if known.names == 0 && !is_root {
            self.findings.push(TreeFinding::NoName { file });
            return;
        }
        let found = match (says, NodeKind::of(&known.inode)) {
            // Among the orphans directories without a name do not count as links.
            _ if file == roots.orphans || file == roots.quotas => says,
            // Its one name exists.
            (0, _) if file != roots.root => known.names.saturating_sub(1),
            (_, NodeKind::Directory) => 2 + known.directories + known.names.saturating_sub(1),
            _ => known.names,
        };
        if found != says {
            self.findings.push(TreeFinding::Links { file, says, found });
        }
    }

    /// Compares the counts of quota trees with their contents.
    fn quotas(&mut self) {
        let roots = self.roots;
        let Ok(quota::FoundRecords { records, damaged }) = quota::read_records(&self.source, roots.quotas)
        else {
            self.findings.push(TreeFinding::BadLeaf { directory: roots.quotas, lba: 0 });
            return;
        };
        let bad = |lba: u16| TreeFinding::BadLeaf { directory: roots.quotas, lba: lba.into() };
        self.findings.extend(damaged.iter().map(|numbers| bad(*numbers.start())));
        let mut found: BTreeMap<u16, (u64, u64)> = records.keys().map(|number| (*number, (0, 0))).collect();
        for known in self.nodes.values().filter(|known| known.inode.attributes.quota != 0) {
            let counted = found.entry(known.inode.attributes.quota).or_default();
            *counted = (counted.0 + u64::from(known.inode.attributes.blocks), counted.1 + 1);
        }
        // The content of an unreadable record is not known to be wrong.
        found.retain(|number, _| damaged.iter().all(|numbers| !numbers.contains(number)));
        for (number, found) in found {
            let record = records.get(&number);
            let says = record.map_or((0, 0), |record| (record.used_blocks, record.used_files));
            let top = record.and_then(|record| self.nodes.get(&record.directory));
            // A record without a top still counts open files.
            let has_no_top = record.is_some_and(|record| record.directory == roots.orphans) && found.1 > 0;
            let has_top = top.is_some_and(|top| top.inode.attributes.quota == number);
            if says != found || !has_top && !has_no_top {
                self.findings.push(TreeFinding::Quota { number, says, found });
            }
        }
    }
}
