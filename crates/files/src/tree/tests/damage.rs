//! Damage of the tree's own files affects their content, and not the tree.

use cairn_base::BLOCK_SIZE;

use super::*;

const BLOCKS: u64 = 4096;

fn faulty() -> (Arc<FaultDevice>, Tree) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let tree = open(&device);
    (device, tree)
}

fn open(device: &Arc<FaultDevice>) -> Tree {
    Tree::open(open_volume(device, Arc::default())).expect("the tree opens")
}

/// Ends a tree, and makes the blocks unreadable, or other ones, that begin so.
fn spoil(device: &FaultDevice, tree: Tree, is_unreadable: bool, is_it: impl Fn(&[u8]) -> bool) {
    tree.volume().close().expect("it closes");
    drop(tree);
    let mut found = 0;
    let mut block = vec![0; BLOCK_SIZE];
    for place in (0..device.geometry().length).step_by(BLOCK_SIZE) {
        device.read_into(place, &mut block).expect("it can be read");
        if is_it(&block) {
            found += 1;
            match is_unreadable {
                true => device.fail_reads(place..place + BLOCK_SIZE as u64),
                false => device.corrupt(place, BLOCK_SIZE as u64, &mut Rng::new(1)),
            }
        }
    }
    assert!(found > 0, "there is such a block");
}

fn is_record(block: &[u8], number: u16) -> bool {
    block.starts_with(b"CQTA") && block[6..8] == number.to_le_bytes()
}

fn is_leaf(block: &[u8], directory: FileId, level: u8) -> bool {
    block.starts_with(b"CDIR") && block[6] == level && block[8..16] == directory.0.to_le_bytes()
}

#[track_caller]
fn assert_damaged<T: std::fmt::Debug>(outcome: Result<T, TreeError>) {
    assert!(matches!(outcome, Err(TreeError::Damaged(_))), "{outcome:?}");
}

#[test]
fn record_of_a_quota_that_cannot_be_read_costs_what_counts_in_it_and_no_tree() {
    let limits = QuotaLimits { bytes: Some(8 * 4096), files: None };
    for is_unreadable in [false, true] {
        let (device, tree) = faulty();
        let (root, quotas) = (tree.root(), tree.quotas.file());
        let make_top = |tree: &Tree, name: &[u8]| {
            let top = tree.make_directory(root, name, &FOLDER).expect("there is room").file;
            tree.set_quota(top, limits).map(|()| top)
        };
        let (hurt, good) = (make_top(&tree, b"hurt").expect("new"), make_top(&tree, b"good").expect("new"));
        let make = |top| {
            let file = tree.make(top, b"file", &FILE).expect("there is room").file;
            tree.write(file, 0, b"before").expect("there is room");
            file
        };
        let (inside, other, outside) = (make(hurt), make(good), make(root));
        let below = tree.make_directory(hurt, b"below", &FOLDER).expect("there is room").file;
        let snapshot = tree.volume().create_snapshot("one").expect("it is made");
        spoil(&device, tree, is_unreadable, |block| is_record(block, 1));

        let volume = open_volume(&device, Arc::default());
        let finding = TreeFinding::BadLeaf { directory: quotas, lba: 1 };
        let image = volume.image(Some(snapshot.id)).expect("it is there");
        let old = Tree::of_image(image.clone()).expect("it has a tree");
        for file in [inside, other, outside] {
            assert_eq!(old.read(file, 0, 99).expect("it reads"), b"before");
        }
        assert_damaged(old.quota(inside));
        assert_damaged(old.quotas());
        assert_eq!(old.quota(other).expect("it is whole").map(|quota| quota.directory), Some(good));
        assert_eq!(old.quota(outside).expect("it is in none"), None);

        assert_eq!(check_tree(&image).expect("looking is possible"), std::slice::from_ref(&finding));

        let tree = Tree::open(volume.clone()).expect("the tree opens");
        for file in [other, outside] {
            tree.write(file, 4096, b"more").expect("it may");
        }
        assert_eq!(tree.quota(good).expect("it is whole").map(|quota| quota.used_bytes), Some(3 * 4096));
        // Changes that do not count are allowed.
        tree.write(inside, 0, b"after!").expect("it takes no block more");
        tree.rename(hurt, b"file", below, b"file", Rename::Replace).expect("it stays inside");
        tree.rename(hurt, b"below", hurt, b"again", Rename::Replace).expect("it stays inside");
        assert_eq!(tree.read(inside, 0, 99).expect("it reads"), b"after!");
        assert_damaged(tree.write(inside, 4096, b"more"));
        assert_damaged(tree.allocate(inside, 0, 4 * 4096, Allocate::Extend));
        assert_damaged(tree.make(hurt, b"new", &FILE));
        assert_damaged(tree.unlink(below, b"file"));
        assert_damaged(tree.set_quota(hurt, QuotaLimits::default()));
        assert_damaged(tree.set_quota(hurt, limits));
        assert_damaged(tree.quotas());
        // Only its record tells whether that is the top.
        assert_damaged(tree.rename(root, b"hurt", root, b"moved", Rename::Replace));
        let third = make_top(&tree, b"third").expect("there are numbers");
        let number = tree.source.inode(third).expect("it is there").attributes.quota;
        assert_eq!(number, 3, "a number whose record is damaged is not given again");
        volume.consistency_point().expect("it commits");
        let now = check_tree(&volume.image(None).expect("there is a state"));
        assert_eq!(now.expect("looking is possible"), [finding]);

        if is_unreadable {
            device.heal_reads();
            assert_eq!(old.quotas().expect("they can be read").len(), 2);
            tree.write(inside, 4 * 4096, &[1; 5 * 4096]).expect("it may again");
            assert!(matches!(tree.write(inside, 9 * 4096, b"x"), Err(TreeError::Quota)));
            assert_eq!(tree.quotas().expect("they can be read").len(), 3);
            tree.rename(root, b"hurt", root, b"moved", Rename::Replace).expect("the top has another name");
            assert_whole(&tree);
        }
    }
}

/// It is also unknown which numbers have records.
#[test]
fn node_above_the_records_of_quotas_that_has_rotted_costs_no_tree() {
    let (device, tree) = faulty();
    let (root, quotas) = (tree.root(), tree.quotas.file());
    let limits = QuotaLimits { bytes: Some(8 * 4096), files: None };
    let make_top = |tree: &Tree, name: &[u8]| {
        let top = tree.make_directory(root, name, &FOLDER).expect("there is room").file;
        tree.set_quota(top, limits).map(|()| top)
    };
    let tops = [&b"one"[..], b"two"].map(|name| make_top(&tree, name).expect("it is empty"));
    let inode = tree.source.inode(quotas).expect("it is there");
    tree.volume().consistency_point().expect("it commits");
    let inode = tree.source.inode(inode.id).expect("it is there");
    let node = (cairn_format::layout::space_start(BLOCKS) + inode.tree.pointer.vbn.0) * BLOCK_SIZE as u64;
    tree.volume().close().expect("it closes");
    drop(tree);
    device.fail_reads(node..node + 1);

    let volume = open_volume(&device, Arc::default());
    let image = volume.image(None).expect("there is a state");
    let finding = TreeFinding::BadLeaf { directory: quotas, lba: 1 };
    assert_eq!(check_tree(&image).expect("looking is possible"), [finding]);
    let old = Tree::of_image(image).expect("it has a tree");
    assert_damaged(old.quotas());
    let tree = Tree::open(volume).expect("the tree opens");
    for top in tops {
        assert_damaged(tree.quota(top));
        assert_damaged(tree.make(top, b"file", &FILE));
    }
    tree.make(root, b"file", &FILE).expect("it counts in none");
    assert_damaged(make_top(&tree, b"three"));
    device.heal_reads();
    for top in tops {
        tree.make(top, b"file", &FILE).expect("it may again");
    }
    let three = tree.resolve(b"three").expect("it is there").file;
    tree.set_quota(three, limits).expect("it is empty");
    assert_eq!(tree.quotas().expect("they can be read").len(), 3);
    assert_whole(&tree);
}

#[test]
fn directory_of_files_without_names_that_cannot_be_read_keeps_no_tree_from_opening() {
    for is_unreadable in [false, true] {
        let (device, tree) = faulty();
        let (root, orphans) = (tree.root(), tree.orphans);
        let open_file = tree.make(root, b"open", &FILE).expect("there is room").file;
        tree.hold(open_file).expect("it is there");
        tree.unlink(root, b"open").expect("it is there");
        let file = tree.make(root, b"file", &FILE).expect("there is room").file;
        tree.write(file, 0, b"before").expect("there is room");
        spoil(&device, tree, is_unreadable, |block| is_leaf(block, orphans, 0));

        let tree = open(&device);
        assert_eq!(tree.read(file, 0, 99).expect("it reads"), b"before");
        tree.write(file, 0, b"after!").expect("there is room");
        tree.rename(root, b"file", root, b"other", Rename::Replace).expect("it is there");
        tree.unlink(root, b"other").expect("nobody holds it");
        tree.volume().consistency_point().expect("it commits");
        let findings = check_tree(&tree.volume().image(None).expect("there is a state"));
        let expected =
            [TreeFinding::BadLeaf { directory: orphans, lba: 0 }, TreeFinding::NoName { file: open_file }];
        assert_eq!(findings.expect("looking is possible"), expected);
        drop(tree);
        if is_unreadable {
            device.heal_reads();
            let tree = open(&device);
            assert!(matches!(tree.stat(open_file), Err(TreeError::NotFound)), "it was found again");
            assert_whole(&tree);
        }
    }
}

#[test]
fn files_without_names_beside_a_damaged_block_of_their_directory_are_freed() {
    let (device, tree) = faulty();
    let (root, orphans) = (tree.root(), tree.orphans);
    for number in 0..300 {
        let name = format!("{number}");
        let file = tree.make(root, name.as_bytes(), &FILE).expect("there is room").file;
        tree.hold(file).expect("it is there");
        tree.unlink(root, name.as_bytes()).expect("it is there");
    }
    let names = |tree: &Tree| tree.read_directory(orphans, 2, 1000).expect("it can be read").len();
    assert_eq!(names(&tree), 300);
    // The last half, or quarter, of all keys.
    let level_and_prefix = std::cell::Cell::new((0, 0));
    let is_last = |block: &[u8]| {
        let prefix = block.get(16..24).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let level = (1..4).find(|level| is_leaf(block, orphans, *level));
        level.zip(prefix).filter(|(level, prefix)| prefix + 1 == 1 << level)
    };
    tree.volume().consistency_point().expect("it commits");
    let length = tree.source.inode(orphans).expect("it is there").tree.length;
    let level = cairn_format::LeafPlace::level_of(length);
    let hurt = |block: &[u8]| {
        is_last(block).filter(|(of, _)| *of == level).is_some_and(|found| {
            level_and_prefix.set(found);
            true
        })
    };
    spoil(&device, tree, true, hurt);
    let (level, prefix) = level_and_prefix.get();
    let place = cairn_format::LeafPlace { level, prefix };
    let tree = open(&device);
    assert_damaged(tree.read_directory(orphans, 2, 1000));
    let behind = tree.behind_damage(orphans, 2);
    assert_eq!(behind, Some(place.end() - 1), "nothing is left before it");
    device.heal_reads();
    let left = tree.read_directory(orphans, 2, 1000).expect("it can be read");
    assert!((1..300).contains(&left.len()), "{}", left.len());
    assert!(left.iter().all(|entry| entry.cookie >= place.start()));
    drop(tree);
    let tree = open(&device);
    assert_eq!(names(&tree), 0);
    assert_whole(&tree);
}
