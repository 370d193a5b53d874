//! Secrets that commands take. Every user of a machine can read the arguments of its programs, so a
//! command reads a secret from a file or from standard input.

use std::io::{BufRead, IsTerminal, Read};

use cairn_api::ErrorKind;

use crate::exit::Failure;
use crate::output::note_line;

/// A longer file is another one.
const BYTES_MAX: u64 = 64 << 10;

/// A secret as the command line names it: `@FILE`, `-` or nothing for standard input, or the secret
/// itself.
pub fn read(given: Option<&str>, what: &str) -> Result<String, Failure> {
    let unread = |error: std::io::Error, place: &str| {
        let message = format!("cannot read the {what} from {place}: {error}");
        Failure::new(ErrorKind::Usage, message, "name a file with @FILE, or pass it to standard input")
    };
    let text = match given {
        None | Some("-") => {
            let mut text = String::new();
            let mut input = std::io::stdin().lock();
            let outcome = match std::io::stdin().is_terminal() {
                true => {
                    note_line(&format!("paste the {what}:"));
                    input.read_line(&mut text)
                }
                false => input.take(BYTES_MAX).read_to_string(&mut text),
            };
            outcome.map_err(|error| unread(error, "standard input"))?;
            text
        }
        Some(given) => match given.strip_prefix('@') {
            Some(path) => {
                let mut text = String::new();
                let file = std::fs::File::open(path).map_err(|error| unread(error, path))?;
                file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| unread(error, path))?;
                text
            }
            None => given.to_owned(),
        },
    };
    match text.trim() {
        "" => Err(Failure::new(
            ErrorKind::Usage,
            format!("there is no {what}"),
            "name a file with @FILE, or pass it to standard input",
        )),
        text => Ok(text.to_owned()),
    }
}
