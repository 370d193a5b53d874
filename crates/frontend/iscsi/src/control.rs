//! PDUs other than SCSI commands: NOPs, task management, text requests, logout.

use std::net::SocketAddr;
use std::time::Instant;

use cairn_proto_iscsi::pdu::Header;
use cairn_proto_iscsi::{Event, Management, ManagementResponse, text};

use crate::limits::TASK_PATIENCE;
use crate::listener::canonical;
use crate::round::Round;
use crate::session::{Gathered, Incoming, Session};

/// Tasks were ended: a function is complete when nothing of them can happen any more (SAM-5,
/// section 7).
fn ended(is_over: bool) -> ManagementResponse {
    if is_over { ManagementResponse::Complete } else { ManagementResponse::Rejected }
}

impl Session {
    /// Handles a PDU that is complete. Commands before it are done, or are in the device.
    pub(crate) fn control(&mut self, incoming: &Incoming, round: &mut Round) {
        let header = &incoming.header;
        match incoming.event {
            Event::Ping => self.protocol.pong(header, &incoming.data, &mut round.out),
            Event::Text => self.text_request(header, &incoming.data, round),
            Event::Management(function) => self.manage(header, function, round),
            Event::Logout { response } => {
                self.protocol.logged_out(header, response, &mut round.out);
                if response == 0 {
                    // Its resources are free before the initiator gets the answer, and none of its
                    // commands takes effect any more.
                    self.entry.gate.close();
                    if !self.entry.gate.wait(Instant::now() + TASK_PATIENCE) {
                        tracing::warn!(peer = %self.entry.peer, "the device has not finished a write of a session that logged out");
                    }
                    self.drop_tasks(round);
                    self.place = None;
                    self.ending = Some(Gathered::Last);
                }
            }
            Event::Reject(reason) => self.protocol.reject(header, reason, &mut round.out),
            Event::Command(_) | Event::Data(_) | Event::BadData { .. } | Event::Ignore => {}
        }
    }

    fn manage(&mut self, header: &Header, function: Management, round: &mut Round) {
        use ManagementResponse::{NoLogicalUnit, NoReassignment, NotSupported};
        let exists = header.lun[..2] == [0, 0] || header.lun[..2] == [0x40, 0];
        let response = match function {
            Management::AbortTask { referenced } => self.abort_task(referenced, round),
            Management::TaskReassign => NoReassignment,
            Management::ClearAca | Management::Unknown => NotSupported,
            Management::TargetWarmReset | Management::TargetColdReset => self.reset(round),
            _ if !exists => NoLogicalUnit,
            Management::LogicalUnitReset => self.reset(round),
            Management::AbortTaskSet => {
                self.entry.gate.withdraw_all();
                self.drop_aborted(round);
                self.drop_tasks(round);
                ended(self.entry.gate.wait(Instant::now() + TASK_PATIENCE))
            }
            Management::ClearTaskSet => {
                let cleared =
                    self.place.as_ref().map(|place| place.attached.unit.clear(place.attached.nexus));
                self.drop_aborted(round);
                self.drop_tasks(round);
                ended(cleared.unwrap_or(true))
            }
        };
        self.protocol.managed(header, response, &mut round.out);
        if function == Management::TargetColdReset
            && let Some(place) = &self.place
        {
            // All sessions of the target end, this one included (RFC 7143, section 11.5.1).
            self.shared.registry.drop_target(&place.target, self.entry.id);
            self.ending = Some(Gathered::Last);
        }
    }

    /// A task that has begun in the device and does not end in time continues, and is answered.
    fn abort_task(&mut self, tag: u32, round: &mut Round) -> ManagementResponse {
        if self.is_executing(tag) {
            self.entry.gate.withdraw(tag);
            if !self.entry.gate.wait_for(tag, Instant::now() + TASK_PATIENCE) {
                return ManagementResponse::Rejected;
            }
        }
        if self.drop_task(tag, round) { ManagementResponse::Complete } else { ManagementResponse::NoTask }
    }

    fn reset(&mut self, round: &mut Round) -> ManagementResponse {
        let Some(place) = &self.place else { return ManagementResponse::NoLogicalUnit };
        let unit = &place.attached.unit;
        let had_cache = !unit.state.lock().writes_through();
        let is_over = unit.reset();
        // The modes are the owner's again. An initiator that learns that there is no write cache
        // stops flushing: earlier answered writes are durable by then.
        let flushes = had_cache && unit.state.lock().writes_through();
        let flushed = if flushes { place.export.device.flush() } else { Ok(()) };
        self.drop_aborted(round);
        self.drop_tasks(round);
        match flushed {
            Ok(()) => ended(is_over),
            Err(error) => {
                self.note(&error);
                ManagementResponse::Rejected
            }
        }
    }

    fn text_request(&mut self, header: &Header, data: &[u8], round: &mut Round) {
        // With a transfer tag it requests the rest of a partial answer.
        if header.word(0) == cairn_proto_iscsi::pdu::NO_TAG {
            self.text = self.answer_text(data);
        }
        let most = self.protocol.operational().send_segment as usize;
        let rest = if self.text.len() > most { self.text.split_off(most) } else { Vec::new() };
        let piece = std::mem::replace(&mut self.text, rest);
        self.protocol.answer_text(header, &piece, self.text.is_empty(), &mut round.out);
    }

    fn answer_text(&mut self, data: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        let Ok(pairs) = text::parse(data) else { return answer };
        for (key, value) in pairs {
            match (key, text::number(value)) {
                ("SendTargets", _) => self.send_targets(value, &mut answer),
                ("MaxRecvDataSegmentLength", Some(bytes @ 512..=0xff_ffff)) => {
                    self.protocol.set_send_segment(bytes);
                }
                ("MaxRecvDataSegmentLength", _) => text::put(&mut answer, key, "Reject"),
                _ => text::put(&mut answer, key, "NotUnderstood"),
            }
        }
        answer
    }

    /// Names targets and the portal to reach them by (RFC 7143, appendix C).
    fn send_targets(&self, which: &str, answer: &mut Vec<u8>) {
        let portal = match (&self.shared.options.advertise, self.socket.local()) {
            (Some(advertise), _) => advertise.clone(),
            // An initiator that has IPv4 alone reaches no address of the other kind.
            (None, Some(local)) => SocketAddr::new(canonical(local.ip()), local.port()).to_string(),
            (None, None) => return,
        };
        let targets = match (&self.place, which) {
            (None, _) => self.shared.targets.list(&self.initiator),
            (Some(place), "" | "All") => vec![place.target.clone()],
            (Some(place), name) if name == place.target => vec![place.target.clone()],
            (Some(_), _) => Vec::new(),
        };
        for target in targets.iter().filter(|target| matches!(which, "All" | "") || which == **target) {
            text::put(answer, "TargetName", target);
            text::put(answer, "TargetAddress", &format!("{portal},1"));
        }
    }
}
