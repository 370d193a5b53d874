//! Tests of replacing a mirror.

use std::sync::Arc;

use cairn_base::{ByteSize, ManualClock, Timestamp, VolumeId};

use super::*;
use crate::peers::identity::Fingerprint;
use crate::volumes::{NewVolume, Volumes};

fn of(address: &str) -> MirrorDocument {
    MirrorDocument::of(address, Fingerprint::default(), "vol0", 1)
}

#[test]
fn place_of_a_mirror_is_given_once_and_not_after_it_was_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let volumes =
        Volumes::open(folder.path().to_owned(), ByteSize(16 << 20), clock, None).expect("no volumes");
    let (id, role, blocks) = (VolumeId([7; 16]), Role::Destination, Some(4096));
    let (devices, log_device, history, beside) = (&[][..], None, None, None);
    let new = NewVolume { name: "vol0", id, role, blocks, devices, log_device, history, beside };
    let open = volumes.create(&new).expect("a volume");
    let path = volumes.folder("vol0").join("mirror.json");
    let written =
        || state::load::<MirrorDocument>(&path).expect("it can be read").expect("it is there").address;

    let relation = Relation::new(&open, path.clone(), of("first:1"), 0);
    relation.give_place(&of("second:1")).expect("it follows another server");
    // If two threads have found it and replace it at once, the second fails.
    let refused = relation.give_place(&of("third:1"));
    assert!(matches!(refused, Err(ServerError::Busy { .. })), "both would write to the volume: {refused:?}");
    assert_eq!(written(), "second:1");

    let deleted = Relation::new(&open, path.clone(), of("first:1"), 0);
    deleted.retire();
    let refused = deleted.give_place(&of("third:1"));
    assert!(matches!(refused, Err(ServerError::Busy { .. })), "{refused:?}");
    assert_eq!(written(), "second:1");
}
