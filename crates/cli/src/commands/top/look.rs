//! The activity of a server between two looks, as lines for people that fit a window, and as
//! objects for programs.

use std::time::{Duration, Instant};

use cairn_api as api;
use serde::Serialize;

use crate::output::{duration, interval, size};

/// The width that all columns fit.
const LEAST_WIDTH: usize = 80;

/// The first lines of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The volumes and clients that move most bytes, and mirrors that need care.
    Busy,
    /// By name.
    Name,
    /// The highest latency, and the longest lag.
    Slow,
}

/// The emphasis of a line on a terminal with colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Warning,
    Critical,
}

impl Tone {
    /// The emphasis of a mirror, by the result of `cairn mirror check`.
    fn of_check(check: u8) -> Self {
        match check {
            0 => Tone::Plain,
            1 => Tone::Warning,
            _ => Tone::Critical,
        }
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its emphasis.
    pub tone: Tone,
    /// Without control characters.
    pub text: String,
}

/// The server at one moment.
pub struct Seen {
    /// When the answer was there.
    pub at: Instant,
    /// As `cairn status` has it.
    pub status: api::Status,
    /// Work that runs or has run.
    pub jobs: Vec<api::Job>,
}

/// The activity of a server between two moments. By default, rates are of the time between.
#[derive(Debug, Clone)]
pub struct Look {
    server: Server,
    exports: Vec<Export>,
    mirrors: Vec<Mirror>,
    followers: Vec<Follower>,
    work: Vec<Work>,
}

/// One line of JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "message_type", rename_all = "kebab-case")]
pub enum Line<'a> {
    Server(&'a Server),
    Export(&'a Export),
    Mirror(&'a Mirror),
    Follower(&'a Follower),
    Work(&'a Work),
}

#[derive(Debug, Clone, Serialize)]
pub struct Server {
    version: String,
    data: String,
    uptime_ms: u64,
    volumes: usize,
    problems: usize,
    memory_bytes: u64,
    /// The memory that all volumes may take for cached blocks and for writes in progress.
    cache_bytes: u64,
    /// Written, and in no consistency point yet.
    dirty_bytes: u64,
    requests_per_second: f64,
    read_bytes_per_second: f64,
    written_bytes_per_second: f64,
    consistency_points_per_second: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Export {
    name: String,
    sessions: usize,
    requests_per_second: f64,
    read_bytes_per_second: f64,
    written_bytes_per_second: f64,
    /// Of the last 5 to 10 seconds, of reads or writes and of the session that is slowest.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Mirror {
    name: String,
    state: api::MirrorState,
    check: u8,
    lag_ms: Option<u64>,
    lag_bytes: Option<u64>,
    bytes_per_second: f64,
    seconds_left: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Follower {
    volume: String,
    mirror: String,
    /// The name of its server.
    peer: Option<String>,
    failed_over: bool,
    lag_ms: Option<u64>,
    lag_bytes: Option<u64>,
    over_rpo: bool,
    transferring: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Work {
    kind: String,
    subject: String,
    phase: String,
    done_bytes: u64,
    total_bytes: u64,
    bytes_per_second: u64,
    seconds_left: Option<u64>,
}

impl Look {
    /// The activity between two looks. An object that began in between counts from its beginning;
    /// after a restart of the server all of them do.
    pub fn between(before: &Seen, now: &Seen) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let restarted = now.status.uptime_ms < before.status.uptime_ms;
        let rate = |then: u64, now: u64| match now.checked_sub(then) {
            Some(more) if !restarted => more as f64 / seconds,
            _ => now as f64 / seconds,
        };
        let status = &now.status;
        let mut exports: Vec<Export> = status
            .exports
            .iter()
            .map(|export| {
                let then = before.status.exports.iter().find(|then| then.name == export.name);
                let then = then.map(|then| then.totals).unwrap_or_default();
                Export {
                    name: export.name.clone(),
                    sessions: export.sessions.len(),
                    requests_per_second: rate(then.requests, export.totals.requests),
                    read_bytes_per_second: rate(then.read_bytes, export.totals.read_bytes),
                    written_bytes_per_second: rate(then.written_bytes, export.totals.written_bytes),
                    p50_us: slowest(export, |rate| rate.p50_us),
                    p99_us: slowest(export, |rate| rate.p99_us),
                }
            })
            .collect();
        let moved = |export: &Export| export.read_bytes_per_second + export.written_bytes_per_second;
        exports.sort_by(|a, b| {
            let (of_a, of_b) = ((moved(a), a.requests_per_second), (moved(b), b.requests_per_second));
            let busier = of_b.0.total_cmp(&of_a.0).then(of_b.1.total_cmp(&of_a.1));
            busier.then(b.sessions.cmp(&a.sessions)).then_with(|| a.name.cmp(&b.name))
        });
        let running = || now.jobs.iter().filter(|job| job.state == api::JobState::Running);
        let mut mirrors: Vec<Mirror> = status
            .mirrors
            .iter()
            .map(|mirror| {
                let job = running().find(|job| job.subject == mirror.name && job.kind.starts_with("mirror"));
                let then = before.status.mirrors.iter().find(|then| then.name == mirror.name);
                let sent = rate(then.map_or(mirror.sent_bytes, |then| then.sent_bytes), mirror.sent_bytes);
                let of_job = job.filter(|job| job.total_bytes > 0);
                Mirror {
                    name: mirror.name.clone(),
                    state: mirror.state,
                    check: mirror.check,
                    lag_ms: mirror.lag_ms,
                    lag_bytes: mirror.lag_bytes,
                    bytes_per_second: of_job.map_or(sent, |job| job.rate as f64),
                    seconds_left: of_job.and_then(|job| job.seconds_left),
                }
            })
            .collect();
        mirrors.sort_by(|a, b| {
            b.check.cmp(&a.check).then(b.lag_ms.cmp(&a.lag_ms)).then_with(|| a.name.cmp(&b.name))
        });
        let mut followers: Vec<Follower> = status
            .followers
            .iter()
            .map(|follower| Follower {
                volume: follower.volume.clone(),
                mirror: follower.name.clone(),
                peer: follower.peer.clone(),
                failed_over: follower.departed.is_some(),
                lag_ms: follower.lag_ms,
                lag_bytes: follower.lag_bytes,
                over_rpo: follower.over_rpo,
                transferring: follower.transferring,
            })
            .collect();
        followers.sort_by(|a, b| b.lag_ms.cmp(&a.lag_ms).then_with(|| a.volume.cmp(&b.volume)));
        let sum = |value: fn(&Export) -> f64| exports.iter().map(value).sum();
        let server = Server {
            version: status.version.clone(),
            data: status.data.clone(),
            uptime_ms: status.uptime_ms,
            volumes: status.volumes.len(),
            problems: status.problems.len(),
            memory_bytes: status.memory_bytes,
            cache_bytes: status.cache_bytes.saturating_mul(status.volumes.len() as u64),
            dirty_bytes: status.volumes.iter().map(|volume| volume.dirty_bytes).sum(),
            requests_per_second: sum(|export| export.requests_per_second),
            read_bytes_per_second: sum(|export| export.read_bytes_per_second),
            written_bytes_per_second: sum(|export| export.written_bytes_per_second),
            consistency_points_per_second: rate(before.status.consistency_points, status.consistency_points),
        };
        let work = work(status, running());
        Self { server, exports, mirrors, followers, work }
    }

    /// As objects, the server first.
    pub fn lines(&self) -> Vec<Line<'_>> {
        let mut lines = vec![Line::Server(&self.server)];
        lines.extend(self.exports.iter().map(Line::Export));
        lines.extend(self.mirrors.iter().map(Line::Mirror));
        lines.extend(self.followers.iter().map(Line::Follower));
        lines.extend(self.work.iter().map(Line::Work));
        lines
    }

    /// Leaves out all whose names do not have `filter` in them.
    pub fn keep(&mut self, filter: &str) {
        let has = |name: &str| name.contains(filter);
        self.exports.retain(|export| has(&export.name));
        self.mirrors.retain(|mirror| has(&mirror.name));
        self.followers.retain(|one| has(&one.volume) || one.peer.as_deref().is_some_and(has));
        self.work.retain(|work| has(&work.subject) || has(&work.kind));
    }

    /// Sorts each part; it was made in the order of [`Order::Busy`].
    pub fn sort(&mut self, order: Order) {
        match order {
            Order::Busy => {}
            Order::Name => {
                self.exports.sort_by(|a, b| a.name.cmp(&b.name));
                self.mirrors.sort_by(|a, b| a.name.cmp(&b.name));
                self.followers.sort_by(|a, b| a.volume.cmp(&b.volume));
                self.work.sort_by(|a, b| a.subject.cmp(&b.subject));
            }
            Order::Slow => {
                let slow = |export: &Export| export.p99_us.unwrap_or(-1.0);
                self.exports.sort_by(|a, b| slow(b).total_cmp(&slow(a)));
                self.mirrors.sort_by_key(|mirror| std::cmp::Reverse(mirror.lag_ms));
                self.followers.sort_by_key(|follower| std::cmp::Reverse(follower.lag_ms));
                self.work.sort_by_key(|work| std::cmp::Reverse(work.seconds_left));
            }
        }
    }

    /// As at most `height` lines of at most `width` columns. If that is not enough, the longest
    /// parts are cut, and show how much is missing.
    pub fn render(&self, width: usize, height: usize) -> Vec<Row> {
        let mut rows = self.rows(width, height);
        rows.iter_mut().for_each(|row| row.text = cut(&row.text, width));
        rows
    }

    /// The same, with lines that may be wider than a window of less than 80 columns.
    fn rows(&self, width: usize, height: usize) -> Vec<Row> {
        let plain = |text: String| Row { tone: Tone::Plain, text };
        let mut lines: Vec<Row> = self.server.render().into_iter().map(plain).collect();
        if let Some(first) = lines.first_mut().filter(|_| self.server.problems > 0) {
            first.tone = Tone::Warning;
        }
        let wider = self.wider(width);
        let mut parts: Vec<(String, Vec<Row>)> = Vec::new();
        let mut part = |head: &str, at: usize, rows: Vec<Row>| {
            if !rows.is_empty() {
                let (before, after) = head.split_at(at);
                parts.push((format!("{before}{}{after}", " ".repeat(wider)), rows));
            }
        };
        let exports = self.exports.iter().map(|one| plain(one.render(wider))).collect();
        part("EXPORT                  CLI    IOPS      READ/s   WRITTEN/s      p50      p99", 20, exports);
        let mirror = |one: &Mirror| Row { tone: Tone::of_check(one.check), text: one.render(wider) };
        let mirrors = self.mirrors.iter().map(mirror).collect();
        part("MIRROR              STATE                      LAG      BEHIND      RATE/s  LEFT", 19, mirrors);
        let follower = |one: &Follower| {
            let tone = if one.over_rpo { Tone::Critical } else { Tone::Plain };
            Row { tone, text: one.render(wider) }
        };
        let followers = self.followers.iter().map(follower).collect();
        part("MIRRORED VOLUME     BY                STATE             LAG      BEHIND", 19, followers);
        let work = self.work.iter().map(|one| plain(one.render(wider))).collect();
        part("WORK                SUBJECT             PHASE            DONE      RATE/s   LEFT", 39, work);
        let mut shown: Vec<usize> = parts.iter().map(|(_, rows)| rows.len()).collect();
        let lines_of = |shown: &[usize]| -> usize {
            let each = parts
                .iter()
                .zip(shown)
                .map(|((_, rows), shown)| 2 + shown + usize::from(*shown < rows.len()));
            lines.len() + each.sum::<usize>()
        };
        while lines_of(&shown) > height {
            let Some(longest) = shown.iter_mut().max().filter(|longest| **longest > 0) else { break };
            *longest -= 1;
        }
        for ((head, rows), shown) in parts.into_iter().zip(shown) {
            lines.push(plain(String::new()));
            lines.push(Row { tone: Tone::Heading, text: head });
            let more = rows.len() - shown;
            lines.extend(rows.into_iter().take(shown));
            if more > 0 {
                lines.push(plain(format!("... and {more} more")));
            }
        }
        lines.truncate(height);
        lines
    }

    /// The columns that names get beyond those of a window of 80: the extra columns of the window,
    /// limited to the longest name.
    fn wider(&self, width: usize) -> usize {
        let exports = self.exports.iter().map(|one| (one.name.chars().count(), 22));
        let mirrors = self.mirrors.iter().map(|one| (one.name.chars().count(), 19));
        let followers = self.followers.iter().map(|one| (one.volume.chars().count(), 19));
        let work = self.work.iter().map(|one| (one.subject.chars().count(), 19));
        let all = exports.chain(mirrors).chain(followers).chain(work);
        let needed = all.map(|(length, columns)| length.saturating_sub(columns)).max().unwrap_or(0);
        needed.min(width.saturating_sub(LEAST_WIDTH))
    }
}

/// Jobs that run, and scrubs.
fn work<'a>(status: &api::Status, running: impl Iterator<Item = &'a api::Job>) -> Vec<Work> {
    let mut work: Vec<Work> = running
        .map(|job| Work {
            kind: job.kind.clone(),
            subject: job.subject.clone(),
            phase: job.phase.clone(),
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
            bytes_per_second: job.rate,
            seconds_left: job.seconds_left,
        })
        .collect();
    let scrubs =
        status.volumes.iter().filter_map(|volume| volume.scrub.as_ref()).filter(|scrub| scrub.running);
    work.extend(scrubs.map(|scrub| Work {
        kind: "scrub".to_owned(),
        subject: scrub.volume.clone(),
        phase: "reading".to_owned(),
        done_bytes: scrub.done_bytes,
        total_bytes: scrub.total_bytes,
        bytes_per_second: scrub.present_rate,
        seconds_left: scrub.seconds_left,
    }));
    work.sort_by(|a, b| b.bytes_per_second.cmp(&a.bytes_per_second).then_with(|| a.subject.cmp(&b.subject)));
    work
}

/// The worst of all sessions, of reads and writes.
fn slowest(export: &api::Export, latency: fn(&api::Rate) -> Option<f64>) -> Option<f64> {
    let kinds = export.sessions.iter().flat_map(|session| [&session.activity.read, &session.activity.write]);
    kinds.filter_map(latency).reduce(f64::max)
}

impl Server {
    fn render(&self) -> Vec<String> {
        let problems = match self.problems {
            0 => "no problems".to_owned(),
            1 => "1 problem: see `cairn status`".to_owned(),
            many => format!("{many} problems: see `cairn status`"),
        };
        vec![
            format!("cairn {}  up {}  {problems}  {}", self.version, duration(self.uptime_ms), self.data),
            format!(
                "{} IOPS  {}/s read  {}/s written  {:.1} consistency points/s",
                count(self.requests_per_second),
                bytes(self.read_bytes_per_second),
                bytes(self.written_bytes_per_second),
                self.consistency_points_per_second,
            ),
            format!(
                "memory {}  {} {}, cache {} at most  dirty {}",
                size(self.memory_bytes),
                self.volumes,
                if self.volumes == 1 { "volume" } else { "volumes" },
                size(self.cache_bytes),
                size(self.dirty_bytes),
            ),
        ]
    }
}

impl Export {
    fn render(&self, wider: usize) -> String {
        format!(
            "{} {:>4} {:>7} {:>11} {:>11} {:>8} {:>8}",
            fit(&self.name, 22 + wider),
            self.sessions,
            count(self.requests_per_second),
            bytes(self.read_bytes_per_second),
            bytes(self.written_bytes_per_second),
            latency(self.p50_us),
            latency(self.p99_us),
        )
    }
}

impl Mirror {
    fn render(&self, wider: usize) -> String {
        let state = serde_json::to_value(self.state).ok();
        let state = state.as_ref().and_then(|state| state.as_str()).unwrap_or_default();
        let mark = match self.check {
            0 => "",
            1 => " !",
            _ => " !!",
        };
        format!(
            "{} {} {:>8} {:>11} {:>11} {:>5}",
            fit(&self.name, 19 + wider),
            fit(&format!("{state}{mark}"), 21),
            lag(self.lag_ms),
            self.lag_bytes.map_or("-".to_owned(), size),
            bytes(self.bytes_per_second),
            left(self.seconds_left),
        )
    }
}

impl Follower {
    fn render(&self, wider: usize) -> String {
        let state = match (self.transferring, self.over_rpo) {
            _ if self.failed_over => "failed over",
            (true, _) => "transferring",
            (false, true) => "behind !!",
            (false, false) => "follows",
        };
        let behind = self.lag_bytes.map_or("-".to_owned(), size);
        let peer = self.peer.as_deref().unwrap_or(&self.mirror);
        let (volume, peer) = (fit(&self.volume, 19 + wider), fit(peer, 17));
        format!("{volume} {peer} {} {:>8} {behind:>11}", fit(state, 12), lag(self.lag_ms))
    }
}

impl Work {
    fn render(&self, wider: usize) -> String {
        let done = match self.total_bytes {
            0 => size(self.done_bytes),
            total => format!("{:.0} %", 100.0 * self.done_bytes.min(total) as f64 / total as f64),
        };
        format!(
            "{} {} {} {done:>9} {:>11} {:>6}",
            fit(&self.kind, 19),
            fit(&self.subject, 19 + wider),
            fit(&self.phase, 11),
            size(self.bytes_per_second),
            left(self.seconds_left),
        )
    }
}

fn lag(ms: Option<u64>) -> String {
    match ms {
        Some(0) => "0".to_owned(),
        Some(ms) => duration(ms),
        None => "-".to_owned(),
    }
}

fn left(seconds: Option<u64>) -> String {
    match seconds {
        Some(seconds) if seconds < 60 => format!("{seconds} s"),
        Some(seconds) if seconds < 6_000 => format!("{} m", seconds / 60),
        Some(seconds) => interval(Some(Duration::from_secs(seconds / 3600 * 3600).as_millis() as u64)),
        None => "-".to_owned(),
    }
}

/// A rate to three digits or so.
fn count(per_second: f64) -> String {
    match per_second {
        few if few > 0.0 && few < 10.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    }
}

fn bytes(per_second: f64) -> String {
    if per_second > 0.0 { size(per_second.round() as u64) } else { "0".to_owned() }
}

/// Microseconds, in eight columns.
fn latency(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1e3 => format!("{us:.0} us"),
        Some(us) if us < 1e5 => format!("{:.1} ms", us / 1e3),
        Some(us) if us < 1e6 => format!("{:.0} ms", us / 1e3),
        Some(us) => format!("{:.1} s", us / 1e6),
    }
}

/// Exactly this many columns: a longer text loses its middle, so that names that differ at the end
/// stay different.
fn fit(text: &str, columns: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= columns {
        return format!("{text:columns$}");
    }
    let (head, tail) = ((columns - 1) / 2, columns / 2);
    let start = letters.iter().take(head);
    start.chain(&['~']).chain(letters.iter().skip(letters.len() - tail)).collect()
}

/// At most this many columns.
fn cut(text: &str, columns: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(columns).collect()
}

#[cfg(test)]
mod tests;
