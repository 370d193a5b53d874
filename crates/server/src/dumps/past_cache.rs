//! Long files that are written or read once, from front to back, past the page cache.
//!
//! Through the cache the kernel copies each byte, allocates its place on the disk late, and writes
//! it back by a thread that does not know its waiters. Here a file goes in pieces of [`PIECE`]
//! bytes of aligned memory, by threads of its own.
//!
//! Direct requests are aligned, and files are not: the bytes before the first aligned place and
//! after the last whole piece go through the page cache, while no direct request is in flight. So
//! do all bytes if the file system does not support direct requests: it refuses the flag, or a
//! request with `EINVAL`.
//!
//! The flag (`O_DIRECT`) belongs to the open file, which the client shares; it is set while pieces
//! are in flight. Reopening the file would require rights that a server need not have.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_stream::ALIGNMENT;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

pub(crate) use reader::Source;
pub(crate) use writer::{Line, lanes, write};

/// Bytes of a request.
const PIECE: usize = 2 << 20;

/// Memory for a piece, aligned.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let bytes = vec![0; PIECE + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + PIECE]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + PIECE]
    }
}

/// Whether requests to an open file go past the page cache.
struct Direct(AtomicBool);

impl Direct {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// From here on they do, if the file system permits it.
    fn enter(&self, file: &File) {
        if switch(file, true).is_ok() {
            self.0.store(true, Ordering::Release);
        }
    }

    /// From here on they do not.
    fn leave(&self, file: &File) -> io::Result<()> {
        if self.0.swap(false, Ordering::AcqRel) { switch(file, false) } else { Ok(()) }
    }

    /// Runs `request`, through the page cache if the file system does not support direct requests.
    fn request(&self, file: &File, request: &mut dyn FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let mut refused = false;
        loop {
            match request() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another thread may have had the same error, and have cleared the flag already.
                Err(error) if !refused && Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                    refused = true;
                    self.leave(file)?;
                }
                outcome => return outcome,
            }
        }
    }
}

fn switch(file: &File, on: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(fcntl_setfl(file, flags)?)
}
