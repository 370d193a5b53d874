//! Any value that may be written comes back as itself, and its bytes as themselves.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;
use crate::layout::{COUNTER_MAX, SPACE_BLOCKS_MAX};

fn any_checksum() -> impl Strategy<Value = Checksum> {
    any::<[u8; 16]>().prop_map(Checksum)
}

fn any_pointer() -> impl Strategy<Value = BlockPointer> {
    let placed = (1u64.., any::<u64>(), any_checksum()).prop_map(|(vbn, birth, checksum)| BlockPointer {
        vbn: Vbn(vbn),
        birth: Generation(birth),
        checksum,
    });
    prop_oneof![1 => Just(BlockPointer::HOLE), 4 => placed]
}

fn any_tree() -> impl Strategy<Value = TreeRef> {
    (any_pointer(), 0u64..1 << 50, 0u8..=8).prop_map(|(pointer, length, height)| TreeRef {
        pointer,
        height: height.max(TreeRef::height_for(length)),
        length,
    })
}

fn any_root() -> impl Strategy<Value = Root> {
    (any::<[u64; 6]>(), any_tree(), any_tree()).prop_map(|(n, inode_file, active_map)| Root {
        generation: Generation(n[0] % COUNTER_MAX),
        created: Timestamp(n[1]),
        blocks: n[2] % SPACE_BLOCKS_MAX,
        used: n[3] % SPACE_BLOCKS_MAX,
        next_file: n[4] % COUNTER_MAX,
        changed: Timestamp(n[5]),
        inode_file,
        active_map,
    })
}

fn any_snapshot() -> impl Strategy<Value = SnapshotEntry> {
    (1u64..COUNTER_MAX, any::<u64>(), any::<bool>(), "[a-zé.:-]{1,64}", any_root()).prop_map(
        |(id, parent, held, name, root)| SnapshotEntry {
            id: SnapshotId(id),
            parent: SnapshotId(parent),
            held,
            name,
            root,
        },
    )
}

fn any_label_pointers(max: usize) -> impl Strategy<Value = Vec<LabelPointer>> {
    let pointer =
        (any::<u64>(), any_checksum()).prop_map(|(address, checksum)| LabelPointer { address, checksum });
    vec(pointer, 0..=max)
}

/// Gaps and lengths, so that runs are in order and apart.
fn any_runs() -> impl Strategy<Value = Vec<RedirectRun>> {
    vec((0u64..1 << 20, 1u64..1 << 20, 0u64..1 << 30), 0..=RUNS_PER_BLOCK).prop_map(|parts| {
        let mut end = 1;
        let run = |(gap, count, slot)| {
            let run = RedirectRun { vbn: Vbn(end + gap), slot, count };
            end = run.vbn.0 + count;
            run
        };
        parts.into_iter().map(run).collect()
    })
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let kind = prop_oneof![Just(SegmentKind::Space), Just(SegmentKind::Redirect), Just(SegmentKind::Have)];
    (256u64..=8192, 256u64..=16384, vec((kind, 0u64..9, 1u64..1 << 30), 0..SEGMENTS_MAX)).prop_map(
        |(label_blocks, log_blocks, parts)| {
            let log_start = layout::LABEL_START + label_blocks;
            let mut end = log_start + log_blocks;
            let mut counted = [0; 4];
            let first = (SegmentKind::Space, 0, layout::SPACE_BLOCKS_MIN);
            let segments = std::iter::once(first).chain(parts).map(|(kind, gap, blocks)| {
                let first = counted[kind as usize];
                counted[kind as usize] += blocks;
                let segment = Segment { kind, first, blocks, device_block: end + gap };
                end += gap + blocks;
                segment
            });
            let segments = segments.collect();
            Layout { label_start: layout::LABEL_START, label_blocks, log_start, log_blocks, segments }
        },
    )
}

fn any_external_log() -> impl Strategy<Value = ExternalLog> {
    (any::<[u8; 15]>(), layout::LOG_BLOCKS_MIN..=layout::LOG_BLOCKS_MAX).prop_map(|(id, blocks)| {
        let mut log = [1; 16];
        log[..15].copy_from_slice(&id);
        ExternalLog { id: LogId(log), start: layout::LOG_DEVICE_START, blocks }
    })
}

fn any_superblock() -> impl Strategy<Value = Superblock> {
    let tables = (any_label_pointers(32), any_label_pointers(32), any::<[u64; 2]>());
    let log = of(any_external_log());
    (any::<[u8; 16]>(), any::<bool>(), any::<[u64; 7]>(), any_layout(), log, any_root(), tables).prop_map(
        |(volume, destination, n, layout, external_log, root, (snapshots, redirects, entries))| Superblock {
            volume: VolumeId(volume),
            role: if destination { Role::Destination } else { Role::Normal },
            sequence: n[0] % COUNTER_MAX,
            log_tail: LogTail {
                position: n[1] % external_log.map_or(layout.log_blocks, |log| log.blocks),
                sequence: n[2] % COUNTER_MAX,
            },
            layout,
            external_log,
            root,
            parent: SnapshotId(n[3]),
            next_snapshot: n[4] % COUNTER_MAX,
            cursor: Cursor { snapshot: SnapshotId(n[5]), received: Timestamp(n[6]) },
            snapshots: TableRef { entries: entries[0], indexes: snapshots },
            redirects: TableRef { entries: entries[1], indexes: redirects },
        },
    )
}

fn any_inode() -> impl Strategy<Value = Inode> {
    let kind = prop_oneof![
        Just(FileKind::Directory),
        Just(FileKind::Lun),
        Just(FileKind::SinceAccumulating),
        Just(FileKind::SinceInFlight),
        Just(FileKind::Node),
        Just(FileKind::Extended),
    ];
    let all = (kind, any::<bool>(), any::<[u64; 4]>(), any_tree(), any_attributes());
    all.prop_map(|(kind, removed, n, tree, attributes)| Inode {
        kind,
        removed,
        id: FileId(n[0]),
        length_bytes: n[1],
        created: Timestamp(n[2]),
        relationship: if kind == FileKind::Node { 0 } else { n[3] },
        tree,
        attributes: if kind == FileKind::Node { attributes } else { Attributes::default() },
    })
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    let kind = prop_oneof![Just(1u32), Just(2), Just(4), Just(6), Just(8), Just(10), Just(12)];
    (kind, 0u32..1 << 12, any::<[u32; 4]>(), any::<[i64; 3]>(), 0..COUNTER_MAX).prop_map(
        |(kind, permissions, n, times, extended)| Attributes {
            mode: kind << 12 | permissions,
            links: n[0],
            uid: n[1],
            gid: n[2],
            device: if matches!(kind, 2 | 6) { n[3] } else { 0 },
            blocks: if matches!(kind, 2 | 6) { 0 } else { n[3] },
            quota: n[0] as u16,
            accessed_ns: times[0],
            modified_ns: times[1],
            changed_ns: times[2],
            extended: FileId(extended),
        },
    )
}

fn any_log_record() -> impl Strategy<Value = LogRecord> {
    let write = (any::<[u64; 2]>(), 1u64.., any_checksum()).prop_map(|(n, vbn, checksum)| LogEntry::Write {
        file: FileId(n[0] % COUNTER_MAX),
        lba: Lba(n[1] % COUNTER_MAX),
        vbn: Vbn(vbn),
        checksum,
    });
    let hole = (0..COUNTER_MAX, 0u64..COUNTER_MAX / 2, 0u64..COUNTER_MAX / 2)
        .prop_map(|(file, lba, count)| LogEntry::Hole { file: FileId(file), lba: Lba(lba), count });
    let inode = any_inode().prop_map(|inode| {
        let kind = if inode.kind == FileKind::Node { FileKind::Node } else { FileKind::Extended };
        let length = inode.length_bytes.div_ceil(cairn_base::BLOCK_SIZE as u64).max(1);
        let (tree, id) = (TreeRef::empty(length), FileId(inode.id.0 % COUNTER_MAX));
        LogEntry::Inode(Inode { kind, id, tree, relationship: 0, ..inode })
    });
    let entries = vec(prop_oneof![write, hole, inode], 0..200);
    (any::<[u64; 3]>(), any::<bool>(), entries).prop_map(|(n, continues, entries)| LogRecord {
        header: LogRecordHeader {
            sequence: n[0],
            generation: Generation(n[1]),
            durable_through: n[2],
            entries: LogRecord::slots(&entries) as u32,
            continues,
        },
        entries,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn superblocks_come_back(superblock in any_superblock()) {
        let bytes = superblock_bytes(&superblock);
        prop_assert_eq!(Superblock::parse(block(&bytes), layout::SUPERBLOCK_B), Ok(superblock));
        prop_assert_eq!(reread_superblock(&bytes), Ok(bytes));
    }

    #[test]
    fn headers_of_log_devices_come_back(
        (volume, log, created) in (any::<[u8; 16]>(), any_external_log(), any::<u64>()),
    ) {
        let header = LogDeviceHeader { volume: VolumeId(volume), log, created: Timestamp(created) };
        let bytes = log_device_bytes(&header);
        prop_assert_eq!(LogDeviceHeader::parse(block(&bytes), layout::LOG_HEADER_B), Ok(header));
    }

    #[test]
    fn nodes_come_back(birth in any::<u64>(), pointers in vec(any_pointer(), FANOUT as usize)) {
        let bytes = node_bytes(Generation(birth), &pointers);
        let node = Node::parse(block(&bytes), VOLUME, NODE, NODE_VBN).expect("it was just written");
        let read: Vec<BlockPointer> = (0..FANOUT as usize).map(|slot| node.pointer(slot)).collect();
        prop_assert_eq!((node.birth(), read), (Generation(birth), pointers));
        prop_assert_eq!(node.pointer(FANOUT as usize), BlockPointer::HOLE);
        prop_assert_eq!(reread_node(&bytes), Ok(bytes));
    }

    #[test]
    fn inodes_come_back_from_every_slot(inode in any_inode(), slot in 0..INODES_PER_BLOCK as usize) {
        let mut bytes = [0; cairn_base::BLOCK_SIZE];
        Inode::put(Some(&inode), &mut bytes, slot);
        for other in 0..INODES_PER_BLOCK as usize {
            prop_assert_eq!(Inode::parse(&bytes, other), Ok((other == slot).then_some(inode)));
        }
        let (number, within) = Inode::place(inode.id);
        prop_assert_eq!(u128::from(number) * 32 + within as u128, u128::from(inode.id.0));
    }

    #[test]
    fn directory_entries_come_back(file in 1u64.., name in "[ -~é]{1,56}", slot in 0..ENTRIES_PER_BLOCK) {
        let entry = DirectoryEntry { file: FileId(file), name };
        let mut bytes = [0; cairn_base::BLOCK_SIZE];
        DirectoryEntry::put(Some(&entry), &mut bytes, slot);
        prop_assert_eq!(DirectoryEntry::parse(&bytes, slot), Ok(Some(entry)));
        DirectoryEntry::put(None, &mut bytes, slot);
        prop_assert_eq!(bytes, [0; cairn_base::BLOCK_SIZE]);
    }

    #[test]
    fn snapshot_blocks_come_back(slots in vec(of(any_snapshot()), SNAPSHOTS_PER_BLOCK)) {
        let slots: [_; SNAPSHOTS_PER_BLOCK] = slots.try_into().expect("as many as slots");
        let bytes = snapshot_block_bytes(&slots);
        prop_assert_eq!(SnapshotBlock::parse(block(&bytes), VOLUME, ADDRESS), Ok(slots));
    }

    #[test]
    fn redirect_blocks_come_back(runs in any_runs()) {
        let bytes = redirect_bytes(&runs);
        prop_assert_eq!(RedirectBlock::parse(block(&bytes), VOLUME, ADDRESS), Ok(runs));
    }

    #[test]
    fn index_blocks_come_back(pointers in any_label_pointers(POINTERS_PER_INDEX)) {
        let bytes = index_bytes(&pointers);
        prop_assert_eq!(IndexBlock::parse(block(&bytes), VOLUME, ADDRESS), Ok(pointers));
    }

    #[test]
    fn log_records_come_back(record in any_log_record()) {
        let bytes = record.to_bytes(VOLUME);
        prop_assert_eq!(LogRecord::parse(&bytes, VOLUME), Ok(record));
    }
}

/// A counter is refused before adding one to it could overflow.
#[test]
fn counters_at_their_end_are_refused() {
    let spoiled: [fn(&mut Superblock); 6] = [
        |superblock| superblock.sequence = COUNTER_MAX,
        |superblock| superblock.log_tail.sequence = COUNTER_MAX,
        |superblock| superblock.next_snapshot = COUNTER_MAX,
        |superblock| superblock.root.generation = Generation(COUNTER_MAX),
        |superblock| superblock.root.next_file = COUNTER_MAX,
        |superblock| superblock.root.blocks = SPACE_BLOCKS_MAX + 1,
    ];
    for spoil in spoiled {
        let mut sample = superblock(Role::Normal);
        spoil(&mut sample);
        let bytes = superblock_bytes(&sample);
        assert!(matches!(reread_superblock(&bytes), Err(FormatError::Field { .. })));
    }
    let entry = SnapshotEntry { id: SnapshotId(COUNTER_MAX), ..snapshot(4) };
    assert!(SnapshotEntry::parse(&entry.to_bytes()).is_err());
    let mut record = log_record(1);
    record.entries = vec![LogEntry::Hole { file: FileId(COUNTER_MAX), lba: Lba(0), count: 1 }];
    assert!(LogRecord::parse(&record.to_bytes(VOLUME), VOLUME).is_err());
}
