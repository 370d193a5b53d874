//! The index against an ordered map, and its memory.

use std::collections::BTreeMap;

use cairn_base::Rng;
use cairn_format::history::EntryKind;
use proptest::prelude::*;

use crate::index::{Index, Key, Version};

fn version(lba: u64, time: u64, kind: EntryKind, place: u64) -> Version {
    Version { lba, time, kind, place, crc: (place * 31) as u32 }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn index_agrees_with_an_ordered_map(
        steps in prop::collection::vec((0u8..4, 0u64..40, 0u64..60, 0usize..5, 0u64..(1 << 40)), 1..1500),
        cut in 0u64..60,
    ) {
        let mut index = Index::default();
        let mut model: BTreeMap<Key, Version> = BTreeMap::new();
        for (what, lba, time, kind, place) in steps {
            let version = version(lba, time, EntryKind::ALL[kind], place);
            if what == 0 {
                prop_assert_eq!(index.remove(version.key()), model.remove(&version.key()));
            } else {
                prop_assert_eq!(index.insert(&version), model.insert(version.key(), version));
            }
            let last = model.range((lba, 0, 0)..=(lba, time, u8::MAX)).next_back().map(|(_, found)| *found);
            prop_assert_eq!(index.last_at(lba, time), last);
            let first = model.range((lba, time + 1, 0)..(lba + 1, 0, 0)).next().map(|(_, found)| *found);
            prop_assert_eq!(index.first_after(lba, time), first);
        }
        index.retain(|version| version.time > cut, |_| {});
        model.retain(|_, version| version.time > cut);
        let mut seen = Vec::new();
        index.scan((0, 0, 0), usize::MAX, |version| { seen.push(*version); true });
        prop_assert_eq!(seen, model.values().copied().collect::<Vec<_>>());
        prop_assert_eq!(index.len(), model.len());
    }
}

#[test]
fn a_version_takes_at_most_32_bytes_of_memory_however_versions_come() {
    let mut rng = Rng::new(3);
    let random: Vec<u64> = (0..300_000).map(|_| rng.below(1 << 38)).collect();
    let hot: Vec<u64> = (0..300_000).map(|_| rng.below(100)).collect();
    for lbas in [
        random,
        hot,
        (0..300_000).collect(),
        (0..300_000).rev().collect(),
        (0..300_000).map(|lba| lba % 1000).collect(),
    ] {
        let mut index = Index::default();
        for (time, lba) in lbas.into_iter().enumerate() {
            index.insert(&version(lba, time as u64, EntryKind::Redo, time as u64));
        }
        let each = index.memory() as f64 / index.len() as f64;
        assert!(each <= 32.0, "{each} bytes a version");
    }
}
