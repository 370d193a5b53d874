//! Messages to clients: a lock was granted, the server has restarted, the results of a message.
//!
//! Each message is a call over the network, on a thread of its own. There are few of these, and one
//! at a time for each address, so that clients that do not answer hold up no others. A granted lock
//! is announced until the client answers, a restart for some minutes, results once.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_proto_nfs::nlm::{
    Ask, Bytes, LockOf, LockStatus, NLM_PROGRAM, NLM_VERSION, NlmCall, NlmReply, TestArguments,
};
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NSM_VERSION, NsmCall, Restarted};

use super::Locks;
use crate::limits::{CALLBACK_PAUSES, CALLBACK_THREADS, RESTART_TRIES};
use crate::locks::host::RecordedHost;
use crate::locks::table::Grant;
use crate::outgoing::{Peer, Program};

/// A message.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// The grant with that number.
    Granted(u64),
    /// The server has restarted.
    Restarted(RecordedHost),
    /// The results of a message.
    Result { to: RecordedHost, procedure: u32, arguments: Vec<u8> },
}

impl Message {
    /// Of a grant only the table knows it.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Message::Granted(_) => None,
            Message::Restarted(to) | Message::Result { to, .. } => Some(to.host.address),
        }
    }

    pub(crate) fn is_restart_for(&self, host: &crate::locks::host::LockHost) -> bool {
        matches!(self, Message::Restarted(to) if to.host == *host)
    }
}

/// A message that is to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    at: Instant,
    tries: usize,
    pub(crate) message: Message,
}

impl Due {
    pub(crate) fn at(at: Instant, message: Message) -> Self {
        Self { at, tries: 0, message }
    }
}

/// A message on its way.
enum Sending {
    Granted(u64, Grant),
    Restarted(RecordedHost),
    Result { to: RecordedHost, procedure: u32, arguments: Vec<u8> },
}

/// The thread that sends messages; it ends when this is dropped. Messages that are on their way
/// then are not waited for.
pub(crate) struct Courier {
    locks: Arc<Locks>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    pub(crate) fn start(locks: Arc<Locks>) -> io::Result<Self> {
        let own = Arc::clone(&locks);
        let thread = std::thread::Builder::new().name("nfs-locks".to_owned()).spawn(move || own.carry())?;
        Ok(Self { locks, thread: Some(thread) })
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.locks.state.lock().is_stopping = true;
        self.locks.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for messages to NFS clients had panicked");
        }
    }
}

impl Locks {
    fn carry(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_stopping {
            let now = Instant::now();
            // The address of each: a grant that is not in the table any more was confirmed.
            let addresses: Vec<Option<IpAddr>> = state
                .due
                .iter()
                .map(|due| match &due.message {
                    Message::Granted(number) => {
                        state.table.grant(*number).map(|grant| grant.wanted.owner.host.address)
                    }
                    other => other.address(),
                })
                .collect();
            let mut keep = addresses.iter().map(Option::is_some);
            state.due.retain(|_| keep.next().unwrap_or(true));
            let addresses: Vec<IpAddr> = addresses.into_iter().flatten().collect();
            let may_send = state.busy.len() < CALLBACK_THREADS;
            let ready = state
                .due
                .iter()
                .zip(&addresses)
                .position(|(due, address)| may_send && due.at <= now && !state.busy.contains(address));
            let Some((place, address)) = ready.and_then(|place| Some((place, *addresses.get(place)?))) else {
                let waiting = state.due.iter().zip(&addresses);
                let next = waiting
                    .filter(|(_, address)| may_send && !state.busy.contains(address))
                    .map(|(due, _)| due.at)
                    .min();
                match next {
                    Some(at) => _ = self.changed.wait_until(&mut state, at),
                    None => self.changed.wait(&mut state),
                }
                continue;
            };
            let due = state.due.remove(place);
            let sending = match &due.message {
                Message::Granted(number) => match state.table.grant(*number) {
                    Some(grant) => Sending::Granted(*number, grant.clone()),
                    None => continue,
                },
                Message::Restarted(to) => Sending::Restarted(to.clone()),
                Message::Result { to, procedure, arguments } => {
                    Sending::Result { to: to.clone(), procedure: *procedure, arguments: arguments.clone() }
                }
            };
            state.busy.insert(address);
            drop(state);
            let (locks, again) = (Arc::clone(self), due.clone());
            let thread = std::thread::Builder::new().name("nfs-callback".to_owned());
            let spawned = thread.spawn(move || {
                let is_done = locks.deliver(sending, due.tries > 0);
                locks.delivered(address, due, is_done);
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, "a message to an NFS client is sent later");
                self.delivered(address, again, false);
            }
            state = self.state.lock();
        }
    }

    /// A message was sent, or has to be sent again.
    fn delivered(&self, address: IpAddr, due: Due, is_done: bool) {
        let mut state = self.state.lock();
        state.busy.remove(&address);
        let tries = due.tries + 1;
        let is_repeated = match &due.message {
            Message::Granted(_) => !is_done,
            Message::Restarted(to) if !is_done && tries >= RESTART_TRIES => {
                tracing::warn!(client = %to.host.address, "an NFS client does not learn that the server has restarted; it loses its locks");
                false
            }
            Message::Restarted(_) => !is_done,
            Message::Result { .. } => false,
        };
        if is_repeated {
            let last = CALLBACK_PAUSES.len() - 1;
            let pause = CALLBACK_PAUSES.get(due.tries.min(last)).copied().unwrap_or(Duration::from_secs(10));
            state.due.push(Due { at: Instant::now() + pause, tries, ..due });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Sends a message, maybe again. True unless it has to be sent again.
    fn deliver(&self, sending: Sending, is_again: bool) -> bool {
        match sending {
            Sending::Granted(number, grant) => match self.announce(number, &grant) {
                Ok(LockStatus::Granted) => {
                    self.state.lock().table.confirm(number);
                    true
                }
                // A client in a grace period of its own gets the message again.
                Ok(LockStatus::Grace) => false,
                // A client declines a lock that it has accepted already, if that answer was lost.
                Ok(_) if is_again => {
                    self.state.lock().table.confirm(number);
                    true
                }
                Ok(_) => {
                    let mut state = self.state.lock();
                    state.table.decline(number);
                    self.inform(state);
                    true
                }
                Err(error) => {
                    tracing::debug!(client = %grant.wanted.owner.host.address, %error, "a granted lock could not be announced");
                    false
                }
            },
            Sending::Restarted(to) => {
                let name = to.server.to_string();
                let restarted =
                    Restarted { name: Bytes(name.as_bytes()), state: self.number.unwrap_or_default() };
                let call = NsmCall::Notify(restarted);
                let mut arguments = Vec::new();
                call.write(&mut arguments);
                let program = Program { number: NSM_PROGRAM, version: NSM_VERSION };
                self.peer(&to).call(program, call.procedure(), &arguments).is_ok()
            }
            Sending::Result { to, procedure, arguments } => {
                let program = Program { number: NLM_PROGRAM, version: NLM_VERSION };
                _ = self.peer(&to).call(program, procedure, &arguments);
                true
            }
        }
    }

    fn announce(&self, number: u64, grant: &Grant) -> io::Result<LockStatus> {
        let owner = &grant.wanted.owner;
        let cookie = number.to_be_bytes();
        let call = NlmCall::Ask(Ask::Granted(TestArguments {
            cookie: Bytes(&cookie),
            exclusive: grant.wanted.exclusive,
            lock: LockOf {
                caller: Bytes(owner.host.name.as_bytes()),
                file: Bytes(&grant.handle),
                owner: Bytes(&owner.bytes),
                process: owner.process,
                offset: grant.wanted.range.first,
                length: grant.wanted.range.length(),
            },
        }));
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        let to = RecordedHost { host: owner.host.clone(), server: grant.server };
        let program = Program { number: NLM_PROGRAM, version: NLM_VERSION };
        let results = self.peer(&to).call(program, call.procedure(), &arguments)?;
        match NlmReply::parse(call.procedure(), &results) {
            Ok(NlmReply::Answered(answered)) => Ok(answered.status),
            Ok(_) | Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn peer(&self, to: &RecordedHost) -> Peer {
        Peer { address: to.host.address, from: to.server, portmap_port: self.portmap_port }
    }
}
