//! Files that the command line hands over: the destination of a dump, and the sources of a restore.
//!
//! The client opens them with its own rights, in its own directory, and may hand over a pipe as
//! well; the server writes and reads them without another copy through a socket. A connection to
//! `DIR/handover.sock` brings one message with the open files and gets a ticket, one line. A
//! request to the API then names the ticket. The connection stays: when the client disconnects, its
//! request ends. A client may itself store the bytes from a pipe on a medium. If it asked the
//! server to wait for that, it reports the end by a byte.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cairn_api::HANDOVER_FILES_MAX;
use libc::makedev;
use parking_lot::Mutex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::ServerError;
use crate::peers::token::random_name;

/// Clients at a time.
const CLIENTS_MAX: usize = 64;

/// `/dev/null` and `/dev/zero`.
const SINKS: [u64; 2] = [makedev(1, 3), makedev(1, 5)];

/// The files from a client.
pub(crate) struct Handed {
    pub(crate) files: Vec<File>,
    /// The client disconnected, or the work is to end for another reason.
    pub(crate) gone: Arc<AtomicBool>,
    /// The bytes from a pipe are at the client's destination, and durable.
    pub(crate) kept: Arc<AtomicBool>,
}

impl Handed {
    /// No files.
    pub(crate) fn nothing() -> Self {
        Self { files: Vec::new(), gone: Arc::default(), kept: Arc::default() }
    }

    /// Some of the written bytes are not kept. Such a dump cannot be a base, because it cannot be
    /// restored.
    pub(crate) fn keep_nothing(&self) -> bool {
        let is_sink = |file: &File| file.metadata().is_ok_and(|found| SINKS.contains(&found.rdev()));
        self.files.iter().any(is_sink)
    }
}

/// Files that wait for the request that names them.
#[derive(Default)]
pub(crate) struct Handover {
    waiting: Mutex<HashMap<String, Handed>>,
    clients: AtomicUsize,
}

impl Handover {
    /// Takes files on `listener` until the process ends.
    pub(crate) fn start(listener: UnixListener) -> Result<Arc<Self>, ServerError> {
        let handover = Arc::new(Self::default());
        let own = handover.clone();
        let accept = move || {
            for client in listener.incoming() {
                let Ok(client) = client else {
                    // Out of file descriptors, mostly: others must end first.
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    continue;
                };
                own.clone().meet(client);
            }
        };
        let thread = std::thread::Builder::new().name("handover".to_owned()).spawn(accept);
        thread.map_err(|source| ServerError::Thread { what: "the hand-over of files", source })?;
        Ok(handover)
    }

    fn meet(self: Arc<Self>, client: UnixStream) {
        if self.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            self.clients.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let own = self.clone();
        let serve = move || {
            if let Err(error) = own.serve(client) {
                tracing::debug!(%error, "a hand-over of files broke");
            }
            own.clients.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("handover".to_owned()).spawn(serve).is_err() {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn serve(&self, mut client: UnixStream) -> std::io::Result<()> {
        let files = receive(&client)?;
        if files.is_empty() {
            return Ok(());
        }
        let (gone, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let ticket = random_name();
        self.waiting.lock().insert(ticket.clone(), Handed { files, gone: gone.clone(), kept: kept.clone() });
        let told = client.write_all(format!("{ticket}\n").as_bytes());
        let ended = told.and_then(|()| {
            while client.read(&mut [0; 1])? > 0 {
                kept.store(true, Ordering::Release);
            }
            Ok(())
        });
        gone.store(true, Ordering::Release);
        self.waiting.lock().remove(&ticket);
        ended
    }

    /// The files of a ticket; they can be asked for once.
    pub(crate) fn take(&self, ticket: &str) -> Result<Handed, ServerError> {
        let handed = self.waiting.lock().remove(ticket);
        handed.ok_or(ServerError::Invalid {
            fault: "the ticket names no files that were handed over",
            next: "run the command again; use a client of the same version as the server",
        })
    }
}

/// Returns when the written bytes are on their medium. Pipes and tapes have no such state. A disk
/// has, because the kernel keeps its writes in memory like those of files.
pub(crate) fn settle(file: &File) -> std::io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() { file.sync_all() } else { Ok(()) }
}

fn receive(client: &UnixStream) -> std::io::Result<Vec<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDOVER_FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(client, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    Ok(files)
}
