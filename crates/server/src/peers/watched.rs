//! A stream whose other side must keep moving: one that gives or takes a byte now and then counts
//! as stalled, as one that gives none.
//!
//! A socket's own timeout counts from the last byte, so a peer that sends one a second would never
//! meet it, and inside of TLS nobody would even notice: a record is told of when it is whole. So
//! this stands below TLS and counts what it waited for. Time that this side spends elsewhere does
//! not count, and whoever asks gives the other side a new start.

use std::io;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Clock;

/// Bytes for each second of waiting, less than any link that a transfer could end on.
const BYTES_A_SECOND: u64 = 16;

/// What was waited for, and what came of it.
#[derive(Default)]
struct Window {
    waited: Duration,
    bytes: u64,
}

impl Window {
    /// False once as long as the patience was waited for next to nothing.
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
    /// By the clock; none for as long as it takes.
    end: Option<Duration>,
}

impl<S> Watched<S> {
    /// The stream, which waits by itself for no longer than `patience` for a byte.
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

    /// What goes on for longer than that from now on is given up as well, however much comes; none
    /// for as long as it takes.
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
        // What is answered to this is waited for anew.
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
