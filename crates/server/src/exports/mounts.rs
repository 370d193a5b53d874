//! Mounts: files of volumes on directories of this machine, remembered in `DIR/mounts.json` and
//! made again at every start.
//!
//! A server that died leaves mounts on which every access fails; the next start removes them and
//! mounts again. An entry stays until a user unmounts it, by `cairn unmount` or with the system's
//! own programs. A live tree is mounted once; its second directory shows the same mount.
//!
//! A mirror's mount shows what the mirror shows: its newest image, or the one that all mirrors of
//! its group have.
//!
//! A mirror that was failed over takes writes, and so do its mounts a moment later: each is
//! unmounted from its directory and mounted again, on the live tree. Open files and directories
//! still read the old image; new path lookups reach the live tree. In a group this happens when all
//! of it was failed over.
//!
//! A mount that has lost its directory (unmounted lazily, here or by another program) is forgotten,
//! and listed as left until no process uses it. As long as one of a live tree is left, that tree is
//! not mounted again: two mounts would have a cache each. Its programs can be cut off
//! ([`Mounts::remove`]), but only on request: data that they have not written yet is lost.
//!
//! Lock order: `entries`, then `left`, then `still`, then the locks of groups and volumes. It is
//! not held while data is requested from a mount: the answer may need a new mount's threads, never
//! this.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_files::{Tree, TreeError};
use cairn_frontend_fuse::{self as fuse, Follows, Mount, MountError, MountOptions, MountsWatch, View};
use cairn_volume::{Image, Volume};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::exports::error::ExportsError;
use crate::groups::error::GroupsError;
use crate::groups::{Groups, Showing};
use crate::state;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;

/// How often mounts are compared with their volumes: a mirror with a newer image, a deleted
/// snapshot.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum wait for the mounts of a mirror with a newer image, before that is reported: a mount
/// whose disk hangs delays no other work.
const FOLLOW_PATIENCE: Duration = Duration::from_secs(2);

/// Errors of a mount without its server: `ECONNABORTED` and `ECANCELED` for requests from before
/// its death, `ENOTCONN` afterwards.
const DEAD: [i32; 3] = [103, 125, 107];

/// The content of `mounts.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct MountsDocument {
    mounts: Vec<Record>,
}

/// One mount, as requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    directory: PathBuf,
    allow_other: bool,
    devices: bool,
    set_user_id: bool,
}

impl Record {
    fn name(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.volume),
            None => self.volume.clone(),
        }
    }
}

/// The mount of a record.
struct Mounted {
    mount: Arc<Mount>,
    open: Arc<OpenVolume>,
    read_only: bool,
    /// Why it is still read-only, of a mirror that was failed over.
    stays: Option<String>,
}

struct KeptMount {
    record: Record,
    state: Result<Mounted, String>,
    /// It is made as soon as its volume is open and shows something.
    waits: bool,
}

/// The image that a mount of a mirror shows.
struct Followed {
    groups: Arc<Groups>,
    open: Arc<OpenVolume>,
}

impl Follows for Followed {
    fn volume(&self) -> &Arc<Volume> {
        &self.open.volume
    }

    fn image(&self) -> Result<Option<Image>, TreeError> {
        match self.groups.showing(&self.open) {
            Ok(Showing::Image(image)) => Ok(Some(image)),
            Ok(Showing::Newest | Showing::Live) => Ok(Some(self.open.volume.image(None)?)),
            // Why is in `status`.
            Err(_) => Ok(None),
        }
    }
}

impl KeptMount {
    fn is_there(&self) -> bool {
        self.state.is_ok()
    }

    fn is_live(&self) -> bool {
        self.state.as_ref().is_ok_and(|mounted| !mounted.read_only)
    }

    fn show(&self) -> api::Mount {
        api::Mount {
            name: self.record.name(),
            directory: self.record.directory.display().to_string(),
            read_only: self.state.as_ref().is_ok_and(|mounted| mounted.read_only),
            problem: self.state.as_ref().err().cloned(),
            left_to: None,
        }
    }
}

/// A mount without a directory, that is still in use.
struct Left {
    record: Record,
    read_only: bool,
    mount: Arc<Mount>,
}

impl Left {
    /// The processes that use it, for a message.
    fn users(&self) -> String {
        let users = self.mount.users();
        match users.is_empty() {
            true => {
                "something other than a process: another mount namespace, a loop device, an export".to_owned()
            }
            false => users.join(", "),
        }
    }

    fn show(&self) -> api::Mount {
        api::Mount {
            name: self.record.name(),
            directory: self.record.directory.display().to_string(),
            read_only: self.read_only,
            problem: None,
            left_to: Some(self.users()),
        }
    }
}

/// The mounts of a server.
pub(crate) struct Mounts {
    own: Weak<Mounts>,
    path: PathBuf,
    /// The mounts to restore are unknown.
    unread: Mutex<Option<Unread>>,
    volumes: Arc<Volumes>,
    groups: Arc<Groups>,
    entries: Mutex<Vec<KeptMount>>,
    /// Until they end.
    left: Mutex<Vec<Left>>,
    watch: MountsWatch,
    /// Volumes that are about to become yet another state: their mounts stay as they are.
    still: Mutex<Vec<String>>,
    ending: AtomicBool,
    looks: Mutex<Looks>,
    /// Signals that a check is due.
    wake: Condvar,
    /// A look is over.
    looked: Condvar,
}

/// The looks of the thread that looks after mounts, by their numbers.
#[derive(Debug, Default)]
struct Looks {
    /// The last that was begun.
    begun: u64,
    /// The last that is over.
    over: u64,
    /// The number of a check that must begin at once.
    wanted: u64,
}

/// Keeps the mounts of a volume as they are, until it is dropped; see [`Mounts::keep_still`].
pub(crate) struct Still<'a> {
    mounts: &'a Mounts,
    volume: String,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let mut still = self.mounts.still.lock();
        if let Some(own) = still.iter().position(|volume| *volume == self.volume) {
            still.swap_remove(own);
        }
        drop(still);
        self.mounts.wake.notify_all();
    }
}

/// The thread that looks after mounts; it ends when this goes.
pub(crate) struct Watch {
    mounts: Arc<Mounts>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.mounts.ending.store(true, Ordering::Release);
        self.mounts.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for mounts had panicked");
        }
    }
}

/// Cuts off the programs in the recorded mounts of a data directory whose killed server can't exit.
/// A thread of it waits in the kernel for the write of a program to a mount, which no thread serves
/// any more, and so keeps the mount, and the directory.
pub(crate) fn cut_off_of_killed(data: &Path) {
    let document = state::load::<MountsDocument>(&data.join("mounts.json"));
    let records = document.ok().flatten().unwrap_or_default().mounts;
    let places: Vec<PathBuf> = records.into_iter().map(|record| record.directory).collect();
    for (place, outcome) in fuse::cut_all(&places) {
        match outcome {
            Ok(()) => {
                tracing::warn!(directory = %place.display(), "cut off the programs in a mount of a killed server that could not exit")
            }
            Err(error) => {
                tracing::error!(directory = %place.display(), %error, "a killed server cannot exit before this mount ends: as root, run `echo 1` to its `abort` in /sys/fs/fuse/connections")
            }
        }
    }
}

impl Mounts {
    /// Restores the recorded mounts. A failure is reported, and the mount stays recorded.
    pub(crate) fn open(
        data: &Path,
        volumes: Arc<Volumes>,
        groups: Arc<Groups>,
    ) -> Result<Arc<Self>, ServerError> {
        let path = data.join("mounts.json");
        let mounts = Arc::new_cyclic(|own| Self {
            own: own.clone(),
            path,
            unread: Mutex::default(),
            volumes,
            groups,
            entries: Mutex::default(),
            left: Mutex::default(),
            watch: MountsWatch::default(),
            still: Mutex::default(),
            ending: AtomicBool::new(false),
            looks: Mutex::default(),
            wake: Condvar::new(),
            looked: Condvar::new(),
        });
        mounts.read();
        Ok(mounts)
    }

    /// Mounts the entries of the file that are not mounted yet.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<MountsDocument>(&self.path);
        *self.unread.lock() = unread;
        for record in document.unwrap_or_default().mounts {
            let mut entries = self.entries.lock();
            if entries.iter().any(|entry| entry.record.directory == record.directory) {
                continue;
            }
            clear_dead(&record);
            let mounted = self.mount(&record, &entries, None);
            let waits = mounted.as_ref().is_err_and(may_come);
            let state = mounted.map_err(|error| {
                let (name, directory) = (record.name(), record.directory.display().to_string());
                tracing::error!(name, directory, %error, "could not restore a mount");
                error.to_string()
            });
            entries.push(KeptMount { record, state, waits });
        }
    }

    /// Starts to look after them.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Watch, ServerError> {
        let own = self.clone();
        let look = move || {
            while !own.ending.load(Ordering::Acquire) {
                own.looks.lock().begun += 1;
                own.look();
                let mut looks = own.looks.lock();
                looks.over = looks.begun;
                own.looked.notify_all();
                if looks.wanted <= looks.over {
                    own.wake.wait_for(&mut looks, LOOK_EVERY);
                }
            }
            own.looks.lock().over = u64::MAX;
            own.looked.notify_all();
        };
        let thread = std::thread::Builder::new().name("mounts".to_owned()).spawn(look);
        let thread = thread.map_err(|source| ServerError::Thread { what: "mounts", source })?;
        Ok(Watch { mounts: self.clone(), thread: Some(thread) })
    }

    /// Updates the mounts of mirrors that have a newer image, or are writable now, before that is
    /// reported to the owner.
    pub(crate) fn follow(&self, concerned: impl Fn(&str) -> bool) {
        if self.of(|volume, _| concerned(volume)).is_empty() {
            return;
        }
        let deadline = Instant::now() + FOLLOW_PATIENCE;
        let mut looks = self.looks.lock();
        // A running check may have passed these mounts already.
        let wanted = looks.begun + 1;
        looks.wanted = wanted;
        self.wake.notify_all();
        while looks.over < wanted && !self.looked.wait_until(&mut looks, deadline).timed_out() {}
    }

    /// All mounts, followed by those that are left.
    pub(crate) fn list(&self) -> Vec<api::Mount> {
        let mut shown: Vec<api::Mount> = self.entries.lock().iter().map(KeptMount::show).collect();
        let mut left = self.left.lock();
        left.retain(|left| !left.mount.has_ended());
        shown.extend(left.iter().map(Left::show));
        shown
    }

    /// The problems of mounts.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let broken = |mount: api::Mount| {
            let api::Mount { name, directory, problem, .. } = mount;
            problem.map(|problem| api::Problem {
                subject: name.clone(),
                message: format!("{directory} is not mounted: {problem}"),
                next: format!(
                    "cairn mount {name} {directory}, or cairn unmount {directory} to have it forgotten"
                ),
            })
        };
        self.list().into_iter().filter_map(broken).collect()
    }

    /// Creates the requested mount, and records it.
    pub(crate) fn create(&self, request: &api::CreateMount) -> Result<api::Mount, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let given = Path::new(&request.directory);
        let directory = given.canonicalize().map_err(ServerError::path("mount on", given))?;
        let record = Record {
            volume: request.volume.clone(),
            snapshot: request.snapshot.clone(),
            directory,
            allow_other: request.allow_other,
            devices: request.devices,
            set_user_id: request.set_user_id,
        };
        // A mount that another program has just removed is not in the way.
        self.forget_unmounted();
        if record.snapshot.is_none()
            && let Ok(open) = self.volumes.get(&record.volume)
            && !open.is_destination()
        {
            // The first directory takes a consistency point, for which all users of the mount table
            // would wait.
            open.refuse_without_room()?;
        }
        let mut entries = self.entries.lock();
        if entries.iter().any(|entry| entry.record.directory == record.directory && entry.is_there()) {
            return Err(ServerError::Taken { what: "mount", name: request.directory.clone() });
        }
        // A dead mount in the way can't be read, and is not an obstacle.
        if std::fs::read_dir(&record.directory).is_ok_and(|mut names| names.next().is_some()) {
            return Err(ServerError::Exports(ExportsError::MountNotEmpty { directory: record.directory }));
        }
        let mounted = self.mount(&record, &entries, None)?;
        entries.retain(|entry| entry.record.directory != record.directory);
        entries.push(KeptMount { record, state: Ok(mounted), waits: false });
        if let Err(error) = self.save(&entries) {
            // A start would not restore it: undo the request.
            self.take_back(entries.pop());
            return Err(error);
        }
        let shown = entries.last().map(KeptMount::show).ok_or(ServerError::Bug)?;
        tracing::info!(name = shown.name, directory = shown.directory, "mounted");
        Ok(shown)
    }

    /// Removes a mount that was just made.
    fn take_back(&self, entry: Option<KeptMount>) {
        let Some(KeptMount { record, state: Ok(Mounted { mount, read_only, .. }), .. }) = entry else {
            return;
        };
        if let Err(error) = fuse::unmount(&record.directory, true) {
            tracing::warn!(directory = %record.directory.display(), %error, "could not remove a mount that is not recorded");
        }
        self.is_left(record, mount, read_only);
    }

    /// Removes a mount. With `force` the programs that use it are cut off, also those in a left
    /// mount of the directory.
    pub(crate) fn remove(&self, request: &api::Unmount) -> Result<(), ServerError> {
        let directory = Path::new(&request.directory);
        self.forget_unmounted();
        if request.force && self.cut_left(directory)? {
            return Ok(());
        }
        self.collect(directory)?;
        let mut entries = self.entries.lock();
        let known = entries.iter().position(|entry| entry.record.directory == directory);
        let index = known.ok_or_else(|| match self.left_of(|left| left.record.directory == directory) {
            Some(error) => error,
            None => ServerError::NotFound {
                what: "mount",
                name: request.directory.clone(),
                list: "cairn mount list",
            },
        })?;
        if let Ok(mounted) = &entries[index].state {
            let place = places_of(mounted)?.iter().any(|path| path == directory);
            if request.force {
                refuse_if_elsewhere(&entries, index)?;
                mounted.mount.cut().map_err(|error| ServerError::Exports(ExportsError::Mount(error)))?;
            }
            if place {
                fuse::unmount(directory, request.lazy || request.force)
                    .map_err(|error| ServerError::Exports(ExportsError::Mount(error)))?;
            }
        }
        let gone = entries.remove(index);
        let saved = self.save(&entries);
        if let Err(error) = &saved {
            // The next start mounts it again: so the entry stays, for a later attempt to remove it.
            let state = Err(format!("it was unmounted, and that could not be written down: {error}"));
            entries.push(KeptMount { record: gone.record.clone(), state, waits: false });
        }
        let is_lazy = request.lazy;
        if let Ok(Mounted { mount, read_only, .. }) = gone.state {
            let is_shown = shows(&entries, &mount);
            drop(entries);
            // The tree closes with it, so that later commands find it unused. Other entries may
            // still show the same mount.
            if !is_shown && (is_lazy || !mount.wait_for_end()) {
                self.is_left(gone.record, mount, read_only);
            }
        }
        tracing::info!(directory = request.directory, "unmounted");
        saved
    }

    /// Writes data that programs have written to a mount, and the kernel still caches, to the
    /// volume before the unmount: only the caller waits for that. Refused if it would wait for room
    /// with all other writes to the volume.
    fn collect(&self, directory: &Path) -> Result<(), ServerError> {
        let live = {
            let entries = self.entries.lock();
            let is_it = |entry: &&KeptMount| entry.record.directory == directory && entry.is_live();
            let found = entries.iter().find(is_it).and_then(|entry| entry.state.as_ref().ok());
            found.map(|mounted| (mounted.open.clone(), mounted.mount.clone()))
        };
        let Some((open, mount)) = live else { return Ok(()) };
        open.refuse_while_writes_wait()?;
        if let Err(error) = mount.collect() {
            tracing::error!(directory = %directory.display(), %error, "the last writes of programs to a mount are lost");
        }
        Ok(())
    }

    /// Cuts off the programs in the left mounts of a directory; false if there are none.
    fn cut_left(&self, directory: &Path) -> Result<bool, ServerError> {
        let mut left = self.left.lock();
        left.retain(|left| !left.mount.has_ended());
        let (mine, others): (Vec<Left>, Vec<Left>) =
            std::mem::take(&mut *left).into_iter().partition(|left| left.record.directory == directory);
        *left = others;
        let was_there = !mine.is_empty();
        let mut mine = mine.into_iter();
        while let Some(one) = mine.next() {
            tracing::warn!(name = one.record.name(), directory = %directory.display(), users = one.users(), "cut programs off from a removed mount");
            if let Err(error) = one.mount.cut() {
                left.push(one);
                left.extend(mine);
                return Err(ServerError::Exports(ExportsError::Mount(error)));
            }
        }
        Ok(was_there)
    }

    /// Notes that a mount has no directory any more, unless it ends at once.
    fn is_left(&self, record: Record, mount: Arc<Mount>, read_only: bool) {
        if !mount.has_ended() {
            self.left.lock().push(Left { record, read_only, mount });
        }
    }

    /// Drops left mounts that have ended: a tree closes with its mount.
    fn forget_ended(&self) {
        self.left.lock().retain(|left| !left.mount.has_ended());
    }

    /// The refusal while a matching mount is left, if there is one.
    fn left_of(&self, is_meant: impl Fn(&Left) -> bool) -> Option<ServerError> {
        let mut left = self.left.lock();
        left.retain(|left| !left.mount.has_ended());
        let found = left.iter().find(|left| is_meant(left))?;
        let (name, directory) = (found.record.name(), found.record.directory.clone());
        Some(ServerError::Exports(ExportsError::MountLeft { name, directory, users: found.users() }))
    }

    /// The directories on which some of a volume is mounted.
    pub(crate) fn of(&self, concerned: impl Fn(&str, Option<&str>) -> bool) -> Vec<PathBuf> {
        let entries = self.entries.lock();
        let mine = |entry: &&KeptMount| {
            entry.is_there() && concerned(&entry.record.volume, entry.record.snapshot.as_deref())
        };
        entries.iter().filter(mine).map(|entry| entry.record.directory.clone()).collect()
    }

    /// Refuses a change that would remove files in use by programs.
    pub(crate) fn refuse_if_mounted(
        &self,
        name: &str,
        concerned: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<(), ServerError> {
        match self.of(concerned).into_iter().next() {
            None => Ok(()),
            Some(directory) => {
                Err(ServerError::Exports(ExportsError::Mounted { name: name.to_owned(), directory }))
            }
        }
    }

    /// Refuses to put another state under programs that write.
    pub(crate) fn refuse_if_live(&self, volume: &str) -> Result<(), ServerError> {
        let entries = self.entries.lock();
        match entries.iter().find(|entry| entry.record.volume == volume && entry.is_live()) {
            None => Ok(()),
            Some(KeptMount { record, .. }) => Err(ServerError::Exports(ExportsError::Mounted {
                name: volume.to_owned(),
                directory: record.directory.clone(),
            })),
        }
    }

    /// Refuses to change the state under programs that write to a removed mount.
    pub(crate) fn refuse_if_left(&self, volume: &str) -> Result<(), ServerError> {
        let is_of_it = |left: &Left| left.record.volume == volume && !left.read_only;
        self.left_of(is_of_it).map_or(Ok(()), Err)
    }

    /// Lets no mount of a volume become writable while it is failed over and then rolled back: its
    /// programs would write to a state that is discarded next.
    pub(crate) fn keep_still(&self, volume: &str) -> Still<'_> {
        // A mount that becomes writable at this moment is finished first, and is seen.
        let _entries = self.entries.lock();
        self.still.lock().push(volume.to_owned());
        Still { mounts: self, volume: volume.to_owned() }
    }

    /// Mounts of volumes that are no longer mirrors are made again, on the live trees.
    fn make_writable(&self) {
        let mut entries = self.entries.lock();
        for index in 0..entries.len() {
            let KeptMount { record, state: Ok(mounted), .. } = &entries[index] else { continue };
            let is_left_behind =
                record.snapshot.is_none() && mounted.read_only && self.groups.is_live(&mounted.open);
            if !is_left_behind || self.still.lock().contains(&record.volume) {
                continue;
            }
            let open = mounted.open.clone();
            let record = record.clone();
            let directory = record.directory.display().to_string();
            // Opened before the unmount: if it can't be opened for writing, the old mount stays
            // readable. In a directory without its mount, programs would write to the file system
            // below it.
            let tree = match self.live_tree(&open, &entries) {
                Ok(tree) => tree,
                Err(error) => {
                    let told = error.to_string();
                    if let Ok(mounted) = &mut entries[index].state
                        && mounted.stays.as_ref() != Some(&told)
                    {
                        tracing::error!(name = record.name(), directory, %error, "a mount of a mirror that was failed over stays read-only");
                        mounted.stays = Some(told);
                    }
                    continue;
                }
            };
            // Programs that use it keep their image.
            let before = mounted.mount.clone();
            let state = match fuse::unmount(&record.directory, true) {
                Ok(()) => {
                    self.is_left(record.clone(), before, true);
                    self.mount(&record, &entries, Some(tree)).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match &state {
                Ok(_) => {
                    tracing::info!(name = record.name(), directory, "a mount of a mirror is writable now")
                }
                Err(error) => tracing::error!(
                    name = record.name(),
                    directory,
                    error,
                    "a mount of a failed-over mirror was lost"
                ),
            }
            entries[index].state = state;
        }
    }

    /// Makes mounts that waited until their volumes were open, or their mirrors showed something.
    fn make_waiting(&self) {
        let mut entries = self.entries.lock();
        for index in 0..entries.len() {
            let record = entries[index].record.clone();
            let is_it = |open: &Arc<OpenVolume>| open.name == record.volume;
            let shows = || {
                let open = self.volumes.all().into_iter().find(is_it);
                open.is_some_and(|open| self.groups.showing(&open).is_ok())
            };
            if !entries[index].waits || !shows() {
                continue;
            }
            let mounted = self.mount(&record, &entries, None);
            let (name, directory) = (record.name(), record.directory.display().to_string());
            match &mounted {
                Ok(_) => tracing::info!(name, directory, "mounted, as there is an image now"),
                Err(error) => {
                    tracing::error!(name, directory, %error, "could not restore a mount")
                }
            }
            entries[index].waits = mounted.as_ref().is_err_and(may_come);
            entries[index].state = mounted.map_err(|error| error.to_string());
        }
    }

    /// Removes the mounts of a volume's live tree, even if they are in use: the volume becomes a
    /// mirror. Returns their number.
    pub(crate) fn close_live(&self, volume: &str) -> usize {
        self.close(|entry| entry.record.volume == volume && entry.is_live())
    }

    /// The same for all mounts of a volume that is being deleted, and of its snapshots; missing
    /// ones are forgotten.
    pub(crate) fn close_all(&self, volume: &str) -> usize {
        self.close(|entry| entry.record.volume == volume)
    }

    fn close(&self, mine: impl Fn(&KeptMount) -> bool) -> usize {
        let mut gone: Vec<(PathBuf, Weak<Mount>)> = Vec::new();
        let is_gone = |gone: &[(PathBuf, Weak<Mount>)], entry: &KeptMount| {
            let is_it = |(directory, mount): &(PathBuf, Weak<Mount>)| {
                let same = |mounted: &Mounted| Arc::as_ptr(&mounted.mount) == mount.as_ptr();
                *directory == entry.record.directory && entry.state.as_ref().is_ok_and(same)
            };
            gone.iter().any(is_it)
        };
        loop {
            let next = {
                let entries = self.entries.lock();
                let mut left = entries.iter().filter(|entry| mine(entry) && !is_gone(&gone, entry));
                left.find_map(|entry| {
                    let mounted = entry.state.as_ref().ok()?;
                    Some((entry.record.directory.clone(), Arc::downgrade(&mounted.mount)))
                })
            };
            let Some((directory, mount)) = next else { break };
            // Cached writes of programs are written first, which takes as long as the volume does.
            if let Err(error) = fuse::unmount(&directory, true) {
                tracing::error!(directory = %directory.display(), %error, "a mount stays, and is read-only now");
            }
            gone.push((directory, mount));
        }
        let mut entries = self.entries.lock();
        self.let_go(&mut entries, |entry| mine(entry) && (!entry.is_there() || is_gone(&gone, entry)));
        gone.len()
    }

    /// Forgets entries that their directories no longer have.
    fn let_go(&self, entries: &mut Vec<KeptMount>, is_gone: impl Fn(&KeptMount) -> bool) {
        let (gone, stays): (Vec<KeptMount>, Vec<KeptMount>) =
            std::mem::take(entries).into_iter().partition(is_gone);
        *entries = stays;
        if gone.is_empty() {
            return;
        }
        for KeptMount { record, state, .. } in gone {
            if let Ok(Mounted { mount, read_only, .. }) = state
                && !shows(entries, &mount)
            {
                self.is_left(record, mount, read_only);
            }
        }
        if let Err(error) = self.save(entries) {
            tracing::error!(%error, "the next start will restore removed mounts");
        }
    }

    /// Removes all mounts; they stay recorded. Data that the kernel still caches is written first.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let entries = std::mem::take(&mut *self.entries.lock());
        for left in std::mem::take(&mut *self.left.lock()) {
            if let Err(error) = left.mount.collect() {
                tracing::error!(directory = %left.record.directory.display(), %error, "the last writes of programs to a mount are lost");
            }
        }
        for entry in entries {
            let Ok(mounted) = entry.state else { continue };
            let directory = entry.record.directory.display();
            if let Err(error) = mounted.mount.collect() {
                tracing::error!(%directory, %error, "the last writes of programs to a mount are lost");
            }
            if let Err(error) = fuse::unmount(&entry.record.directory, true) {
                tracing::warn!(%directory, %error, "a mount remains without a server");
            }
        }
    }

    fn save(&self, entries: &[KeptMount]) -> Result<(), ServerError> {
        let mounts = entries.iter().map(|entry| entry.record.clone()).collect();
        state::save(&self.path, &MountsDocument { mounts })
    }

    fn mount(
        &self,
        record: &Record,
        entries: &[KeptMount],
        live: Option<Arc<Tree>>,
    ) -> Result<Mounted, ServerError> {
        let open = self.volumes.get(&record.volume)?;
        let name = record.name();
        let failed = ServerError::tree(&name);
        let (view, read_only) = match &record.snapshot {
            Some(past) => {
                let found = open.past(past).map_err(ServerError::volume(&record.volume))?;
                let image = found.ok_or_else(|| open.no_snapshot(past))?;
                (View::Frozen(Arc::new(Tree::of_image(image).map_err(failed)?)), true)
            }
            None if !matches!(self.groups.showing(&open)?, Showing::Live) => {
                let followed = Followed { groups: self.groups.clone(), open: open.clone() };
                (View::Following(Arc::new(followed)), true)
            }
            None if self.still.lock().contains(&record.volume) => {
                return Err(ServerError::Busy { name: record.volume.clone(), by: "it is being rolled back" });
            }
            None => (View::Live(live.map_or_else(|| self.live_tree(&open, entries), Ok)?), false),
        };
        let same = entries.iter().find(|entry| entry.record.volume == record.volume && entry.is_live());
        let mount = match (same, read_only) {
            (Some(KeptMount { state: Ok(other), record: there, .. }), false) => {
                // From a directory that has it now: the first mount point may be an empty directory
                // again.
                let places = places_of(other)?;
                let from = places.first().ok_or_else(|| ServerError::Busy {
                    name: record.volume.clone(),
                    by: OpenVolume::STILL_USED,
                })?;
                fuse::show_also(from, &record.directory).map_err(|_| {
                    ServerError::Exports(ExportsError::MountedElsewhere {
                        name: name.clone(),
                        directory: there.directory.clone(),
                    })
                })?;
                other.mount.clone()
            }
            _ => {
                let options = MountOptions {
                    allow_other: record.allow_other,
                    devices: record.devices,
                    set_user_id: record.set_user_id,
                };
                let own = self.own.clone();
                let ended = move || {
                    if let Some(own) = own.upgrade() {
                        own.wake.notify_all();
                    }
                };
                let mount = Mount::start(&record.directory, &name, view, options, ended);
                Arc::new(mount.map_err(|error| match error {
                    MountError::Tree(error) => ServerError::tree(&name)(error),
                    error => ServerError::Exports(ExportsError::Mount(error)),
                })?)
            }
        };
        if !read_only {
            open.is_mounted_by(&mount);
        }
        Ok(Mounted { mount, open, read_only, stays: None })
    }

    /// The live tree for a mount. Another mount of the same tree would have a cache of its own, and
    /// neither would see the other's writes.
    fn live_tree(&self, open: &OpenVolume, entries: &[KeptMount]) -> Result<Arc<Tree>, ServerError> {
        let is_live = |entry: &KeptMount| entry.record.volume == open.name && entry.is_live();
        let is_let_go = || open.has_no_live_tree(|| self.forget_ended());
        if !entries.iter().any(is_live) && !is_let_go() {
            let is_of_it = |left: &Left| left.record.volume == open.name && !left.read_only;
            if let Some(error) = self.left_of(is_of_it) {
                return Err(error);
            }
            // It may have ended in that moment.
            if !is_let_go() {
                return Err(ServerError::Busy { name: open.name.clone(), by: OpenVolume::STILL_USED });
            }
        }
        open.live_tree()
    }

    /// One check: mirrors with newer images, deleted snapshots, mounts that other programs removed.
    fn look(&self) {
        self.forget_ended();
        let mounts: Vec<Arc<Mount>> = {
            let entries = self.entries.lock();
            if entries.is_empty() {
                return;
            }
            let mounted = entries.iter().filter_map(|entry| entry.state.as_ref().ok());
            mounted.map(|mounted| mounted.mount.clone()).collect()
        };
        // Held no longer than that: the creator of a mount waits, excluding all others, until the
        // previous one is released.
        mounts.into_iter().for_each(|mount| mount.refresh());
        if !self.ending.load(Ordering::Acquire) {
            self.forget_unmounted();
            self.make_waiting();
            self.make_writable();
        }
    }

    /// Forgets mounts that other programs have unmounted, even if in use, and removes those that no
    /// longer answer.
    fn forget_unmounted(&self) {
        let mut entries = self.entries.lock();
        let has_ended =
            |entry: &KeptMount| entry.state.as_ref().is_ok_and(|mounted| mounted.mount.has_ended());
        // Checked before their places: an unmounted one first loses its place, and then ends.
        let ended: Vec<PathBuf> = entries
            .iter()
            .filter(|entry| has_ended(entry))
            .map(|entry| entry.record.directory.clone())
            .collect();
        if !self.watch.has_changed() && ended.is_empty() {
            return;
        }
        let is_gone = |entry: &KeptMount| match &entry.state {
            Ok(mounted) => places_of(mounted).is_ok_and(|places| !places.contains(&entry.record.directory)),
            Err(_) => false,
        };
        for entry in entries.iter().filter(|entry| is_gone(entry)) {
            tracing::info!(directory = %entry.record.directory.display(), "was unmounted by another program");
        }
        self.let_go(&mut entries, is_gone);
        for entry in
            entries.iter_mut().filter(|entry| has_ended(entry) && ended.contains(&entry.record.directory))
        {
            let directory = entry.record.directory.display().to_string();
            tracing::error!(
                directory,
                "another program has ended a mount, on which every access fails; removing it"
            );
            let reason = match fuse::unmount(&entry.record.directory, true) {
                Ok(()) => "another program has ended its connection to the kernel".to_owned(),
                Err(error) => error.to_string(),
            };
            entry.state = Err(reason);
        }
    }
}

/// Whether a failed mount may succeed later by itself: devices that are attached late, an image of
/// a mirror.
fn may_come(error: &ServerError) -> bool {
    matches!(
        error,
        ServerError::Groups(GroupsError::GroupShowsNothing { .. })
            | ServerError::Volumes(VolumesError::VolumeUnavailable { .. })
    )
}

/// The directories on which it is mounted now.
fn places_of(mounted: &Mounted) -> Result<Vec<PathBuf>, ServerError> {
    mounted
        .mount
        .places()
        .map_err(|error| ServerError::Exports(ExportsError::Mount(MountError::System(error))))
}

/// Whether one of the entries is this mount.
fn shows(entries: &[KeptMount], mount: &Arc<Mount>) -> bool {
    let same = |entry: &KeptMount| entry.state.as_ref().is_ok_and(|other| Arc::ptr_eq(&other.mount, mount));
    entries.iter().any(same)
}

/// Cutting off programs in one directory must not cut off those in another one with the same mount.
fn refuse_if_elsewhere(entries: &[KeptMount], index: usize) -> Result<(), ServerError> {
    let KeptMount { record, state: Ok(mounted), .. } = &entries[index] else { return Ok(()) };
    let same = |entry: &&KeptMount| {
        entry.state.as_ref().is_ok_and(|other| Arc::ptr_eq(&other.mount, &mounted.mount))
    };
    match entries.iter().filter(same).find(|entry| entry.record.directory != record.directory) {
        None => Ok(()),
        Some(other) => Err(ServerError::Exports(ExportsError::Mounted {
            name: record.name(),
            directory: other.record.directory.clone(),
        })),
    }
}

/// Removes the mount that a dead server has left on a directory: every access there fails with
/// `ENOTCONN`, even `stat`.
fn clear_dead(record: &Record) {
    let (name, directory) = (record.name(), &record.directory);
    // Several can be stacked. One that answers belongs to another server, and stays.
    for _ in fuse::mounted().iter().filter(|(path, source)| path == directory && *source == name) {
        // The kernel may have cached attributes; opening the directory reaches the server.
        let answer = std::fs::read_dir(directory).err().and_then(|error| error.raw_os_error());
        if !answer.is_some_and(|number| DEAD.contains(&number)) {
            return;
        }
        if let Err(error) = fuse::unmount(directory, true) {
            tracing::warn!(directory = %directory.display(), %error, "a dead mount stays in the way");
            return;
        }
        tracing::info!(directory = %directory.display(), "removed a dead mount");
    }
}
