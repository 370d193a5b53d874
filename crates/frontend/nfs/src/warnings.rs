//! Messages that clients can cause: each is logged at a bounded rate.

use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

use crate::limits::LOG_EVERY;

/// The last message, and how many were not logged since.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Option<(Instant, u64)>>);

impl Warnings {
    /// A client sent a handle that this server did not make.
    pub(crate) fn invalid_handle(&self, client: IpAddr) {
        self.at_times(|others| {
            tracing::warn!(%client, others, "a client sent an invalid NFS file handle, which was refused");
        });
    }

    /// A client is in none of the networks of an export.
    pub(crate) fn refused(&self, client: IpAddr, export: &str) {
        self.at_times(|others| {
            tracing::warn!(%client, export, others, "refused an NFS client that is in no network of the export");
        });
    }

    /// `others` is how many messages were not logged.
    fn at_times(&self, log: impl FnOnce(u64)) {
        let mut last = self.0.lock();
        let now = Instant::now();
        match &mut *last {
            Some((at, others)) if now.saturating_duration_since(*at) < LOG_EVERY => *others += 1,
            state => {
                let others = state.map_or(0, |(_, others)| others);
                *state = Some((now, 0));
                log(others);
            }
        }
    }
}
