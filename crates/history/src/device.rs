//! The present as a device: requests in pieces of blocks (section 2.3 of the 2006 paper), which
//! lose no byte.
//!
//! A change waits for room in memory, for the [`merge`](History) lock and for the store. Until its
//! blocks are in the write cache it has no effect, so it can be [withdrawn](cairn_device::Gate)
//! until then. It begins under the lock of the state, which orders all changes. So a withdrawal of
//! it, or the acknowledgement of a newer change of the same block, comes before or after that
//! point. A trim or write-zeroes of several pieces begins once for each of them.

use std::time::Duration;

use cairn_device::{
    Action, Device, DeviceError, Extent, Geometry, Operation, Request, Segments, Ticket, park,
};
use cairn_format::history::FloorPolicy;

use crate::HistoryError;
use crate::content::Content;
use crate::history::{History, State};
use crate::resolve::{NOW, Piece};

/// Bytes of a trim or write-zeroes that get one stamp.
const ZERO_PIECE: u64 = 4 << 20;
/// How long a write or a flush waits for room before it looks again.
const ROOM_PATIENCE: Duration = Duration::from_millis(200);

impl Device for History {
    fn geometry(&self) -> Geometry {
        Geometry { length: self.length, alignment: 1, read_only: false, trims: true, fast_zeroes: true }
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if let Err(refusal) = geometry.admit(operation.request()) {
                operation.finish(Err(refusal));
            }
        }
        // Changes may have to wait after reads as well.
        park(batch);
        self.run_reads(batch);
        let mut at = 0;
        while at < batch.len() {
            at += self.take_whole(&mut batch[at..]);
            let Some(operation) = batch.get_mut(at) else { break };
            let ticket = operation.ticket();
            let (outcome, waits) = match operation.request() {
                Request::Write { offset, data, fua } => {
                    (self.change(*offset, data.len() as u64, Some(data), ticket), *fua)
                }
                Request::Trim { offset, length, fua } | Request::WriteZeroes { offset, length, fua, .. } => {
                    (self.clear(*offset, *length, ticket), *fua)
                }
                Request::Flush => (Ok(()), true),
                Request::Read { .. } | Request::Prefetch { .. } => (Ok(()), false),
            };
            if outcome.is_err() || !waits {
                operation.finish(outcome.map(|()| Segments::default()));
            }
            at += 1;
        }
        self.finish_flushes(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.geometry().admit_range(Action::Extents, offset, length)?;
        if length == 0 || limit == 0 {
            return Ok(Vec::new());
        }
        // Only where the origin is the present is it asked: elsewhere all is called data, which is
        // always true.
        let plain = {
            let state = self.state.lock();
            self.placement.has_current_store()
                && state.lost.is_empty()
                && state.cache.is_empty()
                && state.current.is_empty()
                && state.reverts.is_empty()
        };
        if plain {
            return self.origin.extents(offset, length, limit);
        }
        Ok(vec![Extent { length, hole: false, zero: false }])
    }
}

impl History {
    fn run_reads(&self, batch: &mut [Operation]) {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut counts = Vec::new();
        for (index, operation) in batch.iter().enumerate().filter(|(_, operation)| operation.is_pending()) {
            if let Request::Read { offset, length } = operation.request() {
                let before = pieces.len();
                pieces.extend(self.pieces(*offset, u64::from(*length)));
                counts.push((index, pieces.len() - before));
            }
        }
        if counts.is_empty() {
            return;
        }
        let mut read = self.read_pieces(&pieces, NOW).into_iter();
        for (index, count) in counts {
            batch[index].finish(join(read.by_ref().take(count)));
        }
    }

    /// Takes writes of whole blocks from the front of `batch`, each with its own stamp, as long as
    /// there is room, under one lock. Returns how many operations were taken. Those that must be
    /// durable stay pending.
    fn take_whole(&self, batch: &mut [Operation]) -> usize {
        let block = u64::from(self.block_bytes);
        let _shared = self.merge.read();
        let mut state = self.state.lock();
        let state = &mut *state;
        let was_little = state.cache.bytes() <= self.dirty_bytes / 2;
        let mut taken = batch.len();
        for (index, operation) in batch.iter_mut().enumerate() {
            if !operation.is_pending() {
                continue;
            }
            let Request::Write { offset, data, .. } = operation.request() else {
                taken = index;
                break;
            };
            let end = offset + data.len() as u64;
            let whole = !data.is_empty()
                && offset.is_multiple_of(block)
                && (end.is_multiple_of(block) || end == self.length);
            if !whole || state.cache.bytes() >= self.dirty_bytes || state.failed.is_some() {
                taken = index;
                break;
            }
            if !operation.begin() {
                continue;
            }
            let Request::Write { offset, data, fua } = operation.request() else { continue };
            let time = self.stamp(state);
            let mut skip = 0;
            for piece in self.pieces(*offset, data.len() as u64) {
                let part =
                    if piece.count == data.len() { data.clone() } else { data.slice(skip, piece.count) };
                skip += piece.count;
                self.put(state, piece.lba, time, Content::Data(part));
            }
            if *fua { operation.settle() } else { operation.succeed() }
        }
        self.tell_of_work(state, was_little);
        taken
    }

    /// Puts a block into the write cache.
    fn put(&self, state: &mut State, lba: u64, time: u64, content: Content) {
        let absorbed = state.cache.write(lba, time, content, u64::from(self.block_bytes), &state.timeline);
        state.reads.forget(lba);
        self.tally.add(&self.tally.written_blocks, 1);
        self.tally.add(&self.tally.absorbed, u64::from(absorbed));
    }

    /// Wakes the thread that writes out, once half of the allowed blocks wait.
    fn tell_of_work(&self, state: &State, was_little: bool) {
        if was_little && state.cache.bytes() > self.dirty_bytes / 2 {
            self.work.notify_all();
        }
    }

    /// Operations that are still pending wait for a flush. One flush for all of them, after all
    /// writes of the batch, covers more than each requires.
    fn finish_flushes(&self, batch: &mut [Operation]) {
        let tickets = batch.iter().filter(|operation| operation.is_pending());
        let tickets: Vec<Option<Ticket>> = tickets.map(|operation| operation.ticket().cloned()).collect();
        let mut outcome = None;
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let outcome = outcome.get_or_insert_with(|| self.flush_or_wait(&tickets));
            let (offset, length) =
                operation.request().range().map_or((0, 0), |(_, offset, length)| (offset, length));
            let finished = outcome.as_ref().map(|()| Segments::default());
            operation.finish(finished.map_err(|error| error.to_device(offset, length)));
        }
    }

    /// Makes all changes durable that were taken before the call. Without room it waits for some,
    /// if the owner wants that. Once all tickets that wait for it are withdrawn it fails, as no
    /// client waits for the answer any more.
    fn flush_or_wait(&self, tickets: &[Option<Ticket>]) -> Result<(), HistoryError> {
        let asked = self.state.lock().last;
        let is_withdrawn = |ticket: &Option<Ticket>| ticket.as_ref().is_some_and(Ticket::is_withdrawn);
        loop {
            match self.flush_all(asked) {
                Err(error) if error.is_full() && self.wait_a_while() => {
                    if tickets.iter().all(is_withdrawn) {
                        return Err(DeviceError::Withdrawn.into());
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits a while for room: until history passes the floor's age, or the owner makes room. False
    /// when waiting is off, or has ended. Holds no lock meanwhile.
    fn wait_a_while(&self) -> bool {
        let mut state = self.state.lock();
        let is_wanted = state.window.floor_policy == FloorPolicy::Wait && !state.window.floor.is_zero();
        if !is_wanted || !state.may_wait {
            return false;
        }
        state.waiting += 1;
        self.room.wait_for(&mut state, ROOM_PATIENCE);
        state.waiting -= 1;
        state.may_wait
    }

    /// Takes a write (`None`: of zeroes) with one stamp.
    fn change(
        &self,
        offset: u64,
        length: u64,
        data: Option<&Segments>,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        if length == 0 {
            return Ok(());
        }
        self.wait_for_room(offset, length, ticket)?;
        let pieces: Vec<Piece> = self.pieces(offset, length).collect();
        let whole = |piece: &Piece| piece.count == self.length_of(piece.lba);
        if pieces.iter().all(whole) {
            let _shared = self.merge.read();
            self.take(offset, &pieces, data, ticket)
        } else {
            let _alone = self.merge.write();
            self.take(offset, &pieces, data, ticket)
        }
    }

    /// Puts the pieces of a write into the cache. Parts of blocks are filled up from the present;
    /// the caller keeps others from changing it.
    fn take(
        &self,
        offset: u64,
        pieces: &[Piece],
        data: Option<&Segments>,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        let mut skip = 0;
        let mut contents = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let length = self.length_of(piece.lba);
            let part = data.map(|data| data.slice(skip, piece.count));
            skip += piece.count;
            contents.push(if piece.count == length {
                part.map_or(Content::Zero, Content::Data)
            } else {
                let whole = [Piece { lba: piece.lba, at: 0, count: length }];
                let old = self.read_pieces(&whole, NOW).pop().unwrap_or(Err(DeviceError::OutOfService))?;
                Content::Data(old).overlaid(length, piece.at, piece.count, part.as_ref())
            });
        }
        debug_assert!(data.is_none_or(|data| data.len() == skip), "all bytes at {offset} are in a piece");
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let state = &mut *state;
        let _pass = Ticket::begin_late(ticket)?;
        let time = self.stamp(state);
        let was_little = state.cache.bytes() <= self.dirty_bytes / 2;
        for (piece, content) in pieces.iter().zip(contents) {
            self.put(state, piece.lba, time, content);
        }
        self.tell_of_work(state, was_little);
        Ok(())
    }

    /// A trim or write-zeroes: history like any write. Blocks that are zeroes already are
    /// unchanged.
    fn clear(&self, offset: u64, length: u64, ticket: Option<&Ticket>) -> Result<(), DeviceError> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let piece = (ZERO_PIECE - at % ZERO_PIECE).min(end - at);
            let extents = self.extents(at, piece, usize::MAX)?;
            let mut from = at;
            for extent in extents {
                if !extent.zero {
                    self.change(from, extent.length, None, ticket)?;
                }
                from += extent.length;
            }
            at += piece;
        }
        Ok(())
    }

    /// Writes out blocks until the cache takes another write.
    fn wait_for_room(&self, offset: u64, length: u64, ticket: Option<&Ticket>) -> Result<(), DeviceError> {
        loop {
            if self.state.lock().cache.bytes() < self.dirty_bytes {
                return Ok(());
            }
            if ticket.is_some_and(Ticket::is_withdrawn) {
                return Err(DeviceError::Withdrawn);
            }
            let outcome = {
                let mut writer = self.writer.lock();
                // Another thread may have done it meanwhile.
                if self.state.lock().cache.bytes() < self.dirty_bytes {
                    return Ok(());
                }
                self.destage(&mut writer)
            };
            match outcome {
                Ok(_) => {}
                Err(error) if error.is_full() && self.wait_a_while() => {}
                Err(error) => return Err(error.to_device(offset, length)),
            }
        }
    }
}

/// Pieces in one; the first failure if one failed.
pub(crate) fn join(
    pieces: impl Iterator<Item = Result<Segments, DeviceError>>,
) -> Result<Segments, DeviceError> {
    let mut joined = Segments::default();
    let mut failed = None;
    for piece in pieces {
        match piece {
            Ok(data) => joined.append(data),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(joined), Err)
}
