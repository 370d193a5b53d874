//! Blocks that are whole but in the wrong place, and values that a whole block never has.

use super::*;

const OTHER: VolumeId = VolumeId([0x5b; 16]);

#[test]
fn node_of_another_volume_file_level_index_or_place_is_refused() {
    let bytes = node_bytes(Generation(5), &[pointer(1)]);
    let parse =
        |volume, address, vbn| Node::parse(block(&bytes), volume, address, vbn).map(|node| node.birth());
    assert_eq!(parse(VOLUME, NODE, NODE_VBN), Ok(Generation(5)));
    let misplaced = Err(FormatError::Misplaced(Structure::Node));
    assert_eq!(parse(OTHER, NODE, NODE_VBN), misplaced);
    assert_eq!(parse(VOLUME, NODE, Vbn(NODE_VBN.0 + 1)), misplaced);
    assert_eq!(parse(VOLUME, NodeAddress { file: FileId(10), ..NODE }, NODE_VBN), misplaced);
    assert_eq!(parse(VOLUME, NodeAddress { level: 1, ..NODE }, NODE_VBN), misplaced);
    assert_eq!(parse(VOLUME, NodeAddress { index: 4, ..NODE }, NODE_VBN), misplaced);
}

#[test]
fn superblock_of_the_other_slot_is_refused() {
    let bytes = superblock_bytes(&superblock(Role::Normal));
    let parse = |address| Superblock::parse(block(&bytes), address).map(|superblock| superblock.sequence);
    assert_eq!(parse(layout::SUPERBLOCK_B), Ok(42));
    assert_eq!(parse(layout::SUPERBLOCK_A), Err(FormatError::Misplaced(Structure::Superblock)));
}

#[test]
fn label_block_of_another_volume_or_place_or_kind_is_refused() {
    let bytes = index_bytes(&[label_pointer(1)]);
    let parse = |volume, address| IndexBlock::parse(block(&bytes), volume, address).map(|all| all.len());
    assert_eq!(parse(VOLUME, ADDRESS), Ok(1));
    let misplaced = Err(FormatError::Misplaced(Structure::LabelIndex));
    assert_eq!(parse(OTHER, ADDRESS), misplaced);
    assert_eq!(parse(VOLUME, ADDRESS + 1), misplaced);
    let kinds: [(Reread, Vec<u8>); 3] = [
        (reread_snapshots, snapshot_block_bytes(&snapshot_slots())),
        (reread_redirects, redirect_bytes(&runs())),
        (reread_index, bytes.clone()),
    ];
    for (reader, (reread, _)) in kinds.iter().enumerate() {
        for (writer, (_, bytes)) in kinds.iter().enumerate() {
            let outcome = reread(bytes);
            assert_eq!(outcome.is_ok(), reader == writer, "{reader} {writer}: {outcome:?}");
        }
    }
}

#[test]
fn log_record_of_another_volume_is_refused() {
    let bytes = log_record(3).to_bytes(VOLUME);
    assert_eq!(LogRecord::parse(&bytes, OTHER), Err(FormatError::Misplaced(Structure::LogRecord)));
}

#[test]
fn every_struct_refuses_the_bytes_of_every_other() {
    let samples = samples();
    for sample in samples.iter().filter(|sample| sample.parts[0].1 == 0) {
        for other in &samples {
            if sample.parts[0].0 != other.parts[0].0 {
                let outcome = (sample.reread)(&other.bytes);
                assert!(matches!(outcome, Err(FormatError::Magic(_))), "{} as {}", other.name, sample.name);
            }
        }
    }
}

#[test]
fn layouts_that_overlap_or_leave_gaps_are_refused() {
    let good = superblock(Role::Destination);
    type Change = fn(&mut Superblock);
    let changes: [Change; 14] = [
        |superblock| superblock.layout.label_start = layout::LABEL_START - 1,
        |superblock| superblock.layout.label_start = u64::MAX,
        |superblock| superblock.layout.label_blocks = 0,
        |superblock| superblock.layout.label_blocks = u64::MAX,
        |superblock| superblock.layout.log_start -= 1,
        |superblock| superblock.layout.log_start = u64::MAX,
        |superblock| superblock.layout.log_blocks = u64::MAX,
        |superblock| superblock.log_tail.position = 256,
        |superblock| superblock.layout.segments.clear(),
        |superblock| superblock.layout.segments[0].device_block = 0,
        |superblock| superblock.layout.segments[1].device_block -= 1,
        |superblock| superblock.layout.segments[3].first += 1,
        |superblock| superblock.layout.segments[3].blocks = 0,
        |superblock| superblock.layout.segments[3].blocks = u64::MAX,
    ];
    assert!(reread_superblock(&superblock_bytes(&good)).is_ok());
    for (number, change) in changes.iter().enumerate() {
        let mut superblock = good.clone();
        change(&mut superblock);
        let outcome = reread_superblock(&superblock_bytes(&superblock));
        assert!(matches!(outcome, Err(FormatError::Field { .. })), "{number}: {outcome:?}");
    }
}

#[test]
fn external_logs_that_can_not_be_are_refused() {
    let good = superblock_with_external_log();
    assert!(reread_superblock(&superblock_bytes(&good)).is_ok());
    let log = external_log();
    let wrong = [
        ExternalLog { id: LogId::default(), ..log },
        ExternalLog { start: log.start - 1, ..log },
        ExternalLog { start: u64::MAX, ..log },
        ExternalLog { start: 0, blocks: 0, ..log },
        ExternalLog { blocks: layout::LOG_BLOCKS_MIN - 1, ..log },
        ExternalLog { blocks: layout::LOG_BLOCKS_MAX + 1, ..log },
    ];
    for log in wrong {
        let superblock = Superblock {
            external_log: Some(log),
            log_tail: LogTail { position: 0, ..good.log_tail },
            ..good.clone()
        };
        let outcome = reread_superblock(&superblock_bytes(&superblock));
        assert!(matches!(outcome, Err(FormatError::Field { field: "external log", .. })), "{outcome:?}");
        let outcome = reread_log_device(&log_device_bytes(&LogDeviceHeader { log, ..log_device() }));
        assert!(matches!(outcome, Err(FormatError::Field { field: "ring", .. })), "{outcome:?}");
    }
    // The position is one of the log in use, whatever room the other one has.
    let past = Superblock { log_tail: LogTail { position: 300, sequence: 99 }, ..good };
    assert!(reread_superblock(&superblock_bytes(&past)).is_err());
    let misplaced = LogDeviceHeader::parse(block(&log_device_bytes(&log_device())), layout::LOG_HEADER_A);
    assert_eq!(misplaced, Err(FormatError::Misplaced(Structure::LogDevice)));
}

#[test]
fn trees_that_can_not_be_are_refused() {
    let trees = [
        TreeRef { height: 0, ..tree(1, 10) },
        TreeRef { height: 1, ..tree(1, 127) },
        TreeRef { height: 9, ..tree(1, 10) },
        TreeRef { length: u64::MAX, ..tree(1, 10) },
        TreeRef { pointer: BlockPointer { vbn: Vbn(0), ..pointer(1) }, ..tree(1, 10) },
    ];
    for wrong in trees {
        let outcome = reread_inode(&inode_bytes(Some(&Inode { tree: wrong, ..inode() })));
        assert!(matches!(outcome, Err(FormatError::Field { field: "tree", .. })), "{wrong:?}: {outcome:?}");
    }
    let taller = Inode { tree: TreeRef { height: 8, ..tree(1, 10) }, ..inode() };
    assert!(reread_inode(&inode_bytes(Some(&taller))).is_ok(), "a tree that shrank keeps its height");
    assert_eq!([0, 1, 126, 127, 15_876, 15_877].map(TreeRef::height_for), [1, 1, 1, 2, 2, 3]);
    assert_eq!(TreeRef::height_for(layout::SPACE_BLOCKS_MAX), 6);
}

#[test]
fn runs_that_overlap_or_run_over_are_refused() {
    let run = |vbn, slot, count| RedirectRun { vbn: Vbn(vbn), slot, count };
    let wrong = [
        vec![run(0, 0, 1)],
        vec![run(1, 0, 0)],
        vec![run(5, 0, 3), run(7, 9, 1)],
        vec![run(9, 0, 1), run(5, 1, 1)],
        vec![run(1, 0, u64::MAX)],
        vec![run(u64::MAX, 0, 1)],
        vec![run(1, u64::MAX, 1)],
        vec![run(layout::SPACE_BLOCKS_MAX, 0, 1)],
    ];
    for runs in wrong {
        let outcome = reread_redirects(&redirect_bytes(&runs));
        assert!(matches!(outcome, Err(FormatError::Field { field: "run", .. })), "{runs:?}: {outcome:?}");
    }
}

#[test]
fn hole_that_is_not_all_zero_is_refused() {
    let hole = BlockPointer { vbn: Vbn(0), ..pointer(1) };
    let outcome = reread_node(&node_bytes(Generation(5), &[pointer(2), hole]));
    assert!(matches!(outcome, Err(FormatError::Field { field: "hole", .. })), "{outcome:?}");
}
