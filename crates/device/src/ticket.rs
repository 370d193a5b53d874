//! Withdrawal: a request that has not begun when its session ends, or when it is aborted, never
//! happens.
//!
//! A front end gives each session a [`Gate`] and each command a [`Ticket`] of it. An operation with
//! a ticket is in one of three stages:
//!
//! - *In progress*: it may change bytes at any moment. The operation holds a [`Pass`]. A front end
//!   puts it into this state before it calls the device, so a device without tickets is safe: the
//!   session counts as busy until the device returns.
//! - *Waiting*: the device called [`Operation::park`] before it waits for room, memory or a lock.
//!   Nothing of the operation has happened.
//! - *Begun*: the device called [`Operation::resume`], or [`Ticket::begin`], under the lock that
//!   orders changes of its content. This is one atomic step: it fails for a ticket that was
//!   withdrawn, and a later withdrawal finds the operation in progress.
//!
//! To end a session, first withdraw (which never waits), then wait for the requests in progress
//! ([`Gate::wait`]). After that the session changes nothing any more, although its thread may still
//! hang in the device. If the wait times out the caller refuses its own operation.
//!
//! Writes of a volume to the device below have no ticket. The volume has acknowledged them, or
//! will, and no client can withdraw them.
//!
//! A gate also checks whether the client is still there each time that a change begins. So a write
//! that waited for longer than its client did is dropped, even when no thread was free to notice
//! that the connection ended. A client that has closed only its own direction may still read
//! answers. It counts as gone for requests that had to wait, which may take effect late, and not
//! for the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::locks::{Condvar, Mutex};
use crate::{DeviceError, Operation};

/// A change parked for this long counts as one that had to wait, although its device does not say
/// so. On a busy machine one that need not wait takes some milliseconds too, and a client that has
/// closed only its own direction must get the answer to that.
const WAITED: Duration = Duration::from_millis(100);

/// True when the client has disconnected. Called under the locks of devices: it never waits. With
/// the argument true an operation had to wait: then a client that sends no more counts as gone too.
/// Otherwise the answer may be some milliseconds old.
pub type IsGone = Box<dyn Fn(bool) -> bool + Send + Sync>;

/// Lets the commands of one session begin, until they are withdrawn.
pub struct Gate {
    state: Mutex<State>,
    /// Signals that an operation has ended.
    over: Condvar,
    is_gone: IsGone,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// Tickets of earlier generations are withdrawn.
    generation: u64,
    /// Tags whose tickets are withdrawn, though they are of this generation.
    withdrawn: Vec<u32>,
    /// Tags of commands in progress; one with several operations is listed as often.
    under_way: Vec<u32>,
}

/// A command's right to begin.
#[derive(Clone)]
pub struct Ticket {
    gate: Arc<Gate>,
    generation: u64,
    tag: u32,
    /// When a device first parked its operation.
    parked: Option<Instant>,
}

/// An operation is in progress until this is dropped.
#[derive(Debug)]
pub struct Pass(Ticket);

impl Gate {
    /// A gate for the session of a client.
    pub fn new(is_gone: IsGone) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::default()), over: Condvar::new(), is_gone })
    }

    /// A ticket for a command that came now.
    pub fn ticket(self: &Arc<Self>, tag: u32) -> Ticket {
        self.ticket_of(self.generation(), tag)
    }

    /// The same for a command that came when the generation was still this one.
    pub fn ticket_of(self: &Arc<Self>, generation: u64, tag: u32) -> Ticket {
        Ticket { gate: Arc::clone(self), generation, tag, parked: None }
    }

    /// Increases with each [`withdraw_all`](Self::withdraw_all).
    pub fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Nothing begins any more, ever.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// True once it was closed, or its client has disconnected.
    pub fn is_closed(&self) -> bool {
        let mut state = self.state.lock();
        state.is_closed |= (self.is_gone)(true);
        state.is_closed
    }

    /// Withdraws all commands that came so far.
    pub fn withdraw_all(&self) {
        self.state.lock().generation += 1;
    }

    /// Withdraws the commands with this tag that came so far, until
    /// [`forget_withdrawn`](Self::forget_withdrawn).
    pub fn withdraw(&self, tag: u32) {
        self.state.lock().withdrawn.push(tag);
    }

    /// The commands withdrawn by their tags have ended: the tags are free for others.
    pub fn forget_withdrawn(&self) {
        self.state.lock().withdrawn.clear();
    }

    /// Waits until no operation is in progress, at most until `deadline`; false when some still is.
    pub fn wait(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.under_way.is_empty())
    }

    /// The same for the commands with one tag.
    pub fn wait_for(&self, tag: u32, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| !state.under_way.contains(&tag))
    }

    /// True while no operation is in progress.
    pub fn is_quiet(&self) -> bool {
        self.state.lock().under_way.is_empty()
    }

    fn wait_until(&self, deadline: Instant, is_over: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        while !is_over(&state) {
            if self.over.wait_until(&mut state, deadline).timed_out() {
                return is_over(&state);
            }
        }
        true
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Ticket {
    /// Begins an operation in one step with the check whether it was withdrawn. Call it under the
    /// lock that orders changes, after all waiting. It counts as one that waited when it was parked
    /// for 100 ms: the device need not know where its time went.
    ///
    /// # Errors
    /// [`DeviceError::Withdrawn`]: nothing may be changed.
    pub fn begin(&self) -> Result<Pass, DeviceError> {
        self.begin_if(self.parked.is_some_and(|since| since.elapsed() >= WAITED))
    }

    /// Notes that its operation may wait from now on.
    pub(crate) fn park(&mut self) {
        self.parked.get_or_insert_with(Instant::now);
    }

    fn begin_if(&self, waited: bool) -> Result<Pass, DeviceError> {
        let mut state = self.gate.state.lock();
        state.is_closed |= (self.gate.is_gone)(waited);
        if self.is_withdrawn_in(&state) {
            return Err(DeviceError::Withdrawn);
        }
        state.under_way.push(self.tag);
        drop(state);
        Ok(Pass(self.clone()))
    }

    /// Whether it can't begin any more: for one that waits, to check repeatedly.
    pub fn is_withdrawn(&self) -> bool {
        let mut state = self.gate.state.lock();
        state.is_closed |= (self.gate.is_gone)(true);
        self.is_withdrawn_in(&state)
    }

    /// The same without asking for the client.
    pub fn is_known_withdrawn(&self) -> bool {
        self.is_withdrawn_in(&self.gate.state.lock())
    }

    fn is_withdrawn_in(&self, state: &State) -> bool {
        state.is_closed || state.generation != self.generation || state.withdrawn.contains(&self.tag)
    }

    /// [`begin`](Self::begin) for an operation that may have no ticket, and then begins in any
    /// case.
    ///
    /// # Errors
    /// [`DeviceError::Withdrawn`]: nothing may be changed.
    pub fn begin_with(ticket: Option<&Self>) -> Result<Option<Pass>, DeviceError> {
        ticket.map(Self::begin).transpose()
    }

    /// [`begin_with`](Self::begin_with) for an operation that had to wait.
    ///
    /// # Errors
    /// [`DeviceError::Withdrawn`]: nothing may be changed.
    pub fn begin_late(ticket: Option<&Self>) -> Result<Option<Pass>, DeviceError> {
        ticket.map(|ticket| ticket.begin_if(true)).transpose()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", self.tag)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Ticket { gate, tag, .. } = &self.0;
        let mut state = gate.state.lock();
        if let Some(at) = state.under_way.iter().position(|under_way| under_way == tag) {
            state.under_way.swap_remove(at);
        }
        drop(state);
        gate.over.notify_all();
    }
}

/// Lets the changes of a batch begin before a device gets it: for front ends. A withdrawn one fails
/// with [`DeviceError::Withdrawn`].
pub fn admit(batch: &mut [Operation]) {
    for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
        operation.begin();
    }
}

/// Declares that nothing of the changes of a batch has happened: for devices, before they wait.
pub fn park(batch: &mut [Operation]) {
    batch.iter_mut().for_each(Operation::park);
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
