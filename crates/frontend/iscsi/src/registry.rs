//! The sessions of a server: their peers, their activity, and how to end them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cairn_frontend_session::limits::{CLOSE_PATIENCE, HANDSHAKES_MAX, LAST_ANSWERS, LINGER};
use cairn_frontend_session::{
    Activity, Connection, Member, Room, Roster, Seat, Session, Socket, Table, Totals, Unfinished, room,
    wait_for_begun,
};
use cairn_proto_iscsi::{Identity, LoginError, Operational};

use crate::listener::canonical;
use crate::locks::AtomicBool;
use crate::session::Shareable;

/// A session as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    /// Never given twice by one server.
    pub id: u64,
    /// The initiator's address.
    pub peer: String,
    /// Its iSCSI name.
    pub initiator: String,
    /// The export in use: `VOLUME/LUN`; none in a discovery session.
    pub export: Option<String>,
    /// The negotiated parameters.
    pub operational: Operational,
    /// Its activity since it began.
    pub totals: Totals,
    /// Its activity in the last seconds.
    pub activity: Activity,
}

/// A connection, from its acceptance to its end.
pub(crate) struct Entry {
    connection: Connection,
    pub(crate) peer: SocketAddr,
    /// The server asked it to end.
    pub(crate) leaving: AtomicBool,
    /// Since when its thread is in the device: milliseconds since `since`, plus one; 0 while it is
    /// not there.
    busy: AtomicU64,
    /// Its session, for the thread that attends to it meanwhile.
    pub(crate) session: OnceLock<Weak<Shareable>>,
    /// Whether a thread attends to it.
    pub(crate) is_attended: AtomicBool,
    /// The initiator has proved itself.
    pub(crate) proved: AtomicBool,
}

impl Deref for Entry {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Member for Entry {
    fn peer(&self) -> String {
        self.peer.to_string()
    }
}

impl Entry {
    /// Its thread enters the device.
    pub(crate) fn enters(&self) {
        self.busy.store(self.since.elapsed().as_millis() as u64 + 1, Ordering::Release);
    }

    /// Its thread is back.
    pub(crate) fn returns(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Makes it say good-bye and end.
    fn end(&self) {
        self.leaving.store(true, Ordering::Release);
        self.gate.close();
        self.socket.shut(std::net::Shutdown::Read);
    }

    /// Whether its thread has been in the device for `patience`.
    fn is_stuck(&self, patience: Duration) -> bool {
        let since = self.busy.load(Ordering::Acquire);
        since > 0 && self.since.elapsed() >= Duration::from_millis(since - 1) + patience
    }
}

struct Established {
    entry: Arc<Entry>,
    tsih: u16,
    identity: Identity,
    export: Option<String>,
    operational: Operational,
}

impl Established {
    fn seat(&self) -> Seat {
        // A discovery session has had its answer.
        self.entry.seat(self.export.is_none() || self.entry.meter.totals().requests == 0)
    }
}

impl Session for Established {
    type Member = Entry;

    fn member(&self) -> &Arc<Entry> {
        &self.entry
    }

    fn export(&self) -> Option<&str> {
        self.export.as_deref()
    }
}

/// All connections of a server. Its portals are as one listener.
pub(crate) struct Registry {
    roster: Arc<Roster<Established>>,
    /// Taken under the lock of the roster.
    last_tsih: AtomicU16,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(HANDSHAKES_MAX)
    }
}

impl Registry {
    /// With places for `handshakes_max` initiators that log in.
    pub(crate) fn new(handshakes_max: usize) -> Self {
        Self { roster: Arc::new(Roster::new(handshakes_max)), last_tsih: AtomicU16::new(0) }
    }

    /// How long there is no place for an initiator that connects.
    pub(crate) fn time_to_place(&self, peer: SocketAddr) -> Duration {
        self.roster.time_to_place(0, address_of(peer))
    }

    /// An initiator connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: SocketAddr, socket: Socket) -> Option<Arc<Entry>> {
        self.roster.connected(0, address_of(peer), socket, |connection| Entry {
            connection,
            peer,
            leaving: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            session: OnceLock::new(),
            is_attended: AtomicBool::new(false),
            proved: AtomicBool::new(false),
        })
    }

    /// Serves a connection on a thread of its own.
    pub(crate) fn serve(&self, entry: &Entry, serve: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.roster.serve("iscsi", entry.id, serve)
    }

    /// An initiator that logs in has sent data.
    pub(crate) fn spoke(&self, entry: &Entry) {
        self.roster.spoke(entry);
    }

    /// A login succeeded: an older session of the same port and target ends first (RFC 7143,
    /// section 6.3.5), and so does a dead one of the same initiator, so that its resources do not
    /// block the new one. A session that is closed and has no command in progress is over, although
    /// its thread may still hang in the device: it can change nothing any more. Returns the TSIH.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        identity: &Identity,
        export: Option<String>,
        sessions_max: usize,
    ) -> Result<u16, LoginError> {
        let (deadline, lingering) = (Instant::now() + CLOSE_PATIENCE, Instant::now() + LAST_ANSWERS);
        let older = |table: &Table<Established>| -> Vec<Arc<Entry>> {
            let concerned = |other: &&Established| {
                let same = other.identity.initiator == identity.initiator
                    && other.identity.target == identity.target;
                same && (other.identity.isid == identity.isid || other.entry.socket.is_gone())
            };
            let concerned = table.established.values().filter(concerned);
            concerned.map(|other| Arc::clone(&other.entry)).collect()
        };
        let mut table = self.roster.lock();
        while identity.target.is_some() {
            let older = older(&table);
            if older.is_empty() {
                break;
            }
            older.iter().for_each(|other| other.close());
            // Usually it ends at once.
            if !self.roster.wait_until(&mut table, lingering) {
                continue;
            }
            drop(table);
            if !older.iter().all(|other| other.gate.wait(deadline)) {
                tracing::warn!(peer = %entry.peer, "refused a login: the device has not finished a write of an earlier session");
                return Err(LoginError::Unavailable);
            }
            table = self.roster.lock();
            break;
        }
        if table.stopping {
            return Err(LoginError::Unavailable);
        }
        // An initiator that proves a secret has room that others cannot take.
        let proved = entry.proved.load(Ordering::Relaxed);
        let alike = |other: &&Established| {
            other.entry.proved.load(Ordering::Relaxed) == proved
                && !other.entry.leaving.load(Ordering::Relaxed)
        };
        let seats: Vec<Seat> = table.established.values().filter(alike).map(Established::seat).collect();
        match room(&seats, entry.from, sessions_max, Instant::now()) {
            Room::Free => {}
            Room::Full => {
                tracing::warn!(peer = %entry.peer, sessions_max, "refused a session: there are too many");
                return Err(LoginError::OutOfResources);
            }
            Room::Of(id) => {
                Self::end(&table, |session| session.entry.id == id);
                tracing::info!(peer = %entry.peer, "closed a session without requests, for another initiator");
            }
        }
        let tsih = self.last_tsih.load(Ordering::Relaxed).checked_add(1).unwrap_or(1);
        self.last_tsih.store(tsih, Ordering::Relaxed);
        table.establish(Established {
            entry: Arc::clone(entry),
            tsih,
            identity: identity.clone(),
            export,
            operational: Operational::default(),
        });
        Ok(tsih)
    }

    /// Whether there is a session of this number, of an initiator port with this ISID.
    pub(crate) fn has_session(&self, isid: &[u8; 6], tsih: u16) -> bool {
        let table = self.roster.lock();
        table.established.values().any(|session| session.tsih == tsih && session.identity.isid == *isid)
    }

    /// The negotiated parameters of a session, for others to see.
    pub(crate) fn agreed(&self, id: u64, operational: Operational) {
        if let Some(session) = self.roster.lock().established.get_mut(&id) {
            session.operational = operational;
        }
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let table = self.roster.lock();
        let now = Instant::now();
        let info = |session: &Established| {
            let meter = &session.entry.meter;
            SessionInfo {
                id: session.entry.id,
                peer: session.entry.peer.to_string(),
                initiator: session.identity.initiator.clone(),
                export: session.export.clone(),
                operational: session.operational,
                totals: meter.totals(),
                activity: meter.activity(now),
            }
        };
        table.established.values().map(info).collect()
    }

    /// The activity of initiators of each export so far, also of those that are gone.
    pub(crate) fn totals(&self) -> BTreeMap<String, Totals> {
        self.roster.totals()
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
        let of_export = {
            let table = self.roster.lock();
            Self::end(&table, |session: &Established| session.export.as_deref() == Some(export))
        };
        let begun = wait_for_begun(&of_export, export);
        // Their threads may still wait for a read, or in the middle of a volume's work for others.
        if !self.roster.wait_for(&of_export, Instant::now() + LINGER) {
            tracing::warn!("closed iSCSI sessions still wait for their device");
            of_export.iter().for_each(|entry| entry.socket.close());
        }
        begun.map(|()| of_export.len())
    }

    /// Ends the sessions of a target but one, without waiting: after a cold reset.
    pub(crate) fn drop_target(&self, target: &str, but: u64) {
        let table = self.roster.lock();
        Self::end(&table, |session| {
            session.entry.id != but && session.identity.target.as_deref() == Some(target)
        });
    }

    fn end(table: &Table<Established>, concerned: impl Fn(&Established) -> bool) -> Vec<Arc<Entry>> {
        let concerned = table.established.values().filter(|session| concerned(session));
        concerned.inspect(|session| session.entry.end()).map(|session| Arc::clone(&session.entry)).collect()
    }

    /// The sessions whose threads have been in the device for `patience`, and that no thread
    /// attends to yet; `None` once the server stops.
    pub(crate) fn stuck(&self, patience: Duration) -> Option<Vec<Arc<Entry>>> {
        let table = self.roster.lock();
        if table.stopping {
            return None;
        }
        let stuck =
            |entry: &&Arc<Entry>| entry.is_stuck(patience) && !entry.is_attended.swap(true, Ordering::AcqRel);
        Some(table.established.values().map(|session| &session.entry).filter(stuck).cloned().collect())
    }

    /// Ends all sessions and admits no new ones; waits until they are gone.
    pub(crate) fn stop(&self) {
        if !self.roster.stop(|session| session.entry.end()) {
            tracing::warn!("iSCSI sessions are still in the middle of an operation of the device");
            self.roster.lock().established.values().for_each(|session| session.entry.socket.close());
        }
    }
}

/// The address of an initiator.
fn address_of(peer: SocketAddr) -> Option<IpAddr> {
    Some(canonical(peer.ip()))
}
