//! Plans and the readers that they are made for: whatever happened to the snapshots of the source,
//! and whatever the reader has, it has the same afterwards.

use std::collections::BTreeMap;

use cairn_base::{BLOCK_SIZE, Checksum, FileId, Vbn};
use cairn_device::{DeviceError, FaultDevice};
use cairn_format::SnapshotEntry;
use cairn_volume::{BlockRead, Snapshot};

use super::*;

/// Blocks of the file.
const BLOCKS: u64 = 60;
/// The number of the mirror relationship.
const RELATIONSHIP: u64 = 7;

/// A volume with a file, and the content of each of its snapshots.
struct Source {
    volume: Arc<Volume>,
    file: FileId,
    now: Vec<u64>,
    then: BTreeMap<SnapshotId, Vec<u64>>,
    made: u64,
}

impl Source {
    fn new() -> Self {
        let volume = volume(Role::Normal);
        let file = volume.compound().create(FileKind::Lun, BLOCKS * BLOCK_SIZE as u64).expect("a file");
        Self { volume, file, now: vec![0; BLOCKS as usize], then: BTreeMap::new(), made: 0 }
    }

    /// Writes other numbers to that many blocks.
    fn write(&mut self, first: u64, count: u64) {
        let blocks: Vec<(Lba, Block)> = (first..first + count)
            .map(|lba| {
                self.made += 1;
                self.now[lba as usize] = self.made;
                let mut block = BlockMut::zeroed();
                block[..8].copy_from_slice(&self.made.to_le_bytes());
                (Lba(lba), block.freeze())
            })
            .collect();
        self.volume.write(self.file, &mut blocks.into_iter()).expect("there is room");
    }

    fn keep(&mut self, snapshot: Snapshot) -> SnapshotId {
        self.then.insert(snapshot.id, self.now.clone());
        snapshot.id
    }

    fn snapshot(&mut self) -> SnapshotId {
        self.made += 1;
        let snapshot = self.volume.create_snapshot(&format!("s{}", self.made)).expect("a snapshot");
        self.keep(snapshot)
    }

    /// One of the snapshots, if there are any.
    fn any(&self, rng: &mut Rng) -> Option<Snapshot> {
        let mut snapshots = self.volume.snapshots();
        (!snapshots.is_empty()).then(|| snapshots.swap_remove(rng.below(snapshots.len() as u64) as usize))
    }

    /// Whatever an owner does to snapshots.
    fn change(&mut self, rng: &mut Rng) {
        let any = self.any(rng);
        match (rng.below(6), any) {
            (0, _) => drop(self.snapshot()),
            (1, Some(any)) => {
                self.made += 1;
                self.volume.rename_snapshot(any.id, &format!("r{}", self.made)).expect("it is renamed");
            }
            (2, Some(any)) => self.volume.hold_snapshot(any.id, !any.held).expect("it is held, or is not"),
            (3, Some(any)) if !any.held => drop(self.volume.delete_snapshots(&[any.id]).expect("it goes")),
            _ => {
                let first = rng.below(BLOCKS);
                self.write(first, 1 + rng.below(BLOCKS - first));
            }
        }
    }

    /// Allocates the whole space again, so that blocks without a holder are reused.
    fn reuse_everything(&mut self) {
        for _ in 0..4096 / BLOCKS {
            self.write(0, BLOCKS);
            let snapshot = self.volume.create_snapshot("reuse").expect("a snapshot");
            self.volume.delete_snapshots(&[snapshot.id]).expect("it goes");
        }
    }

    fn entries_until(&self, target: SnapshotId) -> Vec<SnapshotEntry> {
        self.volume.snapshot_entries().into_iter().filter(|entry| entry.id <= target).collect()
    }

    /// The reader has these snapshots, each with its content.
    fn assert_has(&self, reader: &Arc<Volume>, entries: &[SnapshotEntry]) {
        assert_eq!(reader.snapshot_entries(), entries);
        for entry in entries {
            let image = reader.image(Some(entry.id)).expect("it is there");
            let mut reads = [BlockRead::new(Lba(0), BLOCKS)];
            image.read(self.file, &mut reads, true);
            let [read] = reads;
            let bytes = read.outcome.expect("it has an outcome").expect("it is read").to_vec();
            let number = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
            let numbers: Vec<u64> = bytes.chunks(BLOCK_SIZE).map(number).collect();
            assert_eq!(numbers, self.then[&entry.id], "{}", entry.name);
        }
        assert_eq!(reader.check(&mut |_| {}).expect("checked").findings, []);
    }
}

/// Writes the stream of a plan and applies it, with threads or without; its length matches the
/// plan.
fn bring(plan: &Plan, reader: &Arc<Volume>, threads: bool) {
    let mut bytes = Vec::new();
    let produced = |work: &mut Work<'_>| produce(plan, &mut bytes, Compression::None, work);
    on_threads(threads, produced).expect("produced");
    assert_eq!(plan.bytes(), bytes.len() as u64, "exact before a byte is sent");
    let apply = |work: &mut Work<'_>| apply(&mut &bytes[..], reader, work);
    let applied = on_threads(threads, apply).expect("applied");
    assert_eq!((applied.blocks, applied.target), (plan.blocks(), plan.header().target));
    assert_eq!(Some(&applied.name), plan.target().map(|entry| &entry.name));
}

#[test]
fn reader_that_shares_any_snapshots_gets_all_that_there_are_up_to_the_target() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mut source, reader) = (Source::new(), volume(Role::Destination));
        for round in 0..8 {
            (0..rng.below(12)).for_each(|_| source.change(&mut rng));
            if rng.below(4) == 0
                && let Some(back) = source.any(&mut rng)
            {
                let undo = source.volume.rollback(back.id).expect("it rolls back");
                source.keep(undo);
                source.now = source.then[&back.id].clone();
            }
            let target = source.snapshot();
            // It is newer than the target, and is not sent.
            source.snapshot();
            let plan = Plan::new(&source.volume, &Have::of(&reader), target).expect("a plan");
            let entries = source.entries_until(target);
            assert_eq!(plan.snapshots(), entries.len());
            // The snapshots deleted now were planned, and are sent.
            let free: Vec<SnapshotId> =
                entries.iter().filter(|entry| !entry.held).map(|entry| entry.id).collect();
            if rng.below(4) == 0 {
                source.volume.delete_snapshots(&free).expect("they go");
                source.reuse_everything();
            }
            bring(&plan, &reader, round % 2 == 0);
            source.assert_has(&reader, &entries);
        }
    }
}

#[test]
fn reader_that_has_the_base_of_a_relationship_needs_no_snapshot_at_the_source() {
    let mut without_base = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mut source, reader) = (Source::new(), volume(Role::Destination));
        let mut base: Option<SnapshotId> = None;
        for round in 0..8 {
            (0..rng.below(12)).for_each(|_| source.change(&mut rng));
            let name = format!("mirror.{round}");
            let made = source.volume.create_snapshot_since(&name, RELATIONSHIP).expect("a snapshot");
            let target = source.keep(made);
            let have = Have::of(&reader);
            let plan = match base {
                None => Plan::new(&source.volume, &have, target),
                Some(base) => {
                    without_base += u32::from(source.volume.snapshot(base).is_none());
                    let base = *have.iter().find(|have| have.id == base).expect("the reader has it");
                    Plan::since(&source.volume, &have, base, RELATIONSHIP, target)
                }
            };
            let plan = plan.expect("a plan");
            let entries = source.entries_until(target);
            bring(&plan, &reader, round % 2 == 0);
            source.assert_has(&reader, &entries);
            // One that is lost stays in flight, and comes with the next one.
            if base.is_some() && rng.below(4) > 0 {
                assert!(source.volume.acknowledge_since(RELATIONSHIP, target).expect("it is known"));
            }
            base = Some(target);
        }
    }
    assert!(without_base > 20, "{without_base} plans");
}

#[test]
fn reader_that_has_the_target_gets_its_new_name_and_no_block() {
    let mut source = Source::new();
    source.write(0, BLOCKS);
    let target = source.snapshot();
    let reader = volume(Role::Destination);
    for name in [None, Some("renamed")] {
        if let Some(name) = name {
            source.volume.rename_snapshot(target, name).expect("it is renamed");
        }
        let plan = Plan::new(&source.volume, &Have::of(&reader), target).expect("a plan");
        assert_eq!(plan.blocks() == 0, name.is_some());
        bring(&plan, &reader, false);
        source.assert_has(&reader, &source.volume.snapshot_entries());
    }
}

#[test]
fn image_that_was_not_written_or_read_to_its_end_is_not_shown_with_threads_either() {
    let mut source = Source::new();
    source.write(0, BLOCKS);
    let target = source.snapshot();
    let plan = Plan::new(&source.volume, &[], target).expect("a plan");
    let mut bytes = Vec::new();
    on_threads(true, |work| produce(&plan, &mut bytes, Compression::Zstd, work)).expect("produced");
    let mut failures = 0;
    loop {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Destination)));
        let reader = volume_on(device.clone(), Role::Destination);
        let take = |bytes: &[u8]| on_threads(true, |work| apply(&mut &bytes[..], &reader, work));
        take(&bytes[..bytes.len() / 2]).expect_err("it is cut");
        device.fail_operations(failures, 1, DeviceError::OutOfService);
        let outcome = take(&bytes);
        device.heal_operations();
        if outcome.is_ok() {
            source.assert_has(&reader, &source.volume.snapshot_entries());
            break;
        }
        assert_eq!(reader.status().cursor.snapshot, SnapshotId(0), "after a failure of operation {failures}");
        assert!(reader.snapshots().is_empty());
        failures += 1;
    }
    assert!(failures > 3, "{failures}");
}

#[test]
fn snapshot_with_the_same_number_and_another_content_is_no_base_and_no_common_one() {
    let (mut source, mut other) = (Source::new(), Source::new());
    for (volume, first) in [(&mut source, 0), (&mut other, 7)] {
        volume.write(first, 5);
        volume.snapshot();
        volume.write(20, 5);
    }
    let first = other.volume.snapshots()[0].id;
    let have = Have::of(&other.volume);
    let made = source.volume.create_snapshot_since("mirror.1", RELATIONSHIP).expect("a snapshot");
    let diverged = |plan: Result<Plan, StreamError>| match plan {
        Err(StreamError::Diverged { snapshot }) => snapshot == first,
        _ => false,
    };
    assert!(diverged(Plan::new(&source.volume, &have, made.id)));
    source.write(30, 5);
    let next = source.volume.create_snapshot_since("mirror.2", RELATIONSHIP).expect("a snapshot");
    let base = *Have::of(&source.volume).iter().find(|have| have.id == made.id).expect("it is there");
    let since = |have: &[Have]| Plan::since(&source.volume, have, base, RELATIONSHIP, next.id);
    assert!(diverged(since(&[have[0], base])));
    // A snapshot older than the base can't be sent with newer ones.
    let missing = since(&[base]).map(drop).expect_err("the reader lacks the first one");
    assert!(matches!(missing, StreamError::BaseMissing { base } if base == first), "{missing}");
    let own = Have::of(&source.volume);
    let another = Have { id: next.id, ..have[0] };
    let error = since(&[own[0], base, another]).map(drop).expect_err("the target is another one there");
    assert!(matches!(error, StreamError::Diverged { snapshot } if snapshot == next.id), "{error}");
    assert_eq!(since(&own[..2]).expect("it has both").header().base, made.id);
}

#[test]
fn dump_is_planned_against_an_earlier_snapshot_that_is_there() {
    let mut source = Source::new();
    let mut three = [(); 3].map(|()| {
        source.write(0, 10);
        source.snapshot()
    });
    three.sort();
    let [first, second, third] = three;
    let against = |base, target| Plan::against(&source.volume, base, target);
    let missing = |plan: Result<Plan, StreamError>, of| match plan {
        Err(StreamError::BaseMissing { base }) => base == of,
        _ => false,
    };
    assert_eq!(against(Some(first), third).expect("a plan").header().base, first);
    assert_eq!(against(Some(second), third).expect("a plan").header().base, second);
    assert_eq!(against(None, third).expect("a plan").header().base, SnapshotId(0));
    assert!(missing(against(Some(second), second), second), "against itself");
    assert!(missing(against(Some(third), second), third), "against a later one");
    source.volume.delete_snapshots(&[second]).expect("it goes");
    assert!(missing(Plan::against(&source.volume, Some(second), third), second), "against one that is gone");
}

#[test]
fn dump_goes_on_with_its_own_table_if_that_has_the_same_contents() {
    let mut source = Source::new();
    source.write(0, 10);
    source.snapshot();
    source.write(0, 5);
    let target = source.snapshot();
    let before = source.entries_until(target);
    let plan = || Plan::new(&source.volume, &[], target).expect("a plan");
    source.volume.rename_snapshot(before[0].id, "renamed").expect("it is renamed");
    let reader = volume(Role::Destination);
    let kept = plan().with_table(before.clone()).expect("only a name has changed");
    assert_eq!(kept.target().map(|entry| entry.id), Some(target));
    let differs = |table: Vec<SnapshotEntry>| match plan().with_table(table) {
        Err(StreamError::Diverged { snapshot }) => Some(snapshot),
        _ => None,
    };
    assert_eq!(differs(before[..1].to_vec()), Some(before[1].id), "one is missing there");
    let more = SnapshotEntry { id: SnapshotId(99), name: "more".to_owned(), ..before[1].clone() };
    assert_eq!(differs([&before[..], &[more]].concat()), Some(SnapshotId(99)), "one is missing here");
    let mut other = before.clone();
    other[1].root = other[0].root;
    assert_eq!(differs(other), Some(before[1].id), "another content");
    bring(&plan(), &reader, false);
}

#[test]
fn blocks_that_the_reader_says_it_has_are_left_out_if_they_are_these() {
    let mut source = Source::new();
    source.write(0, BLOCKS);
    let target = source.snapshot();
    let mut plan = Plan::new(&source.volume, &[], target).expect("a plan");
    let all: Vec<Vbn> =
        plan.runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn)).collect();
    let contents = source.volume.read_blocks(&plan.runs).expect("they are read");
    let blocks: BTreeMap<Vbn, Block> = all.iter().copied().zip(contents).collect();
    // Those of every second are right.
    let said: Vec<(Vbn, Checksum)> = all
        .iter()
        .enumerate()
        .map(|(at, vbn)| match at % 2 {
            0 => (*vbn, Checksum::of(&blocks[vbn][..])),
            _ => (*vbn, Checksum::of(b"another")),
        })
        .collect();
    let right: Vec<Vbn> = all.iter().step_by(2).copied().collect();
    let (total, mut pieces) = (plan.blocks(), said.chunks(10).map(<[_]>::to_vec));
    plan.leave_out(&mut || Ok::<_, StreamError>(pieces.next().unwrap_or_default()))
        .expect("they are compared");
    let left: Vec<Vbn> =
        plan.runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn)).collect();
    assert_eq!(plan.left_out(), right.len() as u64);
    assert_eq!((plan.blocks(), left.len() as u64), (total - plan.left_out(), total - plan.left_out()));
    assert!(left.iter().all(|vbn| !right.contains(vbn)));
    // No claims, nothing removed.
    let mut whole = Plan::new(&source.volume, &[], target).expect("a plan");
    whole.leave_out(&mut || Ok::<_, StreamError>(Vec::new())).expect("nothing is compared");
    assert_eq!((whole.left_out(), whole.blocks()), (0, total));
    assert_eq!(whole.runs.iter().map(|(_, count)| count).sum::<u64>(), total);
}
