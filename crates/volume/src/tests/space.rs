//! Full volumes: operations that must still work there.

use std::time::Duration;

use cairn_base::{SnapshotId, Vbn};
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{FANOUT, INODES_PER_BLOCK};

use super::*;
use crate::known_files::ROOT_DIRECTORY;
use crate::limits::RESERVE_MIN;
use crate::memory::overlay::Seen;
use crate::past::since_map::SinceMap;

/// Writes until the volume is full; returns how many blocks found room.
fn fill(volume: &Arc<Volume>, lun: FileId, from: u64) -> u64 {
    let mut at = from;
    loop {
        match write(volume, lun, at, 8, 1 << 32) {
            Ok(()) => at += 8,
            Err(VolumeError::NoSpace) => return at - from,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn full_volume_still_deletes_punches_and_commits() {
    let (device, volume) = fresh(2048);
    let lun = file(&volume, 1 << 20);
    let taken = fill(&volume, lun, 0);
    assert!(taken > 1500, "{taken} of 2048 blocks could be used");
    volume.flush().expect("it flushes");
    volume.consistency_point().expect("it commits");
    let snapshot = volume.create_snapshot("full").expect("a snapshot takes no block");
    assert!(matches!(write(&volume, lun, 0, 64, 7), Err(VolumeError::NoSpace)), "overwriting needs room");
    volume.punch(lun, Lba(0), taken / 2).expect("a hole needs next to nothing");
    volume.consistency_point().expect("it commits");
    assert!(matches!(write(&volume, lun, 0, 64, 7), Err(VolumeError::NoSpace)), "the snapshot has it all");
    volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    write(&volume, lun, 0, 64, 7).expect("now there is room");
    volume.flush().expect("it flushes");
    assert_sound(&volume);
    drop(volume);
    let volume = open(&device);
    assert_eq!(read(&volume, lun, 0, 1), [7]);
    assert_sound(&volume);
}

#[test]
fn files_whose_inodes_lie_far_apart_never_overrun_the_space_for_nodes() {
    for free in [300, 500, 700, 1000, 1300, 1500, 1700] {
        let (_device, volume) = fresh(8192);
        let make = |_| {
            let file = volume.compound().create(FileKind::Lun, 4096).expect("there is room for a file");
            // Each has a node of the inode file of its own, as if there were that many others
            // between them.
            volume.state.lock().next_file += FANOUT * INODES_PER_BLOCK;
            file
        };
        let files: Vec<FileId> = (0..400).map(make).collect();
        volume.consistency_point().expect("it commits");
        take_all_but(&volume, free);
        let mut taken = Vec::new();
        for file in &files {
            match write(&volume, *file, 0, 1, free) {
                Ok(()) => taken.push(*file),
                Err(VolumeError::NoSpace) => break,
                Err(error) => panic!("{free} free blocks, after {}: {error}", taken.len()),
            }
        }
        let count = taken.len() as u64;
        volume.consistency_point().unwrap_or_else(|error| panic!("{count} taken, {free} free: {error}"));
        assert!(taken.iter().all(|file| read(&volume, *file, 0, 1) == [free]));
        assert!(count == 400 || count * 5 + 250 > free, "only {count} were taken with {free} blocks free");
        assert_sound(&volume);
    }
}

#[test]
fn scattered_writes_to_a_huge_file_never_overrun_the_space_for_nodes() {
    let (_device, volume) = fresh(2048);
    // Four levels: each of these blocks needs a path of its own.
    let length = 1 << 27;
    let lun = file(&volume, length);
    let mut written = Vec::new();
    for number in 0..4000u64 {
        let lba = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % length;
        match write(&volume, lun, lba, 1, 1) {
            Ok(()) => written.push(lba),
            Err(VolumeError::NoSpace) => break,
            Err(error) => panic!("after {number}: {error}"),
        }
    }
    volume.consistency_point().expect("what was taken can be committed");
    assert!(volume.status().latched.is_none());
    assert!(written.len() > 300, "{} blocks found room", written.len());
    for lba in &written {
        assert_eq!(read(&volume, lun, *lba, 1), [lba + 1]);
    }
    assert_sound(&volume);
}

#[test]
fn write_of_many_scattered_blocks_leaves_the_room_that_was_promised() {
    for blocks in [8, 16, 32, 64, 100] {
        let (_device, volume) = fresh(2048);
        let length = 1 << 27;
        let lun = file(&volume, length);
        let mut written = 0;
        loop {
            let place = |number: u64| Lba(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % length);
            let mut places: Vec<Lba> = (written..written + blocks).map(place).collect();
            places.sort();
            match volume.write(lun, &mut places.iter().map(|lba| (*lba, block(lba.0)))) {
                Ok(()) => written += blocks,
                Err(VolumeError::NoSpace) => break,
                Err(error) => panic!("after {written}: {error}"),
            }
            let state = volume.state.lock();
            let (free, needed) = (state.used.free(), state.promised(0) + state.reserve());
            // Some of them may have shared a node.
            assert!(free + blocks / 2 >= needed, "{written} by {blocks}: {free} are free, {needed} needed");
        }
        assert!(written >= 300 - blocks, "{written} blocks found room");
        volume.consistency_point().expect("what was taken can be committed");
        assert_sound(&volume);
    }
}

#[test]
fn blocks_cost_each_node_above_them_once_in_whatever_order_they_come() {
    let mut rng = cairn_base::Rng::new(1);
    for round in 0..200 {
        let levels = rng.below(4) as u8;
        let (count, most) = (rng.below(40), 1 << (4 + rng.below(20)));
        let blocks: Vec<u64> = (0..count).map(|_| rng.below(most)).collect();
        let nodes = |level: u32| blocks.iter().map(move |lba| lba / cairn_format::FANOUT.pow(level));
        let expected: usize = (0..=u32::from(levels))
            .map(|level| nodes(level).collect::<std::collections::BTreeSet<u64>>().len())
            .sum();
        let cost = crate::memory::state::cost_in(levels, blocks.iter().copied());
        assert_eq!(cost, expected as u64, "round {round}: {blocks:?}");
    }
}

#[test]
fn files_come_and_go_in_a_full_volume_with_snapshots() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 1 << 20);
    let small: Vec<FileId> = (0..40).map(|_| file(&volume, 10)).collect();
    fill(&volume, lun, 0);
    volume.consistency_point().expect("it commits");
    // A snapshot after each removal keeps all the released blocks.
    for (number, id) in small.iter().enumerate() {
        match volume.compound().remove(*id) {
            Ok(()) | Err(VolumeError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
        match volume.background(std::time::Duration::ZERO) {
            Ok(()) | Err(VolumeError::NoSpace) => {}
            Err(error) => panic!("after {number} removals: {error}"),
        }
        volume.create_snapshot(&format!("s{number}")).expect("a snapshot is possible in a full volume");
    }
    assert!(volume.status().latched.is_none());
    assert_sound(&volume);
    let ids: Vec<_> = volume.snapshots().into_iter().map(|snapshot| snapshot.id).collect();
    volume.delete_snapshots(&ids).expect("they are deleted");
    volume.punch(lun, Lba(0), 1 << 20).expect("it is punched");
    volume.consistency_point().expect("it commits");
    write(&volume, lun, 0, 64, 7).expect("now there is room");
    assert_sound(&volume);
}

#[test]
fn grown_volume_uses_its_new_space() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 1 << 20);
    let taken = fill(&volume, lun, 0);
    volume.grow(1800).expect("the device is long enough");
    let more = fill(&volume, lun, taken);
    assert!(more > 700, "{more} blocks of 776 new ones");
    assert_eq!(volume.status().blocks, 1800);
    volume.close().expect("it closes");
    let volume = open(&device);
    assert_eq!(read(&volume, lun, taken, 1), [(1 << 32) + taken]);
    assert_sound(&volume);
}

#[test]
fn blocks_that_are_read_after_a_fill_come_into_the_cache() {
    let (_device, volume) = fresh(8192);
    let filled = file(&volume, 4000);
    let wanted = file(&volume, 60);
    write(&volume, wanted, 0, 60, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    for first in (0..4000).step_by(100) {
        write(&volume, filled, first, 100, 1).expect("there is room");
        volume.flush().expect("it flushes");
    }
    volume.consistency_point().expect("it commits");
    // The cache has room for 80 blocks.
    let ready = |volume: &Arc<Volume>| {
        let mut reads = [BlockRead::new(Lba(0), 60)];
        volume.read(wanted, &mut reads, false);
        reads[0].outcome.is_some()
    };
    assert!(!ready(&volume), "the fill took the cache");
    for _ in 0..3 {
        read(&volume, wanted, 0, 60);
    }
    assert!(ready(&volume), "what is read again and again stays");
}

#[test]
fn what_passes_is_not_kept_and_pushes_nothing_out() {
    let (device, volume) = fresh(8192);
    let (kept, passing) = (file(&volume, 40), file(&volume, 4000));
    write(&volume, kept, 0, 40, 1).expect("there is room");
    write(&volume, passing, 0, 4000, 2).expect("there is room");
    volume.close().expect("it closes");
    let volume = open(&device);
    let ready = |file: FileId| {
        let mut reads = [BlockRead::new(Lba(0), 40)];
        volume.read(file, &mut reads, false);
        reads[0].outcome.is_some()
    };
    read(&volume, kept, 0, 40);
    for first in (0..4000).step_by(100) {
        let mut reads = [BlockRead { passing: true, ..BlockRead::new(Lba(first), 100) }];
        volume.read(passing, &mut reads, true);
        let [read] = reads;
        let data = read.outcome.expect("it is served").expect("it is read");
        assert_eq!(data.len(), 100 * 4096);
        assert_eq!(data.slice(99 * 4096, 8).to_vec(), (2 + first + 99).to_le_bytes());
    }
    assert!(!ready(passing), "nobody keeps it here");
    assert!(ready(kept), "the cache has room for 80 blocks");
}

#[test]
fn nodes_that_every_generation_changes_stay_in_memory() {
    let (_device, volume) = fresh(16384);
    // Some 25 leaves with their parent; the cache has room for twice as many.
    let changed = file(&volume, 25 * cairn_format::FANOUT);
    for generation in 0..20 {
        volume.inode(changed).expect("it is there");
        for leaf in 0..25 {
            let first = Lba(leaf * cairn_format::FANOUT + generation);
            let ready = volume.write_ready(changed, vec![(first, block(generation))]);
            assert!(ready.is_some(), "leaf {leaf} has to be read again in generation {generation}");
        }
        volume.consistency_point().expect("it commits");
    }
}

/// Parts of the space that a block of the active map describes each.
const REGIONS: u64 = 300;

/// A volume with a block of a LUN in each of its regions, and an earlier snapshot without them; no
/// block is free. It has the since maps of that many relationships.
fn wide(relationships: u64) -> (Arc<Volume>, FileId, SnapshotId) {
    let (_device, volume) = fresh((REGIONS + 1) * BITS_PER_MAP_BLOCK);
    let lun = file(&volume, REGIONS);
    for number in 1..=relationships {
        volume.create_snapshot_since(&format!("base{number}"), number).expect("there is room");
    }
    let before = volume.create_snapshot("before").expect("it is made").id;
    for region in 0..REGIONS {
        write(&volume, lun, region, 1, 1).expect("there is room");
        volume.place(1, u64::MAX).expect("it is written");
        let mut state = volume.state.lock();
        let Seen::Pointer(pointer) = state.changes_of(lun).see(region) else {
            panic!("the block has its place");
        };
        assert_eq!(pointer.vbn.0 / BITS_PER_MAP_BLOCK, region);
        state.used.fill(region, 1);
    }
    volume.consistency_point().expect("it commits");
    volume.create_snapshot("after").expect("it is made");
    volume.state.lock().used.fill(REGIONS, 1);
    (volume, lun, before)
}

/// Leaves that many blocks free, as many in each region as in any other; of those from `first` on
/// in each, which are unused.
fn leave_free(volume: &Arc<Volume>, first: u64, blocks: u64) {
    let mut state = volume.state.lock();
    let mut more =
        (0..).flat_map(|at| (0..REGIONS).map(move |region| region * BITS_PER_MAP_BLOCK + first + at));
    while state.used.free() < blocks {
        let vbn = Vbn(more.next().expect("there are more"));
        if state.used.get(vbn) {
            state.used.clear(vbn);
        }
    }
}

#[test]
fn full_volume_has_room_for_a_consistency_point_that_changes_every_block_of_its_maps() {
    for relationships in 0..3 {
        let (volume, lun, _) = wide(relationships);
        let edge = {
            let state = volume.state.lock();
            state.promised(0) + state.reserve()
        };
        leave_free(&volume, 20_000, edge);
        assert!(!volume.state.lock().has_room(1), "it is full");
        volume.punch(lun, Lba(0), REGIONS).expect("a hole needs next to nothing");
        let done = volume.consistency_point();
        assert!(done.is_ok(), "{relationships} since maps: {:?}", done.err());
        let took = edge - volume.state.lock().used.free();
        assert!(took >= REGIONS && volume.status().latched.is_none(), "{took} blocks were taken");
        assert_eq!(read(&volume, lun, 0, REGIONS), vec![0; REGIONS as usize]);
        // The reserve is not much more than the largest need: once the map, and each since map
        // twice.
        let most = (1 + 2 * relationships) * (REGIONS + REGIONS / 16) + 256;
        assert!(volume.status().reserve < most, "{} of {most}", volume.status().reserve);
        leave_free(&volume, 25_000, 8 * edge);
        assert_sound(&volume);
    }
}

/// Leaves that many blocks free, wherever they are.
fn leave(state: &mut crate::memory::state::State, blocks: u64) {
    let regions = state.used.blocks() / BITS_PER_MAP_BLOCK;
    state.used.fill(0, regions);
    (1..=blocks).for_each(|vbn| state.used.clear(Vbn(vbn)));
}

#[test]
fn reserve_is_what_the_maps_of_a_volume_of_any_size_take_and_little_more() {
    let (_device, volume) = fresh(1024);
    let mut guard = volume.state.lock();
    let state = &mut *guard;
    for regions in [1, 10, 63, 64, 65, 126, 127, 140] {
        state.used.grow(regions * BITS_PER_MAP_BLOCK);
        let (mut map, mut level) = (regions, regions);
        while level > 1 {
            level = level.div_ceil(cairn_format::FANOUT);
            map += level;
        }
        let most = regions + regions / 32 + 8;
        for relationships in 0..3 {
            let maps = 1 + 2 * relationships;
            let least = RESERVE_MIN + maps * map;
            let reserve = state.reserve();
            let range = least..=RESERVE_MIN + maps * most;
            assert!(range.contains(&reserve), "{regions} regions: {reserve} of {range:?}");
            let map = |kind, file| SinceMap { kind, relationship: relationships + 1, file: FileId(file) };
            state.since_maps.push(map(FileKind::SinceInFlight, 100 + relationships));
            assert_eq!(state.reserve(), reserve, "what is in flight grows no more");
            state.since_maps.push(map(FileKind::SinceAccumulating, 200 + relationships));
        }
        state.since_maps.clear();
        // Without since maps, the part above the minimum is for one map.
        let map = state.reserve() - RESERVE_MIN;
        let promised = state.promised(0);
        for more in 0..4 {
            leave(state, promised + map * (1 + more) + RESERVE_MIN / 4);
            assert!(!state.has_room_for_maps(more), "{regions} regions: deletions need some of it too");
            leave(state, promised + map * (1 + more) + RESERVE_MIN);
            assert!(state.has_room_for_maps(more), "{regions} regions: {more} more maps");
        }
        let (promised, reserve) = (state.promised(4), state.reserve());
        leave(state, promised + reserve - RESERVE_MIN / 2);
        assert!(!state.has_room(1) && state.has_room_to_free(0), "what frees space may use most of it");
        leave(state, promised + reserve - RESERVE_MIN);
        assert!(!state.has_room_to_free(0), "and not all");
    }
}

/// An operation that writes whole maps succeeds, or fails for lack of space: it is never half done.
#[test]
fn rollback_and_snapshots_for_mirrors_find_room_for_all_of_their_maps_or_are_refused() {
    let (mut done, mut refused) = (0, 0);
    for (number, free) in (0..2600).step_by(90).enumerate() {
        let (volume, lun, before) = wide(1 + number as u64 % 2);
        leave_free(&volume, 20_000, free);
        let outcome = match number % 3 {
            0 => volume.rollback(before).map(drop),
            1 => volume.create_snapshot_since("next", 1).map(drop),
            _ => volume.create_snapshot_since("other", 9).map(drop),
        };
        let note = format!("case {number}, {free} blocks free");
        let is_back = match &outcome {
            Ok(()) => {
                done += 1;
                number % 3 == 0
            }
            Err(VolumeError::NoSpace) => {
                refused += 1;
                false
            }
            Err(error) => panic!("{note}: {error}"),
        };
        assert!(volume.status().latched.is_none(), "{note}");
        let shown: Vec<u64> = (0..REGIONS).map(|lba| if is_back { 0 } else { lba + 1 }).collect();
        assert_eq!(read(&volume, lun, 0, REGIONS), shown, "{note}");
        // It resumes once there is room.
        leave_free(&volume, 25_000, 6000);
        write(&volume, lun, 0, 1, 7).expect("there is room");
        volume.consistency_point().expect("it commits");
        assert_eq!(read(&volume, lun, 0, 1), [7], "{note}");
        assert_sound(&volume);
    }
    assert!(done > 5 && refused > 5, "{done} {refused}");
}

#[test]
fn block_of_a_directory_is_taken_from_the_reserve_or_there_is_no_space_for_it() {
    let (device, volume) = fresh(2048);
    let length = 1 << 27;
    let directory = volume.compound().create(FileKind::Directory, length * 4096).expect("there is room");
    assert_eq!(directory, ROOT_DIRECTORY);
    let lun = file(&volume, 1 << 20);
    let mut at = fill(&volume, lun, 0);
    volume.consistency_point().expect("it commits");
    while write(&volume, lun, at, 1, 1).is_ok() {
        at += 1;
    }
    // Overwritten blocks stay in use from here on.
    volume.create_snapshot("full").expect("a snapshot takes no block");
    assert!(matches!(write(&volume, lun, 0, 1, 7), Err(VolumeError::NoSpace)), "it is full");
    let mut taken = Vec::new();
    let refused = loop {
        // Each has a path of its own.
        let lba = (taken.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % length;
        match volume.compound().write(directory, Lba(lba), block(lba + 1)) {
            Ok(()) => taken.push(lba),
            Err(VolumeError::NoSpace) => break lba,
            Err(error) => panic!("after {}: {error}", taken.len()),
        }
        if taken.len() % 3 == 0 {
            volume.consistency_point().expect("what was taken can be committed");
        }
    };
    volume.consistency_point().expect("what was taken can be committed");
    assert!(taken.len() >= 4, "the reserve has room for {}", taken.len());
    assert!(volume.status().latched.is_none());
    // It is used up, and not even half a block of it is free.
    let free = volume.state.lock().used.free();
    assert!(free < volume.status().reserve, "{free} are free");
    assert!(!taken.contains(&refused));
    assert_eq!(read(&volume, directory, refused, 1), [0]);
    drop(volume);
    let volume = open(&device);
    for lba in &taken {
        assert_eq!(read(&volume, directory, *lba, 1), [lba + 1]);
    }
    assert_sound(&volume);
}

/// A full volume with a long file that has two blocks here and two there, with a path for each
/// pair; returns where the pairs are.
fn full_of_paths() -> (Arc<Volume>, FileId, Vec<u64>) {
    let (_device, volume) = fresh(2048);
    let length = 1 << 27;
    let lun = file(&volume, length);
    let mut written = Vec::new();
    for _ in 0..3 {
        loop {
            let lba = (written.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % length / 2 * 2;
            match write(&volume, lun, lba, 2, 1) {
                Ok(()) => written.push(lba),
                Err(VolumeError::NoSpace) => break,
                Err(error) => panic!("after {}: {error}", written.len()),
            }
        }
        volume.consistency_point().expect("it commits");
    }
    (volume, lun, written)
}

#[test]
fn hole_in_what_a_snapshot_keeps_is_taken_from_the_reserve_or_there_is_no_space_for_it() {
    let (volume, lun, written) = full_of_paths();
    volume.create_snapshot("full").expect("a snapshot takes no block");
    let mut taken = 0;
    for lba in &written {
        match volume.punch(lun, Lba(*lba), 1) {
            Ok(()) => taken += 1,
            Err(VolumeError::NoSpace) => break,
            Err(error) => panic!("after {taken}: {error}"),
        }
        if taken % 3 == 0 {
            volume.consistency_point().expect("what was taken can be committed");
        }
    }
    volume.consistency_point().expect("what was taken can be committed");
    assert!(4 < taken && taken < written.len(), "{taken} of {}", written.len());
    assert!(volume.status().latched.is_none());
    assert_eq!(read(&volume, lun, written[taken], 1), [written[taken] + 1], "what was refused is there");
    assert_sound(&volume);
}

#[test]
fn full_volume_takes_one_hole_after_the_other_whoever_commits() {
    let (volume, lun, written) = full_of_paths();
    for (number, lba) in written.iter().enumerate() {
        let taken = volume.punch(lun, Lba(*lba), 1);
        assert!(taken.is_ok(), "after {number} holes: {taken:?}");
    }
}

#[test]
fn file_is_made_in_a_full_volume_as_soon_as_nobody_reads_what_was_freed() {
    let (_device, volume) = fresh(2048);
    let lun = file(&volume, 1 << 20);
    let mut at = 0;
    for _ in 0..3 {
        at += fill(&volume, lun, at);
        volume.consistency_point().expect("it commits");
    }
    let make = || volume.compound().create(FileKind::Lun, 4096);
    assert!(matches!(make(), Err(VolumeError::NoSpace)), "it is full");
    let image = volume.image(None).expect("there is a state");
    volume.punch(lun, Lba(0), 500).expect("a hole needs next to nothing");
    volume.consistency_point().expect("it commits");
    assert!(matches!(make(), Err(VolumeError::NoSpace)), "the image shows it all");
    drop(image);
    make().expect("nobody needs what was freed");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
}

#[test]
fn blocks_that_wait_in_memory_are_written_back_before_writers_have_to_wait() {
    type WriteBack = fn(&Arc<Volume>) -> Result<(), VolumeError>;
    let ways: [WriteBack; 2] =
        [|volume| volume.background(Duration::ZERO), |volume| volume.write_back(Duration::ZERO)];
    for write_back in ways {
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, 1000);
        let unplaced = |volume: &Arc<Volume>| volume.state.lock().open.unplaced;
        let half = volume.memory.dirty_blocks / 2;
        (0..half - 1).for_each(|lba| write(&volume, lun, lba, 1, 100).expect("there is room"));
        write_back(&volume).expect("it goes on");
        assert_eq!(unplaced(&volume), half - 1, "a few may become more");
        write(&volume, lun, half - 1, 1, 100).expect("there is room");
        write_back(&volume).expect("it goes on");
        assert_eq!(unplaced(&volume), 0);
        assert_eq!(read(&volume, lun, 0, half), (100..100 + half).collect::<Vec<_>>());
    }
}

#[test]
fn blocks_kept_back_and_blocks_promised_are_none_that_a_volume_calls_free() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    let unused = || volume.status().blocks - volume.status().used;
    assert_eq!(volume.status().free, unused() - volume.status().reserve);
    write(&volume, lun, 0, 10, 1).expect("there is room");
    assert!(volume.status().free <= unused() - volume.status().reserve - 10);
}

#[test]
fn consistency_point_is_due_with_many_changes_in_memory_or_when_half_of_what_is_free_is_spoken_for() {
    // That many changes, and that much more free than twice the promised and reserved blocks.
    let is_due = |changes: u64, more: Option<i64>| {
        let (_device, volume) = fresh(8192);
        let lun = file(&volume, 4000);
        (0..changes).for_each(|lba| write(&volume, lun, lba, 1, 100).expect("there is room"));
        while volume.place(1024, u64::MAX).expect("they are written") > 0 {}
        if let Some(more) = more {
            let mut state = volume.state.lock();
            let left = (2 * (state.promised(0) + state.reserve())).saturating_add_signed(more);
            for vbn in (0..8192).map(Vbn) {
                if state.used.free() > left {
                    state.used.set(vbn);
                }
            }
        }
        let before = volume.status().consistency_points;
        volume.background(Duration::ZERO).expect("it goes on");
        volume.status().consistency_points > before
    };
    let few = 1024;
    assert!(is_due(few + 1, Some(-1)));
    assert!(!is_due(few + 1, Some(0)) && !is_due(few + 1, None), "there is room");
    assert!(!is_due(few, Some(-1)), "there is little to be gained");
    let many = crate::limits::Memory::of(1 << 20).changes_soft;
    assert!(is_due(many, None) && !is_due(many - 1, None));
}

#[test]
fn blocks_that_an_image_kept_back_are_free_soon_after_it_is_closed() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 200, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let image = volume.image(None).expect("it is there");
    write(&volume, lun, 0, 200, 500).expect("there is room");
    volume.consistency_point().expect("it commits");
    let used = volume.status().used;
    volume.background(Duration::ZERO).expect("it goes on");
    assert_eq!(volume.status().used, used, "they are shown");
    drop(image);
    volume.background(Duration::ZERO).expect("it goes on");
    assert!(volume.status().used <= used - 200, "without a change or a consistency point");
    assert_sound(&volume);
}
