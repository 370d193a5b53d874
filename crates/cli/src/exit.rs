//! How the program ends: the exit codes, and errors as a person or a program reads them.

use std::fmt;
use std::process::ExitCode;

use cairn_server::ServerError;
use cairn_server::api::{ErrorBody, ErrorKind};

/// The exit codes, all of them. Scripts depend on them.
pub const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
/// Some of several things were done, and others not.
pub const PARTLY_DONE: u8 = 3;
const NO_SUCH_THING: u8 = 10;
const BUSY: u8 = 11;
const REFUSED: u8 = 12;
const DIVERGED: u8 = 13;
const INTERRUPTED: u8 = 130;

/// Why a command did not do what it should.
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
        ErrorBody { error, message: message.to_string(), next: next.to_string() }.into()
    }

    /// The same, said to have been done in part.
    pub fn partly(mut self) -> Self {
        self.code = PARTLY_DONE;
        self
    }

    /// Prints it: a JSON object on standard output, or two lines on standard error.
    pub fn report(&self, json: bool) -> ExitCode {
        if json {
            let message = serde_json::json!({
                "message_type": "error",
                "error": self.body.error,
                "message": self.body.message,
                "next": self.body.next,
                "exit_code": self.code,
            });
            println!("{message}");
        } else {
            eprintln!("error: {}\n  next: {}", self.body.message, self.body.next);
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

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        error.body().into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            _ => ErrorKind::Failed,
        };
        Failure::new(kind, error, "put it right and run the command again")
    }
}

/// The one table from kinds to exit codes.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Usage | ErrorKind::TooSmall => WRONG_USAGE,
        ErrorKind::NotFound => NO_SUCH_THING,
        ErrorKind::Taken | ErrorKind::Busy | ErrorKind::NotEmpty => BUSY,
        ErrorKind::Unauthorized | ErrorKind::TokenExpired | ErrorKind::TokenUsed | ErrorKind::PeerRefused => {
            REFUSED
        }
        ErrorKind::Diverged | ErrorKind::WrongRole => DIVERGED,
        ErrorKind::Interrupted => INTERRUPTED,
        _ => FAILED,
    }
}
