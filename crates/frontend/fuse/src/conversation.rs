//! The conversation with the kernel, without the kernel: from the bytes of a request to the
//! operation, and to the bytes of an answer.
//!
//! Whatever the bytes are, the answer is one that the kernel accepts: its length is correct, it
//! names the request, and an error is one of Linux's, without data after it. An invalid request is
//! answered too, as a program waits for it.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use cairn_device::Segments;
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::error::MountError;
use crate::operations::{Answer, FileSystem};
use crate::received::{REQUEST_MAX, Received, WRITE_MAX};
use crate::request::{Operation, Request};
use crate::shown::{Shown, View};

/// Pages of these.
const PAGES_MAX: u16 = (WRITE_MAX / 4096) as u16;
/// The maximum number of background requests of the kernel: read-ahead and write-back. At most this
/// many precede a program's own request in the queue, also while a snapshot has the kernel send all
/// its cached data.
pub(crate) const BACKGROUND_MAX: u16 = 8;
/// From this number on the kernel blocks writers.
const CONGESTION: u16 = 6;

/// The options requested from the kernel for every mount.
const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::ALLOW_IDMAP;

/// The next step for a request.
#[derive(Debug)]
pub(crate) enum Step {
    /// This is its answer.
    Answer { unique: u64, answer: Answer },
    /// These bytes of a file are, or the number of an error.
    Data { unique: u64, data: Result<Segments, i32> },
    /// The same for a write, once the kernel has dropped its cache of these bytes of a file.
    AfterForgetting { unique: u64, answer: Answer, stretch: fuse_notify_inval_inode_out },
    /// The same, before the kernel is made to forget the content, the length and the names of a
    /// file that no program has open: it shows bytes that were not kept.
    BeforeForgetting { unique: u64, answer: Answer, node: u64 },
    /// It has none.
    Silence,
    /// It is answered ([`FileSystem::answer_late`]) once the kernel has sent its cached data of the
    /// file with this number.
    AfterData { node: u64 },
    /// It was the last one, and is answered.
    End { unique: u64 },
}

impl FileSystem {
    /// Executes the request that was read.
    pub(crate) fn take(&self, received: &mut Received) -> Step {
        match received.take_write() {
            Some(write) => {
                let (header, arguments) = (write.header, write.arguments);
                self.write_step(&header, &arguments, self.write_blocks(write))
            }
            None => self.step(&received.bytes()),
        }
    }

    /// The same for requests of a kernel: a panic becomes an error.
    pub(crate) fn take_safely(&self, received: &mut Received) -> Step {
        let unique = received.unique();
        unless_panic(|| self.take(received)).unwrap_or_else(|error| match unique {
            Some(unique) => Step::Answer { unique, answer: Err(error) },
            None => Step::Silence,
        })
    }

    /// The same for its bytes.
    pub(crate) fn step(&self, bytes: &[u8]) -> Step {
        let Some(request) = Request::parse(bytes) else {
            // Even an invalid request has a number that the kernel waits for.
            return match unique_of(bytes) {
                Some(unique) => Step::Answer { unique, answer: Err(errno::EINVAL) },
                None => Step::Silence,
            };
        };
        let unique = request.header.unique;
        match &request.operation {
            Operation::Init { arguments, flags2 } => {
                let answer = self.agree(arguments, *flags2, 0).map(|agreed| agreed.as_bytes().to_vec());
                Step::Answer { unique, answer }
            }
            Operation::Forget { lookups } => {
                self.forget([(request.header.nodeid, *lookups)]);
                Step::Silence
            }
            Operation::BatchForget { nodes } => {
                self.forget(nodes.iter().map(|node| (node.nodeid, node.nlookup)));
                Step::Silence
            }
            Operation::Destroy => Step::End { unique },
            _ if self.wants_data_first(&request) => Step::AfterData { node: request.header.nodeid },
            Operation::Read(arguments) => {
                Step::Data { unique, data: self.read(request.header.nodeid, arguments) }
            }
            Operation::Write { arguments, .. } => {
                self.write_step(&request.header, arguments, self.answer(&request))
            }
            Operation::Release(_) => {
                let (node, answer) = (request.header.nodeid, self.answer(&request));
                match self.lost_and_closed(node) {
                    true => Step::BeforeForgetting { unique, answer, node },
                    false => Step::Answer { unique, answer },
                }
            }
            _ => Step::Answer { unique, answer: self.answer(&request) },
        }
    }

    /// The answer to a write, also to a partial one.
    fn write_step(&self, header: &fuse_in_header, write: &fuse_write_in, answer: Answer) -> Step {
        let (unique, node) = (header.unique, header.nodeid);
        if answer.is_err() && write.write_flags & FUSE_WRITE_CACHE != 0 {
            return match self.loses(node) {
                true => Step::BeforeForgetting { unique, answer, node },
                false => Step::Answer { unique, answer },
            };
        }
        if self.may_be_outdated_by(node, write) {
            let (off, len) = (write.offset.cast_signed(), write.size.into());
            let stretch = fuse_notify_inval_inode_out { ino: node, off, len };
            return Step::AfterForgetting { unique, answer, stretch };
        }
        Step::Answer { unique, answer }
    }

    /// Answers a request whose data the kernel has sent meanwhile.
    pub(crate) fn answer_late(&self, bytes: &[u8]) -> Answer {
        let request = Request::parse(bytes).ok_or(errno::EINVAL)?;
        self.answer(&request)
    }

    /// The answer to an INIT: of the options wanted for every mount, and of the bits in `more`, all
    /// that the kernel offers.
    pub(crate) fn agree(&self, theirs: &fuse_init_in, flags2: u32, more: u64) -> Result<fuse_init_out, i32> {
        if theirs.major != FUSE_KERNEL_VERSION || theirs.minor < FUSE_KERNEL_MINOR_MIN {
            tracing::error!(major = theirs.major, minor = theirs.minor, "this kernel's FUSE is too old");
            return Err(errno::EPROTO);
        }
        let own = if self.shown.is_live() { init::WRITEBACK_CACHE } else { init::EXPLICIT_INVAL_DATA };
        let agreed = (WANTED | own | more) & offered(theirs, flags2);
        self.maps_all.store(agreed & init::DIRECT_IO_ALLOW_MMAP != 0, Ordering::Relaxed);
        Ok(fuse_init_out {
            major: FUSE_KERNEL_VERSION,
            minor: FUSE_KERNEL_MINOR_VERSION,
            max_readahead: theirs.max_readahead.max(WRITE_MAX as u32),
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTION,
            max_write: WRITE_MAX as u32,
            time_gran: 1,
            max_pages: PAGES_MAX,
            ..fuse_init_out::default()
        })
    }
}

/// The options of the kernel, as bits of [`init`].
pub(crate) fn offered(theirs: &fuse_init_in, flags2: u32) -> u64 {
    u64::from(theirs.flags) | u64::from(flags2) << 32
}

/// The result of `work`, or an error if it panics: a bug costs one request an error. Otherwise the
/// caller would wait for its answer for ever, and could not even be killed, and a mount would lose
/// its threads one by one.
pub(crate) fn unless_panic<T>(work: impl FnOnce() -> T) -> Result<T, i32> {
    // Locks that it had are free again, as in a session of any other front end whose thread has
    // panicked.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        tracing::error!("a request of a mount panicked: it is answered with an error");
        errno::EIO
    })
}

/// The number of a request, whose other parts may be invalid.
pub(crate) fn unique_of(bytes: &[u8]) -> Option<u64> {
    bytes.get(8..16).and_then(|raw| raw.try_into().ok()).map(u64::from_ne_bytes)
}

/// Passes an answer to `write` in the kernel's form.
pub(crate) fn with_answer<T>(unique: u64, answer: Answer, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    let (error, body) = match answer {
        Ok(body) => (0, body),
        Err(number) => (-number, Vec::new()),
    };
    let len = (size_of::<fuse_out_header>() + body.len()) as u32;
    let header = fuse_out_header { len, error, unique };
    write(&[IoSlice::new(header.as_bytes()), IoSlice::new(&body)])
}

/// The same for bytes of a file, which are not copied on the way.
pub(crate) fn with_data<T>(
    unique: u64,
    data: Result<Segments, i32>,
    write: impl FnOnce(&[IoSlice<'_>]) -> T,
) -> T {
    let data = match data {
        Ok(data) => data,
        Err(number) => return with_answer(unique, Err(number), write),
    };
    let header =
        fuse_out_header { len: (size_of::<fuse_out_header>() + data.len()) as u32, error: 0, unique };
    let mut parts = Vec::with_capacity(1 + data.iter().len());
    parts.push(IoSlice::new(header.as_bytes()));
    parts.extend(data.iter().map(|piece| IoSlice::new(piece.bytes())));
    write(&parts)
}

/// A mount without a kernel: bytes of requests in, bytes of answers out, in one thread. For fuzzers
/// and tests.
pub struct Unmounted {
    files: FileSystem,
}

impl Unmounted {
    /// Shows the same as a mount.
    ///
    /// # Errors
    /// [`MountError::Tree`] when a mirror has no tree yet.
    pub fn new(view: View) -> Result<Self, MountError> {
        Ok(Self { files: FileSystem::new(Shown::new(view)?) })
    }

    /// Takes the bytes of one read from `/dev/fuse`, and gives those that would be written to it;
    /// none where the kernel waits for none.
    pub fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut received = Received::new();
        let step = if request.len() <= REQUEST_MAX {
            received.put(&[request]);
            self.files.take(&mut received)
        } else {
            self.files.step(request)
        };
        let joined = |parts: &[IoSlice<'_>]| parts.iter().flat_map(|part| part.to_vec()).collect();
        let (unique, answer) = match step {
            Step::Data { unique, data } => return Some(with_data(unique, data, joined)),
            Step::Answer { unique, answer }
            | Step::AfterForgetting { unique, answer, .. }
            | Step::BeforeForgetting { unique, answer, .. } => (unique, answer),
            Step::Silence => return None,
            Step::AfterData { .. } => (unique_of(request)?, self.files.answer_late(request)),
            Step::End { unique } => (unique, Ok(Vec::new())),
        };
        Some(with_answer(unique, answer, joined))
    }

    /// Moves on to the newest image of a mirror, as [`crate::Mount::refresh`] does.
    ///
    /// # Errors
    /// Those of the image.
    pub fn refresh(&self) -> Result<(), MountError> {
        self.files.shown.follow()?;
        Ok(())
    }
}
