//! Names of parts.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn parts_are_where_they_are_wanted_also_where_a_name_is_no_text() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join(OsStr::from_bytes(b"old \xe4\xf6\xfc"));
    fs::create_dir(&folder).unwrap();
    let wanted = folder.join(OsStr::from_bytes(b"dump\xff"));
    let paths = of_streams(std::slice::from_ref(&wanted), Some(2)).unwrap();
    let names = [&b"dump\xff.1"[..], b"dump\xff.2"].map(|name| folder.join(OsStr::from_bytes(name)));
    assert_eq!(paths, names);
    for target in Target::open_all(&paths, false, false).unwrap() {
        target.file().write_all(b"part").unwrap();
        target.keep().unwrap();
    }
    let mut found: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert_eq!(found, names);
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "nothing was made elsewhere");
}
