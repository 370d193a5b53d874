//! The destination's side of a relationship: brings the newest image, knows its lag, fails over.

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Timestamp};
use cairn_format::Role;
use cairn_format::stream::root_digest;
use cairn_stream::{Compression, MIRROR_PREFIX, Threads};
use cairn_volume::{Receiver, Snapshot, Volume};

use crate::births::{Birth, Births, Locked};
use crate::client::Client;
use crate::error::{MirrorError, Refusal};
use crate::keeper::{Keeper, Settles};
use crate::lag::{Contact, Lag, Loss, SourceStatus};
use crate::locks::Mutex;
use crate::message::{Stance, StatusOf, claims_bytes};
use crate::relationship::Relationship;
use crate::route::{Hop, Route};
use crate::source::Source;

mod transfer;

/// How a destination is.
#[derive(Debug, Clone)]
pub enum DestinationState {
    /// No image has arrived.
    Uninitialized,
    /// The first image is being transferred.
    TransferringBaseline,
    /// It shows an image and waits.
    Idle,
    /// It shows an image, and the next is being transferred.
    Updating,
    /// The last transfer failed; the previous image is still shown. The next update retries.
    Failed(MirrorError),
    /// It shows its own writes from before it became a destination: handed over, or to be given up.
    OwnHead,
    /// It takes writes, and follows no source.
    FailedOver,
}

/// The kind of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// Everything was sent.
    Baseline,
    /// Only changes were sent.
    Update,
    /// Nothing had changed, nothing was sent.
    UpToDate,
}

/// How far a transfer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferProgress {
    /// The name of the snapshot that it brings.
    pub snapshot: String,
    /// Blocks that arrived.
    pub blocks: u64,
    /// Blocks that it brings; 0 until the first record.
    pub blocks_total: u64,
    /// Bytes that arrived, all included.
    pub bytes: u64,
    /// Blocks that a full copy would bring.
    pub full_blocks: u64,
    /// Blocks that it need not bring: unfinished transfers had brought them.
    pub kept_blocks: u64,
}

/// The result of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferReport {
    /// Everything, changes, or nothing.
    pub kind: TransferKind,
    /// The snapshot that is shown now.
    pub target: SnapshotId,
    /// Its name.
    pub name: String,
    /// When it was taken, by the source's clock.
    pub taken: Timestamp,
    /// Bytes of stream that were sent.
    pub bytes: u64,
    /// Blocks that were sent.
    pub blocks: u64,
    /// Blocks that a full copy would have sent.
    pub full_blocks: u64,
    /// Blocks that were not sent because unfinished transfers had brought them, or because the
    /// image here had them.
    pub kept_blocks: u64,
    /// Blocks that unfinished transfers had sent and that were of no use: lost on the way or in a
    /// restart, or no longer part of the image. As far as the source knows: a restart of it
    /// forgets.
    pub wasted_blocks: u64,
    /// From the request to the commit.
    pub duration: Duration,
    /// Blocks that the source still had in memory: all of them while a mirror that follows
    /// continuously keeps up.
    pub memory_blocks: u64,
    /// False when the source did not confirm that it got the acknowledgement; it finds out at the
    /// next update.
    pub confirmed: bool,
}

/// The context of a transfer.
pub struct Work<'a> {
    /// Polled at each record.
    pub cancel: &'a AtomicBool,
    /// Called at each record.
    pub progress: &'a mut dyn FnMut(&TransferProgress),
    /// Without it wire and disk take turns.
    pub threads: Option<&'a dyn Threads>,
}

/// The owner's options of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How extents are sent.
    pub compression: Compression,
    /// The source holds the base of the next update. Without a hold the mirror pins no space there,
    /// and the source uses its since map alone.
    pub hold: bool,
    /// The wanted maximum lag; the source gets it too, so that both ends see when it is exceeded.
    pub rpo: Option<Duration>,
    /// The image shown here that may be replaced by one which does not descend from it.
    pub gives_up: Option<GivesUp>,
    /// Snapshots younger than this stay, even if the source deletes them: an image without one is
    /// refused.
    pub lock: Option<Duration>,
}

/// A decision about the image shown. No effect once that was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivesUp {
    /// Its snapshot.
    pub head: SnapshotId,
    /// Its content ([`root_digest`]), if it was received from a source which does not have it any
    /// more: the image that replaces it may have the same number. `None` for an own head.
    pub image: Option<Checksum>,
    /// It was spilled: the source keeps the common base as an ordinary snapshot, without which a
    /// spill can't be opened.
    pub spilled: bool,
}

pub(crate) struct Inner {
    pub(crate) state: DestinationState,
    contact: Option<Contact>,
    /// When that was, by the monotonic clock; `None` when an earlier run of the program had it.
    heard: Option<Duration>,
    births: Births,
    /// The lock of arriving snapshots.
    lock: Option<Duration>,
    /// Until when the locks are lifted, by the monotonic clock.
    lifted: Option<Duration>,
    /// An image that the source claims it never made, while it is shown: it came from a later time
    /// of the source than the source is at now.
    parted: Option<(SnapshotId, Checksum)>,
    relay: Option<Arc<Source>>,
    keeper: Option<Arc<dyn Keeper>>,
}

/// A destination: a volume of that role, and whose mirror it is.
pub struct Destination {
    pub(crate) volume: Arc<Volume>,
    pub(crate) source_volume: String,
    pub(crate) relationship: Relationship,
    options: Mutex<Options>,
    /// Its name in the routes of images.
    hop: OnceLock<Hop>,
    /// When this was made, by the monotonic clock.
    began: Duration,
    pub(crate) inner: Mutex<Inner>,
}

impl Destination {
    /// The mirror in `volume` of the source's `source_volume`. `contact` is the last contact with
    /// the source before a restart.
    pub fn new(
        volume: Arc<Volume>,
        source_volume: &str,
        relationship: Relationship,
        compression: Compression,
        contact: Option<Contact>,
    ) -> Self {
        let status = volume.status();
        let state = match (status.role, status.cursor.snapshot) {
            (Role::Normal, _) => DestinationState::FailedOver,
            (Role::Destination, SnapshotId(0)) => DestinationState::Uninitialized,
            (Role::Destination, _) if volume.own_head().is_some() => DestinationState::OwnHead,
            (Role::Destination, _) => DestinationState::Idle,
        };
        let source_volume = source_volume.to_owned();
        let options = Mutex::new(Options { compression, hold: true, rpo: None, gives_up: None, lock: None });
        let births = Births::guessed(&volume, contact);
        Self {
            began: volume.clock().monotonic(),
            volume,
            source_volume,
            relationship,
            options,
            hop: OnceLock::new(),
            inner: Mutex::new(Inner {
                state,
                contact,
                heard: None,
                births,
                lock: None,
                lifted: None,
                parted: None,
                relay: None,
                keeper: None,
            }),
        }
    }

    /// When the snapshots that are here were made, by this side's clock: worth keeping across a
    /// restart, for a mirror with a lock.
    pub fn births(&self) -> Vec<Birth> {
        let births = &mut self.inner.lock().births;
        births.follow(&self.volume);
        births.list()
    }

    /// The snapshots that stay for a while, even if the source deletes them and whatever lock is
    /// wanted now; none while their locks are lifted.
    pub fn locked(&self) -> Vec<Locked> {
        if self.lifted().is_some() { Vec::new() } else { self.locked_ever() }
    }

    /// The same, also while their locks are lifted.
    pub fn locked_ever(&self) -> Vec<Locked> {
        let entries = self.volume.snapshot_entries();
        let births = &mut self.inner.lock().births;
        births.follow(&self.volume);
        let now = self.volume.clock().now();
        let left = entries.into_iter().map(|entry| (births.left(&entry, now, None), entry));
        let locked = left.filter(|(left, entry)| !left.is_zero() && !entry.name.starts_with(MIRROR_PREFIX));
        locked.map(|(left, entry)| Locked { snapshot: entry.id, name: entry.name, left }).collect()
    }

    /// Whether there is a snapshot that a lock can keep: those of mirrors come and go.
    pub fn has_lockable(&self) -> bool {
        self.volume.snapshot_entries().iter().any(|entry| !entry.name.starts_with(MIRROR_PREFIX))
    }

    /// Lifts the locks for `length`.
    pub fn lift_locks(&self, length: Duration) {
        let ends = self.volume.clock().monotonic().saturating_add(length);
        self.inner.lock().lifted = Some(ends);
    }

    /// For how long the locks are lifted from now on; none while they are in force.
    pub fn lifted(&self) -> Option<Duration> {
        let left = self.inner.lock().lifted?.saturating_sub(self.volume.clock().monotonic());
        (!left.is_zero()).then_some(left)
    }

    /// Snapshots that are here or arrive from now on stay for at least `lock`. Snapshots that were
    /// here under the previous lock keep it.
    pub fn set_lock(&self, lock: Option<Duration>) {
        let inner = &mut self.inner.lock();
        inner.lock = lock;
        lock.into_iter().for_each(|lock| inner.births.lock(lock));
    }

    /// Restores the value of [`Destination::births`] from before a restart, when this side's clock
    /// showed `looked`. Of later events only the arrival time of the last image is known.
    pub fn remember_births(&self, births: &[Birth], looked: Option<Timestamp>) {
        self.inner.lock().births = Births::remembered(&self.volume, births, looked);
    }

    /// The image shown here that the source claims it never made, with its content
    /// ([`root_digest`]): worth keeping across a restart. A source that was restored from a backup
    /// reuses its numbers, and its later messages do not reveal that.
    pub fn parted(&self) -> Option<(SnapshotId, Checksum)> {
        let base = self.base();
        self.inner.lock().parted.filter(|parted| *parted == base)
    }

    /// Restores the value of [`Destination::parted`] from before a restart. No effect when another
    /// image is shown.
    pub fn remember_parted(&self, parted: Option<(SnapshotId, Checksum)>) {
        self.inner.lock().parted = parted;
    }

    /// The present options. [`Destination::new`] holds the base.
    pub fn options(&self) -> Options {
        *self.options.lock()
    }

    /// Changes that, from the next request to the source on.
    pub fn set_options(&self, options: Options) {
        *self.options.lock() = options;
    }

    /// Sets the registry of this mirror's own mirrors: from the next update on, the source keeps
    /// the snapshots that they have ([`Source::relayed`]).
    pub fn set_relay(&self, relay: Arc<Source>) {
        self.inner.lock().relay = Some(relay);
    }

    /// Sets the keeper, which decides on replacing the image shown here, from the next update on.
    pub fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        self.inner.lock().keeper = Some(keeper);
    }

    fn kept(&self) -> Vec<SnapshotId> {
        let relay = self.inner.lock().relay.clone();
        relay.map_or_else(Vec::new, |relay| relay.relayed(&self.volume))
    }

    fn rpo_ms(&self) -> Option<u64> {
        let rpo = self.options().rpo?;
        Some(rpo.as_millis().try_into().unwrap_or(u64::MAX))
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The source's name of the volume.
    pub(crate) fn source_volume(&self) -> &str {
        &self.source_volume
    }

    /// How it is.
    pub fn state(&self) -> DestinationState {
        self.inner.lock().state.clone()
    }

    /// The last contact with the source: worth keeping across a restart.
    pub fn contact(&self) -> Option<Contact> {
        self.inner.lock().contact
    }

    /// How far behind it is, as far as is known here; `None` before the first contact.
    pub fn lag(&self) -> Option<Lag> {
        let inner = self.inner.lock();
        Some(inner.contact?.lag(self.silence_of(&inner)?))
    }

    /// How long the source has been silent; `None` before the first contact. By the monotonic
    /// clock. Over a restart, by the wall clock of this side, and at least the time since then.
    pub fn silence(&self) -> Option<Duration> {
        self.silence_of(&self.inner.lock())
    }

    fn silence_of(&self, inner: &Inner) -> Option<Duration> {
        let (clock, contact) = (self.volume.clock(), inner.contact?);
        let passed = clock.monotonic();
        Some(match inner.heard {
            Some(heard) => passed.saturating_sub(heard),
            None => clock.now().since(contact.at).max(passed.saturating_sub(self.began)),
        })
    }

    /// How old the image is, by the source's clock up to the last contact and by this side's from
    /// then on; none without an image or a contact.
    pub fn image_age(&self) -> Option<Duration> {
        let taken = self.volume.snapshot(self.volume.status().cursor.snapshot)?.created;
        let inner = self.inner.lock();
        Some(inner.contact?.status.now.since(taken) + self.silence_of(&inner)?)
    }

    /// Asks the source for its status, and so for the lag.
    pub fn refresh<S: Read + Write + ?Sized>(&self, client: &mut Client<'_, S>) -> Result<Lag, MirrorError> {
        let (status, asked) = self.ask_status(client)?;
        let contact = self.heard(status, asked);
        Ok(contact.lag(self.silence().unwrap_or_default()))
    }

    /// The status, and when it was requested, by the monotonic clock.
    pub(crate) fn ask_status<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
    ) -> Result<(SourceStatus, Duration), MirrorError> {
        let asked = self.volume.clock().monotonic();
        let status = client.status(self.asks_status(), &self.volume)?;
        Ok((status, asked))
    }

    pub(crate) fn asks_status(&self) -> StatusOf {
        let (base, base_root) = self.base();
        StatusOf {
            volume: self.source_volume.clone(),
            relationship: self.relationship,
            rpo_ms: self.rpo_ms(),
            base,
            base_root,
        }
    }

    /// The image shown, if it was received and not written here, with its content
    /// ([`root_digest`]).
    pub fn received(&self) -> Option<(Snapshot, Checksum)> {
        let follows = self.volume.status().role == Role::Destination && self.volume.own_head().is_none();
        let (shown, root) = self.base();
        self.volume.snapshot(shown).filter(|_| follows).map(|snapshot| (snapshot, root))
    }

    pub(crate) fn base(&self) -> (SnapshotId, Checksum) {
        let base = self.volume.status().cursor.snapshot;
        let entries = self.volume.snapshot_entries();
        let root = entries.iter().find(|entry| entry.id == base).map(root_digest);
        (base, root.unwrap_or_default())
    }

    /// Brings the newest image of the source. On any error the volume still shows the previous
    /// image.
    ///
    /// # Errors
    /// [`Refusal::DestinationTooSmall`] when the source has grown: grow this volume and update
    /// again. [`MirrorError::CompareNeeded`] when the two have no base in common:
    /// [`Destination::update_comparing`] has that price.
    pub fn update<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
    ) -> Result<TransferReport, MirrorError> {
        self.run(client, work, Manner::Usual)
    }

    /// As [`Destination::update`], with as little work for the source as possible: for one that
    /// comes again in a moment.
    pub(crate) fn step<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
    ) -> Result<TransferReport, MirrorError> {
        self.run(client, work, Manner::Step)
    }

    /// As [`Destination::update`]. Without a common base, the checksums of all blocks here are sent
    /// to the source, which sends those that differ.
    pub fn update_comparing<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
    ) -> Result<TransferReport, MirrorError> {
        self.run(client, work, Manner::Compare)
    }

    fn run<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
        manner: Manner,
    ) -> Result<TransferReport, MirrorError> {
        let mut running = {
            let mut inner = self.inner.lock();
            let state = match inner.state {
                DestinationState::TransferringBaseline | DestinationState::Updating => {
                    return Err(MirrorError::Busy);
                }
                DestinationState::FailedOver => return Err(MirrorError::FailedOver),
                _ if self.volume.status().cursor.snapshot.0 == 0 => DestinationState::TransferringBaseline,
                _ => DestinationState::Updating,
            };
            let before = std::mem::replace(&mut inner.state, state);
            Running { destination: self, then: before }
        };
        let keeper = self.inner.lock().keeper.clone();
        let _settles = Settles(keeper.clone());
        let outcome = self.transfer(client, work, manner, keeper.as_deref());
        if let Err(MirrorError::Refused(Refusal::Diverged(_))) = &outcome {
            let shown = self.base();
            self.inner.lock().parted = Some(shown);
        }
        running.then = match &outcome {
            Ok(_) => DestinationState::Idle,
            Err(reason) => DestinationState::Failed(reason.clone()),
        };
        drop(running);
        outcome
    }

    /// The relation between the image shown here and the source's image.
    fn stance(&self) -> Result<Stance, MirrorError> {
        let gives_up = self.options().gives_up;
        let given_up = |gives_up: GivesUp| match gives_up.spilled {
            true => Stance::GivesUpSpilled,
            false => Stance::GivesUp,
        };
        match self.volume.own_head() {
            None => {
                let (shown, root) = self.base();
                let of_it =
                    gives_up.filter(|given_up| given_up.head == shown && given_up.image == Some(root));
                Ok(of_it.map_or(Stance::Follows, given_up))
            }
            Some(head)
                if gives_up.is_some_and(|given_up| given_up.head == head.id && given_up.image.is_none()) =>
            {
                Ok(gives_up.map_or(Stance::Follows, given_up))
            }
            // It was handed over: the side that received it continues from it.
            Some(head) if head.name.starts_with(MIRROR_PREFIX) => Ok(Stance::OwnHead),
            Some(head) => Err(self.undecided(&head)),
        }
    }

    /// Refuses when the source has reported that it never made the image shown here, and does not
    /// have it still. Since then it may have reused the number for a snapshot that is gone again. A
    /// mirror that follows itself may merely have been behind, and continues from the common
    /// snapshot.
    fn refuse_parted<S: Read + Write + ?Sized>(&self, client: &mut Client<'_, S>) -> Result<(), MirrorError> {
        let Some((shown, _)) = self.parted() else { return Ok(()) };
        if self.standing(client, None)?.role == Role::Normal {
            let (status, asked) = self.ask_status(client)?;
            self.heard(status, asked);
            if status.base_taken.is_none() {
                return Err(Refusal::Diverged(shown).into());
            }
        }
        self.inner.lock().parted = None;
        Ok(())
    }

    /// The price of a comparison.
    fn price(&self, receiver: &Receiver, blocks: u64) -> MirrorError {
        match receiver.shown_runs() {
            Ok(runs) => MirrorError::CompareNeeded {
                compare_bytes: claims_bytes(runs.into_iter()),
                data_bytes_max: blocks.saturating_mul(BLOCK_SIZE as u64),
            },
            Err(error) => error.into(),
        }
    }

    /// Records the source's status, which was requested at `asked` by the monotonic clock. It
    /// counts as of that time. The travel time of the answer is unknown, so a lag may be reported
    /// too large, but never too small.
    pub(crate) fn heard(&self, status: SourceStatus, asked: Duration) -> Contact {
        let clock = self.volume.clock();
        let passed = clock.monotonic();
        let said = asked.min(passed);
        let on_its_way = u64::try_from((passed - said).as_nanos()).unwrap_or(u64::MAX);
        let image = self.volume.snapshot(self.volume.status().cursor.snapshot);
        let status = match image.filter(|_| status.base_taken.is_none()) {
            // The source does not have the image shown here and reports no lag: as far as anything
            // is known, all changes since then are missing.
            Some(image) => SourceStatus {
                first_change: Some(
                    status.first_change.map_or(image.created, |first| first.min(image.created)),
                ),
                ..status
            },
            None => status,
        };
        let contact = Contact { at: Timestamp(clock.now().0.saturating_sub(on_its_way)), status };
        let mut inner = self.inner.lock();
        (inner.contact, inner.heard) = (Some(contact), Some(said));
        contact
    }

    /// Records the source's status, when an image of it is wanted.
    ///
    /// # Errors
    /// [`MirrorError::FollowsItself`] if the source's image came from here.
    pub(crate) fn heard_ahead(&self, status: SourceStatus, asked: Duration) -> Result<(), MirrorError> {
        self.heard(status, asked);
        self.refuse_own_route(&status)
    }

    /// Refuses a source whose image came from here.
    pub(crate) fn refuse_own_route(&self, status: &SourceStatus) -> Result<(), MirrorError> {
        match self.hop.get().is_some_and(|own| status.route.has(*own)) {
            true => Err(MirrorError::FollowsItself),
            false => Ok(()),
        }
    }

    /// The volumes that the image here came through, itself first, for the mirrors of this one.
    /// `own` is its name in routes.
    pub fn route(&self, own: Hop) -> Route {
        let heard = self.contact().filter(|_| self.received().is_some());
        Route::through(own, heard.map(|contact| contact.status.route).unwrap_or_default())
    }

    /// Sets its name in routes: it does not follow a source that gets its images from here.
    pub fn know_hop(&self, own: Hop) {
        let _ = self.hop.set(own);
    }

    /// Blocks of unfinished transfers: the next transfer uses them, and a failover drops them.
    pub fn arrived_blocks(&self) -> u64 {
        self.volume.arrived_blocks()
    }

    /// The loss that a failover now would cause.
    pub fn loss(&self) -> Loss {
        let image = self.volume.status().cursor.snapshot;
        let snapshot = self.volume.snapshot(image);
        let (mut contact, mut silent) = (self.contact(), self.silence());
        if self.volume.own_head().is_some() {
            // It takes its own writes back: none of them is lost.
            silent = silent.map(|_| Duration::ZERO);
            contact = contact.map(|contact| Contact {
                status: SourceStatus { first_change: None, blocks_behind: 0, ..contact.status },
                ..contact
            });
        }
        Loss {
            image,
            image_name: snapshot.as_ref().map(|snapshot| snapshot.name.clone()).unwrap_or_default(),
            image_taken: snapshot.map(|snapshot| snapshot.created).unwrap_or_default(),
            bytes_known: contact.map(|contact| contact.status.bytes()),
            age_known: contact.map(|contact| contact.status.age()),
            silent,
            image_age: self.image_age(),
        }
    }

    /// Makes the volume writable, with the last image, and returns the loss. The source is not
    /// needed.
    ///
    /// # Errors
    /// [`MirrorError::Busy`] while a transfer runs: cancel it first. [`MirrorError::FailedOver`]
    /// when it was done before.
    pub fn failover(&self) -> Result<Loss, MirrorError> {
        let mut inner = self.inner.lock();
        match inner.state {
            DestinationState::TransferringBaseline | DestinationState::Updating => {
                return Err(MirrorError::Busy);
            }
            DestinationState::FailedOver => return Err(MirrorError::FailedOver),
            _ => {}
        }
        let before = std::mem::replace(&mut inner.state, DestinationState::FailedOver);
        drop(inner);
        let loss = self.loss();
        if let Err(error) = self.volume.failover() {
            self.inner.lock().state = before;
            return Err(error.into());
        }
        Ok(loss)
    }
}

/// A running update; it ends when this is dropped, also after a bug.
struct Running<'a> {
    destination: &'a Destination,
    /// The state of the destination afterwards: unchanged, unless the outcome differs.
    then: DestinationState,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.destination.inner.lock().state = self.then.clone();
    }
}

/// How an update is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Usual,
    /// Without a common base, by comparing checksums.
    Compare,
    /// One of many that follow each other.
    Step,
}

/// A reader that borrows the stream of a client.
struct Reading<'a, S: Read + ?Sized>(&'a mut S);

impl<S: Read + ?Sized> Read for Reading<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl MirrorError {
    /// The blocks that this destination needs, if an update failed for that reason.
    pub fn blocks_needed(&self) -> Option<u64> {
        match self {
            MirrorError::Refused(Refusal::DestinationTooSmall { need, .. }) => Some(*need),
            _ => None,
        }
    }
}
