//! Errors of exports and mounts.
//!
//! Each has its kind and the step that comes next.

use std::path::PathBuf;

use cairn_api::ErrorKind;
use cairn_api::remedy::{io_kind, volume_kind, volume_next};
use cairn_files::TreeError;
use cairn_frontend_fuse::MountError;
use cairn_frontend_nbd::ListenError;

/// An error of exports and mounts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportsError {
    /// Clients have it open.
    #[error("`{name}` is in use by {sessions} session(s)")]
    InUse {
        /// The export or the volume.
        name: String,
        /// How many.
        sessions: usize,
    },
    /// It is mounted.
    #[error("`{name}` is mounted on {}", directory.display())]
    Mounted {
        /// The volume or the snapshot.
        name: String,
        /// Where.
        directory: PathBuf,
    },
    /// A directory that a mount would hide the files of.
    #[error("{} is not empty: a mount would hide what is in it", directory.display())]
    MountNotEmpty {
        /// The directory.
        directory: PathBuf,
    },
    /// A mount without a directory that is still in use.
    #[error("an unmounted mount of `{name}` on {} is still used by {users}", directory.display())]
    MountLeft {
        /// The volume or the snapshot.
        name: String,
        /// Its earlier directory.
        directory: PathBuf,
        /// The processes that use it.
        users: String,
    },
    /// A live tree has one mount, and only root shows it in a second place.
    #[error("`{name}` is mounted on {} already, and only a server that runs as root can mount it a second time", directory.display())]
    MountedElsewhere {
        /// The volume.
        name: String,
        /// Where.
        directory: PathBuf,
    },
    /// Nothing was mounted or unmounted.
    #[error(transparent)]
    Mount(cairn_frontend_fuse::MountError),
    /// The files of a volume.
    #[error("the files of `{name}`: {source}")]
    Tree {
        /// The volume or the snapshot.
        name: String,
        /// The cause.
        source: cairn_files::TreeError,
    },
    /// A disk has not finished requests of sessions that were to be closed.
    #[error("{0}; nothing else was changed")]
    Unfinished(cairn_frontend_nbd::Unfinished),
    /// Clients have its files over NFS.
    #[error("`{name}` is exported over NFS")]
    ExportedOverNfs {
        /// The export.
        name: String,
    },
    /// NFS cannot listen.
    #[error(transparent)]
    NfsListen(cairn_frontend_nfs::ListenError),
    /// NBD cannot listen.
    #[error(transparent)]
    NbdListen(cairn_frontend_nbd::ListenError),
    /// iSCSI cannot listen.
    #[error(transparent)]
    IscsiListen(cairn_frontend_iscsi::ListenError),
    /// NBD cannot start.
    #[error(transparent)]
    NbdStart(cairn_frontend_nbd::StartError),
    /// A plan for an export without writes.
    #[error("too little was written to `{name}` since the server started to plan")]
    NothingWritten {
        /// The volume, export or device.
        name: String,
    },
    /// A recording could not begin.
    #[error("cannot record `{export}`: {source}")]
    Recording {
        /// The export.
        export: String,
        /// The cause.
        source: cairn_trace::TraceError,
    },
}

impl ExportsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            ExportsError::NothingWritten { .. } => ErrorKind::NotFound,
            ExportsError::InUse { .. }
            | ExportsError::Unfinished(_)
            | ExportsError::Mounted { .. }
            | ExportsError::MountedElsewhere { .. }
            | ExportsError::ExportedOverNfs { .. }
            | ExportsError::MountLeft { .. } => ErrorKind::Busy,
            ExportsError::NbdListen(error) => listen_kind(error),
            ExportsError::IscsiListen(error) => match error {
                cairn_frontend_iscsi::ListenError::InUse { .. } => ErrorKind::PortTaken,
                cairn_frontend_iscsi::ListenError::NotPermitted { .. } => ErrorKind::Usage,
                cairn_frontend_iscsi::ListenError::Failed { source, .. } => io_kind(source),
            },
            ExportsError::NfsListen(error) => match error {
                cairn_frontend_nfs::ListenError::InUse { .. } => ErrorKind::PortTaken,
                cairn_frontend_nfs::ListenError::NotPermitted { .. } => ErrorKind::Usage,
                cairn_frontend_nfs::ListenError::Failed { source, .. } => io_kind(source),
            },
            ExportsError::MountNotEmpty { .. } => ErrorKind::NotEmpty,
            ExportsError::Mount(error) => mount_kind(error),
            ExportsError::Tree { source, .. } => tree_kind(source),
            ExportsError::Recording { .. } => ErrorKind::Failed,
            ExportsError::NbdStart(_) => ErrorKind::Failed,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            ExportsError::InUse { name, .. } => {
                format!("disconnect the clients of `{name}`; `cairn status` names them")
            }
            ExportsError::Mounted { directory, .. } => format!("cairn unmount {}", directory.display()),
            ExportsError::MountLeft { directory, .. } => format!(
                "end them; or force the unmount, which loses their unwritten data: cairn unmount --force {}",
                directory.display()
            ),
            ExportsError::MountNotEmpty { .. } => {
                "name an empty directory, such as one that `mkdir` has just made".into()
            }
            ExportsError::MountedElsewhere { directory, .. } => {
                format!("use it there, or unmount it first: cairn unmount {}", directory.display())
            }
            ExportsError::Mount(error) => mount_next(error),
            ExportsError::Tree { name, source } => tree_next(name, source),
            ExportsError::Unfinished(error) => format!(
                "check why the disk of {} hangs; when it answers, run the same command again",
                error.export
            ),
            ExportsError::NbdListen(_) | ExportsError::NbdStart(_) => {
                "choose another address with --nbd, or `--nbd off`".into()
            }
            ExportsError::IscsiListen(_) => {
                "choose another address with --iscsi, or `--iscsi off`; tgt and LIO use port 3260 as well"
                    .into()
            }
            ExportsError::ExportedOverNfs { name } => {
                format!("end the export first: cairn export set {name} --no-nfs")
            }
            ExportsError::NfsListen(_) => {
                "choose another address with --nfs, or `--nfs off`; the kernel's NFS server uses port 2049 as well"
                    .into()
            }
            ExportsError::NothingWritten { .. } => {
                "let its clients work for a while, or plan from a trace: cairn trace import, cairn plan TRACE"
                    .to_owned()
            }
            ExportsError::Recording { .. } => {
                "check that its folder is writable, or give another --to".to_owned()
            }
        }
    }
}

fn listen_kind(error: &ListenError) -> ErrorKind {
    match error {
        ListenError::InUse { .. } | ListenError::NotASocket { .. } => ErrorKind::PortTaken,
        ListenError::NotPermitted { .. } => ErrorKind::ReadOnly,
        ListenError::PathTooLong { .. } => ErrorKind::Usage,
        ListenError::Failed { source, .. } => io_kind(source),
    }
}

fn mount_kind(error: &MountError) -> ErrorKind {
    match error {
        MountError::Busy { .. } => ErrorKind::Busy,
        MountError::Directory { .. } => ErrorKind::Usage,
        MountError::Tree(error) => tree_kind(error),
        MountError::System(source) => io_kind(source),
        MountError::NoDevice | MountError::NoHelper | MountError::Refused { .. } => ErrorKind::Failed,
    }
}

fn mount_next(error: &MountError) -> String {
    match error {
        MountError::NoDevice => "modprobe fuse; in a container, start that with --device /dev/fuse".into(),
        MountError::NoHelper => "install it (Debian: apt-get install fuse3), or run the server as root".into(),
        MountError::Directory { .. } => "make the directory first, or name another one".into(),
        MountError::Busy { path } => {
            format!("`fuser -vm {0}` names the programs; or cairn unmount --lazy {0}", path.display())
        }
        MountError::Refused { reason, .. } if reason.contains("/dev/fuse") => {
            "let the server's user open it (`ls -l /dev/fuse`: mode 0666 on most systems), or run the server as root".into()
        }
        MountError::Refused { .. } => {
            "name an empty directory that the server's user owns; --allow-other needs `user_allow_other` in /etc/fuse.conf".into()
        }
        MountError::Tree(error) => tree_next("", error),
        MountError::System(_) => "see the server's log".into(),
    }
}

fn tree_kind(error: &TreeError) -> ErrorKind {
    match error {
        TreeError::NotFound | TreeError::NoTree => ErrorKind::NotFound,
        TreeError::NoSpace | TreeError::Quota => ErrorKind::NoSpace,
        TreeError::NotEmpty => ErrorKind::NotEmpty,
        TreeError::ReadOnly => ErrorKind::ReadOnly,
        TreeError::Stale => ErrorKind::Busy,
        TreeError::Damaged(source) | TreeError::Volume(source) => volume_kind(source),
        _ => ErrorKind::Usage,
    }
}

fn tree_next(name: &str, error: &TreeError) -> String {
    match error {
        TreeError::NoTree => {
            "no file was stored in it yet: mount the volume itself and store some, or name a later snapshot"
                .into()
        }
        TreeError::Damaged(source) | TreeError::Volume(source) => volume_next(name, source),
        TreeError::Stale => "run the command again; it then uses the present state".into(),
        // Quotas alone ask for an empty directory here.
        TreeError::NotEmpty => {
            "create a new directory, set its quota while it is empty, and copy the files there".into()
        }
        _ => "correct it and run the command again".into(),
    }
}
