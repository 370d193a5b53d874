//! The system calls of a file device, each with its interruptions hidden, and the engine that does
//! one transfer at a time with them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::transfer::{Step, Transfer};

/// `BLKDISCARD` of linux/fs.h; libc does not name it on all targets.
const BLKDISCARD: u64 = 0x1277;
/// `F_SETSIG` of linux/fcntl.h, which libc does not name.
const F_SETSIG: i32 = 10;

/// Does `transfer` to its end.
pub(super) fn run(file: &File, transfer: &mut Transfer) {
    loop {
        let (iovecs, count) = transfer.rest();
        let (fd, offset, flags) = (file.as_raw_fd(), transfer.position() as i64, transfer.flags());
        let result = if transfer.is_write() {
            // SAFETY: the iovecs and the memory that they name stay valid, see `Transfer`.
            unsafe { libc::pwritev2(fd, iovecs, count as i32, offset, flags) }
        } else {
            // SAFETY: as above, and no other code has access to the memory that is written.
            unsafe { libc::preadv2(fd, iovecs, count as i32, offset, flags) }
        };
        let result = if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) };
        if transfer.step(result) == Step::Done {
            return;
        }
    }
}

/// `fallocate(2)`.
pub(super) fn allocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: the call takes no memory of ours.
    retry(|| unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) })
}

/// Discards bytes of a disk; both numbers are multiples of its logical block.
pub(super) fn discard(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = [offset, length];
    // SAFETY: BLKDISCARD reads two u64 from the pointer, which outlives the call.
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as libc::Ioctl, range.as_ptr()) })
}

/// The next data or hole at or after `offset` (`whence` is `SEEK_DATA` or `SEEK_HOLE`); `None` when
/// there is none.
pub(super) fn seek(file: &File, offset: u64, whence: i32) -> io::Result<Option<u64>> {
    // SAFETY: the call takes no memory of ours. It moves the file position, which nothing here
    // uses.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

/// Tells the page cache that the bytes will be needed. Advice: a failure changes nothing.
pub(super) fn advise(file: &File, offset: u64, length: u64) {
    // SAFETY: the call takes no memory of ours.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), offset as i64, length as i64, libc::POSIX_FADV_WILLNEED);
    }
}

/// Takes the lock of the file without waiting: shared, or exclusive.
pub(super) fn lock(file: &File, shared: bool) -> io::Result<()> {
    let kind = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: the call takes no memory of ours.
    retry(|| unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
}

/// A lock of one byte that ends with the open file.
fn byte_lock(kind: i32, start: u64, length: u64) -> libc::flock {
    // SAFETY: all of its fields are integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start as libc::off_t, length as libc::off_t);
    lock
}

/// Takes a shared lock of a byte without waiting; false when another process has it exclusively.
/// True on a file system without such locks.
pub(super) fn lock_byte(file: &File, byte: u64) -> io::Result<bool> {
    let lock = byte_lock(libc::F_RDLCK, byte, 1);
    // SAFETY: the call reads the lock, which outlives it.
    match retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) if has_no_locks(&error) => Ok(true),
        outcome => outcome.map(|()| true),
    }
}

/// Whether another process has a lock of any kind on a byte.
pub(super) fn is_byte_locked(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, byte, 1);
    // SAFETY: the call reads and writes the lock, which outlives it.
    match retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }) {
        Err(error) if has_no_locks(&error) => Ok(false),
        outcome => outcome.map(|()| i32::from(lock.l_type) != libc::F_UNLCK),
    }
}

/// Releases this open file's locks of these bytes.
pub(super) fn unlock_bytes(file: &File, start: u64, length: u64) {
    let lock = byte_lock(libc::F_UNLCK, start, length);
    // SAFETY: the call reads the lock, which outlives it.
    let _ = retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) });
}

fn has_no_locks(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP))
}

/// Whether any process has a file open for writing, by a read lease that is returned at once.
/// `file` is open for reading alone. False if that cannot be determined.
pub(super) fn has_writers(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // A process that opens the file within the lease has a signal sent here, which would end this
    // process unless it is one that is ignored. SAFETY: the calls take no memory of ours.
    if retry(|| unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) }).is_err() {
        return false;
    }
    // SAFETY: as above.
    match retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) }) {
        Ok(()) => {
            // SAFETY: as above.
            let _ = retry(|| unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) });
            false
        }
        Err(error) => error.raw_os_error() == Some(libc::EAGAIN),
    }
}

/// Releases the lock of the file, even if another process shares the open file. On a failure the
/// lock ends when the last of them closes it.
pub(super) fn unlock(file: &File) {
    // SAFETY: the call takes no memory of ours.
    let _ = retry(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) });
}

/// Switches direct I/O on or off for this open file.
pub(super) fn set_direct(file: &File, on: bool) -> io::Result<()> {
    // SAFETY: the call takes no memory of ours.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = if on { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    // SAFETY: as above.
    retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) })
}

fn retry(mut call: impl FnMut() -> i32) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
