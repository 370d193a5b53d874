//! Errors of dumps and restores.
//!
//! Each has its kind and the step that comes next.

use std::io;
use std::path::PathBuf;

use cairn_api::remedy::{dump_kind, dump_next, io_kind};
use cairn_api::{ErrorKind, ResumeError};
use cairn_bucket::StoreError;

use crate::buckets::error::store_kind;
use crate::error::ServerError;

/// An error of dumps and restores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpsError {
    /// The snapshot table of an image in a bucket is not the one of its id.
    #[error("the snapshot table of {from} is not the one of the image")]
    ImageTable {
        /// The image.
        from: String,
    },
    /// An image dump can't be written, read, put together or restored.
    #[error("{source}")]
    Dump {
        /// The cause.
        source: Box<cairn_stream::DumpError>,
    },
    /// No dump can be the base of a dump of this level.
    #[error("`{volume}` has no image dump of a level below {level}")]
    NoLowerDump {
        /// The volume.
        volume: String,
        /// The level asked for.
        level: u8,
    },
    /// No dump date can be the start of a dump of this level.
    #[error("`{name}` has no dump of a level below {level}")]
    NoEarlierDump {
        /// The volume, with the path.
        name: String,
        /// The level asked for.
        level: u8,
    },
    /// A rollback gave up the base of a BSD dump.
    #[error(
        "`{name}` was rolled back to what was before its dump of level {level}, so dates do not show the changes since"
    )]
    DumpGivenUp {
        /// The volume, with the path.
        name: String,
        /// The level of that dump.
        level: u8,
    },
    /// A dump of a level above 0 was requested for a snapshot that is older than its base.
    #[error("`{snapshot}` is older than the snapshot of the dump of level {level}, which would be its base")]
    DumpIsOlder {
        /// The snapshot to dump.
        snapshot: String,
        /// The level of that dump.
        level: u8,
    },
    /// The destination of a BSD dump takes no more data.
    #[error("cannot write the dump: {source}")]
    DumpOutput {
        /// The cause.
        source: io::Error,
    },
    /// The inodes of the dumped files.
    #[error("cannot read the data to dump: {source}")]
    DumpSource {
        /// The cause.
        source: io::Error,
    },
    /// Dumps in a bucket.
    #[error("bucket `{bucket}`: {source}")]
    InBucket {
        /// The bucket.
        bucket: String,
        /// The cause.
        source: Box<cairn_bucket::dumps::DumpsError>,
    },
    /// The index of a dump cannot be read that may be the wanted one, or be needed by it.
    #[error("{place}: {source}; its dump may be the one that is wanted")]
    Unreadable {
        /// Where.
        place: String,
        /// Why.
        source: Box<cairn_bucket::dumps::DumpsError>,
    },
    /// An object has a dump, but not the part that its index names.
    #[error("{object} is damaged: it is not the part of the dump that it should be")]
    OtherObject {
        /// The object.
        object: String,
    },
    /// A bucket cannot go from the list: a dump into it is unfinished.
    #[error("bucket `{bucket}` is needed: the image dump of `{volume}` into it is unfinished")]
    BucketNeeded {
        /// The bucket.
        bucket: String,
        /// The volume.
        volume: String,
    },
    /// The configuration has no such folder.
    #[error("the server shows no image dumps of the folder `{folder}`")]
    NoSuchFolder {
        /// As asked for.
        folder: String,
    },
    /// No dump in a folder has this id.
    #[error("{folder} has no image dump {id}")]
    NoDumpInFolder {
        /// The folder.
        folder: String,
        /// As asked for.
        id: String,
    },
    /// A file of a folder is another one than a moment ago.
    #[error("{folder}/{file} was changed while it was opened")]
    ChangedInFolder {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
    },
    /// No dump of that name is there.
    #[error("there is no image dump {wanted}")]
    NoDumpInBucket {
        /// As asked for.
        wanted: String,
        /// Where.
        place: String,
    },
    /// Dumps of several volumes are meant.
    #[error("{place} has image dumps of {} volumes: {}", volumes.len(), volumes.join(", "))]
    SeveralVolumes {
        /// Where.
        place: String,
        /// Their names, or their ids.
        volumes: Vec<String>,
    },
    /// There is nothing in the bucket that a dump of this level could be made against.
    #[error("{place} has no image dump of `{volume}` of a level below {level}")]
    NoLowerInBucket {
        /// The volume.
        volume: String,
        /// The level asked for.
        level: u8,
        /// Where.
        place: String,
    },
    /// The snapshots of all dumps of lower levels no longer exist, or objects of these dumps are
    /// missing.
    #[error("no image dump of `{volume}` in {place} can be the base of one of level {level}: {why}")]
    NoBaseInBucket {
        /// The volume.
        volume: String,
        /// The level asked for.
        level: u8,
        /// Where.
        place: String,
        /// Of the newest one.
        why: String,
    },
    /// An image dump or a restore can't begin, or can't be resumed.
    #[error(transparent)]
    Resume(ResumeError),
    /// Its parts are not all there.
    #[error("the image dump of `{volume}` is incomplete")]
    DumpNotWhole {
        /// The volume.
        volume: String,
    },
    /// The snapshot of an unfinished dump has changed.
    #[error("`{volume}@{snapshot}`, the snapshot of the unfinished image dump, no longer exists")]
    DumpSourceGone {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// A dump into files did not come to its end.
    #[error("{source}; the incomplete image dump of `{volume}` is kept")]
    DumpCut {
        /// The volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// The snapshot of the last dump of a lower level no longer exists.
    #[error("`{volume}@{snapshot}`, the snapshot of its last image dump of level {level}, no longer exists")]
    DumpBaseGone {
        /// The volume.
        volume: String,
        /// The level of that dump.
        level: u8,
        /// Its snapshot.
        snapshot: String,
    },
    /// A restore was to be resumed with other dumps.
    #[error("these are not the dumps of the unfinished image restore of `{volume}`")]
    RestoreOfOthers {
        /// The new volume.
        volume: String,
        /// The files that it was begun with.
        files: Vec<String>,
    },
    /// A restore was to be resumed on a device that has changed since.
    #[error("{} does not have the data that was restored into `{volume}`", path.display())]
    RestoreDeviceChanged {
        /// The device.
        path: PathBuf,
        /// The new volume.
        volume: String,
    },
    /// A restore did not come to its end.
    #[error("{source}; the incomplete image restore of `{volume}` is kept")]
    RestoreCut {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// The saved notes of an interrupted restore cannot be read.
    #[error("the image restore of `{volume}` cannot resume: {source}")]
    RestoreUnread {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// The restored volume is damaged, although no record was: the volume was damaged before the
    /// dump.
    #[error("the dumped volume of `{volume}` was damaged before the dump: {finding}")]
    RestoredDamaged {
        /// The new volume.
        volume: String,
        /// The first finding.
        finding: String,
    },
}

/// The kind of an error of dumps in a bucket.
fn bucket_dumps_kind(error: &cairn_bucket::dumps::DumpsError) -> ErrorKind {
    use cairn_bucket::dumps::DumpsError as Trouble;
    match error {
        Trouble::Store(error) => store_kind(error),
        Trouble::Part(error) => match store_error_in(error) {
            Some(error) => store_kind(error),
            None => io_kind(error),
        },
        Trouble::Missing(_) | Trouble::MissingBase { .. } => ErrorKind::NotFound,
        Trouble::OtherBegin(_) => ErrorKind::Diverged,
        Trouble::Stream(_) => ErrorKind::Failed,
        Trouble::BaseGoes { .. } | Trouble::Needed { .. } => ErrorKind::Busy,
        Trouble::Damaged(_) | Trouble::Gone(_) => ErrorKind::Damaged,
        Trouble::Newer { .. } => ErrorKind::VersionMismatch,
        Trouble::Exists(_) => ErrorKind::Taken,
    }
}

/// The error of a store that a read or a write failed with.
pub(crate) fn store_error_in(error: &io::Error) -> Option<&StoreError> {
    error.get_ref()?.downcast_ref()
}

/// The error of a store that a dump or a restore failed with.
fn store_error_of(error: &cairn_stream::DumpError) -> Option<&StoreError> {
    match error {
        cairn_stream::DumpError::Read { source, .. }
        | cairn_stream::DumpError::Stream(cairn_stream::StreamError::Io(source)) => store_error_in(source),
        _ => None,
    }
}

impl DumpsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            DumpsError::DumpIsOlder { .. } | DumpsError::RestoreOfOthers { .. } => ErrorKind::Usage,
            DumpsError::DumpNotWhole { .. } => ErrorKind::Busy,
            DumpsError::Resume(error) => error.kind(),
            DumpsError::InBucket { source, .. } | DumpsError::Unreadable { source, .. } => {
                bucket_dumps_kind(source)
            }
            DumpsError::OtherObject { .. } | DumpsError::ImageTable { .. } => ErrorKind::Damaged,
            DumpsError::NoSuchFolder { .. } | DumpsError::NoDumpInFolder { .. } => ErrorKind::NotFound,
            DumpsError::ChangedInFolder { .. } => ErrorKind::Busy,
            DumpsError::NoDumpInBucket { .. } | DumpsError::NoLowerInBucket { .. } => ErrorKind::NotFound,
            DumpsError::SeveralVolumes { .. } => ErrorKind::Usage,
            DumpsError::BucketNeeded { .. } => ErrorKind::Busy,
            DumpsError::NoBaseInBucket { .. } => ErrorKind::Diverged,
            DumpsError::Dump { source } => store_error_of(source).map_or(dump_kind(source), store_kind),
            DumpsError::NoLowerDump { .. } | DumpsError::NoEarlierDump { .. } => ErrorKind::NotFound,
            DumpsError::DumpCut { source, .. } | DumpsError::RestoreCut { source, .. } => source.kind(),
            DumpsError::DumpOutput { source } => io_kind(source),
            DumpsError::DumpSource { .. } => ErrorKind::VolumeDamaged,
            DumpsError::DumpBaseGone { .. }
            | DumpsError::DumpSourceGone { .. }
            | DumpsError::DumpGivenUp { .. }
            | DumpsError::RestoreDeviceChanged { .. } => ErrorKind::Diverged,
            DumpsError::RestoredDamaged { .. } | DumpsError::RestoreUnread { .. } => ErrorKind::Damaged,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            DumpsError::ImageTable { .. } => {
                "restore an older image: `cairn mirror images` lists them, and --at names one".into()
            }
            DumpsError::NoEarlierDump { name, .. } | DumpsError::DumpGivenUp { name, .. } => {
                format!("make a full dump first: `cairn dump -0 -f FILE {name}`")
            }
            DumpsError::DumpIsOlder { .. } => "dump a newer snapshot, or dump this one in full (-0)".into(),
            DumpsError::DumpOutput { .. } => {
                "free space, or check why the reader of the pipe ended; then run it again".into()
            }
            DumpsError::DumpSource { .. } => "list the damage with `cairn volume check`".into(),
            DumpsError::Resume(error) => error.next(),
            DumpsError::InBucket { source, .. } => source.next(),
            DumpsError::Unreadable { place, source } => format!(
                "{}; or name another dump as {place}VOLUME@DUMP, as `cairn image ls {place}` lists them",
                source.next()
            ),
            DumpsError::BucketNeeded { volume, .. } => format!(
                "resume it with `cairn image dump {volume} --resume`, or abandon it with `cairn image levels {volume} --give-up`"
            ),
            DumpsError::OtherObject { .. } => {
                "restore the object from a version that the store keeps, or restore an older dump".into()
            }
            DumpsError::NoSuchFolder { .. } => {
                "name a folder of `GET /v1/dump-folders`; `cairn serve --dumps DIR` adds one".into()
            }
            DumpsError::NoDumpInFolder { .. } | DumpsError::ChangedInFolder { .. } => {
                "list the dumps of the folder again".into()
            }
            DumpsError::NoDumpInBucket { place, .. } => {
                format!("list the dumps with `cairn image ls {place}`")
            }
            DumpsError::SeveralVolumes { place, volumes } => {
                let first = volumes.first().map_or("VOLUME", String::as_str);
                format!("name one of them, such as {place}{first}")
            }
            DumpsError::NoLowerInBucket { volume, place, .. }
            | DumpsError::NoBaseInBucket { volume, place, .. } => {
                format!("make a full dump: `cairn image dump -0 {volume} {place}`")
            }
            DumpsError::Dump { source } => {
                store_error_of(source).map_or_else(|| dump_next(source).into(), StoreError::next)
            }
            DumpsError::NoLowerDump { volume, .. } => {
                format!("make a full dump first: `cairn image dump {volume} -0`")
            }
            DumpsError::DumpNotWhole { volume } => {
                format!("resume it with `cairn image dump {volume} --resume`")
            }
            DumpsError::DumpSourceGone { volume, .. } => {
                format!("start a new one: `cairn image dump {volume} --anew`")
            }
            DumpsError::DumpCut { volume, source } => {
                let or = format!("or abandon it with `cairn image levels {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => {
                        format!("resume it with `cairn image dump {volume} --resume`, {or}")
                    }
                    ErrorKind::NoSpace => {
                        format!("free space and resume it with `cairn image dump {volume} --resume`, {or}")
                    }
                    _ => {
                        format!("fix the cause and resume it with `cairn image dump {volume} --resume`, {or}")
                    }
                }
            }
            DumpsError::DumpBaseGone { volume, .. } => format!(
                "dump everything again with `cairn image dump {volume} -0`, or against a snapshot that is there with --base"
            ),
            DumpsError::RestoreOfOthers { volume, files } => format!(
                "name all dumps that it was started with: {}, wherever these files are now; or start again with the new ones: \
                 `cairn image restore {volume} --anew FILE...`",
                files.join(" ")
            ),
            DumpsError::RestoreDeviceChanged { volume, .. } => format!(
                "restore the device to its last state, and resume with `cairn image restore {volume} --resume`; or start again with --anew"
            ),
            DumpsError::RestoreUnread { volume, .. } => format!(
                "put a copy of the file back in its place and run the command again; or abandon the restore with `cairn image restore {volume} --give-up`, and start again"
            ),
            DumpsError::RestoreCut { volume, source } => {
                let or = format!("or abandon it with `cairn image restore {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => {
                        format!("resume it with `cairn image restore {volume} --resume`, {or}")
                    }
                    ErrorKind::NoSpace => {
                        format!("free space and resume it with `cairn image restore {volume} --resume`, {or}")
                    }
                    ErrorKind::Damaged => format!(
                        "resume with a good copy of the file (a pipe starts from its beginning again): `cairn image restore {volume} --resume FILE...`, \
                         or skip the unreadable data with --accept-damage (`cairn image verify` lists it), {or}"
                    ),
                    _ => format!(
                        "fix the cause and resume it with `cairn image restore {volume} --resume`, {or}"
                    ),
                }
            }
            DumpsError::RestoredDamaged { .. } => {
                "restore the rest with --accept-damage; reads of the damaged data will fail".into()
            }
        }
    }
}
