//! Blocks of the label space: the snapshot table, the redirect map and the index over each.
//!
//! They belong to one copy of a volume alone. They are never overwritten while a superblock names
//! them; a table is a list of blocks, named with their checksums by index blocks, which the
//! superblock names.

use cairn_base::{Checksum, SnapshotId, Vbn, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::SPACE_BLOCKS_MAX;
use crate::root::RawRoot;
use crate::{BlockBytes, FormatError, Root, Structure, layout};

/// Snapshots in a block of the snapshot table.
pub const SNAPSHOTS_PER_BLOCK: usize = 12;
/// Longest name of a snapshot, in bytes of UTF-8.
pub const MAX_SNAPSHOT_NAME: usize = 128;
/// Runs in a block of the redirect map.
pub const RUNS_PER_BLOCK: usize = 168;
/// Pointers in an index block.
pub const POINTERS_PER_INDEX: usize = 168;

const MAGIC: u32 = u32::from_le_bytes(*b"CLAB");
const PAYLOAD: usize = cairn_base::BLOCK_SIZE - 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: u8,
    reserved: u8,
    volume: [u8; 16],
    address: U64,
    count: U32,
    reserved_end: [u8; 28],
}

const _: () = assert!(size_of::<RawHeader>() == 64);

fn kind_code(structure: Structure) -> u8 {
    match structure {
        Structure::SnapshotTable => 1,
        Structure::RedirectMap => 2,
        _ => 3,
    }
}

fn write_header(bytes: &mut BlockBytes, structure: Structure, volume: VolumeId, address: u64, count: usize) {
    let header = RawHeader {
        magic: MAGIC.into(),
        version: (layout::VERSION as u16).into(),
        kind: kind_code(structure),
        reserved: 0,
        volume: volume.0,
        address: address.into(),
        count: (count as u32).into(),
        reserved_end: [0; 28],
    };
    bytes[..64].copy_from_slice(header.as_bytes());
}

/// The payload of a label block and the count in its header, after the header was checked.
fn check_header(
    bytes: &BlockBytes,
    structure: Structure,
    volume: VolumeId,
    address: u64,
    count_max: usize,
) -> Result<(usize, &[u8]), FormatError> {
    let (head, payload) = bytes.split_at(64);
    let header = RawHeader::ref_from_bytes(head).map_err(|_| FormatError::Magic(structure))?;
    if header.magic.get() != MAGIC || header.kind != kind_code(structure) {
        return Err(FormatError::Magic(structure));
    }
    layout::check_version(structure, header.version.get().into())?;
    if header.volume != volume.0 || header.address.get() != address {
        return Err(FormatError::Misplaced(structure));
    }
    if header.reserved != 0 || header.reserved_end != [0; 28] {
        return Err(FormatError::Field { structure, field: "reserved byte" });
    }
    let count = header.count.get() as usize;
    if count > count_max {
        return Err(FormatError::Field { structure, field: "count" });
    }
    Ok((count, payload))
}

/// The `count` entries of 24 bytes at the start of `payload`; the bytes after them must be zero.
fn entries(
    structure: Structure,
    count: usize,
    payload: &[u8],
) -> Result<impl Iterator<Item = &[u8]>, FormatError> {
    let refused = FormatError::Field { structure, field: "unused entry" };
    let (used, unused) = payload.split_at_checked(count * 24).ok_or(refused)?;
    if unused.iter().any(|byte| *byte != 0) {
        return Err(refused);
    }
    Ok(used.chunks_exact(24))
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawLabelPointer {
    address: U64,
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawLabelPointer>() == 24 && POINTERS_PER_INDEX * 24 == PAYLOAD);

/// A block of the label space and its checksum. Address 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LabelPointer {
    /// Blocks from the start of the device.
    pub address: u64,
    /// XXH3-128 of the block.
    pub checksum: Checksum,
}

impl From<RawLabelPointer> for LabelPointer {
    fn from(raw: RawLabelPointer) -> Self {
        Self { address: raw.address.get(), checksum: raw.checksum }
    }
}

impl From<LabelPointer> for RawLabelPointer {
    fn from(pointer: LabelPointer) -> Self {
        Self { address: pointer.address.into(), checksum: pointer.checksum }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSnapshot {
    id: U64,
    parent: U64,
    flags: U32,
    name_length: U16,
    reserved: U16,
    name: [u8; MAX_SNAPSHOT_NAME],
    root: RawRoot,
    reserved_end: [u8; 24],
}

const _: () = assert!(size_of::<RawSnapshot>() == 336 && SNAPSHOTS_PER_BLOCK * 336 == PAYLOAD);

const FLAG_HELD: u32 = 1;

/// A snapshot as the table keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Its number.
    pub id: SnapshotId,
    /// The snapshot that it descends from; 0 for none.
    pub parent: SnapshotId,
    /// It may not be deleted.
    pub held: bool,
    /// Its name, unique in the volume, 1 to 128 bytes.
    pub name: String,
    /// Everything in it.
    pub root: Root,
}

impl SnapshotEntry {
    /// Bytes of an entry in the table and on the wire.
    pub const SIZE: usize = size_of::<RawSnapshot>();

    /// The entry as bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut name = [0; MAX_SNAPSHOT_NAME];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let raw = RawSnapshot {
            id: self.id.0.into(),
            parent: self.parent.0.into(),
            flags: if self.held { FLAG_HELD } else { 0 }.into(),
            name_length: (self.name.len() as u16).into(),
            reserved: 0.into(),
            name,
            root: self.root.into(),
            reserved_end: [0; 24],
        };
        let mut bytes = [0; Self::SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The entry in `bytes`; `None` for an empty slot.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let structure = Structure::SnapshotTable;
        let field = |field| FormatError::Field { structure, field };
        let raw = RawSnapshot::ref_from_bytes(bytes).map_err(|_| field("size"))?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let length = usize::from(raw.name_length.get());
        let (name, rest) = raw.name.split_at_checked(length).ok_or(field("name length"))?;
        let name = std::str::from_utf8(name).map_err(|_| field("name"))?;
        if raw.id.get() >= layout::COUNTER_MAX {
            return Err(field("id"));
        }
        if raw.id.get() == 0 || name.is_empty() || rest.iter().any(|byte| *byte != 0) {
            return Err(field("name"));
        }
        if raw.flags.get() & !FLAG_HELD != 0 || raw.reserved.get() != 0 || raw.reserved_end != [0; 24] {
            return Err(field("reserved byte"));
        }
        Ok(Some(Self {
            id: SnapshotId(raw.id.get()),
            parent: SnapshotId(raw.parent.get()),
            held: raw.flags.get() & FLAG_HELD != 0,
            name: name.to_owned(),
            root: Root::parse(raw.root).ok_or(field("root"))?,
        }))
    }
}

/// A block of the snapshot table: 12 slots.
pub struct SnapshotBlock;

impl SnapshotBlock {
    /// Writes the slots into the block at `address`.
    pub fn write(
        bytes: &mut BlockBytes,
        volume: VolumeId,
        address: u64,
        slots: &[Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK],
    ) {
        bytes.fill(0);
        write_header(bytes, Structure::SnapshotTable, volume, address, slots.iter().flatten().count());
        for (place, entry) in bytes[64..].chunks_exact_mut(SnapshotEntry::SIZE).zip(slots) {
            if let Some(entry) = entry {
                place.copy_from_slice(&entry.to_bytes());
            }
        }
    }

    /// The slots of the block that was read from `address`.
    pub fn parse(
        bytes: &BlockBytes,
        volume: VolumeId,
        address: u64,
    ) -> Result<[Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK], FormatError> {
        let structure = Structure::SnapshotTable;
        let (count, payload) = check_header(bytes, structure, volume, address, SNAPSHOTS_PER_BLOCK)?;
        let mut slots = [const { None }; SNAPSHOTS_PER_BLOCK];
        for (slot, bytes) in slots.iter_mut().zip(payload.chunks_exact(SnapshotEntry::SIZE)) {
            *slot = SnapshotEntry::parse(bytes)?;
        }
        if slots.iter().flatten().count() != count {
            return Err(FormatError::Field { structure, field: "count" });
        }
        Ok(slots)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRedirect {
    vbn: U64,
    slot: U64,
    count: U64,
}

const _: () = assert!(size_of::<RawRedirect>() == 24 && RUNS_PER_BLOCK * 24 == PAYLOAD);

/// Blocks whose content is not at home: `count` blocks from `vbn` are in the redirect area from
/// `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedirectRun {
    /// First vbn.
    pub vbn: Vbn,
    /// First block of the redirect area, from 0.
    pub slot: u64,
    /// Blocks.
    pub count: u64,
}

/// A block of the redirect map: up to 168 runs.
pub struct RedirectBlock;

impl RedirectBlock {
    /// Writes at most 168 runs into the block at `address`.
    pub fn write(bytes: &mut BlockBytes, volume: VolumeId, address: u64, runs: &[RedirectRun]) {
        assert!(runs.len() <= RUNS_PER_BLOCK, "a redirect block holds {RUNS_PER_BLOCK} runs");
        bytes.fill(0);
        write_header(bytes, Structure::RedirectMap, volume, address, runs.len());
        for (place, run) in bytes[64..].chunks_exact_mut(24).zip(runs) {
            let raw = RawRedirect { vbn: run.vbn.0.into(), slot: run.slot.into(), count: run.count.into() };
            place.copy_from_slice(raw.as_bytes());
        }
    }

    /// The runs of the block that was read from `address`.
    pub fn parse(
        bytes: &BlockBytes,
        volume: VolumeId,
        address: u64,
    ) -> Result<Vec<RedirectRun>, FormatError> {
        let structure = Structure::RedirectMap;
        let (count, payload) = check_header(bytes, structure, volume, address, RUNS_PER_BLOCK)?;
        let mut end = 1;
        entries(structure, count, payload)?
            .map(|bytes| {
                let refused = FormatError::Field { structure, field: "run" };
                let raw = RawRedirect::ref_from_bytes(bytes).map_err(|_| refused)?;
                let run =
                    RedirectRun { vbn: Vbn(raw.vbn.get()), slot: raw.slot.get(), count: raw.count.get() };
                // In order and apart from each other, and short enough to be counted through.
                let limit = |first: u64| first.checked_add(run.count).filter(|end| *end <= SPACE_BLOCKS_MAX);
                if run.count == 0 || run.vbn.0 < end || limit(run.slot).is_none() {
                    return Err(refused);
                }
                end = limit(run.vbn.0).ok_or(refused)?;
                Ok(run)
            })
            .collect()
    }
}

/// A block of an index: up to 168 pointers to table blocks.
pub struct IndexBlock;

impl IndexBlock {
    /// Writes at most 168 pointers into the block at `address`.
    pub fn write(bytes: &mut BlockBytes, volume: VolumeId, address: u64, pointers: &[LabelPointer]) {
        assert!(pointers.len() <= POINTERS_PER_INDEX, "an index block holds {POINTERS_PER_INDEX} pointers");
        bytes.fill(0);
        write_header(bytes, Structure::LabelIndex, volume, address, pointers.len());
        for (place, pointer) in bytes[64..].chunks_exact_mut(24).zip(pointers) {
            place.copy_from_slice(RawLabelPointer::from(*pointer).as_bytes());
        }
    }

    /// The pointers of the block that was read from `address`.
    pub fn parse(
        bytes: &BlockBytes,
        volume: VolumeId,
        address: u64,
    ) -> Result<Vec<LabelPointer>, FormatError> {
        let structure = Structure::LabelIndex;
        let (count, payload) = check_header(bytes, structure, volume, address, POINTERS_PER_INDEX)?;
        entries(structure, count, payload)?
            .map(|bytes| {
                RawLabelPointer::read_from_bytes(bytes)
                    .map(LabelPointer::from)
                    .map_err(|_| FormatError::Field { structure, field: "pointer" })
            })
            .collect()
    }
}
