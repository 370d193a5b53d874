//! Commands on image dumps and restores: the methods of the server for them.

use std::sync::Arc;

use cairn_api::{self as api, ResumeError};
use cairn_format::dump::{DumpId, DumpLevel, PARTS_MAX};
use cairn_stream::{Dump, DumpError, DumpLabel, Plan};

use crate::daemon::server::Server;
use crate::dumps::error::DumpsError;
use crate::dumps::handover::Handed;
use crate::dumps::images::bucket::commands::cost_of;
use crate::dumps::images::bucket::{Chain, Wanted};
use crate::dumps::images::document::Record;
use crate::dumps::images::restoring::Restoring;
use crate::dumps::images::{BLOCK, Making, Task, goes_on_in};
use crate::error::ServerError;
use crate::names;
use crate::peers::token::random_bytes;
use crate::volumes::disks::blocks_of;
use crate::volumes::open::OpenVolume;
use crate::work::background;

impl Server {
    pub(super) fn making<'a>(&self, open: &'a Arc<OpenVolume>) -> Making<'a> {
        Making { groups: self.groups.clone(), open, path: self.volumes.folder(&open.name).join("dumps.json") }
    }

    /// The last dump of each level.
    pub(crate) fn dump_levels(&self, volume: &str) -> Result<Vec<api::DumpRecord>, ServerError> {
        let open = self.volumes.get(volume)?;
        let making = self.making(&open);
        let show = |record: Record| api::DumpRecord {
            level: record.level,
            bucket: record.bucket.clone(),
            lost: making.snapshot_of(&record).is_none(),
            snapshot: format!("{volume}@{}", record.name),
            id: record.id,
            created_ms: record.created_ms,
            bytes: record.bytes,
        };
        Ok(making.records()?.into_iter().map(show).collect())
    }

    /// Forgets the dumps of a level and of all higher ones, and releases their snapshots.
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

    /// The plan of a dump; nothing is written. Without a named snapshot one is made for the count,
    /// and deleted again.
    pub(crate) fn plan_dump(
        &self,
        volume: &str,
        request: &api::DumpRequest,
    ) -> Result<api::DumpPlan, ServerError> {
        let open = self.volumes.get(volume)?;
        let _turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let against = match &request.bucket {
            Some(bucket) => self.plan_in_bucket(&making, request, bucket)?,
            None => making.against(request)?,
        };
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
                cost: request.bucket.as_ref().map(|bucket| {
                    let name = bucket.split(':').next().unwrap_or_default();
                    let (on_another, locked) = (base.is_some(), request.lock_ms.is_some());
                    let of = (dump.bytes(), dump.parts());
                    cost_of(of, (on_another, locked), self.buckets.is_encrypted(name))
                }),
            })
        })();
        if own {
            making.take_back(target.id)?;
        }
        counted
    }

    /// Begins to write a dump into the files of the ticket, a part into each, or resumes the
    /// unfinished one.
    pub(crate) fn dump(&self, volume: &str, request: &api::DumpRequest) -> Result<api::Job, ServerError> {
        let resumes = request.ticket.is_none() && request.resume && self.resumes_in_bucket(volume)?;
        if request.bucket.is_some() || resumes {
            return self.dump_into_bucket(volume, request);
        }
        if request.lock_ms.is_some() {
            return Err(ServerError::Invalid {
                fault: "only a dump in a bucket can be locked",
                next: "leave out --lock, or name a bucket: `cairn image dump VOLUME BUCKET:`",
            });
        }
        let ticket = request.ticket.as_deref().unwrap_or_default();
        let handed = self.handover.take(ticket)?;
        let open = self.volumes.get(volume)?;
        let turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let unfinished = making.document()?.unfinished;
        let name = || volume.to_owned();
        let against = match (&unfinished, request.resume, request.anew) {
            (_, true, true) => {
                let fault = "a dump either resumes or starts anew, not both";
                return Err(ServerError::Invalid { fault, next: "give --resume or --anew" });
            }
            (None, true, _) => {
                return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedDump {
                    volume: name(),
                })));
            }
            (Some(unfinished), true, _) => {
                goes_on_in(unfinished, request, &handed)?;
                None
            }
            (Some(unfinished), false, false) => {
                let snapshot = unfinished.target.name.clone();
                return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::DumpUnfinished {
                    volume: name(),
                    snapshot,
                })));
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

    /// Begins to restore the files of the ticket into a new volume, or resumes the unfinished
    /// restore of it.
    pub(crate) fn restore(&self, request: &api::RestoreRequest) -> Result<api::Job, ServerError> {
        names::check("volume", &request.name)?;
        let wanted = request.bucket.as_deref().map(Wanted::parse).transpose()?;
        let handed = match &wanted {
            Some(_) => Handed::nothing(),
            None => self.handover.take(&request.ticket)?,
        };
        let size = request.size_bytes.map(blocks_of).transpose()?;
        if request.resume && (request.anew || size.is_some() || !request.devices.is_empty()) {
            let fault = "a resumed restore has its size and its devices already, and does not start anew";
            let next = "leave out --resume, or else --size, --device and --anew";
            return Err(ServerError::Invalid { fault, next });
        }
        if !request.resume && !request.anew {
            self.volumes.refuse_if_restored(&request.name)?;
        }
        let (volumes, request, clock) = (self.volumes.clone(), request.clone(), self.clock.clone());
        let from = match wanted {
            Some(wanted) => {
                let open =
                    self.buckets.open_for(&wanted.place.bucket, "image restore", &Default::default())?;
                Some((wanted, open, self.buckets.clone()))
            }
            None => None,
        };
        self.jobs.start("image restore", &request.name.clone(), move |progress| {
            let mut request = request;
            if let Some((wanted, ready, buckets)) = from {
                let open = buckets.open_for(&wanted.place.bucket, "image restore", progress.waiting())?;
                drop(ready);
                progress.phase("listing the bucket");
                let chain = Chain::find(&wanted, &open, progress.cancel_flag())?;
                request.files = vec![chain.name()];
                progress.phase("reading heads");
                let readers = chain.readers(progress.cancel_flag())?;
                let restoring = Restoring { volumes: &volumes, request: &request, clock, progress };
                let outcome = restoring.run_on(readers, progress.cancel_flag(), size)?;
                return Ok(Some(api::JobOutcome::Restore(outcome)));
            }
            let restoring = Restoring { volumes: &volumes, request: &request, clock, progress };
            Ok(Some(api::JobOutcome::Restore(restoring.run(handed, size)?)))
        })
    }

    /// The restores that can be resumed.
    pub(crate) fn unfinished_restores(&self) -> Vec<api::UnfinishedRestore> {
        // One with unreadable notes can still be given up.
        let show = |name: String| self.volumes.restore_notes(&name).unwrap_or_default().show(name);
        self.volumes.unfinished_restores().into_iter().map(show).collect()
    }
}

fn label(id: DumpId, level: DumpLevel, volume: &str, server: &Server) -> DumpLabel {
    DumpLabel { id, level, name: volume.to_owned(), created: server.clock.now() }
}
