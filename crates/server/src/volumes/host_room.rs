//! The free space of the file system under a volume, as of the last check.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_api as api;
use parking_lot::Mutex;

/// How often is looked.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Percentage of free space below which the owner gets a warning, if a volume may use more than the
/// free space.
pub(super) const HOST_FREE_PERCENT: u64 = 10;

/// The unit of `st_blocks`.
pub(super) const STAT_BLOCK: u64 = 512;

/// The result of the last check.
#[derive(Default)]
pub(super) struct HostRoom {
    shown: Mutex<Option<api::HostRoom>>,
    looked: Mutex<Option<Instant>>,
}

impl HostRoom {
    /// Looks, unless that was done a moment ago.
    pub(super) fn look(&self, files: &[PathBuf]) {
        let mut looked = self.looked.lock();
        if looked.is_none_or(|then| then.elapsed() >= LOOK_EVERY) {
            *looked = Some(Instant::now());
            let found = room_under(files);
            *self.shown.lock() = found;
        }
    }

    pub(super) fn shown(&self) -> Option<api::HostRoom> {
        self.shown.lock().clone()
    }
}

/// The file system of these files with the least free space relative to its outstanding demand;
/// none for disks.
pub(super) fn room_under(files: &[PathBuf]) -> Option<api::HostRoom> {
    let found: Vec<_> = files
        .iter()
        .filter_map(|path| {
            let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
            Some((path, found.dev(), found.len().saturating_sub(found.blocks() * STAT_BLOCK)))
        })
        .collect();
    let room = |path: &PathBuf, device: u64| {
        let system = rustix::fs::statvfs(path).ok()?;
        Some(api::HostRoom {
            path: top_of(path, device).display().to_string(),
            size_bytes: system.f_blocks.saturating_mul(system.f_frsize),
            free_bytes: system.f_bavail.saturating_mul(system.f_frsize),
            unwritten_bytes: found
                .iter()
                .filter(|(_, other, _)| *other == device)
                .map(|(.., bytes)| bytes)
                .sum(),
        })
    };
    let rooms = found.iter().filter_map(|(path, device, _)| room(path, *device));
    rooms.min_by_key(|room| i128::from(room.free_bytes) - i128::from(room.unwritten_bytes))
}

/// The file system of a folder.
pub(super) fn room_of(folder: &Path) -> Option<api::HostRoom> {
    let device = fs::metadata(folder).ok()?.dev();
    let system = rustix::fs::statvfs(folder).ok()?;
    Some(api::HostRoom {
        path: top_of(&folder.join("volume"), device).display().to_string(),
        size_bytes: system.f_blocks.saturating_mul(system.f_frsize),
        free_bytes: system.f_bavail.saturating_mul(system.f_frsize),
        unwritten_bytes: 0,
    })
}

/// The topmost folder above a file on its file system: the mount point.
pub(super) fn top_of(path: &Path, device: u64) -> &Path {
    let is_on_it = |folder: &&Path| fs::metadata(folder).is_ok_and(|found| found.dev() == device);
    path.ancestors().skip(1).take_while(is_on_it).last().unwrap_or(path)
}

/// Whether it is about to run out: it may need more than it has, and has little.
pub(super) fn is_low(room: &api::HostRoom) -> bool {
    room.unwritten_bytes > room.free_bytes && room.free_bytes / HOST_FREE_PERCENT < room.size_bytes / 100
}
