//! Reference-counted, aligned buffers of 4 KiB.
//!
//! Direct I/O wants aligned memory, and a block is shared by a write in flight, the cache and a reply on a
//! socket at once. `Arc<[u8; 4096]>` with that alignment would take two pages a block, so blocks come from slabs: 2 MiB of
//! aligned memory, with the counts beside it. Where the kernel gives one large page for a slab, blocks that were handed out all over the place
//! are copied and pinned without a miss of the address cache for each. Slabs are never given back to the system: the number of blocks
//! alive is bounded by those who hold them (the cache has a limit, each session has a window).

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use cairn_base::BLOCK_SIZE;
use parking_lot::Mutex;

type Bytes = [u8; BLOCK_SIZE];

/// Blocks in a slab: a large page of the processor.
const SLAB_BLOCKS: usize = 512;
const SLAB_BYTES: usize = SLAB_BLOCKS * BLOCK_SIZE;
/// Blocks that a thread keeps for itself before it gives half of them back.
const THREAD_BLOCKS: usize = 512;

/// The count of a block, and where its bytes are. Lives as long as the program.
struct Header {
    holders: AtomicU32,
    bytes: NonNull<Bytes>,
}

// SAFETY: `bytes` is only read through a `Block` (shared, never written while shared) or written through a
// `BlockMut` (the only holder); the count is atomic.
unsafe impl Sync for Header {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Header {}

static FREE: Mutex<Vec<&'static Header>> = Mutex::new(Vec::new());

thread_local! {
    static LOCAL: RefCell<LocalFree> = const { RefCell::new(LocalFree(Vec::new())) };
}

/// A thread's own free blocks; they go back when the thread ends.
struct LocalFree(Vec<&'static Header>);

impl Drop for LocalFree {
    fn drop(&mut self) {
        FREE.lock().append(&mut self.0);
    }
}

fn take() -> &'static Header {
    LOCAL
        .try_with(|local| {
            let mut local = local.borrow_mut();
            if local.0.is_empty() {
                refill(&mut local.0, SLAB_BLOCKS);
            }
            local.0.pop().expect("a refill brings at least one block")
        })
        .unwrap_or_else(|_| {
            let mut one = Vec::new();
            refill(&mut one, 1);
            let header = one.pop().expect("a refill brings at least one block");
            FREE.lock().append(&mut one);
            header
        })
}

fn give_back(header: &'static Header) {
    let kept = LOCAL.try_with(|local| {
        let mut local = local.borrow_mut();
        local.0.push(header);
        if local.0.len() > THREAD_BLOCKS {
            let half = local.0.len() / 2;
            FREE.lock().extend(local.0.drain(half..));
        }
    });
    if kept.is_err() {
        FREE.lock().push(header);
    }
}

fn refill(into: &mut Vec<&'static Header>, count: usize) {
    let mut free = FREE.lock();
    if free.is_empty() {
        into.extend(new_slab());
        return;
    }
    let keep = free.len().saturating_sub(count);
    into.extend(free.drain(keep..));
}

fn new_slab() -> impl Iterator<Item = &'static Header> {
    let memory = slab_memory();
    let headers: Vec<Header> = (0..SLAB_BLOCKS)
        .map(|index| Header {
            holders: AtomicU32::new(0),
            // SAFETY: `index` is below the number of blocks in the allocation.
            bytes: unsafe { memory.add(index) },
        })
        .collect();
    headers.leak().iter()
}

/// Zeroed memory for a slab, aligned to its size, in a large page if the kernel has one. It is asked for twice over, as only a place in the
/// middle may be aligned; the ends are given back.
fn slab_memory() -> NonNull<Bytes> {
    // SAFETY: a new mapping at a place of the kernel's choice touches nobody's memory.
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
    // SAFETY: all of it lies within the mapping, and the two ends that go are whole pages outside of the slab.
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

/// 4 KiB that nobody else holds: to be filled, then frozen.
pub struct BlockMut(&'static Header);

impl BlockMut {
    /// A block of zeroes.
    pub fn zeroed() -> Self {
        let mut block = Self::dirty();
        block.fill(0);
        block
    }

    /// A block with whatever was in that memory before: for callers that overwrite all of it.
    pub fn dirty() -> Self {
        let header = take();
        header.holders.store(1, Ordering::Relaxed);
        Self(header)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &Bytes) -> Self {
        let mut block = Self::dirty();
        block.copy_from_slice(bytes);
        block
    }

    /// Gives up writing, so that the block can be shared.
    pub fn freeze(self) -> Block {
        let header = self.0;
        std::mem::forget(self);
        Block(header)
    }
}

impl Deref for BlockMut {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: slabs are never freed, and this is the only holder.
        unsafe { self.0.bytes.as_ref() }
    }
}

impl DerefMut for BlockMut {
    fn deref_mut(&mut self) -> &mut Bytes {
        // SAFETY: slabs are never freed, and this is the only holder, borrowed mutably.
        unsafe { &mut *self.0.bytes.as_ptr() }
    }
}

impl Drop for BlockMut {
    fn drop(&mut self) {
        give_back(self.0);
    }
}

impl std::fmt::Debug for BlockMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockMut")
    }
}

/// 4 KiB, shared and therefore never written. Cloning counts up.
pub struct Block(&'static Header);

impl Block {
    /// The block of zeroes that all share.
    pub fn zero() -> Block {
        static ZERO: OnceLock<Block> = OnceLock::new();
        ZERO.get_or_init(|| BlockMut::zeroed().freeze()).clone()
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &Bytes) -> Block {
        BlockMut::copy_of(bytes).freeze()
    }

    /// True when every byte is zero.
    pub fn is_zero(&self) -> bool {
        let (head, words, tail) = (&self[..8], &self[8..], &self[..BLOCK_SIZE - 8]);
        // A block is zero if its first eight bytes are and every byte equals the one eight before it.
        head == [0; 8] && words == tail
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        let before = self.0.holders.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a block has too many holders");
        Block(self.0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            give_back(self.0);
        }
    }
}

impl Deref for Block {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: slabs are never freed; a held block is never written, as only `BlockMut` writes and freezing
        // ends it.
        unsafe { self.0.bytes.as_ref() }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Block")
    }
}
