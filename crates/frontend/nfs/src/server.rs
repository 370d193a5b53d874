//! The server: threads that take connections, and a thread for each connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use cairn_frontend_session::{Acceptors, Socket, Totals};
use parking_lot::{Condvar, Mutex};

use crate::exports::Exports;
use crate::limits::LOOK_EVERY;
use crate::listener::{Listener, Peer};
use crate::locks::Locks;
use crate::locks::courier::Courier;
use crate::locks::host::Forgetful;
use crate::registration::{Registered, Registration};
use crate::registry::{Registry, SessionInfo};
use crate::running::{ServerOptions, Shared};
use crate::session;
use crate::session::SessionEnd;
use crate::warnings::Warnings;

/// The thread that releases idle images; it ends when this is dropped.
struct Rest {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Rest {
    fn start(exports: Arc<dyn Exports>) -> io::Result<Self> {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let own = ending.clone();
        let look = move || {
            let (is_ending, woken) = &*own;
            let mut guard = is_ending.lock();
            while !*guard {
                woken.wait_for(&mut guard, LOOK_EVERY);
                exports.rest();
            }
        };
        let thread = std::thread::Builder::new().name("nfs-rest".to_owned()).spawn(look)?;
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        *self.ending.0.lock() = true;
        self.ending.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for idle images of NFS had panicked");
        }
    }
}

/// A running server. Dropping it stops it.
pub struct NfsServer {
    shared: Arc<Shared>,
    addresses: Vec<String>,
    acceptors: Acceptors,
    _rest: Rest,
    _courier: Courier,
    /// None once the server stops.
    registration: Mutex<Option<Registration>>,
}

impl NfsServer {
    /// Serves `exports` on `listeners`, on threads of its own.
    ///
    /// # Errors
    /// The system gives no thread or no socket.
    pub fn start(
        mut listeners: Vec<Listener>,
        exports: Arc<dyn Exports>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        for (number, listener) in listeners.iter_mut().enumerate() {
            listener.number = number;
        }
        // A server without addresses has no clients, and begins no grace period.
        let record = match listeners.is_empty() {
            true => Arc::new(Forgetful),
            false => Arc::clone(&options.lock_record),
        };
        let locks = Locks::start(record, options.lock_grace, options.portmap_port);
        let courier = Courier::start(Arc::clone(&locks))?;
        let shared = Arc::new(Shared {
            locks,
            registry: Registry::new(options.max_handshakes),
            exports: exports.clone(),
            options,
            replies: Arc::default(),
            warnings: Warnings::default(),
        });
        let addresses = listeners.iter().map(Listener::address).collect();
        let places = listeners.iter().filter_map(Listener::local).collect();
        let registration = Registration::start(places, shared.options.portmap_port, &shared.locks)?;
        let (full, begun) = (Arc::clone(&shared), Arc::clone(&shared));
        let wait = move |peer: &Peer| full.registry.time_to_place(peer);
        let begin = move |peer, socket| start_session(&begun, peer, socket);
        let acceptors = Acceptors::start("nfs", listeners, wait, begin)?;
        Ok(Self {
            shared,
            addresses,
            acceptors,
            _rest: Rest::start(exports)?,
            _courier: courier,
            registration: Mutex::new(Some(registration)),
        })
    }

    /// Where it listens, with the ports that it got.
    pub fn addresses(&self) -> &[String] {
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

    /// Locks and shares that clients have.
    pub fn locks(&self) -> usize {
        self.shared.locks.count()
    }

    /// The state of the entries in the port mapper.
    pub fn registered(&self) -> Registered {
        self.registration.lock().as_ref().map_or(Registered::Off, Registration::state)
    }

    /// Takes no more connections, ends all sessions and waits for them. Requests that have begun
    /// complete.
    pub fn stop(&self) {
        // Clients that connect from now on find another server, if any.
        drop(self.registration.lock().take());
        self.acceptors.stop();
        self.shared.registry.stop();
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_session(shared: &Arc<Shared>, peer: Peer, socket: Socket) -> io::Result<()> {
    let Some(entry) = shared.registry.connected(peer, socket.another()) else { return Ok(()) };
    let (own, serving) = (Arc::clone(shared), Arc::clone(&entry));
    shared.registry.serve(&entry, move || {
        let entry = serving;
        let peer = entry.peer.address;
        match session::run(&own, &entry, &socket) {
            Ok(()) => tracing::debug!(session = entry.id, %peer, "session ended"),
            Err(SessionEnd::Connection(error)) => {
                tracing::debug!(session = entry.id, %peer, %error, "the client disconnected");
            }
            Err(error) => tracing::info!(session = entry.id, %peer, %error, "closed a session"),
        }
        // The roster has another handle: without this the peer would wait.
        socket.close();
    })
}
