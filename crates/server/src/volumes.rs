//! The volumes of a server: opening, creating, growing, checking and deleting them, and the thread
//! of each.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use cairn_api::{self as api, ErrorKind};
use cairn_base::{ByteSize, Clock, VolumeId};
use cairn_volume::{Kept, Role, VolumeError};
use parking_lot::{Mutex, RwLock};

use crate::buckets::Buckets;
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::state;
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::work::turns::Turns;

mod beneath;
mod claims;
mod clones;
mod commands;
mod creating;
mod deleting;
pub(crate) mod disks;
pub(crate) mod document;
pub(crate) mod error;
mod fence;
pub(crate) mod findings;
pub(crate) mod from_bucket;
pub(crate) mod histories;
mod history;
mod host;
mod host_room;
mod instants;
mod known_paths;
mod log;
mod log_file;
mod lost;
mod making;
mod older;
pub(crate) mod open;
mod opening;
mod places;
mod rehearsal;
mod restore;
mod room;
mod scrub;
mod scrub_state;
pub(crate) mod snapshots;
mod tree;
mod under;
mod views;
mod waiting;
mod writing_out;

pub(crate) use crate::storage::claims::{Claims, is_same};
pub(crate) use crate::volumes::scrub_state::ScrubDocument;
pub(crate) use restore::Unfinished as UnfinishedRestore;
pub(crate) use room::{is_of_full_history, waits_with_writes};
pub(crate) use views::{ViewsDocument, VolumeView};

/// Threads of a volume that write back, in addition to the one that does all background work.
const WRITE_BACK_THREADS: usize = 1;

enum VolumeState {
    Open(Arc<OpenVolume>),
    /// Closed by a command that will reopen it; no other code touches its files.
    Away {
        /// The work of that command.
        by: &'static str,
    },
    /// It could not be opened; its name stays in use, and its files are not touched.
    Unavailable(Arc<ServerError>),
}

/// The volumes of a server.
///
/// Lock order: `turns`, then `entries`. The second is never held while a device is touched; the
/// first is each name's own.
pub(crate) struct Volumes {
    dir: PathBuf,
    cache: ByteSize,
    clock: Arc<dyn Clock>,
    /// For volumes that read blocks from one; none in tests without.
    buckets: Option<Arc<Buckets>>,
    /// Turns of the threads that create, open, delete or revert a volume or show it at an instant.
    /// The paths of its devices are protected by their locks instead.
    turns: Turns,
    entries: RwLock<BTreeMap<String, VolumeState>>,
    /// Names of volumes that are being restored.
    restoring: Mutex<HashSet<String>>,
    /// By clone: keeps the snapshot that it is made of, also while the clone itself cannot be
    /// opened.
    keeps: Mutex<BTreeMap<String, Kept>>,
    /// Other parts that can claim a file or a disk.
    others: OnceLock<Weak<dyn Claims>>,
}

/// Writes files into a folder.
type Beside<'a> = dyn Fn(&Path) -> Result<(), ServerError> + 'a;

/// The options of a new volume.
pub(crate) struct NewVolume<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: VolumeId,
    pub(crate) role: Role,
    /// The capacity of the devices if `None`.
    pub(crate) blocks: Option<u64>,
    pub(crate) devices: &'a [String],
    /// For the intent log, which is on the devices if `None`.
    pub(crate) log_device: Option<&'a str>,
    /// Between the devices and the volume.
    pub(crate) history: Option<&'a api::VolumeHistory>,
    /// Writes further documents into its folder before that is moved to its place: no kill leaves
    /// one without the other.
    pub(crate) beside: Option<&'a Beside<'a>>,
}

impl Volumes {
    fn document(&self, name: &str) -> Result<VolumeDocument, ServerError> {
        let path = self.folder(name).join("volume.json");
        state::load(&path)?.ok_or_else(|| ServerError::Daemon(DaemonError::StateGone { path: path.clone() }))
    }

    /// Saves the places and the base of a volume, twice: the copy beside the document, which a
    /// restore may use, has the same content.
    fn note(&self, name: &str, document: &VolumeDocument) -> Result<(), ServerError> {
        let path = self.folder(name).join("volume.json");
        state::save(&path, document)?;
        state::save(&path, document)
    }

    /// The places and the base of a volume, even if the document itself can't be read: the copy
    /// beside it has them as well.
    fn places(&self, name: &str) -> Option<VolumeDocument> {
        let copy = || state::load(&state::previous(&self.folder(name).join("volume.json"))).ok().flatten();
        self.document(name).ok().or_else(copy)
    }

    /// The memory that each volume may use.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.0
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The open volume of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenVolume>, ServerError> {
        match self.entries.read().get(name) {
            Some(VolumeState::Open(open)) => Ok(open.clone()),
            Some(VolumeState::Away { by }) => Err(ServerError::Busy { name: name.to_owned(), by }),
            Some(VolumeState::Unavailable(error)) => {
                // A missing device must not look like a wrong name from the caller.
                let kind = match error.kind() {
                    ErrorKind::NotFound | ErrorKind::Damaged => ErrorKind::VolumeDamaged,
                    kind => kind,
                };
                let (volume, reason, next) = (name.to_owned(), error.to_string(), self.next_of(name, error));
                Err(ServerError::Volumes(VolumesError::VolumeUnavailable { volume, kind, reason, next }))
            }
            None => Err(not_found(name)),
        }
    }

    /// Whether a volume of that name has a history under it, even if it is not open.
    pub(crate) fn has_history(&self, name: &str) -> bool {
        self.places(name).is_some_and(|document| document.history.is_some())
    }

    /// All open volumes, by name.
    pub(crate) fn all(&self) -> Vec<Arc<OpenVolume>> {
        let open = |entry: &VolumeState| match entry {
            VolumeState::Open(open) => Some(open.clone()),
            VolumeState::Away { .. } | VolumeState::Unavailable(_) => None,
        };
        self.entries.read().values().filter_map(open).collect()
    }

    /// The problems of volumes.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let unavailable = |(name, entry): (&String, &VolumeState)| match entry {
            VolumeState::Open(_) | VolumeState::Away { .. } => None,
            VolumeState::Unavailable(error) => {
                let (message, next) = (error.to_string(), self.next_of(name, error));
                Some(api::Problem { subject: name.clone(), message, next })
            }
        };
        let mut problems: Vec<_> = self.entries.read().iter().filter_map(unavailable).collect();
        for open in self.all() {
            problems.extend(open.hooks.problem(&open.name));
            if let Some(source) = open.volume.status().latched {
                // It is writable again only after the fault is repaired and the server restarted.
                let error = ServerError::volume(&open.name)(VolumeError::of_latched(source));
                let (message, next) = (error.to_string(), error.next());
                problems.push(api::Problem { subject: open.name.clone(), message, next });
            }
            problems.extend(open.backed.iter().flat_map(|backed| backed.problems(&open.name)));
            problems.extend(open.host_problem());
            problems.extend(open.log_problem());
            problems.extend(open.history_problems());
            problems.extend(open.rehearsal_problem());
            problems.extend(open.damage_problems());
            problems.extend(open.dump_problem());
        }
        problems.extend(self.restore_problems());
        problems
    }

    /// The file system that new volumes without devices are on.
    pub(crate) fn room(&self) -> Option<api::HostRoom> {
        host_room::room_of(&self.dir)
    }

    /// All volumes.
    pub(crate) fn list(&self) -> Vec<api::Volume> {
        let mut volumes: Vec<_> = self.all().iter().map(|open| open.show()).collect();
        for (name, entry) in &*self.entries.read() {
            let problem = match entry {
                VolumeState::Open(_) => None,
                VolumeState::Away { by } => Some(ServerError::Busy { name: name.clone(), by }.to_string()),
                VolumeState::Unavailable(error) => Some(error.to_string()),
            };
            if problem.is_some() {
                volumes.push(api::Volume {
                    name: name.clone(),
                    id: String::new(),
                    role: api::VolumeRole::Unavailable,
                    size_bytes: 0,
                    used_bytes: 0,
                    free_bytes: 0,
                    dirty_bytes: 0,
                    generation: 0,
                    luns: 0,
                    snapshots: 0,
                    devices: Vec::new(),
                    log_device: None,
                    history: None,
                    clone_of: None,
                    bucket: None,
                    scrub: None,
                    host: None,
                    problem,
                });
            }
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        volumes
    }

    /// One volume.
    pub(crate) fn show(&self, name: &str) -> Result<api::Volume, ServerError> {
        self.list().into_iter().find(|volume| volume.name == name).ok_or_else(|| not_found(name))
    }

    /// Ends the commands around snapshots that run.
    pub(crate) fn end_hooks(&self) {
        self.all().iter().for_each(|open| open.hooks.end());
    }

    /// Ends every volume: a consistency point each.
    pub(crate) fn end(&self) {
        let all = self.clones_first();
        // Their threads end side by side: each may be in a pause.
        all.iter().for_each(|open| open.ending.store(true, Ordering::Release));
        for open in all {
            if let Err(error) = open.end() {
                tracing::error!(volume = open.name, %error, "a volume did not close; opening it replays its log");
            }
        }
    }
}

fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "volume", name: name.to_owned(), list: "cairn volume list" }
}

#[cfg(test)]
mod tests;
