//! Written blocks that are not at their places yet, and recently read blocks.
//!
//! Written blocks leave in the order in which they were last written (LRW, section 3.5 of the 2007
//! paper); a block can have several versions here, one a window: the versioned cache of its section
//! 2.3. Read blocks leave in the order of their last use (LRU).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::content::Content;
use crate::timeline::Timeline;

/// The memory of a waiting version in addition to its content, in bytes.
pub(crate) const OVERHEAD: u64 = 64;

/// Written blocks that wait.
#[derive(Default)]
pub(crate) struct WriteCache {
    /// Versions of each block by time; the last one is the present.
    blocks: HashMap<u64, VecDeque<(u64, Content)>>,
    /// The time of each block's oldest version, and the block. A retained version leaves in time
    /// order, however often its block is written.
    queue: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// Versions up to this time are leaving for a flush: a later write does not replace them.
    fence: u64,
}

impl WriteCache {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that wait.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The present content of a block.
    pub(crate) fn newest(&self, lba: u64) -> Option<&Content> {
        self.blocks.get(&lba)?.back().map(|(_, content)| content)
    }

    /// The time of the oldest version that waits.
    pub(crate) fn oldest_time(&self) -> Option<u64> {
        self.queue.first().map(|(time, _)| *time)
    }

    /// A flush begins: all versions that wait now, up to `last`, must leave the cache, and are not
    /// replaced any more. Otherwise a concurrent write could take a block out of the flush that was
    /// acknowledged before it, and a power cut would restore the content before both.
    pub(crate) fn fence(&mut self, last: u64) {
        self.fence = last;
    }

    /// True while a version waits that a flush has to wait for.
    pub(crate) fn is_fenced(&self) -> bool {
        self.oldest_time().is_some_and(|oldest| oldest <= self.fence)
    }

    /// Takes a write; true when it replaced one of the same window.
    pub(crate) fn write(
        &mut self,
        lba: u64,
        time: u64,
        content: Content,
        size: u64,
        timeline: &Timeline,
    ) -> bool {
        let versions = self.blocks.entry(lba).or_insert_with(|| VecDeque::with_capacity(1));
        let last = versions.back().map(|(last, _)| *last);
        let absorbed = last.filter(|last| *last > self.fence && timeline.same_window(*last, time));
        if let Some(last) = absorbed {
            versions.pop_back();
            self.queue.remove(&(last, lba));
        } else {
            self.bytes += size + OVERHEAD;
        }
        if versions.is_empty() {
            self.queue.insert((time, lba));
        }
        versions.push_back((time, content));
        absorbed.is_some()
    }

    /// Gives all versions new times after `time`, in their order as far as blocks have one; the
    /// last of them.
    pub(crate) fn restamp(&mut self, time: u64) -> u64 {
        let was_fenced = self.is_fenced();
        let mut time = time;
        let queue = std::mem::take(&mut self.queue);
        for (_, lba) in queue {
            let Some(versions) = self.blocks.get_mut(&lba) else { continue };
            for (stamp, _) in versions.iter_mut() {
                time += 1;
                *stamp = time;
            }
            if let Some((first, _)) = versions.front() {
                self.queue.insert((*first, lba));
            }
        }
        if was_fenced {
            self.fence = time;
        }
        time
    }

    /// Versions of the blocks that were not written for longest, the oldest of each first, of at
    /// most `budget` versions (at least one). They stay here.
    pub(crate) fn oldest(&self, budget: usize) -> Vec<(u64, Vec<(u64, Content)>)> {
        let mut picked = Vec::new();
        let mut left = budget.max(1);
        for (_, lba) in &self.queue {
            let Some(versions) = self.blocks.get(lba) else { continue };
            let take = versions.len().min(left);
            picked.push((*lba, versions.iter().take(take).cloned().collect()));
            left -= take;
            if left == 0 {
                break;
            }
        }
        picked
    }

    /// The versions of a block up to `time` are at their places.
    pub(crate) fn written(&mut self, lba: u64, time: u64, size: u64) {
        let Some(versions) = self.blocks.get_mut(&lba) else { return };
        let Some((first, _)) = versions.front() else { return };
        self.queue.remove(&(*first, lba));
        while versions.front().is_some_and(|(at, _)| *at <= time) {
            versions.pop_front();
            self.bytes -= size + OVERHEAD;
        }
        match versions.front() {
            Some((first, _)) => {
                self.queue.insert((*first, lba));
            }
            None => {
                self.blocks.remove(&lba);
            }
        }
    }
}

/// Blocks that were read or have been written.
#[derive(Default)]
pub(crate) struct ReadCache {
    blocks: HashMap<u64, (u64, Content)>,
    uses: BTreeMap<u64, u64>,
    next: u64,
    limit: usize,
}

impl ReadCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(crate) fn get(&mut self, lba: u64) -> Option<Content> {
        let (order, content) = self.blocks.get_mut(&lba)?;
        self.next += 1;
        self.uses.remove(order);
        self.uses.insert(self.next, lba);
        *order = self.next;
        Some(content.clone())
    }

    pub(crate) fn put(&mut self, lba: u64, content: Content) {
        if self.limit == 0 {
            return;
        }
        self.next += 1;
        if let Some((order, _)) = self.blocks.insert(lba, (self.next, content)) {
            self.uses.remove(&order);
        }
        self.uses.insert(self.next, lba);
        while self.blocks.len() > self.limit {
            let Some((_, lba)) = self.uses.pop_first() else { return };
            self.blocks.remove(&lba);
        }
    }

    pub(crate) fn forget(&mut self, lba: u64) {
        if let Some((order, _)) = self.blocks.remove(&lba) {
            self.uses.remove(&order);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.uses.clear();
    }
}
