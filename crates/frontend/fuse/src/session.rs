//! The conversation with the kernel over `/dev/fuse`: threads that take requests and answer them,
//! and notices.
//!
//! Each thread reads one request at a time; few wait for one ([`Readers`]). None waits for another
//! request, with one exception that is kept off these threads: where an answer needs data that the
//! kernel still holds, a thread of its own asks for it first, and the ones here take it.
//!
//! If the kernel offers it, requests come by io_uring instead: see [`crate::queues`].

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_frontend_fuse_ring::Seat;
use parking_lot::{Condvar, Mutex};
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::conversation::{BACKGROUND_MAX, Step, offered, unique_of, unless_panic, with_answer, with_data};
use crate::operations::{Answer, FileSystem};
use crate::queues::{Queue, seats};
use crate::readers::Readers;
use crate::received::Received;
use crate::request::{Operation, Request};

/// Threads of a mount: requests wait for devices, not for processors. Where all that the kernel
/// writes back waits, for room in a history, others are still answered.
pub(crate) const THREADS: usize = BACKGROUND_MAX as usize + 2;

/// The same when requests come by io_uring.
const THREADS_BESIDE_QUEUES: usize = 2;
/// How long the kernel's next forget requests may wait there. No program waits for them. Otherwise
/// each removed file would wake a thread by itself, which costs the remover more than all the rest.
const FORGETTING: Duration = Duration::from_millis(20);

/// An open connection to the kernel.
pub(crate) struct Connection {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) files: FileSystem,
    /// One for each processor, if requests come by io_uring.
    pub(crate) queues: Vec<Queue>,
    name: String,
    readers: Readers,
    /// Those that take requests and have not been waited for. Only one of them adds others.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Counts the requests made by `have_asked`.
    asked: AtomicU64,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Connection {
    /// Starts to answer on `device`, which is mounted. `on_end` is called once nothing comes any
    /// more.
    pub(crate) fn start(
        device: OwnedFd,
        files: FileSystem,
        name: &str,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let device = Arc::new(device);
        let seats = begin(&device, &files)?;
        let connection = Arc::new(Self {
            device,
            files,
            queues: seats.iter().map(|_| Queue::default()).collect(),
            name: name.to_owned(),
            readers: Readers::default(),
            threads: Mutex::default(),
            asked: AtomicU64::new(0),
            ended: Mutex::default(),
            changed: Condvar::new(),
        });
        // Forget requests come by the device, and all requests should the kernel not accept the
        // seats.
        let is_seated = connection.sit_down(seats);
        if is_seated {
            tracing::info!(name, queues = connection.queues.len(), "requests of a mount come by io_uring");
        }
        let readers = if is_seated { THREADS_BESIDE_QUEUES } else { THREADS };
        for number in 0..readers {
            connection.thread(&number.to_string(), Self::serve)?;
        }
        let own = connection.clone();
        let wait = move || {
            while let Some(thread) = own.last_thread() {
                if thread.join().is_err() {
                    tracing::error!("a thread of a mount panicked");
                }
            }
            own.files.shown.forget_everything();
            *own.ended.lock() = true;
            own.changed.notify_all();
            // A thread that waits for the files to be released may hold a resource that `on_end`
            // waits for.
            drop(own);
            on_end();
        };
        std::thread::Builder::new().name(format!("fuse-{name}")).spawn(wait)?;
        Ok(connection)
    }

    /// Has another thread take requests.
    pub(crate) fn thread(
        self: &Arc<Self>,
        number: &str,
        work: impl FnOnce(Arc<Self>) + Send + 'static,
    ) -> io::Result<()> {
        let own = self.clone();
        let thread = std::thread::Builder::new().name(format!("fuse-{number}-{}", self.name));
        self.threads.lock().push(thread.spawn(move || work(own))?);
        Ok(())
    }

    fn last_thread(&self) -> Option<JoinHandle<()>> {
        self.threads.lock().pop()
    }

    /// True once the kernel has released the mount.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Waits for the kernel to release it; false when it did not in time.
    pub(crate) fn wait_for_end(&self, patience: Duration) -> bool {
        let mut ended = self.ended.lock();
        self.changed.wait_while_for(&mut ended, |ended| !*ended, patience);
        *ended
    }

    fn serve(self: Arc<Self>) {
        let mut received = Received::new();
        while let Some(turn) = self.readers.enter() {
            let read = received.read(|parts| rustix::io::readv(&self.device, parts));
            drop(turn);
            match read {
                Ok(()) if self.take(&mut received) => {}
                Ok(()) => return,
                // A request that was taken back before it was read, or a signal.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                // The mount is gone; the second also while an abandoned request was taken.
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return self.readers.end(),
                Err(error) => {
                    return tracing::error!(%error, "a thread of a mount can't read requests any more");
                }
            }
        }
    }

    /// One request; false for the last.
    fn take(self: &Arc<Self>, received: &mut Received) -> bool {
        match self.files.take_safely(received) {
            Step::Answer { unique, answer } => reply(&self.device, unique, answer),
            Step::Data { unique, data } => {
                // As in `reply`.
                let _ = with_data(unique, data, |parts| rustix::io::writev(&self.device, parts));
            }
            Step::AfterForgetting { unique, answer, stretch } => self.apart(unique, move |own| {
                own.forget(stretch);
                answer
            }),
            Step::BeforeForgetting { unique, answer, node } => {
                reply(&self.device, unique, answer);
                self.forget_lost(node);
            }
            Step::Silence if !self.queues.is_empty() => self.files.forgetting.rest(FORGETTING),
            Step::Silence => {}
            Step::AfterData { node } => {
                let bytes = received.bytes();
                self.apart(unique_of(&bytes).unwrap_or(0), move |own| {
                    own.forget_content(node);
                    own.files.answer_late(&bytes)
                });
            }
            Step::End { unique } => {
                self.readers.end();
                reply(&self.device, unique, Ok(Vec::new()));
                return false;
            }
        }
        true
    }

    /// Answers with the result of `work`, which has the kernel send or forget its cache of a file.
    /// `work` waits for the threads that take requests, so it runs on another one.
    fn apart(self: &Arc<Self>, unique: u64, work: impl FnOnce(&Self) -> Answer + Send + 'static) {
        let own = self.clone();
        let answer = move || reply(&own.device, unique, unless_panic(|| work(&own)).flatten());
        let spawned = std::thread::Builder::new().name("fuse-data".to_owned()).spawn(answer);
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread is available for a request");
            reply(&self.device, unique, Err(errno::EIO));
        }
    }

    /// Makes the kernel forget a file whose writes were lost: its content, its length and all
    /// names. A separate thread does that, as the kernel waits for writes in progress. Only for a
    /// file without writers: a server that ends could not answer the writes of others.
    pub(crate) fn forget_lost(self: &Arc<Self>, node: u64) {
        let own = self.clone();
        let forget = move || {
            own.forget_content(node);
            own.notify(FUSE_NOTIFY_INC_EPOCH, &[]);
        };
        if let Err(error) = std::thread::Builder::new().name("fuse-lost".to_owned()).spawn(forget) {
            tracing::error!(%error, "the kernel still shows data that could not be written");
        }
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let len = (size_of::<fuse_out_header>() + length) as u32;
        let header = fuse_out_header { len, error: code, unique: 0 };
        let mut slices = vec![IoSlice::new(header.as_bytes())];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        // The kernel does not know the file: so there is nothing to revoke.
        let _ = rustix::io::writev(&self.device, &slices);
    }

    /// Has the kernel send the data that it holds of a file, and forget it with the attributes.
    /// Waits for that.
    pub(crate) fn forget_content(&self, number: u64) {
        self.forget(fuse_notify_inval_inode_out { ino: number, off: 0, len: 0 });
    }

    /// The same for some bytes of it.
    pub(crate) fn forget(&self, stretch: fuse_notify_inval_inode_out) {
        self.notify(FUSE_NOTIFY_INVAL_INODE, &[stretch.as_bytes()]);
    }

    /// Has the kernel send a request without a waiting program: no bytes of an open file, under a
    /// number that none of its own requests has. It comes to the queue of the calling thread.
    pub(crate) fn have_asked(&self, file: u64) {
        const OWN: u64 = 1 << 63;
        let number = self.asked.fetch_add(2, Ordering::Relaxed);
        let (notify_unique, nodeid) = (OWN | number, file);
        let nothing = fuse_notify_retrieve_out { notify_unique, nodeid, ..Default::default() };
        self.notify(FUSE_NOTIFY_RETRIEVE, &[nothing.as_bytes()]);
    }

    /// Has the kernel forget a name, and all that it knows below.
    pub(crate) fn forget_name(&self, directory: u64, name: &[u8]) {
        let entry = fuse_notify_inval_entry_out { parent: directory, namelen: name.len() as u32, flags: 0 };
        self.notify(FUSE_NOTIFY_INVAL_ENTRY, &[entry.as_bytes(), name, &[0]]);
    }
}

/// Agrees with the kernel on their common options: the first request of a connection. Returns the
/// seats of each queue if requests come by io_uring from then on.
fn begin(device: &Arc<OwnedFd>, files: &FileSystem) -> io::Result<Vec<Vec<Seat>>> {
    let mut received = Received::new();
    while let Err(error) = received.read(|parts| rustix::io::readv(device, parts)) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let bytes = received.bytes();
    let Some(Request { header, operation: Operation::Init { arguments, flags2 } }) = Request::parse(&bytes)
    else {
        return Err(io::Error::other("the kernel began a mount with something else than INIT"));
    };
    let offers_queues = offered(&arguments, flags2) & init::OVER_IO_URING != 0;
    let seats = if offers_queues { seats(device) } else { Vec::new() };
    let wanted = if seats.is_empty() { 0 } else { init::OVER_IO_URING };
    let agreed = files.agree(&arguments, flags2, wanted);
    reply(device, header.unique, agreed.map(|agreed| agreed.as_bytes().to_vec()));
    Ok(seats)
}

fn reply(device: &OwnedFd, unique: u64, answer: Answer) {
    // The caller is gone, or the mount is: the reader notices that next.
    let _ = with_answer(unique, answer, |parts| rustix::io::writev(device, parts));
}
