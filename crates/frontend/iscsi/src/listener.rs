//! TCP: sockets that take connections, and a connection with vectored calls.
//!
//! `SIGPIPE` never comes (`MSG_NOSIGNAL`): a peer that went away is an error like any other.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, sockopt,
};

use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, SEND_TIMEOUT, VECTORS_MAX};

/// Why nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there.
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

/// A portal: a socket that takes connections.
#[derive(Debug)]
pub struct Listener(TcpListener);

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
        let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        // Only accepting: a client that goes between poll and accept must not block the thread.
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self(listener))
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> String {
        self.0.local_addr().map(|at| at.to_string()).unwrap_or_default()
    }

    /// Takes a connection.
    pub(crate) fn accept(&self) -> io::Result<(SocketAddr, Socket)> {
        let (stream, peer) = self.0.accept()?;
        stream.set_nonblocking(false)?;
        Ok((peer, Socket::new(stream)?))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    file: OwnedFd,
    /// Our end.
    pub(crate) local: Option<SocketAddr>,
}

impl Socket {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let local = stream.local_addr().ok();
        let file = OwnedFd::from(stream);
        sockopt::set_socket_keepalive(&file, true)?;
        sockopt::set_tcp_keepidle(&file, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&file, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&file, KEEPALIVE_PROBES)?;
        sockopt::set_socket_timeout(&file, sockopt::Timeout::Send, Some(SEND_TIMEOUT))?;
        Ok(Self { file, local })
    }

    /// Another handle on the same connection, to close it from another thread.
    pub(crate) fn another(&self) -> io::Result<Socket> {
        Ok(Self { file: self.file.try_clone()?, local: self.local })
    }

    /// Ends what comes in: the session says good-bye and goes.
    pub(crate) fn shut(&self) {
        // It fails only when the peer was faster.
        let _ = rustix::net::shutdown(&self.file, rustix::net::Shutdown::Read);
    }

    /// True when the peer has closed its end, and nobody has noticed yet.
    pub(crate) fn is_gone(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recv(&self.file, &mut [0; 1][..], flags) {
            Ok((_, received)) => received == 0,
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }

    /// Ends the connection; calls that wait in other threads return.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(&self.file, rustix::net::Shutdown::Both);
    }

    /// How long receiving waits.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.file, sockopt::Timeout::Recv, Some(timeout))?)
    }

    /// Receives into one buffer after the other. `Some(0)` is the end; `None`: nothing came, at once or (`wait`) within the timeout.
    pub(crate) fn receive(&self, into: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<Option<usize>> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let count = into.len().min(VECTORS_MAX);
        loop {
            let received = match &mut into[..count] {
                [one] => rustix::net::recv(&self.file, &mut **one, flags).map(|(_, received)| received),
                many => {
                    let mut nothing = RecvAncillaryBuffer::default();
                    recvmsg(&self.file, many, &mut nothing, flags).map(|message| message.bytes)
                }
            };
            match received {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all.
    pub(crate) fn send_all(&self, mut from: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !from.is_empty() {
            let count = from.len().min(VECTORS_MAX);
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(&self.file, &from[..count], &mut nothing, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut from, sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// An IPv4 address that came over an IPv6 socket is one all the same.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}
