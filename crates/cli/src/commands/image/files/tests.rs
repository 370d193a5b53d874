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

#[test]
fn file_of_another_program_under_the_temporary_name_is_not_emptied() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("dump");
    let partial = temporary(&path);
    let theirs = b"half of what another program is fetching".repeat(100);
    fs::write(&partial, &theirs).unwrap();
    for overwrite in [false, true] {
        let refused = Target::open(&path, overwrite).map(drop).unwrap_err();
        assert!(refused.body.message.contains("dump.partial"), "{}", refused.body.message);
        assert_eq!(refused.body.error, ErrorKind::Taken);
        let all = Target::open_all(std::slice::from_ref(&path), overwrite, true);
        assert_eq!(all.map(drop).unwrap_err().body.error, ErrorKind::Taken);
        assert!(fs::read(&partial).unwrap() == theirs, "nobody has given it up");
    }
    // The remainder of a dump that was interrupted at its very beginning is overwritten.
    let tape = [&1u32.to_le_bytes()[..], &[0; 20], &60012u32.to_le_bytes(), &[0; 996]].concat();
    for left in [&b""[..], b"CAIRND", b"CAIRNDMP and what is torn", &[0; 4096], &tape, &tape[..600]] {
        fs::write(&partial, left).unwrap();
        Target::open(&path, false).unwrap().keep().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        fs::remove_file(&path).unwrap();
    }
}

/// The first KiB of an image of a disk or of a file system is often empty: that of ext4 begins
/// after it.
#[test]
fn file_that_begins_with_zeroes_alone_is_not_emptied() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let partial = temporary(&path);
    for at in [RECORD as u64, 1 << 20, (3 << 30) + 5] {
        let theirs = File::create(&partial).unwrap();
        theirs.write_all_at(b"half of an image that another program is fetching", at).unwrap();
        let length = theirs.metadata().unwrap().len();
        for overwrite in [false, true] {
            let refused = Target::open(&path, overwrite).map(drop).unwrap_err();
            assert_eq!(refused.body.error, ErrorKind::Taken, "{}", refused.body.message);
        }
        assert_eq!(fs::metadata(&partial).unwrap().len(), length, "nobody has given it up");
    }
    // The remainder of a dump after a power cut: it is overwritten from the beginning.
    for length in [5, 4096, 5 << 30] {
        File::create(&partial).unwrap().set_len(length).unwrap();
        let target = Target::open(&path, false).unwrap();
        target.file().write_all(b"part").unwrap();
        target.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"part");
        fs::remove_file(&path).unwrap();
    }
}
