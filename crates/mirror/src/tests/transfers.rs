//! What a mirror promises, one test each.

use std::time::Duration;

use cairn_base::Rng;
use cairn_volume::Role;

use super::harness::{BLOCKS, Pair, Trouble, assert_clean, content, fingerprint};
use crate::{DestinationState, MirrorError, TransferKind};

#[test]
fn first_update_brings_everything_and_the_next_brings_changes() {
    let pair = Pair::new(0);
    let mut rng = Rng::new(1);
    pair.write(pair.files[0], 0, 200, &mut rng);
    let first = pair.update().expect("a baseline");
    assert_eq!(first.kind, TransferKind::Baseline);
    assert!(first.confirmed && first.blocks >= 200, "{first:?}");
    pair.assert_mirrored();
    pair.write(pair.files[1], 5, 100, &mut rng);
    let second = pair.update().expect("an update");
    assert_eq!(second.kind, TransferKind::Update);
    assert!((100..150).contains(&second.blocks), "{second:?}");
    let limit = second.blocks * 4096 * 101 / 100 + 2048;
    assert!(second.bytes <= limit, "{} bytes for {} blocks", second.bytes, second.blocks);
    pair.assert_mirrored();
    let own = pair.source.snapshots().into_iter().filter(|s| s.name.starts_with("mirror.")).count();
    assert_eq!(own, 1, "the source keeps one base");
}
