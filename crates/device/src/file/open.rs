//! Opening and creating: the kind of the path, its user, and the abilities of its file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cairn_base::BLOCK_SIZE;

use super::{Direct, FileOptions, calls, in_use};
use crate::BlockMut;

/// Why a file or disk could not be opened or created, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path does not exist.
    #[error("{} does not exist: check the path, or create it first", path.display())]
    Missing {
        /// The path to open.
        path: PathBuf,
    },
    /// The path exists already.
    #[error("{} exists already and is not overwritten: choose another path, or remove it", path.display())]
    Exists {
        /// The path to create.
        path: PathBuf,
    },
    /// The path is a directory, a socket, a pipe or a terminal.
    #[error("{} is neither a regular file nor a disk: name one of these", path.display())]
    NotStorage {
        /// The path to open.
        path: PathBuf,
    },
    /// Another process, or this one, has it open; or it is a mounted disk.
    #[error("{} is in use: stop the server that has it open, or unmount it", path.display())]
    Busy {
        /// The path to open.
        path: PathBuf,
    },
    /// Another program writes to it, or has locked it as QEMU locks its images.
    #[error("{} is in use by {by}: two writers would destroy what is on it", path.display())]
    InUse {
        /// The path to open.
        path: PathBuf,
        /// The process that has it.
        by: String,
    },
    /// The file system takes no writes.
    #[error("{} is on a read-only file system: remount it for writing, or open it read-only", path.display())]
    ReadOnlyFileSystem {
        /// The path to open or create.
        path: PathBuf,
    },
    /// This user may not.
    #[error("{} may not be opened by this user: change its owner or mode, or run as another user", path.display())]
    Permission {
        /// The path to open or create.
        path: PathBuf,
    },
    /// The file system or the quota is full.
    #[error("no space is left for {}: free some, or choose another file system", path.display())]
    NoSpace {
        /// The path to create.
        path: PathBuf,
    },
    /// The file system has no files of this length.
    #[error("{} cannot be {length} bytes long on its file system: choose a smaller size", path.display())]
    TooLong {
        /// The path to create.
        path: PathBuf,
        /// Bytes.
        length: u64,
    },
    /// Any other error of the operating system.
    #[error("{} cannot be opened: {source}", path.display())]
    Io {
        /// The path to open or create.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl OpenError {
    fn new(path: &Path, length: u64, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::Missing { path },
            Some(libc::EEXIST) => Self::Exists { path },
            Some(libc::EISDIR | libc::ENXIO | libc::ENODEV) => Self::NotStorage { path },
            Some(libc::EBUSY | libc::EWOULDBLOCK | libc::ETXTBSY) => Self::Busy { path },
            Some(libc::EROFS) => Self::ReadOnlyFileSystem { path },
            Some(libc::EACCES | libc::EPERM) => Self::Permission { path },
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { path },
            Some(libc::EFBIG | libc::EINVAL | libc::EOVERFLOW) if length > 0 => {
                Self::TooLong { path, length }
            }
            _ => Self::Io { path, source },
        }
    }
}

/// An open file or disk, locked, and its abilities.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) past: Option<File>,
    pub(super) length: u64,
    pub(super) disk: bool,
    pub(super) direct: bool,
    pub(super) trims: bool,
    pub(super) fast_zeroes: bool,
}

/// Creates a sparse file that also exists after a crash. An empty one counts as the remains of such
/// a crash.
pub(super) fn create(path: &Path, length: u64, options: &FileOptions) -> Result<Opened, OpenError> {
    let error = |source| OpenError::new(path, length, source);
    let new = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let (file, is_new) = match new {
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists && is_empty_file(path) => {
            (OpenOptions::new().read(true).write(true).open(path).map_err(error)?, false)
        }
        new => (new.map_err(error)?, true),
    };
    // A process that has locked it by now keeps it: it may have made the file.
    calls::lock(&file, false).map_err(error)?;
    lock_as_qemu(&file, path, options)?;
    let found = file.metadata().map_err(error)?;
    if found.len() > 0 || found.nlink() == 0 {
        // Another process was faster.
        return Err(error(io::ErrorKind::AlreadyExists.into()));
    }
    let made = (|| {
        // Beyond this, set_len would see a negative length.
        i64::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        file.set_len(length)?;
        file.sync_all()?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()
    })();
    match made.and_then(|()| probe(file, options)) {
        Ok(opened) => Ok(opened),
        Err(source) => {
            // The remaining file was made by this call; the first error is the one to report.
            if is_new {
                let _ = fs::remove_file(path);
            }
            Err(error(source))
        }
    }
}

/// Locks QEMU out, and refuses files that QEMU uses.
fn lock_as_qemu(file: &File, path: &Path, options: &FileOptions) -> Result<(), OpenError> {
    if options.read_only {
        return Ok(());
    }
    match in_use::lock_as_qemu(file, options.in_use) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let by = "QEMU, or another program that locks images as QEMU does".to_owned();
            Err(OpenError::InUse { path: path.to_path_buf(), by })
        }
        Err(source) => Err(OpenError::new(path, 0, source)),
    }
}

fn is_empty_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// Opens a file or a disk and locks it.
pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Opened, OpenError> {
    let error = |source| OpenError::new(path, 0, source);
    // A pipe would wait for its other end, so the kind is checked before.
    let kind = fs::metadata(path).map_err(error)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::NotStorage { path: path.to_path_buf() });
    }
    // On a disk, O_EXCL refuses a mounted one, or a part of a larger device.
    let exclusive = if kind.is_block_device() && !options.read_only { libc::O_EXCL } else { 0 };
    // Before it is open here as well.
    let asks = options.is_new && !options.read_only && !options.in_use;
    let writer = if asks { in_use::writer_of(path).map_err(error)? } else { None };
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(exclusive)
        .open(path)
        .map_err(error)?;
    calls::lock(&file, options.read_only).map_err(error)?;
    if let Some(by) = writer {
        return Err(OpenError::InUse { path: path.to_path_buf(), by });
    }
    lock_as_qemu(&file, path, options)?;
    probe(file, options).map_err(error)
}

fn probe(mut file: File, options: &FileOptions) -> io::Result<Opened> {
    let metadata = file.metadata()?;
    let disk = metadata.file_type().is_block_device();
    let length = file.seek(SeekFrom::End(0))?;
    let whole = length.is_multiple_of(BLOCK_SIZE as u64);
    let direct = whole && options.direct == Direct::Auto && enter_direct(&file)?;
    let past = match options.direct {
        Direct::Writes if whole && !options.read_only => open_past(&file)?,
        _ => None,
    };
    let (trims, fast_zeroes) = if disk {
        let number = metadata.rdev();
        let limit = |name| queue_limit(number, name).is_some_and(|limit| limit > 0);
        (limit("discard_max_bytes"), limit("write_zeroes_max_bytes"))
    } else {
        // Past the end the probe cannot overwrite anything.
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let punches = !options.read_only && calls::allocate(&file, mode, length, BLOCK_SIZE as u64).is_ok();
        (punches, punches)
    };
    Ok(Opened { file, past, length, disk, direct, trims, fast_zeroes })
}

/// The same file opened again for direct writes, if the file system supports these. It is found by
/// its descriptor: its path may lead to another one now.
fn open_past(file: &File) -> io::Result<Option<File>> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(past) = OpenOptions::new().read(true).write(true).open(again) else { return Ok(None) };
    Ok(enter_direct(&past)?.then_some(past))
}

/// Switches direct I/O on when the file system takes it.
fn enter_direct(file: &File) -> io::Result<bool> {
    if calls::set_direct(file, true).is_err() {
        return Ok(false);
    }
    // Some file systems take the flag and refuse the reads.
    match file.read_at(&mut BlockMut::dirty()[..], 0) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            calls::set_direct(file, false).map(|()| false)
        }
        // A bad first block is reported to its reader, not at the opening.
        Err(_) => Ok(true),
    }
}

/// A limit of a disk's queue from sysfs; a partition has it one level up.
fn queue_limit(number: u64, name: &str) -> Option<u64> {
    let base = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    let read = |middle: &str| fs::read_to_string(format!("{base}/{middle}queue/{name}"));
    read("").or_else(|_| read("../")).ok()?.trim().parse().ok()
}
