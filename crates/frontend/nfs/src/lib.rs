//! NFS version 3: the files of volumes for clients on the network.
//!
//! One thread serves a connection. It takes all requests that the client has pipelined, executes
//! them, makes their changes durable with one flush, and sends the replies. Data of a read is sent
//! from the blocks that it is in. `cairn-frontend-session` has the parts that NBD and iSCSI share,
//! `cairn-proto-nfs` the wire format. MOUNT and NLM are served on the same port. No port mapper is
//! needed but for locks; one that is there gets the entries.
//!
//! Promises to a client:
//! - A change of names or attributes, a synchronous write and a COMMIT are durable when they are
//!   answered. Unstable writes are kept until the write verifier changes.
//! - A file handle stays valid over restarts of the server, and at a mirror that was failed over:
//!   it holds numbers that are the same there, and an authentication code whose key the volume
//!   carries. A handle whose file is gone is stale, and never means another file.
//! - A change that a client repeats, because it got no answer, is done once as long as the server
//!   has not restarted in between.
//! - A listing continues after a cookie whatever names come and go, and after a restart.
//! - Below `.snapshot` each directory shows its past, which does not change.
//! - Locks of byte ranges (NLM) follow POSIX. After a restart only those that a client had before
//!   are granted, until the grace period ends.
//!
//! It has no other versions and no Kerberos. The server checks permissions by the user and the
//! groups that the client's machine claims.

#![expect(
    clippy::result_large_err,
    reason = "the attributes of a failed request are in its reply, once for each request"
)]

mod around;
mod attributes;
mod changes;
mod cold;
mod credentials;
mod exports;
mod handle;
mod limits;
mod listener;
mod listing;
mod locking;
mod locks;
mod mounting;
mod node;
mod operations;
mod outgoing;
mod registration;
mod registry;
mod rights;
mod round;
mod running;
mod server;
mod session;

mod status;
#[cfg(test)]
mod tests;
mod view;
mod warnings;

mod replies;

pub use cairn_frontend_session::{Activity, Totals};
pub use credentials::{Rules, Squash};
pub use exports::{Export, Exports, Unavailable};
pub use handle::{KEY_BYTES, Key, Keys};
pub use listener::{ListenError, Listener};
pub use locks::host::{LockHost, LockRecord, NotRecorded, Recorded, RecordedHost};
pub use registration::Registered;
pub use registry::SessionInfo;
pub use running::ServerOptions;
pub use server::NfsServer;
pub use view::{Served, View};
