//! The content of `bucket-mirrors.json`: the mirrors of a volume in buckets, and the state that
//! they must not forget.
//!
//! The bucket has all data. The document has the knowledge that a bucket cannot have: which claims
//! are this server's own, and the newest root that this server has seen.

use std::collections::BTreeSet;

use cairn_api as api;
use cairn_base::{Checksum, Timestamp};
use cairn_bucket::Nonce;
use cairn_bucket::dumps::KeepDumps;
use cairn_bucket::images::{ImageId, ImageLabel, Seen};
use serde::{Deserialize, Serialize};

use crate::buckets::images::ImagesPlace;
use crate::error::ServerError;
use crate::mirrors::bucket::error::Stopped;
use crate::mirrors::limits::Limits;
use crate::mirrors::when::When;

/// The images that stay without a rule of the owner.
pub(super) const KEEP: api::Keep =
    api::Keep { last: 0, hourly: 24, daily: 30, weekly: 0, monthly: 12, yearly: 0 };

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct BucketMirrorsDocument {
    pub(super) mirrors: Vec<BucketMirrorDocument>,
}

/// One mirror.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BucketMirrorDocument {
    /// Part of the names of its snapshots. A server that continues the images of another one keeps
    /// the number.
    pub(super) id: u64,
    pub(super) bucket: String,
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) when: When,
    pub(super) rpo_ms: Option<u64>,
    pub(super) keep: api::Keep,
    /// [`Limits`] as text; none for no limit.
    pub(super) limit: Option<String>,
    pub(super) paused: bool,
    /// The newest epoch that this server owned.
    pub(super) owned: Option<u32>,
    /// Its claims since, with any outcome.
    pub(super) claims: Vec<Claim>,
    /// The owner permits a claim after that of another server.
    pub(super) takes_over: bool,
    pub(super) seen: Option<SeenRoot>,
    /// The newest image.
    pub(super) image: Option<Image>,
    /// Images in the bucket.
    pub(super) images: u64,
    /// Bytes of the objects of the newest image.
    pub(super) stored_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) updates: u64,
    pub(super) last: Option<api::BucketTransfer>,
    /// Why it makes no images until its owner decides.
    pub(super) stopped: Option<Stopped>,
    /// Regions with a damaged object.
    pub(super) repairs: BTreeSet<u32>,
    pub(super) verified: Option<api::BucketVerify>,
    pub(super) upkeep: Upkeep,
    /// When it was made, in milliseconds since 1970. Mirrors of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) created_ms: Option<u64>,
}

/// A claim that this server made or tried to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) epoch: u32,
    pub(super) nonce: Nonce,
}

/// A [`Seen`] as it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenRoot {
    epoch: u32,
    seq: u32,
    digest: [u8; 16],
}

impl From<Seen> for SeenRoot {
    fn from(seen: Seen) -> Self {
        Self { epoch: seen.epoch, seq: seen.seq, digest: seen.digest.0 }
    }
}

impl From<SeenRoot> for Seen {
    fn from(seen: SeenRoot) -> Self {
        Self { epoch: seen.epoch, seq: seen.seq, digest: Checksum(seen.digest) }
    }
}

/// The newest image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Image {
    pub(super) id: [u8; 16],
    /// The id of its snapshot.
    pub(super) number: u64,
    pub(super) taken_ns: u64,
}

impl From<ImageLabel> for Image {
    fn from(label: ImageLabel) -> Self {
        Self { id: label.id.0, number: label.number, taken_ns: label.taken.0 }
    }
}

impl Image {
    pub(super) fn id(&self) -> ImageId {
        ImageId(self.id)
    }

    pub(super) fn taken(&self) -> Timestamp {
        Timestamp(self.taken_ns)
    }
}

/// When each kind of upkeep was last done, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Upkeep {
    pub(super) expired_ms: u64,
    pub(super) small_ms: u64,
    pub(super) all_ms: u64,
}

impl BucketMirrorDocument {
    /// A new one.
    pub(super) fn new(id: u64, place: &ImagesPlace, now_ms: u64) -> Self {
        Self {
            id,
            bucket: place.bucket.clone(),
            path: place.path.clone(),
            when: When::default(),
            rpo_ms: None,
            keep: KEEP,
            limit: None,
            paused: false,
            owned: None,
            claims: Vec::new(),
            takes_over: false,
            seen: None,
            image: None,
            images: 0,
            stored_bytes: 0,
            sent_bytes: 0,
            updates: 0,
            last: None,
            stopped: None,
            repairs: BTreeSet::new(),
            verified: None,
            // A new bucket has no orphans.
            upkeep: Upkeep { expired_ms: now_ms, small_ms: now_ms, all_ms: now_ms },
            created_ms: Some(now_ms),
        }
    }

    pub(super) fn place(&self) -> ImagesPlace {
        ImagesPlace { bucket: self.bucket.clone(), path: self.path.clone() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limit.as_deref().and_then(|limit| limit.parse().ok()).unwrap_or_default()
    }

    pub(super) fn keeps(&self) -> KeepDumps {
        let api::Keep { last, hourly, daily, weekly, monthly, yearly } = self.keep;
        KeepDumps { last, hourly, daily, weekly, monthly, yearly }
    }

    /// How the names of its snapshots begin.
    pub(super) fn prefix(&self) -> String {
        prefix_of(self.id)
    }
}

/// How the names of a mirror's snapshots begin.
pub(super) fn prefix_of(id: u64) -> String {
    format!("{}{id:016x}.", super::PREFIX)
}

/// The mirror that made a snapshot, by the name of the snapshot.
pub(super) fn id_in(name: &str) -> Option<u64> {
    let (id, number) = name.strip_prefix(super::PREFIX)?.split_once('.')?;
    number.parse::<u64>().ok()?;
    (id.len() == 16).then(|| u64::from_str_radix(id, 16).ok()).flatten()
}

/// A limit as it is kept.
pub(super) fn limit_of(text: &str) -> Result<Option<String>, ServerError> {
    let limits: Limits = text.parse()?;
    Ok((!limits.is_off()).then(|| limits.to_string()))
}
