//! A look fits its window, whatever the server has.

use super::*;

fn look(exports: usize, mirrors: usize) -> Look {
    let server = Server {
        version: "10.20.30".to_owned(),
        data: "/a/rather/long/path/to/the/data/directory/of/a/server/of/somebody".to_owned(),
        uptime_ms: 1_000_000_000,
        volumes: 12,
        problems: 3,
        memory_bytes: 1 << 34,
        cache_bytes: 1 << 40,
        dirty_bytes: 1 << 30,
        requests_per_second: 123_456.7,
        read_bytes_per_second: 1.5e9,
        written_bytes_per_second: 2.5e9,
        consistency_points_per_second: 0.1,
    };
    let export = |index| Export {
        name: format!("a-volume-with-a-long-name@and-a-snapshot/lun-{index}"),
        sessions: 1000,
        requests_per_second: 1_234_567.0,
        read_bytes_per_second: 1023.9 * 1048576.0,
        written_bytes_per_second: 1023.9 * 1048576.0,
        p50_us: Some(99_949.0),
        p99_us: Some(12_345_678.0),
    };
    let mirror = |index| Mirror {
        name: format!("mirror-with-a-long-name-{index}"),
        state: api::MirrorState::TransferringBaseline,
        check: 2,
        lag_ms: Some(7_100_000),
        lag_bytes: Some(1_048_000_000),
        bytes_per_second: 1.07e9,
        seconds_left: Some(100_000),
    };
    let follower = Follower {
        volume: "a-volume-with-a-long-name".to_owned(),
        mirror: "0123456789abcdef-0123456789abcdef".to_owned(),
        peer: Some("a-host-with-a-long-name.example.org".to_owned()),
        failed_over: false,
        lag_ms: Some(119_900),
        lag_bytes: Some(1_048_000_000),
        over_rpo: true,
        transferring: true,
    };
    let work = Work {
        kind: "mirror update".to_owned(),
        subject: "mirror-with-a-long-name".to_owned(),
        phase: "comparing checksums".to_owned(),
        done_bytes: 5,
        total_bytes: 10,
        bytes_per_second: 1_048_000_000,
        seconds_left: Some(100_000_000),
    };
    let (exports, mirrors) = ((0..exports).map(export).collect(), (0..mirrors).map(mirror).collect());
    Look { server, exports, mirrors, followers: vec![follower], work: vec![work] }
}

fn texts(rows: Vec<Row>) -> Vec<String> {
    rows.into_iter().map(|row| row.text).collect()
}

#[test]
fn nothing_is_wider_than_the_window_nor_cut_where_80_columns_are() {
    for line in texts(look(3, 3).rows(80, usize::MAX)).iter().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for width in [80, 40, 1] {
        let lines = texts(look(3, 3).render(width, 24));
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
    }
}

#[test]
fn longest_part_is_cut_and_says_by_how_much() {
    let lines = texts(look(100, 4).render(80, 24));
    assert_eq!(lines.len(), 24);
    assert_eq!(lines.iter().filter(|line| line.starts_with("mirror-wi")).count(), 4, "{lines:#?}");
    let shown = lines.iter().filter(|line| line.starts_with("a-volume-w") && line.contains("lun-")).count();
    let more = format!("... and {} more", 100 - shown);
    assert!(shown > 2 && lines.contains(&more), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("WORK")));
    // However low the window is.
    for height in 0..24 {
        assert!(look(100, 100).render(80, height).len() <= height);
    }
    let all = texts(look(100, 0).render(80, usize::MAX));
    assert!(all.len() > 100 && !all.iter().any(|line| line.contains("more")));
}

#[test]
fn names_that_are_cut_keep_both_ends() {
    assert_eq!(fit("v/db", 6), "v/db  ");
    assert_eq!(fit("abcdefghij", 7), "abc~hij");
    assert_eq!(fit("abcdefghij", 6), "ab~hij");
    assert_eq!(cut("a\x1b[2Jb", 80), "a[2Jb", "what a client calls itself changes no terminal");
}

#[test]
fn wide_window_shows_long_names_in_full_and_keeps_the_columns_in_line() {
    let lines = texts(look(2, 2).render(120, 40));
    let name = "a-volume-with-a-long-name@and-a-snapshot/lun-0";
    let row = lines.iter().find(|line| line.starts_with(name)).unwrap();
    let head = lines.iter().find(|line| line.starts_with("EXPORT")).unwrap();
    assert_eq!(row.len(), head.len(), "{lines:#?}");
    assert!(lines.iter().all(|line| line.len() <= 120));
}

#[test]
fn filter_and_order_choose_what_is_shown_first() {
    let mut one = look(30, 3);
    one.keep("lun-7");
    let lines = texts(one.render(80, 40));
    assert!(lines.iter().any(|line| line.starts_with("a-volume-w") && line.contains("lun-7")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.starts_with("MIRROR ")), "{lines:#?}");
    let mut all = look(3, 2);
    all.exports[2].p99_us = Some(99_999_999.0);
    all.sort(Order::Slow);
    assert!(all.exports[0].name.ends_with("lun-2"));
    all.sort(Order::Name);
    assert!(all.exports[0].name.ends_with("lun-0"));
    let tones: Vec<Tone> = all.render(80, 40).into_iter().map(|row| row.tone).collect();
    assert!(tones.contains(&Tone::Heading) && tones.contains(&Tone::Critical));
}
