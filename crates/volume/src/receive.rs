//! The destination side of a mirror: blocks at the same vbns, the root last, and never a tear in an image that is still shown.
//!
//! A received block whose vbn is in use here goes to the redirect area (DESIGN: collisions); the superblock that commits the image
//! names the redirect map, and blocks move home when nothing shows the old content. What arrives is noted in the have map (a checksum for each vbn),
//! and before the commit the new trees are walked and every new pointer compared with it: what the source read wrongly, or the
//! network changed, is refused. A cut at any moment leaves the last committed image.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Checksum, Lba, SnapshotId, Vbn};
use cairn_device::{Block, BlockMut, Operation};
use cairn_format::{
    BlockPointer, Cursor, INODES_PER_BLOCK, Inode, RedirectRun, Role, Root, SegmentKind, SnapshotEntry,
    TreeRef,
};

use crate::compare::{ACTIVE_MAP, INODE_FILE};
use crate::error::{Place, VolumeError};
use crate::open::load_used;
use crate::release::Reader;
use crate::space::Redirects;
use crate::store::Wanted;
use crate::table::prepare_redirects;
use crate::tree::{Tree, difference};
use crate::volume::Volume;

/// Checksums in a block of the have map.
const PER_HAVE_BLOCK: u64 = BLOCK_SIZE as u64 / 16;
/// Have blocks that verification keeps in memory: 16 MiB.
const HAVE_CACHE_BLOCKS: usize = 4096;
/// Blocks that one round moves home: 16 MiB.
const MOVE_BLOCKS: usize = 4096;

/// An image that has arrived.
#[derive(Debug, Clone)]
pub struct ReceivedImage {
    /// The snapshot that becomes the active state.
    pub target: SnapshotId,
    /// Every snapshot of the source up to the target: those that were here and still exist there, and the new ones.
    pub snapshots: Vec<SnapshotEntry>,
}

/// A transfer into a destination.
pub struct Receiver {
    volume: Arc<Volume>,
    /// Where this transfer's blocks are, in addition to the committed redirects.
    redirects: Redirects,
    received: Vec<u64>,
    slots_used: HashSet<u64>,
    next_slot: u64,
    have: Option<(u64, BlockMut)>,
    have_cache: HashMap<u64, Block>,
    blocks: u64,
}

impl Volume {
    /// Starts a transfer into this destination; there is one at a time.
    pub fn receive(self: &Arc<Self>) -> Result<Receiver, VolumeError> {
        let mut state = self.state.lock();
        state.check_open()?;
        if state.role != Role::Destination {
            return Err(VolumeError::WrongRole(Role::Normal));
        }
        if state.receiving {
            return Err(VolumeError::TransferInProgress);
        }
        state.receiving = true;
        state.settle_releases();
        let redirects = (*state.committed.redirects).clone();
        let readers = state.readers.iter().filter_map(Reader::upgrade);
        let readers = readers.chain(state.pins.values().filter_map(|pin| pin.upgrade()));
        let mut slots_used: HashSet<u64> = redirects.each().map(|(_, slot)| slot).collect();
        for reader in readers {
            slots_used.extend(reader.redirects.each().map(|(_, slot)| slot));
        }
        let words = state.used.blocks().div_ceil(64) as usize;
        Ok(Receiver {
            volume: self.clone(),
            redirects,
            received: vec![0; words],
            slots_used,
            next_slot: 0,
            have: None,
            have_cache: HashMap::new(),
            blocks: 0,
        })
    }

    /// Moves redirected blocks home, as far as nobody reads an image that shows the old content there. Returns how many.
    pub(crate) fn move_home(self: &Arc<Self>) -> Result<usize, VolumeError> {
        let mut commit = self.commit.lock();
        let commit = &mut *commit;
        let (committed, moving) = {
            let mut state = self.state.lock();
            state.check_open()?;
            if state.receiving {
                return Ok(0);
            }
            state.readers.retain(Reader::is_alive);
            // An image with the present redirect map finds its blocks where they are; one with another may read the old content at home.
            let roots = state.readers.iter().filter_map(Reader::upgrade);
            let mut roots = roots.chain(state.pins.values().filter_map(|pin| pin.upgrade()));
            if roots.any(|root| !root.is_image() || !Arc::ptr_eq(&root.redirects, &state.committed.redirects))
            {
                return Ok(0);
            }
            let moving: Vec<(Vbn, u64)> = state.committed.redirects.each().take(MOVE_BLOCKS).collect();
            (state.committed.clone(), moving)
        };
        if moving.is_empty() {
            return Ok(0);
        }
        let vbns: Vec<Vbn> = moving.iter().map(|(vbn, _)| *vbn).collect();
        let blocks = self.store.read_numbers(&vbns, &committed.redirects);
        let mut writes = Vec::with_capacity(moving.len());
        for (vbn, block) in vbns.iter().zip(blocks) {
            writes.push((*vbn, block?));
        }
        self.store.run(self.store.write_home(&writes))?;
        let mut redirects = (*committed.redirects).clone();
        for vbn in &vbns {
            redirects.remove(*vbn);
        }
        let (table, addresses, tables) =
            prepare_redirects(&redirects, &commit.redirect_blocks, self.id(), &mut commit.label)?;
        let mut superblock = commit.superblock.clone();
        superblock.sequence += 1;
        superblock.redirects = table;
        self.store.run(tables.operations())?;
        self.store.device().flush()?;
        self.write_superblock(&superblock)?;
        commit.superblock = superblock;
        commit.redirect_blocks = addresses;
        commit.label.release(&tables.freed);
        let mut state = self.state.lock();
        drop(state.switch(committed.root, Arc::new(redirects)));
        state.unstick(&vbns);
        Ok(vbns.len())
    }
}

impl Receiver {
    /// Blocks that have arrived.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes blocks from `first` on. Best called with long runs, in order of vbn.
    pub fn write(&mut self, first: Vbn, blocks: Vec<Block>) -> Result<(), VolumeError> {
        self.write_runs(vec![(first, blocks)])
    }

    /// Takes several runs of blocks, best in order of vbn, and writes them as one batch.
    pub fn write_runs(&mut self, runs: Vec<(Vbn, Vec<Block>)>) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        // The volume may have grown since the transfer began; its source's image is not longer than it was then.
        let limit = volume.store.space().blocks(SegmentKind::Space).min(self.received.len() as u64 * 64);
        let outside = |first: &Vbn, blocks: &Vec<Block>| {
            first.0 == 0 || first.0.saturating_add(blocks.len() as u64) > limit
        };
        if runs.iter().any(|(first, blocks)| outside(first, blocks)) {
            return Err(VolumeError::Refused("a block lies outside of the destination's block space"));
        }
        let blocks: Vec<(Vbn, Block)> =
            runs.into_iter().flat_map(|(first, blocks)| (first.0..).map(Vbn).zip(blocks)).collect();
        let (mut home, mut redirected) = (Vec::new(), Vec::new());
        {
            let state = volume.state.lock();
            state.check_open()?;
            for (vbn, block) in &blocks {
                if state.used.get(*vbn) {
                    redirected.push((*vbn, block.clone()));
                } else {
                    // What the redirect map still says of it is of a content that nobody needs.
                    self.redirects.remove(*vbn);
                    home.push((*vbn, block.clone()));
                }
            }
        }
        let mut operations = volume.store.write_home(&home);
        let slots = redirected
            .into_iter()
            .map(|(vbn, block)| self.redirect(vbn).map(|slot| (slot, block)))
            .collect::<Result<Vec<_>, _>>()?;
        operations.extend(
            volume.store.write_kind(SegmentKind::Redirect, slots.iter().map(|(slot, block)| (*slot, block))),
        );
        for (vbn, block) in &blocks {
            operations.extend(self.note(vbn.0, Checksum::of(&block[..]))?);
            self.received[(vbn.0 / 64) as usize] |= 1 << (vbn.0 % 64);
        }
        self.blocks += blocks.len() as u64;
        volume.store.run(operations)
    }

    /// A slot of the redirect area for `vbn`; the one that it has if it came before in this transfer.
    fn redirect(&mut self, vbn: Vbn) -> Result<u64, VolumeError> {
        if self.has(vbn)
            && let Some(slot) = self.redirects.get(vbn)
        {
            return Ok(slot);
        }
        let area = self.volume.store.space().blocks(SegmentKind::Redirect);
        while self.slots_used.contains(&self.next_slot) {
            self.next_slot += 1;
        }
        if self.next_slot >= area {
            return Err(VolumeError::Refused(
                "the redirect area is full; close exports of older images here",
            ));
        }
        let slot = self.next_slot;
        self.slots_used.insert(slot);
        self.redirects.remove(vbn);
        self.redirects.insert(RedirectRun { vbn, slot, count: 1 });
        Ok(slot)
    }

    fn has(&self, vbn: Vbn) -> bool {
        self.received.get((vbn.0 / 64) as usize).is_some_and(|word| word >> (vbn.0 % 64) & 1 == 1)
    }

    /// Notes a block's checksum; returns the write of the have block before when another one begins.
    fn note(&mut self, vbn: u64, checksum: Checksum) -> Result<Vec<Operation>, VolumeError> {
        let number = vbn / PER_HAVE_BLOCK;
        let mut due = Vec::new();
        if self.have.as_ref().is_none_or(|(current, _)| *current != number) {
            due = self.retire_have();
            let bytes = BlockMut::copy_of(&*self.have_block(number)?);
            self.have = Some((number, bytes));
        }
        if let Some((_, bytes)) = &mut self.have {
            let at = (vbn % PER_HAVE_BLOCK) as usize * 16;
            bytes[at..at + 16].copy_from_slice(&checksum.0);
        }
        Ok(due)
    }

    fn retire_have(&mut self) -> Vec<Operation> {
        let Some((number, bytes)) = self.have.take() else { return Vec::new() };
        let block = bytes.freeze();
        let operations = self.volume.store.write_kind(SegmentKind::Have, [(number, &block)].into_iter());
        self.keep_have(number, block);
        operations
    }

    fn keep_have(&mut self, number: u64, block: Block) {
        if self.have_cache.len() >= HAVE_CACHE_BLOCKS {
            self.have_cache.clear();
        }
        self.have_cache.insert(number, block);
    }

    fn have_block(&mut self, number: u64) -> Result<Block, VolumeError> {
        if let Some(block) = self.have_cache.get(&number) {
            return Ok(block.clone());
        }
        let first = number * PER_HAVE_BLOCK;
        // A block of which nothing was noted in this transfer need not be read: what it says is of an earlier one.
        let fresh = (first..first + PER_HAVE_BLOCK).all(|vbn| !self.has(Vbn(vbn)));
        let block = if fresh {
            Block::zero()
        } else {
            let space = self.volume.store.space();
            let (offset, _) = space
                .locate(SegmentKind::Have, number)
                .ok_or(VolumeError::Refused("a block lies outside of the destination's have map"))?;
            let mut bytes = BlockMut::zeroed();
            self.volume.store.device().read_into(offset, &mut bytes[..])?;
            bytes.freeze()
        };
        self.keep_have(number, block.clone());
        Ok(block)
    }

    fn arrived_as(&mut self, pointer: &BlockPointer) -> Result<bool, VolumeError> {
        if !self.has(pointer.vbn) {
            return Ok(false);
        }
        let block = self.have_block(pointer.vbn.0 / PER_HAVE_BLOCK)?;
        let at = (pointer.vbn.0 % PER_HAVE_BLOCK) as usize * 16;
        Ok(block[at..at + 16] == pointer.checksum.0)
    }

    /// Verifies what arrived and makes it the volume's content: root, snapshot table, redirect map and cursor in one superblock write.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] when a block of the image did not arrive or is not what the image says; the volume stays as it was.
    pub fn commit(mut self, image: ReceivedImage) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let due = self.retire_have();
        volume.store.run(due)?;
        volume.store.device().flush()?;
        let target = image
            .snapshots
            .iter()
            .find(|entry| entry.id == image.target)
            .ok_or(VolumeError::Refused("the image's snapshot is not in its list"))?
            .clone();
        let space = volume.store.space().blocks(SegmentKind::Space);
        if image.snapshots.iter().any(|entry| entry.root.blocks > space) {
            return Err(VolumeError::Refused("the source is larger than the destination: grow it first"));
        }
        let mut redirects = Arc::new(std::mem::take(&mut self.redirects));
        self.verify(&image, &redirects)?;

        let mut commit = volume.commit.lock();
        let commit = &mut *commit;
        if volume.state.lock().role != Role::Destination {
            return Err(VolumeError::WrongRole(Role::Normal));
        }
        // The new map of blocks in use, found before anything is committed. What the redirect map says of other blocks is of a
        // content that only older images show, and they have a redirect map of their own.
        let space = volume.store.space().blocks(SegmentKind::Space);
        let roots = image.snapshots.iter().map(|entry| &entry.root);
        let used = load_used(&volume.store, &redirects, space, &target.root, roots);
        let stale: Vec<Vbn> = redirects.each().map(|(vbn, _)| vbn).filter(|vbn| !used.get(*vbn)).collect();
        let kept = Arc::make_mut(&mut redirects);
        for vbn in &stale {
            kept.remove(*vbn);
        }
        let mut superblock = commit.superblock.clone();
        superblock.sequence += 1;
        superblock.root = target.root;
        superblock.parent = target.id;
        let newest = image.snapshots.iter().map(|entry| entry.id.0).max().unwrap_or(0);
        superblock.next_snapshot = superblock.next_snapshot.max(newest + 1);
        superblock.cursor = Cursor { snapshot: target.id, received: volume.clock.now() };
        let prepared = volume.state.lock().snapshots.replaced_by(
            image.snapshots.clone(),
            volume.id(),
            &mut commit.label,
        )?;
        let prepared_redirects =
            prepare_redirects(&redirects, &commit.redirect_blocks, volume.id(), &mut commit.label);
        let (table, addresses, tables) = match prepared_redirects {
            Ok(prepared) => prepared,
            Err(reason) => {
                commit.label.release(&prepared.writes.addresses());
                return Err(reason);
            }
        };
        superblock.snapshots = prepared.table.clone();
        superblock.redirects = table;
        let written = volume
            .store
            .run(prepared.writes.operations())
            .and_then(|()| volume.store.run(tables.operations()))
            .and_then(|()| volume.store.device().flush().map_err(VolumeError::from))
            .and_then(|()| volume.write_superblock(&superblock));

        let mut guard = volume.state.lock();
        let state = &mut *guard;
        if let Err(reason) = written {
            state.latch(&reason);
            return Err(reason);
        }
        commit.label.release(&prepared.writes.freed);
        commit.label.release(&tables.freed);
        commit.redirect_blocks = addresses;
        commit.superblock = superblock.clone();
        state.snapshots.apply(prepared);
        drop(state.switch(target.root, redirects));
        state.readers.retain(Reader::is_alive);
        state.parent = superblock.parent;
        state.next_snapshot = superblock.next_snapshot;
        state.cursor = superblock.cursor;
        state.next_file = target.root.next_file;
        state.open.generation = cairn_base::Generation(target.root.generation.0 + 1);
        // What only older images show stays in use while they are read; what waited for a reader already is part of it, less
        // what the new image took up again.
        let gone = state.used.replace(used);
        state.pins.retain(|_, pin| pin.strong_count() > 0);
        let mut readers = state.readers.clone();
        readers.extend(state.pins.values().filter_map(|pin| pin.upgrade()).map(|pin| Reader::of(&pin)));
        readers.extend(state.releases.clear());
        state.stuck.clear();
        state.releases.add_unsorted(&readers, gone);
        state.settle_releases();
        drop(guard);
        volume.sort_releases();
        volume.work.notify_one();
        Ok(())
    }

    /// Every pointer of the new images that their parents do not have must name a block that arrived with that checksum.
    fn verify(&mut self, image: &ReceivedImage, redirects: &Arc<Redirects>) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let known: HashMap<SnapshotId, SnapshotEntry> =
            volume.state.lock().snapshots.all().into_iter().map(|entry| (entry.id, entry)).collect();
        let listed: HashMap<SnapshotId, &SnapshotEntry> =
            image.snapshots.iter().map(|entry| (entry.id, entry)).collect();
        for entry in &image.snapshots {
            if let Some(here) = known.get(&entry.id) {
                if here.root != entry.root {
                    return Err(VolumeError::Refused(
                        "a snapshot here has another content than at the source",
                    ));
                }
                continue;
            }
            let parent = listed.get(&entry.parent).map(|parent| parent.root);
            self.verify_root(parent.as_ref(), &entry.root, redirects)?;
        }
        Ok(())
    }

    fn verify_root(
        &mut self,
        parent: Option<&Root>,
        root: &Root,
        redirects: &Arc<Redirects>,
    ) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let tree = |file, tree| Tree { store: &volume.store, redirects, file, tree };
        let base = |own: TreeRef, pick: fn(&Root) -> TreeRef| parent.map_or(TreeRef::empty(own.length), pick);
        let old_map = tree(ACTIVE_MAP, base(root.active_map, |root| root.active_map));
        self.verify_tree(old_map, tree(ACTIVE_MAP, root.active_map), &mut |_, _| {})?;
        let mut changed = Vec::new();
        let old_inodes = tree(INODE_FILE, base(root.inode_file, |root| root.inode_file));
        self.verify_tree(old_inodes, tree(INODE_FILE, root.inode_file), &mut |at, pointers| {
            changed.push((at, pointers));
        })?;
        for (at, (old, new)) in changed {
            let load = |pointer: BlockPointer| -> Result<Vec<Option<Inode>>, VolumeError> {
                let place = Place::Data { file: INODE_FILE, lba: Lba(at) };
                let block = volume.store.load_one(Wanted { pointer, place }, redirects)?;
                (0..INODES_PER_BLOCK as usize)
                    .map(|slot| {
                        Inode::parse(&block, slot)
                            .map_err(|_| VolumeError::Damaged { vbn: pointer.vbn, place })
                    })
                    .collect()
            };
            for (old, new) in load(old)?.into_iter().zip(load(new)?) {
                let Some(new) = new else { continue };
                let old = old.map_or(TreeRef::empty(new.tree.length), |inode| inode.tree);
                if old != new.tree {
                    self.verify_tree(tree(new.id, old), tree(new.id, new.tree), &mut |_, _| {})?;
                }
            }
        }
        Ok(())
    }

    /// `changed` gets the data blocks that differ: number, old and new pointer.
    fn verify_tree(
        &mut self,
        old: Tree<'_>,
        new: Tree<'_>,
        changed: &mut dyn FnMut(u64, (BlockPointer, BlockPointer)),
    ) -> Result<(), VolumeError> {
        let mut failure = None;
        let walked = difference(&old, &new, &mut |at, level, a, b| {
            if !b.is_hole() && failure.is_none() {
                match self.arrived_as(&b) {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::error!(
                            vbn = b.vbn.0,
                            file = new.file.0,
                            level,
                            "a block did not arrive as its tree says"
                        );
                        failure = Some(VolumeError::Refused(
                            "a block is missing or damaged: run `cairn volume check` at the source",
                        ));
                    }
                    Err(error) => failure = Some(error),
                }
            }
            if level == 0 {
                changed(at, (a, b));
            }
        });
        match failure {
            Some(failure) => Err(failure),
            None => walked,
        }
    }

    /// Gives the transfer up; the volume stays as it was.
    pub fn abort(self) {}
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.volume.state.lock().receiving = false;
        self.volume.work.notify_one();
    }
}
