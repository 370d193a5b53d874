//! The default output of blkparse:
//! `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
//!
//! A request shows up several times on its way (queued, merged, issued, completed). One action is
//! taken, by default Q, the request of the layers above. Lines of other actions, messages and the
//! summary at the end are not requests.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request, seconds};
use crate::Problem;

/// Which step on a request's way through the kernel is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlkparseAction {
    /// Q: as the layers above asked for it.
    #[default]
    Queued,
    /// D: as passed to the driver, after merging.
    Issued,
    /// C: when it was done.
    Completed,
}

impl BlkparseAction {
    fn letter(self) -> &'static str {
        match self {
            BlkparseAction::Queued => "Q",
            BlkparseAction::Issued => "D",
            BlkparseAction::Completed => "C",
        }
    }
}

impl std::str::FromStr for BlkparseAction {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Queued, Self::Issued, Self::Completed]
            .into_iter()
            .find(|action| action.letter() == text)
            .ok_or(UnknownAction)
    }
}

/// Not an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an action is Q (queued), D (issued) or C (completed)")]
pub struct UnknownAction;

pub(super) struct Blkparse {
    action: BlkparseAction,
    /// The summary has begun: nothing but prose follows.
    summary: bool,
}

impl Blkparse {
    pub(super) fn new(action: BlkparseAction) -> Self {
        Self { action, summary: false }
    }
}

impl Lines for Blkparse {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        let begins_summary = |line: &str| {
            ["CPU", "Total (", "Throughput (", "Events (", "Skips:", "Input file"]
                .iter()
                .any(|word| line.starts_with(word))
        };
        if line.trim().is_empty() || self.summary {
            return Ok(Line::Other);
        }
        if begins_summary(line) {
            self.summary = line.starts_with("CPU") || line.starts_with("Total (");
            return Ok(Line::Other);
        }
        let mut fields = line.split_ascii_whitespace();
        let mut next = || fields.next().ok_or(Problem::Fields);
        let (device, cpu, sequence, at, pid, action) = (next()?, next()?, next()?, next()?, next()?, next()?);
        let (major, minor) = device.split_once(',').ok_or(Problem::Device)?;
        if number(major).is_none() || number(minor).is_none() || number(cpu).is_none() {
            return Err(Problem::Device);
        }
        if number(sequence).is_none() || number(pid).is_none() {
            return Err(Problem::Fields);
        }
        let at = seconds(at).ok_or(Problem::Time)?;
        if action != self.action.letter() {
            return Ok(Line::Other);
        }
        let rwbs = next()?;
        let op = match () {
            () if rwbs.contains('D') => TraceOp::Trim,
            () if rwbs.contains('R') => TraceOp::Read,
            () if rwbs.contains('W') => TraceOp::Write,
            () if rwbs.contains('F') => TraceOp::Flush,
            // Notes without data, such as the passing on of a command.
            () if rwbs.contains('N') => return Ok(Line::Other),
            () => return Err(Problem::Operation),
        };
        if op == TraceOp::Flush {
            return request(at, devices.number(device)?, op, 0, 0);
        }
        let place = fields.next();
        if rwbs.contains('F') && place.is_none_or(|place| place.starts_with('[')) {
            // A flush that is written as a write: it has no place.
            return request(at, devices.number(device)?, TraceOp::Flush, 0, 0);
        }
        let sector = place.and_then(number).ok_or(Problem::Offset)?;
        let sectors = match fields.next() {
            Some("+") => fields.next().and_then(number).ok_or(Problem::Length)?,
            // A flush after it was given a place: it has no length.
            _ if rwbs.contains('F') => return request(at, devices.number(device)?, TraceOp::Flush, 0, 0),
            _ => return Err(Problem::Fields),
        };
        let offset = sector.checked_mul(512).ok_or(Problem::Offset)?;
        let length = sectors.checked_mul(512).ok_or(Problem::Length)?;
        request(at, devices.number(device)?, op, offset, length)
    }
}
