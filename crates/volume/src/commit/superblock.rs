//! The two slots of the superblock on the device.

use cairn_base::BLOCK_SIZE;
use cairn_device::{Block, BlockMut, Device, Segments};
use cairn_format::layout::{SPACE_BLOCKS_MIN, SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{FormatError, Structure, Superblock};

use crate::commit::space::{device_blocks, fresh_layout};
use crate::error::VolumeError;

pub(crate) fn read_slot(
    device: &dyn Device,
    address: u64,
) -> Result<Result<Superblock, FormatError>, VolumeError> {
    let structure = Structure::Superblock;
    let offset = address * BLOCK_SIZE as u64;
    let have = device.geometry().length;
    if have < offset + BLOCK_SIZE as u64 {
        return Err(VolumeError::DeviceTooSmall {
            need: device_blocks(&fresh_layout(SPACE_BLOCKS_MIN, false)) * BLOCK_SIZE as u64,
            have,
        });
    }
    let mut bytes = [0; BLOCK_SIZE];
    // A slot that can't be read is like one that does not verify: the other one serves.
    if device.read_into(offset, &mut bytes).is_err() {
        return Ok(Err(FormatError::Checksum(structure)));
    }
    Ok(Superblock::parse(&bytes, address))
}

pub(crate) fn read_slots(device: &dyn Device) -> Result<[Result<Superblock, FormatError>; 2], VolumeError> {
    Ok([read_slot(device, SUPERBLOCK_A)?, read_slot(device, SUPERBLOCK_B)?])
}

/// The newest slot that verifies.
pub(crate) fn newest_superblock(device: &dyn Device) -> Result<Superblock, VolumeError> {
    match read_slots(device)? {
        [Ok(first), Ok(second)] => Ok(if second.sequence > first.sequence { second } else { first }),
        [Ok(only), Err(reason)] | [Err(reason), Ok(only)] => {
            tracing::warn!(%reason, "one superblock slot is damaged; the other one is used, and both are rewritten");
            Ok(only)
        }
        [Err(version @ FormatError::Version { .. }), _] | [_, Err(version @ FormatError::Version { .. })] => {
            Err(VolumeError::Label(version))
        }
        [Err(first), Err(second)] => Err(VolumeError::NotAVolume { first, second }),
    }
}

pub(crate) fn write_slot(
    device: &dyn Device,
    superblock: &Superblock,
    address: u64,
) -> Result<(), VolumeError> {
    let block = slot_block(superblock, address);
    device.write(address * BLOCK_SIZE as u64, Segments::from(block))?;
    Ok(())
}

pub(crate) fn slot_block(superblock: &Superblock, address: u64) -> Block {
    let mut bytes = BlockMut::zeroed();
    superblock.write(&mut bytes, address);
    bytes.freeze()
}
