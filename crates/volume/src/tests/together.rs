//! Snapshots of several volumes at one instant.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::*;

/// A client that writes a number to one volume, and once that was answered to the other: in no instant is the second ahead of the first.
#[test]
fn snapshots_of_a_group_show_one_instant_of_clients_that_write_to_all_of_it() {
    let volumes: Vec<Arc<Volume>> = (0..3).map(|_| fresh(8192).1).collect();
    let luns: Vec<FileId> = volumes.iter().map(|volume| file(volume, 64)).collect();
    for (volume, lun) in volumes.iter().zip(&luns) {
        (0..3).for_each(|client| write(volume, *lun, client, 1, 2 - client).expect("there is room"));
    }
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0..3 {
            let (volumes, luns, done, rounds) = (&volumes, &luns, &done, &rounds);
            scope.spawn(move || {
                let mut number = 3;
                while !done.load(Ordering::Acquire) {
                    for (volume, lun) in volumes.iter().zip(luns) {
                        write(volume, *lun, client, 1, number - client).expect("there is room");
                    }
                    if number % 16 == client {
                        volumes[0].flush().expect("it flushes");
                    }
                    number += 1;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for (at, volume) in volumes.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                let mut files = 0;
                while !done.load(Ordering::Acquire) {
                    volume.background(Duration::from_millis(1)).expect("background work goes on");
                    // Changes of several parts go on beside it.
                    files += 1;
                    if files > 300 {
                        continue;
                    }
                    let compound = volume.compound();
                    let lun = compound.create(FileKind::Lun, 4096).expect("there is room");
                    drop(compound);
                    volume.compound().remove(lun).unwrap_or_else(|error| panic!("{at}: {error}"));
                }
            });
        }
        for round in 0..20 {
            let name = format!("group.{round}");
            let before = rounds.load(Ordering::Relaxed);
            let made = Volume::snapshot_together(&volumes, &name).expect("all are made");
            for client in 0..3 {
                let shown: Vec<u64> = made
                    .iter()
                    .enumerate()
                    .map(|(at, snapshot)| {
                        let image = volumes[at].image(Some(snapshot.id)).expect("it is there");
                        read_image(&image, luns[at], client, 1)[0]
                    })
                    .collect();
                let (first, last) = (shown[0], shown[2]);
                assert!(shown.is_sorted_by(|a, b| a >= b) && first - last <= 1, "round {round}: {shown:?}");
            }
            while rounds.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    volumes.iter().for_each(assert_sound);
}

#[test]
fn snapshot_of_a_group_is_made_of_all_or_of_none() {
    let volumes: Vec<Arc<Volume>> = (0..3).map(|_| fresh(1024).1).collect();
    volumes[1].create_snapshot("taken").expect("it is made");
    let refused = Volume::snapshot_together(&volumes, "taken");
    assert!(matches!(refused, Err((1, VolumeError::NameTaken))), "{refused:?}");
    assert_eq!(volumes.iter().map(|volume| volume.snapshots().len()).sum::<usize>(), 1);
    let twice = [volumes[0].clone(), volumes[2].clone(), volumes[0].clone()];
    assert!(Volume::snapshot_together(&twice, "twice").is_err());
    // One whose device fails in the middle of it takes those that were made along.
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*device, 1024);
    let failing = open(&device);
    for members in [[volumes[0].clone(), failing.clone()], [failing.clone(), volumes[0].clone()]] {
        device.fail_next_operation(cairn_device::DeviceError::OutOfService);
        let failed = Volume::snapshot_together(&members, "lost");
        assert!(failed.is_err());
        assert_eq!(volumes[0].snapshots(), []);
    }
    let lun = file(&volumes[0], 10);
    write(&volumes[0], lun, 0, 1, 1).expect("nobody waits any more");
}
