//! Images that come and go.

use cairn_base::{ManualClock, Timestamp, VolumeId};
use cairn_device::MemoryDevice;
use cairn_files::New;
use cairn_volume::{FormatOptions, OpenOptions, Role};

use super::*;

/// A mirror that alternates between two images.
struct Alternating {
    images: Mutex<Vec<Image>>,
    volume: Arc<Volume>,
}

impl Follows for Alternating {
    fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn image(&self) -> Result<Option<Image>, TreeError> {
        let mut images = self.images.lock();
        images.rotate_left(1);
        Ok(images.first().cloned())
    }
}

/// A mirror that follows continuously has five a second.
#[test]
fn mount_moves_on_also_after_more_images_than_it_has_numbers_for() {
    const BLOCKS: u64 = 4096;
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).unwrap();
    let volume = Volume::open(device, OpenOptions { cache_bytes: 8 << 20, clock }).unwrap();
    let tree = Tree::open(volume.clone()).unwrap();
    let images = ["first", "second"].map(|name| {
        tree.make(tree.root(), name.as_bytes(), &New { mode: 0o100_644, ..New::default() }).unwrap();
        let snapshot = volume.create_snapshot(name).unwrap();
        volume.image(Some(snapshot.id)).unwrap()
    });
    let follows = Alternating { images: Mutex::new(images.into()), volume };
    let shown = Shown::new(View::Following(Arc::new(follows))).unwrap();
    // A program works in the first one all the time.
    let (_, worked_in) = shown.find(crate::abi::FUSE_ROOT_ID).unwrap();
    let worked_in = worked_in.unwrap();
    let file = worked_in.tree.lookup(worked_in.tree.root(), b"first").unwrap();
    let number = Node { slot: worked_in.number, file: file.file }.number().unwrap();
    shown.entry(&worked_in, &file).unwrap();
    shown.slots.write().given = SNAPSHOTS - 4;
    for _ in 0..6 {
        assert!(shown.follow().unwrap().is_some(), "it moves on");
        let (_, root) = shown.find(crate::abi::FUSE_ROOT_ID).unwrap();
        assert_ne!(root.unwrap().number, worked_in.number, "a number that the kernel knows is of one image");
        let (_, still) = shown.find(number).unwrap();
        assert!(Arc::ptr_eq(&still.unwrap(), &worked_in));
    }
}
