//! Commands that an owner has run around each snapshot of a volume, to quiesce a database for
//! instance: one before it, one after it.
//!
//! The command after a snapshot runs when the snapshot is made or has failed, even by a bug, and
//! also if the command before it failed or took too long, so that no program stays quiesced. If the
//! command before fails there is no snapshot. A command that exceeds its time limit is killed with
//! all processes that it started. So is one that runs when the server stops, except that the
//! command after a snapshot gets some seconds: no program stays quiesced. Snapshots of one volume
//! with hooks are made one at a time. Those of mirror updates, schedules, dumps and owners run the
//! hooks; those in a change of roles do not.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Child;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_api as api;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::peers::token::random_name;
use crate::schedules::error::SchedulesError;
use crate::state;
use crate::state::Unread;
use crate::work::programs;
use crate::work::programs::{LOOK_EVERY, Said, end, processes_with};

mod commands;

/// Time limit of a command, by default.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest possible time limit: writes may be held back during all of it.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Time left for a command after a snapshot when the server stops.
const AT_THE_END: Duration = Duration::from_secs(10);

/// The content of `hooks.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HooksDocument {
    before: Option<String>,
    after: Option<String>,
    timeout_ms: Option<u64>,
}

impl HooksDocument {
    fn timeout(&self) -> Duration {
        self.timeout_ms.map_or(TIMEOUT, Duration::from_millis)
    }
}

/// The content of `hooks.running.json` while commands run around a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Underway {
    /// The run of the server that began them.
    server: String,
    /// The value of [`RUN`] in the environment of all processes that they start.
    run: String,
    /// The command after the snapshot, as it was then.
    after: String,
    timeout_ms: u64,
    /// The command after the snapshot is running.
    releasing: bool,
}

/// The variable that marks processes started by commands around a snapshot.
const RUN: &str = "CAIRN_HOOK_RUN";

/// Another one each time that the server starts.
fn this_server() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(random_name)
}

/// The hooks of one volume.
pub(crate) struct Hooks {
    path: PathBuf,
    document: Mutex<HooksDocument>,
    /// While it is unreadable no snapshot is made: it may name hooks.
    unread: Mutex<Option<Unread>>,
    /// One snapshot at a time.
    turn: Mutex<()>,
    /// The problem of the last run.
    problem: Mutex<Option<String>>,
    /// The server ends.
    ending: AtomicBool,
}

impl Hooks {
    /// Loads the document in the folder of a volume.
    pub(crate) fn open(path: PathBuf) -> Self {
        let (document, unread) = state::known::<HooksDocument>(&path);
        let (document, unread) = (Mutex::new(document.unwrap_or_default()), Mutex::new(unread));
        let (turn, problem, ending) = (Mutex::new(()), Mutex::new(None), AtomicBool::new(false));
        Self { path, document, unread, turn, problem, ending }
    }

    /// Loads the present document in the folder of the volume.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<HooksDocument>(&self.path);
        *self.document.lock() = document.unwrap_or_default();
        *self.unread.lock() = unread;
    }

    /// Stops running hooks, and prevents new ones.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Makes a snapshot of `volume` with the hooks around it.
    pub(crate) fn around<T>(&self, volume: &str, make: impl FnOnce() -> T) -> Result<T, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let document = self.document.lock().clone();
        if document.before.is_none() && document.after.is_none() {
            return Ok(make());
        }
        let busy = || ServerError::Busy { name: volume.to_owned(), by: "the hooks of another snapshot run" };
        let _turn = self.turn.try_lock_for(document.timeout() * 2).ok_or_else(busy)?;
        if self.ending.load(Ordering::Acquire) {
            return Err(ServerError::Ending);
        }
        self.release_cut(volume);
        let mut underway = Underway {
            server: this_server().to_owned(),
            run: random_name(),
            after: document.after.clone().unwrap_or_default(),
            timeout_ms: document.timeout().as_millis() as u64,
            releasing: false,
        };
        let releases = document.after.is_some();
        if releases {
            self.note(&underway)?;
        }
        let name = underway.run.clone();
        let run = |which: &'static str, command: &Option<String>| match command {
            None => Ok(()),
            Some(command) => self.run(volume, which, &name, command, document.timeout()),
        };
        // A panic in it belongs to the caller, and is resumed when no program is quiesced any more.
        let made = run("before", &document.before).map(|()| catch_unwind(AssertUnwindSafe(make)));
        underway.releasing = true;
        // If that can't be saved, a start interrupts the command after it, and runs it again.
        let _ = if releases { self.note(&underway) } else { Ok(()) };
        let after = run("after", &document.after);
        if releases {
            self.forget(volume);
        }
        let wrong = made.as_ref().err().or(after.as_ref().err()).map(ToString::to_string);
        if let Some(wrong) = &wrong {
            tracing::warn!(volume, wrong, "a hook around a snapshot failed");
        }
        *self.problem.lock() = wrong;
        made.map(|made| made.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// The path of the record that they run.
    fn underway(&self) -> PathBuf {
        self.path.with_file_name("hooks.running.json")
    }

    fn note(&self, underway: &Underway) -> Result<(), ServerError> {
        let path = self.underway();
        let text = state::text(&path, underway)?;
        state::replace(&path, &text).map_err(ServerError::path("write", &path))
    }

    fn forget(&self, volume: &str) {
        if let Err(error) = state::remove(&self.underway()) {
            tracing::warn!(volume, %error, "the next start runs the command after a snapshot once more");
        }
    }

    /// The hooks that a killed server has left.
    fn cut(&self) -> Option<Underway> {
        let path = self.underway();
        let unknown = || {
            let document = self.document.lock();
            let after = document.after.clone()?;
            let timeout_ms = document.timeout().as_millis() as u64;
            let (server, run) = (String::new(), String::new());
            Some(Underway { server, run, after, timeout_ms, releasing: false })
        };
        // An unreadable one still shows that there was something to release.
        let left = state::load::<Underway>(&path).unwrap_or_else(|_| unknown())?;
        (left.server != this_server()).then_some(left)
    }

    /// Runs the command after a snapshot if a server was killed before its end; meanwhile no
    /// snapshot is made. It takes as long as the command.
    pub(crate) fn release(&self, volume: &str) {
        let _turn = self.turn.lock();
        self.release_cut(volume);
    }

    fn release_cut(&self, volume: &str) {
        let Some(mut left) = self.cut() else { return };
        let timeout = Duration::from_millis(left.timeout_ms);
        let wait = |how_long: Duration, each: &dyn Fn(Pid)| {
            let until = Instant::now() + how_long;
            loop {
                let left = started_by(&left.run);
                if left.is_empty() || Instant::now() >= until || self.ending.load(Ordering::Acquire) {
                    return left.is_empty();
                }
                left.into_iter().for_each(each);
                std::thread::sleep(LOOK_EVERY);
            }
        };
        // A command after a snapshot may be about to end, and must not stop half way.
        let is_over = left.releasing && wait(timeout, &|_| {});
        let is_ended = is_over
            || wait(AT_THE_END, &|pid| {
                let _ = kill_process(pid, Signal::KILL);
            });
        if !is_ended {
            tracing::warn!(volume, "cannot kill the processes of a command around a snapshot");
        }
        // It is begun here: a volume that is closed and opened again meanwhile does not begin it
        // once more.
        this_server().clone_into(&mut left.server);
        left.releasing = true;
        let _ = self.note(&left);
        let outcome = self.run(volume, "after", &left.run, &left.after, timeout);
        self.forget(volume);
        let how = match &outcome {
            Ok(()) => "the one after it has run now".to_owned(),
            Err(error) => error.to_string(),
        };
        let wrong = format!("the server ended between the commands around a snapshot of `{volume}`: {how}");
        tracing::warn!(volume, wrong, "a hook around a snapshot was cut off");
        *self.problem.lock() = Some(wrong);
    }

    /// Whether there is something to [`Self::release`].
    pub(crate) fn were_cut(&self) -> bool {
        self.cut().is_some()
    }

    fn show(&self, volume: &str) -> api::Hooks {
        let document = self.document.lock().clone();
        api::Hooks {
            volume: volume.to_owned(),
            before: document.before.clone(),
            after: document.after.clone(),
            timeout_ms: document.timeout().as_millis() as u64,
            problem: self.problem.lock().clone(),
        }
    }

    /// Runs a command to its end, or to that of its time.
    fn run(
        &self,
        volume: &str,
        which: &'static str,
        run: &str,
        text: &str,
        timeout: Duration,
    ) -> Result<(), ServerError> {
        let failed = |how: String| {
            ServerError::Schedules(SchedulesError::Hook { volume: volume.to_owned(), which, how })
        };
        let (mut child, said) =
            start(volume, which, run, text).map_err(|error| failed(format!("can't be started: {error}")))?;
        let mut until = Instant::now() + timeout;
        let mut is_late = format!("did not end within {} ms, and was killed", timeout.as_millis());
        let mut ending = false;
        loop {
            if !ending && self.ending.load(Ordering::Acquire) {
                ending = true;
                let left = if which == "before" { Duration::ZERO } else { AT_THE_END };
                until = until.min(Instant::now() + left);
                "was killed, as the server ends".clone_into(&mut is_late);
            }
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(failed(format!("failed: {status}{}", said.last()))),
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                Ok(None) => {
                    let waits =
                        if end(child) { "" } else { ", which does not end it: it waits in the kernel" };
                    return Err(failed(format!("{is_late}{waits}{}", said.last())));
                }
                Err(error) => {
                    end(child);
                    return Err(failed(format!("can't be waited for: {error}")));
                }
            }
        }
    }

    /// The problem of the hooks.
    pub(crate) fn problem(&self, volume: &str) -> Option<api::Problem> {
        let message = self.problem.lock().clone()?;
        let next =
            format!("run the command by hand as the server's user; `cairn volume hooks {volume}` shows it");
        Some(api::Problem { subject: volume.to_owned(), message, next })
    }
}

fn start(volume: &str, which: &str, run: &str, text: &str) -> std::io::Result<(Child, Said)> {
    programs::start(text, &[("CAIRN_VOLUME", volume), ("CAIRN_HOOK", which), (RUN, run)], None)
}

/// The running processes that commands of this run have started, as far as this server may inspect
/// them.
fn started_by(run: &str) -> Vec<Pid> {
    if run.is_empty() {
        return Vec::new();
    }
    processes_with(RUN, |value| value == run.as_bytes())
}

#[cfg(test)]
mod tests;
