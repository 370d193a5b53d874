//! Which blocks of a LUN changed since a snapshot, for `qemu:dirty-bitmap:SNAPSHOT`.
//!
//! The trees of the LUN then and now are compared, which costs what changed and not what the LUN holds. What is still in memory
//! has no tree, so a question first brings about a consistency point when there is something to commit.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId, Generation, Lba, SnapshotId};
use cairn_device::DeviceError;
use cairn_frontend_nbd::ChangedBlocks;
use cairn_volume::VolumeError;
use parking_lot::Mutex;

use crate::volumes::OpenVolume;

/// Runs of blocks, in order: the first and how many.
type Runs = Arc<Vec<(Lba, u64)>>;

/// Answers for one LUN.
pub(crate) struct Changed {
    open: Arc<OpenVolume>,
    file: FileId,
    /// The last answer: a client asks for one window of the disk after the other.
    last: Mutex<Option<(SnapshotId, Generation, Runs)>>,
}

impl Changed {
    pub(crate) fn new(open: Arc<OpenVolume>, file: FileId) -> Self {
        Self { open, file, last: Mutex::new(None) }
    }

    fn runs(&self, snapshot: &str) -> Result<Runs, VolumeError> {
        let volume = &self.open.volume;
        let base = volume.snapshot_named(snapshot).ok_or(VolumeError::NoSuchSnapshot(SnapshotId(0)))?;
        if volume.status().dirty > 0 {
            volume.consistency_point()?;
        }
        let mut last = self.last.lock();
        let now = volume.image(None)?;
        let generation = now.root().generation;
        if let Some((id, at, runs)) = &*last
            && (*id, *at) == (base.id, generation)
        {
            return Ok(runs.clone());
        }
        let runs = Arc::new(now.changed_since(&volume.image(Some(base.id))?, self.file)?);
        *last = Some((base.id, generation, runs.clone()));
        Ok(runs)
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
        let runs = self.runs(snapshot).map_err(|error| error.to_device(offset, length))?;
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

#[cfg(test)]
mod tests;
