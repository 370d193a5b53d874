//! The output of commands: tables for people, objects for programs, progress on standard error.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_api::{ErrorBody, ErrorKind};
use cairn_base::{ByteSize, Interval};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::Failure;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// JSON objects, one a line.
    pub json: bool,
    /// Prints nothing but errors and requested lists.
    pub quiet: bool,
    /// Do not ask.
    pub yes: bool,
}

impl Output {
    /// Prints `value` as JSON, or as `people` formats it.
    pub fn show<T: Serialize>(&self, value: &T, people: impl FnOnce(&T) -> String) {
        let text = if self.json { json(value) } else { people(value) };
        if !text.is_empty() {
            print_line(&text);
        }
    }

    /// As [`Output::show`]; prints nothing for people with `quiet`.
    pub fn tell<T: Serialize>(&self, value: &T, people: impl FnOnce(&T) -> String) {
        if self.json || !self.quiet {
            self.show(value, people);
        }
    }

    /// As [`Output::tell`], for a result that the exit code reports as well: a failure to print is
    /// ignored.
    pub fn tell_besides<T: Serialize>(&self, value: &T, people: impl FnOnce(&T) -> String) {
        if self.json || !self.quiet {
            print_besides(&if self.json { json(value) } else { people(value) });
        }
    }

    /// Asks before a destructive action; without a terminal, `--yes` is required.
    pub fn confirm(&self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if self.json || !std::io::stdin().is_terminal() {
            return Err(Failure::new(
                ErrorKind::Usage,
                format!("{what}; not done, because there is no terminal to ask for confirmation"),
                "run it again with --yes; most of these commands have --dry-run (-n), which shows the effect",
            ));
        }
        eprint!("{what}. Type yes to continue: ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if answer.trim() == "yes" {
            return Ok(());
        }
        Err(Failure::new(ErrorKind::Interrupted, "nothing was done", "run it again when you are sure"))
    }

    /// A bar for bytes of `total` (0: not known), on standard error; hidden without a terminal.
    pub fn bar(&self, total: u64) -> ProgressBar {
        if self.json || self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(total);
        let template = "{msg:24} {bar:24} {bytes:>11}/{total_bytes:11} {bytes_per_sec:>13} {eta:>5} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar
    }
}

impl Output {
    /// A growing count of `what`, on standard error; hidden without a terminal.
    pub fn count_bar(&self, what: &'static str) -> ProgressBar {
        if self.json || self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} {msg} {per_sec} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar
    }
}

/// One object a line.
pub fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("the objects of the API have string keys and no failing parts")
}

/// Prints a line. A reader that disconnected (a closed pipe) ends the program quietly. If output
/// cannot be written, for example on a full disk, the program ends with an error.
pub fn print_line(text: &str) {
    use std::io::Write;
    let text = harmless(text, |letter| !matches!(letter, '\n' | '\t'));
    let Err(error) = writeln!(std::io::stdout(), "{text}") else { return };
    let code = unwritten(error).map_or(crate::exit::DONE, |failure| {
        let _ = failure.report(false);
        failure.code
    });
    std::process::exit(i32::from(code));
}

/// As [`print_line`], for a result that the exit code reports as well: a failure to print is
/// ignored.
pub fn print_besides(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{}", harmless(text, |letter| !matches!(letter, '\n' | '\t')));
}

/// As [`print_line`], during work; false if the reader has disconnected.
pub fn print_if_read(text: &str) -> bool {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
        Err(_) => {
            print_line(text);
            true
        }
        Ok(()) => true,
    }
}

/// Prints a line on standard error. Where that takes nothing the exit code has to do.
pub fn note_line(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{}", harmless(text, |letter| !matches!(letter, '\n' | '\t')));
}

/// The failure of output that can't be written; none where its reader has enough of it.
pub fn unwritten(error: std::io::Error) -> Option<Failure> {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        return None;
    }
    let Failure { body, code } = Failure::from(error);
    let message = format!("the output can't be written: {}", body.message);
    let next = "free space on the destination of the output, or redirect it, and run the command again; it may have made its changes already".to_owned();
    Some(Failure { body: ErrorBody { message, next, ..body }, code })
}

/// A path or name that another user may have chosen, for people. It contains no control characters,
/// stays in its line, differs from every other name, and is valid input for a shell.
pub fn name(bytes: &[u8]) -> String {
    cairn_files::quoted_path(bytes)
}

/// The same of a path as the API has it.
pub fn path(text: &str, bytes: Option<&str>) -> String {
    name(&bytes.and_then(cairn_files::from_percent).unwrap_or_else(|| text.as_bytes().to_vec()))
}

/// A path or name for programs: its text as `key`, and its bytes as `key_bytes` if it is not UTF-8.
pub fn put_name(object: &mut serde_json::Value, key: &str, bytes: &[u8]) {
    object[key] = cairn_files::path_text(bytes).into();
    if let Some(raw) = cairn_files::path_bytes(bytes) {
        object[format!("{key}_bytes")] = raw.into();
    }
}

/// A text with the control characters that `is_meant` selects written as in JSON.
fn harmless(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_control = |letter: char| letter.is_control() && is_meant(letter);
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_control(letter) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// A table without lines, as `ls -l` has it. The content of a cell stays in it.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    let mut empty = true;
    for row in rows {
        table.add_row(row.map(|cell| harmless(&cell, |_| true).into_owned()));
        empty = false;
    }
    if empty { "none".to_owned() } else { table.trim_fmt() }
}

/// Names and values, one pair a line.
pub fn fields(rows: impl IntoIterator<Item = [String; 2]>) -> String {
    let rows: Vec<[String; 2]> = rows.into_iter().collect();
    let width = rows.iter().map(|[name, _]| name.chars().count()).max().unwrap_or(0);
    let line = |[name, value]: &[String; 2]| {
        let value = harmless(value, |_| true);
        format!("{name:width$}  {value}").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// An interval for people; "-" when there is none.
pub fn interval(ms: Option<u64>) -> String {
    ms.map_or("-".to_owned(), |ms| Interval(Duration::from_millis(ms)).to_string())
}

/// A length of time for people, to two digits or so.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{:.1} s", ms as f64 / 1e3),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// A length of time as a person set it: whole minutes are minutes.
pub fn length(ms: u64) -> String {
    match ms {
        60_000..7_200_000 if ms.is_multiple_of(60_000) => format!("{} min", ms / 60_000),
        _ => duration(ms),
    }
}

/// The time since then, by this machine's clock.
pub fn ago(at_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    if now < at_ms {
        return format!("in {}", duration(at_ms - now));
    }
    format!("{} ago", duration(now - at_ms))
}

/// When something is to come, milliseconds since 1970: "in 3 h", or "now" when its time has come.
pub fn coming(at_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    if at_ms <= now { "now".to_owned() } else { ago(at_ms) }
}
