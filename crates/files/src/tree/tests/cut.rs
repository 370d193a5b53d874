//! A cut at any operation of the device leaves a state that there was, with everything that was
//! synced.

use super::*;

fn open_or_tell(device: &Arc<FaultDevice>) -> Tree {
    Tree::open(open_volume(device, Arc::new(ManualClock::new(Timestamp(5))))).expect("the tree opens")
}

/// One life until the power fails. Returns the states since the last sync.
pub(super) fn live(tree: &Tree, player: &mut Player, steps: u32, rng: &mut Rng) -> Vec<Model> {
    let mut states = vec![player.model.clone()];
    for _ in 0..steps {
        let outcome = match rng.below(10) {
            0 => tree.sync_all().map(|()| true),
            1 => tree.volume().consistency_point().map(|_| true).map_err(TreeError::from),
            2 => tree.volume().background(Duration::ZERO).map(|()| false).map_err(TreeError::from),
            _ => player.step(tree).map(|()| false),
        };
        match outcome {
            Ok(true) => drop(states.drain(..states.len() - 1)),
            Ok(false) => states.push(player.model.clone()),
            Err(_) => break,
        }
    }
    states
}

#[test]
fn tree_is_as_it_was_at_some_moment_after_a_cut_at_each_operation() {
    let mut different = 0;
    for seed in 0..3 {
        let mut cut = 0;
        loop {
            let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
            format(&*device, 4096);
            let tree = open_or_tell(&device);
            let mut rng = Rng::new(seed);
            let mut player = Player::new(&tree, rng.fork());
            for _ in 0..30 {
                player.step(&tree).expect("there is power");
            }
            tree.sync_all().expect("there is power");
            device.cut_after(cut);
            let states = live(&tree, &mut player, 50, &mut rng);
            let went_out = device.is_off();
            drop(tree);
            let device = Arc::new(device.power_cycle(&mut Rng::new(seed * 10_000 + cut)));
            let tree = open_or_tell(&device);
            let seen = shown(&tree).expect("it can be read");
            let found = states.iter().position(|state| state.without_holds().shown() == seen);
            assert!(found.is_some(), "seed {seed}, cut {cut}: no state of {} is there", states.len());
            different += usize::from(found != Some(states.len() - 1));
            assert_whole(&tree);
            if !went_out {
                break;
            }
            cut += 1 + seed;
        }
    }
    assert!(different > 10, "{different}");
}

#[test]
fn file_that_was_open_without_a_name_is_gone_after_a_crash() {
    let (device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"open", &FILE).expect("there is room").file;
    tree.write(file, 0, &[7; 100_000]).expect("there is room");
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    tree.set_xattr(file, b"user.a", b"b", SetXattr::Any).expect("there is room");
    let used = |tree: &Tree| {
        tree.volume().consistency_point().expect("it commits");
        tree.volume().status().used
    };
    tree.hold(file).expect("it is there");
    tree.hold(folder).expect("it is there");
    tree.unlink(tree.root(), b"open").expect("it is there");
    tree.remove_directory(tree.root(), b"folder").expect("it is empty");
    assert_eq!(tree.read(file, 0, 3).expect("it is held"), [7, 7, 7]);
    assert_eq!(tree.stat(file).expect("it is held").links, 0);
    assert!(matches!(tree.make(folder, b"x", &FILE), Err(TreeError::NotFound)));
    assert_whole(&tree);
    let with_it = used(&tree);
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    assert!(matches!(tree.stat(file), Err(TreeError::NotFound)));
    assert!(matches!(tree.stat(folder), Err(TreeError::NotFound)));
    assert_whole(&tree);
    assert!(used(&tree) + 25 < with_it, "its blocks are free");
}

#[test]
fn file_without_a_name_stays_until_it_is_released_as_often_as_it_was_held() {
    let (_device, tree) = fresh(4096);
    let used = |tree: &Tree| {
        tree.volume().consistency_point().expect("it commits");
        tree.volume().status().used
    };
    let before = used(&tree);
    let names: Vec<String> = (0..50).map(|number| format!("file {number}")).collect();
    let make = |name: &String| {
        let file = tree.make(tree.root(), name.as_bytes(), &FILE).expect("there is room").file;
        tree.write(file, 0, &[9; 5000]).expect("there is room");
        for _ in 0..3 {
            tree.hold(file).expect("it is there");
        }
        file
    };
    for everything in [false, true] {
        let files: Vec<FileId> = names.iter().map(make).collect();
        for name in &names {
            tree.unlink(tree.root(), name.as_bytes()).expect("it is there");
        }
        let there = |file: &FileId| tree.stat(*file).is_ok_and(|stat| stat.links == 0);
        tree.release_all(files.iter().map(|file| (*file, 2)));
        assert!(files.iter().all(there), "each is held once more");
        assert!(files.iter().all(|file| tree.is_nameless(*file)));
        assert_whole(&tree);
        match everything {
            true => tree.release_everything(),
            false => tree.release_all(files.iter().map(|file| (*file, 1))),
        }
        assert!(!files.iter().any(there), "nobody holds one");
        assert_eq!(tree.nameless().0, 0);
        assert_whole(&tree);
    }
    assert_eq!(used(&tree), before, "nothing of them is left");
}

#[test]
fn file_that_was_made_without_a_name_gets_one_or_is_gone() {
    let (device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    let used = |tree: &Tree| {
        tree.volume().consistency_point().expect("it commits");
        tree.volume().status().used
    };
    let before = used(&tree);
    let unnamed = |content: &[u8]| {
        let stat = tree.make_unnamed(folder, &FILE).expect("there is room");
        assert_eq!((stat.links, stat.mode), (0, 0o100_644));
        tree.write(stat.file, 0, content).expect("there is room");
        stat.file
    };
    // It has no name.
    let given_back = unnamed(&[5; 100_000]);
    assert_whole(&tree);
    tree.release(given_back);
    assert!(matches!(tree.stat(given_back), Err(TreeError::NotFound)));
    assert!(matches!(tree.link(given_back, folder, b"late"), Err(TreeError::NotFound)));
    assert_eq!(used(&tree), before, "nothing of it is left");
    // A file with a name is as any other, also after its maker's hold ends.
    let named = unnamed(b"content");
    assert_eq!(tree.link(named, folder, b"named").expect("there is room").links, 1);
    assert!(matches!(tree.link(named, folder, b"named"), Err(TreeError::Exists)));
    tree.release(named);
    assert_whole(&tree);
    // After its last name it is lost.
    let lost = unnamed(b"lost");
    tree.link(lost, folder, b"lost").expect("there is room");
    tree.unlink(folder, b"lost").expect("it is there");
    assert!(matches!(tree.link(lost, folder, b"again"), Err(TreeError::NotFound)));
    assert_whole(&tree);
    let open = unnamed(&[6; 100_000]);
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    assert_whole(&tree);
    for gone in [open, lost] {
        assert!(matches!(tree.stat(gone), Err(TreeError::NotFound)));
    }
    assert_eq!(tree.lookup(folder, b"named").expect("it was synced").file, named);
    assert_eq!(tree.read(named, 0, 10).expect("it can be read"), b"content");
    assert_eq!(used(&tree), before + 2, "the data of the one with a name, and the node above it");
}

#[test]
fn synced_names_and_bytes_are_there_without_a_consistency_point() {
    let (device, tree) = fresh(4096);
    let points = tree.volume().status().consistency_points;
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    for n in 0..300 {
        let file = tree.make(folder, format!("{n}").as_bytes(), &FILE).expect("there is room").file;
        tree.write(file, 3, format!("content {n}").as_bytes()).expect("there is room");
    }
    tree.sync(folder).expect("it flushes");
    assert_eq!(tree.volume().status().consistency_points, points, "the log has it all");
    // Without a later sync: may be present or not.
    tree.make(folder, b"late", &FILE).expect("there is room");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    for n in 0..300 {
        let stat = tree.resolve(format!("folder/{n}").as_bytes()).expect("it was synced");
        let bytes = tree.read(stat.file, 3, 99).expect("it reads");
        assert_eq!(bytes, format!("content {n}").as_bytes());
    }
    assert_whole(&tree);
}

#[test]
fn failed_device_is_told_and_nothing_else_panics() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let tree = open_or_tell(&device);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is power").file;
    device.cut_after(0);
    tree.write(file, 0, b"bytes").expect("it is in memory");
    assert!(matches!(tree.sync(file), Err(TreeError::Volume(_))));
    let outcome = tree.write(file, 0, b"more");
    assert!(matches!(&outcome, Err(TreeError::Volume(VolumeError::Latched(_)))), "{outcome:?}");
    assert_eq!(outcome.map_err(|error| error.errno()), Err(30));
    assert_eq!(tree.read(file, 0, 99).expect("it is in memory"), b"bytes");
}
