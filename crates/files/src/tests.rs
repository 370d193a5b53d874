//! LUNs as devices pass the suite of every device; names survive a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{BLOCK_SIZE, FileId, ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::{Device, DeviceError, Fate, FaultDevice, MemoryDevice, Operation, Request, Segments};
use cairn_format::{INODES_PER_BLOCK, Inode};
use cairn_volume::{FormatOptions, OpenOptions, ROOT_DIRECTORY, Role, Volume, VolumeError};

use crate::{FilesError, Luns};

mod withdrawn;

const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn Device>) -> Arc<Volume> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    Volume::open(device, OpenOptions { cache_bytes: 4 * MIB, clock }).unwrap()
}

fn formatted(blocks: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).unwrap();
    device
}

fn findings(volume: &Arc<Volume>) -> Vec<String> {
    volume.check(&mut |_| {}).unwrap().findings.iter().map(ToString::to_string).collect()
}

#[test]
fn lun_passes_the_suite_of_devices() {
    cairn_device::suite::run_suite(&|length| {
        let volume = open(formatted(length / 4096 * 2 + 4096));
        let luns = Luns::new(volume);
        luns.create("disk", length).unwrap();
        luns.open("disk").unwrap()
    });
}

#[test]
fn part_blocks_written_by_several_who_opened_a_lun_do_not_lose_neighbours() {
    let luns = Luns::new(open(formatted(4096)));
    luns.create("disk", MIB).unwrap();
    std::thread::scope(|scope| {
        // As sessions do: each opens the LUN, and eight share each block.
        for lane in 0..8u64 {
            let luns = &luns;
            scope.spawn(move || {
                let lun = luns.open("disk").unwrap();
                for round in 0..4 {
                    for block in 0..256 {
                        lun.write_from(block * 4096 + lane * 512, &[lane as u8 + 8 * round + 1; 512])
                            .unwrap();
                    }
                }
            });
        }
    });
    let mut bytes = vec![0; MIB as usize];
    luns.open("disk").unwrap().read_into(0, &mut bytes).unwrap();
    for (index, piece) in bytes.chunks(512).enumerate() {
        assert!(piece.iter().all(|byte| *byte == (index % 8) as u8 + 25), "piece {index}");
    }
}

#[test]
fn names_and_flushed_bytes_survive_a_crash() {
    let device = formatted(4096);
    let luns = Luns::new(open(device.clone()));
    for n in 0..40 {
        luns.create(&format!("lun{n}"), MIB).unwrap();
    }
    luns.delete("lun3").unwrap();
    luns.resize("lun5", 2 * MIB, false).unwrap();
    let lun = luns.open("lun5").unwrap();
    lun.write_from(MIB + 700, b"after the old end").unwrap();
    lun.flush().unwrap();
    drop((lun, luns));

    let volume = open(device);
    assert_eq!(findings(&volume), Vec::<String>::new());
    let luns = Luns::new(volume.clone());
    let list = luns.list().unwrap();
    assert_eq!(list.len(), 39);
    assert!(list.iter().all(|lun| lun.name != "lun3"));
    let mut bytes = [0; 17];
    luns.open("lun5").unwrap().read_into(MIB + 700, &mut bytes).unwrap();
    assert_eq!(&bytes, b"after the old end");
    assert_eq!(findings(&volume), Vec::<String>::new());
}

/// Whole blocks, each in another way, beside a thread that writes to the last part of them and
/// reads the rest for that.
#[test]
fn whole_block_is_not_what_it_was_again_by_a_write_to_a_part_of_it() {
    let luns = Luns::new(open(formatted(4096)));
    luns.create("disk", MIB).unwrap();
    let disk = luns.open("disk").unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                disk.write_from(3584, &[255; 512]).unwrap();
            }
        });
        for round in 0..40_000u32 {
            let byte = (round % 200) as u8 + 1;
            let data = Segments::copy_of(&[byte; 4096]);
            match round % 3 {
                0 => disk.write_atomic(0, data, false, None).unwrap(),
                1 => disk.write(0, data).unwrap(),
                _ => {
                    let mut batch = [Operation::write(0, data)];
                    disk.run_ready(&mut batch);
                    disk.run(&mut batch);
                }
            }
            let mut found = [0; 3584];
            disk.read_into(0, &mut found).unwrap();
            if found != [byte; 3584] {
                ended.store(true, Ordering::Relaxed);
                panic!("round {round}: {} in place of {byte}", found[0]);
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
}

/// A client gets its acknowledgement only when the write is durable, and no later request overtakes
/// it.
#[test]
fn what_has_to_be_durable_is_not_done_without_waiting_nor_is_what_comes_behind_it() {
    let luns = Luns::new(open(formatted(4096)));
    luns.create("disk", MIB).unwrap();
    let disk = luns.open("disk").unwrap();
    disk.write_from(0, &[1; 65_536]).unwrap();
    let write = |fua| Request::Write { offset: 4096, data: Segments::copy_of(&[2; 4096]), fua };
    let waiting = [
        write(true),
        Request::Trim { offset: 4096, length: 4096, fua: true },
        Request::WriteZeroes { offset: 4096, length: 4096, may_trim: true, fua: true },
        // These wait for another request: a part of a block for the rest of it.
        Request::Write { offset: 4100, data: Segments::copy_of(&[2; 9]), fua: false },
        Request::WriteZeroes { offset: 4096, length: 4096, may_trim: false, fua: false },
    ];
    let behind = || Operation::write(4096, Segments::copy_of(&[3; 4096]));
    let mut plain = [Operation::new(write(false)), behind()];
    disk.run_ready(&mut plain);
    assert!(plain.iter().all(|operation| !operation.is_pending()), "these are done at once");
    for request in waiting {
        let mut batch = [Operation::new(request), behind()];
        disk.run_ready(&mut batch);
        assert!(batch.iter().all(Operation::is_pending), "{:?}", batch[0].request());
        disk.run(&mut batch);
        assert!(batch.iter().all(|operation| !operation.is_pending()));
        let mut found = [0; 4096];
        disk.read_into(4096, &mut found).unwrap();
        assert_eq!(found, [3; 4096], "in their order");
    }
}

/// Shrinking is a way to make room, wherever the new end is.
#[test]
fn lun_on_a_full_volume_is_shrunk_to_any_size() {
    let luns = Luns::new(open(formatted(2048)));
    luns.create("disk", 64 * MIB).unwrap();
    let disk = luns.open("disk").unwrap();
    let mut bytes = 64 * MIB;
    for cut in [512, 4096, 3 * 512] {
        let full = (0..bytes / 4096).find_map(|block| disk.write_from(block * 4096, &[7; 4096]).err());
        assert!(matches!(full, Some(DeviceError::NoSpace { .. })), "{full:?}");
        bytes = 4 * MIB - cut;
        luns.resize("disk", bytes, true).unwrap();
        luns.resize("disk", 64 * MIB, false).unwrap();
        let mut found = vec![1; 8192];
        disk.read_into(4 * MIB - 4096, &mut found).unwrap();
        let kept = 4096usize.saturating_sub(cut as usize);
        assert!(
            found[..kept].iter().all(|byte| *byte == 7) && found[kept..].iter().all(|byte| *byte == 0),
            "{cut}"
        );
        bytes = 64 * MIB;
    }
}

/// From a hostile image, or from a bug: the directory is read as a whole, and would have taken all
/// memory.
#[test]
fn directory_of_luns_that_says_it_is_endless_is_damaged_and_not_read() {
    let volume = open(formatted(4096));
    let luns = Luns::new(volume.clone());
    luns.create("disk", MIB).unwrap();
    volume.compound().resize(ROOT_DIRECTORY, 1 << 30).unwrap();
    volume.consistency_point().unwrap();
    let damaged = |outcome: Result<_, FilesError>| {
        let outcome = outcome.map(|luns: Vec<_>| luns.len());
        assert!(matches!(outcome, Err(FilesError::Volume(VolumeError::Damaged { .. }))), "{outcome:?}");
    };
    damaged(luns.list());
    damaged(luns.readable());
    damaged(luns.list_in(&volume.image(None).unwrap()));
    damaged(luns.find("disk").map(|lun| vec![lun]));
}

/// A change of any kind and place, and the same done to a copy.
fn any_request(rng: &mut Rng, copy: &mut [u8]) -> Request {
    let length = 512 * (1 + rng.below(40));
    let offset = 512 * rng.below((copy.len() as u64 - length) / 512);
    let range = &mut copy[offset as usize..(offset + length) as usize];
    let fua = rng.one_in(4);
    if rng.one_in(2) {
        rng.fill(range);
        return Request::Write { offset, data: Segments::copy_of(range), fua };
    }
    range.fill(0);
    match rng.below(3) {
        0 => Request::Trim { offset, length, fua },
        kind => Request::WriteZeroes { offset, length, may_trim: kind == 1, fua },
    }
}

#[test]
fn what_was_answered_with_fua_is_there_after_any_cut_with_all_before_it() {
    const LENGTH: u64 = 64 * 4096;
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..80 {
        let mut rng = Rng::new(seed);
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(2048, Role::Normal)));
        let options = FormatOptions { id: VolumeId([7; 16]), blocks: 2048, role: Role::Normal };
        Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).unwrap();
        let luns = Luns::new(open(device.clone()));
        luns.create("disk", LENGTH).unwrap();
        let lun = luns.open("disk").unwrap();
        // The content that is certainly durable, and the acknowledged content.
        let mut durable = vec![0; LENGTH as usize];
        let mut now = durable.clone();
        for _ in 0..2 + rng.below(30) {
            let fua = if rng.one_in(8) {
                let at = 4096 * rng.below(60);
                let block = &mut now[at as usize..at as usize + 8192];
                rng.fill(block);
                let fua = rng.one_in(2);
                lun.write_atomic(at, Segments::copy_of(block), fua, None).unwrap();
                fua
            } else {
                let request = any_request(&mut rng, &mut now);
                let fua = match &request {
                    Request::Write { fua, .. }
                    | Request::Trim { fua, .. }
                    | Request::WriteZeroes { fua, .. } => *fua,
                    _ => unreachable!("it changes something"),
                };
                lun.one(Operation::new(request)).unwrap();
                fua
            };
            if fua {
                durable.clone_from(&now);
            }
        }
        let fate = Fate::ALL[seed as usize % 4];
        let after = Arc::new(device.power_cycle_as(fate, &mut rng));
        let volume = open(after);
        let seen = Luns::new(volume.clone()).open("disk").unwrap().read(0, LENGTH as u32).unwrap().to_vec();
        for (at, seen) in seen.chunks(4096).enumerate() {
            let of = |state: &[u8]| seen == &state[at * 4096..(at + 1) * 4096];
            // Writes after the last one with FUA may be present in any version; the content that it
            // covered is still there.
            let changed = durable[at * 4096..(at + 1) * 4096] != now[at * 4096..(at + 1) * 4096];
            assert!(changed || of(&durable), "seed {seed}, {fate:?}: block {at} is not what it was with FUA");
            lost += u64::from(changed && of(&durable));
            kept += u64::from(!changed);
        }
        assert_eq!(findings(&volume), Vec::<String>::new());
    }
    assert!(lost > 100 && kept > 1000, "{lost} {kept}");
}

#[test]
fn shrinking_needs_to_be_allowed_and_zeroes_what_it_cuts() {
    let luns = Luns::new(open(formatted(4096)));
    luns.create("disk", MIB).unwrap();
    let lun = luns.open("disk").unwrap();
    lun.write_from(0, &vec![9; MIB as usize]).unwrap();
    assert!(matches!(luns.resize("disk", 5120, false), Err(FilesError::WouldShrink { .. })));
    luns.resize("disk", 5120, true).unwrap();
    luns.resize("disk", MIB, false).unwrap();
    let data = lun.read(0, 65536).unwrap().to_vec();
    assert!(data[..5120].iter().all(|byte| *byte == 9));
    assert!(data[5120..].iter().all(|byte| *byte == 0));
}

#[test]
fn bad_names_and_sizes_are_refused() {
    let luns = Luns::new(open(formatted(4096)));
    for name in ["", "-x", ".hidden", "a/b", "a@b", "a b", &"x".repeat(113)] {
        assert!(matches!(luns.create(name, MIB), Err(FilesError::InvalidName)), "{name}");
    }
    for bytes in [0, 100, 513, u64::MAX] {
        assert!(matches!(luns.create("disk", bytes), Err(FilesError::Size { .. })), "{bytes}");
    }
    luns.create("disk", MIB).unwrap();
    assert!(matches!(luns.create("disk", MIB), Err(FilesError::NameTaken)));
    assert!(matches!(luns.delete("other"), Err(FilesError::NoSuchLun)));
}

#[test]
fn deleted_lun_gives_its_space_back() {
    let device = formatted(8192);
    let volume = open(device);
    let luns = Luns::new(volume.clone());
    luns.create("keep", MIB).unwrap();
    volume.consistency_point().unwrap();
    let before = volume.status().used;
    luns.create("disk", 8 * MIB).unwrap();
    luns.open("disk").unwrap().write_from(0, &vec![1; 8 * MIB as usize]).unwrap();
    volume.consistency_point().unwrap();
    assert!(volume.status().used >= before + 2048);
    luns.delete("disk").unwrap();
    for _ in 0..8 {
        volume.background(std::time::Duration::ZERO).unwrap();
    }
    volume.consistency_point().unwrap();
    volume.consistency_point().unwrap();
    let after = volume.status().used;
    assert!(after <= before + 8, "{before} blocks before, {after} after");
    assert_eq!(findings(&volume), Vec::<String>::new());
}

#[test]
fn image_stays_as_it_is_while_the_lun_changes() {
    let volume = open(formatted(4096));
    let luns = Luns::new(volume.clone());
    luns.create("disk", MIB).unwrap();
    let lun = luns.open("disk").unwrap();
    lun.write_from(0, &[1; 8192]).unwrap();
    let snapshot = volume.create_snapshot("one").unwrap();
    let image = volume.image(Some(snapshot.id)).unwrap();
    let old = luns.open_in(&image, "disk").unwrap();
    lun.write_from(0, &[2; 4096]).unwrap();
    volume.delete_snapshots(&[snapshot.id]).unwrap();
    for round in 3..40 {
        lun.write_from(4096, &[round; 4096]).unwrap();
        volume.consistency_point().unwrap();
    }
    assert_eq!(old.read(0, 8192).unwrap().to_vec(), vec![1; 8192]);
    assert!(old.one(Operation::write(0, Segments::copy_of(&[0; 4096]))).is_err());
    let extents = lun.extents(0, MIB, 10).unwrap();
    assert_eq!(
        extents.iter().map(|e| (e.length, e.hole)).collect::<Vec<_>>(),
        [(8192, false), (MIB - 8192, true)]
    );
}

#[test]
fn lun_has_the_length_that_it_had_while_nobody_can_read_it() {
    let blocks = 16_384;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).unwrap();
    let volume = open(device.clone());
    let luns = Luns::new(volume.clone());
    // Many, so that the pointers of the first and of the last are in different blocks.
    for n in 0..100 {
        luns.create(&format!("lun{n}"), MIB).unwrap();
    }
    luns.create("other", 4096 * MIB).unwrap();
    let (lun, other) = (luns.open("lun0").unwrap(), luns.open("other").unwrap());
    // Each block under a node of its own, so that the cache replaces the nodes of the first.
    let places = || (0..4096).step_by(4).map(|place| place * MIB);
    places().for_each(|place| other.write_from(place, &[1; 4096]).unwrap());
    volume.consistency_point().unwrap();
    places().for_each(|place| _ = other.read(place, 4096).unwrap());
    device.fail_reads(0..u64::MAX);
    assert_eq!(lun.geometry().length, MIB, "it did not shrink");
    let failure = lun.read(0, 4096).unwrap_err();
    assert!(matches!(failure, DeviceError::Io { .. } | DeviceError::Corrupt { .. }), "{failure}");
    device.heal_reads();
    assert_eq!(lun.geometry().length, MIB);
    lun.read(0, 4096).unwrap();
    luns.delete("lun0").unwrap();
    assert_eq!(lun.geometry().length, 0, "what was deleted has none");
}

/// Damages every block of a device that has the inode of a file with that length.
fn damage_inode(device: &MemoryDevice, file: FileId, length: u64) {
    let (_, slot) = Inode::place(file);
    let mut block = vec![0; BLOCK_SIZE];
    for offset in (0..device.geometry().length).step_by(BLOCK_SIZE) {
        device.read_into(offset, &mut block).unwrap();
        let bytes: &[u8; BLOCK_SIZE] = block[..].try_into().unwrap();
        let is_it = |inode: Inode| inode.id == file && inode.length_bytes == length;
        if matches!(Inode::parse(bytes, slot), Ok(Some(inode)) if is_it(inode)) {
            device.write_from(offset, &[0xa5; BLOCK_SIZE]).unwrap();
        }
    }
}

#[test]
fn lun_whose_inode_is_damaged_costs_no_other() {
    let device = formatted(4096);
    let volume = open(device.clone());
    let luns = Luns::new(volume.clone());
    luns.create("good", MIB).unwrap();
    luns.open("good").unwrap().write_from(0, b"bytes").unwrap();
    // So far that the two have no block of inodes in common.
    for _ in 0..INODES_PER_BLOCK {
        volume.next_file().unwrap();
    }
    luns.create("hurt", MIB).unwrap();
    let hurt = luns.find("hurt").unwrap().file;
    let snapshot = volume.create_snapshot("noon").unwrap().id;
    luns.resize("hurt", 2 * MIB, false).unwrap();
    drop((luns, volume));
    damage_inode(&device, hurt, MIB);

    let volume = open(device);
    let luns = Luns::new(volume.clone());
    assert_eq!(luns.readable().unwrap().len(), 2, "what there is now is whole");
    let image = volume.image(Some(snapshot)).unwrap();
    let opened = luns.open_in(&image, "hurt").map(drop);
    assert!(matches!(opened, Err(FilesError::Volume(VolumeError::Damaged { .. }))), "{opened:?}");
    let mut bytes = [0; 5];
    luns.open_in(&image, "good").unwrap().read_into(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    let readable = luns.readable_in(&image).unwrap();
    assert_eq!(readable.iter().map(|lun| lun.name.as_str()).collect::<Vec<_>>(), ["good"]);
    assert!(luns.list_in(&image).is_err(), "a list that says that it has all of them has not");
    assert!(matches!(luns.find_in(&image, "none"), Err(FilesError::NoSuchLun)));
}
