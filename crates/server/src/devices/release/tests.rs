//! Releases that stop in the middle, and resume.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cairn_api as api;
use cairn_base::{ByteSize, ManualClock, Timestamp};
use cairn_device::{Device, Segments};

use super::*;
use crate::volumes::Volumes;

const BLOCK: usize = 4096;

pub(in crate::devices) fn devices(folder: &Path) -> Devices {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    fs::create_dir_all(folder.join("volumes")).expect("a folder");
    let volumes =
        Volumes::open(folder.join("volumes"), ByteSize(16 << 20), clock.clone(), None).expect("no volumes");
    Devices::open(folder.join("devices"), clock, Arc::new(volumes)).expect("devices")
}

/// For a device of 16 blocks whose files are still to be created.
pub(in crate::devices) fn request(folder: &Path) -> api::AdoptDevice {
    let request = serde_json::json!({
        "name": "disk0",
        "origin": folder.join("disk.img"),
        "history": folder.join("store.img"),
        "size_bytes": 16 * BLOCK,
        "placement": "logging",
        "granularity": "every-write",
    });
    serde_json::from_value(request).expect("a request")
}

/// That device, each block filled with its number and flushed.
pub(in crate::devices) fn adopt(devices: &Devices, folder: &Path) -> Vec<u8> {
    devices.adopt(&request(folder)).expect("it is adopted");
    let content: Vec<u8> = (0..16 * BLOCK).map(|at| (at / BLOCK) as u8 + 100).collect();
    let open = devices.get("disk0").expect("it is open");
    open.history.write(0, Segments::copy_of(&content)).expect("a write");
    open.history.flush().expect("a flush");
    content
}

fn release(devices: &Devices) -> Result<(), ServerError> {
    let Some(open) = devices.begin_release("disk0")? else { return Ok(()) };
    assert!(devices.export("disk0").is_none(), "nobody opens it meanwhile");
    let shown = devices.list(&|_| Vec::new());
    assert_eq!(shown[0].problem.as_deref(), Some("it is being released"));
    devices.release(&open, &Progress::new(devices.clock.clone()))
}

/// Damages a block in the store.
fn damage(folder: &Path, byte: u8) {
    let path = folder.join("store.img");
    let bytes = fs::read(&path).expect("the store");
    let at =
        bytes.chunks(512).position(|piece| piece.iter().all(|found| *found == byte)).expect("its content");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("the store");
    file.write_all_at(&[1; 512], at as u64 * 512).expect("a write");
}

fn problem(devices: &Devices) -> Option<String> {
    devices.list(&|_| Vec::new()).first().expect("it is there").problem.clone()
}

#[test]
fn release_that_stopped_is_served_says_why_and_goes_on_when_asked_again() {
    for restarted in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut devices_of = devices(folder.path());
        let mut content = adopt(&devices_of, folder.path());
        damage(folder.path(), 105);
        assert!(release(&devices_of).is_err(), "a block of it is lost");
        if restarted {
            devices_of.end();
            drop(devices_of);
            devices_of = devices(folder.path());
        }
        let why = problem(&devices_of).expect("it says what stopped");
        assert!(why.contains("its release stopped") && why.contains("lost"), "{why}");
        assert!(
            devices_of.problems().iter().any(|problem| problem.next.contains("cairn device release disk0"))
        );
        // It is served as before, and mended by its client.
        let export = devices_of.export("disk0").expect("it is served");
        assert!(export.device.read(5 * BLOCK as u64, BLOCK as u32).is_err(), "nothing else takes its place");
        export.device.write(5 * BLOCK as u64, Segments::copy_of(&[7; BLOCK])).expect("a write");
        drop(export);
        content[5 * BLOCK..6 * BLOCK].fill(7);
        release(&devices_of).expect("it goes on");
        assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
        assert!(devices_of.list(&|_| Vec::new()).is_empty());
        assert!(devices(folder.path()).list(&|_| Vec::new()).is_empty(), "also after a restart");
    }
}

/// A release that an earlier server has begun: the content of the disk, and the device.
pub(in crate::devices) fn begun(folder: &Path) -> (Vec<u8>, Arc<OpenDevice>) {
    let devices = devices(folder);
    let content = adopt(&devices, folder);
    let open = devices.begin_release("disk0").expect("it begins").expect("there is something to do");
    open.end();
    (content, open)
}

#[test]
fn release_in_which_the_server_ended_is_told_at_the_start_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (content, open) = begun(folder.path());
    drop(open);
    let devices = devices(folder.path());
    let why = problem(&devices).expect("it says what stopped");
    assert!(why.contains("the server ended in the middle"), "{why}");
    release(&devices).expect("it goes on");
    assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
    assert!(devices.list(&|_| Vec::new()).is_empty());
}

#[test]
fn release_that_could_not_begin_leaves_the_device_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = devices(folder.path());
    let content = adopt(&devices, folder.path());
    let open = devices.begin_release("disk0").expect("it begins").expect("there is something to do");
    devices.stop_release(&open, &ServerError::Bug);
    drop(open);
    assert!(devices.export("disk0").is_some(), "it is served");
    release(&devices).expect("it goes on");
    assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
}

#[test]
fn device_whose_history_failed_is_opened_again_for_its_release() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = devices(folder.path());
    let content = adopt(&devices, folder.path());
    // As after a failed write: nothing is written any more before it is opened again.
    devices.get("disk0").expect("it is open").history.release(&|_, _| {}).expect("out of service");
    assert!(release(&devices).is_err(), "there is no history, and nobody had asked the server for a release");
    assert!(problem(&devices).expect("it is not open").contains("no history"));
    assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
}

#[test]
fn device_that_is_opened_again_for_its_release_keeps_its_clones_and_is_released_without_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = {
        let devices = devices(folder.path());
        let content = adopt(&devices, folder.path());
        let mark = api::CreateMark { name: "m".to_owned(), consistent: false };
        devices.get("disk0").expect("it is open").mark(&mark).expect("a mark");
        let instant = api::Instant::mark("m");
        let request = api::CreateView { name: Some("test".to_owned()), instant, writable: true };
        devices.show_instant("disk0", &request).expect("a clone");
        devices.end();
        content
    };
    // Its disk is missing at the start, and comes back.
    let (origin, away) = (folder.path().join("disk.img"), folder.path().join("away.img"));
    fs::rename(&origin, &away).expect("it is moved");
    let devices = devices(folder.path());
    assert!(problem(&devices).is_some(), "it is not open");
    fs::rename(&away, &origin).expect("it is moved back");
    assert!(release(&devices).is_err(), "what was written to the clone would be gone");
    assert!(devices.export("disk0@test").is_some(), "it is open again, and so is the clone");
    devices.hide_instant("disk0", "test").expect("it is given up");
    release(&devices).expect("nothing is in the way");
    assert_eq!(fs::read(&origin).expect("the origin"), content);
}

#[test]
fn another_store_is_not_taken_for_a_finished_release_because_one_had_stopped_once() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let devices = devices(folder.path());
        adopt(&devices, folder.path());
        damage(folder.path(), 105);
        assert!(release(&devices).is_err(), "a block of it is lost");
        devices.end();
    }
    let store = fs::OpenOptions::new().write(true).open(folder.path().join("store.img")).expect("the store");
    let length = store.metadata().expect("its length").len();
    store.set_len(0).and_then(|()| store.set_len(length)).expect("it is empty");
    drop(store);
    let devices = devices(folder.path());
    assert!(problem(&devices).expect("it is not open").contains("no history"));
    assert!(release(&devices).is_err(), "the origin lacks what the store had");
    assert_eq!(devices.list(&|_| Vec::new()).len(), 1);
}

#[test]
fn file_that_is_no_store_is_not_taken_for_what_a_finished_release_leaves() {
    let text = b"what somebody has put there while the disk was away";
    // A new disk in the place of a lost one has only zeroes, of any length.
    for (other, length) in [(&b""[..], 0), (text, 64 << 20), (b"", 64 << 20)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (content, open) = begun(folder.path());
        drop(open);
        let (store, aside) = (folder.path().join("store.img"), folder.path().join("aside"));
        fs::rename(&store, &aside).expect("it is moved");
        fs::write(&store, other).expect("a file");
        fs::OpenOptions::new()
            .write(true)
            .open(&store)
            .and_then(|file| file.set_len(length))
            .expect("a length");
        let before = devices(folder.path());
        assert!(problem(&before).expect("it is not open").contains("no history"));
        assert!(before.begin_release("disk0").is_err(), "what was written is in the store");
        before.end();
        drop(before);
        fs::rename(&aside, &store).expect("it is there again");
        let devices = devices(folder.path());
        release(&devices).expect("it goes on");
        assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
        assert!(devices.list(&|_| Vec::new()).is_empty());
    }
}

#[test]
fn device_that_comes_back_as_a_file_is_opened_when_nobody_writes_to_that_any_more() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let before = devices(folder.path());
    adopt(&before, folder.path());
    before.end();
    drop(before);
    for name in ["disk.img", "store.img"] {
        let (file, aside) = (folder.path().join(name), folder.path().join("aside"));
        fs::rename(&file, &aside).expect("it is moved");
        let devices = devices(folder.path());
        let is_open = || devices.get("disk0").is_ok();
        devices.open_waiting();
        assert!(!is_open(), "{name} is not there");
        fs::rename(&aside, &file).expect("it is moved");
        let written = |time: std::time::SystemTime| {
            let file = fs::OpenOptions::new().write(true).open(&file).expect("the file");
            file.set_modified(time).expect("a time");
            devices.open_waiting();
        };
        let now = std::time::SystemTime::now();
        // The other file has been left alone.
        for other in ["disk.img", "store.img"] {
            let other = fs::OpenOptions::new().write(true).open(folder.path().join(other)).expect("the file");
            other.set_modified(now - std::time::Duration::from_secs(60)).expect("a time");
        }
        written(now);
        assert!(!is_open(), "somebody writes to {name}");
        written(now - std::time::Duration::from_secs(60));
        assert!(is_open(), "{name}");
        devices.end();
    }
}
