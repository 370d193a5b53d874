//! Faults of the media beyond rot in single places: tables, writes that are lost or land elsewhere, errors. Each is survived, or told, or refused;
//! nothing wrong is ever served.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{Lba, Rng, SnapshotId};
use cairn_device::{Action, Device, DeviceError};
use cairn_volume::{BlockRead, VolumeError};

use crate::content::Tag;
use crate::tally::{Fate, Fault, Tally};
use crate::timeline::Timeline;
use crate::world::{World, read_active};

const BLOCK: u64 = 4096;
/// Where the tables of a small volume are, in blocks.
const TABLES: std::ops::Range<u64> = 32..288;

/// Damages a volume at rest or at work in one of the ways, and looks at everything afterwards.
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
            for _ in 0..4 {
                let block = TABLES.start + rng.below(TABLES.end - TABLES.start);
                world.device.corrupt(block * BLOCK, BLOCK, rng);
            }
            reopened(world)?
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
                // It was met at once, by the write that builds on it.
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
        Fault::WriteError | Fault::NoSpace => {
            let (offset, length) = (0, BLOCK);
            let error = if fault == Fault::NoSpace {
                DeviceError::NoSpace { offset, length }
            } else {
                let source = Arc::new(std::io::Error::from_raw_os_error(EIO));
                DeviceError::Io { action: Action::Write, offset, length, source }
            };
            world.device.fail_next_operation(error);
            let failed = changes(world, rng);
            let latched = world.volume().status().latched.is_some();
            ensure!(failed.is_err() || !latched, "a latched volume took changes");
            // The server starts anew on what the device has: what was flushed is there.
            world.device = Arc::new(world.device.fork());
            world.come_back(timeline, false).context("after a failed write")?;
            if latched { Fate::Refused } else { Fate::Survived }
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

/// Some writes, a flush and a consistency point; the model keeps up with what succeeded.
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
            | VolumeError::Label(_)
            | VolumeError::LogDamaged { .. }
            | VolumeError::Device(_)
    );
    ensure!(fair, "opening a damaged volume fails with: {error} ({error:?})");
    Ok(())
}

/// Opens anew with nothing in the cache, and reads everything.
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

/// Every block of the active state and of all snapshots reads as it must, or not at all. `order`: writes after these may be there or not. Returns how many
/// reads were refused.
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
