//! Image dumps in files of folders that the administrator has declared (`dumps` of the
//! configuration), so that people who have the page alone can look into them.
//!
//! A request names a folder of the configuration and the id of a dump, and no path. A dump is found
//! by the heads of the files directly in the folder. A link is not followed, and a file that does
//! not begin as a dump does is not read any further. So no name in a request leads to another file
//! of the machine. The administrator vouches for the folder itself: the users that may write in it
//! decide about the dumps that are shown.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api as api;
use cairn_base::Clock;
use cairn_format::dump::DumpId;
use cairn_format::stream::{StreamKind, root_digest};
use cairn_stream::{DumpBytes, HEAD_BYTES, OpenDump, PartHead, PartIndex};
use rustix::fs::{Dir, Mode, OFlags};

use crate::dumps::error::DumpsError;
use crate::error::ServerError;

/// Files of one folder that are looked at. The others are not shown.
const FILES_MAX: usize = 10_000;

/// Dumps that one dump may build on.
const CHAIN_MAX: usize = 100;

/// The folders of the configuration.
#[derive(Debug, Default)]
pub(crate) struct DumpFolders(Vec<PathBuf>);

/// A file that begins as a part of a dump. It is not kept open: a folder may have many.
struct Found {
    name: CString,
    head: PartHead,
    bytes: u64,
}

/// A folder, and the parts of each dump in it.
struct Folder {
    path: PathBuf,
    handle: OwnedFd,
    dumps: BTreeMap<DumpId, Vec<Found>>,
}

impl DumpFolders {
    /// These folders, which have absolute paths.
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// The folders, in the order of the configuration.
    pub(crate) fn list(&self) -> Vec<api::DumpFolder> {
        self.0.iter().map(|path| api::DumpFolder { path: path.display().to_string() }).collect()
    }

    /// The folder with exactly this name.
    fn find(&self, name: &str) -> Result<Folder, ServerError> {
        let found = self.0.iter().find(|path| path.as_os_str() == name);
        let missing = || ServerError::Dumps(DumpsError::NoSuchFolder { folder: name.to_owned() });
        Folder::scan(found.ok_or_else(missing)?)
    }

    /// The dumps in a folder, the newest first.
    pub(crate) fn dumps(&self, folder: &str) -> Result<Vec<api::FolderDump>, ServerError> {
        let folder = self.find(folder)?;
        let mut shown: Vec<api::FolderDump> =
            folder.dumps.values().filter_map(|parts| folder.show(parts)).collect();
        shown.sort_by(|one, other| (other.created_ms, &other.id).cmp(&(one.created_ms, &one.id)));
        Ok(shown)
    }

    /// Opens the dump with this id, with all that it builds on.
    pub(crate) fn open(
        &self,
        folder: &str,
        id: &str,
        clock: Arc<dyn Clock>,
        cache_bytes: u64,
    ) -> Result<OpenDump, ServerError> {
        let folder = self.find(folder)?;
        let wanted = folder.dumps.keys().copied().find(|dump| dump.to_string() == id);
        let wanted = wanted.ok_or_else(|| {
            let folder = folder.path.display().to_string();
            // An id has 32 digits.
            ServerError::Dumps(DumpsError::NoDumpInFolder { folder, id: id.chars().take(32).collect() })
        })?;
        Ok(OpenDump::open(folder.chain(wanted)?, false, false, clock, cache_bytes)?)
    }
}

impl Folder {
    /// Looks at the files directly in a folder.
    fn scan(path: &Path) -> Result<Self, ServerError> {
        let failed = |error: rustix::io::Errno| ServerError::path("read", path)(error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let mut folder = Self { path: path.to_owned(), handle, dumps: BTreeMap::new() };
        for entry in Dir::read_from(&folder.handle).map_err(failed)?.take(FILES_MAX) {
            let name = entry.map_err(failed)?.file_name().to_owned();
            let Some(file) = folder.open_file(&name) else { continue };
            let mut head = [0; HEAD_BYTES];
            let is_full = file.read_at(0, &mut head).is_ok_and(|count| count == head.len());
            let Some(head) = PartHead::parse(&head).ok().filter(|_| is_full) else { continue };
            let bytes = file.length().unwrap_or(0);
            folder.dumps.entry(head.dump.dump).or_default().push(Found { name, head, bytes });
        }
        for parts in folder.dumps.values_mut() {
            parts.sort_by(|one, other| {
                (one.head.dump.part, &one.name).cmp(&(other.head.dump.part, &other.name))
            });
            // A copy beside the file is no fault.
            parts.dedup_by(|copy, kept| copy.head == kept.head);
        }
        Ok(folder)
    }

    /// Opens a file directly in the folder. A link is refused, and a pipe or a device does not
    /// hang.
    fn open_file(&self, name: &CStr) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.handle, name, flags, Mode::empty()).ok()?);
        file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(file)
    }

    fn show(&self, parts: &[Found]) -> Option<api::FolderDump> {
        let first = parts.first()?;
        let header = &first.head.dump;
        Some(api::FolderDump {
            volume: header.name.clone(),
            volume_id: header.volume.to_string(),
            id: header.dump.to_string(),
            level: header.level.to_string(),
            created_ms: header.created.0 / 1_000_000,
            bytes: parts.iter().map(|part| part.bytes).sum(),
            parts: header.parts,
            files: parts.iter().map(|part| part.name.to_string_lossy().into_owned()).collect(),
        })
    }

    /// The dump whose target is the base of this one.
    fn base_of(&self, part: &Found) -> Option<DumpId> {
        let stream = &part.head.stream;
        let is_base = |other: &&Found| {
            let own = &other.head.stream;
            (own.volume, own.target, own.target_digest) == (stream.volume, stream.base, stream.base_digest)
        };
        self.firsts().find(is_base).map(|found| found.head.dump.dump)
    }

    fn firsts(&self) -> impl Iterator<Item = &Found> {
        self.dumps.values().filter_map(|parts| parts.first())
    }

    fn open_parts(&self, dump: DumpId) -> Result<Vec<PartIndex>, ServerError> {
        let mut opened = Vec::new();
        for part in self.dumps.get(&dump).into_iter().flatten() {
            let name = part.name.to_string_lossy().into_owned();
            let changed = || {
                let (folder, file) = (self.path.display().to_string(), name.clone());
                ServerError::Dumps(DumpsError::ChangedInFolder { folder, file })
            };
            let file = self.open_file(&part.name).ok_or_else(changed)?;
            let index = PartIndex::open(&name, Arc::new(file) as Arc<dyn DumpBytes>)?;
            // Another file may have got its name.
            if *index.head() != part.head {
                return Err(changed());
            }
            opened.push(index);
        }
        Ok(opened)
    }

    /// The parts of a dump and of all dumps that it builds on.
    fn chain(&self, wanted: DumpId) -> Result<Vec<PartIndex>, ServerError> {
        let (mut opened, mut seen, mut next) = (Vec::new(), Vec::new(), Some(wanted));
        while let Some(dump) = next.filter(|dump| !seen.contains(dump) && seen.len() < CHAIN_MAX) {
            seen.push(dump);
            opened.extend(self.open_parts(dump)?);
            let first = self.dumps.get(&dump).and_then(|parts| parts.first());
            next = match first.filter(|first| first.head.stream.kind == StreamKind::Incremental) {
                // Its base may also be an older snapshot in a dump.
                Some(first) => match self.base_of(first) {
                    Some(base) => Some(base),
                    None => self.holder_of(first)?,
                },
                None => None,
            };
        }
        Ok(opened)
    }

    /// A dump that has the base of this one among its snapshots.
    fn holder_of(&self, part: &Found) -> Result<Option<DumpId>, ServerError> {
        let stream = &part.head.stream;
        for other in self.firsts() {
            let own = &other.head.stream;
            let may = own.volume == stream.volume && own.target > stream.base && own.target < stream.target;
            if !may {
                continue;
            }
            let index = self.open_parts(other.head.dump.dump)?;
            let mut entries = index.iter().filter_map(PartIndex::table).flatten();
            if entries.any(|entry| entry.id == stream.base && root_digest(entry) == stream.base_digest) {
                return Ok(Some(other.head.dump.dump));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
