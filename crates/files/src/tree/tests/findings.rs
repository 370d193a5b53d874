//! Each fault of a tree is one finding: one object is changed wrongly, with every checksum right.

use cairn_base::{BLOCK_SIZE, Lba};
use cairn_device::BlockMut;
use cairn_format::{LeafHead, LeafName, LeafPlace, QuotaRecord};

use super::*;
use crate::tree::edit::{Edit, block_of};
use crate::tree::trie;

/// A tree with two directories, one of them in a quota tree of its own, and a file with two names
/// and extended attributes.
struct Scene {
    tree: Tree,
    folder: FileId,
    quota: FileId,
    file: FileId,
    _device: Arc<MemoryDevice>,
}

impl Scene {
    fn new() -> Self {
        let (device, tree) = fresh(4096);
        let root = tree.root();
        let folder = tree.make_directory(root, b"folder", &FOLDER).expect("there is room").file;
        let quota = tree.make_directory(root, b"quota", &FOLDER).expect("there is room").file;
        tree.set_quota(quota, QuotaLimits { bytes: Some(1 << 20), files: None }).expect("it is empty");
        let file = tree.make(root, b"file", &FILE).expect("there is room").file;
        tree.link(file, root, b"link").expect("there is room");
        tree.write(file, 0, &[1; 3 * 4096]).expect("there is room");
        tree.set_xattr(file, b"user.a", b"value", SetXattr::Any).expect("there is room");
        assert_whole(&tree);
        Self { tree, folder, quota, file, _device: device }
    }

    fn change(&self, change: impl FnOnce(&mut Edit<'_>)) {
        let mut edit = Edit::new(self.tree.live().expect("it is live"), &self.tree.quotas);
        change(&mut edit);
        edit.commit(false).expect("there is room");
    }

    fn findings(&self) -> Vec<TreeFinding> {
        self.tree.volume().consistency_point().expect("it commits");
        check_tree(&self.tree.volume().image(None).expect("there is a state")).expect("looking is possible")
    }
}

fn key_of(edit: &mut Edit<'_>, directory: FileId, name: &[u8]) -> u64 {
    let inode = edit.inode(directory).expect("it is there");
    trie::find(edit, &inode, name).expect("it can be read").expect("it is there").key
}

fn leaf(head: LeafHead, names: &[LeafName<'_>]) -> cairn_device::Block {
    let mut block = BlockMut::zeroed();
    head.write(names.iter().copied(), &mut block);
    block.freeze()
}

fn top_of(directory: FileId, parent: FileId, parent_key: u64) -> LeafHead {
    LeafHead { directory, place: LeafPlace::TOP, split: false, parent, parent_key }
}

#[test]
fn count_of_names_or_blocks_that_is_wrong_is_one_finding() {
    for is_folder in [false, true] {
        let scene = Scene::new();
        let file = if is_folder { scene.folder } else { scene.file };
        scene.change(|edit| edit.inode_mut(file).expect("it is there").attributes.links += 1);
        assert_eq!(scene.findings(), [TreeFinding::Links { file, says: 3, found: 2 }]);
        let scene = Scene::new();
        scene.change(|edit| edit.inode_mut(file).expect("it is there").attributes.blocks += 1);
        let found = if is_folder { 1 } else { 3 };
        assert_eq!(scene.findings(), [TreeFinding::Blocks { file, says: found + 1, found }]);
    }
}

#[test]
fn root_that_counts_no_links_is_one_finding_and_what_the_tree_has_for_itself_is_none() {
    let scene = Scene::new();
    let root = scene.tree.root();
    for of in [root, scene.tree.orphans, scene.tree.quotas.file()] {
        scene.change(|edit| edit.inode_mut(of).expect("it is there").attributes.links = 0);
    }
    assert_eq!(scene.findings(), [TreeFinding::Links { file: root, says: 0, found: 4 }]);
}

#[test]
fn file_that_no_name_leads_to_is_one_finding() {
    let scene = Scene::new();
    let (folder, root) = (scene.folder, scene.tree.root());
    let lost = scene.tree.make(folder, b"lost", &FILE).expect("there is room").file;
    scene.change(|edit| {
        let key = key_of(edit, folder, b"lost");
        trie::remove(edit, folder, key).expect("it is there");
    });
    assert_eq!(scene.findings(), [TreeFinding::NoName { file: lost }]);
    let scene = Scene::new();
    scene.change(|edit| {
        let key = key_of(edit, root, b"link");
        trie::remove(edit, root, key).expect("it is there");
    });
    assert_eq!(scene.findings(), [TreeFinding::Links { file: scene.file, says: 2, found: 1 }]);
}

#[test]
fn name_of_what_is_not_there_or_of_another_kind_is_one_finding() {
    let scene = Scene::new();
    let (folder, file) = (scene.folder, scene.file);
    let mut wrong = [(FileId(4711), NodeKind::File, 0), (file, NodeKind::Fifo, 0)];
    for (of, kind, key) in &mut wrong {
        let name = format!("{kind:?}");
        scene.change(|edit| {
            *key = trie::insert(edit, folder, name.as_bytes(), *of, *kind).expect("there is room");
        });
    }
    wrong.sort_by_key(|(.., key)| *key);
    let finding = |(file, _, key)| TreeFinding::BadName { directory: folder, key, file };
    assert_eq!(scene.findings(), wrong.map(finding));
}

#[test]
fn name_that_is_not_found_or_is_there_twice_is_one_finding() {
    for is_twice in [false, true] {
        let scene = Scene::new();
        let (folder, root, file) = (scene.folder, scene.tree.root(), scene.file);
        let mut expected = None;
        scene.change(|edit| {
            let own = trie::insert(edit, folder, b"name", file, NodeKind::File).expect("there is room");
            let named = |key| LeafName { key, file, kind: NodeKind::File.code(), name: b"name" };
            let names = if is_twice { vec![named(own), named(own + 1)] } else { vec![named(100)] };
            let parent_key = key_of(edit, root, b"folder");
            let block = leaf(top_of(folder, root, parent_key), &names);
            edit.write_leaf(folder, LeafPlace::TOP, block).expect("there is room");
            edit.inode_mut(file).expect("it is there").attributes.links += names.len() as u32;
            expected = Some(match is_twice {
                true => TreeFinding::NameTwice { directory: folder, key: own + 1 },
                false => TreeFinding::WrongKey { directory: folder, key: 100 },
            });
        });
        assert_eq!(scene.findings(), Vec::from_iter(expected));
    }
}

#[test]
fn directory_that_says_of_another_place_or_of_itself_that_its_name_is_there_is_one_finding() {
    for of_itself in [false, true] {
        let scene = Scene::new();
        let (folder, root, quota) = (scene.folder, scene.tree.root(), scene.quota);
        let says = if of_itself { folder } else { quota };
        scene.change(|edit| {
            let key = if of_itself { 0 } else { key_of(edit, root, b"folder") };
            trie::set_parent(edit, folder, says, key).expect("there is room");
        });
        assert_eq!(scene.findings(), [TreeFinding::WrongParent { directory: folder, says }]);
    }
}

#[test]
fn block_of_a_directory_that_is_no_leaf_of_it_is_one_finding() {
    for lba in [0, 2] {
        let scene = Scene::new();
        let folder = scene.folder;
        scene.change(|edit| {
            let inode = edit.inode_mut(folder).expect("it is there");
            (inode.tree.length, inode.length_bytes) = (4, 4 * BLOCK_SIZE as u64);
            edit.write_block(folder, lba, block_of(b"no leaf")).expect("there is room");
        });
        assert_eq!(scene.findings(), [TreeFinding::BadLeaf { directory: folder, lba }]);
    }
}

#[test]
fn leaf_that_is_in_the_way_of_another_one_is_one_finding() {
    let scene = Scene::new();
    let (folder, file) = (scene.folder, scene.file);
    let place = LeafPlace { level: 1, prefix: 1 };
    scene.change(|edit| {
        let inode = edit.inode_mut(folder).expect("it is there");
        (inode.tree.length, inode.length_bytes) = (4, 4 * BLOCK_SIZE as u64);
        // With a name of its own, so that it is not its emptiness that is wrong.
        let mut key = trie::insert(edit, folder, b"0", file, NodeKind::File).expect("there is room");
        trie::remove(edit, folder, key).expect("it is there");
        let mut name = 0;
        while key < place.start() {
            name += 1;
            let text = name.to_string();
            key = trie::insert(edit, folder, text.as_bytes(), file, NodeKind::File).expect("there is room");
            trie::remove(edit, folder, key).expect("it is there");
        }
        let text = name.to_string();
        let named = LeafName { key, file, kind: NodeKind::File.code(), name: text.as_bytes() };
        let head = LeafHead { directory: folder, place, split: false, parent: FileId(0), parent_key: 0 };
        edit.write_leaf(folder, place, leaf(head, &[named])).expect("there is room");
        edit.inode_mut(file).expect("it is there").attributes.links += 1;
    });
    assert_eq!(scene.findings(), [TreeFinding::CrossedLeaves { directory: folder, lba: place.lba() }]);
}

#[test]
fn extended_attributes_that_are_missing_or_nobodys_are_one_finding() {
    let scene = Scene::new();
    let file = scene.file;
    scene
        .change(|edit| edit.inode_mut(scene.folder).expect("it is there").attributes.extended = FileId(4711));
    let missing = TreeFinding::BadExtended { file: scene.folder, extended: FileId(4711) };
    assert_eq!(scene.findings(), [missing]);
    let scene = Scene::new();
    let mut extended = FileId(0);
    scene.change(|edit| {
        let attributes = &mut edit.inode_mut(file).expect("it is there").attributes;
        extended = std::mem::replace(&mut attributes.extended, FileId(0));
    });
    assert_eq!(scene.findings(), [TreeFinding::LostExtended { extended }]);
    // Those of another file are not its own.
    let scene = Scene::new();
    scene.change(|edit| edit.inode_mut(scene.folder).expect("it is there").attributes.extended = extended);
    let findings = scene.findings();
    let is_of_one = |finding: &TreeFinding| matches!(finding, TreeFinding::BadExtended { .. });
    assert!(!findings.is_empty() && findings.iter().all(is_of_one), "{findings:?}");
}

#[test]
fn quota_tree_that_counts_wrong_or_has_no_top_is_one_finding() {
    for is_top in [true, false] {
        let scene = Scene::new();
        let (used_blocks, used_files) = if is_top { (7, 1) } else { (1, 1) };
        let directory = if is_top { scene.quota } else { scene.folder };
        let record = QuotaRecord { directory, limit_bytes: 1 << 20, limit_files: 0, used_blocks, used_files };
        let quotas = scene.tree.quotas.file();
        scene.change(|edit| {
            let mut block = BlockMut::zeroed();
            record.write(1, &mut block);
            edit.content().write(quotas, Lba(1), block.freeze());
        });
        let says = (used_blocks, used_files);
        assert_eq!(scene.findings(), [TreeFinding::Quota { number: 1, says, found: (1, 1) }]);
    }
}

/// A check of all snapshots continues after one with a damaged tree.
#[test]
fn tree_of_a_snapshot_that_cannot_be_read_is_as_one_that_is_damaged() {
    const BLOCKS: u64 = 4096;
    for is_unreadable in [false, true] {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        format(&*device, BLOCKS);
        let tree = Tree::open(open_volume(&device, Arc::default())).expect("a tree is made");
        tree.make(tree.root(), b"before", &FILE).expect("there is room");
        let snapshot = tree.volume().create_snapshot("one").expect("it is made");
        tree.make(tree.root(), b"after", &FILE).expect("there is room");
        tree.volume().close().expect("it closes");
        drop(tree);
        let node = snapshot.root.inode_file.pointer.vbn.0;
        let place = (cairn_format::layout::space_start(BLOCKS) + node) * 4096;
        match is_unreadable {
            true => device.fail_reads(place..place + 4096),
            false => device.write_from(place, &[9; 4096]).expect("it is there"),
        }
        let tree = Tree::open(open_volume(&device, Arc::default())).expect("the tree of now is whole");
        let image = tree.volume().image(Some(snapshot.id)).expect("it is there");
        let found = check_tree(&image);
        assert!(matches!(found, Err(TreeError::Damaged(_))), "{found:?}");
    }
}
