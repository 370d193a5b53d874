//! The kinds of runs that a seed stands for.

use anyhow::Result;
use cairn_base::Rng;
use cairn_volume::Role;

use crate::forks::Forks;
use crate::media;
use crate::mirror::Pair;
use crate::round::Crew;
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::world::{Config, World};

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One volume, many actions, cuts at random.
    Volume,
    /// A short life, run once for every device operation in it, with a cut there.
    EveryCut,
    /// Media that rot.
    Media,
    /// A source and its mirror, with cuts on both sides, then a failover.
    Mirror,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Volume, Kind::EveryCut, Kind::Media, Kind::Mirror];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Volume => "volume",
            Kind::EveryCut => "every-cut",
            Kind::Media => "media",
            Kind::Mirror => "mirror",
        }
    }
}

/// What came of a run.
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
        Kind::Media => media::run(seed, timeline, config(&mut Rng::new(seed)))?,
        Kind::Mirror => mirror(seed, timeline, &mut tally)?,
    }
    Ok(Outcome { digest: timeline.digest(), tally })
}

fn mirror(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut config = config(&mut rng);
    // The space of a destination is its source's; growing it is another matter.
    // Small, so that places are used again soon.
    config.blocks = config.blocks.min(1024 + rng.below(1024));
    config.blocks_max = config.blocks;
    config.file_blocks = config.file_blocks.min(300);
    let mut pair = Pair::new(&mut rng, config)?;
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
