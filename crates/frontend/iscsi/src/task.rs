//! Commands, from their CDB to the round in which they are done.

use std::time::Instant;

use cairn_device::{Operation, Request, Segments};
use cairn_frontend_session::Payload;
use cairn_proto_iscsi::scsi::{Answer, Command, Compare, Medium, Plan, Sense, Status};
use cairn_proto_iscsi::{CommandRequest, Residual, Wants};

use crate::round::{Later, Round, Slot};
use crate::session::Session;
use crate::units::Ended;

/// The work of a command once its data is here.
pub(crate) enum Work {
    /// A plain write: each sequence of data goes to the device when it is complete.
    Write {
        /// Durable when answered.
        fua: bool,
    },
    /// With each sequence of data when it is complete, as it may be long: `blocks` are those that
    /// the initiator sends.
    Pieces(Medium),
    /// All data first.
    Medium(Medium),
    /// Parameters of a command without I/O.
    Parameters(Command),
    /// Nothing yet: it waits for other commands.
    Held,
}

/// A command that waits for data.
pub(crate) struct Task {
    pub(crate) request: CommandRequest,
    /// When it came.
    since: Instant,
    pub(crate) work: Work,
    /// Bytes that the CDB describes, whatever the initiator sends.
    actual: u64,
    /// Bytes that it needs from the initiator.
    wanted: u32,
    /// The place of the payload in the device.
    offset: u64,
    pub(crate) payload: Option<Payload>,
    /// Pieces of it went to the device before.
    begun: bool,
    /// Its part of [`Session::reserved`].
    reserved: u64,
}

/// A read, or the rest of it.
pub(crate) struct Read {
    pub(crate) tag: u32,
    /// When it came.
    pub(crate) since: Instant,
    /// Where in the device the command's first byte is.
    pub(crate) offset: u64,
    /// Bytes that were read.
    pub(crate) done: u32,
    /// Bytes that go to the initiator.
    pub(crate) length: u32,
    pub(crate) residual: Residual,
    /// Data-In PDUs so far.
    pub(crate) data_number: u32,
}

impl Task {
    /// A command that has not begun, with room for unsolicited data.
    pub(crate) fn held(request: CommandRequest, since: Instant, payload: Option<Payload>) -> Self {
        let work = Work::Held;
        Self { request, since, work, actual: 0, wanted: 0, offset: 0, payload, begun: false, reserved: 0 }
    }

    /// Passes it bytes of its data.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        if let Some(payload) = &mut self.payload {
            payload.fill(bytes);
        }
    }

    fn residual(&self) -> Residual {
        Residual::new(self.request.expected, self.actual)
    }
}

impl Session {
    /// A command arrived: answers it, or makes it a task. Returns how many bytes of the PDU's own
    /// data it needs.
    pub(crate) fn command(&mut self, request: &CommandRequest, round: &mut Round) -> u32 {
        let Some(place) = &self.place else {
            let sense = Sense::INVALID_FIELD_IN_CDB.encode(false);
            let status = Status::CheckCondition as u8;
            self.protocol.respond(request.tag, status, &sense, Residual::default(), 0, &mut round.out);
            return 0;
        };
        let (plan, block_bytes, through) = {
            let mut state = place.attached.unit.state.lock();
            if !self.is_current {
                state.set_geometry(crate::units::geometry(&place.export));
                self.is_current = true;
            }
            // Its expected bytes may be data that it requests.
            let sends = if request.writes { request.expected } else { 0 };
            let plan = state.receive(place.attached.nexus, &request.lun, &request.cdb, sends);
            (plan, state.geometry().block_bytes, state.writes_through())
        };
        match plan {
            Plan::Answer(answer) => {
                self.answer(request, &answer, round);
                0
            }
            Plan::Parameters(bytes, command) => {
                self.await_data(*request, Work::Parameters(command), bytes.into(), 0)
            }
            Plan::Medium(medium) => self.begin_medium(request, medium, block_bytes, through, round),
        }
    }

    fn begin_medium(
        &mut self,
        request: &CommandRequest,
        medium: Medium,
        block_bytes: u32,
        through: bool,
        round: &mut Round,
    ) -> u32 {
        let block = u64::from(block_bytes);
        let actual = medium.data_out_bytes(block_bytes);
        match medium {
            Medium::Read { lba, blocks } => {
                let actual = u64::from(blocks) * block;
                let length = if request.reads { u64::from(request.expected).min(actual) as u32 } else { 0 };
                let residual = if request.writes {
                    Residual::default()
                } else {
                    Residual::new(request.expected, actual)
                };
                if length == 0 {
                    self.protocol.respond(request.tag, 0, &[], residual, 0, &mut round.out);
                    return 0;
                }
                let offset = lba * block;
                let (tag, since) = (request.tag, self.received);
                let read = Read { tag, since, offset, done: 0, length, residual, data_number: 0 };
                self.reads.push_back(read);
                0
            }
            Medium::Write { lba, fua, verify: false, .. } => {
                self.await_data(*request, Work::Write { fua: fua || through }, actual, lba * block)
            }
            Medium::Synchronize { .. } => {
                round.push(self.plain(request), Request::Flush, self.ticket(request.tag));
                0
            }
            Medium::Prefetch { lba, blocks } => {
                let length = (blocks * block).min(cairn_proto_iscsi::limits::TRANSFER_BYTES_MAX);
                let slot = self.plain(request);
                round.push(slot, Request::Prefetch { offset: lba * block, length }, self.ticket(request.tag));
                0
            }
            Medium::Write { lba, blocks, fua, verify: true } => {
                let blocks = blocks.min(request.expected / block_bytes);
                let medium = Medium::Write { lba, blocks, fua, verify: true };
                self.await_data(*request, Work::Pieces(medium), actual, lba * block)
            }
            Medium::OrWrite { lba, blocks, fua } => {
                let blocks = blocks.min(request.expected / block_bytes);
                let medium = Medium::OrWrite { lba, blocks, fua };
                self.await_data(*request, Work::Pieces(medium), actual, lba * block)
            }
            Medium::Verify { lba, compare: Compare::All, .. } => {
                self.await_data(*request, Work::Pieces(medium), actual, lba * block)
            }
            medium => self.await_data(*request, Work::Medium(medium), actual, 0),
        }
    }

    /// The slot of a command without data.
    fn plain(&self, request: &CommandRequest) -> Slot {
        Slot::Plain { tag: request.tag, since: self.received, expected: request.expected }
    }

    /// Makes a command a task that needs `actual` bytes of data. Returns how many of the PDU's own
    /// it needs.
    fn await_data(&mut self, request: CommandRequest, work: Work, actual: u64, offset: u64) -> u32 {
        let wanted = if request.writes { u64::from(request.expected).min(actual) as u32 } else { 0 };
        self.protocol.begin(request.tag, wanted);
        // For a plain write, the unsolicited data is its first piece.
        let first_burst = self.protocol.operational().first_burst.max(request.immediate);
        let unasked = request.immediate > 0 || self.protocol.wants(request.tag) == Wants::Data;
        let first = match work {
            Work::Write { .. } | Work::Pieces(_) if unasked => wanted.min(first_burst),
            Work::Write { .. } | Work::Pieces(_) => 0,
            _ => wanted,
        };
        let payload = (first > 0).then(|| Payload::new(offset, first));
        let since = self.received;
        let task = Task { request, since, work, actual, wanted, offset, payload, begun: false, reserved: 0 };
        self.tasks.insert(request.tag, task);
        request.immediate.min(wanted)
    }

    /// Data of a task came, or it needs none: advances it as far as possible.
    pub(crate) fn advance(&mut self, tag: u32, round: &mut Round) {
        if self.is_held(tag) {
            return;
        }
        match self.protocol.wants(tag) {
            Wants::Data => {}
            Wants::Solicit(_) => {
                self.piece(tag, false, round);
                // More is requested once this is done: the task may be finished then.
                if self.piece_of_medium(tag, false, round) {
                    return;
                }
                if !self.waiting.contains(&tag) && self.tasks.contains_key(&tag) {
                    self.waiting.push_back(tag);
                }
            }
            Wants::Nothing => self.complete(tag, round),
        }
    }

    /// Whether a write must be durable before it is answered: on request, or without a write cache.
    fn is_durable(&self, fua: bool) -> bool {
        fua || self.place.as_ref().is_some_and(|place| place.attached.unit.state.lock().writes_through())
    }

    /// Adds the present data of a plain write to the round.
    fn piece(&mut self, tag: u32, last: bool, round: &mut Round) {
        let Some(Work::Write { fua }) = self.tasks.get(&tag).map(|task| &task.work) else { return };
        let fua = last && self.is_durable(*fua);
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let Some(mut payload) = task.payload.take() else { return };
        payload.cut();
        let data = payload.finish();
        if data.is_empty() {
            return;
        }
        let offset = task.offset;
        task.offset += data.len() as u64;
        let begun = std::mem::replace(&mut task.begun, true);
        let (since, expected) = (task.since, task.request.expected);
        let residual = last.then(|| task.residual());
        let slot = |last| Slot::Write { tag, since, last, expected };
        // The command is answered after its last piece: one flush covers all of them.
        let flushes = fua && begun;
        let ticket = self.ticket(tag);
        round.write(slot(residual.filter(|_| !flushes)), offset, data, fua && !begun, ticket.clone());
        if flushes {
            round.push(slot(residual), Request::Flush, ticket);
        }
    }

    /// Adds the present data of a command that is done in pieces to the round. False when there is
    /// none.
    fn piece_of_medium(&mut self, tag: u32, last: bool, round: &mut Round) -> bool {
        let Some(task) = self.tasks.get_mut(&tag) else { return false };
        let Work::Pieces(medium) = &task.work else { return false };
        let mut data = Segments::default();
        if let Some(mut payload) = task.payload.take() {
            payload.cut();
            data = payload.finish();
        }
        if data.is_empty() && !last {
            return false;
        }
        let at = task.offset;
        task.offset += data.len() as u64;
        let residual = last.then(|| task.residual());
        let (request, since, medium) = (task.request, task.since, medium.clone());
        let ticket = self.ticket(tag);
        round.later.push(Later { request, ticket, since, medium, data, at, residual });
        true
    }

    /// All data of a task is here.
    fn complete(&mut self, tag: u32, round: &mut Round) {
        if self.piece_of_medium(tag, true, round) {
            self.release(tag);
            return;
        }
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if let Work::Write { .. } = task.work {
            let whole = u64::from(self.place.as_ref().map_or(512, |place| place.export.block_bytes));
            let odd = task.wanted % whole as u32 != 0;
            let residual = task.residual();
            if odd || task.payload.is_none() {
                // Less than a block, or nothing: there is no whole block to write.
                if let Some(payload) = &mut task.payload {
                    payload.cut();
                }
            }
            if task.payload.is_some() && !odd {
                self.piece(tag, true, round);
                self.release(tag);
                return;
            }
            let rest = task.payload.take().map(Payload::finish).unwrap_or_default();
            let keep = rest.len() as u64 / whole * whole;
            let (offset, since, expected) = (task.offset, task.since, task.request.expected);
            let (Work::Write { fua }, begun) = (&task.work, task.begun) else { return };
            let fua = *fua;
            let fua = self.is_durable(fua);
            // Without a rest the answer still comes after the pieces.
            let flushes = begun && (fua || keep == 0);
            self.release(tag);
            let slot = |last| Slot::Write { tag, since, last, expected };
            let ticket = self.ticket(tag);
            if keep > 0 {
                let last = (!flushes).then_some(residual);
                let data = rest.slice(0, keep as usize);
                round.write(slot(last), offset, data, fua && !flushes, ticket.clone());
            }
            if flushes {
                round.push(slot(Some(residual)), Request::Flush, ticket);
            } else if keep == 0 {
                self.protocol.respond(tag, 0, &[], residual, 0, &mut round.out);
            }
            return;
        }
        let Some(task) = self.release(tag) else { return };
        let residual = task.residual();
        let mut data = Segments::default();
        if let Some(mut payload) = task.payload {
            payload.cut();
            data = payload.finish();
        }
        match task.work {
            Work::Medium(medium) => {
                let Task { request, since, .. } = task;
                let (ticket, residual) = (self.ticket(tag), Some(residual));
                round.later.push(Later { request, ticket, since, medium, data, at: 0, residual });
            }
            Work::Parameters(command) => self.parameters(&task.request, &command, &data.to_vec(), round),
            Work::Write { .. } | Work::Pieces(_) | Work::Held => {}
        }
    }

    fn parameters(&mut self, request: &CommandRequest, command: &Command, data: &[u8], round: &mut Round) {
        let Some(place) = &self.place else { return };
        let unit = std::sync::Arc::clone(&place.attached.unit);
        let mine = place.attached.nexus;
        // One change at a time: the saved state is the start of the next change.
        let keeping = matches!(command, Command::ReserveOut { .. }).then(|| unit.keeping.lock());
        let mut ended = Vec::new();
        let (mut outcome, now_through) = {
            let mut state = unit.state.lock();
            let before = state.writes_through();
            let outcome = state.parameters(place.attached.nexus, command, data);
            let concerned =
                |nexus, port: &str| nexus != mine && outcome.abort.iter().any(|gone| gone == port);
            ended.push(unit.abort(&state, concerned));
            (outcome, !before && state.writes_through())
        };
        if let Some(change) = outcome.change {
            let name = &place.export.unit;
            if let Err(error) = self.shared.targets.keep(name, change.state()) {
                tracing::error!(unit = name, %error, "persistent reservations can't be saved; they stay unchanged");
                let sense = Sense::of_failure(cairn_proto_iscsi::scsi::Failure::Write);
                let answer = unit.state.lock().failed(sense);
                self.answer(request, &answer, round);
                return;
            }
            let mut state = unit.state.lock();
            outcome.abort = state.apply(change);
            let concerned =
                |nexus, port: &str| nexus != mine && outcome.abort.iter().any(|gone| gone == port);
            ended.push(unit.abort(&state, concerned));
        }
        drop(keeping);
        // Reservations have changed already. If an aborted task has not ended, the command must not
        // report success: it fails, and is repeated.
        if !ended.iter().all(Ended::wait_long) {
            let sense = Sense::of_failure(cairn_proto_iscsi::scsi::Failure::Write);
            let answer = unit.state.lock().failed(sense);
            self.answer(request, &answer, round);
            return;
        }
        match outcome.plan {
            // An initiator that learns that there is no write cache stops flushing: earlier
            // answered writes are durable by then.
            Plan::Answer(_) if now_through => {
                let (tag, since, expected) = (request.tag, self.received, request.expected);
                let slot = Slot::Write { tag, since, last: Some(Residual::default()), expected };
                round.push(slot, Request::Flush, self.ticket(tag));
            }
            Plan::Answer(answer) => self.answer(request, &answer, round),
            Plan::Medium(medium) => {
                let residual = Some(Residual::new(request.expected, data.len() as u64));
                let (request, since, data) = (*request, self.received, Segments::default());
                let ticket = self.ticket(request.tag);
                round.later.push(Later { request, ticket, since, medium, data, at: 0, residual });
            }
            Plan::Parameters(..) => {}
        }
    }

    /// Sends an answer that is no data of the medium.
    pub(crate) fn answer(&mut self, request: &CommandRequest, answer: &Answer, round: &mut Round) {
        let Answer { status, data, sense } = answer;
        let room = if request.reads { request.expected as usize } else { 0 };
        let data_out = request.writes && *status == Status::Good;
        let residual =
            if data_out { Residual::default() } else { Residual::new(request.expected, data.len() as u64) };
        let data = &data[..data.len().min(room)];
        if data.is_empty() || *status != Status::Good {
            self.protocol.respond(request.tag, *status as u8, sense, residual, 0, &mut round.out);
            return;
        }
        let segment = self.protocol.operational().send_segment as usize;
        let count = data.len().div_ceil(segment);
        for (index, piece) in data.chunks(segment).enumerate() {
            let last = (index + 1 == count).then_some(residual);
            let offset = (index * segment) as u32;
            let header = self.protocol.data_in(request.tag, index as u32, offset, piece.len(), false, last);
            let operational = self.protocol.operational();
            let (header_digest, data_digest) = (operational.header_digest, operational.data_digest);
            cairn_proto_iscsi::pdu::put(&mut round.out, header, piece, header_digest, data_digest);
        }
    }

    /// Data came in a wrong order or amount: the command fails.
    pub(crate) fn fail_data(&mut self, tag: u32, round: &mut Round) {
        if let Some(task) = self.release(tag) {
            self.fail(tag, task.request.expected, Sense::DATA_PHASE, 0, round);
        }
    }

    /// Answers a command with sense data.
    pub(crate) fn fail(&mut self, tag: u32, expected: u32, sense: Sense, data_count: u32, round: &mut Round) {
        let descriptors =
            self.place.as_ref().is_some_and(|place| place.attached.unit.state.lock().has_descriptors());
        let residual = Residual::new(expected, 0);
        let status = Status::CheckCondition as u8;
        self.protocol.respond(tag, status, &sense.encode(descriptors), residual, data_count, &mut round.out);
    }

    /// Removes a task from the table, with its reserved room.
    pub(crate) fn release(&mut self, tag: u32) -> Option<Task> {
        let task = self.tasks.remove(&tag)?;
        self.reserved -= task.reserved;
        self.waiting.retain(|waiting| *waiting != tag);
        Some(task)
    }

    /// Drops all tasks without an answer, also those in the device: the caller must wait for the
    /// changes that they have begun.
    pub(crate) fn drop_tasks(&mut self, round: &mut Round) {
        let waiting = self.tasks.keys().copied().chain(self.reads.iter().map(|read| read.tag));
        let tags: Vec<u32> = waiting.chain(self.executing.iter().copied()).chain(round.tags()).collect();
        for tag in tags {
            self.drop_task(tag, round);
        }
    }

    /// Drops a task without an answer. False when there is none.
    pub(crate) fn drop_task(&mut self, tag: u32, round: &mut Round) -> bool {
        let waited = self.release(tag).is_some();
        let before = self.reads.len();
        self.reads.retain(|read| read.tag != tag);
        let is_executing = self.is_executing(tag);
        if is_executing {
            self.entry.gate.withdraw(tag);
            self.dropped.push(tag);
        }
        let dropped = round.remove(tag) || waited || is_executing || self.reads.len() < before;
        if dropped {
            self.protocol.forget(tag);
        }
        dropped
    }

    /// True for a command that is in the device and will be answered.
    pub(crate) fn is_executing(&self, tag: u32) -> bool {
        self.executing.contains(&tag) && !self.dropped.contains(&tag)
    }

    /// Requests data as far as the window allows. A task with a first request gets further ones in
    /// any case, so that it ends.
    pub(crate) fn solicit(&mut self, round: &mut Round) {
        let mut later = std::collections::VecDeque::new();
        while let Some(tag) = self.waiting.pop_front() {
            let (Wants::Solicit(bytes), Some(task)) = (self.protocol.wants(tag), self.tasks.get_mut(&tag))
            else {
                continue;
            };
            let plain = matches!(task.work, Work::Write { .. } | Work::Pieces(_));
            let burst = self.protocol.operational().max_burst.min(self.window_bytes as u32);
            let bytes = bytes.min(burst);
            let cost = u64::from(if plain { burst.min(task.wanted) } else { task.wanted });
            if task.reserved == 0 {
                if self.reserved > 0 && self.reserved + cost > self.window_bytes {
                    later.push_back(tag);
                    continue;
                }
                task.reserved = cost;
                self.reserved += cost;
            }
            if plain {
                task.payload = Some(Payload::new(task.offset, bytes));
            }
            self.protocol.solicit(tag, bytes, &mut round.out);
        }
        self.waiting = later;
    }

    /// Puts as much of the waiting reads into the round as there is room for: one piece of each.
    pub(crate) fn take_reads(&mut self, round: &mut Round) {
        let block = self.place.as_ref().map_or(512, |place| place.export.block_bytes).max(512);
        for _ in 0..self.reads.len() {
            if round.is_full(self.window_bytes) {
                break;
            }
            let Some(read) = self.reads.pop_front() else { break };
            let room = (self.window_bytes - round.bytes).max(u64::from(block)) as u32 / block * block;
            let bytes = (read.length - read.done).min(room);
            let offset = read.offset + u64::from(read.done);
            // The device returns whole blocks; the initiator may need only a part of the last.
            let operation = Operation::read(offset, bytes.next_multiple_of(block));
            round.read(read, bytes, operation);
        }
    }
}
