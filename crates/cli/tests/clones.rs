//! Clones from the command line: of a volume, of a clone, of a mirror's image; over restarts, kills
//! and updates.

mod running;

use std::path::Path;

use running::Running;

fn write(server: &Running, export: &str, block: u64, byte: u8) {
    let mut disk = server.disk(export);
    disk.write(block * 4096, &[byte; 4096]).unwrap();
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

fn byte(server: &Running, export: &str, block: u64) -> u8 {
    let bytes = server.disk(export).read(block * 4096, 4096).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn served(dir: &Path, name: &str) -> Running {
    let server = Running::start(dir, name);
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    write(&server, "v/db", 0, 1);
    server
}

#[test]
fn clone_is_a_volume_that_lives_beside_its_parent_over_restarts_and_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path(), "a");
    server.good(&["snapshot", "create", "v@monday"]);
    write(&server, "v/db", 0, 2);
    let made = server.json(&["clone", "create", "v@monday", "test"]);
    assert_eq!((&made["of"], &made["luns"]), (&"v@monday".into(), &1.into()), "{made}");
    assert!(made["own_bytes"].as_u64().unwrap() < 4 << 20, "it costs next to nothing: {made}");
    assert_eq!((byte(&server, "test/db", 0), byte(&server, "v/db", 0)), (1, 2));
    write(&server, "test/db", 1, 3);
    server.good(&["snapshot", "create", "test@tried"]);
    server.good(&["clone", "create", "test@tried", "again"]);
    write(&server, "again/db", 0, 4);
    write(&server, "v/db", 1, 5);

    // In the order of their names a clone would be opened before its parent.
    for kill in [true, false] {
        if kill {
            server.kill()
        } else {
            assert_eq!(server.terminate(), 0)
        }
        server.restart();
        let shown: Vec<(u8, u8)> = ["v/db", "test/db", "again/db", "v@monday/db", "test@tried/db"]
            .iter()
            .map(|export| (byte(&server, export, 0), byte(&server, export, 1)))
            .collect();
        assert_eq!(shown, [(2, 5), (1, 3), (4, 3), (1, 0), (1, 3)]);
        for volume in ["v", "test", "again"] {
            server.good(&["volume", "check", volume, "--deep"]);
        }
    }
    assert_eq!(server.json(&["volume", "show", "again"])["clone_of"], "test@tried");
    assert_eq!(server.json(&["clone", "list"]).as_array().unwrap().len(), 2);

    // Nothing that a clone is made of goes before it.
    server.bad(11, "busy", &["volume", "delete", "v", "--yes"]);
    server.bad(11, "busy", &["clone", "delete", "test", "--yes"]);
    server.bad(11, "busy", &["snapshot", "delete", "v@monday", "--yes"]);
    let held = server.bad(11, "busy", &["snapshot", "delete", "test@monday", "--yes"]);
    assert!(held.contains("held"), "{held}");
    server.bad(21, "taken", &["clone", "create", "v@monday", "v"]);
    server.bad(10, "not-found", &["clone", "create", "v@never", "other"]);
    server.bad(10, "not-found", &["clone", "delete", "v", "--yes"]);
    server.good(&["clone", "delete", "again", "-n"]);
    server.good(&["clone", "delete", "again", "--yes"]);
    server.good(&["clone", "delete", "test", "--yes"]);
    server.good(&["snapshot", "delete", "v@monday", "--yes"]);
    server.good(&["volume", "check", "v", "--deep"]);
    assert!(server.json(&["clone", "list"]).as_array().unwrap().is_empty());
}

#[test]
fn clone_whose_own_file_is_lost_still_keeps_its_snapshot_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path(), "a");
    server.good(&["snapshot", "create", "v@monday"]);
    server.good(&["clone", "create", "v@monday", "test"]);
    server.terminate();
    let own = server.data.join("volumes/test/volume.img");
    std::fs::rename(&own, dir.path().join("aside")).unwrap();
    server.restart();
    let status = server.json(&["status"]);
    assert_eq!(status["problems"][0]["subject"], "test", "{status}");
    assert!(!server.has_export("test/db"));
    server.bad(11, "busy", &["snapshot", "delete", "v@monday", "--yes"]);
    server.terminate();
    std::fs::rename(dir.path().join("aside"), &own).unwrap();
    server.restart();
    assert_eq!(byte(&server, "test/db", 0), 1);
    server.good(&["clone", "delete", "test", "--yes"]);
}

#[test]
fn clone_of_a_mirror_takes_writes_while_the_mirror_is_updated_and_keeps_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let source = served(dir.path(), "a");
    source.good(&["snapshot", "create", "v@monday"]);
    let mut mirror = Running::start(dir.path(), "b");
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token]);
    let own = mirror.json(&["snapshot", "list", "v"]);
    let own = own.as_array().unwrap().last().unwrap()["name"].as_str().unwrap().to_owned();
    let refused = mirror.bad(2, "usage", &["clone", "create", &own, "test"]);
    assert!(refused.contains("cannot be cloned"), "{refused}");

    mirror.good(&["clone", "create", "v@monday", "test"]);
    assert_eq!(byte(&mirror, "test/db", 0), 1);
    write(&mirror, "test/db", 0, 9);
    write(&source, "v/db", 0, 2);
    mirror.good(&["mirror", "update", "v"]);
    assert_eq!((byte(&mirror, "v/db", 0), byte(&mirror, "test/db", 0)), (2, 9));

    // The source no longer has it: an image without it is refused while the clone exists.
    source.good(&["snapshot", "delete", "v@monday", "--yes"]);
    write(&source, "v/db", 0, 3);
    let refused = mirror.run(&["mirror", "update", "v"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cairn clone delete"), "{said}");
    mirror.kill();
    mirror.restart();
    assert_eq!((byte(&mirror, "v/db", 0), byte(&mirror, "test/db", 0)), (2, 9));
    assert_eq!(byte(&mirror, "v@monday/db", 0), 1);
    mirror.good(&["volume", "check", "test", "--deep"]);
    mirror.good(&["clone", "delete", "test", "--yes"]);
    mirror.good(&["mirror", "update", "v"]);
    assert_eq!(byte(&mirror, "v/db", 0), 3);
    mirror.good(&["volume", "check", "v", "--deep"]);
}

#[test]
fn mirror_of_a_volume_is_not_taken_for_one_of_its_clone() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = served(dir.path(), "a");
    source.stay();
    let mut mirror = Running::start(dir.path(), "b");
    mirror.stay();
    source.good(&["snapshot", "create", "v@monday"]);
    mirror.good(&["mirror", "create", "v", &source.invite()]);
    source.good(&["clone", "create", "v@monday", "test"]);
    write(&source, "test/db", 0, 9);
    let of = |what: &str| -> Vec<String> {
        let status = source.json(&["status"]);
        let named = status[what].as_array().unwrap().iter();
        named.map(|one| one["volume"].as_str().or(one["subject"].as_str()).unwrap().to_owned()).collect()
    };
    assert_eq!(of("followers"), ["v"]);
    mirror.good(&["mirror", "failover", "v", "--yes"]);
    running::wait_until("the source has heard of it", || !of("problems").is_empty());
    assert_eq!(of("problems"), ["v"]);
    let name = source.json(&["status"])["followers"][0]["name"].as_str().unwrap().to_owned();
    source.bad(10, "not-found", &["mirror", "forget", "test", &name]);
    for how in ["--dry-run", "--discard-divergent"] {
        let refused = source.run(&["mirror", "resync", "test", how, "--yes"]);
        assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
    }
    assert_eq!(byte(&source, "test/db", 0), 9);
    source.good(&["mirror", "resync", "v", "--discard-divergent", "--yes"]);
    // One of the clone is not taken for one of its parent.
    mirror.good(&["mirror", "create", "test", &source.invite()]);
    assert_eq!(of("followers"), ["test"]);
    mirror.good(&["mirror", "failover", "test", "--yes"]);
    running::wait_until("the source has heard of it", || !of("problems").is_empty());
    assert_eq!(of("problems"), ["test"]);
    source.good(&["mirror", "resync", "test", "--discard-divergent", "--yes"]);
}
