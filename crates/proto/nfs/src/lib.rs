//! NFS version 3, MOUNT version 3 and NLM version 4: bytes to values and back. No socket, no clock.
//!
//! The layers, from the wire up: [`record`] finds the messages in a TCP stream (RFC 5531, section
//! 11). [`rpc`] reads the head of a call and writes that of a reply (RFC 5531). [`Call`] and
//! [`Reply`] are the 22 procedures of NFS version 3 (RFC 1813), [`MountCall`] and [`MountReply`]
//! those of MOUNT (RFC 1813, appendix I), [`nlm`] those of the lock manager (appendix II). [`nsm`]
//! has the message about a restart, [`portmap`] the calls that a server sends to a port mapper.
//!
//! # Invariants
//! - A decoder allocates no more than a small multiple of the bytes that it gets. Names and data
//!   of calls are borrowed from the record.
//! - Names are bytes here. The front end decides which of them are valid.
//! - Decoding a value that was encoded gives the same value.

mod attributes;
mod calls;
mod mount;
pub mod nlm;
pub mod nsm;
pub mod portmap;
pub mod record;
mod replies;
pub mod rpc;
#[cfg(test)]
mod tests;
mod xdr;

pub use attributes::{
    Attributes, DeviceNumbers, HANDLE_BYTES_MAX, Handle, Kind, SetAttributes, SetTime, Stable, Status, Time,
    VERIFIER_BYTES, Verifier, Wcc, WccAttributes, access,
};
pub use calls::{Call, CreateHow, MakeNode, Place};
pub use mount::{Exported, MOUNT_PATH_BYTES_MAX, MountCall, MountReply, MountStatus, Mounted};
pub use replies::{
    Accessed, Committed, DirectoryEntry, Failed, FileSystemInfo, FileSystemSpace, Found, Linked, Listing,
    Made, Outcome, PathLimits, PlusEntry, Read, Renamed, Reply, Target, Written, listed_bytes, plus_bytes,
    read_reply_head,
};
pub use xdr::{Malformed, padding};
