//! Traces: heads and frames come back, damaged and newer ones are refused.

use proptest::prelude::*;

use super::bounds::{Change, check};
use super::*;
use crate::trace::*;

fn frame() -> TraceFrame {
    TraceFrame {
        kind: TraceFrameKind::Records,
        packed: true,
        sequence: 3,
        records: 9,
        plain_bytes: 100,
        stored_bytes: 60,
        first_ns: 77,
        content_crc: 5,
    }
}

/// The one that names the device.
fn frame_of_a_device() -> TraceFrame {
    TraceFrame {
        kind: TraceFrameKind::Device,
        packed: false,
        records: 0,
        plain_bytes: 7,
        stored_bytes: 7,
        ..frame()
    }
}

#[test]
fn head_of_a_trace_comes_back_and_no_flipped_bit_passes() {
    let head = TraceHeader { began_ns: 99 };
    let bytes = head.to_bytes();
    assert_eq!(TraceHeader::parse(&bytes), Ok(head));
    assert_eq!(size_of_val(&bytes), document::size("trace::RawTraceHeader"));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(TraceHeader::parse(&bytes).is_err(), "bit {bit}");
    }
    let mut bytes = bytes;
    bytes[document::field("trace::RawTraceHeader", "version").0] = 2;
    let newer =
        FormatError::Version { structure: Structure::TraceHeader, found: 2, supported: TRACE_VERSION };
    assert_eq!(TraceHeader::parse(&bytes), Err(newer));
    assert_eq!(TraceHeader::parse(&[0; 64]), Err(FormatError::Magic(Structure::TraceHeader)));
}

#[test]
fn frame_of_a_trace_comes_back_and_no_flipped_bit_passes() {
    let kinds = [
        frame(),
        frame_of_a_device(),
        TraceFrame {
            kind: TraceFrameKind::End,
            packed: false,
            records: 0,
            plain_bytes: 8,
            stored_bytes: 8,
            ..frame()
        },
    ];
    for frame in kinds {
        let bytes = frame.to_bytes();
        assert_eq!(TraceFrame::parse(&bytes), Ok(frame));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(TraceFrame::parse(&bytes).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn frame_of_a_trace_is_bounded() {
    let impossible = [
        TraceFrame { records: 0, ..frame() },
        TraceFrame { records: TRACE_FRAME_RECORDS_MAX + 1, ..frame() },
        TraceFrame { plain_bytes: TRACE_FRAME_BYTES_MAX as u32 + 1, ..frame() },
        TraceFrame { stored_bytes: TRACE_FRAME_BYTES_MAX as u32 + 1, ..frame() },
        TraceFrame { packed: false, ..frame() },
        TraceFrame { kind: TraceFrameKind::End, ..frame() },
        TraceFrame {
            kind: TraceFrameKind::Device,
            packed: false,
            records: 0,
            plain_bytes: 4,
            stored_bytes: 4,
            ..frame()
        },
    ];
    for frame in impossible {
        let refused = TraceFrame::parse(&frame.to_bytes());
        assert!(matches!(refused, Err(FormatError::Field { .. })), "{frame:?}: {refused:?}");
    }
}

#[test]
fn numbers_of_a_frame_are_bounded() {
    let reread = |frame: &TraceFrame| TraceFrame::parse(&frame.to_bytes());
    const BYTES: u32 = TRACE_FRAME_BYTES_MAX as u32;
    const NAME: u32 = TRACE_NAME_MAX as u32;
    fn plain(frame: &mut TraceFrame, bytes: u32) {
        (frame.plain_bytes, frame.stored_bytes) = (bytes, bytes);
    }
    let records: &[Change<TraceFrame>] = &[
        (|it| it.records = 1, None),
        (|it| it.records = TRACE_FRAME_RECORDS_MAX, None),
        (|it| it.plain_bytes = BYTES, None),
        (|it| it.stored_bytes = BYTES, None),
        (|it| (it.packed, it.plain_bytes) = (false, it.stored_bytes), None),
        (|it| (it.packed, it.plain_bytes) = (false, it.stored_bytes + 1), Some("length")),
    ];
    check(&frame(), reread, records);
    let device = frame_of_a_device();
    let names: &[Change<TraceFrame>] = &[
        (|it| plain(it, 5), None),
        (|it| plain(it, 4), Some("count")),
        (|it| plain(it, 4 + NAME), None),
        (|it| plain(it, 5 + NAME), Some("count")),
        (|it| it.records = 1, Some("count")),
        (|it| it.packed = true, Some("count")),
    ];
    check(&device, reread, names);
    let end = TraceFrame { kind: TraceFrameKind::End, plain_bytes: 8, stored_bytes: 8, ..device };
    let ends: &[Change<TraceFrame>] = &[
        (|it| plain(it, 7), Some("count")),
        (|it| plain(it, 9), Some("count")),
        (|it| it.records = 1, Some("count")),
        (|it| it.packed = true, Some("count")),
    ];
    check(&end, reread, ends);
}

#[test]
fn bytes_of_a_trace_that_mean_nothing_are_refused() {
    let seal = |bytes: &mut [u8]| {
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
    };
    for field in ["reserved", "reserved_end"] {
        let (offset, count) = document::field("trace::RawTraceHeader", field);
        for at in offset..offset + count {
            let mut bytes = TraceHeader { began_ns: 99 }.to_bytes();
            bytes[at] = 1;
            seal(&mut bytes);
            assert!(matches!(TraceHeader::parse(&bytes), Err(FormatError::Field { .. })), "{at}");
        }
    }
    for (field, refused) in [("packed", "flag"), ("reserved", "flag"), ("kind", "kind")] {
        let mut bytes = frame().to_bytes();
        bytes[document::field("trace::RawTraceFrame", field).0] = 4;
        seal(&mut bytes);
        let expected = FormatError::Field { structure: Structure::TraceFrame, field: refused };
        assert_eq!(TraceFrame::parse(&bytes), Err(expected));
    }
    let mut bytes = frame().to_bytes();
    bytes[0] ^= 1;
    seal(&mut bytes);
    assert_eq!(TraceFrame::parse(&bytes), Err(FormatError::Magic(Structure::TraceFrame)));
}

fn record(op: TraceOp, offset: u64, length: u64) -> TraceRecord {
    TraceRecord { at_ns: 9, device: 3, op, offset, length }
}

#[test]
fn requests_of_a_trace_are_bounded() {
    const PLACE: u64 = TRACE_OFFSET_MAX;
    const LENGTH: u64 = TRACE_LENGTH_MAX;
    for (record, is_valid) in [
        (record(TraceOp::Read, PLACE - LENGTH, LENGTH), true),
        (record(TraceOp::Write, 0, LENGTH + 1), false),
        (record(TraceOp::Read, 0, LENGTH + 1), false),
        (record(TraceOp::Trim, 0, PLACE), true),
        (record(TraceOp::Zeroes, 1, PLACE), false),
        (record(TraceOp::Zeroes, PLACE - 1, 1), true),
        (record(TraceOp::Zeroes, PLACE, 0), false),
        (record(TraceOp::Flush, 0, 0), true),
        (record(TraceOp::Flush, 1, 0), false),
        (record(TraceOp::Flush, 0, 1), false),
        (TraceRecord { device: TRACE_DEVICES_MAX - 1, ..record(TraceOp::Read, 0, 1) }, true),
        (TraceRecord { device: TRACE_DEVICES_MAX, ..record(TraceOp::Read, 0, 1) }, false),
    ] {
        assert_eq!(record.is_valid(), is_valid, "{record:?}");
        // An invalid record is not read either.
        let mut bytes = Vec::new();
        TraceDelta::at(4).encode(&record, &mut bytes);
        let read = TraceDelta::at(4).decode(&mut &bytes[..]);
        assert_eq!(read.ok(), is_valid.then_some(record), "{record:?}");
    }
}

#[test]
fn request_of_a_trace_is_a_few_bytes_and_said_in_one_way_only() {
    let mut state = TraceDelta::at(9);
    let mut bytes = Vec::new();
    // It continues to write, on the device that a frame begins with: the operation, and the time
    // since.
    let first = TraceRecord { device: 0, ..record(TraceOp::Write, 0, 4096) };
    state.encode(&first, &mut bytes);
    let next = TraceRecord { at_ns: 12, offset: 4096, ..first };
    state.encode(&next, &mut bytes);
    assert_eq!(bytes, [0b10_1001, 0, 0x80, 0x20, 0b11_1001, 3]);
    let decode = |bytes: &[u8]| {
        let (mut rest, mut state) = (bytes, TraceDelta::at(9));
        let read = std::iter::from_fn(|| (!rest.is_empty()).then(|| state.decode(&mut rest)));
        read.collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(decode(&bytes), Ok(vec![first, next]));
    for (what, wrong) in [
        ("an unknown operation", &[0b11_1101, 0][..]),
        ("an unknown flag", &[0b0111_1100, 0]),
        ("a longer number than need be", &[0b11_1100, 0x80, 0]),
        ("a number of more than 64 bits", &[0b11_1100, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]),
        ("a number without an end", &[0b11_1100, 0x80]),
        ("a number of eleven bytes", &[0b11_1100, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 1]),
        ("a time past the last one", &[0b11_1100, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ("the device of before, named", &[0b11_0100, 0, 0]),
        ("the offset of before, named", &[0b01_1100, 0, 0]),
        ("the length of before, named", &[0b10_1001, 0, 0]),
    ] {
        assert!(decode(wrong).is_err(), "{what}");
    }
    assert!(decode(&[0b11_1100, 0]).is_ok(), "a flush");
}

fn any_record() -> impl Strategy<Value = TraceRecord> {
    let ops = [TraceOp::Read, TraceOp::Write, TraceOp::Trim, TraceOp::Zeroes, TraceOp::Flush];
    (0u64..1 << 56, 0u32..3, 0usize..5, 0..TRACE_OFFSET_MAX / 2, 0u32..31, any::<[bool; 2]>()).prop_map(
        move |(at_ns, device, op, offset, shift, [small, long])| {
            let op = ops[op];
            let length = if long { (1 << shift) - 1 } else { 1 << shift };
            let (offset, length) = match op {
                TraceOp::Flush => (0, 0),
                _ => (if small { offset % 9000 } else { offset }, length),
            };
            TraceRecord { at_ns, device, op, offset, length }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn requests_of_a_trace_come_back(
        records in prop::collection::vec((any_record(), any::<[bool; 2]>()), 1..20),
    ) {
        let mut records = records;
        records.sort_by_key(|(record, _)| record.at_ns);
        let mut all: Vec<TraceRecord> = Vec::new();
        for (mut record, [goes_on, same_length]) in records {
            if let (Some(last), true) = (all.last(), record.op != TraceOp::Flush) {
                record.length = if same_length { last.length.min(TRACE_LENGTH_MAX) } else { record.length };
                record.offset = if goes_on { last.offset + last.length } else { record.offset };
            }
            all.push(record);
        }
        let (mut bytes, mut state) = (Vec::new(), TraceDelta::at(all[0].at_ns));
        for record in &all {
            prop_assert!(record.is_valid());
            state.encode(record, &mut bytes);
        }
        let (mut rest, mut state, mut read) = (&bytes[..], TraceDelta::at(all[0].at_ns), Vec::new());
        while !rest.is_empty() {
            read.push(state.decode(&mut rest).expect("it was written"));
        }
        prop_assert_eq!(read, all);
    }

    #[test]
    fn any_bytes_of_a_trace_are_refused_or_written_the_same(bytes in prop::collection::vec(any::<u8>(), 1..40)) {
        let (mut rest, mut reader, mut writer) = (&bytes[..], TraceDelta::at(5), TraceDelta::at(5));
        let mut again = Vec::new();
        while let Ok(record) = reader.decode(&mut rest) {
            writer.encode(&record, &mut again);
            prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
        }
    }
}
