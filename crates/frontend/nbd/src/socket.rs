//! A connected stream socket, TCP or unix, with vectored calls.
//!
//! `SIGPIPE` never comes (`MSG_NOSIGNAL`): a peer that went away is an error like any other.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, shutdown, sockopt,
};

use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, SOCKET_BUFFER_BYTES, VECTORS_MAX};

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Socket {
    file: OwnedFd,
    /// Receiving returns `WouldBlock` instead of waiting.
    pub(crate) impatient: bool,
}

impl Socket {
    /// Takes over a unix socket and gives it room for long replies.
    pub(crate) fn from_unix(stream: UnixStream) -> io::Result<Self> {
        let file = OwnedFd::from(stream);
        sockopt::set_socket_send_buffer_size(&file, SOCKET_BUFFER_BYTES)?;
        sockopt::set_socket_recv_buffer_size(&file, SOCKET_BUFFER_BYTES)?;
        Ok(Self { file, impatient: false })
    }

    /// Takes over a TCP socket; its buffers are left to the kernel, which sizes them by the path.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let file = OwnedFd::from(stream);
        sockopt::set_socket_keepalive(&file, true)?;
        sockopt::set_tcp_keepidle(&file, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&file, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&file, KEEPALIVE_PROBES)?;
        Ok(Self { file, impatient: false })
    }

    /// Another handle on the same connection, to close it from another thread.
    pub(crate) fn another(&self) -> io::Result<Socket> {
        Ok(Self { file: self.file.try_clone()?, impatient: false })
    }

    /// Ends the connection; calls that wait in other threads return.
    pub(crate) fn close(&self) {
        // It fails only when the peer was faster.
        let _ = shutdown(&self.file, rustix::net::Shutdown::Both);
    }

    /// Ends one direction.
    pub(crate) fn shut(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        let _ = shutdown(&self.file, how);
    }

    /// How long receiving and sending wait; `None` is for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.file, sockopt::Timeout::Recv, timeout)?;
        Ok(sockopt::set_socket_timeout(&self.file, sockopt::Timeout::Send, timeout)?)
    }

    /// Receives into one buffer after the other; 0 is the end.
    pub(crate) fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let flags = if self.impatient { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let count = into.len().min(VECTORS_MAX);
        loop {
            let mut nothing = RecvAncillaryBuffer::default();
            match recvmsg(&self.file, &mut into[..count], &mut nothing, flags) {
                Ok(message) => return Ok(message.bytes),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives into one buffer; 0 is the end.
    pub(crate) fn receive_one(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = if self.impatient { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        loop {
            match rustix::net::recv(&self.file, &mut *into, flags) {
                Ok((_, received)) => return Ok(received),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends from the first pieces what fits; returns how many bytes went.
    pub(crate) fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
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
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_one(buffer)
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
