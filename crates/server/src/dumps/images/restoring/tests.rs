//! The notes of a restore: what they record is durable, and a sample is removed before its block is
//! overwritten.

use cairn_base::{ManualClock, Timestamp};
use cairn_device::{BlockMut, MemoryDevice};

use super::*;

const SPACE: u64 = 1024;

fn run(first: u64, fills: &[u8]) -> (Vbn, Vec<Block>) {
    let block = |fill: &u8| {
        let mut block = BlockMut::zeroed();
        block.fill(*fill);
        block.freeze()
    };
    (Vbn(first), fills.iter().map(block).collect())
}

fn at(dump: usize, blocks: u64) -> Standing {
    Standing { dump, blocks, ..Standing::default() }
}

/// Two devices; the second one begins with block 10.
fn keeper(path: PathBuf, clock: Arc<dyn Clock>) -> Keeper {
    let lengths = vec![Volume::space_offset(SPACE) + 10 * BLOCK, SPACE * BLOCK];
    Keeper {
        path,
        device: Arc::new(MemoryDevice::new(lengths.iter().sum())),
        clock,
        notes: RestoreNotes { space_blocks: SPACE, lengths, ..RestoreNotes::default() },
        noted: false,
        standing: Standing::default(),
        recent: vec![VecDeque::new(); 2],
        next: VecDeque::new(),
        alignment: BLOCK,
        since: (0, Duration::ZERO),
        failed: false,
    }
}

#[test]
fn sample_is_noted_when_it_is_durable_and_crossed_out_before_it_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("restore.json");
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let mut keeper = keeper(path.clone(), clock.clone());
    let noted = || {
        let notes = state::load::<RestoreNotes>(&path).unwrap()?;
        let samples = notes.samples.iter().map(|one| (one.device, one.vbn, one.dump));
        Some((notes.dump, notes.blocks, samples.collect::<Vec<_>>()))
    };
    keeper.writing(0, &[run(3, &[1]), run(4, &[0])]).unwrap();
    keeper.written(&at(0, 2)).unwrap();
    assert_eq!(noted(), None, "it is not time yet");
    clock.advance(MARK_EVERY);
    keeper.writing(0, &[run(12, &[2, 3]), run(20, &[0])]).unwrap();
    keeper.written(&at(0, 5)).unwrap();
    assert_eq!(noted(), Some((0, 5, vec![(0, 3, 0), (1, 12, 0)])));
    // The next blocks are noted with the next mark; the samples that they overwrite are removed at
    // once, and all others stay.
    keeper.writing(1, &[run(2, &[4, 5])]).unwrap();
    assert_eq!(noted(), Some((0, 5, vec![(1, 12, 0)])), "before it is written");
    keeper.written(&at(1, 7)).unwrap();
    assert_eq!(noted(), Some((0, 5, vec![(1, 12, 0)])));
    // A failed write leaves its blocks with unknown content.
    keeper.writing(1, &[run(6, &[7])]).unwrap();
    assert!(keeper.stays());
    assert_eq!(noted(), Some((1, 7, vec![(0, 2, 1), (1, 12, 0)])));
    // The next volume may reuse blocks that the last dump does not have.
    keeper.cross_out(|sample| sample.dump != 1).unwrap();
    assert_eq!(noted(), Some((1, 7, vec![(0, 2, 1)])));
}

#[test]
fn restore_of_which_nothing_is_durable_leaves_no_notes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("restore.json");
    let mut keeper = keeper(path.clone(), Arc::new(ManualClock::new(Timestamp(1))));
    assert!(!keeper.stays() && !path.exists());
    keeper.writing(0, &[run(3, &[1])]).unwrap();
    keeper.written(&at(0, 1)).unwrap();
    keeper.failed = true;
    assert!(!keeper.stays() && !path.exists(), "a flush that failed is not tried again");
}
