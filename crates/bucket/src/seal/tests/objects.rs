//! Objects as bytes: each flipped byte, each cut and each other name is detected.

use super::super::keys::Keys;
use super::super::object::*;
use super::*;

fn keys() -> Keys {
    Keys::of(&key())
}

#[test]
fn lengths_are_computed_both_ways() {
    for length in [0, 1, 65_535, 65_536, 65_537, 131_072, 131_073, 4 << 20, (4 << 20) + 1] {
        let sealed = seal_whole(&keys(), &name("a"), [1; 16], &noise(1, length as usize));
        assert_eq!(sealed.len() as u64, sealed_bytes(length));
        assert_eq!(plain_bytes(sealed.len() as u64), Some(length));
        assert!(sealed_bytes(length) - length <= MORE_BYTES_MAX as u64);
    }
    for wrong in [0, 63, 64, 79, 64 + 65_552 + 1, 64 + 65_552 + 16] {
        assert_eq!(plain_bytes(wrong), None, "{wrong}");
    }
}

#[test]
fn each_flipped_byte_and_each_cut_is_detected() {
    let keys = keys();
    for length in [0, 1, 300] {
        let plain = noise(2, length);
        let sealed = seal_whole(&keys, &name("a/b"), [1; 16], &plain);
        assert_eq!(open_whole(&keys, &name("a/b"), &sealed).expect("opened"), plain);
        for at in 0..sealed.len() {
            for bit in [1, 0x80] {
                let mut changed = sealed.clone();
                changed[at] ^= bit;
                assert!(open_whole(&keys, &name("a/b"), &changed).is_err(), "byte {at} of {length}");
            }
            assert!(open_whole(&keys, &name("a/b"), &sealed[..at]).is_err(), "cut at {at}");
        }
        let longer = [&sealed[..], &[0]].concat();
        assert!(open_whole(&keys, &name("a/b"), &longer).is_err());
    }
}

#[test]
fn object_opens_under_no_other_name_and_with_no_other_key() {
    let keys = keys();
    let sealed = seal_whole(&keys, &name("a/b"), [1; 16], b"content");
    assert!(open_whole(&keys, &name("a/c"), &sealed).is_err());
    let other = Keys::of(&BucketKey::from_bytes([6; 32]));
    let error = open_whole(&other, &name("a/b"), &sealed).expect_err("another key");
    assert_eq!(error, Bad::Damaged("it was encrypted with another bucket key"));
    let mut newer = sealed.clone();
    newer[8] = 2;
    assert_eq!(open_whole(&keys, &name("a/b"), &newer), Err(Bad::Newer(2)));
    assert!(matches!(open_whole(&keys, &name("a"), &[b'x'; 100]), Err(Bad::Damaged("it is not encrypted"))));
}

/// A chunk's border is where a cut would be unseen without a length and a last chunk.
#[test]
fn cut_at_the_border_of_a_chunk_is_detected_even_with_a_forged_length() {
    let keys = keys();
    let sealed = seal_whole(&keys, &name("a"), [1; 16], &noise(3, 3 * CHUNK));
    for kept in [1, 2] {
        let mut cut = sealed[..HEADER + kept * (CHUNK + TAG)].to_vec();
        assert!(open_whole(&keys, &name("a"), &cut).is_err());
        cut[48..56].copy_from_slice(&((kept * CHUNK) as u64).to_le_bytes());
        assert!(open_whole(&keys, &name("a"), &cut).is_err());
    }
    // Two chunks in each other's place.
    let mut swapped = sealed.clone();
    let (one, other) = (HEADER, HEADER + CHUNK + TAG);
    swapped.copy_within(other..other + CHUNK + TAG, one);
    swapped[other..other + CHUNK + TAG].copy_from_slice(&sealed[one..one + CHUNK + TAG]);
    assert!(open_whole(&keys, &name("a"), &swapped).is_err());
}

#[test]
fn headers_and_maps_are_read_as_they_are_written() {
    let header = Header { kind: Kind::Piece, key: key().id(), salt: [3; 16], length: 77, number: 9 };
    assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    let entries = vec![(5, [1; 16]), (70_000, [2; 16])];
    assert_eq!(parse_map(&write_map(&entries)), Some(entries.clone()));
    assert_eq!(parse_map(&[]), None);
    assert_eq!(parse_map(&[0; 21]), None);
    let keys = keys();
    let sealed = seal_map(&keys, &name("a"), [4; 16], &entries);
    let map = map_bytes(&sealed).expect("a tail");
    assert_eq!(map as usize, sealed.len() - TAIL);
    assert_eq!(open_map(&keys, &name("a"), &sealed[..map as usize]), Ok(entries));
    assert!(open_map(&keys, &name("b"), &sealed[..map as usize]).is_err());
}

/// Known bytes, which another program computed from `docs/format.md`: a change of any derivation
/// shows here.
#[test]
fn format_is_the_documented_one() {
    let sealed = seal_whole(&keys(), &name("dumps/a"), [1; 16], b"content");
    let hex = data_encoding::HEXLOWER.encode(&sealed);
    assert_eq!(&hex[..128], HEADER_HEX);
    assert_eq!(&hex[128..], CHUNK_HEX);
    let stored = super::super::names::seal(&keys(), &name("dumps/a")).expect("short");
    assert_eq!(stored.as_str(), STORED_NAME);
}

const HEADER_HEX: &str = "434149524e454e430100000001000000c44ce0f7244d22e40c782b83d4c8151f\
    0101010101010101010101010101010107000000000000000000000000000000";
const CHUNK_HEX: &str = "73874af36daa47dc6e94e4d3277eabb753f6e2ac3f4026";
const STORED_NAME: &str = "c30hursg7c4ivbn6u5s8necb2v43q0s8cs/j7ek4lobf8d5hr537tgj4p147et0";
