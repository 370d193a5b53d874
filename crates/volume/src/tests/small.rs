//! Small files: read together, and brought into memory with one that is read.

use std::ops::Range;

use cairn_device::{DeviceError, Geometry, LoggedKind, Operation, Request};
use cairn_format::{Attributes, Inode, TreeRef};

use super::*;

const BLOCKS: u64 = 8192;
/// More than two blocks of inodes hold.
const FILES: u64 = 100;

/// Files of one block each, which contains the file's number.
fn made() -> (Arc<FaultDevice>, Arc<Volume>, Vec<FileId>) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let make = |_| {
        let id = volume.next_file().expect("it is open");
        let attributes = Attributes { mode: 0o100_644, links: 1, blocks: 1, ..Attributes::default() };
        let mut change = Change::new();
        change.put(Inode {
            kind: FileKind::Node,
            removed: false,
            id,
            length_bytes: 4096,
            created: Timestamp(5),
            relationship: 0,
            tree: TreeRef::empty(1),
            attributes,
        });
        change.write(id, Lba(0), block(id.0));
        volume.change(change, false).expect("there is room");
        id
    };
    let files = (0..FILES).map(make).collect();
    (device, volume, files)
}

/// The same committed; then the volume is opened with nothing in its cache.
fn many() -> (Arc<FaultDevice>, Arc<Volume>, Vec<FileId>) {
    let (device, volume, files) = made();
    let volume = opened_again(&device, volume);
    (device, volume, files)
}

fn opened_again(device: &Arc<FaultDevice>, volume: Arc<Volume>) -> Arc<Volume> {
    volume.close().expect("it closes");
    drop(volume);
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = OpenOptions { cache_bytes: 64 << 20, clock };
    Volume::open(device.clone(), options).expect("the volume opens")
}

fn offset(vbn: u64) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn) * 4096
}

/// Where a file's node and its block are.
fn places(volume: &Arc<Volume>, file: FileId) -> [u64; 2] {
    let committed = volume.state.lock().committed.clone();
    let inode = volume.inode(file).expect("the file exists");
    let tree = volume.tree(&committed, file, inode.tree);
    let block = tree.pointers(&[Lba(0)]).remove(0).expect("the node can be read");
    [inode.tree.pointer.vbn.0, block.vbn.0]
}

fn number(read: &Result<cairn_device::Segments, VolumeError>) -> Option<u64> {
    let bytes = read.as_ref().ok()?.to_vec();
    Some(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")))
}

#[test]
fn many_small_files_are_read_in_two_batches() {
    let (device, volume, files) = many();
    let image = volume.image(None).expect("there is a state");
    for file in &files {
        image.inode(*file).expect("it is there");
    }
    device.take_read_batches();
    let wanted: Vec<_> = files.iter().map(|file| (*file, 1)).collect();
    let read = image.read_files(&wanted);
    assert_eq!(device.take_read_batches(), 2, "the nodes, and the blocks");
    assert!(read.iter().zip(&files).all(|(read, file)| number(read) == Some(file.0)));
    let again = image.read_files(&[(files[7], 2), (FileId(9999), 1), (files[8], 0)]);
    assert_eq!(device.take_read_batches(), 0, "all of it is in memory");
    assert_eq!(
        again[0].as_ref().map(|segments| segments.len()).ok(),
        Some(8192),
        "with what is past the end"
    );
    assert!(matches!(again[1], Err(VolumeError::NoSuchFile(FileId(9999)))));
    assert!(again[2].as_ref().is_ok_and(cairn_device::Segments::is_empty));
}

#[test]
fn place_that_cannot_be_read_or_is_damaged_costs_its_own_file_of_those_read_together() {
    let (device, volume, files) = many();
    let hurt = [3, 4, 5, 40].map(|at: usize| files[at]);
    let places = hurt.map(|file| places(&volume, file));
    volume.store.forget();
    // A node and a block in the middle of others, of two neighbouring files; and bytes of two more.
    device.fail_reads(offset(places[0][0])..offset(places[0][0]) + 512);
    device.fail_reads(offset(places[1][1])..offset(places[1][1]) + 512);
    device.write_from(offset(places[2][0]), &[9; 4096]).expect("it is there");
    device.write_from(offset(places[3][1]), &[9; 4096]).expect("it is there");
    let image = volume.image(None).expect("there is a state");
    let wanted: Vec<_> = files.iter().map(|file| (*file, 1)).collect();
    for (read, file) in image.read_files(&wanted).iter().zip(&files) {
        match hurt.iter().position(|hurt| hurt == file) {
            None => assert_eq!(number(read), Some(file.0)),
            Some(0 | 1) => assert!(matches!(read, Err(VolumeError::Device(_))), "{read:?}"),
            Some(_) => assert!(matches!(read, Err(VolumeError::Damaged { .. })), "{read:?}"),
        }
    }
    let noted: Vec<u64> = volume.damaged().iter().map(|one| one.vbn.0).collect();
    let mut expected = [places[0][0], places[1][1], places[2][0], places[3][1]];
    expected.sort_unstable();
    assert_eq!(noted, expected, "and nothing beside them");
}

/// A device that knows which of its bytes are damaged, as a history does.
struct Knowing {
    inner: Arc<FaultDevice>,
    damaged: Range<u64>,
}

impl Device for Knowing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if let Request::Read { offset, length } = *operation.request()
                && offset < self.damaged.end
                && self.damaged.start < offset + u64::from(length)
            {
                operation.finish(Err(DeviceError::Corrupt { offset: self.damaged.start, length: 4096 }));
            }
        }
        self.inner.run(batch);
    }
}

#[test]
fn block_that_its_device_knows_to_be_damaged_costs_its_own_file_and_can_be_repaired() {
    let (device, volume, files) = many();
    let [_, hurt] = places(&volume, files[4]);
    drop(volume);
    let device = Arc::new(Knowing { inner: device, damaged: offset(hurt)..offset(hurt) + 4096 });
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = OpenOptions { cache_bytes: 64 << 20, clock };
    let volume = Volume::open(device, options).expect("the volume opens");
    let image = volume.image(None).expect("there is a state");
    let wanted: Vec<_> = files.iter().map(|file| (*file, 1)).collect();
    for (read, file) in image.read_files(&wanted).iter().zip(&files) {
        match *file == files[4] {
            true => {
                assert!(matches!(read, Err(VolumeError::Device(DeviceError::Corrupt { .. }))), "{read:?}")
            }
            false => assert_eq!(number(read), Some(file.0)),
        }
    }
    let noted: Vec<u64> = volume.damaged().iter().map(|one| one.vbn.0).collect();
    assert_eq!(noted, [hurt], "what is noted can be repaired, and nothing beside it is");
}

#[test]
fn files_beside_one_come_into_memory_with_it() {
    let (device, volume, files) = many();
    let middle = files[50];
    let beside = |file: &&FileId| file.0 / 32 == middle.0 / 32;
    volume.load_beside(middle, false);
    assert!(files.iter().filter(beside).all(|file| volume.has_path(*file)));
    assert!(!files.iter().filter(|file| !beside(file)).any(|file| volume.has_path(*file)));
    device.take_read_batches();
    volume.load_beside(middle, true);
    assert_eq!(device.take_read_batches(), 1, "the blocks");
    for file in files.iter().filter(beside) {
        assert_eq!(read(&volume, *file, 0, 1), [file.0]);
    }
    assert_eq!(device.take_read_batches(), 0);
}

#[test]
fn large_file_beside_small_ones_does_not_come_into_memory_with_them() {
    const LARGE: u64 = 2000;
    let (device, volume, files) = made();
    let small = files[files.len() - 1];
    let large = volume.next_file().expect("it is open");
    assert_eq!(small.0 / 32, large.0 / 32, "their inodes are in one block");
    let mut change = Change::new();
    change.put(node(large, LARGE, false));
    (0..LARGE).for_each(|lba| change.write(large, Lba(lba), block(lba)));
    volume.change(change, false).expect("there is room");
    let volume = opened_again(&device, volume);
    volume.load_beside(small, true);
    let is_in_memory = |file: FileId, lba: u64| {
        volume.inode(file).expect("it is there");
        let mut reads = [BlockRead::new(Lba(lba), 1)];
        volume.read(file, &mut reads, false);
        reads[0].outcome.is_some()
    };
    assert!(is_in_memory(small, 0));
    assert!(!(0..LARGE).any(|lba| is_in_memory(large, lba)));
    assert_eq!(read(&volume, large, 5, 1), [5]);
}

#[test]
fn nodes_of_many_small_files_are_written_together() {
    let (device, volume, files) = made();
    volume.flush().expect("it flushes");
    device.take_log();
    volume.consistency_point().expect("it commits");
    let writes = device.take_log().iter().filter(|one| one.kind == LoggedKind::Write).count() as u64;
    assert!(writes < FILES / 4, "{writes} writes for {FILES} nodes");
    for file in files {
        assert_eq!(read(&volume, file, 0, 1), [file.0]);
    }
    assert_sound(&volume);
}

#[test]
fn consistency_point_waits_for_few_nodes_of_many_removed_files() {
    let (device, volume, files) = many();
    for file in &files {
        let inode = volume.inode(*file).expect("it is there");
        let mut change = Change::new();
        change.put(Inode { removed: true, ..inode });
        volume.change(change, true).expect("it is removed");
    }
    volume.store.forget();
    device.take_read_batches();
    let free = volume.status().free;
    volume.consistency_point().expect("it commits");
    let waited = device.take_read_batches();
    // The nodes, and the blocks of the maps and of the inode file with the ways to them.
    assert!(waited < FILES / 4, "{waited} times for {FILES} nodes");
    assert!(volume.status().free > free + FILES, "they are free");
    assert_sound(&volume);
}
