//! Mirrors whose source holds no base: since maps, and comparing checksums when those are lost too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{Checksum, Clock, FileId, Lba, ManualClock, Rng, Timestamp};
use cairn_device::{BlockMut, Device, DeviceError, Geometry, MemoryDevice, Operation, Request};
use cairn_volume::{BlockRead, Role, Volume};

use super::harness::{BLOCKS, Pair, Trouble, assert_clean, copy_of, fingerprint, open};
use crate::locks::Mutex;
use crate::{
    Destination, GivesUp, MirrorError, Options, PeerName, Refusal, Relationship, SourceVolumes, TransferKind,
    TransferProgress, TransferReport, Work,
};

fn unheld(seed: u64) -> (Pair, Rng) {
    let mut pair = Pair::new(seed);
    pair.hold = false;
    (pair, Rng::new(seed))
}

fn delete_all(pair: &Pair) {
    for snapshot in pair.source.snapshots() {
        pair.source.hold_snapshot(snapshot.id, false).expect("released");
        pair.source.delete_snapshots(&[snapshot.id]).expect("deleted");
    }
}

#[test]
fn an_update_is_incremental_after_every_snapshot_of_the_source_was_deleted() {
    let (pair, mut rng) = unheld(0);
    for file in pair.files.clone() {
        pair.write(file, 0, 300, &mut rng);
    }
    pair.source.create_snapshot("daily").expect("a snapshot");
    assert_eq!(pair.update().expect("a baseline").kind, TransferKind::Baseline);
    for round in 0..8 {
        delete_all(&pair);
        let free = pair.source.status().free;
        pair.write(pair.files[0], round * 20, 20, &mut rng);
        let report = pair.update().expect("an update");
        assert_eq!(report.kind, TransferKind::Update);
        assert!((20..80).contains(&report.blocks), "round {round}: {report:?}");
        pair.assert_same();
        assert_eq!(pair.source.snapshots(), [], "nothing is kept at the source");
        let now = pair.source.status().free;
        assert!(
            now + 10 >= free,
            "round {round}: nothing is pinned there: {free} blocks were free, {now} are"
        );
        let again = pair.update().expect("nothing to do");
        assert_eq!((again.kind, again.bytes), (TransferKind::UpToDate, 0), "round {round}");
        let lag = pair.mirror();
        let lag = pair.refresh(&lag).expect("the source answers");
        assert_eq!((lag.age.as_nanos(), lag.bytes), (0, 0), "round {round}");
    }
}

#[test]
fn lag_during_a_transfer_without_a_held_base_is_that_of_the_first_change() {
    for names_too in [false, true] {
        let (pair, mut rng) = unheld(4);
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.clock.advance(Duration::from_secs(7 * 24 * 3600));
        assert_eq!(pair.update().expect("nothing to do").kind, TransferKind::UpToDate);
        pair.clock.advance(Duration::from_secs(3600));
        if names_too {
            pair.source.create_snapshot("daily").expect("a snapshot");
        }
        pair.write(pair.files[0], 0, 3, &mut rng);
        pair.clock.advance(Duration::from_secs(5));
        let mirror = pair.mirror();
        let mut during = Vec::new();
        let updated = pair.converse(|client| {
            let cancel = AtomicBool::new(false);
            let mut progress = |_: &TransferProgress| during.extend(mirror.lag());
            let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
            mirror.update(client, &mut work)
        });
        assert_eq!(updated.expect("an update").kind, TransferKind::Update);
        assert!(!during.is_empty());
        for lag in during {
            assert_eq!((lag.age, lag.bytes > 0), (Duration::from_secs(5), true), "{lag:?}");
        }
        assert_eq!(mirror.lag().map(|lag| lag.age), Some(Duration::ZERO));
    }
}

#[test]
fn an_update_of_names_alone_keeps_the_map_going() {
    let (mut pair, mut rng) = unheld(7);
    pair.hold = true;
    pair.write(pair.files[0], 0, 300, &mut rng);
    for round in 0..4 {
        pair.update().expect("an update");
        pair.source.create_snapshot("name").expect("a snapshot");
        assert_eq!(pair.update().expect("an update of names").blocks, 0);
        delete_all(&pair);
        pair.write(pair.files[0], round, 1, &mut rng);
        let report = pair.update().expect("an update by the map");
        assert!((1..60).contains(&report.blocks), "{report:?}");
        pair.assert_same();
    }
}

/// Snapshots, rollbacks, punches, deletions; restarts of both sides; cuts, also after the commit.
#[test]
fn random_work_without_a_held_base_is_mirrored() {
    let mut cuts = 0;
    for seed in 0..10 {
        let (mut pair, mut rng) = unheld(seed);
        for round in 0..14 {
            for _ in 0..rng.below(30) {
                pair.work(&mut rng);
            }
            if rng.one_in(3) {
                let cut_after = rng.below(400_000);
                let trouble = Trouble { cut_after: Some(cut_after), ..Trouble::default() };
                let outcome = pair.update_with(&pair.mirror(), trouble);
                cuts += u64::from(outcome.is_err());
            } else {
                match pair.update() {
                    Ok(_) => pair.assert_same(),
                    Err(error) => panic!("seed {seed} round {round}: {error}"),
                }
            }
            match rng.below(6) {
                0 => pair.reopen_destination(),
                1 => pair.registry = std::sync::Arc::default(),
                2 => delete_all(&pair),
                3 => pair.move_home(),
                4 => pair.add_file(),
                // Sometimes the base is held for a while.
                _ => pair.hold = !pair.hold,
            }
        }
        pair.update().expect("the last update");
        pair.assert_same();
    }
    assert!(cuts > 5, "{cuts} cuts");
}

#[test]
fn a_lost_acknowledgement_costs_nothing() {
    let (pair, mut rng) = unheld(3);
    pair.write(pair.files[0], 0, 300, &mut rng);
    let whole = pair.update().expect("a baseline").bytes;
    for round in 0..5 {
        pair.write(pair.files[1], round, 1, &mut rng);
        let trouble = Trouble { loses_answer: true, ..Trouble::default() };
        let report = pair.update_with(&pair.mirror(), trouble).expect("the image is committed");
        assert!(!report.confirmed && report.kind == TransferKind::Update, "{report:?}");
        pair.assert_same();
        if round % 2 == 0 {
            let next = pair.update().expect("the next update");
            assert_eq!(next.kind, TransferKind::UpToDate, "{next:?}");
        }
        assert_eq!(pair.source.snapshots().len(), 0);
    }
    pair.write(pair.files[0], 0, 10, &mut rng);
    let report = pair.update().expect("an update");
    assert!(report.bytes < whole / 4, "{report:?}");
    pair.assert_same();
}

#[test]
fn two_mirrors_without_a_held_base_do_not_wake_each_other() {
    let (pair, mut rng) = unheld(4);
    pair.write(pair.files[0], 0, 100, &mut rng);
    let other = Pair::new(5);
    let second =
        Destination::new(other.destination.clone(), "vol0", Relationship(0xdef), pair.compression, None);
    second.set_options(Options { hold: false, ..second.options() });
    let both = |kind| {
        let first = pair.update().expect("the first");
        let second = pair.update_with(&second, Trouble::default()).expect("the second");
        assert_eq!((first.kind, second.kind), (kind, kind));
    };
    both(TransferKind::Baseline);
    for round in 0..3 {
        for _ in 0..3 {
            both(TransferKind::UpToDate);
        }
        let refreshed = pair.refresh(&pair.mirror()).expect("the source answers");
        assert_eq!((refreshed.age.as_nanos(), refreshed.bytes), (0, 0));
        pair.write(pair.files[0], round, 1, &mut rng);
        both(TransferKind::Update);
        pair.assert_same();
    }
}

#[test]
fn when_nothing_is_common_the_price_is_said_and_only_the_difference_is_sent() {
    for hold in [true, false] {
        let (mut pair, mut rng) = unheld(6);
        pair.hold = hold;
        for file in pair.files.clone() {
            pair.write(file, 0, 300, &mut rng);
        }
        pair.source.create_snapshot("daily").expect("a snapshot");
        pair.update().expect("a baseline");
        let name = pair.registry.mirrors(&pair.source).expect("the mirrors").remove(0).name;
        pair.registry.forget(&pair.source, &name).expect("forgotten");
        delete_all(&pair);
        pair.write(pair.files[0], 0, 25, &mut rng);
        let before = fingerprint(&pair.destination);
        let error = pair.update().expect_err("nothing is common, and nothing is sent silently");
        let MirrorError::CompareNeeded { compare_bytes, data_bytes_max } = error else { panic!("{error:?}") };
        assert_eq!(fingerprint(&pair.destination), before);
        let asked = AtomicU64::new(0);
        let trouble = Trouble { compare: true, asked: Some(&asked), ..Trouble::default() };
        let report = pair.update_with(&pair.mirror(), trouble).expect("an update");
        pair.assert_same();
        assert!((25..120).contains(&report.blocks), "{report:?}");
        assert!(report.blocks * 4096 <= data_bytes_max, "{report:?} {data_bytes_max}");
        let asked = asked.load(Ordering::Relaxed);
        // In addition to the claims: hello, the request, the acknowledgement; and the source's
        // questions count.
        assert!(asked.abs_diff(compare_bytes) < 800, "asked {asked}, said {compare_bytes}");
        pair.write(pair.files[0], 0, 5, &mut rng);
        let next = pair.update().expect("the next is an update again");
        assert!(next.blocks < 60, "{next:?}");
        pair.assert_same();
    }
}

/// A history under its volume can do that: the destination's whole state is of an earlier time, and
/// the source has released the snapshot that was common then.
#[test]
fn destination_that_went_back_gets_the_right_image_or_is_told_the_price() {
    for (hold, kept) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut pair, mut rng) = unheld(8);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        if kept {
            pair.source.create_snapshot("kept").expect("a snapshot");
        }
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        pair.update().expect("an update");
        let earlier = copy_of(&pair.destination_device);
        let shown = fingerprint(&pair.destination);
        for round in 0..3 {
            pair.write(pair.files[0], round * 30, 60, &mut rng);
            pair.update().expect("an update");
        }
        // The last one is interrupted, and its arrivals are lost as well.
        pair.write(pair.files[0], 100, 100, &mut rng);
        let trouble = Trouble { cut_after: Some(200_000), ..Trouble::default() };
        pair.update_with(&pair.mirror(), trouble).expect_err("it is cut");
        pair.destination_device.write_from(0, &earlier).expect("it goes back");
        pair.reopen_destination();
        assert_eq!(fingerprint(&pair.destination), shown);
        pair.clock.advance(Duration::from_secs(60));
        let lag = pair.refresh(&pair.mirror()).expect("the source answers");
        assert!(lag.age >= Duration::from_secs(60), "{hold} {kept}: an older image is shown: {lag:?}");
        pair.write(pair.files[1], 20, 10, &mut rng);
        match pair.update() {
            Ok(report) => assert!(kept && report.kind == TransferKind::Update, "{hold} {kept}: {report:?}"),
            Err(MirrorError::CompareNeeded { .. }) => {
                assert!(!kept, "{hold}");
                assert_eq!(fingerprint(&pair.destination), shown);
                let trouble = Trouble { compare: true, ..Trouble::default() };
                pair.update_with(&pair.mirror(), trouble).expect("an update");
            }
            Err(error) => panic!("{hold} {kept}: {error}"),
        }
        pair.assert_same();
        pair.write(pair.files[0], 7, 5, &mut rng);
        let next = pair.update().expect("the next is an update again");
        assert!(next.blocks < 60, "{hold} {kept}: {next:?}");
        pair.assert_same();
    }
}

/// The other way round: the destination has an image that the source no longer knows, and the
/// source must not reuse a number of that.
#[test]
fn source_that_went_back_never_takes_what_is_lost_for_what_came_since() {
    for hold in [true, false] {
        let (mut pair, mut rng) = unheld(9);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        pair.update().expect("an update");
        pair.source.consistency_point().expect("it commits");
        let earlier = copy_of(&pair.source_device);
        pair.write(pair.files[0], 100, 100, &mut rng);
        pair.update().expect("an update to what is lost");
        pair.source.consistency_point().expect("it commits");
        let numbers = Volume::inspect(&*pair.source_device).expect("a volume").numbers;
        pair.source_device.write_from(0, &earlier).expect("it goes back");
        pair.source = open(&pair.source_device, &pair.clock);
        pair.source.skip_numbers(numbers);

        pair.write(pair.files[0], 50, 200, &mut rng);
        let shown = fingerprint(&pair.destination);
        let needs = |outcome| matches!(outcome, Err(MirrorError::CompareNeeded { .. }));
        assert!(hold || needs(pair.update()), "nothing is common");
        // The source begins a map for an image that does not arrive.
        let trouble = || Trouble { compare: !hold, ..Trouble::default() };
        let cut = Trouble { cut_after: Some(200_000), ..trouble() };
        pair.update_with(&pair.mirror(), cut).expect_err("it is cut");
        assert_eq!(fingerprint(&pair.destination), shown);
        // With a base that is held, the image that is lost had that one among its snapshots.
        assert!(hold || needs(pair.update()), "nothing is common still");
        pair.update_with(&pair.mirror(), trouble()).expect("an update");
        pair.assert_same();
        pair.write(pair.files[0], 7, 5, &mut rng);
        let next = pair.update().expect("the next is an update again");
        assert!(next.blocks < 60, "{hold}: {next:?}");
        pair.assert_same();
    }
}

/// The source was restored from a backup, or a stale copy of it is asked: it does not know which
/// numbers were assigned since. The mirror alone may have the newest content.
#[test]
fn image_that_a_source_from_a_backup_never_made_stays_until_it_is_given_up() {
    for (hold, updates) in [(true, 4), (true, 1), (false, 4), (false, 1)] {
        let (mut pair, mut rng) = unheld(10);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.source.create_snapshot("kept").expect("a snapshot");
        pair.update().expect("a baseline");
        pair.source.consistency_point().expect("it commits");
        let earlier = copy_of(&pair.source_device);
        for round in 0..updates {
            pair.write(pair.files[0], round * 30, 60, &mut rng);
            pair.update().expect("an update to what is lost");
        }
        pair.source_device.write_from(0, &earlier).expect("the backup is put back");
        pair.source = open(&pair.source_device, &pair.clock);
        let shown = fingerprint(&pair.destination);
        pair.write(pair.files[1], 0, 40, &mut rng);
        for again in 0..3 {
            let trouble = Trouble { compare: again == 2, ..Trouble::default() };
            let refused = pair.update_with(&pair.mirror(), trouble);
            assert!(
                matches!(refused, Err(MirrorError::Refused(Refusal::Diverged(_)))),
                "{hold} {updates}: {refused:?}"
            );
            assert_eq!(fingerprint(&pair.destination), shown, "{hold} {updates}");
        }
        let (image, root) = pair.mirror().received().expect("an image");
        pair.gives_up = Some(GivesUp { head: image.id, image: Some(root), spilled: false });
        pair.update().expect("it follows the backup");
        pair.assert_same();
        let mirror = pair.mirror();
        let (now, _) = mirror.received().expect("an image");
        assert!(updates != 1 || now.id == image.id, "{hold}: the number is given again");
        pair.write(pair.files[0], 7, 5, &mut rng);
        let next = pair.update().expect("the next is an update again");
        assert!(next.blocks < 60, "{hold} {updates}: {next:?}");
        pair.assert_same();
        assert_clean(&pair.destination);
        pair.mirror().failover().expect("a failover");
    }
}

/// The source assigns the same numbers again, and the snapshot with the image's number is deleted:
/// its later messages do not reveal that it was set back.
#[test]
fn image_that_a_source_from_a_backup_never_made_stays_however_many_snapshots_that_has_made_since() {
    for hold in [true, false] {
        let (mut pair, mut rng) = unheld(12);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.source.create_snapshot("kept").expect("a snapshot");
        pair.update().expect("a baseline");
        pair.source.consistency_point().expect("it commits");
        let earlier = copy_of(&pair.source_device);
        for round in 0..4 {
            pair.write(pair.files[0], round * 30, 60, &mut rng);
            pair.update().expect("an update to what is lost");
        }
        pair.source.consistency_point().expect("it commits");
        let later = copy_of(&pair.source_device);
        pair.source_device.write_from(0, &earlier).expect("the backup is put back");
        pair.source = open(&pair.source_device, &pair.clock);
        let is_refused = |outcome: Result<TransferReport, MirrorError>| {
            let parted = matches!(outcome, Err(MirrorError::Refused(Refusal::Diverged(_))));
            assert!(parted, "{hold}: {outcome:?}");
        };
        let mirror = pair.mirror();
        is_refused(pair.update_with(&mirror, Trouble::default()));
        let shown = fingerprint(&pair.destination);
        let mut made = Vec::new();
        while pair.source.numbers().snapshot <= mirror.base().0.0 + 1 {
            pair.write(pair.files[1], 0, 40, &mut rng);
            made.push(pair.source.create_snapshot(&format!("hourly{}", made.len())).expect("a snapshot").id);
        }
        pair.source.delete_snapshots(&made).expect("they are deleted");
        is_refused(pair.update_with(&mirror, Trouble::default()));
        // The server of the mirror restarts.
        let again = pair.mirror();
        again.remember_parted(mirror.parted());
        is_refused(pair.update_with(&again, Trouble::default()));
        is_refused(pair.update_with(&again, Trouble { compare: true, ..Trouble::default() }));
        assert_eq!(fingerprint(&pair.destination), shown, "{hold}");
        // The right one replaces it, and has the image shown.
        pair.source_device.write_from(0, &later).expect("it is put back");
        pair.source = open(&pair.source_device, &pair.clock);
        pair.write(pair.files[0], 7, 5, &mut rng);
        pair.update_with(&again, Trouble::default()).expect("it goes on by itself");
        assert_eq!(again.parted(), None);
        pair.assert_same();
    }
}

/// A mirror is reverted to an earlier image: its source's earlier record of it is no longer true.
#[test]
fn source_tells_no_lag_of_an_image_from_which_its_mirror_went_back() {
    let ways = [(true, false), (false, false), (true, true), (false, true)];
    for ((hold, kept), updates) in ways.into_iter().flat_map(|way| [(way, 1), (way, 2)]) {
        let (mut pair, mut rng) = unheld(13);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        if kept {
            pair.source.create_snapshot("kept").expect("a snapshot");
        }
        let first = pair.update().expect("a baseline").target;
        if kept && hold {
            pair.source.rename_snapshot(first, "also-kept").expect("it is renamed");
        }
        let (earlier, at) = (copy_of(&pair.destination_device), pair.clock.now());
        pair.clock.advance(Duration::from_secs(10));
        for round in 0..updates {
            pair.write(pair.files[0], round * 50, 50, &mut rng);
            pair.update().expect("an update");
        }
        pair.clock.advance(Duration::from_secs(100));
        let behind = |pair: &Pair| pair.registry.mirrors(&pair.source).expect("the mirrors").remove(0).behind;
        let age = |pair: &Pair| {
            let behind = behind(pair)?;
            Some(behind.first_change.map_or(Duration::ZERO, |first| behind.now.since(first)))
        };
        assert_eq!(age(&pair), Some(Duration::ZERO), "{hold} {kept}");
        pair.destination_device.write_from(0, &earlier).expect("it goes back");
        pair.reopen_destination();
        let mirror = pair.mirror();
        let lag = pair.refresh(&mirror).expect("the source answers").age;
        assert!(lag >= Duration::from_secs(100), "{hold} {kept}: {lag:?}");
        let told = age(&pair);
        assert!(
            told.is_none_or(|told| told >= Duration::from_secs(100)),
            "{hold} {kept} {updates}: {told:?}"
        );
        // The in-flight map began at the previous image.
        assert_eq!(told.is_some(), updates == 1 || kept && hold, "where what it shows is known here");
        assert!(pair.clock.now().since(at) >= lag);
        pair.update_with(&mirror, Trouble { compare: true, ..Trouble::default() }).expect("an update");
        assert_eq!(age(&pair), Some(Duration::ZERO), "{hold} {kept}: it has confirmed one");
    }
}

/// Damages the block of inodes with the source's since maps; returns its content and its place.
fn rot_since_maps(pair: &mut Pair) -> (u64, Vec<u8>) {
    let bytes = copy_of(&pair.source_device);
    // The kind of an inode is its first byte.
    let may_be = |block: &[u8]| block.chunks(128).any(|inode| inode[0] == 3 || inode[0] == 4);
    for (at, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| may_be(block)) {
        let offset = at as u64 * 4096;
        pair.source_device.write_from(offset, &[9; 4096]).expect("written");
        pair.source = open(&pair.source_device, &pair.clock);
        if pair.source.status().latched.is_some() {
            return (offset, block.to_vec());
        }
        pair.source_device.write_from(offset, block).expect("written");
    }
    panic!("no block has them");
}

/// They are not lost permanently: the error leads its reader to a full comparison, or to a new
/// baseline.
#[test]
fn source_whose_since_maps_cannot_be_read_does_not_say_that_there_is_no_common_base() {
    let (mut pair, mut rng) = unheld(11);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    delete_all(&pair);
    pair.write(pair.files[0], 0, 10, &mut rng);
    pair.source.close().expect("closed");
    let (offset, block) = rot_since_maps(&mut pair);
    let refused = pair.update();
    assert!(matches!(refused, Err(MirrorError::Refused(Refusal::SourceFailed))), "{refused:?}");
    let mirror = pair.mirror();
    let _ = pair.refresh(&mirror);
    drop(mirror);
    pair.source_device.write_from(offset, &block).expect("written");
    pair.source = open(&pair.source_device, &pair.clock);
    assert_eq!(pair.update().expect("an update").kind, TransferKind::Update);
    pair.assert_same();
}

/// A damaged block of a since map at the source, and its content.
struct RottenBlock {
    offset: u64,
    sound: Vec<u8>,
}

impl RottenBlock {
    /// The top of a map, or the block of it that describes the volume. The source is reopened.
    fn of(pair: &mut Pair, in_flight: bool, level: u8) -> Self {
        pair.source.consistency_point().expect("it commits");
        let place = Self::find(&pair.source, &pair.source_device, in_flight, level);
        pair.source.close().expect("closed");
        let rotten = place.rot(&pair.source_device);
        pair.source = open(&pair.source_device, &pair.clock);
        rotten
    }

    /// Its place; nothing is damaged yet.
    fn find(volume: &Arc<Volume>, device: &Arc<dyn Device>, in_flight: bool, level: u8) -> Self {
        let number = volume.since_relationships()[0].relationship;
        let maps = volume.since_files(number).expect("it has maps");
        let file = if in_flight { maps.in_flight.expect("it is there") } else { maps.accumulating };
        let tree = volume.inode(file).expect("it is there").tree;
        assert_eq!(tree.height, 1);
        let bytes = copy_of(device);
        let is_top = |block: &[u8]| Checksum::of(block) == tree.pointer.checksum;
        let top = bytes.chunks(4096).position(is_top).expect("it is there");
        let mut node = BlockMut::zeroed();
        node.copy_from_slice(&bytes[top * 4096..(top + 1) * 4096]);
        let below = cairn_format::Node::trusted(&node).expect("it is a node").pointer(0);
        let at = match level {
            0 => top as u64 - tree.pointer.vbn.0 + below.vbn.0,
            _ => top as u64,
        };
        let offset = at * 4096;
        let sound = bytes[offset as usize..offset as usize + 4096].to_vec();
        Self { offset, sound }
    }

    fn rot(self, device: &Arc<dyn Device>) -> Self {
        device.write_from(self.offset, &[9; 4096]).expect("written");
        self
    }

    /// The device returns the old content again.
    fn heal(self, pair: &mut Pair) {
        pair.source.close().expect("closed");
        pair.source_device.write_from(self.offset, &self.sound).expect("written");
        pair.source = open(&pair.source_device, &pair.clock);
        pair.source.background(Duration::ZERO).expect("it goes on");
    }
}

/// An update that is right, and reports its price first if it has to.
fn update_comparing_if_need_be(pair: &Pair) -> bool {
    let shown = fingerprint(&pair.destination);
    let compares = match pair.update() {
        Ok(_) => false,
        Err(MirrorError::CompareNeeded { .. }) => {
            assert_eq!(fingerprint(&pair.destination), shown);
            let trouble = Trouble { compare: true, ..Trouble::default() };
            pair.update_with(&pair.mirror(), trouble).expect("an update");
            true
        }
        Err(error) => panic!("{error}"),
    };
    pair.assert_same();
    compares
}

fn assert_goes_on(pair: &Pair, rng: &mut Rng) {
    for round in 0..2 {
        pair.write(pair.files[0], 7 + round, 5, rng);
        let next = pair.update().expect("the next is an update again");
        assert!(next.kind == TransferKind::Update && next.blocks < 60, "{next:?}");
        pair.assert_same();
    }
    assert_clean(&pair.source);
}

#[test]
fn update_after_a_since_map_rotted_is_right_with_a_base_and_tells_the_price_without() {
    for (hold, mends_first) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut pair, mut rng) = unheld(14);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        pair.update().expect("an update");
        pair.write(pair.files[1], 20, 50, &mut rng);
        let rotten = RottenBlock::of(&mut pair, false, 0);
        pair.write(pair.files[0], 100, 50, &mut rng);
        pair.source.consistency_point().expect("it commits");
        assert_eq!(pair.source.since_relationships(), []);
        if mends_first {
            // That brings nothing back.
            rotten.heal(&mut pair);
            assert_eq!(pair.source.since_relationships(), []);
        }
        pair.write(pair.files[0], 200, 10, &mut rng);
        assert_eq!(update_comparing_if_need_be(&pair), !hold);
        assert_goes_on(&pair, &mut rng);
    }
}

/// The rest of the map can be neither sent nor freed, and no image is taken that has a damaged
/// block.
#[test]
fn update_after_a_node_of_a_since_map_rotted_waits_for_it_and_the_source_does_not() {
    for hold in [true, false] {
        let (mut pair, mut rng) = unheld(16);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        let rotten = RottenBlock::of(&mut pair, false, 1);
        for round in 0..3 {
            pair.write(pair.files[0], 100, 50 + round, &mut rng);
            let shown = fingerprint(&pair.destination);
            let trouble = Trouble { compare: round == 2, ..Trouble::default() };
            pair.update_with(&pair.mirror(), trouble).expect_err("no image is taken");
            assert_eq!(fingerprint(&pair.destination), shown);
            assert!(pair.source.status().latched.is_none());
        }
        pair.source.consistency_point().expect("it commits");
        rotten.heal(&mut pair);
        update_comparing_if_need_be(&pair);
        assert_goes_on(&pair, &mut rng);
    }
}

/// The node is newer than the mirror's image, so the mirror cannot repair it: no side ever could.
#[test]
fn update_after_a_node_of_a_since_map_rotted_needs_it_no_more_once_the_map_is_freed_by_exclusion() {
    for (hold, snapshot) in [(true, false), (false, false), (true, true)] {
        let (mut pair, mut rng) = unheld(21);
        pair.hold = hold;
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        RottenBlock::of(&mut pair, false, 1);
        pair.write(pair.files[0], 100, 50, &mut rng);
        pair.update().expect_err("no image is taken");
        pair.source.background(Duration::ZERO).expect("it goes on");
        if snapshot {
            // A snapshot that has it is made, and deleted.
            let shown = pair.source.create_snapshot("daily").expect("a snapshot");
            assert!(pair.source.free_stranded().expect("all else is whole"));
            pair.update().expect_err("no image is taken");
            pair.source.delete_snapshots(&[shown.id]).expect("deleted");
        } else {
            assert!(pair.source.free_stranded().expect("all else is whole"));
        }
        update_comparing_if_need_be(&pair);
        assert_goes_on(&pair, &mut rng);
        assert_clean(&pair.destination);
    }
}

/// The in-flight map is not read before the destination reconnects.
#[test]
fn update_after_the_map_in_flight_rotted_is_right_or_tells_the_price() {
    for (arrived, compare) in [(true, false), (false, false), (false, true)] {
        let (mut pair, mut rng) = unheld(15);
        pair.write(pair.files[0], 0, 300, &mut rng);
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 200, &mut rng);
        let cut_after = if arrived { None } else { Some(200_000) };
        let outcome = pair.update_with(&pair.mirror(), Trouble { cut_after, ..Trouble::default() });
        assert_eq!(outcome.is_ok(), arrived, "{outcome:?}");
        pair.write(pair.files[1], 20, 50, &mut rng);
        RottenBlock::of(&mut pair, true, 0);
        pair.write(pair.files[0], 100, 50, &mut rng);
        if compare {
            let trouble = Trouble { compare, ..Trouble::default() };
            pair.update_with(&pair.mirror(), trouble).expect("it is compared at once");
            pair.assert_same();
        } else {
            // Acknowledged blocks need not be read.
            assert_eq!(update_comparing_if_need_be(&pair), !arrived);
        }
        assert_goes_on(&pair, &mut rng);
    }
}

fn assert_tells_the_price(outcome: &Result<TransferReport, MirrorError>) {
    assert!(matches!(outcome, Err(MirrorError::CompareNeeded { .. })), "{outcome:?}");
}

/// It is found when the source measures the mirror's lag.
#[test]
fn map_that_rots_between_two_updates_is_met_before_a_snapshot_is_made_and_the_price_is_told() {
    let (mut pair, mut rng) = unheld(18);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    pair.write(pair.files[1], 0, 50, &mut rng);
    // No write follows, and so no consistency point that would find it first.
    RottenBlock::of(&mut pair, false, 0);
    assert_tells_the_price(&pair.update());
    assert_eq!(pair.source.snapshots(), []);
    assert!(update_comparing_if_need_be(&pair));
    assert_goes_on(&pair, &mut rng);
}

/// The mirror lacks nothing, so the map is not read before the snapshot continues it.
#[test]
fn map_that_rots_where_only_names_changed_is_met_by_the_snapshot_and_the_price_is_told() {
    let (mut pair, mut rng) = unheld(19);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    // The bookkeeping of another mirror is recorded in the map of this one, and does not count as a
    // change.
    let others = pair.source.create_snapshot_since("other", u64::MAX).expect("there is room");
    pair.source.delete_snapshots(&[others.id]).expect("deleted");
    RottenBlock::of(&mut pair, false, 0);
    pair.source.create_snapshot("daily").expect("a snapshot");
    assert_tells_the_price(&pair.update());
    let names: Vec<String> = pair.source.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, ["daily"]);
    // It has the map, which can't be sent.
    delete_all(&pair);
    assert!(update_comparing_if_need_be(&pair));
    assert_goes_on(&pair, &mut rng);
}

/// A device on which a place can't be read a number of times.
struct Passing {
    device: MemoryDevice,
    place: Mutex<(u64, u32)>,
}

impl Device for Passing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let mut place = self.place.lock();
            match operation.request() {
                Request::Read { offset, length, .. }
                    if place.1 > 0 && (*offset..*offset + u64::from(*length)).contains(&place.0) =>
                {
                    place.1 -= 1;
                    let (offset, length) = (*offset, u64::from(*length));
                    operation.finish(Err(DeviceError::Corrupt { offset, length }));
                }
                _ => self.device.run(std::slice::from_mut(operation)),
            }
        }
    }
}

/// A source with a block of the map in flight that can't be read for a while once the snapshot is
/// made.
struct Failing {
    volume: Arc<Volume>,
    device: Arc<Passing>,
    file: FileId,
}

impl SourceVolumes for Failing {
    fn volume(&self, _name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.volume.clone())
    }

    fn around_snapshot(&self, _volume: &str, make: &mut dyn FnMut()) -> Result<(), Refusal> {
        make();
        let device: Arc<dyn Device> = self.device.clone();
        let place = RottenBlock::find(&self.volume, &device, true, 0).offset;
        // Nothing of it stays in memory.
        for _ in 0..4 {
            for lba in 0..300 {
                let mut reads = [BlockRead::new(Lba(lba), 1)];
                self.volume.read(self.file, &mut reads, true);
            }
        }
        // At the second try neither.
        *self.device.place.lock() = (place, 2);
        Ok(())
    }
}

#[test]
fn map_that_cannot_be_read_while_an_update_is_made_costs_a_comparison_or_its_price_is_told() {
    for (snapshot, compare) in [(false, false), (false, true), (true, false)] {
        let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
        let device = Arc::new(Passing { device: MemoryDevice::new(bytes), place: Mutex::default() });
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
        let mut pair = Pair::on(device.clone(), Arc::new(MemoryDevice::new(bytes)), clock, 20);
        let mut rng = Rng::new(20);
        pair.hold = false;
        pair.write(pair.files[0], 0, 300, &mut rng);
        if snapshot {
            pair.source.create_snapshot("daily").expect("a snapshot");
        }
        pair.update().expect("a baseline");
        pair.write(pair.files[1], 0, 50, &mut rng);
        let failing = Failing { volume: pair.source.clone(), device: device.clone(), file: pair.files[0] };
        let mirror = pair.mirror();
        let outcome = pair.converse_with(&failing, |client| {
            let cancel = AtomicBool::new(false);
            let mut work = Work { cancel: &cancel, progress: &mut |_: &TransferProgress| {}, threads: None };
            match compare {
                true => mirror.update_comparing(client, &mut work),
                false => mirror.update(client, &mut work),
            }
        });
        assert_eq!(device.place.lock().1, 0, "it was met");
        assert_eq!(pair.source.since_relationships(), [], "and is used no more");
        match snapshot || compare {
            true => {
                outcome.unwrap_or_else(|error| panic!("{snapshot} {compare}: {error}"));
                pair.assert_same();
            }
            false => assert_tells_the_price(&outcome),
        }
        drop(mirror);
        update_comparing_if_need_be(&pair);
        assert_goes_on(&pair, &mut rng);
    }
}

/// They used to be written along with every change, without a user, and no command discarded them.
#[test]
fn since_maps_of_mirrors_that_nobody_knows_are_listed_and_can_be_let_go_of() {
    let (mut pair, mut rng) = unheld(22);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    let name = pair.registry.mirrors(&pair.source).expect("they are told").remove(0).name;
    // The record of mirrors is lost, as with its file.
    pair.registry = Arc::default();
    let unknown = pair.registry.mirrors(&pair.source).expect("they are told");
    assert_eq!(unknown.len(), 1);
    assert!(unknown[0].name != name && unknown[0].base.is_none() && unknown[0].follower.is_none());
    // When it comes again it is known again.
    pair.write(pair.files[0], 0, 10, &mut rng);
    assert_eq!(pair.update().expect("an update").kind, TransferKind::Update);
    let known = pair.registry.mirrors(&pair.source).expect("they are told");
    assert_eq!(known.iter().map(|mirror| &mirror.name).collect::<Vec<_>>(), [&name]);
    // One that took over has brought its source's records of itself along.
    let taken_over = pair.destination.clone();
    taken_over.failover().expect("it takes writes");
    let own = pair.other_registry.mirrors(&taken_over).expect("they are told");
    assert_eq!(own.len(), 1);
    for (registry, volume) in
        [(Arc::<crate::Source>::default(), pair.source.clone()), (pair.other_registry.clone(), taken_over)]
    {
        let unknown = registry.mirrors(&volume).expect("they are told").remove(0);
        registry.forget(&volume, &unknown.name).expect("it is let go of");
        assert_eq!(volume.since_relationships(), []);
        assert_eq!(registry.mirrors(&volume).expect("they are told"), []);
        assert_clean(&volume);
    }
}

/// The owner sees the mirror all the same.
#[test]
fn mirror_whose_map_cannot_be_read_is_listed() {
    let (mut pair, mut rng) = unheld(17);
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    pair.write(pair.files[1], 0, 50, &mut rng);
    RottenBlock::of(&mut pair, false, 0);
    let behind = || pair.registry.mirrors(&pair.source).expect("they are told").remove(0).behind;
    assert!(behind().is_none());
    assert!(behind().is_none());
    assert!(pair.refresh(&pair.mirror()).expect("the source answers").bytes > 0);
}
