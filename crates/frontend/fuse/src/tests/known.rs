//! The kernel's references to files, how long the files exist, and what the kernel may cache.

use super::*;

const NEW_FILE: New = New { mode: 0o100_644, uid: 0, gid: 0, device: 0, umask: 0 };

impl Asked {
    pub(super) fn forget(&self, nodes: &[(u64, u64)]) {
        let bytes = match nodes {
            [(node, nlookup)] => {
                let mut bytes =
                    request(opcode::FORGET, &[fuse_forget_in { nlookup: *nlookup }.as_bytes()], 0);
                bytes[16..24].copy_from_slice(&node.to_ne_bytes());
                bytes
            }
            nodes => {
                let head = fuse_batch_forget_in { count: nodes.len() as u32, dummy: 0 };
                let mut parts = vec![head.as_bytes().to_vec()];
                let one = |(nodeid, nlookup): &(u64, u64)| {
                    fuse_forget_one { nodeid: *nodeid, nlookup: *nlookup }.as_bytes().to_vec()
                };
                parts.extend(nodes.iter().map(one));
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                request(opcode::BATCH_FORGET, &parts, 0)
            }
        };
        assert!(self.0.answer(&bytes).is_none(), "nobody waits for it");
    }

    fn is_there(&self, node: u64) -> bool {
        self.ask((node, 0), opcode::GETATTR, &[]).is_ok()
    }
}

#[test]
fn file_without_a_name_is_there_until_the_kernel_has_forgotten_all_that_it_was_told_of_it() {
    let tree = live_tree();
    let root = tree.root();
    let [file, other, over] =
        ["file", "other", "over"].map(|name| tree.make(root, name.as_bytes(), &NEW_FILE).unwrap().file);
    let folder = tree.make_directory(root, b"folder", &New { mode: 0o755, ..NEW_FILE }).unwrap().file;
    tree.write(file, 0, b"content").unwrap();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let [number, other, over, folder] = [file, other, over, folder].map(number_of);
    for name in [&b"file"[..], b"file", b"other", b"over", b"folder"] {
        mount.entry(FUSE_ROOT_ID, name).unwrap();
    }
    // A listing counts as well, but for `.` and `..`; a handle by number, too, and another name.
    let plus = fuse_read_in { size: 65_536, ..Default::default() };
    let listed = mount.ask((FUSE_ROOT_ID, 0), opcode::READDIRPLUS, &[plus.as_bytes()]).unwrap();
    assert!(listed.len() > 6 * size_of::<fuse_entry_out>());
    mount.entry(number, b".").unwrap();
    let link = fuse_link_in { oldnodeid: number };
    mount.ask((FUSE_ROOT_ID, 0), opcode::LINK, &[link.as_bytes(), b"second\0"]).unwrap();
    for name in [&b"file\0"[..], b"second\0", b"other\0"] {
        mount.ask((FUSE_ROOT_ID, 0), opcode::UNLINK, &[name]).unwrap();
    }
    mount.ask((FUSE_ROOT_ID, 0), opcode::RMDIR, &[b"folder\0"]).unwrap();
    let replacing = tree.make(root, b"new", &NEW_FILE).unwrap().file;
    let rename = fuse_rename_in { newdir: FUSE_ROOT_ID };
    mount.ask((FUSE_ROOT_ID, 0), opcode::RENAME, &[rename.as_bytes(), b"new\0", b"over\0"]).unwrap();
    let all = [number, other, over, folder];
    assert!(all.iter().all(|node| mount.is_there(*node)), "the kernel knows them");
    assert_eq!(mount.attributes(number).attr.nlink, 0);
    // Opened and closed: by way of /proc it is opened again.
    for _ in 0..2 {
        mount.ask((number, 0), opcode::OPEN, &[fuse_open_in::default().as_bytes()]).unwrap();
        let read = fuse_read_in { size: 4096, ..Default::default() };
        assert_eq!(mount.ask((number, 0), opcode::READ, &[read.as_bytes()]).unwrap(), b"content");
        mount.ask((number, 0), opcode::RELEASE, &[fuse_release_in::default().as_bytes()]).unwrap();
    }
    assert!(mount.is_there(number));
    // Looked up twice, listed, found by number, linked.
    mount.forget(&[(number, 4)]);
    mount.forget(&[(other, 1), (over, 1), (folder, 1)]);
    assert!(all.iter().all(|node| mount.is_there(*node)), "it knows each of them once more");
    mount.forget(&[(number, 1), (other, 1), (over, 1), (folder, 1)]);
    assert!(!all.iter().any(|node| mount.is_there(*node)), "it has forgotten them");
    assert!(mount.is_there(number_of(replacing)), "what has a name is there");
    assert_eq!(tree.nameless().0, 0);
    tree.sync_all().unwrap();
    assert_eq!(check_tree(&tree.volume().image(None).unwrap()).unwrap(), []);
}

#[test]
fn files_that_the_kernel_knew_are_gone_with_their_mount() {
    let tree = live_tree();
    let file = tree.make(tree.root(), b"file", &NEW_FILE).unwrap().file;
    let files = FileSystem::new(Shown::new(View::Live(tree.clone())).unwrap());
    let lookup = |name: &[u8]| {
        let mut bytes = request(opcode::LOOKUP, &[name], 0);
        bytes[16..24].copy_from_slice(&FUSE_ROOT_ID.to_ne_bytes());
        assert!(matches!(files.step(&bytes), Step::Answer { answer: Ok(_), .. }));
    };
    lookup(b"file\0");
    tree.unlink(tree.root(), b"file").unwrap();
    assert!(tree.stat(file).is_ok());
    files.shown.forget_everything();
    assert!(tree.stat(file).is_err(), "its mount has ended");
}

#[test]
fn file_that_could_not_be_opened_after_all_is_not_known_to_the_kernel() {
    let tree = live_tree();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let unnamed = fuse_create_in { flags: 2, mode: 0o100_600, ..Default::default() };
    let made = mount.ask((FUSE_ROOT_ID, 0), opcode::TMPFILE, &[unnamed.as_bytes(), b"x\0"]).unwrap();
    let node = fuse_entry_out::read_from_prefix(&made).unwrap().0.nodeid;
    assert!(mount.is_there(node));
    mount.forget(&[(node, 1)]);
    assert!(!mount.is_there(node) && tree.nameless().0 == 0);
}

/// Overlayfs asks with rights of its own, and the kernel strips the contents of the request.
#[test]
fn request_of_a_file_system_above_that_asks_for_nothing_takes_rights_away() {
    let tree = live_tree();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let node = number_of(tree.make(tree.root(), b"file", &NEW_FILE).unwrap().file);
    let folder = tree.make_directory(tree.root(), b"folder", &New { mode: 0o755, ..NEW_FILE }).unwrap().file;
    let change = |node: u64, thread: u32, valid: u32, mode: u32| {
        let change = fuse_setattr_in { valid, mode, ..Default::default() };
        mount.ask((node, thread), opcode::SETATTR, &[change.as_bytes()]).unwrap();
        mount.attributes(node).attr.mode & 0o7777
    };
    let own = std::process::id();
    for (before, after) in [(0o6777, 0o777), (0o4755, 0o755), (0o2755, 0o755), (0o755, 0o755)] {
        for valid in [0, fattr::FH, fattr::FH | fattr::LOCKOWNER] {
            change(node, own, fattr::MODE, before);
            assert_eq!(change(node, own, valid, 0), after, "{before:o}");
        }
        // For a new length the kernel passes no rights, and the calling thread is examined.
        change(node, own, fattr::MODE, before);
        assert_eq!(change(node, 0, fattr::SIZE, 0), after, "{before:o}");
    }
    if rustix::process::geteuid().is_root() {
        change(node, own, fattr::MODE, 0o6777);
        assert_eq!(change(node, own, fattr::SIZE, 0), 0o6777, "root may");
    }
    change(number_of(folder), own, fattr::MODE, 0o2777);
    assert_eq!(change(number_of(folder), 0, 0, 0), 0o777, "an access control list of somebody else's");
}

#[test]
fn writes_are_not_kept_back_where_they_might_not_fit() {
    const BLOCKS: u64 = (3 << 30) / 4096;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let volume = Volume::open(device, OpenOptions { cache_bytes: 8 << 20, clock }).unwrap();
    let large = Arc::new(Tree::open(volume).unwrap());
    let flags_of = |tree: &Arc<Tree>, directory: FileId, name: &[u8]| {
        let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
        let node = number_of(tree.make(directory, name, &NEW_FILE).unwrap().file);
        [0, 1, 2].map(|flags| {
            let open = fuse_open_in { flags, open_flags: 0 };
            let answer = mount.ask((node, 0), opcode::OPEN, &[open.as_bytes()]).unwrap();
            fuse_open_out::read_from_bytes(&answer).unwrap().open_flags
        })
    };
    const KEPT: [u32; 3] = [FOPEN_KEEP_CACHE; 3];
    const DIRECT: [u32; 3] = [FOPEN_KEEP_CACHE, FOPEN_DIRECT_IO, FOPEN_DIRECT_IO];
    let small = live_tree();
    assert_eq!(flags_of(&small, small.root(), b"file"), DIRECT, "a volume of 32 MiB");
    assert_eq!(flags_of(&large, large.root(), b"file"), KEPT);
    let limited = large.make_directory(large.root(), b"d", &New { mode: 0o755, ..NEW_FILE }).unwrap().file;
    let limit = |bytes: u64| {
        large.set_quota(limited, QuotaLimits { bytes: Some(bytes), files: Some(100) }).unwrap();
    };
    limit(2 << 30);
    assert_eq!(flags_of(&large, limited, b"a"), KEPT);
    limit(20 << 20);
    assert_eq!(flags_of(&large, limited, b"b"), DIRECT, "a quota of 20 MiB");
}

/// A file that was opened while there was room, and is written until there is none.
#[test]
fn kept_back_write_that_fails_is_no_input_output_error_and_is_shown_no_longer() {
    let tree = live_tree();
    let limited = tree.make_directory(tree.root(), b"d", &New { mode: 0o755, ..NEW_FILE }).unwrap().file;
    tree.set_quota(limited, QuotaLimits { bytes: Some(64 << 10), files: None }).unwrap();
    let file = tree.make(limited, b"file", &NEW_FILE).unwrap().file;
    let node = number_of(file);
    let files = FileSystem::new(Shown::new(View::Live(tree.clone())).unwrap());
    let step = |opcode: u32, parts: &[&[u8]]| {
        let mut bytes = request(opcode, parts, 0);
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        files.step(&bytes)
    };
    let data = vec![5; 128 << 10];
    let write = |write_flags: u32| {
        let write = fuse_write_in { size: data.len() as u32, write_flags, ..Default::default() };
        step(opcode::WRITE, &[write.as_bytes(), &data])
    };
    let open = || step(opcode::OPEN, &[fuse_open_in { flags: 1, open_flags: 0 }.as_bytes()]);
    let close = || step(opcode::RELEASE, &[fuse_release_in { flags: 1, ..Default::default() }.as_bytes()]);
    open();
    open();
    let Step::Answer { answer: Err(122), .. } = write(0) else { panic!("the program is told of its quota") };
    // The kernel waits for writes of other programs before it forgets: this server answers them.
    assert!(matches!(write(FUSE_WRITE_CACHE), Step::Answer { answer: Err(28), .. }), "it is open");
    assert!(matches!(close(), Step::Answer { answer: Ok(_), .. }), "it is open still");
    assert!(matches!(close(), Step::BeforeForgetting { answer: Ok(_), .. }));
    open();
    assert!(matches!(close(), Step::Answer { answer: Ok(_), .. }));
    // Writes through mapped memory may come after the last close.
    assert!(matches!(write(FUSE_WRITE_CACHE), Step::BeforeForgetting { .. }));
}

/// A program removes one file and makes another one, and the kernel forgets the first concurrently.
#[test]
fn room_of_a_file_that_is_being_forgotten_is_waited_for() {
    let tree = live_tree();
    let limited = tree.make_directory(tree.root(), b"d", &New { mode: 0o755, ..NEW_FILE }).unwrap().file;
    tree.set_quota(limited, QuotaLimits { bytes: None, files: Some(2) }).unwrap();
    let mount = Asked(Unmounted::new(View::Live(tree.clone())).unwrap());
    let mknod = fuse_mknod_in { mode: 0o100_644, ..Default::default() };
    let make = |name: &[u8]| {
        let made = mount.ask((number_of(limited), 0), opcode::MKNOD, &[mknod.as_bytes(), name])?;
        Ok::<_, i32>(fuse_entry_out::read_from_prefix(&made).unwrap().0.nodeid)
    };
    let first = make(b"first\0").unwrap();
    assert_eq!(make(b"second\0"), Err(122));
    mount.ask((number_of(limited), 0), opcode::UNLINK, &[b"first\0"]).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| make(b"second\0"));
        mount.forget(&[(first, 1)]);
        assert!(second.join().unwrap().is_ok(), "there is room for it");
    });
}
