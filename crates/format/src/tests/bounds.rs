//! Numbers at their bounds: the last that is accepted, and the first that is refused. Round trips
//! of bytes do not test these.

use std::fmt::Debug;

use cairn_base::BLOCK_SIZE;

use super::*;
use crate::layout::{COUNTER_MAX, SPACE_BLOCKS_MAX, SPACE_BLOCKS_MIN};

/// A change of a value that is read, and the field for which the result is refused; `None` when it
/// is read too.
pub(super) type Change<T> = (fn(&mut T), Option<&'static str>);

/// Makes each change alone. A read must return the written value.
#[track_caller]
pub(super) fn check<T: Clone + Debug + PartialEq>(
    good: &T,
    reread: impl Fn(&T) -> Result<T, FormatError>,
    changes: &[Change<T>],
) {
    assert_eq!(reread(good).as_ref(), Ok(good));
    for (number, (change, refused)) in changes.iter().enumerate() {
        let mut value = good.clone();
        change(&mut value);
        let outcome = reread(&value);
        match refused {
            None => assert_eq!(outcome.as_ref(), Ok(&value), "change {number}"),
            Some(name) => assert!(
                matches!(&outcome, Err(FormatError::Field { field, .. }) if field == name),
                "change {number} is refused for its {name}: {outcome:?}"
            ),
        }
    }
}

/// Blocks of device space that a segment may begin at.
const DEVICE_MAX: u64 = SPACE_BLOCKS_MAX * 4;

/// Room for the label area and the log, one after the other, and the block space after both.
fn set_areas(superblock: &mut Superblock, label_blocks: u64, log_blocks: u64) {
    let layout = &mut superblock.layout;
    (layout.label_blocks, layout.log_blocks) = (label_blocks, log_blocks);
    layout.log_start = layout.label_start + label_blocks;
    layout.segments[0].device_block = layout.log_start + log_blocks;
}

/// One more segment, after the others.
fn push(superblock: &mut Superblock, kind: SegmentKind, first: u64, blocks: u64) {
    let device_block = superblock.layout.segments.last().map_or(0, |last| last.device_block + last.blocks);
    superblock.layout.segments.push(Segment { kind, first, blocks, device_block });
}

/// Two segments that have a block more than any volume.
fn push_too_many(superblock: &mut Superblock, kind: SegmentKind) {
    push(superblock, kind, 0, SPACE_BLOCKS_MAX);
    push(superblock, kind, SPACE_BLOCKS_MAX, 1);
}

#[test]
fn superblock() {
    let reread = |superblock: &Superblock| {
        Superblock::parse(block(&superblock_bytes(superblock)), layout::SUPERBLOCK_B)
    };
    let layout = Some("layout");
    check(
        &super::superblock(Role::Normal),
        reread,
        &[
            (|it| set_areas(it, 255, 256), layout),
            (|it| set_areas(it, 8192, 256), None),
            (|it| set_areas(it, 8193, 256), layout),
            (|it| set_areas(it, 256, 255), layout),
            (|it| set_areas(it, 256, 16_384), None),
            (|it| set_areas(it, 256, 16_385), layout),
            (|it| it.log_tail.position = 255, None),
            (|it| it.log_tail.position = 256, Some("log position")),
            (|it| it.layout.segments[0].device_block = DEVICE_MAX, None),
            (|it| it.layout.segments[0].device_block = DEVICE_MAX + 1, layout),
            (|it| it.layout.segments[0].blocks = SPACE_BLOCKS_MIN, None),
            (|it| it.layout.segments[0].blocks = SPACE_BLOCKS_MIN - 1, layout),
            (|it| it.layout.segments[0].blocks = SPACE_BLOCKS_MAX, None),
            (|it| it.layout.segments[0].blocks = SPACE_BLOCKS_MAX + 1, layout),
            (|it| push(it, SegmentKind::Space, 4096, SPACE_BLOCKS_MAX - 4096), None),
            (|it| push(it, SegmentKind::Space, 4096, SPACE_BLOCKS_MAX - 4095), layout),
            (|it| push(it, SegmentKind::Redirect, 0, SPACE_BLOCKS_MAX), None),
            (|it| push_too_many(it, SegmentKind::Redirect), layout),
            (|it| push(it, SegmentKind::Have, 0, SPACE_BLOCKS_MAX), None),
            (|it| push_too_many(it, SegmentKind::Have), layout),
            (|it| (1..SEGMENTS_MAX as u64).for_each(|n| push(it, SegmentKind::Have, (n - 1) * 9, 9)), None),
            (|it| it.sequence = COUNTER_MAX - 1, None),
            (|it| it.log_tail.sequence = COUNTER_MAX - 1, None),
            (|it| it.next_snapshot = COUNTER_MAX - 1, None),
            (|it| it.root.generation = Generation(COUNTER_MAX - 1), None),
            (|it| it.root.next_file = COUNTER_MAX - 1, None),
            (|it| (it.root.blocks, it.root.used) = (SPACE_BLOCKS_MAX, SPACE_BLOCKS_MAX), None),
            (|it| it.root.used = SPACE_BLOCKS_MAX + 1, Some("root")),
            (|it| it.snapshots.indexes = vec![label_pointer(1); TableRef::INDEXES_MAX], None),
            (|it| it.redirects.indexes = vec![label_pointer(1); TableRef::INDEXES_MAX], None),
        ],
    );
    let at = |name, field| document::field(name, field).0;
    let top = |field| at("superblock::RawSuperblock", field);
    let kind = top("segments") + at("superblock::RawSegment", "kind");
    let indexes = at("superblock::RawTable", "index_count");
    for (at, value, refused) in [
        (top("role"), 2, "role"),
        (top("segment_count"), SEGMENTS_MAX as u32 + 1, "segment count"),
        // The segment after the first place for segments is missing.
        (top("segment_count"), 17, "segment"),
        (top("segment_count"), 0, "unused segment"),
        (kind, 0, "segment"),
        (kind, 4, "segment"),
        (top("snapshots") + indexes, TableRef::INDEXES_MAX as u32 + 1, "snapshot table"),
        (top("redirects") + indexes, TableRef::INDEXES_MAX as u32 + 1, "redirect map"),
    ] {
        let mut bytes = superblock_bytes(&super::superblock(Role::Normal));
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        seal_superblock(&mut bytes);
        let field = FormatError::Field { structure: Structure::Superblock, field: refused };
        assert_eq!(reread_superblock(&bytes), Err(field));
    }
}

#[test]
fn snapshots_and_redirects() {
    let reread = |entry: &SnapshotEntry| SnapshotEntry::parse(&entry.to_bytes()).map(|entry| entry.unwrap());
    check(
        &snapshot(4),
        reread,
        &[
            (|it| it.id = SnapshotId(1), None),
            (|it| it.id = SnapshotId(COUNTER_MAX - 1), None),
            (|it| it.id = SnapshotId(COUNTER_MAX), Some("id")),
        ],
    );
    let run = |vbn, slot, count| vec![RedirectRun { vbn: Vbn(vbn), slot, count }];
    let reread =
        |runs: &Vec<RedirectRun>| RedirectBlock::parse(block(&redirect_bytes(runs)), VOLUME, ADDRESS);
    for last in
        [run(SPACE_BLOCKS_MAX - 1, 0, 1), run(1, SPACE_BLOCKS_MAX - 1, 1), run(1, 0, SPACE_BLOCKS_MAX - 1)]
    {
        assert_eq!(reread(&last).as_ref(), Ok(&last));
        let past = run(last[0].vbn.0, last[0].slot, last[0].count + 1);
        assert!(reread(&past).is_err(), "{past:?}");
    }
    // More than fit are refused by their count, not by the bytes after the block.
    for (bytes, most) in [(redirect_bytes(&runs()), RUNS_PER_BLOCK), (index_bytes(&[]), POINTERS_PER_INDEX)] {
        let mut bytes = bytes;
        let at = document::field("label::RawHeader", "count").0;
        bytes[at..at + 4].copy_from_slice(&(most as u32 + 1).to_le_bytes());
        for outcome in [reread_redirects(&bytes), reread_index(&bytes)] {
            let magic = matches!(outcome, Err(FormatError::Magic(_)));
            assert!(
                magic || matches!(outcome, Err(FormatError::Field { field: "count", .. })),
                "{outcome:?}"
            );
        }
    }
    let mut bytes = snapshot_block_bytes(&snapshot_slots());
    bytes[document::field("label::RawHeader", "count").0] -= 1;
    let count = FormatError::Field { structure: Structure::SnapshotTable, field: "count" };
    assert_eq!(reread_snapshots(&bytes), Err(count), "fewer snapshots than are there");
}

#[test]
fn inodes() {
    let reread = |inode: &Inode| Inode::parse(block(&inode_bytes(Some(inode))), SLOT).map(|it| it.unwrap());
    let changes: &[Change<Inode>] = &[
        (|it| it.attributes.mode = 0o010_000, None),
        (|it| it.attributes.mode = 0o147_777, None),
        (|it| it.attributes.mode = 0o000_644, Some("attributes")),
        (|it| it.attributes.mode = 0o030_644, Some("attributes")),
        (|it| it.attributes.mode = 0o160_644, Some("attributes")),
        (|it| it.attributes.mode = 0o1_100_644, Some("attributes")),
        (|it| it.attributes.extended = FileId(COUNTER_MAX - 1), None),
        (|it| it.attributes.extended = FileId(COUNTER_MAX), Some("attributes")),
    ];
    check(&leaves::node(), reread, changes);
    // Files outside of the tree of names have no attributes.
    let lun: &[Change<Inode>] = &[
        (|it| it.attributes.mode = 1, Some("attributes")),
        (|it| it.attributes.links = 1, Some("attributes")),
        (|it| it.attributes.uid = 1, Some("attributes")),
        (|it| it.attributes.changed_ns = 1, Some("attributes")),
    ];
    check(&inode(), reread, lun);
    let mut bytes = inode_bytes(Some(&inode()));
    bytes[SLOT * document::size("inode::RawInode") + document::field("inode::RawInode", "removed").0] = 2;
    let removed = FormatError::Field { structure: Structure::Inode, field: "reserved byte" };
    assert_eq!(reread_inode(&bytes), Err(removed));
    // The same in the log.
    let reread = |inode: &Inode| {
        let mut record = log_record(0);
        (record.entries, record.header.entries) = (vec![LogEntry::Inode(*inode)], 2);
        let record = LogRecord::parse(&record.to_bytes(VOLUME), VOLUME)?;
        match record.entries[..] {
            [LogEntry::Inode(inode)] => Ok(inode),
            _ => panic!("{record:?}"),
        }
    };
    let logged = Inode { tree: TreeRef::empty(3), ..leaves::node() };
    let changes: Vec<Change<Inode>> =
        changes.iter().map(|(change, refused)| (*change, refused.map(|_| "inode"))).collect();
    check(&logged, reread, &changes);
    let identity: &[Change<Inode>] = &[
        (|it| it.id = FileId(COUNTER_MAX - 1), None),
        (|it| it.id = FileId(COUNTER_MAX), Some("inode")),
        (|it| (it.kind, it.attributes) = (FileKind::Extended, Attributes::default()), None),
        (|it| it.kind = FileKind::Extended, Some("inode")),
        (|it| it.kind = FileKind::Lun, Some("inode")),
        (|it| it.removed = true, None),
    ];
    check(&logged, reread, identity);
    assert!(logged.is_as_logged() && !leaves::node().is_as_logged());
}

#[test]
fn leaves_and_quotas() {
    let of = |head: &LeafHead| {
        Leaf::parse(block(&leaves::bytes(head, &[])), head.directory, head.place).map(|leaf| leaf.head)
    };
    check(
        &leaves::top(),
        of,
        &[
            (|it| it.split = true, None),
            (|it| it.parent = FileId(1), None),
            (|it| it.parent = FileId(0), Some("parent")),
            (|it| it.parent = FileId(COUNTER_MAX - 1), None),
            (|it| it.parent = FileId(COUNTER_MAX), Some("parent")),
            (|it| it.parent_key = (1 << KEY_BITS) - 1, None),
            (|it| it.parent_key = 1 << KEY_BITS, Some("parent")),
        ],
    );
    check(
        &leaves::lower(),
        of,
        &[
            (|it| it.split = true, Some("reserved byte")),
            (|it| it.parent = FileId(1), Some("parent")),
            (|it| it.parent_key = 1, Some("parent")),
        ],
    );
    let split = LeafHead { split: true, ..leaves::top() };
    let bytes = leaves::bytes(&split, &leaves::NAMES);
    let outcome = Leaf::parse(block(&bytes), split.directory, split.place);
    assert!(matches!(outcome, Err(FormatError::Field { field: "length", .. })), "a split leaf has no names");
    let quota = |quota: &QuotaRecord| {
        QuotaRecord::parse(block(&leaves::quota_bytes(quota)), 300).map(|quota| quota.unwrap())
    };
    check(
        &leaves::quota(),
        quota,
        &[
            (|it| it.directory = FileId(1), None),
            (|it| it.directory = FileId(0), Some("directory")),
            (|it| it.directory = FileId(COUNTER_MAX - 1), None),
            (|it| it.directory = FileId(COUNTER_MAX), Some("directory")),
        ],
    );
    let bytes = leaves::quota_bytes(&leaves::quota());
    assert_eq!(QuotaRecord::parse(block(&bytes), 299), Err(FormatError::Misplaced(Structure::Quota)));
    let mut zeroth = [0; BLOCK_SIZE];
    leaves::quota().write(0, &mut zeroth);
    assert!(QuotaRecord::parse(&zeroth, 0).is_err(), "quota tree 0 is none");
    assert_eq!(QuotaRecord::parse(&[0; BLOCK_SIZE], 7), Ok(None));
}

#[test]
fn extended_attributes() {
    const OWNER: FileId = FileId(9);
    let of = |all: &[(&[u8], usize)]| {
        Extended(all.iter().map(|(name, value)| (name.to_vec(), vec![1; *value])).collect())
    };
    let most = [(&b"a"[..], EXTENDED_VALUE_MAX), (b"b", EXTENDED_VALUE_MAX), (b"c", EXTENDED_VALUE_MAX)];
    let rest = EXTENDED_BYTES_MAX - of(&most).size() - of(&[(b"d", 0)]).size() + of(&[]).size();
    for (extended, refused) in [
        (of(&[]), None),
        (of(&[(b"n", EXTENDED_VALUE_MAX)]), None),
        (of(&[(b"n", EXTENDED_VALUE_MAX + 1)]), Some("attribute")),
        (of(&[(&[1; EXTENDED_NAME_MAX], 0)]), None),
        (of(&[(b"", 1)]), Some("attribute")),
        (of(&[(b"a\0b", 1)]), Some("attribute")),
        (of(&[&most[..], &[(b"d", rest)]].concat()), None),
        (of(&[&most[..], &[(b"d", rest + 1)]].concat()), Some("length")),
    ] {
        let outcome = Extended::parse(&extended.to_bytes(OWNER), OWNER);
        let field = |field| FormatError::Field { structure: Structure::Extended, field };
        assert_eq!(outcome, refused.map_or(Ok(extended), |name| Err(field(name))));
    }
    // A duplicate name.
    let mut bytes = of(&[(b"a", 1), (b"b", 1)]).to_bytes(OWNER);
    let second = document::size("extended::RawExtended") + 2 * document::size("extended::RawValue") + 2;
    assert_eq!(bytes[second], b'b');
    bytes[second] = b'a';
    let order = FormatError::Field { structure: Structure::Extended, field: "order" };
    assert_eq!(Extended::parse(&bytes, OWNER), Err(order));
    // Their first bytes identify their owner.
    let bytes = leaves::extended().to_bytes(OWNER);
    assert_eq!(Extended::owner(&bytes[..document::size("extended::RawExtended")]), Ok(OWNER));
    assert_eq!(Extended::owner(&[0; BLOCK_SIZE]), Err(FormatError::Magic(Structure::Extended)));
    let mut newer = bytes;
    newer[document::field("extended::RawExtended", "version").0] += 1;
    assert!(matches!(Extended::owner(&newer), Err(FormatError::Version { .. })));
}

#[test]
fn blocks_can_be_full_and_are_written_over_what_was_there() {
    let runs: Vec<RedirectRun> =
        (1..=RUNS_PER_BLOCK as u64).map(|n| RedirectRun { vbn: Vbn(2 * n), slot: n, count: 1 }).collect();
    assert_eq!(RedirectBlock::parse(block(&redirect_bytes(&runs)), VOLUME, ADDRESS), Ok(runs));
    let pointers = vec![label_pointer(1); POINTERS_PER_INDEX];
    assert_eq!(IndexBlock::parse(block(&index_bytes(&pointers)), VOLUME, ADDRESS), Ok(pointers));
    let slots = std::array::from_fn(|slot| Some(snapshot(slot as u64 + 1)));
    assert_eq!(SnapshotBlock::parse(block(&snapshot_block_bytes(&slots)), VOLUME, ADDRESS), Ok(slots));
    let mut bytes = *block(&inode_bytes(Some(&inode())));
    Inode::put(None, &mut bytes, SLOT);
    assert_eq!(bytes, [0; BLOCK_SIZE]);
    let mut bytes = [0xee; BLOCK_SIZE];
    let mut node = NodeMut::of(&mut bytes);
    node.set_header(VOLUME, NODE, NODE_VBN, Generation(5));
    (0..FANOUT as usize).for_each(|slot| node.set(slot, BlockPointer::HOLE));
    assert_eq!(bytes.to_vec(), node_bytes(Generation(5), &[]));
    let hole = TreeRef { pointer: BlockPointer::HOLE, height: 2, length: 127 };
    assert_eq!(TreeRef::empty(127), hole);
}

#[test]
fn trusted_views_show_what_the_checked_ones_do() {
    let bytes = node_bytes(Generation(5), &[pointer(1), BlockPointer::HOLE, pointer(2)]);
    let node = Node::trusted(block(&bytes)).expect("it was checked");
    assert_eq!((node.birth(), node.pointer(0), node.pointer(2)), (Generation(5), pointer(1), pointer(2)));
    let mut bytes = *block(&bytes);
    let mut node = NodeMut::of(&mut bytes);
    assert!(!node.is_empty());
    (0..FANOUT as usize).for_each(|slot| node.set(slot, BlockPointer::HOLE));
    assert!(node.is_empty());
    assert_eq!(Checksum::from(&node), Checksum::of(&bytes));
    for (head, names) in
        [(leaves::top(), &leaves::NAMES[..]), (LeafHead { split: true, ..leaves::top() }, &[])]
    {
        let bytes = leaves::bytes(&head, names);
        let leaf = Leaf::trusted(block(&bytes), head.directory, head.place).expect("it was checked");
        assert_eq!((leaf.head, leaf.len(), leaf.is_empty()), (head, names.len(), names.is_empty()));
        assert_eq!(leaf.names().collect::<Vec<_>>(), names);
    }
    assert_eq!([0, 1, 2, 3].map(LeafPlace::blocks_to), [1, 4, 8, 16]);
}
