//! The server: threads that take connections, and a thread for each connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use cairn_frontend_session::limits::{HANDSHAKES_MAX, SESSIONS_MAX};
use cairn_frontend_session::{Acceptors, Socket, Totals, Unfinished, Windows};

use crate::address::Address;
use crate::exports::Exports;
use crate::listener::{Listener, Peer};
use crate::registry::{Registry, SessionInfo};
use crate::session::{self, SessionEnd};

/// Settings of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Certificate and key; without them there is no TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Nothing is answered before TLS. Needs `tls`.
    pub tls_required: bool,
    /// Sessions at once, of each listener; one more is refused.
    pub max_sessions: usize,
    /// Clients of each listener that negotiate at once; one more takes the place of another.
    pub max_handshakes: usize,
    /// The memory that sessions may hold for data, which other servers may share.
    pub windows: Arc<Windows>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tls: None,
            tls_required: false,
            max_sessions: SESSIONS_MAX,
            max_handshakes: HANDSHAKES_MAX,
            windows: Arc::default(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// TLS is required without a certificate.
    #[error("TLS is required, but there is no certificate; configure one, or do not require TLS")]
    NoCertificate,
    /// The system provided no thread or no socket.
    #[error("can't start the NBD server: {0}")]
    System(#[from] io::Error),
}

pub(crate) struct Shared {
    pub(crate) exports: Arc<dyn Exports>,
    pub(crate) options: ServerOptions,
    pub(crate) registry: Registry,
    pub(crate) windows: Arc<Windows>,
}

/// A running server. Dropping it stops it.
pub struct NbdServer {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    acceptors: Acceptors,
}

impl NbdServer {
    /// Serves `exports` on `listeners`, on threads of its own.
    pub fn start(
        mut listeners: Vec<Listener>,
        exports: Arc<dyn Exports>,
        options: ServerOptions,
    ) -> Result<Self, StartError> {
        if options.tls_required && options.tls.is_none() {
            return Err(StartError::NoCertificate);
        }
        for (number, listener) in listeners.iter_mut().enumerate() {
            listener.number = number;
        }
        let windows = Arc::clone(&options.windows);
        let registry = Registry::new(options.max_handshakes);
        let shared = Arc::new(Shared { exports, options, registry, windows });
        let addresses = listeners.iter().map(Listener::address).collect();
        let (full, begun) = (Arc::clone(&shared), Arc::clone(&shared));
        let wait = move |peer: &Peer| full.registry.time_to_place(peer);
        let begin = move |peer, socket| start_session(&begun, peer, socket);
        let acceptors = Acceptors::start("nbd", listeners, wait, begin)?;
        Ok(Self { shared, addresses, acceptors })
    }

    /// Where it listens, with the ports that it got.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The sessions that use an export now.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.registry.sessions()
    }

    /// The activity of clients of each export since the start, also of those that are gone.
    pub fn totals(&self) -> BTreeMap<String, Totals> {
        self.shared.registry.totals()
    }

    /// Ends the sessions of an export; returns how many there were. When it returns they can change
    /// nothing any more: waiting requests are dropped, and those that had begun are over. Remove
    /// the export from [`Exports`] first, or clients come back.
    ///
    /// # Errors
    /// The device does not finish requests that it has begun. The sessions are ended, and the
    /// caller must leave the device as it is.
    pub fn close_export(&self, name: &str) -> Result<usize, Unfinished> {
        self.shared.registry.close_export(name)
    }

    /// Takes no more connections, ends all sessions and waits for them. Requests that a device has
    /// begun complete; unflushed writes are as durable as the device makes them.
    pub fn stop(&self) {
        self.acceptors.stop();
        self.shared.registry.stop();
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_session(shared: &Arc<Shared>, peer: Peer, socket: Socket) -> io::Result<()> {
    let Some(entry) = shared.registry.connected(peer, socket.another()) else { return Ok(()) };
    let (own, serving) = (Arc::clone(shared), Arc::clone(&entry));
    shared.registry.serve(&entry, move || {
        let entry = serving;
        match session::run(&own, &entry, socket) {
            Ok(()) => tracing::debug!(session = entry.id, peer = entry.peer, "session ended"),
            Err(SessionEnd::Connection(error)) => {
                tracing::debug!(session = entry.id, peer = entry.peer, %error, "the client disconnected");
            }
            Err(error) => tracing::info!(session = entry.id, peer = entry.peer, %error, "closed a session"),
        }
    })
}
