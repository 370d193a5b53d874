//! The server: threads that take connections, and a thread for each connection.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_frontend_session::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, SESSIONS_MAX};
use cairn_frontend_session::{Acceptors, Socket, Totals, Unfinished, Windows};

use crate::attend;
use crate::listener::Listener;
use crate::pacer::Pacer;
use crate::registry::{Registry, SessionInfo};
use crate::session::{self, SessionEnd};
use crate::targets::Targets;
use crate::units::Units;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Sessions at once of initiators that need not prove themselves, and as many of those that
    /// have; one more is refused.
    pub max_sessions: usize,
    /// An initiator that has not logged in by then is closed.
    pub login_timeout: Duration,
    /// The portal that discovery names (`HOST:PORT`), when it is not the one that the initiator
    /// came to.
    pub advertise: Option<String>,
    /// Initiators that log in at once; one more takes the place of another.
    pub max_handshakes: usize,
    /// The memory that sessions may hold for data, which other servers may share.
    pub windows: Arc<Windows>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_sessions: SESSIONS_MAX,
            login_timeout: HANDSHAKE_TIMEOUT,
            advertise: None,
            max_handshakes: HANDSHAKES_MAX,
            windows: Arc::default(),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) options: ServerOptions,
    pub(crate) registry: Registry,
    pub(crate) units: Units,
    pub(crate) windows: Arc<Windows>,
    pub(crate) pacer: Pacer,
}

/// A running server. Dropping it stops it.
pub struct IscsiServer {
    shared: Arc<Shared>,
    addresses: Vec<String>,
    acceptors: Acceptors,
}

impl IscsiServer {
    /// Serves `targets` on `listeners`, on threads of its own.
    pub fn start(
        listeners: Vec<Listener>,
        targets: Arc<dyn Targets>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let windows = Arc::clone(&options.windows);
        let shared = Arc::new(Shared {
            targets,
            registry: Registry::new(options.max_handshakes),
            options,
            units: Units::default(),
            windows,
            pacer: Pacer::default(),
        });
        let addresses = listeners.iter().map(Listener::address).collect();
        let (full, begun) = (Arc::clone(&shared), Arc::clone(&shared));
        let wait = move |peer: &SocketAddr| full.registry.time_to_place(*peer);
        let begin = move |peer, socket| start_session(&begun, peer, socket);
        let acceptors = Acceptors::start("iscsi", listeners, wait, begin)?;
        attend::start(&shared)?;
        Ok(Self { shared, addresses, acceptors })
    }

    /// Its portals, with the ports that they got.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The present sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.registry.sessions()
    }

    /// The activity of initiators of each export since the start, also of those that are gone.
    pub fn totals(&self) -> BTreeMap<String, Totals> {
        self.shared.registry.totals()
    }

    /// Ends the sessions of an export; returns how many there were. When it returns they can change
    /// nothing any more: waiting commands are dropped, and those that had begun are over. Remove
    /// the target from [`Targets`] first, or initiators come back.
    ///
    /// # Errors
    /// The device does not finish commands that it has begun. The sessions are ended, and the
    /// caller must leave the device as it is.
    pub fn close_export(&self, export: &str) -> Result<usize, Unfinished> {
        self.shared.registry.close_export(export)
    }

    /// Takes no more connections, ends all sessions and waits for them. Commands that a device has
    /// begun complete; unflushed writes are as durable as the device makes them.
    pub fn stop(&self) {
        self.acceptors.stop();
        self.shared.registry.stop();
    }
}

impl Drop for IscsiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_session(shared: &Arc<Shared>, peer: SocketAddr, socket: Socket) -> io::Result<()> {
    let Some(entry) = shared.registry.connected(peer, socket.another()) else { return Ok(()) };
    let (own, serving, socket) = (Arc::clone(shared), Arc::clone(&entry), Arc::new(socket));
    shared.registry.serve(&entry, move || {
        let entry = serving;
        match session::run(&own, &entry, &socket) {
            Ok(()) => tracing::debug!(session = entry.id, peer = %entry.peer, "session ended"),
            Err(SessionEnd::Connection(error)) => {
                tracing::debug!(session = entry.id, peer = %entry.peer, %error, "the initiator disconnected");
            }
            Err(error) => tracing::info!(session = entry.id, peer = %entry.peer, %error, "closed a session"),
        }
        // The roster has another handle: without this the peer would wait.
        socket.close();
    })
}
