//! Which files differ between two images, from the blocks of the inode file that they do not share.

use cairn_format::{Attributes, BlockPointer, Inode};

use crate::error::VolumeError;
use crate::known_files::INODE_FILE;
use crate::read::image::Image;
use crate::read::inodes::inodes_at;
use crate::read::tree::{BATCH, difference};

/// An inode in two images; `None` where there is no such file.
pub type InodePair = (Option<Inode>, Option<Inode>);

/// A block of the inode file: its number, and where each image has it.
type Differing = (u64, BlockPointer, BlockPointer);

fn unread(inode: Inode) -> Inode {
    Inode { attributes: Attributes { accessed_ns: 0, ..inode.attributes }, ..inode }
}

impl Image {
    /// The inodes that differ between `base` and this image: the old one and the new one; `None`
    /// where there is no such file. In order of number. The time of the last read does not count: a
    /// client that reads all files of a large tree has changed nothing, and the result is in
    /// memory.
    ///
    /// Blocks of the inode file that both share are not read: the cost depends on the changes.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of a block that can't be read.
    pub fn changed_inodes(&self, base: &Image) -> Result<Vec<InodePair>, VolumeError> {
        let old = base.volume().tree(base.committed(), INODE_FILE, base.root().inode_file);
        let new = self.volume().tree(self.committed(), INODE_FILE, self.root().inode_file);
        let mut blocks: Vec<Differing> = Vec::new();
        difference(&old, &new, &mut |at, level, before, after| {
            if level == 0 {
                blocks.push((at, before, after));
            }
            Ok(())
        })?;
        let mut changed = Vec::new();
        for chunk in blocks.chunks(BATCH) {
            let inodes_in = |image: &Image, pick: fn(&Differing) -> BlockPointer| {
                inodes_at(
                    &image.volume().store,
                    image.redirects(),
                    chunk.iter().map(|one| (one.0, pick(one))),
                )
            };
            let (before, after) = (inodes_in(base, |one| one.1)?, inodes_in(self, |one| one.2)?);
            let pairs = before.into_iter().zip(after);
            changed.extend(pairs.filter(|(before, after)| before.map(unread) != after.map(unread)));
        }
        Ok(changed)
    }
}
