//! A session in full feature phase: numbers, the command window, and the data of commands that
//! write (RFC 7143, chapters 4 and 11).
//!
//! It classifies headers ([`Event`]), keeps count of promises, and builds the headers of outgoing
//! PDUs. Data never passes through it. Invariants, at error recovery level 0 with one connection:
//! - commands are taken in the order of CmdSN, each once; numbers outside the window are ignored;
//! - data of a command comes in order (DataPDUInOrder and DataSequenceInOrder are Yes), never
//!   beyond the requested or announced amount;
//! - MaxCmdSN never goes back, and leaves room for commands under way.

use std::collections::HashMap;

use crate::limits::{COMMAND_WINDOW, IMMEDIATE_COMMANDS_MAX, RECEIVE_SEGMENT_BYTES_MAX};
use crate::login::LoggedIn;
use crate::negotiate::Operational;
use crate::pdu::{
    self, FLAG_CONTINUE, FLAG_FINAL, FLAG_OVERFLOW, FLAG_READ, FLAG_STATUS, FLAG_UNDERFLOW, FLAG_WRITE,
    Header, NO_TAG, opcode,
};

/// The initiator broke the protocol in a way that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A data segment is longer than declared.
    #[error("a PDU carries {bytes} bytes of data, more than was declared")]
    SegmentTooLong {
        /// Bytes.
        bytes: u32,
    },
    /// A digest is wrong.
    #[error("the digest of a {part} is wrong")]
    Digest {
        /// Header or data.
        part: &'static str,
    },
    /// A command was left out, and with one connection it can't come any more.
    #[error("command {found} came where {expected} was due")]
    CommandGap {
        /// The received number.
        found: u32,
        /// The expected number.
        expected: u32,
    },
    /// A tag is in use.
    #[error("task tag {tag:#x} is in use")]
    TagInUse {
        /// The tag.
        tag: u32,
    },
    /// There is data where none was allowed.
    #[error("a command carries {bytes} bytes at once, more than was agreed on")]
    Unsolicited {
        /// Bytes.
        bytes: u32,
    },
    /// Too many immediate commands.
    #[error("too many immediate commands are under way")]
    TooManyImmediate,
}

/// Why a PDU is rejected (RFC 7143, section 11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// 0x02
    DataDigest,
    /// 0x03
    Snack,
    /// 0x04
    Protocol,
    /// 0x05
    NotSupported,
    /// 0x09
    InvalidField,
}

impl RejectReason {
    fn code(self) -> u8 {
        match self {
            Self::DataDigest => 0x02,
            Self::Snack => 0x03,
            Self::Protocol => 0x04,
            Self::NotSupported => 0x05,
            Self::InvalidField => 0x09,
        }
    }
}

/// How a command is to be ordered among others (RFC 7143, section 11.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// In any order.
    Simple,
    /// After all before it, before all after it.
    Ordered,
    /// As soon as possible.
    HeadOfQueue,
}

impl Attribute {
    /// Of the header of a SCSI command.
    pub fn of(header: &Header) -> Self {
        match header.flags & 7 {
            2 => Self::Ordered,
            3 => Self::HeadOfQueue,
            _ => Self::Simple,
        }
    }
}

/// A SCSI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandRequest {
    /// The initiator task tag.
    pub tag: u32,
    /// The logical unit.
    pub lun: [u8; 8],
    /// The first 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// Data is to come in.
    pub reads: bool,
    /// Data is to go out.
    pub writes: bool,
    /// Its place among others.
    pub attribute: Attribute,
    /// Expected data transfer length, in bytes.
    pub expected: u32,
    /// Bytes of data within the PDU.
    pub immediate: u32,
    /// It took no place in the window.
    pub is_immediate: bool,
}

/// Data of a command that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut {
    /// The task.
    pub tag: u32,
    /// Bytes in the PDU.
    pub bytes: u32,
    /// Of these, from the first on, the command wants.
    pub wanted: u32,
}

/// A task management function (RFC 7143, section 11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Management {
    /// 1: the task with this tag.
    AbortTask {
        /// Its tag.
        referenced: u32,
    },
    /// 2: all tasks of this session on a logical unit.
    AbortTaskSet,
    /// 3
    ClearAca,
    /// 4: all tasks on a logical unit.
    ClearTaskSet,
    /// 5
    LogicalUnitReset,
    /// 6
    TargetWarmReset,
    /// 7: sessions end as well.
    TargetColdReset,
    /// 8
    TaskReassign,
    /// Anything else.
    Unknown,
}

/// Answers to a task management function (RFC 7143, section 11.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagementResponse {
    /// 0
    Complete,
    /// 1
    NoTask,
    /// 2
    NoLogicalUnit,
    /// 4
    NoReassignment,
    /// 5
    NotSupported,
    /// 255
    Rejected,
}

impl ManagementResponse {
    fn code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::NoTask => 1,
            Self::NoLogicalUnit => 2,
            Self::NoReassignment => 4,
            Self::NotSupported => 5,
            Self::Rejected => 255,
        }
    }
}

/// The kind of a PDU. Its data segment, if it has one, must be taken in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A command, which must be [begun](Session::begin) or answered.
    Command(CommandRequest),
    /// Data for a command.
    Data(DataOut),
    /// Data for a command that broke the rules; the command is over and must be answered as failed.
    BadData {
        /// The task.
        tag: u32,
    },
    /// The initiator wants an answer from us; its data comes back.
    Ping,
    /// A task management function.
    Management(Management),
    /// A text request.
    Text,
    /// A logout of the session or its connection; or of another object, with the response to give.
    Logout {
        /// 0: closed; 1: no such connection; 2: not supported.
        response: u8,
    },
    /// Nothing is to be answered.
    Ignore,
    /// It must be rejected.
    Reject(RejectReason),
}

/// How much less or more a command transferred than the initiator expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residual {
    /// `FLAG_OVERFLOW`, `FLAG_UNDERFLOW` or 0.
    flag: u8,
    bytes: u32,
}

impl Residual {
    /// Of a command that would transfer `actual` bytes where `expected` were.
    pub fn new(expected: u32, actual: u64) -> Self {
        let expected = u64::from(expected);
        let bytes = u32::try_from(expected.abs_diff(actual)).unwrap_or(u32::MAX);
        let flag = match actual.cmp(&expected) {
            std::cmp::Ordering::Greater => FLAG_OVERFLOW,
            std::cmp::Ordering::Less => FLAG_UNDERFLOW,
            std::cmp::Ordering::Equal => 0,
        };
        Self { flag, bytes }
    }
}

/// The data that a writing command still waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Data that was announced or asked for.
    Data,
    /// To be asked for: this many bytes.
    Solicit(u32),
    /// All is here.
    Nothing,
}

#[derive(Debug)]
struct Transfer {
    lun: [u8; 8],
    /// Bytes that the command wants.
    wanted: u32,
    /// Where the next byte belongs.
    received: u32,
    /// Where the current sequence ends; for unsolicited data, at most.
    sequence_end: u32,
    /// The sequence under way.
    sequence: Option<Sequence>,
    solicited: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Sequence {
    /// `NO_TAG`: unsolicited.
    transfer_tag: u32,
    data_number: u32,
}

/// A session's protocol state.
#[derive(Debug)]
pub struct Session {
    operational: Operational,
    connection: u16,
    expected_command: u32,
    status_number: u32,
    /// Tasks that were begun and not answered, and whether they were immediate.
    tasks: HashMap<u32, bool>,
    immediate: usize,
    transfers: HashMap<u32, Transfer>,
    next_transfer_tag: u32,
}

impl Session {
    /// The session that a login began.
    pub fn new(login: &LoggedIn) -> Self {
        Self {
            operational: login.operational,
            connection: login.connection,
            expected_command: login.command_number,
            status_number: login.status_number,
            tasks: HashMap::new(),
            immediate: 0,
            transfers: HashMap::new(),
            next_transfer_tag: 0,
        }
    }

    /// The negotiated parameters.
    pub fn operational(&self) -> &Operational {
        &self.operational
    }

    /// Renegotiates by text request the keys that may change in full feature phase: the longest
    /// segment that the initiator takes.
    pub fn set_send_segment(&mut self, bytes: u32) {
        self.operational.send_segment = bytes;
    }

    /// Looks at the header of a PDU that came in.
    pub fn receive(&mut self, header: &Header) -> Result<Event, Violation> {
        let bytes = header.data_bytes();
        if bytes > RECEIVE_SEGMENT_BYTES_MAX {
            return Err(Violation::SegmentTooLong { bytes });
        }
        match header.opcode() {
            opcode::DATA_OUT => Ok(self.data(header)),
            opcode::SNACK => Ok(Event::Reject(RejectReason::Snack)),
            opcode::NOP_OUT if header.tag() == NO_TAG => Ok(Event::Ignore),
            opcode::SCSI_COMMAND
            | opcode::NOP_OUT
            | opcode::TASK_MANAGEMENT
            | opcode::TEXT
            | opcode::LOGOUT => {
                if !self.is_due(header)? {
                    return Ok(Event::Ignore);
                }
                self.request(header)
            }
            opcode::LOGIN => Ok(Event::Reject(RejectReason::Protocol)),
            _ => Ok(Event::Reject(RejectReason::NotSupported)),
        }
    }

    /// Takes a request's number. False when it must be ignored.
    fn is_due(&mut self, header: &Header) -> Result<bool, Violation> {
        if header.is_immediate() {
            return Ok(true);
        }
        let number = header.command_number();
        let ahead = number.wrapping_sub(self.expected_command);
        let room = self.max_command().wrapping_sub(self.expected_command).wrapping_add(1);
        if ahead >= room || ahead > COMMAND_WINDOW {
            return Ok(false);
        }
        if ahead != 0 {
            return Err(Violation::CommandGap { found: number, expected: self.expected_command });
        }
        self.expected_command = self.expected_command.wrapping_add(1);
        Ok(true)
    }

    fn request(&mut self, header: &Header) -> Result<Event, Violation> {
        Ok(match header.opcode() {
            opcode::SCSI_COMMAND => return self.command(header),
            opcode::NOP_OUT => Event::Ping,
            opcode::TEXT => Event::Text,
            opcode::LOGOUT => {
                let connection = (header.word(0) >> 16) as u16;
                let response = match header.flags & 0x7f {
                    0 => 0,
                    1 if connection == self.connection => 0,
                    1 => 1,
                    _ => 2,
                };
                Event::Logout { response }
            }
            _ => Event::Management(match header.flags & 0x7f {
                1 => Management::AbortTask { referenced: header.word(0) },
                2 => Management::AbortTaskSet,
                3 => Management::ClearAca,
                4 => Management::ClearTaskSet,
                5 => Management::LogicalUnitReset,
                6 => Management::TargetWarmReset,
                7 => Management::TargetColdReset,
                8 => Management::TaskReassign,
                _ => Management::Unknown,
            }),
        })
    }

    fn command(&mut self, header: &Header) -> Result<Event, Violation> {
        let writes = header.flags & FLAG_WRITE != 0;
        let request = CommandRequest {
            tag: header.tag(),
            lun: header.lun,
            cdb: header.cdb(),
            reads: header.flags & FLAG_READ != 0,
            writes,
            attribute: Attribute::of(header),
            expected: header.word(0),
            immediate: header.data_bytes(),
            is_immediate: header.is_immediate(),
        };
        if request.tag == NO_TAG || self.tasks.contains_key(&request.tag) {
            return Err(Violation::TagInUse { tag: request.tag });
        }
        if request.is_immediate && self.immediate == IMMEDIATE_COMMANDS_MAX {
            return Err(Violation::TooManyImmediate);
        }
        let allowed = match (writes, self.operational.immediate_data) {
            (true, true) => self.operational.first_burst.min(request.expected),
            _ => 0,
        };
        if request.immediate > allowed {
            return Err(Violation::Unsolicited { bytes: request.immediate });
        }
        self.immediate += usize::from(request.is_immediate);
        self.tasks.insert(request.tag, request.is_immediate);
        if writes {
            // Until it is begun it requests nothing; unsolicited data has its place.
            let more = !header.is_final() && !self.operational.initial_r2t;
            let transfer = Transfer {
                lun: request.lun,
                wanted: 0,
                received: request.immediate,
                sequence_end: self.operational.first_burst.min(request.expected),
                sequence: more.then_some(Sequence { transfer_tag: NO_TAG, data_number: 0 }),
                solicited: 0,
            };
            self.transfers.insert(request.tag, transfer);
        }
        Ok(Event::Command(request))
    }

    /// A command that writes wants that many bytes of data, at most as many as the initiator
    /// expects to send.
    pub fn begin(&mut self, tag: u32, wanted: u32) {
        if let Some(transfer) = self.transfers.get_mut(&tag) {
            transfer.wanted = wanted;
        }
    }

    fn data(&mut self, header: &Header) -> Event {
        let tag = header.tag();
        let bytes = header.data_bytes();
        // Of a task that is over: it was aborted, or failed before its data came.
        let Some(transfer) = self.transfers.get_mut(&tag) else { return Event::Ignore };
        let number = header.word(4);
        let offset = header.word(5);
        let end = transfer.received.checked_add(bytes);
        let due = transfer.sequence.as_mut().filter(|sequence| {
            let in_order = offset == transfer.received && number == sequence.data_number;
            sequence.transfer_tag == header.word(0) && in_order
        });
        let (Some(sequence), Some(end)) = (due, end.filter(|end| *end <= transfer.sequence_end)) else {
            self.transfers.remove(&tag);
            return Event::BadData { tag };
        };
        let solicited = sequence.transfer_tag != NO_TAG;
        if solicited && header.is_final() != (end == transfer.sequence_end) {
            self.transfers.remove(&tag);
            return Event::BadData { tag };
        }
        sequence.data_number = sequence.data_number.wrapping_add(1);
        let wanted = transfer.wanted.saturating_sub(transfer.received).min(bytes);
        transfer.received = end;
        if header.is_final() {
            transfer.sequence = None;
        }
        Event::Data(DataOut { tag, bytes, wanted })
    }

    /// The data that a task still lacks.
    pub fn wants(&self, tag: u32) -> Wants {
        match self.transfers.get(&tag) {
            Some(transfer) if transfer.sequence.is_some() => Wants::Data,
            Some(transfer) if transfer.received < transfer.wanted => {
                Wants::Solicit((transfer.wanted - transfer.received).min(self.operational.max_burst))
            }
            _ => Wants::Nothing,
        }
    }

    /// Requests the next `bytes` of a task's data, at most as many as [`Wants::Solicit`] returned.
    pub fn solicit(&mut self, tag: u32, bytes: u32, out: &mut Vec<u8>) {
        self.next_transfer_tag = (self.next_transfer_tag + 1) % NO_TAG;
        let transfer_tag = self.next_transfer_tag;
        let Some(transfer) = self.transfers.get_mut(&tag) else { return };
        transfer.sequence = Some(Sequence { transfer_tag, data_number: 0 });
        transfer.sequence_end = transfer.received.saturating_add(bytes);
        let header = Header { lun: transfer.lun, ..Header::new(opcode::R2T, tag) }
            .with_word(0, transfer_tag)
            .with_word(4, transfer.solicited)
            .with_word(5, transfer.received)
            .with_word(6, bytes);
        transfer.solicited += 1;
        let header = self.stamp(header, false);
        self.put(out, header, &[]);
    }

    /// Forgets a task that will not be answered: it was aborted.
    pub fn forget(&mut self, tag: u32) {
        self.transfers.remove(&tag);
        if self.tasks.remove(&tag) == Some(true) {
            self.immediate -= 1;
        }
    }

    /// True while a task is under way.
    pub fn has_task(&self, tag: u32) -> bool {
        self.tasks.contains_key(&tag)
    }

    fn max_command(&self) -> u32 {
        let under_way = (self.tasks.len() - self.immediate) as u32;
        self.expected_command.wrapping_add(COMMAND_WINDOW).wrapping_sub(under_way).wrapping_sub(1)
    }

    /// Fills in the numbers that every response has; `counted` when it takes a StatSN.
    fn stamp(&mut self, header: Header, counted: bool) -> Header {
        let header = header
            .with_word(1, self.status_number)
            .with_word(2, self.expected_command)
            .with_word(3, self.max_command());
        if counted {
            self.status_number = self.status_number.wrapping_add(1);
        }
        header
    }

    fn put(&self, out: &mut Vec<u8>, header: Header, data: &[u8]) {
        pdu::put(out, header, data, self.operational.header_digest, self.operational.data_digest);
    }

    /// Answers a command that carries no data with its response; `sense` is empty with GOOD.
    /// `data_count` is the count of Data-In PDUs before.
    pub fn respond(
        &mut self,
        tag: u32,
        status: u8,
        sense: &[u8],
        residual: Residual,
        data_count: u32,
        out: &mut Vec<u8>,
    ) {
        self.forget(tag);
        let mut header =
            Header::new(opcode::SCSI_RESPONSE, tag).with_word(4, data_count).with_word(6, residual.bytes);
        header.flags |= residual.flag;
        header.detail = [0, status];
        let header = self.stamp(header, true);
        let mut data = Vec::new();
        if !sense.is_empty() {
            data.extend_from_slice(&(sense.len() as u16).to_be_bytes());
            data.extend_from_slice(sense);
        }
        self.put(out, header, &data);
    }

    /// The header of a Data-In. With a residual it is the last and carries status GOOD, and the
    /// task is over; else `is_final` ends a burst.
    pub fn data_in(
        &mut self,
        tag: u32,
        number: u32,
        offset: u32,
        bytes: usize,
        is_final: bool,
        last: Option<Residual>,
    ) -> Header {
        let mut header = Header::new(opcode::DATA_IN, tag)
            .with_data(bytes)
            .with_word(0, NO_TAG)
            .with_word(4, number)
            .with_word(5, offset);
        header.flags = if is_final || last.is_some() { FLAG_FINAL } else { 0 };
        match last {
            Some(residual) => {
                self.forget(tag);
                header.flags |= FLAG_STATUS | residual.flag;
                let header = header.with_word(6, residual.bytes);
                self.stamp(header, true)
            }
            None => self.stamp(header, false).with_word(1, 0),
        }
    }

    /// Answers [`Event::Ping`] with its own data.
    pub fn pong(&mut self, ping: &Header, data: &[u8], out: &mut Vec<u8>) {
        let header = Header { lun: ping.lun, ..Header::new(opcode::NOP_IN, ping.tag()) }.with_word(0, NO_TAG);
        let header = self.stamp(header, true);
        let data = &data[..data.len().min(self.operational.send_segment as usize)];
        self.put(out, header, data);
    }

    /// Checks whether the initiator is alive; it answers with a NOP-Out, which is ignored.
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        self.next_transfer_tag = (self.next_transfer_tag + 1) % NO_TAG;
        let header = Header::new(opcode::NOP_IN, NO_TAG).with_word(0, self.next_transfer_tag);
        let header = self.stamp(header, false);
        self.put(out, header, &[]);
    }

    /// Answers a task management function.
    pub fn managed(&mut self, request: &Header, response: ManagementResponse, out: &mut Vec<u8>) {
        let header = Header {
            detail: [response.code(), 0],
            ..Header::new(opcode::TASK_MANAGEMENT_RESPONSE, request.tag())
        };
        let header = self.stamp(header, true);
        self.put(out, header, &[]);
    }

    /// Answers a text request with a piece of text; the last piece ends the negotiation.
    pub fn answer_text(&mut self, request: &Header, text: &[u8], last: bool, out: &mut Vec<u8>) {
        let mut header = Header { lun: request.lun, ..Header::new(opcode::TEXT_RESPONSE, request.tag()) };
        header.flags = if last { FLAG_FINAL } else { FLAG_CONTINUE };
        let header = self.stamp(header.with_word(0, if last { NO_TAG } else { 1 }), true);
        self.put(out, header, text);
    }

    /// Answers a logout.
    pub fn logged_out(&mut self, request: &Header, response: u8, out: &mut Vec<u8>) {
        let header = Header { detail: [response, 0], ..Header::new(opcode::LOGOUT_RESPONSE, request.tag()) }
            .with_word(5, u32::from(self.operational.time_to_wait) << 16);
        let header = self.stamp(header, true);
        self.put(out, header, &[]);
    }

    /// Rejects a PDU; its header goes back.
    pub fn reject(&mut self, request: &Header, reason: RejectReason, out: &mut Vec<u8>) {
        use zerocopy::IntoBytes;
        let header = Header { detail: [reason.code(), 0], ..Header::new(opcode::REJECT, NO_TAG) };
        let header = self.stamp(header, true);
        self.put(out, header, request.as_bytes());
    }

    /// Informs the initiator that the target ends the session: it should log out (RFC 7143, section
    /// 11.9: event 1), within `seconds`.
    pub fn ask_for_logout(&mut self, seconds: u16, out: &mut Vec<u8>) {
        self.event(1, u32::from(seconds), &[], out);
    }

    /// Informs the initiator that the connection is about to be dropped (event 3: all connections),
    /// and when to come back.
    pub fn announce_drop(&mut self, out: &mut Vec<u8>) {
        let wait = u32::from(self.operational.time_to_wait) << 16;
        self.event(3, wait, &[], out);
    }

    /// Brings a unit attention to the initiator's notice at once (event 0), with its sense data.
    pub fn announce_sense(&mut self, sense: &[u8], out: &mut Vec<u8>) {
        let mut data = (sense.len() as u16).to_be_bytes().to_vec();
        data.extend_from_slice(sense);
        self.event(0, 0, &data, out);
    }

    fn event(&mut self, event: u8, parameters: u32, data: &[u8], out: &mut Vec<u8>) {
        let header =
            Header::new(opcode::ASYNC, NO_TAG).with_word(4, u32::from(event) << 24).with_word(5, parameters);
        let header = self.stamp(header, true);
        self.put(out, header, data);
    }
}
