//! SPC trace file format 1.0.1: `ASU,LBA,Size,Opcode,Timestamp`, where the LBA counts blocks of 512
//! bytes, the size is bytes and the time is seconds. Further fields are optional and not used.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request, seconds};
use crate::Problem;

pub(super) struct Spc;

impl Lines for Spc {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(Line::Other);
        }
        let mut fields = line.split(',').map(str::trim);
        let mut next = || fields.next().ok_or(Problem::Fields);
        let (asu, lba, size, op, at) = (next()?, next()?, next()?, next()?, next()?);
        let op = match op {
            "R" | "r" => TraceOp::Read,
            "W" | "w" => TraceOp::Write,
            _ => return Err(Problem::Operation),
        };
        let at = seconds(at).ok_or(Problem::Time)?;
        number(asu).ok_or(Problem::Device)?;
        let offset = number(lba).and_then(|lba| lba.checked_mul(512)).ok_or(Problem::Offset)?;
        let size = number(size).ok_or(Problem::Length)?;
        request(at, devices.number(asu)?, op, offset, size)
    }
}
