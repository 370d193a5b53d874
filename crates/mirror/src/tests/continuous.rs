//! Mirrors that follow their source from one consistency point to the next.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Mutex, Rng, SnapshotId};
use cairn_volume::Volume;

use super::harness::{Cut, Pair, Trouble, fingerprint};
use crate::{
    Client, Destination, Hop, MirrorError, Pace, PeerName, Refusal, Route, SourceVolumes, TransferKind,
    TransferReport, Work,
};

/// Every change is due at once, without waiting.
const AT_ONCE: Pace = Pace { step: Duration::ZERO, wait: Duration::ZERO };

fn follow<S: Read + Write>(
    mirror: &Destination,
    client: &mut Client<'_, S>,
    pace: Pace,
) -> Result<Option<TransferReport>, MirrorError> {
    let cancel = AtomicBool::new(false);
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    mirror.follow(client, pace, &mut work)
}

fn with_baseline(seed: u64) -> (Pair, Rng) {
    let (pair, mut rng) = (Pair::new(seed), Rng::new(seed));
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    (pair, rng)
}

/// The snapshots that the source keeps for its mirror.
fn held(pair: &Pair) -> Vec<SnapshotId> {
    pair.source.snapshots().iter().filter(|s| s.held).map(|s| s.id).collect()
}

#[test]
fn an_update_costs_the_source_two_consistency_points_and_holds_nothing_but_its_base() {
    let (pair, mut rng) = with_baseline(2);
    for round in 0..5 {
        pair.write(pair.files[1], round * 7, 7, &mut rng);
        let before = pair.source.status().consistency_points;
        let report = pair.update().expect("an update");
        let cost = pair.source.status().consistency_points - before;
        assert_eq!(cost, 2, "the snapshot with all that goes along, and the end of the base before it");
        assert!(report.blocks < 60 && report.memory_blocks == 0, "{report:?}");
        pair.assert_same();
        assert_eq!(held(&pair).len(), 1, "the base of the next");
        let before = pair.source.status().consistency_points;
        assert_eq!(pair.update().expect("nothing to bring").kind, TransferKind::UpToDate);
        assert_eq!(pair.source.status().consistency_points, before, "nothing has changed");
    }
}

#[test]
fn a_step_costs_the_source_one_consistency_point_and_no_read() {
    let (pair, mut rng) = with_baseline(1);
    let mirror = pair.mirror();
    let steps = pair.converse(|client| {
        assert_eq!(follow(&mirror, client, AT_ONCE)?, None, "nothing has changed");
        for round in 0..10 {
            pair.write(pair.files[1], round * 7, 7, &mut rng);
            let before = pair.source.status().consistency_points;
            let report = follow(&mirror, client, AT_ONCE)?.expect("something has changed");
            assert_eq!(pair.source.status().consistency_points, before + 1, "round {round}");
            assert_eq!(report.kind, TransferKind::Update);
            assert!((7..60).contains(&report.blocks), "{report:?}");
            assert_eq!(report.memory_blocks, report.blocks, "all of it was in memory: {report:?}");
            pair.assert_same();
            assert!(held(&pair).len() <= 2, "the base, and the one before it until the next step");
            assert_eq!(follow(&mirror, client, AT_ONCE)?, None, "nothing has changed since");
        }
        Ok(pair.source.fresh_reads())
    });
    let (from_memory, from_device) = steps.expect("all steps");
    assert!(from_memory > 70 && from_device == 0, "{from_memory} blocks from memory, {from_device} not");
    // An update like any other tidies up.
    pair.update().expect("an update");
    assert_eq!(held(&pair).len(), 1);
}

#[test]
fn a_mirror_that_falls_behind_reads_what_memory_has_lost_and_catches_up() {
    let (pair, mut rng) = with_baseline(2);
    let mirror = pair.mirror();
    let done = pair.converse(|client| {
        follow(&mirror, client, AT_ONCE)?;
        for (count, keeps_up) in [(20, true), (300, false), (20, true)] {
            // Written out in between, as under load.
            for lba in (0..count).step_by(20) {
                pair.write(pair.files[0], lba, 20, &mut rng);
                pair.source.consistency_point().expect("a consistency point");
            }
            let report = follow(&mirror, client, AT_ONCE)?.expect("something has changed");
            assert!(report.blocks >= count);
            assert_eq!(report.memory_blocks == report.blocks, keeps_up, "{report:?}");
            pair.assert_same();
        }
        Ok(())
    });
    done.expect("all steps");
    let (_, from_device) = pair.source.fresh_reads();
    assert!(from_device > 100, "{from_device} blocks were read");
}

#[test]
fn names_alone_are_a_step_and_a_change_is_due_when_it_is_old_enough() {
    let (pair, mut rng) = with_baseline(3);
    let mirror = pair.mirror();
    let pace = Pace { step: Duration::from_secs(2), wait: Duration::ZERO };
    let done = pair.converse(|client| {
        pair.source.create_snapshot("daily").expect("a snapshot");
        follow(&mirror, client, pace)?.expect("a snapshot is due at once");
        assert!(pair.destination.snapshot_named("daily").is_some());
        pair.clock.advance(Duration::from_secs(60));
        pair.write(pair.files[0], 5, 5, &mut rng);
        pair.clock.advance(Duration::from_millis(1900));
        assert_eq!(follow(&mirror, client, pace)?, None, "it is not old enough");
        let lag = mirror.lag().expect("the source has answered");
        assert_eq!((lag.age, lag.bytes > 0), (Duration::from_millis(1900), true), "{lag:?}");
        pair.clock.advance(Duration::from_millis(100));
        follow(&mirror, client, pace)?.expect("it is due");
        let lag = mirror.lag().expect("the source has answered");
        assert_eq!((lag.age, lag.bytes), (Duration::ZERO, 0), "{lag:?}");
        Ok(())
    });
    done.expect("all steps");
    pair.assert_same();
}

/// A source whose time passes while it rests, and is counted.
struct Resting<'a> {
    pair: &'a Pair,
    rested: Mutex<Duration>,
}

impl SourceVolumes for Resting<'_> {
    fn volume(&self, _name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.pair.source.clone())
    }

    fn rest(&self, time: Duration) -> bool {
        self.pair.clock.advance(time);
        let mut rested = self.rested.lock();
        *rested += time;
        *rested < Duration::from_secs(3600)
    }
}

#[test]
fn a_source_waits_for_a_change_no_longer_than_somebody_can_want_it_to() {
    let (pair, _) = with_baseline(8);
    let mirror = pair.mirror();
    let resting = Resting { pair: &pair, rested: Mutex::new(Duration::ZERO) };
    let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
    let followed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let cancel = AtomicBool::new(false);
            let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            let peer = PeerName::new("peer1").expect("a good name");
            let _ = pair.registry.serve_session(&mut far, &resting, &peer, &mut work);
            drop(far);
        });
        let mut client = Client::hello(&mut near)?;
        let followed =
            follow(&mirror, &mut client, Pace { wait: Duration::from_millis(u64::MAX), ..AT_ONCE });
        drop(near);
        followed
    });
    assert_eq!(followed.expect("it is answered"), None);
    // A closed connection is noticed with the answer.
    let rested = *resting.rested.lock();
    assert!(rested < Duration::from_secs(120), "{rested:?}");
}

#[test]
fn since_maps_go_on_with_the_steps() {
    let (pair, mut rng) = with_baseline(4);
    let mirror = pair.mirror();
    for round in 0..5 {
        let stepped = pair.converse(|client| {
            for step in 0..3 {
                pair.write(pair.files[1], round * 20 + step, 3, &mut rng);
                follow(&mirror, client, AT_ONCE)?.expect("something has changed");
            }
            Ok(())
        });
        stepped.expect("all steps");
        // Every snapshot at the source is gone, and still the next update sends the changes.
        for snapshot in pair.source.snapshots() {
            pair.source.hold_snapshot(snapshot.id, false).expect("released");
            pair.source.delete_snapshots(&[snapshot.id]).expect("deleted");
        }
        pair.write(pair.files[0], round, 2, &mut rng);
        let report = pair.converse(|client| follow(&mirror, client, AT_ONCE)).expect("a step by the map");
        let report = report.expect("a base that is gone is due");
        assert!((2..60).contains(&report.blocks), "{report:?}");
        pair.assert_same();
    }
}

#[test]
fn a_mirror_without_a_held_base_rests_while_nothing_changes() {
    let (mut pair, mut rng) = (Pair::new(6), Rng::new(6));
    pair.hold = false;
    pair.write(pair.files[0], 0, 300, &mut rng);
    pair.update().expect("a baseline");
    let mirror = pair.mirror();
    let pace = Pace { step: Duration::from_secs(2), wait: Duration::ZERO };
    let told = |mirror: &Destination| mirror.lag().map(|lag| (lag.age, lag.bytes > 0));
    let nothing = Some((Duration::ZERO, false));
    let done = pair.converse(|client| {
        // As each session begins: once with nothing to bring.
        let cancel = AtomicBool::new(false);
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        assert_eq!(mirror.update(client, &mut work)?.kind, TransferKind::UpToDate);
        for round in 0..3 {
            pair.clock.advance(Duration::from_secs(3600));
            assert_eq!(follow(&mirror, client, pace)?, None, "round {round}: nothing has changed");
            assert_eq!(told(&mirror), nothing, "round {round}");
            pair.write(pair.files[1], round * 7, 7, &mut rng);
            pair.clock.advance(Duration::from_millis(1900));
            assert_eq!(follow(&mirror, client, pace)?, None, "round {round}: it is not old enough");
            assert_eq!(told(&mirror), Some((Duration::from_millis(1900), true)), "round {round}");
            pair.clock.advance(Duration::from_millis(100));
            let report = follow(&mirror, client, pace)?.expect("it is due");
            assert!((7..60).contains(&report.blocks), "{report:?}");
            pair.assert_same();
            assert_eq!(told(&mirror), nothing, "round {round}");
            assert_eq!(pair.source.snapshots(), [], "nothing is kept at the source");
        }
        pair.source.create_snapshot("daily").expect("a snapshot");
        follow(&mirror, client, pace)?.expect("a snapshot is due at once");
        assert_eq!(follow(&mirror, client, pace)?, None, "and then nothing is");
        Ok(())
    });
    done.expect("all steps");
}

#[test]
fn what_a_step_would_let_go_of_and_a_clone_needs_ends_nothing() {
    let (pair, mut rng) = with_baseline(5);
    let mirror = pair.mirror();
    let done = pair.converse(|client| {
        let mut kept = Vec::new();
        for round in 0..6 {
            pair.write(pair.files[0], round * 9, 9, &mut rng);
            follow(&mirror, client, AT_ONCE)?.expect("something has changed");
            if round == 2 {
                kept.push(pair.source.keep_snapshot(held(&pair)[0]).expect("a clone is made of it"));
            }
            if round == 4 {
                kept.clear();
            }
            pair.assert_same();
        }
        Ok(())
    });
    done.expect("all steps");
    assert!(held(&pair).len() <= 2, "and it goes when the clone does");
}

/// Random work, mishaps anywhere in a conversation of several steps, restarts of either side; and
/// updates of the usual kind in between.
#[test]
fn random_work_is_followed_over_cuts() {
    let (mut steps, mut cuts) = (0, 0);
    for seed in 0..12 {
        let (mut pair, mut rng) = with_baseline(seed);
        for round in 0..12 {
            let (near, mut far) = UnixStream::pair().expect("a socket pair");
            for end in [&near, &far] {
                end.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
            }
            let left = if rng.one_in(2) { rng.below(200_000) } else { u64::MAX };
            let loses_answer = rng.one_in(4);
            let outcome = std::thread::scope(|scope| {
                let pair = &pair;
                scope.spawn(move || {
                    let cancel = AtomicBool::new(false);
                    let mut work =
                        cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
                    let peer = PeerName::new(pair.peers[0]).expect("a good name");
                    let volumes = super::harness::One(pair.source.clone(), pair.peers[1]);
                    let _ = pair.registry.serve_session(&mut far, &volumes, &peer, &mut work);
                });
                let mut near = Cut { stream: near, left, spoil_at: None, read: 0, written: 0, loses_answer };
                let mirror = pair.mirror();
                let mut client = Client::hello(&mut near)?;
                for _ in 0..4 {
                    for _ in 0..rng.below(20) {
                        pair.work(&mut rng);
                    }
                    if follow(&mirror, &mut client, AT_ONCE)?.is_some() {
                        steps += 1;
                        pair.assert_same();
                    }
                }
                Ok::<(), MirrorError>(())
            });
            match outcome {
                Ok(()) => {}
                Err(MirrorError::Io(_) | MirrorError::Stream(_) | MirrorError::Protocol(_)) => cuts += 1,
                Err(error) => panic!("seed {seed} round {round}: {error}"),
            }
            match rng.below(6) {
                0 => pair.reopen_destination(),
                1 => pair.registry = std::sync::Arc::default(),
                2 => pair.move_home(),
                3 => drop(pair.update().expect("an update")),
                4 => pair.hold = !pair.hold,
                _ => {}
            }
        }
        let last = pair.update_with(&pair.mirror(), Trouble::default());
        last.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pair.assert_same();
    }
    assert!(steps > 100 && cuts > 20, "{steps} steps, {cuts} cuts");
}

#[test]
fn a_source_that_has_given_its_role_away_is_not_followed_by_others() {
    let (pair, _) = with_baseline(6);
    let mirror = pair.mirror();
    pair.source.demote("elsewhere", false).expect("it becomes a destination");
    let refused = pair.converse(|client| follow(&mirror, client, AT_ONCE));
    assert!(matches!(refused, Err(MirrorError::Refused(Refusal::NotASource))), "{refused:?}");
}

/// A volume whose image came through one with the name of its own mirror.
struct Ringed(Arc<Volume>, Hop);

impl SourceVolumes for Ringed {
    fn volume(&self, _name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.0.clone())
    }

    fn route(&self, _volume: &str) -> Route {
        Route::through(Hop::of(b"source", "vol0"), Route::through(self.1, Route::default()))
    }
}

#[test]
fn mirror_that_finds_itself_in_the_route_of_its_source_takes_nothing_from_it_by_an_update_or_while_it_follows()
 {
    let (pair, mut rng) = with_baseline(9);
    let (mirror, own) = (pair.mirror(), Hop::of(b"mirror", "vol0"));
    mirror.know_hop(own);
    let cancel = AtomicBool::new(false);
    let update = |mirror: &Destination, client: &mut Client<'_, UnixStream>| {
        mirror.update(client, &mut Work { cancel: &cancel, progress: &mut |_| {}, threads: None })
    };
    let ring = Ringed(pair.source.clone(), own);
    let shown = fingerprint(&pair.destination);
    for changed in [false, true] {
        if changed {
            pair.write(pair.files[0], 0, 20, &mut rng);
        }
        let updated = pair.converse_with(&ring, |client| update(&mirror, client));
        assert!(matches!(updated, Err(MirrorError::FollowsItself)), "changed {changed}: {updated:?}");
        let followed = pair.converse_with(&ring, |client| follow(&mirror, client, AT_ONCE));
        assert!(matches!(followed, Err(MirrorError::FollowsItself)), "changed {changed}: {followed:?}");
        assert!(fingerprint(&pair.destination) == shown, "changed {changed}: nothing was taken");
    }
    // A foreign route does not matter, and an unfinished transfer does not prevent it.
    let other = Ringed(pair.source.clone(), Hop::of(b"another", "vol0"));
    pair.converse_with(&other, |client| update(&mirror, client)).expect("an update");
    pair.assert_same();
    assert_eq!(held(&pair).len(), 1, "the base of the next, and nothing of those that were refused");
}
