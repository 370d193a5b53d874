//! Dumps that are read ahead against those that are not, on a device that counts how often it was
//! waited for.

use std::collections::HashSet;

use cairn_base::{ManualClock, Timestamp, VolumeId};
use cairn_bsddump::{Dump, Options, Written};
use cairn_device::{Device, FaultDevice};
use cairn_files::{New, SetStat};
use cairn_format::{INODES_PER_BLOCK, Inode as RawInode, Role};
use cairn_volume::{FormatOptions, OpenOptions, Volume};

use super::*;

const BLOCKS: u64 = 24_576;
const FILES: u32 = 1000;
const FILE: New = New { mode: 0o100_644, uid: 1, gid: 2, device: 0, umask: 0 };

fn content(number: u32, bytes: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(bytes / 4)
}

/// A volume with the files from `fill`, and its image, opened with an empty cache.
fn image_of(fill: impl FnOnce(&Tree)) -> (Arc<FaultDevice>, Arc<Tree>) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let open = || {
        let options = OpenOptions { cache_bytes: 16 << 20, clock: clock.clone() };
        Volume::open(device.clone(), options).unwrap()
    };
    let tree = Tree::open(open()).unwrap();
    fill(&tree);
    tree.volume().close().unwrap();
    drop(tree);
    let tree = Arc::new(Tree::of_image(open().image(None).unwrap()).unwrap());
    (device, tree)
}

/// Many small files in ten directories.
fn small_files(tree: &Tree) {
    for directory in 0..10 {
        let name = format!("directory {directory}").into_bytes();
        let directory_file = tree.make_directory(tree.root(), &name, &FILE).unwrap().file;
        for number in directory * FILES / 10..(directory + 1) * FILES / 10 {
            let name = format!("file {number}").into_bytes();
            let file = tree.make(directory_file, &name, &FILE).unwrap().file;
            tree.write(file, 0, &content(number, 4000)).unwrap();
        }
    }
}

/// A dump of everything, and the read-ahead data that remains in memory.
fn dump(tree: &Arc<Tree>, ahead: bool, watch: &mut dyn FnMut(&Work)) -> (Vec<u8>, Written) {
    let source = TreeSource::new(tree.clone());
    let dump = Dump::plan(&mut Reading(&source), Options::default(), None, &mut |_| true).unwrap();
    let mut out = Vec::new();
    let threads = if ahead { THREADS } else { 0 };
    if ahead {
        source.begin(dump.order());
    }
    let written = std::thread::scope(|scope| {
        let _ends = source.ends();
        for _ in 0..threads {
            scope.spawn(|| source.load());
        }
        let mut watch = |_| {
            watch(&source.work.lock());
            true
        };
        dump.write(&mut Reading(&source), &mut out, &mut watch).unwrap()
    });
    (out, written)
}

#[test]
fn threads_that_read_ahead_end_with_who_writes_also_where_that_panics() {
    let (_, tree) = image_of(|_| {});
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let source = TreeSource::new(tree);
        let panics = std::panic::AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                let _ends = source.ends();
                scope.spawn(|| source.load());
                panic!("on purpose");
            })
        });
        told.send(std::panic::catch_unwind(panics).is_err())
    });
    assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(10)), Ok(true));
}

#[test]
fn dump_of_small_files_waits_for_few_of_them_and_is_the_same() {
    let (device, tree) = image_of(|tree| {
        small_files(tree);
        tree.make_link(tree.root(), b"link", b"directory 3/file 301", &FILE).unwrap();
        let holes = tree.make(tree.root(), b"holes", &FILE).unwrap().file;
        tree.write(holes, 100_000, b"in the middle").unwrap();
        let empty = tree.make(tree.root(), b"empty", &FILE).unwrap().file;
        tree.set_xattr(empty, b"user.why", b"to be read too", cairn_files::SetXattr::Any).unwrap();
        let long = tree.make(tree.root(), b"long", &FILE).unwrap().file;
        tree.write(long, 0, &content(5, 3 << 20)).unwrap();
    });
    device.take_read_batches();
    let (ahead, written) = dump(&tree, true, &mut |_| {});
    let waited = device.take_read_batches();
    assert_eq!((written.failed.len(), written.inodes), (0, u64::from(FILES) + 15));
    // Nodes and blocks of each batch; and the ways to inodes, the directories' leaves and the long
    // file's pieces.
    assert!(waited <= 2 * u64::from(FILES) / BATCH as u64 + 60, "{waited} times for {FILES} files");
    let (alone, _) = dump(&tree, false, &mut |_| {});
    assert!(ahead == alone);
}

#[test]
fn what_is_read_ahead_is_bounded_and_counted_to_the_end() {
    let (_device, tree) = image_of(|tree| {
        for number in 0..300 {
            let file = tree.make(tree.root(), format!("{number}").as_bytes(), &FILE).unwrap().file;
            tree.write(file, 0, &content(number, 200 << 10)).unwrap();
        }
    });
    let mut most = 0;
    let (_, written) = dump(&tree, true, &mut |work| {
        most = most.max(work.loaded_bytes);
        assert_eq!(work.loaded_bytes, work.loaded.values().map(|one| one.bytes).sum::<u64>());
        assert!(work.next <= work.at + FILES_AHEAD);
    });
    assert!(written.failed.is_empty());
    assert!(most <= BYTES_AHEAD + (THREADS * BATCH) as u64 * SMALL, "{most} bytes");
    assert!(most < 300 * (200 << 10), "it is less than all of them");
}

#[test]
fn damage_of_one_file_of_a_batch_costs_that_file() {
    let (device, tree) = image_of(small_files);
    let place = |number: u32| {
        let bytes = content(number, 4000);
        let is_it = |offset: &u64| device.read(*offset, 4096).unwrap().to_vec().starts_with(&bytes);
        (0..device.geometry().length / 4096).map(|block| block * 4096).find(is_it).unwrap()
    };
    device.write_from(place(500), &[9; 4096]).unwrap();
    device.fail_reads(place(700)..place(700) + 512);
    let (_, written) = dump(&tree, true, &mut |_| {});
    let hurt: Vec<Vec<u8>> = [500, 700].map(|number: u32| format!("file {number}").into_bytes()).to_vec();
    let number_of = |name: &Vec<u8>| {
        let path = [b"directory ", &name[5..6], b"/", name].concat();
        tree.resolve(&path).unwrap().file.0 as u32
    };
    let failed: Vec<u32> = written.failed.iter().map(|one| one.number).collect();
    assert_eq!(failed, hurt.iter().map(number_of).collect::<Vec<_>>());
}

/// The unit of read-ahead is larger than the unit of loss.
#[test]
fn one_block_that_cannot_be_read_costs_itself_also_where_files_are_read_ahead() {
    let block = |file: u32, index: u32| (file << 16 | index).to_le_bytes().repeat(BLOCK_SIZE / 4);
    // In the first half of the second piece, whose other half is another segment of the dump.
    let files = [(1, 50, 21), (2, 768, 300)];
    let (device, tree) = image_of(|tree| {
        for (file, blocks, _) in files {
            let made = tree.make(tree.root(), format!("{file}").as_bytes(), &FILE).unwrap().file;
            let content: Vec<u8> = (0..blocks).flat_map(|index| block(file, index)).collect();
            tree.write(made, 0, &content).unwrap();
        }
    });
    let place = |(file, _, hurt): (u32, u32, u32)| {
        let is_it =
            |offset: &u64| *device.read(*offset, BLOCK_SIZE as u32).unwrap().to_vec() == block(file, hurt);
        (0..device.geometry().length).step_by(BLOCK_SIZE).find(is_it).unwrap()
    };
    for place in files.map(place) {
        device.fail_reads(place..place + BLOCK_SIZE as u64);
    }
    let mut left = usize::MAX;
    let (ahead, written) = dump(&tree, true, &mut |work| left = work.pieces.len());
    assert_eq!(written.failed.len(), 2, "{:?}", written.failed);
    assert_eq!(left, 0, "what failed is not kept behind what is written");
    let records: HashSet<&[u8]> = ahead.chunks(1024).collect();
    for (file, blocks, hurt) in files {
        let is_lost = |index: &u32| !records.contains(&block(file, *index)[..1024]);
        let lost: Vec<u32> = (0..blocks).filter(is_lost).collect();
        assert_eq!(lost, [hurt], "of the file {file}");
    }
    let (alone, _) = dump(&tree, false, &mut |_| {});
    assert!(ahead == alone);
}

/// A snapshot with a damaged block of inodes is still dumped: it may be the last one.
#[test]
fn inodes_that_cannot_be_read_cost_their_files_and_no_others() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let open = || {
        let options = OpenOptions { cache_bytes: 16 << 20, clock: clock.clone() };
        Volume::open(device.clone(), options).unwrap()
    };
    let tree = Tree::open(open()).unwrap();
    small_files(&tree);
    let snapshot = tree.volume().create_snapshot("noon").unwrap().id;
    let image = Tree::of_image(tree.volume().image(Some(snapshot)).unwrap()).unwrap();
    let files: Vec<Stat> = image.nodes(FileId(0), usize::MAX).unwrap();
    drop(image);
    let hurt = tree.resolve(b"directory 5/file 550").unwrap().file;
    // The present files have other blocks.
    for stat in &files {
        let change = SetStat { mode: Some(0o600), ..SetStat::default() };
        tree.set(stat.file, &change).unwrap();
    }
    tree.volume().close().unwrap();
    drop(tree);
    let (_, slot) = RawInode::place(hurt);
    for offset in (0..device.geometry().length).step_by(BLOCK_SIZE) {
        let block = device.read(offset, BLOCK_SIZE as u32).unwrap().to_vec();
        let block: &[u8; BLOCK_SIZE] = block[..].try_into().unwrap();
        let is_it = |inode: RawInode| inode.id == hurt && inode.attributes.mode & 0o777 == 0o644;
        if matches!(RawInode::parse(block, slot), Ok(Some(inode)) if is_it(inode)) {
            device.write_from(offset, &[9; BLOCK_SIZE]).unwrap();
        }
    }
    let tree = Arc::new(Tree::of_image(open().image(Some(snapshot)).unwrap()).unwrap());
    let (bytes, written) = dump(&tree, true, &mut |_| {});
    let is_beside = |stat: &&Stat| stat.file.0 / INODES_PER_BLOCK == hurt.0 / INODES_PER_BLOCK;
    let lost: Vec<u32> = files.iter().filter(is_beside).map(|stat| stat.file.0 as u32).collect();
    let mut failed: Vec<u32> = written.failed.iter().map(|one| one.number).collect();
    failed.sort_unstable();
    failed.dedup();
    assert_eq!(failed, lost);
    let mut reader = cairn_bsddump::Reader::open(&bytes[..]).unwrap();
    let mut read = 0;
    while reader.next_inode().unwrap().is_some() {
        read += 1;
    }
    // The root is among the first of them, whose block is intact.
    assert_eq!(read, files.len() - lost.len());
    assert_eq!(reader.used().count(), files.len() as u64, "a restore would remove what is not there");
}

/// The root has a number of its own in a dump. In a volume that had a LUN first that is the LUN's.
#[test]
fn what_is_not_in_a_dump_is_told_by_its_own_name_also_where_a_lun_was_there_first() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let volume = Volume::open(device, OpenOptions { cache_bytes: 16 << 20, clock }).unwrap();
    cairn_files::Luns::new(volume.clone()).create("disk", 1 << 20).unwrap();
    let tree = Tree::open(volume).unwrap();
    assert_ne!(tree.root(), FileId(ROOT.into()), "else there is nothing to exchange");
    let below = tree.make_directory(tree.root(), b"below", &FILE).unwrap().file;
    assert_eq!(name_of(&tree, number_of(&tree, tree.root()).unwrap()), "/");
    assert_eq!(name_of(&tree, number_of(&tree, below).unwrap()), "/below");
    assert_eq!(name_of(&tree, 4711), "the file with the number 4711");
}
