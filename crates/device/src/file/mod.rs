//! A regular file or a raw disk as a device.
//!
//! Direct I/O if the file system supports it, otherwise through the page cache with the same
//! promises. Or writes one way and reads the other ([`Direct::Writes`]), which Linux keeps
//! coherent: a direct write drops the cached pages of its range, before and after. A batch goes to
//! the kernel as vectored transfers on the calling thread's own io_uring, or with plain calls where
//! rings are not allowed. A flush is `fdatasync`. When one fails the kernel has dropped the
//! unwritten pages, so a later `fdatasync` proves nothing: the first failure stays and every later
//! flush reports it.
//!
//! The file is locked (`flock`) while it is open. Only `grow` changes its length; if another
//! process truncates it, reads past its end fail and never return made-up bytes.

mod calls;
mod in_use;
mod open;
mod stage;
#[cfg(test)]
mod tests;
mod transfer;
mod uring;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use cairn_base::BLOCK_SIZE;

pub use open::OpenError;

use crate::{Action, Block, Device, DeviceError, Extent, Geometry, Operation, Request};
use open::Opened;
use stage::Stage;
use transfer::Transfer;

/// Bytes that are zeroed by one write.
const ZERO_PIECE: u64 = (stage::IOVECS_MAX * BLOCK_SIZE) as u64;

/// Whether to go past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// If the file system supports it and the length is a multiple of 4096.
    #[default]
    Auto,
    /// Writes as with `Auto`, reads through the page cache: for a log, which is written once and in
    /// order, much of it never read and some of it often.
    Writes,
    /// Through the page cache. Any offset and length is then allowed.
    Never,
}

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring, or plain calls if it does not work.
    #[default]
    Auto,
    /// `preadv` and `pwritev`, one after the other.
    Calls,
}

/// How to open a file device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileOptions {
    /// Refuse writes; share the lock with other readers.
    pub read_only: bool,
    /// Whether to go past the page cache.
    pub direct: Direct,
    /// How requests reach the kernel.
    pub engine: Engine,
    /// The file is adopted now, and was not this owner's before: a file that another program has
    /// open for writing is refused, as far as that can be seen.
    pub is_new: bool,
    /// It is opened though other programs use it: its owner answers for that.
    pub in_use: bool,
}

/// A regular file or a raw disk.
#[derive(Debug)]
pub struct FileDevice {
    /// It holds the lock. All requests but some writes use it.
    file: File,
    /// The same file for writes past the page cache, where reads go through it.
    past: Option<File>,
    length: AtomicU64,
    disk: bool,
    /// Reads go past the page cache.
    direct: bool,
    read_only: bool,
    rings: bool,
    trims: bool,
    fast_zeroes: bool,
    /// The first failed flush.
    failed: OnceLock<DeviceError>,
}

impl FileDevice {
    /// Creates a sparse file of `length` bytes that reads as zeroes. Fails if the path exists,
    /// except for a file without a length, which remains after a kill in the middle of this.
    pub fn create(path: impl AsRef<Path>, length: u64) -> Result<Self, OpenError> {
        Self::create_with(path, length, FileOptions::default())
    }

    /// Like `create`; `read_only` of the options means nothing.
    pub fn create_with(path: impl AsRef<Path>, length: u64, options: FileOptions) -> Result<Self, OpenError> {
        let options = FileOptions { read_only: false, ..options };
        Ok(Self::new(open::create(path.as_ref(), length, &options)?, options))
    }

    /// Opens a regular file or a disk and locks it: alone, or shared with other readers when
    /// read-only.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, OpenError> {
        Ok(Self::new(open::open(path.as_ref(), &options)?, options))
    }

    fn new(opened: Opened, options: FileOptions) -> Self {
        let Opened { file, past, length, disk, direct, trims, fast_zeroes } = opened;
        Self {
            file,
            past,
            length: AtomicU64::new(length),
            disk,
            direct,
            read_only: options.read_only,
            rings: options.engine == Engine::Auto && rings_work(),
            trims,
            fast_zeroes,
            failed: OnceLock::new(),
        }
    }

    /// Makes a file at least `length` bytes long; a disk must be that long already (it has been
    /// enlarged). It is durable when it returns. A device that is long enough is unchanged.
    pub fn grow(&self, length: u64) -> Result<(), DeviceError> {
        let now = self.length.load(Ordering::Acquire);
        if length <= now {
            return Ok(());
        }
        let geometry = self.geometry();
        Geometry { length, ..geometry }.admit(&Request::WriteZeroes {
            offset: now,
            length: length - now,
            may_trim: true,
            fua: false,
        })?;
        let error = |source: io::Error| device_error(Action::Open, now, length - now, &Arc::new(source));
        let mut have = calls::seek(&self.file, 0, libc::SEEK_END).map_err(error)?.unwrap_or(0);
        if have < length && !self.disk {
            self.file.set_len(length).map_err(error)?;
            have = length;
        }
        if have < length {
            return Err(DeviceError::NoSpace { offset: now, length: length - now });
        }
        self.file.sync_all().map_err(error)?;
        self.length.fetch_max(length, Ordering::AcqRel);
        Ok(())
    }

    /// True when writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.goes_past(true)
    }

    /// Whether writes, or reads, go past the page cache.
    fn goes_past(&self, write: bool) -> bool {
        self.direct || write && self.past.is_some()
    }

    /// True when requests go through io_uring.
    pub fn uses_rings(&self) -> bool {
        self.rings
    }

    /// Does all transfers to their end. Reads come before writes.
    fn transfer(&self, transfers: &mut [Transfer]) {
        if self.direct {
            return self.carry(&self.file, transfers);
        }
        let (reads, writes) =
            transfers.split_at_mut(transfers.partition_point(|transfer| !transfer.is_write()));
        self.carry(&self.file, reads);
        match &self.past {
            Some(past) => self.carry(past, writes),
            // A write through the page cache is a copy, which a ring gives to a worker thread of
            // the kernel on most file systems.
            None => writes.iter_mut().for_each(|transfer| calls::run(&self.file, transfer)),
        }
    }

    /// Runs them in parallel where possible.
    fn carry(&self, file: &File, transfers: &mut [Transfer]) {
        // A single transfer has none to run beside, and a plain call is some microseconds faster.
        let done = transfers.len() > 1 && self.rings && uring::run(file, transfers).is_ok();
        if !done {
            transfers.iter_mut().for_each(|transfer| calls::run(file, transfer));
        }
    }

    /// Makes everything durable, or returns the first failure to do so.
    fn sync(&self) -> Result<(), DeviceError> {
        self.latched()?;
        if let Err(error) = self.file.sync_data() {
            self.latch(&error);
        }
        self.latched()
    }

    /// Keeps `error` as the reason why no flush is believed any more.
    fn latch(&self, error: &io::Error) {
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => error.kind().into(),
        };
        let length = self.length.load(Ordering::Relaxed);
        // Also for a lack of room: the kernel has dropped the pages that it could not write.
        let error = DeviceError::Io { action: Action::Flush, offset: 0, length, source: Arc::new(source) };
        self.failed.get_or_init(|| error);
    }

    fn latched(&self) -> Result<(), DeviceError> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Does a trim or a write-zeroes.
    fn clear(&self, request: &Request) -> Result<(), DeviceError> {
        match *request {
            Request::Trim { offset, length, .. } => {
                let done = if self.trims { self.trim(offset, length) } else { Ok(()) };
                done.map_err(|error| device_error(Action::Trim, offset, length, &Arc::new(error)))
            }
            Request::WriteZeroes { offset, length, may_trim, .. } => self.zero(offset, length, may_trim),
            _ => Ok(()),
        }
    }

    fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let done = if self.disk {
            // A disk discards whole logical blocks; the bytes around them may stay.
            let block = BLOCK_SIZE as u64;
            let end = (offset + length) / block * block;
            let start = offset.next_multiple_of(block);
            if start < end { calls::discard(&self.file, start, end - start) } else { Ok(()) }
        } else if length > 0 {
            calls::allocate(&self.file, mode, offset, length)
        } else {
            Ok(())
        };
        match done {
            Err(error) if is_unsupported(&error) => Ok(()),
            done => done,
        }
    }

    fn zero(&self, offset: u64, length: u64, may_trim: bool) -> Result<(), DeviceError> {
        if length == 0 {
            return Ok(());
        }
        let kind = if may_trim { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        match calls::allocate(&self.file, kind | libc::FALLOC_FL_KEEP_SIZE, offset, length) {
            Ok(()) => Ok(()),
            Err(error) if is_unsupported(&error) => self.write_zeroes(offset, length),
            Err(error) => Err(device_error(Action::WriteZeroes, offset, length, &Arc::new(error))),
        }
    }

    /// Writes zeroes as data. Aligned as the device requires.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let zero = Block::zero();
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(ZERO_PIECE);
            let mut rest = piece as usize;
            let mut iovecs = Vec::with_capacity(rest.div_ceil(BLOCK_SIZE));
            while rest > 0 {
                let iov_len = rest.min(BLOCK_SIZE);
                // The kernel only reads from it, and `zero` outlives the transfer.
                iovecs.push(libc::iovec { iov_base: zero.as_ptr().cast_mut().cast(), iov_len });
                rest -= iov_len;
            }
            let mut transfer = [Transfer::new(true, self.goes_past(true), at, iovecs)];
            self.transfer(&mut transfer);
            let [transfer] = transfer;
            transfer
                .into_outcome()
                .map_err(|error| device_error(Action::WriteZeroes, at, piece, &Arc::new(error)))?;
            at += piece;
        }
        Ok(())
    }

    /// The next stretch from `at` on, up to `end`: where it ends, and whether it is a hole.
    fn stretch(&self, at: u64, end: u64) -> Result<(u64, bool), DeviceError> {
        if self.disk {
            return Ok((end, false));
        }
        let found = calls::seek(&self.file, at, libc::SEEK_DATA).and_then(|data| {
            Ok(match data {
                None => (end, true),
                Some(data) if data > at => (data, true),
                Some(_) => (calls::seek(&self.file, at, libc::SEEK_HOLE)?.unwrap_or(end), false),
            })
        });
        match found {
            Ok((stop, hole)) => Ok((stop.min(end), hole)),
            Err(error) if is_unsupported(&error) => Ok((end, false)),
            Err(error) => Err(device_error(Action::Extents, at, end - at, &Arc::new(error))),
        }
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            length: self.length.load(Ordering::Acquire),
            alignment: if self.goes_past(true) { BLOCK_SIZE as u32 } else { 1 },
            read_only: self.read_only,
            trims: self.trims,
            fast_zeroes: self.fast_zeroes,
        }
    }

    fn lengthen(&self, length: u64) -> Result<(), DeviceError> {
        self.grow(length)
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        let mut stage = Stage::default();
        for index in 0..batch.len() {
            if !batch[index].is_pending() {
                continue;
            }
            if let Err(refusal) = geometry.admit(batch[index].request()) {
                batch[index].finish(Err(refusal));
                continue;
            }
            if let Request::Prefetch { offset, length } = *batch[index].request() {
                if !self.direct {
                    calls::advise(&self.file, offset, length);
                }
                batch[index].succeed();
                continue;
            }
            if !stage.add(self, index, &batch[index]) {
                std::mem::take(&mut stage).perform(self, batch);
                let fits = stage.add(self, index, &batch[index]);
                debug_assert!(fits, "an empty stage takes anything");
            }
        }
        stage.perform(self, batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.geometry().admit_range(Action::Extents, offset, length)?;
        let end = offset + length;
        let mut at = offset;
        let mut extents = Vec::new();
        while at < end && extents.len() < limit {
            let (stop, hole) = self.stretch(at, end)?;
            extents.push(Extent { length: stop - at, hole, zero: hole });
            at = stop;
        }
        Ok(extents)
    }

    /// Allocates the holes in the range and writes zeroes into them. An allocated but unwritten
    /// extent would not do: the first write into it changes the extent tree, and the next
    /// `fdatasync` waits for the file system's journal.
    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        if self.disk || length == 0 {
            return self.geometry().admit_range(Action::Write, offset, length);
        }
        let fua = false;
        self.geometry().admit(&Request::WriteZeroes { offset, length, may_trim: false, fua })?;
        let end = offset + length;
        let mut at = offset;
        let mut changed = false;
        while at < end {
            let (stop, hole) = self.stretch(at, end)?;
            if hole {
                match calls::allocate(&self.file, 0, at, stop - at) {
                    Err(error) if !is_unsupported(&error) => {
                        return Err(device_error(Action::Write, at, stop - at, &Arc::new(error)));
                    }
                    _ => self.write_zeroes(at, stop - at)?,
                }
                changed = true;
            }
            at = stop;
        }
        if changed { self.sync() } else { Ok(()) }
    }

    /// Extents without data, which cost nothing to write. A file system that has no such call, or
    /// that writes elsewhere each time, promises nothing.
    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.geometry().admit_range(Action::Write, offset, length)?;
        if self.disk || length == 0 {
            return Ok(());
        }
        match calls::allocate(&self.file, libc::FALLOC_FL_KEEP_SIZE, offset, length) {
            Err(error) if !is_unsupported(&error) => {
                Err(device_error(Action::Write, offset, length, &Arc::new(error)))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for FileDevice {
    /// Releases the lock now, and not with the last user of the open file. A starting program has
    /// the file until its exec. The ring of an idle thread may have it for a transfer that a kernel
    /// worker released late.
    fn drop(&mut self) {
        in_use::unlock_as_qemu(&self.file);
        calls::unlock(&self.file);
    }
}

/// True when io_uring works in this process; logs it once if not.
fn rings_work() -> bool {
    static SAID: Once = Once::new();
    match uring::probe() {
        Ok(()) => true,
        Err(error) => {
            SAID.call_once(|| tracing::info!(%error, "io_uring does not work here; plain calls are used"));
            false
        }
    }
}

/// True when the file system or the disk does not have the call; also when it supports whole blocks
/// only.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENOTTY))
}

fn device_error(action: Action, offset: u64, length: u64, source: &Arc<io::Error>) -> DeviceError {
    if is_no_space(source) {
        return DeviceError::NoSpace { offset, length };
    }
    DeviceError::Io { action, offset, length, source: Arc::clone(source) }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
