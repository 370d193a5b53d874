//! A stream whose other side must make progress: one that sends or accepts a byte now and then
//! counts as stalled, like a silent one.
//!
//! A socket's own timeout counts from the last byte, so a peer that sends one a second would never
//! reach it, and code above TLS would not even notice: a record is delivered only when it is
//! complete. So this works below TLS and measures its waits. Time that this side spends elsewhere
//! does not count, and each request gives the other side a new start.

use std::io;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Clock;

/// Bytes for each second of waiting, less than any link that a transfer could end on.
const BYTES_A_SECOND: u64 = 16;

/// The time waited, and the bytes received.
#[derive(Default)]
struct Window {
    waited: Duration,
    bytes: u64,
}

impl Window {
    /// False once the wait has reached the patience with almost no bytes.
    fn count(&mut self, waited: Duration, bytes: usize, patience: Duration) -> bool {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < patience {
            return true;
        }
        let enough = u128::from(self.bytes) * 1000 >= u128::from(BYTES_A_SECOND) * self.waited.as_millis();
        *self = Window::default();
        enough
    }
}

/// A stream that gives up with [`io::ErrorKind::TimedOut`] on a peer that trickles.
pub(crate) struct Watched<S> {
    inner: S,
    clock: Arc<dyn Clock>,
    patience: Duration,
    reading: Window,
    writing: Window,
    /// By the monotonic clock; none for no limit.
    end: Option<Duration>,
}

impl<S> Watched<S> {
    /// The stream, whose own timeout for a byte is at most `patience`.
    pub(crate) fn new(inner: S, clock: Arc<dyn Clock>, patience: Duration) -> Self {
        Self { inner, clock, patience, reading: Window::default(), writing: Window::default(), end: None }
    }

    /// The stream itself.
    pub(crate) fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Another patience, from now on.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
        (self.reading, self.writing) = (Window::default(), Window::default());
    }

    /// An exchange that takes longer than that from now on is also aborted, at any rate; none for
    /// no limit.
    pub(crate) fn set_end(&mut self, within: Option<Duration>) {
        self.end = within.map(|within| self.clock.monotonic() + within);
    }

    fn is_over(&self, now: Duration) -> bool {
        self.end.is_some_and(|end| now >= end)
    }
}

impl<S: Read> Read for Watched<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let before = self.clock.monotonic();
        let count = self.inner.read(buffer)?;
        let now = self.clock.monotonic();
        let moves = self.reading.count(now.saturating_sub(before), count, self.patience);
        if count == 0 || moves && !self.is_over(now) {
            return Ok(count);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl<S: Write> Write for Watched<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = self.clock.monotonic();
        let count = self.inner.write(bytes)?;
        let now = self.clock.monotonic();
        // The wait for the answer to this starts anew.
        self.reading = Window::default();
        if self.writing.count(now.saturating_sub(before), count, self.patience) && !self.is_over(now) {
            return Ok(count);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
