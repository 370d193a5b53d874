//! Volumes over a history: interrupted at each step of a revert, numbers, and late work of an
//! earlier opening.

use cairn_device::FileDevice;

use std::time::Duration;

use cairn_device::{DeviceError, FileOptions};

use super::super::NewVolume;
use super::super::tests::{assert_sound, mark, numbers, plain, read, volumes, write};
use super::*;
use crate::volumes::error::VolumesError;

fn wish(folder: &Path) -> api::VolumeHistory {
    serde_json::from_value(serde_json::json!({
        "store": folder.join("store.img"),
        "placement": "split-down-stream",
        "granularity": "every-write",
    }))
    .expect("a wish")
}

/// A volume over a history, with a LUN whose first block is full of `1` at the mark `one`, and of
/// `2` now.
fn made(folder: &Path) -> Volumes {
    let volumes = volumes(folder);
    let wish = wish(folder);
    let new = NewVolume { history: Some(&wish), ..plain() };
    let open = volumes.create(&new).expect("it is made");
    open.luns.create("db", 1 << 20).expect("a LUN");
    write(&volumes, 1);
    open.history().expect("a history").mark_once("one").expect("a mark");
    write(&volumes, 2);
    volumes
}

#[test]
fn volume_whose_making_is_cut_is_made_by_the_same_command_on_the_same_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let wish = wish(folder.path());
    let new = NewVolume { history: Some(&wish), ..plain() };
    let before = volumes(folder.path());
    let nursery = before.dir.join(".vol0.new");
    std::fs::create_dir(&nursery).expect("a folder");
    // A history exists, without a volume in it.
    let tiny = NewVolume { blocks: Some(1), ..new };
    assert!(before.make(&tiny, &nursery, &mut Vec::new()).is_err());
    let store = || FileDevice::open(&wish.store, FileOptions::default()).expect("the store");
    History::id_of(&store()).expect("a history");
    drop(before);
    let before = volumes(folder.path());
    History::id_of(&store()).expect_err("it is taken back");
    std::fs::create_dir(&nursery).expect("a folder");
    // All but the last step: a complete volume is in the store and beside it.
    drop(before.make(&new, &nursery, &mut Vec::new()).expect("it is made"));
    drop(before);
    let after = volumes(folder.path());
    assert!(!nursery.exists() && after.get("vol0").is_err());
    after.create(&new).expect("it is made").luns.create("db", 1 << 20).expect("a LUN");
    write(&after, 5);
    assert_sound(&after);
    after.end();
    drop(after);
    let again = volumes(folder.path());
    assert_eq!(read(&again), 5);
    again.end();
    drop(again);
    // A store that is another's by now stays as it is.
    let (volumes_of, store) = (folder.path().join("volumes"), folder.path().join("store.img"));
    std::fs::rename(volumes_of.join("vol0"), volumes_of.join(".vol1.new")).expect("it is moved");
    let other = std::fs::read(&store).expect("the store");
    let document = volumes_of.join(".vol1.new/volume.json");
    let text = std::fs::read_to_string(&document).expect("a document");
    let id = text.split("\"id\": \"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id");
    std::fs::write(&document, text.replace(id, &"7".repeat(id.len()))).expect("a document");
    volumes(folder.path()).end();
    assert!(std::fs::read(&store).expect("the store") == other, "it has another history");
}

#[test]
fn volume_is_as_it_was_or_at_the_instant_wherever_a_revert_is_cut() {
    for (step, expected) in [(0, 2), (1, 2), (2, 1)] {
        let folder = tempfile::tempdir().expect("a folder");
        let before = made(folder.path());
        let open = before.get("vol0").expect("it is open");
        open.end().expect("it closes");
        let under = open.under.as_ref().expect("a history");
        if step > 0 {
            before.note_numbers("vol0", under).expect("noted");
        }
        if step > 1 {
            under.device.revert(&mark("one")).expect("reverted");
        }
        drop((open, before));
        let after = volumes(folder.path());
        assert_eq!(read(&after), expected, "step {step}");
        assert_sound(&after);
        write(&after, 3);
        after.end();
    }
}

#[test]
fn volume_is_brought_back_and_forth_and_gives_no_number_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes_now = made(folder.path());
    let lost = numbers(&volumes_now, "lost");
    let (_, reverted) = volumes_now.revert("vol0", &mark("one")).expect("it goes back");
    assert_eq!((read(&volumes_now), reverted.findings), (1, Vec::new()));
    let open = volumes_now.get("vol0").expect("it is open");
    assert!(open.volume.snapshot_named("lost").is_none(), "snapshots go back as well");
    drop(open);
    let next = numbers(&volumes_now, "next");
    assert!(next.0 > lost.0 && next.1 > lost.1, "{next:?} after {lost:?}");
    write(&volumes_now, 3);
    assert_sound(&volumes_now);
    volumes_now.end();
    drop(volumes_now);

    let again = volumes(folder.path());
    assert_eq!(read(&again), 3);
    let later = numbers(&again, "later");
    assert!(later.0 > next.0 && later.1 > next.1, "{later:?} after {next:?}");
    again.revert("vol0", &mark(&reverted.undo)).expect("it goes forth");
    assert_eq!(read(&again), 2);
    let open = again.get("vol0").expect("it is open");
    assert!(open.volume.snapshot_named("lost").is_some() && open.volume.snapshot_named("next").is_none());
    drop(open);
    let last = numbers(&again, "last");
    assert!(last.0 > later.0 && last.1 > later.1, "{last:?} after {later:?}");
    assert_sound(&again);
    again.end();
}

#[test]
fn nothing_of_an_earlier_opening_comes_into_what_is_opened_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    let before = volumes.get("vol0").expect("it is open");
    let device = before.fence.clone();
    device.read(0, 4096).expect("it is open");
    volumes.revert("vol0", &mark("one")).expect("it goes back");
    assert!(matches!(device.write_from(0, &[9; 4096]), Err(DeviceError::OutOfService)));
    assert!(matches!(device.read(0, 4096), Err(DeviceError::OutOfService)));
    let refused = before.luns.open("db").map_or(true, |lun| lun.write_from(0, &[9; 4096]).is_err());
    assert!(refused, "its LUNs take nothing");
    assert_eq!(read(&volumes), 1);
    volumes.end();
}

#[test]
fn instant_before_the_volume_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    let open = volumes.get("vol0").expect("it is open");
    let start = open.history().expect("a history").history().status().start.0;
    let at = api::Instant::at(start);
    let refused = volumes.revert("vol0", &at).err().expect("there was none");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::OverHistory { .. })), "{refused}");
    let request = api::CreateView { name: None, instant: at, writable: false };
    let refused = volumes.show_instant("vol0", &request).err().expect("there was none");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::OverHistory { .. })), "{refused}");
    assert!(open.views().is_empty());
    write(&volumes, 4);
    assert_eq!(read(&volumes), 4, "the same opening goes on");
    volumes.end();
}

#[test]
fn view_is_of_its_instant_and_nothing_of_it_comes_into_the_volume() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    let open = volumes.get("vol0").expect("it is open");
    let at =
        |name: &str| api::CreateView { name: Some(name.to_owned()), instant: mark("one"), writable: false };
    volumes.show_instant("vol0", &at("first")).expect("it is shown");
    open.history().expect("a history").history().flush().expect("all is out");
    let generation = open.volume.status().generation;
    let files = ["volumes/vol0/volume.img", "store.img"].map(|name| folder.path().join(name));
    let bytes = || files.each_ref().map(|path| std::fs::read(path).expect("a file"));
    let before = bytes();

    let (_, view) = volumes.show_instant("vol0", &at("second")).expect("it is shown");
    let lun = open.luns.open_in(view.image(), "db").expect("a LUN");
    assert_eq!(lun.read(0, 4096).expect("a read").to_vec(), [1; 4096]);
    assert!(lun.write_from(0, &[9; 4096]).is_err(), "it takes no writes");
    assert!(bytes() == before, "neither the device nor the store of the volume is written to");
    assert_eq!(open.volume.status().generation, generation);
    volumes.hide_instant("vol0", "first").expect("it ends");
    drop((open, lun, view));
    volumes.end();
    drop(volumes);

    let again = self::volumes(folder.path());
    let open = again.get("vol0").expect("it is open");
    assert_eq!(open.views().into_keys().collect::<Vec<_>>(), ["second"]);
    assert_eq!(read(&again), 2);
    assert_sound(&again);
    again.end();
}

#[test]
fn view_that_cannot_be_shown_at_a_start_keeps_its_name_and_its_instant_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let at =
        |name: &str| api::CreateView { name: Some(name.to_owned()), instant: mark("one"), writable: false };
    let before = made(folder.path());
    for name in ["then", "other"] {
        before.show_instant("vol0", &at(name)).expect("it is shown");
    }
    before.end();
    drop(before);
    // No file can be created for the writes of its opening, as on a full disk.
    let scratch = folder.path().join("volumes/vol0/view.scratch");
    std::fs::create_dir(&scratch).expect("a folder");
    let after = volumes(folder.path());
    let open = after.get("vol0").expect("it is open");
    assert!(open.view("then").is_none() && open.views().is_empty());
    assert_eq!(open.history().expect("a history").history().status().views, 2, "the window stays for them");
    let problems: Vec<String> = after.problems().into_iter().map(|problem| problem.subject).collect();
    assert_eq!(problems, ["vol0@other", "vol0@then"]);
    assert!(after.check_disable("vol0").is_err(), "they would go");
    assert!(matches!(after.show_instant("vol0", &at("then")), Err(ServerError::Taken { .. })));
    assert!(matches!(open.refuse_name_of_view("then"), Err(ServerError::Taken { .. })));
    std::fs::remove_dir(&scratch).expect("the folder");
    // Changes of other views keep them.
    after.show_instant("vol0", &at("third")).expect("it is shown");
    after.hide_instant("vol0", "other").expect("it ends");
    assert_eq!(open.history().expect("a history").history().status().views, 2);
    drop(open);
    after.end();
    drop(after);
    let again = volumes(folder.path());
    let open = again.get("vol0").expect("it is open");
    assert_eq!(open.views().into_keys().collect::<Vec<_>>(), ["then", "third"]);
    let view = open.view("then").expect("it is shown");
    let lun = open.luns.open_in(view.image(), "db").expect("a LUN");
    assert_eq!(lun.read(0, 4096).expect("a read").to_vec(), [1; 4096]);
    drop((open, view, lun));
    assert!(again.problems().is_empty());
    again.end();
}

#[test]
fn volume_that_waits_for_room_in_its_history_is_shown_and_goes_on_with_a_shorter_floor() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wish = wish(folder.path());
    wish.store_bytes = Some(12 << 20);
    wish.window.floor_ms = Some(3_600_000);
    let new = NewVolume { history: Some(&wish), ..plain() };
    let volumes = volumes(folder.path());
    let open = volumes.create(&new).expect("it is made");
    open.luns.create("db", 1 << 20).expect("a LUN");
    let lun = open.luns.open("db").expect("a LUN");
    let history = open.history().expect("a history");
    let (done, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=100 {
                lun.write_from(4096, &[round; 1 << 19]).and_then(|()| lun.flush()).expect("it waits");
            }
        });
        while !open.waits_for_room() {
            assert!(!writer.is_finished(), "it is full at some time");
            std::thread::yield_now();
        }
        scope.spawn(|| {
            let shown = (open.show(), open.is_destination(), volumes.problems());
            done.send(shown).expect("somebody waits for it");
        });
        let shown = results.recv_timeout(Duration::from_secs(100));
        // Before any other assertion: the waiting thread must end.
        let window = api::Window { floor_ms: None, ..wish.window.clone() };
        history.set_window(&window).expect("it is changed");
        let (_, _, problems) = shown.expect("who looks does not wait with it");
        let waits = problems.iter().find(|problem| problem.message.contains("wait"));
        let next = &waits.expect("it says so").next;
        assert!(next.contains("cairn history window vol0 --floor"), "{next}");
        writer.join().expect("it goes on");
    });
    assert_sound(&volumes);
    volumes.end();
}

#[test]
fn volume_whose_history_is_full_beneath_its_floor_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wish = wish(folder.path());
    wish.store_bytes = Some(12 << 20);
    wish.window.floor_ms = Some(3_600_000);
    wish.window.floor_policy = Some(api::FloorPolicy::Fail);
    let new = NewVolume { history: Some(&wish), ..plain() };
    let before = volumes(folder.path());
    let open = before.create(&new).expect("it is made");
    open.luns.create("db", 1 << 20).expect("a LUN");
    write(&before, 1);
    let lun = open.luns.open("db").expect("a LUN");
    let fails = |round: u8| {
        lun.write_from(4096, &[round; 1 << 19]).and_then(|()| lun.flush()).is_err()
            || before.problems().iter().any(|problem| problem.message.contains("takes no writes"))
    };
    assert!((0..100).any(fails), "it is full at some time");
    let next = before.problems().into_iter().find(|problem| problem.message.contains("takes no writes"));
    let next = next.expect("it says so").next;
    assert!(next.contains("cairn history window vol0 --floor off"), "{next}");
    let window = api::Window { floor_ms: Some(0), ..wish.window.clone() };
    open.history().expect("a history").set_window(&window).expect("it is changed");
    drop((lun, open));
    before.end();
    drop(before);
    let after = volumes(folder.path());
    assert_eq!(read(&after), 1);
    write(&after, 2);
    assert_sound(&after);
    after.end();
}
