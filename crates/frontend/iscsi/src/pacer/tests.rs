//! Tests of the pacer on a clock of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::Pacer;
use crate::limits::{FREE_TRIES, KNOWN_INITIATORS_MAX, PACE_MEMORY, PACE_OF_ALL, PACED_ADDRESSES_MAX};

fn address(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number))
}

/// An initiator that tries repeatedly.
struct Trier {
    address: u32,
    name: &'static str,
    /// Knows the secret.
    right: bool,
    ticket: Option<u64>,
    since: Duration,
}

impl Trier {
    fn new(address: u32, name: &'static str, right: bool) -> Self {
        Self { address, name, right, ticket: None, since: Duration::ZERO }
    }
}

/// Runs for a minute, with 5 ms a login. Returns how many wrong proofs were checked, how many right
/// ones, and how long the slowest right one waited.
fn minute(triers: &mut [Trier]) -> (u32, u32, Duration) {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    let (mut wrong, mut right, mut slowest) = (0, 0, Duration::ZERO);
    for step in 0..12_000 {
        let now = Duration::from_millis(5 * step);
        for trier in &mut *triers {
            let looked = match trier.ticket {
                None => {
                    trier.since = now;
                    trier.ticket = pacer.arrive(address(trier.address), trier.name, begin + now);
                    trier.ticket.is_none()
                }
                Some(ticket) => pacer.has_turn(ticket, begin + now).is_ok(),
            };
            if !looked {
                continue;
            }
            trier.ticket = None;
            if trier.right {
                right += 1;
                slowest = slowest.max(now - trier.since);
                pacer.succeeded(address(trier.address), trier.name, begin + now);
            } else {
                wrong += 1;
            }
        }
    }
    (wrong, right, slowest)
}

/// The looks of a minute at proofs that wait.
const TURNS: u32 = (60_000 / PACE_OF_ALL.as_millis()) as u32;

#[test]
fn guesses_have_one_bound_however_many_connections_and_addresses_there_are() {
    for (addresses, connections) in [(1, 1), (1, 60), (50, 4)] {
        let mut triers: Vec<_> =
            (0..addresses * connections).map(|number| Trier::new(number % addresses, "a", false)).collect();
        let (wrong, ..) = minute(&mut triers);
        assert!(
            wrong <= addresses * FREE_TRIES + TURNS + 1,
            "{wrong} guesses of {addresses} x {connections}"
        );
    }
}

#[test]
fn owner_of_the_secret_gets_in_while_others_of_the_address_guess() {
    // Some pretend to be the initiator that knows.
    for (guessers, name, most_seconds) in [(4, "other", 2), (60, "other", 5), (60, "owner", 5)] {
        let mut triers: Vec<_> = (0..guessers).map(|_| Trier::new(1, name, false)).collect();
        triers.push(Trier::new(1, "owner", true));
        let (wrong, right, slowest) = minute(&mut triers);
        assert!(right > 10 && wrong <= FREE_TRIES * 2 + TURNS, "{right} right, {wrong} wrong");
        assert!(slowest < Duration::from_secs(most_seconds), "{slowest:?} with {guessers} of {name}");
    }
}

#[test]
fn initiator_that_proved_itself_before_waits_for_no_crowd() {
    let mut triers: Vec<_> = (0..250).map(|number| Trier::new(number, "a", false)).collect();
    triers.insert(0, Trier::new(1, "owner", true));
    let (_, right, slowest) = minute(&mut triers);
    assert!(right > 100 && slowest < Duration::from_millis(250), "{right}, {slowest:?}");
}

#[test]
fn right_proofs_of_an_own_account_give_no_further_guesses() {
    let mut triers: Vec<_> = (0..4).map(|_| Trier::new(1, "a", false)).collect();
    triers.extend((0..4).map(|_| Trier::new(1, "a", true)));
    let (wrong, ..) = minute(&mut triers);
    assert!(wrong <= FREE_TRIES + TURNS + 1, "{wrong} guesses");
}

#[test]
fn address_that_knows_the_secret_never_waits_and_time_forgives_the_others() {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    let mut waiting = 0;
    for _ in 0..100 {
        waiting += u32::from(pacer.arrive(address(1), "a", begin).is_some());
        assert_eq!(pacer.arrive(address(2), "a", begin), None);
        pacer.succeeded(address(2), "a", begin);
    }
    assert_eq!(waiting, 100 - FREE_TRIES, "none is turned away");
    assert_eq!(pacer.arrive(address(1), "a", begin + PACE_MEMORY + PACE_OF_ALL), None);
}

#[test]
fn proof_whose_initiator_has_gone_takes_no_turn() {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    let mut tickets: Vec<u64> = (0..20).filter_map(|_| pacer.arrive(address(1), "a", begin)).collect();
    let last = tickets.pop().unwrap();
    tickets.into_iter().for_each(|ticket| pacer.leave(ticket));
    assert_eq!(pacer.has_turn(last, begin), Ok(()));
    assert!(pacer.0.lock().waiting.is_empty() && pacer.0.lock().called.is_empty());
}

#[test]
fn addresses_and_initiators_that_are_remembered_have_a_limit() {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    for number in 0..PACED_ADDRESSES_MAX as u32 + 100 {
        pacer.arrive(address(number), "a", begin + Duration::from_millis(number.into()));
    }
    for number in 0..KNOWN_INITIATORS_MAX as u32 + 100 {
        pacer.succeeded(address(number), "a", begin + Duration::from_millis(number.into()));
    }
    let table = pacer.0.lock();
    assert_eq!(table.addresses.len(), PACED_ADDRESSES_MAX);
    assert!(!table.addresses.contains_key(&address(0)), "the oldest go first");
    assert_eq!(table.known.len(), KNOWN_INITIATORS_MAX);
}
