//! What can be said without a kernel; `crates/cli/tests/mounts.rs` has one.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_base::{FileId, ManualClock, Timestamp, VolumeId};
use cairn_device::MemoryDevice;
use cairn_files::{New, Tree, check_tree};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::attributes::{attr, ns_of, statx_out};
use crate::conversation::WRITE_MAX;
use crate::mount::{Line, mounted_line};
use crate::node::{BASE, Node, SNAPSHOTS};
use crate::request::{Operation, Request};
use crate::{Unmounted, View};

fn request(opcode: u32, parts: &[&[u8]], extended: u16) -> Vec<u8> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let len = (size_of::<fuse_in_header>() + body) as u32;
    let header =
        fuse_in_header { len, opcode, unique: 7, nodeid: 9, total_extlen: extended, ..Default::default() };
    let mut bytes = header.as_bytes().to_vec();
    parts.iter().for_each(|part| bytes.extend(*part));
    bytes
}

#[test]
fn requests_are_read_and_short_ones_are_none() {
    let rename = fuse_rename2_in { newdir: 3, flags: 1, padding: 0 };
    let bytes = request(opcode::RENAME2, &[rename.as_bytes(), b"from\0to\0"], 0);
    let parsed = Request::parse(&bytes).unwrap();
    let Operation::Rename { newdir: 3, flags: 1, name: b"from", new_name: b"to" } = parsed.operation else {
        panic!("{parsed:?}");
    };
    for end in 0..bytes.len() {
        assert!(Request::parse(&bytes[..end]).is_none(), "a request of {end} bytes");
    }
    let no_end = request(opcode::LOOKUP, &[b"name"], 0);
    assert!(Request::parse(&no_end).is_none());
    let write = fuse_write_in { size: 5, ..Default::default() };
    assert!(Request::parse(&request(opcode::WRITE, &[write.as_bytes(), b"1234"], 0)).is_none());
    let whole = request(opcode::WRITE, &[write.as_bytes(), b"12345"], 0);
    assert!(matches!(Request::parse(&whole).unwrap().operation, Operation::Write { data: b"12345", .. }));
    // What a newer kernel adds behind the arguments is no part of them.
    let extended = request(opcode::LOOKUP, &[b"name\0", &[1; 16]], 2);
    assert!(matches!(Request::parse(&extended).unwrap().operation, Operation::Lookup { name: b"name" }));
    assert!(Request::parse(&request(opcode::LOOKUP, &[b"name\0"], 2)).is_none());
    let many = fuse_batch_forget_in { count: u32::MAX, dummy: 0 };
    assert!(Request::parse(&request(opcode::BATCH_FORGET, &[many.as_bytes()], 0)).is_none());
    assert!(matches!(Request::parse(&request(4711, &[b"?"], 0)).unwrap().operation, Operation::Other));
}

#[test]
fn numbers_of_files_of_different_images_are_different() {
    let file = FileId(77);
    let numbers: Vec<u64> =
        [BASE, 1, 2, SNAPSHOTS].map(|slot| Node { slot, file }.number().unwrap()).to_vec();
    for (index, number) in numbers.iter().enumerate() {
        assert!(!numbers[..index].contains(number));
        let node = Node::of_number(*number).unwrap();
        assert_eq!((node.file, node.number()), (file, Ok(*number)));
    }
    assert_eq!(Node::of_number(FUSE_ROOT_ID), None);
    assert_eq!(Node { slot: 0, file: FileId(1 << 40) }.number(), Err(errno::EOVERFLOW));
}

#[test]
fn times_before_1970_and_devices_keep_their_values() {
    let stat = cairn_files::Stat {
        accessed_ns: -1,
        modified_ns: -1_500_000_000,
        created_ns: 12_000_000_034,
        device: rustix_device(259, 70_001),
        ..crate::directory::snapshots_stat(5, &[])
    };
    let told = attr(5, &stat);
    assert_eq!((told.atime as i64, told.atimensec), (-1, 999_999_999));
    assert_eq!(ns_of(told.mtime, told.mtimensec), -1_500_000_000);
    let told = statx_out(5, &stat).stat;
    assert_eq!((told.btime.tv_sec, told.btime.tv_nsec), (12, 34));
    assert_eq!((told.rdev_major, told.rdev_minor), (259, 70_001));
}

/// `new_encode_dev` of the kernel.
fn rustix_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[test]
fn mounts_are_found_in_what_the_kernel_lists() {
    let line = r"52 27 0:45 / /mnt/a\040b rw,nosuid - fuse.cairn vol0@s\0401 rw,user_id=0";
    let (path, source) = (PathBuf::from("/mnt/a b"), "vol0@s 1".to_owned());
    assert_eq!(mounted_line(line), Some(Line { path, source, device: (0, 45), whole: true }));
    let part = r"53 27 0:45 /sub /mnt/c rw,nosuid - fuse.cairn vol0 rw,user_id=0";
    assert!(mounted_line(part).is_some_and(|line| !line.whole), "a directory of it, bound elsewhere");
    assert_eq!(mounted_line("52 27 0:45 / /mnt/a rw - ext4 /dev/sda rw"), None);
    assert_eq!(mounted_line("nonsense"), None);
}

fn live_tree() -> Arc<Tree> {
    const BLOCKS: u64 = 8192;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let volume = Volume::open(device, OpenOptions { cache_bytes: 8 << 20, clock }).unwrap();
    Arc::new(Tree::open(volume).unwrap())
}

/// Data of writes comes in blocks that are kept as they are: whole ones, parts at the end, at any place, over what is there; and what is no such write comes through all the same.
#[test]
fn writes_of_any_place_and_length_are_read_back() {
    let tree = live_tree();
    let file = tree.make(tree.root(), b"file", &New { mode: 0o100_644, ..New::default() }).unwrap().file;
    let node = Node { slot: BASE, file }.number().unwrap();
    let mount = Unmounted::new(View::Live(tree.clone())).unwrap();
    let ask = |mut bytes: Vec<u8>| {
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        let answer = mount.answer(&bytes).unwrap();
        assert_eq!(answer[4..8], [0; 4], "no error");
        answer[16..].to_vec()
    };
    let mut wanted: Vec<u8> = Vec::new();
    let places = [
        (0, WRITE_MAX),
        (0, 5),
        (4096, 4096),
        (8192, 10_000),
        (100, 9000),
        (WRITE_MAX / 2, WRITE_MAX),
        (WRITE_MAX - 4096, 8192),
        (3 * WRITE_MAX / 2, 1),
        (2 * WRITE_MAX, 0),
        (2 * WRITE_MAX + 4096, 4095),
        (2 * WRITE_MAX + 8000, 500),
        (4096, 1),
    ];
    for (turn, (offset, length)) in places.into_iter().enumerate() {
        let data: Vec<u8> = (0..length).map(|n| (n * 31 / 7 + turn * 13) as u8).collect();
        let write_flags = if turn % 2 == 0 { FUSE_WRITE_CACHE } else { 0 };
        let arguments =
            fuse_write_in { offset: offset as u64, size: length as u32, write_flags, ..Default::default() };
        let written = ask(request(opcode::WRITE, &[arguments.as_bytes(), &data], 0));
        assert_eq!(written[..4], (length as u32).to_ne_bytes());
        if length > 0 {
            wanted.resize(wanted.len().max(offset + length), 0);
            wanted[offset..offset + length].copy_from_slice(&data);
        }
        let mut read = Vec::new();
        for at in (0..wanted.len()).step_by(WRITE_MAX) {
            let arguments = fuse_read_in { offset: at as u64, size: WRITE_MAX as u32, ..Default::default() };
            read.extend(ask(request(opcode::READ, &[arguments.as_bytes()], 0)));
        }
        assert!(read == wanted, "after write {turn} of {length} bytes at {offset}");
    }
    tree.sync_all().unwrap();
    assert_eq!(check_tree(&tree.volume().image(None).unwrap()).unwrap(), []);
    // Longer than any request: it is answered, too.
    let arguments = fuse_write_in { size: WRITE_MAX as u32 + 1, ..Default::default() };
    ask(request(opcode::WRITE, &[arguments.as_bytes(), &vec![1; WRITE_MAX + 1]], 0));
}
