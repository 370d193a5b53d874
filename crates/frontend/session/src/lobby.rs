//! Connections whose peer has shown nothing yet, and which of them makes room for the next one.
//!
//! Strangers can open connections as fast as they like and send nothing on them. So there are
//! places for a limited number of connections, and a new one takes the place of another:
//! - one of the address that has most of them, so that one address takes no places from others;
//! - of these one that has sent nothing, before those that have sent data;
//! - of these the oldest.
//!
//! A connection keeps its place for a moment in any case ([`SILENT_GRACE`], [`SPOKEN_GRACE`]):
//! otherwise an endless stream of connections would cut off each client in the middle of its
//! handshake. Meanwhile the next one waits in the queue of the kernel. It waits for no address that
//! has more connections than its own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::limits::{SILENT_GRACE, SPOKEN_GRACE};

/// A connection that waits.
#[derive(Debug)]
struct Guest {
    from: Option<IpAddr>,
    since: Instant,
    spoke: bool,
}

/// Where the next connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// There is a place.
    Free,
    /// In the place of this one, which is to be closed.
    Of(u64),
    /// None yet: look again at that time.
    After(Duration),
}

/// The connections of one listener, by their numbers.
#[derive(Debug)]
pub struct Lobby {
    places: usize,
    guests: BTreeMap<u64, Guest>,
}

impl Lobby {
    /// With that many places.
    pub fn new(places: usize) -> Self {
        Self { places: places.max(1), guests: BTreeMap::new() }
    }

    /// Where a connection of that address would go. Local sockets have no address.
    pub fn place(&self, from: Option<IpAddr>, now: Instant) -> Place {
        if self.guests.len() < self.places {
            return Place::Free;
        }
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for guest in self.guests.values() {
            *counts.entry(guest.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let crowd = self.guests.iter().filter(|(_, guest)| counts.get(&guest.from) == Some(&most));
        let Some((id, guest)) = crowd.min_by_key(|(id, guest)| (guest.spoke, guest.since, **id)) else {
            return Place::Free;
        };
        let own = counts.get(&from).copied().unwrap_or(0);
        let grace = if guest.spoke { SPOKEN_GRACE } else { SILENT_GRACE };
        let left = grace.saturating_sub(now.saturating_duration_since(guest.since));
        if own + 1 < most || left.is_zero() { Place::Of(*id) } else { Place::After(left) }
    }

    /// A connection takes a place; the number must be a new one.
    pub fn enter(&mut self, id: u64, from: Option<IpAddr>, now: Instant) {
        self.guests.insert(id, Guest { from, since: now, spoke: false });
    }

    /// Data came on it.
    pub fn spoke(&mut self, id: u64) {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.spoke = true;
        }
    }

    /// It has left, or shown the requested proof. False when it was not there.
    pub fn leave(&mut self, id: u64) -> bool {
        self.guests.remove(&id).is_some()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether it has no connection.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}
