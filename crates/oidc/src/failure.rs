//! Failures of a sign-in, without secrets.

use std::fmt;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The provider does not answer, or answers otherwise than the specification demands.
    Provider,
    /// The sign-in is refused: it is not of this browser, was used, or its token is not valid.
    Refused,
}

/// A failed sign-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub fault: Fault,
    /// The failure and its cause.
    pub message: String,
    /// The remedy.
    pub next: String,
}

impl Failure {
    pub(crate) fn provider(message: impl fmt::Display, next: impl fmt::Display) -> Self {
        Self { fault: Fault::Provider, message: message.to_string(), next: next.to_string() }
    }

    pub(crate) fn refused(message: impl fmt::Display, next: impl fmt::Display) -> Self {
        Self { fault: Fault::Refused, message: message.to_string(), next: next.to_string() }
    }
}

/// A text of the provider or of a browser: in one line, without control characters, and short.
pub(crate) fn plain(text: &str, letters: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut all = line.chars().filter(|letter| !letter.is_control());
    let mut short: String = all.by_ref().take(letters).collect();
    if all.next().is_some() {
        short.push_str("...");
    }
    short
}
