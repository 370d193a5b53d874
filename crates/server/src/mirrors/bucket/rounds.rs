//! The decisions of a mirror in a bucket, without the bucket: whether it may claim the images, what
//! a failure means, when it tries again, and which upkeep is due.

use std::time::Duration;

use cairn_bucket::images::{ClaimSeen, ImagesError, SourceError};
use cairn_stream::StreamError;

use super::document::{BucketMirrorDocument, Upkeep};
use super::error::{Stopped, Why};

/// The first retry after a failure.
const RETRY_MS_MIN: u64 = 5_000;
/// A later one, at most.
const RETRY_MS_MAX: u64 = 300_000;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Images expire once an hour at most: each time writes a checkpoint.
const EXPIRE_EVERY_MS: u64 = HOUR_MS;
/// A search for small orphans lists a few folders.
const SMALL_EVERY_MS: u64 = DAY_MS;
/// A search for all orphans lists every object of the volume.
const ALL_EVERY_MS: u64 = 30 * DAY_MS;
/// An idle mirror looks whether another server has claimed the images: six requests an hour.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Readers of an expired image can read it for so long.
pub(super) const GRACE: Duration = Duration::from_secs(24 * 3600);

/// Work on a bucket beside updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Images expire, and the regions of those that expired a day ago are deleted.
    Expire,
    /// Roots, checkpoints, lists and progress without an image are deleted.
    Small,
    /// Regions without an image as well.
    All,
}

/// The upkeep that is due. The clock may have been set back: a time in the future is long ago.
pub(super) fn due(upkeep: &Upkeep, now_ms: u64) -> Vec<Task> {
    let passed = |since: u64, every: u64| now_ms.checked_sub(since).is_none_or(|passed| passed >= every);
    let mut tasks = Vec::new();
    if passed(upkeep.expired_ms, EXPIRE_EVERY_MS) {
        tasks.push(Task::Expire);
    }
    if passed(upkeep.all_ms, ALL_EVERY_MS) {
        tasks.push(Task::All);
    } else if passed(upkeep.small_ms, SMALL_EVERY_MS) {
        tasks.push(Task::Small);
    }
    tasks
}

impl Upkeep {
    /// A task is done.
    pub(super) fn done(&mut self, task: Task, now_ms: u64) {
        match task {
            Task::Expire => self.expired_ms = now_ms,
            Task::Small => self.small_ms = now_ms,
            Task::All => (self.small_ms, self.all_ms) = (now_ms, now_ms),
        }
    }
}

/// The time of the next try after `failures` failures in a row.
pub(super) fn retry_ms(failures: u32, now_ms: u64) -> u64 {
    let factor = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    now_ms.saturating_add(RETRY_MS_MIN.saturating_mul(factor).min(RETRY_MS_MAX))
}

/// The epoch after which this server may claim.
///
/// A claim by another server stops the mirror, unless the owner of this one takes over. So a server
/// that was away while another one took over never fences it by starting again.
pub(super) fn claims_after(
    newest: Option<&ClaimSeen>,
    document: &BucketMirrorDocument,
) -> Result<u32, Stopped> {
    let epoch = newest.map_or(0, |newest| newest.epoch);
    if document.takes_over {
        return Ok(epoch);
    }
    if let Some(owned) = document.owned.filter(|owned| epoch < *owned) {
        return Err(Stopped {
            why: Why::Replayed,
            message: format!(
                "the bucket went back: its newest claim is number {epoch}, and this server has made number {owned}"
            ),
        });
    }
    let Some(newest) = newest else { return Ok(0) };
    let is_own = |nonce| document.claims.iter().any(|own| own.epoch == epoch && own.nonce == nonce);
    match is_own(newest.nonce) {
        true => Ok(epoch),
        false => Err(Stopped {
            why: Why::Fenced,
            message: format!("{} has taken over the images (epoch {epoch})", newest.label),
        }),
    }
}

/// The consequence of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Consequence {
    /// The mirror waits for its owner.
    Stop(Stopped),
    /// It is tried again. The claim is given up if `anew` is set: the next try opens the bucket
    /// and claims again.
    Retry {
        /// Give the claim up.
        anew: bool,
    },
}

/// The consequence of a failure of the bucket or of the volume.
pub(super) fn consequence(error: &SourceError) -> Consequence {
    let stop = |why| Consequence::Stop(Stopped { why, message: error.to_string() });
    match error {
        SourceError::Images(images) => match images {
            ImagesError::Fenced { .. } => stop(Why::Fenced),
            ImagesError::Replayed { .. } => stop(Why::Replayed),
            ImagesError::Damaged { .. } | ImagesError::Gone(_) => stop(Why::Damaged),
            ImagesError::Newer { .. } => stop(Why::Newer),
            // A claim of this server may have taken effect late: the next try finds out.
            ImagesError::Taken { .. } => Consequence::Retry { anew: true },
            // An owner resolves a call without an answer when it is called again.
            ImagesError::Store(error) => {
                Consequence::Retry { anew: !error.is_transient() && !error.is_cancelled() }
            }
            ImagesError::Base { .. }
            | ImagesError::NoImage(_)
            | ImagesError::NoBlock(_)
            | ImagesError::Rule(_) => Consequence::Retry { anew: true },
        },
        SourceError::Stream(StreamError::Diverged { .. }) => stop(Why::Diverged),
        SourceError::Table(_) => stop(Why::Damaged),
        SourceError::Stream(_) | SourceError::Volume(_) | SourceError::Unproved => {
            Consequence::Retry { anew: false }
        }
    }
}

#[cfg(test)]
mod tests;
