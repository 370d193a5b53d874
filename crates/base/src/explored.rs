//! Schedules that shuttle explores, and the locks for that, with the names and the calls of those
//! that crates use otherwise.
//!
//! With its feature `shuttle` a crate takes these for its locks, and then runs only inside of
//! shuttle: each lock and each wait is a point at which the scheduler may switch to another thread.
//! The feature changes nothing else in this crate.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64};
pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Preemptions that a bug needs at most for PCT to find it soon.
const PREEMPTIONS: usize = 3;
/// Bytes of the stack of each thread.
const STACK: usize = 1 << 20;

/// Runs `scenario` in `schedules` random schedules, and in as many of priorities that change at a
/// few places (PCT), always the same ones. A failure prints the schedule that replays it.
pub fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    let random = scenario.clone();
    shuttle::Runner::new(RandomScheduler::new_from_seed(1, schedules), config.clone()).run(move || random());
    let pct = PctScheduler::new_from_seed(2, PREEMPTIONS, schedules);
    shuttle::Runner::new(pct, config).run(move || scenario());
}

/// parking_lot has no poisoning, and a panic ends a run of shuttle anyhow.
fn whole<T>(outcome: Result<T, sync::PoisonError<T>>) -> T {
    outcome.unwrap_or_else(sync::PoisonError::into_inner)
}

/// Mutual exclusion.
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An open one.
    pub fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until no other thread holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: Some(whole(self.0.lock())) }
    }

    /// Takes it if no other thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock().ok()?;
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }
}

impl<T> fmt::Debug for Mutex<T> {
    /// Its content would have to be waited for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The lock is held until this is dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Empty only while a condition is waited for.
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the lock is held outside of a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("the lock is held outside of a wait")
    }
}

/// Waits for a change that other threads make under a [`Mutex`].
#[derive(Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Without waiting threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Releases the lock, waits, and takes it again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.guard.take().expect("the lock is held outside of a wait");
        guard.guard = Some(whole(self.0.wait(held)));
    }

    /// The deadline never comes: a thread that would have to wait until then is found as a
    /// deadlock.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> Waited {
        self.wait(guard);
        Waited
    }

    /// Any time may pass before another thread continues: the wait ends at once.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _patience: Duration) {
        guard.guard = None;
        shuttle::thread::yield_now();
        guard.guard = Some(whole(guard.mutex.0.lock()));
    }
}

/// How a wait with a deadline ended.
pub struct Waited;

impl Waited {
    /// Never.
    pub fn timed_out(&self) -> bool {
        false
    }
}

/// Held by many, or by one alone.
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An open one.
    pub fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until no thread holds it exclusively.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        whole(self.0.read())
    }

    /// Waits until no other thread holds it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        whole(self.0.write())
    }
}
