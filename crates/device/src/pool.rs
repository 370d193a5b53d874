//! The memory of blocks.
//!
//! Direct I/O needs aligned memory, and `Arc<[u8; 4096]>` with that alignment would take two pages
//! a block. So blocks come from slabs: 2 MiB of aligned memory, with the counts beside it. If the
//! kernel uses one large page for a slab, copying and pinning its scattered blocks causes no miss
//! of the address cache for each. The addresses of slabs stay valid as long as the program runs.
//! Their memory is returned to the system: [`give_memory_back`] releases the chunks that were
//! unused since its last call.
//!
//! # Runs
//! The blocks of one request usually go to the device together, and there each piece of memory has
//! a cost: a page to pin, an entry in the list that the disk walks, and after some hundred entries
//! another request. A disk at hand takes 2.1 GB/s from memory in one piece and 1.2 GB/s from the
//! same memory in random order. So a slab is divided into *chunks* of 128 KiB. Blocks for data of
//! more than a few blocks are taken from a completely free chunk, in order. Single blocks come from
//! partly used chunks, so that whole ones stay whole.
//!
//! The cache evicts blocks in about the order in which they came, so chunks become whole again by
//! themselves. When there is no whole chunk, new memory is taken only while a small part of the
//! pool is free in pieces ([`FREE_PART`]). That limits the cost, and beyond it a run uses the
//! available pieces.
//!
//! # Threads
//! Each thread keeps some free blocks, so that most blocks come and go without the lock. It returns
//! first the blocks that have been free longest. A thread that takes none, because it only writes
//! data that others have read, keeps few: blocks in its list are unavailable to other threads. All
//! threads together keep about [`THREADS_BLOCKS`], however many there are: with many threads each
//! keeps little, and returns the rest of a run at once.

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cairn_base::BLOCK_SIZE;
use parking_lot::Mutex;

pub(crate) type Bytes = [u8; BLOCK_SIZE];

/// Blocks in a slab: a large page of the processor.
const SLAB_BLOCKS: usize = 512;
const SLAB_BYTES: usize = SLAB_BLOCKS * BLOCK_SIZE;
/// Blocks in a chunk: one bit of a word each.
const CHUNK_BLOCKS: usize = 32;
/// Fewer blocks than this are not a run: they are taken like single blocks.
pub(crate) const RUN_BLOCKS_MIN: usize = 4;
/// Blocks that a thread keeps for itself before it gives half of them back.
const THREAD_BLOCKS: usize = 512;
/// The same for a thread that has taken none during the last [`PATIENCE`] returns.
const GIVER_BLOCKS: usize = 64;
/// How often half of a thread's blocks may be surplus before it counts as one that only returns.
const PATIENCE: u8 = 2;
/// Free blocks that all threads keep, as long as that is at least [`SHARE_MIN`] for each.
const THREADS_BLOCKS: usize = 4096;
/// The least that a thread may keep.
const SHARE_MIN: usize = 16;
/// A thread that may keep less than this returns the rest of a run.
const SHARE_FOR_RUNS: usize = 128;
/// Whole chunks that stay with the pool in any case: 8 MiB.
const KEPT_CHUNKS: usize = 64;
/// Blocks that a thread without any takes at once.
const REFILL_BLOCKS: usize = 128;
/// While less than one in this many blocks is free, memory is added for a run that finds no whole
/// chunk.
const FREE_PART: usize = 16;

const _: () = assert!(CHUNK_BLOCKS == u32::BITS as usize && SLAB_BLOCKS.is_multiple_of(CHUNK_BLOCKS));

/// The count of a block, and where its bytes are. Lives as long as the program.
pub(crate) struct Header {
    /// The number of holders, and 1 while there is none. So a block with a single holder causes no
    /// write here, in a cache line that several blocks share.
    pub(crate) holders: AtomicU32,
    /// Of all blocks.
    number: u32,
    pub(crate) bytes: NonNull<Bytes>,
}

// SAFETY: `bytes` is only read through a `Block` (shared, never written while shared) or written
// through a `BlockMut` (the only holder); the count is atomic.
unsafe impl Sync for Header {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Header {}

/// Blocks next to each other in memory.
struct Chunk {
    headers: &'static [Header],
    /// One bit for each that is free.
    free: u32,
    /// Of these, those whose memory the system has back.
    gone: u32,
    /// A block was taken or given back since the last [`Pool::trim`].
    touched: bool,
    /// It is in `Pool::partial`.
    listed: bool,
}

impl Chunk {
    const ALL: u32 = u32::MAX;

    /// Gives up to `most` free blocks, in order; returns how many.
    fn take(&mut self, most: usize, into: &mut Vec<&'static Header>) -> usize {
        let count = most.min(self.free.count_ones() as usize);
        for _ in 0..count {
            into.push(&self.headers[self.free.trailing_zeros() as usize]);
            self.free &= self.free - 1;
        }
        self.gone &= self.free;
        self.touched = true;
        count
    }
}

/// Unused memory, out of the pool.
struct Idle {
    /// Chunks.
    whole: Vec<usize>,
    /// Blocks of chunks of which others are in use: one bit each.
    parts: Vec<(usize, u32)>,
}

/// All blocks that no thread has.
struct Pool {
    chunks: Vec<Chunk>,
    /// Completely free chunks. The most recent one is taken first, as its memory may still be in
    /// the processor's cache.
    whole: Vec<usize>,
    /// The least number of whole chunks since the last [`Pool::trim`].
    least_whole: usize,
    /// Whole chunks whose memory the system has back.
    released: Vec<usize>,
    /// Chunks some of whose blocks are free, the one that has been so for longest first; and some
    /// that have become whole or empty since.
    partial: VecDeque<usize>,
    /// Free blocks, but for those of `released`.
    free: usize,
}

/// A pool that threads share. Each operation on it is one step.
trait Shared {
    fn with<R>(&self, work: impl FnOnce(&mut Pool) -> R) -> R;
}

impl Shared for Mutex<Pool> {
    fn with<R>(&self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.lock())
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

impl Pool {
    const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            whole: Vec::new(),
            least_whole: 0,
            released: Vec::new(),
            partial: VecDeque::new(),
            free: 0,
        }
    }

    /// Takes blocks back.
    fn put(&mut self, headers: impl Iterator<Item = &'static Header>) {
        for header in headers {
            let number = header.number as usize;
            let index = number / CHUNK_BLOCKS;
            let chunk = &mut self.chunks[index];
            let bit = 1 << (number % CHUNK_BLOCKS);
            assert!(chunk.free & bit == 0, "a block is given back once");
            chunk.free |= bit;
            chunk.touched = true;
            self.free += 1;
            if chunk.free == Chunk::ALL {
                self.whole.push(index);
            } else if !chunk.listed {
                chunk.listed = true;
                self.partial.push_back(index);
            }
        }
    }

    /// Gives `count` blocks, or at least one: out of chunks that are in use, then out of others,
    /// then new ones.
    fn take(&mut self, count: usize, into: &mut Vec<&'static Header>) {
        let mut left = count;
        while left > 0 {
            if let Some(index) = self.next_partial() {
                left -= self.take_from(index, left, into);
            } else if let Some(index) = self.next_whole() {
                left -= self.take_from(index, left, into);
            } else if left == count {
                self.grow();
            } else {
                break;
            }
        }
    }

    /// Returns the blocks of one chunk, in order: of a whole one, if there is one or memory may be
    /// added for one.
    fn take_chunk(&mut self, into: &mut Vec<&'static Header>) {
        let with_memory = (self.chunks.len() - self.released.len()) * CHUNK_BLOCKS;
        if self.whole.is_empty() && self.free * FREE_PART <= with_memory {
            self.grow();
        }
        if let Some(index) = self.next_whole().or_else(|| self.next_partial()) {
            self.take_from(index, CHUNK_BLOCKS, into);
        }
    }

    fn take_from(&mut self, index: usize, most: usize, into: &mut Vec<&'static Header>) -> usize {
        let chunk = &mut self.chunks[index];
        let count = chunk.take(most, into);
        self.free -= count;
        if chunk.free != 0 && !chunk.listed {
            chunk.listed = true;
            self.partial.push_front(index);
        }
        count
    }

    fn next_whole(&mut self) -> Option<usize> {
        let index = self.whole.pop()?;
        self.least_whole = self.least_whole.min(self.whole.len());
        Some(index)
    }

    /// Takes out the chunks that were whole since the last call, except some that are kept, and the
    /// untouched free blocks of those. Their memory may be released; then they come to
    /// [`Pool::let_go`].
    fn trim(&mut self) -> Idle {
        let idle = self.least_whole.min(self.whole.len()).saturating_sub(KEPT_CHUNKS);
        // The last ones are taken first, so the first ones were idle.
        let whole: Vec<usize> = self.whole.drain(..idle).collect();
        self.free -= whole.len() * CHUNK_BLOCKS;
        self.least_whole = self.whole.len();
        let mut parts = Vec::new();
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            let bits = chunk.free & !chunk.gone;
            if !std::mem::replace(&mut chunk.touched, false) && chunk.free != Chunk::ALL && bits != 0 {
                chunk.free &= !bits;
                self.free -= bits.count_ones() as usize;
                parts.push((index, bits));
            }
        }
        Idle { whole, parts }
    }

    /// The system has the memory of these.
    fn let_go(&mut self, mut idle: Idle) {
        self.released.append(&mut idle.whole);
        for (index, bits) in idle.parts {
            let chunk = &mut self.chunks[index];
            chunk.free |= bits;
            chunk.gone |= bits;
            self.free += bits.count_ones() as usize;
            if chunk.free == Chunk::ALL {
                self.whole.push(index);
            } else if !chunk.listed {
                chunk.listed = true;
                self.partial.push_back(index);
            }
        }
    }

    /// Takes the next chunk out of those that are partly free.
    fn next_partial(&mut self) -> Option<usize> {
        while let Some(index) = self.partial.pop_front() {
            let chunk = &mut self.chunks[index];
            chunk.listed = false;
            if chunk.free != 0 && chunk.free != Chunk::ALL {
                return Some(index);
            }
        }
        None
    }

    /// Adds memory: a chunk without memory, or otherwise a slab.
    fn grow(&mut self) {
        if let Some(index) = self.released.pop() {
            self.free += CHUNK_BLOCKS;
            self.whole.push(index);
            return;
        }
        let memory = slab_memory();
        let first = self.chunks.len() * CHUNK_BLOCKS;
        let headers: Vec<Header> = (0..SLAB_BLOCKS)
            .map(|index| Header {
                holders: AtomicU32::new(1),
                number: (first + index).try_into().expect("16 TiB of blocks fit into no memory"),
                // SAFETY: `index` is below the number of blocks in the allocation.
                bytes: unsafe { memory.add(index) },
            })
            .collect();
        for headers in headers.leak().chunks(CHUNK_BLOCKS) {
            self.chunks.push(Chunk { headers, free: Chunk::ALL, gone: 0, touched: true, listed: false });
        }
        self.free += SLAB_BLOCKS;
        self.whole.extend((first / CHUNK_BLOCKS..self.chunks.len()).rev());
    }
}

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local::new()) };
}

/// A thread's own free blocks; they go back when the thread ends.
struct Local {
    /// The one that was freed last is at the end, and taken first.
    free: Vec<&'static Header>,
    /// The rest of the chunk that runs come from; the next one is at the end.
    run: Vec<&'static Header>,
    /// How often it may still return blocks before it keeps few.
    patience: u8,
    /// How many it may keep.
    share: usize,
    /// It is one of [`THREADS`].
    counted: bool,
}

impl Local {
    const fn new() -> Self {
        Self { free: Vec::new(), run: Vec::new(), patience: 0, share: THREAD_BLOCKS, counted: false }
    }

    /// Learns how many blocks a thread may keep now.
    fn look_at_share(&mut self) {
        if !self.counted {
            self.counted = true;
            count_threads(1);
        }
        self.share = SHARE.load(Ordering::Relaxed);
    }

    fn take(&mut self, pool: &impl Shared) -> &'static Header {
        self.patience = PATIENCE;
        if self.free.is_empty() {
            let count = REFILL_BLOCKS.min(self.share);
            pool.with(|pool| pool.take(count, &mut self.free));
        }
        self.free.pop().expect("a refill brings at least one block")
    }

    fn take_of_run(&mut self, pool: &impl Shared) -> &'static Header {
        if self.run.is_empty() {
            pool.with(|pool| pool.take_chunk(&mut self.run));
            self.run.reverse();
        }
        self.run.pop().expect("a chunk has at least one block")
    }

    fn give_back(&mut self, header: &'static Header, pool: &impl Shared) {
        self.free.push(header);
        let most = self.share.min(if self.patience > 0 { THREAD_BLOCKS } else { GIVER_BLOCKS });
        if self.free.len() > most {
            self.patience = self.patience.saturating_sub(1);
            let surplus = self.free.len() - most / 2;
            pool.with(|pool| pool.put(self.free.drain(..surplus)));
        }
    }

    /// A run is complete.
    fn end_run(&mut self, pool: &impl Shared) {
        if self.share < SHARE_FOR_RUNS && !self.run.is_empty() {
            pool.with(|pool| pool.put(self.run.drain(..)));
        }
    }

    fn end(&mut self, pool: &impl Shared) {
        pool.with(|pool| pool.put(self.free.drain(..).chain(self.run.drain(..))));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end(&POOL);
        if self.counted {
            count_threads(-1);
        }
    }
}

/// Threads that keep blocks.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Blocks that each of them may keep.
static SHARE: AtomicUsize = AtomicUsize::new(THREAD_BLOCKS);

fn share(threads: usize) -> usize {
    (THREADS_BLOCKS / threads.max(1)).clamp(SHARE_MIN, THREAD_BLOCKS)
}

/// One thread more or less. Two that come at once may leave the share of either: it differs by one
/// part in their number.
fn count_threads(change: isize) {
    let threads = THREADS.fetch_add(change.cast_unsigned(), Ordering::Relaxed).wrapping_add_signed(change);
    SHARE.store(share(threads), Ordering::Relaxed);
}

/// Returns memory to the system: that of blocks that were free since the last call, and then the
/// allocator's spare memory. Call it every few seconds: memory that is used again within that time
/// is kept.
pub fn give_memory_back() {
    if trim() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: it may be called at any time, and changes no memory that is in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// True when there was some.
fn trim() -> bool {
    let mut pool = POOL.lock();
    let idle = pool.trim();
    let whole = idle.whole.iter().map(|index| (*index, Chunk::ALL));
    let places: Vec<(NonNull<Bytes>, u32)> = whole
        .chain(idle.parts.iter().copied())
        .map(|(index, bits)| (pool.chunks[index].headers[0].bytes, bits))
        .collect();
    drop(pool);
    places.iter().for_each(|(chunk, bits)| release(*chunk, *bits));
    POOL.lock().let_go(idle);
    !places.is_empty()
}

/// Whether `next` follows `one` in memory, in the same slab.
pub(crate) fn follows(one: &Header, next: &Header) -> bool {
    next.number == one.number + 1 && !(next.number as usize).is_multiple_of(SLAB_BLOCKS)
}

/// A block without a holder.
pub(crate) fn take() -> &'static Header {
    // Without its own blocks the thread is ending.
    let take = |local: &RefCell<Local>| {
        let local = &mut local.borrow_mut();
        local.look_at_share();
        local.take(&POOL)
    };
    LOCAL.try_with(take).unwrap_or_else(|_| {
        let mut one = Vec::new();
        POOL.lock().take(1, &mut one);
        one.pop().expect("the pool gives at least one block")
    })
}

/// Hands `count` blocks without a holder to `each`, which must neither take nor return any.
pub(crate) fn take_run(count: usize, mut each: impl FnMut(&'static Header)) {
    let mut left = count;
    let _ = LOCAL.try_with(|local| {
        let local = &mut local.borrow_mut();
        local.look_at_share();
        while left > 0 {
            each(local.take_of_run(&POOL));
            left -= 1;
        }
        local.end_run(&POOL);
    });
    // The thread is ending.
    (0..left).for_each(|_| each(take()));
}

/// Returns a block without a holder.
pub(crate) fn give_back(header: &'static Header) {
    let give = |local: &RefCell<Local>| {
        let local = &mut local.borrow_mut();
        local.look_at_share();
        local.give_back(header, &POOL);
    };
    if LOCAL.try_with(give).is_err() {
        POOL.lock().put(std::iter::once(header));
    }
}

/// Returns the memory of blocks of a chunk to the system; it reads as zeroes from then on. The slab
/// is in small pages from then on, or the kernel would fill a large one again.
fn release(chunk: NonNull<Bytes>, mut bits: u32) {
    let start = chunk.as_ptr().cast::<u8>();
    let slab = start.wrapping_sub(start.addr() % SLAB_BYTES);
    // SAFETY: the chunk is in a slab that is mapped for as long as the program runs, at a multiple
    // of its size. The advice changes no bytes.
    unsafe { libc::madvise(slab.cast(), SLAB_BYTES, libc::MADV_NOHUGEPAGE) };
    while bits != 0 {
        let first = bits.trailing_zeros();
        let count = (bits >> first).trailing_ones();
        // SAFETY: these blocks have no holder: the caller has taken them out of the pool. They are
        // in the chunk.
        unsafe {
            let place = start.wrapping_add(first as usize * BLOCK_SIZE);
            libc::madvise(place.cast(), count as usize * BLOCK_SIZE, libc::MADV_DONTNEED);
        }
        bits &= !(u32::MAX >> (32 - count) << first);
    }
}

/// Zeroed memory for a slab, aligned to its size, in a large page if the kernel has one. Twice the
/// size is requested, as only a place in the middle may be aligned; the ends are returned.
fn slab_memory() -> NonNull<Bytes> {
    // SAFETY: a new mapping at a place of the kernel's choice touches no existing memory.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * SLAB_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let layout = std::alloc::Layout::new::<[Bytes; SLAB_BLOCKS]>();
        std::alloc::handle_alloc_error(layout);
    }
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(SLAB_BYTES);
    let after = SLAB_BYTES - before;
    // SAFETY: all of it is within the mapping, and the two ends that are released are whole pages
    // outside of the slab.
    let memory = unsafe {
        let memory = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped.cast(), before);
        }
        if after > 0 {
            libc::munmap(memory.add(SLAB_BYTES).cast(), after);
        }
        // Without large pages everything works as well.
        libc::madvise(memory.cast(), SLAB_BYTES, libc::MADV_HUGEPAGE);
        memory
    };
    NonNull::new(memory.cast::<Bytes>()).expect("a mapping is never at address zero")
}
