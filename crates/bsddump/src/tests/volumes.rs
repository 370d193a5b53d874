//! Dumps in volumes: cut anywhere, read again, with missing volumes and volumes out of turn.

use std::io::Cursor;

use super::model::{DATE, Tree, time};
use crate::record::RECORD;
use crate::{Attribute, Damage, Kind, NextVolume, Options, ROOT, ReadError, Reader, VolumeLabel};

/// Volumes of a dump, in order.
pub(super) fn volumes(tree: &mut Tree, records: u64, options: Options) -> Vec<Vec<u8>> {
    let options = Options { volume_records: Some(records), ..options };
    let bytes = options.volume_bytes().unwrap() as usize;
    let (dump, written) = tree.dump(options);
    assert!(written.failed.is_empty());
    dump.chunks(bytes).map(<[u8]>::to_vec).collect()
}

type Volume = Cursor<Vec<u8>>;

fn open(volumes: &[Vec<u8>]) -> Result<Reader<Volume>, ReadError> {
    let mut rest: Vec<Volume> = volumes.iter().rev().cloned().map(Cursor::new).collect();
    let first = rest.pop().unwrap();
    let next: NextVolume<Volume> = Box::new(move |_| Ok(rest.pop()));
    Reader::open_volumes(first, next)
}

/// A tree with a file that fills several small volumes.
pub(super) fn tree() -> Tree {
    let mut tree = Tree::new();
    let sub = tree.add(ROOT, "sub", Kind::Directory);
    let crowd = tree.add(sub, "crowd", Kind::Directory);
    for n in 0..200u32 {
        tree.add_with(crowd, &format!("a rather long name of a file, number {n}"), &n.to_le_bytes());
    }
    let content: Vec<u8> = (0..700_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let large = tree.add_with(sub, "large", &content);
    tree.link(ROOT, b"second name", large);
    let value = vec![7; 300];
    tree.get(large).attributes.push(Attribute { name: b"user.color".to_vec(), value });
    let sparse = tree.add(sub, "sparse", Kind::Regular);
    tree.fill(sparse, 3 << 20, vec![(1 << 20, vec![1; 90_000]), (2 << 20, vec![2; 1])]);
    let link = tree.add(sub, "link", Kind::Symlink);
    tree.fill(link, 5, vec![(0, b"large".to_vec())]);
    tree.add_with(sub, "last", b"the last one");
    tree
}

#[test]
fn volumes_of_any_size_read_as_the_whole_dump() {
    let mut tree = tree();
    for records in [1, 40, 49, 50, 70, 110, 250, 500, 900, 5000] {
        let parts = volumes(&mut tree, records, Tree::options());
        let most = (records.max(40) / 10 * 10) as usize * RECORD;
        let mut position = 0;
        for (index, part) in parts.iter().enumerate() {
            assert!(part.len() == most || index + 1 == parts.len() && part.len() % (10 * RECORD) == 0);
            let first: &[u8; RECORD] = part[..RECORD].try_into().unwrap();
            let label = VolumeLabel::of(first).unwrap();
            assert_eq!((label.volume, label.date, label.is_label), (index as i32 + 1, DATE, true));
            // Records of all volumes are counted, as Linux `dump` and `restore` do.
            let number = |at: usize| u32::from_le_bytes(first[at..at + 4].try_into().unwrap());
            assert_eq!((number(16), number(892)), (position, position), "c_tapea, c_firstrec");
            position += (part.len() / RECORD) as u32;
        }
        let last: &[u8; RECORD] = parts.last().unwrap().last_chunk().unwrap();
        assert!(VolumeLabel::of(last).is_some_and(|label| label.is_end));
        assert_eq!(parts.len() == 1, records == 5000, "{records}");
        let mut reader = open(&parts).unwrap();
        let read = Tree::read(&mut reader);
        assert_eq!(reader.damage(), [], "{records}");
        assert_eq!(read.plain(), tree.plain(), "{records}");
        assert_eq!(reader.volume() as usize, parts.len());
    }
}

#[test]
fn volumes_out_of_turn_and_of_other_dumps_are_named() {
    let mut tree = tree();
    let parts = volumes(&mut tree, 100, Tree::options());
    let read = |order: &[Vec<u8>]| -> Result<Vec<Damage>, ReadError> {
        let mut reader = open(order)?;
        while reader.next_inode()?.is_some() {}
        Ok(reader.damage().to_vec())
    };
    let refused = |order: &[Vec<u8>]| -> ReadError { read(order).expect_err("it is refused") };
    let swapped = [parts[0].clone(), parts[2].clone(), parts[1].clone()];
    let error = refused(&swapped);
    assert!(matches!(error, ReadError::OtherVolume { wanted: 2, found: 3, is_of_it: true }), "{error}");
    assert!(matches!(refused(&parts[1..]), ReadError::NotTheFirst(2)));
    let twice = [parts[0].clone(), parts[0].clone()];
    assert!(matches!(refused(&twice), ReadError::OtherVolume { wanted: 2, found: 1, is_of_it: true }));
    let other = volumes(&mut tree, 100, Options { date: DATE + 1, ..Tree::options() });
    let mixed = [parts[0].clone(), other[1].clone()];
    let error = refused(&mixed);
    assert!(matches!(error, ReadError::OtherVolume { wanted: 2, found: 2, is_of_it: false }), "{error}");
    assert_eq!(error.to_string(), "the file given as volume 2 of the dump is volume 2 of another dump");
    assert!(matches!(refused(&[parts[0].clone(), Vec::new()]), ReadError::NoVolume { wanted: 2 }));
    assert_eq!(read(&parts).unwrap(), []);
    // A missing one is where the dump ends.
    assert!(read(&parts[..3]).unwrap().contains(&Damage::Truncated));
}

/// Checks that the result of reading damaged volumes is right, or reported.
fn is_right_or_told(tree: &Tree, parts: &[Vec<u8>], what: &str) -> usize {
    let mut reader = open(parts).unwrap();
    let read = Tree::read(&mut reader).plain();
    let damage = reader.damage();
    assert!(!damage.is_empty(), "{what}");
    let mut told = 0;
    for (number, file) in &tree.0 {
        let is_told = damage.contains(&Damage::Hurt { number: *number })
            || damage.contains(&Damage::Missing { number: *number });
        assert!(read.0.get(number) == Some(file) || is_told, "{what}: file {number}: {damage:?}");
        told += usize::from(is_told);
    }
    told
}

#[test]
fn damage_where_a_volume_ends_or_begins_costs_the_file_that_is_there() {
    let mut tree = tree();
    let parts = volumes(&mut tree, 100, Tree::options());
    let whole = tree.plain();
    // The same without checksums of content, as other programs write it: nothing may be put
    // together over a gap.
    let strip = |parts: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let strip = |record: &[u8]| {
            let mut record: [u8; RECORD] = record.try_into().unwrap();
            let is_header = VolumeLabel::of(&record).is_some_and(|label| label.date == DATE);
            if is_header && record[960..964] == *b"CRN1" {
                let words = |record: &[u8; RECORD]| -> u32 {
                    let words = record.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                    words.fold(0, u32::wrapping_add)
                };
                let before = words(&record);
                record[960..].fill(0);
                let sum = u32::from_le_bytes(record[28..32].try_into().unwrap());
                let sum = sum.wrapping_add(before.wrapping_sub(words(&record)));
                record[28..32].copy_from_slice(&sum.to_le_bytes());
            }
            record
        };
        parts.iter().map(|part| part.chunks(RECORD).flat_map(strip).collect()).collect()
    };
    let mut plain = tree.clone();
    for file in plain.0.values_mut() {
        // Fields that the format itself does not have.
        file.inode.born = None;
        for time in [&mut file.inode.accessed, &mut file.inode.modified, &mut file.inode.changed] {
            time.nanoseconds = time.nanoseconds / 1000 * 1000;
        }
    }
    let stripped = strip(&parts);
    assert_eq!(Tree::read(&mut open(&stripped).unwrap()).plain(), plain.plain(), "it is a dump still");
    for (parts, tree) in [(&parts, &whole), (&stripped, &plain.plain())] {
        for volume in 1..parts.len() {
            let mut damaged = parts.clone();
            damaged[volume][300] ^= 1;
            let told = is_right_or_told(tree, &damaged, &format!("the label of volume {}", volume + 1));
            assert!(told <= 2, "volume {volume}: {told}");
        }
        for (volume, cut) in [(1, 1), (1, 30), (2, 7), (4, 50)] {
            let mut damaged = parts.clone();
            let left = damaged[volume].len() - cut * RECORD - RECORD / 2;
            damaged[volume].truncate(left);
            is_right_or_told(tree, &damaged, &format!("volume {} without its end", volume + 1));
        }
    }
}

#[test]
fn increments_are_cut_into_volumes_as_well() {
    let mut tree = tree();
    let since = DATE - 1000;
    let large = tree.0.values().find(|file| file.inode.size == 700_000).unwrap().inode.number;
    tree.get(large).inode.modified = time(i64::from(since));
    let parts = volumes(&mut tree, 60, Options { level: 1, since, ..Tree::options() });
    assert!(parts.len() > 3, "the file spans three volumes at least");
    let mut reader = open(&parts).unwrap();
    let read = Tree::read(&mut reader).plain();
    assert_eq!(reader.damage(), []);
    assert_eq!(read.0[&large], tree.plain().0[&large]);
    assert_eq!(reader.label().since, since);
}
