//! Volumes are opened: all of them at a start, and each with its devices, its history and its
//! threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::{ByteSize, Clock};
use cairn_device::{Rehearsal, RehearsalDevice};
use cairn_files::Luns;
use cairn_volume::{OpenOptions, Volume};
use parking_lot::{Mutex, RwLock};

use crate::buckets::Buckets;
use crate::dumps::images::Keep;
use crate::error::ServerError;
use crate::mirrors::governor::Governor;
use crate::schedules::Schedules;
use crate::schedules::hooks::Hooks;
use crate::storage::settled::{no_answer, silent};
use crate::volumes::deleting::{is_left, remove_left};
use crate::volumes::disks::{BUSY_PATIENCE, new_rehearsal, open_when_free, whole};
use crate::volumes::document::VolumeDocument;
use crate::volumes::error::VolumesError;
use crate::volumes::fence::Fence;
use crate::volumes::from_bucket::Backed;
use crate::volumes::host_room::HostRoom;
use crate::volumes::known_paths::Paths;
use crate::volumes::open::{OpenVolume, PATIENCE, Parts};
use crate::volumes::scrub_state::Scrub;
use crate::volumes::{VolumeState, Volumes, WRITE_BACK_THREADS, log_file, making, restore};
use crate::work::turns::Turns;
use crate::{names, state};

impl Volumes {
    /// Opens every volume in `dir`. One that cannot be opened is reported and does not stop the
    /// others.
    pub(crate) fn open(
        dir: PathBuf,
        cache: ByteSize,
        clock: Arc<dyn Clock>,
        buckets: Option<Arc<Buckets>>,
    ) -> Result<Self, ServerError> {
        let volumes = Self {
            dir,
            cache,
            clock,
            buckets,
            turns: Turns::default(),
            entries: RwLock::default(),
            restoring: Mutex::default(),
            keeps: Mutex::default(),
            others: OnceLock::new(),
        };
        let mut names = Vec::new();
        let listing = fs::read_dir(&volumes.dir).map_err(ServerError::path("read", &volumes.dir))?;
        for found in listing {
            let found = found.map_err(ServerError::path("read", &volumes.dir))?;
            let name = found.file_name().to_string_lossy().into_owned();
            if restore::unfinished_in(&found.path()).is_some() {
                continue;
            }
            if is_left(&name) {
                // A creation or deletion that was cut off.
                making::take_back_made(&found.path());
                remove_left(&found.path());
                continue;
            }
            // A volume that its owner has set aside has a dot before its name.
            if name.starts_with('.') || is_no_volume(&found.path()) {
                tracing::warn!(path = %found.path().display(), "ignored an entry among the volumes that is not a volume");
                continue;
            }
            if !volumes.clear_temporary(&name) {
                names.push(name);
            }
        }
        let silent = silent(names.iter().flat_map(|name| volumes.named(name)));
        for name in volumes.parents_first(names) {
            match volumes.named(&name).into_iter().find(|path| silent.contains(path)) {
                Some(path) => volumes.leave_closed(&name, &path),
                None => volumes.open_entry(&name),
            }
        }
        Ok(volumes)
    }

    /// The files and disks of a volume outside of the data directory.
    fn named(&self, name: &str) -> Vec<PathBuf> {
        let Some(document) = self.places(name) else { return Vec::new() };
        let store = document.history.as_ref().map(|beneath| beneath.store().clone());
        let all = document.devices.iter().chain(&document.log_devices).cloned().chain(store);
        all.filter(|path| path.is_absolute()).collect()
    }

    /// Leaves a volume closed at the start, for others not to wait for a disk that does not answer.
    /// It is opened once that does.
    fn leave_closed(&self, name: &str, path: &Path) {
        if let Some(of) = self.places(name).and_then(|document| document.clone_of) {
            let _ = self.keep_base(name, &of);
        }
        let error = ServerError::Volumes(VolumesError::OpenDevice(no_answer(path)));
        tracing::error!(volume = name, %error, "a volume is not open yet");
        self.entries.write().insert(name.to_owned(), VolumeState::Unavailable(Arc::new(error)));
    }

    /// Opens a volume and registers the outcome.
    pub(super) fn open_entry(&self, name: &str) {
        let entry = match self.open_one(name, BUSY_PATIENCE) {
            Ok(open) => VolumeState::Open(open),
            Err(error) => {
                tracing::error!(volume = name, %error, "a volume cannot be opened; the others are served");
                VolumeState::Unavailable(Arc::new(error))
            }
        };
        self.entries.write().insert(name.to_owned(), entry);
    }

    pub(super) fn open_one(&self, name: &str, patience: Duration) -> Result<Arc<OpenVolume>, ServerError> {
        let document = self.document(name).inspect_err(|_| {
            // Its base stays until the clone is given up.
            if let Some(of) = self.places(name).and_then(|copy| copy.clone_of) {
                let _ = self.keep_base(name, &of);
            }
        })?;
        let document = self.settle_coming(name, document);
        let document = self.settle_history(name, document)?;
        state::renew_copy(&self.folder(name).join("volume.json"));
        if let Some(of) = &document.clone_of {
            self.keep_base(name, of)?;
        }
        let mut parts = self.open_parts(name, &document, patience)?;
        parts.log = log_file::find(name, &*whole(&parts.devices), &document.log_devices, patience)?;
        self.start(name, parts)
    }

    /// Opens the devices, without that of the log.
    pub(super) fn open_parts(
        &self,
        name: &str,
        document: &VolumeDocument,
        patience: Duration,
    ) -> Result<Parts, ServerError> {
        let folder = self.folder(name);
        let paths: Vec<PathBuf> = document.devices.iter().map(|device| folder.join(device)).collect();
        let devices =
            paths.iter().map(|path| open_when_free(path, patience)).collect::<Result<Vec<_>, _>>()?;
        let under = document.history.as_ref();
        let under = under
            .map(|beneath| beneath.open(name, &folder, &paths, whole(&devices), &self.clock))
            .transpose()?;
        let backed = document.from_bucket.as_ref();
        let backed = backed
            .map(|from| Backed::open(name, from, &folder, whole(&devices), self.buckets.as_ref()))
            .transpose()?;
        let (clone_of, numbers) = (document.clone_of.clone(), document.numbers());
        Ok(Parts { paths, devices, log: None, under, backed, clone_of, numbers })
    }

    pub(super) fn start(&self, name: &str, parts: Parts) -> Result<Arc<OpenVolume>, ServerError> {
        let rehearsal = new_rehearsal();
        let logs = parts.log.iter().map(|log| log.beside(&rehearsal)).collect::<Result<Vec<_>, _>>()?;
        let fence = Arc::new(Fence::new(self.below(name, &parts)?));
        let device = Arc::new(RehearsalDevice::new(fence.clone(), rehearsal.clone()));
        // An opening does not wait for room in a history, as all other work would wait with it:
        // writes without room are made before the next change.
        parts.under.iter().for_each(|under| under.let_wait(false));
        let volume = Volume::open_with_log(device, &logs, self.options());
        parts.backed.as_ref().map_or(Ok(()), |backed| backed.refuse_if_away(name))?;
        self.run(name, parts, volume.map_err(ServerError::volume(name))?, fence, rehearsal)
    }

    pub(crate) fn options(&self) -> OpenOptions {
        OpenOptions { cache_bytes: self.cache.0, clock: self.clock.clone() }
    }

    /// Gives an open volume its threads.
    pub(super) fn run(
        &self,
        name: &str,
        parts: Parts,
        volume: Arc<Volume>,
        fence: Arc<Fence>,
        rehearsal: Arc<Rehearsal>,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        volume.skip_numbers(parts.numbers);
        if let Some(under) = &parts.under {
            under.begin()?;
        }
        let base = parts.clone_of.as_ref().map(|of| volume.keep_snapshot(of.snapshot()));
        let dump_keep = Mutex::new(Keep::open(&volume, &self.folder(name)));
        let open = Arc::new(OpenVolume {
            _kept: base.transpose().map_err(ServerError::volume(name))?,
            clone_of: parts.clone_of,
            name: name.to_owned(),
            luns: Luns::new(volume.clone()),
            scrub: Scrub::open(self.folder(name).join("scrub.json"), &volume),
            volume,
            parts: parts.devices,
            paths: parts.paths,
            log: Mutex::new(parts.log),
            fence,
            under: parts.under,
            backed: parts.backed.map(Arc::new),
            writing_out: Arc::default(),
            host: HostRoom::default(),
            numbers: parts.numbers,
            rehearsal,
            file_paths: Paths::default(),
            schedules: Schedules::open(self.folder(name).join("schedules.json")),
            hooks: Arc::new(Hooks::open(self.folder(name).join("hooks.json"))),
            tree: Mutex::default(),
            mounts: Mutex::default(),
            dates: Mutex::default(),
            brought_back_to: AtomicU64::new(u64::MAX),
            dump_keep,
            governor: Arc::new(Governor::open(self.folder(name).join("governor.json"), self.clock.clone())),
            ending: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            rounds: Mutex::default(),
        });
        open.look_at_host();
        let looks = Arc::downgrade(&open);
        let background = open.clone().work("volume", move |volume| {
            looks.upgrade().iter().for_each(|open| open.look_at_host());
            volume.background(PATIENCE)
        })?;
        open.threads.lock().push(background);
        for _ in 0..WRITE_BACK_THREADS {
            let write_back = open.clone().work("write", |volume| volume.write_back(PATIENCE))?;
            open.threads.lock().push(write_back);
        }
        let scrub = open.clone().scrub_thread(self.clock.clone())?;
        open.threads.lock().push(scrub);
        if let Some(backed) = &open.backed {
            let fills = Arc::downgrade(&open);
            let ending = move || fills.upgrade().is_none_or(|open| open.ending.load(Ordering::Acquire));
            open.threads.lock().extend(backed.fill(name, ending)?);
            let room = Arc::downgrade(&open);
            let ending = move || room.upgrade().is_none_or(|open| open.ending.load(Ordering::Acquire));
            open.threads.lock().extend(backed.keep_room(name, &open.volume, ending)?);
        }
        if open.hooks.were_cut() {
            // On its own thread: it may take as long as the command, which must not keep the volume
            // open.
            let (hooks, name) = (open.hooks.clone(), open.name.clone());
            let release = move || hooks.release(&name);
            let thread = std::thread::Builder::new().name("release".to_owned()).spawn(release);
            thread.map_err(|source| ServerError::Thread { what: "a hook", source })?;
        }
        Ok(open)
    }
}

/// Whether an entry among the folders of volumes is not a volume: a file, or a folder with a name
/// that no volume can have, as the `lost+found` of a file system.
pub(super) fn is_no_volume(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|found| !found.is_dir());
    let name = path.file_name().and_then(|name| name.to_str());
    let may_be_one = name.is_some_and(|name| names::check("volume", name).is_ok());
    is_file || !may_be_one && !path.join("volume.json").exists()
}
