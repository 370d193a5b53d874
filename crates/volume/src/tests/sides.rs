//! Two copies of a volume compared: which image may replace another, and which content only one of
//! them has.

use std::collections::BTreeSet;

use cairn_base::{Rng, SnapshotId};
use cairn_device::{Operation, Request};
use cairn_format::{INODES_PER_BLOCK, Inode, SegmentKind};

use super::log_device::{Phase, Told};
use super::redirects::{destination_of, send};
use super::*;
use crate::known_files::INODE_FILE;

/// A source with a snapshot, and a copy of it that shows that.
fn copies() -> (Arc<Volume>, FileId, Snapshot, Arc<Volume>) {
    let (_device, source) = fresh(1024);
    let lun = file(&source, 100);
    write(&source, lun, 0, 50, 1000).expect("there is room");
    let base = source.create_snapshot("base").expect("it is made");
    let (_there, copy) = destination_of(&source);
    send(&source, &copy, &base);
    (source, lun, base, copy)
}

/// Everything up to a snapshot, for a copy that need have nothing.
pub(super) fn brought(
    source: &Arc<Volume>,
    copy: &Arc<Volume>,
    target: SnapshotId,
) -> (crate::Receiver, ReceivedImage) {
    let changes = source.changed_blocks(&[], target).expect("they are compared");
    let mut receiver = copy.receive().expect("nothing else is received");
    for run in &changes.runs {
        receiver.write(run.0, source.read_blocks(&[*run]).expect("they can be read")).expect("there is room");
    }
    (receiver, ReceivedImage { target, snapshots: changes.snapshots })
}

fn shows(volume: &Arc<Volume>, lun: FileId, first: u64) {
    let image = volume.image(None).expect("it shows something");
    assert_eq!(read_image(&image, lun, 0, 1), [first]);
    assert_sound(volume);
}

#[test]
fn own_head_gives_way_only_to_what_descends_from_it_unless_it_is_given_up() {
    let (source, lun, base, copy) = copies();
    assert_eq!(copy.own_head(), None, "an image that came is none");
    copy.failover().expect("it fails over");
    write(&copy, lun, 0, 1, 7000).expect("there is room");
    copy.demote("first-head", false).expect("the device has room");
    copy.failover().expect("it fails over");
    assert_eq!(copy.own_head(), None, "a volume that takes writes has none");
    let head = copy.demote("head", false).expect("the device has room");
    write(&source, lun, 0, 1, 8000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let (receiver, image) = brought(&source, &copy, target.id);
    let refused = receiver.commit(image);
    assert!(matches!(refused, Err(VolumeError::Refused(why)) if why.contains("were not discarded")));
    assert_eq!(copy.own_head().map(|own| own.id), Some(head.id));
    shows(&copy, lun, 7000);
    // The other way it descends: the old source has the image of the head, and its next one comes
    // from that.
    let old = source.demote("old", false).expect("the device has room");
    let (mut receiver, image) = brought(&copy, &source, head.id);
    assert!(image.snapshots.iter().all(|entry| entry.id == base.id || entry.root != old.root));
    receiver.give_up_head();
    receiver.commit(image).expect("it was given up");
    shows(&source, lun, 7000);
    assert_eq!(source.own_head(), None);
    source.failover().expect("it fails over");
    write(&source, lun, 0, 1, 9000).expect("there is room");
    let next = source.create_snapshot("next").expect("it is made");
    let (receiver, image) = brought(&source, &copy, next.id);
    receiver.commit(image).expect("it descends from the head");
    shows(&copy, lun, 9000);
    assert_eq!(copy.own_head(), None);
}

/// Both sides have made a snapshot of that number since they parted, and one of them gives its own
/// up.
#[test]
fn snapshot_whose_number_comes_again_shows_the_new_content_and_who_holds_the_old_one_keeps_that() {
    let (source, lun, base, copy) = copies();
    copy.failover().expect("it fails over");
    write(&copy, lun, 0, 50, 7000).expect("there is room");
    let own = copy.demote("head", false).expect("the device has room");
    write(&source, lun, 0, 50, 8000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    assert_eq!(target.id, own.id);
    let shown = |image: &Image| read_image(image, lun, 0, 50);
    let full = |first: u64| (first..first + 50).collect::<Vec<u64>>();
    let of_base = copy.image(Some(base.id)).expect("it is there");
    let of_own = copy.image(Some(own.id)).expect("it is there");
    let (mut receiver, image) = brought(&source, &copy, target.id);
    receiver.give_up_head();
    receiver.commit(image).expect("it was given up");
    let again = |id| copy.image(Some(id)).expect("it is there");
    assert_eq!(shown(&again(target.id)), full(8000));
    assert_eq!(shown(&of_own), full(7000));
    // Those that are here still have one image each, however many hold it.
    let same = again(base.id);
    assert_eq!(copy.state.lock().pins[&base.id].strong_count(), 2);
    drop((of_base, same));
    // More images come than there is room for, if nothing were used again.
    for round in 1..12 {
        write(&source, lun, 0, 50, 10_000 * round).expect("there is room");
        let next = source.create_snapshot(&format!("s{round}")).expect("it is made");
        let (receiver, image) = brought(&source, &copy, next.id);
        receiver.commit(image).expect("it descends from it");
        copy.background(std::time::Duration::ZERO).expect("background work goes on");
        source.delete_snapshots(&[next.id]).expect("it is deleted");
        copy.store.forget();
        assert_eq!(shown(&again(next.id)), full(10_000 * round));
        assert_eq!(shown(&again(target.id)), full(8000), "round {round}");
        assert_eq!(shown(&of_own), full(7000), "round {round}");
    }
    assert_sound(&copy);
}

#[test]
fn nothing_that_was_known_of_an_own_head_is_true_of_the_image_that_replaced_it() {
    let (source, lun, base, copy) = copies();
    copy.failover().expect("it fails over");
    copy.create_snapshot_since("sent", 7).expect("there is room");
    let doomed = file(&copy, 10);
    let kept = copy.next_file().expect("it is writable");
    let head = copy.head();
    let mut change = Change::of(head);
    change.put(node(kept, 1, false));
    copy.compound().remove(doomed).expect("it is there");
    copy.demote("head", false).expect("the device has room");
    write(&source, lun, 0, 1, 8000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let (mut receiver, image) = brought(&source, &copy, target.id);
    receiver.give_up_head();
    receiver.commit(image).expect("it was given up");
    assert_eq!(copy.since_relationships(), [], "they are the other one's");
    assert!(copy.state.lock().removed.is_empty());
    let unchanged = copy.changed_since_snapshot(target.id).expect("its map can be read");
    assert_eq!(unchanged.first_change, None);
    assert!(copy.age_of_changes(&base.root).is_some());
    copy.failover().expect("it fails over");
    assert_ne!(copy.head(), head);
    let refused = copy.change(change, false);
    assert!(matches!(refused, Err(VolumeError::OtherHead)), "{refused:?}");
    assert_sound(&copy);
}

#[test]
fn what_was_known_of_a_head_that_was_given_up_is_not_true_of_what_replaced_it() {
    let (source, lun, _base, copy) = copies();
    copy.failover().expect("it fails over");
    let mut change = crate::Change::of(copy.head());
    change.put(node(copy.next_file().expect("it is writable"), 1, false));
    copy.create_snapshot_since("sent", 3).expect("there is room");
    copy.demote("head", false).expect("the device has room");
    write(&source, lun, 0, 1, 8000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let (mut receiver, image) = brought(&source, &copy, target.id);
    receiver.give_up_head();
    receiver.commit(image).expect("it was given up");
    assert_eq!(copy.since_relationships(), [], "nothing is mirrored from here");
    copy.failover().expect("it fails over");
    let refused = copy.change(change, false);
    assert!(matches!(refused, Err(VolumeError::OtherHead)), "{refused:?}");
    shows(&copy, lun, 8000);
}

#[test]
fn image_that_lacks_a_snapshot_of_which_there_is_a_clone_is_refused() {
    let (source, lun, base, copy) = copies();
    let kept = copy.keep_snapshot(base.id).expect("it is there");
    write(&source, lun, 0, 1, 2000).expect("there is room");
    let with = source.create_snapshot("with").expect("it is made");
    let (receiver, image) = brought(&source, &copy, with.id);
    receiver.commit(image).expect("it has the snapshot");
    source.delete_snapshots(&[base.id]).expect("it is deleted");
    let (receiver, image) = brought(&source, &copy, with.id);
    let refused = receiver.commit(image);
    assert!(matches!(refused, Err(VolumeError::Cloned(id)) if id == base.id), "{refused:?}");
    let image = copy.image(Some(base.id)).expect("it is there still");
    assert_eq!(read_image(&image, lun, 0, 1), [1000]);
    drop((image, kept));
    let (receiver, image) = brought(&source, &copy, with.id);
    receiver.commit(image).expect("nobody needs it any more");
    assert_eq!(copy.snapshots().iter().map(|one| one.id).collect::<Vec<_>>(), [with.id]);
    shows(&copy, lun, 2000);
}

#[test]
fn acknowledgement_of_a_beginning_is_taken_once_and_of_that_beginning_alone() {
    const RELATIONSHIP: u64 = 7;
    let (_device, source) = fresh(1024);
    let lun = file(&source, 100);
    assert_eq!(source.since_files(RELATIONSHIP).map(drop), None);
    assert!(source.acknowledge_beginning(RELATIONSHIP, FileId(2)).is_err(), "there is no relationship");
    let base = source.create_snapshot_since("base", RELATIONSHIP).expect("there is room");
    let (_there, copy) = destination_of(&source);
    send(&source, &copy, &base);
    let first = source.since_files(RELATIONSHIP).expect("it has begun");
    assert_eq!(first.in_flight, None);
    assert!(copy.shows_beginning_of(first.accumulating).expect("it can be read"));
    assert!(!copy.shows_beginning_of(lun).expect("it can be read"), "that is no map");
    assert!(
        !source.acknowledge_beginning(RELATIONSHIP, first.accumulating).expect("it is known"),
        "nothing is in flight"
    );
    write(&source, lun, 0, 1, 1).expect("there is room");
    let target = source.create_snapshot_since("target", RELATIONSHIP).expect("there is room");
    let second = source.since_files(RELATIONSHIP).expect("it goes on");
    assert_eq!(second.in_flight, Some(first.accumulating));
    assert!(
        !source.acknowledge_beginning(RELATIONSHIP, first.accumulating).expect("it is known"),
        "an older one"
    );
    assert_eq!(source.since_files(RELATIONSHIP).expect("it goes on").in_flight, second.in_flight);
    send(&source, &copy, &target);
    assert!(
        !copy.shows_beginning_of(first.accumulating).expect("it can be read"),
        "something is in it by now"
    );
    assert!(copy.shows_beginning_of(second.accumulating).expect("it can be read"));
    assert!(source.acknowledge_beginning(RELATIONSHIP, second.accumulating).expect("it is known"));
    assert_eq!(source.since_files(RELATIONSHIP).expect("it goes on").in_flight, None);
    assert!(!source.acknowledge_beginning(RELATIONSHIP, second.accumulating).expect("it is known"), "once");
    assert_sound(&source);
}

#[test]
fn divergence_is_what_no_snapshot_in_common_has() {
    let (_device, volume) = fresh(2048);
    let lun = file(&volume, 300);
    let blocks = |id: SnapshotId| -> BTreeSet<u64> {
        let redirects = volume.state.lock().committed.redirects.clone();
        let maps = crate::read::compare::Maps { store: &volume.store, redirects: &redirects };
        let root = volume.entry(id).expect("it is there").root;
        let own = maps.only_in(&root, &[]).expect("its map can be read");
        own.iter().flat_map(|(first, count)| first.0..first.0 + count).collect()
    };
    let mut made = Vec::new();
    for number in 0..4 {
        write(&volume, lun, number * 40, 60, 1000 * number).expect("there is room");
        made.push(volume.create_snapshot(&format!("s{number}")).expect("it is made"));
    }
    let same = volume.divergence(&[made[3].id]).expect("they are compared");
    assert!(!same.head && same.common.as_ref() == Some(&made[3]));
    write(&volume, lun, 5, 70, 9000).expect("there is room");
    for common in [vec![], vec![0], vec![1], vec![0, 1, 2, 3], vec![1, 2], vec![0, 3]] {
        let ids: Vec<SnapshotId> = common.iter().map(|number| made[*number].id).collect();
        let found = volume.divergence(&ids).expect("they are compared");
        let own: Vec<&Snapshot> = made.iter().filter(|one| !ids.contains(&one.id)).collect();
        assert_eq!(found.snapshots.iter().collect::<Vec<_>>(), own);
        assert_eq!(found.common.as_ref(), common.last().map(|number| &made[*number]));
        assert!(found.head);
        // A snapshot of now shows the content of the active state.
        let now = volume.create_snapshot("now").expect("it is made");
        // Whatever came into being after its parent, of all that is not in common.
        let entries = volume.snapshot_entries();
        let mut expected = BTreeSet::new();
        for entry in entries.iter().filter(|entry| !ids.contains(&entry.id)) {
            let parent = entries.iter().find(|other| other.id == entry.parent);
            let before = parent.map(|parent| blocks(parent.id)).unwrap_or_default();
            expected.extend(blocks(entry.id).difference(&before).copied());
        }
        volume.delete_snapshots(&[now.id]).expect("it is deleted");
        assert_eq!(found.blocks, expected.len() as u64, "in common: {common:?}");
    }
}

#[test]
fn inodes_that_differ_between_two_images_are_all_that_do() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(4096);
        let mut files: Vec<FileId> = Vec::new();
        let mut images = Vec::new();
        for step in 0..60 {
            match rng.below(6) {
                0..=2 => files.push(file(&volume, 1 + rng.below(40))),
                3 if !files.is_empty() => {
                    let one = files[rng.below(files.len() as u64) as usize];
                    volume.compound().resize(one, (1 + rng.below(40)) * 4096).expect("it is there");
                }
                4 if !files.is_empty() => {
                    let one = files.swap_remove(rng.below(files.len() as u64) as usize);
                    volume.compound().remove(one).expect("it is there");
                    while volume.status().dirty > 0 || !volume.state.lock().removed.is_empty() {
                        volume.consistency_point().expect("it commits");
                        volume.background(std::time::Duration::ZERO).expect("it goes on");
                    }
                }
                _ => {
                    let made = volume.create_snapshot(&format!("s{step}")).expect("it is made");
                    images.push(volume.image(Some(made.id)).expect("it is there"));
                }
            }
        }
        let numbers = volume.numbers().file;
        for older in &images {
            for newer in &images {
                let of = |image: &Image, id| image.inode(FileId(id)).ok();
                let expected: Vec<(Option<Inode>, Option<Inode>)> = (0..numbers)
                    .map(|id| (of(older, id), of(newer, id)))
                    .filter(|(before, after)| before != after)
                    .collect();
                let changed = newer.changed_inodes(older).expect("both can be read");
                assert_eq!(changed, expected, "seed {seed}");
            }
        }
    }
}

#[test]
fn numbers_that_were_given_elsewhere_are_not_given_again() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 10);
    let before = volume.numbers();
    assert_eq!(before.file, lun.0 + 1);
    volume.skip_numbers(Numbers { file: 50, snapshot: 70 });
    volume.skip_numbers(Numbers { file: 20, snapshot: 30 });
    assert_eq!(volume.numbers(), Numbers { file: 50, snapshot: 70 });
    assert_eq!(open(&device).numbers(), before, "nothing is on the device yet");
    assert_eq!(volume.create_snapshot("one").expect("it is made").id, SnapshotId(70));
    assert_eq!(file(&volume, 10), FileId(50));
    assert_eq!(open(&device).numbers(), Numbers { file: 51, snapshot: 71 });
    // A destination has its source's.
    volume.demote("head", false).expect("the device has room");
    let numbers = volume.numbers();
    volume.skip_numbers(Numbers { file: 500, snapshot: 700 });
    assert_eq!(volume.numbers(), numbers);
}

#[test]
fn volume_gives_way_on_a_device_that_has_room_for_it_as_a_destination() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 1, 7).expect("there is room");
    let need = volume.device_bytes_as_destination();
    assert_eq!(need, Volume::device_bytes(1024, Role::Destination));
    device.grow(need - 4096);
    let refused = volume.demote("head", false);
    assert!(
        matches!(refused, Err(VolumeError::DeviceTooSmall { need: n, have }) if (n, have) == (need, need - 4096))
    );
    write(&volume, lun, 1, 1, 7).expect("it is as it was");
    assert_eq!(volume.snapshots(), []);
    device.grow(need);
    let head = volume.demote("head", true).expect("the device has room");
    assert!(head.held);
    assert_eq!(volume.device_bytes_as_destination(), need, "it has all of it");
    let again = volume.failover().and_then(|()| volume.failover());
    assert!(matches!(again, Err(VolumeError::WrongRole(Role::Normal))), "{again:?}");
}

#[test]
fn rollback_to_a_snapshot_that_can_not_be_read_is_refused_and_stops_nothing() {
    let blocks = 1024;
    let (device, volume) = fresh(blocks);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 5, 100).expect("there is room");
    volume.create_snapshot_since("sent", 7).expect("there is room");
    let old = volume.create_snapshot("old").expect("it is made");
    file(&volume, 10);
    write(&volume, lun, 0, 5, 200).expect("there is room");
    volume.create_snapshot("new").expect("it is made");
    drop(volume);
    let inodes = old.root.inode_file.pointer.vbn.0;
    device
        .write_from((cairn_format::layout::space_start(blocks) + inodes) * 4096, &[9; 100])
        .expect("it is there");
    let volume = open(&device);
    write(&volume, lun, 0, 5, 300).expect("there is room");
    let names = |volume: &Arc<Volume>| -> Vec<String> {
        volume.snapshots().into_iter().map(|one| one.name).collect()
    };
    let before = names(&volume);
    let refused = volume.rollback(old.id);
    assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{refused:?}");
    assert_eq!(names(&volume), before, "no snapshot was made for it");
    assert!(volume.status().latched.is_none());
    write(&volume, lun, 1, 4, 300).expect("it goes on");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 0, 5), [300, 301, 302, 303, 304]);
}

/// Its records follow the tail that the demotion set, with the generation of the head: the image
/// that replaces it may be of an earlier one.
#[test]
fn flush_beside_a_demotion_leaves_nothing_that_is_taken_for_a_change_of_the_next_image() {
    for rounds in [2, 20] {
        let (_device, source) = fresh(1024);
        let lun = file(&source, 100);
        write(&source, lun, 0, 50, 1000).expect("there is room");
        let base = source.create_snapshot("base").expect("it is made");
        let (there, copy) = destination_of(&source);
        send(&source, &copy, &base);
        drop(copy);
        // 1: the volume is about to be demoted; 2: the superblock with the new role is about to be
        // written; 3: a flush was made meanwhile.
        let phase = Arc::new(Phase::default());
        let told = phase.clone();
        let tell = move |batch: &[Operation], done: bool| {
            let is_slot = batch.iter().any(|one| matches!(one.request(), Request::Write { offset: 0, .. }));
            if is_slot && !done && told.is(1) {
                told.reach(2);
                told.wait_for(3);
            }
        };
        let copy = open(&Arc::new(Told { below: there.clone(), tell }));
        copy.failover().expect("it fails over");
        for round in 0..rounds {
            write(&copy, lun, 0, 1, 7000 + round).expect("there is room");
            copy.flush().expect("it flushes");
            copy.consistency_point().expect("it commits");
        }
        write(&copy, lun, 0, 1, 7500).expect("there is room");
        phase.reach(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                phase.wait_for(2);
                let flushed = copy.flush();
                phase.reach(3);
                flushed.expect("it flushes");
            });
            copy.demote("head", false).expect("the device has room");
        });
        write(&source, lun, 0, 1, 8000).expect("there is room");
        let target = source.create_snapshot("target").expect("it is made");
        let (mut receiver, image) = brought(&source, &copy, target.id);
        receiver.give_up_head();
        receiver.commit(image).expect("it was given up");
        assert_eq!(copy.status().log_used, 0, "nobody needs the records of the head");
        shows(&copy, lun, 8000);
        drop(copy);
        let copy = open(&there);
        assert_eq!(read(&copy, lun, 0, 2), [8000, 1001], "{rounds} rounds");
        shows(&copy, lun, 8000);
        copy.failover().expect("it fails over");
        write(&copy, lun, 0, 1, 9000).expect("there is room");
        copy.flush().expect("it flushes");
        drop(copy);
        let copy = open(&there);
        assert_eq!(read(&copy, lun, 0, 2), [9000, 1001], "{rounds} rounds");
        copy.consistency_point().expect("it commits");
        shows(&copy, lun, 9000);
    }
}

#[test]
fn inodes_are_listed_from_any_number_on_whatever_files_are_gone() {
    let (_device, volume) = fresh(4096);
    let mut all: Vec<FileId> = Vec::new();
    for step in 0..30 {
        // Numbers of files that never came, too.
        volume.state.lock().next_file += step * 7;
        all.push(file(&volume, 1));
    }
    let image = volume.image(None).expect("it is there");
    for from in 0..volume.numbers().file + 40 {
        let (listed, next) = image.inodes_from(FileId(from)).expect("it can be read");
        let listed: Vec<FileId> = listed.iter().map(|inode| inode.id).collect();
        let expected: Vec<FileId> = all.iter().copied().filter(|id| id.0 >= from).collect();
        assert_eq!((listed, next), (expected, None), "from {from}");
    }
}

/// Tries to receive into a volume whenever its device is used.
#[test]
fn no_transfer_begins_before_a_failover_is_over() {
    let (_device, source) = fresh(1024);
    let lun = file(&source, 100);
    write(&source, lun, 0, 50, 1000).expect("there is room");
    let base = source.create_snapshot("base").expect("it is made");
    let (device, copy) = destination_of(&source);
    send(&source, &copy, &base);
    copy.close().expect("it closes");
    let watched: Arc<std::sync::OnceLock<Arc<Volume>>> = Arc::default();
    let tried = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (to_watch, tries) = (watched.clone(), tried.clone());
    let tell = move |_: &[cairn_device::Operation], _: bool| {
        if let Some(volume) = to_watch.get() {
            tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let received = volume.receive().map(drop);
            assert!(matches!(received, Err(VolumeError::TransferInProgress)), "{received:?}");
        }
    };
    let copy = open(&Arc::new(super::log_device::Told { below: device.clone(), tell }));
    watched.set(copy.clone()).unwrap_or_else(|_| panic!("it is set once"));
    copy.failover().expect("it fails over");
    assert!(tried.load(std::sync::atomic::Ordering::Relaxed) > 4);
    assert_eq!(read(&open(&device), lun, 0, 50), (1000..1050).collect::<Vec<_>>());
}

/// It was not possible a seventh time, so that the source of such a mirror was not to be followed
/// any more.
#[test]
fn destination_grows_as_often_as_its_source() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(200_000, Role::Destination)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: 4096, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let mut volume = open(&device);
    for n in 1..=50 {
        let blocks = 4096 + n * 2048;
        assert!(volume.device_bytes_after_growth(blocks).expect("it grows") <= device.geometry().length);
        volume.grow(blocks).expect("the device has room");
        if n % 10 == 0 {
            drop(volume);
            volume = open(&device);
        }
        let layout = volume.commit.lock().superblock.layout.clone();
        let of = |kind| volume.store.space().blocks(kind);
        assert_eq!((of(SegmentKind::Space), of(SegmentKind::Redirect)), (blocks, blocks), "{layout:?}");
        assert!(of(SegmentKind::Have) * cairn_format::HaveBlock::ENTRIES >= blocks, "{layout:?}");
    }
    volume.failover().expect("it fails over");
    let lun = file(&volume, 50);
    write(&volume, lun, 0, 50, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    drop(volume);
    assert_eq!(read(&open(&device), lun, 0, 50), (1000..1050).collect::<Vec<_>>());
}

#[test]
fn volume_of_as_many_segments_as_there_can_be_gives_way() {
    const HAVE: u64 = cairn_format::HaveBlock::ENTRIES;
    // One more block of have map with the first growth, and none with the others.
    let blocks = 5 * HAVE;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(8 * HAVE, Role::Destination)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let volume = open(&device);
    let segments = |volume: &Volume| volume.commit.lock().superblock.layout.segments.len();
    let mut grown = blocks;
    while segments(&volume) < cairn_format::SEGMENTS_MAX {
        grown += 1;
        volume.grow(grown).expect("the device has room");
    }
    assert_eq!(segments(&volume), cairn_format::SEGMENTS_MAX);
    assert!(
        matches!(volume.grow(grown + 1), Err(VolumeError::TooManySegments)),
        "there is room for no other one"
    );
    volume.failover().expect("it fails over");
    let head = volume.demote("head", false).expect("it needs no more segments");
    assert_eq!(open(&device).own_head(), Some(head));
}

/// It is mended from its source once it is open; and so an image dump is read that is damaged.
#[test]
fn destination_of_which_a_block_of_inodes_has_rotted_shows_the_files_of_the_others() {
    let (_device, source) = fresh(1024);
    let files: Vec<FileId> = (0..3 * INODES_PER_BLOCK).map(|_| file(&source, 1)).collect();
    for file in &files {
        write(&source, *file, 0, 1, file.0).expect("there is room");
    }
    let base = source.create_snapshot("base").expect("it is made");
    let (there, copy) = destination_of(&source);
    send(&source, &copy, &base);
    let (first, lost) = (files[0], *files.last().expect("there are some"));
    let image = copy.image(None).expect("it shows one");
    let inodes = copy.tree(image.committed(), INODE_FILE, image.root().inode_file);
    let rotten = inodes.pointers(&[Lba(lost.0 / INODES_PER_BLOCK)]).remove(0).expect("it is there").vbn;
    drop(image);
    drop(copy);
    let at = (cairn_format::layout::space_start(1024) + rotten.0) * 4096;
    there.write_from(at, &[9; 100]).expect("it is there");

    let copy = open(&there);
    let image = copy.image(None).expect("it shows one");
    assert_eq!(read_image(&image, first, 0, 1), [first.0]);
    assert!(image.inode(lost).is_err(), "nothing is known of it");
    // Blocks that belong to the source alone are unknown too: it takes no writes.
    assert!(copy.failover().is_err());
    assert_eq!(copy.status_role(), Role::Destination);
}
