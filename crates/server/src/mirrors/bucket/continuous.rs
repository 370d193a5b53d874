//! Mirrors in buckets that follow their volume: the next update begins when the last one has ended
//! and the volume has changed.

use std::time::Duration;

use cairn_bucket::images::{ImageId, Owner};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::Volume;

use super::show::lag_of;
use super::{BucketMirror, BucketMirrors};
use crate::error::ServerError;
use crate::mirrors::when::When;
use crate::volumes::open::OpenVolume;

/// How often the schedule looks for changes.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The age of a change at which an update begins, without a largest lag.
const AGE_MS: u64 = 1_000;
/// A volume that does not change has an update that often. It finds nothing to send, and looks for
/// another owner.
const IDLE_MS: u64 = 600_000;
/// A failed update is tried again after this time, at first and at most: the lag grows meanwhile.
const RETRY_MS: (u64, u64) = (2_000, 15_000);

/// The next update that is planned.
pub(super) fn next_ms(when: &When, now_ms: u64) -> Option<u64> {
    if when.continuous { Some(now_ms.saturating_add(IDLE_MS)) } else { when.next_ms(now_ms) }
}

/// The time of the next try after `failures` failures in a row.
pub(super) fn retry_ms(failures: u32, now_ms: u64) -> u64 {
    now_ms.saturating_add((RETRY_MS.0 * u64::from(failures.max(1))).min(RETRY_MS.1))
}

/// The snapshots of a volume that are no mirror's, as one number.
fn others_of(volume: &Volume) -> u64 {
    let others = volume.snapshot_entries().into_iter().filter(|entry| !entry.name.starts_with(MIRROR_PREFIX));
    others.fold(0, |sum, entry| sum.wrapping_mul(31).wrapping_add(entry.id.0))
}

impl BucketMirrors {
    /// The snapshots of others in the volume of a mirror.
    pub(super) fn others_of(&self, mirror: &BucketMirror) -> Option<u64> {
        self.volumes.get(&mirror.volume).ok().map(|open| others_of(&open.volume))
    }

    /// Whether a continuous mirror has something to send, and no failure to wait out.
    pub(super) fn has_to_follow(&self, mirror: &BucketMirror, now_ms: u64) -> bool {
        let (image, rpo_ms) = {
            let document = mirror.document.lock();
            if !document.when.continuous || document.paused || document.stopped.is_some() {
                return false;
            }
            (document.image, document.rpo_ms)
        };
        let others = {
            let live = mirror.live.lock();
            if live.running || live.retired || live.retry_ms.is_some_and(|retry| retry > now_ms) {
                return false;
            }
            live.others
        };
        let Ok(open) = self.volumes.get(&mirror.volume) else { return false };
        let Some(image) = image else { return true };
        // Half of the largest lag is for the update itself.
        let age_ms = rpo_ms.map_or(AGE_MS, |lag| lag / 2).max(1);
        let lag = lag_of(&open.volume, &image);
        lag.as_millis() as u64 >= age_ms || others.is_some_and(|others| others != others_of(&open.volume))
    }

    /// The image that the volume of a mirror reads absent blocks from, if the mirror makes it, and
    /// the number of its snapshot.
    pub(super) fn reads_image(&self, mirror: &BucketMirror, open: &OpenVolume) -> Option<(ImageId, u64)> {
        let place = mirror.document.lock().place();
        open.reads_image_at(&place.bucket, &place.path)
    }

    /// After an image: the volume reads absent blocks from that one from now on.
    pub(super) fn move_on(
        &self,
        mirror: &BucketMirror,
        open: &OpenVolume,
        owner: &Owner,
    ) -> Result<(), ServerError> {
        let place = mirror.document.lock().place();
        open.move_on(&place.bucket, &place.path, owner)
    }

    /// Whether a volume needs the images of its mirror.
    pub(super) fn is_home(&self, mirror: &BucketMirror) -> bool {
        let place = mirror.document.lock().place();
        self.volumes.get(&mirror.volume).is_ok_and(|open| open.has_home_at(&place.bucket, &place.path))
    }

    /// Refuses to delete the mirror whose images a volume reads.
    pub(super) fn refuse_home(&self, mirror: &BucketMirror) -> Result<(), ServerError> {
        match self.volumes.get(&mirror.volume) {
            Ok(open) if self.is_home(mirror) => Err(open.is_home_of(mirror.name())),
            _ => Ok(()),
        }
    }

    /// Ends the mirrors that go with a volume, before it is deleted. Their images stay.
    pub(crate) fn end_homes(&self, volume: &str) -> Result<(), ServerError> {
        for mirror in self.of_volume(volume).into_iter().filter(|mirror| self.is_home(mirror)) {
            mirror.live.lock().retired = true;
            if let Err(error) = mirror.settle() {
                mirror.live.lock().retired = false;
                return Err(error);
            }
            self.mirrors.lock().remove(&mirror.id);
        }
        Ok(())
    }
}
