//! The metrics of a server for monitoring systems: `GET /metrics`, in the OpenMetrics text format
//! if the client accepts that, and otherwise in the older Prometheus format. In the latter the name
//! of a counter has its `_total` also in its help and type lines.
//!
//! There are no separate counters: each answer is computed like that of `cairn status` at that
//! moment. A server without scrapes has no cost, and the two never differ. Rates and latencies of
//! exports are of the last 5 to 10 seconds, as sessions keep them. Names and labels are listed in
//! docs/reference/metrics.md; a name keeps its meaning from one version to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use cairn_api as api;
use cairn_bucket::Tally;
use cairn_volume::VolumeStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

mod buckets;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names::ExportName;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    OpenMetrics,
    Prometheus,
}

impl Form {
    /// The format that the `Accept` headers of a request select.
    pub(crate) fn of<'a>(accepts: impl IntoIterator<Item = &'a str>) -> Self {
        let asks = accepts.into_iter().any(|accept| accept.contains("application/openmetrics-text"));
        if asks { Form::OpenMetrics } else { Form::Prometheus }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The text of OpenMetrics in this form.
    fn written(self, text: String) -> String {
        if self == Form::OpenMetrics {
            return text;
        }
        let of_type =
            |line: &'_ str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
        let counters: BTreeSet<String> = text.lines().filter_map(of_type).collect();
        let mut older = String::with_capacity(text.len());
        for line in text.lines().filter(|line| *line != "# EOF") {
            let named = ["# HELP ", "# TYPE "].into_iter().find_map(|begin| {
                let (name, rest) = line.strip_prefix(begin)?.split_once(' ')?;
                counters.contains(name).then(|| format!("{begin}{name}_total {rest}"))
            });
            older.push_str(named.as_deref().unwrap_or(line));
            older.push('\n');
        }
        older
    }
}

const BLOCK: u64 = cairn_base::BLOCK_SIZE as u64;

type Labels = Vec<(&'static str, String)>;
/// One kind of requests of a session.
type OfActivity = fn(&api::Activity) -> api::Rate;

/// A server at one moment.
#[derive(Debug)]
struct Scrape {
    status: api::Status,
    volumes: Vec<(String, VolumeStatus)>,
    histories: Vec<(String, api::HistoryStatus)>,
    /// Requests to each bucket.
    buckets: Vec<(String, Arc<Tally>)>,
    /// Jobs that run.
    jobs: usize,
    now_ms: u64,
}

impl Server {
    /// The metrics of this moment.
    pub(crate) fn metrics(&self, form: Form) -> Result<String, ServerError> {
        let status = self.status();
        let open = self.volumes.all();
        let mut histories: Vec<(String, api::HistoryStatus)> = Vec::new();
        // A volume without a history and a device can have one name.
        let remember: BTreeSet<&String> = open
            .iter()
            .map(|open| &open.name)
            .chain(status.devices.iter().map(|device| &device.name))
            .collect();
        for name in remember {
            if let Ok(history) = self.show_history(name) {
                histories.push((name.clone(), history));
            }
        }
        let scrape = Scrape {
            volumes: open.iter().map(|open| (open.name.clone(), open.volume.status())).collect(),
            now_ms: self.clock.now().0 / 1_000_000,
            jobs: self.jobs.list().iter().filter(|job| job.state == api::JobState::Running).count(),
            status,
            histories,
            buckets: self.buckets.requests(),
        };
        let mut registry = Registry::with_prefix("cairn");
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        encode(&mut text, &registry).map_err(|_| ServerError::Bug)?;
        Ok(form.written(text))
    }
}

/// Writes families one after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// Blocks of an update that have not arrived yet: sent bytes are compressed, so this is never less
/// than the real remainder.
fn remaining(transfer: &api::Transfer) -> u64 {
    transfer.changed_bytes.saturating_sub(transfer.kept_bytes + transfer.sent_bytes)
}

fn fact(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

fn of(kind: &'static str, name: &str) -> Labels {
    vec![(kind, name.to_owned())]
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page(encoder);
        self.server(&mut page)?;
        self.volumes(&mut page)?;
        self.exports(&mut page)?;
        self.mirrors(&mut page)?;
        self.buckets(&mut page)?;
        self.histories(&mut page)
    }
}

impl Scrape {
    fn server(&self, page: &mut Page<'_>) -> fmt::Result {
        let version = vec![("version", self.status.version.clone())];
        page.gauges("server_info", "The version of the server", [(version, 1.0)])?;
        page.gauge("server_uptime_seconds", "Since the server started", seconds(self.status.uptime_ms))?;
        page.gauge("server_memory_bytes", "Memory that it has", self.status.memory_bytes as f64)?;
        page.gauge(
            "server_cache_bytes",
            "Memory that its open volumes may take for cached blocks and for writes on their way",
            (self.status.cache_bytes.saturating_mul(self.volumes.len() as u64)) as f64,
        )?;
        page.gauge(
            "server_jobs",
            "Transfers, dumps, restores, checks and drills that run",
            self.jobs as f64,
        )?;
        let mut problems: BTreeMap<&str, f64> = BTreeMap::new();
        for problem in &self.status.problems {
            *problems.entry(&problem.subject).or_default() += 1.0;
        }
        let each = problems.into_iter().map(|(subject, count)| (of("subject", subject), count));
        page.gauges("problems", "Problems that cairn status tells, by what they concern", each)
    }

    fn volumes(&self, page: &mut Page<'_>) -> fmt::Result {
        let shown = &self.status.volumes;
        let is_open = |volume: &api::Volume| fact(volume.role != api::VolumeRole::Unavailable);
        let open = shown.iter().map(|volume| (of("volume", &volume.name), is_open(volume)));
        page.gauges("volume_open", "Whether the volume is in service", open)?;
        let of_each = |value: fn(&VolumeStatus) -> f64| {
            self.volumes.iter().map(move |(name, status)| (of("volume", name), value(status)))
        };
        page.gauges("volume_size_bytes", "Its block space", of_each(|v| (v.blocks * BLOCK) as f64))?;
        page.gauges(
            "volume_used_bytes",
            "In use by its present state or snapshots",
            of_each(|v| (v.used * BLOCK) as f64),
        )?;
        page.gauges("volume_free_bytes", "What writes can take", of_each(|v| (v.free * BLOCK) as f64))?;
        page.gauges(
            "volume_dirty_bytes",
            "In memory, in no consistency point yet",
            of_each(|v| (v.dirty * BLOCK) as f64),
        )?;
        page.gauges("volume_log_used_bytes", "Intent log in use", of_each(|v| (v.log_used * BLOCK) as f64))?;
        page.gauges("volume_snapshots", "How many snapshots", of_each(|v| v.snapshots as f64))?;
        page.gauges(
            "volume_failed",
            "Whether a failed write or flush of metadata made it read-only",
            of_each(|v| fact(v.latched.is_some())),
        )?;
        page.gauges(
            "volume_lacks_room",
            "Whether it takes no writes until the file system or history below it has room",
            of_each(|v| fact(v.lacks_room)),
        )?;
        let hosts = || shown.iter().filter_map(|volume| Some((&volume.name, volume.host.as_ref()?)));
        page.gauges(
            "volume_host_free_bytes",
            "Free on the file system of its files",
            hosts().map(|(name, host)| (of("volume", name), host.free_bytes as f64)),
        )?;
        page.gauges(
            "volume_host_unwritten_bytes",
            "What its sparse files may still take of their file system",
            hosts().map(|(name, host)| (of("volume", name), host.unwritten_bytes as f64)),
        )?;
        page.gauges(
            "volume_changed_timestamp_seconds",
            "When its content last changed, as of the last consistency point",
            of_each(|v| v.changed.0 as f64 / 1e9),
        )?;
        let counts = |value: fn(&VolumeStatus) -> u64| {
            self.volumes.iter().map(move |(name, status)| (of("volume", name), value(status)))
        };
        page.counters(
            "volume_consistency_points",
            "Consistency points since it was opened",
            counts(|v| v.consistency_points),
        )?;
        page.counters(
            "volume_flushes",
            "Flushes that the intent log made durable since it was opened",
            counts(|v| v.flushes),
        )?;
        let scrubs = || shown.iter().filter_map(|volume| Some((&volume.name, volume.scrub.as_ref()?)));
        let damaged = scrubs().map(|(name, scrub)| (of("volume", name), scrub.damaged.len() as f64));
        page.gauges("volume_damaged_blocks", "Blocks that are damaged and not repaired", damaged)?;
        let repaired = scrubs().map(|(name, scrub)| (of("volume", name), scrub.repaired_blocks));
        page.counters("volume_repaired_blocks", "Damaged blocks that were repaired in place", repaired)?;
        let running = scrubs().map(|(name, scrub)| (of("volume", name), fact(scrub.running)));
        page.gauges("volume_scrub_running", "Whether a scrub is under way", running)?;
        let whole = |scrub: &api::Scrub| {
            scrub.last.as_ref().filter(|last| !last.stopped).map(|last| last.finished_ms)
        };
        let scrubbed =
            scrubs().filter_map(|(name, scrub)| Some((of("volume", name), seconds(whole(scrub)?))));
        page.gauges(
            "volume_scrubbed_timestamp_seconds",
            "When the last pass of a scrub was over that was not stopped",
            scrubbed,
        )?;
        let written = |name: &str| {
            let luns = self.status.exports.iter().filter(|export| {
                ExportName::parse(&export.name).is_some_and(|of| of.volume == name && of.snapshot.is_none())
            });
            luns.map(|export| export.totals.written_bytes).sum()
        };
        page.counters(
            "volume_written_bytes",
            "Bytes that clients wrote to its LUNs since the server started",
            shown.iter().map(|volume| (of("volume", &volume.name), written(&volume.name))),
        )
    }

    fn exports(&self, page: &mut Page<'_>) -> fmt::Result {
        let exports = &self.status.exports;
        let sessions =
            exports.iter().map(|export| (of("export", &export.name), export.sessions.len() as f64));
        page.gauges("export_sessions", "Clients that have it open", sessions)?;
        let totals = |value: fn(&api::ExportTotals) -> u64| {
            exports.iter().map(move |export| (of("export", &export.name), value(&export.totals)))
        };
        page.counters("export_requests", "Requests since the server started", totals(|t| t.requests))?;
        page.counters("export_read_bytes", "Bytes read since the server started", totals(|t| t.read_bytes))?;
        page.counters(
            "export_written_bytes",
            "Bytes written since the server started",
            totals(|t| t.written_bytes),
        )?;
        let rates = |value: fn(&api::Rate) -> Option<f64>, join: fn(f64, f64) -> f64| {
            exports.iter().flat_map(move |export| {
                let kinds: [(&str, OfActivity); 3] =
                    [("read", |a| a.read), ("write", |a| a.write), ("other", |a| a.other)];
                kinds.into_iter().filter_map(move |(kind, rate)| {
                    let values = export.sessions.iter().filter_map(|s| value(&rate(&s.activity)));
                    let labels = vec![("export", export.name.clone()), ("operation", kind.to_owned())];
                    Some((labels, values.reduce(join)?))
                })
            })
        };
        let sum = |a: f64, b: f64| a + b;
        page.gauges(
            "export_operations_per_second",
            "Requests a second, of the last seconds",
            rates(|r| Some(r.per_second), sum),
        )?;
        page.gauges(
            "export_bytes_per_second",
            "Bytes a second, of the last seconds",
            rates(|r| Some(r.bytes_per_second as f64), sum),
        )?;
        let us = |value: fn(&api::Rate) -> Option<f64>| rates(value, f64::max);
        page.gauges(
            "export_latency_p50_seconds",
            "Half of the requests took no longer; of several sessions the slowest",
            us(|r| r.p50_us.map(|us| us / 1e6)),
        )?;
        page.gauges(
            "export_latency_p99_seconds",
            "99 of 100 requests took no longer; of several sessions the slowest",
            us(|r| r.p99_us.map(|us| us / 1e6)),
        )
    }

    fn mirrors(&self, page: &mut Page<'_>) -> fmt::Result {
        let mirrors = &self.status.mirrors;
        let of_each = |value| self.of_each_mirror(value);
        let state = |mirror: &api::Mirror| {
            let word = serde_json::to_value(mirror.state).ok();
            let word = word.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned();
            (vec![("mirror", mirror.name.clone()), ("state", word)], 1.0)
        };
        page.gauges("mirror_state", "1 for the state that it is in", mirrors.iter().map(state))?;
        page.gauges(
            "mirror_check",
            "0 all is well, 1 a warning, 2 critical, as cairn mirror check says",
            of_each(|m| Some(f64::from(m.check))),
        )?;
        page.gauges(
            "mirror_lag_seconds",
            "Since the first change at the source that is not here",
            of_each(|m| m.lag_ms.map(seconds)),
        )?;
        page.gauges(
            "mirror_lag_bytes",
            "Changed at the source and not here",
            of_each(|m| m.lag_bytes.map(|bytes| bytes as f64)),
        )?;
        page.gauges(
            "mirror_rpo_seconds",
            "The lag that its owner wants at most",
            of_each(|m| m.rpo_ms.map(seconds)),
        )?;
        page.gauges(
            "mirror_over_rpo",
            "Whether the lag is more than its owner wants",
            of_each(|m| m.rpo_ms.map(|_| fact(m.over_rpo))),
        )?;
        page.gauges(
            "mirror_remaining_bytes",
            "Blocks that the running update has still to bring, before packing; 0 without one",
            of_each(|m| Some(m.last.as_ref().filter(|_| m.quiet_ms.is_some()).map_or(0, remaining) as f64)),
        )?;
        page.gauges(
            "mirror_silent_seconds",
            "Since its source was last heard",
            of_each(|m| m.silent_ms.map(seconds)),
        )?;
        page.gauges(
            "mirror_image_age_seconds",
            "How old the image is that it shows",
            of_each(|m| m.image_age_ms.map(seconds)),
        )?;
        self.mirror_updates(page)?;
        self.drills(page)?;
        self.followers(page)
    }

    fn of_each_mirror(&self, value: fn(&api::Mirror) -> Option<f64>) -> impl Iterator<Item = (Labels, f64)> {
        let mirrors = self.status.mirrors.iter();
        mirrors.filter_map(move |mirror| Some((of("mirror", &mirror.name), value(mirror)?)))
    }

    fn mirror_updates(&self, page: &mut Page<'_>) -> fmt::Result {
        let mirrors = &self.status.mirrors;
        let of_each = |value| self.of_each_mirror(value);
        let counts = |value: fn(&api::Mirror) -> u64| {
            mirrors.iter().map(move |mirror| (of("mirror", &mirror.name), value(mirror)))
        };
        page.counters("mirror_updates", "Updates that were completed", counts(|m| m.updates))?;
        page.counters("mirror_received_bytes", "Bytes that updates have brought", counts(|m| m.sent_bytes))?;
        page.counters(
            "mirror_compared_updates",
            "Updates since the server started without a common image: all was compared, or sent",
            counts(|m| m.compared_updates),
        )?;
        page.counters(
            "mirror_mended_blocks",
            "Damaged blocks of either side that were repaired from the other",
            counts(|m| m.mended_here + m.mended_there),
        )?;
        page.gauges(
            "mirror_verified_timestamp_seconds",
            "Start of the last completed comparison with the source",
            of_each(|m| m.verified.as_ref().map(|verified| seconds(verified.started_ms))),
        )?;
        page.gauges(
            "mirror_unmended_blocks",
            "Blocks that the last comparison found damaged and could not repair",
            of_each(|m| {
                m.verified.as_ref().map(|verified| (verified.left_here + verified.left_there) as f64)
            }),
        )?;
        page.gauges(
            "mirror_contradicting_blocks",
            "Blocks that the last comparison found whole on both sides and not the same",
            of_each(|m| m.verified.as_ref().map(|verified| verified.contradictions as f64)),
        )
    }

    fn followers(&self, page: &mut Page<'_>) -> fmt::Result {
        let followers = &self.status.followers;
        let of_follower = |value: fn(&api::Follower, u64) -> Option<f64>| {
            followers.iter().filter_map(move |follower| {
                let labels = vec![("volume", follower.volume.clone()), ("mirror", follower.name.clone())];
                Some((labels, value(follower, self.now_ms)?))
            })
        };
        page.gauges(
            "follower_lag_seconds",
            "How far a mirror of a volume here is behind",
            of_follower(|f, _| f.lag_ms.map(seconds)),
        )?;
        page.gauges(
            "follower_lag_bytes",
            "Changed here and not there, kept for it",
            of_follower(|f, _| f.lag_bytes.map(|bytes| bytes as f64)),
        )?;
        page.gauges(
            "follower_over_rpo",
            "Whether it is further behind than its owner wants",
            of_follower(|f, _| f.rpo_ms.map(|_| fact(f.over_rpo))),
        )?;
        page.gauges(
            "follower_unheard_seconds",
            "Since it was last heard of",
            of_follower(|f, now| f.heard_ms.map(|heard| seconds(now.saturating_sub(heard)))),
        )
    }

    fn drills(&self, page: &mut Page<'_>) -> fmt::Result {
        let of_each = |value: fn(&api::Drill) -> Option<f64>| {
            let drills = self.status.drills.iter();
            drills.filter_map(move |drill| Some((of("mirror", &drill.mirror), value(drill)?)))
        };
        page.gauges(
            "drill_passed",
            "Whether the last drill passed",
            of_each(|d| d.last.as_ref().map(|last| fact(last.outcome == api::DrillOutcome::Passed))),
        )?;
        page.gauges(
            "drill_recovery_seconds",
            "How long the last drill took, up to the end of its probe",
            of_each(|d| d.last.as_ref().map(|last| seconds(last.recovery_ms))),
        )?;
        page.gauges(
            "drill_age_seconds",
            "Since the last drill that passed",
            of_each(|d| d.age_ms.map(seconds)),
        )?;
        page.gauges(
            "drill_stale",
            "Whether none has passed for two intervals",
            of_each(|d| Some(fact(d.stale))),
        )
    }

    fn histories(&self, page: &mut Page<'_>) -> fmt::Result {
        let of_each = |value: fn(&api::HistoryStatus) -> f64| {
            self.histories.iter().map(move |(name, history)| (of("device", name), value(history)))
        };
        page.gauges(
            "history_span_seconds",
            "How far back it reaches",
            of_each(|h| h.last_ns.saturating_sub(h.start_ns) as f64 / 1e9),
        )?;
        let wished = self.histories.iter();
        page.gauges(
            "history_window_seconds",
            "How far back its owner wants it to reach, where that was said",
            wished.filter_map(|(name, h)| Some((of("device", name), seconds(h.window.time_ms?)))),
        )?;
        let given_up = self.histories.iter().map(|(name, h)| (of("device", name), h.given_up));
        page.counters(
            "history_given_up",
            "How often history was discarded because the store was full",
            given_up,
        )?;
        page.gauges(
            "history_waiting",
            "Writes and flushes that wait for room",
            of_each(|h| h.waiting as f64),
        )?;
        page.gauges("history_store_bytes", "The store", of_each(|h| h.store_bytes as f64))?;
        page.gauges("history_used_bytes", "Of the store, in use", of_each(|h| h.used_bytes as f64))?;
        page.gauges("history_lost_versions", "Unreadable versions", of_each(|h| h.lost_versions as f64))
    }
}
