//! Opening the devices of a volume.

use std::sync::mpsc;

use super::*;

#[test]
fn device_of_a_server_that_is_still_dying_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("volume.img");
    let held = FileDevice::create(&path, 1 << 20).expect("a file can be made");
    let (starting, started) = mpsc::channel();
    let opening = std::thread::spawn(move || {
        starting.send(()).expect("the test waits");
        open_when_free(&path, BUSY_PATIENCE).map(drop)
    });
    started.recv().expect("the thread starts");
    drop(held);
    opening.join().expect("it does not panic").expect("it opens when the lock is gone");
}
