//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, where the time is
//! a Windows file time (100 ns since 1601) and offset and size are bytes.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request};
use crate::Problem;

pub(super) struct Msr;

impl Lines for Msr {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        if line.is_empty() || line.starts_with("Timestamp,") {
            return Ok(Line::Other);
        }
        let mut fields = line.split(',').map(str::trim);
        let mut next = || fields.next().ok_or(Problem::Fields);
        let (at, host, disk, op, offset, size) = (next()?, next()?, next()?, next()?, next()?, next()?);
        let op = match op {
            "Read" | "read" => TraceOp::Read,
            "Write" | "write" => TraceOp::Write,
            _ => return Err(Problem::Operation),
        };
        let at = number(at).and_then(|at| at.checked_mul(100)).ok_or(Problem::Time)?;
        let disk = number(disk).ok_or(Problem::Device)?;
        let offset = number(offset).ok_or(Problem::Offset)?;
        let size = number(size).ok_or(Problem::Length)?;
        let device = devices.number(&format!("{host}.{disk}"))?;
        request(at, device, op, offset, size)
    }
}
