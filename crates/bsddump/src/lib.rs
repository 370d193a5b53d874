//! The BSD dump tape format, as Linux `dump` 0.4b writes it and Linux `restore` reads it: written,
//! and read.
//!
//! A dump is a row of records of 1 KiB. Headers describe the following records; a file's header has
//! a map of which of the next 1 KiB pieces are present and which are holes. First comes a label,
//! then two maps of inodes (those in use, those in this dump), then the directories in order of
//! inode, then everything else in order of inode. So a reader knows all names before the first
//! file, and a dump goes through a pipe. It may be cut into volumes, each with a label of its own.
//!
//! [`Dump`] writes the content of a [`Source`]; [`Reader`] returns directories and files one after
//! the other; [`Names`] are the paths that the directories form. Nothing here touches a file
//! system, starts a thread or reads a clock.
//!
//! # Invariants
//! 1. Linux `restore` reads every dump written here. Cairn's additions (nanoseconds, times past
//!    2038, checksums of content) are in bytes of headers that the format leaves free, and content
//!    is never changed for them.
//! 2. A directory or file that a source cannot read is reported, and affects no other.
//! 3. Input is hostile: no input causes a panic, memory follows the real size of the input, and a
//!    damaged record only affects its own file. Damaged and missing files are known at the end.
//!
//! # What it does not do
//! Compressed dumps (`dump -z`, `-j`) and dumps of other byte order or of BSD's own file systems
//! are refused with their name.

mod attributes;
mod directory;
mod error;
mod header;
mod inode;
mod map;
mod names;
mod reader;
mod record;
mod source;
mod writer;

pub use attributes::Attribute;
pub use directory::Entry;
pub use error::{ReadError, WriteError};
pub use inode::{Inode, Kind, ROOT, Time};
pub use map::InodeMap;
pub use names::Names;
pub use reader::{Content, Damage, Label, Reader, VolumeLabel};
pub use record::{NextVolume, RECORD, RECORDS_PER_BLOCK, VOLUME_RECORDS_MIN};
pub use source::{Selection, Source};
pub use writer::{Dump, Failed, Known, Lacks, Options, Phase, Planned, Progress, Written};

#[cfg(test)]
mod tests;
