//! From a trace to a recommendation: the cost of each lag on a link, the cheapest placement of
//! history at each granularity, the space of a window, and one setting with its reason.
//!
//! Rates are those of the trace, assumed to continue. Results beyond its length are marked so.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Report;

/// The share of a link that a mirror may take on average and still have room to catch up.
const LINK_SHARE_MAX: f64 = 0.5;
/// Lags that a plan has lines for, in seconds.
pub const LAGS_S: [u64; 9] = [1, 10, 60, 300, 900, 3600, 21_600, 43_200, 86_400];
/// Granularities in a plan's table, in seconds, in addition to every write.
pub const GRAINS_S: [u64; 9] = [1, 10, 60, 300, 600, 1800, 3600, 21_600, 86_400];
/// Windows that a plan has lines for.
const WINDOWS: [(&str, f64); 4] = [("1h", 3600.0), ("1d", 86_400.0), ("7d", 604_800.0), ("30d", 2_592_000.0)];
/// The room of a version in a store in addition to its content, in bytes.
const ENTRY: u64 = 64;
/// A finer granularity may cost this much more I/O, and this much more space, than the next.
const FINER_IO: f64 = 1.10;
const FINER_SPACE: f64 = 1.25;

/// The cost of a lag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lag {
    /// The interval of the mirror, in seconds.
    pub lag_s: f64,
    /// Sent in a day.
    pub bytes_per_day: f64,
    /// Per cent of the written bytes.
    pub pct_of_written: f64,
    /// Of the link.
    pub link_share: f64,
    /// Bytes of the largest transfer, and how long it takes on the link.
    pub peak_bytes: u64,
    /// In seconds.
    pub peak_transfer_s: f64,
    /// The link carries it: half of it on average at most, and the largest transfer within the
    /// interval.
    pub fits: bool,
    /// The trace is shorter than the interval.
    pub beyond_trace: bool,
}

/// The cost of a granularity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grain {
    /// `every_write`, or its length.
    pub granularity: String,
    /// The cheapest placement that leaves the origin usable by itself, and its I/O for each block
    /// write.
    pub cheapest: String,
    /// Its I/O.
    pub io: f64,
    /// Logging: the fewest I/O, and reads that are no longer sequential.
    pub logging_io: f64,
    /// I/O without history.
    pub none_io: f64,
    /// Bytes of history in a day, of the cheapest.
    pub bytes_per_day: f64,
    /// The trace is shorter than the granularity.
    pub beyond_trace: bool,
}

/// The space of a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowSpace {
    /// How long.
    pub window: String,
    /// By granularity: bytes of a store.
    pub bytes: crate::Labelled<u64>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// Of the mirror, in seconds; `None` when the link carries none.
    pub mirror_interval_s: Option<f64>,
    /// Why.
    pub mirror_reason: String,
    /// Of history.
    pub granularity: String,
    /// Of history.
    pub placement: String,
    /// Why.
    pub history_reason: String,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Bytes a second of the link.
    pub link_bytes_per_s: f64,
    /// Seconds that the trace is long.
    pub trace_s: f64,
    /// Bytes written in a day.
    pub written_bytes_per_day: f64,
    /// By lag.
    pub lags: Vec<Lag>,
    /// By granularity.
    pub granularities: Vec<Grain>,
    /// By window.
    pub windows: Vec<WindowSpace>,
    /// One setting.
    pub recommended: Recommended,
}

impl Plan {
    /// The lines of a plan out of the figures of a trace, whose analysis had [`LAGS_S`] and
    /// [`GRAINS_S`] and one write cache.
    pub fn of(report: &Report, link_bytes_per_s: f64) -> Self {
        Self::of_sample(report, link_bytes_per_s, 1.0)
    }

    /// The same when each block write of the report represents `scale` of them.
    pub(crate) fn of_sample(report: &Report, link_bytes_per_s: f64, scale: f64) -> Self {
        let trace_s = report.duration_s.max(1e-3);
        let a_day = 86_400.0 * scale / trace_s;
        let block = report.block_bytes as f64;
        let lags: Vec<Lag> = report
            .mirror_pct
            .0
            .iter()
            .map(|(_, row)| {
                let bytes_per_day = row.blocks_with_trims as f64 * block * a_day;
                let peak_bytes = ((row.peak_blocks_with_trims * report.block_bytes) as f64 * scale) as u64;
                let peak_transfer_s = peak_bytes as f64 / link_bytes_per_s;
                let link_share = bytes_per_day / 86_400.0 / link_bytes_per_s;
                Lag {
                    lag_s: row.interval_s,
                    bytes_per_day,
                    pct_of_written: row.pct_with_trims,
                    link_share,
                    peak_bytes,
                    peak_transfer_s,
                    fits: link_share <= LINK_SHARE_MAX && peak_transfer_s <= row.interval_s,
                    beyond_trace: row.interval_s > trace_s,
                }
            })
            .collect();
        let granularities = grains(report, trace_s, a_day);
        let windows = windows(report, trace_s, scale);
        let recommended = recommend(&lags, &granularities);
        let written_bytes_per_day = report.w_block_writes as f64 * block * a_day;
        Self { link_bytes_per_s, trace_s, written_bytes_per_day, lags, granularities, windows, recommended }
    }
}

fn grains(report: &Report, trace_s: f64, a_day: f64) -> Vec<Grain> {
    let Some((_, cache)) = report.lrw.0.first() else { return Vec::new() };
    let row = |(label, row): &(String, crate::AtGrain)| {
        let io = &row.io;
        let is_split = io.splitdownstream <= io.checkpointing;
        let (cheapest, cost) = match is_split {
            true => ("split-down-stream", io.splitdownstream),
            false => ("checkpointing", io.checkpointing),
        };
        let space = report.history_blocks.get(label);
        let blocks = space.map_or(0, |space| match is_split {
            true => space.logging_rw,
            false => space.checkpointing_rw_minus_f,
        });
        Grain {
            granularity: label.clone(),
            cheapest: cheapest.to_owned(),
            io: cost,
            logging_io: io.logging,
            none_io: io.regular_volume,
            bytes_per_day: (blocks * (report.block_bytes + ENTRY)) as f64 * a_day,
            beyond_trace: row.granularity_s > trace_s,
        }
    };
    cache.io_per_block_write.0.iter().map(row).collect()
}

/// Space of the placement that holds most: every retained write.
fn windows(report: &Report, trace_s: f64, scale: f64) -> Vec<WindowSpace> {
    let seconds = |label: &str| label.parse::<cairn_base::Interval>().map_or(0.0, |g| g.0.as_secs_f64());
    WINDOWS
        .into_iter()
        .map(|(window, length)| {
            let fits = report.history_blocks.0.iter().filter(|(label, _)| seconds(label) <= length);
            let rows = fits.map(|(label, space)| {
                let blocks = space.logging_rw as f64 * scale * length / trace_s;
                (label.clone(), (blocks * (report.block_bytes + ENTRY) as f64) as u64)
            });
            WindowSpace { window: window.to_owned(), bytes: crate::Labelled(rows.collect()) }
        })
        .collect()
}

fn recommend(lags: &[Lag], grains: &[Grain]) -> Recommended {
    let name = |lag: &Lag| cairn_base::Interval(Duration::from_secs_f64(lag.lag_s)).to_string();
    let chosen = lags.iter().find(|lag| lag.fits && !lag.beyond_trace);
    let chosen = chosen.or_else(|| lags.iter().find(|lag| lag.fits));
    let mirror_reason = match chosen {
        Some(lag) => format!(
            "{} is the shortest lag that takes at most half of the link on average ({:.1} %) and whose largest transfer is over before the next ({:.1} s){}",
            name(lag),
            100.0 * lag.link_share,
            lag.peak_transfer_s,
            if lag.beyond_trace { "; the trace is shorter than that" } else { "" },
        ),
        None => {
            "no lag fits: even once a day takes more than half of the link, or longer than a day".to_owned()
        }
    };
    let known: Vec<&Grain> = grains.iter().filter(|grain| !grain.beyond_trace).collect();
    let worth = |pair: &[&Grain]| {
        let [fine, coarse] = pair else { return false };
        fine.io <= coarse.io * FINER_IO && fine.bytes_per_day <= (coarse.bytes_per_day * FINER_SPACE).max(1.0)
    };
    let at = known.windows(2).position(worth).unwrap_or(known.len().saturating_sub(1));
    let (granularity, placement, history_reason) = match known.get(at) {
        Some(grain) => {
            let next = known.get(at + 1).map(|next| {
                format!("; the next coarser one, {}, would cost {:.2}", next.granularity, next.io)
            });
            let reason = format!(
                "the finest granularity whose next coarser one saves less than {:.0} % of the I/O and {:.0} % of the space: {:.2} I/O for each block write, {:.2} without history{}",
                100.0 * (FINER_IO - 1.0),
                100.0 * (FINER_SPACE - 1.0),
                grain.io,
                grain.none_io,
                next.unwrap_or_default(),
            );
            (grain.granularity.clone(), grain.cheapest.clone(), reason)
        }
        None => {
            let reason = "nothing is known of its writes".to_owned();
            ("every_write".to_owned(), "split-down-stream".to_owned(), reason)
        }
    };
    Recommended {
        mirror_interval_s: chosen.map(|lag| lag.lag_s),
        mirror_reason,
        granularity,
        placement,
        history_reason,
    }
}
