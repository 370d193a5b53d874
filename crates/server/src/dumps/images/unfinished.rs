//! Image dumps into files, which resume after an interruption: by a kill, a reboot, a full disk or
//! their owner.
//!
//! `dumps.json` names the unfinished dump. For each part it has the durable length, and the state
//! from which the writer resumes there. It is written before the first byte of the dump, and after
//! each [`MARK_BYTES`] or [`MARK_EVERY`] of a part, when that is on the disk. The bytes after the
//! last such mark are verified when the dump resumes.
//!
//! A dump counts once its files have their names, which the client gives them and confirms. The
//! state after a crash, step by step:
//!
//! | after | state | next |
//! |---|---|---|
//! | the snapshot was made and held | held, and in no list | the next dump releases it |
//! | the dump was recorded | parts without a byte | it begins, with the same id |
//! | some records | a part that ends anywhere | it resumes after the last record that verifies |
//! | all parts are durable | whole parts, perhaps not recorded as whole | they are looked at, and are whole |
//! | some have their names | whole parts under both kinds of names | the client finds each part under either name |
//! | it was confirmed | the last dump of its level | its snapshots are released, at the latest by the next dump |
//!
//! The snapshots in the dump's table are kept ([`Kept`]) from before the first byte until it is
//! confirmed or given up, at each start again: without one of them the rest of the dump would not
//! match its existing part. A destination keeps none, as that would stop its updates; there a dump
//! can resume only until the next update.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, UNIX_EPOCH};

use cairn_api::{self as api, ResumeError};
use cairn_base::{Clock, SnapshotId};
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_stream::{Begun, Compression, Dump, DumpError, Onto, Out, Produced, Reached, StreamError, Work};
use cairn_volume::{Snapshot, VolumeError};
use parking_lot::Mutex;

use super::{Against, Making};
use crate::dumps::error::DumpsError;
use crate::dumps::handover::Handed;
use crate::dumps::images::document::{ImageDumpsDocument, KnownSnapshot, Mark, Part, Unfinished};
use crate::dumps::images::keep::kept;
use crate::dumps::past_cache;
use crate::dumps::past_cache::Line;
use crate::error::ServerError;
use crate::state;
use crate::volumes::open::OpenVolume;

mod commands;

/// A part is made durable after this many bytes and this much time, or as soon afterwards as the
/// disk has finished the last ones. At most as much is verified when the dump resumes, and written
/// again after a power cut.
const MARK_BYTES: u64 = 256 << 20;
const MARK_EVERY: Duration = Duration::from_secs(10);
/// Marks of a part that are remembered. The bytes between them show whether the file is the same.
const MARKS: usize = 2;

impl KnownSnapshot {
    /// A snapshot of the volume as it is.
    pub(crate) fn of(open: &OpenVolume, snapshot: SnapshotId) -> Option<Self> {
        let entries = open.volume.snapshot_entries();
        let entry = entries.iter().find(|entry| entry.id == snapshot)?;
        let root = format!("{:?}", cairn_format::stream::root_digest(entry));
        Some(Self { snapshot: snapshot.0, name: entry.name.clone(), root })
    }
}

impl OpenVolume {
    /// The volume has become a destination: a snapshot that its source deleted is deleted here too,
    /// even if a dump needs it.
    pub(crate) fn stop_keeping(&self) {
        let kept = std::mem::take(&mut self.dump_keep.lock().kept);
        drop(kept);
    }

    /// The problem of a dump that waits to be resumed.
    pub(crate) fn dump_problem(&self) -> Option<api::Problem> {
        let keep = self.dump_keep.lock();
        let target = keep.cut.as_ref()?;
        let holds = if keep.kept.is_empty() {
            ""
        } else {
            "; no snapshot up to that one can be deleted until it is finished"
        };
        let name = &self.name;
        Some(api::Problem {
            subject: name.clone(),
            message: format!(
                "its image dump of {name}@{target} was cut, or its files have no names yet{holds}"
            ),
            next: format!(
                "resume it with `cairn image dump {name} --resume`, or abandon it with `cairn image levels {name} --give-up`"
            ),
        })
    }
}

impl Making<'_> {
    /// Records a new dump that can be resumed, and keeps the snapshots that it needs.
    pub(super) fn begin(
        &self,
        (id, against): (DumpId, &Against),
        (target, own): (&Snapshot, bool),
        request: &api::DumpRequest,
        handed: &Handed,
    ) -> Result<ImageDumpsDocument, ServerError> {
        let failed = ServerError::volume(&self.open.name);
        self.keep(target.id)?;
        let level = match against.level {
            DumpLevel::Level(level) => Some(level),
            DumpLevel::AgainstSnapshot => None,
        };
        let known =
            |id| KnownSnapshot::of(self.open, id).ok_or_else(|| failed(VolumeError::NoSuchSnapshot(id)));
        let mut document = self.document()?;
        document.unfinished = Some(Unfinished {
            id: id.to_string(),
            level,
            base: against.base.as_ref().map(|(id, _)| known(*id)).transpose()?,
            target: known(target.id)?,
            own,
            compress: request.compress,
            begun_ms: target.created.0 / 1_000_000,
            parts: parts(request, handed),
            written: None,
            bucket: None,
        });
        self.save(&document)?;
        Ok(document)
    }

    /// The dump to resume, its base and its snapshot: all of them must still exist. The files are
    /// remembered once they were looked at.
    pub(super) fn again(
        &self,
        mut document: ImageDumpsDocument,
        request: &api::DumpRequest,
        handed: &Handed,
    ) -> Result<(ImageDumpsDocument, Against, Snapshot), ServerError> {
        let volume = &self.open.name;
        let unfinished = document.unfinished.as_mut().ok_or(ServerError::Bug)?;
        let find = |known: &KnownSnapshot| {
            let found = self.find(known.snapshot, &known.root);
            found.ok_or_else(|| {
                ServerError::Dumps(DumpsError::DumpSourceGone {
                    volume: volume.clone(),
                    snapshot: known.name.clone(),
                })
            })
        };
        let target = find(&unfinished.target)?;
        let base = unfinished.base.as_ref().map(find).transpose()?;
        let against = Against { level: unfinished.level(), base: base.map(|base| (base.id, base.name)) };
        self.keep(target.id)?;
        if unfinished.own {
            self.open.volume.hold_snapshot(target.id, true).map_err(ServerError::volume(volume))?;
        }
        // Until they are looked at: another program may have truncated one.
        unfinished.written = None;
        for (part, new) in unfinished.parts.iter_mut().zip(parts(request, handed)) {
            // Of a copy nothing is known to be durable.
            let same = part.identity == new.identity && !new.identity.is_empty();
            *part = Part { marks: if same { std::mem::take(&mut part.marks) } else { Vec::new() }, ..new };
        }
        Ok((document, against, target))
    }

    /// Keeps the snapshots that a dump of `target` needs; from here on it is written.
    pub(super) fn keep(&self, target: SnapshotId) -> Result<(), ServerError> {
        let kept = kept(&self.open.volume, target).map_err(ServerError::volume(&self.open.name))?;
        let mut keep = self.open.dump_keep.lock();
        keep.kept = kept;
        keep.cut = None;
        Ok(())
    }

    /// A dump was interrupted; it can be resumed.
    pub(super) fn cut(&self, target: &Snapshot) {
        self.open.dump_keep.lock().cut = Some(target.name.clone());
    }

    /// Forgets the unfinished dump, if there is one, and releases its snapshots.
    pub(super) fn give_up(&self, mut document: ImageDumpsDocument) -> Result<(), ServerError> {
        if document.unfinished.take().is_some() {
            self.save(&document)?;
            self.release();
        }
        self.let_go(&document)
    }

    /// Releases the snapshots of a dump that is finished, given up or never began.
    pub(super) fn release(&self) {
        let released = std::mem::take(&mut *self.open.dump_keep.lock());
        // Letting go takes locks of the volume.
        drop(released);
    }

    /// The files have their names: the dump counts.
    fn confirm(&self, id: &str) -> Result<(), ServerError> {
        let volume = &self.open.name;
        let mut document = self.document()?;
        let Some(unfinished) = document.unfinished.take_if(|unfinished| unfinished.id == id) else {
            // The answer to the first confirmation was lost.
            return match document.dumps.iter().any(|record| record.id == id) {
                true => Ok(()),
                false => Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedDump {
                    volume: volume.clone(),
                }))),
            };
        };
        let Some(bytes) = unfinished.written else {
            return Err(ServerError::Dumps(DumpsError::DumpNotWhole { volume: volume.clone() }));
        };
        match unfinished.level {
            Some(level) => document.note(unfinished.record(level, bytes)),
            // It is its owner's now, as a base of other dumps.
            None if unfinished.own => {
                let target = SnapshotId(unfinished.target.snapshot);
                if let Err(error) = self.open.volume.hold_snapshot(target, false) {
                    tracing::warn!(volume, snapshot = unfinished.target.name, %error, "the snapshot of a dump stays held");
                }
            }
            None => {}
        }
        self.save(&document)?;
        self.release();
        self.let_go_after_all(&document);
        Ok(())
    }
}

/// Whether a dump into these files can be resumed: the client names them, and they are files.
pub(super) fn lasts(request: &api::DumpRequest, handed: &Handed) -> bool {
    are_named(request, handed) && handed.files.iter().all(is_file)
}

/// Whether the client has named each of the files.
pub(super) fn are_named(request: &api::DumpRequest, handed: &Handed) -> bool {
    !request.files.is_empty() && request.files.len() == handed.files.len()
}

pub(super) fn is_file(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.is_file())
}

fn parts(request: &api::DumpRequest, handed: &Handed) -> Vec<Part> {
    let part = |(name, file): (&String, &File)| Part {
        file: name.clone(),
        identity: identity(file),
        marks: Vec::new(),
    };
    request.files.iter().zip(&handed.files).map(part).collect()
}

/// Which file it is: its number and when it was made, as numbers are used again. Empty where that
/// is not known.
fn identity(file: &File) -> String {
    let known = file.metadata().ok().and_then(|found| {
        let made = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{}.{}", found.ino(), made.as_nanos()))
    });
    known.unwrap_or_default()
}

/// The parts of a dump in progress, and the durable length of each.
pub(super) struct Ledger {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    document: Mutex<ImageDumpsDocument>,
}

impl Ledger {
    pub(super) fn new(path: PathBuf, clock: Arc<dyn Clock>, document: ImageDumpsDocument) -> Self {
        Self { path, clock, document: Mutex::new(document) }
    }

    fn with<T>(&self, part: usize, run: impl FnOnce(&mut Part) -> T) -> Option<T> {
        self.document.lock().unfinished.as_mut()?.parts.get_mut(part).map(run)
    }

    /// The existing content of a part.
    pub(super) fn look(
        &self,
        dump: &Dump<'_>,
        part: usize,
        file: &File,
        ended: &dyn Fn() -> bool,
    ) -> Result<Begun, ServerError> {
        let (name, marks) = self
            .with(part, |own| {
                (own.file.clone(), own.marks.iter().filter_map(Mark::reached).collect::<Vec<_>>())
            })
            .unwrap_or_default();
        let begun = dump.begun(part as u32, (&name, file), &marks, ended)?;
        // A killed server may have written bytes that are only in memory; the resumed bytes must be
        // on the disk. If that fails, the file is truncated, which is permitted only for the part
        // itself.
        self.settle(part, file)?;
        if !begun.is_whole() {
            self.with(part, |own| {
                if !begun.is_as_marked() {
                    own.marks.clear();
                }
                if begun.at().bytes > own.marks.last().map_or(0, |mark| mark.bytes) {
                    own.note(begun.at());
                }
            });
        }
        Ok(begun)
    }

    /// Writes the missing bytes of a part, and makes it durable; returns its length.
    pub(super) fn write(
        &self,
        dump: &Dump<'_>,
        (part, file): (usize, &File),
        begun: &Begun,
        compression: Compression,
        work: &mut Work<'_>,
    ) -> Result<u64, ServerError> {
        if begun.is_whole() {
            return Ok(begun.at().bytes);
        }
        let failed = |error: std::io::Error| DumpError::from(StreamError::from(error));
        file.set_len(begun.at().bytes).map_err(|error| match error.kind() {
            // The system's error for a file that is open for reading only, as a file with its final
            // name is.
            ErrorKind::InvalidInput => {
                DumpError::NamedTooEarly { file: self.with(part, |own| own.file.clone()).unwrap_or_default() }
            }
            _ => failed(error),
        })?;
        let from = begun.at().bytes;
        let put = past_cache::write((file, from), past_cache::lanes(dump.parts()), |out, line| {
            self.write_and_settle(dump, (part, file), begun, (out, line), (compression, work))
        });
        let ((written, settled), put) =
            put.map_err(|error| DumpError::from(StreamError::NoThread(Arc::new(error))))?;
        if settled.is_err() {
            // Its writes in progress have finished by now.
            self.cut_to_mark(part, file);
        }
        settled.map_err(failed)?;
        let written = written.map_err(DumpError::from)?;
        put.map_err(failed)?;
        self.settle(part, file)?;
        Ok(written.bytes)
    }

    /// Writes, and makes the written bytes durable on another thread: the source is read further
    /// while the disk works. A mark covers only the bytes that `line` reports as written to the
    /// file, never those in progress.
    fn write_and_settle(
        &self,
        dump: &Dump<'_>,
        (part, file): (usize, &File),
        begun: &Begun,
        (out, line): (&mut dyn Out, &Line<'_>),
        (compression, work): (Compression, &mut Work<'_>),
    ) -> (Result<Produced, StreamError>, std::io::Result<()>) {
        // The sender does not wait. If the thread is busy, the next record sends another request.
        let (ask, asked) = sync_channel::<Reached>(0);
        let settle = move || {
            asked.iter().try_for_each(|at| {
                self.settle_io(part, file)?;
                self.mark(part, &at);
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            let settling = match Builder::new().name("dump-sync".to_owned()).spawn_scoped(scope, settle) {
                Ok(settling) => settling,
                Err(error) => return (Err(StreamError::NoThread(Arc::new(error))), Ok(())),
            };
            let (mut bytes, mut since) = (begun.at().bytes, self.clock.monotonic());
            let mut on_their_way = VecDeque::new();
            let mut written = *begun.at();
            let mut reached = move |at: &Reached| {
                on_their_way.push_back(*at);
                let upto = line.upto();
                let there = on_their_way.iter().take_while(|at: &&Reached| at.bytes <= upto).count();
                written = on_their_way.drain(..there).next_back().unwrap_or(written);
                let now = self.clock.monotonic();
                let (more, passed) = (written.bytes - bytes, now.saturating_sub(since));
                if more == 0 || (more < MARK_BYTES && passed < MARK_EVERY) {
                    return Ok(());
                }
                match ask.try_send(written) {
                    Ok(()) => (bytes, since) = (written.bytes, now),
                    Err(TrySendError::Full(_)) => {}
                    // It has failed, and returns the reason.
                    Err(TrySendError::Disconnected(_)) => return Err(ErrorKind::Other.into()),
                }
                Ok(())
            };
            let onto = Onto { out, reached: &mut reached };
            let produced = dump.resume_part(part as u32, begun, onto, compression, work);
            drop(reached);
            let bug = || Err(std::io::Error::other("the thread that makes a dump durable has panicked"));
            (produced, settling.join().unwrap_or_else(|_| bug()))
        })
    }

    fn settle(&self, part: usize, file: &File) -> Result<(), ServerError> {
        Ok(self.settle_io(part, file).map_err(|error| DumpError::from(StreamError::from(error)))?)
    }

    /// Makes the written bytes durable. After one failure the system may forget it: the bytes after
    /// the last mark are truncated, and rewritten.
    fn settle_io(&self, part: usize, file: &File) -> std::io::Result<()> {
        let outcome = file.sync_all();
        if outcome.is_err() {
            self.cut_to_mark(part, file);
        }
        outcome
    }

    fn cut_to_mark(&self, part: usize, file: &File) {
        let durable = self.with(part, |own| own.marks.last().map_or(0, |mark| mark.bytes));
        if let Err(error) = file.set_len(durable.unwrap_or(0)) {
            tracing::warn!(part, %error, "what could not be made durable of a dump is still in its file");
        }
    }

    /// A part is durable up to here. Without the note the dump continues all the same, and a resume
    /// verifies more.
    fn mark(&self, part: usize, at: &Reached) {
        self.with(part, |own| own.note(at));
        let document = self.document.lock();
        if let Err(error) = state::save(&self.path, &*document) {
            tracing::warn!(%error, "how far an image dump is was not written down");
        }
    }

    /// The files are those of the dump, wherever they are now.
    pub(super) fn looked_at(&self) -> Result<(), ServerError> {
        state::save(&self.path, &*self.document.lock())
    }

    /// Every part is whole and durable.
    pub(super) fn written(&self, bytes: u64) -> Result<(), ServerError> {
        let mut document = self.document.lock();
        if let Some(unfinished) = &mut document.unfinished {
            unfinished.written = Some(bytes);
        }
        state::save(&self.path, &*document)
    }
}

impl Part {
    fn note(&mut self, at: &Reached) {
        self.marks.push(Mark::of(at));
        let over = self.marks.len().saturating_sub(MARKS);
        self.marks.drain(..over);
    }
}

#[cfg(test)]
mod tests;
