//! Objects about checks and scrubs of volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that `volume check` found.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckFinding {
    /// The finding, in one sentence.
    pub message: String,
    /// VOLUME/LUN, if it concerns a LUN with a name.
    pub lun: Option<String>,
    /// The path of the file that it concerns, in the state in which it was found.
    pub path: Option<String>,
    /// Its bytes, percent-encoded, if they are not UTF-8; `path` then has `\xNN` for each invalid
    /// byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// VOLUME@SNAPSHOT in which it was first found; none for the present state or the volume as a
    /// whole.
    pub snapshot: Option<String>,
}

/// Requests a check.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Read every block of data as well, of the present state and of all snapshots.
    #[serde(default)]
    pub deep: bool,
}

/// The result of `volume check`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// The volume.
    pub volume: String,
    /// Empty when all is well.
    pub findings: Vec<CheckFinding>,
}

/// Begins, changes or stops the scrub of a volume.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScrubRequest {
    /// Begin a pass, if none runs.
    pub start: bool,
    /// End the pass that runs.
    pub stop: bool,
    /// Bytes a second at most, from now on; unchanged by default.
    pub rate_bytes: Option<u64>,
    /// Interval between passes; 0 for only on request; unchanged by default.
    pub every_ms: Option<u64>,
}

/// The scrub of a volume: everything that it shows is read from the media, and compared with its
/// checksum.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// The volume.
    pub volume: String,
    /// A pass is running; after a restart it resumes.
    pub running: bool,
    /// Bytes a second at most.
    pub rate_bytes: u64,
    /// A pass begins that often.
    pub every_ms: Option<u64>,
    /// When the next pass begins.
    pub next_ms: Option<u64>,
    /// When the running pass began.
    pub started_ms: Option<u64>,
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Bytes to read: all blocks in use.
    pub total_bytes: u64,
    /// Bytes a second of the running pass so far.
    pub present_rate: u64,
    /// At that rate.
    pub seconds_left: Option<u64>,
    /// Findings of the running pass.
    pub findings: Vec<CheckFinding>,
    /// The last pass.
    pub last: Option<ScrubResult>,
    /// Present damage: found by a scrub, a check or a read, and neither repaired nor given up
    /// since.
    pub damaged: Vec<DamagedBlock>,
    /// Blocks that were repaired since the volume was made here.
    pub repaired_blocks: u64,
    /// When the last of them was.
    pub repaired_ms: Option<u64>,
}

/// A pass of a scrub that is over.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScrubResult {
    /// When it began.
    pub started_ms: u64,
    /// When it was over.
    pub finished_ms: u64,
    /// Bytes read.
    pub bytes: u64,
    /// It was stopped before its end: unread blocks may have damage.
    pub stopped: bool,
    /// How many findings.
    pub findings_total: u64,
    /// The first thousand of them. Blocks repaired since are still listed here.
    pub findings: Vec<CheckFinding>,
}

/// A damaged block.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DamagedBlock {
    /// Its number in the volume.
    pub block: u64,
    /// The damage, in one sentence.
    pub message: String,
    /// VOLUME/LUN that it belongs to.
    pub lun: Option<String>,
    /// The path of the file that it belongs to; for one that exists only in a snapshot, with the
    /// snapshot's name.
    pub path: Option<String>,
    /// The bytes of the path alone, percent-encoded, if they are not UTF-8; `path` then has `\xNN`
    /// for each invalid byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Offset in the LUN or the file.
    pub offset_bytes: Option<u64>,
}
