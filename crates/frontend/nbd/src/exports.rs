//! A front end's interface to the server: the exports, and the device of each.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_device::{Device, DeviceError};
use rustls::pki_types::CertificateDer;

/// An export in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// `VOLUME/LUN` or `VOLUME@SNAPSHOT/LUN`.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// A client, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visitor {
    /// Its address; none on a unix socket.
    pub from: Option<IpAddr>,
    /// TLS has started.
    pub tls: bool,
    /// The certificates that it has shown, its own first, whose key it has. Whether to trust them
    /// is up to [`Exports::admit`].
    pub certificates: Vec<CertificateDer<'static>>,
}

/// The server's list of exports. Called from the threads of sessions.
pub trait Exports: Send + Sync {
    /// All exports, as `NBD_OPT_LIST` shows them.
    fn list(&self) -> Vec<ExportInfo>;

    /// The export for a client that names none, if there is exactly one.
    fn default_export(&self) -> Result<String, OpenExportError> {
        match self.list().as_slice() {
            [only] => Ok(only.name.clone()),
            several => Err(OpenExportError::NoDefault { count: several.len() }),
        }
    }

    /// Whether a client may open an export. A list has only those that it may open.
    fn admit(&self, _name: &str, _visitor: &Visitor) -> Result<(), OpenExportError> {
        Ok(())
    }

    /// A client that named an export was refused by [`Exports::admit`].
    fn refused(&self, _name: &str, _visitor: &Visitor, _error: &OpenExportError) {}

    /// Opens one for a session (or for a client that only asks about it).
    fn open(&self, name: &str) -> Result<Export, OpenExportError>;
}

/// An export that was opened.
#[derive(Clone)]
pub struct Export {
    /// Where its bytes are. A session keeps it until it ends.
    pub device: Arc<dyn Device>,
    /// For people; may be empty.
    pub description: String,
    /// Writes are refused, even if the device accepts them.
    pub read_only: bool,
    /// Every write is durable when it is answered, as if it had NBD_CMD_FLAG_FUA.
    pub writes_through: bool,
    /// A flush of the device covers writes completed on every connection, so that clients may use
    /// several.
    pub multi_conn: bool,
    /// Snapshots that can be named in `qemu:dirty-bitmap:SNAPSHOT`.
    pub dirty_contexts: Vec<String>,
    /// The source of the answers for `dirty_contexts`.
    pub changed: Option<Arc<dyn ChangedBlocks>>,
}

/// Returns the bytes that changed since a snapshot.
pub trait ChangedBlocks: Send + Sync {
    /// Stretches from `offset` in order: (bytes, whether they changed since `snapshot`), covering
    /// at most `length` bytes, at most `limit` of them.
    fn changed_since(
        &self,
        snapshot: &str,
        offset: u64,
        length: u64,
        limit: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError>;
}

/// Why an export was not opened. The text goes to the client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenExportError {
    /// There is no export of this name.
    #[error("no such export: {name:?}; list the exports, and name one as VOLUME/LUN")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The client named none, and there is not exactly one.
    #[error("there are {count} exports and so no default one; name one as VOLUME/LUN")]
    NoDefault {
        /// How many there are.
        count: usize,
    },
    /// It is being deleted, or the server stops.
    #[error("the export {name:?} is going away; connect again later")]
    GoingAway {
        /// The requested name.
        name: String,
    },
    /// The client may not open it.
    #[error("the export {name:?} is not for this client: {reason}")]
    Forbidden {
        /// The requested name.
        name: String,
        /// The rule of the export.
        reason: &'static str,
    },
    /// The client may open it only over TLS.
    #[error("the export {name:?} is for clients with a certificate: connect with TLS")]
    NeedsTls {
        /// The requested name.
        name: String,
    },
    /// Opening it failed.
    #[error("the export {name:?} can't be opened; the server's log and `cairn status` say why")]
    Failed {
        /// The requested name.
        name: String,
        /// The cause; for the server's log.
        source: DeviceError,
    },
}
