//! The snapshots that an unfinished image dump protects from deletion.

use std::path::Path;
use std::sync::Arc;

use cairn_base::SnapshotId;
use cairn_volume::{Kept, Role, Volume, VolumeError};

use crate::dumps::images::document::ImageDumpsDocument;
use crate::state;

/// The snapshots that an unfinished dump of a volume protects from deletion. Kept in memory, and
/// rebuilt at each start.
#[derive(Default)]
pub(crate) struct Keep {
    pub(super) kept: Vec<Kept>,
    /// The snapshot of an interrupted dump that is not being written.
    pub(super) cut: Option<String>,
}

impl Keep {
    /// For the unfinished dump in a volume's folder, before any snapshot can be deleted.
    pub(crate) fn open(volume: &Arc<Volume>, folder: &Path) -> Self {
        let path = folder.join("dumps.json");
        let document = state::load::<ImageDumpsDocument>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "could not protect the snapshots of an unfinished image dump");
            None
        });
        let Some(unfinished) = document.and_then(|document| document.unfinished) else {
            return Self::default();
        };
        let kept = kept(volume, SnapshotId(unfinished.target.snapshot)).unwrap_or_default();
        Self { kept, cut: Some(unfinished.target.name) }
    }
}

/// Protects the snapshots in the table of a dump of `target`; none at a destination.
pub(super) fn kept(volume: &Arc<Volume>, target: SnapshotId) -> Result<Vec<Kept>, VolumeError> {
    match volume.status().role {
        Role::Normal => volume.keep_snapshots(target),
        Role::Destination => Ok(Vec::new()),
    }
}
