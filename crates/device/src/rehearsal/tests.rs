//! Faults on purpose: their effects, and their limits.

use super::*;
use crate::MemoryDevice;

const BLOCKS: u64 = 64;

fn devices(faults: Faults) -> (Arc<MemoryDevice>, Arc<Rehearsal>, RehearsalDevice) {
    let below = Arc::new(MemoryDevice::new(BLOCKS * BLOCK));
    let rehearsal = Arc::new(Rehearsal::new(1));
    rehearsal.set(faults);
    let device = RehearsalDevice::new(below.clone(), rehearsal.clone());
    (below, rehearsal, device)
}

fn losing() -> Faults {
    Faults { lose_unflushed: true, ..Faults::default() }
}

fn first_byte(device: &dyn Device, block: u64) -> u8 {
    device.read(block * BLOCK, 4096).unwrap().to_vec()[0]
}

#[test]
fn device_under_rehearsal_passes_the_suite() {
    for faults in [Faults::default(), losing()] {
        crate::suite::run_suite(&|length| {
            let rehearsal = Arc::new(Rehearsal::new(1));
            rehearsal.set(faults);
            Arc::new(RehearsalDevice::new(Arc::new(MemoryDevice::new(length)), rehearsal))
        });
    }
}

#[test]
fn only_what_was_flushed_reaches_the_device_below() {
    let (below, rehearsal, device) = devices(losing());
    device.write_from(0, &[1; 8192]).unwrap();
    assert_eq!((first_byte(&device, 1), first_byte(&*below, 1)), (1, 0), "it is read, and not there");
    device.flush().unwrap();
    assert_eq!(first_byte(&*below, 1), 1);
    device.write_from(4096, &[2; 4096]).unwrap();
    let zero = Request::WriteZeroes { offset: 0, length: 4096, may_trim: true, fua: false };
    device.one(Operation::new(zero)).unwrap();
    assert_eq!(device.read(0, 8192).unwrap().to_vec()[4095..4097], [0, 2]);
    assert_eq!((first_byte(&*below, 0), first_byte(&*below, 1)), (1, 1));
    let fua = Request::Write { offset: 3 * BLOCK, data: Segments::copy_of(&[3; 4096]), fua: true };
    device.one(Operation::new(fua)).unwrap();
    assert_eq!(first_byte(&*below, 3), 3);
    device.write_from(5 * BLOCK, &[5; 4096]).unwrap();
    rehearsal.set(Faults::default());
    assert_eq!(first_byte(&device, 5), 5);
    assert_eq!(first_byte(&*below, 5), 5, "nothing is held back any more");
}

#[test]
fn failures_hit_what_they_are_meant_for() {
    let (_below, rehearsal, device) = devices(Faults { reads_one_in: 1, ..Faults::default() });
    device.write_from(0, &[1; 4096]).unwrap();
    assert!(matches!(device.read(0, 4096), Err(DeviceError::Io { action: Action::Read, .. })));
    rehearsal.set(Faults { flushes_one_in: 1, ..Faults::default() });
    assert!(matches!(device.flush(), Err(DeviceError::Io { action: Action::Flush, .. })));
    rehearsal.set(Faults { writes_one_in: 2, ..Faults::default() });
    let failed = (0..100).filter(|_| device.write_from(0, &[2; 4096]).is_err()).count();
    assert!((20..80).contains(&failed), "{failed} of 100");
    assert_eq!(rehearsal.failed(), failed as u64 + 2);
    rehearsal.set(Faults::default());
    device.flush().unwrap();
    assert_eq!(first_byte(&device, 0), 2);
}
