//! Differences between images, against the result of walking both trees.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The result of walking a tree: by file, its names and all its attributes but times and links.
#[derive(Default)]
struct Walked {
    names: BTreeMap<FileId, BTreeSet<(FileId, Vec<u8>)>>,
    paths: BTreeMap<(FileId, Vec<u8>), Vec<u8>>,
    told: BTreeMap<FileId, String>,
}

fn walk(tree: &Tree) -> Walked {
    let mut walked = Walked::default();
    let mut waiting = vec![(tree.root(), Vec::new())];
    while let Some((directory, path)) = waiting.pop() {
        for entry in tree.read_directory(directory, 2, usize::MAX).expect("it can be read") {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let below = [&path, slash, &entry.name].concat();
            let name = (directory, entry.name);
            walked.names.entry(entry.file).or_default().insert(name.clone());
            walked.paths.insert(name, below.clone());
            let stat = tree.stat(entry.file).expect("it is there");
            let content = match stat.kind {
                NodeKind::File => tree.read(entry.file, 0, stat.bytes as usize).expect("it can be read"),
                NodeKind::SymbolicLink => tree.read_link(entry.file).expect("it can be read"),
                _ => Vec::new(),
            };
            let mut lists = tree.xattrs(entry.file).expect("they can be read");
            lists.sort();
            let values: Vec<_> =
                lists.iter().map(|name| (name, tree.xattr(entry.file, name).expect("it is there"))).collect();
            let told = format!("{:o} {} {} {:?} {values:?}", stat.mode, stat.uid, stat.gid, content);
            walked.told.insert(entry.file, told);
            if entry.kind == NodeKind::Directory {
                waiting.push((entry.file, below));
            }
        }
    }
    walked
}

#[test]
fn differences_are_those_of_the_model() {
    let mut seen = BTreeSet::new();
    for seed in 0..12 {
        let (_device, tree) = fresh(16_384);
        let volume = tree.volume().clone();
        let mut player = Player::new(&tree, Rng::new(seed));
        let frozen = |name: &str| {
            let id = volume.create_snapshot(name).expect("a snapshot is made").id;
            Tree::of_image(volume.image(Some(id)).expect("it opens")).expect("there is a tree")
        };
        let mut before = frozen("start");
        for round in 0..6 {
            for _ in 0..[3, 40, 200][round % 3] {
                player.step(&tree).unwrap_or_else(|error| panic!("{}: {error}", player.last));
            }
            let after = frozen(&format!("{round}"));
            seen.extend(compare(&before, &after, &format!("seed {seed}, round {round}")));
            before = after;
        }
        assert_eq!(before.changes_since(&before).expect("it can be compared"), []);
    }
    // All kinds occurred, so that the comparison means something.
    assert_eq!(seen.len(), 6, "{seen:?}");
}

fn compare(before: &Tree, after: &Tree, at: &str) -> BTreeSet<ChangeKind> {
    let (old, new) = (walk(before), walk(after));
    let changes = after.changes_since(before).expect("it can be compared");
    let none = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    let mut told: BTreeMap<FileId, Vec<&TreeChange>> = BTreeMap::new();
    for change in &changes {
        kinds.insert(change.kind);
        told.entry(change.file).or_default().push(change);
    }
    let files: BTreeSet<FileId> = old.names.keys().chain(new.names.keys()).copied().collect();
    for file in files {
        let (was, is) = (old.names.get(&file).unwrap_or(&none), new.names.get(&file).unwrap_or(&none));
        let path_of = |walked: &Walked, name: &(FileId, Vec<u8>)| walked.paths[name].clone();
        let gone: BTreeSet<Vec<u8>> = was.difference(is).map(|name| path_of(&old, name)).collect();
        let fresh: BTreeSet<Vec<u8>> = is.difference(was).map(|name| path_of(&new, name)).collect();
        let told = told.remove(&file).unwrap_or_default();
        let of = |kinds: &[ChangeKind]| -> Vec<&&TreeChange> {
            told.iter().filter(|change| kinds.contains(&change.kind)).collect()
        };
        use ChangeKind::*;
        let told_fresh: BTreeSet<Vec<u8>> =
            of(&[Created, Linked, Renamed]).iter().filter_map(|change| change.path.clone()).collect();
        let mut told_gone: BTreeSet<Vec<u8>> =
            of(&[Deleted, Unlinked]).iter().filter_map(|change| change.path.clone()).collect();
        told_gone.extend(of(&[Renamed]).iter().filter_map(|change| change.from.clone()));
        assert_eq!((told_gone, told_fresh), (gone, fresh), "{at}: names of {file}: {told:?}");
        assert_eq!(of(&[Created]).len(), usize::from(was.is_empty()), "{at}: {told:?}");
        assert_eq!(!of(&[Deleted]).is_empty(), is.is_empty(), "{at}: {told:?}");
        if !was.is_empty() && !is.is_empty() {
            let changed = of(&[Changed]);
            if old.told[&file] != new.told[&file] {
                assert_eq!(
                    changed.len(),
                    1,
                    "{at}: {file} changed: {told:?} {} {}",
                    old.told[&file],
                    new.told[&file]
                );
            }
            for change in changed {
                let path = change.path.clone().expect("it has a name");
                assert!(is.iter().any(|name| new.paths[name] == path), "{at}: {told:?}");
            }
        }
    }
    told.remove(&after.root());
    assert!(told.is_empty(), "{at}: what is not there: {told:?}");
    kinds
}
