//! Reads of our own and foreign traces; faults of a trace are counted, with their places.

mod live;
mod record;
mod workloads;

use std::io::Write;

use cairn_base::Rng;
use cairn_format::trace::{TRACE_LENGTH_MAX, TraceDelta, TraceFrame};
use proptest::prelude::*;

use crate::import::{Devices, Line, Lines};
use crate::*;

fn read(bytes: impl AsRef<[u8]>, options: &ReadOptions) -> (Vec<TraceRecord>, TraceReader) {
    let input = std::io::Cursor::new(bytes.as_ref().to_vec());
    let mut reader = TraceReader::open(input, options).expect("a trace");
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("a readable trace") {
        records.push(record);
    }
    (records, reader)
}

fn detected(text: &str) -> (Vec<TraceRecord>, TraceReader) {
    read(text, &ReadOptions::default())
}

fn record(at_ns: u64, device: u32, op: TraceOp, offset: u64, length: u64) -> TraceRecord {
    TraceRecord { at_ns, device, op, offset, length }
}

fn written(records: &[TraceRecord], devices: u32, packed: bool) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader { began_ns: 7 }, packed).unwrap();
    for device in 0..devices {
        assert_eq!(writer.device(&format!("disk{device}")).unwrap(), device);
    }
    for record in records {
        writer.push(record).unwrap();
    }
    writer.finish().unwrap()
}

prop_compose! {
    fn any_record()(
        gap in prop_oneof![Just(0u64), 0..1000u64, 0..10_000_000_000u64],
        device in 0..3u32,
        op in 0..5u8,
        offset in prop_oneof![(0..1u64 << 20).prop_map(|o| o * 512), 0..1u64 << 61],
        length in prop_oneof![Just(4096u64), 0..1u64 << 16, Just(TRACE_LENGTH_MAX)],
    ) -> TraceRecord {
        let op = [TraceOp::Read, TraceOp::Write, TraceOp::Trim, TraceOp::Zeroes, TraceOp::Flush][usize::from(op)];
        match op {
            TraceOp::Flush => record(gap, device, op, 0, 0),
            _ => record(gap, device, op, offset, length),
        }
    }
}

/// Gaps become times.
fn in_time(mut records: Vec<TraceRecord>) -> Vec<TraceRecord> {
    let mut now = 0;
    for (index, record) in records.iter_mut().enumerate() {
        now += if index == 0 { 0 } else { record.at_ns };
        record.at_ns = now;
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again(records in prop::collection::vec(any_record(), 1..300), packed: bool) {
        let records = in_time(records);
        let (again, reader) = read(written(&records, 3, packed), &ReadOptions::default());
        prop_assert_eq!(again, records);
        prop_assert_eq!(reader.problems().count, 0);
        prop_assert_eq!(reader.devices(), &["disk0", "disk1", "disk2"]);
        prop_assert_eq!(reader.began_ns(), 7);
    }

    #[test]
    fn encoding_is_canonical(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut left = bytes.as_slice();
        let (mut decoder, mut encoder) = (TraceDelta::at(5), TraceDelta::at(5));
        let mut again = Vec::new();
        let mut used = 0;
        while let Ok(record) = decoder.decode(&mut left) {
            encoder.encode(&record, &mut again);
            used = bytes.len() - left.len();
        }
        prop_assert_eq!(&again[..], &bytes[..used]);
    }

    #[test]
    fn requests_come_in_order_of_time_and_those_of_one_time_in_order_of_lines(
        times in prop::collection::vec(0..50u64, 1..200),
    ) {
        let mut text = String::new();
        for (line, time) in times.iter().enumerate() {
            text.push_str(&format!("{time},0,W,{},512\n", line * 512));
        }
        let (records, reader) = detected(&text);
        let mut wanted: Vec<(u64, u64)> = times.iter().zip(0..).map(|(t, line)| (*t, line * 512)).collect();
        wanted.sort_by_key(|(time, _)| *time);
        let base = wanted[0].0;
        let found: Vec<(u64, u64)> = records.iter().map(|r| (r.at_ns + base, r.offset)).collect();
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(reader.problems().count, 0);
    }

    #[test]
    fn no_line_of_any_format_panics(line in "[ -~]{0,80}") {
        for format in TraceFormat::ALL {
            if let Some(mut decoder) = import::lines(format, BlkparseAction::default()) {
                let _ = decoder.line(&line, &mut Devices::default());
            }
        }
    }
}

#[test]
fn many_frames_are_read_again() {
    let mut rng = Rng::new(3);
    let records: Vec<TraceRecord> = (0..150_000u64)
        .map(|n| record(n * 1000, 0, TraceOp::Write, rng.below(1 << 30) * 512, 4096))
        .collect();
    for packed in [false, true] {
        let bytes = written(&records, 1, packed);
        assert!(bytes.len() < records.len() * 12, "{} bytes for {} requests", bytes.len(), records.len());
        assert_eq!(read(bytes, &ReadOptions::default()).0, records);
    }
}

#[test]
fn damaged_frame_costs_that_frame_and_is_counted() {
    let records: Vec<TraceRecord> =
        (0..60_000u64).map(|n| record(n, 0, TraceOp::Write, n * n * 512, 4096)).collect();
    let mut bytes = written(&records, 1, false);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let (again, reader) = read(&bytes, &ReadOptions::default());
    assert!(again.len() < records.len() && again.len() > records.len() / 2, "{}", again.len());
    assert!(again.iter().all(|record| records.binary_search_by_key(&record.at_ns, |r| r.at_ns).is_ok()));
    assert_eq!(reader.problems().kinds, [(Problem::Damaged, 1)].into());
}

#[test]
fn trace_that_was_cut_off_says_so_and_gives_what_it_has() {
    let records: Vec<TraceRecord> =
        (0..60_000u64).map(|n| record(n, 0, TraceOp::Write, n * n * 512, 4096)).collect();
    let bytes = written(&records, 1, true);
    for keep in [bytes.len() - 1, bytes.len() - TraceFrame::SIZE - 8, bytes.len() / 2, 200] {
        let (again, reader) = read(&bytes[..keep], &ReadOptions::default());
        assert_eq!(again, records[..again.len()]);
        assert_eq!(reader.problems().kinds, [(Problem::NoEnd, 1)].into(), "of {keep} bytes");
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert_eq!(read(longer, &ReadOptions::default()).1.problems().kinds, [(Problem::Damaged, 1)].into());
}

#[test]
fn writer_refuses_what_a_reader_would_not_take() {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default(), false).unwrap();
    assert!(writer.push(&record(0, 0, TraceOp::Write, 0, 512)).is_err(), "no device has a name");
    writer.device("a").unwrap();
    writer.push(&record(9, 0, TraceOp::Write, 0, 512)).unwrap();
    assert!(writer.push(&record(8, 0, TraceOp::Write, 0, 512)).is_err(), "it is earlier");
    assert!(writer.push(&record(9, 0, TraceOp::Write, 0, TRACE_LENGTH_MAX + 1)).is_err(), "it is too long");
}

fn xz(text: &[u8]) -> Vec<u8> {
    let mut packed = liblzma::write::XzEncoder::new(Vec::new(), 6);
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn bzip2(text: &[u8]) -> Vec<u8> {
    let mut packed = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::default());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

#[test]
fn compressed_traces_are_read_as_plain_ones() {
    let text = "t_ns,dev,op,offset_bytes,length_bytes\n5,a,W,0,512\n9,b,R,1024,4096\n";
    let wanted = vec![record(0, 0, TraceOp::Write, 0, 512), record(4, 1, TraceOp::Read, 1024, 4096)];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let packed = [
        ("none", text.as_bytes().to_vec()),
        ("gzip", gzip.finish().unwrap()),
        ("zstd", zstd::encode_all(text.as_bytes(), 3).unwrap()),
        ("xz", xz(text.as_bytes())),
        ("bzip2", bzip2(text.as_bytes())),
        // Of several streams, as programs that compress on all processors write them.
        ("xz", [xz(&text.as_bytes()[..50]), xz(&text.as_bytes()[50..])].concat()),
        ("bzip2", [bzip2(&text.as_bytes()[..50]), bzip2(&text.as_bytes()[50..])].concat()),
    ];
    for (name, bytes) in packed {
        let (records, reader) = read(bytes, &ReadOptions::default());
        assert_eq!(
            (records, reader.compression(), reader.format()),
            (wanted.clone(), name, TraceFormat::Csv)
        );
        assert_eq!(reader.devices(), &["a", "b"]);
    }
}

#[test]
fn msr_cambridge_is_read() {
    let (records, reader) = detected(
        "128166372003061629,hm,1,Read,383496192,32768,51154\r\n128166372016382155,hm,1,Write,8192,4096,100\r\n",
    );
    assert_eq!(reader.format(), TraceFormat::Msr);
    assert_eq!(records[0], record(0, 0, TraceOp::Read, 383_496_192, 32768));
    assert_eq!(records[1], record(1_332_052_600, 0, TraceOp::Write, 8192, 4096));
    assert_eq!(reader.devices(), &["hm.1"]);
    // 2007-02-22 17:00:00.306 UTC.
    assert_eq!(reader.began_ns() / 1_000_000_000, 1_172_163_600);
}

#[test]
fn spc_is_read() {
    let (records, reader) = detected("0,20941264,8192,W,0.551706\n1,20939840,8192,r,0.554041,x\n");
    assert_eq!(reader.format(), TraceFormat::Spc);
    assert_eq!(records[0], record(0, 0, TraceOp::Write, 20_941_264 * 512, 8192));
    assert_eq!(records[1], record(2_335_000, 1, TraceOp::Read, 20_939_840 * 512, 8192));
}

const BLKPARSE: &str = "  8,0    1        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    1        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    1        3     0.000002500   697  P   N [kjournald]
  8,0    0        4     0.000003000   697  Q  WS 223498 + 16 [kjournald]
  8,0    1        5     0.000004000   697  U   N [kjournald] 1
  8,0    0        6     0.000005000   697  D   W 223490 + 24 [kjournald]
  8,16   0        7     0.000006000     0  Q   R 64 + 8 [cat]
  8,0    0        8     0.000007000     0  Q  DS 4096 + 2048 [fstrim]
  8,0    0        9     0.000008000     0  Q FWS [sync]
  8,0    0       10     0.000009000     0  C   W 223490 + 24 [0]
  8,0    0       11     0.000010000     0  Q   W nonsense + 8 [x]
CPU0 (sda):
 Reads Queued:           1,        4KiB  Writes Queued:          2,       12KiB

Total (sda):
 Reads Queued:           1,        4KiB  Writes Queued:          2,       12KiB
Events (sda): 11 entries
Skips: 0 forward (0 -   0.0%)
";

#[test]
fn blkparse_is_read_one_action_at_a_time() {
    let (records, reader) = detected(BLKPARSE);
    assert_eq!(reader.format(), TraceFormat::Blkparse);
    let wanted = [
        record(0, 0, TraceOp::Write, 223_490 * 512, 4096),
        record(3000, 0, TraceOp::Write, 223_498 * 512, 8192),
        record(6000, 1, TraceOp::Read, 64 * 512, 4096),
        record(7000, 0, TraceOp::Trim, 4096 * 512, 1 << 20),
        record(8000, 0, TraceOp::Flush, 0, 0),
    ];
    assert_eq!(records, wanted);
    assert_eq!(reader.devices(), &["8,0", "8,16"]);
    assert_eq!(reader.problems().count, 1);
    assert_eq!((reader.problems().shown[0].line, reader.problems().shown[0].problem), (11, Problem::Offset));
    let options = ReadOptions { action: BlkparseAction::Issued, ..Default::default() };
    assert_eq!(read(BLKPARSE, &options).0, [record(0, 0, TraceOp::Write, 223_490 * 512, 12288)]);
}

#[test]
fn blkreplay_is_read_after_its_prose() {
    let (records, reader) = detected(
        "Copyright somebody\n\nNothing; is what; it; says\n#####\nINFO: action_char=Q\n\
         start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n\
         more prose\n\
         \x20     0.100000000 ;     37766853 ;   64 ; W ; 0.0 ; 0.0\n\
         \x20     0.549518165 ;     37766917 ;   14 ;RA ; 0.0 ; 0.0\nprose at last\n",
    );
    assert_eq!(reader.format(), TraceFormat::Blkreplay);
    assert_eq!(records[0], record(0, 0, TraceOp::Write, 37_766_853 * 512, 32768));
    assert_eq!(records[1], record(449_518_165, 0, TraceOp::Read, 37_766_917 * 512, 7168));
    let lines: Vec<u64> = reader.problems().shown.iter().map(|shown| shown.line).collect();
    assert_eq!(lines, [3, 10], "prose that looks like a request, and prose after the first one, is shown");
}

fn srt_record(version: u32, kind: u32, micros: u32, flags: u32) -> Vec<u8> {
    srt_record_of(0x0100, version, kind, micros, flags)
}

fn srt_record_of(device: u32, version: u32, kind: u32, micros: u32, flags: u32) -> Vec<u8> {
    let words = 13 + version.clamp(3, 6) - 3 + u32::from(kind == 4);
    let mut record =
        vec![words * 4, version << 16 | kind, 100, micros, 0, 9, 8192, 77, device, 1, 2, flags, 3];
    record.resize(words as usize, 0);
    record.into_iter().flat_map(u32::to_be_bytes).collect()
}

#[test]
fn hp_srt_is_read_with_and_without_its_head() {
    let records = [srt_record(4, 1, 5, 1), srt_record(4, 4, 6, 0), srt_record(2, 1, 7, 0x100)].concat();
    let head = b"HP Labs trace\ntracedate\t= \"Thu Feb 20 00:00:01 1992\";\n\x0c".to_vec();
    for bytes in [records.clone(), [head, records].concat()] {
        let (records, reader) = read(bytes, &ReadOptions::default());
        assert_eq!(reader.format(), TraceFormat::Srt);
        let wanted =
            [record(0, 0, TraceOp::Read, 77 * 512, 8192), record(2000, 0, TraceOp::Write, 77 * 512, 8192)];
        assert_eq!(records, wanted);
        assert_eq!(
            (reader.problems().count, reader.problems().other_lines),
            (0, 1),
            "the suspect one is left out"
        );
    }
    let newer = [srt_record(4, 1, 5, 1), srt_record(7, 1, 5, 1)].concat();
    let (records, reader) = read(newer, &ReadOptions::default());
    assert_eq!(records.len(), 1);
    assert_eq!(reader.problems().kinds, [(Problem::Version, 1)].into());
}

#[test]
fn hp_srt_has_the_sectors_of_its_head_and_one_device_for_all_sections_of_a_disk() {
    let disks = [0x0710_0301u32, 0x0710_0302, 0x0710_0401];
    let record_of = |(at, disk): (usize, &u32)| srt_record_of(*disk, 5 + at as u32 % 2, 1, at as u32, 1);
    let records: Vec<u8> = disks.iter().enumerate().flat_map(record_of).collect();
    for (says, bytes) in [
        ("sectorsize\t= \"1024\";", 1024),
        ("sector_size = 256;", 256),
        ("Sector Size = 2048", 2048),
        ("sectorsize = 77;", 512),
        ("sectors = 1024;", 512),
    ] {
        let head = format!("HP Labs trace\ntracedate\t= \"Thu Feb 20 00:00:01 1992\";\n{says}\n\x0c");
        let (found, reader) = read([head.into_bytes(), records.clone()].concat(), &ReadOptions::default());
        assert_eq!(reader.devices(), ["0x07100300", "0x07100400"], "{says}");
        let devices: Vec<u32> = found.iter().map(|record| record.device).collect();
        assert_eq!(devices, [0, 0, 1], "{says}");
        assert!(found.iter().all(|record| record.offset == 77 * bytes), "{says}: {found:?}");
    }
}

#[test]
fn disksim_is_read() {
    let (records, reader) = detected(
        "# time devno blkno bcount flags\n0.000000 0 8 4 1\n1.5 1 16 1 0\n\n2.000001\t0 24 2 0x3\n3.0 0 x 2 1\n",
    );
    assert_eq!(reader.format(), TraceFormat::DiskSim);
    let wanted = [
        record(0, 0, TraceOp::Read, 8 * 512, 2048),
        record(1_500_000, 1, TraceOp::Write, 16 * 512, 512),
        record(2_000_001, 0, TraceOp::Read, 24 * 512, 1024),
    ];
    assert_eq!(records, wanted);
    assert_eq!(reader.problems().kinds, [(Problem::Offset, 1)].into());
}

fn vscsi_record(version: u8, command: u16, micros: u64, block: u64, length: u32) -> Vec<u8> {
    let (version_field, serial, segments) = (u16::from(version) << 8 | 5, 1u32, 1u32);
    let mut bytes = Vec::new();
    if version == 1 {
        for word in [serial, length, segments] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(command.to_le_bytes());
        bytes.extend(version_field.to_le_bytes());
    } else {
        bytes.extend(command.to_le_bytes());
        bytes.extend(version_field.to_le_bytes());
        for word in [serial, length, segments] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.extend(block.to_le_bytes());
    bytes.extend(micros.to_le_bytes());
    if version == 2 {
        bytes.extend(44u64.to_le_bytes());
    }
    bytes
}

#[test]
fn cloudphysics_is_read_in_both_versions() {
    for version in [1, 2] {
        let records = [
            vscsi_record(version, 0x2a, 1000, 8, 4096),
            vscsi_record(version, 0x00, 1001, 0, 0),
            vscsi_record(version, 0x88, 1002, 1 << 33, 512),
        ];
        let mut bytes = records.concat();
        bytes.extend([0; 7]);
        let (records, reader) = read(bytes, &ReadOptions::default());
        assert_eq!(reader.format(), TraceFormat::Vscsi);
        let wanted =
            [record(0, 0, TraceOp::Write, 4096, 4096), record(2000, 0, TraceOp::Read, (1 << 33) * 512, 512)];
        assert_eq!(records, wanted);
        assert_eq!(reader.problems().kinds, [(Problem::CutOff, 1)].into());
    }
}

#[test]
fn bad_lines_are_counted_with_their_numbers_and_not_guessed() {
    let long = "9".repeat(5000);
    let text = format!(
        "t_ns,dev,op,offset_bytes,length_bytes\n0,0,W,0,512\n-1,0,W,0,512\n2,0,X,0,512\n3,0,W,0x10,512\n4,0,W,0,2000000000\n5,0,W\n{long}\n6,0,W,512,512\n"
    );
    let (records, reader) = detected(&text);
    assert_eq!(records.len(), 2);
    let found: Vec<(u64, Problem)> =
        reader.problems().shown.iter().map(|shown| (shown.line, shown.problem)).collect();
    use Problem::*;
    assert_eq!(found, [(3, Time), (4, Operation), (5, Offset), (6, Length), (7, Fields), (8, LongLine)]);
    assert_eq!((reader.problems().count, reader.problems().other_lines), (6, 1));
}

#[test]
fn request_that_is_too_late_is_a_problem() {
    let mut text = String::new();
    for n in 0..70_000u64 {
        text.push_str(&format!("{},0,W,0,512\n", 1_000_000 + n));
    }
    text.push_str("5,0,W,0,512\n");
    let (records, reader) = detected(&text);
    assert_eq!(records.len(), 70_000);
    assert_eq!(reader.problems().kinds, [(Problem::Late, 1)].into());
    assert_eq!(reader.problems().shown[0].line, 70_001);
}

#[test]
fn what_is_no_trace_is_refused() {
    for bytes in [&b""[..], b"\n\n", b"hello world\n", &[0; 100], &[0xff; 5000]] {
        let opened = TraceReader::open(std::io::Cursor::new(bytes.to_vec()), &ReadOptions::default());
        assert!(matches!(opened.err(), Some(TraceError::UnknownFormat)));
    }
}

#[test]
fn seconds_are_not_rounded() {
    use crate::import::seconds;
    assert_eq!(seconds("0.449518165"), Some(449_518_165));
    assert_eq!(seconds("12"), Some(12_000_000_000));
    assert_eq!(seconds("1.5"), Some(1_500_000_000));
    assert_eq!(seconds("1.0000000019"), Some(1_000_000_001));
    assert_eq!(
        [seconds(""), seconds("."), seconds("-1.0"), seconds("1e3"), seconds("99999999999")],
        [None; 5]
    );
    let csv: &mut dyn Lines = &mut *import::lines(TraceFormat::Csv, BlkparseAction::Queued).unwrap();
    assert!(matches!(csv.line("1,0,F,0,0", &mut Devices::default()), Ok(Line::Request(_))));
}

/// Times of two requests further apart than any trace is long: one of them is invalid.
#[test]
fn time_that_no_trace_reaches_is_a_problem_of_its_line() {
    let text = "0,a,W,0,4096\n1000000000,a,W,0,4096\n9223372036854775807,a,W,0,4096\n9300000000000000000,a,D,0,4096\n\
                18446744073709551615,a,W,0,4096\n";
    let (records, reader) = detected(text);
    assert_eq!(records.iter().map(|record| record.at_ns).collect::<Vec<_>>(), [0, 1_000_000_000]);
    assert_eq!(reader.problems().kinds, [(Problem::Time, 3)].into());
    assert_eq!(reader.problems().shown.iter().map(|shown| shown.line).collect::<Vec<_>>(), [3, 4, 5]);
    let open = || TraceReader::open(std::io::Cursor::new(text), &ReadOptions::default()).unwrap();
    let report = Analysis::of(&mut open(), AnalyseOptions::default(), &mut |_| {}).unwrap();
    assert_eq!((report.requests, report.duration_s), (2, 1.0));
    assert_eq!(report.mirror_pct.get("1min").unwrap().blocks_transferred, 1);
}
