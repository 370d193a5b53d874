//! The io_uring engine: one ring per calling thread, so that no lock is taken and completions need
//! no routing.
//!
//! The downside: a ring per thread costs some tens of KiB, and threads do not share one submission.
//! Flushes do not go through the ring: the kernel hands them to a worker thread, while the calling
//! thread has nothing to do but wait, so `fdatasync` in the calling thread saves two switches.
//!
//! Some transfers end in a kernel worker, which may release the open file after the thread has its
//! answer. With deferred task work the release takes effect only once the thread uses its ring
//! again, or ends. Until then the file stays open, even after it was closed: so its lock is
//! released explicitly.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

use super::transfer::{Step, Transfer};

/// Transfers in flight per thread, and entries of a ring.
const IN_FLIGHT_MAX: usize = 128;

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Checks that rings work here (an old kernel or a seccomp filter may forbid them).
pub(super) fn probe() -> io::Result<()> {
    with_ring(|_| ())
}

/// Does all `transfers` to their end. `Err` when this thread has no ring; then nothing was done.
pub(super) fn run(file: &File, transfers: &mut [Transfer]) -> io::Result<()> {
    with_ring(|ring| run_on(ring, file, transfers))
}

fn with_ring<T>(work: impl FnOnce(&mut IoUring) -> T) -> io::Result<T> {
    RING.with(|slot| {
        let mut slot = slot.borrow_mut();
        let ring = match &mut *slot {
            Some(ring) => ring,
            None => slot.insert(new_ring()?),
        };
        Ok(work(ring))
    })
}

fn new_ring() -> io::Result<IoUring> {
    let entries = IN_FLIGHT_MAX as u32;
    // Linux 6.1 and later finish requests in the thread that waits, without interrupting it.
    let mut ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        .or_else(|_| IoUring::new(entries))?;
    // A filter may allow the setup and forbid the rest: one empty round shows it while nothing is
    // at stake. SAFETY: a no-op names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    ring.completion().for_each(drop);
    Ok(ring)
}

fn run_on(ring: &mut IoUring, file: &File, transfers: &mut [Transfer]) {
    let mut next = 0;
    let mut again: Vec<usize> = Vec::new();
    let mut in_flight = 0;
    loop {
        while in_flight < IN_FLIGHT_MAX {
            let index = match again.pop() {
                Some(index) => index,
                None if next < transfers.len() => {
                    next += 1;
                    next - 1
                }
                None => break,
            };
            let entry = entry(file, &transfers[index]).user_data(index as u64);
            // SAFETY: the memory stays valid until the transfer is done, see `Transfer`, and this
            // function does not return (nor unwind, see `wait`) while one is in flight. The iovecs
            // are not touched until then.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                // The queue has IN_FLIGHT_MAX entries; it can only be full after a partial
                // submission.
                again.push(index);
                break;
            }
            in_flight += 1;
        }
        if in_flight == 0 {
            return;
        }
        // With nothing left to submit there is no reason to wake up before all is done.
        let more = next < transfers.len() || !again.is_empty();
        wait(ring, if more { 1 } else { in_flight });
        for completion in ring.completion() {
            in_flight -= 1;
            let index = completion.user_data() as usize;
            let result = completion.result();
            let result =
                if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            if transfers[index].step(result) == Step::Again {
                again.push(index);
            }
        }
    }
}

fn entry(file: &File, transfer: &Transfer) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    let (iovecs, count) = transfer.rest();
    let (offset, flags) = (transfer.position(), transfer.flags());
    if transfer.is_write() {
        opcode::Writev::new(fd, iovecs, count as u32).offset(offset).rw_flags(flags).build()
    } else {
        opcode::Readv::new(fd, iovecs, count as u32).offset(offset).rw_flags(flags).build()
    }
}

/// Submits queued entries and waits for up to `count` completions; it may return with fewer.
fn wait(ring: &IoUring, count: usize) {
    let Err(error) = ring.submit_and_wait(count) else { return };
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
        _ => {
            // The kernel may still write into blocks that would be reused by others. The program
            // cannot continue.
            tracing::error!(%error, "io_uring failed with transfers in flight; the process ends");
            std::process::abort();
        }
    }
}
