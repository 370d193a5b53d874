//! Work that takes longer than a request should: each job has a thread, and a record that clients
//! ask for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::ServerError;
use crate::peers::token::random_name;

/// Jobs that are over and still remembered; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 256;
/// As long is a job waited for at most: a server that stops waits for its answers.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The progress of a job; cheap enough to be reported with every record.
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
    phase: Mutex<(&'static str, Duration)>,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    notes: Mutex<Vec<String>>,
    /// The failure that is waited out, in place of the phase.
    waiting: Arc<Mutex<Option<String>>>,
    cancelled: Arc<AtomicBool>,
}

impl Progress {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let started = clock.monotonic();
        Self {
            clock,
            phase: Mutex::new(("starting", started)),
            done_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            notes: Mutex::default(),
            waiting: Arc::default(),
            cancelled: Arc::default(),
        }
    }

    /// Begins a new phase; the same phase continues.
    pub(crate) fn phase(&self, name: &'static str) {
        let mut phase = self.phase.lock();
        if phase.0 != name {
            *phase = (name, self.clock.monotonic());
            self.done_bytes.store(0, Ordering::Relaxed);
            self.total_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the bytes done and the total; 0 if that is unknown.
    pub(crate) fn bytes(&self, done: u64, total: u64) {
        self.done_bytes.store(done, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
    }

    /// Something that the owner should know now, not when it is over.
    pub(crate) fn note(&self, what: String) {
        self.notes.lock().push(what);
    }

    /// The cause for which the work waits, if any; threads beside it may write it.
    pub(crate) fn waiting(&self) -> &Arc<Mutex<Option<String>>> {
        &self.waiting
    }

    /// The work is to end as soon as it can.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// True once it is to end.
    pub(crate) fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    /// The same, for work on other threads.
    pub(crate) fn cancel_flag(&self) -> &Arc<AtomicBool> {
        &self.cancelled
    }
}

enum Outcome {
    Running,
    Done(Option<api::JobOutcome>),
    Failed(api::ErrorBody),
}

struct Record {
    pub(crate) id: String,
    kind: &'static str,
    subject: String,
    progress: Arc<Progress>,
    started: Duration,
    began_ms: u64,
    state: Mutex<(Outcome, Duration)>,
    /// Set once the state has the outcome.
    over: watch::Sender<bool>,
}

/// The jobs of a server.
pub(crate) struct Jobs {
    clock: Arc<dyn Clock>,
    records: Mutex<VecDeque<Arc<Record>>>,
}

impl Jobs {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, records: Mutex::default() }
    }

    /// Starts `work` on a thread of its own.
    pub(crate) fn start(
        &self,
        kind: &'static str,
        subject: &str,
        work: impl FnOnce(&Progress) -> Result<Option<api::JobOutcome>, ServerError> + Send + 'static,
    ) -> Result<api::Job, ServerError> {
        let started = self.clock.monotonic();
        let record = Arc::new(Record {
            id: random_name(),
            kind,
            subject: subject.to_owned(),
            progress: Arc::new(Progress::new(self.clock.clone())),
            started,
            began_ms: self.clock.now().0 / 1_000_000,
            state: Mutex::new((Outcome::Running, started)),
            over: watch::Sender::new(false),
        });
        let (clock, mine) = (self.clock.clone(), record.clone());
        let run = move || {
            let work = std::panic::AssertUnwindSafe(|| work(&mine.progress));
            let outcome = match std::panic::catch_unwind(work) {
                Ok(Ok(outcome)) => Outcome::Done(outcome),
                Ok(Err(error)) => {
                    tracing::warn!(job = mine.kind, subject = mine.subject, %error, "a job failed");
                    Outcome::Failed(error.body())
                }
                Err(_) => Outcome::Failed(ServerError::Bug.body()),
            };
            *mine.state.lock() = (outcome, clock.monotonic());
            mine.over.send_replace(true);
        };
        let thread = std::thread::Builder::new().name(format!("job-{}", record.id)).spawn(run);
        thread.map_err(|source| ServerError::Thread { what: kind, source })?;
        let job = record.show(self.clock.monotonic());
        let mut records = self.records.lock();
        records.push_back(record);
        while records.len() > MAX_REMEMBERED {
            let Some(over) = records.iter().position(|record| !record.is_running()) else { break };
            records.remove(over);
        }
        Ok(job)
    }

    fn find(&self, id: &str) -> Option<Arc<Record>> {
        self.records.lock().iter().find(|record| record.id == id).cloned()
    }

    /// One job.
    pub(crate) fn show(&self, id: &str) -> Result<api::Job, ServerError> {
        let record = self.find(id).ok_or_else(|| ServerError::NotFound {
            what: "job",
            name: id.to_owned(),
            list: "cairn job list --all",
        })?;
        Ok(record.show(self.clock.monotonic()))
    }

    /// Waits until a job is over, `within` or [`WAIT_MAX`] at most; not at all if the job does not
    /// exist.
    pub(crate) async fn over(&self, id: &str, within: Duration) {
        let Some(mut over) = self.find(id).map(|record| record.over.subscribe()) else { return };
        // After a time-out the current state is reported as well.
        let _ = tokio::time::timeout(within.min(WAIT_MAX), over.wait_for(|over| *over)).await;
    }

    /// Asks one job to end as soon as it can.
    pub(crate) fn cancel(&self, id: &str) -> Result<api::Job, ServerError> {
        if let Some(record) = self.find(id) {
            record.progress.cancel();
        }
        self.show(id)
    }

    /// All jobs, the newest first.
    pub(crate) fn list(&self) -> Vec<api::Job> {
        let now = self.clock.monotonic();
        self.records.lock().iter().rev().map(|record| record.show(now)).collect()
    }

    /// Asks every running job to end.
    pub(crate) fn cancel_all(&self) {
        self.records.lock().iter().for_each(|record| record.progress.cancel());
    }

    /// True while one of these kinds runs on a subject.
    pub(crate) fn is_running(&self, kinds: &[&str], subject: &str) -> bool {
        let records = self.records.lock();
        let is_it = |record: &Arc<Record>| record.subject == subject && kinds.contains(&record.kind);
        records.iter().any(|record| is_it(record) && record.is_running())
    }

    /// True while one runs.
    pub(crate) fn any_running(&self) -> bool {
        self.records.lock().iter().any(|record| record.is_running())
    }
}

impl Record {
    fn is_running(&self) -> bool {
        matches!(self.state.lock().0, Outcome::Running)
    }

    fn show(&self, now: Duration) -> api::Job {
        let state = self.state.lock();
        let (phase, phase_started) = *self.progress.phase.lock();
        let waiting = self.progress.waiting.lock().clone();
        let waiting = waiting.filter(|_| matches!(state.0, Outcome::Running));
        let done_bytes = self.progress.done_bytes.load(Ordering::Relaxed);
        let total_bytes = self.progress.total_bytes.load(Ordering::Relaxed);
        let end = if matches!(state.0, Outcome::Running) { now } else { state.1 };
        let in_phase = end.saturating_sub(phase_started).as_secs_f64();
        let rate = if in_phase > 0.0 { (done_bytes as f64 / in_phase) as u64 } else { 0 };
        let left = total_bytes.saturating_sub(done_bytes);
        let (job_state, error, outcome) = match &state.0 {
            Outcome::Running => (api::JobState::Running, None, None),
            Outcome::Done(outcome) => (api::JobState::Done, None, outcome.clone()),
            Outcome::Failed(error) => (api::JobState::Failed, Some(error.clone()), None),
        };
        api::Job {
            id: self.id.clone(),
            kind: self.kind.to_owned(),
            subject: self.subject.clone(),
            state: job_state,
            phase: waiting.unwrap_or_else(|| phase.to_owned()),
            done_bytes,
            total_bytes,
            rate,
            seconds_left: (total_bytes > 0 && rate > 0).then(|| left.div_ceil(rate)),
            began_ms: self.began_ms,
            elapsed_ms: end.saturating_sub(self.started).as_millis() as u64,
            notes: self.progress.notes.lock().clone(),
            error,
            outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use cairn_device::SystemClock;

    use super::*;

    /// More than any of this takes, and less than is waited for.
    const LONG: Duration = Duration::from_secs(8);

    #[test]
    fn end_of_a_job_is_told_when_it_comes_and_its_state_until_then() {
        let jobs = Jobs::new(Arc::new(SystemClock::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let over = |id: &str, within| runtime.block_on(jobs.over(id, within));
        let (end, ends) = channel::<()>();
        let job = jobs.start("work", "vol0", move |_| {
            ends.recv().expect("it is told to end");
            Ok(None)
        });
        let job = job.expect("a thread").id;
        let began = Instant::now();
        over(&job, Duration::ZERO);
        over("0123456789ab", LONG);
        over(&job, Duration::from_millis(30));
        assert!(began.elapsed() >= Duration::from_millis(30) && began.elapsed() < LONG);
        assert_eq!(jobs.show(&job).expect("it is there").state, api::JobState::Running);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                end.send(()).expect("it waits");
            });
            over(&job, LONG);
        });
        assert_eq!(jobs.show(&job).expect("it is there").state, api::JobState::Done);
        // Also for later requests.
        over(&job, LONG);
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn end_of_a_job_that_panics_is_told() {
        let jobs = Jobs::new(Arc::new(SystemClock::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let job = jobs.start("work", "vol0", |_| panic!("on purpose")).expect("a thread").id;
        let began = Instant::now();
        runtime.block_on(jobs.over(&job, LONG));
        assert!(began.elapsed() < LONG, "it is told, and not found out");
        assert_eq!(jobs.show(&job).expect("it is there").state, api::JobState::Failed);
    }
}
