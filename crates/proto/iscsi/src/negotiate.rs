//! Operational keys: offers and results (RFC 7143, section 13; RFC 7144, section 3).

use crate::limits::{BURST_BYTES, FIRST_BURST_BYTES, RECEIVE_SEGMENT_BYTES_MAX};
use crate::text::{self, number};

/// The parameters that two peers agreed on for a session and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operational {
    /// Headers carry a CRC32C.
    pub header_digest: bool,
    /// Data segments carry a CRC32C.
    pub data_digest: bool,
    /// The longest data segment that the initiator takes, in bytes.
    pub send_segment: u32,
    /// The longest sequence of data that one R2T or one burst of Data-In carries, in bytes.
    pub max_burst: u32,
    /// The most that comes unasked with a command, in bytes.
    pub first_burst: u32,
    /// Our answer to the initiator's value, if it sent one.
    pub(crate) first_burst_answered: Option<u32>,
    /// Nothing comes in Data-Out unasked.
    pub initial_r2t: bool,
    /// Data may come within a command.
    pub immediate_data: bool,
    /// R2Ts that one task may have open.
    pub max_outstanding_r2t: u32,
    /// Seconds to wait before a reconnect.
    pub time_to_wait: u16,
    /// Seconds that tasks outlive their connection.
    pub time_to_retain: u16,
}

impl Default for Operational {
    /// The defaults without negotiation (RFC 7143, section 13).
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            send_segment: 8192,
            max_burst: 262_144,
            first_burst: 65_536,
            first_burst_answered: None,
            initial_r2t: true,
            immediate_data: true,
            max_outstanding_r2t: 1,
            time_to_wait: 2,
            time_to_retain: 20,
        }
    }
}

/// The outcome of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Answer with this value.
    Answer(String),
    /// The key is a declaration and needs no answer.
    Declared,
}

const YES: &str = "Yes";
const NO: &str = "No";
const REJECT: &str = "Reject";
const MAX_24_BITS: u32 = (1 << 24) - 1;

impl Operational {
    /// Takes in a key that the initiator offers. `discovery` sessions find most keys irrelevant.
    pub fn offer(&mut self, key: &str, value: &str, discovery: bool) -> Outcome {
        let answer = |value: &str| Outcome::Answer(value.to_owned());
        match key {
            "HeaderDigest" => Self::choose_digest(value, &mut self.header_digest),
            "DataDigest" => Self::choose_digest(value, &mut self.data_digest),
            "MaxRecvDataSegmentLength" => match number(value) {
                Some(bytes @ 512..=MAX_24_BITS) => {
                    self.send_segment = bytes;
                    Outcome::Declared
                }
                _ => answer(REJECT),
            },
            // FirstBurstLength must not exceed MaxBurstLength (RFC 7143, section 13.14). A given
            // answer holds: if it is too late for that, the longest burst stays unchanged.
            "MaxBurstLength" if !discovery => match (number(value), self.first_burst_answered) {
                (Some(bytes), Some(first)) if bytes < first => answer(REJECT),
                _ => Self::least(value, BURST_BYTES, 512, &mut self.max_burst),
            },
            "FirstBurstLength" if !discovery => {
                let most = FIRST_BURST_BYTES.min(self.max_burst);
                let outcome = Self::least(value, most, 512, &mut self.first_burst);
                if outcome != answer(REJECT) {
                    self.first_burst_answered = Some(self.first_burst);
                }
                outcome
            }
            "MaxConnections" if !discovery => Self::least(value, 1, 1, &mut 1),
            "MaxOutstandingR2T" if !discovery => Self::least(value, 1, 1, &mut self.max_outstanding_r2t),
            "InitialR2T" if !discovery => Self::either(value, false, &mut self.initial_r2t),
            "ImmediateData" if !discovery => Self::both(value, true, &mut self.immediate_data),
            "DataPDUInOrder" | "DataSequenceInOrder" if !discovery => Self::either(value, true, &mut true),
            "DefaultTime2Wait" => match number(value) {
                Some(seconds @ 0..=3600) => {
                    self.time_to_wait = seconds as u16;
                    answer(&seconds.to_string())
                }
                _ => answer(REJECT),
            },
            "DefaultTime2Retain" => match number(value) {
                // At error recovery level 0 no task outlives its connection.
                Some(0..=3600) => {
                    self.time_to_retain = 0;
                    answer("0")
                }
                _ => answer(REJECT),
            },
            "ErrorRecoveryLevel" => match number(value) {
                Some(0..=2) => answer("0"),
                _ => answer(REJECT),
            },
            "MaxBurstLength"
            | "FirstBurstLength"
            | "MaxConnections"
            | "MaxOutstandingR2T"
            | "InitialR2T"
            | "ImmediateData"
            | "DataPDUInOrder"
            | "DataSequenceInOrder" => answer("Irrelevant"),
            // Markers went with RFC 7143; older initiators still ask.
            "OFMarker" | "IFMarker" => answer(NO),
            "OFMarkInt" | "IFMarkInt" => answer(REJECT),
            "TaskReporting" if value.split(',').any(|choice| choice == "RFC3720") => answer("RFC3720"),
            "TaskReporting" => answer(REJECT),
            // RFC 7144: level 1 is RFC 7143.
            "iSCSIProtocolLevel" => match number(value) {
                Some(level @ 0..=31) => answer(&level.min(1).to_string()),
                _ => answer(REJECT),
            },
            "InitiatorAlias" => Outcome::Declared,
            _ => answer("NotUnderstood"),
        }
    }

    /// Settles keys that depend on others; call it when all were offered.
    pub fn settle(&mut self) {
        self.first_burst = self.first_burst.min(self.max_burst);
    }

    /// Our declarations in the operational stage.
    pub fn declare(text: &mut Vec<u8>) {
        text::put(text, "MaxRecvDataSegmentLength", &RECEIVE_SEGMENT_BYTES_MAX.to_string());
    }

    fn choose_digest(value: &str, on: &mut bool) -> Outcome {
        let choice = value.split(',').find(|choice| matches!(*choice, "CRC32C" | "None"));
        if let Some(choice) = choice {
            *on = choice == "CRC32C";
        }
        Outcome::Answer(choice.unwrap_or(REJECT).to_owned())
    }

    fn least(value: &str, ours: u32, smallest: u32, result: &mut u32) -> Outcome {
        Outcome::Answer(match number(value) {
            Some(theirs) if theirs >= smallest && theirs <= MAX_24_BITS => {
                *result = theirs.min(ours);
                result.to_string()
            }
            _ => REJECT.to_owned(),
        })
    }

    fn either(value: &str, ours: bool, result: &mut bool) -> Outcome {
        Self::boolean(value, result, |theirs| theirs || ours)
    }

    fn both(value: &str, ours: bool, result: &mut bool) -> Outcome {
        Self::boolean(value, result, |theirs| theirs && ours)
    }

    fn boolean(value: &str, result: &mut bool, outcome: impl Fn(bool) -> bool) -> Outcome {
        let theirs = match value {
            YES => true,
            NO => false,
            _ => return Outcome::Answer(REJECT.to_owned()),
        };
        *result = outcome(theirs);
        Outcome::Answer(if *result { YES } else { NO }.to_owned())
    }
}
