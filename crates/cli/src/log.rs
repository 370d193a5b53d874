//! The log on standard error: text from outside cannot leave its line, and a flood of lines of one
//! kind is limited.
//!
//! Lines contain names that peers, clients and initiators choose. Their control characters are
//! escaped: otherwise a name with a line break could forge a line, and one with ESC could control
//! the reader's terminal.
//!
//! Lines that come from one place in the program are of one kind. Strangers can cause some kinds as
//! fast as they can connect, and could fill the disk of the log. Each kind is therefore limited to
//! [`LINES_MAX`] lines per [`STRETCH`]. Further lines are counted, and one line reports their
//! number. Debug lines are not limited: they appear only on request.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, registry};

/// Lines of one kind in a [`STRETCH`].
const LINES_MAX: u32 = 30;
const STRETCH: Duration = Duration::from_secs(10);
/// The target of the lines that report dropped lines.
const SUMMARY: &str = "cairn::left_out";

/// Writes the log to standard error from now on, filtered by `filter`.
pub fn start(filter: EnvFilter) {
    let lines = Arc::new(Lines::default());
    let layer = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .fmt_fields(Harmless)
        .with_writer(std::io::stderr);
    registry().with(layer.with_filter(Limit(lines)).with_filter(filter)).init();
}

/// Fields as the formatter has them by default, with all control characters escaped.
struct Harmless;

impl<'writer> FormatFields<'writer> for Harmless {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line::default();
        fields.record(&mut line);
        writer.write_str(&line.0)
    }
}

/// The fields of a line.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        if field.name() != "message" {
            self.0.push_str(field.name());
            self.0.push('=');
        }
        escape(&format!("{value:?}"), &mut self.0);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Appends a text, with characters escaped on which a terminal or a reader of lines acts.
fn escape(text: &str, into: &mut String) {
    for letter in text.chars() {
        // Also characters that break lines or change the text direction without being control
        // characters.
        let acts = letter.is_control()
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match acts {
            // Writing to a string cannot fail.
            true => _ = write!(into, "{}", letter.escape_default()),
            false => into.push(letter),
        }
    }
}

/// Lines of one kind.
struct Kind {
    since: Instant,
    lines: u32,
    left_out: u64,
    /// The first dropped one.
    example: String,
}

/// All kinds.
#[derive(Default)]
struct Lines {
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

impl Lines {
    /// Whether a line of a kind is written; and whether it is the first dropped one.
    fn admit(&self, kind: Identifier, now: Instant, line: impl FnOnce() -> String) -> (bool, bool) {
        let mut kinds = self.kinds.lock();
        let is_first = !kinds.values().any(|kind| kind.left_out > 0);
        let fresh = || Kind { since: now, lines: 0, left_out: 0, example: String::new() };
        let kind = kinds.entry(kind).or_insert_with(fresh);
        if kind.left_out == 0 && now.saturating_duration_since(kind.since) >= STRETCH {
            *kind = fresh();
        }
        if kind.lines < LINES_MAX {
            kind.lines += 1;
            return (true, false);
        }
        if kind.left_out == 0 {
            kind.example = line();
        }
        kind.left_out += 1;
        (false, is_first)
    }

    /// The dropped lines of the kinds whose period is over: their number, and one of them. The
    /// counts restart.
    fn left_out(&self, now: Instant) -> Vec<(u64, String)> {
        let mut told = Vec::new();
        self.kinds.lock().retain(|_, kind| {
            let over = now.saturating_duration_since(kind.since) >= STRETCH;
            if over && kind.left_out > 0 {
                told.push((kind.left_out, std::mem::take(&mut kind.example)));
            }
            !over
        });
        told
    }

    fn is_empty(&self) -> bool {
        self.kinds.lock().is_empty()
    }

    /// Reports dropped lines, until there are none.
    fn tell(&self) {
        while !self.is_empty() {
            std::thread::sleep(STRETCH);
            for (left_out, example) in self.left_out(Instant::now()) {
                tracing::warn!(target: SUMMARY, left_out, seconds = STRETCH.as_secs(), "dropped lines of one kind, such as: {example}");
            }
        }
    }
}

/// The filter that drops lines over the limit.
struct Limit(Arc<Lines>);

impl<S> Filter<S> for Limit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == SUMMARY {
            return true;
        }
        let line = || {
            let mut line = Line::default();
            event.record(&mut line);
            line.0
        };
        let (written, is_first) = self.0.admit(metadata.callsite(), Instant::now(), line);
        if is_first {
            let lines = self.0.clone();
            // Without the thread the log does not report dropped lines.
            let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || lines.tell());
        }
        written
    }
}

#[cfg(test)]
mod tests;
