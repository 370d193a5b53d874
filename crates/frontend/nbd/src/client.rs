//! A small synchronous client that pipelines, for the demo, the benches and the tests.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use cairn_frontend_session::Socket;
use cairn_frontend_session::limits::RECEIVE_BYTES;
use cairn_proto_nbd::constants::*;
use cairn_proto_nbd::limits::PAYLOAD_BYTES_MAX;
use cairn_proto_nbd::{
    ClientHandshake, ClientStep, ClientWishes, ContextStatus, ExportOffer, HandshakeFailure, NbdError,
    ReplyEvent, ReplyFailure, ReplyMode, decode_reply, put_block_status_request, put_request,
};

use crate::address::Address;
use crate::transport::{Replies, Transport};

/// The client's request to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// The export; "" is the default one.
    pub export: String,
    /// The most modern replies to ask for; the server may give less.
    pub mode: ReplyMode,
    /// Metadata contexts, such as `base:allocation`.
    pub contexts: Vec<String>,
}

impl ClientOptions {
    /// Everything that this client can do, for `export`.
    pub fn new(export: &str) -> Self {
        Self { export: export.to_owned(), mode: ReplyMode::Extended, contexts: Vec::new() }
    }
}

/// Why a request, or the whole connection, failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens at the address.
    #[error("can't connect to {address}: {source}; is the server running?")]
    Connect {
        /// Where.
        address: Address,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the server broke: {0}")]
    Connection(#[from] io::Error),
    /// The server closed it.
    #[error("the server closed the connection")]
    Closed,
    /// The server does not admit us.
    #[error(transparent)]
    Handshake(#[from] HandshakeFailure),
    /// The server sent an invalid reply.
    #[error("the server broke the protocol: {0}")]
    Reply(#[from] ReplyFailure),
    /// The server sent a reply to nothing, or of the wrong kind.
    #[error("the server answered an unknown request (cookie {cookie})")]
    Unasked {
        /// Names the request.
        cookie: u64,
    },
    /// The request failed; the connection stays usable.
    #[error("the server failed the request: {error} ({message})")]
    Failed {
        /// NBD's error.
        error: NbdError,
        /// The server's words; may be empty.
        message: String,
    },
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Completion {
    /// As [`Client::submit`] returned it.
    pub cookie: u64,
    /// Success, or the server's error.
    pub outcome: Result<Answer, ClientError>,
}

/// The result of a successful request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The bytes of a read.
    pub data: Vec<u8>,
    /// The contexts of a block status.
    pub status: Vec<ContextStatus>,
}

/// A request. Offsets and lengths are bytes.
#[derive(Debug, Clone, Copy)]
pub enum ClientRequest<'a> {
    /// Read, at most 32 MiB.
    Read {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Write, at most 32 MiB.
    Write {
        /// Where.
        offset: u64,
        /// The data.
        data: &'a [u8],
        /// Durable when it completes.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Free.
    Trim {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// Keep the space allocated.
        no_hole: bool,
        /// Fail rather than be slow.
        fast: bool,
    },
    /// Bring into the server's memory.
    Cache {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Ask for the status in every context, or in those of `only` (extended headers).
    BlockStatus {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// One extent.
        one: bool,
        /// Ids of contexts.
        only: &'a [u32],
    },
}

/// A request in flight.
#[derive(Default)]
struct Pending {
    offset: u64,
    /// Bytes of a read's result; 0 for other requests.
    read_bytes: usize,
    answer: Answer,
    failure: Option<(NbdError, String)>,
}

/// A connection to an export.
pub struct Client {
    transport: Transport,
    offer: ExportOffer,
    next_cookie: u64,
    pending: HashMap<u64, Pending>,
    pending_read_bytes: usize,
    finished: VecDeque<Completion>,
    input: Vec<u8>,
    taken: usize,
    out: Vec<u8>,
}

impl Client {
    /// Connects and agrees on an export.
    pub fn connect(address: &Address, options: &ClientOptions) -> Result<Self, ClientError> {
        let socket = match address {
            Address::Tcp(at) => TcpStream::connect(at.as_str()).and_then(Socket::from_tcp),
            Address::Unix(path) => UnixStream::connect(path).and_then(Socket::from_unix),
        };
        let socket = socket.map_err(|source| ClientError::Connect { address: address.clone(), source })?;
        let mut transport = Transport::plain(socket);
        let mut handshake = ClientHandshake::new(ClientWishes {
            export: options.export.clone(),
            mode: options.mode,
            contexts: options.contexts.clone(),
        });
        let (mut input, mut taken, mut out) = (Vec::new(), 0, Vec::new());
        let offer = loop {
            let (count, step) = handshake.receive(&input[taken..], &mut out)?;
            taken += count;
            if !out.is_empty() {
                transport.send_all(&mut [IoSlice::new(&out)])?;
                out.clear();
            }
            match step {
                ClientStep::Ready(offer) => break offer,
                ClientStep::Again => {}
                ClientStep::More => receive_more(&mut transport, &mut input, &mut taken)?,
            }
        };
        Ok(Self {
            transport,
            offer,
            next_cookie: 0,
            pending: HashMap::new(),
            pending_read_bytes: 0,
            finished: VecDeque::new(),
            input,
            taken,
            out,
        })
    }

    /// The server's description of the export.
    pub fn offer(&self) -> &ExportOffer {
        &self.offer
    }

    /// The size of the export in bytes, as of connecting.
    pub fn size(&self) -> u64 {
        self.offer.size
    }

    /// Sends a request without waiting for its reply; returns the cookie that its completion will
    /// carry.
    pub fn submit(&mut self, request: ClientRequest<'_>) -> Result<u64, ClientError> {
        let mode = self.offer.mode;
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let mut pending = Pending::default();
        let mut payload: &[u8] = &[];
        let out = &mut self.out;
        match request {
            ClientRequest::Read { offset, length } => {
                (pending.offset, pending.read_bytes) = (offset, length as usize);
                put_request(out, mode, NBD_CMD_READ, 0, cookie, offset, u64::from(length));
            }
            ClientRequest::Write { offset, data, fua } => {
                payload = data;
                let flags = if fua { NBD_CMD_FLAG_FUA } else { 0 };
                put_request(out, mode, NBD_CMD_WRITE, flags, cookie, offset, data.len() as u64);
            }
            ClientRequest::Flush => put_request(out, mode, NBD_CMD_FLUSH, 0, cookie, 0, 0),
            ClientRequest::Trim { offset, length } => {
                put_request(out, mode, NBD_CMD_TRIM, 0, cookie, offset, length);
            }
            ClientRequest::Cache { offset, length } => {
                put_request(out, mode, NBD_CMD_CACHE, 0, cookie, offset, length);
            }
            ClientRequest::WriteZeroes { offset, length, no_hole, fast } => {
                let flags = if no_hole { NBD_CMD_FLAG_NO_HOLE } else { 0 }
                    | if fast { NBD_CMD_FLAG_FAST_ZERO } else { 0 };
                put_request(out, mode, NBD_CMD_WRITE_ZEROES, flags, cookie, offset, length);
            }
            ClientRequest::BlockStatus { offset, length, one, only } => {
                let flags = if one { NBD_CMD_FLAG_REQ_ONE } else { 0 };
                if only.is_empty() || mode != ReplyMode::Extended {
                    put_request(out, mode, NBD_CMD_BLOCK_STATUS, flags, cookie, offset, length);
                } else {
                    put_block_status_request(out, flags, cookie, offset, length, only);
                }
            }
        }
        // A server that waits for us to take a long reply takes no payload: take the replies first.
        while !payload.is_empty() && self.pending_read_bytes > 0 {
            let completion = self.receive()?;
            self.finished.push_back(completion);
        }
        self.transport.send_all(&mut [IoSlice::new(&self.out), IoSlice::new(payload)])?;
        self.out.clear();
        self.pending_read_bytes += pending.read_bytes;
        self.pending.insert(cookie, pending);
        Ok(cookie)
    }

    /// Requests whose completion has not been taken.
    pub fn in_flight(&self) -> usize {
        self.pending.len() + self.finished.len()
    }

    /// Waits for the next completion, of whichever request. There must be one in flight.
    pub fn complete(&mut self) -> Result<Completion, ClientError> {
        assert!(self.in_flight() > 0, "a completion comes only for a request");
        match self.finished.pop_front() {
            Some(completion) => Ok(completion),
            None => self.receive(),
        }
    }

    /// Performs one request. No other may be in flight.
    pub fn perform(&mut self, request: ClientRequest<'_>) -> Result<Answer, ClientError> {
        assert_eq!(self.in_flight(), 0, "completions of other requests would be lost");
        self.submit(request)?;
        self.complete()?.outcome
    }

    /// Reads into `buffer`, in pieces of `piece` bytes of which `depth` are in flight.
    pub fn read_all(
        &mut self,
        offset: u64,
        buffer: &mut [u8],
        piece: u32,
        depth: usize,
    ) -> Result<(), ClientError> {
        let piece = piece.clamp(1, PAYLOAD_BYTES_MAX) as usize;
        let mut places = HashMap::new();
        let mut next = 0;
        while next < buffer.len() || !places.is_empty() {
            while next < buffer.len() && places.len() < depth.max(1) {
                let length = piece.min(buffer.len() - next);
                let request = ClientRequest::Read { offset: offset + next as u64, length: length as u32 };
                places.insert(self.submit(request)?, next);
                next += length;
            }
            let completion = self.complete()?;
            let data = completion.outcome?.data;
            if let Some(place) = places.remove(&completion.cookie) {
                buffer[place..place + data.len()].copy_from_slice(&data);
            }
        }
        Ok(())
    }

    /// Writes `bytes`, in pieces of `piece` bytes of which `depth` are in flight.
    pub fn write_all(
        &mut self,
        offset: u64,
        bytes: &[u8],
        piece: u32,
        depth: usize,
    ) -> Result<(), ClientError> {
        let piece = piece.clamp(1, PAYLOAD_BYTES_MAX) as usize;
        for (index, data) in bytes.chunks(piece).enumerate() {
            while self.in_flight() >= depth.max(1) {
                self.complete()?.outcome?;
            }
            self.submit(ClientRequest::Write { offset: offset + (index * piece) as u64, data, fua: false })?;
        }
        while self.in_flight() > 0 {
            self.complete()?.outcome?;
        }
        Ok(())
    }

    /// Reads `length` bytes at `offset`.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, ClientError> {
        self.perform(ClientRequest::Read { offset, length }).map(|answer| answer.data)
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.perform(ClientRequest::Write { offset, data, fua: false }).map(drop)
    }

    /// Makes completed writes durable.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.perform(ClientRequest::Flush).map(drop)
    }

    /// The status of `length` bytes at `offset` in all contexts; it may cover less.
    pub fn block_status(&mut self, offset: u64, length: u64) -> Result<Vec<ContextStatus>, ClientError> {
        let request = ClientRequest::BlockStatus { offset, length, one: false, only: &[] };
        self.perform(request).map(|answer| answer.status)
    }

    /// Sends a good-bye. Dropping a client only closes the connection.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        put_request(&mut self.out, self.offer.mode, NBD_CMD_DISC, 0, 0, 0, 0);
        self.transport.send_all(&mut [IoSlice::new(&self.out)])?;
        Ok(())
    }

    /// Receives until a request is complete.
    fn receive(&mut self) -> Result<Completion, ClientError> {
        loop {
            let Some((count, event)) = decode_reply(&self.input[self.taken..], self.offer.mode)? else {
                receive_more(&mut self.transport, &mut self.input, &mut self.taken)?;
                continue;
            };
            self.taken += count;
            if let Some(cookie) = self.apply(event)? {
                let Pending { read_bytes, answer, failure, .. } =
                    self.pending.remove(&cookie).unwrap_or_default();
                self.pending_read_bytes -= read_bytes;
                let outcome = match failure {
                    None => Ok(answer),
                    Some((error, message)) => Err(ClientError::Failed { error, message }),
                };
                return Ok(Completion { cookie, outcome });
            }
        }
    }

    /// Applies a reply; returns the request that it completes.
    fn apply(&mut self, event: ReplyEvent) -> Result<Option<u64>, ClientError> {
        let cookie = match &event {
            ReplyEvent::Simple { cookie, .. }
            | ReplyEvent::Data { cookie, .. }
            | ReplyEvent::Hole { cookie, .. }
            | ReplyEvent::Status { cookie, .. }
            | ReplyEvent::Failed { cookie, .. }
            | ReplyEvent::Done { cookie } => *cookie,
        };
        let mut pending = self.pending.remove(&cookie).ok_or(ClientError::Unasked { cookie })?;
        let mut finished = true;
        match event {
            ReplyEvent::Simple { error: Some(error), .. } => pending.failure = Some((error, String::new())),
            ReplyEvent::Simple { error: None, .. } => {
                pending.answer.data.resize(pending.read_bytes, 0);
                self.take_data(&mut pending.answer.data)?;
            }
            ReplyEvent::Data { offset, length, done, .. } => {
                finished = done;
                let range = pending.range(offset, length).ok_or(ClientError::Unasked { cookie })?;
                pending.answer.data.resize(pending.read_bytes, 0);
                self.take_data(&mut pending.answer.data[range])?;
            }
            ReplyEvent::Hole { offset, length, done, .. } => {
                finished = done;
                let range = pending.range(offset, length).ok_or(ClientError::Unasked { cookie })?;
                pending.answer.data.resize(pending.read_bytes, 0);
                pending.answer.data[range].fill(0);
            }
            ReplyEvent::Status { status, done, .. } => {
                finished = done;
                pending.answer.status.push(status);
            }
            ReplyEvent::Failed { error, message, done, .. } => {
                finished = done;
                pending.failure = Some((error, message));
            }
            ReplyEvent::Done { .. } => {}
        }
        self.pending.insert(cookie, pending);
        Ok(finished.then_some(cookie))
    }

    /// Takes data that follows a header: first the received bytes, then directly from the socket.
    fn take_data(&mut self, into: &mut [u8]) -> Result<(), ClientError> {
        let here = (self.input.len() - self.taken).min(into.len());
        let (now, mut later) = into.split_at_mut(here);
        now.copy_from_slice(&self.input[self.taken..self.taken + here]);
        self.taken += here;
        while !later.is_empty() {
            match self.transport.receive(&mut [IoSliceMut::new(later)], true)? {
                None | Some(0) => return Err(ClientError::Closed),
                Some(count) => later = &mut later[count..],
            }
        }
        Ok(())
    }
}

impl Pending {
    fn range(&self, offset: u64, length: u32) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(length as usize)?;
        (end <= self.read_bytes).then_some(start..end)
    }
}

/// Waits for more bytes after those that are not taken yet.
fn receive_more(
    transport: &mut Transport,
    input: &mut Vec<u8>,
    taken: &mut usize,
) -> Result<(), ClientError> {
    input.drain(..*taken);
    *taken = 0;
    let before = input.len();
    input.resize(before + RECEIVE_BYTES, 0);
    let received = transport.receive(&mut [IoSliceMut::new(&mut input[before..])], true)?;
    input.truncate(before + received.unwrap_or(0));
    match received {
        None | Some(0) => Err(ClientError::Closed),
        Some(_) => Ok(()),
    }
}
