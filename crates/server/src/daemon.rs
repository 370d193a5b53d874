//! The server as a whole: its parts, its start and end, and its own state.
//!
//! [`server`] is the one type that holds every room; the rooms do not import it, except for the
//! files with its methods for a room.

pub(crate) mod budgets;
pub(crate) mod config;
mod damaged;
pub(crate) mod data_dir;
mod dry_runs;
pub(crate) mod error;
pub(crate) mod live;
mod memory;
pub(crate) mod metrics;
mod notify;
pub(crate) mod run;
pub(crate) mod server;
mod watchdog;
