//! Actions of owners on a volume while clients are at work: snapshots, rollbacks, files, checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cairn_base::{FileId, Generation, Rng, SnapshotId};
use cairn_format::FileKind;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{LogTarget, ROOT_DIRECTORY, Volume, VolumeError};

use crate::round::Floor;
use crate::world::{Pending, SnapshotModel, compare_image, log_id};

impl Floor<'_> {
    pub(crate) fn owner(&self, number: usize, rng: &mut Rng) -> Result<String> {
        let volume = self.volume();
        let mut claimed = Vec::new();
        let outcome = match rng.below(100) {
            0..=19 => self.consistency_point(&volume),
            20..=39 => self.create_snapshot(&volume, number),
            40..=52 => self.delete_snapshots(&volume, number, rng, &mut claimed),
            53..=59 => self.rename_snapshot(&volume, number, rng, &mut claimed),
            60..=67 => self.hold_snapshot(&volume, number, rng, &mut claimed),
            68..=73 => self.rollback(&volume, number, rng, &mut claimed),
            74..=81 => self.look_at_snapshot(&volume, rng, &mut claimed),
            82..=85 => self.check(&volume),
            86..=89 => self.hold_image(&volume, rng, &mut claimed),
            90 => self.drop_images(),
            91 => self.move_log(&volume, rng),
            92..=93 => self.grow(&volume, number, rng),
            94..=96 => self.create_file(&volume, rng),
            _ => self.remove_file(&volume, rng),
        };
        self.claimed.lock().retain(|id| !claimed.contains(id));
        if !self.is_off() {
            self.world.lock().pending.remove(&number);
        }
        outcome.map(|what| if what.is_empty() { what } else { format!("owner {number}: {what}") })
    }

    /// Records the operation in progress, so that a cut in it can be judged.
    fn begin(&self, number: usize, pending: Pending) {
        self.world.lock().pending.insert(number, pending);
    }

    /// A snapshot that no other owner is at.
    fn claim(&self, rng: &mut Rng, claimed: &mut Vec<SnapshotId>) -> Option<SnapshotId> {
        let world = self.world.lock();
        let mut all = self.claimed.lock();
        let free = world.snapshots.iter().filter(|(id, s)| {
            let is_mirrors = s.name.starts_with(MIRROR_PREFIX);
            !all.contains(id) && !is_mirrors && !world.is_left_alone(**id, s)
        });
        let free: Vec<SnapshotId> = free.map(|(id, _)| *id).collect();
        let id = *free.get(rng.below(free.len().max(1) as u64) as usize)?;
        all.insert(id);
        claimed.push(id);
        Some(id)
    }

    fn consistency_point(&self, volume: &Arc<Volume>) -> Result<String> {
        let generation = volume.consistency_point()?;
        self.world.lock().model.durable(generation);
        Ok(format!("consistency point {generation}"))
    }

    fn create_snapshot(&self, volume: &Arc<Volume>, number: usize) -> Result<String> {
        let name = {
            let mut world = self.world.lock();
            if world.snapshots.len() >= world.config.snapshots {
                return Ok(String::new());
            }
            world.name()
        };
        self.begin(number, Pending::Snapshot(name.clone()));
        let snapshot = volume.create_snapshot(&name)?;
        let mut world = self.world.lock();
        // Concurrent writes may be in it or not; its generation decides.
        let content = world.model.frozen_at(snapshot.generation);
        world.model.durable(snapshot.generation);
        world.snapshots.insert(snapshot.id, SnapshotModel { name: name.clone(), held: false, content });
        Ok(format!("snapshot {name} is {}", snapshot.id))
    }

    fn delete_snapshots(
        &self,
        volume: &Arc<Volume>,
        number: usize,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        let ids: BTreeSet<SnapshotId> =
            (0..1 + rng.below(2)).filter_map(|_| self.claim(rng, claimed)).collect();
        let ids: Vec<SnapshotId> = ids.into_iter().collect();
        let held = ids.iter().any(|id| self.world.lock().snapshots[id].held);
        self.begin(number, Pending::Delete(ids.clone()));
        match volume.delete_snapshots(&ids) {
            Err(VolumeError::Held(_)) if held => Ok(format!("delete snapshots {ids:?}: held")),
            Ok(_) if held => bail!("a held snapshot was deleted: {ids:?}"),
            Ok(freed) => {
                let mut world = self.world.lock();
                ids.iter().for_each(|id| drop(world.snapshots.remove(id)));
                Ok(format!("delete snapshots {ids:?} frees {freed}"))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn rename_snapshot(
        &self,
        volume: &Arc<Volume>,
        number: usize,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        let Some(id) = self.claim(rng, claimed) else { return Ok(String::new()) };
        let name = self.world.lock().name();
        self.begin(number, Pending::Rename(id, name.clone()));
        volume.rename_snapshot(id, &name)?;
        if let Some(snapshot) = self.world.lock().snapshots.get_mut(&id) {
            snapshot.name.clone_from(&name);
        }
        Ok(format!("rename snapshot {id} to {name}"))
    }

    fn hold_snapshot(
        &self,
        volume: &Arc<Volume>,
        number: usize,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        let Some(id) = self.claim(rng, claimed) else { return Ok(String::new()) };
        let held = !self.world.lock().snapshots[&id].held;
        self.begin(number, Pending::Hold(id, held));
        volume.hold_snapshot(id, held)?;
        if let Some(snapshot) = self.world.lock().snapshots.get_mut(&id) {
            snapshot.held = held;
        }
        Ok(format!("{} snapshot {id}", if held { "hold" } else { "release" }))
    }

    fn rollback(
        &self,
        volume: &Arc<Volume>,
        number: usize,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        let Some(id) = self.claim(rng, claimed) else { return Ok(String::new()) };
        {
            let mut world = self.world.lock();
            let mut rollbacks = self.rollbacks.lock();
            // Clients keep their exports, so the files that they use must be the same in the
            // snapshot; and only one owner at a time rolls back.
            let then = &world.snapshots[&id].content.files;
            let same = |(file, now): (FileId, &crate::model::FileModel)| {
                then.get(&file).is_some_and(|then| then.blocks == now.length())
            };
            if *rollbacks % 2 == 1 || !world.model.files().all(same) {
                return Ok(String::new());
            }
            *rollbacks += 1;
            world.pending.insert(number, Pending::Rollback(id));
        }
        let kept = volume.rollback(id);
        if self.is_off() {
            return Ok(String::new());
        }
        let kept = match kept {
            // The map of the blocks that a mirror lacks grows by the restored ones.
            Err(VolumeError::NoSpace) => {
                self.world.lock().pending.remove(&number);
                *self.rollbacks.lock() -= 1;
                return Ok(format!("roll back to {id}: full"));
            }
            kept => kept?,
        };
        let mut world = self.world.lock();
        world.observe()?;
        *self.rollbacks.lock() += 1;
        ensure!(
            matches!(world.pending.get(&number), Some(Pending::RolledBack)),
            "a rollback to {id} is through and can't be seen"
        );
        world.model.durable(Generation(kept.generation.0 + 1));
        Ok(format!("roll back to {id}, what was there is {}", kept.id))
    }

    fn look_at_snapshot(
        &self,
        volume: &Arc<Volume>,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        let Some(id) = self.claim(rng, claimed) else { return Ok(String::new()) };
        let content = self.world.lock().snapshots[&id].content.clone();
        let image = volume.image(Some(id))?;
        compare_image(&image, &content).map_err(|error| error.context(format!("in snapshot {id}")))?;
        Ok(format!("= compare snapshot {id}"))
    }

    fn check(&self, volume: &Arc<Volume>) -> Result<String> {
        let report = volume.check(&mut |_| {})?;
        match report.findings.first() {
            None => Ok("= check".to_owned()),
            Some(finding) => {
                bail!("check finds {} things, first: {finding} ({finding:?})", report.findings.len())
            }
        }
    }

    fn hold_image(
        &self,
        volume: &Arc<Volume>,
        rng: &mut Rng,
        claimed: &mut Vec<SnapshotId>,
    ) -> Result<String> {
        if self.world.lock().held.len() >= 2 {
            return self.drop_images();
        }
        let Some(id) = self.claim(rng, claimed) else { return Ok(String::new()) };
        let image = volume.image(Some(id))?;
        let mut world = self.world.lock();
        let content = world.snapshots[&id].content.clone();
        world.held.push((image, content));
        Ok(format!("open snapshot {id}"))
    }

    fn drop_images(&self) -> Result<String> {
        let held = std::mem::take(&mut self.world.lock().held);
        for (image, content) in &held {
            compare_image(image, content).map_err(|error| error.context("in an image that is held open"))?;
        }
        Ok(if held.is_empty() { String::new() } else { "= compare and close what was open".to_owned() })
    }

    fn grow(&self, volume: &Arc<Volume>, number: usize, rng: &mut Rng) -> Result<String> {
        let (blocks, most, growing) = {
            let world = self.world.lock();
            let growing = world.pending.values().any(|pending| matches!(pending, Pending::Grow(_)));
            (world.blocks + 1 + rng.below(128), world.config.blocks_max, growing)
        };
        if blocks > most || growing {
            return Ok(String::new());
        }
        self.begin(number, Pending::Grow(blocks));
        match volume.grow(blocks) {
            Ok(()) => self.world.lock().blocks = blocks,
            Err(VolumeError::TooManySegments) => return Ok(String::new()),
            Err(error) => return Err(error.into()),
        }
        Ok(format!("grow to {blocks} blocks"))
    }

    fn move_log(&self, volume: &Arc<Volume>, rng: &mut Rng) -> Result<String> {
        let target = match self.world.lock().log.clone() {
            Some(device) if rng.one_in(2) => LogTarget::Device { device, id: log_id(rng) },
            _ => LogTarget::Internal,
        };
        match volume.move_log(&target) {
            // It is there already, or a move interrupted by a cut left its traces.
            Err(VolumeError::LogTaken { .. }) => return Ok(String::new()),
            other => other?,
        }
        Ok(format!(
            "move the log {}",
            if matches!(target, LogTarget::Internal) { "home" } else { "to its own device" }
        ))
    }

    fn create_file(&self, volume: &Arc<Volume>, rng: &mut Rng) -> Result<String> {
        let (files, config) = {
            let world = self.world.lock();
            (world.model.files().count(), world.config)
        };
        if files > config.files {
            return Ok(String::new());
        }
        let length = 1 + rng.below(config.file_blocks);
        let compound = volume.compound();
        match compound.create(FileKind::Lun, length * 4096) {
            Ok(id) => {
                let generation = volume.open_generation();
                self.world.lock().model.create(id, length, true, generation)?;
                drop(compound);
                self.consistency_point(volume)?;
                Ok(format!("create {id:?} of {length} blocks"))
            }
            Err(VolumeError::NoSpace) => Ok(String::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_file(&self, volume: &Arc<Volume>, rng: &mut Rng) -> Result<String> {
        let file = {
            let world = self.world.lock();
            let in_use = self.in_use.lock();
            let mut leaving = self.leaving.lock();
            let idle = |id: &FileId| {
                *id != ROOT_DIRECTORY && !leaving.contains(id) && in_use.get(id).copied().unwrap_or(0) == 0
            };
            let files: Vec<FileId> = world.model.files().map(|(id, _)| id).filter(idle).collect();
            if files.len() < 2 {
                return Ok(String::new());
            }
            let file = files[rng.below(files.len() as u64) as usize];
            leaving.insert(file);
            file
        };
        let compound = volume.compound();
        let removed = compound.remove(file);
        let outcome = match removed {
            Ok(()) => {
                let generation = volume.open_generation();
                self.world.lock().model.remove(file, generation);
                drop(compound);
                self.consistency_point(volume).map(|_| format!("remove {file:?}"))
            }
            Err(VolumeError::NoSpace) => Ok(String::new()),
            // A rollback brought the state from before it was made.
            Err(VolumeError::NoSuchFile(_)) if self.world.lock().model.files().all(|(id, _)| id != file) => {
                Ok(String::new())
            }
            Err(error) => Err(error.into()),
        };
        self.leaving.lock().remove(&file);
        outcome
    }
}
