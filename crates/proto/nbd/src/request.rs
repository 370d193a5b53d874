//! Requests of the transmission phase: bytes to checked commands.
//!
//! The decoder keeps no state but the negotiated parameters; it decodes the front of the input. The
//! caller handles the payload of a write, and can move it to its place without a copy.

use crate::constants::*;
use crate::context::Context;
use crate::cursor::Cursor;
use crate::error::{NbdError, Violation};
use crate::handshake::{Negotiated, ReplyMode};
use crate::limits::{CONTEXTS_MAX, DRAIN_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// The present state of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportState {
    /// Bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Write-zeroes is faster than writing zeroes; otherwise `NBD_CMD_FLAG_FAST_ZERO` is refused.
    pub fast_zeroes: bool,
}

/// A command that is legal for the export. Offsets and lengths are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `NBD_CMD_READ`
    Read {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// The data must come in one chunk (`NBD_CMD_FLAG_DF`).
        one_chunk: bool,
    },
    /// `NBD_CMD_WRITE`; the payload of this length follows.
    Write {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// `NBD_CMD_FLUSH`
    Flush,
    /// `NBD_CMD_TRIM`
    Trim {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// Durable when answered.
        fua: bool,
    },
    /// `NBD_CMD_CACHE`
    Cache {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// `NBD_CMD_WRITE_ZEROES`
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// Space may be freed (no `NBD_CMD_FLAG_NO_HOLE`).
        may_trim: bool,
        /// Durable when answered.
        fua: bool,
    },
    /// `NBD_CMD_BLOCK_STATUS`
    BlockStatus {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// One extent a context, not reaching past the length.
        one: bool,
        /// Positions in [`Negotiated::contexts`], when the client filtered them by payload.
        only: Option<Vec<usize>>,
    },
    /// `NBD_CMD_DISC`: no reply; the session ends when running requests are answered.
    Disconnect,
}

/// A request as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Names the request in its replies.
    pub cookie: u64,
    /// As the client sent it; extended replies repeat it.
    pub offset: u64,
    /// It was `NBD_CMD_READ`, whose errors take another form in structured replies.
    pub is_read: bool,
    /// Bytes of payload that still follow and must be taken, also when the command is refused.
    pub payload_bytes: u64,
    /// The command, or the error to refuse it with.
    pub command: Result<Command, NbdError>,
}

/// The content at the front of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// Not enough bytes to decide.
    Incomplete,
    /// A request of this many bytes, without the payload that it announces.
    Request(usize, Request),
    /// The session cannot continue.
    Close(Violation),
}

/// Bytes in the header of a request.
pub fn request_header_bytes(mode: ReplyMode) -> usize {
    if mode == ReplyMode::Extended { 32 } else { 28 }
}

struct Header {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    length: u64,
}

/// Decodes the request at the front of `input`.
#[inline]
pub fn decode_request(input: &[u8], negotiated: &Negotiated, export: ExportState) -> Decoded {
    let mut cursor = Cursor::new(input);
    let extended = negotiated.mode == ReplyMode::Extended;
    let Some(magic) = cursor.u32() else { return Decoded::Incomplete };
    if magic != if extended { NBD_EXTENDED_REQUEST_MAGIC } else { NBD_REQUEST_MAGIC } {
        return Decoded::Close(Violation::RequestMagic { found: magic });
    }
    let Some(header) = decode_header(&mut cursor, extended) else { return Decoded::Incomplete };
    let header_bytes = request_header_bytes(negotiated.mode);

    // Without the flag, only a write has a payload. With it, in extended mode, every command may.
    let announced = extended && header.flags & NBD_CMD_FLAG_PAYLOAD_LEN != 0;
    let payload_bytes = if announced || header.kind == NBD_CMD_WRITE { header.length } else { 0 };
    if payload_bytes > DRAIN_BYTES_MAX {
        return Decoded::Close(Violation::PayloadTooLong { length: payload_bytes });
    }
    let mut request = Request {
        cookie: header.cookie,
        offset: header.offset,
        is_read: header.kind == NBD_CMD_READ,
        payload_bytes,
        command: Err(NbdError::Invalid),
    };
    if header.kind == NBD_CMD_BLOCK_STATUS && announced && payload_bytes <= BLOCK_STATUS_PAYLOAD_MAX {
        let Some(payload) = cursor.take(usize::try_from(payload_bytes).unwrap_or(usize::MAX)) else {
            return Decoded::Incomplete;
        };
        request.payload_bytes = 0;
        request.command = filtered_block_status(&header, payload, &negotiated.contexts, export);
        return Decoded::Request(header_bytes + payload.len(), request);
    }
    request.command = check(&header, announced, negotiated, export);
    Decoded::Request(header_bytes, request)
}

fn decode_header(cursor: &mut Cursor<'_>, extended: bool) -> Option<Header> {
    Some(Header {
        flags: cursor.u16()?,
        kind: cursor.u16()?,
        cookie: cursor.u64()?,
        offset: cursor.u64()?,
        length: if extended { cursor.u64()? } else { u64::from(cursor.u32()?) },
    })
}

fn check(
    header: &Header,
    announced: bool,
    negotiated: &Negotiated,
    export: ExportState,
) -> Result<Command, NbdError> {
    let &Header { flags, kind, offset, length, .. } = header;
    // FUA means nothing on a read or a flush, yet clients may set it there.
    let mut known = NBD_CMD_FLAG_FUA;
    known |= match kind {
        NBD_CMD_READ if negotiated.mode != ReplyMode::Simple => NBD_CMD_FLAG_DF,
        NBD_CMD_WRITE if announced => NBD_CMD_FLAG_PAYLOAD_LEN,
        NBD_CMD_WRITE_ZEROES => NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
        NBD_CMD_BLOCK_STATUS => NBD_CMD_FLAG_REQ_ONE,
        _ => 0,
    };
    if kind == NBD_CMD_DISC {
        return Ok(Command::Disconnect);
    }
    if flags & !known != 0 {
        return Err(NbdError::Invalid);
    }
    let writes = matches!(kind, NBD_CMD_WRITE | NBD_CMD_TRIM | NBD_CMD_WRITE_ZEROES);
    if writes && export.read_only {
        return Err(NbdError::NotPermitted);
    }
    let fua = flags & NBD_CMD_FLAG_FUA != 0;
    let transfer = || match u32::try_from(length) {
        Ok(length) if length <= PAYLOAD_BYTES_MAX => Ok(length),
        _ => Err(NbdError::Overflow),
    };
    match kind {
        NBD_CMD_READ => {
            in_range(offset, length, export.size, NbdError::Invalid)?;
            Ok(Command::Read { offset, length: transfer()?, one_chunk: flags & NBD_CMD_FLAG_DF != 0 })
        }
        NBD_CMD_WRITE => {
            in_range(offset, length, export.size, NbdError::NoSpace)?;
            Ok(Command::Write { offset, length: transfer()?, fua })
        }
        NBD_CMD_FLUSH => Ok(Command::Flush),
        NBD_CMD_TRIM => {
            in_range(offset, length, export.size, NbdError::Invalid)?;
            Ok(Command::Trim { offset, length, fua })
        }
        NBD_CMD_CACHE => {
            in_range(offset, length, export.size, NbdError::Invalid)?;
            Ok(Command::Cache { offset, length })
        }
        NBD_CMD_WRITE_ZEROES => {
            in_range(offset, length, export.size, NbdError::NoSpace)?;
            if flags & NBD_CMD_FLAG_FAST_ZERO != 0 && !export.fast_zeroes {
                return Err(NbdError::NotSupported);
            }
            Ok(Command::WriteZeroes { offset, length, may_trim: flags & NBD_CMD_FLAG_NO_HOLE == 0, fua })
        }
        NBD_CMD_BLOCK_STATUS => block_status(header, length, None, &negotiated.contexts, export),
        _ => Err(NbdError::Invalid),
    }
}

fn in_range(offset: u64, length: u64, size: u64, error: NbdError) -> Result<(), NbdError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(error),
    }
}

/// An effect length and one id for each context that can be selected.
const BLOCK_STATUS_PAYLOAD_MAX: u64 = 8 + 4 * CONTEXTS_MAX as u64;

fn filtered_block_status(
    header: &Header,
    payload: &[u8],
    contexts: &[Context],
    export: ExportState,
) -> Result<Command, NbdError> {
    let known = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_REQ_ONE | NBD_CMD_FLAG_PAYLOAD_LEN;
    if header.flags & !known != 0 {
        return Err(NbdError::Invalid);
    }
    let mut cursor = Cursor::new(payload);
    let length = cursor.u64().ok_or(NbdError::Invalid)?;
    let mut only = Vec::new();
    while !cursor.is_empty() {
        let id = cursor.u32().ok_or(NbdError::Invalid)?;
        let position = contexts.iter().position(|context| context.id == id).ok_or(NbdError::Invalid)?;
        if only.contains(&position) {
            return Err(NbdError::Invalid);
        }
        only.push(position);
    }
    if only.is_empty() {
        return Err(NbdError::Invalid);
    }
    block_status(header, length, Some(only), contexts, export)
}

fn block_status(
    header: &Header,
    length: u64,
    only: Option<Vec<usize>>,
    contexts: &[Context],
    export: ExportState,
) -> Result<Command, NbdError> {
    if contexts.is_empty() || length == 0 {
        return Err(NbdError::Invalid);
    }
    in_range(header.offset, length, export.size, NbdError::Invalid)?;
    let one = header.flags & NBD_CMD_FLAG_REQ_ONE != 0;
    Ok(Command::BlockStatus { offset: header.offset, length, one, only })
}
