//! The path of a write: into memory, to its place, into the log.
//!
//! A client's write waits for nodes, memory and room. On the way its thread may place blocks of
//! others or make a consistency point, which wait for the device. The write begins when its blocks
//! are accepted, under the lock of the state; until then its [ticket](Ticket) can be withdrawn.
//! Accepted blocks belong to the volume and are written with all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::{FileId, Generation, Lba};
use cairn_device::{Block, Operation, Ticket};
use cairn_format::LogEntry;

use crate::error::VolumeError;
use crate::known_files::ROOT_DIRECTORY;
use crate::limits::{HOLD_INTERVAL, INODE_COST, PLACE_BLOCKS, PUNCH_BLOCKS, ROOM_INTERVAL, SPACE_ROUNDS};
use crate::locks::MutexGuard;
use crate::memory::number_hash::NumberSet;
use crate::memory::overlay::{Arrival, Flight, Unlogged};
use crate::memory::path::leaves_of;
use crate::memory::state::{Frozen, State};
use crate::read::store::Keep;
use crate::volume::Volume;

/// A batch of one generation's blocks that have places but are not written yet.
pub(crate) struct Batch {
    generation: Generation,
    /// The number of its launch.
    launch: u64,
    flights: Vec<Flight>,
}

/// Entries that are due for the log, of one generation.
type Due = (Generation, Vec<Unlogged>);

/// A flush in progress.
struct Flushing {
    /// It covers writes that arrived up to here.
    cut: u64,
    /// The number of its first launch.
    first_own: u64,
    /// How often a write had found no room before it began.
    room_failures: u64,
    batches: Vec<Batch>,
    due: Vec<Due>,
}

/// Directories are made durable by consistency points alone: their blocks change together with
/// inodes.
fn is_logged(file: FileId) -> bool {
    file != ROOT_DIRECTORY
}

/// The atomicity of a write across a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Plain,
    /// All of it or none.
    Atomic,
}

impl Volume {
    /// The longest atomic write, in blocks.
    pub const ATOMIC_BLOCKS_MAX: usize = 256;

    /// Takes whole blocks of a file. They are in memory when this returns, and durable after a
    /// flush. Waits when memory or the log of changes is full.
    ///
    /// # Errors
    /// Nothing of it was taken: [`VolumeError::NoSpace`]; [`VolumeError::Damaged`] or
    /// [`VolumeError::Device`] of a node above one of the blocks (others can still be written);
    /// [`VolumeError::Refused`] when one is past the end of the file; the volume's other states.
    pub fn write(
        self: &Arc<Self>,
        file: FileId,
        blocks: &mut dyn ExactSizeIterator<Item = (Lba, Block)>,
    ) -> Result<(), VolumeError> {
        self.write_for(None, file, blocks)
    }

    /// The same for a client's command that can be withdrawn.
    ///
    /// # Errors
    /// As [`Volume::write`]; [`VolumeError::Device`] with
    /// [`Withdrawn`](cairn_device::DeviceError::Withdrawn).
    pub fn write_for(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        blocks: &mut dyn ExactSizeIterator<Item = (Lba, Block)>,
    ) -> Result<(), VolumeError> {
        let outcome = self.write_if(ticket, file, blocks.collect(), Kind::Plain, true);
        outcome.unwrap_or(Err(VolumeError::Closed))
    }

    /// The same for blocks that a cut leaves all of or none, whenever it comes; at most
    /// [`Volume::ATOMIC_BLOCKS_MAX`].
    ///
    /// Every write arrives as a whole: under one lock, in one generation, and in the records of one
    /// flush. Only a power cut between two records of that flush can tear it. Either its own
    /// entries are in both records, or a later write replaced some of its blocks and is in the
    /// record that was lost. So the records of a flush with such a write hold together: replay
    /// takes all of them or none.
    ///
    /// # Errors
    /// As [`Volume::write_for`]; [`VolumeError::Refused`] for more blocks.
    pub fn write_atomic(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        blocks: &mut dyn ExactSizeIterator<Item = (Lba, Block)>,
    ) -> Result<(), VolumeError> {
        if blocks.len() > Self::ATOMIC_BLOCKS_MAX {
            return Err(VolumeError::Refused("an atomic write has at most 256 blocks"));
        }
        let outcome = self.write_if(ticket, file, blocks.collect(), Kind::Atomic, true);
        outcome.unwrap_or(Err(VolumeError::Closed))
    }

    /// The same for a caller that must not wait for a read of the device: `None`, without any
    /// effect, when it would.
    pub fn write_ready(
        self: &Arc<Self>,
        file: FileId,
        blocks: Vec<(Lba, Block)>,
    ) -> Option<Result<(), VolumeError>> {
        self.write_if(None, file, blocks, Kind::Plain, false)
    }

    fn write_if(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        blocks: Vec<(Lba, Block)>,
        kind: Kind,
        wait: bool,
    ) -> Option<Result<(), VolumeError>> {
        let leaves = leaves_of(blocks.iter().map(|(lba, _)| lba.0));
        match self.check_leaves(file, &leaves, wait) {
            Ok(true) => {
                let blocks = blocks.into_iter().map(|(lba, block)| Arrival::new(lba, block)).collect();
                Some(self.take(ticket, file, &leaves, blocks, kind))
            }
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn take(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        leaves: &[u64],
        blocks: Vec<Arrival>,
        kind: Kind,
    ) -> Result<(), VolumeError> {
        let (mut state, length) = loop {
            let state = self.admit(&blocks)?;
            if let Some(length) = state.length_of(file) {
                break (state, length.ok_or(VolumeError::NoSuchFile(file))?);
            }
            // Its inode is not in memory: it is read without the lock, and the code below handles
            // changes made meanwhile.
            drop(state);
            self.inode(file)?;
        };
        // The merge would drop it, after the client had its answer.
        if blocks.iter().any(|arrival| arrival.lba.0 >= length) {
            return Err(VolumeError::Refused("a block is past the end of the file"));
        }
        let _pass = Ticket::begin_with(ticket)?;
        state.order += 1;
        let order = state.order;
        if kind == Kind::Atomic {
            state.atomic_order = order;
        }
        state.open.write(file, blocks, order);
        state.note_leaves(file, leaves);
        self.note_change(&mut state);
        if self.wants_write_back(&state) {
            self.work.notify_one();
            self.arrivals.notify_one();
        }
        Ok(())
    }

    /// Makes `count` blocks from `lba` a hole; their space is free after the next consistency
    /// point, unless a snapshot holds them.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] or [`VolumeError::Device`] when a node above or among them cannot
    /// be read: the blocks below it are unknown and cannot be freed. The volume's other states.
    pub fn punch(self: &Arc<Self>, file: FileId, lba: Lba, count: u64) -> Result<(), VolumeError> {
        self.punch_for(None, file, lba, count)
    }

    /// The same for a client's command that can be withdrawn.
    ///
    /// # Errors
    /// As [`Volume::punch`]; [`VolumeError::Device`] with
    /// [`Withdrawn`](cairn_device::DeviceError::Withdrawn).
    pub fn punch_for(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        lba: Lba,
        count: u64,
    ) -> Result<(), VolumeError> {
        if count <= PUNCH_BLOCKS {
            return self.punch_if(ticket, file, lba, count, true).unwrap_or(Err(VolumeError::Closed));
        }
        self.check_range(file, lba.0, lba.0 + count)?;
        self.take_hole(ticket, file, lba, count)
    }

    /// The same for a caller that must not wait for a read of the device: `None`, without any
    /// effect, when it would.
    pub fn punch_ready(
        self: &Arc<Self>,
        file: FileId,
        lba: Lba,
        count: u64,
    ) -> Option<Result<(), VolumeError>> {
        if count <= PUNCH_BLOCKS { self.punch_if(None, file, lba, count, false) } else { None }
    }

    fn punch_if(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        lba: Lba,
        count: u64,
        wait: bool,
    ) -> Option<Result<(), VolumeError>> {
        let leaves = leaves_of(lba.0..lba.0 + count);
        match self.check_leaves(file, &leaves, wait) {
            Ok(true) => Some(self.take_hole(ticket, file, lba, count)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn take_hole(
        self: &Arc<Self>,
        ticket: Option<&Ticket>,
        file: FileId,
        lba: Lba,
        count: u64,
    ) -> Result<(), VolumeError> {
        if count == 0 {
            return Ok(());
        }
        let mut state = self.admit_to_free(0)?;
        let _pass = Ticket::begin_with(ticket)?;
        state.order += 1;
        let order = state.order;
        state.open.punch(file, lba.0, count, order, is_logged(file));
        self.note_change(&mut state);
        Ok(())
    }

    pub(crate) fn note_change(&self, state: &mut State) {
        if state.changed_since.is_none() {
            state.changed_since = Some(self.clock.monotonic());
        }
    }

    /// Waits until there is room in memory, and for these blocks in the volume.
    fn admit(self: &Arc<Self>, blocks: &[Arrival]) -> Result<MutexGuard<'_, State>, VolumeError> {
        self.admit_cost(blocks.len() as u64, INODE_COST, |state| {
            state.cost_of(blocks.iter().map(|arrival| arrival.lba.0)) + INODE_COST
        })
    }

    /// Waits until there is room in memory, and in the volume for these blocks with the nodes above
    /// them and `more` of other kinds; if that is too much, for the cost that `exactly` returns.
    pub(crate) fn admit_cost(
        self: &Arc<Self>,
        blocks: u64,
        more: u64,
        exactly: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'_, State>, VolumeError> {
        let mut state = self.admit_to_memory()?;
        // Usually there is room whatever the blocks' places in the file are. Where there may not
        // be, the places are checked.
        if state.may_take(state.cost_at_most(blocks) + more) {
            return Ok(state);
        }
        state.settle_releases();
        let cost = exactly(&state);
        if state.may_take(cost) {
            return Ok(state);
        }
        drop(state);
        self.admit_in_turn(cost)
    }

    /// Finds room in a nearly full volume, for one writer after the other. While one waits no other
    /// writer overtakes it, so it gets all room that comes free, and its answer is true.
    ///
    /// A consistency point turns estimates into exact numbers and frees overwritten blocks. These
    /// are free when the reads in progress have ended, and the writer waits for the reads that
    /// exist when it asks. It never waits for an image, which may be open for days.
    fn admit_in_turn(self: &Arc<Self>, cost: u64) -> Result<MutexGuard<'_, State>, VolumeError> {
        let _turn = self.turn.lock();
        self.state.lock().awaited = cost;
        let mut rounds = SPACE_ROUNDS;
        let outcome = loop {
            let mut state = match self.admit_to_memory() {
                Ok(state) => state,
                Err(error) => break Err(error),
            };
            state.settle_releases();
            if state.has_room_for(cost) {
                state.awaited = 0;
                return Ok(state);
            }
            drop(state);
            if rounds == 0 {
                break Err(VolumeError::NoSpace);
            }
            rounds -= 1;
            // Also without changes in memory: another one may be about to end, and free some.
            if let Err(error) = self.consistency_point() {
                break Err(error);
            }
            self.wait_for_readers();
        };
        self.state.lock().awaited = 0;
        outcome
    }

    /// Whether there is room in memory for another change.
    pub(crate) fn has_memory_for_change(&self, state: &State) -> bool {
        state.open.unplaced + state.flying <= self.memory.dirty_blocks
            && !self.holds_back(state)
            && state.open.weight() <= self.memory.changes_hard
    }

    /// Whether the device below lets no writes of clients in.
    fn holds_back(&self, state: &State) -> bool {
        self.held_back.get().is_some_and(|takes| !takes(state.open.unplaced + state.flying))
    }

    /// Waits until there is room in memory for another change, and the device below takes it.
    fn admit_to_memory(self: &Arc<Self>) -> Result<MutexGuard<'_, State>, VolumeError> {
        loop {
            let mut state = self.lock_for_change()?;
            if self.holds_back(&state) {
                // No event reports room in the device.
                self.settled.wait_for(&mut state, HOLD_INTERVAL);
            } else if state.open.unplaced + state.flying > self.memory.dirty_blocks {
                if state.open.unplaced > 0 {
                    drop(state);
                    self.place(PLACE_BLOCKS, u64::MAX)?;
                } else {
                    self.settled.wait(&mut state);
                }
            } else if state.open.weight() <= self.memory.changes_hard {
                return Ok(state);
            } else if state.out_of_reach.is_some() {
                // It is tried again in the background.
                self.settled.wait_for(&mut state, HOLD_INTERVAL);
            } else if state.frozen.is_some() {
                self.settled.wait(&mut state);
            } else {
                drop(state);
                match self.consistency_point() {
                    Err(error) if error.is_out_of_reach() => {}
                    outcome => drop(outcome?),
                }
            }
        }
    }

    /// The state, for a change that is not part of a rollback.
    fn lock_for_change(&self) -> Result<MutexGuard<'_, State>, VolumeError> {
        let mut state = self.state.lock();
        loop {
            state.check_writable()?;
            if state.lacks_room.is_some() {
                return Err(VolumeError::NoRoomBelow);
            }
            if !state.rolling_back {
                return Ok(state);
            }
            self.settled.wait(&mut state);
        }
    }

    /// Waits until the calls that read earlier roots now have ended, and frees the blocks that they
    /// held. No lock is held meanwhile, and they need only the device, so this ends.
    fn wait_for_readers(&self) {
        let (readers, ended) = {
            let state = self.state.lock();
            (state.short_readers(), state.ended.clone())
        };
        ended.wait(&readers);
        self.state.lock().settle_releases();
    }

    /// Admits a change that frees space and takes up to `cost` blocks itself. A hole takes none,
    /// and the reserve covers the nodes that it changes.
    pub(crate) fn admit_to_free(self: &Arc<Self>, cost: u64) -> Result<MutexGuard<'_, State>, VolumeError> {
        let state = self.lock_for_change()?;
        if state.has_room(1) && state.has_room_for(cost) {
            return Ok(state);
        }
        drop(state);
        self.consistency_point()?;
        let mut state = self.lock_for_change()?;
        state.settle_releases();
        if !state.has_room_to_free(cost) {
            drop(state);
            self.wait_for_readers();
            state = self.lock_for_change()?;
        }
        if state.has_room_to_free(cost) { Ok(state) } else { Err(VolumeError::NoSpace) }
    }

    /// Assigns places to up to `limit` unplaced blocks that arrived up to `order`, without writing
    /// them. The generation being committed goes first.
    fn launch(&self, state: &mut State, limit: usize, order: u64) -> Result<Option<Batch>, VolumeError> {
        let draining = match &state.frozen {
            Some(Frozen::Draining(overlay)) if overlay.unplaced > 0 => Some(overlay.generation),
            _ => None,
        };
        let generation = draining.unwrap_or(state.open.generation);
        let Some(overlay) = state.overlay_mut(generation) else { return Ok(None) };
        let keys = overlay.next_unplaced(limit, order);
        if keys.is_empty() {
            return Ok(None);
        }
        let mut vbns = Vec::with_capacity(keys.len());
        if !state.used.allocate(keys.len(), &mut vbns) {
            // Admission keeps a place for every block that it takes: this is a bug, and losing the
            // blocks would be worse than stopping.
            state.latch(&VolumeError::NoSpace);
            return Err(VolumeError::NoSpace);
        }
        state.launches += 1;
        let launch = state.launches;
        let Some(overlay) = state.overlay_mut(generation) else { return Ok(None) };
        let mut flights = Vec::with_capacity(keys.len());
        for ((file, lba), vbn) in keys.into_iter().zip(vbns) {
            let flight = overlay.launch(file, lba, vbn);
            flights.push(flight.expect("keys name unplaced blocks, under one lock"));
        }
        overlay.flights.push(launch);
        state.flying += flights.len() as u64;
        Ok(Some(Batch { generation, launch, flights }))
    }

    /// The operations of a batch.
    fn operations(&self, batch: &Batch) -> Vec<Operation> {
        for flight in batch.flights.iter().filter(|flight| flight.keep == Keep::All) {
            self.store.remember_data(flight.pointer.vbn, flight.pointer.checksum, flight.block.clone());
        }
        let writes = batch.flights.iter().map(|flight| (flight.pointer.vbn, &flight.block));
        self.store.fresh().note(writes.clone());
        self.store.write_home(writes)
    }

    /// A batch is written, has found no room below, or has failed, which latches.
    fn land(&self, state: &mut State, batch: Batch, outcome: &Result<(), VolumeError>, log: bool) {
        state.flying -= batch.flights.len() as u64;
        match outcome {
            Err(VolumeError::NoRoomBelow) => return self.land_without_room(state, batch),
            Err(reason) => state.latch(reason),
            Ok(()) => {}
        }
        if let Some(overlay) = state.overlay_mut(batch.generation) {
            // Blocks of a failed batch stay in memory, where reads find them: their places have
            // other content.
            for flight in batch.flights.iter().filter(|_| outcome.is_ok()) {
                let log: Option<crate::memory::overlay::IsLogged<'_>> =
                    if log { Some(&is_logged) } else { None };
                overlay.land(flight.file, flight.lba, flight.pointer, flight.order, log);
            }
            overlay.flights.retain(|flying| *flying != batch.launch);
        }
        self.settled.notify_all();
    }

    /// The blocks of a batch found no room, or stay here as others' did: they wait for other
    /// places. No root and no log record has named the earlier places.
    fn land_without_room(&self, state: &mut State, batch: Batch) {
        state.note_no_room(self.clock.monotonic());
        let Some(overlay) = state.overlay_mut(batch.generation) else { return };
        overlay.flights.retain(|flying| *flying != batch.launch);
        let mut free = Vec::with_capacity(batch.flights.len());
        for flight in batch.flights {
            let vbn = flight.pointer.vbn;
            free.extend(overlay.put_back(flight).then_some(vbn));
        }
        free.into_iter().for_each(|vbn| state.used.clear(vbn));
        self.settled.notify_all();
    }

    /// Writes up to `limit` unplaced blocks that arrived up to `order` to their places. Returns how
    /// many.
    pub(crate) fn place(&self, limit: usize, order: u64) -> Result<usize, VolumeError> {
        let batch = self.launch(&mut self.state.lock(), limit, order)?;
        let Some(batch) = batch else { return Ok(0) };
        let count = batch.flights.len();
        let operations = self.operations(&batch);
        let outcome = self.store.run(operations).map_err(VolumeError::of_room);
        self.land(&mut self.state.lock(), batch, &outcome, true);
        outcome.map(|()| count)
    }

    /// Makes every write, hole and change of a file that was taken before the call durable.
    ///
    /// # Errors
    /// [`VolumeError::NoRoomBelow`]: they are in memory still, and a later flush may make them
    /// durable. After any other nothing is promised for them, and the volume takes no more writes.
    pub fn flush(self: &Arc<Self>) -> Result<(), VolumeError> {
        loop {
            match self.flush_once(true) {
                // The log is full, and the consistency point that empties it waits for a block.
                Err(error) if error.is_out_of_reach() => {
                    let mut state = self.state.lock();
                    state.check_open()?;
                    self.settled.wait_for(&mut state, ROOM_INTERVAL);
                }
                outcome => return outcome,
            }
        }
    }

    /// As [`Volume::flush`], only by the log.
    ///
    /// # Errors
    /// As [`Volume::flush`]; [`VolumeError::NoSpace`] if the log has no room.
    pub(crate) fn write_to_log(self: &Arc<Self>) -> Result<(), VolumeError> {
        self.flush_once(false)
    }

    fn flush_once(self: &Arc<Self>, commits: bool) -> Result<(), VolumeError> {
        let cut = {
            let state = self.state.lock();
            state.check_open()?;
            if state.durable_order >= state.order {
                return Ok(());
            }
            state.order
        };
        let mut log = match self.log.try_lock() {
            Some(log) => log,
            None => {
                // Another caller's flush is in progress: meanwhile the data is written to its
                // places.
                while self.place(PLACE_BLOCKS, cut)? > 0 {}
                self.log.lock()
            }
        };
        if let Err(reason) = log.erase_spoiled(&self.store) {
            return Err(self.flush_failed(reason));
        }
        let mut state = self.state.lock();
        state.check_open()?;
        // Another caller's flush may have covered this one while it waited.
        if state.durable_order >= cut {
            return Ok(());
        }
        let flushing = self.begin_flush(&mut state)?;
        drop(state);
        let operations: Vec<Operation> =
            flushing.batches.iter().flat_map(|batch| self.operations(batch)).collect();
        let mut state = self.state.lock();
        let mut flushing = self.wait_for_earlier_launches(&mut state, flushing)?;
        let cut = flushing.cut;
        flushing.due.extend(take_unlogged(&mut state, cut));
        flushing.due = in_order(flushing.due, &flushing.batches);
        let whole = state.atomic_order > state.durable_order;
        drop(state);
        let appended = log.append(&entries(&flushing.due), whole);
        let logged = log.write_out(&self.store, operations, appended);
        let mut state = self.state.lock();
        let due = self.land_flush(&mut state, flushing, &logged.clone().map(drop))?;
        if logged? {
            state.durable_order = state.durable_order.max(cut);
            self.flushes.fetch_add(1, Ordering::Relaxed);
            if log.is_pressed() {
                self.work.notify_one();
            }
            return Ok(());
        }
        // The log is full, on its way to another place, or failed: a consistency point makes all
        // changes durable without it. Until then, the next flush of another caller must find the
        // entries.
        for (generation, due) in due {
            state.put_back_unlogged(generation, due);
        }
        drop(state);
        let has_failed = log.has_failed();
        drop(log);
        if has_failed {
            return self.leave_failed_log();
        }
        if commits { self.consistency_point().map(drop) } else { Err(VolumeError::NoSpace) }
    }
}

impl Volume {
    /// Takes all that arrived so far, with places for its blocks.
    fn begin_flush(&self, state: &mut State) -> Result<Flushing, VolumeError> {
        // Changes that arrived meanwhile are covered as well, for callers that wait for the next
        // turn.
        let cut = state.order;
        let first_own = state.launches + 1;
        // Now, and not when everything has landed: until then more changes arrive, and an inode's
        // entry has its state at the time when it is taken.
        let due = take_unlogged(state, cut);
        let mut batches: Vec<Batch> = Vec::new();
        while let Some(batch) = self.launch(state, usize::MAX, cut)? {
            batches.push(batch);
        }
        Ok(Flushing { cut, first_own, room_failures: state.room_failures, batches, due })
    }

    /// Blocks that others are writing must be on the device before a record names them. Later
    /// launches arrived later: waiting for those too could take for ever beside a client that never
    /// stops writing.
    fn wait_for_earlier_launches(
        &self,
        state: &mut MutexGuard<'_, State>,
        flushing: Flushing,
    ) -> Result<Flushing, VolumeError> {
        loop {
            // First: a batch that has failed flies no more, and no record names its blocks.
            if let Some(reason) = state.latched.clone() {
                for batch in flushing.batches {
                    self.land(state, batch, &Err(reason.clone()), false);
                }
                return Err(VolumeError::Latched(Box::new(reason)));
            }
            // Blocks that others were writing wait for a place again: no record can name them.
            if state.room_failures != flushing.room_failures {
                for batch in flushing.batches {
                    self.land(state, batch, &Err(VolumeError::NoRoomBelow), false);
                }
                for (generation, due) in flushing.due {
                    state.put_back_unlogged(generation, due);
                }
                return Err(VolumeError::NoRoomBelow);
            }
            let frozen = match &state.frozen {
                Some(Frozen::Draining(overlay)) => overlay.flies_before(flushing.first_own),
                _ => false,
            };
            if !frozen && !state.open.flies_before(flushing.first_own) {
                return Ok(flushing);
            }
            self.settled.wait(state);
        }
    }

    /// Notes how the writes of a flush ended. Returns the entries that it had for the log.
    fn land_flush(
        &self,
        state: &mut State,
        flushing: Flushing,
        outcome: &Result<(), VolumeError>,
    ) -> Result<Vec<Due>, VolumeError> {
        let Flushing { batches, due, .. } = flushing;
        if matches!(outcome, Err(VolumeError::NoRoomBelow)) {
            // Blocks that found no room are logged with their next places, and all others with the
            // planned ones.
            let flown = batches.iter().flat_map(|batch| &batch.flights).map(|flight| flight.pointer.vbn.0);
            let flown: NumberSet = flown.collect();
            for (generation, mut due) in due {
                due.retain(|unlogged| !matches!(unlogged.entry, LogEntry::Write { vbn, .. } if flown.contains(&vbn.0)));
                state.put_back_unlogged(generation, due);
            }
            state.note_no_room(self.clock.monotonic());
            for batch in batches {
                self.land(state, batch, outcome, false);
            }
            return Err(VolumeError::NoRoomBelow);
        }
        for batch in batches {
            self.land(state, batch, outcome, false);
        }
        if let Err(reason) = outcome {
            // The entries are gone from memory, with or without a batch.
            state.latch(reason);
            return Err(reason.clone());
        }
        Ok(due)
    }

    /// A failure of a flush before it began.
    fn flush_failed(&self, reason: VolumeError) -> VolumeError {
        let mut state = self.state.lock();
        match reason {
            VolumeError::NoRoomBelow => state.note_no_room(self.clock.monotonic()),
            _ => state.latch(&reason),
        }
        reason
    }
}

/// The entries themselves.
fn entries(due: &[Due]) -> Vec<(Generation, Vec<LogEntry>)> {
    let entries = |due: &[Unlogged]| due.iter().map(|unlogged| unlogged.entry).collect();
    due.iter().map(|(generation, due)| (*generation, entries(due))).collect()
}

/// The log entries due for arrivals up to `cut`, by generation.
fn take_unlogged(state: &mut State, cut: u64) -> Vec<Due> {
    let mut parts = Vec::new();
    let State { open, frozen, frozen_unlogged, .. } = state;
    if let Some(frozen) = frozen {
        let generation = frozen.overlay().generation;
        let due = match frozen {
            Frozen::Draining(overlay) => overlay.take_unlogged(cut),
            // All of it arrived before the freeze, and so before the cut.
            Frozen::Settled(_) => std::mem::take(frozen_unlogged),
        };
        parts.push((generation, due));
    }
    parts.push((open.generation, open.take_unlogged(cut)));
    parts
}

/// Joins the parts of each generation with the batches that go along, in the order of arrival.
fn in_order(parts: Vec<Due>, batches: &[Batch]) -> Vec<Due> {
    let mut joined: BTreeMap<Generation, Vec<Unlogged>> = BTreeMap::new();
    for (generation, due) in parts {
        joined.entry(generation).or_default().extend(due);
    }
    for batch in batches {
        let flights = batch.flights.iter().filter(|flight| is_logged(flight.file)).map(Flight::unlogged);
        joined.entry(batch.generation).or_default().extend(flights);
    }
    joined.values_mut().for_each(|due| due.sort_by_key(|unlogged| unlogged.order));
    joined.into_iter().collect()
}
