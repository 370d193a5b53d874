//! Whether another program has a file or a disk open for writing: two writers destroy its content.
//!
//! `flock` keeps servers of this kind apart, and `O_EXCL` those of a disk that the kernel knows
//! (mounts, volume groups, RAIDs). Other programs do neither:
//!
//! - QEMU locks single bytes of an image, each for an action that it does or prevents others from
//!   doing (`block/file-posix.c`). [`lock_as_qemu`] takes the same locks, so either side refuses an
//!   image that the other one uses. They are held as long as the file is open.
//! - A loop device names its file in `/sys/block/loop*/loop/backing_file`.
//! - A read lease (`F_SETLEASE`) is granted for a file that is not open for writing, by any process
//!   or the kernel. It is returned at once. Only the file's owner may request one, and not all file
//!   systems have leases.
//! - `/proc/*/fd` shows which process it is, as far as this user may look.
//!
//! The last three are checked before a file is adopted that was not this server's before. A later
//! check would be wrong: files that this process itself has closed may stay open for a moment.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::calls;

/// The first of the bytes that QEMU locks for its own actions, and for actions that it prevents.
const DOES: u64 = 100;
const KEEPS_TO_ITSELF: u64 = 200;
/// The actions: consistent reads, writes, writes that do not change the content, resizes.
const ACTIONS: u64 = 4;
const READS: u64 = 0;

/// Takes the locks of a QEMU that writes to it, and allows others only to read. Second: false where
/// another program has conflicting locks, and `insists` did not override them.
pub(super) fn lock_as_qemu(file: &File, insists: bool) -> io::Result<bool> {
    let mut is_ours = true;
    let mut try_each = |act: &dyn Fn(u64) -> io::Result<bool>| -> io::Result<()> {
        for action in 0..ACTIONS {
            is_ours &= act(action)?;
        }
        Ok(())
    };
    // First the locks for the own actions, then a look at others': if two openers come at once, at
    // least one sees the other.
    try_each(&|action| calls::lock_byte(file, DOES + action))?;
    try_each(&|action| Ok(action == READS || calls::lock_byte(file, KEEPS_TO_ITSELF + action)?))?;
    try_each(&|action| Ok(!calls::is_byte_locked(file, KEEPS_TO_ITSELF + action)?))?;
    try_each(&|action| Ok(action == READS || !calls::is_byte_locked(file, DOES + action)?))?;
    if !is_ours && !insists {
        unlock_as_qemu(file);
    }
    Ok(is_ours || insists)
}

/// Gives these locks back.
pub(super) fn unlock_as_qemu(file: &File) {
    calls::unlock_bytes(file, DOES, KEEPS_TO_ITSELF + ACTIONS - DOES);
}

/// How often and after which pause it is looked again before a file counts as in use: a program
/// that another one has just started has that one's files open until it runs.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// Describes the process that writes to a file or disk, as far as it can be found.
pub(super) fn writer_of(path: &Path) -> io::Result<Option<String>> {
    for _ in 1..LOOKS {
        if look_for_writer(path)?.is_none() {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
    look_for_writer(path)
}

fn look_for_writer(path: &Path) -> io::Result<Option<String>> {
    let found = fs::metadata(path)?;
    if let Some(device) = loop_device_of(path, &found) {
        return Ok(Some(format!("the loop device {}", device.display())));
    }
    if let Some(process) = process_with(path, &found) {
        return Ok(Some(process));
    }
    let is_written = found.is_file() && calls::has_writers(&File::open(path)?);
    Ok(is_written.then(|| "a program that this user can't see, or the kernel".to_owned()))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    match one.file_type().is_block_device() {
        true => other.file_type().is_block_device() && one.rdev() == other.rdev(),
        false => (one.dev(), one.ino()) == (other.dev(), other.ino()),
    }
}

/// The loop device that has the file, if one does.
fn loop_device_of(path: &Path, found: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    for device in devices.filter(|device| device.file_name().as_encoded_bytes().starts_with(b"loop")) {
        let Ok(file) = fs::read_to_string(device.path().join("loop/backing_file")) else { continue };
        let file = Path::new(file.trim_end_matches('\n'));
        let reads_only = fs::read_to_string(device.path().join("ro")).is_ok_and(|text| text.trim() == "1");
        if !reads_only && (file == path || fs::metadata(file).is_ok_and(|other| is_same(found, &other))) {
            return Some(Path::new("/dev").join(device.file_name()));
        }
    }
    None
}

/// A process other than this one that has it open for writing.
fn process_with(path: &Path, found: &Metadata) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        if number == std::process::id() {
            continue;
        }
        for file in files.flatten() {
            // Only links with its name are examined: a look at another file system may wait for
            // that.
            let Ok(link) = fs::read_link(file.path()) else { continue };
            let may_be_it = found.nlink() > 1 || link.file_name() == path.file_name() || link == path;
            let is_it = || fs::metadata(file.path()).is_ok_and(|other| is_same(found, &other));
            if may_be_it && is_it() && is_open_for_writing(&process.path(), &file.file_name()) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(format!("process {number} ({})", name.trim_end()));
            }
        }
    }
    None
}

fn is_open_for_writing(process: &Path, file: &std::ffi::OsStr) -> bool {
    let info = fs::read_to_string(process.join("fdinfo").join(file)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}
