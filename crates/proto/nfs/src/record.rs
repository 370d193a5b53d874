//! Record marking: messages in a TCP stream (RFC 5531, section 11).
//!
//! A message is one or more fragments. The head of each is four bytes: its length in 31 bits, and a
//! bit for the last one.

use std::borrow::Cow;

/// Bytes of the head of a fragment.
pub const HEAD_BYTES: usize = 4;
/// Fragments of one message; a client that sends more is disconnected. Clients send one.
const FRAGMENTS_MAX: usize = 64;
const LAST: u32 = 1 << 31;

/// Why the bytes are not records of an acceptable size. The connection has to be closed, as the
/// next record can't be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// It is longer than the limit.
    #[error("a message is longer than {most} bytes")]
    TooLong {
        /// The limit.
        most: usize,
    },
    /// It has too many fragments.
    #[error("a message has more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// The state of the front of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Front<'a> {
    /// A message, and the number of bytes that it takes from the stream with its heads.
    Record(Cow<'a, [u8]>, usize),
    /// At least that many more bytes are needed.
    More(usize),
}

/// Looks for a whole message of at most `most` bytes at the front of `stream`.
///
/// # Errors
/// [`BadRecord`] as soon as the heads show it.
pub fn front(stream: &[u8], most: usize) -> Result<Front<'_>, BadRecord> {
    let (mut at, mut length) = (0, 0);
    let mut fragments: [(usize, usize); FRAGMENTS_MAX] = [(0, 0); FRAGMENTS_MAX];
    for count in 0..FRAGMENTS_MAX {
        let head = stream.get(at..).unwrap_or_default();
        let Some(&head) = head.first_chunk::<HEAD_BYTES>() else {
            return Ok(Front::More(HEAD_BYTES - head.len()));
        };
        let head = u32::from_be_bytes(head);
        let bytes = (head & !LAST) as usize;
        let start = at + HEAD_BYTES;
        length += bytes;
        if length > most {
            return Err(BadRecord::TooLong { most });
        }
        at = start + bytes;
        if stream.len() < at {
            return Ok(Front::More(at - stream.len()));
        }
        if let Some(place) = fragments.get_mut(count) {
            *place = (start, at);
        }
        if head & LAST != 0 {
            let part = |&(start, end): &(usize, usize)| stream.get(start..end).unwrap_or_default();
            let record = match count {
                0 => Cow::Borrowed(part(&(start, at))),
                _ => Cow::Owned(fragments.iter().take(count + 1).map(part).collect::<Vec<_>>().concat()),
            };
            return Ok(Front::Record(record, at));
        }
    }
    Err(BadRecord::TooManyFragments)
}

/// Reserves the head of a message of one fragment at the end of `out`. Returns its place for
/// [`finish`].
pub fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    start
}

/// Completes a message that [`begin`] started; `beside` of its bytes are not in `out`.
pub fn finish(out: &mut [u8], start: usize, beside: usize) {
    let length = out.len().saturating_sub(start + HEAD_BYTES) + beside;
    if let Some(head) = out.get_mut(start..start + HEAD_BYTES) {
        head.copy_from_slice(&(length as u32 | LAST).to_be_bytes());
    }
}
