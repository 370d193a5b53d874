//! Files that are kept though they have no name any more, or none yet: those that somebody has open.

use std::collections::hash_map::Entry as Held;

use cairn_base::FileId;

use super::edit::Edit;
use super::error::TreeError;
use super::stat::{Entry, NodeKind};
use super::{Tree, trie};

/// Names that one round of emptying the orphan directory looks at.
const ROUND: usize = 256;

impl Tree {
    /// Keeps a file or directory though its last name goes, until [`Tree::release`]: once for each time that it is opened. After a crash nobody holds anything.
    ///
    /// # Errors
    /// [`TreeError::NotFound`] when it is gone already.
    pub fn hold(&self, file: FileId) -> Result<(), TreeError> {
        let _names = self.names.read();
        self.source.inode(file)?;
        *self.holds.lock().entry(file).or_insert(0) += 1;
        Ok(())
    }

    /// Gives back what [`Tree::hold`] has taken. When it was the last one of a file without names, the file is gone.
    pub fn release(&self, file: FileId) {
        if self.let_go(file)
            && let Err(reason) = self.free_orphan(file)
        {
            // It stays in the orphan directory, which is emptied when the tree is opened again.
            tracing::warn!(%file, %reason, "a file without names is freed later");
        }
    }

    /// The first half of it: true for a file without names that nobody holds any more.
    pub(crate) fn let_go(&self, file: FileId) -> bool {
        // An unlink that is under way sees the file held, or is seen here.
        let _names = self.names.read();
        let mut holds = self.holds.lock();
        let Held::Occupied(mut count) = holds.entry(file) else { return false };
        if *count.get() > 1 {
            *count.get_mut() -= 1;
            return false;
        }
        count.remove();
        drop(holds);
        !self.is_read_only() && self.source.inode(file).is_ok_and(|inode| inode.attributes.links == 0)
    }

    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.holds.lock().contains_key(&file)
    }

    /// Removes a file of the orphan directory, unless somebody holds it again or has given it a name.
    pub(crate) fn free_orphan(&self, file: FileId) -> Result<(), TreeError> {
        let _names = self.names.write();
        let _files = self.lock_files(&[file, self.orphans]);
        if self.is_held(file) {
            return Ok(());
        }
        let mut edit = Edit::new(self.live()?, &self.quotas);
        // One that was made without a name may have got one since it was let go.
        if edit.inode(file).is_ok_and(|inode| inode.attributes.links > 0) {
            return Ok(());
        }
        self.unnamed.lock().remove(&file);
        self.forget_orphan(&mut edit, file)?;
        match edit.remove(file) {
            Ok(()) | Err(TreeError::NotFound) => {}
            Err(error) => return Err(error),
        }
        edit.commit(true)
    }

    /// Empties the orphan directory: what is in it was open at a crash. What can't be read stays there, and costs nothing else: what is behind it is found all the same where that is known, and
    /// the rest by the opening after its repair.
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

    /// Takes a name out of the orphan directory, and its file with it if that has none besides. The directory may be of somebody who means harm, or damaged: then it can name anything.
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

    /// Holds a file that was just made without a name, for who has made it. Nobody else knows of it.
    pub(crate) fn hold_unnamed(&self, file: FileId) {
        self.holds.lock().insert(file, 1);
        self.unnamed.lock().insert(file);
    }

    /// Whether a file was made without a name and has had none since.
    pub(crate) fn is_unnamed(&self, file: FileId) -> bool {
        self.unnamed.lock().contains(&file)
    }

    /// Takes a file out of the orphan directory.
    pub(crate) fn forget_orphan(&self, edit: &mut Edit<'_>, file: FileId) -> Result<(), TreeError> {
        let orphans = edit.inode(self.orphans)?;
        if let Some(found) = trie::find(edit, &orphans, &orphan_name(file))? {
            trie::remove(edit, self.orphans, found.key)?;
        }
        Ok(())
    }

    /// Puts a file that has lost its last name where it is found again.
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
