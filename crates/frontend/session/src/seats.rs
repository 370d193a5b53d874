//! Sessions that have begun, and whether there is room for one more.
//!
//! A session in use is never ended for another one: its client would lose a disk. A session without
//! a request since it began blocks no other once it is some seconds old ([`UNUSED_GRACE`]). One
//! address never has all of the room: some is reserved for the others ([`SESSIONS_FOR_OTHERS`]).

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Instant;

use crate::limits::{SESSIONS_FOR_OTHERS, UNUSED_GRACE};

/// A session.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// Its number.
    pub id: u64,
    /// Of its client; none over a local socket.
    pub from: Option<IpAddr>,
    /// When its client connected.
    pub since: Instant,
    /// It had no request.
    pub unused: bool,
}

/// Whether there is room for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// There is.
    Free,
    /// In the place of this one, which is to be closed.
    Of(u64),
    /// No.
    Full,
}

/// Whether there is room for one more than `seats`, of `sessions_max` at most, for a client of that
/// address.
pub fn room(seats: &[Seat], from: Option<IpAddr>, sessions_max: usize, now: Instant) -> Room {
    let count_from = |address: Option<IpAddr>| seats.iter().filter(|seat| seat.from == address).count();
    let share = sessions_max - sessions_max / SESSIONS_FOR_OTHERS;
    let is_over_share = from.is_some() && count_from(from) >= share;
    if seats.len() < sessions_max && !is_over_share {
        return Room::Free;
    }
    // A user of the local socket may use it without limits.
    let goes = |seat: &&Seat| {
        seat.unused
            && seat.from.is_some()
            && now.saturating_duration_since(seat.since) >= UNUSED_GRACE
            && (!is_over_share || seat.from == from)
    };
    let first =
        seats.iter().filter(goes).min_by_key(|seat| (Reverse(count_from(seat.from)), seat.since, seat.id));
    first.map_or(Room::Full, |seat| Room::Of(seat.id))
}
