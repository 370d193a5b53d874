//! Open files that are kept though they have no name any more, or none yet.

use std::collections::{HashMap, HashSet};

use cairn_base::FileId;

use super::edit::Edit;
use super::error::TreeError;
use super::stat::{Entry, NodeKind, Stat};
use super::{Tree, trie};

/// The number of names that one round of emptying the orphan directory reads.
const ROUND: usize = 256;
/// Files without names that one change frees: the lock of all names is held meanwhile.
const FREED_TOGETHER: usize = 16;

/// The files that are held.
#[derive(Default)]
pub(crate) struct Holds {
    /// How often each of them is.
    counts: HashMap<FileId, u64>,
    /// Those of them that are in the orphan directory, or were about to be put there.
    nameless: HashSet<FileId>,
    /// Those of them that were made without a name and have had none since.
    unnamed: HashSet<FileId>,
    /// Counts how often a file has lost its last name and stayed.
    kept: u64,
}

impl Holds {
    /// Reduces a file's holds by `times`. True for one without names and without holds.
    pub(crate) fn release(&mut self, file: FileId, times: u64) -> bool {
        let Some(count) = self.counts.get_mut(&file) else { return false };
        *count = count.saturating_sub(times);
        if *count > 0 {
            return false;
        }
        self.counts.remove(&file);
        self.nameless.remove(&file)
    }
}

impl Tree {
    /// Keeps a file or directory after its last name goes, until [`Tree::release`] was called as
    /// often. A crash ends all holds.
    ///
    /// # Errors
    /// [`TreeError::NotFound`] when it is gone already.
    pub fn hold(&self, file: FileId) -> Result<Stat, TreeError> {
        let _names = self.names.read();
        let stat = Stat::from(&self.source.inode(file)?);
        *self.holds.lock().counts.entry(file).or_default() += 1;
        Ok(stat)
    }

    /// Releases a hold of [`Tree::hold`]. After the last one a file without names is gone.
    pub fn release(&self, file: FileId) {
        self.release_all([(file, 1)]);
    }

    /// The same for several files, each with its number of holds. Files that go by that are removed
    /// a few at a time.
    pub fn release_all(&self, files: impl IntoIterator<Item = (FileId, u64)>) {
        let nameless: Vec<FileId> = {
            let mut holds = self.holds.lock();
            let released = files.into_iter().filter(|(file, times)| holds.release(*file, *times));
            released.map(|(file, _)| file).collect()
        };
        self.free_nameless(&nameless);
    }

    /// Releases all holds: their holders are gone.
    pub fn release_everything(&self) {
        let nameless: Vec<FileId> = {
            let mut holds = self.holds.lock();
            holds.counts.clear();
            holds.nameless.drain().collect()
        };
        self.free_nameless(&nameless);
    }

    /// Whether a file has lost its last name, is held, and can't get another name.
    pub fn is_nameless(&self, file: FileId) -> bool {
        let holds = self.holds.lock();
        holds.nameless.contains(&file) && !holds.unnamed.contains(&file)
    }

    /// How many files that are held have no name, and how many have lost their last one and stayed
    /// since the tree was opened.
    pub fn nameless(&self) -> (usize, u64) {
        let holds = self.holds.lock();
        (holds.nameless.len(), holds.kept)
    }

    fn free_nameless(&self, files: &[FileId]) {
        if self.is_read_only() {
            return;
        }
        for some in files.chunks(FREED_TOGETHER) {
            if self.free_orphans_of(some).is_ok() {
                continue;
            }
            // One that can't be freed keeps none of the others.
            for file in some {
                if let Err(reason) = self.free_orphans_of(&[*file]) {
                    // It stays in the orphan directory, which is emptied when the tree is opened
                    // again.
                    tracing::warn!(%file, %reason, "a file without names is freed later");
                }
            }
        }
    }

    /// Removes files of the orphan directory, except those that are held again or have a name
    /// again.
    pub(crate) fn free_orphans_of(&self, files: &[FileId]) -> Result<(), TreeError> {
        let _names = self.names.write();
        let mut changed = files.to_vec();
        changed.push(self.orphans);
        let _files = self.lock_files(&changed);
        let mut edit = Edit::new(self.live()?, &self.quotas);
        for file in files {
            {
                let mut holds = self.holds.lock();
                if holds.counts.contains_key(file) {
                    // A file that was looked up by its number again is removed when it is released.
                    holds.nameless.insert(*file);
                    continue;
                }
                holds.unnamed.remove(file);
            }
            // One that was made without a name may have got one since it was released.
            if edit.inode(*file).is_ok_and(|inode| inode.attributes.links > 0) {
                continue;
            }
            self.load_to_remove(*file);
            self.forget_orphan(&mut edit, *file)?;
            match edit.remove(*file) {
                Ok(()) | Err(TreeError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        edit.commit(true)
    }

    /// Empties the orphan directory: the files in it were open at a crash. Unreadable parts stay
    /// there, and affect nothing else. Later entries are found all the same where their place is
    /// known, and the rest by the opening after the repair.
    pub(crate) fn free_orphans(&self) -> Result<(), TreeError> {
        let mut from = 0;
        loop {
            let inode = match self.directory(self.orphans) {
                Err(reason @ TreeError::Damaged(_)) => {
                    tracing::error!(%reason, "files without names can't be found, and are freed later");
                    return Ok(());
                }
                inode => inode?,
            };
            let entries = match trie::list(&mut &self.source, &inode, from, ROUND) {
                Err(reason @ TreeError::Damaged(_)) => {
                    tracing::error!(%reason, "some files without names can't be found, and are freed later");
                    let Some(damage) = trie::end_of_damage(&mut &self.source, &inode, from) else {
                        return Ok(());
                    };
                    from = damage + 1;
                    continue;
                }
                entries => entries?,
            };
            let Some(last) = entries.last() else { return Ok(()) };
            from = last.cookie + 1;
            for entry in &entries {
                match self.free_entry(entry) {
                    Err(reason @ TreeError::Damaged(_)) => {
                        tracing::error!(file = %entry.file, %reason, "a file without names can't be freed");
                    }
                    freed => freed?,
                }
            }
        }
    }

    /// Removes a name from the orphan directory, and its file with it if that has no other name.
    /// The directory may be hostile or damaged: then it can name anything.
    fn free_entry(&self, entry: &Entry) -> Result<(), TreeError> {
        let _names = self.names.write();
        let _files = self.lock_files(&[entry.file, self.orphans]);
        let mut edit = Edit::new(self.live()?, &self.quotas);
        trie::remove(&mut edit, self.orphans, entry.cookie)?;
        match edit.inode(entry.file) {
            Ok(inode) if inode.attributes.links == 0 && !self.is_own(entry.file) => {
                edit.remove(entry.file)?
            }
            Ok(_) | Err(TreeError::NotFound) => {}
            Err(error) => return Err(error),
        }
        edit.commit(true)
    }

    /// Holds a file that was just made without a name, for its maker. No other caller knows it.
    pub(crate) fn hold_unnamed(&self, file: FileId) {
        let mut holds = self.holds.lock();
        holds.counts.insert(file, 1);
        holds.nameless.insert(file);
        holds.unnamed.insert(file);
    }

    /// Whether a file was made without a name and has had none since.
    pub(crate) fn is_unnamed(&self, file: FileId) -> bool {
        self.holds.lock().unnamed.contains(&file)
    }

    /// A file that was made without a name has one now.
    pub(crate) fn is_named_now(&self, file: FileId) {
        let mut holds = self.holds.lock();
        holds.nameless.remove(&file);
        holds.unnamed.remove(&file);
    }

    /// True for a held file whose last name goes. It is recorded as nameless, even if the removal
    /// fails: then its release finds that it has a name.
    pub(crate) fn stays_without_name(&self, file: FileId) -> bool {
        let mut holds = self.holds.lock();
        let stays = holds.counts.contains_key(&file);
        if stays {
            holds.nameless.insert(file);
            holds.kept += 1;
        }
        stays
    }

    /// Takes a file out of the orphan directory.
    pub(crate) fn forget_orphan(&self, edit: &mut Edit<'_>, file: FileId) -> Result<(), TreeError> {
        let orphans = edit.inode(self.orphans)?;
        if let Some(found) = trie::find(edit, &orphans, &orphan_name(file))? {
            trie::remove(edit, self.orphans, found.key)?;
        }
        Ok(())
    }

    /// Puts a file that has lost its last name into the orphan directory.
    pub(crate) fn keep_orphan(
        &self,
        edit: &mut Edit<'_>,
        file: FileId,
        kind: NodeKind,
    ) -> Result<(), TreeError> {
        trie::insert(edit, self.orphans, &orphan_name(file), file, kind).map(drop)
    }
}

/// The name of a file in the orphan directory.
fn orphan_name(file: FileId) -> Vec<u8> {
    format!("{:016x}", file.0).into_bytes()
}
