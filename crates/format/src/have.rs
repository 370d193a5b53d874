//! A block of a destination's have map: the blocks that an unfinished transfer has brought, and
//! their checksums.
//!
//! An entry says that the block of that vbn arrived with that checksum. After a restart it is
//! trusted only when the block in its place has that checksum. So a torn or lost write of the map
//! only causes a block to be sent again.

use cairn_base::{Checksum, VolumeId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BlockBytes, Cursor};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHaveBlock {
    epoch: Checksum,
    entries: [u8; 4080],
}

const _: () = assert!(size_of::<RawHaveBlock>() == cairn_base::BLOCK_SIZE);

/// A block of the have map.
pub struct HaveBlock;

impl HaveBlock {
    /// Checksums in a block.
    pub const ENTRIES: u64 = 255;

    /// The first field in the blocks of a transfer that started on this committed image: remains of
    /// other transfers have another epoch.
    pub fn epoch(volume: VolumeId, cursor: &Cursor) -> Checksum {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&volume.0);
        bytes[16..24].copy_from_slice(&cursor.snapshot.0.to_le_bytes());
        bytes[24..].copy_from_slice(&cursor.received.0.to_le_bytes());
        Checksum::of(&bytes)
    }

    /// Makes the block an empty one of this epoch.
    pub fn clear(bytes: &mut BlockBytes, epoch: Checksum) {
        bytes.fill(0);
        bytes[..16].copy_from_slice(&epoch.0);
    }

    /// Whether the block is of this epoch.
    pub fn is_of(bytes: &BlockBytes, epoch: Checksum) -> bool {
        bytes[..16] == epoch.0
    }

    /// Entry `index` (less than [`Self::ENTRIES`]); none where nothing arrived.
    pub fn get(bytes: &BlockBytes, index: u64) -> Option<Checksum> {
        let raw = RawHaveBlock::ref_from_bytes(bytes.as_slice()).ok()?;
        let (entry, _) = raw.entries.get(index as usize * 16..)?.split_first_chunk()?;
        Some(Checksum(*entry)).filter(|checksum| *checksum != Checksum::default())
    }

    /// Sets entry `index` (less than [`Self::ENTRIES`]).
    pub fn set(bytes: &mut BlockBytes, index: u64, checksum: Checksum) {
        let at = 16 + index as usize * 16;
        bytes[at..at + 16].copy_from_slice(&checksum.0);
    }
}
