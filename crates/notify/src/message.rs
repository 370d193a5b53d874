//! A message: the changes of problems since the last one, for people.

use std::fmt::Write;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::{Problem, Severity};

/// Events that a message has at most: of more, the least grave are counted only.
pub(crate) const EVENTS_MAX: usize = 100;
/// Letters of a title.
const TITLE_MAX: usize = 160;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// It is new.
    Came,
    /// It is graver than when it was sent last.
    Worse,
    /// It is still there.
    Lasts,
    /// It is over.
    Went,
    /// It came and is over, before a message about it was sent.
    Passed,
}

impl EventKind {
    /// Whether the problem exists after it.
    pub fn is_open(self) -> bool {
        matches!(self, EventKind::Came | EventKind::Worse | EventKind::Lasts)
    }

    fn heading(self) -> &'static str {
        match self {
            EventKind::Came => "NEW",
            EventKind::Worse => "WORSE",
            EventKind::Lasts => "STILL",
            EventKind::Went => "OVER",
            EventKind::Passed => "CAME AND WENT",
        }
    }
}

/// One event of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// The problem, as it was seen last.
    pub problem: Problem,
    /// When it came.
    pub since_ms: u64,
    /// When it went.
    pub until_ms: Option<u64>,
    /// How often it had returned soon after its end.
    pub returns: u32,
}

/// A message for one target. It may arrive more than once, each time with the same `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Of this message alone.
    pub id: String,
    /// When it was made.
    pub at_ms: u64,
    /// The events, the gravest first.
    pub events: Vec<Event>,
    /// Problems that the target knows to be open after it.
    pub open: u32,
    /// Those of them that are critical.
    pub open_critical: u32,
    /// Messages that it replaces, as too many waited for delivery.
    #[serde(default)]
    pub replaces: u32,
    /// Events that it has no room for.
    #[serde(default)]
    pub omitted: u32,
    /// Earlier messages that the target refused, and that were discarded.
    #[serde(default)]
    pub discarded: u64,
    /// It was asked for by `test`.
    #[serde(default)]
    pub test: bool,
}

/// The server that sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The name of its machine.
    pub host: String,
    /// The version of the program.
    pub version: String,
}

impl Message {
    /// A message that tells nothing but that it arrives.
    pub fn test(id: &str, at_ms: u64) -> Self {
        Self {
            id: id.to_owned(),
            at_ms,
            events: Vec::new(),
            open: 0,
            open_critical: 0,
            replaces: 0,
            omitted: 0,
            discarded: 0,
            test: true,
        }
    }

    /// The gravest of its open problems; of a message that only ends problems, information.
    pub fn severity(&self) -> Severity {
        let open = self.events.iter().filter(|event| event.kind.is_open());
        open.map(|event| event.problem.severity).max().unwrap_or(Severity::Info)
    }

    /// Puts the gravest first and leaves out what has no room.
    pub(crate) fn bound(&mut self) {
        self.events
            .sort_by_key(|event| (std::cmp::Reverse(event.problem.severity), event.kind, event.since_ms));
        let surplus = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.truncate(EVENTS_MAX);
        self.omitted = self.omitted.saturating_add(u32::try_from(surplus).unwrap_or(u32::MAX));
    }

    /// One line.
    pub fn title(&self) -> String {
        if self.test {
            return "Test: notifications reach this target".to_owned();
        }
        let count = |open: bool| self.events.iter().filter(|event| event.kind.is_open() == open).count();
        let (open, over) = (count(true), count(false));
        let text = match &self.events[..] {
            [event] => {
                let Event { kind, problem, .. } = event;
                let word = match kind.is_open() {
                    true => problem.severity.word().to_uppercase(),
                    false => "OK".to_owned(),
                };
                let state = match kind {
                    EventKind::Came => "",
                    EventKind::Worse => "worse: ",
                    EventKind::Lasts => "still: ",
                    EventKind::Went => "over: ",
                    EventKind::Passed => "came and went: ",
                };
                format!("{word}: {state}{}: {}", problem.subject, problem.message)
            }
            _ if open == 0 => format!("OK: {over} problems are over"),
            _ => {
                let word = self.severity().word().to_uppercase();
                let over = if over == 0 { String::new() } else { format!(", {over} over") };
                let noun = if open == 1 { "problem" } else { "problems" };
                format!("{word}: {open} {noun}{over}")
            }
        };
        let mut letters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        let mut title: String = letters.by_ref().take(TITLE_MAX).collect();
        if letters.next().is_some() {
            title.push_str("...");
        }
        title
    }

    /// All of it, as plain text.
    pub fn text(&self, origin: &Origin) -> String {
        let mut text = String::new();
        if self.test {
            let _ =
                writeln!(text, "This is a test: a message about a problem on {} arrives here.", origin.host);
        }
        for event in &self.events {
            let Event { kind, problem, since_ms, until_ms, returns } = event;
            let severity = problem.severity.word().to_uppercase();
            let _ = writeln!(text, "{} {severity} {}: {}", kind.heading(), problem.subject, problem.message);
            let until = until_ms.map_or(String::new(), |until| format!(", until {}", time(until)));
            let _ = writeln!(text, "  since {}{until}", time(*since_ms));
            if *returns > 0 {
                let _ =
                    writeln!(text, "  it has returned {returns} times: its end is reported later each time");
            }
            if kind.is_open() {
                let _ = writeln!(text, "  next: {}", problem.next);
            }
            text.push('\n');
        }
        if self.omitted > 0 {
            let _ = writeln!(text, "{} more events are not listed.", self.omitted);
        }
        if self.replaces > 0 {
            let _ =
                writeln!(text, "This message replaces {} that waited too long for delivery.", self.replaces);
        }
        if self.discarded > 0 {
            let _ = writeln!(text, "{} earlier messages were refused here and discarded.", self.discarded);
        }
        if !self.test {
            let _ = writeln!(text, "{}", self.open_line(origin));
        }
        let _ = writeln!(text, "`cairn status` on {} shows all. Message {}.", origin.host, self.id);
        text
    }

    fn open_line(&self, origin: &Origin) -> String {
        match (self.open, self.open_critical) {
            (0, _) => format!("No problem is open on {}.", origin.host),
            (1, 0) => format!("1 problem is open on {}.", origin.host),
            (1, _) => format!("1 problem is open on {}, and it is critical.", origin.host),
            (all, 0) => format!("{all} problems are open on {}.", origin.host),
            (all, grave) => format!("{all} problems are open on {}, {grave} of them critical.", origin.host),
        }
    }
}

/// An instant as RFC 3339 has it, in UTC and to the second.
pub(crate) fn time(at_ms: u64) -> String {
    let second = i64::try_from(at_ms / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(second).map_or_else(|_| "an unknown time".to_owned(), |at| at.to_string())
}
