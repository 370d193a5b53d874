//! The caller's part of a transfer: a way to cancel it, a receiver of its progress, and perhaps
//! threads.

use std::io;
use std::sync::Arc;
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

/// Work for another thread.
pub type Helper<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Work for the caller's thread meanwhile.
pub type Own<'a> = Box<dyn FnOnce() + 'a>;

/// Runs closures at the same time; the owner of threads implements it, as the engine starts none.
pub trait Threads: Sync {
    /// Runs each of `helpers` on another thread and `own` on this one, and returns when all are
    /// done. Once one is run all of them must be, also when `own` fails: they wait for each other.
    ///
    /// # Errors
    /// No thread is available for one of them. None of them has been run then, nor `own`; all are
    /// dropped.
    fn beside<'a>(&self, helpers: Vec<Helper<'a>>, own: Own<'a>) -> io::Result<()>;
}

/// [`Threads::beside`], with its error as one of a stream.
pub(crate) fn beside<'a>(
    threads: &dyn Threads,
    helpers: Vec<Helper<'a>>,
    own: impl FnOnce() + 'a,
) -> Result<(), StreamError> {
    let ran = threads.beside(helpers, Box::new(own));
    ran.map_err(|error| StreamError::NoThread(Arc::new(error)))
}

/// The context of a transfer.
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
