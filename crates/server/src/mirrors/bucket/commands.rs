//! Commands on mirrors in buckets: the methods of the server for them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_bucket::Use;
use cairn_bucket::dumps::{Cost, Prices};
use cairn_bucket::images::{ClaimSeen, ImageLoad, REGION_BLOCKS, has_snapshot, monthly, snapshots_of};

use super::document::{BucketMirrorDocument, id_in, limit_of};
use super::error::{BucketMirrorError, Stopped, Why};
use super::working::{has_images, let_go, own_snapshots};
use super::{BucketMirror, BucketMirrors, MIRRORS_MAX};
use crate::buckets::images::ImagesPlace;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::when::When;
use crate::names;
use crate::peers::token::random_bytes;
use crate::volumes::open::OpenVolume;

/// The content of a bucket for a volume that is to be mirrored there.
struct Found {
    claim: Option<ClaimSeen>,
    images: u64,
    /// The mirror that made the newest image, if its snapshot exists here.
    id: Option<u64>,
}

/// The cost of requests and room, with its price.
fn show_cost(cost: Cost) -> api::BucketCost {
    let prices = Prices::default();
    api::BucketCost {
        objects: cost.objects,
        puts: cost.puts,
        gets: cost.gets,
        bytes: cost.bytes,
        dollars_once: cost.once(&prices),
        dollars_monthly: cost.monthly(&prices),
    }
}

impl BucketMirrors {
    /// Looks into the bucket for images of a volume.
    fn find(&self, open: &OpenVolume, place: &ImagesPlace) -> Result<Found, ServerError> {
        let bucket = self.buckets.open_to_read(&place.bucket)?;
        bucket.refuse_unsafe_for(Use::Mirror)?;
        let cancel = Arc::new(AtomicBool::new(false));
        let failed = |error| place.failed(error);
        let images = place.images(&bucket, open.volume.id(), None)?;
        let Some(claim) = images.newest_claim(&cancel).map_err(failed)? else {
            return Ok(Found { claim: None, images: 0, id: None });
        };
        let labels = images.images(&cancel).map_err(failed)?;
        let mut id = None;
        if !labels.is_empty() {
            let reader = images.image(None, &cancel).map_err(failed)?;
            let target = snapshots_of(reader.content()).ok().and_then(|mut entries| entries.pop());
            let is_here = |id: SnapshotId| {
                let entries = open.volume.snapshot_entries();
                entries.iter().any(|entry| entry.id == id && has_snapshot(reader.content(), entry))
            };
            id = target.filter(|target| is_here(target.id)).and_then(|target| id_in(&target.name));
        }
        Ok(Found { claim: Some(claim), images: labels.len() as u64, id })
    }

    /// The volume and the place of a request.
    fn asked(
        &self,
        request: &api::CreateBucketMirror,
    ) -> Result<(Arc<OpenVolume>, ImagesPlace), ServerError> {
        names::check("volume", &request.volume)?;
        let place = ImagesPlace::parse(&request.to)?;
        let open = self.volumes.get(&request.volume)?;
        self.check_known(&request.volume)?;
        if !has_images(&open) {
            return Err(BucketMirrorError::NotASource { volume: request.volume.clone() }.into());
        }
        if open.is_read_only_image() {
            return Err(BucketMirrorError::NotASource { volume: request.volume.clone() }.into());
        }
        let is_there = |mirror: &&Arc<BucketMirror>| {
            let same_id =
                || self.volumes.get(&mirror.volume).is_ok_and(|other| other.volume.id() == open.volume.id());
            mirror.document.lock().place() == place && (mirror.volume == request.volume || same_id())
        };
        if let Some(mirror) = self.all().iter().find(is_there) {
            return Err(BucketMirrorError::Exists { mirror: mirror.name() }.into());
        }
        if self.of_volume(&request.volume).len() >= MIRRORS_MAX {
            return Err(ServerError::Invalid {
                fault: "the volume has 16 mirrors in buckets, and can have no more",
                next: "delete one that is not needed: `cairn mirror list`, `cairn mirror delete`",
            });
        }
        Ok((open, place))
    }

    /// Its snapshots are released, and its state is removed. Nothing runs on it.
    fn remove(&self, mirror: &BucketMirror) -> Result<(), ServerError> {
        let prefix = mirror.document.lock().prefix();
        {
            let _saving = self.saving.lock();
            self.save(&mirror.volume, None, Some(mirror.id))?;
            self.mirrors.lock().remove(&mirror.id);
            mirror.live.lock().retired = true;
        }
        if let Ok(open) = self.volumes.get(&mirror.volume)
            && !open.is_destination()
        {
            let own = own_snapshots(&open.volume, &prefix);
            let ids: Vec<SnapshotId> = own.iter().map(|(entry, _)| entry.id).collect();
            // Whatever stays is shown as left over, and can be forgotten.
            if let Err(error) = let_go(&open.volume, &ids) {
                tracing::warn!(volume = mirror.volume, %error, "snapshots of a deleted mirror stay");
            }
        }
        Ok(())
    }

    fn deleted(&self, mirror: &BucketMirror, deleted_objects: u64) -> api::DeletedBucketMirror {
        let document = mirror.document.lock();
        let images = if deleted_objects > 0 { 0 } else { document.images };
        let place = document.place().to_string();
        drop(document);
        api::DeletedBucketMirror { name: mirror.name(), place, images, deleted_objects }
    }
}

/// The schedule of a request.
fn when_of(request: &api::CreateBucketMirror) -> Result<When, ServerError> {
    if request.continuous {
        let times = request.every_ms.is_some() || request.cron.is_some();
        let when = When::default().changed(None, None, request.zone.as_deref())?;
        return when.continuously(Some(true), times);
    }
    if request.every_ms == Some(0) {
        return Err(ServerError::Invalid {
            fault: "the interval is 0",
            next: "give an interval such as 15m",
        });
    }
    When::default().changed(request.every_ms, request.cron.as_deref(), request.zone.as_deref())
}

impl Server {
    /// The mirrors of this server in buckets.
    pub(crate) fn list_bucket_mirrors(&self) -> Vec<api::BucketMirror> {
        self.bucket_mirrors.list()
    }

    /// One of them.
    pub(crate) fn show_bucket_mirror(&self, id: &str) -> Result<api::BucketMirror, ServerError> {
        Ok(self.bucket_mirrors.show(&*self.bucket_mirrors.get(id)?))
    }

    /// Makes a mirror, and begins its first image.
    pub(crate) fn create_bucket_mirror(
        &self,
        request: &api::CreateBucketMirror,
    ) -> Result<api::Job, ServerError> {
        let mirrors = &self.bucket_mirrors;
        let (open, place) = mirrors.asked(request)?;
        let when = when_of(request)?;
        let limit = request.limit.as_deref().map(limit_of).transpose()?.flatten();
        let found = mirrors.find(&open, &place)?;
        if let Some(claim) = &found.claim
            && found.images > 0
            && !request.take_over
        {
            let (place, owner) = (place.to_string(), claim.label.clone());
            return Err(BucketMirrorError::Owned { place, owner }.into());
        }
        let now_ms = mirrors.now_ms();
        let is_free = |id: &u64| !mirrors.mirrors.lock().contains_key(id);
        let id = found.id.filter(is_free).unwrap_or_else(|| u64::from_le_bytes(random_bytes()));
        let mut document = BucketMirrorDocument::new(id, &place, now_ms);
        document.when = when;
        document.rpo_ms = request.rpo_ms.filter(|rpo| *rpo > 0);
        document.keep = request.keep.unwrap_or(document.keep);
        document.limit = limit;
        document.takes_over = found.claim.is_some();
        let mirror = Arc::new(BucketMirror::new(&request.volume, document.clone(), now_ms));
        {
            let _saving = mirrors.saving.lock();
            // Another request may have made it meanwhile.
            mirrors.asked(request)?;
            mirrors.save(&request.volume, Some(&document), None)?;
            // The schedule does not begin it before this command does.
            mirror.live.lock().next_ms = None;
            mirrors.mirrors.lock().insert(id, mirror.clone());
        }
        tracing::info!(mirror = mirror.name(), "made a mirror in a bucket");
        let begun = mirrors.begin(&mirror, "mirror create");
        if begun.is_err() {
            mirror.live.lock().next_ms = document.when.next_ms(now_ms);
        }
        begun
    }

    /// The cost of a mirror that would be made.
    pub(crate) fn plan_bucket_mirror(
        &self,
        request: &api::CreateBucketMirror,
    ) -> Result<api::BucketMirrorPlan, ServerError> {
        let (open, place) = self.bucket_mirrors.asked(request)?;
        let when = when_of(request)?;
        let found = self.bucket_mirrors.find(&open, &place)?;
        let used = open.volume.status().used;
        let data_bytes = used * BLOCK_SIZE as u64;
        // Live blocks may be spread over as many regions as there are.
        let regions = open.volume.space_blocks().div_ceil(REGION_BLOCKS as u64).min(used.max(1));
        let first = Cost { objects: regions + 3, puts: regions + 3, gets: 5, bytes: data_bytes };
        let keep = request.keep.unwrap_or(super::document::KEEP);
        let kept = [keep.last, keep.hourly, keep.daily, keep.weekly, keep.monthly, keep.yearly];
        let load = ImageLoad {
            every_seconds: match when.continuous {
                // At most, while the volume changes all the time.
                true => request.rpo_ms.map_or(1, |lag| (lag / 2000).max(1)),
                false => when.every_ms.map_or(86_400, |every| (every / 1000).max(1)),
            },
            changed_bytes: 0,
            changed_regions: 0,
            put_bytes: 0,
            stored_bytes: data_bytes,
            kept: kept.iter().map(|count| u64::from(*count)).sum(),
            expire_seconds: 3600,
        };
        let month = monthly(&load, cairn_bucket::images::Tuning::default().since_max);
        Ok(api::BucketMirrorPlan {
            name: format!("{place}{}", request.volume),
            images: found.images,
            owner: found.claim.map(|claim| claim.label),
            data_bytes,
            first: show_cost(first),
            month: show_cost(month),
        })
    }

    /// The cost of an update now, at most.
    pub(crate) fn price_bucket_update(&self, id: &str) -> Result<api::BucketMirrorPlan, ServerError> {
        let mirrors = &self.bucket_mirrors;
        let mirror = mirrors.get(id)?;
        let open = self.volumes.get(&mirror.volume)?;
        let (image, prefix, images) = {
            let document = mirror.document.lock();
            (document.image, document.prefix(), document.images)
        };
        let own = match open.is_destination() {
            true => open.volume.snapshots().into_iter().map(|snapshot| snapshot.id).collect(),
            false => own_snapshots(&open.volume, &prefix).into_iter().map(|(entry, _)| entry.id).collect(),
        };
        let own: Vec<SnapshotId> = own;
        let base = own.into_iter().rev().find(|id| image.is_some_and(|image| image.number == id.0));
        let changed = match base {
            Some(base) => {
                let behind = open.volume.changed_since_snapshot(base);
                behind.map_err(ServerError::volume(&mirror.volume))?.blocks
            }
            None => open.volume.status().used,
        };
        let regions = open.volume.space_blocks().div_ceil(REGION_BLOCKS as u64).min(changed);
        let bytes = regions * (REGION_BLOCKS * BLOCK_SIZE) as u64;
        let first = match changed {
            0 => Cost::default(),
            _ => Cost { objects: regions + 1, puts: regions + 1, gets: 2, bytes },
        };
        Ok(api::BucketMirrorPlan {
            name: mirror.name(),
            images,
            owner: None,
            data_bytes: changed * BLOCK_SIZE as u64,
            first: show_cost(first),
            month: show_cost(Cost::default()),
        })
    }

    /// Begins an update now.
    pub(crate) fn update_bucket_mirror(&self, id: &str) -> Result<api::Job, ServerError> {
        let mirror = self.bucket_mirrors.get(id)?;
        {
            let document = mirror.document.lock();
            let name = || format!("{}{}", document.place(), mirror.volume);
            if let Some(stopped) = &document.stopped {
                let stopped = stopped.clone();
                return Err(BucketMirrorError::Stopped { mirror: name(), stopped }.into());
            }
            if document.paused {
                return Err(BucketMirrorError::Paused { mirror: name() }.into());
            }
        }
        mirror.live.lock().looks = true;
        self.bucket_mirrors.begin(&mirror, "mirror update")
    }

    /// Changes a mirror.
    pub(crate) fn set_bucket_mirror(
        &self,
        id: &str,
        set: &api::SetBucketMirror,
    ) -> Result<api::BucketMirror, ServerError> {
        let mirrors = &self.bucket_mirrors;
        let mirror = mirrors.get(id)?;
        let name = mirror.name();
        let decides = set.take_over || set.accept_older;
        if set.paused == Some(true) || decides {
            // The round that it waits for may not begin again before the change is saved: that
            // round ends by itself.
            mirror.settle()?;
        }
        let (resumed, replanned) = mirrors.change(&mirror, |document| {
            let before = (document.paused, document.when.clone());
            let (cron, zone) = (set.cron.as_deref(), set.zone.as_deref());
            let times = set.every_ms.is_some_and(|every| every > 0) || cron.is_some_and(|cron| cron != "off");
            let when = document.when.changed(set.every_ms, cron, zone)?;
            document.when = when.continuously(set.continuous, times)?;
            document.rpo_ms = set.rpo_ms.map_or(document.rpo_ms, |rpo| Some(rpo).filter(|rpo| *rpo > 0));
            document.keep = set.keep.unwrap_or(document.keep);
            if let Some(limit) = &set.limit {
                document.limit = limit_of(limit)?;
            }
            document.paused = set.paused.unwrap_or(document.paused);
            if decides {
                decide(document, set);
            } else if set.paused == Some(false)
                && let Some(stopped) = document.stopped.take()
            {
                refuse_undecided(&name, stopped)?;
            }
            let resumed = (before.0 || decides || set.paused == Some(false)) && !document.paused;
            Ok((resumed, document.when != before.1))
        })?;
        if decides {
            *mirror.holding.lock() = None;
        }
        let now_ms = mirrors.now_ms();
        mirror.set_pace(now_ms);
        {
            let next_ms = mirror.document.lock().when.next_ms(now_ms);
            let mut live = mirror.live.lock();
            if resumed {
                (live.failures, live.retry_ms, live.problem) = (0, None, None);
                live.next_ms = next_ms.map(|_| now_ms);
            } else if replanned {
                live.next_ms = next_ms;
            }
        }
        if set.paused == Some(true) {
            // One that began before the change was saved.
            mirror.settle()?;
        }
        mirrors.look();
        Ok(mirrors.show(&mirror))
    }

    /// Cancels a running update, and answers at its end.
    pub(crate) fn abort_bucket_mirror(&self, id: &str) -> Result<api::Aborted, ServerError> {
        let mirror = self.bucket_mirrors.get(id)?;
        let was_running = mirror.live.lock().running;
        mirror.settle()?;
        Ok(api::Aborted { name: mirror.name(), was_running, kept_bytes: 0 })
    }

    /// Begins to read the newest image.
    pub(crate) fn verify_bucket_mirror(&self, id: &str) -> Result<api::Job, ServerError> {
        let mirror = self.bucket_mirrors.get(id)?;
        self.bucket_mirrors.start(&mirror, "mirror verify", |mirrors, mirror, open, progress| {
            let read = mirrors.read_all(mirror, open, progress);
            let verified = read.map_err(|failure| mirrors.in_words(mirror, failure))?;
            Ok(Some(api::JobOutcome::BucketVerify(Box::new(verified))))
        })
    }

    /// Deletes a mirror. Its images stay in the bucket.
    pub(crate) fn delete_bucket_mirror(&self, id: &str) -> Result<api::DeletedBucketMirror, ServerError> {
        let mirrors = &self.bucket_mirrors;
        let mirror = mirrors.get(id)?;
        mirrors.refuse_home(&mirror)?;
        {
            let mut live = mirror.live.lock();
            live.retired = true;
        }
        let removed = mirror.settle().and_then(|()| mirrors.remove(&mirror));
        if removed.is_err() {
            mirror.live.lock().retired = false;
        }
        removed?;
        *mirror.holding.lock() = None;
        tracing::info!(mirror = mirror.name(), "deleted a mirror; its images stay in the bucket");
        Ok(mirrors.deleted(&mirror, 0))
    }

    /// Begins to delete the images of a mirror, and then the mirror.
    pub(crate) fn purge_bucket_mirror(&self, id: &str) -> Result<api::Job, ServerError> {
        let mirror = self.bucket_mirrors.get(id)?;
        self.bucket_mirrors.refuse_home(&mirror)?;
        mirror.settle()?;
        self.bucket_mirrors.start(&mirror, "mirror purge", |mirrors, mirror, open, progress| {
            let held = mirror.holding.lock().take();
            let claimed = held.map_or_else(|| mirrors.claim(mirror, open, progress), Ok);
            let purged = claimed.and_then(|holding| {
                progress.phase("deleting the images");
                let mut told = |done, of| progress.bytes(done, of);
                Ok(holding.owner.purge(&mut told, progress.cancel_flag())?)
            });
            let purged = purged.map_err(|failure| mirrors.in_words(mirror, failure))?;
            mirrors.remove(mirror)?;
            tracing::info!(mirror = mirror.name(), objects = purged, "deleted a mirror and its images");
            Ok(Some(api::JobOutcome::BucketMirrorDeleted(mirrors.deleted(mirror, purged.max(1)))))
        })
    }
}

/// The owner has decided how a stopped mirror continues.
fn decide(document: &mut BucketMirrorDocument, set: &api::SetBucketMirror) {
    document.takes_over = true;
    document.stopped = None;
    document.paused = set.paused.unwrap_or(false);
    if set.accept_older {
        (document.seen, document.owned) = (None, None);
        document.claims.clear();
    }
}

/// A mirror that another server or an older bucket has stopped needs more than a resume.
fn refuse_undecided(mirror: &str, stopped: Stopped) -> Result<(), ServerError> {
    match stopped.why {
        Why::Fenced | Why::Replayed => {
            let mirror = mirror.to_owned();
            Err(BucketMirrorError::Stopped { mirror, stopped }.into())
        }
        Why::Damaged | Why::Newer | Why::Diverged => Ok(()),
    }
}
