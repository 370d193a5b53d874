//! The memory limit of sessions for incoming and outgoing data.
//!
//! A session with work holds a window: the bytes that it takes at once. Windows come from one
//! budget and get smaller as it is used up, down to a least window that every session gets. So a
//! session that stops reading its replies in the middle of a long one takes little from the others,
//! no session waits for another, and the total has a limit. Data longer than the window goes in
//! pieces.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::limits::{BATCH_BYTES_MAX, WINDOW_BYTES_MIN, WINDOWS_BYTES};
use crate::locks::AtomicU64;

/// The budget of a server.
#[derive(Debug, Default)]
pub struct Windows {
    used: AtomicU64,
}

/// A session's part of it, until this is dropped.
#[derive(Debug)]
pub struct Window {
    windows: Arc<Windows>,
    bytes: u64,
}

impl Windows {
    /// Half of the rest, within limits. Never waits.
    pub fn take(self: &Arc<Self>) -> Window {
        let wanted = |used: u64| {
            let half = WINDOWS_BYTES.saturating_sub(used) / 2;
            half.clamp(WINDOW_BYTES_MIN, BATCH_BYTES_MAX) / WINDOW_BYTES_MIN * WINDOW_BYTES_MIN
        };
        let take = |used| Some(used + wanted(used));
        let before = match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(before) | Err(before) => before,
        };
        Window { windows: Arc::clone(self), bytes: wanted(before) }
    }

    /// These bytes beside the session's own window, while others have an eighth of the budget left.
    /// So two sessions with whole windows, which are half of it, can have more.
    pub fn also(self: &Arc<Self>, bytes: u64) -> Option<Window> {
        let take = |used: u64| Some(used + bytes).filter(|used| *used <= WINDOWS_BYTES / 8 * 7);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Window { windows: Arc::clone(self), bytes })
    }

    /// Bytes that sessions hold now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Window {
    /// Bytes; a multiple of the block size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.windows.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
