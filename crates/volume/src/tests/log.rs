//! The intent log: the remains of a flush with several records after a power cut.

use cairn_base::{Checksum, Generation, Rng};
use cairn_format::layout::SUPERBLOCK_A;
use cairn_format::{LogEntry, LogRecord, LogRecordHeader, Superblock};

use super::*;
use crate::memory::overlay::Overlay;
use crate::memory::state::Frozen;

/// Entries that fill a record of the longest kind.
const FULL_RECORD: u64 = (32 * 4096 - 64) / 48;

#[test]
fn later_record_of_a_cut_flush_never_follows_another_one() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(8192, Role::Normal)));
    format(&*device, 8192);
    let volume = open(&device);
    let lun = file(&volume, 4000);
    write(&volume, lun, 0, 4000, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    for lba in 0..FULL_RECORD + 100 {
        volume.punch(lun, Lba(lba), 1).expect("it is punched");
    }
    // Both records are in flight when the power fails at the flush after them.
    device.cut_after(2);
    assert!(volume.flush().is_err());
    drop(volume);
    let mut told_apart = 0;
    for seed in 0..60 {
        let device = Arc::new(device.power_cycle(&mut Rng::new(seed)));
        let volume = open(&device);
        let before = read(&volume, lun, 0, 3999);
        told_apart += u64::from(before.first() == Some(&1));
        // As long as the lost record, so that the remains of the other one would directly follow
        // it.
        for _ in 0..FULL_RECORD {
            volume.punch(lun, Lba(3999), 1).expect("it is punched");
        }
        volume.flush().expect("it flushes");
        drop(volume);
        let volume = open(&Arc::new(device.power_cycle(&mut Rng::new(seed))));
        assert_eq!(read(&volume, lun, 0, 3999), before, "seed {seed}");
        assert_eq!(read(&volume, lun, 3999, 1), [0], "what was flushed is there");
        assert_sound(&volume);
    }
    assert!(told_apart > 0, "some cut lost the first record");
}

#[test]
fn atomic_write_is_whole_or_not_there_after_a_cut_at_each_operation() {
    let (mut whole, mut gone) = (0, 0);
    for at in 0.. {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(16384, Role::Normal)));
        format(&*device, 16384);
        let volume = open(&device);
        let lun = file(&volume, 6000);
        write(&volume, lun, 0, 256, 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        let mut blocks = (0..256).map(|lba| (Lba(lba), block(5000 + lba))).collect::<Vec<_>>().into_iter();
        volume.write_atomic(None, lun, &mut blocks).expect("there is room");
        // A full record is between it and a write that replaces some of its blocks: a cut between
        // the two records would show neither's bytes there.
        for lba in 0..FULL_RECORD {
            volume.punch(lun, Lba(1000 + lba), 1).expect("it is punched");
        }
        write(&volume, lun, 10, 4, 9000).expect("there is room");
        device.cut_after(at);
        let cut = volume.flush().is_err();
        drop(volume);
        for seed in 0..6 {
            let volume = open(&Arc::new(device.power_cycle(&mut Rng::new(seed))));
            let read = read(&volume, lun, 0, 256);
            let is = |salt: u64| move |(lba, number): (usize, &u64)| *number == salt + lba as u64;
            let rest = || read.iter().enumerate().filter(|(lba, _)| !(10..14).contains(lba));
            let taken = || read.iter().enumerate().filter(|(lba, _)| (10..14).contains(lba));
            let new = rest().all(is(5000)) && taken().all(|one| is(5000)(one) || is(9000)(one));
            let old = rest().all(is(1000)) && taken().all(is(1000));
            assert!(new || (cut && old), "cut at {at}, seed {seed}: {read:?}");
            (whole, gone) = (whole + u64::from(cut && new), gone + u64::from(old));
        }
        if !cut {
            break;
        }
    }
    assert!(whole > 0 && gone > 0, "{whole} {gone}");
}

/// Chance hardly ever keeps all of the data and one record of two: here the second one is taken
/// away.
#[test]
fn atomic_write_of_which_a_later_record_is_lost_is_not_there_at_all() {
    let (device, volume) = fresh(16384);
    let lun = file(&volume, 6000);
    write(&volume, lun, 0, 256, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let mut blocks = (0..256).map(|lba| (Lba(lba), block(5000 + lba))).collect::<Vec<_>>().into_iter();
    volume.write_atomic(None, lun, &mut blocks).expect("there is room");
    for lba in 0..FULL_RECORD {
        volume.punch(lun, Lba(1000 + lba), 1).expect("it is punched");
    }
    // It replaces some of its blocks, and is in the second record.
    write(&volume, lun, 10, 4, 9000).expect("there is room");
    volume.flush().expect("it flushes");
    assert!(volume.status().log_used > 32, "{} blocks of log", volume.status().log_used);
    let second = (volume.commit.lock().superblock.layout.log_start + 32) * 4096;
    drop(volume);
    device.write_from(second, &[0; 4096]).expect("it is gone");
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 256), (1000..1256).collect::<Vec<_>>(), "nothing of it is left");
    assert_sound(&volume);
}

/// There is no other writer: the write is torn because its own entries are in two records.
#[test]
fn atomic_write_that_stands_in_two_records_is_not_there_at_all_when_the_later_one_is_lost() {
    let (device, volume) = fresh(16384);
    let lun = file(&volume, 6000);
    write(&volume, lun, 0, 256, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    for lba in 0..FULL_RECORD - 100 {
        volume.punch(lun, Lba(1000 + lba), 1).expect("it is punched");
    }
    let mut blocks = (0..256).map(|lba| (Lba(lba), block(5000 + lba))).collect::<Vec<_>>().into_iter();
    volume.write_atomic(None, lun, &mut blocks).expect("there is room");
    volume.flush().expect("it flushes");
    let second = (volume.commit.lock().superblock.layout.log_start + 32) * 4096;
    drop(volume);
    assert_eq!(read(&open(&device), lun, 0, 256), (5000..5256).collect::<Vec<_>>());
    device.write_from(second, &[0; 4096]).expect("it is gone");
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 256), (1000..1256).collect::<Vec<_>>(), "nothing of it is left");
    assert_sound(&volume);
}

#[test]
fn longest_atomic_write_has_256_blocks() {
    let (_, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    let mut blocks = (0..257).map(|lba| (Lba(lba), block(lba))).collect::<Vec<_>>().into_iter();
    assert!(matches!(volume.write_atomic(None, lun, &mut blocks), Err(VolumeError::Refused(_))));
    assert_eq!(read(&volume, lun, 0, 257), [0; 257]);
}

#[test]
fn flush_through_a_full_log_commits_instead() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    // No consistency points run: the log of 256 blocks fills.
    for round in 0..600 {
        write(&volume, lun, round % 1000, 1, round << 20).expect("there is room");
        volume.flush().expect("it flushes");
    }
    assert!(volume.status().consistency_points > 1, "a full log asks for a consistency point");
    drop(volume);
    let volume = open(&device);
    for round in [0, 255, 256, 300, 599] {
        assert_eq!(read(&volume, lun, round, 1), [(round << 20) + round]);
    }
    assert_sound(&volume);
}

/// A flush that finds no room in the log requests a consistency point. Before that has committed,
/// the record of another caller's flush may fit, and it covers earlier changes.
#[test]
fn what_found_no_room_in_the_log_is_in_the_record_of_the_next_flush() {
    for is_frozen in [false, true] {
        let (device, volume) = fresh(4096);
        let lun = file(&volume, 1000);
        write(&volume, lun, 0, 100, 7).expect("there is room");
        volume.consistency_point().expect("it commits");
        volume.punch(lun, Lba(10), 5).expect("it is punched");
        {
            let mut state = volume.state.lock();
            let generation = state.open.generation;
            let due = state.open.take_unlogged(u64::MAX);
            assert_eq!(due.len(), 1);
            if is_frozen {
                let next = Overlay::new(Generation(generation.0 + 1));
                let frozen = std::mem::replace(&mut state.open, next);
                state.frozen = Some(Frozen::Settled(Arc::new(frozen)));
            }
            state.put_back_unlogged(generation, due);
        }
        volume.punch(lun, Lba(20), 5).expect("it is punched");
        volume.flush().expect("it flushes");
        drop(volume);
        let volume = open(&device);
        let expected: Vec<u64> =
            (0..30).map(|lba| if matches!(lba, 10..15 | 20..25) { 0 } else { lba + 7 }).collect();
        assert_eq!(read(&volume, lun, 0, 30), expected, "frozen: {is_frozen}");
        assert_sound(&volume);
    }
}

#[test]
fn log_that_names_a_block_in_use_stops_the_volume_and_not_the_program() {
    let written = |lun, vbn, checksum| LogEntry::Write { file: lun, lba: Lba(50), vbn, checksum };
    let punched = |lun| LogEntry::Hole { file: lun, lba: Lba(50), count: 1 };
    // A block that a log released twice would be freed with the next consistency point.
    for gives_up in [false, true] {
        for beyond in [false, true] {
            let (device, volume) = fresh(1024);
            let lun = file(&volume, 100);
            write(&volume, lun, 0, 10, 100).expect("there is room");
            volume.consistency_point().expect("it commits");
            let in_use =
                volume.image(None).expect("an image").inode(lun).expect("it exists").tree.pointer.vbn;
            volume.close().expect("it closes");
            let mut bytes = [0; 4096];
            device.read_into(0, &mut bytes).expect("memory can be read");
            let superblock = Superblock::parse(&bytes, SUPERBLOCK_A).expect("the volume is whole");
            device.read_into(in_use_at(&superblock, in_use), &mut bytes).expect("memory can be read");
            // Every checksum is right, and yet no volume writes this.
            let named = if beyond { cairn_base::Vbn(5000) } else { in_use };
            let mut entries = vec![written(lun, named, Checksum::of(&bytes))];
            entries.extend(gives_up.then(|| punched(lun)));
            put_record(&*device, &superblock, entries);

            let volume = open(&device);
            let refused = volume.consistency_point();
            let is_it = matches!(refused, Err(VolumeError::MapContradicts { vbn }) if vbn == named);
            assert!(is_it, "{gives_up}, {beyond}: {refused:?}");
            assert!(matches!(write(&volume, lun, 0, 1, 1), Err(VolumeError::Latched(_))));
            assert_eq!(read(&volume, lun, 3, 1), [103], "what was committed is still served");
            volume.check(&mut |_| {}).expect("checking is possible");
        }
    }
}

#[test]
fn block_that_the_log_names_twice_at_one_place_is_there_once() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.close().expect("it closes");
    let mut bytes = [0; 4096];
    device.read_into(0, &mut bytes).expect("memory can be read");
    let superblock = Superblock::parse(&bytes, SUPERBLOCK_A).expect("the volume is whole");
    let free = cairn_base::Vbn(900);
    let content = [7; 4096];
    device.write_from(in_use_at(&superblock, free), &content).expect("memory takes writes");
    let entry = LogEntry::Write { file: lun, lba: Lba(50), vbn: free, checksum: Checksum::of(&content) };
    put_record(&*device, &superblock, vec![entry, entry]);

    let volume = open(&device);
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    for lba in 0..100 {
        write(&volume, lun, 10 + lba % 40, 1, lba).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
}

/// A file was written to and then cut off, and the record of the cut was lost.
#[test]
fn block_that_the_log_has_past_the_end_of_its_file_is_given_up_again() {
    let (device, volume) = fresh(1024);
    let id = volume.next_file().expect("it is open");
    let mut made = Change::new();
    made.put(node(id, 60, false));
    for lba in 0..30 {
        made.write(id, Lba(lba), block(100 + lba));
    }
    volume.change(made, false).expect("there is room");
    volume.close().expect("it closes");
    let mut bytes = [0; 4096];
    device.read_into(0, &mut bytes).expect("memory can be read");
    let superblock = Superblock::parse(&bytes, SUPERBLOCK_A).expect("the volume is whole");
    let free = cairn_base::Vbn(900);
    let content = [7; 4096];
    device.write_from(in_use_at(&superblock, free), &content).expect("memory takes writes");
    let written = LogEntry::Write { file: id, lba: Lba(50), vbn: free, checksum: Checksum::of(&content) };
    put_record(&*device, &superblock, vec![written, LogEntry::Inode(node(id, 20, false))]);

    let volume = open(&device);
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.inode(id).expect("it is there").tree.length, 20);
    assert_eq!(read(&volume, id, 15, 5), (115..120).collect::<Vec<_>>());
    assert_sound(&volume);
    let mut longer = Change::new();
    longer.put(node(id, 60, false));
    volume.change(longer, false).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, id, 20, 40), [0; 40], "nothing of what was cut off comes back");
    volume.state.lock().settle_releases();
    assert!(!volume.state.lock().used.get(free), "its place is free");
    let used = volume.status().used;
    drop(volume);
    assert_eq!(open(&device).status().used, used);
}

/// Puts a record of the next generation where replay looks for the first.
fn put_record(device: &dyn Device, superblock: &Superblock, entries: Vec<LogEntry>) {
    put_nth(device, superblock, (0, 1, superblock.log_tail.sequence), entries);
}

/// Puts the `nth` record of one block each after the tail. It is that many generations ahead, and
/// states how far the log was durable.
fn put_nth(
    device: &dyn Device,
    superblock: &Superblock,
    (nth, ahead, durable_through): (u64, u64, u64),
    entries: Vec<LogEntry>,
) {
    let header = LogRecordHeader {
        sequence: superblock.log_tail.sequence + nth,
        generation: Generation(superblock.root.generation.0 + ahead),
        durable_through,
        entries: entries.len() as u32,
        continues: false,
    };
    let record = LogRecord { header, entries }.to_bytes(superblock.volume);
    let at = superblock.layout.log_start + superblock.log_tail.position + nth;
    device.write_from(at * 4096, &record).expect("memory takes writes");
}

fn in_use_at(superblock: &Superblock, vbn: cairn_base::Vbn) -> u64 {
    (superblock.layout.segments[0].device_block + vbn.0) * 4096
}

#[test]
fn records_of_several_blocks_come_back_wherever_in_the_ring_they_stand() {
    let blocks = 2048;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    let lun = file(&volume, 2000);
    let layout = volume.commit.lock().superblock.layout.clone();
    let area = layout.log_start * 4096..(layout.log_start + layout.log_blocks) * 4096;
    let mut rng = Rng::new(9);
    let mut content = vec![0; 600];
    let (mut several, mut rounds, mut started_over) = (0, 0, 0);
    let mut last = 0;
    device.take_log();
    // As often around the ring as needed to reach the end in many ways.
    while started_over < 6 {
        rounds += 1;
        let count = [1, 3, 150, 250, 400][rng.below(5) as usize];
        let step = 1 + rng.below(600 / count);
        for lba in (0..600).step_by(step as usize).take(count as usize) {
            let salt = rounds * 1000;
            write(&volume, lun, lba, 1, salt).expect("there is room");
            content[lba as usize] = salt + lba;
        }
        volume.flush().expect("it flushes");
        for operation in device.take_log().into_iter().filter(|one| area.contains(&one.offset)) {
            assert!(operation.offset + operation.length <= area.end, "round {rounds}: a record wraps");
            several += u64::from(operation.length > 4096);
            started_over += u64::from(operation.offset < last);
            last = operation.offset;
        }
        if rng.one_in(3) {
            let cut = open(&Arc::new(device.power_cycle_as(cairn_device::Fate::Lost, &mut rng)));
            assert_eq!(read(&cut, lun, 0, 600), content, "round {rounds}");
        }
        let status = volume.status();
        if rng.one_in(20) || status.log_used * 2 > status.log_blocks {
            volume.consistency_point().expect("it commits");
            assert_eq!(volume.status().log_used, 0, "what is committed is not in the log any more");
        }
    }
    assert!(several > 30, "{several} records of several blocks in {rounds} rounds");
    assert_sound(&volume);
}

#[test]
fn log_that_is_more_than_half_full_asks_for_a_consistency_point() {
    let (_device, volume) = fresh(2048);
    let lun = file(&volume, 100);
    // Each time from the place that it has reached.
    for turn in 0..3 {
        let before = volume.status();
        let mut flushes = 0;
        while volume.status().log_used * 2 <= before.log_blocks {
            volume.background(std::time::Duration::ZERO).expect("it goes on");
            let points = volume.status().consistency_points;
            assert_eq!(points, before.consistency_points, "turn {turn}, after {flushes} flushes");
            write(&volume, lun, flushes % 100, 1, flushes).expect("there is room");
            volume.flush().expect("it flushes");
            flushes += 1;
        }
        let blocks = before.log_blocks;
        assert!(flushes * 2 >= blocks, "{flushes} flushes took half of {blocks} blocks");
        volume.background(std::time::Duration::ZERO).expect("it goes on");
        let after = volume.status();
        assert_eq!((after.consistency_points, after.log_used), (before.consistency_points + 1, 0));
    }
}

#[test]
fn full_log_loses_nothing_wherever_in_the_ring_it_begins_and_ends() {
    // Where it begins, blocks that are in use, and the entries besides one of the record that comes
    // then: it fills the log to the brim, does not fit before the end of the ring, or not before
    // the tail.
    let cases = [(0, 255, 0), (30, 255, 0), (8, 246, 900), (5, 249, 400), (2, 252, 100), (100, 250, 900)];
    for (begin, used, entries) in cases {
        let note = format!("{entries} entries at {used} behind {begin}");
        let (device, volume) = fresh(2048);
        let lun = file(&volume, 2000);
        let mut content = vec![0; 50];
        let mut rounds = 0;
        let mut flush = |volume: &Arc<Volume>, entries: u64| {
            // Holes in holes are entries without data.
            (0..entries).for_each(|lba| volume.punch(lun, Lba(100 + lba), 1).expect("it is punched"));
            rounds += 1;
            let lba = rounds % 50;
            write(volume, lun, lba, 1, rounds * 1000).expect("there is room");
            content[lba as usize] = rounds * 1000 + lba;
            volume.flush().expect("it flushes");
            let status = volume.status();
            assert!(status.log_used < status.log_blocks, "{note}: one block stays free");
            assert!(!status.log_left, "{note}: a log that is full has not failed");
            content.clone()
        };
        (0..begin).for_each(|_| drop(flush(&volume, 0)));
        volume.consistency_point().expect("it commits");
        (0..used).for_each(|_| drop(flush(&volume, 0)));
        assert_eq!(volume.status().log_used, used, "{note}");
        let content = flush(&volume, entries);
        drop(volume);
        let volume = open(&device);
        assert_eq!(read(&volume, lun, 0, 50), content, "{note}");
        // The newly opened log continues where the other one ended.
        flush(&volume, entries);
        let content = flush(&volume, 0);
        drop(volume);
        let volume = open(&device);
        assert_eq!(read(&volume, lun, 0, 50), content, "{note}");
        assert_sound(&volume);
    }
}

#[test]
fn opened_log_goes_on_where_it_ended() {
    let (device, mut volume) = fresh(1024);
    let lun = file(&volume, 100);
    let mut content = vec![0; 100];
    for round in 1..40 {
        let lba = round % 100;
        write(&volume, lun, lba, 1, round * 1000).expect("there is room");
        content[lba as usize] = round * 1000 + lba;
        volume.flush().expect("it flushes");
        if round % 7 == 0 {
            volume.consistency_point().expect("it commits");
        }
        if round % 3 == 0 {
            drop(volume);
            volume = open(&device);
        }
        assert_eq!(read(&volume, lun, 0, 100), content, "round {round}");
    }
    assert_sound(&volume);
}

#[test]
fn damage_of_any_record_but_the_last_is_told() {
    const RECORDS: u64 = 4;
    for hurt in 0..RECORDS {
        let (device, volume) = fresh(1024);
        let lun = file(&volume, 100);
        for lba in 0..RECORDS {
            write(&volume, lun, lba, 1, 1000).expect("there is room");
            volume.flush().expect("it flushes");
        }
        let superblock = volume.commit.lock().superblock.clone();
        drop(volume);
        let at = superblock.layout.log_start + superblock.log_tail.position + hurt;
        device.write_from(at * 4096, &[0xee; 4096]).expect("it is there");
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        match Volume::open(device.clone(), OpenOptions { cache_bytes: 1 << 20, clock }) {
            Err(VolumeError::LogDamaged { sequence }) => {
                assert_eq!(sequence, superblock.log_tail.sequence + hurt);
                assert!(hurt + 1 < RECORDS, "nothing says that the last one was ever there");
            }
            Ok(volume) => {
                assert_eq!(hurt + 1, RECORDS, "what record {hurt} had is lost, and nobody was told");
                assert_eq!(read(&volume, lun, 0, RECORDS), [1000, 1001, 1002, 0]);
            }
            Err(other) => panic!("record {hurt}: {other}"),
        }
    }
}

#[test]
fn place_of_the_log_that_cannot_be_read_costs_nothing_where_no_record_is_or_may_be() {
    const RECORDS: u64 = 4;
    let whole = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*whole, 1024);
    let volume = open(&whole);
    let lun = file(&volume, 100);
    for lba in 0..RECORDS {
        write(&volume, lun, lba, 1, 1000).expect("there is room");
        volume.flush().expect("it flushes");
    }
    let superblock = volume.commit.lock().superblock.clone();
    drop(volume);
    let tail = superblock.log_tail.position;
    for position in 0..superblock.layout.log_blocks {
        let device = Arc::new(whole.fork());
        let at = (superblock.layout.log_start + position) * 4096;
        device.fail_reads(at..at + 4096);
        // Another flushed record may follow the last record.
        let is_needed = (tail..=tail + RECORDS).contains(&position);
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let volume = match Volume::open(device.clone(), OpenOptions { cache_bytes: 1 << 20, clock }) {
            Ok(volume) if !is_needed => volume,
            Err(VolumeError::Device(_)) if is_needed => continue,
            other => panic!("block {position} of the log: {:?}", other.map(drop)),
        };
        write(&volume, lun, RECORDS, 1, 1000).expect("there is room");
        volume.flush().expect("it flushes");
        drop(volume);
        if position == tail + RECORDS + 1 {
            // It would be needed now. The opening has written it, and a disk has another place for
            // it then.
            device.heal_reads();
        }
        let volume = open(&device);
        assert_eq!(read(&volume, lun, 0, 6), [1000, 1001, 1002, 1003, 1004, 0]);
        assert_sound(&volume);
    }
}

#[test]
fn what_could_not_be_read_of_the_log_once_never_comes_back() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 1, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    let superblock = volume.commit.lock().superblock.clone();
    drop(volume);
    // The remains of a flush after a power cut, while the device can't be read for a while.
    let hole = LogEntry::Hole { file: lun, lba: Lba(0), count: 1 };
    put_nth(&*device, &superblock, (2, 1, superblock.log_tail.sequence), vec![hole]);
    let at = (superblock.layout.log_start + superblock.log_tail.position + 2) * 4096;
    device.fail_reads(at..at + 4096);
    let volume = open(&device);
    write(&volume, lun, 1, 1, 1000).expect("there is room");
    volume.flush().expect("it flushes, right before it");
    drop(volume);
    device.heal_reads();
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 2), [1000, 1001]);
    assert_sound(&volume);
}

/// A flush interrupted by a power cut after its records: all of them are whole, and a block that
/// the first one names is missing.
#[test]
fn records_of_a_flush_whose_data_is_not_there_never_come_back() {
    let (device, volume) = fresh(8192);
    let lun = file(&volume, 4000);
    write(&volume, lun, 0, 4000, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    write(&volume, lun, 0, 1, 7000).expect("there is room");
    for lba in 1..FULL_RECORD + 100 {
        volume.punch(lun, Lba(lba), 1).expect("it is punched");
    }
    volume.flush().expect("it flushes");
    let superblock = volume.commit.lock().superblock.clone();
    drop(volume);
    let mut bytes = vec![0; 32 * 4096];
    let first = superblock.layout.log_start + superblock.log_tail.position;
    device.read_into(first * 4096, &mut bytes).expect("memory can be read");
    let record = LogRecord::parse(&bytes, superblock.volume).expect("it is whole");
    let Some(LogEntry::Write { vbn, .. }) = record.entries.first() else { panic!("{record:?}") };
    device.write_from(in_use_at(&superblock, *vbn), &[0xee; 4096]).expect("memory takes writes");
    let volume = open(&device);
    let before: Vec<u64> = (1..4000).collect();
    assert_eq!(read(&volume, lun, 0, 3999), before, "nothing of it is there");
    // As long as the first record, so that the second would directly follow it.
    for _ in 0..FULL_RECORD {
        volume.punch(lun, Lba(3999), 1).expect("it is punched");
    }
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 3999), before);
    assert_eq!(read(&volume, lun, 3999, 1), [0], "what was flushed is there");
    assert_sound(&volume);
}

/// A flush beside a consistency point leaves such records after the tail. Blocks that they name may
/// be in use, or hold other content by now.
#[test]
fn records_of_what_is_committed_are_passed_and_what_follows_them_is_there() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let committed = volume.state.lock().committed.clone();
    let inode = volume.inode(lun).expect("it exists");
    let pointer = volume.tree(&committed, lun, inode.tree).pointers(&[Lba(0)]).remove(0).expect("it is read");
    let superblock = volume.commit.lock().superblock.clone();
    drop((committed, volume));
    let durable = superblock.log_tail.sequence - 1;
    let written = |vbn, checksum| LogEntry::Write { file: lun, lba: Lba(0), vbn, checksum };
    let given_up = written(cairn_base::Vbn(900), Checksum::of(&[1; 4096]));
    let entries = vec![given_up, written(pointer.vbn, pointer.checksum)];
    put_nth(&*device, &superblock, (0, 0, durable), entries);
    let hole = LogEntry::Hole { file: lun, lba: Lba(5), count: 1 };
    put_nth(&*device, &superblock, (1, 1, durable), vec![hole]);
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 7), [100, 101, 102, 103, 104, 0, 106]);
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, 7), [100, 101, 102, 103, 104, 0, 106]);
    assert_sound(&volume);
}
