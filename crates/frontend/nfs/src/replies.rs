//! Replies that are kept for clients that repeat a request, as they have got no answer.
//!
//! A removal that is done twice fails the second time, and a write that is done twice may overwrite
//! a later one. So the reply to the first request is the answer to the second one. A request is
//! known by its client, its number, and a checksum of all its bytes. Those of a client that has
//! begun and not ended yet are waited for.
//!
//! The replies do not survive the server. A client that repeats a request to the next server may
//! get an error for a change that was made; NFS version 3 has no remedy for that.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cairn_base::Checksum;
use parking_lot::{Condvar, Mutex};

use crate::limits::{CLIENTS_KEPT, REPEAT_PATIENCE, REPLIES_KEPT};

/// A request: its number, and the checksum of its bytes.
type Number = (u32, [u8; 16]);

/// The state of a request.
#[derive(Clone)]
enum State {
    Begun,
    Done(Arc<[u8]>),
}

#[derive(Default)]
struct Client {
    requests: HashMap<Number, State>,
    /// The oldest first.
    order: VecDeque<Number>,
    /// Grows with each request of any client.
    used: u64,
}

#[derive(Default)]
struct Clients {
    by_address: HashMap<IpAddr, Client>,
    uses: u64,
}

/// The replies.
#[derive(Default)]
pub(crate) struct Replies {
    clients: Mutex<Clients>,
    changed: Condvar,
}

/// How a request is handled.
pub(crate) enum Claim {
    /// Execute it, and complete the ticket.
    Mine(Ticket),
    /// It was executed, and this is the reply.
    Done(Arc<[u8]>),
    /// It is being executed.
    Busy,
}

/// A request that is being executed. Dropping it forgets the request.
pub(crate) struct Ticket {
    replies: Arc<Replies>,
    client: IpAddr,
    number: Number,
    is_done: bool,
}

impl Replies {
    /// Claims a request of a client.
    pub(crate) fn claim(self: &Arc<Self>, client: IpAddr, xid: u32, record: &[u8]) -> Claim {
        let number = (xid, Checksum::of(record).0);
        let mut clients = self.clients.lock();
        clients.uses += 1;
        let uses = clients.uses;
        if clients.by_address.len() >= CLIENTS_KEPT && !clients.by_address.contains_key(&client) {
            let idle =
                clients.by_address.iter().min_by_key(|(_, client)| client.used).map(|(address, _)| *address);
            idle.and_then(|address| clients.by_address.remove(&address));
        }
        let known = clients.by_address.entry(client).or_default();
        known.used = uses;
        match known.requests.get(&number) {
            Some(State::Done(reply)) => return Claim::Done(reply.clone()),
            Some(State::Begun) => return Claim::Busy,
            None => {}
        }
        if known.order.len() >= REPLIES_KEPT
            && let Some(oldest) = known.order.pop_front()
        {
            known.requests.remove(&oldest);
        }
        known.requests.insert(number, State::Begun);
        known.order.push_back(number);
        Claim::Mine(Ticket { replies: self.clone(), client, number, is_done: false })
    }

    /// The same, but waits for a request that is being executed; `None` if that takes too long.
    pub(crate) fn wait(self: &Arc<Self>, client: IpAddr, xid: u32, record: &[u8]) -> Option<Claim> {
        let deadline = Instant::now() + REPEAT_PATIENCE;
        loop {
            match self.claim(client, xid, record) {
                Claim::Busy => {}
                claim => return Some(claim),
            }
            let mut clients = self.clients.lock();
            if self.changed.wait_until(&mut clients, deadline).timed_out() {
                return None;
            }
        }
    }
}

impl Ticket {
    /// The request was executed with this reply.
    pub(crate) fn complete(mut self, reply: &[u8]) {
        self.is_done = true;
        self.settle(Some(State::Done(reply.into())));
    }

    fn settle(&self, state: Option<State>) {
        let mut clients = self.replies.clients.lock();
        if let Some(client) = clients.by_address.get_mut(&self.client) {
            match state {
                // Forgotten meanwhile, with the oldest ones.
                Some(state) => {
                    if let Some(known) = client.requests.get_mut(&self.number) {
                        *known = state;
                    }
                }
                None => {
                    client.requests.remove(&self.number);
                    client.order.retain(|number| *number != self.number);
                }
            }
        }
        drop(clients);
        self.replies.changed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_done {
            self.settle(None);
        }
    }
}
