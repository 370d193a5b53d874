//! The threads that take connections, one for each socket that listens, and their end.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::ACCEPT_PAUSE;
use crate::socket::Socket;

/// A socket that takes connections. It must not block.
pub trait Portal: AsFd + Send + 'static {
    /// The known facts of a connecting client.
    type Peer: Send + 'static;

    /// Takes a connection.
    fn accept(&self) -> io::Result<(Self::Peer, Socket)>;

    /// Where it listens, for the log.
    fn place(&self) -> String;
}

/// The threads. Dropping them ends them.
#[derive(Debug)]
pub struct Acceptors {
    protocol: &'static str,
    /// Closing this end wakes them all, and ends them.
    wake: Mutex<Option<UnixStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Acceptors {
    /// Takes connections of all portals and passes each to `begin`, which must return soon: it
    /// starts a thread. `wait` returns how long there is no place for one; meanwhile the others
    /// wait in the queue of the portal. `protocol` is for the log.
    ///
    /// # Errors
    /// The system gives no thread or no socket; those that run already end.
    pub fn start<P: Portal>(
        protocol: &'static str,
        portals: Vec<P>,
        wait: impl Fn(&P::Peer) -> Duration + Send + Sync + 'static,
        begin: impl Fn(P::Peer, Socket) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let acceptors = Self { protocol, wake: Mutex::new(Some(wake)), threads: Mutex::default() };
        let (wait, begin) = (Arc::new(wait), Arc::new(begin));
        for portal in portals {
            let woken = woken.try_clone()?;
            let (wait, begin) = (Arc::clone(&wait), Arc::clone(&begin));
            let thread = std::thread::Builder::new()
                .name(format!("{protocol}-accept"))
                .spawn(move || take_connections(protocol, &portal, &woken, &*wait, &*begin))?;
            acceptors.threads.lock().push(thread);
        }
        Ok(acceptors)
    }

    /// Takes no more connections; returns when the threads are gone, and their portals with them.
    pub fn stop(&self) {
        drop(self.wake.lock().take());
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!(protocol = self.protocol, "a thread that accepts connections panicked");
            }
        }
    }
}

impl Drop for Acceptors {
    fn drop(&mut self) {
        self.stop();
    }
}

fn take_connections<P: Portal>(
    protocol: &str,
    portal: &P,
    woken: &UnixStream,
    wait: &dyn Fn(&P::Peer) -> Duration,
    begin: &dyn Fn(P::Peer, Socket) -> io::Result<()>,
) {
    loop {
        let mut waiting =
            [PollFd::from_borrowed_fd(portal.as_fd(), PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let address = portal.place();
                tracing::error!(protocol, address, %error, "connections can't be accepted any more");
                return;
            }
        }
        if !waiting[1].revents().is_empty() {
            return;
        }
        match portal.accept() {
            Ok((peer, socket)) => {
                loop {
                    let pause = wait(&peer);
                    if pause.is_zero() {
                        break;
                    }
                    // A pause of no time would be one without an end.
                    if sleep(woken, pause.max(Duration::from_millis(1))) {
                        return;
                    }
                }
                if let Err(error) = begin(peer, socket) {
                    tracing::warn!(protocol, %error, "a connection was dropped: there is no thread for it");
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                tracing::warn!(protocol, %error, "a connection can't be accepted; retrying");
                if sleep(woken, ACCEPT_PAUSE) {
                    return;
                }
            }
        }
    }
}

/// Sleeps; true when the server stops meanwhile.
fn sleep(woken: &UnixStream, pause: Duration) -> bool {
    let seconds = pause.as_secs().try_into().unwrap_or(i64::MAX);
    let pause = Timespec { tv_sec: seconds, tv_nsec: pause.subsec_nanos().into() };
    let mut waiting = [PollFd::new(woken, PollFlags::IN)];
    // An error looks like the end of the pause: a sleeping thread looks again.
    let _ = poll(&mut waiting, Some(&pause));
    !waiting[0].revents().is_empty()
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
    )
}
