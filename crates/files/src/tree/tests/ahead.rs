//! Files that are loaded before they are requested.

use super::*;

const FILES: u64 = 1024;
/// Inodes in a block: the number of files loaded with one.
const BESIDE: u64 = cairn_format::INODES_PER_BLOCK;

fn name(number: u64) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(500)
}

/// Small files in one directory, committed; then the volume is opened with nothing in its cache.
fn many() -> (Arc<FaultDevice>, Tree, FileId, Vec<FileId>) {
    let blocks = 16_384;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let directory = tree.make_directory(tree.root(), b"many", &FOLDER).expect("there is room").file;
    let make = |number| {
        let file = tree.make(directory, &name(number), &FILE).expect("there is room").file;
        tree.write(file, 0, &content(number)).expect("there is room");
        file
    };
    let files = (0..FILES).map(make).collect();
    tree.volume().close().expect("it closes");
    drop(tree);
    let options = OpenOptions { cache_bytes: 64 << 20, clock };
    let volume = Volume::open(device.clone(), options).expect("the volume opens");
    let tree = Tree::open(volume).expect("the tree opens");
    device.take_read_batches();
    (device, tree, directory, files)
}

#[test]
fn who_reads_one_small_file_after_the_other_waits_for_few_of_them() {
    let (device, tree, _, files) = many();
    for (number, file) in files.iter().enumerate() {
        assert_eq!(tree.read(*file, 0, 9999).expect("it reads"), content(number as u64));
    }
    let waited = device.take_read_batches();
    // For each block of inodes that itself, the nodes and the blocks; and some for the way there.
    assert!(waited <= 3 * (FILES / BESIDE + 1) + 8, "{waited} times for {FILES} files");
    assert_whole(&tree);
}

#[test]
fn who_reads_here_and_there_gets_nothing_else() {
    let (_device, tree, _, files) = many();
    for number in [0, 300, 600, 900] {
        assert_eq!(tree.read(files[number], 0, 9999).expect("it reads"), content(number as u64));
        assert!(tree.volume().has_path(files[number]));
        assert!(!tree.volume().has_path(files[number + 1]));
    }
}

#[test]
fn what_changed_meanwhile_is_read_and_not_what_was_loaded_ahead() {
    let (_device, tree, _, files) = many();
    tree.write(files[5], 0, b"changed").expect("there is room");
    tree.set(files[6], &SetStat { bytes: Some(0), ..SetStat::default() }).expect("it is cut");
    for (number, file) in files.iter().take(BESIDE as usize).enumerate() {
        let mut expected = content(number as u64);
        match number {
            5 => expected[..7].copy_from_slice(b"changed"),
            6 => expected.clear(),
            _ => {}
        }
        assert_eq!(tree.read(*file, 0, 9999).expect("it reads"), expected);
    }
}

#[test]
fn who_removes_one_small_file_after_the_other_waits_for_few_of_them() {
    let (device, tree, directory, _) = many();
    for number in 0..FILES {
        tree.unlink(directory, &name(number)).expect("it is there");
    }
    let waited = device.take_read_batches();
    // For each block of inodes that itself and the nodes; and the blocks of the directory.
    assert!(waited <= 2 * (FILES / BESIDE + 1) + 40, "{waited} times for {FILES} files");
    tree.remove_directory(tree.root(), b"many").expect("it is empty");
    assert_whole(&tree);
}

#[test]
fn files_of_an_image_are_read_together_and_damage_costs_one() {
    let (device, tree, directory, files) = many();
    let link = tree.make_link(tree.root(), b"link", b"a target", &FILE).expect("there is room").file;
    let long = tree.make(tree.root(), b"long", &FILE).expect("there is room").file;
    tree.write(long, 0, &[7; 10_000]).expect("there is room");
    let snapshot = tree.volume().create_snapshot("now").expect("it is made");
    tree.unlink(directory, &name(1)).expect("it is there");
    let image = tree.volume().image(Some(snapshot.id)).expect("it is there");
    let old = Tree::of_image(image).expect("it has a tree");
    let wanted = [files[1], link, long, directory, FileId(99_999), files[2]];
    let read = old.read_together(&wanted, 9_999);
    let bytes = |read: &Option<Result<Vec<u8>, TreeError>>| read.as_ref().map(|read| read.clone().ok());
    assert_eq!(bytes(&read[0]), Some(Some(content(1))));
    assert_eq!(bytes(&read[1]), Some(Some(b"a target".to_vec())));
    assert!(read[2].is_none() && read[3].is_none() && read[4].is_none());
    assert_eq!(bytes(&read[5]), Some(Some(content(2))));
    assert_eq!(bytes(&old.read_together(&[long], 10_000)[0]), Some(Some(vec![7; 10_000])));
    assert!(tree.read_together(&[long], 10_000)[0].is_none(), "a live tree is read file by file");

    // Blocks outside of memory can't be read: files that were read before are present, the others
    // fail.
    device.fail_reads(0..u64::MAX);
    let read = old.read_together(&[files[1], files[700], files[2]], 9_999);
    assert_eq!((bytes(&read[0]), bytes(&read[2])), (Some(Some(content(1))), Some(Some(content(2)))));
    assert!(!matches!(bytes(&read[1]), Some(Some(_))), "nothing is made up");
}
