//! Single rules: times, access control lists, sizes, names.

use super::*;
use crate::tree::edit::Edit;

fn acl(rules: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in rules {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

const NOBODY: u32 = u32::MAX;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn access_lists_and_modes_follow_each_other() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    let list =
        |mask| acl(&[(1, 6, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (16, mask, NOBODY), (32, 1, NOBODY)]);
    tree.set_xattr(file, ACCESS, &list(5), SetXattr::Any).expect("it is a list");
    assert_eq!(tree.stat(file).expect("it is there").mode, 0o100_651);
    tree.set(file, &SetStat { mode: Some(0o4630), ..SetStat::default() }).expect("it is there");
    let changed = acl(&[(1, 6, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (16, 3, NOBODY), (32, 0, NOBODY)]);
    assert_eq!(tree.xattr(file, ACCESS).expect("it is there"), changed);
    assert_eq!(tree.stat(file).expect("it is there").mode, 0o104_630);
    // A list with no more information than a mode is stored as a mode.
    let plain = acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 4, NOBODY)]);
    tree.set_xattr(file, ACCESS, &plain, SetXattr::Any).expect("it is a list");
    assert_eq!(tree.stat(file).expect("it is there").mode, 0o104_754);
    assert!(matches!(tree.xattr(file, ACCESS), Err(TreeError::NoAttribute)));
    let outcome = tree.set_xattr(file, ACCESS, &acl(&[(1, 7, NOBODY)]), SetXattr::Any);
    assert_eq!(outcome.map_err(|error| error.errno()), Err(22));
    assert!(tree.set_xattr(file, DEFAULT, &plain, SetXattr::Any).is_err(), "no directory");
    assert_whole(&tree);
}

#[test]
fn default_access_lists_are_inherited_and_the_umask_is_not_used_then() {
    let (_device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"f", &FOLDER).expect("there is room").file;
    let default = acl(&[(1, 7, NOBODY), (2, 6, 5), (4, 5, NOBODY), (16, 7, NOBODY), (32, 5, NOBODY)]);
    tree.set_xattr(folder, DEFAULT, &default, SetXattr::Any).expect("it is a list");
    let new = New { mode: 0o100_664, umask: 0o077, ..FILE };
    let file = tree.make(folder, b"file", &new).expect("there is room");
    assert_eq!(file.mode, 0o100_664);
    let expected = acl(&[(1, 6, NOBODY), (2, 6, 5), (4, 5, NOBODY), (16, 6, NOBODY), (32, 4, NOBODY)]);
    assert_eq!(tree.xattr(file.file, ACCESS).expect("it is inherited"), expected);
    let below = tree.make_directory(folder, b"below", &FOLDER).expect("there is room").file;
    assert_eq!(tree.xattr(below, DEFAULT).expect("it is inherited"), default);
    assert_eq!(tree.xattrs(below).expect("it is there").len(), 2);
    let plain = tree.make(tree.root(), b"plain", &new).expect("there is room");
    assert_eq!(plain.mode, 0o100_600);
    assert_whole(&tree);
}

/// Without a mask the mode's bits for the group represent the group's own rule.
#[test]
fn default_access_list_without_a_mask_narrows_the_group_itself() {
    let (_device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"f", &FOLDER).expect("there is room").file;
    let default = acl(&[(1, 7, NOBODY), (4, 7, NOBODY), (32, 5, NOBODY)]);
    tree.set_xattr(folder, DEFAULT, &default, SetXattr::Any).expect("it is a list");
    let file =
        tree.make(folder, b"file", &New { mode: 0o100_640, umask: 0o777, ..FILE }).expect("there is room");
    assert_eq!(file.mode, 0o100_640);
    assert!(
        matches!(tree.xattr(file.file, ACCESS), Err(TreeError::NoAttribute)),
        "it is no more than a mode"
    );
    let open = tree.make(folder, b"open", &New { mode: 0o100_666, umask: 0, ..FILE }).expect("there is room");
    assert_eq!(open.mode, 0o100_664);
    let link = tree.make_link(folder, b"link", b"file", &FILE).expect("there is room");
    assert_eq!(link.mode, 0o120_777, "a link has no list and all rights");
    let below = tree.make_directory(folder, b"below", &FOLDER).expect("there is room");
    assert_eq!((below.mode, tree.xattr(below.file, DEFAULT).expect("it is inherited")), (0o040_755, default));
    assert_whole(&tree);
}

#[test]
fn list_that_the_kernel_would_not_take_is_none() {
    let (_device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"f", &FOLDER).expect("there is room").file;
    let (owner, group, other) = ((1, 6, NOBODY), (4, 4, NOBODY), (32, 1, NOBODY));
    let (mask, named) = ((16, 7, NOBODY), (2, 7, 1000));
    let good = acl(&[owner, named, group, (8, 5, 7), mask, other]);
    let lists = [
        acl(&[owner, named, group, other]),
        acl(&[owner, group, (8, 5, 7), other]),
        acl(&[owner, group, mask, mask, other]),
        acl(&[owner, owner, group, other]),
        acl(&[owner, group]),
        acl(&[group, other]),
        acl(&[owner, other]),
        acl(&[owner, group, (4, 1, 9), other]),
        acl(&[group, owner, other]),
        acl(&[owner, (4, 8, NOBODY), other]),
        acl(&[owner, group, (64, 1, NOBODY), other]),
        acl(&[owner, group, (3, 1, NOBODY), other]),
        good[..good.len() - 1].to_vec(),
        [&[1, 0, 0, 0], &good[4..]].concat(),
    ];
    for name in [ACCESS, DEFAULT] {
        for list in &lists {
            let outcome = tree.set_xattr(folder, name, list, SetXattr::Any);
            assert!(matches!(outcome, Err(TreeError::Invalid(_))), "{list:?}: {outcome:?}");
        }
        tree.set_xattr(folder, name, &good, SetXattr::Any).expect("it is a list");
        assert_eq!(tree.xattr(folder, name).expect("it is there"), good);
    }
    assert_eq!(tree.stat(folder).expect("it is there").mode, 0o040_671);
}

/// Operations that free room work on a full volume: removing, truncating, punching, and with
/// attributes as well.
#[test]
fn what_gives_room_back_works_on_a_full_volume() {
    let (_device, tree) = fresh(2048);
    let root = tree.root();
    let file = tree.make(root, b"file", &FILE).expect("there is room").file;
    tree.write(file, 0, &[7; 40 * 4096]).expect("there is room");
    tree.set_xattr(file, b"user.a", &[1; 60_000], SetXattr::Any).expect("there is room");
    tree.set_xattr(file, b"user.b", &[1; 60_000], SetXattr::Any).expect("there is room");
    let other = tree.make(root, b"other", &FILE).expect("there is room").file;
    let fill = || {
        tree.volume().consistency_point().expect("it commits");
        let end = tree.stat(other).expect("it is there").bytes;
        (0..).map(|block| tree.write(other, end + block * 4096, &[1; 4096])).find_map(Result::err)
    };
    let full = || {
        let why = fill().expect("it ends");
        assert!(matches!(why, TreeError::NoSpace), "{why}");
        assert!(matches!(tree.make(root, b"more", &FILE), Err(TreeError::NoSpace)));
    };
    let cut = |bytes| tree.set(file, &SetStat { bytes: Some(bytes), ..SetStat::default() }).map(drop);
    full();
    cut(39 * 4096 + 5).expect("it gives room back");
    full();
    tree.allocate(file, 4096 + 9, 3 * 4096, Allocate::Punch).expect("it gives room back");
    full();
    tree.allocate(file, 6 * 4096 + 9, 3 * 4096, Allocate::Zero { keep: true }).expect("it gives room back");
    full();
    tree.remove_xattr(file, b"user.a").expect("it gives room back");
    full();
    tree.unlink(root, b"file").expect("it gives room back");
    full();
    assert_whole(&tree);
}

/// An operation that frees room may use the reserve, and needs room for its own writes: all
/// remaining attributes.
#[test]
fn attribute_that_is_removed_from_a_full_volume_takes_no_more_than_there_is() {
    // How much of the reserve is used before.
    for before in (0..16).map(|blocks| blocks * 4096) {
        let (_device, tree) = fresh(2048);
        let root = tree.root();
        let names = [&b"first"[..], b"second", b"third"];
        let files = names.map(|name| {
            let file = tree.make(root, name, &FILE).expect("there is room").file;
            for large in [&b"user.a"[..], b"user.b", b"user.c", b"user.d"] {
                tree.set_xattr(file, large, &[1; 65_000], SetXattr::Any).expect("there is room");
            }
            tree.set_xattr(file, b"user.small", b"1", SetXattr::Any).expect("there is room");
            file
        });
        let little = tree.make(root, b"little", &FILE).expect("there is room").file;
        for (name, bytes) in [(&b"user.a"[..], before), (b"user.small", 1)] {
            tree.set_xattr(little, name, &vec![1; bytes], SetXattr::Any).expect("there is room");
        }
        let other = tree.make(root, b"other", &FILE).expect("there is room").file;
        let commit = || tree.volume().consistency_point().expect("it commits");
        for _ in 0..2 {
            commit();
            let end = tree.stat(other).expect("it is there").bytes;
            let mut writes = (0..).map(|block| tree.write(other, end + block * 4096, &[1; 4096]));
            let full = writes.find_map(Result::err);
            assert!(matches!(full, Some(TreeError::NoSpace)), "{full:?}");
        }
        let keeps = tree.volume().create_snapshot("keeps").expect("it is made");
        tree.remove_xattr(little, b"user.small").expect("it gives room back");
        commit();
        let removed = files.map(|file| {
            let removed = tree.remove_xattr(file, b"user.small");
            commit();
            matches!(removed, Ok(()) | Err(TreeError::NoSpace)).then_some(removed.is_ok())
        });
        assert!(removed[0] == Some(true) && removed[2] == Some(false), "{removed:?} after {before}");
        // An operation that frees more than it takes still finds room.
        tree.unlink(root, names[1]).expect("it gives room back");
        tree.volume().delete_snapshots(&[keeps.id]).expect("it is deleted");
        tree.remove_xattr(files[0], b"user.d").expect("it gives room back");
        assert_whole(&tree);
    }
}

#[test]
fn times_are_those_of_what_happened() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let tick = || {
        clock.advance(Duration::from_nanos(10));
        clock.advance(Duration::ZERO);
    };
    tick();
    let made = tree.make(tree.root(), b"a", &FILE).expect("there is room");
    assert_eq!(
        (made.created_ns, made.modified_ns, made.changed_ns, made.accessed_ns),
        (1010, 1010, 1010, 1010)
    );
    assert_eq!(tree.stat(tree.root()).expect("it is there").modified_ns, 1010);
    tick();
    tree.write(made.file, 0, b"x").expect("there is room");
    let stat = tree.stat(made.file).expect("it is there");
    assert_eq!((stat.created_ns, stat.modified_ns, stat.changed_ns), (1010, 1020, 1020));
    tick();
    tree.read(made.file, 0, 1).expect("it reads");
    assert_eq!(tree.stat(made.file).expect("it is there").accessed_ns, 1030);
    tick();
    tree.read(made.file, 0, 1).expect("it reads");
    assert_eq!(tree.stat(made.file).expect("it is there").accessed_ns, 1030, "it was read since the change");
    tick();
    tree.link(made.file, tree.root(), b"b").expect("there is room");
    let stat = tree.stat(made.file).expect("it is there");
    assert_eq!((stat.modified_ns, stat.changed_ns), (1020, 1050));
    let times = SetStat {
        accessed: Some(SetTime::At(-5_000_000_001)),
        modified: Some(SetTime::At(i64::MAX)),
        changed_ns: Some(2000),
        created_ns: Some(77),
        ..SetStat::default()
    };
    tree.set(made.file, &times).expect("it is there");
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, clock)).expect("the tree opens");
    let stat = tree.resolve(b"b").expect("it was synced");
    let seen = (stat.accessed_ns, stat.modified_ns, stat.changed_ns, stat.created_ns);
    assert_eq!(seen, (-5_000_000_001, i64::MAX, 2000, 77));
    // A cached write has the modification time that its writer sets, before or after it, and the
    // change time of its arrival.
    tree.set(
        made.file,
        &SetStat { modified: Some(SetTime::At(1)), changed_ns: Some(1), ..SetStat::default() },
    )
    .expect("it is there");
    tree.write_back(made.file, 0, b"late").expect("there is room");
    let stat = tree.stat(made.file).expect("it is there");
    assert_eq!((stat.modified_ns, stat.changed_ns), (1, 1050));
    tree.set(
        made.file,
        &SetStat { modified: Some(SetTime::At(2)), changed_ns: Some(2), ..SetStat::default() },
    )
    .expect("it is there");
    let stat = tree.stat(made.file).expect("it is there");
    assert_eq!((stat.modified_ns, stat.changed_ns), (2, 1050));
}

#[test]
fn time_of_the_last_read_is_a_day_old_at_most() {
    const DAY: u64 = 86_400_000_000_000;
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
    format(&*device, 4096);
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    tree.write(file, 0, b"x").expect("there is room");
    let read_after = |ns: u64| {
        clock.advance(Duration::from_nanos(ns));
        clock.advance(Duration::ZERO);
        tree.read(file, 0, 1).expect("it reads");
        tree.stat(file).expect("it is there").accessed_ns
    };
    assert_eq!(read_after(10), 1010, "it was written since");
    assert_eq!(read_after(DAY), 1010, "it was read a day ago, and not more");
    assert_eq!(read_after(1), DAY as i64 + 1011);
    assert_eq!(read_after(1), DAY as i64 + 1011);
}

#[test]
fn files_reach_sixteen_tebibytes_and_no_further() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"long", &FILE).expect("there is room").file;
    tree.write(file, FILE_BYTES_MAX - 3, b"end").expect("there is room");
    assert!(matches!(tree.write(file, FILE_BYTES_MAX - 2, b"end"), Err(TreeError::TooLarge)));
    assert!(matches!(tree.write(file, u64::MAX, b"end"), Err(TreeError::TooLarge)));
    let longer = SetStat { bytes: Some(FILE_BYTES_MAX + 1), ..SetStat::default() };
    assert!(matches!(tree.set(file, &longer), Err(TreeError::TooLarge)));
    let stat = tree.stat(file).expect("it is there");
    assert_eq!((stat.bytes, stat.blocks), (FILE_BYTES_MAX, 1));
    assert_eq!(tree.seek_data(file, 5).expect("there is data"), FILE_BYTES_MAX - 4096);
    assert_eq!(tree.seek_hole(file, 5).expect("it begins with one"), 5);
    assert_eq!(tree.read(file, FILE_BYTES_MAX - 3, 10).expect("it reads"), b"end");
    assert_whole(&tree);
    tree.unlink(tree.root(), b"long").expect("it is there");
    while tree.volume().status().latched.is_none() && tree.volume().inode(file).is_ok() {
        tree.volume().background(Duration::ZERO).expect("it works");
    }
    assert_whole(&tree);
}

#[test]
fn nothing_is_allocated_or_copied_past_the_largest_size() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    let other = tree.make(tree.root(), b"b", &FILE).expect("there is room").file;
    tree.write(file, 0, &[1; 9000]).expect("there is room");
    tree.write(other, 0, b"other").expect("there is room");
    let before = tree.stat(other).expect("it is there");
    let modes = [Allocate::Extend, Allocate::Keep, Allocate::Punch, Allocate::Zero { keep: false }];
    for (offset, length) in [(FILE_BYTES_MAX, 1), (1, FILE_BYTES_MAX), (u64::MAX, 1), (5, u64::MAX)] {
        for mode in modes {
            let outcome = tree.allocate(other, offset, length, mode);
            assert!(matches!(outcome, Err(TreeError::TooLarge)), "{mode:?}: {outcome:?}");
        }
    }
    for to in [FILE_BYTES_MAX, u64::MAX - 3, u64::MAX] {
        let outcome = tree.copy_range(file, 0, other, to, 9000);
        assert!(matches!(outcome, Err(TreeError::TooLarge)), "{to}: {outcome:?}");
    }
    assert_eq!(tree.copy_range(file, u64::MAX, other, 0, 9).expect("there is nothing"), 0);
    assert_eq!(tree.stat(other).expect("it is there"), before);
    assert_whole(&tree);
    tree.allocate(file, 0, 9000, Allocate::Punch)
        .expect("all of it, with what is behind its end in its last block");
    assert_eq!(tree.stat(file).expect("it is there").blocks, 0);
    tree.allocate(other, FILE_BYTES_MAX - 4096, 4096, Allocate::Extend).expect("it is the largest");
    assert_eq!(tree.stat(other).expect("it is there").bytes, FILE_BYTES_MAX);
    tree.allocate(other, 0, FILE_BYTES_MAX, Allocate::Punch).expect("all of it");
    assert_eq!(tree.stat(other).expect("it is there").blocks, 0);
    assert_whole(&tree);
}

#[test]
fn file_has_no_more_names_than_it_may() {
    let (_device, tree) = fresh(4096);
    let root = tree.root();
    let file = tree.make(root, b"first", &FILE).expect("there is room").file;
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    edit.inode_mut(file).expect("it is there").attributes.links = 64_999;
    edit.commit(false).expect("there is room");
    assert_eq!(tree.link(file, root, b"last").expect("it may").links, 65_000);
    let outcome = tree.link(file, root, b"too many").map(drop).map_err(|error| error.errno());
    assert_eq!(outcome, Err(31));
    assert!(matches!(tree.lookup(root, b"too many"), Err(TreeError::NotFound)));
    tree.rename(root, b"last", root, b"renamed", Rename::Replace).expect("it has one as before");
    tree.unlink(root, b"renamed").expect("it is there");
    assert_eq!(tree.link(file, root, b"again").expect("it may").links, 65_000);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let (_device, tree) = fresh(4096);
    let errno = |name: &[u8]| tree.make(tree.root(), name, &FILE).map(drop).map_err(|error| error.errno());
    assert_eq!(errno(b""), Err(2));
    assert_eq!(errno(b"."), Err(22));
    assert_eq!(errno(b".."), Err(22));
    assert_eq!(errno(b"a/b"), Err(22));
    assert_eq!(errno(&[b'x'; 256]), Err(36));
    assert_eq!(errno(&[b'x'; 255]), Ok(()));
    assert_eq!(errno(b"\xff\xfe\n"), Ok(()));
    assert_eq!(errno(b".files"), Ok(()));
}

#[test]
fn luns_and_files_live_side_by_side() {
    let (device, tree) = fresh(8192);
    let luns = Luns::new(tree.volume().clone());
    tree.make(tree.root(), b"file", &FILE).expect("there is room");
    luns.create("disk", 1 << 20).expect("there is room");
    assert_eq!(luns.list().expect("it can be read").len(), 1);
    assert!(matches!(luns.delete(".files"), Err(FilesError::NoSuchLun)));
    luns.delete("disk").expect("it is there");
    tree.sync_all().expect("it flushes");
    drop((luns, tree));
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    tree.resolve(b"file").expect("it was synced");
    assert_whole(&tree);
}

/// As ext4 has it.
#[test]
fn names_of_attributes_that_no_file_system_takes_are_refused() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    let long = [&b"user."[..], &[b'u'; 251]].concat();
    let wrong: [(&[u8], i32); 12] = [
        (b"", 34),
        (&long, 34),
        (b"user.", 22),
        (b"trusted.", 22),
        (b"security.", 22),
        (b"user", 95),
        (b"name", 95),
        (b".name", 95),
        (b"users.name", 95),
        (b"system.other", 95),
        (b"system.posix_acl_access.", 95),
        (b"User.name", 95),
    ];
    for (name, errno) in wrong {
        let named = name.escape_ascii();
        for mode in [SetXattr::Any, SetXattr::Create, SetXattr::Replace] {
            let set = tree.set_xattr(file, name, b"value", mode);
            assert_eq!(set.map_err(|error| error.errno()), Err(errno), "{named}");
        }
        assert_eq!(tree.xattr(file, name).map_err(|error| error.errno()), Err(errno), "{named}");
        assert_eq!(tree.remove_xattr(file, name).map_err(|error| error.errno()), Err(errno), "{named}");
    }
    assert!(tree.xattrs(file).expect("it reads").is_empty());
    for name in [&b"user.a"[..], b"user..", b"trusted.overlay.opaque", b"security.capability", b"user.\xff"] {
        tree.set_xattr(file, name, b"value", SetXattr::Any).expect("ext4 takes it");
    }
    assert!(matches!(tree.xattr(file, b"user.none"), Err(TreeError::NoAttribute)));
    assert_whole(&tree);
}

#[test]
fn attributes_have_their_limits() {
    let (_device, tree) = fresh(8192);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    let errno = |name: &[u8], length: usize| {
        tree.set_xattr(file, name, &vec![5; length], SetXattr::Any).map_err(|error| error.errno())
    };
    assert_eq!(errno(b"user.large", 65_536), Ok(()));
    assert_eq!(errno(b"user.larger", 65_537), Err(7));
    assert_eq!(errno(b"", 1), Err(34));
    assert_eq!(errno(&[&b"user."[..], &[b'u'; 250]].concat(), 1), Ok(()));
    tree.remove_xattr(file, &[&b"user."[..], &[b'u'; 250]].concat()).expect("it is there");
    for number in 0..2 {
        assert_eq!(errno(format!("user.{number}").as_bytes(), 65_536), Ok(()));
    }
    assert_eq!(errno(b"user.toomuch", 65_536), Err(28));
    assert_eq!(tree.xattr(file, b"user.large").expect("it is there").len(), 65_536);
    assert_whole(&tree);
    for name in tree.xattrs(file).expect("it is there") {
        tree.remove_xattr(file, &name).expect("it is there");
    }
    assert!(!tree.stat(file).expect("it is there").has_xattrs);
    assert_whole(&tree);
}

#[test]
fn list_without_rules_takes_the_one_that_is_there_away() {
    let (_device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"f", &FOLDER).expect("there is room").file;
    let list = acl(&[(1, 7, NOBODY), (2, 6, 5), (4, 5, NOBODY), (16, 7, NOBODY), (32, 5, NOBODY)]);
    for name in [ACCESS, DEFAULT] {
        for none in [acl(&[]), Vec::new()] {
            tree.set_xattr(folder, name, &list, SetXattr::Any).expect("it is a list");
            assert_eq!(tree.xattr(folder, name).expect("it is there"), list);
            tree.set_xattr(folder, name, &none, SetXattr::Any).expect("it is none");
            assert!(matches!(tree.xattr(folder, name), Err(TreeError::NoAttribute)));
        }
    }
    assert_eq!(tree.stat(folder).expect("it is there").mode, 0o040_775, "the mode stays as it was");
    assert_whole(&tree);
}

#[test]
fn copy_within_a_file_is_refused_where_its_ranges_overlap() {
    let (_device, tree) = fresh(4096);
    let file = tree.make(tree.root(), b"a", &FILE).expect("there is room").file;
    let bytes: Vec<u8> = (0..40_000).map(|n| (n / 7) as u8).collect();
    tree.write(file, 0, &bytes).expect("there is room");
    for (from, to) in [(0, 9999), (9999, 0), (5000, 5000), (0, 1), (1, 0)] {
        let outcome = tree.copy_range(file, from, file, to, 10_000);
        assert_eq!(outcome.map_err(|error| error.errno()), Err(22), "{from} to {to}");
    }
    assert_eq!(tree.read(file, 0, 50_000).expect("it reads"), bytes);
    assert_eq!(tree.copy_range(file, 0, file, 10_000, 10_000).expect("they meet"), 10_000);
    assert_eq!(tree.copy_range(file, 30_000, file, 20_000, 10_000).expect("they meet"), 10_000);
    let wanted = [&bytes[..10_000], &bytes[..10_000], &bytes[30_000..], &bytes[30_000..]].concat();
    assert_eq!(tree.read(file, 0, 50_000).expect("it reads"), wanted);
}

/// A thread closes a file without a name while another one gives it a name by way of `/proc`: the
/// closing thread has seen no name, and comes to free the file when it has one.
#[test]
fn file_without_a_name_that_gets_one_while_it_is_closed_stays() {
    let (_device, tree) = fresh(4096);
    let file = tree.make_unnamed(tree.root(), &FILE).expect("there is room").file;
    tree.write(file, 0, b"content").expect("there is room");
    assert!(tree.holds.lock().release(file, 1), "nobody holds it, and it has no name");
    tree.link(file, tree.root(), b"named").expect("it has no name yet");
    tree.free_orphans_of(&[file]).expect("it looks again");
    let found = tree.resolve(b"named").expect("the name is there");
    assert_eq!((found.file, found.links), (file, 1));
    assert_eq!(tree.read(file, 0, 99).expect("what has a name is there"), b"content");
    assert_whole(&tree);
    assert!(matches!(tree.link(file, tree.root(), b"again").map(|stat| stat.links), Ok(2)));
    tree.sync_all().expect("it flushes");
}
