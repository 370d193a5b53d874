//! Folders without a server. The test `dump_folders_show_dumps_directly_in_them_and_nothing_else`
//! of the command line has dumps.

use std::os::unix::fs::symlink;

use super::*;

fn is_missing<T>(outcome: Result<T, ServerError>) -> bool {
    matches!(
        outcome.err(),
        Some(ServerError::Dumps(DumpsError::NoSuchFolder { .. } | DumpsError::NoDumpInFolder { .. }))
    )
}

#[test]
fn folder_is_named_exactly_as_it_was_declared() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("dumps");
    std::fs::create_dir(&folder).unwrap();
    symlink("/etc", folder.join("etc")).unwrap();
    let folders = DumpFolders::new(vec![folder.clone()]);
    let name = folder.to_str().unwrap();
    assert_eq!(folders.list().len(), 1);
    assert!(folders.dumps(name).unwrap().is_empty());
    for other in ["", "/", "/etc", &format!("{name}/"), &format!("{name}/etc"), &format!("{name}/../dumps")] {
        assert!(is_missing(folders.dumps(other)), "{other}");
    }
    let clock = || Arc::<cairn_base::ManualClock>::default();
    for id in ["", ".", "..", "etc", "../dumps", "/etc/passwd", &"0".repeat(32), &"\u{e4}".repeat(4000)] {
        assert!(is_missing(folders.open(name, id, clock(), 1 << 20)), "{id}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(folders.dumps(name), Err(ServerError::Path { .. })), "it is not there now");
}

#[test]
fn files_that_are_no_dumps_are_not_read_and_do_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let mut head = vec![0; HEAD_BYTES + 10];
    std::fs::write(dir.path().join("zeroes"), &head).unwrap();
    head.truncate(3);
    std::fs::write(dir.path().join("short"), &head).unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    let pipe = std::ffi::CString::new(dir.path().join("pipe").to_str().unwrap()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &*pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    let folders = DumpFolders::new(vec![dir.path().to_owned()]);
    assert!(folders.dumps(dir.path().to_str().unwrap()).unwrap().is_empty());
}
