//! The file system that a volume's files are on. The files are sparse: they take room of it as the volume fills, and others may take that room first.
//!
//! The volume's own thread looks once a second, as a file system may not answer: who asks is told what was found last.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_api::{self as api, ErrorKind};
use cairn_history::FloorPolicy;
use parking_lot::Mutex;

use super::OpenVolume;
use crate::error::ServerError;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The owner of a file system is told when less than so much of it is free, and a volume may take more than that.
const HOST_FREE_PERCENT: u64 = 10;
/// What `st_blocks` counts in.
const STAT_BLOCK: u64 = 512;

/// What was found last.
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

/// Of the file systems of these files the one that has least beside what it is still to give; none of disks.
fn room_under(files: &[PathBuf]) -> Option<api::HostRoom> {
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

/// The topmost folder above a file on its file system: where that is mounted.
fn top_of(path: &Path, device: u64) -> &Path {
    let is_on_it = |folder: &&Path| fs::metadata(folder).is_ok_and(|found| found.dev() == device);
    path.ancestors().skip(1).take_while(is_on_it).last().unwrap_or(path)
}

/// Whether it is about to run out: it may be asked for more than it has, and has little.
fn is_low(room: &api::HostRoom) -> bool {
    room.unwritten_bytes > room.free_bytes && room.free_bytes / HOST_FREE_PERCENT < room.size_bytes / 100
}

impl OpenVolume {
    /// The file system under it, as it was seen last.
    pub(crate) fn host_room(&self) -> Option<api::HostRoom> {
        self.host.shown()
    }

    /// Sees what the file system under it has now.
    pub(super) fn look_at_host(&self) {
        self.host.look(&self.paths);
    }

    /// Why it takes no writes, while what is below it has no room.
    pub(super) fn no_room_below(&self) -> ServerError {
        if self.is_over_full_history() {
            return ServerError::OverHistory {
                volume: self.name.clone(),
                kind: ErrorKind::NoSpace,
                why: "it takes no writes: its history is full and has nothing that is older than its floor",
                next: "make that shorter with `cairn history window VOLUME --floor off`, or have writes wait for room with --floor-policy wait; the volume takes writes again by itself",
            };
        }
        let room = self.host_room();
        let place = || {
            self.paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("/")).display().to_string()
        };
        ServerError::HostFull {
            volume: self.name.clone(),
            free: cairn_base::ByteSize(room.as_ref().map_or(0, |room| room.free_bytes)),
            place: room.map_or_else(place, |room| room.path),
        }
    }

    /// Whether the history under it keeps all that it has, and refuses writes for that.
    fn is_over_full_history(&self) -> bool {
        self.under.as_ref().is_some_and(|under| {
            let window = under.history().status().window;
            !window.floor.is_zero() && window.floor_policy == FloorPolicy::Fail
        })
    }

    /// What is wrong below, or will be soon.
    pub(super) fn host_problem(&self) -> Option<api::Problem> {
        let subject = self.name.clone();
        if self.volume.status().lacks_room {
            let error = self.no_room_below();
            return Some(api::Problem { subject, message: error.to_string(), next: error.next() });
        }
        let room = self.host_room().filter(is_low)?;
        let (free, more) =
            (cairn_base::ByteSize(room.free_bytes), cairn_base::ByteSize(room.unwritten_bytes));
        let place = room.path;
        Some(api::Problem {
            subject,
            message: format!(
                "the file system of its files ({place}) has {free} free, and {} may still take {more} of it",
                self.name
            ),
            next: format!(
                "free space in {place}, or enlarge it; when it is full, writes to {} fail until it has room again",
                self.name
            ),
        })
    }
}
