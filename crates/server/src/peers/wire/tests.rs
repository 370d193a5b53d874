//! Hellos of other versions.

use cairn_mirror::{LAST_REFUSAL, Refusal};

use super::*;

#[test]
fn destination_of_an_older_version_is_told_a_refusal_that_it_knows() {
    let older = br#"{"version":2,"volume":"vol0","stall_ms":30000}"#;
    let mut bytes = (older.len() as u32).to_be_bytes().to_vec();
    bytes.extend(older);
    let hello: Hello = receive(&mut bytes.as_slice()).expect("it is one");
    assert_eq!(Refusal::NoRoom.for_who_knows(hello.last_refusal), Refusal::Hook);
    let mut bytes = Vec::new();
    send(&mut bytes, &Hello { last_refusal: LAST_REFUSAL, ..hello }).expect("it is sent");
    let hello: Hello = receive(&mut bytes.as_slice()).expect("it is one");
    assert_eq!(Refusal::NoRoom.for_who_knows(hello.last_refusal), Refusal::NoRoom);
    assert_eq!(Refusal::Behind.for_who_knows(0), Refusal::Behind, "what all know is told as it is");
}

#[test]
fn refusal_of_a_source_tells_no_terminal_what_to_do() {
    let said = ErrorBody {
        error: cairn_api::ErrorKind::PeerRefused,
        message: "no\x1b]0;all is well\x07\nOK - mirrored".to_owned(),
        next: "look\u{9b}2J at it".to_owned(),
    };
    let mut bytes = Vec::new();
    send(&mut bytes, &Welcome::Refused(said)).expect("it is sent");
    let Welcome::Refused(heard) = receive(&mut bytes.as_slice()).expect("it is one") else {
        panic!("it refuses");
    };
    assert_eq!(heard.message, "no\u{fffd}]0;all is well\u{fffd} OK - mirrored");
    assert_eq!(heard.next, "look\u{fffd}2J at it");
}
