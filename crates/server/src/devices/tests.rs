//! The remains of a device's clones, of its store, and of its release after a kill.

use std::path::Path;

use std::os::unix::fs::FileExt;

use cairn_base::VolumeId;
use cairn_device::Segments;
use cairn_volume::Role;

use super::release::tests::{adopt, begun, devices, request};
use super::*;
use crate::storage::histories::STORE_MIN;
use crate::volumes::NewVolume;
use crate::volumes::error::VolumesError;

fn files(folder: &Path) -> Vec<String> {
    let listing = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> =
        listing.map(|found| found.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn new_volume<'a>(name: &'a str, devices: &'a [String]) -> NewVolume<'a> {
    let (id, role, blocks) = (VolumeId([7; 16]), Role::Normal, None);
    NewVolume { name, id, role, blocks, devices, log_device: None, history: None, beside: None }
}

fn clone(devices: &Devices, name: &str) -> Result<(), ServerError> {
    let instant = api::Instant::mark("m");
    let request = api::CreateView { name: Some(name.to_owned()), instant, writable: true };
    devices.show_instant("disk0", &request).map(drop)
}

fn marked(devices: &Devices) {
    let mark = api::CreateMark { name: "m".to_owned(), consistent: false };
    devices.get("disk0").expect("it is open").mark(&mark).expect("a mark");
}

#[test]
fn what_a_kill_leaves_of_a_clone_stands_in_nobodys_way_and_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    let content = adopt(&before, folder.path());
    marked(&before);
    // As a kill between its store and its document leaves it, of any version: the store of an
    // unknown clone.
    fs::write(folder.path().join("devices/disk0@try.store"), vec![7; 1 << 20]).expect("a file");
    clone(&before, "try").expect("it is made");
    let export = before.export("disk0@try").expect("it is exported");
    assert_eq!(export.device.read(0, content.len() as u32).expect("a read").to_vec(), content);
    export.device.write(0, Segments::copy_of(&[9; 4096])).expect("a write");
    export.device.flush().expect("a flush");
    clone(&before, "other").expect("it is made");
    drop(export);
    let document = folder.path().join("devices/disk0.json");
    assert_eq!(
        fs::read(state::previous(&document)).expect("a copy"),
        fs::read(&document).expect("a document"),
        "gone back to, it must not have a clone removed"
    );
    // A kill in the middle of making one, and of deleting one.
    let open = before.get("disk0").expect("it is open");
    let store = |clone: &str| folder.path().join(format!("devices/disk0@{clone}.store"));
    before.begin_clone(&open, "cut").expect("noted");
    fs::write(store("cut"), vec![7; 1 << 20]).expect("a file");
    assert!(before.forget_instant(&open, "other").expect("noted"), "it is a clone");
    assert!(store("other").exists());
    drop(open);
    before.end();
    drop(before);
    let after = devices(folder.path());
    assert!(!store("cut").exists() && !store("other").exists() && store("try").exists());
    assert!(fs::read_to_string(&document).expect("a document").contains("\"loose\": []"));
    let first = after.export("disk0@try").expect("it is exported").device.read(0, 4096).expect("a read");
    assert_eq!(first.to_vec(), vec![9; 4096], "what is whole stays");
    after.hide_instant("disk0", "other").expect_err("it is gone");
    after.hide_instant("disk0", "try").expect("it goes");
    assert_eq!(files(&folder.path().join("devices")), ["disk0.json", "disk0.json.old", "disk0.seen"]);
}

#[test]
fn generation_from_before_a_clone_was_whole_does_not_outlive_a_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    adopt(&before, folder.path());
    marked(&before);
    let document = folder.path().join("devices/disk0.json");
    let open = before.get("disk0").expect("it is open");
    before.begin_clone(&open, "try").expect("noted");
    let loose = fs::read(&document).expect("a document");
    drop(open);
    clone(&before, "try").expect("it is made");
    before.end();
    drop(before);
    // As a kill leaves it that comes right after the clone is noted.
    fs::write(state::previous(&document), loose).expect("a file");
    let after = devices(folder.path());
    let now = fs::read(&document).expect("a document");
    assert_eq!(
        fs::read(state::previous(&document)).expect("a copy"),
        now,
        "gone back to, it must not have a clone removed"
    );
    assert!(after.export("disk0@try").is_some());
}

#[test]
fn empty_file_is_a_store_that_a_kill_has_left_before_it_had_a_length() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["disk.img", "store.img"] {
        fs::write(folder.path().join(name), []).expect("a file");
    }
    let devices = devices(folder.path());
    let (plan, _) = devices.plan(&request(folder.path())).expect("a plan");
    assert_eq!(plan.origin_made_bytes, Some(16 * 4096), "what a second kill leaves is taken back as well");
    adopt(&devices, folder.path());
    assert!(fs::metadata(folder.path().join("store.img")).expect("the store").len() >= STORE_MIN);
}

#[test]
fn device_does_not_get_the_name_of_a_volume_whose_history_is_not_there_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    let store = folder.path().join("beneath.img");
    let wish: api::VolumeHistory =
        serde_json::from_value(serde_json::json!({ "store": store })).expect("a wish");
    let new = NewVolume { blocks: Some(4096), history: Some(&wish), ..new_volume("disk0", &[]) };
    before.volumes.create(&new).expect("a volume");
    before.volumes.end();
    drop(before);
    fs::rename(&store, folder.path().join("aside")).expect("it is moved");
    let after = devices(folder.path());
    assert!(after.volumes.get("disk0").is_err());
    let refused = after.adopt(&request(folder.path())).expect_err("`cairn history` would mean the other one");
    assert!(matches!(refused, ServerError::Taken { what: "volume", .. }), "{refused}");
    after.volumes.end();
}

/// A device without a history, on `disk.img`.
fn plain(folder: &Path) -> api::AdoptDevice {
    let (history, placement, granularity) = (None, None, None);
    api::AdoptDevice { history, placement, granularity, ..request(folder) }
}

#[test]
fn device_without_a_history_whose_disk_is_gone_for_good_can_be_released() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    before.adopt(&plain(folder.path())).expect("it is adopted");
    before.end();
    drop(before);
    fs::remove_file(folder.path().join("disk.img")).expect("it goes");
    let after = devices(folder.path());
    let problem = after.problems().pop().expect("it is told");
    assert!(problem.next.contains("cairn device release disk0"), "{}", problem.next);
    assert!(after.release_plain("disk0").expect("there is nothing of it"));
    assert!(after.list(&|_| Vec::new()).is_empty());
    assert_eq!(files(&folder.path().join("devices")), Vec::<String>::new());
}

#[test]
fn disk_of_a_device_that_is_not_open_is_taken_by_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    adopt(&before, folder.path());
    before.end();
    drop(before);
    let store = folder.path().join("store.img");
    fs::rename(&store, folder.path().join("aside")).expect("it is moved");
    let after = Arc::new(devices(folder.path()));
    after.volumes.also_ask(&after);
    assert!(after.get("disk0").is_err());
    // Also under another name of it, and if it begins with zeroes. Writes there would be missing in
    // its history.
    let disk = folder.path().join("disk.img");
    fs::File::options()
        .write(true)
        .open(&disk)
        .and_then(|file| file.write_all_at(&[0; 16 * 4096], 0))
        .expect("a write");
    std::os::unix::fs::symlink(&disk, folder.path().join("link")).expect("a link");
    for name in ["disk.img", "link"] {
        let path = folder.path().join(name);
        let origin = path.to_str().expect("a path").to_owned();
        let again =
            api::AdoptDevice { name: "other".to_owned(), origin, size_bytes: None, ..plain(folder.path()) };
        let refused = after.adopt(&again).expect_err("it is a device's");
        assert!(matches!(refused, ServerError::Volumes(VolumesError::ClaimedByDevice { .. })), "{refused}");
        let refused = after.volumes.refuse_if_claimed(&path).expect_err("it is a device's");
        assert!(matches!(refused, ServerError::Volumes(VolumesError::ClaimedByDevice { .. })), "{refused}");
    }
    fs::rename(folder.path().join("aside"), &store).expect("it is back");
    let entry = after.start("disk0", &state::load(&after.path("disk0")).expect("a document").expect("one"));
    assert!(entry.is_ok(), "nobody has it");
}

#[test]
fn disk_of_a_volume_that_is_not_open_is_not_adopted() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = devices(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    for name in ["one", "two"] {
        fs::File::create(path(name)).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    }
    let both = [path("one"), path("two")];
    before.volumes.create(&new_volume("vol0", &both)).expect("a volume");
    before.volumes.end();
    drop(before);
    fs::rename(path("one"), path("aside")).expect("it is moved");
    let after = devices(folder.path());
    assert!(after.volumes.get("vol0").is_err());
    let request = api::AdoptDevice { origin: path("two"), size_bytes: None, ..plain(folder.path()) };
    let refused = after.adopt(&request).expect_err("it is the volume's");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::DeviceClaimed { .. })), "{refused}");
    let store = api::AdoptDevice { history: Some(path("two")), ..self::request(folder.path()) };
    let refused = after.adopt(&store).expect_err("it is the volume's");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::DeviceClaimed { .. })), "{refused}");
    assert!(files(&folder.path().join("devices")).is_empty());
}

#[test]
fn adoption_that_is_refused_leaves_no_document_and_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store.img");
    fs::write(&store, vec![7; 1 << 20]).expect("a file");
    let devices = devices(folder.path());
    devices.adopt(&request(folder.path())).expect_err("the store is not empty");
    assert_eq!(files(&folder.path().join("devices")), Vec::<String>::new());
    assert!(!folder.path().join("disk.img").exists());
    assert!(fs::read(&store).expect("the store") == vec![7; 1 << 20], "it is somebody's");
}

#[test]
fn release_that_was_over_when_the_server_was_killed_leaves_no_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let (content, open) = begun(folder.path());
    open.history.release(&|_, _| {}).expect("it is released");
    drop(open);
    let of = folder.path().join("devices");
    // As kills of a server that writes a document leave them.
    for name in ["disk0.json.old.new", "disk0.new", "disk0.json.new"] {
        fs::write(of.join(name), "{").expect("a file");
    }
    let devices = devices(folder.path());
    assert!(devices.list(&|_| Vec::new()).is_empty());
    assert_eq!(files(&of), Vec::<String>::new());
    assert_eq!(fs::read(folder.path().join("disk.img")).expect("the origin"), content);
}
