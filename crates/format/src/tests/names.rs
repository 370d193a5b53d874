//! Limits of names.

use super::*;

fn named(name: &str) -> SnapshotEntry {
    SnapshotEntry { name: name.to_owned(), ..snapshot(3) }
}

fn file_named(name: &str) -> Vec<u8> {
    directory_bytes(Some(&DirectoryEntry { file: FileId(3), name: name.to_owned() }))
}

#[test]
fn names_of_every_length_up_to_the_limit_come_back() {
    let e = "é".repeat(MAX_SNAPSHOT_NAME / 2);
    for length in 1..=MAX_SNAPSHOT_NAME {
        let entry = named(&"x".repeat(length));
        assert_eq!(SnapshotEntry::parse(&entry.to_bytes()), Ok(Some(entry)));
    }
    assert_eq!(SnapshotEntry::parse(&named(&e).to_bytes()), Ok(Some(named(&e))));
    for length in 1..=MAX_FILE_NAME {
        let name = "y".repeat(length);
        let entry = DirectoryEntry::parse(block(&file_named(&name)), SLOT).expect("within the limit");
        assert_eq!(entry.map(|entry| entry.name), Some(name));
    }
}

#[test]
fn impossible_snapshot_names_are_refused() {
    let (length_at, name_at) = (
        document::field("label::RawSnapshot", "name_length").0,
        document::field("label::RawSnapshot", "name").0,
    );
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = named("abc").to_bytes();
        change(&mut bytes);
        SnapshotEntry::parse(&bytes)
    };
    let refused = |outcome: Result<Option<SnapshotEntry>, FormatError>| {
        assert!(matches!(outcome, Err(FormatError::Field { .. })), "{outcome:?}");
    };
    refused(with(&|bytes| bytes[length_at] = 0));
    refused(with(&|bytes| bytes[length_at] = 2));
    refused(with(&|bytes| bytes[length_at] = MAX_SNAPSHOT_NAME as u8 + 1));
    refused(with(&|bytes| bytes[length_at + 1] = 0xff));
    refused(with(&|bytes| bytes[name_at + 1] = 0xff));
    refused(with(&|bytes| bytes[name_at + MAX_SNAPSHOT_NAME - 1] = b'z'));
    refused(with(&|bytes| bytes[..8].fill(0)));
}

#[test]
fn impossible_file_names_are_refused() {
    let start = SLOT * document::size("directory::RawEntry");
    let at = |field| start + document::field("directory::RawEntry", field).0;
    let changes = [
        (at("name_length"), 0),
        (at("name_length"), 2),
        (at("name_length"), MAX_FILE_NAME as u8 + 1),
        (at("name_length"), 0xff),
        (at("name") + 1, 0xff),
        (at("name") + MAX_FILE_NAME - 1, b'z'),
        (at("file"), 0),
    ];
    for (at, byte) in changes {
        let mut bytes = file_named("abc");
        bytes[at] = byte;
        let outcome = DirectoryEntry::parse(block(&bytes), SLOT);
        assert!(matches!(outcome, Err(FormatError::Field { .. })), "{at}: {outcome:?}");
    }
}
