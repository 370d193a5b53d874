//! The versions of a file over the snapshots of its volume.

use std::sync::Arc;

use cairn_api as api;
use cairn_base::FileId;
use cairn_files::{Stat, Tree, TreeError};

use super::entry;
use crate::error::ServerError;

/// Snapshots that one answer looks at, at most.
pub(super) const SNAPSHOTS_MAX: usize = 500;

/// The state of a path at an instant. Two instants with equal states show one version.
#[derive(PartialEq, Eq)]
enum State {
    Nothing,
    File { file: FileId, bytes: u64, modified_ns: i64, changed_ns: i64 },
    Unreadable(String),
}

impl State {
    fn of(found: &Result<Option<Stat>, String>) -> Self {
        match found {
            Ok(None) => State::Nothing,
            Ok(Some(stat)) => State::File {
                file: stat.file,
                bytes: stat.bytes,
                modified_ns: stat.modified_ns,
                changed_ns: stat.changed_ns,
            },
            Err(problem) => State::Unreadable(problem.clone()),
        }
    }
}

/// An instant to look at: a snapshot with its time, or the volume as it is now.
pub(super) struct Instant {
    pub(super) snapshot: Option<(String, u64)>,
}

/// The state of a path in a tree. `None` if it does not exist there.
fn look(tree: &Tree, path: &[u8]) -> Result<Option<Stat>, String> {
    match tree.resolve(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(TreeError::NotFound | TreeError::NotDirectory) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The versions of a path over these instants, which are in order, the newest first; and the number
/// of snapshots that were looked at, at least one. The rest is left for another answer when it is
/// late: a slow disk must not look like one that hangs.
pub(super) fn versions(
    path: &[u8],
    name: &[u8],
    instants: Vec<Instant>,
    is_late: impl Fn() -> bool,
    tree_of: impl Fn(Option<&str>) -> Result<Option<Arc<Tree>>, ServerError>,
) -> (Vec<api::FileVersion>, usize) {
    let mut looked = 0;
    let mut versions: Vec<api::FileVersion> = Vec::new();
    let mut last = None;
    for Instant { snapshot } in instants {
        if looked > 0 && is_late() {
            break;
        }
        looked += usize::from(snapshot.is_some());
        let at = snapshot.as_ref().map(|(name, _)| name.as_str());
        let tree = tree_of(at);
        let found = match &tree {
            Ok(Some(tree)) => look(tree, path),
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let state = State::of(&found);
        let (since, since_ms) = snapshot.clone().unzip();
        match versions.last_mut().filter(|_| last.as_ref() == Some(&state)) {
            Some(version) => {
                version.snapshots += 1;
                (version.since, version.since_ms) = (since, since_ms);
            }
            None => {
                let shown = match (&found, &tree) {
                    (Ok(Some(stat)), Ok(Some(tree))) => Some(entry(tree, name, stat)),
                    _ => None,
                };
                versions.push(api::FileVersion {
                    at: since.clone(),
                    at_ms: since_ms,
                    since,
                    since_ms,
                    snapshots: u64::from(snapshot.is_some()),
                    entry: shown,
                    problem: found.err(),
                });
            }
        }
        last = Some(state);
    }
    (versions, looked)
}
