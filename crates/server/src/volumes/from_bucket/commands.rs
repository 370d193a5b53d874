//! Commands on volumes in buckets: the methods of the server for them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_api as api;
use cairn_base::VolumeId;
use cairn_bucket::Use;
use cairn_bucket::images::{Owner, volumes};

use super::cache::CacheWish;
use super::creating::NewHome;
use super::error::FromBucketError;
use super::opening::{Wanted, find_volume, from_bucket, images_error};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::bucket::write_home;
use crate::names;
use crate::volumes::Volumes;
use crate::volumes::disks::{blocks_of, new_volume_id};
use crate::volumes::open::OpenVolume;

/// The kind of the job.
const OPENING: &str = "volume open";

/// The beginning of the names of the files of a cache: no other volume has it.
fn cache_name(volume: &str, id: VolumeId) -> String {
    let id = id.to_string();
    format!("{volume}-{}", id.get(..8).unwrap_or(&id))
}

impl Server {
    /// Begins to open a volume from its images in a bucket.
    pub(crate) fn open_from_bucket(
        &self,
        bucket: &str,
        request: &api::OpenFromBucket,
    ) -> Result<api::Job, ServerError> {
        if let Some(name) = &request.name {
            names::check("volume", name)?;
        }
        if !request.read_only
            && let Some(name) = &request.name
        {
            self.volumes.refuse_taken(name)?;
        }
        // A bucket that is not there is refused before there is a job.
        let ready = self.buckets.open_for(bucket, OPENING, &Default::default())?;
        let (buckets, here, mirrors) = (self.buckets.clone(), self.volumes.clone(), self.mirrors.clone());
        if request.cache.is_some() && (request.read_only || !request.devices.is_empty()) {
            return Err(ServerError::Invalid {
                fault: "a cache is for a writable volume without other devices",
                next: "leave out --read-only and --device, or --cache-disk and --cache-size",
            });
        }
        if request.size_bytes.is_some() && request.read_only {
            return Err(ServerError::Invalid {
                fault: "a volume that takes no writes has the size of its image",
                next: "leave out --read-only or --size",
            });
        }
        let blocks = request.size_bytes.map(blocks_of).transpose()?;
        let (clock, drills) = (self.clock.clone(), self.drills.clone());
        let bucket_mirrors = self.bucket_mirrors.clone();
        let (bucket, request) = (bucket.to_owned(), request.clone());
        let subject = request.name.clone().unwrap_or_else(|| request.volume.clone());
        self.jobs.start(OPENING, &subject, move |progress| {
            let bucket = buckets.open_for(&bucket, OPENING, progress.waiting())?;
            drop(ready);
            progress.phase("listing the bucket");
            let there = find_volume(&bucket, &request.volume, progress)?;
            let name = match (&request.name, there.name()) {
                (Some(name), _) => name.clone(),
                (None, Some(name)) => name.to_owned(),
                (None, None) => {
                    return Err(from_bucket(FromBucketError::NoName { volume: there.id.to_string() }));
                }
            };
            let cache = |cache: &api::CacheRequest| CacheWish::of(cache, cache_name(&name, there.id));
            let cache = request.cache.as_ref().map(cache).transpose()?;
            let now_ms = clock.now().0 / 1_000_000;
            let lag_ms = cache.as_ref().map(|cache| cache.lag_ms);
            let beside = |folder: &Path, owner: &Owner| match lag_ms {
                Some(lag_ms) => write_home(folder, &bucket.name, Some(owner), lag_ms, now_ms),
                None => Ok(()),
            };
            let wanted = Wanted {
                bucket: &bucket,
                name: &name,
                there,
                image: request.image.as_deref(),
                read_only: request.read_only,
                devices: &request.devices,
                fill_bytes: request.fill_bytes,
                blocks,
                cache: cache.as_ref(),
                beside: Some(&beside),
            };
            let open = here.open_image(&wanted, clock.now(), progress)?;
            mirrors.take_in(&open);
            bucket_mirrors.take_in(&open);
            drills.read(&open.name);
            tracing::info!(volume = name, bucket = bucket.name, "opened a volume from a bucket");
            Ok(Some(api::JobOutcome::Opened(Box::new(open.show()))))
        })
    }

    /// Makes a volume whose home is a bucket, and begins its first image.
    pub(crate) fn create_in_bucket(
        &self,
        request: &api::CreateVolume,
        bucket: &str,
    ) -> Result<api::Volume, ServerError> {
        let invalid = |fault, next| Err(ServerError::Invalid { fault, next });
        let Some(cache) = &request.cache else {
            return invalid(
                "a volume in a bucket needs a cache",
                "give --cache-size, such as --cache-size 200G",
            );
        };
        let Some(bytes) = request.size_bytes else {
            return invalid("a volume in a bucket needs a size", "give --size, such as --size 20T");
        };
        if !request.devices.is_empty() || request.log_device.is_some() || request.history.is_some() {
            return invalid(
                "a volume in a bucket has a cache, and no other devices and no history",
                "leave out --device, --log-device and --history",
            );
        }
        let blocks = blocks_of(bytes)?;
        let bucket = bucket.strip_suffix(':').unwrap_or(bucket);
        names::check("volume", &request.name)?;
        let open = self.buckets.open_to_read(bucket)?;
        open.refuse_unsafe_for(Use::Volume)?;
        // Another volume of that name could not be distinguished when it is opened elsewhere.
        let cancel = Arc::new(AtomicBool::new(false));
        let (there, _) = volumes(&open.store, &open.workers, &cancel).map_err(images_error(bucket))?;
        if let Some(there) = there.into_iter().find(|there| there.name() == Some(&*request.name)) {
            let (bucket, volume, owner) = (bucket.to_owned(), request.name.clone(), there.claim.label);
            return Err(from_bucket(FromBucketError::NameInUse { bucket, volume, owner }));
        }
        let id = new_volume_id();
        let cache = CacheWish::of(cache, cache_name(&request.name, id))?;
        let now_ms = self.clock.now().0 / 1_000_000;
        let beside = |folder: &Path| write_home(folder, bucket, None, cache.lag_ms, now_ms);
        let name = &request.name;
        let new = NewHome { name, id, blocks, bucket: &open, cache: &cache, beside: &beside };
        let made = self.volumes.create_home(&new)?;
        self.take_in_volume(&made);
        tracing::info!(volume = request.name, bucket, "made a volume in a bucket");
        Ok(made.show())
    }

    /// Refuses while a volume reads blocks from a bucket.
    pub(crate) fn refuse_read_from(&self, bucket: &str) -> Result<(), ServerError> {
        match self.volumes.reads_from(bucket) {
            Some(volume) => Err(from_bucket(FromBucketError::Needed { volume, bucket: bucket.to_owned() })),
            None => Ok(()),
        }
    }
}

impl Volumes {
    /// Refuses a name that a volume has.
    fn refuse_taken(&self, name: &str) -> Result<(), ServerError> {
        match self.entries.read().contains_key(name) {
            true => Err(ServerError::Taken { what: "volume", name: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// A volume that needs a bucket. One that is not open may need it.
    fn reads_from(&self, bucket: &str) -> Option<String> {
        let names: Vec<String> = self.entries.read().keys().cloned().collect();
        names.into_iter().find(|name| {
            let from = self.places(name).and_then(|document| document.from_bucket);
            let needs = || self.get(name).map_or(true, |open| !open.is_local());
            from.is_some_and(|from| from.bucket == bucket) && needs()
        })
    }
}

impl OpenVolume {
    /// Every block of it is on its own devices.
    pub(crate) fn is_local(&self) -> bool {
        self.backed.as_ref().is_none_or(|backed| backed.device.is_whole() && !backed.is_cache())
    }

    /// It shows an image in a bucket and takes no writes.
    pub(crate) fn is_read_only_image(&self) -> bool {
        self.backed.as_ref().is_some_and(|backed| backed.from.read_only)
    }

    /// Refuses changes of a volume that shows an image in a bucket.
    pub(crate) fn refuse_read_only_image(&self) -> Result<(), ServerError> {
        match self.is_read_only_image() {
            true => Err(from_bucket(FromBucketError::ReadOnly { volume: self.name.clone() })),
            false => Ok(()),
        }
    }
}
