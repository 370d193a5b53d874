//! A tree of files, against a model of POSIX.
//!
//! The model ([`cairn_files::model`]) runs beside the tree and is compared operation by operation.
//! After a cut the tree must equal, as a whole, the state after one of the operations since the
//! last sync: none in part, and none without the earlier ones. Snapshots must keep their content,
//! to the last byte. After each cut and at the end the volume and the tree are checked.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{Fate, FaultDevice};
use cairn_files::model::{Model, Player, shown};
use cairn_files::{Tree, TreeError, check_tree};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume, VolumeError};

use crate::cuts::{Done, at_every_operation};
use crate::tally::Tally;
use crate::timeline::{Standing, Timeline};

const SECOND: u64 = 1_000_000_000;

/// The parameters of a life.
#[derive(Debug, Clone, Copy)]
struct Config {
    blocks: u64,
    cache_bytes: u64,
    snapshots: usize,
    /// Operations before the first cut may come.
    before: u64,
}

/// One life of a tree.
struct Life<'a> {
    rng: Rng,
    config: Config,
    clock: Arc<ManualClock>,
    device: Arc<FaultDevice>,
    tree: Option<Tree>,
    player: Option<Player>,
    /// Possible states after a cut: the one at the last sync, and all since.
    states: Vec<Model>,
    snapshots: Vec<(SnapshotId, Model)>,
    /// The snapshot that is being deleted: after a cut it may exist or not.
    deleting: Option<SnapshotId>,
    /// Snapshots that were begun so far, which gives their names.
    names: u64,
    timeline: &'a mut Timeline,
}

impl<'a> Life<'a> {
    fn new(mut rng: Rng, config: Config, timeline: &'a mut Timeline, tally: &mut Tally) -> Result<Self> {
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000 * SECOND)));
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(config.blocks, Role::Normal)));
        let mut id = [0; 16];
        rng.fill(&mut id);
        let options = FormatOptions { id: VolumeId(id), blocks: config.blocks, role: Role::Normal };
        Volume::format(&*device, &options, &*clock)?;
        let mut life = Self {
            rng,
            config,
            clock,
            device,
            tree: None,
            player: None,
            states: Vec::new(),
            snapshots: Vec::new(),
            deleting: None,
            names: 0,
            timeline,
        };
        life.open()?;
        let own = life.rng.fork();
        let mut player = Player::new(life.tree()?, own);
        // A small volume fills up, which is part of life.
        player.may_be_full = true;
        life.states = vec![player.model.clone()];
        life.player = Some(player);
        life.say(&format!("made: {config:?}"));
        for _ in 0..config.before {
            life.act(tally)?;
        }
        Ok(life)
    }

    fn open(&mut self) -> Result<()> {
        let options = OpenOptions { cache_bytes: self.config.cache_bytes, clock: self.clock.clone() };
        let volume = Volume::open(self.device.clone(), options)?;
        self.tree = Some(Tree::open(volume)?);
        Ok(())
    }

    fn tree(&self) -> Result<&Tree> {
        self.tree.as_ref().context("the tree is open")
    }

    fn player(&mut self) -> Result<&mut Player> {
        self.player.as_mut().context("somebody plays")
    }

    fn model(&self) -> Model {
        self.player.as_ref().map(|player| player.model.clone()).unwrap_or_default()
    }

    fn say(&mut self, what: &str) {
        let status = self.tree.as_ref().map(|tree| tree.volume().status());
        let (generation, free) = status.map_or((0, 0), |status| (status.generation.0, status.free));
        let operations = self.device.operations();
        self.timeline.note("tree", Standing { operations, generation, free }, what);
    }

    /// No change made so far can be lost any more.
    fn is_durable(&mut self) {
        self.states = vec![self.model()];
    }

    /// One action.
    fn act(&mut self, tally: &mut Tally) -> Result<Done> {
        self.timeline.step();
        self.clock.advance(Duration::from_nanos(self.rng.below(SECOND)));
        let outcome = match self.rng.below(40) {
            0..=2 => self.sync(),
            3 => self.commit(),
            4 | 5 => self.background(),
            6 => self.snapshot(),
            7 => self.delete_snapshot(),
            8 if self.rng.one_in(3) => self.roll_back(),
            9 if self.rng.one_in(3) => self.reopen(),
            10 if self.rng.one_in(2) => self.compare(),
            _ => self.play(),
        };
        match outcome {
            Ok(()) => Ok(Done::Fine),
            Err(_) if self.device.is_off() => Ok(Done::Off),
            Err(error) => {
                let full = matches!(error.downcast_ref::<VolumeError>(), Some(VolumeError::NoSpace))
                    || matches!(error.downcast_ref::<TreeError>(), Some(TreeError::NoSpace));
                if !full {
                    return Err(error);
                }
                tally.full += 1;
                self.say("no room: refused");
                Ok(Done::Fine)
            }
        }
    }

    fn play(&mut self) -> Result<()> {
        let tree = self.tree.take().context("the tree is open")?;
        let outcome = self.player()?.step(&tree);
        self.tree = Some(tree);
        let what = self.player()?.last.clone();
        self.say(&what);
        outcome.with_context(|| what)?;
        let model = self.model();
        if self.states.last() != Some(&model) {
            self.states.push(model);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.say("sync");
        self.tree()?.sync_all()?;
        self.is_durable();
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.say("consistency point");
        self.tree()?.volume().consistency_point()?;
        self.is_durable();
        Ok(())
    }

    fn background(&mut self) -> Result<()> {
        self.say("background");
        for _ in 0..=self.rng.below(3) {
            self.tree()?.volume().background(Duration::ZERO)?;
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<()> {
        if self.snapshots.len() >= self.config.snapshots {
            return Ok(());
        }
        self.names += 1;
        let name = format!("s{}", self.names);
        self.say(&format!("snapshot {name}"));
        let made = self.tree()?.volume().create_snapshot(&name)?;
        let model = self.model();
        self.snapshots.push((made.id, model));
        self.is_durable();
        Ok(())
    }

    fn delete_snapshot(&mut self) -> Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.snapshots.len() as u64) as usize;
        let (id, _) = self.snapshots[at];
        self.say(&format!("delete snapshot {id}"));
        self.deleting = Some(id);
        self.tree()?.volume().delete_snapshots(&[id])?;
        self.deleting = None;
        self.snapshots.remove(at);
        self.is_durable();
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.snapshots.len() as u64) as usize;
        let (id, model) = self.snapshots[at].clone();
        self.say(&format!("roll back to {id}"));
        let before = self.model();
        self.states.push(model.clone());
        let tree = self.tree.take().context("the tree is open")?;
        let volume = tree.volume().clone();
        drop(tree);
        let kept = volume.rollback(id);
        // Whatever the outcome, the tree is reopened: no earlier hold exists.
        self.tree = Some(Tree::open(volume)?);
        self.snapshots.push((kept?.id, before));
        self.player()?.go_on_with(model.without_holds());
        self.is_durable();
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        self.say("close and open");
        self.tree()?.volume().close()?;
        self.is_durable();
        self.tree = None;
        self.open()?;
        let model = self.model().without_holds();
        self.player()?.go_on_with(model);
        self.is_durable();
        Ok(())
    }

    /// The tree shows the model's content, and its snapshots show theirs.
    fn compare(&mut self) -> Result<()> {
        ensure!(shown(self.tree()?)? == self.model().shown(), "the tree differs from the model");
        for (id, model) in &self.snapshots {
            let volume = self.tree()?.volume();
            let seen = shown(&Tree::of_image(volume.image(Some(*id))?)?)?;
            ensure!(seen == model.shown(), "snapshot {id} differs from what it showed");
        }
        self.say(&format!("= {} files, {} snapshots", self.model().shown().len(), self.snapshots.len()));
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let volume = self.tree()?.volume().clone();
        let report = volume.check(&mut |_| {})?;
        if let Some(finding) = report.findings.first() {
            bail!("check finds: {finding}");
        }
        let mut images = vec![volume.image(None)?];
        for (id, _) in &self.snapshots {
            images.push(volume.image(Some(*id))?);
        }
        for image in images {
            if let Some(finding) = check_tree(&image)?.first() {
                bail!("the tree of {:?}: {finding}", image.snapshot());
            }
        }
        Ok(())
    }

    /// Power returns, and the content is one of the possible states.
    fn recover(&mut self, tally: &mut Tally, fate: Fate) -> Result<()> {
        tally.cuts += 1;
        self.tree = None;
        self.device = Arc::new(self.device.power_cycle_as(fate, &mut self.rng));
        self.open()?;
        if let Some(deleted) = self.deleting.take() {
            let is_gone = self.tree()?.volume().snapshot(deleted).is_none();
            self.snapshots.retain(|(id, _)| !is_gone || *id != deleted);
        }
        let seen = shown(self.tree()?)?;
        let mut found = None;
        for (at, state) in self.states.iter().enumerate() {
            let state = state.without_holds();
            let player = self.player.as_ref().context("somebody plays")?;
            if state.shown() == seen && player.knows(&state, self.tree()?)? {
                found = Some(at);
            }
        }
        let at = found.with_context(|| {
            format!("the tree is none of the {} that there were since the last sync", self.states.len())
        })?;
        self.say(&format!("! power cut, {fate:?}: {at} of {} operations are there", self.states.len() - 1));
        let model = self.states[at].without_holds();
        self.player()?.go_on_with(model);
        self.check()?;
        self.compare()?;
        self.is_durable();
        Ok(())
    }

    fn finish(mut self, tally: &mut Tally) -> Result<()> {
        self.device.cut_after(u64::MAX);
        self.compare()?;
        self.check()?;
        self.reopen()?;
        self.compare()?;
        tally.operations += self.device.operations();
        Ok(())
    }
}

/// A long life with cuts at random.
pub(crate) fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = Config {
        blocks: [1024, 1100, 1500, 4096][rng.below(4) as usize],
        cache_bytes: if rng.one_in(2) { 1 << 20 } else { 4 << 20 },
        snapshots: rng.below(5) as usize,
        before: 0,
    };
    let actions = 200 + rng.below(400);
    let cuts = !rng.one_in(5);
    let mut life = Life::new(rng.fork(), config, timeline, tally)?;
    for _ in 0..actions {
        if cuts && rng.one_in(25) {
            life.device.cut_after(rng.below(40));
        }
        if matches!(life.act(tally)?, Done::Off) || life.device.is_off() {
            let fate = Fate::random(&mut rng);
            life.recover(tally, fate)?;
        }
    }
    life.finish(tally)
}

/// A short life, once for every device operation of it.
pub(crate) fn every_cut(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = Config {
        blocks: 1024,
        cache_bytes: 1 << 20,
        snapshots: rng.below(3) as usize,
        before: rng.below(40),
    };
    let actions = 4 + rng.below(12);
    let script = rng.fork();
    let fate = rng.fork();
    at_every_operation(tally, |cut, tally| {
        let mut life = Life::new(script.clone(), config, &mut *timeline, tally)?;
        let mut fates = fate.clone();
        let start = life.device.operations();
        if let Some(cut) = cut {
            life.device.cut_after(cut);
        }
        for _ in 0..actions {
            if matches!(life.act(tally)?, Done::Off) || life.device.is_off() {
                let random = Fate::random(&mut fates);
                life.recover(tally, random)?;
            }
        }
        let operations = life.device.operations().saturating_sub(start);
        life.finish(tally)?;
        Ok(operations)
    })
}
