//! Restoring image dumps into new volumes. An interrupted restore resumes at its last mark after
//! any cause: a kill, a reboot, a pipe that ended, a damaged record, its owner.
//!
//! `restore.json`, in the folder of the restore, names its dumps, the written length of each part,
//! and the records that could not be read until then. It is written after each [`MARK_BYTES`] or
//! [`MARK_EVERY`], when the devices have been flushed, and once more when the restore ends early. A
//! part that is a file is read from there; one that comes through a pipe is read and verified from
//! its beginning, and not written again.
//!
//! The state after a crash, step by step:
//!
//! | after | state | next |
//! |---|---|---|
//! | the folder was made, and blocks were written | devices that look empty, and no notes | a start removes the folder, and the restore starts over |
//! | the devices were flushed | the notes of the previous mark, or none | it resumes from there, and writes the same once more |
//! | the notes were written | all blocks up to them are durable | it resumes after them |
//! | a later dump has overwritten blocks of the previous one | notes of the previous dump, or of the later one | the records at the notes and all later ones are read again: the later dump is written last |
//! | the superblock was written | a volume on the devices, in a folder that is not a volume's | the structures that made it a volume are cleared and made again; blocks are not |
//! | the check has found something | the same | it resumes with `--accept-damage`, or is given up |
//! | the folder has its name | a volume | it is opened |
//!
//! A few blocks show whether a device is the written one, and was not emptied since: the notes have
//! their checksums ([`Sample`]). A sample that a later dump is about to overwrite is removed before
//! that. The samples that are left when the volume is made are of the last dump: they are in use,
//! and are not overwritten.

use std::collections::{BTreeMap, VecDeque};
use std::io::Seek;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_api::{self as api, ResumeError};
use cairn_base::{BLOCK_SIZE, Checksum, Clock, Vbn};
use cairn_device::{Block, Device, DeviceError};
use cairn_stream::{
    DumpBytes, DumpError, PartReader, RestoreLedger, Restored, Standing, StreamError, Threads, Work,
};
use cairn_volume::{CheckDepth, Volume};

use crate::dumps::error::DumpsError;
use crate::dumps::handover::Handed;
use crate::dumps::images::notes::{RestoreNotes, Sample};
use crate::dumps::past_cache::Source;
use crate::error::ServerError;
use crate::state;
use crate::volumes::{UnfinishedRestore, Volumes};
use crate::work::jobs::Progress;
use crate::work::threads::Scoped;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Devices are flushed after this many bytes and this much time. The restore writes at most as much
/// again after a kill.
const MARK_BYTES: u64 = 1 << 30;
const MARK_EVERY: Duration = Duration::from_secs(2);
/// Blocks of each device that are remembered.
const SAMPLES: usize = 4;

/// Keeps the notes of a restore.
pub(super) struct Keeper {
    path: PathBuf,
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    /// As they are on the disk, once they are there.
    notes: RestoreNotes,
    noted: bool,
    /// The progress on the device.
    standing: Standing,
    /// Of each device the blocks that were written last.
    recent: Vec<VecDeque<Sample>>,
    /// The samples of the writes in progress, in order. If a write fails, its content on the device
    /// is unknown.
    next: VecDeque<Vec<Sample>>,
    /// Coarsest of all devices.
    alignment: u64,
    /// Blocks at the last mark, and when that was.
    since: (u64, Duration),
    /// A flush has failed. The writes since the last mark may be lost, whatever a later flush
    /// returns.
    failed: bool,
}

impl Keeper {
    pub(super) fn new(
        unfinished: &UnfinishedRestore<'_>,
        notes: RestoreNotes,
        noted: bool,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let alignments = unfinished.parts().iter().map(|part| part.geometry().alignment);
        let mut recent = vec![VecDeque::new(); notes.lengths.len()];
        for sample in &notes.samples {
            if let Some(recent) = recent.get_mut(sample.device) {
                recent.push_back(sample.clone());
            }
        }
        Self {
            path: unfinished.notes(),
            device: unfinished.device(),
            noted,
            standing: notes.standing(),
            recent,
            next: VecDeque::new(),
            alignment: alignments.max().unwrap_or(1).into(),
            since: (notes.blocks, clock.monotonic()),
            failed: false,
            clock,
            notes,
        }
    }

    /// The device that has a block, and its place there; none for a block that spans two devices.
    fn place(&self, vbn: u64) -> Option<(usize, u64)> {
        let mut at = Volume::space_offset(self.notes.space_blocks) + vbn * BLOCK;
        for (number, length) in self.notes.lengths.iter().enumerate() {
            let length = length - length % self.alignment;
            if at < length {
                return (at + BLOCK <= length).then_some((number, at));
            }
            at -= length;
        }
        None
    }

    /// A block of each device that these are for.
    fn samples_of(&self, dump: usize, runs: &[(Vbn, Vec<Block>)]) -> Vec<Sample> {
        let mut last = BTreeMap::new();
        for (first, blocks) in runs {
            // Zeros are on a device that was emptied as well.
            let block = blocks.first().filter(|block| !block.is_zero());
            if let (Some(block), Some((device, at))) = (block, self.place(first.0)) {
                last.insert(device, (at, first.0, block));
            }
        }
        let sample = |(device, (at, vbn, block)): (usize, (u64, u64, &Block))| {
            let checksum = format!("{:?}", Checksum::of(&block[..]));
            Sample { device, at, vbn, dump, checksum }
        };
        last.into_iter().map(sample).collect()
    }

    fn remember(&mut self) {
        for sample in self.next.pop_front().unwrap_or_default() {
            let Some(recent) = self.recent.get_mut(sample.device) else { continue };
            if recent.len() == SAMPLES {
                recent.pop_front();
            }
            recent.push_back(sample);
        }
    }

    /// Crosses samples out; those in the notes durably.
    fn cross_out(&mut self, is_out: impl Fn(&Sample) -> bool) -> Result<(), ServerError> {
        for recent in &mut self.recent {
            recent.retain(|sample| !is_out(sample));
        }
        let before = self.notes.samples.len();
        self.notes.samples.retain(|sample| !is_out(sample));
        match self.noted && self.notes.samples.len() < before {
            true => state::save(&self.path, &self.notes),
            false => Ok(()),
        }
    }

    /// Makes the written blocks durable, and records that in the notes. Without the notes the
    /// restore continues all the same, and writes more again after an interruption.
    fn mark(&mut self) -> Result<(), DeviceError> {
        self.failed = true;
        self.device.flush()?;
        self.failed = false;
        self.since = (self.standing.blocks, self.clock.monotonic());
        let mut notes = self.notes.clone();
        notes.stand(&self.standing);
        notes.samples = self.recent.iter().flatten().cloned().collect();
        match state::save(&self.path, &notes) {
            Ok(()) => (self.notes, self.noted) = (notes, true),
            Err(error) => tracing::warn!(%error, "how far an image restore is was not written down"),
        }
        Ok(())
    }

    /// Ends the restore early; returns whether it can be resumed.
    pub(super) fn stays(&mut self) -> bool {
        if !self.failed
            && self.standing.blocks > self.since.0
            && let Err(error) = self.mark()
        {
            tracing::warn!(%error, "what an image restore has written last is written again when it goes on");
        }
        self.noted
    }
}

impl RestoreLedger for Keeper {
    fn standing(&self) -> Standing {
        self.standing.clone()
    }

    fn writing(&mut self, dump: usize, runs: &[(Vbn, Vec<Block>)]) -> Result<(), DumpError> {
        let is_in = |vbn: u64, (first, blocks): &(Vbn, Vec<Block>)| {
            (first.0..first.0 + blocks.len() as u64).contains(&vbn)
        };
        self.cross_out(|sample| runs.iter().any(|run| is_in(sample.vbn, run)))
            .map_err(|error| StreamError::from(std::io::Error::other(error)))?;
        self.next.push_back(self.samples_of(dump, runs));
        Ok(())
    }

    fn written(&mut self, standing: &Standing) -> Result<(), DumpError> {
        self.standing.clone_from(standing);
        self.remember();
        let (blocks, since) = self.since;
        let more = standing.blocks.saturating_sub(blocks) * BLOCK;
        let passed = self.clock.monotonic().saturating_sub(since);
        if more >= MARK_BYTES || (more > 0 && passed >= MARK_EVERY) {
            self.mark()?;
        }
        Ok(())
    }
}

/// The restoring of a dump and those made against it.
pub(super) struct Restoring<'a> {
    pub(super) volumes: &'a Volumes,
    pub(super) request: &'a api::RestoreRequest,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) progress: &'a Progress,
}

impl<'a> Restoring<'a> {
    pub(super) fn run(
        &self,
        mut handed: Handed,
        size: Option<u64>,
    ) -> Result<api::RestoreResult, ServerError> {
        self.progress.phase("reading heads");
        let readers = self.read_heads(&mut handed)?;
        self.run_on(readers, &handed.gone, size)
    }

    /// The same from open parts. `gone` ends it.
    pub(super) fn run_on(
        &self,
        readers: Vec<PartReader>,
        gone: &Arc<AtomicBool>,
        size: Option<u64>,
    ) -> Result<api::RestoreResult, ServerError> {
        let dumps = cairn_stream::arrange(readers, false)?;
        let (unfinished, notes) = match self.request.resume {
            true => self.again(&dumps)?,
            false => self.begin(&dumps, size)?,
        };
        let mut keeper = Keeper::new(&unfinished, notes, self.request.resume, self.clock.clone());
        match self.fill(&unfinished, &mut keeper, dumps, gone) {
            Ok(restored) => self.finish(unfinished, restored),
            Err(error) if keeper.stays() => Err(ServerError::Dumps(DumpsError::RestoreCut {
                volume: self.request.name.clone(),
                source: Box::new(error),
            })),
            Err(error) => Err(error),
        }
    }

    fn read_heads(&self, handed: &mut Handed) -> Result<Vec<PartReader>, ServerError> {
        let mut readers = Vec::new();
        for (number, mut file) in handed.files.drain(..).enumerate() {
            let name = self.request.files.get(number).map_or("a file", String::as_str);
            let is_file = file.metadata().is_ok_and(|kind| kind.is_file());
            // The client's standard input may have other dumps before this one: it is read from its
            // position on, as a pipe is.
            let anywhere = is_file && file.stream_position().is_ok_and(|at| at == 0);
            readers.push(match anywhere {
                true => PartReader::open_file(name, &(Arc::new(Source::new(file)) as Arc<dyn DumpBytes>))?,
                false => PartReader::open(name, Box::new(file))?,
            });
        }
        Ok(readers)
    }

    /// Takes devices for a new volume. An earlier restore under its name is given up once the files
    /// are known to be dumps.
    fn begin(
        &self,
        dumps: &[Vec<PartReader>],
        size: Option<u64>,
    ) -> Result<(UnfinishedRestore<'a>, RestoreNotes), ServerError> {
        let parts = || dumps.iter().flatten();
        let need = parts().map(|part| part.head().stream.space_blocks).max().unwrap_or(0);
        let blocks = size.unwrap_or(need);
        if blocks < need {
            return Err(DumpError::from(StreamError::TooSmall { need, have: blocks }).into());
        }
        let api::RestoreRequest { name, devices, files, accept_damage, anew, .. } = self.request;
        if *anew {
            match self.volumes.give_up_restore(name) {
                Ok(())
                | Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedRestore { .. }))) => {}
                Err(error) => return Err(error),
            }
        }
        let unfinished = self.volumes.begin_restore(name, blocks, devices)?;
        let firsts = || dumps.iter().filter_map(|dump| dump.first());
        let notes = RestoreNotes {
            dumped_from: parts().last().map(|part| part.head().dump.name.clone()).unwrap_or_default(),
            begun_ms: self.clock.now().0 / 1_000_000,
            accept_damage: *accept_damage,
            files: files.clone(),
            dumps: ids(dumps),
            total_blocks: firsts().map(|part| part.head().dump.blocks).sum(),
            space_blocks: blocks,
            lengths: unfinished.parts().iter().map(|part| part.geometry().length).collect(),
            ..RestoreNotes::default()
        };
        Ok((unfinished, notes))
    }

    /// Resumes the unfinished one with the same dumps, wherever their files are now.
    fn again(&self, dumps: &[Vec<PartReader>]) -> Result<(UnfinishedRestore<'a>, RestoreNotes), ServerError> {
        let (unfinished, mut notes) = self.volumes.resume_restore(&self.request.name)?;
        if notes.of_mirror || notes.dumps != ids(dumps) {
            return Err(ServerError::Dumps(DumpsError::RestoreOfOthers {
                volume: self.request.name.clone(),
                files: notes.files,
            }));
        }
        notes.accept_damage |= self.request.accept_damage;
        notes.files.clone_from(&self.request.files);
        Ok((unfinished, notes))
    }

    /// Writes the missing blocks, makes the volume and checks it.
    fn fill(
        &self,
        unfinished: &UnfinishedRestore<'_>,
        keeper: &mut Keeper,
        dumps: Vec<Vec<PartReader>>,
        gone: &AtomicBool,
    ) -> Result<Filled, ServerError> {
        let there = keeper.notes.blocks;
        let mut tell = |at: cairn_stream::Progress| {
            let passes = there > 0 && at.blocks == there;
            self.progress.phase(if passes { "reading what is there" } else { "restoring" });
            let total = at.blocks_total.saturating_sub(there) * BLOCK;
            self.progress.bytes(at.blocks.saturating_sub(there) * BLOCK, total);
            if self.progress.cancelled().load(Ordering::Relaxed) {
                gone.store(true, Ordering::Relaxed);
            }
        };
        let threads = Some(&Scoped as &dyn Threads);
        let mut work = Work { cancel: gone, progress: &mut tell, threads };
        let device = unfinished.device();
        let RestoreNotes { accept_damage: accept, space_blocks: blocks, .. } = keeper.notes;
        let last = dumps.len().saturating_sub(1);
        self.progress.phase("restoring");
        let now = self.clock.now();
        let restored = cairn_stream::restore_on(dumps, &*device, blocks, accept, now, keeper, &mut work)?;
        keeper.cross_out(|sample| sample.dump != last)?;
        self.progress.phase("checking trees and maps");
        // Lost data is looked for in the check as well, so that it can be named.
        let lost: Vec<String> = (restored.lost.iter())
            .filter(|(_, lost)| !lost.spare)
            .map(|(file, lost)| format!("{file}: {lost}"))
            .collect();
        let depth = if lost.is_empty() { CheckDepth::Structures } else { CheckDepth::Everything };
        let findings = unfinished.check(depth, device)?;
        if let (false, Some(first)) = (accept, findings.first()) {
            return Err(ServerError::Dumps(DumpsError::RestoredDamaged {
                volume: self.request.name.clone(),
                finding: first.clone(),
            }));
        }
        Ok(Filled { restored, lost, findings })
    }

    fn finish(
        &self,
        unfinished: UnfinishedRestore<'_>,
        filled: Filled,
    ) -> Result<api::RestoreResult, ServerError> {
        let Filled { restored, lost, findings } = filled;
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
            there_bytes: restored.there * BLOCK,
            bytes: restored.bytes,
            lost,
            findings,
        })
    }
}

/// A volume that was restored and is not in service yet.
struct Filled {
    restored: Restored,
    lost: Vec<String>,
    findings: Vec<String>,
}

fn ids(dumps: &[Vec<PartReader>]) -> Vec<String> {
    let first = |dump: &Vec<PartReader>| dump.first().map(|part| part.head().dump.dump.to_string());
    dumps.iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests;
