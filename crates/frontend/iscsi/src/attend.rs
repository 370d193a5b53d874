//! Sessions whose threads are in the device for long: another thread reads the data of their
//! initiators.
//!
//! An initiator whose write waits pings the target, aborts the write after half a minute, and takes
//! the disk off line when that is not answered. So a thread of the server looks for stuck sessions,
//! and gives each a second thread for as long as it is stuck. Usually there are none, and a session
//! costs no second thread.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::{STUCK, STUCK_LOOK};
use crate::registry::Entry;
use crate::server::Shared;

/// Starts the thread that looks. It ends with the server.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::downgrade(shared);
    thread::Builder::new().name("iscsi-look".to_owned()).spawn(move || look(&shared)).map(drop)
}

fn look(shared: &Weak<Shared>) {
    loop {
        thread::park_timeout(STUCK_LOOK);
        let Some(shared) = shared.upgrade() else { return };
        let Some(stuck) = shared.registry.stuck(STUCK) else { return };
        for entry in stuck {
            let name = format!("iscsi-{}-beside", entry.id);
            if let Err(error) = thread::Builder::new().name(name).spawn(move || attend(&entry)) {
                tracing::warn!(%error, "no thread reads the data of an initiator while its command waits");
            }
        }
    }
}

/// Serves a session in place of its thread until that is back.
fn attend(entry: &Entry) {
    let mut visit = None;
    loop {
        let Some(session) = entry.session.get().and_then(Weak::upgrade) else { return };
        // The session's own thread holds it, and is back.
        let Some(mut held) = session.try_lock() else { return };
        if !held.is_in_device || *visit.get_or_insert(held.visit) != held.visit {
            return;
        }
        if !held.attend() {
            return;
        }
        let socket = Arc::clone(&held.socket);
        drop(held);
        drop(session);
        let patience = Timespec { tv_sec: 0, tv_nsec: STUCK_LOOK.subsec_nanos().into() };
        let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        if poll(&mut polled, Some(&patience)).is_err() {
            return;
        }
    }
}
