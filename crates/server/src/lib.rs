//! The daemon: configuration, the data directory, the threads, and the API that everything else talks to.
//!
//! The engine below knows no thread and no clock of its own; this crate owns both. One thread a volume does its
//! background work, NBD and iSCSI have a thread a connection, each mirror connection and each job has one; HTTP is the only
//! asynchronous part. The command line is a client of [`cairn_api`] over `DIR/control.sock`.

mod access;
mod background;
mod budgets;
mod changed;
mod config;
mod contents;
mod damaged;
mod data_dir;
mod destination;
mod devices;
mod drills;
mod dry_runs;
mod dumps;
mod error;
mod exports;
mod followers;
pub mod fuzzing;
mod governor;
mod groups;
mod handover;
mod histories;
mod hooks;
mod http;
mod identity;
mod images;
mod jobs;
mod limits;
mod memory;
mod metrics;
mod mirrors;
mod mounts;
mod names;
mod notify;
mod pace;
mod past_cache;
mod peers;
mod plans;
mod quotas;
mod recordings;
mod schedules;
mod seen;
mod server;
mod settled;
mod source;
mod state;
mod targets;
mod threads;
mod tls;
mod token;
mod transfer;
mod turns;
mod volumes;
mod watchdog;
mod watched;
mod wire;

pub use config::{
    Config, DEFAULT_CACHE, DEFAULT_ISCSI, DEFAULT_MIRROR, DEFAULT_NBD, Settings, check as check_config,
};
pub use error::ServerError;
pub use http::openapi_json;
pub use identity::{Fingerprint, InvalidFingerprint};
pub use server::run;
