//! A dump with those made against it as a device: the volume, read-only, without restoring it.
//!
//! The block space is in the dumps: a block is where the newest of them has it. The label area is
//! in memory, made by [`Volume::adopt`] from the newest dump's snapshot table, so that the volume
//! on this device is opened as on any other.
//!
//! A block that no dump has, or whose record is damaged, reads as zeroes here. That is safe because
//! nothing above believes a block that does not have the checksum in the block above it; and its
//! neighbours in the same read are served.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Clock, Vbn};
use cairn_device::{
    Action, Block, BlockMut, Device, DeviceError, Geometry, MemoryDevice, Operation, Request, Segments,
};
use cairn_format::stream::Encoding;
use cairn_volume::{FormatOptions, OpenOptions, ReceivedImage, Role, Volume};
use parking_lot::Mutex;

use super::chain::arrange;
use super::error::DumpError;
use super::index::{PartIndex, RecordEntry};
use super::read::unpack;
use crate::apply::check_table;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Unpacked records that are kept: 16 MiB. Reading a LUN in order asks for each several times.
const RECORDS_KEPT: usize = 16;
/// Tables of runs that are kept of records with gaps, at most 3 KiB each.
const TABLES_KEPT: usize = 1024;

/// Which record of which part.
pub(super) type Place = (usize, usize);
/// The runs of a record: first block, and how many.
type RunTable = Arc<[(Vbn, u32)]>;

/// The newest first; few, so a list is as good as anything.
pub(super) struct Kept<T> {
    items: Mutex<Vec<(Place, T)>>,
    most: usize,
}

impl<T: Clone> Kept<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { items: Mutex::new(Vec::new()), most }
    }

    pub(super) fn get(&self, place: Place) -> Option<T> {
        let mut items = self.items.lock();
        let at = items.iter().rposition(|(own, _)| *own == place)?;
        let item = items.remove(at);
        let value = item.1.clone();
        items.push(item);
        Some(value)
    }

    pub(super) fn put(&self, place: Place, value: T) {
        let mut items = self.items.lock();
        if items.len() == self.most {
            items.remove(0);
        }
        items.push((place, value));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.lock().len()
    }
}

/// Dumps as a device with a volume on it.
pub struct DumpDevice {
    label: MemoryDevice,
    /// Of all dumps, those of the newest first.
    parts: Vec<PartIndex>,
    /// Bytes before the block space.
    space_at: u64,
    space_blocks: u64,
    length: u64,
    unpacked: Kept<Arc<[Block]>>,
    tables: Kept<RunTable>,
}

/// A volume in dumps, open.
pub struct OpenDump {
    /// The volume; a destination that receives nothing, and so takes no writes.
    pub volume: Arc<Volume>,
    /// Its name when it was dumped.
    pub name: String,
}

impl OpenDump {
    /// Opens the volume in `parts`: a full dump, and any increments of it, in any order. With
    /// `without_base` an incremental dump opens alone; blocks that only its base has can't be read
    /// then.
    ///
    /// # Errors
    /// Those of [`arrange`]; [`DumpError::Cut`] for truncated parts, unless those are accepted
    /// (`damaged`).
    pub fn open(
        parts: Vec<PartIndex>,
        without_base: bool,
        damaged: bool,
        clock: Arc<dyn Clock>,
        cache_bytes: u64,
    ) -> Result<Self, DumpError> {
        if let Some(cut) = parts.iter().find(|part| part.is_cut() && !damaged) {
            return Err(DumpError::Cut { file: cut.file().to_owned() });
        }
        let dumps = arrange(parts, without_base)?;
        let newest =
            dumps.last().ok_or(DumpError::MissingPart { dump: Default::default(), part: 1, parts: 1 })?;
        let lost =
            || DumpError::TableLost { file: newest.first().map(|p| p.file().to_owned()).unwrap_or_default() };
        let head = newest.first().ok_or_else(lost)?.head().clone();
        let snapshots = newest.iter().find_map(PartIndex::table).ok_or_else(lost)?.to_vec();
        check_table(&head.stream, &snapshots)?;
        let blocks = dumps.iter().flatten().map(|part| part.head().stream.space_blocks).max().unwrap_or(0);
        let device = Arc::new(DumpDevice::new(dumps, blocks));
        let options = FormatOptions { id: head.dump.volume, blocks, role: Role::Destination };
        let image = ReceivedImage { target: head.stream.target, snapshots };
        Volume::adopt(&*device, &options, &image, head.dump.created)?;
        let volume = Volume::open(device, OpenOptions { cache_bytes, clock })?;
        Ok(Self { volume, name: head.dump.name })
    }
}

impl DumpDevice {
    /// A device of `space_blocks` blocks of block space, in dumps that build on each other, the
    /// oldest first. There is no volume on it yet.
    pub(super) fn new(dumps: Vec<Vec<PartIndex>>, space_blocks: u64) -> Self {
        let space_at = Volume::space_offset(space_blocks);
        Self {
            label: MemoryDevice::new(space_at),
            parts: dumps.into_iter().rev().flatten().collect(),
            space_at,
            space_blocks,
            length: Volume::device_bytes(space_blocks, Role::Destination),
            unpacked: Kept::new(RECORDS_KEPT),
            tables: Kept::new(TABLES_KEPT),
        }
    }

    /// The record that has `vbn`, and how many blocks of it come before.
    fn find(&self, vbn: u64) -> Result<Option<(Place, usize)>, DeviceError> {
        for (number, part) in self.parts.iter().enumerate() {
            let behind = part.entries.partition_point(|entry| entry.first <= vbn);
            let Some(at) = behind.checked_sub(1) else { continue };
            let entry = &part.entries[at];
            if vbn > entry.last {
                continue;
            }
            if entry.is_dense() {
                return Ok(Some(((number, at), (vbn - entry.first) as usize)));
            }
            let mut before = 0;
            for (first, count) in self.runs(part, (number, at))?.iter() {
                if vbn >= first.0 && vbn - first.0 < u64::from(*count) {
                    return Ok(Some(((number, at), before + (vbn - first.0) as usize)));
                }
                before += *count as usize;
            }
        }
        Ok(None)
    }

    fn runs(&self, part: &PartIndex, place: Place) -> Result<RunTable, DeviceError> {
        if let Some(runs) = self.tables.get(place) {
            return Ok(runs);
        }
        let entry = &part.entries[place.1];
        let runs: RunTable = part.runs(entry).map_err(|source| io_error(entry, source))?.into();
        self.tables.put(place, runs.clone());
        Ok(runs)
    }

    /// Blocks `from..from + count` of a record.
    fn blocks(&self, place: Place, from: usize, count: usize) -> Result<Vec<Block>, DeviceError> {
        let part = &self.parts[place.0];
        let entry = &part.entries[place.1];
        match entry.encoding {
            Encoding::Plain | Encoding::Aligned => {
                let mut bytes = vec![0; count * BLOCK_SIZE];
                let at = entry.payload_at + (entry.data_at() + from * BLOCK_SIZE) as u64;
                // Bytes past the end of the file stay zero.
                part.bytes.read_at(at, &mut bytes).map_err(|source| io_error(entry, source))?;
                Ok(bytes.chunks_exact(BLOCK_SIZE).map(copy_of).collect())
            }
            Encoding::Zstd => {
                let all = match self.unpacked.get(place) {
                    Some(all) => all,
                    None => {
                        let all: Arc<[Block]> = unpack_entry(part, entry)?.into();
                        self.unpacked.put(place, all.clone());
                        all
                    }
                };
                Ok((from..from + count).map(|n| all.get(n).cloned().unwrap_or_else(Block::zero)).collect())
            }
        }
    }

    fn read_space(&self, offset: u64, length: u64) -> Result<Segments, DeviceError> {
        let first = (offset - self.space_at) / BLOCK;
        let mut data = Segments::default();
        let mut vbn = first;
        let end = first + length / BLOCK;
        while vbn < end {
            let found = if vbn < self.space_blocks { self.find(vbn)? } else { None };
            let Some((place, from)) = found else {
                data.push_block(Block::zero());
                vbn += 1;
                continue;
            };
            let mut count = 1;
            while vbn + count < end && self.find(vbn + count)? == Some((place, from + count as usize)) {
                count += 1;
            }
            self.blocks(place, from, count as usize)?.into_iter().for_each(|block| data.push_block(block));
            vbn += count;
        }
        Ok(data)
    }

    fn serve(&self, request: &Request) -> Result<Segments, DeviceError> {
        self.geometry().admit(request)?;
        match request {
            Request::Read { offset, length } => {
                let length = u64::from(*length);
                let label = self.space_at.saturating_sub(*offset).min(length);
                let mut data = Segments::default();
                if label > 0 {
                    data.append(self.label.read(*offset, label as u32)?);
                }
                if label < length {
                    data.append(self.read_space(*offset + label, length - label)?);
                }
                Ok(data)
            }
            Request::Write { offset, data, .. } if offset + data.len() as u64 <= self.space_at => {
                self.label.write(*offset, data.clone())?;
                Ok(Segments::default())
            }
            Request::WriteZeroes { offset, length, .. } if offset + length <= self.space_at => {
                self.label.one(Operation::new(request.clone()))?;
                Ok(Segments::default())
            }
            Request::Flush | Request::Prefetch { .. } => Ok(Segments::default()),
            Request::Write { .. } | Request::WriteZeroes { .. } | Request::Trim { .. } => {
                Err(DeviceError::ReadOnly)
            }
        }
    }
}

impl Device for DumpDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            length: self.length,
            alignment: BLOCK_SIZE as u32,
            read_only: false,
            trims: false,
            fast_zeroes: false,
        }
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let outcome = self.serve(operation.request());
            operation.finish(outcome);
        }
    }
}

fn copy_of(bytes: &[u8]) -> Block {
    let mut block = BlockMut::dirty();
    block.copy_from_slice(bytes);
    block.freeze()
}

/// The blocks of a packed record; none when it is damaged.
fn unpack_entry(part: &PartIndex, entry: &RecordEntry) -> Result<Vec<Block>, DeviceError> {
    let mut payload = vec![0; entry.payload as usize];
    let have =
        part.bytes.read_at(entry.payload_at, &mut payload).map_err(|source| io_error(entry, source))?;
    match unpack(&entry.header(), &payload) {
        Ok(runs) if have == payload.len() => Ok(runs.into_iter().flat_map(|(_, blocks)| blocks).collect()),
        _ => {
            tracing::warn!(file = part.file(), at = entry.payload_at, "a packed record is damaged");
            Ok(Vec::new())
        }
    }
}

fn io_error(entry: &RecordEntry, source: std::io::Error) -> DeviceError {
    DeviceError::Io {
        action: Action::Read,
        offset: entry.payload_at,
        length: entry.payload.into(),
        source: Arc::new(source),
    }
}
