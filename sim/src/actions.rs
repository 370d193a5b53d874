//! Actions of clients and owners on a volume, one at a time.

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{FileId, Generation, Lba, SnapshotId};
use cairn_device::{Block, Device, DeviceError};
use cairn_format::FileKind;
use cairn_volume::{LogTarget, ROOT_DIRECTORY, VolumeError};

use crate::content::Tag;
use crate::timeline::Timeline;
use crate::waist::parts;
use crate::world::{OWNER, Pending, SnapshotModel, World, log_id, read_active};

/// Blocks of the directory that a volume has from its first action on.
const DIRECTORY_BLOCKS: u64 = 4;

impl World {
    /// Executes one random action. An error caused by the power cut does not count; the caller
    /// handles recovery.
    pub fn act(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        self.advance();
        self.pending.clear();
        let (what, outcome) = self.action(timeline);
        let what = match &outcome {
            Ok(what_more) => format!("{what}{what_more}"),
            Err(error) => format!("{what}: {error:#}"),
        };
        if self.device.is_off() {
            self.note(timeline, &format!("! power cut in: {what}"));
            return Ok(());
        }
        self.note(timeline, &what);
        self.pending.clear();
        outcome.map(drop).with_context(|| what)
    }

    fn action(&mut self, timeline: &mut Timeline) -> (String, Result<String>) {
        if self.model.files().count() < 2 {
            return self.create_file();
        }
        match self.rng.below(100) {
            0..=27 => self.write(),
            28..=33 => self.churn(),
            34..=39 => self.punch(),
            40..=50 => self.flush(),
            51..=58 => self.read(timeline),
            59..=64 => self.consistency_point(),
            65..=71 => self.background(),
            72..=77 => self.create_snapshot(),
            78..=82 => self.delete_snapshots(),
            83 => self.rename_snapshot(),
            84 => self.hold_snapshot(),
            85 => self.rollback(),
            86 => self.create_file(),
            87 => self.remove_file(),
            88 => self.resize_file(),
            89 => self.write_directory(),
            90..=91 => self.extents(),
            92..=93 => self.hold_image(),
            94..=95 => self.drop_image(),
            96 => self.grow(),
            97 if self.rng.one_in(2) => self.move_log(),
            97 => self.reopen(),
            _ => self.verify(),
        }
    }

    /// Fills the volume but for some blocks, so that the rest of its life is a fight for space.
    pub fn crowd(&mut self, timeline: &mut Timeline) -> Result<()> {
        let length = self.blocks;
        let file = self.volume().compound().create(FileKind::Lun, length * 4096)?;
        let generation = self.open_generation();
        self.model.create(file, length, true, generation)?;
        let left = self.rng.below(300);
        let mut lba = 0;
        while lba < length && self.volume().status().free > left {
            let tag = self.tag();
            let mut one = std::iter::once((Lba(lba), tag.block()));
            match self.volume().write(file, &mut one) {
                Ok(()) => {}
                Err(VolumeError::NoSpace) => break,
                Err(error) => return Err(error.into()),
            }
            let generation = self.open_generation();
            self.model.write(file, lba, tag, generation);
            lba += 1;
        }
        self.volume().consistency_point()?;
        self.committed();
        self.note(timeline, &format!("filled with {lba} blocks"));
        Ok(())
    }

    /// An error, unless it is a refusal that the situation explains.
    fn refused(&mut self, error: VolumeError, count: u64) -> Result<String> {
        match error {
            VolumeError::NoSpace => {
                self.full += 1;
                let free = self.volume().status().free;
                ensure!(
                    self.device.is_off() || free <= 8 * count + 64,
                    "refused {count} blocks as full, {free} are free"
                );
                Ok(": full".to_owned())
            }
            other => Err(other.into()),
        }
    }

    fn write(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_lun() else { return ("write".to_owned(), Ok(String::new())) };
        let length = self.model.file(file).length();
        let count = if self.rng.one_in(3) { 1 } else { 1 + self.rng.below(64.min(length)) };
        // Clients of overlapping interests: half of all writes go to the first blocks.
        let reach = if self.rng.one_in(2) { (count + 16).min(length) } else { length };
        let start = self.rng.below(reach - count.min(reach) + 1);
        let count = count.min(length - start);
        let scattered = self.rng.one_in(5);
        let blocks: Vec<(u64, Tag)> = (0..count)
            .map(|n| {
                let lba = if scattered { self.rng.below(length) } else { start + n };
                (lba, self.tag())
            })
            .collect();
        let what = match scattered {
            true => format!("write {count} blocks all over {file:?}"),
            false => format!("write {file:?} {start}+{count}"),
        };
        let mut iterator = blocks.iter().map(|(lba, tag)| (Lba(*lba), tag.block()));
        let iterator = &mut iterator as &mut dyn ExactSizeIterator<Item = (Lba, Block)>;
        let is_atomic = !scattered && count % 3 == 2;
        let outcome = if is_atomic {
            self.volume().write_atomic(None, file, iterator)
        } else {
            self.volume().write(file, iterator)
        };
        let outcome = match outcome {
            Ok(()) if is_atomic => {
                let generation = self.open_generation();
                self.model.write_whole(file, &blocks, generation);
                Ok(": all or nothing".to_owned())
            }
            Ok(()) => {
                let generation = self.open_generation();
                blocks.iter().for_each(|(lba, tag)| self.model.write(file, *lba, *tag, generation));
                Ok(String::new())
            }
            Err(error) => self.refused(error, count),
        };
        (what, outcome)
    }

    /// Clients that write and punch the same few blocks repeatedly, with write-back in between, and
    /// then flush: the log must keep the order.
    fn churn(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_lun() else { return ("churn".to_owned(), Ok(String::new())) };
        let length = self.model.file(file).length();
        let start = self.rng.below(length);
        let count = (1 + self.rng.below(12)).min(length - start);
        let mut done = Vec::new();
        let outcome = self.churn_in(file, start, count, &mut done);
        // The power may fail while idle as well: no write is in flight, and flushed data is
        // present.
        if outcome.is_ok() && self.config.cut_every > 0 && self.fault_rng.one_in(3) {
            self.device.cut_after(0);
            let _ = cairn_device::Device::flush(&*self.device);
        }
        (format!("churn {file:?} {start}+{count}: {}", done.join(", ")), outcome.map(|()| String::new()))
    }

    fn churn_in(&mut self, file: FileId, start: u64, count: u64, done: &mut Vec<&'static str>) -> Result<()> {
        for _ in 0..2 + self.rng.below(5) {
            let lba = start + self.rng.below(count);
            let run = (1 + self.rng.below(4)).min(start + count - lba);
            let volume = self.volume();
            let changed = match self.rng.below(6) {
                0..=1 => {
                    done.push("punch");
                    volume.punch(file, Lba(lba), run).map(|()| {
                        let generation = self.open_generation();
                        self.model.punch(file, lba, run, generation);
                    })
                }
                2 => {
                    done.push("write-back");
                    self.write_back()
                }
                _ => {
                    done.push("write");
                    self.write_run(file, lba, run)
                }
            };
            if let Err(error) = changed {
                return self.refused(error, run).map(drop);
            }
        }
        done.push("flush");
        self.volume().flush()?;
        self.model.flushed();
        Ok(())
    }

    fn write_run(&mut self, file: FileId, lba: u64, count: u64) -> Result<(), VolumeError> {
        let tags: Vec<(u64, Tag)> = (lba..lba + count).map(|lba| (lba, self.tag())).collect();
        let mut blocks = tags.iter().map(|(lba, tag)| (Lba(*lba), tag.block()));
        self.volume().write(file, &mut blocks)?;
        let generation = self.open_generation();
        tags.iter().for_each(|(lba, tag)| self.model.write(file, *lba, *tag, generation));
        Ok(())
    }

    /// Writes so much that the next round of background work assigns the blocks their places,
    /// before any flush.
    fn write_back(&mut self) -> Result<(), VolumeError> {
        let files: Vec<(FileId, u64)> = self
            .model
            .files()
            .filter(|(id, _)| *id != ROOT_DIRECTORY)
            .map(|(id, f)| (id, f.length()))
            .collect();
        for (file, length) in files {
            for lba in (0..length.min(600)).step_by(64) {
                match self.write_run(file, lba, 64.min(length - lba)) {
                    Err(VolumeError::NoSpace) => self.full += 1,
                    other => other?,
                }
            }
        }
        self.volume().background(std::time::Duration::ZERO)
    }

    fn punch(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_lun() else { return ("punch".to_owned(), Ok(String::new())) };
        let length = self.model.file(file).length();
        let start = self.rng.below(length);
        let most = if self.rng.one_in(4) { length } else { 32 };
        let count = (1 + self.rng.below(most)).min(length - start);
        let what = format!("punch {file:?} {start}+{count}");
        let outcome = match self.volume().punch(file, Lba(start), count) {
            Ok(()) => {
                let generation = self.open_generation();
                self.model.punch(file, start, count, generation);
                Ok(String::new())
            }
            Err(error) => self.refused(error, 1),
        };
        (what, outcome)
    }

    fn flush(&mut self) -> (String, Result<String>) {
        let outcome = self.volume().flush().map(|()| self.model.flushed());
        ("flush".to_owned(), outcome.map(|()| String::new()).map_err(Into::into))
    }

    fn read(&mut self, timeline: &mut Timeline) -> (String, Result<String>) {
        let Some(file) = self.pick_file() else { return ("read".to_owned(), Ok(String::new())) };
        let length = self.model.file(file).length();
        let start = self.rng.below(length);
        let count = (1 + self.rng.below(64)).min(length - start);
        let what = format!("= read {file:?} {start}+{count}");
        let outcome = read_active(&self.volume(), file, start, count).and_then(|seen| {
            for (lba, seen) in (start..).zip(seen) {
                let expected = self.model.file(file).tag(lba);
                ensure!(seen == Some(expected), "block {lba} reads {seen:?}, expected {expected:?}");
                timeline.observe(expected.0.to_le_bytes());
            }
            Ok(String::new())
        });
        (what, outcome)
    }

    /// A consistency point of some kind happened: all is durable.
    pub(crate) fn committed(&mut self) {
        let generation = self.volume().status().generation;
        self.model.committed(generation);
    }

    fn consistency_point(&mut self) -> (String, Result<String>) {
        let outcome = self.volume().consistency_point().map(|_| self.committed());
        ("consistency point".to_owned(), outcome.map(|()| String::new()).map_err(Into::into))
    }

    fn background(&mut self) -> (String, Result<String>) {
        let rounds = 1 + self.rng.below(4);
        let volume = self.volume();
        let outcome = (0..rounds).try_for_each(|_| volume.background(std::time::Duration::ZERO));
        (format!("background, {rounds} rounds"), outcome.map(|()| String::new()).map_err(Into::into))
    }

    fn create_snapshot(&mut self) -> (String, Result<String>) {
        if self.snapshots.len() >= self.config.snapshots {
            return self.delete_snapshots();
        }
        let taken = self.snapshots.values().next().map(|s| s.name.clone()).filter(|_| self.rng.one_in(20));
        let name = taken.clone().unwrap_or_else(|| self.name());
        let content = self.model.frozen();
        let what = format!("snapshot {name}");
        self.pending.insert(OWNER, Pending::Snapshot(name.clone()));
        let outcome = match self.volume().create_snapshot(&name) {
            Ok(_) if taken.is_some() => Err(anyhow::anyhow!("a name was given twice")),
            Err(VolumeError::NameTaken) if taken.is_some() => Ok(": taken".to_owned()),
            Ok(snapshot) => {
                self.committed();
                self.snapshots.insert(snapshot.id, SnapshotModel { name, held: false, content });
                Ok(format!(" is {}", snapshot.id))
            }
            Err(error) => Err(error.into()),
        };
        (what, outcome)
    }

    pub(crate) fn delete_snapshots(&mut self) -> (String, Result<String>) {
        let count = 1 + self.rng.below(3);
        let mut ids: Vec<SnapshotId> = (0..count).filter_map(|_| self.pick_snapshot()).collect();
        ids.sort_unstable();
        ids.dedup();
        let what = format!("delete snapshots {ids:?}");
        let held = ids.iter().any(|id| self.snapshots[id].held);
        self.pending.insert(OWNER, Pending::Delete(ids.clone()));
        let outcome = match self.volume().delete_snapshots(&ids) {
            Err(VolumeError::Held(_)) if held => Ok(": held".to_owned()),
            Ok(_) if held => Err(anyhow::anyhow!("a held snapshot was deleted")),
            Ok(freed) => {
                self.committed();
                ids.iter().for_each(|id| drop(self.snapshots.remove(id)));
                Ok(format!(" frees {freed}"))
            }
            Err(error) => Err(error.into()),
        };
        (what, outcome)
    }

    fn rename_snapshot(&mut self) -> (String, Result<String>) {
        let Some(id) = self.pick_snapshot() else { return ("rename".to_owned(), Ok(String::new())) };
        let name = self.name();
        self.pending.insert(OWNER, Pending::Rename(id, name.clone()));
        let outcome = self.volume().rename_snapshot(id, &name).map(|()| {
            self.committed();
            if let Some(snapshot) = self.snapshots.get_mut(&id) {
                snapshot.name.clone_from(&name);
            }
            String::new()
        });
        (format!("rename snapshot {id} to {name}"), outcome.map_err(Into::into))
    }

    fn hold_snapshot(&mut self) -> (String, Result<String>) {
        let Some(id) = self.pick_snapshot() else { return ("hold".to_owned(), Ok(String::new())) };
        let held = !self.snapshots[&id].held;
        self.pending.insert(OWNER, Pending::Hold(id, held));
        let outcome = self.volume().hold_snapshot(id, held).map(|()| {
            self.committed();
            if let Some(snapshot) = self.snapshots.get_mut(&id) {
                snapshot.held = held;
            }
            String::new()
        });
        (format!("{} snapshot {id}", if held { "hold" } else { "release" }), outcome.map_err(Into::into))
    }

    fn rollback(&mut self) -> (String, Result<String>) {
        let Some(id) = self.pick_snapshot() else { return ("rollback".to_owned(), Ok(String::new())) };
        let before = self.model.frozen();
        self.pending.insert(OWNER, Pending::Rollback(id));
        let outcome = match self.volume().rollback(id) {
            Ok(kept) => {
                self.snapshots
                    .insert(kept.id, SnapshotModel { name: kept.name, held: false, content: before });
                self.rolled_back(id, kept.generation).map(|()| {
                    self.committed();
                    format!(", what was there is {}", kept.id)
                })
            }
            Err(error) => Err(error.into()),
        };
        (format!("roll back to {id}"), outcome)
    }

    /// The previous content is kept as of generation `kept`, and the next generation is the
    /// rollback.
    pub(crate) fn rolled_back(&mut self, target: SnapshotId, kept: Generation) -> Result<()> {
        let content = self.snapshots[&target].content.clone();
        self.model.rolled_back(&content, kept, Generation(kept.0 + 1))
    }

    fn create_file(&mut self) -> (String, Result<String>) {
        let directory = self.model.files().all(|(id, _)| id != ROOT_DIRECTORY);
        if self.model.files().count() > self.config.files {
            return self.remove_file();
        }
        let (kind, length) = match directory {
            true => (FileKind::Directory, DIRECTORY_BLOCKS),
            false => (FileKind::Lun, 1 + self.rng.below(self.config.file_blocks)),
        };
        let created = self.volume().compound().create(kind, length * 4096);
        let outcome = match created {
            Ok(id) => {
                let generation = self.open_generation();
                let noted = self.model.create(id, length, !directory, generation);
                noted.and_then(|()| self.maybe_commit()).map(|more| format!(" is {id:?}{more}"))
            }
            Err(error) => self.refused(error, 8),
        };
        (format!("create {kind:?} of {length} blocks"), outcome)
    }

    /// Changes of names and lengths are durable by a consistency point, which most callers ask for
    /// at once.
    fn maybe_commit(&mut self) -> Result<String> {
        if self.rng.one_in(3) {
            return Ok(String::new());
        }
        self.volume().consistency_point()?;
        self.committed();
        Ok(", committed".to_owned())
    }

    fn remove_file(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_lun() else {
            return ("remove".to_owned(), Ok(String::new()));
        };
        let outcome = self.volume().compound().remove(file);
        let outcome = match outcome {
            Ok(()) => {
                let generation = self.open_generation();
                self.model.remove(file, generation);
                self.maybe_commit()
            }
            Err(error) => self.refused(error, 8),
        };
        (format!("remove {file:?}"), outcome)
    }

    fn resize_file(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_lun() else {
            return ("resize".to_owned(), Ok(String::new()));
        };
        let length = 1 + self.rng.below(self.config.file_blocks);
        let outcome = self.volume().compound().resize(file, length * 4096);
        let outcome = match outcome {
            Ok(()) => {
                let generation = self.open_generation();
                self.model.resize(file, length, generation);
                // Blocks cut off by a smaller length must be gone before a flush can make writes
                // there durable.
                self.volume().consistency_point().map(|_| self.committed()).map_err(Into::into)
            }
            Err(error) => self.refused(error, 8).map(drop),
        };
        (format!("resize {file:?} to {length} blocks"), outcome.map(|()| String::new()))
    }

    fn write_directory(&mut self) -> (String, Result<String>) {
        let lba = self.rng.below(DIRECTORY_BLOCKS);
        if self.model.files().all(|(id, _)| id != ROOT_DIRECTORY) {
            return self.create_file();
        }
        let tag = self.tag();
        let outcome = self.volume().compound().write(ROOT_DIRECTORY, Lba(lba), tag.block());
        let outcome = match outcome {
            Ok(()) => {
                let generation = self.open_generation();
                self.model.write(ROOT_DIRECTORY, lba, tag, generation);
                self.maybe_commit()
            }
            Err(error) => self.refused(error, 8),
        };
        (format!("write directory block {lba}"), outcome)
    }

    fn extents(&mut self) -> (String, Result<String>) {
        let Some(file) = self.pick_file() else { return ("extents".to_owned(), Ok(String::new())) };
        let outcome = self.compare_extents(file);
        (format!("= extents of {file:?}"), outcome.map(|()| String::new()))
    }

    fn compare_extents(&mut self, file: FileId) -> Result<()> {
        let length = self.model.file(file).length();
        let start = self.rng.below(length);
        let limit = 1 + self.rng.below(20) as usize;
        let found = self.volume().extents(file, Lba(start), length - start, limit)?;
        ensure!(!found.is_empty() && found.len() <= limit, "{} extents, asked for {limit}", found.len());
        let mut at = start;
        for extent in &found {
            for lba in at..at + extent.count {
                let hole = self.model.file(file).tag(lba) == Tag::ZERO;
                ensure!(hole == extent.hole, "block {lba} of {found:?} from {start}: hole is {hole}");
            }
            at += extent.count;
        }
        if found.len() < limit {
            ensure!(at == length, "extents end at {at} of {length}");
        }
        Ok(())
    }

    fn hold_image(&mut self) -> (String, Result<String>) {
        if self.held.len() >= 2 {
            return self.drop_image();
        }
        if let Some(id) = self.pick_snapshot().filter(|_| self.rng.one_in(2)) {
            let image = self.volume().image(Some(id));
            let outcome = image.map(|image| self.held.push((image, self.snapshots[&id].content.clone())));
            return (format!("open snapshot {id}"), outcome.map(|()| String::new()).map_err(Into::into));
        }
        let volume = self.volume();
        let outcome = volume.consistency_point().and_then(|_| {
            self.committed();
            self.held.push((volume.image(None)?, self.model.frozen()));
            Ok(String::new())
        });
        ("open an image".to_owned(), outcome.map_err(Into::into))
    }

    fn drop_image(&mut self) -> (String, Result<String>) {
        let outcome = self.compare_held().map(|()| String::new());
        if !self.held.is_empty() {
            self.held.remove(0);
        }
        ("= compare and close an image".to_owned(), outcome)
    }

    fn grow(&mut self) -> (String, Result<String>) {
        let blocks = self.blocks + 1 + self.rng.below(512);
        let what = format!("grow to {blocks} blocks");
        if blocks > self.config.blocks_max {
            return (what, Ok(": the device ends there".to_owned()));
        }
        self.pending.insert(OWNER, Pending::Grow(blocks));
        let outcome = match self.volume().grow(blocks) {
            Ok(()) => {
                self.blocks = blocks;
                self.committed();
                Ok(String::new())
            }
            Err(VolumeError::TooManySegments) => Ok(": no more segments".to_owned()),
            Err(error) => Err(error.into()),
        };
        (what, outcome)
    }

    /// The log moves to the other of its two places, or its device fails and it leaves by itself at
    /// the next flush.
    fn move_log(&mut self) -> (String, Result<String>) {
        let [_, part] = parts(&self.device);
        if self.volume().status().log_device.is_some() {
            if self.rng.one_in(2) {
                part.fail_next_operation(DeviceError::OutOfService);
                return ("! the log device fails once".to_owned(), Ok(String::new()));
            }
            let outcome = self.volume().move_log(&LogTarget::Internal).map(|()| self.committed());
            let what = "move the log into the label area".to_owned();
            return (what, outcome.map(|()| String::new()).map_err(Into::into));
        }
        let Some(log) = self.log.clone() else { return ("move the log".to_owned(), Ok(String::new())) };
        // A device that a log has left during a power cut or a failure still has the log's header:
        // an owner clears it.
        let target = LogTarget::Device { device: log.clone(), id: log_id(&mut self.rng) };
        let outcome = log.write_from(0, &[0; 32 * 4096]).map_err(Into::into);
        let outcome = outcome.and_then(|()| self.volume().move_log(&target)).map(|()| self.committed());
        ("move the log to its device".to_owned(), outcome.map(|()| String::new()).map_err(Into::into))
    }

    /// Closes and opens; nothing may have leaked.
    fn reopen(&mut self) -> (String, Result<String>) {
        let outcome = self.close_and_open();
        ("= close and open".to_owned(), outcome.map(|()| String::new()))
    }

    pub(crate) fn close_and_open(&mut self) -> Result<()> {
        self.held.clear();
        let volume = self.volume();
        volume.consistency_point()?;
        self.committed();
        volume.background(std::time::Duration::ZERO)?;
        volume.consistency_point()?;
        let before = volume.status().used;
        volume.close()?;
        ensure!(matches!(volume.flush(), Err(VolumeError::Closed)), "a closed volume takes a flush");
        self.volume = None;
        drop(volume);
        self.volume = Some(self.open()?);
        let after = self.volume().status().used;
        ensure!(before == after, "{before} blocks were in use before closing, {after} are after opening");
        Ok(())
    }

    fn verify(&mut self) -> (String, Result<String>) {
        let outcome = self.compare_all().and_then(|()| self.check());
        ("= compare all, check".to_owned(), outcome.map(|()| String::new()))
    }

    /// Checks everything once more, at the end of a run.
    pub fn finish(&mut self, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        self.device.cut_after(u64::MAX);
        self.compare_all()?;
        self.check()?;
        self.close_and_open()?;
        self.compare_all()?;
        self.check()?;
        // Without snapshots and files nothing stays in use but the maps.
        let held: Vec<SnapshotId> =
            self.snapshots.iter().filter(|(_, s)| s.held).map(|(id, _)| *id).collect();
        for id in held {
            self.volume().hold_snapshot(id, false)?;
        }
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        self.volume().delete_snapshots(&ids)?;
        self.snapshots.clear();
        self.committed();
        self.compare_all()?;
        self.check()?;
        let files: Vec<FileId> = self.model.files().map(|(id, _)| id).collect();
        for file in files {
            self.volume().compound().remove(file)?;
            let generation = self.open_generation();
            self.model.remove(file, generation);
        }
        for _ in 0..64 {
            self.volume().background(std::time::Duration::ZERO)?;
        }
        self.volume().consistency_point()?;
        self.committed();
        let used = self.volume().status().used;
        if used > 24 {
            bail!("{used} blocks are in use although there is nothing in the volume");
        }
        self.check()?;
        self.note(timeline, "= emptied, compared, checked");
        Ok(())
    }
}
