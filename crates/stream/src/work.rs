//! What a caller brings to a transfer: a way to cancel it, ears for its progress, and perhaps threads.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::StreamError;

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Blocks that went through.
    pub blocks: u64,
    /// Blocks in all.
    pub blocks_total: u64,
    /// Bytes of the stream so far.
    pub bytes: u64,
}

/// Runs two closures at the same time; the owner of threads implements it, as the engine starts none.
pub trait Threads: Sync {
    /// Runs `helper` on another thread and `own` on this one, and returns when both are done. `helper` must be run, also
    /// when `own` fails; with `std::thread::scope` this is three lines.
    fn beside(&self, helper: &mut (dyn FnMut() + Send), own: &mut dyn FnMut());
}

/// What goes along with a transfer.
pub struct Work<'a> {
    /// Polled at each record: once true, the transfer ends with [`StreamError::Cancelled`].
    pub cancel: &'a AtomicBool,
    /// Called at each record, on the caller's thread.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Without it disk and wire take turns.
    pub threads: Option<&'a dyn Threads>,
}

impl Work<'_> {
    pub(crate) fn go_on(&self) -> Result<(), StreamError> {
        if self.cancel.load(Ordering::Relaxed) { Err(StreamError::Cancelled) } else { Ok(()) }
    }
}
