//! How the program ends: the exit codes, and errors as a person or a program reads them.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use cairn_api::{ErrorBody, ErrorKind, ResumeError};

use crate::output::note_line;

/// The exit codes, all of them. Scripts depend on them.
pub const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
/// Some of several things were done, and others not.
pub const PARTLY_DONE: u8 = 3;
/// `cairn mirror check` could not find out.
pub const NOT_KNOWN: u8 = 3;
const NO_SUCH_THING: u8 = 10;
const BUSY: u8 = 11;
const REFUSED: u8 = 12;
const DIVERGED: u8 = 13;
const WRONG_SIZE: u8 = 20;
const NAME_TAKEN: u8 = 21;
const TOO_SMALL: u8 = 22;
const PORT_TAKEN: u8 = 23;
const NO_SPACE: u8 = 24;
const READ_ONLY: u8 = 25;
const VOLUME_DAMAGED: u8 = 26;
const DAMAGED: u8 = 27;
const TOKEN_EXPIRED: u8 = 28;
const TOKEN_USED: u8 = 29;
const PEER_UNREACHABLE: u8 = 30;
const VERSION_MISMATCH: u8 = 31;
const NOT_EMPTY: u8 = 32;
const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// As the API tells it.
    pub body: ErrorBody,
    /// For the shell.
    pub code: u8,
}

impl Failure {
    /// A failure of the command itself.
    pub fn new(error: ErrorKind, message: impl fmt::Display, next: impl fmt::Display) -> Self {
        ErrorBody::new(error, message, next).into()
    }

    /// The same failure, of a command that did part of its work.
    pub fn partly(mut self) -> Self {
        self.code = PARTLY_DONE;
        self
    }

    /// All messages were already printed; only the exit code remains.
    pub fn silent(code: u8) -> Self {
        let body = ErrorBody { error: ErrorKind::Failed, message: String::new(), next: String::new() };
        Self { body, code }
    }

    /// Prints it: a JSON object on standard output, or two lines on standard error.
    pub fn report(&self, json: bool) -> ExitCode {
        if self.body.message.is_empty() {
            return ExitCode::from(self.code);
        }
        if json {
            let message = serde_json::json!({
                "message_type": "error",
                "error": self.body.error,
                "message": self.body.message,
                "next": self.body.next,
                "exit_code": self.code,
            });
            // If the write fails, the exit code still reports the outcome.
            let _ = writeln!(std::io::stdout(), "{message}");
        } else {
            note_line(&format!("error: {}\n  next: {}", self.body.message, self.body.next));
        }
        ExitCode::from(self.code)
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        let code = code(body.error);
        Failure { body, code }
    }
}

impl From<ResumeError> for Failure {
    fn from(error: ResumeError) -> Self {
        ErrorBody::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        ErrorBody::from(error).into()
    }
}

/// The one table from kinds to exit codes; it matches docs/reference/exit-codes.md.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Usage => WRONG_USAGE,
        ErrorKind::NotFound => NO_SUCH_THING,
        ErrorKind::Busy => BUSY,
        ErrorKind::Unauthorized | ErrorKind::Forbidden | ErrorKind::PeerRefused => REFUSED,
        ErrorKind::Diverged | ErrorKind::Contradicted | ErrorKind::WrongRole => DIVERGED,
        ErrorKind::WrongSize => WRONG_SIZE,
        ErrorKind::Taken => NAME_TAKEN,
        ErrorKind::TooSmall => TOO_SMALL,
        ErrorKind::PortTaken => PORT_TAKEN,
        ErrorKind::NoSpace => NO_SPACE,
        ErrorKind::ReadOnly => READ_ONLY,
        ErrorKind::VolumeDamaged => VOLUME_DAMAGED,
        ErrorKind::Damaged => DAMAGED,
        ErrorKind::TokenExpired => TOKEN_EXPIRED,
        ErrorKind::TokenUsed => TOKEN_USED,
        ErrorKind::PeerUnreachable => PEER_UNREACHABLE,
        ErrorKind::VersionMismatch => VERSION_MISMATCH,
        ErrorKind::NotEmpty => NOT_EMPTY,
        ErrorKind::Interrupted => INTERRUPTED,
        // A kind of a newer server.
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests;
