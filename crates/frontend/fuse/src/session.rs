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
use crate::conversation::{Step, unique_of, with_answer, with_data};
use crate::operations::{Answer, FileSystem};
use crate::received::Received;

/// Threads of a mount: requests wait for devices, not for processors.
const THREADS: usize = 6;

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
        let mut received = Received::new();
        loop {
            match received.read(|parts| rustix::io::readv(&self.device, parts)) {
                Ok(()) => {
                    if !self.take(&mut received) {
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
    fn take(self: &Arc<Self>, received: &mut Received) -> bool {
        match self.files.take(received) {
            Step::Answer { unique, answer } => self.reply(unique, answer),
            Step::Data { unique, data } => {
                // As in `reply`.
                let _ = with_data(unique, data, |parts| rustix::io::writev(&self.device, parts));
            }
            Step::AfterForgetting { unique, answer, node, offset, length } => {
                let (offset, length) = (offset.cast_signed(), length.cast_signed());
                let bytes = fuse_notify_inval_inode_out { ino: node, off: offset, len: length };
                self.apart(unique, move |own| {
                    own.notify(FUSE_NOTIFY_INVAL_INODE, &[bytes.as_bytes()]);
                    answer
                });
            }
            Step::Silence => {}
            Step::AfterData { node } => {
                let bytes = received.bytes();
                self.apart(unique_of(&bytes).unwrap_or(0), move |own| {
                    own.forget_content(node);
                    own.files.answer_late(&bytes)
                });
            }
            Step::End { unique } => {
                self.reply(unique, Ok(Vec::new()));
                return false;
            }
        }
        true
    }

    /// Answers with what comes of `work`, which has the kernel send or forget what it holds of a file. For that it waits for the threads that take requests, so this is none of them.
    fn apart(self: &Arc<Self>, unique: u64, work: impl FnOnce(&Self) -> Answer + Send + 'static) {
        let own = self.clone();
        let answer = move || own.reply(unique, work(&own));
        let spawned = std::thread::Builder::new().name("fuse-data".to_owned()).spawn(answer);
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a request");
            self.reply(unique, Err(errno::EIO));
        }
    }

    fn reply(&self, unique: u64, answer: Answer) {
        // Nobody waits for it any more, or the mount is gone: the reader sees that next.
        let _ = with_answer(unique, answer, |parts| rustix::io::writev(&self.device, parts));
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
