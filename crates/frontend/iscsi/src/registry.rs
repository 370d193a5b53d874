//! The sessions of a server: who they are, what they did, and how to end them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cairn_device::Gate;
use cairn_frontend_session::limits::{CLOSE_PATIENCE, HANDSHAKES_MAX, LAST_ANSWERS, LINGER};
use cairn_frontend_session::{Activity, Lobby, Meter, Place, Room, Seat, Socket, Totals, Unfinished, room};
use cairn_proto_iscsi::{Identity, LoginError, Operational};

use crate::listener::canonical;
use crate::locks::{AtomicBool, Condvar, Mutex};
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
    /// What was agreed on.
    pub operational: Operational,
    /// What it did since it began.
    pub totals: Totals,
    /// What it did in the last seconds.
    pub activity: Activity,
}

/// A connection, from its acceptance to its end.
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) meter: Meter,
    /// The server wants it to end.
    pub(crate) leaving: AtomicBool,
    /// What lets its commands begin.
    pub(crate) gate: Arc<Gate>,
    /// Since when its thread is in the device: milliseconds since `since`, and one; 0 while it is not there.
    busy: AtomicU64,
    /// Its session, for whoever attends to it meanwhile.
    pub(crate) session: OnceLock<Weak<Shareable>>,
    /// Somebody does.
    pub(crate) is_attended: AtomicBool,
    /// The initiator has proved itself.
    pub(crate) proved: AtomicBool,
    since: Instant,
    /// Another handle on its socket, to end it.
    socket: Arc<Socket>,
}

impl Entry {
    /// Its thread goes into the device.
    pub(crate) fn enters(&self) {
        self.busy.store(self.since.elapsed().as_millis() as u64 + 1, Ordering::Release);
    }

    /// Its thread is back.
    pub(crate) fn returns(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Whether its thread has been in the device for so long.
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
        let unused = self.export.is_none() || self.entry.meter.totals().requests == 0;
        let from = Some(canonical(self.entry.peer.ip()));
        Seat { id: self.entry.id, from, since: self.entry.since, unused }
    }
}

struct Table {
    next_id: u64,
    next_tsih: u16,
    stopping: bool,
    logging_in: BTreeMap<u64, Arc<Entry>>,
    /// The same.
    lobby: Lobby,
    established: BTreeMap<u64, Established>,
    /// What sessions that are over did, by export.
    past: BTreeMap<String, Totals>,
}

impl Table {
    fn new(handshakes_max: usize) -> Self {
        Self {
            next_id: 0,
            next_tsih: 0,
            stopping: false,
            logging_in: BTreeMap::new(),
            lobby: Lobby::new(handshakes_max),
            established: BTreeMap::new(),
            past: BTreeMap::new(),
        }
    }
}

impl Table {
    fn leave_lobby(&mut self, id: u64) {
        self.logging_in.remove(&id);
        self.lobby.leave(id);
    }
}

/// All connections of a server. One lock, never held while anything waits but for sessions to end; those of meters are taken under it.
pub(crate) struct Registry {
    table: Mutex<Table>,
    ended: Condvar,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(HANDSHAKES_MAX)
    }
}

impl Registry {
    /// With places for so many initiators that log in.
    pub(crate) fn new(handshakes_max: usize) -> Self {
        Self { table: Mutex::new(Table::new(handshakes_max)), ended: Condvar::default() }
    }

    /// How long there is no place for an initiator that connects.
    pub(crate) fn time_to_place(&self, peer: SocketAddr) -> Duration {
        let table = self.table.lock();
        match table.lobby.place(Some(canonical(peer.ip())), Instant::now()) {
            Place::After(wait) if !table.stopping => wait,
            _ => Duration::ZERO,
        }
    }

    /// An initiator connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: SocketAddr, socket: Socket) -> Option<Arc<Entry>> {
        let mut table = self.table.lock();
        if table.stopping {
            return None;
        }
        let (from, now) = (Some(canonical(peer.ip())), Instant::now());
        if let Place::Of(id) = table.lobby.place(from, now) {
            if let Some(entry) = table.logging_in.get(&id) {
                tracing::warn!(peer = %entry.peer, "too many initiators log in; closed one that takes long");
                entry.gate.close();
                entry.socket.close();
            }
            table.leave_lobby(id);
        }
        table.next_id += 1;
        let id = table.next_id;
        table.lobby.enter(id, from, now);
        let socket = Arc::new(socket);
        let entry = Arc::new(Entry {
            id,
            peer,
            meter: Meter::new(now),
            leaving: AtomicBool::new(false),
            gate: Gate::new(socket.watch()),
            busy: AtomicU64::new(0),
            session: OnceLock::new(),
            is_attended: AtomicBool::new(false),
            proved: AtomicBool::new(false),
            since: now,
            socket,
        });
        table.logging_in.insert(id, Arc::clone(&entry));
        Some(entry)
    }

    /// An initiator that logs in has said something.
    pub(crate) fn spoke(&self, id: u64) {
        self.table.lock().lobby.spoke(id);
    }

    /// A login succeeded: an older session of the same port and target ends first (RFC 7143, section 6.3.5), and so does one of the same
    /// initiator that is dead, so that what it held does not stand in the way. One that is closed and has nothing under way is over, although its thread may still
    /// hang in the device: nothing of it can happen any more. Returns the TSIH.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        identity: &Identity,
        export: Option<String>,
        sessions_max: usize,
    ) -> Result<u16, LoginError> {
        let (deadline, lingering) = (Instant::now() + CLOSE_PATIENCE, Instant::now() + LAST_ANSWERS);
        let older = |table: &Table| -> Vec<Arc<Entry>> {
            let concerned = |other: &&Established| {
                let same = other.identity.initiator == identity.initiator
                    && other.identity.target == identity.target;
                same && (other.identity.isid == identity.isid || other.entry.socket.is_gone())
            };
            let concerned = table.established.values().filter(concerned);
            concerned.map(|other| Arc::clone(&other.entry)).collect()
        };
        let mut table = self.table.lock();
        while identity.target.is_some() {
            let older = older(&table);
            if older.is_empty() {
                break;
            }
            for other in &older {
                other.gate.close();
                other.socket.close();
            }
            // Mostly it goes at once.
            if !self.ended.wait_until(&mut table, lingering).timed_out() {
                continue;
            }
            drop(table);
            if !older.iter().all(|other| other.gate.wait(deadline)) {
                tracing::warn!(peer = %entry.peer, "refused a login: the device has not finished a write of an earlier session");
                return Err(LoginError::Unavailable);
            }
            table = self.table.lock();
            break;
        }
        if table.stopping {
            return Err(LoginError::Unavailable);
        }
        // Who proves a secret has room that others can't take.
        let proved = entry.proved.load(Ordering::Relaxed);
        let alike = |other: &&Established| {
            other.entry.proved.load(Ordering::Relaxed) == proved
                && !other.entry.leaving.load(Ordering::Relaxed)
        };
        let seats: Vec<Seat> = table.established.values().filter(alike).map(Established::seat).collect();
        match room(&seats, Some(canonical(entry.peer.ip())), sessions_max, Instant::now()) {
            Room::Free => {}
            Room::Full => {
                tracing::warn!(peer = %entry.peer, sessions_max, "refused a session: there are too many");
                return Err(LoginError::OutOfResources);
            }
            Room::Of(id) => {
                Self::end(&table, |session| session.entry.id == id);
                tracing::info!(peer = %entry.peer, "a session that asked for nothing was ended, for another initiator");
            }
        }
        table.next_tsih = table.next_tsih.checked_add(1).unwrap_or(1);
        let tsih = table.next_tsih;
        table.leave_lobby(entry.id);
        let established = Established {
            entry: Arc::clone(entry),
            tsih,
            identity: identity.clone(),
            export,
            operational: Operational::default(),
        };
        table.established.insert(entry.id, established);
        Ok(tsih)
    }

    /// Whether there is a session of this number, of an initiator port with this ISID.
    pub(crate) fn has_session(&self, isid: &[u8; 6], tsih: u16) -> bool {
        let table = self.table.lock();
        table.established.values().any(|session| session.tsih == tsih && session.identity.isid == *isid)
    }

    /// What a session agreed on, for others to see.
    pub(crate) fn agreed(&self, id: u64, operational: Operational) {
        if let Some(session) = self.table.lock().established.get_mut(&id) {
            session.operational = operational;
        }
    }

    /// A connection ended, and has let go of its export.
    pub(crate) fn ended(&self, id: u64) {
        let mut table = self.table.lock();
        table.leave_lobby(id);
        if let Some(Established { entry, export: Some(export), .. }) = table.established.remove(&id) {
            *table.past.entry(export).or_default() += entry.meter.totals();
        }
        self.ended.notify_all();
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let table = self.table.lock();
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

    /// What initiators of each export did so far, also those that are gone.
    pub(crate) fn totals(&self) -> BTreeMap<String, Totals> {
        let table = self.table.lock();
        let mut totals = table.past.clone();
        for session in table.established.values() {
            if let Some(export) = &session.export {
                *totals.entry(export.clone()).or_default() += session.entry.meter.totals();
            }
        }
        totals
    }

    /// Ends the sessions of `export`; returns how many there were. When it returns nothing of them can happen any more.
    ///
    /// # Errors
    /// A device has begun changes that are not over in time. The sessions are ended all the same.
    pub(crate) fn close_export(&self, export: &str) -> Result<usize, Unfinished> {
        let of_export = {
            let table = self.table.lock();
            Self::end(&table, |session: &Established| session.export.as_deref() == Some(export))
        };
        let deadline = Instant::now() + CLOSE_PATIENCE;
        let unfinished = of_export.iter().filter(|entry| !entry.gate.wait(deadline)).count();
        self.wait(&of_export);
        if unfinished > 0 {
            tracing::warn!(export, unfinished, "a device has not finished what sessions had begun");
            return Err(Unfinished { export: export.to_owned(), sessions: unfinished });
        }
        Ok(of_export.len())
    }

    /// Ends the sessions of a target but one, without waiting: after a cold reset.
    pub(crate) fn drop_target(&self, target: &str, but: u64) {
        let table = self.table.lock();
        Self::end(&table, |session| {
            session.entry.id != but && session.identity.target.as_deref() == Some(target)
        });
    }

    fn end(table: &Table, concerned: impl Fn(&Established) -> bool) -> Vec<Arc<Entry>> {
        let concerned = table.established.values().filter(|session| concerned(session));
        concerned
            .map(|session| {
                let entry = &session.entry;
                entry.leaving.store(true, Ordering::Release);
                entry.gate.close();
                // It says good-bye and goes.
                entry.socket.shut(std::net::Shutdown::Read);
                Arc::clone(entry)
            })
            .collect()
    }

    /// Waits for the threads of sessions that can't change anything any more: they may wait for a read, or in the middle of what a volume does for others.
    fn wait(&self, entries: &[Arc<Entry>]) {
        let deadline = Instant::now() + LINGER;
        let mut table = self.table.lock();
        while entries.iter().any(|entry| table.established.contains_key(&entry.id)) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                tracing::warn!("iSCSI sessions that are closed still wait for their device");
                entries.iter().for_each(|entry| entry.socket.close());
                break;
            }
        }
    }

    /// The sessions whose threads have been in the device for so long, and that nobody attends to yet; `None` once the server stops.
    pub(crate) fn stuck(&self, patience: Duration) -> Option<Vec<Arc<Entry>>> {
        let table = self.table.lock();
        if table.stopping {
            return None;
        }
        let stuck =
            |entry: &&Arc<Entry>| entry.is_stuck(patience) && !entry.is_attended.swap(true, Ordering::AcqRel);
        Some(table.established.values().map(|session| &session.entry).filter(stuck).cloned().collect())
    }

    /// Ends all and lets nobody in; waits until they are gone.
    pub(crate) fn stop(&self) {
        let mut table = self.table.lock();
        table.stopping = true;
        table.logging_in.values().for_each(|entry| entry.socket.close());
        let ended = Self::end(&table, |_| true);
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while !(table.logging_in.is_empty() && table.established.is_empty()) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                tracing::warn!("iSCSI sessions are still in the middle of an operation of the device");
                ended.iter().for_each(|entry| entry.socket.close());
                break;
            }
        }
    }
}
