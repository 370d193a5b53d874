//! Reading a part from its beginning to its end, past damage.
//!
//! Nothing is handed out that does not verify. Where a record's head is damaged its length is not
//! known: the next record is found by its CRC, into which the id of the dump is mixed, and by its
//! number, which is higher.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use cairn_base::{Checksum, SnapshotId, Vbn};
use cairn_format::dump::{DumpHeader, DumpId};
use cairn_format::stream::{
    Encoding, RECORD_SNAPSHOTS_MAX, RecordHeader, RecordKind, StreamHeader, StreamRun, StreamTrailer,
    chain_digest, table_digest,
};
use cairn_format::{FormatError, SnapshotEntry, Structure};

use super::error::DumpError;
use super::index::{DumpBytes, in_order};
use super::window::{InBlocks, ReadBlocks, Window};
use crate::apply::SNAPSHOTS_MAX;
use crate::consume::{self, Runs, by_run};
use crate::error::AbortReason;

/// Bytes that are searched at once for the next record.
const SEARCH_BYTES: usize = 4 << 20;
/// Bytes of a head: which dump, and how the stream begins.
pub const HEAD_BYTES: usize = DumpHeader::SIZE + StreamHeader::SIZE;

/// How a part begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartHead {
    /// Which dump, and which part.
    pub dump: DumpHeader,
    /// From which snapshot to which; `changed_blocks` are the part's own.
    pub stream: StreamHeader,
}

impl PartHead {
    /// The head in `bytes`.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, FormatError> {
        let field = FormatError::Field { structure: Structure::DumpHeader, field: "size" };
        let (dump, rest) = bytes.split_first_chunk::<{ DumpHeader::SIZE }>().ok_or(field)?;
        let stream = rest.first_chunk::<{ StreamHeader::SIZE }>().ok_or(field)?;
        let head = Self { dump: DumpHeader::parse(dump)?, stream: StreamHeader::parse(stream)? };
        let whole = head.stream.volume == head.dump.volume
            && head.stream.changed_blocks <= head.dump.blocks
            && head.stream.space_blocks > 0;
        if whole {
            Ok(head)
        } else {
            Err(FormatError::Field { structure: Structure::DumpHeader, field: "stream" })
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [&self.dump.to_bytes()[..], &self.stream.to_bytes()].concat()
    }
}

/// An unreadable stretch of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Where in the file.
    pub offset: u64,
    /// Bytes; 0 where records are missing altogether.
    pub length: u64,
    /// The number of its blocks, if the head of the record still has it.
    pub blocks: Option<u32>,
    /// The last block before it; 0 for none.
    pub after: Vbn,
    /// The first block after it; `None` when no further one came.
    pub before: Option<Vbn>,
    /// It held no block of the image: only a copy that the part has elsewhere too, or the proof
    /// that it is whole.
    pub spare: bool,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} byte(s) at {} can't be read", self.length, self.offset)?;
        if self.spare {
            return f.write_str("; nothing of the image is lost with them");
        }
        if let Some(blocks) = self.blocks {
            write!(f, "; {blocks} block(s)")?;
        }
        match self.before {
            Some(before) => write!(f, " between vbn {} and {before}", self.after),
            None => write!(f, " past vbn {}", self.after),
        }
    }
}

/// The snapshot table as far as it was read. Each part has it twice, and each copy may lack other
/// records.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<SnapshotId, SnapshotEntry>,
}

impl Table {
    /// Takes the entries of a verified record.
    pub(crate) fn take(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        for bytes in payload.chunks_exact(SnapshotEntry::SIZE) {
            let empty = FormatError::Field { structure: Structure::StreamRecord, field: "snapshot entry" };
            let entry = SnapshotEntry::parse(bytes)?.ok_or(empty)?;
            if self.entries.len() >= SNAPSHOTS_MAX && !self.entries.contains_key(&entry.id) {
                return Err(FormatError::Field { structure: Structure::StreamRecord, field: "snapshots" });
            }
            self.entries.insert(entry.id, entry);
        }
        Ok(())
    }

    /// The table once it is whole.
    pub(crate) fn whole(&self, head: &DumpHeader) -> Option<Vec<SnapshotEntry>> {
        let whole = self.entries.len() as u64 == head.snapshots
            && table_digest(self.entries.values()) == head.table_digest;
        whole.then(|| self.entries.values().cloned().collect())
    }
}

/// The position up to which a part was read, and the state to continue with: after a record with
/// blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReached {
    /// Where in the file.
    pub offset: u64,
    /// The number of the next record.
    pub sequence: u64,
    /// Of the heads so far.
    pub digest: Checksum,
    /// Some of them were lost.
    pub digest_lost: bool,
    /// Blocks so far.
    pub blocks: u64,
    /// The last one of them.
    pub last: Vbn,
    /// The unreadable stretches so far.
    pub lost: Vec<Lost>,
}

/// Reads one part of a dump.
pub struct PartReader {
    file: String,
    /// The part, if it can be read anywhere.
    pub(super) anywhere: Option<Arc<dyn DumpBytes>>,
    /// Records before this are restored already, and are skipped.
    passing: Option<PartReached>,
    window: Window,
    head: PartHead,
    table: Table,
    digest: Checksum,
    /// Heads of records were lost: the digest of the whole can't be compared.
    digest_lost: bool,
    sequence: u64,
    blocks: u64,
    last: Vbn,
    lost: Vec<Lost>,
    /// The trailer was reached, or its remains.
    ended: bool,
    finished: bool,
}

impl PartReader {
    /// Reads the head, and the snapshot table that follows it. `file` names the part in errors.
    ///
    /// # Errors
    /// [`DumpError::Head`] for anything that is no part of a dump.
    pub fn open(file: &str, input: Box<dyn Read + Send>) -> Result<Self, DumpError> {
        Self::open_blocks(file, Box::new(ReadBlocks::new(input)))
    }

    /// As [`PartReader::open`].
    pub(crate) fn open_blocks(file: &str, input: Box<dyn InBlocks>) -> Result<Self, DumpError> {
        let mut window = Window::new(input);
        window.ensure(HEAD_BYTES).map_err(|source| read_error(file, source))?;
        let parsed = match window.first::<HEAD_BYTES>() {
            Some(bytes) => PartHead::parse(&bytes),
            None => Err(FormatError::Magic(Structure::DumpHeader)),
        };
        let head = parsed.map_err(|source| DumpError::Head { file: file.to_owned(), source })?;
        Self::open_as(file, window, head)
    }

    /// As [`PartReader::open_blocks`] with a head that was found elsewhere: at the end of the file,
    /// when the one at its beginning is damaged.
    pub(crate) fn open_with(file: &str, input: Box<dyn InBlocks>, head: PartHead) -> Result<Self, DumpError> {
        let mut window = Window::new(input);
        window.ensure(HEAD_BYTES).map_err(|source| read_error(file, source))?;
        let mut reader = Self::open_as(file, window, head)?;
        reader.note(0, HEAD_BYTES as u64, None, true);
        Ok(reader)
    }

    fn open_as(file: &str, mut window: Window, head: PartHead) -> Result<Self, DumpError> {
        window.skip(HEAD_BYTES);
        let digest = chain_digest(Checksum::default(), &head.to_bytes());
        let mut reader = Self {
            file: file.to_owned(),
            anywhere: None,
            passing: None,
            window,
            head,
            table: Table::default(),
            digest,
            digest_lost: false,
            sequence: 0,
            blocks: 0,
            last: Vbn(0),
            lost: Vec::new(),
            ended: false,
            finished: false,
        };
        while reader.next_is_table()? {
            reader.record()?;
        }
        Ok(reader)
    }

    /// The name of the part.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// How it begins.
    pub fn head(&self) -> &PartHead {
        &self.head
    }

    /// Every snapshot that the dump brings, once that is known: mostly from the beginning, after
    /// damage at the end.
    pub fn table(&self) -> Option<Vec<SnapshotEntry>> {
        self.table.whole(&self.head.dump)
    }

    /// The unreadable stretches so far.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.window.offset()
    }

    /// Blocks read so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The blocks of the next readable record, by run; `None` at the end. [`PartReader::lost`] has
    /// the unreadable stretches on the way. A skipped record has no runs.
    ///
    /// # Errors
    /// [`DumpError::Cut`] where the part ends without a trailer, [`DumpError::GivenUp`] where its
    /// writer gave up, [`DumpError::Changed`] where it differs from the part that was read before.
    pub fn extents(&mut self) -> Result<Option<Runs>, DumpError> {
        loop {
            self.arrive()?;
            if self.ended {
                break;
            }
            let Some(runs) = self.record()? else { continue };
            if self.passing.is_none() {
                return Ok(Some(runs));
            }
            // A record that is damaged only now was whole when it was restored.
            self.lost.clear();
            return Ok(Some(Vec::new()));
        }
        if !std::mem::replace(&mut self.finished, true) {
            self.finish()?;
        }
        Ok(None)
    }

    /// The position that it has read up to; `None` while it skips restored records.
    pub(crate) fn reached(&self) -> Option<PartReached> {
        self.passing.is_none().then(|| PartReached {
            offset: self.window.offset(),
            sequence: self.sequence,
            digest: self.digest,
            digest_lost: self.digest_lost,
            blocks: self.blocks,
            last: self.last,
            lost: self.lost.clone(),
        })
    }

    /// Continues where it was. A file is read from there. For a pipe, earlier records are read and
    /// verified again, and skipped.
    ///
    /// # Errors
    /// [`DumpError::Read`].
    pub(crate) fn go_on(&mut self, at: PartReached) -> Result<(), DumpError> {
        match &self.anywhere {
            Some(bytes) => {
                let window = Window::at(at.offset, in_order(bytes, at.offset));
                self.window = window.map_err(|source| read_error(&self.file, source))?;
                self.stand(at);
            }
            None => self.passing = Some(at),
        }
        Ok(())
    }

    /// Ends the skipping, at the point where reading continues.
    fn arrive(&mut self) -> Result<(), DumpError> {
        let offset = self.window.offset();
        if self.passing.as_ref().is_none_or(|at| offset < at.offset && !self.ended) {
            return Ok(());
        }
        let same = |at: &PartReached| {
            let digests = self.digest_lost || at.digest_lost || self.digest == at.digest;
            offset == at.offset && self.sequence == at.sequence && digests
        };
        let at = self.passing.take().filter(same);
        self.stand(at.ok_or_else(|| DumpError::Changed { file: self.file.clone() })?);
        Ok(())
    }

    fn stand(&mut self, at: PartReached) {
        let PartReached { offset: _, sequence, digest, digest_lost, blocks, last, lost } = at;
        (self.sequence, self.digest, self.digest_lost) = (sequence, digest, digest_lost);
        (self.blocks, self.last, self.lost) = (blocks, last, lost);
    }

    fn next_is_table(&mut self) -> Result<bool, DumpError> {
        if self.ended || self.fill(RecordHeader::SIZE)? < RecordHeader::SIZE {
            return Ok(false);
        }
        let header = self.header();
        Ok(header.is_some_and(|header| header.kind == RecordKind::Entries))
    }

    fn fill(&mut self, bytes: usize) -> Result<usize, DumpError> {
        let file = &self.file;
        self.window.ensure(bytes).map_err(|source| read_error(file, source))
    }

    fn header(&self) -> Option<RecordHeader> {
        acceptable(&self.window.first()?, self.head.dump.dump, self.sequence)
    }

    /// Takes one record; its blocks if it has some.
    fn record(&mut self) -> Result<Option<Runs>, DumpError> {
        let start = self.window.offset();
        if self.fill(RecordHeader::SIZE)? < RecordHeader::SIZE {
            return Err(self.cut());
        }
        let Some(header) = self.header() else { return self.find_next().map(|()| None) };
        if header.kind == RecordKind::Abort {
            let reason = AbortReason::from_code(header.items);
            return Err(DumpError::GivenUp { file: self.file.clone(), reason });
        }
        if header.sequence != self.sequence {
            // Whole records are missing, and nothing is in their place.
            let spare = self.nothing_lost_before(&header);
            self.note(start, 0, None, spare);
            self.digest_lost = true;
        }
        let length = RecordHeader::SIZE + header.payload as usize;
        if self.fill(length)? < length {
            return Err(self.cut());
        }
        let before = self.digest;
        self.digest = chain_digest(before, &self.window.copy(0, RecordHeader::SIZE));
        let verified = self.window.checksum(RecordHeader::SIZE, header.payload as usize) == header.checksum;
        let outcome = match verified {
            true => self.take(&header, before),
            false => Err(FormatError::Checksum(Structure::StreamRecord)),
        };
        self.window.skip(length);
        self.sequence = header.sequence + 1;
        self.ended = header.kind == RecordKind::Trailer;
        Ok(outcome.unwrap_or_else(|_| {
            let blocks = (header.kind == RecordKind::Extents).then_some(header.blocks);
            // A table exists twice, and without the trailer's sums the records still verify one by
            // one. But a whole trailer that differs from the records means that some are missing.
            let spare = match header.kind {
                RecordKind::Extents => false,
                RecordKind::Trailer => !verified,
                _ => true,
            };
            self.note(start, length as u64, blocks, spare);
            None
        }))
    }

    fn take(&mut self, header: &RecordHeader, before: Checksum) -> Result<Option<Runs>, FormatError> {
        let payload = || self.window.copy(RecordHeader::SIZE, header.payload as usize);
        let unexpected = FormatError::Field { structure: Structure::StreamRecord, field: "kind" };
        match header.kind {
            RecordKind::Extents => {
                let runs = self.unpack(header)?;
                let first = runs.first().map_or(Vbn(0), |(first, _)| *first);
                let last =
                    runs.last().map_or(first, |(first, blocks)| Vbn(first.0 + blocks.len() as u64 - 1));
                if first <= self.last || last.0 >= self.head.stream.space_blocks {
                    return Err(FormatError::Field { structure: Structure::StreamRecord, field: "order" });
                }
                for lost in self.lost.iter_mut().filter(|lost| !lost.spare) {
                    lost.before = lost.before.or(Some(first));
                }
                self.last = last;
                self.blocks += u64::from(header.blocks);
                Ok(Some(runs))
            }
            RecordKind::Entries => {
                let payload = payload();
                self.table.take(&payload).map(|()| None)
            }
            RecordKind::Trailer => {
                let trailer = StreamTrailer::parse(&payload())?;
                self.check_trailer(&trailer, header, before).map(|()| None)
            }
            RecordKind::Gone | RecordKind::Abort => Err(unexpected),
        }
    }

    /// The blocks of the verified record that comes next.
    fn unpack(&self, header: &RecordHeader) -> Result<Runs, FormatError> {
        if header.encoding == Encoding::Zstd {
            return unpack(header, &self.window.copy(RecordHeader::SIZE, header.payload as usize));
        }
        let table = self.window.copy(RecordHeader::SIZE, header.data_at());
        let runs = StreamRun::parse_all(header, &table)?;
        check_order(&runs)?;
        let blocks = self.window.blocks(RecordHeader::SIZE + header.data_at(), header.blocks as usize);
        Ok(by_run(runs, blocks.into_iter()))
    }

    /// Compares the trailer with the records. Losses are known already; this checks that nothing
    /// else is missing.
    fn check_trailer(
        &self,
        trailer: &StreamTrailer,
        header: &RecordHeader,
        before: Checksum,
    ) -> Result<(), FormatError> {
        let damaged = FormatError::Checksum(Structure::StreamRecord);
        let all = trailer.records == header.sequence
            && trailer.blocks == self.head.stream.changed_blocks
            && trailer.table_digest == self.head.dump.table_digest;
        let complete = self.lost.iter().any(|lost| !lost.spare) || trailer.blocks == self.blocks;
        if all && complete && (self.digest_lost || trailer.digest == before) { Ok(()) } else { Err(damaged) }
    }

    /// The head of the next record is damaged or missing: finds a later one.
    fn find_next(&mut self) -> Result<(), DumpError> {
        let start = self.window.offset();
        self.digest_lost = true;
        loop {
            let have = self.fill(SEARCH_BYTES)?;
            let bytes = self.window.copy(0, have);
            if let Some(at) = find(&bytes, self.head.dump.dump, self.sequence) {
                self.window.skip(at);
                if let Some(next) = self.header() {
                    let spare = self.nothing_lost_before(&next);
                    self.note(start, self.window.offset() - start, None, spare);
                    self.sequence = next.sequence;
                }
                return Ok(());
            }
            if have == SEARCH_BYTES {
                self.window.skip(have - HEAD_BYTES);
                continue;
            }
            // No record any more. With the copy of the head at the end it is the trailer that is
            // damaged, and nothing was cut off.
            if !bytes.ends_with(&self.head.to_bytes()) {
                self.window.skip(have);
                return Err(self.cut_at(start));
            }
            self.window.skip(have - HEAD_BYTES);
            let spare = self.blocks == self.head.stream.changed_blocks;
            self.note(start, self.window.offset() - start, None, spare);
            self.ended = true;
            return Ok(());
        }
    }

    /// Whether the records missing before `next` were none, or only the first copy of the table, or
    /// only records after the last blocks.
    fn nothing_lost_before(&self, next: &RecordHeader) -> bool {
        let of_table = self.head.dump.snapshots.div_ceil(RECORD_SNAPSHOTS_MAX as u64);
        let past_blocks = self.blocks == self.head.stream.changed_blocks && next.kind != RecordKind::Extents;
        next.sequence == self.sequence || next.sequence <= of_table || past_blocks
    }

    /// Reads the end after the trailer: the copy of the head, and nothing else. A damaged one
    /// affects no part of the image.
    fn finish(&mut self) -> Result<(), DumpError> {
        let start = self.window.offset();
        let have = self.fill(HEAD_BYTES + 1)?;
        if self.window.copy(0, have) != self.head.to_bytes() {
            self.note(start, have as u64, None, true);
        }
        self.window.skip(have);
        let missing = self.blocks != self.head.stream.changed_blocks;
        if missing && self.lost.iter().all(|lost| lost.spare) {
            self.note(start, 0, None, false);
        }
        Ok(())
    }

    fn note(&mut self, offset: u64, length: u64, blocks: Option<u32>, spare: bool) {
        self.lost.push(Lost { offset, length, blocks, after: self.last, before: None, spare });
    }

    fn cut(&mut self) -> DumpError {
        let start = self.window.offset();
        self.cut_at(start)
    }

    fn cut_at(&mut self, start: u64) -> DumpError {
        let length = self.window.have() as u64;
        let spare = self.blocks == self.head.stream.changed_blocks;
        self.note(start, length.max(self.window.offset() - start), None, spare);
        self.ended = true;
        DumpError::Cut { file: self.file.clone() }
    }
}

/// The blocks of a verified extents record.
pub(crate) fn unpack(header: &RecordHeader, payload: &[u8]) -> Result<Runs, FormatError> {
    let runs = StreamRun::parse_all(header, payload)?;
    check_order(&runs)?;
    let wrong = FormatError::Field { structure: Structure::StreamRecord, field: "data" };
    consume::unpack(header, runs, payload).ok_or(wrong)
}

/// Runs of a dump's record follow each other.
pub(crate) fn check_order(runs: &[(Vbn, u32)]) -> Result<(), FormatError> {
    let ordered = runs.windows(2).all(|pair| pair[0].0.0 + u64::from(pair[0].1) <= pair[1].0.0);
    let wrong = FormatError::Field { structure: Structure::StreamRecord, field: "order" };
    if ordered { Ok(()) } else { Err(wrong) }
}

/// A record's head that can follow record `sequence - 1` in the dump, at once or after some that
/// are lost.
pub(crate) fn acceptable(
    bytes: &[u8; RecordHeader::SIZE],
    dump: DumpId,
    sequence: u64,
) -> Option<RecordHeader> {
    // Most bytes can't begin a head, and this check is cheaper than a CRC.
    if bytes[0] == 0 || bytes[0] > 5 || bytes[1..4] != [0; 3] {
        return None;
    }
    RecordHeader::parse_in(bytes, dump).ok().filter(|header| header.sequence >= sequence)
}

/// Where in `bytes` the next record begins; not at their very beginning.
pub(crate) fn find(bytes: &[u8], dump: DumpId, sequence: u64) -> Option<usize> {
    (1..bytes.len().saturating_sub(RecordHeader::SIZE - 1)).find(|at| {
        let head = bytes.get(*at..).and_then(|rest| rest.first_chunk());
        head.is_some_and(|head| acceptable(head, dump, sequence).is_some())
    })
}

pub(crate) fn read_error(file: &str, source: std::io::Error) -> DumpError {
    DumpError::Read { file: file.to_owned(), source: std::sync::Arc::new(source) }
}
