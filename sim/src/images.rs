//! A source, a destination, and events at both while blocks travel between them.
//!
//! The destination must show exactly the last image that was committed there, or the new one,
//! whatever happened to either side; an open older image keeps its content.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{Rng, SnapshotId};
use cairn_format::SnapshotEntry;
use cairn_volume::{ReceivedImage, Receiver, Role, Run, VolumeError};

use crate::model::{Frozen, Model};
use crate::timeline::Timeline;
use crate::world::{Config, SnapshotModel, World, compare_image};

/// Blocks of one record.
const RECORD_BLOCKS: u64 = 24;

/// An image as a destination must show it.
#[derive(Clone, Debug, Default)]
struct Promise {
    target: Option<SnapshotId>,
    active: Arc<Frozen>,
    snapshots: BTreeMap<SnapshotId, SnapshotModel>,
}

/// How a transfer ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The new image is shown.
    Committed,
    /// It was aborted, or refused; the old image is shown.
    NotDone(&'static str),
    /// The power went at the destination.
    Cut,
}

/// A source and its mirror.
pub struct Pair {
    source: World,
    destination: World,
    rng: Rng,
    promise: Promise,
    transfers: u64,
}

impl Pair {
    /// Formats both.
    pub fn new(rng: &mut Rng, config: Config) -> Result<Self> {
        let source = World::new("src", rng, config, Role::Normal)?;
        let destination = World::new("dst", rng, config, Role::Destination)?;
        Ok(Self { source, destination, rng: rng.fork(), promise: Promise::default(), transfers: 0 })
    }

    /// Fills the source, so that its places are used again at once.
    pub fn crowd(&mut self, timeline: &mut Timeline) -> Result<()> {
        self.source.crowd(timeline)
    }

    /// Power cuts on both sides.
    pub fn cuts(&self) -> u64 {
        self.source.cuts + self.destination.cuts
    }

    /// Actions at the source, a transfer, and events at the destination between transfers.
    pub fn round(&mut self, timeline: &mut Timeline) -> Result<()> {
        for _ in 0..self.rng.below(12) {
            self.source.live(timeline)?;
        }
        self.transfer(timeline)?;
        for _ in 0..self.rng.below(4) {
            self.life_of_destination(timeline)?;
        }
        Ok(())
    }

    fn life_of_destination(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        let what = match self.rng.below(10) {
            0..=3 => {
                if self.rng.one_in(4) {
                    self.destination.arm_cut(12);
                }
                let moved = self.destination.volume().background(std::time::Duration::ZERO);
                match moved {
                    Err(_) if self.destination.device.is_off() => return self.recover(timeline, None),
                    other => other?,
                }
                "background"
            }
            4 => {
                let image = self.destination.volume().image(None)?;
                self.destination.held.push((image, self.promise.active.clone()));
                "open the image"
            }
            5 => {
                let ids: Vec<SnapshotId> = self.promise.snapshots.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[self.rng.below(ids.len() as u64) as usize];
                    let image = self.destination.volume().image(Some(id))?;
                    self.destination.held.push((image, self.promise.snapshots[&id].content.clone()));
                }
                "open a snapshot"
            }
            6..=7 => {
                self.destination.compare_held()?;
                self.destination.held.clear();
                "= compare and close what was open"
            }
            8 => {
                self.destination.held.clear();
                self.destination.volume().close()?;
                self.destination.volume = None;
                self.destination.volume = Some(self.destination.open()?);
                "close and open"
            }
            _ => {
                self.recover(timeline, None)?;
                "! power cut at rest"
            }
        };
        self.destination.device.cut_after(u64::MAX);
        self.destination.note(timeline, what);
        self.compare(timeline, "after that")
    }

    /// The destination shows its promise, and `check` finds nothing.
    fn compare(&mut self, timeline: &mut Timeline, when: &'static str) -> Result<()> {
        let volume = self.destination.volume();
        self.destination.snapshots = self.promise.snapshots.clone();
        let listed: BTreeMap<SnapshotId, String> =
            volume.snapshots().into_iter().map(|s| (s.id, s.name)).collect();
        let expected: BTreeMap<SnapshotId, String> =
            self.promise.snapshots.iter().map(|(id, s)| (*id, s.name.clone())).collect();
        ensure!(listed == expected, "the destination lists {listed:?}, expected {expected:?} {when}");
        compare_image(&volume.image(None)?, &self.promise.active)
            .with_context(|| format!("in the destination's image {when}"))?;
        for id in self.promise.snapshots.keys() {
            self.destination.compare_snapshot(*id).with_context(|| format!("at the destination {when}"))?;
        }
        self.destination.compare_held().with_context(|| format!("at the destination {when}"))?;
        self.destination.check().with_context(|| format!("at the destination {when}"))?;
        timeline.observe(volume.status().generation.0.to_le_bytes());
        Ok(())
    }

    /// One update of the mirror.
    fn transfer(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        self.transfers += 1;
        // Cuts of the source fall into its clients' actions, also into those during the transfer.
        self.source.device.cut_after(u64::MAX);
        let volume = self.source.volume();
        // Mirrors' default: the base is held until the next one exists. Without a hold it may be
        // deleted, and everything still works.
        let hold = !self.rng.one_in(3);
        let name = format!("mirror.{}", self.transfers);
        let content = self.source.model.frozen();
        let target = match volume.create_snapshot(&name) {
            Ok(snapshot) => snapshot.id,
            Err(VolumeError::NoSpace | VolumeError::TableFull) => return Ok(()),
            Err(error) => return Err(error).context("the mirror's snapshot"),
        };
        self.source.committed();
        self.source.snapshots.insert(target, SnapshotModel { name, held: false, content: content.clone() });
        if hold {
            volume.hold_snapshot(target, true)?;
            if let Some(snapshot) = self.source.snapshots.get_mut(&target) {
                snapshot.held = true;
            }
            self.source.committed();
        }
        let entries: Vec<SnapshotEntry> =
            volume.snapshot_entries().into_iter().filter(|entry| entry.id <= target).collect();
        let here: BTreeMap<SnapshotId, SnapshotEntry> =
            self.destination.volume().snapshot_entries().into_iter().map(|entry| (entry.id, entry)).collect();
        let have: Vec<SnapshotId> = entries
            .iter()
            .filter(|entry| here.get(&entry.id).is_some_and(|here| here.root == entry.root))
            .map(|entry| entry.id)
            .collect();
        let changes = volume.changed_blocks(&have, target)?;
        drop(volume);
        let promise = Promise {
            target: Some(target),
            active: content,
            snapshots: self.source.snapshots.iter().map(|(id, s)| (*id, s.clone())).collect(),
        };
        let what = format!("transfer of {} blocks up to {target}", changes.blocks);
        if self.rng.one_in(3) {
            let most = 20 + changes.blocks / 8;
            self.destination.arm_cut(most);
        }
        let adversary = self.rng.one_in(2);
        let source_cuts = self.source.cuts;
        let end = self.send(timeline, &changes.runs, entries, target, adversary)?;
        // A transfer that ends early makes its arrivals durable.
        let end = if self.destination.device.is_off() { End::Cut } else { end };
        let redirected = self.destination.volume().status().redirected;
        self.destination.note(timeline, &format!("{what}: {end:?}, {redirected} not at home"));
        match end {
            End::Committed => {
                ensure!(adversary || self.source.cuts == source_cuts, "committed over a cut of the source");
                self.promise = promise;
                self.destination.device.cut_after(u64::MAX);
                self.compare(timeline, "after a transfer")?;
            }
            End::NotDone(why) => {
                // Older images that are held open, or have not moved home yet, can leave too little
                // of the redirect area.
                let crowded = redirected + changes.blocks > self.destination.blocks;
                ensure!(adversary || crowded, "a quiet transfer was not done: {why}");
                self.destination.device.cut_after(u64::MAX);
                self.compare(timeline, "after a transfer that was not done")?;
            }
            End::Cut => self.recover(timeline, Some(promise))?,
        }
        // The previous base is released.
        self.source.device.cut_after(u64::MAX);
        let volume = self.source.volume();
        let bases: Vec<SnapshotId> = self
            .source
            .snapshots
            .iter()
            .filter(|(id, s)| **id < target && s.held && s.name.starts_with("mirror."))
            .map(|(id, _)| *id)
            .collect();
        for id in bases {
            volume.hold_snapshot(id, false)?;
            volume.delete_snapshots(&[id])?;
            self.source.snapshots.remove(&id);
            self.source.committed();
        }
        Ok(())
    }

    fn send(
        &mut self,
        timeline: &mut Timeline,
        runs: &[Run],
        entries: Vec<SnapshotEntry>,
        target: SnapshotId,
        adversary: bool,
    ) -> Result<End> {
        let destination = self.destination.volume();
        let mut receiver = destination.receive()?;
        ensure!(
            matches!(destination.receive(), Err(VolumeError::TransferInProgress)),
            "two transfers at a time"
        );
        let mut records: Vec<Run> = Vec::new();
        for (first, count) in runs {
            let starts = (0..*count).step_by(RECORD_BLOCKS as usize);
            records.extend(starts.map(|at| (cairn_base::Vbn(first.0 + at), RECORD_BLOCKS.min(count - at))));
        }
        let given_up_at = (adversary && self.rng.one_in(4)).then(|| self.rng.below(records.len() as u64 + 1));
        for (number, record) in (0..).zip(records) {
            if given_up_at == Some(number) {
                receiver.abort();
                return Ok(End::NotDone("given up"));
            }
            if adversary && self.rng.one_in(4) {
                self.source.live(timeline)?;
            }
            let mut blocks = self.source.volume().read_blocks(&[record])?;
            if adversary && self.rng.one_in(40) {
                let last = blocks.len() - 1;
                blocks[last] = self.source.tag().block();
            }
            if let Err(error) = receiver.write(record.0, blocks) {
                return self.ended_early(receiver, error);
            }
        }
        match receiver.commit(ReceivedImage { target, snapshots: entries }) {
            // Also with a spoiled block, when the image here had the right one already: the
            // comparison decides.
            Ok(()) => Ok(End::Committed),
            Err(_) if self.destination.device.is_off() => Ok(End::Cut),
            Err(VolumeError::Refused(_)) if adversary => Ok(End::NotDone("refused")),
            Err(error) => Err(error).context("committing a transfer"),
        }
    }

    fn ended_early(&self, receiver: Receiver, error: VolumeError) -> Result<End> {
        drop(receiver);
        match error {
            _ if self.destination.device.is_off() => Ok(End::Cut),
            // Older images that are held open can fill the redirect area.
            VolumeError::Refused(why) if why.starts_with("the redirect area") => Ok(End::NotDone(why)),
            other => Err(other).context("receiving a record"),
        }
    }

    /// The power went at the destination: it must show the last image, or `new` if that was being
    /// committed.
    fn recover(&mut self, timeline: &mut Timeline, new: Option<Promise>) -> Result<()> {
        let destination = &mut self.destination;
        destination.held.clear();
        destination.volume = None;
        destination.cuts += 1;
        loop {
            destination.power_cycle();
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
        let shown = destination.volume().status().cursor.snapshot;
        if let Some(new) = new.filter(|new| new.target == Some(shown)) {
            self.promise = new;
        } else {
            let old = self.promise.target.unwrap_or_default();
            ensure!(shown == old, "the destination came back with {shown:?}, it had {old:?}");
        }
        self.compare(timeline, "after a power cut")?;
        self.destination.note(timeline, "= opened, compared, checked");
        Ok(())
    }

    /// The source is lost. The destination takes over and is a volume like any other from then on.
    pub fn fail_over(mut self, timeline: &mut Timeline, actions: u64) -> Result<World> {
        timeline.step();
        // A transfer is in progress when it happens, as likely as not.
        let interrupted = self.rng.one_in(2);
        if interrupted {
            drop(self.destination.volume().receive()?);
        }
        self.destination.held.clear();
        let volume = self.destination.volume();
        let refused = volume.punch(cairn_base::FileId(2), cairn_base::Lba(0), 1);
        ensure!(
            matches!(refused, Err(VolumeError::WrongRole(_))),
            "a destination took a change: {refused:?}"
        );
        volume.failover()?;
        self.destination.note(timeline, "failover");
        let mut world = self.destination;
        world.snapshots = self.promise.snapshots.clone();
        for (id, snapshot) in &mut world.snapshots {
            let Some(found) = volume.snapshot(*id) else { bail!("snapshot {id} is gone after the failover") };
            snapshot.held = found.held;
        }
        world.model = Model::of(&self.promise.active, volume.status().generation);
        world.blocks = volume.status().blocks;
        world.next_name = 1 << 20;
        drop(volume);
        world.compare_all()?;
        for _ in 0..actions {
            world.live(timeline)?;
        }
        Ok(world)
    }
}
