//! Reservations: access to a unit while others hold it (SPC-4, section 5.13; RESERVE and RELEASE of
//! SPC-2).
//!
//! A registration belongs to an initiator port (name and ISID) and the target port that it uses,
//! not to a session. So it outlives sessions, and with APTPL a restart of the server:
//! [`ReservationState`] is the whole state to save then.

use super::{Access, Fields, Sense};
use crate::limits::REGISTRATIONS_MAX;

/// A registered nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its [name](nexus_name).
    pub port: String,
    /// Its key, never 0.
    pub key: u64,
}

/// The separator before the number of a target port in the name of a nexus.
const TARGET_PORT: &str = ",t,0x";

/// The name of a nexus: that of the initiator port, `INITIATOR,i,0xISID`, followed by the number of
/// the target port, when it is not the first one of the unit. No initiator can pretend to be
/// another nexus, as its own name ends with its ISID.
pub fn nexus_name(port: &str, target_port: u8) -> String {
    if target_port == 1 { port.to_owned() } else { format!("{port}{TARGET_PORT}{target_port:04x}") }
}

/// The initiator port and the number of the target port in the name of a nexus.
fn ports_of(nexus: &str) -> (&str, u8) {
    let named = nexus.rsplit_once(TARGET_PORT);
    let numbered = named.and_then(|(port, number)| Some((port, u8::from_str_radix(number, 16).ok()?)));
    numbered.unwrap_or((nexus, 1))
}

/// Persistent reservations of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationState {
    /// Counts changes (PRGENERATION); restarts with the server.
    pub generation: u32,
    /// Registrations are kept over a restart.
    pub persists: bool,
    /// The registered ports.
    pub registrations: Vec<Registration>,
    /// The type of the reservation, and the port that holds it (of types for all registrants: any
    /// of them).
    pub reserved: Option<(u8, String)>,
}

/// The effects of a PERSISTENT RESERVE OUT on others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Effects {
    /// Ports that get a unit attention, and which.
    pub(crate) attentions: Vec<(String, Sense)>,
    /// Ports whose tasks end.
    pub(crate) abort: Vec<String>,
}

/// Why a PERSISTENT RESERVE OUT was refused.
pub(crate) enum Refusal {
    Conflict,
    Sense(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 6;
const WRITE_EXCLUSIVE_ALL: u8 = 7;
const EXCLUSIVE_ACCESS_ALL: u8 = 8;
/// PERSISTENT RESERVE OUT has this many bytes of parameters.
const PARAMETER_BYTES: usize = 24;

fn is_for_all(kind: u8) -> bool {
    matches!(kind, WRITE_EXCLUSIVE_ALL | EXCLUSIVE_ACCESS_ALL)
}

fn is_known(kind: u8) -> bool {
    matches!(kind, WRITE_EXCLUSIVE | EXCLUSIVE_ACCESS | WRITE_EXCLUSIVE_REGISTRANTS..=EXCLUSIVE_ACCESS_ALL)
}

impl ReservationState {
    fn key_of(&self, port: &str) -> Option<u64> {
        self.registrations.iter().find(|known| known.port == port).map(|known| known.key)
    }

    fn holds(&self, port: &str) -> bool {
        match &self.reserved {
            Some((kind, _)) if is_for_all(*kind) => self.key_of(port).is_some(),
            Some((_, holder)) => holder == port,
            None => false,
        }
    }

    /// True when a command of `access` from `port` conflicts with a reservation of others.
    pub(crate) fn conflicts(&self, port: &str, access: Access) -> bool {
        let Some((kind, _)) = &self.reserved else { return false };
        let exclusive =
            matches!(*kind, EXCLUSIVE_ACCESS | EXCLUSIVE_ACCESS_REGISTRANTS | EXCLUSIVE_ACCESS_ALL);
        let for_registrants = *kind >= WRITE_EXCLUSIVE_REGISTRANTS;
        let free = self.holds(port) || (for_registrants && self.key_of(port).is_some());
        let concerned = match access {
            Access::Always | Access::Reserving => false,
            Access::Read => exclusive,
            Access::Write => true,
        };
        concerned && !free
    }

    /// The answer to PERSISTENT RESERVE IN.
    pub(crate) fn report(&self, action: u8) -> Result<Vec<u8>, Sense> {
        let mut body = Vec::new();
        match action {
            0 => body.extend(self.registrations.iter().flat_map(|known| known.key.to_be_bytes())),
            1 => {
                if let Some((kind, holder)) = &self.reserved {
                    let key = if is_for_all(*kind) { 0 } else { self.key_of(holder).unwrap_or(0) };
                    body.extend_from_slice(&key.to_be_bytes());
                    body.extend_from_slice(&[0, 0, 0, 0, 0, *kind, 0, 0]);
                }
            }
            2 => {
                // Persistence is possible (PTPL_C), the type mask is valid, is it active, all six
                // types.
                return Ok(vec![0, 8, 0x01, 0x80 | u8::from(self.persists), 0xea, 0x01, 0, 0]);
            }
            3 => self.registrations.iter().for_each(|known| self.put_full(known, &mut body)),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB),
        }
        let mut bytes = self.generation.to_be_bytes().to_vec();
        bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    fn put_full(&self, known: &Registration, body: &mut Vec<u8>) {
        let holds = self.holds(&known.port);
        let kind = self.reserved.as_ref().filter(|_| holds).map_or(0, |(kind, _)| *kind);
        let (port, target_port) = ports_of(&known.port);
        body.extend_from_slice(&known.key.to_be_bytes());
        body.extend_from_slice(&[0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        body.extend_from_slice(&u16::from(target_port).to_be_bytes());
        // The transport's name for the port, with ISID (SPC-4, section 7.6.4.6).
        let mut name = port.as_bytes().to_vec();
        name.push(0);
        name.resize(name.len().next_multiple_of(4).max(20), 0);
        body.extend_from_slice(&(name.len() as u32 + 4).to_be_bytes()[..]);
        body.extend_from_slice(&[0x45, 0]);
        body.extend_from_slice(&(name.len() as u16).to_be_bytes());
        body.extend_from_slice(&name);
    }

    /// Performs a PERSISTENT RESERVE OUT of `port`.
    pub(crate) fn change(
        &mut self,
        port: &str,
        action: u8,
        (scope, kind): (u8, u8),
        parameters: &[u8],
    ) -> Result<Effects, Refusal> {
        if parameters.len() != PARAMETER_BYTES {
            return Err(Sense::PARAMETER_LIST_LENGTH.into());
        }
        let fields = Fields(parameters);
        let (key, action_key) = (fields.u64(0), fields.u64(8));
        let flags = fields.u8(20);
        // SPEC_I_PT and ALL_TG_PT are not supported, as REPORT CAPABILITIES reports.
        if flags & 0x0c != 0 {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.into());
        }
        let mine = self.key_of(port);
        if action == 0 || action == 6 {
            if action == 0 && mine.unwrap_or(0) != key {
                return Err(Refusal::Conflict);
            }
            return self.register(port, action_key, flags & 1 != 0).map_err(Refusal::Sense);
        }
        if mine != Some(key) {
            return Err(Refusal::Conflict);
        }
        let typed = matches!(action, 1 | 2 | 4 | 5);
        if typed && (scope != 0 || !is_known(kind)) {
            return Err(Sense::INVALID_FIELD_IN_CDB.into());
        }
        match action {
            1 => self.reserve(port, kind),
            2 => self.release(port, kind),
            3 => Ok(self.clear(port)),
            4 | 5 => self.preempt(port, kind, action_key, action == 5),
            _ => Err(Sense::INVALID_FIELD_IN_CDB.into()),
        }
    }

    fn register(&mut self, port: &str, key: u64, persists: bool) -> Result<Effects, Sense> {
        let position = self.registrations.iter().position(|known| known.port == port);
        let mut effects = Effects::default();
        match (position, key) {
            // It changes nothing, and must not decide whether others' registrations persist.
            (None, 0) => return Ok(effects),
            (Some(at), 0) => {
                let held = self.holds(port);
                self.registrations.remove(at);
                effects = self.released_by_leaving(held);
            }
            (Some(at), key) => self.registrations[at].key = key,
            (None, key) => {
                if self.registrations.len() == REGISTRATIONS_MAX {
                    return Err(Sense::NO_REGISTRATION_RESOURCES);
                }
                self.registrations.push(Registration { port: port.to_owned(), key });
            }
        }
        self.persists = persists;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// A holder unregistered: its reservation is released, unless others hold it as well.
    fn released_by_leaving(&mut self, held: bool) -> Effects {
        let Some((kind, _)) = self.reserved.clone().filter(|_| held) else { return Effects::default() };
        if is_for_all(kind) && !self.registrations.is_empty() {
            return Effects::default();
        }
        self.reserved = None;
        self.told_of_release(kind, "")
    }

    /// Registrants learn of the end of a reservation of a type that admits them.
    fn told_of_release(&self, kind: u8, but: &str) -> Effects {
        let mut effects = Effects::default();
        if kind >= WRITE_EXCLUSIVE_REGISTRANTS {
            let others = self.registrations.iter().filter(|known| known.port != but);
            effects.attentions =
                others.map(|known| (known.port.clone(), Sense::RESERVATIONS_RELEASED)).collect();
        }
        effects
    }

    fn reserve(&mut self, port: &str, kind: u8) -> Result<Effects, Refusal> {
        match &self.reserved {
            Some((held, _)) if self.holds(port) && *held == kind => Ok(Effects::default()),
            Some(_) => Err(Refusal::Conflict),
            None => {
                self.reserved = Some((kind, port.to_owned()));
                Ok(Effects::default())
            }
        }
    }

    fn release(&mut self, port: &str, kind: u8) -> Result<Effects, Refusal> {
        match &self.reserved {
            Some((held, _)) if self.holds(port) => {
                if *held != kind {
                    return Err(Sense::INVALID_RELEASE.into());
                }
                self.reserved = None;
                Ok(self.told_of_release(kind, port))
            }
            _ => Ok(Effects::default()),
        }
    }

    fn clear(&mut self, port: &str) -> Effects {
        let others = self.registrations.iter().filter(|known| known.port != port);
        let attentions = others.map(|known| (known.port.clone(), Sense::RESERVATIONS_PREEMPTED)).collect();
        self.registrations.clear();
        self.reserved = None;
        self.generation = self.generation.wrapping_add(1);
        Effects { attentions, ..Effects::default() }
    }

    fn preempt(&mut self, port: &str, kind: u8, key: u64, abort: bool) -> Result<Effects, Refusal> {
        let all_held = matches!(&self.reserved, Some((held, _)) if is_for_all(*held));
        if key == 0 && !all_held {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.into());
        }
        let holder_has_key = match &self.reserved {
            Some((_, holder)) if !all_held => self.key_of(holder) == Some(key),
            _ => false,
        };
        let takes = (all_held && key == 0) || holder_has_key;
        let gone = |known: &Registration| known.port != port && (known.key == key || (all_held && key == 0));
        if !takes && !self.registrations.iter().any(|known| known.key == key) {
            return Err(Refusal::Conflict);
        }
        let removed: Vec<String> =
            self.registrations.iter().filter(|known| gone(known)).map(|known| known.port.clone()).collect();
        let mut effects = Effects::default();
        let old = self.reserved.as_ref().map(|(held, _)| *held);
        self.registrations.retain(|known| !gone(known));
        if takes {
            self.reserved = Some((kind, port.to_owned()));
            if old.is_some_and(|old| old != kind && old >= WRITE_EXCLUSIVE_REGISTRANTS) {
                let stayed = self.registrations.iter().filter(|known| known.port != port);
                effects.attentions =
                    stayed.map(|known| (known.port.clone(), Sense::RESERVATIONS_RELEASED)).collect();
            }
        }
        effects.attentions.extend(removed.iter().map(|port| (port.clone(), Sense::REGISTRATIONS_PREEMPTED)));
        if abort {
            effects.abort = removed;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }
}
