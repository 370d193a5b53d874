//! BSD dumps: the reader of tapes, over bytes as they came and with the sums of headers made right.

use cairn_bsddump::{Attribute, Dump, Entry, Inode, Kind, Names, Options, ROOT, Reader, Source, Time};

const RECORD: usize = 1024;
/// Where a header has its magic number and the word that makes all of them sum up.
const MAGIC_AT: usize = 24;
const SUM_AT: usize = 28;
const MAGIC: u32 = 60012;
const SUM: u32 = 84446;

pub(crate) fn reader(data: &[u8]) {
    read(data);
    let mut sealed = data.to_vec();
    for record in sealed.as_chunks_mut::<RECORD>().0 {
        if record[MAGIC_AT..MAGIC_AT + 4] == MAGIC.to_le_bytes() {
            record[SUM_AT..SUM_AT + 4].fill(0);
            let words = record.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
            let sum = words.fold(SUM, u32::wrapping_sub);
            record[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    read(&sealed);
}

/// Reads all of it. The output is bounded by the input, whatever sizes the headers claim.
fn read(data: &[u8]) {
    let Ok(mut reader) = Reader::open(data) else { return };
    let mut names = Names::new();
    let mut given = 0;
    while let Ok(Some(inode)) = reader.next_inode() {
        if inode.kind == Kind::Directory {
            let (entries, _) = reader.entries().expect("memory can be read");
            assert!(entries.iter().all(|entry| Entry::is_good_name(&entry.name)), "a name that is none");
            names.insert(inode.number, entries);
            continue;
        }
        let mut end = 0;
        let content = reader.content(&mut |offset, bytes| {
            assert!(offset >= end && offset + bytes.len() as u64 <= inode.size, "content out of place");
            end = offset + bytes.len() as u64;
            given += bytes.len();
            Ok(())
        });
        content.expect("memory can be read");
    }
    assert!(given <= data.len());
    assert!(reader.bytes() <= data.len() as u64);
    let mut paths = 0;
    names.walk(ROOT, &mut |_, _| paths += 1);
    assert!(paths <= data.len());
}

/// A few files of different kinds.
struct Few;

const NAMES: [(u32, &[u8], Kind); 4] = [
    (11, b"file", Kind::Regular),
    (12, b"link", Kind::Symlink),
    (13, b"device", Kind::Character),
    (14, b"other name of file 11", Kind::Regular),
];

impl Source for Few {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> std::io::Result<()> {
        for number in [ROOT, 11, 12, 13] {
            each(&self.inode(number)?);
        }
        Ok(())
    }

    fn inode(&mut self, number: u32) -> std::io::Result<Inode> {
        let kind =
            NAMES.iter().find(|(other, ..)| *other == number).map_or(Kind::Directory, |(.., kind)| *kind);
        let time = Time { seconds: 1_700_000_000, nanoseconds: 5 };
        let size = match kind {
            Kind::Regular => 9_000,
            Kind::Symlink => 4,
            _ => 0,
        };
        Ok(Inode {
            number,
            kind,
            permissions: 0o755,
            links: 2,
            uid: 1,
            gid: 2,
            size,
            accessed: time,
            modified: time,
            changed: time,
            born: Some(time),
            device: (8, 1),
        })
    }

    fn entries(&mut self, _: u32) -> std::io::Result<(Vec<Entry>, u32)> {
        let entry = |(number, name, kind): &(u32, &[u8], Kind)| Entry {
            number: (*number).min(13 - 2 * u32::from(*number == 14)),
            kind: Some(*kind),
            name: name.to_vec(),
        };
        Ok((NAMES.iter().map(entry).collect(), ROOT))
    }

    fn extents(&mut self, number: u32) -> std::io::Result<Vec<(u64, u64)>> {
        Ok(if number == 12 { vec![(0, 4)] } else { vec![(0, 1024), (5000, 4000)] })
    }

    fn read(&mut self, number: u32, _: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        bytes.fill(b'a' + number as u8);
        Ok(())
    }

    fn attributes(&mut self, number: u32) -> std::io::Result<Vec<Attribute>> {
        let list = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 9, 0, 0, 0].to_vec();
        Ok(match number {
            11 => vec![
                Attribute { name: b"user.color".to_vec(), value: b"blue".to_vec() },
                Attribute { name: b"system.posix_acl_access".to_vec(), value: list },
            ],
            _ => Vec::new(),
        })
    }
}

pub(crate) fn reader_seeds() -> Vec<Vec<u8>> {
    let dump = |options: Options| {
        let mut bytes = Vec::new();
        let dump = Dump::plan(&mut Few, options, None, &mut |_| true).expect("it has a root");
        dump.write(&mut Few, &mut bytes, &mut |_| true).expect("memory takes it");
        bytes
    };
    vec![
        dump(Options { date: 1_800_000_000, ..Options::default() }),
        dump(Options { date: 1_800_000_000, level: 3, since: 1_750_000_000, ..Options::default() }),
    ]
}
