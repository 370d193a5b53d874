//! HP Labs SRT, the format of the cello and snake traces: an optional text head that ends with a
//! form feed, then big-endian records of versions 1 to 6.
//!
//! A record is its length in bytes, its version and type, seconds and microseconds of the request's
//! arrival, then start, stop, bytes, sector, device, driver, cylinder, flags, and its origin.
//! Version 4 adds the length of the queue, version 5 the process, version 6 the logical volume; a
//! suspect record adds its reasons. Layout and flags are those of the tracing code that HP Labs
//! published with the traces, as disk simulators and the converter to DataSeries read it. The
//! lowest eight bits of a device are its section: sectors are counted on the disk, whatever section
//! a request used, so a disk is one device. Sectors are 512 bytes unless the head says
//! `sectorsize`. Versions 7 and 8, whose records have another layout, are refused.

use cairn_format::trace::TraceOp;

use super::{Devices, Line, request};
use crate::Problem;

/// Bytes of the longest record.
pub(crate) const RECORD_MAX: usize = 256;
/// The length in bytes of the fixed part at the start of every record.
pub(crate) const PREFIX: usize = 16;
/// The newest version whose records begin as all before it do.
const VERSION_MAX: u32 = 6;
/// Bits of a device's number that name a section of a disk.
const SECTION_BITS: u32 = 8;
/// Bytes of a sector if the head does not give it.
pub(crate) const SECTOR: u64 = 512;
/// Bytes that a sector can have.
const SECTORS: std::ops::RangeInclusive<u64> = 128..=65_536;
const BODY_MIN: usize = 13 * 4;
const SHORT_IO: u32 = 1;
const SUSPECT_IO: u32 = 4;
const READ: u32 = 1;

/// The length of a record, from its first words. `None` without a record of a known version.
pub(crate) fn length(prefix: &[u8]) -> Option<usize> {
    let (size, id) = (word(prefix, 0)?, word(prefix, 1)?);
    let (version, kind) = (id >> 16, id & 0xffff);
    let known = (1..=VERSION_MAX).contains(&version) && (kind == SHORT_IO || kind == SUSPECT_IO);
    (known && (BODY_MIN..=RECORD_MAX).contains(&(size as usize))).then_some(size as usize)
}

/// A record of its claimed length.
pub(crate) fn record(bytes: &[u8], sector_bytes: u64, devices: &mut Devices) -> Result<Line, Problem> {
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
    let disk = device >> SECTION_BITS << SECTION_BITS;
    let device = devices.number(&format!("{disk:#010x}"))?;
    let at_ns = seconds * 1_000_000_000 + micros * 1000;
    request(at_ns, device, op, u64::from(sector) * sector_bytes, u64::from(length))
}

/// The bytes of a sector according to the text head of a trace, which has lines `KEY = "VALUE";`:
/// the value of the key that is `sectorsize` without spaces and underscores.
pub(crate) fn sector_bytes(head: &[u8]) -> Option<u64> {
    let value = |line: &[u8]| {
        let (key, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
        let key: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
        let digits: String = value.chars().filter(char::is_ascii_digit).collect();
        key.eq_ignore_ascii_case("sectorsize").then(|| digits.parse::<u64>().ok()).flatten()
    };
    let said = head.split(|byte| *byte == b'\n').find_map(value)?;
    (said.is_power_of_two() && SECTORS.contains(&said)).then_some(said)
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let at = bytes.get(index * 4..index * 4 + 4)?;
    Some(u32::from_be_bytes(at.try_into().ok()?))
}
