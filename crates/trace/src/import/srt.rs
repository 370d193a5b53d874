//! HP Labs SRT, the format of the cello and snake traces: an optional text head that ends with a form feed, then big-endian records of versions 1 to 4.
//!
//! A record is its length in bytes, its version and type, seconds and microseconds of the request's arrival, then start, stop, bytes, sector, device,
//! driver, cylinder, flags, and what it came from; version 4 adds the length of the queue, a suspect record its reasons. Layout and flags are those
//! of the tracing code that HP Labs published with the traces, as disk simulators read it. Sectors are 512 bytes. Newer versions, which compress, are refused.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, request};
use crate::Problem;

/// Bytes of the longest record.
pub(crate) const RECORD_MAX: usize = 256;
/// Bytes of what every record begins with.
pub(crate) const PREFIX: usize = 16;
const BODY_MIN: usize = 13 * 4;
const SHORT_IO: u32 = 1;
const SUSPECT_IO: u32 = 4;
const READ: u32 = 1;

/// What the first words of a record say: how long it is. `None` when there is no record of a known version here.
pub(crate) fn length(prefix: &[u8]) -> Option<usize> {
    let (size, id) = (word(prefix, 0)?, word(prefix, 1)?);
    let (version, kind) = (id >> 16, id & 0xffff);
    let known = (1..=4).contains(&version) && (kind == SHORT_IO || kind == SUSPECT_IO);
    (known && (BODY_MIN..=RECORD_MAX).contains(&(size as usize))).then_some(size as usize)
}

/// A record of the length that it says.
pub(crate) fn record(bytes: &[u8], devices: &mut Devices) -> Result<Line, Problem> {
    let word = |index| word(bytes, index).ok_or(Problem::CutOff);
    if word(1)? & 0xffff == SUSPECT_IO {
        return Ok(Line::Other);
    }
    let (seconds, micros) = (u64::from(word(2)?), u64::from(word(3)?));
    if micros >= 1_000_000 {
        return Err(Problem::Time);
    }
    let (length, sector, device, flags) = (word(6)?, word(7)?, word(8)?, word(11)?);
    let op = if flags & READ != 0 { TraceOp::Read } else { TraceOp::Write };
    let device = devices.number(&format!("{device:#010x}"))?;
    request(seconds * 1_000_000_000 + micros * 1000, device, op, u64::from(sector) * 512, u64::from(length))
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let at = bytes.get(index * 4..index * 4 + 4)?;
    Some(u32::from_be_bytes(at.try_into().ok()?))
}
