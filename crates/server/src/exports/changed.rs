//! Which blocks of a LUN changed since a snapshot, for `qemu:dirty-bitmap:SNAPSHOT` and over HTTP.
//!
//! The snapshot is compared with the present LUN, or with the LUN in another snapshot, older or
//! newer.
//!
//! The trees of the LUN then and now are compared, at a cost proportional to the changes, not to
//! the size of the LUN. Data in memory has no tree, so a request first makes a consistency point if
//! there are uncommitted changes.

use std::sync::Arc;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, FileId, Generation, Lba, SnapshotId, VolumeId};
use cairn_device::DeviceError;
use cairn_frontend_nbd::ChangedBlocks;
use cairn_volume::{Image, VolumeError};
use parking_lot::Mutex;

use crate::volumes::open::OpenVolume;

mod commands;

/// Ranges in an answer over HTTP, by default and at most.
const PAGE_RANGES: u32 = 1000;
const PAGE_RANGES_MAX: usize = 100_000;

/// Runs of blocks, in order: the first and how many.
type Runs = Arc<Vec<(Lba, u64)>>;

/// An answer: its first snapshot, its last generation, and the changes. Without a snapshot the
/// changes are all blocks.
type Answer = (Option<SnapshotId>, Generation, Runs);

/// The last answer over HTTP: a client asks for one page after the other. Its volume, its LUN, its
/// last snapshot, and the changes.
#[derive(Default)]
pub(crate) struct LastAnswer(Mutex<Option<Asked>>);

/// A question, and its answer.
type Asked = (VolumeId, FileId, Option<SnapshotId>, Answer);

/// Answers for one LUN.
pub(crate) struct Changed {
    open: Arc<OpenVolume>,
    file: FileId,
    /// None: the present.
    image: Option<Image>,
    /// The last answer: a client asks for one window of the disk after the other.
    last: Mutex<Option<Answer>>,
}

impl Changed {
    /// Of the LUN as it is now.
    pub(crate) fn of_present(open: Arc<OpenVolume>, file: FileId) -> Self {
        Self { open, file, image: None, last: Mutex::new(None) }
    }

    /// Of the LUN in an image of its volume.
    pub(crate) fn of_image(open: Arc<OpenVolume>, file: FileId, image: Image) -> Self {
        Self { open, file, image: Some(image), last: Mutex::new(None) }
    }

    fn runs(&self, snapshot: Option<&str>) -> Result<Runs, VolumeError> {
        let volume = &self.open.volume;
        let named = |name| volume.snapshot_named(name).ok_or(VolumeError::NoSuchSnapshot(SnapshotId(0)));
        let base = snapshot.map(named).transpose()?.map(|base| base.id);
        if self.image.is_none() && volume.status().dirty > 0 {
            volume.consistency_point()?;
        }
        let mut last = self.last.lock();
        let now = match &self.image {
            Some(image) => image.clone(),
            None => volume.image(None)?,
        };
        let generation = now.root().generation;
        if let Some((id, at, runs)) = &*last
            && (*id, *at) == (base, generation)
        {
            return Ok(runs.clone());
        }
        let runs = match base {
            None => now.allocated(self.file)?,
            Some(base) => self.compared(&now, &volume.image(Some(base))?)?,
        };
        let runs = Arc::new(runs);
        *last = Some((base, generation, runs.clone()));
        Ok(runs)
    }
}

impl Changed {
    fn compared(&self, now: &Image, base: &Image) -> Result<Vec<(Lba, u64)>, VolumeError> {
        match base.inode(self.file) {
            // The earlier LUN of this name was another one: all of this one is new, its holes as
            // well.
            Err(VolumeError::NoSuchFile(_)) => {
                let bytes = now.inode(self.file)?.length_bytes;
                Ok(vec![(Lba(0), bytes.div_ceil(BLOCK_SIZE as u64))])
            }
            _ => now.changed_since(base, self.file),
        }
    }
}

impl ChangedBlocks for Changed {
    fn changed_since(
        &self,
        snapshot: &str,
        offset: u64,
        length: u64,
        limit: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError> {
        let runs = self.runs(Some(snapshot)).map_err(|error| error.to_device(offset, length))?;
        Ok(stretches(&runs, offset, length, limit))
    }
}

/// `offset..offset + length` in stretches that are wholly changed or wholly not; at most `limit`.
fn stretches(runs: &[(Lba, u64)], offset: u64, length: u64, limit: usize) -> Vec<(u64, bool)> {
    let block = BLOCK_SIZE as u64;
    let end = offset + length;
    let first = runs.partition_point(|(lba, count)| (lba.0 + count) * block <= offset);
    let mut stretches = Vec::new();
    let mut at = offset;
    for (lba, count) in &runs[first..] {
        let (start, stop) = ((lba.0 * block).max(at), ((lba.0 + count) * block).min(end));
        if start >= end || stretches.len() >= limit {
            break;
        }
        if start > at {
            stretches.push((start - at, false));
        }
        stretches.push((stop - start, true));
        at = stop;
    }
    if at < end && stretches.len() < limit {
        stretches.push((end - at, false));
    }
    stretches.truncate(limit);
    stretches
}

/// The ranges from `offset` on, of a LUN of `bytes`.
fn page(runs: &[(Lba, u64)], bytes: u64, offset: u64, limit: usize) -> api::ChangedRanges {
    let block = BLOCK_SIZE as u64;
    let first = runs.partition_point(|(lba, count)| (lba.0 + count) * block <= offset);
    let mut ranges: Vec<api::ChangedRange> = runs[first..]
        .iter()
        .take(limit.saturating_add(1))
        .map(|(lba, count)| ((lba.0 * block).max(offset), ((lba.0 + count) * block).min(bytes)))
        .filter(|(start, end)| start < end)
        .map(|(start, end)| api::ChangedRange { offset: start, bytes: end - start })
        .collect();
    let next = ranges.get(limit).map(|range| range.offset);
    ranges.truncate(limit);
    api::ChangedRanges { size_bytes: bytes, ranges, next }
}

#[cfg(test)]
mod tests;
