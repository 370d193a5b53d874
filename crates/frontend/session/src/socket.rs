//! A connected stream socket, TCP or unix, with vectored calls.
//!
//! `SIGPIPE` never comes (`MSG_NOSIGNAL`): a peer that went away is an error like any other.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_device::IsGone;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, shutdown, sockopt,
};

use crate::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LOOK_AGAIN, SOCKET_BUFFER_BYTES, VECTORS_MAX,
};

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    /// Shared with all handles: a connection takes one descriptor.
    file: Arc<OwnedFd>,
    /// Our end, over TCP.
    local: Option<SocketAddr>,
    /// Reading ([`Read`]) returns `WouldBlock` instead of waiting. Of no concern to
    /// [`Socket::receive`].
    pub impatient: bool,
}

impl Socket {
    /// Takes over a unix socket and gives it room for long replies.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        let file = Arc::new(OwnedFd::from(stream));
        sockopt::set_socket_send_buffer_size(&file, SOCKET_BUFFER_BYTES)?;
        sockopt::set_socket_recv_buffer_size(&file, SOCKET_BUFFER_BYTES)?;
        Ok(Self { file, local: None, impatient: false })
    }

    /// Takes over a TCP socket; its buffers are left to the kernel, which sizes them by the path.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let local = stream.local_addr().ok();
        let file = Arc::new(OwnedFd::from(stream));
        sockopt::set_socket_keepalive(&file, true)?;
        sockopt::set_tcp_keepidle(&file, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&file, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&file, KEEPALIVE_PROBES)?;
        Ok(Self { file, local, impatient: false })
    }

    /// Our end, over TCP.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Another handle on the same connection, to close it from another thread.
    pub fn another(&self) -> Socket {
        Self { file: Arc::clone(&self.file), local: self.local, impatient: false }
    }

    /// Ends the connection; calls that wait in other threads return.
    pub fn close(&self) {
        self.shut(Shutdown::Both);
    }

    /// Ends one direction.
    pub fn shut(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // It fails only when the peer was faster.
        let _ = shutdown(&self.file, how);
    }

    /// True when the peer sends no more, or either end has closed the connection, also where bytes
    /// that came before that are still to be received.
    pub fn is_gone(&self) -> bool {
        self.has(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// True when both directions have ended: no client reads an answer any more. Over TCP, a peer
    /// that has closed its end is only noticed after something was sent to it.
    pub fn is_hung_up(&self) -> bool {
        self.has(PollFlags::HUP | PollFlags::ERR)
    }

    fn has(&self, wanted: PollFlags) -> bool {
        let mut polled = [PollFd::new(&self.file, wanted)];
        let outcome = poll(&mut polled, Some(&Timespec::default()));
        outcome.is_ok_and(|_| polled[0].revents().intersects(wanted))
    }

    /// Whether the client at the other end is connected, for [`Gate`](cairn_device::Gate).
    pub fn watch(self: &Arc<Self>) -> IsGone {
        let (socket, begin, looked) = (Arc::clone(self), Instant::now(), AtomicU64::new(0));
        Box::new(move |waited| {
            if waited {
                return socket.is_gone();
            }
            let now = begin.elapsed().as_micros() as u64;
            let before = looked.swap(now, Ordering::Relaxed);
            now.saturating_sub(before) > LOOK_AGAIN.as_micros() as u64 && socket.is_hung_up()
        })
    }

    /// How long receiving waits; `None` is for ever.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.file, sockopt::Timeout::Recv, timeout)?)
    }

    /// How long sending waits for a peer that takes nothing; `None` is for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.file, sockopt::Timeout::Send, timeout)?)
    }

    /// Receives into one buffer after the other. `Some(0)` is the end; `None`: nothing came, at
    /// once or (`wait`) within the timeout.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<Option<usize>> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let count = into.len().min(VECTORS_MAX);
        loop {
            let received = match &mut into[..count] {
                [one] => rustix::net::recv(&self.file, &mut **one, flags).map(|(_, received)| received),
                many => {
                    let mut nothing = RecvAncillaryBuffer::default();
                    recvmsg(&self.file, many, &mut nothing, flags).map(|message| message.bytes)
                }
            };
            match received {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends as much as fits from the first pieces; returns how many bytes were sent.
    pub fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = from.len().min(VECTORS_MAX);
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(&self.file, &from[..count], &mut nothing, SendFlags::NOSIGNAL) {
                Ok(sent) => return Ok(sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all.
    pub fn send_all(&self, mut from: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !from.is_empty() {
            let sent = self.send(from)?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut from, sent);
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = self.receive(&mut [IoSliceMut::new(buffer)], !self.impatient)?;
        received.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
