//! Written blocks leave the cache: versions that must be kept go to the log first, then the origin
//! is written.

use cairn_base::BLOCK_SIZE;
use cairn_device::{Operation, Request, Segments};
use cairn_format::history::{EntryKind, Granularity, Placement};

use crate::HistoryError;
use crate::cache::OVERHEAD as CACHED_OVERHEAD;
use crate::content::Content;
use crate::history::History;
use crate::index::{Version, key_of};
use crate::log::{Pending, Writer};
use crate::room::RESERVE;
use crate::timeline::Timeline;

/// Bytes of blocks that leave at once at most: each batch of a placement that writes the origin
/// costs a flush of the store.
const BATCH_BYTES: usize = 8 << 20;
/// A batch is no larger than this part of the store.
const STORE_PARTS: usize = 64;
/// Blocks of a batch that makes do with the log's reserve.
const SMALL_BATCH_BLOCKS: usize = 256;
/// Blocks that are looked up or published under one lock: clients wait for no more.
const LOCKED: usize = 128;
/// Bytes of one write to the origin at most.
const JOINED_MAX: usize = 1 << 20;
/// Bytes of a region of hybrid placement.
const REGION: u64 = 1 << 20;
/// The number of blocks after which a region begins to forget.
const REGION_MEMORY: u16 = 256;

/// How a block's versions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Undo,
    Redo,
    Both,
}

/// A block with versions that are to be placed, the oldest first.
pub(crate) type Work = (u64, Vec<(u64, Content)>);

/// The known state of a block before its versions are placed.
struct Planned {
    path: Path,
    newest: Option<Version>,
    /// No kept instant is between the newest version and the first of the work.
    same: bool,
    /// An undo of that time exists: from before a cut.
    has_undo: bool,
    /// Its content until the first version, when it must be kept and is not on the origin.
    waiting: Option<Content>,
}

impl Planned {
    fn needs_base(&self) -> bool {
        let newest_is_redo = self.newest.is_some_and(|newest| newest.is_redo());
        self.path != Path::Redo && !newest_is_redo && !self.same && !self.has_undo
    }
}

/// A flush that clients share, until it ends or has failed.
struct SharedFlush<'a>(&'a History);

impl Drop for SharedFlush<'_> {
    fn drop(&mut self) {
        self.0.state.lock().flushing = false;
        self.0.flush_over.notify_all();
    }
}

impl History {
    /// Versions that leave the cache at once. They are so many that the flush of the store for a
    /// batch does not matter, a part of the waiting ones (clients fill the rest meanwhile), and a
    /// small part of the store.
    pub(crate) fn batch(&self, writer: &Writer) -> usize {
        let store = writer.usable() * writer.superblock.segment_blocks as usize * BLOCK_SIZE;
        let large = BATCH_BYTES.min(store / STORE_PARTS).min(self.dirty_bytes as usize / 4);
        (large / self.block_bytes as usize).max(self.small_batch(writer))
    }

    /// Versions that the log's reserve takes, twice over and even when each needs a base.
    pub(crate) fn small_batch(&self, writer: &Writer) -> usize {
        let segment = writer.superblock.segment_blocks as usize * BLOCK_SIZE;
        (segment / 4 / self.block_bytes as usize).clamp(1, SMALL_BATCH_BLOCKS)
    }

    /// Segments that a batch takes beyond the log's reserve: each version and a base for it.
    fn segments_of_batch(&self, writer: &Writer, batch: usize) -> usize {
        if batch <= self.small_batch(writer) {
            return 0;
        }
        let segment = writer.superblock.segment_blocks as usize * BLOCK_SIZE;
        (2 * batch * self.block_bytes as usize).div_ceil(segment)
    }

    /// Writes out the least recently written blocks; false when there are none.
    pub(crate) fn destage(&self, writer: &mut Writer) -> Result<bool, HistoryError> {
        self.check_failed()?;
        if self.state.lock().cache.is_empty() {
            return Ok(false);
        }
        // Blocks that a revert has not reached are copied first, which takes room as well.
        let reverting = !self.state.lock().reverts.is_empty();
        let mut batch = if reverting { self.small_batch(writer) } else { self.batch(writer) };
        let need = RESERVE + self.segments_of_batch(writer, batch) + self.owed(writer);
        if !self.ready(writer, need)? {
            // It is known now whether the store is smaller than it looks.
            batch = batch.min(self.batch(writer));
        }
        self.ensure_room(writer, self.segments_of_batch(writer, batch))?;
        let picked = self.state.lock().cache.oldest(batch);
        let done: Vec<(u64, u64)> =
            picked.iter().filter_map(|(lba, versions)| Some((*lba, versions.last()?.0))).collect();
        let lbas: Vec<u64> = done.iter().map(|(lba, _)| *lba).collect();
        self.copy_before_writes(writer, &lbas)?;
        self.place(writer, picked)?;
        for done in done.chunks(LOCKED) {
            let mut state = self.state.lock();
            for (lba, time) in done {
                state.cache.written(*lba, *time, u64::from(self.block_bytes));
                state.reads.forget(*lba);
            }
            state.epoch += 1;
        }
        Ok(true)
    }

    /// Writes out all that was taken before the call.
    pub(crate) fn destage_all(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        {
            let mut state = self.state.lock();
            let last = state.last;
            state.cache.fence(last);
        }
        while self.state.lock().cache.is_fenced() {
            self.destage(writer)?;
        }
        Ok(())
    }

    /// Writes out the cache and makes all writes durable that were taken up to `asked`. Clients
    /// that wait for each other's flush share the next one: one of them makes it, and it serves all
    /// whose writes were taken before it began. None of these waits for `writer`, which the next
    /// flush may get first.
    pub(crate) fn flush_all(&self, asked: u64) -> Result<(), HistoryError> {
        {
            let mut state = self.state.lock();
            while state.flushed < asked && state.flushing {
                self.flush_over.wait(&mut state);
            }
            if state.flushed >= asked {
                drop(state);
                return self.check_failed();
            }
            state.flushing = true;
        }
        let _shared = SharedFlush(self);
        let mut writer = self.writer.lock();
        // For example, a mark with an earlier turn took along everything that waited when its own
        // flush began.
        if self.state.lock().flushed >= asked {
            return self.check_failed();
        }
        self.flush_with(&mut writer)
    }

    pub(crate) fn flush_with(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        self.check_failed()?;
        // Later writes may or may not leave with it.
        let last = self.state.lock().last;
        self.destage_all(writer)?;
        self.settle_current(writer)?;
        self.sync(writer)?;
        let mut state = self.state.lock();
        state.flushed = state.flushed.max(last);
        Ok(())
    }

    /// Puts versions to the places that the placement requires. Each block comes once; its versions
    /// are later than all of its versions in the log.
    pub(crate) fn place(&self, writer: &mut Writer, mut work: Vec<Work>) -> Result<(), HistoryError> {
        work.sort_by_key(|(lba, _)| *lba);
        let lasts: Vec<(u64, u64)> =
            work.iter().filter_map(|(lba, versions)| Some((*lba, versions.last()?.0))).collect();
        let outcome = self.place_sorted(writer, work);
        for (lba, last) in lasts {
            if outcome.as_ref().is_err_and(HistoryError::is_full) {
                let until = writer.torn.entry(lba).or_default();
                *until = last.max(*until);
            } else if outcome.is_ok() && writer.torn.get(&lba).is_some_and(|until| *until <= last) {
                writer.torn.remove(&lba);
            }
        }
        outcome
    }

    fn place_sorted(&self, writer: &mut Writer, work: Vec<Work>) -> Result<(), HistoryError> {
        let mut plans = self.plan(&work);
        self.stage(&work, &mut plans)?;
        let mut pending = Vec::new();
        let mut replaced = Vec::new();
        let mut bases = 0;
        for ((lba, versions), plan) in work.iter().zip(&mut plans) {
            let Some((first, _)) = versions.first() else { continue };
            let newest_is_redo = plan.newest.is_some_and(|newest| newest.is_redo());
            if let Some(content) = plan.waiting.take() {
                pending.push(undo(*lba, *first, content));
                bases += u64::from(plan.path == Path::Both);
            }
            if plan.path == Path::Undo {
                if newest_is_redo {
                    pending.push(Pending { lba: *lba, time: *first, kind: EntryKind::Gone, data: None });
                }
                for (before, after) in versions.iter().zip(&versions[1..]) {
                    pending.push(undo(*lba, after.0, before.1.clone()));
                }
                continue;
            }
            // A version that is not retained: the previous one is in the same window.
            if let (true, true, Some(newest)) = (newest_is_redo, plan.same, plan.newest) {
                replaced.push(newest);
            }
            for (time, content) in versions {
                pending.push(redo(*lba, *time, content.clone()));
            }
        }
        let is_torn = self.drop_placed(writer, &mut pending);
        self.tally.add(&self.tally.base, bases);
        if !pending.is_empty() || is_torn {
            self.tally.add(&self.tally.retained, pending.len() as u64);
            let versions = self.append(writer, pending)?;
            let blocks = writer.superblock.segment_blocks;
            // The blocks stay in the cache until all of this is over, so no read of the present
            // sees a part of it.
            for versions in versions.chunks(LOCKED) {
                self.publish(&mut self.state.lock(), blocks, versions);
                #[cfg(test)]
                self.look_between();
            }
            // Only now: a view of an earlier instant takes this cache for the origin where a block
            // has no undo yet.
            if self.placement == Placement::SplitStream {
                self.delay(&mut self.state.lock(), &work);
            }
            let mut state = self.state.lock();
            for version in replaced {
                if let Some(version) = state.index.remove(version.key()) {
                    self.forget(&mut state, blocks, &version);
                }
            }
        }
        match self.placement {
            Placement::Logging => Ok(()),
            Placement::SplitStream => {
                // Only the excess: remaining blocks may be overwritten before they leave (section
                // 2.3 of the 2007 paper).
                let over = self.state.lock().current.bytes().saturating_sub(self.dirty_bytes);
                if over > 0 {
                    let blocks = over.div_ceil(u64::from(self.block_bytes) + CACHED_OVERHEAD);
                    self.destage_current(writer, blocks as usize)?;
                }
                Ok(())
            }
            _ => {
                let last = |(lba, versions): Work| Some((lba, versions.into_iter().next_back()?.1));
                self.write_present(writer, work.into_iter().filter_map(last).collect())
            }
        }
    }

    /// Drops the versions that an attempt without room below has added to the index; true when
    /// there were some.
    fn drop_placed(&self, writer: &Writer, pending: &mut Vec<Pending>) -> bool {
        if writer.torn.is_empty() {
            return false;
        }
        let state = self.state.lock();
        pending.retain(|pending| {
            let placed = state.index.get(key_of(pending.lba, pending.time, pending.kind));
            !writer.torn.contains_key(&pending.lba) || placed.is_none_or(|placed| placed.kind != pending.kind)
        });
        true
    }

    /// How each block's versions are kept.
    fn plan(&self, work: &[Work]) -> Vec<Planned> {
        work.chunks(LOCKED).flat_map(|work| self.plan_part(work)).collect()
    }

    fn plan_part(&self, work: &[Work]) -> Vec<Planned> {
        let mut state = self.state.lock();
        let state = &mut *state;
        work.iter()
            .map(|(lba, versions)| {
                let first = versions.first().map_or(0, |(time, _)| *time);
                let newest = state.index.last_at(*lba, first.saturating_sub(1));
                // The origin cannot show that content is lost. Nor may it show its old content when
                // a cut comes before the new content.
                let is_lost = newest.is_some_and(|newest| newest.is_lost() && newest.is_redo())
                    || versions.iter().any(|(_, content)| matches!(content, Content::Lost));
                // A version that the moving window is about to drop cannot be a base.
                let newest = newest.filter(|newest| state.trimming.is_none_or(|to| newest.time > to));
                let same = newest.is_some_and(|newest| state.timeline.same_window(newest.time, first));
                let path = match self.placement {
                    Placement::Checkpointing | Placement::Hybrid if is_lost => Path::Both,
                    Placement::Checkpointing => Path::Undo,
                    Placement::Logging => Path::Redo,
                    Placement::SplitStream | Placement::SplitDownStream => Path::Both,
                    Placement::Hybrid => {
                        let region = lba * u64::from(self.block_bytes) / REGION;
                        let seen = state.regions.entry(region).or_default();
                        seen.written += 1;
                        seen.retained += u16::from(!same);
                        if seen.written >= REGION_MEMORY {
                            seen.written /= 2;
                            seen.retained /= 2;
                        }
                        // Figure 5 of the 2007 paper with d for both caches: d + 2r against 2d.
                        if 2 * seen.retained < seen.written { Path::Undo } else { Path::Both }
                    }
                };
                let has_undo = state.index.get((*lba, first, 0)).is_some();
                let waiting = state.current.newest(*lba).cloned();
                Planned { path, newest, same, has_undo, waiting }
            })
            .collect()
    }

    /// Reads content of the origin that the history needs. Afterwards `waiting` holds the content
    /// to keep of each block.
    fn stage(&self, work: &[Work], plans: &mut [Planned]) -> Result<(), HistoryError> {
        let mut wanted = Vec::new();
        for (index, plan) in plans.iter_mut().enumerate() {
            if !plan.needs_base() {
                plan.waiting = None;
            } else if plan.waiting.is_none() {
                wanted.push(index);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let lbas: Vec<u64> = wanted.iter().map(|index| work[*index].0).collect();
        for (index, content) in wanted.into_iter().zip(self.stage_origin(&lbas)) {
            let (lba, versions) = &work[index];
            let first = versions.first().map_or(0, |(time, _)| *time);
            plans[index].waiting = Some(self.base_of(*lba, first, content)?);
        }
        Ok(())
    }

    /// Split-stream: the origin gets it later, in the order of its own cache.
    fn delay(&self, state: &mut crate::history::State, work: &[Work]) {
        let one = Timeline::new(Granularity::Marks);
        for (lba, versions) in work {
            if let Some((time, content)) =
                versions.last().filter(|(_, content)| !matches!(content, Content::Lost))
            {
                state.current.write(*lba, *time, content.clone(), u64::from(self.block_bytes), &one);
            }
        }
        state.unsettled = state.current.bytes();
    }

    /// Split-stream: writes all blocks that wait for the origin.
    pub(crate) fn settle_current(&self, writer: &mut Writer) -> Result<(), HistoryError> {
        while self.destage_current(writer, BATCH_BYTES / self.block_bytes as usize)? {}
        Ok(())
    }

    /// Split-stream: writes blocks to the origin; false when none wait.
    fn destage_current(&self, writer: &mut Writer, blocks: usize) -> Result<bool, HistoryError> {
        let picked = self.state.lock().current.oldest(blocks);
        if picked.is_empty() {
            return Ok(false);
        }
        let done: Vec<(u64, u64)> =
            picked.iter().filter_map(|(lba, versions)| Some((*lba, versions.last()?.0))).collect();
        let last = |(lba, versions): Work| Some((lba, versions.into_iter().next_back()?.1));
        let mut contents: Vec<(u64, Content)> = picked.into_iter().filter_map(last).collect();
        contents.sort_by_key(|(lba, _)| *lba);
        self.write_present(writer, contents)?;
        let mut state = self.state.lock();
        for (lba, time) in done {
            state.current.written(lba, time, u64::from(self.block_bytes));
        }
        state.unsettled = state.current.bytes();
        state.epoch += 1;
        Ok(true)
    }

    /// Writes blocks to the origin, in order of their numbers, neighbours together; the log is
    /// durable before.
    pub(crate) fn write_present(
        &self,
        writer: &mut Writer,
        contents: Vec<(u64, Content)>,
    ) -> Result<(), HistoryError> {
        self.sync_store(writer)?;
        let mut batch: Vec<Operation> = Vec::new();
        let mut run: Option<(u64, Segments)> = None;
        let mut zero: Option<(u64, u64)> = None;
        let end_run = |batch: &mut Vec<Operation>, run: Option<(u64, Segments)>| {
            batch.extend(run.map(|(offset, data)| Operation::write(offset, data)));
        };
        let end_zero = |batch: &mut Vec<Operation>, zero: Option<(u64, u64)>| {
            batch.extend(zero.map(|(offset, length)| {
                Operation::new(Request::WriteZeroes { offset, length, may_trim: true, fua: false })
            }));
        };
        for (lba, content) in contents {
            let offset = lba * u64::from(self.block_bytes);
            match content {
                Content::Data(data) => match &mut run {
                    Some((start, joined))
                        if *start + joined.len() as u64 == offset
                            && joined.len() + data.len() <= JOINED_MAX =>
                    {
                        joined.append(data);
                    }
                    _ => end_run(&mut batch, run.replace((offset, data))),
                },
                Content::Zero => match &mut zero {
                    Some((start, length)) if *start + *length == offset => {
                        *length += self.length_of(lba) as u64
                    }
                    _ => end_zero(&mut batch, zero.replace((offset, self.length_of(lba) as u64))),
                },
                // The log records it.
                Content::Lost => {}
            }
        }
        end_run(&mut batch, run);
        end_zero(&mut batch, zero);
        self.write_origin(writer, batch)
    }
}

/// The content of a block until a time.
pub(crate) fn undo(lba: u64, time: u64, content: Content) -> Pending {
    entry(lba, time, content, [EntryKind::Undo, EntryKind::UndoZero, EntryKind::UndoLost])
}

/// The content of a block from a time on.
fn redo(lba: u64, time: u64, content: Content) -> Pending {
    entry(lba, time, content, [EntryKind::Redo, EntryKind::RedoZero, EntryKind::RedoLost])
}

fn entry(lba: u64, time: u64, content: Content, [with_data, zero, lost]: [EntryKind; 3]) -> Pending {
    match content {
        Content::Data(data) => Pending { lba, time, kind: with_data, data: Some(data) },
        Content::Zero => Pending { lba, time, kind: zero, data: None },
        Content::Lost => Pending { lba, time, kind: lost, data: None },
    }
}
