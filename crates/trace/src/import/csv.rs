//! `t_ns,dev,op,offset_bytes,length_bytes`: the plainest text. Operations are R, W, D (trim), Z
//! (write-zeroes) and F (flush).

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request};
use crate::Problem;

pub(super) struct Csv;

impl Lines for Csv {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        if line.is_empty() || line.starts_with('#') || line.starts_with("t_ns,") {
            return Ok(Line::Other);
        }
        let mut fields = line.split(',').map(str::trim);
        let mut next = || fields.next().ok_or(Problem::Fields);
        let (at, device, op, offset, length) = (next()?, next()?, next()?, next()?, next()?);
        let op = match op {
            "R" | "r" => TraceOp::Read,
            "W" | "w" => TraceOp::Write,
            "D" | "d" | "T" | "t" => TraceOp::Trim,
            "Z" | "z" => TraceOp::Zeroes,
            "F" | "f" => TraceOp::Flush,
            _ => return Err(Problem::Operation),
        };
        let at = number(at).ok_or(Problem::Time)?;
        let offset = number(offset).ok_or(Problem::Offset)?;
        let length = number(length).ok_or(Problem::Length)?;
        let device = devices.number(device)?;
        match op {
            TraceOp::Flush => request(at, device, op, 0, 0),
            _ => request(at, device, op, offset, length),
        }
    }
}
