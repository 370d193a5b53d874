//! Errors of buckets.
//!
//! Each has its kind and the step that comes next. None holds a secret: those of the store name
//! kinds and codes only.

use std::io;
use std::path::PathBuf;

use cairn_api::ErrorKind;
use cairn_api::remedy::io_kind;
use cairn_bucket::images::{ImagesError, SourceError};
use cairn_bucket::seal::InvalidIdentity;
use cairn_bucket::{InvalidPlace, KeyTrouble, StoreError, Trouble};
use cairn_stream::StreamError;

/// An error of buckets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketsError {
    /// The text names no place for a bucket.
    #[error("`{place}` names no bucket: {source}")]
    Place {
        /// As given.
        place: String,
        /// The rule that it breaks.
        source: InvalidPlace,
    },
    /// A file that the bucket needs cannot be read.
    #[error("the server cannot read the {what} file {}: {source}", path.display())]
    File {
        /// "credentials", "certificate" or "key".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A key file has no key.
    #[error("the key file {} cannot be used: {source}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        source: InvalidIdentity,
    },
    /// The text is no public key.
    #[error("`{given}` is no recipient: {source}")]
    Recipient {
        /// As given, unless it is a secret.
        given: String,
        /// The rule that it breaks.
        source: InvalidIdentity,
    },
    /// The place is encrypted, and no key was given.
    #[error("{place} is encrypted")]
    Encrypted {
        /// The bucket.
        name: String,
        /// Its place.
        place: String,
    },
    /// The place has wrapped keys, but not the object that names the key.
    #[error("{place} was encrypted: it has objects, and the object key/bucket is missing")]
    NoKeyMark {
        /// The place.
        place: String,
    },
    /// The place has objects that are not encrypted.
    #[error("{place} has objects that are not encrypted, such as {object}")]
    PlainObjects {
        /// The place.
        place: String,
        /// One of them.
        object: String,
    },
    /// The bucket is encrypted with another key than this server knows.
    #[error("bucket `{name}` has another key ({found}) than before ({known}); another writer replaced it")]
    OtherKey {
        /// The bucket.
        name: String,
        /// The id of the key that this server knows.
        known: String,
        /// The id of the key in the bucket.
        found: String,
    },
    /// A command on keys, and a bucket without encryption.
    #[error("bucket `{name}` is not encrypted")]
    NotEncrypted {
        /// The bucket.
        name: String,
    },
    /// This server could no longer open the bucket.
    #[error("this server opens bucket `{name}` with the key of this recipient")]
    OwnRecipient {
        /// The bucket.
        name: String,
    },
    /// The store failed.
    #[error("bucket `{name}`: {source}")]
    Store {
        /// The bucket.
        name: String,
        /// The cause.
        source: Box<StoreError>,
    },
    /// A probe found that the store is unsafe for every use.
    #[error("bucket `{name}` was not added, because {place} is unsafe for every use: {}", reasons.join("; "))]
    Unsafe {
        /// The bucket.
        name: String,
        /// Its place.
        place: String,
        /// The missing abilities.
        reasons: Vec<String>,
    },
    /// The last probe found that a use is unsafe.
    #[error("bucket `{name}` is unsafe for {what}: {}", reasons.join("; "))]
    NotSafeFor {
        /// The bucket.
        name: String,
        /// The use.
        what: &'static str,
        /// The missing abilities of the store.
        reasons: Vec<String>,
    },
    /// Another bucket has that place.
    #[error("bucket `{other}` has the place {place} already")]
    PlaceTaken {
        /// The place.
        place: String,
        /// The bucket that has it.
        other: String,
    },
    /// The images of a mirrored volume in a bucket, or an update of these.
    #[error("`{place}`: {source}")]
    Images {
        /// The place.
        place: String,
        /// The cause.
        source: Box<SourceError>,
    },
    /// No mirrored volume has that name.
    #[error("there is no mirrored volume {wanted} in the bucket")]
    NoVolume {
        /// As given.
        wanted: String,
        /// The place.
        place: String,
    },
    /// Several mirrored volumes have that name.
    #[error("{place} has several volumes of that name: {}", ids.join(", "))]
    SeveralVolumes {
        /// The place.
        place: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// The volume has no such image.
    #[error("there is no image {wanted}: {why}")]
    NoImage {
        /// As given.
        wanted: String,
        /// Why.
        why: &'static str,
    },
    /// A mirror needs the bucket.
    #[error("bucket `{name}` is needed for the mirror {mirror}")]
    Mirrored {
        /// The bucket.
        name: String,
        /// The mirror.
        mirror: String,
    },
    /// A job uses the bucket.
    #[error("bucket `{name}` is in use: {by}")]
    InUse {
        /// The bucket.
        name: String,
        /// The job.
        by: &'static str,
    },
}

impl BucketsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            BucketsError::Place { .. } => ErrorKind::Usage,
            BucketsError::File { source, .. } => io_kind(source),
            BucketsError::Store { source, .. } => store_kind(source),
            BucketsError::Unsafe { .. } | BucketsError::NotSafeFor { .. } => ErrorKind::Failed,
            BucketsError::KeyFile { .. } | BucketsError::Recipient { .. } => ErrorKind::Usage,
            BucketsError::Encrypted { .. } => ErrorKind::PeerRefused,
            BucketsError::PlainObjects { .. } => ErrorKind::NotEmpty,
            BucketsError::NoKeyMark { .. } | BucketsError::OtherKey { .. } => ErrorKind::Damaged,
            BucketsError::NotEncrypted { .. } => ErrorKind::Usage,
            BucketsError::OwnRecipient { .. } => ErrorKind::Busy,
            BucketsError::PlaceTaken { .. } => ErrorKind::Taken,
            BucketsError::Images { source, .. } => source_kind(source),
            BucketsError::NoVolume { .. } | BucketsError::NoImage { .. } => ErrorKind::NotFound,
            BucketsError::SeveralVolumes { .. } => ErrorKind::Usage,
            BucketsError::InUse { .. } | BucketsError::Mirrored { .. } => ErrorKind::Busy,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            BucketsError::Place { .. } => "correct the place and run the command again".into(),
            BucketsError::File { path, .. } => {
                format!(
                    "check the path; the user that runs the server must be able to read {}",
                    path.display()
                )
            }
            BucketsError::KeyFile { .. } => {
                "name a file that `cairn key create FILE` made; `cairn key show FILE` checks one".into()
            }
            BucketsError::Recipient { .. } => {
                "give the public key that `cairn key show FILE` prints on the other server".into()
            }
            BucketsError::Encrypted { name, place } => {
                format!("give the key file: `cairn bucket add {name} {place} --key FILE`; or choose another prefix")
            }
            BucketsError::NoKeyMark { .. } => {
                "restore key/bucket from a version that the store keeps, or choose another prefix".into()
            }
            BucketsError::PlainObjects { .. } => {
                "choose an empty prefix for the encrypted bucket, or leave --key out".into()
            }
            BucketsError::OtherKey { .. } => {
                "restore the objects below key/ from a version that the store keeps, and find out how they changed".into()
            }
            BucketsError::NotEncrypted { .. } => {
                "add an encrypted bucket at an empty prefix: `cairn bucket add NAME URL --key FILE`".into()
            }
            BucketsError::OwnRecipient { name } => format!(
                "let the server use another key first: `cairn bucket key set {name} FILE`"
            ),
            BucketsError::Store { source, .. } => source.next(),
            BucketsError::Unsafe { .. } => "use another store, or a version of it that does this".into(),
            BucketsError::NotSafeFor { name, .. } => format!(
                "use another store for this; after a change of the store `cairn bucket check {name}` probes it again"
            ),
            BucketsError::PlaceTaken { other, .. } => {
                format!("use bucket `{other}`, or choose another prefix")
            }
            BucketsError::Images { source, .. } => source_next(source),
            BucketsError::NoVolume { place, .. } => {
                format!("list the volumes with `cairn mirror images {place}`")
            }
            BucketsError::SeveralVolumes { place, .. } => {
                format!("name one by its id, such as `{place}ID`")
            }
            BucketsError::NoImage { .. } => "list the images with `cairn mirror images`".into(),
            BucketsError::Mirrored { mirror, .. } => {
                format!("delete the mirror first: `cairn mirror delete {mirror}`")
            }
            BucketsError::InUse { .. } => "wait until that job ends, or cancel it with Ctrl-C".into(),
        }
    }
}

/// The kind of an error of an update.
fn source_kind(error: &SourceError) -> ErrorKind {
    match error {
        SourceError::Images(error) => match error {
            ImagesError::Store(error) => store_kind(error),
            ImagesError::Damaged { .. } | ImagesError::Gone(_) => ErrorKind::Damaged,
            ImagesError::Newer { .. } => ErrorKind::VersionMismatch,
            ImagesError::Replayed { .. } => ErrorKind::Contradicted,
            ImagesError::Fenced { .. } | ImagesError::Taken { .. } => ErrorKind::WrongRole,
            ImagesError::NoImage(_) => ErrorKind::NotFound,
            ImagesError::Base { .. } | ImagesError::NoBlock(_) | ImagesError::Rule(_) => ErrorKind::Failed,
        },
        SourceError::Stream(StreamError::Diverged { .. }) => ErrorKind::Diverged,
        SourceError::Table(_) | SourceError::Unproved => ErrorKind::Damaged,
        SourceError::Stream(_) | SourceError::Volume(_) => ErrorKind::Failed,
    }
}

fn source_next(error: &SourceError) -> String {
    match error {
        SourceError::Images(error) => error.next(),
        SourceError::Stream(StreamError::Diverged { .. }) => {
            "the bucket has another past of this volume: mirror it to another path, such as `BUCKET:other/`"
                .into()
        }
        SourceError::Table(_) => "mirror the volume to another path of the bucket".into(),
        SourceError::Unproved => {
            "find the damaged blocks with `cairn volume scrub`, and repair them; the mirror then continues by itself".into()
        }
        SourceError::Stream(_) | SourceError::Volume(_) => {
            "see the log of the server; `cairn volume check` checks the volume".into()
        }
    }
}

/// The kind of an error of a store.
pub(crate) fn store_kind(error: &StoreError) -> ErrorKind {
    match &error.trouble {
        Trouble::Damaged { .. } | Trouble::Archived => ErrorKind::Damaged,
        Trouble::Newer(_) => ErrorKind::VersionMismatch,
        Trouble::Key(KeyTrouble::NotRecipient) => ErrorKind::PeerRefused,
        Trouble::Key(KeyTrouble::NoRecipient) => ErrorKind::NotFound,
        Trouble::Key(KeyTrouble::LastRecipient) => ErrorKind::Busy,
        Trouble::NoBucket | Trouble::Missing | Trouble::NoUpload => ErrorKind::NotFound,
        Trouble::Credentials(_) | Trouble::Forbidden | Trouble::Clock | Trouble::Certificate => {
            ErrorKind::PeerRefused
        }
        Trouble::Redirect(_) | Trouble::Rule(_) => ErrorKind::Usage,
        Trouble::Quota => ErrorKind::NoSpace,
        Trouble::SlowDown(_) | Trouble::Conflict | Trouble::Locked(_) => ErrorKind::Busy,
        Trouble::Unreachable(_) | Trouble::TimedOut => ErrorKind::PeerUnreachable,
        Trouble::Server { status, .. } if *status >= 500 && *status != 501 => ErrorKind::PeerUnreachable,
        Trouble::Cancelled => ErrorKind::Interrupted,
        Trouble::Io(error) => io_kind(error),
        Trouble::Unsupported(_) | Trouble::Answer(_) | Trouble::Server { .. } => ErrorKind::Failed,
    }
}
