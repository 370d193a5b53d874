//! The envelope of every object of an image but the frames of a region, and its numbers.
//!
//! ```text
//! bytes   field
//! 8       magic number CAIRNIMG
//! 4       version, 1
//! 4       kind: 1 epoch, 2 base, 3 root, 4 checkpoint, 5 list, 6 progress, 7 header of a region
//! 16      volume id
//! ...     fields of the kind
//! 16      XXH3-128 of all before
//! ```
//!
//! Numbers are little-endian. The version is checked before the checksum, so that a later version
//! is named even if it uses another checksum. A count is checked against the bytes that are left
//! before anything is allocated for it.

use cairn_base::{Checksum, VolumeId};

/// The version that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"CAIRNIMG";
/// Bytes before the fields.
pub(super) const HEAD: usize = 32;
/// Bytes after the fields.
pub(super) const SUM: usize = 16;

/// The epoch of a writer and a number that it uses once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Version {
    pub(super) epoch: u32,
    pub(super) number: u32,
}

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Epoch = 1,
    Base = 2,
    Root = 3,
    Checkpoint = 4,
    List = 5,
    Progress = 6,
    Region = 7,
}

/// The reason why bytes do not decode as an object of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    Damaged(&'static str),
    Newer(u32),
}

/// Writes an object.
pub(super) struct Write(Vec<u8>);

impl Write {
    pub(super) fn new(kind: Kind, volume: VolumeId) -> Self {
        let mut write = Self(Vec::with_capacity(256));
        write.bytes(MAGIC);
        write.u32(VERSION);
        write.u32(kind as u32);
        write.bytes(&volume.0);
        write
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// A length and the bytes.
    pub(super) fn text(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes(bytes);
    }

    pub(super) fn version(&mut self, at: Version) {
        self.u32(at.epoch);
        self.u32(at.number);
    }

    pub(super) fn seal(mut self) -> Vec<u8> {
        let sum = Checksum::of(&self.0);
        self.bytes(&sum.0);
        self.0
    }
}

/// Reads the fields of an object; none past their end.
pub(super) struct Read<'a>(&'a [u8]);

impl<'a> Read<'a> {
    /// Checks the envelope.
    pub(super) fn open(bytes: &'a [u8], kind: Kind, volume: VolumeId) -> Result<Self, Bad> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(Bad::Damaged("it is no object of an image"))?;
        let mut head = Self(rest);
        let version = head.u32().ok_or(Bad::Damaged("it is cut"))?;
        if version > VERSION {
            return Err(Bad::Newer(version));
        }
        let cut = bytes.len().checked_sub(SUM).filter(|cut| *cut >= HEAD).ok_or(Bad::Damaged("it is cut"))?;
        let (body, sum) = bytes.split_at(cut);
        if version == 0 || Checksum::of(body).0 != *sum {
            return Err(Bad::Damaged("its checksum is wrong"));
        }
        let mut read = Self(body.get(12..).unwrap_or_default());
        if read.u32() != Some(kind as u32) {
            return Err(Bad::Damaged("it is an object of another kind"));
        }
        if read.array() != Some(volume.0) {
            return Err(Bad::Damaged("it belongs to another volume"));
        }
        Ok(read)
    }

    pub(super) fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.slice(usize::try_from(length).ok()?)
    }

    pub(super) fn version(&mut self) -> Option<Version> {
        Some(Version { epoch: self.u32()?, number: self.u32()? })
    }

    /// A count of items of at least `size` bytes, and the items.
    pub(super) fn items<T>(&mut self, size: usize, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.u32()?).ok()?;
        if count.checked_mul(size)? > self.0.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// The fields end here.
    pub(super) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The fault of fields that do not parse.
pub(super) const FIELDS: Bad = Bad::Damaged("its fields are wrong");
