//! Faults of lines in a trace: counted by kind, with the first ones kept to be shown. No value is
//! guessed.

use serde::Serialize;

/// How many problems are kept with their line.
const SHOWN_MAX: usize = 10;
/// How much of a line is kept.
const EXCERPT_MAX: usize = 80;

/// The fault of one line, record or frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Problem {
    /// Too few fields.
    #[error("it has too few fields")]
    Fields,
    /// Invalid time.
    #[error("invalid timestamp")]
    Time,
    /// Invalid offset.
    #[error("invalid offset")]
    Offset,
    /// Invalid length, or more than a request can have.
    #[error("invalid length")]
    Length,
    /// Neither read, write, trim nor flush.
    #[error("unknown operation")]
    Operation,
    /// No number of a device, or more devices than a trace has.
    #[error("unknown device, or too many devices")]
    Device,
    /// Longer than any line of a trace.
    #[error("it is longer than any line of a trace")]
    LongLine,
    /// Not text.
    #[error("it is not text")]
    NotText,
    /// Earlier than requests before it, by more than is put in order.
    #[error("it is earlier than requests before it, by more than is put in order")]
    Late,
    /// A record of a binary trace that is cut off.
    #[error("it is cut off")]
    CutOff,
    /// A version of the format that is not known.
    #[error("unknown version")]
    Version,
    /// A frame whose checksum fails, or with content that is never written.
    #[error("it is damaged")]
    Damaged,
    /// A trace of ours without its last frame.
    #[error("the trace ends without its end: the recording was cut off, or the file is")]
    NoEnd,
}

/// A problem, its place, and the text there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The line, record or frame, from 1.
    pub line: u64,
    /// The fault.
    pub problem: Problem,
    /// The beginning of the line; empty for binary formats.
    pub text: String,
}

/// All problems of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Problems {
    /// How many.
    pub count: u64,
    /// How many of each kind.
    pub kinds: std::collections::BTreeMap<Problem, u64>,
    /// The first ones.
    pub shown: Vec<Shown>,
    /// Lines of the format other than requests: headers, comments, summaries, other actions.
    pub other_lines: u64,
}

impl Problems {
    /// Counts one.
    pub(crate) fn add(&mut self, line: u64, problem: Problem, text: &str) {
        self.count += 1;
        *self.kinds.entry(problem).or_default() += 1;
        if self.shown.len() < SHOWN_MAX {
            let text = text.chars().take(EXCERPT_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
            self.shown.push(Shown { line, problem, text });
        }
    }
}
