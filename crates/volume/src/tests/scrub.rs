//! A scrub reads everything once, finds all damage, and misses nothing while the volume is in use.

use std::collections::BTreeSet;

use cairn_base::{Rng, SnapshotId, Vbn};

use super::*;

const BLOCKS: u64 = 2048;

fn offset(vbn: u64) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn) * 4096
}

/// Two LUNs, one with more blocks than a leaf has; snapshots in a branching line, a rollback,
/// holes.
fn lived_in() -> (Arc<FaultDevice>, Arc<Volume>, [FileId; 2]) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let luns = [file(&volume, 600), file(&volume, 20)];
    write(&volume, luns[0], 0, 400, 1000).expect("there is room");
    write(&volume, luns[1], 3, 9, 2000).expect("there is room");
    let first = volume.create_snapshot("first").expect("it is made");
    write(&volume, luns[0], 250, 60, 3000).expect("there is room");
    volume.create_snapshot("second").expect("it is made");
    volume.punch(luns[0], Lba(10), 30).expect("it is punched");
    volume.rollback(first.id).expect("it rolls back");
    write(&volume, luns[0], 0, 5, 4000).expect("there is room");
    volume.create_snapshot("third").expect("it is made");
    write(&volume, luns[1], 0, 2, 5000).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    (device, volume, luns)
}

fn whole_pass(volume: &Arc<Volume>, blocks: u64) -> (u64, Vec<Finding>) {
    let (mut cursor, mut read, mut findings) = (volume.begin_scrub(), 0, Vec::new());
    loop {
        let step = volume.scrub(&mut cursor, blocks).expect("the volume is open");
        read += step.blocks;
        findings.extend(step.findings);
        if step.finished {
            return (read, findings);
        }
    }
}

#[test]
fn scrub_reads_every_block_that_anything_shows_once() {
    let (_device, volume, _) = lived_in();
    for blocks in [1, 7, 64, 5000] {
        // Block 0 is never used, and counts as if it were.
        assert_eq!(whole_pass(&volume, blocks), (volume.status().used - 1, Vec::new()), "{blocks} at a time");
    }
}

#[test]
fn scrub_finds_each_block_that_rots_also_those_that_are_in_memory() {
    let (device, volume, _) = lived_in();
    let used: Vec<u64> = {
        let state = volume.state.lock();
        (1..BLOCKS).filter(|vbn| state.used.get(Vbn(*vbn))).collect()
    };
    assert_eq!(used.len() as u64, volume.status().used - 1);
    for vbn in used.into_iter().step_by(3) {
        let mut right = vec![0; 4096];
        device.read_into(offset(vbn), &mut right).expect("it is there");
        device.corrupt(offset(vbn), 4096, &mut Rng::new(vbn));
        let (_, findings) = whole_pass(&volume, 300);
        let found: Vec<u64> = findings
            .iter()
            .filter_map(|finding| match finding {
                Finding::DamagedBlock { vbn, .. } => Some(vbn.0),
                _ => None,
            })
            .collect();
        assert_eq!(found, [vbn], "{findings:?}");
        assert_eq!(volume.damaged().len(), 1);
        device.write_from(offset(vbn), &right).expect("it is there");
        let damaged = volume.damaged()[0];
        assert_eq!(volume.look_again(&damaged).expect("nothing above it is damaged"), Health::Sound);
        assert_eq!(volume.damaged(), []);
    }
}

#[test]
fn damaged_superblock_slot_is_found_by_a_scrub() {
    let (device, volume, _) = lived_in();
    device.corrupt(0, 512, &mut Rng::new(1));
    assert_eq!(whole_pass(&volume, 100).1, [Finding::SuperblockSlot { address: 0 }]);
}

#[test]
fn damaged_table_is_found_by_a_check_and_written_anew_by_a_scrub() {
    let (device, volume, _) = lived_in();
    let block = {
        let commit = volume.commit.lock();
        commit.superblock.snapshots.indexes[0].address
    };
    let half = cairn_format::layout::label_blocks(volume.status().blocks) / 2;
    let read = |address: u64| device.read(address * 4096, 4096).expect("it can be read").to_vec();
    let sound = read(block);
    assert_eq!(read(block + half), sound, "it is there twice");
    let served = [Finding::TableBlock { address: block, has_copy: true }];
    device.corrupt(block * 4096, 512, &mut Rng::new(1));
    for _ in 0..2 {
        let report = volume.check_to(CheckDepth::Structures, &mut |_| std::ops::ControlFlow::Continue(()));
        assert_eq!(report.expect("it is checked").findings, served, "a check changes nothing");
    }
    assert_eq!(whole_pass(&volume, 100).1, served);
    assert_eq!(whole_pass(&volume, 100).1, []);
    assert_eq!(read(block), sound);
    // The copy is of as much worth as the other.
    device.corrupt((block + half) * 4096, 512, &mut Rng::new(1));
    assert_eq!(whole_pass(&volume, 100).1, [], "nobody has missed it");
    assert_eq!(read(block + half), sound);
    for address in [block, block + half] {
        device.corrupt(address * 4096, 512, &mut Rng::new(1));
    }
    let lost = [Finding::TableBlock { address: block, has_copy: false }];
    assert_eq!(whole_pass(&volume, 100).1, lost, "and what is below it is not known");
    assert!(lost[0].to_string().contains("image dump"), "it says what to do");
}

#[test]
fn damage_below_a_damaged_node_is_found_once_the_node_is_read_again() {
    let (device, volume, luns) = lived_in();
    let committed = volume.state.lock().committed.clone();
    let tree = volume.inode(luns[0]).expect("it exists").tree;
    let leaf = volume.tree(&committed, luns[0], tree).pointer_at_level(1, 0).expect("it is whole").vbn.0;
    device.corrupt(offset(leaf), 4096, &mut Rng::new(1));
    volume.store.forget();
    let found: BTreeSet<_> = whole_pass(&volume, 100).1.iter().map(|finding| format!("{finding}")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
}

/// One change of an owner or a client.
fn live(volume: &Arc<Volume>, luns: &[FileId], rng: &mut Rng) {
    let mut names = rng.fork();
    let snapshots = volume.snapshots();
    let any = |rng: &mut Rng| snapshots.get(rng.below(snapshots.len().max(1) as u64) as usize).map(|s| s.id);
    match rng.below(10) {
        0..=4 => {
            let (lun, lba) = (luns[rng.below(2) as usize], rng.below(500));
            let length = volume.inode(lun).expect("it exists").tree.length;
            let first = lba.min(length - 1);
            match write(volume, lun, first, (1 + rng.below(30)).min(length - first), rng.below(1 << 30)) {
                Ok(()) | Err(VolumeError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
        }
        5 => drop(volume.consistency_point()),
        6 => match volume.create_snapshot(&format!("s{}", names.next())) {
            Ok(_) | Err(VolumeError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        },
        7 | 8 => {
            if let Some(id) = any(rng) {
                volume.delete_snapshots(&[id]).expect("it is deleted");
            }
        }
        _ => {
            if let Some(id) = any(rng).filter(|_| rng.one_in(2)) {
                match volume.rollback(id) {
                    Ok(_) | Err(VolumeError::NoSpace) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn scrub_misses_nothing_that_was_there_when_it_began_and_is_still_shown() {
    let (mut found, mut gone) = (0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let (device, mut volume, luns) = lived_in();
        // Data of any root: nothing of the work below needs it.
        let mut data = Vec::new();
        for root in std::iter::once(SnapshotId(0)).chain(volume.snapshots().iter().map(|s| s.id)) {
            let part = Part { root, base: SnapshotId(0) };
            let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Structures);
            let of_luns =
                |piece: &Piece| matches!(piece.place, Place::Data { file, .. } if luns.contains(&file));
            data.extend(region.expect("it is open").pieces.into_iter().filter(of_luns));
        }
        let victim = data[rng.below(data.len() as u64) as usize];
        device.corrupt(offset(victim.vbn.0), 4096, &mut rng);
        volume.store.forget();
        let (mut cursor, mut seen, mut steps) = (volume.begin_scrub(), false, 0);
        loop {
            let step = volume.scrub(&mut cursor, 1 + rng.below(60)).expect("the volume is open");
            seen |= step
                .findings
                .iter()
                .any(|finding| matches!(finding, Finding::DamagedBlock { vbn, .. } if *vbn == victim.vbn));
            if step.finished {
                break;
            }
            for _ in 0..rng.below(6) {
                live(&volume, &luns, &mut rng);
            }
            if rng.one_in(40) {
                // The state that the server keeps over a restart.
                let position = Position::from_numbers(cursor.position.to_numbers());
                cursor = ScrubCursor { position, ..cursor };
                volume.close().expect("it closes");
                volume = open(&device);
            }
            steps += 1;
            assert!(steps < 5000, "seed {seed}: the pass does not end");
        }
        let Piece { vbn, checksum, place, .. } = victim;
        match volume.look_again(&DamagedBlock { vbn, checksum, place }).expect("no node is damaged") {
            Health::Damaged => {
                assert!(seen, "seed {seed}: block {vbn} ({place}) was missed");
                found += 1;
            }
            Health::Gone => gone += 1,
            other => panic!("seed {seed}: a damaged block is {other:?}"),
        }
    }
    assert!(found > 20 && gone > 10, "{found} found, {gone} gone");
}

#[test]
fn block_that_rots_under_the_cache_is_written_again_from_it() {
    let (device, volume, luns) = lived_in();
    assert_eq!(read(&volume, luns[1], 5, 1), [2005]);
    let region = volume.region(
        Part { root: SnapshotId(0), base: SnapshotId(0) },
        Position::START,
        Until::Blocks(u64::MAX),
        Look::Structures,
    );
    let pieces = region.expect("it is open").pieces;
    let here = Place::Data { file: luns[1], lba: Lba(5) };
    let piece = *pieces.iter().find(|piece| piece.place == here).expect("it has that block");
    device.corrupt(offset(piece.vbn.0), 4096, &mut Rng::new(3));
    assert_eq!(whole_pass(&volume, 50).1.len(), 1);
    let damaged = volume.damaged()[0];
    assert_eq!(volume.look_again(&damaged).expect("nothing above it is damaged"), Health::Mended);
    volume.store.forget();
    assert_eq!(read(&volume, luns[1], 5, 1), [2005]);
    assert_eq!((volume.damaged(), whole_pass(&volume, 50).1), (Vec::new(), Vec::new()));
}

#[test]
fn damaged_bytes_are_never_given_to_another_copy() {
    let (device, volume, luns) = lived_in();
    let part = Part { root: SnapshotId(0), base: SnapshotId(0) };
    let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Structures);
    let of_lun = |piece: &&Piece| matches!(piece.place, Place::Data { file, .. } if file == luns[1]);
    let region = region.expect("it is open");
    let wanted: Vec<_> =
        region.pieces.iter().filter(of_lun).map(|piece| (piece.vbn, piece.checksum)).collect();
    volume.store.forget();
    device.corrupt(offset(wanted[1].0.0), 4096, &mut Rng::new(1));
    let mut asked = wanted.clone();
    asked.push((Vbn(BLOCKS + 7), wanted[0].1));
    asked.push((wanted[0].0, wanted[2].1));
    let given: Vec<bool> = volume.sound_blocks(&asked).iter().map(Option::is_some).collect();
    let expected: Vec<bool> = (0..asked.len()).map(|at| at != 1 && at < wanted.len()).collect();
    assert_eq!(given, expected);
}

#[test]
fn what_a_snapshot_takes_over_while_the_active_state_is_read_is_not_missed() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let lun = file(&volume, 600);
    write(&volume, lun, 0, 500, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let mut cursor = volume.begin_scrub();
    let mut read = volume.scrub(&mut cursor, 300).expect("it is open").blocks;
    // Only the new snapshot shows the second half of the LUN from here on.
    volume.create_snapshot("meanwhile").expect("it is made");
    write(&volume, lun, 0, 500, 2000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let part = Part { root: SnapshotId(1), base: SnapshotId(0) };
    let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Structures);
    let pieces = region.expect("it is open").pieces;
    let here = Place::Data { file: lun, lba: Lba(450) };
    let victim = pieces.iter().find(|piece| piece.place == here).expect("the snapshot has that block").vbn;
    device.corrupt(offset(victim.0), 4096, &mut Rng::new(1));
    let mut findings = Vec::new();
    loop {
        let step = volume.scrub(&mut cursor, 100).expect("it is open");
        read += step.blocks;
        findings.extend(step.findings);
        if step.finished {
            break;
        }
    }
    assert_eq!(findings, [Finding::DamagedBlock { vbn: victim, place: here, snapshot: SnapshotId(1) }]);
    assert_eq!(read, pieces.len() as u64, "each block once, and none of those that came later");
}

/// Where the blocks of data are that the active state and the snapshots show.
fn data_shown(volume: &Arc<Volume>) -> BTreeSet<Vbn> {
    let roots = volume.snapshots().into_iter().map(|snapshot| snapshot.id).chain([SnapshotId(0)]);
    roots.flat_map(|root| data_of(volume, Part { root, base: SnapshotId(0) })).collect()
}

/// The data blocks of a part, of files and not of maps.
fn data_of(volume: &Arc<Volume>, part: Part) -> Vec<Vbn> {
    let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
    let pieces = region.expect("it is there").pieces;
    let is_data = |piece: &&Piece| matches!(piece.place, Place::Data { file, .. } if file.0 < 1 << 32);
    pieces.iter().filter(is_data).map(|piece| piece.vbn).collect()
}

/// Every block of data is damaged: the findings of a scrub are the blocks that it has read.
fn all_rotten() -> (Arc<Volume>, BTreeSet<Vbn>) {
    let (device, volume, luns) = lived_in();
    write(&volume, luns[0], 0, 3, 6000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let shown = data_shown(&volume);
    for vbn in &shown {
        device.corrupt(offset(vbn.0), 4096, &mut Rng::new(vbn.0));
    }
    (volume, shown)
}

fn read_by(step: &ScrubStep) -> impl Iterator<Item = Vbn> + '_ {
    step.findings.iter().filter_map(|finding| match finding {
        Finding::DamagedBlock { vbn, .. } => Some(*vbn),
        _ => None,
    })
}

#[test]
fn snapshot_that_goes_while_it_is_read_keeps_nothing_that_stays_from_being_read() {
    let mut gone = BTreeSet::new();
    for (victim, blocks) in
        (1..=4).flat_map(|victim| [4, 7, 10, 40, 100].map(|blocks| (SnapshotId(victim), blocks)))
    {
        let (volume, before) = all_rotten();
        let (mut cursor, mut found, mut finished) = (volume.begin_scrub(), BTreeSet::new(), false);
        for _ in 0..400 {
            let step = volume.scrub(&mut cursor, blocks).expect("it is open");
            found.extend(read_by(&step));
            finished = step.finished;
            if finished {
                break;
            }
            if cursor.current == Some(victim) && volume.snapshot(victim).is_some() {
                gone.insert(victim);
                volume.delete_snapshots(&[victim]).expect("it is deleted");
            }
        }
        assert!(finished, "{victim}, {blocks}: the pass does not end");
        let stays: BTreeSet<Vbn> = data_shown(&volume).intersection(&before).copied().collect();
        let missed: Vec<&Vbn> = stays.difference(&found).collect();
        assert_eq!(missed, Vec::<&Vbn>::new(), "{victim}, {blocks}");
    }
    assert_eq!(gone.len(), 4, "each of them: {gone:?}");
}

#[test]
fn pass_ends_beside_snapshots_that_come_and_go_faster_than_they_are_read() {
    let (volume, _) = all_rotten();
    let old: Vec<SnapshotId> = volume.snapshots().into_iter().map(|snapshot| snapshot.id).collect();
    volume.delete_snapshots(&old).expect("they are deleted");
    let before = data_shown(&volume);
    let (mut cursor, mut found, mut last) = (volume.begin_scrub(), BTreeSet::new(), None);
    for step in 0..200 {
        let made = volume.create_snapshot(&format!("mirror-{step}")).expect("it is made");
        if let Some(last) = last.replace(made.id) {
            volume.delete_snapshots(&[last]).expect("it is deleted");
        }
        let done = volume.scrub(&mut cursor, 40).expect("it is open");
        found.extend(read_by(&done));
        if done.finished {
            assert!(before.is_subset(&found), "{:?} are missed", before.difference(&found));
            return;
        }
    }
    panic!("the pass does not end");
}

/// Images of a mirror bring snapshots with numbers below those that were read.
#[test]
fn active_state_is_read_without_what_was_read_before_and_no_less_whatever_it_descends_from() {
    let (_device, volume, _) = lived_in();
    let newest = volume.snapshots().last().expect("there are some").id;
    let mut sizes = BTreeSet::new();
    for done in (0..=newest.0).map(SnapshotId) {
        let mut cursor = ScrubCursor { done, current: Some(SnapshotId(0)), ..volume.begin_scrub() };
        let mut base = volume.active_parent();
        while base > done {
            base = volume.snapshot(base).expect("it is there").parent;
        }
        let part = Part { root: SnapshotId(0), base };
        let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
        let expected = region.expect("it is there").pieces.len() as u64;
        let (mut read, mut finished) = (0, false);
        while !finished {
            let step = volume.scrub(&mut cursor, 50).expect("it is open");
            (read, finished) = (read + step.blocks, step.finished);
        }
        assert_eq!(read, expected, "after {done}");
        sizes.insert(read);
    }
    assert!(sizes.len() > 2, "{sizes:?}");
}
