//! The volumes that a bucket has images of.

use std::sync::atomic::AtomicBool;

use cairn_base::VolumeId;

use super::error::ImagesError;
use super::load::claim_label;
use super::names;
use crate::name::{Name, Prefix};
use crate::store::{ListFrom, Store};

/// More volumes in one bucket are not listed.
const VOLUMES_MAX: usize = 10_000;

/// Between the name of a volume and that of its server, in a label.
const ON: &str = " on ";

/// A volume in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeThere {
    /// Its id.
    pub id: VolumeId,
    /// The newest claim.
    pub epoch: u32,
    /// The label of that claim, `VOLUME on SERVER` by convention.
    pub label: String,
}

impl VolumeThere {
    /// The name of the volume at its owner, if the label has one.
    pub fn name(&self) -> Option<&str> {
        self.label.split_once(ON).map(|(name, _)| name).filter(|name| !name.is_empty())
    }

    /// The label of a claim of a volume by a server.
    pub fn label_of(volume: &str, server: &str) -> String {
        format!("{volume}{ON}{server}")
    }
}

/// The volumes in a store, in order of their ids. A late listing may lack a new one.
///
/// # Errors
/// The store failed, or a claim is damaged.
pub fn volumes_in(store: &dyn Store, cancel: &AtomicBool) -> Result<Vec<VolumeThere>, ImagesError> {
    let wrong = |_| ImagesError::Rule("the prefix of images is wrong");
    let prefix = Prefix::new("images/").map_err(wrong)?;
    let (mut from, mut found) = (ListFrom::Start, Vec::new());
    while found.len() < VOLUMES_MAX {
        let page = store.list(&prefix, &from, 1, cancel)?;
        let Some(listed) = page.objects.first() else {
            // A page may be empty.
            match page.next {
                Some(next) => from = ListFrom::Page(next),
                None => break,
            }
            continue;
        };
        let text = listed.name.as_str().split('/').nth(1).unwrap_or_default().to_owned();
        // Past every object of this volume: no folder begins with this letter.
        let past = Name::new(format!("images/{text}/zz"));
        let past = past.map_err(|_| ImagesError::Rule("the name of an object of an image is wrong"))?;
        from = ListFrom::After(past);
        let Ok(id) = text.parse::<VolumeId>() else { continue };
        if let Some((epoch, label)) = newest_claim(store, id, cancel)? {
            found.push(VolumeThere { id, epoch, label });
        }
    }
    Ok(found)
}

fn newest_claim(
    store: &dyn Store,
    id: VolumeId,
    cancel: &AtomicBool,
) -> Result<Option<(u32, String)>, ImagesError> {
    let prefix = names::prefix(id, names::Folder::Epoch)?;
    let page = store.list(&prefix, &ListFrom::Start, 1, cancel)?;
    let Some(epoch) = page.objects.first().and_then(|listed| names::parse_epoch(&listed.name)) else {
        return Ok(None);
    };
    Ok(Some((epoch, claim_label(store, id, epoch, cancel)?)))
}
