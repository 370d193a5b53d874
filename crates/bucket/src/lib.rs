//! Object stores: the few verbs that Cairn needs, drivers for them, and the formats of the data in
//! a bucket.
//!
//! [`Store`] has the verbs and their invariants. [`Directory`], [`Memory`] and [`Remote`] are
//! drivers. [`Retrying`] waits failures out and resolves lost answers. [`Counted`] counts requests.
//! [`seal::Sealed`] encrypts.
//! [`probe`] measures the real behaviour of a store, and [`Abilities::allows`] reports the
//! supported uses.
//!
//! The crate is synchronous: a call blocks its thread, and [`Net`] owns the only runtime.

mod abilities;
pub mod backed;
mod below;
mod counted;
mod date;
mod directory;
pub mod dumps;
mod error;
pub mod images;
pub mod limits;
mod memory;
mod name;
mod pause;
mod place;
mod probe;
mod remote;
mod retrying;
pub mod seal;
mod store;
#[cfg(test)]
mod tests;
mod workers;

pub use abilities::{Abilities, Ability, Allowed, Found, Use, Verdict};
pub use below::Below;
pub use counted::{Counted, Request, Tally};
pub use date::{parse_utc, utc};
pub use directory::Directory;
pub use error::{CredentialTrouble, KeyTrouble, StoreError, Trouble, Verb};
pub use memory::{Faults, Habits, Locks, Memory};
pub use name::{InvalidName, NAME_BYTES_MAX, Name, Prefix, SEGMENT_BYTES_MAX};
pub use pause::{Pause, Sleep};
pub use place::{InvalidPlace, Place, Service};
pub use probe::{ProbeWork, probe};
pub use remote::{Credentials, Key, Net, Options, Remote, Secret, Variables};
pub use retrying::{Patience, Retrying, Waiting};
pub use store::{
    Cursor, Head, ListFrom, Listed, Nonce, Page, Piece, Put, Store, Upload, extend_lock, list_all,
};
pub use workers::Workers;
