//! The destination's way to a source: TCP, TLS with the source's certificate pinned, hello.

use std::io;
use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use cairn_device::SystemClock;
use cairn_mirror::{Bundle, LAST_REFUSAL};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::error::ServerError;
use crate::peers::error::PeersError;
use crate::peers::identity::{Fingerprint, Identity};
use crate::peers::stall::{is_late, set_patience};
use crate::peers::token::random_name;
use crate::peers::watched::Watched;
use crate::peers::wire::{Hello, LANES_MAX, Lane, PEER_VERSION, Welcome};
use crate::peers::{Credential, tls, wire};

/// Longest wait for a connection, and for each answer before the transfer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// One connection to a source.
pub(crate) type SourceLane = StreamOwned<ClientConnection, Watched<TcpStream>>;
/// The stream to a source.
pub(crate) type SourceStream = Bundle<SourceLane>;

/// The target of a connection.
#[derive(Debug, Clone)]
pub(crate) struct SourceAddress<'a> {
    pub(crate) address: &'a str,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) volume: &'a str,
    pub(crate) credential: Option<&'a Credential>,
    /// How many.
    pub(crate) connections: u32,
}

/// Opens the given number of connections. In the transfer the source may be silent for `patience`.
/// `opened` immediately gets another handle of each socket, to shut the connection down.
pub(crate) fn connect(
    identity: &Identity,
    source: &SourceAddress<'_>,
    patience: Duration,
    opened: &(dyn Fn(TcpStream) + Sync),
) -> Result<SourceStream, ServerError> {
    let count = source.connections.clamp(1, LANES_MAX);
    if count == 1 {
        return Ok(Bundle::new(vec![connect_one(identity, source, patience, opened, None)?]));
    }
    let bundle = random_name();
    let lane = |index| Some(Lane { bundle: bundle.clone(), index, lanes: count });
    let mut lanes = vec![connect_one(identity, source, patience, opened, lane(0))?];
    // The token is used up by the first.
    let further = SourceAddress { credential: None, ..source.clone() };
    let others: Vec<Result<SourceLane, ServerError>> = std::thread::scope(|scope| {
        let dialled: Vec<_> = (1..count)
            .map(|index| {
                let (lane, further) = (lane(index), &further);
                scope.spawn(move || connect_one(identity, further, patience, opened, lane))
            })
            .collect();
        dialled.into_iter().map(|dial| dial.join().unwrap_or(Err(ServerError::Bug))).collect()
    });
    for other in others {
        lanes.push(other?);
    }
    Ok(Bundle::new(lanes))
}

/// Announces the end of the stream. Otherwise the source would treat it as a broken connection.
pub(crate) fn hang_up(stream: &mut SourceStream) {
    for lane in stream.lanes_mut() {
        lane.conn.send_close_notify();
        let _ = lane.flush();
    }
}

fn connect_one(
    identity: &Identity,
    source: &SourceAddress<'_>,
    patience: Duration,
    opened: &(dyn Fn(TcpStream) + Sync),
    lane: Option<Lane>,
) -> Result<SourceLane, ServerError> {
    let address = source.address;
    let unreachable =
        |error| ServerError::Peers(PeersError::Unreachable { address: address.to_owned(), source: error });
    let socket = dial(address).map_err(unreachable)?;
    opened(socket.try_clone().map_err(unreachable)?);
    socket.set_nodelay(true).map_err(unreachable)?;
    let hello_patience = CONNECT_PATIENCE.min(patience);
    let mut socket = Watched::new(socket, Arc::new(SystemClock::new()), hello_patience);
    set_patience(&mut socket, hello_patience).map_err(unreachable)?;
    let config = tls::client(identity, source.fingerprint)?;
    // The name is not checked: the certificate itself is pinned.
    let name = ServerName::try_from("cairn").map_err(|_| ServerError::Bug)?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(&config), name)?, socket);
    let hello = Hello {
        version: PEER_VERSION,
        volume: source.volume.to_owned(),
        credential: source.credential.cloned(),
        stall_ms: Some(patience.as_millis().try_into().unwrap_or(u64::MAX)),
        lane,
        last_refusal: LAST_REFUSAL,
    };
    let answer = wire::send(&mut stream, &hello).and_then(|()| wire::receive(&mut stream));
    let welcome = answer.map_err(|error| match is_late(&error) {
        true => ServerError::Peers(PeersError::Silent {
            peer: "source",
            address: address.to_owned(),
            patience: hello_patience,
        }),
        false => handshake_error(address, error),
    })?;
    match welcome {
        Welcome::Accepted => {
            set_patience(&mut stream.sock, patience).map_err(unreachable)?;
            Ok(stream)
        }
        Welcome::Version { version } => {
            Err(ServerError::Peers(PeersError::PeerVersion { theirs: version, ours: PEER_VERSION }))
        }
        Welcome::Refused(body) => {
            Err(ServerError::Peers(PeersError::Refused { address: address.to_owned(), body: Box::new(body) }))
        }
    }
}

fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// rustls hands its errors through `io::Error`.
fn handshake_error(address: &str, error: io::Error) -> ServerError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            ServerError::Peers(PeersError::WrongSource { address: address.to_owned() })
        }
        Some(_) => ServerError::Peers(PeersError::PeerProtocol { address: address.to_owned() }),
        None if error.kind() == io::ErrorKind::InvalidData => {
            ServerError::Peers(PeersError::PeerProtocol { address: address.to_owned() })
        }
        None => ServerError::Peers(PeersError::Unreachable { address: address.to_owned(), source: error }),
    }
}
