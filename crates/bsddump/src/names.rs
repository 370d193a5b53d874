//! The paths that a dump's directories spell.

use std::collections::{HashMap, HashSet};

use crate::directory::Entry;
use crate::inode::ROOT;

/// Directories and their entries, from [`ROOT`] down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    directories: HashMap<u32, Vec<Entry>>,
}

impl Names {
    /// No directory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a directory's entries, replacing earlier ones. A name belongs to the first file that
    /// has it; the others with the same one are returned.
    pub fn insert(&mut self, directory: u32, mut entries: Vec<Entry>) -> Vec<Entry> {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut others = Vec::new();
        entries.dedup_by(|later, first| {
            let is_same = later.name == first.name;
            if is_same && later.number != first.number {
                others.push(later.clone());
            }
            is_same
        });
        self.directories.insert(directory, entries);
        others
    }

    /// Forgets a directory.
    pub fn remove(&mut self, directory: u32) {
        self.directories.remove(&directory);
    }

    /// Its entries, by name; `None` if it is not a directory here.
    pub fn entries(&self, directory: u32) -> Option<&[Entry]> {
        self.directories.get(&directory).map(Vec::as_slice)
    }

    /// Whether it is a directory here.
    pub fn is_directory(&self, number: u32) -> bool {
        self.directories.contains_key(&number)
    }

    /// All directories, in no order.
    pub fn directories(&self) -> impl Iterator<Item = u32> + '_ {
        self.directories.keys().copied()
    }

    /// The file of a name in a directory.
    pub fn lookup(&self, directory: u32, name: &[u8]) -> Option<u32> {
        let entries = self.directories.get(&directory)?;
        let index = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name)).ok()?;
        Some(entries[index].number)
    }

    /// The file of a path; empty names and `.` are skipped, `..` is not supported.
    pub fn find(&self, path: &[u8]) -> Option<u32> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.into_iter().try_fold(ROOT, |directory, name| self.lookup(directory, name))
    }

    /// Shows every name below `start` with its path from there, a directory before its content.
    /// Each directory is entered once, even in a damaged dump.
    pub fn walk(&self, start: u32, each: &mut dyn FnMut(&[u8], &Entry)) {
        let mut entered = HashSet::from([start]);
        let mut path: Vec<u8> = Vec::new();
        let mut stack = vec![(self.entries(start).unwrap_or(&[]).iter(), 0)];
        while let Some((entries, length)) = stack.last_mut() {
            path.truncate(*length);
            let Some(entry) = entries.next() else {
                stack.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&entry.name);
            each(&path, entry);
            if let Some(below) = self.entries(entry.number)
                && entered.insert(entry.number)
            {
                stack.push((below.iter(), path.len()));
            }
        }
    }
}
