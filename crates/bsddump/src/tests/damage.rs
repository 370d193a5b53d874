//! A damaged record affects only its own file, and the reader reports which.

use std::ops::Range;

use super::model::{File, Tree};
use crate::header::{Header, What, content_checksum};
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
        // The label and the two maps: without them the dump has no information.
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

/// Makes the sum of a header right.
fn sum(header: &mut [u8]) {
    header[28..32].fill(0);
    let words = header.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let sum = words.fold(84_446, u32::wrapping_sub);
    header[28..32].copy_from_slice(&sum.to_le_bytes());
}

/// The places of a dump's headers.
fn headers(bytes: &[u8]) -> Vec<(usize, Header)> {
    let (mut headers, mut at) = (Vec::new(), 0);
    while let Some(record) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let header = Header::parse(record).expect("the one before says where it is");
        let pieces = header.pieces.iter().filter(|is_there| **is_there).count();
        let behind = 1 + pieces + header.map_records as usize;
        headers.push((at, header));
        at += behind * RECORD;
    }
    headers
}

/// A dump as Linux writes it: without Cairn's additions about content and attributes.
fn as_linux(mut bytes: Vec<u8>) -> Vec<u8> {
    for (at, _) in headers(&bytes) {
        bytes[at + 960..at + RECORD].fill(0);
        sum(&mut bytes[at..][..RECORD]);
    }
    bytes
}

fn numbers(damage: &[Damage]) -> Vec<u32> {
    let number = |damage: &Damage| match damage {
        Damage::Hurt { number } | Damage::Missing { number } => Some(*number),
        Damage::Skipped { .. } | Damage::Truncated => None,
    };
    damage.iter().filter_map(number).collect()
}

#[test]
fn damaged_header_of_a_dump_without_checksums_costs_its_file_and_the_reader_names_it() {
    let mut tree = tree();
    let long: Vec<u8> = (0..1_300_000u32).map(|at| (at / 1024) as u8).collect();
    let long = tree.add_with(ROOT, "long", &long);
    tree.get(long).attributes.push(Attribute { name: b"user.long".to_vec(), value: vec![1; 40] });
    tree.add_with(ROOT, "very last", b"the very last one");
    let bytes = as_linux(tree.dump(Tree::options()).0);
    let whole = Tree::read(&mut Reader::open(&bytes[..]).unwrap()).plain();
    let all = headers(&bytes);
    for (at, header) in &all[3..] {
        let how = format!("header {}", at / RECORD);
        let mut damaged = bytes.clone();
        damaged[at + 300] ^= 0x40;
        let mut reader = Reader::open(&damaged[..]).unwrap();
        let read = Tree::read(&mut reader).plain();
        let is_other = |number: &&u32| whole.0.get(number) != read.0.get(number);
        let different: Vec<u32> = whole.0.keys().filter(is_other).copied().collect();
        assert!(different.len() <= 1, "{how}");
        // Before the end there may have been attributes of the last file.
        match header.what {
            What::End => assert!(different.is_empty() && numbers(reader.damage()).len() <= 1, "{how}"),
            _ => assert_eq!(numbers(reader.damage()), different, "{how}"),
        }
        for (number, file) in &read.0 {
            let known = &whole.0[number].data;
            let is_right = |(offset, bytes): &(u64, Vec<u8>)| {
                let within =
                    known.iter().find(|(start, all)| *start <= *offset && offset - start < all.len() as u64);
                within.is_some_and(|(start, all)| all[(offset - start) as usize..].starts_with(bytes))
            };
            assert!(file.data.iter().all(is_right), "{how}: what there is of file {number} is elsewhere");
        }
    }
}

#[test]
fn dump_without_checksums_that_is_cut_off_may_lack_what_no_header_has_told_of() {
    let mut tree = tree();
    let bytes = as_linux(tree.dump(Tree::options()).0);
    let whole = Tree::read(&mut Reader::open(&bytes[..]).unwrap()).plain();
    let all = headers(&bytes);
    let end = all.iter().find(|(_, header)| header.what == What::End).unwrap().0;
    for length in (all[4].0..=end).step_by(RECORD / 2) {
        let mut reader = Reader::open(&bytes[..length]).unwrap();
        let read = Tree::read(&mut reader).plain();
        assert!(reader.damage().contains(&Damage::Truncated), "{length}");
        let told = numbers(reader.damage());
        for (number, file) in &whole.0 {
            assert!(read.0.get(number) == Some(file) || told.contains(number), "{length} {number}");
        }
    }
}

#[test]
fn what_makes_no_sense_in_a_directory_or_in_attributes_hurts_those_that_it_is_of() {
    let mut tree = tree();
    let bytes = as_linux(tree.dump(Tree::options()).0);
    let sub = tree.0[&ROOT].entries[0].number;
    let of = |number: u32, is_extended: bool| {
        let found = |(_, header): &&(usize, Header)| {
            header.number == number && header.extended.is_some() == is_extended && header.file.is_some()
        };
        let all = headers(&bytes);
        all.iter().find(found).expect("it is there").0
    };
    let file = tree.0[&sub].entries[0].number;
    for (number, at, change) in [
        // The length of an entry.
        (sub, of(sub, false) + RECORD + 4, 3),
        // How attributes are written, and the beginning of the block that they are in.
        (file, of(file, true) + 900, 9),
        (file, of(file, true) + RECORD, 9),
    ] {
        let mut damaged = bytes.clone();
        damaged[at] = change;
        if at % RECORD == 900 {
            sum(&mut damaged[at - 900..][..RECORD]);
        }
        let mut reader = Reader::open(&damaged[..]).unwrap();
        let read = Tree::read(&mut reader);
        assert_eq!(reader.damage(), [Damage::Hurt { number }], "{at}");
        assert!(read.0[&number].broken, "{at}");
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

/// Returns records, and fails on a read beyond those that a careful reader would need.
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
    sum(&mut bytes[at..][..RECORD]);
    let refused = Reader::open(Records { first: bytes, at: 0 }).err();
    assert!(matches!(refused, Some(ReadError::NoMaps)), "{refused:?}");
}

/// Records of each file: from its header to the next file's. And the place of the first header
/// after all of them.
fn places(bytes: &[u8]) -> (Vec<(u32, Range<usize>)>, usize) {
    let mut places: Vec<(u32, Range<usize>)> = Vec::new();
    for (at, header) in headers(bytes) {
        let at = at / RECORD;
        let begins = header.what == What::File && header.extended.is_none();
        if let (true, Some((_, last))) = (begins || header.what == What::End, places.last_mut()) {
            last.end = at;
        }
        match header.what {
            What::End => return (places, at),
            _ if begins => places.push((header.number, at..at)),
            _ => {}
        }
    }
    panic!("a dump has an end");
}

/// All of a file, with adjacent data in one piece.
fn joined(file: &File) -> File {
    let mut data: Vec<(u64, Vec<u8>)> = Vec::new();
    for (offset, bytes) in &file.data {
        match data.last_mut() {
            Some((start, last)) if *start + last.len() as u64 == *offset => last.extend(bytes),
            _ => data.push((*offset, bytes.clone())),
        }
    }
    File { data, ..file.clone() }
}

/// A tape drive skips a bad block, or a copy omits unreadable ones: later records move forward.
#[test]
fn records_that_are_missing_cost_the_files_that_they_were_of_and_the_reader_names_them() {
    let mut tree = tree();
    let long: Vec<u8> = (0..1_700_000u32).map(|at| (at / 1024) as u8).collect();
    tree.add_with(ROOT, "long", &long);
    for n in 0..20u8 {
        tree.add_with(ROOT, &format!("behind{n}"), &vec![n; 100 + usize::from(n) * 300]);
    }
    let own = tree.dump(Tree::options()).0;
    let linux = as_linux(own.clone());
    for (bytes, of) in [(own, "Cairn"), (linux, "Linux")] {
        let whole = Tree::read(&mut Reader::open(&bytes[..]).unwrap());
        let (places, end) = places(&bytes);
        let first = places[0].1.start;
        let more =
            headers(&bytes).into_iter().find(|(_, header)| header.what == What::More).unwrap().0 / RECORD;
        let near = |at: &usize| *at < first + 40 || more.abs_diff(*at) < 2 || *at + 40 > end;
        for at in (first..end).filter(near) {
            // One, the header of a file that is a dump with all up to the first file in there, a
            // block of the tape, and a stretch of a long file with its header.
            for count in [1, 6, 10, 513] {
                let gone = at..(at + count).min(end);
                let how = format!("a dump of {of} without {gone:?}");
                let left = [&bytes[..gone.start * RECORD], &bytes[gone.end * RECORD..]].concat();
                let mut reader = Reader::open(&left[..]).unwrap();
                let read = Tree::read(&mut reader);
                let told = numbers(reader.damage());
                assert!(!reader.damage().is_empty(), "{how}: nothing is told");
                let hurt =
                    places.iter().filter(|(_, place)| place.start < gone.end && place.end > gone.start);
                let hurt_end = hurt.map(|(_, place)| place.end).max().unwrap_or(gone.end);
                for (number, place) in &places {
                    let same = read.0.get(number).map(joined) == whole.0.get(number).map(joined);
                    assert!(
                        same || told.contains(number),
                        "{how}: file {number} is not what it was, told: {told:?}"
                    );
                    // As many as are gone may have been taken for them after the file that lost
                    // them. And without checksums they may have been of the previous file.
                    let before = usize::from(of == "Linux");
                    let is_near = place.start < hurt_end + gone.len() && place.end + before > gone.start;
                    assert!(same || is_near, "{how}: file {number} in {place:?} is lost");
                }
                assert!(read.0.keys().all(|number| whole.0.contains_key(number)), "{how}");
            }
        }
    }
}

/// Another program may count nothing: then each header is accepted where it is expected.
#[test]
fn dump_that_does_not_count_its_records_is_read() {
    let mut tree = tree();
    let bytes = as_linux(tree.dump(Tree::options()).0);
    let whole = Tree::read(&mut Reader::open(&bytes[..]).unwrap());
    let mut uncounted = bytes.clone();
    for (at, _) in headers(&bytes) {
        uncounted[at + 16..at + 20].fill(0);
        sum(&mut uncounted[at..][..RECORD]);
    }
    let mut reader = Reader::open(&uncounted[..]).unwrap();
    assert_eq!(Tree::read(&mut reader), whole);
    assert_eq!(reader.damage(), []);
}

/// A name that is not read would count as deleted in a restore of one level after the other.
#[test]
fn hole_in_a_directory_hurts_it() {
    let mut tree = tree();
    for n in 0..100 {
        tree.add_with(ROOT, &format!("a name that takes some room, and has the number {n}"), b"x");
    }
    for bytes in [tree.dump(Tree::options()).0, as_linux(tree.dump(Tree::options()).0)] {
        let all = headers(&bytes);
        let of_root = all.iter().position(|(_, header)| header.file.is_some()).unwrap();
        let (at, header) = &all[of_root];
        assert!(header.number == ROOT && header.pieces.len() > 5);
        for piece in [0, 2, header.pieces.len() - 1] {
            let mut holed = bytes.clone();
            holed.drain(at + (1 + piece) * RECORD..at + (2 + piece) * RECORD);
            holed[at + 164 + piece] = 0;
            if header.content_crc.is_some() {
                let there = &holed[at + RECORD..at + header.pieces.len() * RECORD];
                let crc = content_checksum(there);
                holed[at + 964..at + 968].copy_from_slice(&crc.to_le_bytes());
            }
            sum(&mut holed[*at..][..RECORD]);
            // The later ones are each one earlier.
            for (at, header) in &all[of_root + 1..] {
                let at = at - RECORD;
                holed[at + 16..at + 20].copy_from_slice(&(header.record - 1).to_le_bytes());
                sum(&mut holed[at..][..RECORD]);
            }
            let mut reader = Reader::open(&holed[..]).unwrap();
            let read = Tree::read(&mut reader);
            assert_eq!(reader.damage(), [Damage::Hurt { number: ROOT }], "piece {piece}");
            assert!(read.0[&ROOT].broken, "piece {piece}");
        }
    }
}

/// A map's claims cost no more than the map itself, even if it is hostile.
#[test]
fn map_that_says_of_millions_of_files_that_they_are_there_is_told_in_a_thousand() {
    let mut tree = Tree::new();
    let last = tree.add_with(ROOT, "last", b"the last one");
    let bytes = as_linux(tree.dump(Tree::options()).0);
    let all = headers(&bytes);
    let (at, _) = *all.iter().find(|(_, header)| header.what == What::Dumped).unwrap();
    let records = 1024;
    let mut forged = bytes[..at + RECORD].to_vec();
    forged[at + 160..at + 164].copy_from_slice(&(records as u32).to_le_bytes());
    sum(&mut forged[at..]);
    forged.extend(std::iter::repeat_n(0xff, records * RECORD));
    forged.extend(&bytes[at + 2 * RECORD..]);
    for (at, _) in headers(&forged) {
        forged[at + 16..at + 20].copy_from_slice(&((at / RECORD) as u32).to_le_bytes());
        sum(&mut forged[at..][..RECORD]);
    }
    let mut reader = Reader::open(&forged[..]).unwrap();
    assert_eq!(reader.dumped().count(), (records * RECORD * 8) as u64);
    let read = Tree::read(&mut reader).plain();
    assert!(read.0.contains_key(&last));
    let missing = reader.missing();
    assert_eq!(missing.count(), reader.dumped().count() - 2);
    assert!(!missing.contains(last) && !missing.contains(ROOT) && missing.contains(last + 1));
    assert_eq!(numbers(reader.damage()).len(), 1000);
}
