//! The conversation with the kernel over `/dev/fuse`: threads that take requests and answer them, and notices.
//!
//! Each thread reads one request at a time. None waits for another request, with one exception that is kept off these threads: where an answer needs data that the
//! kernel still holds, a thread of its own asks for it first, and the ones here take it.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::operations::{Answer, FileSystem};
use crate::request::{Operation, Request};

/// Threads of a mount: requests wait for devices, not for processors.
const THREADS: usize = 6;
/// Bytes that the kernel sends in one write, or asks for in one read.
const WRITE_MAX: usize = 1 << 20;
/// Pages of these.
const PAGES_MAX: u16 = (WRITE_MAX / 4096) as u16;
/// A write with its headers.
const BUFFER: usize = WRITE_MAX + 4096;
/// Requests that the kernel has under way for nobody in particular: read-ahead and write-back.
const BACKGROUND_MAX: u16 = 64;
/// From so many on it lets writers wait.
const CONGESTION: u16 = 48;

/// What is asked of the kernel for every mount.
const WANTED: u64 = init::ASYNC_READ
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
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::ALLOW_IDMAP;

/// An open connection to the kernel.
pub(crate) struct Connection {
    device: OwnedFd,
    pub(crate) files: FileSystem,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Connection {
    /// Starts to answer on `device`, which is mounted. `on_end` is called once nothing comes any more.
    pub(crate) fn start(
        device: OwnedFd,
        files: FileSystem,
        name: &str,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let ended = Mutex::new(false);
        let connection = Arc::new(Self { device, files, ended, changed: Condvar::new() });
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for number in 0..THREADS {
            let own = connection.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-{number}-{name}"));
            threads.push(thread.spawn(move || own.serve())?);
        }
        let own = connection.clone();
        let wait = move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a thread of a mount had panicked");
                }
            }
            *own.ended.lock() = true;
            own.changed.notify_all();
            on_end();
        };
        std::thread::Builder::new().name(format!("fuse-{name}")).spawn(wait)?;
        Ok(connection)
    }

    /// True once the kernel has let go of the mount.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Waits for the kernel to let go; false when it did not in time.
    pub(crate) fn wait_for_end(&self, patience: std::time::Duration) -> bool {
        let mut ended = self.ended.lock();
        self.changed.wait_while_for(&mut ended, |ended| !*ended, patience);
        *ended
    }

    fn serve(self: Arc<Self>) {
        let mut buffer = vec![0; BUFFER];
        loop {
            match rustix::io::read(&self.device, &mut buffer[..]) {
                Ok(count) => {
                    if !self.take(&buffer[..count]) {
                        return;
                    }
                }
                // A request that was taken back before it was read, or a signal.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::NODEV) => return,
                Err(error) => {
                    tracing::error!(%error, "a mount has no more requests");
                    return;
                }
            }
        }
    }

    /// One request; false for the last.
    fn take(self: &Arc<Self>, bytes: &[u8]) -> bool {
        let Some(request) = Request::parse(bytes) else {
            // What is not understood at all still has a number that the kernel waits for.
            if let Some(unique) = bytes.get(8..16).and_then(|raw| raw.try_into().ok()) {
                self.reply(u64::from_ne_bytes(unique), Err(errno::EINVAL));
            }
            return true;
        };
        let unique = request.header.unique;
        match &request.operation {
            Operation::Init { arguments, flags2 } => {
                let answer = self.agree(arguments, *flags2);
                self.reply(unique, answer);
            }
            Operation::Forget { lookups } => self.files.shown.forget(request.header.nodeid, *lookups),
            Operation::BatchForget { nodes } => {
                nodes.iter().for_each(|node| self.files.shown.forget(node.nodeid, node.nlookup));
            }
            Operation::Destroy => {
                self.reply(unique, Ok(Vec::new()));
                return false;
            }
            _ if self.files.wants_data_first(&request) => self.answer_with_data(bytes.to_vec()),
            _ => self.reply(unique, self.files.answer(&request)),
        }
        true
    }

    /// Answers when the kernel has sent what it held of the file. It sends it to the threads that take requests, so this is none of them.
    fn answer_with_data(self: &Arc<Self>, bytes: Vec<u8>) {
        let own = self.clone();
        let unique = bytes.get(8..16).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let answer = move || {
            let Some(request) = Request::parse(&bytes) else { return };
            own.forget_content(request.header.nodeid);
            own.reply(request.header.unique, own.files.answer(&request));
        };
        let spawned = std::thread::Builder::new().name("fuse-data".to_owned()).spawn(answer);
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a request");
            self.reply(unique, Err(errno::EIO));
        }
    }

    fn agree(&self, theirs: &fuse_init_in, flags2: u32) -> Answer {
        if theirs.major != FUSE_KERNEL_VERSION || theirs.minor < FUSE_KERNEL_MINOR_MIN {
            tracing::error!(major = theirs.major, minor = theirs.minor, "this kernel's FUSE is too old");
            return Err(errno::EPROTO);
        }
        let offered = u64::from(theirs.flags) | u64::from(flags2) << 32;
        let own = if self.files.shown.is_live() { init::WRITEBACK_CACHE } else { init::EXPLICIT_INVAL_DATA };
        let agreed = (WANTED | own) & offered;
        let answer = fuse_init_out {
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
        };
        Ok(answer.as_bytes().to_vec())
    }

    fn reply(&self, unique: u64, answer: Answer) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(number) => (-number, Vec::new()),
        };
        let len = (size_of::<fuse_out_header>() + body.len()) as u32;
        let header = fuse_out_header { len, error, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(&body)];
        // Nobody waits for it any more, or the mount is gone: the reader sees that next.
        let _ = rustix::io::writev(&self.device, &parts);
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let len = (size_of::<fuse_out_header>() + length) as u32;
        let header = fuse_out_header { len, error: code, unique: 0 };
        let mut slices = vec![IoSlice::new(header.as_bytes())];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        // The kernel does not know the file: so there is nothing to take back.
        let _ = rustix::io::writev(&self.device, &slices);
    }

    /// Has the kernel send the data that it holds of a file, and forget it with the attributes. Waits for that.
    pub(crate) fn forget_content(&self, number: u64) {
        let all = fuse_notify_inval_inode_out { ino: number, off: 0, len: 0 };
        self.notify(FUSE_NOTIFY_INVAL_INODE, &[all.as_bytes()]);
    }

    /// Has the kernel forget a name, and all that it knows below.
    pub(crate) fn forget_name(&self, directory: u64, name: &[u8]) {
        let entry = fuse_notify_inval_entry_out { parent: directory, namelen: name.len() as u32, flags: 0 };
        self.notify(FUSE_NOTIFY_INVAL_ENTRY, &[entry.as_bytes(), name, &[0]]);
    }
}
