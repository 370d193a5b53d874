//! How fast secrets of CHAP can be tried, over all connections of a server.
//!
//! Each check of a proof counts as failed until it is known to have succeeded. An address with a
//! few failures gets no further check at once: its proofs wait for a *turn*. The number of turns a
//! second, for all addresses together, is fixed, and limits the number of guesses. A proof is not
//! checked before its turn. Delaying only the answer would not stop a guesser from hanging up and
//! retrying at once, as a silent server would reveal as much as a refusal.
//!
//! A guesser must not lock out legitimate initiators. So no proof is turned away, and turns are
//! shared fairly:
//! - An initiator that proved itself before, from the same address, does not wait for those that
//!   never did: the two kinds have every second turn.
//! - Of each kind the address has the next turn that has not had one for longest, and there the
//!   proof that has waited for longest.
//!
//! A right proof cancels the count of its own check. It does not cancel earlier failures, or a
//! guesser with an account of its own would have free tries for ever. An address that never failed
//! never waits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{FREE_TRIES, KNOWN_INITIATORS_MAX, PACE_MEMORY, PACE_OF_ALL, PACED_ADDRESSES_MAX};

#[derive(Debug)]
struct Tries {
    failed: u32,
    last: Instant,
    /// The number of its last turn.
    turn: u64,
}

/// A proof that waits.
#[derive(Debug)]
struct Waiting {
    address: IpAddr,
    known: bool,
}

#[derive(Debug, Default)]
struct Table {
    addresses: HashMap<IpAddr, Tries>,
    /// Initiators that proved themselves, and when they last did.
    known: HashMap<(IpAddr, String), Instant>,
    /// By number, so the one that came first is first.
    waiting: BTreeMap<u64, Waiting>,
    /// These have their turn.
    called: HashSet<u64>,
    next_ticket: u64,
    turns: u64,
    /// The last turn was of an initiator that proved itself before.
    last_known: bool,
    /// When the next turn is.
    next: Option<Instant>,
}

impl Table {
    fn tries(&mut self, address: IpAddr, now: Instant) -> &mut Tries {
        if !self.addresses.contains_key(&address) && self.addresses.len() >= PACED_ADDRESSES_MAX {
            let oldest =
                self.addresses.iter().min_by_key(|(_, tries)| tries.last).map(|(address, _)| *address);
            oldest.map(|oldest| self.addresses.remove(&oldest));
        }
        self.addresses.entry(address).or_insert(Tries { failed: 0, last: now, turn: 0 })
    }

    /// The proof whose turn is next.
    fn first(&self) -> Option<u64> {
        let other_kind = self.waiting.values().any(|waiting| waiting.known != self.last_known);
        let known = self.last_known != other_kind;
        let of_kind = self.waiting.iter().filter(|(_, waiting)| waiting.known == known);
        let turn = |address| self.addresses.get(address).map_or(0, |tries| tries.turn);
        of_kind.min_by_key(|(ticket, waiting)| (turn(&waiting.address), **ticket)).map(|(ticket, _)| *ticket)
    }

    /// Calls the next one, if it is time.
    fn call(&mut self, now: Instant) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let Some(ticket) = self.first() else { return };
        let Some(Waiting { address, known }) = self.waiting.remove(&ticket) else { return };
        self.called.insert(ticket);
        self.last_known = known;
        self.turns += 1;
        // A look that comes a little late puts off none of those after it.
        let due = self.next.filter(|next| now.saturating_duration_since(*next) < PACE_OF_ALL);
        self.next = Some(due.unwrap_or(now) + PACE_OF_ALL);
        let turn = self.turns;
        let tries = self.tries(address, now);
        tries.failed = tries.failed.saturating_add(1);
        (tries.last, tries.turn) = (now, turn);
    }
}

/// The tries of a server.
#[derive(Debug, Default)]
pub(crate) struct Pacer(Mutex<Table>);

impl Pacer {
    /// A proof of an initiator has arrived. `None`: it may be checked; otherwise it waits for its
    /// [turn](Pacer::has_turn), and must [leave](Pacer::leave).
    pub(crate) fn arrive(&self, address: IpAddr, initiator: &str, now: Instant) -> Option<u64> {
        let mut table = self.0.lock();
        let table = &mut *table;
        let tries = table.tries(address, now);
        if now.saturating_duration_since(tries.last) > PACE_MEMORY {
            tries.failed = 0;
        }
        if tries.failed < FREE_TRIES {
            tries.failed += 1;
            tries.last = now;
            return None;
        }
        let known = table.known.contains_key(&(address, initiator.to_owned()));
        table.next_ticket += 1;
        table.waiting.insert(table.next_ticket, Waiting { address, known });
        Some(table.next_ticket)
    }

    /// Whether a waiting proof may be checked, and otherwise how long none may.
    pub(crate) fn has_turn(&self, ticket: u64, now: Instant) -> Result<(), Duration> {
        let mut table = self.0.lock();
        table.call(now);
        if table.called.remove(&ticket) {
            return Ok(());
        }
        Err(table.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now)))
    }

    /// A proof waits no more.
    pub(crate) fn leave(&self, ticket: u64) {
        let mut table = self.0.lock();
        table.waiting.remove(&ticket);
        table.called.remove(&ticket);
    }

    /// The proof was right.
    pub(crate) fn succeeded(&self, address: IpAddr, initiator: &str, now: Instant) {
        let mut table = self.0.lock();
        if let Some(tries) = table.addresses.get_mut(&address) {
            tries.failed = tries.failed.saturating_sub(1);
        }
        table.known.insert((address, initiator.to_owned()), now);
        if table.known.len() > KNOWN_INITIATORS_MAX {
            let oldest = table.known.iter().min_by_key(|(_, last)| **last).map(|(who, _)| who.clone());
            oldest.map(|oldest| table.known.remove(&oldest));
        }
    }
}

#[cfg(test)]
mod tests;
