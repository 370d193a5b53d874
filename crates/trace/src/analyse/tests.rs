//! The analysis against a plain model that follows the definitions word by word, and keeps
//! everything.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use cairn_base::Rng;
use proptest::prelude::*;

use super::*;

const GRAINS: [u64; 4] = [7, 10, 64, 1000];
const CACHES: [u64; 4] = [1, 2, 5, 40];
const BLOCK: u64 = 4096;

fn options() -> AnalyseOptions {
    AnalyseOptions {
        granularities: GRAINS.map(Duration::from_nanos).to_vec(),
        intervals: GRAINS.map(Duration::from_nanos).to_vec(),
        write_caches: CACHES.to_vec(),
        read_caches: CACHES.to_vec(),
        ..AnalyseOptions::default()
    }
}

fn report(records: &[TraceRecord]) -> Report {
    let mut analysis = Analysis::new(options()).unwrap();
    for record in records {
        analysis.add(record).unwrap();
    }
    analysis.finish().unwrap()
}

/// A trace with hot blocks, long pauses, trims and reads, its first request at 0.
fn trace(seed: u64, requests: u64) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed);
    let mut at_ns = 0;
    (0..requests)
        .map(|n| {
            at_ns += if n == 0 { 0 } else { [0, 1, 3, 30, 200][rng.below(5) as usize] };
            let op = match rng.below(8) {
                0 => TraceOp::Read,
                1 => TraceOp::Trim,
                _ => TraceOp::Write,
            };
            let offset =
                if rng.one_in(2) { rng.below(4) } else { rng.below(60) } * BLOCK + rng.below(9) * 512;
            let length = if rng.one_in(3) { 1 + rng.below(20_000) } else { BLOCK };
            TraceRecord { at_ns, device: rng.below(2) as u32, op, offset, length }
        })
        .collect()
}

fn blocks(record: &TraceRecord) -> impl Iterator<Item = (u32, u64)> + use<> {
    let device = record.device;
    (record.offset / BLOCK..=(record.offset + record.length - 1) / BLOCK).map(move |block| (device, block))
}

/// A block write: its time, its block, and the distance of the next one.
struct Written {
    at: u64,
    next: Option<u64>,
}

fn writes(records: &[TraceRecord]) -> Vec<Written> {
    let mut all: Vec<Written> = Vec::new();
    let mut last: HashMap<(u32, u64), usize> = HashMap::new();
    for record in records.iter().filter(|record| record.op == TraceOp::Write) {
        for block in blocks(record) {
            if let Some(before) = last.insert(block, all.len()) {
                all[before].next = Some(record.at_ns);
            }
            all.push(Written { at: record.at_ns, next: None });
        }
    }
    all
}

fn close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 1e-9
}

fn retained(write: &Written, g: u64, phase: u64) -> bool {
    let window = |at: u64| (at + phase * g / 16) / g;
    write.next.is_none_or(|next| window(next) != window(write.at))
}

/// Which writes leave an LRW cache before they are replaced; with everything at the end.
fn evicted(records: &[TraceRecord], pages: u64) -> (Vec<bool>, u64) {
    let mut cache: VecDeque<((u32, u64), usize)> = VecDeque::new();
    let mut left = Vec::new();
    for record in records.iter().filter(|record| record.op == TraceOp::Write) {
        for block in blocks(record) {
            if let Some(at) = cache.iter().position(|(cached, _)| *cached == block) {
                cache.remove(at);
            } else if cache.len() as u64 == pages {
                let (_, version) = cache.pop_front().unwrap();
                left[version] = true;
            }
            cache.push_back((block, left.len()));
            left.push(false);
        }
    }
    let before = left.iter().filter(|left| **left).count() as u64;
    for (_, version) in cache {
        left[version] = true;
    }
    (left, before)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn figures_are_those_of_their_definitions(seed: u64, requests in 1..400u64) {
        let records = trace(seed, requests);
        let report = report(&records);
        let all = writes(&records);
        let w = all.len() as f64;
        prop_assert_eq!(report.w_block_writes, all.len() as u64);
        if all.is_empty() {
            return Ok(());
        }
        let f = all.iter().filter(|write| write.next.is_none()).count();
        prop_assert_eq!(report.f_unique_blocks_written, f as u64);
        let last = records.last().unwrap().at_ns;
        for g in GRAINS {
            let row = report.r.get(&format!("{g}ns")).unwrap();
            let of_phase = |phase| all.iter().filter(|write| retained(write, g, phase)).count();
            let phases: Vec<f64> = (0..16).map(|phase| of_phase(phase) as f64 / w).collect();
            prop_assert_eq!(row.unique_block_window_pairs, of_phase(0) as u64);
            prop_assert!(close(row.r_emp_mean16, phases.iter().sum::<f64>() / 16.0));
            prop_assert!(close(row.r_emp_min16, phases.iter().copied().fold(9.0, f64::min)));
            prop_assert!(close(row.r_emp_max16, phases.iter().copied().fold(0.0, f64::max)));
            let done: Vec<&Written> = all.iter().filter(|write| (write.at / g + 1) * g <= last).collect();
            let kept = done.iter().filter(|write| retained(write, g, 0)).count();
            let completed = (!done.is_empty()).then(|| kept as f64 / done.len() as f64);
            prop_assert_eq!(row.r_emp_phase0_completed_only, completed);
            let far = |write: &Written| {
                write.next.map_or(1.0, |next| ((next - write.at) as f64 / g as f64).min(1.0))
            };
            prop_assert!(close(row.R_claim31_all, all.iter().map(far).sum::<f64>() / w));
            let mirror = report.mirror_pct.get(&format!("{g}ns")).unwrap();
            prop_assert_eq!(mirror.blocks_transferred, of_phase(0) as u64);
            prop_assert_eq!(mirror.blocks_with_trims, with_trims(&records, g));
        }
        for pages in CACHES {
            let (left, before_end) = evicted(&records, pages);
            let cache = report.lrw.get(&pages.to_string()).unwrap();
            let c = left.iter().filter(|left| **left).count() as f64 / w;
            prop_assert!(close(cache.c_evicted_flush_at_end, c));
            prop_assert!(close(cache.c_evicted_no_flush, before_end as f64 / w));
            for g in GRAINS {
                let incurred = all.iter().zip(&left).filter(|(write, left)| **left || retained(write, g, 0));
                let io = &cache.io_per_block_write.get(&format!("{g}ns")).unwrap().io;
                prop_assert!(close(io.d, incurred.count() as f64 / w), "{} pages, {g} ns", pages);
            }
        }
    }

    #[test]
    fn read_cache_answers_what_an_lru_cache_would(seed: u64, requests in 1..400u64) {
        let records = trace(seed, requests);
        let report = report(&records);
        for pages in CACHES {
            let mut cache: VecDeque<(u32, u64)> = VecDeque::new();
            let mut hits = 0;
            for record in records.iter().filter(|record| record.op != TraceOp::Trim) {
                for block in blocks(record) {
                    match cache.iter().position(|cached| *cached == block) {
                        Some(at) => {
                            cache.remove(at);
                            hits += u64::from(record.op == TraceOp::Read);
                        }
                        None if cache.len() as u64 == pages => drop(cache.pop_front()),
                        None => {}
                    }
                    cache.push_back(block);
                }
            }
            prop_assert_eq!(report.lru_read.get(&pages.to_string()).unwrap().hits, hits);
        }
    }

    #[test]
    fn snap_blocks_are_copied_at_their_first_touch(seed: u64, requests in 1..200u64) {
        let records = trace(seed, requests);
        let report = report(&records);
        for size in [512, 4096, 16384, 65536] {
            let mut first = BTreeSet::new();
            let mut touches = 0;
            for write in records.iter().filter(|record| record.op == TraceOp::Write) {
                for block in write.offset / size..=(write.offset + write.length - 1) / size {
                    touches += 1;
                    first.insert((write.device, block));
                }
            }
            let row = report.snap_block.get(&size.to_string()).unwrap();
            prop_assert_eq!((row.snap_block_touches, row.first_touch_copies_cow), (touches, first.len() as u64));
        }
    }
}

/// Blocks that were written in an interval and not trimmed by its end, interval by interval.
fn with_trims(records: &[TraceRecord], g: u64) -> u64 {
    let mut sent = 0;
    let mut dirty: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut interval = 0;
    for record in records {
        if record.at_ns / g != interval {
            interval = record.at_ns / g;
            sent += std::mem::take(&mut dirty).len() as u64;
        }
        match record.op {
            TraceOp::Write => dirty.extend(blocks(record)),
            TraceOp::Trim => {
                for block in record.offset.div_ceil(BLOCK)..(record.offset + record.length) / BLOCK {
                    dirty.remove(&(record.device, block));
                }
            }
            _ => {}
        }
    }
    sent + dirty.len() as u64
}

#[test]
fn table_1_counts_a_version_once() {
    let at =
        |at_ns, op, block: u64| TraceRecord { at_ns, device: 0, op, offset: block * BLOCK, length: BLOCK };
    use TraceOp::{Trim, Write};
    let records = [
        at(0, Write, 1),
        at(1, Write, 1),
        at(2, Trim, 1),
        at(3, Trim, 1),
        at(4, Write, 1),
        at(5, Write, 2),
        TraceRecord { at_ns: 6, device: 0, op: Trim, offset: 0, length: 1 << 60 },
        at(7, Write, 3),
    ];
    let one = report(&records).table1;
    assert_eq!((one.blocks_written, one.overwritten, one.trimmed), (5, 1, 3));
    assert!(close(one.written_deleted_pct, 80.0));
}

#[test]
fn claim_3_2_is_that_of_the_paper() {
    // Two blocks by turns, each every 20 ns: T is a step at 20.
    let records: Vec<TraceRecord> = (0..2000u64)
        .map(|n| TraceRecord {
            at_ns: n * 10,
            device: 0,
            op: TraceOp::Write,
            offset: n % 2 * BLOCK,
            length: BLOCK,
        })
        .collect();
    let report = report(&records);
    let one = report.lrw.get("1").unwrap();
    // A cache of one block absorbs nothing, one of two all but the blocks dirty at the end.
    assert!(close(one.c_evicted_flush_at_end, 1.0) && one.cache_window_s_sec == 0.0);
    let two = report.lrw.get("2").unwrap();
    assert!(close(two.c_evicted_flush_at_end, 0.001) && close(two.cache_window_s_sec, 20e-9));
    let (r, c) = (report.r.get("64ns").unwrap().R_claim31_all, two.c_evicted_flush_at_end);
    // s < g: (s/g) R(s) + c (1 - s/g), with R(s) = 1, for no distance is below s.
    let wanted = 20.0 / 64.0 + c * (1.0 - 20.0 / 64.0);
    assert!(close(two.io_per_block_write.get("64ns").unwrap().io.D_claim32, wanted));
    assert!(close(two.io_per_block_write.get("10ns").unwrap().io.D_claim32, 1.0));
    assert!(close(r, (1998.0 * 20.0 / 64.0 + 2.0) / 2000.0));
}

#[test]
fn distances_that_are_too_many_to_keep_are_near() {
    let mut near = Distances::new();
    let mut exact = Distances::new();
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let magnitude = rng.below(50);
        let distance = rng.below(1 << magnitude);
        near.add(distance);
        exact.add(distance);
    }
    near.forget();
    exact.sort();
    for k in [1, 100, 5000, 12_345, 19_999, 20_000] {
        let (found, wanted) = (near.smallest(k) as f64, exact.smallest(k) as f64);
        assert!((found - wanted).abs() <= 1.0 + wanted / 4096.0, "{k}: {found} for {wanted}");
    }
    for limit in [1, 1000, 1 << 20, 1 << 40] {
        let (found, wanted) = (near.up_to(limit) as f64, exact.up_to(limit) as f64);
        assert!((found - wanted).abs() <= 5.0 + wanted / 100.0, "{limit}: {found} for {wanted}");
        let (found, wanted) = (near.below(limit).0 as f64, exact.below(limit).0 as f64);
        assert!((found - wanted).abs() <= 100.0 + wanted / 100.0, "{limit}: {found} for {wanted}");
    }
}

#[test]
fn memory_does_not_grow_with_requests_and_has_a_limit() {
    let write = |at_ns, block: u64| TraceRecord {
        at_ns,
        device: 0,
        op: TraceOp::Write,
        offset: block * BLOCK,
        length: BLOCK,
    };
    let mut analysis = Analysis::new(AnalyseOptions { memory_max: 4 << 20, ..options() }).unwrap();
    let outcome = (0..1_000_000).try_for_each(|n| analysis.add(&write(n, n)));
    assert!(matches!(outcome, Err(TraceError::Memory { .. })));
    let pages = 50_000;
    let mut analysis = Analysis::new(options()).unwrap();
    for n in 0..pages {
        analysis.add(&write(n, n)).unwrap();
    }
    let per_page = (analysis.memory() - Distances::new().memory()) as f64 / pages as f64;
    assert!(per_page < 100.0, "{per_page} bytes a block");
}

#[test]
fn plots_are_well_formed_and_have_the_papers_lines() {
    let plots = crate::plots(&report(&trace(9, 300)));
    assert!(plots.len() >= 7 + 2 * CACHES.len());
    for (name, svg) in plots {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name}");
        assert!(svg.contains("<polyline") && !svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count(), "{name}");
    }
}

#[test]
fn window_that_ends_at_the_last_request_is_completed() {
    let at = |at_ns, op| TraceRecord { at_ns, device: 0, op, offset: 0, length: BLOCK };
    let completed = |last| {
        let records = [at(0, TraceOp::Write), at(3, TraceOp::Write), at(last, TraceOp::Read)];
        report(&records).r.get("10ns").unwrap().r_emp_phase0_completed_only
    };
    assert_eq!((completed(9), completed(10)), (None, Some(0.5)));
}

/// A few lines of text are such a trace: each of its requests touches as many blocks as a long
/// trace has requests.
#[test]
fn memory_has_a_limit_however_long_the_requests_are() {
    let read =
        |n: u64| TraceRecord { at_ns: n, device: 0, op: TraceOp::Read, offset: n << 30, length: 1 << 30 };
    let mut analysis = Analysis::new(AnalyseOptions { memory_max: 32 << 20, ..options() }).unwrap();
    let outcome = (0..8).try_for_each(|n| analysis.add(&read(n)));
    assert!(matches!(outcome, Err(TraceError::Memory { .. })), "it takes {} bytes", analysis.memory());
    assert!(analysis.memory() < 64 << 20, "{} bytes", analysis.memory());
}
