//! Tests of the pacer on a clock of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::Pacer;
use crate::limits::{FREE_TRIES, PACE_MEMORY, PACE_OF_ALL, PACED_ADDRESSES_MAX};

/// Of a login.
const PATIENCE: Duration = Duration::from_secs(10);

fn address(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number))
}

/// How many tries are looked at within a minute, of `addresses` that each have `connections` and try again as soon as they may.
fn tries_in_a_minute(addresses: u32, connections: u32) -> u32 {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    let mut due: Vec<(Duration, u32)> =
        (0..addresses * connections).map(|number| (Duration::ZERO, number % addresses)).collect();
    let mut looked_at = 0;
    while let Some(index) = (0..due.len()).min_by_key(|index| due[*index].0) {
        let (now, number) = due.swap_remove(index);
        let (then, looked) = match pacer.turn(address(number), begin + now, PATIENCE) {
            Some(wait) => (now + wait, 1),
            None => (now + Duration::from_millis(100), 0),
        };
        if then < Duration::from_secs(60) {
            looked_at += looked;
            due.push((then + Duration::from_millis(1), number));
        }
    }
    looked_at
}

#[test]
fn one_address_gets_few_tries_however_many_connections_it_has() {
    // The free ones, and those after 0.5, 1, 2, 4 and then each 8 s.
    assert!((FREE_TRIES..20).contains(&tries_in_a_minute(1, 1)), "{}", tries_in_a_minute(1, 1));
    assert!(tries_in_a_minute(1, 60) < 20, "{}", tries_in_a_minute(1, 60));
}

#[test]
fn many_addresses_share_their_tries() {
    let most = 1000 * FREE_TRIES + (60_000 / PACE_OF_ALL.as_millis()) as u32;
    let tried = tries_in_a_minute(1000, 1);
    assert!((1000 * FREE_TRIES..=most + 1).contains(&tried), "{tried} of {most}");
}

#[test]
fn address_that_knows_the_secret_never_waits_and_time_forgives_the_others() {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    let mut refused = 0;
    for _ in 0..100 {
        refused += u32::from(pacer.turn(address(1), begin, PATIENCE).is_none());
        assert_eq!(pacer.turn(address(2), begin, PATIENCE), Some(Duration::ZERO));
        pacer.succeeded(address(2));
    }
    assert!(refused > 80, "{refused}");
    // What was refused unseen took no turn: somebody else behind that address gets one soon.
    assert!(pacer.turn(address(1), begin + 2 * PATIENCE, PATIENCE).is_some());
    assert!(pacer.turn(address(1), begin + 3 * PATIENCE, PATIENCE).is_some_and(|wait| wait > Duration::ZERO));
    let later = begin + 5 * PATIENCE + PACE_MEMORY;
    assert_eq!(pacer.turn(address(1), later, PATIENCE), Some(Duration::ZERO));
}

#[test]
fn addresses_that_are_remembered_have_a_limit() {
    let (pacer, begin) = (Pacer::default(), Instant::now());
    for number in 0..PACED_ADDRESSES_MAX as u32 + 100 {
        pacer.turn(address(number), begin + Duration::from_millis(number.into()), PATIENCE);
    }
    let table = pacer.0.lock();
    assert_eq!(table.addresses.len(), PACED_ADDRESSES_MAX);
    assert!(!table.addresses.contains_key(&address(0)), "the oldest go first");
}
