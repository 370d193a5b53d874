//! Tests of zip files: a reader of the directory finds each content at its place, with and without
//! the fields of zip64. Another test reads such files with another program.

use super::*;

/// A content that comes in pieces.
struct InPieces(Vec<Vec<u8>>);

impl Pieces for InPieces {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
    }
}

fn entry(name: &[u8], mode: u32, bytes: u64) -> Entry {
    Entry { name: name.to_vec(), mode, modified: 1_795_872_001, bytes, link: None }
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The value of a field, or the next one of zip64 if the field refers to that.
fn wide(value: u64, beyond: &mut &[u8]) -> u64 {
    if value != LARGE {
        return value;
    }
    let found = number(beyond, 0, 8);
    *beyond = &beyond[8..];
    found
}

/// Name, mode and content of each file, by the directory at the end.
fn read(zip: &[u8]) -> Vec<(Vec<u8>, u32, Vec<u8>)> {
    let last = zip.len() - 22;
    assert_eq!(number(zip, last, 4), 0x0605_4b50);
    let (mut count, mut at) = (number(zip, last + 10, 2), number(zip, last + 16, 4));
    if zip.len() > 42 && number(zip, last - 20, 4) == 0x0706_4b50 {
        let place = number(zip, last - 12, 8) as usize;
        assert_eq!(number(zip, place, 4), 0x0606_4b50);
        (count, at) = (number(zip, place + 32, 8), number(zip, place + 48, 8));
    }
    let mut found = Vec::new();
    let mut at = at as usize;
    for _ in 0..count {
        assert_eq!(number(zip, at, 4), 0x0201_4b50);
        let (name_bytes, further_bytes) =
            (number(zip, at + 28, 2) as usize, number(zip, at + 30, 2) as usize);
        let name = zip[at + 46..at + 46 + name_bytes].to_vec();
        let mut further = &zip[at + 46 + name_bytes..at + 46 + name_bytes + further_bytes];
        let mut beyond: &[u8] = &[];
        while !further.is_empty() {
            let length = number(further, 2, 2) as usize;
            if number(further, 0, 2) == 1 {
                beyond = &further[4..4 + length];
            }
            further = &further[4 + length..];
        }
        let bytes = wide(number(zip, at + 24, 4), &mut beyond);
        assert_eq!(wide(number(zip, at + 20, 4), &mut beyond), bytes);
        let place = wide(number(zip, at + 42, 4), &mut beyond) as usize;
        assert_eq!(number(zip, place, 4), 0x0403_4b50);
        let begin = place + 30 + number(zip, place + 26, 2) as usize + number(zip, place + 28, 2) as usize;
        let content = zip[begin..begin + bytes as usize].to_vec();
        assert_eq!(u64::from(crc32fast::hash(&content)), number(zip, at + 16, 4), "{name:?}");
        found.push((name, (number(zip, at + 38, 4) >> 16) as u32, content));
        at += 46 + name_bytes + further_bytes;
    }
    found
}

#[test]
fn directory_leads_to_each_content_also_with_the_fields_of_zip64() {
    let long: Vec<Vec<u8>> = (0..3).map(|piece| vec![piece; SMALL as usize - 7]).collect();
    let long_bytes = long.iter().map(Vec::len).sum::<usize>() as u64;
    let all = [
        (entry(b"folder/", 0o040_755, 0), Vec::new()),
        (entry(b"folder/empty", 0o100_644, 0), Vec::new()),
        (entry(b"folder/short", 0o100_600, 5), vec![b"short".to_vec()]),
        (entry(b"folder/\xff", 0o104_711, long_bytes), long),
        (Entry { link: Some(b"short".to_vec()), ..entry(b"folder/link", 0o120_777, 5) }, Vec::new()),
    ];
    for large in [LARGE, 1000, 1] {
        let mut out = Vec::new();
        let mut zip = Zip::new(&mut out, large);
        for (entry, pieces) in &all {
            zip.append(entry, InPieces(pieces.clone())).unwrap();
        }
        let mut listing = zip.listing();
        all.iter().for_each(|(entry, _)| listing.append(entry).unwrap());
        listing.finish().unwrap();
        let found = read(&out);
        assert_eq!(found.len(), all.len());
        for ((name, mode, content), (entry, pieces)) in found.iter().zip(&all) {
            assert_eq!((name, mode), (&entry.name, &entry.mode));
            assert_eq!(*content, entry.link.clone().unwrap_or_else(|| pieces.concat()));
        }
    }
}

#[test]
fn time_of_a_file_is_within_what_the_format_knows() {
    let at = |modified| Entry { modified, ..entry(b"a", 0o100_644, 0) };
    // 2026-11-28 13:20:01 UTC.
    assert_eq!(at(1_795_872_001).dos_time(), [13 << 11 | 20 << 5, 46 << 9 | 11 << 5 | 28]);
    for beyond in [i64::MIN, -1, 0, 5_000_000_000, i64::MAX] {
        assert_eq!(at(beyond).dos_time(), [0, 33], "{beyond}");
    }
    assert!(at(5_000_000_000).exact_time().is_empty());
}

#[test]
fn folder_that_differs_at_the_second_walk_is_an_error() {
    let mut zip = Zip::new(Vec::new(), LARGE);
    zip.append(&entry(b"a", 0o100_644, 1), InPieces(vec![vec![1]])).unwrap();
    assert!(zip.listing().finish().is_err());
}
