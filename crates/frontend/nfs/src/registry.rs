//! The connections of a server: their clients, their activity, and how to end them.
//!
//! A connection whose client has shown no handle of an export that admits it is one of a stranger:
//! it has a place among those that negotiate, for a limited time. So strangers take no places from
//! clients. MOUNT, and a look whether the server is there, need no more than that.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_frontend_session::{Activity, Connection, Member, Room, Roster, Session, Socket, Totals, room};

use crate::listener::Peer;

/// A session as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    /// Never given twice by one server.
    pub id: u64,
    /// The client's address.
    pub peer: String,
    /// The first export that it has used: `VOLUME:/PATH`.
    pub export: String,
    /// Its activity since it began.
    pub totals: Totals,
    /// Its activity in the last seconds.
    pub activity: Activity,
}

/// A connection, from its acceptance to its end.
pub(crate) struct Entry {
    connection: Connection,
    pub(crate) peer: Peer,
    /// It was closed to make room for another.
    evicted: AtomicBool,
}

impl Deref for Entry {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Member for Entry {
    fn peer(&self) -> String {
        self.peer.address.to_string()
    }
}

struct Established {
    entry: Arc<Entry>,
    export: String,
}

impl Session for Established {
    type Member = Entry;

    fn member(&self) -> &Arc<Entry> {
        &self.entry
    }

    fn export(&self) -> Option<&str> {
        Some(&self.export)
    }
}

/// All connections of a server.
pub(crate) struct Registry {
    roster: Arc<Roster<Established>>,
}

/// The server takes no more sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Registry {
    /// With places for `handshakes_max` strangers of each listener.
    pub(crate) fn new(handshakes_max: usize) -> Self {
        Self { roster: Arc::new(Roster::new(handshakes_max)) }
    }

    /// How long there is no place for a client that connects.
    pub(crate) fn time_to_place(&self, peer: &Peer) -> Duration {
        self.roster.time_to_place(peer.listener, Some(peer.address.ip().to_canonical()))
    }

    /// A client connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: Peer, socket: Socket) -> Option<Arc<Entry>> {
        let (listener, from) = (peer.listener, Some(peer.address.ip().to_canonical()));
        let entry = |connection| Entry { connection, peer, evicted: AtomicBool::new(false) };
        self.roster.connected(listener, from, socket, entry)
    }

    /// Serves a connection on a thread of its own.
    pub(crate) fn serve(&self, entry: &Entry, serve: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.roster.serve("nfs", entry.id, serve)
    }

    /// A stranger has sent data.
    pub(crate) fn spoke(&self, entry: &Entry) {
        self.roster.spoke(entry);
    }

    /// A client uses an export: it is no stranger any more.
    ///
    /// # Errors
    /// [`Full`]: there are as many sessions as there may be, or the server stops.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        export: &str,
        sessions_max: usize,
    ) -> Result<(), Full> {
        let mut table = self.roster.lock();
        if table.stopping {
            return Err(Full);
        }
        let others = table.established.values().map(|other| &other.entry);
        let others = others.filter(|other| other.is_beside(entry) && !other.evicted.load(Ordering::Relaxed));
        let seats: Vec<_> = others.map(|other| other.seat(other.meter.totals().requests == 0)).collect();
        match room(&seats, entry.from, sessions_max, Instant::now()) {
            Room::Free => {}
            Room::Full => return Err(Full),
            Room::Of(id) => {
                if let Some(Established { entry: unused, .. }) = table.established.get(&id) {
                    unused.evicted.store(true, Ordering::Relaxed);
                    unused.close();
                }
            }
        }
        table.establish(Established { entry: Arc::clone(entry), export: export.to_owned() });
        Ok(())
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let table = self.roster.lock();
        let now = Instant::now();
        let info = |Established { entry, export }: &Established| SessionInfo {
            id: entry.id,
            peer: entry.peer.address.to_string(),
            export: export.clone(),
            totals: entry.meter.totals(),
            activity: entry.meter.activity(now),
        };
        table.established.values().map(info).collect()
    }

    /// The activity of clients of each export so far, also of those that are gone.
    pub(crate) fn totals(&self) -> BTreeMap<String, Totals> {
        self.roster.totals()
    }

    /// Ends all sessions and admits no new ones; waits until they are gone.
    pub(crate) fn stop(&self) {
        if !self.roster.stop(|session| session.entry.close()) {
            tracing::warn!("NFS sessions are still in the middle of an operation");
        }
    }
}
