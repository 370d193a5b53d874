//! Directories in a dump: entries of number, kind and name, in blocks of 512 bytes that no entry
//! crosses.

use crate::inode::Kind;

/// Bytes of a directory's block (`DIRBLKSIZ`).
const BLOCK: usize = 512;
/// Bytes of an entry before its name.
const HEAD: usize = 8;
/// Longest name.
pub(crate) const NAME_MAX: usize = 255;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose name it is.
    pub number: u32,
    /// The kind of the file, if known.
    pub kind: Option<Kind>,
    /// 1 to 255 bytes, without `/` and zeroes.
    pub name: Vec<u8>,
}

impl Entry {
    /// Whether a name can be a file's: not empty, not too long, without `/` and zeroes, neither `.`
    /// nor `..`.
    pub fn is_good_name(name: &[u8]) -> bool {
        (1..=NAME_MAX).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0) && !is_dot(name)
    }
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// A directory as bytes: `.` and `..` first, then `entries`.
pub(crate) fn encode<'a>(own: u32, parent: u32, entries: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = 0;
    let mut put = |number: u32, kind: Option<Kind>, name: &[u8]| {
        let length = (HEAD + name.len() + 1).next_multiple_of(4);
        let left = BLOCK - bytes.len() % BLOCK;
        if length > left {
            stretch(&mut bytes, last, left);
        }
        last = bytes.len();
        bytes.extend(number.to_le_bytes());
        bytes.extend((length as u16).to_le_bytes());
        bytes.push(kind.map_or(0, Kind::entry_type));
        bytes.push(name.len() as u8);
        bytes.extend(name);
        bytes.resize(last + length, 0);
    };
    put(own, Some(Kind::Directory), b".");
    put(parent, Some(Kind::Directory), b"..");
    for entry in entries {
        put(entry.number, entry.kind, &entry.name);
    }
    let left = (BLOCK - bytes.len() % BLOCK) % BLOCK;
    stretch(&mut bytes, last, left);
    bytes
}

/// Makes the entry at `last` longer by `more`, which ends the block.
fn stretch(bytes: &mut Vec<u8>, last: usize, more: usize) {
    let Some(place) = bytes.get(last + 4..last + 6) else { return };
    let length = u16::from_le_bytes([place[0], place[1]]) + more as u16;
    bytes[last + 4..last + 6].copy_from_slice(&length.to_le_bytes());
    bytes.resize(bytes.len() + more, 0);
}

/// The content of a directory's bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Everything but `.` and `..`.
    pub(crate) entries: Vec<Entry>,
    /// The number that `..` has.
    pub(crate) parent: Option<u32>,
    /// Entries with impossible names, and entries called `.` or `..` that are not the first of that
    /// name.
    pub(crate) refused: Vec<Entry>,
    /// Some block was invalid, and its rest was skipped.
    pub(crate) mangled: bool,
}

/// Reads a directory's bytes. An invalid entry loses the rest of its block.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut own = None;
    for block in bytes.chunks(BLOCK) {
        let mut rest = block;
        while !rest.is_empty() {
            let Some((entry, length)) = parse_entry(rest) else {
                parsed.mangled = true;
                break;
            };
            rest = rest.get(length..).unwrap_or(&[]);
            match entry {
                Some(entry) if is_dot(&entry.name) => {
                    let known = if entry.name == b".." { &mut parsed.parent } else { &mut own };
                    if known.is_some_and(|known| known != entry.number) {
                        parsed.refused.push(entry);
                    } else {
                        *known = Some(entry.number);
                    }
                }
                Some(entry) if Entry::is_good_name(&entry.name) => parsed.entries.push(entry),
                Some(entry) => parsed.refused.push(entry),
                None => {}
            }
        }
    }
    parsed.mangled |= !parsed.refused.is_empty();
    parsed
}

/// The first entry and its length; `None` inside for an unused one, outside for an invalid one.
fn parse_entry(bytes: &[u8]) -> Option<(Option<Entry>, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let number = u32::from_le_bytes(head[..4].try_into().ok()?);
    let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let name_length = usize::from(head[7]);
    if !length.is_multiple_of(4) || length > bytes.len() || length < HEAD {
        return None;
    }
    if number == 0 {
        return Some((None, length));
    }
    if HEAD + name_length > length {
        return None;
    }
    let name = rest.get(..name_length)?.to_vec();
    Some((Some(Entry { number, kind: Kind::of_entry_type(head[6]), name }), length))
}
