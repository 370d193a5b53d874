//! Reduced contents: every instant reads correctly, damage costs and reports only dependents, and
//! they never need more room than unreduced ones.

use proptest::prelude::*;

use super::*;
use crate::index::Version;
use crate::resolve::NOW;
use cairn_base::{Rng, crc32c};
use cairn_format::delta::{Delta, LINKS_MAX};
use cairn_format::history::PLACE_UNIT;

const B: usize = 4096;
const ALL: Reduction = Reduction { xor: true, identical: true };
const XOR: Reduction = Reduction { xor: true, identical: false };
const IDENTICAL: Reduction = Reduction { xor: false, identical: true };

fn reduced(placement: Placement, reduction: Reduction) -> HistoryOptions {
    let mut options = options(placement, Granularity::EveryWrite, B as u32);
    options.window.reduction = reduction;
    options
}

/// Content that no two blocks have in common.
fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; B];
    Rng::new(seed + 1).fill(&mut bytes);
    bytes
}

impl Stack {
    fn put(&self, offset: usize, data: &[u8]) {
        self.clock.advance(Duration::from_millis(10));
        self.history.write(offset as u64, Segments::copy_of(data)).expect("a write");
    }

    fn versions(&self, block: u64) -> Vec<Version> {
        let mut found = Vec::new();
        self.history.state.lock().index.scan((block, 0, 0), usize::MAX, |version| {
            found.push(*version);
            version.lba == block
        });
        found.retain(|version| version.lba == block);
        found
    }
}

/// Writes of a part of a block and of the content of other blocks; returns the content at each
/// instant.
fn lived(stack: &Stack, blocks: usize, rounds: usize) -> Vec<(Timestamp, Vec<u8>)> {
    let mut rng = Rng::new(9);
    let mut image: Vec<u8> = (0..blocks as u64).flat_map(noise).collect();
    stack.put(0, &image);
    let mut known = vec![(stack.now(), image.clone())];
    for _ in 0..rounds {
        let block = rng.below(blocks as u64) as usize * B;
        if rng.one_in(4) {
            let from = rng.below(blocks as u64) as usize * B;
            image.copy_within(from..from + B, block);
        } else {
            let (at, length) = (rng.below(3900) as usize, 1 + rng.below(150) as usize);
            rng.fill(&mut image[block + at..][..length]);
        }
        stack.put(block, &image[block..][..B]);
        known.push((stack.now(), image.clone()));
    }
    stack.history.flush().expect("a flush");
    known
}

/// Checks that every instant of the window is unchanged; returns how many were read.
fn check(stack: &Stack, known: &[(Timestamp, Vec<u8>)]) -> usize {
    let mut seen = 0;
    for (at, image) in known {
        let Ok(view) = stack.history.view(*at) else { continue };
        assert!(view.instant() != *at || bytes(&view, 0, image.len()).expect("a read") == *image, "{at:?}");
        seen += 1;
    }
    seen
}

#[test]
fn reduced_history_reads_as_it_was_and_takes_a_fraction_of_the_room() {
    for placement in Placement::ALL {
        let mut used = Vec::new();
        for reduction in [Reduction::NONE, XOR, IDENTICAL, ALL] {
            let mut stack = Stack::new(&reduced(placement, reduction), 16 * B as u64, 32 * MIB);
            let known = lived(&stack, 16, 600);
            assert_eq!(check(&stack, &known), known.len(), "{placement:?} {reduction:?}");
            let counters = stack.history.status().counters;
            assert_eq!(counters.xor_versions > 0, reduction.xor, "{counters:?}");
            assert_eq!(counters.identical_versions > 0, reduction.identical, "{counters:?}");
            assert_eq!(counters.stored_bytes < counters.content_bytes, reduction != Reduction::NONE);
            used.push(counters.stored_bytes);
            stack.reopen().expect("it opens");
            assert_eq!(check(&stack, &known), known.len(), "{placement:?} {reduction:?} after an opening");
            stack.history.release(&|_, _| {}).expect("a release");
            let last = &known.last().expect("an instant").1;
            assert!(bytes(&*stack.origin, 0, 16 * B).expect("a read") == *last, "{placement:?}");
        }
        assert!(used[1] < used[0] * 2 / 3 && used[2] < used[0] * 9 / 10 && used[3] < used[1], "{used:?}");
    }
}

#[test]
fn delta_whose_base_would_lie_in_another_segment_is_damage_whatever_is_there() {
    let stack = Stack::new(&reduced(Placement::Logging, XOR), 16 * B as u64, 8 * MIB);
    let content = noise(1);
    stack.put(0, &content);
    // Another segment begins, and the same content is stored there again.
    for number in 0..100 {
        stack.put((1 + number as usize % 15) * B, &noise(number + 2));
    }
    stack.put(0, &content);
    let changed: Vec<u8> = content.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 7)).collect();
    stack.put(0, &changed);
    stack.history.flush().expect("a flush");
    let [first, base, delta] = stack.versions(0)[..] else { panic!("three versions") };
    assert!(first.crc == base.crc && first.units == 0 && base.units == 0 && delta.units > 0);
    let segment = |version: &Version| stack.history.segment_start(version.place);
    assert!(segment(&first) < segment(&base) && segment(&base) == segment(&delta));
    assert_eq!(bytes(&*stack.history, 0, B).expect("it is whole"), changed);
    // The delta claims the earlier one as its base, with all checksums right.
    let (start, at) = (delta.place / 8 * B as u64, (delta.place * PLACE_UNIT) as usize % B);
    let mut around = bytes(&*stack.store, start, 2 * B).expect("a read");
    let stored = &mut around[at..][..usize::from(delta.units) * 512];
    let edited = Delta { back: (delta.place - first.place) as u32, ..Delta::parse(stored).expect("a delta") };
    stored.copy_from_slice(&edited.to_bytes());
    stack.store.write_from(start, &around).expect("a write");
    let crc = crc32c(&edited.to_bytes());
    stack.history.state.lock().index.insert(&Version { crc, ..delta });
    stack.history.state.lock().reads.clear();
    assert!(matches!(bytes(&*stack.history, 0, B), Err(DeviceError::Corrupt { .. })));
}

#[test]
fn chain_has_a_bounded_number_of_links_and_damage_of_one_costs_only_what_builds_on_it() {
    let stack = Stack::new(&reduced(Placement::Logging, XOR), 4 * B as u64, 8 * MIB);
    let mut known = Vec::new();
    let mut content = noise(1);
    for round in 0..30u8 {
        content[usize::from(round) * 100] ^= 0xff;
        stack.put(0, &content);
        known.push(content.clone());
    }
    stack.history.flush().expect("a flush");
    let versions = stack.versions(0);
    assert_eq!(versions.len(), known.len());
    let whole: Vec<usize> = (0..versions.len()).filter(|at| versions[*at].units == 0).collect();
    let links = usize::from(LINKS_MAX);
    assert_eq!(whole, [0, links + 1, 2 * (links + 1), 3 * (links + 1)], "a full one after so many links");
    // A link in the middle of the second chain, then the one that all of it builds on.
    for hurt in [links + 4, links + 1] {
        let place = versions[hurt].place * PLACE_UNIT;
        let around = place / B as u64 * B as u64;
        let before = bytes(&*stack.store, around, B).expect("a read");
        stack.store.corrupt(place, PLACE_UNIT, &mut Rng::new(3));
        for (at, (version, content)) in versions.iter().zip(&known).enumerate() {
            let view = stack.history.view(Timestamp(version.time)).expect("an instant");
            let found = bytes(&view, 0, B);
            if (hurt..2 * (links + 1)).contains(&at) {
                assert!(matches!(found, Err(DeviceError::Corrupt { .. })), "{at} builds on {hurt}");
            } else {
                assert!(found.expect("it builds on nothing that is damaged") == *content, "{at}");
            }
        }
        stack.store.write_from(around, &before).expect("a write");
    }
    // Its dependents cannot be brought to the origin: that is reported, and no other content
    // replaces them.
    let newest = stack.history.state.lock().index.last_at(0, NOW).expect("a version");
    assert!(newest.units > 0, "the present is a delta");
    stack.store.corrupt(versions[whole[3]].place * PLACE_UNIT, PLACE_UNIT, &mut Rng::new(3));
    let mut window = stack.history.status().window;
    window.time = Some(Duration::from_millis(1));
    stack.history.set_window(window).expect("a window");
    stack.clock.advance(Duration::from_secs(60));
    while stack.history.step().expect("a step") {}
    assert_eq!(stack.history.status().lost_versions, 1);
    assert!(matches!(bytes(&*stack.history, 0, B), Err(DeviceError::Corrupt { .. })));
}

#[test]
fn what_a_version_builds_on_stays_while_the_window_moves_and_retention_drops_it() {
    for placement in Placement::ALL {
        let mut options = reduced(placement, ALL);
        let step = |after, every| {
            let (after, every) = (Duration::from_secs(after), Duration::from_secs(every));
            Thin { after, every }
        };
        options.window.thin = [Some(step(2, 1)), Some(step(4, 2)), None, None];
        options.window.time = Some(Duration::from_secs(8));
        let mut stack = Stack::new(&options, 16 * B as u64, 4 * MIB);
        let mut image: Vec<u8> = (0..16).flat_map(noise).collect();
        stack.put(0, &image);
        let mut rng = Rng::new(5);
        let mut known = Vec::new();
        for round in 0..2000u64 {
            let among = if rng.one_in(4) { 16 } else { 4 };
            let block = rng.below(among) as usize * B;
            let at = rng.below(4000) as usize;
            rng.fill(&mut image[block + at..][..64]);
            stack.put(block, &image[block..][..B]);
            if round % 7 == 0 {
                known.push((stack.now(), image.clone()));
            }
            if round % 200 == 199 {
                stack.history.flush().expect("a flush");
                while stack.history.step().expect("a step") {}
                known.drain(..known.len().saturating_sub(120));
                assert!(check(&stack, &known) > 0, "{placement:?}");
            }
            if round % 600 == 599 {
                stack.reopen().expect("it opens");
            }
        }
        assert!(stack.history.status().counters.xor_versions > 0, "{placement:?}");
        assert!(check(&stack, &known) > 0);
        assert!(bytes(&*stack.history, 0, 16 * B).expect("a read") == image, "{placement:?}");
    }
}

#[test]
fn full_store_with_a_reduction_takes_writes_for_ever_and_shows_what_is_left() {
    for placement in Placement::ALL {
        let stack = Stack::new(&reduced(placement, ALL), 256 * B as u64, 3 * MIB);
        let mut rng = Rng::new(2);
        let mut image: Vec<u8> = (0..256).flat_map(noise).collect();
        stack.put(0, &image);
        let mut known = Vec::new();
        for _ in 0..4000 {
            let block = rng.below(256) as usize * B;
            let length = if rng.one_in(2) { B } else { 100 };
            rng.fill(&mut image[block..][..length]);
            stack.put(block, &image[block..][..B]);
            known.push((stack.now(), image[..8 * B].to_vec()));
        }
        assert!(!stack.history.status().events.is_empty(), "{placement:?}: the store is full");
        known.drain(..known.len() - 100);
        assert!(check(&stack, &known) > 0, "{placement:?}");
    }
}

#[test]
fn damage_of_what_a_later_record_refers_to_is_not_taken_for_the_end_of_the_log() {
    let mut stack = Stack::new(&reduced(Placement::Logging, IDENTICAL), 4 * B as u64, 8 * MIB);
    stack.put(0, &noise(1));
    stack.history.flush().expect("a flush");
    // Its record states that the previous one was durable, and no record states that of it.
    stack.put(B, &[noise(1), noise(2)].concat());
    stack.history.flush().expect("a flush");
    let place = stack.versions(0)[0].place;
    assert_eq!(stack.versions(1)[0].place, place, "stored once");
    stack.store.corrupt(place * PLACE_UNIT, PLACE_UNIT, &mut Rng::new(3));
    stack.reopen().expect("it opens");
    assert!(bytes(&*stack.history, 2 * B as u64, B).expect("it is whole") == noise(2));
    for block in 0..2 {
        let found = bytes(&*stack.history, block * B as u64, B);
        assert!(matches!(found, Err(DeviceError::Corrupt { .. })), "block {block}: {found:?}");
    }
}

#[test]
fn reduction_is_switched_on_and_off_and_what_was_stored_stays() {
    let options = reduced(Placement::SplitDownStream, Reduction::NONE);
    let mut stack = Stack::new(&options, 16 * B as u64, 32 * MIB);
    let mut known = lived(&stack, 16, 100);
    for reduction in [ALL, Reduction::NONE] {
        let window = Window { reduction, ..Window::default() };
        stack.history.set_window(window).expect("a switch");
        let before = stack.history.status().counters;
        known.extend(lived(&stack, 16, 100));
        let after = stack.history.status().counters;
        let is_less = after.stored_bytes - before.stored_bytes < after.content_bytes - before.content_bytes;
        assert_eq!(is_less, reduction == ALL);
        stack.reopen().expect("it opens");
        assert_eq!(stack.history.status().window, window);
        assert_eq!(check(&stack, &known), known.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// Writes of any part of any block, of few values, so that contents are like each other and the
    /// same; flushes, steps, openings, marks.
    #[test]
    fn every_instant_of_a_reduced_history_is_that_of_the_list_of_writes(
        placement in 0usize..5,
        (xor, identical) in (any::<bool>(), any::<bool>()),
        block in prop_oneof![Just(512usize), Just(1024), Just(4096), Just(16384)],
        steps in prop::collection::vec((0u8..12, 0usize..120_000, 1usize..20_000, 0u8..3), 1..150),
    ) {
        let mut options = options(Placement::ALL[placement], Granularity::EveryWrite, block as u32);
        options.window.reduction = Reduction { xor, identical };
        // The last block is a short one.
        let length = 239 * 512;
        let mut stack = Stack::new(&options, length as u64, 3 * MIB);
        let mut image = vec![0; length];
        let mut known = Vec::new();
        for (what, at, count, value) in steps {
            match what {
                0 => stack.history.flush().expect("a flush"),
                1 => while stack.history.step().expect("a step") {},
                2 => {
                    stack.history.flush().expect("a flush");
                    stack.reopen().expect("it opens");
                }
                _ => {
                    let end = (at + count).min(length);
                    let piece = &mut image[at..end];
                    for (index, byte) in piece.iter_mut().enumerate() {
                        *byte = if index % 64 == 0 || what > 8 { value } else { *byte };
                    }
                    stack.put(at, &image[at..end]);
                }
            }
            known.push((stack.now(), image.clone()));
        }
        stack.history.flush().expect("a flush");
        let start = stack.history.status().start;
        for (at, image) in known.iter().filter(|(at, _)| *at >= start) {
            let view = stack.history.view(*at).expect("an instant of the window");
            prop_assert!(bytes(&view, 0, length).expect("a read") == *image, "{at:?}");
        }
    }
}
