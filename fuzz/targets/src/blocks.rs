//! Blocks of the device, each alone: whatever is accepted is written again as the same bytes.

use cairn_base::{
    BLOCK_SIZE, Checksum, FileId, Generation, Lba, LogId, SnapshotId, Timestamp, Vbn, VolumeId, crc32c,
};
use cairn_format::{
    Attributes, BlockBytes, BlockPointer, Cursor, DirectoryEntry, ENTRIES_PER_BLOCK, ExternalLog, FANOUT,
    FileKind, FormatError, INODES_PER_BLOCK, IndexBlock, Inode, LabelPointer, Layout, LogDeviceHeader,
    LogEntry, LogRecord, LogRecordHeader, LogTail, Node, NodeAddress, NodeMut, RedirectBlock, RedirectRun,
    Role, Root, SNAPSHOTS_PER_BLOCK, Segment, SegmentKind, SnapshotBlock, SnapshotEntry, Superblock,
    TableRef, TreeRef, layout,
};

pub(crate) const VOLUME: VolumeId = VolumeId([0x5a; 16]);
const ADDRESS: u64 = 40;
const NODE_VBN: Vbn = Vbn(0x1234);
const NODE: NodeAddress = NodeAddress { file: FileId(9), level: 2, index: 3 };

/// The input as a block: cut, or filled up with zeroes.
pub(crate) fn block(data: &[u8]) -> BlockBytes {
    let mut block = [0; BLOCK_SIZE];
    let length = data.len().min(BLOCK_SIZE);
    block[..length].copy_from_slice(&data[..length]);
    block
}

/// Fails when `reread` ignored a part of its accepted input.
#[track_caller]
pub(crate) fn canonical(bytes: &[u8], reread: Result<Vec<u8>, FormatError>) {
    if let Ok(again) = reread {
        assert!(again == bytes, "bytes were accepted that are written in another way");
    }
}

pub(crate) fn superblock(data: &[u8]) {
    let mut bytes = block(data);
    for sealed in [false, true] {
        if sealed {
            seal_superblock(&mut bytes);
        }
        for address in [layout::SUPERBLOCK_A, layout::SUPERBLOCK_B] {
            let reread = Superblock::parse(&bytes, address).map(|superblock| {
                let mut again = [0; BLOCK_SIZE];
                superblock.write(&mut again, address);
                again.to_vec()
            });
            canonical(&bytes, reread);
        }
    }
}

/// Makes the checksum at the end of a superblock (or of the header of a log device) that of the
/// bytes before it.
pub(crate) fn seal_superblock(bytes: &mut BlockBytes) {
    let (body, checksum) = bytes.split_at_mut(BLOCK_SIZE - size_of::<Checksum>());
    checksum.copy_from_slice(&Checksum::of(body).0);
}

pub(crate) fn log_device(data: &[u8]) {
    let mut bytes = block(data);
    for sealed in [false, true] {
        if sealed {
            seal_superblock(&mut bytes);
        }
        for address in [layout::LOG_HEADER_A, layout::LOG_HEADER_B] {
            let reread = LogDeviceHeader::parse(&bytes, address).map(|header| {
                let mut again = [0; BLOCK_SIZE];
                header.write(&mut again, address);
                again.to_vec()
            });
            canonical(&bytes, reread);
        }
    }
}

pub(crate) fn log_device_seeds() -> Vec<Vec<u8>> {
    let log = ExternalLog { id: LogId([9; 16]), start: layout::LOG_DEVICE_START, blocks: 300 };
    let header = LogDeviceHeader { volume: VOLUME, log, created: Timestamp(123) };
    let written = |address| {
        let mut bytes = [0; BLOCK_SIZE];
        header.write(&mut bytes, address);
        bytes.to_vec()
    };
    vec![written(layout::LOG_HEADER_A), written(layout::LOG_HEADER_B)]
}

pub(crate) fn node(data: &[u8]) {
    let bytes = block(data);
    let reread = Node::parse(&bytes, VOLUME, NODE, NODE_VBN).map(|node| {
        let mut again = [0; BLOCK_SIZE];
        let mut copy = NodeMut::of(&mut again);
        copy.set_header(VOLUME, NODE, NODE_VBN, node.birth());
        (0..FANOUT as usize).for_each(|slot| copy.set(slot, node.pointer(slot)));
        again.to_vec()
    });
    canonical(&bytes, reread);
}

pub(crate) fn inode(data: &[u8]) {
    let bytes = block(data);
    for slot in 0..=INODES_PER_BLOCK as usize {
        let reread = Inode::parse(&bytes, slot).map(|inode| {
            let mut again = bytes;
            Inode::put(inode.as_ref(), &mut again, slot);
            again.to_vec()
        });
        canonical(&bytes, reread);
    }
}

pub(crate) fn directory(data: &[u8]) {
    let bytes = block(data);
    for slot in 0..=ENTRIES_PER_BLOCK {
        let reread = DirectoryEntry::parse(&bytes, slot).map(|entry| {
            let mut again = bytes;
            DirectoryEntry::put(entry.as_ref(), &mut again, slot);
            again.to_vec()
        });
        canonical(&bytes, reread);
    }
}

pub(crate) fn snapshot_table(data: &[u8]) {
    let bytes = block(data);
    let reread = SnapshotBlock::parse(&bytes, VOLUME, ADDRESS).map(|slots| snapshot_block(&slots));
    canonical(&bytes, reread);
}

pub(crate) fn redirect_map(data: &[u8]) {
    let bytes = block(data);
    canonical(&bytes, RedirectBlock::parse(&bytes, VOLUME, ADDRESS).map(|runs| redirect_block(&runs)));
}

pub(crate) fn label_index(data: &[u8]) {
    let bytes = block(data);
    canonical(&bytes, IndexBlock::parse(&bytes, VOLUME, ADDRESS).map(|pointers| index_block(&pointers)));
}

/// Raw bytes, and bytes whose checksum was made right; of any length.
pub(crate) fn log_record(data: &[u8]) {
    log_bytes(data);
    let mut sealed = data.to_vec();
    sealed.resize(data.len().next_multiple_of(BLOCK_SIZE), 0);
    if seal_log_record(&mut sealed, VOLUME) {
        log_bytes(&sealed);
    }
}

fn log_bytes(bytes: &[u8]) {
    // Whatever size is announced: no memory of that size is read or kept before the bytes are
    // there.
    let _ = LogRecordHeader::peek(bytes, VOLUME);
    if let Ok(record) = LogRecord::parse(bytes, VOLUME) {
        let again = record.to_bytes(VOLUME);
        assert!(bytes.starts_with(&again), "a record was accepted that is written in another way");
    }
}

/// Makes the checksum in the record at the start of `bytes` right; false when there is no record
/// that fits.
///
/// The place of the checksum is found by writing a record and looking which bytes differ, so that
/// only the format itself defines it.
pub(crate) fn seal_log_record(bytes: &mut [u8], volume: VolumeId) -> bool {
    let Ok((_, blocks)) = LogRecordHeader::peek(bytes, volume) else { return false };
    let Some(length) = usize::try_from(blocks).ok().and_then(|blocks| blocks.checked_mul(BLOCK_SIZE)) else {
        return false;
    };
    let Some(record) = bytes.get_mut(..length) else { return false };
    let place = log_crc_place();
    record[place..place + 4].fill(0);
    let crc = crc32c(record);
    record[place..place + 4].copy_from_slice(&crc.to_le_bytes());
    true
}

/// The place of the CRC in a record: the four bytes whose zeroing gives the sum that they hold.
fn log_crc_place() -> usize {
    static PLACE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *PLACE.get_or_init(|| {
        let bytes = log(1).to_bytes(VOLUME);
        let is_place = |place: &usize| {
            let mut without = bytes.clone();
            without[*place..place + 4].fill(0);
            crc32c(&without).to_le_bytes() == bytes[*place..place + 4]
        };
        (0..64).find(is_place).expect("a log record carries its CRC in its header")
    })
}

fn checksum(seed: u8) -> Checksum {
    Checksum(std::array::from_fn(|index| seed.wrapping_mul(31).wrapping_add(index as u8 + 1)))
}

fn pointer(seed: u8) -> BlockPointer {
    BlockPointer {
        vbn: Vbn(0x100 + u64::from(seed)),
        birth: Generation(u64::from(seed) + 1),
        checksum: checksum(seed),
    }
}

fn tree(seed: u8, length: u64) -> TreeRef {
    TreeRef { pointer: pointer(seed), height: TreeRef::height_for(length), length }
}

fn root() -> Root {
    Root {
        generation: Generation(77),
        created: Timestamp(1_700_000_000_000_000_001),
        blocks: 8192,
        used: 4321,
        next_file: 12,
        changed: Timestamp(1_700_000_000_000_000_000),
        inode_file: tree(1, 200),
        active_map: tree(2, 1),
    }
}

fn label_pointer(seed: u8) -> LabelPointer {
    LabelPointer { address: 33 + u64::from(seed), checksum: checksum(seed) }
}

pub(crate) fn superblock_seeds() -> Vec<Vec<u8>> {
    let start = layout::space_start(8192);
    let space = Segment { kind: SegmentKind::Space, first: 0, blocks: 8192, device_block: start };
    let have = Segment { kind: SegmentKind::Have, first: 0, blocks: 32, device_block: start + 8192 };
    let redirect =
        Segment { kind: SegmentKind::Redirect, first: 0, blocks: 8192, device_block: start + 8192 + 32 };
    let areas = [(Role::Normal, vec![space]), (Role::Destination, vec![space, have, redirect])];
    let external = ExternalLog { id: LogId([9; 16]), start: layout::LOG_DEVICE_START, blocks: 300 };
    let superblock = |role, segments| Superblock {
        volume: VOLUME,
        role,
        sequence: 42,
        layout: Layout {
            label_start: layout::LABEL_START,
            label_blocks: 256,
            log_start: layout::LABEL_START + 256,
            log_blocks: 256,
            segments,
        },
        external_log: (role == Role::Normal).then_some(external),
        log_tail: LogTail { position: 17, sequence: 99 },
        root: root(),
        parent: SnapshotId(6),
        next_snapshot: 8,
        cursor: Cursor { snapshot: SnapshotId(6), received: Timestamp(5) },
        snapshots: TableRef { entries: 7, indexes: vec![label_pointer(3)] },
        redirects: TableRef { entries: 2, indexes: vec![label_pointer(4), label_pointer(5)] },
    };
    areas
        .into_iter()
        .zip([layout::SUPERBLOCK_A, layout::SUPERBLOCK_B])
        .map(|((role, segments), address)| {
            let mut bytes = [0; BLOCK_SIZE];
            superblock(role, segments).write(&mut bytes, address);
            bytes.to_vec()
        })
        .collect()
}

pub(crate) fn node_seeds() -> Vec<Vec<u8>> {
    let mut bytes = [0; BLOCK_SIZE];
    let mut node = NodeMut::of(&mut bytes);
    node.set_header(VOLUME, NODE, NODE_VBN, Generation(5));
    node.set(0, pointer(1));
    node.set(FANOUT as usize - 1, pointer(2));
    vec![bytes.to_vec()]
}

pub(crate) fn inode_seeds() -> Vec<Vec<u8>> {
    let mut bytes = [0; BLOCK_SIZE];
    let kinds = [FileKind::Directory, FileKind::Lun, FileKind::SinceAccumulating, FileKind::SinceInFlight];
    for (slot, kind) in kinds.into_iter().enumerate() {
        let inode = Inode {
            kind,
            removed: slot == 1,
            id: FileId(slot as u64 + 1),
            length_bytes: 1 << 20,
            created: Timestamp(123),
            relationship: u64::from(kind.is_since_map()) * 7,
            tree: tree(6, 256),
            attributes: Default::default(),
        };
        Inode::put(Some(&inode), &mut bytes, slot + 1);
    }
    let attributes = Attributes { mode: 0o100_644, links: 1, changed_ns: -5, ..Attributes::default() };
    let (kind, id, tree) = (FileKind::Node, FileId(9), tree(6, 256));
    let inode = Inode {
        kind,
        removed: false,
        id,
        length_bytes: 9,
        created: Timestamp(123),
        relationship: 0,
        tree,
        attributes,
    };
    Inode::put(Some(&inode), &mut bytes, 9);
    vec![bytes.to_vec()]
}

pub(crate) fn directory_seeds() -> Vec<Vec<u8>> {
    let mut bytes = [0; BLOCK_SIZE];
    for (slot, name) in ["disk-é", "db", &"n".repeat(cairn_format::MAX_FILE_NAME)].into_iter().enumerate() {
        let entry = DirectoryEntry { file: FileId(3 + slot as u64), name: name.to_owned() };
        DirectoryEntry::put(Some(&entry), &mut bytes, 2 * slot);
    }
    vec![bytes.to_vec()]
}

fn snapshot_block(slots: &[Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK]) -> Vec<u8> {
    let mut bytes = [0; BLOCK_SIZE];
    SnapshotBlock::write(&mut bytes, VOLUME, ADDRESS, slots);
    bytes.to_vec()
}

/// A snapshot that looks like a real one.
pub(crate) fn snapshot(id: u64) -> SnapshotEntry {
    SnapshotEntry {
        id: SnapshotId(id),
        parent: SnapshotId(id - 1),
        held: id.is_multiple_of(2),
        name: format!("nightly.{id}"),
        root: root(),
    }
}

pub(crate) fn snapshot_table_seeds() -> Vec<Vec<u8>> {
    vec![snapshot_block(&std::array::from_fn(|slot| (slot % 3 != 1).then(|| snapshot(slot as u64 + 1))))]
}

fn redirect_block(runs: &[RedirectRun]) -> Vec<u8> {
    let mut bytes = [0; BLOCK_SIZE];
    RedirectBlock::write(&mut bytes, VOLUME, ADDRESS, runs);
    bytes.to_vec()
}

pub(crate) fn redirect_map_seeds() -> Vec<Vec<u8>> {
    let run = |vbn, slot, count| RedirectRun { vbn: Vbn(vbn), slot, count };
    vec![redirect_block(&[run(1, 7, 1), run(2, 0, 5), run(4000, 9, 64)])]
}

fn index_block(pointers: &[LabelPointer]) -> Vec<u8> {
    let mut bytes = [0; BLOCK_SIZE];
    IndexBlock::write(&mut bytes, VOLUME, ADDRESS, pointers);
    bytes.to_vec()
}

pub(crate) fn label_index_seeds() -> Vec<Vec<u8>> {
    vec![index_block(&[label_pointer(1), label_pointer(2)])]
}

fn log(entries: u64) -> LogRecord {
    let entry = |n: u64| match n % 5 {
        4 => LogEntry::Hole { file: FileId(2), lba: Lba(n), count: n },
        _ => LogEntry::Write { file: FileId(3), lba: Lba(n), vbn: Vbn(n + 1), checksum: checksum(n as u8) },
    };
    let entries: Vec<LogEntry> = (0..entries).map(entry).collect();
    let header = LogRecordHeader {
        sequence: 1000,
        generation: Generation(78),
        durable_through: 998,
        entries: entries.len() as u32,
        continues: false,
    };
    LogRecord { header, entries }
}

pub(crate) fn log_record_seeds() -> Vec<Vec<u8>> {
    [0, 5, 84, 100].into_iter().map(|entries| log(entries).to_bytes(VOLUME)).collect()
}
