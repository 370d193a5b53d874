//! One mirror while the server runs: what it is, what runs of it, and who may begin, cut off or
//! take the place of that.

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
use crate::mirrors::role_error::RoleError;
use crate::peers::pace::Pace;
use crate::state;
use crate::volumes::open::OpenVolume;

/// A mirror.
pub(super) struct Relation {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) destination: Destination,
    /// Never locked by who has `live`.
    pub(super) document: Mutex<MirrorDocument>,
    pub(super) live: Mutex<Live>,
    /// When the last byte of a running update moved, by the monotonic clock, in milliseconds.
    pub(super) heard: AtomicU64,
    /// How fast it may take what the source sends.
    pub(super) pace: Pace,
    /// What a running update makes of the time that it has.
    pub(super) trickle: Pace,
    /// Its owner has said meanwhile that it has none.
    pub(super) hurry: AtomicBool,
    /// Ends the running update at its next record.
    pub(super) abort: AtomicBool,
    /// Something of `live` changed to not running.
    pub(super) settled: Condvar,
    /// Another one is in its place: nothing of this one is begun, nor written down.
    pub(super) replaced: AtomicBool,
}

#[derive(Default)]
pub(super) struct Live {
    pub(super) running: bool,
    /// How many updates have begun: another one that runs by now is told by it.
    pub(super) runs: u64,
    /// The source is being asked how far behind this mirror is.
    pub(super) asking: bool,
    pub(super) verifying: bool,
    /// When it was last asked or told something, by the clock that is never set.
    pub(super) asked: Option<Duration>,
    /// When it was last asked who may use its LUNs, by the clock that is never set.
    pub(super) access_asked: Option<Duration>,
    /// Why the source did not answer, the last time that it was asked.
    pub(super) unanswered: Option<api::ErrorBody>,
    /// By which a running update can be cut off.
    pub(super) sockets: Vec<TcpStream>,
    pub(super) transfer: Option<api::Transfer>,
    pub(super) problem: Option<api::ErrorBody>,
    pub(super) next_ms: Option<u64>,
    /// What runs is a session of a mirror that follows continuously.
    pub(super) following: Option<Following>,
    /// The other side, which was given the role of the source here, takes writes.
    pub(super) taken_over: bool,
    /// Sessions that have failed since the last step.
    pub(super) failures: u32,
    /// When it was last written down how long its snapshots stay, by the clock that is never set.
    pub(super) locks_noted: Option<Duration>,
    /// Updates since the server started that found nothing in common, and compared everything.
    pub(super) compared: u64,
}

/// A running update; it is over when this goes, however it ended.
pub(super) struct Claim<'a>(pub(super) &'a Relation);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The other side is being asked or told something; that is over when this goes, however it ended.
pub(super) struct Asking(Arc<Relation>);

impl Asking {
    /// Of one in whose `live` it stands that it is asked, which is not locked when this goes.
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

    /// Writes down what is said of it. One whose place is another's by now is not written down. The
    /// document is to be locked.
    pub(super) fn save(&self, document: &MirrorDocument) -> Result<(), ServerError> {
        self.refuse_replaced()?;
        state::save(&self.path, document)
    }

    /// Writes down what is known of it, which nobody asked for. Not of one of which nothing is
    /// written down: its volume is only compared with the other side so far, and would be taken for
    /// a mirror.
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

    /// Has the next update do what is wanted now, and have the source hold the base if `hold` says
    /// so. Under the lock of the document: an older word does not come after a newer one.
    pub(super) fn take_wishes(&self, hold: bool) {
        let document = self.document.lock();
        let options = document.options();
        self.destination.set_options(Options { hold: options.hold || hold, ..options });
    }

    /// Another one takes its place: whoever waits for this one finds that nothing of it runs, and
    /// nothing of it begins or is written down any more.
    pub(super) fn retire(&self) {
        {
            let _mine = self.document.lock();
            self.replaced.store(true, Ordering::Release);
        }
        self.release();
    }

    /// Another one takes its place, which `document` is of: when this returns none of its updates
    /// runs, and none begins.
    pub(super) fn give_place(&self, document: &MirrorDocument) -> Result<(), ServerError> {
        self.give_place_to(|_| Ok(document.clone())).map(drop)
    }

    /// The same with what `change` makes of what is written down by then. What that is.
    pub(super) fn give_place_to(
        &self,
        change: impl FnOnce(&MirrorDocument) -> Result<MirrorDocument, ServerError>,
    ) -> Result<MirrorDocument, ServerError> {
        // Of two who have found it and want that at once, one comes later.
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

    /// What a transfer ended with that was told to end: its connections were cut, and what they say
    /// of that is no cause.
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

    /// The clock was put back: what was planned by it may be hours away now.
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

    /// Sets the pace to what is wanted at this time of the day.
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

    /// Cuts off a running update and waits until none runs. One that somebody else begins when the
    /// first is over is cut off like that: it would not end by itself where the mirror follows
    /// continuously.
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
