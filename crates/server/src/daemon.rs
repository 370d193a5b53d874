//! The server as a whole: what it is made of, how it starts and ends, and its own state.
//!
//! [`server`] is the one type that holds every room; the rooms do not import it, except for the
//! files in which its methods for a room stand.

pub(crate) mod budgets;
pub(crate) mod config;
mod damaged;
pub(crate) mod data_dir;
mod dry_runs;
pub(crate) mod error;
mod memory;
pub(crate) mod metrics;
mod notify;
pub(crate) mod run;
pub(crate) mod server;
mod watchdog;
