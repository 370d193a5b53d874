//! The parts of a session of any front end, independent of the protocol. The threads that take
//! connections, a socket with vectored calls, and bytes on their way from it into blocks. The
//! memory limit of all sessions, the wait for a client, and recent activity.
//!
//! Nothing here knows a protocol. Invariants:
//! - Data is placed in its blocks as the device needs it ([`Payload`]), so that an aligned write
//!   becomes whole blocks without another copy.
//! - The memory that sessions hold for data has a limit, and no session waits for another to get
//!   its part ([`Windows`]).
//! - Connections that have shown nothing yet have places of their own, and make room for each other
//!   ([`Lobby`]).
//! - A client that reads in order waits for the disk and for the network at the same time
//!   ([`ReadAhead`]).
//! - A session takes further requests while earlier ones wait for the disk ([`Lanes`]).
//! - A server's connections are on one roster, from their acceptance to their end ([`Roster`]).
//! - A session's activity is counted once a batch, under a lock that only readers of the counts
//!   also take ([`Meter`]).

mod acceptors;
mod ahead;
mod input;
mod lanes;
pub mod limits;
mod lobby;
mod locks;
mod meter;
mod patience;
mod payload;
mod roster;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod seats;
mod socket;
#[cfg(test)]
mod tests;
mod unfinished;
mod window;

pub use acceptors::{Acceptors, Portal};
pub use ahead::ReadAhead;
pub use input::Input;
pub use lanes::Lanes;
pub use lobby::{Lobby, Place};
pub use meter::{Activity, Batch, Kind, Meter, Rate, Totals};
pub use patience::Patience;
pub use payload::{Payload, each_piece};
pub use roster::{Connection, Member, Roster, Session, Table, wait_for_begun};
pub use seats::{Room, Seat, room};
pub use socket::Socket;
pub use unfinished::Unfinished;
pub use window::{Window, Windows};
