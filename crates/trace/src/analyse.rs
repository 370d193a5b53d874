//! The analysis of a trace: one pass over its requests, with the figures of the papers.
//!
//! Time is linear in the requests and the blocks that they touch. Memory does not depend on the
//! number of requests: about 56 bytes for each block touched ([`pages`]), about 40 for each 64 KiB
//! written ([`sectors`]), and at most 260 MiB for temporal distances ([`distances`]);
//! [`AnalyseOptions::memory_max`] bounds it.
//!
//! A *block write* is one block that a write request touches, wholly or in part, at the request's
//! time, in ascending order. Write-zeroes is counted as a trim: both free blocks. A trim frees the
//! blocks that it covers wholly.

mod distances;
mod grain;
mod pages;
mod recency;
mod report;
mod sectors;
#[cfg(test)]
mod tests;

use std::time::Duration;

use cairn_format::trace::{TraceOp, TraceRecord};

use crate::{TraceError, TraceReader};
use distances::Distances;
use grain::Grain;
use pages::{NEVER, Pages, key};
use recency::{ABSENT, Recency, SIZES_MAX};
use sectors::Sectors;

pub use report::{
    AtGrain, Cache, Io, Labelled, MirrorInterval, ReadCacheUse, Report, Retained, SnapBlock, Space, Table1,
};

/// Distances at which T(t) is counted exactly, in nanoseconds: the decades to a second, then those
/// of the papers' figures.
pub(crate) const T_POINTS_NS: [u64; 21] = {
    const S: u64 = 1_000_000_000;
    [
        S / 1000,
        S / 100,
        S / 10,
        S / 2,
        S,
        2 * S,
        5 * S,
        10 * S,
        20 * S,
        30 * S,
        60 * S,
        120 * S,
        300 * S,
        600 * S,
        900 * S,
        1800 * S,
        3600 * S,
        7200 * S,
        14400 * S,
        86400 * S,
        604_800 * S,
    ]
};
/// Requests and touched blocks between two checks of the memory.
const LOOK_EVERY: u64 = 4096;
/// The share of a cache that can be dirty (2007 paper, section 4.1), in per cent.
const DIRTY_PER_CENT: u64 = 3;
/// Longest granularity and interval: beyond, times of a trace and of a window could not be added.
const GRAIN_MAX_NS: u64 = 1 << 60;

/// Options of an analysis.
#[derive(Debug, Clone)]
pub struct AnalyseOptions {
    /// Bytes of a block: a power of two from 512 B to 64 KiB. 4 KiB in the papers.
    pub block_bytes: u64,
    /// Granularities of history, in addition to every write.
    pub granularities: Vec<Duration>,
    /// Intervals of a mirror.
    pub intervals: Vec<Duration>,
    /// Sizes of write caches, in blocks.
    pub write_caches: Vec<u64>,
    /// Sizes of read caches, in blocks.
    pub read_caches: Vec<u64>,
    /// Bytes of memory at most.
    pub memory_max: u64,
    /// Only the inputs of a [`Plan`](crate::Plan): no temporal distances, and no snap blocks. They
    /// are empty in the report, and so are the claims that follow from them.
    pub plan_only: bool,
}

impl Default for AnalyseOptions {
    fn default() -> Self {
        let seconds = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect();
        let total = |mib: u64| dirty_blocks(mib << 20, 4096);
        let mut write_caches: Vec<u64> = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096].map(total).to_vec();
        write_caches.push(4096);
        Self {
            block_bytes: 4096,
            granularities: seconds(&[1, 10, 60, 300, 600, 1800, 3600, 21_600, 86_400]),
            intervals: seconds(&[60, 300, 900, 1800, 3600, 21_600, 43_200, 86_400]),
            write_caches,
            read_caches: [64, 256, 1024, 4096].map(|mib: u64| (mib << 20) / 4096).to_vec(),
            memory_max: 8 << 30,
            plan_only: false,
        }
    }
}

/// Blocks that can be dirty in a cache of `total_bytes`: 3 % of it (2007 paper, section 4.1).
pub fn dirty_blocks(total_bytes: u64, block_bytes: u64) -> u64 {
    (u128::from(total_bytes) * u128::from(DIRTY_PER_CENT) / 100 / u128::from(block_bytes)) as u64
}

/// A running analysis.
#[derive(Clone)]
pub struct Analysis {
    options: AnalyseOptions,
    block_shift: u32,
    pages: Pages,
    sectors: Sectors,
    distances: Distances,
    written: Recency,
    used: Recency,
    grains: Vec<Grain>,
    t_counts: [u64; T_POINTS_NS.len() + 1],
    read_bands: Vec<u64>,
    counts: Counts,
    devices: std::collections::BTreeSet<u32>,
    last_ns: u64,
    /// How many requests and blocks there were at the last check of the memory.
    looked_at: u64,
}

/// Plain counts of requests and blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) trims: u64,
    pub(crate) flushes: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) bytes_trimmed: u64,
    pub(crate) offset_aligned: u64,
    pub(crate) fully_aligned: u64,
    pub(crate) writes_of_bytes: u64,
    pub(crate) block_reads: u64,
    pub(crate) block_writes: u64,
    pub(crate) blocks_written: u64,
    /// Versions that a write replaced.
    pub(crate) overwritten: u64,
    /// Versions that a trim freed.
    pub(crate) trimmed: u64,
}

impl Analysis {
    /// Begins.
    pub fn new(mut options: AnalyseOptions) -> Result<Self, TraceError> {
        let refuse = |what, rule| Err(TraceError::Refused { what, rule });
        if !options.block_bytes.is_power_of_two() || !(512..=65536).contains(&options.block_bytes) {
            return refuse("the block size", "it is a power of two from 512 B to 64 KiB");
        }
        for sizes in [&mut options.write_caches, &mut options.read_caches] {
            sizes.sort_unstable();
            sizes.dedup();
            if sizes.len() > SIZES_MAX || sizes.first() == Some(&0) {
                return refuse("the list of caches", "it has up to 200 sizes, each of at least one block");
            }
        }
        let mut lengths = [options.granularities.as_slice(), &options.intervals].concat();
        lengths.sort_unstable();
        lengths.dedup();
        if lengths.iter().any(|g| g.is_zero() || g.as_nanos() > u128::from(GRAIN_MAX_NS)) {
            return refuse("a granularity", "it is longer than nothing and shorter than 36 years");
        }
        let bands = options.write_caches.len() + 1;
        Ok(Self {
            block_shift: options.block_bytes.trailing_zeros(),
            pages: Pages::new(),
            sectors: Sectors::new(),
            distances: if options.plan_only { Distances::none() } else { Distances::new() },
            written: Recency::new(0, &options.write_caches),
            used: Recency::new(1, &options.read_caches),
            grains: lengths.iter().map(|length| Grain::new(length.as_nanos() as u64, bands)).collect(),
            t_counts: [0; T_POINTS_NS.len() + 1],
            read_bands: vec![0; options.read_caches.len() + 1],
            counts: Counts::default(),
            devices: Default::default(),
            last_ns: 0,
            looked_at: 0,
            options,
        })
    }

    /// Analyses a whole trace. `progress` gets the number of requests now and then.
    pub fn of(
        reader: &mut TraceReader,
        options: AnalyseOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, TraceError> {
        let mut analysis = Self::new(options)?;
        while let Some(record) = reader.next()? {
            analysis.add(&record)?;
            if analysis.counts.requests.is_multiple_of(1 << 16) {
                progress(analysis.counts.requests);
            }
        }
        let mut report = analysis.finish()?;
        report.format = Some(reader.format().name());
        report.compression = Some(reader.compression());
        report.device_names = reader.devices().to_vec();
        report.problems = reader.problems().clone();
        Ok(report)
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> u64 {
        self.pages.memory() + self.sectors.memory() + self.distances.memory()
    }

    /// Blocks that were touched.
    pub fn blocks(&self) -> u64 {
        self.pages.pages.len() as u64
    }

    /// The next request; its time is not before that of the last one, and is from the first request
    /// on.
    pub fn add(&mut self, record: &TraceRecord) -> Result<(), TraceError> {
        self.counts.requests += 1;
        self.last_ns = record.at_ns;
        self.devices.insert(record.device);
        match record.op {
            TraceOp::Read => self.read(record),
            TraceOp::Write => self.write(record),
            TraceOp::Trim | TraceOp::Zeroes => self.trim(record),
            TraceOp::Flush => self.counts.flushes += 1,
        }
        // A single request may touch as many blocks as thousands of others.
        let done = self.counts.requests + self.counts.block_reads + self.counts.block_writes;
        if done - self.looked_at < LOOK_EVERY {
            return Ok(());
        }
        self.looked_at = done;
        if self.memory() > self.options.memory_max {
            return Err(TraceError::Memory {
                limit: self.options.memory_max,
                pages: self.pages.pages.len() as u64,
                records: self.counts.requests,
            });
        }
        Ok(())
    }

    /// Blocks that a request touches.
    fn touched(&self, record: &TraceRecord) -> std::ops::Range<u64> {
        if record.length == 0 {
            return 0..0;
        }
        let end = record.offset + record.length;
        record.offset >> self.block_shift..((end - 1) >> self.block_shift) + 1
    }

    fn read(&mut self, record: &TraceRecord) {
        self.counts.reads += 1;
        self.counts.bytes_read += record.length;
        for block in self.touched(record) {
            self.counts.block_reads += 1;
            let page = self.pages.number(key(record.device, block));
            let band = self.used.touch(&mut self.pages.pages, page);
            if band != ABSENT {
                self.read_bands[usize::from(band)] += 1;
            }
        }
    }

    fn write(&mut self, record: &TraceRecord) {
        self.counts.writes += 1;
        self.counts.bytes_written += record.length;
        // The share of aligned writes is by 4 KiB, whatever the block is.
        let offset_aligned = record.offset.is_multiple_of(4096);
        self.counts.offset_aligned += u64::from(offset_aligned);
        self.counts.fully_aligned += u64::from(offset_aligned && record.length.is_multiple_of(4096));
        if record.length == 0 {
            return;
        }
        self.counts.writes_of_bytes += 1;
        if !self.options.plan_only {
            self.sectors.write(record.device, record.offset, record.length);
        }
        for grain in &mut self.grains {
            grain.advance(record.at_ns);
        }
        for block in self.touched(record) {
            self.write_block(key(record.device, block), record.at_ns);
        }
    }

    fn write_block(&mut self, key: u64, at: u64) {
        self.counts.block_writes += 1;
        let number = self.pages.number(key);
        self.used.touch(&mut self.pages.pages, number);
        let band = self.written.touch(&mut self.pages.pages, number);
        let page = &mut self.pages.pages[number as usize];
        let (before, live) = (page.written_ns, page.live);
        page.written_ns = at;
        page.live = true;
        if before == NEVER {
            self.counts.blocks_written += 1;
            self.grains.iter_mut().for_each(Grain::first);
            return;
        }
        let distance = at - before;
        self.counts.overwritten += u64::from(live);
        if !self.options.plan_only {
            self.distances.add(distance);
        }
        self.t_counts[T_POINTS_NS.partition_point(|point| *point < distance)] += 1;
        for grain in &mut self.grains {
            grain.again(before, distance, usize::from(band), live);
        }
    }

    fn trim(&mut self, record: &TraceRecord) {
        self.counts.trims += 1;
        self.counts.bytes_trimmed += record.length;
        for grain in &mut self.grains {
            grain.advance(record.at_ns);
        }
        let end = (record.offset + record.length) >> self.block_shift;
        let first = record.offset.div_ceil(self.options.block_bytes);
        if end.saturating_sub(first) <= self.pages.pages.len() as u64 {
            for block in first..end {
                if let Some(number) = self.pages.find(key(record.device, block)) {
                    self.free(number as usize);
                }
            }
            return;
        }
        // Longer than all touched blocks: then it is cheaper to search those.
        let range = key(record.device, first)..key(record.device, end);
        for number in 0..self.pages.pages.len() {
            if range.contains(&self.pages.pages[number].key) {
                self.free(number);
            }
        }
    }

    fn free(&mut self, number: usize) {
        let page = &mut self.pages.pages[number];
        if !page.live {
            return;
        }
        page.live = false;
        self.counts.trimmed += 1;
        for grain in &mut self.grains {
            grain.trim(page.written_ns);
        }
    }
}
