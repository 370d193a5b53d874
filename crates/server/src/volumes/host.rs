//! The file system of a volume's files. The files are sparse: they use more of it as the volume
//! fills, and others may use that space first.
//!
//! The volume's own thread checks it once a second, as a file system may not answer: requests get
//! the last result.

use std::path::Path;

use cairn_api::{self as api, ErrorKind};
use cairn_history::FloorPolicy;

use super::host_room::is_low;
use crate::daemon::home::is_nearly_full;
use crate::error::ServerError;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;

impl OpenVolume {
    /// The file system under it, as it was seen last.
    pub(crate) fn host_room(&self) -> Option<api::HostRoom> {
        let mut room = self.host.shown()?;
        if let Some(more) = self.backed.as_ref().and_then(|backed| backed.cache_may_take()) {
            room.unwritten_bytes = more;
        }
        Some(room)
    }

    /// Checks the free space of the file system under it.
    pub(super) fn look_at_host(&self) {
        self.host.look(&self.paths);
    }

    /// The refusal of writes while the storage below it has no room.
    pub(super) fn no_room_below(&self) -> ServerError {
        if self.is_over_full_history() {
            return ServerError::Volumes(VolumesError::OverHistory {
                volume: self.name.clone(),
                kind: ErrorKind::NoSpace,
                why: "it takes no writes: its history is full and has nothing that is older than its floor",
                next: "make that shorter with `cairn history window VOLUME --floor off`, or have writes wait for room with --floor-policy wait; the volume takes writes again by itself",
            });
        }
        let room = self.host_room();
        let place = || {
            self.paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("/")).display().to_string()
        };
        ServerError::Volumes(VolumesError::HostFull {
            volume: self.name.clone(),
            free: cairn_base::ByteSize(room.as_ref().map_or(0, |room| room.free_bytes)),
            place: room.map_or_else(place, |room| room.path),
        })
    }

    /// Whether the history under it discards nothing, and therefore refuses writes.
    fn is_over_full_history(&self) -> bool {
        self.under.as_ref().is_some_and(|under| {
            let window = under.history().status().window;
            !window.floor.is_zero() && window.floor_policy == FloorPolicy::Fail
        })
    }

    /// A present or expected problem below the volume.
    pub(super) fn host_problem(&self) -> Option<api::Problem> {
        let subject = self.name.clone();
        if self.volume.status().lacks_room {
            let error = self.no_room_below();
            return Some(api::Problem { subject, message: error.to_string(), next: error.next() });
        }
        let room = self.host_room()?;
        if !is_low(&room) {
            return nearly_full(subject, &room);
        }
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

/// The problem that the file system of a volume is nearly full, although the volume takes no more
/// of it: all else there needs space too.
fn nearly_full(subject: String, room: &api::HostRoom) -> Option<api::Problem> {
    if !is_nearly_full(room.free_bytes, room.size_bytes) {
        return None;
    }
    let (free, size) = (cairn_base::ByteSize(room.free_bytes), cairn_base::ByteSize(room.size_bytes));
    let place = &room.path;
    Some(api::Problem {
        subject,
        message: format!("the file system of its files ({place}) is nearly full: {free} of {size} is free"),
        next: format!("free space in {place}, or enlarge it"),
    })
}
