//! The sessions of a server: who they are, what they did, and how to end them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cairn_frontend_session::limits::{CLOSE_PATIENCE, HANDSHAKES_MAX};
use cairn_frontend_session::{Activity, Meter, Socket, Totals};
use cairn_proto_iscsi::{Identity, LoginError, Operational};

use crate::locks::{AtomicBool, Condvar, Mutex, MutexGuard};

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
    /// Another handle on its socket, to end it.
    socket: Socket,
}

struct Established {
    entry: Arc<Entry>,
    identity: Identity,
    export: Option<String>,
    operational: Operational,
}

#[derive(Default)]
struct Table {
    next_id: u64,
    next_tsih: u16,
    stopping: bool,
    logging_in: BTreeMap<u64, Arc<Entry>>,
    established: BTreeMap<u64, Established>,
    /// What sessions that are over did, by export.
    past: BTreeMap<String, Totals>,
}

/// All connections of a server. One lock, never held while anything waits but for sessions to end; those of meters are taken under it.
#[derive(Default)]
pub(crate) struct Registry {
    table: Mutex<Table>,
    ended: Condvar,
}

impl Registry {
    /// An initiator connected. `None` when the server stops.
    pub(crate) fn connected(&self, peer: SocketAddr, socket: Socket) -> Option<Arc<Entry>> {
        let mut table = self.table.lock();
        if table.stopping {
            return None;
        }
        if table.logging_in.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = table.logging_in.pop_first()
        {
            tracing::warn!(peer = %oldest.peer, "too many initiators log in; closed the one that takes longest");
            oldest.socket.close();
        }
        table.next_id += 1;
        let id = table.next_id;
        let meter = Meter::new(Instant::now());
        let entry = Arc::new(Entry { id, peer, meter, leaving: AtomicBool::new(false), socket });
        table.logging_in.insert(id, Arc::clone(&entry));
        Some(entry)
    }

    /// A login succeeded: an older session of the same port and target ends first (RFC 7143, section 6.3.5), and so does one of the same
    /// initiator that is dead, so that what it held does not stand in the way. Returns the TSIH.
    pub(crate) fn establish(
        &self,
        entry: &Arc<Entry>,
        identity: &Identity,
        export: Option<String>,
        sessions_max: usize,
    ) -> Result<u16, LoginError> {
        let mut table = self.table.lock();
        let deadline = Instant::now() + CLOSE_PATIENCE;
        if identity.target.is_some() {
            loop {
                let older: Vec<u64> = table
                    .established
                    .iter()
                    .filter(|(_, other)| {
                        let same = other.identity.initiator == identity.initiator
                            && other.identity.target == identity.target;
                        same && (other.identity.isid == identity.isid || other.entry.socket.is_gone())
                    })
                    .map(|(id, other)| {
                        other.entry.socket.close();
                        *id
                    })
                    .collect();
                if older.is_empty() {
                    break;
                }
                if self.ended.wait_until(&mut table, deadline).timed_out() {
                    return Err(LoginError::Unavailable);
                }
            }
        }
        if table.stopping {
            return Err(LoginError::Unavailable);
        }
        if table.established.len() >= sessions_max {
            tracing::warn!(peer = %entry.peer, sessions_max, "refused a session: there are too many");
            return Err(LoginError::OutOfResources);
        }
        table.next_tsih = table.next_tsih.checked_add(1).unwrap_or(1);
        let tsih = table.next_tsih;
        table.logging_in.remove(&entry.id);
        let established = Established {
            entry: Arc::clone(entry),
            identity: identity.clone(),
            export,
            operational: Operational::default(),
        };
        table.established.insert(entry.id, established);
        Ok(tsih)
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
        table.logging_in.remove(&id);
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

    /// Ends the sessions of `export` and waits until they have let go of it; returns how many there were.
    pub(crate) fn close_export(&self, export: &str) -> usize {
        let mut table = self.table.lock();
        let concerned = |session: &Established| session.export.as_deref() == Some(export);
        let of_export = Self::end(&table, concerned);
        self.wait(&mut table, |table| !of_export.iter().any(|id| table.established.contains_key(id)));
        of_export.len()
    }

    /// Ends the sessions of a target but one, without waiting: after a cold reset.
    pub(crate) fn drop_target(&self, target: &str, but: u64) {
        let table = self.table.lock();
        Self::end(&table, |session| {
            session.entry.id != but && session.identity.target.as_deref() == Some(target)
        });
    }

    fn end(table: &Table, concerned: impl Fn(&Established) -> bool) -> Vec<u64> {
        let concerned = table.established.iter().filter(|(_, session)| concerned(session));
        concerned
            .map(|(id, session)| {
                session.entry.leaving.store(true, Ordering::Release);
                // It says good-bye and goes.
                session.entry.socket.shut(std::net::Shutdown::Read);
                *id
            })
            .collect()
    }

    fn wait(&self, table: &mut MutexGuard<'_, Table>, over: impl Fn(&Table) -> bool) {
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while !over(table) {
            if self.ended.wait_until(table, deadline).timed_out() {
                tracing::warn!("iSCSI sessions are still in the middle of an operation of the device");
                table.established.values().for_each(|session| session.entry.socket.close());
                break;
            }
        }
    }

    /// Ends all and lets nobody in; waits until they are gone.
    pub(crate) fn stop(&self) {
        let mut table = self.table.lock();
        table.stopping = true;
        table.logging_in.values().for_each(|entry| entry.socket.close());
        Self::end(&table, |_| true);
        self.wait(&mut table, |table| table.logging_in.is_empty() && table.established.is_empty());
    }
}
