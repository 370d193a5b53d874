//! The mirrors of which this server is the destination: their sources, updates, schedules, and
//! failover.
//!
//! The visible image of a mirror is only in the volume, committed with the image. `mirror.json`
//! names the source and the schedule; its records of past updates are informational, and can be
//! lost.

use std::collections::BTreeMap;
use std::io;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, Clock, SnapshotId};
use cairn_mirror::{Client, Hop, MirrorError, Refusal, Route};
use parking_lot::{Condvar, Mutex};

use crate::devices::Devices;
use crate::error::ServerError;
use crate::exports::access::Access;
use crate::groups::Groups;
use crate::mirrors::document::{Change, Manner, MirrorDocument, millis, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::peers::Peers;
use crate::peers::error::PeersError;
use crate::peers::identity::Identity;
use crate::peers::outbound::{SourceStream, connect, hang_up};
use crate::peers::stall::{is_silence, set_patience};
use crate::state;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;
use crate::work::background;
use crate::work::jobs::{Jobs, Progress};

mod allowing;
mod apart;
pub(crate) mod bucket;
mod closed;
mod commands;
mod consent;
mod continuous;
pub(crate) mod document;
pub(crate) mod drills;
pub(crate) mod error;
mod facing;
pub(crate) mod followers;
mod following;
mod giving;
pub(crate) mod governor;
mod group_roles;
mod guards;
mod lags;
pub(crate) mod limits;
mod locks;
mod offered;
mod relation;
mod rewind;
pub(crate) mod role_error;
mod roles;
pub(crate) mod serving;
mod show;
mod spread;
pub(crate) mod transfer;
mod unchecked;
mod unread;
mod verify;
mod when;

pub(crate) use consent::Consent;
use consent::Consents;
pub(crate) use giving::Asker;
use relation::{Asking, Claim, Live, Relation};
use spread::Spread;

/// How often the schedule looks, at least: a clock that was set is noticed within it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which an idle mirror queries its source for the lag.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// Interval at which a side that took over tries to notify the other one. If the other side comes
/// back, it accepts writes until it is notified.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Retry interval at which a side that gave its role away requests an image, while the other one
/// has not taken the role.
const HEIR_AGAIN: Duration = Duration::from_secs(3);

/// The mirrors of a server. Lock order: `relations`, `document`, `live`.
pub(crate) struct Mirrors {
    volumes: Arc<Volumes>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    jobs: Arc<Jobs>,
    peers: Arc<Peers>,
    /// The groups, which determine the visible image of mirrors that belong together.
    groups: Arc<Groups>,
    /// The mirrors of volumes here.
    source: Arc<cairn_mirror::Source>,
    /// Access to the exports of mirrors.
    access: Arc<Access>,
    /// Devices on volumes that may be about to follow.
    devices: Arc<Devices>,
    /// Where mirrors reach this server: `HOST:PORT`, or `:PORT` when it does not know its name;
    /// empty when they don't.
    address: String,
    /// Ends the sessions that clients have with a volume.
    closes: OnceLock<Closes>,
    /// And those with a LUN, of its present or past.
    closes_disks: OnceLock<Closes>,
    /// Has mounts of a mirror show its newest image.
    follows: OnceLock<Follows>,
    /// Listens for mirrors where a source can reach this server; unset if the owner has configured
    /// an address.
    opens: OnceLock<Opens>,
    /// The addresses opened so far.
    opened: Mutex<Vec<SocketAddr>>,
    /// Volumes that their mirrors may take over.
    consents: Consents,
    /// How long a source may be silent in a transfer.
    patience: Duration,
    relations: Mutex<BTreeMap<String, Arc<Relation>>>,
    /// Volumes whose source is unknown. Their roles are known: the volume has them.
    unread: Mutex<BTreeMap<String, Unread>>,
    /// Relations that are not saved yet, while they are in use: all callers share one relation, on
    /// which one job runs at a time.
    pending: Mutex<BTreeMap<String, Weak<Relation>>>,
    ending: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

/// Ends the sessions with the active state of a volume, or with a LUN; how many there were.
type Closes = Box<dyn Fn(&str) -> usize + Send + Sync>;

/// Has the mounts of a mirror show its newest image.
type Follows = Box<dyn Fn(&str) + Send + Sync>;

/// The parts of the server that mirrors need.
pub(crate) struct Surroundings {
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) source: Arc<cairn_mirror::Source>,
    pub(crate) access: Arc<Access>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) address: String,
    pub(crate) patience: Duration,
}

/// The schedule's thread; it ends when this goes.
pub(crate) struct Schedule(Option<JoinHandle<()>>);

impl Drop for Schedule {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("the schedule had panicked");
        }
    }
}

impl Mirrors {
    /// The mirrors among `volumes`.
    pub(crate) fn open(around: Surroundings) -> Result<Self, ServerError> {
        let Surroundings { volumes, identity, clock, jobs, peers, groups, source, .. } = around;
        let Surroundings { access, devices, address, patience, .. } = around;
        let mirrors = Self {
            volumes,
            identity,
            clock,
            jobs,
            peers,
            groups,
            source,
            access,
            devices,
            address,
            closes: OnceLock::new(),
            closes_disks: OnceLock::new(),
            follows: OnceLock::new(),
            opens: OnceLock::new(),
            opened: Mutex::default(),
            consents: Consents::default(),
            patience,
            relations: Mutex::default(),
            unread: Mutex::default(),
            pending: Mutex::default(),
            ending: AtomicBool::new(false),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
        };
        mirrors.volumes.all().iter().for_each(|open| mirrors.take_in(open));
        Ok(mirrors)
    }

    /// Resumes the mirror on a volume, if there is one. If its document can't be read, it neither
    /// receives images nor gives its role away, and the volume keeps its role.
    pub(crate) fn take_in(&self, open: &Arc<OpenVolume>) {
        let folder = self.volumes.folder(&open.name);
        self.consents.recall(&open.name, &folder, open.is_destination());
        let path = folder.join("mirror.json");
        let (document, unread) = state::known::<MirrorDocument>(&path);
        let mut unknown = self.unread.lock();
        match unread {
            Some(unread) => unknown.insert(open.name.clone(), unread),
            None => unknown.remove(&open.name),
        };
        drop(unknown);
        if let Some(mut document) = document {
            // A document that still follows, beside a writable volume, is an older one that was
            // restored: the other side may not know of the failover.
            if !open.is_destination() && document.change.is_none() {
                document.change = Some(self.changed(Change::Failover));
            }
            let relation = Relation::new(open, path, document, now_ms(&*self.clock));
            self.relations.lock().entry(open.name.clone()).or_insert_with(|| Arc::new(relation));
        }
    }

    /// How the sessions with a volume are ended, and those with one LUN.
    pub(crate) fn close_with(&self, closes: Closes, closes_disks: Closes) {
        let _ = self.closes.set(closes);
        let _ = self.closes_disks.set(closes_disks);
    }

    /// How the mounts of a mirror move on to its newest image.
    pub(crate) fn follow_with(&self, follows: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.follows.set(Box::new(follows));
    }

    /// Runs before a new image is reported, so that it is visible by then.
    fn follow_image(&self, name: &str) {
        if let Some(follow) = self.follows.get() {
            follow(name);
        }
    }

    fn close_sessions(&self, name: &str) -> usize {
        self.closes.get().map_or(0, |close| close(name))
    }

    fn close_disk(&self, export: &str) -> usize {
        self.closes_disks.get().map_or(0, |close| close(export))
    }

    fn get(&self, name: &str) -> Result<Arc<Relation>, ServerError> {
        self.check_known(name)?;
        let known = self.relations.lock().get(name).cloned();
        known.ok_or_else(|| match self.volumes.get(name) {
            Ok(_) => ServerError::Mirrors(MirrorsError::NotAMirror { volume: name.to_owned() }),
            Err(error) => error,
        })
    }

    fn all(&self) -> Vec<Arc<Relation>> {
        self.relations.lock().values().cloned().collect()
    }

    /// The lag of a volume behind its source; none if it has no source.
    pub(crate) fn upstream_lag(&self, name: &str) -> Option<cairn_mirror::Lag> {
        let relation = self.relations.lock().get(name).cloned()?;
        if relation.is_failed_over() { None } else { relation.destination.lag() }
    }

    /// The volumes through which the data of a volume came, itself first.
    pub(crate) fn route(&self, name: &str) -> Route {
        let own = self.hop(name);
        let relation = self.relations.lock().get(name).cloned().filter(|relation| !relation.is_failed_over());
        relation.map_or(Route::through(own, Route::default()), |relation| relation.destination.route(own))
    }

    /// The name of a volume in that list.
    fn hop(&self, name: &str) -> Hop {
        Hop::of(String::from(self.identity.fingerprint).as_bytes(), name)
    }

    /// Refuses to delete the volume of a mirror that still follows its source.
    pub(crate) fn refuse_if_followed(&self, name: &str) -> Result<(), ServerError> {
        if self.volumes.get(name).is_ok_and(|open| open.is_destination()) {
            self.check_known(name)?;
        }
        match self.relations.lock().get(name) {
            Some(relation) if !relation.is_failed_over() => {
                Err(ServerError::Mirrors(MirrorsError::FollowsSource { volume: name.to_owned() }))
            }
            _ => Ok(()),
        }
    }

    /// The volume is deleted, and with it the state of its mirror.
    pub(crate) fn forget(&self, name: &str) {
        // Dropped without the lock: it may hold the last reference to the volume.
        let known = self.relations.lock().remove(name);
        if let Some(relation) = known {
            // Its running jobs save nothing any more: another mirror can have its name and its
            // place.
            relation.retire();
        }
        self.unread.lock().remove(name);
        self.consents.forget(name);
    }

    /// The problems of mirrors.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let problem = |relation: &Arc<Relation>| {
            let shown = self.show(relation);
            let next = shown.remedy.filter(|_| shown.check > 0)?;
            let message = shown.problem.map_or(shown.reason, |problem| problem.message);
            Some(api::Problem { subject: shown.name, message, next })
        };
        let mut problems: Vec<api::Problem> = self.all().iter().filter_map(problem).collect();
        problems.extend(self.clock_problems());
        problems
    }

    /// Starts the thread that begins updates when they are due.
    pub(crate) fn start_schedule(self: &Arc<Self>) -> Result<Schedule, ServerError> {
        let mirrors = self.clone();
        let look = move || {
            let mut looked_ms = 0;
            while !mirrors.ending.load(Ordering::Acquire) {
                let now_ms = now_ms(&*mirrors.clock);
                let put_back = now_ms < looked_ms;
                if put_back {
                    let by_ms = looked_ms - now_ms;
                    tracing::warn!(by_ms, "the clock was set back: mirrors are planned from now");
                }
                looked_ms = now_ms;
                for relation in mirrors.all() {
                    if put_back {
                        relation.plan_again(now_ms);
                    }
                    relation.set_pace(now_ms);
                    // Which group it is in may not be known: its images wait.
                    if relation.is_due(now_ms)
                        && mirrors.groups.check_known_of(&relation.name).is_ok()
                        && let Err(error) = mirrors.begin_due(&relation)
                    {
                        tracing::warn!(mirror = relation.name, %error, "an update could not begin");
                    }
                    mirrors.ask_for_lag(&relation);
                    mirrors.ask_for_access(&relation);
                    mirrors.tell_of_failover(&relation);
                    mirrors.ask_for_heir(&relation);
                    mirrors.note_locks(&relation);
                    mirrors.note_lag(&relation);
                }
                let mut asleep = mirrors.asleep.lock();
                if !mirrors.ending.load(Ordering::Acquire) {
                    mirrors.wake.wait_for(&mut asleep, mirrors.until_next(now_ms));
                }
            }
        };
        let thread = std::thread::Builder::new().name("schedule".to_owned()).spawn(look);
        let thread = thread.map_err(|source| ServerError::Thread { what: "the schedule", source })?;
        Ok(Schedule(Some(thread)))
    }

    /// Wakes the schedule.
    fn look(&self) {
        drop(self.asleep.lock());
        self.wake.notify_all();
    }

    fn until_next(&self, now_ms: u64) -> Duration {
        let next = |relation: Arc<Relation>| relation.live.lock().next_ms;
        when::rest(self.all().into_iter().filter_map(next), now_ms).min(LOOK_EVERY)
    }

    /// Cancels running transfers into these volumes, and waits for their end. The schedule begins
    /// the next ones.
    pub(crate) fn settle(&self, volumes: &[String]) -> Result<(), ServerError> {
        let known = self.relations.lock().clone();
        let concerned: Vec<&Arc<Relation>> = volumes.iter().filter_map(|volume| known.get(volume)).collect();
        concerned.iter().for_each(|relation| relation.cut());
        concerned.iter().try_for_each(|relation| relation.settle())
    }

    /// No update begins any more, and those that run are cut off.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        drop(self.asleep.lock());
        self.wake.notify_all();
        self.all().iter().for_each(|relation| relation.cut());
        self.all().iter().for_each(|relation| self.save_locks(relation));
    }

    /// Begins an update, over an existing connection or a new one.
    fn begin(
        self: &Arc<Self>,
        relation: &Arc<Relation>,
        connected: Option<SourceStream>,
        kind: &'static str,
        manner: Manner,
    ) -> Result<api::Job, ServerError> {
        self.refuse_taking_writes(relation)?;
        relation.refuse_if_paused()?;
        relation.refuse_without_source()?;
        self.groups.check_known_of(&relation.name)?;
        // It may have been paused since: the pause command finds it running, and waits until it
        // stops.
        self.start(relation, kind, Relation::refuse_if_paused, move |mirrors, relation, open, progress| {
            background::step_back();
            mirrors.update(relation, open, connected, progress, manner)
        })
    }

    /// Starts a job of a mirror, which has it claimed while it works. `check` runs once it is
    /// claimed.
    fn start(
        self: &Arc<Self>,
        relation: &Arc<Relation>,
        kind: &'static str,
        check: impl FnOnce(&Relation) -> Result<(), ServerError>,
        work: impl FnOnce(&Self, &Arc<Relation>, &Arc<OpenVolume>, &Progress) -> Result<(), ServerError>
        + Send
        + 'static,
    ) -> Result<api::Job, ServerError> {
        if self.ending.load(Ordering::Acquire) {
            return Err(ServerError::Ending);
        }
        let open = self.volumes.get(&relation.name)?;
        relation.interrupt()?;
        relation.claim(&*self.clock)?;
        let (mirrors, mine) = (self.clone(), relation.clone());
        let run = move |progress: &Progress| {
            let claim = Claim(&mine);
            let outcome = work(&mirrors, &mine, &open, progress);
            mirrors.note(&mine, &outcome);
            drop(claim);
            mirrors.follow_image(&mine.name);
            // The next run may have been due meanwhile.
            mirrors.look();
            outcome
                .map_err(|error| mine.as_aborted(error))
                .map(|()| Some(api::JobOutcome::Mirror(Box::new(mirrors.show(&mine)))))
        };
        let started = check(relation).and_then(|()| self.jobs.start(kind, &relation.name, run));
        if started.is_err() {
            relation.release();
        }
        started
    }

    /// The stream to the source for an update, which an abort can shut down.
    fn reach(
        &self,
        relation: &Relation,
        document: &MirrorDocument,
        connected: Option<SourceStream>,
    ) -> Result<SourceStream, ServerError> {
        let stream = match connected {
            Some(stream) => {
                let sockets = stream.lanes().iter().filter_map(|lane| lane.sock.get_ref().try_clone().ok());
                sockets.for_each(|socket| relation.keep_socket(socket));
                stream
            }
            None => connect(&self.identity, &document.link(), document.stall(self.patience), &|socket| {
                relation.keep_socket(socket);
            })?,
        };
        self.face(relation, &stream);
        if document.credential.is_some() {
            let mut document = relation.document.lock();
            document.credential = None;
            relation.save(&document)?;
        }
        Ok(stream)
    }

    /// Transfers one image.
    fn update(
        &self,
        relation: &Relation,
        open: &Arc<OpenVolume>,
        connected: Option<SourceStream>,
        progress: &Progress,
        manner: Manner,
    ) -> Result<(), ServerError> {
        progress.phase("connecting");
        let document = relation.document.lock().clone();
        document.refuse_unseen(&relation.name)?;
        let patience = document.stall(self.patience);
        let mut stream = self.reach(relation, &document, connected)?;
        let failed = |source| match is_silence(&source) {
            true => ServerError::Peers(PeersError::Silent {
                peer: "source",
                address: document.address.clone(),
                patience,
            }),
            false => ServerError::Mirrors(MirrorsError::Mirror {
                volume: relation.name.clone(),
                source: Box::new(source),
            }),
        };
        let mut client = Client::hello(&mut stream).map_err(failed)?;
        let wanted = client.provision_info(&document.volume).map_err(failed)?;
        if wanted.id != open.volume.id() {
            return Err(ServerError::Mirrors(MirrorsError::OtherVolume { volume: relation.name.clone() }));
        }
        if wanted.blocks > open.volume.status().blocks {
            progress.phase("growing");
            open.grow(Some(wanted.blocks * BLOCK_SIZE as u64))?;
        }
        if !relation.has_image() {
            self.hear_access_first(relation)?;
        }
        if progress.cancelled().load(Ordering::Relaxed) {
            return Err(ServerError::Ending);
        }
        relation.take_wishes(manner.hold);
        relation.destination.know_hop(self.hop(&relation.name));
        relation.destination.set_relay(self.source.clone());
        relation.destination.set_keeper(self.groups.keeper(&relation.name));
        relation.set_pace(now_ms(&*self.clock));
        let cut = |source| {
            ServerError::Peers(PeersError::Unreachable { address: document.address.clone(), source })
        };
        for lane in stream.lanes_mut() {
            set_patience(&mut lane.sock, patience).map_err(cut)?;
        }
        let clock = &*self.clock;
        let began = clock.monotonic();
        let spread = manner.within.map(|within| Spread { began, within });
        let trickle = |seen: &transfer::Seen| {
            let has_time = spread.filter(|_| !relation.hurry.load(Ordering::Acquire));
            has_time.and_then(|spread| spread.rate(clock.monotonic(), seen))
        };
        relation.trickle.set(trickle(&transfer::Seen::default()));
        // An image whose mark was not set because of a crash.
        open.mark_image();
        let mut heard = Heedful { stream: &mut stream, relation, clock };
        let fetch = transfer::Fetch {
            destination: &relation.destination,
            progress,
            cancel: &relation.abort,
            compare: manner.compare,
        };
        let mut outcome = fetch.run(&mut heard, &mut |seen| {
            relation.trickle.set(trickle(&seen));
            let mut live = relation.live.lock();
            let transfer = live.transfer.get_or_insert_default();
            transfer.snapshot = Some(seen.snapshot);
            transfer.sent_bytes = seen.sent_bytes;
            transfer.changed_bytes = seen.changed_bytes;
            transfer.full_bytes = seen.full_bytes;
            transfer.kept_bytes = seen.kept_bytes;
            transfer.wasted_bytes = seen.wasted_bytes;
            transfer.up_to_date = seen.up_to_date;
            transfer.duration_ms = clock.monotonic().saturating_sub(began).as_millis() as u64;
        });
        relation.trickle.set(None);
        if outcome.is_ok() {
            relation.live.lock().compared += u64::from(manner.compare);
            open.mark_image();
            if let Ok(mut client) = Client::hello(&mut stream) {
                self.mend(relation, &mut client);
            }
        }
        if outcome.is_ok() && manner.follows {
            self.note(relation, &Ok(()));
            progress.phase("following");
            outcome = self.follow(relation, &mut Heedful { stream: &mut stream, relation, clock });
        }
        hang_up(&mut stream);
        outcome.map_err(failed)
    }

    /// Queries the source for the lag, on a thread of its own, if there was no contact for a while.
    fn ask_for_lag(self: &Arc<Self>, relation: &Arc<Relation>) {
        let now = self.clock.monotonic();
        let heard = relation.destination.silence();
        // Checked before `live` is locked: it locks the document.
        let nobody = relation.is_failed_over() || relation.refuse_without_source().is_err();
        {
            let mut live = relation.live.lock();
            // Damaged blocks are requested regardless of recent contacts.
            let damaged = !relation.destination.volume().damaged().is_empty();
            // A rewound mirror has an image, and does not know its lag yet.
            let recent = heard.map_or_else(|| !relation.has_image(), |heard| heard < ASK_EVERY) && !damaged;
            let asked = live.asked.is_some_and(|asked| now.saturating_sub(asked) < ASK_EVERY);
            if recent || asked || live.running || live.asking || nobody {
                return;
            }
            live.asking = true;
            live.asked = Some(now);
        }
        let asking = Asking::of(relation);
        let (mirrors, mine) = (self.clone(), relation.clone());
        let ask = move || {
            let _asking = asking;
            let document = mine.document.lock().clone();
            let patience = document.stall(mirrors.patience);
            let asked =
                connect(&mirrors.identity, &document.source(), patience, &|_| ()).and_then(|mut stream| {
                    let lag = Client::hello(&mut stream).and_then(|mut client| {
                        mine.destination.refresh(&mut client)?;
                        mirrors.mend(&mine, &mut client);
                        Ok(())
                    });
                    hang_up(&mut stream);
                    lag.map_err(|source| {
                        ServerError::Mirrors(MirrorsError::Mirror {
                            volume: mine.name.clone(),
                            source: Box::new(source),
                        })
                    })
                });
            if let Err(error) = &asked {
                tracing::debug!(mirror = mine.name, %error, "the source does not report the lag of the mirror");
            }
            let mut live = mine.live.lock();
            live.unanswered = asked.err().map(|error| error.body());
            // After a source that counts for long, the next query still waits the full interval.
            live.asked = live.asked.map(|_| mirrors.clock.monotonic());
        };
        // Without a thread the source is queried later.
        let _ = std::thread::Builder::new().name("lag".to_owned()).spawn(ask);
    }

    /// Notes how an update went.
    fn note(&self, relation: &Relation, outcome: &Result<(), ServerError>) {
        let mut document = relation.document.lock();
        let mut live = relation.live.lock();
        match outcome {
            Ok(()) => {
                live.problem = None;
                live.unanswered = None;
                if let Some(transfer) = live.transfer.as_mut().filter(|transfer| !transfer.complete) {
                    transfer.complete = true;
                    document.sent_bytes += transfer.sent_bytes;
                    document.updates += 1;
                }
            }
            Err(ServerError::Ending) => {}
            // It was aborted on request: an earlier problem, if any, remains.
            Err(_) if relation.abort.load(Ordering::Acquire) => {}
            // It has given its role away, and the other side takes it in a moment, or after a
            // repeated command: `handed-over` reports that.
            Err(error) if is_circle(error) && relation.destination.volume().own_head().is_some() => {
                let soon_ms = now_ms(&*self.clock).saturating_add(millis(HEIR_AGAIN));
                live.next_ms = live.next_ms.map(|next| next.min(soon_ms));
            }
            Err(error) => {
                let body = error.body();
                if body.error == api::ErrorKind::Diverged {
                    // The remedy depends on whether the other side is writable.
                    live.asked = None;
                }
                live.problem = Some(body);
            }
        }
        document.heard(&relation.destination);
        document.last = live.transfer.clone().or(document.last.take());
        if let Err(error) = relation.save_known(&document) {
            tracing::warn!(mirror = relation.name, %error, "could not save the state of the last update");
        }
    }
}

/// Whether the other side gave no image as it follows this one.
fn is_circle(error: &ServerError) -> bool {
    let ServerError::Mirrors(MirrorsError::Mirror { source, .. }) = error else { return false };
    matches!(**source, MirrorError::Refused(Refusal::Circle))
}

/// The snapshot that a destination shows; after a failover, the last one that it showed.
fn image_of(open: &OpenVolume) -> Option<cairn_volume::Snapshot> {
    match open.volume.status().cursor.snapshot {
        SnapshotId(0) => None,
        id => open.volume.snapshot(id),
    }
}

/// The stream to a source, which notes when bytes move, and keeps the mirror's pace.
struct Heedful<'a, S> {
    stream: &'a mut S,
    relation: &'a Relation,
    clock: &'a dyn Clock,
}

impl<S> Heedful<'_, S> {
    fn moved(&self) {
        self.relation.heard.store(millis(self.clock.monotonic()), Ordering::Relaxed);
    }
}

impl<S: Read> Read for Heedful<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.moved();
        for pace in [&self.relation.pace, &self.relation.trickle] {
            pace.pay(count, self.clock, &mut |rest| {
                std::thread::sleep(rest);
                self.moved();
                !self.relation.abort.load(Ordering::Acquire)
            });
        }
        Ok(count)
    }
}

impl<S: Write> Write for Heedful<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(bytes)?;
        self.moved();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Listens at an address as well; `None` if no listener is needed.
pub(super) type Opens = Box<dyn Fn(IpAddr) -> std::io::Result<Option<SocketAddr>> + Send + Sync>;

#[cfg(test)]
mod tests;
