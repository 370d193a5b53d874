//! Commands on dumps of files: the methods of the server for them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_api as api;
use cairn_files::{kept_path, path_bytes, path_text, quoted_path};

use crate::daemon::server::Server;
use crate::dumps::error::DumpsError;
use crate::dumps::files::source::TreeSource;
use crate::dumps::files::{
    DATES, FileDumpsDocument, Frozen, HIGHEST_LEVEL, Making, Noted, Record, from_root, globs, past, seconds,
    why_all,
};
use crate::dumps::images::NOT_COUNTED;
use crate::error::ServerError;
use crate::exports::quotas::asked_path;
use crate::state;

impl Server {
    pub(super) fn dates_path(&self, volume: &str) -> PathBuf {
        self.volumes.folder(volume).join(DATES)
    }

    fn dates(&self, volume: &str) -> Result<Vec<Record>, ServerError> {
        Ok(state::load::<FileDumpsDocument>(&self.dates_path(volume))?.unwrap_or_default().dates)
    }

    /// The last BSD dump of each path and level.
    pub(crate) fn dump_dates(&self, volume: &str) -> Result<Vec<api::FileDumpRecord>, ServerError> {
        self.volumes.get(volume)?;
        let show = |record: Record| api::FileDumpRecord {
            path: path_text(&from_root(&record.path)),
            path_bytes: path_bytes(&from_root(&record.path)),
            level: record.level,
            date_ms: u64::from(record.date) * 1000,
            snapshot: format!("{volume}@{}", record.snapshot),
            bytes: record.bytes,
        };
        Ok(self.dates(volume)?.into_iter().map(show).collect())
    }

    fn dump_of(&self, volume: &str, request: &api::FileDumpRequest) -> Result<Making, ServerError> {
        let open = self.volumes.get(volume)?;
        let level = request.level.unwrap_or(0);
        if level > HIGHEST_LEVEL {
            return Err(ServerError::Invalid {
                fault: "the level is not between 0 and 9",
                next: "give a level from 0 to 9",
            });
        }
        let asked = asked_path(&request.path, request.path_bytes.as_deref())?;
        let names = asked.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let names: Vec<&[u8]> = names.collect();
        if names.contains(&&b".."[..]) {
            return Err(ServerError::Invalid {
                fault: "the path contains `..`",
                next: "give a path from the root of the volume, without `..`",
            });
        }
        let path = kept_path(&names.join(&b'/'));
        let dates = self.dates(volume)?;
        let lower = dates.iter().filter(|record| record.path == path && record.level < level);
        let base = lower.max_by_key(|record| record.date).cloned();
        let since = match (level, &base) {
            (0, _) => 0,
            (_, Some(base)) => base.date,
            (level, None) => {
                let shown = || format!("{volume}:{}", quoted_path(&from_root(&path)));
                let name = if path.is_empty() { volume.to_owned() } else { shown() };
                return Err(ServerError::Dumps(DumpsError::NoEarlierDump { name, level }));
            }
        };
        let exclude = globs(&request.exclude)?;
        let snapshot = request.snapshot.clone();
        let (folder, host) = (self.volumes.folder(volume), crate::names::host());
        let (volume_records, confirmed) = (request.volume_records, request.confirmed);
        Ok(Making {
            groups: self.groups.clone(),
            open,
            path,
            level,
            since,
            base,
            folder,
            exclude,
            snapshot,
            host,
            volume_records,
            confirmed,
        })
    }

    /// The content that a dump would have. Nothing is written.
    pub(crate) fn plan_file_dump(
        &self,
        volume: &str,
        request: &api::FileDumpRequest,
    ) -> Result<api::FileDumpPlan, ServerError> {
        let making = self.dump_of(volume, request)?;
        self.clear_left_dumps_of(&making.open);
        let frozen = making.freeze()?;
        let known = making.known(&frozen);
        let why_all = why_all(&known);
        let planned = making.plan(known, &TreeSource::new(frozen.tree.clone()), &frozen, &mut |_| true);
        frozen.let_go();
        let planned = planned?.0.planned();
        Ok(api::FileDumpPlan {
            level: making.level,
            since_ms: (making.since > 0).then(|| u64::from(making.since) * 1000),
            inodes: planned.inodes,
            directories: planned.directories,
            data_bytes: planned.bytes,
            why_all,
        })
    }

    /// Begins to write a dump into the file of the ticket.
    pub(crate) fn file_dump(
        self: &Arc<Self>,
        volume: &str,
        request: &api::FileDumpRequest,
    ) -> Result<api::Job, ServerError> {
        let making = self.dump_of(volume, request)?;
        let mut handed = self.handover.take(request.ticket.as_deref().unwrap_or_default())?;
        let server = self.clone();
        self.jobs.start("file dump", volume, move |progress| {
            progress.phase("making a snapshot");
            server.clear_left_dumps_of(&making.open);
            let keeps_nothing = handed.keep_nothing();
            if keeps_nothing {
                progress.note(NOT_COUNTED.to_owned());
            }
            let frozen = making.freeze()?;
            let outcome = making.write(&frozen, &mut handed, progress);
            let noted = outcome.and_then(|(result, noted)| {
                if !keeps_nothing && !server.note_date(&making, &frozen, &result, noted)? {
                    let what = "the volume was rolled back, or brought back to an instant, while it was dumped: no dump of a higher level can be made on top of this one";
                    progress.note(what.to_owned());
                }
                Ok(result)
            });
            frozen.let_go();
            Ok(Some(api::JobOutcome::FileDump(noted?)))
        })
    }

    /// A dump is complete: it is the last one of its level now, and those of higher levels have
    /// lost their base. False if no later one can be based on it.
    fn note_date(
        &self,
        making: &Making,
        frozen: &Frozen,
        result: &api::FileDumpResult,
        noted: Noted,
    ) -> Result<bool, ServerError> {
        let snapshot = &frozen.snapshot;
        let _turn = making.open.dates.lock();
        // A rollback or restore of the volume in the meantime has removed the dates of younger
        // states.
        let is_given_up = u64::from(seconds(snapshot)) >= making.open.brought_back_to.load(Ordering::Acquire);
        if is_given_up || frozen.own.is_some() && past::is_past(&making.open, snapshot) {
            return Ok(false);
        }
        let record = Record {
            path: making.path.clone(),
            level: making.level,
            date: seconds(snapshot),
            snapshot: snapshot.name.clone(),
            bytes: result.bytes,
            is_part: making.exclude.is_some() || noted.had.is_some(),
        };
        making.keep_catalog(frozen, noted.catalog);
        making.keep_had(&record, noted.had);
        let path = self.dates_path(&making.open.name);
        let mut document: FileDumpsDocument = state::load(&path)?.unwrap_or_default();
        let dates = &mut document.dates;
        dates.retain(|record| record.path != making.path || record.level < making.level);
        dates.push(record);
        state::save(&path, &document)?;
        Ok(true)
    }
}
