//! Reads a trace of any format, plain or compressed, as a stream of requests in order of time.
//!
//! Memory is bounded whatever the trace is: a buffer, the requests that wait to be put in order
//! ([`Order`]), a frame. A line that is no request is a [`Problem`]: it is counted, the first ones
//! are kept, and nothing is made up for it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Cursor, Read};

use cairn_base::crc32c;
use cairn_format::trace::{
    TRACE_FRAME_BYTES_MAX, TRACE_MAGIC, TraceDelta, TraceFrame, TraceFrameKind, TraceHeader, TraceRecord,
};

use crate::import::{self, BlkparseAction, Devices, Line, Lines, TraceFormat, srt, vscsi};
use crate::order::Order;
use crate::{Problem, Problems, TraceError};

/// Longest line of a trace, in bytes.
const LINE_MAX: usize = 4096;
/// The length of the sample that identifies a trace's format.
const SAMPLE: usize = 64 << 10;
/// Largest window of a zstd stream: 128 MiB of memory.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Memory of an xz stream at most, in bytes.
const XZ_MEMORY: u64 = 256 << 20;
/// Bytes that identify a compression.
const COMPRESSED_MAGIC: usize = 6;
/// The longest possible trace: 73 years. A time beyond is invalid, and could not be added to
/// others.
const TRACE_TIME_MAX_NS: u64 = 1 << 61;
/// Nanoseconds from 1601, where Windows file times begin, to 1970.
const FILE_TIME_EPOCH_NS: u64 = 11_644_473_600 * 1_000_000_000;

/// How to read a trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// Its format; detected by default.
    pub format: Option<TraceFormat>,
    /// Of blkparse: which step of a request.
    pub action: BlkparseAction,
}

/// A trace that is read.
pub struct TraceReader {
    source: Source,
    format: TraceFormat,
    compression: &'static str,
    devices: Devices,
    problems: Problems,
    order: Order,
    ended: bool,
    /// The time of the first request, by the trace's own clock.
    base: Option<u64>,
    began_ns: u64,
}

enum Source {
    Text { input: Box<dyn BufRead + Send>, decoder: Box<dyn Lines + Send>, line: u64, buffer: Vec<u8> },
    Srt { input: Box<dyn BufRead + Send>, sector_bytes: u64, record: u64 },
    Vscsi { input: Box<dyn BufRead + Send>, version: vscsi::Version, record: u64 },
    Cairn(Frames),
}

/// The frames of a trace of ours.
struct Frames {
    input: Box<dyn BufRead + Send>,
    ready: VecDeque<TraceRecord>,
    frame: u64,
    records: u64,
    /// Records of frames that were damaged.
    lost: u64,
    ended: bool,
}

impl TraceReader {
    /// Begins to read: decompresses gzip, zstd, xz and bzip2 by their first bytes and finds out the
    /// format.
    pub fn open(input: impl Read + Send + 'static, options: &ReadOptions) -> Result<Self, TraceError> {
        let (start, input) = peek(Box::new(input), COMPRESSED_MAGIC)?;
        let (compression, input): (_, Box<dyn Read + Send>) = match start.as_slice() {
            [0x1f, 0x8b, ..] => ("gzip", Box::new(flate2::read::MultiGzDecoder::new(input))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                let mut decoder = zstd::Decoder::new(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                ("zstd", Box::new(decoder))
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0] => {
                let stream =
                    liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED);
                let stream = stream.map_err(std::io::Error::from)?;
                ("xz", Box::new(liblzma::read::XzDecoder::new_stream(input, stream)))
            }
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => {
                ("bzip2", Box::new(bzip2::read::MultiBzDecoder::new(input)))
            }
            _ => ("none", input),
        };
        let (sample, input) = peek(input, SAMPLE)?;
        let format =
            options.format.or_else(|| detect(&sample, options.action)).ok_or(TraceError::UnknownFormat)?;
        let mut input: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(SAMPLE, input));
        let mut began_ns = 0;
        let source = match import::lines(format, options.action) {
            Some(decoder) => Source::Text { input, decoder, line: 0, buffer: Vec::new() },
            None if format == TraceFormat::Srt => {
                let sector_bytes = skip_srt_head(&sample, &mut input)?;
                Source::Srt { input, sector_bytes, record: 0 }
            }
            None if format == TraceFormat::Vscsi => {
                let version = vscsi::Version::detect(&sample).ok_or(TraceError::UnknownFormat)?;
                Source::Vscsi { input, version, record: 0 }
            }
            None => {
                let mut bytes = [0; TraceHeader::SIZE];
                input.read_exact(&mut bytes)?;
                began_ns = TraceHeader::parse(&bytes).map_err(TraceError::Header)?.began_ns;
                let ready = VecDeque::new();
                Source::Cairn(Frames { input, ready, frame: 0, records: 0, lost: 0, ended: false })
            }
        };
        Ok(Self {
            source,
            format,
            compression,
            devices: Devices::default(),
            problems: Problems::default(),
            order: Order::default(),
            ended: false,
            base: None,
            began_ns,
        })
    }

    /// Its format.
    pub fn format(&self) -> TraceFormat {
        self.format
    }

    /// `none`, `gzip`, `zstd`, `xz` or `bzip2`.
    pub fn compression(&self) -> &'static str {
        self.compression
    }

    /// The problems so far.
    pub fn problems(&self) -> &Problems {
        &self.problems
    }

    /// The names of the devices so far; a request's device is its place here.
    pub fn devices(&self) -> &[String] {
        &self.devices.names
    }

    /// The time of the first request, in nanoseconds since 1970 UTC, if the format has it; 0 if
    /// unknown. Valid after a request was read.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The next request, in order of time; times are nanoseconds since the first one.
    #[expect(clippy::should_implement_trait, reason = "an iterator of results hides that an error ends it")]
    pub fn next(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        loop {
            if let Some((mut record, line)) = self.order.pop(self.ended) {
                let base = match self.base {
                    Some(base) => base,
                    None => self.begin(record.at_ns),
                };
                record.at_ns -= base;
                if record.at_ns > TRACE_TIME_MAX_NS {
                    self.problems.add(line, Problem::Time, "");
                    continue;
                }
                return Ok(Some(record));
            }
            if self.ended {
                return Ok(None);
            }
            match self.source.next(&mut self.devices, &mut self.problems)? {
                Some((record, line)) => {
                    if !self.order.push(record, line) {
                        self.problems.add(line, Problem::Late, "");
                    }
                }
                None => self.ended = true,
            }
        }
    }

    fn begin(&mut self, first: u64) -> u64 {
        self.base = Some(first);
        self.began_ns = match self.format {
            TraceFormat::Msr => first.saturating_sub(FILE_TIME_EPOCH_NS),
            TraceFormat::Cairn if self.began_ns > 0 => self.began_ns.saturating_add(first),
            _ => 0,
        };
        first
    }
}

impl Source {
    /// The next request and its place.
    fn next(
        &mut self,
        devices: &mut Devices,
        problems: &mut Problems,
    ) -> Result<Option<(TraceRecord, u64)>, TraceError> {
        match self {
            Source::Text { input, decoder, line, buffer } => {
                while let Some(whole) = read_line(input, buffer)? {
                    *line += 1;
                    let text = str::from_utf8(buffer);
                    let outcome = match text {
                        _ if !whole => Err(Problem::LongLine),
                        Ok(text) => decoder.line(text, devices),
                        Err(_) => Err(Problem::NotText),
                    };
                    match outcome {
                        Ok(Line::Request(record)) => return Ok(Some((record, *line))),
                        Ok(Line::Other) => problems.other_lines += 1,
                        Err(problem) => problems.add(*line, problem, &String::from_utf8_lossy(buffer)),
                    }
                }
                Ok(None)
            }
            Source::Vscsi { input, version, record } => loop {
                let mut bytes = [0; 40];
                let bytes = &mut bytes[..version.bytes()];
                let read = read_up_to(input, bytes)?;
                if read == 0 {
                    return Ok(None);
                }
                *record += 1;
                if read < bytes.len() {
                    problems.add(*record, Problem::CutOff, "");
                    return Ok(None);
                }
                match vscsi::record(*version, bytes, devices) {
                    Ok(Line::Request(request)) => return Ok(Some((request, *record))),
                    Ok(Line::Other) => problems.other_lines += 1,
                    Err(problem) => problems.add(*record, problem, ""),
                }
            },
            Source::Srt { input, sector_bytes, record } => loop {
                let mut bytes = [0; srt::RECORD_MAX];
                let read = read_up_to(input, &mut bytes[..srt::PREFIX])?;
                if read == 0 {
                    return Ok(None);
                }
                *record += 1;
                if read < srt::PREFIX {
                    problems.add(*record, Problem::CutOff, "");
                    return Ok(None);
                }
                // If the length of a record is unknown, the place of the next one is unknown too.
                let Some(length) = srt::length(&bytes) else {
                    problems.add(*record, Problem::Version, "");
                    return Ok(None);
                };
                let rest = read_up_to(input, &mut bytes[srt::PREFIX..length])?;
                if rest < length - srt::PREFIX {
                    problems.add(*record, Problem::CutOff, "");
                    return Ok(None);
                }
                match srt::record(&bytes[..length], *sector_bytes, devices) {
                    Ok(Line::Request(request)) => return Ok(Some((request, *record))),
                    Ok(Line::Other) => problems.other_lines += 1,
                    Err(problem) => problems.add(*record, problem, ""),
                }
            },
            Source::Cairn(frames) => loop {
                if let Some(record) = frames.ready.pop_front() {
                    return Ok(Some((record, frames.frame)));
                }
                if frames.ended {
                    return Ok(None);
                }
                frames.next(devices, problems)?;
            },
        }
    }
}

impl Frames {
    /// Reads a frame.
    fn next(&mut self, devices: &mut Devices, problems: &mut Problems) -> Result<(), TraceError> {
        let mut head = [0; TraceFrame::SIZE];
        let read = read_up_to(&mut self.input, &mut head)?;
        let frame = if read == head.len() { TraceFrame::parse(&head).ok() } else { None };
        let expected = self.frame;
        self.frame += 1;
        let Some(frame) = frame else {
            // Without its head the end of a frame is unknown.
            self.ended = true;
            let problem = if read < head.len() { Problem::NoEnd } else { Problem::Damaged };
            problems.add(self.frame, problem, "");
            return Ok(());
        };
        let mut content = vec![0; frame.stored_bytes as usize];
        if read_up_to(&mut self.input, &mut content)? < content.len() {
            self.ended = true;
            problems.add(self.frame, Problem::NoEnd, "");
            return Ok(());
        }
        let right =
            crc32c(&content) == frame.content_crc && u64::from(frame.sequence) == expected & 0xffff_ffff;
        if !right || !self.take(&frame, content, devices) {
            self.lost += u64::from(frame.records);
            problems.add(self.frame, Problem::Damaged, "");
        }
        Ok(())
    }

    /// Takes the content of a frame; false when a writer would not produce it.
    fn take(&mut self, frame: &TraceFrame, content: Vec<u8>, devices: &mut Devices) -> bool {
        match frame.kind {
            TraceFrameKind::Device => {
                let Some((number, name)) = content.split_first_chunk::<4>() else { return false };
                let Ok(name) = str::from_utf8(name) else { return false };
                let known = devices.names.len() as u32;
                devices
                    .number(name)
                    .is_ok_and(|number_of| number_of == known && u32::from_le_bytes(*number) == number_of)
            }
            TraceFrameKind::End => {
                self.ended = true;
                let total = content.try_into().map(u64::from_le_bytes);
                let more = read_up_to(&mut self.input, &mut [0]).is_ok_and(|read| read > 0);
                total == Ok(self.records + self.lost) && !more
            }
            TraceFrameKind::Records => {
                let Some(records) = records_of(frame, content) else { return false };
                if records.iter().any(|record| record.device as usize >= devices.names.len()) {
                    return false;
                }
                self.records += records.len() as u64;
                self.ready = records;
                true
            }
        }
    }
}

/// The records of a frame whose checksum is right; `None` when they are not written so.
pub(crate) fn records_of(frame: &TraceFrame, content: Vec<u8>) -> Option<VecDeque<TraceRecord>> {
    let plain = match frame.packed {
        true => {
            zstd::bulk::decompress(&content, (frame.plain_bytes as usize).min(TRACE_FRAME_BYTES_MAX)).ok()?
        }
        false => content,
    };
    if plain.len() != frame.plain_bytes as usize {
        return None;
    }
    let mut left = plain.as_slice();
    let mut delta = TraceDelta::at(frame.first_ns);
    let mut records = VecDeque::with_capacity((frame.records as usize).min(left.len()));
    for _ in 0..frame.records {
        records.push_back(delta.decode(&mut left).ok()?);
    }
    let begins_right = records.front().is_some_and(|first| first.at_ns == frame.first_ns);
    (left.is_empty() && begins_right).then_some(records)
}

/// The format of a trace that begins like this: a magic number, or the text format of which most
/// lines are requests.
fn detect(sample: &[u8], action: BlkparseAction) -> Option<TraceFormat> {
    if sample.starts_with(&TRACE_MAGIC) {
        return Some(TraceFormat::Cairn);
    }
    if srt_records(sample).is_some() {
        return Some(TraceFormat::Srt);
    }
    let last = sample.iter().rposition(|byte| *byte == b'\n').map_or(sample.len(), |at| at + 1);
    let most = TraceFormat::ALL.into_iter().filter_map(|format| {
        let mut decoder = import::lines(format, action)?;
        let mut devices = Devices::default();
        let lines = sample[..last].split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
        let requests = lines
            .filter(|line| {
                matches!(decoder.line(line.trim_end_matches('\r'), &mut devices), Ok(Line::Request(_)))
            })
            .count();
        Some((requests, format)).filter(|(requests, _)| *requests > 0)
    });
    let found = most.max_by_key(|(requests, _)| *requests).map(|(_, format)| format);
    found.or_else(|| vscsi::Version::detect(sample).map(|_| TraceFormat::Vscsi))
}

/// Where the records of an SRT trace begin: at once, or after a text head, which has a line
/// `tracedate` and ends with a form feed.
fn srt_records(sample: &[u8]) -> Option<usize> {
    if srt::length(sample).is_some() {
        return Some(0);
    }
    let head = sample.iter().position(|byte| *byte == 0x0c)?;
    let is_head = sample[..head].split(|byte| *byte == b'\n').any(|line| line.starts_with(b"tracedate"));
    (is_head && srt::length(sample.get(head + 1..)?).is_some()).then_some(head + 1)
}

/// Passes over the head, and returns how many bytes a sector has.
fn skip_srt_head(sample: &[u8], input: &mut Box<dyn BufRead + Send>) -> Result<u64, TraceError> {
    let mut head = vec![0; srt_records(sample).ok_or(TraceError::UnknownFormat)?];
    input.read_exact(&mut head)?;
    Ok(srt::sector_bytes(&head).unwrap_or(srt::SECTOR))
}

/// The first bytes of `input`, up to `length`, and the whole of it.
fn peek(
    mut input: Box<dyn Read + Send>,
    length: usize,
) -> Result<(Vec<u8>, Box<dyn Read + Send>), TraceError> {
    let mut start = vec![0; length];
    let read = read_up_to(&mut input, &mut start)?;
    start.truncate(read);
    let whole = Cursor::new(start.clone()).chain(input);
    Ok((start, Box::new(whole)))
}

/// Fills `buffer` as far as there are bytes.
fn read_up_to(input: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> Result<usize, TraceError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Reads a line without its end into `buffer`; `Some(false)` when it was too long and is cut,
/// `None` when there is none.
fn read_line(input: &mut Box<dyn BufRead + Send>, buffer: &mut Vec<u8>) -> Result<Option<bool>, TraceError> {
    buffer.clear();
    let mut any = false;
    let mut whole = true;
    loop {
        let available = match input.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if available.is_empty() {
            return Ok(any.then_some(whole));
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        let room = LINE_MAX - buffer.len();
        whole &= part.len() <= room;
        buffer.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(available.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            if buffer.last() == Some(&b'\r') {
                buffer.pop();
            }
            return Ok(Some(whole));
        }
    }
}
