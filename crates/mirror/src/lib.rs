//! Mirrors: the protocol between a source and a destination, and the state of their relationship on
//! each side.
//!
//! The destination drives. On any `Read + Write` that the caller has connected and authenticated it
//! says hello ([`Client::hello`]), asks for the requirements ([`Client::provision_info`]), and
//! updates ([`Destination::update`]); the source answers with [`Source::serve_session`] until the
//! other side hangs up. An update has these steps: the destination lists its snapshots, the source
//! takes a held snapshot `mirror.<peer>-<relationship>.<n>`, streams the changes, the destination
//! commits, acknowledges, and the source releases the older base. A lost acknowledgement shows in
//! the next update's list. [`Destination::follow`] repeats that, for a lag of seconds.
//!
//! No threads, no sockets, no clock of its own: times are by the clock of the volume at each end.
//! The arrivals of an interrupted transfer are in the have map of a destination.

mod access;
mod births;
mod bundle;
mod client;
mod continuous;
mod copies;
mod destination;
mod error;
mod follower;
pub mod forging;
pub mod fuzzing;
mod handover;
mod keeper;
mod lag;
mod limits;
mod locks;
mod message;
mod offer;
mod relationship;
mod relay;
mod roles;
mod route;
#[cfg(all(test, feature = "shuttle"))]
#[path = "tests/schedules.rs"]
mod schedules;
mod source;
mod switch;
#[cfg(test)]
mod tests;
mod wire;

pub use access::LunAccess;
pub use births::{Birth, Locked};
pub use bundle::Bundle;
pub use cairn_stream::{Compression, Helper, Own, Threads};
pub use client::{Client, Provision};
pub use continuous::Pace;
pub use copies::{Difference, DifferenceKind, Mended, Verified, VerifyProgress, VerifyWork};
pub use destination::{
    Destination, DestinationState, GivesUp, Options, TransferKind, TransferProgress, TransferReport, Work,
};
pub use error::{LAST_REFUSAL, MirrorError, NackReason, Refusal};
pub use follower::{Follower, MirrorAtSource, held_by_peer};
pub use handover::{Departure, GiveTogether, GiveWay, Heir, Standing, Successor};
pub use keeper::{Keeper, Withheld};
pub use lag::{Contact, Lag, Loss, SourceStatus};
pub use limits::{HELD_PER_PEER, MIRRORS_PER_PEER};
pub use message::{HEIRS_MAX, PROTOCOL_VERSION};
pub use offer::SourceVolumes;
pub use relationship::{InvalidPeerName, PeerName, Relationship};
pub use route::{HOPS_MAX, Hop, Route};
pub use source::Source;
