//! Names, dates, and the texts of errors.

use std::sync::Arc;

use cairn_base::Timestamp;

use crate::*;

#[test]
fn names_are_valid_in_every_store_and_file_system() {
    for text in ["a", "epoch/0000000001", "dumps/0f/part-0", "a.b_c-d", &"a".repeat(200)] {
        assert_eq!(Name::new(text).expect(text).as_str(), text);
    }
    let long = ["a"; 300].join("/");
    for text in
        ["", "/a", "a/", "a//b", ".", "a/..", ".a", "A", "a b", "a\\b", "ä", "a\0", &"a".repeat(201), &long]
    {
        assert_eq!(Name::new(text), Err(InvalidName), "{text}");
    }
    for text in ["", "a/", "a/b/"] {
        assert_eq!(Prefix::new(text).expect(text).as_str(), text);
    }
    for text in ["a", "/", "a//", "../"] {
        assert_eq!(Prefix::new(text), Err(InvalidName), "{text}");
    }
    let prefix = Prefix::new("a/").expect("a prefix");
    assert!(prefix.has(&Name::new("a/b").expect("a name")) && !prefix.has(&Name::new("ab").expect("a name")));
}

#[test]
fn instants_are_written_and_read_as_stores_do() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_795_813_509, "2026-11-27T21:05:09Z"),
        (4_102_444_799, "2099-12-31T23:59:59Z"),
    ] {
        let at = Timestamp(seconds * 1_000_000_000);
        assert_eq!(utc(at), text);
        assert_eq!(parse_utc(text), Some(at));
        assert_eq!(parse_utc(&text.replace('Z', ".123Z")), Some(at));
        assert_eq!(parse_utc(&text.replace('Z', "+00:00")), Some(at));
    }
    for day in 0..200_000 {
        let at = Timestamp(day * 86_400 * 1_000_000_000 + 1_000_000_000);
        if day * 86_400 < 16_000_000_000 {
            assert_eq!(parse_utc(&utc(at)), Some(at), "day {day}");
        }
    }
    for text in
        ["", "2026", "2026-11-27", "2026-13-01T00:00:00Z", "2026-11-27T25:00:00Z", "x", "2026-11-27T21:05:09"]
    {
        assert_eq!(parse_utc(text), None, "{text}");
    }
}

#[test]
fn errors_say_what_failed_why_and_what_to_do_next() {
    let error = |verb, trouble| StoreError {
        verb,
        name: Some(Name::new("dumps/a").expect("a name")),
        place: Arc::from("s3://backups/site"),
        trouble,
    };
    let cases = [
        (
            error(Verb::Delete, Trouble::Locked(Some(Timestamp(1_795_813_509_000_000_000)))),
            "cannot delete s3://backups/site/dumps/a: it is locked until 2026-11-27T21:05:09Z",
            "wait until 2026-11-27T21:05:09Z, when the lock ends",
        ),
        (
            error(Verb::Put, Trouble::Forbidden),
            "cannot create s3://backups/site/dumps/a: the credentials do not give the right to do this",
            "give the key the right to create objects in s3://backups/site (S3: s3:PutObject)",
        ),
        (
            error(Verb::Get, Trouble::Archived),
            "cannot read s3://backups/site/dumps/a: the store has moved the object to an archive class",
            "restore the object from the archive at the store, and end the lifecycle rule that archives objects of this prefix",
        ),
        (
            error(Verb::Get, Trouble::TimedOut),
            "cannot read s3://backups/site/dumps/a: the store did not answer in time",
            "check the network to s3://backups/site, then repeat the command",
        ),
    ];
    for (error, says, next) in cases {
        assert_eq!((error.to_string().as_str(), error.next().as_str()), (says, next));
    }
}

#[test]
fn nonces_are_parsed_as_they_print_and_nothing_else_is() {
    let nonce = Nonce([0x5a; 16]);
    assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
    for text in ["", "5a", &"5".repeat(31), &"g".repeat(32), &"+f".repeat(16), &"ä".repeat(16)] {
        assert_eq!(Nonce::parse(text), None, "{text}");
    }
}
