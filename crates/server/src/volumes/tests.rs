//! Opening the devices of a volume; and shared helpers of the tests of volumes with a history.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_device::{FileDevice, FileOptions};
use cairn_volume::{FormatOptions, OpenOptions, Volume};

use std::sync::mpsc;

use cairn_base::{ManualClock, Timestamp};
use cairn_volume::CheckDepth;

use super::*;
use crate::volumes::disks::{BLOCK, BUSY_PATIENCE, BUSY_PAUSE, clear_beginning, make_files, open_when_free};
use crate::volumes::error::VolumesError;

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

/// Files in `folder` that this process has open though they are deleted.
fn deleted_and_open(folder: &Path) -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    names.filter(|name| name.starts_with(folder) && name.to_string_lossy().ends_with("(deleted)")).count()
}

#[test]
fn files_of_a_deleted_volume_are_closed_by_nobody_who_answers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let volumes = volumes(folder.path());
    let held = volumes.create(&plain()).expect("a volume");
    let before = Arc::strong_count(&held.parts[0]);
    volumes.delete("vol0").expect("it is deleted");
    assert!(!folder.path().join("volumes/vol0").exists(), "its name is free at once");
    assert_eq!(deleted_and_open(folder.path()), 1);
    let after = Arc::strong_count(&held.parts[0]);
    assert_eq!(after, before + 1, "whoever lets go of it is not the last, and does not wait");
    drop(held);
    let begun = std::time::Instant::now();
    while deleted_and_open(folder.path()) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "its blocks are never free");
        std::thread::sleep(BUSY_PAUSE);
    }
}

#[test]
fn long_volume_is_in_several_files() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let before = volumes(folder.path());
    let bytes = 20u64 << 40;
    before.create(&NewVolume { blocks: Some(bytes / BLOCK), ..plain() }).expect("a volume");
    before.get("vol0").expect("it is open").luns.create("db", 12 << 40).expect("a LUN");
    let last = |volumes: &Volumes| {
        let lun = volumes.get("vol0").expect("it is open").luns.open("db").expect("a LUN");
        (lun, (12u64 << 40) - BLOCK)
    };
    let (lun, at) = last(&before);
    lun.write_from(at, &[7; 4096]).expect("a write");
    lun.flush().expect("a flush");
    drop(lun);
    before.end();
    drop(before);
    for name in ["volume.img", "volume.img.1", "volume.img.2"] {
        let length = fs::metadata(folder.path().join("volumes/vol0").join(name)).expect("a file").len();
        assert!(length <= 8 << 40, "{name}: {length}");
    }
    let again = volumes(folder.path());
    let (lun, at) = last(&again);
    assert_eq!(lun.read(at, 4096).expect("a read").to_vec(), [7; 4096]);
    drop(lun);
    again.end();
}

#[test]
fn files_of_a_volume_that_cannot_be_made_are_removed_and_those_of_others_stay() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (first, second) = (folder.path().join("volume.img"), folder.path().join("volume.img.1"));
    fs::write(&second, b"of another").expect("a file");
    let refused = make_files(&first, 9 << 40).map(drop).expect_err("the name is taken");
    assert!(matches!(refused, cairn_device::OpenError::Exists { .. }), "{refused}");
    assert!(!first.exists());
    assert_eq!(fs::read(&second).expect("it is there"), b"of another");
}

/// The volumes of a server with that folder.
pub(super) fn volumes(folder: &Path) -> Volumes {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    std::fs::create_dir_all(folder.join("volumes")).expect("a folder");
    Volumes::open(folder.join("volumes"), ByteSize(16 << 20), clock, None).expect("volumes")
}

/// Fills the first block of `vol0/db`, durably.
pub(super) fn write(volumes: &Volumes, byte: u8) {
    let lun = volumes.get("vol0").expect("it is open").luns.open("db").expect("a LUN");
    lun.write_from(0, &[byte; 4096]).expect("a write");
    lun.flush().expect("a flush");
}

/// The byte that fills the first block of `vol0/db`.
pub(super) fn read(volumes: &Volumes) -> u8 {
    let lun = volumes.get("vol0").expect("it is open").luns.open("db").expect("a LUN");
    let bytes = lun.read(0, 4096).expect("a read").to_vec();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "of one time");
    bytes[0]
}

pub(super) fn mark(name: &str) -> api::Instant {
    api::Instant::mark(name)
}

pub(super) fn assert_sound(volumes: &Volumes) {
    let open = volumes.get("vol0").expect("it is open");
    let found = super::findings::findings(&open.volume, "vol0", CheckDepth::Everything).expect("a check");
    assert_eq!(found, Vec::<String>::new());
}

/// The numbers of a snapshot and of a LUN that are made with that name.
pub(super) fn numbers(volumes: &Volumes, name: &str) -> (u64, u64) {
    let open = volumes.get("vol0").expect("it is open");
    open.luns.create(name, 1 << 20).expect("a LUN");
    let file = open.luns.find(name).expect("a LUN").file.0;
    (open.volume.create_snapshot(name).expect("a snapshot").id.0, file)
}

/// `vol0` in a file of its own.
pub(super) fn plain() -> NewVolume<'static> {
    NewVolume {
        name: "vol0",
        id: VolumeId([7; 16]),
        role: Role::Normal,
        blocks: Some(4096),
        devices: &[],
        log_device: None,
        history: None,
        beside: None,
    }
}

#[test]
fn what_is_no_volume_beside_the_folders_of_volumes_is_called_none() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let beside = folder.path().join("volumes");
    std::fs::create_dir_all(beside.join("lost+found")).expect("a folder");
    std::fs::create_dir(beside.join("vol1")).expect("a folder");
    fs::write(beside.join("vol0.trace"), "a recording").expect("a file");
    let volumes = volumes(folder.path());
    for name in ["lost+found", "vol0.trace"] {
        assert!(matches!(volumes.get(name), Err(ServerError::NotFound { .. })), "{name}");
    }
    // The files of a volume without its document may be all that remains of it.
    let shown = volumes.list();
    assert_eq!(shown.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["vol1"]);
    assert!(beside.join("lost+found").exists() && beside.join("vol0.trace").exists());
    volumes.end();
}

#[test]
fn what_belongs_to_a_volume_is_in_its_folder_before_the_volume_is_there() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let volumes = volumes(folder.path());
    let own = volumes.folder("vol0");
    let write = |at: &Path| {
        assert!(!own.exists(), "a kill here leaves no volume");
        fs::write(at.join("mirror.json"), "it").map_err(ServerError::path("write", at))
    };
    let refuse = |_: &Path| Err(ServerError::Ending);
    let refused = volumes.create(&NewVolume { beside: Some(&refuse), ..plain() });
    assert!(refused.is_err_and(|error| matches!(error, ServerError::Ending)));
    assert!(!own.exists(), "nothing is left of it");
    volumes.create(&NewVolume { beside: Some(&write), ..plain() }).expect("a volume");
    assert_eq!(fs::read_to_string(own.join("mirror.json")).expect("it is there"), "it");
}

#[test]
fn clone_whose_snapshot_goes_meanwhile_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let volumes = volumes(folder.path());
    let parent = volumes.create(&plain()).expect("a volume");
    let is_over = AtomicBool::new(false);
    let (mut made, mut gone, mut taken) = (0, 0, false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let snapshot = parent.volume.create_snapshot("s").expect("a snapshot");
                while parent.volume.delete_snapshots(&[snapshot.id]).is_err() {}
            }
        });
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while (made < 10 || gone < 10) && std::time::Instant::now() < until {
            match volumes.clone_as("vol0", "s", "try", true, &|| Ok(())) {
                Ok(clone) => {
                    drop(clone);
                    volumes.delete("try").expect("it is there");
                    made += 1;
                }
                Err(error) => {
                    gone += 1;
                    // Reported after the other thread has ended.
                    if matches!(error, ServerError::Taken { .. }) {
                        taken = true;
                        break;
                    }
                }
            }
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(!taken, "after {made} that were made and {gone} that were not, one was left");
    let left: Vec<_> = fs::read_dir(folder.path().join("volumes")).expect("a folder").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A file that is being copied to its place is not opened, even if its beginning is complete.
#[test]
fn volume_that_comes_back_as_a_file_is_opened_when_nobody_writes_to_that_any_more() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let before = volumes(folder.path());
    before.create(&plain()).expect("a volume");
    before.end();
    drop(before);
    let file = folder.path().join("volumes/vol0/volume.img");
    let aside = folder.path().join("aside");
    std::fs::rename(&file, &aside).expect("it is moved");
    let volumes = volumes(folder.path());
    assert!(volumes.get("vol0").is_err());
    let opened = || {
        let count = std::cell::Cell::new(0);
        volumes.open_waiting(&|_| count.set(count.get() + 1));
        count.get()
    };
    assert_eq!(opened(), 0, "it is not there");
    std::fs::rename(&aside, &file).expect("it is moved");
    let written = |time: std::time::SystemTime| {
        let file = std::fs::OpenOptions::new().write(true).open(&file).expect("the file");
        file.set_modified(time).expect("a time");
    };
    let now = std::time::SystemTime::now();
    written(now);
    assert_eq!(opened(), 0, "somebody writes to it");
    written(now - std::time::Duration::from_secs(60));
    assert_eq!(opened(), 1);
    volumes.get("vol0").expect("it is open");
    volumes.end();
}

/// A disk of 64 MiB that is empty.
fn disk(path: &Path) -> String {
    std::fs::File::create(path).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    path.to_str().expect("a path").to_owned()
}

#[test]
fn disks_of_a_volume_whose_making_is_cut_are_taken_by_the_same_command() {
    for (role, has_log, has_history) in [
        (Role::Normal, false, false),
        (Role::Normal, true, false),
        (Role::Normal, false, true),
        (Role::Destination, true, false),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let devices = [disk(&folder.path().join("disk"))];
        let log = disk(&folder.path().join("log"));
        let wish: api::VolumeHistory = serde_json::from_value(serde_json::json!({
            "store": folder.path().join("store.img"), "placement": "checkpointing", "granularity": "every-write",
        }))
        .expect("a wish");
        let (log_device, history) = (has_log.then_some(log.as_str()), has_history.then_some(&wish));
        let new = NewVolume { role, devices: &devices, log_device, history, blocks: None, ..plain() };
        let before = volumes(folder.path());
        let nursery = before.dir.join(".vol0.new");
        std::fs::create_dir(&nursery).expect("a folder");
        drop(before.make(&new, &nursery, &mut Vec::new()).expect("it is made"));
        Volume::inspect(&FileDevice::open(&devices[0], FileOptions::default()).expect("the disk"))
            .expect("a volume");
        // The kill.
        drop(before);
        let after = volumes(folder.path());
        assert!(!nursery.exists() && after.get("vol0").is_err());
        drop(after.create(&new).expect("both are empty"));
        after.end();
    }
}

#[test]
fn disk_that_somebody_has_used_since_a_making_was_cut_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = [disk(&folder.path().join("disk"))];
    let new = NewVolume { role: Role::Destination, devices: &devices, blocks: None, ..plain() };
    let before = volumes(folder.path());
    let nursery = before.dir.join(".vol0.new");
    std::fs::create_dir(&nursery).expect("a folder");
    drop(before.make(&new, &nursery, &mut Vec::new()).expect("it is made"));
    drop(before);
    // Another server has made a mirror of the same source there, and failed over to it.
    let device = || FileDevice::open(&devices[0], FileOptions::default()).expect("the disk");
    clear_beginning(&device()).expect("it is empty");
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let blocks = Volume::blocks_for(64 << 20, Role::Normal);
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
    Volume::format(&device(), &options, &*clock).expect("it is made");
    let opened =
        Volume::open(Arc::new(device()), OpenOptions { cache_bytes: 16 << 20, clock }).expect("it opens");
    opened.create_snapshot("theirs").expect("a snapshot");
    opened.close().expect("it closes");
    drop(opened);
    let bytes = std::fs::read(&devices[0]).expect("the disk");
    let after = volumes(folder.path());
    assert!(!nursery.exists());
    assert!(std::fs::read(&devices[0]).expect("the disk") == bytes, "it is theirs");
    assert!(matches!(after.create(&new), Err(ServerError::Volumes(VolumesError::DeviceNotEmpty { .. }))));
}

#[test]
fn restore_whose_volume_does_not_open_at_its_end_is_shown_and_can_be_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = volumes(folder.path());
    let unfinished = volumes.begin_restore("vol0", 1024, &[]).expect("room for it");
    // Nothing that opens is on its devices, as when a disk fails at that moment.
    let refused = unfinished.finish().map(drop).expect_err("there is no volume");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::VolumeUnavailable { .. })), "{refused}");
    let shown = volumes.list();
    assert_eq!(shown.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["vol0"]);
    assert!(shown[0].problem.is_some() && volumes.problems().len() == 1);
    volumes.delete("vol0").expect("it goes");
    drop(volumes.create(&plain()).expect("its name is free"));
    volumes.end();
}

#[test]
fn volume_that_was_a_mirror_grows_as_any_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = volumes(folder.path());
    let open = volumes.create(&plain()).expect("a volume");
    open.make_room_as_destination().expect("room");
    open.volume.demote("head", false).expect("it is a mirror");
    open.volume.failover().expect("and takes over");
    // It has a have map and a redirect area, which grow with it.
    open.grow(Some(64 << 20)).expect("it grows");
    assert_eq!(open.volume.status().blocks, (64 << 20) / BLOCK);
    let file =
        fs::OpenOptions::new().write(true).open(volumes.folder("vol0").join("volume.img")).expect("a file");
    let length = file.metadata().expect("a file").len();
    file.set_len(length + (64 << 20)).expect("it is made larger");
    open.grow(None).expect("it takes what there is");
    // Half of that is of the redirect area.
    let more = open.volume.status().blocks - (64 << 20) / BLOCK;
    assert!((7000..=8192).contains(&more), "{more}");
    let refused = open.grow(Some(1 << 60)).expect_err("no volume is so large");
    assert_eq!(refused.kind(), ErrorKind::WrongSize);
    assert_eq!(file.metadata().expect("a file").len(), length + (64 << 20), "its file stays as it is");
    assert_sound(&volumes);
    drop(open);
    volumes.end();
}

#[test]
fn device_is_named_by_an_absolute_path_as_a_start_looks_for_it_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = volumes(folder.path());
    let whole = disk(&folder.path().join("disk"));
    // From wherever the tests run.
    let relative = format!("{}{}", "../".repeat(40), whole.trim_start_matches('/'));
    std::fs::metadata(&relative).expect("it is there");
    let is_refused =
        |outcome: Result<(), ServerError>| matches!(outcome, Err(ServerError::NotAbsolute { .. }));
    let devices = [relative.clone()];
    assert!(is_refused(volumes.create(&NewVolume { devices: &devices, blocks: None, ..plain() }).map(drop)));
    assert!(is_refused(volumes.begin_restore("vol0", 4096, &devices).map(drop)));
    assert!(is_refused(volumes.create(&NewVolume { log_device: Some(&relative), ..plain() }).map(drop)));
    drop(volumes.create(&plain()).expect("a volume"));
    assert!(is_refused(volumes.move_log("vol0", Some(&relative)).map(drop)));
    assert!(
        std::fs::read(&whole).expect("the disk").iter().all(|byte| *byte == 0),
        "nothing is written to it"
    );
    volumes.end();
}

#[test]
fn folder_that_its_owner_has_put_aside_under_a_name_with_a_dot_is_not_removed_by_a_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = volumes(folder.path());
    drop(before.create(&plain()).expect("a volume"));
    before.end();
    let (place, dir) = (before.folder("vol0"), before.dir.clone());
    drop(before);
    // Renamed, to take it out of service, or kept beside another one; and entries from tools of
    // file systems.
    for name in [".vol0", ".vol0.old", ".vol0.bak", ".snapshots", "..new", ".vol0.old.1x"] {
        let aside = dir.join(name);
        fs::rename(&place, &aside).expect("it is put aside");
        let after = volumes(folder.path());
        assert!(aside.join("volume.img").exists(), "{name} is its owner's");
        assert!(after.list().is_empty(), "{name} is no volume");
        fs::rename(&aside, &place).expect("it is put back");
    }
    for name in [".vol0.new", ".vol0.clone", ".vol0.restore", ".a.b.deleted", ".vol0.deleted.12"] {
        fs::create_dir(dir.join(name)).expect("a folder");
    }
    let after = volumes(folder.path());
    assert_eq!(fs::read_dir(&dir).expect("a folder").count(), 1, "what was cut off is removed");
    after.get("vol0").expect("it is open");
    after.end();
}
