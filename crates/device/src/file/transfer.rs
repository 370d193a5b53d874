//! One vectored read or write in progress, continued until all of its bytes are done.
//!
//! A transfer names memory by raw pointers, as the kernel requires. Its maker guarantees that the
//! memory stays valid until it is done, that memory to be read into is not accessed meanwhile, and
//! that memory to be written from is not changed.

use std::io;

use cairn_base::BLOCK_SIZE;

/// How often a transfer may fail to move before it counts as failed. The kernel does not do this to
/// files; the limit keeps a broken driver from holding a thread for ever.
const STALLS_MAX: u32 = 1000;

/// Whether a transfer has to be submitted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Again,
    Done,
}

pub(super) struct Transfer {
    write: bool,
    /// It is durable when it is done (`RWF_DSYNC`).
    pub(super) durable: bool,
    /// Continue at whole blocks only, since the file is open for direct I/O.
    direct: bool,
    offset: u64,
    iovecs: Vec<libc::iovec>,
    /// Iovecs before this one are through.
    head: usize,
    stalls: u32,
    outcome: Option<io::Result<()>>,
}

impl Transfer {
    /// A read or write at `offset` of all that `iovecs` name; there is at least one.
    pub(super) fn new(write: bool, direct: bool, offset: u64, iovecs: Vec<libc::iovec>) -> Self {
        Self { write, durable: false, direct, offset, iovecs, head: 0, stalls: 0, outcome: None }
    }

    pub(super) fn is_write(&self) -> bool {
        self.write
    }

    /// Where the next submission starts.
    pub(super) fn position(&self) -> u64 {
        self.offset
    }

    /// The iovecs of the next submission, and how many. They stay in place until `step`.
    pub(super) fn rest(&self) -> (*const libc::iovec, usize) {
        (self.iovecs[self.head..].as_ptr(), self.iovecs.len() - self.head)
    }

    /// The flags of preadv2 and pwritev2.
    pub(super) fn flags(&self) -> i32 {
        if self.durable { libc::RWF_DSYNC } else { 0 }
    }

    /// Its outcome, once it is done.
    pub(super) fn into_outcome(self) -> io::Result<()> {
        self.outcome.expect("an engine does every transfer to its end")
    }

    /// Takes in the result of a submission: bytes moved, or why none were.
    pub(super) fn step(&mut self, result: io::Result<usize>) -> Step {
        let moved = match result {
            Ok(0) => {
                let kind = if self.write { io::ErrorKind::WriteZero } else { io::ErrorKind::UnexpectedEof };
                return self.end(Err(kind.into()));
            }
            Ok(moved) => moved,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => return self.stall(),
                _ => return self.end(Err(error)),
            },
        };
        let left = self.advance(moved);
        if self.head == self.iovecs.len() {
            return self.end(Ok(()));
        }
        if left { Step::Again } else { self.stall() }
    }

    fn end(&mut self, outcome: io::Result<()>) -> Step {
        self.outcome = Some(outcome);
        Step::Done
    }

    fn stall(&mut self) -> Step {
        self.stalls += 1;
        if self.stalls > STALLS_MAX {
            return self.end(Err(io::ErrorKind::TimedOut.into()));
        }
        std::thread::yield_now();
        Step::Again
    }

    /// Drops `moved` bytes from the front; false when that was nothing.
    fn advance(&mut self, moved: usize) -> bool {
        let mut moved = moved;
        let rest: usize = self.iovecs[self.head..].iter().map(|iovec| iovec.iov_len).sum();
        if self.direct && moved < rest {
            // Direct I/O cannot start in the middle of a block: some bytes are moved a second time.
            moved -= moved % BLOCK_SIZE;
        }
        if moved == 0 {
            return false;
        }
        self.offset += moved as u64;
        while moved > 0 {
            let iovec = &mut self.iovecs[self.head];
            if moved < iovec.iov_len {
                iovec.iov_base = iovec.iov_base.cast::<u8>().wrapping_add(moved).cast();
                iovec.iov_len -= moved;
                break;
            }
            moved -= iovec.iov_len;
            self.head += 1;
        }
        true
    }
}
