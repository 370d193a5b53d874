//! A session, on a thread of its own: login, then rounds of commands until the initiator
//! disconnects.
//!
//! The thread holds the session's lock except while it is in the device. If that takes long,
//! [another thread](crate::attend) takes the lock meanwhile and does the work that needs no device:
//! it answers pings, task management and commands without I/O, keeps other commands for the next
//! round, and notices when the initiator disconnects.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cairn_device::Ticket;
use cairn_frontend_session::limits::{RECEIVE_BYTES, RECEIVE_BYTES_BETWEEN};
use cairn_frontend_session::{Input, Patience, ReadAhead, Socket, Window};
use cairn_proto_iscsi::pdu::{DIGEST_BYTES, HEADER_BYTES, Header, digest, padding};
use cairn_proto_iscsi::{Attribute, Event, LoginError, RejectReason, Session as Protocol, Violation};
use parking_lot::{Mutex, MutexGuard};

use crate::limits::{ATTENDED_BYTES_MAX, IDLE_LOOK, LONG_SEGMENT_BYTES};
use crate::login::{self, Established};
use crate::registry::Entry;
use crate::round::Round;
use crate::server::Shared;
use crate::targets::{Export, Initiator};
use crate::task::Task;
use crate::units::{Attached, geometry};

/// Why a session ended without a good-bye of the initiator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the initiator broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("a login was refused: {0}")]
    Refused(LoginError),
    #[error("the initiator did not log in within {0:?}")]
    LoginTimeout(Duration),
}

/// Serves one connection to its end.
pub(crate) fn run(shared: &Arc<Shared>, entry: &Arc<Entry>, socket: &Arc<Socket>) -> Result<(), SessionEnd> {
    let mut input = Input::default();
    let Some(established) = login::run(shared, entry, socket, &mut input)? else { return Ok(()) };
    let Established { login, initiator, export } = established;
    shared.registry.agreed(entry.id, login.operational);
    let place = export.map(|mut export| {
        export.block_bytes = export.block_bytes.max(export.device.geometry().alignment);
        let target = login.identity.target.clone().unwrap_or_default();
        let attached = shared.units.attach(target.clone(), &export, &login.identity.port(), &entry.gate);
        export.device = Arc::new(ReadAhead::new(export.device));
        Place { attached, export, target }
    });
    socket.set_receive_timeout(Some(IDLE_LOOK))?;
    let generation = entry.gate.generation();
    let mut session = Session {
        shared: Arc::clone(shared),
        entry: Arc::clone(entry),
        socket: Arc::clone(socket),
        generation,
        next: Round::default(),
        executing: Vec::new(),
        dropped: Vec::new(),
        visit: 0,
        is_in_device: false,
        is_attended: false,
        failed: None,
        initiator,
        protocol: Protocol::new(&login),
        place,
        input,
        incoming: None,
        tasks: HashMap::new(),
        reads: VecDeque::new(),
        waiting: VecDeque::new(),
        held: VecDeque::new(),
        ordered: None,
        reserved: 0,
        text: Vec::new(),
        ending: None,
        window: None,
        window_bytes: 0,
        patience: Patience::default(),
        received: Instant::now(),
        blocks: 0,
        is_current: false,
    };
    session.blocks = session.unit_blocks();
    let session = Arc::new(Mutex::new(session));
    let _ = entry.session.set(Arc::downgrade(&session));
    let mut held = session.lock();
    let outcome = Session::serve(&mut held);
    // The attending thread may hold the rest for a moment.
    (held.place, held.window) = (None, None);
    outcome
}

/// A session as the threads have it that serve it.
pub(crate) type Shareable = Mutex<Session>;
/// The session's state, held while its thread is not in the device.
pub(crate) type Held<'a> = MutexGuard<'a, Session>;

/// The unit that a session uses.
pub(crate) struct Place {
    pub(crate) attached: Attached,
    pub(crate) export: Export,
    pub(crate) target: String,
}

/// A PDU whose data is being received.
pub(crate) struct Incoming {
    pub(crate) header: Header,
    pub(crate) event: Event,
    /// Bytes of data that are to come.
    left: usize,
    /// Of these, bytes that go to the task's payload.
    wanted: usize,
    /// Padding and digest after the data.
    tail: usize,
    /// Data of anything but tasks.
    pub(crate) data: Vec<u8>,
    /// Of the data so far.
    crc: u32,
}

/// The reason why taking PDUs for a round ends.
pub(crate) enum Gathered {
    /// Run the commands and come again.
    Round,
    /// Run them and end.
    Last,
}

pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) socket: Arc<Socket>,
    /// The gate's generation as last seen: commands have its tickets.
    pub(crate) generation: u64,
    /// PDUs that came while the thread was in the device.
    pub(crate) next: Round,
    /// Tags of the commands of the round that is in the device.
    pub(crate) executing: Vec<u32>,
    /// Those of them that were aborted meanwhile: there is no answer to them.
    pub(crate) dropped: Vec<u32>,
    /// Counts how often the thread was in the device.
    pub(crate) visit: u64,
    pub(crate) is_in_device: bool,
    /// Another thread takes PDUs while this one is in the device.
    pub(crate) is_attended: bool,
    /// Why the session ends, as was found meanwhile.
    pub(crate) failed: Option<SessionEnd>,
    pub(crate) initiator: Initiator,
    pub(crate) protocol: Protocol,
    /// None in a discovery session.
    pub(crate) place: Option<Place>,
    input: Input,
    pub(crate) incoming: Option<Incoming>,
    /// Commands that wait for data, or for others.
    pub(crate) tasks: HashMap<u32, Task>,
    /// Reads that wait for their turn.
    pub(crate) reads: VecDeque<crate::task::Read>,
    /// Tasks that wait to be asked for data.
    pub(crate) waiting: VecDeque<u32>,
    /// Tasks that wait for others, because of their own order or that of earlier ones; in the order
    /// of arrival.
    pub(crate) held: VecDeque<u32>,
    /// The ordered command that has begun and is not answered.
    pub(crate) ordered: Option<u32>,
    /// Bytes reserved for tasks whose data was requested.
    pub(crate) reserved: u64,
    /// The unsent rest of the answer to a text request.
    pub(crate) text: Vec<u8>,
    /// The session ends after this round.
    pub(crate) ending: Option<Gathered>,
    /// Held while there is work.
    window: Option<Window>,
    pub(crate) window_bytes: u64,
    patience: Patience,
    /// When bytes came last.
    pub(crate) received: Instant,
    /// As in the last notice to the initiator.
    blocks: u64,
    /// The unit was brought up to date with its device since this session last waited. Asking the
    /// device for each command would cost a lock of its volume.
    pub(crate) is_current: bool,
}

impl Session {
    fn serve(held: &mut Held<'_>) -> Result<(), SessionEnd> {
        let mut round = Round::default();
        loop {
            std::mem::swap(&mut round, &mut held.next);
            let gathered = held.gather(&mut round)?;
            Self::run_round(held, &mut round)?;
            if let Some(failed) = held.failed.take() {
                return Err(failed);
            }
            if let Gathered::Last = gathered {
                return Ok(());
            }
        }
    }

    /// The ticket of a command that came now.
    pub(crate) fn ticket(&self, tag: u32) -> Ticket {
        self.entry.gate.ticket_of(self.generation, tag)
    }

    /// Works in the device, and releases the session for that time.
    pub(crate) fn in_device<T>(held: &mut Held<'_>, work: impl FnOnce() -> T) -> T {
        let entry = Arc::clone(&held.entry);
        held.visit += 1;
        held.is_in_device = true;
        entry.enters();
        let done = MutexGuard::unlocked(held, work);
        entry.returns();
        entry.is_attended.store(false, Ordering::Release);
        held.is_in_device = false;
        done
    }

    /// Takes the initiator's PDUs while the thread is in the device. False when no more may be
    /// taken meanwhile: the session is over, or there is no room for it.
    pub(crate) fn attend(&mut self) -> bool {
        let mut next = std::mem::take(&mut self.next);
        self.is_attended = true;
        let outcome = self.take_beside(&mut next);
        let is_full = self.is_full(&next);
        self.is_attended = false;
        self.next = next;
        if let Err(failed) = outcome {
            self.failed = Some(failed);
        }
        if self.is_over() {
            self.entry.gate.close();
        }
        !self.is_over() && !is_full
    }

    /// Whether it ends when its thread is back.
    fn is_over(&self) -> bool {
        self.failed.is_some() || self.ending.is_some()
    }

    fn take_beside(&mut self, next: &mut Round) -> Result<(), SessionEnd> {
        while !self.is_over() {
            self.ending = self.take(next)?.filter(|gathered| matches!(gathered, Gathered::Last));
            next.send(&self.socket)?;
            if self.is_over() || self.is_full(next) {
                break;
            }
            match self.receive(false)? {
                None => break,
                Some(0) => {
                    self.say_good_bye(next);
                    next.send(&self.socket)?;
                    self.ending = Some(Gathered::Last);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The input has ended: on the server's request, the initiator is informed.
    fn say_good_bye(&mut self, round: &mut Round) {
        if self.entry.leaving.load(Ordering::Acquire) {
            self.protocol.announce_drop(&mut round.out);
        }
    }

    fn is_full(&self, round: &Round) -> bool {
        round.is_full(if self.is_attended { ATTENDED_BYTES_MAX } else { self.window_bytes })
    }

    /// Takes PDUs until the round is full or no more have arrived; waits for the first only.
    fn gather(&mut self, round: &mut Round) -> Result<Gathered, SessionEnd> {
        self.is_current = false;
        if let Some(end) = self.ending.take() {
            return Ok(end);
        }
        loop {
            let window = self.window.get_or_insert_with(|| self.shared.windows.take());
            self.window_bytes = window.bytes();
            self.begin_held(round);
            if let Some(end) = self.take(round)? {
                return Ok(end);
            }
            self.solicit(round);
            let fills = self.incoming.as_ref().is_some_and(|incoming| incoming.wanted > 0);
            let has_work = !round.is_empty() || !self.reads.is_empty();
            if has_work && !fills {
                return Ok(Gathered::Round);
            }
            // A request for data must not wait for it, and must not end a round that may have to be
            // made durable.
            round.send(&self.socket)?;
            if !has_work && self.tasks.is_empty() && self.incoming.is_none() {
                self.window = None;
            }
            let received = self.receive(!has_work)?;
            self.is_current &= has_work;
            match received {
                Some(0) => {
                    self.say_good_bye(round);
                    return Ok(Gathered::Last);
                }
                None if has_work => return Ok(Gathered::Round),
                None => self.look_around(round),
                Some(_) => {}
            }
        }
    }

    /// Nothing came for a while: checks whether there is a notice to send.
    fn look_around(&mut self, round: &mut Round) {
        self.drop_aborted(round);
        let blocks = self.unit_blocks();
        if blocks != self.blocks {
            self.blocks = blocks;
            if let Some(place) = &self.place {
                let sense = place.attached.unit.state.lock().capacity_sense();
                self.protocol.announce_sense(&sense, &mut round.out);
            }
        }
    }

    /// Brings the unit up to date with its device.
    fn unit_blocks(&self) -> u64 {
        let Some(place) = &self.place else { return 0 };
        let geometry = geometry(&place.export);
        place.attached.unit.state.lock().set_geometry(geometry);
        geometry.blocks
    }

    /// Takes a complete PDU from the input. `None` when more bytes are needed.
    fn take(&mut self, round: &mut Round) -> Result<Option<Gathered>, SessionEnd> {
        loop {
            if self.is_full(round) {
                return Ok(Some(Gathered::Round));
            }
            if self.incoming.is_none() {
                match self.begin(round)? {
                    Begun::Incomplete => return Ok(None),
                    Begun::Later => return Ok(Some(Gathered::Round)),
                    Begun::Yes => {}
                }
            }
            if !self.feed() {
                return Ok(None);
            }
            let Some(incoming) = self.incoming.take() else { continue };
            self.finish(incoming, round)?;
            if let Some(end) = self.ending.take() {
                return Ok(Some(end));
            }
        }
    }

    /// Handles a header.
    fn begin(&mut self, round: &mut Round) -> Result<Begun, SessionEnd> {
        let operational = *self.protocol.operational();
        let bytes = self.input.bytes();
        let Some(header) = Header::parse(bytes) else { return Ok(Begun::Incomplete) };
        let covered = HEADER_BYTES + header.additional_bytes();
        let whole = covered + if operational.header_digest { DIGEST_BYTES } else { 0 };
        if bytes.len() < whole {
            return Ok(Begun::Incomplete);
        }
        if operational.header_digest && digest(&[&bytes[..covered]]) != bytes[covered..whole] {
            return Err(Violation::Digest { part: "header" }.into());
        }
        // A command that depends on the order waits until the earlier ones are done.
        let busy = !round.is_empty() || !self.reads.is_empty();
        // While the thread is in the device they are held back otherwise, and task management does
        // not wait for the device.
        if busy && !self.is_attended && waits_for_others(&header) {
            return Ok(Begun::Later);
        }
        self.drop_aborted(round);
        self.forget_ordered();
        let event = self.protocol.receive(&header)?;
        self.input.consume(whole);
        let left = header.data_bytes() as usize;
        let padded = padding(left) + if operational.data_digest && left > 0 { DIGEST_BYTES } else { 0 };
        let wanted = match event {
            Event::Command(request) => {
                self.entry.meter.taken(1);
                let wanted = if self.must_wait(&request) {
                    self.hold(request)
                } else {
                    self.begin_command(&request, round)
                };
                wanted as usize
            }
            Event::Data(data) => data.wanted as usize,
            _ => 0,
        };
        self.incoming =
            Some(Incoming { header, event, left, wanted, tail: padded, data: Vec::new(), crc: 0 });
        Ok(Begun::Yes)
    }

    /// Passes the input's bytes to the PDU being received. True when it is complete.
    fn feed(&mut self) -> bool {
        let Some(incoming) = &mut self.incoming else { return true };
        let digests = self.protocol.operational().data_digest;
        let keeps = matches!(incoming.event, Event::Ping | Event::Text);
        while incoming.left > 0 {
            let bytes = self.input.bytes();
            let most = if incoming.wanted > 0 { incoming.wanted } else { incoming.left };
            let count = bytes.len().min(most);
            if count == 0 {
                return false;
            }
            let bytes = &bytes[..count];
            if incoming.wanted > 0 {
                incoming.wanted -= count;
                if let Some(task) = self.tasks.get_mut(&incoming.header.tag()) {
                    task.fill(bytes);
                }
            } else if keeps {
                incoming.data.extend_from_slice(bytes);
            }
            if digests {
                incoming.crc = cairn_proto_iscsi::pdu::digest_append(incoming.crc, bytes);
            }
            incoming.left -= count;
            self.input.consume(count);
        }
        self.input.bytes().len() >= incoming.tail
    }

    /// All of a PDU is here.
    fn finish(&mut self, incoming: Incoming, round: &mut Round) -> Result<(), SessionEnd> {
        let tail = &self.input.bytes()[..incoming.tail];
        if incoming.tail >= DIGEST_BYTES {
            let (zeroes, found) = tail.split_at(incoming.tail - DIGEST_BYTES);
            let crc = cairn_proto_iscsi::pdu::digest_append(incoming.crc, zeroes);
            if crc.to_le_bytes() != found {
                self.protocol.reject(&incoming.header, RejectReason::DataDigest, &mut round.out);
                round.send(&self.socket)?;
                return Err(Violation::Digest { part: "data segment" }.into());
            }
        }
        self.input.consume(incoming.tail);
        match incoming.event {
            Event::Command(request) => self.advance(request.tag, round),
            Event::Data(data) => self.advance(data.tag, round),
            Event::BadData { tag } => self.fail_data(tag, round),
            Event::Ignore => {}
            _ => self.control(&incoming, round),
        }
        Ok(())
    }

    /// Receives more; data of a task goes directly to its blocks.
    fn receive(&mut self, wait: bool) -> io::Result<Option<usize>> {
        if !self.protocol.operational().data_digest
            && self.input.bytes().is_empty()
            && let Some(incoming) = &mut self.incoming
            && incoming.wanted >= LONG_SEGMENT_BYTES
            && let Some(task) = self.tasks.get_mut(&incoming.header.tag())
            && let Some(payload) = &mut task.payload
        {
            let mut vectors = Vec::with_capacity(65);
            let room = payload.vectors(incoming.wanted, &mut vectors);
            let behind = self.input.room(RECEIVE_BYTES);
            if room == incoming.wanted && incoming.wanted == incoming.left {
                vectors.push(IoSliceMut::new(&mut behind[..RECEIVE_BYTES_BETWEEN]));
            }
            let received = self.socket.receive(&mut vectors, wait)?;
            drop(vectors);
            if let Some(count) = received {
                let mine = count.min(room);
                payload.advance(mine);
                incoming.wanted -= mine;
                incoming.left -= mine;
                self.input.received(count - mine);
                self.received = Instant::now();
            }
            return Ok(received);
        }
        let into = self.input.room(HEADER_BYTES);
        let received = if wait {
            self.patience.receive(|wait| self.socket.receive(&mut [IoSliceMut::new(into)], wait))?
        } else {
            self.socket.receive(&mut [IoSliceMut::new(into)], false)?
        };
        if let Some(count) = received {
            self.input.received(count);
            self.received = Instant::now();
        }
        Ok(received)
    }
}

enum Begun {
    Incomplete,
    /// Not before the commands that are taken are done.
    Later,
    Yes,
}

/// Commands that wait for data do not count: it may follow this very PDU.
fn waits_for_others(header: &Header) -> bool {
    use cairn_proto_iscsi::pdu::opcode;
    match header.opcode() {
        opcode::SCSI_COMMAND => Attribute::of(header) != Attribute::Simple,
        opcode::DATA_OUT | opcode::NOP_OUT => false,
        _ => true,
    }
}
