//! Images in a bucket: every object that a reader may be given.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{ManualClock, Rng, Timestamp, VolumeId};
use cairn_bucket::images::{BucketImages, ImageId, ImageLabel, RegionBlocks, Tuning, fuzz};
use cairn_bucket::{Memory, Workers};

/// The bytes as each kind of object, as they came and with the checksum made right.
pub(crate) fn images(data: &[u8]) {
    fuzz(data);
}

struct Alone;

impl Workers for Alone {
    fn start(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// The objects of a small bucket, each kind once or more. Of a region there is only what a decoder
/// reads.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let memory = Arc::new(Memory::new(clock.clone(), clock));
    let tuning = Tuning { since_max: 1, progress: 1, ..Tuning::default() };
    let volume = VolumeId([7; 16]);
    let images =
        BucketImages::with_tuning(memory.clone(), Arc::new(Alone), volume, None, Rng::new(1), tuning);
    let cancel = Arc::new(AtomicBool::new(false));
    let mut owner = images.claim("a server", Timestamp(1), &cancel).expect("claimed");
    let mut base = None;
    for number in 1..=3_u8 {
        let id = ImageId([number; 16]);
        let update = owner.begin(base, id, &cancel).expect("begun");
        let mut blocks = RegionBlocks::new();
        blocks.push(usize::from(number), &[number; 4096]);
        update.put_region(u32::from(number), &blocks, &cancel).expect("put");
        let label = ImageLabel { id, number: u64::from(number), taken: Timestamp(1), blocks: 4096 };
        owner.commit(&update, label, b"table", Timestamp(1), &cancel).expect("committed");
        base = Some(id);
    }
    memory.names().iter().filter_map(|name| memory.raw(name)).map(|bytes| bytes.to_vec()).collect()
}
