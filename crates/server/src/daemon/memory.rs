//! Returns unused memory to the system.
//!
//! The pool of blocks and the allocator keep the memory of sessions, transfers and checks, as it is
//! mostly needed again within a moment. Memory that was unused for some seconds is returned to the
//! system.

use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::ServerError;
use crate::work::background;

/// Memory that was free for this long is returned.
const EVERY: Duration = Duration::from_secs(2);

/// The thread; it ends when this goes.
pub(crate) struct GivingBack {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GivingBack {
    pub(crate) fn start() -> Result<Self, ServerError> {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || {
                background::step_back();
                while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    cairn_device::give_memory_back();
                }
            })
            .map_err(|source| ServerError::Thread { what: "memory", source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
