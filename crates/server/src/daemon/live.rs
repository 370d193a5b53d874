//! Tells open pages that something has changed, so that they need not ask again and again.
//!
//! While at least one page listens, one task compares the status of the server each second with the
//! one before. Ages that grow with the clock are no change. Without a page nothing runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::daemon::server::Server;
use crate::error::ServerError;

/// Pages that listen, at most. Others ask every few seconds.
const LISTENERS_MAX: usize = 32;

/// A stream ends after this time. A page opens another one, if its session still permits that.
const STREAM_MAX: Duration = Duration::from_secs(900);

/// Between two comparisons.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Parts of the status that change by themselves: ages, and the room that other programs leave.
/// Pages ask for them every few seconds.
const AGES: [&str; 11] = [
    "host",
    "room",
    "uptime_ms",
    "memory_bytes",
    "consistency_points",
    "image_age_ms",
    "silent_ms",
    "heard_ms",
    "quiet_ms",
    "age_ms",
    "elapsed_ms",
];

/// Times that are compared by whole seconds.
const BY_SECONDS: [&str; 2] = ["lag_ms", "duration_ms"];

/// The pages that listen.
#[derive(Default)]
pub(crate) struct Live(Mutex<State>);

#[derive(Default)]
struct State {
    listeners: usize,
    /// The number of changes so far.
    changes: watch::Sender<u64>,
    /// The task runs.
    looks: bool,
    /// The server ends, and so do all streams.
    ended: bool,
}

impl Live {
    /// Has each stream look whether its client may still have it.
    pub(crate) fn wake(&self) {
        self.0.lock().changes.send_modify(|changes| *changes += 1);
    }

    /// Ends all streams: otherwise the server would wait for them when it ends.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        state.changes.send_modify(|changes| *changes += 1);
    }
}

/// A page that listens, until it is dropped.
pub(crate) struct Listener {
    server: Arc<Server>,
    pub(crate) changes: watch::Receiver<u64>,
    /// The identity of its client; none on the control socket.
    token: Option<String>,
    /// By the monotonic clock.
    ends: Duration,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.server.live.0.lock().listeners -= 1;
    }
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// Busy, if too many pages listen.
    pub(crate) fn new(server: &Arc<Server>, token: Option<String>) -> Result<Self, ServerError> {
        let mut state = server.live.0.lock();
        if state.listeners >= LISTENERS_MAX {
            let by = "too many pages are open, and this one asks every few seconds instead";
            return Err(ServerError::Busy { name: "the stream of changes".to_owned(), by });
        }
        state.listeners += 1;
        if !std::mem::replace(&mut state.looks, true) {
            tokio::spawn(look(server.clone()));
        }
        let ends = server.clock.monotonic() + STREAM_MAX;
        Ok(Self { server: server.clone(), changes: state.changes.subscribe(), token, ends })
    }

    /// The server ends, the token was revoked or has expired, or the client must show its session
    /// again.
    pub(crate) fn is_over(&self) -> bool {
        let is_revoked = self.token.as_ref().is_some_and(|token| self.server.actor(token).is_none());
        is_revoked || self.server.clock.monotonic() >= self.ends || self.server.live.0.lock().ended
    }
}

async fn look(server: Arc<Server>) {
    let mut last = None;
    loop {
        {
            let mut state = server.live.0.lock();
            if state.listeners == 0 {
                state.looks = false;
                return;
            }
        }
        let own = server.clone();
        if let Ok(now) = tokio::task::spawn_blocking(move || digest(&own)).await {
            if last.is_some_and(|last| last != now) {
                server.live.0.lock().changes.send_modify(|changes| *changes += 1);
            }
            last = Some(now);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A number for the state of the server that a page shows.
fn digest(server: &Server) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in [serde_json::to_value(server.status()), serde_json::to_value(server.jobs.list())] {
        hash(&part.unwrap_or_default(), &mut hasher);
    }
    hasher.finish()
}

fn hash(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !AGES.contains(&name.as_str())) {
                name.hash(hasher);
                match value.as_u64().filter(|_| BY_SECONDS.contains(&name.as_str())) {
                    Some(ms) => (ms / 1000).hash(hasher),
                    None => hash(value, hasher),
                }
            }
        }
        Value::Array(parts) => {
            parts.len().hash(hasher);
            parts.iter().for_each(|part| hash(part, hasher));
        }
        other => other.to_string().hash(hasher),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest_of(value: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        hash(value, &mut hasher);
        hasher.finish()
    }

    #[test]
    fn ages_are_no_change_and_everything_else_is() {
        let before =
            json!({ "uptime_ms": 1, "mirrors": [{ "lag_ms": 1001, "silent_ms": 1, "state": "mirrored" }] });
        let aged = json!({ "uptime_ms": 2, "room": { "free_bytes": 1 }, "mirrors": [{ "lag_ms": 1900, "silent_ms": 9, "state": "mirrored" }] });
        let behind =
            json!({ "uptime_ms": 1, "mirrors": [{ "lag_ms": 1001, "silent_ms": 1, "state": "behind" }] });
        let later =
            json!({ "uptime_ms": 1, "mirrors": [{ "lag_ms": 2001, "silent_ms": 1, "state": "mirrored" }] });
        assert_eq!(digest_of(&before), digest_of(&aged));
        assert_ne!(digest_of(&before), digest_of(&behind));
        assert_ne!(digest_of(&before), digest_of(&later));
        assert_ne!(digest_of(&json!([[], []])), digest_of(&json!([[[]]])));
    }
}
