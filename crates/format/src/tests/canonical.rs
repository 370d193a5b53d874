//! Changed bytes are refused, or read as exactly what they are: writing the parsed value gives the
//! same bytes, so no byte is ignored.

use proptest::prelude::*;

use super::*;

/// Parses `bytes`; the result must represent every byte.
#[track_caller]
fn refused_or_canonical(sample: &Sample, bytes: &[u8]) -> bool {
    match (sample.reread)(bytes) {
        Err(_) => true,
        Ok(again) => {
            assert!(again == bytes, "{}: something was ignored", sample.name);
            false
        }
    }
}

#[test]
fn written_bytes_are_read_and_written_the_same() {
    for sample in samples() {
        assert_eq!((sample.reread)(&sample.bytes).as_deref(), Ok(&sample.bytes[..]), "{}", sample.name);
    }
}

#[test]
fn no_flipped_bit_passes_a_checksum() {
    for sample in samples().into_iter().filter(|sample| sample.seal.is_some()) {
        for bit in 0..sample.bytes.len() * 8 {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!((sample.reread)(&bytes).is_err(), "{}: bit {bit}", sample.name);
        }
    }
}

#[test]
fn no_flipped_bit_is_ignored() {
    for sample in samples() {
        let mut refused = 0;
        for bit in 0..sample.bytes.len() * 8 {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(seal) = sample.seal {
                seal(&mut bytes);
            }
            // A flip within the seal itself was undone by sealing.
            if bytes != sample.bytes {
                refused += usize::from(refused_or_canonical(&sample, &bytes));
            }
        }
        assert!(refused > 0, "{}", sample.name);
    }
}

#[test]
fn empty_slots_are_zeroes() {
    let zeroes = [0; cairn_base::BLOCK_SIZE];
    assert_eq!(Inode::parse(&zeroes, SLOT), Ok(None));
    assert_eq!(DirectoryEntry::parse(&zeroes, SLOT), Ok(None));
    assert_eq!(SnapshotEntry::parse(&zeroes[..SnapshotEntry::SIZE]), Ok(None));
    assert_eq!(inode_bytes(None), zeroes);
    assert_eq!(directory_bytes(None), zeroes);
    for slot in [INODES_PER_BLOCK as usize, ENTRIES_PER_BLOCK] {
        assert!(Inode::parse(&zeroes, slot).is_err() && DirectoryEntry::parse(&zeroes, slot).is_err());
    }
}

#[test]
fn zeroes_are_no_block_of_metadata() {
    let zeroes = [0; cairn_base::BLOCK_SIZE];
    // Except for the record of a quota tree: zeroes mean no record.
    let is_one = |sample: &Sample| sample.parts[0].1 == 0 && sample.name != "quota tree";
    for sample in samples().into_iter().filter(is_one) {
        assert!(matches!((sample.reread)(&zeroes), Err(FormatError::Magic(_))), "{}", sample.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), cairn_base::BLOCK_SIZE)) {
        for sample in samples() {
            prop_assert!(refused_or_canonical(&sample, &bytes) || sample.parts[0].1 != 0);
        }
    }

    #[test]
    fn random_stretches_never_panic_and_are_never_ignored(
        at in 0..cairn_base::BLOCK_SIZE,
        noise in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..64),
        sealed in any::<bool>(),
    ) {
        for sample in samples() {
            let mut bytes = sample.bytes.clone();
            for (place, byte) in bytes[at..].iter_mut().zip(&noise) {
                *place = *byte;
            }
            if let (Some(seal), true) = (sample.seal, sealed) {
                seal(&mut bytes);
            }
            refused_or_canonical(&sample, &bytes);
        }
    }

    #[test]
    fn short_and_random_log_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let record = log_record(84).to_bytes(VOLUME);
        prop_assert!(LogRecord::parse(&bytes, VOLUME).is_err());
        let mut changed = record.clone();
        changed[..bytes.len()].copy_from_slice(&bytes);
        prop_assert_eq!(LogRecord::parse(&changed, VOLUME).is_ok(), changed == record);
    }
}
