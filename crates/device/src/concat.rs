//! Several devices, one after the other, as one.

use std::sync::Arc;

use crate::{Action, Device, DeviceError, Extent, Geometry, Operation, Request, Segments};

/// Devices one after the other. Only the last one may grow: the bytes of the others stay in their
/// places, so their lengths at the time of assembly count.
pub struct ConcatDevice {
    devices: Vec<Arc<dyn Device>>,
    /// Where each device but the first starts.
    borders: Vec<u64>,
}

/// A part of a request: the device, and where and how much there, and where it starts in the
/// request.
struct Part {
    device: usize,
    offset: u64,
    length: u64,
    skip: u64,
}

/// Operations for one device, with the number of the operation that each is a part of.
#[derive(Default)]
struct Share {
    operations: Vec<Operation>,
    owners: Vec<usize>,
}

impl ConcatDevice {
    /// Joins `devices`; panics when there is none. Bytes at the end of a device that do not fill
    /// the coarsest alignment of all are left out.
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        assert!(!devices.is_empty(), "a device has at least one part");
        let alignment = u64::from(alignment(&devices));
        let mut end = 0;
        let borders = devices[..devices.len() - 1]
            .iter()
            .map(|device| {
                let length = device.geometry().length;
                end += length - length % alignment;
                end
            })
            .collect();
        Self { devices, borders }
    }

    fn start(&self, device: usize) -> u64 {
        if device == 0 { 0 } else { self.borders[device - 1] }
    }

    /// Cuts an admitted range at the borders. An empty range has no parts.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Part> {
        let end = offset + length;
        let first = self.borders.partition_point(|border| *border <= offset);
        (first..self.devices.len()).map_while(move |device| {
            let start = self.start(device).max(offset);
            let stop = self.borders.get(device).map_or(end, |border| end.min(*border));
            let within = start < end;
            within.then(|| Part {
                device,
                offset: start - self.start(device),
                length: stop.saturating_sub(start),
                skip: start - offset,
            })
        })
    }

    fn split(&self, owner: usize, request: &Request, shares: &mut [Share]) {
        let Some((_, offset, length)) = request.range() else {
            for share in shares {
                share.operations.push(Operation::flush());
                share.owners.push(owner);
            }
            return;
        };
        for part in self.parts(offset, length).filter(|part| part.length > 0) {
            let (offset, length) = (part.offset, part.length);
            let request = match request {
                Request::Flush => Request::Flush,
                Request::Read { .. } => Request::Read { offset, length: length as u32 },
                Request::Write { data, fua, .. } => Request::Write {
                    offset,
                    data: data.slice(part.skip as usize, length as usize),
                    fua: *fua,
                },
                Request::Trim { fua, .. } => Request::Trim { offset, length, fua: *fua },
                Request::WriteZeroes { may_trim, fua, .. } => {
                    Request::WriteZeroes { offset, length, may_trim: *may_trim, fua: *fua }
                }
                Request::Prefetch { .. } => Request::Prefetch { offset, length },
            };
            shares[part.device].operations.push(Operation::new(request));
            shares[part.device].owners.push(owner);
        }
    }

    /// Runs operations; only the last may be a flush.
    fn run_stage(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        let mut shares: Vec<Share> = self.devices.iter().map(|_| Share::default()).collect();
        // The outcome of each operation so far; `None` for one that this device does not finish.
        let mut outcomes: Vec<Option<Result<Segments, DeviceError>>> = Vec::with_capacity(batch.len());
        for (index, operation) in batch.iter().enumerate() {
            outcomes.push(operation.is_pending().then(|| {
                geometry.admit(operation.request())?;
                self.split(index, operation.request(), &mut shares);
                Ok(Segments::default())
            }));
        }
        for (number, mut share) in shares.into_iter().enumerate() {
            if share.operations.is_empty() {
                continue;
            }
            self.devices[number].run(&mut share.operations);
            // The devices are in order, so the parts of a read are put together in order.
            for (operation, owner) in share.operations.into_iter().zip(share.owners) {
                let Some(outcome) = &mut outcomes[owner] else { continue };
                match (operation.into_data(), &mut *outcome) {
                    (Ok(data), Ok(whole)) => whole.append(data),
                    (Err(error), Ok(_)) => *outcome = Err(shifted(error, self.start(number))),
                    (_, Err(_)) => {}
                }
            }
        }
        for (operation, outcome) in batch.iter_mut().zip(outcomes) {
            if let Some(outcome) = outcome {
                operation.finish(outcome);
            }
        }
    }
}

impl Device for ConcatDevice {
    fn geometry(&self) -> Geometry {
        let all: Vec<Geometry> = self.devices.iter().map(|device| device.geometry()).collect();
        let alignment = alignment(&self.devices);
        let last = all[all.len() - 1].length;
        Geometry {
            length: self.start(all.len() - 1) + (last - last % u64::from(alignment)),
            alignment,
            read_only: all.iter().any(|geometry| geometry.read_only),
            trims: all.iter().any(|geometry| geometry.trims),
            fast_zeroes: all.iter().all(|geometry| geometry.fast_zeroes),
        }
    }

    fn run(&self, batch: &mut [Operation]) {
        // Operations after a flush wait until the flush is done on all devices: a write after it on
        // one device must not overtake a write before it on another.
        batch.split_inclusive_mut(Operation::is_flush).for_each(|stage| self.run_stage(stage));
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.geometry().admit_range(Action::Extents, offset, length)?;
        let mut extents = Vec::new();
        for part in self.parts(offset, length).filter(|part| part.length > 0) {
            let left = limit - extents.len();
            if left == 0 {
                break;
            }
            let found = self.devices[part.device].extents(part.offset, part.length, left)?;
            let covered: u64 = found.iter().map(|extent| extent.length).sum();
            extents.extend(found);
            if covered < part.length {
                break;
            }
        }
        Ok(extents)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.geometry().admit_range(Action::Write, offset, length)?;
        self.parts(offset, length)
            .filter(|part| part.length > 0)
            .try_for_each(|part| self.devices[part.device].prepare(part.offset, part.length))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.geometry().admit_range(Action::Write, offset, length)?;
        self.parts(offset, length).filter(|part| part.length > 0).try_for_each(|part| {
            let taken = self.devices[part.device].allocate(part.offset, part.length);
            taken.map_err(|error| shifted(error, self.start(part.device)))
        })
    }
}

impl std::fmt::Debug for ConcatDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConcatDevice").field("borders", &self.borders).finish_non_exhaustive()
    }
}

fn alignment(devices: &[Arc<dyn Device>]) -> u32 {
    devices.iter().map(|device| device.geometry().alignment).max().unwrap_or(1)
}

/// The error with its offset moved up by `start`.
fn shifted(error: DeviceError, start: u64) -> DeviceError {
    match error {
        DeviceError::Io { action, offset, length, source } => {
            DeviceError::Io { action, offset: offset.saturating_add(start), length, source }
        }
        DeviceError::NoSpace { offset, length } => {
            DeviceError::NoSpace { offset: offset.saturating_add(start), length }
        }
        DeviceError::Corrupt { offset, length } => {
            DeviceError::Corrupt { offset: offset.saturating_add(start), length }
        }
        other => other,
    }
}
