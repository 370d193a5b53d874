//! Actions of an owner on the files of a volume besides mounting them: quotas, differences of
//! snapshots, and the files that damage belongs to.
//!
//! Mounting needs root here; without it these tests report that they are skipped.

mod running;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use running::{Running, can_mount};

const EDQUOT: i32 = 122;
const ENOSPC: i32 = 28;
const EIO: i32 = 5;
/// A user without rights.
const NOBODY: u32 = 65_534;

/// A server with a volume that is mounted; unmounted again at the end, whatever comes.
struct Mounted {
    server: Running,
    point: PathBuf,
}

impl Mounted {
    fn new(scratch: &Path) -> Self {
        let server = Running::start_with(scratch, "data", &["--mirror", "off"]);
        server.good(&["volume", "create", "vol0", "--size", "256M"]);
        let point = scratch.join("mnt");
        fs::create_dir(&point).unwrap();
        let mounted = Self { server, point };
        mounted.mount();
        mounted
    }

    fn mount(&self) {
        self.server.good(&["mount", "vol0", self.point.to_str().unwrap()]);
    }

    fn unmount(&self) {
        self.server.good(&["unmount", self.point.to_str().unwrap()]);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

fn write_and_sync(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = fs::File::create(path)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

#[test]
fn directory_takes_no_more_than_its_quota_and_an_owner_sets_changes_and_lifts_it() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    assert_eq!(mounted.server.json(&["quota", "list", "vol0"]), serde_json::json!([]));
    fs::create_dir_all(mounted.path("home/ann")).unwrap();
    let set = ["quota", "set", "vol0:/home/ann", "--size", "1M", "--files", "3"];
    let quota = mounted.server.json(&set);
    let expected = serde_json::json!({
        "path": "/home/ann", "limit_bytes": 1 << 20, "limit_files": 3, "used_bytes": 4096, "used_files": 1,
    });
    assert_eq!(quota, expected);
    write_and_sync(&mounted.path("home/ann/a"), &[1; 512 << 10]).unwrap();
    let full = write_and_sync(&mounted.path("home/ann/b"), &[1; 768 << 10]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(EDQUOT));
    write_and_sync(&mounted.path("home/elsewhere"), &[1; 2 << 20]).unwrap();
    fs::remove_file(mounted.path("home/ann/b")).unwrap();
    fs::create_dir(mounted.path("home/ann/c")).unwrap();
    let many = fs::File::create(mounted.path("home/ann/d")).unwrap_err();
    assert_eq!(many.raw_os_error(), Some(EDQUOT));

    // Limits that are not named stay; they survive a kill.
    mounted.server.good(&["quota", "set", "vol0:/home/ann", "--files", "off"]);
    mounted.server.kill();
    mounted.server.restart();
    running::wait_until("it is mounted again", || fs::metadata(mounted.path("home/ann/a")).is_ok());
    let listed = mounted.server.json(&["quota", "list", "vol0"]);
    assert_eq!(mounted.server.json(&["quota", "show", "vol0:/home/ann"]), listed[0]);
    mounted.server.bad(10, "not-found", &["quota", "delete", "vol0:/home"]);
    let shown = |field: &str| listed[0][field].clone();
    assert_eq!((shown("limit_bytes"), shown("limit_files")), ((1 << 20).into(), ().into()));
    fs::File::create(mounted.path("home/ann/d")).unwrap();
    let people = mounted.server.good(&["quota", "list", "vol0"]);
    assert!(people.contains("/home/ann") && people.contains("1 MiB"), "{people}");

    // Also of a volume that is not mounted; looking at it makes nothing.
    mounted.unmount();
    assert_eq!(mounted.server.json(&["quota", "list", "vol0"])[0]["used_files"], 4);
    mounted.server.good(&["volume", "create", "bare", "--size", "64M"]);
    assert_eq!(mounted.server.json(&["quota", "list", "bare"]), serde_json::json!([]));
    mounted.mount();
    for name in ["a", "d"] {
        fs::remove_file(mounted.path("home/ann").join(name)).unwrap();
    }
    fs::remove_dir(mounted.path("home/ann/c")).unwrap();
    let gone = mounted.server.good(&["quota", "set", "vol0:/home/ann", "--size", "off"]);
    assert_eq!(gone, "vol0:/home/ann has no quota\n");
    fs::create_dir(mounted.path("home/new")).unwrap();
    mounted.server.good(&["quota", "set", "vol0:/home/new", "--size", "1M", "--files", "9"]);
    assert_eq!(mounted.server.good(&["quota", "delete", "vol0:/home/new"]), "vol0:/home/new has no quota\n");
    assert_eq!(mounted.server.json(&["quota", "list", "vol0"]), serde_json::json!([]));

    let said = mounted.server.bad(32, "not-empty", &["quota", "set", "vol0:/home", "--size", "1M"]);
    assert!(said.contains("vol0:/home"), "{said}");
    for (code, kind, name) in
        [(10, "not-found", "vol0:/nobody"), (2, "usage", "vol0"), (10, "not-found", "vol1:/home")]
    {
        mounted.server.bad(code, kind, &["quota", "set", name, "--size", "1M"]);
    }
    mounted.server.good(&["snapshot", "create", "vol0@s"]);
    mounted.server.bad(2, "usage", &["quota", "set", "vol0@s:/home", "--size", "1M"]);
    for wrong in [&["--size", "0"][..], &["--files", "0"], &["--files", "many"], &[]] {
        let output = mounted.server.run(&[&["quota", "set", "vol0:/home/ann"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(mounted.server.good(&["volume", "check", "vol0"]), "volume vol0 is sound\n");
}

#[test]
fn damaged_block_of_a_file_is_told_by_its_path_now_and_in_a_snapshot() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    fs::create_dir_all(mounted.path("home/ann")).unwrap();
    let content = [&[1; 4096][..], b"the block that rots", &[7; 4096 - 19]].concat();
    write_and_sync(&mounted.path("home/ann/notes"), &content).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@kept"]);
    mounted.unmount();
    mounted.server.terminate();
    let image = mounted.server.data.join("volumes/vol0/volume.img");
    let image = fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut block = vec![0; 4096];
    let is_it = |number: &u64| {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        block == content[4096..]
    };
    let found = (0..image.metadata().unwrap().len() / 4096).find(is_it);
    image.write_all_at(b"x", found.expect("it is in the volume") * 4096 + 100).unwrap();
    mounted.server.restart();

    let output = mounted.server.run(&["volume", "check", "vol0", "--deep"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(27), "{said}");
    assert!(said.contains("(/home/ann/notes) [vol0@kept]"), "{said}");
    mounted.mount();
    assert_eq!(fs::read(mounted.path("home/ann/notes")).unwrap_err().raw_os_error(), Some(EIO));
    let problems = mounted.server.json(&["status"])["problems"].clone();
    let message = problems[0]["message"].as_str().unwrap();
    assert!(message.contains("block 1 of /home/ann/notes (bytes 4096 to 8191)"), "{problems}");
    let scrub = mounted.server.json(&["volume", "scrub", "vol0", "--status"]);
    let damaged = &scrub["damaged"][0];
    assert_eq!((&damaged["path"], &damaged["offset_bytes"]), (&"/home/ann/notes".into(), &4096.into()));

    // For a deleted file, the report names the snapshot that has it. The server has reported it to
    // no client yet.
    fs::remove_file(mounted.path("home/ann/notes")).unwrap();
    mounted.server.terminate();
    mounted.server.restart();
    let problems = mounted.server.json(&["status"])["problems"].clone();
    let message = problems[0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("/home/ann/notes in vol0@kept"), "{problems}");
}

/// A file without a name, held without being open; a file that is mounted elsewhere and replaced; a
/// directory in which a process works.
#[test]
fn what_has_lost_its_name_is_there_until_nobody_refers_to_it() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    for name in ["file", "bound", "new"] {
        fs::write(mounted.path(name), name).unwrap();
    }
    fs::create_dir(mounted.path("folder")).unwrap();
    let refer = |name: &str| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(mounted.path(name), flags, rustix::fs::Mode::empty()).unwrap()
    };
    let (file, folder) = (refer("file"), refer("folder"));
    let elsewhere = scratch.path().join("elsewhere");
    fs::write(&elsewhere, "below").unwrap();
    rustix::mount::mount_bind(mounted.path("bound"), &elsewhere).unwrap();
    fs::remove_file(mounted.path("file")).unwrap();
    fs::remove_dir(mounted.path("folder")).unwrap();
    fs::rename(mounted.path("new"), mounted.path("bound")).unwrap();
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    for _ in 0..2 {
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
        assert_eq!(fs::read_to_string(&by_number).unwrap(), "file");
        assert_eq!(rustix::fs::fstat(&folder).unwrap().st_nlink, 0);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "bound");
        // The kernel now forgets all state that it need not keep.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }
    let mut again = fs::OpenOptions::new().append(true).read(true).open(&by_number).unwrap();
    again.write_all(b" goes on").unwrap();
    assert_eq!(fs::read_to_string(&by_number).unwrap(), "file goes on");
    rustix::mount::unmount(&elsewhere, rustix::mount::UnmountFlags::empty()).unwrap();
    drop((file, folder, again));
    mounted.unmount();
    assert_eq!(mounted.server.good(&["volume", "check", "vol0"]), "volume vol0 is sound\n");
    mounted.mount();
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 1);
}

/// Like `cp`: it writes, closes, and trusts the results.
#[test]
fn writer_is_told_of_its_quota_or_a_full_volume_by_the_write_and_nothing_else_is_shown() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    fs::create_dir(mounted.path("limited")).unwrap();
    mounted.server.good(&["quota", "set", "vol0:/limited", "--size", "4M"]);
    for (name, errno) in [("limited/file", EDQUOT), ("file", ENOSPC)] {
        let path = mounted.path(name);
        let mut file = fs::File::create(&path).unwrap();
        let piece: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
        let mut written = 0;
        let error = loop {
            match file.write(&piece) {
                Ok(count) => written += count as u64,
                Err(error) => break error,
            }
            assert!(written < 1 << 30, "{name}");
        };
        assert_eq!(error.raw_os_error(), Some(errno), "{name}");
        file.sync_all().expect("what was told is told");
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().len(), written, "{name}");
        mounted.server.good(&["snapshot", "create", &format!("vol0@{errno}")]);
        let kept = mounted.path(&format!(".snapshot/{errno}/{name}"));
        assert!(fs::read(&path).unwrap() == fs::read(&kept).unwrap(), "{name}");
        mounted.server.good(&["snapshot", "delete", &format!("vol0@{errno}"), "--yes"]);
        fs::remove_file(&path).unwrap();
        // The mount closes the image of the snapshot, which was read, a moment after its deletion.
        running::wait_until("what is removed makes room", || fs::write(&path, &piece).is_ok());
    }
}

/// The kernel keeps the bits of its own callers; of those of a file system above it knows nothing.
#[test]
fn stranger_who_writes_through_an_overlay_takes_set_user_id_away() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    for folder in ["upper", "work"] {
        fs::create_dir(mounted.path(folder)).unwrap();
    }
    let [lower, merged] = ["lower", "merged"].map(|name| scratch.path().join(name));
    fs::create_dir(&lower).unwrap();
    fs::create_dir(&merged).unwrap();
    // Strangers get in.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let at = |folder: &str| mounted.path(folder).display().to_string();
    let layers = format!("lowerdir={},upperdir={},workdir={}", lower.display(), at("upper"), at("work"));
    let layers = std::ffi::CString::new(layers).unwrap();
    match rustix::mount::mount(
        "overlay",
        &merged,
        "overlay",
        rustix::mount::MountFlags::empty(),
        Some(layers.as_c_str()),
    ) {
        Err(rustix::io::Errno::NODEV) => return eprintln!("skipped: this kernel has no overlays"),
        outcome => outcome.expect("an overlay takes a mount"),
    }
    let program = merged.join("program");
    let mode = || fs::metadata(&program).unwrap().mode() & 0o7777;
    let reset = || {
        fs::write(&program, "x").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
    };
    for command in
        ["printf y >> program", "printf y 1<> program", "truncate -s 0 program", "fallocate -l 9999 program"]
    {
        reset();
        assert_eq!(mode(), 0o6777);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command]).current_dir(&merged).uid(NOBODY).gid(NOBODY);
        assert!(shell.status().unwrap().success(), "{command}");
        assert_eq!(mode(), 0o777, "{command}");
    }
    reset();
    let mut file = fs::OpenOptions::new().append(true).open(&program).unwrap();
    file.write_all(b"root's own").unwrap();
    assert_eq!(mode(), 0o6777, "root may");
    drop(file);
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty()).unwrap();
}

/// A name is any bytes. Two of them are never shown alike, and each can be named.
#[test]
fn names_that_are_no_text_are_told_apart_and_taken_as_they_are() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let server = &mounted.server;
    let at = |name: &[u8]| mounted.point.join(OsStr::from_bytes(name));
    server.good(&["snapshot", "create", "vol0@a"]);
    let names: [&[u8]; 5] = [b"n-\xff", b"n-\xfe", b"n-\\xff", b"n-\n", "n-ö".as_bytes()];
    for name in names {
        fs::create_dir(at(name)).unwrap();
    }
    server.good(&["snapshot", "create", "vol0@b"]);
    let told = server.json(&["snapshot", "diff", "vol0@a", "vol0@b"]);
    let paths = |change: &serde_json::Value| (change["path"].clone(), change["path_bytes"].clone());
    let told: Vec<_> = told.as_array().unwrap().iter().map(paths).collect();
    for (path, bytes) in [
        (r"/n-\xff", Some("/n-%FF")),
        (r"/n-\xfe", Some("/n-%FE")),
        (r"/n-\xff", None),
        ("/n-\n", None),
        ("/n-ö", None),
    ] {
        assert_eq!(
            told.iter().filter(|one| **one == (path.into(), bytes.into())).count(),
            1,
            "{path} {bytes:?}"
        );
    }
    let people = server.good(&["snapshot", "diff", "vol0@a", "vol0@b"]);
    for line in [r"$'/n-\xff'/", r"$'/n-\xfe'/", r"/n-\xff/", r"$'/n-\n'/", "/n-ö/"] {
        assert!(people.lines().any(|told| told == format!("created   {line}")), "{line} in {people}");
    }

    let named =
        |before: &str, name: &[u8]| OsString::from(OsStr::from_bytes(&[before.as_bytes(), name].concat()));
    let run = |arguments: &[&OsStr]| {
        let output = running::cairn().arg("--data").arg(&server.data).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        (output.status.code(), said)
    };
    let args = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
    let with = |before: &[&str], name: OsString, after: &[&str]| {
        let all: Vec<OsString> = args(before).into_iter().chain([name]).chain(args(after)).collect();
        run(&all.iter().map(OsString::as_os_str).collect::<Vec<_>>())
    };
    for name in names {
        let (code, said) = with(&["quota", "set"], named("vol0:/", name), &["--size", "1M"]);
        assert_eq!(code, Some(0), "{said}");
    }
    let quotas = server.json(&["quota", "list", "vol0"]);
    let told: std::collections::HashSet<_> =
        quotas.as_array().unwrap().iter().map(|quota| format!("{:?}", paths(quota))).collect();
    assert_eq!(told.len(), names.len(), "{quotas}");
    let (code, said) = with(&["quota", "set"], named("vol0:/", b"n-\xfd"), &["--size", "1M"]);
    assert_eq!(code, Some(10), "{said}");
    assert!(said.contains(r"vol0:/$'n-\xfd'"), "{said}");

    fs::write(at(b"n-\xff/in-\xfe"), "one").unwrap();
    fs::write(at(b"n-\xff/in-\xfd"), "other").unwrap();
    fs::write(at(b"n-\xfe/in"), "elsewhere").unwrap();
    let dump = scratch.path().join("dump");
    let file = dump.to_str().unwrap();
    let (code, said) =
        with(&["dump", "-0", "-f", file, "--exclude", "in-?"], named("vol0:/", b"n-\xff"), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r"$'/n-\xff'"), "{said}");
    let restored = server.json(&["restore", "-t", "-f", file]);
    let told: Vec<_> = restored.as_array().unwrap().iter().map(paths).collect();
    assert_eq!(told, [("/n-\\xff".into(), "/n-%FF".into())], "the pattern leaves out both");
    let (code, said) = with(&["dump", "-0", "-f", file, "--overwrite"], named("vol0:/", b"n-\xff"), &[]);
    assert_eq!(code, Some(0), "{said}");
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    let wanted = [named("", b"n-\xff/in-\xfe")];
    let (code, said) =
        with(&["restore", "-x", "-f", file, "--to", to.to_str().unwrap()], wanted[0].clone(), &[]);
    assert_eq!(code, Some(0), "{said}");
    let mut text = String::new();
    fs::File::open(to.join(&wanted[0])).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
    let dates = server.json(&["dump", "--dates", "vol0"]);
    assert_eq!(paths(&dates[0]), ("/n-\\xff".into(), "/n-%FF".into()), "{dates}");
    // The next level depends on it.
    let (code, said) = with(&["dump", "-1", "-f", file, "--overwrite"], named("vol0:/", b"n-\xff"), &[]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = with(&["dump", "-1", "-f", file, "--overwrite"], named("vol0:/", b"n-\xfe"), &[]);
    assert_ne!(code, Some(0), "{said}");

    let image = scratch.path().join("image");
    server.good(&["image", "dump", "vol0", "--to", image.to_str().unwrap()]);
    let listed = server.json(&["image", "ls", image.to_str().unwrap(), "/"]);
    let told = listed.as_array().unwrap().iter().map(|one| (one["name"].clone(), one["name_bytes"].clone()));
    assert_eq!(told.filter(|one| *one == (r"n-\xff".into(), "n-%FF".into())).count(), 1, "{listed}");
}

/// Spoils every version of the block of inodes that a file's is in, which has no other user's.
fn rot_inodes_with(server: &Running, ino: u64, owner: u32) {
    let image = server.data.join("volumes/vol0/volume.img");
    let image = fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut block = vec![0; 4096];
    let is_it = |number: &u64| {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        let with = |bytes: &[u8]| {
            block.chunks(128).filter(|inode| inode.windows(bytes.len()).any(|found| found == bytes)).count()
        };
        with(&owner.to_le_bytes()) == 32 && with(&ino.to_le_bytes()) > 0
    };
    let found: Vec<u64> = (0..image.metadata().unwrap().len() / 4096).filter(is_it).collect();
    assert!(!found.is_empty(), "it is in the volume");
    found.iter().for_each(|number| image.write_all_at(b"xxxx", number * 4096 + 100).unwrap());
}

/// The whole volume was out of service before, also for its mirror, which has the missing data.
#[test]
fn block_of_inodes_that_rots_costs_its_files_alone_until_they_come_back_from_the_mirror() {
    const OWNER: u32 = 0x0bad_f00d;
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut server = Running::start(scratch.path(), "data");
    server.stay();
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    let point = scratch.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let mut mounted = Mounted { server, point };
    mounted.mount();
    let name = |number: usize| format!("file{number}");
    for number in 0..200 {
        write_and_sync(&mounted.path(&name(number)), name(number).as_bytes()).unwrap();
        std::os::unix::fs::chown(mounted.path(&name(number)), Some(OWNER), None).unwrap();
    }
    let ino = fs::metadata(mounted.path(&name(100))).unwrap().ino();
    let destination = Running::start(scratch.path(), "destination");
    destination.good(&["mirror", "create", "vol0", &mounted.server.invite()]);
    // Write something later, so that the damaged block is not the last written one.
    write_and_sync(&mounted.path("later"), b"later").unwrap();
    destination.good(&["mirror", "update", "vol0"]);
    mounted.unmount();
    mounted.server.terminate();
    rot_inodes_with(&mounted.server, ino, OWNER);
    mounted.server.restart();

    mounted.mount();
    assert_eq!(fs::read(mounted.path("file0")).unwrap(), b"file0");
    assert_eq!(fs::read(mounted.path("file100")).unwrap_err().raw_os_error(), Some(EIO));
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 201, "names are in the directory");
    write_and_sync(&mounted.path("new"), b"new").unwrap();
    fs::remove_file(mounted.path("file199")).unwrap();
    let problems = mounted.server.json(&["status"])["problems"].to_string();
    assert!(problems.contains("the inodes of files "), "{problems}");
    // With the next update, or before it.
    destination.good(&["mirror", "update", "vol0"]);
    running::wait_until("it is mended", || fs::read(mounted.path("file100")).is_ok());
    for number in 0..199 {
        assert_eq!(fs::read(mounted.path(&name(number))).unwrap(), name(number).as_bytes());
    }
    assert_eq!(mounted.server.good(&["volume", "check", "vol0", "--deep"]), "volume vol0 is sound\n");
    destination.good(&["mirror", "update", "vol0"]);
    assert_eq!(destination.json(&["mirror", "verify", "vol0", "--scrub"])["differences_total"], 0);
}

#[test]
fn snapshots_from_before_the_first_file_differ_by_all_files() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = Running::start_with(scratch.path(), "data", &["--mirror", "off"]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["snapshot", "create", "vol0@empty"]);
    let point = scratch.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let mounted = Mounted { server, point };
    mounted.mount();
    fs::create_dir(mounted.path("d")).unwrap();
    write_and_sync(&mounted.path("d/file"), b"x").unwrap();
    fs::hard_link(mounted.path("d/file"), mounted.path("link")).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@full"]);
    let diff = |from: &str, to: &str| mounted.server.good(&["snapshot", "diff", "vol0", from, to]);
    assert_eq!(diff("empty", "full"), "created   /d/\nlinked    /d/file\ncreated   /link\n");
    assert_eq!(diff("full", "empty"), "deleted   /d/\ndeleted   /d/file\ndeleted   /link\n");
    assert_eq!(diff("empty", "empty"), "");
}

#[test]
fn server_without_root_mounts_what_its_user_can_write_to() {
    let is_open = fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    let scratch = tempfile::tempdir().unwrap();
    let Some(server) = is_open.then(|| Running::start_as(NOBODY, scratch.path())).flatten() else {
        eprintln!("skipped: /dev/fuse is for root alone");
        return;
    };
    let point = scratch.path().join("mnt");
    fs::create_dir(&point).unwrap();
    std::os::unix::fs::chown(&point, Some(NOBODY), Some(NOBODY)).unwrap();
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let mounted = Mounted { server, point };
    mounted.mount();
    let script = "cd \"$0\" && mkdir d && echo mine > d/f && chmod 600 d/f && ln d/f g && mv g d/g && sync d/f && stat -c %u:%h . d/f";
    let shell = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        let done = shell.args(["-c", script]).arg(&mounted.point).uid(NOBODY).gid(NOBODY).output().unwrap();
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    assert_eq!(shell(script), format!("{NOBODY}:3\n{NOBODY}:2\n"));
    mounted.server.good(&["snapshot", "create", "vol0@s"]);
    assert_eq!(shell("rm -r \"$0\"/d && cat \"$0\"/.snapshot/s/d/g"), "mine\n");
    mounted.unmount();
}

#[test]
fn directory_with_files_is_not_mounted_on() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let taken = scratch.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("file"), "x").unwrap();
    mounted.server.bad(32, "not-empty", &["mount", "vol0", taken.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(taken.join("file")).unwrap(), "x");
}

#[test]
fn dumps_of_two_levels_from_one_second_are_restored_one_after_the_other() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path());
    let (zero, one, to) = (scratch.path().join("0"), scratch.path().join("1"), scratch.path().join("to"));
    let [zero, one, to] = [&zero, &one, &to].map(|path| path.to_str().unwrap());
    let dump = |level: &str, file: &str| {
        mounted.server.good(&["dump", level, "-f", file, "--overwrite", "vol0"]);
    };
    write_and_sync(&mounted.path("first"), b"first").unwrap();
    running::wait_until("both are of one second", || {
        dump("-0", zero);
        write_and_sync(&mounted.path("second"), b"second").unwrap();
        dump("-1", one);
        let dates = mounted.server.json(&["dump", "--dates", "vol0"]);
        let is_same = dates[0]["date_ms"] == dates[1]["date_ms"];
        if !is_same {
            fs::remove_file(mounted.path("second")).unwrap();
        }
        is_same
    });
    fs::create_dir(to).unwrap();
    for file in [zero, one] {
        mounted.server.good(&["restore", "-rf", file, "--to", to]);
    }
    assert_eq!(fs::read_to_string(Path::new(to).join("second")).unwrap(), "second");
    mounted.server.bad(2, "usage", &["restore", "-rf", one, "--to", to]);
    let listed = mounted.server.json(&["restore", "-tf", zero]);
    assert_eq!(listed[0]["path"], "/first");
    let restored = mounted.server.json(&["restore", "-xf", zero, "--to", to]);
    assert_eq!(restored["troubles"], serde_json::json!([]), "nothing went wrong, and that is said");
}

/// The record that a restore of a level keeps for the next one promises that all of it exists: the
/// promise holds also after a crash.
#[test]
fn tree_that_was_restored_is_whole_after_a_crash_as_the_next_level_builds_on_it() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path());
    let content = |number: usize| vec![number as u8; 5000 + number * 40];
    fs::create_dir(mounted.path("from")).unwrap();
    for number in 0..200 {
        fs::write(mounted.path(&format!("from/f{number}")), content(number)).unwrap();
    }
    mounted.server.good(&["snapshot", "create", "vol0@s"]);
    let dump = scratch.path().join("dump");
    mounted.server.good(&["dump", "-0", "-f", dump.to_str().unwrap(), "vol0@s:/from"]);
    let to = mounted.path("to");
    fs::create_dir(&to).unwrap();
    // The server is behind the kernel's cache of this mount: data that is only in the cache is lost
    // with the server.
    mounted.server.good(&["restore", "-rf", dump.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    mounted.server.kill();
    mounted.server.restart();
    running::wait_until("it is mounted again", || fs::metadata(&to).is_ok());
    assert!(to.join(".cairn-restore.json").exists(), "the next level finds what there is");
    for number in 0..200 {
        let found = fs::read(to.join(format!("from/f{number}"))).unwrap();
        assert!(found == content(number), "file {number} has {} bytes", found.len());
    }
}
