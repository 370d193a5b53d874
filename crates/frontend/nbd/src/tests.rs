//! Tests of the parts that need no socket.

use cairn_base::Rng;
use cairn_device::{Device, DeviceError, MemoryDevice, Request, Segments};

use crate::address::Address;
use crate::payload::Payload;
use crate::unaligned::{inward, is_aligned, outward, run};

#[test]
fn payloads_stand_in_their_blocks_where_the_device_has_them() {
    let mut rng = Rng::new(1);
    for (offset, length) in [(0, 4096), (1, 4096), (4095, 2), (8192, 3 << 20), (100, 50), (4000, 200_000)] {
        let mut bytes = vec![0; length as usize];
        rng.fill(&mut bytes);
        let mut payload = Payload::new(offset, length);
        // In turn by copying and by vectors, in pieces of any size, with bytes of the next request behind.
        let mut at = 0;
        while payload.missing() > 0 {
            let piece = (1 + rng.below(70_000) as usize).min(payload.missing());
            if rng.one_in(2) {
                assert_eq!(payload.fill(&bytes[at..at + piece]), piece);
                at += piece;
                continue;
            }
            let mut vectors = Vec::new();
            payload.vectors(&mut vectors);
            let mut left = &bytes[at..at + piece];
            let mut received = 0;
            for vector in &mut vectors {
                let now = vector.len().min(left.len());
                vector[..now].copy_from_slice(&left[..now]);
                left = &left[now..];
                received += now;
            }
            drop(vectors);
            at += received;
            let behind = if payload.missing() == received { 3 } else { 0 };
            assert_eq!(payload.received(received + behind), behind);
        }
        let data = payload.finish();
        assert_eq!(data.to_vec(), bytes);
        let mut place = offset as usize;
        for segment in data.iter() {
            let next = (place / 4096 + 1) * 4096;
            assert_eq!(segment.len(), (next - place).min(offset as usize + bytes.len() - place));
            place += segment.len();
        }
    }
}

#[test]
fn stretches_grow_outward_and_shrink_inward() {
    assert_eq!(outward(4096, 1, 1), (0, 4096));
    assert_eq!(outward(4096, 4095, 2), (0, 8192));
    assert_eq!(outward(1, 5, 7), (5, 7));
    assert_eq!(inward(4096, 1, 8191), (4096, 4096));
    assert_eq!(inward(4096, 1, 100).1, 0);
    assert!(is_aligned(1, 3, 5) && !is_aligned(512, 512, 5));
}

#[test]
fn partial_writes_change_only_their_bytes() -> Result<(), DeviceError> {
    let device = MemoryDevice::new(64 << 10);
    let mut model = vec![7; 64 << 10];
    device.write_from(0, &model)?;
    let mut rng = Rng::new(2);
    for _ in 0..200 {
        let offset = rng.below(64 << 10);
        let length = 1 + rng.below((64 << 10) - offset);
        let range = offset as usize..(offset + length) as usize;
        if rng.one_in(2) {
            rng.fill(&mut model[range.clone()]);
            let data = Segments::copy_of(&model[range]);
            run(&device, 4096, &Request::Write { offset, data, fua: false })?;
        } else {
            model[range].fill(0);
            run(&device, 4096, &Request::WriteZeroes { offset, length, may_trim: true, fua: false })?;
        }
        assert!(device.read(0, 64 << 10)?.to_vec() == model);
    }
    Ok(())
}

#[test]
fn addresses_read_as_they_are_written() {
    for text in ["127.0.0.1:10809", "[::1]:0", "host.example:1", "unix:/run/x.sock", "unix:relative"] {
        assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(text));
    }
    for text in ["", "unix:", "10809", ":1", "host:", "host:99999"] {
        assert!(text.parse::<Address>().is_err(), "{text:?}");
    }
}
