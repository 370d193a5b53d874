//! The image from which absent blocks are read, as a presence file has it.

use cairn_base::Checksum;
use cairn_format::SnapshotEntry;
use cairn_format::stream::root_digest;

use crate::images::ImageId;

/// Words of a base in a presence file: each has 48 of its bits.
pub(super) const BASE_WORDS: usize = 7;
/// Bytes of each word.
const PART: usize = 6;
/// Bytes of all fields.
const BYTES: usize = 16 + 8 + 16;

/// An image in a bucket, and the snapshot of the volume that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Base {
    /// The image; all zeroes before the first one. No block is absent then.
    pub image: ImageId,
    /// The number of its snapshot; 0 if it is unknown, and then nothing is evicted.
    pub number: u64,
    /// The digest of the root of that snapshot.
    pub root: Checksum,
}

impl Base {
    /// An image of a snapshot and of all earlier ones.
    pub fn of(image: ImageId, target: &SnapshotEntry) -> Self {
        Self { image, number: target.id.0, root: root_digest(target) }
    }

    /// Whether it is of this snapshot.
    pub fn is_of(&self, entry: &SnapshotEntry) -> bool {
        self.number == entry.id.0 && self.root == root_digest(entry)
    }

    /// Its parts for words.
    pub(super) fn parts(&self) -> [u64; BASE_WORDS] {
        let mut bytes = [0; BASE_WORDS * PART];
        bytes[..16].copy_from_slice(&self.image.0);
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..BYTES].copy_from_slice(&self.root.0);
        let mut parts = [0; BASE_WORDS];
        for (part, bytes) in parts.iter_mut().zip(bytes.chunks(PART)) {
            let mut eight = [0; 8];
            eight[..PART].copy_from_slice(bytes);
            *part = u64::from_le_bytes(eight);
        }
        parts
    }

    fn of_parts(parts: &[u64; BASE_WORDS]) -> Self {
        let mut bytes = Vec::with_capacity(BASE_WORDS * PART);
        parts.iter().for_each(|part| bytes.extend_from_slice(&part.to_le_bytes()[..PART]));
        let array = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).copied();
        let number = bytes.get(16..).and_then(|rest| rest.first_chunk()).copied().map(u64::from_le_bytes);
        Self {
            image: ImageId(array(0).unwrap_or_default()),
            number: number.unwrap_or_default(),
            root: Checksum(array(24).unwrap_or_default()),
        }
    }
}

/// A base whose words are being read.
#[derive(Default)]
pub(super) struct BaseParts {
    parts: [u64; BASE_WORDS],
    have: usize,
}

impl BaseParts {
    /// Takes the next part. The base once it is complete; an error if it is not the next one.
    pub(super) fn take(&mut self, number: usize, part: u64) -> Result<Option<Base>, ()> {
        // An earlier one may have been cut.
        if number == 0 {
            self.have = 0;
        }
        if number != self.have {
            return Err(());
        }
        *self.parts.get_mut(number).ok_or(())? = part;
        self.have += 1;
        if self.have < BASE_WORDS {
            return Ok(None);
        }
        self.have = 0;
        Ok(Some(Base::of_parts(&self.parts)))
    }
}

/// The outcome of [`BackedDevice::move_on`](super::BackedDevice::move_on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedOn {
    /// It reads from another image now.
    pub moved: bool,
    /// The image that it reads from. Its snapshot must stay, and it must not expire.
    pub base: Base,
}
