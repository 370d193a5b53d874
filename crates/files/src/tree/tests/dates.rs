//! The times that a dump uses to find changes since the moment of a snapshot.

use cairn_device::{Geometry, Operation};
use parking_lot::Mutex;

use super::*;

/// A device that calls a function before it reads, once.
struct Interrupting {
    device: MemoryDevice,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Interrupting {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let reads = batch.iter().any(|operation| !operation.request().is_mutation() && !operation.is_flush());
        let before = if reads { self.before.lock().take() } else { None };
        before.into_iter().for_each(|before| before());
        self.device.run(batch);
    }
}

#[test]
fn what_changes_while_a_snapshot_is_made_and_is_not_in_it_is_no_older() {
    let device = MemoryDevice::new(Volume::device_bytes(4096, Role::Normal));
    let device = Arc::new(Interrupting { device, before: Mutex::default() });
    format(&*device, 4096);
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("a tree is made");
    let file = tree.make(tree.root(), b"file", &FILE).expect("there is room").file;
    tree.write(file, 0, b"before").expect("there is room");
    tree.sync_all().expect("it flushes");
    drop(tree);
    // Nothing is in memory: the write reads the block that it changes a part of, and the snapshot
    // is made meanwhile.
    let tree = Tree::open(open_volume(&device, clock.clone())).expect("it opens");
    let volume = tree.volume().clone();
    let made = Arc::new(Mutex::new(None));
    let own = made.clone();
    *device.before.lock() = Some(Box::new(move || {
        clock.advance(Duration::from_secs(5));
        *own.lock() = Some(volume.create_snapshot("zero").expect("it is made"));
    }));
    tree.write(file, 0, b"after!").expect("there is room");
    let snapshot = made.lock().take().expect("it was made meanwhile");
    let image = tree.volume().image(Some(snapshot.id)).expect("it is there");
    let old = Tree::of_image(image).expect("it has a tree");
    assert_eq!(old.read(file, 0, 99).expect("it reads"), b"before");
    let changed = tree.stat(file).expect("it is there").changed_ns;
    assert!(
        changed >= snapshot.created.0.cast_signed(),
        "changed at {changed}, and whoever has the snapshot of {} asks for what changed since",
        snapshot.created.0
    );
    assert_whole(&tree);
}
