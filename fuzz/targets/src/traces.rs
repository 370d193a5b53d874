//! Traces, ours and of others: any bytes under each format, and under none so that it is found out.

use std::io::Cursor;

use cairn_format::trace::{TraceFrame, TraceHeader};
use cairn_trace::{
    AnalyseOptions, Analysis, BlkparseAction, ReadOptions, TraceFormat, TraceOp, TraceReader, TraceRecord,
    TraceWriter,
};

/// Requests that one input is followed for.
const REQUESTS_MAX: usize = 10_000;

/// The requests of a trace; `None` when it is refused.
fn requests(data: &[u8], format: Option<TraceFormat>) -> Option<(Vec<TraceRecord>, TraceReader)> {
    let options = ReadOptions { format, action: BlkparseAction::default() };
    let mut reader = TraceReader::open(Cursor::new(data.to_vec()), &options).ok()?;
    let mut requests = Vec::new();
    while let Ok(Some(request)) = reader.next() {
        assert!(request.is_valid(), "a request is out of bounds");
        assert!((request.device as usize) < reader.devices().len(), "a request is on no device");
        requests.push(request);
        if requests.len() == REQUESTS_MAX {
            break;
        }
    }
    Some((requests, reader))
}

/// The requests are written and read again as the same.
fn settled(data: &[u8], format: Option<TraceFormat>) {
    let Some((first, reader)) = requests(data, format) else { return };
    if first.is_empty() {
        return;
    }
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default(), false).expect("a trace in memory");
    for name in reader.devices() {
        writer.device(name).expect("a name that was read");
    }
    for request in &first {
        writer.push(request).expect("a request that was read");
    }
    let bytes = writer.finish().expect("a trace in memory");
    let (again, reader) = requests(&bytes, None).expect("a trace of ours");
    assert!(first == again && reader.problems().count == 0, "what was written is read as something else");
}

pub(crate) fn cairn(data: &[u8]) {
    settled(data, Some(TraceFormat::Cairn));
    // The same as the content of one frame, with heads that are right.
    let device = b"\0\0\0\0disk";
    let head = |kind: u8, records: u32, content: &[u8]| {
        let mut bytes = [0; TraceFrame::SIZE];
        bytes[..4].copy_from_slice(b"CTRF");
        bytes[4] = kind;
        bytes[8] = u8::from(kind == 1);
        bytes[12..16].copy_from_slice(&records.to_le_bytes());
        bytes[16..20].copy_from_slice(&(content.len() as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(content.len() as u32).to_le_bytes());
        bytes[32..36].copy_from_slice(&cairn_base::crc32c(content).to_le_bytes());
        let crc = cairn_base::crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let Some((count, content)) = data.split_first() else { return };
    let whole = [
        &TraceHeader::default().to_bytes()[..],
        &head(2, 0, device),
        device,
        &head(1, u32::from(*count).max(1), content),
        content,
    ];
    settled(&whole.concat(), None);
}

pub(crate) fn text(data: &[u8]) {
    for format in [None, Some(TraceFormat::Csv), Some(TraceFormat::Msr), Some(TraceFormat::Spc)] {
        settled(data, format);
    }
    for format in [TraceFormat::Blkparse, TraceFormat::Blkreplay, TraceFormat::DiskSim] {
        settled(data, Some(format));
    }
}

pub(crate) fn binary(data: &[u8]) {
    settled(data, Some(TraceFormat::Srt));
    settled(data, Some(TraceFormat::Vscsi));
}

/// An analysis of any requests in order of time: sums do not overflow, shares are shares.
pub(crate) fn analysis(data: &[u8]) {
    let mut analysis = Analysis::new(AnalyseOptions::default()).expect("the usual analysis");
    let mut at_ns = 0u64;
    for bytes in data.chunks_exact(12) {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let op = [TraceOp::Write, TraceOp::Write, TraceOp::Read, TraceOp::Trim][usize::from(bytes[0] & 3)];
        let shift = bytes[1] % 36;
        let length = match op {
            TraceOp::Trim => u64::from(word(4)) << (bytes[2] % 28),
            _ => u64::from(word(4)) % (1 << 20),
        };
        let record = TraceRecord {
            at_ns,
            device: u32::from(bytes[3]) % 8,
            op,
            offset: u64::from(word(8)) << (shift % 29),
            length,
        };
        if record.is_valid() {
            analysis.add(&record).expect("few requests");
        }
        at_ns = at_ns.saturating_add(u64::from(word(0)) << shift).min(1 << 61);
    }
    let Ok(report) = analysis.finish() else { return };
    for (_, row) in &report.r.0 {
        assert!((0.0..=1.0 + 1e-9).contains(&row.r_emp_phase0), "r is a share");
        assert!(
            (-1e-9..=1.0 + 1e-9).contains(&row.R_claim31_all) || report.w_block_writes == 0,
            "R is a share"
        );
    }
    cairn_trace::plots(&report);
}

pub(crate) fn cairn_seeds() -> Vec<Vec<u8>> {
    let write = |packed| {
        let mut writer =
            TraceWriter::new(Vec::new(), &TraceHeader { began_ns: 1 }, packed).expect("in memory");
        writer.device("disk0").expect("in memory");
        for n in 0..40u64 {
            let op = [TraceOp::Write, TraceOp::Read, TraceOp::Trim, TraceOp::Zeroes][n as usize % 4];
            let record = TraceRecord { at_ns: n * n, device: 0, op, offset: n * n % 7 * 4096, length: 4096 };
            writer.push(&record).expect("in memory");
        }
        writer.finish().expect("in memory")
    };
    // The second is the content of a frame after its count of records.
    let content = vec![2, 0b11_1001, 5, 0b00_1001, 7, 0x80, 0x40, 0x80, 0x20, 0b11_1000, 1];
    vec![write(false), write(true), content]
}

pub(crate) fn text_seeds() -> Vec<Vec<u8>> {
    crate::seeds::lines(&[
        "t_ns,dev,op,offset_bytes,length_bytes\n0,0,W,19336628736,32768\n449518165,0,R,0,512\n7,0,D,0,4096\n",
        "128166372003061629,hm,1,Read,383496192,32768,51154\n128166372016382155,hm,1,Write,8192,4096,100\n",
        "0,20941264,8192,W,0.551706\n1,20939840,8192,r,0.554041\n",
        "  8,0    1        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
         \x20 8,0    0        8     0.000007000     0  Q  DS 4096 + 2048 [fstrim]\nCPU0 (sda):\n Reads Queued: 1\n",
        "prose\nstart ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n  0.449518165 ;  37766917 ;   14 ; W ; 0.0 ; 0.0\n",
    ])
}

pub(crate) fn binary_seeds() -> Vec<Vec<u8>> {
    let srt: Vec<u8> = [56u32, 4 << 16 | 1, 100, 5, 0, 9, 8192, 77, 0x100, 1, 2, 1, 3, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    let mut one = vec![1, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0, 0x2a, 0, 5, 1];
    one.extend(8u64.to_le_bytes());
    one.extend(1000u64.to_le_bytes());
    let mut two = vec![0x28, 0, 5, 2, 1, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0];
    for long in [8u64, 1000, 44] {
        two.extend(long.to_le_bytes());
    }
    vec![srt.repeat(2), one.repeat(3), two.repeat(3)]
}

pub(crate) fn analysis_seeds() -> Vec<Vec<u8>> {
    crate::seeds::noise(3, 1200)
}
