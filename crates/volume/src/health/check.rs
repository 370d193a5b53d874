//! `cairn volume check`: checks every promise of the format from outside. It changes nothing.
//!
//! Roots are compared with their parents in the tree of descent, by trees and by maps, so that
//! shared parts of snapshots are checked at once. The blocks that a root's tree adds must be those
//! that its map adds. The same applies to dropped blocks.
//!
//! Trees are walked once, with one bit a block for the visited ones: a check of a volume of 1 TiB
//! takes about 130 MiB, also with long files.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Lba, SnapshotId, Vbn};
use cairn_device::{DeviceError, Operation};
use cairn_format::layout::{SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{BlockPointer, INODES_PER_BLOCK, Inode, Root, Structure, Superblock, TreeRef};

use crate::commit::space::Redirects;
use crate::commit::table::TableReader;
use crate::error::{Place, VolumeError, is_out_of_reach};
use crate::known_files::{ACTIVE_MAP, INODE_FILE};
use crate::log::device::damaged_headers;
use crate::read::block_set::{BlockSet, numbers};
use crate::read::compare::Maps;
use crate::read::image::{AllImages, Image};
use crate::read::store::Wanted;
use crate::read::tree::{BATCH, Tree, difference_past};
use crate::volume::Volume;

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A superblock slot does not verify; the other one serves. The next consistency point rewrites
    /// it.
    SuperblockSlot {
        /// Its block on the device.
        address: u64,
    },
    /// A copy of the header of the log device does not verify; the other one serves. The next
    /// opening rewrites it.
    LogHeader {
        /// Its block on the log device.
        address: u64,
    },
    /// A block of the table of snapshots, or of the redirect map, does not verify or can't be read.
    TableBlock {
        /// Its block on the device.
        address: u64,
        /// Whether it has a copy, from which a scrub and the next opening rewrite it. Without one
        /// the volume can't be opened again.
        has_copy: bool,
    },
    /// A block does not have the checksum that its parent names, or can't be read. Reads of it
    /// fail.
    DamagedBlock {
        /// Where it is.
        vbn: Vbn,
        /// The place of the block in a tree.
        place: Place,
        /// The root that was walked; 0 for the active state.
        snapshot: SnapshotId,
    },
    /// A root reaches a block that its active map does not have: it could be reused while it is
    /// needed.
    BlockNotInMap {
        /// The block.
        vbn: Vbn,
        /// The place of the block in a tree.
        place: Place,
        /// The root; 0 for the active state.
        snapshot: SnapshotId,
    },
    /// A map has a block that its root does not reach: it can never be reused.
    MapBitWithoutBlock {
        /// The block.
        vbn: Vbn,
        /// The root; 0 for the active state.
        snapshot: SnapshotId,
    },
    /// A root counts another number of blocks than its map has.
    UsedCount {
        /// The root; 0 for the active state.
        snapshot: SnapshotId,
        /// The number in the root.
        root: u64,
        /// Bits in the map.
        map: u64,
    },
    /// A block that a root reaches is free for allocation.
    UsedBlockIsFree {
        /// The block.
        vbn: Vbn,
    },
    /// An inode is in the place of another one, or does not parse.
    BadInode {
        /// Its block in the inode file.
        lba: Lba,
        /// The root; 0 for the active state.
        snapshot: SnapshotId,
    },
    /// A snapshot descends from one that does not exist.
    OrphanSnapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The missing one.
        parent: SnapshotId,
    },
    /// Two redirects share a slot.
    SharedRedirectSlot {
        /// The slot.
        slot: u64,
    },
}

impl Finding {
    /// The root that it concerns, where it concerns one; 0 for the active state.
    pub fn snapshot(&self) -> Option<SnapshotId> {
        match self {
            Finding::DamagedBlock { snapshot, .. }
            | Finding::BlockNotInMap { snapshot, .. }
            | Finding::MapBitWithoutBlock { snapshot, .. }
            | Finding::UsedCount { snapshot, .. }
            | Finding::BadInode { snapshot, .. }
            | Finding::OrphanSnapshot { snapshot, .. } => Some(*snapshot),
            Finding::SuperblockSlot { .. }
            | Finding::LogHeader { .. }
            | Finding::TableBlock { .. }
            | Finding::UsedBlockIsFree { .. }
            | Finding::SharedRedirectSlot { .. } => None,
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name_of = |snapshot: &SnapshotId| match snapshot.0 {
            0 => "the active state".to_owned(),
            id => format!("snapshot {id}"),
        };
        match self {
            Finding::SuperblockSlot { address } => {
                write!(f, "the superblock slot at block {address} is damaged; the other one serves")
            }
            Finding::LogHeader { address } => {
                write!(f, "the header at block {address} of the log device is damaged; the other copy serves")
            }
            Finding::TableBlock { address, has_copy: true } => {
                write!(
                    f,
                    "block {address} of the device, of the tables of snapshots and redirects, is damaged; its copy is used, and a scrub rewrites it"
                )
            }
            Finding::TableBlock { address, has_copy: false } => {
                write!(
                    f,
                    "block {address} of the device, of the tables of snapshots and redirects, is damaged, and so is its copy: the volume can't be opened again. Make an image dump of it now, or fail over to a mirror"
                )
            }
            Finding::DamagedBlock { vbn, place, snapshot } => {
                write!(f, "block {vbn} is damaged: {place} in {} cannot be read", name_of(snapshot))
            }
            Finding::BlockNotInMap { vbn, place, snapshot } => {
                write!(
                    f,
                    "block {vbn} ({place}) is reached by {} but not in its active map",
                    name_of(snapshot)
                )
            }
            Finding::MapBitWithoutBlock { vbn, snapshot } => {
                write!(f, "block {vbn} is in the active map of {} but not reached", name_of(snapshot))
            }
            Finding::UsedCount { snapshot, root, map } => {
                write!(f, "{} counts {root} blocks, its map has {map}", name_of(snapshot))
            }
            Finding::UsedBlockIsFree { vbn } => write!(f, "block {vbn} is needed but free for allocation"),
            Finding::BadInode { lba, snapshot } => {
                write!(f, "block {lba} of the inode file of {} has an inode that is wrong", name_of(snapshot))
            }
            Finding::OrphanSnapshot { snapshot, parent } => {
                write!(f, "snapshot {snapshot} descends from {parent}, which does not exist")
            }
            Finding::SharedRedirectSlot { slot } => write!(f, "two redirected blocks share slot {slot}"),
        }
    }
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckProgress {
    /// The number of checked roots.
    pub roots: u64,
    /// Roots in all.
    pub roots_total: u64,
    /// Blocks that were read and verified.
    pub blocks: u64,
    /// Blocks in use: an upper bound.
    pub blocks_total: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Empty when all is well.
    pub findings: Vec<Finding>,
    /// The number of checked roots.
    pub roots: u64,
    /// Blocks that were read and verified.
    pub blocks: u64,
    /// It was cancelled: the absence of a finding proves nothing.
    pub interrupted: bool,
}

/// How much a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckDepth {
    /// Superblocks, trees, inodes and maps: all structures that locate data.
    Structures,
    /// Every block of data as well.
    Everything,
}

/// Blocks that are walked between two calls of the caller's progress function, which may cancel the
/// check.
const TELL_BLOCKS: u64 = 4096;

/// Blocks of one root that its parent does not have, and the other way round.
#[derive(Default)]
struct Delta {
    /// By the maps; none when one of them can't be read.
    by_maps: Option<MapDelta>,
    /// By the trees.
    added: BlockSet,
    gone: BlockSet,
    /// Those of the added ones that the maps don't add: few, if any.
    unset: BTreeMap<Vbn, Place>,
    /// A block could not be read: the tree below it is unknown.
    incomplete: bool,
}

struct MapDelta {
    set: BlockSet,
    cleared: BlockSet,
    /// Blocks that a map can have.
    space: u64,
}

impl Delta {
    fn add(&mut self, vbn: Vbn, place: Place) {
        let Some(maps) = &self.by_maps else { return };
        // Numbers beyond any map take no room in one here.
        if vbn.0 < maps.space {
            self.added.insert(vbn);
        }
        if !maps.set.contains(vbn) {
            self.unset.insert(vbn, place);
        }
    }

    fn drop(&mut self, vbn: Vbn) {
        if self.by_maps.as_ref().is_some_and(|maps| vbn.0 < maps.space) {
            self.gone.insert(vbn);
        }
    }
}

struct Checker<'a> {
    volume: &'a Arc<Volume>,
    report: CheckReport,
    depth: CheckDepth,
    progress: &'a mut dyn FnMut(CheckProgress) -> ControlFlow<()>,
    roots_total: u64,
    blocks_total: u64,
    snapshot: SnapshotId,
    /// A block could not be reached, which ends the check.
    out_of_reach: Option<DeviceError>,
}

impl Volume {
    /// Reads everything that the last consistency point and all snapshots reach, and compares
    /// trees, maps and tables. Clients are served meanwhile. `progress` is called now and then.
    ///
    /// # Errors
    /// Only when checking itself is impossible, also when a block cannot be reached now. Faults of
    /// the volume are in the report.
    pub fn check(
        self: &Arc<Self>,
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Result<CheckReport, VolumeError> {
        let on = &mut |at| {
            progress(at);
            ControlFlow::Continue(())
        };
        self.check_to(CheckDepth::Everything, on)
    }

    /// The same to a depth, until `progress` cancels it.
    pub fn check_to(
        self: &Arc<Self>,
        depth: CheckDepth,
        progress: &mut dyn FnMut(CheckProgress) -> ControlFlow<()>,
    ) -> Result<CheckReport, VolumeError> {
        self.consistency_point_if_writable()?;
        // All of them from here on: a root is compared with its parent, whose blocks must not be
        // reused when it is deleted meanwhile.
        let AllImages { active, parent, snapshots } = self.image_of_all()?;
        let used_blocks = {
            let state = self.state.lock();
            state.used.blocks() - state.used.free()
        };
        let mut checker = Checker {
            volume: self,
            report: CheckReport::default(),
            depth,
            progress,
            roots_total: snapshots.len() as u64 + 1,
            blocks_total: used_blocks,
            snapshot: SnapshotId(0),
            out_of_reach: None,
        };
        checker.report.findings = self.label_findings(false);
        let roots: BTreeMap<SnapshotId, Root> =
            snapshots.iter().map(|(entry, _)| (entry.id, entry.root)).collect();
        for (entry, image) in &snapshots {
            if checker.report.interrupted {
                return checker.outcome();
            }
            if entry.parent.0 != 0 && !roots.contains_key(&entry.parent) {
                let (snapshot, parent) = (entry.id, entry.parent);
                checker.report.findings.push(Finding::OrphanSnapshot { snapshot, parent });
            }
            checker.snapshot = entry.id;
            checker.root(roots.get(&entry.parent), image);
        }
        checker.snapshot = SnapshotId(0);
        checker.root(roots.get(&parent), &active);
        checker.redirects(&active);
        checker.outcome()
    }

    /// Faults of superblock slots, tables and the headers of the log device. With `mends`, tables
    /// are rewritten from their copies.
    pub(crate) fn label_findings(&self, mends: bool) -> Vec<Finding> {
        let mut findings = self.table_findings(mends);
        for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
            let mut bytes = [0; BLOCK_SIZE];
            let read = self.store.device().read_into(address * BLOCK_SIZE as u64, &mut bytes);
            if read.is_err() || Superblock::parse(&bytes, address).is_err() {
                findings.push(Finding::SuperblockSlot { address });
            }
        }
        // Under its lock: a log that is moved elsewhere has no headers any more.
        let log = self.log.lock();
        let damaged = damaged_headers(log.area(), self.id()).into_iter();
        findings.extend(damaged.map(|address| Finding::LogHeader { address }));
        findings
    }

    fn table_findings(&self, mends: bool) -> Vec<Finding> {
        // No table changes meanwhile.
        let commit = self.commit.lock();
        let Superblock { layout, snapshots, redirects, .. } = &commit.superblock;
        let device = self.store.device();
        let mut reader = TableReader::new(&**device, self.id(), layout);
        reader.look_at(snapshots, Structure::SnapshotTable);
        reader.look_at(redirects, Structure::RedirectMap);
        let (with_copy, without) = reader.damaged();
        let (_, missing) = reader.end();
        if mends && !missing.is_empty() {
            let writes = missing.into_iter().map(|(offset, block)| Operation::write(offset, block.into()));
            let written = self.store.run(writes.collect()).and_then(|()| Ok(device.flush()?));
            let _ = written.inspect_err(|error| tracing::warn!(%error, "tables can't be rewritten"));
        }
        let finding = |(address, has_copy)| Finding::TableBlock { address, has_copy };
        let served = with_copy.into_iter().map(|address| (address, true));
        served.chain(without.into_iter().map(|address| (address, false))).map(finding).collect()
    }

    fn consistency_point_if_writable(self: &Arc<Self>) -> Result<(), VolumeError> {
        let writable = self.state.lock().check_writable().is_ok();
        match if writable { self.consistency_point().map(drop) } else { Ok(()) } {
            // The check itself reports the cause that keeps the volume from committing: it looks at
            // the last root then.
            Err(VolumeError::MapContradicts { .. } | VolumeError::Damaged { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}

impl Checker<'_> {
    fn outcome(self) -> Result<CheckReport, VolumeError> {
        self.out_of_reach.map_or(Ok(self.report), |error| Err(error.into()))
    }

    fn redirects(&mut self, active: &Image) {
        let mut slots = HashSet::new();
        for (_, slot) in active.redirects().each() {
            if !slots.insert(slot) {
                self.report.findings.push(Finding::SharedRedirectSlot { slot });
            }
        }
    }

    fn damaged(&mut self, error: VolumeError, vbn: Vbn, place: Place) {
        let (vbn, place) = match error {
            VolumeError::Damaged { vbn, place } => (vbn, place),
            VolumeError::Device(error) if is_out_of_reach(&error) => {
                self.out_of_reach.get_or_insert(error);
                self.report.interrupted = true;
                return;
            }
            _ => (vbn, place),
        };
        // A root that shares it finds it again.
        let same =
            |finding: &Finding| matches!(finding, Finding::DamagedBlock { vbn: known, .. } if *known == vbn);
        if !self.report.findings.iter().any(same) {
            self.report.findings.push(Finding::DamagedBlock { vbn, place, snapshot: self.snapshot });
        }
    }

    /// Compares a root with its parent, which was checked before.
    fn root(&mut self, parent: Option<&Root>, image: &Image) {
        let root = *image.root();
        let redirects = image.redirects().clone();
        let mut delta = Delta { by_maps: self.by_maps(parent, &root, &redirects).ok(), ..Delta::default() };
        let base = |own: TreeRef, pick: fn(&Root) -> TreeRef| parent.map_or(TreeRef::empty(own.length), pick);
        let (old_map, old_inodes) =
            (base(root.active_map, |root| root.active_map), base(root.inode_file, |root| root.inode_file));
        let store = &self.volume.store;
        let tree = |file, tree| Tree { store, redirects: &redirects, file, tree };
        let (old, new) = (tree(ACTIVE_MAP, old_map), tree(ACTIVE_MAP, root.active_map));
        self.tree(&old, &new, &mut delta, &mut |_| ());
        let mut changed: Vec<Changed> = Vec::new();
        let (old, new) = (tree(INODE_FILE, old_inodes), tree(INODE_FILE, root.inode_file));
        self.tree(&old, &new, &mut delta, &mut |block| changed.push(block));
        let ahead = self.volume.nodes_ahead() / (2 * INODES_PER_BLOCK as usize);
        for blocks in changed.chunks(ahead.max(1)) {
            for (file, old, new) in self.files(blocks, &redirects, &mut delta) {
                if self.report.interrupted {
                    return;
                }
                self.tree(&tree(file, old), &tree(file, new), &mut delta, &mut |_| ());
            }
        }
        self.maps(parent, &root, &redirects, &delta);
        self.report.roots += 1;
        self.tell();
    }

    /// Walks the differences between two trees, verifies the new blocks and adds to the delta.
    /// Calls `data` with the data blocks that differ.
    fn tree(&mut self, old: &Tree<'_>, new: &Tree<'_>, delta: &mut Delta, data: &mut dyn FnMut(Changed)) {
        let is_read = self.depth == CheckDepth::Everything || new.file >= INODE_FILE;
        let mut wanted = Vec::new();
        let mut walked = 0;
        let mut differ = |at: u64, level: u8, a: BlockPointer, b: BlockPointer| {
            if !a.is_hole() {
                delta.drop(a.vbn);
            }
            let place = match level {
                0 => Place::Data { file: new.file, lba: Lba(at) },
                _ => Place::Node(new.address(level, at)),
            };
            if !b.is_hole() {
                delta.add(b.vbn, place);
            }
            if level == 0 {
                data((at, a, b));
                if is_read && !b.is_hole() {
                    wanted.push(Wanted { pointer: b, place });
                }
            }
            if wanted.len() == BATCH {
                self.read(new, &mut wanted);
            }
            walked += 1;
            if walked % TELL_BLOCKS == 0 {
                self.tell();
            }
            if self.report.interrupted { Err(VolumeError::Closed) } else { Ok(()) }
        };
        let mut damage = Vec::new();
        let mut pass = |error| {
            damage.push(error);
            Ok(())
        };
        // No other error is possible, as all damage is passed.
        let interrupted = difference_past(old, new, &mut differ, &mut pass).is_err();
        delta.incomplete |= interrupted || !damage.is_empty();
        for error in damage {
            self.damaged(error, new.tree.pointer.vbn, Place::Unknown);
        }
        self.read(new, &mut wanted);
        self.tell();
    }

    /// Reads blocks of data and verifies them.
    fn read(&mut self, tree: &Tree<'_>, wanted: &mut Vec<Wanted>) {
        self.report.blocks += wanted.len() as u64;
        for (want, block) in wanted.iter().zip(tree.store.load_past_cache(wanted, tree.redirects)) {
            if let Err(error) = block {
                self.damaged(error, want.pointer.vbn, want.place);
            }
        }
        if !wanted.is_empty() {
            self.tell();
        }
        wanted.clear();
    }

    /// The files of blocks of inodes whose trees differ, and both trees. Inodes and the top nodes
    /// of files are loaded together: most files are small, and single reads would wait for each
    /// other.
    fn files(
        &mut self,
        blocks: &[Changed],
        redirects: &Redirects,
        delta: &mut Delta,
    ) -> Vec<(FileId, TreeRef, TreeRef)> {
        let store = &self.volume.store;
        let wanted: Vec<Wanted> = blocks
            .iter()
            .flat_map(|(at, old, new)| [old, new].map(|pointer| inodes_at(*at, *pointer)))
            .filter(|wanted| !wanted.pointer.is_hole())
            .collect();
        // Here and below: unreadable blocks are found again later.
        store.load(&wanted, redirects);
        let mut files = Vec::new();
        for (at, old, new) in blocks {
            let old = self.inodes(*at, *old, redirects, delta);
            for (slot, inode) in self.inodes(*at, *new, redirects, delta).into_iter().enumerate() {
                let before = old.get(slot).copied().flatten();
                if inode.is_some_and(|inode| Inode::place(inode.id) != (*at, slot)) {
                    let snapshot = self.snapshot;
                    self.report.findings.push(Finding::BadInode { lba: Lba(*at), snapshot });
                    delta.incomplete = true;
                    continue;
                }
                let tree_beside = |inode: Option<Inode>, other: Option<Inode>| {
                    inode.map_or(TreeRef::empty(other.map_or(1, |other| other.tree.length)), |i| i.tree)
                };
                let (old, new) = (tree_beside(before, inode), tree_beside(inode, before));
                if let Some(file) = inode.or(before).filter(|_| old != new) {
                    files.push((file.id, old, new));
                }
            }
        }
        let top = |file: FileId, tree: TreeRef| {
            let tree = Tree { store, redirects, file, tree };
            let TreeRef { pointer, height, .. } = tree.tree;
            (height > 0 && !pointer.is_hole())
                .then(|| Wanted { pointer, place: Place::Node(tree.address(height, 0)) })
        };
        let tops = files.iter().flat_map(|(file, old, new)| [top(*file, *old), top(*file, *new)]);
        store.load(&tops.flatten().collect::<Vec<_>>(), redirects);
        files
    }

    fn inodes(
        &mut self,
        at: u64,
        pointer: BlockPointer,
        redirects: &Redirects,
        delta: &mut Delta,
    ) -> Vec<Option<Inode>> {
        let Ok(block) = self.volume.store.load_one(inodes_at(at, pointer), redirects) else {
            delta.incomplete = true;
            return vec![None; INODES_PER_BLOCK as usize];
        };
        let mut inodes = Vec::new();
        for slot in 0..INODES_PER_BLOCK as usize {
            inodes.push(Inode::parse(&block, slot).unwrap_or_else(|_| {
                let finding = Finding::BadInode { lba: Lba(at), snapshot: self.snapshot };
                if !self.report.findings.contains(&finding) {
                    self.report.findings.push(finding);
                }
                delta.incomplete = true;
                None
            }));
        }
        inodes
    }

    /// The bits that a root's map adds and drops. An unreadable map is reported when its tree is
    /// walked.
    fn by_maps(
        &self,
        parent: Option<&Root>,
        root: &Root,
        redirects: &Redirects,
    ) -> Result<MapDelta, VolumeError> {
        let maps = Maps { store: &self.volume.store, redirects };
        let parents: Vec<Root> = parent.copied().into_iter().collect();
        let set = maps.only_in(root, &parents)?.into_iter().collect();
        let cleared = match parent {
            Some(parent) => maps.only_in(parent, &[*root])?.into_iter().collect(),
            None => BlockSet::default(),
        };
        let space = self.volume.state.lock().used.blocks();
        Ok(MapDelta { set, cleared, space })
    }

    /// The bits that a root's map adds and drops must be the blocks that its trees add and drop.
    fn maps(&mut self, parent: Option<&Root>, root: &Root, redirects: &Redirects, delta: &Delta) {
        let snapshot = self.snapshot;
        let Delta { by_maps: Some(MapDelta { set, cleared, .. }), added, gone, unset, incomplete } = delta
        else {
            return;
        };
        let findings = &mut self.report.findings;
        // Blocks that the parent has too, where it could not be read or has them at another place
        // of its trees, are in both maps.
        let vbns: Vec<Vbn> = unset.keys().copied().collect();
        let maps = Maps { store: &self.volume.store, redirects };
        let held = maps.holds(root, &vbns).unwrap_or_else(|_| vec![true; vbns.len()]);
        for ((vbn, place), _) in unset.iter().zip(held).filter(|(_, held)| !held) {
            findings.push(Finding::BlockNotInMap { vbn: *vbn, place: *place, snapshot });
        }
        if !incomplete {
            let finding = |vbn| Finding::MapBitWithoutBlock { vbn, snapshot };
            findings.extend(set.without(&[added]).flat_map(numbers).map(finding));
            findings.extend(gone.without(&[cleared, added]).flat_map(numbers).map(finding));
            let finding = |vbn| Finding::BlockNotInMap { vbn, place: Place::Unknown, snapshot };
            findings.extend(cleared.without(&[gone]).flat_map(numbers).map(finding));
        }
        let before = parent.map_or(0, |parent| parent.used);
        let map = (before + set.len()).saturating_sub(cleared.len());
        if map != root.used {
            findings.push(Finding::UsedCount { snapshot, root: root.used, map });
        }
        for run in added.without(&[]) {
            // Clients wait for this lock: no longer than for the blocks of a run.
            let state = self.volume.state.lock();
            let free = numbers(run).filter(|vbn| !state.used.get(*vbn));
            findings.extend(free.map(|vbn| Finding::UsedBlockIsFree { vbn }));
        }
    }

    fn tell(&mut self) {
        if self.report.interrupted {
            return;
        }
        let at = CheckProgress {
            roots: self.report.roots,
            roots_total: self.roots_total,
            blocks: self.report.blocks,
            blocks_total: self.blocks_total,
        };
        self.report.interrupted = (self.progress)(at).is_break();
    }
}

/// A block of data that differs: its number in the file, and both pointers.
type Changed = (u64, BlockPointer, BlockPointer);

fn inodes_at(at: u64, pointer: BlockPointer) -> Wanted {
    Wanted { pointer, place: Place::Data { file: INODE_FILE, lba: Lba(at) } }
}
