//! iSCSI: portals and sessions over any [`cairn_device::Device`].
//!
//! One thread serves a connection, which is a session. It takes all PDUs that the initiator has
//! sent, passes complete commands to the device as one batch, and sends their answers directly from
//! the device's blocks: first data from memory, then the rest. Data of writes is requested as
//! memory allows. `cairn-frontend-session` has the parts that NBD shares. `docs/tasks/iscsi.md`
//! describes the use by a server; the protocol is in `cairn-proto-iscsi`.
//!
//! Promises to an initiator:
//! - A SYNCHRONIZE CACHE covers every write, of whatever session, that was answered before it was
//!   sent.
//! - COMPARE AND WRITE is one step among all writes over iSCSI to that unit. Writes over NBD to the
//!   same LUN are not held back by it.
//! - Reservations belong to initiator ports; those with APTPL outlive the server.
//! - Targets that are names of one disk share its unit and its reservations, and distinguish
//!   initiators by the name that they used.
//! - Task management is answered at once, however long the device takes: waiting commands are
//!   dropped. For a command that has begun, either the function waits or it is rejected.
//! - An initiator that breaks the protocol, stalls or disconnects harms no other session.

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
