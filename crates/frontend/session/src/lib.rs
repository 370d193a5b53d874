//! What a session of any front end is made of, whatever it speaks: the threads that take
//! connections, a socket with vectored calls, bytes on their way from it into blocks, the memory
//! that all sessions may hold, how one waits for its client, and what it did lately.
//!
//! Nothing here knows a protocol. Invariants:
//! - Data stands in its blocks where the device has it ([`Payload`]), so that an aligned write
//!   becomes whole blocks without another copy.
//! - What sessions hold for data has a limit, and none waits for another to have its part
//!   ([`Windows`]).
//! - Connections that have shown nothing yet have places of their own, and make room for each other
//!   ([`Lobby`]).
//! - A server's connections are on one roster, from their acceptance to their end ([`Roster`]).
//! - What a session does is counted once a batch, under a lock that nobody else takes but whoever
//!   looks at it ([`Meter`]).

mod acceptors;
mod input;
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
pub use input::Input;
pub use lobby::{Lobby, Place};
pub use meter::{Activity, Batch, Kind, Meter, Rate, Totals};
pub use patience::Patience;
pub use payload::{Payload, each_piece};
pub use roster::{Connection, Member, Roster, Session, Table, wait_for_begun};
pub use seats::{Room, Seat, room};
pub use socket::Socket;
pub use unfinished::Unfinished;
pub use window::{Window, Windows};
