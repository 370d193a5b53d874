//! Received bytes that wait to be parsed.

use crate::limits::RECEIVE_BYTES;

/// A buffer that is filled at its end and emptied at its start.
#[derive(Debug, Default)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// The waiting bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Drops the first `count` waiting bytes.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Counts bytes that were received into [`Input::room`].
    pub fn received(&mut self, count: usize) {
        self.end += count;
    }

    /// Room for at least `room` more bytes, after the waiting ones.
    pub fn room(&mut self, room: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() < self.end + room {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() < self.end + room {
                self.buffer.resize((self.end + room).max(RECEIVE_BYTES), 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}
