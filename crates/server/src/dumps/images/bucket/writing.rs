//! Writing a dump into a bucket, and resuming an interrupted one.
//!
//! The state after a crash, step by step:
//!
//! | after | state | next |
//! |---|---|---|
//! | the snapshot was made and held | held, and in no list | the next dump deletes it |
//! | the dump was recorded | no object | it resumes from its beginning, with the same id |
//! | `begun` was put | one small object | the same |
//! | some pieces were put | an upload that no reader sees | it resumes after the last piece that was noted |
//! | a part was made an object | a part, perhaps not noted | its end is compared, and it stays |
//! | the index was put | a dump that others see | it is sealed and locked once more, which changes nothing, and is noted |
//! | it was noted | the last dump of its level | snapshots that no dump needs are deleted, at the latest by the next dump |
//!
//! The index is the commit point. A dump that is given up leaves objects only if the store fails
//! meanwhile; a sweep removes these after a grace period.
//!
//! The base of a dump is chosen from the bucket's own list. A dump there counts if all of its
//! objects exist and its snapshot still exists here with the same root. Dumps that this server has
//! not recorded, as after a restore on a new one, are recorded first: their snapshots then stay.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_api as api;
use cairn_base::{Clock, Timestamp};
use cairn_bucket::dumps::{BucketDumps, DumpIndex, DumpsError as Trouble, PartEntry, PartNote, PartWork};
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_format::stream::root_digest;
use cairn_stream::{Compression, Dump, DumpError, DumpLabel, Plan, Threads, Work};
use cairn_volume::{Snapshot, VolumeError};
use parking_lot::Mutex;

use super::{Place, store_failed};
use crate::dumps::error::DumpsError;
use crate::dumps::images::document::{ImageDumpsDocument, InBucket, KnownSnapshot, Record, Unfinished};
use crate::dumps::images::{Against, BLOCK, HIGHEST_LEVEL, Making, is_of_a_dump, side_by_side};
use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::state;
use crate::volumes::snapshots::find_snapshot;
use crate::work::jobs::Progress;
use crate::work::threads::Scoped;

/// The base of a dump into a bucket.
pub(super) struct Base {
    pub(super) index: DumpIndex,
    pub(super) snapshot: Snapshot,
}

impl Making<'_> {
    /// The local snapshot that a dump in the bucket ends at, if it is still the same. One request,
    /// unless this server has noted the dump.
    fn snapshot_in(
        &self,
        dumps: &BucketDumps,
        index: &DumpIndex,
        records: &[Record],
        cancel: &AtomicBool,
    ) -> Result<Option<Snapshot>, Trouble> {
        if let Some(record) = records.iter().find(|record| record.id == index.dump.to_string()) {
            return Ok(self.snapshot_of(record));
        }
        let entries = self.open.volume.snapshot_entries();
        let Some(entry) = entries.iter().find(|entry| entry.id == index.target) else { return Ok(None) };
        let head = dumps.part_head(index, cancel)?.stream;
        let same = head.target == entry.id && head.target_digest == root_digest(entry);
        Ok(same.then(|| Snapshot::from(entry)))
    }

    /// Notes the last dump of each level that the bucket has and this server does not know.
    fn adopt(
        &self,
        document: &mut ImageDumpsDocument,
        place: &Place,
        (dumps, listed): (&BucketDumps, &[DumpIndex]),
        cancel: &AtomicBool,
    ) -> Result<(), ServerError> {
        let mut sorted: Vec<(u8, &DumpIndex)> = listed.iter().filter_map(with_level).collect();
        sorted.sort_by_key(|(level, index)| (index.target, *level));
        let mut last: Vec<(u8, &DumpIndex)> = Vec::new();
        for (level, index) in sorted {
            last.retain(|(other, _)| *other < level);
            last.push((level, index));
        }
        for (level, index) in last {
            let id = index.dump.to_string();
            if document.dumps.iter().any(|record| record.id == id) {
                continue;
            }
            let found = match self.snapshot_in(dumps, index, &[], cancel) {
                Ok(found) => found,
                // It cannot be a base then, which the choice of a base reports.
                Err(Trouble::Damaged(_) | Trouble::Gone(_)) => None,
                Err(error) => return Err(place.failed(error)),
            };
            if let Some(found) = found {
                self.note_in(document, place, (level, index), &found);
            }
        }
        Ok(())
    }

    /// Notes a dump that the bucket has, unless it is noted: its snapshot stays from then on.
    fn note_in(
        &self,
        document: &mut ImageDumpsDocument,
        place: &Place,
        (level, index): (u8, &DumpIndex),
        found: &Snapshot,
    ) {
        let id = index.dump.to_string();
        let Some(known) = KnownSnapshot::of(self.open, found.id) else { return };
        if document.dumps.iter().any(|record| record.id == id) {
            return;
        }
        let KnownSnapshot { snapshot, name, root } = known;
        let own = is_of_a_dump(&name);
        document.dumps.push(Record {
            level,
            id,
            snapshot,
            name,
            root,
            created_ms: index.created.0 / 1_000_000,
            bytes: index.bytes(),
            own,
            bucket: Some(place.to_string()),
        });
    }

    /// The newest dump of a lower level in the bucket that can be a base.
    pub(super) fn base_in(
        &self,
        level: u8,
        place: &Place,
        (dumps, listed): (&BucketDumps, &[DumpIndex]),
        cancel: &AtomicBool,
    ) -> Result<Option<Base>, ServerError> {
        if level == 0 {
            return Ok(None);
        }
        let volume = || self.open.name.clone();
        let mut lower: Vec<&DumpIndex> =
            listed.iter().filter_map(with_level).filter(|(own, _)| *own < level).map(|(_, i)| i).collect();
        lower.sort_by_key(|index| std::cmp::Reverse((index.target, index.created)));
        let records = self.records()?;
        let mut why = None;
        for index in lower {
            let snapshot = match self.snapshot_in(dumps, index, &records, cancel) {
                Ok(Some(snapshot)) => snapshot,
                Ok(None) => {
                    let name = &index.target_name;
                    why.get_or_insert(format!("its snapshot `{}@{name}` no longer exists", self.open.name));
                    continue;
                }
                Err(error @ (Trouble::Damaged(_) | Trouble::Gone(_))) => {
                    why.get_or_insert(error.to_string());
                    continue;
                }
                Err(error) => return Err(place.failed(error)),
            };
            // All that a restore of it needs.
            let chain = BucketDumps::chain(listed, index.dump);
            let lacks =
                chain.and_then(|chain| chain.iter().try_for_each(|index| dumps.check_parts(index, cancel)));
            match lacks {
                Ok(()) => return Ok(Some(Base { index: index.clone(), snapshot })),
                Err(Trouble::Store(error)) if !error.is_missing() => {
                    return Err(store_failed(&place.bucket, error));
                }
                Err(error) => {
                    why.get_or_insert(error.to_string());
                }
            }
        }
        Err(ServerError::Dumps(match why {
            None => DumpsError::NoLowerInBucket { volume: volume(), level, place: place.to_string() },
            Some(why) => {
                DumpsError::NoBaseInBucket { volume: volume(), level, place: place.to_string(), why }
            }
        }))
    }

    /// Gives up the unfinished dump, and removes its objects from the bucket. A sweep removes the
    /// rest later.
    pub(super) fn give_up_in(
        &self,
        document: ImageDumpsDocument,
        place: &Place,
        dumps: &BucketDumps,
        cancel: &AtomicBool,
    ) -> Result<(), ServerError> {
        let there = document.unfinished.as_ref().filter(|unfinished| {
            unfinished.bucket.as_ref().is_some_and(|bucket| bucket.to == place.to_string())
        });
        let there = there.map(Unfinished::dump_id).transpose()?;
        self.give_up(document)?;
        if let Some(dump) = there
            && let Err(error) = dumps.abandon(self.open.volume.id(), dump, cancel)
        {
            let volume = &self.open.name;
            tracing::warn!(volume, %error, "objects of an abandoned image dump stay in the bucket until a sweep");
        }
        Ok(())
    }
}

impl Making<'_> {
    /// Dumps of these ids are no longer in their bucket: they cannot be bases.
    pub(super) fn forget(&self, gone: &HashSet<String>) -> Result<(), ServerError> {
        let mut document = self.document()?;
        let known = document.dumps.len();
        document.dumps.retain(|record| !gone.contains(&record.id));
        if document.dumps.len() != known {
            self.save(&document)?;
            self.let_go_after_all(&document);
        }
        Ok(())
    }
}

fn with_level(index: &DumpIndex) -> Option<(u8, &DumpIndex)> {
    match index.level {
        DumpLevel::Level(level) => Some((level, index)),
        DumpLevel::AgainstSnapshot => None,
    }
}

/// Checks a request as far as possible before any action.
pub(super) fn level_of(request: &api::DumpRequest) -> Result<u8, ServerError> {
    if request.base.is_some() {
        return Err(ServerError::Invalid {
            fault: "a dump into a bucket has a level, and no base snapshot",
            next: "give a level from 0 to 9 in place of --base",
        });
    }
    match request.level.unwrap_or(0) {
        level if level > HIGHEST_LEVEL => Err(ServerError::Invalid {
            fault: "the level is not between 0 and 9",
            next: "give a level from 0 to 9",
        }),
        level => Ok(level),
    }
}

/// A dump into a bucket, on the thread of its job.
pub(super) struct Writing<'a> {
    pub(super) making: Making<'a>,
    pub(super) request: &'a api::DumpRequest,
    pub(super) place: Place,
    pub(super) dumps: BucketDumps,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) progress: &'a Progress,
}

impl Writing<'_> {
    fn cancel(&self) -> &Arc<AtomicBool> {
        self.progress.cancel_flag()
    }

    fn failed(&self, error: Trouble) -> ServerError {
        self.place.failed(error)
    }

    /// The dumps of the volume in the bucket.
    fn listed(&self) -> Result<Vec<DumpIndex>, ServerError> {
        self.progress.phase("listing the bucket");
        let listing = self.dumps.list(Some(self.making.open.volume.id()), self.cancel());
        let listing = listing.map_err(|error| self.failed(error))?;
        for error in &listing.unreadable {
            self.progress.note(format!("bucket `{}`: {error}", self.place.bucket));
        }
        Ok(listing.dumps)
    }

    /// A new dump.
    pub(super) fn begin(&self) -> Result<api::DumpResult, ServerError> {
        let (making, open) = (&self.making, self.making.open);
        let level = level_of(self.request)?;
        let listed = self.listed()?;
        let mut document = making.document()?;
        let known = document.dumps.len();
        making.adopt(&mut document, &self.place, (&self.dumps, &listed), self.cancel())?;
        let base = making.base_in(level, &self.place, (&self.dumps, &listed), self.cancel())?;
        if let Some(base) = &base
            && let Some(of) = with_level(&base.index)
        {
            making.note_in(&mut document, &self.place, of, &base.snapshot);
        }
        if document.dumps.len() != known {
            making.save(&document)?;
        }
        let against = Against {
            level: DumpLevel::Level(level),
            base: base.as_ref().map(|base| (base.snapshot.id, base.snapshot.name.clone())),
        };
        if let Some(name) = &self.request.snapshot {
            against.is_before(&find_snapshot(open, name)?)?;
        }
        making.give_up_in(document, &self.place, &self.dumps, self.cancel())?;
        self.progress.phase("making a snapshot");
        let id = DumpId(random_bytes());
        let (target, own) = making.target(self.request, &against, &id.to_string())?;
        let on = base.map(|base| base.index.dump);
        let begun = self.write_down((id, &against, on), (&target, own)).and_then(|document| {
            let begun = self.dumps.begin(open.volume.id(), id, on, self.cancel());
            begun.map(|()| document).map_err(|error| self.failed(error))
        });
        match begun {
            Ok(document) => self.write_on(document, &against, &target),
            Err(error) => {
                // The bucket has nothing of it except perhaps its `begun`.
                let mut document = making.document()?;
                document.unfinished = None;
                making.save(&document)?;
                making.release();
                if own {
                    let _ = making.take_back(target.id);
                }
                Err(error)
            }
        }
    }

    /// Holds the needed snapshots, and records that the dump has begun.
    fn write_down(
        &self,
        (id, against, on): (DumpId, &Against, Option<DumpId>),
        (target, own): (&Snapshot, bool),
    ) -> Result<ImageDumpsDocument, ServerError> {
        let (making, open) = (&self.making, self.making.open);
        let failed = ServerError::volume(&open.name);
        if own {
            open.volume.hold_snapshot(target.id, true).map_err(&failed)?;
        }
        making.keep(target.id)?;
        let known = |id| KnownSnapshot::of(open, id).ok_or_else(|| failed(VolumeError::NoSuchSnapshot(id)));
        let parts = self.request.parts.unwrap_or(1).clamp(1, api::HANDOVER_FILES_MAX as u32);
        let mut document = making.document()?;
        document.unfinished = Some(Unfinished {
            id: id.to_string(),
            level: match against.level {
                DumpLevel::Level(level) => Some(level),
                DumpLevel::AgainstSnapshot => None,
            },
            base: against.base.as_ref().map(|(id, _)| known(*id)).transpose()?,
            target: known(target.id)?,
            own,
            compress: self.request.compress,
            begun_ms: target.created.0 / 1_000_000,
            parts: Vec::new(),
            written: None,
            bucket: Some(InBucket {
                to: self.place.to_string(),
                on: on.map(|on| on.to_string()),
                lock_ms: self.request.lock_ms,
                parts: vec![PartNote::default(); parts as usize],
            }),
        });
        making.save(&document)?;
        Ok(document)
    }

    /// Resumes the unfinished dump.
    pub(super) fn resume(&self) -> Result<api::DumpResult, ServerError> {
        let (making, open) = (&self.making, self.making.open);
        self.progress.phase("looking at what is there");
        let document = making.document()?;
        let unfinished = document.unfinished.as_ref().ok_or(ServerError::Bug)?;
        let find = |known: &KnownSnapshot| {
            making.find(known.snapshot, &known.root).ok_or_else(|| self.gone(&known.name))
        };
        let target = find(&unfinished.target)?;
        let base = unfinished.base.as_ref().map(find).transpose()?;
        let against = Against { level: unfinished.level(), base: base.map(|base| (base.id, base.name)) };
        making.keep(target.id)?;
        if unfinished.own {
            let held = open.volume.hold_snapshot(target.id, true);
            held.map_err(ServerError::volume(&open.name))?;
        }
        let begun = unfinished.dump_id().and_then(|id| {
            let on = unfinished.bucket.as_ref().and_then(|bucket| bucket.on.as_deref());
            let on = on.map(parse_id).transpose()?;
            // Another server may have swept it.
            let begun = self.dumps.begin(open.volume.id(), id, on, self.cancel());
            begun.map_err(|error| self.failed(error))
        });
        match begun {
            Ok(()) => self.write_on(document, &against, &target),
            Err(error) => {
                making.cut(&target);
                Err(self.resumable(error))
            }
        }
    }

    fn gone(&self, snapshot: &str) -> ServerError {
        ServerError::Dumps(DumpsError::DumpSourceGone {
            volume: self.making.open.name.clone(),
            snapshot: snapshot.to_owned(),
        })
    }

    /// Whatever ends it, it can be resumed; unless the same again comes to the same.
    fn resumable(&self, error: ServerError) -> ServerError {
        let again = match &error {
            ServerError::Dumps(DumpsError::DumpSourceGone { .. }) => false,
            ServerError::Dumps(DumpsError::InBucket { source, .. }) => !matches!(
                **source,
                Trouble::MissingBase { .. }
                    | Trouble::BaseGoes { .. }
                    | Trouble::Damaged(_)
                    | Trouble::Gone(_)
                    | Trouble::OtherBegin(_)
            ),
            _ => true,
        };
        let volume = self.making.open.name.clone();
        match again {
            true => ServerError::Dumps(DumpsError::DumpCut { volume, source: Box::new(error) }),
            false => error,
        }
    }

    fn write_on(
        &self,
        document: ImageDumpsDocument,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let outcome = self.write(document, against, target);
        if outcome.is_err() {
            self.making.cut(target);
        }
        outcome.map_err(|error| self.resumable(error))
    }

    /// Writes the missing bytes, seals and locks the dump, and records that it is whole.
    fn write(
        &self,
        document: ImageDumpsDocument,
        against: &Against,
        target: &Snapshot,
    ) -> Result<api::DumpResult, ServerError> {
        let (making, volume) = (&self.making, self.making.open.volume.id());
        let unfinished = document.unfinished.clone().ok_or(ServerError::Bug)?;
        let bucket = unfinished.bucket.as_ref().ok_or(ServerError::Bug)?;
        let (id, level) = (unfinished.dump_id()?, unfinished.level.ok_or(ServerError::Bug)?);
        self.progress.phase("comparing maps");
        let base = against.base.as_ref().map(|(id, _)| *id);
        let plan = Plan::against(&making.open.volume, base, target.id).map_err(DumpError::from)?;
        let name = making.open.name.clone();
        let label = DumpLabel { id, level: against.level, name: name.clone(), created: target.created };
        let dump = Dump::new(&plan, label, bucket.parts.len() as u32);
        let notes = Notes { path: making.path.clone(), document: Mutex::new(document) };
        let (parts, there_bytes) = self.write_parts(&dump, &notes, (id, unfinished.compression()))?;
        self.progress.phase("sealing");
        let index = DumpIndex {
            volume,
            dump: id,
            name: name.clone(),
            level: against.level,
            created: target.created,
            target: target.id,
            target_name: target.name.clone(),
            base,
            on: bucket.on.as_deref().map(parse_id).transpose()?,
            blocks: dump.blocks(),
            parts,
        };
        self.dumps.seal(&index, self.cancel()).map_err(|error| self.failed(error))?;
        let locked = bucket.lock_ms.map(|for_ms| self.lock(&index, for_ms)).transpose()?;
        let mut document = making.document()?;
        document.unfinished = None;
        document.note(unfinished.record(level, index.bytes()));
        making.save(&document)?;
        making.release();
        making.let_go_after_all(&document);
        Ok(api::DumpResult {
            volume: name.clone(),
            snapshot: format!("{name}@{}", target.name),
            level: against.level.to_string(),
            base: against.base.as_ref().map(|(_, base)| format!("{name}@{base}")),
            id: id.to_string(),
            parts: u64::from(dump.parts()),
            snapshots: plan.snapshots() as u64,
            data_bytes: dump.blocks() * BLOCK,
            bytes: index.bytes(),
            there_bytes,
            to_confirm: false,
            bucket: Some(bucket.to.clone()),
            locked_until_ms: locked.map(|until| until.0 / 1_000_000),
        })
    }

    /// Locks the dump and all that it needs.
    fn lock(&self, index: &DumpIndex, for_ms: u64) -> Result<Timestamp, ServerError> {
        let until = Timestamp(self.clock.now().0.saturating_add(for_ms.saturating_mul(1_000_000)));
        let mut listed = self.listed()?;
        self.progress.phase("locking");
        if !listed.iter().any(|own| own.dump == index.dump) {
            // A store may list late.
            listed.push(index.clone());
        }
        let locked = self.dumps.lock(&listed, index.dump, until, self.cancel());
        locked.map_err(|error| self.failed(error))?;
        Ok(until)
    }

    /// Writes all parts at the same time; also returns the number of bytes that existed before.
    fn write_parts(
        &self,
        dump: &Dump<'_>,
        notes: &Notes,
        (id, compression): (DumpId, Compression),
    ) -> Result<(Vec<PartEntry>, u64), ServerError> {
        let numbers: Vec<u32> = (0..dump.parts()).collect();
        let volume = self.making.open.volume.id();
        // A failure of one part ends the others, and only those.
        let stop = Arc::new(AtomicBool::new(false));
        let (done, there_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        self.progress.phase("dumping");
        let total = dump.blocks() * BLOCK;
        let entries = side_by_side(&numbers, &stop, |_, part| {
            let mut before = 0;
            let mut tell = |at: cairn_stream::Progress| {
                let more = at.blocks.saturating_sub(before) * BLOCK;
                before = at.blocks;
                self.progress.bytes(done.fetch_add(more, Ordering::Relaxed) + more, total);
                if self.cancel().load(Ordering::Relaxed) {
                    stop.store(true, Ordering::Relaxed);
                }
            };
            let threads = Some(&Scoped as &dyn Threads);
            let mut work = Work { cancel: &stop, progress: &mut tell, threads };
            let with = PartWork {
                compression,
                work: &mut work,
                cancel: self.cancel(),
                clock: &*self.clock,
                keep: &mut |note| notes.note(*part, note),
            };
            let note = notes.of(*part).ok_or(ServerError::Bug)?;
            let written = self.dumps.write_part(dump, (volume, id, *part), note, with);
            let (entry, there) = written.map_err(|error| self.failed(error))?;
            there_bytes.fetch_add(there, Ordering::Relaxed);
            Ok(entry)
        })?;
        Ok((entries, there_bytes.into_inner()))
    }
}

fn parse_id(text: &str) -> Result<DumpId, ServerError> {
    u128::from_str_radix(text, 16).map(|id| DumpId(id.to_be_bytes())).map_err(|_| ServerError::Bug)
}

/// The progress of the parts, as in `dumps.json`.
struct Notes {
    path: PathBuf,
    document: Mutex<ImageDumpsDocument>,
}

impl Notes {
    fn of(&self, part: u32) -> Option<PartNote> {
        let document = self.document.lock();
        document.unfinished.as_ref()?.bucket.as_ref()?.parts.get(part as usize).cloned()
    }

    /// Without the note the dump continues all the same, and sends more again after an
    /// interruption.
    fn note(&self, part: u32, note: &PartNote) {
        let mut document = self.document.lock();
        let bucket = document.unfinished.as_mut().and_then(|unfinished| unfinished.bucket.as_mut());
        if let Some(own) = bucket.and_then(|bucket| bucket.parts.get_mut(part as usize)) {
            own.clone_from(note);
        }
        if let Err(error) = state::save(&self.path, &*document) {
            tracing::warn!(%error, "how far an image dump is was not written down");
        }
    }
}
