//! Errors of the server itself: its data directory, its state and its configuration.
//!
//! Each has its kind and the step that comes next.

use std::io;
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use cairn_api::remedy::io_kind;

use crate::state;

/// An error of the server itself: its data directory, its state and its configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// A file or folder in the data directory belongs to another user than the server's.
    #[error("{} belongs to user {owner}, and the server runs as user {user}, so that user could make the server read and write any file", path.display())]
    ForeignState {
        /// The file or folder.
        path: PathBuf,
        /// The owner of the file.
        owner: u32,
        /// The server's user.
        user: u32,
    },
    /// The data directory has no room for a socket.
    #[error("the file system of {} is full: the server can't make its socket", path.display())]
    NoRoomForSocket {
        /// The data directory.
        path: PathBuf,
    },
    /// An unreadable state file is now missing.
    #[error("{} was unreadable and is now missing, so its content is lost", path.display())]
    StateGone {
        /// The file.
        path: PathBuf,
    },
    /// A state file that could not be read can be read again.
    #[error("{} is readable again, and not loaded yet", path.display())]
    StateNotTaken {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the data directory.
    #[error("another server runs on {}", path.display())]
    DataDirBusy {
        /// The directory.
        path: PathBuf,
    },
    /// The state was to be restored into a directory that has something.
    #[error("{} is not empty", path.display())]
    DataDirNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A restore of the state was cut, so a part of it is missing.
    #[error("{} has only a part of a server's state: its restore was cut", path.display())]
    StatePart {
        /// The directory.
        path: PathBuf,
    },
    /// A directory is not that of a server.
    #[error("{} is not the data directory of a server: it has no identity.pem", path.display())]
    NoDataDir {
        /// The directory.
        path: PathBuf,
    },
    /// A file is not a whole backup of the state.
    #[error("{} is not a backup of a server's state: {fault}", path.display())]
    InvalidBackup {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: &'static str,
    },
    /// A state file has invalid content.
    #[error("{} is damaged: {source}", path.display())]
    DamagedState {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The content of a state file is unknown, because it cannot be read.
    #[error("{reason}")]
    StateUnread {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A state file that is not damaged was to be given up, or restored.
    #[error("`{file}` is not an unreadable state file")]
    StateKnown {
        /// As given.
        file: String,
    },
    /// The server cannot work without this state file.
    #[error("{} cannot be abandoned: nothing works without it", path.display())]
    StateNeeded {
        /// The file.
        path: PathBuf,
        /// The command that ends the thing it belongs to.
        ends: String,
    },
    /// A state file has no previous generation that can be read.
    #[error("there is no previous generation of {}", path.display())]
    NoPrevious {
        /// The file.
        path: PathBuf,
    },
    /// A state file of a newer (or unknown) version.
    #[error("{} has version {found}; this program reads version {supported}", path.display())]
    StateVersion {
        /// The file.
        path: PathBuf,
        /// In the file.
        found: u64,
        /// The newest that is read.
        supported: u64,
    },
    /// The configuration file is not one.
    #[error("{} is not a valid configuration: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The error of the parser, with the line.
        source: Box<toml::de::Error>,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The path of a socket does not fit into a socket address.
    #[error("the path of the socket is too long ({} bytes): {}", path.as_os_str().len(), path.display())]
    SocketPath {
        /// The socket.
        path: PathBuf,
    },
    /// A request over TCP that is permitted only from this machine.
    #[error("{what}; only the control socket accepts this")]
    LocalOnly {
        /// Why.
        what: &'static str,
    },
    /// The bearer token is missing or wrong.
    #[error("the request carries no valid token")]
    Unauthorized,
    /// No such path in the API.
    #[error("no such path in the API: {path}")]
    NoSuchPath {
        /// As asked.
        path: String,
    },
    /// The body does not match the description of the API.
    #[error("the request is not what the API describes: {reason}")]
    BadRequest {
        /// The error of the parser.
        reason: String,
    },
}

impl DaemonError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            DaemonError::Config { .. } | DaemonError::BadRequest { .. } | DaemonError::SocketPath { .. } => {
                ErrorKind::Usage
            }
            DaemonError::NoSuchPath { .. } | DaemonError::StateVersion { .. } => ErrorKind::VersionMismatch,
            DaemonError::DataDirBusy { .. } => ErrorKind::Busy,
            DaemonError::DataDirNotEmpty { .. } => ErrorKind::NotEmpty,
            DaemonError::NoDataDir { .. } => ErrorKind::NotFound,
            DaemonError::StatePart { .. } => ErrorKind::Damaged,
            DaemonError::InvalidBackup { .. } => ErrorKind::Damaged,
            DaemonError::Listen { source, .. } => io_kind(source),
            DaemonError::DamagedState { .. }
            | DaemonError::StateUnread { .. }
            | DaemonError::StateGone { .. }
            | DaemonError::StateNotTaken { .. } => ErrorKind::Damaged,
            DaemonError::StateKnown { .. } | DaemonError::NoPrevious { .. } => ErrorKind::NotFound,
            DaemonError::StateNeeded { .. } => ErrorKind::Usage,
            DaemonError::NoRoomForSocket { .. } => ErrorKind::NoSpace,
            DaemonError::ForeignState { .. } => ErrorKind::Usage,
            DaemonError::Unauthorized | DaemonError::LocalOnly { .. } => ErrorKind::Unauthorized,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            DaemonError::ForeignState { path, user, .. } => format!(
                "check it: if it belongs to the server, run `chown -h {user} {0}`, otherwise remove it; then start the server again",
                path.display()
            ),
            DaemonError::NoRoomForSocket { path } => {
                format!(
                    "free a few KiB there (`du -x {0}`, `journalctl --vacuum-size=100M`), then start the server again",
                    path.display()
                )
            }
            DaemonError::StateNotTaken { path } => {
                format!("`cairn state restore {}` loads it", path.display())
            }
            DaemonError::DataDirBusy { path } => format!(
                "use it with `cairn status --data {}`, or choose another directory with --data",
                path.display()
            ),
            DaemonError::DataDirNotEmpty { .. } => {
                "name an empty or missing directory with --data; move this one away if it is to be replaced"
                    .into()
            }
            DaemonError::StatePart { path } => {
                format!("restore it again with `cairn state restore --from FILE --data {}`", path.display())
            }
            DaemonError::NoDataDir { .. } => "name the directory of the server with --data".into(),
            DaemonError::InvalidBackup { .. } => "use another file that `cairn state backup` wrote".into(),
            DaemonError::DamagedState { path, .. }
            | DaemonError::StateUnread { path, .. }
            | DaemonError::StateGone { path } => state_next(path),
            DaemonError::StateKnown { .. } => "`cairn state list` lists them".into(),
            DaemonError::StateNeeded { path, ends } => format!("{}; or {ends}", state_next(path)),
            DaemonError::NoPrevious { path } => format!(
                "put a copy of {0} back and run `cairn state restore {0}`, or abandon it with `cairn state give-up {0}`",
                path.display()
            ),
            DaemonError::StateVersion { .. } => {
                "use the version of cairn that wrote it, or a newer one".into()
            }
            DaemonError::Config { .. } => {
                "correct the file; docs/reference/configuration.md lists its keys".into()
            }
            DaemonError::Listen { source, .. } => match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "end the program that listens there (`ss -ltnp` names it), or \
                    choose another address with --nbd, --iscsi, --mirror or --http"
                        .into()
                }
                std::io::ErrorKind::PermissionDenied => "choose a port above 1023".into(),
                _ => "choose an address of this machine with --nbd, --iscsi, --mirror or --http".into(),
            },
            DaemonError::SocketPath { .. } => {
                "choose a data directory with a shorter path (below 90 bytes)".into()
            }
            DaemonError::LocalOnly { .. } => {
                "run it on the machine of the server with --data DIR, for example by ssh".into()
            }
            DaemonError::Unauthorized => {
                "give `--token-file FILE` with a token of `cairn token create`, or a copy of DIR/http-token of the server".into()
            }
            DaemonError::NoSuchPath { .. } => "use a client of the same version as the server".into(),
            DaemonError::BadRequest { .. } => "see /v1/openapi.json".into(),
        }
    }
}

/// The next step for an unreadable state file.
fn state_next(path: &Path) -> String {
    let file = path.display();
    let older = match state::previous(path).is_file() {
        true => {
            format!("; `cairn state restore {file} --previous` loads its previous generation")
        }
        false => String::new(),
    };
    format!(
        "put a copy of it back and run `cairn state restore {file}`{older}; or abandon it with `cairn state give-up {file}`, which shows the cost first"
    )
}
