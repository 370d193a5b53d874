//! Which files differ between two images, from the blocks of the inode file that they do not share.

use cairn_base::Lba;
use cairn_format::{Attributes, BlockPointer, INODES_PER_BLOCK, Inode};

use crate::compare::INODE_FILE;
use crate::error::{Place, VolumeError};
use crate::image::Image;
use crate::store::Wanted;
use crate::tree::difference;

/// An inode as it is in two images; `None` where there is no such file.
pub type InodePair = (Option<Inode>, Option<Inode>);

fn unread(inode: Inode) -> Inode {
    Inode { attributes: Attributes { accessed_ns: 0, ..inode.attributes }, ..inode }
}

impl Image {
    /// The inodes that are not the same in `base` and here: as they are there, and as they are here; `None` where there is no such file. In order of number.
    /// The time of the last read does not count: who reads all files of a large tree has changed nothing, and the result is in memory.
    ///
    /// Blocks of the inode file that both share are not read: the cost is what changed.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] of a block that can't be read.
    pub fn changed_inodes(&self, base: &Image) -> Result<Vec<InodePair>, VolumeError> {
        let old = base.volume().tree(base.committed(), INODE_FILE, base.root().inode_file);
        let new = self.volume().tree(self.committed(), INODE_FILE, self.root().inode_file);
        let mut blocks = Vec::new();
        difference(&old, &new, &mut |at, level, before, after| {
            if level == 0 {
                blocks.push((at, before, after));
            }
        })?;
        let mut changed = Vec::new();
        for (at, before, after) in blocks {
            let pairs = base.inodes_at(at, before)?.into_iter().zip(self.inodes_at(at, after)?);
            changed.extend(pairs.filter(|(before, after)| before.map(unread) != after.map(unread)));
        }
        Ok(changed)
    }

    /// The inodes of one block of the inode file, by slot.
    fn inodes_at(&self, at: u64, pointer: BlockPointer) -> Result<Vec<Option<Inode>>, VolumeError> {
        let place = Place::Data { file: INODE_FILE, lba: Lba(at) };
        let block = self.volume().store.load_one(Wanted { pointer, place }, self.redirects())?;
        let parse =
            |slot| Inode::parse(&block, slot).map_err(|_| VolumeError::Damaged { vbn: pointer.vbn, place });
        (0..INODES_PER_BLOCK as usize).map(parse).collect()
    }
}
