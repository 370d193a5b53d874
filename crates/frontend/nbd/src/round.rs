//! One round of a session: the requests that were taken together, as one batch of operations, and
//! their replies.
//!
//! Data is sent directly from the device's blocks. Data in memory is sent before waiting for the
//! rest, so replies may come in another order than their requests.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use cairn_base::BLOCK_SIZE;
use cairn_device::{DeviceError, Operation, Request as DeviceRequest, Segments, admit, park};
use cairn_frontend_session::limits::BATCH_OPERATIONS_MAX;
use cairn_frontend_session::{Kind, each_piece};
use cairn_proto_nbd::{
    Command, NbdError, Negotiated, ReplyMode, ReplyTo, put_block_status, put_error, put_read_header,
    put_read_piece, put_success,
};

use crate::device_error::nbd_error;
use crate::exports::Export;
use crate::lanes::ReadLanes;
use crate::limits::{LANE_READS_MAX, LANE_READS_MIN, LANES_SHARE};
use crate::registry::Entry;
use crate::status::block_status;
use crate::transport::Replies;

/// The parts of its session that a round needs.
pub(crate) struct Surroundings {
    pub(crate) export: Export,
    pub(crate) name: String,
    pub(crate) negotiated: Negotiated,
    pub(crate) entry: Arc<Entry>,
}

/// The reply of an operation.
struct Slot {
    to: ReplyTo,
    /// When its first bytes came.
    since: Instant,
    /// For a read: the requested bytes of the operation's data.
    read: Option<Wanted>,
    /// A piece of a write that is not its last: the session reports only its failure.
    piece: bool,
    answered: bool,
}

#[derive(Clone, Copy)]
struct Wanted {
    offset: u64,
    length: u32,
}

/// A read that does not fit into the window.
#[derive(Clone, Copy)]
struct LongRead {
    to: ReplyTo,
    since: Instant,
    offset: u64,
    length: u32,
    /// All its data must come in one chunk.
    one_chunk: bool,
}

struct Query {
    to: ReplyTo,
    since: Instant,
    offset: u64,
    length: u64,
    one: bool,
    only: Option<Vec<usize>>,
}

/// Requests of a round. Kept over rounds for its memory.
pub(crate) struct Round {
    operations: Vec<Operation>,
    slots: Vec<Slot>,
    queries: Vec<Query>,
    /// It comes last of all, and alone.
    long: Option<LongRead>,
    /// How a piece of a write failed.
    failed_piece: Option<NbdError>,
    /// Bytes that may be taken at once.
    pub(crate) window: u64,
    /// When the first bytes of the next added request came.
    pub(crate) since: Instant,
    bytes: u64,
    /// Replies without data, and the headers before data.
    headers: Vec<u8>,
    /// For each reply with data: where its header ends, and its operation.
    data: Vec<(usize, usize)>,
}

impl Round {
    /// Without requests.
    pub(crate) fn new(since: Instant) -> Self {
        Self {
            operations: Vec::new(),
            slots: Vec::new(),
            queries: Vec::new(),
            long: None,
            failed_piece: None,
            window: 0,
            since,
            bytes: 0,
            headers: Vec::new(),
            data: Vec::new(),
        }
    }

    /// True when there is no work and no reply to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.queries.is_empty()
            && self.long.is_none()
            && self.headers.is_empty()
    }

    /// True when the next request has to wait for the next round.
    pub(crate) fn is_full(&self) -> bool {
        self.long.is_some()
            || self.operations.len() + self.queries.len() >= BATCH_OPERATIONS_MAX
            || self.bytes >= self.window
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, around: &Surroundings, to: ReplyTo, error: NbdError) {
        put_error(&mut self.headers, around.negotiated.mode, to, error, &error.to_string());
    }

    /// How a piece of a write failed in the last run; nothing of that write was answered.
    pub(crate) fn take_failed_piece(&mut self) -> Option<NbdError> {
        self.failed_piece.take()
    }

    /// Adds a write whose payload is here, or a piece of one that is not its last.
    pub(crate) fn write(&mut self, to: ReplyTo, offset: u64, data: Segments, fua: bool, piece: bool) {
        self.bytes += data.len() as u64;
        self.slots.push(Slot { to, since: self.since, read: None, piece, answered: false });
        self.operations.push(Operation::new(DeviceRequest::Write { offset, data, fua }));
    }

    /// Adds any command that is complete in itself.
    pub(crate) fn command(&mut self, around: &Surroundings, to: ReplyTo, command: Command) {
        match command {
            Command::Read { offset, length, one_chunk } if u64::from(length) > self.window => {
                self.long = Some(LongRead { to, since: self.since, offset, length, one_chunk });
            }
            Command::Read { offset, length, .. } => self.read(around, to, offset, length),
            Command::Flush => self.operation(to, DeviceRequest::Flush),
            Command::Trim { offset, length, fua } => {
                self.unless_empty(around, to, length, DeviceRequest::Trim { offset, length, fua });
            }
            Command::Cache { offset, length } => {
                self.unless_empty(around, to, length, DeviceRequest::Prefetch { offset, length });
            }
            Command::WriteZeroes { offset, length, may_trim, fua } => {
                let request = DeviceRequest::WriteZeroes { offset, length, may_trim, fua };
                self.unless_empty(around, to, length, request);
            }
            Command::BlockStatus { offset, length, one, only } => {
                self.queries.push(Query { to, since: self.since, offset, length, one, only });
            }
            // The session handles these itself; a write without bytes has nothing to do.
            Command::Write { .. } | Command::Disconnect => {
                put_success(&mut self.headers, around.negotiated.mode, to);
            }
        }
    }

    fn read(&mut self, around: &Surroundings, to: ReplyTo, offset: u64, length: u32) {
        if length == 0 {
            put_read_header(&mut self.headers, around.negotiated.mode, to, offset, 0);
            return;
        }
        self.bytes += u64::from(length);
        let (since, read) = (self.since, Some(Wanted { offset, length }));
        self.slots.push(Slot { to, since, read, piece: false, answered: false });
        self.operations.push(Operation::read(offset, length));
    }

    fn unless_empty(&mut self, around: &Surroundings, to: ReplyTo, length: u64, request: DeviceRequest) {
        if length == 0 {
            put_success(&mut self.headers, around.negotiated.mode, to);
        } else {
            self.operation(to, request);
        }
    }

    fn operation(&mut self, to: ReplyTo, request: DeviceRequest) {
        self.slots.push(Slot { to, since: self.since, read: None, piece: false, answered: false });
        self.operations.push(Operation::new(request));
    }

    /// Executes all requests and sends all replies, or gives reads that have to wait to `lanes`. An
    /// error means that the client has disconnected.
    pub(crate) fn run(
        &mut self,
        around: &Surroundings,
        lanes: &mut ReadLanes,
        out: &mut impl Replies,
    ) -> io::Result<()> {
        let count = self.operations.len() + self.queries.len() + usize::from(self.long.is_some());
        around.entry.meter.taken(count as u64);
        let result = self.run_ready(around, out).and_then(|()| {
            if !self.give_to(lanes) {
                self.run_pending(around, out)?;
            }
            self.run_rest(around, out)
        });
        self.operations.clear();
        self.slots.clear();
        self.queries.clear();
        self.long = None;
        self.headers.clear();
        self.data.clear();
        self.bytes = 0;
        result
    }

    /// Executes and answers the operations that need no waiting.
    fn run_ready(&mut self, around: &Surroundings, out: &mut impl Replies) -> io::Result<()> {
        if !self.operations.is_empty() {
            let ticket = around.entry.gate.ticket(0);
            let ends = self.operations.iter_mut().filter(|one| one.is_flush() || one.request().is_mutation());
            ends.for_each(|operation| operation.give(ticket.clone()));
            admit(&mut self.operations);
            around.export.device.run_ready(&mut self.operations);
        }
        self.answer(around, out)
    }

    /// Executes and answers the rest of the operations.
    pub(crate) fn run_pending(&mut self, around: &Surroundings, out: &mut impl Replies) -> io::Result<()> {
        if self.slots.iter().any(|slot| !slot.answered) {
            park(&mut self.operations);
            admit(&mut self.operations);
            around.export.device.run(&mut self.operations);
            self.answer(around, out)?;
        }
        Ok(())
    }

    /// Gives the pending operations to lanes, if they are several reads and nothing else. Those
    /// that find no lane stay here; true when none does.
    fn give_to(&mut self, lanes: &mut ReadLanes) -> bool {
        let pending = || self.slots.iter().filter(|slot| !slot.answered);
        if pending().count() < LANE_READS_MIN || pending().any(|slot| slot.read.is_none()) {
            return false;
        }
        let mut waiting: VecDeque<(Operation, Slot)> =
            self.operations.drain(..).zip(self.slots.drain(..)).filter(|(_, slot)| !slot.answered).collect();
        let share = (waiting.len() / LANES_SHARE).clamp(LANE_READS_MIN, LANE_READS_MAX);
        while !waiting.is_empty() && lanes.has_room() {
            let part: Vec<(Operation, Slot)> = waiting.drain(..share.min(waiting.len())).collect();
            if let Err(round) = lanes.give(Box::new(Round::of_reads(self.since, part))) {
                waiting.extend(round.operations.into_iter().zip(round.slots));
                break;
            }
        }
        (self.operations, self.slots) = waiting.into_iter().unzip();
        self.operations.is_empty()
    }

    /// A round of reads that an earlier one took and did not answer.
    fn of_reads(since: Instant, reads: Vec<(Operation, Slot)>) -> Self {
        let mut round = Self::new(since);
        round.bytes = reads.iter().filter_map(|(_, slot)| slot.read).map(|read| u64::from(read.length)).sum();
        (round.operations, round.slots) = reads.into_iter().unzip();
        round
    }

    /// Bytes of the requests that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn run_rest(&mut self, around: &Surroundings, out: &mut impl Replies) -> io::Result<()> {
        for query in std::mem::take(&mut self.queries) {
            self.answer_query(around, &query);
            around.entry.meter.batch(Instant::now()).done(Kind::Other, query.since, 0);
        }
        self.send(out)?;
        match self.long.take() {
            Some(read) => self.run_long(around, out, read),
            None => Ok(()),
        }
    }

    /// Answers a read that does not fit into the window, a piece at a time.
    fn run_long(&mut self, around: &Surroundings, out: &mut impl Replies, read: LongRead) -> io::Result<()> {
        let mode = around.negotiated.mode;
        let LongRead { to, since, offset, length, .. } = read;
        // Once the header of a single chunk is out there is no place for an error any more, so that
        // all is read once before.
        let one_chunk = read.one_chunk || mode == ReplyMode::Simple;
        if one_chunk {
            for (offset, length) in pieces(offset, length, self.window) {
                if let Err(error) = read_piece(around, offset, length) {
                    fail(&mut self.headers, around, to, &error);
                    return self.send(out);
                }
            }
            put_read_header(&mut self.headers, mode, to, offset, length);
        }
        let end = offset + u64::from(length);
        for (offset, length) in pieces(offset, length, self.window) {
            let data = match read_piece(around, offset, length) {
                Ok(data) => data,
                // It could be read just now. The client learns that this reply is invalid.
                Err(error) if one_chunk => return Err(io::Error::other(error)),
                Err(error) => {
                    fail(&mut self.headers, around, to, &error);
                    return self.send(out);
                }
            };
            if !one_chunk {
                put_read_piece(
                    &mut self.headers,
                    mode,
                    to,
                    offset,
                    length,
                    offset + u64::from(length) == end,
                );
            }
            let mut vectors = vec![IoSlice::new(&self.headers)];
            push_data(&mut vectors, &data, length);
            out.send_all(&mut vectors)?;
            self.headers.clear();
            around.entry.meter.batch(Instant::now()).moved(Kind::Read, u64::from(length));
        }
        around.entry.meter.batch(Instant::now()).done(Kind::Read, since, 0);
        Ok(())
    }

    fn answer_query(&mut self, around: &Surroundings, query: &Query) {
        let contexts = &around.negotiated.contexts;
        let all: Vec<usize> = (0..contexts.len()).collect();
        let positions = query.only.as_ref().unwrap_or(&all);
        let mut answers = Vec::with_capacity(positions.len());
        for context in positions.iter().filter_map(|position| contexts.get(*position)) {
            match block_status(&around.export, context, query.offset, query.length, query.one) {
                Ok(extents) => answers.push((context.id, extents)),
                Err(error) => return fail(&mut self.headers, around, query.to, &error),
            }
        }
        for (index, (id, extents)) in answers.iter().enumerate() {
            let last = index + 1 == answers.len();
            put_block_status(&mut self.headers, around.negotiated.mode, query.to, last, *id, extents);
        }
    }

    /// Sends the replies of operations that finished since the last call.
    fn answer(&mut self, around: &Surroundings, out: &mut impl Replies) -> io::Result<()> {
        let mode = around.negotiated.mode;
        if self.slots.is_empty() {
            return self.send(out);
        }
        let mut batch = around.entry.meter.batch(Instant::now());
        for (index, (operation, slot)) in self.operations.iter().zip(&mut self.slots).enumerate() {
            let Some(outcome) = operation.outcome() else { continue };
            if slot.answered {
                continue;
            }
            slot.answered = true;
            let (kind, bytes) = kind_of(operation.request());
            match outcome {
                Ok(_) if slot.piece => batch.moved(kind, bytes),
                Ok(_) => batch.done(kind, slot.since, bytes),
                Err(_) => {}
            }
            match (outcome, slot.read) {
                (Ok(data), Some(wanted)) => {
                    let needed = wanted.length as usize;
                    assert!(data.len() >= needed, "a device gives all the bytes of a read, or an error");
                    put_read_header(&mut self.headers, mode, slot.to, wanted.offset, wanted.length);
                    self.data.push((self.headers.len(), index));
                }
                (Ok(_), None) if slot.piece => {}
                (Err(error), None) if slot.piece => self.failed_piece = Some(failed(around, error)),
                (Ok(_), None) => put_success(&mut self.headers, mode, slot.to),
                (Err(error), _) => fail(&mut self.headers, around, slot.to, error),
            }
        }
        drop(batch);
        self.send(out)
    }

    fn send(&mut self, out: &mut impl Replies) -> io::Result<()> {
        if self.headers.is_empty() {
            return Ok(());
        }
        let mut vectors: Vec<IoSlice<'_>> = Vec::with_capacity(2 * self.data.len() + 1);
        let mut sent = 0;
        for &(header_end, index) in &self.data {
            vectors.push(IoSlice::new(&self.headers[sent..header_end]));
            sent = header_end;
            if let (Some(Ok(data)), Some(wanted)) = (self.operations[index].outcome(), self.slots[index].read)
            {
                push_data(&mut vectors, data, wanted.length);
            }
        }
        if sent < self.headers.len() {
            vectors.push(IoSlice::new(&self.headers[sent..]));
        }
        out.send_all(&mut vectors)?;
        self.headers.clear();
        self.data.clear();
        Ok(())
    }
}

/// A stretch in pieces of at most `longest` bytes that end where blocks end: offset and length of
/// each.
fn pieces(offset: u64, length: u32, longest: u64) -> impl Iterator<Item = (u64, u32)> {
    let end = offset + u64::from(length);
    let mut next = offset;
    std::iter::from_fn(move || {
        let at = next;
        let length = piece_bytes(at, end - at, longest);
        next += u64::from(length);
        (length > 0).then_some((at, length))
    })
}

/// The length of the first piece of `left` bytes at `offset`.
pub(crate) fn piece_bytes(offset: u64, left: u64, longest: u64) -> u32 {
    left.min(longest - offset % BLOCK_SIZE as u64) as u32
}

fn read_piece(around: &Surroundings, offset: u64, length: u32) -> Result<Segments, DeviceError> {
    let data = around.export.device.read(offset, length)?;
    assert!(data.len() >= length as usize, "a device gives all the bytes of a read, or an error");
    Ok(data)
}

fn push_data<'a>(vectors: &mut Vec<IoSlice<'a>>, data: &'a Segments, length: u32) {
    each_piece(data, 0, length as usize, |bytes| vectors.push(IoSlice::new(bytes)));
}

/// The kind and bytes to count for a finished operation.
fn kind_of(request: &DeviceRequest) -> (Kind, u64) {
    match request {
        DeviceRequest::Read { length, .. } => (Kind::Read, u64::from(*length)),
        DeviceRequest::Write { data, .. } => (Kind::Write, data.len() as u64),
        _ => (Kind::Other, 0),
    }
}

fn fail(headers: &mut Vec<u8>, around: &Surroundings, to: ReplyTo, error: &DeviceError) {
    let wire = failed(around, error);
    put_error(headers, around.negotiated.mode, to, wire, &error.to_string());
}

/// Records a failure, and returns its NBD error.
fn failed(around: &Surroundings, error: &DeviceError) -> NbdError {
    if matches!(error, DeviceError::Io { .. } | DeviceError::Corrupt { .. }) {
        tracing::warn!(export = around.name.as_str(), %error, "a request failed; the client got the error");
    }
    nbd_error(error)
}
