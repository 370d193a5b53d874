//! Clones: their writes stay in them, and a power cut anywhere leaves both volumes whole.

use cairn_base::{Rng, SnapshotId};
use cairn_device::FaultPart;

use super::*;

const BLOCKS: u64 = 2048;

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) }
}

fn own_of(parent: &Arc<Volume>, snapshot: SnapshotId) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(CloneDevice::own_bytes(parent, snapshot).expect("it exists")))
}

fn device<D: Device + 'static>(
    parent: &Arc<Volume>,
    snapshot: SnapshotId,
    own: &Arc<D>,
) -> Result<Arc<CloneDevice>, VolumeError> {
    CloneDevice::new(parent, snapshot, own.clone()).map(Arc::new)
}

fn opened(device: &Arc<CloneDevice>) -> Result<(Arc<Volume>, Kept), VolumeError> {
    let clone = Volume::open(device.clone(), options())?;
    let kept = clone.keep_snapshot(device.snapshot())?;
    Ok((clone, kept))
}

fn cloned<D: Device + 'static>(
    parent: &Arc<Volume>,
    snapshot: SnapshotId,
    own: &Arc<D>,
) -> (Arc<Volume>, Kept) {
    let device = device(parent, snapshot, own).expect("the snapshot exists");
    device.make(options()).expect("it is made");
    opened(&device).expect("it opens")
}

#[test]
fn clone_shows_its_snapshot_takes_writes_and_never_touches_its_parent() {
    let (_device, parent) = fresh(BLOCKS);
    let lun = file(&parent, 300);
    write(&parent, lun, 0, 200, 1000).expect("there is room");
    let base = parent.create_snapshot("base").expect("it is made").id;
    write(&parent, lun, 0, 50, 9000).expect("there is room");
    parent.create_snapshot("later").expect("it is made");
    let own = own_of(&parent, base);
    let (clone, kept) = cloned(&parent, base, &own);
    assert_eq!(read(&clone, lun, 0, 2), [1000, 1001]);
    assert_eq!(read(&clone, lun, 199, 2), [1199, 0]);
    let names: Vec<String> = clone.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, ["base"], "what came later is not part of it");

    write(&clone, lun, 100, 150, 5000).expect("there is room");
    clone.flush().expect("it flushes");
    let own_snapshot = clone.create_snapshot("mine").expect("it is made").id;
    clone.punch(lun, Lba(0), 100).expect("it is punched");
    clone.consistency_point().expect("it commits");
    assert_eq!(read(&clone, lun, 99, 2), [0, 5100]);
    assert_sound(&clone);
    assert_sound(&parent);
    assert_eq!((read(&parent, lun, 0, 1), read(&parent, lun, 100, 1)), (vec![9000], vec![1100]));

    // A clone of a clone; and back to where it began.
    let second = own_of(&clone, own_snapshot);
    let (grandchild, _kept) = cloned(&clone, own_snapshot, &second);
    assert_eq!((read(&grandchild, lun, 0, 1), read(&grandchild, lun, 249, 1)), (vec![1000], vec![5249]));
    write(&grandchild, lun, 0, 300, 70_000).expect("there is room");
    grandchild.consistency_point().expect("it commits");
    assert_sound(&grandchild);
    clone.rollback(base).expect("it rolls back");
    assert_eq!(read(&clone, lun, 0, 2), [1000, 1001]);
    assert_sound(&clone);

    // Its whole life again, after it was closed.
    drop((grandchild, _kept, kept));
    clone.close().expect("it closes");
    let device = device(&parent, base, &own).expect("the snapshot exists");
    let (clone, _kept) = opened(&device).expect("it opens");
    assert_eq!(read(&clone, lun, 0, 2), [1000, 1001]);
    assert_sound(&clone);
}

#[test]
fn snapshot_of_a_clone_is_deleted_neither_in_the_parent_nor_in_the_clone() {
    let (_device, parent) = fresh(BLOCKS);
    let lun = file(&parent, 100);
    write(&parent, lun, 0, 100, 1000).expect("there is room");
    let base = parent.create_snapshot("base").expect("it is made").id;
    let own = own_of(&parent, base);
    let (clone, kept_here) = cloned(&parent, base, &own);
    let kept_there = parent.keep_snapshot(base).expect("it exists");
    let refused = parent.delete_snapshots(&[base]);
    assert!(matches!(refused, Err(VolumeError::Cloned(id)) if id == base), "{refused:?}");
    clone.hold_snapshot(base, false).expect("it is released");
    let refused = clone.delete_snapshots(&[base]);
    assert!(matches!(refused, Err(VolumeError::Cloned(_))), "{refused:?}");
    // Blocks that only the snapshot still shows are never allocated again.
    for round in 0..20 {
        write(&parent, lun, 0, 100, 2000 * round).expect("there is room");
        parent.consistency_point().expect("it commits");
        write(&clone, lun, 0, 100, 3000 * round).expect("there is room");
        clone.consistency_point().expect("it commits");
    }
    let image = clone.image(Some(base)).expect("it exists");
    assert_eq!(read_image(&image, lun, 0, 2), [1000, 1001]);
    assert_sound(&clone);
    drop((image, kept_here, clone, kept_there));
    parent.delete_snapshots(&[base]).expect("nobody needs it any more");
    assert_sound(&parent);
}

#[test]
fn clone_is_made_while_the_parent_is_full_and_is_full_only_by_what_it_writes() {
    let (_device, parent) = fresh(1024);
    let lun = file(&parent, 800);
    let mut at = 0;
    while write(&parent, lun, at, 1, 1000).is_ok() {
        at += 1;
        if at == 800 {
            break;
        }
    }
    let base = parent.create_snapshot("base").expect("a snapshot needs next to nothing").id;
    let own = own_of(&parent, base);
    let (clone, _kept) = cloned(&parent, base, &own);
    let mut written = 0;
    while written < at && write(&clone, lun, written, 1, 5000).is_ok() {
        written += 1;
    }
    assert!(written < at, "the block space is that of the parent");
    clone.flush().expect("what was taken is kept");
    assert_eq!(read(&clone, lun, 0, 1), [5000]);
    assert_sound(&clone);
    assert_eq!(read(&parent, lun, 0, 1), [1000]);
}

#[test]
fn damaged_block_of_the_parent_is_not_served_by_the_clone_and_not_written_over() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let parent = open(&device);
    let lun = file(&parent, 64);
    write(&parent, lun, 0, 64, 1000).expect("there is room");
    let base = parent.create_snapshot("base").expect("it is made").id;
    let own = own_of(&parent, base);
    let (clone, _kept) = cloned(&parent, base, &own);
    let mut rng = Rng::new(1);
    let space = Volume::space_offset(BLOCKS);
    let runs = parent.changed_blocks(&[], base).expect("maps can be read").runs;
    let before = parent.read_blocks(&runs).expect("they can be read");
    let data = (0..)
        .zip(runs.iter().flat_map(|(first, count)| first.0..first.0 + count))
        .find(|(n, _)| before[*n as usize][..] == block(1063)[..])
        .expect("the block is somewhere")
        .1;
    device.corrupt(space + data * 4096, 4096, &mut rng);
    let spoiled = device.read(space + data * 4096, 4096).expect("it can be read").to_vec();
    let mut reads = [BlockRead::new(Lba(63), 1)];
    clone.read(lun, &mut reads, true);
    let [read_back] = reads;
    assert!(matches!(read_back.outcome, Some(Err(VolumeError::Damaged { .. }))));
    assert_eq!(read(&clone, lun, 62, 1), [1062], "its neighbour is served");
    write(&clone, lun, 63, 1, 7).expect("a new place is taken for it");
    clone.flush().expect("it flushes");
    assert_eq!(read(&clone, lun, 63, 1), [70]);
    let now = device.read(space + data * 4096, 4096).expect("it can be read").to_vec();
    assert_eq!(now, spoiled);
}

#[test]
fn clone_of_a_mirrors_source_keeps_no_account_for_that_mirror() {
    let (_device, parent) = fresh(BLOCKS);
    let lun = file(&parent, 100);
    parent.create_snapshot_since("sent", 7).expect("there is room");
    write(&parent, lun, 0, 50, 1000).expect("there is room");
    let base = parent.create_snapshot_since("again", 7).expect("there is room").id;
    let own = own_of(&parent, base);
    let (clone, _kept) = cloned(&parent, base, &own);
    assert_eq!(clone.since_relationships(), []);
    assert!(clone.status().active < parent.status().active, "nor has it the blocks of the maps");
    assert_eq!(parent.since_relationships().len(), 1);
    assert_sound(&clone);
}

/// A volume and the own device of a clone of it, on one power supply.
struct Pair {
    both: Arc<FaultDevice>,
    parent: Arc<FaultPart>,
    own: Arc<FaultPart>,
}

impl Pair {
    fn of(both: FaultDevice) -> Self {
        let both = Arc::new(both);
        let border = Volume::device_bytes(BLOCKS, Role::Normal);
        let parent = Arc::new(both.part(0..border));
        let own = Arc::new(both.part(border..2 * border));
        Self { both, parent, own }
    }
}

/// The acknowledged writes.
#[derive(Default)]
struct Told {
    made: bool,
    /// The clone has everything that was written up to here.
    clone_flushed: u64,
    parent_flushed: u64,
}

/// Makes a clone, and writes to both, until the power goes.
fn life(pair: &Pair, lun: FileId, base: SnapshotId, told: &mut Told) -> Result<(), VolumeError> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let parent = Volume::open(pair.parent.clone(), OpenOptions { cache_bytes: 1 << 20, clock })?;
    let _kept = parent.keep_snapshot(base)?;
    let device = device(&parent, base, &pair.own)?;
    device.make(options())?;
    told.made = true;
    let (clone, _kept) = opened(&device)?;
    for round in 1..4 {
        write(&clone, lun, 0, 40, 100_000 * round)?;
        clone.flush()?;
        told.clone_flushed = round;
        write(&parent, lun, 0, 40, 1_000_000 * round)?;
        parent.flush()?;
        told.parent_flushed = round;
        if round == 2 {
            clone.create_snapshot("mine")?;
            parent.consistency_point()?;
        }
    }
    clone.close()?;
    parent.close()
}

#[test]
fn power_cut_at_any_operation_of_a_clone_leaves_both_volumes_whole() {
    let blank = Pair::of(FaultDevice::new(2 * Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*blank.parent, BLOCKS);
    let parent = open(&blank.parent);
    let lun = file(&parent, 64);
    write(&parent, lun, 0, 64, 1000).expect("there is room");
    let base = parent.create_snapshot("base").expect("it is made").id;
    parent.close().expect("it closes");
    drop(parent);
    blank.both.flush().expect("it flushes");

    let whole = Pair::of(blank.both.fork());
    let before = whole.both.operations();
    life(&whole, lun, base, &mut Told::default()).expect("nothing is in its way");
    let operations = whole.both.operations() - before;
    let (mut absent, mut present) = (0, 0);
    for cut in 0..operations {
        let mut rng = Rng::new(cut);
        let pair = Pair::of(blank.both.fork());
        pair.both.cut_after(cut);
        let mut told = Told::default();
        assert!(life(&pair, lun, base, &mut told).is_err(), "cut {cut}: the power went");
        let pair = Pair::of(pair.both.power_cycle(&mut rng));
        let parent = open(&pair.parent);
        assert_sound(&parent);
        let image = parent.image(Some(base)).expect("the snapshot is there");
        assert_eq!(read_image(&image, lun, 0, 2), [1000, 1001], "cut {cut}");
        let shown = read(&parent, lun, 0, 1)[0];
        assert!(shown >= 1_000_000 * told.parent_flushed || told.parent_flushed == 0, "cut {cut}: {shown}");
        match device(&parent, base, &pair.own).and_then(|device| opened(&device)) {
            Ok((clone, _kept)) => {
                present += 1;
                assert_sound(&clone);
                let shown = read(&clone, lun, 0, 1)[0];
                let least = if told.clone_flushed == 0 { 1000 } else { 100_000 * told.clone_flushed };
                assert!((least..400_000).contains(&shown), "cut {cut}: {shown}");
                assert_eq!(read(&clone, lun, 63, 1), [1063], "cut {cut}");
                write(&clone, lun, 0, 64, 7_000_000).expect("it goes on living");
                clone.consistency_point().expect("it commits");
                assert_sound(&clone);
            }
            Err(VolumeError::NotAVolume { .. }) => {
                absent += 1;
                assert!(!told.made, "cut {cut}: a clone that was made is there");
            }
            Err(error) => panic!("cut {cut}: {error}"),
        }
    }
    assert!(absent > 3 && present > 20, "{absent} without a clone, {present} with one");
}

#[test]
fn device_of_a_clone_takes_no_write_to_what_its_snapshot_shows() {
    let (_device, parent) = fresh(BLOCKS);
    let lun = file(&parent, 300);
    write(&parent, lun, 0, 40, 1000).expect("there is room");
    let base = parent.create_snapshot("base").expect("it is made").id;
    let own = own_of(&parent, base);
    let device = device(&parent, base, &own).expect("the snapshot exists");
    device.make(options()).expect("it is made");
    let runs = parent.changed_blocks(&[], base).expect("they are compared").runs;
    let space = Volume::space_offset(BLOCKS);
    let (first, count) = *runs.iter().max_by_key(|(_, count)| *count).expect("it shows something");
    assert!(count > 3);
    let (start, end) = (space + first.0 * 4096, space + (first.0 + count) * 4096);
    let mine = space + (runs.last().expect("it shows something").0.0 + runs.last().expect("one").1) * 4096;
    let whole = |device: &dyn Device, offset, blocks: u64| {
        device.read(offset, (blocks * 4096) as u32).expect("it can be read").to_vec()
    };
    let shown = whole(&*device, start - 4096, count + 2);
    let copy = whole(&*own, 0, own.geometry().length / 4096);
    for (offset, length) in [(start, 4096), (end - 4096, 4096), (start - 4096, 8192), (end - 4096, 8192)] {
        let data = vec![7; length as usize];
        let refused = device.write_from(offset, &data);
        assert!(matches!(refused, Err(cairn_device::DeviceError::ReadOnly)), "{offset}: {refused:?}");
        let request = |request| device.one(cairn_device::Operation::new(request));
        let zeroes =
            cairn_device::Request::WriteZeroes { offset, length: length as u64, may_trim: true, fua: false };
        assert!(matches!(request(zeroes).map(drop), Err(cairn_device::DeviceError::ReadOnly)));
        device.prepare(offset, length as u64).expect("there is nothing to prepare");
        let ahead = cairn_device::Request::Prefetch { offset, length: length as u64 };
        request(ahead).expect("whoever reads ahead is told nothing");
        for (offset, length) in [(offset + 512, 512), (offset + 2048, 4096)] {
            let refused = device.read(offset, length);
            assert!(matches!(refused, Err(cairn_device::DeviceError::Unaligned { .. })), "{refused:?}");
        }
    }
    assert!(whole(&*own, 0, own.geometry().length / 4096) == copy, "nothing came to its own device");
    assert!(whole(&*device, start - 4096, count + 2) == shown);
    // Blocks that the snapshot does not show are its own; blocks past the end belong to no file.
    device.write_from(mine, &[7; 4096]).expect("it is the clone's own");
    assert!(whole(&*device, mine, 1) == [7; 4096] && whole(&*own, mine, 1) == [7; 4096]);
    assert!(device.read(device.geometry().length, 4096).is_err());
    assert!(device.write_from(device.geometry().length, &[7; 4096]).is_err());
    let image = parent.image(Some(base)).expect("it is there");
    assert_eq!(read_image(&image, lun, 0, 40), (1000..1040).collect::<Vec<u64>>());
    let short = Arc::new(MemoryDevice::new(own.geometry().length - 4096));
    let refused = CloneDevice::new(&parent, base, short).map(drop);
    assert!(matches!(refused, Err(VolumeError::DeviceTooSmall { .. })), "{refused:?}");
}

#[test]
fn snapshot_is_kept_until_the_last_who_needs_it_lets_go() {
    let (_device, volume) = fresh(BLOCKS);
    let made: Vec<SnapshotId> =
        (0..4).map(|number| volume.create_snapshot(&format!("s{number}")).expect("it is made").id).collect();
    volume.delete_snapshots(&[made[1]]).expect("nobody needs it");
    let refused = |id: SnapshotId| {
        assert!(volume.is_cloned(id));
        let outcome = volume.delete_snapshots(&[id]);
        assert!(matches!(outcome, Err(VolumeError::Cloned(other)) if other == id), "{outcome:?}");
        let outcome = volume.let_go_of_snapshots(&[id]);
        assert!(matches!(outcome, Err(VolumeError::Cloned(other)) if other == id), "{outcome:?}");
    };
    for unknown in [made[1], SnapshotId(99)] {
        let (one, all) = (volume.keep_snapshot(unknown).map(drop), volume.keep_snapshots(unknown).map(drop));
        assert!(matches!(one, Err(VolumeError::NoSuchSnapshot(id)) if id == unknown), "{one:?}");
        assert!(matches!(all, Err(VolumeError::NoSuchSnapshot(id)) if id == unknown), "{all:?}");
    }
    let (first, second) = (volume.keep_snapshot(made[0]), volume.keep_snapshots(made[2]));
    let (first, second) = (first.expect("it is there"), second.expect("they are there"));
    assert_eq!(second.len(), 2, "each that is there, up to that one");
    assert!(!volume.is_cloned(made[3]));
    [made[0], made[2]].into_iter().for_each(refused);
    drop(second);
    refused(made[0]);
    volume.delete_snapshots(&[made[2], made[3]]).expect("nobody needs them any more");
    drop(first);
    volume.delete_snapshots(&[made[0]]).expect("nobody needs it any more");
}
