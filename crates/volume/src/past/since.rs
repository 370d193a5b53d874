//! Since maps: which blocks came into the active state since a mirror's base was acknowledged, so
//! that the base need not be held.
//!
//! Each mirror relationship has an *accumulating* map, and between a snapshot for the destination
//! and its acknowledgement an *in-flight* one. They are files of the volume (bits over block space,
//! like the active map). Every consistency point writes them along, so they survive a crash.
//!
//! # Invariants
//! 1. Every block that came into the active state after the consistency point that began an
//!    accumulating map, newly allocated or restored by a rollback, has its bit there; blocks of the
//!    map itself too. So `target & in flight` is exactly the set of blocks that a destination with
//!    the base lacks.
//! 2. In the root that began an accumulating map, and in no root with other content, that map is
//!    one hole. So the maps themselves show the snapshot at which they began, and the number of a
//!    map's file (numbers only grow) shows which snapshots are older.
//! 3. A root shares blocks with its parent in the tree of descent, or with no other root: a
//!    rollback copies today's maps over those of the snapshot. If they were shared with the
//!    previous state, deleting that one would free them.
//! 4. Every consistency point that makes a root writes the inode of each of its since maps, changed
//!    or not. So an older block of inodes, or a node above only older ones, contains no since map
//!    and need not be readable. Continuing without an existing map would make a mirror miss the
//!    changes made meanwhile.
//!
//! # Damage
//! A map records changes, and only the cost of a mirror's next update depends on it. So when one
//! can't be read, twice in a row, the consistency point that needs it gives it up, together with
//! the other one of its relationship: from both it is no longer known which blocks the destination
//! lacks. Then the relationship has no maps, in that root and from then on, and must restart like a
//! new one. The blocks below an unreadable node are unknown, and can't be freed. So the map becomes
//! a removed file, which waits until it can be read, or is freed by exclusion
//! ([`crate::health::stranded`]), like any other. Its kind is then a different one, so it is never
//! taken for a map again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Generation, Lba, SnapshotId, Timestamp, Vbn};
use cairn_device::Block;
use cairn_format::layout::BITS_PER_MAP_BLOCK;
use cairn_format::{BlockPointer, FileKind, Inode, Root, TreeRef};

use crate::commit::rider::{Rider, StepRider};
use crate::commit::space::map_blocks;
use crate::commit::update::{Allocate, Gathered, TreeUpdate};
use crate::error::{Place, VolumeError};
use crate::memory::roots::Committed;
use crate::memory::state::State;
use crate::mirror::lag::Behind;
use crate::past::since_map::SinceMap;
use crate::past::snapshots::{Changes, join};
use crate::read::block_set::numbers;
use crate::read::compare::bit;
use crate::read::compare::{Maps, append_runs, words_of};
use crate::read::store::Wanted;
use crate::read::tree::{BATCH, Tree, difference};
use crate::volume::{Snapshot, Volume};

/// A mirror relationship that has since maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinceRelationship {
    /// Its number, assigned by its owner.
    pub relationship: u64,
    /// A snapshot was made for it that is not acknowledged.
    pub in_flight: bool,
}

/// The files of a relationship's since maps. Their numbers are never reused. So if a destination's
/// image has one of them as a map that has just begun, it has the base of that map
/// ([`Volume::shows_beginning_of`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinceFiles {
    /// Changes since the last snapshot for the destination.
    pub accumulating: FileId,
    /// Changes since the previous snapshot, until the destination has the last one.
    pub in_flight: Option<FileId>,
}

/// The next step of a mirror that follows closely.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Of the new snapshot.
    pub name: &'a str,
    /// The relationship whose since maps restart there; `None` to leave them unchanged, which
    /// writes less and records less.
    pub relationship: Option<u64>,
    /// The snapshot that the mirror has.
    pub base: SnapshotId,
    /// Earlier snapshots that were held for it, and go.
    pub over: &'a [SnapshotId],
}

/// Why a consistency point cannot continue with the since maps.
pub(crate) enum MapError {
    /// A map of that relationship cannot be read; without its maps the consistency point can
    /// continue.
    Lost { relationship: u64, error: VolumeError },
    /// Anything else.
    Other(VolumeError),
}

impl MapError {
    /// An error with a map of a relationship.
    fn of(relationship: u64, error: VolumeError) -> Self {
        if error.is_of_a_block() { Self::Lost { relationship, error } } else { Self::Other(error) }
    }
}

impl From<VolumeError> for MapError {
    fn from(error: VolumeError) -> Self {
        Self::Other(error)
    }
}

/// A since map that a consistency point rewrites.
struct Changing<'a> {
    inode: Inode,
    update: TreeUpdate<'a>,
    /// It gets the blocks that the consistency point allocates.
    records: bool,
}

/// The changes that a consistency point makes to the since maps.
pub(crate) struct SinceUpdate<'a> {
    changing: Vec<Changing<'a>>,
    /// The resulting maps.
    maps: Vec<SinceMap>,
}

impl SinceUpdate<'_> {
    /// Plans the regions of newly allocated blocks. That allocates in turn.
    pub(crate) fn plan(
        &mut self,
        allocated: &BTreeSet<u64>,
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
    ) -> Result<(), MapError> {
        let regions: Vec<u64> = allocated.iter().copied().collect();
        for Changing { inode, update, .. } in self.changing.iter_mut().filter(|changing| changing.records) {
            let planned = update.plan(&regions, gathered, allocate);
            planned.map_err(|error| MapError::of(inode.relationship, error))?;
        }
        Ok(())
    }

    /// Notes the allocated blocks, whose regions are planned, and puts the new trees into `inodes`.
    pub(crate) fn finish(
        self,
        gathered: &mut Gathered,
        allocate: Allocate<'_>,
        inodes: &mut BTreeMap<FileId, Option<Inode>>,
    ) -> Result<Vec<SinceMap>, VolumeError> {
        for Changing { mut inode, mut update, records } in self.changing {
            if records {
                gathered.allocated.iter().for_each(|vbn| set(&mut update, *vbn));
            }
            inode.tree = update.finish(gathered, allocate)?;
            inode.length_bytes = inode.tree.length * BLOCK_SIZE as u64;
            inodes.insert(inode.id, Some(inode));
        }
        Ok(self.maps)
    }
}

fn set(update: &mut TreeUpdate<'_>, vbn: Vbn) {
    let (byte, mask) = bit(vbn);
    update.data(vbn.0 / BITS_PER_MAP_BLOCK)[byte] |= mask;
}

impl State {
    fn since_map(&self, relationship: u64, kind: FileKind) -> Option<SinceMap> {
        if self.lost_relationships().contains(&relationship) {
            return None;
        }
        self.since_maps.iter().find(|map| map.relationship == relationship && map.kind == kind).copied()
    }

    /// Relationships with an unreadable map: they have no maps any more.
    pub(crate) fn lost_relationships(&self) -> BTreeSet<u64> {
        let lost = self.since_maps.iter().filter(|map| self.lost_since.contains(&map.file));
        lost.map(|map| map.relationship).collect()
    }

    /// Refuses a snapshot for a relationship, or a rollback while there are since maps, when the
    /// volume is so full that their consistency point could fail half-way, or would use room that
    /// later deletions need.
    pub(crate) fn check_room_for_since(&self, rider: &Rider) -> Result<(), VolumeError> {
        let maps = self.since_maps.len() as u64;
        let room = match rider {
            Rider::Rollback(_) => maps == 0 || self.has_room_for_maps(maps),
            _ => match rider.begins_map_of() {
                None => true,
                Some(relationship) => match self.since_map(relationship, FileKind::SinceAccumulating) {
                    Some(_) => self.has_room_for_maps(maps),
                    None => self.has_room_for_maps(maps + 3) && self.has_room(0),
                },
            },
        };
        if room { Ok(()) } else { Err(VolumeError::NoSpace) }
    }
}

impl Volume {
    /// Makes a snapshot of all data written before the call, for the destination of a relationship
    /// (a number of the owner's choice, not 0). Blocks allocated since the base, this snapshot's
    /// own blocks included, are in flight from now on; later blocks accumulate for the next one.
    /// Blocks still in flight for an earlier snapshot, whose acknowledgement was lost, stay in
    /// flight as well.
    ///
    /// The first snapshot of a relationship is its baseline: no block is in flight, and the
    /// destination needs all of it ([`Volume::changed_blocks`] without a base). Until the
    /// destination has it, the relationship must be restarted ([`Volume::delete_since`]), not
    /// resumed.
    ///
    /// # Errors
    /// As [`Volume::create_snapshot`]; [`VolumeError::NoSpace`] when the volume is too full to keep
    /// the map.
    pub fn create_snapshot_since(
        self: &Arc<Self>,
        name: &str,
        relationship: u64,
    ) -> Result<Snapshot, VolumeError> {
        if relationship == 0 {
            return Err(VolumeError::Refused("a mirror relationship has a number above 0"));
        }
        let done = self.commit_with(Rider::SnapshotSince(name.to_owned(), relationship))?;
        done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)
    }

    /// The destination holds `target` durably: it is the new base, and the in-flight map is freed.
    /// True when that was done. False when nothing is in flight, or when an acknowledgement comes
    /// so late that a newer snapshot is in flight: its map has the blocks of both and stays. To be
    /// called before `target` is deleted.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`]; [`VolumeError::Refused`] without such a relationship.
    pub fn acknowledge_since(
        self: &Arc<Self>,
        relationship: u64,
        target: SnapshotId,
    ) -> Result<bool, VolumeError> {
        let mut commit = self.commit_turn()?;
        let (committed, accumulating, in_flight, root) = {
            let state = self.state.lock();
            let accumulating = state.since_map(relationship, FileKind::SinceAccumulating);
            let accumulating = accumulating.ok_or(NO_RELATIONSHIP)?;
            let in_flight = state.since_map(relationship, FileKind::SinceInFlight);
            let entry = state.snapshots.get(target).ok_or(VolumeError::NoSuchSnapshot(target))?;
            (state.committed.clone(), accumulating, in_flight, entry.root)
        };
        if in_flight.is_none() || !self.began_at(&committed, &root, accumulating)? {
            return Ok(false);
        }
        self.commit_holding(&mut commit, Rider::AcknowledgeSince(relationship)).map(|_| true)
    }

    /// The next snapshot for a mirror that follows closely, in one consistency point. It makes and
    /// holds the snapshot, deletes those that the mirror no longer needs, and advances the since
    /// maps. The result equals calls of [`Volume::create_snapshot_since`],
    /// [`Volume::acknowledge_since`] for the base, [`Volume::hold_snapshot`] and
    /// [`Volume::delete_snapshots`] one after the other.
    ///
    /// # Errors
    /// As those. [`VolumeError::NoSpace`] when the volume is too full to keep the map, if
    /// [`Step::relationship`] asks for that.
    pub fn create_snapshot_step(self: &Arc<Self>, step: Step<'_>) -> Result<Snapshot, VolumeError> {
        let mut commit = self.commit_turn()?;
        let mut arrived = false;
        if let Some(relationship) = step.relationship {
            if relationship == 0 {
                return Err(VolumeError::Refused("a mirror relationship has a number above 0"));
            }
            let (committed, accumulating, root) = {
                let state = self.state.lock();
                let entry = state.snapshots.get(step.base).ok_or(VolumeError::NoSuchSnapshot(step.base))?;
                let accumulating = state.since_map(relationship, FileKind::SinceAccumulating);
                (state.committed.clone(), accumulating, entry.root)
            };
            arrived = match accumulating {
                Some(map) => self.began_at(&committed, &root, map)?,
                None => false,
            };
        }
        let rider = Rider::Step(StepRider {
            name: step.name.to_owned(),
            relationship: step.relationship,
            arrived,
            over: step.over.to_vec(),
        });
        let done = self.commit_holding(&mut commit, rider)?;
        done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)
    }

    /// The files of a relationship's maps; none without such a relationship.
    pub fn since_files(&self, relationship: u64) -> Option<SinceFiles> {
        let state = self.state.lock();
        let file = |kind| state.since_map(relationship, kind).map(|map| map.file);
        let accumulating = file(FileKind::SinceAccumulating)?;
        Some(SinceFiles { accumulating, in_flight: file(FileKind::SinceInFlight) })
    }

    /// Whether the present image of this destination is the one at which that map of its source
    /// began.
    pub fn shows_beginning_of(&self, file: FileId) -> Result<bool, VolumeError> {
        let committed = self.state.lock().committed.clone();
        let inode = self.committed_inode(&committed, file)?;
        Ok(inode
            .is_some_and(|inode| inode.kind == FileKind::SinceAccumulating && inode.tree.pointer.is_hole()))
    }

    /// As [`Volume::acknowledge_since`] for a destination that shows the beginning of the map
    /// `file`, whose snapshot may be deleted. False when that is not the accumulating map, or no
    /// block is in flight.
    pub fn acknowledge_beginning(
        self: &Arc<Self>,
        relationship: u64,
        file: FileId,
    ) -> Result<bool, VolumeError> {
        let mut commit = self.commit_turn()?;
        match self.since_files(relationship) {
            Some(SinceFiles { accumulating, in_flight: Some(_) }) if accumulating == file => {
                self.commit_holding(&mut commit, Rider::AcknowledgeSince(relationship)).map(|_| true)
            }
            Some(_) => Ok(false),
            None => Err(NO_RELATIONSHIP),
        }
    }

    /// Changes of the active state since one of a relationship's maps (`file`) began: blocks that
    /// still exist, and changes in memory. `base` is the generation of that snapshot and the time
    /// of its last change, when the caller knows them.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] without such a relationship.
    pub fn changed_since_beginning(
        self: &Arc<Self>,
        relationship: u64,
        file: FileId,
        base: Option<(Generation, Timestamp)>,
    ) -> Result<Behind, VolumeError> {
        let (committed, maps, began) = {
            let state = self.state.lock();
            let map = |kind| state.since_map(relationship, kind).map(|map| map.file);
            let accumulating = map(FileKind::SinceAccumulating).ok_or(NO_RELATIONSHIP)?;
            // The accumulating map began where the in-flight one ends.
            let earlier = map(FileKind::SinceInFlight).filter(|earlier| *earlier == file);
            let maps: Vec<FileId> = earlier.into_iter().chain([accumulating]).collect();
            (state.committed.clone(), maps, state.since_began.get(&file).copied())
        };
        let inodes: Vec<Inode> =
            maps.iter().map(|map| self.since_inode(&committed, *map)).collect::<Result<_, _>>()?;
        let root = &committed.root;
        // In the root that began it, and in no other, the map is a hole.
        let whole = inodes.iter().all(|inode| inode.tree.pointer.is_hole());
        let whole = whole.then_some((root.generation, root.changed));
        let created = inodes.first().map_or(root.created, |inode| inode.created);
        let asked = self.clock.monotonic();
        let (age, dirty) = self.first_change_after(whole.or(base).or(began), created);
        let mut runs = Vec::new();
        for inode in inodes.iter().filter(|_| age.is_some()) {
            runs.extend(self.reached_and_marked(&committed, &[committed.root], inode)?);
        }
        let runs = join(runs);
        let blocks = runs.iter().map(|(_, count)| count).sum::<u64>() + dirty;
        Ok(self.behind_since(asked, age, blocks))
    }

    /// Ends a relationship: its maps are freed. Without such a relationship nothing happens.
    pub fn delete_since(self: &Arc<Self>, relationship: u64) -> Result<(), VolumeError> {
        let mut commit = self.commit_turn()?;
        let known = self.state.lock().since_maps.iter().any(|map| map.relationship == relationship);
        if !known {
            return self.state.lock().check_writable();
        }
        self.commit_holding(&mut commit, Rider::DeleteSince(relationship)).map(drop)
    }

    /// The relationships that have since maps, by number.
    pub fn since_relationships(&self) -> Vec<SinceRelationship> {
        let state = self.state.lock();
        let mut numbers: BTreeSet<u64> = state.since_maps.iter().map(|map| map.relationship).collect();
        let lost = state.lost_relationships();
        numbers.retain(|number| !lost.contains(number));
        let in_flight = |relationship| state.since_map(relationship, FileKind::SinceInFlight).is_some();
        numbers
            .into_iter()
            .map(|relationship| SinceRelationship { relationship, in_flight: in_flight(relationship) })
            .collect()
    }

    /// The blocks that a destination with the base of a relationship lacks for `target` and the
    /// snapshots between the two, whether these still exist or not. The base itself is listed among
    /// the snapshots while it exists, without blocks of its own.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] when no block is in flight (the baseline, or `target` was
    /// acknowledged), or when `target` is newer than the snapshot in flight.
    pub fn changed_blocks_since(
        self: &Arc<Self>,
        relationship: u64,
        target: SnapshotId,
    ) -> Result<Changes, VolumeError> {
        let (committed, entries, accumulating, in_flight) = {
            let state = self.state.lock();
            let accumulating = state.since_map(relationship, FileKind::SinceAccumulating);
            let in_flight = state.since_map(relationship, FileKind::SinceInFlight);
            let accumulating = accumulating.ok_or(NO_RELATIONSHIP)?;
            let in_flight = in_flight.ok_or(VolumeError::Refused(
                "nothing is in flight for this mirror: make a snapshot for it, or send the whole baseline",
            ))?;
            (state.committed.clone(), state.snapshots.all(), accumulating, in_flight)
        };
        let goal =
            entries.iter().find(|entry| entry.id == target).ok_or(VolumeError::NoSuchSnapshot(target))?;
        if goal.root.next_file > accumulating.file.0
            && !self.began_at(&committed, &goal.root, accumulating)?
        {
            return Err(VolumeError::Refused("the snapshot is newer than the one in flight for this mirror"));
        }
        let mut changes = Changes::default();
        let mut roots = Vec::new();
        for entry in entries.iter().filter(|entry| entry.id <= target) {
            if entry.root.next_file <= in_flight.file.0 && entry.id != target {
                continue;
            }
            if !self.began_at(&committed, &entry.root, in_flight)? {
                roots.push(entry.root);
            }
            changes.snapshots.push(entry.clone());
        }
        // While the root of the map is held, so are the blocks of every snapshot that existed along
        // with it.
        let map = self.since_inode(&committed, in_flight.file)?;
        changes.runs = self.reached_and_marked(&committed, &roots, &map)?;
        changes.blocks = changes.runs.iter().map(|(_, count)| count).sum();
        Ok(changes)
    }

    /// Blocks that any of `roots` reaches and a since map has. Only the map's regions are read.
    fn reached_and_marked(
        &self,
        committed: &Committed,
        roots: &[Root],
        map: &Inode,
    ) -> Result<Vec<crate::Run>, VolumeError> {
        let maps = Maps { store: &self.store, redirects: &committed.redirects };
        let mut runs = Vec::new();
        for chunk in self.readable(map.id, || self.marked_regions(committed, map))?.chunks(BATCH) {
            let lbas: Vec<Lba> = chunk.iter().map(|(region, _)| Lba(*region)).collect();
            let mut reached = vec![[0; (BITS_PER_MAP_BLOCK / 64) as usize]; chunk.len()];
            let mut seen = HashSet::new();
            for root in roots {
                let tree = maps.tree(root.active_map);
                let pointers: Vec<BlockPointer> =
                    tree.pointers(&lbas).into_iter().collect::<Result<_, _>>()?;
                let fresh: Vec<(usize, BlockPointer)> = pointers
                    .into_iter()
                    .enumerate()
                    .filter(|(_, pointer)| !pointer.is_hole() && seen.insert(pointer.vbn))
                    .collect();
                let wanted = fresh.iter().map(|(index, pointer)| (lbas[*index].0, *pointer));
                let blocks = self.load_regions(committed, tree.file, wanted)?;
                for ((index, _), block) in fresh.iter().zip(blocks) {
                    for (word, own) in reached[*index].iter_mut().zip(words_of(&block)) {
                        *word |= own;
                    }
                }
            }
            let load = || self.load_regions(committed, map.id, chunk.iter().copied());
            let marked = self.readable(map.id, load)?;
            for ((region, _), (reached, marked)) in chunk.iter().zip(reached.iter_mut().zip(marked)) {
                for (word, own) in reached.iter_mut().zip(words_of(&marked)) {
                    *word &= own;
                }
                append_runs(&mut runs, region * BITS_PER_MAP_BLOCK, reached);
            }
        }
        Ok(runs)
    }

    /// Reads from a map. If a second attempt fails too, the map counts as lost from here on: its
    /// user would retry and fail again.
    fn readable<T>(&self, map: FileId, read: impl Fn() -> Result<T, VolumeError>) -> Result<T, VolumeError> {
        let outcome = read().or_else(|error| if error.is_of_a_block() { read() } else { Err(error) });
        if let Err(error) = &outcome
            && error.is_of_a_block()
            && self.state.lock().lost_since.insert(map)
        {
            tracing::error!(%error, "a since map can't be read, and is no longer used");
        }
        outcome
    }

    /// Whether a root is the one that began a map, or has the same content.
    fn began_at(&self, committed: &Committed, root: &Root, map: SinceMap) -> Result<bool, VolumeError> {
        let at = Committed::image(*root, committed.redirects.clone());
        let inode = self.committed_inode(&at, map.file)?;
        Ok(inode
            .is_some_and(|inode| inode.kind == FileKind::SinceAccumulating && inode.tree.pointer.is_hole()))
    }

    fn since_inode(&self, committed: &Committed, file: FileId) -> Result<Inode, VolumeError> {
        self.committed_inode(committed, file)?.ok_or(VolumeError::NoSuchFile(file))
    }

    /// The blocks of a map that are not holes, by region.
    fn marked_regions(
        &self,
        committed: &Committed,
        map: &Inode,
    ) -> Result<Vec<(u64, BlockPointer)>, VolumeError> {
        let nothing = self.tree(committed, map.id, TreeRef::empty(map.tree.length));
        let regions = differing_regions(&nothing, &self.tree(committed, map.id, map.tree))?;
        Ok(regions.into_iter().collect())
    }

    fn load_regions(
        &self,
        committed: &Committed,
        file: FileId,
        regions: impl Iterator<Item = (u64, BlockPointer)>,
    ) -> Result<Vec<Block>, VolumeError> {
        let wanted: Vec<_> = regions
            .map(|(region, pointer)| Wanted { pointer, place: Place::Data { file, lba: Lba(region) } })
            .collect();
        self.store.load(&wanted, &committed.redirects).into_iter().collect()
    }

    /// Begins the update of the since maps by a consistency point whose base is `before` (for a
    /// rollback the snapshot), and puts each inode that it will change into `inodes`. Those of
    /// relationships that are given up end.
    pub(crate) fn since_update<'a>(
        &'a self,
        before: &'a Committed,
        (rider, given_up): (&Rider, &BTreeSet<u64>),
        blocks: u64,
        inodes: &mut BTreeMap<FileId, Option<Inode>>,
        gathered: &mut Gathered,
    ) -> Result<SinceUpdate<'a>, MapError> {
        let mut current = self.state.lock().since_maps.clone();
        let lost: Vec<SinceMap> =
            current.extract_if(.., |map| given_up.contains(&map.relationship)).collect();
        if let Rider::Rollback(_) = rider {
            return self.carry_over(before, (current, lost), blocks, inodes, gathered);
        }
        for map in lost {
            let inode = self.since_inode(before, map.file)?;
            inodes.insert(map.file, self.end_map(before, &inode, gathered)?);
        }
        let mut update = SinceUpdate { changing: Vec::new(), maps: Vec::new() };
        let (mine, rotates) = match (rider, rider.begins_map_of()) {
            (_, Some(relationship)) => (relationship, true),
            (Rider::AcknowledgeSince(relationship) | Rider::DeleteSince(relationship), None) => {
                (*relationship, false)
            }
            _ => (0, false),
        };
        // The in-flight blocks have arrived: the accumulated ones replace them instead of joining
        // them.
        let arrived = matches!(rider, Rider::Step(step) if step.arrived);
        let in_flight =
            current.iter().any(|map| map.relationship == mine && map.kind == FileKind::SinceInFlight);
        for map in current {
            let mut inode = self.since_inode(before, map.file)?;
            let accumulates = map.kind == FileKind::SinceAccumulating;
            let ends = match rider {
                Rider::AcknowledgeSince(_) => !accumulates,
                Rider::DeleteSince(_) => true,
                _ if arrived => rotates && !accumulates,
                _ => rotates && accumulates && in_flight,
            };
            if map.relationship == mine && ends {
                inodes.insert(map.file, self.end_map(before, &inode, gathered)?);
                continue;
            }
            let rotated = rotates && map.relationship == mine;
            if accumulates || rotated {
                let tree = self.tree(before, map.file, inode.tree);
                let mut changed = TreeUpdate::closing(tree, map_blocks(blocks));
                if rotated && !accumulates {
                    let added = self.add_accumulated(before, mine, &mut changed, gathered);
                    added.map_err(|error| MapError::of(mine, error))?;
                }
                if rotated {
                    inode.kind = FileKind::SinceInFlight;
                }
                update.changing.push(Changing { inode, update: changed, records: true });
            }
            // Maps that stay in flight are written along too (invariant 4).
            inodes.insert(map.file, Some(inode));
            update.maps.extend(SinceMap::of(&inode));
        }
        if rotates {
            let inode = self.new_map(mine, blocks);
            inodes.insert(inode.id, Some(inode));
            update.maps.extend(SinceMap::of(&inode));
        }
        Ok(update)
    }

    /// An empty accumulating map.
    fn new_map(&self, relationship: u64, blocks: u64) -> Inode {
        let mut state = self.state.lock();
        let id = FileId(state.next_file);
        state.next_file += 1;
        Inode {
            kind: FileKind::SinceAccumulating,
            removed: false,
            id,
            length_bytes: map_blocks(blocks) * BLOCK_SIZE as u64,
            created: self.clock.now(),
            relationship,
            tree: TreeRef::empty(map_blocks(blocks)),
            attributes: Default::default(),
        }
    }

    /// ORs the accumulated bits of a relationship into its map in flight.
    fn add_accumulated(
        &self,
        before: &Committed,
        relationship: u64,
        in_flight: &mut TreeUpdate<'_>,
        gathered: &mut Gathered,
    ) -> Result<(), VolumeError> {
        let is_it =
            |map: &SinceMap| map.relationship == relationship && map.kind == FileKind::SinceAccumulating;
        let map = self.state.lock().since_maps.iter().copied().find(is_it);
        let Some(map) = map else { return Ok(()) };
        let accumulated = self.since_inode(before, map.file)?;
        let regions = self.marked_regions(before, &accumulated)?;
        let numbers: Vec<u64> = regions.iter().map(|(region, _)| *region).collect();
        in_flight.plan(&numbers, gathered, &mut |count| self.allocate(count))?;
        for chunk in regions.chunks(BATCH) {
            let blocks = self.load_regions(before, map.file, chunk.iter().copied())?;
            for ((region, _), block) in chunk.iter().zip(blocks) {
                for (byte, more) in in_flight.data(*region).iter_mut().zip(block.iter()) {
                    *byte |= more;
                }
            }
        }
        Ok(())
    }

    /// Frees a map. Returns the rest of it where a node cannot be read, and so the blocks below are
    /// unknown: a removed file, of a kind that no map has.
    fn end_map(
        &self,
        before: &Committed,
        inode: &Inode,
        gathered: &mut Gathered,
    ) -> Result<Option<Inode>, VolumeError> {
        let mark = gathered.mark();
        match self.free_map(before, inode, gathered) {
            Ok(()) => Ok(None),
            Err(error) if error.is_of_a_block() => {
                self.ungather(gathered, &mark);
                gathered.removed.push(inode.id);
                Ok(Some(Inode { kind: FileKind::Lun, removed: true, relationship: 0, ..*inode }))
            }
            Err(error) => Err(error),
        }
    }

    fn free_map(
        &self,
        before: &Committed,
        inode: &Inode,
        gathered: &mut Gathered,
    ) -> Result<(), VolumeError> {
        let mut update = TreeUpdate::regular(self.tree(before, inode.id, inode.tree), inode.tree.length);
        let mut allocate = |count: usize| self.allocate(count);
        update.punch(0, inode.tree.length, gathered, &mut allocate)?;
        update.finish(gathered, &mut allocate).map(drop)
    }

    /// The maps of today on top of those of a snapshot that is rolled back to, but for those that
    /// are `lost`, which end there too. Blocks that come back with the snapshot count as allocated.
    fn carry_over<'a>(
        &'a self,
        snapshot: &'a Committed,
        (maps, lost): (Vec<SinceMap>, Vec<SinceMap>),
        blocks: u64,
        inodes: &mut BTreeMap<FileId, Option<Inode>>,
        gathered: &mut Gathered,
    ) -> Result<SinceUpdate<'a>, MapError> {
        let today = self.state.lock().committed.clone();
        let stale: Vec<FileId> = inodes.keys().copied().collect();
        for file in stale {
            let inode = self.since_inode(snapshot, file)?;
            inodes.insert(file, self.end_map(snapshot, &inode, gathered)?);
        }
        for map in lost {
            // Where inodes of the snapshot can't be read it was looked whether a map may be one of
            // them.
            let inode = match self.committed_inode(snapshot, map.file) {
                Err(error) if error.is_of_a_block() => None,
                other => other?,
            };
            if let Some(inode) = inode {
                inodes.insert(map.file, self.end_map(snapshot, &inode, gathered)?);
            }
        }
        let reader = Maps { store: &self.store, redirects: &today.redirects };
        let returning: Vec<Vbn> = match maps.is_empty() {
            true => Vec::new(),
            false => returning_blocks(&reader, &snapshot.root, today.root)?,
        };
        let mut update = SinceUpdate { changing: Vec::new(), maps: maps.clone() };
        for map in maps {
            let changing = self.carry_map(snapshot, &today, map, blocks, &returning, gathered);
            let changing = changing.map_err(|error| MapError::of(map.relationship, error))?;
            inodes.insert(map.file, Some(changing.inode));
            update.changing.push(changing);
        }
        Ok(update)
    }

    /// One of them as a copy: where it differs from the snapshot's version, new blocks get its
    /// content.
    fn carry_map<'a>(
        &'a self,
        snapshot: &'a Committed,
        today: &Committed,
        map: SinceMap,
        blocks: u64,
        returning: &[Vbn],
        gathered: &mut Gathered,
    ) -> Result<Changing<'a>, VolumeError> {
        let inode = self.since_inode(today, map.file)?;
        let records = map.kind == FileKind::SinceAccumulating;
        let old = self.committed_inode(snapshot, map.file)?;
        let old = old.map_or(TreeRef::empty(inode.tree.length), |inode| inode.tree);
        let old = self.tree(snapshot, map.file, old);
        let length = if records { map_blocks(blocks) } else { inode.tree.length };
        let differing = differing_regions(&old, &self.tree(today, map.file, inode.tree))?;
        let mut regions: BTreeSet<u64> = differing.keys().copied().collect();
        if records {
            regions.extend(returning.iter().map(|vbn| vbn.0 / BITS_PER_MAP_BLOCK));
        }
        let regions: Vec<u64> = regions.into_iter().collect();
        let mut copy = TreeUpdate::closing(old, length);
        copy.plan(&regions, gathered, &mut |count| self.allocate(count))?;
        let differing: Vec<(u64, BlockPointer)> = differing.into_iter().collect();
        for chunk in differing.chunks(BATCH) {
            let blocks = self.load_regions(today, map.file, chunk.iter().copied())?;
            for ((region, _), block) in chunk.iter().zip(blocks) {
                copy.data(*region).copy_from_slice(&block[..]);
            }
        }
        if records {
            returning.iter().for_each(|vbn| set(&mut copy, *vbn));
        }
        Ok(Changing { inode, update: copy, records })
    }

    /// Since maps in a snapshot that the active state has no more: a rollback must not restore
    /// them, as they lack the blocks allocated meanwhile.
    pub(crate) fn stale_since_maps(
        self: &Arc<Self>,
        snapshot: SnapshotId,
    ) -> Result<BTreeMap<FileId, Option<Inode>>, VolumeError> {
        let current = self.state.lock().since_maps.clone();
        let image = self.image(Some(snapshot))?;
        let mut maps = Vec::new();
        let mut visit = |inode: Inode| maps.extend(SinceMap::of(&inode).map(|map| map.file));
        image.each_inode_past(&mut visit, &mut |lost| match lost.may_have_since_map(image.root()) {
            true => Err(lost.error),
            false => Ok(()),
        })?;
        let stale = maps.into_iter().filter(|file| current.iter().all(|map| map.file != *file));
        Ok(stale.map(|file| (file, None)).collect())
    }
}

const NO_RELATIONSHIP: VolumeError =
    VolumeError::Refused("the volume has no since map for this mirror: begin with a baseline");

/// The blocks that a rollback restores. If the map of `today` is damaged, which a rollback may be
/// meant to fix, that is all blocks of the snapshot.
fn returning_blocks(maps: &Maps<'_>, snapshot: &Root, today: Root) -> Result<Vec<Vbn>, VolumeError> {
    let runs = match maps.only_in(snapshot, &[today]) {
        Err(error) if error.is_of_a_block() => maps.only_in(snapshot, &[]),
        found => found,
    }?;
    Ok(runs.into_iter().flat_map(numbers).collect())
}

/// The regions in which two maps differ, with the new one's pointers.
fn differing_regions(old: &Tree<'_>, new: &Tree<'_>) -> Result<BTreeMap<u64, BlockPointer>, VolumeError> {
    let mut regions = BTreeMap::new();
    difference(old, new, &mut |at, level, _, pointer| {
        if level == 0 {
            regions.insert(at, pointer);
        }
        Ok(())
    })?;
    Ok(regions)
}
