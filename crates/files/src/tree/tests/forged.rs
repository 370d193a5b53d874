//! Trees that no operation makes, with every checksum right: of somebody who means harm, or of a bug.

use super::*;
use crate::tree::edit::Edit;
use crate::tree::trie;

/// Adds a name without a look at what it names.
fn forge(tree: &Tree, directory: FileId, name: &[u8], file: FileId, kind: NodeKind) {
    let mut edit = Edit::new(tree.live().expect("it is live"), &tree.quotas);
    trie::insert(&mut edit, directory, name, file, kind).expect("there is room");
    edit.commit(false).expect("there is room");
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
    // Under a name that is not its own, under its own, and what is no file of anybody.
    forge(&tree, tree.orphans, b"strange", open, NodeKind::File);
    forge(&tree, tree.orphans, b"other", file, NodeKind::File);
    forge(&tree, tree.orphans, format!("{:016x}", folder.0).as_bytes(), folder, NodeKind::Directory);
    forge(&tree, tree.orphans, b"root", tree.root(), NodeKind::Directory);
    forge(&tree, tree.orphans, b"itself", tree.orphans, NodeKind::Directory);
    forge(&tree, tree.orphans, b"quotas", tree.quotas.file(), NodeKind::File);
    forge(&tree, tree.orphans, b"nothing", FileId(4711), NodeKind::File);
    tree.sync_all().expect("it flushes");
    drop(tree);
    let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree opens");
    assert_eq!(
        tree.read(tree.resolve(b"folder/file").expect("it has a name").file, 0, 99).expect("it reads"),
        b"content"
    );
    assert!(matches!(tree.stat(open), Err(TreeError::NotFound)));
    assert_whole(&tree);
}
