//! Reading a stream: every record is verified before it is handed out, and the whole at the
//! trailer.

use std::io::Read;

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Vbn};
use cairn_device::{Block, BlockMut};
use cairn_format::stream::{
    Encoding, RecordHeader, RecordKind, StreamHeader, StreamRun, StreamTrailer, chain_digest, parse_ids,
};
use cairn_format::{FormatError, SnapshotEntry, Structure};

use crate::error::{AbortReason, StreamError};

/// Blocks of a verified record, by run.
pub type Runs = Vec<(Vbn, Vec<Block>)>;

/// A verified record.
#[derive(Debug)]
pub enum Record {
    /// Runs of blocks.
    Extents(Runs),
    /// Snapshots that are new or changed.
    Entries(Vec<SnapshotEntry>),
    /// Snapshots that exist no longer.
    Gone(Vec<SnapshotId>),
    /// The end. All records before it were those that the writer wrote.
    Trailer(StreamTrailer),
}

/// Reads a stream.
pub struct Consumer<'a> {
    input: &'a mut dyn Read,
    header: StreamHeader,
    digest: Checksum,
    sequence: u64,
    blocks: u64,
    bytes: u64,
    payload: Vec<u8>,
}

impl<'a> Consumer<'a> {
    /// Reads and verifies the header.
    pub fn open(input: &'a mut dyn Read) -> Result<Self, StreamError> {
        let mut bytes = [0; StreamHeader::SIZE];
        input.read_exact(&mut bytes)?;
        let header = StreamHeader::parse(&bytes)?;
        Ok(Self {
            input,
            header,
            digest: chain_digest(Checksum::default(), &bytes),
            sequence: 0,
            blocks: 0,
            bytes: bytes.len() as u64,
            payload: Vec::new(),
        })
    }

    /// How the stream begins.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks read so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next record. Do not call it after [`Record::Trailer`].
    pub fn record(&mut self) -> Result<Record, StreamError> {
        let mut bytes = [0; RecordHeader::SIZE];
        self.input.read_exact(&mut bytes)?;
        let header = RecordHeader::parse(&bytes)?;
        if header.kind == RecordKind::Abort {
            return Err(StreamError::Aborted(AbortReason::from_code(header.items)));
        }
        if header.sequence != self.sequence {
            return Err(StreamError::OutOfOrder { expected: self.sequence, found: header.sequence });
        }
        self.payload.resize(header.payload as usize, 0);
        self.input.read_exact(&mut self.payload)?;
        if Checksum::of(&self.payload) != header.checksum {
            return Err(FormatError::Checksum(Structure::StreamRecord).into());
        }
        let before = self.digest;
        self.digest = chain_digest(before, &bytes);
        self.sequence += 1;
        self.blocks += u64::from(header.blocks);
        self.bytes += (bytes.len() + self.payload.len()) as u64;
        if self.blocks > self.header.changed_blocks {
            return Err(StreamError::Inconsistent("it carries more blocks than it says"));
        }
        match header.kind {
            RecordKind::Extents => self.extents(&header).map(Record::Extents),
            RecordKind::Entries => self.entries().map(Record::Entries),
            RecordKind::Gone => Ok(Record::Gone(parse_ids(&self.payload).collect())),
            RecordKind::Trailer => {
                let trailer = StreamTrailer::parse(&self.payload)?;
                let whole = trailer.records + 1 == self.sequence
                    && trailer.blocks == self.blocks
                    && trailer.blocks == self.header.changed_blocks
                    && trailer.digest == before;
                if whole { Ok(Record::Trailer(trailer)) } else { Err(StreamError::Digest) }
            }
            RecordKind::Abort => Err(StreamError::Aborted(AbortReason::Other)),
        }
    }

    fn extents(&self, header: &RecordHeader) -> Result<Runs, StreamError> {
        let runs = StreamRun::parse_all(header, &self.payload)?;
        unpack(header, runs, &self.payload)
            .ok_or(StreamError::Inconsistent("a record does not unpack to its blocks"))
    }

    fn entries(&self) -> Result<Vec<SnapshotEntry>, StreamError> {
        self.payload
            .chunks_exact(SnapshotEntry::SIZE)
            .map(|bytes| {
                SnapshotEntry::parse(bytes)?.ok_or(StreamError::Inconsistent("a snapshot entry is empty"))
            })
            .collect()
    }
}

/// The blocks of a verified extents record, whose runs these are; none when it does not unpack to
/// them.
pub(crate) fn unpack(header: &RecordHeader, runs: Vec<(Vbn, u32)>, payload: &[u8]) -> Option<Runs> {
    let stored = payload.get(header.data_at()..)?;
    let length = header.blocks as usize * BLOCK_SIZE;
    let unpacked;
    let data = match header.encoding {
        Encoding::Plain | Encoding::Aligned => stored,
        Encoding::Zstd => {
            unpacked = zstd::bulk::decompress(stored, length).ok()?;
            &unpacked[..]
        }
    };
    if data.len() != length {
        return None;
    }
    // Next to each other in memory, as they go to neighbouring places.
    let mut blocks = Vec::new();
    BlockMut::append_run(&mut blocks, length / BLOCK_SIZE);
    let copies = blocks.into_iter().zip(data.chunks_exact(BLOCK_SIZE)).map(|(mut block, bytes)| {
        block.copy_from_slice(bytes);
        block.freeze()
    });
    Some(by_run(runs, copies))
}

/// Adjacent blocks, by run.
pub(crate) fn by_run(runs: Vec<(Vbn, u32)>, mut blocks: impl Iterator<Item = Block>) -> Runs {
    let own = |(first, count): (Vbn, u32)| (first, blocks.by_ref().take(count as usize).collect());
    runs.into_iter().map(own).collect()
}
