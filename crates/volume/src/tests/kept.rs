//! A lying source cannot change content kept here. Each test makes an image that is true but for
//! one lie, with all checksums right.

use std::collections::BTreeMap;

use cairn_base::{Checksum, Generation, SnapshotId, Vbn};
use cairn_device::BlockMut;
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{BlockPointer, Node, NodeMut, Root, SegmentKind, SnapshotEntry};

use super::*;
use crate::error::Contradiction;
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::read::compare::Maps;

const BLOCKS: u64 = 1024;
const LENGTH: u64 = 200;

/// An image as a source sends it, which can be changed before.
#[derive(Clone)]
struct Sent {
    blocks: BTreeMap<Vbn, Block>,
    entries: Vec<SnapshotEntry>,
    target: SnapshotId,
}

impl Sent {
    /// The blocks that a destination with the snapshots `have` lacks.
    fn of(source: &Arc<Volume>, have: &[SnapshotId], target: &Snapshot) -> Self {
        let changes = source.changed_blocks(have, target.id).expect("they are compared");
        let each = |run: &Run| {
            let blocks = source.read_blocks(&[*run]).expect("they can be read");
            (run.0.0..).map(Vbn).zip(blocks).collect::<Vec<_>>()
        };
        let blocks = changes.runs.iter().flat_map(each).collect();
        let entries = source.snapshot_entries().into_iter().filter(|entry| entry.id <= target.id).collect();
        Self { blocks, entries, target: target.id }
    }

    fn root(&mut self) -> &mut Root {
        let target = self.target;
        &mut self.entry(target).root
    }

    fn entry(&mut self, id: SnapshotId) -> &mut SnapshotEntry {
        self.entries.iter_mut().find(|entry| entry.id == id).expect("it is listed")
    }

    fn block(&self, vbn: Vbn) -> BlockMut {
        BlockMut::copy_of(self.blocks.get(&vbn).expect("it is one of the image's own"))
    }

    fn put(&mut self, pointer: BlockPointer, bytes: BlockMut) -> BlockPointer {
        let block = bytes.freeze();
        let checksum = Checksum::of(&block[..]);
        self.blocks.insert(pointer.vbn, block);
        BlockPointer { checksum, ..pointer }
    }

    /// The pointer to a block of a file of the target; all nodes above it are the image's own.
    fn pointer(&mut self, file: FileId, lba: u64) -> BlockPointer {
        let tree = self.tree(file);
        let mut pointer = tree.pointer;
        for level in (1..=tree.height).rev() {
            let span = cairn_format::FANOUT.pow(u32::from(level) - 1);
            let node = self.block(pointer.vbn);
            pointer = Node::trusted(&node)
                .expect("it is a node")
                .pointer((lba / span % cairn_format::FANOUT) as usize);
        }
        pointer
    }

    fn tree(&mut self, file: FileId) -> TreeRef {
        match file {
            ACTIVE_MAP => self.root().active_map,
            INODE_FILE => self.root().inode_file,
            file => {
                let (at, slot) = Inode::place(file);
                let pointer = self.pointer(INODE_FILE, at);
                let block = self.block(pointer.vbn).freeze();
                Inode::parse(&block, slot).expect("it parses").expect("it is there").tree
            }
        }
    }

    /// Puts another pointer to a block of a file, with all checksums above it right.
    fn set_pointer(&mut self, file: FileId, lba: u64, to: BlockPointer) {
        let mut tree = self.tree(file);
        let mut path = vec![tree.pointer];
        for level in (2..=tree.height).rev() {
            let span = cairn_format::FANOUT.pow(u32::from(level) - 1);
            let node = self.block(path[path.len() - 1].vbn);
            path.push(
                Node::trusted(&node)
                    .expect("it is a node")
                    .pointer((lba / span % cairn_format::FANOUT) as usize),
            );
        }
        let mut below = to;
        for (level, pointer) in (1..=tree.height).zip(path.into_iter().rev()) {
            let span = cairn_format::FANOUT.pow(u32::from(level) - 1);
            let mut node = self.block(pointer.vbn);
            NodeMut::of(&mut node).set((lba / span % cairn_format::FANOUT) as usize, below);
            below = self.put(pointer, node);
        }
        tree.pointer = below;
        match file {
            ACTIVE_MAP => self.root().active_map = tree,
            INODE_FILE => self.root().inode_file = tree,
            file => {
                let (at, slot) = Inode::place(file);
                let pointer = self.pointer(INODE_FILE, at);
                let mut block = self.block(pointer.vbn);
                let inode = Inode::parse(&block, slot).expect("it parses").expect("it is there");
                Inode::put(Some(&Inode { tree, ..inode }), &mut block, slot);
                let pointer = self.put(pointer, block);
                self.set_pointer(INODE_FILE, at, pointer);
            }
        }
    }

    /// Changes a bit of the target's map.
    fn set_bit(&mut self, vbn: Vbn, to: bool) {
        let region = vbn.0 / BITS_PER_MAP_BLOCK;
        let pointer = self.pointer(ACTIVE_MAP, region);
        let mut bits = self.block(pointer.vbn);
        let (byte, bit) = ((vbn.0 % BITS_PER_MAP_BLOCK / 8) as usize, 1 << (vbn.0 % 8));
        let was = bits[byte] & bit != 0;
        bits[byte] = if to { bits[byte] | bit } else { bits[byte] & !bit };
        let used = self.root().used;
        self.root().used = (used + u64::from(to)).saturating_sub(u64::from(was));
        let pointer = self.put(pointer, bits);
        self.set_pointer(ACTIVE_MAP, region, pointer);
    }

    fn to(self, destination: &Arc<Volume>) -> Result<(), VolumeError> {
        let mut receiver = destination.receive().expect("nothing else is received");
        for (vbn, block) in self.blocks {
            receiver.write(vbn, vec![block])?;
        }
        receiver.commit(ReceivedImage { target: self.target, snapshots: self.entries })
    }
}

/// A source, its LUN, a snapshot that a destination keeps, and the destination on a device that
/// outlives it.
struct Pair {
    source: Arc<Volume>,
    lun: FileId,
    kept: Snapshot,
    device: Arc<MemoryDevice>,
    destination: Arc<Volume>,
}

impl Pair {
    fn new() -> Self {
        let (_device, source) = fresh(BLOCKS);
        let lun = file(&source, LENGTH);
        write(&source, lun, 0, 100, 7000).expect("there is room");
        let kept = source.create_snapshot("kept").expect("it is made");
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
        let options = FormatOptions { id: source.id(), blocks: BLOCKS, role: Role::Destination };
        Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
        let destination = open(&device);
        Sent::of(&source, &[], &kept).to(&destination).expect("it is the truth");
        Self { source, lun, kept, device, destination }
    }

    /// The next image, which has its own nodes above block 150 of the LUN.
    fn next(&self, name: &str) -> (Snapshot, Sent) {
        write(&self.source, self.lun, 150, 10, 9000).expect("there is room");
        let next = self.source.create_snapshot(name).expect("it is made");
        let sent = Sent::of(&self.source, &[self.kept.id], &next);
        (next, sent)
    }

    /// The number of a block of the LUN in the snapshot that is kept.
    fn vbn(&self, lba: u64) -> BlockPointer {
        let image = self.destination.image(Some(self.kept.id)).expect("it is there");
        let tree = image.inode(self.lun).expect("it is there").tree;
        let pointers = self.destination.tree(image.committed(), self.lun, tree).pointers(&[Lba(lba)]);
        pointers.into_iter().next().expect("one").expect("it can be read")
    }

    fn shows_kept(&self, volume: &Arc<Volume>) {
        for from_device in [false, true] {
            if from_device {
                volume.store.forget();
            }
            let image = volume.image(Some(self.kept.id)).expect("it is there");
            assert_eq!(read_image(&image, self.lun, 0, 100), (7000..7100).collect::<Vec<u64>>());
        }
    }

    /// The snapshot is unchanged: now, after a restart, with the next true image, and after a
    /// failover and many writes.
    fn assert_unharmed(self) {
        self.shows_kept(&self.destination);
        let volume = open(&self.device);
        self.shows_kept(&volume);
        let (next, sent) = self.next("true");
        sent.to(&volume).expect("it is the truth");
        for _ in 0..5 {
            volume.background(std::time::Duration::ZERO).expect("the device works");
        }
        self.shows_kept(&volume);
        assert_sound(&volume);
        let volume = open(&self.device);
        assert_eq!(volume.status().cursor.snapshot, next.id);
        volume.failover().expect("it fails over");
        for round in 0..8 {
            write(&volume, self.lun, 0, LENGTH, 1000 * round).expect("there is room");
            volume.consistency_point().expect("it commits");
        }
        self.shows_kept(&volume);
        assert_sound(&volume);
    }

    fn refuses(&self, sent: Sent, expected: impl Fn(Contradiction) -> bool) {
        let before = self.destination.snapshot_entries();
        let outcome = sent.to(&self.destination);
        assert!(
            matches!(&outcome, Err(VolumeError::Contradicts(what)) if expected(*what)),
            "a lie: {outcome:?}"
        );
        assert_eq!(self.destination.snapshot_entries(), before);
    }
}

/// The default secret of XXH3, in hexadecimal digits.
const SECRET: &str = "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743\
    248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e0\
    4bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce\
    45cb3a8f95160428afd7fbcabb4b407e";

/// Another block with the same XXH3-128 (default secret). Each lane of a stripe sums the words, and
/// the products of the halves of each word after an exclusive or with the secret. Of its 16 words
/// 11 are free, three make the products right, and two the words.
fn forged(block: &[u8; 4096], wanted: u8) -> Block {
    let secret: Vec<u8> = (0..192)
        .map(|at| u8::from_str_radix(&SECRET[2 * at..2 * at + 2], 16).expect("it is hexadecimal"))
        .collect();
    let word = |data: &[u8], at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&data[at..at + 8]);
        u64::from_le_bytes(raw)
    };
    let product = |word: u64, key: u64| ((word ^ key) & 0xffff_ffff).wrapping_mul((word ^ key) >> 32);
    let mut out = BlockMut::zeroed();
    out.copy_from_slice(block);
    for part in 0..3 {
        for lane in 0..8 {
            let at = |stripe: usize| part * 1024 + stripe * 64 + lane * 8;
            let key = |stripe: usize| word(&secret, stripe * 8 + lane * 8);
            let all = |f: &dyn Fn(usize) -> u64| (0..16).fold(0, |sum: u64, n| sum.wrapping_add(f(n)));
            let words = all(&|n| word(block, at(n)));
            let products = all(&|n| product(word(block, at(n)), key(n)));
            let mut new = vec![u64::from_le_bytes([wanted; 8]); 11];
            let made =
                new.iter().enumerate().fold(0, |sum: u64, (n, w)| sum.wrapping_add(product(*w, key(n))));
            let missing = products.wrapping_sub(made);
            let (high, low) = (missing >> 31, missing & 0x7fff_ffff);
            let first = high.min(0xffff_ffff);
            let second = (high - first).min(0xffff_ffff);
            let mixed =
                [1 << 63 | first, 1 << 63 | second, 1 << 32 | (low + ((high - first - second) << 31))];
            new.extend(mixed.iter().enumerate().map(|(n, mixed)| mixed ^ key(11 + n)));
            let rest = words.wrapping_sub(new.iter().fold(0, |sum: u64, w| sum.wrapping_add(*w)));
            let (a, b) = (key(14), key(15));
            let last = (b >> 32) << 32 | (rest.wrapping_sub(a & 0xffff_ffff) & 0xffff_ffff);
            let before =
                rest.wrapping_sub(last).wrapping_sub(a & 0xffff_ffff) >> 32 << 32 | (a & 0xffff_ffff);
            new.extend([before, last]);
            for (stripe, value) in new.into_iter().enumerate() {
                out[at(stripe)..at(stripe) + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    let out = out.freeze();
    assert!(out[..] != block[..] && Checksum::of(&out[..]) == Checksum::of(block), "it is forged");
    out
}

#[test]
fn block_of_a_kept_snapshot_that_comes_with_other_bytes_and_its_checksum_is_refused() {
    let pair = Pair::new();
    let at = pair.vbn(7);
    let (_, mut sent) = pair.next("next");
    let true_one = pair.source.read_blocks(&[(at.vbn, 1)]).expect("it can be read").remove(0);
    sent.blocks.insert(at.vbn, forged(&true_one, 0x66));
    pair.refuses(sent, |what| what == Contradiction::Forged(at.vbn));
    pair.assert_unharmed();
}

#[test]
fn forged_block_is_refused_when_only_the_cache_has_the_true_one() {
    let pair = Pair::new();
    let at = pair.vbn(7);
    pair.shows_kept(&pair.destination);
    let (_, mut sent) = pair.next("next");
    let true_one = pair.source.read_blocks(&[(at.vbn, 1)]).expect("it can be read").remove(0);
    let place =
        pair.destination.store.space().locate(SegmentKind::Space, at.vbn.0).expect("it has a place").0;
    pair.device.write_from(place, &[9; 4096]).expect("it is there");
    sent.blocks.insert(at.vbn, forged(&true_one, 0x66));
    pair.refuses(sent, |what| what == Contradiction::Forged(at.vbn));
    pair.device.write_from(place, &true_one[..]).expect("it is there");
    pair.assert_unharmed();
}

#[test]
fn number_of_a_kept_block_that_an_image_gives_to_other_content_is_refused() {
    // The image has no other block in the place where the snapshot has the block, and claims no
    // ancestor: then no map contradicts it.
    let pair = Pair::new();
    let at = pair.vbn(7);
    write(&pair.source, pair.lun, 0, 100, 500).expect("there is room");
    let (next, mut sent) = pair.next("next");
    sent.entry(next.id).parent = SnapshotId(0);
    let mut other = BlockMut::zeroed();
    other[0] = 66;
    let pointer = sent.put(BlockPointer { birth: next.root.generation, ..at }, other);
    let before = sent.pointer(pair.lun, 7);
    sent.set_pointer(pair.lun, 7, pointer);
    sent.set_bit(before.vbn, false);
    sent.set_bit(at.vbn, true);
    let kept = pair.kept.id;
    pair.refuses(sent.clone(), |what| what == Contradiction::Content(kept));
    // Nor after a restart, which finds the arrivals.
    let destination = open(&pair.device);
    let again = Pair { destination, ..pair };
    again.refuses(sent, |what| what == Contradiction::Content(kept));
    let sent = Sent::of(&again.source, &[kept], &next);
    sent.to(&again.destination).expect("it is the truth");
    again.assert_unharmed();
}

#[test]
fn same_bytes_for_a_kept_block_take_no_room_and_change_nothing() {
    let pair = Pair::new();
    let all = Sent::of(&pair.source, &[], &pair.kept);
    let (_, mut sent) = pair.next("next");
    sent.blocks.extend(all.blocks);
    sent.to(&pair.destination).expect("it is the truth");
    assert_eq!(pair.destination.status().redirected, 0);
    pair.assert_unharmed();
}

#[test]
fn image_whose_map_leaves_out_a_block_of_its_own_is_refused() {
    let pair = Pair::new();
    let (_, mut sent) = pair.next("next");
    let own = sent.pointer(pair.lun, 155).vbn;
    sent.set_bit(own, false);
    pair.refuses(sent, |what| what == Contradiction::Map);
    pair.assert_unharmed();
}

#[test]
fn image_whose_map_leaves_out_a_block_of_its_base_is_refused() {
    let pair = Pair::new();
    let at = pair.vbn(7).vbn;
    let (_, mut sent) = pair.next("next");
    sent.set_bit(at, false);
    pair.refuses(sent, |what| what == Contradiction::Map);
    // Nor from a snapshot that was never sent.
    let (next, mut sent) = pair.next("another");
    sent.entries.retain(|entry| entry.id == next.id || entry.id == pair.kept.id);
    sent.entry(next.id).parent = SnapshotId(0);
    sent.set_bit(at, false);
    pair.refuses(sent, |what| what == Contradiction::Map);
    pair.assert_unharmed();
}

#[test]
fn first_image_whose_map_leaves_out_a_block_is_refused() {
    let pair = Pair::new();
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let options = FormatOptions { id: pair.source.id(), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    let mut sent = Sent::of(&pair.source, &[], &pair.kept);
    let own = sent.pointer(pair.lun, 50).vbn;
    sent.set_bit(own, false);
    let empty = open(&device);
    let outcome = sent.to(&empty);
    assert!(matches!(outcome, Err(VolumeError::Contradicts(Contradiction::Map))), "a lie: {outcome:?}");
    assert_eq!(empty.snapshots().len(), 0);
}

#[test]
fn image_that_reaches_a_block_twice_or_before_it_was_born_is_refused() {
    let pair = Pair::new();
    let (next, sent) = pair.next("next");
    // Twice its own, and again a block that its parent has elsewhere.
    let mut twice = sent.clone();
    let own = twice.pointer(pair.lun, 155);
    let other = twice.pointer(pair.lun, 156);
    twice.set_pointer(pair.lun, 156, own);
    twice.set_bit(other.vbn, false);
    pair.refuses(twice, |what| what == Contradiction::Twice);
    let mut elsewhere = sent.clone();
    let kept = pair.vbn(7);
    let block = pair.source.read_blocks(&[(kept.vbn, 1)]).expect("it can be read").remove(0);
    elsewhere.blocks.insert(kept.vbn, block);
    elsewhere.set_pointer(pair.lun, 156, kept);
    elsewhere.set_bit(other.vbn, false);
    pair.refuses(elsewhere, |what| what == Contradiction::Twice);
    // Births distinguish the blocks of an exported image from later ones.
    let mut younger = sent.clone();
    let birth = Generation(next.root.generation.0 + 1);
    younger.set_pointer(pair.lun, 155, BlockPointer { birth, ..own });
    pair.refuses(younger, |what| what == Contradiction::Birth);
    // After a failover a block that was born after the parent is freed with its file, and the
    // parent has it still.
    let mut reborn = sent;
    let shared = pair.vbn(130);
    assert!(shared.is_hole(), "the node above it is the image's own");
    let first = pair.vbn(99);
    let block = pair.source.read_blocks(&[(first.vbn, 1)]).expect("it can be read").remove(0);
    reborn.blocks.insert(first.vbn, block);
    reborn.set_pointer(pair.lun, 157, BlockPointer { birth: next.root.generation, ..first });
    pair.refuses(reborn, |what| what == Contradiction::Twice);
    pair.assert_unharmed();
}

#[test]
fn numbers_in_a_list_of_snapshots_that_no_volume_gives_are_refused() {
    let pair = Pair::new();
    let (next, sent) = pair.next("next");
    let target = next.id;
    let far = 1 << 60;
    type Lie<'a> = (&'a str, &'a dyn Fn(&mut Sent));
    let lies: [Lie<'_>; 11] = [
        ("twice in it", &|sent| {
            let entry = sent.entry(target).clone();
            sent.entries.push(SnapshotEntry { name: "other".into(), ..entry });
        }),
        ("number 0", &|sent| sent.entry(pair.kept.id).id = SnapshotId(0)),
        ("a number that leaves none", &|sent| {
            sent.entry(target).id = SnapshotId(far);
            sent.target = SnapshotId(far);
        }),
        ("a generation that leaves none", &|sent| sent.root().generation = Generation(far)),
        ("a file number that leaves none", &|sent| sent.root().next_file = far),
        ("more blocks than its map has", &|sent| sent.root().used += 1),
        ("no blocks", &|sent| sent.root().used = 0),
        ("a name twice", &|sent| sent.entry(target).name = "kept".into()),
        ("a name that forges a line", &|sent| sent.entry(target).name = "a\n\u{1b}[2J".into()),
        ("a name of nothing", &|sent| sent.entry(target).name = String::new()),
        ("older than its parent", &|sent| sent.root().generation = Generation(0)),
    ];
    for (note, lie) in lies {
        let mut sent = sent.clone();
        lie(&mut sent);
        let outcome = sent.to(&pair.destination);
        assert!(matches!(outcome, Err(VolumeError::Contradicts(_))), "{note}: {outcome:?}");
    }
    pair.assert_unharmed();
}

#[test]
fn block_of_a_map_that_another_map_has_for_another_region_hides_no_region() {
    let (_device, volume) = fresh(BLOCKS);
    let lun = file(&volume, LENGTH);
    write(&volume, lun, 0, 50, 1).expect("there is room");
    let snapshot = volume.create_snapshot("one").expect("it is made");
    let redirects = volume.state.lock().committed.redirects.clone();
    let maps = Maps { store: &volume.store, redirects: &redirects };
    let map = snapshot.root.active_map;
    let leaf = maps.tree(map).pointers(&[Lba(0)]).remove(0).expect("it can be read");
    // A map that has the same block for region 1.
    let free = (1..BLOCKS).map(Vbn).find(|vbn| !volume.state.lock().used.get(*vbn)).expect("one is free");
    let mut node = BlockMut::zeroed();
    let address = cairn_format::NodeAddress { file: ACTIVE_MAP, level: 1, index: 0 };
    let mut writer = NodeMut::of(&mut node);
    writer.set_header(volume.id(), address, free, Generation(1));
    writer.set(1, leaf);
    let node = node.freeze();
    let pointer = BlockPointer { vbn: free, birth: Generation(1), checksum: Checksum::of(&node[..]) };
    volume.store.run(volume.store.write_home(std::iter::once((free, &node)))).expect("it is written");
    let other = TreeRef { pointer, height: 1, length: 2 };
    for both in [[map, other], [other, map]] {
        let mut seen = Vec::new();
        maps.each_region(both.into_iter(), &mut |region, _| seen.push(region), &mut |_, _, error| {
            panic!("{error}")
        });
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
    }
}
