//! The power fails and returns: the required state of the volume then, whatever it was doing.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{FileId, SnapshotId};
use cairn_volume::Snapshot;

use crate::timeline::Timeline;
use crate::world::{Pending, SnapshotModel, World, is_of_owners, read_active};

/// How the names of snapshots begin that a rollback makes.
const KEPT_PREFIX: &str = "before-rollback-";
/// The most operations of recovery itself that complete before the power fails again.
const RECOVERY_OPERATIONS: u64 = 8;

impl World {
    /// Arms a power cut at one of the next operations.
    pub fn arm_cut(&mut self, most: u64) {
        self.device.cut_after(self.fault_rng.below(most));
    }

    /// Brings the power back, opens, and compares with the model. The power may go again while the
    /// volume opens.
    pub fn recover(&mut self, timeline: &mut Timeline, again: bool) -> Result<()> {
        self.power_cycle();
        self.come_back(timeline, again)
    }

    /// The power is back. Opens, and compares with the model.
    pub fn come_back(&mut self, timeline: &mut Timeline, again: bool) -> Result<()> {
        self.held.clear();
        self.volume = None;
        self.cuts += 1;
        loop {
            if again && self.fault_rng.one_in(4) {
                self.arm_cut(RECOVERY_OPERATIONS);
            }
            match self.open() {
                Ok(volume) => {
                    self.volume = Some(volume);
                    break;
                }
                Err(_) if self.device.is_off() => {
                    self.note(timeline, "! power cut while opening");
                    self.cuts += 1;
                    self.power_cycle();
                }
                Err(error) => return Err(error).context("opening after a power cut"),
            }
        }
        // A cut that was armed for opening and not reached must not hit later operations by
        // accident.
        self.device.cut_after(u64::MAX);
        self.settle_pending()?;
        self.compare_all().context("after a power cut")?;
        if self.fault_rng.one_in(2) {
            self.check().context("after a power cut")?;
            self.note(timeline, "= opened, compared, checked");
        } else {
            self.note(timeline, "= opened, compared");
        }
        Ok(())
    }

    /// Finds out whether the actions that the cut caught were done; the content follows from that.
    fn settle_pending(&mut self) -> Result<()> {
        self.observe()?;
        let volume = self.volume();
        let found: BTreeMap<SnapshotId, Snapshot> =
            volume.snapshots().into_iter().map(|snapshot| (snapshot.id, snapshot)).collect();
        let mut strangers: Vec<&Snapshot> =
            found.values().filter(|snapshot| !self.snapshots.contains_key(&snapshot.id)).collect();
        for pending in std::mem::take(&mut self.pending).into_values() {
            match pending {
                Pending::RolledBack => {}
                Pending::Snapshot(name) => {
                    if let Some(at) = strangers.iter().position(|new| new.name == name) {
                        let new = strangers.remove(at);
                        let content = self.model.frozen_at(new.generation);
                        self.snapshots.insert(new.id, SnapshotModel { name, held: false, content });
                    }
                }
                Pending::Delete(ids) => {
                    let left = ids.iter().filter(|id| found.contains_key(id)).count();
                    ensure!(left == 0 || left == ids.len(), "{left} of {ids:?} are left of a deletion");
                    if left == 0 {
                        ids.iter().for_each(|id| drop(self.snapshots.remove(id)));
                    }
                }
                Pending::Rename(id, name) => {
                    if let Some(snapshot) = self.snapshots.get_mut(&id)
                        && found.get(&id).is_some_and(|found| found.name == name)
                    {
                        snapshot.name = name;
                    }
                }
                Pending::Hold(id, held) => {
                    if let Some(snapshot) = self.snapshots.get_mut(&id)
                        && found.get(&id).is_some_and(|found| found.held == held)
                    {
                        snapshot.held = held;
                    }
                }
                Pending::Rollback(_) => {
                    // Not done, or it would have been visible; the previous content may be kept
                    // already.
                    let kept = strangers.iter().position(|new| new.name.starts_with(KEPT_PREFIX));
                    if let Some(at) = kept {
                        self.keep(strangers.remove(at));
                    }
                }
                Pending::Grow(blocks) => {
                    let now = volume.status().blocks;
                    ensure!(
                        now == self.blocks || now == blocks,
                        "{now} blocks after growing {} to {blocks}",
                        self.blocks
                    );
                    self.blocks = now;
                }
            }
        }
        ensure!(strangers.is_empty(), "unknown snapshots: {strangers:?}");
        let files: BTreeMap<FileId, u64> = volume
            .image(None)?
            .inodes()?
            .into_iter()
            .filter(|inode| !inode.removed && is_of_owners(inode.kind))
            .map(|inode| (inode.id, inode.tree.length))
            .collect();
        let generation = volume.status().generation;
        let mut read = |file, count| read_active(&volume, file, 0, count);
        self.model.after_cut(generation, &files, &mut read).context("after a power cut")
    }

    fn keep(&mut self, kept: &Snapshot) {
        let content = self.model.frozen_at(kept.generation);
        let model = SnapshotModel { name: kept.name.clone(), held: false, content };
        self.snapshots.insert(kept.id, model);
    }

    /// Learns the changes that others than clients made to the volume since the last look:
    /// snapshots of mirrors, an unfinished rollback of an owner.
    pub(crate) fn observe(&mut self) -> Result<()> {
        if self.volume.is_none() {
            return Ok(());
        }
        self.adopt();
        let rollback = self.pending.iter().find_map(|(who, pending)| match pending {
            Pending::Rollback(target) => Some((*who, *target)),
            _ => None,
        });
        let Some((who, target)) = rollback else { return Ok(()) };
        let volume = self.volume();
        let all: BTreeMap<SnapshotId, Snapshot> =
            volume.snapshots().into_iter().map(|snapshot| (snapshot.id, snapshot)).collect();
        let is_kept = |s: &&Snapshot| s.name.starts_with(KEPT_PREFIX) && !self.snapshots.contains_key(&s.id);
        let Some(kept) = all.values().find(is_kept) else { return Ok(()) };
        // The active state descends from the target again, perhaps over snapshots that were made
        // since.
        let mut above = volume.active_parent();
        while above > kept.id {
            above = all.get(&above).map_or(SnapshotId(0), |snapshot| snapshot.parent);
        }
        if above == target {
            self.keep(kept);
            self.rolled_back(target, kept.generation)?;
            self.pending.insert(who, Pending::RolledBack);
        }
        Ok(())
    }

    /// One action, and recovery when the power went in it.
    pub fn live(&mut self, timeline: &mut Timeline) -> Result<()> {
        if self.config.cut_every > 0 && self.fault_rng.one_in(self.config.cut_every) {
            self.arm_cut(24);
        }
        self.act(timeline)?;
        if self.device.is_off() {
            self.recover(timeline, true)?;
        }
        if self.volume.is_none() {
            bail!("the volume was not opened again");
        }
        Ok(())
    }
}
