//! The audit log: `DIR/audit.jsonl`, a JSON object a line, and older lines in `audit.jsonl.1` to
//! `audit.jsonl.9`.
//!
//! It has each change and each refused try, and no secrets: bodies of requests are not in it, only
//! the names of their objects. A line is one write at the end of the file, so a killed server
//! leaves whole lines, and at most one that is cut. Readers skip that one. A power cut may lose the
//! lines of the last seconds. Clients without valid credentials get few lines of their own, so that
//! they cannot push others out of the log.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_api::{AuditEntry, AuditOutcome, AuditQuery, Role};
use cairn_base::Clock;
use parking_lot::Mutex;

use crate::actors::{Actor, origin};
use crate::error::ServerError;

/// A file that is longer becomes an older one, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Older files.
const OLDER_MAX: usize = 9;

/// Lines for one address without valid credentials, and for all of them, within [`WINDOW`].
const STRANGER_LINES_MAX: u32 = 10;
const STRANGERS_LINES_MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(60);

/// The longest text of a client in a line, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// Lines in an answer without a limit in the request.
const LINES_DEFAULT: usize = 1000;

/// Lines in an answer at most.
const LINES_MAX: usize = 100_000;

/// Where syslog and journald take messages.
const SYSLOG: &str = "/dev/log";

/// The facility `authpriv` (10) and the severity `info` (6) (RFC 5424, section 6.2.1).
const SYSLOG_PRIORITY: u32 = 10 * 8 + 6;

/// The log of one server.
pub(crate) struct Audit {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    syslog: bool,
}

#[derive(Default)]
struct State {
    /// Open at its end; none before the first line, and after a failure.
    file: Option<File>,
    bytes: u64,
    strangers: Strangers,
    /// A failure was logged, and no line was written since.
    is_failing: bool,
}

/// Lines for clients without valid credentials in the current window.
#[derive(Default)]
struct Strangers {
    begun: Duration,
    lines: HashMap<IpAddr, u32>,
    all: u32,
    left_out: u64,
}

impl Strangers {
    /// Whether a client gets a line. The second value counts those of the last window that got
    /// none.
    fn admit(&mut self, from: Option<IpAddr>, now: Duration) -> (bool, u64) {
        let mut left_out = 0;
        if now.saturating_sub(self.begun) >= WINDOW {
            left_out = std::mem::take(self).left_out;
            self.begun = now;
        }
        let of_one = from.map_or(0, |from| self.lines.get(&from).copied().unwrap_or(0));
        if of_one >= STRANGER_LINES_MAX || self.all >= STRANGERS_LINES_MAX {
            self.left_out += 1;
            return (false, left_out);
        }
        self.all += 1;
        if let Some(from) = from {
            *self.lines.entry(from).or_default() += 1;
        }
        (true, left_out)
    }
}

/// An event, before it is a line.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// As in [`AuditEntry`]; none without valid credentials.
    pub(crate) actor: Option<String>,
    pub(crate) role: Option<Role>,
    pub(crate) from: Option<IpAddr>,
    pub(crate) action: String,
    pub(crate) object: String,
    pub(crate) outcome: AuditOutcome,
    pub(crate) reason: String,
}

impl Event {
    /// An event of a known client.
    pub(crate) fn of(actor: &Actor, action: String, object: String) -> Self {
        Self {
            actor: Some(actor.name.clone()),
            role: Some(actor.role),
            from: actor.from,
            action,
            object,
            outcome: AuditOutcome::Done,
            reason: String::new(),
        }
    }

    /// A refused try of a client without valid credentials.
    pub(crate) fn of_stranger(from: Option<IpAddr>, action: &str, object: &str, reason: &str) -> Self {
        Self {
            actor: None,
            role: None,
            from,
            action: action.to_owned(),
            object: object.to_owned(),
            outcome: AuditOutcome::Refused,
            reason: reason.to_owned(),
        }
    }
}

/// A text of a client, cut to a sensible length.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Audit {
    /// The log in `dir`; with `syslog` each line also goes to the system's log.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>, syslog: bool) -> Self {
        Self { path: dir.join("audit.jsonl"), clock, state: Mutex::default(), syslog }
    }

    /// Appends a line. When it returns, the line survives the end of this process.
    pub(crate) fn note(&self, event: Event) {
        let mut state = self.state.lock();
        let mut left_out = 0;
        if event.actor.is_none() {
            let (is_admitted, before) = state.strangers.admit(event.from, self.clock.monotonic());
            left_out = before;
            if !is_admitted {
                return;
            }
        }
        let mut reason = cut(&event.reason);
        if left_out > 0 {
            reason += &format!(" (and {left_out} more refused tries that have no lines)");
        }
        let entry = AuditEntry {
            at_ms: self.clock.now().0 / 1_000_000,
            actor: event.actor.unwrap_or_else(|| "unknown".to_owned()),
            role: event.role,
            from: origin(event.from),
            action: cut(&event.action),
            object: cut(&event.object),
            outcome: event.outcome,
            reason,
        };
        let Ok(mut line) = serde_json::to_vec(&entry) else { return };
        if self.syslog {
            send_to_syslog(&line);
        }
        line.push(b'\n');
        match self.append(&mut state, &line) {
            Ok(()) => state.is_failing = false,
            Err(error) => {
                state.file = None;
                if !std::mem::replace(&mut state.is_failing, true) {
                    tracing::error!(path = %self.path.display(), %error, "cannot write to the audit log; lines are lost until it works again");
                }
            }
        }
    }

    fn append(&self, state: &mut State, line: &[u8]) -> io::Result<()> {
        if state.bytes >= FILE_BYTES_MAX && state.file.is_some() {
            state.file = None;
            self.rotate()?;
        }
        if state.file.is_none() {
            let (file, bytes) = self.open_end()?;
            (state.file, state.bytes) = (Some(file), bytes);
        }
        if let Some(file) = &mut state.file {
            file.write_all(line)?;
            state.bytes += line.len() as u64;
        }
        Ok(())
    }

    /// The file, open at its end, which is the end of a line.
    fn open_end(&self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        let bytes = file.metadata()?.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                return Ok((file, bytes + 1));
            }
        }
        Ok((file, bytes))
    }

    fn older(&self, number: usize) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(format!(".{number}"));
        path.into()
    }

    fn rotate(&self) -> io::Result<()> {
        for number in (1..OLDER_MAX).rev() {
            match std::fs::rename(self.older(number), self.older(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, self.older(1))
    }

    /// The newest lines that match a query, the oldest of them first. Lines that cannot be read are
    /// skipped.
    pub(crate) fn list(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, ServerError> {
        let limit = query.limit.unwrap_or(LINES_DEFAULT).min(LINES_MAX);
        let since_ms = query.since_ms.unwrap_or(0);
        // Files that are renamed meanwhile would be read twice, or not at all.
        let files = {
            let _state = self.state.lock();
            let paths = std::iter::once(self.path.clone()).chain((1..=OLDER_MAX).map(|one| self.older(one)));
            paths.map(|path| (File::open(&path), path)).collect::<Vec<_>>()
        };
        let mut found: Vec<AuditEntry> = Vec::new();
        for (file, path) in files {
            let file = match file {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(ServerError::path("read", &path)(error)),
            };
            let mut of_file = Vec::new();
            let mut lines = BufReader::new(file);
            let mut line = Vec::new();
            loop {
                line.clear();
                match lines.read_until(b'\n', &mut line) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => return Err(ServerError::path("read", &path)(error)),
                }
                if let Ok(entry) = serde_json::from_slice::<AuditEntry>(&line) {
                    of_file.push(entry);
                }
            }
            let is_last = of_file.first().is_some_and(|first| first.at_ms < since_ms);
            of_file.retain(|entry| entry.at_ms >= since_ms);
            of_file.append(&mut found);
            found = of_file;
            if found.len() >= limit || is_last {
                break;
            }
        }
        Ok(found.split_off(found.len().saturating_sub(limit)))
    }
}

/// Best effort: the file is the log, and the system's log may be absent.
fn send_to_syslog(line: &[u8]) {
    let message = [format!("<{SYSLOG_PRIORITY}>cairn: ").as_bytes(), line].concat();
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&message, SYSLOG)
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "the system's log did not take a line of the audit log");
    }
}

#[cfg(test)]
mod tests;
