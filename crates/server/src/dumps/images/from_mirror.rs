//! Restoring an image of a mirrored volume from a bucket into a new volume.
//!
//! The regions of the image are written to the devices in order, each checked against the digests
//! that the image has. The volume is made of them at the end, and its trees and maps are checked.
//!
//! An interrupted restore is resumed as one of a dump is (`restoring`): its notes have the id of
//! the image in the place of dumps, and the number of regions in the place of a position in a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Checksum, Clock, Vbn};
use cairn_bucket::Use;
use cairn_bucket::images::{ImageReader, ImagesError, REGION_BLOCKS, RegionBlocks, snapshots_of};
use cairn_device::{Block, BlockMut, Device, Operation};
use cairn_format::SnapshotEntry;
use cairn_format::stream::table_digest;
use cairn_stream::{DumpError, PartReached, RestoreLedger, Standing, StreamError};
use cairn_volume::{CheckDepth, FormatOptions, ReceivedImage, Role, Volume};

use super::BLOCK;
use super::notes::RestoreNotes;
use super::restoring::Keeper;
use crate::buckets::images::{ImagesPlace, WantedVolume};
use crate::daemon::server::Server;
use crate::dumps::error::DumpsError;
use crate::error::ServerError;
use crate::names;
use crate::volumes::disks::blocks_of;
use crate::volumes::{UnfinishedRestore, Volumes};
use crate::work::jobs::Progress;

/// Regions that are read at the same time.
const AT_ONCE: usize = 8;
/// Groups of regions that wait to be written.
const AHEAD: usize = 2;
/// How often a restore that waits for its bucket looks whether it is cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

type Runs = Vec<(Vbn, Vec<Block>)>;

/// Regions, and the outcome of reading each.
type Fetched = (Vec<u32>, Vec<Result<RegionBlocks, ImagesError>>);

impl Server {
    /// Begins to make a new volume of an image in a bucket, or resumes that.
    pub(crate) fn restore_bucket_mirror(
        &self,
        request: &api::RestoreBucketMirror,
    ) -> Result<api::Job, ServerError> {
        names::check("volume", &request.name)?;
        let mut wanted = WantedVolume::parse(&request.from)?;
        if wanted.volume.is_none() {
            return Err(ServerError::Invalid {
                fault: "the source of a restore has no volume",
                next: "name it as `BUCKET:[PATH/]VOLUME`; `cairn mirror images BUCKET:` lists them",
            });
        }
        wanted.image = request.image.clone().or(wanted.image);
        let size = request.size_bytes.map(blocks_of).transpose()?;
        if request.resume && (request.anew || size.is_some() || !request.devices.is_empty()) {
            let fault = "a resumed restore has its size and its devices already, and does not start anew";
            let next = "leave out --resume, or else --size, --device and --anew";
            return Err(ServerError::Invalid { fault, next });
        }
        if !request.resume && !request.anew {
            self.volumes.refuse_if_restored(&request.name)?;
        }
        let by = "mirror restore";
        let ready = self.buckets.open_for(&wanted.place.bucket, by, &Default::default())?;
        ready.refuse_unsafe_for(Use::Dump)?;
        let (volumes, clock, buckets) = (self.volumes.clone(), self.clock.clone(), self.buckets.clone());
        let request = request.clone();
        self.jobs.start(by, &request.name.clone(), move |progress| {
            let open = buckets.open_for(&wanted.place.bucket, by, progress.waiting())?;
            drop(ready);
            let (place, cancel) = (wanted.place.clone(), progress.cancel_flag());
            let failed = |error| place.failed(error);
            progress.phase("opening the image");
            let found = wanted.one(&open, cancel)?;
            let images = place.images(&open, found.id, None)?;
            let label = wanted.image_of(&images.images(cancel).map_err(failed)?)?;
            let reader = images.image(Some(label.id), cancel).map_err(failed)?;
            let entries = snapshots_of(reader.content()).ok();
            let is_whole = |entries: &Vec<SnapshotEntry>| table_digest(entries.iter()).0 == label.id.0;
            let Some(entries) = entries.filter(is_whole) else {
                return Err(ServerError::from(DumpsError::ImageTable { from: wanted.to_string() }));
            };
            let restoring = Restoring {
                volumes: &volumes,
                request: &request,
                place: &place,
                name: format!("{place}{}@{}", found.id, label.id),
                reader: &reader,
                clock,
                progress,
                size,
            };
            let options = FormatOptions { id: found.id, blocks: 0, role: Role::Normal };
            Ok(Some(api::JobOutcome::Restore(restoring.run(found.claim.volume(), options, entries)?)))
        })
    }
}

struct Restoring<'a> {
    volumes: &'a Volumes,
    request: &'a api::RestoreBucketMirror,
    place: &'a ImagesPlace,
    /// Exactly this image.
    name: String,
    reader: &'a ImageReader,
    clock: Arc<dyn Clock>,
    progress: &'a Progress,
    size: Option<u64>,
}

impl<'a> Restoring<'a> {
    fn run(
        &self,
        restored_from: &str,
        options: FormatOptions,
        entries: Vec<SnapshotEntry>,
    ) -> Result<api::RestoreResult, ServerError> {
        let regions: Vec<(u32, u32)> = self.reader.regions().collect();
        let (unfinished, notes) = match self.request.resume {
            true => self.again()?,
            false => self.begin(restored_from, &entries, regions.len())?,
        };
        let there = notes.blocks;
        let options = FormatOptions { blocks: notes.space_blocks, ..options };
        let mut keeper = Keeper::new(&unfinished, notes, self.request.resume, self.clock.clone());
        let filled = self.fill(&unfinished, &mut keeper, &regions, &options, &entries);
        let (blocks, findings) = match filled {
            Ok(filled) => filled,
            Err(error) if keeper.stays() => {
                return Err(DumpsError::RestoreCut {
                    volume: self.request.name.clone(),
                    source: Box::new(error),
                }
                .into());
            }
            Err(error) => return Err(error),
        };
        let open = unfinished.finish()?;
        tracing::info!(volume = open.name, from = self.name, "restored a volume from an image in a bucket");
        let target = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
        Ok(api::RestoreResult {
            volume: open.name.clone(),
            dumped_from: restored_from.to_owned(),
            snapshot: format!("{}@{target}", open.name),
            snapshots: entries.len() as u64,
            data_bytes: blocks * BLOCK,
            there_bytes: there * BLOCK,
            bytes: regions.iter().map(|(_, bytes)| u64::from(*bytes)).sum(),
            lost: Vec::new(),
            findings,
        })
    }

    /// Takes devices for a new volume.
    fn begin(
        &self,
        restored_from: &str,
        entries: &[SnapshotEntry],
        regions: usize,
    ) -> Result<(UnfinishedRestore<'a>, RestoreNotes), ServerError> {
        let need = entries.iter().map(|entry| entry.root.blocks).max().unwrap_or(0);
        let blocks = self.size.unwrap_or(need);
        if blocks < need {
            return Err(DumpError::from(StreamError::TooSmall { need, have: blocks }).into());
        }
        let api::RestoreBucketMirror { name, devices, anew, .. } = self.request;
        if *anew {
            match self.volumes.give_up_restore(name) {
                Ok(()) => {}
                Err(error) if error.kind() == api::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let unfinished = self.volumes.begin_restore(name, blocks, devices)?;
        let notes = RestoreNotes {
            dumped_from: restored_from.to_owned(),
            begun_ms: self.clock.now().0 / 1_000_000,
            files: vec![self.name.clone()],
            dumps: vec![self.image()],
            // At most: regions are rarely full.
            total_blocks: (regions * REGION_BLOCKS) as u64,
            space_blocks: blocks,
            lengths: unfinished.parts().iter().map(|part| part.geometry().length).collect(),
            of_mirror: true,
            ..RestoreNotes::default()
        };
        Ok((unfinished, notes))
    }

    /// Resumes the unfinished restore of the same image.
    fn again(&self) -> Result<(UnfinishedRestore<'a>, RestoreNotes), ServerError> {
        let (unfinished, notes) = self.volumes.resume_restore(&self.request.name)?;
        if !notes.of_mirror || notes.dumps != [self.image()] {
            return Err(DumpsError::RestoreOfOthers {
                volume: self.request.name.clone(),
                files: notes.files,
            }
            .into());
        }
        Ok((unfinished, notes))
    }

    fn image(&self) -> String {
        self.reader.label().id.to_string()
    }

    /// Writes the missing regions, makes the volume and checks it. Returns the blocks that were
    /// written in all, and the findings.
    fn fill(
        &self,
        unfinished: &UnfinishedRestore<'_>,
        keeper: &mut Keeper,
        regions: &[(u32, u32)],
        options: &FormatOptions,
        entries: &[SnapshotEntry],
    ) -> Result<(u64, Vec<String>), ServerError> {
        let device = unfinished.device();
        let mut standing = keeper.standing();
        standing.parts.resize(1, None);
        let start = standing.parts.first().and_then(Option::as_ref).map_or(0, |part| part.offset);
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(regions.len());
        let bytes = |of: &[(u32, u32)]| of.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        let missing = regions.get(start..).unwrap_or_default();
        let total = bytes(missing);
        self.progress.phase("restoring");
        self.progress.bytes(0, total);
        let (give, queue) = sync_channel(AHEAD);
        // Ends the reader when the writer has failed.
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (reader, stops) = (self.reader, stop.clone());
            let read = move || {
                for some in missing.chunks(AT_ONCE) {
                    let numbers: Vec<u32> = some.iter().map(|(region, _)| *region).collect();
                    let read = reader.read_regions(&numbers, &stops);
                    if give.send((numbers, read)).is_err() {
                        return;
                    }
                }
            };
            let spawned = std::thread::Builder::new().name("restore".to_owned()).spawn_scoped(scope, read);
            spawned.map_err(|source| ServerError::Thread { what: "a restore", source })?;
            let mut done = 0;
            let outcome = self.write_all(&queue, &stop, |some, runs| {
                if runs.iter().any(|(first, blocks)| first.0 + blocks.len() as u64 > options.blocks) {
                    return Err(self.failed(ImagesError::Rule("a block of the image is past its end")));
                }
                keeper.writing(0, &runs)?;
                let count: usize = runs.iter().map(|(_, blocks)| blocks.len()).sum();
                let at = Volume::space_offset(options.blocks);
                let write = |(first, blocks): (Vbn, Vec<Block>)| {
                    Operation::write(at + first.0 * BLOCK, blocks.into_iter().collect())
                };
                let mut batch: Vec<Operation> = runs.into_iter().map(write).collect();
                device.run(&mut batch);
                batch.into_iter().try_for_each(|write| write.into_outcome().map(drop))?;
                advance(&mut standing, some, count as u64);
                keeper.written(&standing)?;
                done += some;
                self.progress.bytes(bytes(missing.get(..done).unwrap_or_default()), total);
                Ok(())
            });
            stop.store(true, Ordering::Relaxed);
            drop(queue);
            outcome
        })?;
        self.progress.phase("making the volume");
        let target = entries.last().map(|entry| entry.id).ok_or(ServerError::Bug)?;
        let image = ReceivedImage { target, snapshots: entries.to_vec() };
        let failed = ServerError::volume(&self.request.name);
        Volume::adopt(&*device, options, &image, self.clock.now()).map_err(&failed)?;
        self.progress.phase("checking trees and maps");
        let findings = unfinished.check(CheckDepth::Structures, device)?;
        match findings.first() {
            Some(first) => {
                Err(DumpsError::RestoredDamaged { volume: self.request.name.clone(), finding: first.clone() }
                    .into())
            }
            None => Ok((standing.blocks, findings)),
        }
    }

    /// Gives the regions to `write` as they come, until an error or a cancellation.
    fn write_all(
        &self,
        queue: &Receiver<Fetched>,
        stop: &AtomicBool,
        mut write: impl FnMut(usize, Runs) -> Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        loop {
            let next = queue.recv_timeout(LOOK_EVERY);
            if self.progress.cancelled().load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
                return Err(DumpError::from(StreamError::Cancelled).into());
            }
            let (numbers, read) = match next {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let mut runs = Runs::new();
            let count = numbers.len();
            for (region, blocks) in numbers.into_iter().zip(read) {
                add(&mut runs, region, &blocks.map_err(|error| self.failed(error))?);
            }
            write(count, runs)?;
        }
    }

    fn failed(&self, error: ImagesError) -> ServerError {
        self.place.failed(error)
    }
}

/// Some more regions are on the devices.
fn advance(standing: &mut Standing, regions: usize, blocks: u64) {
    standing.blocks += blocks;
    let Some(part) = standing.parts.first_mut() else { return };
    let before = part.as_ref().map_or(0, |part| part.offset);
    *part = Some(PartReached {
        offset: before + regions as u64,
        sequence: 0,
        digest: Checksum::default(),
        digest_lost: false,
        blocks: standing.blocks,
        last: Vbn(0),
        lost: Vec::new(),
    });
}

/// Adds the blocks of a region, as runs.
fn add(runs: &mut Runs, region: u32, blocks: &RegionBlocks) {
    for (place, bytes) in blocks.iter() {
        let vbn = u64::from(region) * REGION_BLOCKS as u64 + place as u64;
        let mut block = BlockMut::zeroed();
        block.copy_from_slice(bytes);
        let block = block.freeze();
        match runs.last_mut() {
            Some((first, run)) if first.0 + run.len() as u64 == vbn => run.push(block),
            _ => runs.push((Vbn(vbn), vec![block])),
        }
    }
}
