//! A damaged record costs the file that it is in, and the reader says which.

use super::model::Tree;
use crate::record::RECORD;
use crate::{Attribute, Damage, Kind, ROOT, ReadError, Reader};

fn tree() -> Tree {
    let mut tree = Tree::new();
    let sub = tree.add(ROOT, "sub", Kind::Directory);
    for n in 0..6u8 {
        let file = tree.add_with(sub, &format!("file{n}"), &vec![n; 700 + usize::from(n) * 900]);
        if n % 2 == 0 {
            let value = vec![n; 40];
            tree.get(file).attributes.push(Attribute { name: b"user.n".to_vec(), value });
        }
    }
    // One whose content is a dump itself, with headers of the same date.
    let mut inner = Tree::new();
    inner.add_with(ROOT, "inner", &[9; 2000]);
    let (inner, _) = inner.dump(Tree::options());
    tree.add_with(ROOT, "dump", &inner);
    tree.add_with(ROOT, "last", b"the last one");
    tree
}

#[test]
fn damaged_record_costs_its_file_and_the_reader_names_it() {
    let mut tree = tree();
    let (bytes, _) = tree.dump(Tree::options());
    let whole = tree.plain();
    let records = bytes.len() / RECORD;
    for record in 0..records {
        let mut damaged = bytes.clone();
        damaged[record * RECORD + 300] ^= 0x40;
        // The label and the two maps: without them the dump says nothing.
        let Ok(mut reader) = Reader::open(&damaged[..]) else {
            assert!(record < 5, "record {record}");
            continue;
        };
        let read = Tree::read(&mut reader).plain();
        let told: Vec<u32> = reader
            .damage()
            .iter()
            .filter_map(|damage| match damage {
                Damage::Hurt { number } | Damage::Missing { number } => Some(*number),
                Damage::Skipped { .. } | Damage::Truncated => None,
            })
            .collect();
        let different: Vec<u32> = whole
            .0
            .iter()
            .filter(|(number, file)| read.0.get(number) != Some(file))
            .map(|(number, _)| *number)
            .collect();
        assert!(different.len() <= 1, "record {record} cost {different:?}");
        assert_eq!(told, different, "record {record}");
        assert!(read.0.keys().all(|number| whole.0.contains_key(number)), "record {record}");
    }
}

#[test]
fn truncated_dump_gives_what_it_has_and_says_what_is_missing() {
    let mut tree = tree();
    let (bytes, _) = tree.dump(Tree::options());
    let whole = tree.plain();
    for length in (5 * RECORD..bytes.len() - 10 * RECORD).step_by(RECORD / 2) {
        let mut reader = Reader::open(&bytes[..length]).unwrap();
        let read = Tree::read(&mut reader).plain();
        let damage = reader.damage();
        assert!(damage.contains(&Damage::Truncated), "{length}");
        for (number, file) in &whole.0 {
            let told = damage.contains(&Damage::Hurt { number: *number })
                || damage.contains(&Damage::Missing { number: *number });
            let same = read.0.get(number) == Some(file);
            assert!(same || told, "{length} {number}");
        }
    }
}

#[test]
fn what_is_no_dump_is_refused() {
    let refused = |bytes: &[u8]| Reader::open(bytes).err().unwrap();
    assert!(matches!(refused(b""), ReadError::NotADump));
    assert!(matches!(refused(&[0; 4096]), ReadError::NotADump));
    let (bytes, _) = tree().dump(Tree::options());
    assert!(matches!(refused(&bytes[..RECORD]), ReadError::NoMaps));
    assert!(matches!(refused(&bytes[..3 * RECORD]), ReadError::NoMaps));
    let mut swapped = bytes.clone();
    swapped[24..28].reverse();
    assert!(matches!(refused(&swapped), ReadError::Foreign("a machine of the other byte order")));
}

/// Gives records, and fails where it was read further than anybody who looks at what they say would.
struct Records {
    first: Vec<u8>,
    at: usize,
}

impl std::io::Read for Records {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let Some(left) = self.first.get(self.at..).filter(|left| !left.is_empty()) else {
            return Err(std::io::Error::other("it is read on and on"));
        };
        let count = left.len().min(bytes.len());
        bytes[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn map_of_more_numbers_than_there_can_be_is_none() {
    let (mut bytes, _) = tree().dump(Tree::options());
    let at = RECORD;
    bytes[at + 160..][..4].copy_from_slice(&(u32::MAX / 8 / RECORD as u32 + 2).to_le_bytes());
    bytes[at + 28..][..4].fill(0);
    let words = bytes[at..][..RECORD].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let sum = words.fold(84_446, u32::wrapping_sub);
    bytes[at + 28..][..4].copy_from_slice(&sum.to_le_bytes());
    let refused = Reader::open(Records { first: bytes, at: 0 }).err();
    assert!(matches!(refused, Some(ReadError::NoMaps)), "{refused:?}");
}
