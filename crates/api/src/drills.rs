//! Drills in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Requests a drill of a mirror. Missing fields keep their last values.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrillRequest {
    /// A command for `sh -c`, run by the server: exit code 0 reports that its data is good. The
    /// clone's first LUN is `CAIRN_DRILL_URI`, all are `CAIRN_DRILL_URIS`.
    pub probe: Option<String>,
    /// How long it may take; ten minutes when never given.
    pub timeout_ms: Option<u64>,
    /// From now on a drill that often.
    pub every_ms: Option<u64>,
}

/// The outcome of a drill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DrillOutcome {
    /// The probe ended with 0.
    Passed,
    /// It ended otherwise, or did not start.
    Failed,
    /// It did not end in time, and was ended.
    TimedOut,
    /// The drill was ended.
    Cancelled,
    /// The image could not be cloned and served.
    NotServed,
}

/// A drill that was made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DrillResult {
    /// The mirror.
    pub mirror: String,
    /// When it began.
    pub at_ms: u64,
    /// The image that was cloned, `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// When that image was made, by the source's clock.
    pub image_ms: u64,
    /// How long until the clone was served.
    pub served_ms: u64,
    /// Time until the probe had ended: if it passed, the time to recovery.
    pub recovery_ms: u64,
    /// The outcome.
    pub outcome: DrillOutcome,
    /// Of the probe, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The end of its output, or why there was no probe.
    pub said: String,
}

/// The drills of a mirror.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Drill {
    /// The mirror.
    pub mirror: String,
    /// The command.
    pub probe: String,
    /// How long it may take.
    pub timeout_ms: u64,
    /// One is made that often; none: on request.
    pub every_ms: Option<u64>,
    /// The last one.
    pub last: Option<DrillResult>,
    /// Age of the last drill that passed, from its beginning.
    pub age_ms: Option<u64>,
    /// None has passed for two intervals.
    pub stale: bool,
    /// One runs now.
    pub running: bool,
}

impl DrillResult {
    /// Why it did not pass, in one line.
    pub fn reason(&self) -> String {
        let last = self.said.lines().last().unwrap_or_default();
        match (self.outcome, self.exit_code) {
            (DrillOutcome::Passed, _) => "it passed".to_owned(),
            (DrillOutcome::NotServed, _) => format!("its image could not be served: {last}"),
            (DrillOutcome::TimedOut, _) => format!("the probe did not end in time: {last}"),
            (DrillOutcome::Cancelled, _) => "it was ended".to_owned(),
            (DrillOutcome::Failed, Some(code)) if last.is_empty() => {
                format!("the probe ended with {code}, and said nothing")
            }
            (DrillOutcome::Failed, Some(code)) => format!("the probe ended with {code}: {last}"),
            (DrillOutcome::Failed, None) => format!("the probe failed: {last}"),
        }
    }
}
