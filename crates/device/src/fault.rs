//! A device that loses power and spoils data, on purpose and repeatably.
//!
//! # The fault model
//!
//! The device is an image on a medium under a volatile cache. Reads see the cache. A write, trim or
//! write-zeroes is volatile until a flush that comes after it completes; with FUA it is durable
//! when it completes. Durable bytes survive any number of power cuts.
//!
//! **Must be survived.** When the power fails, each volatile write is, independently of all others,
//! kept, lost, or torn at 512 bytes: each sector is then old or new, never a mixture. The medium
//! keeps no order: a later write can be kept and an earlier one lost, also in the same place. A cut
//! comes between two operations or inside one. The operation during a cut fails towards the caller,
//! and so does the rest of its batch. But the batch's operations before the next flush were in
//! flight and can be kept too. A flush during a cut makes nothing durable for certain.
//!
//! **Must be detected, and not more.** Media faults: damaged bytes, a failing read, a write that is
//! acknowledged and never reaches the medium, a write to the wrong place. The cache does not hide
//! them: they show at once.
//!
//! **Must be survived** as well: a part of the device can be a sparse file on a host file system
//! that has no room left for unallocated places.
//!
//! Not modelled: a half-written sector, a device that loses acknowledged flushes, and durable bytes
//! that a power cut spoils although nothing was written near them.
//!
//! Parts of it can represent several devices on one power supply: the power fails for all at the
//! same moment, and a flush of one makes nothing durable that another has in its cache. A batch
//! that is begun on one part while another part works is done before or after that one, in turn.
//! When the power fails in the first, the second was in flight as well.
//!
//! The same calls with the same seed give the same bytes.

mod host;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Rng};
use parking_lot::Mutex;

use self::host::Host;
use crate::image::{self, Image};
use crate::{
    Action, Begun, Device, DeviceError, Extent, Geometry, MemoryDevice, Operation, Request, Segments,
};

/// The unit that a disk writes as a whole or not at all, in bytes.
const SECTOR: u64 = 512;

/// A kind of operation that is logged and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoggedKind {
    /// A write.
    Write,
    /// A trim.
    Trim,
    /// A write-zeroes.
    WriteZeroes,
    /// A flush.
    Flush,
}

/// An operation as it came, for golden traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoggedOperation {
    /// The kind of the request.
    pub kind: LoggedKind,
    /// Bytes; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
    /// It was to be durable when it completes.
    pub fua: bool,
}

/// A device with a volatile cache whose power can be cut, see the head of the file. Alignment 4096,
/// as a disk with direct I/O has it, or 512.
#[derive(Debug)]
pub struct FaultDevice {
    length: u64,
    alignment: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    /// The content that reads see.
    current: Image,
    /// The durable content, without the entries of `cache` that are certain.
    durable: Image,
    /// Changes since the last flush, in order.
    cache: Vec<Change>,
    operations: u64,
    /// Batches with reads since the last query.
    read_batches: u64,
    /// Operations until the power fails.
    cut: Option<u64>,
    off: bool,
    unreadable: Vec<Range<u64>>,
    next_fault: Option<WriteFault>,
    failure: Option<Failure>,
    /// The host whose room a part of the device takes.
    host: Option<Host>,
    log: Vec<LoggedOperation>,
    /// Batches begun so far: every other one is done first, or when it is waited for.
    begun: u64,
    /// The power failed in a begun batch, and the operations of the next batch were in flight too.
    beside: bool,
}

#[derive(Debug, Clone)]
struct Change {
    offset: u64,
    content: Content,
    /// It is on the medium whatever happens.
    certain: bool,
}

#[derive(Debug, Clone)]
enum Content {
    Data(Segments),
    Zeroes(u64),
}

/// The fate of volatile writes when the power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// All are lost.
    Lost,
    /// All are kept.
    Kept,
    /// Those before a random one are kept, that one is torn, later ones are lost.
    Prefix,
    /// Each is kept, lost or torn, at random.
    Each,
}

impl Fate {
    /// All of them.
    pub const ALL: [Fate; 4] = [Fate::Lost, Fate::Kept, Fate::Prefix, Fate::Each];

    /// A random fate. With many writes in the cache, independent choices would almost never keep
    /// all, none, or a prefix, and real disks do these most of the time.
    pub fn random(rng: &mut Rng) -> Self {
        match rng.below(6) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            2 => Fate::Prefix,
            _ => Fate::Each,
        }
    }
}

/// The failure of operations in a range.
#[derive(Debug, Clone)]
struct Failure {
    range: Range<u64>,
    /// This many succeed first.
    after: u64,
    /// This many fail then.
    times: u64,
    error: DeviceError,
}

#[derive(Debug, Clone, Copy)]
enum WriteFault {
    Lose,
    Misdirect(i64),
}

impl FaultDevice {
    /// A device of `length` bytes of zeroes; panics unless the length is a multiple of 4096.
    pub fn new(length: u64) -> Self {
        assert!(length.is_multiple_of(BLOCK_SIZE as u64), "the length is a multiple of the alignment");
        Self { length, alignment: BLOCK_SIZE as u32, state: Mutex::default() }
    }

    /// The same device with sectors of 512 bytes that can be written alone.
    pub fn with_sectors(self) -> Self {
        Self { alignment: SECTOR as u32, ..self }
    }

    /// Writes, trims, write-zeroes and flushes that were taken so far; reads do not count.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// The next `n` operations complete; at the one after them the power fails. From then on every
    /// request fails with [`DeviceError::OutOfService`], until [`power_cycle`](Self::power_cycle).
    pub fn cut_after(&self, n: u64) {
        self.state.lock().cut = Some(n);
    }

    /// True when the power is gone.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// An independent copy: operations on one do not affect the other.
    pub fn fork(&self) -> FaultDevice {
        FaultDevice {
            length: self.length,
            alignment: self.alignment,
            state: Mutex::new(self.state.lock().clone()),
        }
    }

    /// The device after the power failed now (or at the cut) and returned, with a random fate.
    pub fn power_cycle(&self, rng: &mut Rng) -> FaultDevice {
        let fate = Fate::random(rng);
        self.power_cycle_as(fate, rng)
    }

    /// The device after the power failed now (or at the cut) and returned. Unreadable places stay
    /// so; the count of operations and the log restart.
    pub fn power_cycle_as(&self, fate: Fate, rng: &mut Rng) -> FaultDevice {
        let state = self.state.lock();
        let mut medium = state.durable.clone();
        let volatile = state.cache.iter().filter(|change| !change.certain).count() as u64;
        let kept_until = match fate {
            Fate::Lost => Some(0),
            Fate::Kept => Some(volatile),
            Fate::Prefix => Some(rng.below(volatile + 1)),
            Fate::Each => None,
        };
        let mut number = 0;
        for change in &state.cache {
            if change.certain {
                change.apply(&mut medium);
                continue;
            }
            match kept_until {
                Some(limit) if number < limit => change.apply(&mut medium),
                // The power went in the middle of the first one that is not kept.
                Some(limit) if number == limit && fate == Fate::Prefix => change.tear(&mut medium, rng),
                Some(_) => {}
                None => match rng.below(3) {
                    0 => change.apply(&mut medium),
                    1 => change.tear(&mut medium, rng),
                    _ => {}
                },
            }
            number += 1;
        }
        let next = State {
            current: medium.clone(),
            durable: medium,
            unreadable: state.unreadable.clone(),
            host: state.host.clone(),
            ..State::default()
        };
        FaultDevice { length: self.length, alignment: self.alignment, state: Mutex::new(next) }
    }

    /// The content that is certainly on the medium: every volatile write is lost.
    pub fn durable_snapshot(&self) -> MemoryDevice {
        let state = self.state.lock();
        let mut medium = state.durable.clone();
        state.cache.iter().filter(|change| change.certain).for_each(|change| change.apply(&mut medium));
        MemoryDevice::with_image(self.length, medium)
    }

    /// Spoils every byte of the range, in the cache and on the medium.
    pub fn corrupt(&self, offset: u64, length: u64, rng: &mut Rng) {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length), "the range is within");
        let mut state = self.state.lock();
        let mut bytes = state.current.read(offset, length).to_vec();
        bytes.iter_mut().for_each(|byte| *byte ^= 1 + rng.below(255) as u8);
        let content = Content::Data(Segments::copy_of(&bytes));
        state.change(Change { offset, content, certain: true });
    }

    /// From now on every read that touches the range fails, also after a power cycle.
    pub fn fail_reads(&self, range: Range<u64>) {
        self.state.lock().unreadable.push(range);
    }

    /// Every place can be read again.
    pub fn heal_reads(&self) {
        self.state.lock().unreadable.clear();
    }

    /// The next write succeeds towards the caller and changes nothing.
    pub fn lose_next_write(&self) {
        self.state.lock().next_fault = Some(WriteFault::Lose);
    }

    /// The next write succeeds towards the caller and lands `by` bytes further (or before, when
    /// negative), as far as that is on the device.
    pub fn misdirect_next_write(&self, by: i64) {
        self.state.lock().next_fault = Some(WriteFault::Misdirect(by));
    }

    /// The next operation that counts fails with `error` and changes nothing: a full or a failing
    /// disk.
    pub fn fail_next_operation(&self, error: DeviceError) {
        self.fail_operations(0, 1, error);
    }

    /// Of the operations that count `after` succeed, then `times` fail with `error` and change
    /// nothing (`u64::MAX`: all, until [`Self::heal_operations`] or a power cycle).
    pub fn fail_operations(&self, after: u64, times: u64, error: DeviceError) {
        self.state.lock().failure = Some(Failure { range: 0..self.length, after, times, error });
    }

    /// Operations succeed again.
    pub fn heal_operations(&self) {
        self.state.lock().failure = None;
    }

    /// From now on `file` is a sparse file on a host file system with `bytes` bytes left, also
    /// after a power cycle: a write to unallocated places takes some of them, and fails with
    /// [`DeviceError::NoSpace`] if there are too few. `promises`: [`Device::allocate`] reserves
    /// room; otherwise it does nothing.
    pub fn be_sparse(&self, file: Range<u64>, bytes: u64, promises: bool) {
        let mut state = self.state.lock();
        state.host = Some(Host::new(file, bytes, promises, &state.current));
    }

    /// The host file system has this many bytes left from now on.
    pub fn leave_room(&self, bytes: u64) {
        if let Some(host) = &mut self.state.lock().host {
            host.leave(bytes);
        }
    }

    fn allocate_in(&self, part: &Range<u64>, offset: u64, length: u64) -> Result<(), DeviceError> {
        geometry(part.end - part.start, self.alignment).admit_range(Action::Write, offset, length)?;
        let mut state = self.state.lock();
        if state.off {
            return Err(DeviceError::OutOfService);
        }
        let had = state.host.as_mut().map_or(length, |host| host.take_ahead(part.start + offset, length));
        if had < length { Err(DeviceError::NoSpace { offset, length }) } else { Ok(()) }
    }

    /// A stretch as a device of its own, on the same power supply as the rest. Parts that are used
    /// together do not overlap.
    pub fn part(self: &Arc<Self>, range: Range<u64>) -> FaultPart {
        let aligned = |offset: u64| offset.is_multiple_of(BLOCK_SIZE as u64);
        assert!(aligned(range.start) && aligned(range.end) && range.start <= range.end);
        assert!(range.end <= self.length, "the part is within");
        FaultPart { whole: self.clone(), range }
    }

    /// How many batches had reads since the last call: how often a caller waited for the device.
    pub fn take_read_batches(&self) -> u64 {
        std::mem::take(&mut self.state.lock().read_batches)
    }

    /// Operations since the last call, in order.
    pub fn take_log(&self) -> Vec<LoggedOperation> {
        std::mem::take(&mut self.state.lock().log)
    }
}

fn geometry(length: u64, alignment: u32) -> Geometry {
    Geometry { length, alignment, read_only: false, trims: true, fast_zeroes: true }
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        geometry(self.length, self.alignment)
    }

    fn run(&self, batch: &mut [Operation]) {
        self.run_in(&(0..self.length), batch, false);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.extents_in(&(0..self.length), offset, length, limit)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.allocate_in(&(0..self.length), offset, length)
    }
}

/// A stretch of a [`FaultDevice`] that represents a device of its own.
#[derive(Debug, Clone)]
pub struct FaultPart {
    whole: Arc<FaultDevice>,
    range: Range<u64>,
}

impl FaultPart {
    /// The next operation on this part that counts fails with `error` and changes nothing.
    pub fn fail_next_operation(&self, error: DeviceError) {
        self.whole.state.lock().failure =
            Some(Failure { range: self.range.clone(), after: 0, times: 1, error });
    }
}

impl FaultPart {
    /// A batch in progress when the power failed: its operations before the first flush may be
    /// kept.
    pub fn catch(&self, batch: &mut [Operation]) {
        self.whole.run_in(&self.range, batch, true);
    }
}

impl Device for FaultPart {
    fn geometry(&self) -> Geometry {
        geometry(self.range.end - self.range.start, self.whole.alignment)
    }

    fn run(&self, batch: &mut [Operation]) {
        self.whole.run_in(&self.range, batch, false);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.run(batch);
    }

    fn begin(&self, mut batch: Vec<Operation>) -> Begun {
        let (later, was_on) = {
            let mut state = self.whole.state.lock();
            state.begun += 1;
            (state.begun.is_multiple_of(2), !state.off)
        };
        if later {
            let part = self.clone();
            return Begun::later(move || {
                let under_way = was_on && part.whole.is_off();
                part.whole.run_in(&part.range, &mut batch, under_way);
                batch.into_iter().try_for_each(Operation::into_outcome)
            });
        }
        self.run(&mut batch);
        let mut state = self.whole.state.lock();
        state.beside = was_on && state.off;
        Begun::done(batch)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.whole.extents_in(&self.range, offset, length, limit)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.whole.allocate_in(&self.range, offset, length)
    }
}

impl FaultDevice {
    /// Runs a batch on a part. `under_way`: the power has failed while it was at work beside
    /// another one.
    fn run_in(&self, part: &Range<u64>, batch: &mut [Operation], under_way: bool) {
        let geometry = geometry(part.end - part.start, self.alignment);
        let mut state = self.state.lock();
        // Set from the cut to the next flush of this batch: these operations were in flight.
        let mut on_its_way = under_way || std::mem::take(&mut state.beside);
        let is_read = |operation: &Operation| matches!(operation.request(), Request::Read { .. });
        state.read_batches += u64::from(batch.iter().any(is_read));
        for operation in batch {
            if !operation.is_pending() {
                continue;
            }
            let admitted = geometry.admit(operation.request());
            let request = shifted(operation.request(), part.start);
            if matches!(request, Request::Flush) {
                on_its_way = false;
            }
            if state.off {
                if on_its_way && admitted.is_ok() {
                    state.leave_in_cache(&request);
                }
                operation.finish(Err(DeviceError::OutOfService));
                continue;
            }
            let outcome = admitted.and_then(|()| state.perform(&request, part, self.length));
            on_its_way = state.off && !matches!(request, Request::Flush);
            operation.finish(outcome);
        }
    }

    fn extents_in(
        &self,
        part: &Range<u64>,
        offset: u64,
        length: u64,
        limit: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        geometry(part.end - part.start, self.alignment).admit_range(Action::Extents, offset, length)?;
        let state = self.state.lock();
        if state.off {
            return Err(DeviceError::OutOfService);
        }
        Ok(image::extents(&state.current, part.start + offset, length, limit))
    }
}

/// A request at a place `by` bytes further.
fn shifted(request: &Request, by: u64) -> Request {
    let mut request = request.clone();
    match &mut request {
        Request::Flush => {}
        Request::Read { offset, .. }
        | Request::Write { offset, .. }
        | Request::Trim { offset, .. }
        | Request::WriteZeroes { offset, .. }
        | Request::Prefetch { offset, .. } => *offset = offset.saturating_add(by),
    }
    request
}

impl State {
    fn perform(
        &mut self,
        request: &Request,
        part: &Range<u64>,
        length: u64,
    ) -> Result<Segments, DeviceError> {
        if let Request::Read { offset, length } = *request {
            return self.read(offset, u64::from(length));
        }
        let Some(logged) = LoggedOperation::of(request) else { return Ok(Segments::default()) };
        self.log.push(logged);
        if self.cut == Some(0) {
            self.off = true;
            self.leave_in_cache(request);
            return Err(DeviceError::OutOfService);
        }
        self.cut = self.cut.map(|left| left - 1);
        self.operations += 1;
        let (start, end) = request.range().map_or((part.start, part.end), |(_, at, count)| (at, at + count));
        if let Some(failure) = &mut self.failure
            && failure.range.start <= start
            && end <= failure.range.end
        {
            if let Some(after) = failure.after.checked_sub(1) {
                failure.after = after;
            } else if let Some(times) = failure.times.checked_sub(1) {
                failure.times = times;
                return Err(failure.error.clone());
            }
        }
        match Change::of(request, logged.fua) {
            None => self.flush(part),
            Some(change) => {
                let fits = self.find_room(request);
                self.write(change.up_to(fits), length);
                if fits < end - start {
                    return Err(DeviceError::NoSpace { offset: start - part.start, length: end - start });
                }
            }
        }
        Ok(Segments::default())
    }

    /// Bytes of a change that the host file system has room for.
    fn find_room(&mut self, request: &Request) -> u64 {
        let (Some(host), Some((_, offset, length))) = (&mut self.host, request.range()) else {
            return u64::MAX;
        };
        if matches!(request, Request::Trim { .. } | Request::WriteZeroes { may_trim: true, .. }) {
            host.give_back(offset, length);
            return length;
        }
        host.take(offset, length)
    }

    fn read(&self, offset: u64, length: u64) -> Result<Segments, DeviceError> {
        let end = offset + length;
        if self.unreadable.iter().any(|range| range.start < end && offset < range.end) {
            let source = Arc::new(io::Error::from_raw_os_error(libc::EIO));
            return Err(DeviceError::Io { action: Action::Read, offset, length, source });
        }
        Ok(self.current.read(offset, length))
    }

    fn write(&mut self, change: Change, length: u64) {
        let fault = match change.content {
            Content::Data(_) => self.next_fault.take(),
            Content::Zeroes(_) => None,
        };
        match fault {
            None => self.change(change),
            Some(WriteFault::Lose) => {}
            Some(WriteFault::Misdirect(by)) => {
                let to = change.offset.checked_add_signed(by);
                let fits = |to: &u64| to.checked_add(change.length()).is_some_and(|end| end <= length);
                if let Some(offset) = to.filter(fits) {
                    self.change(Change { offset, ..change });
                }
            }
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        if change.certain && self.cache.is_empty() {
            change.apply(&mut self.durable);
        } else {
            self.cache.push(change);
        }
    }

    /// Takes an operation that was in flight during the power cut: it may be kept, whatever FUA
    /// said.
    fn leave_in_cache(&mut self, request: &Request) {
        self.cache.extend(Change::of(request, false));
    }

    fn flush(&mut self, part: &Range<u64>) {
        for change in self.cache.extract_if(.., |change| part.contains(&change.offset)) {
            change.apply(&mut self.durable);
        }
    }
}

impl Change {
    /// The change that a request makes, if it makes one.
    fn of(request: &Request, certain: bool) -> Option<Self> {
        let (offset, content) = match request {
            Request::Write { offset, data, .. } => (*offset, Content::Data(data.clone())),
            Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
                (*offset, Content::Zeroes(*length))
            }
            Request::Read { .. } | Request::Flush | Request::Prefetch { .. } => return None,
        };
        Some(Self { offset, content, certain })
    }

    /// This many bytes of it, from its start.
    fn up_to(self, bytes: u64) -> Self {
        if bytes >= self.length() {
            return self;
        }
        let content = match self.content {
            Content::Data(data) => Content::Data(data.slice(0, bytes as usize)),
            Content::Zeroes(_) => Content::Zeroes(bytes),
        };
        Self { content, ..self }
    }

    fn length(&self) -> u64 {
        match &self.content {
            Content::Data(data) => data.len() as u64,
            Content::Zeroes(length) => *length,
        }
    }

    fn apply(&self, image: &mut Image) {
        self.apply_part(image, 0, self.length());
    }

    fn apply_part(&self, image: &mut Image, skip: u64, length: u64) {
        match &self.content {
            Content::Data(data) => {
                image.write(self.offset + skip, &data.slice(skip as usize, length as usize));
            }
            Content::Zeroes(_) => image.clear(self.offset + skip, length),
        }
    }

    /// Applies some of the sectors: those before a random one, or each one or not at random.
    fn tear(&self, image: &mut Image, rng: &mut Rng) {
        let sectors = self.length().div_ceil(SECTOR);
        let part = |sector: u64| (sector * SECTOR, SECTOR.min(self.length() - sector * SECTOR));
        if rng.one_in(2) {
            let kept = (rng.below(sectors + 1) * SECTOR).min(self.length());
            self.apply_part(image, 0, kept);
            return;
        }
        // A trim can be as long as the device; a run of sectors with one fate keeps that
        // affordable.
        let run = sectors.div_ceil(MAX_TORN_RUNS).max(1);
        let mut sector = 0;
        while sector < sectors {
            let last = (sector + run).min(sectors) - 1;
            if rng.one_in(2) {
                let (skip, _) = part(sector);
                let (start, length) = part(last);
                self.apply_part(image, skip, start + length - skip);
            }
            sector = last + 1;
        }
    }
}

/// Runs of sectors that a torn operation is made of, at most: up to 2 MiB, each sector is one.
const MAX_TORN_RUNS: u64 = 4096;

impl LoggedOperation {
    /// `None` for an operation that is neither logged nor counted.
    fn of(request: &Request) -> Option<Self> {
        let (kind, fua) = match request {
            Request::Write { fua, .. } => (LoggedKind::Write, *fua),
            Request::Trim { fua, .. } => (LoggedKind::Trim, *fua),
            Request::WriteZeroes { fua, .. } => (LoggedKind::WriteZeroes, *fua),
            Request::Flush => (LoggedKind::Flush, false),
            Request::Read { .. } | Request::Prefetch { .. } => return None,
        };
        let (offset, length) = request.range().map_or((0, 0), |(_, offset, length)| (offset, length));
        Some(Self { kind, offset, length, fua })
    }
}
