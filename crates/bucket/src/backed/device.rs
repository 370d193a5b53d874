//! The device: batches are run on the local device, after the blocks that they read are there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::BLOCK_SIZE;
use cairn_device::{Device, DeviceError, Extent, Geometry, Operation, Request, Segments};
use parking_lot::RwLockReadGuard;

use super::presence::{Bits, bits_of, has};
use super::{BLOCK, BackedDevice, REGION, STRIPES, Shared};
use crate::images::{REGION_BLOCKS, RegionPart};

/// Marks after which a batch makes them durable without a flush of its caller.
const UNSAVED_MAX: usize = 64 << 10;

impl Device for BackedDevice {
    fn geometry(&self) -> Geometry {
        let local = self.shared.local.geometry();
        Geometry { alignment: local.alignment.max(BLOCK_SIZE as u32), ..local }
    }

    fn run(&self, batch: &mut [Operation]) {
        let shared = &self.shared;
        if shared.cache.is_none() && shared.presence.is_whole() && !shared.presence.is_unsaved() {
            return shared.local.run(batch);
        }
        let geometry = self.geometry();
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if let Err(refused) = geometry.admit(operation.request()) {
                operation.finish(Err(refused));
            }
        }
        let mut at = 0;
        while let Some(rest) = batch.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let is_flush = |operation: &Operation| operation.is_pending() && operation.is_flush();
            let flush = rest.iter().position(is_flush).unwrap_or(rest.len());
            let (now, later) = rest.split_at_mut(flush);
            match &shared.cache {
                Some(cache) => shared.stage_cached(cache, now),
                None => shared.stage(now),
            }
            if let Some(flush) = later.first_mut() {
                flush.finish(shared.sync().map(|()| Segments::default()));
            }
            at += flush + 1;
        }
        if shared.presence.unsaved() > UNSAVED_MAX
            && shared.failed.lock().is_none()
            && let Err(error) = shared.sync()
        {
            tracing::warn!(%error, "marks of local blocks are not durable yet");
        }
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        if let Some(cache) = &self.shared.cache {
            let geometry = self.geometry();
            if batch.iter().all(|operation| geometry.admit(operation.request()).is_ok()) {
                self.shared.ready_cached(cache, batch);
            }
        } else if self.is_whole() && !self.shared.presence.is_unsaved() {
            self.shared.local.run_ready(batch);
        }
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        if self.shared.cache.is_none() && self.is_whole() {
            return self.shared.local.extents(offset, length, limit);
        }
        self.geometry().admit_range(cairn_device::Action::Extents, offset, length)?;
        let all = Extent { length, hole: false, zero: false };
        Ok(if length == 0 || limit == 0 { Vec::new() } else { vec![all] })
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        // It may clear unwritten places, which would race with blocks that arrive.
        match self.shared.touches(offset, length) {
            true => self.geometry().admit_range(cairn_device::Action::Write, offset, length),
            false => self.shared.local.prepare(offset, length),
        }
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.shared.local.allocate(offset, length)
    }
}

/// A part of a range in one region: the region, the first place and how many.
pub(super) type Stretch = (u32, usize, usize);

pub(super) fn is_durable(request: &Request) -> bool {
    match request {
        Request::Write { fua, .. } | Request::Trim { fua, .. } | Request::WriteZeroes { fua, .. } => *fua,
        Request::Read { .. } | Request::Prefetch { .. } | Request::Flush => false,
    }
}

impl Shared {
    /// The parts of a range of bytes that are in lacking regions.
    pub(super) fn stretches(&self, offset: u64, length: u64) -> Vec<Stretch> {
        let (space, mut parts) = (self.space_at / BLOCK, Vec::new());
        let (first, end) = (offset / BLOCK, offset.saturating_add(length).div_ceil(BLOCK));
        let (mut at, end) = (first.max(space) - space, end.max(space) - space);
        let end = end.min(self.backing.blocks);
        while at < end {
            let (region, place) = (at / REGION, at % REGION);
            let count = (REGION - place).min(end - at);
            if self.presence.is_lacking(region)
                && let Ok(region) = u32::try_from(region)
            {
                parts.push((region, place as usize, count as usize));
            }
            at += count;
        }
        parts
    }

    fn touches(&self, offset: u64, length: u64) -> bool {
        if self.cache.is_some() && offset.saturating_add(length) > self.space_at {
            return true;
        }
        !self.presence.is_whole() && !self.stretches(offset, length).is_empty()
    }

    /// Runs operations without a flush among them.
    fn stage(self: &Arc<Self>, batch: &mut [Operation]) {
        let mut needs: BTreeMap<u32, (Bits, bool)> = BTreeMap::new();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (index, operation) in batch.iter().enumerate().filter(|(_, operation)| operation.is_pending()) {
            let Some((_, offset, length)) = operation.request().range() else { continue };
            let parts = self.stretches(offset, length);
            match operation.request() {
                Request::Read { .. } => {
                    self.add_needs(&mut needs, &parts, offset, length);
                    if !parts.is_empty() {
                        reads.push((index, parts));
                    }
                }
                Request::Prefetch { .. } | Request::Flush => {}
                _ => writes.push((index, parts)),
            }
        }
        // A region may have become local by marks that are not durable. So a change that must be
        // durable waits for them, wherever it is. Changes keep their order, so it is all or none.
        let waits = |(index, _): &(usize, Vec<Stretch>)| {
            is_durable(batch[*index].request()) && self.presence.is_unsaved()
        };
        if writes.iter().all(|(_, parts)| parts.is_empty()) && !writes.iter().any(waits) {
            writes.clear();
        }
        let wanted = needs.into_iter().map(|(region, (bits, whole))| (region, bits, whole)).collect();
        let mut kept: BTreeMap<u32, Result<RegionPart, DeviceError>> = BTreeMap::new();
        for brought in self.bring(wanted, &self.cancel) {
            if let Some(outcome) = brought.kept.transpose() {
                kept.insert(brought.region, outcome);
            }
        }
        if !kept.is_empty() {
            for (index, parts) in &reads {
                self.read_apart(&mut batch[*index], parts, &kept);
            }
        }
        self.write_lacking(batch, &writes);
        self.local.run(batch);
    }

    /// Adds the blocks of a read that are not local.
    pub(super) fn add_needs(
        self: &Arc<Self>,
        needs: &mut BTreeMap<u32, (Bits, bool)>,
        parts: &[Stretch],
        offset: u64,
        length: u64,
    ) {
        let is_absent = |(region, place, count): &Stretch| {
            self.presence
                .absent(*region)
                .is_some_and(|absent| (*place..place + count).any(|place| has(&absent, place)))
        };
        let is_needed = parts.iter().any(is_absent);
        if !is_needed && !self.looks_ahead.load(Ordering::Relaxed) {
            return;
        }
        let first = offset.saturating_sub(self.space_at) / BLOCK;
        let in_order = self.look_ahead(first, first + length.div_ceil(BLOCK), is_needed);
        if !is_needed {
            return;
        }
        for (region, place, count) in parts {
            let (bits, whole) = needs.entry(*region).or_insert(([0; REGION_BLOCKS / 64], false));
            for (word, more) in bits.iter_mut().zip(bits_of(*place, *count)) {
                *word |= more;
            }
            *whole |= in_order || *count == REGION_BLOCKS;
        }
    }

    /// Completes a read of which some blocks could not be made local.
    pub(super) fn read_apart(
        &self,
        operation: &mut Operation,
        parts: &[Stretch],
        kept: &BTreeMap<u32, Result<RegionPart, DeviceError>>,
    ) {
        let Some((_, offset, length)) = operation.request().range() else { return };
        let mut overlay: BTreeMap<u64, &[u8]> = BTreeMap::new();
        for (region, place, count) in parts {
            let Some(outcome) = kept.get(region) else { continue };
            let Some(absent) = self.presence.absent(*region) else { continue };
            let lacks = |place: &usize| has(&absent, *place);
            match outcome {
                // Local by now, or in the frames that others fetched.
                Err(_) if !(*place..place + count).any(|place| lacks(&place)) => {}
                Err(error) => {
                    operation.finish(Err(error.clone()));
                    return;
                }
                Ok(part) => {
                    let at = self.space_at + u64::from(*region) * REGION * BLOCK;
                    let wanted = *place..place + count;
                    let blocks = part.blocks.iter().filter(|(at, _)| wanted.contains(at) && lacks(at));
                    overlay.extend(blocks.map(|(place, block)| (at + *place as u64 * BLOCK, &block[..])));
                }
            }
        }
        if overlay.is_empty() {
            return;
        }
        let outcome = self.local.read(offset, length as u32).map(|local| {
            let mut bytes = local.to_vec();
            for (at, block) in overlay {
                let start = (at - offset) as usize;
                if let Some(place) = bytes.get_mut(start..start + block.len()) {
                    place.copy_from_slice(block);
                }
            }
            Segments::copy_of(&bytes)
        });
        operation.finish(outcome);
    }

    /// Runs changes of lacking regions, and marks their blocks. Those that must be durable when
    /// they complete are followed by a sync.
    fn write_lacking(&self, batch: &mut [Operation], writes: &[(usize, Vec<Stretch>)]) {
        if writes.is_empty() {
            return;
        }
        if let Some(error) = self.failed.lock().clone() {
            writes.iter().for_each(|(index, _)| batch[*index].finish(Err(error.clone())));
            return;
        }
        let mut durable = false;
        let mut own: Vec<Operation> = Vec::with_capacity(writes.len());
        for (index, _) in writes {
            let mut request = batch[*index].request().clone();
            durable |= is_durable(&request);
            if let Request::Write { fua, .. } | Request::Trim { fua, .. } | Request::WriteZeroes { fua, .. } =
                &mut request
            {
                *fua = false;
            }
            own.push(Operation::new(request));
        }
        {
            let _shared = self.share(writes);
            self.local.run(&mut own);
            for ((_, parts), operation) in writes.iter().zip(&own) {
                if matches!(operation.outcome(), Some(Ok(_))) {
                    for (region, place, count) in parts {
                        self.presence.mark(*region, &bits_of(*place, *count));
                    }
                }
            }
        }
        let synced = if durable { self.sync() } else { Ok(()) };
        for ((index, _), operation) in writes.iter().zip(own) {
            let outcome = operation.into_outcome().and_then(|()| synced.clone());
            batch[*index].finish(outcome.map(|()| Segments::default()));
        }
    }

    /// The locks of the regions, shared: in order, each once.
    pub(super) fn share(&self, writes: &[(usize, Vec<Stretch>)]) -> Vec<RwLockReadGuard<'_, ()>> {
        let regions = writes.iter().flat_map(|(_, parts)| parts.iter().map(|(region, _, _)| *region));
        let mut numbers: Vec<usize> = regions.map(|region| region as usize % STRIPES).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
            .into_iter()
            .filter_map(|number| self.stripes.get(number))
            .map(|stripe| stripe.read())
            .collect()
    }

    /// Makes everything durable that completed: first the bytes, then the marks.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        if !self.presence.is_unsaved() {
            self.refuse_failed()?;
            return self.latched(self.local.flush());
        }
        let mut record = self.record.lock();
        self.refuse_failed()?;
        let marks = self.presence.take();
        if !record.has_room(&marks) {
            self.presence.give_back(marks);
            let (snapshot, marks) = self.presence.snapshot();
            let written =
                self.local.flush().and_then(|()| record.checkpoint(&*self.presence_file, &snapshot));
            return self.settle(marks, written);
        }
        let written = self.local.flush().and_then(|()| match marks.is_empty() {
            true => Ok(()),
            false => record.append(&*self.presence_file, &marks),
        });
        self.settle(marks, written)
    }

    fn settle(
        &self,
        marks: Vec<super::presence::Change>,
        written: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        match self.latched(written) {
            Ok(()) => {
                self.presence.saved(marks.len());
                Ok(())
            }
            Err(error) => {
                self.presence.give_back(marks);
                Err(error)
            }
        }
    }

    pub(super) fn refuse_failed(&self) -> Result<(), DeviceError> {
        self.failed.lock().clone().map_or(Ok(()), Err)
    }

    /// Remembers a failure after which no mark is written (invariant 6).
    pub(super) fn latched(&self, outcome: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if let Err(error) = &outcome
            && !matches!(error, DeviceError::NoSpace { .. })
        {
            self.failed.lock().get_or_insert_with(|| error.clone());
        }
        outcome
    }
}
