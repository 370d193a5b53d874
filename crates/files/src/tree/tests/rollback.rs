//! A tree that was open when the volume was rolled back.

use super::*;

#[test]
fn tree_of_before_a_rollback_changes_nothing_and_the_next_one_has_what_was() {
    let (_, tree) = fresh(4096);
    let volume = tree.volume().clone();
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    tree.set_quota(folder, QuotaLimits { files: Some(5), bytes: None }).expect("it is empty");
    tree.make(folder, b"kept", &FILE).expect("there is room");
    let past = volume.create_snapshot("past").expect("there is room").id;
    let open = tree.make(folder, b"gone", &FILE).expect("there is room").file;
    tree.hold(open).expect("it is there");
    tree.unlink(folder, b"gone").expect("it is there");
    // The top, the kept one, and the one that is open without a name count too.
    for name in [b"a", b"b"] {
        tree.make(folder, name, &FILE).expect("the quota has room");
    }
    assert!(matches!(tree.make(folder, b"d", &FILE), Err(TreeError::Quota)));
    assert!(tree.is_current());

    volume.rollback(past).expect("there is room");
    assert!(!tree.is_current());
    let refused = tree.make(folder, b"late", &FILE).expect_err("the tree is of another state");
    assert!(matches!(refused, TreeError::Stale), "{refused}");
    assert_eq!(refused.errno(), 116);
    for outcome in [
        tree.unlink(folder, b"kept"),
        tree.write(folder, 0, b"x").map(drop),
        tree.set_quota(folder, QuotaLimits::default()),
    ] {
        assert!(matches!(outcome, Err(TreeError::Stale)), "{outcome:?}");
    }
    // Its holds can still be released.
    tree.release(open);

    let now = Tree::open(volume.clone()).expect("the volume has a tree");
    assert_eq!(now.quota(folder).expect("it is there").map(|quota| quota.used_files), Some(2));
    assert!(matches!(now.lookup(folder, b"a"), Err(TreeError::NotFound)));
    for name in [b"a", b"b", b"c"] {
        now.make(folder, name, &FILE).expect("the quota has room again");
    }
    assert!(matches!(now.make(folder, b"d", &FILE), Err(TreeError::Quota)));
    volume.consistency_point().expect("it commits");
    assert_whole(&now);
}

#[test]
fn change_that_was_under_way_when_the_volume_was_rolled_back_is_not_made() {
    let (_, tree) = fresh(4096);
    let volume = tree.volume().clone();
    let past = volume.create_snapshot("past").expect("there is room").id;
    let head = volume.head();
    let mut change = cairn_volume::Change::of(head);
    change.put(volume.inode(tree.root()).expect("it is there"));
    volume.change(change.clone(), false).expect("it is of what there is");
    volume.rollback(past).expect("there is room");
    assert_ne!(volume.head(), head);
    assert!(matches!(volume.change(change, false), Err(VolumeError::OtherHead)));
}
