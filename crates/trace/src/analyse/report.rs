//! The figures of an analysis, as types for tables, JSON and plots. Names and definitions are those
//! of the papers; each names its source.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Analysis, T_POINTS_NS};
use crate::{Problems, TraceError};

const SECOND: f64 = 1e9;
/// Bytes of an entry of the 2006 paper's index: its `HASH_ITEM` as its compiler laid it out, in a
/// table that is half full. This gives the paper's shares of figure 8: 9.4 % at 512 B, 0.6 % at 8
/// KiB, 0.07 % at 64 KiB.
const PAPER_INDEX_ENTRY: u64 = 48;
/// Bytes of memory that a version takes in Cairn's own index, at most.
const OUR_INDEX_ENTRY: u64 = 32;
/// Points of the curve of T(t).
const CURVE_POINTS: usize = 120;

/// A map that keeps its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Labelled<T>(pub Vec<(String, T)>);

impl<T> Labelled<T> {
    /// The value of a label.
    pub fn get(&self, label: &str) -> Option<&T> {
        self.0.iter().find(|(other, _)| other == label).map(|(_, value)| value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Labelled<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = Labelled<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut rows = Vec::new();
                while let Some(row) = map.next_entry()? {
                    rows.push(row);
                }
                Ok(Labelled(rows))
            }
        }
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

impl<T: Serialize> Serialize for Labelled<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (label, value) in &self.0 {
            map.serialize_entry(label, value)?;
        }
        map.end()
    }
}

/// FAST 2002, table 1: the fates of written blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Table1 {
    /// Block writes.
    pub blocks_written: u64,
    /// Of these, replaced by a later write.
    pub overwritten: u64,
    /// Of these, trimmed before that.
    pub trimmed: u64,
    /// Both, in per cent of the block writes: the saving of a mirror that is updated once, at the
    /// end.
    pub written_deleted_pct: f64,
}

/// FAST 2007, sections 3.1 and 3.4: the share of retained writes at a granularity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(non_snake_case, reason = "R is the paper's letter, and another one than r")]
pub struct Retained {
    /// Of every write alone: all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r_emp: Option<f64>,
    /// By counting, windows from the first request on.
    pub r_emp_phase0: f64,
    /// Mean over 16 phases of the first window.
    pub r_emp_mean16: f64,
    /// The smallest of them.
    pub r_emp_min16: f64,
    /// The largest of them.
    pub r_emp_max16: f64,
    /// Of windows that ended by the last request (the paper's footnote 2).
    pub r_emp_phase0_completed_only: Option<f64>,
    /// Among writes that have a successor (the paper's footnote 3).
    pub r_emp_sub_phase0: Option<f64>,
    /// By Claim 3.1, writes without successor being infinitely far from it.
    pub R_claim31_all: f64,
    /// By Claim 3.1, among writes that have a successor.
    pub R_claim31_sub: Option<f64>,
    /// Retained block writes.
    pub unique_block_window_pairs: u64,
}

/// FAST 2002, figures 2 and 3: the transfers of a mirror with this interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MirrorInterval {
    /// In seconds.
    pub interval_s: f64,
    /// Per cent of the block writes, without knowledge of trims.
    pub pct_blocks_transferred: f64,
    /// Intervals from the first request to the last; the last one may be cut short.
    pub intervals: u64,
    /// Block and interval pairs.
    pub blocks_transferred: u64,
    /// Per cent, when blocks that were trimmed by the end of the interval stay away (the active map
    /// of figure 3).
    pub pct_with_trims: f64,
    /// The same in blocks.
    pub blocks_with_trims: u64,
    /// The most of them at the end of one interval.
    pub peak_blocks_with_trims: u64,
    /// Bytes a day at this rate, with trims.
    pub bytes_per_day: f64,
}

/// FAST 2007, figure 5: device I/O for each block write.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(non_snake_case, reason = "D is the paper's letter, and another one than d")]
pub struct Io {
    /// Retained, by counting.
    pub r: f64,
    /// Incurred, by running the cache.
    pub d: f64,
    /// Incurred, by Claim 3.2.
    pub D_claim32: f64,
    /// d.
    pub logging: f64,
    /// d + 2 r.
    pub checkpointing: f64,
    /// d + c.
    pub splitstream: f64,
    /// 2 d.
    pub splitdownstream: f64,
    /// The better of checkpointing and split-down-stream.
    pub hybrid: f64,
    /// c.
    pub regular_volume: f64,
    /// Of checkpointing and split-down-stream.
    pub cheapest_2store: &'static str,
    /// The same four by Claims 3.1 and 3.2 (figures 11 and 13): logging, checkpointing,
    /// split-stream, split-down-stream.
    pub analytic: [f64; 4],
}

/// The cost of a granularity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtGrain {
    /// In seconds; 0 is every write.
    pub granularity_s: f64,
    /// I/O by placement.
    #[serde(flatten)]
    pub io: Io,
}

/// FAST 2007, section 3.5: a write cache that evicts the least recently written block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cache {
    /// The cache of which it is 3 %, rounded up to MiB.
    pub total_cache_mib: u64,
    /// c: block writes that are evicted, with everything that is dirty at the end.
    pub c_evicted_flush_at_end: f64,
    /// c without these.
    pub c_evicted_no_flush: f64,
    /// Blocks that are dirty at the end.
    pub resident_at_end: u64,
    /// s: the distance at which T(s) is 1 - c.
    pub cache_window_s_sec: f64,
    /// By granularity.
    pub io_per_block_write: Labelled<AtGrain>,
}

/// An LRU cache of blocks that were read or written.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReadCacheUse {
    /// Block reads that it answers.
    pub hits: u64,
    /// Of all block reads.
    pub hit_ratio: Option<f64>,
}

/// FAST 2007, figure 6: blocks of history, without the addressable storage itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Space {
    /// r w; split-stream and split-down-stream as well.
    pub logging_rw: u64,
    /// r w - f.
    pub checkpointing_rw_minus_f: u64,
}

/// MSST 2006, figures 7 to 9: one snapshot at the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SnapBlock {
    /// Snap blocks that writes touch.
    pub snap_block_touches: u64,
    /// Of these, the first touch of each: copies of copy-on-write.
    pub first_touch_copies_cow: u64,
    /// Figure 7.
    pub snapshot_volume_bytes: u64,
    /// Figure 9: mean over writes of their length divided by the touched bytes.
    pub mean_per_write_space_efficiency: Option<f64>,
    /// The same of all bytes.
    pub aggregate_space_efficiency: Option<f64>,
    /// Writes that do not cover all that they touch.
    pub frac_writes_partial: Option<f64>,
    /// Figure 8: the paper's hash table, 48 bytes a snap block.
    pub index_bytes_paper: u64,
    /// Cairn's own index, 32 bytes a version at most.
    pub index_bytes_cairn: u64,
}

/// All figures of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(non_snake_case, reason = "T is the paper's letter")]
pub struct Report {
    /// The format of its source, if it was read.
    pub format: Option<&'static str>,
    /// `none`, `gzip` or `zstd`.
    pub compression: Option<&'static str>,
    /// Requests of all kinds.
    pub requests: u64,
    /// Write requests.
    pub writes: u64,
    /// Read requests.
    pub reads: u64,
    /// Trims and write-zeroes.
    pub trims: u64,
    /// Flushes.
    pub flushes: u64,
    /// Writes over requests.
    pub write_request_ratio: f64,
    /// From the first request to the last.
    pub duration_s: f64,
    /// How many devices.
    pub devices: u64,
    /// Their names, as far as the format has any.
    pub device_names: Vec<String>,
    /// Bytes that writes wrote.
    pub bytes_written: u64,
    /// Bytes that reads read.
    pub bytes_read: u64,
    /// Bytes that trims named.
    pub bytes_trimmed: u64,
    /// Of a write.
    pub mean_write_bytes: Option<f64>,
    /// Writes that begin at a multiple of 4 KiB.
    pub frac_write_offset_4k_aligned: Option<f64>,
    /// Writes that end there too.
    pub frac_write_fully_4k_aligned: Option<f64>,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// w.
    pub w_block_writes: u64,
    /// f.
    pub f_unique_blocks_written: u64,
    /// Block writes that are followed by one of the same block.
    pub block_writes_with_successor: u64,
    /// FAST 2002, table 1.
    pub table1: Table1,
    /// FAST 2007, figure 7: the share of all block writes with a distance up to that many seconds.
    pub T_all: Labelled<f64>,
    /// The same among those that have a successor.
    pub T_sub: Option<Labelled<f64>>,
    /// Distances in seconds, at fractions of those that have one.
    pub a_quantiles_sub_s: Labelled<Option<f64>>,
    /// Quantiles and cache windows are exact; else to one part in 4096.
    pub distances_exact: bool,
    /// Seconds and T, for plots.
    pub T_curve: Vec<(f64, f64)>,
    /// By granularity.
    pub r: Labelled<Retained>,
    /// By interval.
    pub mirror_pct: Labelled<MirrorInterval>,
    /// By blocks that can be dirty.
    pub lrw: Labelled<Cache>,
    /// By blocks.
    pub lru_read: Labelled<ReadCacheUse>,
    /// By granularity.
    pub history_blocks: Labelled<Space>,
    /// By bytes of a snap block.
    pub snap_block: Labelled<SnapBlock>,
    /// Bytes of memory that the analysis took.
    pub memory_bytes: u64,
    /// The problems of the trace.
    pub problems: Problems,
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn label(ns: u64) -> String {
    match ns.is_multiple_of(1_000_000) {
        true => cairn_base::Interval(std::time::Duration::from_nanos(ns)).to_string(),
        false => format!("{ns}ns"),
    }
}

impl Analysis {
    /// The figures.
    pub fn finish(mut self) -> Result<Report, TraceError> {
        if self.counts.requests == 0 {
            return Err(TraceError::Empty);
        }
        self.distances.sort();
        let (counts, w, f) = (self.counts, self.counts.block_writes, self.counts.blocks_written);
        let of_w = |part: u64| part as f64 / w.max(1) as f64;
        let successors = w - f;
        let mut up_to = 0;
        let points: Vec<(String, u64)> = T_POINTS_NS
            .iter()
            .zip(self.t_counts)
            .map(|(point, count)| {
                up_to += count;
                (format!("{}", *point as f64 / SECOND), up_to)
            })
            .collect();
        let t_all = points.iter().map(|(label, count)| (label.clone(), of_w(*count))).collect();
        let t_sub = (successors > 0).then(|| {
            let share = |count: u64| count as f64 / successors as f64;
            Labelled(points.iter().map(|(label, count)| (label.clone(), share(*count))).collect())
        });
        let quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
            .map(|at| (at.to_string(), self.distances.quantile(at).map(|ns| ns / SECOND)));
        Ok(Report {
            format: None,
            compression: None,
            requests: counts.requests,
            writes: counts.writes,
            reads: counts.reads,
            trims: counts.trims,
            flushes: counts.flushes,
            write_request_ratio: counts.writes as f64 / counts.requests as f64,
            duration_s: self.last_ns as f64 / SECOND,
            devices: self.devices.len() as u64,
            device_names: Vec::new(),
            bytes_written: counts.bytes_written,
            bytes_read: counts.bytes_read,
            bytes_trimmed: counts.bytes_trimmed,
            mean_write_bytes: share(counts.bytes_written, counts.writes),
            frac_write_offset_4k_aligned: share(counts.offset_aligned, counts.writes),
            frac_write_fully_4k_aligned: share(counts.fully_aligned, counts.writes),
            block_bytes: self.options.block_bytes,
            w_block_writes: w,
            f_unique_blocks_written: f,
            block_writes_with_successor: successors,
            table1: Table1 {
                blocks_written: w,
                overwritten: counts.overwritten,
                trimmed: counts.trimmed,
                written_deleted_pct: 100.0 * of_w(counts.overwritten + counts.trimmed),
            },
            T_all: Labelled(t_all),
            T_sub: t_sub,
            a_quantiles_sub_s: Labelled(quantiles.into()),
            distances_exact: self.distances.is_exact(),
            T_curve: self.curve(),
            r: self.retained(),
            mirror_pct: self.mirror(),
            lrw: self.caches(),
            lru_read: self.read_caches(),
            history_blocks: self.space(),
            snap_block: self.snap_blocks(),
            memory_bytes: self.memory(),
            problems: Problems::default(),
        })
    }

    fn curve(&self) -> Vec<(f64, f64)> {
        let last = self.last_ns.max(1_000_000) as f64;
        let (from, to) = (1e5f64.log10(), last.log10());
        let step = (to - from) / (CURVE_POINTS - 1) as f64;
        let w = self.counts.block_writes.max(1) as f64;
        (0..CURVE_POINTS)
            .map(|point| {
                let at = 10f64.powf(from + step * point as f64);
                (at / SECOND, self.distances.up_to(at as u64) as f64 / w)
            })
            .collect()
    }

    /// The grains of the granularities, in order.
    fn granularities(&self) -> impl Iterator<Item = &super::Grain> {
        let wanted = |ns: u64| self.options.granularities.iter().any(|g| g.as_nanos() == u128::from(ns));
        self.grains.iter().filter(move |grain| wanted(grain.ns))
    }

    /// R(g), where `short_sum` is the sum of the distances below g and `short` how many they are
    /// (Claim 3.1).
    fn claim31(&self, ns: u64, short_sum: u128, short: u64) -> f64 {
        let w = self.counts.block_writes;
        (short_sum as f64 / ns as f64 + (w - short) as f64) / w.max(1) as f64
    }

    fn retained(&self) -> Labelled<Retained> {
        let (w, f) = (self.counts.block_writes, self.counts.blocks_written);
        let successors = w - f;
        let of_w = |part: u64| part as f64 / w.max(1) as f64;
        let rows = self.granularities().map(|grain| {
            let phases = grain.replaced.map(|replaced| of_w(w - replaced));
            let (done, done_replaced) = grain.completed(self.last_ns);
            let retained = w - grain.replaced[0];
            let row = Retained {
                r_emp: None,
                r_emp_phase0: phases[0],
                r_emp_mean16: phases.iter().sum::<f64>() / phases.len() as f64,
                r_emp_min16: phases.iter().copied().fold(f64::INFINITY, f64::min),
                r_emp_max16: phases.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                r_emp_phase0_completed_only: share(done - done_replaced, done),
                r_emp_sub_phase0: share(retained.saturating_sub(f), successors),
                R_claim31_all: self.claim31(grain.ns, grain.short_sum, grain.short),
                R_claim31_sub: (successors > 0).then(|| {
                    (grain.short_sum as f64 / grain.ns as f64 + (successors - grain.short) as f64)
                        / successors as f64
                }),
                unique_block_window_pairs: retained,
            };
            (label(grain.ns), row)
        });
        let every = Retained {
            r_emp: Some(1.0),
            r_emp_phase0: 1.0,
            r_emp_mean16: 1.0,
            r_emp_min16: 1.0,
            r_emp_max16: 1.0,
            r_emp_phase0_completed_only: (w > 0).then_some(1.0),
            r_emp_sub_phase0: (successors > 0).then_some(1.0),
            R_claim31_all: 1.0,
            R_claim31_sub: (successors > 0).then_some(1.0),
            unique_block_window_pairs: w,
        };
        Labelled(std::iter::once(("every_write".to_owned(), every)).chain(rows).collect())
    }

    fn mirror(&self) -> Labelled<MirrorInterval> {
        let w = self.counts.block_writes;
        let pct = |part: u64| 100.0 * part as f64 / w.max(1) as f64;
        let wanted = |ns: u64| self.options.intervals.iter().any(|g| g.as_nanos() == u128::from(ns));
        let days = (self.last_ns.max(1) as f64 / SECOND) / 86_400.0;
        let rows = self.grains.iter().filter(|grain| wanted(grain.ns)).map(|grain| {
            let sent = w - grain.replaced[0];
            let row = MirrorInterval {
                interval_s: grain.ns as f64 / SECOND,
                pct_blocks_transferred: pct(sent),
                intervals: self.last_ns / grain.ns + 1,
                blocks_transferred: sent,
                pct_with_trims: pct(grain.kept),
                blocks_with_trims: grain.kept,
                peak_blocks_with_trims: grain.kept_max(),
                bytes_per_day: (grain.kept * self.options.block_bytes) as f64 / days,
            };
            let minutes = grain.ns / 60_000_000_000;
            let label = match minutes * 60_000_000_000 == grain.ns {
                true => format!("{minutes}min"),
                false => label(grain.ns),
            };
            (label, row)
        });
        Labelled(rows.collect())
    }

    fn caches(&self) -> Labelled<Cache> {
        let w = self.counts.block_writes;
        let of_w = |part: u64| part as f64 / w.max(1) as f64;
        let rows = self.options.write_caches.iter().enumerate().map(|(index, pages)| {
            let (evicted, resident) = (self.written.evicted[index], self.written.resident(index));
            let absorbed = w - evicted - resident;
            let c = of_w(evicted + resident);
            let s = self.distances.smallest(absorbed);
            let total = u128::from(*pages) * u128::from(self.options.block_bytes) * 100 / 3;
            let row = Cache {
                total_cache_mib: total.div_ceil(1 << 20) as u64,
                c_evicted_flush_at_end: c,
                c_evicted_no_flush: of_w(evicted),
                resident_at_end: resident,
                cache_window_s_sec: s as f64 / SECOND,
                io_per_block_write: self.io(index, c, s),
            };
            (pages.to_string(), row)
        });
        Labelled(rows.collect())
    }

    /// Figure 5 for a cache, with its c and its window s.
    fn io(&self, cache: usize, c: f64, s: u64) -> Labelled<AtGrain> {
        let w = self.counts.block_writes;
        let of_w = |part: u64| part as f64 / w.max(1) as f64;
        let row = |ns: u64, r: f64, d: f64, claimed_r: f64, claimed_d: f64| {
            let (checkpointing, splitdownstream) = (d + 2.0 * r, 2.0 * d);
            let cheapest = if checkpointing < splitdownstream { "checkpointing" } else { "splitdownstream" };
            let io = Io {
                r,
                d,
                D_claim32: claimed_d,
                logging: d,
                checkpointing,
                splitstream: d + c,
                splitdownstream,
                hybrid: checkpointing.min(splitdownstream),
                regular_volume: c,
                cheapest_2store: cheapest,
                analytic: [claimed_d, claimed_d + 2.0 * claimed_r, claimed_d + c, 2.0 * claimed_d],
            };
            AtGrain { granularity_s: ns as f64 / SECOND, io }
        };
        let mut rows = vec![("every_write".to_owned(), row(0, 1.0, 1.0, 1.0, 1.0))];
        let (below_s, count_below_s) = self.distances.below(s);
        rows.extend(self.granularities().map(|grain| {
            let retained = w - grain.replaced[0];
            let evicted: u64 = grain.replaced_in_band[cache + 1..].iter().sum();
            let claimed_r = self.claim31(grain.ns, grain.short_sum, grain.short);
            let claimed_d = if s == 0 {
                c
            } else if s < grain.ns {
                let part = s as f64 / grain.ns as f64;
                part * self.claim31(s, below_s, count_below_s) + c * (1.0 - part)
            } else {
                claimed_r
            };
            let row = row(grain.ns, of_w(retained), of_w(retained + evicted), claimed_r, claimed_d);
            (label(grain.ns), row)
        }));
        Labelled(rows)
    }

    fn read_caches(&self) -> Labelled<ReadCacheUse> {
        let rows = self.options.read_caches.iter().enumerate().map(|(index, pages)| {
            let hits = self.read_bands[..=index].iter().sum();
            (pages.to_string(), ReadCacheUse { hits, hit_ratio: share(hits, self.counts.block_reads) })
        });
        Labelled(rows.collect())
    }

    fn space(&self) -> Labelled<Space> {
        let (w, f) = (self.counts.block_writes, self.counts.blocks_written);
        let row = |retained: u64| Space {
            logging_rw: retained,
            checkpointing_rw_minus_f: retained.saturating_sub(f),
        };
        let mut rows = vec![("every_write".to_owned(), row(w))];
        rows.extend(self.granularities().map(|grain| (label(grain.ns), row(w - grain.replaced[0]))));
        Labelled(rows)
    }

    fn snap_blocks(&self) -> Labelled<SnapBlock> {
        let writes = self.counts.writes_of_bytes;
        let rows = self.sectors.result().into_iter().map(|(size, (touches, first, efficiency, partial))| {
            let row = SnapBlock {
                snap_block_touches: touches,
                first_touch_copies_cow: first,
                snapshot_volume_bytes: first * size,
                mean_per_write_space_efficiency: (writes > 0).then(|| efficiency / writes as f64),
                aggregate_space_efficiency: share(self.counts.bytes_written, touches * size),
                frac_writes_partial: share(partial, writes),
                index_bytes_paper: first * PAPER_INDEX_ENTRY,
                index_bytes_cairn: first * OUR_INDEX_ENTRY,
            };
            (size.to_string(), row)
        });
        Labelled(rows.collect())
    }
}
