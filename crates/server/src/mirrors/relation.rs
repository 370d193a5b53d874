//! One mirror while the server runs: its state, its running jobs, and the rules to begin, abort or
//! replace these.

use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Clock, SnapshotId, Timestamp};
use cairn_mirror::{Birth, Compression, Contact, Destination, Options, Relationship};
use cairn_volume::Role;
use parking_lot::{Condvar, Mutex};

use crate::error::ServerError;
use crate::mirrors::document::{CUT_PATIENCE, MirrorDocument, millis, now_ms, unhex};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::following::Following;
use crate::mirrors::lags::Lags;
use crate::mirrors::role_error::RoleError;
use crate::peers::pace::Pace;
use crate::state;
use crate::volumes::open::OpenVolume;

/// A mirror.
pub(super) struct Relation {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) destination: Destination,
    /// Never locked while holding `live`.
    pub(super) document: Mutex<MirrorDocument>,
    pub(super) live: Mutex<Live>,
    /// When the last byte of a running update moved, by the monotonic clock, in milliseconds.
    pub(super) heard: AtomicU64,
    /// The permitted rate of data from the source.
    pub(super) pace: Pace,
    /// The rate at which a running update is spread over its time.
    pub(super) trickle: Pace,
    /// Its owner has meanwhile requested full speed.
    pub(super) hurry: AtomicBool,
    /// Ends the running update at its next record.
    pub(super) abort: AtomicBool,
    /// Something of `live` changed to not running.
    pub(super) settled: Condvar,
    /// Another one has replaced it: this one begins no job, and saves nothing.
    pub(super) replaced: AtomicBool,
}

#[derive(Default)]
pub(super) struct Live {
    pub(super) running: bool,
    /// The number of updates begun: it distinguishes a later running update.
    pub(super) runs: u64,
    /// A query for the lag of this mirror is in progress.
    pub(super) asking: bool,
    pub(super) verifying: bool,
    /// The time of the last query or notification, by the monotonic clock.
    pub(super) asked: Option<Duration>,
    /// The time of the last query for access to its LUNs, by the monotonic clock.
    pub(super) access_asked: Option<Duration>,
    /// Why the source did not answer the last query.
    pub(super) unanswered: Option<api::ErrorBody>,
    /// The sockets by which a running update can be cut off.
    pub(super) sockets: Vec<TcpStream>,
    pub(super) transfer: Option<api::Transfer>,
    pub(super) problem: Option<api::ErrorBody>,
    pub(super) next_ms: Option<u64>,
    /// The running job is a session of a mirror that follows continuously.
    pub(super) following: Option<Following>,
    /// The other side, which was given the role of the source here, takes writes.
    pub(super) taken_over: bool,
    pub(super) lags: Lags,
    /// Sessions that have failed since the last step.
    pub(super) failures: u32,
    /// The time at which the births of its locked snapshots were last saved, by the monotonic
    /// clock.
    pub(super) locks_noted: Option<Duration>,
    /// Updates since the server started that found nothing in common, and compared everything.
    pub(super) compared: u64,
}

/// A running update; it ends when this is dropped, with any outcome.
pub(super) struct Claim<'a>(pub(super) &'a Relation);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A query or notification of the other side is in progress; it ends when this is dropped, with any
/// outcome.
pub(super) struct Asking(Arc<Relation>);

impl Asking {
    /// For a relation whose `live` already records the query, and which is not locked when this is
    /// dropped.
    pub(crate) fn of(relation: &Arc<Relation>) -> Self {
        Self(relation.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.live.lock().asking = false;
    }
}

impl Relation {
    pub(super) fn new(open: &OpenVolume, path: PathBuf, document: MirrorDocument, now_ms: u64) -> Self {
        // Runs that were missed while the server was away are one run now.
        let next_ms = document.when.first_ms(document.last.as_ref().map(|last| last.started_ms), now_ms);
        let destination = Destination::new(
            open.volume.clone(),
            &document.volume,
            Relationship(document.relationship),
            Compression::Auto,
            document.contact.map(Contact::from),
        );
        destination.set_options(document.options());
        if let Some(births) = &document.births {
            let births: Vec<Birth> = births.iter().copied().map(Birth::from).collect();
            destination.remember_births(&births, document.births_ns.map(Timestamp));
        }
        destination.set_lock(document.lock());
        let parted = document.parted.as_ref();
        destination.remember_parted(parted.and_then(|of| Some((SnapshotId(of.image), unhex(&of.root)?))));
        Self {
            name: open.name.clone(),
            path,
            destination,
            document: Mutex::new(document),
            live: Mutex::new(Live { next_ms, ..Live::default() }),
            heard: AtomicU64::new(0),
            pace: Pace::default(),
            trickle: Pace::default(),
            hurry: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            settled: Condvar::new(),
            replaced: AtomicBool::new(false),
        }
    }

    /// Saves its document. One that was replaced is not saved. The document must be locked.
    pub(super) fn save(&self, document: &MirrorDocument) -> Result<(), ServerError> {
        self.refuse_replaced()?;
        state::save(&self.path, document)
    }

    /// Saves its known state, without a request of a user. Does nothing for one that was never
    /// saved: its volume is only compared with the other side so far, and would be taken for a
    /// mirror.
    pub(super) fn save_known(&self, document: &MirrorDocument) -> Result<(), ServerError> {
        let has_place = self.refuse_replaced().is_ok() && self.path.exists();
        if has_place { state::save(&self.path, document) } else { Ok(()) }
    }

    pub(super) fn refuse_replaced(&self) -> Result<(), ServerError> {
        if self.replaced.load(Ordering::Acquire) { Err(self.is_replaced()) } else { Ok(()) }
    }

    fn is_replaced(&self) -> ServerError {
        let by = "another command is changing its role or reopening it";
        ServerError::Busy { name: self.name.clone(), by }
    }

    /// Makes the next update use the present settings, and let the source hold the base if `hold`
    /// is set. Called under the lock of the document, so that older settings never overwrite newer
    /// ones.
    pub(super) fn take_wishes(&self, hold: bool) {
        let document = self.document.lock();
        let options = document.options();
        self.destination.set_options(Options { hold: options.hold || hold, ..options });
    }

    /// Another one replaces it: waiters find no running job, and no job begins or saves anything
    /// any more.
    pub(super) fn retire(&self) {
        {
            let _mine = self.document.lock();
            self.replaced.store(true, Ordering::Release);
        }
        self.release();
    }

    /// Another one, with `document`, replaces it: when this returns none of its updates runs, and
    /// none begins.
    pub(super) fn give_place(&self, document: &MirrorDocument) -> Result<(), ServerError> {
        self.give_place_to(|_| Ok(document.clone())).map(drop)
    }

    /// The same with the result of `change` on the saved document. Returns that result.
    pub(super) fn give_place_to(
        &self,
        change: impl FnOnce(&MirrorDocument) -> Result<MirrorDocument, ServerError>,
    ) -> Result<MirrorDocument, ServerError> {
        // If two threads have found it and replace it at once, the second fails.
        if self.replaced.swap(true, Ordering::AcqRel) {
            return Err(self.is_replaced());
        }
        let given = self.settle().and_then(|()| {
            let mine = self.document.lock();
            let document = change(&mine)?;
            state::save(&self.path, &document).map(|()| document)
        });
        if given.is_err() {
            self.replaced.store(false, Ordering::Release);
        }
        given
    }

    /// The error of an aborted transfer: its connections were shut down, and their errors are not
    /// the cause.
    pub(super) fn as_aborted(&self, error: ServerError) -> ServerError {
        match error {
            ServerError::Ending => error,
            _ if self.abort.load(Ordering::Acquire) => {
                RoleError::Aborted { volume: self.name.clone() }.into()
            }
            error => error,
        }
    }

    /// The role in the volume decides.
    pub(super) fn is_failed_over(&self) -> bool {
        self.destination.volume().status().role == Role::Normal
    }

    /// It shows an image that came from its source.
    pub(super) fn has_image(&self) -> bool {
        let volume = self.destination.volume();
        volume.status().cursor.snapshot != SnapshotId(0) && volume.own_head().is_none()
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        if self.document.lock().paused {
            return false;
        }
        let live = self.live.lock();
        !self.is_failed_over() && !live.running && live.next_ms.is_some_and(|next| next <= now_ms)
    }

    /// The clock was set back: planned times may be hours away now.
    pub(super) fn plan_again(&self, now_ms: u64) {
        let document = self.document.lock();
        let mut live = self.live.lock();
        live.next_ms = live.next_ms.map(|due| document.when.no_later_ms(due, now_ms));
    }

    /// For how long no byte has moved in the running update.
    pub(super) fn quiet_ms(&self, clock: &dyn Clock) -> u64 {
        millis(clock.monotonic()).saturating_sub(self.heard.load(Ordering::Relaxed))
    }

    /// Marks an update as running; the next one is counted from here.
    pub(super) fn claim(&self, clock: &dyn Clock) -> Result<(), ServerError> {
        let now_ms = now_ms(clock);
        self.heard.store(millis(clock.monotonic()), Ordering::Relaxed);
        let next_ms = self.document.lock().when.next_ms(now_ms);
        let mut live = self.live.lock();
        if live.running {
            return Err(ServerError::Busy { name: self.name.clone(), by: "an update runs" });
        }
        self.refuse_replaced()?;
        live.running = true;
        live.runs += 1;
        self.abort.store(false, Ordering::Release);
        self.hurry.store(false, Ordering::Release);
        live.transfer = Some(api::Transfer { started_ms: now_ms, ..api::Transfer::default() });
        live.next_ms = next_ms;
        Ok(())
    }

    pub(super) fn release(&self) {
        let mut live = self.live.lock();
        live.running = false;
        live.following = None;
        live.sockets.clear();
        self.settled.notify_all();
    }

    /// Refuses an update while its owner has it paused.
    pub(super) fn refuse_if_paused(&self) -> Result<(), ServerError> {
        match self.document.lock().paused {
            true => Err(ServerError::Mirrors(MirrorsError::Paused { volume: self.name.clone() })),
            false => Ok(()),
        }
    }

    pub(super) fn keep_socket(&self, socket: TcpStream) {
        let mut live = self.live.lock();
        if self.abort.load(Ordering::Acquire) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        live.sockets.push(socket);
    }

    /// Sets the pace to the limit at this time of the day.
    pub(super) fn set_pace(&self, now_ms: u64) {
        let document = self.document.lock();
        let (day, minute) = document.when.day_and_minute(now_ms);
        self.pace.set(document.limits().at(day, minute));
    }

    /// Cuts off a running update; the last image stays.
    pub(super) fn cut(&self) {
        self.cut_run(&self.live.lock());
    }

    pub(super) fn cut_run(&self, live: &Live) {
        self.abort.store(true, Ordering::Release);
        for socket in &live.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Cuts off a running update and waits until none runs. An update that another caller begins
    /// after the first is also cut off: in a mirror that follows continuously it would not end by
    /// itself.
    pub(super) fn settle(&self) -> Result<(), ServerError> {
        let mut live = self.live.lock();
        let mut cut = None;
        while live.running {
            if cut != Some(live.runs) {
                cut = Some(live.runs);
                self.cut_run(&live);
            }
            let late = self.settled.wait_for(&mut live, CUT_PATIENCE).timed_out();
            if late && live.running && cut == Some(live.runs) {
                return Err(ServerError::Busy { name: self.name.clone(), by: "an update does not end" });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
