//! The mirror of a volume whose home is a bucket. It is written with the volume, so that no kill
//! leaves one without the other.

use std::path::Path;

use cairn_bucket::images::{Owner, snapshots_of};

use super::FILE;
use super::document::{BucketMirrorDocument, BucketMirrorsDocument, Claim, Image, id_in};
use crate::buckets::images::ImagesPlace;
use crate::error::ServerError;
use crate::mirrors::when::When;
use crate::peers::token::random_bytes;
use crate::state;

/// Writes the mirror of a new volume into the folder of that. `owner` has claimed the images of an
/// opened one.
pub(crate) fn write_home(
    folder: &Path,
    bucket: &str,
    owner: Option<&Owner>,
    lag_ms: u64,
    now_ms: u64,
) -> Result<(), ServerError> {
    let place = ImagesPlace::new(bucket, "")?;
    let newest = owner.and_then(|owner| snapshots_of(owner.newest_content()).ok()?.pop());
    // It continues the snapshots of the mirror that made the newest image.
    let id = newest.and_then(|newest| id_in(&newest.name));
    let id = id.unwrap_or_else(|| u64::from_le_bytes(random_bytes()));
    let mut document = BucketMirrorDocument::new(id, &place, now_ms);
    document.when = When { continuous: true, ..When::default() };
    document.rpo_ms = Some(lag_ms);
    if let Some(owner) = owner {
        document.owned = Some(owner.epoch());
        document.claims = vec![Claim { epoch: owner.epoch(), nonce: owner.nonce() }];
        document.seen = owner.seen().map(Into::into);
        document.image = owner.newest().map(Image::from);
        (document.images, document.stored_bytes) = (owner.images().len() as u64, owner.stored());
    }
    state::save(&folder.join(FILE), &BucketMirrorsDocument { mirrors: vec![document] })
}
