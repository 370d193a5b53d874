//! The kinds of runs of a seed.

use anyhow::{Context, Result};
use cairn_base::Rng;
use cairn_volume::Role;

use crate::files;
use crate::forks::Forks;
use crate::history;
use crate::images;
use crate::link::Mishap;
use crate::media;
use crate::pair::{self, Pair, With};
use crate::round::Crew;
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::world::{Config, World};

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One volume, many actions, cuts at random.
    Volume,
    /// A short life, run once for every device operation in it, with a cut there.
    EveryCut,
    /// Damaged media.
    Media,
    /// Images that arrive at a destination, as any sender may send them, with cuts on both sides,
    /// then a failover.
    Image,
    /// Two servers and their protocol: cuts on both sides and mishaps of messages at random, then a
    /// failover.
    Mirror,
    /// A small mirror: every mishap at every message of an update, and a cut at every device
    /// operation of both sides.
    EveryMessage,
    /// As `Mirror`, with a destination that follows continuously, sometimes closely and sometimes
    /// further behind than memory reaches.
    Continuous,
    /// As `EveryMessage`, in the steps of one that follows continuously while clients write.
    EveryStep,
    /// A mirror one of whose sides has bad media: damage by kind of block, temporary errors, lost
    /// and misdirected writes.
    MirrorMedia,
    /// A mirror one of whose sides takes no writes for a while: full, or failing.
    MirrorFull,
    /// Three servers in a row, with clones, drills and a lock on the one in the middle.
    Chain,
    /// A short life of them, run once for every device operation of one of them or of a clone, with
    /// a cut there.
    ChainEveryCut,
    /// A mirror whose source lies: an adversary with its key.
    LyingSource,
    /// A source one of whose mirrors lies.
    LyingDestination,
    /// A group of volumes, snapshots of it at one instant, its mirrors, and a failover of all of
    /// them.
    Group,
    /// A short life of one, run once for every device operation of one of its volumes, with a cut
    /// there.
    GroupEveryCut,
    /// A device that remembers, on two devices that lose power at random.
    History,
    /// A short life of one, run once for every device operation in it, with a cut there.
    HistoryEveryCut,
    /// A tree of files, on a device that loses power at random.
    Files,
    /// A short life of one, run once for every device operation in it, with a cut there.
    FilesEveryCut,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 20] = [
        Kind::Volume,
        Kind::EveryCut,
        Kind::Media,
        Kind::Image,
        Kind::Mirror,
        Kind::EveryMessage,
        Kind::Continuous,
        Kind::EveryStep,
        Kind::MirrorMedia,
        Kind::MirrorFull,
        Kind::Chain,
        Kind::ChainEveryCut,
        Kind::LyingSource,
        Kind::LyingDestination,
        Kind::Group,
        Kind::GroupEveryCut,
        Kind::History,
        Kind::HistoryEveryCut,
        Kind::Files,
        Kind::FilesEveryCut,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Volume => "volume",
            Kind::EveryCut => "every-cut",
            Kind::Media => "media",
            Kind::Image => "image",
            Kind::Mirror => "mirror",
            Kind::EveryMessage => "every-message",
            Kind::Continuous => "continuous",
            Kind::EveryStep => "every-step",
            Kind::MirrorMedia => "mirror-media",
            Kind::MirrorFull => "mirror-full",
            Kind::Chain => "chain",
            Kind::ChainEveryCut => "chain-every-cut",
            Kind::LyingSource => "lying-source",
            Kind::LyingDestination => "lying-destination",
            Kind::Group => "group",
            Kind::GroupEveryCut => "group-every-cut",
            Kind::History => "history",
            Kind::HistoryEveryCut => "history-every-cut",
            Kind::Files => "files",
            Kind::FilesEveryCut => "files-every-cut",
        }
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Of everything that was done and seen.
    pub digest: u64,
    /// In numbers.
    pub tally: Tally,
}

fn config(rng: &mut Rng) -> Config {
    let blocks = [1024, 2048, 4096, 8192][rng.below(4) as usize];
    let large = rng.one_in(4);
    Config {
        blocks,
        blocks_max: blocks * 2,
        files: 1 + rng.below(4) as usize,
        file_blocks: if large { 20_000 } else { 100 + rng.below(blocks) },
        snapshots: 1 + rng.below(12) as usize,
        log_device: rng.one_in(3),
        cut_every: if rng.one_in(4) { 0 } else { 5 + rng.below(30) },
    }
}

/// Runs a seed.
pub fn run(kind: Kind, seed: u64, timeline: &mut Timeline) -> Result<Outcome> {
    let mut tally = Tally { seeds: 1, ..Tally::default() };
    match kind {
        Kind::Volume => volume(seed, timeline, &mut tally)?,
        Kind::EveryCut => every_cut(seed, timeline, &mut tally)?,
        Kind::Media => media::run(seed, timeline, config(&mut Rng::new(seed)), &mut tally)?,
        Kind::Image => image(seed, timeline, &mut tally)?,
        Kind::Mirror => mirror(seed, false, timeline, &mut tally)?,
        Kind::EveryMessage => every_message(seed, false, timeline, &mut tally)?,
        Kind::Continuous => mirror(seed, true, timeline, &mut tally)?,
        Kind::EveryStep => every_message(seed, true, timeline, &mut tally)?,
        Kind::MirrorMedia => pair::media::run(seed, timeline, &mut tally)?,
        Kind::MirrorFull => pair::full::run(seed, timeline, &mut tally)?,
        Kind::Chain => pair::chain::run(seed, timeline, &mut tally)?,
        Kind::ChainEveryCut => pair::chain::every_cut(seed, timeline, &mut tally)?,
        Kind::LyingSource => pair::liars::run_source(seed, timeline, &mut tally)?,
        Kind::LyingDestination => pair::liars::run_destination(seed, timeline, &mut tally)?,
        Kind::Group => pair::group::run(seed, timeline, &mut tally)?,
        Kind::GroupEveryCut => pair::group::every_cut(seed, timeline, &mut tally)?,
        Kind::History => history::run(seed, timeline, &mut tally)?,
        Kind::HistoryEveryCut => history::every_cut(seed, timeline, &mut tally)?,
        Kind::Files => files::run(seed, timeline, &mut tally)?,
        Kind::FilesEveryCut => files::every_cut(seed, timeline, &mut tally)?,
    }
    Ok(Outcome { digest: timeline.digest(), tally })
}

/// Two servers for a while: clients and owners at work during updates too, cuts on both sides,
/// mishaps on the way.
fn mirror(seed: u64, follows: bool, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut config = config(&mut rng);
    config.blocks = 1024 + rng.below(1024);
    config.blocks_max = config.blocks + rng.below(1024);
    config.file_blocks = config.file_blocks.min(300);
    config.log_device = rng.one_in(4);
    let mut pair = Pair::new(&mut rng, config)?;
    if rng.one_in(4) {
        pair.source.crowd(timeline)?;
    }
    for _ in 0..3 + rng.below(8) {
        for _ in 0..rng.below(10) {
            pair.source.live(timeline)?;
        }
        let crew = Crew {
            clients: 1 + rng.below(3) as usize,
            owners: rng.below(3) as usize,
            actions: 1 + rng.below(8),
        };
        let mut with = With { crew: rng.one_in(2).then_some(crew), ..With::default() };
        if follows && !rng.one_in(4) {
            with.steps = 1 + rng.below(5);
            // Some work has to happen between the steps.
            with.crew = Some(Crew { actions: crew.actions * 2, ..crew });
        }
        if rng.one_in(3) {
            with.mishap =
                Some((rng.below(if follows { 160 } else { 40 }), Mishap::ALL[rng.below(6) as usize]));
            tally.mishaps += 1;
        }
        if config.cut_every > 0 && rng.one_in(4) {
            pair.source.arm_cut(40);
        }
        if config.cut_every > 0 && rng.one_in(3) {
            pair.destination.arm_cut(60);
        }
        let (_, messages) = pair.transfer(timeline, with)?;
        tally.messages += messages;
        pair.source.device.cut_after(u64::MAX);
        pair.destination.device.cut_after(u64::MAX);
        for _ in 0..rng.below(4) {
            pair.rest(timeline)?;
        }
    }
    // Whatever happened before, an undisturbed update succeeds.
    tally.messages += pair.transfer(timeline, With::default())?.1;
    pair.count(tally);
    let mut world = pair.fail_over(timeline)?;
    world.cuts = 0;
    for _ in 0..10 + rng.below(30) {
        world.live(timeline)?;
    }
    world.finish(timeline)?;
    world.count(tally);
    Ok(())
}

/// An update of a small mirror, repeated from the same moment: once for every mishap at every
/// message of it.
///
/// A destination that follows continuously makes several steps meanwhile, and a client writes; the
/// outcome differs each time.
fn every_message(seed: u64, follows: bool, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = Config {
        blocks: 1024,
        blocks_max: 1024,
        files: 1 + rng.below(2) as usize,
        file_blocks: 4 + rng.below(24),
        snapshots: 1 + rng.below(3) as usize,
        log_device: rng.one_in(4),
        cut_every: 0,
    };
    let mut pair = Pair::new(&mut rng, config)?;
    // A baseline, or an update.
    for _ in 0..rng.below(3) {
        for _ in 0..rng.below(8) {
            pair.source.live(timeline)?;
        }
        let mut forks = Forks::new(&mut rng, tally);
        let steps = u64::from(follows);
        let with = With { forks: rng.one_in(2).then_some(&mut forks), steps, ..With::default() };
        tally.messages += pair.transfer(timeline, with)?.1;
    }
    for _ in 0..2 + rng.below(8) {
        pair.source.live(timeline)?;
    }
    pair.source.volume().consistency_point()?;
    pair.source.committed();
    let mut forks = Forks::new(&mut rng, tally);
    let crew = follows.then_some(Crew { clients: 1, owners: 0, actions: 4 });
    let steps = if follows { 2 } else { 0 };
    let with = With { forks: Some(&mut forks), crew, steps, ..With::default() };
    let messages = pair.fork(timeline)?.transfer(timeline, with)?.1;
    tally.messages += messages;
    for at in 0..messages {
        for mishap in Mishap::ALL {
            let mut fork = pair.fork(timeline)?;
            let outcome = fork
                .transfer(timeline, With { mishap: Some((at, mishap)), crew, steps, ..With::default() })
                .and_then(|_| fork.transfer(timeline, With::default()));
            outcome.with_context(|| format!("{mishap:?} at message {at} of {messages}"))?;
            tally.mishaps += 1;
        }
    }
    pair.count(tally);
    Ok(())
}

fn image(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut config = config(&mut rng);
    // The space of a destination is its source's; growing it is another matter.
    // Small, so that places are used again soon.
    config.blocks = config.blocks.min(1024 + rng.below(1024));
    config.blocks_max = config.blocks;
    config.file_blocks = config.file_blocks.min(300);
    let mut pair = images::Pair::new(&mut rng, config)?;
    if rng.one_in(3) {
        pair.crowd(timeline)?;
    }
    for _ in 0..4 + rng.below(10) {
        pair.round(timeline)?;
    }
    tally.cuts += pair.cuts();
    let mut world = pair.fail_over(timeline, 20 + rng.below(40))?;
    world.finish(timeline)?;
    tally.cuts += world.cuts;
    tally.full += world.full;
    Ok(())
}

fn volume(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    let mut world = World::new("vol", &mut rng, config, Role::Normal)?;
    world.note(timeline, &format!("formatted: {config:?}"));
    if rng.one_in(3) {
        world.crowd(timeline)?;
    }
    for _ in 0..20 + rng.below(60) {
        if rng.one_in(3) {
            let crew = Crew {
                clients: 1 + rng.below(4) as usize,
                owners: 1 + rng.below(2) as usize,
                actions: 1 + rng.below(12),
            };
            if config.cut_every > 0 && rng.one_in(2) {
                world.arm_cut(100);
            }
            world.round(timeline, crew, None)?;
            world.device.cut_after(u64::MAX);
        } else {
            world.live(timeline)?;
        }
    }
    world.finish(timeline)?;
    world.count(tally);
    Ok(())
}

/// A short life with few blocks, with a cut tried at every device operation of it.
fn every_cut(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = Config {
        blocks: 1024,
        blocks_max: 2048,
        files: 1 + rng.below(3) as usize,
        file_blocks: 4 + rng.below(40),
        snapshots: 1 + rng.below(4) as usize,
        log_device: rng.one_in(3),
        cut_every: 0,
    };
    let mut world = World::new("vol", &mut rng, config, Role::Normal)?;
    if rng.one_in(16) {
        world.crowd(timeline)?;
    }
    let mut forks = Forks::new(&mut rng, tally);
    for _ in 0..1 + rng.below(3) {
        for _ in 0..rng.below(6) {
            world.live(timeline)?;
        }
        let crew = Crew {
            clients: 1 + rng.below(3) as usize,
            owners: rng.below(3) as usize,
            actions: 1 + rng.below(4),
        };
        world.round(timeline, crew, Some(&mut forks))?;
        world.compare_all()?;
        world.check()?;
    }
    world.finish(timeline)?;
    world.count(tally);
    Ok(())
}
