//! The volumes that have images in a bucket, and their newest claims.
//!
//! Objects are below the id of their volume. The name of the volume is only in the label of its
//! claims, as `VOLUME on SERVER`: a person chooses by it, and nothing else depends on it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Rng, Timestamp, VolumeId};

use super::BucketImages;
use super::error::ImagesError;
use crate::limits::PAGE_OBJECTS_MAX;
use crate::name::{Name, Prefix};
use crate::store::{ListFrom, Nonce, Store};
use crate::workers::Workers;

/// Between the names of a volume and of a server in the label of a claim.
const ON: &str = " on ";

/// A claim of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSeen {
    /// The epoch.
    pub epoch: u32,
    /// Random bytes of the claimer.
    pub nonce: Nonce,
    /// When it was made, by the clock of the claimer.
    pub at: Timestamp,
    /// For people: the volume and the server.
    pub label: String,
}

impl ClaimSeen {
    /// The name of the volume at the claimer; empty if the label has none.
    pub fn volume(&self) -> &str {
        self.label.split_once(ON).map_or("", |(volume, _)| volume)
    }
}

/// The label of a claim.
pub fn label_of(volume: &str, server: &str) -> String {
    format!("{volume}{ON}{server}")
}

/// A volume that was claimed in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInBucket {
    /// Which.
    pub id: VolumeId,
    /// Its newest claim.
    pub claim: ClaimSeen,
}

impl VolumeInBucket {
    /// The name of the volume at its owner, if the label has one.
    pub fn name(&self) -> Option<&str> {
        Some(self.claim.volume()).filter(|name| !name.is_empty())
    }
}

/// Finds the volumes that have images in a bucket, in order of their ids; a few requests for each.
/// A volume with an unreadable claim is in the second list.
///
/// # Errors
/// The store failed.
pub fn volumes(
    store: &Arc<dyn Store>,
    workers: &Arc<dyn Workers>,
    cancel: &Arc<AtomicBool>,
) -> Result<(Vec<VolumeInBucket>, Vec<ImagesError>), ImagesError> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for folder in folders(&**store, cancel)? {
        let Ok(id) = folder.parse::<VolumeId>() else { continue };
        // The generator makes no nonce here: nothing is claimed.
        let images = BucketImages::open(store.clone(), workers.clone(), id, None, Rng::new(0));
        match images.newest_claim(cancel) {
            Ok(claim) => found.extend(claim.map(|claim| VolumeInBucket { id, claim })),
            Err(ImagesError::Store(error)) => return Err(error.into()),
            Err(error) => unreadable.push(error),
        }
    }
    Ok((found, unreadable))
}

/// The folders of volumes. A store that lists in order is asked for the first object of each; of
/// another one, such as an encrypted one, all names are listed.
fn folders(store: &dyn Store, cancel: &AtomicBool) -> Result<BTreeSet<String>, ImagesError> {
    let prefix = Prefix::new("images/").map_err(|_| ImagesError::Rule("the prefix of images is wrong"))?;
    let (mut folders, mut from) = (BTreeSet::new(), ListFrom::Start);
    let skips = store.lists_in_order();
    loop {
        let page = store.list(&prefix, &from, if skips { 1 } else { PAGE_OBJECTS_MAX }, cancel)?;
        let mut last = None;
        for listed in &page.objects {
            let folder = listed.name.as_str().split('/').nth(1).unwrap_or_default();
            if folders.insert(folder.to_owned()) {
                last = Some(folder);
            } else if skips {
                return Err(ImagesError::Rule("the listing of the store is not in order of names"));
            }
        }
        from = match (last.filter(|_| skips), page.next) {
            // Past all names of the folder, of which each continues with a letter before `z`.
            (Some(folder), _) => {
                let after = Name::new(format!("images/{folder}/z"));
                ListFrom::After(after.map_err(|_| ImagesError::Rule("the name of a folder is wrong"))?)
            }
            (None, Some(next)) if from != ListFrom::Page(next.clone()) => ListFrom::Page(next),
            (None, _) => return Ok(folders),
        };
    }
}
