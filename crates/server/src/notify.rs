//! Notifications: the targets, the messages that wait for each, and the state of its deliveries.
//!
//! `notify.json` has the targets with their settings and secrets. `notify.desks.json` has a
//! [`Desk`] for each: the problems that it was sent, and messages that wait. It is saved before a
//! message is delivered and after it was taken, so a kill repeats a message at worst. One thread
//! looks at the problems that `cairn status` shows ([`watch`]), and each target has a thread for
//! its deliveries ([`courier`]): one that hangs delays no other.
//!
//! Lock order: `document`, `desks`, `health`. The first two may be held while the data directory
//! is written, so a status takes only the last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Clock, Rng};
use cairn_notify::{Desk, Failure, Fault, Message, Origin, Policy, Problem, Severity, Target};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::peers::token::{random_bytes, random_name};
use crate::state::Unread;
use crate::{names, state};

mod commands;
pub(crate) mod courier;
mod settings;
pub(crate) mod standing;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

/// More targets are a mistake.
const TARGETS_MAX: usize = 100;
/// Failed tries in a row, or the time, after which a target that may recover is a problem.
const FAILING: (u32, Duration) = (3, Duration::from_secs(60));
/// The start of the subject of a problem of a target.
pub(crate) const SUBJECT: &str = "notify ";
/// Age of the last look at problems from which on nothing is known of them.
const FRESH: Duration = Duration::from_secs(60);

/// A target as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    name: String,
    /// Random: another target may get the name later.
    series: String,
    target: Target,
    policy: Policy,
    added_ms: u64,
}

/// The content of `notify.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NotifyDocument {
    targets: Vec<Kept>,
}

/// The content of `notify.desks.json`: by the series of the target.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DesksDocument {
    desks: BTreeMap<String, Desk>,
}

/// How deliveries to a target go, since the server started.
#[derive(Debug, Clone, Default)]
struct Health {
    delivered_ms: Option<u64>,
    failures: u32,
    failing_ms: Option<u64>,
    last: Option<Failure>,
    /// Messages that wait, as of the last look.
    waiting: usize,
    /// Counts reasons to try again at once, such as a test that succeeded.
    pokes: u64,
}

impl Health {
    fn is_problem(&self, now_ms: u64) -> bool {
        let Some((failure, since_ms)) = self.last.as_ref().zip(self.failing_ms) else { return false };
        let (tries, time) = FAILING;
        let long = now_ms.saturating_sub(since_ms) >= time.as_millis() as u64;
        failure.fault != Fault::Passing || self.failures >= tries || (long && self.failures > 0)
    }
}

/// The problems of the last look.
#[derive(Debug, Default)]
struct Seen {
    problems: Vec<Problem>,
    /// By the monotonic clock.
    at: Option<Duration>,
}

/// The notifications of a server.
pub(crate) struct Notify {
    path: PathBuf,
    desks_path: PathBuf,
    clock: Arc<dyn Clock>,
    origin: Origin,
    document: Mutex<NotifyDocument>,
    unread: Mutex<Option<Unread>>,
    desks: Mutex<DesksDocument>,
    desks_unread: Mutex<Option<Unread>>,
    health: Mutex<BTreeMap<String, Health>>,
    seen: Mutex<Seen>,
    /// The series of targets that have a thread.
    running: Mutex<BTreeSet<String>>,
    ending: AtomicBool,
    /// Counts changes that a thread may wait for.
    news: Mutex<u64>,
    wake: Condvar,
}

/// A generator that the operating system seeded.
fn rng() -> Rng {
    Rng::new(u64::from_le_bytes(random_bytes()))
}

impl Notify {
    /// Those in the data directory.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let host = match names::host() {
            host if host.is_empty() => "cairn".to_owned(),
            host => host,
        };
        let notify = Self {
            path: dir.join("notify.json"),
            desks_path: dir.join("notify.desks.json"),
            clock,
            origin: Origin { host, version: env!("CARGO_PKG_VERSION").to_owned() },
            document: Mutex::default(),
            unread: Mutex::default(),
            desks: Mutex::default(),
            desks_unread: Mutex::default(),
            health: Mutex::default(),
            seen: Mutex::default(),
            running: Mutex::default(),
            ending: AtomicBool::new(false),
            news: Mutex::new(0),
            wake: Condvar::new(),
        };
        notify.read();
        notify
    }

    /// Takes in what the files say by now.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<NotifyDocument>(&self.path);
        *self.document.lock() = document.unwrap_or_default();
        *self.unread.lock() = unread;
        let (desks, unread) = state::known::<DesksDocument>(&self.desks_path);
        *self.desks.lock() = desks.unwrap_or_default();
        *self.desks_unread.lock() = unread;
        self.tell();
    }

    /// Ends the threads: each ends at its next step.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.tell();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    /// Wakes all threads.
    fn tell(&self) {
        *self.news.lock() += 1;
        self.wake.notify_all();
    }

    /// Waits for news after those of `seen`, for some time.
    fn wait(&self, seen: &mut u64, time: Duration) {
        let mut news = self.news.lock();
        if *news == *seen && !self.is_ending() {
            self.wake.wait_for(&mut news, time);
        }
        *seen = *news;
    }

    fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        state::refuse_unread(self.desks_unread.lock().as_ref())
    }

    /// All targets; none while they are not known.
    fn targets(&self) -> Vec<Kept> {
        match self.check_known() {
            Ok(()) => self.document.lock().targets.clone(),
            Err(_) => Vec::new(),
        }
    }

    fn get(&self, name: &str) -> Result<Kept, ServerError> {
        self.check_known()?;
        let found = self.document.lock().targets.iter().find(|kept| kept.name == name).cloned();
        found.ok_or_else(|| ServerError::NotFound {
            what: "notification target",
            name: name.to_owned(),
            list: "cairn notify list",
        })
    }

    /// The target of that series as it is by now.
    fn of_series(&self, series: &str) -> Option<Kept> {
        self.document.lock().targets.iter().find(|kept| kept.series == series).cloned()
    }

    /// Changes the document and its file, or neither.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut NotifyDocument) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let mut document = self.document.lock();
        self.check_known()?;
        let mut changed = document.clone();
        let outcome = change(&mut changed)?;
        state::save(&self.path, &changed)?;
        *document = changed;
        drop(document);
        self.tell();
        Ok(outcome)
    }

    /// Has a desk changed, and saves that. If it can't be saved, messages go out all the same, and
    /// may be repeated after a restart.
    fn at_desk<T>(&self, kept: &Kept, act: impl FnOnce(&mut Desk) -> (T, bool)) -> T {
        // Held, so that no desk is made for a target that is deleted meanwhile.
        let document = self.document.lock();
        let is_there = document.targets.iter().any(|other| other.series == kept.series);
        let mut desks = self.desks.lock();
        let new = || Desk::new(&random_name());
        if !is_there {
            return act(&mut new()).0;
        }
        drop(document);
        let desk = desks.desks.entry(kept.series.clone()).or_insert_with(new);
        let (outcome, changed) = act(desk);
        if changed
            && self.desks_unread.lock().is_none()
            && let Err(error) = state::save(&self.desks_path, &*desks)
        {
            tracing::warn!(target = kept.name, %error, "could not save which notifications were sent");
        }
        outcome
    }

    /// Forgets a target that was deleted.
    fn forget(&self, kept: &Kept) {
        let mut desks = self.desks.lock();
        if desks.desks.remove(&kept.series).is_some()
            && let Err(error) = state::save(&self.desks_path, &*desks)
        {
            tracing::warn!(target = kept.name, %error, "messages of a deleted target stay in a file");
        }
        drop(desks);
        self.health.lock().remove(&kept.name);
    }

    /// Takes the problems of now: messages that are due are queued.
    fn look(&self, problems: &[Problem]) {
        let now_ms = self.now_ms();
        let mut is_news = false;
        for kept in self.targets() {
            if matches!(kept.target, Target::Ping(_)) {
                continue;
            }
            let own = own_key(&kept.name);
            let others: Vec<Problem> = problems.iter().filter(|one| one.key != own).cloned().collect();
            let waiting = self.at_desk(&kept, |desk| {
                let changed = desk.look(&kept.policy, now_ms, &others);
                (desk.waiting(), changed)
            });
            is_news |= waiting > 0;
            self.health.lock().entry(kept.name).or_default().waiting = waiting;
        }
        if is_news {
            self.tell();
        }
    }

    /// Whether there is no problem for a target, as far as is known.
    fn is_well(&self, kept: &Kept) -> bool {
        let (seen, own) = (self.seen.lock(), own_key(&kept.name));
        let is_fresh = seen.at.is_some_and(|at| self.clock.monotonic().saturating_sub(at) < FRESH);
        let is_wrong = |one: &Problem| one.severity >= kept.policy.severity && one.key != own;
        is_fresh && !seen.problems.iter().any(is_wrong)
    }

    /// Notes the outcome of a delivery.
    fn note(&self, kept: &Kept, outcome: &Result<String, Failure>) {
        let now_ms = self.now_ms();
        // Held, so that no target that is deleted meanwhile is a problem.
        let document = self.document.lock();
        if !document.targets.iter().any(|other| other.series == kept.series) {
            return;
        }
        let mut all = self.health.lock();
        let health = all.entry(kept.name.clone()).or_default();
        match outcome {
            Ok(_) => {
                let (waiting, pokes) = (health.waiting, health.pokes);
                *health = Health { delivered_ms: Some(now_ms), waiting, pokes, ..Health::default() };
            }
            Err(failure) => {
                health.failures = health.failures.saturating_add(1);
                health.failing_ms.get_or_insert(now_ms);
                health.last = Some(failure.clone());
            }
        }
    }

    /// The problems of targets.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let now_ms = self.now_ms();
        let all = self.health.lock();
        let problem = |(name, health): (&String, &Health)| {
            let failure = health.last.as_ref().filter(|_| health.is_problem(now_ms))?;
            let minutes = now_ms.saturating_sub(health.failing_ms?) / 60_000;
            let waits = match health.waiting {
                0 => String::new(),
                1 => "; 1 message waits".to_owned(),
                many => format!("; {many} messages wait"),
            };
            Some(api::Problem {
                subject: format!("{SUBJECT}{name}"),
                message: format!("deliveries fail since {minutes} min: {}{waits}", failure.message),
                next: format!("{}; `cairn notify test {name}` tries it", failure.next),
            })
        };
        all.iter().filter_map(problem).collect()
    }
}

/// The key of the problem that a target fails.
fn own_key(name: &str) -> String {
    format!("{SUBJECT}{name}")
}

/// The problem that the server does not answer, for targets: no status can show it.
fn hangs(seconds: u64) -> Problem {
    Problem {
        key: "server/hangs".to_owned(),
        severity: Severity::Critical,
        subject: "server".to_owned(),
        message: format!("`cairn status` would wait: a look at all volumes has taken {seconds} s so far"),
        next: "look at the disks of this machine and at its kernel log".to_owned(),
    }
}

/// A message that tells nothing but that it arrives.
fn test_message(at_ms: u64) -> Message {
    Message::test(&format!("test-{}", random_name()), at_ms)
}
