//! The index against an ordered map, and its memory.

use std::collections::BTreeMap;

use cairn_base::Rng;
use cairn_format::history::{EntryKind, NO_LBA};
use proptest::prelude::*;

use crate::index::{Index, Key, Loading, Version};

fn version(lba: u64, time: u64, kind: EntryKind, place: u64) -> Version {
    Version { lba, time, kind, place, crc: (place * 31) as u32, units: place as u8 }
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

    #[test]
    fn loaded_index_agrees_with_an_ordered_map_and_takes_more(
        steps in prop::collection::vec((0u64..41, 0u64..60, 0usize..5, 0u64..(1 << 40)), 0..3000),
        later in prop::collection::vec((0u64..40, 0u64..60, 0usize..5, 0u64..(1 << 40)), 0..200),
        bits in 0u32..34,
    ) {
        let mut loading = Loading::new(40 << bits);
        let mut model: BTreeMap<Key, Version> = BTreeMap::new();
        for (lba, time, kind, place) in steps {
            // Marks come after all blocks.
            let lba = if lba == 40 { NO_LBA } else { lba << bits };
            let version = version(lba, time, EntryKind::ALL[kind], place);
            loading.add(&version);
            model.insert(version.key(), version);
        }
        let mut told = Vec::new();
        let mut index = loading.finish(|version| told.push(*version));
        prop_assert_eq!(told, model.values().copied().collect::<Vec<_>>());
        for (lba, time, kind, place) in later {
            let version = version(lba << bits, time, EntryKind::ALL[kind], place);
            prop_assert_eq!(index.insert(&version), model.insert(version.key(), version));
        }
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
        let mut loading = Loading::new(1 << 38);
        for (time, lba) in lbas.into_iter().enumerate() {
            let version = version(lba, time as u64, EntryKind::Redo, time as u64);
            index.insert(&version);
            loading.add(&version);
        }
        for index in [index, loading.finish(|_| {})] {
            let each = index.memory() as f64 / index.len() as f64;
            assert!(each <= 32.0, "{each} bytes a version");
        }
    }
}
