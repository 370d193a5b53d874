//! A running server as its sessions use it, and its settings.

use std::sync::Arc;
use std::time::Duration;

use cairn_frontend_session::Windows;
use cairn_frontend_session::limits::{HANDSHAKES_MAX, SESSIONS_MAX};
use cairn_proto_nfs::portmap::PORTMAP_PORT;

use crate::exports::Exports;
use crate::limits::LOCK_GRACE;
use crate::locks::Locks;
use crate::locks::host::{Forgetful, LockRecord};
use crate::registry::Registry;
use crate::replies::Replies;
use crate::warnings::Warnings;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Sessions at once, of each listener; one more is refused.
    pub max_sessions: usize,
    /// Strangers at once, of each listener; one more takes the place of another.
    pub max_handshakes: usize,
    /// The memory that sessions may hold for data, which other servers may share.
    pub windows: Arc<Windows>,
    /// Keeps the clients with locks over restarts.
    pub lock_record: Arc<dyn LockRecord>,
    /// How long clients can claim their locks after a restart.
    pub lock_grace: Duration,
    /// The port of the port mappers of clients.
    pub portmap_port: u16,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_sessions: SESSIONS_MAX,
            max_handshakes: HANDSHAKES_MAX,
            windows: Arc::default(),
            lock_record: Arc::new(Forgetful),
            lock_grace: LOCK_GRACE,
            portmap_port: PORTMAP_PORT,
        }
    }
}

pub(crate) struct Shared {
    pub(crate) exports: Arc<dyn Exports>,
    pub(crate) options: ServerOptions,
    pub(crate) registry: Registry,
    pub(crate) replies: Arc<Replies>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) warnings: Warnings,
}
