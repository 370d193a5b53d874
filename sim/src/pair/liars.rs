//! Sides of a mirror that lie: a source with a stolen key, and a destination that anyone can run.
//! The adversary has every key, controls every field and the order of all messages, and makes every
//! checksum right.
//!
//! - *A source that lies* ([`run_source`]) sends images of diverged volumes with the same id, and
//!   images that it makes itself under the numbers of kept images. It sends other blocks with the
//!   same checksums, tables that drop, rename and renumber snapshots, maps that contradict the
//!   trees, and streams that stop and continue later with something else. The true source has its
//!   turns in between, and the power fails. Every image that the destination keeps must read the
//!   same, byte for byte. This is checked after each message that caused a write, in a copy that is
//!   restarted there, and after each restart. A lie may be refused, or become a new image.
//! - *A destination that lies* ([`destination::run`]) claims blocks that it lacks, acknowledges
//!   images that were not sent, sends "repairs", and makes any request at odd moments. The source's
//!   volume and its snapshots must match its model.

mod destination;
mod known;
mod lies;
mod made;
mod memory;
mod source;
mod stream;
mod twin;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, ensure};
use cairn_base::{BLOCK_SIZE, Clock, FileId, Lba, Rng};
use cairn_device::Device;
use cairn_format::FileKind;
use cairn_format::layout::space_start;
use cairn_mirror::{
    Birth, Client, Compression, Contact, Destination, GivesUp, MirrorError, Options, PeerName, Source,
    Successor, VerifyWork, Work,
};
use cairn_volume::{Role, VolumeError};
use parking_lot::Mutex;

use self::known::{Known, Reached};
use self::lies::Lies;
use self::memory::{Memory, Moment};
use self::source::Liar;
use self::stream::Draft;
use super::{AT_ONCE, Offering, PEER, RELATIONSHIP, VOLUME_NAME, talk_out};
use crate::content::Tag;
use crate::link::{End, Link};
use crate::tally::Tally;
use crate::tasks::Tasks;
use crate::timeline::Timeline;
use crate::world::{Config, SnapshotModel, World, compare_image};

pub use destination::run as run_destination;

/// How long snapshots are locked: longer than any life.
const LOCK: Duration = Duration::from_secs(30 * 86400);
/// Volumes that went another way.
const STRAYS: usize = 2;
/// The number of snapshots beyond which a destination gets too slow to check it so often.
const LISTED_MAX: usize = 14;

/// A destination's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Update,
    Compare,
    Follow,
    Mend,
    Verify,
    Refresh,
    Role,
}

/// A destination, the true source, and a lying one.
struct Life {
    rng: Rng,
    source: World,
    sessions: Arc<Source>,
    /// Volumes of the same id that were copied from the source and then written to.
    strays: Vec<World>,
    destination: World,
    contact: Option<Contact>,
    births: Vec<Birth>,
    memory: Memory,
    /// The liar's knowledge of the destination.
    known: Known,
    unfinished: Option<Draft>,
    left_out: Vec<u64>,
    tag: u64,
    locks: bool,
    /// An update has arrived, so that the next one has a lower bound for its time.
    has_image: bool,
    /// An image of the liar was accepted.
    spoilt: bool,
    /// The liar has sent blocks since the last image was accepted.
    tainted: bool,
    /// A block is damaged.
    rotten: bool,
}

fn config(rng: &mut Rng) -> Config {
    let blocks = 1024 + rng.below(128);
    Config {
        blocks,
        blocks_max: blocks,
        files: 1 + rng.below(2) as usize,
        file_blocks: 6 + rng.below(60),
        snapshots: 3 + rng.below(4) as usize,
        log_device: false,
        cut_every: 0,
    }
}

/// A mirror whose source lies sometimes.
pub fn run_source(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x006c_6961_7273);
    let mut life = Life::new(&mut rng)?;
    for _ in 0..1 + rng.below(4) {
        work(&mut life.source, rng.below(8), timeline)?;
    }
    if !rng.one_in(8) {
        life.honest(timeline, How::Update, tally)?;
    }
    for _ in 0..3 + rng.below(7) {
        timeline.step();
        match rng.below(5) {
            actions @ 0..3 => work(&mut life.source, 3 * actions, timeline)?,
            _ => life.source.live(timeline)?,
        }
        if rng.one_in(3) {
            life.stray(timeline)?;
        }
        let hows = [How::Update, How::Update, How::Update, How::Compare, How::Follow];
        let how = hows[rng.below(5) as usize];
        match rng.below(8) {
            0..=1 => life.honest(timeline, how, tally)?,
            2..=6 => life.lie(timeline, how, tally)?,
            _ => {
                let how = [How::Mend, How::Verify, How::Refresh, How::Role][rng.below(4) as usize];
                if rng.one_in(2) {
                    life.rot(timeline)?;
                }
                life.lie(timeline, how, tally)?;
            }
        }
        for _ in 0..rng.below(3) {
            life.rest(timeline)?;
        }
        if life.memory.ids().len() > LISTED_MAX {
            break;
        }
    }
    life.fail_over(timeline)?;
    tally.locked += life.memory.locked() as u64;
    for world in life.strays.iter().chain([&life.source, &life.destination]) {
        world.count(tally);
    }
    Ok(())
}

/// One conversation of a destination.
fn ask<S: std::io::Read + std::io::Write>(
    mirror: &Destination,
    stream: &mut S,
    how: How,
) -> Result<String, MirrorError> {
    let cancel = AtomicBool::new(false);
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let mut client = Client::hello(stream)?;
    let report = match how {
        How::Update => mirror.update(&mut client, &mut work)?,
        How::Compare => mirror.update_comparing(&mut client, &mut work)?,
        How::Follow => {
            let mut last = None;
            for _ in 0..3 {
                last = mirror.follow(&mut client, AT_ONCE, &mut work)?.or(last);
            }
            match last {
                Some(report) => report,
                None => return Ok("nothing to bring".to_owned()),
            }
        }
        How::Mend => return mirror.mend(&mut client).map(|mended| format!("{mended:?}")),
        How::Verify => {
            let mut work = VerifyWork { cancel: &cancel, progress: &mut |_| {}, region_blocks: 60 };
            let verified = mirror.verify(&mut client, true, &mut work)?;
            return Ok(format!("{} contradictions, {:?}", verified.contradictions, verified.mended));
        }
        How::Refresh => {
            client.provision_info(VOLUME_NAME)?;
            return mirror.refresh(&mut client).map(|lag| format!("{lag:?}"));
        }
        How::Role => {
            let successor = Successor {
                address: ":1".to_owned(),
                volume: VOLUME_NAME.to_owned(),
                every_ms: None,
                cron: String::new(),
                continuous: false,
                zone: String::new(),
                rpo_ms: None,
            };
            mirror.standing(&mut client, None)?;
            let target = mirror.ask_for_role(&mut client, successor)?;
            return Ok(format!("handed over {target}"));
        }
    };
    Ok(format!("{:?} to {}, {} blocks", report.kind, report.target, report.blocks))
}

impl Life {
    fn new(rng: &mut Rng) -> Result<Self> {
        let config = config(rng);
        let mut source = World::new("src", rng, config, Role::Normal)?;
        source.mirrored = true;
        let destination = World::new("dst", rng, config, Role::Destination)?;
        let mut life = Self {
            rng: rng.fork(),
            source,
            sessions: Arc::default(),
            strays: Vec::new(),
            destination,
            contact: None,
            births: Vec::new(),
            memory: Memory::default(),
            known: Known { space: config.blocks, ..Known::default() },
            unfinished: None,
            left_out: Vec::new(),
            tag: 0,
            locks: !rng.one_in(4),
            has_image: false,
            spoilt: false,
            tainted: false,
            rotten: false,
        };
        life.look(Moment::AT_REST)?;
        Ok(life)
    }

    fn look(&mut self, moment: Moment) -> Result<bool> {
        self.memory.look(&self.destination.volume(), moment)
    }

    fn mirror(&mut self) -> Destination {
        let (volume, contact) = (self.destination.volume(), self.contact);
        let mirror = Destination::new(volume, VOLUME_NAME, RELATIONSHIP, Compression::None, contact);
        mirror.remember_births(&self.births, None);
        let lock = self.locks.then_some(LOCK);
        let shown = mirror.received();
        let gives_up = shown.filter(|_| self.rng.one_in(6)).map(|(shown, root)| GivesUp {
            head: shown.id,
            image: Some(root),
            spilled: self.rng.one_in(2),
        });
        mirror.set_options(Options { lock, gives_up, hold: !self.rng.one_in(3), ..mirror.options() });
        mirror
    }

    /// The source is copied, or a copy of it diverges.
    fn stray(&mut self, timeline: &mut Timeline) -> Result<()> {
        if self.strays.len() < STRAYS && (self.strays.is_empty() || self.rng.one_in(2)) {
            let mut stray = self.source.fork(self.source.device.fork());
            stray.side = "str";
            stray.come_back(timeline, false).context("in a copy of the source")?;
            stray.rng = self.rng.fork();
            stray.next_tag += 1 << 32;
            stray.next_name += 1 << 20;
            self.strays.push(stray);
        }
        let at = self.rng.below(self.strays.len() as u64) as usize;
        let actions = 1 + self.rng.below(8);
        work(&mut self.strays[at], actions, timeline)
    }

    /// The true source has its turn.
    fn honest(&mut self, timeline: &mut Timeline, how: How, tally: &mut Tally) -> Result<()> {
        timeline.step();
        let mirror = self.mirror();
        let gives_up = mirror.options().gives_up;
        let spills = gives_up.is_some_and(|gives_up| gives_up.spilled);
        if self.rng.one_in(8) {
            self.destination.arm_cut(60);
        }
        let (link, [mut near, mut far]) =
            Link::new([&self.source.device, &self.destination.device], None, self.rng.fork());
        let (sessions, offering) = (self.sessions.clone(), Offering(self.source.volume()));
        let outcome: Mutex<Option<Result<String, MirrorError>>> = Mutex::new(None);
        self.source.pending.clear();
        {
            let mut tasks = Tasks::default();
            tasks.spawn(|| {
                serve(&sessions, &offering, &mut near);
                drop(near);
            });
            tasks.spawn(|| {
                *outcome.lock() = Some(ask(&mirror, &mut far, how));
                drop(far);
            });
            talk_out(&mut tasks, &link, &mut self.rng)?;
        }
        tally.messages += link.messages();
        destination::settle(&mut self.source, spills, timeline)?;
        let outcome = outcome.into_inner().ok_or_else(|| anyhow!("an update did not end"))?;
        let what = outcome.as_ref().map_or_else(|error| format!("no {how:?}: {error}"), Clone::clone);
        let keeps = matches!(
            outcome,
            Err(MirrorError::Locked { .. }
                | MirrorError::Renamed { .. }
                | MirrorError::Volume(VolumeError::Cloned(_)))
        );
        self.destination.note(timeline, &format!("the source: {what}"));
        let was_cut = self.destination.device.is_off();
        let news = self.end(&mirror, timeline)?;
        tally.honest += u64::from(news);
        ensure!(
            outcome.is_ok() || was_cut || keeps || gives_up.is_some() || self.may_fail(),
            "an update failed though no lie was accepted: {what}"
        );
        if news && !self.tainted && !self.rotten {
            let now = self.source.model.frozen();
            compare_image(&self.destination.volume().image(None)?, &now)
                .context("an image of the true source is another one")?;
        }
        self.tainted &= !news;
        self.check()
    }

    /// The liar has its turn.
    fn lie(&mut self, timeline: &mut Timeline, how: How, tally: &mut Tally) -> Result<()> {
        timeline.step();
        let volume = self.destination.volume();
        if let Ok(known) = Known::of(&volume) {
            self.known = known;
        }
        let others: Vec<Known> = self
            .strays
            .iter()
            .chain([&self.source])
            .map(|world| Known::of(&world.volume()))
            .collect::<Result<_>>()
            .context("a volume that nobody lies to")?;
        let prefix = format!("mirror.{PEER}-{RELATIONSHIP}.");
        let mut rng = self.rng.fork();
        let mut lies = Lies {
            rng: &mut rng,
            known: &self.known,
            others: &others,
            prefix: &prefix,
            tag: &mut self.tag,
            unfinished: &mut self.unfinished,
            left_out: &mut self.left_out,
        };
        let (answering, told) = lies.next();
        let mirror = self.mirror();
        let shown = volume.status().cursor.snapshot;
        let status = source::status(&mut rng, self.source.clock.now(), shown);
        self.destination.note(timeline, &format!("! the liar: {how:?}: {told}"));
        if self.rng.one_in(6) {
            self.destination.arm_cut(60);
        }
        self.tainted = true;
        let mut failure: Option<Error> = None;
        let mut copies = self.rng.fork();
        let moment = Moment { may_change: true, locks: self.locks && self.has_image };
        let (memory, destination) = (&mut self.memory, &self.destination);
        let mut news = false;
        let mut operations = destination.device.operations();
        let mut look = || {
            let now = destination.device.operations();
            if failure.is_some() || destination.device.is_off() || now == operations {
                return;
            }
            operations = now;
            let outcome = memory.look(&volume, moment).and_then(|is_new| {
                news |= is_new;
                match copies.one_in(4) {
                    true => look_at_a_copy(memory, destination, &mut copies),
                    false => Ok(()),
                }
            });
            failure = outcome.err();
        };
        let outcome = {
            let mut liar = Liar::new(rng.fork(), answering, status, &self.known, &mut look);
            liar.absurd_every = if rng.one_in(8) { 6 } else { 0 };
            ask(&mirror, &mut liar, how)
        };
        drop(volume);
        if let Some(error) = failure {
            return Err(error.context(format!("while it lied: {told}")));
        }
        let what = outcome.as_ref().map_or_else(|error| format!("no {how:?}: {error}"), Clone::clone);
        self.destination.note(timeline, &format!("the liar: {what}"));
        news |= self.end(&mirror, timeline).with_context(|| format!("after it lied: {told}"))?;
        self.spoilt |= news;
        tally.lies[0] += 1;
        tally.lies[1] += u64::from(news);
        self.check().with_context(|| format!("after it lied: {told}"))
    }

    /// A conversation has ended. True when another image is shown, or others are listed.
    fn end(&mut self, mirror: &Destination, timeline: &mut Timeline) -> Result<bool> {
        self.contact = mirror.contact();
        let moment = Moment { may_change: true, locks: self.locks && self.has_image };
        let news = if self.destination.device.is_off() {
            self.power_cycle(timeline, moment)?
        } else {
            self.births = mirror.births();
            self.destination.device.cut_after(u64::MAX);
            let news = self.look(moment)?;
            // The cache hides the content of the device.
            look_at_a_copy(&self.memory, &self.destination, &mut self.rng)?;
            news
        };
        self.has_image |= news;
        Ok(news)
    }

    /// A lie was accepted, or a block is damaged: later operations may fail.
    fn may_fail(&self) -> bool {
        self.spoilt || self.rotten || self.tainted
    }

    /// As long as no lie was accepted there are no findings.
    fn check(&mut self) -> Result<()> {
        if self.spoilt || self.rotten {
            Ok(())
        } else {
            self.destination.check().context("no lie was accepted")
        }
    }

    fn power_cycle(&mut self, timeline: &mut Timeline, moment: Moment) -> Result<bool> {
        let cloned = self.memory.leave();
        let destination = &mut self.destination;
        destination.volume = None;
        destination.power_cycle();
        destination.cuts += 1;
        let volume = destination.open().context("opening the destination after a power cut")?;
        destination.volume = Some(volume.clone());
        destination.device.cut_after(u64::MAX);
        self.memory.come_back(&volume, cloned)?;
        self.destination.note(timeline, "! power cut");
        self.look(moment).context("after a power cut")
    }

    fn reopen(&mut self) -> Result<()> {
        let cloned = self.memory.leave();
        self.destination.volume().close()?;
        self.destination.volume = None;
        let volume = self.destination.open().context("opening the destination again")?;
        self.destination.volume = Some(volume.clone());
        self.memory.come_back(&volume, cloned)
    }

    /// Events at the destination between updates.
    fn rest(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        let volume = self.destination.volume();
        self.destination.clock.advance(Duration::from_millis(self.rng.below(1 << 22)));
        let ids = self.memory.ids();
        let any = (!ids.is_empty()).then(|| ids[self.rng.below(ids.len().max(1) as u64) as usize]);
        let what = match self.rng.below(9) {
            0..=2 => {
                let moved = volume.background(Duration::ZERO);
                ensure!(moved.is_ok() || self.may_fail(), "the background work failed: {moved:?}");
                "background"
            }
            3 => {
                let which = any.filter(|_| self.rng.one_in(2));
                self.memory.open(&volume, which)?;
                "open an image"
            }
            4 => {
                self.memory.close();
                "close what is open"
            }
            5 => {
                if let Some(id) = any {
                    self.memory.clone_of(&volume, id)?;
                }
                "a clone"
            }
            6 => {
                self.memory.remove_clones();
                "no clones"
            }
            7 => {
                drop(volume);
                self.reopen()?;
                "close and open"
            }
            _ => {
                drop(volume);
                return self.power_cycle(timeline, Moment::AT_REST).map(drop);
            }
        };
        self.destination.note(timeline, what);
        self.look(Moment::AT_REST).with_context(|| format!("after {what}"))?;
        match self.rng.one_in(3) {
            true => look_at_a_copy(&self.memory, &self.destination, &mut self.rng)
                .with_context(|| format!("after {what}")),
            false => Ok(()),
        }
    }

    /// A block of a kept image becomes unreadable: a repair from the liar must change nothing else.
    fn rot(&mut self, timeline: &mut Timeline) -> Result<()> {
        let Ok(known) = Known::of(&self.destination.volume()) else { return Ok(()) };
        let data = known.table.iter().flat_map(|entry| known.reached(&entry.root)).filter(Reached::is_data);
        let numbers: Vec<u64> = data.map(|of| of.pointer.vbn.0).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let number = numbers[self.rng.below(numbers.len() as u64) as usize];
        let at = (space_start(self.destination.config.blocks) + number) * BLOCK_SIZE as u64;
        let device = &self.destination.device;
        let mut bytes = [0; BLOCK_SIZE];
        device.read_into(at, &mut bytes)?;
        if known.blocks.get(&number).is_none_or(|block| block[..] != bytes[..]) {
            // It is not at home.
            return Ok(());
        }
        device.corrupt(at, BLOCK_SIZE as u64, &mut self.rng);
        self.memory.lose(&bytes);
        self.rotten = true;
        self.destination.note(timeline, &format!("! block {number} rots"));
        // It is found, and the repair has work to do.
        let _ = self.destination.volume().check(&mut |_| {});
        Ok(())
    }

    /// The source is lost; the destination takes writes, its owner deletes snapshots, and the
    /// others stay.
    fn fail_over(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        let mirror = self.mirror();
        self.look(Moment::AT_REST)?;
        if let Err(error) = mirror.failover() {
            ensure!(self.may_fail(), "no failover: {error}");
            return Ok(());
        }
        self.destination.note(timeline, "failover");
        self.memory.forget_active();
        let volume = self.destination.volume();
        for _ in 0..self.rng.below(6) {
            let ids = self.memory.ids();
            if !ids.is_empty() && self.rng.one_in(2) {
                let id = ids[self.rng.below(ids.len() as u64) as usize];
                if volume.delete_snapshots(&[id]).is_ok() {
                    self.memory.delete(id);
                }
            }
            let inodes = volume.image(None)?.inodes().unwrap_or_default();
            let luns: Vec<FileId> =
                inodes.iter().filter(|i| i.kind == FileKind::Lun && !i.removed).map(|i| i.id).collect();
            for _ in 0..self.rng.below(4) {
                let Some(lun) = luns.get(self.rng.below(luns.len().max(1) as u64) as usize) else { break };
                self.tag += 1;
                let block = Tag(self.tag << 8 | u64::from(b'O')).block();
                let mut one = std::iter::once((Lba(self.rng.below(8)), block));
                let _ = volume.write(*lun, &mut one);
            }
            let _ = volume.consistency_point();
            let _ = volume.background(Duration::ZERO);
            self.memory.compare(&volume).context("after the failover")?;
        }
        self.memory.compare_open().context("after the failover")
    }
}

/// The content that a restart would show now.
fn look_at_a_copy(memory: &Memory, destination: &World, rng: &mut Rng) -> Result<()> {
    let device = destination.device.fork().power_cycle(rng);
    let mut copy = destination.fork(device);
    copy.open()
        .map_err(Error::from)
        .and_then(|volume| memory.compare_copy(&volume))
        .context("where the power went and came back in a copy")
}

/// Clients and owners of a volume, and a snapshot in the end.
fn work(world: &mut World, actions: u64, timeline: &mut Timeline) -> Result<()> {
    for _ in 0..actions {
        world.live(timeline)?;
    }
    write(world)?;
    let name = world.name();
    let content = world.model.frozen();
    match world.volume().create_snapshot(&name) {
        Ok(snapshot) => {
            world.committed();
            world.snapshots.insert(snapshot.id, SnapshotModel { name, held: false, content });
            Ok(())
        }
        Err(VolumeError::NoSpace | VolumeError::TableFull) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Some blocks of a LUN.
fn write(world: &mut World) -> Result<()> {
    let volume = world.volume();
    let Some(file) = world.pick_lun() else {
        let length = world.config.file_blocks;
        let file = match volume.compound().create(FileKind::Lun, length * BLOCK_SIZE as u64) {
            Err(VolumeError::NoSpace) => return Ok(()),
            file => file?,
        };
        return world.model.create(file, length, true, volume.open_generation());
    };
    let length = world.model.file(file).length();
    for _ in 0..1 + world.rng.below(10) {
        let (lba, tag) = (world.rng.below(length), world.tag());
        match volume.write(file, &mut std::iter::once((Lba(lba), tag.block()))) {
            Err(VolumeError::NoSpace) => break,
            written => written?,
        }
        world.model.write(file, lba, tag, volume.open_generation());
    }
    Ok(())
}

fn serve(sessions: &Source, offering: &Offering, end: &mut End) {
    let peer = PeerName::new(PEER).expect("a name as it must be");
    let cancel = AtomicBool::new(false);
    let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let _ = sessions.serve_session(end, offering, &peer, &mut work);
}
