//! Headers, chunks and maps: the bytes of a sealed object. See the module above for their fields.

use ring::aead::{Aad, LessSafeKey, Nonce as ChunkNonce};

use super::keys::{KeyId, Keys};
use crate::limits::{PIECE_BYTES_MAX, PIECES_MAX};
use crate::name::Name;

const MAGIC: &[u8; 8] = b"CAIRNENC";
/// The version that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 64;
/// Plain bytes of a chunk.
pub(super) const CHUNK: usize = 64 << 10;
pub(super) const TAG: usize = 16;
const MAP_MAGIC: &[u8; 8] = b"CAIRNMAP";
/// Bytes after the chunks of a map.
pub(super) const TAIL: usize = 16;
const MAP_ENTRY: usize = 20;
/// Plain bytes of the longest map.
const MAP_BYTES_MAX: u64 = MAP_ENTRY as u64 * PIECES_MAX as u64;

/// Bytes that a sealed object or piece has more than its plain bytes, at most.
pub const MORE_BYTES_MAX: usize = 32 << 10;

const _: () = assert!(HEADER + TAG * (PIECE_BYTES_MAX / CHUNK + 1) <= MORE_BYTES_MAX);

/// Why bytes do not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    Damaged(&'static str),
    Newer(u32),
}

/// The fault of bytes that do not authenticate.
pub(super) const FORGED: Bad = Bad::Damaged("its bytes were changed, or it was written under another name");
pub(super) const CUT: Bad = Bad::Damaged("it is cut");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole = 1,
    Piece = 2,
    Map = 3,
}

/// See the module above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) key: KeyId,
    pub(super) salt: [u8; 16],
    pub(super) length: u64,
    pub(super) number: u32,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.key.0);
        bytes[32..48].copy_from_slice(&self.salt);
        bytes[48..56].copy_from_slice(&self.length.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER]) -> Result<Self, Bad> {
        let mut rest = &bytes[..];
        let magic: [u8; 8] = take(&mut rest).ok_or(CUT)?;
        if magic != *MAGIC {
            return Err(Bad::Damaged("it is not encrypted"));
        }
        let version = take(&mut rest).map(u32::from_le_bytes).ok_or(CUT)?;
        if version > VERSION {
            return Err(Bad::Newer(version));
        }
        let fields = |rest: &mut &[u8]| {
            let kind = match u32::from_le_bytes(take(rest)?) {
                1 => Kind::Whole,
                2 => Kind::Piece,
                3 => Kind::Map,
                _ => return None,
            };
            let (key, salt) = (KeyId(take(rest)?), take(rest)?);
            let length = u64::from_le_bytes(take(rest)?);
            let number = u32::from_le_bytes(take(rest)?);
            let zero: [u8; 4] = take(rest)?;
            let has_number = (1..=PIECES_MAX).contains(&number);
            let fits = if kind == Kind::Piece { has_number } else { number == 0 };
            let is_possible = length < 1 << 60;
            (fits && is_possible && zero == [0; 4]).then_some(Self { kind, key, salt, length, number })
        };
        let header = fields(&mut rest).filter(|_| version > 0);
        header.ok_or(Bad::Damaged("its header is wrong"))
    }

    /// The header at the beginning of some bytes.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Bad> {
        Self::parse(bytes.first_chunk().ok_or(CUT)?)
    }

    /// The key of its chunks.
    pub(super) fn open(self, keys: &Keys, name: &Name) -> LessSafeKey {
        keys.object(&self.to_bytes(), &self.salt, name)
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*taken)
}

/// Chunks of so many plain bytes.
pub(super) fn chunks(length: u64) -> u64 {
    length.div_ceil(CHUNK as u64).max(1)
}

/// Bytes of a sealed object or piece with so many plain bytes.
pub fn sealed_bytes(length: u64) -> u64 {
    HEADER as u64 + length + TAG as u64 * chunks(length)
}

/// Plain bytes of a sealed object that was put at once, or of a sealed piece; none if no such
/// object has this length.
pub(super) fn plain_bytes(sealed: u64) -> Option<u64> {
    let body = sealed.checked_sub(HEADER as u64)?;
    let chunks = body.div_ceil((CHUNK + TAG) as u64).max(1);
    let length = body.checked_sub(chunks * TAG as u64)?;
    (sealed_bytes(length) == sealed).then_some(length)
}

/// Where a chunk begins after the beginning of its header.
pub(super) fn chunk_at(chunk: u64) -> u64 {
    HEADER as u64 + chunk * (CHUNK + TAG) as u64
}

/// Plain bytes of a chunk.
pub(super) fn chunk_bytes(length: u64, chunk: u64) -> usize {
    length.saturating_sub(chunk * CHUNK as u64).min(CHUNK as u64) as usize
}

fn nonce(chunk: u64, is_last: bool) -> ChunkNonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&chunk.to_be_bytes());
    bytes[11] = u8::from(is_last);
    ChunkNonce::assume_unique_for_key(bytes)
}

/// Seals bytes after their header. The salt of the header must be new.
pub(super) fn seal(keys: &Keys, name: &Name, header: Header, plain: &[u8], more: usize) -> Vec<u8> {
    let length = sealed_bytes(plain.len() as u64) as usize;
    let mut out = Vec::with_capacity(length + more);
    out.extend_from_slice(&header.to_bytes());
    let key = header.open(keys, name);
    let last = chunks(plain.len() as u64) - 1;
    let mut rest = plain;
    for chunk in 0..=last {
        let (now, later) = rest.split_at(rest.len().min(CHUNK));
        rest = later;
        let begin = out.len();
        out.extend_from_slice(now);
        let tag = key
            .seal_in_place_separate_tag(nonce(chunk, chunk == last), Aad::empty(), &mut out[begin..])
            .expect("a chunk is short");
        out.extend_from_slice(tag.as_ref());
    }
    out
}

/// Adds the plain bytes of a chunk to `out`.
pub(super) fn open_chunk(
    key: &LessSafeKey,
    (length, chunk): (u64, u64),
    sealed: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Bad> {
    let begin = out.len();
    out.extend_from_slice(sealed);
    let is_last = chunk + 1 == chunks(length);
    let opened = key.open_in_place(nonce(chunk, is_last), Aad::empty(), &mut out[begin..]);
    match opened.map(|plain| plain.len()) {
        Ok(plain) => {
            out.truncate(begin + plain);
            Ok(())
        }
        Err(_) => {
            out.truncate(begin);
            Err(FORGED)
        }
    }
}

/// Opens all chunks after a header.
pub(super) fn open(keys: &Keys, name: &Name, header: Header, mut sealed: &[u8]) -> Result<Vec<u8>, Bad> {
    if header.key != keys.id {
        return Err(Bad::Damaged("it was encrypted with another bucket key"));
    }
    if sealed.len() as u64 + HEADER as u64 != sealed_bytes(header.length) {
        return Err(Bad::Damaged("its length is wrong"));
    }
    let key = header.open(keys, name);
    let mut out = Vec::with_capacity(sealed.len());
    for chunk in 0..chunks(header.length) {
        let (now, later) = sealed.split_at_checked(chunk_bytes(header.length, chunk) + TAG).ok_or(CUT)?;
        sealed = later;
        open_chunk(&key, (header.length, chunk), now, &mut out)?;
    }
    Ok(out)
}

/// Seals an object that is put at once.
pub(super) fn seal_whole(keys: &Keys, name: &Name, salt: [u8; 16], plain: &[u8]) -> Vec<u8> {
    let header = Header { kind: Kind::Whole, key: keys.id, salt, length: plain.len() as u64, number: 0 };
    seal(keys, name, header, plain, 0)
}

/// Opens an object that was put at once.
pub(super) fn open_whole(keys: &Keys, name: &Name, object: &[u8]) -> Result<Vec<u8>, Bad> {
    let header = Header::of(object)?;
    if header.kind != Kind::Whole {
        return Err(Bad::Damaged("its header is wrong"));
    }
    open(keys, name, header, object.get(HEADER..).unwrap_or_default())
}

/// The entry of a piece in a map: its plain bytes and the salt of its header.
pub(super) type Entry = (u32, [u8; 16]);

pub(super) fn write_map(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * MAP_ENTRY);
    for (length, salt) in entries {
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(salt);
    }
    bytes
}

pub(super) fn parse_map(mut bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(bytes.len() / MAP_ENTRY);
    while !bytes.is_empty() {
        let length = u32::from_le_bytes(take(&mut bytes)?);
        entries.push((length, take(&mut bytes)?));
    }
    let is_possible = (1..=PIECES_MAX as usize).contains(&entries.len())
        && entries.iter().all(|(length, _)| *length as usize <= PIECE_BYTES_MAX);
    is_possible.then_some(entries)
}

/// A sealed map with its tail.
pub(super) fn seal_map(keys: &Keys, name: &Name, salt: [u8; 16], entries: &[Entry]) -> Vec<u8> {
    let plain = write_map(entries);
    let header = Header { kind: Kind::Map, key: keys.id, salt, length: plain.len() as u64, number: 0 };
    let mut sealed = seal(keys, name, header, &plain, TAIL);
    let length = sealed.len() as u64;
    sealed.extend_from_slice(&length.to_le_bytes());
    sealed.extend_from_slice(MAP_MAGIC);
    sealed
}

/// The bytes of the map before a tail, which ends an object.
pub(super) fn map_bytes(end: &[u8]) -> Result<u64, Bad> {
    let tail: &[u8; TAIL] = end.last_chunk().ok_or(CUT)?;
    let mut rest = &tail[..];
    let length = take(&mut rest).map(u64::from_le_bytes).ok_or(CUT)?;
    let is_possible = rest == MAP_MAGIC && length <= sealed_bytes(MAP_BYTES_MAX);
    is_possible.then_some(length).ok_or(Bad::Damaged("it is cut, or bytes were added to it"))
}

/// Opens a map without its tail.
pub(super) fn open_map(keys: &Keys, name: &Name, sealed: &[u8]) -> Result<Vec<Entry>, Bad> {
    let header = Header::of(sealed)?;
    if header.kind != Kind::Map {
        return Err(Bad::Damaged("its map is wrong"));
    }
    let plain = open(keys, name, header, sealed.get(HEADER..).unwrap_or_default())?;
    parse_map(&plain).ok_or(Bad::Damaged("its map is wrong"))
}
