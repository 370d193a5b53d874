//! The slots of a file against a map of numbers.

use std::collections::BTreeMap;

use cairn_base::{Checksum, Rng, Vbn};

use super::*;
use crate::memory::slots::Slots;
use crate::memory::slots::{Slot, Spot};

fn placed(vbn: u64) -> Slot {
    Slot::Placed(Spot { vbn: Vbn(vbn), checksum: Checksum::default() })
}

fn number(slot: &Slot) -> u64 {
    match slot {
        Slot::Placed(spot) => spot.vbn.0,
        other => panic!("none but placed ones were put there: {other:?}"),
    }
}

#[test]
fn slots_are_a_map_from_numbers_of_blocks() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut slots, mut model) = (Slots::default(), BTreeMap::new());
        // Around the edges of chunks, and sometimes far away.
        let place = |rng: &mut Rng| rng.below(100) + if rng.one_in(8) { rng.below(1 << 40) } else { 0 };
        for value in 1..200 {
            let first = place(&mut rng);
            match rng.below(5) {
                0 => {
                    let count = 1 + if rng.one_in(6) { rng.below(1 << 41) } else { rng.below(50) };
                    let gone = slots.remove(first, count);
                    let mut expected: Vec<u64> =
                        model.range(first..first + count).map(|(_, value)| *value).collect();
                    model.retain(|lba, _| !(first..first + count).contains(lba));
                    let mut gone: Vec<u64> = gone.iter().map(number).collect();
                    expected.sort_unstable();
                    gone.sort_unstable();
                    assert_eq!(gone, expected, "seed {seed}");
                }
                1 => {
                    let old = slots.put(first, placed(value)).as_ref().map(number);
                    assert_eq!(old, model.insert(first, value), "seed {seed}");
                }
                _ => {
                    let last = (first + rng.below(8)).min(first / 32 * 32 + 31);
                    slots.change_chunk(Lba(first), |chunk| {
                        for lba in first..=last {
                            assert!(Slots::share_chunk(Lba(first), Lba(lba)));
                            match chunk.get_mut(lba) {
                                Some(slot) => *slot = placed(value),
                                None => chunk.add(lba, placed(value)),
                            }
                            model.insert(lba, value);
                        }
                    });
                }
            }
            let shown: Vec<(u64, u64)> = slots.iter().map(|(lba, slot)| (lba, number(slot))).collect();
            assert_eq!(
                shown,
                model.iter().map(|(lba, value)| (*lba, *value)).collect::<Vec<_>>(),
                "seed {seed}"
            );
            assert_eq!(slots.len(), model.len(), "seed {seed}");
            let (from, end) = (place(&mut rng), place(&mut rng));
            let numbers: Vec<u64> = slots.numbers(from, end.max(from)).collect();
            let expected: Vec<u64> = model.range(from..end.max(from)).map(|(lba, _)| *lba).collect();
            assert_eq!(numbers, expected, "seed {seed}");
            for lba in [from, first] {
                assert_eq!(slots.get(lba).map(number), model.get(&lba).copied(), "seed {seed}");
                assert_eq!(
                    slots.get_mut(lba).map(|slot| number(slot)),
                    model.get(&lba).copied(),
                    "seed {seed}"
                );
            }
        }
    }
}
