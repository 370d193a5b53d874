//! A short pipe from a thread that may block to the body of an answer.
//!
//! The thread waits while the pipe is full, so a download takes a few pieces of memory whatever its
//! length. It learns when the client is gone. A client that takes nothing for [`PATIENCE`] is given
//! up: until then its download keeps blocks of the volume from being reused.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Bytes;
use futures_core::Stream;
use parking_lot::{Condvar, Mutex};

/// Pieces in the pipe.
const PIECES_MAX: usize = 4;

/// Longest wait for a client that takes nothing.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// The writer has finished, or failed.
    end: Option<io::Result<()>>,
    waker: Option<Waker>,
    /// The reader is gone.
    gone: bool,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    room: Condvar,
}

/// The end for the thread. If it is dropped without [`Writer::end`], the reader gets an error.
pub(super) struct Writer(Arc<Pipe>);

/// The end for the answer.
pub(crate) struct Reader(Arc<Pipe>);

/// Makes a pipe.
pub(super) fn pipe() -> (Writer, Reader) {
    let pipe = Arc::<Pipe>::default();
    (Writer(pipe.clone()), Reader(pipe))
}

impl Writer {
    /// Adds a piece when there is room.
    ///
    /// # Errors
    /// The client is gone, or takes nothing.
    pub(super) fn send(&self, piece: Bytes) -> io::Result<()> {
        let mut state = self.0.state.lock();
        while state.pieces.len() >= PIECES_MAX && !state.gone {
            if self.0.room.wait_for(&mut state, PATIENCE).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        if state.gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.pieces.push_back(piece);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// Ends the answer: with an error the client sees that it is cut.
    pub(super) fn end(&self, outcome: io::Result<()>) {
        let mut state = self.0.state.lock();
        state.end.get_or_insert(outcome);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(Err(io::ErrorKind::UnexpectedEof.into()));
    }
}

impl Stream for Reader {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut state = self.0.state.lock();
        if let Some(piece) = state.pieces.pop_front() {
            self.0.room.notify_one();
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end.replace(Ok(())) {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                state.end = None;
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.gone = true;
        state.pieces.clear();
        self.0.room.notify_one();
    }
}

#[cfg(test)]
mod tests;
