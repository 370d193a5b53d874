//! Leaves of a directory of the tree of names: names by key, each with its file.
//!
//! A directory is a trie over the keys of its names. The leaf of the first `level` bits `prefix` of
//! a key is at one fixed block of the directory's file, so no block stores the place of another.
//! The leaf of level 0 always exists: it names the parent directory of this one.

use cairn_base::FileId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::COUNTER_MAX;
use crate::{BlockBytes, FormatError, Structure, layout};

/// Bits of a key.
pub const KEY_BITS: u8 = 62;
/// Smallest key: lower numbers represent `.` and `..`, and the beginning, for readers that continue
/// from a key.
pub const KEY_MIN: u64 = 4;
/// Highest level of a leaf. There the directory's file is as long as a file may be.
pub const LEAF_LEVEL_MAX: u8 = 30;
/// Longest name of a file of the tree of names, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a leaf that its names may take.
pub const LEAF_BYTES: usize = cairn_base::BLOCK_SIZE - HEAD;

const MAGIC: u32 = u32::from_le_bytes(*b"CDIR");
const HEAD: usize = 64;
/// Bytes of an entry before its name.
const ENTRY: usize = 18;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLeaf {
    magic: U32,
    version: U16,
    level: u8,
    split: u8,
    directory: U64,
    prefix: U64,
    parent: U64,
    parent_key: U64,
    names: U16,
    bytes: U16,
    reserved: [u8; 20],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawName {
    key: U64,
    file: U64,
    kind: u8,
    length: u8,
}

const _: () = assert!(size_of::<RawLeaf>() == HEAD && size_of::<RawName>() == ENTRY);

/// Which leaf of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafPlace {
    /// Bits of the keys that are the same in all of the leaf.
    pub level: u8,
    /// These bits.
    pub prefix: u64,
}

impl LeafPlace {
    /// The leaf with the directory's own fields.
    pub const TOP: Self = Self { level: 0, prefix: 0 };

    /// The leaf of `level` that a key belongs to.
    pub fn of(key: u64, level: u8) -> Self {
        Self { level, prefix: key >> (KEY_BITS - level) }
    }

    /// Its block in the directory's file.
    pub fn lba(self) -> u64 {
        if self.level == 0 { 0 } else { (1 << self.level) + self.prefix }
    }

    /// The leaf at a block; `None` for block 1, which has none, and past the last level.
    pub fn at(lba: u64) -> Option<Self> {
        match lba {
            0 => Some(Self::TOP),
            1 => None,
            _ => {
                let level = lba.ilog2() as u8;
                (level <= LEAF_LEVEL_MAX).then(|| Self { level, prefix: lba - (1 << level) })
            }
        }
    }

    /// Blocks of a directory whose leaves go down to `level`.
    pub fn blocks_to(level: u8) -> u64 {
        if level == 0 { 1 } else { 2 << level }
    }

    /// The deepest level of a directory of this many blocks.
    pub fn level_of(blocks: u64) -> u8 {
        if blocks < 4 { 0 } else { (blocks.ilog2() - 1).min(LEAF_LEVEL_MAX.into()) as u8 }
    }

    /// The first key past those of the leaf.
    pub fn end(self) -> u64 {
        (self.prefix + 1) << (KEY_BITS - self.level)
    }

    /// The first key that may be in it.
    pub fn start(self) -> u64 {
        self.prefix << (KEY_BITS - self.level)
    }
}

/// A name in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafName<'a> {
    /// Its key, unique in the directory: it sorts the names, and a reader of a directory continues
    /// from one.
    pub key: u64,
    /// The file that it names.
    pub file: FileId,
    /// The type of that, as in the upper bits of `st_mode`: one of seven, which a file keeps for
    /// life.
    pub kind: u8,
    /// 1 to 255 bytes, none of them zero or a slash.
    pub name: &'a [u8],
}

impl LeafName<'_> {
    /// Bytes that it takes in a leaf.
    pub fn size(&self) -> usize {
        ENTRY + self.name.len()
    }
}

/// The fields in the head of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafHead {
    /// The directory.
    pub directory: FileId,
    /// Which leaf of it.
    pub place: LeafPlace,
    /// The top leaf: the names are in leaves of higher levels.
    pub split: bool,
    /// The top leaf: the directory that has this one's name; the root has itself. Other leaves: 0.
    pub parent: FileId,
    /// The top leaf: the key of that name; the root: 0. Other leaves: 0.
    pub parent_key: u64,
}

/// A leaf on a disk, checked.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    /// Its head.
    pub head: LeafHead,
    names: &'a [u8],
    count: u16,
}

impl<'a> Leaf<'a> {
    /// Checks all of a block that should be the leaf `place` of `directory`.
    pub fn parse(block: &'a BlockBytes, directory: FileId, place: LeafPlace) -> Result<Self, FormatError> {
        let structure = Structure::Leaf;
        let field = |field| FormatError::Field { structure, field };
        let (head, body) = block.split_at_checked(HEAD).ok_or(field("size"))?;
        let raw = RawLeaf::ref_from_bytes(head).map_err(|_| field("size"))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        layout::check_version(structure, raw.version.get().into())?;
        let is_here = raw.directory.get() == directory.0
            && raw.level == place.level
            && raw.prefix.get() == place.prefix;
        if !is_here {
            return Err(FormatError::Misplaced(structure));
        }
        let is_top = place == LeafPlace::TOP;
        let (parent, parent_key) = (raw.parent.get(), raw.parent_key.get());
        if raw.split > u8::from(is_top) || raw.reserved != [0; 20] {
            return Err(field("reserved byte"));
        }
        let good_parent = if is_top { (1..COUNTER_MAX).contains(&parent) } else { parent == 0 };
        if !good_parent || parent_key >= 1 << KEY_BITS || !is_top && parent_key != 0 {
            return Err(field("parent"));
        }
        let (names, unused) = body.split_at_checked(raw.bytes.get().into()).ok_or(field("length"))?;
        if unused.iter().any(|byte| *byte != 0) || raw.split == 1 && !names.is_empty() {
            return Err(field("length"));
        }
        let head = LeafHead { directory, place, split: raw.split == 1, parent: FileId(parent), parent_key };
        let leaf = Self { head, names, count: raw.names.get() };
        leaf.check_names().ok_or(field("name"))?;
        Ok(leaf)
    }

    /// A leaf that was checked before, parsed again: the same block of the same directory. `None`
    /// for one that can't have been.
    pub fn trusted(block: &'a BlockBytes, directory: FileId, place: LeafPlace) -> Option<Self> {
        let (head, body) = block.split_at_checked(HEAD)?;
        let raw = RawLeaf::ref_from_bytes(head).ok()?;
        let names = body.get(..raw.bytes.get().into())?;
        let (parent, parent_key) = (FileId(raw.parent.get()), raw.parent_key.get());
        let head = LeafHead { directory, place, split: raw.split == 1, parent, parent_key };
        Some(Self { head, names, count: raw.names.get() })
    }

    /// The names, by key.
    pub fn names(&self) -> LeafNames<'a> {
        LeafNames(self.names)
    }

    /// How many names.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// True without names.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that its names take.
    pub fn used_bytes(&self) -> usize {
        self.names.len()
    }

    /// Names that fill all of it, in order, with keys of this leaf, of files that can be.
    fn check_names(&self) -> Option<()> {
        let place = self.head.place;
        let (mut next, mut rest, mut count) = (place.start().max(KEY_MIN), self.names, 0);
        while !rest.is_empty() {
            let (name, after) = take_name(rest)?;
            let good_file = (1..COUNTER_MAX).contains(&name.file.0);
            let good_kind = matches!(name.kind, 1 | 2 | 4 | 6 | 8 | 10 | 12);
            let good_name = !name.name.is_empty() && !name.name.iter().any(|byte| matches!(byte, 0 | b'/'));
            if name.key < next || name.key >= place.end() || !good_file || !good_kind || !good_name {
                return None;
            }
            (next, rest, count) = (name.key + 1, after, count + 1);
        }
        (count == self.count).then_some(())
    }
}

/// The names of a leaf that was checked.
#[derive(Debug, Clone)]
pub struct LeafNames<'a>(&'a [u8]);

impl<'a> Iterator for LeafNames<'a> {
    type Item = LeafName<'a>;

    fn next(&mut self) -> Option<LeafName<'a>> {
        let (name, rest) = take_name(self.0)?;
        self.0 = rest;
        Some(name)
    }
}

fn take_name(bytes: &[u8]) -> Option<(LeafName<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(ENTRY)?;
    let raw = RawName::ref_from_bytes(head).ok()?;
    let (name, rest) = rest.split_at_checked(raw.length.into())?;
    Some((LeafName { key: raw.key.get(), file: FileId(raw.file.get()), kind: raw.kind, name }, rest))
}

impl LeafHead {
    /// Writes a leaf of `names`, which are by key and take [`LEAF_BYTES`] at most; panics when they
    /// take more.
    pub fn write<'a>(&self, names: impl Iterator<Item = LeafName<'a>>, block: &mut BlockBytes) {
        let (mut at, mut count) = (HEAD, 0u16);
        for name in names {
            let raw = RawName {
                key: name.key.into(),
                file: name.file.0.into(),
                kind: name.kind,
                length: name.name.len() as u8,
            };
            block[at..at + ENTRY].copy_from_slice(raw.as_bytes());
            block[at + ENTRY..at + name.size()].copy_from_slice(name.name);
            at += name.size();
            count += 1;
        }
        block[at..].fill(0);
        let raw = RawLeaf {
            magic: MAGIC.into(),
            version: (layout::VERSION as u16).into(),
            level: self.place.level,
            split: u8::from(self.split),
            directory: self.directory.0.into(),
            prefix: self.place.prefix.into(),
            parent: self.parent.0.into(),
            parent_key: self.parent_key.into(),
            names: count.into(),
            bytes: ((at - HEAD) as u16).into(),
            reserved: [0; 20],
        };
        block[..HEAD].copy_from_slice(raw.as_bytes());
    }
}
