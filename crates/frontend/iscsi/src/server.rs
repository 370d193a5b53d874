//! The server: threads that take connections, and a thread for each connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::SESSIONS_MAX;
use crate::registry::{Registry, SessionInfo};
use crate::session::{self, SessionEnd};
use crate::socket::{Listener, Socket};
use crate::targets::Targets;
use crate::units::Units;
use crate::window::Windows;

/// What a server allows and says.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Sessions at once; one more is refused.
    pub max_sessions: usize,
    /// The portal that discovery names (`HOST:PORT`), when it is not the one that the initiator came to.
    pub advertise: Option<String>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { max_sessions: SESSIONS_MAX, advertise: None }
    }
}

pub(crate) struct Shared {
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) options: ServerOptions,
    pub(crate) registry: Registry,
    pub(crate) units: Units,
    pub(crate) windows: Arc<Windows>,
}

/// A running server. Dropping it stops it.
pub struct IscsiServer {
    shared: Arc<Shared>,
    addresses: Vec<String>,
    /// Closing this end wakes the threads that take connections, and ends them.
    wake: Mutex<Option<UnixStream>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl IscsiServer {
    /// Serves `targets` on `listeners`, on threads of its own.
    pub fn start(
        listeners: Vec<Listener>,
        targets: Arc<dyn Targets>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            targets,
            options,
            registry: Registry::default(),
            units: Units::default(),
            windows: Arc::default(),
        });
        let addresses = listeners.iter().map(Listener::address).collect();
        let (wake, woken) = UnixStream::pair()?;
        let server = Self {
            shared: Arc::clone(&shared),
            addresses,
            wake: Mutex::new(Some(wake)),
            acceptors: Mutex::new(Vec::new()),
        };
        for listener in listeners {
            let woken = woken.try_clone()?;
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("iscsi-accept".to_owned())
                .spawn(move || take_connections(&listener, &woken, &shared))?;
            server.acceptors.lock().push(thread);
        }
        Ok(server)
    }

    /// Its portals, with the ports that they got.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The sessions that there are now.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.registry.sessions()
    }

    /// Ends the sessions of an export and waits until they have let go of its device; returns how many there were. Take the target
    /// out of [`Targets`] first, or initiators come back.
    pub fn close_export(&self, export: &str) -> usize {
        self.shared.registry.close_export(export)
    }

    /// Takes no more connections, ends all sessions and waits for them. What a device has begun it finishes; what
    /// was not flushed is as durable as the device makes it.
    pub fn stop(&self) {
        drop(self.wake.lock().take());
        for acceptor in self.acceptors.lock().drain(..) {
            if acceptor.join().is_err() {
                tracing::error!("a thread that takes iSCSI connections panicked");
            }
        }
        self.shared.registry.stop();
    }
}

impl Drop for IscsiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How long accepting pauses when the system is out of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn take_connections(listener: &Listener, woken: &UnixStream, shared: &Arc<Shared>) {
    loop {
        let mut waiting =
            [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(address = listener.address(), %error, "iSCSI connections can't be taken any more");
                return;
            }
        }
        if !waiting[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((peer, socket)) => {
                if let Err(error) = start_session(shared, peer, socket) {
                    tracing::warn!(%error, "a connection was dropped: there is no thread for it");
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection can't be taken; trying again");
                let pause = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE.subsec_nanos().into() };
                // Ends early when the server stops; whatever it returns, the loop looks again.
                let _ = poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&pause));
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
    )
}

/// Takes a connection off the table of its server, also when its thread panics.
struct Ending(Arc<Shared>, u64);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.registry.ended(self.1);
    }
}

fn start_session(shared: &Arc<Shared>, peer: SocketAddr, socket: Socket) -> io::Result<()> {
    let Some(entry) = shared.registry.connected(peer, socket.another()?) else { return Ok(()) };
    let ending = Ending(Arc::clone(shared), entry.id);
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(format!("iscsi-{}", entry.id)).spawn(move || {
        let _ending = ending;
        match session::run(&shared, &entry, &socket) {
            Ok(()) => tracing::debug!(session = entry.id, peer = %entry.peer, "session ended"),
            Err(SessionEnd::Connection(error)) => {
                tracing::debug!(session = entry.id, peer = %entry.peer, %error, "the initiator went away");
            }
            Err(error) => tracing::info!(session = entry.id, peer = %entry.peer, %error, "closed a session"),
        }
        // The registry has another handle: without this the peer would wait.
        socket.close();
    })?;
    Ok(())
}
