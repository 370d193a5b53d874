//! The progress of a thread that works in rounds, for the watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::thread::gettid;

/// The progress of a thread that works in rounds.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) count: AtomicU64,
    /// Of the thread; 0 before it runs.
    pub(crate) thread: AtomicU64,
    ended: AtomicBool,
}

impl Rounds {
    /// Called by the thread before its first round. Its rounds end when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> impl Drop + use<> {
        struct Ending(Arc<Rounds>);
        impl Drop for Ending {
            fn drop(&mut self) {
                self.0.ended.store(true, Ordering::Release);
            }
        }
        self.thread.store(gettid().as_raw_nonzero().get().unsigned_abs().into(), Ordering::Relaxed);
        Ending(self.clone())
    }

    /// One round is over.
    pub(crate) fn turn(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Whether it has completed a round since `count`, or has stopped.
    pub(crate) fn moved_since(&self, count: u64) -> bool {
        self.ended.load(Ordering::Acquire) || self.count.load(Ordering::Acquire) != count
    }
}
