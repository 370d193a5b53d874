//! The destination side of a mirror: blocks at the same vbns, the root last, and never a tear in an
//! image that is still shown.
//!
//! A received block whose vbn is in use here goes to the redirect area (docs/format.md). The
//! superblock that commits the image names the redirect map, and blocks move home when no image
//! shows the old content. Arrivals are noted in the have map (a checksum for each vbn, `have`).
//! Before the commit the new trees are walked and every new pointer is compared with it: blocks
//! that the source misread, or the network changed, are refused. So is any image that would change
//! content kept here (`kept`), or that lies about the blocks it reaches (`reached`). A power cut at
//! any moment leaves the last committed image, and the arrivals stay for the next transfer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cairn_base::{Checksum, SnapshotId, Vbn};
use cairn_device::Block;
use cairn_format::{HaveBlock, RedirectRun, Role, Root, SegmentKind, SnapshotEntry};

use crate::commit::pending::prepare_redirects;
use crate::commit::space::Redirects;
use crate::commit::used::UsedMap;
use crate::error::{VolumeError, is_of_a_place};
use crate::memory::roots::{Committed, Reader};
use crate::mirror::claims::BlockSet;
use crate::mirror::descent;
use crate::mirror::have::{Arrivals, Surroundings};
use crate::mirror::kept::{self, Base, Lineage};
use crate::mirror::reached::{self, Compared};
use crate::read::block_set;
use crate::read::compare::{Maps, Run};
use crate::read::store::{Store, pairs};
use crate::read::walk::{Parted, Reached, Rooted, both_sides, new_blocks};
use crate::volume::Volume;

mod install;

/// Blocks that one round moves home: 16 MiB.
const MOVE_BLOCKS: usize = 4096;
/// Blocks that are listed for a source at once: 6 MiB of them.
const CLAIMS_AT_ONCE: usize = 1 << 18;
/// Blocks that did not arrive and that the image here must show, remembered at once.
const MISSING_MAX: usize = 1 << 20;
const MISSING: &str = "a block is missing or damaged: run `cairn volume check` at the source";
const OWN_HEAD: &str =
    "writes here are not in the other side's image and were not discarded: `cairn mirror resync`";
const COLLISIONS: &str = "too many of its blocks collide with blocks of the image here: close exports, drills and clones of older images here and update again; if it is refused again, create the mirror again, hold the base at the source (`cairn mirror set --hold`), or update more often";
const REDIRECT_FULL: &str = "the redirect area is full; close exports of older images here";

/// An image that has arrived.
#[derive(Debug, Clone)]
pub struct ReceivedImage {
    /// The snapshot that becomes the active state.
    pub target: SnapshotId,
    /// Every snapshot of the source up to the target: those that were here and still exist there,
    /// and the new ones.
    pub snapshots: Vec<SnapshotEntry>,
}

/// A transfer into a destination. If it ends without a commit, the arrivals stay for the next one.
pub struct Receiver {
    volume: Arc<Volume>,
    /// Taken out when the image is committed.
    pub(crate) arrivals: Option<Arrivals>,
    /// Slots of the redirect area in use.
    pub(crate) taken: HashSet<u64>,
    /// Blocks that an earlier transfer brought.
    kept: u64,
    blocks: u64,
    /// Those of this transfer.
    own: BlockSet,
    /// Content written here may be replaced by an image that does not descend from it.
    gives_up: bool,
    /// The device failed: memory and device may differ.
    failed: bool,
}

impl Volume {
    /// Starts a transfer into this destination; only one can run. The arrivals of an unfinished one
    /// are kept.
    pub fn receive(self: &Arc<Self>) -> Result<Receiver, VolumeError> {
        self.receive_with(&mut |_, _| true)
    }

    /// [`Volume::receive`] for a caller that shows progress (`go_on` gets the number of have-map
    /// blocks read, and their total) or cancels it early. After a restart every entry of the have
    /// map is read once and compared. Entries that were not compared are sent again.
    pub fn receive_with(
        self: &Arc<Self>,
        go_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Receiver, VolumeError> {
        let (arrivals, taken, recalled) = {
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
            let epoch = HaveBlock::epoch(self.id(), &state.cursor);
            let arrivals = state.arrivals.take().filter(|arrivals| arrivals.is_of(epoch));
            let arrivals = arrivals.unwrap_or_else(|| Arrivals::new(epoch, self.clock.monotonic()));
            let readers = state.readers.iter().filter_map(Reader::upgrade);
            let readers = readers.chain(state.pins.values().filter_map(|pin| pin.upgrade()));
            let mut taken: HashSet<u64> = state.committed.redirects.each().map(|(_, slot)| slot).collect();
            for reader in readers {
                taken.extend(reader.redirects.each().map(|(_, slot)| slot));
            }
            taken.extend(arrivals.redirected.each().map(|(_, slot)| slot));
            (arrivals, taken, std::mem::replace(&mut state.recalled, true))
        };
        let mut receiver = Receiver {
            volume: self.clone(),
            arrivals: Some(arrivals),
            taken,
            kept: 0,
            blocks: 0,
            own: BlockSet::default(),
            gives_up: false,
            failed: false,
        };
        if !recalled {
            let done = receiver.recall(go_on);
            self.state.lock().recalled = matches!(done, Ok(true));
            done?;
        }
        receiver.kept = receiver.arrivals.as_ref().map_or(0, Arrivals::count);
        Ok(receiver)
    }

    /// Blocks that unfinished transfers have brought, as far as is known without looking at the
    /// device.
    pub fn arrived_blocks(&self) -> u64 {
        self.state.lock().arrivals.as_ref().map_or(0, Arrivals::count)
    }

    /// Moves redirected blocks home, unless an image that shows the old content there has a reader,
    /// or a transfer runs. Returns how many.
    pub(crate) fn move_home(self: &Arc<Self>) -> Result<usize, VolumeError> {
        if self.state.lock().receiving {
            return Ok(0);
        }
        self.bring_home(&|_| false)
    }

    /// [`Volume::move_home`], also for the transfer itself. A block for which `stays` is true does
    /// not move, nor does an unreadable one: it is as damaged as before, and does not hold up the
    /// others.
    fn bring_home(self: &Arc<Self>, stays: &dyn Fn(Vbn) -> bool) -> Result<usize, VolumeError> {
        let mut commit = self.commit_turn()?;
        let commit = &mut *commit;
        let committed = {
            let mut state = self.state.lock();
            state.check_open()?;
            state.readers.retain(Reader::is_alive);
            // An image with the present redirect map finds its blocks where they are; one with
            // another map may read the old content at home. The image of a snapshot that still
            // exists here cannot: a later arrival for one of its blocks has the same content, byte
            // for byte, which was compared before the commit (`kept`).
            let listed = |id: SnapshotId, root: &Root| {
                state.snapshots.get(id).is_some_and(|entry| entry.root == *root)
            };
            let pins = state.pins.iter().filter_map(|(id, pin)| Some((*id, pin.upgrade()?)));
            let pins = pins.filter(|(id, pin)| !listed(*id, &pin.root)).map(|(_, pin)| pin);
            let mut roots = state.readers.iter().filter_map(Reader::upgrade).chain(pins);
            if roots.any(|root| !root.is_image() || !Arc::ptr_eq(&root.redirects, &state.committed.redirects))
            {
                return Ok(0);
            }
            state.committed.clone()
        };
        let mut from = Vbn(0);
        let writes = loop {
            let each = committed.redirects.each().map(|(vbn, _)| vbn);
            let moving: Vec<Vbn> =
                each.filter(|vbn| *vbn >= from && !stays(*vbn)).take(MOVE_BLOCKS).collect();
            let Some(last) = moving.last() else { return Ok(0) };
            from = Vbn(last.0 + 1);
            let mut writes = Vec::with_capacity(moving.len());
            for (vbn, block) in moving.iter().zip(self.store.read_numbers(&moving, &committed.redirects)) {
                match block {
                    Err(error) if is_of_a_place(&error) => {}
                    block => writes.push((*vbn, block?)),
                }
            }
            if !writes.is_empty() {
                break writes;
            }
        };
        self.store.run(self.store.write_home(pairs(&writes)))?;
        let vbns: Vec<Vbn> = writes.iter().map(|(vbn, _)| *vbn).collect();
        let mut redirects = (*committed.redirects).clone();
        for vbn in &vbns {
            redirects.remove(*vbn);
        }
        let (table, addresses, tables) = prepare_redirects(&redirects, self.id(), commit)?;
        let mut superblock = commit.superblock.clone();
        superblock.sequence += 1;
        superblock.redirects = table;
        self.store.run(tables.operations(&commit.label))?;
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
    /// Blocks that have arrived in this transfer.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that unfinished transfers had brought when this one began.
    pub fn kept_blocks(&self) -> u64 {
        self.kept
    }

    /// Blocks that are here and of no image here, or that [`Receiver::claim_shown`] listed.
    pub fn arrived_blocks(&self) -> u64 {
        self.arrivals.as_ref().map_or(0, Arrivals::count)
    }

    /// Gives up the image shown here, if any, an own head ([`Volume::own_head`]) or not, and the
    /// snapshots that the source does not have: the arriving image need not descend from them.
    /// Nothing is removed before that image is committed.
    pub fn give_up_head(&mut self) {
        self.gives_up = self.volume.status().cursor.snapshot != SnapshotId(0);
    }

    /// Lists every block that an image here shows at home as an arrival, with the checksum in its
    /// pointer: for a source without a common base. `go_on` gets the number of blocks so far. Only
    /// pointers are read.
    pub fn claim_shown(&mut self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let arrivals = self.arrivals.as_mut().ok_or(VolumeError::Closed)?;
        let (committed, roots) = shown_roots(&volume);
        let all = BlockSet::of(&[(Vbn(0), volume.space_blocks())]);
        let (mut claims, mut count, mut outcome) = (Vec::new(), 0, Ok(()));
        let mut note = |claims: &mut Vec<(Vbn, Checksum)>| -> Result<(), VolumeError> {
            // In order of vbn each block of the have map is touched once.
            claims.sort_unstable_by_key(|(vbn, _)| *vbn);
            for (vbn, checksum) in claims.drain(..) {
                // The arrival of an unfinished transfer for this vbn is newer.
                if !arrivals.has(vbn) {
                    arrivals.note(vbn, checksum, &volume.store)?;
                }
            }
            Ok(())
        };
        let redirects = &committed.redirects;
        volume.blocks_within(&roots, redirects, &all, &mut BlockSet::default(), &mut |pointer| {
            if outcome.is_err() || redirects.get(pointer.vbn).is_some() {
                return;
            }
            claims.push((pointer.vbn, pointer.checksum));
            count += 1;
            if claims.len() >= CLAIMS_AT_ONCE {
                outcome = note(&mut claims);
                if !go_on(count) {
                    outcome = Err(VolumeError::Closed);
                }
            }
        })?;
        outcome.and_then(|()| note(&mut claims))
    }

    /// The blocks that [`Receiver::claim_shown`] would list.
    pub fn shown_runs(&self) -> Result<Vec<Run>, VolumeError> {
        let volume = &self.volume;
        let (committed, roots) = shown_roots(volume);
        let mut shown = UsedMap::new(volume.space_blocks());
        let maps = Maps { store: &volume.store, redirects: &committed.redirects };
        let mut damaged = None;
        maps.each_region(
            roots.iter().map(|root| root.active_map),
            &mut |region, bits| shown.merge(region, bits),
            &mut |_, _, error| damaged = Some(error),
        );
        if let Some(error) = damaged {
            return Err(error);
        }
        let arrived = |vbn: Vbn| self.arrivals.as_ref().is_some_and(|arrivals| arrivals.has(vbn));
        let mut runs: Vec<Run> = Vec::new();
        for vbn in (1..volume.space_blocks()).map(Vbn) {
            let listed = shown.get(vbn) && committed.redirects.get(vbn).is_none();
            if !listed && !arrived(vbn) {
                continue;
            }
            match runs.last_mut() {
                Some((first, count)) if first.0 + *count == vbn.0 => *count += 1,
                _ => runs.push((vbn, 1)),
            }
        }
        Ok(runs)
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Blocks here that belong to no image: from `from` on, at most `most`, with their checksums. A
    /// source that has a block of the same number and checksum need not send it.
    pub fn arrived(&mut self, from: Vbn, most: usize) -> Result<Vec<(Vbn, Checksum)>, VolumeError> {
        let volume = self.volume.clone();
        self.arrivals()?.list(from, most, &volume.store)
    }

    fn arrivals(&mut self) -> Result<&mut Arrivals, VolumeError> {
        self.arrivals.as_mut().ok_or(VolumeError::Closed)
    }

    fn recall(&mut self, go_on: &mut dyn FnMut(u64, u64) -> bool) -> Result<bool, VolumeError> {
        let volume = self.volume.clone();
        let arrivals = self.arrivals.as_mut().ok_or(VolumeError::Closed)?;
        // Only a commit could bring blocks into use, and none happens while this transfer runs.
        let used = |vbn| volume.state.lock().used.get(vbn);
        let places = volume.state.lock().redirects_in_use();
        let mut around =
            Surroundings { store: &volume.store, used: &used, places: &places, taken: &mut self.taken };
        arrivals.recall(&mut around, go_on)
    }

    /// Takes blocks from `first` on. Best called with long runs, in order of vbn.
    pub fn write(&mut self, first: Vbn, blocks: Vec<Block>) -> Result<(), VolumeError> {
        self.write_runs(vec![(first, blocks)])
    }

    /// Takes several runs of blocks, best in order of vbn, and writes them as one batch. From time
    /// to time the arrivals are made durable.
    pub fn write_runs(&mut self, runs: Vec<(Vbn, Vec<Block>)>) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let limit = volume.store.space().blocks(SegmentKind::Space);
        let outside = |first: &Vbn, blocks: &Vec<Block>| {
            first.0 == 0 || first.0.saturating_add(blocks.len() as u64) > limit
        };
        if runs.iter().any(|(first, blocks)| outside(first, blocks)) {
            return Err(VolumeError::Refused("a block lies outside of the destination's block space"));
        }
        let blocks: Vec<(Vbn, Block)> =
            runs.into_iter().flat_map(|(first, blocks)| (first.0..).map(Vbn).zip(blocks)).collect();
        let outcome = self.place(&blocks);
        // A block that did not get there has not arrived; which did is not known.
        self.failed |= matches!(outcome, Err(VolumeError::Device(_)));
        outcome
    }

    fn place(&mut self, blocks: &[(Vbn, Block)]) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let store = &volume.store;
        let arrivals = self.arrivals.as_mut().ok_or(VolumeError::Closed)?;
        let (mut home, mut redirected) = (Vec::new(), Vec::new());
        let places = {
            let state = volume.state.lock();
            state.check_open()?;
            for (vbn, block) in blocks {
                match state.used.get(*vbn) {
                    true => redirected.push((*vbn, block.clone())),
                    false => home.push((*vbn, block.clone())),
                }
            }
            if redirected.is_empty() { Vec::new() } else { state.redirects_in_use() }
        };
        let same = kept::compare_arrivals(store, &places, &redirected)?;
        redirected.retain(|(vbn, _)| !same.contains(vbn));
        let area = store.space().blocks(SegmentKind::Redirect);
        let mut slots = Vec::with_capacity(redirected.len());
        for (vbn, block) in redirected {
            let slot = arrivals.slot(vbn, &mut self.taken, area);
            let slot = slot.ok_or(VolumeError::Refused(REDIRECT_FULL))?;
            // From here on its place is that slot, which has not got it yet, also if another one
            // finds none.
            arrivals.forget(vbn);
            slots.push((slot, block));
        }
        blocks.iter().for_each(|(vbn, _)| arrivals.forget(*vbn));
        store.forget_blocks(home.iter().map(|(vbn, _)| *vbn));
        let mut operations = store.write_home(pairs(&home));
        operations.extend(
            store.write_kind(SegmentKind::Redirect, slots.iter().map(|(slot, block)| (*slot, block))),
        );
        store.run(operations)?;
        for vbn in home.iter().map(|(vbn, _)| vbn).chain(&same) {
            arrivals.redirected.remove(*vbn);
        }
        for (vbn, block) in blocks {
            arrivals.note(*vbn, Checksum::of(&block[..]), store)?;
            self.own.insert(*vbn);
        }
        self.blocks += blocks.len() as u64;
        let now = volume.clock.monotonic();
        if arrivals.is_due(now) { arrivals.checkpoint(store, now) } else { Ok(()) }
    }

    /// Makes the arrivals durable, so that a restart finds them. It runs from time to time, and
    /// when a transfer ends early.
    pub fn checkpoint(&mut self) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let outcome = self.arrivals()?.checkpoint(&volume.store, volume.clock.monotonic());
        self.failed |= outcome.is_err();
        outcome
    }

    /// Verifies the image. Returns the final places of its blocks. An arrived block is the image's
    /// only when the image names it with that checksum. A block of an earlier attempt, or a spoiled
    /// one, must not replace a block that the present image has under the same vbn.
    fn settle(&self, image: &ReceivedImage, arrivals: &mut Arrivals) -> Result<Settled, VolumeError> {
        loop {
            let redirects = self.redirects(arrivals, None);
            let elsewhere = arrivals.redirected.each().map(|(vbn, _)| (vbn, 1)).collect();
            let mut found = WalkFindings { elsewhere, ..WalkFindings::default() };
            let outcome = self.verify(image, &redirects, arrivals, &mut found);
            if found.stale.is_empty() {
                let redirects = outcome.map(|()| self.redirects(arrivals, Some(&found.matched)))?;
                return Ok(Settled { redirects, lineage: found.lineage });
            }
            let mut spoiled = None;
            for vbn in found.stale {
                arrivals.forget(vbn);
                arrivals.redirected.remove(vbn);
                spoiled = spoiled.or(Some(vbn).filter(|vbn| self.own.has(*vbn)));
            }
            if let Some(vbn) = spoiled {
                tracing::error!(vbn = vbn.0, "a block arrived with other content than its tree requires");
                return Err(VolumeError::Refused(MISSING));
            }
        }
    }

    /// The places of the images' blocks: the committed ones, overridden by the arrivals, or by
    /// those arrivals that are in `only`.
    pub(crate) fn redirects(&self, arrivals: &Arrivals, only: Option<&BlockSet>) -> Redirects {
        let committed = self.volume.state.lock().committed.clone();
        let mut redirects = (*committed.redirects).clone();
        let counts = |vbn: Vbn| arrivals.has(vbn) && only.is_none_or(|only| only.has(vbn));
        // The redirect map's entry of a block that came home describes other content.
        let at_home = |vbn: Vbn| counts(vbn) && arrivals.redirected.get(vbn).is_none();
        for (vbn, _) in committed.redirects.each().filter(|(vbn, _)| at_home(*vbn)) {
            redirects.remove(vbn);
        }
        for (vbn, slot) in arrivals.redirected.each().filter(|(vbn, _)| counts(*vbn)) {
            redirects.remove(vbn);
            redirects.insert(RedirectRun { vbn, slot, count: 1 });
        }
        redirects
    }

    /// Verifies the arrivals and makes them the volume's content: root, snapshot table, redirect
    /// map and cursor in one superblock write.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] when a block of the image did not arrive or has other content, or
    /// when its snapshots cannot descend from each other as it claims; the volume is unchanged.
    pub fn commit(mut self, image: ReceivedImage) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
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
        kept::check_list(&image.snapshots)?;
        self.check_descent(&image)?;
        let redirects = self.settled(&image)?;
        match self.install(&image, &target, redirects) {
            Err(VolumeError::Refused(why)) if why == COLLISIONS => {}
            done => return done,
        }
        // The table cannot name them all. Blocks that waited for ended readers need not be in it.
        self.come_home()?;
        let redirects = self.settled(&image)?;
        self.install(&image, &target, redirects)
    }

    /// The places of the blocks of an image that was found to be whole, and to change nothing else.
    /// Refused or not, the arrivals are not lost: only the superblock ends them.
    fn settled(&mut self, image: &ReceivedImage) -> Result<Redirects, VolumeError> {
        let volume = self.volume.clone();
        let mut arrivals = self.arrivals.take().ok_or(VolumeError::Closed)?;
        let settled = self.settle(image, &mut arrivals);
        self.arrivals = Some(arrivals);
        let Settled { redirects, lineage } = settled?;
        let committed = volume.state.lock().committed.clone();
        let both = (&*committed.redirects, &redirects);
        kept::check_content(&volume.store, both, &image.snapshots, &lineage)?;
        let maps = Maps { store: &volume.store, redirects: &redirects };
        let in_use = |run: Run| {
            let state = volume.state.lock();
            descent::each(run).filter(|vbn| state.used.get(*vbn)).collect()
        };
        let space = volume.store.space().blocks(SegmentKind::Space);
        descent::check(maps, &volume.snapshot_entries(), &image.snapshots, (space, &in_use))?;
        Ok(redirects)
    }

    /// Moves home blocks that need no redirect any more: arrived blocks whose place no image shows
    /// now, and those of earlier images, in consistency points of their own. Visible content does
    /// not change.
    fn come_home(&mut self) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let redirected = self.arrivals()?.redirected.clone();
        let free: Vec<Vbn> = {
            let mut state = volume.state.lock();
            state.settle_releases();
            redirected.each().map(|(vbn, _)| vbn).filter(|vbn| !state.used.get(*vbn)).collect()
        };
        let before = self.blocks;
        for vbns in free.chunks(MOVE_BLOCKS) {
            let mut blocks = Vec::with_capacity(vbns.len());
            for (vbn, block) in vbns.iter().zip(volume.store.read_numbers(vbns, &redirected)) {
                blocks.push((*vbn, block?));
            }
            let outcome = self.place(&blocks);
            self.failed |= matches!(outcome, Err(VolumeError::Device(_)));
            outcome?;
        }
        self.blocks = before;
        let arrivals = self.arrivals()?;
        // Where a block has arrived, no image needs the old content.
        let stays = |vbn: Vbn| arrivals.has(vbn) && arrivals.redirected.get(vbn).is_none();
        while volume.bring_home(&stays)? > 0 {}
        Ok(())
    }

    /// An own head is replaced by its descendants, or by any image when it was given up.
    fn check_descent(&self, image: &ReceivedImage) -> Result<(), VolumeError> {
        let Some(head) = self.volume.own_head().filter(|_| !self.gives_up) else { return Ok(()) };
        let descends = image.snapshots.iter().any(|entry| entry.id == head.id && entry.root == head.root);
        if descends { Ok(()) } else { Err(VolumeError::Refused(OWN_HEAD)) }
    }

    /// Every pointer of the new images that their parents do not have must name a block that
    /// arrived with that checksum. Or the present image has it in the same position: the base of a
    /// mirror may be a snapshot that its source has deleted.
    fn verify(
        &self,
        image: &ReceivedImage,
        redirects: &Redirects,
        arrivals: &mut Arrivals,
        found: &mut WalkFindings,
    ) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let (known, committed, shows) = {
            let state = volume.state.lock();
            let shows = state.cursor.snapshot != SnapshotId(0);
            (state.snapshots.all(), state.committed.clone(), shows)
        };
        let here = |root| Rooted { root, redirects: &committed.redirects };
        let shown = shows.then(|| here(&committed.root));
        let listed: HashMap<SnapshotId, &SnapshotEntry> =
            image.snapshots.iter().map(|entry| (entry.id, entry)).collect();
        // Both sides have given the same numbers since they parted.
        let given_up = |entry: &SnapshotEntry| {
            self.gives_up && listed.get(&entry.id).is_none_or(|there| there.root != entry.root)
        };
        let known: HashMap<SnapshotId, SnapshotEntry> =
            known.into_iter().filter(|entry| !given_up(entry)).map(|entry| (entry.id, entry)).collect();
        for entry in &image.snapshots {
            if let Some(here) = known.get(&entry.id) {
                if here.root != entry.root {
                    return Err(VolumeError::Refused(
                        "a snapshot has different content here and at the source",
                    ));
                }
                continue;
            }
            let parent = listed.get(&entry.parent).map(|parent| match known.contains_key(&parent.id) {
                true => (here(&parent.root), Base::Here),
                false => (Rooted { root: &parent.root, redirects }, Base::New(parent.id)),
            });
            let base = match parent {
                Some((_, base)) => base,
                None if shows => Base::Here,
                None => Base::Nothing,
            };
            let new = Rooted { root: &entry.root, redirects };
            let between = Between { new, parent: parent.map(|(parent, _)| parent), shown };
            let added = verify_root(&volume.store, &between, arrivals, found)?;
            found.lineage.add(entry.id, base, added.common(&found.elsewhere));
        }
        Ok(())
    }

    /// Aborts the transfer. The volume shows the same image as before, and the arrivals stay for
    /// the next transfer.
    pub fn abort(self) {}
}

/// The arrived blocks found in a walk of the new images.
#[derive(Default)]
struct WalkFindings {
    /// Those that the images name.
    matched: BlockSet,
    /// Blocks whose vbn the images name with another checksum.
    stale: Vec<Vbn>,
    /// Blocks that arrived and are in the redirect area.
    elsewhere: block_set::BlockSet,
    /// Which new snapshot brought which of these.
    lineage: Lineage,
}

/// An image that is whole.
struct Settled {
    /// Where the blocks are then.
    redirects: Redirects,
    lineage: Lineage,
}

/// A new root, and those in which it may have blocks that did not arrive.
struct Between<'a> {
    new: Rooted<'a>,
    /// Of the snapshot from which it descends, if that is in the image.
    parent: Option<Rooted<'a>>,
    /// The present image.
    shown: Option<Rooted<'a>>,
}

/// Every block of a new root must have arrived, or be the parent's or the present image's in the
/// same position; and its map must name it. Returns the blocks that it has and that base has not in
/// the same position.
fn verify_root(
    store: &Store,
    between: &Between<'_>,
    arrivals: &mut Arrivals,
    found: &mut WalkFindings,
) -> Result<block_set::BlockSet, VolumeError> {
    let Between { new, parent, shown } = *between;
    let base = parent.or(shown);
    let mut missing: HashSet<(Vbn, Checksum)> = HashSet::new();
    // Whether the present image has all of them.
    let settle = |missing: &mut HashSet<(Vbn, Checksum)>| {
        let all = std::mem::take(missing);
        new_blocks(store, shown, new, &mut |reached: Reached| match all
            .contains(&(reached.pointer.vbn, reached.pointer.checksum))
        {
            true => Err(missing_block(&reached)),
            false => Ok(()),
        })
    };
    let (mut added, mut parted) = (block_set::BlockSet::default(), Parted::default());
    let walked = both_sides(store, base, new, &mut parted, &mut |reached: Reached| {
        let pointer = reached.pointer;
        reached::note(&mut added, new, &pointer)?;
        match arrivals.checksum(pointer.vbn, store)? {
            Some(checksum) if checksum == pointer.checksum => {
                found.matched.insert(pointer.vbn);
                return Ok(());
            }
            Some(_) => found.stale.push(pointer.vbn),
            None => {}
        }
        if shown.map(|shown| shown.root) == base.map(|base| base.root) {
            return Err(missing_block(&reached));
        }
        missing.insert((pointer.vbn, pointer.checksum));
        if missing.len() < MISSING_MAX { Ok(()) } else { settle(&mut missing) }
    });
    // A missing block may be the reason that the walk stopped.
    if !missing.is_empty() {
        settle(&mut missing)?;
    }
    walked?;
    let compared = Compared { base, is_parent: parent.is_some(), added: &added, parted: &parted };
    reached::check(store, new, &compared)?;
    Ok(added)
}

/// The images here, and the roots to read them through.
fn shown_roots(volume: &Volume) -> (Arc<Committed>, Vec<Root>) {
    let state = volume.state.lock();
    let snapshots = state.snapshots.iter().map(|entry| entry.root);
    (state.committed.clone(), std::iter::once(state.committed.root).chain(snapshots).collect())
}

fn missing_block(reached: &Reached) -> VolumeError {
    let Reached { file, level, at, pointer } = *reached;
    tracing::error!(
        vbn = pointer.vbn.0,
        file = file.0,
        level,
        at,
        "a block did not arrive as its tree requires"
    );
    VolumeError::Refused(MISSING)
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut arrivals = self.arrivals.take();
        if let Some(kept) = &mut arrivals
            && !self.failed
            && kept.is_unsaved()
        {
            // For a restart; they are still in memory anyway.
            self.failed = kept.checkpoint(&self.volume.store, self.volume.clock.monotonic()).is_err();
        }
        let mut state = self.volume.state.lock();
        state.receiving = false;
        if self.failed {
            // The device's content is compared again.
            state.recalled = false;
        } else if let Some(kept) = arrivals {
            state.arrivals = Some(kept);
        }
        drop(state);
        self.volume.work.notify_one();
    }
}
