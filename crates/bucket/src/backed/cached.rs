//! Batches of a device whose local file is a cache. Blocks may become absent at any time, so reads
//! are checked afterwards, and every change holds the lock of its regions.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_device::{Device, DeviceError, Operation, Request, Segments};

use super::cache::Cache;
use super::device::{Stretch, is_durable};
use super::presence::{Bits, bits_of, pieces};
use super::{BLOCK, REGION, STRIPES, Shared};
use crate::images::RegionPart;

impl Shared {
    /// Runs operations without a flush among them.
    pub(super) fn stage_cached(self: &Arc<Self>, cache: &Cache, batch: &mut [Operation]) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (index, operation) in batch.iter().enumerate().filter(|(_, operation)| operation.is_pending()) {
            match operation.request() {
                Request::Read { .. } => reads.push(index),
                Request::Prefetch { .. } | Request::Flush => {}
                _ => writes.push(index),
            }
        }
        if !reads.is_empty() {
            reads = self.read_local(cache, batch, &reads, &|device, tries| device.run(tries));
        }
        while !reads.is_empty() {
            reads = self.read_cached(cache, batch, &reads);
        }
        if !writes.is_empty() {
            self.write_cached(cache, batch, &writes);
        }
        // Advice only.
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            operation.succeed();
        }
    }

    /// Runs the reads that need no waiting.
    pub(super) fn ready_cached(&self, cache: &Cache, batch: &mut [Operation]) {
        let is_read = |operation: &Operation| {
            operation.is_pending() && matches!(operation.request(), Request::Read { .. })
        };
        let reads: Vec<usize> = (0..batch.len()).filter(|index| is_read(&batch[*index])).collect();
        self.read_local(cache, batch, &reads, &|device, tries| device.run_ready(tries));
    }

    /// Runs reads of regions that are local as a whole, as most reads of a cache are. Returns the
    /// others, those that `run` left pending, and those whose blocks may have become absent
    /// meanwhile.
    fn read_local(
        &self,
        cache: &Cache,
        batch: &mut [Operation],
        reads: &[usize],
        run: &dyn Fn(&dyn Device, &mut [Operation]),
    ) -> Vec<usize> {
        let (mut left, mut local) = (Vec::new(), Vec::with_capacity(reads.len()));
        let mut tries = Vec::with_capacity(reads.len());
        for index in reads {
            let request = batch[*index].request();
            // The count of punches comes first, see invariant 3.
            let Some((region, before)) = self.region_of(request).map(|region| {
                let stripe = region as usize % STRIPES;
                (region, cache.punches(stripe))
            }) else {
                left.push(*index);
                continue;
            };
            if self.presence.is_lacking(u64::from(region)) {
                left.push(*index);
                continue;
            }
            cache.touch(region);
            tries.push(Operation::new(request.clone()));
            local.push((*index, region, before));
        }
        if tries.is_empty() {
            return left;
        }
        run(&*self.local, &mut tries);
        for ((index, region, before), operation) in local.into_iter().zip(tries) {
            let is_same = cache.punches(region as usize % STRIPES) == before;
            match operation.outcome() {
                Some(Err(_)) => batch[index].finish(operation.into_data()),
                Some(Ok(_)) if is_same => batch[index].finish(operation.into_data()),
                _ => left.push(index),
            }
        }
        left
    }

    /// The region of a request that is in one of the block space.
    fn region_of(&self, request: &Request) -> Option<u32> {
        let (_, offset, length) = request.range()?;
        let first = (offset / BLOCK).checked_sub(self.space_at / BLOCK)?;
        let last = first + length.div_ceil(BLOCK).max(1) - 1;
        let region = first / REGION;
        (region == last / REGION && last < self.backing.blocks).then_some(())?;
        u32::try_from(region).ok()
    }

    /// The parts of a request in each region.
    fn parts_of(&self, request: &Request) -> Vec<Stretch> {
        let Some((_, offset, length)) = request.range() else { return Vec::new() };
        let space = self.space_at / BLOCK;
        let (first, end) = (offset / BLOCK, offset.saturating_add(length).div_ceil(BLOCK));
        let end = end.saturating_sub(space).min(self.backing.blocks);
        pieces(first.saturating_sub(space), end).collect()
    }

    /// Runs reads. Returns those whose blocks may have become absent meanwhile.
    fn read_cached(self: &Arc<Self>, cache: &Cache, batch: &mut [Operation], reads: &[usize]) -> Vec<usize> {
        let parts: Vec<Vec<Stretch>> =
            reads.iter().map(|index| self.parts_of(batch[*index].request())).collect();
        let stripe = |region: u32| region as usize % STRIPES;
        let mut before: BTreeMap<usize, u64> = BTreeMap::new();
        for (region, _, _) in parts.iter().flatten() {
            before.entry(stripe(*region)).or_insert_with(|| cache.punches(stripe(*region)));
            cache.touch(*region);
        }
        let mut needs: BTreeMap<u32, (Bits, bool)> = BTreeMap::new();
        let mut lacking: Vec<Vec<Stretch>> = Vec::with_capacity(reads.len());
        for index in reads {
            let Some((_, offset, length)) = batch[*index].request().range() else { continue };
            let parts = self.stretches(offset, length);
            if !parts.is_empty() {
                self.add_needs(&mut needs, &parts, offset, length);
            }
            lacking.push(parts);
        }
        let wanted = needs.into_iter().map(|(region, (bits, whole))| (region, bits, whole)).collect();
        let mut kept: BTreeMap<u32, Result<RegionPart, DeviceError>> = BTreeMap::new();
        for brought in self.bring(wanted, &self.cancel) {
            if let Some(outcome) = brought.kept.transpose() {
                kept.insert(brought.region, outcome);
            }
        }
        let mut tries: Vec<Operation> =
            reads.iter().map(|index| Operation::new(batch[*index].request().clone())).collect();
        if !kept.is_empty() {
            for (operation, parts) in tries.iter_mut().zip(&lacking) {
                self.read_apart(operation, parts, &kept);
            }
        }
        self.local.run(&mut tries);
        let mut again = Vec::new();
        for ((index, parts), operation) in reads.iter().zip(&parts).zip(tries) {
            let is_same = |(region, _, _): &Stretch| {
                before.get(&stripe(*region)).copied() == Some(cache.punches(stripe(*region)))
            };
            // Absent blocks that were neither fetched nor kept became so meanwhile.
            let failed = matches!(operation.outcome(), Some(Err(_)));
            match failed || parts.iter().all(|part| is_same(part) && self.was_read(part, &kept)) {
                true => batch[*index].finish(operation.into_data()),
                false => again.push(*index),
            }
        }
        again
    }

    /// Whether each block of a part is local, or was fetched and returned.
    fn was_read(
        &self,
        (region, place, count): &Stretch,
        kept: &BTreeMap<u32, Result<RegionPart, DeviceError>>,
    ) -> bool {
        let Some(absent) = self.presence.absent(*region) else { return true };
        let wanted = bits_of(*place, *count);
        let is_local = absent.iter().zip(&wanted).all(|(absent, wanted)| absent & wanted == 0);
        is_local || kept.get(region).is_some_and(Result::is_ok)
    }

    /// Runs changes under the locks of their regions. Those that must be durable when they complete
    /// are followed by a sync if marks are not durable.
    fn write_cached(&self, cache: &Cache, batch: &mut [Operation], writes: &[usize]) {
        if let Some(error) = self.failed.lock().clone() {
            writes.iter().for_each(|index| batch[*index].finish(Err(error.clone())));
            return;
        }
        let parts: Vec<(usize, Vec<Stretch>)> =
            writes.iter().map(|index| (*index, self.parts_of(batch[*index].request()))).collect();
        let (own, waits) = {
            let _shared = self.share(&parts);
            let regions = || parts.iter().flat_map(|(_, parts)| parts);
            let is_lacking = regions().any(|(region, _, _)| self.presence.is_lacking(u64::from(*region)));
            // A region may be local by marks that are not durable.
            let waits = is_lacking || self.presence.is_unsaved();
            let request = |index: &usize| {
                let mut request = batch[*index].request().clone();
                if let Request::Write { fua, .. }
                | Request::Trim { fua, .. }
                | Request::WriteZeroes { fua, .. } = &mut request
                {
                    *fua &= !waits;
                }
                Operation::new(request)
            };
            let mut own: Vec<Operation> = writes.iter().map(request).collect();
            self.local.run(&mut own);
            for ((_, parts), operation) in parts.iter().zip(&own) {
                if matches!(operation.outcome(), Some(Ok(_))) {
                    for (region, place, count) in parts {
                        let bits = bits_of(*place, *count);
                        cache.filled(*region, &bits);
                        self.presence.mark(*region, &bits);
                    }
                }
            }
            (own, waits)
        };
        let durable = waits && writes.iter().any(|index| is_durable(batch[*index].request()));
        let synced = if durable { self.sync() } else { Ok(()) };
        for (index, operation) in writes.iter().zip(own) {
            let outcome = operation.into_outcome().and_then(|()| synced.clone());
            batch[*index].finish(outcome.map(|()| Segments::default()));
        }
    }
}
