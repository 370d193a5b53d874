//! Fetches blocks of the image and installs them: for reads, ahead of reads, and in the background.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Condvar, Mutex};
use cairn_device::{DeviceError, Operation, Segments};

use super::cache::Cache;
use super::error::FetchError;
use super::presence::{Bits, bits_of, has, runs};
use super::{BLOCK, PARTIAL_MAX, REGION, STRIPES, Shared};
use crate::images::{FRAME_BLOCKS, FRAMES, ImageId, ImagesError, REGION_BLOCKS, RegionPart};
use crate::workers::beside;

/// Regions that one batch fetches at the same time.
const AT_ONCE: usize = 16;
/// Regions that are fetched ahead of a reader, once it reads in order.
const AHEAD_MIN: u64 = 4;
/// The same at most: the window doubles with each region that the reader passes.
const AHEAD_MAX: u64 = 24;
/// Readers whose progress is known.
const STREAMS: usize = 8;
/// Fetches ahead in progress. More are left out. Each takes up to 8 MiB of memory: the object, and
/// its blocks until they are written.
const PREFETCHES_MAX: usize = 24;
/// Blocks that a reader may skip and still count as one that reads in order.
const SKIP_BLOCKS: u64 = 64;
/// Damaged objects that are remembered.
const DAMAGED_MAX: usize = 16;

/// The outcome of [`super::BackedDevice::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Bytes that were fetched.
    pub bytes: u64,
    /// Regions that still lack blocks.
    pub lacking: u64,
}

/// A fetch of a whole region that is in progress.
#[derive(Default)]
pub(super) struct Flight {
    landed: Mutex<bool>,
    lands: Condvar,
}

/// Readers that read in order.
#[derive(Default)]
pub(super) struct Ahead {
    streams: Vec<Stream>,
}

#[derive(Clone, Copy)]
struct Stream {
    /// The block that the reader wants next.
    next: u64,
    /// How often it was right.
    hits: u32,
    /// Regions before this one are fetched or on their way.
    until: u64,
    /// The furthest region that it has read.
    region: u64,
    /// Regions that are fetched ahead of it.
    window: u64,
}

/// Blocks that a batch reads and that were not local.
pub(super) struct Brought {
    pub(super) region: u32,
    /// Blocks that the local device had no room for, or why there are none.
    pub(super) kept: Result<Option<RegionPart>, DeviceError>,
}

impl Ahead {
    /// A reader wants `first..end`. Returns whether it reads in order, and the regions to fetch
    /// ahead. With `begins` it may be a new reader.
    fn note(&mut self, (first, end): (u64, u64), begins: bool) -> (bool, Range<u64>) {
        let region = end.saturating_sub(1) / REGION;
        // Clients have several requests in flight, which arrive in any order.
        let continues = |stream: &Stream| {
            let near = stream.next.saturating_sub(REGION)..=stream.next + SKIP_BLOCKS;
            near.contains(&first)
                || (stream.hits > 0 && stream.next < first && first / REGION <= stream.until)
        };
        let found = self.streams.iter().position(continues);
        let Some(at) = found else {
            if !begins {
                return (false, 0..0);
            }
            if self.streams.len() >= STREAMS {
                self.streams.remove(0);
            }
            let new = Stream { next: end, hits: 0, until: region + 1, region, window: AHEAD_MIN };
            self.streams.push(new);
            return (false, 0..0);
        };
        let mut stream = self.streams.remove(at);
        (stream.next, stream.hits) = (end.max(stream.next), stream.hits + 1);
        if region > stream.region {
            (stream.region, stream.window) = (region, (stream.window * 2).min(AHEAD_MAX));
        }
        let ahead = stream.until.max(region + 1)..stream.region + 1 + stream.window;
        stream.until = stream.until.max(ahead.end);
        self.streams.push(stream);
        (true, ahead)
    }

    /// Of the regions up to `until` that a reader was promised, those from `region` on are not
    /// fetched: its next read asks for them again.
    fn not_fetched(&mut self, region: u64, until: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.until == until) {
            stream.until = region;
        }
    }
}

impl Shared {
    /// Makes sure that the given blocks are local, as far as possible. Regions are fetched at the
    /// same time.
    pub(super) fn bring(
        self: &Arc<Self>,
        needs: Vec<(u32, Bits, bool)>,
        cancel: &Arc<AtomicBool>,
    ) -> Vec<Brought> {
        let mut all = Vec::new();
        for some in needs.chunks(AT_ONCE) {
            let Some((own, others)) = some.split_last() else { break };
            let started: Vec<_> = others
                .iter()
                .map(|need| {
                    let (shared, need, cancel) = (self.clone(), *need, cancel.clone());
                    beside(&self.workers, move || shared.bring_one(need, &cancel)).ok()
                })
                .collect();
            let last = self.bring_one(*own, cancel);
            for (need, receiver) in others.iter().zip(started) {
                let brought = receiver.and_then(|receiver| receiver.recv().ok());
                // Without a thread it is fetched from here.
                all.push(brought.unwrap_or_else(|| self.bring_one(*need, cancel)));
            }
            all.push(last);
        }
        all
    }

    fn bring_one(&self, (region, wanted, whole): (u32, Bits, bool), cancel: &Arc<AtomicBool>) -> Brought {
        let kept = self.bring_blocks((region, wanted), whole, cancel);
        Brought { region, kept }
    }

    /// Fetches those of the wanted blocks of a region that are absent.
    fn bring_blocks(
        &self,
        (region, wanted): (u32, Bits),
        whole: bool,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Option<RegionPart>, DeviceError> {
        loop {
            // It may come with another fetch.
            let flight = self.flights.lock().get(&region).cloned();
            if let Some(flight) = flight {
                let mut landed = flight.landed.lock();
                while !*landed {
                    flight.lands.wait(&mut landed);
                }
            }
            let Some(absent) = self.presence.absent(region) else { return Ok(None) };
            let lacks: Vec<usize> =
                (0..REGION_BLOCKS).filter(|place| has(&absent, *place) && has(&wanted, *place)).collect();
            let (Some(first), Some(last)) = (lacks.first(), lacks.last()) else { return Ok(None) };
            let many = self.cache.is_none() && self.presence.partial() >= PARTIAL_MAX;
            let frames = match whole || many {
                true => 0..FRAMES,
                false => first / FRAME_BLOCKS..last / FRAME_BLOCKS + 1,
            };
            if frames.len() < FRAMES {
                return self.fetch(region, frames, cancel);
            }
            if let Some(fetched) = self.fetch_whole(region, cancel) {
                return fetched;
            }
        }
    }

    /// Fetches a whole region, unless another thread does so.
    fn fetch_whole(
        &self,
        region: u32,
        cancel: &Arc<AtomicBool>,
    ) -> Option<Result<Option<RegionPart>, DeviceError>> {
        let flight = {
            let mut flights = self.flights.lock();
            if flights.contains_key(&region) {
                return None;
            }
            let flight = Arc::new(Flight::default());
            flights.insert(region, flight.clone());
            flight
        };
        /// Ends the flight, also after a panic.
        struct Landing<'a>(&'a Shared, u32, Arc<Flight>);
        impl Drop for Landing<'_> {
            fn drop(&mut self) {
                self.0.flights.lock().remove(&self.1);
                *self.2.landed.lock() = true;
                self.2.lands.notify_all();
            }
        }
        let _landing = Landing(self, region, flight);
        Some(self.fetch(region, 0..FRAMES, cancel))
    }

    /// Fetches frames and installs them. Returns blocks for which the local device has no room.
    fn fetch(
        &self,
        region: u32,
        frames: Range<usize>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Option<RegionPart>, DeviceError> {
        let base = self.presence.base();
        let read = self.source.read_frames(base.image, region, frames, cancel);
        let offset = self.space_at + u64::from(region) * REGION * BLOCK;
        let part =
            read.map_err(|source| self.failed_fetch(region, source).to_device(offset, REGION * BLOCK))?;
        self.fetched.fetch_add((part.blocks.len() as u64) * BLOCK, Ordering::Relaxed);
        {
            let mut report = self.report.lock();
            report.trouble = None;
            report.damaged.retain(|known| known.region != region);
        }
        self.install(base.image, region, part)
    }

    fn failed_fetch(&self, region: u32, source: ImagesError) -> FetchError {
        let error = FetchError { region, source: Arc::new(source) };
        let cancelled = matches!(&*error.source, ImagesError::Store(store) if store.is_cancelled());
        let mut report = self.report.lock();
        if cancelled {
            return error;
        }
        report.failures += 1;
        let known = report.damaged.iter().any(|known| known.region == region);
        if error.is_damage() && !known && report.damaged.len() < DAMAGED_MAX {
            report.damaged.push(error.clone());
        }
        report.trouble = Some(error.clone());
        report.last_failure = Some(error.clone());
        error
    }

    /// Puts fetched blocks into their places, except those that became local meanwhile (invariant
    /// 3), and marks them. Without room in the cache they are only returned, and so are those of an
    /// image that is not the present one any more.
    fn install(
        &self,
        image: ImageId,
        region: u32,
        part: RegionPart,
    ) -> Result<Option<RegionPart>, DeviceError> {
        let stripe = self.stripes.get(region as usize % STRIPES).ok_or(DeviceError::OutOfService)?;
        let _alone = stripe.write();
        let Some(absent) = self.presence.absent(region) else { return Ok(None) };
        let keeps = self.cache.as_ref().is_none_or(|cache| cache.keeps_reads(part.blocks.len() as u64));
        if self.failed.lock().is_some() || !keeps || self.presence.base().image != image {
            return Ok(Some(part));
        }
        // All of the fetched frames, and every place that the image does not use.
        let mut covered = bits_of(part.frames.start * FRAME_BLOCKS, part.frames.len() * FRAME_BLOCKS);
        for (frame, live) in part.live.iter().enumerate() {
            for place in (0..FRAME_BLOCKS).filter(|place| live >> place & 1 == 0) {
                let place = frame * FRAME_BLOCKS + place;
                covered[place / 64] |= 1 << (place % 64);
            }
        }
        let mut writes = [0; REGION_BLOCKS / 64];
        for (place, _) in part.blocks.iter().filter(|(place, _)| has(&absent, *place)) {
            writes[place / 64] |= 1 << (place % 64);
        }
        let mut blocks = part.blocks.iter().filter(|(place, _)| has(&absent, *place));
        let at = self.space_at + u64::from(region) * REGION * BLOCK;
        let mut batch = Vec::new();
        for (first, count) in runs(&writes) {
            let data: Segments = blocks.by_ref().take(count).map(|(_, block)| block.clone()).collect();
            batch.push(Operation::write(at + first as u64 * BLOCK, data));
        }
        self.local.run(&mut batch);
        match batch.into_iter().try_for_each(Operation::into_outcome) {
            Ok(()) => {}
            Err(DeviceError::NoSpace { .. }) => return Ok(Some(part)),
            Err(error) => return Err(error),
        }
        if let Some(cache) = &self.cache {
            cache.filled(region, &writes);
        }
        self.presence.mark(region, &covered);
        Ok(None)
    }

    /// A reader wants blocks: fetches regions ahead of it, and returns whether it reads in order.
    pub(super) fn look_ahead(self: &Arc<Self>, first: u64, end: u64, begins: bool) -> bool {
        let (in_order, ahead) = self.ahead.lock().note((first, end), begins);
        self.looks_ahead.store(true, Ordering::Relaxed);
        // Without room they would be fetched for nothing.
        let has_room = |flying: usize| {
            let keeps = |cache: &Cache| cache.keeps_reads((flying as u64 + 1) * REGION);
            flying <= PREFETCHES_MAX && self.cache.as_ref().is_none_or(keeps)
        };
        let until = ahead.end;
        for region in ahead.filter(|region| self.presence.is_lacking(*region)) {
            let Ok(number) = u32::try_from(region) else { break };
            if !has_room(self.prefetches.fetch_add(1, Ordering::AcqRel) + 1) {
                self.prefetches.fetch_sub(1, Ordering::AcqRel);
                self.ahead.lock().not_fetched(region, until);
                break;
            }
            let shared = self.clone();
            let job = move || {
                // A failure shows again when the blocks are read.
                let _ = shared.fetch_whole(number, &shared.cancel);
                shared.prefetches.fetch_sub(1, Ordering::AcqRel);
            };
            if self.workers.start(Box::new(job)).is_err() {
                self.prefetches.fetch_sub(1, Ordering::AcqRel);
                self.ahead.lock().not_fetched(region, until);
                break;
            }
        }
        in_order
    }

    /// See [`super::BackedDevice::fill`].
    pub(super) fn fill(
        self: &Arc<Self>,
        count: usize,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Filled, DeviceError> {
        let mut from = self.cursor.load(Ordering::Relaxed);
        let mut needs = Vec::new();
        for _ in 0..count {
            let next = self.presence.next_lacking(from).or_else(|| self.presence.next_lacking(0));
            let Some(region) = next else { break };
            if needs.iter().any(|(known, _, _)| *known == region) {
                break;
            }
            needs.push((region, [u64::MAX; REGION_BLOCKS / 64], true));
            from = u64::from(region) + 1;
        }
        self.cursor.store(from, Ordering::Relaxed);
        let before = self.fetched.load(Ordering::Relaxed);
        let mut outcome = Ok(());
        for brought in self.bring(needs, cancel) {
            match brought.kept {
                Err(error) => outcome = Err(error),
                Ok(Some(part)) => {
                    let length = part.blocks.len() as u64 * BLOCK;
                    let offset = self.space_at + u64::from(brought.region) * REGION * BLOCK;
                    let failed = self.failed.lock().clone();
                    outcome = Err(failed.unwrap_or(DeviceError::NoSpace { offset, length }));
                }
                Ok(None) => {}
            }
        }
        outcome?;
        let bytes = self.fetched.load(Ordering::Relaxed).saturating_sub(before);
        Ok(Filled { bytes, lacking: self.presence.lacking() })
    }
}
