//! Objects about two copies that are compared.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::CheckFinding;

/// Requests a comparison of a mirror with its source.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerifyRequest {
    /// Both sides read every block of data from their media as well.
    pub scrub: bool,
    /// With `scrub`: bytes a second that each side reads at most.
    pub rate_bytes: Option<u64>,
}

/// A comparison of a mirror with its source.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct MirrorVerify {
    /// The mirror.
    pub name: String,
    /// When it began.
    pub started_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Data was read from the media as well.
    pub scrub: bool,
    /// Snapshots that both sides have.
    pub snapshots: u64,
    /// Snapshots that the source no longer has: they were checked only here.
    pub only_here: u64,
    /// Blocks that were compared.
    pub compared_bytes: u64,
    /// Read from the media here.
    pub read_bytes: u64,
    /// Read from the media at the source.
    pub read_there_bytes: u64,
    /// Over the network, both ways.
    pub network_bytes: u64,
    /// Blocks that are damaged on either side, or differ.
    pub differences_total: u64,
    /// Those that are whole on both sides and not the same: the mirror is not to be trusted.
    pub contradictions: u64,
    /// The first thousand of all.
    pub differences: Vec<CheckFinding>,
    /// Blocks here that were repaired from the source.
    pub mended_here: u64,
    /// Blocks that were given to the source.
    pub mended_there: u64,
    /// Of the blocks here, those that came while a lock was in force: they are the source's word,
    /// checked against a checksum that does not stop intent.
    pub mended_locked: u64,
    /// Damaged here, and the source does not have them.
    pub left_here: u64,
    /// Damaged at the source, and not here.
    pub left_there: u64,
}
