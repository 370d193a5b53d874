//! Sockets that take connections, and whose they are: a stale unix socket is replaced, a live one
//! never.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cairn_frontend_session::{Portal, Socket};

use crate::address::Address;

/// Why nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{address} is in use by another program; stop it, or choose another address")]
    InUse {
        /// Where.
        address: Address,
    },
    /// There is a file of another kind at the path.
    #[error("{} exists and is not a socket; remove it, or choose another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// Not allowed.
    #[error("not permitted to listen on {address}; choose a port above 1023, or a directory of your own")]
    NotPermitted {
        /// Where.
        address: Address,
    },
    /// Paths of unix sockets are short.
    #[error("the path {} is too long for a unix socket (107 bytes); choose a shorter one", path.display())]
    PathTooLong {
        /// Where.
        path: PathBuf,
    },
    /// Anything else.
    #[error("can't listen on {address}: {source}")]
    Failed {
        /// Where.
        address: Address,
        /// The cause.
        source: io::Error,
    },
}

/// Where a client comes from.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address, for people; "unix" for a unix socket.
    pub(crate) name: String,
    /// Over TCP.
    pub(crate) from: Option<IpAddr>,
    /// Which of the server's listeners it came to.
    pub(crate) listener: usize,
}

/// A socket that takes connections. A unix socket is removed from its folder when this is dropped.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// Which of its server's it is.
    pub(crate) number: usize,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf, identity: Option<(u64, u64)> },
}

/// The longest path of a unix socket (`sun_path` without the final zero).
const UNIX_PATH_BYTES_MAX: usize = 107;

impl Listener {
    /// Listens on `address`; port 0 takes a free one, see [`Listener::address`].
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        let listener = match address {
            Address::Tcp(text) => Self { kind: Kind::Tcp(bind_tcp(text)?), number: 0 },
            Address::Unix(path) => bind_unix(path)?,
        };
        let failed = |source| ListenError::Failed { address: address.clone(), source };
        listener.set_nonblocking().map_err(failed)?;
        Ok(listener)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        // Only accepting: a client that disconnects between poll and accept must not block the
        // thread.
        match &self.kind {
            Kind::Tcp(listener) => listener.set_nonblocking(true),
            Kind::Unix { listener, .. } => listener.set_nonblocking(true),
        }
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> Address {
        match &self.kind {
            Kind::Tcp(listener) => {
                Address::Tcp(listener.local_addr().map(|at| at.to_string()).unwrap_or_default())
            }
            Kind::Unix { path, .. } => Address::Unix(path.clone()),
        }
    }
}

impl Portal for Listener {
    type Peer = Peer;

    fn accept(&self) -> io::Result<(Peer, Socket)> {
        let listener = self.number;
        match &self.kind {
            Kind::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                stream.set_nonblocking(false)?;
                let from = Some(peer.ip().to_canonical());
                Ok((Peer { name: peer.to_string(), from, listener }, Socket::from_tcp(stream)?))
            }
            Kind::Unix { listener: socket, .. } => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(false)?;
                Ok((Peer { name: "unix".to_owned(), from: None, listener }, Socket::from_unix(stream)?))
            }
        }
    }

    fn place(&self) -> String {
        self.address().to_string()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(listener) => listener.as_fd(),
            Kind::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix { path, identity, .. } = &self.kind
            && identity.is_some()
            && identify(path) == *identity
        {
            // Best effort: a socket that stays is found stale and replaced.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(text: &str) -> Result<TcpListener, ListenError> {
    let failed = |source: io::Error| listen_error(Address::Tcp(text.to_owned()), source);
    let addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(failed)?.collect();
    TcpListener::bind(addresses.as_slice()).map_err(failed)
}

fn bind_unix(path: &Path) -> Result<Listener, ListenError> {
    if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        return Err(ListenError::PathTooLong { path: path.to_owned() });
    }
    let address = || Address::Unix(path.to_owned());
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|source| listen_error(address(), source))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(ListenError::NotPermitted { address: address() });
            }
            // Connected, or its queue is full: a listener is there.
            Ok(_) | Err(_) => return Err(ListenError::InUse { address: address() }),
        }
    }
    let listener = UnixListener::bind(path).map_err(|source| listen_error(address(), source))?;
    let kind = Kind::Unix { listener, path: path.to_owned(), identity: identify(path) };
    Ok(Listener { kind, number: 0 })
}

fn identify(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn listen_error(address: Address, source: io::Error) -> ListenError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address },
        _ => ListenError::Failed { address, source },
    }
}
