//! Tests of the parts; the front ends' own tests run them together.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_base::Rng;
use cairn_device::Segments;

use crate::limits::{
    BATCH_BYTES_MAX, METER_PERIOD, SILENT_GRACE, SPOKEN_GRACE, UNUSED_GRACE, WINDOW_BYTES_MIN, WINDOWS_BYTES,
};
use crate::{
    Acceptors, Input, Kind, Lobby, Meter, Payload, Place, Portal, Room, Seat, Socket, Windows, each_piece,
    room,
};

#[test]
fn payloads_stand_in_their_blocks_where_the_device_has_them() {
    let mut rng = Rng::new(1);
    for (offset, length) in [(0, 4096), (1, 4096), (4095, 2), (8192, 3 << 20), (100, 50), (4000, 200_000)] {
        let mut bytes = vec![0; length as usize];
        rng.fill(&mut bytes);
        let mut payload = Payload::new(offset, length);
        // In turn by copying and by vectors, in pieces of any size.
        let mut at = 0;
        while payload.missing() > 0 {
            let piece = (1 + rng.below(70_000) as usize).min(payload.missing());
            if rng.one_in(2) {
                assert_eq!(payload.fill(&bytes[at..at + piece]), piece);
                at += piece;
                continue;
            }
            let mut vectors = Vec::new();
            let room = payload.vectors(piece, &mut vectors);
            assert_eq!(room, vectors.iter().map(|vector| vector.len()).sum::<usize>());
            assert!(room <= piece);
            let mut left = &bytes[at..at + room];
            for vector in &mut vectors {
                let now = vector.len();
                vector.copy_from_slice(&left[..now]);
                left = &left[now..];
            }
            drop(vectors);
            payload.advance(room);
            at += room;
        }
        let data = payload.finish();
        assert_eq!(data.to_vec(), bytes);
        let mut place = offset as usize;
        for segment in data.iter() {
            let next = (place / 4096 + 1) * 4096;
            assert_eq!(segment.len(), (next - place).min(offset as usize + bytes.len() - place));
            place += segment.len();
        }
    }
}

#[test]
fn payload_that_is_cut_holds_what_came_and_no_more() {
    let mut payload = Payload::new(4000, 20_000);
    payload.fill(&[9; 5000]);
    payload.cut();
    assert_eq!((payload.missing(), payload.finish().to_vec()), (0, vec![9; 5000]));
    let mut empty = Payload::new(0, 8192);
    empty.cut();
    assert!(empty.finish().is_empty());
}

#[test]
fn memory_of_a_payload_does_not_run_far_ahead_of_what_came() {
    let mut payload = Payload::new(0, 32 << 20);
    payload.fill(&[9; 1]);
    assert!(payload.memory() <= 64 << 10, "{}", payload.memory());
    let mut vectors = Vec::new();
    assert_eq!(payload.vectors(100_000, &mut vectors), 100_000);
    drop(vectors);
    assert!(payload.memory() <= 108 << 10, "{}", payload.memory());
}

#[test]
fn pieces_of_a_stretch_are_its_bytes() {
    let bytes: Vec<u8> = (0..20_000u32).map(|byte| (byte % 251) as u8).collect();
    let data = Segments::copy_of(&bytes);
    for (skip, length) in
        [(0, 20_000), (1, 4096), (4095, 2), (4096, 4096), (19_999, 1), (5, 0), (8192, 11_808)]
    {
        let mut seen = Vec::new();
        each_piece(&data, skip, length, |piece| seen.extend_from_slice(piece));
        assert_eq!(seen, bytes[skip..skip + length], "{skip} {length}");
    }
}

#[test]
fn windows_get_smaller_as_the_budget_is_used_up_and_come_back() {
    let windows = Arc::new(Windows::default());
    let mut held: Vec<_> = (0..40).map(|_| windows.take()).collect();
    assert_eq!(held[0].bytes(), BATCH_BYTES_MAX);
    assert!(held.windows(2).all(|pair| pair[1].bytes() <= pair[0].bytes()));
    assert_eq!(held[39].bytes(), WINDOW_BYTES_MIN, "nobody is left without");
    assert_eq!(windows.used(), held.iter().map(crate::Window::bytes).sum::<u64>());
    assert!(windows.used() < WINDOWS_BYTES + 40 * WINDOW_BYTES_MIN);
    held.clear();
    assert_eq!((windows.used(), windows.take().bytes()), (0, BATCH_BYTES_MAX));
}

#[test]
fn sessions_with_whole_windows_leave_room_for_work_on_other_threads() {
    let windows = Arc::new(Windows::default());
    let held = [windows.take(), windows.take()];
    assert!(held.iter().all(|window| window.bytes() == BATCH_BYTES_MAX));
    let beside: Vec<_> = (0..1000).map_while(|_| windows.also(64 << 10)).collect();
    assert!(beside.len() >= 64, "{} of 64 KiB", beside.len());
    assert!(windows.used() < WINDOWS_BYTES, "another session gets more than the least");
    assert!(windows.take().bytes() > WINDOW_BYTES_MIN);
}

#[test]
fn input_gives_bytes_in_the_order_in_which_they_came() {
    let mut rng = Rng::new(3);
    let mut input = Input::default();
    let (mut sent, mut seen) = (0u32, 0u32);
    for _ in 0..5000 {
        if rng.one_in(2) {
            let count = 1 + rng.below(900) as usize;
            let room = input.room(count);
            assert!(room.len() >= count);
            room[..count].iter_mut().for_each(|byte| {
                *byte = sent as u8;
                sent += 1;
            });
            input.received(count);
        } else {
            let count = rng.below(input.bytes().len() as u64 + 1) as usize;
            for byte in &input.bytes()[..count] {
                assert_eq!(*byte, seen as u8);
                seen += 1;
            }
            input.consume(count);
        }
    }
    assert_eq!((sent - seen) as usize, input.bytes().len());
}

#[test]
fn rates_and_latencies_are_of_the_last_seconds() {
    let begin = Instant::now();
    let at = |ms: u64| begin + Duration::from_millis(ms);
    let meter = Meter::new(begin);
    assert_eq!(meter.activity(begin).read.p99, None);
    // 200 a second for 8 s: of a hundred reads 98 take 1 ms and two 50 ms; each write takes 3 ms.
    for request in 0..1600u64 {
        let now = at(5 * request);
        meter.taken(1);
        let mut batch = meter.batch(now);
        let latency = if request % 100 < 2 { 50 } else { 1 };
        batch.done(Kind::Read, now.checked_sub(Duration::from_millis(latency)).unwrap(), 4096);
        batch.moved(Kind::Write, 1000);
        batch.done(Kind::Write, now.checked_sub(Duration::from_millis(3)).unwrap(), 24);
    }
    let seen = meter.activity(at(8000));
    assert_eq!(seen.window, Duration::from_secs(8));
    assert!((seen.read.per_second - 200.0).abs() < 1.0, "{seen:?}");
    assert!((seen.read.bytes_per_second - 200.0 * 4096.0).abs() < 4096.0, "{seen:?}");
    assert!((seen.write.bytes_per_second - 200.0 * 1024.0).abs() < 1024.0, "{seen:?}");
    let within = |told: Option<Duration>, ms: f64| {
        let told = told.unwrap().as_secs_f64() * 1e3;
        assert!((ms..=ms * 1.13).contains(&told), "{told} ms for {ms} ms");
    };
    within(seen.read.p50, 1.0);
    within(seen.read.p99, 50.0);
    within(seen.write.p50, 3.0);
    within(seen.write.p99, 3.0);
    assert_eq!(seen.other, crate::Rate::default());
    let totals = meter.totals();
    assert_eq!((totals.requests, totals.read_bytes, totals.written_bytes), (1600, 1600 * 4096, 1600 * 1024));
    // Requests older than two periods are gone from the rates, and stay in the totals.
    let later = meter.activity(at(8000) + METER_PERIOD);
    assert!(later.read.per_second > 0.0 && later.read.per_second < 200.0, "{later:?}");
    let idle = meter.activity(at(8000) + 3 * METER_PERIOD);
    assert_eq!((idle.read.per_second, idle.read.p50), (0.0, None));
    assert_eq!(meter.totals(), totals);
    // A clock that seems to stand still or go back does no harm.
    meter.batch(at(8000)).done(Kind::Other, at(9000), 0);
}

#[test]
fn latencies_are_told_an_eighth_too_high_at_most() {
    let begin = Instant::now();
    let mut rng = Rng::new(5);
    let mut before = BTreeMap::new();
    for bits in 8..40u32 {
        let latency = Duration::from_nanos((1 << bits) + rng.below(1 << bits));
        let latency = latency.min(Duration::from_secs(60));
        let meter = Meter::new(begin);
        meter.batch(begin + latency).done(Kind::Read, begin, 0);
        let told = meter.activity(begin + latency).read.p50.unwrap();
        assert!(told > latency, "{latency:?}: {told:?}");
        assert!(told <= latency.mul_f64(1.125) + Duration::from_nanos(256), "{latency:?}: {told:?}");
        before.insert(latency, told);
    }
    assert!(before.values().zip(before.values().skip(1)).all(|(one, next)| one <= next));
    let meter = Meter::new(begin);
    meter.batch(begin + Duration::from_secs(3600)).done(Kind::Write, begin, 0);
    assert!(meter.activity(begin + Duration::from_secs(3600)).write.p99.unwrap() > Duration::from_secs(60));
}

struct TestPortal(TcpListener);

impl AsFd for TestPortal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Portal for TestPortal {
    type Peer = ();

    fn accept(&self) -> io::Result<((), Socket)> {
        let (stream, _) = self.0.accept()?;
        stream.set_nonblocking(false)?;
        Ok(((), Socket::from_tcp(stream)?))
    }

    fn place(&self) -> String {
        "test".to_owned()
    }
}

#[test]
fn acceptors_take_connections_until_they_are_stopped() {
    let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let portals = listeners.into_iter().map(|listener| {
        listener.set_nonblocking(true).unwrap();
        TestPortal(listener)
    });
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let acceptors = Acceptors::start(
        "test",
        portals.collect(),
        |()| Duration::ZERO,
        move |(), socket| {
            counted.fetch_add(1, Ordering::SeqCst);
            // The failure of one connection does not end the others.
            socket.send(&[io::IoSlice::new(b"hello")])?;
            Err(io::ErrorKind::OutOfMemory.into())
        },
    );
    let acceptors = acceptors.unwrap();
    for address in addresses.iter().cycle().take(6) {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut hello = String::new();
        io::Read::read_to_string(&mut client, &mut hello).unwrap();
        assert_eq!(hello, "hello");
    }
    acceptors.stop();
    assert_eq!(taken.load(Ordering::SeqCst), 6);
    assert!(addresses.iter().all(|address| TcpStream::connect(address).is_err()), "the portals are gone");
}

fn address(number: u32) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)))
}

#[test]
fn connection_that_says_nothing_makes_room_first_and_the_oldest_of_the_greediest_address() {
    let (begin, ms) = (Instant::now(), Duration::from_millis);
    let mut lobby = Lobby::new(4);
    for (id, from) in [(1, 1), (2, 2), (3, 2), (4, 2)] {
        assert_eq!(lobby.place(address(from), begin), Place::Free);
        lobby.enter(id, address(from), begin + ms(id));
    }
    let later = begin + SPOKEN_GRACE + ms(10);
    assert_eq!(lobby.place(address(3), later), Place::Of(2));
    lobby.spoke(2);
    assert_eq!(lobby.place(address(3), later), Place::Of(3), "one that spoke stays longer");
    lobby.spoke(3);
    lobby.spoke(4);
    assert_eq!(lobby.place(address(3), later), Place::Of(2), "and not for ever");
    assert!(lobby.leave(2) && !lobby.leave(2));
    assert_eq!(lobby.place(address(3), later), Place::Free);
}

#[test]
fn handshakes_that_begin_without_an_end_cut_off_none_before_its_time() {
    // As fast as there is room: each one that enters has its grace period.
    for spoke in [false, true] {
        let grace = if spoke { SPOKEN_GRACE } else { SILENT_GRACE };
        let (begin, mut now, mut lobby) = (Instant::now(), Instant::now(), Lobby::new(16));
        let mut since = BTreeMap::new();
        for id in 0..200u64 {
            match lobby.place(address(1), now) {
                Place::Free => {}
                Place::Of(other) => {
                    assert!(now - since[&other] >= grace, "cut off too soon");
                    lobby.leave(other);
                }
                Place::After(wait) => {
                    assert!(wait <= grace);
                    now += wait;
                    let Place::Of(other) = lobby.place(address(1), now) else { panic!("there is room then") };
                    lobby.leave(other);
                }
            }
            lobby.enter(id, address(1), now);
            since.insert(id, now);
            if spoke {
                lobby.spoke(id);
            }
            // A client from elsewhere waits for none of them.
            assert!(!matches!(lobby.place(address(2), now), Place::After(_)));
            now += Duration::from_millis(1);
        }
        assert!(now - begin < grace * 14 && lobby.len() == 16, "and room comes");
    }
}

#[test]
fn session_that_is_used_is_never_ended_for_another_and_one_address_leaves_room() {
    let (begin, max) = (Instant::now(), 256);
    let seat = |id: u64, from: u32, unused| Seat { id, from: address(from), since: begin, unused };
    let later = begin + UNUSED_GRACE;
    let used: Vec<Seat> = (0..256).map(|id| seat(id, id as u32 % 64, false)).collect();
    assert_eq!(room(&used, address(100), max, later), Room::Full);
    assert_eq!(room(&used[..255], address(100), max, later), Room::Free);
    let mut unused = used.clone();
    unused[7].unused = true;
    assert_eq!(room(&unused, address(100), max, later), Room::Of(7));
    let soon = later - Duration::from_millis(1);
    assert_eq!(room(&unused, address(100), max, soon), Room::Full, "it has just come");
    unused[7].from = None;
    assert_eq!(room(&unused, address(100), max, later), Room::Full, "a local one stays");
    // One address.
    let mut one: Vec<Seat> = (0..224).map(|id| seat(id, 1, false)).collect();
    assert_eq!(room(&one, address(1), max, later), Room::Full);
    assert_eq!(room(&one, address(2), max, later), Room::Free);
    one.push(Seat { unused: true, ..seat(300, 2, true) });
    assert_eq!(room(&one, address(1), max, later), Room::Full, "it takes none of another one");
    one[3].unused = true;
    assert_eq!(room(&one, address(1), max, later), Room::Of(3));
    // Local sockets.
    let local: Vec<Seat> = (0..255).map(|id| Seat { from: None, ..seat(id, 1, true) }).collect();
    assert_eq!(room(&local, None, max, later), Room::Free);
    // Small limits are exact.
    assert_eq!(room(&[], address(1), 1, later), Room::Free);
    assert_eq!(room(&[seat(1, 1, false)], address(1), 2, later), Room::Free);
}
