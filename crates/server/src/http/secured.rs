//! The listener of the API over TCP, with TLS or without.
//!
//! The handshake happens when the connection is read for the first time, so a client that is slow
//! with it holds up no other. The time for it is that of a connection without credentials.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::http::guests::PeerUser;

/// A listener whose connections begin with TLS, if there is a configuration of it.
pub(super) struct Secured {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Secured {
    pub(super) fn new(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Self {
        Self { listener, tls: tls.map(TlsAcceptor::from) }
    }
}

impl Listener for Secured {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(acceptor) => Stream::Handshake(Box::new(acceptor.accept(stream))),
        };
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Finishes the handshake.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Stream::Handshake(accept) = self {
            let stream = ready!(Pin::new(&mut **accept).poll(context))?;
            *self = Stream::Tls(Box::new(stream));
        }
        Poll::Ready(Ok(()))
    }
}

impl PeerUser for Stream {
    fn uid(&self) -> Option<u32> {
        None
    }
}

/// Before the handshake is over, nothing but the handshake is read or written.
fn not_yet<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(context))?;
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
            Stream::Handshake(_) => not_yet(),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(context))?;
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
            Stream::Handshake(_) => not_yet(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(context))?;
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, pieces),
            Stream::Handshake(_) => not_yet(),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::Handshake(_) => false,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
            Stream::Handshake(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            Stream::Handshake(_) => Poll::Ready(Ok(())),
        }
    }
}
