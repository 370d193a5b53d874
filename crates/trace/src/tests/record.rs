//! Recording a device in use: each request is in the trace once, in order, and the trace stays
//! within its limits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{ManualClock, Timestamp};
use cairn_device::{
    Device, DeviceError, Extent, Geometry, MemoryDevice, Operation, Request, Segments, Ticket,
};
use parking_lot::Mutex;

use super::*;

/// The written bytes, also after the writer is gone; at most `limit` bytes fit.
#[derive(Clone)]
struct Paper {
    bytes: Arc<Mutex<Vec<u8>>>,
    limit: usize,
}

impl Paper {
    fn new(limit: usize) -> Self {
        Self { bytes: Arc::default(), limit }
    }
}

impl Write for Paper {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        if bytes.len() + more.len() > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does those operations at once whose offset is even in blocks of 4 KiB, the others when it is
/// run.
struct HalfReady(MemoryDevice);

impl Device for HalfReady {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.0.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        for operation in batch {
            if operation.request().range().is_some_and(|(_, offset, _)| offset % 8192 == 0) {
                self.0.run(std::slice::from_mut(operation));
            }
        }
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, length, limit)
    }

    fn atomic_bytes_max(&self) -> u32 {
        8192
    }

    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        _fua: bool,
        _ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        self.0.write(offset, data)
    }
}

struct Recorder {
    clock: Arc<ManualClock>,
    feed: Arc<Feed>,
    tap: Tap,
}

impl Recorder {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
        let feed = Arc::new(Feed::default());
        let tap = Tap::new(Arc::new(HalfReady(MemoryDevice::new(1 << 20))), feed.clone());
        Self { clock, feed, tap }
    }

    fn start(&self, paper: &Paper, bytes_max: u64, time_max: Option<Duration>, packed: bool) {
        let options = RecordOptions { bytes_max, time_max, packed };
        self.feed.start("disk", Box::new(paper.clone()), options, self.clock.clone()).expect("a recording");
    }

    /// As a front end does it.
    fn run(&self, requests: Vec<Request>) {
        self.clock.advance(Duration::from_micros(7));
        let mut batch: Vec<Operation> = requests.into_iter().map(Operation::new).collect();
        self.tap.run_ready(&mut batch);
        self.tap.run(&mut batch);
        assert!(batch.iter().all(|operation| operation.outcome().is_some_and(Result::is_ok)));
    }

    fn write(&self, block: u64) {
        self.run(vec![Request::Write {
            offset: block * 4096,
            data: Segments::copy_of(&[1; 4096]),
            fua: false,
        }]);
    }
}

#[test]
fn each_request_is_recorded_once_with_its_time_whether_or_not_it_was_ready() {
    let (recorder, paper) = (Recorder::new(), Paper::new(usize::MAX));
    recorder.write(3);
    recorder.start(&paper, RECORD_BYTES_MIN, None, true);
    recorder.write(0);
    recorder.write(1);
    recorder.run(vec![
        Request::Read { offset: 4096, length: 4096 },
        Request::Read { offset: 8192, length: 4096 },
        Request::Prefetch { offset: 0, length: 4096 },
        Request::Trim { offset: 12_288, length: 4096, fua: false },
        Request::WriteZeroes { offset: 16_384, length: 8192, may_trim: true, fua: true },
        Request::Flush,
    ]);
    assert_eq!(recorder.tap.atomic_bytes_max(), 8192, "a tap hides nothing that its device can do");
    recorder.tap.write_atomic(0, Segments::copy_of(&[2; 8192]), true, None).expect("a write");
    let state = recorder.feed.stop().expect("a recording");
    assert_eq!((state.requests, state.end), (8, Some(RecordEnd::Asked)));
    recorder.write(4);
    let bytes = paper.bytes.lock().clone();
    assert_eq!(state.bytes, bytes.len() as u64);
    let (mut records, reader) = read(&bytes, &ReadOptions::default());
    assert_eq!((reader.problems().count, reader.began_ns()), (0, 1_700_000_000_000_014_000));
    assert!(records.is_sorted_by_key(|record| record.at_ns));
    records.sort_by_key(|record| (record.at_ns, record.offset));
    let found: Vec<(u64, TraceOp, u64, u64)> =
        records.iter().map(|record| (record.at_ns, record.op, record.offset, record.length)).collect();
    assert_eq!(
        found,
        [
            (0, TraceOp::Write, 0, 4096),
            (7000, TraceOp::Write, 4096, 4096),
            (14_000, TraceOp::Flush, 0, 0),
            (14_000, TraceOp::Write, 0, 8192),
            (14_000, TraceOp::Read, 4096, 4096),
            (14_000, TraceOp::Read, 8192, 4096),
            (14_000, TraceOp::Trim, 12_288, 4096),
            (14_000, TraceOp::Zeroes, 16_384, 8192),
        ]
    );
}

#[test]
fn recording_ends_whole_before_it_is_longer_than_it_may_be() {
    for packed in [false, true] {
        let (recorder, paper) = (Recorder::new(), Paper::new(usize::MAX));
        recorder.start(&paper, RECORD_BYTES_MIN, None, packed);
        let mut rng = Rng::new(5);
        let mut asked = 0u64;
        while recorder.feed.state().is_some_and(|state| state.end.is_none()) {
            for _ in 0..1000 {
                recorder.write(rng.below(256));
            }
            asked += 1000;
        }
        let state = recorder.feed.state().expect("a recording");
        assert_eq!(state.end, Some(RecordEnd::Full));
        let bytes = paper.bytes.lock().clone();
        assert_eq!(state.bytes, bytes.len() as u64);
        let near = RECORD_BYTES_MIN - 2 * (64 << 10)..=RECORD_BYTES_MIN;
        assert!(near.contains(&state.bytes), "{} bytes", state.bytes);
        let (records, reader) = read(&bytes, &ReadOptions::default());
        assert_eq!((records.len() as u64, reader.problems().count), (state.requests, 0));
        assert!(state.requests <= asked && state.requests + 1000 > asked);
    }
}

#[test]
fn recording_ends_with_its_time_and_makes_way_for_the_next_one() {
    let (recorder, paper) = (Recorder::new(), Paper::new(usize::MAX));
    recorder.start(&paper, RECORD_BYTES_MIN, Some(Duration::from_micros(20)), true);
    let options = RecordOptions { bytes_max: RECORD_BYTES_MIN, time_max: None, packed: true };
    let again = || recorder.feed.start("disk", Box::new(Paper::new(0)), options, recorder.clock.clone());
    assert!(matches!(again(), Err(TraceError::Refused { .. })), "one at a time");
    for block in 0..5 {
        recorder.write(block);
    }
    let state = recorder.feed.state().expect("a recording");
    assert_eq!((state.requests, state.end), (2, Some(RecordEnd::Time)));
    assert_eq!(state.elapsed, Duration::from_micros(20));
    assert_eq!(read(&*paper.bytes.lock(), &ReadOptions::default()).0.len(), 2);
    assert!(matches!(again(), Err(TraceError::Io(_))), "there is no room for even its head");
    recorder.start(&Paper::new(usize::MAX), RECORD_BYTES_MIN, None, true);
    recorder.write(0);
    assert_eq!(recorder.feed.stop().map(|state| state.requests), Some(1));
}

#[test]
fn clients_do_not_notice_a_trace_that_cannot_be_written() {
    let (recorder, paper) = (Recorder::new(), Paper::new(100 << 10));
    recorder.start(&paper, RECORD_BYTES_MIN, None, false);
    let mut rng = Rng::new(5);
    for _ in 0..60_000 {
        recorder.write(rng.below(256));
    }
    let state = recorder.feed.state().expect("a recording");
    assert!(matches!(state.end, Some(RecordEnd::Failed(_))), "{state:?}");
    let (records, reader) = read(&*paper.bytes.lock(), &ReadOptions::default());
    assert!(!records.is_empty() && reader.problems().count > 0, "what was written says that it was cut off");
}
