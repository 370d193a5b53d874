//! Every struct as a sample: a fixed value, its bytes, and the reader that parses them. The tests
//! below go over all samples.

use cairn_base::{Checksum, FileId, Generation, Lba, LogId, SnapshotId, Timestamp, Vbn, VolumeId, crc32c};

use crate::*;

mod bounds;
mod canonical;
mod document;
mod golden;
mod have;
mod histories;
mod leaves;
mod log_records;
mod names;
mod placement;
mod round_trip;
mod streams;
mod traces;

const VOLUME: VolumeId = VolumeId([0x5a; 16]);
const ADDRESS: u64 = 40;
const NODE_VBN: Vbn = Vbn(0x1234);
const NODE: NodeAddress = NodeAddress { file: FileId(9), level: 2, index: 3 };
const SLOT: usize = 5;

/// Parses bytes and writes the result: the same bytes again, when none of them was ignored.
type Reread = fn(&[u8]) -> Result<Vec<u8>, FormatError>;

struct Sample {
    name: &'static str,
    bytes: Vec<u8>,
    reread: Reread,
    /// Corrects the checksum inside, if it has one.
    seal: Option<fn(&mut [u8])>,
    /// Structs of the document that it is made of, and where each begins.
    parts: Vec<(&'static str, usize)>,
}

fn block(bytes: &[u8]) -> &BlockBytes {
    bytes.try_into().expect("a sample of a block has its size")
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

fn superblock(role: Role) -> Superblock {
    let start = layout::space_start(8192);
    let mut segments =
        vec![Segment { kind: SegmentKind::Space, first: 0, blocks: 4096, device_block: start }];
    if role == Role::Destination {
        let (have, redirect) = (start + 4096, start + 4096 + 32);
        segments.extend([
            Segment { kind: SegmentKind::Have, first: 0, blocks: 32, device_block: have },
            Segment { kind: SegmentKind::Redirect, first: 0, blocks: 8192, device_block: redirect },
            Segment { kind: SegmentKind::Space, first: 4096, blocks: 4096, device_block: redirect + 8192 },
        ]);
    }
    Superblock {
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
        external_log: None,
        log_tail: LogTail { position: 17, sequence: 99 },
        root: root(),
        parent: SnapshotId(6),
        next_snapshot: 8,
        cursor: Cursor { snapshot: SnapshotId(6), received: Timestamp(5) },
        snapshots: TableRef { entries: 7, indexes: vec![label_pointer(3)] },
        redirects: TableRef { entries: 2, indexes: vec![label_pointer(4), label_pointer(5)] },
    }
}

fn external_log() -> ExternalLog {
    ExternalLog { id: LogId([0x6c; 16]), start: layout::LOG_DEVICE_START, blocks: 300 }
}

fn superblock_with_external_log() -> Superblock {
    Superblock {
        external_log: Some(external_log()),
        log_tail: LogTail { position: 299, sequence: 99 },
        ..superblock(Role::Normal)
    }
}

fn log_device() -> LogDeviceHeader {
    LogDeviceHeader { volume: VOLUME, log: external_log(), created: Timestamp(9) }
}

fn log_device_bytes(header: &LogDeviceHeader) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    header.write(&mut bytes, layout::LOG_HEADER_B);
    bytes.to_vec()
}

fn reread_log_device(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    LogDeviceHeader::parse(block(bytes), layout::LOG_HEADER_B).map(|header| log_device_bytes(&header))
}

fn snapshot(id: u64) -> SnapshotEntry {
    SnapshotEntry {
        id: SnapshotId(id),
        parent: SnapshotId(id - 1),
        held: id.is_multiple_of(2),
        name: format!("nightly.{id}"),
        root: root(),
    }
}

fn snapshot_slots() -> [Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK] {
    std::array::from_fn(|slot| (slot % 3 != 1).then(|| snapshot(slot as u64 + 1)))
}

fn runs() -> Vec<RedirectRun> {
    let run = |vbn, slot, count| RedirectRun { vbn: Vbn(vbn), slot, count };
    vec![run(1, 7, 1), run(2, 0, 5), run(4000, 9, 64)]
}

fn inode() -> Inode {
    Inode {
        kind: FileKind::Lun,
        removed: true,
        id: FileId(32 * 4 + SLOT as u64),
        length_bytes: 1 << 20,
        created: Timestamp(123),
        relationship: 0,
        tree: tree(6, 256),
        attributes: Attributes::default(),
    }
}

fn directory_entry() -> DirectoryEntry {
    DirectoryEntry { file: FileId(3), name: "disk-é".to_owned() }
}

fn log_record(entries: usize) -> LogRecord {
    let entries: Vec<LogEntry> = (0..entries as u64)
        .map(|n| match n % 5 {
            4 => LogEntry::Hole { file: FileId(2), lba: Lba(n), count: n },
            _ => {
                LogEntry::Write { file: FileId(3), lba: Lba(n), vbn: Vbn(n + 1), checksum: checksum(n as u8) }
            }
        })
        .collect();
    LogRecord {
        header: LogRecordHeader {
            sequence: 1000,
            generation: Generation(78),
            durable_through: 998,
            entries: entries.len() as u32,
            continues: false,
        },
        entries,
    }
}

/// A file of the tree of names, a block of another one, and extended attributes.
fn log_record_of_inodes() -> LogRecord {
    let node = Inode { tree: TreeRef::empty(3), ..leaves::node() };
    let extended = Inode { kind: FileKind::Extended, attributes: Attributes::default(), ..node };
    let mut record = log_record(1);
    record.entries.insert(0, LogEntry::Inode(node));
    record.entries.push(LogEntry::Inode(extended));
    record.header.entries = LogRecord::slots(&record.entries) as u32;
    record
}

fn superblock_bytes(superblock: &Superblock) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    superblock.write(&mut bytes, layout::SUPERBLOCK_B);
    bytes.to_vec()
}

fn reread_superblock(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    Superblock::parse(block(bytes), layout::SUPERBLOCK_B).map(|superblock| superblock_bytes(&superblock))
}

fn seal_superblock(bytes: &mut [u8]) {
    let at = bytes.len() - 16;
    let sum = Checksum::of(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.0);
}

fn node_bytes(birth: Generation, pointers: &[BlockPointer]) -> Vec<u8> {
    let mut bytes = [0; cairn_base::BLOCK_SIZE];
    let mut node = NodeMut::of(&mut bytes);
    node.set_header(VOLUME, NODE, NODE_VBN, birth);
    pointers.iter().enumerate().for_each(|(slot, pointer)| node.set(slot, *pointer));
    bytes.to_vec()
}

fn reread_node(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let node = Node::parse(block(bytes), VOLUME, NODE, NODE_VBN)?;
    let pointers: Vec<BlockPointer> = (0..FANOUT as usize).map(|slot| node.pointer(slot)).collect();
    Ok(node_bytes(node.birth(), &pointers))
}

fn inode_bytes(inode: Option<&Inode>) -> Vec<u8> {
    let mut bytes = [0; cairn_base::BLOCK_SIZE];
    Inode::put(inode, &mut bytes, SLOT);
    bytes.to_vec()
}

/// Of a block of slots, only one is read: the others must stay out of it.
fn reread_inode(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let inode = Inode::parse(block(bytes), SLOT)?;
    let mut again = *block(bytes);
    Inode::put(None, &mut again, SLOT);
    Inode::put(inode.as_ref(), &mut again, SLOT);
    Ok(again.to_vec())
}

fn directory_bytes(entry: Option<&DirectoryEntry>) -> Vec<u8> {
    let mut bytes = [0; cairn_base::BLOCK_SIZE];
    DirectoryEntry::put(entry, &mut bytes, SLOT);
    bytes.to_vec()
}

fn reread_directory(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let entry = DirectoryEntry::parse(block(bytes), SLOT)?;
    let mut again = *block(bytes);
    DirectoryEntry::put(entry.as_ref(), &mut again, SLOT);
    Ok(again.to_vec())
}

fn snapshot_block_bytes(slots: &[Option<SnapshotEntry>; SNAPSHOTS_PER_BLOCK]) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    SnapshotBlock::write(&mut bytes, VOLUME, ADDRESS, slots);
    bytes.to_vec()
}

fn reread_snapshots(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    SnapshotBlock::parse(block(bytes), VOLUME, ADDRESS).map(|slots| snapshot_block_bytes(&slots))
}

fn redirect_bytes(runs: &[RedirectRun]) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    RedirectBlock::write(&mut bytes, VOLUME, ADDRESS, runs);
    bytes.to_vec()
}

fn reread_redirects(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    RedirectBlock::parse(block(bytes), VOLUME, ADDRESS).map(|runs| redirect_bytes(&runs))
}

fn index_bytes(pointers: &[LabelPointer]) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    IndexBlock::write(&mut bytes, VOLUME, ADDRESS, pointers);
    bytes.to_vec()
}

fn reread_index(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    IndexBlock::parse(block(bytes), VOLUME, ADDRESS).map(|pointers| index_bytes(&pointers))
}

fn reread_log(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    LogRecord::parse(bytes, VOLUME).map(|record| record.to_bytes(VOLUME))
}

fn seal_log(bytes: &mut [u8]) {
    let at = document::field("log::RawHeader", "crc").0;
    bytes[at..at + 4].fill(0);
    let crc = crc32c(bytes).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&crc);
}

/// One of each.
fn samples() -> Vec<Sample> {
    let offset = |name, of| document::field(name, of).0;
    let superblock_parts = |segments: usize| {
        let mut parts = vec![
            ("superblock::RawSuperblock", 0),
            ("root::RawRoot", offset("superblock::RawSuperblock", "root")),
            ("superblock::RawTable", offset("superblock::RawSuperblock", "snapshots")),
            ("superblock::RawTable", offset("superblock::RawSuperblock", "redirects")),
        ];
        let first = offset("superblock::RawSuperblock", "segments");
        let size = document::size("superblock::RawSegment");
        parts.extend((0..segments).map(|n| ("superblock::RawSegment", first + n * size)));
        parts
    };
    let slot = |name| (name, SLOT * document::size(name));
    let entry = ("label::RawSnapshot", 64);
    let entries = |name: &'static str| (0..84).map(move |n| (name, 64 + n * document::size(name)));
    let unsealed = |name, bytes, reread: Reread, parts| Sample { name, bytes, reread, seal: None, parts };
    vec![
        Sample {
            name: "superblock",
            bytes: superblock_bytes(&superblock(Role::Normal)),
            reread: reread_superblock,
            seal: Some(seal_superblock),
            parts: superblock_parts(1),
        },
        Sample {
            name: "superblock of a destination",
            bytes: superblock_bytes(&superblock(Role::Destination)),
            reread: reread_superblock,
            seal: Some(seal_superblock),
            parts: superblock_parts(4),
        },
        Sample {
            name: "superblock with an external log",
            bytes: superblock_bytes(&superblock_with_external_log()),
            reread: reread_superblock,
            seal: Some(seal_superblock),
            parts: superblock_parts(1),
        },
        Sample {
            name: "log device",
            bytes: log_device_bytes(&log_device()),
            reread: reread_log_device,
            seal: Some(seal_superblock),
            parts: vec![("log_device::RawHeader", 0)],
        },
        unsealed(
            "node",
            node_bytes(Generation(5), &[pointer(1), BlockPointer::HOLE, pointer(2)]),
            reread_node,
            vec![("node::RawNode", 0)],
        ),
        unsealed(
            "inode",
            inode_bytes(Some(&inode())),
            reread_inode,
            vec![
                slot("inode::RawInode"),
                ("pointer::RawTreeRef", slot("inode::RawInode").1 + offset("inode::RawInode", "tree")),
            ],
        ),
        unsealed(
            "directory entry",
            directory_bytes(Some(&directory_entry())),
            reread_directory,
            vec![slot("directory::RawEntry")],
        ),
        unsealed(
            "inode of the tree of names",
            inode_bytes(Some(&leaves::node())),
            reread_inode,
            vec![slot("inode::RawInode")],
        ),
        unsealed(
            "top leaf",
            leaves::bytes(&leaves::top(), &leaves::NAMES),
            leaves::reread_top,
            vec![("leaf::RawLeaf", 0), ("leaf::RawName", document::size("leaf::RawLeaf"))],
        ),
        unsealed(
            "leaf",
            leaves::bytes(&leaves::lower(), &leaves::NAMES[2..]),
            leaves::reread_lower,
            vec![("leaf::RawLeaf", 0), ("leaf::RawName", document::size("leaf::RawLeaf"))],
        ),
        unsealed(
            "extended attributes",
            leaves::extended().to_bytes(FileId(9)),
            leaves::reread_extended,
            vec![
                ("extended::RawExtended", 0),
                ("extended::RawValue", document::size("extended::RawExtended")),
            ],
        ),
        unsealed(
            "quota tree",
            leaves::quota_bytes(&leaves::quota()),
            leaves::reread_quota,
            vec![("quota::RawQuota", 0)],
        ),
        unsealed(
            "snapshot table block",
            snapshot_block_bytes(&snapshot_slots()),
            reread_snapshots,
            vec![
                ("label::RawHeader", 0),
                entry,
                ("root::RawRoot", entry.1 + offset("label::RawSnapshot", "root")),
            ],
        ),
        unsealed(
            "redirect map block",
            redirect_bytes(&runs()),
            reread_redirects,
            vec![("label::RawHeader", 0)],
        ),
        unsealed(
            "label index block",
            index_bytes(&[label_pointer(1), label_pointer(2)]),
            reread_index,
            vec![("label::RawHeader", 0)],
        ),
        Sample {
            name: "log record",
            bytes: log_record(84).to_bytes(VOLUME),
            reread: reread_log,
            seal: Some(seal_log),
            parts: [("log::RawHeader", 0)].into_iter().chain(entries("log::RawEntry")).collect(),
        },
        Sample {
            name: "log record with inodes",
            bytes: log_record_of_inodes().to_bytes(VOLUME),
            reread: reread_log,
            seal: Some(seal_log),
            parts: vec![
                ("log::RawHeader", 0),
                ("inode::RawLogInode", 64),
                ("inode::RawLogTimes", 64 + 48),
                ("log::RawEntry", 64 + 2 * 48),
                ("inode::RawLogInode", 64 + 3 * 48),
                ("inode::RawLogTimes", 64 + 4 * 48),
            ],
        },
        Sample {
            name: "history superblock",
            bytes: histories::superblock_bytes(&histories::superblock()),
            reread: histories::reread_superblock,
            seal: Some(seal_superblock),
            parts: vec![("history::RawSuperblock", 0)],
        },
        Sample {
            name: "history superblock with a reduction",
            bytes: histories::superblock_bytes(&histories::reduced_superblock()),
            reread: histories::reread_superblock,
            seal: Some(seal_superblock),
            parts: vec![("history::RawSuperblock", 0)],
        },
        Sample {
            name: "end of a history segment",
            bytes: histories::segment_bytes(&histories::segment()),
            reread: histories::reread_segment,
            seal: Some(seal_superblock),
            parts: vec![("history::RawSegment", 0)],
        },
        Sample {
            name: "history record",
            bytes: histories::record().to_bytes(histories::STORE),
            reread: histories::reread_record,
            seal: Some(histories::seal_record),
            parts: vec![("history::RawRecord", 0), ("history::RawEntry", 64), ("history::RawEntry", 96)],
        },
    ]
}
