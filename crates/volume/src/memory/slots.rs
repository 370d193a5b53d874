//! The changed blocks of a file, by number. Neighbours are stored together, as they usually arrive
//! together and are looked up together: a run of 128 KiB is one entry of a hash table and not
//! thirty-two.
//!
//! # Invariant
//! A chunk has at least one slot, and as many as its map has bits.

use cairn_base::{Checksum, Generation, Lba, Vbn};
use cairn_device::Block;
use cairn_format::BlockPointer;

use crate::memory::number_hash::NumberMap;
use crate::read::store::Keep;

/// Where a block is: its pointer without the birth, which is the generation's. There are many of
/// these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) vbn: Vbn,
    pub(crate) checksum: Checksum,
}

impl Spot {
    pub(crate) fn of(pointer: BlockPointer) -> Self {
        Self { vbn: pointer.vbn, checksum: pointer.checksum }
    }

    pub(crate) fn pointer(self, birth: Generation) -> BlockPointer {
        BlockPointer { vbn: self.vbn, birth, checksum: self.checksum }
    }
}

/// A block that this generation has written.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    /// In memory only; `order` is that of the first write that it covers.
    Unplaced { block: Block, checksum: Checksum, order: u64, keep: Keep },
    /// In flight to its place.
    InFlight { block: Block, spot: Spot },
    /// At its place.
    Placed(Spot),
}

// The memory of a generation is counted by its changes.
const _: () = assert!(size_of::<Slot>() == 40);

/// Blocks of a chunk: a bit of its map each.
const CHUNK_BLOCKS: u64 = u32::BITS as u64;

/// Neighbours. A single block, as random writes leave it, takes no memory in addition to the chunk.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// Which of them has a slot.
    One(u8, Slot),
    /// A bit for each that has one, and the slots in order.
    Many(u32, Vec<Slot>),
}

const _: () = assert!(size_of::<Chunk>() == 48);

impl Default for Chunk {
    fn default() -> Self {
        Self::Many(0, Vec::new())
    }
}

impl Chunk {
    /// The bit of a block.
    #[inline]
    fn bit(lba: u64) -> u32 {
        1 << (lba % CHUNK_BLOCKS)
    }

    fn map(&self) -> u32 {
        match self {
            Self::One(at, _) => 1 << at,
            Self::Many(map, _) => *map,
        }
    }

    fn slots(&self) -> &[Slot] {
        match self {
            Self::One(_, slot) => std::slice::from_ref(slot),
            Self::Many(_, slots) => slots,
        }
    }

    #[inline]
    fn get(&self, lba: u64) -> Option<&Slot> {
        let (map, bit) = (self.map(), Self::bit(lba));
        if map & bit == 0 { None } else { self.slots().get(place(map, bit)) }
    }

    /// The slot of a block, which is one of the chunk's.
    #[inline]
    pub(crate) fn get_mut(&mut self, lba: u64) -> Option<&mut Slot> {
        let (map, bit) = (self.map(), Self::bit(lba));
        match self {
            _ if map & bit == 0 => None,
            Self::One(_, slot) => Some(slot),
            Self::Many(_, slots) => slots.get_mut(place(map, bit)),
        }
    }

    /// Adds a slot for a block of the chunk that has none.
    #[inline]
    pub(crate) fn add(&mut self, lba: u64, slot: Slot) {
        let (map, bit) = (self.map(), Self::bit(lba));
        assert!(map & bit == 0, "a block has one slot");
        match self {
            Self::Many(map, slots) if *map != 0 => {
                slots.insert(place(*map, bit), slot);
                *map |= bit;
            }
            _ if map == 0 => *self = Self::One((lba % CHUNK_BLOCKS) as u8, slot),
            _ => {
                let Self::One(_, first) = std::mem::take(self) else { return };
                let slots = if bit < map { vec![slot, first] } else { vec![first, slot] };
                *self = Self::Many(map | bit, slots);
            }
        }
    }

    fn remove(&mut self, lba: u64) -> Option<Slot> {
        let (map, bit) = (self.map(), Self::bit(lba));
        match self {
            _ if map & bit == 0 => None,
            Self::One(..) => match std::mem::take(self) {
                Self::One(_, slot) => Some(slot),
                Self::Many(..) => None,
            },
            Self::Many(map, slots) => {
                let slot = slots.remove(place(*map, bit));
                *map &= !bit;
                Some(slot)
            }
        }
    }

    fn numbers(&self, chunk: u64) -> impl Iterator<Item = u64> + Clone + use<> {
        let map = self.map();
        (0..CHUNK_BLOCKS).filter(move |n| map >> n & 1 == 1).map(move |n| chunk * CHUNK_BLOCKS + n)
    }
}

/// The number of slots before the one of a bit.
#[inline]
fn place(map: u32, bit: u32) -> usize {
    (map & (bit - 1)).count_ones() as usize
}

/// The slots of a file.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    chunks: NumberMap<Chunk>,
    count: usize,
}

impl Slots {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, lba: u64) -> Option<&Slot> {
        self.chunks.get(&(lba / CHUNK_BLOCKS))?.get(lba)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, lba: u64) -> Option<&mut Slot> {
        self.chunks.get_mut(&(lba / CHUNK_BLOCKS))?.get_mut(lba)
    }

    /// The chunk of a block, for callers that change several of its blocks, to be found once for
    /// all of them. It may be new, and must be left with at least one slot.
    #[inline]
    pub(crate) fn change_chunk(&mut self, lba: Lba, change: impl FnOnce(&mut Chunk)) {
        let chunk = self.chunks.entry(lba.0 / CHUNK_BLOCKS).or_default();
        let before = chunk.slots().len();
        change(chunk);
        self.count = self.count + chunk.slots().len() - before;
    }

    /// Replaces the slot of a block.
    pub(crate) fn put(&mut self, lba: u64, slot: Slot) -> Option<Slot> {
        if let Some(old) = self.get_mut(lba) {
            return Some(std::mem::replace(old, slot));
        }
        self.change_chunk(Lba(lba), |chunk| chunk.add(lba, slot));
        None
    }

    /// Takes the slots of `count` blocks from `lba` out.
    pub(crate) fn remove(&mut self, lba: u64, count: u64) -> Vec<Slot> {
        let (first, last) = (lba / CHUNK_BLOCKS, (lba + count).div_ceil(CHUNK_BLOCKS));
        let chunks: Vec<u64> = if last - first < self.chunks.len() as u64 {
            (first..last).filter(|chunk| self.chunks.contains_key(chunk)).collect()
        } else {
            self.chunks.keys().copied().filter(|chunk| (first..last).contains(chunk)).collect()
        };
        let mut gone = Vec::new();
        for number in chunks {
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let of_range = chunk.numbers(number).filter(|n| (lba..lba + count).contains(n));
            gone.extend(of_range.filter_map(|n| chunk.remove(n)));
            if chunk.map() == 0 {
                self.chunks.remove(&number);
            }
        }
        self.count -= gone.len();
        gone
    }

    /// Every block with its slot, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Slot)> + Clone {
        let mut chunks: Vec<(u64, &Chunk)> = self.chunks.iter().map(|(n, chunk)| (*n, chunk)).collect();
        chunks.sort_unstable_by_key(|(number, _)| *number);
        chunks.into_iter().flat_map(|(number, chunk)| chunk.numbers(number).zip(chunk.slots()))
    }

    /// The numbers of the blocks from `first` up to `end` that have a slot, in order.
    pub(crate) fn numbers(&self, first: u64, end: u64) -> impl Iterator<Item = u64> {
        let wanted = first / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS);
        let mut chunks: Vec<(u64, &Chunk)> =
            self.chunks.iter().map(|(n, chunk)| (*n, chunk)).filter(|(n, _)| wanted.contains(n)).collect();
        chunks.sort_unstable_by_key(|(number, _)| *number);
        let numbers = chunks.into_iter().flat_map(|(number, chunk)| chunk.numbers(number));
        numbers.filter(move |number| (first..end).contains(number))
    }

    /// Whether two blocks are in one chunk.
    #[inline]
    pub(crate) fn share_chunk(one: Lba, other: Lba) -> bool {
        one.0 / CHUNK_BLOCKS == other.0 / CHUNK_BLOCKS
    }
}
