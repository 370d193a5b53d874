//! A history under an existing volume: interrupted at each step of enabling and disabling, numbers,
//! and late work of an earlier opening.

use cairn_base::{ManualClock, Timestamp};

use super::super::tests::{assert_sound, mark, numbers, plain, read, volumes, write};
use super::*;
use crate::state;
use crate::volumes::error::VolumesError;

const PLACEMENTS: [&str; 5] = ["checkpointing", "logging", "split-stream", "split-down-stream", "hybrid"];

/// Side by side: most of the time a volume that is closed waits for its threads.
fn in_each_placement(test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for placement in PLACEMENTS {
            let test = &test;
            scope.spawn(move || test(placement));
        }
    });
}

fn wish(folder: &Path, placement: &str) -> api::VolumeHistory {
    let wish = serde_json::json!({
        "store": folder.join("store.img"),
        "placement": placement,
        "granularity": "every-write",
    });
    serde_json::from_value(wish).expect("a wish")
}

/// A volume without a history, with a LUN whose first block is full of `1`.
fn made(folder: &Path) -> Volumes {
    let volumes = volumes(folder);
    let open = volumes.create(&plain()).expect("it is made");
    open.luns.create("db", 1 << 20).expect("a LUN");
    write(&volumes, 1);
    volumes
}

fn has_history(volumes: &Volumes) -> bool {
    volumes.get("vol0").expect("it is open").history().is_ok()
}

/// The document and the generation beside it say the same.
fn assert_both_say_so(volumes: &Volumes) {
    let path = volumes.folder("vol0").join("volume.json");
    assert_eq!(fs::read(&path).expect("a file"), fs::read(state::previous(&path)).expect("a file"));
}

fn disable(volumes: &Volumes) -> Result<Arc<OpenVolume>, ServerError> {
    let clock: Arc<dyn cairn_base::Clock> = Arc::new(ManualClock::new(Timestamp(0)));
    volumes.disable_history("vol0", &Progress::new(clock))
}

#[test]
fn history_comes_under_a_volume_and_goes_and_the_volume_stays_what_it_is() {
    in_each_placement(|placement| {
        let folder = tempfile::tempdir().expect("a folder");
        let volumes_now = made(folder.path());
        volumes_now.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets a history");
        assert_both_say_so(&volumes_now);
        assert_eq!(read(&volumes_now), 1, "{placement}");
        let mark_once = |name: &str| {
            let open = volumes_now.get("vol0").expect("it is open");
            open.volume.consistency_point().expect("all is there");
            open.history().expect("a history").mark_once(name).expect("a mark");
        };
        mark_once("one");
        write(&volumes_now, 2);
        mark_once("two");
        volumes_now.revert("vol0", &mark("one")).expect("it goes back");
        assert_eq!(read(&volumes_now), 1, "{placement}");
        volumes_now.revert("vol0", &mark("two")).expect("it goes forth");
        write(&volumes_now, 3);
        disable(&volumes_now).expect("it goes");
        assert!(!has_history(&volumes_now));
        assert_both_say_so(&volumes_now);
        assert_eq!(read(&volumes_now), 3, "{placement}");
        assert_sound(&volumes_now);
        write(&volumes_now, 4);
        volumes_now.end();
        drop(volumes_now);

        let again = volumes(folder.path());
        assert_eq!((read(&again), has_history(&again)), (4, false), "{placement}");
        // The store is free for the next one, and the volume grows meanwhile.
        again.get("vol0").expect("it is open").grow(Some(96 << 20)).expect("it grows");
        again.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets another one");
        assert_eq!(read(&again), 4, "{placement}");
        assert_sound(&again);
        again.end();
    });
}

#[test]
fn volume_is_in_service_while_its_history_is_folded_back_and_goes_on_with_it_where_that_is_cancelled() {
    in_each_placement(|placement| {
        let folder = tempfile::tempdir().expect("a folder");
        let volumes_now = made(folder.path());
        volumes_now.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets a history");
        write(&volumes_now, 2);
        let open = volumes_now.get("vol0").expect("it is open");
        open.volume.consistency_point().expect("all is there");
        let clock: Arc<dyn cairn_base::Clock> = Arc::new(ManualClock::new(Timestamp(0)));
        let cancelled = Progress::new(clock.clone());
        cancelled.cancel();
        let refused = volumes_now.fold_history_back("vol0", &cancelled);
        assert!(matches!(refused, Err(ServerError::Cancelled)), "{placement}: {refused:?}");
        volumes_now.fold_history_back("vol0", &Progress::new(clock)).expect("it is folded back");
        assert!(has_history(&volumes_now), "{placement}: it has one until it is taken away");
        assert_eq!(read(&volumes_now), 2, "{placement}");
        write(&volumes_now, 3);
        let still = volumes_now.get("vol0").expect("it is open");
        assert!(Arc::ptr_eq(&open, &still), "{placement}: it was not closed");
        if placement == "logging" {
            // Only the volume's later writes.
            let versions = open.history().expect("a history").history().status().versions;
            assert!(versions < 64, "{versions} versions are left for the time without");
        }
        drop((open, still));
        disable(&volumes_now).expect("it goes");
        assert_eq!((read(&volumes_now), has_history(&volumes_now)), (3, false), "{placement}");
        assert_sound(&volumes_now);
        volumes_now.end();
    });
}

#[test]
fn volume_is_whole_with_a_history_or_without_wherever_its_coming_is_cut() {
    for step in 0..3 {
        let folder = tempfile::tempdir().expect("a folder");
        let before = made(folder.path());
        let open = before.get("vol0").expect("it is open");
        open.make_room_as_destination().expect("it is long enough");
        before.take_away(&open, BEING_ENABLED).expect("it closes");
        let mut under = None;
        if step > 0 {
            let wish = wish(folder.path(), "logging");
            let (document, plan) = before.begin_enable("vol0", &wish).expect("it is noted");
            let (origin, parts) = (&open.paths[0], whole(&open.parts));
            let made = before.make_history("vol0", &plan, origin, parts, &mut Vec::new());
            under = Some(made.expect("it is made"));
            if step > 1 {
                let path = before.folder("vol0").join("volume.json");
                // Only once: the generation beside it has no history.
                let noted = VolumeDocument { history: Some(plan.beneath), ..document };
                state::save(&path, &noted).expect("it is noted");
            }
        }
        drop((open, under, before));
        let after = volumes(folder.path());
        assert_eq!((read(&after), has_history(&after)), (1, step > 1), "step {step}");
        assert_both_say_so(&after);
        assert_sound(&after);
        write(&after, 2);
        after.end();
        drop(after);
        let again = volumes(folder.path());
        assert_eq!(read(&again), 2, "step {step}");
        // The same command does it all again, on the same store.
        let enabled = again.enable_history("vol0", &wish(folder.path(), "logging")).map(drop);
        assert_eq!(enabled.is_ok(), step < 2, "step {step}: {enabled:?}");
        assert_eq!((read(&again), has_history(&again)), (2, true), "step {step}");
        again.end();
    }
}

#[test]
fn volume_is_whole_with_its_history_or_without_wherever_its_going_is_cut() {
    in_each_placement(|placement| {
        for step in 0..4 {
            let folder = tempfile::tempdir().expect("a folder");
            let before = made(folder.path());
            before.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets a history");
            write(&before, 2);
            let open = before.get("vol0").expect("it is open");
            if step > 0 {
                before.note_leaving("vol0", true).expect("it is noted");
            }
            before.take_away(&open, BEING_DISABLED).expect("it closes");
            let under = open.under.as_ref().expect("a history");
            if step > 1 {
                before.note_numbers("vol0", under).expect("noted");
            }
            if step > 2 {
                under.history().release(&|_, _| ()).expect("it is released");
            }
            drop((open, before));
            let after = volumes(folder.path());
            assert_eq!((read(&after), has_history(&after)), (2, step < 3), "{placement}, step {step}");
            assert_both_say_so(&after);
            assert!(after.document("vol0").expect("a document").history.is_none_or(|left| !left.leaving));
            assert_sound(&after);
            write(&after, 3);
            if step < 3 {
                disable(&after).expect("it goes on");
            }
            assert_eq!((read(&after), has_history(&after)), (3, false), "{placement}, step {step}");
            after.enable_history("vol0", &wish(folder.path(), placement)).expect("the store is free again");
            assert_eq!(read(&after), 3, "{placement}, step {step}");
            after.end();
        }
    });
}

#[test]
fn volume_is_not_opened_without_its_history_where_another_file_is_in_its_place_while_that_leaves() {
    in_each_placement(|placement| {
        let text = b"what somebody has put there while it was away";
        for (other, length) in [(&b""[..], 0), (text, 64 << 20), (b"", 64 << 20)] {
            let folder = tempfile::tempdir().expect("a folder");
            let before = made(folder.path());
            before.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets a history");
            write(&before, 2);
            let open = before.get("vol0").expect("it is open");
            before.note_leaving("vol0", true).expect("it is noted");
            before.take_away(&open, BEING_DISABLED).expect("it closes");
            drop((open, before));
            let (store, aside) = (folder.path().join("store.img"), folder.path().join("aside"));
            fs::rename(&store, &aside).expect("it is moved");
            fs::write(&store, other).expect("a file");
            let file = fs::OpenOptions::new().write(true).open(&store).expect("the file");
            file.set_len(length).expect("a length");
            drop(file);
            let cut = volumes(folder.path());
            assert!(cut.get("vol0").is_err(), "{placement}: what was written is in the store");
            drop(cut);
            fs::rename(&aside, &store).expect("it is there again");
            let after = volumes(folder.path());
            assert_eq!((read(&after), has_history(&after)), (2, true), "{placement}");
            disable(&after).expect("it goes on");
            assert_eq!((read(&after), has_history(&after)), (2, false), "{placement}");
            after.end();
        }
    });
}

#[test]
fn history_that_cannot_be_is_refused_while_the_volume_is_in_service() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    let small = folder.path().join("small");
    let file = fs::File::create(&small).expect("a file");
    file.set_len(1 << 20).expect("a length");
    let open = volumes.get("vol0").expect("it is open");
    for wrong in [
        serde_json::json!({ "window": { "time_ms": 1000, "floor_ms": 2000 } }),
        serde_json::json!({ "window": { "bytes": 0 } }),
        serde_json::json!({ "granularity": "marks", "window": { "thin": [{ "after_ms": 60_000, "every_ms": 1000 }] } }),
        serde_json::json!({ "store_bytes": 1 << 20 }),
        serde_json::json!({ "store": small }),
    ] {
        let mut asked = serde_json::to_value(wish(folder.path(), "checkpointing")).expect("a wish");
        let fields = wrong.as_object().expect("fields").clone();
        asked.as_object_mut().expect("fields").extend(fields);
        let asked: api::VolumeHistory = serde_json::from_value(asked).expect("a wish");
        assert!(volumes.check_enable("vol0", &asked).is_err(), "{wrong}: a look tells it");
        assert!(volumes.enable_history("vol0", &asked).is_err(), "{wrong}");
        let still = volumes.get("vol0").expect("it is open");
        assert!(Arc::ptr_eq(&open, &still), "{wrong}: it was not closed for it");
    }
    volumes.check_enable("vol0", &wish(folder.path(), "checkpointing")).map(drop).expect("one that can be");
    drop(open);
    volumes.end();
}

#[test]
fn no_number_is_given_twice_when_the_history_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes_now = made(folder.path());
    volumes_now.enable_history("vol0", &wish(folder.path(), "checkpointing")).expect("it gets a history");
    volumes_now
        .get("vol0")
        .expect("it is open")
        .history()
        .expect("a history")
        .mark_once("one")
        .expect("a mark");
    let lost = numbers(&volumes_now, "lost");
    volumes_now.revert("vol0", &mark("one")).expect("it goes back");
    disable(&volumes_now).expect("it goes");
    volumes_now.end();
    drop(volumes_now);
    let again = volumes(folder.path());
    let next = numbers(&again, "next");
    assert!(next.0 > lost.0 && next.1 > lost.1, "{next:?} after {lost:?}");
    // Another history also has them.
    again.enable_history("vol0", &wish(folder.path(), "checkpointing")).expect("it gets another one");
    let given = again.document("vol0").expect("a document").numbers();
    assert!(given.snapshot > lost.0 && given.file > lost.1, "{given:?} after {lost:?}");
    again.end();
}

#[test]
fn nothing_of_the_opening_before_comes_past_the_history() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    let before = volumes.get("vol0").expect("it is open");
    let lun = before.luns.open("db").expect("a LUN");
    volumes.enable_history("vol0", &wish(folder.path(), "logging")).expect("it gets a history");
    assert!(lun.write_from(0, &[9; 4096]).is_err() && lun.flush().is_err(), "it takes nothing");
    assert_eq!(read(&volumes), 1);
    volumes.end();
}

#[test]
fn store_that_can_not_be_made_leaves_the_volume_in_service_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    fs::write(folder.path().join("store.img"), vec![7; 64 << 20]).expect("a file with something in it");
    let refused = volumes.enable_history("vol0", &wish(folder.path(), "logging")).err().expect("refused");
    assert!(matches!(refused, ServerError::Volumes(VolumesError::DeviceNotEmpty { .. })), "{refused}");
    assert_eq!((read(&volumes), has_history(&volumes)), (1, false));
    write(&volumes, 2);
    let own = api::VolumeHistory {
        store: volumes.folder("vol0").join("volume.img").display().to_string(),
        ..wish(folder.path(), "logging")
    };
    assert!(volumes.enable_history("vol0", &own).is_err(), "its own device is no store");
    assert_eq!((read(&volumes), has_history(&volumes)), (2, false));
    assert!(disable(&volumes).is_err(), "there is none");
    assert_sound(&volumes);
    volumes.end();
}

#[test]
fn volume_whose_history_is_lost_has_what_was_flushed_and_with_logging_is_refused() {
    in_each_placement(|placement| {
        let folder = tempfile::tempdir().expect("a folder");
        let before = made(folder.path());
        before.enable_history("vol0", &wish(folder.path(), placement)).expect("it gets a history");
        let open = before.get("vol0").expect("it is open");
        let lun = open.luns.open("db").expect("a LUN");
        for round in 2..6 {
            for block in 0..40 {
                lun.write_from(block * 4096, &[round; 4096]).expect("a write");
            }
            lun.flush().expect("a flush");
            if round == 3 {
                open.volume.consistency_point().expect("it commits");
            }
        }
        // As a cut leaves it, on a machine without the disk of the store.
        let after = tempfile::tempdir().expect("a folder");
        let there = after.path().join("volumes/vol0");
        fs::create_dir_all(&there).expect("a folder");
        for file in ["volume.img", "volume.json", "volume.json.old"] {
            fs::copy(before.folder("vol0").join(file), there.join(file)).expect("a copy");
        }
        drop((lun, open));
        before.end();
        let store = folder.path().join("store.img");
        assert!(before.discard_history("vol0", false).is_err(), "it is not lost");
        drop(before);
        let aside = folder.path().join("aside.img");
        fs::rename(&store, &aside).expect("it is gone");

        let lost = volumes(after.path());
        let told = lost.get("vol0").err().expect("it is not open").next();
        assert!(told.contains("--store-lost"), "{told}");
        let asked = lost.discard_history("vol0", true);
        assert!(lost.get("vol0").is_err(), "it was only asked");
        if placement == "logging" {
            assert!(
                matches!(asked, Err(ServerError::Volumes(VolumesError::OverHistory { .. }))),
                "{asked:?}"
            );
            assert!(lost.discard_history("vol0", false).is_err());
        } else {
            assert!(asked.expect("an answer").dry_run);
            let discarded = lost.discard_history("vol0", false).expect("it opens");
            assert_eq!(discarded.findings, Vec::<String>::new(), "{placement}");
            assert_eq!((read(&lost), has_history(&lost)), (5, false), "{placement}");
            let lun = lost.get("vol0").expect("it is open").luns.open("db").expect("a LUN");
            assert_eq!(lun.read(0, 40 * 4096).expect("a read").to_vec(), vec![5; 40 * 4096], "{placement}");
            drop(lun);
            assert_sound(&lost);
            assert_both_say_so(&lost);
            write(&lost, 9);
        }
        lost.end();
        drop(lost);
        fs::rename(&aside, &store).expect("it is back");
        let again = volumes(after.path());
        // A discarded history is not used again; otherwise it is unchanged.
        let expected = if placement == "logging" { (5, true) } else { (9, false) };
        assert_eq!((read(&again), has_history(&again)), expected, "{placement}");
        again.end();
    });
}

#[test]
fn volume_that_a_command_has_taken_away_is_busy_for_all_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = made(folder.path());
    volumes.enable_history("vol0", &wish(folder.path(), "hybrid")).expect("it gets a history");
    let open = volumes.get("vol0").expect("it is open");
    volumes.take_away(&open, BEING_DISABLED).expect("it closes");
    let busy = |error: Option<ServerError>| matches!(error, Some(ServerError::Busy { .. }));
    assert!(busy(volumes.get("vol0").err()));
    assert!(busy(volumes.delete("vol0").err()));
    assert!(busy(volumes.discard_history("vol0", false).err()));
    assert!(busy(volumes.discard_log("vol0", false).err()));
    assert!(volumes.open_again("vol0").is_none() && volumes.all().is_empty());
    let listed = volumes.list();
    assert!(
        listed[0].problem.as_ref().is_some_and(|why| why.contains("taken away")),
        "{:?}",
        listed[0].problem
    );
    let opened = volumes.open_over(&open, open.under.as_ref().expect("a history")).map_err(Arc::new);
    volumes.put("vol0", &opened);
    drop((open, opened));
    assert_eq!((read(&volumes), has_history(&volumes)), (1, true));
    assert_sound(&volumes);
    volumes.end();
}

#[test]
fn volume_with_its_log_apart_says_how_it_gets_instants_and_has_them_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let volumes_now = made(folder.path());
    let log = folder.path().join("log");
    fs::write(&log, vec![0; 16 << 20]).expect("a log device");
    volumes_now.move_log("vol0", log.to_str()).expect("it moves");
    let open = volumes_now.get("vol0").expect("it is open");
    let wish = wish(folder.path(), "checkpointing");
    let asked = [open.history().err(), volumes_now.check_enable("vol0", &wish).err()];
    for refused in asked.map(|refused| refused.expect("there is none")) {
        assert!(refused.to_string().contains("its intent log is on a device of its own"), "{refused}");
        assert!(refused.next().contains("cairn volume log vol0 --internal"), "{}", refused.next());
    }
    drop(open);
    volumes_now.move_log("vol0", None).expect("it moves back");
    volumes_now.enable_history("vol0", &wish).expect("it gets a history");
    let open = volumes_now.get("vol0").expect("it is open");
    open.history().expect("a history").mark_once("now").expect("a mark");
    drop(open);
    let view = api::CreateView { name: Some("then".to_owned()), instant: mark("now"), writable: false };
    volumes_now.show_instant("vol0", &view).expect("it is shown");
    volumes_now.end();
}
