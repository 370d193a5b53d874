//! The connections to the API. Their number is limited. A connection stays open for long only after
//! it has shown the token, or on the control socket. Each connection takes one of the file
//! descriptors that the server needs for all else.
//!
//! Connections without valid credentials make room for each other ([`Lobby`]). The others have
//! places of their own: when those are taken, the connection with the oldest last request is
//! closed.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use cairn_frontend_session::{Lobby, Place};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// The longest life of a connection without the token, whatever it sends.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// The connections of one listener.
pub(super) struct Guests(Mutex<Table>);

struct Table {
    next: u64,
    lobby: Lobby,
    known_max: usize,
    /// Connections with valid credentials, and the time of the last request on each.
    known: HashMap<u64, Instant>,
    /// Dropping one closes its connection.
    ends: HashMap<u64, oneshot::Sender<()>>,
}

impl Guests {
    /// Makes `unknown_max` places for connections without credentials, and `known_max` for others.
    fn new(unknown_max: usize, known_max: usize) -> Arc<Self> {
        let lobby = Lobby::new(unknown_max);
        let (known, ends) = (HashMap::new(), HashMap::new());
        Arc::new(Self(Mutex::new(Table { next: 0, lobby, known_max: known_max.max(1), known, ends })))
    }

    /// Admits a connection, or returns how long it must wait for a place.
    fn enter(&self, from: Option<IpAddr>) -> Result<(u64, oneshot::Receiver<()>), Duration> {
        let mut table = self.0.lock();
        let now = Instant::now();
        match table.lobby.place(from, now) {
            Place::Free => {}
            Place::After(wait) => return Err(wait),
            Place::Of(other) => {
                table.lobby.leave(other);
                table.ends.remove(&other);
                tracing::warn!("too many connections to the API show no token; closed one of them");
            }
        }
        table.next += 1;
        let id = table.next;
        table.lobby.enter(id, from, now);
        let (end, ended) = oneshot::channel();
        table.ends.insert(id, end);
        Ok((id, ended))
    }

    /// A connection has shown its credentials, and sends a request.
    fn know(&self, id: u64) {
        let mut table = self.0.lock();
        if !table.ends.contains_key(&id) {
            return;
        }
        table.lobby.leave(id);
        table.known.insert(id, Instant::now());
        while table.known.len() > table.known_max {
            let oldest = table.known.iter().min_by_key(|(_, asked)| **asked).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            table.known.remove(&oldest);
            table.ends.remove(&oldest);
            tracing::warn!(
                "too many connections to the API; closed the one that asked for nothing for longest"
            );
        }
    }

    fn spoke(&self, id: u64) {
        self.0.lock().lobby.spoke(id);
    }

    fn leave(&self, id: u64) {
        let mut table = self.0.lock();
        table.lobby.leave(id);
        table.known.remove(&id);
        table.ends.remove(&id);
    }
}

/// Whether the token has come on a connection.
#[derive(Clone)]
pub(super) struct TokenSeen {
    guests: Arc<Guests>,
    id: u64,
    from: Option<IpAddr>,
    uid: Option<u32>,
    is_so: Arc<AtomicBool>,
}

impl TokenSeen {
    /// It has.
    pub(super) fn note(&self) {
        self.guests.know(self.id);
        self.is_so.store(true, Ordering::Release);
    }

    /// Where the connection comes from; none on a unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.from
    }

    /// The user at the other end of a unix socket.
    pub(super) fn uid(&self) -> Option<u32> {
        self.uid
    }

    fn is_so(&self) -> bool {
        self.is_so.load(Ordering::Acquire)
    }
}

impl<L: Listener> Connected<IncomingStream<'_, Door<L>>> for TokenSeen
where
    L::Addr: Origin,
    L::Io: PeerUser,
{
    fn connect_info(stream: IncomingStream<'_, Door<L>>) -> Self {
        stream.io().known.clone()
    }
}

/// Where a connection comes from.
pub(super) trait Origin: Clone + Send + 'static {
    /// Over TCP.
    fn address(&self) -> Option<IpAddr>;
}

impl Origin for SocketAddr {
    fn address(&self) -> Option<IpAddr> {
        Some(self.ip().to_canonical())
    }
}

impl Origin for tokio::net::unix::SocketAddr {
    fn address(&self) -> Option<IpAddr> {
        None
    }
}

/// The user at the other end of a connection.
pub(super) trait PeerUser {
    /// By the kernel's word; none over TCP.
    fn uid(&self) -> Option<u32>;
}

impl PeerUser for tokio::net::TcpStream {
    fn uid(&self) -> Option<u32> {
        None
    }
}

impl PeerUser for tokio::net::UnixStream {
    fn uid(&self) -> Option<u32> {
        self.peer_cred().ok().map(|cred| cred.uid())
    }
}

/// A listener that admits only as many connections as there are places.
pub(super) struct Door<L> {
    listener: L,
    guests: Arc<Guests>,
    /// Any client that can connect may send requests.
    trusts: bool,
}

impl<L> Door<L> {
    /// Clients must show the token.
    pub(super) fn guarded(listener: L, places: usize) -> Self {
        Self { listener, guests: Guests::new(places, places), trusts: false }
    }

    /// The permissions of the socket have decided.
    pub(super) fn open(listener: L, places: usize) -> Self {
        Self { listener, guests: Guests::new(places, places), trusts: true }
    }
}

impl<L: Listener> Listener for Door<L>
where
    L::Addr: Origin,
    L::Io: PeerUser,
{
    type Io = Guest<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Guest<L::Io>, L::Addr) {
        let (stream, address) = self.listener.accept().await;
        let (id, end) = loop {
            match self.guests.enter(address.address()) {
                Ok(entered) => break entered,
                // The next ones wait in the queue of the kernel.
                Err(wait) => sleep(wait.max(Duration::from_millis(1))).await,
            }
        };
        let known = TokenSeen {
            guests: self.guests.clone(),
            id,
            from: address.address(),
            uid: stream.uid(),
            is_so: Arc::default(),
        };
        let patience = (!self.trusts).then(|| Box::pin(sleep(UNKNOWN_MAX)));
        (Guest { stream, known, patience, end, spoke: false, trusts: self.trusts }, address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// A connection.
pub(super) struct Guest<S> {
    stream: S,
    known: TokenSeen,
    /// Until then.
    patience: Option<Pin<Box<Sleep>>>,
    /// Its place is another one's.
    end: oneshot::Receiver<()>,
    spoke: bool,
    trusts: bool,
}

impl<S> Guest<S> {
    fn is_over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.known.is_so() {
            self.patience = None;
        }
        // Also where there is something to read: it may come one byte at a time.
        let is_late =
            self.patience.as_mut().is_some_and(|patience| patience.as_mut().poll(context).is_ready());
        if is_late || Pin::new(&mut self.end).poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl<S> Drop for Guest<S> {
    fn drop(&mut self) {
        self.known.guests.leave(self.known.id);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_over(context)?;
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            if self.trusts {
                self.known.note();
            } else if !std::mem::replace(&mut self.spoke, true) {
                self.known.guests.spoke(self.known.id);
            }
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_over(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_over(context)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_showed_the_token_have_places_of_their_own() {
        let guests = Guests::new(2, 2);
        let from = SocketAddr::from(([10, 0, 0, 1], 1)).address();
        let other = SocketAddr::from(([10, 0, 0, 2], 1)).address();
        let enter = || guests.enter(from).map_err(|wait| assert!(wait > Duration::ZERO));
        let (known, mut known_end) = enter().unwrap();
        guests.know(known);
        let (first, mut first_end) = enter().unwrap();
        let (second, mut second_end) = enter().unwrap();
        assert!(enter().is_err(), "none is cut off at once");
        guests.spoke(first);
        // Another client does not wait for those.
        let (third, mut third_end) = guests.enter(other).unwrap();
        assert!(second_end.try_recv() == Err(oneshot::error::TryRecvError::Closed), "the silent one goes");
        guests.know(second);
        guests.know(first);
        assert!(
            known_end.try_recv() == Err(oneshot::error::TryRecvError::Empty),
            "it went before it was known"
        );
        guests.know(third);
        assert!(known_end.try_recv() == Err(oneshot::error::TryRecvError::Closed), "it asked longest ago");
        for end in [&mut first_end, &mut third_end] {
            assert!(end.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        }
        [first, second, third, known].into_iter().for_each(|id| guests.leave(id));
        let table = guests.0.lock();
        assert!(table.lobby.is_empty() && table.known.is_empty() && table.ends.is_empty());
    }
}
