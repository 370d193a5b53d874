//! Damage on one side is repaired from the other, wherever it is; damage on both sides stays, and
//! does not spread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Checksum, ManualClock, Rng, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_device::{Device, MemoryDevice};
use cairn_volume::{Look, Part, Piece, Place, Position, Region, Role, Until, Volume};

use super::harness::{BLOCKS, Pair, assert_clean, fingerprint};
use crate::copies::{Asks, Comparing, CopiesAnswer, CopiesRequest, RegionAnswer, RegionOf};
use crate::message::{Answer, Request};
use crate::wire::Frame;
use crate::{Difference, DifferenceKind, Mended, Verified, VerifyProgress, VerifyWork};

/// A pair whose devices the test can spoil.
fn pair(seed: u64) -> (Pair, [Arc<dyn Device>; 2]) {
    let device =
        |role| -> Arc<dyn Device> { Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, role))) };
    let devices = [device(Role::Normal), device(Role::Destination)];
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    (Pair::on(devices[0].clone(), devices[1].clone(), clock, seed), devices)
}

/// Every block that the snapshots show, once.
fn pieces(volume: &Arc<Volume>) -> BTreeMap<(u64, [u8; 16]), Piece> {
    let mut all = BTreeMap::new();
    for snapshot in volume.snapshots() {
        let part = Part { root: snapshot.id, base: SnapshotId(0) };
        let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
        let found = region.expect("the snapshot is there").pieces;
        all.extend(found.into_iter().map(|piece| ((piece.vbn.0, piece.checksum.0), piece)));
    }
    all
}

/// Where on a device blocks with a content are.
fn places(device: &Arc<dyn Device>) -> HashMap<[u8; 16], Vec<u64>> {
    let mut places: HashMap<[u8; 16], Vec<u64>> = HashMap::new();
    let mut bytes = vec![0; 4096];
    for number in 0..device.geometry().length / 4096 {
        device.read_into(number * 4096, &mut bytes).expect("it is there");
        places.entry(Checksum::of(&bytes).0).or_default().push(number);
    }
    places
}

fn home(vbn: u64) -> u64 {
    cairn_format::layout::space_start(BLOCKS) + vbn
}

fn spoil(device: &Arc<dyn Device>, number: u64) {
    device.write_from(number * 4096 + 512, &[0xa5; 700]).expect("it is there");
}

fn verify(pair: &Pair, everything: bool) -> Verified {
    let cancel = AtomicBool::new(false);
    let mut work = VerifyWork { cancel: &cancel, progress: &mut |_| {}, region_blocks: u64::MAX };
    let mirror = pair.mirror();
    pair.converse(|client| mirror.verify(client, everything, &mut work)).expect("both sides answer")
}

fn mend(pair: &Pair) -> Mended {
    let mirror = pair.mirror();
    pair.converse(|client| mirror.mend(client)).expect("both sides answer")
}

fn of_kind(verified: &Verified, kind: DifferenceKind) -> BTreeSet<u64> {
    verified.differences.iter().filter(|difference| difference.kind == kind).map(|d| d.vbn.0).collect()
}

#[test]
fn what_rots_on_one_side_is_found_and_brought_from_the_other_wherever_it_stands() {
    let mut redirected = 0;
    for seed in 0..12 {
        let (mut pair, [source_device, destination_device]) = pair(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..4 {
            for _ in 0..25 {
                pair.work(&mut rng);
            }
            pair.update().expect("an update");
        }
        let before = (fingerprint(&pair.source), fingerprint(&pair.destination));
        let (there, here) = (pieces(&pair.source), pieces(&pair.destination));
        let both: Vec<Piece> =
            here.iter().filter(|(key, _)| there.contains_key(*key)).map(|(_, piece)| *piece).collect();
        let places = places(&destination_device);
        let (mut rotten_here, mut rotten_there) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..8 {
            let piece = both[rng.below(both.len() as u64) as usize];
            let vbn = piece.vbn.0;
            if rotten_here.contains(&vbn) || rotten_there.contains(&vbn) {
                continue;
            }
            // A vbn of two contents, one of them redirected, would be two blocks.
            if here.keys().filter(|(number, _)| *number == vbn).count() > 1 {
                continue;
            }
            if round % 2 == 0 {
                let copies = &places[&piece.checksum.0];
                let Some(at) = copies.iter().copied().find(|at| *at != home(vbn)).or(copies.first().copied())
                else {
                    continue;
                };
                if copies.len() > 1 {
                    continue;
                }
                redirected += u64::from(at != home(vbn));
                spoil(&destination_device, at);
                rotten_here.insert(vbn);
            } else {
                spoil(&source_device, home(vbn));
                rotten_there.insert(vbn);
            }
        }
        // None of it may be in memory on the side that sends it back.
        pair.reopen_destination();
        let verified = verify(&pair, true);
        assert!(verified.snapshots > 0 && verified.blocks > 0, "seed {seed}: {verified:?}");
        assert_eq!(of_kind(&verified, DifferenceKind::Contradiction), BTreeSet::new(), "seed {seed}");
        assert!(
            of_kind(&verified, DifferenceKind::Here).is_subset(&rotten_here),
            "seed {seed}: {verified:?}"
        );
        assert!(
            of_kind(&verified, DifferenceKind::There).is_subset(&rotten_there),
            "seed {seed}: {verified:?}"
        );
        assert!(verified.differences_total > 0 || rotten_here.len() + rotten_there.len() == 0, "seed {seed}");
        // Damage below a damaged node is found once the node is whole.
        for _ in 0..4 {
            verify(&pair, true);
        }
        let last = verify(&pair, true);
        assert_eq!((last.differences_total, last.regions_differing), (0, 0), "seed {seed}: {last:?}");
        assert_eq!(last.mended, Mended::default(), "seed {seed}");
        assert_clean(&pair.source);
        assert_clean(&pair.destination);
        assert_eq!(before, (fingerprint(&pair.source), fingerprint(&pair.destination)), "seed {seed}");
    }
    assert!(redirected > 0, "no redirected block was spoiled");
}

/// A mirror with one LUN, and a block of its data.
fn mirrored() -> (Pair, [Arc<dyn Device>; 2], Vec<Piece>) {
    let (pair, devices) = pair(1);
    let mut rng = Rng::new(9);
    pair.write(pair.files[0], 0, 200, &mut rng);
    pair.update().expect("an update");
    let file = pair.files[0];
    let data: Vec<Piece> = pieces(&pair.destination)
        .into_values()
        .filter(|piece| matches!(piece.place, Place::Data { file: of, .. } if of == file))
        .collect();
    (pair, devices, data)
}

/// Reads everything from the media, so that the volume knows its damage.
fn scrub(volume: &Arc<Volume>) -> usize {
    let mut cursor = volume.begin_scrub();
    while !volume.scrub(&mut cursor, 500).expect("it is open").finished {}
    volume.damaged().len()
}

#[test]
fn what_is_mended_under_a_lock_is_told_and_a_sound_block_is_never_written() {
    let (mut pair, [_, destination_device], data) = mirrored();
    let before = fingerprint(&pair.destination);
    spoil(&destination_device, home(data[7].vbn.0));
    pair.reopen_destination();
    assert_eq!(scrub(&pair.destination), 1);
    let mirror = pair.mirror();
    mirror.set_options(crate::Options { lock: Some(Duration::from_secs(60)), ..mirror.options() });
    let mended = pair.converse(|client| mirror.mend(client)).expect("both sides answer");
    assert_eq!(mended, Mended { here: 1, here_locked: 1, ..Mended::default() });
    assert_eq!(fingerprint(&pair.destination), before);
    // Nothing here is damaged: whatever comes is not written.
    let (sound, other) = (data[8], data[9]);
    let block = pair.source.read_blocks(&[(other.vbn, 1)]).expect("it can be read").remove(0);
    for checksum in [sound.checksum, other.checksum] {
        assert!(pair.destination.repair(sound.vbn, checksum, &block).is_err());
    }
    assert_eq!(fingerprint(&pair.destination), before);
}

#[test]
fn block_that_rots_on_both_sides_stays_damaged_and_is_never_given_as_good() {
    let (mut pair, [source_device, destination_device], data) = mirrored();
    spoil(&source_device, home(data[7].vbn.0));
    spoil(&destination_device, home(data[7].vbn.0));
    spoil(&source_device, home(data[8].vbn.0));
    spoil(&destination_device, home(data[9].vbn.0));
    pair.reopen_destination();
    // Of the source, too, nothing may come from its memory.
    pair.source.close().expect("it closes");
    pair.source = super::harness::open(&source_device, &pair.clock);
    assert_eq!((scrub(&pair.source), scrub(&pair.destination)), (2, 2));
    assert_eq!(mend(&pair), Mended { here: 1, there: 1, left_here: 1, left_there: 1, here_locked: 0 });
    assert_eq!(mend(&pair), Mended { here: 0, there: 0, left_here: 1, left_there: 1, here_locked: 0 });
    for volume in [&pair.source, &pair.destination] {
        let left: Vec<Vbn> = volume.damaged().iter().map(|block| block.vbn).collect();
        assert_eq!(left, [data[7].vbn]);
    }
    let verified = verify(&pair, true);
    let place = data[7].place;
    let snapshot = pair.destination.snapshots()[0].id;
    let both = Difference { vbn: data[7].vbn, place, snapshot, kind: DifferenceKind::Both };
    assert_eq!((verified.differences, verified.regions_differing), (vec![both], 0));
    // Rewritten at the source, it is whole there, and the next image has it.
    let Place::Data { file, lba } = place else { panic!("it is data") };
    pair.write(file, lba.0, 1, &mut Rng::new(5));
    pair.update().expect("an update");
    assert_eq!(verify(&pair, true).mended.left_here, 1, "the older image shows it still");
}

#[test]
fn fast_verification_reads_what_says_where_data_is_and_no_data() {
    let (pair, [source_device, _], data) = mirrored();
    let sound = verify(&pair, false);
    assert_eq!((sound.differences_total, sound.only_here), (0, 0));
    assert!(sound.blocks > 200 && sound.read_here < 60, "{sound:?}");
    spoil(&source_device, home(data[3].vbn.0));
    assert_eq!(verify(&pair, false).differences_total, 0, "data is not looked at");
    let leaf = pieces(&pair.destination)
        .into_values()
        .find(|piece| matches!(piece.place, Place::Node(node) if node.file == pair.files[0]))
        .expect("the LUN has a node");
    spoil(&source_device, home(leaf.vbn.0));
    let found = verify(&pair, false);
    assert_eq!(of_kind(&found, DifferenceKind::There), BTreeSet::from([leaf.vbn.0]));
    assert_eq!(found.mended.there, 1);
    assert_eq!(of_kind(&verify(&pair, true), DifferenceKind::There), BTreeSet::from([data[3].vbn.0]));
    assert_eq!(verify(&pair, true).differences_total, 0);
}

#[test]
fn snapshots_that_the_source_has_not_any_more_are_read_here_alone() {
    let (mut pair, [_, destination_device], data) = mirrored();
    let own: Vec<SnapshotId> = pair.source.snapshots().iter().map(|snapshot| snapshot.id).collect();
    for id in &own {
        pair.source.hold_snapshot(*id, false).expect("it is released");
    }
    pair.source.delete_snapshots(&own).expect("they are deleted");
    spoil(&destination_device, home(data[0].vbn.0));
    pair.reopen_destination();
    let verified = verify(&pair, true);
    assert_eq!((verified.snapshots, verified.blocks, verified.only_here), (0, 0, 1));
    assert_eq!(of_kind(&verified, DifferenceKind::Here), BTreeSet::from([data[0].vbn.0]));
    // The source has the block still, though not the snapshot.
    assert_eq!(verified.mended.here, 1);
}

#[test]
fn messages_about_copies_are_read_as_they_were_written_and_refused_when_they_are_too_much() {
    let named = vec![(Vbn(7), Checksum([1; 16])), (Vbn(9), Checksum([2; 16]))];
    let bytes = vec![3; 4096];
    let region = RegionOf {
        root: (SnapshotId(4), Checksum([4; 16])),
        base: (SnapshotId(0), Checksum::default()),
        from: Position::from_numbers((3, 77)),
        until: Some(Position::from_numbers((5, 0))),
        everything: true,
        list: false,
    };
    let asks = [
        Asks::Fetch(named.clone()),
        Asks::Needs,
        Asks::Give(vec![(Vbn(7), Checksum([1; 16]), bytes.clone())]),
        Asks::Region(region),
        Asks::Region(RegionOf { until: None, list: true, ..region }),
    ];
    for asks in asks {
        let request = Request::Copies(CopiesRequest { volume: "v".to_owned(), id: VolumeId([7; 16]), asks });
        let (kind, body) = request.encode();
        assert_eq!(Request::parse(&Frame { kind, body }).expect("it parses"), request);
    }
    let told = RegionAnswer {
        digest: Checksum([8; 16]),
        read: 12,
        incomplete: true,
        list: vec![(Vbn(7), Checksum([1; 16]), true), (Vbn(8), Checksum([3; 16]), false)],
    };
    let answers = [
        CopiesAnswer::Blocks(vec![Some(bytes), None]),
        CopiesAnswer::Needs(named),
        CopiesAnswer::Mended(3),
        CopiesAnswer::Region(told),
        CopiesAnswer::NoSuchRoot,
    ];
    for answer in answers {
        let answer = Answer::Copies(answer);
        let (kind, body) = answer.encode();
        assert_eq!(Answer::parse(&Frame { kind, body: body.clone() }).expect("it parses"), answer);
        let mut longer = body;
        longer.push(0);
        assert!(Answer::parse(&Frame { kind, body: longer }).is_err());
    }
    let many = vec![(Vbn(1), Checksum::default()); 513];
    let asks = Asks::Fetch(many);
    let (kind, body) =
        Request::Copies(CopiesRequest { volume: "v".to_owned(), id: VolumeId([7; 16]), asks }).encode();
    assert!(Request::parse(&Frame { kind, body }).is_err());
}

#[test]
fn blocks_that_are_given_are_taken_only_where_they_are_missing() {
    let (mut pair, [source_device, _], data) = mirrored();
    let (damaged, whole) = (data[4], data[5]);
    spoil(&source_device, home(damaged.vbn.0));
    pair.source.close().expect("it closes");
    pair.source = super::harness::open(&source_device, &pair.clock);
    assert_eq!(scrub(&pair.source), 1);
    let before = places(&source_device);
    let good = pair.destination.sound_blocks(&[(damaged.vbn, damaged.checksum), (whole.vbn, whole.checksum)]);
    let [good, other] = [0, 1].map(|at| good[at].clone().expect("the mirror has it").to_vec());
    let give = |blocks| {
        let (volume, id) = ("vol0".to_owned(), pair.destination.id());
        let request = Request::Copies(CopiesRequest { volume, id, asks: Asks::Give(blocks) });
        pair.converse(|client| client.ask(&request)).expect("it answers")
    };
    let wrong = vec![
        // Other bytes, under the name of the missing block; right bytes that were not requested;
        // right bytes under another checksum.
        (damaged.vbn, damaged.checksum, other.clone()),
        (whole.vbn, whole.checksum, other.clone()),
        (damaged.vbn, whole.checksum, other),
    ];
    assert_eq!(give(wrong), Answer::Copies(CopiesAnswer::Mended(0)));
    assert_eq!(places(&source_device), before, "nothing was written");
    let right = vec![(damaged.vbn, damaged.checksum, good)];
    assert_eq!(give(right), Answer::Copies(CopiesAnswer::Mended(1)));
    assert_eq!(scrub(&pair.source), 0);
}

#[test]
fn blocks_that_are_whole_on_both_sides_and_not_the_same_are_counted_by_themselves() {
    let sum = |number: u8| Checksum([number; 16]);
    let piece = |vbn: u64, checksum, sound| Piece { vbn: Vbn(vbn), checksum, place: Place::Unknown, sound };
    // The same, another content, damaged here, damaged there, here alone; and one there alone.
    let pieces = [(1, true), (2, true), (3, false), (4, true), (5, true)];
    let pieces = pieces.map(|(vbn, sound)| piece(vbn, sum(vbn as u8), sound)).to_vec();
    let own = Region { pieces, ..Region::default() };
    let there = [(1, 1, true), (2, 9, true), (3, 3, true), (4, 4, false), (6, 6, true)];
    let list = there.map(|(vbn, number, sound)| (Vbn(vbn), sum(number), sound)).to_vec();
    let theirs = RegionAnswer { digest: sum(0), read: 0, incomplete: false, list };
    let (mut verified, mut at) = (Verified::default(), VerifyProgress::default());
    Comparing { verified: &mut verified, at: &mut at, both: true }.note(SnapshotId(1), &own, Some(&theirs));
    assert_eq!(of_kind(&verified, DifferenceKind::Contradiction), BTreeSet::from([2, 5, 6]));
    assert_eq!((verified.differences_total, verified.contradictions), (5, 3));
}
