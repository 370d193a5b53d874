//! The skeleton of a part: its bytes without those of blocks, as an object beside it.
//!
//! A reader opens a part by reading the head of each of its records, one for each MiB. Over a
//! network that is a request for each MiB. The skeleton has the same bytes in a few requests. It is
//! a copy: it can be left out, and the reader verifies its bytes as it verifies those of the part.
//!
//! Chunks of entries (`offset`, `length`, bytes), each with a checksum at its end; then a directory
//! of the chunks; then a foot of a fixed length. All numbers are little-endian.

use cairn_base::{Checksum, Mutex};

/// Bytes of a chunk after which the next one begins.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of an entry before its content.
const ENTRY_HEAD: usize = 12;
/// Bytes of one chunk in the directory.
const DIRECTORY_ENTRY: usize = 24;
const MAGIC: [u8; 8] = *b"CAIRNSK1";
/// Bytes of the foot: magic, count of chunks, offset of the directory, checksum of the directory.
pub(super) const FOOT_BYTES: usize = 40;
/// Chunks of a skeleton. A longer one is not written: 64 GiB of heads belong to 800 TiB of blocks.
const CHUNKS_MAX: usize = 1 << 16;
/// Chunks that are kept in memory.
const CHUNKS_KEPT: usize = 4;

/// Makes a skeleton while its part is written.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// Whole chunks.
    done: Vec<u8>,
    chunk: Vec<u8>,
    /// Where in the part the chunk begins.
    first: u64,
    directory: Vec<u8>,
    chunks: usize,
}

impl Builder {
    /// Takes bytes of the part; those of one call stay together.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) {
        if self.chunk.is_empty() {
            self.first = offset;
        }
        let Ok(length) = u32::try_from(bytes.len()) else { return };
        self.chunk.extend_from_slice(&offset.to_le_bytes());
        self.chunk.extend_from_slice(&length.to_le_bytes());
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.end_chunk();
        }
    }

    fn end_chunk(&mut self) {
        if self.chunk.is_empty() || self.chunks == CHUNKS_MAX {
            return;
        }
        self.chunks += 1;
        let checksum = Checksum::of(&self.chunk);
        let length = self.chunk.len() as u64 + 16;
        for number in [self.first, self.done.len() as u64, length] {
            self.directory.extend_from_slice(&number.to_le_bytes());
        }
        self.done.append(&mut self.chunk);
        self.done.extend_from_slice(&checksum.0);
    }

    /// Bytes so far.
    pub(super) fn length(&self) -> usize {
        self.done.len() + self.chunk.len() + self.directory.len() + FOOT_BYTES
    }

    /// The object.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.end_chunk();
        let at = self.done.len() as u64;
        let checksum = Checksum::of(&self.directory);
        self.done.append(&mut self.directory);
        self.done.extend_from_slice(&MAGIC);
        self.done.extend_from_slice(&(self.chunks as u64).to_le_bytes());
        self.done.extend_from_slice(&at.to_le_bytes());
        self.done.extend_from_slice(&checksum.0);
        self.done
    }
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    first: u64,
    at: u64,
    length: usize,
}

/// Reads a skeleton.
pub(super) struct Skeleton {
    chunks: Vec<Chunk>,
    /// Chunks with their entries, the last used last.
    kept: Mutex<Vec<(usize, Entries)>>,
}

type Entries = std::sync::Arc<Vec<(u64, Vec<u8>)>>;

/// Reads the given number of bytes of the object from an offset on; none if the object has fewer.
pub(super) type ReadObject<'a> = &'a dyn Fn(u64, usize) -> std::io::Result<Option<Vec<u8>>>;

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Skeleton {
    /// Reads the foot and the directory of an object of `length` bytes; none if it is not a
    /// skeleton.
    pub(super) fn open(length: u64, read: ReadObject<'_>) -> std::io::Result<Option<Self>> {
        let Some(foot_at) = length.checked_sub(FOOT_BYTES as u64) else { return Ok(None) };
        let Some(foot) = read(foot_at, FOOT_BYTES)? else { return Ok(None) };
        let (Some(count), Some(at)) = (number(&foot, 8), number(&foot, 16)) else { return Ok(None) };
        let size = count.checked_mul(DIRECTORY_ENTRY as u64);
        let fits = size.and_then(|size| at.checked_add(size)) == Some(foot_at);
        if !foot.starts_with(&MAGIC) || count as usize > CHUNKS_MAX || !fits {
            return Ok(None);
        }
        let Some(directory) = read(at, count as usize * DIRECTORY_ENTRY)? else { return Ok(None) };
        if foot.get(24..) != Some(&Checksum::of(&directory).0[..]) {
            return Ok(None);
        }
        let chunk = |entry: &[u8]| {
            let (first, at, length) = (number(entry, 0)?, number(entry, 8)?, number(entry, 16)?);
            let length = usize::try_from(length).ok()?;
            (length <= crate::limits::GET_BYTES_MAX).then_some(Chunk { first, at, length })
        };
        let chunks: Option<Vec<Chunk>> = directory.chunks_exact(DIRECTORY_ENTRY).map(chunk).collect();
        Ok(chunks.map(|chunks| Self { chunks, kept: Mutex::new(Vec::new()) }))
    }

    /// Fills `buffer` from the part at `offset`, if one entry has all of it.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8], read: ReadObject<'_>) -> std::io::Result<bool> {
        let Some(chunk) = self.chunks.partition_point(|chunk| chunk.first <= offset).checked_sub(1) else {
            return Ok(false);
        };
        let Some(entries) = self.entries(chunk, read)? else { return Ok(false) };
        let Some(entry) = entries.partition_point(|(at, _)| *at <= offset).checked_sub(1) else {
            return Ok(false);
        };
        let (at, bytes) = &entries[entry];
        let begin = (offset - at) as usize;
        match bytes.get(begin..begin.saturating_add(buffer.len())) {
            Some(found) => {
                buffer.copy_from_slice(found);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn entries(&self, chunk: usize, read: ReadObject<'_>) -> std::io::Result<Option<Entries>> {
        {
            let mut kept = self.kept.lock();
            if let Some(at) = kept.iter().position(|(number, _)| *number == chunk) {
                let found = kept.remove(at);
                let entries = found.1.clone();
                kept.push(found);
                return Ok(Some(entries));
            }
        }
        let place = self.chunks[chunk];
        let Some(bytes) = read(place.at, place.length)? else { return Ok(None) };
        let Some((mut rest, checksum)) = bytes.split_last_chunk::<16>() else { return Ok(None) };
        if Checksum::of(rest).0 != *checksum {
            return Ok(None);
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (Some(offset), Some(length)) = (number(rest, 0), rest.get(8..ENTRY_HEAD)) else {
                return Ok(None);
            };
            let length = length.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
            let Some(bytes) = rest.get(ENTRY_HEAD..ENTRY_HEAD + length) else { return Ok(None) };
            entries.push((offset, bytes.to_vec()));
            rest = &rest[ENTRY_HEAD + length..];
        }
        let entries: Entries = std::sync::Arc::new(entries);
        let mut kept = self.kept.lock();
        if kept.len() >= CHUNKS_KEPT {
            kept.remove(0);
        }
        kept.push((chunk, entries.clone()));
        Ok(Some(entries))
    }
}
