//! FUSE over io_uring: requests of a mount come, and answers go, by rings instead of reads and
//! writes of `/dev/fuse`.
//!
//! The kernel (Linux 6.14 and later, if enabled: `/sys/module/fuse/parameters/enable_uring`) has a
//! queue for each processor, and puts a program's request into that of the processor on which the
//! program runs. A [`Seat`] in a queue takes one request at a time. If its thread stays on that
//! processor, caller and server take turns there; a read of `/dev/fuse` wakes another processor for
//! each of them. `Documentation/filesystems/fuse/fuse-io-uring.rst` and `include/uapi/linux/fuse.h`
//! of the kernel describe the operation of a seat.
//!
//! - The kernel accesses the memory of a seat while a thread is in [`Seat::exchange`], and at no
//!   other time; a seat that may still be in use by the kernel never frees its memory.
//! - A mount answers nothing before there is a seat in every queue. Seats can be added at any time.
//!   None can be removed as long as the mount lives, as a request may be on its way to it.
//! - A request without a free seat waits in its queue until a seat there hands over an answer. A
//!   new seat does not fetch it (Linux 6.18).
//! - Forget requests, interrupts and the server's unasked notices go by `/dev/fuse` as before.
//!
//! This crate contains all of the `unsafe` code, and nothing else.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::thread::CpuSet;

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Bytes of `struct fuse_in_header`, with the length of the request in front, and of
/// `struct fuse_out_header`.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// The processors that this machine can have, and those that are on.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// `struct fuse_uring_req_header`: the data beside the payload, in both directions.
#[repr(C, align(8))]
struct Headers {
    /// The header of the request, then that of its answer.
    in_out: [u8; 128],
    /// The arguments of the request.
    op_in: [u8; 128],
    flags: u64,
    commit_id: u64,
    payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Headers>() == 288);

/// `struct iovec`.
#[repr(C)]
struct Part {
    base: *mut u8,
    length: usize,
}

/// The memory that a seat shares with the kernel. It never moves.
struct Memory {
    headers: NonNull<Headers>,
    payload: NonNull<[u8]>,
    parts: Box<[Part; 2]>,
}

// SAFETY: the pointers are to memory that this owns alone.
unsafe impl Send for Memory {}

impl Memory {
    fn new(payload_bytes: usize) -> Self {
        let headers = Headers {
            in_out: [0; 128],
            op_in: [0; 128],
            flags: 0,
            commit_id: 0,
            payload_bytes: 0,
            padding: 0,
            reserved: 0,
        };
        let headers: NonNull<Headers> = Box::leak(Box::new(headers)).into();
        let payload: NonNull<[u8]> = Box::leak(vec![0; payload_bytes].into_boxed_slice()).into();
        let parts = Box::new([
            Part { base: headers.cast().as_ptr(), length: size_of::<Headers>() },
            Part { base: payload.cast().as_ptr(), length: payload.len() },
        ]);
        Self { headers, payload, parts }
    }

    /// # Safety
    /// The kernel does not have it, and no code uses it from here on.
    unsafe fn free(&self) {
        // SAFETY: both came out of a `Box` and have no other owner, as the caller promises.
        drop(unsafe { (Box::from_raw(self.headers.as_ptr()), Box::from_raw(self.payload.as_ptr())) });
    }
}

/// A place in a queue, with the memory for one request and its answer.
pub struct Seat {
    ring: Ring,
    device: Arc<OwnedFd>,
    queue: u16,
    memory: Memory,
    /// The kernel has the memory.
    is_given: bool,
    /// The result of the first command, if it came before a thread waited for it.
    early: Option<i32>,
}

impl Seat {
    /// A seat in the queue of processor `queue` for the mount of `device`, with room for
    /// `payload_bytes` of a request after its arguments, and of an answer.
    ///
    /// # Errors
    /// Those of `io_uring_setup`: a filter forbids it, or there is no memory.
    pub fn new(device: Arc<OwnedFd>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let mut builder = Ring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        let ring = builder.build(1)?;
        let memory = Memory::new(payload_bytes);
        Ok(Self { ring, device, queue, memory, is_given: false, early: None })
    }

    /// Takes the seat, for the calling thread: from here on a request can be on its way to it.
    /// Requests that wait in the queue already do not come to it, see the head of the crate.
    ///
    /// # Errors
    /// Those of io_uring, and of the kernel when it refuses the seat (`ENOMEM`, `ENOTCONN`). The
    /// seat is unusable then.
    pub fn register(&mut self) -> io::Result<()> {
        // The thread that does this is the one that may use the ring.
        self.ring.submitter().register_enable_rings()?;
        self.give(REGISTER)?;
        while !self.ring.submission().is_empty() {
            self.submit(0)?;
        }
        // A rejected command completes at once.
        self.early = self.ring.completion().next().map(|completion| completion.result());
        match self.early {
            Some(error) if error < 0 => self.completed(error),
            _ => Ok(()),
        }
    }

    /// Hands over the answer to the request before, if there was one, and waits for a request.
    ///
    /// # Errors
    /// `ENOTCONN` and `ECONNABORTED` once the mount has ended. After any error the seat is of no
    /// use.
    pub fn exchange(&mut self) -> io::Result<()> {
        if !self.is_given {
            self.give(COMMIT_AND_FETCH)?;
        }
        let result = loop {
            let completed = || self.ring.completion().next().map(|completion| completion.result());
            if let Some(result) = self.early.take().or_else(completed) {
                break result;
            }
            self.submit(1)?;
        };
        self.completed(result)
    }

    fn completed(&mut self, result: i32) -> io::Result<()> {
        self.is_given = false;
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    /// Puts a command into the ring, with which the kernel gets the memory.
    fn give(&mut self, command: u32) -> io::Result<()> {
        let entry = self.entry(command);
        // SAFETY: the entry names the memory of this seat, which is not lent out (see `memory`) and
        // not freed (see `drop`) until the kernel has completed the entry.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.is_given = true;
        Ok(())
    }

    /// Submits the entries in the ring, and waits for that many completions, or fewer.
    fn submit(&self, completions: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(completions) {
            Err(error) if is_passing(&error) => std::thread::yield_now(),
            outcome => drop(outcome?),
        }
        Ok(())
    }

    /// The bytes of the request, in order and in pieces: together they equal a read of `/dev/fuse`.
    /// `None` without a request, or when its parts don't form one.
    pub fn request(&self) -> Option<[&[u8]; 3]> {
        let (headers, payload) = self.memory()?;
        let length = u32::from_ne_bytes(*headers.in_out.first_chunk()?) as usize;
        let behind = payload.get(..headers.payload_bytes as usize)?;
        let arguments = length.checked_sub(IN_HEADER)?.checked_sub(behind.len())?;
        Some([&headers.in_out[..IN_HEADER], headers.op_in.get(..arguments)?, behind])
    }

    /// Puts down the answer, as a write to `/dev/fuse` takes it; the following
    /// [`exchange`](Self::exchange) hands it over.
    ///
    /// # Errors
    /// `FileTooLarge` when there is no room for it, or it has no header: nothing is put down then.
    pub fn answer(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let (headers, payload) = self.memory_mut().ok_or(io::ErrorKind::NotConnected)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let behind = bytes.checked_sub(OUT_HEADER).filter(|behind| *behind <= payload.len());
        headers.payload_bytes = behind.ok_or(io::ErrorKind::FileTooLarge)? as u32;
        let mut at = 0;
        for part in parts {
            let (head, rest) = part.split_at(OUT_HEADER.saturating_sub(at).min(part.len()));
            headers.in_out[at.min(OUT_HEADER)..][..head.len()].copy_from_slice(head);
            payload[at.saturating_sub(OUT_HEADER)..][..rest.len()].copy_from_slice(rest);
            at += part.len();
        }
        Ok(())
    }

    fn memory(&self) -> Option<(&Headers, &[u8])> {
        if self.is_given {
            return None;
        }
        // SAFETY: the kernel does not have it, and code that changes it borrows the whole seat.
        Some(unsafe { (self.memory.headers.as_ref(), self.memory.payload.as_ref()) })
    }

    fn memory_mut(&mut self) -> Option<(&mut Headers, &mut [u8])> {
        if self.is_given {
            return None;
        }
        // SAFETY: the kernel does not have it, and the whole seat is borrowed.
        Some(unsafe { (self.memory.headers.as_mut(), self.memory.payload.as_mut()) })
    }

    fn entry(&self, command: u32) -> squeue::Entry128 {
        // `struct fuse_uring_cmd_req`: flags, which request is answered, and the queue.
        let mut details = [0; 80];
        let answered = self.memory().map_or(0, |(headers, _)| headers.commit_id);
        details[8..16].copy_from_slice(&answered.to_ne_bytes());
        details[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command)
            .cmd(details)
            .addr(Some(self.memory.parts.as_ptr() as u64))
            .build();
        with_length(entry, self.memory.parts.len() as u32)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.is_given {
            // SAFETY: the kernel does not have it, and the seat ends.
            unsafe { self.memory.free() };
        }
    }
}

/// An error of `io_uring_enter` that a later call may not have.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock | ResourceBusy)
}

/// The entry with its field `len`, for which the library has no name in this kind of entry.
fn with_length(entry: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Where `struct io_uring_sqe` has it.
    const AT: usize = 24;
    // SAFETY: an entry is 128 bytes of plain numbers, which any bytes are.
    let mut bytes = unsafe { std::mem::transmute::<squeue::Entry128, [u8; 128]>(entry) };
    bytes[AT..AT + 4].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[u8; 128], squeue::Entry128>(bytes) }
}

/// How many queues the kernel has: one for each processor that this machine can have.
///
/// # Errors
/// When the kernel does not report it, or some active processor is not available to this process:
/// requests there would be answered from another one, and a seat there could not fetch them itself.
pub fn queues() -> io::Result<u16> {
    let own = rustix::thread::sched_getaffinity(None)?;
    let online = processors(ONLINE)?;
    if let Some(foreign) = online.into_iter().find(|processor| !own.is_set(usize::from(*processor))) {
        return Err(io::Error::other(format!("this process may not use processor {foreign}")));
    }
    let last = processors(POSSIBLE)?.into_iter().max();
    last.map(|last| last + 1).ok_or_else(|| io::Error::other(format!("{POSSIBLE} has none")))
}

fn processors(file: &str) -> io::Result<Vec<u16>> {
    let said = std::fs::read_to_string(file)?;
    listed(&said).ok_or_else(|| io::Error::other(format!("{file} has {said:?}")))
}

/// The processors of a list such as `0-3,8`. `None` for an invalid list, and for numbers that no
/// set of processors has.
fn listed(text: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if usize::from(last) >= CpuSet::MAX_CPU {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Pins the calling thread to a processor. False if that fails: the processor is off, or not for
/// this process.
pub fn stay_on(processor: u16) -> bool {
    let mut only = CpuSet::new();
    if usize::from(processor) >= CpuSet::MAX_CPU {
        return false;
    }
    only.set(processor.into());
    rustix::thread::sched_setaffinity(None, &only).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seat for a device that is not a mount; `None` where there are no such rings: an old
    /// kernel, or a filter.
    fn seat(payload_bytes: usize) -> Option<Seat> {
        let device = Arc::new(OwnedFd::from(std::fs::File::open(std::env::current_exe().unwrap()).unwrap()));
        let seat = Seat::new(device, 0, payload_bytes);
        seat.inspect_err(|error| eprintln!("skipped: no io_uring as this needs it: {error}")).ok()
    }

    #[test]
    fn processors_are_counted_as_the_kernel_lists_them() {
        assert_eq!(listed("0\n"), Some(vec![0]));
        assert_eq!(listed("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        for none in ["", "0-", "a", "0,,1", "70000", "0-2000"] {
            assert_eq!(listed(none), None, "{none:?}");
        }
        assert!(!processors(POSSIBLE).unwrap().is_empty());
    }

    /// As in a container, or a service with `AllowedCPUs=`.
    #[test]
    fn process_that_may_not_use_all_processors_has_no_queues() {
        let own = rustix::thread::sched_getaffinity(None).unwrap();
        let online = processors(ONLINE).unwrap();
        let own = online.iter().copied().find(|processor| own.is_set(usize::from(*processor)));
        let Some(one) = own.filter(|_| online.len() > 1) else { return };
        let confined = std::thread::spawn(move || {
            assert!(stay_on(one));
            queues().is_err()
        });
        assert!(confined.join().unwrap());
    }

    #[test]
    fn request_is_its_header_its_arguments_and_what_is_behind() {
        let Some(mut seat) = seat(64) else { return };
        let (headers, payload) = seat.memory_mut().unwrap();
        headers.in_out[..4].copy_from_slice(&(40_u32 + 8 + 3).to_ne_bytes());
        headers.op_in[..8].copy_from_slice(b"argument");
        headers.payload_bytes = 3;
        payload[..3].copy_from_slice(b"abc");
        let [header, arguments, behind] = seat.request().unwrap();
        assert_eq!((header.len(), arguments, behind), (40, &b"argument"[..], &b"abc"[..]));
    }

    #[test]
    fn request_whose_parts_do_not_make_one_is_none() {
        let Some(mut seat) = seat(64) else { return };
        for (length, payload_bytes) in [(39_u32, 0), (40, 1), (40 + 129, 0), (200, 65)] {
            let (headers, _) = seat.memory_mut().unwrap();
            headers.in_out[..4].copy_from_slice(&length.to_ne_bytes());
            headers.payload_bytes = payload_bytes;
            assert!(seat.request().is_none(), "{length} with {payload_bytes}");
        }
    }

    #[test]
    fn answer_is_parted_behind_its_header_wherever_its_pieces_end() {
        let whole: Vec<u8> = (1..=16 + 10).collect();
        for cut in 0..whole.len() {
            for second in cut..whole.len() {
                let Some(mut seat) = seat(10) else { return };
                let (one, rest) = whole.split_at(cut);
                let (two, three) = rest.split_at(second - cut);
                seat.answer(&[IoSlice::new(one), IoSlice::new(two), IoSlice::new(three)]).unwrap();
                let (headers, payload) = seat.memory().unwrap();
                assert_eq!((&headers.in_out[..16], payload), whole.split_at(16));
                assert_eq!(headers.payload_bytes, 10);
            }
        }
    }

    #[test]
    fn answer_for_which_there_is_no_room_is_none() {
        let Some(mut seat) = seat(10) else { return };
        assert!(seat.answer(&[IoSlice::new(&[0; 16 + 11])]).is_err());
        assert!(seat.answer(&[IoSlice::new(&[0; 15])]).is_err());
        assert!(seat.answer(&[IoSlice::new(&[7; 16])]).is_ok());
        assert_eq!(seat.memory().unwrap().0.payload_bytes, 0);
    }

    #[test]
    fn entry_has_its_length_where_the_kernel_reads_it() {
        let Some(seat) = seat(1) else { return };
        let entry = seat.entry(REGISTER);
        // SAFETY: an entry is 128 bytes of plain numbers.
        let bytes = unsafe { std::mem::transmute::<squeue::Entry128, [u8; 128]>(entry) };
        assert_eq!(bytes[24..28], 2_u32.to_ne_bytes());
    }

    #[test]
    fn what_is_no_mount_is_an_error_and_no_wait() {
        let Some(mut seat) = seat(1) else { return };
        assert!(seat.register().is_err());
    }
}
