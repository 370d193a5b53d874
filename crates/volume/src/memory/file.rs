//! Files: made, resized and removed. A removed file's blocks are freed in rounds, so that no
//! consistency point takes long.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Lba};
use cairn_device::Block;
use cairn_format::{Attributes, FileKind, Inode, TreeRef};

use crate::error::VolumeError;
use crate::known_files::ROOT_DIRECTORY;
use crate::limits::{REMOVE_BLOCKS, REMOVE_FILE_COST};
use crate::memory::overlay::Arrival;
use crate::volume::{Compound, Volume};

impl Compound<'_> {
    /// Makes a file of `length_bytes`, all holes. It exists from the next consistency point on.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`]; the volume's states; an inode block that the file would share with
    /// others can't be read.
    pub fn create(&self, kind: FileKind, length_bytes: u64) -> Result<FileId, VolumeError> {
        self.create_as(kind, length_bytes, Attributes::default())
    }

    /// Makes a file of the tree of names outside of a [`crate::Change`]: the first ones, whose
    /// names are in the root directory.
    ///
    /// # Errors
    /// As [`Compound::create`].
    pub fn create_node(&self, attributes: Attributes, length_bytes: u64) -> Result<FileId, VolumeError> {
        self.create_as(FileKind::Node, length_bytes, attributes)
    }

    fn create_as(
        &self,
        kind: FileKind,
        length_bytes: u64,
        attributes: Attributes,
    ) -> Result<FileId, VolumeError> {
        let volume = self.volume();
        let id = match kind {
            FileKind::Directory => {
                let committed = volume.state.lock().committed.clone();
                // The block for its inode must be readable.
                volume.committed_inode(&committed, ROOT_DIRECTORY)?;
                ROOT_DIRECTORY
            }
            _ => volume.next_file()?,
        };
        let mut state = volume.state.lock();
        state.check_writable()?;
        if state.lacks_room.is_some() {
            return Err(VolumeError::NoRoomBelow);
        }
        state.settle_releases();
        if !state.has_room(8) {
            return Err(VolumeError::NoSpace);
        }
        let inode = Inode {
            kind,
            removed: false,
            id,
            length_bytes,
            created: volume.clock.now(),
            relationship: 0,
            tree: TreeRef::empty(blocks_of(length_bytes)),
            attributes,
        };
        state.levels = state.levels.max(inode.tree.height);
        state.open.set_inode(id, Some(inode));
        volume.note_change(&mut state);
        Ok(id)
    }

    /// Changes the length of a file; blocks past a smaller length are freed.
    pub fn resize(&self, file: FileId, length_bytes: u64) -> Result<(), VolumeError> {
        let inode = self.volume().inode(file)?;
        let (old, length) = (inode.tree.length, blocks_of(length_bytes));
        if length < old {
            self.volume().check_range(file, length, old)?;
        }
        self.put(Inode { length_bytes, tree: TreeRef { length, ..inode.tree }, ..inode })?;
        if length < old {
            // The file may grow again in the same generation, and must not show the cut part again.
            let mut state = self.volume().state.lock();
            state.order += 1;
            let order = state.order;
            state.open.punch(file, length, old - length, order, false);
        }
        Ok(())
    }

    /// Takes a file's name away: it is freed in the background, also after a restart.
    pub fn remove(&self, file: FileId) -> Result<(), VolumeError> {
        let inode = self.volume().inode(file)?;
        self.put(Inode { removed: true, ..inode })?;
        self.volume().state.lock().removed.push(file);
        self.volume().work.notify_one();
        Ok(())
    }

    /// Writes one block of a directory. It is taken from the reserve where need be, so it never
    /// waits.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] when the reserve is used up, because snapshots keep blocks that
    /// were freed before.
    pub fn write(&self, file: FileId, lba: Lba, block: Block) -> Result<(), VolumeError> {
        let arrival = Arrival::new(lba, block);
        let mut state = self.volume().state.lock();
        state.check_writable()?;
        if !state.has_room_to_free(0) {
            return Err(VolumeError::NoSpace);
        }
        state.order += 1;
        let order = state.order;
        state.open.write(file, vec![arrival], order);
        self.volume().note_change(&mut state);
        Ok(())
    }

    fn put(&self, inode: Inode) -> Result<(), VolumeError> {
        let mut state = self.volume().state.lock();
        state.check_writable()?;
        if !state.has_room_to_free(0) {
            return Err(VolumeError::NoSpace);
        }
        state.levels = state.levels.max(TreeRef::height_for(inode.tree.length));
        state.open.set_inode(inode.id, Some(inode));
        self.volume().note_change(&mut state);
        Ok(())
    }
}

/// Blocks that `bytes` take; a file has at least one.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE as u64).max(1)
}

impl Volume {
    /// Frees the next part of removed files, each from its end and at the end its inode: many small
    /// ones, or a part of a large one. One consistency point is for all of them. False when nothing
    /// could be freed now.
    pub(crate) fn free_removed(self: &Arc<Self>) -> Result<bool, VolumeError> {
        let mut room = REMOVE_BLOCKS;
        {
            // Read inside: a rollback in between would restore a file, and its freed blocks would
            // be missing.
            let compound = self.compound();
            while let Some(file) = self.next_removed().filter(|_| room > 0) {
                match self.free_part(&compound, file, room) {
                    Ok(blocks) => room = room.saturating_sub(blocks.max(REMOVE_FILE_COST)),
                    // Another writer took the last room: retry later.
                    Err(VolumeError::NoSpace | VolumeError::NoRoomBelow) => break,
                    Err(reason) => {
                        // The blocks below an unreadable node are unknown. The file's blocks stay
                        // in use, and the volume continues.
                        tracing::error!(%file, %reason, "a removed file has a damaged node; its space is freed after a repair, or after a search of all other files");
                        let mut state = self.state.lock();
                        state.removed.retain(|removed| *removed != file);
                        state.stranded.push(file);
                        state.tried_stranded = None;
                    }
                }
            }
        }
        if room == REMOVE_BLOCKS {
            return Ok(false);
        }
        self.consistency_point().map(|_| true)
    }

    /// The next removed file, if it may be freed now: since the background looked, the volume may
    /// have given way or become full.
    fn next_removed(&self) -> Option<FileId> {
        let state = self.state.lock();
        let may = state.check_writable().is_ok() && state.has_room_to_free(0);
        state.removed.first().copied().filter(|_| may)
    }

    /// Frees up to `most` blocks of a removed file. Returns how many there may have been.
    fn free_part(
        self: &Arc<Self>,
        compound: &Compound<'_>,
        file: FileId,
        most: u64,
    ) -> Result<u64, VolumeError> {
        let inode = match self.inode(file) {
            Ok(inode) if inode.removed => inode,
            // A rollback restored it, or it is gone.
            Ok(_) | Err(VolumeError::NoSuchFile(_)) => {
                self.state.lock().removed.retain(|removed| *removed != file);
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        let keep = inode.tree.length.saturating_sub(most);
        self.check_range(file, keep, inode.tree.length)?;
        // Not the tree in `inode`: an inode that was put while its blocks were merged knows that of
        // an earlier root, or none.
        let committed = self.state.lock().committed.clone();
        let old = self.committed_inode(&committed, file)?;
        if keep == 0 || old.is_none_or(|old| old.tree.pointer.is_hole()) {
            let mut state = self.state.lock();
            state.open.set_inode(file, None);
            self.note_change(&mut state);
            state.removed.retain(|removed| *removed != file);
        } else {
            compound.resize(file, keep * BLOCK_SIZE as u64)?;
        }
        Ok(inode.tree.length - keep)
    }
}
