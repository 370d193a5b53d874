//! Reading: an image is a committed root (the active one as of now, or a snapshot) that stays
//! readable while it is held.

use std::sync::Arc;

use cairn_base::{FileId, Lba, SnapshotId};
use cairn_device::{Block, Segments};
use cairn_format::{BlockPointer, FANOUT, Inode, Root, SnapshotEntry};

use crate::error::{Place, VolumeError};
use crate::known_files::INODE_FILE;
use crate::limits::INODES_KNOWN;
use crate::memory::overlay::Seen;
use crate::memory::roots::Committed;
use crate::read::store::{Keep, Wanted};
use crate::read::tree::{NodeMemo, Tree, difference, pointer_in, span};
use crate::volume::Volume;

/// A request for whole blocks of a file.
#[derive(Debug)]
pub struct BlockRead {
    /// The first block.
    pub lba: Lba,
    /// How many.
    pub count: u64,
    /// Blocks that come from the device for it are not cached: the caller keeps them, or needs them
    /// once.
    pub passing: bool,
    /// The blocks, once they were read.
    pub outcome: Option<Result<Segments, VolumeError>>,
}

impl BlockRead {
    /// A request that is still to be served.
    pub fn new(lba: Lba, count: u64) -> Self {
        Self { lba, count, passing: false, outcome: None }
    }
}

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Blocks.
    pub count: u64,
    /// It takes no blocks and reads as zeroes.
    pub hole: bool,
}

/// A committed root that can be read.
#[derive(Clone)]
pub struct Image {
    volume: Arc<Volume>,
    committed: Arc<Committed>,
    snapshot: Option<SnapshotId>,
}

/// Everything that a volume shows, at one moment.
pub(crate) struct AllImages {
    pub(crate) active: Image,
    /// The snapshot that the active state descends from.
    pub(crate) parent: SnapshotId,
    pub(crate) snapshots: Vec<(SnapshotEntry, Image)>,
}

impl Volume {
    /// Holds a snapshot, or (`None`) the state of the last consistency point, for reading.
    pub fn image(self: &Arc<Self>, snapshot: Option<SnapshotId>) -> Result<Image, VolumeError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(VolumeError::Closed);
        }
        let committed = match snapshot {
            None => state.image_of_active(),
            Some(id) => {
                state.pins.retain(|_, pin| pin.strong_count() > 0);
                let root = state.snapshots.get(id).ok_or(VolumeError::NoSuchSnapshot(id))?.root;
                state.pin(id, root)
            }
        };
        Ok(Image { volume: self.clone(), committed, snapshot })
    }

    /// The state of the last consistency point for one call, which ends soon: a writer that looks
    /// for room waits for it.
    pub(crate) fn image_for_a_call(self: &Arc<Self>) -> Image {
        Image { volume: self.clone(), committed: self.state.lock().committed.clone(), snapshot: None }
    }

    /// Holds the state of the last consistency point and all snapshots of that moment, so that they
    /// can be compared with each other whatever is deleted meanwhile.
    pub(crate) fn image_of_all(self: &Arc<Self>) -> Result<AllImages, VolumeError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(VolumeError::Closed);
        }
        let image = |committed, snapshot| Image { volume: self.clone(), committed, snapshot };
        let active = image(state.image_of_active(), None);
        state.pins.retain(|_, pin| pin.strong_count() > 0);
        let entries = state.snapshots.all();
        let mut snapshots = Vec::with_capacity(entries.len());
        for entry in entries {
            let pinned = image(state.pin(entry.id, entry.root), Some(entry.id));
            snapshots.push((entry, pinned));
        }
        Ok(AllImages { active, parent: state.parent, snapshots })
    }

    /// The inode of a file of the active state, with changes that no consistency point has yet.
    pub fn inode(self: &Arc<Self>, file: FileId) -> Result<Inode, VolumeError> {
        let (changed, committed) = {
            let state = self.state.lock();
            (state.changed_inode(file), state.committed.clone())
        };
        let inode = match changed {
            Some(inode) => inode,
            None => self.committed_inode(&committed, file)?,
        };
        inode.ok_or(VolumeError::NoSuchFile(file))
    }

    /// Serves reads of a file of the active state. Without `wait` those that need the device are
    /// left open.
    pub fn read(self: &Arc<Self>, file: FileId, reads: &mut [BlockRead], wait: bool) {
        let mut sources = Vec::with_capacity(reads.len());
        let committed = {
            let state = self.state.lock();
            let changes = state.changes_of(file);
            for read in reads.iter().filter(|read| read.outcome.is_none()) {
                for number in read.lba.0..read.lba.0 + read.count {
                    sources.push((Lba(number), changes.see(number)));
                }
            }
            state.committed.clone()
        };
        self.serve(&committed, file, reads, sources, wait);
    }

    pub(crate) fn committed_inode(
        &self,
        committed: &Committed,
        file: FileId,
    ) -> Result<Option<Inode>, VolumeError> {
        if let Some(inode) = committed.inodes.lock().get(&file) {
            return Ok(*inode);
        }
        let (lba, slot) = Inode::place(file);
        let tree = self.tree(committed, INODE_FILE, committed.root.inode_file);
        let pointer = match tree.pointers(&[Lba(lba)]).pop() {
            Some(pointer) => pointer?,
            None => BlockPointer::HOLE,
        };
        let place = Place::Data { file: INODE_FILE, lba: Lba(lba) };
        let block = self.store.load_one(Wanted { pointer, place }, &committed.redirects)?;
        let inode = Inode::parse(&block, slot)
            .ok()
            .filter(|inode| inode.is_none_or(|inode| inode.id == file))
            .ok_or(VolumeError::Damaged { vbn: pointer.vbn, place })?;
        let mut known = committed.inodes.lock();
        // Some hundred bytes each. Their blocks stay in the cache, which has a limit of its own.
        if known.len() >= INODES_KNOWN {
            known.clear();
        }
        known.insert(file, inode);
        drop(known);
        Ok(inode)
    }

    pub(crate) fn tree<'a>(
        &'a self,
        committed: &'a Committed,
        file: FileId,
        tree: cairn_format::TreeRef,
    ) -> Tree<'a> {
        Tree { store: &self.store, redirects: &committed.redirects, file, tree }
    }

    fn serve(
        &self,
        committed: &Committed,
        file: FileId,
        reads: &mut [BlockRead],
        sources: Vec<(Lba, Seen)>,
        wait: bool,
    ) {
        let inode = match self.committed_inode(committed, file) {
            Ok(inode) => inode,
            Err(error) => {
                reads
                    .iter_mut()
                    .filter(|r| r.outcome.is_none())
                    .for_each(|r| r.outcome = Some(Err(error.clone())));
                return;
            }
        };
        let tree = inode.map(|inode| self.tree(committed, file, inode.tree));
        let blocks = if wait {
            let keep = if reads.iter().all(|read| read.passing) { Keep::Nothing } else { Keep::All };
            self.blocks_from(committed, file, tree.as_ref(), sources, keep)
        } else {
            let mut memo = NodeMemo::default();
            sources
                .into_iter()
                .map(|(lba, seen)| self.block_ready(tree.as_ref(), lba, seen, &mut memo).map(Ok))
                .collect()
        };
        let mut blocks = blocks.into_iter();
        for read in reads.iter_mut().filter(|read| read.outcome.is_none()) {
            let own = blocks.by_ref().take(read.count as usize);
            let mut segments = Segments::default();
            let mut outcome = Some(Ok(()));
            for block in own {
                match block {
                    Some(Ok(block)) => segments.push_block(block),
                    Some(Err(error)) if !matches!(outcome, Some(Err(_))) => outcome = Some(Err(error)),
                    Some(Err(_)) => {}
                    None => outcome = None,
                }
            }
            read.outcome = outcome.map(|outcome| outcome.map(|()| segments));
        }
    }

    /// A block if everything that leads to it is in memory.
    fn block_ready(
        &self,
        tree: Option<&Tree<'_>>,
        lba: Lba,
        seen: Seen,
        memo: &mut NodeMemo,
    ) -> Option<Block> {
        match seen {
            Seen::Block(block) => Some(block),
            Seen::Hole => Some(Block::zero()),
            Seen::Pointer(pointer) => self.store.cached_data(&pointer),
            Seen::Below => match tree {
                Some(tree) => self.store.cached_data(&tree.pointer_ready(lba, memo)?),
                None => Some(Block::zero()),
            },
        }
    }

    fn blocks_from(
        &self,
        committed: &Committed,
        file: FileId,
        tree: Option<&Tree<'_>>,
        sources: Vec<(Lba, Seen)>,
        keep: Keep,
    ) -> Vec<Option<Result<Block, VolumeError>>> {
        let below: Vec<Lba> =
            sources.iter().filter(|(_, seen)| matches!(seen, Seen::Below)).map(|(lba, _)| *lba).collect();
        let mut resolved = match tree {
            Some(tree) => tree.pointers(&below),
            None => below.iter().map(|_| Ok(BlockPointer::HOLE)).collect(),
        }
        .into_iter();
        let mut blocks: Vec<Option<Result<Block, VolumeError>>> = Vec::with_capacity(sources.len());
        let mut wanted = Vec::new();
        for (lba, seen) in sources {
            let pointer = match seen {
                Seen::Block(block) => {
                    blocks.push(Some(Ok(block)));
                    continue;
                }
                Seen::Hole => {
                    blocks.push(Some(Ok(Block::zero())));
                    continue;
                }
                Seen::Pointer(pointer) => pointer,
                Seen::Below => match resolved.next() {
                    Some(Ok(pointer)) => pointer,
                    Some(Err(error)) => {
                        blocks.push(Some(Err(error)));
                        continue;
                    }
                    None => BlockPointer::HOLE,
                },
            };
            blocks.push(None);
            wanted.push(Wanted { pointer, place: Place::Data { file, lba } });
        }
        let loaded = self.store.load_and(keep, &wanted, &committed.redirects);
        for (open, block) in blocks.iter_mut().filter(|block| block.is_none()).zip(loaded) {
            *open = Some(block);
        }
        blocks
    }

    /// The allocated parts of a file's `count` blocks from `lba` on, with changes that are in no
    /// consistency point yet; at most `limit` extents, which may end early.
    pub fn extents(
        self: &Arc<Self>,
        file: FileId,
        lba: Lba,
        count: u64,
        limit: usize,
    ) -> Result<Vec<FileExtent>, VolumeError> {
        let count = count.min(EXTENT_WINDOW);
        let (changed, committed) = {
            let state = self.state.lock();
            let mut changed = std::collections::BTreeMap::new();
            let overlays = state.frozen.as_ref().map(|f| f.overlay()).into_iter().chain([&state.open]);
            for overlay in overlays.filter_map(|overlay| overlay.files.get(&file)) {
                for (start, end) in overlay.holes.range(..lba.0 + count) {
                    let (start, end) = ((*start).max(lba.0), (*end).min(lba.0 + count));
                    if start < end {
                        mark(&mut changed, start, end, true);
                    }
                }
                for number in overlay.slots.numbers(lba.0, lba.0 + count) {
                    mark(&mut changed, number, number + 1, false);
                }
            }
            (changed, state.committed.clone())
        };
        let mut extents = ExtentList { list: Vec::new(), limit };
        let inode = self.committed_inode(&committed, file)?;
        let tree = inode.map(|inode| self.tree(&committed, file, inode.tree));
        let below = |at: u64, end: u64, extents: &mut ExtentList| match &tree {
            Some(tree) => tree_extents(tree, at, end, extents),
            None => {
                extents.push(end - at, true);
                Ok(())
            }
        };
        let mut at = lba.0;
        for (start, (end, hole)) in changed {
            if at < start {
                below(at, start, &mut extents)?;
            }
            extents.push(end - start, hole);
            at = end;
            if extents.is_full() {
                return Ok(extents.finish());
            }
        }
        if at < lba.0 + count {
            below(at, lba.0 + count, &mut extents)?;
        }
        Ok(extents.finish())
    }
}

/// Blocks that one query of extents covers: 4 GiB.
const EXTENT_WINDOW: u64 = 1 << 20;

/// Overrides the map with `start..end`.
fn mark(map: &mut std::collections::BTreeMap<u64, (u64, bool)>, start: u64, end: u64, hole: bool) {
    let overlapping: Vec<u64> =
        map.range(..end).rev().take_while(|(_, (e, _))| *e > start).map(|(s, _)| *s).collect();
    for s in overlapping {
        let Some((e, h)) = map.remove(&s) else { continue };
        if s < start {
            map.insert(s, (start, h));
        }
        if e > end {
            map.insert(end, (e, h));
        }
    }
    map.insert(start, (end, hole));
}

struct ExtentList {
    list: Vec<FileExtent>,
    limit: usize,
}

impl ExtentList {
    fn push(&mut self, count: u64, hole: bool) {
        match self.list.last_mut() {
            Some(last) if last.hole == hole => last.count += count,
            _ => self.list.push(FileExtent { count, hole }),
        }
    }

    /// One more than the limit, so that the last one is known to be whole.
    fn is_full(&self) -> bool {
        self.list.len() > self.limit
    }

    fn finish(mut self) -> Vec<FileExtent> {
        self.list.truncate(self.limit);
        self.list
    }
}

/// The extents of `at..end` by the tree alone. Whole subtrees that are holes take one step.
fn tree_extents(tree: &Tree<'_>, mut at: u64, end: u64, extents: &mut ExtentList) -> Result<(), VolumeError> {
    while at < end && !extents.is_full() {
        if at >= tree.tree.length || tree.tree.pointer.is_hole() {
            extents.push(end - at, true);
            return Ok(());
        }
        let mut pointer = tree.tree.pointer;
        for level in (1..=tree.tree.height).rev() {
            let node = tree.store.load_node(pointer, tree.address(level, at), tree.redirects)?;
            let width = span(level);
            let slot = at / width % FANOUT;
            pointer = pointer_in(&node, slot as usize);
            if pointer.is_hole() {
                let stop = ((at / width + 1) * width).min(end);
                extents.push(stop - at, true);
                at = stop;
                break;
            }
            if level == 1 {
                let stop = (at + (FANOUT - slot)).min(end);
                for slot in slot..slot + (stop - at) {
                    extents.push(1, pointer_in(&node, slot as usize).is_hole());
                }
                at = stop;
            }
        }
    }
    Ok(())
}

impl Image {
    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The root that is read.
    pub fn root(&self) -> &Root {
        &self.committed.root
    }

    pub(crate) fn redirects(&self) -> &Arc<crate::commit::space::Redirects> {
        &self.committed.redirects
    }

    pub(crate) fn committed(&self) -> &Committed {
        &self.committed
    }

    /// The snapshot, if it is one.
    pub fn snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    /// The inode of a file.
    pub fn inode(&self, file: FileId) -> Result<Inode, VolumeError> {
        self.volume.committed_inode(&self.committed, file)?.ok_or(VolumeError::NoSuchFile(file))
    }

    /// Serves reads of a file. Without `wait` those that need the device are left open.
    pub fn read(&self, file: FileId, reads: &mut [BlockRead], wait: bool) {
        let sources = reads
            .iter()
            .filter(|read| read.outcome.is_none())
            .flat_map(|read| read.lba.0..read.lba.0 + read.count)
            .map(|number| (Lba(number), Seen::Below))
            .collect();
        self.volume.serve(&self.committed, file, reads, sources, wait);
    }

    /// The allocated parts of a file's `count` blocks from `lba` on; at most `limit` extents, which
    /// may end early.
    pub fn extents(
        &self,
        file: FileId,
        lba: Lba,
        count: u64,
        limit: usize,
    ) -> Result<Vec<FileExtent>, VolumeError> {
        let inode = self.inode(file)?;
        let tree = self.volume.tree(&self.committed, file, inode.tree);
        let mut extents = ExtentList { list: Vec::new(), limit };
        tree_extents(&tree, lba.0, lba.0 + count.min(EXTENT_WINDOW), &mut extents)?;
        Ok(extents.finish())
    }

    /// Runs of blocks (first, count), in order, at which a file differs from its content in `base`.
    /// For a new file these are all of its allocated blocks.
    pub fn changed_since(&self, base: &Image, file: FileId) -> Result<Vec<(Lba, u64)>, VolumeError> {
        let new = self.inode(file)?.tree;
        let old = match base.inode(file) {
            Ok(inode) => inode.tree,
            Err(VolumeError::NoSuchFile(_)) => cairn_format::TreeRef::empty(new.length),
            Err(error) => return Err(error),
        };
        self.runs_between(&base.volume.tree(&base.committed, file, old), file)
    }

    /// Runs of blocks (first, count), in order, that a file has.
    pub fn allocated(&self, file: FileId) -> Result<Vec<(Lba, u64)>, VolumeError> {
        let length = self.inode(file)?.tree.length;
        let none = self.volume.tree(&self.committed, file, cairn_format::TreeRef::empty(length));
        self.runs_between(&none, file)
    }

    fn runs_between(&self, old: &Tree<'_>, file: FileId) -> Result<Vec<(Lba, u64)>, VolumeError> {
        let new = self.volume.tree(&self.committed, file, self.inode(file)?.tree);
        let mut runs: Vec<(Lba, u64)> = Vec::new();
        difference(old, &new, &mut |at, level, _, _| {
            match runs.last_mut() {
                _ if level > 0 => {}
                Some((first, count)) if first.0 + *count == at => *count += 1,
                _ => runs.push((Lba(at), 1)),
            }
            Ok(())
        })?;
        Ok(runs)
    }
}
