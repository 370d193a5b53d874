//! Where an origin or a history is: a file or disk, or a LUN of a volume of this server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_device::{Device, Direct, FileDevice, FileOptions, Geometry, OpenError};
use serde::{Deserialize, Serialize};

use super::{BUSY_PATIENCE, BUSY_PAUSE, Devices, Entry};
use crate::error::ServerError;
use crate::volumes::{Claims, is_same};

/// What a LUN's place begins with.
const LUN: &str = "lun:";
/// How long a program that writes to a file is given to end, as one does that is just being started or stopped.
const TAKE_PATIENCE: Duration = Duration::from_millis(500);
/// The part of a store that must be zero before it is taken.
pub(super) const MUST_BE_EMPTY: u32 = 128 << 10;

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(super) enum Place {
    /// Absolute.
    File(PathBuf),
    Lun {
        volume: String,
        lun: String,
    },
}

impl Place {
    /// Whether there is a file of that name, or it is a LUN, which may be.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Place::File(path) => path.symlink_metadata().is_ok(),
            Place::Lun { .. } => true,
        }
    }

    /// Whether a file can be made there: there is none, or one without a length.
    pub(super) fn is_free(&self) -> bool {
        match self {
            Place::File(path) => {
                path.symlink_metadata().map_or(true, |found| found.is_file() && found.len() == 0)
            }
            Place::Lun { .. } => false,
        }
    }

    /// Reads `lun:VOLUME/LUN` or an absolute path.
    pub(super) fn parse(text: &str) -> Result<Self, ServerError> {
        let place = Self::from(text.to_owned());
        match &place {
            Place::File(path) if !path.is_absolute() => {
                let rule = "it is absolute, or lun:VOLUME/LUN";
                Err(ServerError::Invalid { what: "the path", rule })
            }
            _ => Ok(place),
        }
    }

    /// `VOLUME/LUN` when it is one.
    pub(super) fn lun_name(&self) -> Option<String> {
        match self {
            Place::File(_) => None,
            Place::Lun { volume, lun } => Some(format!("{volume}/{lun}")),
        }
    }

    pub(super) fn is_in(&self, volume: &str) -> bool {
        matches!(self, Place::Lun { volume: mine, .. } if mine == volume)
    }
}

impl From<String> for Place {
    fn from(text: String) -> Self {
        match text.strip_prefix(LUN).and_then(|name| name.split_once('/')) {
            Some((volume, lun)) => Place::Lun { volume: volume.to_owned(), lun: lun.to_owned() },
            None => Place::File(text.into()),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Lun { volume, lun } => write!(f, "{LUN}{volume}/{lun}"),
        }
    }
}

impl Devices {
    /// Opens what is adopted; `in_use` where its owner has said that other programs may have it as well.
    pub(super) fn open_origin(&self, place: &Place, in_use: bool) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, FileOptions { in_use, ..origin_options() })
    }

    /// The same of what is being adopted.
    pub(super) fn take_present_origin(
        &self,
        place: &Place,
        in_use: bool,
    ) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, FileOptions { in_use, is_new: true, ..origin_options() })
    }

    /// Opens what holds a history.
    pub(super) fn open_store(&self, place: &Place) -> Result<Arc<dyn Device>, ServerError> {
        self.open_place(place, store_options())
    }

    fn open_place(&self, place: &Place, options: FileOptions) -> Result<Arc<dyn Device>, ServerError> {
        match place {
            Place::File(path) => Ok(open_when_free(path, options)?),
            Place::Lun { volume, lun } => {
                let open = self.volumes.get(volume)?;
                if open.is_destination() {
                    return Err(ServerError::IsDestination { volume: volume.clone() });
                }
                open.luns.open(lun).map_err(ServerError::files(&place.to_string()))
            }
        }
    }

    /// The device whose origin is that LUN.
    pub(crate) fn adopter_of(&self, lun: &str) -> Option<String> {
        let entries = self.entries.read();
        entries
            .iter()
            .find(|(_, entry)| entry.origin().lun_name().as_deref() == Some(lun))
            .map(|(name, _)| name.clone())
    }

    /// True for a LUN in which a device has its history; and for any while there is a device of which nothing is known: it may be its origin or its history, and takes no writes.
    pub(crate) fn is_history(&self, lun: &str) -> bool {
        self.entries.read().values().any(Entry::is_unknown) || self.holds_history(lun)
    }

    /// True for a LUN in which a device has its history, as far as that is known.
    pub(crate) fn holds_history(&self, lun: &str) -> bool {
        let entries = self.entries.read();
        let has = |entry: &Entry| entry.history().and_then(|place| place.lun_name()).as_deref() == Some(lun);
        entries.values().any(has)
    }

    /// The LUN that is the origin of a device.
    pub(crate) fn lun_of(&self, device: &str) -> Option<String> {
        self.entries.read().get(device)?.origin().lun_name()
    }

    /// The name under which the settings and the reservations of a present export stand: of a device on a LUN it is the LUN's, as the two are one disk.
    pub(crate) fn disk_of(&self, export: &str) -> String {
        self.lun_of(export).unwrap_or_else(|| export.to_owned())
    }

    /// The devices whose origin is a LUN, each with that.
    pub(crate) fn on_luns(&self) -> Vec<(String, String)> {
        let entries = self.entries.read();
        entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.origin().lun_name()?))).collect()
    }

    /// Refuses a file or a disk of a volume, or of another device, that is not open: who writes to it would change what that counts on.
    pub(super) fn refuse_claimed_place(&self, place: &Place) -> Result<(), ServerError> {
        match place {
            Place::File(path) => {
                self.volumes.refuse_if_claimed(path)?;
                self.refuse_claimed(path)
            }
            Place::Lun { .. } => Ok(()),
        }
    }

    /// Refuses what would change LUNs under a device that remembers: `None` is any LUN of the volume.
    pub(crate) fn refuse_adopted(&self, volume: &str, lun: Option<&str>) -> Result<(), ServerError> {
        let entries = self.entries.read();
        for (name, entry) in entries.iter() {
            if let (true, Entry::Unavailable(_, error)) = (entry.is_unknown(), entry) {
                let (reason, path) = (error.to_string(), self.path(name));
                return Err(ServerError::StateUnread { path, reason });
            }
            let places = [Some(entry.origin()), entry.history()];
            for place in places.into_iter().flatten() {
                let concerned = match lun {
                    None => place.is_in(volume),
                    Some(lun) => place.lun_name() == Some(format!("{volume}/{lun}")),
                };
                if concerned {
                    let lun = place.lun_name().unwrap_or_default();
                    return Err(ServerError::Adopted { lun, device: name.clone() });
                }
            }
        }
        Ok(())
    }
}

impl Claims for Devices {
    fn refuse_claimed(&self, path: &Path) -> Result<(), ServerError> {
        let unavailable = |(name, entry): (&String, &Entry)| match entry {
            Entry::Unavailable(document, error) => Some((name.clone(), document.clone(), error.clone())),
            _ => None,
        };
        let closed: Vec<_> = self.entries.read().iter().filter_map(unavailable).collect();
        // Not under the lock: a disk may not answer.
        for (device, document, error) in closed {
            if document.unknown {
                let (reason, path) = (error.to_string(), self.path(&device));
                return Err(ServerError::StateUnread { path, reason });
            }
            if document.files().iter().any(|file| is_same(file, path)) {
                return Err(ServerError::ClaimedByDevice { path: path.to_owned(), device });
            }
        }
        Ok(())
    }
}

/// Through the page cache: what waits there is what a plain disk's users have.
pub(super) fn origin_options() -> FileOptions {
    FileOptions { direct: Direct::Never, ..FileOptions::default() }
}

/// A log is written in large pieces that nothing changes again: by way of the page cache each byte of it would be copied once more, and push out what is read. What of it is read, the present of a placement that writes
/// nowhere else above all, is kept there.
fn store_options() -> FileOptions {
    FileOptions { direct: Direct::Writes, ..FileOptions::default() }
}

/// Opens a file or disk that was nobody's of this server. A program that just ends, or one that is just being started, may have it for a moment.
pub(crate) fn take_file(path: &Path, options: FileOptions) -> Result<FileDevice, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, FileOptions { is_new: true, ..options }) {
            Err(OpenError::InUse { .. }) if start.elapsed() < TAKE_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
}

/// The length of a file for a history that is so many bytes long: whole blocks.
fn store_length(bytes: u64) -> u64 {
    // Past all that there are no file is so long.
    bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// Opens a file or disk that is to hold a history, and holds nothing; a file is made, and told. One without a length gets it.
pub(crate) fn take_store_file(
    path: &Path,
    bytes: u64,
    made: &mut Vec<PathBuf>,
) -> Result<Arc<FileDevice>, ServerError> {
    let length = store_length(bytes);
    match take_file(path, store_options()) {
        // What a kill has left that came before it had its length.
        Ok(store) if store.geometry().length == 0 => {
            drop(store);
            Ok(create_store_file(path, length)?)
        }
        Ok(store) => {
            refuse_used(&store, &Place::File(path.to_owned()))?;
            Ok(Arc::new(store))
        }
        Err(OpenError::Missing { .. }) => {
            let store = create_store_file(path, length)?;
            made.push(path.to_owned());
            Ok(store)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses what [`take_store_file`] would, and makes nothing. What the store would be.
pub(crate) fn refuse_store_file(path: &Path, bytes: u64) -> Result<Geometry, ServerError> {
    let made = Geometry {
        length: store_length(bytes),
        alignment: 1,
        read_only: false,
        trims: true,
        fast_zeroes: true,
    };
    match take_file(path, store_options()) {
        Ok(store) if store.geometry().length == 0 => Ok(made),
        Ok(store) => refuse_used(&store, &Place::File(path.to_owned())).map(|()| store.geometry()),
        Err(OpenError::Missing { .. }) => {
            let folder = path.parent().unwrap_or(path);
            std::fs::metadata(folder).map_err(ServerError::path("find", folder))?;
            Ok(made)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses what holds something.
pub(super) fn refuse_used(store: &dyn Device, place: &Place) -> Result<(), ServerError> {
    let head = store.geometry().length.min(u64::from(MUST_BE_EMPTY)) as u32;
    if store.read(0, head)?.to_vec().iter().any(|byte| *byte != 0) {
        return Err(ServerError::DeviceNotEmpty { path: place.to_string().into() });
    }
    Ok(())
}

/// Creates a file that is to hold a history.
pub(super) fn create_store_file(path: &Path, bytes: u64) -> Result<Arc<FileDevice>, OpenError> {
    FileDevice::create_with(path, bytes, store_options()).map(Arc::new)
}

/// Opens a file or disk that holds a history.
pub(crate) fn open_store_file(path: &Path) -> Result<Arc<FileDevice>, OpenError> {
    open_when_free(path, store_options())
}

/// Opens a file or disk that a server that was just killed may hold for a moment longer.
fn open_when_free(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, options) {
            Err(OpenError::Busy { .. }) if start.elapsed() < BUSY_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            Err(OpenError::InUse { .. }) if start.elapsed() < TAKE_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome.map(Arc::new),
        }
    }
}
