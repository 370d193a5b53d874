//! Catalogues against trees that are read whole.

use std::sync::Arc;

use cairn_base::{FileId, ManualClock, Rng, Timestamp, VolumeId};
use cairn_device::MemoryDevice;
use cairn_files::NodeKind;
use cairn_files::model::Player;
use cairn_format::Role;
use cairn_volume::{FormatOptions, OpenOptions, Volume};

use super::*;

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(16_384, Role::Normal)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: 16_384, role: Role::Normal };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    Volume::open(device, OpenOptions { cache_bytes: 8 << 20, clock }).unwrap()
}

/// The catalogue from reading all directories.
fn of_tree(tree: &Tree) -> Catalog {
    let (mut names, mut waiting) = (Vec::new(), vec![tree.root()]);
    while let Some(directory) = waiting.pop() {
        let entries = tree.read_directory(directory, 0, usize::MAX >> 1).unwrap();
        for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            names.push((number_of(tree, entry.file).unwrap(), number_of(tree, directory).unwrap()));
            waiting.extend((entry.kind == NodeKind::Directory).then_some(entry.file));
        }
    }
    Catalog::of(names)
}

/// The visible state of a file with a name, except its names and its times: the clock does not
/// advance here.
fn told(tree: &Tree, file: FileId) -> Option<String> {
    let stat = tree.stat(file).ok().filter(|stat| stat.links > 0)?;
    let content = match stat.kind {
        NodeKind::File => tree.read(file, 0, stat.bytes as usize).unwrap(),
        NodeKind::SymbolicLink => tree.read_link(file).unwrap(),
        _ => Vec::new(),
    };
    let mut names = tree.xattrs(file).unwrap();
    names.sort();
    let values: Vec<_> = names.iter().map(|name| tree.xattr(file, name).unwrap()).collect();
    Some(format!("{:o} {} {} {} {names:?} {values:?} {content:?}", stat.mode, stat.uid, stat.gid, stat.links))
}

/// The files of the later of two images that a dump must have, besides their parent directories.
fn changed(base: &Tree, now: &Tree) -> Vec<u32> {
    let mut found = Vec::new();
    let mut from = FileId(0);
    loop {
        let stats = now.nodes(from, 100).unwrap();
        let Some(last) = stats.last() else { return found };
        from = FileId(last.file.0 + 1);
        for stat in stats.into_iter().filter(|stat| stat.links > 0) {
            if told(base, stat.file) != told(now, stat.file) {
                found.push(number_of(now, stat.file).unwrap());
            }
        }
    }
}

#[test]
fn catalogue_that_follows_is_the_one_of_the_whole_tree() {
    for seed in 0..6 {
        let tree = Tree::open(volume()).unwrap();
        let volume = tree.volume().clone();
        let image = |name: &str| {
            let id = volume.create_snapshot(name).unwrap().id;
            Tree::of_image(volume.image(Some(id)).unwrap()).unwrap()
        };
        let mut player = Player::new(&tree, Rng::new(seed));
        (0..200).for_each(|_| player.step(&tree).unwrap());
        let mut base = image("base");
        let mut catalog = of_tree(&base);
        for round in 0..5 {
            (0..60).for_each(|_| player.step(&tree).unwrap());
            let now = image(&format!("{round}"));
            let known = catalog.follow(&base, &now).unwrap();
            let whole = of_tree(&now);
            assert_eq!(catalog, whole, "seed {seed}, round {round}");
            for file in changed(&base, &now) {
                assert!(known.dumped.contains(file), "seed {seed}, round {round}: {file} changed");
            }
            for file in known.dumped.iter() {
                assert!(known.used.contains(file), "{file} is gone");
                assert!(
                    whole.directories_of(file).all(|above| known.dumped.contains(above)),
                    "no way to {file}"
                );
            }
            assert_eq!(known.used.count(), whole.used().count());
            base = now;
        }
    }
}

#[test]
fn directory_with_many_names_is_not_in_the_dump_of_a_file_next_to_it() {
    let tree = Tree::open(volume()).unwrap();
    let volume = tree.volume().clone();
    let new = cairn_files::New { mode: 0o755, ..Default::default() };
    let many = tree.make_directory(tree.root(), b"many", &new).unwrap().file;
    let files: Vec<FileId> =
        (0..500).map(|n| tree.make(many, format!("{n}").as_bytes(), &new).unwrap().file).collect();
    let side = tree.make_directory(tree.root(), b"side", &new).unwrap().file;
    let alone = tree.make(side, b"alone", &new).unwrap().file;
    let image = |name: &str| {
        let id = volume.create_snapshot(name).unwrap().id;
        Tree::of_image(volume.image(Some(id)).unwrap()).unwrap()
    };
    let base = image("base");
    let mut catalog = of_tree(&base);
    tree.write(alone, 0, b"changed").unwrap();
    // Reading is not a change.
    tree.read(files[3], 0, 1).unwrap();
    let now = image("now");
    let known = catalog.follow(&base, &now).unwrap();
    let number = |file| number_of(&now, file).unwrap();
    let mut expected = vec![ROOT, number(side), number(alone)];
    expected.sort_unstable();
    assert_eq!(known.dumped.iter().collect::<Vec<_>>(), expected);
    assert_eq!(known.used.count(), 504);
}

#[test]
fn catalogue_that_is_not_whole_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = Catalog::path(folder.path(), 3);
    let catalog = Catalog::of(vec![(9, 2), (7, 2), (9, 7), (9, 7)]);
    let volume = volume();
    let (one, two) = (volume.create_snapshot("one").unwrap(), volume.create_snapshot("two").unwrap());
    catalog.save(&path, &one).unwrap();
    assert_eq!(Catalog::load(&path, &one), Some(catalog));
    assert_eq!(Catalog::load(&path, &two), None);
    let other = Snapshot { created: Timestamp(one.created.0 + 1), ..one.clone() };
    assert_eq!(Catalog::load(&path, &other), None, "another side's of the same number");
    let whole = std::fs::read(&path).unwrap();
    for (at, end) in
        [(0, whole.len()), (30, whole.len()), (whole.len() - 1, whole.len()), (0, whole.len() - 1), (0, 10)]
    {
        let mut bytes = whole[..end].to_vec();
        if end == whole.len() {
            bytes[at] ^= 1;
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Catalog::load(&path, &one), None, "{at} {end}");
    }
    assert_eq!(Catalog::load(&folder.path().join("none"), &one), None);
}

#[test]
fn catalogue_that_lacks_a_name_is_not_believed() {
    let tree = Tree::open(volume()).unwrap();
    let volume = tree.volume().clone();
    let new = cairn_files::New { mode: 0o755, ..Default::default() };
    let file = tree.make(tree.root(), b"file", &new).unwrap().file;
    let image = |name: &str| {
        let id = volume.create_snapshot(name).unwrap().id;
        Tree::of_image(volume.image(Some(id)).unwrap()).unwrap()
    };
    let base = image("base");
    tree.write(file, 0, b"changed").unwrap();
    assert!(Catalog::default().follow(&base, &image("now")).is_err(), "a change that has no name");
    tree.unlink(tree.root(), b"file").unwrap();
    assert!(Catalog::default().follow(&base, &image("later")).is_err(), "a name that was not there goes");
}
