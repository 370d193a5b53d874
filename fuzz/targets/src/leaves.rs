//! Directories and extended attributes of files: each block alone, and inside of a tree in use.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Lba, ManualClock, Timestamp};
use cairn_device::{Block, MemoryDevice};
use cairn_files::{New, Rename, SetXattr, Tree, check_tree};
use cairn_format::{Extended, KEY_MIN, Leaf, LeafHead, LeafName, LeafPlace, Role};
use cairn_volume::{Change, FormatOptions, OpenOptions, Volume};

use crate::blocks::{VOLUME, block};

const DIRECTORY: FileId = FileId(9);
const LOWER: LeafPlace = LeafPlace { level: 3, prefix: 5 };
const FILE: New = New { mode: 0o100_600, uid: 0, gid: 0, device: 0, umask: 0 };

pub(crate) fn leaf(data: &[u8]) {
    let bytes = block(data);
    for place in [LeafPlace::TOP, LOWER] {
        if let Ok(leaf) = Leaf::parse(&bytes, DIRECTORY, place) {
            let mut again = [0xaa; BLOCK_SIZE];
            leaf.head.write(leaf.names(), &mut again);
            assert!(again == bytes, "bytes were accepted that are written in another way");
        }
    }
}

/// A top leaf of a directory with some names.
fn top(directory: FileId, parent: FileId, split: bool) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    let head = LeafHead { directory, place: LeafPlace::TOP, split, parent, parent_key: 77 };
    let names = [(KEY_MIN, b"one".as_slice(), 8), (1 << 40, b"two", 4), (1 << 61, b"three", 10)];
    let names = names.into_iter().filter(|_| !split);
    head.write(names.map(|(key, name, kind)| LeafName { key, file: FileId(5), kind, name }), &mut bytes);
    bytes
}

fn lower(directory: FileId) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    let head = LeafHead { directory, place: LOWER, split: false, parent: FileId(0), parent_key: 0 };
    let name = LeafName { key: LOWER.start() + 4, file: FileId(6), kind: 8, name: b"a name" };
    head.write([name].into_iter(), &mut bytes);
    bytes
}

pub(crate) fn leaf_seeds() -> Vec<Vec<u8>> {
    [top(DIRECTORY, FileId(3), false), top(DIRECTORY, FileId(3), true), lower(DIRECTORY)]
        .map(|bytes| bytes.to_vec())
        .to_vec()
}

pub(crate) fn extended(data: &[u8]) {
    if let Ok(extended) = Extended::parse(data, DIRECTORY) {
        assert!(extended.to_bytes(DIRECTORY) == data, "bytes were accepted that are written in another way");
    }
}

fn some_extended(owner: FileId) -> Vec<u8> {
    let of = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255,
        255, 255,
    ];
    let lists = ["system.posix_acl_access", "system.posix_acl_default"].map(|name| of(name, &acl));
    let mut all = Extended([of("user.a", b"one"), of("user.b", b"")].into());
    all.0.extend(lists);
    all.to_bytes(owner)
}

pub(crate) fn extended_seeds() -> Vec<Vec<u8>> {
    vec![some_extended(DIRECTORY), Extended::default().to_bytes(DIRECTORY)]
}

/// Random names and attributes in a tree that gets every request: it reports damage, or accepts
/// them as they are. The first byte of the input selects the block that they replace.
pub(crate) fn file_tree(data: &[u8]) {
    let Some((which, data)) = data.split_first() else { return };
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(2048, Role::Normal)));
    let options = FormatOptions { id: VOLUME, blocks: 2048, role: Role::Normal };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1)))
        .expect("an empty device is formatted");
    let clock = Arc::new(ManualClock::new(Timestamp(5)));
    let volume = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("it was formatted");
    let tree = Tree::open(volume.clone()).expect("a tree is made");
    let root = tree.root();
    let folder =
        tree.make_directory(root, b"folder", &New { mode: 0o755, ..FILE }).expect("there is room").file;
    let file = tree.make(folder, b"file", &FILE).expect("there is room").file;
    tree.set_xattr(folder, b"user.x", b"y", SetXattr::Any).expect("there is room");
    let (of, lba) = match which % 4 {
        0 => (folder, 0),
        1 => (root, 0),
        2 => (folder, LOWER.lba()),
        _ => (volume.inode(folder).expect("it is there").attributes.extended, 0),
    };
    let mut change = Change::new();
    let mut inode = volume.inode(of).expect("it is there");
    inode.length_bytes = match which % 4 {
        2 => LeafPlace::blocks_to(LOWER.level) * BLOCK_SIZE as u64,
        3 => data.len().clamp(1, BLOCK_SIZE) as u64,
        _ => inode.length_bytes,
    };
    change.put(inode);
    change.write(of, Lba(lba), Block::copy_of(&block(data)));
    volume.change(change, false).expect("there is room");
    let entries = tree.read_directory(folder, 0, 1000).unwrap_or_default();
    for entry in &entries {
        let _ = tree.stat(entry.file).map(|stat| (tree.read(stat.file, 0, 10), tree.read_link(stat.file)));
        let _ = tree.directory_path(entry.file);
    }
    let _ = (tree.lookup(folder, b"file"), tree.parent(folder), tree.resolve(b"folder/file"));
    let _ = (tree.xattrs(folder), tree.set_xattr(folder, b"user.z", b"", SetXattr::Any));
    let _ = tree.make(folder, b"another", &FILE).map(|stat| tree.write(stat.file, 0, b"bytes"));
    let _ = (tree.make_directory(folder, b"below", &FILE), tree.link(file, root, b"second"));
    let _ = (tree.rename(folder, b"file", root, b"moved", Rename::Replace), tree.unlink(folder, b"another"));
    let _ = (
        tree.rename(root, b"folder", folder, b"into", Rename::Replace),
        tree.remove_directory(root, b"folder"),
    );
    for entry in entries.into_iter().take(50) {
        let _ = tree.unlink(folder, &entry.name);
    }
    volume.consistency_point().expect("whatever directories say, the volume is whole");
    let report = volume.check(&mut |_| {}).expect("checking is possible");
    assert_eq!(report.findings, []);
    let _ = check_tree(&volume.image(None).expect("there is a state"));
}

pub(crate) fn file_tree_seeds() -> Vec<Vec<u8>> {
    // Between them are the orphans and the quotas.
    let (root, folder) = (FileId(2), FileId(5));
    let seed = |which: u8, bytes: &[u8]| [&[which], bytes].concat();
    vec![
        seed(0, &top(folder, root, false)),
        seed(0, &top(folder, root, true)),
        seed(1, &top(root, folder, false)),
        seed(2, &lower(folder)),
        seed(3, &some_extended(folder)),
    ]
}
