//! `cairn trace analyse`: figures as tables, one a paper's table or figure.

use std::fmt::Write;

use cairn_trace::{AnalyseOptions, Analysis, Cache, Report, dirty_blocks, plots};

use crate::arguments::AnalyseTrace;
use crate::exit::Failure;
use crate::output::{Output, size, table};

/// Runs it.
pub fn run(asked: &AnalyseTrace, output: Output) -> Result<(), Failure> {
    let failed = |error| super::failure(error, &asked.input.file);
    let mut reader = super::open(&asked.input)?;
    let options = options(asked);
    let bar = output.count_bar("requests");
    let report = Analysis::of(&mut reader, options, &mut |requests| bar.set_position(requests));
    bar.finish_and_clear();
    let report = report.map_err(failed)?;
    if let Some(folder) = &asked.plots {
        std::fs::create_dir_all(folder)?;
        for (name, svg) in plots(&report) {
            std::fs::write(folder.join(format!("{name}.svg")), svg)?;
        }
    }
    output.show(&report, |report| {
        let mut text = tables(report);
        if let Some(folder) = &asked.plots {
            let _ = write!(text, "\nfigures are in {}", folder.display());
        }
        text
    });
    Ok(())
}

fn options(asked: &AnalyseTrace) -> AnalyseOptions {
    let mut options =
        AnalyseOptions { block_bytes: asked.block.0, memory_max: asked.memory.0, ..Default::default() };
    if !asked.granularity.is_empty() {
        options.granularities = asked.granularity.iter().map(|g| g.0).collect();
    }
    if !asked.interval.is_empty() {
        options.intervals = asked.interval.iter().map(|g| g.0).collect();
    }
    if !asked.cache.is_empty() || !asked.dirty_blocks.is_empty() {
        let caches = asked.cache.iter().map(|total| dirty_blocks(total.0, asked.block.0.max(1)));
        options.write_caches = caches.chain(asked.dirty_blocks.iter().copied()).collect();
    }
    if !asked.cache.is_empty() {
        options.read_caches = asked.cache.iter().map(|total| total.0 / asked.block.0.max(1)).collect();
    }
    options
}

/// A share to four digits.
fn share(value: f64) -> String {
    format!("{value:.4}")
}

fn maybe(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), share)
}

fn pct(value: f64) -> String {
    format!("{value:.2}")
}

fn tables(report: &Report) -> String {
    let mut text = summary(report);
    let mut section = |title: &str, table: String| {
        let _ = write!(text, "\n\n{title}\n{table}");
    };
    let one = &report.table1;
    section(
        "What became of the blocks that were written (FAST 2002, table 1)",
        table(
            ["BLOCKS WRITTEN", "OVERWRITTEN", "TRIMMED", "% OF WRITTEN"],
            [[
                one.blocks_written.to_string(),
                one.overwritten.to_string(),
                one.trimmed.to_string(),
                pct(one.written_deleted_pct),
            ]],
        ),
    );
    section(
        "A mirror: blocks transferred against its interval (FAST 2002, figures 2 and 3)",
        mirror_table(report),
    );
    section("Temporal distances: T(t) (FAST 2007, figure 7)", {
        let sub = |label: &str| report.T_sub.as_ref().and_then(|sub| sub.get(label).copied());
        table(
            ["SECONDS", "OF ALL WRITES", "OF THOSE THAT ARE OVERWRITTEN"],
            report.T_all.0.iter().map(|(label, all)| [label.clone(), share(*all), maybe(sub(label))]),
        )
    });
    section(
        "Retained writes r(g): counted, and by Claim 3.1 (FAST 2007, figures 6 and 8)",
        retained_table(report),
    );
    for (pages, cache) in &report.lrw.0 {
        let title = format!(
            "I/O per block write, {pages} dirty blocks (3 % of {} MiB): c = {:.4}, {:.4} without the end; s = {:.3} s (FAST 2007, figures 5 and 9 to 14)",
            cache.total_cache_mib,
            cache.c_evicted_flush_at_end,
            cache.c_evicted_no_flush,
            cache.cache_window_s_sec,
        );
        section(&title, cache_table(cache));
    }
    section(
        "Reads that an LRU cache answers",
        table(
            ["BLOCKS", "CACHE", "HITS", "RATIO"],
            report.lru_read.0.iter().map(|(blocks, row)| {
                let bytes = blocks.parse::<u64>().unwrap_or(0) * report.block_bytes;
                [blocks.clone(), size(bytes), row.hits.to_string(), maybe(row.hit_ratio)]
            }),
        ),
    );
    section(
        "One snapshot at the beginning, by snap block (MSST 2006, figures 7 to 9)",
        snap_block_table(report),
    );
    text.push_str(&super::problems(&report.problems));
    text
}

fn mirror_table(report: &Report) -> String {
    table(
        ["INTERVAL", "% OF WRITTEN", "BLOCKS", "% WITH TRIMS KNOWN", "BLOCKS WITH TRIMS KNOWN", "A DAY"],
        report.mirror_pct.0.iter().map(|(label, row)| {
            [
                label.clone(),
                pct(row.pct_blocks_transferred),
                row.blocks_transferred.to_string(),
                pct(row.pct_with_trims),
                row.blocks_with_trims.to_string(),
                size(row.bytes_per_day as u64),
            ]
        }),
    )
}

fn retained_table(report: &Report) -> String {
    table(
        [
            "GRANULARITY",
            "COUNTED",
            "MEAN OF 16 PHASES",
            "CLAIM 3.1",
            "COMPLETED WINDOWS",
            "SPACE: r w",
            "CHECKPOINTING: r w - f",
        ],
        report.r.0.iter().map(|(label, row)| {
            let space = report.history_blocks.get(label);
            let bytes = |pick: fn(&cairn_trace::Space) -> u64| {
                space.map_or("-".to_owned(), |space| size(pick(space) * report.block_bytes))
            };
            [
                label.clone(),
                share(row.r_emp_phase0),
                share(row.r_emp_mean16),
                share(row.R_claim31_all),
                maybe(row.r_emp_phase0_completed_only),
                bytes(|space| space.logging_rw),
                bytes(|space| space.checkpointing_rw_minus_f),
            ]
        }),
    )
}

fn cache_table(cache: &Cache) -> String {
    table(
        [
            "GRANULARITY",
            "r",
            "d",
            "d BY CLAIM 3.2",
            "LOGGING",
            "CHECKPOINTING",
            "SPLIT-STREAM",
            "SPLIT-DOWN-STREAM",
            "NO HISTORY",
            "CHEAPEST OF TWO",
        ],
        cache.io_per_block_write.0.iter().map(|(label, row)| {
            let io = &row.io;
            [
                label.clone(),
                share(io.r),
                share(io.d),
                share(io.D_claim32),
                share(io.logging),
                share(io.checkpointing),
                share(io.splitstream),
                share(io.splitdownstream),
                share(io.regular_volume),
                io.cheapest_2store.to_owned(),
            ]
        }),
    )
}

fn snap_block_table(report: &Report) -> String {
    table(
        [
            "SNAP BLOCK",
            "COPIES",
            "SNAPSHOT VOLUME",
            "INDEX (PAPER)",
            "INDEX (CAIRN)",
            "EFFICIENCY",
            "OF ALL BYTES",
            "PARTIAL WRITES",
        ],
        report.snap_block.0.iter().map(|(bytes, row)| {
            [
                bytes.clone(),
                row.first_touch_copies_cow.to_string(),
                size(row.snapshot_volume_bytes),
                size(row.index_bytes_paper),
                size(row.index_bytes_cairn),
                maybe(row.mean_per_write_space_efficiency),
                maybe(row.aggregate_space_efficiency),
                maybe(row.frac_writes_partial),
            ]
        }),
    )
}

fn summary(report: &Report) -> String {
    let exact = match report.distances_exact {
        true => "",
        false => "; cache windows and quantiles to one part in 4096",
    };
    format!(
        "{} requests over {:.1} s on {} device(s): {} writes of {}, {} reads of {}, {} trims of {}, {} flushes\n\
         w = {} block writes of {} on f = {} blocks; the analysis took {} of memory{exact}",
        report.requests,
        report.duration_s,
        report.devices,
        report.writes,
        size(report.bytes_written),
        report.reads,
        size(report.bytes_read),
        report.trims,
        size(report.bytes_trimmed),
        report.flushes,
        report.w_block_writes,
        size(report.block_bytes),
        report.f_unique_blocks_written,
        size(report.memory_bytes),
    )
}
