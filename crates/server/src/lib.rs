//! The daemon: configuration, the data directory, the threads, and the API that everything else
//! talks to.
//!
//! The engine below knows no thread and no clock of its own; this crate owns both. One thread a
//! volume does its background work, NBD and iSCSI have a thread a connection, each mirror
//! connection and each job has one; HTTP is the only asynchronous part. The command line is a
//! client of [`cairn_api`] over `DIR/control.sock`.

mod actors;
mod browse;
mod buckets;
mod certificates;
mod daemon;
mod devices;
mod dumps;
mod error;
mod exports;
mod fleet;
pub mod fuzzing;
mod groups;
mod http;
mod mirrors;
mod names;
mod notify;
mod peers;
mod schedules;
mod state;
mod storage;
mod volumes;
mod work;

pub use daemon::config::{
    Config, DEFAULT_CACHE, DEFAULT_ISCSI, DEFAULT_MIRROR, DEFAULT_NBD, Settings, check as check_config,
};
pub use daemon::data_dir::backup::{back_up as back_up_state, restore as restore_state};
pub use daemon::run::run;
pub use error::ServerError;
pub use http::openapi_json;
pub use peers::identity::{Fingerprint, InvalidFingerprint};
