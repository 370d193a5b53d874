//! A round of a mirror in a bucket: the claim, the update, and the upkeep.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_api as api;
use cairn_base::SnapshotId;
use cairn_bucket::images::{
    ImagesError, Orphans, REGION_BLOCKS, SourceError, UpdateProgress, UpdateWork, VolumeImage, has_snapshot,
    label_of, snapshots_of,
};
use cairn_bucket::{Nonce, Use, Waiting, Workers};
use cairn_format::SnapshotEntry;
use cairn_stream::{MIRROR_PREFIX, StreamError};
use cairn_volume::{Volume, VolumeError};

use super::continuous;
use super::document::{Claim, Image};
use super::error::{BucketMirrorError, Stopped};
use super::rounds::{Consequence, GRACE, LOOK_EVERY, Task, claims_after, consequence, due, retry_ms};
use super::{BucketMirror, BucketMirrors, Holding};
use crate::buckets::{OpenBucket, in_words, rng};
use crate::error::ServerError;
use crate::mirrors::error::MirrorsError;
use crate::mirrors::role_error::RoleError;
use crate::names;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

const REGION_BYTES: u64 = (REGION_BLOCKS * cairn_base::BLOCK_SIZE) as u64;

/// Why a round did not complete.
pub(super) enum Failure {
    /// The bucket or the volume.
    Source(SourceError),
    /// The mirror waits for its owner.
    Stopped(Stopped),
    /// The server.
    Server(ServerError),
}

impl From<ImagesError> for Failure {
    fn from(error: ImagesError) -> Self {
        Failure::Source(error.into())
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Failure::Source(error)
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        Failure::Source(error.into())
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Failure::Server(error)
    }
}

impl Failure {
    fn is_cancelled(&self) -> bool {
        match self {
            Failure::Source(SourceError::Images(ImagesError::Store(error))) => error.is_cancelled(),
            Failure::Source(SourceError::Stream(StreamError::Cancelled)) => true,
            Failure::Server(ServerError::Cancelled | ServerError::Ending) => true,
            Failure::Source(_) | Failure::Stopped(_) | Failure::Server(_) => false,
        }
    }

    fn consequence(&self) -> Consequence {
        match self {
            Failure::Source(error) => consequence(error),
            Failure::Stopped(stopped) => Consequence::Stop(stopped.clone()),
            Failure::Server(_) => Consequence::Retry { anew: true },
        }
    }
}

/// The snapshots of a mirror, with their numbers, in order.
pub(super) fn own_snapshots(volume: &Volume, prefix: &str) -> Vec<(SnapshotEntry, u64)> {
    let numbered = |entry: SnapshotEntry| {
        let number = entry.name.strip_prefix(prefix)?.parse().ok()?;
        Some((entry, number))
    };
    volume.snapshot_entries().into_iter().filter_map(numbered).collect()
}

/// Releases and deletes snapshots; one with a clone stays until that is gone.
pub(super) fn let_go(volume: &Arc<Volume>, ids: &[SnapshotId]) -> Result<(), VolumeError> {
    let (cloned, free): (Vec<SnapshotId>, Vec<SnapshotId>) =
        ids.iter().copied().partition(|id| volume.is_cloned(*id));
    for id in cloned {
        volume.hold_snapshot(id, false)?;
    }
    if !free.is_empty() {
        volume.let_go_of_snapshots(&free)?;
    }
    Ok(())
}

/// Whether an image has the snapshots of a volume, but for those that mirrors made: each mirror
/// would otherwise cause updates of the others.
fn has_all_snapshots(content: &[u8], volume: &Volume) -> bool {
    let of = |entries: &[SnapshotEntry]| -> BTreeSet<SnapshotId> {
        let named = entries.iter().filter(|entry| !entry.name.starts_with(MIRROR_PREFIX));
        named.map(|entry| entry.id).collect()
    };
    snapshots_of(content).is_ok_and(|entries| of(&entries) == of(&volume.snapshot_entries()))
}

/// Whether a volume has images to mirror: one that takes writes, or a mirror that shows what it
/// received.
pub(super) fn has_images(open: &OpenVolume) -> bool {
    !open.is_destination() || (open.volume.own_head().is_none() && !open.is_read_only_image())
}

/// The image that a mirror shows.
fn shown(open: &OpenVolume) -> Result<SnapshotEntry, ServerError> {
    let id = open.volume.status().cursor.snapshot;
    let entry = open.volume.snapshot_entries().into_iter().find(|entry| entry.id == id);
    entry.ok_or_else(|| ServerError::Mirrors(MirrorsError::NoImage { volume: open.name.clone() }))
}

/// A mirror may have received its next image after the first look at the one before: the next try
/// takes that.
fn replaced_meanwhile(mirror: &BucketMirror, error: SourceError) -> Failure {
    let is_gone = match &error {
        SourceError::Stream(StreamError::Diverged { .. }) => true,
        SourceError::Stream(StreamError::Volume(error)) | SourceError::Volume(error) => {
            matches!(error, VolumeError::NoSuchSnapshot(_))
        }
        _ => false,
    };
    match is_gone {
        true => {
            let by = "the mirror has received its next image meanwhile";
            ServerError::Busy { name: mirror.name(), by }.into()
        }
        false => error.into(),
    }
}

impl BucketMirrors {
    /// Opens the bucket of a mirror. The running job shows the failures that the store waits out.
    pub(super) fn open_bucket(
        &self,
        mirror: &BucketMirror,
        by: &'static str,
    ) -> Result<OpenBucket, ServerError> {
        let id = mirror.id;
        let bucket = mirror.document.lock().bucket.clone();
        let mirrors = self.mirrors.lock().get(&id).map(Arc::downgrade);
        let waiting: Arc<Waiting> = Arc::new(move |failure| {
            let Some(mirror) = mirrors.as_ref().and_then(std::sync::Weak::upgrade) else { return };
            let shown = mirror.waiting.lock().clone();
            if let Some(shown) = shown {
                *shown.lock() = failure.map(in_words);
            }
        });
        let open = self.buckets.open_telling(&bucket, by, waiting)?;
        open.refuse_unsafe_for(Use::Mirror)?;
        Ok(open)
    }

    /// One round.
    pub(super) fn round(
        &self,
        mirror: &BucketMirror,
        open: &Arc<OpenVolume>,
        progress: &Progress,
    ) -> Result<(), Failure> {
        if !has_images(open) {
            let volume = mirror.volume.clone();
            return Err(ServerError::from(BucketMirrorError::NotASource { volume }).into());
        }
        let mut held = mirror.holding.lock();
        let mut holding = match held.take() {
            Some(holding) => holding,
            None => self.claim(mirror, open, progress)?,
        };
        let mut outcome = self.update(mirror, open, &mut holding, progress);
        if matches!(outcome, Ok(true)) {
            // The resumed image is as old as the interrupted update.
            outcome = self.update(mirror, open, &mut holding, progress);
        }
        let outcome = outcome.and_then(|_| self.keep_up(mirror, open, &mut holding, progress));
        let gives_up = outcome.as_ref().err().map(Failure::consequence);
        if !matches!(gives_up, Some(Consequence::Stop(_) | Consequence::Retry { anew: true })) {
            *held = Some(holding);
        }
        outcome
    }

    /// Claims the images for this process.
    pub(super) fn claim(
        &self,
        mirror: &BucketMirror,
        open: &OpenVolume,
        progress: &Progress,
    ) -> Result<Holding, Failure> {
        progress.phase("opening the bucket");
        let cancel = progress.cancel_flag();
        let document = mirror.document.lock().clone();
        let bucket = self.open_bucket(mirror, "it is the destination of a mirror")?;
        let seen = document.seen.map(Into::into);
        let images = document.place().images(&bucket, open.volume.id(), seen)?;
        progress.phase("claiming the images");
        let newest = images.newest_claim(cancel)?;
        let after = claims_after(newest.as_ref(), &document).map_err(Failure::Stopped)?;
        let epoch = after.saturating_add(1);
        let nonce = {
            let mut live = mirror.live.lock();
            let nonce = live.claiming.filter(|(of, _)| *of == epoch).map(|(_, nonce)| nonce);
            let nonce = nonce.unwrap_or_else(|| Nonce::random(&mut rng()));
            live.claiming = Some((epoch, nonce));
            nonce
        };
        let own = Claim { epoch, nonce };
        self.change(mirror, |document| {
            document.claims.retain(|claim| claim.epoch >= after && *claim != own);
            document.claims.push(own);
            Ok(())
        })?;
        let label = label_of(&mirror.volume, &names::host());
        let owner = images.claim_after((after, nonce), &label, self.clock.now(), cancel)?;
        mirror.live.lock().claiming = None;
        self.change(mirror, |document| {
            (document.owned, document.claims, document.takes_over) = (Some(epoch), vec![own], false);
            document.seen = owner.seen().map(Into::into).or(document.seen);
            document.images = owner.images().len() as u64;
            Ok(())
        })?;
        tracing::info!(mirror = mirror.name(), epoch, "claimed the images in the bucket");
        Ok(Holding { owner, bucket, looked: self.clock.monotonic() })
    }

    /// Brings the volume into the bucket, if it has changed. Returns whether it has resumed an
    /// interrupted update.
    fn update(
        &self,
        mirror: &BucketMirror,
        open: &Arc<OpenVolume>,
        holding: &mut Holding,
        progress: &Progress,
    ) -> Result<bool, Failure> {
        let (volume, cancel) = (&open.volume, progress.cancel_flag());
        let (began, started_ms) = (self.clock.monotonic(), self.now_ms());
        let (prefix, repairs) = {
            let document = mirror.document.lock();
            (document.prefix(), document.repairs.clone())
        };
        progress.phase("comparing");
        holding.owner.settle(cancel)?;
        let content = holding.owner.newest_content().to_vec();
        // A mirror has no snapshots of its own: the image that it shows goes into the bucket.
        let shown = open.is_destination().then(|| shown(open)).transpose()?;
        let own = match &shown {
            Some(shown) => vec![(shown.clone(), 0)],
            None => own_snapshots(volume, &prefix),
        };
        let base = own.iter().rev().map(|(entry, _)| entry).find(|entry| has_snapshot(&content, entry));
        let is_newest =
            |entry: &&SnapshotEntry| holding.owner.newest().is_some_and(|newest| newest.number == entry.id.0);
        let is_same = base.filter(is_newest).is_some_and(|base| {
            volume.age_of_changes(&base.root).is_none() && has_all_snapshots(&content, volume)
        });
        let last = |up_to_date| api::BucketTransfer { started_ms, up_to_date, ..Default::default() };
        if is_same && repairs.is_empty() {
            let now = self.clock.monotonic();
            let is_asked = std::mem::take(&mut mirror.live.lock().looks);
            if is_asked || now.saturating_sub(holding.looked) >= LOOK_EVERY {
                holding.owner.look(cancel)?;
                holding.looked = now;
            }
            self.note_image(mirror, holding, last(true), &repairs)?;
            self.move_on(mirror, open, &holding.owner)?;
            if shown.is_none() {
                self.release(mirror, open, &prefix, base.map(|base| base.id))?;
            }
            return Ok(false);
        }
        let (target, resumes) = match &shown {
            Some(shown) => (shown.id, false),
            None => self.target(mirror, open, (prefix.as_str(), &own[..]), base.map(|base| base.id))?,
        };
        if shown.is_none() {
            volume.hold_snapshot(target, true)?;
            let stale: Vec<SnapshotId> = own.iter().map(|(entry, _)| entry.id).collect();
            let read = self.reads_image(mirror, open).map(|(_, number)| SnapshotId(number));
            let is_stale =
                |id: &SnapshotId| *id != target && Some(*id) != base.map(|base| base.id) && Some(*id) != read;
            let_go(volume, &stale.into_iter().filter(is_stale).collect::<Vec<_>>())?;
        }
        progress.phase("transferring");
        mirror.set_pace(self.now_ms());
        let mut put = 0;
        let mut told = |at: UpdateProgress| {
            progress.bytes(at.done * REGION_BYTES, at.regions * REGION_BYTES);
            let more = at.bytes.saturating_sub(put);
            put = at.bytes;
            if at.done > 0 {
                mirror.live.lock().putting = Some((target.0, true));
            }
            let mut rest = |time: Duration| rests(time, cancel);
            mirror.pace.pay(more as usize, &*self.clock, &mut rest);
            open.governor.sent(more, &mut rest);
        };
        mirror.live.lock().putting = Some((target.0, resumes));
        let workers: Arc<dyn Workers> = holding.bucket.workers.clone();
        let now = self.clock.now();
        let work = UpdateWork {
            workers: &workers,
            now,
            cancel,
            again: &repairs,
            replaces: shown.is_some(),
            told: &mut told,
        };
        let updated =
            VolumeImage::update_with(volume, &mut holding.owner, target, work).map_err(|error| {
                if shown.is_some() { replaced_meanwhile(mirror, error) } else { error.into() }
            })?;
        mirror.live.lock().putting = None;
        let took = self.clock.monotonic().saturating_sub(began);
        let last = api::BucketTransfer {
            duration_ms: took.as_millis() as u64,
            regions: updated.regions,
            resumed_regions: updated.resumed,
            sent_bytes: updated.bytes,
            ..last(false)
        };
        self.note_image(mirror, holding, last, &repairs)?;
        // Before the snapshot goes that the device has read from.
        self.move_on(mirror, open, &holding.owner)?;
        if updated.resumed > 0 {
            progress.note(format!(
                "{} region(s) of an interrupted update were there and were not sent again",
                updated.resumed
            ));
        }
        if shown.is_none() {
            self.release(mirror, open, &prefix, Some(target))?;
        }
        Ok(resumes)
    }

    /// The snapshot that the next image is of: that of an interrupted update, which has put
    /// regions, or a new one. Returns whether it is resumed.
    fn target(
        &self,
        mirror: &BucketMirror,
        open: &OpenVolume,
        (prefix, own): (&str, &[(SnapshotEntry, u64)]),
        base: Option<SnapshotId>,
    ) -> Result<(SnapshotId, bool), Failure> {
        let later = own.last().map(|(entry, _)| entry.id).filter(|id| Some(*id) > base);
        // That of an image which the bucket has lost, or which another server replaced, is no
        // interrupted one.
        let image = mirror.document.lock().image;
        let later = later.filter(|id| image.is_none_or(|image| id.0 > image.number));
        let putting = mirror.live.lock().putting;
        // After a start of the server it is unknown whether it has put regions.
        let has_put = |id: &SnapshotId| putting.is_none_or(|(of, has_put)| of == id.0 && has_put);
        if let Some(id) = later.filter(has_put) {
            return Ok((id, true));
        }
        let number = own.last().map_or(0, |(_, number)| *number) + 1;
        let made = open.snapshot_with(|| open.volume.create_snapshot(&format!("{prefix}{number}")))?;
        Ok((made?.id, false))
    }

    /// Records the newest image of the bucket.
    fn note_image(
        &self,
        mirror: &BucketMirror,
        holding: &Holding,
        last: api::BucketTransfer,
        repaired: &BTreeSet<u32>,
    ) -> Result<(), ServerError> {
        let owner = &holding.owner;
        self.change(mirror, |document| {
            document.seen = owner.seen().map(Into::into).or(document.seen);
            document.image = owner.newest().map(Image::from);
            (document.images, document.stored_bytes) = (owner.images().len() as u64, owner.stored());
            if !last.up_to_date {
                document.updates += 1;
                document.sent_bytes += last.sent_bytes;
                document.repairs.retain(|region| !repaired.contains(region));
            }
            document.last = Some(last);
            Ok(())
        })
    }

    /// Releases the snapshots of a mirror but the base of its next update, and the one of the image
    /// that the volume still reads from.
    fn release(
        &self,
        mirror: &BucketMirror,
        open: &OpenVolume,
        prefix: &str,
        base: Option<SnapshotId>,
    ) -> Result<(), VolumeError> {
        let volume = &open.volume;
        let own = own_snapshots(volume, prefix);
        let read = self.reads_image(mirror, open).map(|(_, number)| SnapshotId(number));
        let is_over = |id: &SnapshotId| Some(*id) != base && Some(*id) != read;
        let over: Vec<SnapshotId> = own.iter().map(|(entry, _)| entry.id).filter(is_over).collect();
        if !over.is_empty() {
            tracing::debug!(mirror = mirror.name(), count = over.len(), "releases snapshots");
        }
        let_go(volume, &over)
    }

    /// Expires images, and deletes the objects that no image needs any more.
    fn keep_up(
        &self,
        mirror: &BucketMirror,
        open: &OpenVolume,
        holding: &mut Holding,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let (upkeep, keep) = {
            let document = mirror.document.lock();
            (document.upkeep, document.keeps())
        };
        let cancel = progress.cancel_flag();
        let owner = &mut holding.owner;
        for task in due(&upkeep, self.now_ms()) {
            let now = self.clock.now();
            let objects = match task {
                Task::Expire => {
                    progress.phase("expiring images");
                    let held = self.reads_image(mirror, open).map(|(image, _)| image);
                    let expired = owner.expire_but(held.as_slice(), &keep, now, cancel)?;
                    let swept = owner.sweep(GRACE, now, cancel)?;
                    for error in &swept.unreadable {
                        tracing::warn!(mirror = mirror.name(), %error, "an expired image is unreadable, so its regions stay until a search for orphans");
                    }
                    if !expired.images.is_empty() {
                        tracing::info!(
                            mirror = mirror.name(),
                            count = expired.images.len(),
                            "images expired"
                        );
                    }
                    swept.objects
                }
                Task::Small | Task::All => {
                    progress.phase("deleting objects without an image");
                    let which = if task == Task::All { Orphans::All } else { Orphans::Small };
                    owner.sweep_orphans(which, GRACE, now, cancel)?
                }
            };
            if objects > 0 {
                tracing::info!(mirror = mirror.name(), objects, "deleted objects that no image needs");
            }
            let now_ms = self.now_ms();
            self.change(mirror, |document| {
                document.upkeep.done(task, now_ms);
                document.seen = owner.seen().map(Into::into).or(document.seen);
                document.images = owner.images().len() as u64;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Records the outcome of a round, and plans the next try.
    pub(super) fn note(
        &self,
        mirror: &BucketMirror,
        outcome: Result<(), Failure>,
    ) -> Result<(), ServerError> {
        let failure = match outcome {
            Ok(()) => {
                let others = self.others_of(mirror);
                let mut live = mirror.live.lock();
                (live.problem, live.failures, live.retry_ms) = (None, 0, None);
                live.others = others;
                return Ok(());
            }
            Err(failure) => failure,
        };
        let (is_cancelled, consequence) = (failure.is_cancelled(), failure.consequence());
        let error = self.in_words(mirror, failure);
        if is_cancelled {
            // An earlier problem, if any, remains.
            return Err(error);
        }
        let now_ms = self.now_ms();
        match consequence {
            Consequence::Stop(stopped) => {
                let (name, reason) = (mirror.name(), stopped.message.clone());
                tracing::error!(mirror = name, reason, "the mirror waits for its owner");
                let noted = self.change(mirror, |document| {
                    document.stopped = Some(stopped);
                    Ok(())
                });
                let mut live = mirror.live.lock();
                // Without the note it would try again, with the same outcome.
                live.retry_ms = noted.is_err().then(|| retry_ms(u32::MAX, now_ms));
                live.problem = None;
            }
            Consequence::Retry { .. } => {
                let (is_planned, continuous) = {
                    let document = mirror.document.lock();
                    (document.when.next_ms(now_ms).is_some(), document.when.continuous)
                };
                let mut live = mirror.live.lock();
                live.failures = live.failures.saturating_add(1);
                let retry_ms = match continuous {
                    true => continuous::retry_ms(live.failures, now_ms),
                    false => retry_ms(live.failures, now_ms),
                };
                live.retry_ms = is_planned.then_some(retry_ms);
                live.problem = Some(error.body());
            }
        }
        Err(error)
    }

    /// A failure as an error of the server.
    pub(super) fn in_words(&self, mirror: &BucketMirror, failure: Failure) -> ServerError {
        let name = mirror.name();
        if failure.is_cancelled() {
            return RoleError::Aborted { volume: name }.into();
        }
        if let Consequence::Stop(stopped) = failure.consequence() {
            return BucketMirrorError::Stopped { mirror: name, stopped }.into();
        }
        match failure {
            Failure::Source(error) => mirror.document.lock().place().source_failed(&mirror.volume, error),
            Failure::Server(error) => error,
            Failure::Stopped(_) => ServerError::Bug,
        }
    }
}

/// Sleeps; whether to continue.
fn rests(time: Duration, cancel: &AtomicBool) -> bool {
    std::thread::sleep(time);
    !cancel.load(Ordering::Relaxed)
}
