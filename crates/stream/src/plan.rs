//! The content of a stream: found by comparing maps, exact before a byte is sent, and pinned until
//! it is sent.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Vbn};
use cairn_device::Block;
use cairn_format::SnapshotEntry;
use cairn_format::stream::{
    RECORD_BLOCKS_MAX, RECORD_SNAPSHOTS_MAX, RecordHeader, StreamHeader, StreamKind, StreamRun,
    StreamTrailer, entry_digest, root_digest, table_digest,
};
use cairn_volume::{BlockSet, Changes, Image, Run, Volume, VolumeError, Whereabouts};

use crate::error::StreamError;

/// A snapshot that the reader of a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Have {
    /// Which.
    pub id: SnapshotId,
    /// The digest of its content: [`root_digest`].
    pub root: Checksum,
    /// The digest of its content and its name.
    pub label: Checksum,
    /// The digest of its entry in the snapshot table: [`entry_digest`].
    pub entry: Checksum,
    /// A mirror made it for itself: it comes and goes with updates.
    pub mirror: bool,
}

/// How the names of the snapshots that mirrors make for themselves begin.
pub const MIRROR_PREFIX: &str = "mirror.";

impl Have {
    /// The snapshots of a volume.
    pub fn of(volume: &Volume) -> Vec<Have> {
        volume.snapshot_entries().iter().map(Have::from).collect()
    }
}

impl From<&SnapshotEntry> for Have {
    fn from(entry: &SnapshotEntry) -> Self {
        let label = SnapshotEntry { parent: SnapshotId(0), held: false, ..entry.clone() };
        Have {
            id: entry.id,
            root: root_digest(entry),
            label: entry_digest(&label),
            entry: entry_digest(entry),
            mirror: entry.name.starts_with(MIRROR_PREFIX),
        }
    }
}

/// A stream before it is written.
pub struct Plan {
    pub(crate) volume: Arc<Volume>,
    pub(crate) header: StreamHeader,
    pub(crate) runs: Vec<Run>,
    /// Snapshots that the reader lacks.
    snapshots: Vec<SnapshotEntry>,
    left_out: u64,
    pub(crate) put: Vec<SnapshotEntry>,
    pub(crate) gone: Vec<SnapshotId>,
    pub(crate) table_digest: Checksum,
    /// Every snapshot up to the target.
    pub(crate) table: Vec<SnapshotEntry>,
    /// Where the blocks of the images below are, also when a mirror receives another image
    /// meanwhile.
    pub(crate) at: Whereabouts,
    /// Blocks of these images stay in their places until the plan is dropped, also when a snapshot
    /// is deleted meanwhile.
    _pinned: Vec<Image>,
}

impl Plan {
    /// Finds the blocks that a reader with `have` lacks for `target` and every snapshot before it.
    /// A snapshot counts as common only when its root is the same on both sides.
    ///
    /// # Errors
    /// [`StreamError::Diverged`] when a snapshot has the same id and another content; the volume's
    /// errors.
    pub fn new(volume: &Arc<Volume>, have: &[Have], target: SnapshotId) -> Result<Self, StreamError> {
        let mut pinned = pin(volume, target)?;
        let theirs: HashMap<SnapshotId, &Have> = have.iter().map(|have| (have.id, have)).collect();
        let mut common = Vec::new();
        for entry in volume.snapshot_entries().iter().filter(|entry| entry.id <= target) {
            match theirs.get(&entry.id) {
                Some(have) if have.root == root_digest(entry) => common.push(entry.clone()),
                Some(_) => return Err(StreamError::Diverged { snapshot: entry.id }),
                None => {}
            }
        }
        let ids: Vec<SnapshotId> = common.iter().map(|entry| entry.id).collect();
        let changes = volume.changed_blocks(&ids, target)?;
        pinned.retain(|image| image.snapshot().is_some_and(|id| !ids.contains(&id) || id == target));
        let base = common.last().map(Have::from);
        Self::of(volume, have, base, changes, target, pinned)
    }

    /// As [`Plan::new`] for a reader that has the base of a relationship's since map, whether or
    /// not that snapshot still exists here. `base` is that snapshot as the reader has it.
    ///
    /// # Errors
    /// [`StreamError::BaseMissing`] when a snapshot up to the target is neither at the reader nor
    /// newer than the base.
    pub fn since(
        volume: &Arc<Volume>,
        have: &[Have],
        base: Have,
        relationship: u64,
        target: SnapshotId,
    ) -> Result<Self, StreamError> {
        let pinned = pin(volume, target)?;
        let changes = volume.changed_blocks_since(relationship, target)?;
        let theirs: HashMap<SnapshotId, Checksum> = have.iter().map(|have| (have.id, have.root)).collect();
        for entry in volume.snapshot_entries().iter().filter(|entry| entry.id <= target) {
            match theirs.get(&entry.id) {
                Some(root) if *root == root_digest(entry) => {}
                Some(_) => return Err(StreamError::Diverged { snapshot: entry.id }),
                None if changes.snapshots.iter().any(|sent| sent.id == entry.id) => {}
                None => return Err(StreamError::BaseMissing { base: entry.id }),
            }
        }
        Self::of(volume, have, Some(base), changes, target, pinned)
    }

    /// Everything up to `target`; or, with a `base`, the blocks that a reader with that snapshot
    /// and those before it lacks. For an image dump.
    ///
    /// # Errors
    /// [`StreamError::BaseMissing`] when the base is not a snapshot here that is older than the
    /// target: blocks of a deleted snapshot may have been reused.
    pub fn against(
        volume: &Arc<Volume>,
        base: Option<SnapshotId>,
        target: SnapshotId,
    ) -> Result<Self, StreamError> {
        let Some(base) = base else { return Self::new(volume, &[], target) };
        // Held from here on: the base must not be deleted during the comparison.
        let missing = |_| StreamError::BaseMissing { base };
        let _pinned = volume.image(Some(base)).map_err(missing)?;
        let mut have = Have::of(volume);
        have.retain(|have| have.id <= base);
        let plan = match base < target {
            true => Self::new(volume, &have, target)?,
            false => return Err(StreamError::BaseMissing { base }),
        };
        if plan.header.base == base { Ok(plan) } else { Err(StreamError::BaseMissing { base }) }
    }

    fn of(
        volume: &Arc<Volume>,
        have: &[Have],
        base: Option<Have>,
        changes: Changes,
        target: SnapshotId,
        pinned: Vec<Image>,
    ) -> Result<Self, StreamError> {
        let theirs: HashMap<SnapshotId, &Have> = have.iter().map(|have| (have.id, have)).collect();
        // The places as the held image has them; another holder may have held it for long. The
        // current places are not kept.
        let held = pinned.iter().find(|image| image.snapshot() == Some(target));
        let held = held.ok_or(VolumeError::NoSuchSnapshot(target))?;
        let at = held.whereabouts();
        // Taken after the comparison: a snapshot that is deleted in between is in the blocks and
        // not in the list, never the other way round.
        let table: Vec<SnapshotEntry> =
            volume.snapshot_entries().into_iter().filter(|entry| entry.id <= target).collect();
        let goal =
            table.iter().find(|entry| entry.id == target).ok_or(VolumeError::NoSuchSnapshot(target))?;
        if goal.root != *held.root() {
            // A mirror has received another one under that number meanwhile.
            return Err(StreamError::Diverged { snapshot: target });
        }
        let header = StreamHeader {
            volume: volume.id(),
            kind: if base.is_some() { StreamKind::Incremental } else { StreamKind::Full },
            base: base.map_or(SnapshotId(0), |base| base.id),
            base_digest: base.map_or(Checksum::default(), |base| base.root),
            target,
            target_digest: root_digest(goal),
            space_blocks: table.iter().map(|entry| entry.root.blocks).max().unwrap_or(0),
            changed_blocks: changes.blocks,
            created: goal.root.created,
        };
        let listed = |id: &SnapshotId| table.binary_search_by_key(id, |entry| entry.id).is_ok();
        let gone = have.iter().map(|have| have.id).filter(|id| !listed(id)).collect();
        let same = |entry: &SnapshotEntry| {
            theirs.get(&entry.id).is_some_and(|have| have.entry == entry_digest(entry))
        };
        let put = table.iter().filter(|entry| !same(entry)).cloned().collect();
        Ok(Self {
            volume: volume.clone(),
            header,
            runs: changes.runs,
            snapshots: changes.snapshots,
            left_out: 0,
            put,
            gone,
            table_digest: table_digest(table.iter()),
            table,
            at,
            _pinned: pinned,
        })
    }

    /// The same with the snapshot table of a dump that is being resumed: names and holds may have
    /// changed since it was begun.
    ///
    /// # Errors
    /// [`StreamError::Diverged`] when a snapshot of the two tables is missing in the other one, or
    /// has another content there.
    pub fn with_table(mut self, table: Vec<SnapshotEntry>) -> Result<Self, StreamError> {
        let content = |entry: &SnapshotEntry| (entry.id, root_digest(entry));
        let longer = if table.len() < self.table.len() { &self.table } else { &table };
        let differs =
            (0..longer.len()).find(|at| self.table.get(*at).map(content) != table.get(*at).map(content));
        if let Some(snapshot) = differs.map(|at| longer[at].id) {
            return Err(StreamError::Diverged { snapshot });
        }
        self.table_digest = table_digest(table.iter());
        self.table = table;
        Ok(self)
    }

    /// Removes the reader's claims: blocks with their checksums, in order of vbn. `next` returns
    /// them piece by piece; an empty piece is the last. Only those count that the snapshots have
    /// with the same checksum.
    pub fn leave_out<E: From<StreamError>>(
        &mut self,
        next: &mut dyn FnMut() -> Result<Vec<(Vbn, Checksum)>, E>,
    ) -> Result<(), E> {
        let mut unsent = BlockSet::of(&self.runs);
        loop {
            let claims = next()?;
            if claims.is_empty() {
                break;
            }
            let confirmed = self.volume.confirm_claims(&self.snapshots, &mut unsent, &claims);
            self.left_out += confirmed.map_err(StreamError::from)?;
        }
        if self.left_out > 0 {
            self.runs = unsent.runs();
            self.header.changed_blocks = self.runs.iter().map(|(_, count)| count).sum();
        }
        Ok(())
    }

    /// Blocks that were left out because the reader has them.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Blocks that need not be read from the device: the volume has them in memory since they were
    /// written ([`Volume::keep_fresh`]).
    pub fn fresh_blocks(&self) -> u64 {
        self.volume.fresh_blocks(&self.runs).0
    }

    /// How the stream begins.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Blocks that it carries.
    pub fn blocks(&self) -> u64 {
        self.header.changed_blocks
    }

    /// Bytes of the stream when nothing is compressed: exact.
    pub fn bytes(&self) -> u64 {
        let extents: u64 = self
            .records()
            .map(|runs| {
                let blocks: u64 = runs.iter().map(|(_, count)| *count).sum();
                (RecordHeader::SIZE + runs.len() * StreamRun::SIZE) as u64 + blocks * BLOCK_SIZE as u64
            })
            .sum();
        let lists = |items: usize, size: usize| {
            (items.div_ceil(RECORD_SNAPSHOTS_MAX) * RecordHeader::SIZE + items * size) as u64
        };
        let ends = (StreamHeader::SIZE + RecordHeader::SIZE + StreamTrailer::SIZE) as u64;
        ends + extents + lists(self.put.len(), SnapshotEntry::SIZE) + lists(self.gone.len(), 8)
    }

    /// The runs of blocks that it carries, in order of vbn.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Every snapshot up to the target, in order of id.
    pub fn table(&self) -> &[SnapshotEntry] {
        &self.table
    }

    /// Blocks of the snapshots up to the target, as they are on the device: not verified.
    ///
    /// # Errors
    /// The device failed.
    pub fn read(&self, runs: &[Run]) -> Result<Vec<Block>, StreamError> {
        Ok(self.volume.read_blocks_at(&self.at, runs)?)
    }

    /// The snapshot that the stream brings.
    pub fn target(&self) -> Option<&SnapshotEntry> {
        self.table.last()
    }

    /// How many snapshots there are up to the target.
    pub fn snapshots(&self) -> usize {
        self.table.len()
    }

    /// The runs of each extents record.
    pub(crate) fn records(&self) -> Records<'_> {
        self.records_of(RECORD_BLOCKS_MAX)
    }

    /// The same with at most `blocks` blocks in each.
    pub(crate) fn records_of(&self, blocks: usize) -> Records<'_> {
        Records { runs: &self.runs, taken: 0, blocks: blocks.clamp(1, RECORD_BLOCKS_MAX) as u64 }
    }
}

/// Snapshots deleted from here on stay readable.
fn pin(volume: &Arc<Volume>, target: SnapshotId) -> Result<Vec<Image>, StreamError> {
    let mut pinned = Vec::new();
    for entry in volume.snapshot_entries().iter().filter(|entry| entry.id <= target) {
        match volume.image(Some(entry.id)) {
            Ok(image) => pinned.push(image),
            Err(VolumeError::NoSuchSnapshot(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(pinned)
}

/// Cuts runs into records with a maximum number of blocks.
pub(crate) struct Records<'a> {
    runs: &'a [Run],
    /// Blocks of the first run that earlier records have.
    taken: u64,
    blocks: u64,
}

impl Iterator for Records<'_> {
    type Item = Vec<Run>;

    fn next(&mut self) -> Option<Vec<Run>> {
        let mut record = Vec::new();
        let mut room = self.blocks;
        while room > 0 {
            let Some(((first, count), rest)) = self.runs.split_first() else { break };
            let left = count - self.taken;
            let take = left.min(room);
            if take > 0 {
                record.push((Vbn(first.0 + self.taken), take));
            }
            room -= take;
            if take == left {
                self.runs = rest;
                self.taken = 0;
            } else {
                self.taken += take;
            }
        }
        (!record.is_empty()).then_some(record)
    }
}
