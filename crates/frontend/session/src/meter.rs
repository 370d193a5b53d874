//! A session's activity: totals since it began, and rates and latencies of the last few seconds.
//!
//! A session records once a batch, under a lock that is free except during a read, and reads the
//! clock as often: the cost is too small to measure. Latencies go into buckets whose bounds are an
//! eighth apart, so reported latencies are too high by an eighth at most. Two halves of
//! [`METER_PERIOD`] each are kept, the current one and the previous one: reports cover the last 5
//! to 10 seconds.
//!
//! A latency is the time from when a request's first bytes were received to when its answer was
//! ready to be sent. It has the waiting for other requests of the batch and for the data of a write
//! in it, and neither the network's part nor a client's that takes no answers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::limits::METER_PERIOD;
use crate::locks::{AtomicU64, Mutex, MutexGuard};

/// Units of latency are 2^8 ns.
const UNIT_BITS: u32 = 8;
/// Buckets for each doubling are 2^3.
const FINE_BITS: u32 = 3;
/// Latencies of 2^28 units (68 s) and more are in the last bucket.
const BITS_MAX: u32 = 28;
const BUCKETS: usize = ((BITS_MAX - FINE_BITS + 1) << FINE_BITS) as usize;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Gives data to the client.
    Read,
    /// Takes data from the client.
    Write,
    /// Anything else that the device does: flushes, trims, zeroes.
    Other,
}

/// Rates and latencies of one kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rate {
    /// Requests a second.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Half of the requests took at most this long; `None` without requests.
    pub p50: Option<Duration>,
    /// 99 of 100 requests took at most this long.
    pub p99: Option<Duration>,
}

/// A session's recent activity.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Activity {
    /// The time that this is of, up to now.
    pub window: Duration,
    /// Reads.
    pub read: Rate,
    /// Writes.
    pub write: Rate,
    /// Anything else.
    pub other: Rate,
}

/// A session's activity since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Requests that were taken.
    pub requests: u64,
    /// Bytes read by the client.
    pub read_bytes: u64,
    /// Bytes written by the client.
    pub written_bytes: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

#[derive(Debug, Clone, Copy)]
struct Series {
    requests: u64,
    bytes: u64,
    buckets: [u32; BUCKETS],
}

#[derive(Debug)]
struct Half {
    begun: Instant,
    /// Read, write, other.
    series: [Series; 3],
}

impl Half {
    fn new(begun: Instant) -> Self {
        Self { begun, series: [Series { requests: 0, bytes: 0, buckets: [0; BUCKETS] }; 3] }
    }
}

#[derive(Debug)]
struct Recent {
    read_bytes: u64,
    written_bytes: u64,
    current: Half,
    /// The half before; none while the session is younger than one.
    previous: Option<Half>,
}

impl Recent {
    fn turn_to(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.current.begun);
        if age < METER_PERIOD {
            return;
        }
        let recent = age < 2 * METER_PERIOD;
        let begun = if recent { self.current.begun + METER_PERIOD } else { now };
        let over = std::mem::replace(&mut self.current, Half::new(begun));
        // After a long silence no earlier request is of the last seconds.
        let before = begun.checked_sub(METER_PERIOD).unwrap_or(begun);
        self.previous = Some(if recent { over } else { Half::new(before) });
    }
}

/// Counts the activity of one session. One thread records; any may read.
#[derive(Debug)]
pub struct Meter {
    requests: AtomicU64,
    recent: Mutex<Recent>,
}

/// The requests that are answered together.
pub struct Batch<'a> {
    now: Instant,
    recent: MutexGuard<'a, Recent>,
}

impl Meter {
    /// Of a session that begins now.
    pub fn new(now: Instant) -> Self {
        let recent = Recent { read_bytes: 0, written_bytes: 0, current: Half::new(now), previous: None };
        Self { requests: AtomicU64::new(0), recent: Mutex::new(recent) }
    }

    /// Counts requests that were taken.
    pub fn taken(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    /// Begins to record requests whose answers are ready `now`. Hold it for no longer than that
    /// takes.
    pub fn batch(&self, now: Instant) -> Batch<'_> {
        let mut recent = self.recent.lock();
        recent.turn_to(now);
        Batch { now, recent }
    }

    /// Since it began.
    pub fn totals(&self) -> Totals {
        let recent = self.recent.lock();
        Totals {
            requests: self.requests.load(Ordering::Relaxed),
            read_bytes: recent.read_bytes,
            written_bytes: recent.written_bytes,
        }
    }

    /// The last seconds.
    pub fn activity(&self, now: Instant) -> Activity {
        let mut recent = self.recent.lock();
        recent.turn_to(now);
        let begun = recent.previous.as_ref().unwrap_or(&recent.current).begun;
        let window = now.saturating_duration_since(begun);
        let rate = |kind: usize| {
            let current = &recent.current.series[kind];
            let previous = recent.previous.as_ref().map(|half| &half.series[kind]);
            rate(current, previous, window)
        };
        Activity { window, read: rate(0), write: rate(1), other: rate(2) }
    }
}

impl Batch<'_> {
    /// A request is done that was received at `since`, with the last `bytes` of its data.
    pub fn done(&mut self, kind: Kind, since: Instant, bytes: u64) {
        self.moved(kind, bytes);
        let latency = self.now.saturating_duration_since(since);
        let series = &mut self.recent.current.series[kind as usize];
        series.requests += 1;
        series.buckets[bucket(latency)] += 1;
    }

    /// A part of a request's data moved; the request continues.
    pub fn moved(&mut self, kind: Kind, bytes: u64) {
        self.recent.current.series[kind as usize].bytes += bytes;
        match kind {
            Kind::Read => self.recent.read_bytes += bytes,
            Kind::Write => self.recent.written_bytes += bytes,
            Kind::Other => {}
        }
    }
}

/// The bucket of a latency.
fn bucket(latency: Duration) -> usize {
    let units = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX) >> UNIT_BITS;
    let units = units.min((1 << BITS_MAX) - 1);
    if units < 1 << FINE_BITS {
        return units as usize;
    }
    let doubling = units.ilog2() - FINE_BITS;
    ((doubling << FINE_BITS) + (units >> doubling) as u32) as usize
}

/// Above every latency of a bucket, and below those of the next.
fn bound(bucket: usize) -> Duration {
    let next = bucket as u64 + 1;
    let units = if next <= 1 << FINE_BITS {
        next
    } else {
        let doubling = (next >> FINE_BITS) - 1;
        (next - (doubling << FINE_BITS)) << doubling
    };
    Duration::from_nanos(units << UNIT_BITS)
}

fn rate(current: &Series, previous: Option<&Series>, window: Duration) -> Rate {
    let sum = |count: fn(&Series) -> u64| count(current) + previous.map_or(0, count);
    let (requests, bytes) = (sum(|series| series.requests), sum(|series| series.bytes));
    let percentile = |part: u64| {
        let wanted = (requests * part).div_ceil(100);
        let mut seen = 0;
        let counts = (0..BUCKETS).map(|index| {
            u64::from(current.buckets[index]) + previous.map_or(0, |series| series.buckets[index].into())
        });
        let found = counts.enumerate().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.filter(|_| requests > 0).map(|(index, _)| bound(index))
    };
    // A session that has just begun has no meaningful rate yet.
    let seconds = window.as_secs_f64().max(0.1);
    Rate {
        per_second: requests as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
        p50: percentile(50),
        p99: percentile(99),
    }
}
