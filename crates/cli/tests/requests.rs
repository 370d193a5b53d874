//! Requests that wait for room in a history while their session ends: nothing of them happens
//! later.
#[allow(dead_code, reason = "this test program uses a part of it")]
#[path = "../../frontend/iscsi/tests/harness/initiator.rs"]
mod initiator;
mod running;

use std::path::Path;

use cairn_frontend_nbd::{Client, ClientRequest};
use cairn_proto_iscsi::pdu::{Header, opcode};
use initiator::{Initiator, transfer};
use running::{Running, path, wait_until};

const BLOCK: usize = 4096;
const STALE: u8 = b'S';

/// A device whose history is full of versions that its floor keeps: each write waits. With the
/// client that filled it.
fn full(dir: &Path) -> (Running, Client) {
    let server = Running::start(dir, "s");
    let (origin, store) = (path(dir, "d.img"), path(dir, "d.history"));
    server.good(
        &["device", "adopt", "d", "--origin", &origin, "--size", "64M", "--history", &store]
            .into_iter()
            .chain(["--history-size", "64M", "--dirty", "1M", "--placement", "logging"])
            .chain(["--granularity", "every-write", "--floor", "1h", "--floor-policy", "wait"])
            .collect::<Vec<_>>(),
    );
    let mut filler = server.disk("d");
    // As many as may be in flight, without waiting for any: the last of them wait.
    let data = vec![1; 1 << 20];
    let mut written = 0;
    while waiting(&server) == 0 {
        assert!(written < 300, "no write had to wait");
        if filler.in_flight() > 8 {
            filler.complete().unwrap();
        }
        let offset = (8 + written % 50) << 20;
        filler.submit(ClientRequest::Write { offset, data: &data, fua: false }).unwrap();
        written += 1;
    }
    (server, filler)
}

fn waiting(server: &Running) -> u64 {
    server.json(&["history", "status", "d"])["waiting"].as_u64().unwrap()
}

/// Lets all waiting requests continue, until none waits.
fn make_room(server: &Running) {
    server.good(&["history", "window", "d", "--floor", "off", "--yes"]);
    wait_until("nothing waits any more", || waiting(server) == 0);
}

fn first_byte(server: &Running) -> u8 {
    server.disk("d").read(0, 1).unwrap()[0]
}

/// A client whose write waits.
fn stale(server: &Running) -> Client {
    let mut client = server.disk("d");
    client.submit(ClientRequest::Write { offset: 0, data: &[STALE; BLOCK], fua: false }).unwrap();
    // In addition to the one that filled it.
    wait_until("it waits", || waiting(server) > 1);
    client
}

#[test]
fn nothing_is_written_to_an_export_once_it_is_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _filler) = full(dir.path());
    let _waits = stale(&server);
    server.good(&["export", "set", "d", "--read-only", "true", "--yes"]);
    make_room(&server);
    assert_eq!(first_byte(&server), 0);
}

#[test]
fn write_of_a_client_that_went_never_takes_the_place_of_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _filler) = full(dir.path());
    drop(stale(&server));
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            let mut client = server.disk("d");
            client.write(0, &[STALE; BLOCK]).unwrap();
            client.write(0, &[2; BLOCK]).unwrap();
        });
        make_room(&server);
        again.join().unwrap();
    });
    assert_eq!(first_byte(&server), 2);
}

#[test]
fn abort_is_answered_while_a_write_waits_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _filler) = full(dir.path());
    let portal = server.json(&["status"])["iscsi"][0].as_str().unwrap().to_owned();
    let mut initiator = Initiator::login(&portal, "iqn.2026-11.io.cairn:d", 1, false).unwrap();
    initiator.command(1, &transfer(0x2a, 0, 8), 0x20, BLOCK as u32, &[STALE; BLOCK]);
    wait_until("it waits", || waiting(&server) > 1);
    let mut abort = Header::new(opcode::TASK_MANAGEMENT, 9).immediate().with_word(0, 1);
    abort.flags = 0x80 | 1;
    initiator.send(abort, &[]);
    let (said, _) = initiator.receive().expect("it is answered");
    assert_eq!((said.opcode(), said.detail[0]), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
    make_room(&server);
    assert_eq!(first_byte(&server), 0);
}
