use cairn_base::{ManualClock, Timestamp};
use cairn_device::{MemoryDevice, Segments};

use super::*;

const MIB: f64 = (1 << 20) as f64;

fn governor(clock: &Arc<ManualClock>) -> (tempfile::TempDir, Arc<Governor>) {
    let dir = tempfile::tempdir().unwrap();
    let governor = Governor::open(dir.path().join("governor.json"), clock.clone());
    (dir, Arc::new(governor))
}

/// A transfer at the permitted rate for `seconds`, from a disk with 200 MiB a second, whose clients
/// wait longer the more the transfer uses: 1 ms, and 9 ms more at full speed.
fn transfer(governor: &Governor, clock: &ManualClock, seconds: u64, clients: u32) -> f64 {
    let (began, mut sent) = (clock.monotonic(), 0.0);
    let end = began + Duration::from_secs(seconds);
    let (mut at, mut bytes) = (began, 0.0);
    while clock.monotonic() < end {
        clock.advance(Duration::from_secs_f64(1.0 / 200.0));
        governor.sent(1 << 20, &mut |rest| {
            clock.advance(rest);
            true
        });
        (sent, bytes) = (sent + MIB, bytes + MIB);
        let now = clock.monotonic();
        if now - at >= Duration::from_millis(50) {
            let part = bytes / (now - at).as_secs_f64() / (200.0 * MIB);
            governor.latencies.note(Duration::from_micros(1000 + (9000.0 * part) as u64), clients);
            (at, bytes) = (now, 0.0);
        }
    }
    sent / (clock.monotonic() - began).as_secs_f64()
}

#[test]
fn transfers_back_off_while_clients_suffer_and_recover_when_they_do_not() {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let (_dir, governor) = governor(&clock);
    assert!(transfer(&governor, &clock, 5, 100) > 150.0 * MIB, "nobody has set a limit");
    governor.set(Some(4000)).unwrap();
    transfer(&governor, &clock, 20, 100);
    let rate = transfer(&governor, &clock, 30, 100);
    // 4 ms are a third of the disk.
    assert!((20.0 * MIB..90.0 * MIB).contains(&rate), "{} MiB a second", rate / MIB);
    let shown = governor.show("vol0");
    assert!(shown.rate_bytes.is_some() && shown.p99_us.is_some_and(|p99| p99 < 8000), "{shown:?}");
    // The clients go: few requests say nothing.
    transfer(&governor, &clock, 20, 1);
    assert!(transfer(&governor, &clock, 5, 1) > 150.0 * MIB, "nobody suffers");
    assert_eq!(governor.show("vol0").rate_bytes, None);
    // A limit that can't be kept leaves the least rate.
    governor.set(Some(900)).unwrap();
    transfer(&governor, &clock, 20, 100);
    let rate = transfer(&governor, &clock, 20, 100);
    assert!((0.9 * MIB..2.0 * MIB).contains(&rate), "{} MiB a second", rate / MIB);
    // It is lifted in the middle of a transfer, and holds over a restart.
    governor.set(None).unwrap();
    assert!(transfer(&governor, &clock, 10, 100) > 100.0 * MIB);
    governor.set(Some(7000)).unwrap();
    let again = Governor::open(governor.path.clone(), clock.clone());
    assert_eq!(again.show("vol0").p99_limit_us, Some(7000));
}

#[test]
fn requests_are_counted_by_how_long_they_took() {
    let latencies = Latencies::new();
    for (micros, requests) in [(1, 10), (90, 880), (1000, 100), (5000, 10)] {
        latencies.note(Duration::from_micros(micros), requests);
    }
    let (total, p99) = latencies.take();
    assert_eq!(total, 1000);
    assert!((1000..1150).contains(&p99.as_micros()), "{p99:?}");
    assert_eq!(latencies.take(), (0, Duration::ZERO));
    latencies.note(Duration::from_secs(100), 1);
    latencies.note(Duration::ZERO, 1);
    let (total, p99) = latencies.take();
    assert!(total == 2 && p99 > Duration::from_millis(900), "{p99:?}");
}

#[test]
fn timed_device_does_what_the_device_does_and_counts() {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let (_dir, governor) = governor(&clock);
    let device = governor.timed(Arc::new(MemoryDevice::new(1 << 20)));
    device.write(4096, Segments::copy_of(&[7; 4096])).unwrap();
    device.flush().unwrap();
    assert_eq!(device.read(4096, 4096).unwrap().to_vec(), [7; 4096]);
    assert!(device.read(1 << 20, 4096).is_err());
    assert_eq!(device.atomic_bytes_max(), MemoryDevice::new(1 << 20).atomic_bytes_max());
    device.write_atomic(8192, Segments::copy_of(&[8; 4096]), true, None).unwrap();
    assert_eq!(governor.latencies.take().0, 5);
}
