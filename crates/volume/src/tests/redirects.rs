//! A destination's redirected blocks after a failover: none is allocated before the redirect map
//! has dropped it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_base::{SnapshotId, Vbn};
use cairn_format::SegmentKind;

use super::*;

const BLOCKS: u64 = 1024;

/// Sends a whole snapshot, whatever the destination has: blocks in use there are redirected.
pub(super) fn send(source: &Arc<Volume>, destination: &Arc<Volume>, target: &Snapshot) {
    let changes = source.changed_blocks(&[], target.id).expect("they are compared");
    let mut receiver = destination.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    receiver.commit(ReceivedImage { target: target.id, snapshots: changes.snapshots }).expect("it is whole");
}

/// An empty mirror of `source`.
pub(super) fn destination_of(source: &Volume) -> (Arc<MemoryDevice>, Arc<Volume>) {
    destination_with(source, BLOCKS)
}

fn destination_with(source: &Volume, blocks: u64) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Destination)));
    let options = FormatOptions { id: source.id(), blocks, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1)))
        .expect("an empty device is formatted");
    let destination = open(&device);
    (device, destination)
}

/// The blocks of a snapshot that those in `bases` do not have.
fn blocks_of(source: &Arc<Volume>, bases: &[SnapshotId], target: SnapshotId) -> BTreeSet<u64> {
    let changes = source.changed_blocks(bases, target).expect("they are compared");
    changes.runs.iter().flat_map(|(first, count)| first.0..first.0 + count).collect()
}

/// A destination that shows its source's second image, most of whose blocks are in the redirect
/// area, and its LUN of 100 blocks (content 7000 and up in the first image, 100 and up in the
/// second). With `holds`, the image of the first has been held since then.
fn redirected(holds: bool) -> Collided {
    let (_source_device, source) = fresh(BLOCKS);
    collided(&source, holds)
}

type Collided = (Arc<MemoryDevice>, Arc<Volume>, FileId, Snapshot, Option<Image>);

/// The same of a source that lives on.
fn collided(source: &Arc<Volume>, holds: bool) -> Collided {
    let lun = file(source, 100);
    write(source, lun, 0, 100, 7000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_of(source);
    send(source, &destination, &first);
    let held = holds.then(|| destination.image(Some(first.id)).expect("it is there"));
    let second = used_again(source, lun, (&[], first.id), 100);
    send(source, &destination, &second);
    assert!(destination.status().redirected >= 50, "{:?}", destination.status());
    (device, destination, lun, second, held)
}

/// The source reuses the blocks of a snapshot that is not in `bases`, and which the destination
/// shows, for other data: a LUN is written with `content` and up.
fn used_again(
    source: &Arc<Volume>,
    lun: FileId,
    (bases, gone): (&[SnapshotId], SnapshotId),
    content: u64,
) -> Snapshot {
    let shown = blocks_of(source, bases, gone);
    source.delete_snapshots(&[gone]).expect("it is deleted");
    let made = (0..40).find_map(|round| {
        write(source, lun, 0, 100, content).expect("there is room");
        let made = source.create_snapshot(&format!("s{content}.{round}")).expect("it is made");
        if blocks_of(source, bases, made.id).intersection(&shown).count() >= 60 {
            return Some(made);
        }
        source.delete_snapshots(&[made.id]).expect("it is deleted");
        None
    });
    made.expect("blocks are used again, round and round")
}

/// Sends the changes since a common snapshot; not yet committed.
fn bring(
    source: &Arc<Volume>,
    destination: &Arc<Volume>,
    base: SnapshotId,
    target: &Snapshot,
) -> (crate::Receiver, ReceivedImage) {
    let changes = source.changed_blocks(&[base], target.id).expect("they are compared");
    let mut receiver = destination.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    let snapshots = source.snapshot_entries().into_iter().filter(|entry| entry.id <= target.id).collect();
    (receiver, ReceivedImage { target: target.id, snapshots })
}

/// A table of redirects with room for that many runs.
fn with_table_of(volume: &Volume, runs: usize) {
    volume.commit.lock().redirect_runs_max = runs;
}

/// That destination after its failover, without the second snapshot.
fn failed_over() -> (Arc<MemoryDevice>, Arc<Volume>, FileId) {
    let (device, destination, lun, second, _) = redirected(false);
    destination.failover().expect("it fails over");
    destination.delete_snapshots(&[second.id]).expect("it is deleted");
    (device, destination, lun)
}

/// Writes other files until the volume is full, and reads everything back from the device.
fn fill_and_compare(volume: &Arc<Volume>, lun: FileId, content: u64) {
    let other = file(volume, BLOCKS);
    let mut written = 0;
    while write(volume, other, written, 8, 5000).is_ok() {
        written += 8;
    }
    volume.flush().expect("it flushes");
    volume.consistency_point().expect("it commits");
    assert!(written > 300, "{written} blocks found room");
    volume.store.forget();
    assert_eq!(read(volume, other, 0, written), (5000..5000 + written).collect::<Vec<_>>());
    assert_eq!(read(volume, lun, 0, 100), (content..content + 100).collect::<Vec<_>>());
    assert_sound(volume);
}

#[test]
fn redirected_block_that_cannot_be_read_stays_and_all_others_move_home() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 7000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let options = FormatOptions { id: source.id(), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let destination = open(&device);
    send(&source, &destination, &first);
    let second = used_again(&source, lun, (&[], first.id), 100);
    send(&source, &destination, &second);
    assert!(destination.status().redirected >= 50, "{:?}", destination.status());
    let slot = destination.state.lock().committed.redirects.each().next().expect("there are some").1;
    let place = destination.store.space().locate(SegmentKind::Redirect, slot).expect("it has a place").0;
    device.fail_reads(place..place + 4096);
    let work = || (0..5).try_for_each(|_| destination.background(Duration::ZERO));
    work().expect("nothing has failed that is needed");
    assert_eq!(destination.status().redirected, 1);
    device.heal_reads();
    work().expect("it can be read again");
    assert_eq!(destination.status().redirected, 0);
    destination.store.forget();
    assert_eq!(read(&destination, lun, 0, 100), (100..200).collect::<Vec<_>>());
    assert_sound(&destination);
}

#[test]
fn redirected_block_that_is_freed_waits_for_the_redirect_map_to_forget_it() {
    let (_device, volume, lun) = failed_over();
    write(&volume, lun, 0, 100, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    fill_and_compare(&volume, lun, 900);
}

#[test]
fn redirected_block_that_was_freed_before_a_crash_waits_too() {
    let (device, volume, lun) = failed_over();
    write(&volume, lun, 0, 100, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    drop(volume);
    fill_and_compare(&open(&device), lun, 900);
}

#[test]
fn blocks_that_waited_for_the_redirect_map_are_free_once_they_are_home() {
    let (_device, volume, lun) = failed_over();
    write(&volume, lun, 0, 100, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    let before = volume.status().used;
    while volume.status().redirected > 0 {
        volume.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    assert!(volume.status().used + 50 <= before, "{} of {before} in use", volume.status().used);
    assert!(volume.state.lock().stuck.is_empty());
    fill_and_compare(&volume, lun, 900);
}

#[test]
fn block_in_the_redirect_area_is_scrubbed_and_repaired_there() {
    let (device, volume, lun) = failed_over();
    let redirects = volume.state.lock().committed.redirects.clone();
    let position = (0..100).find_map(|lba| {
        let tree = volume.inode(lun).expect("it exists").tree;
        let committed = volume.state.lock().committed.clone();
        let pointer =
            volume.tree(&committed, lun, tree).pointers(&[Lba(lba)]).remove(0).expect("it is whole");
        redirects.get(pointer.vbn).map(|slot| (lba, pointer, slot))
    });
    let (lba, pointer, slot) = position.expect("most blocks are redirected");
    let (offset, _) =
        volume.store.space().locate(cairn_format::SegmentKind::Redirect, slot).expect("it is in the area");
    device.write_from(offset, &[9; 4096]).expect("it is there");
    volume.store.forget();
    let mut cursor = volume.begin_scrub();
    let step = volume.scrub(&mut cursor, 5000).expect("it is open");
    let place = Place::Data { file: lun, lba: Lba(lba) };
    let expected = Finding::DamagedBlock { vbn: pointer.vbn, place, snapshot: SnapshotId(0) };
    assert_eq!(step.findings, [expected]);
    let (vbn, checksum) = (pointer.vbn, pointer.checksum);
    assert!(volume.sound_blocks(&[(vbn, checksum)])[0].is_none());
    assert_eq!(volume.repair(vbn, checksum, &block(100 + lba)).expect("it is written"), Repaired::Written);
    volume.store.forget();
    assert_eq!(read(&volume, lun, lba, 1), [100 + lba]);
    while volume.status().redirected > 0 {
        volume.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    volume.store.forget();
    assert_eq!(read(&volume, lun, 0, 100), (100..200).collect::<Vec<_>>());
    assert_sound(&volume);
}

#[test]
fn image_that_is_held_has_its_blocks_though_a_later_image_is_moved_home() {
    let (_device, destination, lun, _, held) = redirected(true);
    let held = held.expect("it was asked for");
    for _ in 0..40 {
        destination.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    destination.store.forget();
    assert_eq!(read_image(&held, lun, 0, 100), (7000..7100).collect::<Vec<_>>());
    drop(held);
    while destination.status().redirected > 0 {
        destination.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    assert_eq!(read(&destination, lun, 0, 100), (100..200).collect::<Vec<_>>());
}

#[test]
fn later_images_are_moved_home_while_a_snapshot_that_all_of_them_have_is_held() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 7000).expect("there is room");
    let kept = source.create_snapshot("kept").expect("it is made");
    write(&source, lun, 0, 100, 8000).expect("there is room");
    let before = source.create_snapshot("before").expect("it is made");
    let (_device, destination) = destination_of(&source);
    send(&source, &destination, &before);
    let held = destination.image(Some(kept.id)).expect("it is there");
    // Blocks that only the next snapshot shows are reused, and arrive while the destination shows
    // it.
    let shown: BTreeSet<u64> =
        blocks_of(&source, &[], before.id).difference(&blocks_of(&source, &[], kept.id)).copied().collect();
    source.delete_snapshots(&[before.id]).expect("it is deleted");
    let next = (0..40).find_map(|round| {
        write(&source, lun, 0, 100, 100).expect("there is room");
        let made = source.create_snapshot(&format!("s{round}")).expect("it is made");
        if blocks_of(&source, &[], made.id).intersection(&shown).count() >= 60 {
            return Some(made);
        }
        source.delete_snapshots(&[made.id]).expect("it is deleted");
        None
    });
    send(&source, &destination, &next.expect("blocks are used again, round and round"));
    assert!(destination.status().redirected >= 50, "{:?}", destination.status());
    for _ in 0..40 {
        destination.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    assert_eq!(destination.status().redirected, 0, "nothing of it waits for who reads what is not touched");
    destination.store.forget();
    assert_eq!(read_image(&held, lun, 0, 100), (7000..7100).collect::<Vec<_>>());
    assert_eq!(read(&destination, lun, 0, 100), (100..200).collect::<Vec<_>>());
    assert_sound(&destination);
}

#[test]
fn failover_that_can_not_read_the_inodes_leaves_a_destination_that_can_be_mended() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 100).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_of(&source);
    send(&source, &destination, &first);
    // The block of inodes becomes damaged.
    let committed = destination.state.lock().committed.clone();
    let inodes = destination.tree(&committed, crate::known_files::INODE_FILE, committed.root.inode_file);
    let pointer = inodes.pointers(&[Lba(0)]).remove(0).expect("it is whole");
    let (offset, _) = destination
        .store
        .space()
        .locate(cairn_format::SegmentKind::Space, pointer.vbn.0)
        .expect("it is in the block space");
    device.write_from(offset, &[9; 4096]).expect("it is there");
    destination.store.forget();
    let refused = destination.failover();
    assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{refused:?}");
    assert_eq!(destination.status_role(), Role::Destination, "what was refused has not happened");
    drop(destination.receive().expect("it goes on following"));
    let (vbn, checksum) = (pointer.vbn, pointer.checksum);
    let sound = source.sound_blocks(&[(vbn, checksum)]).remove(0).expect("the source has it");
    assert_eq!(destination.repair(vbn, checksum, &sound).expect("it is written"), Repaired::Written);
    destination.failover().expect("it fails over");
    assert_eq!(read(&destination, lun, 0, 100), (100..200).collect::<Vec<_>>());
    write(&destination, lun, 0, 100, 900).expect("it takes writes");
    destination.consistency_point().expect("it commits");
    assert_sound(&destination);
}

#[test]
fn update_whose_collisions_do_not_fit_beside_those_of_earlier_ones_moves_these_home() {
    let (_source_device, source) = fresh(BLOCKS);
    let (device, destination, lun, second, _) = collided(&source, false);
    // Blocks that an image shows on both sides are reused, beside the LUN that is redirected
    // already.
    let other = file(&source, 100);
    write(&source, other, 0, 100, 3000).expect("there is room");
    let gone = source.create_snapshot("gone").expect("it is made");
    let (receiver, image) = bring(&source, &destination, second.id, &gone);
    receiver.commit(image).expect("there is room in the table");
    let earlier = destination.status().redirected;
    assert!(earlier >= 50, "those of the second image are not home");
    let third = used_again(&source, other, (&[second.id], gone.id), 4000);
    let (receiver, image) = bring(&source, &destination, second.id, &third);
    let own = receiver.arrivals.as_ref().expect("they have arrived").redirected.iter().count();
    let both = receiver.redirects(receiver.arrivals.as_ref().expect("they have arrived"), None);
    assert!(own > 0 && both.iter().count() > own, "{own} runs of {}", both.iter().count());
    with_table_of(&destination, own);
    receiver.commit(image).expect("the earlier ones are home");
    assert!(destination.status().redirected < earlier + 50, "{:?}", destination.status());
    for volume in [&destination, &open(&device)] {
        volume.store.forget();
        assert_eq!(read(volume, lun, 0, 100), (100..200).collect::<Vec<_>>());
        assert_eq!(read(volume, other, 0, 100), (4000..4100).collect::<Vec<_>>());
        assert_sound(volume);
    }
}

#[test]
fn blocks_that_waited_for_a_reader_who_is_gone_need_no_table() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 7000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_of(&source);
    send(&source, &destination, &first);
    let held = destination.image(Some(first.id)).expect("it is there");
    source.delete_snapshots(&[first.id]).expect("it is deleted");
    write(&source, lun, 0, 100, 100).expect("there is room");
    let second = source.create_snapshot("second").expect("it is made");
    send(&source, &destination, &second);
    // Blocks that are in use for this reader alone are reused, and arrive while it reads.
    let shown = blocks_of(&source, &[], second.id);
    let in_use = |vbn: &u64| destination.state.lock().used.get(Vbn(*vbn));
    let his: BTreeSet<u64> = (1..BLOCKS).filter(|vbn| in_use(vbn) && !shown.contains(vbn)).collect();
    let third = (0..60).find_map(|round| {
        write(&source, lun, 0, 100, 6000).expect("there is room");
        let made = source.create_snapshot(&format!("third{round}")).expect("it is made");
        if blocks_of(&source, &[second.id], made.id).intersection(&his).count() >= 10 {
            return Some(made);
        }
        source.delete_snapshots(&[made.id]).expect("it is deleted");
        None
    });
    let third = third.expect("blocks are used again, round and round");
    let (receiver, image) = bring(&source, &destination, second.id, &third);
    let arrivals = receiver.arrivals.as_ref().expect("they have arrived");
    assert!(arrivals.redirected.each().count() >= 10, "they can't be at home yet");
    with_table_of(&destination, 0);
    assert_eq!(read_image(&held, lun, 0, 100), (7000..7100).collect::<Vec<_>>());
    drop(held);
    receiver.commit(image).expect("all are home");
    assert_eq!(destination.status().redirected, 0);
    for volume in [&destination, &open(&device)] {
        volume.store.forget();
        assert_eq!(read(volume, lun, 0, 100), (6000..6100).collect::<Vec<_>>());
        assert_sound(volume);
    }
}

/// A destination that was written to, released blocks while their content was redirected, and was
/// demoted: an image that has these numbers again.
#[test]
fn blocks_that_an_own_head_gave_up_are_in_use_when_an_image_has_them_again() {
    let (_source_device, source) = fresh(BLOCKS);
    let (device, destination, lun, second, _) = collided(&source, false);
    destination.failover().expect("it fails over");
    write(&destination, lun, 0, 100, 900).expect("there is room");
    destination.delete_snapshots(&[second.id]).expect("it is deleted");
    assert!(destination.state.lock().stuck.len() >= 50, "they wait for the redirect map");
    destination.demote("head", false).expect("the device has room");
    write(&source, lun, 0, 1, 5000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let changes = source.changed_blocks(&[], target.id).expect("they are compared");
    let mut receiver = destination.receive().expect("nothing else is received");
    receiver.give_up_head();
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    receiver.commit(ReceivedImage { target: target.id, snapshots: changes.snapshots }).expect("it is whole");
    assert!(destination.status().redirected > 0);
    while destination.status().redirected > 0 {
        destination.background(std::time::Duration::ZERO).expect("background work goes on");
    }
    destination.store.forget();
    let expected: Vec<u64> = std::iter::once(5000).chain(101..200).collect();
    assert_eq!(read(&destination, lun, 0, 100), expected);
    destination.state.lock().settle_releases();
    for vbn in blocks_of(&source, &[], target.id) {
        assert!(destination.state.lock().used.get(Vbn(vbn)), "{vbn} would be written to");
    }
    let used = destination.status().used;
    assert_eq!(open(&device).status().used, used);
    assert_sound(&destination);
}

/// Blocks of a LUN that a destination has in the redirect area, most of them: more than one round
/// moves home.
const MANY: u64 = 5600;

fn many_redirected(source: &Arc<Volume>) -> (Arc<MemoryDevice>, Arc<Volume>, FileId, Snapshot) {
    let lun = file(source, MANY);
    let fill = |content: u64| {
        for first in (0..MANY).step_by(400) {
            write(source, lun, first, 400, content).expect("there is room");
        }
    };
    fill(10_000);
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_with(source, source.status().blocks);
    send(source, &destination, &first);
    source.delete_snapshots(&[first.id]).expect("it is deleted");
    // Once around, to the places of the first.
    fill(20_000);
    source.consistency_point().expect("it commits");
    fill(30_000);
    let second = source.create_snapshot("second").expect("it is made");
    send(source, &destination, &second);
    assert!(destination.status().redirected > 4096, "{:?}", destination.status());
    (device, destination, lun, second)
}

#[test]
fn redirected_blocks_come_home_in_rounds_after_each_of_which_a_restart_finds_all() {
    let (_source_device, source) = fresh(12_000);
    let (device, destination, lun, ..) = many_redirected(&source);
    let before = destination.status().redirected;
    for round in 1..3 {
        destination.background(std::time::Duration::ZERO).expect("background work goes on");
        let left = destination.status().redirected;
        assert_eq!(left, before.saturating_sub(round * 4096));
        let after = open(&device);
        assert_eq!(after.status().redirected, left, "a restart finds them where they are");
        for volume in [&destination, &after] {
            volume.store.forget();
            assert_eq!(read(volume, lun, 0, MANY), (30_000..30_000 + MANY).collect::<Vec<_>>());
        }
    }
    assert_sound(&destination);
}

#[test]
fn update_whose_collisions_do_not_fit_waits_for_as_many_rounds_as_it_takes() {
    let (_source_device, source) = fresh(12_000);
    let (device, destination, lun, second) = many_redirected(&source);
    let other = file(&source, 100);
    write(&source, other, 0, 100, 3000).expect("there is room");
    let gone = source.create_snapshot("gone").expect("it is made");
    let (receiver, image) = bring(&source, &destination, second.id, &gone);
    receiver.commit(image).expect("there is room in the table");
    {
        // So that blocks are used again soon.
        let mut state = source.state.lock();
        for vbn in (1..12_000).map(Vbn) {
            if state.used.free() > 900 {
                state.used.set(vbn);
            }
        }
    }
    let third = used_again(&source, other, (&[second.id], gone.id), 4000);
    let (receiver, image) = bring(&source, &destination, second.id, &third);
    let own = receiver.arrivals.as_ref().expect("they have arrived").redirected.iter().count();
    let earlier = destination.state.lock().committed.redirects.clone();
    let runs_after_a_round = {
        let mut left = (*earlier).clone();
        for (vbn, _) in earlier.each().take(4096) {
            left.remove(vbn);
        }
        left.iter().count()
    };
    assert!(own > 0 && runs_after_a_round > 0, "{own} {runs_after_a_round}");
    // For each of them, and not for both.
    with_table_of(&destination, own.max(runs_after_a_round));
    receiver.commit(image).expect("the earlier ones are home");
    for volume in [&destination, &open(&device)] {
        volume.store.forget();
        assert_eq!(read(volume, lun, 0, MANY), (30_000..30_000 + MANY).collect::<Vec<_>>());
        assert_eq!(read(volume, other, 0, 100), (4000..4100).collect::<Vec<_>>());
        assert_sound(volume);
    }
}

#[test]
fn update_with_more_collisions_than_the_table_holds_is_refused_with_what_to_do_and_harms_nothing() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 7000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_of(&source);
    send(&source, &destination, &first);
    let second = used_again(&source, lun, (&[], first.id), 100);
    let free = destination.commit.lock().label.free();
    with_table_of(&destination, 0);
    for _ in 0..3 {
        let changes = source.changed_blocks(&[], second.id).expect("they are compared");
        let mut receiver = destination.receive().expect("nothing else is received");
        for run in &changes.runs {
            receiver
                .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                .expect("there is room");
        }
        let refused = receiver.commit(ReceivedImage { target: second.id, snapshots: changes.snapshots });
        assert!(
            matches!(&refused, Err(VolumeError::Refused(why)) if why.contains("close exports")),
            "{refused:?}"
        );
        assert_eq!(
            read(&destination, lun, 0, 100),
            (7000..7100).collect::<Vec<_>>(),
            "it shows what it showed"
        );
        assert_eq!(destination.commit.lock().label.free(), free, "nothing of the label area is lost");
        assert_sound(&destination);
    }
    // With room the arrivals are useful.
    with_table_of(&destination, 1000);
    let receiver = destination.receive().expect("nothing else is received");
    assert!(receiver.kept_blocks() >= 100);
    let changes = source.changed_blocks(&[], second.id).expect("they are compared");
    receiver.commit(ReceivedImage { target: second.id, snapshots: changes.snapshots }).expect("it fits");
    drop(destination);
    let destination = open(&device);
    assert_eq!(read(&destination, lun, 0, 100), (100..200).collect::<Vec<_>>());
    assert_sound(&destination);
}

/// Images arrive one after the other, each over blocks that the previous ones show, while some of
/// those are held and blocks move home. The holder of one reads it unchanged.
#[test]
fn images_that_are_held_at_random_stay_as_they_are_while_others_come_and_blocks_move_home() {
    const LENGTH: u64 = 60;
    let (mut compared, mut collided, mut full) = (0, 0, 0);
    for seed in 0..12 {
        let mut rng = cairn_base::Rng::new(seed);
        let (_source_device, source) = fresh(BLOCKS);
        let lun = file(&source, LENGTH);
        let (device, destination) = destination_of(&source);
        let mut held: Vec<(String, Image, Vec<u64>)> = Vec::new();
        // The content of each snapshot, by its number.
        let mut content: BTreeMap<SnapshotId, Vec<u64>> = BTreeMap::new();
        for round in 1..26u64 {
            for _ in 0..1 + rng.below(3) {
                let first = rng.below(LENGTH);
                let count = (1 + rng.below(LENGTH)).min(LENGTH - first);
                write(&source, lun, first, count, round << 16 | rng.below(9) << 8).expect("there is room");
                if rng.one_in(3) {
                    source.consistency_point().expect("it commits");
                }
            }
            let target = source.create_snapshot(&format!("s{round}")).expect("it is made");
            content.insert(target.id, read(&source, lun, 0, LENGTH));
            // Most go, so that their blocks are used again.
            for snapshot in source.snapshots() {
                if snapshot.id < target.id && !rng.one_in(5) {
                    source.delete_snapshots(&[snapshot.id]).expect("it is deleted");
                }
            }
            let note = format!("seed {seed}, round {round}");
            if !arrives(&source, &destination, &target) {
                // There is no more room beside the held images.
                full += 1;
                held.clear();
                for _ in 0..20 {
                    destination.background(std::time::Duration::ZERO).expect("background work goes on");
                }
                assert!(arrives(&source, &destination, &target), "{note}: nothing is in its way any more");
            }
            collided += destination.status().redirected;
            assert_redirects_are_of_images(&destination, &note);
            let expect = |id: SnapshotId| content[&id].clone();
            for _ in 0..rng.below(3) {
                let shown = destination.snapshots();
                match shown.get(rng.below(shown.len() as u64 + 1) as usize) {
                    Some(snapshot) => {
                        let image = destination.image(Some(snapshot.id)).expect("it is there");
                        held.push((format!("{note}, {}", snapshot.name), image, expect(snapshot.id)));
                    }
                    None => {
                        let image = destination.image(None).expect("it is there");
                        held.push((format!("{note}, active"), image, expect(target.id)));
                    }
                }
            }
            for _ in 0..rng.below(4) {
                destination.background(std::time::Duration::ZERO).expect("background work goes on");
            }
            if !held.is_empty() && rng.one_in(2) {
                drop(held.swap_remove(rng.below(held.len() as u64) as usize));
            }
            destination.store.forget();
            assert_eq!(read(&destination, lun, 0, LENGTH), content[&target.id], "{note}");
            for (what, image, shown) in &held {
                assert_eq!(&read_image(image, lun, 0, LENGTH), shown, "{note}: {what}");
                compared += 1;
            }
            for snapshot in destination.snapshots() {
                let image = destination.image(Some(snapshot.id)).expect("it is there");
                assert_eq!(
                    read_image(&image, lun, 0, LENGTH),
                    expect(snapshot.id),
                    "{note}: {}",
                    snapshot.name
                );
            }
        }
        held.clear();
        for _ in 0..40 {
            destination.background(std::time::Duration::ZERO).expect("background work goes on");
        }
        assert_eq!(destination.status().redirected, 0, "seed {seed}: nobody reads an older image any more");
        destination.store.forget();
        assert_sound(&destination);
        // The blocks in use in memory match the device.
        let used = destination.status().used;
        drop(destination);
        assert_eq!(open(&device).status().used, used, "seed {seed}");
    }
    assert!(compared > 400 && collided > 1000, "{compared} {collided}, {full} times full");
}

#[test]
fn mirror_says_what_it_uses_once_an_image_is_closed_and_not_only_at_its_next_update() {
    let (_source_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 100, 7000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (device, destination) = destination_of(&source);
    send(&source, &destination, &first);
    let held = destination.image(Some(first.id)).expect("it is there");
    write(&source, lun, 0, 100, 8000).expect("there is room");
    let second = source.create_snapshot("second").expect("it is made");
    source.delete_snapshots(&[first.id]).expect("it is deleted");
    send(&source, &destination, &second);
    let with = destination.status().used;
    destination.background(std::time::Duration::ZERO).expect("background work goes on");
    assert_eq!(destination.status().used, with, "the image shows them");
    assert_eq!(read_image(&held, lun, 0, 100), (7000..7100).collect::<Vec<_>>());
    drop(held);
    destination.background(std::time::Duration::ZERO).expect("background work goes on");
    let used = destination.status().used;
    assert!(with - used >= 100, "{with} and {used} in use");
    assert_sound(&destination);
    drop(destination);
    assert_eq!(open(&device).status().used, used, "as the device says");
}

/// The table has no block that no image shows: nothing would ever move that home, and its place
/// would stay taken.
fn assert_redirects_are_of_images(volume: &Volume, note: &str) {
    let state = volume.state.lock();
    let (root, redirects) = (state.committed.root, state.committed.redirects.clone());
    let roots: Vec<_> = state.snapshots.iter().map(|entry| entry.root).collect();
    drop(state);
    let shown = crate::life::open::load_used(&volume.store, &redirects, BLOCKS, &root, roots.iter());
    let stale: Vec<_> = redirects.each().map(|(vbn, _)| vbn).filter(|vbn| !shown.get(*vbn)).collect();
    assert!(stale.is_empty(), "{note}: {stale:?}");
}

/// Sends a whole snapshot; false if there is no room for its collisions.
fn arrives(source: &Arc<Volume>, destination: &Arc<Volume>, target: &Snapshot) -> bool {
    let changes = source.changed_blocks(&[], target.id).expect("they are compared");
    let mut receiver = destination.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        match receiver.write(run.0, blocks) {
            Ok(()) => {}
            Err(VolumeError::Refused(_)) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    receiver.commit(ReceivedImage { target: target.id, snapshots: changes.snapshots }).expect("it is whole");
    true
}
