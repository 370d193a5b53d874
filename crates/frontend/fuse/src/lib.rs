//! FUSE: the tree of a volume as a file system of this machine, with its snapshots below
//! `.snapshot`.
//!
//! Threads read requests from `/dev/fuse`, ask a [`cairn_files::Tree`] and answer. This crate uses
//! the kernel's structs directly, without a library: no maintained one has the time of birth
//! (`STATX`), and no C library has to be installed.
//!
//! Promises to a program in a mount:
//! - A file or directory without names exists until the kernel forgets it: as long as a program has
//!   it open, refers to it (`O_PATH`), works in it, or has it mounted elsewhere.
//! - A write that `close` or `fsync` followed is here; one that `fsync` followed is durable, with
//!   the names of the file.
//! - After the server died, every use of the mount fails with `ENOTCONN`. It works again when the
//!   server is back, which mounts it anew at the same place. Fsynced data is present; data in the
//!   kernel's write-back cache or in the server's memory may be lost.
//! - A mount of a mirror shows one image at a time: a new path lookup from the root sees the newest
//!   image, and open files and working directories stay in theirs.
//! - Everything below `.snapshot/NAME` is unchanged since that snapshot was made.
//!
//! A live tree has one connection, wherever it appears: so the kernel's cache and the kernel's
//! locks are right.

mod abi;
mod attributes;
mod caller;
mod conversation;
mod directory;
mod error;
mod mount;
mod node;
mod operations;
mod queues;
mod readers;
mod received;
mod request;
mod room;
mod session;
mod shown;
#[cfg(test)]
mod tests;
mod times;
mod users;

pub use conversation::Unmounted;
pub use error::MountError;
pub use mount::{Mount, MountOptions, MountsWatch, cut_all, mounted, show_also, unmount};
pub use shown::{Follows, View};
