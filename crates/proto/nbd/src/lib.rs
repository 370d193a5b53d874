//! The NBD protocol: wire codecs and the state machine of the negotiation, for both sides.
//!
//! No sockets and no clock: bytes come in as slices, bytes go out into vectors, and actions are
//! returned as values. So a front end, a simulator or a fuzzer can drive a session alike. Bytes of
//! a peer never cause a panic; they get the error that the specification names, or end the session
//! ([`Violation`]).

mod client;
pub mod constants;
mod context;
mod cursor;
mod error;
mod handshake;
pub mod limits;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use client::{
    ClientHandshake, ClientStep, ClientWishes, ContextStatus, ExportOffer, HandshakeFailure, ReplyEvent,
    ReplyFailure, decode_reply, put_block_status_request, put_request,
};
pub use context::{BASE_ALLOCATION, Context, ContextKind, DIRTY_BITMAP_PREFIX};
pub use error::{NbdError, Violation};
pub use handshake::{Catalog, ExportDescription, Handshake, Negotiated, Refusal, ReplyMode, Step, TlsPolicy};
pub use reply::{
    ReplyTo, StatusExtent, put_block_status, put_error, put_read_header, put_read_piece, put_success,
};
pub use request::{Command, Decoded, ExportState, Request, decode_request, request_header_bytes};
