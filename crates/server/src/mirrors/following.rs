//! A session of a mirror that follows its source continuously, as it is shown.

use std::time::Duration;

use cairn_api as api;

use crate::mirrors::document::MirrorDocument;

/// The lag past which such a mirror is behind, by default.
pub(super) const RPO: Duration = Duration::from_secs(10);

/// A session of a mirror that follows continuously.
#[derive(Debug, Clone, Default)]
pub(super) struct Following {
    /// The update that it begins with is over.
    pub(super) steady: bool,
    pub(super) since_ms: u64,
    pub(super) steps: u64,
    /// Steps for which the source had to read its writes back.
    pub(super) read_steps: u64,
    /// The last one was one of those.
    pub(super) catching_up: bool,
}

impl Following {
    pub(super) fn show(&self) -> api::MirrorSession {
        api::MirrorSession {
            since_ms: self.since_ms,
            steps: self.steps,
            read_steps: self.read_steps,
            catching_up: self.catching_up,
        }
    }
}

impl MirrorDocument {
    /// The lag that is wanted at most.
    pub(super) fn rpo(&self) -> Option<Duration> {
        self.rpo_ms.map(Duration::from_millis).or(self.when.continuous.then_some(RPO))
    }
}
