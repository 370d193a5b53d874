//! Hard cases of `cairn dump`: a server that is killed meanwhile, mirrors, dumps of several volumes
//! of tape.
//!
//! Mounting needs root here; without it these tests say that they are skipped.

mod running;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use running::{Loop, Running, SmallDisk, cairn, can_mount, wait_until};

/// A server with a volume that is mounted; unmounted again at the end, whatever comes.
struct Mounted {
    server: Running,
    point: PathBuf,
}

impl Mounted {
    fn new(scratch: &Path, arguments: &[&str]) -> Self {
        let server = Running::start_with(scratch, "data", arguments);
        server.good(&["volume", "create", "vol0", "--size", "1G"]);
        let point = scratch.join("mnt");
        fs::create_dir(&point).unwrap();
        let mounted = Self { server, point };
        mounted.server.good(&["mount", "vol0", mounted.point.to_str().unwrap()]);
        mounted
    }

    fn path(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// The names of the volume's snapshots.
    fn snapshots(&self) -> Vec<String> {
        let list = self.server.json(&["snapshot", "list", "vol0"]);
        let name = |one: &serde_json::Value| one["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A mounted volume, and a server that may mirror it.
fn mounted_and_its_mirror(scratch: &Path) -> (Mounted, Running) {
    (Mounted::new(scratch, &["--mirror", "127.0.0.1:0"]), Running::start(scratch, "mirror"))
}

/// An open named pipe without a reader.
fn make_pipe(path: &Path) -> File {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    File::options().read(true).write(true).open(path).unwrap()
}

/// Dumps have times in seconds, so changes in the second of a dump are in the next one as well.
fn wait_for_the_next_second() {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let start = now();
    wait_until("the clock stands still", || now() > start);
}

/// The regular files below a directory: path and content.
fn files(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            match path.is_dir() {
                true => waiting.push(path),
                // The state of the two restores for the next increment.
                false if [".cairn-restore.json", "restoresymtable"].map(Path::new).contains(&&*name) => {}
                false => found.push((name, fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn restore_ours(dump: &Path, to: &Path) {
    let output = cairn().args(["restore", "-rf"]).arg(dump).arg("--to").arg(to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A dump that does not complete: no program reads the pipe.
fn stuck_dump(mounted: &Mounted, scratch: &Path) -> (Child, File, String) {
    let pipe = scratch.join("pipe");
    let held = make_pipe(&pipe);
    let before = mounted.snapshots();
    let mut dump = cairn();
    dump.args(["dump", "-0", "vol0", "-f"]).arg(&pipe).arg("--data").arg(&mounted.server.data);
    let dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut own = None;
    wait_until("a dump makes no snapshot", || {
        own = mounted.snapshots().into_iter().find(|name| !before.contains(name));
        own.is_some()
    });
    (dump, held, own.unwrap())
}

#[test]
fn killed_dump_leaves_no_snapshot_and_owners_keep_theirs() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("large"), vec![7; 4 << 20]).unwrap();
    mounted.server.good(&["snapshot", "create", "vol0@mine"]);
    mounted.server.bad(2, "usage", &["snapshot", "create", "vol0@dump.mine"]);
    let kill = |mounted: &mut Mounted| {
        let (mut dump, held, own) = stuck_dump(mounted, scratch.path());
        assert!(own.starts_with("vol0@dump."), "{own}");
        (own, move |mounted: &mut Mounted| {
            mounted.server.kill();
            assert!(!dump.wait().unwrap().success());
            drop(held);
        })
    };
    // The next start removes it.
    let (_, end) = kill(&mut mounted);
    end(&mut mounted);
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine"]);

    // A held snapshot stays until it is released; then the next dump deletes it, even beside a
    // running dump.
    let (left, end) = kill(&mut mounted);
    mounted.server.good(&["snapshot", "hold", &left]);
    end(&mut mounted);
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), left.clone()]);
    mounted.server.good(&["dump", "-n", "-0", "vol0"]);
    assert!(mounted.snapshots().contains(&left));
    mounted.server.good(&["snapshot", "release", &left]);
    let (at_work, end) = kill(&mut mounted);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);
    mounted.server.good(&["dump", "-n", "-0", "vol0"]);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);

    // Without the note it counts as a snapshot of an owner who uses such names.
    end(&mut mounted);
    let dates = mounted.server.data.join("volumes/vol0/dates.json");
    let noted: serde_json::Value = serde_json::from_slice(&fs::read(&dates).unwrap()).unwrap();
    assert_eq!(noted["making"][0], at_work.trim_start_matches("vol0@"));
    fs::remove_file(&dates).unwrap();
    mounted.server.restart();
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work.clone()]);
    // A dump that comes to its end leaves nothing, neither a snapshot nor a note.
    mounted.server.good(&["dump", "-0", "-f", scratch.path().join("whole").to_str().unwrap(), "vol0"]);
    assert_eq!(mounted.snapshots(), ["vol0@mine".to_owned(), at_work]);
    assert!(fs::read_to_string(&dates).unwrap().contains("\"making\": []"));
}

#[test]
fn level_on_a_mirror_says_at_its_start_what_its_source_has_deleted_and_keeps_what_it_has_begun_with() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (mounted, mirror) = mounted_and_its_mirror(scratch.path());
    let source = &mounted.server;
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(mounted.path("sub")).unwrap();
    for n in 0..300 {
        fs::write(mounted.path(&format!("sub/{n}")), format!("{n}")).unwrap();
    }
    source.good(&["snapshot", "create", "vol0@zero"]);
    let token = source.invite();
    mirror.good(&["mirror", "create", "vol0", &token]);
    mirror.good(&["dump", "-0", "-f", &path("level0"), "vol0@zero"]);
    let restored = scratch.path().join("restored");
    fs::create_dir(&restored).unwrap();
    restore_ours(&scratch.path().join("level0"), &restored);
    assert_eq!(files(&restored), files(&mounted.point));

    // While the snapshot of level 0 exists, the maps show the changes; also if it is deleted in the
    // middle of the dump.
    wait_for_the_next_second();
    fs::write(mounted.path("large"), vec![7; 4 << 20]).unwrap();
    fs::remove_file(mounted.path("sub/7")).unwrap();
    source.good(&["snapshot", "create", "vol0@one"]);
    mirror.good(&["mirror", "update", "vol0"]);
    let wanted = files(&mounted.point);
    let plan = mirror.json(&["dump", "-n", "-1", "vol0@one"]);
    assert_eq!((&plan["why_all"], &plan["inodes"]), (&serde_json::Value::Null, &3.into()), "{plan}");
    let mut pipe = make_pipe(&scratch.path().join("pipe"));
    let said = scratch.path().join("said");
    let start = |level: &str, name: &str| {
        let mut dump = cairn();
        dump.args(["dump", level, name, "-f"]).arg(path("pipe")).arg("--data").arg(&mirror.data);
        dump.stdout(Stdio::null()).stderr(File::create(&said).unwrap()).spawn().unwrap()
    };
    let mut dump = start("-1", "vol0@one");
    let mut first = [0; 1024];
    pipe.read_exact(&mut first).unwrap();
    source.good(&["snapshot", "delete", "vol0@zero", "--yes"]);
    source.good(&["snapshot", "delete", "vol0@one", "--yes"]);
    fs::write(mounted.path("large"), vec![8; 4 << 20]).unwrap();
    mirror.good(&["mirror", "update", "vol0"]);
    let rest = drain(&mut dump, &mut pipe);
    assert_eq!(fs::read_to_string(&said).unwrap(), "", "it had all that it needed");
    fs::write(path("level1"), [&first[..], &rest].concat()).unwrap();
    restore_ours(&scratch.path().join("level1"), &restored);
    assert_eq!(files(&restored), wanted);

    // Deleted before the dump begins: the start reports the missing snapshot and the alternative,
    // and the dump is as complete.
    wait_for_the_next_second();
    fs::write(mounted.path("sub/new"), "new").unwrap();
    fs::remove_file(mounted.path("sub/8")).unwrap();
    mirror.good(&["mirror", "update", "vol0"]);
    let wanted = files(&mounted.point);
    let plan = mirror.json(&["dump", "-n", "-2", "vol0"]);
    let why = plan["why_all"].as_str().unwrap();
    assert!(why.contains("`vol0@one`") && why.contains("its source has deleted it"), "{why}");
    let mut dump = start("-2", "vol0");
    wait_until("it does not say what is missing", || {
        fs::read_to_string(&said).unwrap().contains("its source has deleted it")
    });
    assert!(dump.try_wait().unwrap().is_none(), "it is told before the end");
    fs::write(path("level2"), drain(&mut dump, &mut pipe)).unwrap();
    restore_ours(&scratch.path().join("level2"), &restored);
    assert_eq!(files(&restored), wanted);
}

/// Reads the output of a dump from a pipe, until the dump has completed.
fn drain(dump: &mut Child, pipe: &mut File) -> Vec<u8> {
    let over = Arc::new(AtomicBool::new(false));
    let (mut from, ended) = (pipe.try_clone().unwrap(), over.clone());
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 65_536]);
        // The last byte is not part of the dump, whose length is even.
        while !ended.load(Ordering::Acquire) || bytes.len() % 2 == 0 {
            let count = from.read(&mut buffer).unwrap();
            bytes.extend(&buffer[..count]);
        }
        bytes.pop();
        bytes
    });
    let status = dump.wait().unwrap();
    over.store(true, Ordering::Release);
    pipe.write_all(b".").unwrap();
    let bytes = reader.join().unwrap();
    assert!(status.success());
    bytes
}

#[test]
fn dump_in_volumes_has_its_names_and_its_date_when_the_last_one_is_there() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let server = &mounted.server;
    fs::create_dir(mounted.path("sub")).unwrap();
    for n in 0..300 {
        fs::write(mounted.path(&format!("sub/{n}")), format!("{n}")).unwrap();
    }
    let large: Vec<u8> = (0..900_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(mounted.path("large"), &large).unwrap();
    let path = |name: &str| scratch.path().join(name);
    let names = |prefix: &str| -> Vec<String> {
        let listed = fs::read_dir(scratch.path()).unwrap();
        let mut names: Vec<String> =
            listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        names
    };
    let dates = || server.json(&["dump", "--dates", "vol0"]).as_array().unwrap().len();

    // Too few names: nothing is kept, neither a volume nor a date.
    let few = format!("{},{}", path("few1").display(), path("few2").display());
    let told = server.bad(24, "no-space", &["dump", "-0", "-B", "100", "-f", &few, "vol0"]);
    assert!(told.contains("2 volume(s)"), "{told}");
    assert_eq!((names("few"), dates()), (Vec::<String>::new(), 0));
    for wrong in [&["-B", "10"][..], &["-M"], &["--volume-size", "1K"]] {
        let output = server.run(&[&["dump", "-0", "-f", "x", "vol0"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }

    // As many as it takes, and by size.
    server.good(&["dump", "-0", "--volume-size", "900K", "-f", &few, "vol0"]);
    assert_eq!((names("few"), dates()), (vec!["few1".to_owned(), "few2".to_owned()], 1));

    // By number; the large file fills several.
    let prefix = path("tape");
    let said = server.good(&["dump", "-0", "-M", "-B", "305", "-f", prefix.to_str().unwrap(), "vol0"]);
    let made = names("tape");
    assert!(made.len() >= 4 && made[0] == "tape001", "{made:?}");
    assert!(said.contains(&format!("{} volumes", made.len())), "{said}");
    for name in &made[..made.len() - 1] {
        assert_eq!(fs::metadata(path(name)).unwrap().len(), 300 * 1024, "{name}");
    }
    assert_eq!(dates(), 1);
    let told =
        server.bad(21, "taken", &["dump", "-0", "-M", "-B", "100", "-f", prefix.to_str().unwrap(), "vol0"]);
    assert!(told.contains("tape00"), "{told}");

    // Ours and Linux `restore` make the tree of them, and of the next level.
    wait_for_the_next_second();
    let (ours, theirs) = (path("ours"), path("theirs"));
    fs::create_dir(&ours).unwrap();
    fs::create_dir(&theirs).unwrap();
    let restore = ["/usr/sbin/restore", "/sbin/restore"].into_iter().find(|path| Path::new(path).exists());
    assert!(restore.is_some() || std::env::var_os("CI").is_none(), "restore must be installed here");
    let apply = |prefix: &Path| {
        let output = cairn().args(["restore", "-rMf"]).arg(prefix).arg("--to").arg(&ours).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(files(&ours), files(&mounted.point));
        let Some(restore) = restore else { return };
        let mut command = Command::new(restore);
        command.arg("-rMf").arg(prefix).arg("-T").arg(scratch.path()).current_dir(&theirs);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(files(&theirs), files(&mounted.point));
    };
    apply(&prefix);
    fs::write(mounted.path("sub/7"), &large[..500_000]).unwrap();
    fs::remove_file(mounted.path("sub/8")).unwrap();
    let next = path("next");
    server.good(&["dump", "-1", "-M", "-B", "100", "-f", next.to_str().unwrap(), "vol0"]);
    assert!(names("next").len() > 4);
    apply(&next);

    // The writer is killed: no date, no names.
    let before = dates();
    let mut dump = cairn();
    let pipe = path("slow");
    let held = make_pipe(&pipe);
    let list = format!("{},{}", path("early").display(), pipe.display());
    dump.args(["dump", "-2", "-B", "100", "-f", &list, "vol0:/sub"]).arg("--data").arg(&server.data);
    server.good(&["dump", "-0", "-f", path("sub0").to_str().unwrap(), "vol0:/sub"]);
    wait_for_the_next_second();
    fs::write(mounted.path("sub/9"), &large).unwrap();
    let mut dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the first volume is not written", || path("early.partial").exists());
    dump.kill().unwrap();
    dump.wait().unwrap();
    drop(held);
    wait_until("the server goes on with a dump that nobody takes", || mounted.snapshots().is_empty());
    assert_eq!((dates(), path("early").exists()), (before + 1, false), "that of level 0 alone");
}

#[test]
fn dump_whose_date_stands_has_its_files_though_the_server_dies_before_it_says_so() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("file"), vec![7; 300_000]).unwrap();
    let path = mounted.server.data.join("volumes/vol0/dates.json");
    let noted = || -> serde_json::Value {
        let text = fs::read(&path).unwrap_or_default();
        serde_json::from_slice::<serde_json::Value>(&text)
            .map_or_else(|_| "".into(), |found| found["dates"].clone())
    };
    for round in 0..6 {
        wait_for_the_next_second();
        let (file, before) = (scratch.path().join(format!("whole{round}")), noted());
        let mut dump = cairn();
        dump.args(["dump", "-0", "vol0", "-f"]).arg(&file).arg("--data").arg(&mounted.server.data);
        if round % 2 == 1 {
            dump.args(["-M", "-B", "100"]);
        }
        let mut dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it has no date", || {
            let now = noted();
            now.as_array().is_some_and(|dates| !dates.is_empty()) && now != before
        });
        mounted.server.kill();
        let _ = dump.wait().unwrap();
        let first = if round % 2 == 1 { format!("whole{round}001") } else { format!("whole{round}") };
        let names = [first.clone(), format!("{first}.partial")];
        assert!(
            names.iter().any(|name| scratch.path().join(name).exists()),
            "round {round}: it counts, and is gone"
        );
        mounted.server.restart();
    }
}

/// A server died after the date of a dump was saved and before its file got its name. Later levels
/// depend on that file, and a repeated command may fail as well.
#[test]
fn whole_dump_that_has_no_name_yet_is_not_emptied_by_the_same_command() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let path = |name: &str| scratch.path().join(name);
    let named = |name: &str| path(name).to_str().unwrap().to_owned();
    let content = |name: &str| fs::read(path(name)).unwrap();
    let level = |server: &Running, level: &str, to: &[&str]| {
        wait_for_the_next_second();
        server.good(&[&["dump", level][..], to, &["vol0"]].concat());
    };
    let (zero, one, two) = (named("zero"), named("one"), named("two"));
    fs::write(mounted.path("file"), vec![7; 300_000]).unwrap();
    level(&mounted.server, "-0", &["-f", &zero]);
    fs::write(mounted.path("first"), vec![8; 300_000]).unwrap();
    level(&mounted.server, "-1", &["-f", &one]);
    fs::write(mounted.path("second"), vec![9; 300_000]).unwrap();
    let in_volumes = ["-M", "-B", "100", "-f", &two];
    level(&mounted.server, "-2", &in_volumes);
    let volumes: Vec<String> = (1..=4).map(|number| format!("two{number:03}")).collect();
    let whole: Vec<(String, Vec<u8>)> =
        ["one".to_owned()].into_iter().chain(volumes).map(|name| (name.clone(), content(&name))).collect();
    assert!(!path("two005").exists());
    let partial = |name: &str| format!("{name}.partial");
    whole.iter().for_each(|(name, _)| fs::rename(path(name), path(&partial(name))).unwrap());

    let is_kept =
        || whole.iter().all(|(name, bytes)| fs::read(path(&partial(name))).ok() == Some(bytes.clone()));
    let single = ["dump", "-1", "-f", &one, "vol0"];
    let cut = [&["dump", "-2"][..], &in_volumes, &["vol0"]].concat();
    mounted.server.kill();
    for again in [&single[..], &cut] {
        assert!(!mounted.server.run(again).status.success());
        assert!(is_kept(), "{again:?}");
    }
    mounted.server.restart();
    for again in [&single[..], &cut] {
        let said = mounted.server.bad(21, "taken", again);
        assert!(said.contains(".partial"), "{said}");
        assert!(is_kept(), "{again:?}");
    }
    // The complete dump gets its name first, and so exists when this fails.
    for again in [&single[..], &cut] {
        let wrong = [again, &["--overwrite", "--exclude", "["]].concat();
        assert!(!mounted.server.run(&wrong).status.success());
    }
    for (name, bytes) in &whole {
        assert!(content(name) == *bytes && !path(&partial(name)).exists(), "{name}");
    }
    let to = path("to");
    fs::create_dir(&to).unwrap();
    restore_ours(&path("zero"), &to);
    restore_ours(&path("one"), &to);
    let output = cairn().args(["restore", "-rMf"]).arg(&two).arg("--to").arg(&to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(files(&to), files(&mounted.point));
    // A truncated one is useless.
    fs::rename(path("one"), path("whole")).unwrap();
    fs::write(path("one.partial"), &content("whole")[..200 << 10]).unwrap();
    mounted.server.good(&single);
    assert!(!path("one.partial").exists());
}

/// A directory blocks the name of a volume after the dump has begun. The date is saved when the
/// last volume is durable: later levels omit the content of the dump.
#[test]
fn dump_of_which_a_volume_does_not_get_its_name_keeps_all_of_them() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("file"), vec![7; 400_000]).unwrap();
    let path = |name: &str| scratch.path().join(name);
    let names = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"];
    let mut pipe = make_pipe(&path("second"));
    let listed = names.map(|name| path(name).to_str().unwrap().to_owned()).join(",");
    let mut dump = cairn();
    dump.args(["dump", "-0", "-B", "100", "vol0", "-f", &listed]).arg("--data").arg(&mounted.server.data);
    let dump = dump.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The second one is longer than a pipe holds, so the dump waits in its middle.
    let mut second = vec![0];
    pipe.read_exact(&mut second).unwrap();
    fs::create_dir(path("first")).unwrap();
    let length = fs::metadata(path("first.partial")).unwrap().len() as usize;
    second.resize(length, 0);
    pipe.read_exact(&mut second[1..]).unwrap();
    let output = dump.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(".partial"), "{said}");
    let dates = mounted.server.json(&["dump", "--dates", "vol0"]);
    assert_eq!(dates.as_array().unwrap().len(), 1, "it counts");

    fs::remove_dir(path("first")).unwrap();
    let partial = |name: &str| path(&format!("{name}.partial"));
    for name in names.into_iter().filter(|name| partial(name).exists()) {
        fs::rename(partial(name), path(name)).unwrap();
    }
    fs::remove_file(path("second")).unwrap();
    fs::write(path("second"), &second).unwrap();
    let there: Vec<String> = names.iter().map(|name| path(name).to_str().unwrap().to_owned()).collect();
    let there: Vec<String> = there.into_iter().filter(|name| Path::new(name).exists()).collect();
    let to = path("to");
    fs::create_dir(&to).unwrap();
    restore_ours(Path::new(&there.join(",")), &to);
    assert_eq!(files(&to), files(&mounted.point));
}

/// A file that was unreadable during a dump keeps its old date when it can be read again.
#[test]
fn what_could_not_be_read_for_a_dump_is_in_the_next_level_once_it_can_be() {
    use std::os::unix::fs::FileExt;
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let content =
        |salt: u64| -> Vec<u8> { (0..12_288u64).flat_map(|n| (n * n + salt).to_le_bytes()).collect() };
    fs::write(mounted.path("rots"), content(1)).unwrap();
    fs::write(mounted.path("stays"), content(2)).unwrap();
    let (zero, one, two) = (scratch.path().join("0"), scratch.path().join("1"), scratch.path().join("2"));
    let dump = |mounted: &Mounted, level: &str, to: &Path| {
        let output = mounted.server.run(&["dump", level, "vol0", "-f", to.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // Cached data would not be read from the disk.
    assert_eq!(mounted.server.terminate(), 0);
    let image = mounted.server.data.join("volumes/vol0/volume.img");
    let image = File::options().read(true).write(true).open(image).unwrap();
    let (rots, mut block) = (content(1), vec![0; 4096]);
    let place = (0..image.metadata().unwrap().len() / 4096).map(|number| number * 4096).find(|at| {
        image.read_exact_at(&mut block, *at).unwrap();
        block == rots[8192..12_288]
    });
    let place = place.expect("the block is in the file");
    image.write_all_at(b"rotten", place).unwrap();
    mounted.server.restart();
    let (code, said) = dump(&mounted, "-0", &zero);
    assert!(code == Some(3) && said.contains("some of its content"), "{code:?} {said}");
    wait_for_the_next_second();
    let (code, said) = dump(&mounted, "-1", &one);
    assert!(
        code == Some(3) && said.contains("some of its content"),
        "as long as it can't be read: {code:?} {said}"
    );
    image.write_all_at(&rots[8192..12_288], place).unwrap();
    wait_for_the_next_second();
    let (code, said) = dump(&mounted, "-2", &two);
    assert_eq!(code, Some(0), "{said}");
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    for (dump, expected) in [(&zero, 3), (&one, 3), (&two, 0)] {
        let output = cairn().args(["restore", "-rf"]).arg(dump).arg("--to").arg(&to).output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{}", dump.display());
    }
    assert!(files(&to) == files(&mounted.point));
    // From then on all is as if it had been there at once.
    let three = scratch.path().join("3");
    wait_for_the_next_second();
    fs::write(mounted.path("fresh"), b"fresh").unwrap();
    assert_eq!(dump(&mounted, "-3", &three).0, Some(0));
    assert!(fs::metadata(&three).unwrap().len() < 60_000, "nothing but what changed");
}

/// Writes to a disk are cached by the kernel first, and only a flush shows whether the disk has
/// accepted them.
#[test]
fn dump_on_a_disk_counts_once_the_disk_has_taken_it() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("large"), vec![7; 16 << 20]).unwrap();
    let small = scratch.path().join("small");
    fs::create_dir(&small).unwrap();
    let Some(room) = SmallDisk::mount(&small, 2 << 20) else { return };
    let image = small.join("disk.img");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let Some(disk) = Loop::over(&image) else { return };
    for dump in [
        &["dump", "-0", "vol0", "-f", &disk.0][..],
        &["dump", "-0", "vol0", "--volume-size", "1G", "-f", &disk.0],
        &["image", "dump", "vol0", "--to", &disk.0],
    ] {
        let failed = mounted.server.run(dump);
        assert!(!failed.status.success(), "the disk has not taken it: {dump:?}");
    }
    assert_eq!(mounted.server.json(&["dump", "vol0", "--dates"]), serde_json::json!([]));
    assert_eq!(mounted.server.json(&["image", "levels", "vol0"]), serde_json::json!([]));
    room.grow(128 << 20);
    mounted.server.good(&["dump", "-0", "vol0", "-f", &disk.0]);
    assert_eq!(mounted.server.json(&["dump", "vol0", "--dates"]).as_array().unwrap().len(), 1);
    let to = scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    restore_ours(Path::new(&disk.0), &to);
    assert!(files(&to) == files(&mounted.point));
}

/// A mounted disk, or one of a volume, must not be overwritten by a dump.
#[test]
fn dump_is_not_written_onto_a_disk_that_is_in_use() {
    use std::os::unix::fs::OpenOptionsExt;
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    fs::write(mounted.path("file"), b"file").unwrap();
    let image = scratch.path().join("disk.img");
    fs::write(&image, vec![5; 1 << 20]).unwrap();
    let Some(disk) = Loop::over(&image) else { return };
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let used = File::options().read(true).custom_flags(exclusive).open(&disk.0).unwrap();
    for dump in [
        &["dump", "-0", "vol0", "-f", &disk.0][..],
        &["dump", "-0", "vol0", "--volume-size", "1G", "-f", &disk.0],
        &["image", "dump", "vol0", "--to", &disk.0],
    ] {
        let message = mounted.server.bad(11, "busy", dump);
        assert!(message.contains(&disk.0) && message.contains("in use"), "{message}");
    }
    drop(used);
    assert!(fs::read(&disk.0).unwrap() == vec![5; 1 << 20], "nothing was written");
    mounted.server.good(&["dump", "-0", "vol0", "-f", &disk.0]);
}

#[test]
fn dump_that_is_thrown_away_leaves_no_date() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(mounted.path("first"), "one").unwrap();
    // As its users write it.
    mounted.server.good(&["dump", "-0uf", &path("0"), "vol0"]);
    wait_for_the_next_second();
    fs::write(mounted.path("second"), "two").unwrap();
    let dates = || mounted.server.json(&["dump", "--dates", "vol0"]);
    let before = dates();
    for level in ["-0", "-1"] {
        let output = mounted.server.run(&["dump", level, "-f", "/dev/null", "vol0"]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("does not count"), "{output:?}");
        assert_eq!(dates(), before);
        // With volumes the server does not see the target.
        let volumes = ["dump", level, "--volume-size", "1G", "-f", "/dev/null", "vol0"];
        assert!(mounted.server.bad(2, "usage", &volumes).contains("/dev/null"));
        assert_eq!(dates(), before);
    }
    wait_for_the_next_second();
    mounted.server.good(&["dump", "-1", "-f", &path("1"), "vol0"]);
    let restored = tempfile::tempdir().unwrap();
    for dump in ["0", "1"] {
        restore_ours(&scratch.path().join(dump), restored.path());
    }
    assert_eq!(files(restored.path()), files(&mounted.point));
}

#[test]
fn dump_after_a_rollback_does_not_go_by_the_date_of_what_was_given_up() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (mounted, mirror) = mounted_and_its_mirror(scratch.path());
    let source = &mounted.server;
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(mounted.path("file"), "one").unwrap();
    source.good(&["snapshot", "create", "vol0@one"]);
    let token = source.invite();
    mirror.good(&["mirror", "create", "vol0", &token]);
    wait_for_the_next_second();
    fs::write(mounted.path("file"), "two").unwrap();
    source.good(&["dump", "-0", "-f", &path("source0"), "vol0"]);
    mirror.good(&["mirror", "update", "vol0"]);
    mirror.good(&["dump", "-0", "-f", &path("mirror0"), "vol0"]);
    wait_for_the_next_second();
    let point = mounted.point.to_str().unwrap();
    source.good(&["unmount", point]);
    source.good(&["snapshot", "rollback", "vol0@one", "--yes"]);
    source.good(&["mount", "vol0", point]);
    assert_eq!(fs::read_to_string(mounted.path("file")).unwrap(), "one");

    // By its date the file did not change since: the next level would leave it out.
    source.bad(10, "not-found", &["dump", "-1", "-f", &path("source1"), "vol0"]);
    mirror.good(&["mirror", "update", "vol0"]);
    let by_dates = ["dump", "-1", "--exclude", "nothing", "-f", "/dev/null", "vol0"];
    let told = mirror.bad(13, "diverged", &by_dates);
    assert!(told.contains("rolled back"), "{told}");
    let is_complete = |dumps: [&str; 2]| {
        let restored = tempfile::tempdir().unwrap();
        for dump in dumps {
            restore_ours(&scratch.path().join(dump), restored.path());
        }
        assert_eq!(files(restored.path()), files(&mounted.point), "{dumps:?}");
    };
    // The maps of the two snapshots show it, while both exist.
    mirror.good(&["dump", "-1", "-f", &path("mirror1"), "vol0"]);
    is_complete(["mirror0", "mirror1"]);
    // The dumped snapshot is deleted from the mirror as well; the rollback of the volume is still
    // detected.
    for n in 0..2 {
        fs::write(mounted.path("more"), format!("{n}")).unwrap();
        mirror.good(&["mirror", "update", "vol0"]);
        assert!(mirror.bad(13, "diverged", &by_dates).contains("rolled back"));
    }
    // Of the second of the rollback itself nothing is known.
    wait_for_the_next_second();
    source.good(&["dump", "-0", "-f", &path("source0 again"), "vol0"]);
    wait_for_the_next_second();
    fs::write(mounted.path("more"), "even more").unwrap();
    source.good(&["dump", "-1", "-f", &path("source1"), "vol0"]);
    is_complete(["source0 again", "source1"]);
}

/// By the date of such a dump the restored files would not have changed since.
#[test]
fn dump_that_ends_after_its_volume_was_brought_back_leaves_no_date() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let (server, point) = (&mounted.server, mounted.point.to_str().unwrap());
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(mounted.path("file"), "one").unwrap();
    server.good(&["unmount", point]);
    server.good(&["history", "enable", "vol0", "--history", &path("store"), "--yes"]);
    server.good(&["history", "mark", "vol0", "one"]);
    wait_for_the_next_second();
    server.good(&["mount", "vol0", point]);
    fs::write(mounted.path("file"), vec![7; 80_000]).unwrap();
    server.good(&["unmount", point]);
    // The server has written everything, and its client waits for a reader.
    let mut pipe = make_pipe(&scratch.path().join("pipe"));
    let mut dump = cairn();
    dump.args(["dump", "-0", "-B", "1000", "-f", &path("pipe"), "vol0"]).arg("--data").arg(&server.data);
    let mut dump = dump.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the server does not come to an end", || server.jobs().contains("to be on its medium"));
    server.good(&["history", "revert", "vol0", "--mark", "one", "--yes"]);
    drain(&mut dump, &mut pipe);
    assert_eq!(server.json(&["dump", "--dates", "vol0"]), serde_json::json!([]));
    server.bad(10, "not-found", &["dump", "-1", "-f", &path("level1"), "vol0"]);

    // Later dumps leave a date.
    wait_for_the_next_second();
    server.good(&["dump", "-0", "-f", &path("level0"), "vol0"]);
    server.good(&["mount", "vol0", point]);
    assert_eq!(fs::read_to_string(mounted.path("file")).unwrap(), "one");
    wait_for_the_next_second();
    fs::write(mounted.path("more"), "more").unwrap();
    server.good(&["dump", "-1", "-f", &path("level1"), "vol0"]);
    let restored = scratch.path().join("restored");
    fs::create_dir(&restored).unwrap();
    restore_ours(&scratch.path().join("level0"), &restored);
    restore_ours(&scratch.path().join("level1"), &restored);
    assert_eq!(files(&restored), files(&mounted.point));
}

/// A level goes forward in time: one that goes back could not be restored on top of its base.
#[test]
fn level_of_a_snapshot_from_before_the_lower_dump_is_refused() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let server = &mounted.server;
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    for name in ["one", "two", "three"] {
        fs::write(mounted.path("file"), name).unwrap();
        server.good(&["snapshot", "create", &format!("vol0@{name}")]);
        wait_for_the_next_second();
    }
    server.good(&["dump", "-0", "-f", &path("zero"), "vol0@two"]);
    // By the maps, and by the dates.
    for more in [&[][..], &["--exclude", "nothing"]] {
        let older = [&["dump", "-1", "-f", "/dev/null"][..], more, &["vol0@one"]].concat();
        let told = server.bad(2, "usage", &older);
        assert!(
            told.contains("vol0@one") && told.contains("older") && !told.contains("rolled back"),
            "{told}"
        );
    }
    server.bad(2, "usage", &["dump", "-1", "--dry-run", "vol0@one"]);
    let dates = server.json(&["dump", "--dates", "vol0"]);
    assert_eq!(dates.as_array().unwrap().len(), 1, "{dates}");
    server.good(&["dump", "-1", "-f", &path("first"), "vol0@three"]);
    let restored = tempfile::tempdir().unwrap();
    for dump in ["zero", "first"] {
        restore_ours(&scratch.path().join(dump), restored.path());
    }
    assert_eq!(fs::read_to_string(restored.path().join("file")).unwrap(), "three");
}

/// Files moved into a part of a volume keep their dates, and no dump of that part has them yet.
#[test]
fn what_comes_into_the_part_that_is_dumped_is_in_the_next_level_however_old_it_is() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    for name in ["home/first", "home/cache/deep/cached", "archive/old/deep/file", "archive/more/deep/file"] {
        fs::create_dir_all(mounted.path(name).parent().unwrap()).unwrap();
        fs::write(mounted.path(name), name).unwrap();
    }
    wait_for_the_next_second();
    let part = |level: &str| {
        mounted.server.good(&[
            "dump",
            &format!("-{level}"),
            "-f",
            &path(&format!("part{level}")),
            "vol0:/home",
        ]);
    };
    let dump = |level: &str, more: &[&str]| {
        let (level, file) = (format!("-{level}"), path(&format!("whole{level}")));
        mounted.server.good(&[&["dump", &level, "-f", &file, "vol0"], more].concat());
    };
    part("0");
    // No path ends with a slash, so such a pattern would exclude nothing.
    mounted.server.bad(2, "usage", &["dump", "-0", "-f", "/dev/null", "vol0", "--exclude", "cache/"]);
    dump("0", &["--exclude", "cache"]);
    wait_for_the_next_second();
    fs::rename(mounted.path("archive/old"), mounted.path("home/old")).unwrap();
    fs::rename(mounted.path("home/cache"), mounted.path("home/kept")).unwrap();
    part("1");
    dump("1", &["--exclude", "cache"]);
    wait_for_the_next_second();
    fs::rename(mounted.path("archive/more"), mounted.path("home/more")).unwrap();
    part("2");
    // Without the pattern, on top of one with it.
    fs::create_dir(mounted.path("cache")).unwrap();
    fs::rename(mounted.path("home/first"), mounted.path("cache/first")).unwrap();
    dump("2", &["--exclude", "cache"]);
    dump("3", &[]);
    let restored = |series: &str, levels: &[&str]| {
        let to = tempfile::tempdir().unwrap();
        levels
            .iter()
            .for_each(|level| restore_ours(&scratch.path().join(format!("{series}{level}")), to.path()));
        files(to.path())
    };
    let all = files(&mounted.point);
    assert_eq!(restored("whole", &["0", "1", "2", "3"]), all);
    part("3");
    let home = |file: &(PathBuf, Vec<u8>)| file.0.starts_with("home");
    let wanted: Vec<_> = all.iter().filter(|file| home(file)).cloned().collect();
    assert_eq!(wanted.len(), 3);
    assert_eq!(restored("part", &["0", "1", "2", "3"]), wanted);
    // If the content of a dump is unknown, everything is dumped, and that is reported.
    let folder = mounted.server.data.join("volumes/vol0");
    let is_note = |name: &str| name.starts_with("had.");
    let notes = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let notes: Vec<_> = notes.filter(|path| is_note(path.file_name().unwrap().to_str().unwrap())).collect();
    assert_eq!(notes.len(), 7, "one a level of each path, but for the dump of everything: {notes:?}");
    notes.iter().for_each(|path| fs::remove_file(path).unwrap());
    let plan = mounted.server.json(&["dump", "-n", "-9", "vol0:/home"]);
    assert!(plan["why_all"].as_str().unwrap().contains("is unknown"), "{plan}");
    assert_eq!(plan["inodes"], 2 + 3 * 3, "{plan}");
    fs::remove_file(scratch.path().join("part3")).unwrap();
    part("3");
    assert_eq!(restored("part", &["0", "1", "2", "3"]), wanted);
}

/// A file with several names is as old as it was, and so are the directories that they are in.
#[test]
fn names_of_a_file_with_several_come_and_go_with_the_patterns_of_its_dumps() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), &["--mirror", "off"]);
    for directory in ["kept", "other/deep"] {
        fs::create_dir_all(mounted.path(directory)).unwrap();
    }
    fs::write(mounted.path("kept/file"), "as it was").unwrap();
    fs::hard_link(mounted.path("kept/file"), mounted.path("other/deep/link")).unwrap();
    let dump = |level: &str, more: &[&str]| {
        wait_for_the_next_second();
        let file = scratch.path().join(level).to_str().unwrap().to_owned();
        mounted.server.good(&[&["dump", &format!("-{level}"), "-f", &file, "vol0"], more].concat());
    };
    let pattern = ["--exclude", "other/deep/link"];
    let to = tempfile::tempdir().unwrap();
    let has = |level: &str, names: &[&str]| {
        restore_ours(&scratch.path().join(level), to.path());
        let found: Vec<_> = files(to.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, names.iter().map(PathBuf::from).collect::<Vec<_>>(), "after level {level}");
    };
    dump("0", &pattern);
    has("0", &["kept/file"]);
    dump("1", &[]);
    has("1", &["kept/file", "other/deep/link"]);
    dump("2", &pattern);
    has("2", &["kept/file"]);
    wait_for_the_next_second();
    fs::rename(mounted.path("other"), mounted.path("moved")).unwrap();
    dump("3", &pattern);
    has("3", &["kept/file", "moved/deep/link"]);
}
