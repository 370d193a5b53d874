//! Mirrors of volumes of this server in buckets.
//!
//! The bucket has the images, in the format of [`cairn_bucket::images`]. A round of a mirror claims
//! the volume in the bucket unless it has done so, makes a snapshot, brings it into the bucket, and
//! releases the snapshot of the image before. Each round is a job. Its owner of the images stays
//! open between rounds, so that a round makes no other request than its update.
//!
//! `bucket-mirrors.json` in the folder of the volume has the settings, the claims of this server
//! and the newest root that it has seen. It is written before a claim and after each image.
//!
//! # State after a crash
//!
//! | after | state | next |
//! |---|---|---|
//! | the claim was noted | no claim, or one that the note recognizes | the next round claims again |
//! | the snapshot was made and held | a snapshot that no image has | the next round takes it up |
//! | some regions were put | regions that no root names | they are used by the next round |
//! | the root was put | an image that is not noted | the next round finds it |
//! | the image was noted | the snapshot of the image before is held | the next round releases it |

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use cairn_bucket::Nonce;
use cairn_bucket::images::Owner;
use parking_lot::{Condvar, Mutex};

use crate::buckets::{Buckets, OpenBucket};
use crate::error::ServerError;
use crate::peers::pace::Pace;
use crate::state;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;
use crate::work::background;
use crate::work::jobs::{Jobs, Progress};

mod commands;
mod continuous;
mod document;
pub(crate) mod error;
mod home;
mod overdue;
mod rounds;
mod show;
mod verify;
mod working;

pub(crate) use document::BucketMirrorsDocument;
use document::{BucketMirrorDocument, id_in};
use error::BucketMirrorError;
pub(crate) use home::write_home;

/// How the names of the snapshots of these mirrors begin.
pub(crate) const PREFIX: &str = "mirror.bucket-";
/// The state of the mirrors of a volume, in its folder.
const FILE: &str = "bucket-mirrors.json";
/// How often the schedule looks, at least: a clock that was set is noticed within it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a command waits for a round that it cancels.
const CANCEL_PATIENCE: Duration = Duration::from_secs(30);
/// Mirrors of one volume, at most.
const MIRRORS_MAX: usize = 16;

/// A mirror while the server runs.
struct BucketMirror {
    id: u64,
    /// The volume here.
    volume: String,
    document: Mutex<BucketMirrorDocument>,
    live: Mutex<Live>,
    /// A round is over.
    settled: Condvar,
    /// Locked by the running round, and by no one else.
    holding: Mutex<Option<Holding>>,
    /// The failure that the store waits out, shown by the running job.
    waiting: Mutex<Option<Arc<Mutex<Option<String>>>>>,
    pace: Pace,
}

/// The images of a mirror, owned by this process.
struct Holding {
    owner: Owner,
    bucket: OpenBucket,
    /// The last look at the next epoch, by the monotonic clock.
    looked: Duration,
}

#[derive(Default)]
struct Live {
    running: bool,
    /// Cancels the running round.
    cancel: Option<Arc<AtomicBool>>,
    /// The round that begins is cancelled.
    cancels: bool,
    /// The next round looks for another owner even if nothing has changed: a user asked for it.
    looks: bool,
    /// It was deleted: no round begins, and nothing is saved.
    retired: bool,
    next_ms: Option<u64>,
    retry_ms: Option<u64>,
    failures: u32,
    problem: Option<api::ErrorBody>,
    /// A claim without an answer, which is repeated with the same nonce.
    claiming: Option<(u32, Nonce)>,
    /// The snapshot of the last update that began, and whether regions were put for it.
    putting: Option<(u64, bool)>,
    /// The snapshots of others when the last update of a continuous mirror ended.
    others: Option<u64>,
}

/// The mirrors of this server in buckets. Lock order: `saving`, `document`, `live`.
pub(crate) struct BucketMirrors {
    volumes: Arc<Volumes>,
    buckets: Arc<Buckets>,
    clock: Arc<dyn Clock>,
    jobs: Arc<Jobs>,
    mirrors: Mutex<BTreeMap<u64, Arc<BucketMirror>>>,
    /// Volumes whose mirrors in buckets are unknown.
    unread: Mutex<BTreeMap<String, Unread>>,
    /// Held while a file is written.
    saving: Mutex<()>,
    ending: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

/// The schedule's thread; it ends when this goes.
pub(crate) struct Schedule(Option<JoinHandle<()>>);

impl Drop for Schedule {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("the schedule of mirrors in buckets had panicked");
        }
    }
}

/// A round runs until this goes, with any outcome.
struct Running<'a>(&'a BucketMirror);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.waiting.lock() = None;
        let mut live = self.0.live.lock();
        (live.running, live.cancel, live.cancels) = (false, None, false);
        self.0.settled.notify_all();
    }
}

impl BucketMirror {
    fn new(volume: &str, document: BucketMirrorDocument, now_ms: u64) -> Self {
        // Rounds that were missed while the server was away are one round now.
        let last = document.last.as_ref().map(|last| last.started_ms);
        let next_ms = document.when.first_ms(last, now_ms);
        Self {
            id: document.id,
            volume: volume.to_owned(),
            document: Mutex::new(document),
            live: Mutex::new(Live { next_ms, ..Live::default() }),
            settled: Condvar::new(),
            holding: Mutex::default(),
            waiting: Mutex::default(),
            pace: Pace::default(),
        }
    }

    /// `BUCKET:[PATH/]VOLUME`.
    fn name(&self) -> String {
        format!("{}{}", self.document.lock().place(), self.volume)
    }

    /// Whether a round is due. One that failed is tried again later than a new one would begin.
    fn is_due(&self, now_ms: u64) -> bool {
        {
            let document = self.document.lock();
            if document.paused || document.stopped.is_some() {
                return false;
            }
        }
        let live = self.live.lock();
        let due_ms = live.retry_ms.or(live.next_ms);
        !live.running && !live.retired && due_ms.is_some_and(|due| due <= now_ms)
    }

    /// Sets the pace to the limit at this time of the day.
    fn set_pace(&self, now_ms: u64) {
        let document = self.document.lock();
        let (day, minute) = document.when.day_and_minute(now_ms);
        self.pace.set(document.limits().at(day, minute));
    }

    /// Cancels a running round, and waits for its end.
    fn settle(&self) -> Result<(), ServerError> {
        let mut live = self.live.lock();
        while live.running {
            live.cancels = true;
            if let Some(cancel) = &live.cancel {
                cancel.store(true, Ordering::Release);
            }
            let late = self.settled.wait_for(&mut live, CANCEL_PATIENCE).timed_out();
            if late && live.running {
                drop(live);
                return Err(ServerError::Busy { name: self.name(), by: "an update does not end" });
            }
        }
        Ok(())
    }
}

impl BucketMirrors {
    /// The mirrors of all open volumes.
    pub(crate) fn open(
        volumes: Arc<Volumes>,
        buckets: Arc<Buckets>,
        clock: Arc<dyn Clock>,
        jobs: Arc<Jobs>,
    ) -> Arc<Self> {
        let mirrors = Arc::new(Self {
            volumes,
            buckets,
            clock,
            jobs,
            mirrors: Mutex::default(),
            unread: Mutex::default(),
            saving: Mutex::default(),
            ending: AtomicBool::new(false),
            asleep: Mutex::default(),
            wake: Condvar::new(),
        });
        mirrors.volumes.all().iter().for_each(|open| mirrors.take_in(open));
        mirrors
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    fn path(&self, volume: &str) -> PathBuf {
        self.volumes.folder(volume).join(FILE)
    }

    /// Resumes the mirrors of a volume. Those that are known already stay.
    pub(crate) fn take_in(&self, open: &OpenVolume) {
        let (document, unread) = state::known::<BucketMirrorsDocument>(&self.path(&open.name));
        match unread {
            Some(unread) => self.unread.lock().insert(open.name.clone(), unread),
            None => self.unread.lock().remove(&open.name),
        };
        let now_ms = self.now_ms();
        let mut known = self.mirrors.lock();
        for document in document.unwrap_or_default().mirrors {
            known
                .entry(document.id)
                .or_insert_with(|| Arc::new(BucketMirror::new(&open.name, document, now_ms)));
        }
    }

    fn check_known(&self, volume: &str) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().get(volume))
    }

    fn all(&self) -> Vec<Arc<BucketMirror>> {
        let mut all: Vec<Arc<BucketMirror>> = self.mirrors.lock().values().cloned().collect();
        all.sort_by_key(|mirror| mirror.name());
        all
    }

    fn of_volume(&self, volume: &str) -> Vec<Arc<BucketMirror>> {
        self.all().into_iter().filter(|mirror| mirror.volume == volume).collect()
    }

    fn get(&self, id: &str) -> Result<Arc<BucketMirror>, ServerError> {
        let number = u64::from_str_radix(id, 16).ok();
        let known = number.and_then(|id| self.mirrors.lock().get(&id).cloned());
        known.ok_or_else(|| ServerError::NotFound {
            what: "mirror in a bucket",
            name: id.to_owned(),
            list: "cairn mirror list",
        })
    }

    /// Changes a mirror and its file, or neither. All mirrors of a volume share the file.
    fn change<T>(
        &self,
        mirror: &BucketMirror,
        change: impl FnOnce(&mut BucketMirrorDocument) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let _saving = self.saving.lock();
        if mirror.live.lock().retired {
            return Err(ServerError::Busy { name: mirror.name(), by: "it is being deleted" });
        }
        let mut changed = mirror.document.lock().clone();
        let outcome = change(&mut changed)?;
        self.save(&mirror.volume, Some(&changed), None)?;
        *mirror.document.lock() = changed;
        Ok(outcome)
    }

    /// Writes the mirrors of a volume, with `changed` in its place and without `gone`.
    fn save(
        &self,
        volume: &str,
        changed: Option<&BucketMirrorDocument>,
        gone: Option<u64>,
    ) -> Result<(), ServerError> {
        self.check_known(volume)?;
        let known: Vec<Arc<BucketMirror>> = self.mirrors.lock().values().cloned().collect();
        let of_volume = known.iter().filter(|other| other.volume == volume && Some(other.id) != gone);
        let mut mirrors: Vec<BucketMirrorDocument> =
            of_volume.map(|other| other.document.lock().clone()).collect();
        if let Some(changed) = changed {
            mirrors.retain(|other| other.id != changed.id);
            mirrors.push(changed.clone());
        }
        mirrors.sort_by_key(|mirror| mirror.id);
        state::save(&self.path(volume), &BucketMirrorsDocument { mirrors })
    }

    /// Whether the snapshot of that name is of one of these mirrors.
    pub(crate) fn owner_of(&self, volume: &str, snapshot: &str) -> Option<String> {
        let mirror = self.mirrors.lock().get(&id_in(snapshot)?).cloned()?;
        (mirror.volume == volume).then(|| mirror.name())
    }

    /// Whether a mirror at a source ([`cairn_mirror::MirrorAtSource::name`]) is one of these.
    pub(crate) fn is_one(&self, volume: &str, name: &str) -> bool {
        self.owner_of(volume, &format!("mirror.{name}.1")).is_some()
    }

    /// Refuses to delete a volume that is mirrored into a bucket, unless it reads from there.
    pub(crate) fn refuse_if_mirrored(&self, volume: &str) -> Result<(), ServerError> {
        if self.volumes.get(volume).is_ok() {
            self.check_known(volume)?;
        }
        match self.of_volume(volume).iter().find(|mirror| !self.is_home(mirror)) {
            Some(mirror) => {
                Err(BucketMirrorError::VolumeMirrored { volume: volume.to_owned(), mirror: mirror.name() }
                    .into())
            }
            None => Ok(()),
        }
    }

    /// Refuses to delete a bucket that a mirror goes to.
    pub(crate) fn refuse_mirrored_into(&self, bucket: &str) -> Result<(), ServerError> {
        let mirror = self.all().into_iter().find(|mirror| mirror.document.lock().bucket == bucket);
        match mirror {
            Some(mirror) => Err(crate::buckets::error::BucketsError::Mirrored {
                name: bucket.to_owned(),
                mirror: mirror.name(),
            }
            .into()),
            None => Ok(()),
        }
    }

    /// Starts the thread that begins rounds when they are due.
    pub(crate) fn start_schedule(self: &Arc<Self>) -> Result<Schedule, ServerError> {
        let mirrors = self.clone();
        let look = move || {
            let mut looked_ms = 0;
            while !mirrors.ending.load(Ordering::Acquire) {
                let now_ms = mirrors.now_ms();
                if now_ms < looked_ms {
                    mirrors.plan_again(now_ms);
                }
                looked_ms = now_ms;
                let mut every = LOOK_EVERY;
                for mirror in mirrors.all() {
                    mirror.set_pace(now_ms);
                    if mirror.document.lock().when.continuous {
                        every = every.min(continuous::LOOK_EVERY);
                    }
                    if (mirror.is_due(now_ms) || mirrors.has_to_follow(&mirror, now_ms))
                        && let Err(error) = mirrors.begin(&mirror, "mirror update")
                    {
                        tracing::debug!(mirror = mirror.name(), %error, "a round does not begin");
                        let mut live = mirror.live.lock();
                        live.retry_ms = Some(rounds::retry_ms(1, now_ms));
                        live.problem = Some(error.body());
                    }
                }
                let mut asleep = mirrors.asleep.lock();
                if !mirrors.ending.load(Ordering::Acquire) {
                    let _ = mirrors.wake.wait_for(&mut asleep, every);
                }
            }
        };
        let thread = std::thread::Builder::new().name("bucket-mirrors".to_owned()).spawn(look);
        let thread = thread.map_err(|source| ServerError::Thread { what: "mirrors in buckets", source })?;
        Ok(Schedule(Some(thread)))
    }

    /// The clock was set back: planned times may be hours away now.
    fn plan_again(&self, now_ms: u64) {
        for mirror in self.all() {
            let document = mirror.document.lock();
            let mut live = mirror.live.lock();
            live.next_ms = live.next_ms.map(|due| document.when.no_later_ms(due, now_ms));
            live.retry_ms = live.retry_ms.map(|due| due.min(rounds::retry_ms(u32::MAX, now_ms)));
        }
    }

    /// The schedule looks at once.
    fn look(&self) {
        drop(self.asleep.lock());
        self.wake.notify_all();
    }

    /// No round begins any more, and those that run are cancelled.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.look();
        for mirror in self.all() {
            let mut live = mirror.live.lock();
            live.cancels = true;
            if let Some(cancel) = &live.cancel {
                cancel.store(true, Ordering::Release);
            }
        }
    }

    /// Begins a round.
    fn begin(
        self: &Arc<Self>,
        mirror: &Arc<BucketMirror>,
        kind: &'static str,
    ) -> Result<api::Job, ServerError> {
        self.start(mirror, kind, |mirrors, mirror, open, progress| {
            mirrors.note(mirror, mirrors.round(mirror, open, progress))?;
            Ok(Some(api::JobOutcome::BucketMirror(Box::new(mirrors.show(mirror)))))
        })
    }

    /// Starts a job of a mirror, beside which no other one runs.
    fn start(
        self: &Arc<Self>,
        mirror: &Arc<BucketMirror>,
        kind: &'static str,
        work: impl FnOnce(
            &Self,
            &BucketMirror,
            &Arc<OpenVolume>,
            &Progress,
        ) -> Result<Option<api::JobOutcome>, ServerError>
        + Send
        + 'static,
    ) -> Result<api::Job, ServerError> {
        if self.ending.load(Ordering::Acquire) {
            return Err(ServerError::Ending);
        }
        let open = self.volumes.get(&mirror.volume)?;
        let name = mirror.name();
        {
            let next_ms = continuous::next_ms(&mirror.document.lock().when, self.now_ms());
            let mut live = mirror.live.lock();
            if live.running {
                return Err(ServerError::Busy { name, by: "an update runs" });
            }
            if live.retired {
                return Err(ServerError::Busy { name, by: "it is being deleted" });
            }
            (live.running, live.next_ms) = (true, next_ms);
        }
        let (mirrors, mine) = (self.clone(), mirror.clone());
        let run = move |progress: &Progress| {
            background::step_back();
            let running = Running(&mine);
            *mine.waiting.lock() = Some(progress.waiting().clone());
            {
                let mut live = mine.live.lock();
                live.cancel = Some(progress.cancel_flag().clone());
                if live.cancels || mirrors.ending.load(Ordering::Acquire) {
                    progress.cancel();
                }
            }
            let outcome = work(&mirrors, &mine, &open, progress);
            drop(running);
            // As it is without the round.
            let outcome = outcome.map(|brought| match brought {
                Some(api::JobOutcome::BucketMirror(_)) => {
                    Some(api::JobOutcome::BucketMirror(Box::new(mirrors.show(&mine))))
                }
                brought => brought,
            });
            // The next round may have been due meanwhile.
            mirrors.look();
            outcome
        };
        let started = self.jobs.start(kind, &name, run);
        if started.is_err() {
            drop(Running(mirror));
        }
        started
    }
}
