//! The lag since a snapshot: which changes count, and from when.

use std::time::Duration;

use cairn_base::{Clock, Generation, SnapshotId};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn clocked(clock: &Arc<ManualClock>, device: &Arc<MemoryDevice>) -> Arc<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    Volume::open(device.clone(), options).expect("the volume opens")
}

/// A volume with a clock that can be turned, a file in it and a snapshot of both.
fn made() -> (Arc<ManualClock>, Arc<MemoryDevice>, Arc<Volume>, FileId, Snapshot) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000)));
    let volume = clocked(&clock, &device);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 20, 100).expect("there is room");
    let base = volume.create_snapshot("base").expect("it is made");
    (clock, device, volume, lun, base)
}

/// How long ago the first change after a snapshot was made, and how many blocks there are of it.
fn behind(volume: &Arc<Volume>, base: &Snapshot) -> (Option<Duration>, u64) {
    let behind = volume.changed_since_snapshot(base.id).expect("its map can be read");
    let age = behind.first_change.map(|first| behind.now.since(first));
    assert_eq!(age, volume.age_of_changes(&base.root), "both ways to ask agree");
    (age, behind.blocks)
}

#[test]
fn first_change_after_a_snapshot_is_what_its_age_counts_from() {
    let (clock, _device, volume, lun, base) = made();
    clock.advance(100 * SECOND);
    assert_eq!(behind(&volume, &base), (None, 0), "time alone changes nothing");
    write(&volume, lun, 0, 3, 200).expect("there is room");
    clock.advance(7 * SECOND);
    assert_eq!(behind(&volume, &base), (Some(7 * SECOND), 3), "what is in memory counts");
    write(&volume, lun, 50, 2, 200).expect("there is room");
    assert_eq!(behind(&volume, &base), (Some(7 * SECOND), 5), "and a later change makes it no younger");
    volume.consistency_point().expect("it commits");
    clock.advance(5 * SECOND);
    let (age, committed) = behind(&volume, &base);
    let map = volume.changed_blocks(&[], base.id).expect("they are compared");
    assert_eq!(age, Some(12 * SECOND));
    assert!((5..30).contains(&committed), "{committed} blocks: five of data, and nodes; not all of {map:?}");
    write(&volume, lun, 60, 4, 200).expect("there is room");
    assert_eq!(behind(&volume, &base), (Some(12 * SECOND), committed + 4));
    let second = volume.create_snapshot("second").expect("it is made");
    clock.advance(SECOND);
    assert_eq!(behind(&volume, &second), (None, 0));
    assert_eq!(behind(&volume, &base).0, Some(13 * SECOND), "that of the older one goes on");
    // A wall clock that is set changes no age.
    write(&volume, lun, 0, 1, 300).expect("there is room");
    clock.set(Timestamp(5_000_000_000_000));
    clock.advance(2 * SECOND);
    assert_eq!(behind(&volume, &second).0, Some(2 * SECOND));
    // A rollback is a change from the moment at which it was made.
    let third = volume.create_snapshot("third").expect("it is made");
    clock.advance(50 * SECOND);
    volume.rollback(base.id).expect("it rolls back");
    clock.advance(4 * SECOND);
    assert_eq!(behind(&volume, &third).0, Some(4 * SECOND));
    let unknown = volume.changed_since_snapshot(SnapshotId(99));
    assert!(matches!(unknown, Err(VolumeError::NoSuchSnapshot(SnapshotId(99)))), "{unknown:?}");
}

#[test]
fn snapshot_after_which_nothing_was_written_is_not_behind() {
    let (clock, device, volume, _lun, base) = made();
    clock.advance(SECOND);
    // Bookkeeping of a mirror is not a visible change.
    volume.create_snapshot_since("sent", 7).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(behind(&volume, &base), (None, 0));
    volume.close().expect("it closes");
    clock.advance(SECOND);
    let volume = clocked(&clock, &device);
    assert_eq!(behind(&volume, &base), (None, 0), "nor after a restart");
}

#[test]
fn age_of_what_accumulates_for_a_mirror_counts_from_its_first_change_also_when_its_base_is_gone() {
    let (clock, _device, volume, lun, _base) = made();
    let sent = volume.create_snapshot_since("sent", 7).expect("there is room");
    let file = volume.since_files(7).expect("it has begun").accumulating;
    volume.delete_snapshots(&[sent.id]).expect("it is deleted");
    let age = || {
        let behind = volume.changed_since_beginning(7, file, None).expect("its map can be read");
        behind.first_change.map(|first| behind.now.since(first))
    };
    clock.advance(50 * SECOND);
    // The bookkeeping of another relationship enters the map, and is not a visible change.
    volume.create_snapshot_since("another", 9).expect("there is room");
    assert_eq!(age(), None);
    clock.advance(50 * SECOND);
    write(&volume, lun, 0, 3, 200).expect("there is room");
    clock.advance(7 * SECOND);
    assert_eq!(age(), Some(7 * SECOND));
    volume.consistency_point().expect("it commits");
    clock.advance(SECOND);
    assert_eq!(age(), Some(8 * SECOND));
    // The in-flight changes keep their start, and the next ones start here.
    volume.create_snapshot_since("next", 7).expect("there is room");
    let next = volume.since_files(7).expect("it goes on").accumulating;
    clock.advance(SECOND);
    assert_eq!(age(), Some(9 * SECOND));
    let behind = volume.changed_since_beginning(7, next, None).expect("its map can be read");
    assert_eq!(behind.first_change, None);
}

#[test]
fn change_from_before_a_restart_counts_from_the_snapshot_or_from_the_restart_if_that_is_longer() {
    for logged in [false, true] {
        let (clock, device, volume, lun, base) = made();
        clock.advance(100 * SECOND);
        write(&volume, lun, 0, 3, 200).expect("there is room");
        match logged {
            true => volume.flush().expect("it flushes"),
            false => volume.close().expect("it closes"),
        }
        drop(volume);
        clock.advance(10 * SECOND);
        let volume = clocked(&clock, &device);
        let at_opening = clock.now();
        assert_eq!(behind(&volume, &base).0, Some(110 * SECOND), "logged: {logged}");
        // Later writes come after it.
        write(&volume, lun, 9, 1, 300).expect("there is room");
        clock.advance(SECOND);
        volume.consistency_point().expect("it commits");
        assert_eq!(behind(&volume, &base).0, Some(111 * SECOND), "logged: {logged}");
        let second = volume.create_snapshot("second").expect("it is made");
        write(&volume, lun, 9, 1, 400).expect("there is room");
        clock.advance(3 * SECOND);
        assert_eq!(behind(&volume, &second).0, Some(3 * SECOND), "of its own time more is known");
        // A clock that goes back to before the snapshot hides no change that existed when the
        // volume was opened.
        clock.set(Timestamp(base.root.created.0 - 1_000_000_000));
        assert!(clock.now() < at_opening);
        assert_eq!(behind(&volume, &base).0, Some(4 * SECOND), "logged: {logged}");
    }
}

#[test]
fn lag_that_began_more_generations_ago_than_are_remembered_is_never_told_as_less() {
    let (clock, _device, volume, lun, base) = made();
    clock.advance(50 * SECOND);
    let mut middle = None;
    let rounds = 4096 + 40;
    for round in 0..rounds {
        write(&volume, lun, round % 100, 1, round).expect("there is room");
        clock.advance(SECOND);
        volume.consistency_point().expect("it commits");
        if round == 20 {
            middle = Some(volume.create_snapshot("middle").expect("it is made"));
        }
    }
    let late = volume.create_snapshot("late").expect("it is made");
    write(&volume, lun, 0, 1, 5).expect("there is room");
    clock.advance(SECOND);
    let age = |snapshot: &Snapshot| behind(&volume, snapshot).0.expect("something was written since");
    assert_eq!(age(&late), SECOND);
    let since_base = Duration::from_secs(50 + rounds + 1);
    assert_eq!(age(&base), since_base, "it is told from the snapshot, which is a little more");
    assert_eq!(age(&middle.expect("it was made")), Duration::from_secs(rounds - 21 + 1));
    let kept = volume.state.lock().first_changes.len();
    assert!(kept <= 4096, "{kept} are remembered");
}

#[test]
fn times_of_a_head_that_was_given_up_are_not_those_of_the_image_that_replaced_it() {
    let (clock, _device, source, lun, base) = made();
    clock.advance(10 * SECOND);
    write(&source, lun, 0, 3, 200).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Destination)));
    let options = FormatOptions { id: source.id(), blocks: 4096, role: Role::Destination };
    Volume::format(&*device, &options, &*clock).expect("it is formatted");
    let copy = clocked(&clock, &device);
    super::redirects::send(&source, &copy, &base);
    // A head that is many generations ahead.
    copy.failover().expect("it fails over");
    for round in 0..20 {
        write(&copy, lun, 0, 1, round).expect("there is room");
        clock.advance(SECOND);
        copy.consistency_point().expect("it commits");
    }
    copy.demote("head", false).expect("the device has room");
    let (mut receiver, image) = super::sides::brought(&source, &copy, target.id);
    receiver.give_up_head();
    receiver.commit(image).expect("it was given up");
    clock.advance(50 * SECOND);
    copy.failover().expect("it fails over");
    let own = copy.create_snapshot("own").expect("it is made");
    write(&copy, lun, 0, 1, 7).expect("there is room");
    clock.advance(2 * SECOND);
    copy.consistency_point().expect("it commits");
    clock.advance(SECOND);
    assert_eq!(behind(&copy, &own).0, Some(3 * SECOND));
    // The time of the source's changes is unknown here: it counts from the snapshot.
    assert_eq!(behind(&copy, &base).0, Some(83 * SECOND));
}

#[test]
fn what_the_log_brought_back_is_committed_in_time_and_without_it_nothing_is_due() {
    let (clock, device, volume, lun, base) = made();
    drop(volume);
    let volume = clocked(&clock, &device);
    assert_eq!(volume.state.lock().changed_since, None, "the background has nothing to wait for");
    clock.advance(20 * SECOND);
    write(&volume, lun, 0, 3, 200).expect("there is room");
    clock.advance(7 * SECOND);
    assert_eq!(behind(&volume, &base), (Some(7 * SECOND), 3), "the restart is no change");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = clocked(&clock, &device);
    volume.background(Duration::ZERO).expect("it goes on");
    assert_eq!(volume.status().consistency_points, 0);
    clock.advance(11 * SECOND);
    volume.background(Duration::ZERO).expect("it goes on");
    assert_eq!(volume.status().consistency_points, 1);
}

#[test]
fn changes_since_a_map_began_are_those_since_the_snapshot_with_which_it_did() {
    const RELATIONSHIP: u64 = 7;
    let (clock, _device, volume, lun, _) = made();
    let base = volume.create_snapshot_since("sent", RELATIONSHIP).expect("there is room");
    let compare = |base: &Snapshot, file: FileId| {
        let known = Some((base.root.generation, base.root.changed));
        let expected = volume.changed_since_snapshot(base.id).expect("its map can be read");
        for known in [known, None] {
            let behind = volume.changed_since_beginning(RELATIONSHIP, file, known).expect("it is known");
            assert_eq!(behind, expected, "{}", base.name);
        }
        expected.blocks
    };
    let maps = || volume.since_files(RELATIONSHIP).expect("it has maps");
    let first = maps().accumulating;
    assert_eq!(compare(&base, first), 0);
    write(&volume, lun, 0, 3, 200).expect("there is room");
    clock.advance(SECOND);
    assert_eq!(compare(&base, first), 3, "what is in memory counts");
    volume.consistency_point().expect("it commits");
    assert!(compare(&base, first) > 3);
    write(&volume, lun, 10, 5, 200).expect("there is room");
    assert!(compare(&base, first) > 8);
    let second = volume.create_snapshot_since("again", RELATIONSHIP).expect("there is room");
    clock.advance(SECOND);
    assert_eq!(maps().in_flight, Some(first));
    let next = maps().accumulating;
    assert_eq!(compare(&second, next), 0);
    let sent = compare(&base, first);
    for round in 0..2 {
        write(&volume, lun, 20, 7, 300 + round).expect("there is room");
        clock.advance(SECOND);
        let own = compare(&second, next);
        assert!(own >= 7 && compare(&base, first) > sent.max(own), "what is in flight and what came since");
        volume.consistency_point().expect("it commits");
    }
    let unknown = volume.changed_since_beginning(9, next, None);
    assert!(matches!(unknown, Err(VolumeError::Refused(_))), "{unknown:?}");
}

#[test]
fn age_of_a_change_among_the_first_that_are_forgotten_is_never_told_as_less() {
    const MOST: u64 = 4096;
    let (clock, _device, volume, _lun, _base) = made();
    clock.advance(9000 * SECOND);
    let now = clock.monotonic();
    let first = volume.open_generation();
    assert_eq!(first.0, volume.status().generation.0 + 1);
    let changed_at = |back: u64| now - SECOND * back as u32;
    for number in 0..MOST + 20 {
        volume.state.lock().changed_at(Generation(first.0 + number), changed_at(8000 - number));
        // Later changes in the same generation do not make it younger.
        volume.state.lock().changed_at(Generation(first.0 + number), now);
    }
    assert!(volume.state.lock().first_changes.len() as u64 <= MOST);
    for number in 0..MOST + 20 {
        let base = Generation(first.0 + number - 1);
        let real = now - changed_at(8000 - number);
        let created = Timestamp(volume.now().0 - real.as_nanos() as u64 - 5_000_000_000);
        let (age, _) = volume.first_change_after(Some((base, Timestamp(0))), created);
        let more = if number < 20 { 5 * SECOND } else { Duration::ZERO };
        assert_eq!(age, Some(real + more), "{number}");
    }
}

#[test]
fn changes_that_could_not_be_committed_are_counted_as_those_in_memory_that_they_are() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let volume = open(&device);
    let lun = file(&volume, 100);
    let base = volume.create_snapshot("base").expect("it is made");
    assert_eq!(volume.status().dirty, 0);
    volume.punch(lun, Lba(0), 1).expect("it is punched");
    write(&volume, lun, 10, 5, 100).expect("there is room");
    let dirty = volume.status().dirty;
    assert!(dirty >= 5, "{dirty}");
    device.fail_operations(0, u64::MAX, cairn_device::DeviceError::OutOfService);
    assert!(volume.consistency_point().is_err());
    assert_eq!(volume.status().dirty, dirty);
    assert_eq!(behind(&volume, &base).1, dirty);
    volume.close().expect("nothing can be committed any more");
}

#[test]
fn time_of_a_volume_is_that_of_its_clock() {
    let (clock, _device, volume, _lun, _base) = made();
    clock.advance(3 * SECOND);
    assert_eq!((volume.now(), volume.coarse_now()), (clock.now(), clock.coarse()));
    assert_ne!(volume.now(), Timestamp(0));
}

#[test]
fn age_of_what_a_relationship_has_not_sent_counts_from_where_each_of_its_maps_begins() {
    let (clock, _device, volume, lun, _base) = made();
    let age = |relationship: u64, map: FileId| {
        let behind = volume.changed_since_beginning(relationship, map, None).expect("it is known");
        behind.first_change.map(|first| behind.now.since(first))
    };
    let begin = |name: &str, relationship: u64| {
        volume.create_snapshot_since(name, relationship).expect("there is room");
        clock.advance(100 * SECOND);
        volume.since_files(relationship).expect("it has begun").accumulating
    };
    let write_and_wait = |seconds: u32| {
        write(&volume, lun, 0, 1, u64::from(seconds)).expect("there is room");
        clock.advance(seconds * SECOND);
        volume.consistency_point().expect("it commits");
    };
    let first = begin("first", 7);
    write_and_wait(2);
    let other = begin("other", 8);
    write_and_wait(3);
    let second = begin("second", 7);
    assert_eq!(volume.since_files(7).expect("it goes on").in_flight, Some(first));
    write_and_wait(4);
    assert_eq!(age(7, second), Some(4 * SECOND));
    assert_eq!(age(8, other), Some(107 * SECOND));
    assert_eq!(age(7, first), Some(209 * SECOND), "what is in flight is not there yet");
}

/// A clock that advances by a second on every reading, as if some work took that long in between.
struct Ticking(Arc<ManualClock>);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        self.0.advance(SECOND);
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

#[test]
fn time_that_counting_takes_makes_the_first_change_no_younger() {
    let (clock, device, volume, lun, base) = made();
    let sent = volume.create_snapshot_since("sent", 7).expect("there is room");
    let known = Some((sent.root.generation, sent.root.changed));
    let snapshots_at = clock.now();
    write(&volume, lun, 0, 3, 200).expect("there is room");
    volume.close().expect("it closes");
    let options = OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(Ticking(clock.clone())) };
    let volume = Volume::open(device, options).expect("the volume opens");
    let file = volume.since_files(7).expect("it has begun").accumulating;
    clock.advance(100 * SECOND);
    // Of before this run of the program no more is known than when they were made.
    let behind = volume.changed_since_snapshot(base.id).expect("its map can be read");
    assert_eq!(behind.first_change, Some(snapshots_at));
    let behind = volume.changed_since_beginning(7, file, known).expect("its map can be read");
    assert_eq!(behind.first_change, Some(snapshots_at));
}
