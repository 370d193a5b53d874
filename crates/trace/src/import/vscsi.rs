//! CloudPhysics: little-endian records of one virtual disk. Version 1 is 32 bytes (serial, bytes,
//! segments, command, version, block, time), version 2 is 40 (command, version, serial, bytes,
//! segments, block, time, response time). The version is the upper byte of its field, blocks are
//! 512 bytes, times microseconds, and the command is the SCSI operation code.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, request};
use crate::Problem;

/// Which layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    /// Bytes of a record.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Version::One => 32,
            Version::Two => 40,
        }
    }

    /// By the first two records (or the only one).
    pub(crate) fn detect(start: &[u8]) -> Option<Self> {
        [Version::Two, Version::One].into_iter().find(|version| {
            let records = start.chunks_exact(version.bytes()).take(4);
            let mut count = 0;
            let all = records.map(|record| version.is_of(record)).inspect(|_| count += 1).all(|is| is);
            all && count > 0
        })
    }

    fn is_of(self, record: &[u8]) -> bool {
        let (field, version) = match self {
            Version::One => (14, 1),
            Version::Two => (2, 2),
        };
        half(record, field).is_some_and(|found| found >> 8 == version)
    }
}

/// A record.
pub(crate) fn record(version: Version, bytes: &[u8], devices: &mut Devices) -> Result<Line, Problem> {
    if !version.is_of(bytes) {
        return Err(Problem::Version);
    }
    let (command, length, block, time) = match version {
        Version::One => (half(bytes, 12), word(bytes, 4), long(bytes, 16), long(bytes, 24)),
        Version::Two => (half(bytes, 0), word(bytes, 8), long(bytes, 16), long(bytes, 24)),
    };
    let op = match command.ok_or(Problem::CutOff)? & 0xff {
        // READ and WRITE of 6, 10, 12 and 16 bytes. UNMAP and WRITE SAME do not contain their range
        // here.
        0x08 | 0x28 | 0xa8 | 0x88 => TraceOp::Read,
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => TraceOp::Write,
        0x35 | 0x91 => TraceOp::Flush,
        _ => return Ok(Line::Other),
    };
    let at = time.and_then(|time| time.checked_mul(1000)).ok_or(Problem::Time)?;
    let device = devices.number("0")?;
    if op == TraceOp::Flush {
        return request(at, device, op, 0, 0);
    }
    let offset = block.and_then(|block| block.checked_mul(512)).ok_or(Problem::Offset)?;
    request(at, device, op, offset, u64::from(length.ok_or(Problem::CutOff)?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
