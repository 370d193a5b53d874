//! Trees in small steps, against a model, and cut.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{FileId, ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::{Device, FaultDevice, MemoryDevice};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume, VolumeError};

use crate::model::{Model, Player, shown};
use crate::*;

mod ahead;
mod cut;
mod damage;
mod dates;
mod difference;
mod directories;
mod findings;
mod forged;
mod quotas;
mod reads;
mod rollback;
mod rules;

const FILE: New = New { mode: 0o100_644, uid: 1, gid: 2, device: 0, umask: 0 };
const FOLDER: New = New { mode: 0o755, uid: 1, gid: 2, device: 0, umask: 0 };

fn format(device: &dyn Device, blocks: u64) {
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(device, &options, &ManualClock::new(Timestamp(1))).expect("an empty device is formatted");
}

fn open_volume<D: Device + 'static>(device: &Arc<D>, clock: Arc<ManualClock>) -> Arc<Volume> {
    Volume::open(device.clone(), OpenOptions { cache_bytes: 8 << 20, clock }).expect("the volume opens")
}

fn fresh(blocks: u64) -> (Arc<MemoryDevice>, Tree) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open_volume(&device, Arc::new(ManualClock::new(Timestamp(1_000_000_000))));
    let tree = Tree::open(volume).expect("a tree is made");
    (device, tree)
}

/// The volume and the tree are whole.
#[track_caller]
fn assert_whole(tree: &Tree) {
    let volume = tree.volume();
    let report = volume.check(&mut |_| {}).expect("checking is possible");
    assert_eq!(report.findings, []);
    let image = volume.image(None).expect("there is a state");
    assert_eq!(check_tree(&image).expect("looking is possible"), []);
}

#[test]
fn new_tree_is_of_who_makes_it_and_stays_so() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let volume = open_volume(&device, Arc::new(ManualClock::new(Timestamp(1_000_000_000))));
    for owner in [Owner { uid: 1000, gid: 100 }, Owner::default()] {
        let tree = Tree::open_for(volume.clone(), owner).expect("it opens");
        let stat = tree.stat(tree.root()).expect("it is there");
        assert_eq!((stat.uid, stat.gid, stat.mode & 0o777), (1000, 100, 0o755));
        assert_whole(&tree);
    }
}

#[test]
fn tree_does_what_the_model_does() {
    for seed in 0..6 {
        let (device, mut tree) = fresh(16_384);
        let mut player = Player::new(&tree, Rng::new(seed));
        for number in 0..600 {
            player.step(&tree).unwrap_or_else(|error| panic!("{}: {error}", player.last));
            match number % 150 {
                50 => drop(tree.volume().consistency_point().expect("it commits")),
                100 => tree.sync_all().expect("it flushes"),
                149 => {
                    assert_eq!(shown(&tree).expect("it can be read"), player.model.shown(), "seed {seed}");
                    assert_whole(&tree);
                    tree.sync_all().expect("it flushes");
                    // Another life: no holds.
                    drop(tree);
                    let clock = Arc::new(ManualClock::new(Timestamp(2_000_000_000)));
                    tree = Tree::open(open_volume(&device, clock)).expect("the tree opens");
                    let model = player.model.without_holds();
                    player.go_on_with(model);
                    assert_eq!(shown(&tree).expect("it can be read"), player.model.shown(), "seed {seed}");
                }
                _ => {}
            }
        }
        // Removed files leave nothing: an empty tree takes as much space as a new one.
        remove_all(&tree, tree.root());
        assert_whole(&tree);
    }
}

fn remove_all(tree: &Tree, directory: FileId) {
    for entry in tree.read_directory(directory, 2, usize::MAX).expect("it can be read") {
        if entry.kind == NodeKind::Directory {
            remove_all(tree, entry.file);
            tree.remove_directory(directory, &entry.name).expect("it is empty");
        } else {
            tree.unlink(directory, &entry.name).expect("it is there");
        }
    }
}

#[test]
fn full_volume_says_so_and_nothing_suffers() {
    let (_device, tree) = fresh(1024);
    let mut player = Player::new(&tree, Rng::new(5));
    player.may_be_full = true;
    let mut filled = Vec::new();
    for number in 0..400 {
        player.step(&tree).unwrap_or_else(|error| panic!("{}: {error}", player.last));
        if number == 100 {
            // Unknown to the player, which works in the remaining room.
            let root = tree.make_directory(tree.root(), b"full", &FOLDER).expect("there is room").file;
            for n in 0..2000 {
                let made = tree.make(root, format!("{n}").as_bytes(), &FILE);
                let written = made.and_then(|stat| tree.write(stat.file, 0, &[1; 40_000]));
                match written {
                    Ok(_) => filled.push(n),
                    Err(TreeError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(filled.len() > 10, "{filled:?}");
        }
    }
    let full = tree.resolve(b"full").expect("it is there");
    remove_all(&tree, full.file);
    tree.remove_directory(tree.root(), b"full").expect("it is empty");
    assert_eq!(shown(&tree).expect("it can be read"), player.model.shown());
    assert_whole(&tree);
}

#[test]
fn reads_of_a_full_volume_wait_for_no_room_to_note_their_time() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(2048, Role::Normal)));
    format(&*device, 2048);
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let make = |n: u32| {
        let file = tree.make(tree.root(), format!("{n}").as_bytes(), &FILE).expect("there is room").file;
        tree.write(file, 0, b"content").expect("there is room");
        file
    };
    let files: Vec<FileId> = (0..300).map(make).collect();
    let full = tree.make(tree.root(), b"full", &FILE).expect("there is room").file;
    // To the last block.
    let mut at = 0;
    for bytes in [1 << 20, 4096] {
        while let Ok(count) = tree.write(full, at, &vec![1; bytes]).map(|count| count as u64)
            && count > 0
        {
            at += count;
        }
    }
    let points = || tree.volume().status().consistency_points;
    let before = points();
    clock.advance(Duration::from_secs(100));
    for file in &files {
        assert_eq!(tree.read(*file, 0, 99).expect("it reads"), b"content");
    }
    assert_eq!(points(), before, "consistency points were made to find room for the times of reads");
    // If there is room they are recorded.
    tree.unlink(tree.root(), b"full").expect("it is there");
    for _ in 0..4 {
        tree.volume().background(Duration::ZERO).expect("it frees");
        tree.volume().consistency_point().expect("it commits");
    }
    for file in &files {
        tree.read(*file, 0, 99).expect("it reads");
        assert_eq!(tree.stat(*file).expect("it is there").accessed_ns, 101_000_000_000);
    }
    assert_whole(&tree);
}

#[test]
fn image_shows_what_was_there_and_takes_no_change() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    tree.write(file, 0, b"before").expect("there is room");
    let snapshot = tree.volume().create_snapshot("noon").expect("it is made");
    tree.write(file, 0, b"after!").expect("there is room");
    tree.rename(tree.root(), b"a", tree.root(), b"b", Rename::Replace).expect("it is there");
    let image = tree.volume().image(Some(snapshot.id)).expect("it is there");
    let old = Tree::of_image(image).expect("it has a tree");
    assert_eq!(old.read(old.resolve(b"a").expect("it is there").file, 0, 99).expect("it reads"), b"before");
    assert!(matches!(old.resolve(b"b"), Err(TreeError::NotFound)));
    assert!(matches!(old.write(file, 0, b"x"), Err(TreeError::ReadOnly)));
    assert!(matches!(old.make(old.root(), b"c", &FILE), Err(TreeError::ReadOnly)));
    assert_eq!(tree.read(file, 0, 99).expect("it reads"), b"after!");
    let numbers: Vec<FileId> =
        old.nodes(FileId(0), 10).expect("they can be read").iter().map(|stat| stat.file).collect();
    assert_eq!(numbers, [old.root(), file]);
}
