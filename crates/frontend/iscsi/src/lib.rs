//! iSCSI: portals and sessions over any [`cairn_device::Device`].
//!
//! A thread serves a connection, which is a session. It takes all PDUs that the initiator has sent,
//! gives the commands that are complete to the device as one batch, and sends their answers
//! straight from the blocks that the device gave: first what was in memory, then the rest. Data of
//! writes is asked for as memory allows. What that takes and NBD takes as well is in
//! `cairn-frontend-session`. `docs/tasks/iscsi.md` tells how a server uses it; the protocol is in
//! `cairn-proto-iscsi`.
//!
//! What an initiator is promised:
//! - A SYNCHRONIZE CACHE covers every write, of whatever session, that was answered before it was
//!   sent.
//! - COMPARE AND WRITE is one step among all writes over iSCSI to that unit. Writes over NBD to the
//!   same LUN are not held back by it.
//! - Reservations belong to initiator ports; those with APTPL outlive the server.
//! - Targets that are names of one disk share its unit, with all that it knows of reservations, and
//!   tell apart by which of them an initiator came.
//! - Task management is answered at once, however long the device takes: what waits is dropped, and
//!   what has begun is waited for or the function is rejected.
//! - An initiator that breaks the protocol, stalls or goes away harms no other session.

mod attend;
mod control;
mod device_error;
mod execute;
mod limits;
mod listener;
mod locks;
mod login;
mod order;
mod pacer;
mod registry;
mod round;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod server;
mod session;
mod targets;
mod task;
mod units;

pub use cairn_frontend_session::{Activity, Rate, Totals};
pub use cairn_proto_iscsi::chap::{Account, Credential};
pub use cairn_proto_iscsi::scsi::{Registration, ReservationState, nexus_name};
pub use cairn_proto_iscsi::{LoginError, Operational};
pub use listener::{ListenError, Listener};
pub use registry::SessionInfo;
pub use server::{IscsiServer, ServerOptions};
pub use targets::{Export, Initiator, OpenTargetError, Targets};
