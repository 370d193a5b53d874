//! Restores a file or a folder from an image into the live tree, beside the present one.
//!
//! # Invariants
//! 1. No existing file changes, and no existing name gets another file.
//! 2. A file has its name only when it is complete: it is written without a name, and linked. A
//!    folder is written under a name of its own, [`UNFINISHED`], and renamed. A crash leaves at
//!    most such a folder.
//! 3. The content is that of the image, whose blocks are checked as they are read.
//!
//! The kernel caches names and listings of a mounted volume. It forgets them for each name that a
//! restore makes in a directory that existed before.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use cairn_base::FileId;
use cairn_files::{New, NodeKind, Rename, SetStat, SetTime, SetXattr, Stat, Tree, TreeError};

use super::tar_stream::Names;
use crate::peers::token::random_name;
use crate::work::jobs::Progress;

/// Begins the name of a folder that is not complete.
const UNFINISHED: &str = ".cairn-restore-";

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// Names that are tried for a restored file.
const TRIES: u32 = 99;

/// Why a restore has stopped.
#[derive(Debug)]
pub(super) enum Stopped {
    /// On request.
    Cancelled,
    /// In the image.
    Reading(TreeError),
    /// In the live tree.
    Writing(TreeError),
}

/// The place for a restored file.
pub(super) struct Goal {
    /// The last directory of the path that exists.
    pub(super) directory: FileId,
    /// Directories that are missing, with their attributes in the image.
    pub(super) missing: Vec<(Vec<u8>, Stat)>,
    /// The names of the path, the free name last.
    pub(super) names: Vec<Vec<u8>>,
    /// The original name is taken.
    pub(super) beside: bool,
}

/// The name of a version beside the present file: `report@monday.txt`.
fn beside(name: &[u8], at: &str, number: u32) -> Vec<u8> {
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0);
    let (stem, end) = name.split_at(dot.unwrap_or(name.len()));
    let number = if number > 1 { format!("-{number}") } else { String::new() };
    [stem, b"@", at.as_bytes(), number.as_bytes(), end].concat()
}

/// Finds the place for the file of a path.
pub(super) fn find_goal(image: &Tree, live: &Tree, names: &[&[u8]], at: &str) -> Result<Goal, Stopped> {
    let Some((name, above)) = names.split_last() else {
        let fault = "the root of a volume is not restored beside itself";
        return Err(Stopped::Reading(TreeError::Invalid(fault)));
    };
    let (mut directory, mut missing) = (live.root(), Vec::new());
    let mut in_image = image.root();
    for part in above {
        let stat = image.lookup(in_image, part).map_err(Stopped::Reading)?;
        in_image = stat.file;
        if !missing.is_empty() {
            missing.push((part.to_vec(), stat));
            continue;
        }
        match live.lookup(directory, part) {
            Ok(found) if found.kind == NodeKind::Directory => directory = found.file,
            Ok(_) => return Err(Stopped::Writing(TreeError::NotDirectory)),
            Err(TreeError::NotFound) => missing.push((part.to_vec(), stat)),
            Err(error) => return Err(Stopped::Writing(error)),
        }
    }
    let mut names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    let mut is_taken = false;
    if missing.is_empty() {
        (is_taken, names[above.len()]) = free_name(live, directory, name, at)?;
    }
    Ok(Goal { directory, missing, names, beside: is_taken })
}

/// A free name, and whether it is another one than that of the file.
fn free_name(live: &Tree, directory: FileId, name: &[u8], at: &str) -> Result<(bool, Vec<u8>), Stopped> {
    let is_free = |name: &[u8]| match live.lookup(directory, name) {
        Ok(_) => Ok(false),
        Err(TreeError::NotFound) => Ok(true),
        Err(error) => Err(Stopped::Writing(error)),
    };
    if is_free(name)? {
        return Ok((false, name.to_vec()));
    }
    for number in 1..=TRIES {
        let candidate = beside(name, at, number);
        if is_free(&candidate)? {
            return Ok((true, candidate));
        }
    }
    Err(Stopped::Writing(TreeError::Exists))
}

/// A restore at work.
pub(super) struct Restoring<'a> {
    pub(super) image: &'a Tree,
    pub(super) live: &'a Tree,
    pub(super) progress: &'a Progress,
    /// Has the kernel forget a name in a directory.
    pub(super) forget: &'a dyn Fn(FileId, &[u8]),
    /// The restored file of each file of the image that has several names.
    pub(super) linked: HashMap<FileId, FileId>,
    /// Files, directories and links.
    pub(super) files: u64,
    /// Bytes of content.
    pub(super) bytes: u64,
    /// Bytes of content in all; 0 if that is unknown.
    pub(super) total: u64,
}

impl Restoring<'_> {
    /// Restores a file or a folder. The answer has its path.
    pub(super) fn run(&mut self, stat: &Stat, goal: Goal, at: &str) -> Result<Vec<Vec<u8>>, Stopped> {
        let Goal { mut directory, missing, mut names, .. } = goal;
        for (name, attributes) in &missing {
            directory = self.make_missing(directory, name, attributes)?;
        }
        let free = names.pop().unwrap_or_default();
        let name = match stat.kind {
            NodeKind::Directory => self.folder(stat, directory, &free, at)?,
            _ => self.file(stat, directory, &free, at)?,
        };
        self.live.sync_all().map_err(Stopped::Writing)?;
        names.push(name);
        Ok(names)
    }

    fn make_missing(&mut self, directory: FileId, name: &[u8], stat: &Stat) -> Result<FileId, Stopped> {
        let new = New { mode: 0o700, uid: stat.uid, gid: stat.gid, ..New::default() };
        let made = match self.live.make_directory(directory, name, &new) {
            Ok(made) => made.file,
            // Another program was faster.
            Err(TreeError::Exists) => {
                let found = self.live.lookup(directory, name).map_err(Stopped::Writing)?;
                return Ok(found.file);
            }
            Err(error) => return Err(Stopped::Writing(error)),
        };
        self.attributes(stat, made)?;
        (self.forget)(directory, name);
        Ok(made)
    }

    /// Restores one file under a free name.
    fn file(&mut self, stat: &Stat, directory: FileId, name: &[u8], at: &str) -> Result<Vec<u8>, Stopped> {
        let mut candidate = name.to_vec();
        for number in 1..=TRIES {
            match self.one(stat, directory, &candidate) {
                Err(Stopped::Writing(TreeError::Exists)) => candidate = beside(name, at, number),
                done => {
                    done?;
                    (self.forget)(directory, &candidate);
                    return Ok(candidate);
                }
            }
        }
        Err(Stopped::Writing(TreeError::Exists))
    }

    /// Restores a folder under a free name.
    fn folder(&mut self, stat: &Stat, directory: FileId, name: &[u8], at: &str) -> Result<Vec<u8>, Stopped> {
        let own = format!("{UNFINISHED}{}", random_name());
        let new = New { mode: 0o700, uid: stat.uid, gid: stat.gid, ..New::default() };
        let top = self.live.make_directory(directory, own.as_bytes(), &new).map_err(Stopped::Writing)?.file;
        let filled = self.fill(stat, top).and_then(|()| {
            let mut candidate = name.to_vec();
            for number in 1..=TRIES {
                let named =
                    self.live.rename(directory, own.as_bytes(), directory, &candidate, Rename::NoReplace);
                match named {
                    Ok(()) => return Ok(candidate),
                    Err(TreeError::Exists) => candidate = beside(name, at, number),
                    Err(error) => return Err(Stopped::Writing(error)),
                }
            }
            Err(Stopped::Writing(TreeError::Exists))
        });
        if filled.is_err()
            && let Err(error) = remove_all(self.live, directory, own.as_bytes(), top)
        {
            tracing::warn!(folder = own, %error, "an unfinished restore stays");
        }
        (self.forget)(directory, own.as_bytes());
        if let Ok(name) = &filled {
            (self.forget)(directory, name);
        }
        filled
    }

    /// Copies all names of a folder, and its attributes last.
    fn fill(&mut self, stat: &Stat, top: FileId) -> Result<(), Stopped> {
        self.files += 1;
        let mut open = vec![(Names::of(stat.file), *stat, top)];
        while let Some((names, stat, to)) = open.last_mut() {
            let Some(found) = names.next(self.image).map_err(Stopped::Reading)? else {
                let (stat, to) = (*stat, *to);
                open.pop();
                self.attributes(&stat, to)?;
                continue;
            };
            let to = *to;
            let stat = self.image.stat(found.file).map_err(Stopped::Reading)?;
            if stat.kind == NodeKind::Directory {
                let new = New { mode: 0o700, uid: stat.uid, gid: stat.gid, ..New::default() };
                let made = self.live.make_directory(to, &found.name, &new).map_err(Stopped::Writing)?.file;
                self.files += 1;
                open.push((Names::of(found.file), stat, made));
            } else {
                self.one(&stat, to, &found.name)?;
            }
        }
        Ok(())
    }

    /// Copies one file that is not a directory.
    fn one(&mut self, stat: &Stat, directory: FileId, name: &[u8]) -> Result<(), Stopped> {
        if let Some(made) = self.linked.get(&stat.file) {
            self.live.link(*made, directory, name).map_err(Stopped::Writing)?;
            self.files += 1;
            return Ok(());
        }
        let new = New { mode: stat.mode, uid: stat.uid, gid: stat.gid, device: stat.device, umask: 0 };
        let made = match stat.kind {
            NodeKind::File => self.regular(stat, directory, name, &new)?,
            NodeKind::SymbolicLink => {
                let target = self.image.read_link(stat.file).map_err(Stopped::Reading)?;
                let made = self.live.make_link(directory, name, &target, &new);
                let made = made.map_err(Stopped::Writing)?.file;
                self.attributes(stat, made)?;
                made
            }
            _ => {
                let made = self.live.make(directory, name, &new).map_err(Stopped::Writing)?.file;
                self.attributes(stat, made)?;
                made
            }
        };
        if stat.links > 1 {
            self.linked.insert(stat.file, made);
        }
        self.files += 1;
        Ok(())
    }

    /// Copies the content of a file into one without a name, and names it.
    fn regular(&mut self, stat: &Stat, directory: FileId, name: &[u8], new: &New) -> Result<FileId, Stopped> {
        let private = New { mode: 0o600, ..*new };
        let made = self.live.make_unnamed(directory, &private).map_err(Stopped::Writing)?.file;
        let copied = self
            .content(stat, made)
            .and_then(|()| self.attributes(stat, made))
            .and_then(|()| self.live.link(made, directory, name).map(drop).map_err(Stopped::Writing));
        self.live.release(made);
        copied.map(|()| made)
    }

    fn content(&mut self, stat: &Stat, to: FileId) -> Result<(), Stopped> {
        let mut at = 0;
        while at < stat.bytes {
            let start = match self.image.seek_data(stat.file, at) {
                Ok(start) => start,
                Err(TreeError::NoData) => break,
                Err(error) => return Err(Stopped::Reading(error)),
            };
            let end = self.image.seek_hole(stat.file, start).map_err(Stopped::Reading)?;
            at = start;
            while at < end {
                if self.progress.cancelled().load(Ordering::Relaxed) {
                    return Err(Stopped::Cancelled);
                }
                let length = (end - at).min(PIECE) as usize;
                let bytes = self.image.read(stat.file, at, length).map_err(Stopped::Reading)?;
                if bytes.len() != length {
                    return Err(Stopped::Reading(TreeError::NoData));
                }
                let mut written = 0;
                while written < length {
                    let count = self.live.write(to, at + written as u64, &bytes[written..]);
                    written += count.map_err(Stopped::Writing)?;
                }
                at += length as u64;
                self.bytes += length as u64;
                self.progress.bytes(self.bytes, self.total.max(self.bytes));
            }
        }
        let length = SetStat { bytes: Some(stat.bytes), ..SetStat::default() };
        self.live.set(to, &length).map_err(Stopped::Writing)?;
        Ok(())
    }

    /// Gives a new file the attributes of the original, and no others.
    fn attributes(&self, stat: &Stat, to: FileId) -> Result<(), Stopped> {
        // A directory may give access lists to new files in it.
        for name in self.live.xattrs(to).map_err(Stopped::Writing)? {
            self.live.remove_xattr(to, &name).map_err(Stopped::Writing)?;
        }
        let set = SetStat {
            mode: (stat.kind != NodeKind::SymbolicLink).then_some(stat.mode & 0o7777),
            uid: Some(stat.uid),
            gid: Some(stat.gid),
            bytes: None,
            accessed: Some(SetTime::At(stat.accessed_ns)),
            modified: Some(SetTime::At(stat.modified_ns)),
            changed_ns: None,
            created_ns: Some(stat.created_ns),
        };
        self.live.set(to, &set).map_err(Stopped::Writing)?;
        if stat.has_xattrs {
            for name in self.image.xattrs(stat.file).map_err(Stopped::Reading)? {
                let value = self.image.xattr(stat.file, &name).map_err(Stopped::Reading)?;
                self.live.set_xattr(to, &name, &value, SetXattr::Any).map_err(Stopped::Writing)?;
            }
        }
        Ok(())
    }
}

/// Removes an unfinished folder and all below it.
fn remove_all(live: &Tree, directory: FileId, name: &[u8], top: FileId) -> Result<(), TreeError> {
    let mut open = vec![(directory, name.to_vec(), Names::of(top))];
    while let Some((above, name, names)) = open.last_mut() {
        let folder = names.directory;
        match names.next(live)? {
            Some(found) if found.kind == NodeKind::Directory => {
                open.push((folder, found.name, Names::of(found.file)));
            }
            Some(found) => live.unlink(folder, &found.name)?,
            None => {
                live.remove_directory(*above, name)?;
                open.pop();
            }
        }
    }
    Ok(())
}
