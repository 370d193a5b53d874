//! The sessions of a server: their peers, their activity, and how to end them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_frontend_session::limits::{CLOSE_PATIENCE, HANDSHAKES_MAX, LAST_ANSWERS, LINGER};
use cairn_frontend_session::{
    Activity, Connection, Member, Room, Roster, Session, Socket, Totals, Unfinished, room, wait_for_begun,
};

use crate::listener::Peer;

/// A session as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    /// Never given twice by one server.
    pub id: u64,
    /// The client's address; "unix" for a unix socket.
    pub peer: String,
    /// The export in use.
    pub export: String,
    /// Its activity since it began.
    pub totals: Totals,
    /// Its activity in the last seconds.
    pub activity: Activity,
    /// It is encrypted.
    pub tls: bool,
}

/// A connection, from its acceptance to its end.
pub(crate) struct Entry {
    connection: Connection,
    pub(crate) peer: String,
    /// Over TCP.
    pub(crate) from: Option<IpAddr>,
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
        self.peer.clone()
    }
}

struct Established {
    entry: Arc<Entry>,
    export: String,
    tls: bool,
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

impl Default for Registry {
    fn default() -> Self {
        Self::new(HANDSHAKES_MAX)
    }
}

/// Why a session was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotLetIn {
    TooMany,
    Stopping,
    /// A device has not finished changes of an earlier session.
    Unfinished,
}

impl Registry {
    /// With places for `handshakes_max` negotiating clients of each listener.
    pub(crate) fn new(handshakes_max: usize) -> Self {
        Self { roster: Arc::new(Roster::new(handshakes_max)) }
    }

    /// How long there is no place for a client that connects.
    pub(crate) fn time_to_place(&self, peer: &Peer) -> Duration {
        self.roster.time_to_place(peer.listener, peer.from)
    }

    /// A client connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: Peer, socket: Socket) -> Option<Arc<Entry>> {
        let Peer { name, from, listener } = peer;
        let entry = |connection| Entry { connection, peer: name, from, evicted: AtomicBool::new(false) };
        self.roster.connected(listener, from, socket, entry)
    }

    /// Serves a connection on a thread of its own.
    pub(crate) fn serve(&self, entry: &Entry, serve: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.roster.serve("nbd", entry.id, serve)
    }

    /// A negotiating client has sent data.
    pub(crate) fn spoke(&self, entry: &Entry) {
        self.roster.spoke(entry);
    }

    /// A client begins to use an export.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        export: &str,
        tls: bool,
        sessions_max: usize,
    ) -> Result<(), NotLetIn> {
        let mut table = self.roster.lock();
        if table.stopping {
            return Err(NotLetIn::Stopping);
        }
        let others = table.established.values().map(|other| &other.entry);
        let others = others.filter(|other| other.is_beside(entry) && !other.evicted.load(Ordering::Relaxed));
        let seats: Vec<_> = others.map(|other| other.seat(other.meter.totals().requests == 0)).collect();
        match room(&seats, entry.from, sessions_max, Instant::now()) {
            Room::Free => {}
            Room::Full => return Err(NotLetIn::TooMany),
            Room::Of(id) => {
                if let Some(Established { entry: unused, .. }) = table.established.get(&id) {
                    tracing::info!(
                        peer = unused.peer,
                        "closed a session without requests, for another client"
                    );
                    unused.evicted.store(true, Ordering::Relaxed);
                    unused.close();
                }
            }
        }
        table.establish(Established { entry: Arc::clone(entry), export: export.to_owned(), tls });
        Ok(())
    }

    /// It did not get the export after all, and negotiates on.
    pub(crate) fn withdraw(&self, entry: &Arc<Entry>) {
        self.roster.lock().withdraw(entry);
        self.roster.notify();
    }

    /// All that use an export.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let table = self.roster.lock();
        let now = Instant::now();
        let info = |Established { entry, export, tls }: &Established| SessionInfo {
            id: entry.id,
            peer: entry.peer.clone(),
            export: export.clone(),
            totals: entry.meter.totals(),
            activity: entry.meter.activity(now),
            tls: *tls,
        };
        table.established.values().map(info).collect()
    }

    /// The activity of clients of each export so far, also of those that are gone.
    pub(crate) fn totals(&self) -> BTreeMap<String, Totals> {
        self.roster.totals()
    }

    /// Waits until no write of earlier sessions with an export, whose clients have gone, can follow
    /// the writes of `entry`: a client that reconnects repeats its requests, and then writes
    /// something newer to the same blocks.
    pub(crate) fn after_earlier(&self, entry: &Entry, export: &str) -> Result<(), NotLetIn> {
        let gone = |other: &&Established| {
            other.entry.id != entry.id && other.export == export && other.entry.socket.is_gone()
        };
        let earlier: Vec<Arc<Entry>> = {
            let table = self.roster.lock();
            table.established.values().filter(gone).map(|other| Arc::clone(&other.entry)).collect()
        };
        // A client that has only closed its own direction gets its last answers.
        self.roster.wait_for(&earlier, Instant::now() + LAST_ANSWERS);
        earlier.iter().for_each(|other| other.gate.close());
        let deadline = Instant::now() + CLOSE_PATIENCE;
        let is_quiet = earlier.iter().all(|other| other.gate.wait(deadline));
        if is_quiet { Ok(()) } else { Err(NotLetIn::Unfinished) }
    }

    /// A connection ended whose thread is not the roster's.
    #[cfg(all(test, feature = "shuttle"))]
    pub(crate) fn ended(&self, id: u64) {
        self.roster.ended(id);
    }

    /// Ends the sessions of `export`; returns how many there were. When it returns nothing of them
    /// can happen any more.
    ///
    /// # Errors
    /// A device has begun changes that are not over in time. The sessions are ended all the same.
    pub(crate) fn close_export(&self, export: &str) -> Result<usize, Unfinished> {
        let of_export: Vec<Arc<Entry>> = {
            let table = self.roster.lock();
            let mine = table.established.values().filter(|session| session.export == export);
            mine.map(|session| Arc::clone(&session.entry)).collect()
        };
        of_export.iter().for_each(|entry| entry.close());
        wait_for_begun(&of_export, export)?;
        // Their threads may still wait for a read, or in the middle of a volume's work for others.
        if !self.roster.wait_for(&of_export, Instant::now() + LINGER) {
            tracing::warn!(export, "closed sessions still wait for their device");
        }
        Ok(of_export.len())
    }

    /// Ends all sessions and admits no new ones; waits until they are gone.
    pub(crate) fn stop(&self) {
        if !self.roster.stop(|session| session.entry.close()) {
            tracing::warn!("sessions are still in the middle of an operation of the device");
        }
    }
}
