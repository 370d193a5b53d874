//! Everything that a server refuses or fails, each with its kind and the step that comes next.
//!
//! A variant reports the failure and its cause; [`ServerError::next`] gives the remedy. Both reach
//! the user unchanged.

use std::io;
use std::path::PathBuf;

use cairn_api::remedy::{NO_THREAD_NEXT, io_kind};
use cairn_api::{ErrorBody, ErrorKind, ResumeError};
use cairn_base::{ByteSize, InvalidVolumeId};
use cairn_device::DeviceError;
use cairn_files::FilesError;
use cairn_history::HistoryError;
use cairn_volume::VolumeError;

use crate::actors::error::ActorsError;
use crate::buckets::error::BucketsError;
use crate::certificates::error::CertificatesError;
use crate::daemon::error::DaemonError;
use crate::devices::error::DevicesError;
use crate::dumps::error::DumpsError;
use crate::error::words::{in_place, io_next};
use crate::exports::error::ExportsError;
use crate::fleet::error::FleetError;
use crate::groups::error::GroupsError;
use crate::mirrors::bucket::error::BucketMirrorError;
use crate::mirrors::error::MirrorsError;
use crate::mirrors::role_error::RoleError;
use crate::peers::error::PeersError;
use crate::schedules::error::SchedulesError;
use crate::volumes::error::VolumesError;

pub(crate) mod words;

/// Why a request, or the start of a server, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A name that cannot be one.
    #[error("`{name}` is not a valid name for a {what}")]
    InvalidName {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
    },
    /// A number or a combination that makes no sense.
    #[error("{fault}")]
    Invalid {
        /// The fault, as a sentence.
        fault: &'static str,
        /// The remedy.
        next: &'static str,
    },
    /// A size does not fit the present state.
    #[error("{fault}")]
    WrongSize {
        /// The fault, as a sentence.
        fault: &'static str,
        /// The remedy.
        next: &'static str,
    },
    /// A size that no volume has.
    #[error("invalid size {}: a size is a multiple of 4 KiB, from 4 KiB to 4 PiB", ByteSize(*bytes))]
    InvalidSize {
        /// As given.
        bytes: u64,
    },
    /// A path that would name another file if the server is started in another folder.
    #[error("{what} is not absolute")]
    NotAbsolute {
        /// The path.
        what: &'static str,
    },
    /// Nothing has that name.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
        /// The command that lists the existing ones.
        list: &'static str,
    },
    /// The name is in use.
    #[error("the {what} `{name}` already exists")]
    Taken {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
    },
    /// A transfer runs, or another one of the kind.
    #[error("`{name}` is busy: {by}")]
    Busy {
        /// The volume.
        name: String,
        /// The work that uses it.
        by: &'static str,
    },
    /// The operating system refused a path.
    #[error("cannot {action} {}: {source}", path.display())]
    Path {
        /// The attempted action.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start a thread for {what}: {source}")]
    Thread {
        /// The purpose.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The server ends.
    #[error("the server is stopping")]
    Ending,
    /// A user cancelled it, or the server stops.
    #[error("the check was cancelled before it was complete; its result is partial")]
    Cancelled,
    /// A part of the server has panicked: a bug.
    #[error("a part of the server failed unexpectedly; this is a bug")]
    Bug,
    /// An error of the server itself: its data directory, its state and its configuration.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// An error of peers: invitations, certificates, connections and their messages.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// An error of mirrors: their roles, their sources and their transfers.
    #[error(transparent)]
    Mirrors(#[from] MirrorsError),
    /// An error of mirrors in buckets.
    #[error(transparent)]
    BucketMirrors(#[from] BucketMirrorError),
    /// An error of groups.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// An error of buckets.
    #[error(transparent)]
    Buckets(#[from] BucketsError),
    /// An error of dumps and restores.
    #[error(transparent)]
    Dumps(#[from] DumpsError),
    /// An error of exports and mounts.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// An error of volumes: their devices, their logs, their histories and their clones.
    #[error(transparent)]
    Volumes(#[from] VolumesError),
    /// An error of adopted devices.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// An error of schedules and hooks.
    #[error(transparent)]
    Schedules(#[from] SchedulesError),
    /// An error of access: a request that a role or a token does not permit.
    #[error(transparent)]
    Actors(#[from] ActorsError),
    /// An error of certificates for clients.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// An error of other servers that this one shows.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

impl From<cairn_frontend_nbd::Unfinished> for ServerError {
    fn from(source: cairn_frontend_nbd::Unfinished) -> Self {
        ExportsError::Unfinished(source).into()
    }
}

impl From<cairn_frontend_nbd::ListenError> for ServerError {
    fn from(source: cairn_frontend_nbd::ListenError) -> Self {
        ExportsError::NbdListen(source).into()
    }
}

impl From<cairn_frontend_iscsi::ListenError> for ServerError {
    fn from(source: cairn_frontend_iscsi::ListenError) -> Self {
        ExportsError::IscsiListen(source).into()
    }
}

impl From<cairn_frontend_nfs::ListenError> for ServerError {
    fn from(source: cairn_frontend_nfs::ListenError) -> Self {
        ExportsError::NfsListen(source).into()
    }
}

impl From<cairn_frontend_nbd::StartError> for ServerError {
    fn from(source: cairn_frontend_nbd::StartError) -> Self {
        ExportsError::NbdStart(source).into()
    }
}

impl From<cairn_device::OpenError> for ServerError {
    fn from(source: cairn_device::OpenError) -> Self {
        VolumesError::OpenDevice(source).into()
    }
}

impl From<DeviceError> for ServerError {
    fn from(source: DeviceError) -> Self {
        VolumesError::Device(source).into()
    }
}

impl From<RoleError> for ServerError {
    fn from(source: RoleError) -> Self {
        MirrorsError::Role(source).into()
    }
}

impl From<ResumeError> for ServerError {
    fn from(source: ResumeError) -> Self {
        DumpsError::Resume(source).into()
    }
}

impl From<rustls::Error> for ServerError {
    fn from(source: rustls::Error) -> Self {
        PeersError::Tls(source).into()
    }
}

impl From<rcgen::Error> for ServerError {
    fn from(source: rcgen::Error) -> Self {
        PeersError::Certificate(source).into()
    }
}

impl From<cairn_stream::DumpError> for ServerError {
    fn from(source: cairn_stream::DumpError) -> Self {
        ServerError::Dumps(DumpsError::Dump { source: Box::new(source) })
    }
}

impl From<InvalidVolumeId> for ServerError {
    fn from(_: InvalidVolumeId) -> Self {
        ServerError::Invalid {
            fault: "invalid volume id: it is not 32 hexadecimal digits",
            next: "correct it and run the command again",
        }
    }
}

impl ServerError {
    /// A closure for `map_err` that names the path.
    pub(crate) fn path<'a>(
        action: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(io::Error) -> ServerError + 'a {
        move |source| ServerError::Path { action, path: path.to_owned(), source }
    }

    /// A closure for `map_err` that names the volume.
    pub(crate) fn volume(name: &str) -> impl Fn(VolumeError) -> ServerError + '_ {
        move |source| match source {
            VolumeError::WrongRole(cairn_format::Role::Destination) => {
                ServerError::Mirrors(MirrorsError::IsDestination { volume: name.to_owned() })
            }
            source => ServerError::Volumes(VolumesError::Volume { volume: name.to_owned(), source }),
        }
    }

    /// A closure for `map_err` that names the device.
    pub(crate) fn history(name: &str) -> impl Fn(HistoryError) -> ServerError + '_ {
        move |source| ServerError::Devices(DevicesError::History { device: name.to_owned(), source })
    }

    /// A closure for `map_err` that names the LUN.
    pub(crate) fn files(name: &str) -> impl Fn(FilesError) -> ServerError + '_ {
        move |source| ServerError::Volumes(VolumesError::Files { name: name.to_owned(), source })
    }

    /// A closure for `map_err` that names the volume of the files.
    pub(crate) fn tree(name: &str) -> impl Fn(cairn_files::TreeError) -> ServerError + '_ {
        move |source| ServerError::Exports(ExportsError::Tree { name: name.to_owned(), source })
    }

    /// The kind, for programs: it decides the HTTP status and the exit code.
    pub fn kind(&self) -> ErrorKind {
        use ServerError as E;
        match self {
            E::WrongSize { .. } | E::InvalidSize { .. } => ErrorKind::WrongSize,
            E::InvalidName { .. } | E::Invalid { .. } | E::NotAbsolute { .. } => ErrorKind::Usage,
            E::NotFound { .. } => ErrorKind::NotFound,
            E::Taken { .. } => ErrorKind::Taken,
            E::Busy { .. } => ErrorKind::Busy,
            E::Path { source, .. } => io_kind(source),
            E::Ending | E::Cancelled => ErrorKind::Interrupted,
            E::Thread { .. } | E::Bug => ErrorKind::Failed,
            E::Daemon(error) => error.kind(),
            E::Peers(error) => error.kind(),
            E::Mirrors(error) => error.kind(),
            E::Groups(error) => error.kind(),
            E::Buckets(error) => error.kind(),
            E::BucketMirrors(error) => error.kind(),
            E::Dumps(error) => error.kind(),
            E::Exports(error) => error.kind(),
            E::Volumes(error) => error.kind(),
            E::Devices(error) => error.kind(),
            E::Schedules(error) => error.kind(),
            E::Actors(error) => error.kind(),
            E::Certificates(error) => error.kind(),
            E::Fleet(error) => error.kind(),
        }
    }

    /// The next step for the user, in one sentence.
    pub fn next(&self) -> String {
        use ServerError as E;
        match self {
            E::InvalidName { .. } => "use letters, digits, `.`, `_` and `-`, beginning with a letter or a \
                digit, at most 64"
                .into(),
            E::Invalid { next, .. } | E::WrongSize { next, .. } => (*next).into(),
            E::InvalidSize { .. } => "give a size such as 2G".into(),
            E::NotAbsolute { .. } => "give a path that begins with `/`".into(),
            E::NotFound { list, name, .. } => format!("list what exists with `{}`", in_place(list, name)),
            E::Taken { what: "device", .. } => {
                "see it with `cairn device list`; choose another name, or release it first with `cairn device release DEVICE`".to_owned()
            }
            E::Taken { what: "iSCSI target", .. } => {
                "another disk has that target, because a target is VOLUME.DISK and these names have dots; choose another name, see `cairn export list`".to_owned()
            }
            E::Taken { what, .. } => format!("choose another name, or delete that {what} first"),
            E::Busy { .. } => "wait until it is over; `cairn status` shows it".into(),
            E::Path { source, path, .. } => io_next(source, path),
            E::Thread { .. } => NO_THREAD_NEXT.into(),
            E::Cancelled => "run it again".into(),
            E::Ending => "start the server again; the last complete image is whole".into(),
            E::Bug => {
                "report it with the log of the server; restart the server if it does not answer".into()
            }
            E::Daemon(error) => error.next(),
            E::Peers(error) => error.next(),
            E::Mirrors(error) => error.next(),
            E::Groups(error) => error.next(),
            E::Buckets(error) => error.next(),
            E::BucketMirrors(error) => error.next(),
            E::Dumps(error) => error.next(),
            E::Exports(error) => error.next(),
            E::Volumes(error) => error.next(),
            E::Devices(error) => error.next(),
            E::Schedules(error) => error.next(),
            E::Actors(error) => error.next(),
            E::Certificates(error) => error.next(),
            E::Fleet(error) => error.next(),
        }
    }

    /// The error as sent to the client.
    pub fn body(&self) -> ErrorBody {
        if let ServerError::Peers(PeersError::Refused { body, .. }) = self {
            return ErrorBody { error: body.error, message: self.to_string(), next: body.next.clone() };
        }
        ErrorBody { error: self.kind(), message: self.to_string(), next: self.next() }
    }
}
