//! Who comes over TCP: only so many at a time, and for long only who has shown the token. Each connection takes a descriptor of those that the server needs for all else, and a place of those that others wait for.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at once; the next is closed at once.
const GUESTS_MAX: usize = 64;
/// How long one may go without the token, whatever he says meanwhile.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// Whether the token has come on a connection.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<AtomicBool>);

impl Known {
    /// It has.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Connected<IncomingStream<'_, Door>> for Known {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.io().known.clone()
    }
}

/// A listener that lets no more in than there is room for.
pub(super) struct Door {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Door {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(GUESTS_MAX)) }
    }
}

impl Listener for Door {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            match self.room.clone().try_acquire_owned() {
                Ok(place) => {
                    let patience = Some(Box::pin(sleep(UNKNOWN_MAX)));
                    return (Guest { stream, known: Known::default(), patience, _place: place }, address);
                }
                Err(_) => {
                    tracing::warn!(peer = %address, "too many connections to the API; this one is closed");
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection.
pub(super) struct Guest {
    stream: TcpStream,
    known: Known,
    /// Until then.
    patience: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.known.is_so() {
            self.patience = None;
        }
        // Also where there is something to read: it may come one byte at a time.
        if self.patience.as_mut().is_some_and(|patience| patience.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
