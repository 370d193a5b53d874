//! Parameter lists of EXTENDED COPY (LID1) and answers of RECEIVE COPY RESULTS (SPC-4, sections 6.4
//! and 6.24).

use super::{Fields, Sense};
use crate::limits::{COPY_SEGMENT_BLOCKS_MAX, COPY_SEGMENTS_MAX, COPY_TARGETS_MAX};

const HEADER_BYTES: usize = 16;
const TARGET_BYTES: usize = 32;
const SEGMENT_BYTES: usize = 28;
/// Identification descriptor CSCD.
const IDENTIFICATION: u8 = 0xe4;
/// Block device to block device.
const BLOCK_TO_BLOCK: u8 = 0x02;
const DESCRIPTOR_BYTES_MAX: usize =
    COPY_TARGETS_MAX as usize * TARGET_BYTES + COPY_SEGMENTS_MAX as usize * SEGMENT_BYTES;

/// A logical unit that takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyTarget {
    /// Its designator, as in the Device Identification page.
    pub designator: Vec<u8>,
    /// The length of its blocks, as the initiator believes.
    pub block_bytes: u32,
}

/// A stretch to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySegment {
    /// Index of the target to read from.
    pub source: usize,
    /// Index of the target to write to.
    pub destination: usize,
    /// Blocks: of the destination with the DC bit, otherwise of the source.
    pub blocks: u32,
    /// `blocks` counts blocks of the destination.
    pub counts_destination: bool,
    /// Where to read.
    pub source_lba: u64,
    /// Where to write.
    pub destination_lba: u64,
}

/// The parameters of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyList {
    /// The identifier under which RECEIVE COPY RESULTS finds the outcome; `None` when it will not
    /// be requested.
    pub list: Option<u8>,
    /// The participants.
    pub targets: Vec<CopyTarget>,
    /// In order.
    pub segments: Vec<CopySegment>,
}

impl CopyList {
    /// Reads a parameter list.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        let fields = Fields(bytes);
        let targets_bytes = usize::from(fields.u16(2));
        let segments_bytes = fields.u32(8) as usize;
        let inline_bytes = fields.u32(12) as usize;
        let whole = HEADER_BYTES
            .saturating_add(targets_bytes)
            .saturating_add(segments_bytes)
            .saturating_add(inline_bytes);
        let too_long = targets_bytes.saturating_add(segments_bytes) > DESCRIPTOR_BYTES_MAX;
        if bytes.len() < HEADER_BYTES || whole > bytes.len() || inline_bytes > 0 || too_long {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let usage = fields.u8(1) >> 3 & 3;
        let targets_list = fields.slice(HEADER_BYTES, targets_bytes);
        let segments_list = fields.slice(HEADER_BYTES + targets_bytes, segments_bytes);
        if targets_list.len() > usize::from(COPY_TARGETS_MAX) * TARGET_BYTES {
            return Err(Sense::TOO_MANY_TARGETS);
        }
        if segments_list.len() > usize::from(COPY_SEGMENTS_MAX) * SEGMENT_BYTES {
            return Err(Sense::TOO_MANY_SEGMENTS);
        }
        Ok(Self {
            list: (usage != 3).then(|| fields.u8(0)),
            targets: targets_list.chunks(TARGET_BYTES).map(target).collect::<Result<_, _>>()?,
            segments: segments_list.chunks(SEGMENT_BYTES).map(segment).collect::<Result<_, _>>()?,
        })
    }
}

fn target(bytes: &[u8]) -> Result<CopyTarget, Sense> {
    let fields = Fields(bytes);
    if fields.u8(0) != IDENTIFICATION {
        return Err(Sense::UNSUPPORTED_TARGET);
    }
    if bytes.len() < TARGET_BYTES {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let length = usize::from(fields.u8(7));
    if fields.u8(1) & 0x1f != 0 || length > 20 {
        return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
    }
    Ok(CopyTarget { designator: fields.slice(8, length).to_vec(), block_bytes: fields.u24(29) })
}

fn segment(bytes: &[u8]) -> Result<CopySegment, Sense> {
    let fields = Fields(bytes);
    if fields.u8(0) != BLOCK_TO_BLOCK {
        return Err(Sense::UNSUPPORTED_SEGMENT);
    }
    if bytes.len() < SEGMENT_BYTES {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    Ok(CopySegment {
        source: fields.u16(4).into(),
        destination: fields.u16(6).into(),
        blocks: fields.u16(10).into(),
        counts_destination: fields.bit(1, 1),
        source_lba: fields.u64(12),
        destination_lba: fields.u64(20),
    })
}

/// The answer about one copy (SPC-4, section 6.24.2).
pub(crate) fn status(failed: bool, segments: u16) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[3] = 8;
    // Held until it is requested; then this nexus may reuse the number.
    bytes[4] = if failed { 2 } else { 1 };
    bytes[5..7].copy_from_slice(&segments.to_be_bytes());
    bytes
}

/// The answer about supported features (SPC-4, section 6.24.4).
pub(crate) fn operating_parameters() -> Vec<u8> {
    let mut bytes = vec![0; 44];
    let available = bytes.len() as u32 + 2 - 4;
    bytes[..4].copy_from_slice(&available.to_be_bytes());
    // SNLID: a list without a number is fine.
    bytes[4] = 1;
    bytes[8..10].copy_from_slice(&COPY_TARGETS_MAX.to_be_bytes());
    bytes[10..12].copy_from_slice(&COPY_SEGMENTS_MAX.to_be_bytes());
    bytes[12..16].copy_from_slice(&(DESCRIPTOR_BYTES_MAX as u32).to_be_bytes());
    // In units of blocks of 512 bytes: a segment at its longest with blocks of 4 KiB.
    bytes[16..20].copy_from_slice(&(COPY_SEGMENT_BLOCKS_MAX * 4096).to_be_bytes());
    bytes[36] = 1;
    bytes[43] = 2;
    bytes.extend_from_slice(&[BLOCK_TO_BLOCK, IDENTIFICATION]);
    bytes
}
