//! Reading ahead of a client that reads in order.
//!
//! A session reads from its device and sends to its client by turns, so without this the disk waits
//! while data is sent. A thread of the session brings the next part of the stream into the memory
//! of the device meanwhile. It asks for long parts: a device that stores neighbours at scattered
//! places sorts them and reads many at a time.
//!
//! Invariants:
//! - It only gives advice ([`Request::Prefetch`]). Data always comes from the device itself, so a
//!   client sees the same bytes with it and without.
//! - A read that needs a part on its way waits for that part and is not done twice. It waits for a
//!   second at most, and then reads by itself.
//! - Nothing is asked for while the stream is in memory, or when the device has no memory of its
//!   own.
//! - The thread begins with the first part. It has ended when the session drops the device, unless
//!   its part takes longer than a second: a disk that hangs holds up no session that has ended.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_base::BLOCK_SIZE;
use cairn_device::{Begun, Device, DeviceError, Extent, Geometry, Operation, Request, Segments, Ticket};
use parking_lot::{Condvar, Mutex};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes that are read in order before anything is asked for.
const IN_ORDER_MIN: u64 = 512 << 10;
/// The part of the stream that is asked for first. Each later one is twice as long, up to
/// [`PART_MAX`].
const PART_FIRST: u64 = 2 << 20;
const PART_MAX: u64 = 16 << 20;
/// How far from its place in the stream a read may be: clients send some reads out of order.
const SLACK: u64 = 2 << 20;
/// The longest wait for a part.
const PATIENCE: Duration = Duration::from_secs(1);
/// Reads of parts that were asked for and are not in memory, until the session gives up.
const MISSES_MAX: u32 = 64;

/// A device, read ahead for one session.
pub struct ReadAhead {
    device: Arc<dyn Device>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stream: Stream,
    /// Parts to bring in, in order.
    queue: VecDeque<Range<u64>>,
    /// The part that the thread brings in now.
    current: Option<Range<u64>>,
    /// That part takes so long that no read waits for it, and no other one is asked for.
    hangs: bool,
    /// The session is over, or the thread is.
    ended: bool,
    /// The thread uses the device no more.
    is_over: bool,
}

/// Where the blocks of a read were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    InMemory,
    OnItsWay,
    Missing,
}

/// Where a client reads, and how far ahead of it parts were asked for. Offsets in bytes.
#[derive(Debug, Default)]
struct Stream {
    /// The end of the last read in order.
    next: u64,
    /// Bytes that were read in order.
    in_order: u64,
    /// The end of the parts that were asked for; 0 without any.
    asked: u64,
    /// The length of the next part; 0 for [`PART_FIRST`].
    part: u64,
    /// A read since the last time that the stream was in memory had to wait for the device.
    missed: bool,
    /// Reads of parts that had been brought in, and were not in memory.
    misses: u32,
}

impl Stream {
    /// Takes note of a read on a device that ends at `end`. Returns the part to bring in next.
    fn note(&mut self, read: Range<u64>, found: Found, end: u64) -> Option<Range<u64>> {
        let ready = found == Found::InMemory;
        if read.start.abs_diff(self.next) > SLACK {
            let misses = self.misses;
            *self = Self {
                next: read.end,
                in_order: read.end - read.start,
                missed: !ready,
                misses,
                ..Self::default()
            };
            return None;
        }
        if read.end <= self.asked {
            match found {
                Found::InMemory => self.misses = 0,
                Found::OnItsWay => {}
                // The memory of the device is too small for it.
                Found::Missing => {
                    self.misses += 1;
                    self.part = (self.part / 4).max(PART_FIRST);
                }
            }
        }
        self.next = self.next.max(read.end);
        self.in_order += read.end - read.start;
        self.missed |= !ready;
        if self.in_order < IN_ORDER_MIN || !self.missed || self.misses >= MISSES_MAX {
            return None;
        }
        let part = self.part.max(PART_FIRST);
        let from = self.asked.max(self.next / BLOCK * BLOCK);
        let to = from.saturating_add(part).min(end);
        if from >= self.next.saturating_add(part) || from >= to {
            return None;
        }
        self.asked = to;
        self.part = (2 * part).min(PART_MAX);
        Some(from..to)
    }

    /// The last part was in memory already.
    fn is_in_memory(&mut self) {
        self.missed = false;
        self.asked = 0;
    }
}

impl State {
    /// True while one of these reads needs a part that is on its way.
    fn is_on_its_way(&self, reads: &[Range<u64>]) -> bool {
        let mut parts = self.current.iter().chain(&self.queue);
        !self.hangs
            && parts.any(|part| reads.iter().any(|read| read.start < part.end && part.start < read.end))
    }
}

impl ReadAhead {
    /// `device` for one session, whose client may read it in order.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, shared: Arc::default(), thread: Mutex::new(None) }
    }

    fn ask(&self, parts: Vec<Range<u64>>) {
        {
            let mut state = self.shared.state.lock();
            if state.ended {
                return;
            }
            state.queue.extend(parts);
        }
        self.shared.changed.notify_all();
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return;
        }
        let (device, shared) = (Arc::clone(&self.device), Arc::clone(&self.shared));
        let begun =
            std::thread::Builder::new().name("read-ahead".into()).spawn(move || work(&*device, &shared));
        match begun {
            Ok(handle) => *thread = Some(handle),
            Err(_) => end(&self.shared),
        }
    }

    /// Waits until no part that the reads of `batch` need is on its way; true if it waited. A batch
    /// with other pending operations does not wait.
    fn wait_for_parts(&self, batch: &[Operation]) -> bool {
        let pending = || batch.iter().filter(|operation| operation.is_pending()).map(Operation::request);
        if pending().any(|request| !matches!(request, Request::Read { .. })) {
            return false;
        }
        let reads: Vec<Range<u64>> = pending().filter_map(read_of).collect();
        let mut state = self.shared.state.lock();
        let until = Instant::now() + PATIENCE;
        let mut waited = false;
        while !state.ended && state.is_on_its_way(&reads) {
            waited = true;
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                state.queue.clear();
                state.hangs = true;
            }
        }
        waited
    }
}

fn read_of(request: &Request) -> Option<Range<u64>> {
    match *request {
        Request::Read { offset, length } => Some(offset..offset.saturating_add(u64::from(length))),
        _ => None,
    }
}

/// There is no thread from now on: nothing is asked for, and no read waits.
fn end(shared: &Shared) {
    let mut state = shared.state.lock();
    (state.ended, state.is_over) = (true, true);
    state.queue.clear();
    state.current = None;
    drop(state);
    shared.changed.notify_all();
}

/// Brings parts in until the session ends.
fn work(device: &dyn Device, shared: &Shared) {
    /// Also after a panic: reads wait for this thread.
    struct AtTheEnd<'a>(&'a Shared);
    impl Drop for AtTheEnd<'_> {
        fn drop(&mut self) {
            end(self.0);
        }
    }
    let _at_the_end = AtTheEnd(shared);
    loop {
        let part = {
            let mut state = shared.state.lock();
            loop {
                if state.ended {
                    return;
                }
                if let Some(part) = state.queue.pop_front() {
                    state.current = Some(part.clone());
                    break part;
                }
                shared.changed.wait(&mut state);
            }
        };
        let in_memory = is_in_memory(device, &part);
        if !in_memory {
            let (offset, length) = (part.start, part.end - part.start);
            // Advice: a failure comes back to the client when it reads.
            device.run(&mut [Operation::new(Request::Prefetch { offset, length })]);
        }
        let mut state = shared.state.lock();
        (state.current, state.hangs) = (None, false);
        if in_memory {
            state.stream.is_in_memory();
            state.queue.clear();
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// True if the first and the last block of the part need no waiting.
fn is_in_memory(device: &dyn Device, part: &Range<u64>) -> bool {
    let last = (part.end - 1) / BLOCK * BLOCK;
    let mut ends = [part.start..part.end.min(part.start + BLOCK), last..part.end]
        .map(|end| Operation::read(end.start, (end.end - end.start) as u32));
    device.run_ready(&mut ends);
    ends.iter().all(|end| !end.is_pending())
}

impl Device for ReadAhead {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        if self.wait_for_parts(batch) {
            self.device.run_ready(batch);
        }
        self.device.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.device.run_ready(batch);
        if !batch.iter().any(|operation| matches!(operation.request(), Request::Read { .. })) {
            return;
        }
        let mut parts = Vec::new();
        {
            let mut state = self.shared.state.lock();
            let asks = !state.ended && !state.hangs;
            let end = if asks { self.device.geometry().length } else { 0 };
            for operation in batch.iter() {
                if let Some(read) = read_of(operation.request()) {
                    let found = if !operation.is_pending() {
                        Found::InMemory
                    } else if state.is_on_its_way(std::slice::from_ref(&read)) {
                        Found::OnItsWay
                    } else {
                        Found::Missing
                    };
                    parts.extend(state.stream.note(read, found, end));
                }
            }
        }
        if !parts.is_empty() {
            self.ask(parts);
        }
    }

    fn begin(&self, batch: Vec<Operation>) -> Begun {
        self.device.begin(batch)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.device.extents(offset, length, limit)
    }

    fn atomic_bytes_max(&self) -> u32 {
        self.device.atomic_bytes_max()
    }

    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        fua: bool,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        self.device.write_atomic(offset, data, fua, ticket)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.allocate(offset, length)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.get_mut().take() else { return };
        let mut state = self.shared.state.lock();
        let until = Instant::now() + PATIENCE;
        while !state.is_over && !self.shared.changed.wait_until(&mut state, until).timed_out() {}
        let is_over = state.is_over;
        drop(state);
        if is_over {
            // If it panicked, the panic hook has reported that.
            let _ = thread.join();
        }
    }
}
