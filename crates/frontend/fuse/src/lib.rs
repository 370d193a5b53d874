//! FUSE: the tree of a volume as a file system of this machine, with its snapshots below
//! `.snapshot`.
//!
//! Threads read requests from `/dev/fuse`, ask a [`cairn_files::Tree`] and answer. The kernel's
//! structs are spoken here, without a library between: none of those that are kept up has the time
//! of birth (`STATX`), and there is no C library to install.
//!
//! What a program in a mount is promised:
//! - A file or directory without names is there until the kernel forgets it: as long as a program
//!   has it open, refers to it (`O_PATH`), works in it, or has it mounted elsewhere.
//! - A write that `close` or `fsync` followed is here; one that `fsync` followed is durable, with
//!   the names of the file.
//! - After the server died, every use of the mount fails with `ENOTCONN`. It works again when the
//!   server is back, which mounts it anew at the same place. What was fsynced is there; what only
//!   the kernel's write-back cache or the server's memory had may not be.
//! - A mount of a mirror shows one image at a time: who comes from the root sees the newest, who is
//!   in a directory or has a file open stays in his.
//! - Everything below `.snapshot/NAME` is as it was when that snapshot was made.
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
mod users;

pub use conversation::Unmounted;
pub use error::MountError;
pub use mount::{Mount, MountOptions, MountsWatch, cut_all, mounted, show_also, unmount};
pub use shown::{Follows, View};
