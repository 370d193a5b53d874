//! A tree of files in memory, as a source.

use std::collections::BTreeMap;

use crate::{Attribute, Dump, Entry, Inode, Kind, Options, ROOT, Reader, Source, Time, Written};

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) inode: Inode,
    /// The data ranges, without holes, and their content.
    pub(super) data: Vec<(u64, Vec<u8>)>,
    pub(super) entries: Vec<Entry>,
    pub(super) parent: u32,
    pub(super) attributes: Vec<Attribute>,
    /// Reading it fails.
    pub(super) broken: bool,
}

/// A tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tree(pub(super) BTreeMap<u32, File>);

/// The date of dumps that tests make.
pub(super) const DATE: u32 = 1_800_000_000;

pub(super) fn time(seconds: i64) -> Time {
    Time { seconds, nanoseconds: 123_456_789 }
}

impl Tree {
    /// A root directory.
    pub(super) fn new() -> Self {
        let mut tree = Self::default();
        tree.0.insert(ROOT, Self::file(ROOT, Kind::Directory, ROOT));
        tree
    }

    fn file(number: u32, kind: Kind, parent: u32) -> File {
        let inode = Inode {
            number,
            kind,
            permissions: if kind == Kind::Directory { 0o755 } else { 0o640 },
            links: if kind == Kind::Directory { 2 } else { 0 },
            uid: 1000,
            gid: 70_000,
            size: 0,
            accessed: time(1_700_000_001),
            modified: time(1_700_000_002),
            changed: time(1_700_000_003),
            born: Some(time(1_600_000_000)),
            device: (0, 0),
        };
        let (data, entries, attributes) = Default::default();
        File { inode, data, entries, parent, attributes, broken: false }
    }

    /// Adds a file of some kind; numbers are given in order, with gaps.
    pub(super) fn add(&mut self, directory: u32, name: &str, kind: Kind) -> u32 {
        let number = self.0.keys().last().unwrap() + 9;
        self.0.insert(number, Self::file(number, kind, directory));
        self.link(directory, name.as_bytes(), number);
        number
    }

    /// Adds a name.
    pub(super) fn link(&mut self, directory: u32, name: &[u8], number: u32) {
        let file = self.0.get_mut(&number).unwrap();
        file.inode.links += 1;
        let kind = Some(file.inode.kind);
        self.0.get_mut(&directory).unwrap().entries.push(Entry { number, kind, name: name.to_vec() });
    }

    /// Adds a file with content.
    pub(super) fn add_with(&mut self, directory: u32, name: &str, content: &[u8]) -> u32 {
        let number = self.add(directory, name, Kind::Regular);
        self.fill(number, content.len() as u64, vec![(0, content.to_vec())]);
        number
    }

    pub(super) fn fill(&mut self, number: u32, size: u64, data: Vec<(u64, Vec<u8>)>) {
        let file = self.0.get_mut(&number).unwrap();
        (file.inode.size, file.data) = (size, data);
    }

    pub(super) fn get(&mut self, number: u32) -> &mut File {
        self.0.get_mut(&number).unwrap()
    }

    pub(super) fn options() -> Options {
        Options {
            date: DATE,
            label: b"test".to_vec(),
            file_system: b"/vol0".to_vec(),
            device: b"vol0@now".to_vec(),
            host: b"here".to_vec(),
            ..Options::default()
        }
    }

    pub(super) fn dump(&mut self, options: Options) -> (Vec<u8>, Written) {
        let mut bytes = Vec::new();
        let dump = Dump::plan(self, options, None, &mut |_| true).unwrap();
        let planned = dump.planned();
        let written = dump.write(self, &mut bytes, &mut |_| true).unwrap();
        assert_eq!(written.bytes, bytes.len() as u64);
        assert_eq!(written.inodes, planned.inodes);
        (bytes, written)
    }

    /// The content of a dump, as a tree; sizes of directories are as the tree has them.
    pub(super) fn read<R: std::io::Read>(reader: &mut Reader<R>) -> Self {
        let mut tree = Self::default();
        while let Some(mut inode) = reader.next_inode().unwrap() {
            let (mut data, mut entries) = (Vec::new(), Vec::new());
            let content = if inode.kind == Kind::Directory {
                inode.size = 0;
                let (found, content) = reader.entries().unwrap();
                entries = found;
                content
            } else {
                reader
                    .content(&mut |offset, bytes| {
                        data.push((offset, bytes.to_vec()));
                        Ok(())
                    })
                    .unwrap()
            };
            let (number, broken) = (inode.number, !content.whole);
            let file = File { inode, data, entries, parent: 0, attributes: content.attributes, broken };
            assert!(tree.0.insert(number, file).is_none(), "twice: {number}");
        }
        tree
    }

    /// The tree as a reader can see it: neighbouring data joined, pieces of 1 KiB filled up,
    /// attributes sorted.
    pub(super) fn plain(&self) -> Self {
        let mut tree = self.clone();
        for file in tree.0.values_mut() {
            file.parent = 0;
            file.attributes.sort();
            let size = file.inode.size;
            let mut whole: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            for (offset, bytes) in &file.data {
                for (index, byte) in bytes.iter().enumerate() {
                    let at = offset + index as u64;
                    let piece = at / 1024 * 1024;
                    let piece =
                        whole.entry(piece).or_insert_with(|| vec![0; 1024.min(size - piece) as usize]);
                    piece[(at % 1024) as usize] = *byte;
                }
            }
            file.data.clear();
            for (offset, bytes) in whole {
                match file.data.last_mut() {
                    Some((start, last)) if *start + last.len() as u64 == offset => last.extend(bytes),
                    _ => file.data.push((offset, bytes)),
                }
            }
        }
        tree
    }
}

impl Source for Tree {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()> {
        self.0.values().for_each(|file| each(&file.inode));
        Ok(())
    }

    fn inode(&mut self, number: u32) -> std::io::Result<Inode> {
        Ok(self.0[&number].inode.clone())
    }

    fn entries(&mut self, directory: u32) -> std::io::Result<(Vec<Entry>, u32)> {
        let file = &self.0[&directory];
        if file.broken {
            return Err(std::io::Error::other("broken"));
        }
        Ok((file.entries.clone(), file.parent))
    }

    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>> {
        Ok(self.0[&number].data.iter().map(|(offset, bytes)| (*offset, bytes.len() as u64)).collect())
    }

    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let file = &self.0[&number];
        if file.broken {
            return Err(std::io::Error::other("broken"));
        }
        assert!(offset + bytes.len() as u64 <= file.inode.size, "past the end");
        bytes.fill(0);
        for (start, data) in &file.data {
            for (index, byte) in data.iter().enumerate() {
                let at = start + index as u64;
                if (offset..offset + bytes.len() as u64).contains(&at) {
                    bytes[(at - offset) as usize] = *byte;
                }
            }
        }
        Ok(())
    }

    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>> {
        Ok(self.0[&number].attributes.clone())
    }
}
