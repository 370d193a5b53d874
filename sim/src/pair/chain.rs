//! Three servers in a row, A to B to C, with an administrator's work on the one in the middle. That
//! is clones of its images that stay in use, drills that come and go, and a lock on the snapshots
//! that the source may delete.
//!
//! - The last one shows exactly the content of the middle one at some moment of the transfer, with
//!   the same snapshots; and continues without it, from the first, with no new baseline.
//! - A clone is a volume like any other, whatever happens to the mirror under it, and the mirror
//!   shows none of its writes. Its server is that of the mirror: the power fails for both.
//! - An image without a snapshot that is locked, or that a clone is made of, is never shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cairn_base::{Clock, Rng, SnapshotId, Timestamp};
use cairn_device::{Device, FaultDevice};
use cairn_mirror::{
    Birth, Client, Destination, Follower, MirrorError, Options, PeerName, Refusal, Relationship, Source,
    TransferKind, TransferReport,
};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Role, Snapshot, Volume, VolumeError};
use parking_lot::Mutex;

use super::{
    Offering, Offers, PEER, Pair, RELATIONSHIP, Shown, VOLUME_NAME, compression, offer, shown_by, talk_out,
};
use crate::link::{End, Link, Mishap};
use crate::model::Model;
use crate::round::{Crew, Floor};
use crate::tally::Tally;
use crate::tasks::{Tasks, Turn};
use crate::timeline::Timeline;
use crate::world::{Config, SnapshotModel, World, compare_image, set_clock};

const LAST_PEER: &str = "lst";
const SECOND: Relationship = Relationship(8);

/// A writable volume that began as a snapshot of the one in the middle.
struct Offspring {
    world: World,
    base: SnapshotId,
    /// It exists until it is removed. A drill's clone does not: it ends with its server, and blocks
    /// no update.
    lasts: bool,
}

/// Concurrent events.
#[derive(Clone, Copy, Default)]
pub struct Round {
    /// The middle one asks the first one.
    pub first: bool,
    /// The last one asks the middle one.
    pub second: bool,
    /// The crew at the first one.
    pub crew: Option<Crew>,
    /// The crew on the clone.
    pub clone_crew: Option<Crew>,
    /// The faulty message of either link, and its fault.
    pub mishaps: [Option<(u64, Mishap)>; 2],
}

type Outcome = Option<Result<TransferReport, MirrorError>>;

/// Three servers.
pub struct Chain {
    pair: Pair,
    last: World,
    last_shown: Shown,
    rng: Rng,
    /// The middle server's registry of its mirrors, and the copy that it saved when it was last
    /// idle.
    relay: Arc<Source>,
    remembered: Vec<Follower>,
    /// The server in the middle lost its record of the last one's snapshots, or had released them
    /// before it learned of them.
    forgot: bool,
    lock: Option<Duration>,
    /// The middle server's saved record of arrived snapshots.
    births: Vec<Birth>,
    /// By its clock, and for each snapshot that it shows: a moment at which that had not been made.
    /// Unknown for those of the first image.
    arrived: BTreeMap<SnapshotId, (Timestamp, Option<Timestamp>)>,
    /// When the last update that brought an image began.
    asked: Option<Timestamp>,
    clone: Option<Offspring>,
    /// Updates that a lock or a clone kept away.
    pub refused: u64,
    messages: u64,
}

impl Chain {
    /// Formats all three. Their clocks differ by two hours at most, and are sometimes set.
    pub fn new(rng: &mut Rng, config: Config) -> Result<Self> {
        let pair = Pair::new(rng, config)?;
        let last = World::new("lst", rng, Config { log_device: false, ..config }, Role::Destination)?;
        Ok(Self {
            pair,
            last,
            last_shown: Shown::default(),
            rng: rng.fork(),
            relay: Arc::default(),
            remembered: Vec::new(),
            forgot: true,
            lock: None,
            births: Vec::new(),
            arrived: BTreeMap::new(),
            asked: None,
            clone: None,
            refused: 0,
            messages: 0,
        })
    }

    /// Adds the counts of this chain.
    pub fn count(&self, tally: &mut Tally) {
        self.pair.count(tally);
        self.last.count(tally);
        tally.messages += self.messages;
        tally.refused += self.refused;
        if let Some(clone) = &self.clone {
            clone.world.count(tally);
        }
    }

    fn middle(&self) -> Arc<Volume> {
        self.pair.destination.volume()
    }

    /// Snapshots that no image may lack: those that cannot be older than the lock's length by the
    /// middle server's clock, whatever the source's shows; and the base of a clone.
    fn promised(&self) -> Vec<Snapshot> {
        let now = self.pair.destination.clock.now();
        let is_young = |s: &Snapshot| {
            let (created, before) = self.arrived.get(&s.id).copied().unwrap_or_default();
            let young = |before: Timestamp| self.lock.is_some_and(|lock| now.since(before) < lock);
            created == s.created && before.is_some_and(young)
        };
        self.may_be_kept().into_iter().filter(|s| is_young(s) || self.is_cloned(s)).collect()
    }

    /// Those that an update may be refused for.
    fn may_be_kept(&self) -> Vec<Snapshot> {
        let may = |s: &Snapshot| self.lock.is_some() && !s.name.starts_with(MIRROR_PREFIX);
        self.middle().snapshots().into_iter().filter(|s| may(s) || self.is_cloned(s)).collect()
    }

    fn is_cloned(&self, snapshot: &Snapshot) -> bool {
        self.clone.as_ref().is_some_and(|clone| clone.lasts && clone.base == snapshot.id)
    }

    /// Records the arrivals of the middle server in a round that began at `began`, by its clock.
    fn note_arrivals(&mut self, began: Timestamp) {
        let before = self.asked.map(|asked| asked.min(began));
        let known = std::mem::take(&mut self.arrived);
        let noted = |s: Snapshot| {
            let same = known.get(&s.id).copied().filter(|(created, _)| *created == s.created);
            (s.id, same.unwrap_or((s.created, before)))
        };
        self.arrived = self.middle().snapshots().into_iter().map(noted).collect();
        self.asked = Some(began);
    }

    /// Updates of both links at once, with work on the first volume and on the clone; and the
    /// checks after it.
    pub fn round(&mut self, timeline: &mut Timeline, round: Round) -> Result<()> {
        timeline.step();
        let mut rng = self.rng.fork();
        let (promised, may_be_kept) = (self.promised(), self.may_be_kept());
        let began = self.pair.destination.clock.now();
        let before = self.pair.shown.clone();
        let mirror = Destination::new(
            self.middle(),
            VOLUME_NAME,
            RELATIONSHIP,
            compression(&mut rng),
            self.pair.contact,
        );
        let options = Options { lock: self.lock, ..mirror.options() };
        mirror.set_options(options);
        mirror.remember_births(&self.births, None);
        mirror.set_relay(self.relay.clone());
        let last = Destination::new(self.last.volume(), VOLUME_NAME, SECOND, compression(&mut rng), None);
        let devices =
            [&self.pair.source, &self.pair.destination, &self.last].map(|world| world.device.clone());
        let (near, mut near_ends) = Link::new([&devices[0], &devices[1]], round.mishaps[0], rng.fork());
        let (far, mut far_ends) = Link::new([&devices[1], &devices[2]], round.mishaps[1], rng.fork());
        let offering = [Offering(self.pair.source.volume()), Offering(self.middle())];
        let (sessions, relay) = (self.pair.sessions.clone(), self.relay.clone());
        let outcomes: [Mutex<Outcome>; 2] = Default::default();
        let mut offers = Offers::new();
        let mut scratch = Timeline::new(false);
        {
            let source = &mut self.pair.source;
            source.pending.clear();
            source.free_before = source.volume().status().free;
            let floor = Floor::new(source, timeline);
            let clone_floor = self.clone.as_mut().map(|clone| {
                clone.world.pending.clear();
                clone.world.free_before = clone.world.volume().status().free;
                Floor::new(&mut clone.world, &mut scratch)
            });
            let mut tasks = Tasks::default();
            if let Some(crew) = round.crew {
                floor.hire(&mut tasks, &mut rng, crew);
            }
            if let (Some(floor), Some(crew)) = (&clone_floor, round.clone_crew) {
                floor.hire(&mut tasks, &mut rng, crew);
            }
            let [near_source, near_destination] = &mut near_ends;
            let [far_source, far_destination] = &mut far_ends;
            if round.first {
                serve(&mut tasks, &sessions, &offering[0], PEER, near_source, &near);
                ask(&mut tasks, &mirror, near_destination, &near, &outcomes[0]);
            }
            if round.second {
                serve(&mut tasks, &relay, &offering[1], LAST_PEER, far_source, &far);
                ask(&mut tasks, &last, far_destination, &far, &outcomes[1]);
            }
            offer(&mut offers, &floor.world.lock(), true);
            let links = [&near, &far];
            take_turns(&mut tasks, &mut rng, (&floor, clone_floor.as_ref()), links, &devices, &mut offers)?;
        }
        timeline.observe(scratch.digest().to_le_bytes());
        self.messages += near.messages() + far.messages();
        if round.first {
            self.pair.contact = mirror.contact();
            if !devices[1].is_off() {
                self.births = mirror.births();
            }
        }
        let [first, second] = outcomes.map(Mutex::into_inner);
        for (link, outcome) in [("A to B", &first), ("B to C", &second)] {
            if let Some(outcome) = outcome {
                timeline.note("dst", self.pair.destination.standing_in_round(), &told(link, outcome));
            }
        }
        let quiet = |number: usize| {
            let ends = &devices[number..number + 2];
            round.mishaps[number].is_none() && !ends.iter().any(|device| device.is_off())
        };
        let quiet = [quiet(0) && round.crew.is_none(), quiet(1)];
        // Its new knowledge of this round is not saved.
        let learnt = !devices[1].is_off();
        // A garbled request may name others than those that are to be kept.
        let garbled = round.mishaps.iter().any(|mishap| matches!(mishap, Some((_, Mishap::Garbled))));
        self.forgot |= garbled || (round.second && devices[1].is_off());
        self.settle(timeline, &offers)?;
        self.judge_first(&first, (&promised, &may_be_kept), &offers, quiet[0])?;
        if self.pair.shown.target != before.target {
            self.note_arrivals(began);
        }
        self.judge_last(&second, &before, quiet[1], learnt && !garbled)
    }

    /// Servers that were cut have power again, and show an allowed image.
    fn settle(&mut self, timeline: &mut Timeline, offers: &Offers) -> Result<()> {
        let source_cut = self.pair.source.device.is_off();
        self.pair.source.end_round(timeline).context("at the source")?;
        if source_cut {
            self.pair.sessions = Arc::default();
        }
        if self.pair.destination.device.is_off() {
            return self.restart_middle(timeline, offers);
        }
        if let Some(clone) = &mut self.clone {
            clone.world.end_round(timeline).context("at the clone")?;
        }
        self.remembered = self.relay.followers();
        Ok(())
    }

    /// The power fails at the server in the middle, unless it has failed, and returns.
    fn restart_middle(&mut self, timeline: &mut Timeline, offers: &Offers) -> Result<()> {
        switch_off(&self.pair.destination.device);
        let mut clone = self.clone.take();
        if let Some(clone) = &mut clone {
            switch_off(&clone.world.device);
            clone.world.held.clear();
            clone.world.close_parent();
        }
        self.pair.recover(timeline, offers)?;
        self.relay = Arc::new(Source::remembering(self.remembered.clone()));
        let Some(mut clone) = clone.filter(|clone| clone.lasts) else { return Ok(()) };
        clone.world.stands_on(self.middle(), clone.base)?;
        clone.world.recover(timeline, false).context("at the clone, when its server came back")?;
        clone.world.check().context("at the clone, when its server came back")?;
        self.clone = Some(clone);
        Ok(())
    }

    /// The one in the middle shows a whole image that was offered, and has everything that is
    /// promised.
    fn judge_first(
        &mut self,
        outcome: &Outcome,
        (promised, may_be_kept): (&[Snapshot], &[Snapshot]),
        offers: &Offers,
        quiet: bool,
    ) -> Result<()> {
        let (shown, news) =
            shown_by(&mut self.pair.destination, &self.pair.shown, offers).context("in the middle")?;
        self.pair.shown = shown;
        let listed = self.middle().snapshots();
        for snapshot in promised {
            let there = listed.iter().any(|s| s.id == snapshot.id && s.root == snapshot.root);
            ensure!(there, "{} ({}) is locked or cloned, and gone", snapshot.name, snapshot.id);
        }
        match outcome {
            None => ensure!(!news, "a new image without an update"),
            Some(Ok(report)) if report.kind == TransferKind::UpToDate => {
                ensure!(!news, "a new image, and it was up to date");
                let same = self.pair.source.model.frozen().files == self.pair.shown.active.files;
                ensure!(same || !quiet, "the source has changed and calls the mirror up to date");
            }
            Some(Ok(report)) => {
                ensure!(
                    self.pair.shown.target == report.target,
                    "{} is shown after an update to {}",
                    self.pair.shown.target,
                    report.target
                );
            }
            Some(Err(MirrorError::Locked { .. } | MirrorError::Volume(VolumeError::Cloned(_)))) => {
                self.refused += 1;
                ensure!(!may_be_kept.is_empty(), "refused for a snapshot, and none may be kept");
                let lacks = may_be_kept.iter().any(|s| !self.pair.source.snapshots.contains_key(&s.id));
                ensure!(lacks || !quiet, "refused, and the source has all that may be kept");
                ensure!(!news, "an image that was refused is shown");
            }
            Some(Err(error)) => ensure!(!quiet, "the first link failed though nothing went wrong: {error}"),
        }
        Ok(())
    }

    /// The last one shows the image that the middle one showed before the round or after it.
    fn judge_last(&mut self, outcome: &Outcome, before: &Shown, quiet: bool, learnt: bool) -> Result<()> {
        if self.last.device.is_off() {
            self.last.cuts += 1;
            self.last.volume = None;
            self.last.power_cycle();
            self.last.volume = Some(self.last.open().context("opening the last one after a cut")?);
        }
        let after = self.pair.shown.clone();
        self.last_shows(&[before, &after])?;
        match outcome {
            None => {}
            Some(Ok(report)) => {
                let shown = self.last_shown.target;
                ensure!(shown == report.target, "the last one shows {shown} after {}", report.target);
                ensure!(shown >= before.target || !quiet, "{shown} came after {}", before.target);
                self.forgot &= !learnt;
            }
            Some(Err(MirrorError::Refused(Refusal::NotASource))) => {
                ensure!(before.target.0 == 0, "the middle one serves nothing, and shows {}", before.target);
            }
            Some(Err(MirrorError::CompareNeeded { .. })) => {
                ensure!(self.forgot || !quiet, "what the last one has was let go of");
                self.forgot = true;
            }
            Some(Err(error)) => {
                // An image in transfer may be replaced, and the connection with it; never on a
                // quiet first link.
                ensure!(!quiet, "the second link failed though nothing went wrong: {error}");
            }
        }
        Ok(())
    }

    fn last_shows(&mut self, any: &[&Shown]) -> Result<()> {
        let volume = self.last.volume();
        let target = volume.status().cursor.snapshot;
        let old = self.last_shown.clone();
        let known = std::iter::once(&old).chain(any.iter().copied()).find(|shown| shown.target == target);
        let shown =
            known.with_context(|| format!("the last one shows {target}, the middle one never did"))?;
        let listed: Vec<(SnapshotId, String)> =
            volume.snapshots().into_iter().map(|s| (s.id, s.name)).collect();
        let expected: Vec<(SnapshotId, String)> =
            shown.snapshots.iter().map(|(id, s)| (*id, s.name.clone())).collect();
        ensure!(listed == expected, "the last one lists {listed:?}, expected {expected:?}");
        compare_image(&volume.image(None)?, &shown.active).context("in the last one's image")?;
        self.last.snapshots = shown.snapshots.clone();
        self.last_shown = shown.clone();
        for id in self.last.snapshots.keys() {
            self.last.compare_snapshot(*id).context("at the last one")?;
        }
        self.last.check().context("at the last one")
    }

    /// Makes a clone of an image of the one in the middle; none when there is one, or nothing to
    /// clone.
    pub fn clone(&mut self, timeline: &mut Timeline, lasts: bool) -> Result<()> {
        let ids: Vec<SnapshotId> = self.pair.shown.snapshots.keys().copied().collect();
        if self.clone.is_some() || ids.is_empty() {
            return Ok(());
        }
        timeline.step();
        let base = ids[self.rng.below(ids.len() as u64) as usize];
        let world = World::clone_of(&self.pair.destination, base, &mut self.rng)?;
        let clone = self.clone.insert(Offspring { world, base, lasts });
        if !lasts {
            clone.world.let_base_go();
        }
        clone.world.compare_all().context("in a new clone")?;
        clone.world.note(timeline, &format!("a {} of {base}", if lasts { "clone" } else { "drill" }));
        Ok(())
    }

    /// Clients and owners of the clone.
    pub fn work_on_clone(&mut self, timeline: &mut Timeline) -> Result<()> {
        match &mut self.clone {
            Some(clone) => clone.world.live(timeline).context("at the clone"),
            None => Ok(()),
        }
    }

    /// Checks the clone once more, and removes it.
    pub fn remove_clone(&mut self, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
        let Some(mut clone) = self.clone.take() else { return Ok(()) };
        timeline.step();
        clone.world.compare_all().context("in a clone at its end")?;
        clone.world.check().context("in a clone at its end")?;
        clone.world.note(timeline, "= compared, checked, removed");
        clone.world.count(tally);
        Ok(())
    }

    /// Events between rounds.
    pub fn rest(&mut self, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
        for world in [&mut self.pair.destination, &mut self.last] {
            let step = Duration::from_millis(self.rng.below(3000));
            world.clock.advance(step);
            if self.rng.one_in(8) {
                set_clock(&world.clock, &mut self.rng);
            }
        }
        match self.rng.below(8) {
            0 => self.restart_middle(timeline, &Offers::new()),
            1 => self.middle().background(Duration::ZERO).map_err(Into::into),
            2 => self.last.volume().background(Duration::ZERO).map_err(Into::into),
            3 => {
                let lasts = !self.rng.one_in(3);
                self.clone(timeline, lasts)
            }
            4 if self.rng.one_in(2) => self.remove_clone(timeline, tally),
            5 => {
                let seconds = self.rng.below(3) * self.rng.below(4000);
                self.lock = (seconds > 0).then(|| Duration::from_secs(seconds));
                Ok(())
            }
            6 => {
                self.pair.sessions = Arc::default();
                Ok(())
            }
            _ => (0..3).try_for_each(|_| self.work_on_clone(timeline)),
        }
    }

    /// Everything is repaired: all three show the same, and the last one continues without the one
    /// in the middle.
    pub fn finish(mut self, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
        self.lock = None;
        self.remove_clone(timeline, tally)?;
        self.round(timeline, Round { first: true, ..Round::default() })?;
        self.round(timeline, Round { second: true, ..Round::default() })?;
        if self.last_shown.target != self.pair.shown.target {
            ensure!(self.forgot, "the last one does not follow");
            self.compare_far()?;
        }
        // The last one's base is kept from here on.
        for _ in 0..2 {
            self.pair.source.live(timeline)?;
            self.round(timeline, Round { first: true, ..Round::default() })?;
        }
        self.count(tally);
        self.pair.source.live(timeline)?;
        let direct =
            Destination::new(self.last.volume(), VOLUME_NAME, SECOND, compression(&mut self.rng), None);
        let (sessions, offering) = (self.pair.sessions.clone(), Offering(self.pair.source.volume()));
        let devices = [&self.pair.source.device, &self.last.device];
        let report =
            talk(&mut self.rng, devices, &sessions, &offering, |client, work| direct.update(client, work))?
                .context("without the one in the middle")?;
        ensure!(report.kind != TransferKind::Baseline, "without the one in the middle all was sent anew");
        self.pair.source.adopt();
        let now = self.pair.source.model.frozen();
        compare_image(&self.last.volume().image(None)?, &now).context("without the one in the middle")?;
        self.last.check()?;
        direct.failover()?;
        let mut world = self.last;
        let volume = world.volume();
        let held = volume.snapshots().into_iter().map(|s| (s.id, (s.name, s.held)));
        for (id, (name, held)) in held {
            let content = self.pair.source.snapshots.get(&id).map(|s| s.content.clone());
            let content = content.with_context(|| format!("{id} is at the last one alone"))?;
            world.snapshots.insert(id, SnapshotModel { name, held, content });
        }
        world.snapshots.retain(|id, _| volume.snapshot(*id).is_some());
        world.model = Model::of(&now, volume.status().generation);
        world.next_name = 1 << 20;
        drop(volume);
        world.compare_all()?;
        for _ in 0..10 {
            world.live(timeline)?;
        }
        world.finish(timeline)
    }

    /// Nothing is common on the second link any more: checksums are compared.
    fn compare_far(&mut self) -> Result<()> {
        let last =
            Destination::new(self.last.volume(), VOLUME_NAME, SECOND, compression(&mut self.rng), None);
        let (relay, offering) = (self.relay.clone(), Offering(self.middle()));
        let devices = [&self.pair.destination.device, &self.last.device];
        talk(&mut self.rng, devices, &relay, &offering, |client, work| last.update_comparing(client, work))?
            .context("comparing")?;
        let shown = self.pair.shown.clone();
        self.last_shows(&[&shown])?;
        ensure!(self.last_shown.target == shown.target, "comparing brought another image");
        self.forgot = false;
        Ok(())
    }

    /// The power fails at one of the next operations of a random server.
    pub fn arm(&mut self, most: u64) {
        match self.rng.below(4) {
            0 => self.pair.source.arm_cut(most),
            1 => self.pair.destination.arm_cut(most),
            2 => self.last.arm_cut(most),
            _ => self.clone.iter_mut().for_each(|clone| clone.world.arm_cut(most)),
        }
    }

    /// Whatever was armed and not reached does not count any more.
    pub fn disarm(&mut self) {
        let clone = self.clone.iter().map(|clone| &clone.world);
        for world in [&self.pair.source, &self.pair.destination, &self.last].into_iter().chain(clone) {
            world.device.cut_after(u64::MAX);
        }
    }
}

fn told(link: &str, outcome: &Result<TransferReport, MirrorError>) -> String {
    match outcome {
        Ok(report) => format!("{link}: {:?} to {}, {} blocks", report.kind, report.target, report.blocks),
        Err(error) => format!("{link}: no update: {error}"),
    }
}

fn switch_off(device: &Arc<FaultDevice>) {
    if !device.is_off() {
        device.cut_after(0);
        let _ = device.flush();
    }
}

/// The power fails for both devices of a server, or for none. True when it has.
fn one_supply(one: &Arc<FaultDevice>, other: &Arc<FaultDevice>) -> bool {
    if !one.is_off() && !other.is_off() {
        return false;
    }
    switch_off(one);
    switch_off(other);
    true
}

/// Adds the task of a source's server.
fn serve<'a>(
    tasks: &mut Tasks<'a>,
    sessions: &'a Arc<Source>,
    offering: &'a Offering,
    peer: &'static str,
    end: &'a mut End,
    link: &'a Link,
) {
    tasks.spawn(move || {
        let peer = PeerName::new(peer).expect("a name as it must be");
        let cancel = AtomicBool::new(false);
        let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let _ = sessions.serve_session(end, offering, &peer, &mut work);
        link.hang_up(0);
    });
}

/// Adds the task of a mirror that asks for an update.
fn ask<'a>(
    tasks: &mut Tasks<'a>,
    mirror: &'a Destination,
    end: &'a mut End,
    link: &'a Link,
    outcome: &'a Mutex<Outcome>,
) {
    tasks.spawn(move || {
        let cancel = AtomicBool::new(false);
        let mut work = cairn_mirror::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let done = Client::hello(end).and_then(|mut client| mirror.update(&mut client, &mut work));
        *outcome.lock() = Some(done);
        link.hang_up(1);
    });
}

/// An undisturbed conversation.
fn talk<T: Send>(
    rng: &mut Rng,
    devices: [&Arc<FaultDevice>; 2],
    sessions: &Arc<Source>,
    offering: &Offering,
    say: impl FnOnce(&mut Client<'_, End>, &mut cairn_mirror::Work<'_>) -> Result<T, MirrorError> + Send,
) -> Result<Result<T, MirrorError>> {
    let (link, mut ends) = Link::new(devices, None, rng.fork());
    let outcome = Mutex::new(None);
    {
        let [near, far] = &mut ends;
        let mut tasks = Tasks::default();
        serve(&mut tasks, sessions, offering, LAST_PEER, near, &link);
        tasks.spawn(|| {
            let cancel = AtomicBool::new(false);
            let mut work = cairn_mirror::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            *outcome.lock() = Some(Client::hello(far).and_then(|mut client| say(&mut client, &mut work)));
            link.hang_up(1);
        });
        talk_out(&mut tasks, &link, rng)?;
    }
    outcome.into_inner().ok_or_else(|| anyhow!("a conversation did not end"))
}

fn config(rng: &mut Rng) -> Config {
    let blocks = 1024 + rng.below(512);
    Config {
        blocks,
        blocks_max: blocks,
        files: 1 + rng.below(3) as usize,
        file_blocks: 10 + rng.below(200),
        snapshots: 2 + rng.below(4) as usize,
        log_device: rng.one_in(4),
        cut_every: 0,
    }
}

/// Three servers for a while, with cuts and mishaps at random.
pub fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x0063_6861_696e);
    let config = config(&mut rng);
    let mut chain = Chain::new(&mut rng, config)?;
    for _ in 0..4 + rng.below(8) {
        for _ in 0..rng.below(8) {
            chain.pair.source.live(timeline)?;
        }
        let crew = |rng: &mut Rng| Crew {
            clients: 1 + rng.below(2) as usize,
            owners: rng.below(3) as usize,
            actions: 1 + rng.below(6),
        };
        let round = Round {
            first: !rng.one_in(4),
            second: !rng.one_in(3),
            crew: rng.one_in(2).then(|| crew(&mut rng)),
            clone_crew: rng.one_in(2).then(|| crew(&mut rng)),
            mishaps: [0, 1].map(|_| {
                let mishap = (rng.below(40), Mishap::ALL[rng.below(6) as usize]);
                rng.one_in(4).then_some(mishap)
            }),
        };
        tally.mishaps += round.mishaps.iter().flatten().count() as u64;
        if rng.one_in(2) {
            chain.arm(1 + rng.below(60));
        }
        chain.round(timeline, round)?;
        chain.disarm();
        for _ in 0..rng.below(4) {
            chain.rest(timeline, tally)?;
        }
    }
    chain.finish(timeline, tally)
}

/// A short life of them, run once for every device operation of one of the four devices, with a cut
/// there.
pub fn every_cut(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let victim = (seed % 4) as usize;
    let operations = short_life(seed, victim, None, timeline, tally)?;
    for cut in 0..operations {
        let mut scratch = Timeline::new(false);
        let outcome = short_life(seed, victim, Some(cut), &mut scratch, tally);
        timeline.observe(scratch.digest().to_le_bytes());
        outcome.with_context(|| {
            let recent: Vec<&str> = scratch.recent().collect();
            let who = ["the first", "the middle", "the last", "the clone"][victim];
            format!("with a cut at operation {cut} of {operations} of {who}\n{}", recent.join("\n"))
        })?;
        tally.points += 1;
    }
    Ok(())
}

/// How many operations the device of one of them had from the round on in which the power may go.
fn short_life(
    seed: u64,
    victim: usize,
    cut: Option<u64>,
    timeline: &mut Timeline,
    tally: &mut Tally,
) -> Result<u64> {
    let mut rng = Rng::new(seed ^ 0x6375_7473);
    let config = Config {
        blocks: 1024,
        blocks_max: 1024,
        files: 1,
        file_blocks: 4 + rng.below(12),
        snapshots: 3,
        log_device: false,
        cut_every: 0,
    };
    let mut chain = Chain::new(&mut rng, config)?;
    let alone = [Round { first: true, ..Round::default() }, Round { second: true, ..Round::default() }];
    for _ in 0..6 {
        chain.pair.source.live(timeline)?;
    }
    for round in alone {
        chain.round(timeline, round)?;
    }
    // The last one has an update to get when the power may fail, whatever comes to the middle one
    // then.
    for _ in 0..4 {
        chain.pair.source.live(timeline)?;
    }
    chain.round(timeline, alone[0])?;
    chain.lock = rng.one_in(2).then(|| Duration::from_secs(7200));
    chain.clone(timeline, !rng.one_in(3))?;
    for _ in 0..4 {
        chain.pair.source.live(timeline)?;
        chain.work_on_clone(timeline)?;
    }
    let device = |chain: &Chain| match victim {
        0 => chain.pair.source.device.clone(),
        1 => chain.pair.destination.device.clone(),
        2 => chain.last.device.clone(),
        _ => chain.clone.as_ref().map_or(&chain.last, |clone| &clone.world).device.clone(),
    };
    let cut_device = device(&chain);
    let before = cut_device.operations();
    if let Some(cut) = cut {
        cut_device.cut_after(cut);
    }
    let crew = Crew { clients: 1, owners: 0, actions: 3 };
    let round = Round { first: true, second: true, clone_crew: Some(crew), ..Round::default() };
    chain.round(timeline, round)?;
    let after = cut_device.operations();
    chain.disarm();
    chain.finish(timeline, tally)?;
    Ok(after - before)
}

/// Runs all tasks of a round until they are done, and handles failures of a device or a link
/// between them.
fn take_turns(
    tasks: &mut Tasks<'_>,
    rng: &mut Rng,
    (floor, clone_floor): (&Floor<'_>, Option<&Floor<'_>>),
    links: [&Link; 2],
    devices: &[Arc<FaultDevice>; 3],
    offers: &mut Offers,
) -> Result<()> {
    loop {
        match tasks.turn(rng) {
            Turn::Ran => {}
            Turn::Done => return Ok(()),
            Turn::Stuck if links[0].break_off() | links[1].break_off() => tasks.wake(),
            Turn::Stuck => {
                tasks.ask();
                bail!("every task waits for another one, see above");
            }
        }
        floor.after_turn(None)?;
        if let Some(clone) = clone_floor {
            let own = clone.world.lock().device.clone();
            let news = !devices[1].is_off() || !own.is_off();
            if !one_supply(&devices[1], &own) {
                clone.after_turn(None).context("at the clone")?;
            } else if news {
                tasks.wake();
            }
        }
        offer(offers, &floor.world.lock(), false);
        for (link, ends) in [(links[0], [0, 1]), (links[1], [1, 2])] {
            // Once: a task that waits on the other link for a lost message must be seen to wait.
            if ends.iter().any(|end| devices[*end].is_off()) && link.break_off() {
                tasks.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: the round never ended, because waking the tasks for a server without power hid
    /// that the others waited.
    #[test]
    fn round_ends_when_a_server_is_off_and_the_other_link_lost_a_message() {
        for (off, lost) in [(0, 1), (2, 0)] {
            let (mut rng, mut timeline) = (Rng::new(off), Timeline::new(false));
            let config = config(&mut rng);
            let mut chain = Chain::new(&mut rng, config).unwrap();
            if off == 2 {
                chain.round(&mut timeline, Round { first: true, ..Round::default() }).unwrap();
            }
            let world = if off == 0 { &chain.pair.source } else { &chain.last };
            let device = world.device.clone();
            device.cut_after(0);
            let mut round = Round { first: true, second: true, ..Round::default() };
            round.mishaps[lost] = Some((0, Mishap::Lost));
            chain.round(&mut timeline, round).unwrap();
            assert!(device.is_off(), "the power has not gone");
        }
    }
}
