//! The arrivals of an unfinished transfer, and which of them count.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use cairn_base::{Checksum, Rng, Vbn};
use cairn_device::Fate;
use cairn_format::SegmentKind;

use super::redirects::send;
use super::*;
use crate::Receiver;
use crate::commit::space::Space;
use crate::mirror::have::{Arrivals, Surroundings};

const BLOCKS: u64 = 1024;

struct There {
    device: Arc<FaultDevice>,
    clock: Arc<ManualClock>,
    volume: Arc<Volume>,
    lun: FileId,
}

fn opened(device: Arc<FaultDevice>, clock: &Arc<ManualClock>, lun: FileId) -> There {
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    let volume = Volume::open(device.clone(), options).expect("the volume opens");
    There { device, clock: clock.clone(), volume, lun }
}

/// A destination that shows an image in which a LUN has 50 blocks.
fn shows_an_image() -> (Arc<Volume>, Snapshot, There) {
    let (_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    write(&source, lun, 0, 50, 1000).expect("there is room");
    let image = source.create_snapshot("image").expect("it is made");
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Destination) * 2));
    let options = FormatOptions { id: source.id(), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let there = opened(device, &Arc::new(ManualClock::new(Timestamp(1))), lun);
    send(&source, &there.volume, &image);
    (source, image, there)
}

/// A destination that shows nothing yet.
fn empty(blocks: u64) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Destination)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let volume = open(&device);
    (device, volume)
}

impl There {
    /// After a power cut that took all that was not flushed.
    fn cut(&self) -> There {
        opened(Arc::new(self.device.power_cycle_as(Fate::Lost, &mut Rng::new(1))), &self.clock, self.lun)
    }

    /// Numbers of 20 blocks that the image shows, and of 20 others.
    fn numbers(&self) -> Vec<u64> {
        let state = self.volume.state.lock();
        let (shown, others): (Vec<u64>, Vec<u64>) = (1..BLOCKS).partition(|vbn| state.used.get(Vbn(*vbn)));
        let mut numbers: Vec<u64> = shown.into_iter().take(20).collect();
        numbers.extend(others.into_iter().skip(300).step_by(7).take(20));
        numbers.sort_unstable();
        numbers
    }

    fn shows_its_image(&self) {
        let image = self.volume.image(None).expect("it shows something");
        assert_eq!(read_image(&image, self.lun, 0, 50), (1000..1050).collect::<Vec<u64>>());
    }
}

fn bring(receiver: &mut Receiver, numbers: &[u64], salt: u64) {
    let runs = numbers.iter().map(|number| (Vbn(*number), vec![block(salt + number)]));
    receiver.write_runs(runs.collect()).expect("there is room");
}

/// The expected list for blocks that were brought with that content.
fn brought(numbers: &[u64], salt: u64) -> Vec<(Vbn, Checksum)> {
    numbers.iter().map(|number| (Vbn(*number), Checksum::of(&block(salt + number)[..]))).collect()
}

fn listed(receiver: &mut Receiver) -> Vec<(Vbn, Checksum)> {
    let list = receiver.arrived(Vbn(0), usize::MAX).expect("they are listed");
    assert_eq!(receiver.arrived_blocks(), list.len() as u64);
    list
}

#[test]
fn what_a_transfer_brought_that_was_cut_counts_after_a_restart_where_it_stands_and_nowhere_else() {
    let (_source, _image, there) = shows_an_image();
    let numbers = there.numbers();
    let mut receiver = there.volume.receive().expect("nothing else is received");
    bring(&mut receiver, &numbers, 5000);
    assert_eq!((receiver.blocks(), receiver.kept_blocks()), (40, 0));
    // Again, with other content: in the same places.
    bring(&mut receiver, &numbers[..10], 6000);
    let places = receiver.arrivals.as_ref().expect("it goes on").redirected.clone();
    assert_eq!(places.each().count(), 20, "those that the image shows are elsewhere");
    let all = [brought(&numbers[..10], 6000), brought(&numbers[10..], 5000)].concat();
    assert_eq!(listed(&mut receiver), all);
    drop(receiver);
    assert_eq!(there.volume.arrived_blocks(), 40);
    there.shows_its_image();
    let mut again = there.volume.receive().expect("nothing else is received");
    assert_eq!((again.kept_blocks(), again.blocks()), (40, 0));
    assert_eq!(listed(&mut again), all);
    drop(again);

    let there = there.cut();
    assert_eq!(there.volume.arrived_blocks(), 0, "it is not known before it was looked at");
    let early = there.volume.receive_with(&mut |_, _| false).expect("nothing else is received");
    assert_eq!(early.kept_blocks(), 0);
    drop(early);
    let mut receiver = there.volume.receive().expect("nothing else is received");
    assert_eq!(receiver.kept_blocks(), 40);
    assert_eq!(listed(&mut receiver), all);
    drop(receiver);
    there.shows_its_image();

    // A place that has other content now, at home or elsewhere.
    let there = there.cut();
    let space = there.volume.store.space();
    let mut rng = Rng::new(2);
    let mut rotten = Vec::new();
    for number in numbers.iter().step_by(3) {
        let (kind, at) = match places.get(Vbn(*number)) {
            Some(slot) => (SegmentKind::Redirect, slot),
            None => (SegmentKind::Space, *number),
        };
        let (offset, _) = space.locate(kind, at).expect("it is on the device");
        there.device.corrupt(offset, 4096, &mut rng);
        rotten.push(Vbn(*number));
    }
    let mut receiver = there.volume.receive().expect("nothing else is received");
    let sound: Vec<_> = all.iter().copied().filter(|(vbn, _)| !rotten.contains(vbn)).collect();
    assert_eq!(listed(&mut receiver), sound);
    // They are sent again, and count again.
    let rotten: Vec<u64> = rotten.iter().map(|vbn| vbn.0).collect();
    bring(&mut receiver, &rotten, 8000);
    receiver.abort();
    let there = there.cut();
    let mut receiver = there.volume.receive().expect("nothing else is received");
    let mut expected = [sound, brought(&rotten, 8000)].concat();
    expected.sort_unstable_by_key(|(vbn, _)| *vbn);
    assert_eq!(listed(&mut receiver), expected);
    drop(receiver);
    there.shows_its_image();
}

/// The arrivals of a transfer keep their places while the next one brings other blocks, whatever
/// their numbers are.
#[test]
fn blocks_of_an_unfinished_transfer_stay_whole_beside_those_of_the_next_one() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let (_source, _image, there) = shows_an_image();
        let mut expected = BTreeMap::new();
        {
            // Images here show most numbers, and have much of it in the redirect area.
            let mut state = there.volume.state.lock();
            for vbn in 400..BLOCKS {
                state.used.set(Vbn(vbn));
            }
            let mut redirects = crate::commit::space::Redirects::default();
            for vbn in (400..BLOCKS).filter(|_| rng.one_in(3)) {
                redirects.insert(cairn_format::RedirectRun { vbn: Vbn(vbn), slot: vbn, count: 1 });
            }
            let root = state.committed.root;
            drop(state.switch(root, Arc::new(redirects)));
        }
        for round in 0..4 {
            let mut receiver = there.volume.receive().expect("nothing else is received");
            for _ in 0..60 {
                let number = 400 + rng.below(BLOCKS - 400);
                bring(&mut receiver, &[number], 10_000 * round);
                expected.insert(number, 10_000 * round + number);
            }
            let arrivals = receiver.arrivals.as_ref().expect("it goes on");
            let mut slots: Vec<u64> = arrivals.redirected.each().map(|(_, slot)| slot).collect();
            slots.sort_unstable();
            assert!(slots.windows(2).all(|two| two[0] != two[1]), "seed {seed}: {slots:?}");
            let vbns: Vec<Vbn> = expected.keys().copied().map(Vbn).collect();
            let redirects = receiver.redirects(arrivals, None);
            let stored = there.volume.store.read_numbers(&vbns, &redirects);
            for ((number, content), stored) in expected.iter().zip(stored) {
                let stored = stored.expect("the device works");
                assert_eq!(stored[..8], content.to_le_bytes(), "seed {seed}, round {round}: block {number}");
            }
        }
    }
}

#[test]
fn arrivals_end_with_the_image_on_which_they_began() {
    let (source, image, there) = shows_an_image();
    let numbers = there.numbers();
    let mut receiver = there.volume.receive().expect("nothing else is received");
    bring(&mut receiver, &numbers, 5000);
    drop(receiver);
    write(&source, there.lun, 0, 10, 3000).expect("there is room");
    let next = source.create_snapshot("next").expect("it is made");
    source.delete_snapshots(&[image.id]).expect("it is deleted");
    send(&source, &there.volume, &next);
    for there in [there.cut(), there] {
        let mut receiver = there.volume.receive().expect("nothing else is received");
        assert_eq!(listed(&mut receiver), []);
        drop(receiver);
        let mut receiver = there.volume.receive().expect("nothing else is received");
        bring(&mut receiver, &numbers[..5], 5000);
        drop(receiver);
        there.volume.failover().expect("it fails over");
        assert_eq!(there.volume.arrived_blocks(), 0, "a failover ends them too");
        let refused = there.volume.receive();
        assert!(matches!(refused.map(drop), Err(VolumeError::WrongRole(Role::Normal))));
    }
}

#[test]
fn what_arrives_is_made_durable_from_time_to_time() {
    let (_source, _image, there) = shows_an_image();
    let numbers = there.numbers();
    let kept = || there.cut().volume.receive().expect("nothing else is received").kept_blocks();
    let mut receiver = there.volume.receive().expect("nothing else is received");
    bring(&mut receiver, &numbers[..5], 5000);
    assert_eq!(kept(), 0, "it is too early");
    there.clock.advance(Duration::from_secs(1));
    bring(&mut receiver, &numbers[5..9], 5000);
    assert_eq!(kept(), 9, "a second has gone by");
    bring(&mut receiver, &numbers[9..12], 5000);
    assert_eq!(kept(), 9);
    receiver.checkpoint().expect("the device works");
    assert_eq!(kept(), 12, "it was asked for");
    // As many as 64 MiB of blocks, in no time.
    for _ in 0..16384 / 20 {
        bring(&mut receiver, &numbers[12..32], 5000);
    }
    assert!(kept() < 32, "it is not yet due");
    bring(&mut receiver, &numbers[12..32], 5000);
    assert_eq!(kept(), 32);
    bring(&mut receiver, &numbers[32..], 5000);
    assert_eq!(kept(), 32);
    drop(receiver);
    assert_eq!(kept(), 40, "a transfer that ends early leaves all of it");
}

#[test]
fn have_map_that_is_longer_than_what_is_kept_of_it_in_memory_is_whole() {
    // 255 blocks have their checksums in one block of the map, of which 4,096 are in memory.
    let (blocks, count) = (255 * 4300, 4250);
    let (device, volume) = empty(blocks);
    let mut receiver = volume.receive().expect("nothing else is received");
    let numbers: Vec<u64> = (0..count).map(|n| n * 255 + 45).collect();
    bring(&mut receiver, &numbers, 1);
    // Blocks of the map that are no longer in memory return unchanged.
    bring(&mut receiver, &numbers[..3], 9);
    let beside: Vec<u64> = numbers[..3].iter().map(|number| number + 1).collect();
    bring(&mut receiver, &beside, 5);
    let mut expected = [brought(&numbers[..3], 9), brought(&beside, 5), brought(&numbers[3..], 1)].concat();
    expected.sort_unstable_by_key(|(vbn, _)| *vbn);
    assert!(listed(&mut receiver) == expected);
    // The first block of the map is not in memory now, and is written no more.
    let last = numbers[4000] + 1;
    bring(&mut receiver, &[last], 5);
    let at = expected.partition_point(|(vbn, _)| vbn.0 < last);
    expected.splice(at..at, brought(&[last], 5));
    drop(receiver);
    drop(volume);
    let volume = open(&device);
    let mut calls = Vec::new();
    let mut receiver = volume
        .receive_with(&mut |done, of| {
            calls.push((done, of));
            true
        })
        .expect("nothing else is received");
    assert!(listed(&mut receiver) == expected);
    assert!(calls.len() > 10 && calls.is_sorted() && calls.iter().all(|(done, of)| done < of), "{calls:?}");
}

#[test]
fn what_arrived_is_found_again_whichever_blocks_of_the_have_map_are_of_it() {
    for number in [1, 254, 255, 700, BLOCKS - 1] {
        let (_source, _image, there) = shows_an_image();
        let mut receiver = there.volume.receive().expect("nothing else is received");
        bring(&mut receiver, &[number], 5000);
        drop(receiver);
        let mut receiver = there.cut().volume.receive().expect("nothing else is received");
        assert_eq!(listed(&mut receiver), brought(&[number], 5000));
    }
}

#[test]
fn blocks_behind_the_end_of_a_have_map_that_is_too_short_count_while_the_program_runs() {
    let (device, volume) = empty(BLOCKS);
    let mut layout = volume.commit.lock().superblock.layout.clone();
    let map = layout.segments.iter_mut().find(|segment| segment.kind == SegmentKind::Have);
    let map = map.expect("a destination has one");
    map.blocks -= 1;
    let behind = map.blocks * 255;
    assert!(behind < BLOCKS - 2);
    volume.store.set_space(Space::new(&layout));
    let numbers = [10, behind - 1, behind, BLOCKS - 1];
    let mut receiver = volume.receive().expect("nothing else is received");
    bring(&mut receiver, &numbers, 5000);
    receiver.checkpoint().expect("the device works");
    assert_eq!(listed(&mut receiver), brought(&numbers, 5000));
    bring(&mut receiver, &numbers[2..], 6000);
    drop(receiver);
    let mut receiver = volume.receive().expect("nothing else is received");
    let all = [brought(&numbers[..2], 5000), brought(&numbers[2..], 6000)].concat();
    assert_eq!(listed(&mut receiver), all);
    drop(receiver);
    let mut receiver = open(&device).receive().expect("nothing else is received");
    assert_eq!(listed(&mut receiver), brought(&numbers[..2], 5000), "the others come again");
}

#[test]
fn restart_finds_each_block_where_it_stands_in_a_place_that_is_no_other_ones() {
    let (_device, volume) = empty(BLOCKS);
    let (store, area) = (&volume.store, BLOCKS);
    let at = |kind, number| store.space().locate(kind, number).expect("it is on the device").0;
    let put = |kind, number, content: &Block| store.device().write_from(at(kind, number), &content[..]);
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let epoch = Checksum::of(&seed.to_le_bytes());
        // With few contents many places have the wanted content.
        let contents = if seed % 2 == 0 { 3 } else { u64::MAX >> 1 };
        let shown: HashSet<u64> = (1..BLOCKS).filter(|_| rng.one_in(2)).collect();
        let held: HashSet<u64> = (0..area).filter(|_| rng.one_in(6)).collect();
        for number in 1..BLOCKS {
            for kind in [SegmentKind::Space, SegmentKind::Redirect] {
                put(kind, number, &block(rng.below(contents))).expect("it is there");
            }
        }
        let (mut arrivals, mut taken) = (Arrivals::new(epoch, Duration::ZERO), held.clone());
        let mut brought: BTreeMap<u64, (Checksum, Option<u64>)> = BTreeMap::new();
        for _ in 0..150 {
            // Those of a column are looked for in the same four slots.
            let vbn = 1 + rng.below(60) + rng.below(4) * area / 4;
            let content = block(rng.below(contents));
            // As the format says where one is looked for.
            let mut looked_for = (0..4).map(|k| (vbn + k * (area / 4)) % area);
            let first = looked_for.find(|slot| !taken.contains(slot));
            let slot = shown.contains(&vbn).then(|| {
                let had = arrivals.redirected.get(Vbn(vbn));
                let slot = arrivals.slot(Vbn(vbn), &mut taken, area).expect("there are enough of them");
                assert!(had.is_some() || first.is_none_or(|first| slot == first), "seed {seed}: {vbn}");
                slot
            });
            arrivals.forget(Vbn(vbn));
            match slot {
                Some(slot) => put(SegmentKind::Redirect, slot, &content),
                None => put(SegmentKind::Space, vbn, &content),
            }
            .expect("it is there");
            let checksum = Checksum::of(&content[..]);
            arrivals.note(Vbn(vbn), checksum, store).expect("the map is readable");
            brought.insert(vbn, (checksum, slot));
        }
        arrivals.checkpoint(store, Duration::ZERO).expect("the device works");
        // Some are spoiled.
        for (vbn, (_, slot)) in brought.iter().filter(|(vbn, _)| *vbn % 7 == 0) {
            let (kind, number) =
                slot.map_or((SegmentKind::Space, *vbn), |slot| (SegmentKind::Redirect, slot));
            put(kind, number, &block(u64::MAX)).expect("it is there");
        }

        let (mut found, mut taken) = (Arrivals::new(epoch, Duration::ZERO), held.clone());
        let used = |vbn: Vbn| shown.contains(&vbn.0);
        let mut around = Surroundings { store, used: &used, places: &[], taken: &mut taken };
        assert!(found.recall(&mut around, &mut |_, _| true).expect("the map is readable"));
        let mut slots = held.clone();
        let list = found.list(Vbn(0), usize::MAX, store).expect("they are listed");
        for (vbn, checksum) in &list {
            assert_eq!(*checksum, brought[&vbn.0].0, "seed {seed}: {vbn:?}");
            let slot = found.redirected.get(*vbn);
            assert!(slot.is_some() || !used(*vbn), "seed {seed}: {vbn:?} is not at home, as it is shown");
            assert!(slot.is_none_or(|slot| slots.insert(slot)), "seed {seed}: {slot:?} is another one's");
            let offset = slot.map_or_else(|| at(SegmentKind::Space, vbn.0), |s| at(SegmentKind::Redirect, s));
            let there = store.device().read(offset, 4096).expect("it can be read").to_vec();
            assert_eq!(Checksum::of(&there), *checksum, "seed {seed}: {vbn:?}");
        }
        assert_eq!(slots, taken, "seed {seed}: and nobody else gets it");
        if contents > 3 {
            let looked_for = |vbn: u64, slot: u64| (0..4).any(|k| (vbn + k * (area / 4)) % area == slot);
            let expected = brought
                .iter()
                .filter(|(vbn, (_, slot))| *vbn % 7 != 0 && slot.is_none_or(|slot| looked_for(**vbn, slot)));
            let expected: Vec<(u64, Option<u64>)> = expected.map(|(vbn, (_, slot))| (*vbn, *slot)).collect();
            let found: Vec<(u64, Option<u64>)> =
                list.iter().map(|(vbn, _)| (vbn.0, found.redirected.get(*vbn))).collect();
            assert_eq!(found, expected, "seed {seed}");
            assert!(found.len() > 80 && found.iter().filter(|(_, slot)| slot.is_some()).count() > 30);
        }
    }
}

#[test]
fn block_that_an_earlier_transfer_spoiled_and_this_one_did_not_bring_is_missing() {
    for restarts in [false, true] {
        let (source, image, there) = shows_an_image();
        write(&source, there.lun, 10, 5, 3000).expect("there is room");
        let target = source.create_snapshot("target").expect("it is made");
        let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
        let whole = || ReceivedImage { target: target.id, snapshots: source.snapshot_entries() };
        let wrong = changes.runs[0].0;
        let mut receiver = there.volume.receive().expect("nothing else is received");
        receiver.write(wrong, vec![block(66)]).expect("there is room");
        drop(receiver);
        let there = if restarts { there.cut() } else { there };
        let mut receiver = there.volume.receive().expect("nothing else is received");
        assert_eq!(receiver.kept_blocks(), 1);
        let others = changes.runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn));
        for vbn in others.filter(|vbn| *vbn != wrong) {
            receiver
                .write(vbn, source.read_blocks(&[(vbn, 1)]).expect("it can be read"))
                .expect("there is room");
        }
        let refused = receiver.commit(whole());
        assert!(
            matches!(&refused, Err(VolumeError::Refused(why)) if why.contains("missing or damaged")),
            "{refused:?}"
        );
        there.shows_its_image();
        let mut receiver = there.volume.receive().expect("nothing else is received");
        receiver
            .write(wrong, source.read_blocks(&[(wrong, 1)]).expect("it can be read"))
            .expect("there is room");
        receiver.commit(whole()).expect("it is whole");
        let image = there.volume.image(None).expect("it shows something");
        assert_eq!(read_image(&image, there.lun, 0, 50), read(&source, there.lun, 0, 50));
        assert_sound(&there.volume);
    }
}

#[test]
fn image_of_which_any_block_is_missing_or_wrong_is_refused_and_comes_when_it_is_there() {
    for spoiled in [false, true] {
        let (source, image, there) = shows_an_image();
        write(&source, there.lun, 10, 5, 3000).expect("there is room");
        let target = source.create_snapshot("target").expect("it is made");
        let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
        let vbns: Vec<Vbn> =
            changes.runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn)).collect();
        let entries: Vec<_> =
            source.snapshot_entries().into_iter().filter(|entry| entry.id <= target.id).collect();
        let whole = || ReceivedImage { target: target.id, snapshots: entries.clone() };
        assert!(vbns.len() > 8);
        for wrong in &vbns {
            let there = there.cut();
            let mut receiver = there.volume.receive().expect("nothing else is received");
            for vbn in &vbns {
                let mut blocks = source.read_blocks(&[(*vbn, 1)]).expect("they can be read");
                if vbn == wrong {
                    if !spoiled {
                        continue;
                    }
                    blocks = vec![block(66)];
                }
                receiver.write(*vbn, blocks).expect("there is room");
            }
            let refused = receiver.commit(whole());
            assert!(
                matches!(&refused, Err(VolumeError::Refused(why)) if why.contains("missing or damaged")),
                "{wrong:?}: {refused:?}"
            );
            there.shows_its_image();
            assert_sound(&there.volume);
            let mut receiver = there.volume.receive().expect("nothing else is received");
            let here = receiver.kept_blocks();
            assert_eq!(here, vbns.len() as u64 - 1, "what arrived and is right stays");
            receiver
                .write(*wrong, source.read_blocks(&[(*wrong, 1)]).expect("it can be read"))
                .expect("there is room");
            receiver.commit(whole()).expect("it is whole");
            let image = there.volume.image(None).expect("it shows something");
            assert_eq!(read_image(&image, there.lun, 0, 50), read(&source, there.lun, 0, 50));
            assert_sound(&there.volume);
        }
    }
}

#[test]
fn blocks_of_a_base_that_its_source_has_deleted_need_not_come_again_and_every_other_one_must() {
    const RELATIONSHIP: u64 = 7;
    let (_device, source) = fresh(BLOCKS);
    let lun = file(&source, 300);
    write(&source, lun, 0, 200, 1000).expect("there is room");
    let base = source.create_snapshot_since("base", RELATIONSHIP).expect("there is room");
    let (_there, destination) = redirects::destination_of(&source);
    send(&source, &destination, &base);
    source.delete_snapshots(&[base.id]).expect("it is deleted");
    write(&source, lun, 20, 10, 3000).expect("there is room");
    let target = source.create_snapshot_since("target", RELATIONSHIP).expect("there is room");
    let changes = source.changed_blocks_since(RELATIONSHIP, target.id).expect("it is in flight");
    let vbns: Vec<Vbn> =
        changes.runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn)).collect();
    assert!((10..60).contains(&vbns.len()), "{} blocks", vbns.len());
    let whole = || ReceivedImage { target: target.id, snapshots: changes.snapshots.clone() };
    for missing in &vbns {
        let mut receiver = destination.receive().expect("nothing else is received");
        let is_here = |vbn: Vbn| {
            let arrivals = receiver.arrivals.as_ref();
            arrivals.is_some_and(|arrivals| arrivals.has(vbn))
        };
        let lacking: Vec<Vbn> = vbns.iter().copied().filter(|vbn| !is_here(*vbn)).collect();
        assert!(*missing == vbns[0] || lacking.len() == 1, "the others came before: {lacking:?}");
        // Spoiled, so that the one that came before is missing again.
        receiver.write(*missing, vec![block(5)]).expect("there is room");
        for vbn in lacking.iter().filter(|vbn| *vbn != missing) {
            receiver
                .write(*vbn, source.read_blocks(&[(*vbn, 1)]).expect("it can be read"))
                .expect("there is room");
        }
        let refused = receiver.commit(whole());
        assert!(matches!(refused, Err(VolumeError::Refused(_))), "{missing:?}: {refused:?}");
        let image = destination.image(None).expect("it shows something");
        assert_eq!(read_image(&image, lun, 0, 200), (1000..1200).collect::<Vec<u64>>());
    }
    let mut receiver = destination.receive().expect("nothing else is received");
    let last = *vbns.last().expect("there are some");
    receiver.write(last, source.read_blocks(&[(last, 1)]).expect("it can be read")).expect("there is room");
    receiver.commit(whole()).expect("it is whole");
    let image = destination.image(None).expect("it shows something");
    assert_eq!(read_image(&image, lun, 0, 300), read(&source, lun, 0, 300));
    assert_sound(&destination);
}

#[test]
fn each_block_that_is_not_at_home_has_a_slot_of_its_own_until_there_are_none() {
    let area = 16;
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut arrivals = Arrivals::new(Checksum::default(), Duration::ZERO);
        // Some are of images that are still read.
        let mut taken: HashSet<u64> = (0..area).filter(|_| rng.one_in(4)).collect();
        let mut free = area as usize - taken.len();
        let mut slots: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..60 {
            let vbn = 1 + rng.below(90);
            let slot = arrivals.slot(Vbn(vbn), &mut taken, area);
            match (slots.get(&vbn), slot) {
                (Some(had), slot) => assert_eq!(slot, Some(*had), "seed {seed}: it stays where it is"),
                (None, Some(slot)) => {
                    assert!(slot < area && slots.values().all(|other| *other != slot), "seed {seed}: {slot}");
                    slots.insert(vbn, slot);
                    free -= 1;
                }
                (None, None) => assert_eq!(free, 0, "seed {seed}: there was room"),
            }
            assert_eq!(taken.len() + free, area as usize, "seed {seed}");
        }
        assert_eq!(free, 0, "seed {seed}: it came to the end");
        let kept: BTreeMap<u64, u64> = arrivals.redirected.each().map(|(vbn, slot)| (vbn.0, slot)).collect();
        assert_eq!(kept, slots, "seed {seed}");
    }
}

/// A block without room elsewhere is refused, and the blocks that were known to be here stay in
/// their places.
#[test]
fn block_that_finds_no_slot_leaves_what_counts_as_arrived_in_its_place() {
    let (_source, _image, there) = shows_an_image();
    let volume = there.volume.clone();
    let mut receiver = volume.receive().expect("nothing else is received");
    receiver.claim_shown(&mut |_| true).expect("its nodes can be read");
    // All slots but one are of images that are still read.
    receiver.taken.extend(1..volume.store.space().blocks(SegmentKind::Redirect));
    let shown = |number: &u64| volume.state.lock().used.get(Vbn(*number));
    let numbers: Vec<u64> = there.numbers().into_iter().filter(shown).take(2).collect();
    let runs = numbers.iter().map(|number| (Vbn(*number), vec![block(5000 + number)])).collect();
    let refused = receiver.write_runs(runs);
    assert!(matches!(refused, Err(VolumeError::Refused(_))), "{refused:?}");
    let list = listed(&mut receiver);
    let arrivals = receiver.arrivals.take().expect("it goes on");
    let redirects = receiver.redirects(&arrivals, None);
    receiver.arrivals = Some(arrivals);
    let vbns: Vec<Vbn> = list.iter().map(|(vbn, _)| *vbn).collect();
    assert!(vbns.len() > 20);
    for ((vbn, checksum), block) in list.iter().zip(volume.store.read_numbers(&vbns, &redirects)) {
        assert_eq!(Checksum::of(&block.expect("it is there")[..]), *checksum, "{vbn}");
    }
}

#[test]
fn one_transfer_runs_at_a_time_and_takes_blocks_of_the_space_alone() {
    let (_source, _image, there) = shows_an_image();
    let mut receiver = there.volume.receive().expect("nothing else is received");
    let second = there.volume.receive().map(drop);
    assert!(matches!(second, Err(VolumeError::TransferInProgress)), "{second:?}");
    let failover = there.volume.failover();
    assert!(matches!(failover, Err(VolumeError::TransferInProgress)), "{failover:?}");
    for (first, count) in [(0, 1), (0, 3), (BLOCKS, 1), (BLOCKS - 1, 2), (BLOCKS - 3, 9), (u64::MAX, 2)] {
        // None of a batch is accepted if a part is out of range.
        let runs = vec![(Vbn(700), vec![block(1)]), (Vbn(first), vec![block(1); count])];
        let refused = receiver.write_runs(runs);
        assert!(matches!(refused, Err(VolumeError::Refused(_))), "{first}, {count}: {refused:?}");
        assert_eq!(listed(&mut receiver), []);
    }
    receiver.write(Vbn(BLOCKS - 1), vec![block(1)]).expect("it is the last one");
    assert_eq!(listed(&mut receiver).len(), 1);
    drop(receiver);
    there.volume.receive().map(drop).expect("the one before has ended");
    there.volume.failover().expect("none runs");
}

#[test]
fn image_of_a_larger_source_waits_until_the_destination_has_grown() {
    let (source, image, there) = shows_an_image();
    source.grow(BLOCKS + 200).expect("the device has room");
    write(&source, there.lun, 0, 10, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
    let bring = || {
        let mut receiver = there.volume.receive().expect("nothing else is received");
        for run in &changes.runs {
            receiver
                .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                .expect("there is room");
        }
        receiver.commit(ReceivedImage { target: target.id, snapshots: source.snapshot_entries() })
    };
    let refused = bring();
    assert!(
        matches!(&refused, Err(VolumeError::Refused(why)) if why.contains("grow it first")),
        "{refused:?}"
    );
    there.shows_its_image();
    there.volume.grow(BLOCKS + 200).expect("the device has room");
    bring().expect("it is large enough");
    let image = there.volume.image(None).expect("it shows something");
    assert_eq!(read_image(&image, there.lun, 0, 50), read(&source, there.lun, 0, 50));
    assert_sound(&there.volume);
}

#[test]
fn image_with_another_content_for_a_snapshot_that_is_here_is_refused() {
    let (source, image, there) = shows_an_image();
    write(&source, there.lun, 0, 10, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    for lies in [true, false] {
        let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
        let mut receiver = there.volume.receive().expect("nothing else is received");
        for run in &changes.runs {
            receiver
                .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                .expect("there is room");
        }
        let mut snapshots = source.snapshot_entries();
        if lies {
            snapshots[0].root.created.0 += 1;
        }
        let outcome = receiver.commit(ReceivedImage { target: target.id, snapshots });
        match lies {
            true => {
                let told =
                    matches!(&outcome, Err(VolumeError::Refused(why)) if why.contains("different content"));
                assert!(told, "{outcome:?}");
                there.shows_its_image();
            }
            false => outcome.expect("it is the same"),
        }
    }
}

#[test]
fn image_that_came_at_the_beginning_of_time_is_not_an_own_head() {
    let (source, image, there) = shows_an_image();
    there.clock.set(Timestamp(0));
    write(&source, there.lun, 0, 10, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    source.delete_snapshots(&[image.id]).expect("it is deleted");
    send(&source, &there.volume, &target);
    assert_eq!(there.volume.own_head(), None);
    assert_eq!(there.cut().volume.own_head(), None);
}

#[test]
fn block_that_comes_home_in_a_transfer_is_not_looked_for_elsewhere_any_more() {
    let (source, image, there) = shows_an_image();
    let held = there.volume.image(None).expect("it shows something");
    let before: Vec<u64> = {
        let state = there.volume.state.lock();
        (1..BLOCKS).filter(|vbn| state.used.get(Vbn(*vbn))).collect()
    };
    write(&source, there.lun, 0, 50, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    source.delete_snapshots(&[image.id]).expect("it is deleted");
    send(&source, &there.volume, &target);
    // Of the image that is read still, and of no other.
    let shown = source.changed_blocks(&[], target.id).expect("they are compared").runs;
    let shown = BlockSet::of(&shown);
    let gone = before.into_iter().find(|vbn| !shown.has(Vbn(*vbn))).expect("its blocks were given up");
    let elsewhere = |receiver: &Receiver| {
        let arrivals = receiver.arrivals.as_ref().expect("it goes on");
        assert!(arrivals.has(Vbn(gone)));
        (
            arrivals.redirected.get(Vbn(gone)).is_some(),
            receiver.redirects(arrivals, None).get(Vbn(gone)).is_some(),
        )
    };
    let mut receiver = there.volume.receive().expect("nothing else is received");
    receiver.write(Vbn(gone), vec![block(1)]).expect("there is room");
    assert_eq!(elsewhere(&receiver), (true, true));
    assert_eq!(read_image(&held, there.lun, 0, 50), (1000..1050).collect::<Vec<u64>>());
    drop((receiver, held));
    let mut receiver = there.volume.receive().expect("nothing else is received");
    receiver.write(Vbn(gone), vec![block(2)]).expect("there is room");
    assert_eq!(elsewhere(&receiver), (false, false), "nobody reads what was there");
    assert_eq!(listed(&mut receiver), [(Vbn(gone), Checksum::of(&block(2)[..]))]);
}

#[test]
fn transfer_whose_device_fails_once_leaves_nothing_that_is_not_there() {
    let (source, image, there) = shows_an_image();
    write(&source, there.lun, 0, 30, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
    let whole = || ReceivedImage { target: target.id, snapshots: source.snapshot_entries() };
    let mut failed = 0;
    for at in 0..12 {
        let there = there.cut();
        let mut receiver = there.volume.receive().expect("nothing else is received");
        there.device.fail_operations(at, 1, cairn_device::DeviceError::OutOfService);
        let mut outcome = Ok(());
        for run in &changes.runs {
            there.clock.advance(Duration::from_secs(1));
            let blocks = source.read_blocks(&[*run]).expect("they can be read");
            outcome = outcome.and(receiver.write(run.0, blocks));
        }
        if outcome.is_ok() {
            break;
        }
        failed += 1;
        drop(receiver);
        there.device.heal_operations();
        let mut receiver = there.volume.receive().expect("nothing else is received");
        let here = listed(&mut receiver);
        let vbns: Vec<Vbn> = here.iter().map(|(vbn, _)| *vbn).collect();
        let redirects = receiver.redirects(receiver.arrivals.as_ref().expect("it goes on"), None);
        let stored = there.volume.store.read_numbers(&vbns, &redirects);
        for ((vbn, checksum), block) in here.iter().zip(stored) {
            let block = block.expect("the device works again");
            assert_eq!(Checksum::of(&block[..]), *checksum, "operation {at}: {vbn:?} is not there");
        }
        for run in &changes.runs {
            receiver
                .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                .expect("it works again");
        }
        receiver.commit(whole()).expect("it is whole");
        let image = there.volume.image(None).expect("it shows something");
        assert_eq!(read_image(&image, there.lun, 0, 50), read(&source, there.lun, 0, 50));
        assert_sound(&there.volume);
    }
    assert!(failed > 2, "{failed} failures");
}

#[test]
fn image_whose_commit_fails_at_any_operation_is_not_said_to_be_committed() {
    let (source, image, there) = shows_an_image();
    write(&source, there.lun, 0, 30, 3000).expect("there is room");
    let target = source.create_snapshot("target").expect("it is made");
    let changes = source.changed_blocks(&[image.id], target.id).expect("they are compared");
    let whole = || ReceivedImage { target: target.id, snapshots: source.snapshot_entries() };
    let brought = |there: &There| {
        let mut receiver = there.volume.receive().expect("nothing else is received");
        for run in &changes.runs {
            let blocks = source.read_blocks(&[*run]).expect("they can be read");
            receiver.write(run.0, blocks).expect("there is room");
        }
        receiver
    };
    let shown = |there: &There| {
        let image = there.volume.image(None).expect("it shows something");
        read_image(&image, there.lun, 0, 50)
    };
    let (before, after) = (shown(&there), read(&source, there.lun, 0, 50));
    let operations = {
        let there = there.cut();
        let receiver = brought(&there);
        let first = there.device.operations();
        receiver.commit(whole()).expect("it is whole");
        assert_eq!(shown(&there), after);
        there.device.operations() - first
    };
    assert!(operations > 5, "a table, both superblocks, and flushes: {operations}");
    for at in 0..operations {
        let there = there.cut();
        let receiver = brought(&there);
        there.device.fail_operations(at, 1, cairn_device::DeviceError::OutOfService);
        let outcome = receiver.commit(whole());
        assert!(matches!(outcome, Err(VolumeError::Device(_))), "operation {at}: {outcome:?}");
        there.device.heal_operations();
        assert_eq!(shown(&there), before, "operation {at}: it shows what it showed");
        // The first makes the arrivals durable. The others may leave anything on the device.
        let again = there.volume.receive();
        assert_eq!(matches!(again, Err(VolumeError::Latched(_))), at > 0, "operation {at}");
        drop(again);
        let there = there.cut();
        assert!([&before, &after].contains(&&shown(&there)), "operation {at}: one or the other");
        assert_sound(&there.volume);
        brought(&there).commit(whole()).expect("it works again");
        assert_eq!(shown(&there), after);
        assert_sound(&there.volume);
    }
}
