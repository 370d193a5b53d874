//! A model of a tree after POSIX, in plain maps in memory, and a player of random operations on
//! both. For tests: of this crate, and of the simulator.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{FileId, Rng};

use crate::{Allocate, New, NodeKind, Owner, Rename, SetStat, SetXattr, Stat, Tree, TreeError};

/// A number of the model's, never given twice.
type Number = u64;
/// A list of xattrs, by name.
type Values = BTreeMap<Vec<u8>, Vec<u8>>;

const ROOT: Number = 0;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EPERM: i32 = 1;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;
const ENXIO: i32 = 6;

/// A file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    kind: NodeKind,
    mode: u32,
    uid: u32,
    gid: u32,
    device: u32,
    links: u32,
    bytes: Vec<u8>,
    names: BTreeMap<Vec<u8>, Number>,
    parent: Number,
    xattrs: Values,
}

impl Node {
    /// The remains of a rename of overlayfs.
    fn whiteout() -> Self {
        Self {
            kind: NodeKind::CharacterDevice,
            mode: 0,
            uid: 7,
            gid: 8,
            device: 0,
            links: 1,
            bytes: Vec::new(),
            names: BTreeMap::new(),
            parent: ROOT,
            xattrs: Values::new(),
        }
    }
}

/// A tree as POSIX sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    nodes: BTreeMap<Number, Node>,
    held: BTreeMap<Number, u32>,
}

/// Everything of a tree that does not depend on numbers and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    kind: NodeKind,
    mode: u32,
    owner: (u32, u32),
    device: u32,
    links: u32,
    bytes: Vec<u8>,
    xattrs: Values,
    /// The first path of the same file.
    same_as: Vec<u8>,
}

/// A tree by paths.
pub type Shown = BTreeMap<Vec<u8>, Look>;

impl Default for Model {
    fn default() -> Self {
        let root = Node {
            kind: NodeKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            device: 0,
            links: 2,
            bytes: Vec::new(),
            names: BTreeMap::new(),
            parent: ROOT,
            xattrs: Values::new(),
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), held: BTreeMap::new() }
    }
}

impl Model {
    fn node(&self, number: Number) -> Result<&Node, i32> {
        self.nodes.get(&number).ok_or(ENOENT)
    }

    fn node_mut(&mut self, number: Number) -> Result<&mut Node, i32> {
        self.nodes.get_mut(&number).ok_or(ENOENT)
    }

    fn directory(&self, number: Number) -> Result<&Node, i32> {
        let node = self.node(number)?;
        if node.kind == NodeKind::Directory { Ok(node) } else { Err(ENOTDIR) }
    }

    /// A directory in which a file can be made.
    fn open_directory(&self, number: Number) -> Result<&Node, i32> {
        self.directory(number).and_then(|node| if node.links == 0 { Err(ENOENT) } else { Ok(node) })
    }

    fn file_mut(&mut self, number: Number) -> Result<&mut Node, i32> {
        let node = self.node_mut(number)?;
        match node.kind {
            NodeKind::File => Ok(node),
            NodeKind::Directory => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    fn is_below(&self, mut directory: Number, above: Number) -> bool {
        loop {
            if directory == above {
                return true;
            }
            match self.nodes.get(&directory) {
                Some(node) if directory != ROOT => directory = node.parent,
                _ => return false,
            }
        }
    }

    fn make(&mut self, directory: Number, name: &[u8], number: Number, made: Node) -> Result<(), i32> {
        let parent = self.open_directory(directory)?;
        if parent.names.contains_key(name) {
            return Err(EEXIST);
        }
        let is_directory = made.kind == NodeKind::Directory;
        let gives_group = parent.mode & 0o2000 != 0;
        let gid = if gives_group { parent.gid } else { made.gid };
        let mode = made.mode | if gives_group && is_directory { 0o2000 } else { 0 };
        self.nodes.insert(number, Node { gid, mode, parent: directory, ..made });
        let parent = self.node_mut(directory)?;
        parent.names.insert(name.to_vec(), number);
        parent.links += u32::from(is_directory);
        Ok(())
    }

    fn link(&mut self, number: Number, directory: Number, name: &[u8]) -> Result<(), i32> {
        let parent = self.open_directory(directory)?;
        let node = self.node(number)?;
        if node.kind == NodeKind::Directory {
            return Err(EPERM);
        }
        if parent.names.contains_key(name) {
            return Err(EEXIST);
        }
        if node.links == 0 {
            return Err(ENOENT);
        }
        self.node_mut(number)?.links += 1;
        self.node_mut(directory)?.names.insert(name.to_vec(), number);
        Ok(())
    }

    fn remove(&mut self, directory: Number, name: &[u8], is_directory: bool) -> Result<(), i32> {
        let number = *self.open_directory(directory)?.names.get(name).ok_or(ENOENT)?;
        match (is_directory, self.node(number)?.kind == NodeKind::Directory) {
            (true, false) => return Err(ENOTDIR),
            (false, true) => return Err(EISDIR),
            _ => {}
        }
        self.drop_link(directory, number)?;
        self.node_mut(directory)?.names.remove(name);
        Ok(())
    }

    fn drop_link(&mut self, directory: Number, number: Number) -> Result<(), i32> {
        let node = self.node_mut(number)?;
        if node.kind == NodeKind::Directory {
            if !node.names.is_empty() {
                return Err(ENOTEMPTY);
            }
            node.links = 0;
            self.node_mut(directory)?.links -= 1;
        } else {
            node.links -= 1;
        }
        self.forget_unused(number);
        Ok(())
    }

    fn forget_unused(&mut self, number: Number) {
        let is_unused = self.nodes.get(&number).is_some_and(|node| node.links == 0);
        if is_unused && !self.held.contains_key(&number) {
            self.nodes.remove(&number);
        }
    }

    /// False where both names are of one file and stay.
    fn rename(
        &mut self,
        from: Number,
        name: &[u8],
        to: Number,
        new_name: &[u8],
        mode: Rename,
    ) -> Result<bool, i32> {
        self.open_directory(from)?;
        let target = self.open_directory(to)?.names.get(new_name).copied();
        let moved = *self.directory(from)?.names.get(name).ok_or(ENOENT)?;
        let is_directory = |number| self.node(number).map(|node| node.kind == NodeKind::Directory);
        let moves_directory = is_directory(moved)?;
        if moves_directory && self.is_below(to, moved) {
            return Err(EINVAL);
        }
        match (mode, target) {
            (Rename::NoReplace, Some(_)) => return Err(EEXIST),
            (Rename::Exchange, None) => return Err(ENOENT),
            (Rename::Exchange, Some(target)) => {
                if is_directory(target)? && self.is_below(from, target) {
                    return Err(EINVAL);
                }
                if target == moved {
                    return Ok(false);
                }
                self.put_name(from, name, target)?;
                self.put_name(to, new_name, moved)?;
            }
            (_, Some(target)) if target == moved => return Ok(false),
            (_, target) => {
                if let Some(target) = target {
                    match (moves_directory, is_directory(target)?) {
                        (true, false) => return Err(ENOTDIR),
                        (false, true) => return Err(EISDIR),
                        _ => {}
                    }
                    self.drop_link(to, target)?;
                }
                self.node_mut(from)?.names.remove(name);
                self.put_name(to, new_name, moved)?;
            }
        }
        // Each directory's links are those of the directories in it.
        for directory in BTreeSet::from([from, to]) {
            let names: Vec<Number> = self.node(directory)?.names.values().copied().collect();
            let below = names
                .iter()
                .filter(|number| self.nodes.get(number).is_some_and(|node| node.kind == NodeKind::Directory));
            let links = 2 + below.count() as u32;
            self.node_mut(directory)?.links = links;
        }
        Ok(true)
    }

    fn put_name(&mut self, directory: Number, name: &[u8], number: Number) -> Result<(), i32> {
        self.node_mut(directory)?.names.insert(name.to_vec(), number);
        let node = self.node_mut(number)?;
        if node.kind == NodeKind::Directory {
            node.parent = directory;
        }
        Ok(())
    }

    fn release(&mut self, number: Number) {
        if let Some(count) = self.held.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&number);
                self.forget_unused(number);
            }
        }
    }

    /// The same after a crash: without holds.
    pub fn without_holds(&self) -> Self {
        let mut model = self.clone();
        model.held.clear();
        model.nodes.retain(|_, node| node.links > 0);
        model
    }

    /// Everything that has a name.
    pub fn shown(&self) -> Shown {
        let (mut shown, mut first) = (Shown::new(), BTreeMap::new());
        self.show(ROOT, b"", &mut shown, &mut first);
        shown
    }

    fn show(&self, number: Number, path: &[u8], shown: &mut Shown, first: &mut BTreeMap<Number, Vec<u8>>) {
        let Some(node) = self.nodes.get(&number) else { return };
        let same_as = first.entry(number).or_insert_with(|| path.to_vec()).clone();
        let look = Look {
            kind: node.kind,
            mode: node.mode | node.kind.type_bits(),
            owner: (node.uid, node.gid),
            device: node.device,
            links: node.links,
            bytes: node.bytes.clone(),
            xattrs: node.xattrs.clone(),
            same_as,
        };
        shown.insert(path.to_vec(), look);
        for (name, below) in &node.names {
            let path = [path, b"/", name.as_slice()].concat();
            self.show(*below, &path, shown, first);
        }
    }
}

/// Everything that has a name in a tree, read through its directories.
///
/// # Errors
/// Any file that a read has touched.
pub fn shown(tree: &Tree) -> Result<Shown, TreeError> {
    let (mut shown, mut first) = (Shown::new(), BTreeMap::new());
    show(tree, tree.stat(tree.root())?, b"", &mut shown, &mut first)?;
    Ok(shown)
}

fn show(
    tree: &Tree,
    stat: Stat,
    path: &[u8],
    shown: &mut Shown,
    first: &mut BTreeMap<FileId, Vec<u8>>,
) -> Result<(), TreeError> {
    let bytes = match stat.kind {
        NodeKind::File => tree.read(stat.file, 0, stat.bytes as usize)?,
        NodeKind::SymbolicLink => tree.read_link(stat.file)?,
        _ => Vec::new(),
    };
    let mut xattrs = Values::new();
    for name in tree.xattrs(stat.file)? {
        let value = tree.xattr(stat.file, &name)?;
        xattrs.insert(name, value);
    }
    let look = Look {
        kind: stat.kind,
        mode: stat.mode,
        owner: (stat.uid, stat.gid),
        device: stat.device,
        links: stat.links,
        bytes,
        xattrs,
        same_as: first.entry(stat.file).or_insert_with(|| path.to_vec()).clone(),
    };
    shown.insert(path.to_vec(), look);
    if stat.kind != NodeKind::Directory {
        return Ok(());
    }
    let mut entries = Vec::new();
    let mut after = 0;
    loop {
        // A few at a time, so that continued reads are tested.
        let some = tree.read_directory(stat.file, after, 5)?;
        let Some(last) = some.last() else { break };
        after = last.cookie;
        entries.extend(some);
    }
    // By name, as the model has it: the first path of a file is the first in that order.
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
        let below = tree.lookup(stat.file, &entry.name)?;
        assert_eq!((below.file, below.kind), (entry.file, entry.kind), "a name says what it names");
        let path = [path, b"/", entry.name.as_slice()].concat();
        show(tree, below, &path, shown, first)?;
    }
    Ok(())
}

/// Plays random operations on a tree and on a model, and compares their results.
pub struct Player {
    rng: Rng,
    /// The expected state of the tree.
    pub model: Model,
    files: BTreeMap<Number, FileId>,
    next: Number,
    /// [`TreeError::NoSpace`] and [`TreeError::Quota`] are answers, of which nothing has happened.
    pub may_be_full: bool,
    /// The last operation, for a failure's message.
    pub last: String,
}

/// How an operation came out on the tree.
type Outcome<T> = Result<T, TreeError>;

impl Player {
    /// A player for an empty tree.
    pub fn new(tree: &Tree, rng: Rng) -> Self {
        Self::below(tree.root(), rng)
    }

    /// A player for an empty directory (mode 0755, owner 0) and all below.
    pub fn below(directory: FileId, rng: Rng) -> Self {
        let files = BTreeMap::from([(ROOT, directory)]);
        Self { rng, model: Model::default(), files, next: 1, may_be_full: false, last: String::new() }
    }

    /// After a crash: the tree matches this model.
    pub fn go_on_with(&mut self, model: Model) {
        self.model = model;
    }

    /// Whether the names of `model` name the same files in the tree: states that look the same may
    /// be of others, which had the same names before or after.
    ///
    /// # Errors
    /// The tree can't be read.
    pub fn knows(&self, model: &Model, tree: &Tree) -> Result<bool, TreeError> {
        for (directory, node) in &model.nodes {
            for (name, below) in &node.names {
                match tree.lookup(self.file(*directory), name) {
                    Ok(found) if found.file == self.file(*below) => {}
                    Err(error @ (TreeError::Volume(_) | TreeError::Damaged(_))) => return Err(error),
                    Ok(_) | Err(_) => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// One operation on both.
    ///
    /// # Errors
    /// The volume failed: the effect of the operation is unknown.
    pub fn step(&mut self, tree: &Tree) -> Result<(), TreeError> {
        match self.rng.below(32) {
            0..=3 => self.make(tree),
            4 | 5 => self.make_directory(tree),
            6 => self.link(tree),
            7..=9 => self.remove(tree),
            10..=12 => self.rename(tree),
            13 => self.rename_leaving_whiteout(tree),
            14..=18 => self.write(tree),
            19 | 20 => self.truncate(tree),
            21 | 22 => self.allocate(tree),
            23 => self.attributes(tree),
            24 | 25 => self.xattrs(tree),
            26 => self.hold(tree),
            27 => self.release(tree),
            28 => self.copy(tree),
            _ => self.look(tree),
        }
    }

    /// Compares outcomes; `Ok(true)` when the operation has happened.
    fn same<T>(
        &mut self,
        what: String,
        tree: Outcome<T>,
        model: Result<(), i32>,
    ) -> Result<Option<T>, TreeError> {
        self.last = what;
        match (tree, model) {
            (Ok(value), Ok(())) => Ok(Some(value)),
            (Err(TreeError::NoSpace | TreeError::Quota), _) if self.may_be_full => Ok(None),
            (Err(error @ (TreeError::Volume(_) | TreeError::Damaged(_))), _) => Err(error),
            (Err(error), Err(errno)) if error.errno() == errno => Ok(None),
            (tree, model) => {
                panic!("{}: the tree says {:?}, the model {model:?}", self.last, tree.map(drop))
            }
        }
    }

    /// Plays an operation of the model, which is kept if the tree has done it.
    fn both<T>(
        &mut self,
        what: String,
        tree: impl FnOnce() -> Outcome<T>,
        model: impl FnOnce(&mut Model) -> Result<(), i32>,
    ) -> Result<Option<T>, TreeError> {
        let mut next = self.model.clone();
        let expected = model(&mut next);
        let done = self.same(what, tree(), expected)?;
        if done.is_some() {
            self.model = next;
        }
        Ok(done)
    }

    fn pick(&mut self, kind: Option<NodeKind>) -> Number {
        let is_wanted = |node: &Node| kind.is_none_or(|kind| node.kind == kind);
        let some: Vec<Number> =
            self.model.nodes.iter().filter(|(_, node)| is_wanted(node)).map(|(number, _)| *number).collect();
        // Occasionally a file of another kind.
        let any = self.rng.one_in(12) || some.is_empty();
        let all: Vec<Number> = if any { self.model.nodes.keys().copied().collect() } else { some };
        all.get(self.rng.below(all.len() as u64) as usize).copied().unwrap_or(ROOT)
    }

    fn directory(&mut self) -> Number {
        // One with many names.
        if self.rng.one_in(3) {
            return ROOT;
        }
        self.pick(Some(NodeKind::Directory))
    }

    fn file(&self, number: Number) -> FileId {
        self.files.get(&number).copied().unwrap_or(FileId(u64::MAX >> 3))
    }

    /// An existing name, mostly, with `there`; one of few otherwise.
    fn name(&mut self, directory: Number, there: bool) -> Vec<u8> {
        let names: Vec<&Vec<u8>> =
            self.model.nodes.get(&directory).map(|node| node.names.keys().collect()).unwrap_or_default();
        if there && !names.is_empty() && !self.rng.one_in(8) {
            return names[self.rng.below(names.len() as u64) as usize].clone();
        }
        let number = self.rng.below(48);
        // Fifteen long ones fill a leaf: directories are split, and joined again.
        let length = if number.is_multiple_of(4) { 1 } else { 250 };
        let mut name = format!("n{number}").into_bytes();
        name.resize(name.len().max(length), b'x');
        name
    }

    fn make(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let directory = self.directory();
        let name = self.name(directory, false);
        let kind = match self.rng.below(8) {
            0 => NodeKind::SymbolicLink,
            1 => NodeKind::Fifo,
            2 => NodeKind::CharacterDevice,
            _ => NodeKind::File,
        };
        let device = if kind == NodeKind::CharacterDevice { 0x0102_0304 } else { 0 };
        let mode = if kind == NodeKind::SymbolicLink { 0o777 } else { 0o640 };
        let target = b"../some/where".to_vec();
        let new = New { mode: kind.type_bits() | mode, uid: 7, gid: 8, device, umask: 0 };
        let bytes = if kind == NodeKind::SymbolicLink { target.clone() } else { Vec::new() };
        self.made(tree, directory, name, kind, mode, device, bytes, |tree, at, name| match kind {
            NodeKind::SymbolicLink => tree.make_link(at, name, &target, &new),
            _ => tree.make(at, name, &new),
        })
    }

    fn make_directory(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let directory = self.directory();
        let name = self.name(directory, false);
        let mode = if self.rng.one_in(4) { 0o2750 } else { 0o750 };
        let new = New { mode: mode | 0o007, uid: 7, gid: 8, device: 0, umask: 0o027 };
        let kind = NodeKind::Directory;
        self.made(tree, directory, name, kind, mode, 0, Vec::new(), |tree, at, name| {
            tree.make_directory(at, name, &new)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "all that a new file is")]
    fn made(
        &mut self,
        tree: &Tree,
        directory: Number,
        name: Vec<u8>,
        kind: NodeKind,
        mode: u32,
        device: u32,
        bytes: Vec<u8>,
        make: impl FnOnce(&Tree, FileId, &[u8]) -> Outcome<Stat>,
    ) -> Result<(), TreeError> {
        let links = if kind == NodeKind::Directory { 2 } else { 1 };
        let (names, xattrs) = (BTreeMap::new(), Values::new());
        let node =
            Node { kind, mode, uid: 7, gid: 8, device, links, bytes, names, parent: directory, xattrs };
        let (number, at) = (self.next, self.file(directory));
        self.next += 1;
        let what = format!("make {kind:?} {number} in {directory}: {:?}", String::from_utf8_lossy(&name));
        let stat =
            self.both(what, || make(tree, at, &name), |model| model.make(directory, &name, number, node))?;
        if let Some(stat) = stat {
            self.files.insert(number, stat.file);
        }
        Ok(())
    }

    fn link(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (number, directory) = (self.pick(None), self.directory());
        let name = self.name(directory, false);
        let (file, at) = (self.file(number), self.file(directory));
        let what = format!("link {number} into {directory}: {:?}", String::from_utf8_lossy(&name));
        self.both(what, || tree.link(file, at, &name), |model| model.link(number, directory, &name))?;
        Ok(())
    }

    fn remove(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let directory = self.directory();
        let name = self.name(directory, true);
        let at = self.file(directory);
        let below = self.model.nodes.get(&directory).and_then(|node| node.names.get(&name));
        let is_directory = below
            .and_then(|number| self.model.nodes.get(number))
            .is_some_and(|node| node.kind == NodeKind::Directory)
            ^ self.rng.one_in(10);
        let what = format!("remove from {directory}: {:?}", String::from_utf8_lossy(&name));
        self.both(
            what,
            || if is_directory { tree.remove_directory(at, &name) } else { tree.unlink(at, &name) },
            |model| model.remove(directory, &name, is_directory),
        )?;
        Ok(())
    }

    fn rename(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (from, to) = (self.directory(), self.directory());
        let there = self.rng.one_in(2);
        let (name, new_name) = (self.name(from, true), self.name(to, there));
        let mode = match self.rng.below(5) {
            0 => Rename::NoReplace,
            1 => Rename::Exchange,
            _ => Rename::Replace,
        };
        let (at, into) = (self.file(from), self.file(to));
        let what = format!(
            "rename {mode:?} {from}/{} to {to}/{}",
            String::from_utf8_lossy(&name),
            String::from_utf8_lossy(&new_name)
        );
        self.both(
            what,
            || tree.rename(at, &name, into, &new_name, mode),
            |model| model.rename(from, &name, to, &new_name, mode).map(drop),
        )?;
        Ok(())
    }

    /// The same, as overlayfs does it: a whiteout stays under the old name.
    fn rename_leaving_whiteout(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (from, to) = (self.directory(), self.directory());
        let there = self.rng.one_in(2);
        let (name, new_name) = (self.name(from, true), self.name(to, there));
        let mode = if self.rng.one_in(4) { Rename::NoReplace } else { Rename::Replace };
        let (at, into, number) = (self.file(from), self.file(to), self.next);
        self.next += 1;
        let what = format!(
            "rename {mode:?} {from}/{} to {to}/{}, and leave {number}",
            String::from_utf8_lossy(&name),
            String::from_utf8_lossy(&new_name)
        );
        let owner = Owner { uid: 7, gid: 8 };
        let left = self.both(
            what,
            || tree.rename_and_leave(at, &name, into, &new_name, mode, Some(owner)),
            |model| match model.rename(from, &name, to, &new_name, mode)? {
                true => model.make(from, &name, number, Node::whiteout()),
                false => Ok(()),
            },
        )?;
        if let Some(Some(file)) = left {
            self.files.insert(number, file);
        }
        Ok(())
    }

    /// A place in a small file: near edges of blocks, and within them.
    fn place(&mut self) -> u64 {
        let edges = [0, 1, 4095, 4096, 4097, 8192, 12_000, 20_480];
        edges[self.rng.below(edges.len() as u64) as usize] + self.rng.below(3)
    }

    fn write(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let number = self.pick(Some(NodeKind::File));
        let (offset, length) = (self.place() as usize, 1 + self.place() as usize);
        let mut data = vec![0; length];
        self.rng.fill(&mut data);
        let file = self.file(number);
        let what = format!("write {length} bytes at {offset} of {number}");
        self.both(
            what,
            || tree.write(file, offset as u64, &data).map(|count| assert_eq!(count, length)),
            |model| {
                let bytes = &mut model.file_mut(number)?.bytes;
                bytes.resize(bytes.len().max(offset + length), 0);
                bytes[offset..offset + length].copy_from_slice(&data);
                Ok(())
            },
        )?;
        Ok(())
    }

    fn truncate(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (number, length) = (self.pick(Some(NodeKind::File)), self.place());
        let file = self.file(number);
        let change = SetStat { bytes: Some(length), ..SetStat::default() };
        let what = format!("truncate {number} to {length}");
        self.both(
            what,
            || tree.set(file, &change),
            |model| {
                model.file_mut(number)?.bytes.resize(length as usize, 0);
                Ok(())
            },
        )?;
        Ok(())
    }

    fn allocate(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let number = self.pick(Some(NodeKind::File));
        let (offset, length) = (self.place(), 1 + self.place());
        let modes = [
            Allocate::Extend,
            Allocate::Keep,
            Allocate::Punch,
            Allocate::Zero { keep: true },
            Allocate::Zero { keep: false },
        ];
        let mode = modes[self.rng.below(5) as usize];
        let file = self.file(number);
        let what = format!("allocate {mode:?} {length} bytes at {offset} of {number}");
        self.both(
            what,
            || tree.allocate(file, offset, length, mode),
            |model| {
                let bytes = &mut model.file_mut(number)?.bytes;
                let end = (offset + length) as usize;
                if matches!(mode, Allocate::Extend | Allocate::Zero { keep: false }) {
                    bytes.resize(bytes.len().max(end), 0);
                }
                if matches!(mode, Allocate::Punch | Allocate::Zero { .. }) {
                    let end = end.min(bytes.len());
                    let start = (offset as usize).min(end);
                    bytes[start..end].fill(0);
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    fn attributes(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let number = self.pick(None);
        let (mode, uid) = (self.rng.below(0o10_000) as u32, self.rng.below(9) as u32);
        let file = self.file(number);
        let change = SetStat { mode: Some(mode), uid: Some(uid), ..SetStat::default() };
        let what = format!("set {number} to {mode:o}, {uid}");
        self.both(
            what,
            || tree.set(file, &change),
            |model| {
                let node = model.node_mut(number)?;
                (node.mode, node.uid) = (mode, uid);
                Ok(())
            },
        )?;
        Ok(())
    }

    fn xattrs(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let number = self.pick(None);
        let name = format!("user.{}", self.rng.below(3)).into_bytes();
        let file = self.file(number);
        if self.rng.one_in(3) {
            let what = format!("remove attribute of {number}");
            self.both(
                what,
                || tree.remove_xattr(file, &name),
                |model| model.node_mut(number)?.xattrs.remove(&name).map(drop).ok_or(ENODATA),
            )?;
            return Ok(());
        }
        let length = [0, 3, 5000][self.rng.below(3) as usize];
        let value = vec![self.rng.next() as u8; length];
        let mode = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][self.rng.below(3) as usize];
        let what = format!("attribute of {length} bytes of {number}, {mode:?}");
        self.both(
            what,
            || tree.set_xattr(file, &name, &value, mode),
            |model| {
                let xattrs = &mut model.node_mut(number)?.xattrs;
                match (mode, xattrs.contains_key(&name)) {
                    (SetXattr::Create, true) => return Err(EEXIST),
                    (SetXattr::Replace, false) => return Err(ENODATA),
                    _ => drop(xattrs.insert(name.clone(), value.clone())),
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    fn hold(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let number = self.pick(None);
        let file = self.file(number);
        self.both(
            format!("hold {number}"),
            || tree.hold(file),
            |model| {
                model.node(number)?;
                *model.held.entry(number).or_insert(0) += 1;
                Ok(())
            },
        )?;
        Ok(())
    }

    fn release(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let held: Vec<Number> = self.model.held.keys().copied().collect();
        if held.is_empty() {
            return Ok(());
        }
        let number = held[self.rng.below(held.len() as u64) as usize];
        self.last = format!("release {number}");
        tree.release(self.file(number));
        self.model.release(number);
        Ok(())
    }

    fn copy(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (from, to) = (self.pick(Some(NodeKind::File)), self.pick(Some(NodeKind::File)));
        let (at, into, length) = (self.place() as usize, self.place() as usize, self.place() as usize);
        if from == to || self.may_be_full {
            return Ok(());
        }
        let (source, target) = (self.file(from), self.file(to));
        let what = format!("copy {length} bytes from {at} of {from} to {into} of {to}");
        self.both(
            what,
            || tree.copy_range(source, at as u64, target, into as u64, length as u64),
            |model| {
                let bytes = model.file_mut(from)?.bytes.clone();
                let piece =
                    &bytes[at.min(bytes.len())..(at + length).min(bytes.len()).max(at.min(bytes.len()))];
                if piece.is_empty() {
                    return Ok(());
                }
                let own = &mut model.file_mut(to)?.bytes;
                own.resize(own.len().max(into + piece.len()), 0);
                own[into..into + piece.len()].copy_from_slice(piece);
                Ok(())
            },
        )?;
        Ok(())
    }

    /// Checks one file: its content and its reported holes.
    fn look(&mut self, tree: &Tree) -> Result<(), TreeError> {
        let (number, offset) = (self.pick(Some(NodeKind::File)), self.place());
        let file = self.file(number);
        let expected = self.model.file_mut(number).map(|node| node.bytes.clone());
        let read = tree.read(file, offset, 9000);
        let bytes = expected.clone().unwrap_or_default();
        let start = bytes.len().min(offset as usize);
        let read = self.same(format!("read {number} at {offset}"), read, expected.map(drop))?;
        let Some(read) = read else { return Ok(()) };
        assert!(read == bytes[start..bytes.len().min(start + 9000)], "{}: other bytes", self.last);
        let data = tree.seek_data(file, offset);
        let at = match &data {
            Ok(at) => *at as usize,
            Err(TreeError::NoData) => bytes.len(),
            Err(error) => return Err(error.clone()),
        };
        assert!(bytes.get(start..at.max(start)).is_some_and(|hole| hole.iter().all(|byte| *byte == 0)));
        let hole = tree.seek_hole(file, offset);
        match hole {
            Ok(hole) => assert!(hole >= offset && hole <= bytes.len() as u64),
            Err(error) => assert!(error.errno() == ENXIO && offset >= bytes.len() as u64),
        }
        Ok(())
    }
}
