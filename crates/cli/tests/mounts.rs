//! `cairn mount`, and features for files: snapshots to look into, differences, BSD dumps, image
//! dumps, mirrors. The kernel and Linux `restore` are the other side.
//!
//! Mounting needs root here; without it these tests say that they are skipped.

mod running;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_device::{Device, FileDevice, Operation, Segments};
use running::{Running, SmallDisk, cairn, can_mount, wait_until};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags, XattrFlags};

const ECONNABORTED: i32 = 103;
const ECANCELED: i32 = 125;
const ENOTCONN: i32 = 107;
const EROFS: i32 = 30;

/// A server with a volume that is mounted; unmounted again at the end, whatever comes.
struct Mounted {
    server: Running,
    point: PathBuf,
    others: Vec<PathBuf>,
}

impl Mounted {
    fn new(scratch: &Path) -> Self {
        let server = Running::start_with(scratch, "data", &["--mirror", "off"]);
        server.good(&["volume", "create", "vol0", "--size", "2G"]);
        let point = scratch.join("mnt");
        fs::create_dir(&point).unwrap();
        let mounted = Self { server, point, others: Vec::new() };
        mounted.server.good(&["mount", "vol0", mounted.point.to_str().unwrap()]);
        mounted
    }

    fn path(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// A directory of its own for another mount.
    fn other(&mut self, scratch: &Path, name: &str) -> PathBuf {
        let path = scratch.join(name);
        fs::create_dir(&path).unwrap();
        self.others.push(path.clone());
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for point in self.others.iter().chain([&self.point]) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn write_and_sync(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// The properties of a tree to compare, by path.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let below = path.strip_prefix(root).unwrap().to_owned();
        let mut told = format!("{:o} {}:{} ", meta.mode(), meta.uid(), meta.gid());
        if meta.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                let entry = entry.unwrap();
                // The state of the two restores for the next increment.
                if entry.file_name() != "restoresymtable" && entry.file_name() != ".cairn-restore.json" {
                    waiting.push(entry.path());
                }
            }
        } else {
            told += &format!("links {} ", meta.nlink());
        }
        if meta.is_symlink() {
            told += &format!("-> {:?}", fs::read_link(&path).unwrap());
        } else {
            // The root's changes as things are put into it.
            if !below.as_os_str().is_empty() {
                told += &format!("{}.{:06} ", meta.mtime(), meta.mtime_nsec() / 1000);
            }
            told += &format!("{} ", meta.rdev());
            let mut names = vec![0; 4096];
            let length = rustix::fs::listxattr(&path, &mut names).unwrap_or(0);
            let mut names: Vec<_> =
                names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
            names.sort_unstable();
            for name in names {
                let mut value = vec![0; 65_536];
                let length =
                    rustix::fs::getxattr(&path, std::ffi::OsStr::from_bytes(name), &mut value).unwrap();
                told += &format!("{}={:?} ", String::from_utf8_lossy(name), &value[..length]);
            }
        }
        if meta.is_file() {
            told += &format!("{} bytes, {:x}", meta.len(), content(&path, meta.len()));
        }
        found.insert(below, told);
    }
    found
}

/// A checksum of the content: FNV-1a of the nonzero blocks and their offsets. Holes are not read.
fn content(path: &Path, length: u64) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x100_0000_01b3);
    let file = File::open(path).unwrap();
    let (mut sum, mut at, mut block) = (0xcbf2_9ce4_8422_2325, 0, [0; 4096]);
    while at < length {
        let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) else { break };
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).unwrap();
        at = start - start % 4096;
        while at < end {
            let count = (length - at).min(4096) as usize;
            file.read_exact_at(&mut block[..count], at).unwrap();
            if block[..count].iter().any(|byte| *byte != 0) {
                sum = block[..count].iter().fold(mix(sum, at), |sum, byte| mix(sum, u64::from(*byte)));
            }
            at += 4096;
        }
    }
    sum
}

fn same(a: &Path, b: &Path) {
    let (a, b) = (tree(a), tree(b));
    for (path, told) in &a {
        assert_eq!(Some(told), b.get(path), "{}", path.display());
    }
    assert_eq!(a.len(), b.len(), "{:?}", b.keys().filter(|path| !a.contains_key(*path)).collect::<Vec<_>>());
}

fn differ(a: &Path, b: &Path) -> bool {
    tree(a) != tree(b)
}

/// A tree with everything that files can be.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("home/ann/deep/er")).unwrap();
    fs::write(root.join("home/ann/notes"), "first").unwrap();
    fs::write(root.join("home/ann/deep/er/empty"), "").unwrap();
    fs::hard_link(root.join("home/ann/notes"), root.join("home/other name")).unwrap();
    symlink("ann/notes", root.join("home/link")).unwrap();
    symlink("x".repeat(900), root.join("home/long link")).unwrap();
    fs::write(root.join(format!("home/{}", "n".repeat(250))), "long name").unwrap();
    fs::write(root.join("home/odd \u{1}\n\\ name \u{fc}"), "odd").unwrap();
    let sparse = File::create(root.join("home/sparse")).unwrap();
    sparse.write_all_at(b"begin", 1 << 20).unwrap();
    sparse.write_all_at(b"end", (5 << 30) + 7).unwrap();
    let large: Vec<u8> = (0..3_000_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(root.join("home/large"), &large).unwrap();
    let root_fd = File::open(root).unwrap();
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(&root_fd, name, kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("pipe", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("device", FileType::BlockDevice, rustix::fs::makedev(259, 70_001));
    fs::set_permissions(root.join("home/ann/notes"), fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(root.join("home/ann"), Some(1234), Some(70_000)).unwrap();
    for (name, value) in [("user.color", &b"blue"[..]), ("user.empty", b""), ("trusted.x", b"secret")] {
        rustix::fs::setxattr(root.join("home/large"), name, value, XattrFlags::empty()).unwrap();
    }
    fs::create_dir(root.join("crowd")).unwrap();
    for n in 0..400 {
        fs::write(root.join(format!("crowd/a name that is not short, number {n}")), format!("{n}")).unwrap();
    }
}

#[test]
fn files_live_in_a_mount_and_snapshots_show_them_as_they_were() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    fill(&mounted.point);
    let copy = scratch.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fill(&copy);
    // Times differ; everything else is as in the machine's own file system.
    let strip = |path: &Path| -> Vec<(PathBuf, String)> {
        let without =
            |told: String| told.split(' ').filter(|part| !part.contains('.')).collect::<Vec<_>>().join(" ");
        let found = tree(path).into_iter().filter(|(path, _)| !path.as_os_str().is_empty());
        found.map(|(path, told)| (path, without(told))).collect()
    };
    assert_eq!(strip(&mounted.point), strip(&copy));

    // Writes to a file that is still open are in the snapshot, though the kernel had only cached
    // them.
    let mut open = File::create(mounted.path("open")).unwrap();
    open.write_all(b"written, not closed").unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@s1"]);
    let before = tree(&mounted.path(".snapshot/s1"));
    assert_eq!(mounted.read(".snapshot/s1/open"), "written, not closed");
    mounted.write("home/ann/notes", "second");
    fs::remove_file(mounted.path("pipe")).unwrap();
    fs::rename(mounted.path("crowd"), mounted.path("home/moved")).unwrap();
    mounted.write("home/new", "new");
    drop(open);
    assert_eq!(tree(&mounted.path(".snapshot/s1")), before);
    assert_eq!(mounted.read(".snapshot/s1/home/ann/notes"), "first");
    assert_eq!(mounted.read("home/other name"), "second");
    // In any directory, in its state then; not in a listing, and read-only.
    assert_eq!(mounted.read("home/ann/.snapshot/s1/notes"), "first");
    assert!(!tree(&mounted.point).keys().any(|path| path.starts_with(".snapshot")));
    let refused = fs::write(mounted.path(".snapshot/s1/home/new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EROFS));
    assert!(fs::create_dir(mounted.path("home/.snapshot")).is_err());
    let numbers = |path: &str| fs::metadata(mounted.path(path)).unwrap().ino();
    assert_ne!(numbers("home/ann/notes"), numbers(".snapshot/s1/home/ann/notes"), "cp must see two files");
    fs::copy(mounted.path(".snapshot/s1/home/ann/notes"), mounted.path("home/ann/notes")).unwrap();
    assert_eq!(mounted.read("home/ann/notes"), "first");

    mounted.server.good(&["snapshot", "create", "vol0@s2"]);
    let listed: Vec<_> = fs::read_dir(mounted.path(".snapshot"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, ["s1", "s2"]);
    let told = mounted.server.good(&["snapshot", "diff", "vol0", "s1", "s2"]);
    // A file with two names is reported under one of them.
    let changed = ["changed   /home/ann/notes", "changed   /home/other name"];
    assert!(told.lines().any(|told| changed.contains(&told)), "{told}");
    for line in ["deleted   /pipe", "renamed   /crowd/ -> /home/moved/", "created   /home/new"] {
        assert!(told.lines().any(|told| told == line), "{line} is missing in {told}");
    }
    assert!(!told.contains("number 17"), "what moved with its directory did not change: {told}");
    assert_eq!(mounted.server.good(&["snapshot", "diff", "vol0", "s2"]), "", "nothing was written since");
    let open = File::options().write(true).open(mounted.path("home/new")).unwrap();
    open.write_all_at(b"what the kernel still holds", 0).unwrap();
    assert_eq!(mounted.server.good(&["snapshot", "diff", "vol0", "s2"]), "changed   /home/new\n");
    drop(open);

    let past = mounted.other(scratch.path(), "past");
    mounted.server.good(&["mount", "vol0@s1", past.to_str().unwrap()]);
    assert_eq!(tree(&past), before);
    assert_eq!(fs::write(past.join("x"), "x").unwrap_err().raw_os_error(), Some(EROFS));
    mounted.server.bad(11, "busy", &["snapshot", "delete", "vol0@s1", "--yes"]);
    // The next start mounts it by its name.
    mounted.server.bad(11, "busy", &["snapshot", "rename", "vol0@s1", "s3"]);
    mounted.server.bad(11, "busy", &["volume", "delete", "vol0", "--yes"]);
    mounted.server.good(&["unmount", past.to_str().unwrap()]);
    mounted.server.good(&["snapshot", "delete", "vol0@s1", "--yes"]);
    wait_until("a deleted snapshot is still shown", || !mounted.path(".snapshot/s1").exists());

    // A second directory shows the same, with one cache and one set of locks.
    let again = mounted.other(scratch.path(), "again");
    mounted.server.good(&["mount", "vol0", again.to_str().unwrap()]);
    mounted.write("home/here", "seen there");
    assert_eq!(fs::read_to_string(again.join("home/here")).unwrap(), "seen there");
    assert_eq!(mounted.server.json(&["mount", "list"]).as_array().unwrap().len(), 2);
    mounted.server.good(&["unmount", again.to_str().unwrap()]);
    let busy = File::open(mounted.path("home/here")).unwrap();
    mounted.server.bad(11, "busy", &["unmount", mounted.point.to_str().unwrap()]);
    drop(busy);
    mounted.server.good(&["unmount", mounted.point.to_str().unwrap()]);
    assert!(!mounted.path("home").exists());
    assert_eq!(mounted.server.good(&["volume", "check", "vol0", "--deep"]).lines().count(), 1);
}

/// A listing opens the snapshots in it. The kernel, which gets only the numbers of most, sends no
/// forget requests for them.
#[test]
fn snapshots_that_were_only_listed_hold_no_blocks_once_they_are_deleted() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    const COUNT: usize = 48;
    for n in 0..COUNT {
        fs::write(mounted.path("file"), vec![n as u8 + 1; 1 << 20]).unwrap();
        mounted.server.good(&["snapshot", "create", &format!("vol0@s{n}")]);
    }
    fs::remove_file(mounted.path("file")).unwrap();
    let used = || {
        let list = mounted.server.json(&["volume", "list"]);
        list[0]["used_bytes"].as_u64().unwrap()
    };
    // Like a program that reads a few names at a time: with the first the kernel requests more.
    let directory = File::open(mounted.path(".snapshot")).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let mut names = rustix::fs::RawDir::new(&directory, &mut buffer);
    let mut listed = 0;
    while let Some(entry) = names.next() {
        listed += usize::from(entry.unwrap().file_name().to_bytes().starts_with(b"s"));
    }
    assert_eq!(listed, COUNT);
    drop(directory);
    let before = used();
    for n in COUNT - 8..COUNT {
        mounted.server.good(&["snapshot", "delete", &format!("vol0@s{n}"), "--yes"]);
    }
    wait_until("what was deleted holds its blocks", || used() + (7 << 20) < before);

    // Also one that was created, listed and deleted before the next check for deleted ones.
    fs::write(mounted.path("file"), vec![99; 8 << 20]).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@brief"]);
    fs::remove_file(mounted.path("file")).unwrap();
    let listed = fs::read_dir(mounted.path(".snapshot")).unwrap().count();
    assert_eq!(listed, COUNT - 8 + 1);
    let before = used();
    mounted.server.good(&["snapshot", "delete", "vol0@brief", "--yes"]);
    wait_until("what was deleted at once holds its blocks", || used() + (7 << 20) < before);
}

#[test]
fn files_without_names_get_one_or_are_gone_with_who_has_them_open() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let make = |flags: OFlags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags;
        File::from(rustix::fs::open(&mounted.point, flags, Mode::from_raw_mode(0o640)).unwrap())
    };
    let link = |file: &File, name: &str| {
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let path = mounted.path(name);
        rustix::fs::linkat(rustix::fs::CWD, own, rustix::fs::CWD, path, AtFlags::SYMLINK_FOLLOW)
    };
    let file = make(OFlags::empty());
    file.write_all_at(b"content", 4090).unwrap();
    let stat = file.metadata().unwrap();
    assert_eq!((stat.nlink(), stat.mode() & 0o7777, stat.len()), (0, 0o640, 4097));
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 0, "nobody finds it");
    link(&file, "named").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(mounted.path("named")).unwrap()[4090..], *b"content");

    // A file opened with `O_EXCL` never gets a name, and a removed last name does not come back.
    let private = make(OFlags::EXCL);
    assert!(link(&private, "private").is_err());
    let lost = File::open(mounted.path("named")).unwrap();
    fs::remove_file(mounted.path("named")).unwrap();
    assert!(link(&lost, "again").is_err());
    drop((private, lost));
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 0);
}

#[test]
fn what_programs_ask_of_open_files_is_right() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let path = mounted.path("file");
    let options = File::options().read(true).write(true).create(true).truncate(false).clone();
    let mut file = options.open(&path).unwrap();

    // Holes are also found in data that the kernel has not sent yet.
    file.write_all_at(b"data", 1 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap(), 1 << 20);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 0);
    assert!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(2 << 20)).is_err());
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    file.write_all_at(&[7; 16_384], 0).unwrap();
    rustix::fs::fallocate(&file, flags, 4096, 8192).unwrap();
    let mut bytes = vec![1; 16_384];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[4096..12_288].iter().all(|byte| *byte == 0) && bytes[12_288] == 7);

    // A deleted file exists as long as it is open.
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    file.write_all_at(b"still here", 0).unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = [0; 10];
    file.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"still here");
    drop(file);

    // The time of birth stays, whatever changes.
    mounted.write("born", "1");
    let born = |name: &str| {
        let found =
            rustix::fs::statx(rustix::fs::CWD, mounted.path(name), AtFlags::empty(), StatxFlags::BTIME)
                .unwrap();
        assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0, "there is a time of birth");
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    };
    let first = born("born");
    assert!(first.0 > 1_700_000_000);
    mounted.write("born", "2");
    fs::rename(mounted.path("born"), mounted.path("later")).unwrap();
    assert_eq!(born("later"), first);
    // Nothing was modified before it was born, whether the kernel gives the time or the server.
    for n in 0..20 {
        let name = format!("young {n}");
        mounted.write(&name, "1");
        let found = fs::metadata(mounted.path(&name)).unwrap();
        let born = born(&name);
        assert!((found.mtime(), found.mtime_nsec()) >= (born.0, i64::from(born.1)));
    }

    // A write takes the rights away that a file gives.
    let tool = mounted.path("tool");
    fs::write(&tool, "x").unwrap();
    std::os::unix::fs::chown(&tool, Some(1234), Some(1234)).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o6777)).unwrap();
    let said = Command::new("setpriv")
        .args(["--reuid=4321", "--regid=4321", "--clear-groups", "sh", "-c"])
        .arg(format!("echo more >> {}", tool.display()))
        .output()
        .unwrap();
    if said.status.success() {
        assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o777);
    }
    // So does one past the kernel's cache, and any other change of content; earlier answers of the
    // kernel no longer count.
    let name = tool.display();
    for change in [
        format!("dd if=/dev/zero of={name} bs=4096 count=1 conv=notrunc oflag=direct"),
        format!("fallocate -l 65536 {name}"),
        format!("fallocate -p -o 4096 -l 8192 {name}"),
    ] {
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o6777);
        let as_another = ["--reuid=4321", "--regid=4321", "--clear-groups", "sh", "-c", &change];
        let said = Command::new("setpriv").args(as_another).output().unwrap();
        if said.status.success() {
            assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o777, "{change}");
        }
    }
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o6777)).unwrap();
    let file = File::options().write(true).open(&tool).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 131_072).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o6777, "root may");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(&tool, Some(99), None).unwrap();
    assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o755);

    // Locks of one program are seen by another.
    let lock = File::create(mounted.path("lock")).unwrap();
    lock.lock().unwrap();
    assert!(File::open(mounted.path("lock")).unwrap().try_lock().is_err());
    drop(lock);
    // A program that another test starts just now has it open as well, from its fork until its
    // exec.
    wait_until("the lock is gone with its file", || {
        File::open(mounted.path("lock")).unwrap().try_lock().is_ok()
    });

    // Names in a listing that is being read while others come and go.
    let crowd = mounted.path("crowd");
    fs::create_dir(&crowd).unwrap();
    for n in 0..2000 {
        File::create(crowd.join(format!("stays {n}"))).unwrap();
    }
    let mut seen = std::collections::BTreeMap::new();
    for (index, entry) in fs::read_dir(&crowd).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *seen.entry(name).or_insert(0) += 1;
        if index % 10 == 0 {
            File::create(crowd.join(format!("comes {index}"))).unwrap();
        }
    }
    assert!((0..2000).all(|n| seen.get(&format!("stays {n}")) == Some(&1)));
    fs::remove_dir_all(&crowd).unwrap();
}

/// Bytes that a reader loads into the kernel's cache during a direct write are old: they must not
/// stay there after the write. The kernel drops them if a program waits for its write, and keeps
/// them if the write is asynchronous.
#[test]
fn nothing_old_stays_in_the_cache_beside_writes_that_go_past_it() {
    const BYTES: usize = 1 << 20;
    const PIECE: usize = 64 << 10;
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let path = mounted.path("file");
    let device = FileDevice::create(&path, BYTES as u64).unwrap();
    if !device.is_direct() || !device.uses_rings() {
        eprintln!("skipped: no io_uring here");
        return;
    }
    let file = File::open(&path).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; BYTES];
                while !is_over.load(Ordering::Acquire) {
                    file.read_exact_at(&mut bytes, 0).unwrap();
                }
            });
        }
        let old = (1..=500u32).find(|turn| {
            let data = Segments::copy_of(&[*turn as u8; PIECE]);
            // Not beside one another: that would be one request, for which its thread waits.
            let places = || (0..BYTES).step_by(2 * PIECE);
            let write = |offset| Operation::write(offset as u64, data.clone());
            let mut batch: Vec<Operation> = places().map(write).collect();
            device.run(&mut batch);
            batch.into_iter().for_each(|write| write.into_outcome().unwrap());
            let mut seen = vec![0; BYTES];
            file.read_exact_at(&mut seen, 0).unwrap();
            places().any(|at| seen[at..at + PIECE].iter().any(|byte| *byte != *turn as u8))
        });
        is_over.store(true, Ordering::Release);
        assert_eq!(old, None, "the first write after which older bytes were read");
    });
}

/// Containers store their changes in an overlay: it accepts a file system as its upper layer only
/// if that supports renames that leave a whiteout.
#[test]
fn overlay_keeps_what_is_changed_in_it_in_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    for folder in ["lower/etc", "upper", "work"] {
        fs::create_dir_all(mounted.path(folder)).unwrap();
    }
    for name in ["kept", "renamed", "removed"] {
        mounted.write(&format!("lower/etc/{name}"), name);
    }
    let merged = mounted.other(scratch.path(), "merged");
    let at = |folder: &str| mounted.path(folder).display().to_string();
    let layers = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let layers = std::ffi::CString::new(layers).unwrap();
    let overlay = || {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("overlay", &merged, "overlay", flags, Some(layers.as_c_str()))
    };
    match overlay() {
        Err(rustix::io::Errno::NODEV) => return eprintln!("skipped: this kernel has no overlays"),
        outcome => outcome.expect("an overlay takes a mount"),
    }
    fs::rename(merged.join("etc/renamed"), merged.join("etc/moved")).unwrap();
    fs::write(merged.join("etc/renamed"), "anew").unwrap();
    fs::rename(merged.join("etc/renamed"), merged.join("etc/moved")).unwrap();
    fs::remove_file(merged.join("etc/removed")).unwrap();
    let is_as_left = || {
        let names: Vec<_> =
            fs::read_dir(merged.join("etc")).unwrap().map(|one| one.unwrap().file_name()).collect();
        let text = |name: &str| fs::read_to_string(merged.join("etc").join(name)).unwrap();
        assert_eq!((names.len(), &*text("kept"), &*text("moved")), (2, "kept", "anew"), "{names:?}");
    };
    is_as_left();
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(mounted.read("lower/etc/renamed"), "renamed", "what is below stays");
    overlay().unwrap();
    is_as_left();
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty()).unwrap();
}

#[test]
fn mounts_that_come_and_go_leave_each_other_alone() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    let points = ["a", "b"].map(|name| mounted.other(scratch.path(), name));
    for name in ["vol1", "vol2"] {
        mounted.server.good(&["volume", "create", name, "--size", "100M"]);
    }
    std::thread::scope(|scope| {
        for (volume, point) in ["vol1", "vol2"].into_iter().zip(&points) {
            let server = &mounted.server;
            scope.spawn(move || {
                for turn in 0..50 {
                    server.good(&["mount", volume, point.to_str().unwrap()]);
                    fs::write(point.join("file"), turn.to_string()).unwrap();
                    // A child that the other thread has just made has the file for a moment, too.
                    let gone = || rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).is_ok();
                    wait_until("nobody uses the mount", gone);
                    let list = || server.good(&["mount", "list"]);
                    wait_until("what was unmounted is listed no more", || {
                        !list().contains(point.to_str().unwrap())
                    });
                }
            });
        }
    });
    mounted.write("file", "still there");
}

#[test]
fn deleting_files_leaves_no_error_to_who_syncs() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let root = File::open(&mounted.point).unwrap();
    for number in 0..20 {
        mounted.write(&format!("f{number}"), "text");
    }
    rustix::fs::syncfs(&root).unwrap();
    for number in 0..20 {
        fs::remove_file(mounted.path(&format!("f{number}"))).unwrap();
    }
    // The times of the deletions arrive now, for removed files.
    rustix::fs::syncfs(&root).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@after"]);
}

/// Each answer needs the kernel's cached data of a file, and a thread to receive it: more at once
/// than a mount has threads on the processor of all these requests.
#[test]
fn many_at_once_are_told_where_the_data_ends_that_the_kernel_still_holds() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let script = r#"
import os, sys, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
wrong = []
def work(number):
    file = os.open(f"{sys.argv[1]}/many {number}", os.O_RDWR | os.O_CREAT)
    for at in range(0, 100 * 8192, 8192):
        os.pwrite(file, b"x" * 4096, at)
        if os.lseek(file, at, os.SEEK_HOLE) != at + 4096:
            wrong.append((number, at))
threads = [threading.Thread(target=work, args=[number]) for number in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(len(wrong) > 0)
"#;
    let mut asking = Command::new("python3").args(["-c", script]).arg(mounted.path("")).spawn().unwrap();
    let deadline = Instant::now() + running::PATIENCE;
    let ended = loop {
        match asking.try_wait().unwrap() {
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            ended => break ended,
        }
    };
    if ended.is_none() {
        // Ends the connection, so that no thread waits for ever.
        let _ = rustix::mount::unmount(&mounted.point, rustix::mount::UnmountFlags::FORCE);
        asking.wait().unwrap();
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Whether the mount of a killed server has ended. Requests just before the kernel's release are
/// aborted.
fn has_ended(directory: &Path) -> bool {
    let gone = fs::metadata(directory).unwrap_err().raw_os_error().unwrap();
    assert!(matches!(gone, ENOTCONN | ECONNABORTED | ECANCELED), "{gone}");
    gone == ENOTCONN
}

#[test]
fn killed_server_leaves_errors_and_comes_back_with_what_was_synced() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    for round in 0..3 {
        let directory = mounted.path(&format!("round {round}"));
        fs::create_dir(&directory).unwrap();
        for n in 0..20 {
            let path = directory.join(format!("{n}"));
            write_and_sync(&path, format!("{round} {n} {}", "x".repeat(n * 700)).as_bytes());
            // Besides, data without a promise of durability.
            fs::write(directory.join(format!("unsynced {n}")), vec![1; 100_000]).unwrap();
        }
        fs::rename(directory.join("3"), directory.join("three")).unwrap();
        File::open(&directory).unwrap().sync_all().unwrap();
        let open = File::open(directory.join("5")).unwrap();
        mounted.server.kill();
        wait_until("the mount has not ended", || has_ended(&directory));
        let mut byte = [0];
        assert!(open.read_at(&mut byte, 0).is_err() || byte[0] != 0, "an open file fails or has its content");
        mounted.server.restart();
        let listed = mounted.server.json(&["mount", "list"]);
        assert_eq!(listed[0]["problem"], serde_json::Value::Null, "{listed}");
        for earlier in 0..=round {
            for n in 0..20 {
                let name = if n == 3 { "three".to_owned() } else { n.to_string() };
                let path = mounted.path(&format!("round {earlier}/{name}"));
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert_eq!(text, format!("{earlier} {n} {}", "x".repeat(n * 700)));
            }
            assert!(!mounted.path(&format!("round {earlier}/3")).exists());
        }
        assert_eq!(mounted.server.good(&["volume", "check", "vol0"]).lines().count(), 1);
    }
    // SIGTERM removes the mount, after all writes; the next start restores it.
    mounted.write("last", "not synced, but in order");
    assert_eq!(mounted.server.terminate(), 0);
    assert!(fs::read_dir(&mounted.point).unwrap().next().is_none());
    mounted.server.restart();
    assert_eq!(mounted.read("last"), "not synced, but in order");
    // Removed by the system's own programs it is forgotten.
    rustix::mount::unmount(&mounted.point, rustix::mount::UnmountFlags::empty()).unwrap();
    wait_until("a mount that is gone is listed", || {
        mounted.server.json(&["mount", "list"]).as_array().unwrap().is_empty()
    });
}

/// A snapshot first makes the kernel write back its cache of a mount, which waits for the server. A
/// thread in that wait during a kill would prevent the exit of the server, and of all programs in
/// the mount.
#[test]
fn server_that_is_killed_while_it_collects_what_programs_wrote_ends_with_its_mounts() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    for round in 0..5 {
        mounted.write("kept", &format!("{round}"));
        File::open(mounted.path("kept")).unwrap().sync_all().unwrap();
        let (data, big, is_over) = (mounted.server.data.clone(), mounted.path("big"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| while fs::write(&big, vec![round; 64 << 20]).is_ok() {});
            scope.spawn(|| {
                for number in 0.. {
                    let name = format!("vol0@s{round}.{number}");
                    let made = cairn().args(["snapshot", "create", &name, "--data"]).arg(&data).output();
                    if is_over.load(Ordering::Acquire) || !made.unwrap().status.success() {
                        return;
                    }
                }
            });
            wait_until("nothing is collected", || mounted.server.waits_for_write_back());
            let ended = mounted.server.kill_in_time();
            is_over.store(true, Ordering::Release);
            if !ended {
                // Ends the connection, so that the other tests continue.
                let _ = rustix::mount::unmount(&mounted.point, rustix::mount::UnmountFlags::FORCE);
            }
            assert!(ended, "the killed server does not end, round {round}");
        });
        wait_until("the mount has not ended", || has_ended(&mounted.point));
        mounted.server.restart();
        assert_eq!(mounted.read("kept"), format!("{round}"));
    }
}

#[test]
fn mount_that_was_taken_away_under_programs_names_them_and_they_can_be_cut_off() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    let (first, second) = (mounted.point.clone(), mounted.other(scratch.path(), "second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let list = |server: &Running| server.json(&["mount", "list"]).as_array().unwrap().clone();
    let mut open = File::create(mounted.path("open")).unwrap();
    open.write_all(b"before").unwrap();
    fs::create_dir(mounted.path("sub")).unwrap();
    let mut works = Command::new("sleep").arg("600").current_dir(mounted.path("sub")).spawn().unwrap();

    // By another program: its users continue, and no second tree is opened beside theirs.
    rustix::mount::unmount(&mounted.point, rustix::mount::UnmountFlags::DETACH).unwrap();
    let told = mounted.server.bad(11, "busy", &["mount", "vol0", second]);
    let named = format!("sleep ({})", works.id());
    assert!(told.contains(&named) && told.contains(first), "{told}");
    assert!(fs::read_dir(second).unwrap().next().is_none());
    assert!(mounted.server.bad(11, "busy", &["mount", "vol0", first]).contains(&named));
    assert!(list(&mounted.server)[0]["left_to"].as_str().unwrap().contains(&named));
    open.write_all(b" and after").unwrap();
    // A snapshot has the writes of that program in the meantime.
    mounted.server.good(&["snapshot", "create", "vol0@meanwhile"]);

    let told = mounted.server.bad(11, "busy", &["snapshot", "rollback", "vol0@meanwhile", "--yes"]);
    assert!(told.contains(&named), "he would lose what he has not written yet: {told}");

    // Cut off, it gets errors, and its earlier writes exist.
    mounted.server.good(&["unmount", "--force", first]);
    assert!(open.write_all(b"never").and_then(|()| open.sync_all()).is_err());
    drop(open);
    works.kill().unwrap();
    works.wait().unwrap();
    mounted.server.good(&["mount", "vol0", second]);
    assert_eq!(fs::read_to_string(format!("{second}/open")).unwrap(), "before and after");
    assert_eq!(fs::read_to_string(format!("{second}/.snapshot/meanwhile/open")).unwrap(), "before and after");
    assert_eq!(list(&mounted.server).len(), 1);

    // Lazily by its owner: as soon as the last one has ended it is mounted again, without force.
    let open = File::open(format!("{second}/open")).unwrap();
    mounted.server.good(&["unmount", "--lazy", second]);
    mounted.server.bad(11, "busy", &["mount", "vol0", first]);
    drop(open);
    wait_until("the files of a mount that has ended are not mounted again", || {
        mounted.server.run(&["mount", "vol0", first]).status.success()
    });
    assert_eq!(list(&mounted.server).len(), 1);

    // A third directory shows the files even when the first one is an ordinary directory again, and
    // a snapshot has the writes through the second.
    mounted.server.good(&["mount", "vol0", second]);
    mounted.server.good(&["unmount", first]);
    let mut open = File::create(format!("{second}/late")).unwrap();
    open.write_all(b"late").unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@late"]);
    let third = mounted.other(scratch.path(), "third");
    mounted.server.good(&["mount", "vol0", third.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(third.join(".snapshot/late/late")).unwrap(), "late");
    assert!(fs::read_dir(first).unwrap().next().is_none());
    let told = mounted.server.bad(11, "busy", &["unmount", "--force", second]);
    assert!(told.contains(third.to_str().unwrap()), "the same programs work there: {told}");
    drop(open);
    mounted.server.good(&["unmount", third.to_str().unwrap()]);
    mounted.server.good(&["unmount", "--force", second]);
    assert!(fs::read_dir(second).unwrap().next().is_none());
    assert!(list(&mounted.server).is_empty());
    assert_eq!(mounted.server.good(&["volume", "check", "vol0"]).lines().count(), 1);
}

#[test]
fn mount_that_another_program_has_ended_is_told_and_made_again() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    write_and_sync(&mounted.path("file"), b"synced");
    let number = rustix::fs::minor(fs::metadata(&mounted.point).unwrap().dev());
    let control = mounted.other(scratch.path(), "control");
    rustix::mount::mount("fusectl", &control, "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
    fs::write(control.join(format!("{number}/abort")), "1").unwrap();
    wait_until("a mount on which everything fails is not told", || {
        mounted.server.json(&["mount", "list"])[0]["problem"].is_string()
    });
    assert!(fs::read_dir(&mounted.point).unwrap().next().is_none(), "it was taken away");
    mounted.server.good(&["mount", "vol0", mounted.point.to_str().unwrap()]);
    assert_eq!(mounted.read("file"), "synced");
    assert_eq!(mounted.server.json(&["mount", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn linux_restore_and_ours_make_the_tree_of_a_dump_and_its_increments() {
    if can_mount() {
        dump_and_increments(false);
    }
}

#[test]
fn linux_restore_and_ours_make_the_tree_of_increments_found_from_the_maps() {
    if can_mount() {
        dump_and_increments(true);
    }
}

/// With `kept`, each dump is of a snapshot that stays, with which the next one is compared.
fn dump_and_increments(kept: bool) {
    let restore = ["/usr/sbin/restore", "/sbin/restore"].into_iter().find(|path| Path::new(path).exists());
    assert!(restore.is_some() || std::env::var_os("CI").is_none(), "restore must be installed here");
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    fill(&mounted.point);
    let (theirs, ours) = (scratch.path().join("theirs"), scratch.path().join("ours"));
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(&ours).unwrap();
    let apply = |level: u32| {
        let dump = scratch.path().join(format!("dump{level}"));
        let flag = format!("-{level}");
        let name = if kept { format!("vol0@level{level}") } else { "vol0".to_owned() };
        if kept {
            mounted.server.good(&["snapshot", "create", &name]);
        }
        mounted.server.good(&["dump", &flag, "-f", dump.to_str().unwrap(), &name]);
        let names = scratch.path().join(format!("data/volumes/vol0/names.{level}"));
        assert_eq!(names.exists(), kept, "{} is for what stays", names.display());
        let output = cairn().args(["restore", "-rf"]).arg(&dump).arg("--to").arg(&ours).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        same(&mounted.point, &ours);
        if let Some(restore) = restore {
            // Its directory for temporary files is called after the dump's time: two tests would
            // meet there.
            let restore = |flags: &str| {
                let mut command = Command::new(restore);
                command.arg(flags).arg(&dump).arg("-T").arg(scratch.path()).current_dir(&theirs);
                command.output().unwrap()
            };
            let output = restore("-rf");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            same(&mounted.point, &theirs);
            let compared = restore("-Cf");
            let compared = String::from_utf8_lossy(&compared.stdout).into_owned();
            assert!(!compared.contains("differ") && !compared.contains("changed"), "{compared}");
        }
        dump
    };
    mounted.server.bad(10, "not-found", &["dump", "-1", "-f", "/dev/null", "vol0"]);
    wait_for_the_next_second();
    apply(0);
    wait_for_the_next_second();
    mounted.write("home/ann/notes", "second");
    fs::remove_file(mounted.path("pipe")).unwrap();
    fs::rename(mounted.path("crowd"), mounted.path("home/moved")).unwrap();
    mounted.write("home/moved/new", "new");
    fs::remove_file(mounted.path("home/moved/a name that is not short, number 5")).unwrap();
    let one = apply(1);
    assert!(fs::metadata(&one).unwrap().len() < 1_500_000, "an increment has what changed");
    wait_for_the_next_second();
    fs::remove_dir_all(mounted.path("home/ann/deep")).unwrap();
    mounted.write("home/ann/deep", "a file now");
    fs::hard_link(mounted.path("home/large"), mounted.path("second large")).unwrap();
    apply(5);
    wait_for_the_next_second();
    mounted.write("home/last", "last");
    apply(9);
    assert_eq!(mounted.server.json(&["dump", "--dates", "vol0"]).as_array().unwrap().len(), 4);
    if kept {
        // The changes since level 5, and their parent directories.
        mounted.server.good(&["snapshot", "create", "vol0@again"]);
        let plan = mounted.server.json(&["dump", "-n", "-9", "vol0@again"]);
        let since = mounted.server.json(&["dump", "-n", "-9", "vol0@level9"]);
        assert_eq!((&plan["inodes"], &since["inodes"]), (&3.into(), &3.into()), "{plan} {since}");
        let exact = mounted.server.json(&["dump", "-n", "-1", "vol0@level0"]);
        assert_eq!(exact["inodes"], 1, "the snapshot of the lower dump itself: {exact}");
        // Without it everything is checked.
        mounted.server.good(&["snapshot", "delete", "vol0@level0", "--yes"]);
        assert!(mounted.server.json(&["dump", "-n", "-1", "vol0@level1"])["inodes"].as_u64() > Some(1));
        return;
    }
    assert!(differ(&mounted.point, &mounted.path("home")), "a comparison that can fail");

    // A part of the tree, without some of it, through a pipe.
    let part = mounted.server.run(&[
        "dump",
        "-0",
        "-f",
        "-",
        "vol0:/home",
        "--exclude",
        "*4*",
        "--exclude",
        "/home/ann",
    ]);
    assert!(part.status.success(), "{}", String::from_utf8_lossy(&part.stderr));
    let file = scratch.path().join("part");
    fs::write(&file, &part.stdout).unwrap();
    let listed = cairn().args(["restore", "-tf"]).arg(&file).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("home/moved/a name that is not short, number 333"), "{listed}");
    assert!(
        !listed.contains("number 4") && !listed.contains("ann") && !listed.contains("second large"),
        "{listed}"
    );
    mounted.server.bad(10, "not-found", &["dump", "-0", "-f", "/dev/null", "vol0:/nowhere"]);
    assert!(mounted.server.json(&["snapshot", "list", "vol0"]).as_array().unwrap().is_empty());
}

/// Dumps have times in seconds, so changes in the second of a dump are in the next one as well.
fn wait_for_the_next_second() {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let start = now();
    wait_until("the clock stands still", || now() > start);
}

#[test]
fn files_come_out_of_image_dumps_without_restoring_them() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    fill(&mounted.point);
    fs::hard_link(mounted.path("home/large"), mounted.path("home/large too")).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@monday"]);
    let bare = mounted.other(scratch.path(), "bare");
    let dump = |level: &str| {
        let path = scratch.path().join(format!("image{level}")).to_str().unwrap().to_owned();
        mounted.server.good(&["image", "dump", level, "vol0", "--to", &path]);
        path
    };
    let zero = dump("-0");
    mounted.write("home/ann/notes", "second");
    fs::remove_file(mounted.path("home/large")).unwrap();
    let one = dump("-1");
    let image = |arguments: &[&str]| {
        let output = cairn().arg("image").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(image(&["cat", &zero, "/home/ann/notes"]), (Some(0), "first".to_owned()));
    assert_eq!(image(&["cat", &zero, &one, "home/ann/notes"]), (Some(0), "second".to_owned()));
    assert_eq!(image(&["cat", &zero, &one, "@monday:/home/ann/notes"]), (Some(0), "first".to_owned()));
    assert_eq!(image(&["cat", &zero, &one, "/home/large"]).0, Some(10));
    // A file that does not fit in the output was not extracted.
    for asked in [&["cat", &zero, "/home/ann/notes"][..], &["cat", &zero, "/home/large"], &["ls", &zero]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = cairn().arg("image").args(asked).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(24), "{asked:?}: {told}");
        assert!(told.contains("the output can't be written"), "{asked:?}: {told}");
    }
    let (code, listed) = image(&["ls", &zero, "/home"]);
    assert!(code == Some(0) && listed.contains("large") && listed.contains("link -> ann/notes"), "{listed}");
    let to = scratch.path().join("out");
    fs::create_dir(&to).unwrap();
    assert_eq!(image(&["extract", &zero, "/home", "--to", to.to_str().unwrap()]).0, Some(0));
    // Both names are in the extracted part.
    same(&mounted.path(".snapshot/monday/home"), &to.join("home"));
    // Where no attributes are taken a file is still the same one by each of its names.
    rustix::mount::mount("none", &bare, "ramfs", rustix::mount::MountFlags::empty(), c"").unwrap();
    assert_eq!(image(&["extract", &zero, "/home", "--to", bare.to_str().unwrap()]).0, Some(3));
    let found = ["home/large", "home/large too"].map(|name| fs::metadata(bare.join(name)).unwrap());
    assert_eq!((found[0].ino(), found[0].len()), (found[1].ino(), 3_000_001));
    // A full disk ends it: no further file is begun.
    let small = scratch.path().join("small");
    fs::create_dir(&small).unwrap();
    if let Some(_room) = SmallDisk::mount(&small, 1 << 20) {
        assert_eq!(image(&["extract", &zero, "/home", "--to", small.to_str().unwrap()]).0, Some(24));
    }
    // Nothing is above the root, and nothing comes out above the directory.
    let up = scratch.path().join("a/b");
    fs::create_dir_all(&up).unwrap();
    let asked = ["extract", &zero, "../none/../../home/ann/../ann/notes", "--to", up.to_str().unwrap()];
    assert_eq!(image(&asked).0, Some(10), "a way through what is not there");
    let asked = ["extract", &zero, "../home/ann/../ann/notes", "--to", up.to_str().unwrap()];
    assert_eq!(image(&asked).0, Some(0));
    assert_eq!(fs::read_to_string(up.join("home/ann/notes")).unwrap(), "first");
    assert_eq!(fs::read_dir(scratch.path().join("a")).unwrap().count(), 1);
    // Parent directories get their owners, as with `cairn restore -x`; existing ones are not
    // changed.
    let dressed =
        |path: &Path| fs::metadata(path).map(|meta| (meta.mode(), meta.uid(), meta.mtime())).unwrap();
    for way in ["home", "home/ann"] {
        assert_eq!(dressed(&up.join(way)), dressed(&mounted.path(".snapshot/monday").join(way)), "{way}");
    }
    fs::set_permissions(up.join("home"), fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(image(&asked).0, Some(0));
    assert_eq!(dressed(&up.join("home")).0 & 0o777, 0o711);
}

/// The remaining files are listed, though other files in the same directory are unknown.
#[test]
fn listing_of_a_damaged_image_dump_has_all_that_can_be_read_and_tells_the_rest() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    fs::create_dir(mounted.path("many")).unwrap();
    // More than one block of names.
    const FILES: usize = 300;
    for n in 0..FILES {
        mounted.write(&format!("many/{n}"), "short");
    }
    fs::write(mounted.path("large"), vec![7; 1 << 20]).unwrap();
    let dump = scratch.path().join("dump");
    let dump = dump.to_str().unwrap();
    mounted.server.good(&["image", "dump", "vol0", "--to", dump]);
    let file = fs::OpenOptions::new().read(true).write(true).open(dump).unwrap();
    // The exit code, the listed files, and the reported ones, with `bytes` damaged.
    let listed = |at: u64, bytes: u64| {
        let mut whole = vec![0; bytes as usize];
        file.read_exact_at(&mut whole, at).unwrap();
        let damaged: Vec<u8> = whole.iter().map(|byte| byte ^ 4).collect();
        file.write_all_at(&damaged, at).unwrap();
        let output = cairn().args(["image", "ls", dump, "/many"]).output().unwrap();
        file.write_all_at(&whole, at).unwrap();
        let lines = |told: &[u8], what: &str| {
            String::from_utf8_lossy(told).lines().filter(|line| line.contains(what)).count()
        };
        let told = lines(&output.stderr, "/many/") + lines(&output.stderr, "/many:");
        (output.status.code(), lines(&output.stdout, "-rw"), told, lines(&output.stderr, "there may be more"))
    };
    const PIECE: u64 = 64 << 10;
    let length = file.metadata().unwrap().len();
    let (mut partly, mut lists) = (0, 0);
    for piece in (4096..length).step_by(PIECE as usize) {
        let end = length.min(piece + PIECE);
        if listed(piece, end - piece).0 == Some(0) {
            continue;
        }
        // A block, and then the next one.
        for at in (piece..end).step_by(4096) {
            match listed(at, 1) {
                (Some(0), count, told, _) => assert_eq!((count, told), (FILES, 0), "{at}"),
                (Some(3), count, told, more) => {
                    let most = FILES + usize::from(more > 0);
                    assert!(count > 0 && told > 0 && count + told <= most, "{at}: {count} and {told}");
                    partly += 1;
                    lists += more;
                }
                // For the directory as a whole, or for its parents.
                (code, count, ..) => assert_eq!((code, count), (Some(27), 0), "{at}"),
            }
        }
    }
    assert!(partly > lists, "nothing is listed of a directory in which a file is damaged");
    assert!(lists > 0, "nothing is listed of a directory of which one block of names is damaged");
}

#[test]
fn mount_of_a_mirror_shows_one_image_at_a_time_and_moves_on() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = Running::start(scratch.path(), "source");
    let destination = Running::start(scratch.path(), "destination");
    source.good(&["volume", "create", "vol0", "--size", "1G"]);
    let (point, copy) = (scratch.path().join("mnt"), scratch.path().join("copy"));
    fs::create_dir(&point).unwrap();
    fs::create_dir(&copy).unwrap();
    source.good(&["mount", "vol0", point.to_str().unwrap()]);
    let mut mounted = Mounted { server: source, point, others: vec![copy.clone()] };
    fs::create_dir(mounted.path("sub")).unwrap();
    mounted.write("sub/file", "one");
    mounted.write("listed", "one");
    let token = mounted.server.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    destination.good(&["mount", "vol0", copy.to_str().unwrap()]);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 2, "the kernel knows the names by a listing alone");
    assert_eq!(read(&copy.join("sub/file")), "one");
    assert_eq!(fs::write(copy.join("sub/x"), "x").unwrap_err().raw_os_error(), Some(EROFS));

    // An open file or directory stays in its image; a lookup from the root sees the newest.
    let open = File::open(copy.join("sub/file")).unwrap();
    let inside = File::open(copy.join("sub")).unwrap();
    mounted.write("sub/file", "two");
    mounted.write("sub/new", "new");
    mounted.write("listed", "two");
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(read(&copy.join("sub/file")), "two", "it moves on before the update is said to be done");
    assert_eq!(read(&copy.join("listed")), "two");
    assert_eq!(read(&copy.join("sub/new")), "new");
    let mut text = [0; 3];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"one");
    let old = rustix::fs::openat(&inside, "file", rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap();
    File::from(old).read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"one");
    drop((open, inside));
    mounted.server.good(&["snapshot", "create", "vol0@seen"]);
    destination.good(&["mirror", "update", "vol0"]);
    assert!(copy.join(".snapshot/seen/sub/file").exists(), "a snapshot of the mirror is not shown");

    // After the failover its mount is writable. Open files can still be read.
    let open = File::open(copy.join("sub/file")).unwrap();
    destination.good(&["mirror", "failover", "vol0", "--yes"]);
    fs::write(copy.join("sub/x"), "written").expect("a mount stays read-only after a failover");
    write_and_sync(&copy.join("sub/file"), b"here");
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"two");
    drop(open);
    assert_eq!(destination.json(&["mount", "list"])[0]["read_only"], false);
    assert_eq!(read(&copy.join(".snapshot/seen/sub/file")), "two");
    // A mount in use is not rolled back.
    let told = destination.bad(11, "busy", &["snapshot", "rollback", "vol0@seen", "--yes"]);
    assert!(told.contains(copy.to_str().unwrap()), "{told}");
    destination.good(&["unmount", copy.to_str().unwrap()]);
    destination.good(&["snapshot", "rollback", "vol0@seen", "--yes"]);
    destination.good(&["mount", "vol0", copy.to_str().unwrap()]);
    assert_eq!(read(&copy.join("sub/file")), "two");
    assert!(!copy.join("sub/x").exists());
    fs::write(copy.join("sub/x"), "again").unwrap();
    destination.good(&["unmount", copy.to_str().unwrap()]);
    mounted.others.clear();
}

#[test]
fn mounts_of_a_group_show_one_instant_and_take_writes_once_all_of_it_is_failed_over() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = Running::start(scratch.path(), "source");
    let mut destination = Running::start(scratch.path(), "destination");
    let place = |name: &str| {
        let path = scratch.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let volumes = ["data", "logs"];
    let (theirs, ours) = (volumes.map(|volume| place(&format!("s-{volume}"))), volumes.map(place));
    let mut others: Vec<PathBuf> = theirs.iter().chain(&ours).cloned().collect();
    for (volume, point) in volumes.iter().zip(&theirs) {
        source.good(&["volume", "create", volume, "--size", "64M"]);
        source.good(&["mount", volume, point.to_str().unwrap()]);
        fs::write(point.join("file"), "one").unwrap();
    }
    let mounted = Mounted { server: source, point: others.remove(0), others };
    let source = &mounted.server;
    source.good(&["group", "create", "bank", "data", "logs"]);
    let made =
        || source.json(&["snapshot", "create", "--group", "bank"])["name"].as_str().unwrap().to_owned();
    let first = format!("data@{}", made());
    for (volume, point) in volumes.iter().zip(&ours) {
        let token = source.invite();
        destination.good(&["mirror", "create", volume, &token]);
        destination.good(&["mount", volume, point.to_str().unwrap()]);
    }
    destination.good(&["group", "create", "bank", "data", "logs"]);
    let read = || ours.each_ref().map(|point| fs::read_to_string(point.join("file")).unwrap());
    assert_eq!(read(), ["one", "one"]);
    let write = |text: &str| theirs.iter().for_each(|point| fs::write(point.join("file"), text).unwrap());
    write("two");
    let common = made();
    destination.good(&["mirror", "update", "data"]);
    for _ in 0..20 {
        assert_eq!(read(), ["one", "one"], "one of them has moved on by itself");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let changed = || destination.good(&["snapshot", "diff", &first]);
    assert_eq!(changed(), "", "nobody is shown what the other volume has not yet");
    destination.good(&["mirror", "update", "logs"]);
    assert_eq!(changed(), "changed   /file\n");
    wait_until("the mounts stay behind", || read() == ["two", "two"]);

    // Nothing in common: nothing is mounted, and the mounts are made when there is an image to
    // show.
    let path = destination.data.join("groups.json");
    let groups = |destination: &mut Running, change: &dyn Fn(&mut serde_json::Value)| {
        destination.kill();
        let before = fs::read(&path).unwrap();
        let mut document: serde_json::Value = serde_json::from_slice(&before).unwrap();
        change(&mut document["groups"][0]);
        fs::write(&path, document.to_string()).unwrap();
        destination.restart();
    };
    groups(&mut destination, &|group| {
        group["name"] = "other".into();
        group["shown"] = serde_json::Value::Null;
    });
    assert!(ours.iter().all(|point| !point.join("file").exists()));
    assert!(destination.json(&["mount", "list"])[0]["problem"].as_str().unwrap().contains("shows nothing"));
    destination.good(&["group", "apart", "other"]);
    wait_until("a mount that waited is not made", || ours.iter().all(|point| point.join("file").exists()));
    groups(&mut destination, &|group| group["name"] = "bank".into());
    assert_eq!(read(), ["two", "two"]);

    // The state after a kill in the middle of a failover: one is writable, and shows changes after
    // the common instant.
    write("three");
    destination.good(&["mirror", "update", "data"]);
    destination.good(&["mirror", "failover", "data", "--yes"]);
    let failover =
        |done: &[&str]| serde_json::json!({ "snapshot": common, "at_ms": 1, "done": done, "reverse": false });
    groups(&mut destination, &|group| group["failover"] = failover(&["data"]));
    assert_eq!(read(), ["two", "two"]);
    for point in &ours {
        assert_eq!(fs::write(point.join("x"), "x").unwrap_err().raw_os_error(), Some(EROFS));
    }
    groups(&mut destination, &|group| group["failover"] = failover(&[]));
    destination.good(&["group", "failover", "bank", "--yes"]);
    wait_until("mounts stay read-only after a failover", || {
        // Not in the bare directory, while the live tree replaces the mount.
        let is_there = |point: &PathBuf| point.join("file").exists();
        ours.iter().all(|point| is_there(point) && fs::write(point.join("x"), "x").is_ok() && is_there(point))
    });
    assert_eq!(read(), ["two", "two"]);
    for point in &ours {
        destination.good(&["unmount", point.to_str().unwrap()]);
    }
}

/// A disk is attached late, as at a start of the machine: its mounts return when it is attached.
#[test]
fn mount_of_a_volume_whose_device_comes_late_is_made_once_it_is_there() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    let (disk, away) = (scratch.path().join("disk.img"), scratch.path().join("away.img"));
    File::create(&disk).and_then(|file| file.set_len(64 << 20)).unwrap();
    let server = &mounted.server;
    server.good(&["volume", "create", "late", "--device", disk.to_str().unwrap()]);
    let (live, past) = (mounted.other(scratch.path(), "live"), mounted.other(scratch.path(), "past"));
    let server = &mounted.server;
    server.good(&["mount", "late", live.to_str().unwrap()]);
    write_and_sync(&live.join("file"), b"content");
    server.good(&["snapshot", "create", "late@noon"]);
    server.good(&["mount", "late@noon", past.to_str().unwrap()]);
    mounted.server.kill();
    fs::rename(&disk, &away).unwrap();
    mounted.server.restart();
    let problems = mounted.server.run(&["status"]);
    assert!(String::from_utf8_lossy(&problems.stdout).contains("is not mounted"), "{problems:?}");
    assert!(!live.join("file").exists());
    fs::rename(&away, &disk).unwrap();
    wait_until("what was mounted is not there again", || {
        [&live, &past].iter().all(|point| fs::read(point.join("file")).is_ok_and(|found| found == b"content"))
    });
    mounted.write("here", "nothing else suffers");
    for point in [&live, &past] {
        mounted.server.good(&["unmount", point.to_str().unwrap()]);
    }
}

#[test]
fn what_cannot_be_mounted_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let server = Running::start_with(scratch.path(), "data", &["--mirror", "off"]);
    let point = scratch.path().join("mnt").to_str().unwrap().to_owned();
    server.bad(10, "not-found", &["mount", "vol0", &point]);
    fs::create_dir(&point).unwrap();
    server.bad(10, "not-found", &["mount", "vol0", &point]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.bad(10, "not-found", &["mount", "vol0@none", &point]);
    server.good(&["snapshot", "create", "vol0@empty"]);
    let told = server.bad(10, "not-found", &["mount", "vol0@empty", &point]);
    assert!(told.contains("vol0@empty"), "{told}");
    server.bad(10, "not-found", &["unmount", &point]);
    // From afar nothing is mounted.
    let far = ["mount", "vol0", &point, "--server", "127.0.0.1:1", "--token-file", "/dev/null", "--json"];
    running::refused(&cairn().args(far).output().unwrap(), 2, "usage", &far);
    if can_mount() {
        // A file in the way is one of the server's machine.
        fs::write(scratch.path().join("file"), "").unwrap();
        server.bad(2, "usage", &["mount", "vol0", scratch.path().join("file").to_str().unwrap()]);
        // A mount that can't be saved is not kept, and can be requested again.
        let notes = server.data.join("mounts.json");
        fs::create_dir_all(notes.join("in the way")).unwrap();
        assert!(!server.run(&["mount", "vol0", &point]).status.success());
        // Tests that begin a mount namespace meanwhile have it for a moment.
        wait_until("it is not there", || server.json(&["mount", "list"]) == serde_json::json!([]));
        fs::remove_dir_all(&notes).unwrap();
        server.good(&["mount", "vol0", &point]);
        // Its removal must be saved, too: otherwise the next start mounts it.
        fs::remove_file(&notes).unwrap();
        fs::create_dir_all(notes.join("in the way")).unwrap();
        assert!(!server.run(&["unmount", &point]).status.success());
        fs::remove_dir_all(&notes).unwrap();
        server.good(&["unmount", &point]);
        assert_eq!(server.json(&["mount", "list"]), serde_json::json!([]));
        assert!(!fs::read_to_string(&notes).unwrap().contains("vol0"));
    }
}

#[test]
fn planned_change_of_roles_takes_along_what_the_kernel_still_holds_of_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut source = Running::start(scratch.path(), "source");
    source.stay();
    let mut destination = Running::start(scratch.path(), "destination");
    destination.stay();
    source.good(&["volume", "create", "vol0", "--size", "3G"]);
    let point = scratch.path().join("mnt");
    fs::create_dir(&point).unwrap();
    source.good(&["mount", "vol0", point.to_str().unwrap()]);
    let mut mounted = Mounted { server: source, point, others: Vec::new() };
    write_and_sync(&mounted.path("db"), b"first words");
    // A program that has the file open, as databases do: data of a closed file is not only in the
    // kernel.
    let file = File::options().write(true).open(mounted.path("db")).unwrap();
    let token = mounted.server.invite();
    destination.good(&["mirror", "create", "vol0", &token]);
    mounted.server.good(&["mirror", "allow-reverse", "vol0"]);
    // It writes once more after the snapshot that the mirror gets first.
    let (asked, go) = (scratch.path().join("asked"), scratch.path().join("go"));
    let hook = format!("touch {}; while ! [ -e {} ]; do sleep 0.02; done", asked.display(), go.display());
    mounted.server.good(&["volume", "hooks", "vol0", "--after", &hook, "--timeout", "30s"]);
    std::thread::scope(|scope| {
        let reversed = scope.spawn(|| destination.good(&["mirror", "reverse", "vol0", "--yes"]));
        wait_until("the snapshot of the mirror", || asked.exists());
        file.write_all_at(b"last words!", 0).unwrap();
        fs::write(&go, "").unwrap();
        reversed.join().unwrap();
    });
    drop(file);
    let there = mounted.other(scratch.path(), "there");
    destination.good(&["mount", "vol0", there.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(there.join("db")).unwrap(), "last words!");
    destination.good(&["unmount", there.to_str().unwrap()]);
    mounted.others.clear();
}

#[test]
fn mirror_that_is_mounted_is_not_deleted_under_its_mount() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = Running::start(scratch.path(), "source");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    let (point, copy) = (scratch.path().join("mnt"), scratch.path().join("copy"));
    for directory in [&point, &copy] {
        fs::create_dir(directory).unwrap();
    }
    source.good(&["mount", "vol0", point.to_str().unwrap()]);
    let source = Mounted { server: source, point, others: Vec::new() };
    source.write("file", "here");
    let token = source.server.invite();
    let server = Running::start(scratch.path(), "destination");
    server.good(&["mirror", "create", "vol0", &token]);
    server.good(&["mount", "vol0", copy.to_str().unwrap()]);
    let mut mirror = Mounted { server, point: copy.clone(), others: Vec::new() };
    let told = mirror.server.bad(11, "busy", &["mirror", "delete", "vol0", "--yes"]);
    assert!(told.contains(copy.to_str().unwrap()), "{told}");
    assert_eq!(mirror.read("file"), "here");
    mirror.server.good(&["unmount", copy.to_str().unwrap()]);
    mirror.server.good(&["mirror", "delete", "vol0", "--yes"]);
    assert_eq!(mirror.server.json(&["volume", "list"]), serde_json::json!([]));
    mirror.server.kill();
    mirror.server.restart();
    assert_eq!(mirror.server.json(&["status"])["problems"], serde_json::json!([]));
}
