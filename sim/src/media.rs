//! Damaged media: damage is reported, and never served as correct content.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{BLOCK_SIZE, FileId, Lba, Rng, SnapshotId};
use cairn_device::Device;
use cairn_volume::{Finding, Place, Role, VolumeError};

use crate::content::Tag;
use crate::faults;
use crate::tally::{Fate, Fault, Tally};
use crate::timeline::Timeline;
use crate::world::{Config, World};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A life without cuts, then damage: one block at random, a superblock slot, a record of the log.
pub fn run(seed: u64, timeline: &mut Timeline, config: Config, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x006d_6564_6961);
    let mut world = World::new("vol", &mut rng, Config { cut_every: 0, ..config }, Role::Normal)?;
    for _ in 0..60 + rng.below(60) {
        world.live(timeline)?;
    }
    let fault = Fault::ALL[(seed % Fault::ALL.len() as u64) as usize];
    match fault {
        Fault::Rot => damaged_block(&mut world, &mut rng, timeline, tally)?,
        Fault::RotInSlot => {
            damaged_slot(&mut world, &mut rng, timeline)?;
            tally.fault(fault, Fate::Survived);
        }
        Fault::RotInLog => damaged_log(&mut world, &mut rng, timeline, tally)?,
        _ => faults::run(&mut world, fault, &mut rng, timeline, tally)?,
    }
    world.count(tally);
    Ok(())
}

/// Reopens the durable content, with an empty cache.
fn power_cycle(world: &mut World) -> Result<(), VolumeError> {
    world.held.clear();
    world.volume = None;
    world.power_cycle();
    world.volume = Some(world.open()?);
    Ok(())
}

fn damaged_block(world: &mut World, rng: &mut Rng, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    world.close_and_open()?;
    let space =
        world.device.geometry().length / BLOCK - world.blocks.min(world.device.geometry().length / BLOCK);
    let mut damaged = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let block = space.min(512) + rng.below(world.blocks);
        world.device.corrupt(block * BLOCK, BLOCK, rng);
        damaged.push(block);
    }
    world.note(timeline, &format!("! blocks {damaged:?} of the device rot"));
    match power_cycle(world) {
        Ok(()) => {}
        Err(VolumeError::InodesLost(reason)) => {
            timeline.observe(reason.to_string().bytes());
            world.note(timeline, &format!("= no changes are taken: {reason}"));
            tally.fault(Fault::Rot, Fate::Refused);
            return Ok(());
        }
        Err(error) => return Err(error).context("opening a volume with damaged blocks"),
    }
    let mut refused = 0;
    let volume = world.volume();
    let files: Vec<_> = world.model.files().map(|(id, file)| (id, file.length())).collect();
    for (file, length) in files {
        for lba in 0..length {
            match crate::world::read_active(&volume, file, lba, 1) {
                Ok(seen) => {
                    let expected = world.model.file(file).tag(lba);
                    ensure!(seen == [Some(expected)], "wrong bytes were served: {file:?} {lba}: {seen:?}");
                }
                Err(_) => refused += 1,
            }
        }
    }
    let ids: Vec<SnapshotId> = world.snapshots.keys().copied().collect();
    for id in ids {
        let image = volume.image(Some(id))?;
        let content = world.snapshots[&id].content.clone();
        for (file, expected) in &content.files {
            for lba in 0..expected.blocks {
                let mut reads = [cairn_volume::BlockRead::new(cairn_base::Lba(lba), 1)];
                image.read(*file, &mut reads, true);
                let [read] = reads;
                match read.outcome {
                    Some(Ok(bytes)) => {
                        let seen = Tag::of(&bytes.to_vec());
                        ensure!(
                            seen == Some(expected.tag(lba)),
                            "snapshot {id} serves wrong bytes: {seen:?}"
                        );
                    }
                    Some(Err(_)) => refused += 1,
                    None => bail!("a read that may wait has no outcome"),
                }
            }
        }
    }
    let found = volume.check(&mut |_| {}).map(|report| report.findings);
    let findings = found.as_ref().map_or(1, Vec::len);
    ensure!(refused == 0 || findings > 0, "{refused} reads were refused and check found nothing");
    world.note(timeline, &format!("= {refused} reads refused, none wrong, check has {findings} findings"));
    tally.fault(Fault::Rot, if refused == 0 && findings == 0 { Fate::Survived } else { Fate::Reported });
    let of_one_file = |finding: &Finding| match finding {
        Finding::DamagedBlock { place: Place::Data { file, .. }, .. } => *file,
        Finding::DamagedBlock { place: Place::Node(node), .. } => node.file,
        _ => FileId(u64::MAX),
    };
    let is_shared = |file: FileId| !world.model.files().any(|(id, _)| id == file);
    if found.is_ok_and(|found| !found.iter().map(of_one_file).any(is_shared)) {
        write_under_damage(world, rng, timeline)?;
    }
    Ok(())
}

/// Damage under files only: each write is accepted or refused for its own damage, and accepted ones
/// are committed and present.
fn write_under_damage(world: &mut World, rng: &mut Rng, timeline: &mut Timeline) -> Result<()> {
    let volume = world.volume();
    let files: Vec<_> = world.model.files().map(|(id, file)| (id, file.length())).collect();
    let (mut taken, mut refused) = (BTreeMap::new(), 0);
    for _ in 0..40 {
        let (file, length) = files[rng.below(files.len() as u64) as usize];
        let (lba, tag) = (rng.below(length), world.tag());
        match volume.write(file, &mut std::iter::once((Lba(lba), tag.block()))) {
            Ok(()) => {
                taken.insert((file, lba), tag);
            }
            Err(VolumeError::Damaged { .. }) => refused += 1,
            Err(VolumeError::NoSpace) => {}
            Err(error) => return Err(error).context("writing to a volume with a damaged file"),
        }
    }
    volume.flush().context("flushing a volume with a damaged file")?;
    volume.consistency_point().context("committing a volume with a damaged file")?;
    for ((file, lba), tag) in &taken {
        let seen = crate::world::read_active(&volume, *file, *lba, 1)?;
        ensure!(seen == [Some(*tag)], "{file:?} {lba} was written and reads as {seen:?}");
    }
    world.note(timeline, &format!("= {} blocks written beside the damage, {refused} refused", taken.len()));
    Ok(())
}

fn damaged_slot(world: &mut World, rng: &mut Rng, timeline: &mut Timeline) -> Result<()> {
    let slot = 16 * rng.below(2);
    world.volume().consistency_point()?;
    world.committed();
    world.device.corrupt(slot * BLOCK + rng.below(8) * 512, 512, rng);
    let report = world.volume().check(&mut |_| {})?;
    let expected = Finding::SuperblockSlot { address: slot };
    ensure!(report.findings == [expected], "check finds {:?}", report.findings);
    power_cycle(world).context("opening with one slot")?;
    world.note(timeline, &format!("! the slot at block {slot} was damaged, the other one served"));
    world.compare_all()?;
    world.check()
}

fn damaged_log(world: &mut World, rng: &mut Rng, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    world.volume().consistency_point()?;
    world.committed();
    for _ in 0..200 {
        if world.pick_lun().is_some() {
            break;
        }
        world.live(timeline)?;
    }
    world.volume().consistency_point()?;
    world.committed();
    // A volume that snapshots fill takes no new file.
    let Some(file) = world.pick_lun() else { return Ok(()) };
    let length = world.model.file(file).length();
    // At least three flushes: damage before the last record is damage before the end.
    let mut records = Vec::new();
    let began = world.volume().status().generation;
    for _ in 0..3 + rng.below(4) {
        let lba = rng.below(length);
        let tag = world.tag();
        world.device.take_log();
        let mut one = std::iter::once((cairn_base::Lba(lba), tag.block()));
        match world.volume().write(file, &mut one) {
            Ok(()) => {}
            Err(VolumeError::NoSpace) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let generation = world.open_generation();
        world.model.write(file, lba, tag, generation);
        world.device.take_log();
        let before = world.volume().status().log_used;
        world.volume().flush()?;
        world.model.flushed();
        // A volume with little room makes a consistency point for a write, and the earlier records
        // are not needed.
        let status = world.volume().status();
        if status.log_used <= before || status.generation != began {
            return Ok(());
        }
        let writes = world.device.take_log();
        // The record is the write below the block space, where the label area is, or the one after
        // it, on the log device.
        let of_log_device = world.volume().status().log_device.is_some();
        let Some(record) = writes
            .iter()
            .filter(|write| write.length > 0)
            .min_by_key(|write| if of_log_device { u64::MAX - write.offset } else { write.offset })
        else {
            bail!("a flush wrote nothing");
        };
        records.push(record.offset);
    }
    let victim = rng.below(records.len() as u64 - 1) as usize;
    world.device.corrupt(records[victim], 512, rng);
    match power_cycle(world) {
        Err(VolumeError::LogDamaged { sequence }) => {
            tally.fault(Fault::RotInLog, Fate::Refused);
            timeline.observe(sequence.to_le_bytes());
            world.note(
                timeline,
                &format!("! record {victim} of {} was damaged; opening says so", records.len()),
            );
            Ok(())
        }
        Ok(()) => {
            bail!("record {victim} of {} was damaged, and the volume opened as if it were not", records.len())
        }
        Err(error) => Err(error).context("opening with a damaged log"),
    }
}
