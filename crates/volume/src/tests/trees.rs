//! Trees of several heights, and the differences between two.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::Rng;
use cairn_format::{FANOUT, TreeRef};

use super::*;
use crate::read::tree::{BATCH, Tree, difference};

/// The last one is so long that the square of its reach overflows 64 bits.
const LENGTHS: [u64; 6] = [1, 126, 127, 126 * 126 + 1, 126 * 126 * 126 + 5, FANOUT.pow(5)];

#[test]
fn files_of_every_height_keep_their_first_last_and_middle_blocks() {
    let (device, volume) = fresh(4096);
    let mut luns = Vec::new();
    for length in LENGTHS {
        let lun = file(&volume, length);
        for lba in [0, length / 2, length - 1] {
            write(&volume, lun, lba, 1, 77).expect("there is room");
        }
        luns.push((lun, length));
    }
    volume.consistency_point().expect("it commits");
    drop(volume);
    let volume = open(&device);
    for (lun, length) in &luns {
        for lba in [0, length / 2, length - 1] {
            assert_eq!(read(&volume, *lun, lba, 1), [77 + lba], "block {lba} of {length}");
        }
    }
    assert_sound(&volume);
    for (lun, length) in &luns {
        volume.punch(*lun, Lba(0), *length).expect("it is punched");
    }
    volume.consistency_point().expect("it commits");
    for (lun, length) in &luns {
        assert_eq!(read(&volume, *lun, length - 1, 1), [0]);
        let inode = volume.inode(*lun).expect("it exists");
        assert!(inode.tree.pointer.is_hole(), "an empty file of {length} blocks keeps no node");
    }
    assert_sound(&volume);
}

#[test]
fn file_that_grows_taller_keeps_its_blocks_and_its_snapshots() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 100, 1000).expect("there is room");
    let low = volume.create_snapshot("low").expect("it is made");
    for (number, length) in LENGTHS.into_iter().skip(2).enumerate() {
        volume.compound().resize(lun, length * 4096).expect("it is resized");
        write(&volume, lun, length - 1, 1, 5).expect("there is room");
        volume.create_snapshot(&format!("taller{number}")).expect("it is made");
        assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
        assert_eq!(read(&volume, lun, length - 1, 1), [length + 4]);
        assert_sound(&volume);
    }
    let base = volume.image(Some(low.id)).expect("it exists");
    let now = volume.image(None).expect("there is one");
    let ends: Vec<(Lba, u64)> = LENGTHS.into_iter().skip(2).map(|length| (Lba(length - 1), 1)).collect();
    assert_eq!(now.changed_since(&base, lun).expect("they are compared"), ends);
    assert_eq!(
        base.changed_since(&now, lun).expect("they are compared"),
        ends,
        "the other way round as well"
    );
    drop((base, now));
    volume.rollback(low.id).expect("it rolls back");
    assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
    assert_sound(&volume);
    drop(volume);
    assert_sound(&open(&device));
}

#[test]
fn what_a_shorter_length_cut_off_never_comes_back() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 500, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.compound().resize(lun, 100 * 4096).expect("it is resized");
    volume.compound().resize(lun, 1000 * 4096).expect("it is resized");
    assert_eq!(read(&volume, lun, 99, 3), [100, 0, 0]);
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 99, 3), [100, 0, 0]);
    assert_sound(&volume);
}

#[test]
fn length_that_no_consistency_point_saw_leaves_no_trace() {
    // Full trees: blocks past them are under none of their nodes.
    for length in [126, 126 * 126] {
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, length);
        write(&volume, lun, 0, 126, 1).expect("there is room");
        volume.consistency_point().expect("it commits");
        volume.compound().resize(lun, 3 * length * 4096).expect("it is resized");
        write(&volume, lun, 2 * length, 5, 7).expect("there is room");
        volume.punch(lun, Lba(2 * length + 2), 10).expect("it is punched");
        volume.compound().resize(lun, length * 4096).expect("it is resized");
        volume.consistency_point().expect("it commits");
        assert_eq!(read(&volume, lun, 0, 126), (1..127).collect::<Vec<_>>());
        assert_sound(&volume);
    }
}

#[test]
fn file_that_grew_shows_nothing_past_its_old_end() {
    for length in [100, 126, 126 * 126] {
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, length);
        write(&volume, lun, 0, 100, 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
        volume.compound().resize(lun, FANOUT.pow(3) * 4096).expect("it is resized");
        let reach = [126, 126 * 126].into_iter().flat_map(|reach| [reach, reach + 5, 2 * reach + 7]);
        for lba in reach.chain([length]).filter(|lba| *lba >= length) {
            assert_eq!(read(&volume, lun, lba, 1), [0], "block {lba} behind {length}");
            let mut reads = [BlockRead::new(Lba(lba), 1)];
            volume.read(lun, &mut reads, false);
            assert_eq!(numbers(reads), [0], "block {lba} behind {length}, without waiting");
        }
    }
}

#[test]
fn blocks_under_many_nodes_are_found_in_memory_as_on_the_device() {
    const LEAVES: u64 = 50;
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, LEAVES * FANOUT);
    for leaf in 0..LEAVES {
        write(&volume, lun, leaf * FANOUT, 1, 1000).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let mut reads: Vec<BlockRead> = (0..LEAVES).map(|leaf| BlockRead::new(Lba(leaf * FANOUT), 1)).collect();
    volume.read(lun, &mut reads, false);
    let mut found = 0;
    for read in reads.into_iter().filter(|read| read.outcome.is_some()) {
        let lba = read.lba.0;
        assert_eq!(numbers([read]), [1000 + lba]);
        found += 1;
    }
    assert!(found > 20, "{found} blocks are in memory with what leads to them");
}

#[test]
fn place_that_a_tree_does_not_have_is_a_hole() {
    let (_device, volume) = fresh(4096);
    for length in LENGTHS {
        let lun = file(&volume, length);
        write(&volume, lun, 0, 1, 77).expect("there is room");
        volume.consistency_point().expect("it commits");
        let committed = volume.state.lock().committed.clone();
        let tree = volume.tree(&committed, lun, volume.inode(lun).expect("it exists").tree);
        let (height, reach) = (tree.tree.height, FANOUT.pow(tree.tree.height.into()));
        for level in 0..=height + 2 {
            for lba in [0, reach, reach + 5, 3 * reach] {
                let pointer = tree.pointer_at_level(level, lba).expect("what is there can be read");
                let is_there = lba == 0 && level <= height;
                assert_eq!(!pointer.is_hole(), is_there, "{lba} at level {level} of {height}");
            }
        }
    }
}

#[test]
fn files_of_every_height_are_read_together() {
    let (_device, volume) = fresh(4096);
    let make = |length: u64| {
        let lun = file(&volume, length);
        write(&volume, lun, 0, length.min(2), 1000 * length).expect("there is room");
        (lun, length.min(2))
    };
    let mut files: Vec<(FileId, u64)> = LENGTHS.map(make).into();
    volume.consistency_point().expect("it commits");
    let image = volume.image(None).expect("there is one");
    for _ in 0..2 {
        volume.store.forget();
        for _ in 0..2 {
            for ((lun, count), content) in files.iter().zip(image.read_files(&files)) {
                let content = content.expect("nothing is damaged").to_vec();
                let alone: Vec<u64> = read_image(&image, *lun, 0, *count);
                let together = content
                    .chunks_exact(4096)
                    .map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight bytes")));
                assert_eq!(together.collect::<Vec<_>>(), alone);
            }
        }
        files.reverse();
    }
    assert_eq!(volume.damaged(), []);
}

#[test]
fn nodes_that_two_trees_share_are_not_read_to_compare_them() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let volume = open(&device);
    let luns = LENGTHS.map(|length| file(&volume, length));
    for lun in luns {
        write(&volume, lun, 0, 1, 77).expect("there is room");
    }
    let base = volume.create_snapshot("base").expect("it is made");
    file(&volume, 1);
    let base = volume.image(Some(base.id)).expect("it exists");
    let now = volume.image(None).expect("there is one");
    for lun in luns {
        assert_eq!(base.inode(lun).expect("it exists"), now.inode(lun).expect("it exists"));
        volume.store.forget();
        device.take_read_batches();
        assert_eq!(now.changed_since(&base, lun).expect("they are compared"), []);
        assert_eq!(device.take_read_batches(), 0);
    }
}

#[test]
fn long_file_is_compared_piece_by_piece() {
    // A block below each of 1,100 lowest nodes: more than are read together.
    const LEAVES: u64 = 1100;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(8192, Role::Normal)));
    format(&*device, 8192);
    let volume = open(&device);
    let lun = file(&volume, LEAVES * FANOUT);
    for leaf in 0..LEAVES {
        write(&volume, lun, leaf * FANOUT, 1, leaf).expect("there is room");
    }
    volume.consistency_point().expect("it commits");
    let now = volume.image(None).expect("there is one");
    let inode = now.inode(lun).expect("it exists");
    let new = volume.tree(now.committed(), lun, inode.tree);
    let old = Tree { tree: TreeRef::empty(inode.tree.length), ..new };
    volume.store.forget();
    device.take_read_batches();
    let (mut found, mut read) = (Vec::new(), Vec::new());
    let mut differ = |at, level, _, _| {
        if level == 0 {
            found.push(at);
            read.push(device.take_read_batches());
        }
        Ok(())
    };
    difference(&old, &new, &mut differ).expect("they are compared");
    assert!((0..LEAVES).map(|leaf| leaf * FANOUT).eq(found));
    // Two nodes above the lowest ones, then those of a batch; the others are unknown before these
    // are reported.
    let pieces: Vec<u64> = read.iter().copied().filter(|batches| *batches > 0).collect();
    assert_eq!(pieces.len(), LEAVES.div_ceil(BATCH as u64) as usize, "{pieces:?}");
}

#[test]
fn images_differ_where_something_was_written_between_them_whatever_their_heights() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(4096);
        let mut length = 100;
        let lun = file(&volume, length);
        let mut content: BTreeMap<u64, u64> = BTreeMap::new();
        let mut images = Vec::new();
        for step in 0..8 {
            if rng.one_in(2) {
                length = length.max(LENGTHS[rng.below(5) as usize]);
                volume.compound().resize(lun, length * 4096).expect("it is resized");
            }
            if rng.one_in(3) {
                // Often all that a lower tree had.
                let end = [1, 126, length][rng.below(3) as usize].min(length);
                volume.punch(lun, Lba(0), end).expect("it is punched");
                content.retain(|lba, _| *lba >= end);
            }
            for _ in 0..rng.below(4) {
                let lba = rng.below(length).min(if rng.one_in(2) { 200 } else { u64::MAX });
                write(&volume, lun, lba.min(length - 1), 1, step).expect("there is room");
                content.insert(lba.min(length - 1), step);
            }
            let made = volume.create_snapshot(&format!("s{step}")).expect("it is made");
            images.push((volume.image(Some(made.id)).expect("it exists"), content.clone()));
        }
        for (base, old) in &images {
            for (image, new) in &images {
                let both: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
                let expected: Vec<u64> =
                    both.into_iter().filter(|lba| old.get(lba) != new.get(lba)).collect();
                let runs = image.changed_since(base, lun).expect("they are compared");
                let found: Vec<u64> =
                    runs.iter().flat_map(|(first, count)| first.0..first.0 + count).collect();
                assert_eq!(found, expected, "seed {seed}");
            }
        }
    }
}

#[test]
fn opened_volume_keeps_room_for_the_paths_of_its_tallest_tree() {
    for length in LENGTHS {
        let (device, volume) = fresh(4096);
        file(&volume, 1);
        file(&volume, length);
        file(&volume, 1);
        let levels = volume.state.lock().levels;
        assert_eq!(levels, TreeRef::height_for(length));
        drop(volume);
        assert_eq!(open(&device).state.lock().levels, levels, "{length} blocks");
        // The same of one that only the log has.
        let (device, volume) = fresh(4096);
        let mut change = Change::new();
        change.put(node(volume.next_file().expect("it is open"), length, false));
        volume.change(change, false).expect("there is room");
        volume.flush().expect("it flushes");
        assert_eq!(volume.state.lock().levels, levels);
        drop(volume);
        assert_eq!(open(&device).state.lock().levels, levels, "{length} blocks");
    }
}

#[test]
fn removed_file_is_freed_after_a_restart() {
    let (device, volume) = fresh(4096);
    file(&volume, 1);
    let empty = volume.status().used;
    let lun = file(&volume, 2000);
    write(&volume, lun, 0, 2000, 1).expect("there is room");
    volume.compound().remove(lun).expect("its name is taken away");
    volume.consistency_point().expect("it commits");
    drop(volume);
    let volume = open(&device);
    for _ in 0..4 {
        volume.background(std::time::Duration::ZERO).expect("it goes on");
    }
    assert!(matches!(volume.inode(lun), Err(VolumeError::NoSuchFile(_))));
    assert_eq!(volume.status().used, empty);
    assert_sound(&volume);
}

#[test]
fn number_of_a_lost_file_is_not_given_to_another() {
    let (device, volume) = fresh(1024);
    let lost = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    write(&volume, lost, 0, 5, 9).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = open(&device);
    let next = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    assert_eq!(read(&volume, next, 0, 5), [0; 5]);
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, next, 0, 5), [0; 5]);
    assert_sound(&volume);
}

#[test]
fn listing_files_passes_the_numbers_of_those_that_are_gone() {
    let (_device, volume) = fresh(1024);
    let first = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    // As many as a volume assigns in the longest life: reading each of them would not end.
    volume.state.lock().next_file = 1 << 44;
    let late = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    assert_eq!(late, FileId(1 << 44));
    volume.consistency_point().expect("it commits");
    let image = volume.image(None).expect("there is one");
    let listed: Vec<FileId> = image.inodes().expect("it is read").iter().map(|inode| inode.id).collect();
    assert!(listed.contains(&first) && listed.last() == Some(&late), "{listed:?}");
    let (found, next) = image.inodes_from(FileId(1 << 30)).expect("it is read");
    assert_eq!((found.len(), next), (1, None));
    assert_sound(&volume);
}
