//! Limits the cost of mirrors for clients of their source: the owner of a volume sets a limit for
//! the latency of 99 of 100 client requests, and transfers from that volume back off when it is
//! exceeded.
//!
//! Requests are timed at the volume ([`Governor::timed`]: a layer over the device of each exported
//! LUN), and counted by latency in buckets of an eighth of a power of two. Twice a second the last
//! half second is judged. Past the limit the total rate of the transfers is halved; well within it,
//! it grows by a quarter, until it no longer limits them. Too few requests are not significant:
//! they count as calm. The rate is never less than a MiB a second, so that a mirror is late and
//! never stalled.
//!
//! It adds only two clock reads and an addition to the path of a client.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use cairn_device::{Begun, Device, DeviceError, Extent, Geometry, Operation, Segments, Ticket};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::peers::pace::Pace;
use crate::state;

mod commands;

/// How often it is judged.
const TICK: Duration = Duration::from_millis(500);
/// Fewer requests in a tick say nothing of the hundredth.
const REQUESTS_MIN: u64 = 50;
/// The least rate, in bytes a second.
const RATE_MIN: f64 = (1 << 20) as f64;
/// Within this part of the limit it recovers.
const CALM: f64 = 0.8;
const BACK_OFF: f64 = 0.5;
const RECOVER: f64 = 1.25;
/// The limit is removed when the rate is this multiple of the rate before the limit.
const FREE: f64 = 2.0;
/// Eighths of powers of two, of microseconds: up to 2^20 us.
const BUCKETS: usize = 21 * 8;

/// Latencies of requests since the last judgement.
struct Latencies([AtomicU32; BUCKETS]);

impl Latencies {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    fn note(&self, took: Duration, requests: u32) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, (1 << 20) - 1);
        let power = micros.ilog2();
        // The three bits after the first.
        let eighth = if power >= 3 { (micros >> (power - 3)) & 7 } else { (micros << (3 - power)) & 7 };
        let bucket = power as usize * 8 + eighth as usize;
        self.0[bucket].fetch_add(requests, Ordering::Relaxed);
    }

    /// Empties it: how many there were, and the end of the bucket that the 99th hundredth is in.
    fn take(&self) -> (u64, Duration) {
        let counts: Vec<u64> =
            self.0.iter().map(|count| u64::from(count.swap(0, Ordering::Relaxed))).collect();
        let total: u64 = counts.iter().sum();
        let (mut seen, wanted) = (0, (total * 99).div_ceil(100));
        let at = counts.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        });
        let end = |bucket: usize| {
            let (power, eighth) = (bucket / 8, bucket % 8);
            Duration::from_nanos(((1_000u64 << power) * (9 + eighth as u64)) / 8)
        };
        (total, at.map_or(Duration::ZERO, end))
    }
}

/// The state from the last ticks.
#[derive(Default)]
struct Judgement {
    at: Duration,
    /// Of clients; none if there were too few requests.
    p99: Option<Duration>,
    /// Bytes that transfers have sent since.
    sent: u64,
    /// Permitted bytes a second; none for no limit.
    rate: Option<f64>,
    /// Bytes a second that they sent without a limit.
    free: f64,
}

impl Judgement {
    /// Judges a tick of that length.
    fn judge(&mut self, limit: Option<Duration>, (requests, p99): (u64, Duration), length: Duration) {
        let sent = self.sent as f64 / length.as_secs_f64();
        self.sent = 0;
        self.p99 = (requests >= REQUESTS_MIN).then_some(p99);
        let Some(limit) = limit else {
            self.rate = None;
            return;
        };
        if self.rate.is_none() {
            self.free = sent;
        }
        let over = self.p99.is_some_and(|p99| p99 > limit);
        let calm = self.p99.is_none_or(|p99| p99.as_secs_f64() <= limit.as_secs_f64() * CALM);
        self.rate = match self.rate {
            // A transfer that sends nothing does not cause the latency.
            None if over && sent > 0.0 => Some((sent * BACK_OFF).max(RATE_MIN)),
            Some(rate) if over => Some((rate.min(sent.max(RATE_MIN)) * BACK_OFF).max(RATE_MIN)),
            Some(rate) if calm => {
                Some(rate * RECOVER).filter(|rate| *rate < (self.free * FREE).max(RATE_MIN * FREE))
            }
            rate => rate,
        };
    }
}

/// The content of `governor.json`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct GovernorDocument {
    p99_us: Option<u64>,
}

/// The governor of one volume.
pub(crate) struct Governor {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    /// In microseconds; 0 for none.
    limit_us: AtomicU64,
    latencies: Latencies,
    judgement: Mutex<Judgement>,
    pace: Pace,
}

impl Governor {
    /// Loads the document in the folder of a volume.
    pub(crate) fn open(path: PathBuf, clock: Arc<dyn Clock>) -> Self {
        // If the limit is unknown there is none: a guess would slow down transfers that users wait
        // for.
        let limit = state::known::<GovernorDocument>(&path).0.and_then(|document| document.p99_us);
        let judgement = Mutex::new(Judgement { at: clock.monotonic(), ..Judgement::default() });
        Self {
            path,
            clock,
            limit_us: AtomicU64::new(limit.unwrap_or(0)),
            latencies: Latencies::new(),
            judgement,
            pace: Pace::default(),
        }
    }

    /// Loads the present document in the folder of the volume.
    pub(crate) fn read(&self) {
        let limit = state::known::<GovernorDocument>(&self.path).0.and_then(|document| document.p99_us);
        self.limit_us.store(limit.unwrap_or(0), Ordering::Relaxed);
    }

    fn limit(&self) -> Option<Duration> {
        let limit = self.limit_us.load(Ordering::Relaxed);
        (limit > 0).then(|| Duration::from_micros(limit))
    }

    /// A device whose requests are timed.
    pub(crate) fn timed(self: &Arc<Self>, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Timed { device, governor: self.clone() })
    }

    fn judge(&self) {
        let now = self.clock.monotonic();
        let mut judgement = self.judgement.lock();
        let length = now.saturating_sub(judgement.at);
        if length < TICK {
            return;
        }
        judgement.at = now;
        judgement.judge(self.limit(), self.latencies.take(), length);
        self.pace.set(judgement.rate.map(|rate| rate as u64));
    }

    /// A transfer has sent `bytes`: it waits here for the time that they take at the permitted
    /// rate. `rest` sleeps, and returns whether to continue.
    pub(crate) fn sent(&self, bytes: u64, rest: &mut dyn FnMut(Duration) -> bool) {
        self.judgement.lock().sent += bytes;
        self.judge();
        self.pace.pay(bytes as usize, &*self.clock, &mut |time| {
            self.judge();
            rest(time)
        });
    }

    pub(crate) fn show(&self, volume: &str) -> api::Governor {
        self.judge();
        let judgement = self.judgement.lock();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        api::Governor {
            volume: volume.to_owned(),
            p99_limit_us: self.limit().map(micros),
            p99_us: judgement.p99.map(micros),
            rate_bytes: judgement.rate.map(|rate| rate as u64),
        }
    }

    fn set(&self, p99_us: Option<u64>) -> Result<(), ServerError> {
        state::save(&self.path, &GovernorDocument { p99_us })?;
        self.limit_us.store(p99_us.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }
}

/// A device whose clients' requests are timed.
struct Timed {
    device: Arc<dyn Device>,
    governor: Arc<Governor>,
}

fn pending(batch: &[Operation]) -> usize {
    batch.iter().filter(|operation| operation.is_pending()).count()
}

impl Timed {
    fn time(&self, batch: &mut [Operation], work: impl FnOnce(&mut [Operation])) {
        let (clock, before) = (&self.governor.clock, pending(batch));
        let began = clock.monotonic();
        work(batch);
        let done = before.saturating_sub(pending(batch));
        if done > 0 {
            self.governor.latencies.note(clock.monotonic().saturating_sub(began), done as u32);
        }
    }
}

impl Device for Timed {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.time(batch, |batch| self.device.run(batch));
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.time(batch, |batch| self.device.run_ready(batch));
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
        let clock = &self.governor.clock;
        let began = clock.monotonic();
        let written = self.device.write_atomic(offset, data, fua, ticket);
        self.governor.latencies.note(clock.monotonic().saturating_sub(began), 1);
        written
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.prepare(offset, length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.allocate(offset, length)
    }
}

#[cfg(test)]
mod tests;
