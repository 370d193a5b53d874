//! The cost of an opening.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use cairn_device::{Extent, Geometry, Operation, Request};

/// A store that counts its reads.
struct Counted {
    inner: MemoryDevice,
    reads: AtomicU64,
}

impl Device for Counted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let reads = batch.iter().filter(|operation| matches!(operation.request(), Request::Read { .. }));
        self.reads.fetch_add(reads.count() as u64, Ordering::Relaxed);
        self.inner.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

#[test]
fn opening_reads_the_contents_of_a_record_together_and_finds_every_one() {
    const BLOCKS: u64 = 5000;
    let origin = Arc::new(MemoryDevice::new(BLOCKS * 512));
    let store = Arc::new(Counted { inner: MemoryDevice::new(64 * MIB), reads: AtomicU64::new(0) });
    let open = open_options(&clock(), 8 * MIB);
    let options = options(Placement::Logging, Granularity::EveryWrite, 512);
    let history = History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
    let content = |block: u64| [(block % 251) as u8 + 1; 512];
    for block in 0..BLOCKS {
        // In no order of blocks.
        let block = block * 1237 % BLOCKS;
        history.write(block * 512, Segments::copy_of(&content(block))).expect("a write");
    }
    // No later record states that these are durable: an opening has to check that all of them are
    // present.
    history.flush().expect("a flush");
    drop(history);
    let before = store.reads.load(Ordering::Relaxed);
    let history = History::open(origin, store.clone(), open).expect("it opens");
    let reads = store.reads.load(Ordering::Relaxed) - before;
    assert!(reads < BLOCKS / 10, "{reads} reads for {BLOCKS} versions");
    assert_eq!(history.status().versions, BLOCKS);
    for block in 0..BLOCKS {
        let found = bytes(&*history, block * 512, 512).expect("a read");
        assert!(found == content(block), "block {block}");
    }
}
