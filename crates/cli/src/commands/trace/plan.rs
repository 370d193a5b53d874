//! `cairn plan`: the link cost of a lag, the cheapest history, and one configuration.

use std::fmt::Write;
use std::time::Duration;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};
use cairn_base::Interval;
use cairn_trace::{AnalyseOptions, Analysis, GRAINS_S, LAGS_S, Plan, dirty_blocks};

use crate::arguments::PlanTrace;
use crate::exit::Failure;
use crate::instant::show;
use crate::output::{Output, duration, size, table};

/// The assumed cache of a history, in bytes, as in the server's curves.
const CACHE: u64 = 256 << 20;
/// A recording shorter than this says little about a day.
const HOUR_S: f64 = 3600.0;

fn check(asked: &PlanTrace) -> Result<(), Failure> {
    let usage = |what, next| Err(Failure::new(ErrorKind::Usage, what, next));
    if asked.link.0 == 0 {
        return usage("a link carries something", "give --link in bytes a second, such as 50M");
    }
    if asked.cache.is_some() && !asked.is_local() {
        let next = "leave --cache out, or plan from a trace: cairn trace record";
        return usage("no such trace; and a server plans for a cache of 256M", next);
    }
    Ok(())
}

/// Runs it for a volume, an export or a device of a server.
pub fn run_live(asked: &PlanTrace, client: &Client, output: Output) -> Result<(), Failure> {
    check(asked)?;
    let name = asked.input.file.display().to_string();
    let path = format!("/v1/plans/{}?link={}", super::escaped(&name), asked.link.0);
    let live: api::LivePlan = client.get(&path).map_err(|mut failure| {
        // Without an answer it is as likely that a trace was meant.
        if matches!(failure.error, ErrorKind::Failed | ErrorKind::PeerUnreachable) {
            failure.message = format!("there is no trace {name} here; and {}", failure.message);
            failure.next = format!("check the name of the trace; or {}", failure.next);
        }
        failure
    })?;
    output.show(&live, |live| {
        format!(
            "{}: what clients wrote in {} since {}, {} in all; of one block in {}, {} blocks\n{}",
            live.subject,
            duration(live.elapsed_ms),
            show(live.began_ms * 1_000_000),
            size(live.written_bytes),
            live.sampled_one_in,
            live.sampled_blocks,
            people(&live.plan, "what was seen"),
        )
    });
    Ok(())
}

/// Runs it for a trace.
pub fn run(asked: &PlanTrace, output: Output) -> Result<(), Failure> {
    check(asked)?;
    let cache = asked.cache.map_or(CACHE, |cache| cache.0);
    let mut reader = super::open(&asked.input)?;
    let seconds = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect();
    let options = AnalyseOptions {
        granularities: seconds(&GRAINS_S),
        intervals: seconds(&LAGS_S),
        write_caches: vec![dirty_blocks(cache, 4096).max(1)],
        read_caches: Vec::new(),
        memory_max: asked.memory.0,
        ..AnalyseOptions::default()
    };
    let bar = output.count_bar("requests");
    let report = Analysis::of(&mut reader, options, &mut |requests| bar.set_position(requests));
    bar.finish_and_clear();
    let report = report.map_err(|error| super::failure(error, &asked.input.file))?;
    let plan = Plan::of(&report, asked.link.0 as f64);
    output.show(&plan, |plan| {
        let mut text = people(plan, "the trace");
        text.push_str(&super::problems(&report.problems));
        text
    });
    Ok(())
}

fn time(seconds: f64) -> String {
    Interval(Duration::from_secs_f64(seconds)).to_string()
}

fn marked(text: String, beyond: bool) -> String {
    if beyond { format!("{text} *") } else { text }
}

/// `source`: the origin of the plan.
fn people(plan: &Plan, source: &str) -> String {
    let link = size(plan.link_bytes_per_s as u64);
    let mut text = format!(
        "{} are written in a day, by {source} of {}\n\nA mirror over a link of {link}/s\n",
        size(plan.written_bytes_per_day as u64),
        time((plan.trace_s).max(1.0).floor()),
    );
    text.push_str(&table(
        ["LAG", "A DAY", "% OF WRITTEN", "% OF THE LINK", "LARGEST TRANSFER", "TAKES", "FITS"],
        plan.lags.iter().map(|lag| {
            [
                marked(time(lag.lag_s), lag.beyond_trace),
                size(lag.bytes_per_day as u64),
                format!("{:.1}", lag.pct_of_written),
                format!("{:.2}", 100.0 * lag.link_share),
                size(lag.peak_bytes),
                format!("{:.1} s", lag.peak_transfer_s),
                if lag.fits { "yes" } else { "no" }.to_owned(),
            ]
        }),
    ));
    text.push_str("\n\nHistory: I/O for each block write, of the cheaper placement that keeps the origin usable by itself\n");
    text.push_str(&table(
        ["GRANULARITY", "CHEAPEST", "I/O", "LOGGING", "NO HISTORY", "HISTORY A DAY"],
        plan.granularities.iter().map(|grain| {
            [
                marked(grain.granularity.clone(), grain.beyond_trace),
                grain.cheapest.clone(),
                format!("{:.3}", grain.io),
                format!("{:.3}", grain.logging_io),
                format!("{:.3}", grain.none_io),
                size(grain.bytes_per_day as u64),
            ]
        }),
    ));
    text.push_str("\n\nSpace of a window, at most: every retained version\n");
    text.push_str(&table(
        ["WINDOW", "EVERY WRITE", "1s", "1m", "10m", "1h"],
        plan.windows.iter().map(|window| {
            let at = |label: &str| window.bytes.get(label).map_or("-".to_owned(), |bytes| size(*bytes));
            [window.window.clone(), at("every_write"), at("1s"), at("1m"), at("10m"), at("1h")]
        }),
    ));
    let chosen = &plan.recommended;
    let mirror = match chosen.mirror_interval_s {
        Some(seconds) => format!("--every {}", time(seconds)),
        None => "no mirror on this link".to_owned(),
    };
    let _ = write!(
        text,
        "\n\nRecommended: {mirror}: {}\nRecommended: --placement {} --granularity {}: {}",
        chosen.mirror_reason,
        chosen.placement,
        chosen.granularity.replace('_', "-"),
        chosen.history_reason,
    );
    if plan.lags.iter().any(|lag| lag.beyond_trace) {
        let _ = write!(text, "\n* longer than {source}: rewrites after its end are unknown");
    }
    if plan.trace_s < HOUR_S {
        let _ = write!(
            text,
            "\nnote: a day is reckoned from less than an hour here: ask again when more was seen"
        );
    }
    text
}
