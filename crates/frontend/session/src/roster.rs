//! The connections of a server: those whose client still negotiates, those that have a session, and
//! the counts of ended sessions.
//!
//! Each protocol has its own data of a connection ([`Member`]) and of its session ([`Session`]).
//! There is one lock. It is never held during a wait, except a wait for sessions to end; the locks
//! of meters are taken under it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_device::Gate;

use crate::limits::CLOSE_PATIENCE;
use crate::lobby::{Lobby, Place};
use crate::locks::{Condvar, Mutex, MutexGuard};
use crate::meter::{Meter, Totals};
use crate::seats::Seat;
use crate::socket::Socket;
use crate::unfinished::Unfinished;

/// A connection, from its acceptance to its end.
pub struct Connection {
    /// Its number, never given twice by one server.
    pub id: u64,
    /// Its activity.
    pub meter: Meter,
    /// Lets its requests begin.
    pub gate: Arc<Gate>,
    /// The address of its client; none over a local socket.
    pub from: Option<IpAddr>,
    /// When its client connected.
    pub since: Instant,
    /// Another handle on its socket, to end it.
    pub socket: Arc<Socket>,
    listener: usize,
}

impl Connection {
    /// Ends it: no request of it begins any more.
    pub fn close(&self) {
        self.gate.close();
        self.socket.close();
    }

    /// Its seat as a session, `unused` if it has had no request.
    pub fn seat(&self, unused: bool) -> Seat {
        Seat { id: self.id, from: self.from, since: self.since, unused }
    }

    /// Whether both came to the same listener.
    pub fn is_beside(&self, other: &Connection) -> bool {
        self.listener == other.listener
    }
}

/// A connection as its protocol knows it.
pub trait Member: Deref<Target = Connection> + Send + Sync + 'static {
    /// Its client, for people.
    fn peer(&self) -> String;
}

/// A session as its protocol knows it.
pub trait Session: Send + 'static {
    /// Its connection.
    type Member: Member;

    /// Its connection.
    fn member(&self) -> &Arc<Self::Member>;

    /// The export in use, if any.
    fn export(&self) -> Option<&str>;
}

/// The content of a roster, under its lock.
pub struct Table<S: Session> {
    next_id: u64,
    /// No session is admitted any more.
    pub stopping: bool,
    negotiating: BTreeMap<u64, Arc<S::Member>>,
    /// Of these, those of each listener.
    lobbies: HashMap<usize, Lobby>,
    /// The sessions, by the numbers of their connections.
    pub established: BTreeMap<u64, S>,
    /// The activity of ended sessions, by export.
    past: BTreeMap<String, Totals>,
}

impl<S: Session> Table<S> {
    fn leave_lobby(&mut self, connection: &Connection) {
        self.negotiating.remove(&connection.id);
        if let Some(lobby) = self.lobbies.get_mut(&connection.listener) {
            lobby.leave(connection.id);
        }
    }

    /// A client has negotiated, and has a session from here on.
    pub fn establish(&mut self, session: S) {
        let member = Arc::clone(session.member());
        self.leave_lobby(&member);
        self.established.insert(member.id, session);
    }

    /// A session is withdrawn: its client continues to negotiate.
    pub fn withdraw(&mut self, member: &Arc<S::Member>) {
        if self.established.remove(&member.id).is_some() {
            self.negotiating.insert(member.id, Arc::clone(member));
            if let Some(lobby) = self.lobbies.get_mut(&member.listener) {
                lobby.enter(member.id, member.from, member.since);
                lobby.spoke(member.id);
            }
        }
    }
}

/// All connections of a server.
pub struct Roster<S: Session> {
    table: Mutex<Table<S>>,
    changed: Condvar,
    handshakes_max: usize,
}

impl<S: Session> Roster<S> {
    /// With places for `handshakes_max` negotiating clients of each listener.
    pub fn new(handshakes_max: usize) -> Self {
        let table = Table {
            next_id: 0,
            stopping: false,
            negotiating: BTreeMap::new(),
            lobbies: HashMap::new(),
            established: BTreeMap::new(),
            past: BTreeMap::new(),
        };
        Self { table: Mutex::new(table), changed: Condvar::default(), handshakes_max }
    }

    /// How long there is no place for a client that connects to a listener.
    pub fn time_to_place(&self, listener: usize, from: Option<IpAddr>) -> Duration {
        let table = self.table.lock();
        let place = table.lobbies.get(&listener).map(|lobby| lobby.place(from, Instant::now()));
        match place {
            Some(Place::After(wait)) if !table.stopping => wait,
            _ => Duration::ZERO,
        }
    }

    /// A client connected. `None` when the server stops.
    pub fn connected(
        &self,
        listener: usize,
        from: Option<IpAddr>,
        socket: Socket,
        member: impl FnOnce(Connection) -> S::Member,
    ) -> Option<Arc<S::Member>> {
        let mut table = self.table.lock();
        if table.stopping {
            return None;
        }
        table.next_id += 1;
        let (id, now) = (table.next_id, Instant::now());
        let Table { negotiating, lobbies, .. } = &mut *table;
        let lobby = lobbies.entry(listener).or_insert_with(|| Lobby::new(self.handshakes_max));
        if let Place::Of(other) = lobby.place(from, now) {
            lobby.leave(other);
            if let Some(other) = negotiating.remove(&other) {
                tracing::warn!(peer = other.peer(), "too many clients negotiate; closed one that takes long");
                other.close();
            }
        }
        lobby.enter(id, from, now);
        let socket = Arc::new(socket);
        let (meter, gate) = (Meter::new(now), Gate::new(socket.watch()));
        let connection = Connection { id, meter, gate, from, since: now, socket, listener };
        let member = Arc::new(member(connection));
        negotiating.insert(id, Arc::clone(&member));
        Some(member)
    }

    /// Serves a connection on a thread of its own, and removes it from the roster when that ends,
    /// also after a panic.
    ///
    /// # Errors
    /// The system gives no thread; the connection is off the roster.
    pub fn serve(
        self: &Arc<Self>,
        protocol: &str,
        id: u64,
        serve: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let ending = Ending(Arc::clone(self), id);
        let thread = std::thread::Builder::new().name(format!("{protocol}-{id}"));
        thread.spawn(move || {
            let _ending = ending;
            serve();
        })?;
        Ok(())
    }

    /// A negotiating client has sent data.
    pub fn spoke(&self, connection: &Connection) {
        if let Some(lobby) = self.table.lock().lobbies.get_mut(&connection.listener) {
            lobby.spoke(connection.id);
        }
    }

    /// A connection ended, and has released its export.
    pub fn ended(&self, id: u64) {
        let mut table = self.table.lock();
        if let Some(member) = table.negotiating.get(&id).cloned() {
            table.leave_lobby(&member);
        }
        if let Some(session) = table.established.remove(&id)
            && let Some(export) = session.export()
        {
            *table.past.entry(export.to_owned()).or_default() += session.member().meter.totals();
        }
        self.changed.notify_all();
    }

    /// The activity of clients of each export so far, also of those that are gone.
    pub fn totals(&self) -> BTreeMap<String, Totals> {
        let table = self.table.lock();
        let mut totals = table.past.clone();
        for session in table.established.values() {
            if let Some(export) = session.export() {
                *totals.entry(export.to_owned()).or_default() += session.member().meter.totals();
            }
        }
        totals
    }

    /// The table, locked.
    pub fn lock(&self) -> MutexGuard<'_, Table<S>> {
        self.table.lock()
    }

    /// Wakes threads that wait for sessions to end.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until a connection has ended. True when none has at the deadline.
    pub fn wait_until(&self, table: &mut MutexGuard<'_, Table<S>>, deadline: Instant) -> bool {
        self.changed.wait_until(table, deadline).timed_out()
    }

    /// Waits until none of these has a session any more. False when one has at the deadline.
    pub fn wait_for(&self, members: &[Arc<S::Member>], deadline: Instant) -> bool {
        let mut table = self.table.lock();
        while members.iter().any(|member| table.established.contains_key(&member.id)) {
            if self.wait_until(&mut table, deadline) {
                return false;
            }
        }
        true
    }

    /// Admits no session any more, closes negotiating ones and has `end` end each session. True
    /// when all are gone in time.
    pub fn stop(&self, end: impl Fn(&S)) -> bool {
        let mut table = self.table.lock();
        table.stopping = true;
        table.negotiating.values().for_each(|member| member.close());
        table.established.values().for_each(end);
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while !(table.negotiating.is_empty() && table.established.is_empty()) {
            if self.wait_until(&mut table, deadline) {
                return false;
            }
        }
        true
    }
}

/// Takes a connection off the roster, also when its thread panics.
struct Ending<S: Session>(Arc<Roster<S>>, u64);

impl<S: Session> Drop for Ending<S> {
    fn drop(&mut self) {
        self.0.ended(self.1);
    }
}

/// Waits until changes begun by closed sessions of an export have ended.
///
/// # Errors
/// It is not, after [`CLOSE_PATIENCE`].
pub fn wait_for_begun<M: Member>(members: &[Arc<M>], export: &str) -> Result<(), Unfinished> {
    let deadline = Instant::now() + CLOSE_PATIENCE;
    let unfinished = members.iter().filter(|member| !member.gate.wait(deadline)).count();
    if unfinished == 0 {
        return Ok(());
    }
    tracing::warn!(export, unfinished, "a device has not finished changes that sessions had begun");
    Err(Unfinished { export: export.to_owned(), sessions: unfinished })
}
