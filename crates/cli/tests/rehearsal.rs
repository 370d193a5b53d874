//! Faults under a volume on purpose, with a real server and its clients.

mod running;

use running::Running;

const MIB: usize = 1 << 20;

fn served(dir: &std::path::Path) -> Running {
    let server = Running::start(dir, "d");
    server.good(&["volume", "create", "v", "--size", "128M"]);
    server.good(&["lun", "create", "v/db", "--size", "32M"]);
    server
}

#[test]
fn flushed_writes_survive_a_kill_that_loses_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path());
    for round in 1..=3 {
        let said = server.good(&["volume", "rehearse", "v", "--lose-unflushed", "--yes"]);
        assert!(said.contains("loses what was not flushed"), "{said}");
        let mut disk = server.disk("v/db");
        disk.write(0, &vec![round; 4 * MIB]).unwrap();
        disk.flush().unwrap();
        server.good(&["snapshot", "create", &format!("v@s{round}")]);
        disk.write(0, &[round + 100; 4096]).unwrap();
        disk.write(8 * MIB as u64, &vec![round; MIB]).unwrap();
        disk.flush().unwrap();
        // The next write is not flushed.
        disk.write(16 * MIB as u64, &vec![round; 8 * MIB]).unwrap();
        server.kill();
        server.restart();
        let mut disk = server.disk("v/db");
        assert_eq!(disk.read(0, 4096).unwrap(), [round + 100; 4096]);
        assert_eq!(disk.read(4096, 8192).unwrap(), [round; 8192]);
        assert!(disk.read(8 * MIB as u64, MIB as u32).unwrap().iter().all(|byte| *byte == round));
        let mut kept = server.disk(&format!("v@s{round}/db"));
        assert_eq!(kept.read(0, 4096).unwrap(), [round; 4096]);
        assert!(server.good(&["volume", "check", "v"]).contains("sound"));
        assert_eq!(
            server.json(&["status"])["problems"],
            serde_json::json!([]),
            "a restart ends the rehearsal"
        );
    }
}

#[test]
fn rehearsed_failures_reach_the_client_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path());
    let mut disk = server.disk("v/db");
    disk.write(0, &vec![7; MIB]).unwrap();
    disk.flush().unwrap();
    server.kill();
    // With nothing in the cache, reads go to the device.
    server.restart();
    server.good(&["volume", "rehearse", "v", "--fail-reads", "1", "--yes"]);
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "v");
    assert!(problem["next"].as_str().unwrap().contains("--off"), "{problem}");
    let mut disk = server.disk("v/db");
    let failed = disk.read(0, 4096).unwrap_err().to_string();
    assert!(failed.contains("a rehearsed failure"), "{failed}");
    let status = server.json(&["volume", "rehearse", "v"]);
    assert!(status["failed"].as_u64().unwrap() > 0, "{status}");
    server.good(&["volume", "rehearse", "v", "--off"]);
    assert_eq!(disk.read(0, 4096).unwrap(), [7; 4096], "it was no damage, and is not remembered as one");

    // The first failed write makes the volume read-only; flushed data exists after the next start.
    server.good(&["volume", "rehearse", "v", "--fail-flushes", "1", "--yes"]);
    disk.write(0, &[8; 4096]).unwrap();
    disk.flush().unwrap_err();
    server.good(&["volume", "rehearse", "v", "--off"]);
    disk.write(0, &[9; 4096]).unwrap_err();
    server.kill();
    server.restart();
    let mut disk = server.disk("v/db");
    let found = disk.read(0, 8192).unwrap();
    assert!(found[..4096] == [7; 4096] || found[..4096] == [8; 4096], "{}", found[0]);
    assert_eq!(found[4096..], [7; 4096]);
    server.bad(2, "usage", &["volume", "rehearse", "v", "--delay", "2h", "--yes"]);
    disk.write(0, &[9; 4096]).unwrap();
    disk.flush().unwrap();
}
