//! Removed files whose blocks were found by exclusion, on their way to being freed.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::FileId;
use cairn_format::{BlockPointer, Inode};

use crate::commit::update::Gathered;
use crate::memory::overlay::Overlay;

/// Removed files, and blocks that no other file has.
#[derive(Debug, Clone)]
pub(crate) struct Excluded {
    pub(crate) files: BTreeSet<FileId>,
    pub(crate) blocks: Vec<BlockPointer>,
}

impl Excluded {
    /// Frees them in a consistency point, unless its changes are of such a file.
    pub(crate) fn free(
        &self,
        changes: &Overlay,
        inodes: &mut BTreeMap<FileId, Option<Inode>>,
        gathered: &mut Gathered,
    ) {
        let is_changed = |file| changes.inodes.contains_key(file) || changes.files.contains_key(file);
        if !self.files.iter().any(is_changed) {
            inodes.extend(self.files.iter().map(|file| (*file, None)));
            gathered.freed.extend(&self.blocks);
        }
    }
}
