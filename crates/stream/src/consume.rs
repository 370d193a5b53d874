//! Reading a stream: every record is verified before it is handed out, and the whole at the trailer.

use std::io::Read;

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Vbn};
use cairn_device::{Block, BlockMut};
use cairn_format::stream::{
    Encoding, RecordHeader, RecordKind, StreamHeader, StreamRun, StreamTrailer, chain_digest, parse_ids,
};
use cairn_format::{FormatError, SnapshotEntry, Structure};

use crate::error::{AbortReason, StreamError};

/// A verified record.
#[derive(Debug)]
pub enum Record {
    /// Runs of blocks.
    Extents(Vec<(Vbn, Vec<Block>)>),
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
    unpacked: Vec<u8>,
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
            unpacked: Vec::new(),
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

    /// The next record. After [`Record::Trailer`] there is none.
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

    fn extents(&mut self, header: &RecordHeader) -> Result<Vec<(Vbn, Vec<Block>)>, StreamError> {
        let runs = StreamRun::parse_all(header, &self.payload)?;
        let stored = &self.payload[header.data_at()..];
        let length = header.blocks as usize * BLOCK_SIZE;
        let data = match header.encoding {
            Encoding::Plain | Encoding::Aligned => stored,
            Encoding::Zstd => {
                self.unpacked.resize(length, 0);
                let unpacked = zstd::bulk::decompress_to_buffer(stored, &mut self.unpacked[..]);
                if !matches!(unpacked, Ok(found) if found == length) {
                    return Err(StreamError::Inconsistent("a record does not unpack to its blocks"));
                }
                &self.unpacked[..]
            }
        };
        let mut pieces = data.chunks_exact(BLOCK_SIZE).map(|bytes| {
            let mut block = BlockMut::dirty();
            block.copy_from_slice(bytes);
            block.freeze()
        });
        Ok(runs
            .into_iter()
            .map(|(first, count)| (first, pieces.by_ref().take(count as usize).collect()))
            .collect())
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
