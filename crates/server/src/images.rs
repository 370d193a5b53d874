//! Image dumps: made of a volume into files that a client handed over, and restored from such files into a new volume.
//!
//! The last dump of each level stands in `VOLUME/dumps.json`. The snapshot that a dump made for itself is held as long as a dump of a
//! higher level may be made against it: until the next dump of its level or a lower one. A dump of a snapshot that its owner named holds nothing.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_files::Luns;
use cairn_format::dump::{DumpId, DumpLevel, PARTS_MAX};
use cairn_format::stream::root_digest;
use cairn_stream::{
    Compression, Dump, DumpBytes, DumpError, DumpLabel, PartReader, Plan, StreamError, Threads, Work,
};
use cairn_volume::{CheckDepth, Finding, Place, Snapshot, Volume};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::contents::find_snapshot;
use crate::error::ServerError;
use crate::handover::Handed;
use crate::jobs::Progress;
use crate::names;
use crate::server::Server;
use crate::state;
use crate::token::random_bytes;
use crate::transfer::Scoped;
use crate::volumes::{OpenVolume, Volumes, blocks_of};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// How the names of the snapshots that dumps make for themselves begin.
pub(crate) const DUMP_PREFIX: &str = "image.";
const HIGHEST_LEVEL: u8 = 9;

/// What `dumps.json` says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    dumps: Vec<Record>,
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

/// What a dump is made against, and at which level.
struct Against {
    level: DumpLevel,
    base: Option<(SnapshotId, String)>,
}

/// A dump of one volume: what is decided before anything is read.
struct Making<'a> {
    open: &'a Arc<OpenVolume>,
    path: PathBuf,
}

impl Making<'_> {
    fn records(&self) -> Result<Vec<Record>, ServerError> {
        Ok(state::load::<Document>(&self.path)?.unwrap_or_default().dumps)
    }

    fn save(&self, dumps: Vec<Record>) -> Result<(), ServerError> {
        state::save(&self.path, &Document { dumps })
    }

    /// The snapshot of a record, if it is still there and the same.
    fn snapshot_of(&self, record: &Record) -> Option<Snapshot> {
        let entries = self.open.volume.snapshot_entries();
        let entry = entries.iter().find(|entry| entry.id.0 == record.snapshot)?;
        (format!("{:?}", root_digest(entry)) == record.root).then(|| Snapshot::from(entry))
    }

    fn against(&self, request: &api::DumpRequest) -> Result<Against, ServerError> {
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
        level: DumpLevel,
        id: &str,
    ) -> Result<(Snapshot, bool), ServerError> {
        if let Some(name) = &request.snapshot {
            return Ok((find_snapshot(self.open, name)?, false));
        }
        if self.open.is_destination() {
            let shown = self.open.volume.status().cursor.snapshot;
            let none = || ServerError::NoImage { volume: self.open.name.clone() };
            return Ok((self.open.volume.snapshot(shown).ok_or_else(none)?, false));
        }
        let failed = ServerError::volume(&self.open.name);
        let name = format!("{DUMP_PREFIX}{level}.{}", &id[..8]);
        let make = || self.open.volume.create_snapshot(&name);
        Ok((self.open.snapshot_with(make)?.map_err(failed)?, true))
    }

    /// Lets go of snapshots that dumps made for themselves and that are of no more use: those not in `records`.
    fn let_go(&self, records: &[Record]) -> Result<(), ServerError> {
        if self.open.is_destination() {
            return Ok(());
        }
        let failed = ServerError::volume(&self.open.name);
        let kept: HashSet<u64> = records.iter().map(|record| record.snapshot).collect();
        for snapshot in self.open.volume.snapshots() {
            let own = snapshot.held && is_of_a_dump(&snapshot.name);
            if own && !kept.contains(&snapshot.id.0) {
                self.open.volume.hold_snapshot(snapshot.id, false).map_err(&failed)?;
                self.open.volume.delete_snapshots(&[snapshot.id]).map_err(&failed)?;
            }
        }
        Ok(())
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
        Making { open, path: self.volumes.folder(&open.name).join("dumps.json") }
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
        let mut records = making.records()?;
        let before = records.len();
        records.retain(|record| record.level < level);
        if records.len() == before {
            let (what, name) = ("image dump of level", format!("{level} or higher of {volume}"));
            return Err(ServerError::NotFound { what, name, list: "cairn image levels VOLUME" });
        }
        making.save(records.clone())?;
        making.let_go(&records)
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
        let (target, own) = making.target(request, against.level, &id.to_string())?;
        let failed = ServerError::volume(volume);
        let counted = (|| {
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
            open.volume.delete_snapshots(&[target.id]).map_err(failed)?;
        }
        counted
    }

    /// Begins to write a dump into the files of the ticket, a part into each.
    pub(crate) fn dump(&self, volume: &str, request: &api::DumpRequest) -> Result<api::Job, ServerError> {
        let ticket = request.ticket.as_deref().unwrap_or_default();
        let handed = self.handover.take(ticket)?;
        let open = self.volumes.get(volume)?;
        let turn = self.dumping.take(volume)?;
        let path = self.making(&open).path;
        let against = self.making(&open).against(request)?;
        let mut label = label(DumpId(random_bytes()), against.level, volume, self);
        let request = request.clone();
        self.jobs.start("image dump", volume, move |progress| {
            let _turn = turn;
            let making = Making { open: &open, path };
            progress.phase("making a snapshot");
            making.let_go(&making.records()?)?;
            let (target, own) = making.target(&request, against.level, &label.id.to_string())?;
            label.created = target.created;
            let recorded = matches!(against.level, DumpLevel::Level(_));
            let failed = ServerError::volume(&open.name);
            if own && recorded {
                open.volume.hold_snapshot(target.id, true).map_err(&failed)?;
            }
            let job = Job { open: &open, request: &request, against: &against, label: &label, progress };
            let outcome = job.write(&target, handed).and_then(|result| {
                if recorded {
                    making.note(&against, &target, own, &result)?;
                }
                Ok(result)
            });
            if outcome.is_err() && own {
                // What was made for a dump that is not there is of no use.
                let _ = open.volume.hold_snapshot(target.id, false);
                let _ = open.volume.delete_snapshots(&[target.id]);
            }
            outcome.map(|result| Some(api::JobOutcome::Dump(result)))
        })
    }

    /// Begins to restore the files of the ticket into a new volume.
    pub(crate) fn restore(&self, request: &api::RestoreRequest) -> Result<api::Job, ServerError> {
        names::check("volume", &request.name)?;
        let handed = self.handover.take(&request.ticket)?;
        let size = request.size_bytes.map(blocks_of).transpose()?;
        let (volumes, request, now) = (self.volumes.clone(), request.clone(), self.clock.now());
        self.jobs.start("image restore", &request.name.clone(), move |progress| {
            let restored =
                Restoring { volumes: &volumes, request: &request, progress }.run(handed, size, now)?;
            Ok(Some(api::JobOutcome::Restore(restored)))
        })
    }
}

fn label(id: DumpId, level: DumpLevel, volume: &str, server: &Server) -> DumpLabel {
    DumpLabel { id, level, name: volume.to_owned(), created: server.clock.now() }
}

impl Making<'_> {
    /// A dump is whole: it is the last one of its level now.
    fn note(
        &self,
        against: &Against,
        target: &Snapshot,
        own: bool,
        result: &api::DumpResult,
    ) -> Result<(), ServerError> {
        let DumpLevel::Level(level) = against.level else { return Ok(()) };
        let entries = self.open.volume.snapshot_entries();
        let Some(entry) = entries.iter().find(|entry| entry.id == target.id) else { return Ok(()) };
        let mut records = self.records()?;
        records.retain(|record| record.level < level);
        records.push(Record {
            level,
            id: result.id.clone(),
            snapshot: target.id.0,
            name: target.name.clone(),
            root: format!("{:?}", root_digest(entry)),
            created_ms: target.created.0 / 1_000_000,
            bytes: result.bytes,
            own,
        });
        self.save(records.clone())?;
        self.let_go(&records)
    }
}

/// The writing of a dump.
struct Job<'a> {
    open: &'a Arc<OpenVolume>,
    request: &'a api::DumpRequest,
    against: &'a Against,
    label: &'a DumpLabel,
    progress: &'a Progress,
}

impl Job<'_> {
    fn write(&self, target: &Snapshot, handed: Handed) -> Result<api::DumpResult, ServerError> {
        self.progress.phase("comparing maps");
        let base = self.against.base.as_ref().map(|(id, _)| *id);
        let plan = Plan::against(&self.open.volume, base, target.id).map_err(DumpError::from)?;
        let dump = Dump::new(&plan, self.label.clone(), handed.files.len() as u32);
        let compression = if self.request.compress { Compression::Zstd } else { Compression::None };
        self.progress.phase("dumping");
        let total = dump.blocks() * BLOCK;
        self.progress.bytes(0, total);
        let done = AtomicU64::new(0);
        let write = |part: usize, mut file: &File| -> Result<u64, ServerError> {
            let mut before = 0;
            let mut tell = |at: cairn_stream::Progress| {
                let now = done.fetch_add((at.blocks - before) * BLOCK, Ordering::Relaxed)
                    + (at.blocks - before) * BLOCK;
                before = at.blocks;
                self.progress.bytes(now, total);
                if self.progress.cancelled().load(Ordering::Relaxed) {
                    handed.gone.store(true, Ordering::Relaxed);
                }
            };
            let threads = Some(&Scoped as &dyn Threads);
            let mut work = Work { cancel: &handed.gone, progress: &mut tell, threads };
            let written = dump.write_part(part as u32, &mut file, compression, &mut work);
            if written.is_err() {
                // The other parts are of no use any more.
                handed.gone.store(true, Ordering::Relaxed);
            }
            let produced = written.map_err(DumpError::from)?;
            // A pipe has nothing to make durable.
            if file.metadata().is_ok_and(|kind| kind.is_file()) {
                file.sync_all().map_err(|error| DumpError::from(StreamError::from(error)))?;
            }
            Ok(produced.bytes)
        };
        let written: Vec<Result<u64, ServerError>> = std::thread::scope(|scope| {
            let write = &write;
            let parts: Vec<_> = (handed.files.iter().enumerate())
                .map(|(part, file)| scope.spawn(move || write(part, file)))
                .collect();
            parts.into_iter().map(|part| part.join().unwrap_or(Err(ServerError::Bug))).collect()
        });
        // That a part was cancelled is said last: another one's failure is why.
        let (mut bytes, mut why) = (0, None);
        for part in written {
            match part {
                Ok(part) => bytes += part,
                Err(error) if why.is_none() || !is_cancelled(&error) => why = Some(error),
                Err(_) => {}
            }
        }
        if let Some(error) = why {
            return Err(error);
        }
        let volume = &self.open.name;
        Ok(api::DumpResult {
            volume: volume.clone(),
            snapshot: format!("{volume}@{}", target.name),
            level: self.against.level.to_string(),
            base: self.against.base.as_ref().map(|(_, name)| format!("{volume}@{name}")),
            id: self.label.id.to_string(),
            parts: handed.files.len() as u64,
            snapshots: plan.snapshots() as u64,
            data_bytes: total,
            bytes,
        })
    }
}

fn is_cancelled(error: &ServerError) -> bool {
    matches!(error, ServerError::Dump { source } if matches!(**source, DumpError::Stream(StreamError::Cancelled)))
}

/// The restoring of a dump.
struct Restoring<'a> {
    volumes: &'a Volumes,
    request: &'a api::RestoreRequest,
    progress: &'a Progress,
}

impl Restoring<'_> {
    fn run(
        &self,
        handed: Handed,
        size: Option<u64>,
        now: cairn_base::Timestamp,
    ) -> Result<api::RestoreResult, ServerError> {
        self.progress.phase("reading heads");
        let mut readers = Vec::new();
        for (number, file) in handed.files.into_iter().enumerate() {
            let name = self.request.files.get(number).map_or("a file", String::as_str);
            let anywhere = file.metadata().is_ok_and(|kind| kind.is_file());
            readers.push(match anywhere {
                true => PartReader::open_file(name, &(Arc::new(file) as Arc<dyn DumpBytes>))?,
                false => PartReader::open(name, Box::new(file))?,
            });
        }
        let dumps = cairn_stream::arrange(readers, false)?;
        let parts = || dumps.iter().flatten();
        let need = parts().map(|part| part.head().stream.space_blocks).max().unwrap_or(0);
        let id = parts().next().map(|part| part.head().dump.volume).unwrap_or_default();
        let blocks = size.unwrap_or(need);
        if blocks < need {
            return Err(DumpError::from(StreamError::TooSmall { need, have: blocks }).into());
        }
        let unfinished = self.volumes.begin_restore(&self.request.name, blocks, &self.request.devices)?;
        self.progress.phase("restoring");
        let mut tell = |at: cairn_stream::Progress| {
            self.progress.bytes(at.blocks * BLOCK, at.blocks_total * BLOCK);
            if self.progress.cancelled().load(Ordering::Relaxed) {
                handed.gone.store(true, Ordering::Relaxed);
            }
        };
        let threads = Some(&Scoped as &dyn Threads);
        let mut work = Work { cancel: &handed.gone, progress: &mut tell, threads };
        let device = unfinished.device();
        let accept = self.request.accept_damage;
        let restored = cairn_stream::restore(dumps, &*device, blocks, accept, now, &mut work)?;
        debug_assert_eq!(restored.head.dump.volume, id);
        self.progress.phase("checking trees and maps");
        // What is known to be missing is looked for in the data as well, so that it can be named.
        let lost: Vec<String> = (restored.lost.iter())
            .filter(|(_, lost)| !lost.spare)
            .map(|(file, lost)| format!("{file}: {lost}"))
            .collect();
        let depth = if lost.is_empty() { CheckDepth::Structures } else { CheckDepth::Everything };
        let findings = unfinished.check(depth, device)?;
        if let (false, Some(first)) = (accept, findings.first()) {
            return Err(ServerError::RestoredDamaged {
                volume: self.request.name.clone(),
                finding: first.clone(),
            });
        }
        let open = unfinished.finish()?;
        tracing::info!(
            volume = open.name,
            from = restored.head.dump.name,
            "restored a volume from an image dump"
        );
        Ok(api::RestoreResult {
            volume: open.name.clone(),
            dumped_from: restored.head.dump.name,
            snapshot: format!("{}@{}", open.name, restored.target),
            snapshots: restored.snapshots,
            data_bytes: restored.blocks * BLOCK,
            bytes: restored.bytes,
            lost,
            findings,
        })
    }
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

/// Findings with the LUN and the snapshot that they concern, as far as these have names in `volume`.
pub fn name_findings(volume: &Arc<Volume>, name: &str, findings: &[Finding]) -> Vec<String> {
    let luns = Luns::new(volume.clone());
    let lun_of = |finding: &Finding| {
        let Finding::DamagedBlock { place, snapshot, .. } = finding else { return None };
        let file = match place {
            Place::Data { file, .. } => *file,
            Place::Node(node) => node.file,
            Place::Unknown => return None,
        };
        let image = volume.image(Some(*snapshot).filter(|id| id.0 != 0)).ok()?;
        luns.list_in(&image).ok()?.into_iter().find(|lun| lun.file == file).map(|lun| lun.name)
    };
    let describe = |finding: &Finding| {
        let lun = lun_of(finding).map(|lun| format!(" ({name}/{lun})")).unwrap_or_default();
        let snapshot = finding.snapshot().and_then(|id| volume.snapshot(id));
        let snapshot = snapshot.map(|snapshot| format!(" [{name}@{}]", snapshot.name)).unwrap_or_default();
        format!("{finding}{lun}{snapshot}")
    };
    findings.iter().map(describe).collect()
}
