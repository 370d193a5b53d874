//! Findings of a check in words: each with the LUN, the file and the snapshot that it concerns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cairn_base::{FileId, SnapshotId};
use cairn_files::{Luns, Tree};
use cairn_volume::{Finding, Place, Volume};

/// A file in a state: of a snapshot, or the present one.
pub type FileIn = (Option<SnapshotId>, FileId);

/// Findings with the LUN or the file and the snapshot that they concern, as far as these have names
/// in `volume`.
pub fn name_findings(volume: &Arc<Volume>, name: &str, findings: &[Finding]) -> Vec<String> {
    let luns = Luns::new(volume.clone());
    let mut files: HashMap<Option<SnapshotId>, HashSet<FileId>> = HashMap::new();
    for (snapshot, file) in findings.iter().filter_map(file_of_finding) {
        files.entry(snapshot).or_default().insert(file);
    }
    let mut names: HashMap<(Option<SnapshotId>, FileId), String> = HashMap::new();
    for (snapshot, files) in files {
        let Ok(image) = volume.image(snapshot) else { continue };
        let named = luns.readable_in(&image).unwrap_or_default().into_iter();
        names.extend(named.map(|lun| ((snapshot, lun.file), format!("{name}/{}", lun.name))));
        // Without a readable tree there are no paths.
        let paths = Tree::of_image(image).map(|tree| tree.paths_of(&files)).unwrap_or_default();
        names.extend(paths.into_iter().map(|(file, path)| ((snapshot, file), shown_path(&path))));
    }
    let describe = |finding: &Finding| {
        let of = file_of_finding(finding).and_then(|of| names.get(&of));
        let of = of.map(|named| format!(" ({named})")).unwrap_or_default();
        let snapshot = finding.snapshot().and_then(|id| volume.snapshot(id));
        let snapshot = snapshot.map(|snapshot| format!(" [{name}@{}]", snapshot.name)).unwrap_or_default();
        format!("{finding}{of}{snapshot}")
    };
    findings.iter().map(describe).collect()
}

/// The file that a place is in.
pub fn file_of(place: Place) -> Option<FileId> {
    match place {
        Place::Data { file, .. } => Some(file),
        Place::Node(node) => Some(node.file),
        Place::Unknown => None,
    }
}

/// The file that a finding is about, in the state in which it was found.
pub fn file_of_finding(finding: &Finding) -> Option<FileIn> {
    let Finding::DamagedBlock { place, snapshot, .. } = finding else { return None };
    Some((Some(*snapshot).filter(|id| id.0 != 0), file_of(*place)?))
}

/// A path from the root, as messages have it.
pub fn shown_path(path: &[u8]) -> String {
    format!("/{}", cairn_files::quoted_path(path))
}
