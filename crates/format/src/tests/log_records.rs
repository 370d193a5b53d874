//! Records of the intent log that a power cut tore.

use super::*;
use crate::layout::COUNTER_MAX;

const BLOCK: usize = cairn_base::BLOCK_SIZE;
const SECTOR: usize = 512;

#[test]
fn record_takes_as_few_blocks_as_its_entries_need() {
    assert_eq!(ENTRIES_PER_FIRST_BLOCK, 84);
    assert_eq!([0, 1, 84, 85, 169, 170].map(LogRecord::blocks_for), [1, 1, 1, 2, 2, 3]);
}

#[test]
fn record_torn_at_any_set_of_blocks_is_refused() {
    let whole = log_record(300).to_bytes(VOLUME);
    let blocks = whole.len() / BLOCK;
    assert_eq!(blocks, 4);
    let mut older = log_record(300);
    older.header.sequence -= 1;
    older.entries.reverse();
    let older = older.to_bytes(VOLUME);
    for before in [vec![0; whole.len()], older] {
        for arrived in 0..(1usize << blocks) - 1 {
            let mut torn = before.clone();
            for block in (0..blocks).filter(|block| arrived >> block & 1 == 1) {
                let range = block * BLOCK..(block + 1) * BLOCK;
                torn[range.clone()].copy_from_slice(&whole[range]);
            }
            // None of the new blocks arrived: the old content is still there.
            let parsed = LogRecord::parse(&torn, VOLUME).map(|record| record.header.sequence);
            let untouched = arrived == 0 && parsed == Ok(log_record(300).header.sequence - 1);
            assert!(parsed.is_err() || untouched, "{arrived:04b}: {parsed:?}");
        }
    }
}

#[test]
fn record_torn_within_a_block_is_refused() {
    let whole = log_record(100).to_bytes(VOLUME);
    let entries_end = document::size("log::RawHeader") + 100 * document::size("log::RawEntry");
    for end in (0..entries_end).step_by(SECTOR) {
        let mut torn = vec![0; whole.len()];
        torn[..end].copy_from_slice(&whole[..end]);
        assert!(LogRecord::parse(&torn, VOLUME).is_err(), "{end}");
    }
}

#[test]
fn record_cut_off_is_refused_at_every_length() {
    let whole = log_record(170).to_bytes(VOLUME);
    for length in (0..whole.len()).step_by(SECTOR).chain([1, 63, 64, 65]) {
        assert!(LogRecord::parse(&whole[..length], VOLUME).is_err(), "{length}");
    }
    // Replay passes the following bytes of the log as well.
    let longer = [whole.as_slice(), &[0xff; BLOCK]].concat();
    assert_eq!(LogRecord::parse(&longer, VOLUME), Ok(log_record(170)));
}

/// Blocks of a record after the first begin with an entry's start, its lba or its checksum: the
/// last two are in a client's hand.
#[test]
fn later_block_of_a_record_is_never_taken_for_a_record() {
    let newer = u64::from_le_bytes(*b"CLOG\x02\0\0\0");
    let mut sum = [0; 16];
    sum[..8].copy_from_slice(&newer.to_le_bytes());
    let mut record = log_record(300);
    let file = FileId(3);
    record.entries.fill(LogEntry::Write { file, lba: Lba(newer), vbn: Vbn(newer), checksum: Checksum(sum) });
    let bytes = record.to_bytes(VOLUME);
    assert_eq!(LogRecord::parse(&bytes, VOLUME), Ok(record));
    let mut alike = 0;
    for block in bytes.chunks(BLOCK).skip(1) {
        let outcome = LogRecordHeader::peek(block, VOLUME);
        let misplaced = outcome == Err(FormatError::Misplaced(Structure::LogRecord));
        assert!(misplaced || outcome == Err(FormatError::Magic(Structure::LogRecord)), "{outcome:?}");
        alike += usize::from(misplaced);
    }
    assert_eq!(alike, 2, "two of the three blocks begin like a header of a newer version");
}

#[test]
fn header_tells_how_many_blocks_to_read() {
    for entries in [1, 84, 85, 2729] {
        let record = log_record(entries);
        let bytes = record.to_bytes(VOLUME);
        let (header, blocks) = LogRecordHeader::peek(&bytes[..64], VOLUME).expect("a header is enough");
        assert_eq!((header, blocks as usize * BLOCK), (record.header, bytes.len()));
    }
}

#[test]
fn entries_that_are_never_written_are_refused() {
    let wrong = [
        LogEntry::Write { file: FileId(1), lba: Lba(0), vbn: Vbn(0), checksum: checksum(1) },
        LogEntry::Write { file: FileId(1), lba: Lba(u64::MAX), vbn: Vbn(1), checksum: checksum(1) },
        LogEntry::Write { file: FileId(1), lba: Lba(COUNTER_MAX + 1), vbn: Vbn(1), checksum: checksum(1) },
        LogEntry::Hole { file: FileId(1), lba: Lba(u64::MAX), count: 1 },
        LogEntry::Hole { file: FileId(1), lba: Lba(COUNTER_MAX), count: 1 },
    ];
    for entry in wrong {
        let mut record = log_record(1);
        record.entries = vec![entry];
        let parsed = LogRecord::parse(&record.to_bytes(VOLUME), VOLUME);
        assert!(matches!(parsed, Err(FormatError::Field { .. })), "{parsed:?}");
    }
}

#[test]
fn entries_of_the_last_block_of_all_are_read() {
    let mut record = log_record(1);
    record.header.entries = 2;
    record.entries = vec![
        LogEntry::Write { file: FileId(1), lba: Lba(COUNTER_MAX), vbn: Vbn(1), checksum: checksum(1) },
        LogEntry::Hole { file: FileId(1), lba: Lba(COUNTER_MAX - 1), count: 1 },
    ];
    assert_eq!(LogRecord::parse(&record.to_bytes(VOLUME), VOLUME), Ok(record));
}
