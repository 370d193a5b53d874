//! Tests without a kernel; `crates/cli/tests/mounts.rs` has one.

mod known;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{FileId, ManualClock, Timestamp, VolumeId};
use cairn_device::{Device, Geometry, MemoryDevice, Operation as DeviceOperation};
use cairn_files::{New, QuotaLimits, SetStat, Tree, check_tree};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};
use parking_lot::Mutex;
use rustix::io::{read, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::*;
use crate::attributes::{attr, ns_of, statx_out};
use crate::caller::Caller;
use crate::conversation::Step;
use crate::mount::{Line, mounted_line};
use crate::node::{BASE, Node, SNAPSHOTS, TIMES};
use crate::operations::FileSystem;
use crate::readers::READING;
use crate::received::WRITE_MAX;
use crate::request::{Operation, Request};
use crate::session::{Connection, THREADS};
use crate::shown::Shown;
use crate::{Follows, Unmounted, View};

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
    // Extensions of a newer kernel after the arguments are not part of them.
    let extended = request(opcode::LOOKUP, &[b"name\0", &[1; 16]], 2);
    assert!(matches!(Request::parse(&extended).unwrap().operation, Operation::Lookup { name: b"name" }));
    assert!(Request::parse(&request(opcode::LOOKUP, &[b"name\0"], 2)).is_none());
    let many = fuse_batch_forget_in { count: u32::MAX, dummy: 0 };
    assert!(Request::parse(&request(opcode::BATCH_FORGET, &[many.as_bytes()], 0)).is_none());
    assert!(matches!(Request::parse(&request(4711, &[b"?"], 0)).unwrap().operation, Operation::Other));
}

#[test]
fn attributes_come_with_longer_arguments_where_that_was_agreed() {
    let (name, value) = (&b"user.name\0"[..], &b"va\0ue"[..]);
    let head = fuse_setxattr_in { size: 5, flags: 1 };
    for (more, wanted) in [(None, false), (Some(0), false), (Some(FUSE_SETXATTR_ACL_KILL_SGID), true)] {
        let more = more.map(|setxattr_flags| fuse_setxattr_ext_in { setxattr_flags, padding: 0 });
        let more = more.map_or(Vec::new(), |more| more.as_bytes().to_vec());
        let bytes = request(opcode::SETXATTR, &[head.as_bytes(), &more, name, value], 0);
        let parsed = Request::parse(&bytes).unwrap().operation;
        let Operation::SetXattr { flags: 1, kills_group_id, name: b"user.name", value: b"va\0ue" } = parsed
        else {
            panic!("{parsed:?}");
        };
        assert_eq!(kills_group_id, wanted);
    }
}

#[test]
fn numbers_of_files_of_different_images_are_different() {
    let file = FileId(77);
    let numbers: Vec<u64> =
        [BASE, 1, 2, TIMES, SNAPSHOTS].map(|slot| Node { slot, file }.number().unwrap()).to_vec();
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

/// A mount without a kernel, and its answers.
struct Asked(Unmounted);

impl Asked {
    /// The answer to a thread with that number, such as this program's or, with 0, one that is not
    /// seen.
    fn ask(&self, (node, thread): (u64, u32), opcode: u32, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let mut bytes = request(opcode, parts, 0);
        let header = fuse_in_header::read_from_prefix(&bytes).unwrap().0;
        let header = fuse_in_header { nodeid: node, uid: u32::MAX, gid: u32::MAX, pid: thread, ..header };
        bytes[..size_of::<fuse_in_header>()].copy_from_slice(header.as_bytes());
        let answer = self.0.answer(&bytes).unwrap();
        match i32::from_ne_bytes(answer[4..8].try_into().unwrap()) {
            0 => Ok(answer[16..].to_vec()),
            error => Err(-error),
        }
    }

    fn entry(&self, node: u64, name: &[u8]) -> Result<fuse_entry_out, i32> {
        let name = [name, &[0]].concat();
        let answer = self.ask((node, 0), opcode::LOOKUP, &[&name])?;
        Ok(fuse_entry_out::read_from_prefix(&answer).unwrap().0)
    }

    fn attributes(&self, node: u64) -> fuse_attr_out {
        fuse_attr_out::read_from_prefix(&self.ask((node, 0), opcode::GETATTR, &[]).unwrap()).unwrap().0
    }
}

fn number_of(file: FileId) -> u64 {
    Node { slot: BASE, file }.number().unwrap()
}

/// An NFS server's questions about a handle that the kernel has forgotten: the file of a number,
/// and the directory above.
#[test]
fn handles_are_found_by_number_and_those_of_other_images_are_others() {
    let tree = live_tree();
    let directory =
        tree.make_directory(tree.root(), b"d", &New { mode: 0o755, ..New::default() }).unwrap().file;
    let below = tree.make_directory(directory, b"e", &New { mode: 0o755, ..New::default() }).unwrap().file;
    let file = tree.make(below, b"f", &New { mode: 0o100_644, ..New::default() }).unwrap().file;
    tree.sync_all().unwrap();
    let volume = tree.volume().clone();
    let snapshot = |name: &str| volume.create_snapshot(name).unwrap();
    let first = snapshot("first");
    snapshot("second");
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let [directory, below, file] = [directory, below, file].map(number_of);
    for (node, name, wanted) in [
        (file, ".", file),
        (below, ".", below),
        (below, "..", directory),
        (directory, "..", FUSE_ROOT_ID),
        (FUSE_ROOT_ID, ".", FUSE_ROOT_ID),
        (FUSE_ROOT_ID, "..", FUSE_ROOT_ID),
    ] {
        let entry = mount.entry(node, name.as_bytes()).unwrap();
        assert_eq!((entry.nodeid, entry.generation), (wanted, 0), "{name} of {node:x}");
    }
    let snapshots = mount.entry(FUSE_ROOT_ID, b".snapshot").unwrap().nodeid;
    let old = ["first", "second"].map(|name| mount.entry(snapshots, name.as_bytes()).unwrap());
    assert_ne!(old[0].generation, old[1].generation, "a slot is another image's after the next start");
    assert_eq!(mount.entry(old[0].nodeid, b".").unwrap().generation, old[0].generation);
    let inner = mount.entry(old[0].nodeid, b"d").unwrap();
    assert_eq!(inner.generation, old[0].generation);
    assert_eq!(mount.entry(inner.nodeid, b"..").unwrap().nodeid, old[0].nodeid);
    assert_eq!(mount.entry(old[0].nodeid, b"..").unwrap().nodeid, snapshots);
    assert_eq!(mount.entry(snapshots, b".").unwrap().nodeid, snapshots);
    assert_eq!(mount.entry(snapshots, b"..").unwrap().nodeid, FUSE_ROOT_ID);
    tree.unlink(Node::of_number(below).unwrap().file, b"f").unwrap();
    assert_eq!(mount.entry(file, b".").map(|entry| entry.nodeid), Ok(file), "the kernel knows it still");
    mount.forget(&[(file, 2)]);
    assert_eq!(mount.entry(file, b".").map(|entry| entry.nodeid), Err(errno::ENOENT));
    drop(first);
}

/// A change of content by an unprivileged user clears the bits that give rights, and the kernel
/// must not keep using its cached ones.
#[test]
fn changes_of_content_take_rights_and_the_kernel_asks_for_them_each_time() {
    const NOBODY: u32 = 0;
    let tree = live_tree();
    let new = New { mode: 0o100_777, uid: 7, gid: 7, ..New::default() };
    let file = tree.make(tree.root(), b"file", &new).unwrap().file;
    let source = tree.make(tree.root(), b"source", &new).unwrap().file;
    tree.write(source, 0, b"bytes").unwrap();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let (node, source) = (number_of(file), number_of(source));
    let set = |mode: u32| {
        let change = fuse_setattr_in { valid: fattr::MODE, mode, ..Default::default() };
        mount.ask((node, 0), opcode::SETATTR, &[change.as_bytes()]).unwrap();
        let told = mount.attributes(node);
        assert_eq!(told.attr.mode & 0o7777, mode);
        assert_eq!(told.attr_valid == 0, mode & 0o6000 != 0, "{mode:o}");
    };
    let mode = || mount.attributes(node).attr.mode & 0o7777;
    let allocate = fuse_fallocate_in { length: 4096, ..Default::default() };
    let copy = fuse_copy_file_range_in { nodeid_out: node, len: 5, ..Default::default() };
    let write = fuse_write_in { size: 1, write_flags: FUSE_WRITE_KILL_SUIDGID, ..Default::default() };
    let changes: [(u64, u32, Vec<&[u8]>); 3] = [
        (node, opcode::FALLOCATE, vec![allocate.as_bytes()]),
        (source, opcode::COPY_FILE_RANGE, vec![copy.as_bytes()]),
        (node, opcode::WRITE, vec![write.as_bytes(), b"x"]),
    ];
    for (at, opcode, parts) in &changes {
        for before in [0o6777, 0o4755, 0o2775] {
            set(before);
            mount.ask((*at, NOBODY), *opcode, parts).unwrap();
            assert_eq!(mode(), before & 0o777, "operation {opcode}");
        }
    }
    // Without the group's right to execute, the bit gives no right to the kernel, which alone
    // decides for a write. Here it is cleared for a group that is not the file's.
    for ((at, opcode, parts), left) in changes.iter().zip([0o666, 0o666, 0o2666]) {
        set(0o2666);
        mount.ask((*at, NOBODY), *opcode, parts).unwrap();
        assert_eq!(mode(), left, "operation {opcode}");
    }
    if rustix::process::geteuid().is_root() {
        set(0o6777);
        mount.ask((node, std::process::id()), opcode::FALLOCATE, &changes[0].2).unwrap();
        assert_eq!(mode(), 0o6777, "root may");
    }

    let list = [
        2u8, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 32, 0, 7, 0, 255, 255,
        255, 255,
    ];
    let head = fuse_setxattr_in { size: list.len() as u32, flags: 0 };
    for (setxattr_flags, left) in [(0, 0o2777), (FUSE_SETXATTR_ACL_KILL_SGID, 0o777)] {
        set(0o2777);
        let more = fuse_setxattr_ext_in { setxattr_flags, padding: 0 };
        let parts = [head.as_bytes(), more.as_bytes(), b"system.posix_acl_access\0", &list];
        mount.ask((node, NOBODY), opcode::SETXATTR, &parts).unwrap();
        assert_eq!(mode(), left, "a list with flags {setxattr_flags}");
    }
}

#[test]
fn rights_of_who_asks_are_those_of_its_thread() {
    let status = |uid: &str, capabilities: &str| {
        format!("Name:\tx\nUid:\t1\t1\t1\t{uid}\nGid:\t4\t4\t4\t5\nGroups:\t7 8 \nCapEff:\t{capabilities}\n")
    };
    let parsed = |uid: &str, capabilities: &str| Caller::parse(&status(uid, capabilities)).unwrap();
    assert!(parsed("0", "0000000000000010").may_keep_rights);
    assert!(!parsed("0", "ffffffffffffffef").may_keep_rights, "without the capability");
    assert!(!parsed("1000", "ffffffffffffffff").may_keep_rights, "root in a namespace of its own");
    let caller = parsed("0", "0");
    assert_eq!([4, 5, 7, 8, 9].map(|group| caller.is_in(group)), [false, true, true, true, false]);
    assert_eq!(Caller::parse("Name:\tx\n"), None);
    assert!(Caller::of(std::process::id()).is_some() && Caller::of(0).is_none());
}

/// Data that the kernel read during a write that bypasses its cache may be older than the write.
#[test]
fn writes_past_the_cache_outdate_what_was_read_through_it_meanwhile() {
    const DIRECT: u32 = crate::operations::O_DIRECT;
    let tree = live_tree();
    let file = tree.make(tree.root(), b"file", &New { mode: 0o100_644, ..New::default() }).unwrap().file;
    let node = number_of(file);
    let files = FileSystem::new(Shown::new(View::Live(tree)).unwrap());
    let step = |opcode: u32, parts: &[&[u8]]| {
        let mut bytes = request(opcode, parts, 0);
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        files.step(&bytes)
    };
    let write = |flags: u32, write_flags: u32| {
        let write = fuse_write_in { offset: 8192, size: 4, flags, write_flags, ..Default::default() };
        match step(opcode::WRITE, &[write.as_bytes(), b"data"]) {
            Step::AfterForgetting { unique: 7, answer: Ok(_), stretch } => {
                assert_eq!((stretch.ino, stretch.off, stretch.len), (node, 8192, 4));
                true
            }
            Step::Answer { unique: 7, answer: Ok(_) } => false,
            other => panic!("{other:?}"),
        }
    };
    let read = |flags: u32| {
        let read = fuse_read_in { size: 4096, flags, ..Default::default() };
        step(opcode::READ, &[read.as_bytes()]);
    };
    let open = || step(opcode::OPEN, &[fuse_open_in { flags: 2, open_flags: 0 }.as_bytes()]);
    let close = || step(opcode::RELEASE, &[fuse_release_in { flags: 2, ..Default::default() }.as_bytes()]);
    read(0);
    open();
    read(DIRECT);
    assert!(!write(DIRECT, 0), "nothing was read through the cache since it can be written");
    read(0);
    assert!(!write(0, 0) && !write(DIRECT, FUSE_WRITE_CACHE), "what the kernel holds is what is written");
    assert!(write(DIRECT, 0) && write(DIRECT, 0));
    open();
    close();
    assert!(write(DIRECT, 0), "somebody has it open still");
    close();
    open();
    assert!(!write(DIRECT, 0));
}

/// Data of writes arrives in blocks that are kept as they are: whole ones, parts at the end, at any
/// place, over existing data. Other requests work all the same.
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

/// To the kernel a snapshot is a part of the same file system, and a file in it has the number of
/// the live file.
#[test]
fn nothing_is_linked_or_moved_between_a_snapshot_and_the_live_tree() {
    let tree = live_tree();
    let new = New { mode: 0o100_644, ..New::default() };
    let directory =
        tree.make_directory(tree.root(), b"d", &New { mode: 0o777, ..New::default() }).unwrap().file;
    let file = tree.make(directory, b"f", &new).unwrap().file;
    tree.write(file, 0, b"before").unwrap();
    tree.make(tree.root(), b"other", &new).unwrap();
    tree.volume().create_snapshot("noon").unwrap();
    tree.write(file, 0, b"after!").unwrap();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let snapshots = mount.entry(FUSE_ROOT_ID, b".snapshot").unwrap().nodeid;
    let noon = mount.entry(snapshots, b"noon").unwrap().nodeid;
    let old_directory = mount.entry(noon, b"d").unwrap().nodeid;
    let old_file = mount.entry(old_directory, b"f").unwrap().nodeid;
    let link = |file: u64, directory: u64| {
        let asked = fuse_link_in { oldnodeid: file };
        mount.ask((directory, 0), opcode::LINK, &[asked.as_bytes(), b"linked\0"]).map(drop)
    };
    let rename = |from: u64, name: &[u8], to: u64, new_name: &[u8], flags: u32| {
        let asked = fuse_rename2_in { newdir: to, flags, padding: 0 };
        let names = [name, b"\0", new_name, b"\0"].concat();
        mount.ask((from, 0), opcode::RENAME2, &[asked.as_bytes(), &names]).map(drop)
    };
    assert_eq!(link(old_file, FUSE_ROOT_ID), Err(errno::EXDEV), "the link would have what the file has now");
    assert_eq!(link(number_of(file), old_directory), Err(errno::EXDEV));
    for flags in [0, 1, 2] {
        let into = rename(FUSE_ROOT_ID, b"other", old_directory, b"f", flags);
        assert_eq!(into, Err(errno::EXDEV), "it would take the place of the live file");
        assert_eq!(rename(old_directory, b"f", FUSE_ROOT_ID, b"g", flags), Err(errno::EXDEV));
    }
    assert_eq!(rename(old_directory, b"f", noon, b"g", 0), Err(errno::EROFS));
    assert_eq!(link(old_file, noon), Err(errno::EROFS));
    let names = |directory| {
        let entries = tree.read_directory(directory, 2, 9).unwrap().into_iter();
        entries.map(|entry| entry.name).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(tree.root()), [b"d".to_vec(), b"other".to_vec()].into());
    assert_eq!(names(directory), [b"f".to_vec()].into());
    assert_eq!(tree.read(file, 0, 9).unwrap(), b"after!");
    link(number_of(file), FUSE_ROOT_ID).unwrap();
    rename(FUSE_ROOT_ID, b"linked", number_of(directory), b"moved", 0).unwrap();
}

#[test]
fn rename_leaves_what_overlayfs_takes_for_a_name_that_is_gone() {
    const WHITEOUT: u32 = 4;
    let tree = live_tree();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let root = tree.root();
    let new = New { mode: 0o100_644, ..New::default() };
    let file = tree.make(root, b"lower", &new).unwrap().file;
    let other = tree.make(root, b"other", &new).unwrap().file;
    let rename = |name: &[u8], new_name: &[u8], flags: u32| {
        let asked = fuse_rename2_in { newdir: FUSE_ROOT_ID, flags, padding: 0 };
        let names = [name, b"\0", new_name, b"\0"].concat();
        mount.ask((FUSE_ROOT_ID, 0), opcode::RENAME2, &[asked.as_bytes(), &names]).map(drop)
    };
    assert_eq!(rename(b"lower", b"other", WHITEOUT | 1), Err(errno::EEXIST));
    assert_eq!(rename(b"lower", b"other", WHITEOUT | 2), Err(errno::EINVAL), "an exchange leaves no name");
    assert_eq!(rename(b"lower", b"other", WHITEOUT), Ok(()));
    assert_eq!(tree.lookup(root, b"other").unwrap().file, file);
    assert!(tree.stat(other).is_err(), "it was replaced");
    let left = tree.lookup(root, b"lower").unwrap();
    assert_eq!((left.mode, left.device, left.links), (0o020_000, 0, 1));
    assert_eq!(rename(b"lower", b"elsewhere", WHITEOUT | 1), Ok(()), "a whiteout is a file as any other");
    assert_ne!(tree.lookup(root, b"lower").unwrap().file, left.file);
    tree.unlink(root, b"lower").unwrap();
    assert!(tree.lookup(root, b"lower").is_err());
}

/// Entries of a listing with their lookup answers, by name.
fn listed(answer: &[u8]) -> std::collections::BTreeMap<Vec<u8>, fuse_entry_out> {
    let mut rest = answer;
    let mut entries = std::collections::BTreeMap::new();
    while let Ok((told, more)) = fuse_entry_out::read_from_prefix(rest) {
        let (head, names) = fuse_dirent::read_from_prefix(more).unwrap();
        let name = names[..head.namelen as usize].to_vec();
        let record = size_of::<fuse_entry_out>() + size_of::<fuse_dirent>() + name.len();
        entries.insert(name, told);
        rest = &rest[record.next_multiple_of(8)..];
    }
    entries
}

fn list(files: &FileSystem, node: u64) -> std::collections::BTreeMap<Vec<u8>, fuse_entry_out> {
    let read = fuse_read_in { size: 65_536, ..Default::default() };
    let mut bytes = request(opcode::READDIRPLUS, &[read.as_bytes()], 0);
    bytes[16..24].copy_from_slice(&node.to_ne_bytes());
    match files.step(&bytes) {
        Step::Answer { answer: Ok(answer), .. } => listed(&answer),
        other => panic!("{other:?}"),
    }
}

/// A listing gives the kernel names as lookups do: names that it may not cache from one it may not
/// cache from the other.
#[test]
fn snapshots_that_were_listed_are_looked_up_at_each_walk() {
    let tree = live_tree();
    tree.make(tree.root(), b"file", &New { mode: 0o100_644, ..New::default() }).unwrap();
    tree.volume().create_snapshot("noon").unwrap();
    let root = tree.root();
    let files = FileSystem::new(Shown::new(View::Live(tree)).unwrap());
    let snapshots = Node { slot: SNAPSHOTS, file: root }.number().unwrap();
    let entries = list(&files, snapshots);
    let noon = &entries[&b"noon"[..]];
    assert_ne!(noon.nodeid, 0, "it is told as by a lookup");
    assert_eq!((noon.entry_valid, noon.entry_valid_nsec), (0, 0), "the name may be another snapshot's next");
    let times = Node { slot: TIMES, file: root }.number().unwrap();
    assert_eq!(
        files.shown.looked_into(),
        [snapshots, times],
        "it is taken back from the kernel when it goes"
    );
    assert!(list(&files, FUSE_ROOT_ID)[&b"file"[..]].entry_valid > 0, "what has one name for good is kept");
}

#[test]
fn snapshots_are_also_there_by_their_times() {
    let tree = live_tree();
    for name in ["first", "second"] {
        tree.volume().create_snapshot(name).unwrap();
    }
    let root = tree.root();
    let volume = tree.volume().clone();
    let files = FileSystem::new(Shown::new(View::Live(tree)).unwrap());
    let [snapshots, times] = [SNAPSHOTS, TIMES].map(|slot| Node { slot, file: root }.number().unwrap());
    let entries = list(&files, times);
    let names: Vec<&Vec<u8>> = entries.keys().filter(|name| name.len() > 2).collect();
    // Both are of one second, and have a name each.
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with(b"@GMT-") && name.len() == 24), "{names:?}");
    let by_name = list(&files, snapshots);
    assert!(!by_name.contains_key(&b"@GMT"[..]), "no listing shows it");
    let numbers: Vec<u64> = by_name.values().chain(entries.values()).map(|entry| entry.nodeid).collect();
    let known = numbers.iter().filter(|number| **number != 0);
    assert_eq!(known.clone().collect::<std::collections::HashSet<_>>().len(), known.count());
    assert_eq!(files.shown.gone(), Vec::<String>::new());
    let id = volume.snapshots()[0].id;
    volume.delete_snapshots(&[id]).unwrap();
    let mut gone = files.shown.gone();
    gone.sort_unstable();
    assert_eq!(gone.len(), 3, "the second one has the time of the first now: {gone:?}");
}

/// A mirror that shows one image, and then another one.
struct Moving {
    volume: Arc<Volume>,
    images: Mutex<Vec<cairn_volume::Image>>,
}

impl Follows for Moving {
    fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn image(&self) -> Result<Option<cairn_volume::Image>, cairn_files::TreeError> {
        Ok(self.images.lock().pop())
    }
}

/// The kernel keeps names for a day: those of an image that is not shown any more have to be taken
/// back, however it learnt of them.
#[test]
fn names_that_were_listed_are_taken_back_when_a_mirror_moves_on() {
    let tree = live_tree();
    let new = New { mode: 0o100_644, ..New::default() };
    let image = |name: &str| {
        tree.make(tree.root(), name.as_bytes(), &new).unwrap();
        let snapshot = tree.volume().create_snapshot(name).unwrap();
        tree.volume().image(Some(snapshot.id)).unwrap()
    };
    let (first, second) = (image("first"), image("second"));
    let follows = Moving { volume: tree.volume().clone(), images: Mutex::new(vec![second, first]) };
    let files = FileSystem::new(Shown::new(View::Following(Arc::new(follows))).unwrap());
    let names = || list(&files, FUSE_ROOT_ID).into_keys().filter(|name| name[0] != b'.').collect::<Vec<_>>();
    assert_eq!(names(), [b"first".to_vec()]);
    let forgotten = files.shown.follow().unwrap().unwrap();
    assert!(forgotten.contains(&b"first"[..]), "the kernel goes on with a file of the image before");
    assert_eq!(names(), [b"first".to_vec(), b"second".to_vec()]);
}

/// A device that calls a function before it reads, once.
struct Interrupting {
    device: MemoryDevice,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Interrupting {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [DeviceOperation]) {
        let before = self.before.lock().take();
        before.into_iter().for_each(|before| before());
        self.device.run(batch);
    }
}

/// Answers about the previous image, to a program from its root, after the kernel's names of it
/// were revoked.
#[test]
fn names_that_are_told_while_a_mirror_moves_on_are_not_kept() {
    let plus = fuse_read_in { size: 65_536, ..Default::default() };
    let requests: [(u32, &[u8]); 3] =
        [(opcode::LOOKUP, b"first\0"), (opcode::LOOKUP, b"second\0"), (opcode::READDIRPLUS, plus.as_bytes())];
    for (opcode, arguments) in requests {
        const BLOCKS: u64 = 8192;
        let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
        let device = Arc::new(Interrupting { device, before: Mutex::default() });
        let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        Volume::format(&*device, &options, &*clock).unwrap();
        let open = || {
            Volume::open(device.clone(), OpenOptions { cache_bytes: 8 << 20, clock: clock.clone() }).unwrap()
        };
        let made = Tree::open(open()).unwrap();
        let snapshots = ["first", "second"].map(|name| {
            made.make(made.root(), name.as_bytes(), &New { mode: 0o100_644, ..New::default() }).unwrap();
            made.volume().create_snapshot(name).unwrap().id
        });
        drop(made);
        // Nothing of it is in memory.
        let volume = open();
        let [first, second] = snapshots.map(|id| volume.image(Some(id)).unwrap());
        let follows = Moving { volume, images: Mutex::new(vec![second, first]) };
        let files = Arc::new(FileSystem::new(Shown::new(View::Following(Arc::new(follows))).unwrap()));
        let taken_back = Arc::new(Mutex::new(None));
        let (own, told) = (files.clone(), taken_back.clone());
        *device.before.lock() = Some(Box::new(move || *told.lock() = own.shown.follow().unwrap()));
        let mut bytes = request(opcode, &[arguments], 0);
        bytes[16..24].copy_from_slice(&FUSE_ROOT_ID.to_ne_bytes());
        let Step::Answer { answer: Ok(answer), .. } = files.step(&bytes) else { panic!("it is answered") };
        let taken_back = taken_back.lock().take().expect("the mirror moved on while the directory was read");
        let entries = match opcode {
            opcode::LOOKUP => {
                let name = arguments[..arguments.len() - 1].to_vec();
                [(name, fuse_entry_out::read_from_prefix(&answer).unwrap().0)].into()
            }
            _ => listed(&answer),
        };
        for (name, entry) in entries.into_iter().filter(|(name, _)| name[0] != b'.') {
            assert!(
                entry.entry_valid == 0 || taken_back.contains(&name),
                "{} stays what it was",
                name.escape_ascii()
            );
        }
    }
}

/// The kernel counts the answers that it gets, and forgets them later. It never forgets those in an
/// answer with an error, and the image would be kept for ever.
#[test]
fn listing_of_a_damaged_directory_has_what_is_before_the_damage_and_its_image_is_let_go() {
    const BLOCKS: u64 = 8192;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    Volume::format(&*device, &options, &*clock).unwrap();
    let open =
        || Volume::open(device.clone(), OpenOptions { cache_bytes: 8 << 20, clock: clock.clone() }).unwrap();
    let tree = Tree::open(open()).unwrap();
    let directory =
        tree.make_directory(tree.root(), b"d", &New { mode: 0o755, ..New::default() }).unwrap().file;
    let file = tree.make(directory, b"file", &New { mode: 0o100_644, ..New::default() }).unwrap().file;
    for number in 0..400 {
        tree.link(file, directory, format!("the name with number {number}").as_bytes()).unwrap();
    }
    let names = tree.read_directory(directory, 2, 1000).unwrap();
    tree.volume().create_snapshot("noon").unwrap();
    tree.volume().close().unwrap();
    drop(tree);
    // All blocks that have had this name.
    let lost = &names[300].name;
    for at in (0..device.geometry().length).step_by(4096) {
        let block = device.read(at, 4096).unwrap().to_vec();
        if block.windows(lost.len()).any(|bytes| bytes == lost) {
            device.write_from(at, &[7; 4096]).unwrap();
        }
    }
    let files = FileSystem::new(Shown::new(View::Live(Arc::new(Tree::open(open()).unwrap()))).unwrap());
    let ask = |node: u64, opcode: u32, parts: &[&[u8]]| {
        let mut bytes = request(opcode, parts, 0);
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        files.step(&bytes)
    };
    let lookup = |node: u64, name: &[u8]| match ask(node, opcode::LOOKUP, &[name]) {
        Step::Answer { answer: Ok(answer), .. } => {
            fuse_entry_out::read_from_prefix(&answer).unwrap().0.nodeid
        }
        other => panic!("{other:?}"),
    };
    let forget = |node: u64| {
        let once = fuse_forget_in { nlookup: 1 };
        assert!(matches!(ask(node, opcode::FORGET, &[once.as_bytes()]), Step::Silence));
    };
    let noon = lookup(lookup(FUSE_ROOT_ID, b".snapshot\0"), b"noon\0");
    let directory = lookup(noon, b"d\0");
    let whole = fuse_read_in { size: 1 << 20, ..Default::default() };
    let Step::Answer { answer, .. } = ask(directory, opcode::READDIRPLUS, &[whole.as_bytes()]) else {
        panic!("it is answered");
    };
    let entries = listed(&answer.expect("there are names before the damage"));
    assert!((100..300).contains(&entries.len()), "{} names", entries.len());
    // The kernel continues from the offset of the last one.
    let last = names.iter().rev().find(|name| entries.contains_key(&name.name)).unwrap();
    let rest = fuse_read_in { offset: last.cookie, ..whole };
    let Step::Answer { answer: Err(errno::EIO), .. } =
        ask(directory, opcode::READDIRPLUS, &[rest.as_bytes()])
    else {
        panic!("what is behind them is damaged");
    };
    entries.values().filter(|entry| entry.nodeid != 0).for_each(|entry| forget(entry.nodeid));
    forget(directory);
    let attributes = || match ask(noon, opcode::GETATTR, &[]) {
        Step::Answer { answer, .. } => answer.map(drop),
        other => panic!("{other:?}"),
    };
    assert_eq!(attributes(), Ok(()), "the kernel knows its root still");
    forget(noon);
    assert_eq!(attributes(), Err(errno::ESTALE), "nobody knows anything of that image");
}

/// A device that works until it has a bug.
struct Buggy {
    below: MemoryDevice,
    has_bug: AtomicBool,
}

impl Device for Buggy {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn run(&self, batch: &mut [DeviceOperation]) {
        assert!(!self.has_bug.load(Ordering::Acquire), "a bug");
        self.below.run(batch);
    }
}

/// The kernel's end of a mount is a socket that keeps messages apart.
#[test]
fn request_in_which_there_is_a_panic_is_answered_and_the_mount_goes_on() {
    const BLOCKS: u64 = 8192;
    let below = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
    let device = Arc::new(Buggy { below, has_bug: AtomicBool::new(false) });
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let open = || {
        let options = OpenOptions { cache_bytes: 8 << 20, clock: clock.clone() };
        Arc::new(Tree::open(Volume::open(device.clone(), options).unwrap()).unwrap())
    };
    let tree = open();
    let file = tree.make(tree.root(), b"file", &New { mode: 0o100_644, ..New::default() }).unwrap().file;
    tree.write(file, 0, &[1; 256 << 10]).unwrap();
    tree.volume().close().unwrap();
    drop(tree);
    // Nothing of it is in memory.
    let (tree, file) = (open(), number_of(file));

    let (kernel, ours) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_timeout(&kernel, Timeout::Recv, Some(Duration::from_secs(60))).unwrap();
    let ask = |node: u64, opcode: u32, parts: &[&[u8]]| {
        let mut bytes = request(opcode, parts, 0);
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        write(&kernel, &bytes).unwrap();
        let mut answer = [0; 8192];
        let length = loop {
            let length = read(&kernel, &mut answer).expect("it is answered");
            // An unasked message to the kernel has no number.
            if answer[8..16] != [0; 8] {
                break length;
            }
        };
        assert_eq!(answer[..4], (length as u32).to_ne_bytes());
        assert_eq!(answer[8..16], 7u64.to_ne_bytes(), "the request that was asked");
        -i32::from_ne_bytes(answer[4..8].try_into().unwrap())
    };
    let files = FileSystem::new(Shown::new(View::Live(tree)).unwrap());
    let started = std::thread::spawn(move || Connection::start(ours, files, "test", || {}).unwrap());
    let init =
        fuse_init_in { major: FUSE_KERNEL_VERSION, minor: FUSE_KERNEL_MINOR_VERSION, ..Default::default() };
    assert_eq!(ask(FUSE_ROOT_ID, opcode::INIT, &[init.as_bytes()]), 0);
    let connection = started.join().unwrap();

    let (writes, hole) = (fuse_open_in { flags: 2, ..Default::default() }, 4);
    assert_eq!(ask(file, opcode::OPEN, &[writes.as_bytes()]), 0);
    let ask_with_bug = |opcode: u32, arguments: &[u8]| {
        device.has_bug.store(true, Ordering::Release);
        let outcome = ask(file, opcode, &[arguments]);
        device.has_bug.store(false, Ordering::Release);
        outcome
    };
    let seek = fuse_lseek_in { whence: hole, ..Default::default() };
    assert_eq!(ask_with_bug(opcode::LSEEK, seek.as_bytes()), errno::EIO);
    // More often than there are threads.
    for block in 0..2 * THREADS as u64 {
        let wanted = fuse_read_in { offset: block * 4096, size: 4096, ..Default::default() };
        assert_eq!(ask_with_bug(opcode::READ, wanted.as_bytes()), errno::EIO);
        assert_eq!(ask(FUSE_ROOT_ID, opcode::GETATTR, &[&[0; 16]]), 0);
    }
    assert_eq!(ask(FUSE_ROOT_ID, opcode::DESTROY, &[]), 0);
    // The kernel wakes threads that wait for more when there is none; here they are woken again.
    for _ in 0..READING {
        write(&kernel, &request(opcode::DESTROY, &[], 0)).unwrap();
    }
    assert!(connection.wait_for_end(Duration::from_secs(60)), "all its threads were there to the end");
}

#[test]
fn attributes_of_the_directory_of_snapshots_are_kept_by_nobody() {
    let mount = Asked(Unmounted::new(View::Live(live_tree())).unwrap());
    let snapshots = mount.entry(FUSE_ROOT_ID, b".snapshot").unwrap();
    assert_eq!(snapshots.attr_valid, 0);
    assert_eq!(mount.attributes(snapshots.nodeid).attr_valid, 0);
    let answer = mount.ask((snapshots.nodeid, 0), opcode::STATX, &[]).unwrap();
    let told = fuse_statx_out::read_from_prefix(&answer).unwrap().0;
    assert_eq!(told.attr_valid, 0, "its times are those of the newest snapshot");
}

/// The kernel takes the length of a file from the reported number of copied bytes, and drops its
/// cache of those: it learns nothing of bytes copied before an error.
#[test]
fn copy_out_of_a_snapshot_that_finds_no_room_half_way_says_how_far_it_came() {
    const LENGTH: usize = 4 << 20;
    let tree = live_tree();
    let new = New { mode: 0o100_644, ..New::default() };
    let [source, filler, target] = ["source", "filler", "target"]
        .map(|name| tree.make(tree.root(), name.as_bytes(), &new).unwrap().file);
    let content: Vec<u8> = (0..LENGTH).map(|at| (at / 4096 + at) as u8).collect();
    tree.write(source, 0, &content).unwrap();
    tree.volume().create_snapshot("noon").unwrap();
    let mut filled = 0;
    while let Ok(count @ 1..) = tree.write(filler, filled, &[3; 64 << 10]) {
        filled += count as u64;
    }
    // Room for some of it.
    let less = SetStat { bytes: Some(filled - (5 << 19)), ..SetStat::default() };
    tree.set(filler, &less).unwrap();
    tree.volume().consistency_point().unwrap();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let snapshots = mount.entry(FUSE_ROOT_ID, b".snapshot").unwrap().nodeid;
    let noon = mount.entry(snapshots, b"noon").unwrap().nodeid;
    let old = mount.entry(noon, b"source").unwrap().nodeid;
    let copy =
        fuse_copy_file_range_in { nodeid_out: number_of(target), len: LENGTH as u64, ..Default::default() };
    let answer = mount.ask((old, 0), opcode::COPY_FILE_RANGE, &[copy.as_bytes()]);
    let copied = fuse_write_out::read_from_prefix(&answer.expect("a part of it is there")).unwrap().0.size;
    assert!((1..LENGTH).contains(&(copied as usize)), "{copied} bytes");
    assert_eq!(tree.stat(target).unwrap().bytes, u64::from(copied));
    assert!(tree.read(target, 0, LENGTH).unwrap() == content[..copied as usize]);
    let rest = fuse_copy_file_range_in { off_in: copied.into(), off_out: copied.into(), ..copy };
    let rest = mount.ask((old, 0), opcode::COPY_FILE_RANGE, &[rest.as_bytes()]);
    assert_eq!(rest, Err(28), "there is no room for the rest");
}
