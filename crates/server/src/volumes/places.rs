//! The owner of a damaged place: a LUN by its name, or a file of the tree by its path.
//!
//! A file does not know its names, so paths are found by reading directories, of all files at once.
//! The results are cached for a while, as `cairn status` is called repeatedly.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use cairn_api::{FileIn, file_of};
use cairn_base::{FileId, SnapshotId};
use cairn_files::Tree;
use cairn_volume::Place;

use crate::volumes::open::OpenVolume;

/// Time for which a path is reported without another search.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Paths that are kept; more files are not named until these are forgotten.
const KEPT_MAX: usize = 10_000;
/// Snapshots, from the newest on, that are searched for a file without a present name.
const SNAPSHOTS_MAX: usize = 8;

impl OpenVolume {
    /// Looks for paths ahead of [`Self::path_of`], so that each tree is read once. LUNs are passed
    /// over.
    pub(crate) fn find_paths(&self, files: impl IntoIterator<Item = FileIn>) {
        let luns: HashSet<FileId> = self
            .luns
            .readable()
            .map(|luns| luns.into_iter().map(|lun| lun.file).collect())
            .unwrap_or_default();
        let mut wanted: HashMap<Option<SnapshotId>, HashSet<FileId>> = HashMap::new();
        {
            let mut known = self.file_paths.known.lock();
            known.retain(|_, (found, _)| found.elapsed() < KEPT_FOR);
            if known.len() >= KEPT_MAX {
                return;
            }
            for (snapshot, file) in files {
                if !luns.contains(&file) && !known.contains_key(&(snapshot, file)) {
                    wanted.entry(snapshot).or_default().insert(file);
                }
            }
        }
        for (snapshot, files) in wanted {
            // Unreadable directories are damaged too, and reported separately.
            let tree = self.volume.image(snapshot).ok().and_then(|image| Tree::of_image(image).ok());
            let found = tree.map(|tree| tree.paths_of(&files)).unwrap_or_default();
            let mut known = self.file_paths.known.lock();
            for file in files {
                if known.len() < KEPT_MAX {
                    let path = found.get(&file).map(|path| [b"/", &path[..]].concat());
                    known.insert((snapshot, file), (Instant::now(), path));
                }
            }
        }
    }

    /// The path of a file in a state from the root, with its slash, if it has one there.
    pub(crate) fn path_of(&self, of: FileIn) -> Option<Vec<u8>> {
        self.find_paths([of]);
        self.file_paths.known.lock().get(&of).and_then(|(_, path)| path.clone())
    }

    /// The path of a file now; for a deleted one, the path in the newest snapshot that has it, and
    /// that snapshot's name.
    pub(crate) fn path_anywhere(&self, file: FileId) -> Option<(Vec<u8>, String)> {
        let now = self.path_of((None, file)).map(|path| (path, String::new()));
        now.or_else(|| {
            let mut snapshots = self.volume.snapshots();
            snapshots.sort_unstable_by_key(|snapshot| std::cmp::Reverse(snapshot.id));
            let mut newest = snapshots.into_iter().take(SNAPSHOTS_MAX);
            newest.find_map(|snapshot| {
                let path = self.path_of((Some(snapshot.id), file))?;
                Some((path, format!(" in {}@{}", self.name, snapshot.name)))
            })
        })
    }

    /// The present name of the LUN of a block, if it has one.
    pub(crate) fn lun_of(&self, place: Place) -> Option<String> {
        let file = file_of(place)?;
        self.luns.readable().ok()?.into_iter().find(|lun| lun.file == file).map(|lun| lun.name)
    }
}
