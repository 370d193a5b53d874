//! Sets of inode numbers, in the form of the two maps at the head of a dump: bit n - 1 represents
//! inode n.

use crate::record::RECORD;

/// A set of inode numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InodeMap {
    bytes: Vec<u8>,
}

impl InodeMap {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set in these bytes: see [`InodeMap::as_bytes`].
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Its bits, from inode 1 on, the lowest first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts a number in. 0 is no inode and stays out.
    pub fn insert(&mut self, number: u32) {
        let Some((byte, bit)) = place(number) else { return };
        if self.bytes.len() <= byte {
            self.bytes.resize(byte + 1, 0);
        }
        self.bytes[byte] |= bit;
    }

    /// Takes a number out.
    pub fn remove(&mut self, number: u32) {
        if let Some((byte, bit)) = place(number)
            && let Some(byte) = self.bytes.get_mut(byte)
        {
            *byte &= !bit;
        }
    }

    /// Whether it is in.
    pub fn contains(&self, number: u32) -> bool {
        place(number).is_some_and(|(byte, bit)| self.bytes.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// How many are in.
    pub fn count(&self) -> u64 {
        self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Those that are in it and not in another one.
    pub fn without(&self, other: &Self) -> Self {
        let others = other.bytes.iter().copied().chain(std::iter::repeat(0));
        Self { bytes: self.bytes.iter().zip(others).map(|(byte, other)| byte & !other).collect() }
    }

    /// Whether one from `first` to `last` is in.
    pub(crate) fn has_any(&self, first: u32, last: u32) -> bool {
        let (Some((from, _)), Some((to, _))) = (place(first.max(1)), place(last)) else { return false };
        let bytes = self.bytes.get(from..=to.min(self.bytes.len().saturating_sub(1))).unwrap_or(&[]);
        let is_within = |index: usize, bit: u32| {
            let number = (from + index) as u64 * 8 + u64::from(bit) + 1;
            (u64::from(first)..=u64::from(last)).contains(&number)
        };
        bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
            .any(|(index, byte)| (0..8).filter(|bit| byte >> bit & 1 == 1).any(|bit| is_within(index, bit)))
    }

    /// Past the last number in it; 0 for the empty set.
    pub(crate) fn end(&self) -> u64 {
        let last = self.bytes.iter().rposition(|byte| *byte != 0);
        last.map_or(0, |index| index as u64 * 8 + u64::from(self.bytes[index].ilog2()) + 2)
    }

    /// Those in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).flat_map(|(index, byte)| {
            let number = move |bit: u32| u32::try_from(index as u64 * 8 + u64::from(bit) + 1).ok();
            (0..8).filter(move |bit| byte >> bit & 1 == 1).filter_map(number)
        })
    }

    /// The map's records: as many as it takes to have a bit for every number below `end`.
    pub(crate) fn to_records(&self, end: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let records = (end.div_ceil(8) as usize).max(bytes.len()).div_ceil(RECORD).max(1);
        bytes.resize(records * RECORD, 0);
        bytes
    }
}

fn place(number: u32) -> Option<(usize, u8)> {
    let index = number.checked_sub(1)?;
    Some((index as usize / 8, 1 << (index % 8)))
}
