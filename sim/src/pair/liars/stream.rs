//! Streams that a liar writes: any blocks, snapshots and numbers, sealed so that only their content
//! reveals the lie; or with a flaw.

use cairn_base::{BLOCK_SIZE, Checksum, Rng, SnapshotId, Vbn};
use cairn_device::Block;
use cairn_format::SnapshotEntry;
use cairn_format::stream::{
    Encoding, RecordHeader, RecordKind, StreamHeader, StreamRun, StreamTrailer, chain_digest, table_digest,
};

/// A fault of the stream itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It ends early.
    EndsEarly,
    /// It is aborted.
    Aborts,
    /// A record comes twice, each time as itself.
    Repeats,
    /// A record is left out, and the trailer knows nothing of it.
    Skips,
    /// Two records change places.
    Swaps,
    /// The trailer counts other blocks.
    Miscounts,
}

impl Flaw {
    const ALL: [Flaw; 6] =
        [Flaw::EndsEarly, Flaw::Aborts, Flaw::Repeats, Flaw::Skips, Flaw::Swaps, Flaw::Miscounts];

    /// One of them.
    pub fn any(rng: &mut Rng) -> Self {
        Self::ALL[rng.below(Self::ALL.len() as u64) as usize]
    }
}

/// A stream before it is written.
#[derive(Clone)]
pub struct Draft {
    pub header: StreamHeader,
    /// In the order in which they come.
    pub blocks: Vec<(u64, Block)>,
    pub put: Vec<SnapshotEntry>,
    pub gone: Vec<SnapshotId>,
    /// The snapshots that the reader must have in the end.
    pub table: Vec<SnapshotEntry>,
    pub flaw: Flaw,
    /// Blocks in a record.
    pub record_blocks: usize,
    /// Lists of snapshots come before the blocks.
    pub lists_first: bool,
}

impl Draft {
    /// The stream.
    pub fn sealed(&self, rng: &mut Rng) -> Vec<u8> {
        let header = StreamHeader { changed_blocks: self.blocks.len() as u64, ..self.header.clone() };
        let head = header.to_bytes();
        let mut records: Vec<(RecordKind, usize, usize, Vec<u8>)> = Vec::new();
        for blocks in self.blocks.chunks(self.record_blocks.max(1)) {
            let mut payload = Vec::with_capacity(blocks.len() * (BLOCK_SIZE + StreamRun::SIZE));
            for (number, _) in blocks {
                payload.extend_from_slice(StreamRun::new(Vbn(*number), 1).bytes());
            }
            blocks.iter().for_each(|(_, block)| payload.extend_from_slice(&block[..]));
            records.push((RecordKind::Extents, blocks.len(), blocks.len(), payload));
        }
        let gone: Vec<u8> = self.gone.iter().flat_map(|id| id.0.to_le_bytes()).collect();
        let put: Vec<u8> = self.put.iter().flat_map(SnapshotEntry::to_bytes).collect();
        let at = if self.lists_first { 0 } else { records.len() };
        records.insert(at, (RecordKind::Entries, self.put.len(), 0, put));
        if !self.gone.is_empty() {
            records.insert(at, (RecordKind::Gone, self.gone.len(), 0, gone));
        }
        self.spoil(&mut records, rng);
        let (mut bytes, mut digest) = (head.to_vec(), chain_digest(Checksum::default(), &head));
        let (mut sequence, mut blocks) = (0, 0);
        let mut add = |bytes: &mut Vec<u8>, (kind, items, count, payload): (_, usize, usize, Vec<u8>)| {
            let header = RecordHeader {
                kind,
                encoding: Encoding::Plain,
                sequence,
                items: items as u32,
                blocks: count as u32,
                payload: payload.len() as u32,
                checksum: Checksum::of(&payload),
            };
            let head = header.to_bytes();
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&payload);
            sequence += 1;
            head
        };
        let records_in_all = records.len() as u64;
        for record in records {
            blocks += record.2 as u64;
            let head = add(&mut bytes, record);
            digest = chain_digest(digest, &head);
        }
        let blocks = blocks + u64::from(self.flaw == Flaw::Miscounts);
        let trailer = StreamTrailer {
            records: records_in_all,
            blocks,
            digest,
            table_digest: table_digest(self.table.iter()),
        };
        add(&mut bytes, (RecordKind::Trailer, 0, 0, trailer.to_bytes().to_vec()));
        match self.flaw {
            Flaw::EndsEarly => {
                let length = rng.below(bytes.len() as u64) as usize;
                bytes.truncate(length);
            }
            Flaw::Aborts => {
                // Between two records, so that the earlier ones count.
                let kept = rng.below(records_in_all + 1);
                bytes.truncate(end_of_record(&bytes, kept));
                bytes.extend_from_slice(&abort());
            }
            _ => {}
        }
        bytes
    }

    fn spoil(&self, records: &mut Vec<(RecordKind, usize, usize, Vec<u8>)>, rng: &mut Rng) {
        let at = rng.below(records.len() as u64) as usize;
        match self.flaw {
            Flaw::Repeats => records.insert(at, records[at].clone()),
            Flaw::Skips => drop(records.remove(at)),
            Flaw::Swaps => {
                let other = rng.below(records.len() as u64) as usize;
                records.swap(at, other);
            }
            _ => {}
        }
    }
}

/// Where the first `count` records end.
fn end_of_record(bytes: &[u8], count: u64) -> usize {
    let mut at = StreamHeader::SIZE;
    for _ in 0..count {
        let head = bytes.get(at..at + RecordHeader::SIZE).and_then(|head| head.first_chunk());
        let Some(head) = head.and_then(|head| RecordHeader::parse(head).ok()) else { break };
        at += RecordHeader::SIZE + head.payload as usize;
    }
    at.min(bytes.len())
}

fn abort() -> [u8; RecordHeader::SIZE] {
    RecordHeader {
        kind: RecordKind::Abort,
        encoding: Encoding::Plain,
        sequence: u64::MAX,
        items: 1,
        blocks: 0,
        payload: 0,
        checksum: Checksum::of(&[]),
    }
    .to_bytes()
}
