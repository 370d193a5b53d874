//! Where the blocks of a part are: an index of its records, made by going from head to head.
//!
//! It takes 56 bytes for each record (1 MiB of blocks). It reads data only where two records
//! contradict each other; a read of a block verifies it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Vbn};
use cairn_format::stream::{Encoding, RecordHeader, RecordKind, StreamRun};
use cairn_format::{FormatError, SnapshotEntry, Structure};

use super::error::DumpError;
use super::read::{HEAD_BYTES, PartHead, PartReader, Table, acceptable, check_order, find, read_error};
use super::window::{InBlocks, ReadBlocks};
use cairn_base::Checksum;

/// Bytes that a search for the next record reads at once.
const SEARCH_BYTES: usize = 1 << 20;

/// A part that can be read anywhere.
pub trait DumpBytes: Send + Sync {
    /// Reads at `offset`; how many bytes: fewer than `buffer` has only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize>;

    /// Bytes in all.
    fn length(&self) -> std::io::Result<u64>;

    /// All bytes from `offset` on, in order, if there is a better way than
    /// [`read_at`](Self::read_at), such as threads that read ahead. They begin at the last multiple
    /// of 4 KiB before `offset`.
    fn in_order(&self, _offset: u64) -> Option<Box<dyn InBlocks>> {
        None
    }
}

impl DumpBytes for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        read_whole(offset, buffer, |buffer, at| FileExt::read_at(self, buffer, at))
    }

    fn length(&self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// Reads until `buffer` is full or the input ends, by reads that may return less than requested;
/// returns how many bytes.
pub(super) fn read_whole(
    offset: u64,
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl DumpBytes for Vec<u8> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn length(&self) -> std::io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Reads a part in order, from the last multiple of 4 KiB before `offset` on.
pub(super) fn in_order(bytes: &Arc<dyn DumpBytes>, offset: u64) -> Box<dyn InBlocks> {
    bytes.in_order(offset).unwrap_or_else(|| {
        let at = offset - offset % BLOCK_SIZE as u64;
        Box::new(ReadBlocks::new(InOrder { bytes: bytes.clone(), at }))
    })
}

/// A part that can be read anywhere is read in order.
struct InOrder {
    bytes: Arc<dyn DumpBytes>,
    at: u64,
}

impl Read for InOrder {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.bytes.read_at(self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl PartReader {
    /// [`PartReader::open`] of a part that can be read anywhere: when the head at its beginning is
    /// damaged, the copy at its end serves.
    pub fn open_file(file: &str, bytes: &Arc<dyn DumpBytes>) -> Result<Self, DumpError> {
        let input = || in_order(bytes, 0);
        let mut reader = match Self::open_blocks(file, input()) {
            Err(DumpError::Head { source, .. }) => {
                let head = head_at_end(bytes).map_err(|error| read_error(file, error))?;
                let head = head.ok_or(DumpError::Head { file: file.to_owned(), source })?;
                Self::open_with(file, input(), head)?
            }
            outcome => outcome?,
        };
        reader.anywhere = Some(bytes.clone());
        Ok(reader)
    }
}

fn head_at_end(bytes: &Arc<dyn DumpBytes>) -> std::io::Result<Option<PartHead>> {
    let mut head = [0; HEAD_BYTES];
    let at = bytes.length()?.checked_sub(HEAD_BYTES as u64);
    // One head alone is that of the beginning.
    let Some(at) = at.filter(|at| *at >= HEAD_BYTES as u64) else { return Ok(None) };
    bytes.read_at(at, &mut head)?;
    Ok(PartHead::parse(&head).ok())
}

/// A record with blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordEntry {
    /// The first block.
    pub(crate) first: u64,
    /// The last one.
    pub(crate) last: u64,
    /// Where its payload is in the file.
    pub(crate) payload_at: u64,
    pub(crate) payload: u32,
    pub(crate) items: u16,
    pub(crate) blocks: u16,
    pub(crate) encoding: Encoding,
    checksum: Checksum,
}

impl RecordEntry {
    /// Bytes of the payload before the blocks.
    pub(crate) fn table_bytes(&self) -> usize {
        usize::from(self.items) * StreamRun::SIZE
    }

    /// The offset of the blocks in the payload, or their compression.
    pub(crate) fn data_at(&self) -> usize {
        self.header().data_at()
    }

    /// The head of the record, but for its number.
    pub(crate) fn header(&self) -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Extents,
            encoding: self.encoding,
            sequence: 0,
            items: self.items.into(),
            blocks: self.blocks.into(),
            payload: self.payload,
            checksum: self.checksum,
        }
    }

    /// Whether it has every block from its first to its last.
    pub(crate) fn is_dense(&self) -> bool {
        self.last - self.first + 1 == u64::from(self.blocks)
    }
}

/// A part, and where its blocks are.
pub struct PartIndex {
    file: String,
    pub(crate) bytes: Arc<dyn DumpBytes>,
    head: PartHead,
    table: Option<Vec<SnapshotEntry>>,
    /// In order of vbn.
    pub(crate) entries: Vec<RecordEntry>,
    whole: bool,
    cut: bool,
}

impl PartIndex {
    /// Goes through the part from head to head. Damaged records are left out: their blocks are not
    /// found.
    ///
    /// # Errors
    /// [`DumpError::Head`] for a file that is not a part of a dump. A truncated part is opened as
    /// far as it goes: see [`PartIndex::is_cut`].
    pub fn open(file: &str, bytes: Arc<dyn DumpBytes>) -> Result<Self, DumpError> {
        let failed = |error| read_error(file, error);
        let mut head = [0; HEAD_BYTES];
        let have = bytes.read_at(0, &mut head).map_err(failed)?;
        let short = FormatError::Magic(Structure::DumpHeader);
        let parsed = if have == HEAD_BYTES { PartHead::parse(&head) } else { Err(short) };
        let head = match parsed {
            Ok(head) => head,
            Err(source) => head_at_end(&bytes)
                .map_err(failed)?
                .ok_or(DumpError::Head { file: file.to_owned(), source })?,
        };
        let mut index = Self {
            file: file.to_owned(),
            bytes,
            head,
            table: None,
            entries: Vec::new(),
            whole: false,
            cut: true,
        };
        index.fill().map_err(failed)?;
        Ok(index)
    }

    /// The name of the part.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// How it begins.
    pub fn head(&self) -> &PartHead {
        &self.head
    }

    /// Every snapshot that the dump brings, unless all places that have them are damaged.
    pub fn table(&self) -> Option<&[SnapshotEntry]> {
        self.table.as_deref()
    }

    /// All of its records were found, and the trailer.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// It has no end: neither the trailer nor the head after it.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Its length in bytes.
    pub fn length(&self) -> Result<u64, DumpError> {
        self.bytes.length().map_err(|error| read_error(&self.file, error))
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let dump = self.head.dump.dump;
        let (mut at, mut sequence) = (HEAD_BYTES as u64, 0);
        let mut table = Table::default();
        loop {
            let mut head = [0; RecordHeader::SIZE];
            let have = self.bytes.read_at(at, &mut head)?;
            let header = acceptable(&head, dump, sequence).filter(|_| have == head.len());
            let Some(header) = header else {
                match self.search(at, sequence)? {
                    Some(next) => at = next,
                    None => break,
                }
                continue;
            };
            let payload_at = at + RecordHeader::SIZE as u64;
            match header.kind {
                RecordKind::Extents => {
                    if let Some(entry) = self.entry(&header, payload_at)?
                        && self.makes_room_for(&entry)?
                    {
                        self.entries.push(entry);
                    }
                }
                RecordKind::Entries => {
                    let mut payload = vec![0; header.payload as usize];
                    self.bytes.read_at(payload_at, &mut payload)?;
                    if Checksum::of(&payload) == header.checksum {
                        // An entry that does not parse is missing, and the table is incomplete
                        // then.
                        let _ = table.take(&payload);
                    }
                }
                RecordKind::Trailer => {
                    let mut payload = vec![0; header.payload as usize];
                    // It exists, whatever its content.
                    self.cut = self.bytes.read_at(payload_at, &mut payload)? < payload.len();
                    let verified = Checksum::of(&payload) == header.checksum;
                    self.whole = verified && self.blocks() == self.head.stream.changed_blocks;
                    break;
                }
                RecordKind::Gone => {}
                RecordKind::Abort => break,
            }
            at = payload_at + u64::from(header.payload);
            sequence = header.sequence + 1;
        }
        self.table = table.whole(&self.head.dump);
        self.cut = self.cut && head_at_end(&self.bytes)?.is_none_or(|head| head != self.head);
        Ok(())
    }

    /// Blocks in all entries.
    fn blocks(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.blocks)).sum()
    }

    /// Whether the next entry follows the previous ones. If it does not, one of them names blocks
    /// that it does not have: its record is damaged, and is read to find out which. A damaged one
    /// before it is removed, so that it affects none of the later ones.
    fn makes_room_for(&mut self, entry: &RecordEntry) -> std::io::Result<bool> {
        while let Some(before) = self.entries.last().copied() {
            if before.last < entry.first {
                break;
            }
            if self.verifies(&before)? {
                return Ok(false);
            }
            self.entries.pop();
        }
        Ok(true)
    }

    /// Whether the whole record matches its head.
    fn verifies(&self, entry: &RecordEntry) -> std::io::Result<bool> {
        let mut payload = vec![0; entry.payload as usize];
        let have = self.bytes.read_at(entry.payload_at, &mut payload)?;
        Ok(have == payload.len() && Checksum::of(&payload) == entry.checksum)
    }

    /// The entry of a record, unless its runs make no sense.
    fn entry(&self, header: &RecordHeader, payload_at: u64) -> std::io::Result<Option<RecordEntry>> {
        let mut runs = vec![0; header.items as usize * StreamRun::SIZE];
        if self.bytes.read_at(payload_at, &mut runs)? < runs.len() {
            return Ok(None);
        }
        let Ok(runs) = StreamRun::parse_all(header, &runs) else { return Ok(None) };
        let (Some((first, _)), Some((last, count)), Ok(())) = (runs.first(), runs.last(), check_order(&runs))
        else {
            return Ok(None);
        };
        let last_block = last.0 + u64::from(*count) - 1;
        if first.0 == 0 || last_block >= self.head.stream.space_blocks {
            return Ok(None);
        }
        Ok(Some(RecordEntry {
            first: first.0,
            last: last_block,
            payload_at,
            payload: header.payload,
            items: header.items as u16,
            blocks: header.blocks as u16,
            encoding: header.encoding,
            checksum: header.checksum,
        }))
    }

    /// The runs of a record.
    pub(crate) fn runs(&self, entry: &RecordEntry) -> std::io::Result<Vec<(Vbn, u32)>> {
        let mut bytes = vec![0; entry.table_bytes()];
        self.bytes.read_at(entry.payload_at, &mut bytes)?;
        StreamRun::parse_all(&entry.header(), &bytes).map_err(std::io::Error::other)
    }

    /// Where the next record begins past `at`.
    fn search(&self, at: u64, sequence: u64) -> std::io::Result<Option<u64>> {
        let mut buffer = vec![0; SEARCH_BYTES];
        let mut start = at;
        loop {
            let have = self.bytes.read_at(start, &mut buffer)?;
            if let Some(found) = find(&buffer[..have], self.head.dump.dump, sequence) {
                return Ok(Some(start + found as u64));
            }
            if have < buffer.len() {
                return Ok(None);
            }
            start += (have - RecordHeader::SIZE) as u64;
        }
    }
}
