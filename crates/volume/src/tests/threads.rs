//! Real threads on one volume: writers, flushers, a snapshotter and background work, bounded by count.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::Rng;

use super::*;

const LUN_BLOCKS: u64 = 512;
const WRITERS: u64 = 3;
const ROUNDS: u64 = 400;

#[test]
fn threads_do_not_lose_each_others_writes() {
    // More than all writers write in all rounds: however the threads are scheduled, and whatever a reader that waits for its turn keeps from
    // being reused, the volume is not full.
    let blocks = WRITERS * ROUNDS * 24 + 8192;
    // The device's power goes at the end: what a flush covered is in the log or committed.
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    let luns: Vec<FileId> = (0..WRITERS).map(|_| file(&volume, LUN_BLOCKS)).collect();
    // What each block held when the last flush that covers it began.
    let durable: Vec<Vec<AtomicU64>> =
        luns.iter().map(|_| (0..LUN_BLOCKS).map(|_| AtomicU64::new(0)).collect()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = luns
            .iter()
            .zip(&durable)
            .enumerate()
            .map(|(writer, (lun, durable))| {
                let volume = volume.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(writer as u64);
                    let mut current = vec![0; LUN_BLOCKS as usize];
                    for round in 1..=ROUNDS {
                        let count = 1 + rng.below(24);
                        let first = rng.below(LUN_BLOCKS - count);
                        if rng.one_in(6) {
                            volume.punch(*lun, Lba(first), count).expect("it is punched");
                            current[first as usize..(first + count) as usize].fill(0);
                        } else {
                            let salt = round << 20;
                            write(&volume, *lun, first, count, salt).expect("there is room");
                            (first..first + count).for_each(|lba| current[lba as usize] = salt + lba);
                        }
                        if rng.one_in(4) {
                            volume.flush().expect("it flushes");
                            current.iter().zip(durable).for_each(|(now, d)| d.store(*now, Ordering::SeqCst));
                        }
                        if rng.one_in(4) {
                            let lba = rng.below(LUN_BLOCKS);
                            assert_eq!(read(&volume, *lun, lba, 1), [current[lba as usize]]);
                        }
                    }
                    volume.flush().expect("it flushes");
                    current.iter().zip(durable).for_each(|(now, d)| d.store(*now, Ordering::SeqCst));
                })
            })
            .collect();
        let snapshotter = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::SeqCst) {
                let made = volume.create_snapshot(&format!("s{number}")).expect("it is made");
                let image = volume.image(Some(made.id)).expect("it exists");
                let before = read_image(&image, luns[0], 0, LUN_BLOCKS);
                volume.consistency_point().expect("it commits");
                assert_eq!(read_image(&image, luns[0], 0, LUN_BLOCKS), before, "a snapshot does not change");
                drop(image);
                volume.delete_snapshots(&[made.id]).expect("it is deleted");
                number += 1;
            }
        });
        let background = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                volume.background(Duration::from_millis(1)).expect("background work goes on");
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::SeqCst);
        snapshotter.join().expect("the snapshotter ends");
        background.join().expect("the background ends");
        for outcome in outcomes {
            outcome.expect("a writer ends");
        }
    });
    drop(volume);
    let device = Arc::new(device.power_cycle(&mut Rng::new(1)));
    let volume = open(&device);
    for (lun, durable) in luns.iter().zip(&durable) {
        let expected: Vec<u64> = durable.iter().map(|number| number.load(Ordering::SeqCst)).collect();
        assert_eq!(read(&volume, *lun, 0, LUN_BLOCKS), expected);
    }
    assert_sound(&volume);
}
