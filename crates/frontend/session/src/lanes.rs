//! Threads of a session that finish its slow work while it takes further requests.
//!
//! A session that waits for its disk takes no requests meanwhile, and its disk is idle while it
//! sends replies. So work that has to wait goes to a lane. The lane does it to its end, replies
//! included.
//!
//! Invariants:
//! - A lane gets only work that has no order with later requests of the session, such as reads.
//! - A lane that is at work gets no more: without a free one the session does the work itself. So
//!   the work in progress has a limit.
//! - Threads begin with the first work. All work is done, and they have ended, when this is
//!   dropped.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// The lanes of one session.
pub struct Lanes<W> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
    most: usize,
}

struct Shared<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    work: Box<dyn Fn(W) + Send + Sync>,
}

struct State<W> {
    /// Given, and not begun. At most one for each idle thread.
    given: Vec<W>,
    idle: usize,
    ended: bool,
}

impl<W: Send + 'static> Lanes<W> {
    /// Up to `most` threads that call `work`.
    pub fn new(most: usize, work: impl Fn(W) + Send + Sync + 'static) -> Self {
        let state = State { given: Vec::new(), idle: 0, ended: false };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new(), work: Box::new(work) };
        Self { shared: Arc::new(shared), threads: Vec::new(), most }
    }

    /// True if [`give`](Self::give) would find a lane.
    pub fn has_room(&self) -> bool {
        self.threads.len() < self.most || self.shared.state.lock().has_room()
    }

    /// Gives work to a lane that has none.
    ///
    /// # Errors
    /// The work, when all lanes are at work or the system gives no thread.
    pub fn give(&mut self, work: W) -> Result<(), W> {
        let mut state = self.shared.state.lock();
        if !state.has_room() {
            drop(state);
            if self.threads.len() >= self.most || !self.begin() {
                return Err(work);
            }
            state = self.shared.state.lock();
        }
        state.given.push(work);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn begin(&mut self) -> bool {
        // It counts as idle from now on, so that it gets the work at hand.
        self.shared.state.lock().idle += 1;
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("lane".into()).spawn(move || shared.serve()) {
            Ok(thread) => {
                self.threads.push(thread);
                true
            }
            Err(_) => {
                self.shared.state.lock().idle -= 1;
                false
            }
        }
    }
}

impl<W> State<W> {
    fn has_room(&self) -> bool {
        self.idle > self.given.len()
    }
}

impl<W> Shared<W> {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.given.pop() {
                state.idle -= 1;
                drop(state);
                (self.work)(work);
                state = self.state.lock();
                state.idle += 1;
            } else if state.ended {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }
}

impl<W> Drop for Lanes<W> {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // If it panicked, the panic hook has reported that.
            let _ = thread.join();
        }
    }
}
