//! The names of all files in their directories, as of a dump. With this catalogue the next dump
//! finds the changes from the maps of two snapshots alone.
//!
//! A dump of a level above 0 has the files that changed and the directories that lead there, and
//! lists all existing files at its head. The changes are the blocks that the inode files of two
//! snapshots don't share. No map has the names of a changed file, or the other existing files: so a
//! dump of everything records both, 8 bytes a name, and each dump based on it records the names
//! added and removed since.
//!
//! # Invariants
//! 1. A catalogue belongs to one snapshot, whose number it has. It is used as long as that snapshot
//!    exists, and only for a dump without a path and without patterns.
//! 2. It is a cache: if it is missing, damaged, or of another snapshot, a dump checks all inodes.

use std::io;
use std::path::{Path, PathBuf};

use cairn_base::Checksum;
use cairn_bsddump::{InodeMap, Known, ROOT};
use cairn_files::{Tree, TreeError};
use cairn_volume::Snapshot;

use super::source::number_of;
use crate::state;

/// Identifies the file, and the version of its layout.
const MAGIC: &[u8; 8] = b"CNAMES\x00\x01";
/// Magic, snapshot's number, when it was made, count of names.
const HEAD: usize = 32;
/// A file and its directory.
const NAME: usize = 8;

/// All names of a snapshot: file and directory, by file. A file has an entry for each of its names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Catalog {
    names: Vec<(u32, u32)>,
}

fn failed(error: TreeError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

impl Catalog {
    /// The path of the catalogue of the last dump of a level.
    pub(super) fn path(folder: &Path, level: u8) -> PathBuf {
        folder.join(format!("names.{level}"))
    }

    /// Names in no order.
    pub(super) fn of(mut names: Vec<(u32, u32)>) -> Self {
        names.sort_unstable();
        Self { names }
    }

    /// The catalogue of a snapshot; `None` if there is no trustworthy one.
    pub(super) fn load(path: &Path, snapshot: &Snapshot) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (body, sum) = bytes.split_last_chunk::<16>()?;
        let (head, names) = body.split_at_checked(HEAD)?;
        let number = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let is_whole = head.starts_with(MAGIC)
            && number(8)? == snapshot.id.0
            && number(16)? == snapshot.created.0
            && number(24)? == (names.len() / NAME) as u64
            && names.len().is_multiple_of(NAME)
            && Checksum::of(body).0 == *sum;
        if !is_whole {
            return None;
        }
        let name = |raw: &[u8; NAME]| {
            let [a, b, c, d, e, f, g, h] = *raw;
            (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
        };
        Some(Self { names: names.as_chunks::<NAME>().0.iter().map(name).collect() })
    }

    /// Keeps it for the next dump.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn save(&self, path: &Path, snapshot: &Snapshot) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD + self.names.len() * NAME + 16);
        bytes.extend(MAGIC);
        bytes.extend(snapshot.id.0.to_le_bytes());
        // A mirror that gave up its own head gets the other side's snapshots, by the same numbers.
        bytes.extend(snapshot.created.0.to_le_bytes());
        bytes.extend((self.names.len() as u64).to_le_bytes());
        for (file, directory) in &self.names {
            bytes.extend(file.to_le_bytes());
            bytes.extend(directory.to_le_bytes());
        }
        let sum = Checksum::of(&bytes);
        bytes.extend(sum.0);
        state::replace(path, &bytes)
    }

    /// Moves it to a later snapshot: removes and adds names. False if a removed name was not in it.
    fn change(&mut self, mut gone: Vec<(u32, u32)>, mut fresh: Vec<(u32, u32)>) -> bool {
        gone.sort_unstable();
        fresh.sort_unstable();
        let mut gone = gone.into_iter().peekable();
        let mut fresh = fresh.into_iter().peekable();
        let mut names = Vec::with_capacity(self.names.len());
        for name in &self.names {
            // Of several names of a file in one directory one goes for each that is gone.
            if gone.next_if_eq(name).is_some() {
                continue;
            }
            while let Some(fresh) = fresh.next_if(|fresh| fresh < name) {
                names.push(fresh);
            }
            names.push(*name);
        }
        names.extend(fresh);
        self.names = names;
        gone.next().is_none()
    }

    /// Every file that has a name, and the root.
    fn used(&self) -> InodeMap {
        let mut used = InodeMap::new();
        used.insert(ROOT);
        self.names.iter().for_each(|(file, _)| used.insert(*file));
        used
    }

    /// The directories that have names of a file.
    fn directories_of(&self, file: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.names.partition_point(|(known, _)| *known < file);
        self.names[first..].iter().take_while(move |(known, _)| *known == file).map(|(_, above)| *above)
    }

    /// Moves the catalogue of `base` to the later image `now`, and returns the content of a dump of
    /// the changes in between. The cost is proportional to the changes, plus 8 bytes a name.
    ///
    /// # Errors
    /// Errors of reading either image; a number past 32 bits.
    pub(super) fn follow(&mut self, base: &Tree, now: &Tree) -> io::Result<Known> {
        let wrong =
            || io::Error::other("what is noted of the lower dump's names is not what its snapshot has");
        if base.root() != now.root() {
            return Err(wrong());
        }
        let differing = now.differing_since(base).map_err(failed)?;
        let (mut gone, mut fresh, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for one in differing {
            let file = number_of(now, one.file)?;
            for directory in one.gone {
                gone.push((file, number_of(now, directory)?));
            }
            for directory in one.fresh {
                fresh.push((file, number_of(now, directory)?));
            }
            changed.extend((one.is_there && one.is_changed).then_some(file));
        }
        if !self.change(gone, fresh) {
            return Err(wrong());
        }
        let used = self.used();
        let mut dumped = InodeMap::new();
        dumped.insert(ROOT);
        let mut waiting: Vec<u32> = changed;
        while let Some(file) = waiting.pop() {
            // Every existing file has a name.
            if !used.contains(file) {
                return Err(wrong());
            }
            if file == ROOT || !dumped.contains(file) {
                dumped.insert(file);
                waiting.extend(self.directories_of(file).filter(|above| !dumped.contains(*above)));
            }
        }
        Ok(Known { used, dumped })
    }
}

#[cfg(test)]
mod tests;
