//! `cairn csi`: the Container Storage Interface for volumes of a Cairn server.
//!
//! The driver is a process of its own beside the sidecars of Kubernetes. It knows the server by its
//! API alone, and keeps no state: what it needs to know is in the server, in the kernel of the
//! node, or on the disk itself. So a call that was cut off at any step is completed by the same
//! call, from another process as well.
//!
//! # Objects
//! A CSI volume is a volume of Cairn with one LUN, `disk`. It is not a LUN of a common volume,
//! since snapshots, clones and mirrors of Cairn are of volumes. The names are derived from those of
//! the CSI request, [`names`]. The driver lists, changes and deletes only objects with its prefix.
//! A snapshot is a snapshot of that volume; a clone is a clone of Cairn, which shares blocks with
//! its origin.
//!
//! A volume or a snapshot that others depend on is deleted in two steps. The origin of a clone
//! loses its LUN, and a snapshot gets a hidden name. The rest is deleted with the last dependent.
//!
//! # Invariants
//! 1. **At most one node can write a volume.** A LUN has one rule of access. It admits no client,
//!    or the node that the volume is published to. The server changes the rule and closes all
//!    sessions of the LUN before it answers, so nothing of the former node can arrive after that.
//!    A controller changes the rule only if the holder that it has read still holds the volume,
//!    which the server compares under the lock of the change. Of two controllers one fails.
//! 2. A new volume admits no client before `CreateVolume` succeeds. A clone has the rule of its
//!    origin for a moment; the holder in it names the origin, so it does not count as published.
//! 3. No file system is made over data. A disk is formatted only if its beginning and its end are
//!    zero, and the server has no block of it; or if it has the mark of a format that was cut off.
//!    The beginning of a new file system is written last.
//! 4. `DeleteVolume` deletes nothing that is published or that has a session.
//! 5. A deleted object is gone from all lists at once, and its blocks are freed when the last
//!    dependent is deleted.
//!
//! # Not done here
//! The driver formats ext4 and xfs only, has no topology, offers a volume to one node at a time,
//! also for reading, and does not resize the NBD device of a running node.

mod cairn;
mod controller;
mod errors;
pub mod host;
pub mod names;
mod node;
mod serve;
mod turns;

pub use cairn::{Api, Connection, Verb};
pub use controller::{Controller, ControllerOptions};
pub use node::{Attachment, Node, NodeOptions, Programs};
pub use serve::{Options, ServeError, serve};

/// The name of the driver in Kubernetes, unless another one is given.
pub const DRIVER_NAME: &str = "csi.cairn.io";

#[cfg(test)]
mod tests;
