//! Tests of the parts that need no socket.

use cairn_base::Rng;
use cairn_device::{Device, DeviceError, MemoryDevice, Request, Segments};

use crate::address::Address;
use crate::unaligned::{inward, is_aligned, outward, run};

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
    let ticket = cairn_device::Gate::new(Box::new(|_| false)).ticket(0);
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
            run(&device, 4096, &Request::Write { offset, data, fua: false }, &ticket)?;
        } else {
            model[range].fill(0);
            let request = Request::WriteZeroes { offset, length, may_trim: true, fua: false };
            run(&device, 4096, &request, &ticket)?;
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
