//! Quota trees: their counts, their refusals, and that both are exact after any crash.

use super::*;

fn limits(bytes: u64, files: u64) -> QuotaLimits {
    let some = |limit| Some(limit).filter(|limit| *limit > 0);
    QuotaLimits { bytes: some(bytes), files: some(files) }
}

fn used(tree: &Tree, directory: FileId) -> (u64, u64) {
    let quota = tree.quota(directory).expect("it can be read").expect("it is in a quota tree");
    (quota.used_bytes, quota.used_files)
}

#[test]
fn quota_tree_takes_no_more_than_it_may() {
    let (device, tree) = fresh(8192);
    let top = tree.make_directory(tree.root(), b"top", &FOLDER).expect("there is room").file;
    tree.set_quota(top, limits(10 * 4096, 4)).expect("it is empty");
    assert_eq!(used(&tree, top), (4096, 1));
    let below = tree.make_directory(top, b"below", &FOLDER).expect("there is room").file;
    let file = tree.make(below, b"file", &FILE).expect("there is room").file;
    assert_eq!(used(&tree, file), (8192, 3));
    tree.write(file, 0, &[1; 8 * 4096]).expect("it may");
    assert!(matches!(tree.write(file, 8 * 4096, b"x"), Err(TreeError::Quota)));
    tree.write(file, 0, &[2; 8 * 4096]).expect("nothing is added");
    tree.allocate(file, 0, 4096, Allocate::Punch).expect("it may");
    tree.write(file, 8 * 4096, b"x").expect("it may again");
    tree.make(top, b"fourth", &FILE).expect("it may");
    let outcome = tree.make(top, b"fifth", &FILE);
    assert_eq!(outcome.map(drop).map_err(|error| error.errno()), Err(122));
    assert_eq!(used(&tree, top), (10 * 4096, 4));
    assert_whole(&tree);
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    assert_eq!(used(&tree, top), (10 * 4096, 4));
    assert!(matches!(tree.make(top, b"fifth", &FILE), Err(TreeError::Quota)));
    tree.set_quota(top, limits(4096, 0)).expect("a limit may be below what is taken");
    tree.make(top, b"fifth", &FILE).expect("it takes no block");
    assert!(matches!(tree.write(file, 9 * 4096, b"x"), Err(TreeError::Quota)));
    tree.unlink(below, b"file").expect("removing always works");
    assert_eq!(used(&tree, top), (2 * 4096, 4));
    assert_eq!(tree.quotas().expect("they can be read").len(), 1);
    assert_whole(&tree);
}

/// A program that checks for room before it writes gets the true answer first, as on other file
/// systems.
#[test]
fn room_is_looked_for_in_the_quota_as_well_as_in_the_volume() {
    let (_device, tree) = fresh(8192);
    let top = tree.make_directory(tree.root(), b"top", &FOLDER).expect("there is room").file;
    tree.set_quota(top, limits(10 * 4096, 0)).expect("it is empty");
    let file = tree.make(top, b"file", &FILE).expect("there is room").file;
    tree.write(file, 4096, &[1; 4 * 4096]).expect("it may");
    let before = tree.stat(file).expect("it is there");
    for mode in [Allocate::Extend, Allocate::Keep] {
        let outcome = tree.allocate(file, 0, 10 * 4096, mode);
        assert!(matches!(outcome, Err(TreeError::Quota)), "{mode:?}: {outcome:?}");
    }
    assert_eq!(tree.stat(file).expect("it is there"), before, "nothing of it was done");
    for mode in [Allocate::Extend, Allocate::Keep] {
        tree.allocate(file, 0, 9 * 4096, mode).expect("what is there counts once");
    }
    let other = tree.make(tree.root(), b"other", &FILE).expect("there is room").file;
    tree.allocate(other, 0, 100 * 4096, Allocate::Extend).expect("it is in no quota tree");
    tree.set_quota(top, limits(4096, 0)).expect("a limit may be below what is taken");
    tree.allocate(file, 4096, 4 * 4096, Allocate::Extend).expect("nothing is added");
    assert!(matches!(tree.allocate(file, 0, 1, Allocate::Keep), Err(TreeError::Quota)));
    tree.set_quota(top, limits(0, 0)).expect("it goes on counting");
    tree.allocate(file, 0, 100 * 4096, Allocate::Extend).expect("there is no limit");
    assert_whole(&tree);
}

#[test]
fn nothing_moves_into_or_out_of_a_quota_tree() {
    let (_device, tree) = fresh(8192);
    let root = tree.root();
    let top = tree.make_directory(root, b"top", &FOLDER).expect("there is room").file;
    let inside = tree.make_directory(top, b"inside", &FOLDER).expect("there is room").file;
    assert!(matches!(tree.set_quota(top, limits(0, 9)), Err(TreeError::NotEmpty)));
    tree.remove_directory(top, b"inside").expect("it is empty");
    tree.set_quota(top, limits(0, 9)).expect("it is empty");
    assert!(matches!(tree.set_quota(root, limits(0, 9)), Err(TreeError::Invalid(_))));
    let file = tree.make(top, b"file", &FILE).expect("there is room").file;
    let other = tree.make(root, b"other", &FILE).expect("there is room").file;
    let outcomes = [
        tree.rename(top, b"file", root, b"file", Rename::Replace),
        tree.rename(root, b"other", top, b"other", Rename::Replace),
        tree.rename(root, b"other", top, b"file", Rename::Exchange),
        tree.link(file, root, b"link").map(drop),
        tree.link(other, top, b"link").map(drop),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.map_err(|error| error.errno()), Err(18));
    }
    tree.rename(root, b"top", root, b"renamed", Rename::Replace).expect("the top itself has another name");
    tree.rename(top, b"file", top, b"again", Rename::Replace).expect("it stays inside");
    let nested = tree.make_directory(top, b"nested", &FOLDER).expect("there is room").file;
    assert!(matches!(tree.set_quota(nested, limits(0, 2)), Err(TreeError::Invalid(_))));
    assert!(tree.quota(inside).is_err());
    assert_whole(&tree);
    tree.remove_directory(top, b"nested").expect("it is empty");
    tree.unlink(top, b"again").expect("it is there");
    tree.set_quota(top, QuotaLimits::default()).expect("it is empty");
    assert_eq!(tree.quota(top).expect("it can be read"), None);
    tree.set_quota(top, limits(0, 5)).expect("it is empty");
    tree.hold(top).expect("it is there");
    tree.remove_directory(root, b"renamed").expect("it is empty");
    assert_eq!(tree.quotas().expect("they can be read"), []);
    assert_whole(&tree);
    tree.release(top);
    assert_whole(&tree);
}

#[test]
fn what_a_quota_tree_counts_is_exact_after_a_cut_at_each_operation() {
    for seed in 0..2 {
        let mut cut = 0;
        loop {
            let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
            format(&*device, 4096);
            let open = |device: &Arc<FaultDevice>| {
                Tree::open(open_volume(device, Arc::default())).expect("the tree opens")
            };
            let tree = open(&device);
            let new = New { mode: 0o755, ..New::default() };
            let top = tree.make_directory(tree.root(), b"top", &new).expect("there is room").file;
            tree.set_quota(top, limits(120 * 4096, 0)).expect("it is empty");
            tree.sync_all().expect("there is power");
            let mut rng = Rng::new(seed);
            let mut player = Player::below(top, rng.fork());
            player.may_be_full = true;
            device.cut_after(cut);
            cut::live(&tree, &mut player, 60, &mut rng);
            let went_out = device.is_off();
            drop(tree);
            let device = Arc::new(device.power_cycle(&mut Rng::new(cut)));
            let tree = open(&device);
            assert_whole(&tree);
            assert!(used(&tree, top).0 <= 120 * 4096);
            if !went_out {
                break;
            }
            cut += 2 + 3 * seed;
        }
    }
}

#[test]
fn bytes_that_a_kernel_writes_back_are_all_taken_or_the_error_is_told() {
    let (_device, tree) = fresh(8192);
    let top = tree.make_directory(tree.root(), b"top", &FOLDER).expect("there is room").file;
    tree.set_quota(top, limits(200 * 4096, 0)).expect("it is empty");
    let file = tree.make(top, b"file", &FILE).expect("there is room").file;
    // Two pieces of 128 blocks, the second of which is too much.
    let (half, bytes) = (1 << 19, vec![1; 1 << 20]);
    let outcome = tree.write_back(file, half, &bytes);
    assert!(matches!(outcome, Err(TreeError::Quota)), "{outcome:?}");
    assert_eq!(tree.write(file, half, &bytes).expect("a program is told how many"), 1 << 19);
    assert_whole(&tree);
}

/// An open file counts where it was made. When that is not a quota tree any more, its blocks count
/// nowhere: not in the next quota tree.
#[test]
fn files_that_are_open_beyond_the_end_of_their_quota_tree_count_in_no_other() {
    for is_lifted in [false, true] {
        let (device, mut tree) = fresh(8192);
        let root = tree.root();
        let make = |tree: &Tree, name: &[u8]| {
            let top = tree.make_directory(root, name, &FOLDER).expect("there is room").file;
            tree.set_quota(top, limits(100 * 4096, 9)).expect("it is empty");
            top
        };
        let first = make(&tree, b"first");
        let file = tree.make(first, b"file", &FILE).expect("there is room").file;
        tree.write(file, 0, &[1; 3 * 4096]).expect("it may");
        let below = tree.make_directory(first, b"below", &FOLDER).expect("there is room").file;
        tree.hold(file).expect("it is there");
        tree.hold(below).expect("it is there");
        tree.unlink(first, b"file").expect("it is there");
        tree.remove_directory(first, b"below").expect("it is empty");
        match is_lifted {
            true => tree.set_quota(first, QuotaLimits::default()).expect("it is empty"),
            false => tree.remove_directory(root, b"first").expect("it is empty"),
        }
        assert_eq!(tree.quotas().expect("they can be read"), []);
        assert_eq!(tree.quota(file).expect("it can be read"), None);
        assert_whole(&tree);
        let second = make(&tree, b"second");
        tree.write(file, 3 * 4096, &[1; 2 * 4096]).expect("who has it open goes on");
        tree.release(below);
        assert_eq!(used(&tree, second), (4096, 1), "lifted: {is_lifted}");
        assert_whole(&tree);
        if is_lifted {
            tree.sync_all().expect("it flushes");
            drop(tree);
            tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
        } else {
            tree.release(file);
        }
        assert_eq!(used(&tree, second), (4096, 1), "lifted: {is_lifted}");
        assert_eq!(tree.quotas().expect("they can be read").len(), 1);
        let third = make(&tree, b"third");
        assert_eq!(used(&tree, third), (4096, 1));
        assert_whole(&tree);
    }
}

/// Limits are raised while programs write, as an owner does whose users have no more room: writes
/// between the read of the record and its change count.
#[test]
fn what_is_written_while_limits_are_changed_counts() {
    const BLOCKS: u64 = 3000;
    let (_device, tree) = fresh(65_536);
    let top = tree.make_directory(tree.root(), b"top", &FOLDER).expect("there is room").file;
    tree.set_quota(top, limits(1 << 30, 0)).expect("it is empty");
    let file = tree.make(top, b"file", &FILE).expect("there is room").file;
    std::thread::scope(|scope| {
        let write = |block: u64| tree.write(file, block * 4096, &[1; 4096]).map(drop);
        let writer = scope.spawn(move || (0..BLOCKS).try_for_each(write));
        let mut more = 0;
        while !writer.is_finished() {
            more += 1;
            tree.set_quota(top, limits((1 << 30) + more * 4096, 0)).expect("it is one");
        }
        writer.join().expect("no panic").expect("it may");
    });
    assert_eq!(used(&tree, top), ((BLOCKS + 1) * 4096, 2));
    assert_whole(&tree);
}
