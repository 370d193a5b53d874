//! Commands on volumes in buckets: the methods of the server for them.

use cairn_api as api;

use super::error::FromBucketError;
use super::opening::{Wanted, find_volume, from_bucket};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;

/// The kind of the job.
const OPENING: &str = "volume open";

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
        let (buckets, volumes, mirrors) = (self.buckets.clone(), self.volumes.clone(), self.mirrors.clone());
        let (clock, drills) = (self.clock.clone(), self.drills.clone());
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
            let wanted = Wanted {
                bucket: &bucket,
                name: &name,
                there,
                image: request.image.as_deref(),
                read_only: request.read_only,
                devices: &request.devices,
                fill_bytes: request.fill_bytes,
            };
            let open = volumes.open_image(&wanted, clock.now(), progress)?;
            mirrors.take_in(&open);
            drills.read(&open.name);
            tracing::info!(volume = name, bucket = bucket.name, "opened a volume from a bucket");
            Ok(Some(api::JobOutcome::Opened(Box::new(open.show()))))
        })
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
        self.backed.as_ref().is_none_or(|backed| backed.device.is_whole())
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
