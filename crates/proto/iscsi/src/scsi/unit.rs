//! A logical unit: its state of nexuses, and its answers.
//!
//! A nexus is an initiator port that is logged in through one of the unit's target ports. Commands
//! are checked in the order of SAM-5: existing unit, unit attention, reservation, valid CDB,
//! present medium, range on it. An operation on the medium is returned to the caller as a
//! [`Medium`] that is within the unit and allowed.

use std::collections::{BTreeMap, VecDeque};

use super::command::{Row, TABLE, WRITE_ATOMIC, find};
use super::inquiry::WRITE_SAME_BLOCKS_MAX;
use super::mode::Modes;
use super::reservation::{Effects, Refusal};
use super::{
    Access, Command, CopyList, Description, Fields, Geometry, Medium, ReservationState, Sense, TargetPort,
    copy, decode,
};
use crate::limits::{
    ATTENTIONS_MAX, COPY_RESULTS_MAX, PARAMETER_BYTES_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX,
};

/// Statuses of SAM-5, section 5.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum Status {
    Good = 0x00,
    CheckCondition = 0x02,
    Busy = 0x08,
    ReservationConflict = 0x18,
    TaskSetFull = 0x28,
}

/// Names a nexus; given by the caller, never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus(pub u64);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Data for the initiator, cut to its allocation length.
    pub data: Vec<u8>,
    /// Sense data, as sent on the wire; empty unless the status is CHECK CONDITION.
    pub sense: Vec<u8>,
}

/// The next step for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// It is answered.
    Answer(Answer),
    /// The medium is concerned.
    Medium(Medium),
    /// This many bytes of parameters are needed first; then [`LogicalUnit::parameters`].
    Parameters(u32, Command),
}

/// The outcome of parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// An answer, or a command for the medium.
    pub plan: Plan,
    /// Persistent reservations are about to change: [the new state](Change::state) must be saved,
    /// then [applied](LogicalUnit::apply), before the answer is sent. If it can't be saved, nothing
    /// has changed.
    pub change: Option<Change>,
    /// Nexuses whose tasks are to be ended, by their names.
    pub abort: Vec<String>,
}

/// The new persistent reservations. Valid as long as no other change of the unit is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    state: ReservationState,
    effects: Effects,
}

impl Change {
    /// The state to save.
    pub fn state(&self) -> &ReservationState {
        &self.state
    }
}

#[derive(Debug)]
struct NexusState {
    /// Its name.
    port: String,
    through: TargetPort,
    attentions: VecDeque<Sense>,
    prevents_removal: bool,
    copies: Vec<(u8, bool, u16)>,
}

/// A logical unit.
#[derive(Debug)]
pub struct LogicalUnit {
    description: Description,
    geometry: Geometry,
    modes: Modes,
    loaded: bool,
    nexuses: BTreeMap<Nexus, NexusState>,
    /// RESERVE (6): the holder.
    reserved: Option<Nexus>,
    persistent: ReservationState,
}

const EVERYTHING: u32 = u32::MAX;

impl LogicalUnit {
    /// A unit with the persistent reservations that it had.
    pub fn new(description: Description, geometry: Geometry, persistent: ReservationState) -> Self {
        Self {
            modes: Modes::of(&description),
            description,
            geometry,
            loaded: true,
            nexuses: BTreeMap::new(),
            reserved: None,
            persistent,
        }
    }

    /// The description of the unit.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Its size and kind.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Its persistent reservations.
    pub fn reservations(&self) -> &ReservationState {
        &self.persistent
    }

    /// True when a port has registered with it for persistent reservations, or has reserved it for
    /// a session.
    pub fn is_reserved(&self) -> bool {
        self.reserved.is_some() || !self.persistent.registrations.is_empty()
    }

    /// True when an initiator has forbidden writes by its control mode page.
    pub fn is_write_protected(&self) -> bool {
        self.modes.write_protect
    }

    /// True when sense data has descriptor format.
    pub fn has_descriptors(&self) -> bool {
        self.modes.descriptors
    }

    /// Writes are durable when answered: the write cache is off.
    pub fn writes_through(&self) -> bool {
        !self.modes.write_cache
    }

    /// Changes whether it can be ejected.
    pub fn set_removable(&mut self, removable: bool) {
        self.description.removable = removable;
        self.loaded |= !removable;
    }

    /// Changes how many target ports lead to it.
    pub fn set_ports(&mut self, ports: u8) {
        self.description.ports = ports;
    }

    /// Sets whether writes may be answered before they are durable, unless the initiator requests
    /// durability. Turning it on waits until no nexus is attached: an initiator that has read that
    /// there is no write cache does not flush, and few look again after a notice.
    pub fn set_write_cache(&mut self, write_cache: bool) {
        if self.description.write_cache == write_cache || (write_cache && !self.nexuses.is_empty()) {
            return;
        }
        self.description.write_cache = write_cache;
        if self.modes.write_cache != write_cache {
            self.modes.write_cache = write_cache;
            self.tell_all(None, Sense::MODE_CHANGED);
        }
    }

    /// Sets the present size; true when it changed, and all nexuses got a unit attention.
    pub fn set_geometry(&mut self, geometry: Geometry) -> bool {
        let resized = geometry.blocks != self.geometry.blocks;
        self.geometry = geometry;
        if resized {
            self.tell_all(None, Sense::CAPACITY_CHANGED);
        }
        resized
    }

    /// An initiator port logs in through a target port; `name` is the
    /// [`nexus_name`](super::nexus_name) of both.
    pub fn attach(&mut self, nexus: Nexus, name: String, through: TargetPort) {
        let state = NexusState {
            port: name,
            through,
            attentions: VecDeque::new(),
            prevents_removal: false,
            copies: Vec::new(),
        };
        self.nexuses.insert(nexus, state);
    }

    /// A port is gone, by logout or by loss: its reservations for the session go too.
    pub fn detach(&mut self, nexus: Nexus) {
        self.nexuses.remove(&nexus);
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// A reset of the unit or the target.
    pub fn reset(&mut self) {
        self.reserved = None;
        self.modes = Modes::of(&self.description);
        for nexus in self.nexuses.values_mut() {
            nexus.prevents_removal = false;
            nexus.copies.clear();
        }
        self.tell_all(None, Sense::BUS_DEVICE_RESET);
    }

    /// A nexus has aborted the commands of all (CLEAR TASK SET; SAM-5, section 7.5): the others get
    /// a unit attention, as theirs have no answer.
    pub fn clear(&mut self, by: Nexus) {
        self.tell_all(Some(by), Sense::COMMANDS_CLEARED);
    }

    /// The sense of a change of size, for an asynchronous message.
    pub fn capacity_sense(&self) -> Vec<u8> {
        Sense::CAPACITY_CHANGED.encode(self.modes.descriptors)
    }

    fn tell_all(&mut self, but: Option<Nexus>, sense: Sense) {
        for (nexus, state) in &mut self.nexuses {
            if Some(*nexus) != but {
                state.tell(sense);
            }
        }
    }

    /// An answer with CHECK CONDITION.
    pub fn failed(&self, sense: Sense) -> Answer {
        Answer {
            status: Status::CheckCondition,
            data: Vec::new(),
            sense: sense.encode(self.modes.descriptors),
        }
    }

    fn good(data: Vec<u8>, allocation: u32) -> Answer {
        let mut data = data;
        data.truncate(allocation as usize);
        Answer { status: Status::Good, data, sense: Vec::new() }
    }

    fn conflict() -> Answer {
        Answer { status: Status::ReservationConflict, data: Vec::new(), sense: Vec::new() }
    }

    /// Takes a command of a nexus for `lun`; the initiator expects to send `expected` bytes.
    pub fn receive(&mut self, nexus: Nexus, lun: &[u8; 8], cdb: &[u8; 16], expected: u32) -> Plan {
        let exists = lun[..2] == [0, 0] || lun[..2] == [0x40, 0];
        let decoded = if self.offers(cdb[0]) { decode(cdb) } else { Err(Sense::INVALID_OPCODE) };
        match &decoded {
            Ok(Command::Inquiry { vital, page, allocation }) => {
                return Plan::Answer(self.inquiry(nexus, exists, *vital, *page, *allocation));
            }
            Ok(Command::ReportLuns { select, allocation }) => {
                return Plan::Answer(match select {
                    0 | 2 => Self::good([&[0, 0, 0, 8][..], &[0; 12]].concat(), *allocation),
                    1 => Self::good(vec![0; 8], *allocation),
                    _ => self.failed(Sense::INVALID_FIELD_IN_CDB),
                });
            }
            Ok(Command::RequestSense { descriptors, allocation }) => {
                let waiting = self.nexuses.get_mut(&nexus).filter(|_| exists);
                let waiting = waiting.and_then(|state| state.attentions.pop_front());
                let sense = if exists { waiting.unwrap_or(Sense::NO_SENSE) } else { Sense::NO_SUCH_UNIT };
                return Plan::Answer(Self::good(sense.encode(*descriptors), *allocation));
            }
            _ if !exists => return Plan::Answer(self.failed(Sense::NO_SUCH_UNIT)),
            _ => {}
        }
        if let Some(sense) = self.nexuses.get_mut(&nexus).and_then(|state| state.attentions.pop_front()) {
            return Plan::Answer(self.failed(sense));
        }
        if let Ok(row) = find(cdb)
            && self.is_kept_out(nexus, row, decoded.as_ref().ok())
        {
            return Plan::Answer(Self::conflict());
        }
        match decoded {
            Ok(command) => {
                self.plan(nexus, command, expected).unwrap_or_else(|sense| Plan::Answer(self.failed(sense)))
            }
            Err(sense) => Plan::Answer(self.failed(sense)),
        }
    }

    fn is_kept_out(&self, nexus: Nexus, row: &Row, command: Option<&Command>) -> bool {
        let port = self.nexuses.get(&nexus).map_or("", |state| state.port.as_str());
        if self.reserved.is_some_and(|holder| holder != nexus) {
            return row.opcode != 0x17;
        }
        let access = match command {
            Some(Command::StartStop { start: true, eject: false, .. })
            | Some(Command::PreventRemoval { prevent: false }) => Access::Always,
            _ => row.access,
        };
        self.persistent.conflicts(port, access)
    }

    fn inquiry(&self, nexus: Nexus, exists: bool, vital: bool, page: u8, allocation: u32) -> Answer {
        let data = match (vital, page) {
            (true, _) if !exists => Err(Sense::INVALID_FIELD_IN_CDB),
            (true, page) => match self.nexuses.get(&nexus) {
                Some(state) => self.description.vital(page, self.geometry, &state.through),
                None => Err(Sense::INVALID_FIELD_IN_CDB),
            },
            (false, 0) => Ok(self.description.standard(exists)),
            (false, _) => Err(Sense::INVALID_FIELD_IN_CDB),
        };
        match data {
            Ok(data) => Self::good(data, allocation),
            Err(sense) => self.failed(sense),
        }
    }

    fn plan(&mut self, nexus: Nexus, command: Command, expected: u32) -> Result<Plan, Sense> {
        let answer = |data: Vec<u8>, allocation: u32| Ok(Plan::Answer(Self::good(data, allocation)));
        let nothing = || Ok(Plan::Answer(Self::good(Vec::new(), 0)));
        match command {
            Command::TestUnitReady => {
                self.need_medium()?;
                nothing()
            }
            Command::ReadCapacity10 => {
                self.need_medium()?;
                let last = self.geometry.blocks.saturating_sub(1);
                let mut data = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
                data.extend_from_slice(&self.geometry.block_bytes.to_be_bytes());
                answer(data, EVERYTHING)
            }
            Command::ReadCapacity16 { allocation } => {
                self.need_medium()?;
                answer(self.capacity(), allocation)
            }
            Command::ReadDefects { format, long, allocation } => {
                self.need_medium()?;
                let mut data = vec![0; if long { 8 } else { 4 }];
                data[1] = format;
                answer(data, allocation)
            }
            Command::ModeSense { no_blocks, long_lba, control, page, subpage, allocation, long } => {
                let request = (control, page, subpage);
                answer(
                    self.modes.sense(
                        Modes::of(&self.description),
                        self.geometry,
                        request,
                        !no_blocks,
                        long_lba,
                        long,
                    )?,
                    allocation,
                )
            }
            Command::Reserve6 => Ok(Plan::Answer(self.reserve(nexus, true))),
            Command::Release6 => Ok(Plan::Answer(self.reserve(nexus, false))),
            Command::StartStop { start, eject, power } => {
                self.start_stop(start, eject && power == 0)?;
                nothing()
            }
            Command::PreventRemoval { prevent } => {
                if let Some(state) = self.nexuses.get_mut(&nexus) {
                    state.prevents_removal = prevent;
                }
                nothing()
            }
            Command::ReportOpcodes { timeouts, options, opcode, action, allocation } => {
                answer(self.opcodes(timeouts, options, opcode, action)?, allocation)
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                answer(self.port_groups(extended), allocation)
            }
            Command::ReserveIn { action, allocation } => answer(self.persistent.report(action)?, allocation),
            Command::CopyResults { action, list, allocation } => {
                answer(self.copy_results(nexus, action, list)?, allocation)
            }
            Command::ModeSelect { length, .. }
            | Command::ReserveOut { length, .. }
            | Command::ExtendedCopy { length }
            | Command::Unmap { length, .. } => {
                self.check_list(&command)?;
                Self::want(length, command)
            }
            Command::Medium(medium) => self.admit(medium, expected).map(Plan::Medium),
            Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. } => nothing(),
        }
    }

    /// Reserves the unit for a nexus as in SCSI-2, or releases it.
    fn reserve(&mut self, nexus: Nexus, takes: bool) -> Answer {
        if !self.persistent.registrations.is_empty() {
            return Self::conflict();
        }
        if takes {
            self.reserved = Some(nexus);
        } else if self.reserved == Some(nexus) {
            self.reserved = None;
        }
        Self::good(Vec::new(), 0)
    }

    /// Refuses a command whose parameters need not be asked for.
    fn check_list(&self, command: &Command) -> Result<(), Sense> {
        match *command {
            Command::ModeSelect { page_format, save, .. } if !page_format || save => {
                Err(Sense::INVALID_FIELD_IN_CDB)
            }
            // Its parameters have one length, and no bytes are not a list.
            Command::ReserveOut { length, .. } if length != 24 => Err(Sense::PARAMETER_LIST_LENGTH),
            Command::ExtendedCopy { .. } => self.writable(),
            Command::Unmap { anchor: true, .. } => Err(Sense::INVALID_FIELD_IN_CDB),
            Command::Unmap { .. } => {
                self.writable()?;
                if self.geometry.thin { Ok(()) } else { Err(Sense::INVALID_OPCODE) }
            }
            _ => Ok(()),
        }
    }

    /// Asks for parameters; a list of no bytes needs no work.
    fn want(length: u32, command: Command) -> Result<Plan, Sense> {
        match length {
            0 => Ok(Plan::Answer(Self::good(Vec::new(), 0))),
            1..=PARAMETER_BYTES_MAX => Ok(Plan::Parameters(length, command)),
            _ => Err(Sense::PARAMETER_LIST_LENGTH),
        }
    }

    fn need_medium(&self) -> Result<(), Sense> {
        // A unit shorter than a block has none, which no capacity can express: the least is one
        // block.
        if self.loaded && self.geometry.blocks > 0 { Ok(()) } else { Err(Sense::NO_MEDIUM) }
    }

    fn writable(&self) -> Result<(), Sense> {
        self.need_medium()?;
        match (self.geometry.read_only, self.modes.write_protect) {
            (true, _) => Err(Sense::WRITE_PROTECTED),
            (false, true) => Err(Sense::SOFTWARE_WRITE_PROTECTED),
            (false, false) => Ok(()),
        }
    }

    fn within(&self, lba: u64, blocks: u64) -> Result<(), Sense> {
        match lba.checked_add(blocks) {
            Some(end) if end <= self.geometry.blocks => Ok(()),
            _ => Err(Sense::LBA_OUT_OF_RANGE.at(lba)),
        }
    }

    fn admit(&self, medium: Medium, expected: u32) -> Result<Medium, Sense> {
        let short = |blocks: u32| {
            if blocks > self.geometry.transfer_max() { Err(Sense::INVALID_FIELD_IN_CDB) } else { Ok(()) }
        };
        self.need_medium()?;
        let wanted = medium.data_out_bytes(self.geometry.block_bytes);
        match medium {
            Medium::Read { lba, blocks } | Medium::Verify { lba, blocks, .. } => {
                self.within(lba, blocks.into())?;
                short(blocks)?;
                // A comparison with only a part of the data verifies nothing.
                if u64::from(expected) < wanted {
                    return Err(Sense::INVALID_FIELD_IN_CDB);
                }
            }
            Medium::Write { lba, blocks, .. } | Medium::OrWrite { lba, blocks, .. } => {
                self.writable()?;
                self.within(lba, blocks.into())?;
                short(blocks)?;
            }
            Medium::CompareAndWrite { lba, blocks, .. } => {
                self.writable()?;
                self.within(lba, blocks.into())?;
                // Half of its data must not be taken for all of it.
                if u64::from(expected) != wanted {
                    return Err(Sense::INVALID_FIELD_IN_CDB);
                }
            }
            Medium::WriteSame { lba, blocks, unmap, no_data } => {
                self.writable()?;
                self.within(lba, blocks)?;
                let wrong_data = !no_data && u64::from(expected) != wanted;
                let wrong_length = blocks == 0 || blocks > WRITE_SAME_BLOCKS_MAX;
                if wrong_length || wrong_data || (unmap && !self.geometry.thin) {
                    return Err(Sense::INVALID_FIELD_IN_CDB);
                }
            }
            Medium::WriteAtomic { lba, blocks, .. } => {
                self.writable()?;
                self.within(lba, blocks.into())?;
                let physical = u64::from(self.geometry.per_physical());
                let whole = lba.is_multiple_of(physical) && u64::from(blocks).is_multiple_of(physical);
                // Part of its data must not be taken for all of it.
                if !whole || blocks > self.geometry.atomic_max() || u64::from(expected) != wanted {
                    return Err(Sense::INVALID_FIELD_IN_CDB);
                }
            }
            Medium::Prefetch { lba, blocks } => {
                self.within(lba, blocks)?;
                let blocks = if blocks == 0 { self.geometry.blocks - lba } else { blocks };
                return Ok(Medium::Prefetch { lba, blocks });
            }
            Medium::LbaStatus { lba, .. } => self.within(lba, 1)?,
            Medium::Unmap(_) | Medium::Synchronize { .. } | Medium::Copy(_) => {}
        }
        Ok(medium)
    }

    fn start_stop(&mut self, start: bool, eject: bool) -> Result<(), Sense> {
        if !eject {
            return Ok(());
        }
        if !self.description.removable {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        if self.nexuses.values().any(|state| state.prevents_removal) {
            return Err(Sense::REMOVAL_PREVENTED);
        }
        self.loaded = start;
        Ok(())
    }

    fn capacity(&self) -> Vec<u8> {
        let mut data = vec![0; 32];
        data[..8].copy_from_slice(&self.geometry.blocks.saturating_sub(1).to_be_bytes());
        data[8..12].copy_from_slice(&self.geometry.block_bytes.to_be_bytes());
        data[13] = self.geometry.per_physical().ilog2() as u8;
        data[14] = if self.geometry.thin { 0xc0 } else { 0 };
        data
    }

    /// REPORT TARGET PORT GROUPS: one group, active and optimized, with all ports.
    fn port_groups(&self, extended: bool) -> Vec<u8> {
        let mut groups = if extended { vec![0x10, 0, 0, 0] } else { Vec::new() };
        groups.extend_from_slice(&[0x00, 0x01, 0, 1, 0, 0, 0, self.description.ports]);
        for number in 1..=u32::from(self.description.ports) {
            groups.extend_from_slice(&number.to_be_bytes());
        }
        [&(groups.len() as u32).to_be_bytes()[..], &groups[..]].concat()
    }

    fn copy_results(&mut self, nexus: Nexus, action: u8, list: u32) -> Result<Vec<u8>, Sense> {
        match action {
            0 => {
                let state = self.nexuses.get_mut(&nexus).ok_or(Sense::INVALID_FIELD_IN_CDB)?;
                let at = state.copies.iter().position(|(known, ..)| u32::from(*known) == list);
                let (_, failed, segments) = state.copies.remove(at.ok_or(Sense::INVALID_FIELD_IN_CDB)?);
                Ok(copy::status(failed, segments))
            }
            3 => Ok(copy::operating_parameters()),
            _ => Err(Sense::INVALID_FIELD_IN_CDB),
        }
    }

    /// Remembers the outcome of a copy, for RECEIVE COPY RESULTS.
    pub fn copied(&mut self, nexus: Nexus, list: &CopyList, failed: bool) {
        let (Some(number), Some(state)) = (list.list, self.nexuses.get_mut(&nexus)) else { return };
        state.copies.retain(|(known, ..)| *known != number);
        if state.copies.len() == COPY_RESULTS_MAX {
            state.copies.remove(0);
        }
        state.copies.push((number, failed, list.segments.len() as u16));
    }

    /// Continues a command whose parameters are here: as many as were requested, or fewer if the
    /// initiator sends no more.
    pub fn parameters(&mut self, nexus: Nexus, command: &Command, parameters: &[u8]) -> Outcome {
        let good = || Plan::Answer(Self::good(Vec::new(), 0));
        let mut outcome = Outcome { plan: good(), change: None, abort: Vec::new() };
        let result = match command {
            Command::ModeSelect { long, .. } => self.select(nexus, parameters, *long).map(|()| good()),
            Command::Unmap { .. } => self.unmap(parameters).map(Plan::Medium),
            Command::ExtendedCopy { .. } => {
                CopyList::parse(parameters).map(|list| Plan::Medium(Medium::Copy(list)))
            }
            Command::ReserveOut { action, scope, kind, .. } => {
                self.reserve_out(nexus, *action, (*scope, *kind), parameters, &mut outcome)
            }
            _ => Err(Sense::INVALID_OPCODE),
        };
        outcome.plan = result.unwrap_or_else(|sense| Plan::Answer(self.failed(sense)));
        outcome
    }

    fn select(&mut self, nexus: Nexus, parameters: &[u8], long: bool) -> Result<(), Sense> {
        let modes = self.modes.select(parameters, self.geometry, long)?;
        if modes != self.modes {
            self.modes = modes;
            self.tell_all(Some(nexus), Sense::MODE_CHANGED);
        }
        Ok(())
    }

    fn unmap(&self, parameters: &[u8]) -> Result<Medium, Sense> {
        let fields = Fields(parameters);
        let length = usize::from(fields.u16(2));
        if parameters.len() < 8 || length > parameters.len() - 8 {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let descriptors = fields.slice(8, length).chunks_exact(16);
        if descriptors.len() > UNMAP_DESCRIPTORS_MAX as usize {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        let mut stretches = Vec::with_capacity(descriptors.len());
        let mut all = 0u64;
        for descriptor in descriptors {
            let (lba, blocks) = (Fields(descriptor).u64(0), Fields(descriptor).u32(8));
            self.within(lba, blocks.into())?;
            all += u64::from(blocks);
            stretches.push((lba, blocks));
        }
        if all > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        Ok(Medium::Unmap(stretches))
    }

    /// Makes a change of persistent reservations, and notifies the nexuses concerned. Returns the
    /// ports whose tasks must be aborted.
    pub fn apply(&mut self, change: Change) -> Vec<String> {
        self.persistent = change.state;
        for (port, sense) in change.effects.attentions {
            let told = self.nexuses.values_mut().filter(|state| state.port == port);
            told.for_each(|state| state.tell(sense));
        }
        change.effects.abort
    }

    fn reserve_out(
        &mut self,
        nexus: Nexus,
        action: u8,
        kind: (u8, u8),
        parameters: &[u8],
        outcome: &mut Outcome,
    ) -> Result<Plan, Sense> {
        let port = self.nexuses.get(&nexus).map(|state| state.port.clone()).unwrap_or_default();
        let mut state = self.persistent.clone();
        match state.change(&port, action, kind, parameters) {
            Ok(effects) => {
                // Also when it persists no longer: the saved state must go.
                let keep = self.persistent.persists || state.persists;
                let change = Change { state, effects };
                if keep {
                    outcome.change = Some(change);
                } else {
                    outcome.abort = self.apply(change);
                }
                Ok(Plan::Answer(Self::good(Vec::new(), 0)))
            }
            Err(Refusal::Conflict) => Ok(Plan::Answer(Self::conflict())),
            Err(Refusal::Sense(sense)) => Err(sense),
        }
    }

    /// The answer to GET LBA STATUS: stretches from `lba` on, each with its number of blocks,
    /// mapped or not (SBC-3, section 5.4).
    pub fn lba_status(lba: u64, stretches: &[(u64, bool)], allocation: u32) -> Vec<u8> {
        let mut data = vec![0; 8];
        let mut at = lba;
        for (blocks, mapped) in stretches {
            let mut left = *blocks;
            // A descriptor has 32 bits for a length, and each begins where the previous one ends.
            while left > 0 {
                let count = u32::try_from(left).unwrap_or(u32::MAX);
                data.extend_from_slice(&at.to_be_bytes());
                data.extend_from_slice(&count.to_be_bytes());
                data.extend_from_slice(&[u8::from(!mapped), 0, 0, 0]);
                at += u64::from(count);
                left -= u64::from(count);
            }
        }
        let length = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&length.to_be_bytes());
        data.truncate(allocation as usize);
        data
    }
}

impl NexusState {
    fn tell(&mut self, sense: Sense) {
        if self.attentions.contains(&sense) {
            return;
        }
        if self.attentions.len() == ATTENTIONS_MAX {
            self.attentions.pop_front();
        }
        self.attentions.push_back(sense);
    }
}

/// Command timeouts descriptor: nothing is promised (SPC-4, section 6.35.4).
const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl LogicalUnit {
    /// True for an opcode that this unit may have.
    fn offers(&self, opcode: u8) -> bool {
        opcode != WRITE_ATOMIC || self.geometry.atomic_bytes > 0
    }

    /// REPORT SUPPORTED OPERATION CODES.
    fn opcodes(&self, timeouts: bool, options: u8, opcode: u8, action: u16) -> Result<Vec<u8>, Sense> {
        if options == 0 {
            let mut list = Vec::new();
            for row in TABLE.iter().filter(|row| self.offers(row.opcode)) {
                let flags = u8::from(timeouts) << 1 | u8::from(row.action.is_some());
                let [high, low] = row.action.unwrap_or(0).to_be_bytes();
                list.extend_from_slice(&[row.opcode, 0, high, low, 0, flags, 0, row.usage.len() as u8]);
                if timeouts {
                    list.extend_from_slice(&TIMEOUTS);
                }
            }
            let mut data = (list.len() as u32).to_be_bytes().to_vec();
            data.extend_from_slice(&list);
            return Ok(data);
        }
        let has_actions = TABLE.iter().any(|row| row.opcode == opcode && row.action.is_some());
        let wanted = match options {
            1 if has_actions => return Err(Sense::INVALID_FIELD_IN_CDB.in_byte(2)),
            2 if !has_actions && TABLE.iter().any(|row| row.opcode == opcode) => {
                return Err(Sense::INVALID_FIELD_IN_CDB.in_byte(2));
            }
            1 => None,
            2 => Some(action),
            3 => has_actions.then_some(action),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB.in_byte(2)),
        };
        let found = TABLE.iter().find(|row| row.opcode == opcode && row.action == wanted);
        let Some(row) = found.filter(|row| self.offers(row.opcode)) else {
            return Ok(vec![0, 1, 0, 0]);
        };
        let mut data = vec![0, 3 | u8::from(timeouts) << 7, 0, row.usage.len() as u8, opcode];
        data.extend_from_slice(&row.usage[1..]);
        if let Some(action) = row.action {
            data[5] = (data[5] & !0x1f) | action as u8;
        }
        if timeouts {
            data.extend_from_slice(&TIMEOUTS);
        }
        Ok(data)
    }
}
