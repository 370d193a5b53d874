//! Traces: heads and frames come back, damaged and newer ones are refused.

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
        TraceFrame {
            kind: TraceFrameKind::Device,
            packed: false,
            records: 0,
            plain_bytes: 7,
            stored_bytes: 7,
            ..frame()
        },
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
