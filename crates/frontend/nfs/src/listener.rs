//! Sockets that take connections.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

use cairn_frontend_session::{Portal, Socket};

use crate::limits::SEND_TIMEOUT;

/// Why nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{address} is in use by another program; stop it, or choose another address")]
    InUse {
        /// Where.
        address: String,
    },
    /// Not allowed.
    #[error("not permitted to listen on {address}; choose a port above 1023")]
    NotPermitted {
        /// Where.
        address: String,
    },
    /// Anything else.
    #[error("can't listen on {address}: {source}")]
    Failed {
        /// Where.
        address: String,
        /// The cause.
        source: io::Error,
    },
}

/// A socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// Which of its server's it is.
    pub(crate) number: usize,
}

impl Listener {
    /// Listens on `HOST:PORT`; port 0 takes a free one, see [`Listener::address`].
    pub fn bind(address: &str) -> Result<Self, ListenError> {
        let failed = |source: io::Error| {
            let address = address.to_owned();
            match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::InUse { address },
                io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address },
                _ => ListenError::Failed { address, source },
            }
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let socket = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        // Only accepting: a client that disconnects between poll and accept must not block the
        // thread.
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket, number: 0 })
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> String {
        self.socket.local_addr().map(|at| at.to_string()).unwrap_or_default()
    }
}

/// A client that connects.
#[derive(Debug, Clone)]
pub struct Peer {
    pub(crate) address: SocketAddr,
    /// Which of the server's listeners it came to.
    pub(crate) listener: usize,
}

impl Portal for Listener {
    type Peer = Peer;

    fn accept(&self) -> io::Result<(Peer, Socket)> {
        let (stream, address) = self.socket.accept()?;
        stream.set_nonblocking(false)?;
        let socket = Socket::from_tcp(stream)?;
        socket.set_send_timeout(Some(SEND_TIMEOUT))?;
        Ok((Peer { address, listener: self.number }, socket))
    }

    fn place(&self) -> String {
        self.address()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
