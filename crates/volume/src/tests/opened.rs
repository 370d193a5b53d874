//! The in-memory state of a volume equals that of a second opening of the same device, whatever was
//! done to it, and however it came there.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{BLOCK_SIZE, Rng, SnapshotId, Vbn};
use cairn_device::{Fate, LoggedKind};
use cairn_format::layout::{SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{Cursor, RedirectRun, SEGMENTS_MAX, SegmentKind, SnapshotEntry, Superblock};

use super::*;
use crate::commit::superblock::read_slots;

/// Blocks of a LUN.
const LENGTH: u64 = 300;
const RELATIONSHIP: u64 = 7;

/// The facts about a volume in its superblock and the structures below it.
#[derive(Debug, PartialEq)]
struct Known {
    superblock: Superblock,
    role: Role,
    cursor: Cursor,
    parent: SnapshotId,
    next: (u64, u64),
    snapshots: Vec<SnapshotEntry>,
    by_name: Vec<Option<SnapshotId>>,
    children: Vec<Vec<SnapshotId>>,
    own_head: Option<SnapshotId>,
    redirects: Vec<RedirectRun>,
    relationships: Vec<SinceRelationship>,
    /// Blocks of the label area that no table uses, and those of the redirect map.
    label: (usize, BTreeSet<u64>),
    space: [u64; 3],
    free: u64,
    used: Vec<u64>,
    stuck: BTreeSet<Vbn>,
    generation: u64,
}

fn known(volume: &Arc<Volume>) -> Known {
    let own_head = volume.own_head().map(|head| head.id);
    let relationships = volume.since_relationships();
    let commit = volume.commit.lock();
    let mut guard = volume.state.lock();
    let state = &mut *guard;
    state.settle_releases();
    let snapshots = state.snapshots.all();
    let kinds = [SegmentKind::Space, SegmentKind::Have, SegmentKind::Redirect];
    Known {
        superblock: commit.superblock.clone(),
        role: state.role,
        cursor: state.cursor,
        parent: state.parent,
        next: (state.next_snapshot, state.next_file),
        by_name: snapshots.iter().map(|entry| state.snapshots.by_name(&entry.name)).collect(),
        children: snapshots.iter().map(|entry| state.snapshots.children_of(entry.id)).collect(),
        snapshots,
        own_head,
        redirects: state.committed.redirects.iter().collect(),
        relationships,
        label: (commit.label.free(), commit.redirect_blocks.iter().copied().collect()),
        space: kinds.map(|kind| volume.store.space().blocks(kind)),
        free: state.used.free(),
        used: (0..state.used.blocks()).filter(|vbn| state.used.get(Vbn(*vbn))).collect(),
        stuck: state.stuck.iter().copied().collect(),
        generation: state.open.generation.0,
    }
}

fn opened(device: FaultDevice) -> (Arc<FaultDevice>, Arc<Volume>) {
    let device = Arc::new(device);
    let volume = open(&device);
    (device, volume)
}

/// One side of a mirror, and its last seen state.
struct Side {
    device: Arc<FaultDevice>,
    volume: Arc<Volume>,
    sequence: u64,
}

impl Side {
    fn new(blocks: u64, role: Role) -> Self {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Destination) * 4));
        let options = FormatOptions { id: VolumeId([7; 16]), blocks, role };
        Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
        let volume = open(&device);
        // Making a volume writes both slots at once.
        device.take_log();
        Self { device, volume, sequence: 0 }
    }

    /// A superblock is written when everything else is durable, one slot after the other, and
    /// nothing is left to the device's cache.
    fn assert_order(&self, note: &str) {
        let slots = [SUPERBLOCK_A, SUPERBLOCK_B].map(|address| address * BLOCK_SIZE as u64);
        let mut unflushed = 0;
        for operation in self.device.take_log() {
            match operation.kind {
                LoggedKind::Flush => unflushed = 0,
                _ => {
                    let is_slot = slots.contains(&operation.offset);
                    assert!(
                        !is_slot || unflushed == 0,
                        "{note}: a slot is written over {unflushed} operations"
                    );
                    unflushed += 1;
                }
            }
        }
        assert_eq!(unflushed, 0, "{note}: all is durable");
    }

    /// Checks the device after a commit.
    fn assert_whole(&mut self, note: &str) {
        self.assert_order(note);
        let [first, second] = read_slots(&*self.device).expect("they can be read");
        let (first, second) = (first.expect("it is whole"), second.expect("it is whole"));
        assert_eq!(first, second, "{note}: both slots name the same");
        assert!(first.sequence > self.sequence, "{note}: {} after {}", first.sequence, self.sequence);
        self.sequence = first.sequence;
        let here = known(&self.volume);
        let (device, other) = opened(self.device.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        assert_eq!(here, known(&other), "{note}");
        assert_sound(&other);
        drop(device);
    }

    /// Continues with the state after a cut.
    fn cut(&mut self) {
        (self.device, self.volume) = opened(self.device.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        self.device.take_log();
    }
}

/// Content by block; a missing block has zeroes.
type Content = BTreeMap<u64, u64>;

fn assert_content(volume: &Arc<Volume>, lun: FileId, content: &Content, note: &str) {
    let expected: Vec<u64> = (0..LENGTH).map(|lba| content.get(&lba).copied().unwrap_or(0)).collect();
    assert_eq!(read(volume, lun, 0, LENGTH), expected, "{note}");
}

#[test]
fn volume_knows_what_its_device_says_after_each_change_and_has_what_was_flushed_after_a_cut() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut side = Side::new(1024, Role::Normal);
        let lun = file(&side.volume, LENGTH);
        side.assert_whole("a new file");
        let mut content = Content::new();
        let mut images: BTreeMap<SnapshotId, Content> = BTreeMap::new();
        for step in 0..60 {
            let volume = side.volume.clone();
            let some = |rng: &mut Rng| {
                let all = volume.snapshots();
                (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize].clone())
            };
            let (first, count) = (rng.below(LENGTH - 30), 1 + rng.below(30));
            write(&volume, lun, first, count, step * 1000).expect("there is room");
            content.extend((first..first + count).map(|lba| (lba, step * 1000 + lba)));
            if rng.one_in(3) {
                volume.flush().expect("it flushes");
            }
            if rng.one_in(4) {
                let (first, count) = (rng.below(LENGTH - 30), 1 + rng.below(30));
                volume.punch(lun, Lba(first), count).expect("it is punched");
                content.retain(|lba, _| !(first..first + count).contains(lba));
            }
            // Growing a volume with a redirect area takes three segments more.
            let has_room = volume.commit.lock().superblock.layout.segments.len() + 3 <= SEGMENTS_MAX;
            let what = rng.below(14);
            let note = format!("seed {seed}, step {step}, {what}");
            match (what, some(&mut rng)) {
                (0 | 1, _) => drop(volume.consistency_point().expect("it commits")),
                (2 | 3, _) => {
                    let made = volume.create_snapshot(&format!("s{step}")).expect("it is made");
                    images.insert(made.id, content.clone());
                }
                (4, Some(one)) => volume.rename_snapshot(one.id, &format!("r{step}")).expect("it is renamed"),
                (5, Some(one)) => volume.hold_snapshot(one.id, !one.held).expect("it is there"),
                (6 | 7, Some(_)) => {
                    let free = volume.snapshots().into_iter().filter(|one| !one.held && rng.one_in(2));
                    let ids: Vec<_> = free.map(|one| one.id).collect();
                    volume.delete_snapshots(&ids).expect("they are deleted");
                    images.retain(|id, _| !ids.contains(id));
                }
                (8, Some(one)) => {
                    let kept = volume.rollback(one.id).expect("it rolls back");
                    images.insert(kept.id, content);
                    content = images[&one.id].clone();
                }
                (9, _) if has_room && volume.status().blocks < 4000 => {
                    volume.grow(volume.status().blocks + 1 + rng.below(300)).expect("the device has room");
                }
                (10, _) => {
                    let made = volume.create_snapshot_since(&format!("s{step}"), RELATIONSHIP);
                    images.insert(made.expect("there is room").id, content.clone());
                }
                (11, Some(one)) if !volume.since_relationships().is_empty() => {
                    volume.acknowledge_since(RELATIONSHIP, one.id).expect("it is there");
                }
                (12, Some(one)) => {
                    let relationship = rng.one_in(2).then_some(RELATIONSHIP);
                    let over: Vec<_> = volume.snapshots().into_iter().filter(|other| other.held).collect();
                    let over: Vec<_> =
                        over.into_iter().map(|other| other.id).filter(|id| *id != one.id).collect();
                    let name = format!("s{step}");
                    let next = Step { name: &name, relationship, base: one.id, over: &over };
                    let made = volume.create_snapshot_step(next).expect("there is room");
                    images.retain(|id, _| !over.contains(id));
                    images.insert(made.id, content.clone());
                    assert!(made.held, "{note}");
                }
                (13, _) if has_room => {
                    let head =
                        volume.demote(&format!("s{step}"), rng.one_in(2)).expect("the device has room");
                    images.insert(head.id, content.clone());
                    side.assert_whole(&note);
                    volume.failover().expect("it fails over");
                }
                _ => {
                    // Flushed data is present, and no consistency point is needed.
                    volume.flush().expect("it flushes");
                    side.assert_order(&note);
                    drop(volume);
                    side.cut();
                    assert_content(&side.volume, lun, &content, &note);
                    continue;
                }
            }
            volume.consistency_point().expect("it commits");
            side.assert_whole(&note);
            assert_content(&volume, lun, &content, &note);
        }
        let volume = &side.volume;
        for (id, content) in &images {
            let image = volume.image(Some(*id)).expect("it was not deleted");
            let expected: Vec<u64> = (0..LENGTH).map(|lba| content.get(&lba).copied().unwrap_or(0)).collect();
            assert_eq!(read_image(&image, lun, 0, LENGTH), expected, "seed {seed}: {id:?}");
        }
        let names: BTreeSet<SnapshotId> = volume.snapshots().iter().map(|one| one.id).collect();
        assert_eq!(names, images.keys().copied().collect(), "seed {seed}");
    }
}

#[test]
fn destination_knows_what_its_device_says_after_each_image_and_each_move_home() {
    let (mut redirected, mut moved) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let (_source_device, source) = fresh(1024);
        let lun = file(&source, LENGTH);
        // Little is free, so that numbers of deleted snapshots are soon given again.
        let other = file(&source, 1024);
        write(&source, other, 0, 350, 1).expect("there is room");
        let mut there = Side::new(1024, Role::Destination);
        let mut content = Content::new();
        for step in 0..25 {
            let note = format!("seed {seed}, step {step}");
            // Several rounds, so that blocks which the destination shows are used again.
            for round in 0..rng.below(4) {
                let (first, count) = (rng.below(LENGTH - 120), 1 + rng.below(120));
                let salt = 10_000 * step + 1000 * round;
                if write(&source, lun, first, count, salt).is_err() {
                    let all: Vec<SnapshotId> = source.snapshots().iter().map(|one| one.id).collect();
                    source.delete_snapshots(&all).expect("they are deleted");
                    write(&source, lun, first, count, salt).expect("there is room");
                }
                content.extend((first..first + count).map(|lba| (lba, salt + lba)));
                source.consistency_point().expect("it commits");
            }
            let target = source.create_snapshot(&format!("s{step}")).expect("it is made");
            let here = there.volume.snapshots();
            let gone: Vec<SnapshotId> = source
                .snapshots()
                .iter()
                .map(|one| one.id)
                .filter(|id| *id != target.id && rng.one_in(2))
                .collect();
            source.delete_snapshots(&gone).expect("they are deleted");
            let common: Vec<SnapshotId> =
                here.iter().map(|one| one.id).filter(|id| source.snapshot(*id).is_some()).collect();
            let changes = source.changed_blocks(&common, target.id).expect("they are compared");
            let held = rng.one_in(3).then(|| there.volume.image(None).expect("it is open"));
            let mut receiver = there.volume.receive().expect("nothing else is received");
            for run in &changes.runs {
                receiver
                    .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                    .expect("there is room");
            }
            let snapshots = source.snapshot_entries();
            receiver.commit(ReceivedImage { target: target.id, snapshots }).expect("it is whole");
            redirected += there.volume.status().redirected;
            drop(held);
            there.assert_whole(&note);
            if rng.one_in(3) {
                there.cut();
            }
            while there.volume.status().redirected > 0 && rng.one_in(2) {
                there.volume.background(std::time::Duration::ZERO).expect("the device works");
                there.assert_whole(&format!("{note}, moved home"));
                moved += 1;
            }
            if rng.one_in(4) {
                // It takes writes for a while, and becomes a destination again; the next image uses
                // none of its writes.
                there.volume.failover().expect("it fails over");
                there.assert_whole(&format!("{note}, failed over"));
                write(&there.volume, lun, 0, 20, 5).expect("there is room");
                there.volume.consistency_point().expect("it commits");
                there.assert_whole(&format!("{note}, written to"));
                let kept = there.volume.rollback(target.id).expect("it rolls back");
                there.volume.consistency_point().expect("it commits");
                there.volume.delete_snapshots(&[kept.id]).expect("it is deleted");
                there.assert_whole(&format!("{note}, rolled back"));
                let head = there.volume.demote("head", false).expect("the device has room");
                there.assert_whole(&format!("{note}, gave way"));
                assert_eq!(there.volume.own_head().map(|own| own.id), Some(head.id));
                let mut receiver = there.volume.receive().expect("nothing else is received");
                receiver.give_up_head();
                let all = source.changed_blocks(&[], target.id).expect("they are compared");
                for run in &all.runs {
                    receiver
                        .write(run.0, source.read_blocks(&[*run]).expect("they can be read"))
                        .expect("there is room");
                }
                let snapshots = source.snapshot_entries();
                receiver.commit(ReceivedImage { target: target.id, snapshots }).expect("it is whole");
                there.assert_whole(&format!("{note}, given up"));
            }
            assert_eq!(there.volume.status().cursor.snapshot, target.id);
            assert_content(&there.volume, lun, &content, &note);
        }
    }
    assert!(redirected > 100 && moved > 10, "{redirected} blocks were elsewhere, {moved} moves home");
}
