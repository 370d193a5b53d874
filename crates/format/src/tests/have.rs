//! The have map: its blocks have no seal, as their entries are compared with the blocks themselves.

use super::*;

#[test]
fn have_block_comes_out_as_it_went_in_and_is_of_its_epoch_alone() {
    let mut bytes = [7; cairn_base::BLOCK_SIZE];
    let cursor = Cursor { snapshot: SnapshotId(6), received: Timestamp(5) };
    let epoch = HaveBlock::epoch(VOLUME, &cursor);
    HaveBlock::clear(&mut bytes, epoch);
    assert!((0..HaveBlock::ENTRIES).all(|index| HaveBlock::get(&bytes, index).is_none()));
    (0..HaveBlock::ENTRIES).for_each(|index| HaveBlock::set(&mut bytes, index, checksum(index as u8)));
    for index in 0..HaveBlock::ENTRIES {
        assert_eq!(HaveBlock::get(&bytes, index), Some(checksum(index as u8)));
    }
    assert_eq!(HaveBlock::get(&bytes, HaveBlock::ENTRIES), None);
    assert!(HaveBlock::is_of(&bytes, epoch));
    for other in [
        HaveBlock::epoch(VolumeId([1; 16]), &cursor),
        HaveBlock::epoch(VOLUME, &Cursor { snapshot: SnapshotId(7), ..cursor }),
        HaveBlock::epoch(VOLUME, &Cursor { received: Timestamp(6), ..cursor }),
    ] {
        assert!(!HaveBlock::is_of(&bytes, other));
    }
    // Golden: a change of the format shows here.
    assert_eq!(format!("{:?}", Checksum::of(&bytes)), "3cdea7a8dbc069eb66b478bd2da950cf");
}
