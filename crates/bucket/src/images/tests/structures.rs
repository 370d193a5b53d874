//! Tables and objects by themselves.

use super::super::codec::{Kind, Version};
use super::super::region::{HEADER_BYTES_MAX, RegionHeader, pack};
use super::super::root::{List, Root};
use super::super::table::{Entry, Table};
use super::*;

#[test]
fn table_is_as_a_map() {
    let mut rng = Rng::new(3);
    let (mut table, mut map) = (Table::default(), BTreeMap::new());
    for number in 1..3000 {
        let region = rng.below(200) as u32;
        let length = if rng.one_in(3) { 0 } else { number };
        let entry = Entry { at: Version { epoch: 1, number }, length, ..Entry::NONE };
        let before = table.set(region, entry);
        let expected = if length > 0 { map.insert(region, entry) } else { map.remove(&region) };
        assert_eq!(before, expected);
    }
    assert!(table.iter().eq(map.iter().map(|(region, entry)| (*region, *entry))));
    let copy = table.clone();
    table.set(5, Entry { at: Version { epoch: 2, number: 1 }, length: 9, ..Entry::NONE });
    assert_eq!(table.without(Some(&copy), None), [(5, Version { epoch: 2, number: 1 })]);
    assert_eq!(copy.without(None, Some(&copy)), []);
}

#[test]
fn region_object_is_smaller_than_announced_and_canonical() {
    let mut blocks = RegionBlocks::new();
    (0..REGION_BLOCKS).for_each(|place| blocks.push(place, &block(place as u64)));
    let at = Version { epoch: 3, number: 4 };
    let (object, digest) = pack(VOLUME, 9, at, &blocks);
    let head = RegionHeader::of_object(&object).expect("a header");
    assert_eq!((head.len(), cairn_base::Checksum::of(head)), (HEADER_BYTES_MAX, digest));
    let header = RegionHeader::parse(&object, VOLUME).expect("a header");
    assert_eq!(header.total(), object.len() as u64);
    assert_eq!(header.write(VOLUME), head);
}

#[test]
fn damaged_counts_take_no_memory() {
    let list =
        List { at: Version { epoch: 1, number: 1 }, part: 0, image: ImageId::default(), entries: Vec::new() };
    let mut bytes = list.write(Kind::List, VOLUME);
    let count = bytes.len() - 16 - 4;
    bytes[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let sum = cairn_base::Checksum::of(&bytes[..count + 4]);
    bytes[count + 4..].copy_from_slice(&sum.0);
    assert!(List::parse(&bytes, Kind::List, VOLUME).is_err());
}

#[test]
fn decoders_hold_against_random_changes() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
    let models = line(5);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    for number in 1..=5 {
        advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
            .expect("committed");
    }
    let mut rng = Rng::new(5);
    for name in memory.names() {
        let bytes = memory.raw(&name).expect("an object").to_vec();
        fuzz(&bytes);
        for _ in 0..50 {
            let mut changed = bytes.clone();
            let at = rng.below(changed.len().min(400) as u64) as usize;
            changed[at] = rng.next() as u8;
            changed.truncate(rng.below(bytes.len() as u64 + 1) as usize + bytes.len() / 2);
            fuzz(&changed);
        }
        assert!(Root::parse(&bytes[..bytes.len() - 1], VOLUME).is_err());
    }
}

#[test]
fn changes_of_a_table_are_those_of_a_map() {
    use super::super::table::Delta;
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let (mut delta, mut model) = (Delta::default(), BTreeMap::new());
        let (mut table, mut whole) = (Table::default(), BTreeMap::new());
        let entry = |rng: &mut Rng| match rng.one_in(4) {
            true => Entry::NONE,
            false => Entry { length: 1 + rng.below(9) as u32, ..Entry::NONE },
        };
        for _ in 0..200 {
            let (region, entry) = (rng.below(300) as u32, entry(&mut rng));
            delta.insert(region, entry);
            model.insert(region, entry);
            let (region, entry) = (rng.below(400) as u32, entry_there(&mut rng));
            table.set(region, entry);
            whole.insert(region, entry);
        }
        assert_eq!(delta.len(), model.len());
        assert_eq!(delta.to_vec(), model.clone().into_iter().collect::<Vec<_>>());
        assert!((0..310).all(|region| delta.get(region) == model.get(&region).copied()));
        let mut told = BTreeMap::new();
        table.merge(&delta.put, &mut |region, before, now| {
            told.insert(region, (before, now));
        });
        for (region, entry) in model.into_iter().filter(|(_, entry)| entry.is_there()) {
            assert_eq!(told.remove(&region), Some((whole.insert(region, entry), entry)));
        }
        assert!(told.is_empty());
        assert!(table.iter().eq(whole));
    }
}

fn entry_there(rng: &mut Rng) -> Entry {
    Entry { length: 100 + rng.below(9) as u32, ..Entry::NONE }
}
