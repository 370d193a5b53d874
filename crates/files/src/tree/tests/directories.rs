//! Directories with many names.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{BLOCK_SIZE, Lba};
use cairn_device::BlockMut;
use cairn_format::LeafPlace;

use super::*;
use crate::tree::edit::Edit;
use crate::tree::source::Blocks;

fn name(number: u64) -> Vec<u8> {
    format!("a file with number {number}").into_bytes()
}

/// All names from a cookie on, by cookie.
fn names(tree: &Tree, directory: FileId, after: u64) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut at) = (Vec::new(), after);
    loop {
        let some = tree.read_directory(directory, at, 100).expect("it can be read");
        let Some(last) = some.last() else { return all };
        at = last.cookie;
        all.extend(some.into_iter().filter(|entry| entry.cookie > 2).map(|entry| (entry.cookie, entry.name)));
    }
}

#[test]
fn directory_with_many_names_finds_each_and_shrinks_to_nothing() {
    let (_device, tree) = fresh(65_536);
    let directory = tree.make_directory(tree.root(), b"many", &FOLDER).expect("there is room").file;
    let file = tree.make(tree.root(), b"the file", &FILE).expect("there is room").file;
    let count = 6000;
    for number in 0..count {
        if number % 60_000 == 59_999 {
            tree.volume().consistency_point().expect("it commits");
        }
        tree.link(file, directory, &name(number)).expect("there is room");
    }
    let blocks = tree.stat(directory).expect("it is there").blocks;
    assert!((60..160).contains(&blocks), "{blocks} blocks for {count} names");
    let all = names(&tree, directory, 0);
    assert_eq!(all.len() as u64, count);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(all.iter().map(|(_, name)| name.clone()).collect::<BTreeSet<_>>().len() as u64, count);
    for number in (0..count).step_by(7) {
        assert_eq!(tree.lookup(directory, &name(number)).expect("it is there").file, file);
    }
    assert!(matches!(tree.lookup(directory, b"none"), Err(TreeError::NotFound)));
    assert_whole(&tree);
    for number in 0..count {
        tree.unlink(directory, &name(number)).expect("it is there");
        if number == count - 20 {
            assert_eq!(names(&tree, directory, 0).len(), 19);
            assert!(tree.stat(directory).expect("it is there").blocks < 8, "small leaves become one");
            assert_whole(&tree);
        }
    }
    assert_eq!(tree.stat(directory).expect("it is there").blocks, 1);
    assert_eq!(tree.stat(file).expect("it is there").links, 1);
    tree.remove_directory(tree.root(), b"many").expect("it is empty");
    assert_whole(&tree);
}

/// In that order a leaf is empty before its neighbour is small enough to become one with it, and
/// the last one has none.
#[test]
fn directory_that_is_emptied_in_the_order_in_which_it_is_read_is_as_new() {
    let (_device, tree) = fresh(8192);
    let directory = tree.make_directory(tree.root(), b"many", &FOLDER).expect("there is room").file;
    let file = tree.make(tree.root(), b"the file", &FILE).expect("there is room").file;
    for (count, is_backwards) in [(16, false), (40, false), (200, false), (16, true), (40, true), (200, true)]
    {
        let long = |number: u64| [&name(number)[..], &[b'x'; 220]].concat();
        for number in 0..count {
            tree.link(file, directory, &long(number)).expect("there is room");
        }
        assert!(tree.stat(directory).expect("it is there").blocks > 2, "it was split");
        let mut all = names(&tree, directory, 0);
        if is_backwards {
            all.reverse();
        }
        for (_, name) in all {
            tree.unlink(directory, &name).expect("it is there");
        }
        assert_eq!(tree.stat(directory).expect("it is there").blocks, 1, "{count} names");
        assert_eq!(names(&tree, directory, 0), []);
        assert_whole(&tree);
    }
    tree.remove_directory(tree.root(), b"many").expect("it is empty");
    assert_whole(&tree);
}

#[test]
fn cookies_stay_good_while_names_come_and_go() {
    let (_device, tree) = fresh(16_384);
    let directory = tree.root();
    let mut rng = Rng::new(3);
    let mut present: BTreeMap<Vec<u8>, FileId> = BTreeMap::new();
    for number in 0..500 {
        let file = tree.make(directory, &name(number), &FILE).expect("there is room").file;
        present.insert(name(number), file);
    }
    for round in 0..6 {
        // Names that exist during the whole reading.
        let mut constant: BTreeSet<Vec<u8>> = present.keys().cloned().collect();
        let (mut seen, mut at) = (BTreeMap::<Vec<u8>, u32>::new(), 0);
        loop {
            let some = tree.read_directory(directory, at, 7).expect("it can be read");
            let Some(last) = some.last() else { break };
            at = last.cookie;
            for entry in some {
                *seen.entry(entry.name).or_insert(0) += 1;
            }
            for _ in 0..4 {
                let number = rng.below(1500) + if rng.one_in(3) { round * 10_000 } else { 0 };
                let name = name(number);
                if present.remove(&name).is_some() {
                    tree.unlink(directory, &name).expect("it is there");
                    constant.remove(&name);
                } else {
                    let file = tree.make(directory, &name, &FILE).expect("there is room").file;
                    present.insert(name, file);
                }
            }
        }
        for name in &constant {
            assert_eq!(seen.get(name), Some(&1), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(names(&tree, directory, 0).len(), present.len());
    }
    assert_whole(&tree);
}

#[test]
fn files_that_come_and_go_leave_no_trace() {
    let (_device, tree) = fresh(8192);
    let root = tree.root();
    let used = || {
        tree.volume().consistency_point().expect("it commits");
        tree.volume().consistency_point().expect("it commits");
        tree.volume().status().used
    };
    tree.make(root, b"stays", &FILE).expect("there is room");
    let before = used();
    for round in 0..12 {
        for number in 0..200 {
            let file = tree.make(root, &name(round * 1000 + number), &FILE).expect("there is room").file;
            tree.write(file, 0, b"some bytes").expect("there is room");
        }
        used();
        for number in 0..200 {
            tree.unlink(root, &name(round * 1000 + number)).expect("it is there");
        }
    }
    // 2,400 inodes took 75 blocks, which are free again.
    let after = used();
    assert!(after <= before + 6, "{after} blocks, {before} before");
    assert_whole(&tree);
}

#[test]
fn path_of_a_directory_is_known_without_search() {
    let (_device, tree) = fresh(4096);
    let mut at = tree.root();
    for part in ["one", "two", "three"] {
        at = tree.make_directory(at, part.as_bytes(), &FOLDER).expect("there is room").file;
    }
    assert_eq!(tree.directory_path(at).expect("it is there"), b"one/two/three");
    let two = tree.resolve(b"one/two").expect("it is there").file;
    tree.rename(tree.resolve(b"one").expect("it is there").file, b"two", tree.root(), b"2", Rename::Replace)
        .expect("it is there");
    assert_eq!(tree.directory_path(at).expect("it is there"), b"2/three");
    assert_eq!(tree.parent(two).expect("it is there"), tree.root());
    assert_eq!(tree.resolve(b"2/three/../../one").expect("it is there").links, 2);
    assert_eq!(tree.directory_path(tree.root()).expect("it is there"), b"");
    assert_whole(&tree);
}

/// Its own names are in its block, and where the directory is in the first one.
#[test]
fn block_of_a_directory_that_cannot_be_read_costs_the_names_in_it_and_no_others() {
    let (_device, tree) = fresh(16_384);
    let directory = tree.make_directory(tree.root(), b"many", &FOLDER).expect("there is room").file;
    let file = tree.make(tree.root(), b"the file", &FILE).expect("there is room").file;
    for number in 0..600 {
        tree.link(file, directory, &name(number)).expect("there is room");
    }
    let all = names(&tree, directory, 0);
    let put = |lba: u64, block: cairn_device::Block| {
        let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
        edit.content().write(directory, Lba(lba), block);
        edit.commit(false).expect("there is room");
    };
    let length = tree.source.inode(directory).expect("it is there").tree.length;
    let mut leaves = 0;
    for lba in 0..length {
        let Some(whole) = (&tree.source).block(directory, lba).expect("it can be read") else { continue };
        let mut other = BlockMut::zeroed();
        other.copy_from_slice(&[7; BLOCK_SIZE]);
        put(lba, other.freeze());
        let (mut found, mut after, mut gaps) = (Vec::new(), 0, 0);
        loop {
            match tree.read_directory(directory, after, 100) {
                Ok(some) => {
                    let Some(last) = some.last() else { break };
                    after = last.cookie;
                    let names = some.into_iter().filter(|entry| entry.cookie > 2);
                    found.extend(names.map(|entry| (entry.cookie, entry.name)));
                }
                Err(error) => {
                    assert!(matches!(error, TreeError::Damaged(_)), "{error}");
                    gaps += 1;
                    let behind = tree.behind_damage(directory, after).expect("it is known what is behind it");
                    assert!(behind > after, "a listing comes to its end");
                    after = behind;
                }
            }
        }
        let place = LeafPlace::at(lba).expect("a leaf stands there");
        let is_in_it =
            |cookie: u64| place != LeafPlace::TOP && (place.start()..place.end()).contains(&cookie);
        let left: Vec<_> = all.iter().filter(|(cookie, _)| !is_in_it(*cookie)).cloned().collect();
        assert_eq!(found, left, "{place:?}");
        assert!(gaps > 0, "{place:?}");
        put(lba, whole);
        leaves += 1;
    }
    assert!(leaves > 5, "{leaves} leaves");
    assert_eq!(names(&tree, directory, 0), all);
    // Of a directory that is one block nothing is left.
    let small = tree.make_directory(tree.root(), b"small", &FOLDER).expect("there is room").file;
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    let mut other = BlockMut::zeroed();
    other.copy_from_slice(&[7; BLOCK_SIZE]);
    edit.content().write(small, Lba(0), other.freeze());
    edit.commit(false).expect("there is room");
    assert!(tree.read_directory(small, 2, 100).is_err());
    assert_eq!(tree.behind_damage(small, 2), None);
}
