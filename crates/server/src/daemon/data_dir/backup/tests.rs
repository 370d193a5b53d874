//! A copy of the state holds the state alone, and a damaged one changes nothing.

use super::*;

fn data_dir(at: &Path) {
    for (path, content) in [
        ("identity.pem", "key"),
        ("http-token", "token"),
        ("peers.json", "{}"),
        ("lock", ""),
        ("reserve", "xxxx"),
        ("volumes/v/volume.json", "{\"devices\":[]}"),
        ("volumes/v/volume.json.old", "{}"),
        ("volumes/v/volume.img", "data of clients"),
        ("volumes/v/names.0", "a b c"),
        ("volumes/v/names.0.new", "half"),
        ("devices/d.json", "{}"),
        ("devices/d@c.store", "data of a clone"),
    ] {
        let path = at.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[test]
fn backup_has_the_state_without_data_and_comes_back_for_its_owner_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new, file) =
        (scratch.path().join("old"), scratch.path().join("new"), scratch.path().join("state"));
    data_dir(&old);
    let made = back_up(&old, &file, false).unwrap();
    assert_eq!(made.files, 7);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert!(matches!(back_up(&old, &file, false), Err(ServerError::Taken { .. })));
    back_up(&old, &file, true).unwrap();
    assert!(!String::from_utf8(fs::read(&file).unwrap()).unwrap().contains("data of"));
    assert_eq!(restore(&file, &new).unwrap().files, 7);
    assert_eq!(documents(&new).unwrap(), documents(&old).unwrap());
    assert_eq!(fs::read(new.join("volumes/v/names.0")).unwrap(), b"a b c");
    assert_eq!(fs::metadata(new.join("identity.pem")).unwrap().mode() & 0o777, 0o600);
    let again = restore(&file, &new);
    assert!(matches!(again, Err(ServerError::Daemon(DaemonError::DataDirNotEmpty { .. }))));
}

#[test]
fn damaged_or_foreign_backup_is_refused_and_makes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new, file) =
        (scratch.path().join("old"), scratch.path().join("new"), scratch.path().join("state"));
    data_dir(&old);
    back_up(&old, &file, false).unwrap();
    let good = fs::read(&file).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let refused = restore(&file, &new);
        assert!(matches!(refused, Err(ServerError::Daemon(DaemonError::InvalidBackup { .. }))));
        assert!(!new.exists());
    };
    for length in [0, 10, good.len() / 2, good.len() - 1] {
        refused(&good[..length]);
    }
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        refused(&bytes);
    }
    let text = String::from_utf8(good).unwrap();
    refused(text.replace("\"peers.json\"", "\"../passwd.json\"").as_bytes());
    for outside in ["../x.json", "/etc/x.json", "volumes/../x.json", "volumes/v/volume.img", "lock"] {
        assert!(!is_state(Path::new(outside)), "{outside}");
    }
}

#[test]
fn restore_that_was_cut_keeps_servers_out_and_is_done_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new, file) =
        (scratch.path().join("old"), scratch.path().join("new"), scratch.path().join("state"));
    data_dir(&old);
    back_up(&old, &file, false).unwrap();
    let all = documents(&old).unwrap();
    for done in 0..all.len() {
        fs::create_dir_all(new.join("volumes/v")).unwrap();
        fs::create_dir_all(new.join("devices")).unwrap();
        for path in ["lock", RESTORING] {
            File::create(new.join(path)).unwrap();
        }
        // The last one was cut in the middle.
        for path in &all[..=done] {
            fs::write(new.join(path), b"{").unwrap();
        }
        let opened = crate::daemon::data_dir::DataDir::open(&new).map(drop);
        assert!(matches!(opened, Err(ServerError::Daemon(DaemonError::StatePart { .. }))), "{opened:?}");
        assert_eq!(restore(&file, &new).unwrap().files, 7);
        assert_eq!(documents(&new).unwrap(), all);
        for path in &all {
            assert_eq!(fs::read(new.join(path)).unwrap(), fs::read(old.join(path)).unwrap());
        }
        crate::daemon::data_dir::DataDir::open(&new).unwrap();
        fs::remove_dir_all(&new).unwrap();
    }
}

#[test]
fn directory_in_use_is_not_restored_into() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new, file) =
        (scratch.path().join("old"), scratch.path().join("new"), scratch.path().join("state"));
    data_dir(&old);
    back_up(&old, &file, false).unwrap();
    fs::create_dir(&new).unwrap();
    let lock = File::create(new.join("lock")).unwrap();
    lock.try_lock().unwrap();
    assert!(matches!(restore(&file, &new), Err(ServerError::Daemon(DaemonError::DataDirBusy { .. }))));
    drop(lock);
    restore(&file, &new).unwrap();
}
