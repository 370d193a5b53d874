//! What an unfinished image dump keeps from being deleted.

use std::path::Path;
use std::sync::Arc;

use cairn_base::SnapshotId;
use cairn_volume::{Kept, Role, Volume, VolumeError};

use crate::dumps::images::document::ImageDumpsDocument;
use crate::state;

/// What an unfinished dump of a volume keeps from being deleted. It is in memory, and made anew at
/// each start.
#[derive(Default)]
pub(crate) struct Keep {
    pub(super) kept: Vec<Kept>,
    /// The snapshot of a dump that was cut and that nobody writes.
    pub(super) cut: Option<String>,
}

impl Keep {
    /// As the unfinished dump in a volume's folder wants it, before anybody can delete anything.
    pub(crate) fn open(volume: &Arc<Volume>, folder: &Path) -> Self {
        let path = folder.join("dumps.json");
        let document = state::load::<ImageDumpsDocument>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "what an unfinished image dump needs is not kept");
            None
        });
        let Some(unfinished) = document.and_then(|document| document.unfinished) else {
            return Self::default();
        };
        let kept = kept(volume, SnapshotId(unfinished.target.snapshot)).unwrap_or_default();
        Self { kept, cut: Some(unfinished.target.name) }
    }
}

/// Keeps what a dump of `target` has in its table; at a destination nothing.
pub(super) fn kept(volume: &Arc<Volume>, target: SnapshotId) -> Result<Vec<Kept>, VolumeError> {
    match volume.status().role {
        Role::Normal => volume.keep_snapshots(target),
        Role::Destination => Ok(Vec::new()),
    }
}
