//! The iSCSI protocol and SCSI on top of it, seen from a target: codecs, negotiation, the states of
//! login, session and logical unit.
//!
//! No sockets and no clock: bytes come in as slices, bytes go out into vectors, and actions are
//! returned as values. So a front end, a simulator or a fuzzer can drive a session alike. Bytes of
//! a peer never cause a panic; they get the response that the specifications name, or end the
//! connection ([`Violation`]). The specifications are RFC 7143 and 7144 (iSCSI), SPC-4 and SBC-3
//! (SCSI).

pub mod chap;
pub mod limits;
mod login;
mod negotiate;
pub mod pdu;
pub mod scsi;
mod session;
#[cfg(test)]
mod tests;
pub mod text;

pub use login::{Gatekeeper, Identity, LoggedIn, Login, LoginError, Step};
pub use negotiate::{Operational, Outcome};
pub use session::{
    Attribute, CommandRequest, DataOut, Event, Management, ManagementResponse, RejectReason, Residual,
    Session, Violation, Wants,
};
