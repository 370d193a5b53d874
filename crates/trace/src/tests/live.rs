//! Curves of devices in use, against plans from their whole traces.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Clock, ManualClock, Rng, Timestamp};
use cairn_device::{Device, MemoryDevice, Operation, Request, Segments};

use crate::*;

const LINK: f64 = 50e6;
const HOUR: Duration = Duration::from_secs(3600);

fn curve() -> (Arc<ManualClock>, Arc<Curve>) {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let curve = Curve::new(clock.clone()).expect("a curve");
    (clock, Arc::new(curve))
}

fn request(record: &TraceRecord) -> Option<Request> {
    let (offset, length) = (record.offset, record.length);
    Some(match record.op {
        TraceOp::Write => {
            Request::Write { offset, data: Segments::copy_of(&vec![0; length as usize]), fua: false }
        }
        TraceOp::Trim => Request::Trim { offset, length, fua: false },
        TraceOp::Zeroes => Request::WriteZeroes { offset, length, may_trim: true, fua: false },
        TraceOp::Read => Request::Read { offset, length: length as u32 },
        TraceOp::Flush => return None,
    })
}

/// Plays a trace to a curve as it would be in use.
fn play(clock: &ManualClock, curve: &Curve, records: &[TraceRecord]) {
    let mut at = 0;
    for record in records {
        clock.advance(Duration::from_nanos(record.at_ns - at));
        at = record.at_ns;
        let device = curve.device(&record.device.to_string());
        curve.note(device, request(record).iter());
    }
}

/// The plan of the whole trace, as the command makes it.
fn whole(records: &[TraceRecord]) -> Plan {
    let seconds = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect();
    let options = AnalyseOptions {
        granularities: seconds(&GRAINS_S),
        intervals: seconds(&LAGS_S),
        write_caches: vec![dirty_blocks(256 << 20, 4096)],
        read_caches: Vec::new(),
        ..AnalyseOptions::default()
    };
    let mut analysis = Analysis::new(options).expect("an analysis");
    records.iter().try_for_each(|record| analysis.add(record)).expect("it fits into memory");
    Plan::of(&analysis.finish().expect("a report"), LINK)
}

fn near(what: &str, found: f64, wanted: f64, share: f64) {
    assert!((found - wanted).abs() <= share * wanted.abs().max(1e-9), "{what}: {found}, not near {wanted}");
}

#[test]
fn plan_of_a_sample_is_near_that_of_the_whole_trace() {
    let spc1: Vec<TraceRecord> = Spc1::new(20, 1 << 30, 400.0, false, 1).collect();
    let postmark: Vec<TraceRecord> = PostMark::new(4000, 20_000, 300.0, 3).collect();
    for records in [spc1, postmark] {
        let (clock, curve) = curve();
        play(&clock, &curve, &records);
        let live = curve.plan(LINK).expect("a plan");
        let plan = whole(&records);
        assert!(
            live.one_in > 1 && live.sampled_blocks > 1000,
            "{} of one in {}",
            live.sampled_blocks,
            live.one_in
        );
        let one_in = live.one_in as f64;
        near("written", live.plan.written_bytes_per_day, plan.written_bytes_per_day, 1e-6);
        for (live, whole) in live.plan.lags.iter().zip(&plan.lags) {
            near("of written", live.pct_of_written, whole.pct_of_written, 0.06);
            // The noise of a sample: three deviations of how many blocks of the busiest interval
            // are in it.
            let noise = 3.0 / (whole.peak_bytes as f64 / 4096.0 / one_in).sqrt();
            near("peak", live.peak_bytes as f64, whole.peak_bytes as f64, 0.05 + noise);
            assert_eq!((live.fits, live.beyond_trace), (whole.fits, whole.beyond_trace));
        }
        for (live, whole) in live.plan.granularities.iter().zip(&plan.granularities) {
            near("I/O", live.io, whole.io, 0.06);
            near("history", live.bytes_per_day, whole.bytes_per_day, 0.06);
        }
        assert_eq!(live.plan.recommended.mirror_interval_s, plan.recommended.mirror_interval_s);
    }
}

#[test]
fn memory_of_a_curve_is_bounded_whatever_is_written() {
    let (clock, curve) = curve();
    let device = curve.device("disk");
    let data = Segments::copy_of(&[0; 4096]);
    let mut rng = Rng::new(4);
    let mut most = 0;
    for round in 0..1_500_000u64 {
        clock.advance(Duration::from_micros(50));
        let offset = rng.below(1 << 40) / 4096 * 4096;
        curve.note(device, [Request::Write { offset, data: data.clone(), fua: false }].iter());
        if round % 4096 == 0 {
            most = most.max(curve.memory());
        }
    }
    assert!(most <= 2 << 20, "{most} bytes");
    let live = curve.plan(LINK).expect("a plan");
    assert!(live.one_in >= 64, "one in {}", live.one_in);
    assert_eq!(live.written_bytes, 1_500_000 * 4096);
    near("nothing is written twice", live.plan.lags[0].pct_of_written, 100.0, 0.01);
}

#[test]
fn last_whole_day_serves_while_the_present_one_is_young() {
    let (clock, curve) = curve();
    let device = curve.device("disk");
    assert!(matches!(curve.plan(LINK), Err(TraceError::Empty)));
    let write = |blocks: u64| {
        let data = Segments::copy_of(&vec![0; (blocks * 4096) as usize]);
        curve.note(device, [Request::Write { offset: 0, data, fua: false }].iter());
    };
    let began = clock.now();
    for _ in 0..24 {
        write(1000);
        clock.advance(HOUR);
    }
    write(10);
    let day = curve.plan(LINK).expect("a plan");
    assert_eq!((day.began, day.elapsed, day.written_bytes), (began, 24 * HOUR, 24_000 * 4096));
    clock.advance(7 * HOUR);
    write(500);
    let today = curve.plan(LINK).expect("a plan");
    assert_eq!((today.elapsed, today.written_bytes), (7 * HOUR, 510 * 4096));
    clock.advance(100 * HOUR);
    assert!(!curve.is_idle());
    clock.advance(100 * HOUR);
    assert!(curve.is_idle());
}

#[test]
fn tap_feeds_a_curve_with_each_write_once_and_devices_stay_apart() {
    let (clock, curve) = curve();
    let tap = |name: &str| {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Tap::new(device, Arc::new(Feed::default())).with_curve(curve.clone(), name)
    };
    let (first, second) = (tap("vol0/a"), tap("vol0/b"));
    for round in 0..3 {
        for device in [&first, &second] {
            clock.advance(Duration::from_secs(2));
            let write = |block: u64| Operation::write(block * 4096, Segments::copy_of(&[round; 4096]));
            let mut batch: Vec<Operation> = (0..4096).map(write).collect();
            batch.push(Operation::read(0, 4096));
            device.run_ready(&mut batch);
            device.run(&mut batch);
        }
    }
    let live = curve.plan(LINK).expect("a plan");
    assert_eq!(live.written_bytes, 6 * 4096 * 4096);
    // Two devices: of 8,192 blocks one in eight is in the sample.
    near("blocks", live.sampled_blocks as f64, 1024.0, 0.15);
    near("all is transferred each second", live.plan.lags[0].pct_of_written, 100.0, 1e-9);
    near("once in a minute", live.plan.lags[2].pct_of_written, 100.0 / 3.0, 1e-9);
}
