//! The blocks that a trace touched: a table from device and block to a number, and the state of
//! each.
//!
//! A block takes 40 bytes here and 8 to 16 in the table over them; while either grows, half as much
//! again for a moment.

/// No page.
pub(crate) const NONE: u32 = u32::MAX;
/// A time that no request has.
pub(crate) const NEVER: u64 = u64::MAX;
const DEVICE_SHIFT: u32 = 51;

/// The state of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) key: u64,
    /// When it was last written.
    pub(crate) written_ns: u64,
    /// Its places in the write cache's and in the read cache's order.
    pub(crate) links: [Link; 2],
    /// Its last version was not trimmed.
    pub(crate) live: bool,
}

/// A place in an order of pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) band: u8,
}

/// The key of a block: blocks are below 2^51 (of 4 KiB; offsets end at 2^62), devices below 2^12.
pub(crate) fn key(device: u32, block: u64) -> u64 {
    (u64::from(device) << DEVICE_SHIFT) | block
}

/// All blocks.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) pages: Vec<Page>,
    table: Table,
}

impl Pages {
    pub(crate) fn new() -> Self {
        Self { pages: Vec::new(), table: Table::new() }
    }

    /// The number of a block, a new one if it has none.
    pub(crate) fn number(&mut self, key: u64) -> u32 {
        let pages = &self.pages;
        let number = self.table.find_or_insert(key, pages.len() as u32, |number| pages[number as usize].key);
        if number as usize == self.pages.len() {
            let link = Link { before: NONE, after: NONE, band: super::recency::ABSENT };
            self.pages.push(Page { key, written_ns: NEVER, links: [link; 2], live: false });
        }
        number
    }

    /// The number of a block that was touched.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        self.table.find(key, |number| self.pages[number as usize].key)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        (self.pages.capacity() * size_of::<Page>()) as u64 + self.table.memory()
    }
}

/// Numbers by key, in open addressing; keys are stored elsewhere.
#[derive(Clone)]
pub(crate) struct Table {
    slots: Vec<u32>,
    used: usize,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { slots: vec![NONE; 1 << 10], used: 0 }
    }

    pub(crate) fn memory(&self) -> u64 {
        (self.slots.len() * size_of::<u32>()) as u64
    }

    pub(crate) fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let slot = self.slot(key, key_of);
        Some(self.slots[slot]).filter(|number| *number != NONE)
    }

    /// The number of `key`; `next` when it is new.
    pub(crate) fn find_or_insert(&mut self, key: u64, next: u32, key_of: impl Fn(u32) -> u64) -> u32 {
        let slot = self.slot(key, &key_of);
        if self.slots[slot] != NONE {
            return self.slots[slot];
        }
        self.slots[slot] = next;
        self.used += 1;
        if self.used * 2 > self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = vec![NONE; old.len() * 2];
            for number in old.into_iter().filter(|number| *number != NONE) {
                let key = if number == next { key } else { key_of(number) };
                let mut slot = hash(key) as usize & (self.slots.len() - 1);
                while self.slots[slot] != NONE {
                    slot = (slot + 1) & (self.slots.len() - 1);
                }
                self.slots[slot] = number;
            }
        }
        next
    }

    fn slot(&self, key: u64, key_of: impl Fn(u32) -> u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(key) as usize & mask;
        while self.slots[slot] != NONE && key_of(self.slots[slot]) != key {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// The finaliser of SplitMix64: every bit of the key reaches every bit of the hash.
fn hash(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
