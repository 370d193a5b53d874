//! Faults of the media beyond damaged blocks: tables, lost and misdirected writes, errors. Each is
//! survived, reported or refused; no wrong content is ever served.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{Lba, Rng, SnapshotId};
use cairn_device::{Action, Device, DeviceError};
use cairn_volume::{BlockRead, Health, VolumeError};

use crate::content::Tag;
use crate::tally::{Fate, Fault, Tally};
use crate::timeline::Timeline;
use crate::world::{World, read_active};

const BLOCK: u64 = 4096;
/// Where the tables of a small volume are, in blocks.
const TABLES: std::ops::Range<u64> = 32..288;

/// Damages a volume at rest or at work in one of the ways, and checks everything afterwards.
pub fn run(
    world: &mut World,
    fault: Fault,
    rng: &mut Rng,
    timeline: &mut Timeline,
    tally: &mut Tally,
) -> Result<()> {
    world.close_and_open()?;
    world.held.clear();
    let fate = match fault {
        Fault::RotInTable => {
            // A table with entries, now or earlier: a small volume has few.
            let mut tables = Vec::new();
            for block in TABLES {
                let bytes = world.device.read(block * BLOCK, BLOCK as u32)?.to_vec();
                tables.extend(bytes.iter().any(|byte| *byte != 0).then_some(block));
            }
            if let Some(block) = tables.get(rng.below(tables.len().max(1) as u64) as usize) {
                world.device.corrupt(block * BLOCK, BLOCK, rng);
            }
            let fate = reopened(world)?;
            ensure!(fate == Fate::Survived, "a block of a table has no copy: {fate:?}");
            fate
        }
        Fault::ReadError => {
            let blocks = world.device.geometry().length / BLOCK;
            for _ in 0..1 + rng.below(6) {
                let block = rng.below(blocks);
                world.device.fail_reads(block * BLOCK..(block + 1 + rng.below(4)).min(blocks) * BLOCK);
            }
            reopened(world)?
        }
        Fault::LostWrite | Fault::MisdirectedWrite => {
            let order = world.model.order();
            if fault == Fault::LostWrite {
                world.device.lose_next_write();
            } else {
                let by = (1 + rng.below(600)) as i64 * BLOCK as i64;
                world.device.misdirect_next_write(if rng.one_in(2) { by } else { -by });
            }
            match changes(world, rng) {
                Ok(()) => reopened(world)?,
                // It was found at once, by the write that depends on it.
                Err(VolumeError::Damaged { .. } | VolumeError::Latched(_)) => {
                    world.power_cycle();
                    world.volume = None;
                    match world.open() {
                        Ok(volume) => {
                            world.volume = Some(volume);
                            looked_at(world, order)?;
                        }
                        Err(error) => told(&error)?,
                    }
                    Fate::Refused
                }
                Err(error) => return Err(error).context("changes over a write that went wrong"),
            }
        }
        Fault::PassingReadError => unreadable_for_a_while(world, rng, timeline)?,
        Fault::WriteError | Fault::WriteErrorForGood | Fault::NoSpace | Fault::NoSpaceForGood => {
            failing_writes(world, fault, rng, timeline)?
        }
        Fault::Rot | Fault::RotInSlot | Fault::RotInLog => bail!("{fault:?} has a run of its own"),
    };
    tally.fault(fault, fate);
    if world.volume.is_some() {
        world.note(timeline, &format!("! {fault:?}: {fate:?}"));
    }
    Ok(())
}

/// `EIO` of Linux.
const EIO: i32 = 5;

/// Operations fail at some moment, once or from then on. No earlier flushed data is lost, and no
/// unflushed data is reported as flushed.
fn failing_writes(world: &mut World, fault: Fault, rng: &mut Rng, timeline: &mut Timeline) -> Result<Fate> {
    let (offset, length) = (0, BLOCK);
    let error = if matches!(fault, Fault::NoSpace | Fault::NoSpaceForGood) {
        DeviceError::NoSpace { offset, length }
    } else {
        let source = Arc::new(std::io::Error::from_raw_os_error(EIO));
        DeviceError::Io { action: Action::Write, offset, length, source }
    };
    let for_good = matches!(fault, Fault::WriteErrorForGood | Fault::NoSpaceForGood);
    let is_room = matches!(fault, Fault::NoSpace | Fault::NoSpaceForGood);
    let (began, after) = (world.device.operations(), rng.below(24));
    let times = if for_good { u64::MAX } else { 1 };
    world.device.fail_operations(after, times, error);
    let mut failed = false;
    for _ in 0..4 {
        failed |= changes(world, rng).is_err();
    }
    // A volume that snapshots fill takes no write, and asks nothing of its device.
    let has_met_it = world.device.operations() - began > after;
    let volume = world.volume();
    let status = volume.status();
    let (latched, stopped) = (status.latched.is_some(), status.latched.is_some() || status.lacks_room);
    ensure!(failed || !stopped, "a volume that takes no changes took some");
    ensure!(stopped || !for_good || !has_met_it, "a volume goes on over a device that takes nothing");
    ensure!(!failed || has_met_it, "changes fail on a device that has failed none of them");
    ensure!(!latched || !is_room, "a lack of room below has ended the volume: {:?}", status.latched);
    ensure!(!status.lacks_room || is_room, "a failed write is taken for a lack of room");
    if stopped && is_room {
        ensure!(
            looked_at(world, world.model.order())? == 0,
            "a volume without room refuses reads of a device that can be read"
        );
        // The power fails now, or there is room and it resumes by itself: the acknowledged writes
        // are present as well.
        if rng.one_in(2) {
            world.device.heal_operations();
            volume.consistency_point().context("once there is room")?;
            ensure!(!volume.status().lacks_room, "a volume waits for room that there is");
            world.committed();
            changes(world, rng).context("changes once there is room")?;
            ensure!(looked_at(world, world.model.order())? == 0, "reads once there is room");
        }
    }
    if latched {
        ensure!(volume.flush().is_err(), "a latched volume says that it has flushed");
        ensure!(volume.consistency_point().is_err(), "a latched volume says that it has committed");
        ensure!(
            looked_at(world, world.model.order())? == 0,
            "a latched volume refuses reads of a device that can be read"
        );
    }
    // The server restarts with the device's content, or after a power cut as well: flushed data is
    // present.
    world.device.heal_operations();
    if rng.one_in(2) {
        world.power_cycle();
    } else {
        world.device = Arc::new(world.device.fork());
    }
    world.come_back(timeline, false).context("after failed writes")?;
    changes(world, rng).context("changes once the device takes them again")?;
    Ok(if stopped { Fate::Refused } else { Fate::Survived })
}

/// Reads fail for a while: requests that need one fail, and afterwards everything is present.
fn unreadable_for_a_while(world: &mut World, rng: &mut Rng, timeline: &mut Timeline) -> Result<Fate> {
    world.volume = None;
    world.power_cycle();
    world.volume = Some(world.open().context("opening a volume at rest")?);
    world.device.fail_reads(0..world.device.geometry().length);
    for _ in 0..4 {
        match changes(world, rng) {
            Ok(()) | Err(VolumeError::Device(_) | VolumeError::Latched(_)) => {}
            Err(error) => return Err(error).context("changes while nothing can be read"),
        }
    }
    looked_at(world, world.model.order())?;
    world.device.heal_reads();
    let latched = world.volume().status().latched.is_some();
    if !latched {
        let refused = looked_at(world, world.model.order())?;
        ensure!(refused == 0, "{refused} reads are refused of a device that can be read again");
        changes(world, rng).context("changes once the device can be read again")?;
        let volume = world.volume();
        // Upper blocks first: the path to lower ones leads through them.
        for _ in 0..8 {
            for block in volume.damaged() {
                match volume.look_again(&block) {
                    Ok(Health::Sound | Health::Gone) | Err(VolumeError::Refused(_)) => {}
                    other => bail!("{block:?} is {other:?} after an error that has passed"),
                }
            }
        }
        ensure!(volume.damaged().is_empty(), "an error that has passed is remembered as damage");
    }
    world.device = Arc::new(world.device.fork());
    world.come_back(timeline, false).context("after failed reads")?;
    Ok(if latched { Fate::Refused } else { Fate::Survived })
}

/// Some writes, a flush and a consistency point; the model records the successful ones.
fn changes(world: &mut World, rng: &mut Rng) -> Result<(), VolumeError> {
    let volume = world.volume();
    for _ in 0..1 + rng.below(4) {
        let Some(file) = world.pick_lun() else { break };
        let length = world.model.file(file).length();
        for _ in 0..1 + rng.below(8) {
            let (lba, tag) = (rng.below(length), world.tag());
            match volume.write(file, &mut std::iter::once((Lba(lba), tag.block()))) {
                Ok(()) => {
                    let generation = world.open_generation();
                    world.model.write(file, lba, tag, generation);
                }
                Err(VolumeError::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        if rng.one_in(2) {
            volume.flush()?;
            world.model.flushed();
        }
    }
    volume.consistency_point()?;
    world.committed();
    Ok(())
}

/// Damage of this kind may keep a volume from opening.
fn told(error: &VolumeError) -> Result<()> {
    let fair = matches!(
        error,
        VolumeError::Damaged { .. }
            | VolumeError::InodesLost(_)
            | VolumeError::Label(_)
            | VolumeError::LogDamaged { .. }
            | VolumeError::Device(_)
            | VolumeError::LogDevice(_)
    );
    ensure!(fair, "opening a damaged volume fails with: {error} ({error:?})");
    Ok(())
}

/// Reopens with an empty cache, and reads everything.
fn reopened(world: &mut World) -> Result<Fate> {
    world.volume = None;
    world.power_cycle();
    match world.open() {
        Ok(volume) => world.volume = Some(volume),
        Err(error) => {
            told(&error)?;
            return Ok(Fate::Refused);
        }
    }
    let refused = looked_at(world, world.model.order())?;
    let volume = world.volume();
    let findings = volume.check(&mut |_| {}).map(|report| report.findings.len()).unwrap_or(1);
    ensure!(refused == 0 || findings > 0, "{refused} reads were refused and check found nothing");
    Ok(if refused + findings as u64 == 0 { Fate::Survived } else { Fate::Reported })
}

/// Every block of the active state and of all snapshots reads as it must, or not at all. `order`:
/// writes after these may be there or not. Returns how many reads were refused.
fn looked_at(world: &World, order: u64) -> Result<u64> {
    let volume = world.volume();
    let mut refused = 0;
    for (file, model) in world.model.files() {
        for lba in 0..model.length() {
            match read_active(&volume, file, lba, 1) {
                Ok(seen) => {
                    let allowed = model.tags_since(lba, order);
                    let fair = seen.first().copied().flatten().is_some_and(|seen| allowed.contains(&seen));
                    ensure!(
                        fair,
                        "wrong bytes are served: {file:?} {lba} reads {seen:?}, allowed is {allowed:?}"
                    );
                }
                Err(_) => refused += 1,
            }
        }
    }
    let ids: Vec<SnapshotId> = world.snapshots.keys().copied().collect();
    for id in ids {
        let Ok(image) = volume.image(Some(id)) else {
            refused += 1;
            continue;
        };
        for (file, expected) in &world.snapshots[&id].content.files {
            for lba in 0..expected.blocks {
                let mut reads = [BlockRead::new(Lba(lba), 1)];
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
    Ok(refused)
}
