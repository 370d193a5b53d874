//! A group: some volumes of one server, their snapshots at one instant, a mirror of each, and a
//! failover of all of them to an instant that all have.
//!
//! Clients write to one volume after the other, and wait for each answer. Snapshots of a group that
//! exist under one name in every volume show an instant: of each client everything up to some
//! write, in all of the volumes, and nothing after it. The power fails for all the volumes of a
//! server at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{FileId, Lba, Rng, SnapshotId};
use cairn_device::{Device, FaultDevice};
use cairn_format::FileKind;
use cairn_volume::{Image, Volume, VolumeError};
use parking_lot::Mutex;

use super::{Pair, With};
use crate::content::Tag;
use crate::link::Mishap;
use crate::tally::Tally;
use crate::tasks::{Tasks, Turn};
use crate::timeline::Timeline;
use crate::world::{Config, OWNER, Pending, SnapshotModel, World, read_image};

/// Blocks of each client in each volume.
const STRETCH: u64 = 6;
/// The power fails at one of this many operations of a round.
const ROUND_OPERATIONS: u64 = 120;

/// A write that has its answer, or had none when the power went.
#[derive(Clone, Copy)]
struct Written {
    volume: usize,
    lba: u64,
    tag: Tag,
}

/// The volumes of a group with their mirrors.
struct Group {
    members: Vec<Pair>,
    /// The file of each that clients write to.
    files: Vec<FileId>,
    /// The writes of each client, in order.
    clients: Vec<Vec<Written>>,
    names: u64,
    /// Requested names of snapshots of the group, made or not.
    asked: BTreeSet<String>,
}

impl Group {
    fn new(rng: &mut Rng) -> Result<Self> {
        let config = Config {
            blocks: 1024,
            blocks_max: 1024,
            files: 1,
            file_blocks: 64,
            snapshots: 12,
            log_device: rng.one_in(4),
            cut_every: 0,
        };
        let clients = vec![Vec::new(); 1 + rng.below(3) as usize];
        let (mut members, mut files) = (Vec::new(), Vec::new());
        for _ in 0..2 + rng.below(2) {
            let mut pair = Pair::new(rng, config)?;
            let volume = pair.source.volume();
            let blocks = STRETCH * clients.len() as u64;
            let file = volume.compound().create(FileKind::Lun, blocks * 4096)?;
            let generation = pair.source.open_generation();
            pair.source.model.create(file, blocks, true, generation)?;
            volume.consistency_point()?;
            pair.source.committed();
            members.push(pair);
            files.push(file);
        }
        Ok(Self { members, files, clients, names: 0, asked: BTreeSet::new() })
    }

    /// Clients at work in all volumes, and snapshots of the group meanwhile.
    fn round(&mut self, rng: &mut Rng, timeline: &mut Timeline) -> Result<()> {
        timeline.step();
        let volumes: Vec<Arc<Volume>> = self.members.iter().map(|pair| pair.source.volume()).collect();
        let devices: Vec<_> = self.members.iter().map(|pair| pair.source.device.clone()).collect();
        for pair in &mut self.members {
            pair.source.pending.clear();
        }
        let names: Vec<String> = (0..1 + rng.below(2)).map(|n| format!("group.{}", self.names + n)).collect();
        self.names += names.len() as u64;
        self.asked.extend(names.iter().cloned());
        let failed: Mutex<Vec<anyhow::Error>> = Mutex::default();
        let made: Mutex<Vec<(String, Vec<cairn_volume::Snapshot>)>> = Mutex::default();
        {
            let members = Mutex::new(&mut self.members);
            let files = &self.files;
            let mut tasks = Tasks::default();
            for (number, written) in self.clients.iter_mut().enumerate() {
                let mut rng = rng.fork();
                let (volumes, members, devices, failed) = (&volumes, &members, &devices, &failed);
                tasks.spawn(move || {
                    for _ in 0..2 + rng.below(14) {
                        let at = rng.below(volumes.len() as u64) as usize;
                        let lba = number as u64 * STRETCH + rng.below(STRETCH);
                        let tag = members.lock()[at].source.tag();
                        let mut one = std::iter::once((Lba(lba), tag.block()));
                        match volumes[at].write(files[at], &mut one) {
                            Ok(()) => {
                                let generation = volumes[at].open_generation();
                                members.lock()[at].source.model.write(files[at], lba, tag, generation);
                                written.push(Written { volume: at, lba, tag });
                            }
                            Err(_) if devices.iter().any(|device| device.is_off()) => return,
                            Err(VolumeError::NoSpace) => {}
                            Err(error) => return failed.lock().push(error.into()),
                        }
                        crate::tasks::switch();
                    }
                });
            }
            {
                let (volumes, members, devices, failed) = (&volumes, &members, &devices, &failed);
                let (made, mut rng) = (&made, rng.fork());
                let names = names.clone();
                tasks.spawn(move || {
                    for name in names {
                        for _ in 0..rng.below(12) {
                            crate::tasks::switch();
                        }
                        for pair in members.lock().iter_mut() {
                            pair.source.pending.insert(OWNER, Pending::Snapshot(name.clone()));
                        }
                        let outcome = Volume::snapshot_together(volumes, &name);
                        if devices.iter().any(|device| device.is_off()) {
                            return;
                        }
                        for pair in members.lock().iter_mut() {
                            pair.source.pending.clear();
                        }
                        match outcome {
                            Ok(snapshots) => {
                                for (pair, snapshot) in members.lock().iter_mut().zip(&snapshots) {
                                    let content = pair.source.model.frozen_at(snapshot.generation);
                                    let model = SnapshotModel { name: name.clone(), held: false, content };
                                    pair.source.model.durable(snapshot.generation);
                                    pair.source.snapshots.insert(snapshot.id, model);
                                }
                                made.lock().push((name, snapshots));
                            }
                            Err((_, VolumeError::NoSpace | VolumeError::TableFull)) => {}
                            Err((_, error)) => return failed.lock().push(error.into()),
                        }
                    }
                });
            }
            take_turns(&mut tasks, rng, &devices)?;
        }
        if let Some(error) = failed.into_inner().pop() {
            return Err(error).context("in a group");
        }
        let was_cut = devices.iter().any(|device| device.is_off());
        drop(volumes);
        for pair in &mut self.members {
            pair.source.end_round(timeline)?;
        }
        for (name, _) in made.into_inner() {
            let there = self.snapshots_of(&name, false);
            ensure!(there.len() == self.members.len(), "{name} was made, and is in {} volumes", there.len());
        }
        self.look(false).context("at the sources")?;
        if was_cut {
            // The present content of the clients' blocks is one of the possible states: they start
            // anew from it.
            self.begin_anew(timeline)?;
        }
        Ok(())
    }

    /// After a cut the volumes are of different times, block by block. Clients write all their
    /// blocks again, so that later checks see only their writes.
    fn begin_anew(&mut self, timeline: &mut Timeline) -> Result<()> {
        for (number, written) in self.clients.iter_mut().enumerate() {
            for (at, pair) in self.members.iter_mut().enumerate() {
                for lba in (0..STRETCH).map(|lba| number as u64 * STRETCH + lba) {
                    let tag = pair.source.tag();
                    let file = self.files[at];
                    pair.source.volume().write(file, &mut std::iter::once((Lba(lba), tag.block())))?;
                    let generation = pair.source.open_generation();
                    pair.source.model.write(file, lba, tag, generation);
                    written.push(Written { volume: at, lba, tag });
                }
            }
        }
        for pair in &mut self.members {
            pair.source.volume().consistency_point()?;
            pair.source.committed();
            pair.source.note(timeline, "all blocks of clients written again");
        }
        Ok(())
    }

    fn volume_of(pair: &Pair, mirror: bool) -> Arc<Volume> {
        if mirror { pair.destination.volume() } else { pair.source.volume() }
    }

    /// The snapshots of that name, of the volumes that have one.
    fn snapshots_of(&self, name: &str, mirror: bool) -> Vec<SnapshotId> {
        let of = |pair: &Pair| {
            let all = Self::volume_of(pair, mirror).snapshots();
            all.into_iter().find(|s| s.name == name).map(|s| s.id)
        };
        self.members.iter().filter_map(of).collect()
    }

    /// Those that all of the volumes have, on one side.
    fn common(&self, mirror: bool) -> Vec<String> {
        let is_there = |name: &&String| self.snapshots_of(name, mirror).len() == self.members.len();
        self.asked.iter().filter(is_there).cloned().collect()
    }

    /// Every snapshot of the group that all volumes have shows an instant.
    fn look(&self, mirror: bool) -> Result<()> {
        for name in self.common(mirror) {
            let ids = self.snapshots_of(&name, mirror);
            let images: Vec<Image> = self
                .members
                .iter()
                .zip(ids)
                .map(|(pair, id)| Self::volume_of(pair, mirror).image(Some(id)))
                .collect::<Result<_, _>>()?;
            self.is_instant(&images).with_context(|| format!("in {name}"))?;
        }
        Ok(())
    }

    /// Of each client everything up to some write is present, in all of the images.
    fn is_instant(&self, images: &[Image]) -> Result<()> {
        let blocks = STRETCH * self.clients.len() as u64;
        let seen: Vec<Vec<Option<Tag>>> = images
            .iter()
            .zip(&self.files)
            .map(|(image, file)| read_image(image, *file, blocks))
            .collect::<Result<_>>()?;
        for (number, written) in self.clients.iter().enumerate() {
            // Every volume counts its tags from one.
            let order: BTreeMap<(usize, Tag), usize> =
                written.iter().enumerate().map(|(at, written)| ((written.volume, written.tag), at)).collect();
            let own = number as u64 * STRETCH..(number as u64 + 1) * STRETCH;
            let mut last = None;
            for (at, seen) in seen.iter().enumerate() {
                for lba in own.clone() {
                    let tag =
                        seen[lba as usize].with_context(|| format!("volume {at} block {lba} is torn"))?;
                    let place = order.get(&(at, tag)).copied();
                    // A write that had no answer yet follows all that had one, and no write of its
                    // client follows it.
                    last = last.max(place);
                }
            }
            let mut expected: BTreeMap<(usize, u64), Tag> = BTreeMap::new();
            for written in &written[..last.map_or(0, |last| last + 1)] {
                expected.insert((written.volume, written.lba), written.tag);
            }
            let mut unanswered = 0;
            for (at, seen) in seen.iter().enumerate() {
                for lba in own.clone() {
                    let tag = seen[lba as usize].unwrap_or_default();
                    let wanted = expected.get(&(at, lba)).copied().unwrap_or_default();
                    if tag == wanted {
                        continue;
                    }
                    // The power failed before its answer came: it is in no list. There is at most
                    // one of a client in a life of the server.
                    ensure!(
                        tag != Tag::ZERO && !order.contains_key(&(at, tag)) && unanswered == 0,
                        "client {number} wrote {wanted:?} to block {lba} of volume {at} before something that is shown, and {tag:?} is there"
                    );
                    unanswered += 1;
                }
            }
        }
        Ok(())
    }

    /// All mirrors follow, as well as they can.
    fn mirror(&mut self, rng: &mut Rng, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
        for pair in &mut self.members {
            let mut with = With::default();
            if rng.one_in(4) {
                with.mishap = Some((rng.below(30), Mishap::ALL[rng.below(6) as usize]));
                tally.mishaps += 1;
            }
            if rng.one_in(4) {
                pair.destination.arm_cut(40);
            }
            tally.messages += pair.transfer(timeline, with)?.1;
            pair.destination.device.cut_after(u64::MAX);
        }
        self.look(true).context("at the mirrors")
    }

    /// The sources are lost. All mirrors are brought to the newest instant that they have, and the
    /// power may go meanwhile.
    fn fail_over(self, rng: &mut Rng, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
        let number = |name: &String| name.trim_start_matches("group.").parse::<u64>().unwrap_or_default();
        let Some(name) = self.common(true).into_iter().max_by_key(number) else { return Ok(()) };
        self.members.iter().for_each(|pair| pair.count(tally));
        let Group { members, files, clients, .. } = self;
        let worlds: Vec<World> =
            members.into_iter().map(|pair| pair.fail_over(timeline)).collect::<Result<_>>()?;
        let mut rolled = Vec::new();
        for mut world in worlds {
            world.cuts = 0;
            let is_it = |(_, s): &(&SnapshotId, &SnapshotModel)| s.name == name;
            let (id, content) = world
                .snapshots
                .iter()
                .find(is_it)
                .map(|(id, s)| (*id, s.content.clone()))
                .with_context(|| format!("{name} is gone after the failover"))?;
            if rng.one_in(2) {
                world.arm_cut(20);
            }
            // As often as it takes: a rollback that a cut caught may have been done, and doing it
            // again changes nothing.
            loop {
                world.pending.clear();
                world.pending.insert(OWNER, Pending::Rollback(id));
                let outcome = world.volume().rollback(id);
                if !world.device.is_off() {
                    let kept = outcome.context("a rollback of a group")?;
                    world.pending.clear();
                    let before = world.model.frozen();
                    let model = SnapshotModel { name: kept.name, held: false, content: before };
                    world.snapshots.insert(kept.id, model);
                    world.rolled_back(id, kept.generation)?;
                    world.committed();
                    break;
                }
                world.recover(timeline, true)?;
            }
            world.device.cut_after(u64::MAX);
            ensure!(world.model.frozen().files == content.files, "{name} is not what was rolled back to");
            world.compare_all()?;
            rolled.push(world);
        }
        let images: Vec<Image> =
            rolled.iter().map(|world| world.volume().image(None)).collect::<Result<_, _>>()?;
        let group = Group { members: Vec::new(), files, clients, names: 0, asked: BTreeSet::new() };
        group.is_instant(&images).context("after a failover of the group")?;
        for mut world in rolled {
            world.note(timeline, &format!("= shows {name}"));
            world.finish(timeline)?;
            world.count(tally);
        }
        Ok(())
    }
}

/// A group lives for a while, and fails over.
pub fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x0067_726f_7570);
    let mut group = Group::new(&mut rng)?;
    for _ in 0..2 + rng.below(5) {
        if rng.one_in(2) {
            let number = rng.below(group.members.len() as u64) as usize;
            group.members[number].source.arm_cut(ROUND_OPERATIONS);
        }
        group.round(&mut rng, timeline)?;
        group.members.iter().for_each(|pair| pair.source.device.cut_after(u64::MAX));
        if rng.one_in(2) {
            group.mirror(&mut rng, timeline, tally)?;
        }
    }
    for pair in &mut group.members {
        pair.transfer(timeline, With::default())?;
    }
    group.look(true).context("at the mirrors")?;
    group.fail_over(&mut rng, timeline, tally)
}

/// A round of a group, once for every device operation of one of its volumes, with a cut there.
pub fn every_cut(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let operations = short_life(seed, None, timeline, tally)?;
    for cut in 0..operations {
        let mut scratch = Timeline::new(false);
        let outcome = short_life(seed, Some(cut), &mut scratch, tally);
        timeline.observe(scratch.digest().to_le_bytes());
        outcome.with_context(|| {
            let recent: Vec<&str> = scratch.recent().collect();
            format!("with a cut at operation {cut} of {operations}\n{}", recent.join("\n"))
        })?;
        tally.points += 1;
    }
    Ok(())
}

/// How many operations the device of one of the volumes had in the round in which the power may go.
fn short_life(seed: u64, cut: Option<u64>, timeline: &mut Timeline, tally: &mut Tally) -> Result<u64> {
    let mut rng = Rng::new(seed ^ 0x6367_726f_7570);
    let mut group = Group::new(&mut rng)?;
    group.round(&mut rng, timeline)?;
    let victim = (seed % group.members.len() as u64) as usize;
    let device = group.members[victim].source.device.clone();
    let before = device.operations();
    if let Some(cut) = cut {
        device.cut_after(cut);
    }
    group.round(&mut rng, timeline)?;
    let after = device.operations();
    group.members.iter().for_each(|pair| pair.source.device.cut_after(u64::MAX));
    for pair in &mut group.members {
        pair.transfer(timeline, With::default())?;
    }
    group.look(true)?;
    group.members.iter().for_each(|pair| pair.count(tally));
    Ok(after - before)
}

/// Runs all tasks until they are done. If some of the devices have lost power the others lose it
/// too.
fn take_turns(tasks: &mut Tasks<'_>, rng: &mut Rng, devices: &[Arc<FaultDevice>]) -> Result<()> {
    loop {
        match tasks.turn(rng) {
            Turn::Ran => {}
            Turn::Done => return Ok(()),
            Turn::Stuck => {
                tasks.ask();
                bail!("every task of a group waits for another one, see above");
            }
        }
        let on = devices.iter().filter(|device| !device.is_off()).count();
        if (1..devices.len()).contains(&on) {
            for device in devices.iter().filter(|device| !device.is_off()) {
                device.cut_after(0);
                let _ = device.flush();
            }
            tasks.wake();
        }
    }
}
