//! Replies of the transmission phase: headers of data, and replies without data.

use crate::constants::*;
use crate::cursor::{Put, clipped, wire_length};
use crate::error::NbdError;
use crate::handshake::ReplyMode;
use crate::limits::EXTENTS_MAX;

/// A stretch of block status: its length in bytes and the flags of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes; never 0.
    pub length: u64,
    /// `NBD_STATE_*`, or `QEMU_STATE_DIRTY`.
    pub flags: u32,
}

/// The request that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    /// As the client sent it.
    pub cookie: u64,
    /// As the client sent it.
    pub offset: u64,
}

/// Appends all of a reply without data: success of anything but a read of more than no bytes.
#[inline]
pub fn put_success(out: &mut Vec<u8>, mode: ReplyMode, to: ReplyTo) {
    match mode {
        ReplyMode::Extended => put_chunk(out, mode, to, true, NBD_REPLY_TYPE_NONE, 0),
        // Shorter than a structured one, and allowed for everything but reads and block status.
        ReplyMode::Simple | ReplyMode::Structured => put_simple(out, to, NBD_SUCCESS),
    }
}

/// Appends the header before the `length` bytes of a read at `offset` (which follow as they are).
#[inline]
pub fn put_read_header(out: &mut Vec<u8>, mode: ReplyMode, to: ReplyTo, offset: u64, length: u32) {
    match mode {
        ReplyMode::Simple => put_simple(out, to, NBD_SUCCESS),
        // A chunk of data is never empty.
        ReplyMode::Structured | ReplyMode::Extended if length == 0 => {
            put_chunk(out, mode, to, true, NBD_REPLY_TYPE_NONE, 0);
        }
        ReplyMode::Structured | ReplyMode::Extended => {
            put_chunk(out, mode, to, true, NBD_REPLY_TYPE_OFFSET_DATA, u64::from(length) + 8);
            out.put_u64(offset);
        }
    }
}

/// Appends the header before a piece of the data of a read, in a mode that has chunks; `last` ends
/// the reply.
pub fn put_read_piece(out: &mut Vec<u8>, mode: ReplyMode, to: ReplyTo, offset: u64, length: u32, last: bool) {
    put_chunk(out, mode, to, last, NBD_REPLY_TYPE_OFFSET_DATA, u64::from(length) + 8);
    out.put_u64(offset);
}

/// Appends a whole error reply, with a message if the mode has a place for one.
pub fn put_error(out: &mut Vec<u8>, mode: ReplyMode, to: ReplyTo, error: NbdError, message: &str) {
    if mode == ReplyMode::Simple {
        return put_simple(out, to, error.wire());
    }
    let message = clipped(message, ERROR_MESSAGE_BYTES_MAX).as_bytes();
    put_chunk(out, mode, to, true, NBD_REPLY_TYPE_ERROR, 6 + u64::from(wire_length(message.len())));
    out.put_u32(error.wire());
    out.put_u16(u16::try_from(message.len()).expect("a message was cut to far less than 64 KiB"));
    out.put(message);
}

/// Appends the chunk of one context; `last` ends the reply. At least one extent is needed. Those
/// past [`EXTENTS_MAX`], and those that do not fit in the 32 bits of a structured reply, are left
/// out: the client asks again.
pub fn put_block_status(
    out: &mut Vec<u8>,
    mode: ReplyMode,
    to: ReplyTo,
    last: bool,
    context: u32,
    extents: &[StatusExtent],
) {
    let extents = extents.get(..EXTENTS_MAX).unwrap_or(extents);
    let count = wire_length(extents.len());
    if mode == ReplyMode::Extended {
        put_chunk(out, mode, to, last, NBD_REPLY_TYPE_BLOCK_STATUS_EXT, 8 + 16 * u64::from(count));
        out.put_u32(context);
        out.put_u32(count);
        for extent in extents {
            out.put_u64(extent.length);
            out.put_u64(u64::from(extent.flags));
        }
        return;
    }
    // Lengths of 4 GiB and more are cut, and nothing can follow a cut one.
    let whole = extents.iter().take_while(|extent| u32::try_from(extent.length).is_ok()).count();
    let sent = extents.get(..whole + 1).unwrap_or(extents);
    put_chunk(out, mode, to, last, NBD_REPLY_TYPE_BLOCK_STATUS, 4 + 8 * u64::from(wire_length(sent.len())));
    out.put_u32(context);
    for extent in sent {
        out.put_u32(u32::try_from(extent.length).unwrap_or(EXTENT_BYTES_CUT));
        out.put_u32(extent.flags);
    }
}

/// The longest extent that fits in 32 bits and is a multiple of every sensible block size.
const EXTENT_BYTES_CUT: u32 = u32::MAX - (16 << 20) + 1;
/// The longest message in an error reply.
const ERROR_MESSAGE_BYTES_MAX: usize = 512;

#[inline]
fn put_simple(out: &mut Vec<u8>, to: ReplyTo, error: u32) {
    out.put_u32(NBD_SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(to.cookie);
}

#[inline]
fn put_chunk(out: &mut Vec<u8>, mode: ReplyMode, to: ReplyTo, last: bool, kind: u16, length: u64) {
    let flags = if last { NBD_REPLY_FLAG_DONE } else { 0 };
    if mode == ReplyMode::Extended {
        out.put_u32(NBD_EXTENDED_REPLY_MAGIC);
        out.put_u16(flags);
        out.put_u16(kind);
        out.put_u64(to.cookie);
        out.put_u64(to.offset);
        out.put_u64(length);
    } else {
        out.put_u32(NBD_STRUCTURED_REPLY_MAGIC);
        out.put_u16(flags);
        out.put_u16(kind);
        out.put_u64(to.cookie);
        out.put_u32(u32::try_from(length).expect("payloads are limited far below 4 GiB"));
    }
}
