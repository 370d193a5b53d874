//! Two servers and a mirror between them, through the mirror's own protocol: updates while clients
//! and owners work at the source and readers at the destination, with cuts of power on both sides
//! and mishaps at any message.
//!
//! The destination shows exactly one image that was transferred, with the snapshots that the source
//! had then; at every moment, to every reader.

pub mod chain;
pub mod full;
pub mod group;
pub mod liars;
pub mod media;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cairn_base::{Rng, SnapshotId};
use cairn_mirror::{
    Client, Compression, Contact, Destination, MirrorError, Pace, PeerName, Refusal, Relationship, Source,
    SourceVolumes, TransferKind, TransferReport,
};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Image, Role, Volume};
use parking_lot::Mutex;

use crate::forks::Forks;
use crate::link::{End, Link, Mishap};
use crate::model::{Frozen, Model};
use crate::round::{Crew, Floor};
use crate::tally::Tally;
use crate::tasks::{Tasks, Turn};
use crate::timeline::Timeline;
use crate::world::{Config, SnapshotModel, World, compare_image};

const VOLUME_NAME: &str = "data";
const PEER: &str = "dst";
const RELATIONSHIP: Relationship = Relationship(7);

/// The destination's present image.
#[derive(Clone, Default)]
struct Shown {
    target: SnapshotId,
    active: Arc<Frozen>,
    snapshots: BTreeMap<SnapshotId, SnapshotModel>,
}

/// A snapshot that the source had at some moment of a transfer.
struct Offered {
    content: Arc<Frozen>,
    names: BTreeSet<String>,
    /// It existed from the beginning of the transfer to its end.
    throughout: bool,
}

/// Everything that the source had during a transfer.
type Offers = BTreeMap<SnapshotId, Offered>;

/// The context of a transfer.
#[derive(Default)]
pub struct With<'f, 'a> {
    /// The crew that works at the source meanwhile.
    pub crew: Option<Crew>,
    /// The faulty message and its fault.
    pub mishap: Option<(u64, Mishap)>,
    /// Tries cuts at every operation of both sides.
    pub forks: Option<&'f mut Forks<'a>>,
    /// How often the destination asks for changes on one connection, as a destination that follows
    /// continuously does; 0 for a usual update.
    pub steps: u64,
}

/// Two servers.
pub struct Pair {
    pub source: World,
    pub destination: World,
    rng: Rng,
    /// The in-memory state of the source's server, lost with its power.
    sessions: Arc<Source>,
    /// The state of the destination's server that survives restarts.
    contact: Option<Contact>,
    shown: Shown,
}

struct Offering(Arc<Volume>);

impl SourceVolumes for Offering {
    fn volume(&self, name: &str, _: &PeerName) -> Result<Arc<Volume>, Refusal> {
        if name == VOLUME_NAME { Ok(self.0.clone()) } else { Err(Refusal::NoSuchVolume) }
    }
}

/// The last image that came; none when there was nothing to bring.
type Outcome = Result<Option<TransferReport>, MirrorError>;

/// A change is due at once, without waiting.
const AT_ONCE: Pace = Pace { step: Duration::ZERO, wait: Duration::ZERO };

/// The destination server's part of one conversation: an update, or that many steps.
fn bring(destination: &Destination, end: &mut End, steps: u64) -> Outcome {
    let cancel = AtomicBool::new(false);
    let mut work = cairn_mirror::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let mut client = Client::hello(end)?;
    if steps == 0 {
        return destination.update(&mut client, &mut work).map(Some);
    }
    let mut last = None;
    for _ in 0..steps {
        let done = destination.follow(&mut client, AT_ONCE, &mut work)?;
        // A garbled answer may call for a step that finds nothing.
        last = done.filter(|report| report.kind != TransferKind::UpToDate).or(last);
        crate::tasks::switch();
    }
    Ok(last)
}

fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Ok(Some(report)) => {
            let TransferReport { kind, target, blocks, memory_blocks, .. } = report;
            format!("{kind:?} to {target}, {blocks} blocks, {memory_blocks} of them in memory")
        }
        Ok(None) => "nothing to bring".to_owned(),
        Err(error) => format!("no update: {error}"),
    }
}

/// Runs the conversation of two sides until both have ended. A link on which they wait for each
/// other is broken once, as by a time-out.
fn talk_out(tasks: &mut Tasks<'_>, link: &Link, rng: &mut Rng) -> Result<()> {
    loop {
        match tasks.turn(rng) {
            Turn::Ran => {}
            Turn::Done => return Ok(()),
            Turn::Stuck if link.break_off() => tasks.wake(),
            Turn::Stuck => bail!("both sides wait for each other"),
        }
    }
}

impl Pair {
    /// Formats both.
    pub fn new(rng: &mut Rng, config: Config) -> Result<Self> {
        let mut source = World::new("src", rng, config, Role::Normal)?;
        source.mirrored = true;
        let destination = World::new("dst", rng, Config { log_device: false, ..config }, Role::Destination)?;
        Ok(Self {
            source,
            destination,
            rng: rng.fork(),
            sessions: Arc::default(),
            contact: None,
            shown: Shown::default(),
        })
    }

    /// The same pair with the same past, on devices of its own; both servers have just started.
    pub fn fork(&mut self, timeline: &mut Timeline) -> Result<Pair> {
        let mut pair = Pair {
            source: self.source.fork(self.source.device.fork()),
            destination: self.destination.fork(self.destination.device.fork()),
            rng: self.rng.fork(),
            sessions: Arc::default(),
            contact: self.contact,
            shown: self.shown.clone(),
        };
        pair.source.come_back(timeline, false).context("at the source")?;
        let volume = pair.destination.open()?;
        pair.destination.volume = Some(volume);
        (pair.source.cuts, pair.destination.cuts) = (0, 0);
        Ok(pair)
    }

    /// Adds the counts of this pair.
    pub fn count(&self, tally: &mut Tally) {
        self.source.count(tally);
        self.destination.count(tally);
    }

    /// One update, and the checks after it. True when the destination has a new image.
    pub fn transfer(&mut self, timeline: &mut Timeline, with: With<'_, '_>) -> Result<(bool, u64)> {
        timeline.step();
        let With { crew, mishap, mut forks, steps } = with;
        let mut rng = self.rng.fork();
        let cuts_before = (self.source.device.is_off(), self.source.cuts);
        let destination_volume = self.destination.volume();
        self.grow_destination(&destination_volume)?;
        let destination = Destination::new(
            destination_volume.clone(),
            VOLUME_NAME,
            RELATIONSHIP,
            compression(&mut rng),
            self.contact,
        );
        let (link, [mut source_end, mut destination_end]) =
            Link::new([&self.source.device, &self.destination.device], mishap, rng.fork());
        let offering = Offering(self.source.volume());
        let sessions = self.sessions.clone();
        let outcome: Mutex<Option<Outcome>> = Mutex::new(None);
        let unlike: Mutex<Vec<Image>> = Mutex::new(Vec::new());
        let old = self.shown.clone();
        let mut offers = Offers::new();
        let reads = rng.below(3);
        self.source.watch(forks.is_some());
        self.destination.watch(forks.is_some());
        {
            self.source.pending.clear();
            self.source.free_before = self.source.volume().status().free;
            let floor = Floor::new(&mut self.source, timeline);
            let mut tasks = Tasks::default();
            if let Some(crew) = crew {
                floor.hire(&mut tasks, &mut rng, crew);
            }
            tasks.spawn(|| {
                let peer = PeerName::new(PEER).expect("a name as it must be");
                let cancel = AtomicBool::new(false);
                let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
                // The destination reports how it ended; a failure shows in the images.
                let _ = sessions.serve_session(&mut source_end, &offering, &peer, &mut work);
                drop(source_end);
            });
            tasks.spawn(|| {
                *outcome.lock() = Some(bring(&destination, &mut destination_end, steps));
                drop(destination_end);
            });
            tasks.spawn(|| {
                for _ in 0..reads {
                    crate::tasks::switch();
                    let Ok(image) = destination_volume.image(None) else { return };
                    if compare_image(&image, &old.active).is_err() && !self.destination.device.is_off() {
                        unlike.lock().push(image);
                    }
                }
            });
            offer(&mut offers, &floor.world.lock(), true);
            loop {
                match tasks.turn(&mut rng) {
                    Turn::Ran => {}
                    Turn::Done => break,
                    Turn::Stuck if link.break_off() => tasks.wake(),
                    Turn::Stuck => {
                        tasks.ask();
                        bail!("every task waits for another one, see above");
                    }
                }
                floor.after_turn(forks.as_deref_mut())?;
                offer(&mut offers, &floor.world.lock(), false);
                if matches!(mishap, Some((_, Mishap::Garbled))) {
                    offer_kept(&mut offers, &floor.world.lock());
                }
                if let Some(forks) = forks.as_deref_mut() {
                    try_destination(forks, &self.destination, &old, &offers, &mut floor.timeline.lock())?;
                }
                if (floor.is_off() || self.destination.device.is_off()) && link.break_off() {
                    tasks.wake();
                }
            }
        }
        self.contact = destination.contact();
        let outcome = outcome.into_inner().ok_or_else(|| anyhow!("an update did not end"))?;
        timeline.note("dst", self.destination.standing_in_round(), &in_words(&outcome));
        let quiet = mishap.is_none() && crew.is_none() && !self.source.device.is_off();
        let source_cut = self.source.device.is_off();
        self.source.end_round(timeline).context("at the source")?;
        if source_cut {
            self.sessions = Arc::default();
        }
        self.destination.watch(false);
        ensure!(cuts_before.0 || source_cut == (self.source.cuts > cuts_before.1), "a cut was not noticed");
        if self.destination.device.is_off() {
            return self.recover(timeline, &offers).map(|news| (news, link.messages()));
        }
        // A garbled announcement is detected when the image is there already.
        let garbled = matches!(mishap, Some((_, Mishap::Garbled)));
        let news = self.judge(&outcome, &offers, quiet, (garbled, steps))?;
        self.judge_readers(&unlike.into_inner(), &offers, steps)?;
        Ok((news, link.messages()))
    }

    /// The requirements after an undisturbed update. True when the destination has a new image.
    fn judge(
        &mut self,
        outcome: &Outcome,
        offers: &Offers,
        quiet: bool,
        (garbled, steps): (bool, u64),
    ) -> Result<bool> {
        match outcome {
            Err(error) => {
                ensure!(!quiet, "an update failed though nothing went wrong: {error}");
                self.look(offers, garbled || steps > 1)
            }
            Ok(report) if report.as_ref().is_none_or(|report| report.kind == TransferKind::UpToDate) => {
                if quiet {
                    let now = self.source.model.frozen();
                    ensure!(
                        now.files == self.shown.active.files,
                        "the source has changed and calls the mirror up to date"
                    );
                }
                self.look(offers, false)
            }
            Ok(None) => bail!("an update that brought nothing was taken for one that did"),
            Ok(Some(report)) => {
                let news = self.look(offers, true)?;
                ensure!(
                    self.shown.target == report.target,
                    "{:?} is shown after an update to {}",
                    self.shown.target,
                    report.target
                );
                if quiet {
                    let own: Vec<SnapshotId> = self.own_snapshots();
                    // A step leaves the previous snapshot to the next step.
                    let over = if steps == 0 { 0 } else { own.len().saturating_sub(1).min(1) };
                    ensure!(
                        own[over..] == [report.target],
                        "the source keeps {own:?} for a mirror that has {}",
                        report.target
                    );
                }
                Ok(news)
            }
        }
    }

    /// Images that readers had during an update, and that were not the old one, are the new one.
    fn judge_readers(&self, images: &[Image], offers: &Offers, steps: u64) -> Result<()> {
        for image in images {
            let between = || offers.values().any(|offered| compare_image(image, &offered.content).is_ok());
            if steps > 1 && between() {
                continue;
            }
            compare_image(image, &self.shown.active)
                .context("a reader of the destination saw neither image")?;
        }
        Ok(())
    }

    /// As its server does at each update, once it knows the size of the source.
    fn grow_destination(&self, volume: &Arc<Volume>) -> Result<()> {
        let wanted = self.source.volume().status().blocks;
        if wanted <= volume.status().blocks {
            return Ok(());
        }
        match volume.grow(wanted) {
            // The update that comes now finds it as well.
            Err(_) if self.destination.device.is_off() => Ok(()),
            outcome => outcome.context("the destination does not grow with its source"),
        }
    }

    fn own_snapshots(&self) -> Vec<SnapshotId> {
        let all = self.source.snapshots.iter();
        // A relationship that a garbled message made up belongs to no mirror.
        let prefix = format!("{MIRROR_PREFIX}{PEER}-{RELATIONSHIP}.");
        all.filter(|(_, s)| s.name.starts_with(&prefix)).map(|(id, _)| *id).collect()
    }

    /// The destination shows the previous image, or a new one if that is possible; whole. True when
    /// it is new.
    fn look(&mut self, offers: &Offers, may_be_new: bool) -> Result<bool> {
        let (shown, news) = shown_by(&mut self.destination, &self.shown, offers)?;
        ensure!(
            may_be_new || !news,
            "the destination shows {} after an update that was not done",
            shown.target
        );
        self.shown = shown;
        Ok(news)
    }

    /// The power went at the destination.
    fn recover(&mut self, timeline: &mut Timeline, offers: &Offers) -> Result<bool> {
        let destination = &mut self.destination;
        destination.held.clear();
        destination.volume = None;
        loop {
            destination.power_cycle();
            destination.cuts += 1;
            if destination.fault_rng.one_in(4) {
                destination.arm_cut(4);
            }
            match destination.open() {
                Ok(volume) => {
                    destination.volume = Some(volume);
                    break;
                }
                Err(_) if destination.device.is_off() => {}
                Err(error) => return Err(error).context("opening the destination after a power cut"),
            }
        }
        destination.device.cut_after(u64::MAX);
        let news = self.look(offers, true)?;
        self.destination.note(timeline, "= opened, compared, checked");
        Ok(news)
    }

    /// Events at the destination between updates.
    pub fn rest(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        let what = match self.rng.below(8) {
            0..=2 => {
                if self.rng.one_in(3) {
                    self.destination.arm_cut(12);
                }
                let moved = self.destination.volume().background(std::time::Duration::ZERO);
                if self.destination.device.is_off() {
                    return self.recover(timeline, &Offers::new()).map(drop);
                }
                moved?;
                "background"
            }
            3 => {
                let image = self.destination.volume().image(None)?;
                self.destination.held.push((image, self.shown.active.clone()));
                "open the image"
            }
            4 => {
                self.destination.compare_held()?;
                self.destination.held.clear();
                "= compare and close what was open"
            }
            5 => {
                self.destination.held.clear();
                self.destination.volume().close()?;
                self.destination.volume = None;
                let volume = self.destination.open()?;
                self.destination.volume = Some(volume);
                "close and open"
            }
            6 => {
                self.sessions = Arc::default();
                "the source's server starts anew"
            }
            _ => return self.recover(timeline, &Offers::new()).map(drop),
        };
        self.destination.device.cut_after(u64::MAX);
        self.destination.note(timeline, what);
        self.look(&Offers::new(), false).map(drop)
    }

    /// The source is lost. The destination takes over, and is a volume like any other from then on.
    pub fn fail_over(mut self, timeline: &mut Timeline) -> Result<World> {
        timeline.step();
        self.destination.held.clear();
        let volume = self.destination.volume();
        let destination =
            Destination::new(volume.clone(), VOLUME_NAME, RELATIONSHIP, Compression::None, self.contact);
        let loss = destination.failover()?;
        ensure!(loss.image == self.shown.target, "a failover says that it keeps {:?}", loss.image);
        let mut world = self.destination;
        world.snapshots = self.shown.snapshots;
        for (id, snapshot) in &mut world.snapshots {
            let found =
                volume.snapshot(*id).with_context(|| format!("snapshot {id} is gone after the failover"))?;
            snapshot.held = found.held;
        }
        world.model = Model::of(&self.shown.active, volume.status().generation);
        world.blocks = volume.status().blocks;
        world.next_name = 1 << 20;
        drop(volume);
        world.note(timeline, "failover");
        world.compare_all()?;
        Ok(world)
    }
}

fn compression(rng: &mut Rng) -> Compression {
    if rng.one_in(2) { Compression::Zstd } else { Compression::None }
}

/// Adds the source's present content to its offers.
fn offer(offers: &mut Offers, source: &World, first: bool) {
    for (id, snapshot) in &source.snapshots {
        let known = offers.entry(*id).or_insert_with(|| Offered {
            content: snapshot.content.clone(),
            names: BTreeSet::new(),
            throughout: first,
        });
        // A number that was lost with the power is given again.
        known.content = snapshot.content.clone();
        if !known.names.contains(&snapshot.name) {
            known.names.insert(snapshot.name.clone());
        }
    }
    for (id, offered) in offers.iter_mut() {
        offered.throughout &= source.snapshots.contains_key(id);
    }
}

/// A garbled request may name a base that the source keeps for a spill, under a name that was not
/// assigned here.
fn offer_kept(offers: &mut Offers, source: &World) {
    for snapshot in source.volume.iter().flat_map(|volume| volume.snapshots()) {
        let is_kept = snapshot.name == format!("split-{}", snapshot.generation.0);
        if let Some(offered) = offers.get_mut(&snapshot.id).filter(|_| is_kept) {
            offered.names.insert(snapshot.name);
        }
    }
}

/// The image of a destination: the previous one, or one that the source has offered. All of it is
/// compared, and checked.
fn shown_by(world: &mut World, old: &Shown, offers: &Offers) -> Result<(Shown, bool)> {
    let volume = world.volume();
    let target = volume.status().cursor.snapshot;
    let news = target != old.target;
    let mut shown = old.clone();
    if news {
        let offered = offers
            .get(&target)
            .with_context(|| format!("the destination shows {target}, which nobody offered"))?;
        shown = Shown { target, active: offered.content.clone(), snapshots: BTreeMap::new() };
        for snapshot in volume.snapshots() {
            let offered = offers.get(&snapshot.id);
            let offered =
                offered.filter(|offered| snapshot.id <= target && offered.names.contains(&snapshot.name));
            let offered =
                offered.with_context(|| format!("the destination has {snapshot:?}, which nobody offered"))?;
            let model =
                SnapshotModel { name: snapshot.name, held: snapshot.held, content: offered.content.clone() };
            shown.snapshots.insert(snapshot.id, model);
        }
        let missing =
            offers.iter().find(|(id, o)| **id <= target && o.throughout && !shown.snapshots.contains_key(id));
        ensure!(missing.is_none(), "snapshot {:?} is not at the destination", missing.map(|(id, _)| id));
    }
    let listed: BTreeMap<SnapshotId, String> =
        volume.snapshots().into_iter().map(|s| (s.id, s.name)).collect();
    let expected: BTreeMap<SnapshotId, String> =
        shown.snapshots.iter().map(|(id, s)| (*id, s.name.clone())).collect();
    ensure!(listed == expected, "the destination lists {listed:?}, expected {expected:?}");
    compare_image(&volume.image(None)?, &shown.active).context("in the destination's image")?;
    world.snapshots = shown.snapshots.clone();
    for id in shown.snapshots.keys() {
        world.compare_snapshot(*id).context("at the destination")?;
    }
    world.compare_held().context("at the destination")?;
    world.check().context("at the destination")?;
    Ok((shown, news))
}

/// Tries a cut at each moment that the destination's device kept.
fn try_destination(
    forks: &mut Forks<'_>,
    destination: &World,
    old: &Shown,
    offers: &Offers,
    timeline: &mut Timeline,
) -> Result<()> {
    let Some(eye) = destination.eye.clone() else { return Ok(()) };
    let points = eye.lock().take();
    for point in points {
        forks.each_device(&point, &mut |forks, device, what| {
            forks.tally.cuts += 1;
            let mut fork = destination.fork(device);
            let volume = fork.open();
            let outcome = volume.context("opening").and_then(|volume| {
                fork.volume = Some(volume);
                let (shown, _) = shown_by(&mut fork, old, offers)?;
                timeline.observe(shown.target.0.to_le_bytes());
                Ok(())
            });
            outcome.with_context(|| {
                format!(
                    "with a cut of the destination at {what} after {} operations",
                    point.device.operations()
                )
            })
        })?;
    }
    Ok(())
}
