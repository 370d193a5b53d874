//! A stage: the part of a batch that may be done in any order. It ends where a flush covers earlier
//! operations, or where two changes overlap.

use std::io;
use std::sync::Arc;

use cairn_base::BLOCK_SIZE;
use smallvec::SmallVec;

use super::transfer::Transfer;
use super::{FileDevice, device_error, is_no_space};
use crate::{Action, BlockMut, DeviceError, Operation, Request, Segment, Segments};

/// Iovecs of one transfer: 1 MiB in whole blocks. The kernel takes 1024, and reads and writes of 1
/// MiB keep any disk busy, while smaller ones run side by side.
pub(super) const IOVECS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Stage {
    members: Vec<Member>,
    parts: Vec<Part>,
    /// The iovecs of all parts. Empty between stages, as they point into members and operations.
    iovecs: Vec<libc::iovec>,
    /// Trims and write-zeroes.
    clears: Vec<(usize, bool)>,
    flushes: Vec<usize>,
    changed: Ranges,
}

/// A read or write of the stage.
struct Member {
    index: usize,
    action: Action,
    offset: u64,
    length: u64,
    fua: bool,
    /// The memory for a read.
    blocks: SmallVec<[BlockMut; 1]>,
    /// A copy of the data when its pieces do not suit direct I/O; only held so that its memory
    /// stays.
    _copy: Option<Segments>,
    failure: Option<DeviceError>,
}

/// Up to `IOVECS_MAX` iovecs of a member.
#[derive(Clone)]
struct Part {
    member: usize,
    write: bool,
    offset: u64,
    length: u64,
    iovecs: std::ops::Range<usize>,
}

impl Stage {
    /// Takes an admitted operation; false when the stage must be performed before.
    pub(super) fn add(&mut self, device: &FileDevice, index: usize, operation: &Operation) -> bool {
        let request = operation.request();
        let Some((_, offset, length)) = request.range() else {
            self.flushes.push(index);
            return true;
        };
        if request.is_mutation() && (!self.flushes.is_empty() || !self.changed.insert(offset, length)) {
            return false;
        }
        match request {
            Request::Read { .. } => self.add_read(index, offset, length),
            Request::Write { data, fua, .. } => self.add_write(device, index, offset, data, *fua),
            Request::Trim { fua, .. } | Request::WriteZeroes { fua, .. } => self.clears.push((index, *fua)),
            Request::Flush | Request::Prefetch { .. } => {}
        }
        true
    }

    fn add_read(&mut self, index: usize, offset: u64, length: u64) {
        let mut blocks: SmallVec<[BlockMut; 1]> = match length.div_ceil(BLOCK_SIZE as u64) as usize {
            0 => SmallVec::new(),
            1 => SmallVec::from_buf([BlockMut::dirty()]),
            count => {
                let mut run = Vec::new();
                BlockMut::append_run(&mut run, count);
                SmallVec::from_vec(run)
            }
        };
        let start = self.iovecs.len();
        let mut rest = length as usize;
        for block in &mut blocks {
            let iov_len = rest.min(BLOCK_SIZE);
            self.iovecs.push(libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len });
            rest -= iov_len;
        }
        self.add_parts(false, offset, start);
        let action = Action::Read;
        self.members.push(Member {
            index,
            action,
            offset,
            length,
            fua: false,
            blocks,
            _copy: None,
            failure: None,
        });
    }

    fn add_write(&mut self, device: &FileDevice, index: usize, offset: u64, data: &Segments, fua: bool) {
        let suits = !device.goes_past(true) || data.iter().all(|piece| piece.as_whole().is_some());
        let copy = (!suits).then(|| Segments::copy_of(&data.to_vec()));
        let start = self.iovecs.len();
        self.iovecs.extend(copy.as_ref().unwrap_or(data).iter().map(|piece| libc::iovec {
            // The kernel only reads from it.
            iov_base: piece.bytes().as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        }));
        self.add_parts(true, offset, start);
        self.members.push(Member {
            index,
            action: Action::Write,
            offset,
            length: data.len() as u64,
            fua,
            blocks: SmallVec::new(),
            _copy: copy,
            failure: None,
        });
    }

    /// Cuts the iovecs from `start` on into parts of the member that is about to be added.
    fn add_parts(&mut self, write: bool, offset: u64, start: usize) {
        let member = self.members.len();
        let mut offset = offset;
        let mut start = start;
        while start < self.iovecs.len() {
            let end = self.iovecs.len().min(start + IOVECS_MAX);
            let length = self.iovecs[start..end].iter().map(|iovec| iovec.iov_len as u64).sum();
            self.parts.push(Part { member, write, offset, length, iovecs: start..end });
            offset += length;
            start = end;
        }
    }

    /// Does all that was added, and records the outcomes.
    pub(super) fn perform(self, device: &FileDevice, batch: &mut [Operation]) {
        let Self { mut members, mut parts, iovecs, clears, flushes, .. } = self;
        let fua = members.iter().any(|member| member.fua) || clears.iter().any(|(_, fua)| *fua);

        parts.sort_by_key(|part| (part.write, part.offset));
        let (mut transfers, groups) = merge(device, &parts, &iovecs);
        // One durable write alone carries its own flush, which a disk with FUA does without
        // emptying its cache.
        let alone = fua && flushes.is_empty() && clears.is_empty() && transfers.len() == 1;
        if alone {
            transfers[0].durable = true;
        }
        device.transfer(&mut transfers);
        for (transfer, group) in transfers.into_iter().zip(groups) {
            let Err(error) = transfer.into_outcome() else { continue };
            // A lack of space failed before anything was written; any other failure may come from
            // the flush within.
            if alone && !is_no_space(&error) {
                device.latch(&error);
            }
            if let [part] = &parts[group.clone()] {
                members[part.member].fail(error);
                continue;
            }
            // One bad place must not fail its neighbours: each part again, alone.
            for part in &parts[group] {
                let mut one = [new_transfer(device, std::slice::from_ref(part), &iovecs)];
                one[0].durable = alone;
                device.transfer(&mut one);
                let [one] = one;
                if let Err(error) = one.into_outcome() {
                    members[part.member].fail(error);
                }
            }
        }
        let mut cleared: Vec<(usize, bool, Result<(), DeviceError>)> = Vec::with_capacity(clears.len());
        for (index, fua) in clears {
            let outcome = device.clear(batch[index].request());
            cleared.push((index, fua, outcome));
        }

        let synced = if !flushes.is_empty() || (fua && !alone) { device.sync() } else { device.latched() };
        for member in members {
            let (index, fua) = (member.index, member.fua);
            let outcome = member.into_outcome();
            batch[index].finish(if fua {
                outcome.and_then(|data| synced.clone().map(|()| data))
            } else {
                outcome
            });
        }
        for (index, fua, outcome) in cleared {
            let outcome = if fua { outcome.and_then(|()| synced.clone()) } else { outcome };
            batch[index].finish(outcome.map(|()| Segments::default()));
        }
        for index in flushes {
            batch[index].finish(synced.clone().map(|()| Segments::default()));
        }
    }
}

impl Member {
    /// Keeps the first failure.
    fn fail(&mut self, error: io::Error) {
        let (action, offset, length) = (self.action, self.offset, self.length);
        self.failure.get_or_insert_with(|| device_error(action, offset, length, &Arc::new(error)));
    }

    fn into_outcome(self) -> Result<Segments, DeviceError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut rest = self.length as usize;
        Ok(self
            .blocks
            .into_iter()
            .map(|block| {
                let end = rest.min(BLOCK_SIZE);
                rest -= end;
                Segment::new(block.freeze(), 0, end)
            })
            .collect())
    }
}

/// Joins adjacent sorted parts into transfers; returns with each the parts that it consists of.
fn merge(
    device: &FileDevice,
    parts: &[Part],
    iovecs: &[libc::iovec],
) -> (Vec<Transfer>, Vec<std::ops::Range<usize>>) {
    let mut transfers = Vec::with_capacity(parts.len());
    let mut groups = Vec::with_capacity(parts.len());
    let mut start = 0;
    while start < parts.len() {
        let first = &parts[start];
        let mut end = start + 1;
        let mut count = first.iovecs.len();
        let mut position = first.offset + first.length;
        while let Some(part) = parts.get(end) {
            count += part.iovecs.len();
            if part.write != first.write || part.offset != position || count > IOVECS_MAX {
                break;
            }
            position += part.length;
            end += 1;
        }
        transfers.push(new_transfer(device, &parts[start..end], iovecs));
        groups.push(start..end);
        start = end;
    }
    (transfers, groups)
}

fn new_transfer(device: &FileDevice, parts: &[Part], iovecs: &[libc::iovec]) -> Transfer {
    let pieces = parts.iter().flat_map(|part| &iovecs[part.iovecs.clone()]);
    Transfer::new(parts[0].write, device.goes_past(parts[0].write), parts[0].offset, joined(pieces))
}

/// Iovecs with memory neighbours joined into one, as the blocks of a run are: the kernel handles
/// each by itself.
pub(super) fn joined<'a>(pieces: impl Iterator<Item = &'a libc::iovec>) -> Vec<libc::iovec> {
    let mut joined: Vec<libc::iovec> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.iov_base.addr() + last.iov_len == piece.iov_base.addr() => {
                last.iov_len += piece.iov_len;
            }
            _ => joined.push(*piece),
        }
    }
    joined
}

/// Byte ranges that do not overlap, sorted.
#[derive(Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a range; false, without adding it, when it overlaps an existing one.
    fn insert(&mut self, offset: u64, length: u64) -> bool {
        if length == 0 {
            return true;
        }
        let end = offset + length;
        let place = self.0.partition_point(|(start, _)| *start < offset);
        let after = self.0.get(place).is_none_or(|(start, _)| end <= *start);
        let before = place == 0 || self.0[place - 1].1 <= offset;
        if after && before {
            self.0.insert(place, (offset, end));
        }
        after && before
    }
}
