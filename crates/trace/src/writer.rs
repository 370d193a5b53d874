//! Writes a trace of ours: frames of some ten thousand records, and an end that marks it as whole.

use std::io::Write;

use cairn_base::crc32c;
use cairn_format::trace::{
    TRACE_FRAME_RECORDS_MAX, TraceDelta, TraceFrame, TraceFrameKind, TraceHeader, TraceRecord,
};

use crate::TraceError;

/// Content of a frame at which it is written.
const FRAME_BYTES: usize = 64 << 10;
const ZSTD_LEVEL: i32 = 3;

/// Bytes of the frame that ends a trace.
pub(crate) const END_BYTES: u64 = TraceFrame::SIZE as u64 + 8;
/// Bytes that can still follow the written ones: a frame of records that is nearly full, and the
/// end.
pub(crate) const END_BYTES_MAX: u64 = (FRAME_BYTES + 64 + TraceFrame::SIZE) as u64 + END_BYTES;

/// A trace that is written.
pub struct TraceWriter<W: Write> {
    output: W,
    packed: bool,
    content: Vec<u8>,
    delta: TraceDelta,
    first_ns: u64,
    in_frame: u32,
    sequence: u32,
    records: u64,
    last_ns: u64,
    devices: u32,
    bytes: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace; `packed`: with zstd, a frame at a time.
    pub fn new(mut output: W, header: &TraceHeader, packed: bool) -> Result<Self, TraceError> {
        output.write_all(&header.to_bytes())?;
        Ok(Self {
            output,
            packed,
            content: Vec::with_capacity(FRAME_BYTES + 64),
            delta: TraceDelta::default(),
            first_ns: 0,
            in_frame: 0,
            sequence: 0,
            records: 0,
            last_ns: 0,
            devices: 0,
            bytes: TraceHeader::SIZE as u64,
        })
    }

    /// Names the next device; requests on it come after.
    pub fn device(&mut self, name: &str) -> Result<u32, TraceError> {
        self.end_frame()?;
        let number = self.devices;
        self.devices += 1;
        let content = [&number.to_le_bytes()[..], name.as_bytes()].concat();
        self.frame(TraceFrameKind::Device, false, 0, content.len(), &content)?;
        Ok(number)
    }

    /// Appends a request. It is not earlier than the previous one, and its device has a name.
    pub fn push(&mut self, record: &TraceRecord) -> Result<(), TraceError> {
        let refuse = |rule| Err(TraceError::Refused { what: "a request", rule });
        if record.at_ns < self.last_ns {
            return refuse("requests of a trace are in order of time");
        }
        if record.device >= self.devices || !record.is_valid() {
            return refuse("its device has a name, and its place and length are in bounds");
        }
        if self.in_frame == 0 {
            self.first_ns = record.at_ns;
            self.delta = TraceDelta::at(record.at_ns);
        }
        self.delta.encode(record, &mut self.content);
        self.last_ns = record.at_ns;
        self.in_frame += 1;
        self.records += 1;
        if self.content.len() >= FRAME_BYTES || self.in_frame == TRACE_FRAME_RECORDS_MAX {
            self.end_frame()?;
        }
        Ok(())
    }

    /// Requests so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that were written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the waiting records, so that a reader after a crash finds them.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.end_frame()?;
        Ok(self.output.flush()?)
    }

    /// Writes the end; the trace is whole.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.end_frame()?;
        let content = self.records.to_le_bytes();
        self.frame(TraceFrameKind::End, false, 0, content.len(), &content)?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn end_frame(&mut self) -> Result<(), TraceError> {
        if self.in_frame == 0 {
            return Ok(());
        }
        let plain = std::mem::take(&mut self.content);
        let packed = match self.packed {
            true => {
                Some(zstd::bulk::compress(&plain, ZSTD_LEVEL)?).filter(|packed| packed.len() < plain.len())
            }
            false => None,
        };
        let records = self.in_frame;
        let stored = packed.as_deref().unwrap_or(&plain);
        self.frame(TraceFrameKind::Records, packed.is_some(), records, plain.len(), stored)?;
        self.in_frame = 0;
        self.content = plain;
        self.content.clear();
        Ok(())
    }

    fn frame(
        &mut self,
        kind: TraceFrameKind,
        packed: bool,
        records: u32,
        plain: usize,
        stored: &[u8],
    ) -> Result<(), TraceError> {
        let frame = TraceFrame {
            kind,
            packed,
            sequence: self.sequence,
            records,
            plain_bytes: plain as u32,
            stored_bytes: stored.len() as u32,
            first_ns: if kind == TraceFrameKind::Records { self.first_ns } else { 0 },
            content_crc: crc32c(stored),
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.output.write_all(&frame.to_bytes())?;
        self.output.write_all(stored)?;
        self.bytes += (TraceFrame::SIZE + stored.len()) as u64;
        Ok(())
    }
}
