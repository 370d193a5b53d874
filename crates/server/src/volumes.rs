//! The volumes of a server: opening, creating, growing, checking and deleting them, and the thread behind each.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_api::{self as api, ErrorKind};
use cairn_base::{BLOCK_SIZE, ByteSize, Clock, VolumeId};
use cairn_device::{ConcatDevice, Device, FileDevice, FileOptions, OpenError, Rehearsal, RehearsalDevice};
use cairn_files::{Luns, Tree};
use cairn_format::layout::SPACE_BLOCKS_MAX;
use cairn_frontend_fuse::Mount;
use cairn_volume::{FormatOptions, Kept, NewLog, Numbers, OpenOptions, Role, Volume, VolumeError};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::background;
use crate::data_dir::guard;
use crate::devices::take_file;
use crate::error::ServerError;
use crate::governor::Governor;
use crate::hooks::Hooks;
use crate::images::Keep;
use crate::names;
use crate::schedules::Schedules;
use crate::settled::{no_answer, silent};
use crate::state;
use crate::token::random_bytes;
use crate::turns::Turns;
use crate::watchdog::Rounds;

mod beneath;
mod claims;
mod clones;
mod deleting;
mod fence;
mod history;
mod host;
mod log;
mod lost;
mod making;
mod older;
mod places;
mod rehearsal;
mod restore;
mod room;
mod scrub;
mod tree;
mod views;
mod waiting;
use claims::refuse_relative;
pub(crate) use claims::{Claims, is_same};
pub(crate) use clones::CloneOf;
use deleting::{is_left, remove_left};
use fence::Fence;
use history::{Beneath, Given, Under};
use host::HostRoom;
use log::LogFile;
use making::Making;
use places::Paths;
pub(crate) use restore::Unfinished as UnfinishedRestore;
use room::WritingOut;
pub(crate) use room::{is_of_full_history, waits_with_writes};
pub(crate) use scrub::Document as ScrubDocument;
use scrub::Scrub;
pub(crate) use views::{Document as ViewsDocument, VolumeView};

/// How long a round of background work waits for something to do: the longest that closing a volume waits.
const PATIENCE: Duration = Duration::from_millis(200);
/// Threads of a volume that write back beside the one that does all background work.
const WRITE_BACK_THREADS: usize = 1;
/// How long opening waits for the lock of a server that was just killed, and how often it looks.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// The part of a device that must be zero before it is taken: where partition tables and file systems begin.
const MUST_BE_EMPTY: u64 = 128 << 10;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A volume that is open, with its thread.
pub(crate) struct OpenVolume {
    pub(crate) name: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) luns: Luns,
    parts: Vec<Arc<FileDevice>>,
    paths: Vec<PathBuf>,
    /// The device of the intent log, if it has one; kept when the volume has left it because it failed.
    log: Mutex<Option<LogFile>>,
    /// Between it and what it stands on.
    fence: Arc<Fence>,
    /// What remembers, between it and its devices.
    under: Option<Under>,
    writing_out: Arc<WritingOut>,
    /// The file system of its files.
    host: HostRoom,
    /// What it gives no number below of.
    numbers: Numbers,
    /// What it is a clone of. That snapshot stays in it.
    clone_of: Option<CloneOf>,
    _kept: Option<Kept>,
    /// Faults that are put under it on purpose.
    rehearsal: Arc<Rehearsal>,
    scrub: Scrub,
    file_paths: Paths,
    pub(crate) schedules: Schedules,
    pub(crate) hooks: Arc<Hooks>,
    /// The live tree of files, as long as somebody has it.
    tree: Mutex<Weak<Tree>>,
    /// Where that is mounted.
    mounts: Mutex<Vec<Weak<Mount>>>,
    /// Held while the dates of its BSD dumps change. The snapshots that dumps at work have made for themselves.
    pub(crate) dates: Mutex<HashSet<String>>,
    /// The second of the instant that it was brought back to after this opening, with the dates locked; past all seconds where it was not.
    pub(crate) brought_back_to: AtomicU64,
    /// What an unfinished image dump needs.
    pub(crate) dump_keep: Mutex<Keep>,
    pub(crate) governor: Arc<Governor>,
    ending: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How far those are that make consistency points and write back.
    rounds: Mutex<Vec<Arc<Rounds>>>,
}

/// What `volume.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    /// Absolute, or relative to the folder of the volume.
    devices: Vec<PathBuf>,
    /// Where the log device is, absolute: while the log moves, both places. The superblock says whether there is one, and which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    log_devices: Vec<PathBuf>,
    /// A clone: the devices hold what differs from a snapshot of another volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clone_of: Option<CloneOf>,
    /// A history between the devices and the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<Beneath>,
    /// One that is being made, and that nothing was written through: a start takes back what there is of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    coming: Option<Beneath>,
    /// What was to be on its devices before anything was. As long as the volume is not in its place nobody has used it, and a start takes that back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made_as: Option<Making>,
    /// Of a history that was taken away, in which the volume had been brought back: numbers that it had not given yet.
    #[serde(default, skip_serializing_if = "Given::is_nothing")]
    given: Given,
}

impl Document {
    /// Of a volume on those devices, with nothing else.
    fn of(devices: Vec<PathBuf>) -> Self {
        let (history, coming, made_as, given) = (None, None, None, Given::default());
        Self { devices, log_devices: Vec::new(), clone_of: None, history, coming, made_as, given }
    }

    /// The volume gives no number below these.
    fn numbers(&self) -> Numbers {
        let beneath = self.history.as_ref().map(Beneath::given).unwrap_or_default();
        let Given { file, snapshot } = self.given.and(beneath);
        Numbers { file, snapshot }
    }
}

enum Entry {
    Open(Arc<OpenVolume>),
    /// Closed by a command that puts it back; nobody else touches anything of it.
    Away {
        /// What it is busy with.
        by: &'static str,
    },
    /// It could not be opened; its name stays taken and nothing of it is touched.
    Unavailable(Arc<ServerError>),
}

/// The volumes of a server.
///
/// Lock order: `turns`, then `entries`. The second is never held while a device is touched; the first is each name's own.
pub(crate) struct Volumes {
    dir: PathBuf,
    cache: ByteSize,
    clock: Arc<dyn Clock>,
    /// Who makes, opens, deletes a volume, brings it back or shows it at an instant. The paths of its devices are his who has them locked.
    turns: Turns,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// Names of volumes that are being restored.
    restoring: Mutex<HashSet<String>>,
    /// By clone: keeps the snapshot that it is made of, also while the clone itself cannot be opened.
    keeps: Mutex<BTreeMap<String, Kept>>,
    /// Who else can have a file or a disk.
    others: OnceLock<Weak<dyn Claims>>,
}

/// Writes files into a folder.
type Beside<'a> = dyn Fn(&Path) -> Result<(), ServerError> + 'a;

/// What a new volume is made from.
pub(crate) struct NewVolume<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: VolumeId,
    pub(crate) role: Role,
    /// What the devices hold when `None`.
    pub(crate) blocks: Option<u64>,
    pub(crate) devices: &'a [String],
    /// For the intent log; on the devices when `None`.
    pub(crate) log_device: Option<&'a str>,
    /// Between the devices and the volume.
    pub(crate) history: Option<&'a api::VolumeHistory>,
    /// Writes what else belongs into its folder, which is not in its place yet: no kill leaves the one without the other.
    pub(crate) beside: Option<&'a Beside<'a>>,
}

/// A volume's devices, open.
struct Parts {
    paths: Vec<PathBuf>,
    devices: Vec<Arc<FileDevice>>,
    log: Option<LogFile>,
    under: Option<Under>,
    clone_of: Option<CloneOf>,
    numbers: Numbers,
}

impl Parts {
    /// Of a volume on those devices, with nothing else.
    fn of(paths: Vec<PathBuf>, devices: Vec<Arc<FileDevice>>) -> Self {
        Self { paths, devices, log: None, under: None, clone_of: None, numbers: Numbers::default() }
    }
}

impl Volumes {
    /// Opens every volume in `dir`. One that cannot be opened is reported and does not stop the others.
    pub(crate) fn open(dir: PathBuf, cache: ByteSize, clock: Arc<dyn Clock>) -> Result<Self, ServerError> {
        let volumes = Self {
            dir,
            cache,
            clock,
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
            // One that its owner has put aside has a dot before its name.
            if name.starts_with('.') || is_no_volume(&found.path()) {
                tracing::warn!(path = %found.path().display(), "what is among the volumes and is none is left alone");
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

    /// What a volume is on outside of the data directory.
    fn named(&self, name: &str) -> Vec<PathBuf> {
        let Some(document) = self.places(name) else { return Vec::new() };
        let store = document.history.as_ref().map(|beneath| beneath.store().clone());
        let all = document.devices.iter().chain(&document.log_devices).cloned().chain(store);
        all.filter(|path| path.is_absolute()).collect()
    }

    /// Leaves a volume closed at the start, for others not to wait for a disk that does not answer. It is opened once that does.
    fn leave_closed(&self, name: &str, path: &Path) {
        if let Some(of) = self.places(name).and_then(|document| document.clone_of) {
            let _ = self.keep_base(name, &of);
        }
        let error = ServerError::OpenDevice(no_answer(path));
        tracing::error!(volume = name, %error, "a volume is not open yet");
        self.entries.write().insert(name.to_owned(), Entry::Unavailable(Arc::new(error)));
    }

    /// Opens a volume and puts it among the others, whatever comes of it.
    fn open_entry(&self, name: &str) {
        let entry = match self.open_one(name, BUSY_PATIENCE) {
            Ok(open) => Entry::Open(open),
            Err(error) => {
                tracing::error!(volume = name, %error, "a volume cannot be opened; the others are served");
                Entry::Unavailable(Arc::new(error))
            }
        };
        self.entries.write().insert(name.to_owned(), entry);
    }

    fn open_one(&self, name: &str, patience: Duration) -> Result<Arc<OpenVolume>, ServerError> {
        let document = self.document(name).inspect_err(|_| {
            // What it is made of stays as long as nobody has given it up.
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
        parts.log = log::find(name, &*whole(&parts.devices), &document.log_devices, patience)?;
        self.start(name, parts)
    }

    fn document(&self, name: &str) -> Result<Document, ServerError> {
        let path = self.folder(name).join("volume.json");
        state::load(&path)?.ok_or_else(|| ServerError::StateGone { path: path.clone() })
    }

    /// Writes down where a volume is and what it is made of, twice: the copy beside the document, which may be gone back to, says the same.
    fn note(&self, name: &str, document: &Document) -> Result<(), ServerError> {
        let path = self.folder(name).join("volume.json");
        state::save(&path, document)?;
        state::save(&path, document)
    }

    /// Where a volume is, and what it is made of, also when the document itself can't be read: the copy beside it says it as well.
    fn places(&self, name: &str) -> Option<Document> {
        let copy = || state::load(&state::previous(&self.folder(name).join("volume.json"))).ok().flatten();
        self.document(name).ok().or_else(copy)
    }

    /// Opens the devices, without that of the log.
    fn open_parts(&self, name: &str, document: &Document, patience: Duration) -> Result<Parts, ServerError> {
        let folder = self.folder(name);
        let paths: Vec<PathBuf> = document.devices.iter().map(|device| folder.join(device)).collect();
        let devices =
            paths.iter().map(|path| open_when_free(path, patience)).collect::<Result<Vec<_>, _>>()?;
        let under = document.history.as_ref();
        let under = under
            .map(|beneath| beneath.open(name, &folder, &paths, whole(&devices), &self.clock))
            .transpose()?;
        let (clone_of, numbers) = (document.clone_of.clone(), document.numbers());
        Ok(Parts { paths, devices, log: None, under, clone_of, numbers })
    }

    fn start(&self, name: &str, parts: Parts) -> Result<Arc<OpenVolume>, ServerError> {
        let rehearsal = new_rehearsal();
        let logs = parts.log.iter().map(|log| log.beside(&rehearsal)).collect::<Result<Vec<_>, _>>()?;
        let fence = Arc::new(Fence::new(self.below(name, &parts)?));
        let device = Arc::new(RehearsalDevice::new(fence.clone(), rehearsal.clone()));
        // An opening waits for no room in a history, as everything would wait with it: what it finds none for comes before the next change.
        parts.under.iter().for_each(|under| under.let_wait(false));
        let volume = Volume::open_with_log(device, &logs, self.options());
        self.run(name, parts, volume.map_err(ServerError::volume(name))?, fence, rehearsal)
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { cache_bytes: self.cache.0, clock: self.clock.clone() }
    }

    /// Gives an open volume its threads.
    fn run(
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
        if open.hooks.were_cut() {
            // On its own: it may take as long as the command, which the volume is not kept open for.
            let (hooks, name) = (open.hooks.clone(), open.name.clone());
            let release = move || hooks.release(&name);
            let thread = std::thread::Builder::new().name("release".to_owned()).spawn(release);
            thread.map_err(|source| ServerError::Thread { what: "a hook", source })?;
        }
        Ok(open)
    }

    /// What each volume may take of memory.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.0
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The open volume of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenVolume>, ServerError> {
        match self.entries.read().get(name) {
            Some(Entry::Open(open)) => Ok(open.clone()),
            Some(Entry::Away { by }) => Err(ServerError::Busy { name: name.to_owned(), by }),
            Some(Entry::Unavailable(error)) => {
                // What its devices lack is no name that the caller got wrong.
                let kind = match error.kind() {
                    ErrorKind::NotFound | ErrorKind::Damaged => ErrorKind::VolumeDamaged,
                    kind => kind,
                };
                let (volume, reason, next) = (name.to_owned(), error.to_string(), self.next_of(name, error));
                Err(ServerError::VolumeUnavailable { volume, kind, reason, next })
            }
            None => Err(not_found(name)),
        }
    }

    /// Whether there is a volume of that name with a history under it, also one that is not open.
    pub(crate) fn has_history(&self, name: &str) -> bool {
        self.places(name).is_some_and(|document| document.history.is_some())
    }

    /// All open volumes, by name.
    pub(crate) fn all(&self) -> Vec<Arc<OpenVolume>> {
        let open = |entry: &Entry| match entry {
            Entry::Open(open) => Some(open.clone()),
            Entry::Away { .. } | Entry::Unavailable(_) => None,
        };
        self.entries.read().values().filter_map(open).collect()
    }

    /// What is wrong with volumes.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let unavailable = |(name, entry): (&String, &Entry)| match entry {
            Entry::Open(_) | Entry::Away { .. } => None,
            Entry::Unavailable(error) => {
                let (message, next) = (error.to_string(), self.next_of(name, error));
                Some(api::Problem { subject: name.clone(), message, next })
            }
        };
        let mut problems: Vec<_> = self.entries.read().iter().filter_map(unavailable).collect();
        for open in self.all() {
            problems.extend(open.hooks.problem(&open.name));
            if let Some(source) = open.volume.status().latched {
                // What it failed with is mended, and the server started anew: only then it takes writes again.
                let error = ServerError::volume(&open.name)(VolumeError::of_latched(source));
                let (message, next) = (error.to_string(), error.next());
                problems.push(api::Problem { subject: open.name.clone(), message, next });
            }
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

    /// All volumes.
    pub(crate) fn list(&self) -> Vec<api::Volume> {
        let mut volumes: Vec<_> = self.all().iter().map(|open| open.show()).collect();
        for (name, entry) in &*self.entries.read() {
            let problem = match entry {
                Entry::Open(_) => None,
                Entry::Away { by } => Some(ServerError::Busy { name: name.clone(), by }.to_string()),
                Entry::Unavailable(error) => Some(error.to_string()),
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

    /// Makes a volume. It is there whole, or not at all: it is made in a folder that a start clears away, and renamed.
    pub(crate) fn create(&self, new: &NewVolume<'_>) -> Result<Arc<OpenVolume>, ServerError> {
        names::check("volume", new.name)?;
        let _turn = self.turns.take(&[new.name], "it is being made")?;
        let folder = self.folder(new.name);
        if self.entries.read().contains_key(new.name) || folder.exists() {
            return Err(ServerError::Taken { what: "volume", name: new.name.to_owned() });
        }
        self.refuse_if_restored(new.name)?;
        let nursery = self.dir.join(format!(".{}.new", new.name));
        let clear = || match fs::remove_dir_all(&nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        clear()
            .and_then(|()| guard::make_new_folder(&nursery))
            .map_err(ServerError::path("create", &nursery))?;
        let mut stores = Vec::new();
        let made = self.make(new, &nursery, &mut stores).and_then(|mut parts| {
            fs::rename(&nursery, &folder)
                .and_then(|()| state::sync_parent(&folder))
                .map_err(ServerError::path("create", &folder))?;
            parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
            self.start(new.name, parts)
        });
        match made {
            Ok(open) => {
                self.entries.write().insert(new.name.to_owned(), Entry::Open(open.clone()));
                Ok(open)
            }
            Err(error) => {
                if folder.exists() {
                    // It is there, with its devices and its history, and could not be opened: it is shown as that, and can be deleted.
                    self.entries.write().insert(new.name.to_owned(), Entry::Unavailable(Arc::new(error)));
                    return self.get(new.name);
                }
                stores.iter().for_each(|path: &PathBuf| drop(fs::remove_file(path)));
                // Who has it would be waited for.
                if error.kind() != ErrorKind::Busy {
                    making::take_back_made(&nursery);
                }
                if let Err(left) = clear() {
                    tracing::warn!(path = %nursery.display(), %left, "a folder stays until the next start");
                }
                Err(error)
            }
        }
    }

    /// Opens the devices of a new volume, or makes a file for it; paths are as in `volume.json`.
    fn take_devices(
        &self,
        blocks: Option<u64>,
        role: Role,
        devices: &[String],
        nursery: &Path,
    ) -> Result<(Vec<PathBuf>, Vec<Arc<FileDevice>>), ServerError> {
        if devices.is_empty() {
            let blocks = blocks.ok_or(ServerError::Invalid {
                what: "the size",
                rule: "a volume without devices of its own needs one",
            })?;
            let path = nursery.join("volume.img");
            let device = FileDevice::create(&path, Volume::device_bytes(blocks, role))?;
            return Ok((vec![PathBuf::from("volume.img")], vec![Arc::new(device)]));
        }
        let mut parts = Vec::new();
        for path in devices {
            refuse_relative("the path of a device", Path::new(path))?;
            let device = take_file(Path::new(path), FileOptions::default())?;
            // Once it is locked: nobody else gets it from here on.
            self.refuse_if_claimed(Path::new(path))?;
            refuse_if_not_empty(&device, Path::new(path))?;
            parts.push(Arc::new(device));
        }
        Ok((devices.iter().map(PathBuf::from).collect(), parts))
    }

    /// Makes a volume's devices ready; paths are as in `volume.json`. `stores` gets the file that was made for a history.
    fn make(
        &self,
        new: &NewVolume<'_>,
        nursery: &Path,
        stores: &mut Vec<PathBuf>,
    ) -> Result<Parts, ServerError> {
        if new.history.is_some() && new.log_device.is_some() {
            return Err(ServerError::Invalid { what: "the log device", rule: history::LOG_RULE });
        }
        // A history keeps its device as long as it is: with room for what the volume needs as a mirror.
        let role = if new.history.is_some() { Role::Destination } else { new.role };
        let (paths, devices) = self.take_devices(new.blocks, role, new.devices, nursery)?;
        let mut device = whole(&devices);
        let have = device.geometry().length;
        let blocks = new.blocks.unwrap_or_else(|| Volume::blocks_for(have, role));
        let need = Volume::device_bytes(blocks, role);
        if blocks == 0 || need > have {
            let size = blocks.saturating_mul(BLOCK);
            return Err(ServerError::DeviceTooSmall { size, need, have, last: None });
        }
        let options = FormatOptions { id: new.id, blocks, role: new.role };
        let log = new.log_device.map(|path| LogFile::take(Path::new(path))).transpose()?;
        new.log_device.map_or(Ok(()), |path| self.refuse_if_claimed(Path::new(path)))?;
        let log_id = log.as_ref().map(|_| log::new_id());
        let plan = new.history.map(|wish| self.plan_history(wish)).transpose()?;
        // Before anything of it is there: what a kill leaves is known by it, and taken back.
        let coming = Document {
            log_devices: log.iter().map(|log| log.path.clone()).collect(),
            coming: plan.as_ref().map(|plan| plan.beneath.clone()),
            made_as: Some(Making::new(new.id, log_id)),
            ..Document::of(paths.clone())
        };
        state::save(&nursery.join("volume.json"), &coming)?;
        let mut under = None;
        if let Some(plan) = &plan {
            let origin = self.folder(new.name).join(paths.first().ok_or(ServerError::Bug)?);
            let opened = self.make_history(new.name, plan, &origin, device, stores)?;
            device = opened.device();
            under = Some(opened);
        }
        let formatted = match (&log, log_id) {
            (Some(log), Some(id)) => {
                let log = NewLog { device: &*log.device, id };
                Volume::format_with_log(&*device, &log, &options, &*self.clock)
            }
            _ => Volume::format(&*device, &options, &*self.clock),
        };
        formatted.map_err(ServerError::volume(new.name))?;
        new.beside.map_or(Ok(()), |write| write(nursery))?;
        let history = plan.map(|plan| plan.beneath);
        let document = Document { coming: None, history, ..coming };
        state::save(&nursery.join("volume.json"), &document)?;
        state::renew_copy(&nursery.join("volume.json"));
        Ok(Parts { log, under, ..Parts::of(paths, devices) })
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

impl OpenVolume {
    /// Starts a thread that repeats a round of work until the volume ends.
    fn work(
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
                    tracing::error!(volume = self.name, %error, "no more work is done in the background of a volume");
                    return;
                }
                // A block that can't be read, or room that somebody else took: everything else goes on.
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

    /// Whether its threads wait because its owner wants that: for room in its history, or for a disk that is slow in a rehearsal.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.rehearsal.faults().delay.is_zero() || self.waits_for_room()
    }

    /// Starts the thread that scrubs, and that looks after damaged blocks.
    fn scrub_thread(self: Arc<Self>, clock: Arc<dyn Clock>) -> Result<JoinHandle<()>, ServerError> {
        let repeat = move || {
            background::step_back();
            while !self.ending.load(Ordering::Acquire) {
                self.scrub_round(&*clock);
            }
            // What was met since the last round.
            self.keep_damage(&*clock);
        };
        std::thread::Builder::new()
            .name("scrub".to_owned())
            .spawn(repeat)
            .map_err(|source| ServerError::Thread { what: "a scrub", source })
    }

    /// Ends the threads and closes the volume.
    fn end(&self) -> Result<(), ServerError> {
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
    fn clear_devices(&self, folder: &Path) -> Result<(), ServerError> {
        for (path, part) in self.paths.iter().zip(&self.parts) {
            if !path.starts_with(folder) {
                clear_beginning(part)?;
            }
        }
        self.under.as_ref().map_or(Ok(()), Under::clear)?;
        // One that failed is not asked again.
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
            cairn_device::DeviceError::NoSpace { .. } => ServerError::DeviceTooSmall {
                size: self.volume.status().blocks * BLOCK,
                need,
                have: before + last.geometry().length,
                last: self.paths.last().cloned(),
            },
            error => error.into(),
        })
    }

    /// Grows the volume to `size_bytes`, or to what its devices hold by now.
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
            return Err(ServerError::Invalid {
                what: "the size",
                rule: "a volume only grows, and its devices hold no more than it has; enlarge the last one first, \
                       or give a larger --size",
            });
        }
        // As it is laid out: one that was a mirror has areas that grow with it.
        let need = self.volume.device_bytes_after_growth(blocks).map_err(ServerError::volume(&self.name))?;
        last.grow(need.saturating_sub(before)).map_err(|error| match error {
            cairn_device::DeviceError::NoSpace { .. } => ServerError::DeviceTooSmall {
                size: blocks * BLOCK,
                need,
                have: before + last.geometry().length,
                last: Some(path.clone()),
            },
            error => error.into(),
        })?;
        self.volume.grow(blocks).map_err(ServerError::volume(&self.name))
    }
}

/// Whether what is among the folders of volumes is none of them: a file, or a folder of a name that no volume has, as the `lost+found` of a file system.
fn is_no_volume(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|found| !found.is_dir());
    let name = path.file_name().and_then(|name| name.to_str());
    let may_be_one = name.is_some_and(|name| names::check("volume", name).is_ok());
    is_file || !may_be_one && !path.join("volume.json").exists()
}

fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "volume", name: name.to_owned(), list: "cairn volume list" }
}

/// Removes a folder that is nobody's any more. One that can't be, as its disk fails or something is mounted in it, takes room and harms nobody: the next start tries again.
fn new_rehearsal() -> Arc<Rehearsal> {
    Arc::new(Rehearsal::new(u64::from_le_bytes(random_bytes())))
}

fn whole(parts: &[Arc<FileDevice>]) -> Arc<dyn Device> {
    match parts {
        [one] => one.clone(),
        several => {
            let several = several.iter().map(|part| part.clone() as Arc<dyn Device>).collect();
            Arc::new(ConcatDevice::new(several))
        }
    }
}

/// Makes a device one that can be taken again.
fn clear_beginning(device: &FileDevice) -> Result<(), ServerError> {
    let length = device.geometry().length.min(MUST_BE_EMPTY) as usize;
    device.write_from(0, &vec![0; length])?;
    Ok(device.flush()?)
}

fn refuse_if_not_empty(device: &FileDevice, path: &Path) -> Result<(), ServerError> {
    if is_empty(device)? { Ok(()) } else { Err(ServerError::DeviceNotEmpty { path: path.to_owned() }) }
}

/// Nothing is where a device begins.
fn is_empty(device: &FileDevice) -> Result<bool, ServerError> {
    let length = device.geometry().length.min(MUST_BE_EMPTY);
    Ok(device.read(0, length as u32)?.to_vec().iter().all(|byte| *byte == 0))
}

/// A size in whole blocks.
pub(crate) fn blocks_of(bytes: u64) -> Result<u64, ServerError> {
    let blocks = bytes / BLOCK;
    // Of more nobody can say how many bytes a volume needs.
    if blocks == 0 || blocks > SPACE_BLOCKS_MAX || !bytes.is_multiple_of(BLOCK) {
        let rule = "it is a multiple of 4 KiB above 0, and 4 PiB at most";
        return Err(ServerError::Invalid { what: "the size", rule });
    }
    Ok(blocks)
}

/// A new id.
pub(crate) fn new_volume_id() -> VolumeId {
    VolumeId(random_bytes())
}

/// Opens a device of a volume. A server that was just killed can hold its lock for a moment longer than its process lives: the kernel ends
/// what it had under way first. Whoever restarts at once must not find the volume out of service for that.
fn open_when_free(path: &Path, patience: Duration) -> Result<Arc<FileDevice>, OpenError> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, FileOptions::default()) {
            Err(OpenError::Busy { .. }) if start.elapsed() < patience => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome.map(Arc::new),
        }
    }
}

#[cfg(test)]
mod tests;
