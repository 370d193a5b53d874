//! Errors of a device, by kind.

use std::io;
use std::sync::Arc;

use crate::Segments;

/// The operation in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Opening or creating it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Flush,
    /// Freeing.
    Trim,
    /// Writing zeroes.
    WriteZeroes,
    /// Asking for extents.
    Extents,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Open => "open",
            Action::Read => "read",
            Action::Write => "write",
            Action::Flush => "flush",
            Action::Trim => "trim",
            Action::WriteZeroes => "write zeroes",
            Action::Extents => "query of extents",
        })
    }
}

/// Why an operation failed. Cloning is cheap, as one failure can end many operations.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeviceError {
    /// The operating system or the hardware failed it.
    #[error("{action} of {length} bytes at {offset} failed: {source}")]
    Io {
        /// The operation in progress.
        action: Action,
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// No space is left for the write; no other operation fails. For a flush: its data is kept, and
    /// a later flush that succeeds makes it durable. A file whose flush fails has lost the data,
    /// whatever the reason, and reports [`DeviceError::Io`].
    #[error("no space is left for {length} bytes at {offset}")]
    NoSpace {
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The bytes are damaged: a checksum failed. They are not served.
    #[error("the data at {offset} ({length} bytes) is damaged: its checksum does not match")]
    Corrupt {
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The request reaches past the end.
    #[error("{action} of {length} bytes at {offset} reaches past the end at {end}")]
    OutOfRange {
        /// The requested operation.
        action: Action,
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes.
        end: u64,
    },
    /// Offset or length is no multiple of the device's alignment.
    #[error("{action} of {length} bytes at {offset} is not aligned to {alignment}")]
    Unaligned {
        /// The requested operation.
        action: Action,
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes.
        alignment: u32,
    },
    /// The device takes no writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device has failed or was closed; every request is refused until it is opened again.
    #[error("the device is out of service")]
    OutOfService,
    /// Its client has disconnected or has aborted it, or its export was closed. It had no effect,
    /// or only a part that was never acknowledged.
    #[error("the request was withdrawn before it began")]
    Withdrawn,
}

impl DeviceError {
    /// The refusal of an atomic write that is too long, or not of whole blocks.
    pub fn not_atomic(offset: u64, data: &Segments) -> Self {
        let alignment = cairn_base::BLOCK_SIZE as u32;
        Self::Unaligned { action: Action::Write, offset, length: data.len() as u64, alignment }
    }
}
