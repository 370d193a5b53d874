//! One round of a session: the requests that were taken together, as one batch of operations, and their replies.
//!
//! Data goes out from the blocks in which the device gave it. What is in memory is answered before the rest is
//! waited for, so replies may come in another order than their requests.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_device::{DeviceError, Operation, Request as DeviceRequest, Segments};
use cairn_proto_nbd::{
    Command, NbdError, Negotiated, ReplyTo, put_block_status, put_error, put_read_header, put_success,
};
use parking_lot::RwLock;

use crate::device_error::nbd_error;
use crate::exports::Export;
use crate::limits::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX};
use crate::status::block_status;
use crate::transport::Transport;
use crate::unaligned;

/// What a session has done; read by others while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// What a round needs to know of its session.
pub(crate) struct Surroundings<'a> {
    pub(crate) export: &'a Export,
    pub(crate) name: &'a str,
    pub(crate) negotiated: &'a Negotiated,
    /// Of the device, in bytes.
    pub(crate) alignment: u64,
    /// Held shared for aligned writes and alone for others, when there is an alignment.
    pub(crate) partial_writes: &'a RwLock<()>,
    pub(crate) counters: &'a Counters,
}

/// What an operation answers.
struct Slot {
    to: ReplyTo,
    /// Of a read: which bytes of the operation's data were asked for.
    read: Option<Wanted>,
    answered: bool,
}

#[derive(Clone, Copy)]
struct Wanted {
    offset: u64,
    length: u32,
    /// Bytes before the wanted ones.
    skip: usize,
}

struct Query {
    to: ReplyTo,
    offset: u64,
    length: u64,
    one: bool,
    only: Option<Vec<usize>>,
}

/// Requests of a round. Kept over rounds for its memory.
#[derive(Default)]
pub(crate) struct Round {
    operations: Vec<Operation>,
    slots: Vec<Slot>,
    queries: Vec<Query>,
    /// A write that is not aligned; it comes last and alone.
    partial: Option<(ReplyTo, DeviceRequest)>,
    bytes: u64,
    /// Replies without data, and what goes before data.
    headers: Vec<u8>,
    /// For each reply with data: where its header ends, and its operation.
    data: Vec<(usize, usize)>,
}

impl Round {
    /// True when there is nothing to do or to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.queries.is_empty()
            && self.partial.is_none()
            && self.headers.is_empty()
    }

    /// True when the next request has to wait for the next round.
    pub(crate) fn is_full(&self) -> bool {
        self.partial.is_some()
            || self.operations.len() + self.queries.len() >= BATCH_OPERATIONS_MAX
            || self.bytes >= BATCH_BYTES_MAX
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, around: &Surroundings<'_>, to: ReplyTo, error: NbdError) {
        put_error(&mut self.headers, around.negotiated.mode, to, error, &error.to_string());
    }

    /// Adds a write whose payload is here.
    pub(crate) fn write(
        &mut self,
        around: &Surroundings<'_>,
        to: ReplyTo,
        offset: u64,
        data: Segments,
        fua: bool,
    ) {
        let length = data.len() as u64;
        self.bytes += length;
        around.counters.written_bytes.fetch_add(length, Ordering::Relaxed);
        let request = DeviceRequest::Write { offset, data, fua };
        if unaligned::is_aligned(around.alignment, offset, length) {
            self.operation(to, request);
        } else {
            self.partial = Some((to, request));
        }
    }

    /// Adds any command that is complete in itself.
    pub(crate) fn command(&mut self, around: &Surroundings<'_>, to: ReplyTo, command: Command) {
        let alignment = around.alignment;
        match command {
            Command::Read { offset, length } => self.read(around, to, offset, length),
            Command::Flush => self.operation(to, DeviceRequest::Flush),
            Command::Trim { offset, length, fua } => {
                // A part of a block can't be freed, and nobody is promised that it is.
                let (offset, length) = unaligned::inward(alignment, offset, length);
                self.unless_empty(around, to, length, DeviceRequest::Trim { offset, length, fua });
            }
            Command::Cache { offset, length } => {
                let (offset, length) = unaligned::outward(alignment, offset, length);
                self.unless_empty(around, to, length, DeviceRequest::Prefetch { offset, length });
            }
            Command::WriteZeroes { offset, length, may_trim, fua } => {
                let request = DeviceRequest::WriteZeroes { offset, length, may_trim, fua };
                if unaligned::is_aligned(alignment, offset, length) {
                    self.unless_empty(around, to, length, request);
                } else {
                    self.partial = Some((to, request));
                }
            }
            Command::BlockStatus { offset, length, one, only } => {
                self.queries.push(Query { to, offset, length, one, only });
            }
            // The session handles these itself; a write without bytes has nothing to do.
            Command::Write { .. } | Command::Disconnect => {
                put_success(&mut self.headers, around.negotiated.mode, to);
            }
        }
    }

    fn read(&mut self, around: &Surroundings<'_>, to: ReplyTo, offset: u64, length: u32) {
        if length == 0 {
            put_read_header(&mut self.headers, around.negotiated.mode, to, offset, 0);
            return;
        }
        let (start, span) = unaligned::outward(around.alignment, offset, u64::from(length));
        let wanted = Wanted { offset, length, skip: (offset - start) as usize };
        self.bytes += span;
        self.slots.push(Slot { to, read: Some(wanted), answered: false });
        self.operations.push(Operation::read(start, span as u32));
    }

    fn unless_empty(&mut self, around: &Surroundings<'_>, to: ReplyTo, length: u64, request: DeviceRequest) {
        if length == 0 {
            put_success(&mut self.headers, around.negotiated.mode, to);
        } else {
            self.operation(to, request);
        }
    }

    fn operation(&mut self, to: ReplyTo, request: DeviceRequest) {
        self.slots.push(Slot { to, read: None, answered: false });
        self.operations.push(Operation::new(request));
    }

    /// Does all and sends all replies. An error means that the client is gone.
    pub(crate) fn run(&mut self, around: &Surroundings<'_>, transport: &mut Transport) -> io::Result<()> {
        let count = self.operations.len() + self.queries.len() + usize::from(self.partial.is_some());
        around.counters.requests.fetch_add(count as u64, Ordering::Relaxed);
        let result = self.run_operations(around, transport).and_then(|()| self.run_rest(around, transport));
        self.operations.clear();
        self.slots.clear();
        self.queries.clear();
        self.partial = None;
        self.headers.clear();
        self.data.clear();
        self.bytes = 0;
        result
    }

    fn run_operations(&mut self, around: &Surroundings<'_>, transport: &mut Transport) -> io::Result<()> {
        let device = &*around.export.device;
        if !self.operations.is_empty() {
            let _shared = (around.alignment > 1).then(|| around.partial_writes.read());
            device.run_ready(&mut self.operations);
        }
        self.answer(around, transport)?;
        if self.slots.iter().any(|slot| !slot.answered) {
            {
                let _shared = (around.alignment > 1).then(|| around.partial_writes.read());
                device.run(&mut self.operations);
            }
            self.answer(around, transport)?;
        }
        Ok(())
    }

    fn run_rest(&mut self, around: &Surroundings<'_>, transport: &mut Transport) -> io::Result<()> {
        let mode = around.negotiated.mode;
        if let Some((to, request)) = self.partial.take() {
            let outcome = {
                let _alone = around.partial_writes.write();
                unaligned::run(&*around.export.device, around.alignment, &request)
            };
            match outcome {
                Ok(()) => put_success(&mut self.headers, mode, to),
                Err(error) => fail(&mut self.headers, around, to, &error),
            }
        }
        for query in std::mem::take(&mut self.queries) {
            self.answer_query(around, &query);
        }
        self.send(transport)
    }

    fn answer_query(&mut self, around: &Surroundings<'_>, query: &Query) {
        let contexts = &around.negotiated.contexts;
        let all: Vec<usize> = (0..contexts.len()).collect();
        let positions = query.only.as_ref().unwrap_or(&all);
        let mut answers = Vec::with_capacity(positions.len());
        for context in positions.iter().filter_map(|position| contexts.get(*position)) {
            match block_status(around.export, context, query.offset, query.length, query.one) {
                Ok(extents) => answers.push((context.id, extents)),
                Err(error) => return fail(&mut self.headers, around, query.to, &error),
            }
        }
        for (index, (id, extents)) in answers.iter().enumerate() {
            let last = index + 1 == answers.len();
            put_block_status(&mut self.headers, around.negotiated.mode, query.to, last, *id, extents);
        }
    }

    /// Sends the replies of what finished since the last call.
    fn answer(&mut self, around: &Surroundings<'_>, transport: &mut Transport) -> io::Result<()> {
        let mode = around.negotiated.mode;
        let mut read_bytes = 0;
        for (index, (operation, slot)) in self.operations.iter().zip(&mut self.slots).enumerate() {
            let Some(outcome) = operation.outcome() else { continue };
            if slot.answered {
                continue;
            }
            slot.answered = true;
            match (outcome, slot.read) {
                (Ok(data), Some(wanted)) => {
                    let needed = wanted.skip + wanted.length as usize;
                    assert!(data.len() >= needed, "a device gives all the bytes of a read, or an error");
                    put_read_header(&mut self.headers, mode, slot.to, wanted.offset, wanted.length);
                    self.data.push((self.headers.len(), index));
                    read_bytes += u64::from(wanted.length);
                }
                (Ok(_), None) => put_success(&mut self.headers, mode, slot.to),
                (Err(error), _) => fail(&mut self.headers, around, slot.to, error),
            }
        }
        around.counters.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.send(transport)
    }

    fn send(&mut self, transport: &mut Transport) -> io::Result<()> {
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
                push_wanted(&mut vectors, data, wanted);
            }
        }
        if sent < self.headers.len() {
            vectors.push(IoSlice::new(&self.headers[sent..]));
        }
        transport.send_all(&mut vectors)?;
        self.headers.clear();
        self.data.clear();
        Ok(())
    }
}

fn push_wanted<'a>(vectors: &mut Vec<IoSlice<'a>>, data: &'a Segments, wanted: Wanted) {
    let (mut skip, mut left) = (wanted.skip, wanted.length as usize);
    for segment in data.iter() {
        let bytes = segment.bytes();
        if skip >= bytes.len() {
            skip -= bytes.len();
            continue;
        }
        let bytes = &bytes[skip..];
        let bytes = &bytes[..left.min(bytes.len())];
        if bytes.is_empty() {
            break;
        }
        vectors.push(IoSlice::new(bytes));
        left -= bytes.len();
        skip = 0;
    }
}

fn fail(headers: &mut Vec<u8>, around: &Surroundings<'_>, to: ReplyTo, error: &DeviceError) {
    if matches!(error, DeviceError::Io { .. } | DeviceError::Corrupt { .. }) {
        tracing::warn!(export = around.name, %error, "a request failed; the client was told");
    }
    put_error(headers, around.negotiated.mode, to, nbd_error(error), &error.to_string());
}
