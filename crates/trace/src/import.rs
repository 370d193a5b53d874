//! Traces of others: one file a format. A decoder of lines turns a line into a request, into
//! another line of the format, or into a problem.

mod blkparse;
mod blkreplay;
mod csv;
mod disksim;
mod msr;
mod spc;
pub(crate) mod srt;
pub(crate) mod vscsi;

use cairn_format::trace::{TRACE_DEVICES_MAX, TRACE_LENGTH_MAX, TraceOp, TraceRecord};

use crate::Problem;

pub use blkparse::BlkparseAction;

/// A format that a trace can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceFormat {
    /// Ours.
    Cairn,
    /// `t_ns,dev,op,offset_bytes,length_bytes`.
    Csv,
    /// MSR Cambridge (SNIA): `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
    Msr,
    /// SPC trace file format 1.0.1: `ASU,LBA,Size,Opcode,Timestamp`.
    Spc,
    /// The default output of blkparse.
    Blkparse,
    /// The loads of blkreplay: `start ; sector ; length ; op ; ...`.
    Blkreplay,
    /// DiskSim's default text: `milliseconds device block blocks flags`.
    DiskSim,
    /// HP Labs SRT, binary, records of version 1 to 6.
    Srt,
    /// CloudPhysics, binary, version 1 and 2.
    Vscsi,
}

impl TraceFormat {
    /// All of them.
    pub const ALL: [TraceFormat; 9] = [
        TraceFormat::Cairn,
        TraceFormat::Csv,
        TraceFormat::Msr,
        TraceFormat::Spc,
        TraceFormat::Blkparse,
        TraceFormat::Blkreplay,
        TraceFormat::DiskSim,
        TraceFormat::Srt,
        TraceFormat::Vscsi,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TraceFormat::Cairn => "cairn",
            TraceFormat::Csv => "csv",
            TraceFormat::Msr => "msr",
            TraceFormat::Spc => "spc",
            TraceFormat::Blkparse => "blkparse",
            TraceFormat::Blkreplay => "blkreplay",
            TraceFormat::DiskSim => "disksim",
            TraceFormat::Srt => "srt",
            TraceFormat::Vscsi => "vscsi",
        }
    }
}

impl std::fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Not the name of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a format is cairn, csv, msr, spc, blkparse, blkreplay, disksim, srt or vscsi")]
pub struct UnknownName;

impl std::str::FromStr for TraceFormat {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or(UnknownName)
    }
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// A request; its time is by the clock of the trace, not yet from its beginning.
    Request(TraceRecord),
    /// A line of the format that is not a request.
    Other,
}

/// The decoder of a format that has lines.
pub(crate) trait Lines {
    /// Decodes a line without its end.
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem>;
}

/// The decoder of lines of a format; `None` for binary ones.
pub(crate) fn lines(format: TraceFormat, action: BlkparseAction) -> Option<Box<dyn Lines + Send>> {
    Some(match format {
        TraceFormat::Csv => Box::new(csv::Csv),
        TraceFormat::Msr => Box::new(msr::Msr),
        TraceFormat::Spc => Box::new(spc::Spc),
        TraceFormat::Blkparse => Box::new(blkparse::Blkparse::new(action)),
        TraceFormat::Blkreplay => Box::new(blkreplay::Blkreplay::default()),
        TraceFormat::DiskSim => Box::new(disksim::DiskSim),
        TraceFormat::Cairn | TraceFormat::Srt | TraceFormat::Vscsi => return None,
    })
}

/// The names of the devices of a trace; a device's number is its place here.
#[derive(Debug, Default, Clone)]
pub(crate) struct Devices {
    pub(crate) names: Vec<String>,
    /// The device of the request before, which is the device of most.
    last: usize,
}

impl Devices {
    /// The number of a device, a new one if it has none.
    pub(crate) fn number(&mut self, name: &str) -> Result<u32, Problem> {
        if self.names.get(self.last).is_some_and(|last| last == name) {
            return Ok(self.last as u32);
        }
        let found = self.names.iter().position(|other| other == name);
        let number = match found {
            Some(number) => number,
            None if self.names.len() < TRACE_DEVICES_MAX as usize
                && !name.is_empty()
                && name.len() <= cairn_format::trace::TRACE_NAME_MAX =>
            {
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
            None => return Err(Problem::Device),
        };
        self.last = number;
        Ok(number as u32)
    }
}

/// A request out of its parts, if they are in bounds.
pub(crate) fn request(
    at_ns: u64,
    device: u32,
    op: TraceOp,
    offset: u64,
    length: u64,
) -> Result<Line, Problem> {
    let record = TraceRecord { at_ns, device, op, offset, length };
    match record.is_valid() {
        true => Ok(Line::Request(record)),
        false if length > TRACE_LENGTH_MAX => Err(Problem::Length),
        false => Err(Problem::Offset),
    }
}

/// `seconds.fraction` as nanoseconds, without rounding; digits past the ninth are cut.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut ns = 0u64;
    for place in 0..9 {
        let digit = fraction.as_bytes().get(place).map_or(0, |byte| u64::from(byte - b'0'));
        ns = ns * 10 + digit;
    }
    whole.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// A number of decimal digits alone.
pub(crate) fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
