//! A round: requests that are executed one after the other, made durable together, and answered.
//!
//! Replies that need no flush are sent before it. A client tells replies apart by their numbers.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use cairn_device::Segments;
use cairn_files::Tree;
use cairn_frontend_session::{Kind, each_piece};
use cairn_proto_nfs::nlm::{NLM_PROGRAM, NLM_VERSION, NlmCall};
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NSM_VERSION, NsmCall};
use cairn_proto_nfs::rpc::{self, Incoming, MOUNT_PROGRAM, NFS_PROGRAM, Refusal, RpcCall};
use cairn_proto_nfs::{Call, Handle, Malformed, MountCall, Reply, Status, padding, read_reply_head, record};

use crate::around::Around;
use crate::cold::{ColdRead, ReadLanes};
use crate::limits::{ROUND_REQUESTS_MAX, TRANSFER_BYTES_MAX};
use crate::locking::must_not_repeat as must_not_repeat_lock;
use crate::operations::{Answer, ReadOutcome, Replied, failed};
use crate::replies::{Claim, Ticket};

/// Zeroes for the padding after data.
const ZEROES: [u8; 4] = [0; 4];

/// A finished request, for the counts of a session.
struct Counted {
    kind: Kind,
    bytes: u64,
    since: Instant,
}

/// A reply that is sent when its tree is durable.
struct Late {
    xid: u32,
    procedure: u32,
    reply: Vec<u8>,
    tree: Arc<Tree>,
    ticket: Option<Ticket>,
}

/// The outcome for a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was executed, or refused.
    Done,
    /// It repeats a request of this round, which has to be finished first.
    FinishFirst,
    /// It repeats a request that another connection does not finish: the client has to repeat it
    /// later.
    Stuck,
}

/// The replies of a round.
#[derive(Default)]
pub(crate) struct Round {
    /// Replies, but for the data of reads.
    heads: Vec<u8>,
    /// The data of a read follows the bytes of `heads` up to that place.
    data: Vec<(usize, Segments)>,
    late: Vec<Late>,
    /// Reads that wait for the disk.
    cold: Vec<ColdRead>,
    counted: Vec<Counted>,
    bytes: u64,
}

impl Round {
    /// A round of reads that an earlier one took and did not answer.
    pub(crate) fn of_reads(cold: Vec<ColdRead>) -> Self {
        Self { cold, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.late.is_empty() && self.cold.is_empty()
    }

    /// Whether no more requests are to be taken, with a window of that many bytes.
    pub(crate) fn is_full(&self, window: u64) -> bool {
        self.counted.len() + self.cold.len() >= ROUND_REQUESTS_MAX || self.bytes >= window
    }

    /// Executes a record.
    ///
    /// # Errors
    /// It is not a call: no reply is possible.
    pub(crate) fn take(&mut self, around: &Around, bytes: &[u8], since: Instant) -> Result<Taken, Malformed> {
        let call = match rpc::parse(bytes)? {
            Incoming::Call(call) => call,
            Incoming::Refused { xid, refusal } => {
                self.refuse(xid, refusal, since);
                return Ok(Taken::Done);
            }
        };
        let version = match call.program {
            NFS_PROGRAM | MOUNT_PROGRAM => rpc::VERSION,
            NLM_PROGRAM => NLM_VERSION,
            NSM_PROGRAM => NSM_VERSION,
            _ => {
                self.refuse(call.xid, Refusal::NoProgram, since);
                return Ok(Taken::Done);
            }
        };
        if call.version != version {
            self.refuse(call.xid, Refusal::ProgramVersion(version), since);
            return Ok(Taken::Done);
        }
        match call.program {
            NFS_PROGRAM => return Ok(self.take_call(around, &call, bytes, since)),
            NLM_PROGRAM => return Ok(self.take_lock(around, &call, bytes, since)),
            NSM_PROGRAM => self.take_restart(around, &call, since),
            _ => self.take_mount(around, &call, since),
        }
        Ok(Taken::Done)
    }

    fn refuse(&mut self, xid: u32, refusal: Refusal, since: Instant) {
        self.message(|into| rpc::write_refusal(xid, refusal, into));
        self.count(Kind::Other, 0, since);
    }

    fn count(&mut self, kind: Kind, bytes: u64, since: Instant) {
        self.bytes += bytes;
        self.counted.push(Counted { kind, bytes, since });
    }

    /// Adds a whole message.
    fn message(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = record::begin(&mut self.heads);
        write(&mut self.heads);
        record::finish(&mut self.heads, start, 0);
    }

    /// The arguments of a call. Without any it is refused.
    fn known<T, E>(&mut self, call: &RpcCall<'_>, parsed: Option<Result<T, E>>, since: Instant) -> Option<T> {
        let refusal = match parsed {
            Some(Ok(arguments)) => return Some(arguments),
            Some(Err(_)) => Refusal::BadArguments,
            None => Refusal::NoProcedure,
        };
        self.refuse(call.xid, refusal, since);
        None
    }

    fn take_mount(&mut self, around: &Around, call: &RpcCall<'_>, since: Instant) {
        let parsed = MountCall::parse(call.procedure, call.arguments);
        let Some(arguments) = self.known(call, parsed, since) else { return };
        let reply = around.request(&call.credential).mount(&arguments);
        self.message(|into| {
            rpc::write_accepted(call.xid, into);
            reply.write(into);
        });
        self.count(Kind::Other, 0, since);
    }

    fn take_restart(&mut self, around: &Around, call: &RpcCall<'_>, since: Instant) {
        let parsed = NsmCall::parse(call.procedure, call.arguments);
        let Some(notice) = self.known(call, parsed, since) else { return };
        around.locking(&call.credential).nsm(&notice);
        self.message(|into| rpc::write_accepted(call.xid, into));
        self.count(Kind::Other, 0, since);
    }

    fn take_lock(&mut self, around: &Around, call: &RpcCall<'_>, bytes: &[u8], since: Instant) -> Taken {
        let xid = call.xid;
        let parsed = NlmCall::parse(call.procedure, call.arguments);
        let Some(arguments) = self.known(call, parsed, since) else { return Taken::Done };
        let ticket = match self.claim(around, xid, bytes, must_not_repeat_lock(&arguments), since) {
            Ok(ticket) => ticket,
            Err(taken) => return taken,
        };
        let reply = around.locking(&call.credential).nlm(&arguments);
        let mut out = Vec::with_capacity(128);
        rpc::write_accepted(xid, &mut out);
        reply.write(&mut out);
        if let Some(ticket) = ticket {
            ticket.complete(&out);
        }
        self.message(|into| into.extend_from_slice(&out));
        self.count(Kind::Other, 0, since);
        Taken::Done
    }

    /// Claims a request that must not be executed again.
    ///
    /// # Errors
    /// It is answered already, or can't be now.
    fn claim(
        &mut self,
        around: &Around,
        xid: u32,
        bytes: &[u8],
        is_kept: bool,
        since: Instant,
    ) -> Result<Option<Ticket>, Taken> {
        if !is_kept {
            return Ok(None);
        }
        let replies = &around.shared.replies;
        let claim = match replies.claim(around.client, xid, bytes) {
            Claim::Busy if !self.late.is_empty() => return Err(Taken::FinishFirst),
            Claim::Busy => replies.wait(around.client, xid, bytes).ok_or(Taken::Stuck)?,
            claim => claim,
        };
        match claim {
            Claim::Mine(mine) => Ok(Some(mine)),
            Claim::Done(reply) => {
                self.message(|into| into.extend_from_slice(&reply));
                self.count(Kind::Other, 0, since);
                Err(Taken::Done)
            }
            Claim::Busy => Err(Taken::Stuck),
        }
    }

    fn take_call(&mut self, around: &Around, call: &RpcCall<'_>, bytes: &[u8], since: Instant) -> Taken {
        let (xid, procedure) = (call.xid, call.procedure);
        let parsed = Call::parse(call.procedure, call.arguments);
        let Some(arguments) = self.known(call, parsed, since) else { return Taken::Done };
        let ticket = match self.claim(around, xid, bytes, must_not_repeat(&arguments), since) {
            Ok(ticket) => ticket,
            Err(taken) => return taken,
        };
        if let Call::Read { file, offset, count } = arguments {
            self.take_read(around, call, &file, (offset, count), since);
            return Taken::Done;
        }
        let (kind, moved) = match &arguments {
            Call::Write { data, .. } => (Kind::Write, data.len() as u64),
            _ => (Kind::Other, 0),
        };
        let Answer { reply, sync } = around.request(&call.credential).execute(&arguments);
        let mut out = Vec::with_capacity(256);
        rpc::write_accepted(xid, &mut out);
        reply.write(&mut out);
        match sync {
            Some(tree) => self.late.push(Late { xid, procedure, reply: out, tree, ticket }),
            None => {
                settle(ticket, &out);
                self.message(|into| into.extend_from_slice(&out));
            }
        }
        self.count(kind, moved, since);
        Taken::Done
    }

    /// Answers a read from memory, or keeps it for the end of the round.
    fn take_read(
        &mut self,
        around: &Around,
        call: &RpcCall<'_>,
        file: &Handle,
        (offset, count): (u64, u32),
        since: Instant,
    ) {
        match around.request(&call.credential).read_ready(file, offset, count) {
            Ok(Some(read)) => self.add_read(call.xid, Ok(read), since),
            Err(failed) => self.add_read(call.xid, Err(failed), since),
            Ok(None) => {
                let (xid, credential, file) = (call.xid, call.credential.clone(), *file);
                let count = count.min(TRANSFER_BYTES_MAX);
                self.bytes += u64::from(count);
                self.cold.push(ColdRead { xid, credential, file, offset, count, since });
            }
        }
    }

    /// Adds the reply of a read.
    fn add_read(&mut self, xid: u32, outcome: ReadOutcome, since: Instant) {
        match outcome {
            Ok(Replied { attributes, data, end }) => {
                let bytes = data.len() as u64;
                self.data(xid, data, |count, into| read_reply_head(attributes, count, end, into));
                self.count(Kind::Read, bytes, since);
            }
            Err(failed) => {
                self.message(|into| {
                    rpc::write_accepted(xid, into);
                    Reply::Read(Err(failed)).write(into);
                });
                self.count(Kind::Read, 0, since);
            }
        }
    }

    /// Executes the reads that wait for the disk, those of one file together, and sends their
    /// replies.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(crate) fn read_cold(&mut self, around: &Around) -> io::Result<()> {
        let mut cold = std::mem::take(&mut self.cold);
        cold.sort_by(|one, other| one.file.as_bytes().cmp(other.file.as_bytes()));
        let mut outcome = Ok(());
        for some in cold.chunk_by(ColdRead::is_beside) {
            let Some(first) = some.first() else { continue };
            let wanted: Vec<(u64, u32)> = some.iter().map(|read| (read.offset, read.count)).collect();
            let read = around.request(&first.credential).read_several(&first.file, &wanted);
            around.meter().taken(some.len() as u64);
            for (read, outcome) in some.iter().zip(read) {
                self.add_read(read.xid, outcome, read.since);
            }
            self.count_done(around);
            outcome = outcome.and_then(|()| self.send(around));
        }
        outcome
    }

    /// Adds a message with data.
    fn data(&mut self, xid: u32, data: Segments, head: impl FnOnce(u32, &mut Vec<u8>)) {
        let length = data.len();
        let start = record::begin(&mut self.heads);
        rpc::write_accepted(xid, &mut self.heads);
        head(length as u32, &mut self.heads);
        let place = self.heads.len();
        self.heads.extend(ZEROES.iter().take(padding(length)));
        record::finish(&mut self.heads, start, length);
        self.data.push((place, data));
    }

    /// Makes the changes durable, and sends all replies. Reads that wait for the disk may be
    /// answered later, by `lanes`.
    ///
    /// # Errors
    /// The client has disconnected. The changes are durable all the same, and the replies are kept
    /// for a client that repeats them.
    pub(crate) fn finish(&mut self, around: &Around, lanes: &mut ReadLanes) -> io::Result<()> {
        around.meter().taken(self.counted.len() as u64);
        let early = self.send(around);
        if !self.cold.is_empty() {
            self.cold = lanes.give(std::mem::take(&mut self.cold), !self.late.is_empty());
        }
        let late = std::mem::take(&mut self.late);
        let mut synced: Vec<(Arc<Tree>, bool)> = Vec::new();
        for Late { xid, procedure, reply, tree, ticket } in late {
            let known =
                synced.iter().find(|(other, _)| Arc::ptr_eq(other, &tree)).map(|(_, durable)| *durable);
            let is_durable = known.unwrap_or_else(|| {
                let durable = tree.sync_all().inspect_err(|error| {
                    tracing::error!(%error, "changes of NFS clients are not durable; the clients get an error");
                });
                synced.push((tree, durable.is_ok()));
                durable.is_ok()
            });
            if is_durable {
                settle(ticket, &reply);
                self.message(|into| into.extend_from_slice(&reply));
            } else {
                self.message(|into| {
                    rpc::write_accepted(xid, into);
                    failed(procedure, Status::Io).write(into);
                });
            }
        }
        let outcome = early.and_then(|()| self.send(around));
        self.count_done(around);
        let outcome = outcome.and_then(|()| self.read_cold(around));
        self.cold.clear();
        self.bytes = 0;
        outcome
    }

    fn count_done(&mut self, around: &Around) {
        let mut batch = around.meter().batch(Instant::now());
        for Counted { kind, bytes, since } in self.counted.drain(..) {
            batch.done(kind, since, bytes);
        }
    }

    fn send(&mut self, around: &Around) -> io::Result<()> {
        if self.heads.is_empty() {
            return Ok(());
        }
        let mut vectors = Vec::with_capacity(2 * self.data.len() + 1);
        let mut sent = 0;
        for (place, data) in &self.data {
            vectors.push(IoSlice::new(&self.heads[sent..*place]));
            sent = *place;
            each_piece(data, 0, data.len(), |bytes| vectors.push(IoSlice::new(bytes)));
        }
        vectors.push(IoSlice::new(&self.heads[sent..]));
        vectors.retain(|vector| !vector.is_empty());
        let outcome = around.outlet.send_all(&mut vectors);
        self.heads.clear();
        self.data.clear();
        outcome
    }
}

/// Whether a repeated request could undo a later one, or fail where the first did not.
fn must_not_repeat(call: &Call<'_>) -> bool {
    match call {
        Call::SetAttr { .. }
        | Call::Write { .. }
        | Call::Create { .. }
        | Call::MkDir { .. }
        | Call::SymLink { .. }
        | Call::MkNod { .. }
        | Call::Remove { .. }
        | Call::RmDir { .. }
        | Call::Rename { .. }
        | Call::Link { .. } => true,
        Call::Null {}
        | Call::GetAttr { .. }
        | Call::Lookup { .. }
        | Call::Access { .. }
        | Call::ReadLink { .. }
        | Call::Read { .. }
        | Call::ReadDir { .. }
        | Call::ReadDirPlus { .. }
        | Call::FsStat { .. }
        | Call::FsInfo { .. }
        | Call::PathConf { .. }
        | Call::Commit { .. } => false,
    }
}

/// Keeps a reply for a client that repeats the request, unless the client is to try again.
fn settle(ticket: Option<Ticket>, reply: &[u8]) {
    let head = {
        let mut head = Vec::new();
        rpc::write_accepted(0, &mut head);
        head.len()
    };
    let is_later = reply.get(head..head + 4) == Some(&Status::Jukebox.number().to_be_bytes());
    if let Some(ticket) = ticket.filter(|_| !is_later) {
        ticket.complete(reply);
    }
}
