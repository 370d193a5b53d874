//! The files and disks of a volume: opened, checked and cleared.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::{BLOCK_SIZE, VolumeId};
use cairn_device::{ConcatDevice, Device, FileDevice, FileOptions, OpenError, Rehearsal};
use cairn_format::layout::SPACE_BLOCKS_MAX;

use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::volumes::error::VolumesError;

/// How long opening waits for the lock of a server that was just killed, and how often it looks.
pub(super) const BUSY_PATIENCE: Duration = Duration::from_secs(5);

pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The part of a device that must be zero before it is taken: where partition tables and file
/// systems begin.
pub(super) const MUST_BE_EMPTY: u64 = 128 << 10;

pub(super) const BLOCK: u64 = BLOCK_SIZE as u64;

/// Removes an unused folder. If that fails, because of a disk fault or a mount in it, the folder
/// only takes room: the next start retries.
pub(super) fn new_rehearsal() -> Arc<Rehearsal> {
    Arc::new(Rehearsal::new(u64::from_le_bytes(random_bytes())))
}

/// Bytes of one file of a volume at most: ext4 has no files of 16 TiB.
const FILE_BYTES_MAX: u64 = 8 << 40;

/// Makes sparse files of so many bytes in total: `first`, and for a long volume `first.1` and so
/// on. After an error none of them is left.
pub(super) fn make_files(
    first: &Path,
    length: u64,
) -> Result<(Vec<PathBuf>, Vec<Arc<FileDevice>>), OpenError> {
    let (mut paths, mut devices) = (Vec::new(), Vec::new());
    let outcome = (0..length.div_ceil(FILE_BYTES_MAX)).try_for_each(|number| {
        let mut path = first.as_os_str().to_owned();
        if number > 0 {
            path.push(format!(".{number}"));
        }
        let bytes = FILE_BYTES_MAX.min(length - number * FILE_BYTES_MAX);
        devices.push(Arc::new(FileDevice::create(Path::new(&path), bytes)?));
        paths.push(PathBuf::from(path));
        Ok(())
    });
    if let Err(error) = outcome {
        remove_files(&paths);
        return Err(error);
    }
    Ok((paths, devices))
}

/// Removes the files of a volume that could not be made. A file that stays only takes room.
pub(super) fn remove_files(paths: &[PathBuf]) {
    paths.iter().for_each(|path| drop(fs::remove_file(path)));
}

/// Paths as in `volume.json`, of files in the folder of the volume.
pub(super) fn in_the_folder(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter_map(|path| path.file_name()).map(PathBuf::from).collect()
}

pub(super) fn whole(parts: &[Arc<FileDevice>]) -> Arc<dyn Device> {
    match parts {
        [one] => one.clone(),
        several => {
            let several = several.iter().map(|part| part.clone() as Arc<dyn Device>).collect();
            Arc::new(ConcatDevice::new(several))
        }
    }
}

/// Clears a device so that it can be used again.
pub(super) fn clear_beginning(device: &FileDevice) -> Result<(), ServerError> {
    let length = device.geometry().length.min(MUST_BE_EMPTY) as usize;
    device.write_from(0, &vec![0; length])?;
    Ok(device.flush()?)
}

pub(super) fn refuse_if_not_empty(device: &FileDevice, path: &Path) -> Result<(), ServerError> {
    if is_empty(device)? {
        Ok(())
    } else {
        Err(ServerError::Volumes(VolumesError::DeviceNotEmpty { path: path.to_owned() }))
    }
}

/// Nothing is where a device begins.
pub(super) fn is_empty(device: &FileDevice) -> Result<bool, ServerError> {
    let length = device.geometry().length.min(MUST_BE_EMPTY);
    Ok(device.read(0, length as u32)?.to_vec().iter().all(|byte| *byte == 0))
}

/// A size in whole blocks.
pub(crate) fn blocks_of(bytes: u64) -> Result<u64, ServerError> {
    let blocks = bytes / BLOCK;
    // Beyond the maximum, the bytes that a volume needs overflow.
    if blocks == 0 || blocks > SPACE_BLOCKS_MAX || !bytes.is_multiple_of(BLOCK) {
        return Err(ServerError::InvalidSize { bytes });
    }
    Ok(blocks)
}

/// A new id.
pub(crate) fn new_volume_id() -> VolumeId {
    VolumeId(random_bytes())
}

/// Opens a device of a volume. A server that was just killed can hold its lock for a moment longer
/// than its process lives: the kernel completes its requests first. After an immediate restart the
/// volume must not be out of service for that.
pub(super) fn open_when_free(path: &Path, patience: Duration) -> Result<Arc<FileDevice>, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, FileOptions::default()) {
            Err(OpenError::Busy { .. }) if start.elapsed() < patience => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome.map(Arc::new),
        }
    }
}
