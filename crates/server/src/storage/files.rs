//! Files and disks for an origin, a store or a log: they are opened or made, and refused when they
//! hold something.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_device::{Device, Direct, FileDevice, FileOptions, Geometry, OpenError};

use crate::error::ServerError;
use crate::storage::place::Place;
use crate::volumes::error::VolumesError;

/// How long opening waits for the lock of a server that was just killed, and how often it looks.
pub(crate) const BUSY_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How long a program that writes to a file is given to end, as one does that is just being started
/// or stopped.
pub(crate) const TAKE_PATIENCE: Duration = Duration::from_millis(500);

/// The part of a store that must be zero before it is taken.
pub(crate) const MUST_BE_EMPTY: u32 = 128 << 10;

/// Through the page cache: this gives users the same caching as a plain disk.
pub(crate) fn origin_options() -> FileOptions {
    FileOptions { direct: Direct::Never, ..FileOptions::default() }
}

/// A log is written in large pieces that never change: through the page cache each byte would be
/// copied once more, and would evict data that is read. Data read from it is cached there, above
/// all the present of a placement that writes nowhere else.
pub(crate) fn store_options() -> FileOptions {
    FileOptions { direct: Direct::Writes, ..FileOptions::default() }
}

/// Opens a file or disk that no part of this server claims. A program that is just exiting or
/// starting may hold it for a moment.
pub(crate) fn take_file(path: &Path, options: FileOptions) -> Result<FileDevice, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, FileOptions { is_new: true, ..options }) {
            Err(OpenError::InUse { .. }) if start.elapsed() < TAKE_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
}

/// The length of a file for a history of this many bytes: whole blocks.
pub(crate) fn store_length(bytes: u64) -> u64 {
    // No file is this long.
    bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// Opens an empty file or disk for a history; a missing file is created, and reported. A file of
/// length 0 gets its length.
pub(crate) fn take_store_file(
    path: &Path,
    bytes: u64,
    made: &mut Vec<PathBuf>,
) -> Result<Arc<FileDevice>, ServerError> {
    let length = store_length(bytes);
    match take_file(path, store_options()) {
        // A file that a kill has left before it got its length.
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

/// Makes the checks of [`take_store_file`], and creates nothing. Returns the geometry of the later
/// store.
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

/// Refuses a device that has data.
pub(crate) fn refuse_used(store: &dyn Device, place: &Place) -> Result<(), ServerError> {
    let head = store.geometry().length.min(u64::from(MUST_BE_EMPTY)) as u32;
    if store.read(0, head)?.to_vec().iter().any(|byte| *byte != 0) {
        return Err(ServerError::Volumes(VolumesError::DeviceNotEmpty { path: place.to_string().into() }));
    }
    Ok(())
}

/// Creates a file that is to hold a history.
pub(crate) fn create_store_file(path: &Path, bytes: u64) -> Result<Arc<FileDevice>, OpenError> {
    FileDevice::create_with(path, bytes, store_options()).map(Arc::new)
}

/// Opens a file or disk that holds a history.
pub(crate) fn open_store_file(path: &Path) -> Result<Arc<FileDevice>, OpenError> {
    open_when_free(path, store_options())
}

/// Opens a file or disk that a server that was just killed may hold for a moment longer.
pub(crate) fn open_when_free(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, options) {
            Err(OpenError::Busy { .. }) if start.elapsed() < BUSY_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            Err(OpenError::InUse { .. }) if start.elapsed() < TAKE_PATIENCE => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome.map(Arc::new),
        }
    }
}
