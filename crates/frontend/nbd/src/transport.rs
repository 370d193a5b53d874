//! A session's byte stream: a socket, or TLS over one.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use cairn_frontend_session::Socket;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Takes whole replies.
pub(crate) trait Replies {
    /// Sends all, with no reply of another thread in between.
    fn send_all(&mut self, from: &mut [IoSlice<'_>]) -> io::Result<()>;
}

/// Where a session's bytes come from and go to.
pub(crate) enum Transport {
    /// As they are.
    Plain(Socket, Sending),
    /// Encrypted. Boxed, as the state of TLS is large.
    Tls(Box<StreamOwned<ServerConnection, Socket>>),
}

/// Held by the thread that sends.
pub(crate) type Sending = Arc<Mutex<()>>;

/// The way out of a session for its other threads.
pub(crate) struct Outlet {
    socket: Socket,
    sending: Sending,
}

impl Outlet {
    /// Ends the connection: a reply was lost.
    pub(crate) fn close(&self) {
        self.socket.close();
    }
}

impl Replies for &Outlet {
    fn send_all(&mut self, from: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _sending = self.sending.lock();
        self.socket.send_all(from)
    }
}

impl Transport {
    /// Without TLS.
    pub(crate) fn plain(socket: Socket) -> Self {
        Transport::Plain(socket, Sending::default())
    }

    /// For other threads. None under TLS, whose state is one for both directions.
    pub(crate) fn outlet(&self) -> Option<Outlet> {
        match self {
            Transport::Plain(socket, sending) => {
                Some(Outlet { socket: socket.another(), sending: Arc::clone(sending) })
            }
            Transport::Tls(_) => None,
        }
    }

    /// The same connection under TLS; its handshake happens with the first bytes.
    pub(crate) fn start_tls(self, config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        match self {
            Transport::Plain(socket, _) => {
                let connection = ServerConnection::new(config)?;
                Ok(Transport::Tls(Box::new(StreamOwned::new(connection, socket))))
            }
            tls @ Transport::Tls(_) => Ok(tls),
        }
    }

    /// The certificates that the client has shown, its own first.
    pub(crate) fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        match self {
            Transport::Plain(..) => Vec::new(),
            Transport::Tls(stream) => stream.conn.peer_certificates().unwrap_or_default().to_vec(),
        }
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Transport::Plain(socket, _) => socket,
            Transport::Tls(stream) => &mut stream.sock,
        }
    }

    /// How long one call waits; `None` is for ever.
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket().set_receive_timeout(timeout)?;
        self.socket().set_send_timeout(timeout)
    }

    /// Receives into one buffer after the other. `Some(0)` is the end; `None` means that no bytes
    /// have arrived, and is only returned when `wait` is false.
    pub(crate) fn receive(&mut self, into: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<Option<usize>> {
        let stream = match self {
            Transport::Plain(socket, _) => {
                let received = socket.receive(into, wait)?;
                // Nothing came within the timeout.
                return if wait && received.is_none() {
                    Err(io::ErrorKind::TimedOut.into())
                } else {
                    Ok(received)
                };
            }
            Transport::Tls(stream) => stream,
        };
        stream.sock.impatient = !wait;
        let received = stream.read_vectored(into);
        stream.sock.impatient = false;
        match received {
            Ok(count) => Ok(Some(count)),
            Err(error) if !wait && error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // A TLS peer that closes the socket without saying so ended the session all the same.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Closes the transport with its good-bye, if it has one.
    pub(crate) fn finish(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.conn.send_close_notify();
            // The peer may be gone already.
            let _ = stream.flush();
        }
        self.socket().shut(std::net::Shutdown::Write);
    }
}

impl Replies for Transport {
    fn send_all(&mut self, mut from: &mut [IoSlice<'_>]) -> io::Result<()> {
        let stream = match self {
            Transport::Plain(socket, sending) => {
                let _sending = sending.lock();
                return socket.send_all(from);
            }
            Transport::Tls(stream) => stream,
        };
        while !from.is_empty() {
            let sent = stream.write_vectored(from)?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut from, sent);
        }
        stream.flush()
    }
}
