//! Commands that are more than one operation of the device, done one at a time.

use std::sync::Arc;

use cairn_device::{Device, DeviceError, Operation, Request, Segments, Ticket, admit};
use cairn_proto_iscsi::scsi::Failure::OutOfRange;
use cairn_proto_iscsi::scsi::{Compare, CopyList, LogicalUnit, Medium, Sense};

use crate::device_error::sense;
use crate::limits::{EXTENTS_MAX, STRIDE_BYTES};
use crate::locks::RwLockReadGuard;
use crate::units::{Unit, stretches};

/// Finds the device of a designator, and the length of its blocks: another LUN of this server that
/// the initiator may use.
pub(crate) type Resolve<'a> = &'a dyn Fn(&[u8]) -> Option<CopyUnit>;

/// A logical unit that takes part in a copy.
#[derive(Clone)]
pub(crate) struct CopyUnit {
    pub(crate) unit: Arc<Unit>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) block_bytes: u32,
    pub(crate) read_only: bool,
}

/// Why a command was not done.
pub(crate) enum Failure {
    /// To be answered.
    Sense(Sense),
    /// This session's tasks were aborted: there is no answer.
    Aborted,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// Where a command is done.
pub(crate) struct Place<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) unit: &'a Unit,
    pub(crate) block_bytes: u32,
    pub(crate) writes_through: bool,
    /// The ticket to withdraw it by.
    pub(crate) ticket: &'a Ticket,
    pub(crate) resolve: Resolve<'a>,
}

impl Place<'_> {
    /// Executes it with the received data; returns data for the initiator. For a command that is
    /// done in pieces the data belongs at `at`.
    pub(crate) fn run(&self, medium: &Medium, data: &Segments, at: u64) -> Result<Vec<u8>, Failure> {
        let bytes = |blocks: u64| blocks * u64::from(self.block_bytes);
        let whole = u64::from(self.block_bytes);
        match medium {
            Medium::Write { lba, blocks, fua, .. } => {
                let data = until(bytes(lba + u64::from(*blocks)), at, data);
                let _shared = self.beside_others()?;
                self.write(at, data.clone(), *fua)?;
                self.compare(at, &data, at - bytes(*lba))?;
            }
            Medium::WriteAtomic { lba, fua, .. } if !data.is_empty() => {
                let _shared = self.beside_others()?;
                let fua = *fua || self.writes_through;
                let written = self.device.write_atomic(bytes(*lba), data.clone(), fua, Some(self.ticket));
                written.map_err(failed)?;
            }
            Medium::WriteAtomic { .. } => {}
            Medium::Verify { lba, blocks, compare: Compare::Nothing } => {
                self.each(bytes(*lba), bytes((*blocks).into()), |at, length| {
                    self.device.read(at, length).map(drop).map_err(|error| sense(&error))
                })?;
            }
            Medium::Verify { lba, compare: Compare::All, .. } => self.compare(at, data, at - bytes(*lba))?,
            Medium::Verify { lba, blocks, compare: Compare::OneBlock } => {
                for block in 0..u64::from(*blocks) {
                    self.compare(bytes(lba + block), data, 0)?;
                }
            }
            Medium::OrWrite { lba, blocks, fua } => {
                let mut new = until(bytes(lba + u64::from(*blocks)), at, data).to_vec();
                let _alone = self.unit.exclusive.write();
                self.still_wanted()?;
                let old = self.read(at, new.len() as u64)?;
                new.iter_mut().zip(&old).for_each(|(new, old)| *new |= old);
                self.write(at, Segments::copy_of(&new), *fua)?;
            }
            Medium::CompareAndWrite { lba, fua, .. } => {
                let half = data.len() / 2;
                {
                    let _alone = self.unit.exclusive.write();
                    self.still_wanted()?;
                    self.compare(bytes(*lba), &data.slice(0, half), 0)?;
                    let new = Operation::write(bytes(*lba), data.slice(half, half));
                    self.one(new)?;
                }
                // Others need not wait for the disk: the data that they find is made durable before
                // they are answered, too.
                if *fua || self.writes_through {
                    self.one(Operation::flush())?;
                }
            }
            Medium::WriteSame { lba, blocks, unmap, no_data } => {
                self.write_same(bytes(*lba), bytes(*blocks), *unmap, *no_data, data)?;
            }
            Medium::Unmap(list) => {
                let _shared = self.beside_others()?;
                // Unmapped blocks read as zeroes: a promise of LBPRZ, which trim alone does not
                // give.
                let zeroes =
                    |(lba, blocks): &(u64, u32)| self.zeroes(bytes(*lba), bytes((*blocks).into()), true);
                let mut batch: Vec<Operation> =
                    list.iter().filter(|(_, blocks)| *blocks > 0).map(zeroes).collect();
                batch.iter_mut().for_each(|operation| operation.give(self.ticket.clone()));
                admit(&mut batch);
                self.device.run(&mut batch);
                for operation in batch {
                    operation.into_outcome().map_err(failed)?;
                }
            }
            Medium::LbaStatus { lba, allocation } => {
                let blocks = self.unit.state.lock().geometry().blocks;
                // The device may have become shorter since the command was checked.
                let left =
                    blocks.checked_sub(*lba).filter(|left| *left > 0).ok_or(Sense::of_failure(OutOfRange))?;
                let found = stretches(self.device, bytes(*lba), bytes(left), EXTENTS_MAX);
                let found = found.map_err(|error| sense(&error))?;
                let mut blocks = in_blocks(&found, whole);
                if blocks.is_empty() {
                    blocks.push((1, true));
                }
                return Ok(LogicalUnit::lba_status(*lba, &blocks, *allocation));
            }
            Medium::Copy(list) => self.copy(list)?,
            Medium::Read { .. } | Medium::Synchronize { .. } | Medium::Prefetch { .. } => {}
        }
        Ok(Vec::new())
    }

    /// For a write; an error when nothing is to be written any more.
    fn beside_others(&self) -> Result<RwLockReadGuard<'_, ()>, Failure> {
        let shared = self.unit.exclusive.read();
        self.still_wanted()?;
        Ok(shared)
    }

    /// Whether continuing is useful. Each change checks its ticket once more when it begins.
    fn still_wanted(&self) -> Result<(), Failure> {
        if self.ticket.is_known_withdrawn() { Err(Failure::Aborted) } else { Ok(()) }
    }

    fn zeroes(&self, offset: u64, length: u64, may_trim: bool) -> Operation {
        Operation::new(Request::WriteZeroes { offset, length, may_trim, fua: self.writes_through })
    }

    fn one(&self, operation: Operation) -> Result<(), Failure> {
        one(self.device, operation.of(self.ticket.clone())).map_err(failed)
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), Failure> {
        if data.is_empty() {
            return Ok(());
        }
        self.one(Operation::new(Request::Write { offset, data, fua: fua || self.writes_through }))
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, Sense> {
        let mut bytes = vec![0; length as usize];
        self.device.read_into(offset, &mut bytes).map_err(|error| sense(&error))?;
        Ok(bytes)
    }

    /// Calls `work` for stretches of the bytes, one after the other.
    fn each<E>(
        &self,
        offset: u64,
        length: u64,
        mut work: impl FnMut(u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < length {
            let now = (length - done).min(STRIDE_BYTES.into());
            work(offset + done, now as u32)?;
            done += now;
        }
        Ok(())
    }

    /// Compares the content with `data`, after `done` bytes that were compared; returns where they
    /// first differ.
    fn compare(&self, offset: u64, data: &Segments, done: u64) -> Result<(), Sense> {
        let wanted = data.to_vec();
        self.each(offset, wanted.len() as u64, |at, length| {
            let there = self.read(at, length.into())?;
            let from = (at - offset) as usize;
            let mut pairs = there.iter().zip(&wanted[from..]);
            match pairs.position(|(there, wanted)| there != wanted) {
                Some(differs) => Err(Sense::MISCOMPARE.at(done + (from + differs) as u64)),
                None => Ok(()),
            }
        })
    }

    fn write_same(
        &self,
        offset: u64,
        length: u64,
        unmap: bool,
        no_data: bool,
        data: &Segments,
    ) -> Result<(), Failure> {
        let block = data.to_vec();
        if no_data || block.iter().all(|byte| *byte == 0) {
            let _shared = self.beside_others()?;
            return self.one(self.zeroes(offset, length, unmap));
        }
        // Data other than zeroes can't be unmapped, as unmapped blocks read as zeroes (SBC-3,
        // section 5.43).
        let stride = block.repeat(STRIDE_BYTES as usize / block.len().max(1));
        let stride = Segments::copy_of(&stride);
        let _shared = self.beside_others()?;
        self.each(offset, length, |at, length| {
            self.still_wanted()?;
            self.write(at, stride.slice(0, length as usize), false)
        })
    }

    fn copy(&self, list: &CopyList) -> Result<(), Failure> {
        let resolved: Vec<_> = list.targets.iter().map(|target| (self.resolve)(&target.designator)).collect();
        for segment in &list.segments {
            let find =
                |index: usize| resolved.get(index).cloned().flatten().ok_or(Sense::COPY_TARGET_UNREACHABLE);
            let source = find(segment.source)?;
            let destination = find(segment.destination)?;
            if destination.read_only {
                return Err(Sense::COPY_ABORTED.into());
            }
            let counted = if segment.counts_destination { &destination } else { &source }.block_bytes;
            let length = u64::from(segment.blocks) * u64::from(counted);
            let place = |lba: u64, found: &CopyUnit| {
                let at = lba.checked_mul(found.block_bytes.into())?;
                let end = at.checked_add(length)?;
                (end <= found.device.geometry().length).then_some(at)
            };
            let from = place(segment.source_lba, &source).ok_or(Sense::COPY_ABORTED)?;
            let to = place(segment.destination_lba, &destination).ok_or(Sense::COPY_ABORTED)?;
            let aborted = |_: DeviceError| Sense::COPY_ABORTED;
            self.each(0, length, |at, length| {
                // Only the lock of the unit that is written, as a COMPARE AND WRITE there must not
                // be undone: copies in opposite directions never wait for each other. It is
                // released after each stretch, so that clients wait for one and not for all. A
                // thread that aborts this session's tasks waits for the changes that its ticket has
                // begun, on any unit.
                let _alone = destination.unit.exclusive.write();
                self.still_wanted()?;
                let is_own = std::ptr::eq(self.unit, &*destination.unit);
                if !is_own && destination.unit.state.lock().is_reserved() {
                    return Err(Sense::COPY_ABORTED.into());
                }
                let data = source.device.read(from + at, length).map_err(aborted)?;
                let write = Operation::write(to + at, data).of(self.ticket.clone());
                one(&*destination.device, write).map_err(|error| match error {
                    DeviceError::Withdrawn => Failure::Aborted,
                    _ => Failure::Sense(Sense::COPY_ABORTED),
                })
            })?;
            // Whether the destination has a write cache is not known here: it may be another unit.
            destination.device.flush().map_err(aborted)?;
        }
        Ok(())
    }
}

fn one(device: &dyn Device, operation: Operation) -> Result<(), DeviceError> {
    let mut batch = [operation];
    admit(&mut batch);
    device.run(&mut batch);
    let [operation] = batch;
    operation.into_outcome()
}

/// The answer to a command whose device failed.
fn failed(error: DeviceError) -> Failure {
    match error {
        DeviceError::Withdrawn => Failure::Aborted,
        error => Failure::Sense(sense(&error)),
    }
}

/// Converts stretches of bytes into blocks of `whole` bytes: how many, and whether they are mapped.
/// A partly mapped block counts as mapped, as unmapped bytes read as zeroes; one with an unknown
/// end is left out.
fn in_blocks(stretches: &[(u64, bool)], whole: u64) -> Vec<(u64, bool)> {
    let mut blocks: Vec<(u64, bool)> = Vec::new();
    let mut add = |count: u64, mapped: bool| match blocks.last_mut() {
        Some((before, known)) if *known == mapped => *before += count,
        _ if count > 0 => blocks.push((count, mapped)),
        _ => {}
    };
    // Of the block at the border of two stretches.
    let (mut begun, mut begun_mapped) = (0, false);
    for &(length, mapped) in stretches {
        let mut left = length;
        if begun > 0 {
            let now = left.min(whole - begun);
            (begun, begun_mapped, left) = (begun + now, begun_mapped || mapped, left - now);
            if begun < whole {
                continue;
            }
            add(1, begun_mapped);
        }
        add(left / whole, mapped);
        (begun, begun_mapped) = (left % whole, mapped);
    }
    blocks
}

/// The part before `end` of data that belongs at `at`: whole blocks are written, whatever the
/// initiator sends.
fn until(end: u64, at: u64, data: &Segments) -> Segments {
    data.slice(0, data.len().min(end.saturating_sub(at) as usize))
}
