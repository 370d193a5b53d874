//! Locks of NFS clients: the [`Table`] of them, the grace period after a start, and the messages to
//! clients.
//!
//! A host is recorded durably before its first lock is granted. After a restart each recorded host
//! gets a message (SM_NOTIFY), and claims its locks again within the grace period. Nothing else is
//! granted until it ends.
//!
//! # Locks
//! `recording` is taken before `state`. Nothing waits for the network or the disk under `state`.

pub(crate) mod courier;
pub(crate) mod host;
pub(crate) mod ranges;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_proto_nfs::nlm::{Holder, LockStatus, NlmCall, Rights};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::limits::{LOCK_HOSTS_MAX, MESSAGES_OF_HOST};
use crate::locks::courier::{Due, Message};
use crate::locks::host::{LockHost, LockRecord, Owner, RecordedHost};
use crate::locks::table::{FileKey, Grant, Table, Wanted};

/// All locks of a server.
pub(crate) struct Locks {
    record: Arc<dyn LockRecord>,
    /// Held while the record is written.
    recording: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    /// The number of this start for clients; `None`: no record, no locks.
    number: Option<u32>,
    /// The hosts with locks before the start, and until when they can claim them.
    grace: Option<(Instant, HashSet<LockHost>)>,
    /// The port of port mappers.
    portmap_port: u16,
}

#[derive(Default)]
struct State {
    table: Table,
    /// With the address of the server that each uses.
    recorded: HashMap<LockHost, IpAddr>,
    due: Vec<Due>,
    /// Addresses that a message is on its way to.
    busy: HashSet<IpAddr>,
    /// The first grant whose client was not informed.
    granted: u64,
    is_stopping: bool,
}

/// A request for a lock, beside the lock itself.
pub(crate) struct How {
    pub(crate) block: bool,
    pub(crate) reclaim: bool,
    /// The client wants to know of a restart of the server.
    pub(crate) monitored: bool,
    /// The number of the client's last start.
    pub(crate) state: u32,
}

impl Locks {
    /// Begins with the hosts of the record.
    pub(crate) fn start(record: Arc<dyn LockRecord>, grace: Duration, portmap_port: u16) -> Arc<Self> {
        let begun = record.begin();
        let (number, hosts) = match begun {
            Some(recorded) => (Some(recorded.state), recorded.hosts),
            None => (None, Vec::new()),
        };
        let now = Instant::now();
        let before: HashSet<LockHost> = hosts.iter().map(|known| known.host.clone()).collect();
        if !before.is_empty() {
            tracing::info!(
                clients = before.len(),
                seconds = grace.as_secs(),
                "NFS clients can claim the locks that they had before the restart; new locks wait"
            );
        }
        let state = State {
            due: hosts.iter().map(|known| Due::at(now, Message::Restarted(known.clone()))).collect(),
            recorded: hosts.into_iter().map(|known| (known.host, known.server)).collect(),
            ..State::default()
        };
        Arc::new(Self {
            record,
            recording: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            number,
            grace: (!before.is_empty()).then_some((now + grace, before)),
            portmap_port,
        })
    }

    /// Locks and shares that clients have.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().table.count()
    }

    fn is_grace(&self) -> bool {
        self.grace.as_ref().is_some_and(|(until, _)| Instant::now() < *until)
    }

    /// Whether a request may be granted at this time.
    fn admit(&self, host: &LockHost, reclaim: bool) -> Result<(), LockStatus> {
        match (&self.grace, self.is_grace(), reclaim) {
            (_, false, false) => Ok(()),
            (Some((_, before)), true, true) if before.contains(host) => Ok(()),
            // It had none, or too late: another client may have it now.
            (_, true, true) => Err(LockStatus::Denied),
            (_, false, true) | (_, true, false) => Err(LockStatus::Grace),
        }
    }

    pub(crate) fn test(&self, wanted: &Wanted) -> Result<LockStatus, Holder> {
        if self.is_grace() {
            return Ok(LockStatus::Grace);
        }
        match self.state.lock().table.test(wanted) {
            Some(holder) => Err(holder),
            None => Ok(LockStatus::Granted),
        }
    }

    pub(crate) fn lock(&self, grant: Grant, how: &How) -> LockStatus {
        let host = grant.wanted.owner.host.clone();
        if let Err(status) = self.admit(&host, how.reclaim) {
            return status;
        }
        let mut state = match self.recorded(&host, grant.server, how.monitored) {
            Ok(state) => state,
            Err(status) => return status,
        };
        if how.monitored && state.table.has_restarted(&host, how.state) {
            state.table.free(|other| *other == host);
        }
        let client = if how.monitored { how.state } else { 0 };
        let status = state.table.lock(grant, how.block, client);
        self.inform(state);
        status
    }

    pub(crate) fn unlock(&self, wanted: &Wanted) -> LockStatus {
        let mut state = self.state.lock();
        let status = state.table.unlock(wanted);
        self.inform(state);
        status
    }

    pub(crate) fn cancel(&self, wanted: &Wanted) -> LockStatus {
        self.state.lock().table.cancel(wanted)
    }

    pub(crate) fn share(
        &self,
        file: FileKey,
        owner: &Arc<Owner>,
        (access, deny): (Rights, Rights),
        reclaim: bool,
        server: IpAddr,
    ) -> LockStatus {
        if let Err(status) = self.admit(&owner.host, reclaim) {
            return status;
        }
        match self.recorded(&owner.host, server, true) {
            Ok(mut state) => state.table.share(file, owner, access, deny),
            Err(status) => status,
        }
    }

    pub(crate) fn unshare(&self, file: FileKey, owner: &Arc<Owner>) {
        self.state.lock().table.unshare(file, owner);
    }

    /// A host has restarted: all its locks end.
    pub(crate) fn free(&self, host: &LockHost) {
        let mut state = self.state.lock();
        state.table.free(|other| other == host);
        self.inform(state);
    }

    /// A host reports that it has restarted. A message that comes late, once the host has new
    /// locks, changes nothing.
    pub(crate) fn restarted(&self, address: IpAddr, name: &str, number: u32) {
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let mut state = self.state.lock();
        let hosts: Vec<LockHost> = state
            .recorded
            .keys()
            .filter(|host| host.address == address && label(&host.name) == label(name))
            .cloned()
            .collect();
        for host in hosts {
            if state.table.is_of_earlier_start(&host, number) {
                tracing::info!(client = %host.address, name = host.name, "an NFS client has restarted; its locks are free");
                state.table.free(|other| *other == host);
            }
        }
        self.inform(state);
    }

    /// Sends results to a client as a call.
    pub(crate) fn send(&self, host: &LockHost, server: IpAddr, call: &NlmCall<'_>) {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        let mut state = self.state.lock();
        let waiting = state.due.iter().filter(|due| due.message.address() == Some(host.address)).count();
        // A client that does not take them repeats its request.
        if waiting < MESSAGES_OF_HOST {
            let to = RecordedHost { host: host.clone(), server };
            let message = Message::Result { to, procedure: call.procedure(), arguments };
            state.due.push(Due::at(Instant::now(), message));
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The state, once a host is recorded.
    fn recorded(
        &self,
        host: &LockHost,
        server: IpAddr,
        monitored: bool,
    ) -> Result<MutexGuard<'_, State>, LockStatus> {
        loop {
            let state = self.state.lock();
            if !monitored || state.recorded.contains_key(host) {
                return Ok(state);
            }
            if self.number.is_none() {
                return Err(LockStatus::NoLocks);
            }
            drop(state);
            self.add(host, server)?;
        }
    }

    /// Records a host.
    fn add(&self, host: &LockHost, server: IpAddr) -> Result<(), LockStatus> {
        let _recording = self.recording.lock();
        let mut hosts: Vec<RecordedHost> = {
            let mut state = self.state.lock();
            if state.recorded.contains_key(host) {
                return Ok(());
            }
            // Others that have nothing any more are dropped on this occasion. One that comes back
            // meanwhile waits for this to end.
            let is_grace = self.is_grace();
            let State { table, recorded, due, .. } = &mut *state;
            recorded.retain(|host, _| {
                is_grace || table.knows(host) || due.iter().any(|due| due.message.is_restart_for(host))
            });
            if recorded.len() >= LOCK_HOSTS_MAX {
                return Err(LockStatus::NoLocks);
            }
            recorded
                .iter()
                .map(|(host, server)| RecordedHost { host: host.clone(), server: *server })
                .collect()
        };
        hosts.push(RecordedHost { host: host.clone(), server });
        if let Err(error) = self.record.save(&hosts) {
            tracing::error!(client = %host.address, %error, "an NFS client gets no lock");
            return Err(LockStatus::NoLocks);
        }
        self.state.lock().recorded.insert(host.clone(), server);
        Ok(())
    }

    /// Has clients informed of locks that were granted meanwhile.
    fn inform(&self, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let first = state.granted;
        let new: Vec<u64> = state.table.grants_from(first).collect();
        if let Some(last) = new.last() {
            state.granted = last + 1;
            state.due.extend(new.into_iter().map(|number| Due::at(now, Message::Granted(number))));
            drop(state);
            self.changed.notify_all();
        }
    }
}
