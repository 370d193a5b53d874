//! Leaves of directories, extended attributes, and inodes of the tree of names.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

const DIRECTORY: FileId = FileId(77);
const LOWER: LeafPlace = LeafPlace { level: 3, prefix: 5 };
/// A key in the lower leaf.
const KEY: u64 = 5 << 59;

pub(super) const NAMES: [LeafName<'static>; 4] = [
    LeafName { key: KEY_MIN, file: FileId(3), kind: 8, name: b"first" },
    LeafName { key: 5 << 20, file: FileId(4), kind: 4, name: b"folder" },
    LeafName { key: KEY, file: FileId(5), kind: 10, name: b"\xff\x01" },
    LeafName { key: KEY + 1, file: FileId(3), kind: 8, name: b"another" },
];

pub(super) fn top() -> LeafHead {
    LeafHead { directory: DIRECTORY, place: LeafPlace::TOP, split: false, parent: FileId(6), parent_key: 99 }
}

pub(super) fn lower() -> LeafHead {
    LeafHead { directory: DIRECTORY, place: LOWER, split: false, parent: FileId(0), parent_key: 0 }
}

pub(super) fn bytes(head: &LeafHead, names: &[LeafName<'_>]) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    head.write(names.iter().copied(), &mut bytes);
    bytes.to_vec()
}

fn reread(block_bytes: &[u8], place: LeafPlace) -> Result<Vec<u8>, FormatError> {
    let leaf = Leaf::parse(block(block_bytes), DIRECTORY, place)?;
    let names: Vec<LeafName<'_>> = leaf.names().collect();
    assert_eq!(names.len(), leaf.len());
    assert_eq!(names.iter().map(LeafName::size).sum::<usize>(), leaf.used_bytes());
    Ok(bytes(&leaf.head, &names))
}

pub(super) fn reread_top(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    reread(bytes, LeafPlace::TOP)
}

pub(super) fn reread_lower(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    reread(bytes, LOWER)
}

pub(super) fn extended() -> Extended {
    let of = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
    let mut all = Extended(
        [of("user.a", b"one"), of("user.b", b""), of("system.posix_acl_access", &[2, 0, 0, 0])].into(),
    );
    // As long as a block, as all samples are.
    let rest = cairn_base::BLOCK_SIZE - all.size() - 8 - 6;
    all.0.extend([of("user.c", &vec![7; rest])]);
    all
}

pub(super) fn reread_extended(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    Extended::parse(bytes, FileId(9)).map(|extended| extended.to_bytes(FileId(9)))
}

pub(super) fn quota_bytes(record: &QuotaRecord) -> Vec<u8> {
    let mut bytes = [0xee; cairn_base::BLOCK_SIZE];
    record.write(300, &mut bytes);
    bytes.to_vec()
}

pub(super) fn quota() -> QuotaRecord {
    let directory = FileId(12);
    QuotaRecord { directory, limit_bytes: 1 << 30, limit_files: 99, used_blocks: 7, used_files: 3 }
}

pub(super) fn reread_quota(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let zeroes = || bytes.to_vec();
    QuotaRecord::parse(block(bytes), 300).map(|record| record.as_ref().map_or_else(zeroes, quota_bytes))
}

pub(super) fn node() -> Inode {
    Inode {
        kind: FileKind::Node,
        removed: false,
        id: FileId(32 * 4 + SLOT as u64),
        length_bytes: 8193,
        created: Timestamp(123),
        relationship: 0,
        tree: tree(6, 3),
        attributes: Attributes {
            mode: 0o100_644,
            links: 2,
            uid: 1000,
            gid: 100,
            device: 0,
            blocks: 2,
            quota: 7,
            accessed_ns: -1,
            modified_ns: 5,
            changed_ns: 6,
            extended: FileId(12),
        },
    }
}

#[test]
fn device_has_numbers_where_others_count_blocks() {
    let mut device = node();
    device.attributes = Attributes { mode: 0o060_600, device: 0x801, blocks: 0, ..device.attributes };
    let read = Inode::parse(block(&inode_bytes(Some(&device))), SLOT);
    assert_eq!(read, Ok(Some(device)));
    assert_eq!(Inode::parse(block(&inode_bytes(Some(&node()))), SLOT), Ok(Some(node())));
}

#[test]
fn place_of_a_leaf_is_told_by_its_block() {
    for level in [0, 1, 2, 7, LEAF_LEVEL_MAX] {
        let blocks = LeafPlace::blocks_to(level);
        assert_eq!(LeafPlace::level_of(blocks), level);
        for key in [KEY_MIN, 1 << 40, 5 << 59, (1 << KEY_BITS) - 1] {
            let place = LeafPlace::of(key, level);
            assert!((place.start()..place.end()).contains(&key));
            assert!(place.lba() < blocks);
            assert_eq!(LeafPlace::at(place.lba()), Some(place));
        }
    }
    assert_eq!(LeafPlace::at(1), None);
    assert_eq!(LeafPlace::at(LeafPlace::blocks_to(LEAF_LEVEL_MAX)), None);
}

#[test]
fn names_out_of_order_or_of_another_leaf_are_refused() {
    let refused = |names: &[LeafName<'_>], head: LeafHead| {
        let outcome = Leaf::parse(block(&bytes(&head, names)), DIRECTORY, head.place).map(|leaf| leaf.head);
        assert_eq!(outcome, Err(FormatError::Field { structure: Structure::Leaf, field: "name" }));
    };
    let [first, second, third, fourth] = NAMES;
    refused(&[second, first], top());
    refused(&[first, first], top());
    refused(&[second], lower());
    refused(&[LeafName { key: LOWER.end(), ..third }], lower());
    refused(&[LeafName { key: 3, ..first }], top());
    refused(&[LeafName { file: FileId(0), ..fourth }], top());
    refused(&[LeafName { kind: 3, ..fourth }], top());
    refused(&[LeafName { name: b"a/b", ..fourth }], top());
    refused(&[LeafName { name: b"", ..fourth }], top());
    assert!(Leaf::parse(block(&bytes(&top(), &NAMES)), FileId(78), LeafPlace::TOP).is_err());
    assert!(Leaf::parse(block(&bytes(&lower(), &[])), DIRECTORY, LeafPlace { level: 3, prefix: 4 }).is_err());
}

#[test]
fn attributes_of_another_file_are_refused() {
    let bytes = extended().to_bytes(FileId(9));
    let outcome = Extended::parse(&bytes, FileId(8));
    assert_eq!(outcome, Err(FormatError::Misplaced(Structure::Extended)));
    assert!(Extended::parse(&bytes[..bytes.len() - 1], FileId(9)).is_err());
}

proptest! {
    #[test]
    fn any_leaf_comes_back(
        names in btree_map(KEY_MIN..1 << KEY_BITS, (1u64..1 << 40, vec(1u8..=0x2e, 1..=255)), 0..14),
        parent in 1u64..1 << 60,
    ) {
        let head = LeafHead { parent: FileId(parent), ..top() };
        let names: Vec<LeafName<'_>> = names
            .iter()
            .map(|(key, (file, name))| LeafName { key: *key, file: FileId(*file), kind: 8, name })
            .collect();
        let bytes = bytes(&head, &names);
        let leaf = Leaf::parse(block(&bytes), DIRECTORY, LeafPlace::TOP).expect("it was written");
        prop_assert_eq!(leaf.head, head);
        prop_assert_eq!(leaf.names().collect::<Vec<_>>(), names);
    }

    #[test]
    fn any_attributes_come_back(values in btree_map(vec(1u8.., 1..=255), vec(any::<u8>(), 0..500), 0..20)) {
        let extended = Extended(values);
        let bytes = extended.to_bytes(FileId(3));
        prop_assert_eq!(bytes.len(), extended.size());
        prop_assert_eq!(Extended::parse(&bytes, FileId(3)), Ok(extended));
    }
}
