//! The locks of a volume: those of [`cairn_base`], or, to explore schedules, shuttle's behind the same names.
//!
//! With the feature `shuttle` the crate runs only inside of shuttle: each lock and each wait is a point at which its scheduler may let another
//! thread go on. The tests of such runs are in `schedules`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use cairn_base::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::RwLock;

#[cfg(feature = "shuttle")]
pub(crate) use explored::{Condvar, Mutex, MutexGuard, RwLock};

#[cfg(feature = "shuttle")]
mod explored {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync;

    /// parking_lot has no poisoning, and a panic ends a run of shuttle anyhow.
    fn whole<T>(outcome: Result<T, sync::PoisonError<T>>) -> T {
        outcome.unwrap_or_else(sync::PoisonError::into_inner)
    }

    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { mutex: self, guard: Some(whole(self.0.lock())) }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = self.0.try_lock().ok()?;
            Some(MutexGuard { mutex: self, guard: Some(guard) })
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    pub(crate) struct MutexGuard<'a, T> {
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

    #[derive(Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.guard.take().expect("the lock is held outside of a wait");
            guard.guard = Some(whole(self.0.wait(held)));
        }

        /// Any time may have passed when another thread goes on: the wait is over at once.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _patience: Duration) {
            guard.guard = None;
            shuttle::thread::yield_now();
            guard.guard = Some(whole(guard.mutex.0.lock()));
        }
    }

    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
            whole(self.0.read())
        }

        pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
            whole(self.0.write())
        }
    }
}
