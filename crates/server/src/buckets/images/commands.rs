//! The list of mirrored volumes in a bucket: the method of the server for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_api as api;
use cairn_base::BLOCK_SIZE;
use cairn_bucket::images::{ImageLabel, ImagesError};

use crate::buckets::images::WantedVolume;
use crate::buckets::store_error;
use crate::daemon::server::Server;
use crate::error::ServerError;

impl Server {
    /// The mirrored volumes in a bucket, with their images.
    pub(crate) fn bucket_images(
        &self,
        bucket: &str,
        query: &api::BucketImagesQuery,
    ) -> Result<api::BucketImages, ServerError> {
        let wanted = WantedVolume::of(bucket, query.of.as_deref().unwrap_or_default())?;
        let open = self.buckets.open_to_read(bucket)?;
        let cancel = Arc::new(AtomicBool::new(false));
        let (found, unreadable) = wanted.all(&open, &cancel)?;
        if found.is_empty() && unreadable.is_empty() && wanted.volume.is_some() {
            wanted.one(&open, &cancel)?;
        }
        let mut shown = api::BucketImages {
            unreadable: unreadable.iter().map(ToString::to_string).collect(),
            ..api::BucketImages::default()
        };
        for one in found {
            let images = wanted.place.images(&open, one.id, None)?;
            let read = images.images(&cancel).and_then(|labels| Ok((labels, images.newest_bytes(&cancel)?)));
            let (labels, stored_bytes) = match read {
                Ok(read) => read,
                Err(ImagesError::Store(error)) => return Err(store_error(bucket, error)),
                Err(error) => {
                    shown.unreadable.push(format!("{}: {error}", one.id));
                    continue;
                }
            };
            shown.volumes.push(api::BucketVolume {
                volume: one.claim.volume().to_owned(),
                volume_id: one.id.to_string(),
                owner: one.claim.label,
                epoch: one.claim.epoch,
                claimed_ms: one.claim.at.0 / 1_000_000,
                stored_bytes,
                images: labels.iter().map(show_image).collect(),
            });
        }
        Ok(shown)
    }
}

fn show_image(label: &ImageLabel) -> api::BucketImage {
    api::BucketImage {
        id: label.id.to_string(),
        number: label.number,
        taken_ms: label.taken.0 / 1_000_000,
        size_bytes: label.blocks * BLOCK_SIZE as u64,
    }
}
