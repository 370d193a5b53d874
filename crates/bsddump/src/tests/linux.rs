//! Linux `dump` and `restore` are the other half of the format.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::model::Tree;
use super::volumes::volumes;
use crate::{Attribute, Kind, Names, NextVolume, Options, ROOT, Reader};

/// Where a program is; none when it is not installed, which is an error where all of them must be.
fn program(name: &str) -> Option<PathBuf> {
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|place| Path::new(place).join(name));
    let found = found.into_iter().find(|path| path.exists());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "{name} must be installed here");
    if found.is_none() {
        eprintln!("skipped: {name} is not installed");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A tree that Linux `restore` can make for this user.
fn tree(uid: u32, gid: u32) -> Tree {
    let mut tree = Tree::new();
    let sub = tree.add(ROOT, "sub", Kind::Directory);
    let crowd = tree.add(sub, "crowd", Kind::Directory);
    for n in 0..300 {
        tree.add_with(crowd, &format!("a rather long name of a file, number {n}"), format!("{n}").as_bytes());
    }
    let file = tree.add_with(sub, "file", &vec![b'x'; 1_300_000]);
    tree.link(ROOT, b"other name", file);
    // One byte more is a good name, and one that Linux `restore` mistakes also in Linux's own
    // dumps.
    tree.link(sub, &[b'n'; 254], file);
    tree.get(file).attributes = vec![
        Attribute { name: b"user.color".to_vec(), value: b"blue".to_vec() },
        Attribute { name: b"user.empty".to_vec(), value: Vec::new() },
    ];
    tree.add(sub, "empty", Kind::Regular);
    tree.add_with(sub, "odd \u{1}\n\\ name \u{fc}", b"odd");
    let link = tree.add(sub, "link", Kind::Symlink);
    tree.fill(link, 9, vec![(0, b"deep/file".to_vec())]);
    tree.add(sub, "pipe", Kind::Fifo);
    let sparse = tree.add(sub, "sparse", Kind::Regular);
    tree.fill(sparse, 9 << 20, vec![(1 << 20, vec![1; 5000]), (7 << 20, vec![2; 1])]);
    if is_root() {
        let device = tree.add(sub, "device", Kind::Block);
        tree.get(device).inode.device = (259, 70_001);
        tree.add(sub, "socket", Kind::Socket);
    }
    for file in tree.0.values_mut() {
        (file.inode.uid, file.inode.gid) = (uid, gid);
    }
    tree
}

fn bytes_of(file: &super::model::File) -> Vec<u8> {
    let mut bytes = vec![0; file.inode.size as usize];
    for (offset, data) in &file.data {
        bytes[*offset as usize..][..data.len()].copy_from_slice(data);
    }
    bytes
}

/// Compares a directory of the machine with a tree.
fn compare(tree: &Tree, directory: u32, path: &Path) {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut on_disk: Vec<Vec<u8>> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
    on_disk.retain(|name| name != b"restoresymtable");
    on_disk.sort();
    let mut names: Vec<_> = tree.0[&directory].entries.iter().map(|entry| entry.name.clone()).collect();
    names.sort();
    assert_eq!(on_disk, names, "{}", path.display());
    for entry in &tree.0[&directory].entries {
        let path = path.join(std::ffi::OsStr::from_bytes(&entry.name));
        let file = &tree.0[&entry.number];
        let found = std::fs::symlink_metadata(&path).unwrap();
        let told = path.display();
        let inode = &file.inode;
        assert_eq!((found.uid(), found.gid()), (inode.uid, inode.gid), "{told}");
        let kind = found.file_type();
        match inode.kind {
            Kind::Directory => compare(tree, entry.number, &path),
            Kind::Regular => assert_eq!(std::fs::read(&path).unwrap(), bytes_of(file), "{told}"),
            Kind::Symlink => {
                let target = std::fs::read_link(&path).unwrap();
                assert_eq!(target.as_os_str().as_bytes(), bytes_of(file), "{told}");
            }
            Kind::Fifo => assert!(kind.is_fifo(), "{told}"),
            Kind::Socket => assert!(kind.is_socket(), "{told}"),
            Kind::Block => {
                assert!(kind.is_block_device(), "{told}");
                // glibc's way to put 12 bits of major and 20 of minor number into 32.
                let (major, minor) = inode.device;
                let device = u64::from(minor & 0xff | major << 8 | (minor >> 8) << 20);
                assert_eq!(found.rdev(), device, "{told}");
            }
            Kind::Character => assert!(kind.is_char_device(), "{told}"),
        }
        if inode.kind != Kind::Symlink {
            assert_eq!(found.permissions().mode() & 0o7777, u32::from(inode.permissions), "{told}");
            assert_eq!(found.mtime(), inode.modified.seconds, "{told}");
            assert_eq!(found.mtime_nsec() / 1000, i64::from(inode.modified.nanoseconds) / 1000, "{told}");
        }
        if inode.kind == Kind::Regular {
            assert_eq!(found.nlink(), u64::from(inode.links), "{told}");
        }
    }
}

#[test]
fn linux_restore_reads_what_we_write() {
    let Some(restore) = program("restore") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let own = std::fs::metadata(scratch.path()).unwrap();
    let mut tree = tree(own.uid(), own.gid());
    let (bytes, written) = tree.dump(Tree::options());
    assert!(written.failed.is_empty());
    let dump = scratch.path().join("dump");
    std::fs::write(&dump, &bytes).unwrap();

    let listed = run(Command::new(&restore).arg("-tf").arg(&dump));
    assert!(listed.contains("./sub/crowd/a rather long name of a file, number 299"), "{listed}");
    let target = scratch.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let told = run(Command::new(&restore).arg("-rf").arg(&dump).current_dir(&target));
    assert!(!told.contains("Missing") && !told.contains("skipp"), "{told}");
    compare(&tree, ROOT, &target);

    // One file alone, and a comparison of the files with the dump.
    let alone = scratch.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    // It asks whether `.` gets the root's owner and mode.
    let answer = std::fs::File::open({
        std::fs::write(scratch.path().join("answer"), "n\n").unwrap();
        scratch.path().join("answer")
    });
    let mut extract = Command::new(&restore);
    extract.arg("-axf").arg(&dump).arg("sub/sparse").current_dir(&alone);
    run(extract.stdin(answer.unwrap()));
    assert_eq!(std::fs::metadata(alone.join("sub/sparse")).unwrap().len(), 9 << 20);
    assert!(!alone.join("sub/file").exists());
    let compared = Command::new(&restore).arg("-Cf").arg(&dump).current_dir(&target).output().unwrap();
    let compared = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert!(!compared.contains("differ") && !compared.contains("changed"), "{compared}");
}

/// Volumes of a dump in files `NAME001`, `NAME002` and so on, as `restore -M` expects them; returns
/// their paths.
fn put(tree: &mut Tree, records: u64, options: Options, prefix: &Path) -> Vec<PathBuf> {
    let parts = volumes(tree, records, options);
    let path = |number: usize| PathBuf::from(format!("{}{number:03}", prefix.display()));
    for (index, part) in parts.iter().enumerate() {
        std::fs::write(path(index + 1), part).unwrap();
    }
    (1..=parts.len()).map(path).collect()
}

#[test]
fn linux_restore_reads_our_volumes() {
    let Some(restore) = program("restore") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let own = std::fs::metadata(scratch.path()).unwrap();
    let mut tree = tree(own.uid(), own.gid());
    let date = 1_760_000_000;
    let restore = |flags: &str, from: &Path, to: &Path, answers: &str| {
        // Answers to its questions, and its temporary files, which are named after the dump's time.
        std::fs::write(scratch.path().join("answers"), answers).unwrap();
        let answers = std::fs::File::open(scratch.path().join("answers")).unwrap();
        let mut command = Command::new(&restore);
        command.arg(flags).arg(from).arg("-T").arg(scratch.path()).current_dir(to).stdin(answers);
        command
    };
    for records in [40, 50, 130, 300, 450] {
        let prefix = scratch.path().join(format!("vol{records}-"));
        let parts = put(&mut tree, records, Options { date, ..Tree::options() }, &prefix);
        assert!(parts.len() > 3, "the file of 1.3 MB spans three volumes at least");
        let target = scratch.path().join(format!("target{records}"));
        std::fs::create_dir(&target).unwrap();
        let told = run(&mut restore("-rMf", &prefix, &target, ""));
        assert!(!told.contains("issing") && !told.contains("skipp") && !told.contains("esync"), "{told}");
        compare(&tree, ROOT, &target);
        let compared = restore("-CMf", &prefix, &target, "").output().unwrap();
        let compared = String::from_utf8_lossy(&compared.stdout).into_owned();
        assert!(!compared.contains("differ") && !compared.contains("changed"), "{compared}");
        let listed = run(&mut restore("-tMf", &prefix, &target, ""));
        assert!(listed.contains("./sub/crowd/a rather long name of a file, number 299"), "{listed}");
        // One file, for which it reads the volumes in order; then it asks whether `.` gets the
        // root's owner and mode.
        let alone = scratch.path().join(format!("alone{records}"));
        std::fs::create_dir(&alone).unwrap();
        let mut extract = restore("-axMf", &prefix, &alone, "n\n");
        run(extract.arg("sub/file"));
        assert_eq!(std::fs::read(alone.join("sub/file")).unwrap(), vec![b'x'; 1_300_000]);

        // The next level on top of it.
        let mut later = tree.clone();
        let sub = later.0[&ROOT].entries.iter().find(|entry| entry.name == b"sub").unwrap().number;
        let fresh = later.add_with(sub, "fresh", &vec![b'y'; 900_000]);
        (later.get(fresh).inode.uid, later.get(fresh).inode.gid) = (own.uid(), own.gid());
        for number in [ROOT, sub, fresh] {
            later.get(number).inode.modified.seconds = i64::from(date) + 500;
            later.get(number).inode.changed.seconds = i64::from(date) + 500;
        }
        let options = Options { date: date + 1000, since: date, level: 1, ..Tree::options() };
        let prefix = scratch.path().join(format!("next{records}-"));
        put(&mut later, records, options, &prefix);
        run(&mut restore("-rMf", &prefix, &target, ""));
        compare(&later, ROOT, &target);
    }
    // Files by name: it asks for each one that follows.
    let prefix = scratch.path().join("named");
    let parts = put(&mut tree, 400, Options { date, ..Tree::options() }, &prefix);
    let target = scratch.path().join("target of files");
    std::fs::create_dir(&target).unwrap();
    let answers: String = parts[1..].iter().map(|part| format!("{}\n", part.display())).collect();
    run(&mut restore("-rf", &parts[0], &target, &answers));
    compare(&tree, ROOT, &target);
}

#[test]
fn linux_restore_applies_our_increments() {
    let Some(restore) = program("restore") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let own = std::fs::metadata(scratch.path()).unwrap();
    let mut tree = tree(own.uid(), own.gid());
    let target = scratch.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let apply = |tree: &mut Tree, options: Options| {
        let dump = scratch.path().join(format!("dump{}", options.level));
        let (bytes, _) = tree.dump(options);
        std::fs::write(&dump, &bytes).unwrap();
        run(Command::new(&restore).arg("-rf").arg(&dump).current_dir(&target));
        compare(tree, ROOT, &target);
    };
    let date = 1_750_000_000;
    apply(&mut tree, Options { date, ..Tree::options() });

    // A file changes, a name moves to another directory, one is removed, one is added, and a number
    // is reused.
    let touch = |tree: &mut Tree, number: u32, seconds: u32| {
        tree.get(number).inode.modified.seconds = i64::from(seconds);
        tree.get(number).inode.changed.seconds = i64::from(seconds);
    };
    let sub = tree.0[&ROOT].entries.iter().find(|entry| entry.name == b"sub").unwrap().number;
    let crowd = tree.0[&sub].entries.iter().find(|entry| entry.name == b"crowd").unwrap().number;
    let later = date + 1000;
    let moved = tree.get(crowd).entries.remove(10);
    tree.get(ROOT).entries.push(moved.clone());
    let gone = tree.get(crowd).entries.remove(20);
    tree.0.remove(&gone.number);
    let reused = tree.get(crowd).entries.remove(30);
    tree.fill(reused.number, 9, vec![(0, b"used anew".to_vec())]);
    tree.get(sub).entries.push(crate::Entry { name: b"reused".to_vec(), ..reused.clone() });
    let fresh = tree.add_with(crowd, "fresh", b"fresh");
    let own_ids = (own.uid(), own.gid());
    (tree.get(fresh).inode.uid, tree.get(fresh).inode.gid) = own_ids;
    for number in [ROOT, sub, crowd, moved.number, reused.number, fresh] {
        touch(&mut tree, number, later);
    }
    apply(&mut tree, Options { date: later + 1, since: date, level: 1, ..Tree::options() });

    // A directory moves with its descendants.
    let position = tree.0[&sub].entries.iter().position(|entry| entry.name == b"crowd").unwrap();
    let mut entry = tree.get(sub).entries.remove(position);
    entry.name = b"moved crowd".to_vec();
    tree.get(ROOT).entries.push(entry);
    tree.get(crowd).parent = ROOT;
    for number in [ROOT, sub, crowd] {
        touch(&mut tree, number, later + 500);
    }
    apply(&mut tree, Options { date: later + 501, since: later + 1, level: 5, ..Tree::options() });
}

#[test]
fn what_linux_dump_writes_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let content = scratch.path().join("content");
    let Some((dump, device)) = dumpable(&content, &scratch.path().join("image")) else { return };
    let written = Command::new(dump).args(["-0", "-f", "-", &device.name]).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));

    let mut reader = Reader::open(&written.stdout[..]).unwrap();
    is_what_was_filled(&mut reader, &content);
}

#[test]
fn what_linux_dump_writes_in_volumes_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let content = scratch.path().join("content");
    let Some((dump, device)) = dumpable(&content, &scratch.path().join("image")) else { return };
    for records in [50, 70, 130] {
        let prefix = scratch.path().join(format!("{records}-"));
        let mut command = Command::new(&dump);
        command.args(["-0", "-M", "-B", &records.to_string(), "-f"]).arg(&prefix).arg(&device.name);
        run(&mut command);
        let path = |number: u32| format!("{}{number:03}", prefix.display());
        let from = prefix.display().to_string();
        let next: NextVolume<std::fs::File> =
            Box::new(move |number| match std::fs::File::open(format!("{from}{number:03}")) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                opened => opened.map(Some),
            });
        let mut reader = Reader::open_volumes(std::fs::File::open(path(1)).unwrap(), next).unwrap();
        is_what_was_filled(&mut reader, &content);
        assert!(reader.volume() > 2, "the file of 200 KB spans volumes");
        // The last one may have no more than a repeated end.
        assert!(!Path::new(&path(reader.volume() + 2)).exists(), "all of them were read");
    }
}

/// With `-m` it writes no content of files whose attributes changed and whose content did not.
#[test]
fn what_linux_dump_has_the_attributes_alone_of_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let content = scratch.path().join("content");
    let Some((dump, device)) = dumpable(&content, &scratch.path().join("image")) else { return };
    // All of it has changed since, and some was last modified long ago.
    let since = "Mon Jan 01 00:00:00 2018 +0000";
    let mut command = Command::new(dump);
    let written = command.args(["-1", "-m", "-T", since, "-f", "-", &device.name]).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let mut reader = Reader::open(&written.stdout[..]).unwrap();
    assert!(reader.may_have_attributes_alone());
    let mut alone = Vec::new();
    while let Some(inode) = reader.next_inode().unwrap() {
        let has_attributes_alone = reader.has_attributes_alone();
        let mut bytes = 0;
        let content = reader.content(&mut |_, piece| {
            bytes += piece.len() as u64;
            Ok(())
        });
        assert!(content.unwrap().whole);
        if has_attributes_alone {
            assert_eq!((inode.kind, bytes), (Kind::Regular, 0));
            alone.push(inode.modified.seconds);
        }
    }
    assert_eq!(reader.damage(), []);
    assert_eq!(alone, [OLD_SECONDS]);
}

/// Linux `dump`, and a device of ext4 for it with the files that `content` makes.
fn dumpable(content: &Path, image: &Path) -> Option<(PathBuf, Loop)> {
    let (dump, mkfs, losetup) = (program("dump")?, program("mkfs.ext4")?, program("losetup")?);
    if !is_root() {
        eprintln!("skipped: `dump` wants a block device, and only root makes one of a file");
        return None;
    }
    fill(content);
    Some((dump, Loop::new(&losetup, &mkfs, content, image)))
}

/// The files that `dump` gets.
fn fill(content: &Path) {
    std::fs::create_dir_all(content.join("a/b")).unwrap();
    std::fs::write(content.join("a/b/file"), vec![5; 200_000]).unwrap();
    std::fs::hard_link(content.join("a/b/file"), content.join("a/second")).unwrap();
    std::os::unix::fs::symlink("b/file", content.join("a/link")).unwrap();
    let sparse = std::fs::File::create(content.join("a/sparse")).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", 3 << 20).unwrap();
    for n in 0..200 {
        std::fs::write(content.join(format!("a/b/name {n}")), format!("{n}")).unwrap();
    }
    let old = std::fs::File::create(content.join("a/old")).unwrap();
    std::os::unix::fs::FileExt::write_at(&old, b"modified long ago", 0).unwrap();
    let then = std::time::Duration::from_secs(OLD_SECONDS as u64);
    old.set_modified(std::time::UNIX_EPOCH + then).unwrap();
}

/// When one of the files was modified last: in 2001.
const OLD_SECONDS: i64 = 1_000_000_000;

/// A block device with an ext4 and some content; it is removed when this is dropped.
struct Loop {
    losetup: PathBuf,
    name: String,
}

impl Loop {
    fn new(losetup: &Path, mkfs: &Path, content: &Path, image: &Path) -> Self {
        std::fs::File::create(image).unwrap().set_len(32 << 20).unwrap();
        run(Command::new(mkfs).arg("-q").arg("-F").arg("-d").arg(content).arg(image));
        let device = run(Command::new(losetup).args(["--read-only", "--find", "--show"]).arg(image));
        Self { losetup: losetup.to_owned(), name: device.trim().to_owned() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new(&self.losetup).args(["--detach", &self.name]).status();
    }
}

fn is_what_was_filled<R: std::io::Read>(reader: &mut Reader<R>, content: &Path) {
    assert_eq!(reader.label().level, 0);
    let tree = Tree::read(reader);
    assert_eq!(reader.damage(), []);
    let mut names = Names::new();
    for (number, file) in tree.0.iter().filter(|(_, file)| file.inode.kind == Kind::Directory) {
        names.insert(*number, file.entries.clone());
    }
    let found = |path: &str| &tree.0[&names.find(path.as_bytes()).expect(path)];
    let file = found("/a/b/file");
    assert_eq!((file.inode.size, file.inode.links), (200_000, 2));
    assert!(bytes_of(file).iter().all(|byte| *byte == 5));
    assert_eq!(names.find(b"a/second"), Some(file.inode.number));
    assert_eq!(bytes_of(found("a/link")), b"b/file");
    let sparse = found("a/sparse");
    assert_eq!(sparse.inode.size, (3 << 20) + 3);
    assert!(sparse.data.len() == 1 && sparse.data[0].0 == 3 << 20, "holes stay holes");
    for n in 0..200 {
        assert_eq!(bytes_of(found(&format!("a/b/name {n}"))), format!("{n}").into_bytes());
    }
    let meta = std::fs::metadata(content.join("a/b/file")).unwrap();
    assert_eq!((file.inode.uid, file.inode.gid), (meta.uid(), meta.gid()));
    assert_eq!(file.inode.modified.seconds, meta.mtime());
    let mut paths = 0;
    names.walk(ROOT, &mut |_, _| paths += 1);
    assert_eq!(paths, 208, "lost+found, a, a/b and what is in them");
}
