//! Changes of role: the state of both sides after each, with cuts anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Clock, ManualClock, Rng, SnapshotId, Timestamp};
use cairn_device::{Device, FaultDevice, MemoryDevice};
use cairn_format::FileKind;
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_stream::Progress;
use cairn_stream::{DumpLabel, PartReader};
use cairn_volume::{Divergence, Role, Volume, VolumeError};

use super::harness::{BLOCKS, Content, Pair, Trouble, assert_clean, content, fingerprint, open};
use crate::{
    Compression, Contact, Destination, DestinationState, GivesUp, Hop, MirrorError, Refusal, Relationship,
    Route, SourceStatus, Standing, Successor, TransferKind,
};

fn successor() -> Successor {
    Successor {
        continuous: false,
        address: ":7420".to_owned(),
        volume: "vol0".to_owned(),
        every_ms: None,
        cron: String::new(),
        zone: String::new(),
        rpo_ms: None,
    }
}

fn dropped(head: SnapshotId) -> Option<GivesUp> {
    Some(GivesUp { head, image: None, spilled: false })
}

/// The active state that clients see: without mirrors' own notes.
fn seen(volume: &Arc<Volume>) -> Content {
    let image = volume.image(None).expect("an image");
    let mirrors: Vec<_> =
        image.inodes().expect("inodes can be read").into_iter().filter(|i| i.kind.is_since_map()).collect();
    let mut seen = content(&image);
    seen.retain(|file, _| mirrors.iter().all(|inode| inode.id != *file));
    seen
}

/// The content of the owner's snapshots.
fn owners(volume: &Arc<Volume>) -> BTreeMap<String, Content> {
    let mut all = fingerprint(volume);
    all.retain(|name, _| !name.starts_with(cairn_stream::MIRROR_PREFIX) && name != "(active)");
    all
}

/// A planned change of roles; afterwards the pair points the other way.
fn reverse(pair: &mut Pair) {
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("an update");
    let target = pair.converse(|client| mirror.ask_for_role(client, successor())).expect("it is handed over");
    let update = pair.update_with(&mirror, Trouble::default()).expect("the last update");
    assert_eq!(update.target, target);
    mirror.take_over(target).expect("it takes over");
    pair.swap();
}

fn standing(pair: &Pair) -> Standing {
    pair.converse(|client| pair.mirror().standing(client, None)).expect("the other side answers")
}

/// Makes the destination, which takes writes, follow; without the update.
fn give_way(pair: &mut Pair) -> (Divergence, SnapshotId) {
    let (mirror, standing) = (pair.mirror(), standing(pair));
    let divergence = mirror.divergence(&standing).expect("maps are compared");
    let head = mirror.give_way(&standing).expect("it gives way");
    (divergence, head.id)
}

/// A pair whose destination was failed over, both of whose sides have been written to since.
fn parted(seed: u64) -> (Pair, Rng) {
    let mut pair = Pair::new(seed);
    let mut rng = Rng::new(seed);
    for _ in 0..40 {
        pair.work(&mut rng);
    }
    pair.update().expect("a baseline");
    for _ in 0..10 {
        pair.work(&mut rng);
    }
    part(&mut pair, &mut rng, 30);
    (pair, rng)
}

/// Fails over, and writes to both sides. The pair uses the failed-over side as the source.
fn part(pair: &mut Pair, rng: &mut Rng, actions: u64) {
    pair.mirror().failover().expect("a failover");
    (0..actions).for_each(|_| pair.work(rng));
    pair.swap();
    (0..actions).for_each(|_| pair.work(rng));
}

#[test]
fn planned_change_of_roles_loses_nothing_and_goes_back() {
    for seed in 0..4 {
        let mut pair = Pair::new(seed);
        let mut rng = Rng::new(seed);
        for round in 0..8 {
            for _ in 0..20 {
                pair.work(&mut rng);
            }
            let before = {
                pair.source.consistency_point().expect("it commits");
                seen(&pair.source)
            };
            reverse(&mut pair);
            assert_eq!(seen(&pair.source), before, "seed {seed} round {round}: the new source");
            assert_eq!(seen(&pair.destination), before, "seed {seed} round {round}: the old source");
            assert_eq!(pair.destination.status().role, Role::Destination);
            assert!(
                pair.source.compound().create(FileKind::Lun, 4096).is_ok(),
                "the new source takes writes"
            );
            let update = pair.update().expect("the new direction works");
            assert_ne!(update.kind, TransferKind::Baseline, "seed {seed} round {round}");
            pair.assert_mirrored();
            let held = pair.source.snapshots().into_iter().filter(|s| s.held).count();
            assert_eq!(held, 1, "seed {seed} round {round}: nothing is kept of the former direction");
            assert!(pair.source.since_relationships().len() <= 1, "nor its maps");
            assert_clean(&pair.source);
            if rng.one_in(3) {
                pair.reopen_destination();
            }
        }
    }
}

/// Twenty-five changes of role, planned and not, under load; each side's checksums are the same
/// before and after.
#[test]
fn twenty_five_role_swaps_under_load_keep_every_checksum() {
    let mut pair = Pair::new(77);
    let mut rng = Rng::new(77);
    for swap in 0..25 {
        for _ in 0..15 {
            pair.work(&mut rng);
        }
        if swap % 5 == 4 {
            pair.update().expect("an update");
            part(&mut pair, &mut rng, 8);
            let winner = {
                pair.source.consistency_point().expect("it commits");
                (seen(&pair.source), owners(&pair.source))
            };
            let (_, head) = give_way(&mut pair);
            pair.gives_up = dropped(head);
            pair.update().expect("a resync");
            pair.gives_up = None;
            assert!(winner == (seen(&pair.source), owners(&pair.source)), "swap {swap}: the winner changed");
            assert!(winner == (seen(&pair.destination), owners(&pair.destination)), "swap {swap}: a resync");
            pair.assert_mirrored();
            continue;
        }
        pair.source.consistency_point().expect("it commits");
        let before = seen(&pair.source);
        // Clients continue until the moment of the change.
        let (mirror, mut load) = (pair.mirror(), rng.fork());
        let mut meanwhile = || drop(pair.try_write(pair.files[0], load.below(200), 3, &mut load));
        let trouble =
            Trouble { threads: swap % 2 == 0, meanwhile: Some(&mut meanwhile), ..Trouble::default() };
        pair.update_with(&mirror, trouble).expect("an update under load");
        assert_eq!(seen(&pair.source).len(), before.len());
        pair.source.consistency_point().expect("it commits");
        let before = seen(&pair.source);
        reverse(&mut pair);
        assert_eq!((seen(&pair.source), seen(&pair.destination)), (before.clone(), before), "swap {swap}");
    }
    assert_clean(&pair.source);
    assert_clean(&pair.destination);
}

#[test]
fn resync_sends_what_the_winner_wrote_since_the_split_and_no_more() {
    let mut pair = Pair::new(2);
    let mut rng = Rng::new(2);
    let files = pair.files.clone();
    pair.write(files[0], 0, 300, &mut rng);
    pair.write(files[1], 0, 300, &mut rng);
    pair.source.create_snapshot("both").expect("a snapshot");
    pair.update().expect("a baseline");
    pair.mirror().failover().expect("a failover");
    pair.write(files[0], 10, 70, &mut rng);
    pair.source.create_snapshot("loser").expect("a snapshot");
    pair.write(files[0], 200, 50, &mut rng);
    pair.swap();
    // The same places are allocated for other data.
    pair.write(files[1], 0, 40, &mut rng);
    pair.source.create_snapshot("winner").expect("a snapshot");
    let (divergence, head) = give_way(&mut pair);
    assert!(divergence.head);
    let names: Vec<&str> = divergence.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
    assert_eq!(names, ["loser"]);
    assert!((120..160).contains(&divergence.blocks), "{divergence:?}");
    pair.gives_up = dropped(head);
    let update = pair.update().expect("a resync");
    assert_eq!(update.kind, TransferKind::Update);
    assert!((40..60).contains(&update.blocks), "only what diverged travels: {update:?}");
    pair.assert_mirrored();
    pair.assert_same();
    assert!(pair.destination.snapshot_named("winner").is_some(), "the winner's snapshots are carried");
    assert!(pair.destination.snapshot_named("loser").is_none(), "the loser's are given up with its head");
    pair.move_home();
    pair.assert_mirrored();
}

/// In both directions: the old source follows the one that was failed over, or the one that was
/// failed over follows again.
#[test]
fn either_side_follows_again_after_both_were_written_to() {
    for seed in 0..10 {
        let (mut pair, mut rng) = parted(seed);
        if seed % 2 == 1 {
            pair.swap();
        }
        let (_, head) = give_way(&mut pair);
        pair.gives_up = dropped(head);
        pair.update().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pair.assert_mirrored();
        for _ in 0..4 {
            (0..10).for_each(|_| pair.work(&mut rng));
            pair.update().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            pair.assert_mirrored();
        }
        reverse(&mut pair);
        (0..10).for_each(|_| pair.work(&mut rng));
        pair.update().expect("an update after the roles went back");
        pair.assert_mirrored();
        assert_clean(&pair.source);
    }
}

#[test]
fn what_nobody_has_given_up_is_never_replaced() {
    let (mut pair, _) = parted(5);
    let (_, head) = give_way(&mut pair);
    let before = fingerprint(&pair.destination);
    let refused = pair.update();
    assert!(matches!(refused, Err(MirrorError::Undecided { blocks }) if blocks > 0), "{refused:?}");
    pair.gives_up = dropped(SnapshotId(head.0 + 1));
    let refused = pair.update();
    assert!(
        matches!(refused, Err(MirrorError::Undecided { .. })),
        "another head is another decision: {refused:?}"
    );
    assert_eq!(fingerprint(&pair.destination), before);
    // Taken back, with nothing lost.
    let mirror = pair.mirror();
    assert!(matches!(mirror.state(), DestinationState::OwnHead));
    let loss = mirror.loss();
    assert_eq!((loss.image, loss.bytes_known.unwrap_or(0)), (head, 0));
    mirror.failover().expect("it takes writes again");
    assert_eq!(fingerprint(&pair.destination), before);
    assert!(pair.destination.compound().create(FileKind::Lun, 4096).is_ok());
    assert_clean(&pair.destination);
}

/// The volume itself guards its own head, independently of the mirror's protocol.
#[test]
fn own_head_is_replaced_only_by_its_descendants() {
    let (mut pair, _) = parted(6);
    let (_, _) = give_way(&mut pair);
    let target = pair.source.create_snapshot("target").expect("a snapshot");
    let plan = |have: &[cairn_stream::Have]| cairn_stream::Plan::new(&pair.source, have, target.id);
    let ours = cairn_stream::Have::of(&pair.destination);
    let theirs = cairn_stream::Have::of(&pair.source);
    let other = |have: &cairn_stream::Have| theirs.iter().any(|t| t.id == have.id && t.root != have.root);
    let common: Vec<_> = ours.into_iter().filter(|have| !other(have)).collect();
    let mut bytes = Vec::new();
    let cancel = AtomicBool::new(false);
    let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let plan = plan(&common).expect("a plan");
    cairn_stream::produce(&plan, &mut bytes, Default::default(), &mut work).expect("a stream");
    let before = fingerprint(&pair.destination);
    let refused = cairn_stream::apply(&mut &bytes[..], &pair.destination, &mut work);
    let refused = refused.expect_err("the head was not given up");
    assert!(matches!(refused, cairn_stream::StreamError::Volume(VolumeError::Refused(_))), "{refused:?}");
    assert_eq!(fingerprint(&pair.destination), before);
}

#[test]
fn spilled_head_opens_with_its_base_and_has_every_block() {
    for seed in 20..24 {
        let (mut pair, _) = parted(seed);
        let lost = {
            pair.destination.consistency_point().expect("it commits");
            fingerprint(&pair.destination)
        };
        let (_, head) = give_way(&mut pair);
        let (mirror, standing) = (pair.mirror(), standing(&pair));
        let common = mirror.divergence(&standing).expect("maps are compared").common.expect("a base");
        let mut spill = Vec::new();
        let cancel = AtomicBool::new(false);
        let mut progress = |_: Progress| {};
        let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut progress, threads: None };
        let label = |number: u8| DumpLabel {
            id: DumpId([number; 16]),
            level: DumpLevel::Level(0),
            name: "vol0".to_owned(),
            created: pair.clock.now(),
        };
        mirror.spill(&standing, label(2), &mut spill, &mut work).expect("a spill");
        let labels = [label(1)];
        pair.gives_up = Some(GivesUp { head, image: None, spilled: true });
        pair.update().expect("a resync");
        pair.gives_up = None;
        pair.update().expect("an update");
        // The base comes from the side that won, which has it; then the spill on top.
        let plan =
            cairn_stream::Plan::against(&pair.source, None, common.id).expect("the winner has the base");
        let [label] = labels;
        let mut base = Vec::new();
        let dump = cairn_stream::Dump::new(&plan, label, 1);
        dump.write_part(0, &mut base, Default::default(), &mut work).expect("a dump of the base");
        let part = |name: &str, bytes: Vec<u8>| {
            PartReader::open(name, Box::new(std::io::Cursor::new(bytes))).expect("it begins as a dump does")
        };
        let dumps = vec![part("spill", spill), part("base", base)];
        let dumps = cairn_stream::arrange(dumps, false).expect("the spill fits on the base");
        let device: Arc<dyn Device> =
            Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
        cairn_stream::restore(dumps, &*device, BLOCKS, false, pair.clock.now(), &mut work)
            .expect("both are restored");
        let restored = open(&device, &pair.clock);
        let found = fingerprint(&restored);
        for (name, was) in &lost {
            assert_eq!(found.get(name), Some(was), "seed {seed}: {name}");
        }
        assert_clean(&restored);
    }
}

/// If nothing is held for the mirror, the newest common snapshot is the owner's.
#[test]
fn base_of_a_spill_stays_also_where_it_is_a_snapshot_of_the_owner() {
    let pair = Pair::new(1);
    let monday = pair.source.create_snapshot("monday").expect("it is made");
    let tuesday = pair.source.create_snapshot("tuesday").expect("it is made");
    crate::roles::keep_for_spill(&pair.source, &[monday.id, tuesday.id]).expect("it is kept");
    let refused = pair.source.delete_snapshots(&[tuesday.id]).expect_err("the spill needs it");
    assert!(matches!(refused, VolumeError::Held(_)), "{refused}");
    assert_eq!(pair.source.snapshot(tuesday.id).expect("it is there").name, "tuesday");
    pair.source.delete_snapshots(&[monday.id]).expect("nothing needs it");
}

/// The link is cut at every few bytes of a resync. Until it is complete the own head and every
/// snapshot exist, and each attempt resumes.
#[test]
fn resync_cut_anywhere_leaves_the_own_head_whole_and_goes_on() {
    let (mut pair, _) = parted(8);
    let (_, head) = give_way(&mut pair);
    pair.gives_up = dropped(head);
    let before = fingerprint(&pair.destination);
    let (mut cut_after, mut cuts) = (40, 0);
    loop {
        let trouble = Trouble { cut_after: Some(cut_after), ..Trouble::default() };
        if pair.update_with(&pair.mirror(), trouble).is_ok() {
            break;
        }
        if pair.destination.own_head().is_none() {
            // The image has arrived, and only the answer was lost.
            break;
        }
        assert_eq!(fingerprint(&pair.destination), before, "after {cut_after} bytes");
        if cuts % 3 == 2 {
            pair.reopen_destination();
            assert_eq!(fingerprint(&pair.destination), before, "after {cut_after} bytes, reopened");
        }
        cuts += 1;
        cut_after += 1711;
    }
    assert!(cuts > 10, "{cuts} cuts");
    pair.update().expect("an update");
    pair.assert_mirrored();
    assert!(pair.destination.own_head().is_none());
}

/// The power fails at every operation of the device that is demoted, from the change of its role to
/// the end of the transfer; and at every operation of the one that hands over.
#[test]
fn power_cut_at_any_operation_of_a_resync_leaves_one_whole_head_or_the_other() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let loser = Arc::new(FaultDevice::new(bytes));
    let winner: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    let mut pair = Pair::on(loser.clone(), winner, clock, 9);
    let mut rng = Rng::new(9);
    (0..30).for_each(|_| pair.work(&mut rng));
    pair.update().expect("a baseline");
    part(&mut pair, &mut rng, 12);
    pair.destination.consistency_point().expect("it commits");
    let own = fingerprint(&pair.destination);
    let whole = loser.fork();
    let (mut cut, mut heads, mut images) = (0, 0, 0);
    loop {
        let device = Arc::new(whole.fork());
        pair.destination_device = device.clone();
        pair.reopen_destination();
        pair.gives_up = None;
        device.cut_after(cut);
        let through = attempt(&mut pair);
        if !device.is_off() {
            assert!(through, "without a cut it goes through");
            break;
        }
        pair.destination_device = Arc::new(device.power_cycle(&mut rng));
        pair.reopen_destination();
        let found = fingerprint(&pair.destination);
        if pair.destination.status().role == Role::Normal || pair.destination.own_head().is_some() {
            heads += 1;
            for (name, was) in &own {
                assert_eq!(found.get(name), Some(was), "cut at {cut}: {name}");
            }
        } else {
            images += 1;
        }
        assert_clean(&pair.destination);
        assert!(attempt(&mut pair), "cut at {cut}: the same again goes on");
        pair.assert_mirrored();
        cut += 1;
    }
    assert!(heads > 30 && images > 0, "{heads} heads, {images} images");
}

/// Demotes the volume, if that is still to be done, and updates. True when it succeeded.
fn attempt(pair: &mut Pair) -> bool {
    let (mirror, standing) = (pair.mirror(), standing(pair));
    if pair.destination.status().role == Role::Normal || pair.destination.own_head().is_some() {
        let Ok(head) = mirror.give_way(&standing) else { return false };
        pair.gives_up = dropped(head.id);
    }
    pair.update().is_ok()
}

/// The power fails at every operation of the device of either side of a planned change of roles,
/// and returns. The two sides never take writes at the same time, both are whole, and a repetition
/// completes the change with all flushed data. Writes that only the log of the source had are in
/// the head that it hands over.
#[test]
fn power_cut_at_any_operation_of_a_planned_change_of_roles_loses_nothing_and_goes_on() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let devices = [(); 2].map(|()| Arc::new(FaultDevice::new(bytes)));
    let mut rng = Rng::new(14);
    let mut pair = Pair::on(devices[0].clone(), devices[1].clone(), clock, 14);
    (0..30).for_each(|_| pair.work(&mut rng));
    pair.update().expect("a baseline");
    (0..6).for_each(|_| pair.work(&mut rng));
    pair.source.consistency_point().expect("it commits");
    pair.write(pair.files[0], 7, 5, &mut rng);
    pair.source.flush().expect("it is in the log");
    let whole = devices.map(|device| device.fork());
    let expected = {
        let device: Arc<dyn Device> = Arc::new(whole[0].fork());
        let volume = open(&device, &pair.clock);
        volume.consistency_point().expect("it commits");
        seen(&volume)
    };
    for side in [0, 1, 0, 1] {
        let mut stages = [0; 3];
        for cut in 0.. {
            let mut devices = whole.each_ref().map(|device| Arc::new(device.fork()));
            restart(&mut pair, &devices);
            devices[side].cut_after(cut);
            let through = change_roles(&pair);
            if !devices[side].is_off() {
                assert!(through, "without a cut it goes through");
                break;
            }
            devices[side] = Arc::new(devices[side].power_cycle(&mut rng));
            restart(&mut pair, &devices);
            let roles = (pair.source.status().role, pair.destination.status().role);
            let stage = match roles {
                (Role::Normal, Role::Destination) => 0,
                (Role::Destination, Role::Destination) => 1,
                (Role::Destination, Role::Normal) => 2,
                both => panic!("side {side}, cut at {cut}: {both:?}"),
            };
            stages[stage] += 1;
            for volume in [&pair.source, &pair.destination] {
                assert_clean(volume);
            }
            if stage > 0 {
                assert_eq!(seen(&pair.source), expected, "side {side}, cut at {cut}: what it handed over");
            }
            assert!(change_roles(&pair), "side {side}, cut at {cut}: the same again goes on");
            for volume in [&pair.source, &pair.destination] {
                assert_eq!(seen(volume), expected, "side {side}, cut at {cut}");
                assert_clean(volume);
            }
            assert_eq!(pair.destination.status().role, Role::Normal);
            // The other direction continues where this one ended.
            pair.swap();
            let update = pair.update().expect("the new direction works");
            assert_ne!(update.kind, TransferKind::Baseline, "side {side}, cut at {cut}");
            pair.assert_mirrored();
            pair.swap();
        }
        // The old source does nothing more once the other one has taken over, which has little to
        // do before the role is given away.
        assert!(stages[side..side + 2].iter().all(|count| *count > 0), "side {side}: cut in {stages:?}");
    }
}

/// Both servers restart, on these devices.
fn restart(pair: &mut Pair, devices: &[Arc<FaultDevice>; 2]) {
    let [source, destination] = devices.each_ref().map(|device| -> Arc<dyn Device> { device.clone() });
    (pair.source_device, pair.destination_device) = (source, destination);
    (pair.registry, pair.other_registry) = Default::default();
    pair.source = open(&pair.source_device, &pair.clock);
    pair.reopen_destination();
}

/// A planned change of roles, or the rest of one. True when it succeeded.
fn change_roles(pair: &Pair) -> bool {
    if pair.destination.status().role == Role::Normal {
        return true;
    }
    let mirror = pair.mirror();
    let update = || pair.update_with(&mirror, Trouble::default());
    let taken = update()
        .and_then(|_| pair.converse(|client| mirror.ask_for_role(client, successor())))
        .and_then(|target| update().and_then(|_| mirror.take_over(target)));
    taken.is_ok()
}

#[test]
fn handed_over_head_is_never_dropped_for_an_older_image() {
    let mut pair = Pair::new(11);
    let mut rng = Rng::new(11);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    let target = pair.converse(|client| mirror.ask_for_role(client, successor())).expect("it is handed over");
    assert!(pair.try_write(pair.files[0], 0, 1, &mut rng).is_err(), "it takes no more writes");
    let again = pair.converse(|client| mirror.ask_for_role(client, successor())).expect("the same again");
    assert_eq!(again, target);
    assert!(mirror.take_over(target).is_err(), "not before it has everything");
    // The owner fails it over all the same, at the image before.
    mirror.failover().expect("a failover");
    pair.swap();
    let before = fingerprint(&pair.destination);
    let refused = pair.update();
    assert!(
        matches!(refused, Err(MirrorError::Refused(Refusal::Diverged(id))) if id == target),
        "{refused:?}"
    );
    assert_eq!(fingerprint(&pair.destination), before);
    let divergence = pair.mirror().divergence(&standing(&pair)).expect("maps are compared");
    assert!(divergence.head && (50..70).contains(&divergence.blocks), "{divergence:?}");
    // Decided, it follows.
    pair.gives_up = dropped(target);
    pair.update().expect("a resync");
    pair.assert_mirrored();
}

#[test]
fn side_that_was_given_a_role_and_has_not_taken_it_gives_no_image_to_the_side_that_gave_it() {
    let mut pair = Pair::new(13);
    let mut rng = Rng::new(13);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    let target = pair.converse(|client| mirror.ask_for_role(client, successor())).expect("it is handed over");
    pair.update_with(&mirror, Trouble::default()).expect("the last update");
    // The other one comes by its schedule.
    pair.swap();
    let before = fingerprint(&pair.destination);
    let refused = pair.update();
    assert!(matches!(refused, Err(MirrorError::Refused(Refusal::Circle))), "{refused:?}");
    assert_eq!(fingerprint(&pair.destination), before);
    assert_eq!(pair.destination.own_head().map(|head| head.id), Some(target), "it waits for the other one");
    pair.swap();
    pair.mirror().take_over(target).expect("it takes over");
    pair.swap();
    pair.update().expect("an update");
    pair.assert_mirrored();
}

/// Otherwise the side that takes over would find itself in the route, and never get the last image:
/// the other side's state, received from the old source, names it when asked meanwhile.
#[test]
fn side_that_gives_its_role_away_is_where_the_route_begins_until_it_shows_what_it_received() {
    let mut pair = Pair::new(13);
    let mut rng = Rng::new(13);
    pair.write(pair.files[0], 0, 100, &mut rng);
    let (first, second) = (Hop::of(b"first", "vol0"), Hop::of(b"second", "vol0"));
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    let contact = mirror.contact().expect("it was heard of");
    let route = Route::through(second, Route::through(first, Route::default()));
    let contact = Contact { status: SourceStatus { route, ..contact.status }, ..contact };
    pair.write(pair.files[0], 0, 50, &mut rng);
    let target = pair.converse(|client| mirror.ask_for_role(client, successor())).expect("it is handed over");
    let old =
        Destination::new(pair.source.clone(), "vol0", mirror.relationship, pair.compression, Some(contact));
    assert_eq!(old.route(first), Route::through(first, Route::default()), "it was written there");
    pair.update_with(&mirror, Trouble::default()).expect("the last update");
    mirror.take_over(target).expect("it takes over");
    pair.swap();
    pair.update().expect("an update");
    assert!(old.route(first).has(second), "it shows what it received");
}

#[test]
fn source_gives_its_role_only_to_the_mirror_that_has_its_base_and_takes_it_back_without_loss() {
    let mut pair = Pair::new(12);
    let mut rng = Rng::new(12);
    pair.write(pair.files[0], 0, 100, &mut rng);
    let mirror = pair.mirror();
    let refused = pair.converse(|client| mirror.ask_for_role(client, successor()));
    assert!(matches!(refused, Err(MirrorError::Refused(Refusal::Behind))), "{refused:?}");
    pair.update().expect("a baseline");
    pair.converse(|client| mirror.ask_for_role(client, successor())).expect("it is handed over");
    let kept = seen(&pair.source);
    // The successor is gone.
    pair.swap();
    pair.mirror().failover().expect("it takes its role back");
    pair.swap();
    assert_eq!(seen(&pair.source), kept);
    pair.write(pair.files[0], 0, 10, &mut rng);
    pair.update().expect("and the mirror follows it as before");
    pair.assert_mirrored();
}

#[test]
fn old_source_learns_that_its_mirror_was_failed_over() {
    let mut pair = Pair::new(13);
    let mut rng = Rng::new(13);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    let mirror = pair.mirror();
    assert!(mirror.departure(":7420", "vol0", Timestamp(5)).is_none(), "it follows");
    mirror.failover().expect("a failover");
    let departure = mirror.departure(":7420", "vol0", Timestamp(5)).expect("it takes writes");
    pair.write(pair.files[0], 0, 10, &mut rng);
    let told = pair.converse(|client| mirror.standing(client, Some(departure.clone()))).expect("told");
    assert_eq!(told.role, Role::Normal, "the old source takes writes still");
    let follower = pair.registry.followers().into_iter().next().expect("a follower");
    assert_eq!(follower.departed, Some(departure.clone()));
    let base = pair.source.snapshot(departure.base).expect("the base is held");
    assert_eq!(base.generation, departure.generation);
    let (_, head) = give_way(&mut pair);
    pair.gives_up = dropped(head);
    pair.update().expect("it follows again");
    let follower = pair.registry.followers().into_iter().next().expect("a follower");
    assert_eq!(follower.departed, None);
}

/// A mirror that was failed over reports it again and again, as its source may have forgotten it.
/// One that its owner has forgotten stays forgotten, until it is failed over anew.
#[test]
fn failover_of_a_mirror_that_was_let_go_of_is_no_news_when_it_is_told_again() {
    let pair = Pair::new(15);
    let mut rng = Rng::new(15);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    let mirror = pair.mirror();
    mirror.failover().expect("a failover");
    let tell = |at| {
        let departure = mirror.departure(":7420", "vol0", Timestamp(at)).expect("it takes writes");
        pair.converse(|client| mirror.standing(client, Some(departure))).expect("told");
    };
    let known = |registry: &crate::Source| registry.followers().into_iter().next();
    tell(5);
    tell(5);
    let follower = known(&pair.registry).expect("a follower");
    assert!(follower.departed.is_some());
    pair.registry.forget(&pair.source, &follower.name).expect("it is let go of");
    tell(5);
    assert_eq!(known(&pair.registry), None);
    let forgotten = pair.registry.forgotten();
    assert_eq!(forgotten, [(pair.source.id(), follower.name, Timestamp(5))]);
    tell(6);
    assert!(known(&pair.registry).is_some_and(|follower| follower.departed.is_some()), "another failover");
}

/// A peer with access to a volume invents mirrors of it that were failed over, for which no state
/// was ever kept here.
#[test]
fn failovers_of_mirrors_that_nobody_knows_are_not_noted_without_end() {
    let mut pair = Pair::new(16);
    let mut rng = Rng::new(16);
    pair.write(pair.files[0], 0, 100, &mut rng);
    pair.update().expect("a baseline");
    let mirror = pair.mirror();
    mirror.failover().expect("a failover");
    let departure = mirror.departure(":7420", "vol0", Timestamp(5)).expect("it takes writes");
    let made_up = |number| {
        Destination::new(pair.destination.clone(), "vol0", Relationship(number), Compression::None, None)
    };
    // Nor is the previous one, as after the loss of the saved records.
    pair.registry = Arc::default();
    let told = pair.converse(|client| {
        (0..1000).try_for_each(|number| made_up(number).standing(client, Some(departure.clone())).map(drop))
    });
    told.expect("each is answered");
    let noted = pair.registry.followers().len();
    assert!(noted < 100, "{noted} are noted");
    // The snapshot kept for one shows that it is not one of those.
    pair.converse(|client| mirror.standing(client, Some(departure.clone()))).expect("told");
    let known = pair.registry.followers();
    let own = known.iter().find(|follower| follower.name == "peer1-0000000000000abc").expect("it is known");
    assert_eq!(own.departed, Some(departure));
}

/// A session keeps its opened head, also when the number of that snapshot now belongs to another
/// one.
#[test]
fn readers_of_the_given_up_head_keep_it() {
    let (mut pair, mut rng) = parted(14);
    let (_, head) = give_way(&mut pair);
    let images: BTreeMap<SnapshotId, _> = pair
        .destination
        .snapshots()
        .into_iter()
        .map(|s| (s.id, pair.destination.image(Some(s.id)).expect("an image")))
        .collect();
    let own = pair.destination.image(None).expect("an image");
    let before = (content(&own), images.values().map(content).collect::<Vec<_>>());
    pair.gives_up = dropped(head);
    for round in 0..4 {
        pair.update().expect("an update");
        pair.assert_mirrored();
        for _ in 0..5 {
            pair.destination.background(Duration::ZERO).expect("background work");
        }
        let now = (content(&own), images.values().map(content).collect::<Vec<_>>());
        assert_eq!(now, before, "round {round}");
        (0..20).for_each(|_| pair.work(&mut rng));
    }
    drop((own, images));
    pair.move_home();
    pair.assert_mirrored();
}
