//! Generators, replays on a real history, and plans.

use std::sync::Arc;
use std::time::Duration;

use cairn_device::MemoryDevice;
use cairn_history::{Granularity, Placement};

use super::{read, written};
use crate::*;

#[test]
fn spc1_like_has_the_shares_of_the_paper() {
    let records: Vec<TraceRecord> = Spc1::new(20, 1 << 30, 120.0, true, 1).collect();
    assert!(records.is_sorted_by_key(|record| record.at_ns));
    let all = records.len() as f64;
    assert!((all / (20.0 * 50.0 * 120.0) - 1.0).abs() < 0.02, "50 requests a second and BSU: {all}");
    let share = |count: usize| 100.0 * count as f64 / all;
    for (asu, wanted) in [(0, 59.6), (1, 12.3), (2, 28.1)] {
        let found = share(records.iter().filter(|record| record.device == asu).count());
        assert!((found - wanted).abs() < 0.7, "ASU{}: {found} %", asu + 1);
    }
    let reads = share(records.iter().filter(|record| record.op == TraceOp::Read).count());
    assert!((reads - 39.4).abs() < 0.7, "{reads} % reads");
    let sizes = [0.45, 0.45, 0.10].map(|share| (share * (1u64 << 30) as f64) as u64);
    assert!(records.iter().all(|record| record.offset + record.length <= sizes[record.device as usize]));
    assert_eq!(records, Spc1::new(20, 1 << 30, 120.0, true, 1).collect::<Vec<_>>(), "a seed is a trace");
    assert!(Spc1::new(20, 1 << 30, 5.0, false, 1).all(|record| record.device < 2));
}

#[test]
fn iometer_mix_is_uniform_and_has_its_rate() {
    let records: Vec<TraceRecord> = IoMeter::new(64 << 20, 4096, 0.5, 1000.0, 20.0, 2).collect();
    assert!((records.len() as f64 / 20_000.0 - 1.0).abs() < 0.03);
    let reads = records.iter().filter(|record| record.op == TraceOp::Read).count() as f64;
    assert!((reads / records.len() as f64 - 0.5).abs() < 0.02);
    let low = records.iter().filter(|record| record.offset < 32 << 20).count() as f64;
    assert!((low / records.len() as f64 - 0.5).abs() < 0.02);
    assert!(records.iter().all(|record| record.offset + 4096 <= 64 << 20 && record.offset % 4096 == 0));
}

#[test]
fn postmark_stand_in_never_shares_a_block_between_files() {
    let records: Vec<TraceRecord> = PostMark::new(500, 2000, 300.0, 3).collect();
    assert!(records.is_sorted_by_key(|record| record.at_ns));
    let count = |op| records.iter().filter(|record| record.op == op).count();
    assert!(count(TraceOp::Write) > 500 && count(TraceOp::Trim) > 100 && count(TraceOp::Flush) > 1);
    // Trimmed blocks were written, and are not trimmed twice without a write between.
    let mut live = std::collections::BTreeSet::new();
    for record in &records {
        let blocks = record.offset / 4096..(record.offset + record.length) / 4096;
        match record.op {
            TraceOp::Write => live.extend(blocks),
            TraceOp::Trim => blocks.for_each(|block| {
                live.remove(&block);
            }),
            TraceOp::Read => assert!(blocks.clone().any(|block| live.contains(&block)), "{record:?}"),
            TraceOp::Zeroes | TraceOp::Flush => {}
        }
    }
    assert_eq!(records, PostMark::new(500, 2000, 300.0, 3).collect::<Vec<_>>());
}

/// A trace whose blocks are hot and cold, of 4 KiB writes.
fn hot_and_cold() -> Vec<u8> {
    let mut rng = cairn_base::Rng::new(11);
    let records: Vec<TraceRecord> = (0..6000u64)
        .map(|n| {
            let block = if rng.one_in(3) { rng.below(2000) } else { rng.below(60) };
            TraceRecord {
                at_ns: n * 5_000_000,
                device: 0,
                op: TraceOp::Write,
                offset: block * 4096,
                length: 4096,
            }
        })
        .collect();
    written(&records, 1, false)
}

fn replayed(bytes: &[u8], options: &ReplayOptions) -> (Replayed, Model) {
    let open = || TraceReader::open(std::io::Cursor::new(bytes.to_vec()), &ReadOptions::default()).unwrap();
    let survey = Survey::of(&mut open(), options).unwrap();
    let origin = Arc::new(MemoryDevice::new(survey.origin_bytes));
    let store = Arc::new(MemoryDevice::new(survey.store_bytes));
    let done = replay(&mut open(), &survey, options, origin, store, &mut |_| {}).unwrap();
    (done, survey.model)
}

fn every_combination(dirty_blocks: u64, mut check: impl FnMut(Placement, Granularity, f64, f64)) {
    let bytes = hot_and_cold();
    for placement in Placement::ALL {
        for granularity in [Granularity::EveryWrite, Granularity::Interval(1_000_000_000)] {
            let options = ReplayOptions {
                placement,
                granularity,
                block_bytes: 4096,
                dirty_blocks,
                read_bytes: 0,
                memory_max: 1 << 30,
            };
            let (done, model) = replayed(&bytes, &options);
            assert_eq!(done.counters.written_blocks, 6000);
            let (found, wanted) = (done.counters.io_per_write(true), model.io(placement));
            println!("{placement:?} {granularity:?}: {found:.4}, the model says {wanted:.4}");
            check(placement, granularity, found, wanted);
        }
    }
}

#[test]
fn replay_without_a_cache_costs_what_the_model_says() {
    every_combination(1, |placement, granularity, found, wanted| {
        // Hybrid placement learns the kind of each place as it goes.
        let near = if placement == Placement::Hybrid { 0.6 } else { 0.05 };
        assert!((found - wanted).abs() < near, "{placement:?} {granularity:?}: {found} for {wanted}");
    });
}

#[test]
fn replay_with_a_cache_costs_no_more_than_the_model_says() {
    // The cache holds versions, not blocks, and evicts many at once, so it holds a little less. But
    // versions that leave it together are not written to the origin one by one, nor read back from
    // it, although the model assumes that.
    every_combination(300, |placement, granularity, found, wanted| {
        assert!(found < wanted + 0.1, "{placement:?} {granularity:?}: {found} for {wanted}");
    });
}

#[test]
fn replay_is_the_same_each_time() {
    let bytes = hot_and_cold();
    let options = ReplayOptions {
        placement: Placement::SplitDownStream,
        granularity: Granularity::Interval(1_000_000_000),
        block_bytes: 4096,
        dirty_blocks: 100,
        read_bytes: 1 << 20,
        memory_max: 1 << 30,
    };
    let (first, again) = (replayed(&bytes, &options).0, replayed(&bytes, &options).0);
    assert_eq!((first.counters, first.versions), (again.counters, again.versions));
}

#[test]
fn plan_prices_lags_on_the_link_and_says_one_setting() {
    let (_, _) = read(hot_and_cold(), &ReadOptions::default());
    let mut reader =
        TraceReader::open(std::io::Cursor::new(hot_and_cold()), &ReadOptions::default()).unwrap();
    let seconds = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect();
    let options = AnalyseOptions {
        granularities: seconds(&GRAINS_S),
        intervals: seconds(&LAGS_S),
        write_caches: vec![300],
        read_caches: Vec::new(),
        ..AnalyseOptions::default()
    };
    let report = Analysis::of(&mut reader, options, &mut |_| {}).unwrap();
    let plan = Plan::of(&report, 10e6);
    assert_eq!(plan.lags.len(), LAGS_S.len());
    assert!(plan.lags.is_sorted_by(|a, b| a.bytes_per_day >= b.bytes_per_day), "a longer lag sends no more");
    // 30 s of 200 writes a second: 0.8 MB/s at most.
    assert_eq!(plan.recommended.mirror_interval_s, Some(1.0));
    let one = &plan.lags[0];
    assert!((one.bytes_per_day / 86_400.0 / 10e6 - one.link_share).abs() < 1e-9 && one.link_share < 0.09);
    assert!(one.peak_bytes >= one.bytes_per_day as u64 / 86_400, "a peak is at least the mean");
    let narrow = Plan::of(&report, 1e3);
    assert_eq!(narrow.recommended.mirror_interval_s.filter(|lag| *lag < 3600.0), None);
    assert_eq!(plan.granularities[0].granularity, "every_write");
    assert!((plan.granularities[0].io - 2.0).abs() < 1e-9, "split-down-stream, each version twice");
    assert!(plan.windows.iter().all(|window| window.bytes.0.len() > 2));
}
