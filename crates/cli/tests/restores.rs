//! `cairn restore`: trees of this machine through dumps and back, and the limits of a dump.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cairn_bsddump::{Attribute, Dump, Entry, Inode, Kind, Options, RECORD, ROOT, Reader, Source, Time};

/// A directory of this machine as a source. Numbers are those of its inodes.
struct Folder {
    root: PathBuf,
    paths: BTreeMap<u32, PathBuf>,
    root_number: u32,
    /// When each file was last changed, as the dumps before saw it; another time is of now.
    seen: BTreeMap<u32, (i64, i64, u32)>,
    /// Attributes besides those that the files have.
    more: BTreeMap<PathBuf, Attribute>,
}

impl Folder {
    fn new(root: &Path) -> Self {
        let (paths, seen, more) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { root: root.to_owned(), paths, root_number: 0, seen, more }
    }

    fn number(&self, metadata: &std::fs::Metadata) -> u32 {
        let number = u32::try_from(metadata.ino()).expect("a test's file system is small");
        // The root has a number of its own in a dump; inodes 1 and 2 are not used otherwise on real
        // file systems.
        if number == self.root_number { ROOT } else { number + 10 }
    }

    fn dump(&mut self, level: u32, since: u32, date: u32) -> Vec<u8> {
        self.dump_in(None, level, since, date)
    }

    /// The same in volumes of this many records.
    fn dump_in(&mut self, volume_records: Option<u64>, level: u32, since: u32, date: u32) -> Vec<u8> {
        self.paths.clear();
        let mut waiting = vec![self.root.clone()];
        self.root_number = u32::try_from(std::fs::metadata(&self.root).unwrap().ino()).unwrap();
        while let Some(path) = waiting.pop() {
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            self.paths.insert(self.number(&metadata), path);
        }
        let options = Options { level, since, date, volume_records, ..Options::default() };
        let mut bytes = Vec::new();
        let dump = Dump::plan(self, options, None, &mut |_| true).unwrap();
        let written = dump.write(self, &mut bytes, &mut |_| true).unwrap();
        assert!(written.failed.is_empty());
        for number in self.paths.keys().copied().collect::<Vec<_>>() {
            let metadata = std::fs::symlink_metadata(&self.paths[&number]).unwrap();
            self.seen.insert(number, (metadata.ctime(), metadata.ctime_nsec(), date));
        }
        bytes
    }

    /// The present files are those of `date`: a rollback.
    fn go_back_to(&mut self, date: u32) {
        for (number, path) in &self.paths {
            if let Ok(metadata) = std::fs::symlink_metadata(path) {
                self.seen.insert(*number, (metadata.ctime(), metadata.ctime_nsec(), date));
            }
        }
    }
}

impl Source for Folder {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()> {
        for number in self.paths.keys().copied().collect::<Vec<_>>() {
            each(&self.inode(number)?);
        }
        Ok(())
    }

    fn inode(&mut self, number: u32) -> std::io::Result<Inode> {
        let metadata = std::fs::symlink_metadata(&self.paths[&number])?;
        let time = |seconds, nanoseconds: i64| Time { seconds, nanoseconds: nanoseconds as u32 };
        // Real times are all of this moment: an unchanged file has the date of its first dump.
        let stamp = (metadata.ctime(), metadata.ctime_nsec());
        let changed = match self.seen.get(&number) {
            Some((seconds, nanoseconds, date)) if (*seconds, *nanoseconds) == stamp => i64::from(*date) - 1,
            _ => i64::MAX >> 32,
        };
        let kind = Kind::of_mode(metadata.mode()).unwrap();
        Ok(Inode {
            number,
            kind,
            permissions: (metadata.mode() & 0o7777) as u16,
            links: metadata.nlink() as u32,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: if kind.has_content() { metadata.len() } else { 0 },
            accessed: time(metadata.atime(), metadata.atime_nsec()),
            modified: time(metadata.mtime().min(1), metadata.mtime_nsec()),
            changed: time(changed, 0),
            born: None,
            device: (0, 0),
        })
    }

    fn entries(&mut self, directory: u32) -> std::io::Result<(Vec<Entry>, u32)> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.paths[&directory])? {
            let entry = entry?;
            let metadata = std::fs::symlink_metadata(entry.path())?;
            let kind = Kind::of_mode(metadata.mode());
            entries.push(Entry { number: self.number(&metadata), kind, name: entry.file_name().into_vec() });
        }
        let above = std::fs::metadata(self.paths[&directory].join(".."))?;
        Ok((entries, if directory == ROOT { ROOT } else { self.number(&above) }))
    }

    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>> {
        let metadata = std::fs::symlink_metadata(&self.paths[&number])?;
        Ok(vec![(0, metadata.len())])
    }

    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let path = &self.paths[&number];
        if path.is_symlink() {
            bytes.copy_from_slice(
                &std::fs::read_link(path)?.as_os_str().as_bytes()[offset as usize..][..bytes.len()],
            );
            return Ok(());
        }
        std::fs::File::open(path)?.read_exact_at(bytes, offset)
    }

    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>> {
        let path = &self.paths[&number];
        let more = path.strip_prefix(&self.root).ok().and_then(|path| self.more.get(path));
        Ok(attributes(path).into_iter().chain(more.cloned()).collect())
    }
}

/// The attributes that users set: extended attributes and access lists.
fn attributes(path: &Path) -> Vec<Attribute> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0);
    let read = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        Attribute { name: name.to_vec(), value: value[..length].to_vec() }
    };
    names.filter(|name| name.starts_with(b"user.") || name.starts_with(b"system.")).map(read).collect()
}

fn cairn(arguments: &[&OsStr], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end before it has read everything: the output is checked.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn restore(flags: &str, dump: &Path, to: &Path, more: &[&str]) -> Output {
    let mut arguments: Vec<&OsStr> = vec!["restore".as_ref(), flags.as_ref(), dump.as_ref()];
    arguments.extend([OsStr::new("--to"), to.as_ref()]);
    arguments.extend(more.iter().map(OsStr::new));
    cairn(&arguments, b"")
}

fn good(output: &Output) -> String {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// The state of a tree: path to mode, content or target, and names of the same file.
fn look(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>, Vec<PathBuf>)> {
    let mut found: BTreeMap<PathBuf, (u32, Vec<u8>, u64)> = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path == root.join(".cairn-restore.json") {
                continue;
            }
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let content = match Kind::of_mode(metadata.mode()).unwrap() {
                Kind::Regular => std::fs::read(&path).unwrap(),
                Kind::Symlink => std::fs::read_link(&path).unwrap().into_os_string().into_vec(),
                _ => Vec::new(),
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.insert(name, (metadata.mode(), content, metadata.ino()));
            if metadata.is_dir() {
                waiting.push(path);
            }
        }
    }
    let same =
        |number: u64| found.iter().filter(|(_, file)| file.2 == number).map(|(p, _)| p.clone()).collect();
    found
        .iter()
        .map(|(path, (mode, content, ino))| (path.clone(), (*mode, content.clone(), same(*ino))))
        .collect()
}

fn scene() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    std::fs::create_dir_all(from.join("a/b/c")).unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::write(from.join("a/b/file"), vec![5; 200_000]).unwrap();
    std::fs::hard_link(from.join("a/b/file"), from.join("a/second name")).unwrap();
    std::os::unix::fs::symlink("b/file", from.join("a/link")).unwrap();
    std::fs::write(from.join("a/b/c/deep"), b"deep").unwrap();
    std::fs::write(from.join("top"), b"top").unwrap();
    std::fs::set_permissions(from.join("top"), std::fs::Permissions::from_mode(0o4711)).unwrap();
    for n in 0..20 {
        std::fs::write(from.join(format!("a/b/name {n}")), format!("{n}")).unwrap();
    }
    (scratch, from, to)
}

#[test]
fn levels_make_the_same_tree_again() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let dump = scratch.path().join("dump");
    let mut apply = |level: u32, since: u32, date: u32| {
        std::fs::write(&dump, folder.dump(level, since, date)).unwrap();
        good(&restore("-rf", &dump, &to, &[]));
        assert_eq!(look(&to), look(&from), "level {level}");
    };
    apply(0, 0, 1000);
    // Nothing changed.
    apply(1, 1000, 2000);
    // A directory moves with its content, and a directory in it moves the other way; names are
    // swapped; files are removed and created.
    std::fs::rename(from.join("a/b/c"), from.join("c")).unwrap();
    std::fs::rename(from.join("a"), from.join("c/a")).unwrap();
    std::fs::rename(from.join("c/a/b/name 1"), from.join("x")).unwrap();
    std::fs::rename(from.join("c/a/b/name 2"), from.join("c/a/b/name 1")).unwrap();
    std::fs::rename(from.join("x"), from.join("c/a/b/name 2")).unwrap();
    std::fs::remove_file(from.join("c/a/b/name 3")).unwrap();
    std::fs::write(from.join("c/a/b/fresh"), b"fresh").unwrap();
    apply(2, 2000, 3000);
    // A file becomes a directory and the reverse; a directory goes with all in it; names of one
    // file change.
    std::fs::remove_file(from.join("top")).unwrap();
    std::fs::create_dir(from.join("top")).unwrap();
    std::fs::write(from.join("top/inside"), b"inside").unwrap();
    std::fs::rename(from.join("c/a/second name"), from.join("top/third name")).unwrap();
    std::fs::remove_file(from.join("c/a/b/file")).unwrap();
    std::fs::remove_dir_all(from.join("c/a/b")).unwrap();
    std::fs::write(from.join("c/a/b"), b"was a directory").unwrap();
    std::fs::set_permissions(from.join("c/deep"), std::fs::Permissions::from_mode(0o600)).unwrap();
    apply(3, 3000, 4000);
    std::fs::remove_dir_all(from.join("c")).unwrap();
    apply(5, 4000, 5000);
}

#[test]
fn levels_out_of_turn_are_refused() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one, two] = ["0", "1", "2"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    std::fs::write(&two, folder.dump(2, 2000, 3000)).unwrap();
    let refused = restore("-rf", &one, &to, &[]);
    assert_eq!(code(&refused), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("level 0 first"));
    good(&restore("-rf", &zero, &to, &[]));
    assert_eq!(code(&restore("-rf", &zero, &to, &[])), Some(32), "the directory is not empty");
    let refused = restore("-rf", &two, &to, &[]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in between"), "{refused:?}");
    good(&restore("-rf", &one, &to, &[]));
    good(&restore("-rf", &two, &to, &[]));
    assert_eq!(code(&restore("-rf", &one, &to, &[])), Some(2), "it is older");
    assert_eq!(look(&to), look(&from));
}

/// A file after a rollback is older than the dumps that had it, and so is in no later one: restored
/// on top of them it would keep its earlier state.
#[test]
fn level_is_not_restored_on_top_of_one_that_a_rollback_has_given_up() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, given_up, one, two] = ["0", "given up", "1", "2"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::write(from.join("a/b/name 5"), b"given up").unwrap();
    std::fs::write(&given_up, folder.dump(1, 1000, 2000)).unwrap();
    std::fs::write(from.join("a/b/name 5"), b"5").unwrap();
    folder.go_back_to(1000);
    std::fs::write(from.join("a/b/name 1"), b"changed").unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 3000)).unwrap();

    good(&restore("-rf", &zero, &to, &[]));
    good(&restore("-rf", &given_up, &to, &[]));
    let before = look(&to);
    let refused = restore("-rf", &one, &to, &[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(code(&refused), Some(2), "it would have what was given up: {said}");
    assert!(said.contains("rolled back") && said.contains("level 0"), "{said}");
    assert!(look(&to) == before, "nothing was changed");
    let other = scratch.path().join("other");
    std::fs::create_dir(&other).unwrap();
    good(&restore("-rf", &zero, &other, &[]));
    good(&restore("-rf", &one, &other, &[]));
    assert!(look(&other) == look(&from));
    // One of the same level with all changes since the dump of level 0 can be restored on top,
    // after any others between.
    std::fs::write(from.join("a/b/name 2"), b"changed").unwrap();
    std::fs::remove_file(from.join("a/b/name 3")).unwrap();
    std::fs::write(&two, folder.dump(1, 1000, 4000)).unwrap();
    good(&restore("-rf", &two, &other, &[]));
    assert!(look(&other) == look(&from));
    // One based on another dump of level 0 cannot.
    let later = scratch.path().join("later");
    std::fs::create_dir(&later).unwrap();
    std::fs::write(&zero, folder.dump(0, 0, 5000)).unwrap();
    std::fs::write(&one, folder.dump(1, 4000, 6000)).unwrap();
    good(&restore("-rf", &zero, &later, &[]));
    let refused = restore("-rf", &one, &later, &[]);
    assert_eq!(code(&refused), Some(2), "{refused:?}");
}

/// The record of a file's header in a dump.
fn record_of(bytes: &[u8], number: u32) -> usize {
    let mut reader = Reader::open(bytes).unwrap();
    loop {
        let at = reader.bytes() as usize / RECORD - 1;
        if reader.next_inode().unwrap().expect("it is in the dump").number == number {
            return at;
        }
        reader.content(&mut |_, _| Ok(())).unwrap();
    }
}

/// A lost directory costs the names in it: their files are reported, and restored without names.
#[test]
fn files_whose_directory_is_lost_are_told_and_come_out_by_their_numbers() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let whole = folder.dump(0, 0, 1000);
    let number = |path: &str| folder.number(&std::fs::symlink_metadata(from.join(path)).unwrap());
    let dump = scratch.path().join("dump");
    let lose = |directory: u32| {
        let mut damaged = whole.clone();
        let at = record_of(&whole, directory) * RECORD;
        damaged[at..at + RECORD].fill(0);
        std::fs::write(&dump, damaged).unwrap();
    };
    let fresh = |name: &str| {
        let to = to.join(name);
        std::fs::create_dir(&to).unwrap();
        to
    };
    let text = |told: Output| {
        assert_eq!(code(&told), Some(3), "{told:?}");
        String::from_utf8([told.stdout, told.stderr].concat()).unwrap()
    };
    lose(number("a/b"));
    // A listing reports it as well.
    let listed = text(restore("-tf", &dump, &to, &[]));
    assert!(listed.contains("./a/b: not found in the dump"), "{listed}");
    let (seventh, deep) = (number("a/b/name 7"), number("a/b/c"));
    assert!(listed.contains(&format!("./lost+found/{seventh}\n")), "{listed}");
    assert!(listed.contains(&format!("./lost+found/{deep}/deep\n")), "{listed}");
    let rebuilt = fresh("rebuilt");
    let said = text(restore("-rf", &dump, &rebuilt, &[]));
    assert!(said.contains("lost+found"), "{said}");
    assert!(!rebuilt.join("lost+found").exists());
    let single = fresh("single");
    let said = text(restore("-xf", &dump, &single, &[]));
    assert!(said.contains("lost+found"), "{said}");
    let read =
        |path: String| std::fs::read(single.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    for n in 0..20 {
        let path = format!("lost+found/{}", number(&format!("a/b/name {n}")));
        assert_eq!(read(path), n.to_string().into_bytes());
    }
    assert_eq!(read(format!("lost+found/{deep}/deep")), b"deep");
    assert_eq!(read("a/second name".to_owned()).len(), 200_000);
    assert_eq!(std::fs::read_dir(single.join("lost+found")).unwrap().count(), 21);
    let one = fresh("one");
    text(restore("-xf", &dump, &one, &[&format!("lost+found/{seventh}")]));
    assert_eq!(std::fs::read(one.join(format!("lost+found/{seventh}"))).unwrap(), b"7");

    // Without the root all the rest is restored.
    lose(ROOT);
    let refused = restore("-rf", &dump, &fresh("no root"), &["--json"]);
    assert_eq!(code(&refused), Some(27), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("-x"), "{refused:?}");
    let all = fresh("all");
    text(restore("-xf", &dump, &all, &[]));
    let below = all.join("lost+found").join(number("a").to_string());
    assert!(look(&below) == look(&from.join("a")));
    assert_eq!(std::fs::read(all.join(format!("lost+found/{}", number("top")))).unwrap(), b"top");
}

/// A file that is lost in a dump of a higher level keeps its state of the earlier dumps, even if it
/// has another name now, and is reported under all its names.
#[test]
fn file_that_has_other_names_in_an_increment_and_is_lost_there_is_what_it_was_and_told_by_each_name() {
    let (scratch, from, to) = scene();
    std::fs::create_dir(from.join("away")).unwrap();
    let mut folder = Folder::new(&from);
    let [zero, one, two] = ["0", "1", "2"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::rename(from.join("a/b/name 7"), from.join("away/seven")).unwrap();
    std::fs::write(from.join("away/seven"), b"changed").unwrap();
    std::fs::hard_link(from.join("away/seven"), from.join("seven")).unwrap();
    std::fs::hard_link(from.join("a/b/name 9"), from.join("away/nine")).unwrap();
    std::fs::rename(from.join("a/b/name 10"), from.join("away/ten")).unwrap();
    std::fs::rename(from.join("a/b"), from.join("away/b")).unwrap();
    let mut bytes = folder.dump(1, 1000, 2000);
    let number = |path: &str| folder.number(&std::fs::symlink_metadata(from.join(path)).unwrap());
    for path in ["away/seven", "away/nine"] {
        let at = record_of(&bytes, number(path)) * RECORD;
        bytes[at..at + RECORD].fill(0);
    }
    std::fs::write(&one, bytes).unwrap();
    std::fs::write(from.join("away/b/name 5"), b"changed").unwrap();
    std::fs::write(&two, folder.dump(2, 2000, 3000)).unwrap();

    good(&restore("-rf", &zero, &to, &[]));
    let told = restore("-rf", &one, &to, &[]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    for path in ["away/seven", "seven", "away/nine", "away/b/name 9"] {
        assert!(said.contains(&format!("./{path}: not found in the dump\n")), "{path} is told: {said}");
    }
    good(&restore("-rf", &two, &to, &[]));
    let mut wanted = look(&from);
    for path in ["away/seven", "seven"] {
        wanted.get_mut(Path::new(path)).unwrap().1 = b"7".to_vec();
    }
    assert_eq!(look(&to), wanted);
    assert!(!to.join(".cairn-restore.work").exists());
}

/// A file with another name in a dump of a higher level is complete there: changes by others to the
/// old one since do no harm.
#[test]
fn file_that_has_another_name_in_an_increment_is_made_whatever_others_did_to_the_old_one() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::rename(from.join("a/b/name 7"), from.join("seven")).unwrap();
    std::fs::rename(from.join("a/b/name 8"), from.join("eight")).unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    good(&restore("-rf", &zero, &to, &[]));
    std::fs::remove_file(to.join("a/b/name 7")).unwrap();
    let gone = scratch.path().join("gone");
    let another = scratch.path().join("another");
    std::fs::create_dir(&another).unwrap();
    good(&restore("-rf", &zero, &another, &[]));
    std::fs::rename(another.join("a/b/name 8"), &gone).unwrap();
    std::fs::create_dir_all(another.join("a/b/name 8/of somebody else")).unwrap();

    good(&restore("-rf", &one, &to, &[]));
    assert_eq!(look(&to), look(&from));
    let told = restore("-rf", &one, &another, &[]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    assert!(said.contains("./a/b/name 8: "), "{said}");
    assert!(another.join("a/b/name 8/of somebody else").exists());
    assert_eq!(std::fs::read(another.join("eight")).unwrap(), b"8");
    assert!(!another.join(".cairn-restore.work").exists());
}

/// Programs that find their way into a tree between two levels leave something there, and take
/// something away.
#[test]
fn what_others_did_in_a_restored_tree_costs_no_more_than_it_concerns() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one, two] = ["0", "1", "2"].map(|name| scratch.path().join(name));
    for directory in ["gone", "taken", "moved"] {
        std::fs::create_dir(from.join(directory)).unwrap();
        std::fs::write(from.join(directory).join("file"), directory).unwrap();
    }
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::remove_dir_all(from.join("gone")).unwrap();
    std::fs::remove_dir_all(from.join("taken")).unwrap();
    std::fs::remove_file(from.join("a/b/name 3")).unwrap();
    std::fs::rename(from.join("moved"), from.join("a/moved")).unwrap();
    std::fs::write(from.join("a/b/name 4"), b"changed").unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    std::fs::write(from.join("a/b/name 5"), b"changed").unwrap();
    std::fs::write(&two, folder.dump(2, 2000, 3000)).unwrap();
    good(&restore("-rf", &zero, &to, &[]));
    // Added to removed directories, removed from removed and moved ones, and in the place of a
    // removed file.
    std::fs::write(to.join("gone/of somebody else"), b"kept").unwrap();
    std::fs::remove_dir_all(to.join("taken")).unwrap();
    std::fs::remove_dir_all(to.join("moved")).unwrap();
    std::fs::remove_file(to.join("a/b/name 3")).unwrap();
    std::fs::create_dir_all(to.join("a/b/name 3/of somebody else")).unwrap();
    let told = restore("-rf", &one, &to, &[]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    for path in ["./gone: ", "./a/b/name 3: ", "./moved: "] {
        assert!(said.contains(path), "{path} is told: {said}");
    }
    assert_eq!(std::fs::read(to.join("gone/of somebody else")).unwrap(), b"kept");
    assert!(to.join("a/b/name 3/of somebody else").exists());
    assert!(!to.join(".cairn-restore.work").exists());
    // The next level continues from there.
    good(&restore("-rf", &two, &to, &[]));
    let (made, wanted) = (look(&to), look(&from));
    for (path, file) in wanted.iter().filter(|(path, _)| !path.starts_with("a/moved")) {
        assert!(made.get(path).is_some_and(|found| found.1 == file.1), "{}", path.display());
    }
}

/// A user other than root may write only into directories that permit it, also while their content
/// is restored.
#[test]
fn directories_that_take_no_writes_are_restored_level_after_level_by_others_than_root() {
    let Some(program) = program_of_nobody() else { return };
    let (scratch, from, to) = scene();
    std::fs::remove_file(from.join("top")).unwrap();
    let fixed = from.join("fixed");
    for directory in ["fixed", "fixed/sub", "fixed/gone", "fixed/same"] {
        std::fs::create_dir(from.join(directory)).unwrap();
        for file in ["kept", "changed", "goes"] {
            std::fs::write(from.join(directory).join(file), file).unwrap();
        }
    }
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for directory in ["fixed", "fixed/sub", "fixed/gone", "fixed/same"] {
        mode(&from.join(directory), 0o555);
    }
    mode(scratch.path(), 0o755);
    std::os::unix::fs::chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut folder = Folder::new(&from);
    let dump = scratch.path().join("dump");
    let mut apply = |level: u32, since: u32, date: u32| {
        std::fs::write(&dump, folder.dump(level, since, date)).unwrap();
        good(&program().args(["restore", "-rf"]).arg(&dump).arg("--to").arg(&to).output().unwrap());
        assert!(look(&to) == look(&from), "level {level}");
    };
    apply(0, 0, 1000);
    std::fs::remove_dir_all(fixed.join("gone")).unwrap();
    std::fs::write(fixed.join("changed"), b"again").unwrap();
    std::fs::remove_file(fixed.join("sub/goes")).unwrap();
    std::fs::write(fixed.join("sub/fresh"), b"fresh").unwrap();
    std::fs::rename(fixed.join("sub"), from.join("sub")).unwrap();
    std::fs::rename(fixed.join("same"), from.join("a/same")).unwrap();
    apply(1, 1000, 2000);
}

/// An obstacle to one name of a file affects only that name.
#[test]
fn file_comes_out_under_those_of_its_names_that_can_be_made() {
    let (scratch, from, to) = scene();
    std::fs::write(from.join("a/b/large"), vec![8; 700_000]).unwrap();
    std::fs::hard_link(from.join("a/b/large"), from.join("z")).unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    // Each is the first of two.
    for path in ["a/b/file/of somebody else", "a/b/large/of somebody else"] {
        std::fs::create_dir_all(to.join(path)).unwrap();
    }
    let told = restore("-xf", &dump, &to, &[]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    assert!(said.contains("./a/b/file: ") && said.contains("./a/b/large: "), "{said}");
    let same = |path: &str| std::fs::read(to.join(path)).ok() == std::fs::read(from.join(path)).ok();
    assert!(same("a/second name") && same("z"), "{said}");
}

/// The typed commands come from the same input as the dump: no part of the dump is a command.
#[test]
fn looking_around_by_hand_needs_a_dump_that_does_not_come_where_commands_do() {
    let (scratch, from, to) = scene();
    let bytes = Folder::new(&from).dump(0, 0, 1000);
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let to_flag = [OsStr::new("--to"), to.as_ref()];
    let through_a_pipe = cairn(&[&["restore", "-if", "-"].map(OsStr::new)[..], &to_flag].concat(), &bytes);
    assert_eq!(code(&through_a_pipe), Some(2));
    // The interactive output is not JSON.
    let to_programs = restore("-if", &dump, &to, &["--json"]);
    assert_eq!(code(&to_programs), Some(2), "{to_programs:?}");
    let said: serde_json::Value = serde_json::from_slice(&to_programs.stdout).unwrap();
    assert_eq!(said["error"], "usage", "{said}");
}

#[test]
fn restore_that_was_cut_off_is_not_built_on_and_one_that_was_all_but_over_is() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::write(from.join("later"), b"later").unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    let work = to.join(".cairn-restore.work");
    // Killed before anything has changed.
    std::fs::create_dir(&work).unwrap();
    good(&restore("-rf", &zero, &to, &[]));
    // Killed when all is done but the end of this directory.
    std::fs::create_dir(&work).unwrap();
    good(&restore("-rf", &one, &to, &[]));
    assert_eq!(look(&to), look(&from));
    assert!(!work.exists());

    // Killed while the dump arrives: half of it does, and then nothing.
    let other = scratch.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.args(["restore", "-rf", "-", "--to"]).arg(&other).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let whole = std::fs::read(&zero).unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&whole[..whole.len() - 2048]).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !other.join(".cairn-restore.work/state").exists() {
        assert!(std::time::Instant::now() < deadline, "it begins");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = restore("-rf", &one, &other, &[]);
    assert_eq!(code(&refused), Some(32), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("was interrupted"), "{refused:?}");
}

#[test]
fn single_files_come_out_by_path_and_by_hand() {
    let (scratch, from, to) = scene();
    let bytes = Folder::new(&from).dump(0, 0, 1000);
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let listed = good(&restore("-tf", &dump, &to, &["a/b"]));
    assert!(listed.contains("\t./a/b/name 19\n") && !listed.contains("./top"), "{listed}");
    // Through a pipe.
    let to_flag = [OsStr::new("--to"), to.as_ref(), OsStr::new("a/b/c")];
    let arguments = [&["restore", "-xf", "-"].map(OsStr::new)[..], &to_flag].concat();
    good(&cairn(&arguments, &bytes));
    assert_eq!(
        look(&to).keys().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        ["a", "a/b", "a/b/c", "a/b/c/deep"]
    );
    // Access is the same as in the original; existing directories are not changed.
    let mode = |path: &str| std::fs::metadata(path).unwrap().mode() & 0o7777;
    let of = |root: &Path, path: &str| mode(root.join(path).to_str().unwrap());
    for path in ["a", "a/b", "a/b/c"] {
        assert_eq!(of(&to, path), of(&from, path), "{path}");
    }
    std::fs::remove_dir_all(to.join("a/b")).unwrap();
    std::fs::set_permissions(to.join("a"), std::fs::Permissions::from_mode(0o711)).unwrap();
    good(&restore("-xf", &dump, &to, &["a/b/c/deep", "top"]));
    assert_eq!((of(&to, "a"), of(&to, "a/b")), (0o711, of(&from, "a/b")));
    good(&restore("-xf", &dump, &to, &[]));
    assert_eq!(look(&to), look(&from));
    assert_eq!(std::fs::metadata(to.join("top")).unwrap().mtime(), 1);
    let refused = restore("-xf", &dump, &to, &["a/none"]);
    assert_eq!(code(&refused), Some(10));

    let by_hand = scratch.path().join("by hand");
    std::fs::create_dir(&by_hand).unwrap();
    let arguments = ["restore", "-if", dump.to_str().unwrap(), "--to", by_hand.to_str().unwrap()];
    let typed = b"ls\ncd a\npwd\nls b\nadd b\ndelete b/c\ncd ../none\nadd ../top\nls\nwhat\nextract\n";
    let talked = cairn(&arguments.map(OsStr::new), typed);
    assert_eq!(code(&talked), Some(3), "not all was done");
    let said = String::from_utf8_lossy(&talked.stdout);
    assert!(
        said.contains("/a\n") && said.contains("unknown command what") && said.contains("no such file"),
        "{said}"
    );
    let made = look(&by_hand);
    assert!(made.contains_key(Path::new("a/b/file")) && made.contains_key(Path::new("top")));
    assert!(!made.contains_key(Path::new("a/b/c")) && !made.contains_key(Path::new("a/second name")));
}

/// A terminal executes control characters: those in names of a dump are shown escaped and not sent.
#[test]
fn names_in_a_dump_say_nothing_to_a_terminal() {
    let (scratch, from, to) = scene();
    let strange = "title\x1b]0;owned\x07\u{9b}2J\r\n  9 forged\x7f";
    std::fs::write(from.join("a").join(strange), vec![6; 3000]).unwrap();
    std::fs::create_dir(from.join(format!("{strange} folder"))).unwrap();
    let mut bytes = Folder::new(&from).dump(0, 0, 1000);
    let at = bytes.windows(4).rposition(|window| window == [6; 4]).unwrap();
    bytes[at] ^= 1;
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let listed = restore("-tf", &dump, &to, &[]);
    let json = restore("-tf", &dump, &to, &["--json"]);
    let damaged = restore("-xf", &dump, &to, &[]);
    let missing = restore("-tf", &dump, &to, &[&format!("{strange}/none")]);
    let typed = format!("ls\nls a\ncd {strange}\ncd a\nadd {strange}\nls\n{strange}\nquit\n");
    let typed = typed.replace("\r\n", "");
    let by_hand = cairn(&["restore", "-if", dump.to_str().unwrap()].map(OsStr::new), typed.as_bytes());
    for (told, wanted) in
        [(listed, "title"), (json, "title"), (damaged, "title"), (missing, "title"), (by_hand, "title")]
    {
        let text = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        assert!(text.contains(wanted), "{text}");
        let said = text.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
        assert_eq!(said, None, "{}", text.escape_debug());
        assert!(!text.contains("\n  9 forged"), "a name made a line of its own: {}", text.escape_debug());
    }
    // Programs get them as they are.
    let json = restore("-tf", &dump, &to, &["--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    assert!(listed.iter().any(|entry| entry["path"] == format!("/a/{strange}")));
}

#[test]
fn damaged_dump_gives_the_rest_and_names_what_is_hurt() {
    let (scratch, from, to) = scene();
    let mut bytes = Folder::new(&from).dump(0, 0, 1000);
    let at = bytes.windows(4).rposition(|window| window == [5; 4]).unwrap();
    bytes[at] ^= 1;
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let told = restore("-rf", &dump, &to, &[]);
    assert_eq!(code(&told), Some(3));
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    for path in ["a/b/file", "a/second name"] {
        assert!(text.contains(&format!("./{path}: damaged in the dump\n")), "{path} is told: {text}");
    }
    let (made, wanted) = (look(&to), look(&from));
    let different: Vec<_> = wanted.iter().filter(|(path, file)| made.get(*path) != Some(file)).collect();
    assert_eq!(different.len(), 2, "the two names of one file");

    std::fs::write(&dump, b"no dump").unwrap();
    assert_eq!(code(&restore("-tf", &dump, &to, &[])), Some(2));
    assert_eq!(code(&restore("-tf", &scratch.path().join("none"), &to, &[])), Some(10));
}

#[test]
fn volumes_are_restored_by_name_and_by_number_and_what_is_wrong_with_them_is_named() {
    const RECORDS: u64 = 60;
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let path = |name: &str| scratch.path().join(name);
    let put = |prefix: &str, dump: &[u8]| -> Vec<PathBuf> {
        let volumes = dump.chunks(RECORDS as usize * 1024).enumerate();
        let put = |(index, volume): (usize, &[u8])| {
            let path = path(&format!("{prefix}{:03}", index + 1));
            std::fs::write(&path, volume).unwrap();
            path
        };
        volumes.map(put).collect()
    };
    let zero = put("zero", &folder.dump_in(Some(RECORDS), 0, 0, 1000));
    assert!(zero.len() > 4, "the file of 200 KB fills three");
    let list = |parts: &[PathBuf]| {
        let parts: Vec<&str> = parts.iter().map(|part| part.to_str().unwrap()).collect();
        PathBuf::from(parts.join(","))
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    good(&restore("-rf", &list(&zero), &to, &[]));
    assert_eq!(look(&to), look(&from));
    // The next level, by number.
    std::fs::write(from.join("a/b/file"), vec![6; 150_000]).unwrap();
    std::fs::remove_file(from.join("a/b/name 3")).unwrap();
    let one = put("one", &folder.dump_in(Some(RECORDS), 1, 1000, 2000));
    assert!(one.len() > 2);
    good(&restore("-rMf", &path("one"), &to, &[]));
    assert_eq!(look(&to), look(&from));

    // More volumes than files that may be open by default.
    let all = scratch.path().join("all");
    std::fs::create_dir(&all).unwrap();
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -Sn 6; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_cairn"), "restore", "-rMf"]);
    let output = few.arg(path("zero")).arg("--to").arg(&all).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));

    // The fault is named, and no file is made.
    let fresh = path("fresh");
    std::fs::create_dir(&fresh).unwrap();
    let refused = |parts: &[PathBuf], words: &[&str]| {
        let told = restore("-rf", &list(parts), &fresh, &[]);
        let said = text(&told);
        assert_eq!(code(&told), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(look(&fresh).is_empty(), "nothing is restored");
    };
    refused(&[zero[0].clone(), zero[2].clone()], &["zero003", "is volume 3", "volume 2 is needed"]);
    refused(&[zero[0].clone(), one[1].clone()], &["one002", "volume 2 of another dump"]);
    refused(&zero[1..], &["zero002", "is volume 2", "volume 1 is needed"]);
    std::fs::write(path("nonsense"), vec![1; 70_000]).unwrap();
    refused(&[zero[0].clone(), path("nonsense")], &["nonsense is not a volume"]);
    std::fs::rename(&zero[2], path("away")).unwrap();
    let told = restore("-rMf", &path("zero"), &fresh, &[]);
    assert_eq!(code(&told), Some(10));
    let said = text(&told);
    assert!(said.contains("zero003 is missing") && said.contains("zero004 is there"), "{said}");
    assert_eq!(code(&restore("-tMf", &path("none"), &fresh, &[])), Some(10));

    // Without the last ones it restores the present files, and reports the missing ones.
    std::fs::rename(path("away"), &zero[2]).unwrap();
    let left = zero.len() - 2;
    let told = restore("-xf", &list(&zero[..left]), &fresh, &[]);
    assert_eq!(code(&told), Some(3));
    let said = text(&told);
    assert!(said.contains(&format!("volume {} is missing", left + 1)), "{said}");
    assert!(said.contains(&format!("cut off after volume {left}")), "{said}");
    assert!(said.contains("damaged in the dump") || said.contains("not found in the dump"), "{said}");
    // Volumes of an earlier, longer dump after its end are not part of it.
    let after = path(&format!("one{:03}", one.len() + 1));
    std::fs::copy(&zero[one.len()], &after).unwrap();
    good(&restore("-tMf", &path("one"), &fresh, &[]));
    // A file whose name has commas is one file.
    let odd = path("x,y");
    std::fs::write(&odd, folder.dump(0, 0, 3000)).unwrap();
    good(&restore("-tf", &odd, &fresh, &[]));
}

/// A dump is not trusted: it must not write through links that it made itself, or existing ones.
#[test]
fn nothing_is_written_outside_of_the_directory() {
    let (scratch, from, to) = scene();
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, to.join("a")).unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    let told = restore("-xf", &dump, &to, &["a/b"]);
    assert_eq!(code(&told), Some(3), "{told:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    // Nor do existing files get a mode, owner or times.
    std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::set_permissions(from.join("a"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    let before = std::fs::symlink_metadata(to.join("a")).unwrap();
    let told = restore("-xf", &dump, &to, &["a"]);
    assert_eq!(code(&told), Some(3), "{told:?}");
    assert_eq!(std::fs::metadata(&outside).unwrap().mode() & 0o7777, 0o711);
    let after = std::fs::symlink_metadata(to.join("a")).unwrap();
    assert_eq!((after.mtime(), after.ctime_nsec()), (before.mtime(), before.ctime_nsec()), "the link itself");
    std::fs::write(outside.join("kept"), b"kept").unwrap();
    std::os::unix::fs::symlink(outside.join("kept"), to.join("top")).unwrap();
    good(&restore("-xf", &dump, &to, &["top"]));
    assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept");
    assert_eq!(std::fs::read(to.join("top")).unwrap(), b"top");
}

/// Files are made by several threads, and with as few system calls as will do: in the end they have
/// the attributes in the dump.
#[test]
fn owners_modes_times_and_holes_are_those_of_the_dump_whatever_the_mask() {
    let (scratch, from, to) = scene();
    let is_root = rustix::process::geteuid().is_root();
    let wide = from.join("wide");
    std::fs::create_dir(&wide).unwrap();
    for (number, mode) in
        [0o644, 0o600, 0o000, 0o070, 0o777, 0o4755, 0o2755, 0o6711, 0o1666].iter().enumerate()
    {
        for owner in [(0, 0), (0, 34), (12, 0), (12, 34)] {
            let path = wide.join(format!("{number} of {} {}", owner.0, owner.1));
            let file = std::fs::File::create(&path).unwrap();
            file.write_all_at(b"begin", 0).unwrap();
            // Some end in a hole.
            file.set_len(5 + 100_000 * (number as u64 % 2)).unwrap();
            if is_root {
                std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).unwrap();
            }
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    for (mask, flags) in [("077", "-rf"), ("000", "-xf")] {
        let to = to.join(mask);
        std::fs::create_dir(&to).unwrap();
        let mut masked = Command::new("sh");
        masked.args(["-c", "umask $0; exec \"$@\"", mask, env!("CARGO_BIN_EXE_cairn"), "restore", flags]);
        good(&masked.arg(&dump).arg("--to").arg(&to).output().unwrap());
        assert_eq!(look(&to), look(&from));
        for entry in std::fs::read_dir(&wide).unwrap() {
            let name = entry.unwrap().file_name();
            let [made, wanted] =
                [to.join("wide").join(&name), wide.join(&name)].map(|p| std::fs::metadata(p).unwrap());
            assert_eq!(
                (made.uid(), made.gid(), made.len()),
                (wanted.uid(), wanted.gid(), wanted.len()),
                "{name:?}"
            );
            assert_eq!(
                (made.mtime(), made.mtime_nsec()),
                (wanted.mtime().min(1), wanted.mtime_nsec()),
                "{name:?}"
            );
        }
    }
}

#[test]
fn what_is_wished_for_twice_comes_out_once() {
    let (scratch, from, to) = scene();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    good(&restore("-xf", &dump, &to, &["top", "a", "a/b", "top"]));
    assert_eq!(look(&to), look(&from));
}

/// More files than one batch has, in many directories, with names of one file in several of them;
/// and impossible files in between.
#[test]
fn many_files_are_made_at_once_and_troubles_are_told_in_the_order_of_the_dump() {
    let (scratch, from, to) = scene();
    for directory in 0..20 {
        let path = from.join(format!("d{directory}"));
        std::fs::create_dir(&path).unwrap();
        for number in 0..120 {
            let size = if number == 60 { 700_000 } else { number * 50 };
            std::fs::write(path.join(format!("f{number}")), vec![number as u8; size]).unwrap();
        }
        std::fs::hard_link(from.join("d0/f1"), path.join("one of all")).unwrap();
        std::os::unix::fs::symlink("f1", path.join("link")).unwrap();
    }
    let mut folder = Folder::new(&from);
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, folder.dump(0, 0, 1000)).unwrap();
    good(&restore("-rf", &dump, &to, &[]));
    assert_eq!(look(&to), look(&from));
    // Over existing files: every file was written again.
    for directory in 0..20 {
        for number in 0..120 {
            std::fs::write(from.join(format!("d{directory}/f{number}")), b"again").unwrap();
        }
    }
    let one = scratch.path().join("one");
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    good(&restore("-rf", &one, &to, &[]));
    assert_eq!(look(&to), look(&from));

    let fresh = scratch.path().join("fresh");
    std::fs::create_dir(&fresh).unwrap();
    let blocked: Vec<String> =
        (0..20).map(|directory| format!("d{directory}/f{}", 7 * directory % 120)).collect();
    blocked.iter().for_each(|path| std::fs::create_dir_all(fresh.join(path).join("occupied")).unwrap());
    let told = restore("-xf", &dump, &fresh, &[]);
    assert_eq!(code(&told), Some(3), "{told:?}");
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    let mut order: Vec<(u64, &String)> =
        blocked.iter().map(|path| (std::fs::metadata(from.join(path)).unwrap().ino(), path)).collect();
    order.sort();
    let named: Vec<String> =
        order.iter().map(|(_, path)| format!("./{path}: Is a directory (os error 21)")).collect();
    assert_eq!(said.lines().filter(|line| line.contains("Is a directory")).collect::<Vec<_>>(), named);
}

const NOBODY: u32 = 65_534;

/// The program run by a user other than root; none if that is not possible.
fn program_of_nobody() -> Option<impl Fn() -> Command> {
    use std::os::unix::process::CommandExt;
    let program = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
        command
    };
    let runs = || program().arg("--version").output().is_ok_and(|done| done.status.success());
    if !rustix::process::geteuid().is_root() || !runs() {
        eprintln!("skipped: it needs root, and a program that other users may run");
        return None;
    }
    Some(program)
}

/// A program that another test has just started may still hold descriptors that were open here.
fn unmount(point: &Path) {
    rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn full_disk_ends_a_restore_and_is_told() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root mounts a disk that is soon full");
        return;
    }
    let (scratch, from, to) = scene();
    for number in 0..200 {
        std::fs::write(from.join(format!("f{number}")), vec![1; 20_000]).unwrap();
    }
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    rustix::mount::mount("none", &to, "tmpfs", rustix::mount::MountFlags::empty(), c"size=1m").unwrap();
    let told = ["-rf", "-xf"].map(|flags| restore(flags, &dump, &to, &[]));
    let left = std::fs::read_dir(&to).unwrap().count();
    unmount(&to);
    for told in told {
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(said.contains("No space left on device") && !told.status.success(), "{said}");
    }
    assert!(left < 200, "what follows is not tried");
}

/// The state file of a restore determines the files that the next one moves and removes. A dump
/// must not supply it, and it must not lead outside.
#[test]
fn what_a_restore_notes_is_its_own_and_stays_in_the_directory() {
    let (scratch, from, to) = scene();
    let kept = scratch.path().join("kept");
    std::fs::write(&kept, b"kept").unwrap();
    let name: Vec<u8> = b"../kept".to_vec();
    let forged = serde_json::json!({
        "version": 1, "date": 1000, "level": 0, "dumps": [], "directories": { "2": [[77, name, 0o100_000]] },
    });
    let forged = forged.to_string();
    std::fs::create_dir(from.join(".cairn-restore.work")).unwrap();
    std::fs::write(from.join(".cairn-restore.work/state"), &forged).unwrap();
    std::fs::write(from.join(".cairn-restore.json"), &forged).unwrap();
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    let state = to.join(".cairn-restore.json");
    let is_own = || {
        let text = std::fs::read_to_string(&state).unwrap();
        assert!(text.contains("\"directories\"") && !text.contains("[46,46,47"), "{text}");
    };
    let told = restore("-rf", &zero, &to, &[]);
    assert_eq!(code(&told), Some(3), "{told:?}");
    assert!(String::from_utf8_lossy(&told.stderr).contains("./.cairn-restore.work: a restore has this name"));
    is_own();
    std::fs::remove_dir_all(from.join(".cairn-restore.work")).unwrap();
    std::fs::write(from.join("top"), b"again").unwrap();
    std::fs::write(&one, folder.dump(1, 1000, 2000)).unwrap();
    good(&restore("-rf", &one, &to, &[]));
    is_own();
    std::fs::remove_file(from.join(".cairn-restore.json")).unwrap();
    assert_eq!(look(&to), look(&from));
    // Regardless of its writer.
    std::fs::write(&state, &forged).unwrap();
    let refused = restore("-rf", &one, &to, &[]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is damaged"), "{refused:?}");
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
}

/// A directory that is damaged in a dump of a higher level costs its files in the dump, and not the
/// unchanged files in it.
#[test]
fn damaged_directory_in_an_increment_costs_no_file_that_did_not_change() {
    let (scratch, from, to) = scene();
    for number in 0..40 {
        std::fs::write(from.join(format!("a/b/a somewhat longer name {number}")), b"same").unwrap();
    }
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::write(from.join("a/b/name 5"), b"changed").unwrap();
    std::fs::write(from.join("a/fresh"), b"fresh").unwrap();
    std::fs::rename(from.join("a/b/name 7"), from.join("a/moved")).unwrap();
    std::fs::remove_file(from.join("a/b/name 8")).unwrap();
    std::fs::rename(from.join("a/b/c"), from.join("c")).unwrap();
    let bytes = folder.dump(1, 1000, 2000);
    let is_other = |path: &Path| {
        ["name 5", "name 7", "name 8", "fresh", "moved"].iter().any(|name| path.ends_with(name))
            || path.components().any(|part| part.as_os_str() == "c")
    };
    let wanted: Vec<(PathBuf, Vec<u8>)> = look(&from)
        .into_iter()
        .map(|(path, file)| (path, file.1))
        .filter(|(path, _)| !is_other(path))
        .collect();
    let mut reader = Reader::open(&bytes[..]).unwrap();
    let record = |reader: &Reader<&[u8]>| reader.bytes() as usize / RECORD - 1;
    let first = record(&reader);
    while reader.comes_directory() {
        reader.next_inode().unwrap();
        reader.entries().unwrap();
    }
    let directories = first..record(&reader);
    assert!(directories.len() >= 7, "four directories, one of them with more than a record of names");
    for at in directories {
        for is_lost in [true, false] {
            let mut damaged = bytes.clone();
            let record = &mut damaged[at * RECORD..(at + 1) * RECORD];
            let damage = if is_lost { (0..RECORD, 0) } else { (300..308, 0xff) };
            record[damage.0].fill(damage.1);
            std::fs::write(&one, damaged).unwrap();
            let to = to.join(format!("{at} {is_lost}"));
            std::fs::create_dir(&to).unwrap();
            good(&restore("-rf", &zero, &to, &[]));
            let told = restore("-rf", &one, &to, &[]);
            assert!(matches!(code(&told), Some(3 | 27)), "record {at}: {told:?}");
            let made = look(&to);
            for (path, content) in &wanted {
                let found = made.get(path).map(|file| &file.1);
                assert_eq!(found, Some(content), "record {at} ({is_lost}): {}", path.display());
            }
        }
    }
}

/// An access list for another user, in the form for `setxattr`.
fn list_for(user: u32) -> Vec<u8> {
    let nobody = u32::MAX;
    let rules: [(u16, u16, u32); 5] =
        [(1, 7, nobody), (2, 7, user), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in rules {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    list
}

/// A user whose rights were removed does not get them back by a restore.
#[test]
fn rights_and_attributes_are_those_of_the_last_dump_and_none_come_from_directories() {
    let (scratch, from, to) = scene();
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(from.join(path), name, value, rustix::fs::XattrFlags::empty())
    };
    let take = |path: &str, name: &str| rustix::fs::removexattr(from.join(path), name).unwrap();
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    if set("a", default, &list_for(77)).is_err() {
        eprintln!("skipped: this file system has no lists of rights");
        return;
    }
    set("a/b", access, &list_for(78)).unwrap();
    set("a/b", "user.colour", b"blue").unwrap();
    set("a/b", "user.shape", b"round").unwrap();
    set("a/b/file", access, &list_for(79)).unwrap();
    let mut folder = Folder::new(&from);
    let dump = scratch.path().join("dump");
    let mut apply = |level: u32, since: u32, date: u32| {
        std::fs::write(&dump, folder.dump(level, since, date)).unwrap();
        good(&restore("-rf", &dump, &to, &[]));
        let (made, wanted) = (look(&to), look(&from));
        assert_eq!(made, wanted, "level {level}");
        for path in wanted.keys() {
            let told = format!("level {level}: {}", path.display());
            assert_eq!(attributes(&to.join(path)), attributes(&from.join(path)), "{told}");
        }
    };
    apply(0, 0, 1000);
    take("a/b", access);
    take("a/b", "user.colour");
    take("a/b/file", access);
    // Created in a directory whose access list new files inherit, but without it.
    std::fs::write(from.join("a/plain"), b"plain").unwrap();
    std::fs::create_dir(from.join("a/folder")).unwrap();
    std::fs::write(from.join("a/folder/inside"), b"inside").unwrap();
    for path in ["a/plain", "a/folder", "a/folder/inside"] {
        take(path, access);
    }
    take("a/folder", default);
    apply(1, 1000, 2000);
    assert!(attributes(&to.join("a")).iter().any(|one| one.name == default.as_bytes()));
    take("a", default);
    apply(2, 2000, 3000);
}

/// Labels that another machine's rules do not know, attributes of other file systems, a container
/// whose root may not set them: the content of a file is worth more than these.
#[test]
fn attribute_that_is_not_taken_here_costs_neither_its_file_nor_another_name_of_it() {
    let (scratch, from, to) = scene();
    let pipe = from.join("a/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    std::fs::hard_link(&pipe, from.join("pipe too")).unwrap();
    std::fs::hard_link(from.join("top"), from.join("a/top too")).unwrap();
    let mut folder = Folder::new(&from);
    let attribute = |name: &str| Attribute { name: name.into(), value: b"value".to_vec() };
    // Pipes cannot have user attributes, and only Lustre has the other kind, which is tried only
    // for root.
    folder.more.insert("a/pipe".into(), attribute("user.colour"));
    folder.more.insert("pipe too".into(), attribute("user.colour"));
    for path in ["top", "a/top too", "a/b/file", "a/second name"] {
        folder.more.insert(path.into(), attribute("lustre.striping"));
    }
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, folder.dump(0, 0, 1000)).unwrap();
    let single = scratch.path().join("single");
    std::fs::create_dir(&single).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for (flags, to) in [("-rf", &to), ("-xf", &single)] {
        let told = restore(flags, &dump, to, &[]);
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(code(&told), Some(3), "{said}");
        assert!(said.contains("pipe"), "{said}");
        assert!(!is_root || said.contains("top"), "{said}");
        assert!(look(to) == look(&from), "{flags}: {said}");
    }
    // The next level continues from there, even if these have changed.
    std::fs::write(from.join("top"), b"top again").unwrap();
    std::fs::rename(from.join("a/b"), from.join("b")).unwrap();
    std::fs::write(&dump, folder.dump(1, 1000, 2000)).unwrap();
    let told = restore("-rf", &dump, &to, &[]);
    assert!(look(&to) == look(&from), "{told:?}");
}

/// The access list of a large file follows its content: until then its mode would give the group
/// rights that the list does not.
#[test]
fn nobody_reads_a_large_file_before_it_has_its_list_of_rights() {
    let (_scratch, from, to) = scene();
    std::fs::write(from.join("large"), vec![9; 3 << 20]).unwrap();
    std::fs::set_permissions(from.join("large"), std::fs::Permissions::from_mode(0o674)).unwrap();
    let mut folder = Folder::new(&from);
    let list = Attribute { name: b"system.posix_acl_access".into(), value: list_for(77) };
    folder.more.insert("large".into(), list);
    let bytes = folder.dump(0, 0, 1000);
    let content = bytes.windows(4096).position(|window| window == [9; 4096]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.args(["restore", "-xf", "-", "--to"]).arg(&to).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&bytes[..content + (2 << 20)]).unwrap();
    let large = to.join("large");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !std::fs::metadata(&large).is_ok_and(|found| found.len() > 0) {
        assert!(std::time::Instant::now() < deadline, "it begins");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mode = std::fs::metadata(&large).unwrap().mode();
    // It may end before it has read all.
    let _ = input.write_all(&bytes[content + (2 << 20)..]);
    drop(input);
    child.wait().unwrap();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    assert_eq!(std::fs::read(&large).unwrap().len(), 3 << 20);
}

/// With an access list the group bits of a mode are its mask, and not the rights of the group.
#[test]
fn list_of_rights_that_is_not_taken_here_gives_nobody_more_than_it_did() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root mounts a file system without lists of rights");
        return;
    }
    let (scratch, from, to) = scene();
    for path in ["top", "a/b/name 1", "a/b/c"] {
        std::fs::set_permissions(from.join(path), std::fs::Permissions::from_mode(0o674)).unwrap();
    }
    let list = [0x01, 0x02, 0x04, 0x10, 0x20].into_iter().zip([6u16, 7, 0, 7, 4]);
    let rules = list.flat_map(|(tag, rights): (u16, u16)| {
        let id = if tag == 0x02 { 77 } else { u32::MAX };
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    let value: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(rules).collect();
    let mut folder = Folder::new(&from);
    for path in ["top", "a/b/c"] {
        folder
            .more
            .insert(path.into(), Attribute { name: b"system.posix_acl_access".into(), value: value.clone() });
    }
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, folder.dump(0, 0, 1000)).unwrap();
    rustix::mount::mount("none", &to, "ramfs", rustix::mount::MountFlags::empty(), c"").unwrap();
    let told = restore("-xf", &dump, &to, &[]);
    let modes = ["top", "a/b/name 1", "a/b/c"]
        .map(|path| std::fs::metadata(to.join(path)).map(|found| found.mode() & 0o7777).ok());
    unmount(&to);
    assert_eq!(code(&told), Some(3), "{told:?}");
    assert_eq!(modes, [Some(0o604), Some(0o674), Some(0o604)], "{told:?}");
}

/// Makes the sum of a header right again.
fn sum(record: &mut [u8]) {
    record[28..32].fill(0);
    let words = record.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let sum = words.fold(84_446, u32::wrapping_sub);
    record[28..32].copy_from_slice(&sum.to_le_bytes());
}

/// Gives the headers of a dump the numbers of the records that they are in.
fn renumber(bytes: &mut [u8]) {
    const MAGIC: [u8; 4] = 60_012u32.to_le_bytes();
    for (position, record) in bytes.chunks_exact_mut(RECORD).enumerate() {
        if record[24..28] == MAGIC {
            record[16..20].copy_from_slice(&(position as u32).to_le_bytes());
            sum(record);
        }
    }
}

/// A dump as Linux `dump -m` would have written it: of these files, which have changed and were not
/// modified, it has the attributes alone.
fn with_attributes_alone(mut bytes: Vec<u8>, numbers: &[u32]) -> Vec<u8> {
    for number in numbers {
        let at = record_of(&bytes, *number) * RECORD;
        let header = &mut bytes[at..][..RECORD];
        let pieces = header[164..676].iter().filter(|piece| **piece != 0).count();
        header[160..676].fill(0);
        header[40..48].fill(0);
        header[889] |= 1;
        header[960..].fill(0);
        sum(header);
        bytes.drain(at + RECORD..at + (1 + pieces) * RECORD);
        renumber(&mut bytes);
    }
    bytes[960..RECORD].fill(0);
    sum(&mut bytes[..RECORD]);
    bytes
}

/// Linux `dump -m` writes no content of files that changed without a modification: their content is
/// in the earlier dumps, under any name.
#[test]
fn file_of_which_a_dump_has_the_attributes_alone_keeps_its_content() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    let set_mode = |path: &str, mode: u32| {
        std::fs::set_permissions(from.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let rename = |path: &str, to: &str| std::fs::rename(from.join(path), from.join(to)).unwrap();
    set_mode("a/b/file", 0o604);
    rename("a/second name", "a/b/c/third name");
    rename("top", "a/top");
    rename("a/link", "link");
    rename("a/b/name 5", "x");
    rename("a/b/name 6", "a/b/name 5");
    rename("x", "a/b/name 6");
    std::fs::write(from.join("a/b/name 7"), b"modified").unwrap();
    let bytes = folder.dump(1, 1000, 2000);
    let alone = ["a/b/file", "a/top", "link", "a/b/name 5", "a/b/name 6"];
    let number = |path: &str| folder.number(&std::fs::symlink_metadata(from.join(path)).unwrap());
    std::fs::write(&one, with_attributes_alone(bytes, &alone.map(number))).unwrap();

    good(&restore("-rf", &zero, &to, &[]));
    good(&restore("-rf", &one, &to, &[]));
    assert!(look(&to) == look(&from));
    // Alone the dump has no content for the file, and an existing file is not the same one.
    let other = scratch.path().join("other");
    std::fs::create_dir_all(other.join("a")).unwrap();
    std::fs::write(other.join("a/top"), b"another one").unwrap();
    let told = restore("-xf", &one, &other, &["a/b/file", "a/top", "a/b/name 7"]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    assert!(said.contains("a/b/file") && said.contains("a/top") && said.contains("lower level"), "{said}");
    assert!(!other.join("a/b/file").exists(), "{said}");
    assert_eq!(std::fs::read(other.join("a/top")).unwrap(), b"another one");
    assert_eq!(std::fs::read(other.join("a/b/name 7")).unwrap(), b"modified");
}

/// A number that is given again may come with times of long ago: then nothing has the content of
/// the file.
#[test]
fn content_of_another_file_is_not_taken_for_that_of_one_with_attributes_alone() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let [zero, one] = ["0", "1"].map(|name| scratch.path().join(name));
    std::fs::write(&zero, folder.dump(0, 0, 1000)).unwrap();
    std::fs::rename(from.join("a/b/name 5"), from.join("another")).unwrap();
    std::fs::write(from.join("another"), b"longer than it was").unwrap();
    let long_ago = std::time::UNIX_EPOCH - std::time::Duration::from_secs(100);
    std::fs::File::options().write(true).open(from.join("another")).unwrap().set_modified(long_ago).unwrap();
    let bytes = folder.dump(1, 1000, 2000);
    let number = folder.number(&std::fs::symlink_metadata(from.join("another")).unwrap());
    std::fs::write(&one, with_attributes_alone(bytes, &[number])).unwrap();
    good(&restore("-rf", &zero, &to, &[]));
    let told = restore("-rf", &one, &to, &[]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(code(&told), Some(3), "{said}");
    assert!(said.contains("./another") && !to.join("another").exists(), "{said}");
}

/// A directory in a dump of a higher level names files that are not in it: a request for one
/// reports that.
#[test]
fn what_did_not_change_is_not_in_a_higher_level_and_who_wishes_for_it_is_told() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    folder.dump(0, 0, 1000);
    std::fs::write(from.join("a/b/name 7"), b"changed").unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, folder.dump(1, 1000, 2000)).unwrap();
    for (flags, path) in [("-xf", "a/b/name 8"), ("-xf", "a/b/c"), ("-tf", "a/b/name 8")] {
        let told = restore(flags, &dump, &to, &[path]);
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(code(&told), Some(10), "{flags} {path}: {said}");
        assert!(said.contains(path) && said.contains("did not change"), "{flags} {path}: {said}");
    }
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), 0, "nothing is made");
    good(&restore("-xf", &dump, &to, &["a/b"]));
    assert_eq!(std::fs::read_dir(to.join("a/b")).unwrap().count(), 1, "what changed below comes out");

    let by_hand = scratch.path().join("by hand");
    std::fs::create_dir(&by_hand).unwrap();
    let arguments = ["restore", "-if", dump.to_str().unwrap(), "--to", by_hand.to_str().unwrap()];
    let typed = b"ls a/b\nadd a/b/name 8\nadd 'a/b/name 7'\nextract\n";
    let talked = cairn(&arguments.map(OsStr::new), typed);
    assert_eq!(code(&talked), Some(3), "not all that was wished for is in this dump");
    let said = String::from_utf8_lossy(&talked.stdout);
    assert!(said.contains("did not change") && !said.contains("name 9"), "{said}");
    assert_eq!(std::fs::read(by_hand.join("a/b/name 7")).unwrap(), b"changed");
    assert!(!by_hand.join("a/b/name 8").exists());
}

/// A program that runs with the rights of its owner must not run with those of the restoring user.
#[test]
fn others_than_root_restore_no_file_that_runs_with_their_own_rights() {
    let Some(program) = program_of_nobody() else { return };
    let (scratch, from, to) = scene();
    let make = |name: &str, length: usize, owner: (u32, u32), mode: u32| {
        let path = from.join(name);
        std::fs::write(&path, vec![1; length]).unwrap();
        std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    make("of root", 10, (0, 0), 0o6755);
    make("large of root", 1 << 20, (0, 0), 0o6755);
    make("of its group", 10, (0, NOBODY), 0o6755);
    make("own", 10, (NOBODY, NOBODY), 0o6755);
    std::fs::set_permissions(from.join("a"), std::fs::Permissions::from_mode(0o3777)).unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    good(&program().args(["restore", "-xf"]).arg(&dump).arg("--to").arg(&to).output().unwrap());
    let mode = |name: &str| std::fs::metadata(to.join(name)).unwrap().mode() & 0o7777;
    let modes = ["of root", "large of root", "of its group", "own", "a"].map(mode);
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["755", "755", "2755", "6755", "3777"]);
}

/// A number in a header does not bound the number of files.
#[test]
fn forged_number_of_a_directory_takes_no_memory() {
    let (scratch, from, to) = scene();
    let mut bytes = Folder::new(&from).dump(0, 0, 1000);
    let at = record_of(&bytes, ROOT) * RECORD;
    // One more directory before the root, which the dump's map does not have.
    let mut forged = bytes[at..][..RECORD].to_vec();
    let pieces = forged[164..676].iter().filter(|piece| **piece != 0).count();
    forged[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    forged[960..].fill(0);
    sum(&mut forged);
    let content = bytes[at + RECORD..][..pieces * RECORD].to_vec();
    bytes.splice(at..at, forged.into_iter().chain(content));
    renumber(&mut bytes);
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -v 400000; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_cairn"),
        "restore",
        "-tf",
    ]);
    let listed = good(&limited.arg(&dump).arg("--to").arg(&to).output().unwrap());
    assert!(listed.contains("\t./a/b/name 19\n"), "{listed}");
}

/// Maps of 16 MiB claim 134 million files: those not in the dump take no memory and fill no screen,
/// and those in it are restored.
#[test]
fn forged_map_of_a_dump_takes_no_memory() {
    const MAP_RECORDS: usize = 16_384;
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    let whole = folder.dump(0, 0, 1000);
    let number = folder.number(&std::fs::symlink_metadata(from.join("top")).unwrap());
    let [label, root, end] = [0, record_of(&whole, ROOT), whole.len() / RECORD - 1];
    // As Linux writes them: its maps have no checksum.
    let plain = |at: usize| {
        let mut record = whole[at * RECORD..][..RECORD].to_vec();
        record[960..].fill(0);
        record
    };
    let end = (0..=end).rev().find(|at| whole[at * RECORD..][..4] == 5u32.to_le_bytes()).unwrap();
    let mut bytes = plain(label);
    for kind in [6u32, 3] {
        let mut map = plain(end);
        map[..4].copy_from_slice(&kind.to_le_bytes());
        map[160..164].copy_from_slice(&(MAP_RECORDS as u32).to_le_bytes());
        bytes.extend(map);
        bytes.extend(std::iter::repeat_n(0xff, MAP_RECORDS * RECORD));
    }
    // All records after the directories; the root, with all names, is lost.
    let first = record_of(&whole, number);
    assert!(first > root);
    bytes.extend(plain(first));
    bytes.extend(&whole[(first + 1) * RECORD..][..RECORD]);
    bytes.extend(plain(end));
    renumber(&mut bytes);
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();
    let limited = |flags: &str, paths: &[&str]| {
        let to = to.join(flags.len().to_string() + &paths.len().to_string());
        std::fs::create_dir_all(&to).unwrap();
        let mut limited = Command::new("sh");
        let limit = "ulimit -v 600000; exec \"$@\"";
        limited.args(["-c", limit, "sh", env!("CARGO_BIN_EXE_cairn"), "restore", flags]);
        let told = limited.arg(&dump).args(paths).arg("--to").arg(&to).output().unwrap();
        let said = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        assert_eq!(told.status.code(), Some(3), "{}", &said[said.len().saturating_sub(2000)..]);
        assert!(said.lines().count() < 1100, "{} lines", said.lines().count());
        (to, said)
    };
    let path = format!("lost+found/{number}");
    for paths in [vec![], vec![path.as_str()]] {
        let (to, said) = limited("-xf", &paths);
        assert_eq!(std::fs::read(to.join(&path)).unwrap(), b"top");
        assert!(said.contains("more files whose names are lost: not found in the dump"), "{said}");
    }
    limited("-tf", &[]);
}

/// A file system, or a user, may have a limit for the size of files: a larger file does not affect
/// others.
#[test]
fn file_that_is_too_large_here_costs_itself_and_is_no_fault_of_the_dump() {
    let (scratch, from, to) = scene();
    std::fs::write(from.join("a/large"), vec![7; 900_000]).unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    for flags in ["-xf", "-rf"] {
        let to = to.join(flags);
        std::fs::create_dir(&to).unwrap();
        let mut limited = Command::new("sh");
        let limit = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
        limited.args(["-c", limit, "sh", env!("CARGO_BIN_EXE_cairn"), "restore", flags]);
        let told = limited.arg(&dump).arg("--to").arg(&to).output().unwrap();
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(code(&told), Some(3), "{flags}: {said}");
        let names = ["./a/large: ", "./a/b/file: ", "./a/second name: "];
        assert!(names.iter().all(|name| said.contains(name)), "{flags}: {said}");
        assert!(!said.contains("can't be read"), "{flags}: {said}");
        let (made, mut wanted) = (look(&to), look(&from));
        wanted.retain(|path, _| !names.contains(&&*format!("./{}: ", path.display())));
        assert!(wanted.iter().all(|(path, file)| made.get(path) == Some(file)), "{flags}: {said}");
    }
}

/// A dump that this user may not read still exists: the exit code must not make a script search
/// elsewhere.
#[test]
fn dump_that_may_not_be_read_is_not_told_as_one_that_is_not_there() {
    let Some(program) = program_of_nobody() else { return };
    let (scratch, from, _to) = scene();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let list = |path: &Path| program().args(["restore", "-tf"]).arg(path).output().unwrap();
    good(&list(&dump));
    std::fs::set_permissions(&dump, std::fs::Permissions::from_mode(0o600)).unwrap();
    let told = list(&dump);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(said.contains("Permission denied") && said.contains("rights"), "{said}");
    assert_eq!(code(&told), Some(25), "{said}");
    let told = list(&scratch.path().join("none"));
    assert_eq!(code(&told), Some(10), "{told:?}");
}

#[test]
fn commands_of_a_script_are_done_to_the_last_and_the_code_tells_what_was_not() {
    let (scratch, from, _) = scene();
    std::fs::write(from.join("a/with 'quote'"), b"quoted").unwrap();
    std::fs::write(from.join("a/.hidden"), b"hidden").unwrap();
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, Folder::new(&from).dump(0, 0, 1000)).unwrap();
    let mut number = 0;
    let mut talk = |typed: &str| {
        number += 1;
        let to = scratch.path().join(format!("by hand {number}"));
        std::fs::create_dir(&to).unwrap();
        let arguments = ["restore", "-if", dump.to_str().unwrap(), "--to", to.to_str().unwrap()];
        let output = cairn(&arguments.map(OsStr::new), typed.as_bytes());
        let made: Vec<String> = look(&to).keys().map(|path| path.display().to_string()).collect();
        (code(&output), made, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Several times, and each time the files marked since; as for Linux `restore` with its answers
    // to a volume and a mode.
    let (code, made, said) = talk("add top\nextract\n1\ny\ncd a/b\nadd c/deep\nextract\nextract\nquit\n");
    assert_eq!((code, made.join(" ").as_str()), (Some(0), "a a/b a/b/c a/b/c/deep top"), "{said}");
    assert!(said.contains("nothing is marked"), "what was extracted is marked no more: {said}");
    let (code, made, said) = talk("cd a\nadd \"second name\" with\\ \\'quote\\' 'link'\nextract");
    assert_eq!((code, made.join(",").as_str()), (Some(0), "a,a/link,a/second name,a/with 'quote'"), "{said}");
    let (code, made, said) = talk("add a/b/name*[57] a/*/?/deep\ndelete a/b/name\\ 7\nextract\n");
    let found = "a,a/b,a/b/c,a/b/c/deep,a/b/name 15,a/b/name 17,a/b/name 5";
    assert_eq!((code, made.join(",").as_str()), (Some(0), found), "{said}");
    let (code, made, _) = talk("add a/*\ndelete a/*\nadd a/.h*\nextract\n");
    assert_eq!((code, made.join(",").as_str()), (Some(0), "a,a/.hidden"));
    for wrong in ["add none", "add n*e", "cd top", "cd a b", "ls none", "delete none", "ad top", "add 'top"] {
        let (code, made, said) = talk(&format!("{wrong}\nadd a/link\nextract\nquit\n"));
        assert_eq!(
            (code, made.join(" ").as_str()),
            (Some(3), "a a/link"),
            "{wrong}: the rest is done: {said}"
        );
    }
}

#[test]
fn root_directory_has_the_owner_mode_and_times_of_the_last_level() {
    let (scratch, from, to) = scene();
    let mut folder = Folder::new(&from);
    for (level, mode, at) in [(0, 0o751, 981_173_106), (1, 0o705, 1_081_173_106)] {
        std::fs::write(from.join("top"), format!("level {level}")).unwrap();
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(mode)).unwrap();
        let time = rustix::fs::Timespec { tv_sec: at, tv_nsec: 5 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &from, &times, rustix::fs::AtFlags::empty()).unwrap();
        let dump = scratch.path().join(level.to_string());
        std::fs::write(&dump, folder.dump(level, level * 1000, (level + 1) * 1000)).unwrap();
        good(&restore("-rf", &dump, &to, &[]));
        let root = std::fs::metadata(&to).unwrap();
        // The source of these tests reports second 1 as the change time of all files.
        let times = (root.mtime(), root.mtime_nsec());
        assert_eq!((root.mode() & 0o7777, times), (mode, (1, 5)), "level {level}");
    }
}

/// An untrusted dump may give two files one name, or one that leads elsewhere: all files are
/// restored, only in the directory, and those with a changed name are reported.
#[test]
fn names_that_are_taken_or_lead_elsewhere_cost_no_file_and_are_told() {
    let (scratch, from, _) = scene();
    std::fs::create_dir_all(from.join("d/dd/below")).unwrap();
    for (file, content) in [("d/aa", "one"), ("d/ab", "two"), ("d/dd/below/x", "three")] {
        std::fs::write(from.join(file), content).unwrap();
    }
    let number = |path: &str| Folder::new(&from).number(&std::fs::metadata(from.join(path)).unwrap());
    let bytes = Folder::new(&from).dump(0, 0, 1000);
    let directory = record_of(&bytes, number("d")) * RECORD;
    for (called, forged, of) in [
        ("ab", "aa", "d/ab"),
        ("dd", "aa", "d/dd"),
        ("dd", "..", "d/dd"),
        ("ab", "a/", "d/ab"),
        ("dd", "/x", "d/dd"),
        ("ab", "..", "d/ab"),
    ] {
        let mut bytes = bytes.clone();
        let header = &mut bytes[directory..][..RECORD];
        header[960..].fill(0);
        sum(header);
        let content = &mut bytes[directory + RECORD..][..RECORD];
        let entry = [&[2], called.as_bytes(), &[0]].concat();
        let at = content.windows(4).position(|found| found == entry).expect("it is there");
        content[at + 1..][..2].copy_from_slice(forged.as_bytes());
        let scratch = scratch.path().join(format!("{called} is {}", forged.replace('/', "-")));
        std::fs::create_dir(&scratch).unwrap();
        let dump = scratch.join("dump");
        std::fs::write(&dump, &bytes).unwrap();
        for how in ["-tf", "-xf", "-rf"] {
            let how_to = format!("{called} is {forged}, {how}");
            let to = scratch.join(format!("to{how}"));
            std::fs::create_dir(&to).unwrap();
            let output = restore(how, &dump, &to, &[]);
            assert_eq!(code(&output), Some(3), "{how_to}: {output:?}");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(told.contains(&format!("./d/{forged}: ")), "{how_to}: {told}");
            assert!(told.contains(&format!("file {}", number(of))), "{how_to}: {told}");
            let made = look(&to);
            let has = |content: &str| made.values().any(|file| file.1 == content.as_bytes());
            if how == "-xf" {
                assert!(["one", "two", "three"].into_iter().all(has), "{how_to}: {:?}", made.keys());
            }
            let outside = std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(
                outside.into_iter().all(|name| name == "dump" || name.to_str().unwrap().starts_with("to-"))
            );
        }
    }
}
