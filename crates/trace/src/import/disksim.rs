//! DiskSim's default text: `milliseconds device block blocks flags`, where blocks are of 512 bytes
//! and the flags are hexadecimal; their lowest bit is a read.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, Lines, number, request, seconds};
use crate::Problem;

const READ: u32 = 1;
const BLOCK: u64 = 512;

pub(super) struct DiskSim;

impl Lines for DiskSim {
    fn line(&mut self, line: &str, devices: &mut Devices) -> Result<Line, Problem> {
        let mut fields = line.split_ascii_whitespace();
        let Some(at) = fields.next().filter(|first| !first.starts_with('#')) else { return Ok(Line::Other) };
        let mut next = || fields.next().ok_or(Problem::Fields);
        let (device, block, blocks, flags) = (next()?, next()?, next()?, next()?);
        // A line of six fields is of another format, or describes batches, which are not supported
        // here.
        if fields.next().is_some() {
            return Err(Problem::Fields);
        }
        let at = seconds(at).ok_or(Problem::Time)? / 1000;
        number(device).ok_or(Problem::Device)?;
        let digits = flags.strip_prefix("0x").unwrap_or(flags);
        let flags = u32::from_str_radix(digits, 16).map_err(|_| Problem::Operation)?;
        let op = if flags & READ != 0 { TraceOp::Read } else { TraceOp::Write };
        let bytes = |text: &str| number(text).and_then(|blocks| blocks.checked_mul(BLOCK));
        let offset = bytes(block).ok_or(Problem::Offset)?;
        request(at, devices.number(device)?, op, offset, bytes(blocks).ok_or(Problem::Length)?)
    }
}
