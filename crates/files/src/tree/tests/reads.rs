//! Reads of parts of a file that are in memory, and of several parts together.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A file of 64 blocks, each full of its number, that is not in memory.
fn cold() -> (Arc<FaultDevice>, Tree, FileId) {
    let blocks = 4096;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let file = tree.make(tree.root(), b"file", &FILE).expect("there is room").file;
    let data: Vec<u8> = (0..64u8).flat_map(|number| [number; 4096]).collect();
    tree.write(file, 0, &data[..data.len() - 96]).expect("there is room");
    tree.volume().close().expect("it closes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, clock)).expect("the tree opens");
    device.take_read_batches();
    (device, tree, file)
}

#[test]
fn parts_of_a_file_are_read_together() {
    let (device, tree, file) = cold();
    assert!(tree.read_ready(file, 0, 1).expect("it is a file").is_none());
    tree.read(file, 0, 1).expect("it reads");
    device.take_read_batches();
    let end = 64 * 4096 - 96;
    let wanted =
        [(4096, 4096), (8191, 2), (5 * 4096, 8192), (end - 1, 100), (end, 1), (5 * 4096, 1), (1 << 40, 9)];
    let read = tree.read_several(file, &wanted).expect("it is a file");
    assert_eq!(device.take_read_batches(), 1, "the device gets them together");
    for ((offset, length), data) in wanted.into_iter().zip(read) {
        let data = data.expect("it reads").to_vec();
        assert_eq!(data, tree.read(file, offset, length).expect("it reads"), "{offset} {length}");
        let ready = tree.read_ready(file, offset, length).expect("it is a file").expect("it is in memory");
        assert_eq!(ready.to_vec(), data);
    }
    assert_eq!(device.take_read_batches(), 0);
    assert!(tree.read_ready(file, 40 * 4096, 1).expect("it is a file").is_none());
    assert!(matches!(tree.read_several(tree.root(), &[(0, 1)]), Err(TreeError::IsDirectory)));
    assert!(matches!(tree.read_ready(tree.root(), 0, 1), Err(TreeError::IsDirectory)));
    // Damage fails the reads that meet it.
    device.fail_reads(0..u64::MAX);
    let read = tree.read_several(file, &[(4096, 1), (41 * 4096, 1)]).expect("it is a file");
    assert!(read[0].is_ok() && read[1].is_err());
}

#[test]
fn no_read_sees_a_file_in_the_middle_of_a_change() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"file", &FILE).expect("there is room").file;
    let (ended, tree) = (AtomicBool::new(false), &tree);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..400u32 {
                let data = [round as u8 | 1; 4 * 4096];
                tree.write(file, 0, &data).expect("there is room");
                tree.set(file, &SetStat { bytes: Some(0), ..SetStat::default() }).expect("it is cut");
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            // The file is empty, or full of bytes that are not zero.
            for data in tree.read_several(file, &[(0, 4096), (3 * 4096, 4096)]).expect("it is a file") {
                let data = data.expect("it reads").to_vec();
                assert!(data.iter().all(|byte| *byte != 0 && *byte == data[0]), "{:?}", &data[..4]);
            }
        }
    });
    assert_whole(tree);
}
