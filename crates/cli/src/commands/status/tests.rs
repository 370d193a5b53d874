//! Tests of the display for people.

use cairn_api::{self as api, Rate};

use super::{headline, latencies, latency, shortened};

#[test]
fn latencies_have_the_unit_that_people_read() {
    let texts = [0.3, 7.25, 10.0, 999.0, 1500.0, 123_456.0, 2_500_000.0].map(latency);
    assert_eq!(texts, ["0.3 us", "7.2 us", "10 us", "999 us", "1.5 ms", "123 ms", "2.5 s"]);
    let rate = Rate { per_second: 2.0, bytes_per_second: 8192, p50_us: Some(8.0), p99_us: Some(1200.0) };
    assert_eq!(latencies(&rate), "8.0 us, 1.2 ms");
    assert_eq!(latencies(&Rate { p50_us: None, p99_us: None, ..rate }), "-");
    assert_eq!(shortened("iSCSI iqn.2026-11.example:host-1", 22), "iSCSI iqn.~mple:host-1");
}

fn status(problems: &[&str]) -> api::Status {
    let problems = problems.iter().map(|subject| api::Problem {
        subject: (*subject).to_owned(),
        message: "it fails".to_owned(),
        next: "mend it".to_owned(),
    });
    api::Status {
        version: "1".to_owned(),
        data: "/d".to_owned(),
        pid: 1,
        uptime_ms: 1,
        memory_bytes: 0,
        cache_bytes: 0,
        consistency_points: 0,
        fingerprint: String::new(),
        http: Vec::new(),
        mirror: None,
        mirror_further: Vec::new(),
        nbd: Vec::new(),
        iscsi: Vec::new(),
        nfs: Vec::new(),
        room: None,
        volumes: Vec::new(),
        devices: vec![api::Device {
            name: "disk".to_owned(),
            origin: "/o".to_owned(),
            history: None,
            size_bytes: 0,
            uris: Vec::new(),
            target: None,
            problem: Some("it is lost".to_owned()),
        }],
        exports: Vec::new(),
        mirrors: Vec::new(),
        drills: Vec::new(),
        bucket_mirrors: Vec::new(),
        governors: Vec::new(),
        followers: Vec::new(),
        leftovers: Vec::new(),
        mounts: Vec::new(),
        schedules: Vec::new(),
        problems: problems.collect(),
        notes: Vec::new(),
    }
}

#[test]
fn first_line_counts_problems_and_says_how_grave_they_are() {
    assert_eq!(headline(&status(&[])), "OK: no problems");
    assert_eq!(headline(&status(&["v"])), "WARNING: 1 problem");
    assert_eq!(headline(&status(&["disk"])), "CRITICAL: 1 problem");
    assert_eq!(headline(&status(&["v", "disk"])), "CRITICAL: 2 problems, 1 of them critical");
}
