//! Images of a mirrored volume in a bucket.
//!
//! ```text
//! images/<volume id>/epoch/<epoch*>                       a claim of the bucket; never deleted
//!                    base/<epoch*>                        the root that the epoch continues from
//!                    region/<region>/<epoch>.<update>     live blocks of 4 MiB of block space
//!                    root/<epoch*>.<seq*>                 an image; written last
//!                    checkpoint/<epoch>.<update>          lists of the table, and the catalog
//!                    list/<epoch>.<update>.<part>         entries of the table
//!                    progress/<epoch>.<update>.<part>     entries of an update that is under way
//! ```
//!
//! Numbers are 8 hexadecimal digits. Those with a star count down, so that the newest object comes
//! first in a listing.
//!
//! An *update* turns the newest image into the next one. It writes each region that has changed
//! live blocks as one new object, and then a *root*. The *table* of an image gives the version and
//! the digest of each region. A root has the changes of the table since the last *checkpoint* that
//! are its own, and names the roots with the others. The *catalog* in a checkpoint has the images
//! that are kept. Block numbers are those of the volume, so there is no map of blocks and no
//! cleaner.
//!
//! # Invariants
//! 1. **One owner.** An owner claims an epoch by creating `epoch/<n>`, and only then looks for the
//!    newest root, which it names in `base/<n>`. It commits by creating a root and then finding
//!    that `epoch/<n + 1>` is absent. So a later claimer sees each root that was committed, and
//!    nothing that an owner writes after the next claim is ever committed. Roots of an epoch that
//!    are not below the base of a later epoch have no effect.
//! 2. **Names are used once.** Each name has the epoch of its writer and a number that the writer
//!    uses once. Epochs are never deleted, so a delayed put can't meet another object.
//! 3. **A root is written last.** It names only objects that the store acknowledged.
//! 4. **Digests.** A root names lists, regions and other roots with their digests; a region object
//!    has the digest of each frame of 64 KiB in its header. A flip, a swap, a cut or a replay is
//!    detected, and the object is named. The newest root is checked by its own checksum and place.
//!    A caller that remembers the newest root it saw ([`Seen`]) detects a store that returned to an
//!    older state. The digests are XXH3-128, which detects accidents and objects of Cairn in a
//!    wrong place. They do not protect against a forger; [`crate::seal`] does.
//! 5. **Garbage by roots.** A region object is deleted after a grace period if an expired image
//!    names it and the kept images before and after do not. The history of images is a line, so the
//!    images that name an object are neighbours and the two comparisons suffice. An image expires
//!    by a committed root before anything of it is deleted.
//! 6. **Orphans by the mark.** Each root has a mark. An object up to the mark that no kept image
//!    names is garbage for ever; an object past it may belong to an update that will be resumed. So
//!    a resumed update uses only objects past the mark, and a delayed delete can't take one of
//!    them. Listings find orphans and hints, and decide nothing.
//! 7. **The newest root is found without a listing.** Roots of an epoch are numbered without a gap.
//!    Each root whose number divides by the window of the epoch, and all after the last of these,
//!    stay until a later epoch has begun. A late listing is corrected by looking at those.
//!
//! # Requests
//! An idle owner makes none. An update of `k` regions makes `k + 1` puts and two looks at the next
//! epoch. Every [`Tuning::since_max`] updates it also puts a checkpoint and its lists.
//! `docs/bucket-images.md` has the sizes, the prices and the format of each object.

mod clean;
mod codec;
mod error;
mod estimate;
mod fuzzing;
mod inner;
mod load;
mod names;
mod owner;
mod proof;
mod purge;
mod reader;
mod region;
mod region_set;
mod root;
mod table;
#[cfg(test)]
mod tests;
mod update;
mod volume;
mod volumes;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Mutex, Rng, Timestamp, VolumeId};

pub use self::clean::{Expired, Orphans, Swept};
pub use self::error::ImagesError;
pub use self::estimate::{ImageLoad, monthly, price};
pub use self::inner::{Seen, Tuning};
pub use self::owner::Owner;
pub use self::reader::{ImageReader, RegionPart};
pub use self::region::{FRAME_BLOCKS, FRAMES, REGION_BLOCKS, RegionBlocks};
pub use self::root::{ImageId, ImageLabel};
pub use self::update::Update;
pub use self::volume::{
    SourceError, UpdateProgress, UpdateWork, Updated, VolumeImage, has_snapshot, snapshots_of,
};
pub use self::volumes::{ClaimSeen, VolumeInBucket, label_of, volumes};

use self::inner::Inner;
use crate::store::{Nonce, Store};
use crate::workers::Workers;

#[doc(hidden)]
pub use self::fuzzing::fuzz;

/// The images of one volume in a bucket.
///
/// Opening makes no request. Several servers may read; one at a time is the [`Owner`].
#[derive(Clone)]
pub struct BucketImages {
    inner: Arc<Inner>,
}

impl BucketImages {
    /// The images of `volume` in `store`, which must retry and must have the probe's permission for
    /// mirrors. `seen` is the newest root that this server has seen. `rng` is seeded by the
    /// operating system.
    pub fn open(
        store: Arc<dyn Store>,
        workers: Arc<dyn Workers>,
        volume: VolumeId,
        seen: Option<Seen>,
        rng: Rng,
    ) -> Self {
        Self::with_tuning(store, workers, volume, seen, rng, Tuning::default())
    }

    /// As [`BucketImages::open`], with other numbers.
    pub fn with_tuning(
        store: Arc<dyn Store>,
        workers: Arc<dyn Workers>,
        volume: VolumeId,
        seen: Option<Seen>,
        rng: Rng,
        tuning: Tuning,
    ) -> Self {
        let (seen, rng) = (Mutex::new(seen), Mutex::new(rng));
        Self { inner: Arc::new(Inner { store, workers, volume, tuning, seen, rng }) }
    }

    /// The newest root that was seen so far; a server keeps it for the next time.
    pub fn seen(&self) -> Option<Seen> {
        *self.inner.seen.lock()
    }

    /// Claims the volume. A previous owner is fenced from now on. `label` is for people: the name
    /// of this server.
    ///
    /// # Errors
    /// [`ImagesError::Taken`] if another server claimed it at the same time;
    /// [`ImagesError::Replayed`] if the store went back. After any error an epoch may be claimed
    /// and have no owner; a later claim continues past it.
    pub fn claim(&self, label: &str, now: Timestamp, cancel: &Arc<AtomicBool>) -> Result<Owner, ImagesError> {
        Owner::claim(&self.inner, label, now, cancel)
    }

    /// The newest claim of the volume; none if it was never claimed.
    ///
    /// # Errors
    /// The store failed, or the claim is damaged.
    pub fn newest_claim(&self, cancel: &Arc<AtomicBool>) -> Result<Option<ClaimSeen>, ImagesError> {
        let epoch = self.inner.newest_epoch(cancel)?;
        if epoch == 0 {
            return Ok(None);
        }
        let claim = self.inner.claim_of(epoch, cancel)?;
        Ok(claim.map(|claim| ClaimSeen { epoch, nonce: claim.nonce, at: claim.at, label: claim.label }))
    }

    /// As [`BucketImages::claim`], if `after` is still the newest epoch. A server that owned that
    /// epoch continues so: it never fences a server that took over meanwhile. `nonce` is random and
    /// new, and shows in [`ClaimSeen::nonce`] that a claim with a lost answer took effect.
    ///
    /// # Errors
    /// As [`BucketImages::claim`]. [`ImagesError::Taken`] also if the epoch after `after` was
    /// claimed before.
    pub fn claim_after(
        &self,
        (after, nonce): (u32, Nonce),
        label: &str,
        now: Timestamp,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Owner, ImagesError> {
        Owner::claim_after(&self.inner, (after, nonce), label, now, cancel)
    }

    /// The images, in order.
    ///
    /// # Errors
    /// The store failed, or something is damaged.
    pub fn images(&self, cancel: &Arc<AtomicBool>) -> Result<Vec<ImageLabel>, ImagesError> {
        Ok(self.inner.newest(cancel)?.map_or_else(Vec::new, |newest| newest.labels()))
    }

    /// Bytes of the objects of the newest image.
    ///
    /// # Errors
    /// The store failed, or something is damaged.
    pub fn newest_bytes(&self, cancel: &Arc<AtomicBool>) -> Result<u64, ImagesError> {
        Ok(self.inner.newest(cancel)?.map_or(0, |newest| newest.root.stored))
    }

    /// Opens an image, or the newest one.
    ///
    /// # Errors
    /// [`ImagesError::NoImage`] if it is not there or has expired.
    pub fn image(
        &self,
        image: Option<ImageId>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<ImageReader, ImagesError> {
        ImageReader::open(&self.inner, image, cancel)
    }
}
