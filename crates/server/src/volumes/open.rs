//! A volume that is open: its engine, its devices, its threads, and the state that each part of the
//! server keeps with it.

use std::collections::HashSet;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use cairn_device::{Device, FileDevice, Rehearsal};
use cairn_files::{Luns, Tree};
use cairn_frontend_fuse::Mount;
use cairn_volume::{Kept, Numbers, Role, Volume, VolumeError};
use parking_lot::Mutex;

use crate::dumps::images::Keep;
use crate::error::ServerError;
use crate::mirrors::governor::Governor;
use crate::schedules::Schedules;
use crate::schedules::hooks::Hooks;
use crate::volumes::disks::{BLOCK, blocks_of, clear_beginning};
use crate::volumes::document::CloneOf;
use crate::volumes::error::VolumesError;
use crate::volumes::fence::Fence;
use crate::volumes::from_bucket::Backed;
use crate::volumes::host_room::HostRoom;
use crate::volumes::known_paths::Paths;
use crate::volumes::log_file::LogFile;
use crate::volumes::scrub_state::Scrub;
use crate::volumes::under::Under;
use crate::volumes::writing_out::WritingOut;
use crate::work::background;
use crate::work::rounds::Rounds;

/// How long a round of background work waits for something to do: the longest that closing a volume
/// waits.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// A volume that is open, with its thread.
pub(crate) struct OpenVolume {
    pub(crate) name: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) luns: Luns,
    pub(super) parts: Vec<Arc<FileDevice>>,
    pub(super) paths: Vec<PathBuf>,
    /// The device of the intent log, if it has one; kept when the volume has left it because it
    /// failed.
    pub(super) log: Mutex<Option<LogFile>>,
    /// Between it and the storage below.
    pub(super) fence: Arc<Fence>,
    /// The history between it and its devices, if any.
    pub(super) under: Option<Under>,
    /// The image in a bucket that it was opened from.
    pub(super) backed: Option<Arc<Backed>>,
    pub(super) writing_out: Arc<WritingOut>,
    /// The file system of its files.
    pub(super) host: HostRoom,
    /// The lowest numbers that it may assign.
    pub(super) numbers: Numbers,
    /// Its base, if it is a clone. That snapshot stays in the parent.
    pub(super) clone_of: Option<CloneOf>,
    pub(super) _kept: Option<Kept>,
    /// Faults that are put under it on purpose.
    pub(super) rehearsal: Arc<Rehearsal>,
    pub(super) scrub: Scrub,
    pub(super) file_paths: Paths,
    pub(crate) schedules: Schedules,
    pub(crate) hooks: Arc<Hooks>,
    /// The live tree of files, while it is in use.
    pub(super) tree: Mutex<Weak<Tree>>,
    /// The mounts of that tree.
    pub(super) mounts: Mutex<Vec<Weak<Mount>>>,
    /// Held while the dates of its BSD dumps change. The snapshots that dumps at work have made for
    /// themselves.
    pub(crate) dates: Mutex<HashSet<String>>,
    /// The second of the instant to which it was reverted after this opening, with the dates
    /// locked; past all seconds if it was not.
    pub(crate) brought_back_to: AtomicU64,
    /// The snapshots that an unfinished image dump needs.
    pub(crate) dump_keep: Mutex<Keep>,
    pub(crate) governor: Arc<Governor>,
    pub(super) ending: AtomicBool,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// How far those are that make consistency points and write back.
    pub(super) rounds: Mutex<Vec<Arc<Rounds>>>,
}

/// A volume's devices, open.
pub(super) struct Parts {
    pub(super) paths: Vec<PathBuf>,
    pub(super) devices: Vec<Arc<FileDevice>>,
    pub(super) log: Option<LogFile>,
    pub(super) under: Option<Under>,
    pub(super) backed: Option<Backed>,
    pub(super) clone_of: Option<CloneOf>,
    pub(super) numbers: Numbers,
}

impl Parts {
    /// Of a volume on those devices, with nothing else.
    pub(crate) fn of(paths: Vec<PathBuf>, devices: Vec<Arc<FileDevice>>) -> Self {
        let numbers = Numbers::default();
        Self { paths, devices, log: None, under: None, backed: None, clone_of: None, numbers }
    }
}

impl OpenVolume {
    /// Starts a thread that repeats a round of work until the volume ends.
    pub(super) fn work(
        self: Arc<Self>,
        kind: &str,
        round: impl Fn(&Arc<Volume>) -> Result<(), VolumeError> + Send + 'static,
    ) -> Result<JoinHandle<()>, ServerError> {
        let name = format!("{kind}-{}", self.name);
        let rounds = Arc::new(Rounds::default());
        self.rounds.lock().push(rounds.clone());
        let repeat = move || {
            let _ending = rounds.begin();
            while !self.ending.load(Ordering::Acquire) {
                let outcome = round(&self.volume);
                rounds.turn();
                let Err(error) = outcome else { continue };
                if self.volume.status().latched.is_some() {
                    tracing::error!(volume = self.name, %error, "the background work of a volume has stopped");
                    return;
                }
                // An unreadable block, or space that another program has used: all other work
                // continues.
                tracing::warn!(volume = self.name, %error, "a round of background work failed");
                std::thread::sleep(PATIENCE);
            }
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(repeat)
            .map_err(|source| ServerError::Thread { what: "a volume", source })
    }

    /// How far its threads are, as the watchdog wants to know.
    pub(crate) fn rounds(&self) -> Vec<Arc<Rounds>> {
        self.rounds.lock().clone()
    }

    /// Whether its threads wait because its owner wants that: for room in its history, for a disk
    /// that is slow in a rehearsal, or for a bucket.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.rehearsal.faults().delay.is_zero() || self.waits_for_room() || !self.is_local()
    }

    /// Starts the thread that scrubs, and that looks after damaged blocks.
    pub(super) fn scrub_thread(
        self: Arc<Self>,
        clock: Arc<dyn Clock>,
    ) -> Result<JoinHandle<()>, ServerError> {
        let repeat = move || {
            background::step_back();
            while !self.ending.load(Ordering::Acquire) {
                self.scrub_round(&*clock);
            }
            // Damage found since the last round.
            self.keep_damage(&*clock);
        };
        std::thread::Builder::new()
            .name("scrub".to_owned())
            .spawn(repeat)
            .map_err(|source| ServerError::Thread { what: "a scrub", source })
    }

    /// Ends the threads and closes the volume.
    pub(crate) fn end(&self) -> Result<(), ServerError> {
        self.ending.store(true, Ordering::Release);
        self.end_waits();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!(volume = self.name, "a thread of the volume had panicked");
            }
        }
        let closed = self.volume.close().map_err(ServerError::volume(&self.name));
        if let Some(under) = &self.under {
            under.end();
        }
        closed
    }

    /// Makes the devices that its owner named ones that can be named again.
    pub(super) fn clear_devices(&self, folder: &Path) -> Result<(), ServerError> {
        for (path, part) in self.paths.iter().zip(&self.parts) {
            if !path.starts_with(folder) {
                clear_beginning(part)?;
            }
        }
        self.remove_cache(folder);
        self.under.as_ref().map_or(Ok(()), Under::clear)?;
        // A failed one is not used again.
        self.log_in_use().map_or(Ok(()), |log| clear_beginning(&log.device))
    }

    /// It is a clone, which has the id of its parent.
    pub(crate) fn is_clone(&self) -> bool {
        self.clone_of.is_some()
    }

    /// True while it is the destination of a mirror.
    pub(crate) fn is_destination(&self) -> bool {
        self.volume.status_role() == Role::Destination
    }

    /// As the API shows it.
    pub(crate) fn show(&self) -> api::Volume {
        let status = self.volume.status();
        let luns = self.luns.readable().map(|luns| luns.len() as u64).unwrap_or(0);
        api::Volume {
            name: self.name.clone(),
            id: status.id.to_string(),
            role: match status.role {
                Role::Normal => api::VolumeRole::Normal,
                Role::Destination => api::VolumeRole::Destination,
            },
            size_bytes: status.blocks * BLOCK,
            used_bytes: status.used * BLOCK,
            free_bytes: status.free * BLOCK,
            dirty_bytes: status.dirty * BLOCK,
            generation: status.generation.0,
            luns,
            snapshots: status.snapshots,
            devices: self.paths.iter().map(|path| path.display().to_string()).collect(),
            log_device: self.log_in_use().map(|log| log.path.display().to_string()),
            history: self.under.as_ref().map(Under::place),
            clone_of: self.clone_of.as_ref().map(CloneOf::shown),
            bucket: self.backed.as_ref().map(|backed| backed.show()),
            scrub: Some(self.show_scrub()),
            host: self.host_room(),
            problem: status
                .latched
                .map(|error| error.to_string())
                .or_else(|| status.lacks_room.then(|| self.no_room_below().to_string()))
                .or_else(|| self.log_problem().map(|problem| problem.message)),
        }
    }

    /// Makes the last device long enough for a redirect area and a have map, if it is a file.
    pub(crate) fn make_room_as_destination(&self) -> Result<(), ServerError> {
        let Some(last) = self.parts.last() else { return Ok(()) };
        let before: u64 = self.parts[..self.parts.len() - 1].iter().map(|part| part.geometry().length).sum();
        let need = self.volume.device_bytes_as_destination();
        if before + last.geometry().length >= need {
            return Ok(());
        }
        self.refuse_to_grow()?;
        last.grow(need.saturating_sub(before)).map_err(|error| match error {
            cairn_device::DeviceError::NoSpace { .. } => ServerError::Volumes(VolumesError::DeviceTooSmall {
                size: self.volume.status().blocks * BLOCK,
                need,
                have: before + last.geometry().length,
                last: self.paths.last().cloned(),
            }),
            error => error.into(),
        })
    }

    /// Grows the volume to `size_bytes`, or to the present capacity of its devices.
    pub(crate) fn grow(&self, size_bytes: Option<u64>) -> Result<(), ServerError> {
        self.refuse_to_grow()?;
        let (Some(last), Some(path)) = (self.parts.last(), self.paths.last()) else { return Ok(()) };
        let before: u64 = self.parts[..self.parts.len() - 1].iter().map(|part| part.geometry().length).sum();
        let blocks = match size_bytes {
            Some(bytes) => blocks_of(bytes)?,
            None => {
                let end = fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
                self.volume.blocks_after_growth(before + end.map_err(ServerError::path("read", path))?)
            }
        };
        let status = self.volume.status();
        if blocks <= status.blocks {
            return Err(ServerError::WrongSize {
                fault: "cannot shrink a volume, and its devices have no room to grow it",
                next: "enlarge the last device first, or pass a larger --size",
            });
        }
        // As it is laid out: one that was a mirror has areas that grow with it.
        let need = self.volume.device_bytes_after_growth(blocks).map_err(ServerError::volume(&self.name))?;
        last.grow(need.saturating_sub(before)).map_err(|error| match error {
            cairn_device::DeviceError::NoSpace { .. } => ServerError::Volumes(VolumesError::DeviceTooSmall {
                size: blocks * BLOCK,
                need,
                have: before + last.geometry().length,
                last: Some(path.clone()),
            }),
            error => error.into(),
        })?;
        self.volume.grow(blocks).map_err(ServerError::volume(&self.name))
    }
}
