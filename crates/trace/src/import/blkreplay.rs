//! The loads of blkreplay: prose, a line `start ; sector; length ; op ; ...`, then
//! `seconds ; sector ; sectors ; R|W ; delay ; duration`.
//!
//! Lines without a semicolon before the first request are prose. The operation is that of blktrace,
//! of which the first letter counts: `RA` is a read ahead.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request, seconds};
use crate::Problem;

#[derive(Default)]
pub(super) struct Blkreplay {
    began: bool,
}

impl Lines for Blkreplay {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        if line.trim().is_empty() || line.starts_with('#') || line.starts_with("INFO:") {
            return Ok(Line::Other);
        }
        let mut fields = line.split(';').map(str::trim);
        let first = fields.next().unwrap_or_default();
        if first == "start" {
            return Ok(Line::Other);
        }
        let mut next = || fields.next().ok_or(Problem::Fields);
        if !self.began && !line.contains(';') {
            return Ok(Line::Other);
        }
        let (sector, sectors, op) = (next()?, next()?, next()?);
        let op = match op.as_bytes().first() {
            Some(b'R') => TraceOp::Read,
            Some(b'W') => TraceOp::Write,
            Some(b'D') => TraceOp::Trim,
            _ => return Err(Problem::Operation),
        };
        let at = seconds(first).ok_or(Problem::Time)?;
        let offset = number(sector).and_then(|sector| sector.checked_mul(512)).ok_or(Problem::Offset)?;
        let length = number(sectors).and_then(|sectors| sectors.checked_mul(512)).ok_or(Problem::Length)?;
        let line = request(at, devices.number("0")?, op, offset, length)?;
        self.began = true;
        Ok(line)
    }
}
