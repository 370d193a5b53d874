//! Replays a trace: its requests on a history, and the measured cost of each next to the papers'
//! model.
//!
//! Time is the trace's own: the history's clock is set to each request's time, so that an hour of a
//! trace takes as long as its I/O does and granularities keep their meaning. Written content is
//! generated and the same for every replay; each block differs from the previous one.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Clock, ManualClock, Timestamp};
use cairn_device::{Block, Device, Operation, Request, Segments};
use cairn_history::{Counters, Granularity, History, HistoryOptions, LogPosition, OpenOptions, Placement};
use serde::Serialize;

use crate::{AnalyseOptions, Analysis, TraceError, TraceOp, TraceReader, TraceRecord};

/// Where time 0 of a trace is put: a multiple of a day after 1970, so that windows of any part of a
/// day begin with the trace.
const BEGAN_NS: u64 = 20_000 * 86_400 * 1_000_000_000;
/// Contents that blocks get by turns.
const CONTENTS: usize = 64;
/// Bytes of memory that a history's write cache takes for a version in addition to its content.
const CACHE_OVERHEAD: u64 = 64;
/// The devices of a trace follow one another, each at a multiple of this.
const DEVICE_ALIGNMENT: u64 = 1 << 20;

/// How a trace is replayed.
#[derive(Debug, Clone, Copy)]
pub struct ReplayOptions {
    /// Where versions go.
    pub placement: Placement,
    /// Which instants are kept.
    pub granularity: Granularity,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks that can be dirty.
    pub dirty_blocks: u64,
    /// Bytes of read cache.
    pub read_bytes: u64,
    /// Bytes of memory that the survey may take.
    pub memory_max: u64,
}

/// The parameters for replaying a trace: found in a first pass, with the model's results.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Where each device begins on the one device that is replayed on.
    starts: Vec<u64>,
    /// Bytes of that device.
    pub origin_bytes: u64,
    /// Bytes that hold the history of the whole trace, whatever the placement.
    pub store_bytes: u64,
    /// c, r and d of the model (FAST 2007, figure 5).
    pub model: Model,
}

/// The model's shares for one granularity and one write cache.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Model {
    /// Evicted.
    pub c: f64,
    /// Retained.
    pub r: f64,
    /// Incurred.
    pub d: f64,
}

impl Model {
    /// I/O for each block write.
    pub fn io(&self, placement: Placement) -> f64 {
        let (checkpointing, split) = (self.d + 2.0 * self.r, 2.0 * self.d);
        match placement {
            Placement::Logging => self.d,
            Placement::Checkpointing => checkpointing,
            Placement::SplitStream => self.d + self.c,
            Placement::SplitDownStream => split,
            Placement::Hybrid => checkpointing.min(split),
        }
    }
}

/// The results of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Replayed {
    /// Requests.
    pub requests: u64,
    /// Versions that are kept.
    pub versions: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Bytes of the store that are needed.
    pub live_bytes: u64,
    /// I/O by kind.
    pub counters: Counters,
}

impl Survey {
    /// Reads a trace once.
    pub fn of(reader: &mut TraceReader, options: &ReplayOptions) -> Result<Self, TraceError> {
        let interval = match options.granularity {
            Granularity::Interval(ns) => vec![Duration::from_nanos(ns)],
            Granularity::EveryWrite | Granularity::Marks => Vec::new(),
        };
        let analysed = AnalyseOptions {
            block_bytes: options.block_bytes.into(),
            granularities: interval,
            intervals: Vec::new(),
            write_caches: vec![options.dirty_blocks.max(1)],
            read_caches: Vec::new(),
            memory_max: options.memory_max,
            ..AnalyseOptions::default()
        };
        let mut analysis = Analysis::new(analysed)?;
        let mut ends: Vec<u64> = Vec::new();
        while let Some(record) = reader.next()? {
            let device = record.device as usize;
            ends.resize(ends.len().max(device + 1), 0);
            // A trim can exceed the device; reads and writes are within it.
            if matches!(record.op, TraceOp::Read | TraceOp::Write) {
                ends[device] = ends[device].max(record.offset + record.length);
            }
            analysis.add(&record)?;
        }
        let report = analysis.finish()?;
        let mut starts = Vec::with_capacity(ends.len());
        let mut at = 0u64;
        for end in ends {
            starts.push(at);
            at = at.saturating_add(end.next_multiple_of(DEVICE_ALIGNMENT));
        }
        let block = u64::from(options.block_bytes);
        // Each block write and each base, with its entry, in segments that are not quite filled.
        let versions = report.w_block_writes + report.f_unique_blocks_written;
        let store_bytes = (versions * (block + 64)) / 2 * 3 + (64 << 20);
        let io = report.lrw.0.first().and_then(|(_, cache)| cache.io_per_block_write.0.last());
        let cache = report.lrw.0.first().map_or(1.0, |(_, cache)| cache.c_evicted_flush_at_end);
        let (r, d) = match (options.granularity, io) {
            (Granularity::Interval(_), Some((_, row))) => (row.io.r, row.io.d),
            // With marks alone one version a block would be kept if there were a mark; there is
            // none here.
            (Granularity::Marks, _) => (0.0, cache),
            _ => (1.0, 1.0),
        };
        let origin_bytes = at.max(DEVICE_ALIGNMENT);
        Ok(Self { starts, origin_bytes, store_bytes, model: Model { c: cache, r, d } })
    }
}

/// Replays a trace from its beginning on a new history over `origin` and `store`, which are at
/// least as long as in `survey`.
pub fn replay(
    reader: &mut TraceReader,
    survey: &Survey,
    options: &ReplayOptions,
    origin: Arc<dyn Device>,
    store: Arc<dyn Device>,
    progress: &mut dyn FnMut(u64),
) -> Result<Replayed, TraceError> {
    let clock = Arc::new(ManualClock::new(Timestamp(BEGAN_NS)));
    let history_options = HistoryOptions {
        store: cairn_base::HistoryId(*b"replay of trace\0"),
        placement: options.placement,
        granularity: options.granularity,
        block_bytes: options.block_bytes,
        window: Default::default(),
    };
    let dirty_bytes = options.dirty_blocks.max(1) * (u64::from(options.block_bytes) + CACHE_OVERHEAD);
    let open = OpenOptions {
        dirty_bytes,
        read_bytes: options.read_bytes,
        clock: clock.clone(),
        at_least: LogPosition::default(),
    };
    let history = History::create(origin, store, &history_options, open)?;
    let contents: Vec<Block> = (0..CONTENTS).map(content).collect();
    let mut requests = 0u64;
    while let Some(record) = reader.next()? {
        requests += 1;
        clock.advance(Timestamp(BEGAN_NS + record.at_ns).since(clock.now()));
        let Some(operation) = operation(&record, survey, &contents, requests) else { continue };
        history.one(operation).map_err(|source| TraceError::Device { record: requests, source })?;
        if requests.is_multiple_of(1 << 12) {
            progress(requests);
        }
    }
    history.flush().map_err(|source| TraceError::Device { record: requests, source })?;
    let status = history.status();
    Ok(Replayed {
        requests,
        versions: status.versions,
        index_bytes: status.index_bytes,
        live_bytes: status.live_bytes,
        counters: status.counters,
    })
}

fn operation(record: &TraceRecord, survey: &Survey, contents: &[Block], number: u64) -> Option<Operation> {
    if record.length == 0 {
        return None;
    }
    let offset = survey.starts[record.device as usize] + record.offset;
    let end = survey.starts.get(record.device as usize + 1).copied().unwrap_or(survey.origin_bytes);
    let length = record.length.min(end.saturating_sub(offset));
    if length == 0 {
        return None;
    }
    Some(match record.op {
        TraceOp::Read => Operation::read(offset, length as u32),
        TraceOp::Write => Operation::write(offset, data(length as usize, contents, number)),
        TraceOp::Trim => Operation::trim(offset, length),
        TraceOp::Zeroes => {
            Operation::new(Request::WriteZeroes { offset, length, may_trim: true, fua: false })
        }
        // A flush writes the cache out, which the model's cache knows nothing of.
        TraceOp::Flush => return None,
    })
}

/// Bytes of a write, out of blocks that all writes have in common.
fn data(length: usize, contents: &[Block], number: u64) -> Segments {
    let mut data = Segments::default();
    let mut left = length;
    let mut at = number as usize;
    while left > 0 {
        let take = left.min(BLOCK_SIZE);
        data.append(Segments::from(contents[at % contents.len()].clone()).slice(0, take));
        left -= take;
        at += 1;
    }
    data
}

fn content(number: usize) -> Block {
    let mut bytes = [0; BLOCK_SIZE];
    cairn_base::Rng::new(number as u64).fill(&mut bytes);
    Block::copy_of(&bytes)
}
