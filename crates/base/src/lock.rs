//! Locks for parts of the engine that several callers are in at once.
//!
//! They are `parking_lot`'s, with one addition: callers that take turns on *one* thread (the tasks
//! of the simulator) must not sleep in a lock, as the caller that would wake them could never run.
//! Such a thread sets with [`wait_by`] a function to call instead of sleeping: let another caller
//! run, and check again. Other threads sleep as usual, and pay for the check only when the lock is
//! taken.

use std::cell::Cell;
use std::time::Duration;

pub use parking_lot::MutexGuard;

thread_local! {
    static WAIT: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// From now on a lock of this thread calls `wait` repeatedly instead of sleeping, until it can
/// continue. `None`: threads sleep.
pub fn wait_by(wait: Option<fn()>) {
    WAIT.set(wait);
}

/// Mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// An open one.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        let Some(wait) = WAIT.get() else { return self.0.lock() };
        loop {
            wait();
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
    }

    /// Takes it if no other thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// Waits for a change that other threads make under a [`Mutex`]. It may return early: check the
/// condition again.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Without waiting threads.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Releases the lock, waits, and takes it again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        match WAIT.get() {
            Some(wait) => MutexGuard::unlocked(guard, wait),
            None => self.0.wait(guard),
        }
    }

    /// As [`wait`](Self::wait), but not longer than this. Callers that take turns on one thread do
    /// not wait at all: the time there is not the machine's.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) {
        if WAIT.get().is_none() {
            self.0.wait_for(guard, timeout);
        }
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
