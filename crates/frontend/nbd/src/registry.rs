//! The sessions of a server: who they are, what they did, and how to end them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cairn_device::Gate;
use cairn_frontend_session::limits::{CLOSE_PATIENCE, HANDSHAKES_MAX, LAST_ANSWERS, LINGER};
use cairn_frontend_session::{Activity, Lobby, Meter, Place, Room, Seat, Socket, Totals, Unfinished, room};
use parking_lot::RwLock;

use crate::listener::Peer;

use crate::locks::{Condvar, Mutex};

/// A session as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    /// Never given twice by one server.
    pub id: u64,
    /// The client's address; "unix" for a unix socket.
    pub peer: String,
    /// The export in use.
    pub export: String,
    /// What it did since it began.
    pub totals: Totals,
    /// What it did in the last seconds.
    pub activity: Activity,
    /// It is encrypted.
    pub tls: bool,
}

/// A connection, from its acceptance to its end.
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) peer: String,
    pub(crate) meter: Meter,
    /// What lets its requests begin.
    pub(crate) gate: Arc<Gate>,
    from: Option<IpAddr>,
    listener: usize,
    since: Instant,
    /// It was closed to make room for another.
    evicted: AtomicBool,
    /// Another handle on its socket, to end it.
    socket: Arc<Socket>,
}

impl Entry {
    /// Ends it: no request of it begins any more.
    fn close(&self) {
        self.gate.close();
        self.socket.close();
    }
}

impl Entry {
    fn seat(&self) -> Seat {
        let unused = self.meter.totals().requests == 0;
        Seat { id: self.id, from: self.from, since: self.since, unused }
    }
}

#[derive(Default)]
struct Table {
    next_id: u64,
    stopping: bool,
    negotiating: BTreeMap<u64, Arc<Entry>>,
    /// Of these, those of each listener.
    lobbies: HashMap<usize, Lobby>,
    /// With the export and whether TLS is used.
    established: BTreeMap<u64, (Arc<Entry>, String, bool)>,
    partial_writes: HashMap<String, Weak<RwLock<()>>>,
    /// What sessions that are over did, by export.
    past: BTreeMap<String, Totals>,
}

impl Table {
    fn leave_lobby(&mut self, entry: &Entry) {
        self.negotiating.remove(&entry.id);
        if let Some(lobby) = self.lobbies.get_mut(&entry.listener) {
            lobby.leave(entry.id);
        }
    }
}

/// All connections of a server. One lock, never held while anything waits; those of meters are taken under it.
pub(crate) struct Registry {
    table: Mutex<Table>,
    ended: Condvar,
    handshakes_max: usize,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(HANDSHAKES_MAX)
    }
}

/// Why a session was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotLetIn {
    TooMany,
    Stopping,
    /// A device has not finished what an earlier session began.
    Unfinished,
}

impl Registry {
    /// With places for so many clients of each listener that negotiate.
    pub(crate) fn new(handshakes_max: usize) -> Self {
        Self { table: Mutex::default(), ended: Condvar::default(), handshakes_max }
    }

    /// How long there is no place for a client that connects.
    pub(crate) fn time_to_place(&self, peer: &Peer) -> Duration {
        let table = self.table.lock();
        let place = table.lobbies.get(&peer.listener).map(|lobby| lobby.place(peer.from, Instant::now()));
        match place {
            Some(Place::After(wait)) if !table.stopping => wait,
            _ => Duration::ZERO,
        }
    }

    /// A client connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: Peer, socket: Socket) -> Option<Arc<Entry>> {
        let mut table = self.table.lock();
        let Table { negotiating, lobbies, .. } = &mut *table;
        let lobby = lobbies.entry(peer.listener).or_insert_with(|| Lobby::new(self.handshakes_max));
        let now = Instant::now();
        if let Place::Of(id) = lobby.place(peer.from, now) {
            lobby.leave(id);
            if let Some(entry) = negotiating.remove(&id) {
                tracing::warn!(peer = entry.peer, "too many clients negotiate; closed one that takes long");
                entry.close();
            }
        }
        if table.stopping {
            return None;
        }
        table.next_id += 1;
        let id = table.next_id;
        let Peer { name, from, listener } = peer;
        if let Some(lobby) = table.lobbies.get_mut(&listener) {
            lobby.enter(id, from, now);
        }
        let (meter, socket) = (Meter::new(now), Arc::new(socket));
        let (gate, evicted) = (Gate::new(socket.watch()), AtomicBool::new(false));
        let entry =
            Arc::new(Entry { id, peer: name, meter, gate, from, listener, since: now, evicted, socket });
        table.negotiating.insert(id, Arc::clone(&entry));
        Some(entry)
    }

    /// A client that negotiates has said something.
    pub(crate) fn spoke(&self, entry: &Entry) {
        if let Some(lobby) = self.table.lock().lobbies.get_mut(&entry.listener) {
            lobby.spoke(entry.id);
        }
    }

    /// A client goes on to use an export.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        export: &str,
        tls: bool,
        sessions_max: usize,
    ) -> Result<(), NotLetIn> {
        let mut table = self.table.lock();
        if table.stopping {
            return Err(NotLetIn::Stopping);
        }
        let others = table.established.values().map(|(other, ..)| other);
        let others = others.filter(|other| other.listener == entry.listener);
        let seats = others.filter(|other| !other.evicted.load(Ordering::Relaxed)).map(|other| other.seat());
        match room(&seats.collect::<Vec<_>>(), entry.from, sessions_max, Instant::now()) {
            Room::Free => {}
            Room::Full => return Err(NotLetIn::TooMany),
            Room::Of(id) => {
                if let Some((unused, ..)) = table.established.get(&id) {
                    tracing::info!(
                        peer = unused.peer,
                        "closed a session that asked for nothing, for another client"
                    );
                    unused.evicted.store(true, Ordering::Relaxed);
                    unused.close();
                }
            }
        }
        table.leave_lobby(entry);
        table.established.insert(entry.id, (Arc::clone(entry), export.to_owned(), tls));
        Ok(())
    }

    /// It did not get the export after all, and negotiates on.
    pub(crate) fn withdraw(&self, entry: &Arc<Entry>) {
        let mut table = self.table.lock();
        if table.established.remove(&entry.id).is_some() {
            table.negotiating.insert(entry.id, Arc::clone(entry));
            if let Some(lobby) = table.lobbies.get_mut(&entry.listener) {
                lobby.enter(entry.id, entry.from, entry.since);
                lobby.spoke(entry.id);
            }
        }
        self.ended.notify_all();
    }

    /// A connection ended, and has let go of its export.
    pub(crate) fn ended(&self, id: u64) {
        let mut table = self.table.lock();
        if let Some(entry) = table.negotiating.get(&id).cloned() {
            table.leave_lobby(&entry);
        }
        if let Some((entry, export, _)) = table.established.remove(&id) {
            *table.past.entry(export).or_default() += entry.meter.totals();
        }
        table.partial_writes.retain(|_, lock| lock.strong_count() > 0);
        self.ended.notify_all();
    }

    /// The lock of an export under which blocks are written in part.
    pub(crate) fn partial_writes(&self, export: &str) -> Arc<RwLock<()>> {
        let mut table = self.table.lock();
        if let Some(lock) = table.partial_writes.get(export).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(RwLock::new(()));
        table.partial_writes.insert(export.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// All that use an export.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        let table = self.table.lock();
        let now = Instant::now();
        let info = |(entry, export, tls): &(Arc<Entry>, String, bool)| SessionInfo {
            id: entry.id,
            peer: entry.peer.clone(),
            export: export.clone(),
            totals: entry.meter.totals(),
            activity: entry.meter.activity(now),
            tls: *tls,
        };
        table.established.values().map(info).collect()
    }

    /// What clients of each export did so far, also those that are gone.
    pub(crate) fn totals(&self) -> BTreeMap<String, Totals> {
        let table = self.table.lock();
        let mut totals = table.past.clone();
        for (entry, export, _) in table.established.values() {
            *totals.entry(export.clone()).or_default() += entry.meter.totals();
        }
        totals
    }

    /// Waits until nothing of earlier sessions with an export, whose clients have gone, can come behind what `entry` writes: a client that connects again repeats
    /// its requests, and then writes something newer to the same blocks.
    pub(crate) fn after_earlier(&self, entry: &Entry, export: &str) -> Result<(), NotLetIn> {
        let mut table = self.table.lock();
        let gone = |(other, name, _): &&(Arc<Entry>, String, bool)| {
            other.id != entry.id && name == export && other.socket.is_gone()
        };
        let earlier: Vec<Arc<Entry>> =
            table.established.values().filter(gone).map(|(other, ..)| Arc::clone(other)).collect();
        // One that has only said that it sends no more gets its last answers.
        let deadline = Instant::now() + LAST_ANSWERS;
        while earlier.iter().any(|other| table.established.contains_key(&other.id)) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                break;
            }
        }
        drop(table);
        earlier.iter().for_each(|other| other.gate.close());
        let deadline = Instant::now() + CLOSE_PATIENCE;
        let is_quiet = earlier.iter().all(|other| other.gate.wait(deadline));
        if is_quiet { Ok(()) } else { Err(NotLetIn::Unfinished) }
    }

    /// Ends the sessions of `export`; returns how many there were. When it returns nothing of them can happen any more.
    ///
    /// # Errors
    /// A device has begun changes that are not over in time. The sessions are ended all the same.
    pub(crate) fn close_export(&self, export: &str) -> Result<usize, Unfinished> {
        let of_export: Vec<Arc<Entry>> = {
            let table = self.table.lock();
            let mine = table.established.values().filter(|(_, name, _)| name == export);
            mine.map(|(entry, ..)| Arc::clone(entry)).collect()
        };
        self.close(&of_export, export)?;
        Ok(of_export.len())
    }

    fn close(&self, entries: &[Arc<Entry>], export: &str) -> Result<(), Unfinished> {
        entries.iter().for_each(|entry| entry.close());
        let deadline = Instant::now() + CLOSE_PATIENCE;
        let unfinished = entries.iter().filter(|entry| !entry.gate.wait(deadline)).count();
        if unfinished > 0 {
            tracing::warn!(export, unfinished, "a device has not finished what sessions had begun");
            return Err(Unfinished { export: export.to_owned(), sessions: unfinished });
        }
        // Their threads may still wait for a read, or in the middle of what a volume does for others.
        let deadline = Instant::now() + LINGER;
        let mut table = self.table.lock();
        while entries.iter().any(|entry| table.established.contains_key(&entry.id)) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                tracing::warn!(export, "sessions that are closed still wait for their device");
                break;
            }
        }
        Ok(())
    }

    /// Ends all and lets nobody in; waits until they are gone.
    pub(crate) fn stop(&self) {
        let mut table = self.table.lock();
        table.stopping = true;
        table.negotiating.values().for_each(|entry| entry.close());
        table.established.values().for_each(|(entry, ..)| entry.close());
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while !(table.negotiating.is_empty() && table.established.is_empty()) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                tracing::warn!("sessions are still in the middle of an operation of the device");
                break;
            }
        }
    }
}
