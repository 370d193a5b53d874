//! Limits on one peer's use of a source.

use std::sync::Arc;

use cairn_base::Rng;
use cairn_device::{Device, MemoryDevice};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{Role, Volume};

use super::harness::{BLOCKS, Pair, Trouble, format, open};
use crate::{Compression, Destination, HELD_PER_PEER, MIRRORS_PER_PEER, MirrorError, Refusal, Relationship};

/// A further mirror of the peer, on a volume of its own.
fn further(pair: &Pair, number: u64) -> Destination {
    let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    format(&device, BLOCKS, Role::Destination, &pair.clock);
    Destination::new(open(&device, &pair.clock), "vol0", Relationship(number), Compression::None, None)
}

fn is_too_many(error: &MirrorError) -> bool {
    matches!(error, MirrorError::Refused(Refusal::TooMany))
}

#[test]
fn peer_has_so_many_mirrors_of_a_volume_and_a_further_one_leaves_nothing() {
    let pair = Pair::new(31);
    pair.write(pair.files[0], 0, 20, &mut Rng::new(31));
    let mirrors: Vec<Destination> = (0..MIRRORS_PER_PEER as u64).map(|at| further(&pair, 100 + at)).collect();
    for mirror in &mirrors {
        pair.update_with(mirror, Trouble::default()).expect("it has a place");
    }
    let known = pair.registry.followers().len();
    let last = further(&pair, 900);
    for _ in 0..3 {
        let error = pair.update_with(&last, Trouble::default()).expect_err("there is no place");
        assert!(is_too_many(&error), "{error}");
    }
    assert_eq!(pair.registry.followers().len(), known);
    // The existing ones continue, and a departing one frees its place.
    pair.write(pair.files[0], 0, 20, &mut Rng::new(32));
    pair.update_with(&mirrors[0], Trouble::default()).expect("an update");
    let gone = pair.registry.followers().remove(0).name;
    pair.registry.forget(&pair.source, &gone).expect("it is forgotten");
    pair.update_with(&last, Trouble::default()).expect("it has a place");
}

#[test]
fn peer_has_so_many_held_snapshots_of_a_volume() {
    let pair = Pair::new(33);
    pair.write(pair.files[0], 0, 20, &mut Rng::new(33));
    pair.update().expect("a baseline");
    let own = pair.source.snapshots().into_iter().find(|one| one.name.starts_with(MIRROR_PREFIX));
    let (peer, _) = own.as_ref().and_then(|own| own.name.rsplit_once('-')).expect("a base is held");
    for number in 0..HELD_PER_PEER {
        let name = format!("{peer}-00000000000000aa.{number}");
        let made = pair.source.create_snapshot(&name).expect("a snapshot");
        pair.source.hold_snapshot(made.id, true).expect("it is held");
    }
    pair.write(pair.files[0], 0, 20, &mut Rng::new(34));
    let error = pair.update().expect_err("there is no place");
    assert!(is_too_many(&error), "{error}");
}
