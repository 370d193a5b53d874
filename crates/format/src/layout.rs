//! Where things are on a device, and the limits of the format. `docs/format.md` repeats this table
//! and a test compares the two.

use cairn_base::BLOCK_SIZE;

use crate::{FormatError, Structure};

/// The version of every struct on a device that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// The version of image dumps that this program writes, and the newest that it reads.
pub const DUMP_VERSION: u32 = 1;
/// The version of image streams that this program writes, and the newest that it reads.
pub const STREAM_VERSION: u32 = 1;
/// The version of traces that this program writes, and the newest that it reads.
pub const TRACE_VERSION: u32 = 1;
/// First superblock slot, in blocks from the start of the device.
pub const SUPERBLOCK_A: u64 = 0;
/// Second superblock slot: 64 KiB away, so that one bad stretch of media does not take both.
pub const SUPERBLOCK_B: u64 = 16;
/// First block of the label space, where the tables of this copy live.
pub const LABEL_START: u64 = 32;
/// First copy of the header of a log device.
pub const LOG_HEADER_A: u64 = 0;
/// Second copy of the header of a log device, as far away as that of the superblock.
pub const LOG_HEADER_B: u64 = 16;
/// First block of the ring on a log device.
pub const LOG_DEVICE_START: u64 = 32;
/// Fewest blocks of an intent log: 1 MiB.
pub const LOG_BLOCKS_MIN: u64 = 256;
/// Most blocks of an intent log: 64 MiB, which opening reads into memory.
pub const LOG_BLOCKS_MAX: u64 = 16384;
/// The block space starts at a multiple of this many blocks (1 MiB).
pub const SPACE_ALIGNMENT: u64 = 256;

/// Bits in a block of an active map or a since map: the region of block space that one map block
/// describes.
pub const BITS_PER_MAP_BLOCK: u64 = (BLOCK_SIZE * 8) as u64;
/// Fewest blocks of block space: below, metadata would take all of it.
pub const SPACE_BLOCKS_MIN: u64 = 1024;
/// Most blocks of block space (4 PiB): the reach of six levels of nodes.
pub const SPACE_BLOCKS_MAX: u64 = 1 << 40;

/// The limit of every number that only counts up (generations, snapshots, files, records,
/// superblocks). No volume lives long enough to reach it, and additions to a parsed number never
/// overflow.
pub const COUNTER_MAX: u64 = 1 << 62;

/// Blocks of label space for a block space of `blocks`.
pub const fn label_blocks(blocks: u64) -> u64 {
    clamp(blocks / 256, 256, 8192)
}

/// Blocks of intent log for a block space of `blocks`: at most 64 MiB.
pub const fn log_blocks(blocks: u64) -> u64 {
    clamp(blocks / 64, LOG_BLOCKS_MIN, LOG_BLOCKS_MAX)
}

/// First block of the block space on the device, for a block space of `blocks` at format.
pub const fn space_start(blocks: u64) -> u64 {
    (LABEL_START + label_blocks(blocks) + log_blocks(blocks)).next_multiple_of(SPACE_ALIGNMENT)
}

/// The version of a structure that this program writes, and the newest that it reads.
const fn version(structure: Structure) -> u32 {
    match structure {
        Structure::StreamHeader => STREAM_VERSION,
        Structure::DumpHeader => DUMP_VERSION,
        Structure::TraceHeader => TRACE_VERSION,
        _ => VERSION,
    }
}

/// Refuses the version that a structure has, unless this program reads it.
pub(crate) fn check_version(structure: Structure, found: u32) -> Result<(), FormatError> {
    let supported = version(structure);
    match found {
        0 => Err(FormatError::Field { structure, field: "version" }),
        known if known <= supported => Ok(()),
        _ => Err(FormatError::Version { structure, found, supported }),
    }
}

const fn clamp(value: u64, low: u64, high: u64) -> u64 {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}
