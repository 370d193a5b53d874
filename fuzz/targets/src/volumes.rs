//! Whole volumes with hostile metadata or a hostile log: opened, read, checked, mirrored, and
//! worked on where nothing seems wrong.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use cairn_base::{BLOCK_SIZE, Checksum, FileId, Generation, Lba, Vbn};
use cairn_format::layout::SUPERBLOCK_A;
use cairn_format::{BlockBytes, LogEntry, LogRecord, LogRecordHeader, SegmentKind, Superblock};

use crate::scene::{look_at, mirror, open, scene, work_on};
use crate::seeds::noise;
use crate::sparse::{Blocks, SparseDevice, block_of};
use crate::trees::{Edit, edited};

fn tried(blocks: Blocks) {
    let device = Arc::new(SparseDevice::new(scene().volume.length, Arc::new(blocks)));
    let Ok(volume) = open(device.clone()) else { return };
    let sound = look_at(&volume);
    mirror(&volume);
    if sound {
        work_on(&volume);
        drop(volume);
        let again = open(device).expect("a volume that was sound opens again");
        look_at(&again);
    }
}

pub(crate) fn volume_image(data: &[u8]) {
    let Ok(edits) = Vec::<Edit>::arbitrary(&mut Unstructured::new(data)) else { return };
    tried(edited(&edits[..edits.len().min(32)]));
}

pub(crate) fn volume_image_seeds() -> Vec<Vec<u8>> {
    [vec![Vec::new()], noise(6, 60)].concat()
}

#[derive(Debug, Arbitrary)]
struct Ring {
    records: Vec<Record>,
    /// Bytes of the log that are changed after all checksums are right.
    spoiled: Vec<(u16, u16, u8)>,
}

#[derive(Debug, Arbitrary)]
struct Record {
    /// After the previous record; or at this block of the log.
    at: Option<u16>,
    /// Relative to the next number.
    sequence: i8,
    generation: i8,
    durable_through: i8,
    huge: bool,
    entries: Vec<Entry>,
}

#[derive(Debug, Arbitrary)]
struct Entry {
    hole: bool,
    file: u8,
    lba: u16,
    /// A vbn, or the length of a hole.
    value: u16,
    right: bool,
    huge: u8,
}

impl Entry {
    fn entry(&self, blocks: &Blocks, start: u64) -> LogEntry {
        let huge = |bit: u8, value: u64| if self.huge >> bit & 1 == 1 { u64::MAX - value } else { value };
        // Files 1 to 8 exist, or did.
        let file = FileId(huge(0, u64::from(self.file % 10)));
        let (lba, value) = (Lba(huge(1, self.lba.into())), huge(2, u64::from(self.value).max(1)));
        if self.hole {
            return LogEntry::Hole { file, lba, count: value.min(u64::MAX - lba.0) };
        }
        let there = blocks.get(&start.wrapping_add(value)).map(|block| Checksum::of(&block[..]));
        let checksum = there.filter(|_| self.right).unwrap_or_default();
        LogEntry::Write { file, lba, vbn: Vbn(value), checksum }
    }
}

/// A log that is assembled from whole records, and then perhaps damaged: its replay gives a sound
/// volume or an error.
pub(crate) fn log_ring(data: &[u8]) {
    let Ok(ring) = Ring::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut blocks = (*scene().volume.blocks).clone();
    let first: BlockBytes = blocks[&SUPERBLOCK_A][..].try_into().expect("a block has its size");
    let superblock = Superblock::parse(&first, SUPERBLOCK_A).expect("the golden volume is whole");
    let layout = &superblock.layout;
    let space = layout.segments.iter().find(|segment| segment.kind == SegmentKind::Space);
    let start = space.expect("a volume has block space").device_block;
    let moved = |from: u64, by: i8, huge: bool| {
        if huge { u64::MAX - u64::from(by.unsigned_abs()) } else { from.wrapping_add_signed(i64::from(by)) }
    };
    // The log starts anew: the first record is the one that replay looks for.
    let (mut position, mut sequence) = (superblock.log_tail.position, superblock.log_tail.sequence);
    for record in ring.records.iter().take(16) {
        position = record.at.map_or(position, u64::from) % layout.log_blocks;
        let entries: Vec<LogEntry> =
            record.entries.iter().take(300).map(|entry| entry.entry(&blocks, start)).collect();
        let header = LogRecordHeader {
            sequence: moved(sequence, record.sequence / 16, record.huge),
            generation: Generation(moved(
                superblock.root.generation.0 + 1,
                record.generation / 32,
                record.huge,
            )),
            durable_through: moved(sequence.saturating_sub(1), record.durable_through / 16, record.huge),
            entries: LogRecord::slots(&entries) as u32,
            continues: record.huge && record.at.is_none(),
        };
        let bytes = LogRecord { header, entries }.to_bytes(superblock.volume);
        for block in bytes.chunks(BLOCK_SIZE) {
            blocks.insert(layout.log_start + position, block_of(block));
            position = (position + 1) % layout.log_blocks;
        }
        sequence += 1;
    }
    for (block, at, byte) in ring.spoiled.iter().take(8) {
        let number = layout.log_start + u64::from(*block) % layout.log_blocks;
        let mut bytes = [0; BLOCK_SIZE];
        if let Some(block) = blocks.get(&number) {
            bytes.copy_from_slice(&block[..]);
        }
        bytes[usize::from(*at) % BLOCK_SIZE] = *byte;
        blocks.insert(number, block_of(&bytes));
    }
    tried(blocks);
}

pub(crate) fn log_ring_seeds() -> Vec<Vec<u8>> {
    // Claims that a block at the end of 64 bits was written.
    let last_block = b"\xaf\xcf\x00\x00\x00\x00\x20\x00\xff\xe8\x01\x00\x00\x2e\xb1\x8e\x6e".to_vec();
    [vec![Vec::new(), last_block], noise(6, 300)].concat()
}
