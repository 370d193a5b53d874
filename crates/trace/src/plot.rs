//! The papers' figures as SVG: which lines each has, over which axes. How they are drawn is
//! [`svg`]'s.

mod svg;

use crate::{AtGrain, Report};
use svg::{Chart, Line, Scale};

/// The place of "every write" on an axis of granularities, in seconds: left of all others.
const EVERY_WRITE_AT: f64 = 0.1;

/// All non-empty figures of an analysis: the name of a file, and its SVG.
pub fn plots(report: &Report) -> Vec<(String, String)> {
    let mut plots = vec![
        ("fast2002-figure2-3-transferred".to_owned(), transferred(report)),
        ("fast2007-figure7-temporal-distance".to_owned(), temporal_distance(report)),
        ("fast2007-figure8-retained".to_owned(), retained(report)),
        ("fast2007-figure6-space".to_owned(), space(report)),
        ("msst2006-figure7-snapshot-volume".to_owned(), snapshot_volume(report)),
        ("msst2006-figure8-index".to_owned(), index(report)),
        ("msst2006-figure9-efficiency".to_owned(), efficiency(report)),
    ];
    for (pages, cache) in &report.lrw.0 {
        let mib = cache.total_cache_mib;
        plots.push((
            format!("fast2007-figure9-12-io-{pages}-pages"),
            io(report, pages, &format!("I/O per block write, {mib} MiB of cache, 3 % of it dirty")),
        ));
        plots.push((format!("fast2007-figure11-13-model-{pages}-pages"), model(report, pages, mib)));
    }
    for granularity in ["1s", "10m"] {
        if report.history_blocks.get(granularity).is_some() {
            plots.push((format!("fast2007-figure14-cache-{granularity}"), by_cache(report, granularity)));
        }
    }
    plots
}

fn chart(title: &str, x: (&str, Scale), y: (&str, Scale), lines: Vec<Line>) -> String {
    Chart { title: title.to_owned(), x: (x.0.to_owned(), x.1), y: (y.0.to_owned(), y.1), lines }.draw()
}

fn transferred(report: &Report) -> String {
    let points = |pick: fn(&crate::MirrorInterval) -> f64| {
        report.mirror_pct.0.iter().map(|(_, row)| (row.interval_s / 60.0, pick(row))).collect()
    };
    let lines = vec![
        Line::new("without the active map", points(|row| row.pct_blocks_transferred)),
        Line::new("with the active map (trims known)", points(|row| row.pct_with_trims)).dashed(),
    ];
    chart(
        "Blocks transferred against the interval of a mirror",
        ("interval, minutes", Scale::Log),
        ("% of written blocks", Scale::LinearTo(100.0)),
        lines,
    )
}

fn temporal_distance(report: &Report) -> String {
    let line = Line::new("T(t), all writes", report.T_curve.clone()).plain();
    chart(
        "Temporal distance distribution",
        ("distance to the next write of the block, seconds", Scale::Log),
        ("fraction of writes", Scale::LinearTo(1.0)),
        vec![line],
    )
}

fn retained(report: &Report) -> String {
    let at = |label: &str| match label {
        "every_write" => Some(EVERY_WRITE_AT),
        label => seconds(label),
    };
    let points = |pick: fn(&crate::Retained) -> f64| {
        report.r.0.iter().filter_map(|(label, row)| Some((at(label)?, pick(row)))).collect()
    };
    chart(
        "Retained writes against granularity (space of the logging placement)",
        ("granularity, seconds; leftmost: every write", Scale::Log),
        ("r", Scale::LinearTo(1.0)),
        vec![
            Line::new("counted", points(|row| row.r_emp_phase0)),
            Line::new("counted, mean of 16 phases", points(|row| row.r_emp_mean16)),
            Line::new("Claim 3.1", points(|row| row.R_claim31_all)).dashed(),
        ],
    )
}

fn space(report: &Report) -> String {
    let at = |label: &str| if label == "every_write" { Some(EVERY_WRITE_AT) } else { seconds(label) };
    let mib = |blocks: u64| (blocks * report.block_bytes) as f64 / f64::from(1 << 20);
    let points = |pick: fn(&crate::Space) -> u64| {
        report.history_blocks.0.iter().filter_map(|(l, row)| Some((at(l)?, mib(pick(row))))).collect()
    };
    chart(
        "Space of history against granularity",
        ("granularity, seconds; leftmost: every write", Scale::Log),
        ("MiB beside the addressable storage", Scale::Linear),
        vec![
            Line::new("logging, split-stream, split-down-stream: r w", points(|row| row.logging_rw)),
            Line::new("checkpointing: r w - f", points(|row| row.checkpointing_rw_minus_f)),
        ],
    )
}

fn grains<'a>(report: &'a Report, pages: &str) -> impl Iterator<Item = (f64, &'a AtGrain)> {
    let cache = report.lrw.get(pages);
    cache
        .into_iter()
        .flat_map(|cache| &cache.io_per_block_write.0)
        .map(|(_, row)| (if row.granularity_s == 0.0 { EVERY_WRITE_AT } else { row.granularity_s }, row))
}

fn io(report: &Report, pages: &str, title: &str) -> String {
    let points = |pick: fn(&AtGrain) -> f64| grains(report, pages).map(|(at, row)| (at, pick(row))).collect();
    chart(
        title,
        ("granularity, seconds; leftmost: every write", Scale::Log),
        ("device I/O per block write", Scale::LinearTo(3.0)),
        vec![
            Line::new("checkpointing", points(|row| row.io.checkpointing)),
            Line::new("split-down-stream", points(|row| row.io.splitdownstream)),
            Line::new("split-stream", points(|row| row.io.splitstream)),
            Line::new("logging", points(|row| row.io.logging)),
            Line::new("regular volume", points(|row| row.io.regular_volume)).dashed(),
        ],
    )
}

fn model(report: &Report, pages: &str, mib: u64) -> String {
    let points = |pick: fn(&AtGrain) -> f64| grains(report, pages).map(|(at, row)| (at, pick(row))).collect();
    let lines = vec![
        Line::new("checkpointing, counted", points(|row| row.io.checkpointing)),
        Line::new("checkpointing, by the claims", points(|row| row.io.analytic[1])).dashed(),
        Line::new("split-down-stream, counted", points(|row| row.io.splitdownstream)),
        Line::new("split-down-stream, by the claims", points(|row| row.io.analytic[3])).dashed(),
        Line::new("logging, counted", points(|row| row.io.logging)),
        Line::new("logging, by the claims", points(|row| row.io.analytic[0])).dashed(),
    ];
    chart(
        &format!("I/O per block write, counted and by Claims 3.1 and 3.2, {mib} MiB of cache"),
        ("granularity, seconds; leftmost: every write", Scale::Log),
        ("device I/O per block write", Scale::LinearTo(3.0)),
        lines,
    )
}

fn by_cache(report: &Report, granularity: &str) -> String {
    let points = |pick: fn(&AtGrain) -> f64| {
        let row = |cache: &crate::Cache| {
            let row = cache.io_per_block_write.get(granularity)?;
            Some((cache.total_cache_mib as f64, pick(row)))
        };
        report.lrw.0.iter().filter_map(|(_, cache)| row(cache)).collect()
    };
    chart(
        &format!("I/O per block write against the cache, granularity {granularity}"),
        ("cache, MiB, of which 3 % can be dirty", Scale::Log),
        ("device I/O per block write", Scale::LinearTo(3.0)),
        vec![
            Line::new("checkpointing", points(|row| row.io.checkpointing)),
            Line::new("split-down-stream", points(|row| row.io.splitdownstream)),
            Line::new("logging", points(|row| row.io.logging)),
        ],
    )
}

fn snap_points(report: &Report, pick: impl Fn(&crate::SnapBlock) -> Option<f64>) -> Vec<(f64, f64)> {
    let row = |label: &str, row| Some((label.parse::<f64>().ok()? / 1024.0, pick(row)?));
    report.snap_block.0.iter().filter_map(|(label, block)| row(label, block)).collect()
}

fn snapshot_volume(report: &Report) -> String {
    let mib = |row: &crate::SnapBlock| Some(row.snapshot_volume_bytes as f64 / f64::from(1 << 20));
    chart(
        "Space of the snapshot volume against the snap block",
        ("snap block, KiB", Scale::Log),
        ("MiB", Scale::Linear),
        vec![Line::new("snapshot volume", snap_points(report, mib))],
    )
}

fn index(report: &Report) -> String {
    let pct = |bytes: u64, row: &crate::SnapBlock| {
        (row.snapshot_volume_bytes > 0).then(|| 100.0 * bytes as f64 / row.snapshot_volume_bytes as f64)
    };
    chart(
        "Index against the snap block",
        ("snap block, KiB", Scale::Log),
        ("% of the snapshot volume", Scale::Linear),
        vec![
            Line::new("the paper's hash table", snap_points(report, |row| pct(row.index_bytes_paper, row))),
            Line::new("Cairn, at most", snap_points(report, |row| pct(row.index_bytes_cairn, row))),
        ],
    )
}

fn efficiency(report: &Report) -> String {
    let pct = |share: Option<f64>| share.map(|share| 100.0 * share);
    chart(
        "Space efficiency against the snap block",
        ("snap block, KiB", Scale::Log),
        ("% of what is touched", Scale::LinearTo(100.0)),
        vec![
            Line::new(
                "mean over writes",
                snap_points(report, |row| pct(row.mean_per_write_space_efficiency)),
            ),
            Line::new("all bytes", snap_points(report, |row| pct(row.aggregate_space_efficiency))),
        ],
    )
}

fn seconds(label: &str) -> Option<f64> {
    label.parse::<cairn_base::Interval>().ok().map(|interval| interval.0.as_secs_f64())
}
