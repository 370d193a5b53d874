//! The intent log on a device of its own: making it, finding it, moving it, and continuing without
//! it.
//!
//! # Invariants
//! - The superblock names the log in use by an id that is new whenever a log comes to a device. A
//!   device counts only when its header has that id: a log of another volume, or one that this
//!   volume has left, is never replayed.
//! - A log begins zeroed, durably, before a superblock names it. Sequences of a log that was thrown
//!   away are given again, and its records would be believed.
//! - While the log moves no record is written: from the freeze of the consistency point that moves
//!   it, until both slots name the new place. A flush makes a consistency point instead.
//!
//! A log device that fails while the volume is open loses nothing: all blocks that its records name
//! are on the volume's own device, and a consistency point makes them durable without the records.
//! The log then moves to the label area, which always exists.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Generation, LogId, Timestamp, VolumeId};
use cairn_device::{BlockMut, Device, DeviceError, Segments};
use cairn_format::layout::{LOG_BLOCKS_MAX, LOG_BLOCKS_MIN, LOG_DEVICE_START, LOG_HEADER_A, LOG_HEADER_B};
use cairn_format::{ExternalLog, FormatError, LogDeviceHeader, Role, Structure, Superblock};

use crate::commit::rider::Rider;
use crate::commit::superblock::{newest_superblock, read_slots};
use crate::error::VolumeError;
use crate::log::intent::{LogArea, replay, zero_ring};
use crate::memory::numbers::Numbers;
use crate::volume::Volume;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A device that gets an intent log.
#[derive(Clone, Copy)]
pub struct NewLog<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The log's name: random bytes, not all zero, that no log had before.
    pub id: LogId,
}

/// Where an intent log is to go.
#[derive(Clone)]
pub enum LogTarget {
    /// Into the label area of the volume's own device.
    Internal,
    /// To a device of its own.
    Device {
        /// The device.
        device: Arc<dyn Device>,
        /// The log's name: random bytes, not all zero, that no log had before.
        id: LogId,
    },
}

/// The contents of a superblock, read without opening the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inspection {
    /// Which volume.
    pub id: VolumeId,
    /// The last consistency point.
    pub generation: Generation,
    /// When that was made, by the clock of the volume's owner.
    pub created: Timestamp,
    /// The log that is on a device of its own.
    pub log: Option<LogId>,
    /// Owner of its data, or destination of a mirror.
    pub role: Role,
    /// The next numbers that it assigns.
    pub numbers: Numbers,
}

impl Volume {
    /// Reads the superblock of the volume on `device`, to find the devices needed for opening it,
    /// and the state that it would have without its log.
    pub fn inspect(device: &dyn Device) -> Result<Inspection, VolumeError> {
        let superblock = newest_superblock(device)?;
        Ok(Inspection {
            id: superblock.volume,
            generation: superblock.root.generation,
            created: superblock.root.created,
            log: superblock.external_log.map(|log| log.id),
            role: superblock.role,
            numbers: Numbers { file: superblock.root.next_file, snapshot: superblock.next_snapshot },
        })
    }

    /// True when the volume on `device` is unchanged since it was made: it has had no consistency
    /// point, and its log on the device has no record.
    pub fn is_as_made(device: &dyn Device) -> bool {
        let Ok(superblock) = newest_superblock(device) else { return false };
        let area = LogArea::internal(&superblock.layout);
        let (tail, generation) = (superblock.log_tail, superblock.root.generation);
        // The first of either.
        superblock.sequence == 1
            && replay(device, superblock.volume, &area, tail, generation)
                .is_ok_and(|found| found.records.is_empty() && found.remains.is_empty())
    }

    /// Bytes that a log device has at least.
    pub const LOG_DEVICE_BYTES_MIN: u64 = (LOG_DEVICE_START + LOG_BLOCKS_MIN) * BLOCK;

    /// The log that `device` holds, and its volume. `None` for a device that is not a log device,
    /// or a damaged one.
    pub fn log_on(device: &dyn Device) -> Result<Option<(VolumeId, LogId)>, VolumeError> {
        let headers = read_headers(device)?;
        Ok(headers.into_iter().flatten().next().map(|header| (header.volume, header.log.id)))
    }

    /// Moves the intent log, in one consistency point. A log device that the volume leaves loses
    /// its header.
    ///
    /// # Errors
    /// [`VolumeError::LogTooSmall`], [`VolumeError::NotEmpty`], [`VolumeError::LogTaken`] for an
    /// unsuitable device, and [`VolumeError::LogDevice`] for one that fails: the log stays in its
    /// place.
    pub fn move_log(self: &Arc<Self>, target: &LogTarget) -> Result<(), VolumeError> {
        let mut commit = self.commit_turn()?;
        self.state.lock().check_open()?;
        let old = self.log.lock().area().clone();
        let main = self.store.device();
        let area = match target {
            LogTarget::Internal if old.external_log().is_none() => return Ok(()),
            LogTarget::Internal => {
                let area = LogArea::internal(&commit.superblock.layout);
                area.zero(&**main).map_err(VolumeError::of_room)?;
                area
            }
            LogTarget::Device { device, id } => {
                let new = NewLog { device: &**device, id: *id };
                LogArea::external(device.clone(), prepare(&new, self.id(), self.clock.now())?)
            }
        };
        self.commit_holding(&mut commit, Rider::Log(area))?;
        if let Some(device) = old.log_device()
            && let Err(error) = clear(&**device)
        {
            tracing::warn!(%error, "the log device that the volume has left still has the header of its log");
        }
        Ok(())
    }

    /// The log's device failed: everything becomes durable without it, and the log moves into the
    /// label area.
    pub(crate) fn leave_failed_log(self: &Arc<Self>) -> Result<(), VolumeError> {
        let moved = self.move_log(&LogTarget::Internal);
        let mut state = self.state.lock();
        match &moved {
            // The next flush tries it again.
            Err(VolumeError::NoRoomBelow) => state.note_no_room(self.clock.monotonic()),
            Err(reason @ VolumeError::Device(_)) => state.latch(reason),
            _ => {}
        }
        moved?;
        state.log_left = true;
        drop(state);
        // Another flush may have moved the log first; its consistency point may have been over
        // before this call's writes came.
        self.consistency_point().map(drop)
    }
}

/// Makes an empty log on a device: zeroes, then the header. It is durable when this returns. A
/// device with a log's header is refused, also when it is one of this volume: a mirror of it has
/// the same id.
pub(crate) fn prepare(
    new: &NewLog<'_>,
    volume: VolumeId,
    now: Timestamp,
) -> Result<ExternalLog, VolumeError> {
    assert!(new.id != LogId::default(), "a log has an id that tells it from no log");
    let have = new.device.geometry().length;
    let blocks = (have / BLOCK).saturating_sub(LOG_DEVICE_START).min(LOG_BLOCKS_MAX);
    if blocks < LOG_BLOCKS_MIN {
        return Err(VolumeError::LogTooSmall { need: Volume::LOG_DEVICE_BYTES_MIN, have });
    }
    if read_slots(new.device)?.iter().any(Result::is_ok) {
        return Err(VolumeError::NotEmpty);
    }
    if let Some((volume, log)) = Volume::log_on(new.device)? {
        return Err(VolumeError::LogTaken { volume, log });
    }
    let log = ExternalLog { id: new.id, start: LOG_DEVICE_START, blocks };
    let header = LogDeviceHeader { volume, log, created: now };
    let made = zero_ring(new.device, log.start, log.blocks).and_then(|()| {
        [LOG_HEADER_A, LOG_HEADER_B]
            .iter()
            .try_for_each(|address| write_header(new.device, &header, *address))?;
        new.device.flush()
    });
    made.map_err(VolumeError::LogDevice)?;
    Ok(log)
}

/// Where the log of the volume of `superblock` is. If it is on a device of its own, that is one of
/// `devices`.
pub(crate) fn area_of(superblock: &Superblock, devices: &[Arc<dyn Device>]) -> Result<LogArea, VolumeError> {
    let Some(log) = superblock.external_log else { return Ok(LogArea::internal(&superblock.layout)) };
    let mut refused = VolumeError::LogMissing { log: log.id };
    for device in devices {
        match verify(&**device, superblock.volume, &log) {
            Ok(()) => return Ok(LogArea::external(device.clone(), log)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Checks that `device` holds exactly this log; a wrong copy of the header is rewritten from the
/// right one.
fn verify(device: &dyn Device, volume: VolumeId, log: &ExternalLog) -> Result<(), VolumeError> {
    let headers = read_headers(device)?;
    let is_it = |header: &LogDeviceHeader| header.volume == volume && header.log == *log;
    let Some(header) = headers.iter().flatten().find(|header| is_it(header)).copied() else {
        return Err(match headers {
            [Ok(other), _] | [_, Ok(other)] => {
                VolumeError::LogOther { expected: log.id, volume: other.volume, found: other.log.id }
            }
            [Err(version @ FormatError::Version { .. }), _]
            | [_, Err(version @ FormatError::Version { .. })] => VolumeError::Label(version),
            [Err(first), Err(second)] => VolumeError::NotALog { first, second },
        });
    };
    let (need, have) = ((log.start + log.blocks) * BLOCK, device.geometry().length);
    if have < need {
        return Err(VolumeError::LogTooSmall { need, have });
    }
    let damaged =
        [LOG_HEADER_A, LOG_HEADER_B].into_iter().zip(&headers).filter(|(_, copy)| **copy != Ok(header));
    for (address, _) in damaged {
        tracing::warn!(address, "one copy of the header of the log device is damaged; it is rewritten");
        write_header(device, &header, address)
            .and_then(|()| device.flush())
            .map_err(VolumeError::LogDevice)?;
    }
    Ok(())
}

/// The copies of the header of a log device that do not name this log, by their block.
pub(crate) fn damaged_headers(area: &LogArea, volume: VolumeId) -> Vec<u64> {
    let (Some(device), Some(log)) = (area.log_device(), area.external_log()) else { return Vec::new() };
    let copies = [LOG_HEADER_A, LOG_HEADER_B].map(|address| (address, read_header(&**device, address)));
    let is_it = |header: LogDeviceHeader| header.volume == volume && header.log == log;
    copies.into_iter().filter(|(_, copy)| !copy.is_ok_and(is_it)).map(|(address, _)| address).collect()
}

/// Makes a log device one like any other.
pub(crate) fn clear(device: &dyn Device) -> Result<(), DeviceError> {
    for address in [LOG_HEADER_A, LOG_HEADER_B] {
        device.write(address * BLOCK, Segments::from(BlockMut::zeroed().freeze()))?;
    }
    device.flush()
}

fn write_header(device: &dyn Device, header: &LogDeviceHeader, address: u64) -> Result<(), DeviceError> {
    let mut bytes = BlockMut::zeroed();
    header.write(&mut bytes, address);
    device.write(address * BLOCK, Segments::from(bytes.freeze()))
}

fn read_headers(device: &dyn Device) -> Result<[Result<LogDeviceHeader, FormatError>; 2], VolumeError> {
    let have = device.geometry().length;
    if have < Volume::LOG_DEVICE_BYTES_MIN {
        return Err(VolumeError::LogTooSmall { need: Volume::LOG_DEVICE_BYTES_MIN, have });
    }
    Ok([LOG_HEADER_A, LOG_HEADER_B].map(|address| read_header(device, address)))
}

fn read_header(device: &dyn Device, address: u64) -> Result<LogDeviceHeader, FormatError> {
    let mut bytes = [0; BLOCK_SIZE];
    // A copy that can't be read is like one that does not verify: the other one serves.
    match device.read_into(address * BLOCK, &mut bytes) {
        Ok(()) => LogDeviceHeader::parse(&bytes, address),
        Err(_) => Err(FormatError::Checksum(Structure::LogDevice)),
    }
}
