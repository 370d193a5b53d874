//! Directories, attributes and maps, each against its input.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use crate::attributes::{self, Attribute};
use crate::directory::{self, Entry};
use crate::{InodeMap, Kind};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn directory_reads_as_written(names in btree_set(vec(1u8..=255, 1..=255), 0..40)) {
        let entries: Vec<Entry> = names
            .into_iter()
            .filter(|name| Entry::is_good_name(name))
            .enumerate()
            .map(|(index, name)| Entry { number: 3 + index as u32, kind: Some(Kind::Fifo), name })
            .collect();
        let bytes = directory::encode(7, 2, entries.iter());
        prop_assert_eq!(bytes.len() % 512, 0);
        let parsed = directory::parse(&bytes);
        prop_assert_eq!(parsed, directory::Parsed { entries, parent: Some(2), ..directory::Parsed::default() });
    }

    #[test]
    fn attributes_read_as_written(
        values in vec((0usize..4, "[a-z]{1,9}", vec(any::<u8>(), 0..9_000)), 0..20),
    ) {
        let prefixes = ["user.", "trusted.", "security.", "system."];
        let mut all: Vec<Attribute> = values
            .into_iter()
            .map(|(prefix, name, value)| Attribute { name: format!("{}{name}", prefixes[prefix]).into(), value })
            .collect();
        let (blocks, left_out) = attributes::encode(&all);
        prop_assert!(left_out.is_empty());
        let mut read = Vec::new();
        for block in blocks {
            prop_assert!(block.len() <= 65_536);
            let (some, good) = attributes::parse(&block);
            prop_assert!(good);
            read.extend(some);
        }
        all.sort();
        read.sort();
        prop_assert_eq!(read, all);
    }

    #[test]
    fn map_reads_as_written(
        numbers in btree_set(1u32..20_000, 0..60),
        others in btree_set(1u32..20_000, 0..60),
        (first, last) in (0u32..21_000, 0u32..21_000),
    ) {
        let mut map = InodeMap::new();
        numbers.iter().for_each(|number| map.insert(*number));
        let read = InodeMap::from_bytes(map.to_records(20_000));
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), numbers.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(read.count(), numbers.len() as u64);
        prop_assert!(numbers.iter().all(|number| read.contains(*number)));
        let is_within = |number: &u32| (first..=last).contains(number);
        prop_assert_eq!(read.has_any(first, last), numbers.iter().any(is_within));
        let mut other = InodeMap::new();
        others.iter().chain(numbers.iter().step_by(3)).for_each(|number| other.insert(*number));
        let left: Vec<u32> = numbers.iter().copied().filter(|number| !other.contains(*number)).collect();
        prop_assert_eq!(read.without(&other).iter().collect::<Vec<_>>(), left);
    }
}

#[test]
fn access_control_list_goes_through_the_form_of_ext2() {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let value = [
        2u32.to_le_bytes().to_vec(),
        entry(0x01, 6, u32::MAX),
        entry(0x02, 4, 1001),
        entry(0x04, 4, u32::MAX),
        entry(0x10, 4, u32::MAX),
        entry(0x20, 0, u32::MAX),
    ]
    .concat();
    let list = Attribute { name: b"system.posix_acl_access".to_vec(), value };
    let (blocks, left_out) = attributes::encode(std::slice::from_ref(&list));
    assert!(left_out.is_empty());
    assert_eq!(attributes::parse(&blocks[0]), (vec![list], true));
}

#[test]
fn attribute_without_a_place_is_told() {
    let too_long = Attribute { name: b"user.x".to_vec(), value: vec![0; 65_536] };
    let strange = Attribute { name: b"other.x".to_vec(), value: vec![1] };
    let (blocks, left_out) = attributes::encode(&[too_long, strange]);
    assert!(blocks.is_empty());
    assert_eq!(left_out, [b"user.x".to_vec(), b"other.x".to_vec()]);
}

/// Linux `restore` stops at the first attribute whose beginning it does not know: all that it knows
/// come before, in blocks of their own.
#[test]
fn attributes_that_linux_does_not_know_come_behind_those_that_it_knows() {
    let attribute = |name: &str| Attribute { name: name.into(), value: vec![1; 9] };
    let all = ["security.a", "system.b", "trusted.c", "system.d", "user.e"].map(attribute);
    let (blocks, left_out) = attributes::encode(&all);
    assert!(left_out.is_empty());
    let names = |block: &Vec<u8>| -> Vec<String> {
        let (some, good) = attributes::parse(block);
        assert!(good);
        some.into_iter().map(|one| String::from_utf8_lossy(&one.name).into_owned()).collect()
    };
    let names: Vec<Vec<String>> = blocks.iter().map(names).collect();
    assert_eq!(names, [vec!["security.a", "trusted.c", "user.e"], vec!["system.b", "system.d"]]);
}

/// A block in which each of many attributes has all of it as its value would come out as some
/// hundred times as much.
#[test]
fn values_that_overlap_come_out_as_a_few_times_the_block_at_most() {
    let mut bytes = vec![0; 65_532];
    bytes[..4].copy_from_slice(&0xea02_0000_u32.to_le_bytes());
    for (number, entry) in bytes[32..40_032].chunks_exact_mut(20).enumerate() {
        // Length of the name, `user.`, where the value is, in which block, and how long.
        entry[..2].copy_from_slice(&[4, 1]);
        entry[2..4].copy_from_slice(&32u16.to_le_bytes());
        entry[8..12].copy_from_slice(&60_000u32.to_le_bytes());
        entry[16..].copy_from_slice(format!("{number:04}").as_bytes());
    }
    let (some, good) = attributes::parse(&bytes);
    assert!(!good, "some are left out");
    let taken: usize = some.iter().map(|one| one.value.len()).sum();
    assert!((1..=4 * 65_532).contains(&taken), "{taken} bytes of {}", bytes.len());
}

#[test]
fn entry_of_a_directory_that_is_not_aligned_costs_the_rest_of_its_block() {
    let named =
        |number: u32| Entry { number, kind: Some(Kind::Fifo), name: format!("name{number}").into_bytes() };
    let entries: Vec<Entry> = (3..100).map(named).collect();
    let bytes = directory::encode(2, 2, entries.iter());
    let whole = directory::parse(&bytes);
    assert!(!whole.mangled && whole.entries == entries);
    // The length of the third entry of the second block.
    for length in [0u16, 7, 9, 18, 19, 21, 510, 516, u16::MAX] {
        let mut wrong = bytes.clone();
        let at = 512 + 2 * 16 + 4;
        wrong[at..at + 2].copy_from_slice(&length.to_le_bytes());
        let parsed = directory::parse(&wrong);
        assert!(parsed.mangled, "{length}");
        let lost = entries.iter().filter(|entry| !parsed.entries.contains(entry)).count();
        assert!((1..33).contains(&lost), "{length}: {lost} are lost");
        assert!(parsed.entries.iter().all(|entry| entries.contains(entry)), "{length}");
    }
}

#[test]
fn name_that_no_file_can_have_and_a_second_one_for_the_directory_itself_are_told_with_their_numbers() {
    let called = |number: u32, name: &[u8]| Entry { number, kind: Some(Kind::Fifo), name: name.to_vec() };
    let entries =
        [called(3, b"good"), called(4, b".."), called(5, b"a/b"), called(6, b"."), called(7, b"a\0")];
    let parsed = directory::parse(&directory::encode(7, 2, entries.iter()));
    assert_eq!((parsed.parent, parsed.mangled, &parsed.entries[..]), (Some(2), true, &entries[..1]));
    // A repeated entry is not another file.
    assert_eq!(parsed.refused, entries[1..]);
    let again = [called(7, b"."), called(2, b"..")];
    assert!(!directory::parse(&directory::encode(7, 2, again.iter())).mangled);
}

#[test]
fn second_file_of_a_name_is_returned_and_the_first_one_has_it() {
    let called = |number: u32, name: &[u8]| Entry { number, kind: None, name: name.to_vec() };
    let mut names = crate::Names::new();
    let all = vec![called(5, b"b"), called(3, b"a"), called(4, b"a"), called(3, b"a"), called(6, b"a")];
    assert_eq!(names.insert(2, all), [called(4, b"a"), called(6, b"a")]);
    assert_eq!((names.lookup(2, b"a"), names.lookup(2, b"b")), (Some(3), Some(5)));
}
