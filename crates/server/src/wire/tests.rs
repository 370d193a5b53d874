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
