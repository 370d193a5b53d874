//! Extended attributes in a dump: a block of ext2's, since Linux `dump` copies these and Linux
//! `restore` reads them.
//!
//! An attribute's name is a number for its prefix (`user.` is 1) and the rest. Access control lists
//! have a form of their own on ext2's disks, which differs from that of `getxattr`: they are
//! converted.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The maximum number of bytes in a block of attributes: the limit of Linux `restore`
/// (`XATTR_MAXSIZE`), and of 16 bits of offset.
const BLOCK_MAX: usize = 65_532;

const MAGIC: u32 = 0xea02_0000;
/// The block is the end of an inode: a short header, and values counted from its end.
const MAGIC_IN_INODE: u32 = 0xea02_0001;
const HEADER: usize = 32;
const HEADER_IN_INODE: usize = 4;
const ENTRY: usize = 16;

/// Beginnings of names, and their numbers. Linux `restore` knows 1 to 6.
const PREFIXES: &[(u8, &[u8])] = &[
    (1, b"user."),
    (2, ACCESS_LIST),
    (3, DEFAULT_LIST),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
    (7, b"system."),
];
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// The last number that Linux `restore` knows; it stops at others.
const KNOWN_MAX: u8 = 6;

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attribute {
    /// The whole name, as `user.x`.
    pub name: Vec<u8>,
    /// The value, in the form of `getxattr`.
    pub value: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawAttribute {
    name_length: u8,
    prefix: u8,
    value_offset: U16,
    value_block: U32,
    value_size: U32,
    hash: U32,
}

const _: () = assert!(size_of::<RawAttribute>() == ENTRY);

/// An attribute on its way into a block.
struct Packed<'a> {
    prefix: u8,
    name: &'a [u8],
    value: Vec<u8>,
}

impl Packed<'_> {
    fn bytes(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4) + self.value.len().next_multiple_of(4)
    }
}

/// The attributes in as many blocks as they take, and the names of those that have no place in any.
pub(crate) fn encode(attributes: &[Attribute]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut left_out = Vec::new();
    let mut packed = Vec::new();
    for attribute in attributes {
        match pack(attribute) {
            Some(one) if HEADER + one.bytes() + 4 <= BLOCK_MAX => packed.push(one),
            _ => left_out.push(attribute.name.clone()),
        }
    }
    // Those that Linux knows first, and in blocks of their own: it stops at the first that it
    // doesn't know.
    packed.sort_by_key(|one| one.prefix > KNOWN_MAX);
    let mut blocks = Vec::new();
    let mut block: Vec<Packed<'_>> = Vec::new();
    let mut bytes = HEADER + 4;
    for one in packed {
        let strange = block.last().is_some_and(|last| last.prefix <= KNOWN_MAX) && one.prefix > KNOWN_MAX;
        if bytes + one.bytes() > BLOCK_MAX || strange {
            blocks.push(lay_out(&std::mem::take(&mut block)));
            bytes = HEADER + 4;
        }
        bytes += one.bytes();
        block.push(one);
    }
    if !block.is_empty() {
        blocks.push(lay_out(&block));
    }
    (blocks, left_out)
}

fn pack(attribute: &Attribute) -> Option<Packed<'_>> {
    let (prefix, beginning) = PREFIXES.iter().find(|(_, beginning)| attribute.name.starts_with(beginning))?;
    let is_list = matches!(prefix, 2 | 3);
    let name = &attribute.name[beginning.len()..];
    if is_list != name.is_empty() || name.len() > 255 {
        return None;
    }
    let value = if is_list { list_to_disk(&attribute.value)? } else { attribute.value.clone() };
    Some(Packed { prefix: *prefix, name, value })
}

fn lay_out(block: &[Packed<'_>]) -> Vec<u8> {
    let length = HEADER + 4 + block.iter().map(Packed::bytes).sum::<usize>();
    let mut bytes = vec![0; length];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    let (mut at, mut end) = (HEADER, length);
    for one in block {
        end -= one.value.len().next_multiple_of(4);
        let raw = RawAttribute {
            name_length: one.name.len() as u8,
            prefix: one.prefix,
            value_offset: (if one.value.is_empty() { 0 } else { end as u16 }).into(),
            value_block: 0.into(),
            value_size: (one.value.len() as u32).into(),
            hash: 0.into(),
        };
        bytes[at..at + ENTRY].copy_from_slice(raw.as_bytes());
        bytes[at + ENTRY..at + ENTRY + one.name.len()].copy_from_slice(one.name);
        bytes[end..end + one.value.len()].copy_from_slice(&one.value);
        at += (ENTRY + one.name.len()).next_multiple_of(4);
    }
    bytes
}

/// The attributes of a block; false with them when some of it is invalid.
pub(crate) fn parse(bytes: &[u8]) -> (Vec<Attribute>, bool) {
    let mut attributes = Vec::new();
    let magic = bytes.first_chunk::<4>().map_or(0, |magic| u32::from_le_bytes(*magic));
    let (mut at, base) = match magic {
        MAGIC => (HEADER, 0),
        MAGIC_IN_INODE => (HEADER_IN_INODE, HEADER_IN_INODE),
        _ => return (attributes, false),
    };
    let mut good = true;
    // Values may overlap in a block that was made to: together they are not more than this.
    let mut budget = 4 * BLOCK_MAX;
    while let Some(rest) = bytes.get(at..) {
        if rest.first_chunk::<4>().is_none_or(|word| *word == [0; 4]) {
            break;
        }
        let Ok((raw, rest)) = RawAttribute::ref_from_prefix(rest) else { return (attributes, false) };
        let Some(name) = rest.get(..raw.name_length.into()) else { return (attributes, false) };
        at += (ENTRY + name.len()).next_multiple_of(4);
        let size = raw.value_size.get() as usize;
        let from = usize::from(raw.value_offset.get()) + base;
        let value = if size == 0 { Some(&[][..]) } else { bytes.get(from..from.saturating_add(size)) };
        let prefix = PREFIXES.iter().find(|(number, _)| *number == raw.prefix);
        let is_list = matches!(raw.prefix, 2 | 3);
        let value = value.filter(|_| raw.value_block.get() == 0 && size <= budget);
        let value =
            value.and_then(|value| if is_list { list_from_disk(value) } else { Some(value.to_vec()) });
        match (prefix, value) {
            (Some((_, beginning)), Some(value)) if !name.contains(&0) && is_list == name.is_empty() => {
                budget -= size;
                attributes.push(Attribute { name: [beginning, name].concat(), value });
            }
            _ => good = false,
        }
    }
    (attributes, good)
}

/// Version of an access control list in `getxattr`'s form: 8 bytes an entry.
const LIST_VERSION: u32 = 2;
/// Version of ext2's form: 4 bytes an entry, and 4 more for those that name a user or group.
const DISK_VERSION: u32 = 1;
/// Tags of entries: owner, a user, group, a group, mask, others.
const NAMED_TAGS: [u16; 2] = [0x02, 0x08];
const PLAIN_TAGS: [u16; 4] = [0x01, 0x04, 0x10, 0x20];
/// The id of entries without a named user or group.
const NOBODY: u32 = u32::MAX;

fn list_to_disk(list: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != LIST_VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries.as_chunks::<8>().0 {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        match tag {
            _ if NAMED_TAGS.contains(&tag) => disk.extend(entry),
            _ if PLAIN_TAGS.contains(&tag) => disk.extend(&entry[..4]),
            _ => return None,
        }
    }
    Some(disk)
}

fn list_from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = disk.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != DISK_VERSION {
        return None;
    }
    let mut list = LIST_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (head, more) = rest.split_first_chunk::<4>()?;
        let tag = u16::from_le_bytes([head[0], head[1]]);
        list.extend(head);
        rest = more;
        if NAMED_TAGS.contains(&tag) {
            let (id, more) = rest.split_first_chunk::<4>()?;
            list.extend(id);
            rest = more;
        } else if PLAIN_TAGS.contains(&tag) {
            list.extend(NOBODY.to_le_bytes());
        } else {
            return None;
        }
    }
    Some(list)
}
