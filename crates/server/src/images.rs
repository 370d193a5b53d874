//! Image dumps: made of a volume into files that a client handed over, and restored from such files into a new volume.
//!
//! The last dump of each level stands in `VOLUME/dumps.json`. The snapshot that a dump made for itself is held as long as a dump of a
//! higher level may be made against it: until the next dump of its level or a lower one. A dump of a snapshot that its owner named holds nothing.
//! A dump into files that is cut is gone on with (`unfinished`); through a pipe it leaves nothing. A restore that is cut is gone on with as well (`restoring`).

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;

use cairn_api::name_findings;
use cairn_api::{self as api, ResumeError};
use cairn_base::{BLOCK_SIZE, Clock, SnapshotId};
use cairn_format::dump::{DUMP_VERSION, DumpId, DumpLevel, PARTS_MAX};
use cairn_format::stream::root_digest;
use cairn_stream::{
    Begun, Compression, Dump, DumpBytes, DumpError, DumpLabel, Plan, StreamError, Threads, Work, begun_table,
};
use cairn_volume::{CheckDepth, Snapshot, Volume};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::background;
use crate::contents::find_snapshot;
use crate::error::ServerError;
use crate::groups::Groups;
use crate::handover::{Handed, settle};
use crate::jobs::Progress;
use crate::names;
use crate::server::Server;
use crate::state;
use crate::threads::Scoped;
use crate::token::random_bytes;
use crate::volumes::{OpenVolume, blocks_of};

mod restoring;
#[cfg(test)]
mod tests;
mod unfinished;
pub(crate) use restoring::RestoreNotes;
use restoring::Restoring;
pub(crate) use unfinished::Keep;
use unfinished::{Ledger, Unfinished, are_named, lasts};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// How the names of the snapshots that dumps make for themselves begin.
pub(crate) const DUMP_PREFIX: &str = "image.";
const HIGHEST_LEVEL: u8 = 9;

/// What `dumps.json` says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    dumps: Vec<Record>,
    /// A dump into files that is written, or was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfinished: Option<Unfinished>,
}

/// The last dump of a level.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    level: u8,
    id: String,
    snapshot: u64,
    name: String,
    /// The root digest of the snapshot.
    root: String,
    created_ms: u64,
    bytes: u64,
    /// The dump made the snapshot itself.
    own: bool,
}

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

/// Of a dump whose files [keep nothing](Handed::keep_nothing).
pub(crate) const NOT_COUNTED: &str = "what goes to /dev/null is kept nowhere, so this dump does not count: later ones are made against those before it";

/// What a dump is made against, and at which level.
struct Against {
    level: DumpLevel,
    base: Option<(SnapshotId, String)>,
}

impl Against {
    /// Refuses a target that is not younger, before anything is given up or noted for the dump: it could never be made.
    fn is_before(&self, target: &Snapshot) -> Result<(), ServerError> {
        match &self.base {
            Some((base, _)) if *base >= target.id => Err(ServerError::Invalid {
                what: "the base of the dump",
                rule: "it is an older snapshot than the one that is dumped",
            }),
            _ => Ok(()),
        }
    }
}

/// A dump of one volume: what is decided before anything is read.
struct Making<'a> {
    groups: Arc<Groups>,
    open: &'a Arc<OpenVolume>,
    path: PathBuf,
}

impl Making<'_> {
    fn document(&self) -> Result<Document, ServerError> {
        Ok(state::load::<Document>(&self.path)?.unwrap_or_default())
    }

    fn records(&self) -> Result<Vec<Record>, ServerError> {
        Ok(self.document()?.dumps)
    }

    fn save(&self, document: &Document) -> Result<(), ServerError> {
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
                what: "the level",
                rule: "a dump is made at a level or against a named snapshot, not both",
            }),
            (None, Some(base)) => {
                let found = find_snapshot(self.open, base)?;
                Ok(Against { level: DumpLevel::AgainstSnapshot, base: Some((found.id, found.name)) })
            }
            (None | Some(0), None) => Ok(Against { level: DumpLevel::Level(0), base: None }),
            (Some(level), None) if level > HIGHEST_LEVEL => {
                Err(ServerError::Invalid { what: "the level", rule: "it is 0 to 9" })
            }
            (Some(level), None) => {
                let records = self.records()?;
                let lower = records.iter().filter(|record| record.level < level);
                // Of the newest snapshot by its number: its time is by a clock that may have been put back.
                let Some(record) = lower.max_by_key(|record| (record.snapshot, record.level)) else {
                    return Err(ServerError::NoLowerDump { volume: volume.clone(), level });
                };
                let found = self.snapshot_of(record).ok_or_else(|| ServerError::DumpBaseGone {
                    volume: volume.clone(),
                    level: record.level,
                    snapshot: record.name.clone(),
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
        let name = format!("{DUMP_PREFIX}{}.{}", against.level, &id[..8]);
        let make = || self.open.volume.create_snapshot(&name);
        Ok((self.open.snapshot_with(make)?.map_err(failed)?, true))
    }

    /// Lets go of snapshots that dumps made for themselves and that are of no more use: those of no record. An unfinished dump needs all that are older than its own. One that can't go stays as it is, held: later dumps look at
    /// it again.
    fn let_go(&self, document: &Document) -> Result<(), ServerError> {
        if self.open.is_destination() {
            return Ok(());
        }
        let failed = ServerError::volume(&self.open.name);
        let kept: HashSet<u64> = document.dumps.iter().map(|record| record.snapshot).collect();
        let needed = document.unfinished.as_ref().map_or(0, |unfinished| unfinished.target.snapshot);
        for snapshot in self.open.volume.snapshots() {
            let own = snapshot.held && is_of_a_dump(&snapshot.name);
            if own && !kept.contains(&snapshot.id.0) && snapshot.id.0 > needed {
                // With its hold, or it would be nobody's from then on where it can't go.
                self.open.volume.let_go_of_snapshots(&[snapshot.id]).map_err(&failed)?;
            }
        }
        Ok(())
    }

    /// The same for a dump that counts by now, whatever comes of this: the next one does it as well.
    fn let_go_after_all(&self, document: &Document) {
        if let Err(error) = self.let_go(document) {
            let volume = &self.open.name;
            tracing::warn!(volume, %error, "snapshots that no image dump needs any more stay until the next one");
        }
    }

    /// Deletes the snapshot that was made for a dump that is not there. Where it can't go now it stays held, by which the next dump knows that it is nobody's.
    fn take_back(&self, target: SnapshotId) -> Result<(), ServerError> {
        let gone = self.open.volume.let_go_of_snapshots(&[target]);
        gone.map(drop).map_err(ServerError::volume(&self.open.name))
    }
}

/// True of `image.LEVEL.ID`: an owner may have called one `image.something` and hold it.
fn is_of_a_dump(name: &str) -> bool {
    let parts = name.strip_prefix(DUMP_PREFIX).and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(level, id)| {
        let level = level == "base" || matches!(level.as_bytes(), [b'0'..=b'9']);
        level && id.len() == 8 && id.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

impl Server {
    fn making<'a>(&self, open: &'a Arc<OpenVolume>) -> Making<'a> {
        Making { groups: self.groups.clone(), open, path: self.volumes.folder(&open.name).join("dumps.json") }
    }

    /// The last dump of each level.
    pub(crate) fn dump_levels(&self, volume: &str) -> Result<Vec<api::DumpRecord>, ServerError> {
        let open = self.volumes.get(volume)?;
        let making = self.making(&open);
        let show = |record: Record| api::DumpRecord {
            level: record.level,
            lost: making.snapshot_of(&record).is_none(),
            snapshot: format!("{volume}@{}", record.name),
            id: record.id,
            created_ms: record.created_ms,
            bytes: record.bytes,
        };
        Ok(making.records()?.into_iter().map(show).collect())
    }

    /// Forgets the dumps of a level and of all higher ones, and lets go of their snapshots.
    pub(crate) fn forget_level(&self, volume: &str, level: u8) -> Result<(), ServerError> {
        let open = self.volumes.get(volume)?;
        let _turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let mut document = making.document()?;
        let before = document.dumps.len();
        document.dumps.retain(|record| record.level < level);
        if document.dumps.len() == before {
            let (what, name) = ("image dump of level", format!("{level} or higher of {volume}"));
            return Err(ServerError::NotFound { what, name, list: "cairn image levels VOLUME" });
        }
        making.save(&document)?;
        making.let_go(&document)
    }

    /// What a dump would be; nothing is written. Without a named snapshot one is made for the count, and deleted again.
    pub(crate) fn plan_dump(
        &self,
        volume: &str,
        request: &api::DumpRequest,
    ) -> Result<api::DumpPlan, ServerError> {
        let open = self.volumes.get(volume)?;
        let _turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let against = making.against(request)?;
        let id = DumpId(random_bytes());
        let (target, own) = making.target(request, &against, &id.to_string())?;
        let failed = ServerError::volume(volume);
        let counted = (|| {
            if own {
                // A server that is killed meanwhile leaves it to the next dump.
                open.volume.hold_snapshot(target.id, true).map_err(&failed)?;
            }
            let base = against.base.as_ref().map(|(id, _)| *id);
            let plan = Plan::against(&open.volume, base, target.id).map_err(DumpError::from)?;
            let full = match base {
                None => plan.blocks(),
                Some(_) => Plan::against(&open.volume, None, target.id).map_err(DumpError::from)?.blocks(),
            };
            let label = label(id, against.level, volume, self);
            let dump = Dump::new(&plan, label, request.parts.unwrap_or(1).min(PARTS_MAX));
            let snapshots = open.volume.snapshots().iter().filter(|known| known.id <= target.id).count();
            Ok(api::DumpPlan {
                volume: volume.to_owned(),
                level: against.level.to_string(),
                base: against.base.as_ref().map(|(_, name)| format!("{volume}@{name}")),
                snapshots: snapshots as u64,
                data_bytes: dump.blocks() * BLOCK,
                bytes: dump.bytes(),
                full_data_bytes: full * BLOCK,
            })
        })();
        if own {
            making.take_back(target.id)?;
        }
        counted
    }

    /// Begins to write a dump into the files of the ticket, a part into each, or goes on with the unfinished one.
    pub(crate) fn dump(&self, volume: &str, request: &api::DumpRequest) -> Result<api::Job, ServerError> {
        let ticket = request.ticket.as_deref().unwrap_or_default();
        let handed = self.handover.take(ticket)?;
        let open = self.volumes.get(volume)?;
        let turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let unfinished = making.document()?.unfinished;
        let name = || volume.to_owned();
        let against = match (&unfinished, request.resume, request.anew) {
            (_, true, true) => {
                let rule = "a dump goes on or begins anew, not both";
                return Err(ServerError::Invalid { what: "the dump", rule });
            }
            (None, true, _) => {
                return Err(ServerError::Resume(ResumeError::NoUnfinishedDump { volume: name() }));
            }
            (Some(unfinished), true, _) => {
                goes_on_in(unfinished, request, &handed)?;
                None
            }
            (Some(unfinished), false, false) => {
                let snapshot = unfinished.target.name.clone();
                return Err(ServerError::Resume(ResumeError::DumpUnfinished { volume: name(), snapshot }));
            }
            _ => Some(making.against(request)?),
        };
        let (Making { groups, path, .. }, request, clock) = (making, request.clone(), self.clock.clone());
        self.jobs.start("image dump", volume, move |progress| {
            background::step_back();
            let _turn = turn;
            let task = Task {
                making: Making { groups, open: &open, path },
                request: &request,
                handed: &handed,
                clock,
                progress,
            };
            let result = match against {
                None => task.resume()?,
                Some(against) => task.begin(&against)?,
            };
            Ok(Some(api::JobOutcome::Dump(result)))
        })
    }

    /// Begins to restore the files of the ticket into a new volume, or goes on with the unfinished restore of it.
    pub(crate) fn restore(&self, request: &api::RestoreRequest) -> Result<api::Job, ServerError> {
        names::check("volume", &request.name)?;
        let handed = self.handover.take(&request.ticket)?;
        let size = request.size_bytes.map(blocks_of).transpose()?;
        if request.resume && (request.anew || size.is_some() || !request.devices.is_empty()) {
            let rule = "one that goes on has its size and its devices, and does not begin anew";
            return Err(ServerError::Invalid { what: "the restore", rule });
        }
        if !request.resume && !request.anew {
            self.volumes.refuse_if_restored(&request.name)?;
        }
        let (volumes, request, clock) = (self.volumes.clone(), request.clone(), self.clock.clone());
        self.jobs.start("image restore", &request.name.clone(), move |progress| {
            let restoring = Restoring { volumes: &volumes, request: &request, clock, progress };
            Ok(Some(api::JobOutcome::Restore(restoring.run(handed, size)?)))
        })
    }

    /// The restores that can be gone on with.
    pub(crate) fn unfinished_restores(&self) -> Vec<api::UnfinishedRestore> {
        // One whose notes can't be read can be given up still.
        let show = |name: String| self.volumes.restore_notes(&name).unwrap_or_default().show(name);
        self.volumes.unfinished_restores().into_iter().map(show).collect()
    }
}

fn label(id: DumpId, level: DumpLevel, volume: &str, server: &Server) -> DumpLabel {
    DumpLabel { id, level, name: volume.to_owned(), created: server.clock.now() }
}

impl Document {
    /// A dump is whole: it is the last one of its level now.
    fn note(&mut self, dump: Record) {
        self.dumps.retain(|record| record.level < dump.level);
        self.dumps.push(dump);
    }
}

/// A dump goes on in files, and in as many as before.
fn goes_on_in(
    unfinished: &Unfinished,
    request: &api::DumpRequest,
    handed: &Handed,
) -> Result<(), ServerError> {
    let rule = if !lasts(request, handed) {
        "a dump goes on in files that are named; what went through a pipe or to a device is not there to be looked at"
    } else if handed.files.len() != unfinished.parts() {
        "a dump goes on in as many files as it was begun with"
    } else {
        return Ok(());
    };
    Err(ServerError::Invalid { what: "the files", rule })
}

/// A dump that is made or gone on with, on the thread of its job.
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
        // What comes without names is the client's standard output: what is in that is somebody's, and the dump goes behind it.
        let named = are_named(self.request, self.handed);
        for file in self.handed.files.iter().filter(|file| named && unfinished::is_file(file)) {
            // What is in it is of a dump that is given up, now and not before.
            file.set_len(0).map_err(|error| DumpError::from(StreamError::from(error)))?;
        }
        let id = DumpId(random_bytes());
        let (target, own) = making.target(self.request, against, &id.to_string())?;
        let lasts = lasts(self.request, self.handed);
        // What a killed server leaves is told from an owner's by the hold.
        let begun = match own {
            true => open.volume.hold_snapshot(target.id, true).map_err(ServerError::volume(&open.name)),
            false => Ok(()),
        };
        let outcome = begun.and_then(|()| match lasts {
            true => making.begin((id, against), (&target, own), self.request, self.handed).map(Some),
            false => Ok(None),
        });
        let outcome = match outcome {
            // From here on what was made for it stays.
            Ok(Some(document)) => return self.write_to_last(document, against, &target),
            Ok(None) => self.write_through(id, against, &target, own),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            making.release();
        }
        if own && (outcome.is_err() || self.handed.keep_nothing()) {
            // What was made for a dump that is not there is of no use.
            let _ = making.take_back(target.id);
        }
        outcome
    }

    /// The unfinished one goes on.
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
            && let Some(known) = unfinished::Known::of(self.making.open, target.id)
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
            });
            self.making.save(&document)?;
            self.making.let_go_after_all(&document);
        }
        Ok(result)
    }

    /// Into files. Whatever ends it, it can be gone on with.
    fn write_to_last(
        &self,
        document: Document,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let volume = &self.making.open.name;
        let outcome = self.write_files(document, against, target);
        // A whole one waits as well: for its client, which may be gone.
        self.making.cut(target);
        outcome.map_err(|error| {
            // Where a file is another one, or the snapshots are, the same again comes to the same.
            let again = match &error {
                ServerError::DumpSourceGone { .. } => false,
                ServerError::Dump { source } => matches!(**source, DumpError::Stream(_)),
                _ => true,
            };
            match again {
                true => ServerError::DumpCut { volume: volume.clone(), source: Box::new(error) },
                false => error,
            }
        })
    }

    fn write_files(
        &self,
        document: Document,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let unfinished = document.unfinished.as_ref().ok_or(ServerError::Bug)?;
        let (id, compression) = (unfinished.dump_id()?, unfinished.compression());
        let mut plan = self.plan(against, target)?;
        if let Some(table) = self.begun_table(id)? {
            plan = plan.with_table(table).map_err(|error| match error {
                StreamError::Diverged { snapshot } => ServerError::DumpSourceGone {
                    volume: self.making.open.name.clone(),
                    snapshot: format!("snapshot {snapshot}"),
                },
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
    /// Where a dump that can be gone on with notes how far it is.
    ledger: Option<&'a Ledger>,
    handed: &'a Handed,
    progress: &'a Progress,
}

impl Job<'_> {
    fn write(&self, plan: &Plan, target: &Snapshot) -> Result<api::DumpResult, ServerError> {
        let (files, gone) = (&self.handed.files, &self.handed.gone);
        let version = self.ledger.map_or(DUMP_VERSION, Ledger::version);
        let dump = Dump::new(plan, self.label.clone(), files.len() as u32).in_version(version);
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

/// Says that the other parts are of no use any more, unless this one did not fail: by a panic it does as well.
struct EndsOthers<'a>(&'a AtomicBool);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something with each part on a thread of its own. When one fails, or has no thread, `gone` ends the others.
fn side_by_side<T: Send>(
    files: &[File],
    gone: &AtomicBool,
    run: impl Fn(usize, &File) -> Result<T, ServerError> + Sync,
) -> Result<Vec<T>, ServerError> {
    let run = |part: usize, file: &File| {
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
    // That a part was cancelled is said last: another one's failure is why.
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
    matches!(error, ServerError::Dump { source } if matches!(**source, DumpError::Stream(StreamError::Cancelled)))
}

/// The findings of a check of a volume that is not in service yet.
pub(crate) fn findings(
    volume: &Arc<Volume>,
    name: &str,
    depth: CheckDepth,
) -> Result<Vec<String>, ServerError> {
    let mut on = |_| std::ops::ControlFlow::Continue(());
    let report = volume.check_to(depth, &mut on).map_err(ServerError::volume(name))?;
    Ok(name_findings(volume, name, &report.findings))
}
