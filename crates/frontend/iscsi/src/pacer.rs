//! How fast secrets of CHAP can be tried, over all connections of a server.
//!
//! Each try of an address counts as failed until it is known to have succeeded, which clears it. An address that failed a few times waits before its
//! next proof is *looked at*: an answer that only comes later would keep nobody from hanging up and trying again at once, as a silent server would tell as much as
//! a refusal. However many addresses take part, those that wait get their turns one after the other. An address that never failed never waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{
    FREE_TRIES, PACE_DOUBLINGS_MAX, PACE_MEMORY, PACE_OF_ALL, PACE_STEP, PACED_ADDRESSES_MAX,
};

#[derive(Debug)]
struct Tries {
    failed: u32,
    last: Instant,
    /// When the next one may be looked at.
    next: Instant,
}

#[derive(Debug, Default)]
struct Table {
    addresses: HashMap<IpAddr, Tries>,
    /// When the next one of any address that has to wait may be.
    next: Option<Instant>,
}

/// The tries of a server.
#[derive(Debug, Default)]
pub(crate) struct Pacer(Mutex<Table>);

impl Pacer {
    /// A proof of `address` is here: how long to wait before looking at it. The turn is taken, whether or not somebody waits for it; but for one that is
    /// further off than `patience`: `None`, and the proof is not to be looked at. So nobody can put off others of the same address for ever.
    pub(crate) fn turn(&self, address: IpAddr, now: Instant, patience: Duration) -> Option<Duration> {
        let mut table = self.0.lock();
        let Table { addresses, next } = &mut *table;
        if !addresses.contains_key(&address) && addresses.len() >= PACED_ADDRESSES_MAX {
            let oldest = addresses.iter().min_by_key(|(_, tries)| tries.last).map(|(address, _)| *address);
            oldest.map(|oldest| addresses.remove(&oldest));
        }
        let tries = addresses.entry(address).or_insert(Tries { failed: 0, last: now, next: now });
        // Turns that are still to come are no silence.
        if now.saturating_duration_since(tries.last.max(tries.next)) > PACE_MEMORY {
            tries.failed = 0;
        }
        if tries.failed < FREE_TRIES {
            tries.failed += 1;
            tries.last = now;
            return Some(Duration::ZERO);
        }
        let step = PACE_STEP * 2u32.pow((tries.failed - FREE_TRIES).min(PACE_DOUBLINGS_MAX));
        let at = (tries.next.max(now) + step).max(next.unwrap_or(now));
        let wait = at.saturating_duration_since(now);
        if wait > patience {
            return None;
        }
        tries.failed += 1;
        (tries.last, tries.next) = (now, at);
        *next = Some(at + PACE_OF_ALL);
        Some(wait)
    }

    /// The proof was right.
    pub(crate) fn succeeded(&self, address: IpAddr) {
        self.0.lock().addresses.remove(&address);
    }
}

#[cfg(test)]
mod tests;
