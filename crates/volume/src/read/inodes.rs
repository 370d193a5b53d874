//! Blocks of the inode file.

use cairn_base::Lba;
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode};

use crate::commit::space::Redirects;
use crate::error::{Place, VolumeError};
use crate::known_files::INODE_FILE;
use crate::read::store::{Store, Wanted};

/// The inodes of blocks of the inode file, which are read at once: by block and slot.
pub(crate) fn inodes_at(
    store: &Store,
    redirects: &Redirects,
    blocks: impl Iterator<Item = (u64, BlockPointer)>,
) -> Result<Vec<Option<Inode>>, VolumeError> {
    let place = |at| Place::Data { file: INODE_FILE, lba: Lba(at) };
    let wanted: Vec<Wanted> = blocks.map(|(at, pointer)| Wanted { pointer, place: place(at) }).collect();
    let mut inodes = Vec::with_capacity(wanted.len() * INODES_PER_BLOCK as usize);
    for (block, Wanted { pointer, place }) in store.load(&wanted, redirects).into_iter().zip(&wanted) {
        let block = block?;
        for slot in 0..INODES_PER_BLOCK as usize {
            let inode = Inode::parse(&block, slot);
            inodes.push(inode.map_err(|_| VolumeError::Damaged { vbn: pointer.vbn, place: *place })?);
        }
    }
    Ok(inodes)
}
