//! Errors of dumps and restores.
//!
//! Each has its kind and the step that comes next.

use std::io;
use std::path::PathBuf;

use cairn_api::remedy::{dump_kind, dump_next, io_kind};
use cairn_api::{ErrorKind, ResumeError};

use crate::error::ServerError;

/// An error of dumps and restores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpsError {
    /// An image dump can't be written, read, put together or restored.
    #[error("{source}")]
    Dump {
        /// The cause.
        source: Box<cairn_stream::DumpError>,
    },
    /// There is nothing that a dump of this level could be made against.
    #[error("no image dump of `{volume}` of a lower level than {level} was made")]
    NoLowerDump {
        /// The volume.
        volume: String,
        /// The level asked for.
        level: u8,
    },
    /// There is no date from which on a dump of this level has what changed.
    #[error("no dump of `{name}` of a lower level than {level} was made")]
    NoEarlierDump {
        /// The volume, with the path.
        name: String,
        /// The level asked for.
        level: u8,
    },
    /// What a BSD dump was made of was given up by a rollback.
    #[error(
        "`{name}` was rolled back to what was before its dump of level {level}: dates do not say what changed since"
    )]
    DumpGivenUp {
        /// The volume, with the path.
        name: String,
        /// The level of that dump.
        level: u8,
    },
    /// A dump of a level above 0 is asked for of what is older than the dump that it stands on.
    #[error(
        "`{snapshot}` is older than what the dump of level {level} was made of, on which this one would stand"
    )]
    DumpIsOlder {
        /// What is to be dumped, with its snapshot.
        snapshot: String,
        /// The level of that dump.
        level: u8,
    },
    /// Where a BSD dump goes to takes no more.
    #[error("the dump can't be written: {source}")]
    DumpOutput {
        /// The cause.
        source: io::Error,
    },
    /// The inodes of what is dumped.
    #[error("what is to be dumped can't be read: {source}")]
    DumpSource {
        /// The cause.
        source: io::Error,
    },
    /// An image dump or a restore can't begin, or can't be resumed.
    #[error(transparent)]
    Resume(ResumeError),
    /// Its parts are not all there.
    #[error("the image dump of `{volume}` is not whole yet")]
    DumpNotWhole {
        /// The volume.
        volume: String,
    },
    /// What an unfinished dump was made of is not as it was.
    #[error("`{volume}@{snapshot}`, which the unfinished image dump has, is not there any more")]
    DumpSourceGone {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// A dump into files did not come to its end.
    #[error("{source}; what there is of the image dump of `{volume}` stays")]
    DumpCut {
        /// The volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// The snapshot of the last dump of a lower level is gone.
    #[error(
        "`{volume}@{snapshot}`, the snapshot of its last image dump of level {level}, is not there any more"
    )]
    DumpBaseGone {
        /// The volume.
        volume: String,
        /// The level of that dump.
        level: u8,
        /// Its snapshot.
        snapshot: String,
    },
    /// A restore was to go on with other dumps.
    #[error("the unfinished image restore of `{volume}` is not of these dumps")]
    RestoreOfOthers {
        /// The new volume.
        volume: String,
        /// The files that it was begun with.
        files: Vec<String>,
    },
    /// A restore was to go on, on a device that is not as it was left.
    #[error("{} does not hold what was restored into `{volume}`", path.display())]
    RestoreDeviceChanged {
        /// The device.
        path: PathBuf,
        /// The new volume.
        volume: String,
    },
    /// A restore did not come to its end.
    #[error("{source}; what there is of the image restore of `{volume}` stays")]
    RestoreCut {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// What is written down of a restore that was cut can't be read.
    #[error("the image restore of `{volume}` can't go on: {source}")]
    RestoreUnread {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// What was restored is not sound, although no record was damaged: the volume was damaged when it was dumped.
    #[error("what was dumped into `{volume}` was damaged already: {finding}")]
    RestoredDamaged {
        /// The new volume.
        volume: String,
        /// The first finding.
        finding: String,
    },
}

impl DumpsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            DumpsError::DumpIsOlder { .. } | DumpsError::RestoreOfOthers { .. } => ErrorKind::Usage,
            DumpsError::DumpNotWhole { .. } => ErrorKind::Busy,
            DumpsError::Resume(error) => error.kind(),
            DumpsError::Dump { source } => dump_kind(source),
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

    /// What to do next, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            DumpsError::NoEarlierDump { name, .. } | DumpsError::DumpGivenUp { name, .. } => {
                format!("begin with everything: `cairn dump -0 -f FILE {name}`")
            }
            DumpsError::DumpIsOlder { .. } => {
                "dump a snapshot that was made later, or this one with everything in it (-0)".into()
            }
            DumpsError::DumpOutput { .. } => {
                "make room, or see why the reader of the pipe ended; then run it again".into()
            }
            DumpsError::DumpSource { .. } => "see what is damaged with `cairn volume check`".into(),
            DumpsError::Resume(error) => error.next(),
            DumpsError::Dump { source } => dump_next(source).into(),
            DumpsError::NoLowerDump { volume, .. } => {
                format!("begin with everything: `cairn image dump {volume} -0`")
            }
            DumpsError::DumpNotWhole { volume } => format!("go on with `cairn image dump {volume} --resume`"),
            DumpsError::DumpSourceGone { volume, .. } => {
                format!("begin another one in its place: `cairn image dump {volume} --anew`")
            }
            DumpsError::DumpCut { volume, source } => {
                let or = format!("or give it up with `cairn image levels {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => {
                        format!("go on with `cairn image dump {volume} --resume`, {or}")
                    }
                    ErrorKind::NoSpace => {
                        format!("make room and go on with `cairn image dump {volume} --resume`, {or}")
                    }
                    _ => format!("see to that and go on with `cairn image dump {volume} --resume`, {or}"),
                }
            }
            DumpsError::DumpBaseGone { volume, .. } => format!(
                "dump everything again with `cairn image dump {volume} -0`, or against a snapshot that is there with --base"
            ),
            DumpsError::RestoreOfOthers { volume, files } => format!(
                "name the dumps that it was begun with, all of them, wherever their files are now: they were {}; or begin with these in its place: \
                 `cairn image restore {volume} --anew FILE...`",
                files.join(" ")
            ),
            DumpsError::RestoreDeviceChanged { volume, .. } => format!(
                "bring the device back as it was left, and go on with `cairn image restore {volume} --resume`; or begin again with --anew"
            ),
            DumpsError::RestoreUnread { volume, .. } => format!(
                "put a copy of the file back in its place and run the command again; or give the restore up with `cairn image restore {volume} --give-up`, and begin anew"
            ),
            DumpsError::RestoreCut { volume, source } => {
                let or = format!("or give it up with `cairn image restore {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => {
                        format!("go on with `cairn image restore {volume} --resume`, {or}")
                    }
                    ErrorKind::NoSpace => {
                        format!("make room and go on with `cairn image restore {volume} --resume`, {or}")
                    }
                    ErrorKind::Damaged => format!(
                        "go on with a whole copy of the file (a pipe is read from its beginning again) with `cairn image restore {volume} --resume FILE...`, \
                         or with --accept-damage without what can't be read (`cairn image verify` says what that is), {or}"
                    ),
                    _ => format!("see to that and go on with `cairn image restore {volume} --resume`, {or}"),
                }
            }
            DumpsError::RestoredDamaged { .. } => {
                "restore what is left with --accept-damage; the reads that it concerns will fail".into()
            }
        }
    }
}
