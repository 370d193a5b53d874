//! The clients that have locks over NFS: `DIR/nfs-locks.json`.
//!
//! A client is stored before it gets its first lock. After a restart the server sends each of them
//! a message, so that it claims its locks again. The locks themselves are not stored: clients know
//! them.

use std::path::{Path, PathBuf};

use cairn_frontend_nfs::{LockHost, LockRecord, NotRecorded, Recorded, RecordedHost};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::state;

/// The content of `nfs-locks.json`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct LocksDocument {
    /// The number of the last start, which clients compare: odd, and larger with each.
    start: u32,
    clients: Vec<Client>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Client {
    address: String,
    /// The name that it gave itself.
    name: String,
    /// The address of this server that it uses.
    server: String,
}

/// The record of a data directory.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    /// The number of this start.
    start: Mutex<u32>,
}

impl LockFile {
    pub(crate) fn new(data: &Path) -> Self {
        Self { path: data.join("nfs-locks.json"), start: Mutex::default() }
    }

    fn try_begin(&self) -> Result<Recorded, ServerError> {
        let document = state::load::<LocksDocument>(&self.path)?;
        let mut document = document.unwrap_or_default();
        document.start = document.start.wrapping_add(2) | 1;
        let known = |client: &Client| {
            let address = client.address.parse().ok()?;
            let host = LockHost { address, name: client.name.clone() };
            Some(RecordedHost { host, server: client.server.parse().ok()? })
        };
        let hosts: Vec<RecordedHost> = document.clients.iter().filter_map(known).collect();
        *self.start.lock() = document.start;
        // Only clients with locks compare the number: the file is written with the first one.
        if !hosts.is_empty() {
            state::save(&self.path, &document)?;
        }
        Ok(Recorded { state: document.start, hosts })
    }
}

impl LockRecord for LockFile {
    fn begin(&self) -> Option<Recorded> {
        let begun = self.try_begin();
        if let Err(error) = &begun {
            tracing::error!(%error, "the NFS clients with locks are unknown: no client gets a lock until the next start");
        }
        begun.ok()
    }

    fn save(&self, hosts: &[RecordedHost]) -> Result<(), NotRecorded> {
        let client = |known: &RecordedHost| Client {
            address: known.host.address.to_string(),
            name: known.host.name.clone(),
            server: known.server.to_string(),
        };
        let document =
            LocksDocument { start: *self.start.lock(), clients: hosts.iter().map(client).collect() };
        state::save(&self.path, &document).map_err(|error| {
            tracing::error!(%error, "the NFS clients with locks cannot be stored");
            NotRecorded
        })
    }
}
