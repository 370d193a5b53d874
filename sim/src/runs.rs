//! The kinds of runs that a seed stands for.

use anyhow::{Context, Result, ensure};
use cairn_base::Rng;
use cairn_volume::Role;

use crate::media;
use crate::mirror::Pair;
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
    /// Power cuts.
    pub cuts: u64,
    /// Refusals for want of space.
    pub full: u64,
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
        cut_every: if rng.one_in(4) { 0 } else { 5 + rng.below(30) },
        log_device: false,
    }
}

/// Runs a seed.
pub fn run(kind: Kind, seed: u64, timeline: &mut Timeline) -> Result<Outcome> {
    match kind {
        Kind::Volume => volume(seed, timeline),
        Kind::EveryCut => every_cut(seed, timeline),
        Kind::Media => {
            let config = Config { log_device: seed % 2 == 1, ..config(&mut Rng::new(seed)) };
            media::run(seed, timeline, config)?;
            Ok(Outcome { digest: timeline.digest(), cuts: 0, full: 0 })
        }
        Kind::Mirror => mirror(seed, timeline),
    }
}

fn mirror(seed: u64, timeline: &mut Timeline) -> Result<Outcome> {
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
    let cuts = pair.cuts();
    let mut world = pair.fail_over(timeline, 20 + rng.below(40))?;
    world.finish(timeline)?;
    Ok(Outcome { digest: timeline.digest(), cuts: cuts + world.cuts, full: world.full })
}

fn volume(seed: u64, timeline: &mut Timeline) -> Result<Outcome> {
    let mut rng = Rng::new(seed);
    let config = Config { log_device: seed % 2 == 1, ..config(&mut rng) };
    let mut world = World::new("vol", &mut rng, config, Role::Normal)?;
    world.note(timeline, &format!("formatted: {config:?}"));
    if rng.one_in(3) {
        world.crowd(timeline)?;
    }
    let actions = 60 + rng.below(240);
    for _ in 0..actions {
        world.live(timeline)?;
    }
    world.finish(timeline)?;
    Ok(Outcome { digest: timeline.digest(), cuts: world.cuts, full: world.full })
}

fn every_cut(seed: u64, timeline: &mut Timeline) -> Result<Outcome> {
    let actions = 12;
    let life = |cut: Option<u64>, timeline: &mut Timeline| -> Result<(u64, World)> {
        let mut rng = Rng::new(seed);
        let mut config = config(&mut rng);
        config.blocks = 1024;
        config.blocks_max = 2048;
        config.file_blocks = 200;
        config.cut_every = 0;
        config.log_device = seed % 2 == 1;
        let mut world = World::new("vol", &mut rng, config, Role::Normal)?;
        let start = world.device.operations();
        if let Some(cut) = cut {
            world.device.cut_after(cut);
        }
        let mut after_cut = 0;
        for _ in 0..actions {
            let was_cut = world.cuts > 0;
            world.live(timeline)?;
            after_cut += u64::from(was_cut);
            if after_cut == 3 {
                break;
            }
        }
        let operations = world.device.operations() - if cut.is_none() { start } else { 0 };
        Ok((operations, world))
    };
    let (operations, mut world) = life(None, timeline)?;
    world.finish(timeline)?;
    let mut outcome = Outcome { digest: 0, cuts: 0, full: world.full };
    for cut in 0..operations {
        timeline.note(
            "vol",
            Default::default(),
            &format!("the same life, with a cut after {cut} of {operations} operations"),
        );
        let (_, mut world) =
            life(Some(cut), timeline).with_context(|| format!("with a cut after {cut} operations"))?;
        ensure!(world.cuts > 0, "a cut after {cut} of {operations} operations did not happen");
        world.compare_all()?;
        world.check().with_context(|| format!("with a cut after {cut} operations"))?;
        outcome.cuts += world.cuts;
    }
    outcome.digest = timeline.digest();
    Ok(outcome)
}
