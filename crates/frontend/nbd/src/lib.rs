//! NBD: sockets and sessions over any [`cairn_device::Device`], and a client.
//!
//! One thread serves a connection. It takes all requests that the client has pipelined, passes them
//! to the device as one batch, and sends their replies directly from the device's blocks: first
//! data from memory, then the rest. `cairn-frontend-session` has the parts that iSCSI shares.
//! `docs/tasks/nbd.md` describes the use by a server; the wire format is in `cairn-proto-nbd`.
//!
//! Promises to a client:
//! - A flush covers every write, on whatever connection, that was answered before the flush was
//!   sent.
//! - The size is the one at the time of connecting; a device that grew shows its new size after
//!   reconnecting. Requests are checked against the size as of now.
//! - A client that breaks the protocol, stalls or disconnects harms no other session.

mod address;
mod client;
mod device_error;
mod exports;
mod lanes;
mod limits;
mod listener;
mod registry;
mod round;
#[cfg(all(test, feature = "shuttle"))]
#[path = "tests/schedules.rs"]
mod schedules;
mod server;
mod session;
mod status;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod transport;

pub use address::{Address, InvalidAddress};
pub use cairn_frontend_session::{Activity, Rate, Totals, Unfinished};
pub use cairn_proto_nbd::{ContextStatus, NbdError, ReplyMode, StatusExtent};
pub use client::{Answer, Client, ClientError, ClientOptions, ClientRequest, Completion};
pub use exports::{ChangedBlocks, Export, ExportInfo, Exports, OpenExportError, Visitor};
pub use listener::{ListenError, Listener};
pub use registry::SessionInfo;
pub use server::{NbdServer, ServerOptions, StartError};
