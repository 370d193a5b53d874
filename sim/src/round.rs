//! A round: several clients, owners and the background work of one volume at the same time, as
//! tasks that take turns at every device operation and lock. The power may go at any of those, or
//! be tried at each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, bail, ensure};
use cairn_base::{FileId, Lba, Rng, SnapshotId};
use cairn_volume::{ROOT_DIRECTORY, Volume, VolumeError};
use parking_lot::Mutex;

use crate::content::Tag;
use crate::forks::Forks;
use crate::tasks::{Tasks, Turn};
use crate::timeline::Timeline;
use crate::world::{World, read_active, set_clock};

/// The members of a round, and how much each does.
#[derive(Debug, Clone, Copy)]
pub struct Crew {
    /// Clients that write, punch, flush and read.
    pub clients: usize,
    /// Owners that make, delete and rename snapshots, roll back, grow, check.
    pub owners: usize,
    /// Actions of each.
    pub actions: u64,
}

/// State shared by the tasks of a round.
pub struct Floor<'w> {
    pub world: Mutex<&'w mut World>,
    pub timeline: Mutex<&'w mut Timeline>,
    failures: Mutex<Vec<Error>>,
    /// Files that clients are at, and how many.
    pub(crate) in_use: Mutex<BTreeMap<FileId, u64>>,
    /// Files that are being removed, and snapshots that an owner is at.
    pub(crate) leaving: Mutex<BTreeSet<FileId>>,
    pub(crate) claimed: Mutex<BTreeSet<SnapshotId>>,
    /// The number of rollbacks that began or ended: the result of a read during one is not
    /// predicted.
    pub(crate) rollbacks: Mutex<u64>,
}

impl<'w> Floor<'w> {
    pub fn new(world: &'w mut World, timeline: &'w mut Timeline) -> Self {
        Self {
            world: Mutex::new(world),
            timeline: Mutex::new(timeline),
            failures: Mutex::default(),
            in_use: Mutex::default(),
            leaving: Mutex::default(),
            claimed: Mutex::default(),
            rollbacks: Mutex::default(),
        }
    }

    /// Adds the crew's tasks.
    pub fn hire<'a>(&'a self, tasks: &mut Tasks<'a>, rng: &mut Rng, crew: Crew) {
        for number in 0..crew.clients {
            let rng = rng.fork();
            tasks.spawn(move || self.work(rng, crew.actions, &|rng| self.client(number, rng)));
        }
        for number in 0..crew.owners {
            let rng = rng.fork();
            tasks.spawn(move || self.work(rng, crew.actions, &|rng| self.owner(number, rng)));
        }
        let rng = rng.fork();
        tasks.spawn(move || self.work(rng, crew.actions, &|rng| self.background(rng)));
    }

    fn work(&self, mut rng: Rng, actions: u64, action: &dyn Fn(&mut Rng) -> Result<String>) {
        for _ in 0..actions {
            if self.is_off() || !self.failures.lock().is_empty() {
                return;
            }
            self.timeline.lock().step();
            let outcome = action(&mut rng);
            if self.is_off() {
                return;
            }
            match outcome {
                Ok(what) if what.is_empty() => {}
                Ok(what) => self.note(&what),
                Err(error) => {
                    self.note(&format!("{error:#}"));
                    self.failures.lock().push(error);
                }
            }
            crate::tasks::switch();
        }
    }

    pub fn is_off(&self) -> bool {
        self.world.lock().device.is_off()
    }

    pub fn note(&self, what: &str) {
        let world = self.world.lock();
        // Not the whole status: another task may hold the log.
        self.timeline.lock().note(world.side, world.standing_in_round(), what);
    }

    /// To be called after every turn of a task.
    pub fn after_turn(&self, forks: Option<&mut Forks>) -> Result<()> {
        let mut world = self.world.lock();
        if !world.device.is_off() {
            world.observe()?;
        }
        if let Some(error) = self.failures.lock().pop() {
            return Err(error);
        }
        match forks {
            Some(forks) => forks.try_all(&mut world, &mut self.timeline.lock()),
            None => Ok(()),
        }
    }

    pub(crate) fn volume(&self) -> Arc<Volume> {
        self.world.lock().volume()
    }

    /// Picks a file for a client and keeps it from being removed.
    fn enter(&self, rng: &mut Rng) -> Option<(Arc<Volume>, FileId, u64)> {
        let world = self.world.lock();
        let leaving = self.leaving.lock();
        let files: Vec<(FileId, u64)> = world
            .model
            .files()
            .filter(|(id, _)| *id != ROOT_DIRECTORY && !leaving.contains(id))
            .map(|(id, file)| (id, file.length()))
            .collect();
        let (file, length) = *files.get(rng.below(files.len().max(1) as u64) as usize)?;
        *self.in_use.lock().entry(file).or_default() += 1;
        Some((world.volume(), file, length))
    }

    fn leave(&self, file: FileId) {
        if let Some(count) = self.in_use.lock().get_mut(&file) {
            *count -= 1;
        }
    }

    fn client(&self, number: usize, rng: &mut Rng) -> Result<String> {
        let Some((volume, file, length)) = self.enter(rng) else { return Ok(String::new()) };
        let start = rng.below(length);
        let most = if rng.one_in(8) { 64 } else { 6 };
        let count = (1 + rng.below(most)).min(length - start);
        let who = format!("client {number}");
        let done = match rng.below(100) {
            0..=44 => self
                .write(&volume, file, start, count)
                .map(|full| format!("{who}: write {file:?} {start}+{count}{full}")),
            45..=54 => self
                .punch(&volume, file, start, count)
                .map(|full| format!("{who}: punch {file:?} {start}+{count}{full}")),
            55..=76 => self.flush(&volume).map(|order| format!("{who}: flush of the first {order} writes")),
            _ => self
                .read(&volume, file, start, count)
                .map(|()| format!("= {who}: read {file:?} {start}+{count}")),
        };
        self.leave(file);
        match done {
            // It was made after a rollback had begun, and is not in the restored state.
            Err(error)
                if is_no_file(&error, file) && self.world.lock().model.files().all(|(id, _)| id != file) =>
            {
                Ok(format!("{who}: {file:?} is gone with a rollback"))
            }
            done => done,
        }
    }

    fn write(&self, volume: &Arc<Volume>, file: FileId, start: u64, count: u64) -> Result<&'static str> {
        let tags: Vec<(u64, Tag)> = {
            let mut world = self.world.lock();
            (start..start + count).map(|lba| (lba, world.tag())).collect()
        };
        let mut blocks = tags.iter().map(|(lba, tag)| (Lba(*lba), tag.block()));
        match volume.write(file, &mut blocks) {
            Ok(()) => {
                let generation = volume.open_generation();
                let mut world = self.world.lock();
                tags.iter().for_each(|(lba, tag)| world.model.write(file, *lba, *tag, generation));
                Ok("")
            }
            Err(error) => self.full(error),
        }
    }

    /// A full volume reports it, and nothing else happens.
    fn full(&self, error: VolumeError) -> Result<&'static str> {
        match error {
            VolumeError::NoSpace => {
                self.world.lock().full += 1;
                Ok(": full")
            }
            other => Err(other.into()),
        }
    }

    fn punch(&self, volume: &Arc<Volume>, file: FileId, start: u64, count: u64) -> Result<&'static str> {
        match volume.punch(file, Lba(start), count) {
            Ok(()) => {
                let generation = volume.open_generation();
                self.world.lock().model.punch(file, start, count, generation);
                Ok("")
            }
            Err(error) => self.full(error),
        }
    }

    fn flush(&self, volume: &Arc<Volume>) -> Result<u64> {
        let order = self.world.lock().model.order();
        volume.flush()?;
        self.world.lock().model.flushed_through(order);
        Ok(order)
    }

    fn read(&self, volume: &Arc<Volume>, file: FileId, start: u64, count: u64) -> Result<()> {
        let (order, rollbacks) = (self.world.lock().model.order(), *self.rollbacks.lock());
        let seen = read_active(volume, file, start, count)?;
        if rollbacks % 2 == 1 || rollbacks != *self.rollbacks.lock() {
            return Ok(());
        }
        let world = self.world.lock();
        for (lba, seen) in (start..).zip(seen) {
            let allowed = world.model.file(file).tags_since(lba, order);
            ensure!(
                seen.is_some_and(|seen| allowed.contains(&seen)),
                "block {lba} of {file:?} reads {seen:?}, allowed is {allowed:?}"
            );
            self.timeline.lock().observe(seen.unwrap_or_default().0.to_le_bytes());
        }
        Ok(())
    }

    fn background(&self, rng: &mut Rng) -> Result<String> {
        if rng.one_in(2) {
            let step = Duration::from_millis(rng.below(3000));
            let world = self.world.lock();
            world.clock.advance(step);
            if rng.one_in(8) {
                set_clock(&world.clock, rng);
            }
            return Ok(String::new());
        }
        self.volume().background(Duration::ZERO)?;
        Ok("background".to_owned())
    }
}

fn is_no_file(error: &Error, file: FileId) -> bool {
    matches!(error.downcast_ref(), Some(VolumeError::NoSuchFile(gone)) if *gone == file)
}

impl World {
    /// One round. `forks` tries a cut at every moment of it; one that was armed before really
    /// happens.
    pub fn round(
        &mut self,
        timeline: &mut Timeline,
        crew: Crew,
        mut forks: Option<&mut Forks<'_>>,
    ) -> Result<()> {
        let mut rng = self.rng.fork();
        self.pending.clear();
        self.free_before = self.volume().status().free;
        self.watch(forks.is_some());
        {
            let floor = Floor::new(self, timeline);
            let mut tasks = Tasks::default();
            floor.hire(&mut tasks, &mut rng, crew);
            loop {
                match tasks.turn(&mut rng) {
                    Turn::Ran => floor.after_turn(forks.as_deref_mut())?,
                    Turn::Stuck => {
                        tasks.ask();
                        bail!("every task waits for another one, see above");
                    }
                    Turn::Done => break,
                }
            }
        }
        self.end_round(timeline)
    }

    /// No operation is in progress any more.
    pub(crate) fn end_round(&mut self, timeline: &mut Timeline) -> Result<()> {
        if self.device.is_off() {
            self.note(timeline, "! power cut");
            return self.recover(timeline, true);
        }
        self.watch(false);
        self.pending.clear();
        self.committed();
        Ok(())
    }
}
