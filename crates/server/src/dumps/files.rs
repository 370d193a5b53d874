//! BSD dumps of a volume's files: made of a snapshot into a file or pipe that a client handed over,
//! for `cairn restore` and Linux `restore`.
//!
//! `VOLUME/dates.json` records the last dump of each level, separately for each path, like
//! `/etc/dumpdates` of `dump`: a dump has the files that changed at or after the date of the last
//! one of a lower level. A dump that was not written completely leaves no date. Nothing is held for
//! later dumps; a snapshot that a dump made for itself is deleted after it, even if the server is
//! killed meanwhile (`left`).
//!
//! For a part of a volume the files of a dump are recorded as well (`had`): files that are moved
//! into the part later keep their old dates.
//!
//! If the snapshot of that lower dump still exists, the changes are found by comparing the maps of
//! the two (`catalog`); otherwise all inodes are checked and all directories walked.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use cairn_api as api;
use cairn_bsddump::{Dump, Failed, InodeMap, Known, Lacks, Options, Phase, Selection, WriteError};
use cairn_files::{Tree, kept_bytes, path_bytes, path_text, quoted_path};
use cairn_volume::{Image, Snapshot};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

use crate::daemon::error::DaemonError;
use crate::dumps::error::DumpsError;
use crate::dumps::handover::{Handed, settle};
use crate::error::ServerError;
use crate::groups::Groups;
use crate::mirrors::error::MirrorsError;
use crate::names::DUMP_PREFIX;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::find_snapshot;
use crate::work::jobs::Progress;

mod catalog;
mod commands;
mod had;
mod left;
mod past;
mod source;

use catalog::Catalog;
use left::Own;
use source::{Reading, THREADS, TreeSource, name_of};

/// The file with the dates of a volume's dumps, in its folder.
const DATES: &str = "dates.json";
const HIGHEST_LEVEL: u8 = 9;
/// Reported files that could not be dumped; there may be more.
const FAILED_MAX: usize = 1000;
/// Bytes of a label and of names in a dump's headers, less the final zero.
const LABEL_MAX: usize = 15;
const NAME_MAX: usize = 63;
/// Interval of the check whether a client has made the dump durable.
const CONFIRM_PAUSE: Duration = Duration::from_millis(5);

/// Decides whether a path is dumped.
type Choice<'a> = &'a mut dyn FnMut(&[u8]) -> Selection;

/// The content of `dates.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileDumpsDocument {
    dates: Vec<Record>,
    /// Snapshots that dumps have made for themselves, or are about to.
    making: Vec<String>,
}

/// The last dump of a level.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    /// From the root, without slashes at its ends, as [`kept_path`] has it; empty for everything.
    path: String,
    pub(super) level: u8,
    /// Seconds since 1970.
    date: u32,
    pub(super) snapshot: String,
    pub(super) bytes: u64,
    /// Something was left out, by its pattern or as it could not be read.
    is_part: bool,
}

impl Record {
    /// It had not everything.
    fn had_a_part(&self) -> bool {
        self.is_part || !self.path.is_empty()
    }
}

/// The records about a dump for later ones based on it.
struct Noted {
    /// The names of all files in their directories.
    catalog: Option<Catalog>,
    /// Of a part, or where something could not be read: which files it had.
    had: Option<InodeMap>,
}

/// A requested dump, checked.
struct Making {
    groups: Arc<Groups>,
    open: Arc<OpenVolume>,
    /// From the root, without slashes at its ends, as [`kept_path`] has it.
    path: String,
    level: u8,
    since: u32,
    /// The dump that this one is based on.
    base: Option<Record>,
    /// The folder with the state of the volume.
    folder: PathBuf,
    exclude: Option<GlobSet>,
    snapshot: Option<String>,
    host: String,
    volume_records: Option<u64>,
    /// The client reports when the dump is durable.
    confirmed: bool,
}

/// Why a dump of a level above 0 checks all inodes, and finds changes by their dates.
#[derive(Debug, thiserror::Error)]
enum WhyAll {
    #[error(
        "only a part of the volume is dumped, so all files are looked at and their dates say what changed"
    )]
    Part,
    #[error(
        "the dump of level {level} excluded some files, so the dates of all files are compared; this dump includes the files that were excluded"
    )]
    LowerPart { level: u8 },
    #[error("the content of the dump of level {level} is unknown, so this dump has all requested files")]
    NotNoted { level: u8 },
    #[error(
        "the dump of level {level} was of a snapshot made for it alone, so all files are looked at and their dates say what changed; dumps of snapshots that stay are faster"
    )]
    OwnSnapshot { level: u8 },
    #[error(
        "`{snapshot}`, the snapshot of the dump of level {level}, no longer exists, so the dates of all files are compared to find changes"
    )]
    Gone { level: u8, snapshot: String },
    #[error(
        "`{snapshot}`, the snapshot of the dump of level {level}, is no longer on the mirror (its source has deleted it), so the dates of all files are compared to find changes; \
         a snapshot that stays at the source until the next level, dumped here by its name, is faster"
    )]
    GoneOnMirror { level: u8, snapshot: String },
    #[error(
        "the names that were noted with the dump of level {level} are missing or damaged, so all files are looked at and their dates say what changed"
    )]
    NoNames { level: u8 },
    #[error(
        "what changed since the dump of level {level} can't be told from the maps ({reason}), so all files are looked at and their dates say what changed"
    )]
    Failed { level: u8, reason: String },
}

/// The image of the dumped tree, for the duration of the dump.
struct Frozen {
    snapshot: Snapshot,
    tree: Arc<Tree>,
    /// Made for this dump.
    own: Option<Own>,
}

impl Frozen {
    /// The dump is made, or given up.
    fn let_go(self) {
        drop(self.tree);
        self.own.into_iter().for_each(Own::end);
    }
}

/// A path that is kept, from the root and with its slash.
fn from_root(kept: &str) -> Vec<u8> {
    [b"/", &kept_bytes(kept)[..]].concat()
}

/// Patterns of names and paths that are left out: one without a slash is of a name in any
/// directory, one with a slash of a path from the root.
fn globs(patterns: &[String]) -> Result<Option<GlobSet>, ServerError> {
    let wrong =
        |reason: globset::Error| ServerError::Daemon(DaemonError::BadRequest { reason: reason.to_string() });
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        // No path ends so: it would leave out nothing.
        if pattern.ends_with('/') {
            let fault = "a pattern of --exclude ends with `/`";
            let next = "remove the `/`: a pattern excludes files and directories alike";
            return Err(ServerError::Invalid { fault, next });
        }
        let whole = match pattern.strip_prefix('/') {
            Some(path) => path.to_owned(),
            None if pattern.contains('/') => pattern.clone(),
            None => format!("**/{pattern}"),
        };
        set.add(GlobBuilder::new(&whole).literal_separator(true).build().map_err(wrong)?);
    }
    (!patterns.is_empty()).then(|| set.build().map_err(wrong)).transpose()
}

fn seconds(snapshot: &Snapshot) -> u32 {
    u32::try_from(snapshot.created.0 / 1_000_000_000).unwrap_or(u32::MAX)
}

impl Making {
    fn freeze(&self) -> Result<Frozen, ServerError> {
        let named = self.snapshot.as_ref().map(|name| find_snapshot(&self.open, name)).transpose()?;
        let given = named.map_or_else(|| self.groups.shown_by(&self.open), |named| Ok(Some(named)))?;
        let (image, snapshot, own) = match given {
            Some(snapshot) => self.image_of(snapshot, None)?,
            None if self.open.is_destination() => self.newest_image()?,
            None => {
                let (own, snapshot) = Own::make(&self.open, &self.folder.join(DATES))?;
                self.image_of(snapshot, Some(own))?
            }
        };
        let name = format!("{}@{}", self.open.name, snapshot.name);
        let tree = self
            .refuse_older(&snapshot, &name)
            .and_then(|()| Tree::of_image(image).map_err(ServerError::tree(&name)));
        match tree {
            Ok(tree) => Ok(Frozen { snapshot, tree: Arc::new(tree), own }),
            Err(error) => {
                own.into_iter().for_each(Own::end);
                Err(error)
            }
        }
    }

    /// A restore goes from each dump to a later one.
    fn refuse_older(&self, snapshot: &Snapshot, name: &str) -> Result<(), ServerError> {
        match self.base.as_ref().filter(|base| self.level > 0 && seconds(snapshot) < base.date) {
            Some(base) => Err(ServerError::Dumps(DumpsError::DumpIsOlder {
                snapshot: name.to_owned(),
                level: base.level,
            })),
            None => Ok(()),
        }
    }

    fn image_of(
        &self,
        snapshot: Snapshot,
        own: Option<Own>,
    ) -> Result<(Image, Snapshot, Option<Own>), ServerError> {
        match self.open.volume.image(Some(snapshot.id)) {
            Ok(image) => Ok((image, snapshot, own)),
            Err(error) => {
                own.into_iter().for_each(Own::end);
                Err(ServerError::volume(&self.open.name)(error))
            }
        }
    }

    /// The image that a mirror shows. An update may remove it before it is held; then there is a
    /// newer one.
    fn newest_image(&self) -> Result<(Image, Snapshot, Option<Own>), ServerError> {
        let volume = &self.open.volume;
        let none = || ServerError::Mirrors(MirrorsError::NoImage { volume: self.open.name.clone() });
        let mut shown = volume.status().cursor.snapshot;
        loop {
            let found =
                volume.snapshot(shown).and_then(|found| Some((volume.image(Some(shown)).ok()?, found)));
            if let Some((image, snapshot)) = found {
                return Ok((image, snapshot, None));
            }
            let now = volume.status().cursor.snapshot;
            if now == shown {
                return Err(none());
            }
            shown = now;
        }
    }

    /// Saves the names of the dumped files, before the date of the dump: a catalogue whose snapshot
    /// differs from that of the date is not used.
    fn keep_catalog(&self, frozen: &Frozen, catalog: Option<Catalog>) {
        if !self.has_everything() {
            return;
        }
        // A snapshot that goes now is nothing to compare with.
        let catalog = catalog.filter(|_| frozen.own.is_none());
        let path = Catalog::path(&self.folder, self.level);
        let kept = catalog.map(|catalog| catalog.save(&path, &frozen.snapshot));
        if let Some(Err(error)) = &kept {
            tracing::warn!(path = %path.display(), %error, "the next dump must check all files");
        }
        // Catalogues based on an earlier dump of this level have lost their base.
        let first = self.level + u8::from(matches!(kept, Some(Ok(()))));
        for level in first..=HIGHEST_LEVEL {
            let _ = std::fs::remove_file(Catalog::path(&self.folder, level));
        }
    }

    /// The same for the files of a dump of a part.
    fn keep_had(&self, record: &Record, had: Option<InodeMap>) {
        let kept = had.map(|had| had::save(&self.folder, record, &had));
        if let Some(Err(error)) = &kept {
            tracing::warn!(path = quoted_path(&from_root(&self.path)), level = self.level, %error, "the next dump of a higher level will have all requested files");
        }
        let first = self.level + u8::from(matches!(kept, Some(Ok(()))));
        for level in first..=HIGHEST_LEVEL {
            let _ = std::fs::remove_file(had::path(&self.folder, &self.path, level));
        }
    }

    /// The files of the dump that this one is based on, if that was a part; empty if they are
    /// unknown.
    fn had(&self) -> Option<InodeMap> {
        let base = self.base.as_ref().filter(|base| self.level > 0 && base.had_a_part())?;
        Some(had::load(&self.folder, base).unwrap_or_default())
    }

    /// `VOLUME`, or `VOLUME:/PATH`.
    fn name(&self) -> String {
        let volume = &self.open.name;
        let shown = || format!("{volume}:{}", quoted_path(&from_root(&self.path)));
        if self.path.is_empty() { volume.clone() } else { shown() }
    }

    /// Refuses to go by dates that say nothing.
    fn check_dates(&self, frozen: &Frozen) -> Result<(), ServerError> {
        match &self.base {
            Some(base) if base.is_given_up(&self.open, frozen.snapshot.id) => {
                Err(ServerError::Dumps(DumpsError::DumpGivenUp { name: self.name(), level: base.level }))
            }
            _ => Ok(()),
        }
    }

    /// No path and no pattern leaves anything out.
    fn has_everything(&self) -> bool {
        self.path.is_empty() && self.exclude.is_none()
    }

    /// The changes according to the maps, and the resulting names. If there is nothing to compare
    /// with: the reason, for a level above 0.
    ///
    /// The snapshot of the lower dump is held from here on: on a mirror the next update may delete
    /// it.
    fn known(&self, frozen: &Frozen) -> Result<(Known, Catalog), Option<WhyAll>> {
        let base = self.base.as_ref().filter(|_| self.level > 0).ok_or(None)?;
        let level = base.level;
        if base.had_a_part() && had::load(&self.folder, base).is_none() {
            return Err(Some(WhyAll::NotNoted { level }));
        }
        if !self.has_everything() {
            return Err(Some(WhyAll::Part));
        }
        if base.had_a_part() {
            return Err(Some(WhyAll::LowerPart { level }));
        }
        let gone = || self.gone(base);
        let snapshot = find_snapshot(&self.open, &base.snapshot).map_err(|_| gone())?;
        if seconds(&snapshot) != base.date {
            return Err(gone());
        }
        let image = self.open.volume.image(Some(snapshot.id)).map_err(|_| gone())?;
        let names = Catalog::load(&Catalog::path(&self.folder, base.level), &snapshot);
        let mut catalog = names.ok_or(WhyAll::NoNames { level: base.level })?;
        let followed = match Tree::of_image(image) {
            Ok(before) => catalog.follow(&before, &frozen.tree),
            Err(error) => Err(std::io::Error::from_raw_os_error(error.errno())),
        };
        match followed {
            Ok(known) => Ok((known, catalog)),
            Err(error) => {
                let (volume, snapshot) = (&self.open.name, &snapshot.name);
                tracing::warn!(volume, snapshot, %error, "a dump cannot find the changes from the maps, and checks all files");
                Err(Some(WhyAll::Failed { level: base.level, reason: error.to_string() }))
            }
        }
    }

    fn gone(&self, base: &Record) -> Option<WhyAll> {
        let (level, snapshot) = (base.level, format!("{}@{}", self.open.name, base.snapshot));
        Some(match base.snapshot.starts_with(DUMP_PREFIX) {
            true => WhyAll::OwnSnapshot { level },
            false if self.open.is_destination() => WhyAll::GoneOnMirror { level, snapshot },
            false => WhyAll::Gone { level, snapshot },
        })
    }

    fn options(&self, snapshot: &Snapshot) -> Options {
        let short = |text: &str, most: usize| text.as_bytes()[..text.len().min(most)].to_vec();
        Options {
            level: u32::from(self.level),
            date: seconds(snapshot),
            since: self.since,
            had: self.had(),
            label: short(&snapshot.name, LABEL_MAX),
            file_system: short(&self.open.name, NAME_MAX),
            device: short(&format!("{}@{}", self.open.name, snapshot.name), NAME_MAX),
            host: short(&self.host, NAME_MAX),
            subtree: kept_bytes(&self.path)
                .split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect(),
            volume_records: self.volume_records,
        }
    }

    fn plan(
        &self,
        known: Result<(Known, Catalog), Option<WhyAll>>,
        source: &TreeSource,
        frozen: &Frozen,
        watch: &mut dyn FnMut(cairn_bsddump::Progress) -> bool,
    ) -> Result<(Dump, Option<Catalog>), ServerError> {
        use std::os::unix::ffi::OsStrExt;
        let options = self.options(&frozen.snapshot);
        if let Ok((known, catalog)) = known {
            let dump = Dump::plan_known(&mut Reading(source), options, known, watch).map_err(dump_error)?;
            return Ok((dump, Some(catalog)));
        }
        self.check_dates(frozen)?;
        // A level above 0 walks all directories now; a dump of everything reads them when it writes
        // them.
        if self.has_everything() {
            source.collect();
        }
        let mut filter = |path: &[u8]| match &self.exclude {
            Some(set) if set.is_match(std::path::Path::new(std::ffi::OsStr::from_bytes(path))) => {
                Selection::Skip
            }
            _ => Selection::Take,
        };
        let filter: Option<Choice<'_>> = if self.exclude.is_some() { Some(&mut filter) } else { None };
        let dump = Dump::plan(&mut Reading(source), options, filter, watch).map_err(dump_error)?;
        let walked = if self.since > 0 { source.collected().map(Catalog::of) } else { None };
        Ok((dump, walked))
    }

    fn write(
        &self,
        frozen: &Frozen,
        handed: &mut Handed,
        progress: &Progress,
    ) -> Result<(api::FileDumpResult, Noted), ServerError> {
        let [file] = &handed.files[..] else {
            return Err(ServerError::Invalid {
                fault: "a dump of files needs exactly one file or pipe",
                next: "name one file with -f",
            });
        };
        let goes_on =
            || !progress.cancelled().load(Ordering::Relaxed) && !handed.gone.load(Ordering::Relaxed);
        let source = TreeSource::new(frozen.tree.clone());
        let mut watch = |at: cairn_bsddump::Progress| {
            progress.phase(phase(at.phase));
            progress.bytes(at.bytes, 0);
            goes_on()
        };
        let known = self.known(frozen);
        let why_all = why_all(&known);
        // Reported before the work begins: it may take much longer than expected.
        why_all.iter().for_each(|why| progress.note(why.clone()));
        let (dump, planned) = self.plan(known, &source, frozen, &mut watch)?;
        let total = dump.planned().bytes;
        let inodes = dump.planned().inodes;
        let mut had = dump.had();
        source.begin(dump.order());
        let mut out = Out { file, gone: &handed.gone };
        let written = std::thread::scope(|scope| {
            let _ends = source.ends();
            for _ in 0..THREADS {
                let builder = Builder::new().name("dump-reader".to_owned());
                let begun = builder.spawn_scoped(scope, || source.load());
                begun.map_err(|source| ServerError::Thread { what: "a dump", source })?;
            }
            let mut watch = |at: cairn_bsddump::Progress| {
                progress.phase(phase(at.phase));
                progress.bytes(at.bytes, total.max(at.bytes));
                goes_on()
            };
            dump.write(&mut Reading(&source), &mut out, &mut watch).map_err(dump_error)
        })?;
        let catalog = planned.or_else(|| source.collected().map(Catalog::of));
        // A dump with a date is durable.
        settle(file).map_err(|source| ServerError::Dumps(DumpsError::DumpOutput { source }))?;
        if self.confirmed {
            handed.files.clear();
            progress.phase("waiting for what was written to be on its medium");
            while !handed.kept.load(Ordering::Acquire) {
                if progress.cancelled().load(Ordering::Relaxed) {
                    return Err(ServerError::Cancelled);
                }
                // The client may have confirmed just before it closed the connection.
                if handed.gone.load(Ordering::Acquire) && !handed.kept.load(Ordering::Acquire) {
                    let source = std::io::ErrorKind::BrokenPipe.into();
                    return Err(ServerError::Dumps(DumpsError::DumpOutput { source }));
                }
                std::thread::sleep(CONFIRM_PAUSE);
            }
        }
        let lacks = take_lacked(&mut had, &written.failed);
        let had = (lacks || !self.has_everything()).then_some(had);
        let failed = written.failed.iter().take(FAILED_MAX);
        let failed: Vec<String> = failed
            .map(|one| {
                let path = name_of(&frozen.tree, one.number);
                format!("{path}: {} is not in the dump: {}", one.what, one.reason)
            })
            .collect();
        let result = api::FileDumpResult {
            volume: self.open.name.clone(),
            snapshot: format!("{}@{}", self.open.name, frozen.snapshot.name),
            path: path_text(&from_root(&self.path)),
            path_bytes: path_bytes(&from_root(&self.path)),
            level: self.level,
            since_ms: (self.since > 0).then(|| u64::from(self.since) * 1000),
            inodes,
            bytes: written.bytes,
            why_all,
            failed,
        };
        Ok((result, Noted { catalog, had }))
    }
}

/// Removes the files that could not be read from the record of a dump; returns whether there were
/// any. Lost names affect all files below them.
fn take_lacked(had: &mut InodeMap, failed: &[Failed]) -> bool {
    for one in failed {
        match one.lacks {
            Lacks::Nothing => {}
            Lacks::File => had.remove(one.number),
            Lacks::Below => *had = InodeMap::new(),
        }
    }
    failed.iter().any(|one| one.lacks != Lacks::Nothing)
}

fn why_all(known: &Result<(Known, Catalog), Option<WhyAll>>) -> Option<String> {
    known.as_ref().err()?.as_ref().map(WhyAll::to_string)
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::MapFiles => "1 of 4: looking at all inodes",
        Phase::MapDirectories => "2 of 4: walking the directories",
        Phase::WriteDirectories => "3 of 4: writing directories",
        Phase::WriteFiles => "4 of 4: writing files",
    }
}

/// Where a dump goes: it ends when the client that handed it over is gone.
struct Out<'a> {
    file: &'a File,
    gone: &'a AtomicBool,
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn dump_error(error: WriteError) -> ServerError {
    match error {
        WriteError::Cancelled => ServerError::Cancelled,
        WriteError::Output(source) => ServerError::Dumps(DumpsError::DumpOutput { source }),
        WriteError::NoSuchPath(path) => ServerError::NotFound {
            what: "path",
            name: format!("/{}", quoted_path(&path)),
            list: "cairn mount VOLUME DIR",
        },
        WriteError::Source(source) => ServerError::Dumps(DumpsError::DumpSource { source }),
        WriteError::NoRoot => ServerError::Bug,
    }
}
