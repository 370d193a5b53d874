//! Whether a destination has all that its source has.

use std::collections::HashMap;

use cairn_base::{Checksum, SnapshotId};
use cairn_stream::{Have, MIRROR_PREFIX};
use cairn_volume::Volume;

/// True when the destination has the snapshots of the source under their names. Those of mirrors
/// come and go with updates, so they don't count.
pub(super) fn is_same_table(volume: &Volume, have: &[Have]) -> bool {
    let entries = volume.snapshot_entries();
    let theirs: HashMap<SnapshotId, Checksum> = have.iter().map(|have| (have.id, have.label)).collect();
    let named_here = entries
        .iter()
        .filter(|entry| !entry.name.starts_with(MIRROR_PREFIX))
        .all(|entry| theirs.get(&entry.id) == Some(&Have::from(entry).label));
    let gone = have
        .iter()
        .filter(|have| !have.mirror)
        .any(|have| entries.binary_search_by_key(&have.id, |entry| entry.id).is_err());
    named_here && !gone
}
