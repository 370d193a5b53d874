//! Properties of file devices alone: locks, errors of opening, both engines, preparing, growing.

use std::path::PathBuf;

use cairn_base::Rng;

use super::*;
use crate::{Segment, Segments};

const MIB: u64 = 1 << 20;

fn every_option() -> Vec<FileOptions> {
    let mut all = Vec::new();
    for direct in [Direct::Auto, Direct::Writes, Direct::Never] {
        for engine in [Engine::Auto, Engine::Calls] {
            all.push(FileOptions { direct, engine, ..FileOptions::default() });
        }
    }
    all
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    (folder, path)
}

fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn file_that_several_make_at_once_is_made_by_one_and_stays_its_own() {
    for _ in 0..50 {
        let (_folder, path) = place();
        let made: Vec<FileDevice> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| FileDevice::create(&path, MIB).ok())).collect();
            all.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        let [made] = &made[..] else { panic!("{} of them have it", made.len()) };
        made.write(0, Segments::copy_of(&[7; 4096])).unwrap();
        made.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..4096], [7; 4096], "the others leave it alone");
    }
}

#[test]
fn large_requests_and_many_requests_come_back_as_written() {
    for options in every_option() {
        let (_folder, path) = place();
        let device = FileDevice::create_with(&path, 16 * MIB, options).unwrap();
        let bytes = random(1, 5 * MIB as usize);
        device.write(MIB, Segments::copy_of(&bytes)).unwrap();
        // More than fit in flight, out of order, not touching and touching.
        let mut batch: Vec<Operation> = (0..700u64)
            .map(|index| (index * 389) % 700)
            .map(|index| Operation::write(8 * MIB + index * 8192, Segments::copy_of(&random(index, 4096))))
            .collect();
        batch.push(Operation::flush());
        device.run(&mut batch);
        batch.into_iter().for_each(|operation| operation.into_outcome().unwrap());
        drop(device);

        let device = FileDevice::open(&path, options).unwrap();
        let mut batch = vec![Operation::read(MIB, 5 * MIB as u32)];
        batch.extend((0..700u64).map(|index| Operation::read(8 * MIB + index * 8192, 8192)));
        device.run(&mut batch);
        for (index, operation) in batch.into_iter().enumerate() {
            let data = operation.into_data().unwrap().to_vec();
            match index {
                0 => assert!(data == bytes, "{options:?}"),
                _ => {
                    let written = random(index as u64 - 1, 4096);
                    assert!(data[..4096] == written && data[4096..] == [0; 4096], "{options:?} {index}");
                }
            }
        }
    }
}

#[test]
fn direct_write_takes_pieces_that_are_not_whole_blocks() {
    let (_folder, path) = place();
    let device = FileDevice::create(&path, MIB).unwrap();
    let bytes = random(2, 8192);
    let data: Segments = [(0, 100), (100, 4000), (4000, 8192)]
        .iter()
        .flat_map(|(start, end)| {
            Segments::copy_of(&bytes[*start..*end]).iter().cloned().collect::<Vec<Segment>>()
        })
        .collect();
    device.write(4096, data).unwrap();
    assert_eq!(device.read(4096, 8192).unwrap().to_vec(), bytes);
}

#[test]
fn second_opener_is_told_that_it_is_busy_and_readers_share() {
    let (_folder, path) = place();
    let writer = FileDevice::create(&path, MIB).unwrap();
    let read_only = FileOptions { read_only: true, ..FileOptions::default() };
    assert!(matches!(FileDevice::open(&path, FileOptions::default()), Err(OpenError::Busy { .. })));
    assert!(matches!(FileDevice::open(&path, read_only), Err(OpenError::Busy { .. })));
    drop(writer);
    let first = FileDevice::open(&path, read_only).unwrap();
    let _second = FileDevice::open(&path, read_only).unwrap();
    assert!(matches!(FileDevice::open(&path, FileOptions::default()), Err(OpenError::Busy { .. })));
    assert!(matches!(first.write_from(0, &[1; 4096]), Err(DeviceError::ReadOnly)));
}

#[test]
fn lock_goes_with_the_device_though_the_kernel_has_its_file_still() {
    let (_folder, path) = place();
    let device = FileDevice::create(&path, MIB).unwrap();
    // A starting program shares it until its exec, and a ring until its thread uses it again.
    let _still = device.file.try_clone().unwrap();
    drop(device);
    FileDevice::open(&path, FileOptions::default()).unwrap();
}

#[test]
fn errors_of_opening_name_the_path_and_the_reason() {
    let (folder, path) = place();
    let missing = FileDevice::open(&path, FileOptions::default()).unwrap_err();
    assert!(matches!(&missing, OpenError::Missing { path: named } if *named == path));
    let directory = FileDevice::open(folder.path(), FileOptions::default()).unwrap_err();
    assert!(matches!(directory, OpenError::NotStorage { .. }));
    let terminal = FileDevice::open("/dev/null", FileOptions::default()).unwrap_err();
    assert!(matches!(terminal, OpenError::NotStorage { .. }));
    let too_long = FileDevice::create(&path, u64::MAX).unwrap_err();
    assert!(matches!(too_long, OpenError::TooLong { .. }), "{too_long}");
    assert!(!path.exists(), "a failed create leaves nothing");
    std::fs::write(&path, b"mine").unwrap();
    assert!(matches!(FileDevice::create(&path, MIB), Err(OpenError::Exists { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn file_cut_by_somebody_else_fails_the_read_and_only_that_read() {
    for options in every_option() {
        let (_folder, path) = place();
        let device = FileDevice::create_with(&path, MIB, options).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        // The first two are neighbours and go to the kernel as one transfer; the third one is
        // another.
        let mut batch =
            [Operation::read(4096, 4096), Operation::read(8192, 4096), Operation::read(MIB / 2, 4096)];
        device.run(&mut batch);
        let [inside, outside, far] = batch;
        assert!(matches!(far.into_data(), Err(DeviceError::Io { action: Action::Read, .. })));
        assert_eq!(inside.into_data().unwrap().to_vec(), [0; 4096]);
        assert!(matches!(outside.into_data(), Err(DeviceError::Io { action: Action::Read, .. })));
    }
}

#[test]
fn file_of_odd_length_is_not_opened_direct() {
    let (_folder, path) = place();
    std::fs::write(&path, random(3, 10_000)).unwrap();
    let device = FileDevice::open(&path, FileOptions::default()).unwrap();
    assert!(!device.is_direct());
    assert_eq!(device.read(9_990, 10).unwrap().to_vec(), random(3, 10_000)[9_990..]);
}

#[test]
fn growth_is_seen_at_once_and_by_the_next_opener() {
    let (_folder, path) = place();
    let device = FileDevice::create(&path, MIB).unwrap();
    device.write_from(MIB - 4096, &[7; 4096]).unwrap();
    device.grow(4 * MIB).unwrap();
    device.grow(2 * MIB).unwrap();
    assert_eq!(device.geometry().length, 4 * MIB);
    assert_eq!(device.read(MIB - 4096, 4096).unwrap().to_vec(), [7; 4096]);
    assert_eq!(device.read(4 * MIB - 4096, 4096).unwrap().to_vec(), [0; 4096]);
    drop(device);
    let device = FileDevice::open(&path, FileOptions::default()).unwrap();
    assert_eq!(device.geometry().length, 4 * MIB);
}

#[test]
fn prepared_space_is_data_and_keeps_what_was_written() {
    for options in every_option() {
        let (_folder, path) = place();
        let device = FileDevice::create_with(&path, 8 * MIB, options).unwrap();
        device.write_from(3 * MIB, &[9; 4096]).unwrap();
        device.flush().unwrap();
        device.prepare(2 * MIB, 3 * MIB).unwrap();
        assert_eq!(device.read(3 * MIB, 4096).unwrap().to_vec(), [9; 4096]);
        assert_eq!(device.read(2 * MIB, MIB as u32).unwrap().to_vec(), vec![0; MIB as usize]);
        let extents = device.extents(2 * MIB, 3 * MIB, 100).unwrap();
        assert!(extents.iter().all(|extent| !extent.hole), "{extents:?}");
    }
}

#[test]
fn allocated_room_is_taken_and_changes_no_byte() {
    use std::os::unix::fs::MetadataExt;
    for options in every_option() {
        let (_folder, path) = place();
        let device = FileDevice::create_with(&path, 8 * MIB, options).unwrap();
        device.write_from(3 * MIB, &[9; 4096]).unwrap();
        device.allocate(2 * MIB, 3 * MIB).unwrap();
        assert_eq!(device.read(3 * MIB, 4096).unwrap().to_vec(), [9; 4096]);
        assert_eq!(device.read(4 * MIB, MIB as u32).unwrap().to_vec(), vec![0; MIB as usize]);
        assert!(device.allocate(7 * MIB, 2 * MIB).is_err(), "past the end");
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!(file.len(), 8 * MIB);
        // A file system without that call has taken nothing.
        assert!(
            file.blocks() * 512 >= if device.geometry().trims { 3 * MIB } else { 0 },
            "{}",
            file.blocks()
        );
    }
}

#[test]
fn trimmed_space_becomes_a_hole() {
    for options in every_option() {
        let (_folder, path) = place();
        let device = FileDevice::create_with(&path, 4 * MIB, options).unwrap();
        device.write_from(0, &vec![5; 2 * MIB as usize]).unwrap();
        device.flush().unwrap();
        if !device.geometry().trims {
            continue;
        }
        device.one(Operation::trim(MIB, MIB)).unwrap();
        let extents = device.extents(0, 4 * MIB, 100).unwrap();
        let data: u64 = extents.iter().filter(|extent| !extent.hole).map(|extent| extent.length).sum();
        assert_eq!(data, MIB, "{extents:?}");
        assert_eq!(device.read(MIB, 4096).unwrap().to_vec(), [0; 4096]);
    }
}

/// A transfer of 3 blocks at 4096, into memory that nothing reads.
fn transfer(direct: bool) -> (Vec<crate::BlockMut>, Transfer) {
    let mut blocks: Vec<crate::BlockMut> = (0..3).map(|_| crate::BlockMut::zeroed()).collect();
    let iovec = |block: &mut crate::BlockMut| libc::iovec {
        iov_base: block.as_mut_ptr().cast(),
        iov_len: BLOCK_SIZE,
    };
    let iovecs = blocks.iter_mut().map(iovec).collect();
    (blocks, Transfer::new(false, direct, 4096, iovecs))
}

#[test]
fn pieces_that_follow_each_other_in_memory_are_one_iovec() {
    let memory = [0u8; 40];
    let iovec = |start: usize, end: usize| libc::iovec {
        iov_base: memory[start..end].as_ptr().cast_mut().cast(),
        iov_len: end - start,
    };
    let pieces = [iovec(0, 8), iovec(8, 10), iovec(20, 30), iovec(10, 20), iovec(20, 40)];
    let place = |iovec: &libc::iovec| (iovec.iov_base.addr() - memory.as_ptr().addr(), iovec.iov_len);
    let joined: Vec<(usize, usize)> = super::stage::joined(pieces.iter()).iter().map(place).collect();
    assert_eq!(joined, [(0, 10), (20, 10), (10, 30)]);
}

#[test]
fn short_transfer_goes_on_where_it_stopped() {
    let (mut blocks, mut transfer) = transfer(false);
    assert_eq!(transfer.step(Ok(5000)), transfer::Step::Again);
    assert_eq!((transfer.position(), transfer.rest().1), (9096, 2));
    // SAFETY: `rest` points to at least one iovec.
    let first = unsafe { *transfer.rest().0 };
    assert_eq!(first.iov_base.cast(), blocks[1][904..].as_mut_ptr());
    assert_eq!(first.iov_len, BLOCK_SIZE - 904);
    assert_eq!(transfer.step(Err(io::Error::from_raw_os_error(libc::EINTR))), transfer::Step::Again);
    assert_eq!(transfer.step(Ok(12288 - 5000)), transfer::Step::Done);
    assert!(transfer.into_outcome().is_ok());
}

#[test]
fn short_direct_transfer_goes_on_at_a_block() {
    let (_blocks, mut transfer) = transfer(true);
    assert_eq!(transfer.step(Ok(5000)), transfer::Step::Again);
    assert_eq!((transfer.position(), transfer.rest().1), (8192, 2));
    assert_eq!(transfer.step(Ok(8192)), transfer::Step::Done);
}

#[test]
fn transfer_that_never_moves_fails_in_the_end() {
    let (_blocks, mut stuck) = transfer(true);
    let steps = (0..100_000).take_while(|_| stuck.step(Ok(100)) == transfer::Step::Again).count();
    assert!((1..100_000).contains(&steps));
    assert!(stuck.into_outcome().is_err());
    let (_blocks, mut ended) = transfer(false);
    assert_eq!(ended.step(Ok(0)), transfer::Step::Done);
    assert_eq!(ended.into_outcome().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn failed_flush_is_reported_by_every_later_flush() {
    let (_folder, path) = place();
    let device = FileDevice::create(&path, MIB).unwrap();
    device.latch(&io::Error::from_raw_os_error(libc::EIO));
    let fua = Request::Write { offset: 0, data: Segments::copy_of(&[1; 4096]), fua: true };
    assert!(matches!(device.flush(), Err(DeviceError::Io { action: Action::Flush, .. })));
    assert!(device.one(Operation::new(fua)).is_err());
    assert!(device.read(0, 4096).is_ok(), "reads go on");
}

/// Another process's use of a file, in its own open file.
fn other(path: &std::path::Path, write: bool) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).write(write).open(path).unwrap()
}

#[test]
fn file_that_is_open_for_writing_elsewhere_is_not_taken_unless_its_owner_insists() {
    let (_folder, path) = place();
    drop(FileDevice::create(&path, MIB).unwrap());
    let taken = FileOptions { is_new: true, ..FileOptions::default() };
    let insists = FileOptions { in_use: true, ..taken };
    let reader = other(&path, false);
    drop(FileDevice::open(&path, taken).expect("who only reads does no harm"));
    let mut writer = std::process::Command::new("sleep")
        .arg("600")
        .stdin(std::process::Stdio::from(other(&path, true)))
        .spawn()
        .unwrap();
    let refused = FileDevice::open(&path, taken).unwrap_err();
    let process = format!("process {}", writer.id());
    assert!(matches!(&refused, OpenError::InUse { by, .. } if by.contains(&process)), "{refused}");
    drop(FileDevice::open(&path, insists).expect("its owner has insisted"));
    drop(FileDevice::open(&path, FileOptions::default()).expect("what is ours is not asked for again"));
    writer.kill().unwrap();
    writer.wait().unwrap();
    drop(FileDevice::open(&path, taken).expect("it has ended"));
    drop(reader);
}

#[test]
fn locks_of_qemu_are_heeded_and_held() {
    let (_folder, path) = place();
    drop(FileDevice::create(&path, MIB).unwrap());
    // A reader of QEMU that allows others to write (`-U`), and one that does not.
    let sharing = other(&path, true);
    assert!(calls::lock_byte(&sharing, 100).unwrap());
    drop(FileDevice::open(&path, FileOptions::default()).expect("it lets others write"));
    assert!(calls::lock_byte(&sharing, 201).unwrap());
    let refused = FileDevice::open(&path, FileOptions::default()).unwrap_err();
    assert!(matches!(&refused, OpenError::InUse { by, .. } if by.contains("QEMU")), "{refused}");
    drop(FileDevice::open(&path, FileOptions { in_use: true, ..FileOptions::default() }).unwrap());
    drop(sharing);
    // A writer that would allow others to write.
    let writer = other(&path, true);
    assert!(calls::lock_byte(&writer, 101).unwrap());
    assert!(matches!(FileDevice::open(&path, FileOptions::default()), Err(OpenError::InUse { .. })));
    drop(writer);
    // QEMU's check before it opens an image: that no process writes, and that others may.
    let device = FileDevice::open(&path, FileOptions::default()).unwrap();
    let qemu = other(&path, true);
    for byte in [101, 103, 201, 203] {
        assert!(calls::is_byte_locked(&qemu, byte).unwrap(), "{byte}");
    }
    assert!(!calls::is_byte_locked(&qemu, 200).unwrap(), "others may read");
    drop(device);
    for byte in 100..=203 {
        assert!(!calls::is_byte_locked(&qemu, byte).unwrap(), "{byte} is given back");
    }
}
