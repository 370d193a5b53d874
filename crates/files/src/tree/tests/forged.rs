//! Trees that no operation makes, with every checksum right: hostile, or from a bug.

use std::collections::HashSet;

use super::*;
use crate::tree::edit::Edit;
use crate::tree::trie;

/// Adds a name without checking its file.
fn forge(tree: &Tree, directory: FileId, name: &[u8], file: FileId, kind: NodeKind) {
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    trie::insert(&mut edit, directory, name, file, kind).expect("there is room");
    edit.commit(false).expect("there is room");
}

#[test]
fn circle_of_directories_ends_what_walks_them() {
    let (_device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    let below = tree.make_directory(folder, b"below", &FOLDER).expect("there is room").file;
    let file = tree.make(below, b"file", &FILE).expect("there is room").file;
    forge(&tree, below, b"above", folder, NodeKind::Directory);
    forge(&tree, below, b"root", tree.root(), NodeKind::Directory);
    // And a file whose name nothing has.
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    let directory = edit.inode(below).expect("it is there");
    let found = trie::find(&mut edit, &directory, b"file").expect("it can be read").expect("it is there");
    trie::remove(&mut edit, below, found.key).expect("it is there");
    edit.commit(false).expect("there is room");
    let image = |name: &str| {
        let snapshot = tree.volume().create_snapshot(name).expect("it is made");
        Tree::of_image(tree.volume().image(Some(snapshot.id)).expect("it is there")).expect("it has a tree")
    };
    let before = image("before");
    tree.write(file, 0, b"changed").expect("there is room");
    let after = image("after");
    assert_eq!(
        after.paths_of(&HashSet::from([file, below])).get(&below).map(Vec::as_slice),
        Some(&b"folder/below"[..])
    );
    let paths = |changes: Vec<TreeChange>| changes.into_iter().map(|change| change.path).collect::<Vec<_>>();
    assert_eq!(paths(after.changes_since(&before).expect("it ends")), [None]);
    let all = paths(after.all_as(ChangeKind::Created).expect("it ends"));
    let path = |path: &str| Some(path.as_bytes().to_vec());
    assert_eq!(all, ["folder", "folder/below", "folder/below/above", "folder/below/root"].map(path));
}

#[test]
fn what_is_among_the_files_without_names_and_has_one_stays_when_a_tree_is_opened() {
    let (device, tree) = fresh(4096);
    let folder = tree.make_directory(tree.root(), b"folder", &FOLDER).expect("there is room").file;
    let file = tree.make(folder, b"file", &FILE).expect("there is room").file;
    tree.write(file, 0, b"content").expect("there is room");
    let open = tree.make(folder, b"open", &FILE).expect("there is room").file;
    tree.hold(open).expect("it is there");
    tree.unlink(folder, b"open").expect("it is there");
    // Under a name that is not its own, under its own, and a number without a file.
    forge(&tree, tree.orphans, b"strange", open, NodeKind::File);
    forge(&tree, tree.orphans, b"other", file, NodeKind::File);
    forge(&tree, tree.orphans, format!("{:016x}", folder.0).as_bytes(), folder, NodeKind::Directory);
    forge(&tree, tree.orphans, b"root", tree.root(), NodeKind::Directory);
    forge(&tree, tree.orphans, b"itself", tree.orphans, NodeKind::Directory);
    forge(&tree, tree.orphans, b"quotas", tree.quotas.file(), NodeKind::File);
    forge(&tree, tree.orphans, b"nothing", FileId(4711), NodeKind::File);
    // The files of the tree that have no name.
    let own = [tree.orphans, tree.quotas.file()];
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    own.iter().for_each(|file| edit.inode_mut(*file).expect("it is there").attributes.links = 0);
    edit.commit(false).expect("there is room");
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    assert_eq!(
        tree.read(tree.resolve(b"folder/file").expect("it has a name").file, 0, 99).expect("it reads"),
        b"content"
    );
    assert!(matches!(tree.stat(open), Err(TreeError::NotFound)));
    assert!(own.iter().all(|file| tree.stat(*file).is_ok()), "without these there is no tree");
    assert_whole(&tree);
}
