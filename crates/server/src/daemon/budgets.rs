//! How many connections each listener may have, by how many files the server may have open.
//!
//! A connection takes a descriptor, and the server's own work takes some as well. So the server
//! raises its limit as far as allowed, and gives each listener a budget of its own. All budgets
//! together are at most three quarters of the limit: strangers can only exhaust the budget of their
//! listener.

use cairn_frontend_session::limits::{HANDSHAKES_MAX, SESSIONS_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A quarter of the limit is for everything but connections; the rest is divided into this many
/// parts: sessions of four kinds and half as many handshakes of three, mirrors with two descriptors
/// each, and the API.
const PARTS: u64 = 18;
/// The least.
const SESSIONS_MIN: usize = 8;

/// Places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budgets {
    /// Sessions of each NBD listener, and of iSCSI with and without a proof.
    pub(crate) sessions: usize,
    /// Clients in the middle of a handshake, of each of these.
    pub(crate) handshakes: usize,
    /// Connections of mirrors that were let in.
    pub(crate) mirrors: usize,
    /// Those that were not.
    pub(crate) strangers: usize,
    /// Connections to the API over TCP.
    pub(crate) api: usize,
    /// Connections to the control socket.
    pub(crate) control: usize,
}

impl Budgets {
    /// Raises the limit of open files as far as the system allows, and divides it into budgets.
    pub(crate) fn of_this_process() -> Self {
        let before = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
        if let Err(error) = raised {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
        let files = getrlimit(Resource::Nofile).current;
        let budgets = Self::of(files);
        if let Some(files) = files.filter(|_| budgets != Self::of(None)) {
            tracing::warn!(
                files,
                sessions = budgets.sessions,
                "the limit of open files is low: each listener takes fewer sessions than it could; raise it with `ulimit -n` or `LimitNOFILE=`"
            );
        }
        budgets
    }

    fn of(files: Option<u64>) -> Self {
        let part = files.map_or(usize::MAX, |files| usize::try_from(files / PARTS).unwrap_or(usize::MAX));
        let sessions = part.clamp(SESSIONS_MIN, SESSIONS_MAX);
        let half = part.div_ceil(2).max(SESSIONS_MIN);
        Self {
            sessions,
            handshakes: half.min(HANDSHAKES_MAX),
            mirrors: half.min(256),
            strangers: half.min(HANDSHAKES_MAX),
            api: half.min(64),
            control: part.clamp(SESSIONS_MIN, 256),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_listeners_together_leave_files_for_the_server() {
        let full = Budgets::of(None);
        assert_eq!((full.sessions, full.handshakes, full.mirrors, full.api), (256, 256, 256, 64));
        assert_eq!(Budgets::of(Some(16 << 10)), full);
        for files in [1024, 2000, 4096, 8192, 16 << 10] {
            let Budgets { sessions, handshakes, mirrors, strangers, api, control } = Budgets::of(Some(files));
            // NBD over TCP and nbd.sock; iSCSI of both kinds.
            let all = 4 * sessions + 3 * handshakes + 2 * (mirrors + strangers) + 2 * api + 2 * control;
            assert!(all as u64 <= files * 3 / 4, "{all} of {files}");
            assert!(sessions >= 56, "{sessions} sessions with {files} files");
        }
    }
}
