//! One round of a session: the commands that were taken together, as one batch of operations, and
//! their answers.
//!
//! Data is sent directly from the device's blocks. Data in memory is sent before waiting for the
//! rest, so answers may come in another order than their commands.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use cairn_device::{DeviceError, Operation, Request, Segments, Ticket, admit, park};
use cairn_frontend_session::limits::BATCH_OPERATIONS_MAX;
use cairn_frontend_session::{Kind, Socket, each_piece};
use cairn_proto_iscsi::pdu::{DIGEST_BYTES, digest_append, padding, put_header};
use cairn_proto_iscsi::scsi::Medium;
use cairn_proto_iscsi::{CommandRequest, Residual};

use crate::device_error::sense;
use crate::execute::{self, CopyUnit, Failure};
use crate::server::Shared;
use crate::session::Place;
use crate::session::{Held, Session, SessionEnd};
use crate::targets::{Export, Initiator};
use crate::task::Read;
use crate::units::Unit;

/// The answer of an operation.
pub(crate) enum Slot {
    /// A piece of a read with this many bytes; then the rest of the read continues.
    Read(Read, u32),
    /// A piece of a write; the last one has a residual.
    Write { tag: u32, since: Instant, last: Option<Residual>, expected: u32 },
    /// Anything else.
    Plain { tag: u32, since: Instant, expected: u32 },
    /// It is answered.
    Answered,
}

impl Slot {
    /// The task, unless it is answered.
    fn tag(&self) -> Option<u32> {
        match self {
            Self::Read(Read { tag, .. }, _) | Self::Write { tag, .. } | Self::Plain { tag, .. } => Some(*tag),
            Self::Answered => None,
        }
    }
}

/// A command that is executed by itself, after the batch.
pub(crate) struct Later {
    pub(crate) request: CommandRequest,
    pub(crate) ticket: Ticket,
    /// When it came.
    pub(crate) since: Instant,
    pub(crate) medium: Medium,
    pub(crate) data: Segments,
    /// Where in the device the data of a command belongs that
    /// [is done in pieces](crate::task::Work::Pieces).
    pub(crate) at: u64,
    /// None: more of its data comes, and the last of it answers the command.
    pub(crate) residual: Option<Residual>,
}

/// Commands of a round. Kept over rounds for its memory.
#[derive(Default)]
pub(crate) struct Round {
    operations: Vec<Operation>,
    slots: Vec<Slot>,
    /// Commands that are done one at a time, after the batch.
    pub(crate) later: Vec<Later>,
    /// Of reads and writes in the batch.
    pub(crate) bytes: u64,
    /// PDUs without data of the medium, and the headers and digests around such data.
    pub(crate) out: Vec<u8>,
    /// Data among `out`: its position in `out`, its operation, the position in its data, its
    /// length.
    data: Vec<(usize, usize, usize, usize)>,
    writes: bool,
}

impl Round {
    /// True when there is no work and no answer to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.later.is_empty() && self.out.is_empty()
    }

    /// True when the next command has to wait for the next round.
    pub(crate) fn is_full(&self, window: u64) -> bool {
        // Answers that are no data of the medium are held as well, and can be much longer than
        // their commands.
        let bytes = self.bytes + self.out.len() as u64;
        self.operations.len() + self.later.len() >= BATCH_OPERATIONS_MAX || bytes >= window
    }

    /// Adds an operation without data.
    pub(crate) fn push(&mut self, slot: Slot, request: Request, ticket: Ticket) {
        self.slots.push(slot);
        self.operations.push(Operation::new(request).of(ticket));
    }

    /// The tags of its commands that are not answered.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter_map(Slot::tag).chain(self.later.iter().map(|later| later.request.tag))
    }

    /// Removes a command from a round that has not begun. False when there is none of that tag.
    pub(crate) fn remove(&mut self, tag: u32) -> bool {
        let before = self.slots.len() + self.later.len();
        let is_other = |slot: &Slot| slot.tag() != Some(tag);
        let mut stays: Vec<bool> = self.slots.iter().map(is_other).collect();
        let mut each = stays.drain(..);
        self.operations.retain(|_| each.next().unwrap_or(true));
        drop(each);
        self.slots.retain(is_other);
        self.later.retain(|later| later.request.tag != tag);
        self.slots.len() + self.later.len() < before
    }

    /// Adds a piece of a write.
    pub(crate) fn write(&mut self, slot: Slot, offset: u64, data: Segments, fua: bool, ticket: Ticket) {
        self.bytes += data.len() as u64;
        self.writes = true;
        self.push(slot, Request::Write { offset, data, fua }, ticket);
    }

    /// Adds a piece of a read.
    pub(crate) fn read(&mut self, read: Read, bytes: u32, operation: Operation) {
        self.bytes += u64::from(bytes);
        self.slots.push(Slot::Read(read, bytes));
        self.operations.push(operation);
    }

    /// Sends the ready answers.
    pub(crate) fn send(&mut self, socket: &Socket) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut vectors: Vec<IoSlice<'_>> = Vec::with_capacity(2 * self.data.len() + 1);
        let mut sent = 0;
        for &(until, index, skip, length) in &self.data {
            vectors.push(IoSlice::new(&self.out[sent..until]));
            sent = until;
            if let Some(Ok(data)) = self.operations[index].outcome() {
                each_piece(data, skip, length, |bytes| vectors.push(IoSlice::new(bytes)));
            }
        }
        if sent < self.out.len() {
            vectors.push(IoSlice::new(&self.out[sent..]));
        }
        socket.send_all(&mut vectors)?;
        self.out.clear();
        self.data.clear();
        Ok(())
    }
}

impl Session {
    /// Executes a round and sends all answers. An error means that the initiator has disconnected.
    pub(crate) fn run_round(held: &mut Held<'_>, round: &mut Round) -> Result<(), SessionEnd> {
        held.take_reads(round);
        held.executing = round.tags().collect();
        let result = Self::run_operations(held, round).and_then(|()| Self::run_later(held, round));
        held.executing.clear();
        held.dropped.clear();
        held.entry.gate.forget_withdrawn();
        round.operations.clear();
        round.slots.clear();
        round.later.clear();
        round.out.clear();
        round.data.clear();
        round.bytes = 0;
        round.writes = false;
        Ok(result?)
    }

    fn run_operations(held: &mut Held<'_>, round: &mut Round) -> io::Result<()> {
        if let Some(place) = &held.place
            && !round.operations.is_empty()
        {
            let device = Arc::clone(&place.export.device);
            let unit = Arc::clone(&place.attached.unit);
            for ready in [true, false] {
                if round.slots.iter().all(|slot| matches!(slot, Slot::Answered)) {
                    break;
                }
                let (mut operations, writes) = (std::mem::take(&mut round.operations), round.writes);
                Self::in_device(held, || {
                    // An operation that waits for the lock has not begun.
                    park(&mut operations);
                    let _shared = writes.then(|| unit.exclusive.read());
                    admit(&mut operations);
                    if ready {
                        device.run_ready(&mut operations)
                    } else {
                        device.run(&mut operations)
                    }
                    round.operations = operations;
                });
                held.answer_operations(round);
                round.send(&held.socket)?;
            }
        }
        round.send(&held.socket)
    }

    /// Drops all tasks, and the part of a round that has not begun, if this session's tasks were
    /// aborted; true then.
    pub(crate) fn drop_aborted(&mut self, round: &mut Round) -> bool {
        let generation = self.entry.gate.generation();
        let is_aborted = generation != self.generation;
        if is_aborted {
            self.generation = generation;
            self.drop_tasks(round);
        }
        is_aborted
    }

    /// Prepares the answers of operations that finished since the last call.
    fn answer_operations(&mut self, round: &mut Round) {
        let entry = Arc::clone(&self.entry);
        let mut batch = entry.meter.batch(Instant::now());
        for index in 0..round.slots.len() {
            let Some(outcome) = round.operations[index].outcome() else { continue };
            let failure = outcome.as_ref().err().cloned();
            if let Some(error) = &failure {
                self.note(error);
            }
            let slot = std::mem::replace(&mut round.slots[index], Slot::Answered);
            // Its tag may belong to another command now.
            if slot.tag().is_some_and(|tag| self.dropped.contains(&tag)) {
                continue;
            }
            match (slot, failure) {
                (Slot::Answered, _) => {}
                // Its tasks were aborted, or the session is over.
                (slot, Some(DeviceError::Withdrawn)) => {
                    if let Some(tag) = slot.tag() {
                        self.release(tag);
                        self.protocol.forget(tag);
                    }
                }
                (Slot::Read(read, bytes), None) => {
                    batch.moved(Kind::Read, bytes.into());
                    if read.done + bytes == read.length {
                        batch.done(Kind::Read, read.since, 0);
                    }
                    self.put_data(round, index, read, bytes);
                }
                (Slot::Read(read, _), Some(error)) => {
                    self.fail(read.tag, read.length, sense(&error), read.data_number, round);
                }
                (Slot::Write { tag, since, last, .. }, None) => {
                    if let Request::Write { data, .. } = round.operations[index].request() {
                        batch.moved(Kind::Write, data.len() as u64);
                    }
                    // After a failed piece the command is answered already.
                    if let Some(residual) = last
                        && self.protocol.has_task(tag)
                    {
                        batch.done(Kind::Write, since, 0);
                        self.protocol.respond(tag, 0, &[], residual, 0, &mut round.out);
                    }
                }
                (Slot::Write { tag, expected, .. }, Some(error)) => {
                    // An earlier piece may have failed already, and then the command is answered.
                    if self.protocol.has_task(tag) {
                        self.release(tag);
                        self.fail(tag, expected, sense(&error), 0, round);
                    }
                }
                (Slot::Plain { tag, since, expected }, None) => {
                    batch.done(Kind::Other, since, 0);
                    let residual = Residual::new(expected, 0);
                    self.protocol.respond(tag, 0, &[], residual, 0, &mut round.out);
                }
                (Slot::Plain { tag, expected, .. }, Some(error)) => {
                    self.fail(tag, expected, sense(&error), 0, round);
                }
            }
        }
    }

    /// Prepares Data-In for a piece of a read. The last of the command carries the status.
    fn put_data(&mut self, round: &mut Round, index: usize, mut read: Read, bytes: u32) {
        let operational = *self.protocol.operational();
        let mut skip = 0u32;
        while skip < bytes {
            let in_burst = operational.max_burst - read.done % operational.max_burst;
            let count = (bytes - skip).min(operational.send_segment).min(in_burst);
            let is_last = read.done + count == read.length;
            let ends_burst = count == in_burst || skip + count == bytes;
            let last = is_last.then_some(read.residual);
            let header = self.protocol.data_in(
                read.tag,
                read.data_number,
                read.done,
                count as usize,
                ends_burst,
                last,
            );
            put_header(&mut round.out, &header, operational.header_digest);
            round.data.push((round.out.len(), index, skip as usize, count as usize));
            let zeroes = &[0; 3][..padding(count as usize)];
            round.out.extend_from_slice(zeroes);
            if operational.data_digest {
                let mut crc = 0;
                if let Some(Ok(data)) = round.operations[index].outcome() {
                    each_piece(data, skip as usize, count as usize, |bytes| crc = digest_append(crc, bytes));
                }
                let digest: [u8; DIGEST_BYTES] = digest_append(crc, zeroes).to_le_bytes();
                round.out.extend_from_slice(&digest);
            }
            skip += count;
            read.done += count;
            read.data_number += 1;
        }
        if read.done < read.length {
            self.reads.push_front(read);
        }
    }

    fn run_later(held: &mut Held<'_>, round: &mut Round) -> io::Result<()> {
        for Later { request, ticket, since, medium, data, at, residual } in std::mem::take(&mut round.later) {
            let Some(place) = &held.place else { break };
            if held.dropped.contains(&request.tag) {
                continue;
            }
            let unit = Arc::clone(&place.attached.unit);
            let nexus = place.attached.nexus;
            let (geometry, writes_through) = {
                let state = unit.state.lock();
                (state.geometry(), state.writes_through())
            };
            let device = Arc::clone(&place.export.device);
            let resolver = held.resolver(place);
            let outcome = Self::in_device(held, || {
                let resolve = |designator: &[u8]| resolver.resolve(designator);
                let executed_at = execute::Place {
                    device: &*device,
                    unit: &unit,
                    block_bytes: geometry.block_bytes,
                    writes_through,
                    ticket: &ticket,
                    resolve: &resolve,
                };
                executed_at.run(&medium, &data, at)
            });
            if outcome.is_ok() {
                let (kind, bytes) = kind_of(&medium, &data);
                let mut batch = held.entry.meter.batch(Instant::now());
                if residual.is_some() { batch.done(kind, since, bytes) } else { batch.moved(kind, bytes) }
            }
            if let Medium::Copy(list) = &medium {
                unit.state.lock().copied(nexus, list, outcome.is_err());
            }
            if held.dropped.contains(&request.tag) {
                continue;
            }
            let outcome = match outcome {
                Ok(answer) => Ok(answer),
                Err(Failure::Sense(sense)) => Err(sense),
                Err(Failure::Aborted) => {
                    held.release(request.tag);
                    held.protocol.forget(request.tag);
                    continue;
                }
            };
            match outcome {
                Ok(answer) if answer.is_empty() => match residual {
                    Some(residual) => {
                        held.protocol.respond(request.tag, 0, &[], residual, 0, &mut round.out);
                    }
                    None => held.waiting.push_back(request.tag),
                },
                Ok(data) => {
                    let status = cairn_proto_iscsi::scsi::Status::Good;
                    let answer = cairn_proto_iscsi::scsi::Answer { status, data, sense: Vec::new() };
                    held.answer(&request, &answer, round);
                }
                Err(sense) => {
                    held.release(request.tag);
                    held.fail(request.tag, request.expected, sense, 0, round);
                }
            }
            round.send(&held.socket)?;
        }
        Ok(())
    }

    fn resolver(&self, place: &Place) -> Resolver {
        Resolver {
            shared: Arc::clone(&self.shared),
            initiator: self.initiator.clone(),
            own: Arc::clone(&place.attached.unit),
            export: place.export.clone(),
        }
    }

    /// Notes a failure of the device.
    pub(crate) fn note(&self, error: &DeviceError) {
        if matches!(error, DeviceError::Io { .. } | DeviceError::Corrupt { .. }) {
            let export = self.place.as_ref().map_or("", |place| place.export.name.as_str());
            tracing::warn!(export, %error, "a command failed; the initiator got the error");
        }
    }
}

/// Finds the units that a copy is between, for one session.
struct Resolver {
    shared: Arc<Shared>,
    initiator: Initiator,
    own: Arc<Unit>,
    export: Export,
}

impl Resolver {
    /// The unit of a designator, if this initiator may use it: its own, or one without access rules
    /// and without a reservation.
    fn resolve(&self, designator: &[u8]) -> Option<CopyUnit> {
        let found = |unit: Arc<Unit>, export: &Export| {
            let geometry = crate::units::geometry(export);
            let read_only = geometry.read_only || unit.state.lock().is_write_protected();
            let device = Arc::clone(&export.device);
            CopyUnit { unit, device, block_bytes: geometry.block_bytes, read_only }
        };
        let own = Arc::clone(&self.own);
        if designator == own.state.lock().description().designator() {
            return Some(found(own, &self.export));
        }
        let targets = &self.shared.targets;
        for target in targets.list(&self.initiator) {
            let open_to_all = matches!(targets.admit(&self.initiator, &target), Ok(None));
            if !open_to_all {
                continue;
            }
            let bytes = |id: u64| (0x3 << 60 | (id & !(0xf << 60))).to_be_bytes();
            if let Ok(export) = targets.open(&target)
                && designator == bytes(export.id)
            {
                let unit = self.shared.units.of(&export);
                let is_free = !unit.state.lock().is_reserved();
                return is_free.then(|| found(unit, &export));
            }
        }
        None
    }
}

/// The kind and bytes to count for a command that was done by itself.
fn kind_of(medium: &Medium, data: &Segments) -> (Kind, u64) {
    match medium {
        Medium::Write { .. }
        | Medium::WriteAtomic { .. }
        | Medium::OrWrite { .. }
        | Medium::CompareAndWrite { .. } => (Kind::Write, data.len() as u64),
        _ => (Kind::Other, 0),
    }
}

#[cfg(test)]
mod tests;
