//! Recordings of exports: the requests of clients to a device, saved to a file while they use it.
//!
//! Each device that is opened for a session gets a tap, and all sessions of an export share its
//! feed, of any protocol; a recording begins and ends while they are open. It ends with the server;
//! after a kill the file has all frames that were written, and says that it was cut off.

use std::collections::BTreeMap;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use cairn_device::Device;
use cairn_trace::{Feed, RECORD_BYTES_MIN, RecordEnd, RecordOptions, RecordState, Tap};
use parking_lot::Mutex;

use crate::error::ServerError;
use crate::exports::error::ExportsError;
use crate::state;

mod commands;

/// The largest size of a trace in bytes, by default.
const BYTES_MAX: u64 = 1 << 30;

/// The recording of an export, if any.
#[derive(Clone, Default)]
struct Recorded {
    feed: Arc<Feed>,
    /// Locked while its file is worked on, which may be on a disk that hangs.
    kept: Arc<Mutex<Option<Kept>>>,
}

impl Recorded {
    /// Whether it has sessions, a recording to report, or a caller that works on it.
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.feed) > 1 || self.kept.try_lock().is_none_or(|kept| kept.is_some())
    }
}

/// The file of the current recording, or of the last one.
struct Kept {
    path: PathBuf,
    file: File,
    bytes_max: u64,
    time_max: Option<Duration>,
}

/// The recordings of a server.
pub(crate) struct Recordings {
    clock: Arc<dyn Clock>,
    /// By export. Sessions of all exports take it when they begin: never held during calls of a
    /// feed or a file.
    entries: Mutex<BTreeMap<String, Recorded>>,
}

impl Recordings {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, entries: Mutex::default() }
    }

    /// Puts a tap on the device of an export that is opened.
    pub(crate) fn tap(&self, export: &str, device: Arc<dyn Device>) -> Tap {
        let mut entries = self.entries.lock();
        // Views are temporary: a feed is dropped with the last session, unless there is a recording
        // to report.
        entries.retain(|_, entry| entry.is_wanted());
        let feed = entries.entry(export.to_owned()).or_default().feed.clone();
        Tap::new(device, feed)
    }

    fn start(&self, export: &str, asked: &api::RecordExport) -> Result<api::Recording, ServerError> {
        let path = Path::new(&asked.file);
        if !path.is_absolute() {
            return Err(ServerError::NotAbsolute { what: "the path of the trace" });
        }
        let bytes_max = asked.bytes_max.unwrap_or(BYTES_MAX);
        if bytes_max < RECORD_BYTES_MIN {
            let fault = "the limit of the trace is below 1 MiB";
            return Err(ServerError::Invalid { fault, next: "give --max 1M or more" });
        }
        let entry = self.entries.lock().entry(export.to_owned()).or_default().clone();
        let mut kept = entry.kept.lock();
        if entry.feed.state().is_some_and(|state| state.end.is_none()) {
            return Err(ServerError::Busy { name: export.to_owned(), by: "it is being recorded" });
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => {
                ServerError::Taken { what: "file", name: asked.file.clone() }
            }
            _ => ServerError::path("create", path)(source),
        })?;
        let time_max = asked.time_max_ms.map(Duration::from_millis);
        let options = RecordOptions { bytes_max, time_max, packed: !asked.plain };
        let begun = file.try_clone().map_err(cairn_trace::TraceError::Io).and_then(|output| {
            entry.feed.start(export, Box::new(BufWriter::new(output)), options, self.clock.clone())
        });
        match begun {
            Ok(state) => {
                let of = kept.insert(Kept { path: path.to_owned(), file, bytes_max, time_max });
                Ok(of.show(export, &state))
            }
            Err(source) => {
                let _ = fs::remove_file(path);
                Err(ServerError::Exports(ExportsError::Recording { export: export.to_owned(), source }))
            }
        }
    }

    /// Stops a recording, and makes its file durable. A recording that has already stopped is
    /// reported again.
    fn stop(&self, export: &str) -> Result<api::Recording, ServerError> {
        let none = || ServerError::NotFound {
            what: "recording",
            name: export.to_owned(),
            list: "cairn trace record",
        };
        let entry = self.entries.lock().get(export).cloned().ok_or_else(none)?;
        let mut kept = entry.kept.lock();
        let state = entry.feed.stop().ok_or_else(none)?;
        let kept = kept.take().ok_or_else(none)?;
        let durable = kept.file.sync_all().and_then(|()| state::sync_parent(&kept.path));
        durable.map_err(ServerError::path("write", &kept.path))?;
        Ok(kept.show(export, &state))
    }

    pub(crate) fn list(&self) -> Vec<api::Recording> {
        let entries = self.entries.lock().clone();
        let shown = |(export, entry): (&String, &Recorded)| {
            let kept = entry.kept.lock();
            Some(kept.as_ref()?.show(export, &entry.feed.state()?))
        };
        entries.iter().filter_map(shown).collect()
    }

    /// Ends all of them.
    pub(crate) fn end(&self) {
        let names: Vec<String> = self.list().into_iter().map(|recording| recording.export).collect();
        for name in names {
            if let Err(error) = self.stop(&name) {
                tracing::error!(export = name, %error, "could not stop a recording");
            }
        }
    }
}

impl Kept {
    fn show(&self, export: &str, state: &RecordState) -> api::Recording {
        let end = state.end.as_ref().map(|end| match end {
            RecordEnd::Asked => "it was ended".to_owned(),
            RecordEnd::Full => "the trace has the length that it may have".to_owned(),
            RecordEnd::Time => "its time is over".to_owned(),
            RecordEnd::Failed(reason) => format!("it could not be written: {reason}"),
        });
        api::Recording {
            export: export.to_owned(),
            file: self.path.display().to_string(),
            began_ms: state.began.0 / 1_000_000,
            elapsed_ms: state.elapsed.as_millis() as u64,
            requests: state.requests,
            bytes: state.bytes,
            bytes_max: self.bytes_max,
            time_max_ms: self.time_max.map(|time| time.as_millis() as u64),
            whole: state.end.is_some() && !matches!(state.end, Some(RecordEnd::Failed(_))),
            end,
        }
    }
}
