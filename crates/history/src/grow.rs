//! A store that becomes longer while the history is in use.
//!
//! The store has segments of one size, so more length is more free segments at its end. The device
//! has its new length before the superblock counts the new segments. A cut in between leaves a
//! store that is longer than its superblock says, as before the call; the call can be repeated.

use cairn_base::BLOCK_SIZE;
use cairn_format::history::{HISTORY_SEGMENTS_MAX, SEGMENTS_START};

use crate::HistoryError;
use crate::history::History;
use crate::log::Segment;

impl History {
    /// Makes the store `bytes` long, or as long as its device is now; returns the bytes of all its
    /// segments. Neither content nor window changes. A store can't become shorter: one that is long
    /// enough is unchanged.
    ///
    /// # Errors
    /// [`HistoryError::StoreTooLong`], or the error of a device that can't become longer; nothing
    /// has changed then.
    pub fn grow_store(&self, bytes: Option<u64>) -> Result<u64, HistoryError> {
        let mut writer = self.writer.lock();
        let writer = &mut *writer;
        self.check_failed()?;
        let segment_bytes = writer.superblock.segment_blocks * BLOCK_SIZE as u64;
        let start = SEGMENTS_START * BLOCK_SIZE as u64;
        let length = bytes.unwrap_or_else(|| self.store.geometry().length);
        let most = start + HISTORY_SEGMENTS_MAX * segment_bytes;
        if bytes.is_some_and(|bytes| bytes > most) {
            return Err(HistoryError::StoreTooLong { most });
        }
        let segments = (length.saturating_sub(start) / segment_bytes).min(HISTORY_SEGMENTS_MAX);
        let before = writer.superblock.segments;
        if segments > before {
            // No latch: a store that can't become longer works as before.
            self.store.lengthen(start + segments * segment_bytes)?;
            writer.superblock.segments = segments;
            writer.superblock.live.resize(segments as usize, false);
            writer.superblock.ahead.resize(segments as usize, false);
            self.state.lock().segments.resize(segments as usize, Segment::default());
            writer.below.lengthen(segments as usize);
            writer.bare.extend(before as usize..segments as usize);
            writer.too_full_to_move = None;
            self.write_superblock(writer)?;
            self.sync_store(writer)?;
            // Blocks that waited for room have some now.
            let mut state = self.state.lock();
            state.full = false;
            self.work.notify_all();
            self.room.notify_all();
        }
        Ok(writer.superblock.segments * segment_bytes)
    }
}
