//! The power goes and comes back: what the volume must be then, whatever it was doing.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{FileId, SnapshotId};
use cairn_volume::Snapshot;

use crate::timeline::Timeline;
use crate::world::{Pending, SnapshotModel, World, read_active};

/// The most operations of recovery itself that complete before the power goes again.
const RECOVERY_OPERATIONS: u64 = 8;

impl World {
    /// Lets the power go at one of the next operations.
    pub fn arm_cut(&mut self, most: u64) {
        self.device.cut_after(self.fault_rng.below(most));
    }

    /// Brings the power back, opens, and compares with the model. The power may go again while the volume opens.
    pub fn recover(&mut self, timeline: &mut Timeline, again: bool) -> Result<()> {
        self.held.clear();
        self.volume = None;
        self.cuts += 1;
        loop {
            self.device = Arc::new(self.device.power_cycle(&mut self.fault_rng));
            if again && self.fault_rng.one_in(4) {
                self.arm_cut(RECOVERY_OPERATIONS);
            }
            match self.open() {
                Ok(volume) => {
                    self.volume = Some(volume);
                    break;
                }
                Err(_) if self.device.is_off() => self.note(timeline, "! power cut while opening"),
                Err(error) => return Err(error).context("opening after a power cut"),
            }
        }
        // A cut that was armed for opening and not reached must not hit what follows by accident.
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

    /// Finds out whether the action that the cut caught was done; the content follows from that.
    fn settle_pending(&mut self) -> Result<()> {
        let volume = self.volume();
        let found: BTreeMap<SnapshotId, Snapshot> =
            volume.snapshots().into_iter().map(|snapshot| (snapshot.id, snapshot)).collect();
        let strangers: Vec<Snapshot> =
            found.values().filter(|snapshot| !self.snapshots.contains_key(&snapshot.id)).cloned().collect();
        ensure!(strangers.len() <= 1, "several unknown snapshots: {strangers:?}");
        let mut rolled_back = None;
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => {}
            Pending::Snapshot { name, content } => {
                if let Some(new) = strangers.first() {
                    ensure!(new.name == name, "snapshot {name} came back as {}", new.name);
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
            Pending::Rollback { target, before } => {
                if let Some(kept) = strangers.first() {
                    let model = SnapshotModel { name: kept.name.clone(), held: false, content: before };
                    self.snapshots.insert(kept.id, model);
                    if volume.active_parent() == target {
                        rolled_back = Some(target);
                    }
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
        if let Some(target) = rolled_back {
            self.rolled_back(target);
            return Ok(());
        }
        let files: BTreeMap<FileId, u64> = volume
            .image(None)?
            .inodes()?
            .into_iter()
            .filter(|inode| !inode.removed)
            .map(|inode| (inode.id, inode.tree.length))
            .collect();
        let generation = volume.status().generation;
        let mut read = |file, count| read_active(&volume, file, 0, count);
        self.model.after_cut(generation, &files, &mut read).context("after a power cut")
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
