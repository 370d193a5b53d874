//! The source's side of mirrors: a listener, TLS, the decision on access, and a thread for each
//! connection.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_base::Clock;
use cairn_frontend_session::{Lobby, Place};
use cairn_mirror::Bundle;
use parking_lot::{Condvar, Mutex};
use rustls::{ServerConnection, StreamOwned};

use crate::daemon::budgets::Budgets;
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::mirrors::Mirrors;
use crate::mirrors::error::MirrorsError;
use crate::mirrors::followers::Followers;
use crate::mirrors::offered::{Offered, serve};
use crate::peers::error::PeersError;
use crate::peers::identity::{Fingerprint, Identity};
use crate::peers::stall::{is_late, is_silence, set_patience};
use crate::peers::watched::Watched;
use crate::peers::wire::{Hello, LANES_MAX, Lane, PEER_VERSION, Welcome};
use crate::peers::{Peers, tls, wire};
use crate::volumes::Volumes;
use crate::work::background;

/// A peer that sends nothing for this time before its admission is disconnected. Idle connections
/// must not hold threads.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// A peer that is not admitted by then is disconnected, whatever it sends: the places are limited.
const HELLO_LONGEST: Duration = Duration::from_secs(20);
/// One peer gets at most the places for admitted peers divided by this.
const PEER_PART: usize = 2;
/// The interval at which a connection that waits for a place checks whether the server ends.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The connections, to cut them off at the end or in favour of others.
struct Connections {
    by_number: HashMap<u64, Connection>,
    /// Connections whose peer is not admitted yet. They make room for each other, and take no place
    /// from admitted peers.
    lobby: Lobby,
}

struct Connection {
    stream: TcpStream,
    /// The admitted peer.
    peer: Option<Fingerprint>,
}

impl Connections {
    /// A peer was let in, if there is room for it.
    fn admit(&mut self, number: u64, peer: Fingerprint, most: usize) -> Result<(), ServerError> {
        let peers = self.by_number.values().filter_map(|connection| connection.peer);
        let (mut all, mut own) = (0, 0);
        for other in peers {
            all += 1;
            own += usize::from(other == peer);
        }
        if all >= most || own >= most.div_ceil(PEER_PART) {
            return Err(ServerError::Invalid {
                fault: "the source has reached its limit of mirror connections",
                next: "retry later, or abort another transfer with `cairn mirror abort`",
            });
        }
        // If the connection was closed in favour of another, its number no longer exists.
        if let Some(connection) = self.by_number.get_mut(&number) {
            connection.peer = Some(peer);
        }
        self.lobby.leave(number);
        Ok(())
    }

    fn forget(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.by_number.remove(number);
            self.lobby.leave(*number);
        }
    }
}

struct Shared {
    tls: Arc<rustls::ServerConfig>,
    peers: Arc<Peers>,
    volumes: Arc<Volumes>,
    clock: Arc<dyn Clock>,
    source: Arc<cairn_mirror::Source>,
    /// A peer that neither takes nor gives a byte for this time in a transfer is disconnected.
    patience: Duration,
    followers: Arc<Followers>,
    mirrors: Arc<Mirrors>,
    ending: AtomicBool,
    next: AtomicU64,
    connections: Mutex<Connections>,
    /// Connections of peers that were let in, at most.
    most: usize,
    gathering: Gathering,
    /// Further places that are listened on ([`Source::opener`]).
    further: Mutex<Vec<(SocketAddr, JoinHandle<()>)>>,
}

/// The listener.
pub(crate) struct Source {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Source {
    #[expect(clippy::too_many_arguments, reason = "each is another part of the server")]
    pub(crate) fn start(
        listener: TcpListener,
        identity: &Identity,
        peers: Arc<Peers>,
        volumes: Arc<Volumes>,
        clock: Arc<dyn Clock>,
        source: Arc<cairn_mirror::Source>,
        patience: Duration,
        followers: Arc<Followers>,
        mirrors: Arc<Mirrors>,
        budgets: Budgets,
    ) -> Result<Self, ServerError> {
        let shared = Arc::new(Shared {
            tls: tls::mirror_server(identity)?,
            peers,
            volumes,
            clock,
            source,
            patience,
            followers,
            mirrors,
            ending: AtomicBool::new(false),
            next: AtomicU64::new(0),
            connections: Mutex::new(Connections {
                by_number: HashMap::new(),
                lobby: Lobby::new(budgets.strangers),
            }),
            most: budgets.mirrors,
            gathering: Gathering::default(),
            further: Mutex::default(),
        });
        let failed = |source| {
            ServerError::Daemon(DaemonError::Listen { address: "the mirror address".to_owned(), source })
        };
        let address = listener.local_addr().map_err(failed)?;
        let mine = shared.clone();
        let thread = std::thread::Builder::new()
            .name("mirror-accept".to_owned())
            .spawn(move || accept(&listener, &mine))
            .map_err(failed)?;
        Ok(Self { shared, address, thread })
    }

    /// Accepts no more connections, and cuts off the existing ones.
    pub(crate) fn end(self) {
        self.shared.ending.store(true, Ordering::Release);
        for connection in self.shared.connections.lock().by_number.values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        wake(self.address, self.thread);
        for (address, thread) in std::mem::take(&mut *self.shared.further.lock()) {
            wake(address, thread);
        }
    }

    /// Listens at an address of this machine as well, at the same port, and returns that address.
    /// Returns `None` if it already listens there.
    pub(crate) fn opener(&self) -> impl Fn(IpAddr) -> io::Result<Option<SocketAddr>> + Send + Sync + 'static {
        // Weak, because the shared state has the mirrors, which have this function.
        let (shared, main) = (Arc::downgrade(&self.shared), self.address);
        move |ip: IpAddr| {
            let Some(shared) = shared.upgrade() else { return Ok(None) };
            if main.ip().is_unspecified() || main.ip() == ip {
                return Ok(None);
            }
            let mut further = shared.further.lock();
            let address = SocketAddr::new(ip, main.port());
            if further.iter().any(|(known, _)| *known == address) || shared.ending.load(Ordering::Acquire) {
                return Ok(None);
            }
            let listener = TcpListener::bind(address)?;
            let mine = shared.clone();
            let thread = std::thread::Builder::new()
                .name("mirror-accept".to_owned())
                .spawn(move || accept(&listener, &mine))?;
            further.push((address, thread));
            Ok(Some(address))
        }
    }
}

/// Wakes a thread that accepts, and waits for its end.
fn wake(mut address: SocketAddr, thread: JoinHandle<()>) {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
        let _ = thread.join();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.ending.load(Ordering::Acquire) {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: nothing is gained by asking again at once.
                tracing::warn!(%error, "a mirror connection could not be accepted");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if shared.ending.load(Ordering::Acquire) {
            return;
        }
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let Ok(handle) = stream.try_clone() else { continue };
        if !make_room(shared, peer.ip().to_canonical(), id, handle) {
            return;
        }
        let mine = shared.clone();
        let talk = move || {
            background::step_back();
            let mut own = vec![id];
            if let Err(error) = converse(stream, id, &mine, &mut own) {
                tracing::warn!(%peer, %error, "a mirror connection failed");
            }
            mine.connections.lock().forget(&own);
        };
        if std::thread::Builder::new().name(format!("mirror-{peer}")).spawn(talk).is_err() {
            shared.connections.lock().forget(&[id]);
        }
    }
}

/// Gives a connection a place, that of another one if need be. Until there is one, the next
/// connections wait in the queue of the kernel. False when the server ends.
fn make_room(shared: &Shared, from: IpAddr, number: u64, stream: TcpStream) -> bool {
    loop {
        let wait = {
            let mut connections = shared.connections.lock();
            let now = Instant::now();
            match connections.lobby.place(Some(from), now) {
                Place::After(wait) => wait.clamp(Duration::from_millis(1), LOOK_EVERY),
                place => {
                    if let Place::Of(other) = place {
                        connections.lobby.leave(other);
                        if let Some(other) = connections.by_number.remove(&other) {
                            tracing::warn!(%from, "too many connections where mirrors come say not who they are; closed one");
                            let _ = other.stream.shutdown(Shutdown::Both);
                        }
                    }
                    connections.lobby.enter(number, Some(from), now);
                    connections.by_number.insert(number, Connection { stream, peer: None });
                    return true;
                }
            }
        };
        if shared.ending.load(Ordering::Acquire) {
            return false;
        }
        std::thread::sleep(wait);
    }
}

/// Serves a connection. `own` is its number at first, and then the numbers to forget when this
/// returns: none if the connection was handed to the first one of its bundle, all numbers of the
/// bundle if this is the first one.
fn converse(stream: TcpStream, number: u64, shared: &Shared, own: &mut Vec<u64>) -> Result<(), ServerError> {
    let address = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
    let hello_patience = HELLO_PATIENCE.min(shared.patience);
    let cut = |source: io::Error| match is_late(&source) {
        true => ServerError::Peers(PeersError::Silent {
            peer: "destination",
            address: address.clone(),
            patience: hello_patience,
        }),
        false => ServerError::Peers(PeersError::PeerGone { address: address.clone(), source }),
    };
    stream.set_nodelay(true).map_err(cut)?;
    // A peer that sends a byte at least keeps its place before silent ones.
    stream.set_read_timeout(Some(hello_patience)).map_err(cut)?;
    stream.peek(&mut [0]).map_err(cut)?;
    shared.connections.lock().lobby.spoke(number);
    let mut stream = Watched::new(stream, shared.clock.clone(), hello_patience);
    set_patience(&mut stream, hello_patience).map_err(cut)?;
    stream.set_end(Some(HELLO_LONGEST));
    let mut stream = StreamOwned::new(ServerConnection::new(shared.tls.clone())?, stream);
    let hello: Hello = wire::receive(&mut stream).map_err(cut)?;
    if hello.version != PEER_VERSION {
        wire::send(&mut stream, &Welcome::Version { version: PEER_VERSION }).map_err(cut)?;
        return Err(ServerError::Peers(PeersError::PeerVersion {
            theirs: hello.version,
            ours: PEER_VERSION,
        }));
    }
    let admitted = admit(&hello, &stream, shared).and_then(|certificate| {
        shared.connections.lock().admit(number, certificate, shared.most)?;
        Ok(certificate)
    });
    let certificate = match admitted {
        Ok(certificate) => certificate,
        Err(error) => {
            wire::send(&mut stream, &Welcome::Refused(error.body())).map_err(cut)?;
            return Err(error);
        }
    };
    stream.sock.set_end(None);
    let lanes = match &hello.lane {
        None => {
            wire::send(&mut stream, &Welcome::Accepted).map_err(cut)?;
            vec![stream]
        }
        Some(lane) => {
            let key = (certificate, lane.bundle.clone());
            if let Err(error) = shared.gathering.expect(&key, lane) {
                wire::send(&mut stream, &Welcome::Refused(error.body())).map_err(cut)?;
                return Err(error);
            }
            let accepted = wire::send(&mut stream, &Welcome::Accepted).map_err(cut);
            if lane.index > 0 {
                accepted?;
                shared.gathering.join(&key, lane.index, own, stream);
                return Ok(());
            }
            let others = accepted.and_then(|()| {
                let gathered = shared.gathering.wait(&key, hello_patience);
                gathered.ok_or_else(|| cut(io::ErrorKind::TimedOut.into()))
            });
            own.extend(shared.gathering.forget(&key));
            let mut lanes = vec![stream];
            for (number, other) in others? {
                own.push(number);
                lanes.push(other);
            }
            lanes
        }
    };
    let patience =
        hello.stall_ms.map_or(shared.patience, |ms| shared.patience.min(Duration::from_millis(ms)));
    let patience = patience.max(Duration::from_millis(1));
    let mut stream = Bundle::new(lanes);
    for lane in stream.lanes_mut() {
        set_patience(&mut lane.sock, patience).map_err(cut)?;
    }
    let offered = Offered {
        volumes: &shared.volumes,
        peers: &shared.peers,
        mirrors: &shared.mirrors,
        certificate,
        host: stream.lanes()[0].sock.get_ref().peer_addr().ok().map(|peer| peer.ip().to_canonical()),
        ending: &shared.ending,
        last_refusal: hello.last_refusal,
    };
    let outcome = serve(&mut stream, &shared.source, &offered, &shared.ending);
    shared.followers.keep(&shared.source);
    outcome.map_err(|source| match is_silence(&source) {
        true => ServerError::Peers(PeersError::Silent { peer: "destination", address, patience }),
        false => {
            ServerError::Mirrors(MirrorsError::Mirror { volume: hello.volume, source: Box::new(source) })
        }
    })
}

/// One connection from a destination.
type DestinationLane = StreamOwned<ServerConnection, Watched<TcpStream>>;
/// The peer of a bundle, and its key.
type BundleKey = (Fingerprint, String);

/// A connection with its number.
type Numbered = (u64, DestinationLane);

/// Connections of bundles that are not complete.
#[derive(Default)]
struct Gathering {
    waiting: Mutex<HashMap<BundleKey, Vec<Option<Numbered>>>>,
    joined: Condvar,
}

impl Gathering {
    /// Whether a connection may come; the first one makes room for the others.
    fn expect(&self, key: &BundleKey, lane: &Lane) -> Result<(), ServerError> {
        let refused = ServerError::Invalid {
            fault: "the connection does not belong to a bundle of at most 16",
            next: "install the same version of cairn on both servers",
        };
        if !(2..=LANES_MAX).contains(&lane.lanes) || lane.index >= lane.lanes {
            return Err(refused);
        }
        let mut waiting = self.waiting.lock();
        let others = waiting.get(key);
        match (lane.index, others) {
            (0, None) => {
                waiting.insert(key.clone(), (1..lane.lanes).map(|_| None).collect());
                Ok(())
            }
            (index, Some(others))
                if others.get((index as usize).wrapping_sub(1)).is_some_and(Option::is_none) =>
            {
                Ok(())
            }
            _ => Err(refused),
        }
    }

    /// Hands a connection over to the first one of its bundle.
    fn join(&self, key: &BundleKey, index: u32, own: &mut Vec<u64>, stream: DestinationLane) {
        let mut waiting = self.waiting.lock();
        let place = waiting.get_mut(key).and_then(|others| others.get_mut(index as usize - 1));
        // Otherwise no connection waits for it any more.
        if let (Some(place @ None), Some(number)) = (place, own.first()) {
            *place = Some((*number, stream));
            own.clear();
        }
        drop(waiting);
        self.joined.notify_all();
    }

    /// Waits for the others of a bundle.
    fn wait(&self, key: &BundleKey, patience: Duration) -> Option<Vec<Numbered>> {
        let until = Instant::now() + patience;
        let mut waiting = self.waiting.lock();
        loop {
            let others = waiting.get_mut(key)?;
            if others.iter().all(Option::is_some) {
                return Some(others.drain(..).flatten().collect());
            }
            if self.joined.wait_until(&mut waiting, until).timed_out() {
                return None;
            }
        }
    }

    /// The numbers of connections that had come in vain.
    fn forget(&self, key: &BundleKey) -> Vec<u64> {
        let left = self.waiting.lock().remove(key).unwrap_or_default();
        left.into_iter().flatten().map(|(number, _)| number).collect()
    }
}

fn admit(hello: &Hello, stream: &DestinationLane, shared: &Shared) -> Result<Fingerprint, ServerError> {
    let certificates = stream.conn.peer_certificates().unwrap_or_default();
    let certificate =
        certificates.first().map(Fingerprint::of).ok_or(ServerError::Peers(PeersError::PeerNotPinned))?;
    if let Some(credential) = &hello.credential
        && shared.volumes.get(&hello.volume).is_err()
    {
        // A mistyped volume must not use the token up, and only the holder of a token learns the
        // names of volumes.
        shared.peers.knows(certificate, credential, &hello.volume)?;
        shared.volumes.get(&hello.volume)?;
    }
    let id = shared.volumes.get(&hello.volume).ok().map(|open| open.volume.id());
    shared.peers.admit(&*shared.clock, certificate, hello.credential.as_ref(), &hello.volume, id)?;
    if let Ok(address) = stream.sock.get_ref().peer_addr() {
        shared.peers.name_after(certificate, &address.ip().to_canonical().to_string());
    }
    Ok(certificate)
}
