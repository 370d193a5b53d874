//! Changes of several files: whole or not at all, whatever happens.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::Rng;
use cairn_format::{Attributes, FANOUT, Inode, TreeRef};

use super::*;
use crate::limits::INODE_COST;

/// A file as the model has it: its owner is a stamp, its blocks are numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Known {
    stamp: u32,
    length_bytes: u64,
    blocks: BTreeMap<u64, u64>,
}

type State = BTreeMap<FileId, Known>;

/// Files of a change that takes more than one record of the log.
const CROWD: u32 = 1500;
/// Blocks of a file that is freed in the background.
const LONG: u64 = 1100;

fn inode(id: FileId, known: &Known, removed: bool) -> Inode {
    let attributes =
        Attributes { mode: 0o100_644, links: 1, uid: known.stamp, modified_ns: -7, ..Attributes::default() };
    Inode {
        kind: FileKind::Node,
        removed,
        id,
        length_bytes: known.length_bytes,
        created: Timestamp(5),
        relationship: 0,
        tree: TreeRef::empty(1),
        attributes,
    }
}

/// The visible state of these files.
fn observed(volume: &Arc<Volume>, files: impl Iterator<Item = FileId>) -> State {
    let mut state = State::new();
    for id in files {
        let inode = match volume.inode(id) {
            Ok(inode) if !inode.removed => inode,
            Ok(_) | Err(VolumeError::NoSuchFile(_)) => continue,
            Err(error) => panic!("{id}: {error}"),
        };
        let mut known =
            Known { stamp: inode.attributes.uid, length_bytes: inode.length_bytes, ..Known::default() };
        let blocks = inode.length_bytes.div_ceil(4096).min(4);
        let numbers = if blocks == 0 { Vec::new() } else { read(volume, id, 0, blocks) };
        known.blocks.extend((0..).zip(numbers).filter(|(_, number)| *number != 0));
        assert_eq!(inode.attributes.modified_ns, -7);
        state.insert(id, known);
    }
    state
}

/// One life: changes, flushes and consistency points until the power goes.
struct Life {
    volume: Arc<Volume>,
    rng: Rng,
    /// The state after each change.
    states: Vec<State>,
    /// Files ever made.
    files: Vec<FileId>,
    /// The states from this one on can be there after a cut.
    durable: usize,
}

impl Life {
    fn step(&mut self, number: u32) -> Result<(), VolumeError> {
        match self.rng.below(12) {
            0..=6 => self.some_change(number),
            7 | 8 => {
                let now = self.states.len() - 1;
                self.volume.flush()?;
                self.durable = now;
                Ok(())
            }
            9 => {
                let now = self.states.len() - 1;
                self.volume.consistency_point()?;
                self.durable = now;
                Ok(())
            }
            10 => self.volume.background(Duration::ZERO),
            _ => self.crowd(number),
        }
    }

    /// The same stamp on up to four files: made, written, made longer or shorter, or removed.
    fn some_change(&mut self, stamp: u32) -> Result<(), VolumeError> {
        let mut state = self.states.last().cloned().unwrap_or_default();
        let mut change = Change::new();
        let mut frees = true;
        let mut taken = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let old = self.files.get(self.rng.below(self.files.len() as u64 + 1) as usize).copied();
            let id = match old.filter(|id| state.contains_key(id)) {
                Some(id) => id,
                None => {
                    let id = self.volume.next_file()?;
                    self.files.push(id);
                    id
                }
            };
            // A change has one final state of a file.
            if taken.contains(&id) {
                continue;
            }
            taken.push(id);
            if self.rng.below(5) == 0
                && let Some(known) = state.remove(&id)
            {
                change.put(inode(id, &known, true));
                continue;
            }
            frees = false;
            let known = state.entry(id).or_default();
            known.stamp = stamp;
            known.length_bytes = [1, 4096, 4097, 12_288, LONG * 4096][self.rng.below(5) as usize];
            let length = known.length_bytes.div_ceil(4096);
            known.blocks.retain(|lba, _| *lba < length);
            change.put(inode(id, known, false));
            if self.rng.below(4) == 0 {
                change.punch(id, Lba(0), length.min(2));
                known.blocks.retain(|lba, _| *lba >= 2);
            }
            for lba in (0..length.min(4)).filter(|_| self.rng.below(2) == 0).collect::<Vec<_>>() {
                change.write(id, Lba(lba), block(u64::from(stamp) << 8 | lba));
                known.blocks.insert(lba, u64::from(stamp) << 8 | lba);
            }
        }
        self.volume.change(change, frees)?;
        self.states.push(state);
        Ok(())
    }

    /// As many files as do not fit into one record.
    fn crowd(&mut self, stamp: u32) -> Result<(), VolumeError> {
        let mut state = self.states.last().cloned().unwrap_or_default();
        let mut change = Change::new();
        if self.files.len() < CROWD as usize {
            for _ in 0..CROWD {
                self.files.push(self.volume.next_file()?);
            }
        }
        for id in self.files.iter().rev().take(CROWD as usize) {
            let known = state.entry(*id).or_default();
            known.stamp = stamp;
            change.put(inode(*id, known, false));
        }
        self.volume.change(change, false)?;
        self.states.push(state);
        Ok(())
    }
}

#[test]
fn change_is_there_whole_or_not_at_all_after_a_cut_at_each_operation() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..3 {
        let mut cut = 0;
        loop {
            let device = Arc::new(FaultDevice::new(Volume::device_bytes(16_384, Role::Normal)));
            format(&*device, 16_384);
            let (states, files) = (vec![State::new()], Vec::new());
            let mut life = Life { volume: open(&device), rng: Rng::new(seed), states, files, durable: 0 };
            device.cut_after(cut);
            let went_out = (1..26).any(|number| life.step(number).is_err());
            let Life { volume, states, files, durable, .. } = life;
            drop(volume);
            let device = Arc::new(device.power_cycle(&mut Rng::new(seed * 1000 + cut)));
            let volume = open(&device);
            let seen = observed(&volume, files.iter().copied());
            let which = states[durable..].iter().position(|state| *state == seen);
            assert!(which.is_some(), "seed {seed}, cut {cut}: no state since {durable} of {}", states.len());
            lost += usize::from(which != Some(states.len() - 1 - durable));
            kept += usize::from(which != Some(0));
            // Work continues from there, and the changes recovered from the log are committed.
            volume.consistency_point().expect("it commits");
            assert_eq!(observed(&volume, files.iter().copied()), seen, "seed {seed}, cut {cut}");
            let next = volume.next_file().expect("it is writable");
            assert!(!seen.contains_key(&next), "{next} is given twice");
            assert_sound(&volume);
            if !went_out {
                break;
            }
            // Each operation of the first steps, and some of the later ones.
            cut += if cut < 40 { 1 + seed } else { 9 + seed };
        }
    }
    assert!(lost > 5 && kept > 5, "{lost} {kept}");
}

#[test]
fn removed_files_give_their_space_back() {
    let (device, volume) = fresh(8192);
    let make = |length: u64| {
        let id = volume.next_file().expect("it is writable");
        let known = Known { stamp: 1, length_bytes: length * 4096, ..Known::default() };
        let mut change = Change::new();
        change.put(inode(id, &known, false));
        (0..length).for_each(|lba| change.write(id, Lba(lba), block(lba + 1)));
        volume.change(change, false).expect("there is room");
        (id, known)
    };
    let kept = make(1);
    volume.consistency_point().expect("it commits");
    let before = volume.status().used;
    let few = make(10);
    let many = make(2000);
    volume.consistency_point().expect("it commits");
    assert!(volume.status().used > before + 2010);
    let mut change = Change::new();
    change.put(inode(few.0, &few.1, true));
    change.put(inode(many.0, &many.1, true));
    volume.change(change, true).expect("it is removed");
    assert!(matches!(volume.inode(few.0), Err(VolumeError::NoSuchFile(_))), "few blocks go at once");
    volume.flush().expect("it flushes");
    drop(volume);

    let volume = open(&device);
    for _ in 0..4 {
        volume.background(Duration::ZERO).expect("it works");
    }
    volume.consistency_point().expect("it commits");
    assert!(matches!(volume.inode(many.0), Err(VolumeError::NoSuchFile(_))), "many after a while");
    assert!(volume.status().used <= before + 2, "{} blocks, {before} before", volume.status().used);
    assert_eq!(read(&volume, kept.0, 0, 1), [1]);
    assert_sound(&volume);
}

#[test]
fn removed_files_that_the_log_brings_back_are_freed_together() {
    let (device, volume) = fresh(8192);
    let known = Known { stamp: 1, length_bytes: 4096, ..Known::default() };
    let files: Vec<FileId> = (0..200).map(|_| volume.next_file().expect("it is writable")).collect();
    let mut made = Change::new();
    for id in &files {
        made.put(inode(*id, &known, false));
        made.write(*id, Lba(0), block(1));
    }
    volume.change(made, false).expect("there is room");
    volume.consistency_point().expect("it commits");
    let mut gone = Change::new();
    files.iter().for_each(|id| gone.put(inode(*id, &known, true)));
    volume.change(gone, true).expect("they are removed");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = open(&device);
    volume.background(Duration::ZERO).expect("it works");
    assert_eq!(volume.status().consistency_points, 1);
    for id in &files {
        assert!(matches!(volume.inode(*id), Err(VolumeError::NoSuchFile(_))), "{id}");
    }
    assert_sound(&volume);
}

#[test]
fn removed_file_is_left_alone_once_the_volume_has_given_way() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Destination) * 2));
    format(&*device, 4096);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.compound().remove(lun).expect("it is removed");
    let head = volume.demote("head", false).expect("it gives way");
    // The background saw the file before, and its turn came after the change of role.
    volume.free_removed().expect("there is nothing to do now");
    assert_eq!(volume.status().generation, head.generation, "what it gave way with is what it shows");
}

#[test]
fn removed_file_waits_for_room_and_the_background_goes_on() {
    let (_device, volume) = fresh(4096);
    let long = file(&volume, crate::limits::REMOVE_BLOCKS + 10);
    write(&volume, long, 0, 1, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.compound().remove(long).expect("it is removed");
    // Blocks that were free when the background looked are taken when its turn comes.
    let mut taken = Vec::new();
    {
        let mut state = volume.state.lock();
        let all = state.used.free() as usize;
        assert!(state.used.allocate(all, &mut taken));
    }
    volume.free_removed().expect("it waits for room");
    taken.iter().for_each(|vbn| volume.state.lock().used.clear(*vbn));
    for _ in 0..4 {
        volume.background(Duration::ZERO).expect("it goes on");
    }
    assert!(matches!(volume.inode(long), Err(VolumeError::NoSuchFile(_))));
    assert_sound(&volume);
}

#[test]
fn change_that_is_refused_leaves_nothing() {
    let (_device, volume) = fresh(1024);
    let id = volume.next_file().expect("it is writable");
    let known = Known { stamp: 1, length_bytes: 4096, ..Known::default() };
    let mut past_the_end = Change::new();
    past_the_end.put(inode(id, &known, false));
    past_the_end.write(id, Lba(1), block(1));
    assert!(matches!(volume.change(past_the_end, false), Err(VolumeError::Refused(_))));
    assert!(matches!(volume.inode(id), Err(VolumeError::NoSuchFile(_))));
    let mut nowhere = Change::new();
    nowhere.write(id, Lba(0), block(1));
    assert!(matches!(volume.change(nowhere, false), Err(VolumeError::NoSuchFile(_))));
    let mut too_much = Change::new();
    too_much.put(inode(id, &Known { length_bytes: 4096 * 4096, ..known.clone() }, false));
    (0..2000).for_each(|lba| too_much.write(id, Lba(lba), block(1)));
    assert!(matches!(volume.change(too_much, false), Err(VolumeError::NoSpace)));
    assert!(matches!(volume.inode(id), Err(VolumeError::NoSuchFile(_))));
    let lun = file(&volume, 1);
    let mut other = Change::new();
    other.put(Inode { kind: FileKind::Lun, ..inode(lun, &known, false) });
    assert!(matches!(volume.change(other, false), Err(VolumeError::Refused(_))));
    assert_sound(&volume);
}

#[test]
fn change_of_another_active_state_is_refused() {
    let (_device, volume) = fresh(1024);
    let early = volume.create_snapshot("early").expect("it is made");
    let known = Known { stamp: 1, length_bytes: 4096, ..Known::default() };
    let id = volume.next_file().expect("it is writable");
    let mut change = Change::of(volume.head());
    assert!(change.is_empty() && Change::new().is_empty());
    change.put(inode(id, &known, false));
    assert!(!change.is_empty());
    volume.change(change.clone(), false).expect("it is of what is there");
    volume.rollback(early.id).expect("it rolls back");
    assert!(matches!(volume.change(change, false), Err(VolumeError::OtherHead)));
    assert!(matches!(volume.inode(id), Err(VolumeError::NoSuchFile(_))));
    let mut change = Change::of(volume.head());
    change.put(inode(id, &known, false));
    volume.change(change, false).expect("it is of what is there now");
    assert!(volume.inode(id).is_ok());
}

/// Whatever is changed first in a generation, the generation ends ten seconds later.
#[test]
fn change_of_any_kind_waits_no_longer_than_the_interval() {
    type Kind = (&'static str, fn(&Arc<Volume>, FileId, FileId));
    let known = || Known { stamp: 1, length_bytes: 8192, ..Known::default() };
    fn one(change: impl FnOnce(&mut Change)) -> Change {
        let mut made = Change::new();
        change(&mut made);
        made
    }
    let kinds: [Kind; 10] = [
        ("a block of a LUN", |volume, lun, _| write(volume, lun, 0, 1, 5).expect("there is room")),
        ("a hole", |volume, lun, _| volume.punch(lun, Lba(0), 1).expect("it is punched")),
        ("a new LUN", |volume, _, _| {
            volume.compound().create(FileKind::Lun, 4096).expect("there is room");
        }),
        ("another length", |volume, lun, _| volume.compound().resize(lun, 4096).expect("there is room")),
        ("a longer one", |volume, lun, _| volume.compound().resize(lun, 1 << 20).expect("there is room")),
        ("a LUN that goes", |volume, lun, _| volume.compound().remove(lun).expect("it is removed")),
        ("a block of a directory", |volume, lun, _| {
            volume.compound().write(lun, Lba(0), block(1)).expect("there is room");
        }),
        ("attributes", |volume, _, node| {
            let known = Known { stamp: 2, length_bytes: 8192, ..Known::default() };
            volume
                .change(one(|change| change.put(inode(node, &known, false))), false)
                .expect("there is room");
        }),
        ("a file that goes", |volume, _, node| {
            volume
                .change(one(|change| change.put(inode(node, &Known::default(), true))), true)
                .expect("it goes");
        }),
        ("a block of a file", |volume, _, node| {
            volume.change(one(|change| change.write(node, Lba(0), block(1))), false).expect("there is room");
        }),
    ];
    for (what, change) in kinds {
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Normal)));
        format(&*device, 4096);
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
        let volume = Volume::open(device, options).expect("it opens");
        let lun = file(&volume, 100);
        write(&volume, lun, 0, 100, 1).expect("there is room");
        let node = volume.next_file().expect("it is writable");
        let made = one(|change| change.put(inode(node, &known(), false)));
        volume.change(made, false).expect("there is room");
        volume.consistency_point().expect("it commits");
        let before = volume.status().generation;
        clock.advance(CONSISTENCY_INTERVAL * 3);
        volume.background(Duration::ZERO).expect("it works");
        assert_eq!(volume.status().generation, before, "nothing has changed");
        change(&volume, lun, node);
        clock.advance(CONSISTENCY_INTERVAL - Duration::from_nanos(1));
        if !what.ends_with("goes") {
            volume.background(Duration::ZERO).expect("it works");
            assert_eq!(volume.status().generation, before, "{what}: it is not time yet");
        }
        clock.advance(Duration::from_nanos(1));
        // A removed file may take a round of its own.
        volume.background(Duration::ZERO).expect("it works");
        assert!(volume.status().generation > before, "{what} waits longer");
        assert_eq!(volume.status().dirty, 0, "{what} is still in memory");
    }
}

/// Files as tall as can be, a few blocks of each, in a volume with next to no room: each of many
/// cuts a path, or makes one.
#[test]
fn change_of_many_files_is_taken_whole_and_can_be_committed_or_there_is_no_space_for_it() {
    const TALL: u64 = 1 << 27;
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(4096);
        let tall = Known { stamp: 1, length_bytes: TALL * 4096, ..Known::default() };
        let files: Vec<FileId> = (0..60).map(|_| volume.next_file().expect("it is writable")).collect();
        for some in files.chunks(10) {
            let mut change = Change::new();
            for id in some {
                change.put(inode(*id, &tall, false));
                for at in 0..5 {
                    change.write(*id, Lba(at * TALL / 5 + 7), block(at + 1));
                    change.write(*id, Lba(at * TALL / 5 + 8), block(at + 1));
                }
            }
            volume.change(change, false).expect("there is room");
            volume.consistency_point().expect("it commits");
        }
        // Blocks that they release stay in use.
        volume.create_snapshot("before").expect("it is made");
        let ballast = file(&volume, 4096);
        let mut at = 0;
        let room = rng.below(700);
        while volume.status().free > room && write(&volume, ballast, at, 1, 1).is_ok() {
            at += 1;
        }
        volume.consistency_point().expect("it commits");
        for stamp in 2..30 {
            // Between two neighbours: the nodes above both are rewritten.
            let cut = (1 + rng.below(4)) * TALL / 5 + 8;
            let known = Known { stamp, length_bytes: cut * 4096, ..Known::default() };
            let mut change = Change::new();
            let first = rng.below(50) as usize;
            for id in &files[first..(first + 1 + rng.below(50) as usize).min(files.len())] {
                match rng.below(4) {
                    0 => change.punch(*id, Lba(rng.below(2) * TALL / 5 + 8), 1 + rng.below(TALL / 4)),
                    1 => change.write(*id, Lba(rng.below(TALL / 4)), block(9)),
                    _ => change.put(inode(*id, &known, false)),
                }
            }
            match volume.change(change, false) {
                Ok(()) => taken += 1,
                Err(VolumeError::NoSpace) => refused += 1,
                Err(VolumeError::Refused(_)) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if rng.one_in(3) {
                let done = volume.consistency_point();
                assert!(done.is_ok(), "seed {seed}: what was taken can be committed: {:?}", done.err());
            }
        }
        volume.consistency_point().expect("what was taken can be committed");
        assert_sound(&volume);
    }
    assert!(taken > 20 && refused > 20, "{taken} {refused}");
}

#[test]
fn files_of_a_full_volume_can_be_removed_though_nothing_else_has_room() {
    let (_device, volume) = fresh(2048);
    let known = Known { stamp: 1, length_bytes: 10 * 4096, ..Known::default() };
    let files: Vec<FileId> = (0..12).map(|_| volume.next_file().expect("it is writable")).collect();
    for id in &files {
        let mut made = Change::new();
        made.put(inode(*id, &known, false));
        (0..10).for_each(|lba| made.write(*id, Lba(lba), block(1)));
        volume.change(made, false).expect("there is room");
    }
    let ballast = file(&volume, 1 << 20);
    volume.create_snapshot("keeps").expect("it is made");
    let mut at = 0;
    for _ in 0..3 {
        // Far from one another: nodes take the rest as well.
        while write(&volume, ballast, at * 131 % (1 << 20), 1, 1).is_ok() {
            at += 1;
        }
        volume.consistency_point().expect("it commits");
    }
    for id in &files {
        assert!(matches!(write(&volume, ballast, at * 131 % (1 << 20), 1, 1), Err(VolumeError::NoSpace)));
        assert!(matches!(volume.compound().create(FileKind::Lun, 4096), Err(VolumeError::NoSpace)));
        let mut gone = Change::new();
        gone.put(inode(*id, &known, true));
        volume.change(gone, true).expect("a removal is made to free space");
        volume.consistency_point().expect("it commits");
        assert!(matches!(volume.inode(*id), Err(VolumeError::NoSuchFile(_))));
    }
    assert_sound(&volume);
}

#[test]
fn volume_that_has_given_way_takes_no_change_of_any_kind() {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Destination) * 2));
    format(&*device, 4096);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let id = volume.next_file().expect("it is writable");
    let known = Known { stamp: 1, length_bytes: 4096, ..Known::default() };
    let mut change = Change::new();
    change.put(inode(id, &known, false));
    volume.change(change.clone(), false).expect("there is room");
    let head = volume.demote("head", false).expect("it gives way");
    let outcomes = [
        write(&volume, lun, 0, 1, 1),
        volume.punch(lun, Lba(0), 1),
        volume.change(change.clone(), false),
        volume.change(change, true),
        volume.next_file().map(drop),
        volume.compound().create(FileKind::Lun, 4096).map(drop),
        volume.compound().create_node(Attributes::default(), 4096).map(drop),
        volume.compound().create(FileKind::Directory, 4096).map(drop),
        volume.compound().resize(lun, 4096),
        volume.compound().resize(lun, 1 << 20),
        volume.compound().remove(lun),
        volume.compound().write(lun, Lba(0), block(1)),
    ];
    for (at, outcome) in outcomes.into_iter().enumerate() {
        assert!(outcome.is_err(), "the change at {at} was taken");
    }
    let status = volume.status();
    assert_eq!((status.generation, status.dirty), (head.generation, 0));
    assert_eq!(volume.inode(lun).expect("it is there").tree.length, 100);
    assert_eq!(read(&volume, lun, 0, 1), [100]);
}

#[test]
fn file_that_became_tall_in_this_generation_never_overruns_the_space_for_its_nodes() {
    const TALL: u64 = 1 << 27;
    for by_change in [true, false] {
        let (_device, volume) = fresh(2048);
        let id = if by_change {
            let id = volume.next_file().expect("it is writable");
            let mut change = Change::new();
            change.put(inode(id, &Known { length_bytes: TALL * 4096, ..Known::default() }, false));
            volume.change(change, false).expect("there is room");
            id
        } else {
            let id = file(&volume, 1);
            volume.compound().resize(id, TALL * 4096).expect("there is room");
            id
        };
        let mut written = Vec::new();
        for number in 0..4000u64 {
            let lba = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % TALL;
            // Nothing is committed in between while there is room.
            match write(&volume, id, lba, 1, 1) {
                Ok(()) => written.push(lba),
                Err(VolumeError::NoSpace) => break,
                Err(error) => panic!("after {number}: {error}"),
            }
        }
        volume.consistency_point().expect("what was taken can be committed");
        assert!(written.len() > 200, "{} blocks found room", written.len());
        written.iter().for_each(|lba| assert_eq!(read(&volume, id, *lba, 1), [lba + 1]));
        assert_sound(&volume);
    }
}

#[test]
fn what_was_cut_off_is_not_there_when_a_file_grows_again_in_the_same_generation() {
    const LENGTH: u64 = 40;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, LENGTH);
        let node = volume.next_file().expect("it is writable");
        let put = |length: u64| {
            let mut change = Change::new();
            change.put(inode(node, &Known { length_bytes: length * 4096, ..Known::default() }, false));
            volume.change(change, false).expect("there is room");
        };
        put(LENGTH);
        let (mut lengths, mut models) = ([LENGTH; 2], [BTreeMap::new(), BTreeMap::new()]);
        for step in 1..40 {
            let which = rng.below(2) as usize;
            let (id, model) = ([lun, node][which], &mut models[which]);
            match rng.below(9) {
                0..=3 => {
                    let first = rng.below(lengths[which]);
                    let count = (1 + rng.below(20)).min(lengths[which] - first);
                    write(&volume, id, first, count, step * 1000).expect("there is room");
                    model.extend((first..first + count).map(|lba| (lba, step * 1000 + lba)));
                }
                4..=6 => {
                    let length = 1 + rng.below(LENGTH);
                    match which {
                        0 => volume.compound().resize(id, length * 4096).expect("there is room"),
                        _ => put(length),
                    }
                    lengths[which] = length;
                    model.retain(|lba, _| *lba < length);
                }
                7 => volume.flush().expect("it flushes"),
                _ if rng.one_in(3) => drop(volume.consistency_point().expect("it commits")),
                _ => {}
            }
            let expected = |lba: u64| model.get(&lba).copied().unwrap_or(0);
            let shown = read(&volume, id, 0, lengths[which]);
            assert_eq!(
                shown,
                (0..lengths[which]).map(expected).collect::<Vec<_>>(),
                "seed {seed}, step {step}"
            );
        }
    }
}

/// A random change: existing and new files, few or many blocks, trees of any height.
fn any_change(rng: &mut Rng, volume: &Arc<Volume>, files: &mut BTreeMap<FileId, u64>) -> Change {
    let mut change = Change::new();
    let mut taken = Vec::new();
    let kinds = 1 + rng.below(63);
    for _ in 0..1 + rng.below(30) {
        let lengths = [1, 4, 300, FANOUT * 3, FANOUT * FANOUT * 3, 1 << 27];
        let length = lengths[rng.below(6) as usize];
        let old = files.keys().nth(rng.below(files.len() as u64 + 1) as usize).copied();
        let id = old.unwrap_or_else(|| {
            // In a block of inodes of its own, often.
            volume.state.lock().next_file += rng.below(3) * 40;
            volume.next_file().expect("it is writable")
        });
        if taken.contains(&id) {
            continue;
        }
        taken.push(id);
        let may = |kind: u32| kinds >> kind & 1 == 1;
        let was = files.get(&id).copied();
        let known = |length: u64| Known { stamp: 1, length_bytes: length * 4096, ..Known::default() };
        if was.is_some() && may(0) && rng.one_in(6) {
            change.put(inode(id, &known(length), true));
            files.remove(&id);
            continue;
        }
        let length = match was {
            Some(was) if !may(1) || rng.one_in(2) => was,
            _ => {
                change.put(inode(id, &known(length), false));
                length
            }
        };
        files.insert(id, length);
        if may(2) && rng.one_in(2) {
            let at = rng.below(length);
            change.punch(id, Lba(at), (1 + rng.below(length - at)).min(1 + rng.below(2000)));
        }
        if may(3) {
            for _ in 0..rng.below(12) {
                change.write(id, Lba(rng.below(length)), block(3));
            }
        }
        if may(4) {
            let at = rng.below(length);
            (at..(at + 20).min(length)).for_each(|lba| change.write(id, Lba(lba), block(4)));
        }
    }
    change
}

/// Compares the room requested before a change is accepted with the room that the consistency point
/// then takes. A snapshot keeps the released blocks.
#[test]
fn change_asks_for_the_room_that_it_takes_and_not_for_much_more() {
    let (mut changes, mut asked, mut took) = (0, 0, 0);
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let (_device, volume) = fresh(30_000);
        let mut files = BTreeMap::new();
        for round in 0..12 {
            let change = any_change(&mut rng, &volume, &mut files);
            if change.is_empty() {
                continue;
            }
            volume.create_snapshot(&format!("s{round}")).expect("it is made");
            let (cost, before) = {
                let state = volume.state.lock();
                (state.cost_of_change(&change, &change.by_file()), state.used.free())
            };
            let note = format!("seed {seed}, round {round}");
            volume.change(change, false).expect("there is room");
            volume.consistency_point().expect("it commits");
            let free = volume.state.lock().used.free();
            // A block of the map and the node above it, and so of the inode file at least.
            let took_now = (before - free).saturating_sub(4);
            assert!(took_now <= cost, "{note}: {cost} were asked for, {took_now} taken");
            changes += 1;
            asked += cost;
            took += took_now;
        }
        assert_sound(&volume);
    }
    assert!(changes > 200 && asked < took * 2, "{changes} changes asked for {asked} and took {took}");
}

/// The allowance for inodes would hide a missing node of a path: so the nodes are counted here, for
/// trees of any height.
#[test]
fn change_asks_for_every_node_of_every_path_that_it_makes_or_cuts() {
    let (_device, volume) = fresh(30_000);
    let id = FileId(100);
    let asked = |change: &Change| volume.state.lock().cost_of_change(change, &change.by_file());
    for (levels, length) in [(1, FANOUT), (2, FANOUT * FANOUT), (3, FANOUT * FANOUT + 1)] {
        assert_eq!(TreeRef::height_for(length), levels);
        volume.state.lock().levels = levels;
        let levels = u64::from(levels);
        let mut change = Change::new();
        change.put(inode(id, &Known { length_bytes: length * 4096, ..Known::default() }, false));
        assert_eq!(asked(&change), INODE_COST + levels, "a path to the end of the file");
        let before = asked(&change);
        change.punch(id, Lba(3), 2);
        assert_eq!(asked(&change) - before, INODE_COST + 2 * levels, "a path on either side of a hole");
        let before = asked(&change);
        change.write(id, Lba(0), block(1));
        assert_eq!(asked(&change) - before, INODE_COST + 1 + levels, "a block and the nodes above it");
        let before = asked(&change);
        change.write(id, Lba(1), block(1));
        assert_eq!(asked(&change) - before, 1, "its neighbour has the same nodes above it");
        if levels > 1 {
            let before = asked(&change);
            change.write(id, Lba(FANOUT), block(1));
            assert_eq!(asked(&change) - before, 2, "below the next leaf");
        }
    }
}

/// A file is removed and only partly freed when a snapshot is made: a rollback restores the blocks
/// freed meanwhile, which then have to be freed again.
#[test]
fn removed_file_that_a_rollback_brings_back_is_freed_again() {
    let (_device, volume) = fresh(8192);
    let (kept, gone) = (file(&volume, 8), file(&volume, 3000));
    write(&volume, kept, 0, 8, 1).expect("there is room");
    write(&volume, gone, 0, 3000, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.compound().remove(gone).expect("it is there");
    let early = volume.create_snapshot("early").expect("it is made");
    let settle = || {
        while !volume.state.lock().removed.is_empty() {
            volume.background(Duration::ZERO).expect("it goes on");
        }
        volume.consistency_point().expect("it commits");
    };
    settle();
    assert!(matches!(volume.inode(gone), Err(VolumeError::NoSuchFile(_))));
    let rolled_back = volume.rollback(early.id).expect("it rolls back");
    assert!(volume.inode(gone).expect("it is back").removed);
    settle();
    assert!(matches!(volume.inode(gone), Err(VolumeError::NoSuchFile(_))), "and gone again");
    volume.delete_snapshots(&[early.id, rolled_back.id]).expect("they are deleted");
    volume.consistency_point().expect("it commits");
    assert!(volume.status().used < 200, "{:?}", volume.status());
    assert_eq!(read(&volume, kept, 0, 8), (1..9).collect::<Vec<_>>());
    assert_sound(&volume);
}

/// One block of a hole in each of many tall files: a path on either side of each.
#[test]
fn holes_of_many_tall_files_in_one_change_never_overrun_a_full_volume() {
    const TALL: u64 = 1 << 27;
    let (_device, volume) = fresh(8192);
    let files: Vec<FileId> = (0..120).map(|_| volume.next_file().expect("it is writable")).collect();
    let tall = Known { stamp: 1, length_bytes: TALL * 4096, ..Known::default() };
    // The last block below one node of each level and the first below the next one: a hole over
    // both cuts two paths.
    let edge = TALL / 2;
    for some in files.chunks(10) {
        let mut change = Change::new();
        for id in some {
            change.put(inode(*id, &tall, false));
            [edge - 2, edge - 1, edge, edge + 1]
                .into_iter()
                .for_each(|lba| change.write(*id, Lba(lba), block(1)));
        }
        volume.change(change, false).expect("there is room");
        volume.consistency_point().expect("it commits");
    }
    volume.create_snapshot("before").expect("it is made");
    let ballast = file(&volume, 8192);
    let mut at = 0;
    // Two free blocks for each hole, and some more.
    while volume.status().free > 260 {
        write(&volume, ballast, at, 1, 1).expect("there is room");
        at += 1;
        if at % 100 == 0 || volume.status().free <= 260 {
            volume.consistency_point().expect("it commits");
        }
    }
    let (mut taken, mut refused) = (0, 0);
    for count in [120, 80, 40, 20, 10, 5, 2, 1] {
        let mut holes = Change::new();
        files.iter().take(count).for_each(|id| holes.punch(*id, Lba(edge - 1), 2));
        match volume.change(holes, false) {
            Ok(()) => taken += 1,
            Err(VolumeError::NoSpace) => refused += 1,
            Err(error) => panic!("{count} holes: {error}"),
        }
        let done = volume.consistency_point();
        assert!(done.is_ok(), "{count} holes: what was taken can be committed: {:?}", done.err());
    }
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken");
    assert_sound(&volume);
}

/// The estimate for a change without reading the places of its blocks; it usually admits the
/// change.
#[test]
fn change_is_let_in_at_once_with_a_path_for_each_of_its_blocks_in_a_tree_of_any_height() {
    let (_device, volume) = fresh(1024);
    for levels in 1..=6 {
        for length in [1, FANOUT * 2, FANOUT * FANOUT * 2, 1 << 27, 1 << 34, 1 << 40] {
            let mut change = Change::new();
            let id = |n: u64| FileId(100 + n);
            for n in 0..10 {
                change.put(inode(id(n), &Known { length_bytes: length * 4096, ..Known::default() }, false));
                change.write(id(n), Lba(length / 2), block(1));
            }
            let mut state = volume.state.lock();
            state.levels = levels;
            let by_file = change.by_file();
            let exactly = state.cost_of_change(&change, &by_file);
            let at_once = state.cost_at_most(10) + state.most_beside_blocks(&change, &by_file);
            assert_eq!(at_once, exactly, "one block each of files of {length} blocks, {levels} levels");
            drop(state);
            // Neighbours share their nodes.
            change.write(id(0), Lba(length / 2 + 1), block(1));
            let by_file = change.by_file();
            let state = volume.state.lock();
            let at_once = state.cost_at_most(11) + state.most_beside_blocks(&change, &by_file);
            assert!(at_once > state.cost_of_change(&change, &by_file));
        }
    }
}

#[test]
fn change_of_nothing_is_taken_whatever_the_volume_takes_and_costs_nothing() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(4096, Role::Destination) * 2));
    format(&*device, 4096);
    let volume = open(&device);
    let lun = file(&volume, 100);
    let mut nothing = Change::new();
    nothing.punch(lun, Lba(5), 0);
    assert!(nothing.is_empty(), "a hole of no blocks");
    let before = (volume.state.lock().order, device.operations());
    volume.change(nothing.clone(), false).expect("there is nothing in it");
    volume.flush().expect("it flushes");
    assert!(volume.state.lock().changed_since.is_none(), "no consistency point is due for it");
    assert_eq!((volume.state.lock().order, device.operations()), before);
    volume.demote("head", false).expect("it gives way");
    volume.change(nothing.clone(), false).expect("there is nothing in it");
    volume.change(nothing, true).expect("there is nothing in it");
}

#[test]
fn removed_file_that_is_put_back_before_it_was_freed_stays_whole_and_others_are_freed() {
    let (_device, volume) = fresh(8192);
    let known = |length: u64| Known { stamp: 1, length_bytes: length * 4096, ..Known::default() };
    let put = |id: FileId, length: u64, removed: bool| {
        let mut change = Change::new();
        change.put(inode(id, &known(length), removed));
        volume.change(change, removed).expect("there is room");
    };
    let make = |salt: u64| {
        let id = volume.next_file().expect("it is writable");
        put(id, LONG, false);
        write(&volume, id, 0, LONG, salt).expect("there is room");
        id
    };
    let [back, brief, gone] = [1000, 5000, 9000].map(make);
    volume.consistency_point().expect("it commits");
    let used = volume.status().used;
    [back, brief, gone].into_iter().for_each(|id| put(id, LONG, true));
    put(back, LONG, false);
    // So short that it is freed at once, while it still waits to be freed in rounds.
    put(brief, 10, false);
    put(brief, 10, true);
    assert!(matches!(volume.inode(brief), Err(VolumeError::NoSuchFile(_))));
    for _ in 0..6 {
        volume.background(Duration::ZERO).expect("it goes on");
    }
    assert_eq!(volume.state.lock().removed, [], "nothing waits any more");
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, back, 0, LONG), (1000..1000 + LONG).collect::<Vec<_>>());
    for id in [brief, gone] {
        assert!(matches!(volume.inode(id), Err(VolumeError::NoSuchFile(_))), "{id}");
    }
    assert!(volume.status().used <= used - 2 * LONG, "{} of {used} blocks", volume.status().used);
    assert_sound(&volume);
}
