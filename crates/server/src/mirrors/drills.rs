//! Drills: proof that a mirror can be recovered from. A clone of the image that it shows (its
//! newest, or what all mirrors of its group have) is served, the owner's probe runs against it, the
//! outcome and the duration are recorded, and the clone is deleted. The mirror is not affected.
//!
//! The clone is temporary: a start of the server removes one that a crash has left, and ends the
//! probe. The mirror's updates continue meanwhile, as the clone holds its image open.
//! `VOLUME/drill.json` has the schedule, the probe and the last drill; it is informational, and its
//! loss has no other effect.
//!
//! A probe is a command, run by the server with the server's rights; so it is accepted only on the
//! control socket, never over TCP.

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api::{self as api, DrillOutcome};
use cairn_base::{Checksum, Clock};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::schedules::timetable::is_ahead;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::{names, state};

mod commands;
mod probe;

/// How often the schedule looks: a clock that was set is noticed within it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit of a probe, by default.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// A drill that is older than this many of its intervals is stale.
const STALE_AFTER: u64 = 2;
/// How often the newest image is looked up again when an update has replaced it before its clone
/// was made.
const ATTEMPTS: usize = 3;

/// The content of `drill.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DrillDocument {
    probe: String,
    timeout_ms: u64,
    /// Without it drills are made on request.
    every_ms: Option<u64>,
    /// The time at which the interval was set: the first drill is due one interval later.
    since_ms: u64,
    last: Option<api::DrillResult>,
    /// When the last one passed.
    passed_ms: Option<u64>,
}

impl DrillDocument {
    fn is_due(&self, now_ms: u64) -> bool {
        let before = self.last.as_ref().map_or(self.since_ms, |last| last.at_ms);
        // After the clock was set back it runs now, and counts from now.
        let is_due = |every| now_ms >= before.saturating_add(every) || is_ahead(before, now_ms, every);
        self.every_ms.is_some_and(is_due)
    }

    fn is_stale(&self, now_ms: u64) -> bool {
        let good = self.passed_ms.unwrap_or(self.since_ms);
        // A time in the future was recorded by a clock that was ahead, and may be as old as that
        // difference.
        let age = now_ms.abs_diff(good);
        self.every_ms.is_some_and(|every| age > every.saturating_mul(STALE_AFTER))
    }
}

/// The drills of a server.
pub(crate) struct Drills {
    volumes: Arc<Volumes>,
    clock: Arc<dyn Clock>,
    documents: Mutex<BTreeMap<String, DrillDocument>>,
    /// Volumes whose drills are unknown.
    unread: Mutex<BTreeMap<String, Unread>>,
    running: Mutex<HashSet<String>>,
    ending: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

/// The schedule's thread; it ends when this goes.
pub(crate) struct DrillSchedule(Option<JoinHandle<()>>);

impl Drop for DrillSchedule {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("the schedule of drills had panicked");
        }
    }
}

/// A drill that runs; it is over when this goes.
struct Turn {
    drills: Arc<Drills>,
    mirror: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.drills.running.lock().remove(&self.mirror);
    }
}

impl Drills {
    /// The drills of all volumes.
    pub(crate) fn open(volumes: Arc<Volumes>, clock: Arc<dyn Clock>) -> Result<Self, ServerError> {
        let (running, asleep) = (Mutex::default(), Mutex::default());
        let (ending, wake) = (AtomicBool::new(false), Condvar::new());
        let (documents, unread) = (Mutex::default(), Mutex::default());
        let drills = Self { volumes, clock, documents, unread, running, ending, asleep, wake };
        drills.volumes.all().iter().for_each(|open| drills.read(&open.name));
        Ok(drills)
    }

    /// Loads the document in the folder of a volume.
    pub(crate) fn read(&self, name: &str) {
        let (document, unread) = state::known::<DrillDocument>(&path(&self.volumes, name));
        let mut documents = self.documents.lock();
        match document {
            Some(document) => documents.insert(name.to_owned(), document),
            None => documents.remove(name),
        };
        let mut unknown = self.unread.lock();
        match unread {
            Some(unread) => unknown.insert(name.to_owned(), unread),
            None => unknown.remove(name),
        };
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    /// No drill begins any more.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        drop(self.asleep.lock());
        self.wake.notify_all();
    }

    /// All of them that are still about something.
    pub(crate) fn list(&self) -> Vec<api::Drill> {
        let (now_ms, running) = (self.now_ms(), self.running.lock().clone());
        let show = |(mirror, document): (&String, &DrillDocument)| {
            let open = self.volumes.get(mirror).ok()?;
            Some(api::Drill {
                mirror: mirror.clone(),
                probe: document.probe.clone(),
                timeout_ms: document.timeout_ms,
                every_ms: document.every_ms,
                last: document.last.clone(),
                age_ms: document.passed_ms.map(|passed| now_ms.saturating_sub(passed)),
                // A writable volume can have no drills.
                stale: open.is_destination() && document.is_stale(now_ms),
                running: running.contains(mirror),
            })
        };
        self.documents.lock().iter().filter_map(show).collect()
    }

    /// Drills that failed, or that should have been made and were not.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let mut problems = Vec::new();
        let is_mirror =
            |drill: &api::Drill| self.volumes.get(&drill.mirror).is_ok_and(|it| it.is_destination());
        for drill in self.list().into_iter().filter(is_mirror) {
            let failed = drill.last.as_ref().filter(|last| last.outcome != DrillOutcome::Passed);
            let message = match (failed, drill.stale) {
                (Some(last), _) => format!("its last drill did not pass: {}", last.reason()),
                (None, true) => "no drill of it has passed for too long".to_owned(),
                (None, false) => continue,
            };
            let next = format!("`cairn mirror drill {}` runs one now and shows the result", drill.mirror);
            problems.push(api::Problem { subject: drill.mirror, message, next });
        }
        problems
    }

    /// The drill to run now, after the request was recorded.
    fn note_request(&self, name: &str, request: &api::DrillRequest) -> Result<DrillDocument, ServerError> {
        state::refuse_unread(self.unread.lock().get(name))?;
        if request.every_ms == Some(0) {
            return Err(ServerError::Invalid {
                fault: "the interval is 0",
                next: "give an interval such as 15m",
            });
        }
        let mut documents = self.documents.lock();
        let before = documents.get(name);
        let none = ServerError::Invalid {
            fault: "the first drill of a mirror needs a probe",
            next: "give --probe COMMAND; later drills reuse it",
        };
        let probe = request.probe.clone().or(before.map(|before| before.probe.clone())).ok_or(none)?;
        let kept = before.map_or(TIMEOUT.as_millis() as u64, |before| before.timeout_ms);
        let document = DrillDocument {
            probe,
            timeout_ms: request.timeout_ms.unwrap_or(kept).max(1),
            every_ms: request.every_ms.or(before.and_then(|before| before.every_ms)),
            // A drill of the schedule does not reset the start: if the end of the server interrupts
            // each of them, none has passed since then.
            since_ms: before.filter(|_| request.every_ms.is_none()).map_or(self.now_ms(), |it| it.since_ms),
            last: before.and_then(|before| before.last.clone()),
            passed_ms: before.and_then(|before| before.passed_ms),
        };
        state::save(&path(&self.volumes, name), &document)?;
        documents.insert(name.to_owned(), document.clone());
        Ok(document)
    }

    fn note_result(&self, name: &str, result: &api::DrillResult) -> Result<(), ServerError> {
        let mut documents = self.documents.lock();
        // Forgotten, or its mirror deleted, meanwhile.
        let Some(document) = documents.get_mut(name) else { return Ok(()) };
        document.last = Some(result.clone());
        if result.outcome == DrillOutcome::Passed {
            document.passed_ms = Some(result.at_ms);
        }
        state::save(&path(&self.volumes, name), document)
    }

    /// Ends the schedule of a mirror, and forgets its probe and its last drill.
    pub(crate) fn forget(&self, name: &str) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().get(name))?;
        let mut documents = self.documents.lock();
        if !documents.contains_key(name) {
            let (what, name) = ("drill of the mirror", name.to_owned());
            return Err(ServerError::NotFound { what, name, list: "cairn status" });
        }
        let path = path(&self.volumes, name);
        match state::remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ServerError::path("remove", &path)(error));
            }
            // Before it is gone the next start would have it again.
            _ => drop(documents.remove(name)),
        }
        Ok(())
    }

    /// The volume is gone, and its file with it: another one that gets its name has none.
    pub(crate) fn forget_volume(&self, name: &str) {
        self.documents.lock().remove(name);
        self.unread.lock().remove(name);
    }

    fn due(&self) -> Vec<String> {
        let now_ms = self.now_ms();
        let documents = self.documents.lock();
        let due = documents.iter().filter(|(_, document)| document.is_due(now_ms));
        due.map(|(name, _)| name.clone()).collect()
    }
}

/// The name of the clone of a drill. If that is too long, the mirror's name is truncated, and a
/// checksum distinguishes it from others with the same prefix.
fn clone_name(mirror: &str) -> String {
    let name = format!("drill-{mirror}");
    if names::check("volume", &name).is_ok() {
        return name;
    }
    let sum = Checksum::of(mirror.as_bytes()).0;
    let digits: String = sum[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digits}", name.get(..names::MAX_NAME - 1 - digits.len()).unwrap_or(&name))
}

fn path(volumes: &Volumes, name: &str) -> PathBuf {
    volumes.folder(name).join("drill.json")
}

#[cfg(test)]
mod tests;
