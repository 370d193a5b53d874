//! The file for discarded blocks; and ages.

use cairn_base::{Generation, Timestamp};

use super::super::tests::{clock, known, mirrors, of, written};
use super::*;
use crate::mirrors::error::MirrorsError;

#[test]
fn file_of_a_spill_is_written_by_one_at_a_time_and_goes_if_it_is_not_finished() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("lost.cairn");
    let path = path.to_str().expect("a path that is a text");
    let begin = |may_be_there| Spill::begin(Some(path), may_be_there);
    assert!(Spill::begin(None, false).expect("nothing is wished").is_none());
    // The remainder of a killed attempt is overwritten.
    fs::write(format!("{path}.part"), "half of it").expect("a file can be written");
    let one = begin(false).expect("it can be written").expect("it was wished");
    assert_eq!(fs::metadata(&one.unfinished).expect("it is there").len(), 0);
    assert!(matches!(begin(false), Err(ServerError::Busy { .. })), "another one would write into it");
    drop(one);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left of it");
    let one = begin(true).expect("it can be written").expect("it was wished");
    fs::rename(&one.unfinished, path).expect("it gets its name");
    drop(one);
    assert!(matches!(begin(false), Err(ServerError::Taken { .. })));
    let there = begin(true).expect("it may be the spill").expect("it was wished");
    assert!(there.file.is_none(), "and is not written over");
    let nowhere = folder.path().join("no-such-folder/lost.cairn");
    assert!(matches!(Spill::begin(nowhere.to_str(), true), Err(ServerError::Path { .. })));
}

#[test]
fn what_a_clock_noted_that_was_ahead_is_not_of_a_moment_ago_until_that_time_has_come() {
    let (at_ms, minute, day) = (1_700_000_000_000, 60_000, 24 * 3_600_000);
    assert!(is_recent(at_ms, at_ms + minute - 1, minute));
    assert!(!is_recent(at_ms, at_ms + minute, minute));
    assert!(is_recent(at_ms, at_ms - 1, minute), "the clock was put back by a moment");
    assert!(
        !is_recent(at_ms + day, at_ms, minute),
        "it was a day ahead: the other side may be silent since then"
    );
}

#[test]
fn resync_with_one_mirror_that_is_refused_forgets_nothing_of_another_one() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (mirrors, open) = mirrors(folder.path(), clock(), Role::Normal);
    // It took over from another side, which has followed it since; a further mirror of it was
    // failed over.
    let before = known(&mirrors, &open, &of("old:1", Some(Change::Reverse)));
    let path = mirrors.volumes.folder("vol0").join("mirror.json");
    let document = MirrorDocument::of("further:2", Fingerprint::default(), "vol0", 2);
    let further = Arc::new(Relation::new(&open, path, document, 0));
    // That one takes no writes by now.
    let standing = Standing {
        id: open.volume.id(),
        role: Role::Destination,
        own_head: SnapshotId(0),
        handed_over: false,
        generation: Generation(9),
        changed: Timestamp(9),
        used: 9,
        snapshots: Vec::new(),
    };
    let wish = api::ResyncRequest { discard: true, ..api::ResyncRequest::default() };
    let progress = Progress::new(mirrors.clock.clone());
    let refused = mirrors.give_way(&further, &open, &progress, &standing, &wish);
    assert!(matches!(refused, Err(ServerError::Mirrors(MirrorsError::Mirror { .. }))), "{refused:?}");
    let known = mirrors.get("vol0").expect("it is known");
    assert!(Arc::ptr_eq(&known, &before), "whom it took over from");
    assert!(known.refuse_replaced().is_ok() && known.is_failed_over());
    let document = written(&mirrors);
    assert_eq!((document.address.as_str(), document.relationship), ("old:1", 1), "also after the next start");
    assert_eq!(document.change.map(|change| change.kind), Some(Change::Reverse));
}
