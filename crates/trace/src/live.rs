//! The figures of a plan for a device that is in use, at a bounded cost.
//!
//! A [`Curve`] analyses a sample of the writes: a hash of a block's number decides whether the
//! block is in it, so it has all writes of a block or none. The inputs of a plan (distances,
//! retained versions, transfers of an interval) are counted for each block by itself, so their
//! shares in the sample are those of the device. A cache with n blocks corresponds to one with n /
//! k blocks for a sample of one block in k (Waldspurger and others, *Efficient MRC Construction
//! with SHARDS*, FAST 2015). Sums are those of the sample times all block writes divided by those
//! in the sample, so that the total of writes is exact. The maximum transfer of an interval is
//! overestimated where it is few blocks: it is the largest of many counts with the noise of a
//! sample.
//!
//! *What it costs.* One block in eight is sampled, while few were touched. Once the sample has
//! 16,384 blocks it is replaced by one of a sixty-fourth, and so on, all of which were maintained
//! from the beginning. That is at most 2 MiB for a curve, whatever the device and however long. A
//! write costs a hash of each block that it touches; one in eight of them costs a clock, a lock and
//! some hundred nanoseconds more. Reads and flushes cost nothing. After a day a curve restarts, and
//! the last whole day is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{Clock, Timestamp};
use cairn_device::Request;
use cairn_format::trace::{TraceOp, TraceRecord};
use parking_lot::Mutex;

use crate::analyse::{AnalyseOptions, Analysis, dirty_blocks};
use crate::plan::{GRAINS_S, LAGS_S, Plan};
use crate::{Report, TraceError};

/// Block of the sample, in bytes.
const BLOCK: u64 = 4096;
/// One block in 2^n is in a sample: 8 at first. The last one has room for every device that there
/// can be.
const SHIFTS: [u32; 7] = [3, 6, 9, 12, 15, 18, 21];
/// Blocks of a sample at most, before the next one serves.
const BLOCKS_MAX: u64 = 16_384;
/// The cache that a plan takes a history to have, in bytes.
const CACHE: u64 = 256 << 20;
/// How long a curve lasts before it restarts: the longest lag in a plan's table.
const DAY: Duration = Duration::from_secs(86_400);
/// A curve younger than this is less informative than the last whole day.
const YOUNG: Duration = Duration::from_secs(21_600);
/// Devices that a curve of several can distinguish.
const DEVICES_MAX: usize = 4096;

/// A running sample.
struct Sample {
    shift: u32,
    /// Until it has too many blocks.
    analysis: Option<Analysis>,
}

/// The counts since some time.
struct Life {
    began: Timestamp,
    /// By the monotonic clock.
    start: Duration,
    /// Of the last request.
    last_ns: u64,
    /// Block writes of the device before it.
    writes_before: u64,
    samples: Vec<Sample>,
}

/// The figures so far, or those of a day.
#[derive(Debug, Clone)]
struct Figures {
    began: Timestamp,
    elapsed: Duration,
    writes: u64,
    one_in: u64,
    report: Report,
}

struct State {
    life: Life,
    /// The last whole day.
    day: Option<Figures>,
    devices: Vec<String>,
}

/// A plan from the writes to a device while it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct LivePlan {
    /// Since when.
    pub began: Timestamp,
    /// How long.
    pub elapsed: Duration,
    /// Bytes that were written meanwhile, in whole blocks of 4 KiB.
    pub written_bytes: u64,
    /// One block in this many is in the sample.
    pub one_in: u64,
    /// Blocks of the sample that were written.
    pub sampled_blocks: u64,
    /// The resulting plan.
    pub plan: Plan,
}

/// Statistics of the writes of a device, or of several together, while it is in use.
pub struct Curve {
    clock: Arc<dyn Clock>,
    /// Block writes, all of them.
    writes: AtomicU64,
    state: Mutex<State>,
}

impl Life {
    fn new(clock: &dyn Clock, writes_before: u64) -> Result<Self, TraceError> {
        let samples = SHIFTS.iter().map(|shift| {
            let seconds = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect();
            let options = AnalyseOptions {
                block_bytes: BLOCK,
                granularities: seconds(&GRAINS_S),
                intervals: seconds(&LAGS_S),
                write_caches: vec![(dirty_blocks(CACHE, BLOCK) >> shift).max(1)],
                read_caches: Vec::new(),
                plan_only: true,
                ..AnalyseOptions::default()
            };
            Ok(Sample { shift: *shift, analysis: Some(Analysis::new(options)?) })
        });
        let samples = samples.collect::<Result<_, TraceError>>()?;
        let (began, start) = (clock.now(), clock.monotonic());
        Ok(Self { began, start, last_ns: 0, writes_before, samples })
    }

    fn add(&mut self, record: &TraceRecord, hash: u32) -> Result<(), TraceError> {
        let last = self.samples.len() - 1;
        for (index, sample) in self.samples.iter_mut().enumerate() {
            if record.op == TraceOp::Write && !is_sampled(hash, sample.shift) {
                break;
            }
            let Some(analysis) = &mut sample.analysis else { continue };
            analysis.add(record)?;
            if analysis.blocks() >= BLOCKS_MAX && index < last {
                sample.analysis = None;
            }
        }
        Ok(())
    }

    fn figures(&self, elapsed: Duration, writes: u64) -> Result<Figures, TraceError> {
        let found = self.samples.iter().find_map(|sample| Some((sample.shift, sample.analysis.as_ref()?)));
        let (shift, analysis) = found.ok_or(TraceError::Empty)?;
        let mut report = analysis.clone().finish()?;
        // The time since the last request counts: nothing was written then.
        report.duration_s = elapsed.as_secs_f64();
        let writes = writes - self.writes_before;
        Ok(Figures { began: self.began, elapsed, writes, one_in: 1 << shift, report })
    }
}

impl Curve {
    /// Nothing is known yet.
    pub fn new(clock: Arc<dyn Clock>) -> Result<Self, TraceError> {
        let life = Life::new(&*clock, 0)?;
        let state = Mutex::new(State { life, day: None, devices: Vec::new() });
        Ok(Self { clock, writes: AtomicU64::new(0), state })
    }

    /// The number of a device in this curve. Devices beyond 4096 share a number.
    pub fn device(&self, name: &str) -> u32 {
        let mut state = self.state.lock();
        let devices = &mut state.devices;
        let known = devices.iter().position(|device| device == name);
        let number = known.unwrap_or_else(|| {
            if devices.len() < DEVICES_MAX {
                devices.push(name.to_owned());
            }
            devices.len() - 1
        });
        number as u32
    }

    /// Takes clients' requests to a device.
    pub fn note<'a>(&self, device: u32, requests: impl Iterator<Item = &'a Request>) {
        // Records of the sample, gathered before the lock is taken; most writes have none.
        let mut picked: Vec<(TraceRecord, u32)> = Vec::new();
        let mut writes = 0;
        for request in requests {
            match request {
                Request::Write { offset, data, .. } if !data.is_empty() => {
                    let Some(end) = offset.checked_add(data.len() as u64) else { continue };
                    let blocks = offset / BLOCK..end.div_ceil(BLOCK);
                    writes += blocks.end - blocks.start;
                    for block in blocks {
                        let hash = hash(device, block);
                        if is_sampled(hash, SHIFTS[0]) {
                            let offset = block * BLOCK;
                            let record =
                                TraceRecord { at_ns: 0, device, op: TraceOp::Write, offset, length: BLOCK };
                            picked.push((record, hash));
                        }
                    }
                }
                Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
                    let (offset, length) = (*offset, *length);
                    let record = TraceRecord { at_ns: 0, device, op: TraceOp::Trim, offset, length };
                    picked.push((record, 0));
                }
                _ => {}
            }
        }
        // Requests past every bound of the format are refused by the device as well.
        picked.retain(|(record, _)| record.is_valid());
        if !picked.is_empty() {
            let mut state = self.state.lock();
            // An analysis fails when it takes too much memory, which these never do; it would only
            // begin again.
            if self.take(&mut state, picked).is_err()
                && let Ok(life) = Life::new(&*self.clock, self.writes.load(Ordering::Relaxed))
            {
                state.life = life;
            }
        }
        // Only now: if a day ended above, these belong to the next one.
        self.writes.fetch_add(writes, Ordering::Relaxed);
    }

    fn take(&self, state: &mut State, picked: Vec<(TraceRecord, u32)>) -> Result<(), TraceError> {
        self.turn(state)?;
        let life = &mut state.life;
        let elapsed = self.clock.monotonic().saturating_sub(life.start);
        life.last_ns = life.last_ns.max(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        for (record, hash) in picked {
            life.add(&TraceRecord { at_ns: life.last_ns, ..record }, hash)?;
        }
        Ok(())
    }

    /// A day is over: it is stored, and another one begins.
    fn turn(&self, state: &mut State) -> Result<(), TraceError> {
        let elapsed = self.clock.monotonic().saturating_sub(state.life.start);
        if elapsed >= DAY {
            let writes = self.writes.load(Ordering::Relaxed);
            state.day = state.life.figures(elapsed, writes).ok();
            state.life = Life::new(&*self.clock, writes)?;
        }
        Ok(())
    }

    /// True when nothing was written for a day.
    pub fn is_idle(&self) -> bool {
        let mut state = self.state.lock();
        self.turn(&mut state).is_err() || (state.life.last_ns == 0 && state.day.is_none())
    }

    /// The plan for a mirror over a link of `link_bytes_per_s`, and for a history: from the last
    /// whole day while the present one is young, otherwise from the available data.
    ///
    /// [`TraceError::Empty`] when no block of the sample was written.
    pub fn plan(&self, link_bytes_per_s: f64) -> Result<LivePlan, TraceError> {
        let figures = {
            let mut state = self.state.lock();
            self.turn(&mut state)?;
            let elapsed = self.clock.monotonic().saturating_sub(state.life.start);
            match &state.day {
                Some(day) if elapsed < YOUNG => day.clone(),
                _ => state.life.figures(elapsed, self.writes.load(Ordering::Relaxed))?,
            }
        };
        let Figures { began, elapsed, writes, one_in, report } = figures;
        if report.w_block_writes == 0 {
            return Err(TraceError::Empty);
        }
        let scale = writes as f64 / report.w_block_writes as f64;
        let plan = Plan::of_sample(&report, link_bytes_per_s, scale);
        let sampled_blocks = report.f_unique_blocks_written;
        Ok(LivePlan { began, elapsed, written_bytes: writes * BLOCK, one_in, sampled_blocks, plan })
    }

    /// Bytes of memory that the samples take.
    pub fn memory(&self) -> u64 {
        let state = self.state.lock();
        state.life.samples.iter().filter_map(|sample| sample.analysis.as_ref()).map(Analysis::memory).sum()
    }
}

/// Evenly spread, whatever stride the blocks have: the finalizer of MurmurHash3.
fn hash(device: u32, block: u64) -> u32 {
    let mut mixed = block ^ (u64::from(device) << 51);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed >> 32) as u32
}

/// The sample of a larger shift is part of that of a smaller one.
fn is_sampled(hash: u32, shift: u32) -> bool {
    hash >> (32 - shift) == 0
}
