//! The client's side: negotiation, requests and replies. The server's bytes are checked as strictly
//! as clients' bytes.

use crate::constants::*;
use crate::cursor::{Cursor, Put, wire_length};
use crate::error::NbdError;
use crate::handshake::ReplyMode;
use crate::limits::{PAYLOAD_BYTES_MAX, REPLY_EXTRA_BYTES_MAX};
use crate::reply::StatusExtent;

/// A client's requests at negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientWishes {
    /// The export; "" is the server's default.
    pub export: String,
    /// The most that it supports; a server without that grants less.
    pub mode: ReplyMode,
    /// Metadata contexts, by their names on the wire.
    pub contexts: Vec<String>,
}

/// The parameters that the server granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOffer {
    /// The canonical name, when the server sent one.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// `NBD_FLAG_*` of the transmission phase.
    pub flags: u16,
    /// The smallest block in bytes.
    pub block_minimum: u32,
    /// The fastest block in bytes.
    pub block_preferred: u32,
    /// The longest payload in bytes.
    pub payload_max: u32,
    /// How replies look.
    pub mode: ReplyMode,
    /// Ids and names of the contexts that were granted.
    pub contexts: Vec<(u32, String)>,
}

/// Why the negotiation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFailure {
    /// The other side is no server of fixed newstyle NBD.
    #[error("the other side does not speak fixed newstyle NBD; check the address")]
    NotNbd,
    /// It answers a question that was not asked, or in an unknown form.
    #[error("the server broke the protocol in its reply to option {option}")]
    Malformed {
        /// The option that was pending.
        option: u32,
    },
    /// There is no such export.
    #[error("the server has no such export: {message}")]
    UnknownExport {
        /// The server's words.
        message: String,
    },
    /// It requires TLS.
    #[error("the server wants TLS, which this client does not speak; use its unix socket")]
    TlsRequired,
    /// It refused for another reason.
    #[error("the server refused (reply {reply:#x}): {message}")]
    Refused {
        /// `NBD_REP_ERR_*`
        reply: u32,
        /// The server's words.
        message: String,
    },
}

/// The caller's next step, after sending the appended bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStep {
    /// Bring more bytes.
    More,
    /// A message was handled; look at the rest of the input.
    Again,
    /// The negotiation is over.
    Ready(ExportOffer),
}

/// The state of a client's negotiation.
#[derive(Debug)]
pub struct ClientHandshake {
    wishes: ClientWishes,
    pending: u32,
    offer: ExportOffer,
}

impl ClientHandshake {
    /// A negotiation at its start: the server speaks first.
    pub fn new(wishes: ClientWishes) -> Self {
        let offer = ExportOffer {
            name: wishes.export.clone(),
            description: String::new(),
            size: 0,
            flags: 0,
            block_minimum: 1,
            block_preferred: 4096,
            payload_max: PAYLOAD_BYTES_MAX,
            mode: ReplyMode::Simple,
            contexts: Vec::new(),
        };
        Self { wishes, pending: 0, offer }
    }

    /// Handles at most one message from the front of `input`; returns how many bytes it took.
    pub fn receive(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientStep), HandshakeFailure> {
        if self.pending == 0 { self.greeting(input, out) } else { self.reply(input, out) }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, ClientStep), HandshakeFailure> {
        let mut cursor = Cursor::new(input);
        let (Some(magic), Some(options), Some(flags)) = (cursor.u64(), cursor.u64(), cursor.u16()) else {
            return Ok((0, ClientStep::More));
        };
        if magic != NBD_MAGIC || options != NBD_OPTS_MAGIC || flags & NBD_FLAG_FIXED_NEWSTYLE == 0 {
            return Err(HandshakeFailure::NotNbd);
        }
        let no_zeroes = if flags & NBD_FLAG_NO_ZEROES != 0 { NBD_FLAG_C_NO_ZEROES } else { 0 };
        out.put_u32(NBD_FLAG_C_FIXED_NEWSTYLE | no_zeroes);
        match self.wishes.mode {
            ReplyMode::Extended => self.ask(NBD_OPT_EXTENDED_HEADERS, &[], out),
            ReplyMode::Structured => self.ask(NBD_OPT_STRUCTURED_REPLY, &[], out),
            ReplyMode::Simple => self.go(out),
        }
        Ok((18, ClientStep::Again))
    }

    fn ask(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        self.pending = option;
        out.put_u64(NBD_OPTS_MAGIC);
        out.put_u32(option);
        out.put_u32(wire_length(data.len()));
        out.put(data);
    }

    fn contexts_or_go(&mut self, out: &mut Vec<u8>) {
        if self.wishes.contexts.is_empty() || self.offer.mode == ReplyMode::Simple {
            return self.go(out);
        }
        let mut data = Vec::new();
        data.put_u32(wire_length(self.wishes.export.len()));
        data.put(self.wishes.export.as_bytes());
        data.put_u32(wire_length(self.wishes.contexts.len()));
        for context in &self.wishes.contexts {
            data.put_u32(wire_length(context.len()));
            data.put(context.as_bytes());
        }
        self.ask(NBD_OPT_SET_META_CONTEXT, &data, out);
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        data.put_u32(wire_length(self.wishes.export.len()));
        data.put(self.wishes.export.as_bytes());
        let wanted = [NBD_INFO_NAME, NBD_INFO_DESCRIPTION, NBD_INFO_BLOCK_SIZE];
        data.put_u16(u16::try_from(wanted.len()).unwrap_or(0));
        wanted.iter().for_each(|info| data.put_u16(*info));
        self.ask(NBD_OPT_GO, &data, out);
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, ClientStep), HandshakeFailure> {
        let malformed = HandshakeFailure::Malformed { option: self.pending };
        let mut cursor = Cursor::new(input);
        let (Some(magic), Some(option), Some(kind), Some(length)) =
            (cursor.u64(), cursor.u32(), cursor.u32(), cursor.u32())
        else {
            return Ok((0, ClientStep::More));
        };
        if magic != NBD_REP_MAGIC || option != self.pending || u64::from(length) > REPLY_EXTRA_BYTES_MAX {
            return Err(malformed);
        }
        let Some(data) = cursor.take(usize::try_from(length).unwrap_or(usize::MAX)) else {
            return Ok((0, ClientStep::More));
        };
        let taken = 20 + data.len();
        let refused = kind & NBD_REP_FLAG_ERROR != 0;
        match option {
            NBD_OPT_EXTENDED_HEADERS if refused => self.ask(NBD_OPT_STRUCTURED_REPLY, &[], out),
            NBD_OPT_EXTENDED_HEADERS if kind == NBD_REP_ACK => {
                self.offer.mode = ReplyMode::Extended;
                self.contexts_or_go(out);
            }
            NBD_OPT_STRUCTURED_REPLY if refused => self.go(out),
            NBD_OPT_STRUCTURED_REPLY if kind == NBD_REP_ACK => {
                self.offer.mode = ReplyMode::Structured;
                self.contexts_or_go(out);
            }
            NBD_OPT_SET_META_CONTEXT if kind == NBD_REP_META_CONTEXT => {
                self.granted_context(data).ok_or(malformed)?;
            }
            NBD_OPT_SET_META_CONTEXT if refused || kind == NBD_REP_ACK => self.go(out),
            NBD_OPT_GO if kind == NBD_REP_INFO => self.information(data).ok_or(malformed)?,
            NBD_OPT_GO if kind == NBD_REP_ACK && self.offer.flags & NBD_FLAG_HAS_FLAGS != 0 => {
                return Ok((taken, ClientStep::Ready(self.offer.clone())));
            }
            NBD_OPT_GO if refused => {
                let message = String::from_utf8_lossy(data).into_owned();
                return Err(match kind {
                    NBD_REP_ERR_UNKNOWN => HandshakeFailure::UnknownExport { message },
                    NBD_REP_ERR_TLS_REQD => HandshakeFailure::TlsRequired,
                    reply => HandshakeFailure::Refused { reply, message },
                });
            }
            _ => return Err(malformed),
        }
        Ok((taken, ClientStep::Again))
    }

    fn granted_context(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        let id = cursor.u32()?;
        let name = String::from_utf8(cursor.rest().to_vec()).ok()?;
        if self.offer.contexts.len() >= self.wishes.contexts.len() {
            return None;
        }
        self.offer.contexts.push((id, name));
        Some(())
    }

    fn information(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        match cursor.u16()? {
            NBD_INFO_EXPORT => {
                self.offer.size = cursor.u64()?;
                self.offer.flags = cursor.u16()?;
            }
            NBD_INFO_NAME => self.offer.name = String::from_utf8(cursor.rest().to_vec()).ok()?,
            NBD_INFO_DESCRIPTION => {
                self.offer.description = String::from_utf8_lossy(cursor.rest()).into_owned();
            }
            NBD_INFO_BLOCK_SIZE => {
                self.offer.block_minimum = cursor.u32()?;
                self.offer.block_preferred = cursor.u32()?;
                self.offer.payload_max = cursor.u32()?.min(PAYLOAD_BYTES_MAX);
            }
            _ => {}
        }
        Some(())
    }
}

/// Appends a request; the payload of a write follows as it is. `command` and `flags` are
/// `NBD_CMD_*` and `NBD_CMD_FLAG_*`. Lengths of 4 GiB and more need extended headers; elsewhere
/// they are cut.
pub fn put_request(
    out: &mut Vec<u8>,
    mode: ReplyMode,
    command: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u64,
) {
    let extended = mode == ReplyMode::Extended;
    let payload = if extended && command == NBD_CMD_WRITE { NBD_CMD_FLAG_PAYLOAD_LEN } else { 0 };
    out.put_u32(if extended { NBD_EXTENDED_REQUEST_MAGIC } else { NBD_REQUEST_MAGIC });
    out.put_u16(flags | payload);
    out.put_u16(command);
    out.put_u64(cookie);
    out.put_u64(offset);
    if extended {
        out.put_u64(length);
    } else {
        out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    }
}

/// Appends a block status request for some of the selected contexts; extended headers only.
pub fn put_block_status_request(
    out: &mut Vec<u8>,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u64,
    ids: &[u32],
) {
    let payload = 8 + 4 * u64::from(wire_length(ids.len()));
    let flags = flags | NBD_CMD_FLAG_PAYLOAD_LEN;
    put_request(out, ReplyMode::Extended, NBD_CMD_BLOCK_STATUS, flags, cookie, offset, payload);
    out.put_u64(length);
    ids.iter().for_each(|id| out.put_u32(*id));
}

/// Block status of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextStatus {
    /// The id that was granted.
    pub context: u32,
    /// In order, from the offset of the request.
    pub extents: Vec<StatusExtent>,
}

/// The content of a reply, or of a chunk of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyEvent {
    /// A simple reply; the requested data of a successful read follows.
    Simple {
        /// The request.
        cookie: u64,
        /// The error.
        error: Option<NbdError>,
    },
    /// `length` bytes of data at `offset` follow.
    Data {
        /// The request.
        cookie: u64,
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Nothing comes after it.
        done: bool,
    },
    /// Zeroes.
    Hole {
        /// The request.
        cookie: u64,
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Nothing comes after it.
        done: bool,
    },
    /// Block status.
    Status {
        /// The request.
        cookie: u64,
        /// The extents.
        status: ContextStatus,
        /// Nothing comes after it.
        done: bool,
    },
    /// It failed, wholly or in part.
    Failed {
        /// The request.
        cookie: u64,
        /// Why.
        error: NbdError,
        /// The server's words.
        message: String,
        /// Nothing comes after it.
        done: bool,
    },
    /// The end of a reply.
    Done {
        /// The request.
        cookie: u64,
    },
}

/// The server sent an invalid reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyFailure {
    /// The magic is wrong.
    #[error("a reply starts with {found:#010x}, not with the magic of a reply")]
    Magic {
        /// The magic that was found.
        found: u32,
    },
    /// A chunk of this type does not look like that.
    #[error("a reply of type {kind} is malformed or too long ({length} bytes)")]
    Chunk {
        /// `NBD_REPLY_TYPE_*`
        kind: u16,
        /// Bytes of payload.
        length: u64,
    },
}

/// Decodes the reply or chunk at the front of `input`: how many bytes it took (without data that
/// follows), and its content. `None` when more bytes are needed.
pub fn decode_reply(input: &[u8], mode: ReplyMode) -> Result<Option<(usize, ReplyEvent)>, ReplyFailure> {
    let mut cursor = Cursor::new(input);
    let Some(magic) = cursor.u32() else { return Ok(None) };
    match (magic, mode) {
        (NBD_SIMPLE_REPLY_MAGIC, ReplyMode::Simple | ReplyMode::Structured) => {
            let (Some(error), Some(cookie)) = (cursor.u32(), cursor.u64()) else { return Ok(None) };
            let error = (error != NBD_SUCCESS).then(|| NbdError::from_wire(error));
            Ok(Some((16, ReplyEvent::Simple { cookie, error })))
        }
        (NBD_STRUCTURED_REPLY_MAGIC, ReplyMode::Structured) => {
            let (Some(flags), Some(kind), Some(cookie), Some(length)) =
                (cursor.u16(), cursor.u16(), cursor.u64(), cursor.u32())
            else {
                return Ok(None);
            };
            let chunk =
                Chunk { done: flags & NBD_REPLY_FLAG_DONE != 0, kind, cookie, length: u64::from(length) };
            decode_chunk(&chunk, 20, cursor)
        }
        (NBD_EXTENDED_REPLY_MAGIC, ReplyMode::Extended) => {
            let (Some(flags), Some(kind), Some(cookie), Some(_), Some(length)) =
                (cursor.u16(), cursor.u16(), cursor.u64(), cursor.u64(), cursor.u64())
            else {
                return Ok(None);
            };
            let chunk = Chunk { done: flags & NBD_REPLY_FLAG_DONE != 0, kind, cookie, length };
            decode_chunk(&chunk, 32, cursor)
        }
        _ => Err(ReplyFailure::Magic { found: magic }),
    }
}

struct Chunk {
    done: bool,
    kind: u16,
    cookie: u64,
    length: u64,
}

fn decode_chunk(
    chunk: &Chunk,
    header_bytes: usize,
    mut cursor: Cursor<'_>,
) -> Result<Option<(usize, ReplyEvent)>, ReplyFailure> {
    let &Chunk { done, kind, cookie, length } = chunk;
    let failure = ReplyFailure::Chunk { kind, length };
    if kind == NBD_REPLY_TYPE_OFFSET_DATA {
        let data = length.checked_sub(8).and_then(|data| u32::try_from(data).ok()).ok_or(failure)?;
        if data == 0 || data > PAYLOAD_BYTES_MAX {
            return Err(failure);
        }
        let Some(offset) = cursor.u64() else { return Ok(None) };
        return Ok(Some((header_bytes + 8, ReplyEvent::Data { cookie, offset, length: data, done })));
    }
    if length > REPLY_EXTRA_BYTES_MAX {
        return Err(failure);
    }
    let Some(payload) = cursor.take(usize::try_from(length).unwrap_or(usize::MAX)) else { return Ok(None) };
    let mut fields = Cursor::new(payload);
    let event = match kind {
        NBD_REPLY_TYPE_NONE => (payload.is_empty() && done).then_some(ReplyEvent::Done { cookie }),
        NBD_REPLY_TYPE_OFFSET_HOLE => match (fields.u64(), fields.u32()) {
            (Some(offset), Some(length)) => Some(ReplyEvent::Hole { cookie, offset, length, done }),
            _ => None,
        },
        NBD_REPLY_TYPE_BLOCK_STATUS => {
            status_extents(fields, false).map(|status| ReplyEvent::Status { cookie, status, done })
        }
        NBD_REPLY_TYPE_BLOCK_STATUS_EXT => {
            status_extents(fields, true).map(|status| ReplyEvent::Status { cookie, status, done })
        }
        kind if kind & NBD_REPLY_TYPE_FLAG_ERROR != 0 => match (fields.u32(), fields.u16()) {
            (Some(error), Some(length)) => {
                fields.take(usize::from(length)).map(|message| ReplyEvent::Failed {
                    cookie,
                    error: NbdError::from_wire(error),
                    message: String::from_utf8_lossy(message).into_owned(),
                    done,
                })
            }
            _ => None,
        },
        _ => None,
    };
    event.map(|event| Some((header_bytes + payload.len(), event))).ok_or(failure)
}

fn status_extents(mut fields: Cursor<'_>, extended: bool) -> Option<ContextStatus> {
    let context = fields.u32()?;
    if extended {
        // The count has no more information than the length of the chunk.
        fields.u32()?;
    }
    let mut extents = Vec::new();
    while !fields.is_empty() {
        let (length, flags) = if extended {
            (fields.u64()?, u32::try_from(fields.u64()?).ok()?)
        } else {
            (u64::from(fields.u32()?), fields.u32()?)
        };
        if length == 0 {
            return None;
        }
        extents.push(StatusExtent { length, flags });
    }
    (!extents.is_empty()).then_some(ContextStatus { context, extents })
}
