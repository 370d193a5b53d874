//! Scrubs in the background of a real server: what rots is found, named, kept over restarts, and gone once it is mended.

mod running;

use std::os::unix::fs::FileExt;
use std::time::Instant;

use running::{PATIENCE, Running};

/// A block that is found again in the file of a volume.
fn marked(number: u8) -> Vec<u8> {
    [format!("the block that rots {number:3} ").as_bytes(), &[7; 4072]].concat()
}

/// Spoils a block in the file of a volume, under whatever runs; what it was.
fn rot(server: &Running, content: &[u8]) {
    let path = server.data.join("volumes/vol0/volume.img");
    let image = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 4096];
    let places: Vec<u64> = (0..image.metadata().unwrap().len() / 4096)
        .filter(|number| {
            image.read_exact_at(&mut block, number * 4096).unwrap();
            block == content
        })
        .collect();
    assert_eq!(places.len(), 1, "the block is in the file once");
    image.write_all_at(b"x", places[0] * 4096 + 100).unwrap();
}

fn scrub_until(
    server: &Running,
    what: &str,
    holds: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scrub = server.json(&["volume", "scrub", "vol0", "--status"]);
        if holds(&scrub) {
            return scrub;
        }
        assert!(Instant::now() < deadline, "{what}: {scrub}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn scrub_goes_on_after_a_kill_finds_what_rots_and_it_stays_in_status_until_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "32M"]);
    let mut disk = server.disk("vol0/db");
    disk.write(0, &(0..24 << 20).map(|n: u32| (n / 4096 % 251) as u8).collect::<Vec<_>>()).unwrap();
    disk.write(20480, &marked(1)).unwrap();
    disk.flush().unwrap();
    server.good(&["snapshot", "create", "vol0@kept"]);
    drop(disk);
    server.kill();
    server.restart();
    rot(&server, &marked(1));

    // Slow enough to be caught in the middle.
    server.good(&["volume", "scrub", "vol0", "--rate", "4M"]);
    let begun = scrub_until(&server, "it reads", |scrub| scrub["done_bytes"].as_u64() > Some(2 << 20));
    assert!(begun["running"].as_bool().unwrap() && begun["rate_bytes"] == 4 << 20, "{begun}");
    server.good(&["volume", "scrub", "vol0", "--rate", "8M"]);
    assert_eq!(server.terminate(), 0);
    server.restart();
    let after = server.json(&["volume", "scrub", "vol0", "--status"]);
    let (was, is) = (begun["done_bytes"].as_u64().unwrap(), after["done_bytes"].as_u64().unwrap());
    assert!(after["running"].as_bool().unwrap() && is + (1 << 20) >= was, "{was} then {after}");
    assert_eq!(after["started_ms"], begun["started_ms"], "it is the same pass");
    let said = server.good(&["volume", "show", "vol0"]);
    assert!(said.contains("scrub       running"), "{said}");
    server.good(&["volume", "scrub", "vol0", "--rate", "1G"]);
    let over = scrub_until(&server, "it ends", |scrub| !scrub["running"].as_bool().unwrap());
    assert_eq!(over["last"]["findings_total"], 1, "{over}");
    assert_eq!(
        (&over["damaged"][0]["lun"], &over["damaged"][0]["offset_bytes"]),
        (&"vol0/db".into(), &20480.into())
    );
    let bytes = over["last"]["bytes"].as_u64().unwrap();
    assert!(
        (24 << 20..26 << 20).contains(&bytes),
        "each block once, though a snapshot shows all of it too: {over}"
    );

    for _ in 0..2 {
        let problem = server.json(&["status"])["problems"][0].clone();
        assert_eq!(problem["subject"], "vol0");
        assert!(problem["message"].as_str().unwrap().contains("block 5 of vol0/db"), "{problem}");
        server.kill();
        server.restart();
        // What was damaged is looked at again.
        scrub_until(&server, "it is still damaged", |scrub| scrub["damaged"].as_array().unwrap().len() == 1);
    }
    let output = server.run(&["volume", "scrub", "vol0", "--wait", "--json"]);
    assert_eq!(output.status.code(), Some(27), "{output:?}");

    // Written over and shown by nothing, it is gone.
    server.disk("vol0/db").write(20480, &marked(2)).unwrap();
    server.good(&["snapshot", "delete", "vol0@kept", "--yes"]);
    assert_eq!(server.terminate(), 0);
    server.restart();
    scrub_until(&server, "it is gone", |scrub| scrub["damaged"] == serde_json::json!([]));
    assert_eq!(server.json(&["status"])["problems"], serde_json::json!([]));
    server.good(&["volume", "scrub", "vol0", "--wait"]);
}

#[test]
fn scrubs_are_scheduled_stopped_and_refuse_what_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    let never = server.json(&["volume", "scrub", "vol0", "--status"]);
    assert!(never["last"].is_null() && never["running"] == false && never["next_ms"].is_null(), "{never}");
    server.bad(2, "usage", &["volume", "scrub", "vol0", "--rate", "100"]);
    server.bad(10, "not-found", &["volume", "scrub", "nothing"]);
    // One that was never run is due at once.
    server.good(&["volume", "scrub", "vol0", "--every", "7d"]);
    let done = scrub_until(&server, "the schedule begins one", |scrub| !scrub["last"].is_null());
    let (next, began) = (done["next_ms"].as_u64().unwrap(), done["last"]["started_ms"].as_u64().unwrap());
    assert_eq!(next - began, 7 * 86_400_000);
    server.good(&["volume", "scrub", "vol0", "--every", "off"]);
    assert!(server.json(&["volume", "scrub", "vol0", "--status"])["next_ms"].is_null());
    server.good(&["lun", "create", "vol0/db", "--size", "32M"]);
    server.disk("vol0/db").write(0, &vec![3; 16 << 20]).unwrap();
    // What no consistency point has yet is no pass's business.
    server.good(&["snapshot", "create", "vol0@s"]);
    server.good(&["volume", "scrub", "vol0", "--rate", "1M"]);
    let stopped = server.json(&["volume", "scrub", "vol0", "--stop"]);
    assert_eq!(stopped["last"]["stopped"], true, "{stopped}");
    assert!(server.good(&["volume", "show", "vol0"]).contains("scrub       stopped"));
}
