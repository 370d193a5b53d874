//! Every struct on a Cairn disk and in an image stream: bytes to types and back, no I/O.
//! `docs/format.md` is its prose, and normative.
//!
//! All structs are fixed, little-endian, without implicit padding; reserved bytes are zero and
//! checked. Bytes that come from a disk are parsed into checked types or refused with a
//! [`FormatError`]; nothing here panics on them.

pub mod delta;
mod directory;
pub mod dump;
mod error;
mod extended;
mod have;
pub mod history;
mod inode;
mod label;
pub mod layout;
mod leaf;
mod log;
mod log_device;
mod node;
mod pointer;
mod quota;
mod root;
mod sealed;
pub mod stream;
mod superblock;
pub mod trace;

pub use directory::{DirectoryEntry, ENTRIES_PER_BLOCK, MAX_FILE_NAME};
pub use error::{FormatError, Structure};
pub use extended::{EXTENDED_BYTES_MAX, EXTENDED_NAME_MAX, EXTENDED_VALUE_MAX, Extended};
pub use have::HaveBlock;
pub use inode::{Attributes, FileKind, INODES_PER_BLOCK, Inode};
pub use label::{
    IndexBlock, LabelPointer, MAX_SNAPSHOT_NAME, POINTERS_PER_INDEX, RUNS_PER_BLOCK, RedirectBlock,
    RedirectRun, SNAPSHOTS_PER_BLOCK, SnapshotBlock, SnapshotEntry,
};
pub use leaf::{
    KEY_BITS, KEY_MIN, LEAF_BYTES, LEAF_LEVEL_MAX, Leaf, LeafHead, LeafName, LeafNames, LeafPlace,
    NAME_BYTES_MAX,
};
pub use log::{ENTRIES_PER_FIRST_BLOCK, LogEntry, LogRecord, LogRecordHeader};
pub use log_device::LogDeviceHeader;
pub use node::{FANOUT, Node, NodeAddress, NodeMut};
pub use pointer::{BlockPointer, TreeRef};
pub use quota::QuotaRecord;
pub use root::Root;
pub use superblock::{
    Cursor, ExternalLog, Layout, LogTail, Role, SEGMENTS_MAX, Segment, SegmentKind, Superblock, TableRef,
};

/// A block as bytes.
pub type BlockBytes = [u8; cairn_base::BLOCK_SIZE];

#[cfg(test)]
mod tests;
