//! Image dumps: made of a volume into files that a client handed over or into a bucket
//! (`images/bucket.rs`), and restored from there into a new volume.
//!
//! The last dump of each level is in `VOLUME/dumps.json`. The snapshot that a dump made for itself
//! is held as long as a dump of a higher level may be made against it: until the next dump of its
//! level or a lower one. A dump of a snapshot that its owner named holds nothing. An interrupted
//! dump into files can be resumed (`unfinished`); through a pipe it leaves nothing. An interrupted
//! restore can be resumed as well (`restoring`).

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, Clock, SnapshotId};
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_format::stream::root_digest;
use cairn_stream::{
    Begun, Compression, Dump, DumpBytes, DumpError, DumpLabel, Plan, StreamError, Threads, Work, begun_table,
};
use cairn_volume::Snapshot;
use parking_lot::Mutex;

use crate::dumps::error::DumpsError;
use crate::dumps::handover::{Handed, settle};
use crate::dumps::images::document::{ImageDumpsDocument, KnownSnapshot, Record, Unfinished};
use crate::error::ServerError;
use crate::groups::Groups;
use crate::names::IMAGE_PREFIX;
use crate::peers::token::random_bytes;
use crate::state;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::find_snapshot;
use crate::work::jobs::Progress;
use crate::work::threads::Scoped;

mod bucket;
mod commands;
pub(crate) mod document;
mod from_mirror;
pub(crate) mod keep;
pub(crate) mod notes;
mod restoring;
mod unfinished;

pub(crate) use crate::dumps::images::bucket::trees::DumpTrees;
pub(crate) use crate::dumps::images::keep::Keep;
use unfinished::{Ledger, are_named, lasts};

#[cfg(test)]
mod tests;

const BLOCK: u64 = BLOCK_SIZE as u64;
const HIGHEST_LEVEL: u8 = 9;

/// The volumes that are being dumped: one dump of a volume at a time.
#[derive(Default)]
pub(crate) struct Dumping(Mutex<HashSet<String>>);

struct Turn {
    dumping: Arc<Dumping>,
    volume: String,
}

impl Dumping {
    fn take(self: &Arc<Self>, volume: &str) -> Result<Turn, ServerError> {
        if !self.0.lock().insert(volume.to_owned()) {
            return Err(ServerError::Busy {
                name: volume.to_owned(),
                by: "another image dump of it is made",
            });
        }
        Ok(Turn { dumping: self.clone(), volume: volume.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.dumping.0.lock().remove(&self.volume);
    }
}

/// For a dump whose files [keep nothing](Handed::keep_nothing).
pub(crate) const NOT_COUNTED: &str = "what goes to /dev/null is kept nowhere, so this dump does not count: later ones are made against those before it";

/// The base of a dump, and its level.
struct Against {
    level: DumpLevel,
    base: Option<(SnapshotId, String)>,
}

impl Against {
    /// Refuses a target that is not younger, before anything is given up or noted for the dump: it
    /// could never be made.
    fn is_before(&self, target: &Snapshot) -> Result<(), ServerError> {
        match &self.base {
            Some((base, _)) if *base >= target.id => Err(ServerError::Invalid {
                fault: "the base of the dump is not older than the dumped snapshot",
                next: "name an older snapshot with --base",
            }),
            _ => Ok(()),
        }
    }
}

/// A dump of one volume: the decisions before any read.
struct Making<'a> {
    groups: Arc<Groups>,
    open: &'a Arc<OpenVolume>,
    path: PathBuf,
}

impl Making<'_> {
    fn document(&self) -> Result<ImageDumpsDocument, ServerError> {
        Ok(state::load::<ImageDumpsDocument>(&self.path)?.unwrap_or_default())
    }

    fn records(&self) -> Result<Vec<Record>, ServerError> {
        Ok(self.document()?.dumps)
    }

    fn save(&self, document: &ImageDumpsDocument) -> Result<(), ServerError> {
        state::save(&self.path, document)
    }

    /// The snapshot of a record, if it is still there and the same.
    fn snapshot_of(&self, record: &Record) -> Option<Snapshot> {
        self.find(record.snapshot, &record.root)
    }

    /// The snapshot of that number, if it is still the one with that root digest.
    fn find(&self, id: u64, root: &str) -> Option<Snapshot> {
        let entries = self.open.volume.snapshot_entries();
        let entry = entries.iter().find(|entry| entry.id.0 == id)?;
        (format!("{:?}", root_digest(entry)) == root).then(|| Snapshot::from(entry))
    }

    fn against(&self, request: &api::DumpRequest) -> Result<Against, ServerError> {
        let against = self.against_any(request)?;
        if let Some(name) = &request.snapshot {
            against.is_before(&find_snapshot(self.open, name)?)?;
        }
        Ok(against)
    }

    fn against_any(&self, request: &api::DumpRequest) -> Result<Against, ServerError> {
        let volume = &self.open.name;
        match (request.level, &request.base) {
            (Some(_), Some(_)) => Err(ServerError::Invalid {
                fault: "a dump has either a level or a base snapshot, not both",
                next: "give a level or --base",
            }),
            (None, Some(base)) => {
                let found = find_snapshot(self.open, base)?;
                Ok(Against { level: DumpLevel::AgainstSnapshot, base: Some((found.id, found.name)) })
            }
            (None | Some(0), None) => Ok(Against { level: DumpLevel::Level(0), base: None }),
            (Some(level), None) if level > HIGHEST_LEVEL => Err(ServerError::Invalid {
                fault: "the level is not between 0 and 9",
                next: "give a level from 0 to 9",
            }),
            (Some(level), None) => {
                let records = self.records()?;
                let lower = records.iter().filter(|record| record.level < level && record.bucket.is_none());
                // Of the newest snapshot by its number: its time may come from a wall clock that
                // was set back.
                let Some(record) = lower.max_by_key(|record| (record.snapshot, record.level)) else {
                    return Err(ServerError::Dumps(DumpsError::NoLowerDump {
                        volume: volume.clone(),
                        level,
                    }));
                };
                let found = self.snapshot_of(record).ok_or_else(|| {
                    ServerError::Dumps(DumpsError::DumpBaseGone {
                        volume: volume.clone(),
                        level: record.level,
                        snapshot: record.name.clone(),
                    })
                })?;
                Ok(Against { level: DumpLevel::Level(level), base: Some((found.id, found.name)) })
            }
        }
    }

    /// The snapshot to dump, and whether it was made for this.
    fn target(
        &self,
        request: &api::DumpRequest,
        against: &Against,
        id: &str,
    ) -> Result<(Snapshot, bool), ServerError> {
        if let Some(name) = &request.snapshot {
            return Ok((find_snapshot(self.open, name)?, false));
        }
        if let Some(shown) = self.groups.shown_by(self.open)? {
            against.is_before(&shown)?;
            return Ok((shown, false));
        }
        let failed = ServerError::volume(&self.open.name);
        let name = format!("{IMAGE_PREFIX}{}.{}", against.level, &id[..8]);
        let make = || self.open.volume.create_snapshot(&name);
        Ok((self.open.snapshot_with(make)?.map_err(failed)?, true))
    }

    /// Releases snapshots that dumps made for themselves and that no record needs. An unfinished
    /// dump needs all that are older than its own. A snapshot that cannot be deleted stays held:
    /// later dumps look at it again.
    fn let_go(&self, document: &ImageDumpsDocument) -> Result<(), ServerError> {
        if self.open.is_destination() {
            return Ok(());
        }
        let failed = ServerError::volume(&self.open.name);
        let kept: HashSet<u64> = document.dumps.iter().map(|record| record.snapshot).collect();
        let needed = document.unfinished.as_ref().map_or(0, |unfinished| unfinished.target.snapshot);
        for snapshot in self.open.volume.snapshots() {
            let own = snapshot.held && is_of_a_dump(&snapshot.name);
            if own && !kept.contains(&snapshot.id.0) && snapshot.id.0 > needed {
                // Together with its hold. Otherwise a snapshot that cannot be deleted would have no
                // owner.
                self.open.volume.let_go_of_snapshots(&[snapshot.id]).map_err(&failed)?;
            }
        }
        Ok(())
    }

    /// The same after a dump that counts by now. A failure is not an error: the next dump tries
    /// again.
    fn let_go_after_all(&self, document: &ImageDumpsDocument) {
        if let Err(error) = self.let_go(document) {
            let volume = &self.open.name;
            tracing::warn!(volume, %error, "snapshots that no image dump needs any more stay until the next one");
        }
    }

    /// Deletes the snapshot of a dump that does not exist. If that fails now, the snapshot stays
    /// held. The hold shows the next dump that the snapshot has no owner.
    fn take_back(&self, target: SnapshotId) -> Result<(), ServerError> {
        let gone = self.open.volume.let_go_of_snapshots(&[target]);
        gone.map(drop).map_err(ServerError::volume(&self.open.name))
    }
}

/// True of `image.LEVEL.ID`: an owner may have called one `image.something` and hold it.
fn is_of_a_dump(name: &str) -> bool {
    let parts = name.strip_prefix(IMAGE_PREFIX).and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(level, id)| {
        let level = level == "base" || matches!(level.as_bytes(), [b'0'..=b'9']);
        level && id.len() == 8 && id.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

impl ImageDumpsDocument {
    /// A dump is whole: it is the last one of its level now, at its place.
    fn note(&mut self, dump: Record) {
        self.dumps.retain(|record| record.bucket != dump.bucket || record.level < dump.level);
        self.dumps.push(dump);
    }
}

/// A dump resumes in files, and in as many as before.
fn goes_on_in(
    unfinished: &Unfinished,
    request: &api::DumpRequest,
    handed: &Handed,
) -> Result<(), ServerError> {
    let (fault, next) = if unfinished.bucket.is_some() {
        ("the unfinished dump goes into a bucket", "leave out --to, or start a new dump with --anew")
    } else if !lasts(request, handed) {
        (
            "a dump into a pipe or a device cannot be resumed, because its data cannot be read back",
            "name the files of the dump with --to, or start a new dump with --anew",
        )
    } else if handed.files.len() != unfinished.parts() {
        (
            "the dump was started with another number of files",
            "name all of its files with --to; `cairn image levels VOLUME` shows them",
        )
    } else {
        return Ok(());
    };
    Err(ServerError::Invalid { fault, next })
}

/// A dump that begins or resumes, on the thread of its job.
struct Task<'a> {
    making: Making<'a>,
    request: &'a api::DumpRequest,
    handed: &'a Handed,
    clock: Arc<dyn Clock>,
    progress: &'a Progress,
}

impl Task<'_> {
    /// A new dump.
    fn begin(&self, against: &Against) -> Result<api::DumpResult, ServerError> {
        self.progress.phase("making a snapshot");
        let (making, open) = (&self.making, self.making.open);
        making.give_up(making.document()?)?;
        // A file without a name is the client's standard output. Its content belongs to the client,
        // and the dump follows it.
        let named = are_named(self.request, self.handed);
        for file in self.handed.files.iter().filter(|file| named && unfinished::is_file(file)) {
            // Only now is its content that of a dump that was given up.
            file.set_len(0).map_err(|error| DumpError::from(StreamError::from(error)))?;
        }
        let id = DumpId(random_bytes());
        let (target, own) = making.target(self.request, against, &id.to_string())?;
        let lasts = lasts(self.request, self.handed);
        // The hold distinguishes a snapshot that a killed server leaves from an owner's.
        let begun = match own {
            true => open.volume.hold_snapshot(target.id, true).map_err(ServerError::volume(&open.name)),
            false => Ok(()),
        };
        let outcome = begun.and_then(|()| match lasts {
            true => making.begin((id, against), (&target, own), self.request, self.handed).map(Some),
            false => Ok(None),
        });
        let outcome = match outcome {
            // From here on its snapshot stays.
            Ok(Some(document)) => return self.write_to_last(document, against, &target),
            Ok(None) => self.write_through(id, against, &target, own),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            making.release();
        }
        if own && (outcome.is_err() || self.handed.keep_nothing()) {
            // The snapshot of a dump that does not exist is useless.
            let _ = making.take_back(target.id);
        }
        outcome
    }

    /// Resumes the unfinished dump.
    fn resume(&self) -> Result<api::DumpResult, ServerError> {
        self.progress.phase("looking at what is there");
        let document = self.making.document()?;
        let (document, against, target) = self.making.again(document, self.request, self.handed)?;
        self.write_to_last(document, &against, &target)
    }

    /// Through a pipe or to a device: cut, it leaves nothing.
    fn write_through(
        &self,
        id: DumpId,
        against: &Against,
        target: &Snapshot,
        own: bool,
    ) -> Result<api::DumpResult, ServerError> {
        let compression = if self.request.compress { Compression::Zstd } else { Compression::None };
        let plan = self.plan(against, target)?;
        let result = self.job(id, against, compression, target, None).write(&plan, target)?;
        if self.handed.keep_nothing() {
            self.progress.note(NOT_COUNTED.to_owned());
            return Ok(result);
        }
        if own && against.level == DumpLevel::AgainstSnapshot {
            // It is its owner's now, as a base of other dumps.
            let volume = &self.making.open.name;
            if let Err(error) = self.making.open.volume.hold_snapshot(target.id, false) {
                tracing::warn!(volume, snapshot = target.name, %error, "the snapshot of a dump stays held");
            }
        }
        if let DumpLevel::Level(level) = against.level
            && let Some(known) = KnownSnapshot::of(self.making.open, target.id)
        {
            let mut document = self.making.document()?;
            document.note(Record {
                level,
                id: result.id.clone(),
                snapshot: known.snapshot,
                name: known.name,
                root: known.root,
                created_ms: target.created.0 / 1_000_000,
                bytes: result.bytes,
                own,
                bucket: None,
            });
            self.making.save(&document)?;
            self.making.let_go_after_all(&document);
        }
        Ok(result)
    }

    /// Into files. It can be resumed after any end.
    fn write_to_last(
        &self,
        document: ImageDumpsDocument,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let volume = &self.making.open.name;
        let outcome = self.write_files(document, against, target);
        // A whole one waits as well: for its client, which may have disconnected.
        self.making.cut(target);
        outcome.map_err(|error| {
            // Where a file is another one, or the snapshots are, the same again comes to the same.
            let again = match &error {
                ServerError::Dumps(DumpsError::DumpSourceGone { .. }) => false,
                ServerError::Dumps(DumpsError::Dump { source }) => matches!(**source, DumpError::Stream(_)),
                _ => true,
            };
            match again {
                true => ServerError::Dumps(DumpsError::DumpCut {
                    volume: volume.clone(),
                    source: Box::new(error),
                }),
                false => error,
            }
        })
    }

    fn write_files(
        &self,
        document: ImageDumpsDocument,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let unfinished = document.unfinished.as_ref().ok_or(ServerError::Bug)?;
        let (id, compression) = (unfinished.dump_id()?, unfinished.compression());
        let mut plan = self.plan(against, target)?;
        if let Some(table) = self.begun_table(id)? {
            plan = plan.with_table(table).map_err(|error| match error {
                StreamError::Diverged { snapshot } => ServerError::Dumps(DumpsError::DumpSourceGone {
                    volume: self.making.open.name.clone(),
                    snapshot: format!("snapshot {snapshot}"),
                }),
                error => DumpError::from(error).into(),
            })?;
        }
        let ledger = Ledger::new(self.making.path.clone(), self.clock.clone(), document);
        let result = self.job(id, against, compression, target, Some(&ledger)).write(&plan, target)?;
        ledger.written(result.bytes)?;
        Ok(result)
    }

    /// The snapshot table of the parts that are there: names and holds may have changed since.
    fn begun_table(&self, id: DumpId) -> Result<Option<Vec<cairn_format::SnapshotEntry>>, ServerError> {
        for (name, file) in self.request.files.iter().zip(&self.handed.files) {
            let file = file.try_clone().map_err(|error| DumpError::from(StreamError::from(error)))?;
            let table = begun_table(name, &(Arc::new(file) as Arc<dyn DumpBytes>), id)?;
            if table.is_some() {
                return Ok(table);
            }
        }
        Ok(None)
    }

    fn plan(&self, against: &Against, target: &Snapshot) -> Result<Plan, ServerError> {
        self.progress.phase("comparing maps");
        let base = against.base.as_ref().map(|(id, _)| *id);
        Ok(Plan::against(&self.making.open.volume, base, target.id).map_err(DumpError::from)?)
    }

    fn job<'a>(
        &'a self,
        id: DumpId,
        against: &'a Against,
        compression: Compression,
        target: &Snapshot,
        ledger: Option<&'a Ledger>,
    ) -> Job<'a> {
        let name = self.making.open.name.clone();
        let label = DumpLabel { id, level: against.level, name, created: target.created };
        Job { against, label, compression, ledger, handed: self.handed, progress: self.progress }
    }
}

/// The writing of a dump.
struct Job<'a> {
    against: &'a Against,
    label: DumpLabel,
    compression: Compression,
    /// The notes of the progress of a dump that can be resumed.
    ledger: Option<&'a Ledger>,
    handed: &'a Handed,
    progress: &'a Progress,
}

impl Job<'_> {
    fn write(&self, plan: &Plan, target: &Snapshot) -> Result<api::DumpResult, ServerError> {
        let (files, gone) = (&self.handed.files, &self.handed.gone);
        let dump = Dump::new(plan, self.label.clone(), files.len() as u32);
        self.progress.phase("looking at what is there");
        let ended = || gone.load(Ordering::Relaxed) || self.progress.cancelled().load(Ordering::Relaxed);
        let begun = side_by_side(files, gone, |part, file| match self.ledger {
            Some(ledger) => ledger.look(&dump, part, file, &ended),
            None => Ok(Begun::default()),
        })?;
        self.ledger.map_or(Ok(()), Ledger::looked_at)?;
        let (there, there_bytes) = begun
            .iter()
            .fold((0, 0), |(blocks, bytes), begun| (blocks + begun.at().blocks, bytes + begun.at().bytes));
        self.progress.phase("dumping");
        let total = dump.blocks().saturating_sub(there) * BLOCK;
        self.progress.bytes(0, total);
        let done = AtomicU64::new(0);
        let written = side_by_side(files, gone, |part, file| {
            let mut before = begun[part].at().blocks;
            let mut tell = |at: cairn_stream::Progress| {
                let more = (at.blocks - before) * BLOCK;
                before = at.blocks;
                self.progress.bytes(done.fetch_add(more, Ordering::Relaxed) + more, total);
                if self.progress.cancelled().load(Ordering::Relaxed) {
                    gone.store(true, Ordering::Relaxed);
                }
            };
            let threads = Some(&Scoped as &dyn Threads);
            let mut work = Work { cancel: gone, progress: &mut tell, threads };
            match self.ledger {
                Some(ledger) => ledger.write(&dump, (part, file), &begun[part], self.compression, &mut work),
                None => self.write_part(&dump, part, file, &mut work),
            }
        })?;
        let volume = &self.label.name;
        Ok(api::DumpResult {
            volume: volume.clone(),
            snapshot: format!("{volume}@{}", target.name),
            level: self.against.level.to_string(),
            base: self.against.base.as_ref().map(|(_, name)| format!("{volume}@{name}")),
            id: self.label.id.to_string(),
            parts: files.len() as u64,
            snapshots: plan.snapshots() as u64,
            data_bytes: dump.blocks() * BLOCK,
            bytes: written.iter().sum(),
            there_bytes,
            to_confirm: self.ledger.is_some(),
            bucket: None,
            locked_until_ms: None,
        })
    }

    fn write_part(
        &self,
        dump: &Dump<'_>,
        part: usize,
        mut file: &File,
        work: &mut Work<'_>,
    ) -> Result<u64, ServerError> {
        let written = dump.write_part(part as u32, &mut file, self.compression, work);
        let produced = written.map_err(DumpError::from)?;
        settle(file).map_err(|error| DumpError::from(StreamError::from(error)))?;
        Ok(produced.bytes)
    }
}

/// Reports that the other parts are useless, unless this one succeeded. A panic also counts as a
/// failure.
struct EndsOthers<'a>(&'a AtomicBool);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a function for each part on a thread of its own. When one fails, or has no thread, `gone`
/// ends the others.
fn side_by_side<S: Sync, T: Send>(
    files: &[S],
    gone: &AtomicBool,
    run: impl Fn(usize, &S) -> Result<T, ServerError> + Sync,
) -> Result<Vec<T>, ServerError> {
    let run = |part: usize, file: &S| {
        let ends_others = EndsOthers(gone);
        let outcome = run(part, file);
        if outcome.is_ok() {
            std::mem::forget(ends_others);
        }
        outcome
    };
    let outcomes: Vec<Result<T, ServerError>> = std::thread::scope(|scope| {
        let run = &run;
        let begin = |(part, file)| {
            let begun = Builder::new().name("part".to_owned()).spawn_scoped(scope, move || run(part, file));
            begun.map_err(|source| {
                gone.store(true, Ordering::Relaxed);
                ServerError::Thread { what: "a part of the dump", source }
            })
        };
        let parts: Vec<_> = files.iter().enumerate().map(begin).collect();
        parts.into_iter().map(|part| part?.join().unwrap_or(Err(ServerError::Bug))).collect()
    });
    // A cancelled part comes last: the failure of another one is the cause.
    let (mut all, mut why) = (Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Ok(part) => all.push(part),
            Err(error) if why.is_none() || !is_cancelled(&error) => why = Some(error),
            Err(_) => {}
        }
    }
    why.map_or(Ok(all), Err)
}

fn is_cancelled(error: &ServerError) -> bool {
    matches!(error, ServerError::Dumps(DumpsError::Dump { source }) if matches!(**source, DumpError::Stream(StreamError::Cancelled)))
}
