//! The mirrors of which this server is the destination: what they follow, their updates, their schedule, failover.
//!
//! What a mirror shows is in the volume alone, committed with the image. `mirror.json` says which source it follows and how
//! often; what it keeps of past updates is for people, and losing it loses nothing.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Clock, SnapshotId, Timestamp};
use cairn_mirror::{Client, Compression, Contact, Destination, Relationship, SourceStatus};
use cairn_volume::Role;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::api;
use crate::destination::{SourceAddress, SourceStream, connect};
use crate::error::ServerError;
use crate::identity::{Fingerprint, Identity};
use crate::jobs::{Jobs, Progress};
use crate::names;
use crate::peers::Credential;
use crate::server::Server;
use crate::source::is_silence;
use crate::state;
use crate::token::{Token, random_bytes};
use crate::transfer;
use crate::volumes::{NewVolume, OpenVolume, Volumes};

/// How often the schedule looks, at least: a clock that was set is noticed within it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often an idle mirror asks its source how far behind it is.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// How long a failover waits for the transfer that it cuts off.
const CUT_PATIENCE: Duration = Duration::from_secs(30);

/// What `mirror.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    address: String,
    fingerprint: Fingerprint,
    volume: String,
    /// Kept until the source has pinned this server.
    credential: Option<Credential>,
    every_ms: Option<u64>,
    /// Names this mirror to its source.
    relationship: u64,
    /// The last that was heard of the source.
    contact: Option<Heard>,
    sent_bytes: u64,
    updates: u64,
    last: Option<api::Transfer>,
}

/// A [`Contact`] as it is kept.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Heard {
    at_ns: u64,
    now_ns: u64,
    blocks: u64,
    used: u64,
    base: u64,
    base_taken_ns: Option<u64>,
    first_change_ns: Option<u64>,
    blocks_behind: u64,
}

impl From<Contact> for Heard {
    fn from(contact: Contact) -> Self {
        let status = contact.status;
        Self {
            at_ns: contact.at.0,
            now_ns: status.now.0,
            blocks: status.blocks,
            used: status.used,
            base: status.base.0,
            base_taken_ns: status.base_taken.map(|taken| taken.0),
            first_change_ns: status.first_change.map(|first| first.0),
            blocks_behind: status.blocks_behind,
        }
    }
}

impl From<Heard> for Contact {
    fn from(heard: Heard) -> Self {
        let status = SourceStatus {
            now: Timestamp(heard.now_ns),
            blocks: heard.blocks,
            used: heard.used,
            base: SnapshotId(heard.base),
            base_taken: heard.base_taken_ns.map(Timestamp),
            first_change: heard.first_change_ns.map(Timestamp),
            blocks_behind: heard.blocks_behind,
        };
        Contact { at: Timestamp(heard.at_ns), status }
    }
}

/// A mirror.
struct Relation {
    name: String,
    path: PathBuf,
    destination: Destination,
    document: Mutex<Document>,
    live: Mutex<Live>,
    /// When the last byte of a running update came, by the monotonic clock, in milliseconds.
    heard: AtomicU64,
    /// Something of `live` changed to not running.
    settled: Condvar,
}

#[derive(Default)]
struct Live {
    running: bool,
    /// The source is being asked how far behind this mirror is.
    asking: bool,
    asked: Option<Timestamp>,
    /// By which a running update can be cut off.
    socket: Option<TcpStream>,
    transfer: Option<api::Transfer>,
    problem: Option<api::ErrorBody>,
    next_ms: Option<u64>,
}

/// The mirrors of a server. Lock order: `relations`, `document`, `live`.
pub(crate) struct Mirrors {
    volumes: Arc<Volumes>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    jobs: Arc<Jobs>,
    /// How long a source may be silent in a transfer.
    patience: Duration,
    relations: Mutex<BTreeMap<String, Arc<Relation>>>,
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
            tracing::error!("the schedule had panicked");
        }
    }
}

impl Mirrors {
    /// The mirrors among `volumes`.
    pub(crate) fn open(
        volumes: Arc<Volumes>,
        identity: Arc<Identity>,
        clock: Arc<dyn Clock>,
        jobs: Arc<Jobs>,
        patience: Duration,
    ) -> Result<Self, ServerError> {
        let now_ms = now_ms(&*clock);
        let mut relations = BTreeMap::new();
        for open in volumes.all() {
            let path = volumes.folder(&open.name).join("mirror.json");
            let Some(document) = state::load::<Document>(&path)? else { continue };
            relations.insert(open.name.clone(), Arc::new(Relation::new(&open, path, document, now_ms)));
        }
        Ok(Self {
            volumes,
            identity,
            clock,
            jobs,
            patience,
            relations: Mutex::new(relations),
            ending: AtomicBool::new(false),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
        })
    }

    fn get(&self, name: &str) -> Result<Arc<Relation>, ServerError> {
        let known = self.relations.lock().get(name).cloned();
        known.ok_or_else(|| match self.volumes.get(name) {
            Ok(_) => ServerError::NotAMirror { volume: name.to_owned() },
            Err(error) => error,
        })
    }

    fn all(&self) -> Vec<Arc<Relation>> {
        self.relations.lock().values().cloned().collect()
    }

    /// Refuses to delete the volume of a mirror that still follows its source.
    pub(crate) fn refuse_if_followed(&self, name: &str) -> Result<(), ServerError> {
        match self.relations.lock().get(name) {
            Some(relation) if !relation.is_failed_over() => {
                Err(ServerError::FollowsSource { volume: name.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The volume goes, and what is known of its mirror with it.
    pub(crate) fn forget(&self, name: &str) {
        self.relations.lock().remove(name);
    }

    /// What is wrong with mirrors.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let problem = |relation: &Arc<Relation>| {
            let problem = relation.live.lock().problem.clone()?;
            Some(api::Problem {
                subject: relation.name.clone(),
                message: problem.message,
                next: problem.next,
            })
        };
        self.all().iter().filter_map(problem).collect()
    }

    /// Starts the thread that begins updates when they are due.
    pub(crate) fn start_schedule(self: &Arc<Self>) -> Result<Schedule, ServerError> {
        let mirrors = self.clone();
        let look = move || {
            while !mirrors.ending.load(Ordering::Acquire) {
                let now_ms = now_ms(&*mirrors.clock);
                for relation in mirrors.all() {
                    if relation.is_due(now_ms)
                        && let Err(error) = mirrors.begin(&relation, None, "mirror update")
                    {
                        tracing::warn!(mirror = relation.name, %error, "an update could not begin");
                    }
                    mirrors.ask_for_lag(&relation);
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

    fn until_next(&self, now_ms: u64) -> Duration {
        let next = |relation: Arc<Relation>| relation.live.lock().next_ms;
        let next = self.all().into_iter().filter_map(next).min();
        next.map_or(LOOK_EVERY, |next| {
            Duration::from_millis(next.saturating_sub(now_ms).max(1)).min(LOOK_EVERY)
        })
    }

    /// No update begins any more, and those that run are cut off.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        drop(self.asleep.lock());
        self.wake.notify_all();
        self.all().iter().for_each(|relation| relation.cut());
    }

    /// Begins an update, over a connection that is there already or a new one.
    fn begin(
        self: &Arc<Self>,
        relation: &Arc<Relation>,
        connected: Option<SourceStream>,
        kind: &'static str,
    ) -> Result<api::Job, ServerError> {
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: relation.name.clone() });
        }
        if self.ending.load(Ordering::Acquire) {
            return Err(ServerError::Ending);
        }
        let open = self.volumes.get(&relation.name)?;
        relation.claim(&*self.clock)?;
        let (mirrors, mine) = (self.clone(), relation.clone());
        let started = self.jobs.start(kind, &relation.name, move |progress| {
            let claim = Claim(&mine);
            let outcome = mirrors.update(&mine, &open, connected, progress);
            mirrors.note(&mine, &outcome);
            drop(claim);
            outcome.map(|()| Some(api::JobOutcome::Mirror(Box::new(mirrors.show(&mine)))))
        });
        if started.is_err() {
            relation.release();
        }
        started
    }

    /// Brings one image.
    fn update(
        &self,
        relation: &Relation,
        open: &Arc<OpenVolume>,
        connected: Option<SourceStream>,
        progress: &Progress,
    ) -> Result<(), ServerError> {
        progress.phase("connecting");
        let document = relation.document.lock().clone();
        let mut stream = match connected {
            Some(stream) => {
                relation.keep_socket(stream.sock.try_clone().ok());
                stream
            }
            None => connect(&self.identity, &document.source(), self.patience, |socket| {
                relation.keep_socket(Some(socket));
            })?,
        };
        if document.credential.is_some() {
            let mut document = relation.document.lock();
            document.credential = None;
            state::save(&relation.path, &*document)?;
        }
        let failed = |source| match is_silence(&source) {
            true => ServerError::Silent {
                peer: "source",
                address: document.address.clone(),
                patience: self.patience,
            },
            false => ServerError::Mirror { volume: relation.name.clone(), source: Box::new(source) },
        };
        let mut client = Client::hello(&mut stream).map_err(failed)?;
        let wanted = client.provision_info(&document.volume).map_err(failed)?;
        if wanted.id != open.volume.id() {
            return Err(ServerError::OtherVolume { volume: relation.name.clone() });
        }
        if wanted.blocks > open.volume.status().blocks {
            progress.phase("growing");
            open.grow(Some(wanted.blocks * BLOCK_SIZE as u64))?;
        }
        if progress.cancelled().load(Ordering::Relaxed) {
            return Err(ServerError::Ending);
        }
        let clock = &*self.clock;
        let began = clock.monotonic();
        let mut heard = Heedful { stream: &mut stream, heard: &relation.heard, clock };
        let outcome = transfer::fetch(&mut heard, &relation.destination, progress, &mut |seen| {
            let mut live = relation.live.lock();
            let transfer = live.transfer.get_or_insert_default();
            transfer.snapshot = Some(seen.snapshot);
            transfer.sent_bytes = seen.sent_bytes;
            transfer.changed_bytes = seen.changed_bytes;
            transfer.full_bytes = seen.full_bytes;
            transfer.up_to_date = seen.up_to_date;
            transfer.duration_ms = clock.monotonic().saturating_sub(began).as_millis() as u64;
        });
        stream.conn.send_close_notify();
        let _ = stream.flush();
        outcome.map_err(failed)
    }

    /// Asks the source how far behind the mirror is, on a thread of its own, when it was not heard of for a while.
    fn ask_for_lag(self: &Arc<Self>, relation: &Arc<Relation>) {
        let now = self.clock.now();
        let heard = relation.destination.contact().map(|contact| now.since(contact.at));
        {
            let mut live = relation.live.lock();
            let recent = heard.is_none_or(|heard| heard < ASK_EVERY);
            let asked = live.asked.is_some_and(|asked| now.since(asked) < ASK_EVERY);
            if recent || asked || live.running || live.asking || relation.is_failed_over() {
                return;
            }
            live.asking = true;
            live.asked = Some(now);
        }
        let (mirrors, mine) = (self.clone(), relation.clone());
        let ask = move || {
            let document = mine.document.lock().clone();
            let asked = connect(&mirrors.identity, &document.source(), mirrors.patience, |_| ()).and_then(
                |mut stream| {
                    let lag = Client::hello(&mut stream)
                        .and_then(|mut client| mine.destination.refresh(&mut client).map(drop));
                    // Or the source would take it for a connection that broke, and say so each time.
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                    lag.map_err(|source| ServerError::Mirror {
                        volume: mine.name.clone(),
                        source: Box::new(source),
                    })
                },
            );
            if let Err(error) = asked {
                tracing::debug!(mirror = mine.name, %error, "the source does not say how far behind the mirror is");
            }
            mine.live.lock().asking = false;
        };
        if std::thread::Builder::new().name("lag".to_owned()).spawn(ask).is_err() {
            relation.live.lock().asking = false;
        }
    }

    /// Notes how an update went.
    fn note(&self, relation: &Relation, outcome: &Result<(), ServerError>) {
        let mut document = relation.document.lock();
        let mut live = relation.live.lock();
        match outcome {
            Ok(()) => {
                live.problem = None;
                if let Some(transfer) = &mut live.transfer {
                    transfer.complete = true;
                    document.sent_bytes += transfer.sent_bytes;
                    document.updates += 1;
                }
            }
            Err(ServerError::Ending) => {}
            Err(error) => live.problem = Some(error.body()),
        }
        document.contact = relation.destination.contact().map(Heard::from);
        document.last = live.transfer.clone().or(document.last.take());
        if let Err(error) = state::save(&relation.path, &*document) {
            tracing::warn!(mirror = relation.name, %error, "what is known of the last update was not written down");
        }
    }

    fn show(&self, relation: &Relation) -> api::Mirror {
        let document = relation.document.lock().clone();
        let open = self.volumes.get(&relation.name).ok();
        let shown = open.as_ref().and_then(|open| image_of(open));
        let live = relation.live.lock();
        let state = if relation.is_failed_over() {
            api::MirrorState::FailedOver
        } else if live.running && shown.is_some() {
            api::MirrorState::Transferring
        } else if live.problem.is_some() {
            api::MirrorState::Failing
        } else if shown.is_none() {
            api::MirrorState::Baseline
        } else {
            api::MirrorState::Idle
        };
        let image_ms = shown.as_ref().map(|shown| shown.created.0 / 1_000_000);
        let lag = relation.destination.lag().filter(|_| state != api::MirrorState::FailedOver);
        api::Mirror {
            lag_ms: lag.map(|lag| millis(lag.age)),
            lag_bytes: lag.map(|lag| lag.bytes),
            silent_ms: lag.map(|lag| millis(lag.silent)),
            quiet_ms: live.running.then(|| relation.quiet_ms(&*self.clock)),
            name: relation.name.clone(),
            state,
            source_address: document.address,
            source_volume: document.volume,
            every_ms: document.every_ms,
            image: shown.map(|shown| shown.name),
            image_ms,
            image_age_ms: image_ms.map(|image_ms| now_ms(&*self.clock).saturating_sub(image_ms)),
            last: live.transfer.clone().or(document.last),
            next_ms: live.next_ms.filter(|_| state != api::MirrorState::FailedOver),
            sent_bytes: document.sent_bytes,
            updates: document.updates,
            problem: live.problem.clone(),
        }
    }
}

/// The snapshot that a destination shows; after a failover, the one that it showed.
fn image_of(open: &OpenVolume) -> Option<cairn_volume::Snapshot> {
    match open.volume.status().cursor.snapshot {
        SnapshotId(0) => None,
        id => open.volume.snapshot(id),
    }
}

fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}

fn now_ms(clock: &dyn Clock) -> u64 {
    clock.now().0 / 1_000_000
}

impl Document {
    fn source(&self) -> SourceAddress<'_> {
        SourceAddress {
            address: &self.address,
            fingerprint: self.fingerprint,
            volume: &self.volume,
            credential: self.credential.as_ref(),
        }
    }
}

/// The stream to a source, which notes when bytes come.
struct Heedful<'a, S> {
    stream: &'a mut S,
    heard: &'a AtomicU64,
    clock: &'a dyn Clock,
}

impl<S: Read> Read for Heedful<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.heard.store(millis(self.clock.monotonic()), Ordering::Relaxed);
        Ok(count)
    }
}

impl<S: Write> Write for Heedful<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A running update; it is over when this goes, however it ended.
struct Claim<'a>(&'a Relation);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Relation {
    fn new(open: &OpenVolume, path: PathBuf, document: Document, now_ms: u64) -> Self {
        // Runs that were missed while the server was away are one run now.
        let next_ms = document
            .every_ms
            .map(|every| document.last.as_ref().map_or(now_ms, |last| (last.started_ms + every).max(now_ms)));
        let destination = Destination::new(
            open.volume.clone(),
            &document.volume,
            Relationship(document.relationship),
            Compression::None,
            document.contact.map(Contact::from),
        );
        Self {
            name: open.name.clone(),
            path,
            destination,
            document: Mutex::new(document),
            live: Mutex::new(Live { next_ms, ..Live::default() }),
            heard: AtomicU64::new(0),
            settled: Condvar::new(),
        }
    }

    /// The role in the volume decides.
    fn is_failed_over(&self) -> bool {
        self.destination.volume().status().role == Role::Normal
    }

    fn is_due(&self, now_ms: u64) -> bool {
        let live = self.live.lock();
        !self.is_failed_over() && !live.running && live.next_ms.is_some_and(|next| next <= now_ms)
    }

    /// For how long nothing has come in the running update.
    fn quiet_ms(&self, clock: &dyn Clock) -> u64 {
        millis(clock.monotonic()).saturating_sub(self.heard.load(Ordering::Relaxed))
    }

    /// Marks an update as running; the next one is counted from here.
    fn claim(&self, clock: &dyn Clock) -> Result<(), ServerError> {
        let now_ms = now_ms(clock);
        self.heard.store(millis(clock.monotonic()), Ordering::Relaxed);
        let every = self.document.lock().every_ms;
        let mut live = self.live.lock();
        if live.running {
            return Err(ServerError::Busy { name: self.name.clone(), by: "an update runs" });
        }
        live.running = true;
        live.transfer = Some(api::Transfer { started_ms: now_ms, ..api::Transfer::default() });
        live.next_ms = every.map(|every| now_ms.saturating_add(every));
        Ok(())
    }

    fn release(&self) {
        let mut live = self.live.lock();
        live.running = false;
        live.socket = None;
        self.settled.notify_all();
    }

    fn keep_socket(&self, socket: Option<TcpStream>) {
        self.live.lock().socket = socket;
    }

    /// Cuts off a running update; the last image stays.
    fn cut(&self) {
        if let Some(socket) = &self.live.lock().socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Cuts off a running update and waits until it is over.
    fn settle(&self) -> Result<(), ServerError> {
        self.cut();
        let mut live = self.live.lock();
        while live.running {
            if self.settled.wait_for(&mut live, CUT_PATIENCE).timed_out() {
                return Err(ServerError::Busy { name: self.name.clone(), by: "an update does not end" });
            }
        }
        Ok(())
    }
}

impl Server {
    pub(crate) fn list_mirrors(&self) -> Vec<api::Mirror> {
        self.mirrors.all().iter().map(|relation| self.mirrors.show(relation)).collect()
    }

    pub(crate) fn show_mirror(&self, name: &str) -> Result<api::Mirror, ServerError> {
        Ok(self.mirrors.show(&*self.mirrors.get(name)?))
    }

    pub(crate) fn create_mirror(&self, request: api::CreateMirror) -> Result<api::Job, ServerError> {
        let mirrors = &self.mirrors;
        let name = request.name.as_deref().unwrap_or(&request.volume);
        names::check("volume", name)?;
        names::check("volume", &request.volume)?;
        let token = Token::decode(&request.token)?;
        if request.every_ms == Some(0) {
            return Err(ServerError::Invalid { what: "the interval", rule: "it is above 0" });
        }
        // Everything that can be refused here is, before the token is used.
        if token.volume.as_deref().is_some_and(|only| only != request.volume) {
            return Err(ServerError::VolumeNotAllowed { volume: request.volume });
        }
        if !matches!(self.volumes.get(name), Err(ServerError::NotFound { .. })) {
            return Err(ServerError::DestinationTaken { volume: name.to_owned() });
        }
        let document = Document {
            address: token.address,
            fingerprint: token.fingerprint,
            volume: request.volume.clone(),
            credential: Some(Credential { id: token.id, secret: token.secret }),
            every_ms: request.every_ms,
            relationship: u64::from_le_bytes(random_bytes()),
            contact: None,
            sent_bytes: 0,
            updates: 0,
            last: None,
        };
        let mut stream = connect(&self.identity, &document.source(), mirrors.patience, |_| ())?;
        let wanted = Client::hello(&mut stream)
            .and_then(|mut client| client.provision_info(&request.volume))
            .map_err(|source| ServerError::Mirror { volume: name.to_owned(), source: Box::new(source) })?;
        let new = NewVolume {
            name,
            id: wanted.id,
            role: Role::Destination,
            blocks: Some(wanted.blocks),
            devices: &request.devices,
            log_device: None,
        };
        let open = self.volumes.create(&new)?;
        let path = self.volumes.folder(name).join("mirror.json");
        state::save(&path, &document)?;
        let relation = Arc::new(Relation::new(&open, path, document, now_ms(&*self.clock)));
        // The baseline is begun before the schedule can see the mirror.
        let job = mirrors.begin(&relation, Some(stream), "mirror create");
        mirrors.relations.lock().insert(name.to_owned(), relation);
        tracing::info!(mirror = name, source = request.volume, "made a mirror");
        job
    }

    pub(crate) fn update_mirror(&self, name: &str) -> Result<api::Job, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.begin(&relation, None, "mirror update")
    }

    pub(crate) fn failover(&self, name: &str, dry_run: bool) -> Result<api::Failover, ServerError> {
        let relation = self.mirrors.get(name)?;
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: name.to_owned() });
        }
        let open = self.volumes.get(name)?;
        let shown = image_of(&open);
        if shown.is_none() {
            return Err(ServerError::NoImage { volume: name.to_owned() });
        }
        let loss = if dry_run {
            relation.destination.loss()
        } else {
            relation.settle()?;
            let failed = |source| ServerError::Mirror { volume: name.to_owned(), source: Box::new(source) };
            let loss = relation.destination.failover().map_err(failed)?;
            tracing::warn!(mirror = name, image = loss.image_name, "failed over: the volume takes writes");
            loss
        };
        let unfinished = relation.live.lock().transfer.clone().filter(|transfer| !transfer.complete);
        let at_most = loss.age_at_most();
        let since_image = self.clock.now().since(loss.image_taken);
        Ok(api::Failover {
            name: name.to_owned(),
            image: Some(loss.image_name),
            image_ms: Some(loss.image_taken.0 / 1_000_000),
            lost_ms: Some(millis(at_most.unwrap_or(since_image))),
            lost_bytes: loss.bytes_known,
            silent_ms: loss.silent.map(millis),
            discarded_bytes: unfinished.map_or(0, |transfer| transfer.sent_bytes),
            dry_run,
        })
    }

    pub(crate) fn delete_mirror(&self, name: &str) -> Result<(), ServerError> {
        let relation = self.mirrors.get(name)?;
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: name.to_owned() });
        }
        self.refuse_if_in_use(name, |export| export.volume == name)?;
        relation.settle()?;
        self.volumes.delete(name)?;
        self.mirrors.forget(name);
        Ok(())
    }
}
