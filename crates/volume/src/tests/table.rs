//! The table of snapshots in the label area, against a plain model, and its behaviour without room.

use std::collections::{BTreeMap, HashSet};

use cairn_base::{Rng, SnapshotId};
use cairn_device::Segments;
use cairn_format::{
    FormatError, IndexBlock, POINTERS_PER_INDEX, Root, SNAPSHOTS_PER_BLOCK, SnapshotEntry, Structure,
    TableRef,
};

use super::*;
use crate::commit::space::fresh_layout;
use crate::commit::table::{LabelSpace, SnapshotTable, TableChange, TableReader};

const ID: VolumeId = VolumeId([7; 16]);

fn layout(label_blocks: u64) -> cairn_format::Layout {
    cairn_format::Layout { label_blocks, ..fresh_layout(1024, false) }
}

fn label(blocks: u64) -> LabelSpace {
    LabelSpace::new(&layout(blocks))
}

/// The table on the device, the free label space beside it, and the number of blocks that had to be
/// written (and were) so that each is there twice.
fn loaded(
    device: &MemoryDevice,
    blocks: u64,
    table: &TableRef,
) -> Result<(SnapshotTable, usize, Vec<u64>), VolumeError> {
    let layout = layout(blocks);
    let mut reader = TableReader::new(device, ID, &layout);
    let loaded = SnapshotTable::load(&mut reader, table)?;
    let (label, missing) = reader.end();
    for (offset, block) in &missing {
        device.write(*offset, Segments::from(block.clone())).expect("memory takes writes");
    }
    Ok((loaded, label.free(), missing.into_iter().map(|(offset, _)| offset / 4096).collect()))
}

fn some_root() -> Root {
    let (_device, volume) = fresh(1024);
    volume.state.lock().committed.root
}

fn entry(root: Root, id: u64, parent: u64) -> SnapshotEntry {
    let (id, parent) = (SnapshotId(id), SnapshotId(parent));
    SnapshotEntry { id, parent, held: false, name: format!("s{}", id.0), root }
}

fn puts(root: Root, count: usize) -> Vec<TableChange> {
    (1..=count as u64).map(|id| TableChange::Put(entry(root, id, 0))).collect()
}

#[test]
fn table_has_each_snapshot_under_its_number_and_the_device_has_the_same() {
    let root = some_root();
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let device = MemoryDevice::new(4 << 20);
        let (mut table, mut label) = (SnapshotTable::default(), label(200));
        let mut model: BTreeMap<SnapshotId, SnapshotEntry> = BTreeMap::new();
        let mut next = 1;
        for step in 0..12 {
            let mut changes = Vec::new();
            for id in model.keys().copied().collect::<Vec<_>>() {
                match rng.below(5) {
                    0 => {
                        model.remove(&id);
                        changes.push(TableChange::Remove(id));
                    }
                    1 => {
                        let renamed =
                            SnapshotEntry { name: format!("n{step}-{}", id.0), ..model[&id].clone() };
                        model.insert(id, renamed.clone());
                        changes.push(TableChange::Put(renamed));
                    }
                    _ => {}
                }
            }
            // More than one new block at a time, as an image brings them.
            for _ in 0..rng.below(100) {
                let new = entry(root, next, rng.below(next));
                next += 1;
                model.insert(new.id, new.clone());
                changes.push(TableChange::Put(new));
            }
            let prepared = table.prepare(changes, ID, &mut label).expect("there is room");
            let mut writes = prepared.writes.operations(&label);
            device.run(&mut writes);
            label.release(&prepared.writes.freed);
            let on_device = prepared.table.clone();
            table.apply(prepared);
            let note = format!("seed {seed}, step {step}");
            assert_eq!(on_device.entries, model.len() as u64, "{note}");
            let (loaded, free, _) = loaded(&device, 200, &on_device).expect("it can be read");
            assert_eq!(free, label.free(), "{note}: a block that no table has is free");
            for table in [&table, &loaded] {
                assert_eq!(table.len(), model.len(), "{note}");
                assert_eq!(
                    table.all(),
                    model.values().cloned().collect::<Vec<_>>(),
                    "{note}: in their order"
                );
                for (id, entry) in &model {
                    assert_eq!(table.get(*id), Some(entry), "{note}");
                    assert_eq!(table.by_name(&entry.name), Some(*id), "{note}");
                    let is_child = |other: &&SnapshotEntry| other.parent == *id;
                    let children: Vec<_> = model.values().filter(is_child).map(|child| child.id).collect();
                    assert_eq!(table.children_of(*id), children, "{note}");
                }
            }
        }
    }
}

#[test]
fn change_for_which_the_label_area_has_no_room_takes_nothing_of_it() {
    let root = some_root();
    // With one more block of the table, or one more index block, than there is room for.
    for (blocks, fits) in [(6, 5), (7, 6)] {
        let (table, mut label) = (SnapshotTable::default(), label(blocks));
        for count in [fits + 1, fits + 2] {
            let refused = table.prepare(puts(root, count * SNAPSHOTS_PER_BLOCK), ID, &mut label).map(drop);
            assert!(matches!(refused, Err(VolumeError::TableFull)), "{refused:?}");
            assert_eq!(label.free(), blocks as usize);
        }
        let prepared = table.prepare(puts(root, fits * SNAPSHOTS_PER_BLOCK), ID, &mut label);
        let addresses: HashSet<u64> =
            prepared.expect("there is room").writes.addresses().into_iter().collect();
        assert_eq!(
            (addresses.len(), label.free()),
            (blocks as usize, 0),
            "each block has a place of its own"
        );
        let refused = table.prepare(puts(root, 1), ID, &mut label).map(drop);
        assert!(matches!(refused, Err(VolumeError::TableFull)), "{refused:?}");
    }
}

#[test]
fn table_takes_as_many_snapshots_as_its_index_reaches_and_no_more() {
    let most = TableRef::INDEXES_MAX * POINTERS_PER_INDEX * SNAPSHOTS_PER_BLOCK;
    let (root, table, mut label) = (some_root(), SnapshotTable::default(), label(8192));
    let refused = table.prepare(puts(root, most + 1), ID, &mut label).map(drop);
    assert!(matches!(refused, Err(VolumeError::TableFull)), "{refused:?}");
    assert_eq!(label.free(), 8192, "nothing of it is taken");
    let prepared = table.prepare(puts(root, most), ID, &mut label).expect("the index reaches them");
    assert_eq!(prepared.table.indexes.len(), TableRef::INDEXES_MAX);
}

/// There used to be one of each: a single damaged block kept the volume from opening.
#[test]
fn table_of_which_a_block_has_rotted_is_read_from_the_copy_and_there_twice_again() {
    let root = some_root();
    for blocks in [200, 201, 40, 16] {
        let device = MemoryDevice::new(4 << 20);
        let (mut table, mut label) = (SnapshotTable::default(), label(blocks));
        let mut twice = 0;
        // Repeatedly, so that places of copies are needed by others and become free.
        for step in 0..60_u64 {
            let count = 1 + step % (5 * blocks / 2).min(100);
            let gone = table.all().into_iter().map(|entry| TableChange::Remove(entry.id));
            let changes = gone.chain((1..=count).map(|n| TableChange::Put(entry(root, step * 100 + n, 0))));
            let prepared = table.prepare(changes.collect(), ID, &mut label).expect("there is room");
            let own = prepared.writes.addresses();
            let mut writes = prepared.writes.operations(&label);
            let places: Vec<u64> = writes.iter().map(|write| offset_of(write) / 4096).collect();
            assert_eq!(
                places.iter().collect::<HashSet<_>>().len(),
                places.len(),
                "each place is written once"
            );
            device.run(&mut writes);
            let freed = prepared.writes.freed.clone();
            let on_device = prepared.table.clone();
            table.apply(prepared);
            label.release(&freed);
            let all = table.all();
            let (_, _, missing) = loaded(&device, blocks, &on_device).expect("it can be read");
            // Blocks that others needed before are written now.
            let (_, _, none) = loaded(&device, blocks, &on_device).expect("it can be read");
            assert_eq!(none, [], "step {step}: all that there is room for is there");
            twice += usize::from(missing.is_empty() && places.len() == 2 * own.len());
            for place in places.iter().filter(|place| own.contains(place) || !missing.contains(place)) {
                let mut sound = vec![0; 4096];
                device.read_into(place * 4096, &mut sound).expect("memory can be read");
                device.write_from(place * 4096, &[9; 4096]).expect("memory takes writes");
                match loaded(&device, blocks, &on_device) {
                    Ok((loaded, _, missing)) => {
                        assert_eq!(loaded.all(), all);
                        let needed = missing.contains(place);
                        let mut mended = vec![0; 4096];
                        device.read_into(place * 4096, &mut mended).expect("memory can be read");
                        assert_eq!(needed, mended == sound, "step {step}: {place} of {blocks}");
                    }
                    Err(error) => {
                        assert!(places.len() < 2 * own.len() && blocks < 50, "step {step}: {error}");
                        device.write_from(place * 4096, &sound).expect("memory takes writes");
                    }
                }
            }
        }
        assert!(twice > if blocks >= 200 { 55 } else { 5 }, "{blocks}: {twice}");
    }
}

fn offset_of(write: &cairn_device::Operation) -> u64 {
    match write.request() {
        cairn_device::Request::Write { offset, .. } => *offset,
        _ => panic!("nothing but writes"),
    }
}

#[test]
fn table_block_that_is_not_what_was_written_is_not_taken_for_it() {
    let (device, volume) = fresh(1024);
    volume.create_snapshot("noon").expect("it is made");
    volume.close().expect("it closes");
    let index = volume.commit.lock().superblock.snapshots.indexes[0].address;
    drop(volume);
    let at = |address: u64| {
        let mut bytes = cairn_device::BlockMut::zeroed();
        device.read_into(address * 4096, &mut bytes[..]).expect("memory can be read");
        bytes
    };
    let table = IndexBlock::parse(&at(index).freeze(), ID, index).expect("it is an index block")[0].address;
    let mut bytes = at(table);
    let name = bytes.windows(4).position(|four| four == b"noon").expect("the name is there");
    // As good a name as the other.
    bytes[name] = b'm';
    device.write_from(table * 4096, &bytes[..]).expect("memory takes writes");
    let names = |volume: Arc<Volume>| volume.snapshots().into_iter().map(|one| one.name).collect::<Vec<_>>();
    assert_eq!(names(open(&device)), ["noon"], "its copy is");
    // Both of them.
    let half = fresh_layout(1024, false).label_blocks / 2;
    device.write_from(table * 4096, &bytes[..]).expect("memory takes writes");
    device.write_from((table + half) * 4096, &bytes[..]).expect("memory takes writes");
    let options = OpenOptions { cache_bytes: 1 << 20, clock: Arc::new(ManualClock::new(Timestamp(1))) };
    let refused = Volume::open(device, options).map(drop);
    let expected = FormatError::Checksum(Structure::SnapshotTable);
    assert!(matches!(&refused, Err(VolumeError::Label(found)) if *found == expected), "{refused:?}");
}
