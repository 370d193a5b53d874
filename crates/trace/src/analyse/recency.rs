//! Caches of many sizes that evict the least recently used page, run at once: one list of pages by
//! their last use, and a mark in it for each size.
//!
//! Such a cache of n pages holds the n pages that were used last (inclusion), so a page's *band*,
//! the number of marks before it, tells which caches hold it. A use moves one page to the front
//! and, across each mark before the page, one page back. So a use costs at most the number of
//! sizes, and a page costs one link of memory. With writes alone this is LRW, the write cache of
//! the 2007 paper (section 3.5); with reads and writes, its LRU read cache.

use super::pages::{NONE, Page};

/// The band of a page that is in no list.
pub(crate) const ABSENT: u8 = u8::MAX;
/// Most sizes.
pub(crate) const SIZES_MAX: usize = 200;

/// The list.
#[derive(Clone)]
pub(crate) struct Recency {
    /// Which of a page's links.
    which: usize,
    /// Pages of each band at most; the last band has no limit.
    room: Vec<u64>,
    count: Vec<u64>,
    tail: Vec<u32>,
    head: u32,
    /// Pages evicted from a cache of each size.
    pub(crate) evicted: Vec<u64>,
}

impl Recency {
    /// Caches of `sizes` pages, which go up.
    pub(crate) fn new(which: usize, sizes: &[u64]) -> Self {
        let mut room = Vec::with_capacity(sizes.len() + 1);
        let mut before = 0;
        for size in sizes {
            room.push(size - before);
            before = *size;
        }
        room.push(u64::MAX);
        let bands = room.len();
        Self {
            which,
            room,
            count: vec![0; bands],
            tail: vec![NONE; bands],
            head: NONE,
            evicted: vec![0; sizes.len()],
        }
    }

    /// Pages that a cache of size number `index` holds.
    pub(crate) fn resident(&self, index: usize) -> u64 {
        self.count[..=index].iter().sum()
    }

    /// Uses a page; returns its previous band.
    pub(crate) fn touch(&mut self, pages: &mut [Page], page: u32) -> u8 {
        let which = self.which;
        let link = pages[page as usize].links[which];
        if self.head == page {
            return link.band;
        }
        let last_band = self.room.len() - 1;
        let until = if link.band == ABSENT {
            last_band
        } else {
            let band = usize::from(link.band);
            self.count[band] -= 1;
            if self.tail[band] == page {
                self.tail[band] = if self.count[band] == 0 { NONE } else { link.before };
            }
            pages[link.before as usize].links[which].after = link.after;
            if link.after != NONE {
                pages[link.after as usize].links[which].before = link.before;
            }
            band
        };
        pages[page as usize].links[which] = super::pages::Link { before: NONE, after: self.head, band: 0 };
        if self.head != NONE {
            pages[self.head as usize].links[which].before = page;
        }
        self.head = page;
        self.count[0] += 1;
        if self.tail[0] == NONE {
            self.tail[0] = page;
        }
        for band in 0..until {
            if self.count[band] <= self.room[band] {
                break;
            }
            let moved = self.tail[band];
            self.count[band] -= 1;
            self.tail[band] = pages[moved as usize].links[which].before;
            pages[moved as usize].links[which].band = band as u8 + 1;
            self.count[band + 1] += 1;
            if self.tail[band + 1] == NONE {
                self.tail[band + 1] = moved;
            }
            self.evicted[band] += 1;
        }
        link.band
    }
}
