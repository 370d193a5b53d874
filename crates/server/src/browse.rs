//! Files of a volume at any instant, for people who look for one: listings, versions of a file over
//! the snapshots, downloads, and restores beside the present file.
//!
//! Nothing here changes a file that exists. A restore writes a new file, and gives it a free name
//! once it is complete.
//!
//! Each request reads from the disk of its volume, which may hang. A volume has a limited number of
//! such requests at a time, so that one disk never takes the threads of the others.

mod commands;
mod downloads;
mod in_dumps;
mod pipe;
mod restoring;
mod tar_stream;
mod versions;
mod zip_stream;

use std::collections::HashMap;
use std::sync::Arc;

use cairn_api as api;
use cairn_files::{NodeKind, Stat, Tree, TreeError, path_bytes, path_text};
use parking_lot::Mutex;

use crate::dumps::images::DumpTrees;
use crate::error::ServerError;
use crate::volumes::open::OpenVolume;

pub(crate) use downloads::{Sending, Source};

/// Requests for the files of a volume at a time.
const LOOKS_MAX: usize = 8;

/// Downloads from a volume at a time.
const DOWNLOADS_MAX: usize = 8;

/// Downloads that were prepared and not begun, of all volumes.
const TICKETS_MAX: usize = 64;

/// The requests for files that are under way, and the prepared downloads.
#[derive(Default)]
pub(crate) struct Browsing {
    looks: Places,
    downloads: Places,
    tickets: downloads::Tickets,
    dumps: DumpTrees,
}

/// Places by volume.
#[derive(Default)]
struct Places(Arc<Mutex<HashMap<String, usize>>>);

/// A taken place, until it is dropped.
pub(crate) struct Place {
    places: Arc<Mutex<HashMap<String, usize>>>,
    volume: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.places.lock();
        if let Some(count) = places.get_mut(&self.volume) {
            *count -= 1;
            if *count == 0 {
                places.remove(&self.volume);
            }
        }
    }
}

impl Places {
    fn take(&self, volume: &str, most: usize, by: &'static str) -> Result<Place, ServerError> {
        let mut places = self.0.lock();
        let count = places.entry(volume.to_owned()).or_default();
        if *count >= most {
            return Err(ServerError::Busy { name: volume.to_owned(), by });
        }
        *count += 1;
        Ok(Place { places: self.0.clone(), volume: volume.to_owned() })
    }
}

impl Browsing {
    /// Takes a place for a request that reads files of a volume.
    pub(crate) fn look(&self, volume: &str) -> Result<Place, ServerError> {
        self.looks.take(volume, LOOKS_MAX, "other requests for its files wait for its disk")
    }
}

/// Names a volume, or one of its instants.
fn full_name(volume: &str, at: Option<&str>) -> String {
    at.map_or(volume.to_owned(), |at| format!("{volume}@{at}"))
}

/// The tree of a snapshot or a view. `None` if no file was ever stored in it.
fn tree_of(open: &OpenVolume, at: &str) -> Result<Option<Tree>, ServerError> {
    let full = full_name(&open.name, Some(at));
    let image = open.past(at).map_err(ServerError::volume(&full))?;
    let image = image.ok_or_else(|| open.no_snapshot(at))?;
    match Tree::of_image(image) {
        Err(TreeError::NoTree) => Ok(None),
        tree => tree.map(Some).map_err(ServerError::tree(&full)),
    }
}

fn kind(kind: NodeKind) -> api::FileKind {
    match kind {
        NodeKind::File => api::FileKind::File,
        NodeKind::Directory => api::FileKind::Directory,
        NodeKind::SymbolicLink => api::FileKind::SymbolicLink,
        _ => api::FileKind::Special,
    }
}

/// A file under its name. A link that cannot be read is shown without its target.
fn entry(tree: &Tree, name: &[u8], stat: &Stat) -> api::FileEntry {
    let target = match stat.kind {
        NodeKind::SymbolicLink => tree.read_link(stat.file).ok().map(|target| path_text(&target)),
        _ => None,
    };
    api::FileEntry {
        name: path_text(name),
        name_bytes: path_bytes(name),
        kind: kind(stat.kind),
        number: stat.file.0,
        bytes: stat.bytes,
        modified_ms: stat.modified_ns.div_euclid(1_000_000),
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        target,
        problem: None,
    }
}

/// The names of a path. `..` is refused: the path is also that of a file in another tree.
fn names_of(path: &[u8]) -> Result<Vec<&[u8]>, ServerError> {
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(ServerError::Invalid {
            fault: "the path contains `..`",
            next: "give a path from the root of the volume, without `..`",
        });
    }
    Ok(names)
}

/// A path with a slash at its beginning.
fn from_root(names: &[&[u8]]) -> Vec<u8> {
    [b"/", &names.join(&b'/')[..]].concat()
}
