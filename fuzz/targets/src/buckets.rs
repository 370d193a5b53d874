//! Objects of a bucket beside the parts of dumps: indexes and skeletons.

use cairn_base::Checksum;
use cairn_bucket::dumps::{read_skeleton, reread_index};

/// Places in a part to read from a skeleton, with the number of bytes.
const PLACES: [(u64, usize); 4] = [(0, 384), (384, 48), (500, 1), (u64::MAX, 48)];

pub(crate) fn index(data: &[u8]) {
    // The line of JSON with a checksum that is right, so that changes of it are reached.
    let json = match data.strip_suffix(b"\n").and_then(|text| text.iter().rposition(|byte| *byte == b'\n')) {
        Some(end) => &data[..end],
        None => data,
    };
    let sealed = [json, format!("\n{:?}\n", Checksum::of(json)).as_bytes()].concat();
    for bytes in [data, &sealed] {
        if let Some(again) = reread_index(bytes) {
            assert!(reread_index(&again).as_ref() == Some(&again), "an index is read as something else");
        }
    }
}

pub(crate) fn index_seeds() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../../crates/bucket/tests/golden/v1/dumps/07070707070707070707070707070707/00000000000000000000000000000000/index").to_vec(),
        include_bytes!("../../../crates/bucket/tests/golden/v1/dumps/07070707070707070707070707070707/01010101010101010101010101010101/index").to_vec(),
    ]
}

pub(crate) fn skeleton(data: &[u8]) {
    for (offset, length) in PLACES {
        let found = read_skeleton(data, offset, length);
        assert!(found.is_none_or(|bytes| bytes.len() == length), "it gives as much as was asked for");
    }
}

pub(crate) fn skeleton_seeds() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../../crates/bucket/tests/golden/v1/dumps/07070707070707070707070707070707/00000000000000000000000000000000/skeleton-00000").to_vec(),
        include_bytes!("../../../crates/bucket/tests/golden/v1/dumps/07070707070707070707070707070707/01010101010101010101010101010101/skeleton-00001").to_vec(),
    ]
}
