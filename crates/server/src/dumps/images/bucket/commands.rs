//! Commands on image dumps in buckets: the methods of the server for them.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_api::{self as api, ResumeError};
use cairn_bucket::dumps::{BucketDumps, Cost, DumpIndex, DumpsError as Trouble, KeepDumps, Listing, Prices};
use cairn_bucket::limits::GET_BYTES_MAX;
use cairn_bucket::{Name, Use};
use cairn_format::dump::DumpId;

use super::writing::{Writing, level_of};
use super::{Chain, Place, Wanted, store_failed};
use crate::daemon::server::Server;
use crate::dumps::error::DumpsError;
use crate::dumps::images::document::Unfinished;
use crate::dumps::images::{Against, BLOCK, Making};
use crate::error::ServerError;
use crate::state;
use crate::work::background;

/// The time after which the remains of an abandoned dump are removed from a bucket: its writer may
/// be another server.
const SWEEP_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

fn ms(at: cairn_base::Timestamp) -> u64 {
    at.0 / 1_000_000
}

impl Server {
    /// Begins to write a dump into a bucket, or resumes the unfinished one.
    pub(crate) fn dump_into_bucket(
        &self,
        volume: &str,
        request: &api::DumpRequest,
    ) -> Result<api::Job, ServerError> {
        let open = self.volumes.get(volume)?;
        let turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let unfinished = making.document()?.unfinished;
        let place = match (&unfinished, request.resume) {
            (_, true) if request.anew => {
                let fault = "a dump either resumes or starts anew, not both";
                return Err(ServerError::Invalid { fault, next: "give --resume or --anew" });
            }
            (Some(unfinished), true) => to_resume(unfinished, request)?,
            (None, true) => {
                return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedDump {
                    volume: volume.to_owned(),
                })));
            }
            (Some(unfinished), false) if !request.anew => {
                return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::DumpUnfinished {
                    volume: volume.to_owned(),
                    snapshot: unfinished.target.name.clone(),
                })));
            }
            _ => {
                level_of(request)?;
                Place::parse(request.bucket.as_deref().unwrap_or_default())?
            }
        };
        // A bucket that is not there or not safe is refused before there is a job.
        let quiet = parking_lot::Mutex::default();
        let ready = self.buckets.open_for(&place.bucket, "image dump", &std::sync::Arc::new(quiet))?;
        ready.refuse_unsafe_for(Use::Dump)?;
        if request.lock_ms.is_some() {
            ready.refuse_unsafe_for(Use::Lock)?;
        }
        let Making { groups, path, .. } = making;
        let (request, clock, buckets) = (request.clone(), self.clock.clone(), self.buckets.clone());
        self.jobs.start("image dump", volume, move |progress| {
            background::step_back();
            let _turn = turn;
            let bucket = buckets.open_for(&place.bucket, "image dump", progress.waiting())?;
            drop(ready);
            let dumps = place.dumps(&bucket)?;
            let making = Making { groups, open: &open, path };
            let writing = Writing { making, request: &request, place, dumps, clock, progress };
            let result = match request.resume {
                true => writing.resume()?,
                false => writing.begin()?,
            };
            Ok(Some(api::JobOutcome::Dump(result)))
        })
    }

    /// True if the destination of the volume's unfinished dump is a bucket.
    pub(crate) fn resumes_in_bucket(&self, volume: &str) -> Result<bool, ServerError> {
        let open = self.volumes.get(volume)?;
        let unfinished = self.making(&open).document()?.unfinished;
        Ok(unfinished.is_some_and(|unfinished| unfinished.bucket.is_some()))
    }

    /// Removes the objects of an abandoned dump from its bucket, best effort.
    pub(in crate::dumps::images) fn abandon_in_bucket(
        &self,
        volume: cairn_base::VolumeId,
        unfinished: &Unfinished,
    ) -> Result<(), ServerError> {
        let Some(bucket) = &unfinished.bucket else { return Ok(()) };
        let place = Place::parse(&bucket.to)?;
        let open = self.buckets.open_to_read(&place.bucket)?;
        let abandoned = place.dumps(&open)?.abandon(volume, unfinished.dump_id()?, &AtomicBool::new(false));
        abandoned.map(drop).map_err(|error| place.failed(error))
    }

    /// The level and the base of the next dump into a bucket.
    pub(in crate::dumps::images) fn plan_in_bucket(
        &self,
        making: &Making<'_>,
        request: &api::DumpRequest,
        bucket: &str,
    ) -> Result<Against, ServerError> {
        let (place, level) = (Place::parse(bucket)?, level_of(request)?);
        let open = self.buckets.open_to_read(&place.bucket)?;
        open.refuse_unsafe_for(Use::Dump)?;
        if request.lock_ms.is_some() {
            open.refuse_unsafe_for(Use::Lock)?;
        }
        let (dumps, cancel) = (place.dumps(&open)?, AtomicBool::new(false));
        let listing = dumps.list(Some(making.open.volume.id()), &cancel);
        let listing = listing.map_err(|error| place.failed(error))?;
        let base = making.base_in(level, &place, (&dumps, &listing.dumps), &cancel)?;
        let against = Against {
            level: cairn_format::dump::DumpLevel::Level(level),
            base: base.map(|base| (base.snapshot.id, base.snapshot.name)),
        };
        if let Some(name) = &request.snapshot {
            against.is_before(&crate::volumes::snapshots::find_snapshot(making.open, name)?)?;
        }
        Ok(against)
    }

    /// The dumps of a bucket that are meant.
    pub(crate) fn bucket_dumps(
        &self,
        bucket: &str,
        query: &api::BucketDumpsQuery,
    ) -> Result<api::BucketDumps, ServerError> {
        let wanted = Wanted::of(bucket, query.of.as_deref().unwrap_or_default())?;
        let open = self.buckets.open_to_read(bucket)?;
        let cancel = AtomicBool::new(false);
        if query.chain == Some(true) {
            let chain = Chain::find(&wanted, &open, &cancel)?;
            let shown = Shown { place: &wanted.place, dumps: &chain.dumps };
            let dumps = chain.indexes.iter().map(|index| shown.dump(index, None));
            let dumps = dumps.collect::<Result<_, _>>()?;
            return Ok(api::BucketDumps { dumps, ..api::BucketDumps::default() });
        }
        let dumps = wanted.place.dumps(&open)?;
        let failed = |error| wanted.place.failed(error);
        let Listing { dumps: indexes, unreadable, unfinished, .. } =
            dumps.list(None, &cancel).map_err(failed)?;
        let shown = Shown { place: &wanted.place, dumps: &dumps };
        let each = |index: &DumpIndex| {
            let locked =
                if open.locks() { dumps.locked_until(index, &cancel).map_err(failed)? } else { None };
            shown.dump(index, locked)
        };
        let volumes: HashSet<_> = wanted.all(&indexes).map(|index| index.volume).collect();
        let unfinished = unfinished.iter().filter(|one| wanted.is_all() || volumes.contains(&one.volume));
        let unfinished = unfinished.map(|one| api::BucketUnfinished {
            volume_id: one.volume.to_string(),
            id: one.dump.to_string(),
            newest_ms: ms(one.newest),
            bytes: one.bytes,
        });
        Ok(api::BucketDumps {
            dumps: wanted.all(&indexes).map(each).collect::<Result<_, _>>()?,
            unfinished: unfinished.collect(),
            unreadable: unreadable.iter().map(ToString::to_string).collect(),
        })
    }

    /// A range of an object of a dump.
    pub(crate) fn bucket_object(
        &self,
        bucket: &str,
        query: &api::BucketObjectQuery,
    ) -> Result<Vec<u8>, ServerError> {
        let wrong =
            |fault| ServerError::Invalid { fault, next: "use a client of the same version as the server" };
        let name = Name::new(&*query.name).map_err(|_| wrong("the name of an object is wrong"))?;
        // The bucket may hold other things than dumps.
        let is_of_dumps = name.as_str().split('/').any(|segment| segment == "dumps");
        if !is_of_dumps || query.length > GET_BYTES_MAX as u64 {
            return Err(wrong("only ranges of objects of dumps are read, of at most 64 MiB"));
        }
        let open = self.buckets.open_to_read(bucket)?;
        let cancel = AtomicBool::new(false);
        let bytes = open.store.get(&name, query.offset, query.length as usize, &cancel);
        Ok(bytes.map_err(|error| store_failed(bucket, error))?.to_vec())
    }

    /// Begins to delete dumps that no rule keeps.
    pub(crate) fn prune_bucket(
        &self,
        bucket: &str,
        request: api::PruneBucket,
    ) -> Result<api::Job, ServerError> {
        let place = Place::new(bucket, &request.path)?;
        let buckets = self.buckets.clone();
        let volumes = self.volumes.clone();
        let ready = buckets.open_for(bucket, "image prune", &Default::default())?;
        let (clock, groups) = (self.clock.clone(), self.groups.clone());
        let dumping = self.dumping.clone();
        let name = bucket.to_owned();
        self.jobs.start("image prune", bucket, move |progress| {
            let open = buckets.open_for(&name, "image prune", progress.waiting())?;
            drop(ready);
            progress.phase("listing the bucket");
            let (dumps, cancel) = (place.dumps(&open)?, progress.cancel_flag());
            let failed = |error| place.failed(error);
            let listing = dumps.list(None, cancel).map_err(failed)?;
            let wanted = Wanted { place: place.clone(), volume: request.volume.clone(), dump: None };
            let meant: HashSet<_> = wanted.all(&listing.dumps).map(|index| index.volume).collect();
            if let (Some(volume), true) = (&request.volume, meant.is_empty()) {
                return Err(ServerError::Dumps(DumpsError::NoDumpInBucket {
                    wanted: format!("{place}{volume}"),
                    place: place.to_string(),
                }));
            }
            let shown = Shown { place: &place, dumps: &dumps };
            let mut outcome = api::BucketPruned::default();
            progress.phase("deleting");
            for volume in meant {
                let of_volume = || listing.dumps.iter().filter(|index| index.volume == volume);
                let now = clock.now();
                let pruned = dumps.prune((volume, &keep_of(&request.keep)), request.dry_run, now, cancel);
                let pruned = pruned.map_err(failed)?;
                for index in &pruned.deleted {
                    let locked = match request.dry_run && open.locks() {
                        true => dumps.locked_until(index, cancel).map_err(failed)?,
                        false => None,
                    };
                    let held = locked.is_some_and(|until| until > now);
                    let list = if held { &mut outcome.locked } else { &mut outcome.deleted };
                    list.push(shown.dump(index, locked)?);
                }
                for (dump, until) in &pruned.locked {
                    if let Some(index) = of_volume().find(|index| index.dump == *dump) {
                        outcome.locked.push(shown.dump(index, *until)?);
                    }
                }
                outcome.kept += (of_volume().count() - pruned.deleted.len()) as u64;
                if request.dry_run {
                    continue;
                }
                let gone: HashSet<String> =
                    pruned.deleted.iter().map(|index| index.dump.to_string()).collect();
                for open in volumes.all().into_iter().filter(|open| open.volume.id() == volume) {
                    let path = volumes.folder(&open.name).join("dumps.json");
                    // A dump in progress does it afterwards.
                    let Ok(_turn) = dumping.take(&open.name) else { continue };
                    let making = Making { groups: groups.clone(), open: &open, path };
                    making.forget(&gone)?;
                }
            }
            if !request.dry_run {
                progress.phase("removing what was abandoned");
                let ours = unfinished_of(&volumes)?;
                outcome.swept = dumps.sweep(&ours, SWEEP_GRACE, clock.now(), cancel).map_err(failed)? as u64;
            }
            Ok(Some(api::JobOutcome::Pruned(outcome)))
        })
    }

    /// Refuses while a bucket is the destination of an unfinished dump, which could then never end.
    pub(crate) fn refuse_dumped_into(&self, bucket: &str) -> Result<(), ServerError> {
        for open in self.volumes.all() {
            let unfinished = self.making(&open).document()?.unfinished;
            let to = unfinished.and_then(|unfinished| unfinished.bucket).map(|bucket| bucket.to);
            if to.is_some_and(|to| to.split_once(':').is_some_and(|(name, _)| name == bucket)) {
                let volume = open.name.clone();
                return Err(ServerError::Dumps(DumpsError::BucketNeeded {
                    bucket: bucket.to_owned(),
                    volume,
                }));
            }
        }
        Ok(())
    }
}

/// The place of the dump to resume; the request must not name another one.
fn to_resume(unfinished: &Unfinished, request: &api::DumpRequest) -> Result<Place, ServerError> {
    let to = unfinished.bucket.as_ref().map(|bucket| bucket.to.as_str());
    let Some(to) = to.filter(|to| request.bucket.as_deref().is_none_or(|asked| asked == *to)) else {
        return Err(ServerError::Invalid {
            fault: "the unfinished dump goes to another place",
            next: "leave out the place to resume it, or start a new dump with --anew",
        });
    };
    Place::parse(to)
}

/// The dumps that volumes of this server are writing, or will resume.
fn unfinished_of(volumes: &crate::volumes::Volumes) -> Result<HashSet<DumpId>, ServerError> {
    let mut ours = HashSet::new();
    for open in volumes.all() {
        let path = volumes.folder(&open.name).join("dumps.json");
        let document = state::load::<crate::dumps::images::document::ImageDumpsDocument>(&path)?;
        if let Some(unfinished) = document.and_then(|document| document.unfinished) {
            ours.insert(unfinished.dump_id()?);
        }
    }
    Ok(ours)
}

fn keep_of(keep: &api::Keep) -> KeepDumps {
    let api::Keep { last, hourly, daily, weekly, monthly, yearly } = *keep;
    KeepDumps { last, hourly, daily, weekly, monthly, yearly }
}

/// The cost of a dump in a bucket.
pub(in crate::dumps::images) fn cost_of(
    (bytes, parts): (u64, u32),
    (on_another, locked): (bool, bool),
    encrypted: bool,
) -> api::BucketCost {
    let (cost, prices) = (Cost::of_dump(bytes, parts, on_another, locked), Prices::default());
    let cost = if encrypted { cost.encrypted(parts) } else { cost };
    api::BucketCost {
        objects: cost.objects,
        puts: cost.puts,
        gets: cost.gets,
        bytes: cost.bytes,
        dollars_once: cost.once(&prices),
        dollars_monthly: cost.monthly(&prices),
    }
}

/// Shows dumps in the API.
struct Shown<'a> {
    place: &'a Place,
    dumps: &'a BucketDumps,
}

impl Shown<'_> {
    fn dump(
        &self,
        index: &DumpIndex,
        locked: Option<cairn_base::Timestamp>,
    ) -> Result<api::BucketDump, ServerError> {
        let part = |(number, entry): (u32, &cairn_bucket::dumps::PartEntry)| {
            let (object, skeleton) = self.dumps.part_names(index, number)?;
            Ok(api::BucketPart {
                object: object.to_string(),
                bytes: entry.length,
                skeleton: skeleton.map(|name| name.to_string()),
                skeleton_bytes: entry.skeleton,
            })
        };
        let parts: Result<_, Trouble> = (0..).zip(&index.parts).map(part).collect();
        Ok(api::BucketDump {
            volume: index.name.clone(),
            volume_id: index.volume.to_string(),
            id: index.dump.to_string(),
            level: index.level.to_string(),
            on: index.on.map(|on| on.to_string()),
            snapshot: index.target_name.clone(),
            created_ms: ms(index.created),
            data_bytes: index.blocks * BLOCK,
            bytes: index.bytes(),
            locked_until_ms: locked.map(ms),
            parts: parts.map_err(|error| self.place.failed(error))?,
        })
    }
}
