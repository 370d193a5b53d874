//! Machines that hold locks, and the owners of locks on them.

use std::fmt::Debug;
use std::net::IpAddr;

/// A machine: a client cannot name itself as another one at another address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockHost {
    /// Its address.
    pub address: IpAddr,
    /// The name that it gave itself.
    pub name: String,
}

/// A host as it is stored, for a message after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedHost {
    /// The host.
    pub host: LockHost,
    /// The address of the server that it used, by which it knows the server.
    pub server: IpAddr,
}

/// The record of the time before a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The number of this start for clients: odd, and larger than all before.
    pub state: u32,
    /// The hosts that may have had locks.
    pub hosts: Vec<RecordedHost>,
}

/// The hosts can't be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the clients with locks cannot be stored")]
pub struct NotRecorded;

/// Keeps the hosts that have locks over restarts of the server.
pub trait LockRecord: Debug + Send + Sync {
    /// Begins a start: counts its number up, durably. `None` if the record can't be read or
    /// written: then no lock is granted that a restart would lose silently.
    fn begin(&self) -> Option<Recorded>;

    /// Stores the hosts, durably.
    ///
    /// # Errors
    /// [`NotRecorded`].
    fn save(&self, hosts: &[RecordedHost]) -> Result<(), NotRecorded>;
}

/// Keeps nothing: after a restart, no client learns that its locks are gone.
#[derive(Debug, Default)]
pub(crate) struct Forgetful;

impl LockRecord for Forgetful {
    fn begin(&self) -> Option<Recorded> {
        Some(Recorded { state: 1, hosts: Vec::new() })
    }

    fn save(&self, _: &[RecordedHost]) -> Result<(), NotRecorded> {
        Ok(())
    }
}

/// The owner of a lock: a process of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) host: LockHost,
    pub(crate) process: u32,
    pub(crate) bytes: Vec<u8>,
}
