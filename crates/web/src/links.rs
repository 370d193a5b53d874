//! Links that work once, and how often a wrong secret may be tried.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::sessions::{same, secret};

/// Wrong secrets that one address may send within [`WINDOW`].
const TRIES_MAX: u32 = 5;

/// The time after which the wrong secrets of an address are forgotten.
const WINDOW: Duration = Duration::from_secs(60);

/// Addresses that are remembered. Past that the oldest one is forgotten.
const ADDRESSES_MAX: usize = 1024;

/// A link that one browser can use, within some time.
pub(crate) struct Link {
    open: Mutex<Option<String>>,
    until: Duration,
}

impl Link {
    /// A link, and the secret in it.
    pub(crate) fn new(until: Duration) -> (Self, String) {
        let secret = secret();
        (Self { open: Mutex::new(Some(secret.clone())), until }, secret)
    }

    /// Whether the secret is that of this link, which it uses up.
    pub(crate) fn take(&self, given: &str, now: Duration) -> bool {
        let mut open = self.open.lock();
        if now >= self.until || !open.as_ref().is_some_and(|secret| same(secret, given)) {
            return false;
        }
        *open = None;
        true
    }
}

/// The wrong secrets of each address. Connections without an address count together.
#[derive(Default)]
pub(crate) struct Tries(Mutex<HashMap<Option<IpAddr>, (Duration, u32)>>);

impl Tries {
    /// How long the address has to wait before its next try; none when it need not.
    pub(crate) fn wait(&self, from: Option<IpAddr>, now: Duration) -> Option<Duration> {
        let table = self.0.lock();
        let (begun, count) = table.get(&from)?;
        let past = now.saturating_sub(*begun);
        (*count >= TRIES_MAX && past < WINDOW).then(|| WINDOW - past)
    }

    /// The address sent a wrong secret.
    pub(crate) fn note(&self, from: Option<IpAddr>, now: Duration) {
        let mut table = self.0.lock();
        table.retain(|_, (begun, _)| now.saturating_sub(*begun) < WINDOW);
        if table.len() >= ADDRESSES_MAX && !table.contains_key(&from) {
            let oldest = table.iter().min_by_key(|(_, (begun, _))| *begun).map(|(address, _)| *address);
            oldest.map(|oldest| table.remove(&oldest));
        }
        table.entry(from).or_insert((now, 0)).1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_works_once_and_for_a_while() {
        let now = Duration::from_secs(86_400);
        let until = now + WINDOW;
        let (link, secret) = Link::new(until);
        assert!(!link.take("", now) && !link.take(&secret[1..], now));
        assert!(link.take(&secret, now));
        assert!(!link.take(&secret, now), "it was used");
        let (link, secret) = Link::new(until);
        assert!(!link.take(&secret, until), "it has expired");
    }

    #[test]
    fn address_that_guesses_waits_and_others_do_not() {
        let tries = Tries::default();
        let begin = Duration::from_secs(86_400);
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        for _ in 0..TRIES_MAX {
            assert_eq!(tries.wait(address(1), begin), None);
            tries.note(address(1), begin);
        }
        let later = begin + Duration::from_secs(20);
        assert_eq!(tries.wait(address(1), later), Some(Duration::from_secs(40)));
        assert_eq!(tries.wait(address(2), later), None);
        assert_eq!(tries.wait(address(1), begin + WINDOW), None);
    }

    #[test]
    fn addresses_that_guess_take_a_bounded_amount_of_memory() {
        let tries = Tries::default();
        let begin = Duration::from_secs(86_400);
        for number in 0..2 * ADDRESSES_MAX as u32 {
            let address = Some(IpAddr::from(number.to_be_bytes()));
            tries.note(address, begin + Duration::from_micros(number.into()));
        }
        assert_eq!(tries.0.lock().len(), ADDRESSES_MAX);
    }
}
