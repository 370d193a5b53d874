//! Stores that no history has written, with right checksums: they are refused, or are a history.

use cairn_base::BLOCK_SIZE;
use cairn_format::BlockBytes;
use cairn_format::history::{HistorySuperblock, SLOT_A, SLOT_B};

use super::*;

const B: u64 = BLOCK_SIZE as u64;

fn stack(store_bytes: u64) -> Stack {
    let stack = Stack::new(&options(Placement::Logging, Granularity::EveryWrite, 4096), 16 * B, store_bytes);
    stack.fill(0, 4096, 7);
    stack.history.flush().expect("a flush");
    stack
}

/// Changes the superblock.
fn edit(stack: &Stack, change: impl Fn(&mut HistorySuperblock)) {
    let mut block: BlockBytes = [0; BLOCK_SIZE];
    stack.store.read_into(SLOT_A * B, &mut block).expect("a read");
    let mut superblock = HistorySuperblock::parse(&block, SLOT_A).expect("it is whole");
    change(&mut superblock);
    for slot in [SLOT_A, SLOT_B] {
        superblock.write(&mut block, slot);
        stack.store.write_from(slot * B, &block).expect("a write");
    }
}

#[test]
fn store_that_ends_before_its_last_segment_is_refused() {
    let mut stack = stack(4 * MIB);
    edit(&stack, |superblock| {
        superblock.segments += 1;
        superblock.live.push(false);
        superblock.ahead.push(false);
    });
    let need = (32 + 16 * 64) * B;
    match stack.reopen() {
        Err(HistoryError::StoreTooSmall { have, need: said }) => assert_eq!((have, said), (4 * MIB, need)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn store_whose_clock_has_nowhere_to_go_is_refused() {
    let mut stack = stack(4 * MIB);
    // The next stamps could not be read back.
    edit(&stack, |superblock| superblock.last_ns = u64::MAX / 2 - 2);
    assert!(matches!(stack.reopen(), Err(HistoryError::Damaged { .. })), "writes would be lost");
}
