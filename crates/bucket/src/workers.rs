//! Threads are a parameter: the engine starts no threads.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Runs jobs on threads of its own. The owner of threads implements it.
pub trait Workers: Send + Sync {
    /// Runs `job` beside the caller, soon.
    ///
    /// # Errors
    /// The system has no thread for the job; it is dropped.
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Starts a job and returns the receiver of its outcome.
pub(crate) fn beside<T: Send + 'static>(
    workers: &Arc<dyn Workers>,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (sender, receiver) = channel();
    workers.start(Box::new(move || {
        // The caller may have given up.
        let _ = sender.send(job());
    }))?;
    Ok(receiver)
}
