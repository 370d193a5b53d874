//! Snapshots of several volumes at one instant.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::*;

/// A client that writes a number to one volume, and once that was answered to the other: in no
/// instant is the second ahead of the first.
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
                    // Changes of several parts continue beside it.
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

/// Clients write to all of them until they are refused, each a number to one after the other.
#[test]
fn volumes_that_end_as_sources_together_show_every_write_that_was_answered_and_one_instant() {
    for round in 0..8 {
        let volumes: Vec<Arc<Volume>> = (0..3).map(|_| fresh(8192).1).collect();
        let luns: Vec<FileId> = volumes.iter().map(|volume| file(volume, 64)).collect();
        let answered: Vec<AtomicU64> = (0..6).map(|_| AtomicU64::new(0)).collect();
        let heads: Vec<String> = (0..3).map(|at| format!("mirror.head.{at}")).collect();
        let shown = std::thread::scope(|scope| {
            for client in 0..2 {
                let (volumes, luns, answered) = (&volumes, &luns, &answered);
                scope.spawn(move || {
                    for number in 1.. {
                        for (at, (volume, lun)) in volumes.iter().zip(luns).enumerate() {
                            if write(volume, *lun, client, 1, number - client).is_err() {
                                return;
                            }
                            answered[client as usize * 3 + at].store(number, Ordering::Release);
                        }
                    }
                });
            }
            while answered.iter().any(|answered| answered.load(Ordering::Acquire) < 20 + round) {
                std::thread::yield_now();
            }
            let shown = Volume::demote_together(&volumes, "group.end", &heads);
            shown.expect("all give way")
        });
        for (volume, head) in volumes.iter().zip(&shown) {
            assert_eq!(volume.own_head().as_ref(), Some(head), "it shows what was written last");
            let named = volume.snapshot_named("group.end").expect("the snapshot of all is there");
            assert_eq!(named.generation, head.generation, "and is the same");
        }
        for client in 0..2 {
            let of = |at: usize| {
                let image = volumes[at].image(Some(shown[at].id)).expect("it is there");
                read_image(&image, luns[at], client, 1)[0]
            };
            let numbers: Vec<u64> = (0..3).map(of).collect();
            for (at, number) in numbers.iter().enumerate() {
                let answered = answered[client as usize * 3 + at].load(Ordering::Acquire);
                assert!(*number >= answered, "volume {at} shows {number}, and {answered} was answered");
            }
            assert!(numbers.is_sorted_by(|a, b| a >= b) && numbers[0] - numbers[2] <= 1, "{numbers:?}");
        }
        for volume in &volumes {
            volume.failover().expect("it takes its role back");
            assert_sound(volume);
        }
    }
}

#[test]
fn volumes_give_way_together_or_take_writes_as_before_wherever_a_device_fails() {
    for failing_first in [false, true] {
        let mut failures = 0;
        for after in 0.. {
            let device = Arc::new(FaultDevice::new(Volume::device_bytes(1024, Role::Normal) * 2));
            format(&*device, 1024);
            let (failing, whole) = if failing_first {
                let failing = open(&device);
                (failing, fresh(1024).1)
            } else {
                let whole = fresh(1024).1;
                (open(&device), whole)
            };
            let lun = file(&whole, 10);
            let other = file(&failing, 10);
            write(&whole, lun, 0, 2, 7).expect("there is room");
            write(&failing, other, 0, 2, 7).expect("there is room");
            let members = [failing.clone(), whole.clone()];
            let heads = ["mirror.head.1".to_owned(), "mirror.head.2".to_owned()];
            device.fail_operations(after, u64::MAX, cairn_device::DeviceError::OutOfService);
            let outcome = Volume::demote_together(&members, "group.end", &heads);
            device.heal_operations();
            let Err((at, error)) = outcome else {
                assert!(whole.own_head().is_some() && failing.own_head().is_some());
                break;
            };
            failures += 1;
            assert_eq!(at, 0, "{error}");
            assert_eq!(whole.status().role, Role::Normal, "after {after}: {error}");
            assert_eq!(whole.snapshot_named("group.end"), None, "it is of all or of none");
            write(&whole, lun, 0, 1, 8).expect("it takes writes");
            assert_eq!(read(&whole, lun, 0, 2), [8, 8]);
            assert_sound(&whole);
        }
        assert!(failures > 5, "{failures} places");
    }
    let volumes: Vec<Arc<Volume>> = (0..2).map(|_| fresh(1024).1).collect();
    let twice = [volumes[0].clone(), volumes[1].clone(), volumes[0].clone()];
    let heads: Vec<String> = (0..3).map(|at| format!("mirror.head.{at}")).collect();
    assert!(Volume::demote_together(&twice, "group.end", &heads).is_err());
    assert!(Volume::demote_together(&volumes, "group.end", &heads[..1]).is_err(), "a head without a name");
    assert!(volumes.iter().all(|volume| volume.status().role == Role::Normal));
}

#[test]
fn snapshots_of_a_group_are_told_in_the_order_of_its_volumes_and_none_is_left_of_one_that_is_refused() {
    let volumes: Vec<Arc<Volume>> = (0..4).map(|_| fresh(1024).1).collect();
    for (at, volume) in volumes.iter().enumerate() {
        // Enough generations to distinguish them.
        for _ in 0..=at {
            file(volume, 10);
        }
    }
    for (round, order) in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]].into_iter().enumerate() {
        let members: Vec<Arc<Volume>> = order.iter().map(|at| volumes[*at].clone()).collect();
        let name = format!("group.{round}");
        let made = Volume::snapshot_together(&members, &name).expect("there is room");
        for (member, snapshot) in members.iter().zip(&made) {
            assert_eq!(member.snapshot_named(&name).as_ref(), Some(snapshot));
        }
        // One of them has that name.
        let taken = format!("taken.{round}");
        members[2].create_snapshot(&taken).expect("there is room");
        let state_of = |member: &Arc<Volume>| {
            let status = member.status();
            (status.generation, status.consistency_points, member.snapshots().len())
        };
        let before: Vec<_> = members.iter().map(state_of).collect();
        let (at, _) = Volume::snapshot_together(&members, &taken).expect_err("the name is taken");
        let heads: Vec<String> = (0..4).map(|at| format!("head.{at}.{round}")).collect();
        assert_eq!(at, 2);
        assert!(Volume::demote_together(&members, &taken, &heads).is_err_and(|(at, _)| at == 2));
        for (at, member) in members.iter().enumerate() {
            assert_eq!(member.snapshot_named(&taken).is_some(), at == 2, "{at}");
            assert_eq!(state_of(member), before[at], "what is refused changes nothing");
            assert_eq!(member.status().role, Role::Normal);
        }
    }
}

#[test]
fn volumes_one_of_which_has_no_room_as_a_destination_stay_as_they_are() {
    let short = Arc::new(MemoryDevice::new(Volume::device_bytes(1024, Role::Normal)));
    format(&*short, 1024);
    let members = [fresh(1024).1, open(&short), fresh(1024).1];
    let heads: Vec<String> = (0..3).map(|at| format!("head.{at}")).collect();
    let refused = Volume::demote_together(&members, "end", &heads);
    assert!(matches!(refused, Err((1, VolumeError::DeviceTooSmall { .. }))), "{refused:?}");
    for member in &members {
        assert_eq!((member.status().role, member.snapshots()), (Role::Normal, Vec::new()));
        assert_eq!(member.status().consistency_points, 0);
    }
    short.grow(members[1].device_bytes_as_destination());
    let shown = Volume::demote_together(&members, "end", &heads).expect("there is room");
    for (member, head) in members.iter().zip(shown) {
        assert_eq!(member.own_head(), Some(head));
    }
}
