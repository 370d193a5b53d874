//! Trees through a dump and back.

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{DATE, File, Tree, time};
use crate::writer::Filter;
use crate::{
    Attribute, Damage, Dump, Entry, Inode, InodeMap, Kind, Known, Options, ROOT, Reader, Selection, Source,
    WriteError,
};

fn read_back(bytes: &[u8]) -> (Tree, Vec<crate::Damage>) {
    let mut reader = Reader::open(bytes).unwrap();
    let tree = Tree::read(&mut reader);
    (tree, reader.damage().to_vec())
}

fn mixed() -> Tree {
    let mut tree = Tree::new();
    let sub = tree.add(ROOT, "sub", Kind::Directory);
    let deep = tree.add(sub, "deep", Kind::Directory);
    let file = tree.add_with(deep, "file", &[7; 3000]);
    tree.link(ROOT, b"again", file);
    let empty = tree.add(deep, "empty", Kind::Regular);
    tree.get(empty).attributes = vec![Attribute { name: b"user.color".to_vec(), value: b"blue".to_vec() }];
    let link = tree.add(sub, "link", Kind::Symlink);
    tree.fill(link, 9, vec![(0, b"deep/file".to_vec())]);
    let device = tree.add(sub, "device", Kind::Block);
    tree.get(device).inode.device = (259, 70_001);
    tree.add(sub, "pipe", Kind::Fifo);
    let old = tree.add_with(sub, "old", b"before 1970");
    tree.get(old).inode.modified = time(-5_000_000_000);
    let far = tree.add_with(sub, "far", b"after 2038");
    tree.get(far).inode.accessed = time(9_000_000_000);
    let sparse = tree.add(deep, "sparse", Kind::Regular);
    tree.fill(sparse, 5 << 20, vec![(1 << 20, vec![1; 5000]), (3 << 20, vec![2; 1])]);
    let huge = tree.add(deep, "huge", Kind::Regular);
    tree.fill(huge, 16 << 40, vec![(700, vec![3; 10])]);
    tree
}

#[test]
fn tree_of_all_kinds_reads_as_written() {
    let mut tree = mixed();
    let (bytes, written) = tree.dump(Tree::options());
    assert!(written.failed.is_empty());
    assert_eq!(bytes.len() % 10_240, 0);
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, []);
    assert_eq!(read.plain(), tree.plain());
    let label = Reader::open(&bytes[..]).unwrap().label();
    assert_eq!((label.level, label.date, label.since), (0, DATE, 0));
    assert_eq!((label.file_system, label.host), (b"/vol0".to_vec(), b"here".to_vec()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sparse_file_reads_as_written(
        extents in vec((1u64..600_000, 1usize..9_000, any::<u8>()), 0..8),
        more in 0u64..900_000,
    ) {
        let mut tree = Tree::new();
        let number = tree.add(ROOT, "sparse", Kind::Regular);
        let (mut at, mut data) = (0, Vec::new());
        for (gap, length, byte) in extents {
            data.push((at + gap, vec![byte; length]));
            at += gap + length as u64;
        }
        tree.fill(number, at + more, data);
        let (bytes, _) = tree.dump(Tree::options());
        let (read, damage) = read_back(&bytes);
        prop_assert_eq!(damage, []);
        prop_assert_eq!(read.plain(), tree.plain());
    }
}

#[test]
fn higher_level_has_what_changed_and_the_directories_that_lead_there() {
    let mut tree = mixed();
    let since = DATE - 1000;
    let changed: Vec<u32> =
        tree.0.values().filter(|file| file.inode.size == 3000).map(|file| file.inode.number).collect();
    for number in &changed {
        tree.get(*number).inode.modified = time(i64::from(since));
    }
    let options = Options { level: 1, since, ..Tree::options() };
    let (bytes, _) = tree.dump(options);
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, []);
    // The root, `sub` and `deep`, and the file with its two names.
    assert_eq!(read.0.len(), 4);
    assert_eq!(read.0.values().filter(|file| file.inode.kind == Kind::Directory).count(), 3);
    assert!(changed.iter().all(|number| read.0.contains_key(number)));
    let reader = Reader::open(&bytes[..]).unwrap();
    assert!(tree.0.keys().all(|number| reader.used().contains(*number)), "nothing else is gone");
    assert_eq!(reader.label().since, since);
}

#[test]
fn subtree_and_filter_leave_the_rest_out() {
    let mut tree = mixed();
    let options = Options { subtree: vec![b"sub".to_vec(), b"deep".to_vec()], ..Tree::options() };
    let filter = &mut |path: &[u8]| {
        if path.ends_with(b"sparse") { Selection::Skip } else { Selection::Take }
    };
    let dump = Dump::plan(&mut tree, options, Some(filter), &mut |_| true).unwrap();
    let mut bytes = Vec::new();
    dump.write(&mut tree, &mut bytes, &mut |_| true).unwrap();
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, []);
    let names = |tree: &Tree| -> Vec<Vec<u8>> {
        let mut names: Vec<_> =
            tree.0.values().flat_map(|f| f.entries.iter().map(|e| e.name.clone())).collect();
        names.sort();
        names
    };
    // `again` is another name of a file that is in the dump, and outside of the requested part.
    let expected = ["deep", "empty", "file", "huge", "sub"].map(|name| name.as_bytes().to_vec());
    assert_eq!(names(&read), expected);
    assert_eq!(read.0.len(), 6);

    let nowhere = Options { subtree: vec![b"sub".to_vec(), b"none".to_vec()], ..Tree::options() };
    let refused = Dump::plan(&mut tree, nowhere, None, &mut |_| true);
    assert!(matches!(refused, Err(WriteError::NoSuchPath(path)) if path == b"sub/none"));
}

#[test]
fn file_that_cannot_be_read_costs_itself() {
    let mut tree = mixed();
    let number = tree.add_with(ROOT, "broken", &[1; 5000]);
    tree.get(number).broken = true;
    let (bytes, written) = tree.dump(Tree::options());
    assert_eq!(written.failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [number]);
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, [Damage::Hurt { number }]);
    assert_eq!(read.0[&number].data, [(0, vec![0; 5000])]);
    tree.get(number).data = vec![(0, vec![0; 5000])];
    assert_eq!(read.plain(), tree.plain());
}

/// A tree with a file in which one byte, its map of holes, or its extended attributes can't be
/// read.
struct Rotten {
    tree: Tree,
    number: u32,
    byte: Option<u64>,
}

/// Represents the map of holes.
const HOLES: u64 = u64::MAX;

impl Source for Rotten {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()> {
        self.tree.each_inode(each)
    }

    fn inode(&mut self, number: u32) -> std::io::Result<Inode> {
        self.tree.inode(number)
    }

    fn entries(&mut self, directory: u32) -> std::io::Result<(Vec<Entry>, u32)> {
        self.tree.entries(directory)
    }

    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>> {
        let is_rotten = number == self.number && self.byte == Some(HOLES);
        if is_rotten { Err(std::io::Error::other("rotten")) } else { self.tree.extents(number) }
    }

    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let read = offset..offset + bytes.len() as u64;
        let is_rotten = number == self.number && self.byte.is_some_and(|byte| read.contains(&byte));
        if is_rotten { Err(std::io::Error::other("rotten")) } else { self.tree.read(number, offset, bytes) }
    }

    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>> {
        let is_rotten = number == self.number && self.byte.is_none();
        if is_rotten { Err(std::io::Error::other("rotten")) } else { self.tree.attributes(number) }
    }
}

/// Zeroes in place of unreadable data are not the file's content: the restore reports the file.
#[test]
fn content_that_cannot_be_read_costs_its_block_and_is_known_to_be_missing_by_who_reads_the_dump() {
    let mut tree = mixed();
    let number = tree.add_with(ROOT, "rotten", &[1; 100_000]);
    let mut source = Rotten { tree, number, byte: Some(9000) };
    let dump = Dump::plan(&mut source, Tree::options(), None, &mut |_| true).unwrap();
    let mut bytes = Vec::new();
    let written = dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
    assert_eq!(written.failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [number]);
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, [Damage::Hurt { number }]);
    let wanted = [vec![1; 8192], vec![0; 4096], vec![1; 100_000 - 12_288]].concat();
    assert!(read.plain().0[&number].data == [(0, wanted)]);
}

/// Later data of the file is where its header says, as no part of the dump is missing.
#[test]
fn block_of_a_long_file_that_cannot_be_read_costs_nothing_behind_it() {
    let mut tree = mixed();
    let content: Vec<u8> = (0..3_000_000_u32).map(|byte| ((byte >> 12) % 250) as u8 + 1).collect();
    let number = tree.add_with(ROOT, "rotten", &content);
    let mut source = Rotten { tree, number, byte: Some(9000) };
    let dump = Dump::plan(&mut source, Tree::options(), None, &mut |_| true).unwrap();
    let mut bytes = Vec::new();
    dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, [Damage::Hurt { number }]);
    let mut wanted = content;
    wanted[8192..12_288].fill(0);
    assert!(read.plain().0[&number].data == [(0, wanted)]);
}

/// A file with an unknown map of data is not read as a hole.
#[test]
fn file_of_which_nobody_knows_where_its_holes_are_is_known_to_be_missing_by_who_reads_the_dump() {
    let mut tree = mixed();
    let number = tree.add_with(ROOT, "rotten", &[1; 100_000]);
    let mut source = Rotten { tree, number, byte: Some(HOLES) };
    let dump = Dump::plan(&mut source, Tree::options(), None, &mut |_| true).unwrap();
    let mut bytes = Vec::new();
    let written = dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
    assert_eq!(written.failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [number]);
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, [Damage::Hurt { number }]);
    assert!(read.0[&number].data.is_empty());
}

/// The bytes after the end of a file in its last record belong to no other file.
#[test]
fn record_that_a_file_does_not_fill_has_nothing_of_another_one() {
    let mut tree = Tree::new();
    tree.add_with(ROOT, "long", &[b'x'; 700_000]);
    for length in [1, 700, 1030] {
        tree.add_with(ROOT, &format!("{length}"), &vec![b'y'; length]);
    }
    let (bytes, _) = tree.dump(Tree::options());
    for record in bytes.as_chunks::<{ crate::RECORD }>().0.iter().filter(|record| record.contains(&b'y')) {
        let end = record.iter().rposition(|byte| *byte == b'y').unwrap_or(0);
        if record.starts_with(b"y") {
            assert!(record[end + 1..].iter().all(|byte| *byte == 0), "{end}");
        }
    }
}

/// Files moved into the dumped part are as old as they are, and in no earlier dump.
#[test]
fn what_the_lower_dump_had_not_is_dumped_however_old_it_is() {
    let mut tree = Tree::new();
    let [home, archive] = ["home", "archive"].map(|name| tree.add(ROOT, name, Kind::Directory));
    let moved = tree.add(archive, "moved", Kind::Directory);
    let deep = tree.add(moved, "deep", Kind::Directory);
    let old = tree.add_with(deep, "old", b"as it was");
    let stays = tree.add_with(home, "stays", b"as it was");
    let options = Options { subtree: vec![b"home".to_vec()], ..Tree::options() };
    let zero = Dump::plan(&mut tree, options.clone(), None, &mut |_| true).unwrap();
    let had = zero.had();
    assert_eq!(had.iter().collect::<Vec<_>>(), [ROOT, home, stays]);
    let entry = tree.get(archive).entries.remove(0);
    tree.get(home).entries.push(entry);
    let since = DATE - 1000;
    for number in [ROOT, home, archive, moved] {
        tree.get(number).inode.changed = time(i64::from(DATE));
    }
    let options = Options { level: 1, since, had: Some(had.clone()), ..options };
    let (bytes, _) = tree.dump(options.clone());
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, []);
    assert_eq!(read.0.keys().copied().collect::<Vec<_>>(), [ROOT, home, moved, deep, old]);
    // It is saved as bytes; files that may not have been there are all included.
    let options = Options { had: Some(InodeMap::from_bytes(had.as_bytes().to_vec())), ..options };
    assert_eq!(tree.dump(options.clone()).0, bytes);
    let (bytes, _) = tree.dump(Options { had: Some(InodeMap::new()), ..options });
    assert_eq!(read_back(&bytes).0.0.len(), 6);
}

/// Dumps level 1 of an unchanged tree; returns the names of each directory in it, and the files.
fn unchanged(tree: &mut Tree, options: Options, filter: Option<Filter<'_>>) -> Vec<(u32, Vec<Vec<u8>>)> {
    let options = Options { level: 1, since: DATE - 1000, ..options };
    let dump = Dump::plan(tree, options, filter, &mut |_| true).unwrap();
    let mut bytes = Vec::new();
    dump.write(tree, &mut bytes, &mut |_| true).unwrap();
    let (read, damage) = read_back(&bytes);
    assert_eq!(damage, []);
    let names = |file: &File| file.entries.iter().map(|entry| entry.name.clone()).collect();
    read.0.iter().map(|(number, file)| (*number, names(file))).collect()
}

/// A file that is dumped by another name does not show that this one is missing, or too many.
#[test]
fn name_that_was_left_out_of_a_file_with_others_comes_and_goes_with_the_pattern() {
    let mut tree = Tree::new();
    let [first, second] = ["first", "second"].map(|name| tree.add(ROOT, name, Kind::Directory));
    let sub = tree.add(second, "sub", Kind::Directory);
    let file = tree.add_with(first, "kept", b"as it was");
    tree.link(sub, b"other", file);
    let filter = |path: &[u8]| match path {
        b"second/sub/other" => Selection::Skip,
        _ => Selection::Take,
    };
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    let root = names(&["first", "second"]);
    let zero = Dump::plan(&mut tree, Tree::options(), Some(&mut { filter }), &mut |_| true).unwrap();
    let had = Options { had: Some(zero.had()), ..Tree::options() };
    let with = [(ROOT, root.clone()), (second, names(&["sub"])), (sub, names(&["other"]))];
    assert_eq!(unchanged(&mut tree, had.clone(), None), with);
    let without = [(ROOT, root), (second, names(&["sub"])), (sub, names(&[]))];
    assert_eq!(unchanged(&mut tree, Tree::options(), Some(&mut { filter })), without);
    // The same pattern has another meaning once a directory above is renamed, which the directory
    // itself does not record.
    tree.get(ROOT).entries.iter_mut().find(|entry| entry.number == second).unwrap().name = b"moved".to_vec();
    let with = [(ROOT, names(&["first", "moved"])), (second, names(&["sub"])), (sub, names(&["other"]))];
    assert_eq!(unchanged(&mut tree, had, Some(&mut { filter })), with);
}

/// Names beside the path to a part are left out of each dump of it.
#[test]
fn names_beside_the_way_to_a_part_make_no_dump_of_it_larger() {
    let mut tree = Tree::new();
    let home = tree.add(ROOT, "home", Kind::Directory);
    let part = tree.add(home, "part", Kind::Directory);
    let file = tree.add_with(part, "kept", b"as it was");
    tree.link(home, b"beside", file);
    let subtree = ["home", "part"].map(|name| name.as_bytes().to_vec()).to_vec();
    let options = Options { subtree, ..Tree::options() };
    let zero = Dump::plan(&mut tree, options.clone(), None, &mut |_| true).unwrap();
    let had = Options { had: Some(zero.had()), ..options };
    assert_eq!(unchanged(&mut tree, had.clone(), None), [(ROOT, vec![b"home".to_vec()])]);
    // It comes below the part with a directory that was on the way, and is as old as that.
    tree.get(home).entries.retain(|entry| entry.number == file);
    tree.get(ROOT).entries.clear();
    let above = tree.add(ROOT, "home", Kind::Directory);
    let new = tree.add(above, "part", Kind::Directory);
    tree.link(new, b"home", home);
    tree.link(new, b"kept", file);
    let dumped = unchanged(&mut tree, had, None);
    assert!(dumped.contains(&(home, vec![b"beside".to_vec()])), "{dumped:?}");
}

/// Whatever could not be read of a directory, no restore treats its content as deleted.
#[test]
fn directory_that_cannot_be_read_costs_itself_and_nothing_of_it_is_said_to_be_gone() {
    let mut tree = mixed();
    let sub = tree.get(ROOT).entries.iter().find(|entry| entry.name == b"sub").unwrap().number;
    tree.get(sub).broken = true;
    for since in [0, DATE - 1000] {
        for number in [ROOT, sub] {
            tree.get(number).inode.changed = time(i64::from(DATE));
        }
        let options = Options { level: u32::from(since > 0), since, ..Tree::options() };
        let (bytes, written) = tree.dump(options);
        assert!(written.failed.iter().all(|failed| failed.number == sub) && !written.failed.is_empty());
        let mut reader = Reader::open(&bytes[..]).unwrap();
        assert!(tree.0.keys().all(|number| reader.used().contains(*number)), "since {since}");
        let read = Tree::read(&mut reader);
        assert!(!read.0.contains_key(&sub), "it would be one without names");
        assert_eq!(reader.damage(), [Damage::Missing { number: sub }]);
        assert_eq!(read.0.len(), if since == 0 { tree.0.len() - 1 } else { 1 });
    }
}

#[test]
fn attributes_that_cannot_be_read_are_known_to_be_missing_by_who_reads_the_dump() {
    let tree = mixed();
    for number in tree.0.keys().copied() {
        let mut source = Rotten { tree: tree.clone(), number, byte: None };
        let dump = Dump::plan(&mut source, Tree::options(), None, &mut |_| true).unwrap();
        let mut bytes = Vec::new();
        let written = dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
        assert_eq!(written.failed.len(), 1);
        let (read, damage) = read_back(&bytes);
        assert_eq!(damage, [Damage::Hurt { number }]);
        assert_eq!(read.0[&number].entries, tree.0[&number].entries);
    }
}

#[test]
fn dump_can_be_ended() {
    let mut tree = mixed();
    let dump = Dump::plan(&mut tree, Tree::options(), None, &mut |_| true).unwrap();
    let ended = dump.write(&mut tree, &mut Vec::new(), &mut |progress| progress.done < 3);
    assert!(matches!(ended, Err(WriteError::Cancelled)));
}

/// A tree with inodes that can't be read, the first that many times or always; a walk in order
/// can't read them either.
struct WithoutInodes(Tree, Vec<u32>, u32);

impl WithoutInodes {
    fn fails(&self, number: u32) -> bool {
        self.2 > 0 && self.1.contains(&number)
    }
}

impl Source for WithoutInodes {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()> {
        let lost = &self.1;
        self.0.each_inode(&mut |inode| {
            if !lost.contains(&inode.number) {
                each(inode);
            }
        })
    }

    fn unreadable(&mut self) -> InodeMap {
        let mut lost = InodeMap::new();
        self.1.iter().for_each(|number| lost.insert(*number));
        lost
    }

    fn inode(&mut self, number: u32) -> std::io::Result<Inode> {
        if self.fails(number) {
            self.2 -= 1;
            return Err(std::io::Error::other("broken"));
        }
        self.0.inode(number)
    }

    fn entries(&mut self, directory: u32) -> std::io::Result<(Vec<Entry>, u32)> {
        if self.fails(directory) {
            return Err(std::io::Error::other("broken"));
        }
        self.0.entries(directory)
    }

    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>> {
        self.0.extents(number)
    }

    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.0.read(number, offset, bytes)
    }

    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>> {
        self.0.attributes(number)
    }
}

#[test]
fn inode_that_cannot_be_read_costs_its_file_also_where_it_is_known_what_changed() {
    let tree = mixed();
    let number = |name: &[u8]| {
        let entry = tree.0[&ROOT].entries.iter().find(|entry| entry.name == name);
        entry.expect("it is there").number
    };
    let (directory, file) = (number(b"sub"), number(b"again"));
    let mut used = InodeMap::new();
    tree.0.keys().for_each(|number| used.insert(*number));
    for (lost, failures) in [(file, u32::MAX), (directory, u32::MAX), (directory, 1), (file, 1)] {
        let mut source = WithoutInodes(tree.clone(), vec![lost], failures);
        let known = Known { used: used.clone(), dumped: used.clone() };
        let options = Options { level: 1, since: DATE - 1000, ..Tree::options() };
        let dump =
            Dump::plan_known(&mut source, options, known, &mut |_| true).expect("the rest can be dumped");
        let mut bytes = Vec::new();
        let written = dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
        let (read, damage) = read_back(&bytes);
        // A directory that was not known for one has no place among the files.
        let is_there = failures == 1 && lost == file;
        assert_eq!(read.0.contains_key(&lost), is_there);
        assert_eq!(read.0.len(), tree.0.len() - usize::from(!is_there));
        assert_eq!(damage, if is_there { vec![] } else { vec![Damage::Missing { number: lost }] });
        let failed: Vec<u32> = written.failed.iter().map(|failed| failed.number).collect();
        assert_eq!(failed, if is_there { vec![] } else { vec![lost] });
    }
}

#[test]
fn inodes_that_cannot_be_read_cost_their_files_and_nothing_is_said_to_be_gone() {
    let tree = mixed();
    let number = |name: &[u8]| tree.0[&ROOT].entries.iter().find(|entry| entry.name == name).unwrap().number;
    for since in [0, DATE - 1000] {
        let below = tree.0[&number(b"sub")].entries[0].number;
        for (lost, besides) in
            [(number(b"again"), None), (number(b"sub"), None), (number(b"sub"), Some(below))]
        {
            // The unreadable block also has unused places, and files known only through unreadable
            // ones.
            let all = [lost, lost + 1, lost + 2].into_iter().chain(besides).collect();
            let mut source = WithoutInodes(tree.clone(), all, u32::MAX);
            let options = Options { level: u32::from(since > 0), since, ..Tree::options() };
            let dump = Dump::plan(&mut source, options, None, &mut |_| true).expect("the rest can be dumped");
            let mut bytes = Vec::new();
            let written = dump.write(&mut source, &mut bytes, &mut |_| true).unwrap();
            assert!(!written.failed.is_empty());
            assert!(written.failed.iter().all(|failed| failed.number == lost), "{:?}", written.failed);
            let mut reader = Reader::open(&bytes[..]).unwrap();
            assert!(
                tree.0.keys().all(|number| reader.used().contains(*number)),
                "a restore would remove them"
            );
            let read = Tree::read(&mut reader);
            assert_eq!(reader.damage(), [Damage::Missing { number: lost }]);
            assert_eq!(read.0[&ROOT].entries, tree.0[&ROOT].entries, "its names are there");
            if since == 0 {
                assert_eq!(read.0.len(), tree.0.len() - 1 - besides.iter().len());
            }
        }
    }
    // If it is unknown whether a path exists, it is not reported as missing.
    let mut source = WithoutInodes(tree.clone(), vec![number(b"sub")], u32::MAX);
    let options = Options { subtree: vec![b"sub".to_vec(), b"deep".to_vec()], ..Tree::options() };
    let refused = Dump::plan(&mut source, options, None, &mut |_| true);
    assert!(matches!(refused, Err(WriteError::Source(_))), "{refused:?}");
}
