//! A front end's interface to the server: the targets, their access rules, and the device of each.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_device::{Device, DeviceError};
use cairn_proto_iscsi::LoginError;
use cairn_proto_iscsi::chap::Account;
use cairn_proto_iscsi::scsi::ReservationState;

/// The connecting initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initiator {
    /// Its iSCSI name, by its own statement.
    pub name: String,
    /// Where it comes from.
    pub address: IpAddr,
}

/// The server's list of targets. Called from the threads of sessions.
pub trait Targets: Send + Sync {
    /// The names of all targets that this initiator may use, in order.
    fn list(&self, initiator: &Initiator) -> Vec<String>;

    /// May it try this target, and how must it prove itself? `None`: it need not.
    fn admit(&self, initiator: &Initiator, target: &str) -> Result<Option<Account>, LoginError>;

    /// An initiator was refused, as it did not prove its identity for this target.
    fn unproved(&self, _initiator: &Initiator, _target: &str) {}

    /// Opens a target for a session.
    fn open(&self, target: &str) -> Result<Export, OpenTargetError>;

    /// Fills `bytes` with secrets from the operating system.
    fn random(&self, bytes: &mut [u8]);

    /// Keeps the persistent reservations of a [unit](Export::unit) over a restart; returns when
    /// they are durable.
    fn keep(&self, unit: &str, state: &ReservationState) -> Result<(), String>;
}

/// A target that was opened: its LUN 0.
#[derive(Clone)]
pub struct Export {
    /// The export's name: `VOLUME/LUN` or `VOLUME@SNAPSHOT/LUN`.
    pub name: String,
    /// The name of the logical unit. Exports that have it in common are one disk: with the same id,
    /// settings, reservations and unit attentions.
    pub unit: String,
    /// The relative number of this target's port among those of the unit, from 1. Each export of a
    /// unit has another, and always the same.
    pub port: u8,
    /// How many ports the unit has.
    pub ports: u8,
    /// Where its bytes are. A session keeps it until it ends.
    pub device: Arc<dyn Device>,
    /// Names the unit: the same for ever, and of no other unit.
    pub id: u64,
    /// Writes are refused, even if the device accepts them.
    pub read_only: bool,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// It can be ejected.
    pub removable: bool,
    /// Writes may be answered before they are durable. An initiator outlives its target: it
    /// continues with a server that was killed and restarted. Then writes that were answered and
    /// not flushed are missing below its next flush, and no error shows that. So it is off unless
    /// the owner enables it.
    pub write_cache: bool,
    /// Persistent reservations of the unit that were kept.
    pub reservations: ReservationState,
}

/// Why a target was not opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenTargetError {
    /// There is no target of this name.
    #[error("no such target: {name:?}")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Opening it failed.
    #[error("the target {name:?} can't be opened: {source}")]
    Failed {
        /// The requested name.
        name: String,
        /// The cause.
        source: DeviceError,
    },
}
