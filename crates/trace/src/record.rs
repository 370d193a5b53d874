//! Recording: client requests to a device go into a trace of ours while they use it.
//!
//! A [`Tap`] sits between a front end and a device, and passes all requests to the device. While
//! its [`Feed`] records, it also notes the time, kind and place of each request, but not its
//! content. One feed serves all sessions of an export, so a recording can begin and end while they
//! are open.
//!
//! A request costs one flag without a recording, otherwise a clock, some ten instructions of
//! encoding and its share of a lock that a batch takes once. About every ten thousand requests one
//! of them also packs and writes a frame of at most 64 KiB. The trace ends itself, whole, at its
//! length limit, at its time limit, or when it cannot be written: clients never notice. A crash
//! leaves all written frames.
//!
//! Not recorded: prefetches, which change nothing, and whether a write had to be durable at once.
//! Requests that the device refuses are in the trace, as clients made them.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{Clock, Timestamp};
use cairn_device::{Begun, Device, DeviceError, Extent, Geometry, Operation, Request, Segments, Ticket};
use parking_lot::Mutex;

use crate::writer::END_BYTES_MAX;
use crate::{Curve, TraceError, TraceHeader, TraceOp, TraceRecord, TraceWriter};

/// The limits of a recording.
#[derive(Debug, Clone, Copy)]
pub struct RecordOptions {
    /// Bytes of the trace at most: at least [`RECORD_BYTES_MIN`].
    pub bytes_max: u64,
    /// How long, from its beginning.
    pub time_max: Option<Duration>,
    /// Packed with zstd.
    pub packed: bool,
}

/// The smallest limit of a recording, in bytes: it holds some frames.
pub const RECORD_BYTES_MIN: u64 = 1 << 20;

/// Why a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordEnd {
    /// On request.
    Asked,
    /// The next requests could have made it longer than was allowed.
    Full,
    /// At its time limit.
    Time,
    /// It could not be written: the reason. The written part is a truncated trace.
    Failed(String),
}

/// How a recording is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordState {
    /// When it began.
    pub began: Timestamp,
    /// How long it has been running, or ran.
    pub elapsed: Duration,
    /// Requests in it.
    pub requests: u64,
    /// Bytes of the trace so far.
    pub bytes: u64,
    /// `None` while it runs.
    pub end: Option<RecordEnd>,
}

struct Recording {
    clock: Arc<dyn Clock>,
    /// By the monotonic clock.
    start: Duration,
    options: RecordOptions,
    /// Until it ends.
    writer: Option<TraceWriter<Box<dyn Write + Send>>>,
    state: RecordState,
}

impl Recording {
    fn note<'a>(&mut self, requests: impl Iterator<Item = &'a Request>) {
        let elapsed = self.clock.monotonic().saturating_sub(self.start);
        if self.options.time_max.is_some_and(|time| elapsed >= time) {
            return self.end(RecordEnd::Time);
        }
        let Some(writer) = &mut self.writer else { return };
        for request in requests {
            if writer.bytes() + END_BYTES_MAX > self.options.bytes_max {
                return self.end(RecordEnd::Full);
            }
            let at_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            let Some(record) = record_of(request, at_ns) else { continue };
            if let Err(error) = writer.push(&record) {
                return self.end(RecordEnd::Failed(error.to_string()));
            }
        }
    }

    fn end(&mut self, why: RecordEnd) {
        let Some(mut writer) = self.writer.take() else { return };
        self.state.elapsed = self.clock.monotonic().saturating_sub(self.start);
        if self.options.time_max.is_some_and(|time| self.state.elapsed > time) {
            self.state.elapsed = self.options.time_max.unwrap_or_default();
        }
        // The last frame counts before the end does, so that the figures are those of the file.
        let flushed = writer.flush();
        (self.state.requests, self.state.bytes) = (writer.records(), writer.bytes());
        let finished = flushed.and_then(|()| {
            let before = writer.bytes();
            writer.finish().map(|_| before)
        });
        self.state.end = Some(match (why, finished) {
            (RecordEnd::Failed(reason), _) => RecordEnd::Failed(reason),
            (_, Err(error)) => RecordEnd::Failed(error.to_string()),
            (why, Ok(_)) => {
                self.state.bytes += crate::writer::END_BYTES;
                why
            }
        });
    }

    fn state(&self) -> RecordState {
        let mut state = self.state.clone();
        if let Some(writer) = &self.writer {
            state.elapsed = self.clock.monotonic().saturating_sub(self.start);
            (state.requests, state.bytes) = (writer.records(), writer.bytes());
        }
        state
    }
}

fn record_of(request: &Request, at_ns: u64) -> Option<TraceRecord> {
    let (op, offset, length) = match request {
        Request::Read { offset, length } => (TraceOp::Read, *offset, u64::from(*length)),
        Request::Write { offset, data, .. } => (TraceOp::Write, *offset, data.len() as u64),
        Request::Trim { offset, length, .. } => (TraceOp::Trim, *offset, *length),
        Request::WriteZeroes { offset, length, .. } => (TraceOp::Zeroes, *offset, *length),
        Request::Flush => (TraceOp::Flush, 0, 0),
        Request::Prefetch { .. } => return None,
    };
    let record = TraceRecord { at_ns, device: 0, op, offset, length };
    // A request past every bound of the format is refused by the device as well.
    record.is_valid().then_some(record)
}

/// State shared by the taps of one export: whether they record, and where to.
#[derive(Default)]
pub struct Feed {
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

impl Feed {
    /// Starts to record requests to the device `name` into `output`. Refused while another
    /// recording of it runs; a finished one is replaced.
    pub fn start(
        &self,
        name: &str,
        output: Box<dyn Write + Send>,
        options: RecordOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<RecordState, TraceError> {
        let refuse = |what, rule| Err(TraceError::Refused { what, rule });
        if options.bytes_max < RECORD_BYTES_MIN {
            return refuse("the length of the trace", "it may take at least 1 MiB");
        }
        let mut slot = self.recording.lock();
        if slot.as_ref().is_some_and(|recording| recording.writer.is_some()) {
            return refuse("the recording", "one of this export is under way; end it first");
        }
        let began = clock.now();
        let header = TraceHeader { began_ns: began.0 };
        let mut writer = TraceWriter::new(output, &header, options.packed)?;
        writer.device(name)?;
        let state =
            RecordState { began, elapsed: Duration::ZERO, requests: 0, bytes: writer.bytes(), end: None };
        let start = clock.monotonic();
        *slot = Some(Recording { clock, start, options, writer: Some(writer), state: state.clone() });
        self.on.store(true, Ordering::Release);
        Ok(state)
    }

    /// Ends a running recording. Returns its last state; `None` when there was none.
    pub fn stop(&self) -> Option<RecordState> {
        let mut slot = self.recording.lock();
        let recording = slot.as_mut()?;
        recording.end(RecordEnd::Asked);
        self.on.store(false, Ordering::Release);
        Some(recording.state())
    }

    /// The state of the recording, or of the last one. A recording past its time limit ends here at
    /// the latest.
    pub fn state(&self) -> Option<RecordState> {
        let mut slot = self.recording.lock();
        let recording = slot.as_mut()?;
        recording.note(std::iter::empty());
        Some(recording.state())
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn note<'a>(&self, requests: impl Iterator<Item = &'a Request>) {
        let mut slot = self.recording.lock();
        let Some(recording) = slot.as_mut() else { return };
        recording.note(requests);
        if recording.writer.is_none() {
            self.on.store(false, Ordering::Release);
        }
    }
}

/// A device that can be recorded.
pub struct Tap {
    inner: Arc<dyn Device>,
    feed: Arc<Feed>,
    /// The curves of its writes, and its number in each.
    curves: Vec<(Arc<Curve>, u32)>,
}

impl Tap {
    /// Puts a tap on a device.
    pub fn new(inner: Arc<dyn Device>, feed: Arc<Feed>) -> Self {
        Self { inner, feed, curves: Vec::new() }
    }

    /// Adds its writes to a curve as well, under the given device name.
    pub fn with_curve(mut self, curve: Arc<Curve>, device: &str) -> Self {
        let number = curve.device(device);
        self.curves.push((curve, number));
        self
    }

    fn note<'a>(&self, requests: impl Iterator<Item = &'a Request> + Clone) {
        for (curve, device) in &self.curves {
            curve.note(*device, requests.clone());
        }
        if self.feed.is_on() {
            self.feed.note(requests);
        }
    }

    fn note_pending(&self, batch: &[Operation]) {
        self.note(batch.iter().filter(|operation| operation.is_pending()).map(Operation::request));
    }
}

impl Device for Tap {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.note_pending(batch);
        self.inner.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        let (all, writes) = (self.feed.is_on(), !self.curves.is_empty());
        let counts = |operation: &Operation| all || (writes && operation.request().is_mutation());
        let asked = batch.iter().enumerate().filter(|(_, operation)| operation.is_pending());
        let asked: Vec<usize> = asked.filter(|(_, operation)| counts(operation)).map(|(at, _)| at).collect();
        self.inner.run_ready(batch);
        // Those that stay pending come again with `run`, and are noted there.
        let done = asked.iter().map(|at| &batch[*at]).filter(|operation| !operation.is_pending());
        if done.clone().next().is_some() {
            self.note(done.map(Operation::request));
        }
    }

    fn begin(&self, batch: Vec<Operation>) -> Begun {
        self.note_pending(&batch);
        self.inner.begin(batch)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }

    fn atomic_bytes_max(&self) -> u32 {
        self.inner.atomic_bytes_max()
    }

    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        fua: bool,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        if self.feed.is_on() || !self.curves.is_empty() {
            let request = Request::Write { offset, data: data.clone(), fua };
            self.note(std::iter::once(&request));
        }
        self.inner.write_atomic(offset, data, fua, ticket)
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.allocate(offset, length)
    }
}
