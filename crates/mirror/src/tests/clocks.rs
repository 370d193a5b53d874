//! Two servers whose clocks do not agree, and are set.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Clock, ManualClock, Rng, Timestamp};
use cairn_volume::Volume;

use super::harness::*;
use crate::{
    Birth, Client, Destination, Lag, MirrorError, Options, Pace, PeerName, Refusal, SourceVolumes,
    TransferKind, TransferProgress, Work,
};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A pair whose destination has a clock of its own, `behind` that of the source.
fn apart(seed: u64, behind: Duration) -> (Pair, Arc<ManualClock>) {
    let mut pair = Pair::new(seed);
    let far = Arc::new(ManualClock::new(Timestamp(pair.clock.now().0 - behind.as_nanos() as u64)));
    pair.destination.close().expect("it is closed");
    pair.destination = open(&pair.destination_device, &far);
    (pair, far)
}

fn turn(clock: &ManualClock, back: bool, by: Duration) {
    let (now, by) = (clock.now().0, by.as_nanos() as u64);
    clock.set(Timestamp(if back { now - by } else { now + by }));
}

#[test]
fn lag_grows_by_the_time_that_passes_whatever_either_clock_is_set_to() {
    for back in [true, false] {
        let (pair, far) = apart(21, HOUR);
        let mut rng = Rng::new(21);
        let pass = |seconds: u64| {
            for clock in [&pair.clock, &far] {
                clock.advance(Duration::from_secs(seconds));
            }
        };
        pair.write(pair.files[0], 0, 50, &mut rng);
        let mirror = pair.mirror();
        pair.update_with(&mirror, Trouble::default()).expect("a baseline");
        let base = pair.source.snapshots()[0].root;
        assert_eq!(mirror.lag().expect("there was contact").age, Duration::ZERO);
        pass(100);
        pair.write(pair.files[0], 0, 10, &mut rng);
        pair.source.consistency_point().expect("a consistency point");
        turn(&pair.clock, back, HOUR);
        pass(7);
        let at_source = pair.registry.mirrors(&pair.source).expect("the mirrors").remove(0);
        let behind = at_source.behind.expect("its base is known");
        let seven = Duration::from_secs(7);
        assert_eq!(behind.now.since(behind.first_change.expect("a change")), seven);
        // The time that a step of a mirror that follows continuously waits for.
        assert_eq!(pair.source.age_of_changes(&base), Some(seven));
        assert_eq!(pair.refresh(&mirror).expect("the source answers").age, seven);
        turn(&far, back, HOUR);
        pass(5);
        let lag = mirror.lag().expect("there was contact");
        assert_eq!((lag.age, lag.silent), (seven + Duration::from_secs(5), Duration::from_secs(5)));
        assert_eq!(mirror.loss().silent, Some(Duration::from_secs(5)));
        // If the source's clock was set back to before the image, that has no age.
        let age = if back { Duration::ZERO } else { HOUR + Duration::from_secs(107) };
        assert_eq!(mirror.loss().image_age, Some(age + Duration::from_secs(5)));
        pair.update_with(&mirror, Trouble::default()).expect("an update");
        assert_eq!(mirror.lag().map(|lag| (lag.age, lag.bytes)), Some((Duration::ZERO, 0)));
    }
}

#[test]
fn changes_from_before_a_restart_are_not_hidden_by_a_clock_that_was_put_back() {
    let (mut pair, far) = apart(22, Duration::ZERO);
    let mut rng = Rng::new(22);
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    pair.write(pair.files[0], 0, 10, &mut rng);
    pair.source.close().expect("it is closed");
    turn(&pair.clock, true, HOUR);
    pair.source = open(&pair.source_device, &pair.clock);
    pair.clock.advance(Duration::from_secs(9));
    let age = pair.refresh(&mirror).expect("the source answers").age;
    assert_eq!(age, Duration::from_secs(9), "they are no younger than this run of the source");
    // The destination's saved record tells how long the source has been silent, at least the time
    // since then.
    let contact = mirror.contact();
    turn(&far, true, HOUR);
    let again =
        Destination::new(pair.destination.clone(), "vol0", mirror.relationship, pair.compression, contact);
    far.advance(Duration::from_secs(4));
    assert_eq!(again.silence(), Some(Duration::from_secs(4)));
}

#[test]
fn a_rollback_is_a_change_from_the_moment_at_which_it_was_made() {
    let (pair, _far) = apart(23, HOUR);
    let mut rng = Rng::new(23);
    let kept = pair.source.create_snapshot("before").expect("a snapshot").id;
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    turn(&pair.clock, true, HOUR);
    pair.source.rollback(kept).expect("it goes back");
    pair.clock.advance(Duration::from_secs(3));
    assert_eq!(pair.refresh(&mirror).expect("the source answers").age, Duration::from_secs(3));
}

/// An update of a mirror with a lock of 30 days.
fn update(pair: &Pair, mirror: &Destination) -> Result<(), MirrorError> {
    mirror.set_options(Options { lock: Some(DAY * 30), ..mirror.options() });
    pair.update_with(mirror, Trouble::default()).map(drop)
}

#[test]
fn lock_counts_what_has_passed_at_the_mirror_and_not_what_the_source_says() {
    // The source's clock is years slow while the snapshot is made, or years fast; the mirror's
    // server may restart.
    for (back, restarts) in [(true, false), (true, true), (false, false)] {
        let (mut pair, far) = apart(24, HOUR);
        let mut rng = Rng::new(24);
        pair.write(pair.files[0], 0, 50, &mut rng);
        let mut mirror = pair.mirror();
        update(&pair, &mirror).expect("a baseline");
        let pass = |pair: &Pair, by: Duration| {
            pair.clock.advance(by);
            far.advance(by);
        };
        pass(&pair, DAY);
        turn(&pair.clock, back, DAY * 400);
        let locked = pair.source.create_snapshot("payroll").expect("a snapshot").id;
        turn(&pair.clock, !back, DAY * 400);
        pair.write(pair.files[0], 0, 20, &mut rng);
        update(&pair, &mirror).expect("the snapshot comes along");
        if restarts {
            let births = mirror.births();
            assert_eq!(births.len(), 1);
            pair.destination = open(&pair.destination_device, &far);
            mirror = pair.mirror();
            mirror.remember_births(&births, None);
        }
        // Images that come meanwhile make it no younger.
        for _ in 0..2 {
            pass(&pair, DAY * 10);
            pair.write(pair.files[0], 0, 20, &mut rng);
            update(&pair, &mirror).expect("an image");
        }
        pair.source.delete_snapshots(&[locked]).expect("it is deleted");
        pair.write(pair.files[0], 0, 20, &mut rng);
        pass(&pair, DAY * 8);
        let error = update(&pair, &mirror).expect_err("it is locked");
        assert!(matches!(&error, MirrorError::Locked { name } if name == "payroll"), "{error}");
        pass(&pair, DAY * 3);
        update(&pair, &mirror).expect("its time is over");
        assert!(pair.destination.snapshot(locked).is_none());
        pair.assert_mirrored();
    }
}

#[test]
fn lock_is_as_long_as_it_is_whatever_the_clock_of_the_mirror_is_set_to() {
    for back in [false, true] {
        let (pair, far) = apart(26, HOUR);
        let mut rng = Rng::new(26);
        let mirror = pair.mirror();
        pair.write(pair.files[0], 0, 50, &mut rng);
        update(&pair, &mirror).expect("a baseline");
        let locked = pair.source.create_snapshot("payroll").expect("a snapshot").id;
        pair.write(pair.files[0], 0, 20, &mut rng);
        update(&pair, &mirror).expect("the snapshot comes along");
        let pass = |pair: &Pair, by: Duration| {
            pair.clock.advance(by);
            far.advance(by);
        };
        pass(&pair, DAY * 10);
        turn(&far, back, DAY * 90);
        pair.source.delete_snapshots(&[locked]).expect("it is deleted");
        pair.write(pair.files[0], 0, 20, &mut rng);
        let error = update(&pair, &mirror).expect_err("it is locked");
        assert!(matches!(&error, MirrorError::Locked { name } if name == "payroll"), "{error}");
        // And is set right again, or wrong once more.
        turn(&far, !back, DAY * 200);
        pass(&pair, DAY * 19);
        assert!(update(&pair, &mirror).is_err(), "a day is left");
        pass(&pair, DAY * 2);
        update(&pair, &mirror).expect("its time is over");
        assert!(pair.destination.snapshot(locked).is_none());
    }
}

#[test]
fn births_that_were_not_written_down_are_those_of_the_last_image() {
    let (mut pair, far) = apart(25, HOUR);
    let mut rng = Rng::new(25);
    let old = pair.source.create_snapshot("old").expect("a snapshot");
    pair.clock.advance(DAY * 40);
    far.advance(DAY * 40);
    let mirror = pair.mirror();
    update(&pair, &mirror).expect("a baseline");
    let births = mirror.births();
    assert_eq!(births[0].at.0, far.now().0 - (DAY * 40).as_nanos() as u64, "by the source's own clock");
    pair.write(pair.files[0], 0, 20, &mut rng);
    pair.source.create_snapshot("new").expect("a snapshot");
    far.advance(DAY);
    update(&pair, &mirror).expect("the snapshot comes along");
    // The power fails before that is saved.
    pair.destination = open(&pair.destination_device, &far);
    let again = pair.mirror();
    again.remember_births(&births, None);
    let births = again.births();
    let received = pair.destination.status().cursor.received;
    assert_eq!(births.iter().map(|birth| birth.snapshot).collect::<Vec<_>>()[0], old.id);
    assert_eq!(births[1].at, received, "it can't have been made later");
}

/// A volume whose command after a snapshot takes a minute, and whose next image takes a second to
/// be found.
struct Slowly(Arc<Volume>, Arc<ManualClock>);

impl SourceVolumes for Slowly {
    fn volume(&self, _name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.0.clone())
    }

    fn around_snapshot(&self, _volume: &str, make: &mut dyn FnMut()) -> Result<(), Refusal> {
        make();
        self.1.advance(Duration::from_secs(60));
        Ok(())
    }

    fn upstream_lag(&self, _volume: &str) -> Option<Lag> {
        self.1.advance(Duration::from_secs(1));
        None
    }
}

#[test]
fn lag_during_a_transfer_counts_the_time_that_went_by_until_it_was_announced() {
    let pair = Pair::new(27);
    let mut rng = Rng::new(27);
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    pair.write(pair.files[0], 0, 50, &mut rng);
    pair.clock.advance(Duration::from_secs(10));
    let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
    let mut told = None;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cancel = AtomicBool::new(false);
            let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            let peer = PeerName::new(pair.peers[0]).expect("a good name");
            let volumes = Slowly(pair.source.clone(), pair.clock.clone());
            let _ = pair.registry.serve_session(&mut far, &volumes, &peer, &mut work);
        });
        let cancel = AtomicBool::new(false);
        let mut progress = |_: &TransferProgress| {
            told.get_or_insert_with(|| mirror.lag().expect("there was contact").age);
        };
        let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
        let mut client = Client::hello(&mut near).expect("it answers");
        mirror.update(&mut client, &mut work).expect("an update");
        drop(near);
    });
    // The source's processing time counts twice: as far as is known here, the answer took that long
    // to travel.
    assert_eq!(told, Some(Duration::from_secs(71 + 61)));
}

/// The travel time of an answer over a [`Late`] link.
const LATE: Duration = Duration::from_secs(30);

/// A link that delays every answer by that time.
struct Late<'a> {
    stream: UnixStream,
    clocks: [&'a ManualClock; 2],
    asked: bool,
}

impl Read for Late<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(buffer)?;
        if std::mem::take(&mut self.asked) {
            self.clocks.iter().for_each(|clock| clock.advance(LATE));
        }
        Ok(count)
    }
}

impl Write for Late<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.asked = true;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn time_that_an_answer_is_on_its_way_makes_no_lag_smaller() {
    let (pair, far) = apart(28, HOUR);
    let mut rng = Rng::new(28);
    pair.write(pair.files[0], 0, 50, &mut rng);
    let mirror = pair.mirror();
    pair.update_with(&mirror, Trouble::default()).expect("a baseline");
    let (near, mut other) = UnixStream::pair().expect("a socket pair");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cancel = AtomicBool::new(false);
            let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            let peer = PeerName::new(pair.peers[0]).expect("a good name");
            let volumes = One(pair.source.clone(), pair.peers[1]);
            let _ = pair.registry.serve_session(&mut other, &volumes, &peer, &mut work);
        });
        let age = || mirror.lag().expect("there was contact").age;
        let mut late = Late { stream: near, clocks: [&pair.clock, &far], asked: false };
        let mut client = Client::hello(&mut late).expect("it answers");
        // The source reported no changes; later ones are unknown here.
        let lag = mirror.refresh(&mut client).expect("the source answers");
        assert_eq!((lag.age, age(), mirror.loss().silent), (LATE, LATE, Some(LATE)));
        assert_eq!(far.now().since(lag.as_of), LATE);
        let cancel = AtomicBool::new(false);
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let report = mirror.update(&mut client, &mut work).expect("an update");
        assert_eq!((report.kind, age()), (TransferKind::UpToDate, LATE));
        // While an image is in transfer, and once it is here and the source got the
        // acknowledgement.
        pair.write(pair.files[0], 0, 50, &mut rng);
        let mut told = None;
        let mut progress = |_: &TransferProgress| {
            told.get_or_insert_with(age);
        };
        let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
        mirror.update(&mut client, &mut work).expect("an update");
        assert_eq!((told, age()), (Some(LATE), LATE));
        // One that follows continuously asks to be answered after a second in any case.
        let pace = Pace { step: Duration::from_secs(2), wait: Duration::from_secs(1) };
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let followed = mirror.follow(&mut client, pace, &mut work).expect("nothing is due");
        assert!(followed.is_none() && age() >= LATE - pace.wait, "{:?}", age());
        drop(late);
    });
}

#[test]
fn lock_that_is_shortened_counts_for_later_snapshots_alone() {
    let (pair, far) = apart(29, HOUR);
    let mut rng = Rng::new(29);
    let mirror = pair.mirror();
    let update = || pair.update_with(&mirror, Trouble::default()).map(drop);
    let make = |name: &str, rng: &mut Rng| {
        pair.write(pair.files[0], 0, 20, rng);
        let made = pair.source.create_snapshot(name).expect("a snapshot").id;
        update().expect("it comes along");
        made
    };
    let pass = |by: Duration| [&pair.clock, &far].iter().for_each(|clock| clock.advance(by));
    mirror.set_lock(Some(DAY * 30));
    let payroll = make("payroll", &mut rng);
    for lock in [Some(HOUR), None] {
        mirror.set_lock(lock);
        let later = make("later", &mut rng);
        pass(DAY);
        assert_eq!(mirror.locked().iter().map(|one| one.snapshot).collect::<Vec<_>>(), [payroll]);
        pair.source.delete_snapshots(&[later]).expect("it is deleted");
        update().expect("nothing keeps it");
    }
    pair.source.delete_snapshots(&[payroll]).expect("it is deleted");
    pair.write(pair.files[0], 0, 20, &mut rng);
    let error = update().expect_err("it is locked");
    assert!(matches!(&error, MirrorError::Locked { name } if name == "payroll"), "{error}");
    // Its own time ends it, or an authorized request.
    mirror.lift_locks(HOUR);
    assert!(mirror.locked().is_empty() && mirror.locked_ever().len() == 1);
    pass(HOUR);
    assert!(update().is_err() && mirror.lifted().is_none());
    pass(DAY * 28);
    update().expect("its time is over");
}

#[test]
fn clock_that_is_put_forward_or_back_while_the_program_is_off_ends_no_lock() {
    for back in [false, true] {
        let (mut pair, far) = apart(30, HOUR);
        let mut rng = Rng::new(30);
        let mirror = pair.mirror();
        mirror.set_lock(Some(DAY * 30));
        pair.write(pair.files[0], 0, 20, &mut rng);
        pair.update_with(&mirror, Trouble::default()).expect("a baseline");
        let payroll = pair.source.create_snapshot("payroll").expect("a snapshot").id;
        pair.update_with(&mirror, Trouble::default()).expect("the snapshot comes along");
        let (births, looked) = (mirror.births(), far.now());
        turn(&far, back, DAY * 400);
        let left = Birth::left(&births, looked, far.now());
        assert_eq!(left.iter().map(|one| one.snapshot).collect::<Vec<_>>(), [payroll]);
        pair.destination = open(&pair.destination_device, &far);
        let again = pair.mirror();
        again.remember_births(&births, Some(looked));
        assert_eq!(again.locked().len(), 1);
        pair.source.delete_snapshots(&[payroll]).expect("it is deleted");
        pair.write(pair.files[0], 0, 20, &mut rng);
        // Of the stopped time one day counts, and with a clock that was set back none.
        far.advance(DAY * 28);
        assert!(pair.update_with(&again, Trouble::default()).is_err(), "{:?}", again.locked());
        far.advance(DAY * 2);
        pair.update_with(&again, Trouble::default()).expect("its time is over");
    }
}
