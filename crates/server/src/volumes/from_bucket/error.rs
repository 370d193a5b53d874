//! Errors of volumes that are opened from a bucket.

use std::path::PathBuf;

use cairn_api::ErrorKind;
use cairn_base::ByteSize;
use cairn_bucket::backed::BackedError;
use cairn_bucket::images::ImagesError;

use crate::buckets::error::store_kind;

/// Why a volume was not opened from a bucket, or a block of it cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FromBucketError {
    /// The bucket has no volume of that name.
    #[error("bucket `{bucket}` has no images of a volume `{volume}`")]
    NoVolume {
        /// The bucket.
        bucket: String,
        /// As given.
        volume: String,
        /// The volumes that are there.
        there: Vec<String>,
    },
    /// The name fits several volumes.
    #[error("`{volume}` names several volumes in bucket `{bucket}`")]
    SeveralVolumes {
        /// The bucket.
        bucket: String,
        /// As given.
        volume: String,
        /// Their ids.
        there: Vec<String>,
    },
    /// The volume has no image like that.
    #[error("`{volume}` has no image `{image}` in bucket `{bucket}`")]
    NoImage {
        /// The bucket.
        bucket: String,
        /// The volume.
        volume: String,
        /// As given; "newest" without one.
        image: String,
        /// The images that are there.
        there: Vec<String>,
    },
    /// A writable volume continues from the newest image.
    #[error(
        "image {image} of `{volume}` is not the newest one, and a writable volume continues from the newest"
    )]
    NotNewest {
        /// The volume.
        volume: String,
        /// The image.
        image: String,
    },
    /// The volume is open here.
    #[error("volume `{name}` of this server is the volume `{volume}` of the bucket")]
    Here {
        /// The volume of the bucket.
        volume: String,
        /// Its name here.
        name: String,
    },
    /// The devices are too short for the volume.
    #[error("the volume needs {} of device, and there are {}", ByteSize(*need), ByteSize(*have))]
    DevicesTooSmall {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// A volume cannot shrink.
    #[error("`{volume}` has {}, and cannot shrink to {}", ByteSize(*has), ByteSize(*size))]
    Shrinks {
        /// The volume.
        volume: String,
        /// As given, in bytes.
        size: u64,
        /// Bytes.
        has: u64,
    },
    /// The cache is too small.
    #[error("a cache of {} is too small", ByteSize(*bytes))]
    CacheTooSmall {
        /// As given.
        bytes: u64,
        /// The smallest one.
        least: u64,
    },
    /// A cache is in a folder.
    #[error("the cache disk {} is no folder", path.display())]
    NotAFolder {
        /// As given.
        path: PathBuf,
    },
    /// The disk of the cache has no room for it.
    #[error("the file system of {} has {} free, and the cache may take {}", path.display(), ByteSize(*free), ByteSize(*bytes))]
    CacheDiskFull {
        /// The folder.
        path: PathBuf,
        /// Bytes.
        bytes: u64,
        /// Bytes.
        free: u64,
    },
    /// Blocks could not be evicted.
    #[error("the file system of {} cannot punch holes into files, so nothing could be evicted", path.display())]
    NoHoles {
        /// The folder.
        path: PathBuf,
    },
    /// The files of the cache are those of another volume.
    #[error("the cache of `{volume}` has the blocks of another volume, {found}")]
    OtherCache {
        /// The volume.
        volume: String,
        /// The id that was found.
        found: String,
    },
    /// The bucket has images of a volume with that name.
    #[error("bucket `{bucket}` has images of another volume `{volume}`, made by {owner}")]
    NameInUse {
        /// The bucket.
        bucket: String,
        /// The name.
        volume: String,
        /// `VOLUME on SERVER`.
        owner: String,
    },
    /// The mirror that a volume reads from stays.
    #[error("volume `{volume}` reads blocks from the images of mirror {mirror}")]
    IsHome {
        /// The volume.
        volume: String,
        /// The mirror.
        mirror: String,
    },
    /// It has no name to be used here.
    #[error("the bucket does not have the name of volume {volume}")]
    NoName {
        /// Its id.
        volume: String,
    },
    /// A volume shows an image and takes no writes.
    #[error("`{volume}` shows an image in a bucket and takes no writes")]
    ReadOnly {
        /// Its name.
        volume: String,
    },
    /// The volume needs its bucket, so that a command is refused.
    #[error("volume `{volume}` still reads blocks from bucket `{bucket}`")]
    Needed {
        /// The volume.
        volume: String,
        /// The bucket.
        bucket: String,
    },
    /// Blocks that the opening needs cannot be fetched.
    #[error("volume `{volume}` needs blocks from bucket `{bucket}`: {reason}")]
    Away {
        /// The volume.
        volume: String,
        /// The bucket.
        bucket: String,
        /// Why.
        reason: String,
        /// The next step.
        next: String,
    },
    /// The images in the bucket.
    #[error("bucket `{bucket}`: {source}")]
    Images {
        /// The bucket.
        bucket: String,
        /// The cause.
        source: Box<ImagesError>,
    },
    /// The list of snapshots in the image.
    #[error("the snapshot table of the image is damaged")]
    Table,
    /// The record of local blocks.
    #[error("volume `{volume}`: {source}")]
    Record {
        /// The volume.
        volume: String,
        /// The cause.
        source: BackedError,
    },
}

/// The kind of an error of images.
fn images_kind(error: &ImagesError) -> ErrorKind {
    match error {
        ImagesError::Store(error) => store_kind(error),
        ImagesError::Damaged { .. } | ImagesError::Gone(_) | ImagesError::NoBlock(_) => ErrorKind::Damaged,
        ImagesError::Replayed { .. } | ImagesError::Base { .. } => ErrorKind::Diverged,
        ImagesError::Fenced { .. } | ImagesError::Taken { .. } => ErrorKind::Busy,
        ImagesError::NoImage(_) => ErrorKind::NotFound,
        ImagesError::Newer { .. } => ErrorKind::VersionMismatch,
        ImagesError::Rule(_) => ErrorKind::Failed,
    }
}

impl FromBucketError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        use FromBucketError as E;
        match self {
            E::NoVolume { .. } | E::NoImage { .. } => ErrorKind::NotFound,
            E::SeveralVolumes { .. } | E::NotNewest { .. } | E::NoName { .. } => ErrorKind::Usage,
            E::Here { .. } => ErrorKind::Taken,
            E::DevicesTooSmall { .. }
            | E::CacheTooSmall { .. }
            | E::CacheDiskFull { .. }
            | E::Shrinks { .. } => ErrorKind::TooSmall,
            E::NotAFolder { .. } | E::NoHoles { .. } => ErrorKind::Usage,
            E::OtherCache { .. } | E::NameInUse { .. } => ErrorKind::Taken,
            E::ReadOnly { .. } => ErrorKind::WrongRole,
            E::Needed { .. } | E::IsHome { .. } => ErrorKind::Busy,
            E::Away { .. } => ErrorKind::PeerUnreachable,
            E::Images { source, .. } => images_kind(source),
            E::Table => ErrorKind::Damaged,
            E::Record { source, .. } => match source {
                BackedError::Damaged(_) | BackedError::NotOne => ErrorKind::Damaged,
                BackedError::LocalTooSmall { .. } | BackedError::RecordTooSmall { .. } => {
                    ErrorKind::WrongSize
                }
                BackedError::Exists | BackedError::Other { .. } => ErrorKind::Taken,
                BackedError::Newer { .. } | BackedError::Device(_) => ErrorKind::Failed,
            },
        }
    }

    /// The step that comes next.
    pub(crate) fn next(&self) -> String {
        use FromBucketError as E;
        let some = |there: &[String], none: &str| match there.is_empty() {
            true => none.to_owned(),
            false => format!("choose one of: {}", there.join(", ")),
        };
        match self {
            E::NoVolume { there, bucket, .. } => some(
                there,
                &format!("bucket `{bucket}` has no images of any volume; check the name of the bucket"),
            ),
            E::SeveralVolumes { there, .. } => format!("name one by its id: {}", there.join(", ")),
            E::NoImage { there, .. } => some(there, "wait until its owner has brought a first image there"),
            E::NotNewest { volume, .. } => format!(
                "open that image with --read-only; or open `{volume}` without --at, and go back with `cairn snapshot rollback`"
            ),
            E::Here { name, .. } => format!(
                "use `{name}`; or show an image beside it with --read-only and another name with --as; or delete `{name}` first"
            ),
            E::DevicesTooSmall { .. } => {
                "name more or larger devices with --device, or leave it out for a sparse file".into()
            }
            E::Shrinks { .. } => "give a larger --size, or leave it out".into(),
            E::CacheTooSmall { least, .. } => {
                format!("give a --cache-size of at least {}", ByteSize(*least))
            }
            E::NotAFolder { .. } => {
                "make a file system on the disk, mount it, and give a folder of it with --cache-disk".into()
            }
            E::CacheDiskFull { .. } => "free space there, or give a smaller --cache-size".into(),
            E::NoHoles { .. } => "choose a folder on ext4, XFS or Btrfs with --cache-disk".into(),
            E::OtherCache { volume, .. } => format!(
                "bring back the cache of `{volume}`; without it, delete the volume and open it from the bucket again, which loses what the last image lacks"
            ),
            E::NameInUse { bucket, volume, .. } => format!(
                "choose another name; or continue that volume with `cairn volume open {bucket}:{volume}`"
            ),
            E::IsHome { volume, .. } => format!(
                "delete the volume first with `cairn volume delete {volume}`; its images stay in the bucket"
            ),
            E::NoName { .. } => "choose a name with --as".into(),
            E::ReadOnly { volume } => {
                format!("to write, delete `{volume}` and open it without --read-only: that fences its owner")
            }
            E::Needed { volume, .. } => format!(
                "wait until `cairn volume show {volume}` reports that everything is local, or delete the volume"
            ),
            E::Away { next, .. } => next.clone(),
            E::Images { source, .. } => source.next(),
            E::Table => "open an older image with --at and --read-only".into(),
            E::Record { source, volume } => match source {
                BackedError::Newer { .. } => "use a newer cairn".into(),
                BackedError::LocalTooSmall { .. } | BackedError::RecordTooSmall { .. } => {
                    "bring back the file as it was, at its full length".into()
                }
                BackedError::Device(_) => "repair the disk, and start the server again".into(),
                _ => format!(
                    "bring back the file `bucket.local` of volume `{volume}` as it was; without it, delete the volume and open it from the bucket again, which loses what was written here"
                ),
            },
        }
    }
}
