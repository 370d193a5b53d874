//! Errors of mirrors in buckets. Each has its kind and the step that comes next.

use cairn_api::ErrorKind;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketMirrorError {
    /// A volume can't be deleted before its mirrors.
    #[error("`{volume}` is mirrored to {mirror}")]
    VolumeMirrored {
        /// The volume.
        volume: String,
        /// The mirror.
        mirror: String,
    },
    /// A snapshot that the next update needs.
    #[error("`{name}` is held for the mirror {mirror} as the base of its next update")]
    HeldFor {
        /// The snapshot.
        name: String,
        /// The mirror.
        mirror: String,
    },
    /// The mirror exists.
    #[error("the mirror {mirror} already exists")]
    Exists {
        /// The mirror.
        mirror: String,
    },
    /// The bucket has images of the volume by another server.
    #[error("{place} has images of this volume, made by {owner}")]
    Owned {
        /// The place.
        place: String,
        /// `VOLUME on SERVER`.
        owner: String,
    },
    /// The mirror makes no images.
    #[error("the mirror {mirror} is paused")]
    Paused {
        /// The mirror.
        mirror: String,
    },
    /// The volume shows no image that it received, and takes no writes.
    #[error("`{volume}` takes no writes, and shows no image of its source: there is nothing to mirror")]
    NotASource {
        /// The volume.
        volume: String,
    },
    /// The mirror waits for a decision.
    #[error("{}", .stopped.message)]
    Stopped {
        /// The mirror.
        mirror: String,
        /// Why.
        stopped: Stopped,
    },
}

/// Why a mirror waits for its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Another server took the images over.
    Fenced,
    /// The bucket shows an older state.
    Replayed,
    /// An object is damaged or missing.
    Damaged,
    /// A newer program wrote the images.
    Newer,
    /// The bucket has other snapshots under the same numbers.
    Diverged,
}

/// A mirror that waits for its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// The cause.
    pub why: Why,
    /// For people.
    pub message: String,
}

/// The next step for a mirror that waits for its owner.
pub(super) fn next_of(why: Why, mirror: &str) -> String {
    match why {
        Why::Fenced => format!(
            "delete this mirror with `cairn mirror delete {mirror}`; or, if this server is to continue the images, run `cairn mirror resume {mirror} --take-over`, and the other one stops"
        ),
        Why::Replayed => format!(
            "find out why the store shows an older state; if that is intended, `cairn mirror resume {mirror} --accept-older` continues from it"
        ),
        Why::Damaged => format!(
            "restore the object from a version that the store keeps, then run `cairn mirror resume {mirror}`; or mirror the volume to another path, and delete this mirror"
        ),
        Why::Newer => format!(
            "use a newer cairn, then run `cairn mirror resume {mirror}`; or mirror the volume to another path, and delete this mirror"
        ),
        Why::Diverged => format!(
            "the bucket has another past of this volume: mirror it to another path, and delete this mirror with `cairn mirror delete {mirror}`"
        ),
    }
}

impl BucketMirrorError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            BucketMirrorError::VolumeMirrored { .. }
            | BucketMirrorError::HeldFor { .. }
            | BucketMirrorError::Paused { .. } => ErrorKind::Busy,
            BucketMirrorError::Exists { .. } => ErrorKind::Taken,
            BucketMirrorError::Owned { .. } | BucketMirrorError::NotASource { .. } => ErrorKind::WrongRole,
            BucketMirrorError::Stopped { stopped, .. } => match stopped.why {
                Why::Fenced => ErrorKind::WrongRole,
                Why::Replayed => ErrorKind::Contradicted,
                Why::Damaged => ErrorKind::Damaged,
                Why::Newer => ErrorKind::VersionMismatch,
                Why::Diverged => ErrorKind::Diverged,
            },
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            BucketMirrorError::VolumeMirrored { mirror, .. } => {
                format!("delete the mirror first: `cairn mirror delete {mirror}`; its images stay in the bucket")
            }
            BucketMirrorError::HeldFor { mirror, .. } => {
                format!("the next update of {mirror} releases it; `cairn mirror delete {mirror}` does, too")
            }
            BucketMirrorError::Exists { mirror } => {
                format!("change it with `cairn mirror set {mirror}`, or choose another path")
            }
            BucketMirrorError::Owned { .. } => {
                "run the command with --take-over if this server is to continue these images, and the other one stops; or choose another path, such as `BUCKET:other/`".into()
            }
            BucketMirrorError::Paused { mirror } => format!("resume it with `cairn mirror resume {mirror}`"),
            BucketMirrorError::NotASource { .. } => {
                "mirror it on the server of its source, or once an image of its source is here".into()
            }
            BucketMirrorError::Stopped { mirror, stopped } => next_of(stopped.why, mirror),
        }
    }
}
