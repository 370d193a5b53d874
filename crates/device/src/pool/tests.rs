//! The pool against a model: the holders of blocks, and how much of the memory is in one piece.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;

use cairn_base::{BLOCK_SIZE, Rng};

use super::*;
use crate::{Block, BlockMut, pieces, pieces_mut};

fn numbers(headers: &[&'static Header]) -> Vec<u32> {
    headers.iter().map(|header| header.number).collect()
}

/// Each block of it follows the previous one in memory.
fn is_one_piece(headers: &[&'static Header]) -> bool {
    headers.windows(2).all(|two| two[0].bytes.addr().get() + BLOCK_SIZE == two[1].bytes.addr().get())
}

/// A chunk out of a pool.
fn chunk(pool: &mut Pool) -> Vec<&'static Header> {
    let mut run = Vec::new();
    pool.take_chunk(&mut run);
    run
}

#[test]
fn chunk_of_a_pool_is_one_piece_of_aligned_memory() {
    let mut pool = Pool::new();
    let runs: Vec<_> = (0..40).map(|_| chunk(&mut pool)).collect();
    for run in &runs {
        assert_eq!(run.len(), CHUNK_BLOCKS);
        assert!(is_one_piece(run), "{:?}", numbers(run));
        assert!(run.iter().all(|header| header.bytes.addr().get().is_multiple_of(BLOCK_SIZE)));
    }
    assert!(is_one_piece(&runs[..16].concat()), "the chunks of a new slab come in order");
    assert_eq!(pool.chunks.len(), 3 * SLAB_BLOCKS / CHUNK_BLOCKS, "as many slabs as need be");
}

#[test]
fn no_block_is_given_twice_and_none_is_lost() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut pool = Pool::new();
        let mut held: Vec<&'static Header> = Vec::new();
        for _ in 0..300 {
            let before = held.len();
            match rng.below(6) {
                0 | 1 => pool.take_chunk(&mut held),
                2 => pool.take(1 + rng.below(200) as usize, &mut held),
                3 => {
                    let idle = pool.trim();
                    let whole = idle.whole.iter().map(|index| (*index, Chunk::ALL));
                    for (index, bits) in whole.chain(idle.parts.iter().copied()) {
                        let base = index as u32 * CHUNK_BLOCKS as u32;
                        let goes = |header: &&'static Header| {
                            header
                                .number
                                .checked_sub(base)
                                .is_some_and(|bit| bit < 32 && bits >> bit & 1 == 1)
                        };
                        assert!(!held.iter().any(goes), "seed {seed}: nobody has it");
                    }
                    pool.let_go(idle);
                }
                _ => {
                    let count = rng.below(held.len() as u64 + 1) as usize;
                    let gone: Vec<_> =
                        (0..count).map(|_| held.swap_remove(rng.below(held.len() as u64) as usize)).collect();
                    pool.put(gone.into_iter());
                }
            }
            if held.len() > before {
                let distinct: BTreeSet<u32> = numbers(&held).into_iter().collect();
                assert_eq!(distinct.len(), held.len(), "seed {seed}");
            }
            let with_memory = (pool.chunks.len() - pool.released.len()) * CHUNK_BLOCKS;
            assert_eq!(pool.free + held.len(), with_memory, "seed {seed}");
        }
        pool.put(held.drain(..));
        let whole = pool.whole.len() + pool.released.len();
        assert_eq!(whole, pool.chunks.len(), "seed {seed}: all come together again");
    }
}

#[test]
fn memory_that_was_free_for_a_while_goes_back_and_comes_again() {
    let mut pool = Pool::new();
    let mut held: Vec<&'static Header> = Vec::new();
    (0..4 * KEPT_CHUNKS).for_each(|_| pool.take_chunk(&mut held));
    for header in &held {
        // SAFETY: the test has the block alone.
        unsafe { (*header.bytes.as_ptr()).fill(7) };
    }
    pool.put(held.drain(..));
    let none = |idle: Idle| idle.whole.is_empty() && idle.parts.is_empty();
    assert!(none(pool.trim()), "it was in use until now");
    held.extend(chunk(&mut pool));
    // Of this one every second block is given back.
    let (some, others): (Vec<_>, Vec<_>) = held.drain(..).partition(|header| header.number % 2 == 0);
    pool.put(some.into_iter());
    held = others;
    let idle = pool.trim();
    assert_eq!(idle.whole.len(), 4 * KEPT_CHUNKS - 1 - KEPT_CHUNKS, "one is in use, and some stay");
    assert!(idle.parts.is_empty(), "it was touched");
    idle.whole.iter().for_each(|index| release(pool.chunks[*index].headers[0].bytes, Chunk::ALL));
    let (slabs, released) = (pool.chunks.len(), idle.whole.len() * CHUNK_BLOCKS);
    pool.let_go(idle);
    let idle = pool.trim();
    assert_eq!(
        (idle.whole.len(), &idle.parts[..]),
        (0, &[(held[0].number as usize / CHUNK_BLOCKS, 0x5555_5555)][..])
    );
    release(pool.chunks[idle.parts[0].0].headers[0].bytes, idle.parts[0].1);
    let released = released + CHUNK_BLOCKS / 2;
    pool.let_go(idle);
    assert!(none(pool.trim()), "what is left stays");
    // SAFETY: the test has them alone.
    let is_kept = |header: &&'static Header| unsafe { *header.bytes.as_ptr() == [7; BLOCK_SIZE] };
    assert!(held.iter().all(is_kept), "what is in use stays");
    while pool.free > 0 || !pool.released.is_empty() {
        pool.take(1, &mut held);
    }
    // SAFETY: as above.
    let zeroes = held.iter().filter(|header| unsafe { *header.bytes.as_ptr() } == [0; BLOCK_SIZE]);
    assert_eq!(zeroes.count(), released, "the system had the memory");
    assert_eq!(pool.chunks.len(), slabs, "and gave it again, where it was");
}

#[test]
fn all_threads_together_keep_little_however_many_they_are() {
    for threads in 1..2000 {
        let most = share(threads) * threads;
        assert!(most <= THREADS_BLOCKS.max(SHARE_MIN * threads), "{threads} threads keep {most} blocks");
    }
    assert_eq!(share(1), THREAD_BLOCKS);
    let pool = Mutex::new(Pool::new());
    let mut locals: Vec<_> = (0..264).map(|_| ManuallyDrop::new(Local::new())).collect();
    for round in 0..3 {
        let mut taken: Vec<&'static Header> = Vec::new();
        for local in &mut locals {
            local.share = share(264);
            taken.extend((0..16 + round).map(|_| local.take(&pool)));
            taken.extend((0..40).map(|_| local.take_of_run(&pool)));
            local.end_run(&pool);
        }
        for (number, header) in taken.into_iter().enumerate() {
            locals[number % 264].give_back(header, &pool);
        }
        let kept: usize = locals.iter().map(|local| local.free.len() + local.run.len()).sum();
        assert!(kept <= 264 * SHARE_MIN, "round {round}: {kept} blocks");
    }
    locals.iter_mut().for_each(|local| local.end(&pool));
    let pool = pool.lock();
    assert_eq!(pool.free, pool.chunks.len() * CHUNK_BLOCKS);
}

#[test]
fn single_blocks_leave_whole_chunks_alone() {
    let mut pool = Pool::new();
    let mut single = Vec::new();
    pool.take(1, &mut single);
    let whole = pool.whole.len();
    pool.take(CHUNK_BLOCKS - 1, &mut single);
    assert_eq!(pool.whole.len(), whole, "they came from the chunk that was begun");
    assert!(chunk(&mut pool).len() == CHUNK_BLOCKS && pool.whole.len() == whole - 1);
}

#[test]
fn memory_grows_for_runs_only_while_little_is_free_in_pieces() {
    let mut pool = Pool::new();
    let mut held: Vec<&'static Header> = Vec::new();
    while pool.chunks.len() * CHUNK_BLOCKS < 4 * SLAB_BLOCKS || !pool.whole.is_empty() {
        pool.take_chunk(&mut held);
    }
    // One block of each chunk is free: less than a sixteenth of all.
    let (some, mut held): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|header| header.number as usize % CHUNK_BLOCKS == 5);
    pool.put(some.into_iter());
    held.extend(chunk(&mut pool));
    assert_eq!(pool.chunks.len() * CHUNK_BLOCKS, 5 * SLAB_BLOCKS);
    while !pool.whole.is_empty() {
        pool.take_chunk(&mut held);
    }
    // Every second block is free.
    let (some, _held): (Vec<_>, Vec<_>) = held.into_iter().partition(|header| header.number % 2 == 0);
    pool.put(some.into_iter());
    for _ in 0..20 {
        let run = chunk(&mut pool);
        assert!(
            !run.is_empty() && run.is_sorted_by_key(|header| header.number),
            "in the pieces that there are"
        );
    }
    assert_eq!(pool.chunks.len() * CHUNK_BLOCKS, 5 * SLAB_BLOCKS, "there is enough memory");
}

#[test]
fn thread_that_only_gives_back_keeps_little() {
    let pool = Mutex::new(Pool::new());
    // Blocks left with a thread go to the shared pool when it ends: not these.
    let (mut taker, mut giver) = (ManuallyDrop::new(Local::new()), ManuallyDrop::new(Local::new()));
    for round in 0..40 {
        let taken: Vec<_> = (0..SLAB_BLOCKS).map(|_| taker.take_of_run(&pool)).collect();
        taken.into_iter().for_each(|header| giver.give_back(header, &pool));
        assert!(giver.free.len() <= GIVER_BLOCKS, "round {round}");
    }
    // A thread that also takes blocks keeps those that it needs next.
    for _ in 0..4 {
        let taken: Vec<_> = (0..THREAD_BLOCKS).map(|_| giver.take(&pool)).collect();
        taken.into_iter().for_each(|header| giver.give_back(header, &pool));
    }
    assert!(giver.free.len() >= THREAD_BLOCKS / 2, "{} blocks", giver.free.len());
    assert!(pool.lock().chunks.len() <= 3 * SLAB_BLOCKS / CHUNK_BLOCKS, "all of it went round");
    taker.end(&pool);
    giver.end(&pool);
}

#[test]
fn runs_of_a_thread_are_of_blocks_that_nobody_has() {
    let mut taken: Vec<&'static Header> = Vec::new();
    for count in [4, 7, 16, 5, 100] {
        let before = taken.len();
        take_run(count, |header| taken.push(header));
        assert_eq!(taken.len(), before + count);
    }
    let distinct: BTreeSet<u32> = numbers(&taken).into_iter().collect();
    assert_eq!(distinct.len(), taken.len());
    taken.into_iter().for_each(give_back);
}

#[test]
fn pieces_of_blocks_are_their_bytes_in_order_and_none_leaves_its_slab() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut blocks = Vec::new();
        // Of several slabs in order; then one by one in between, and with some left out.
        while blocks.len() < 3 * SLAB_BLOCKS {
            BlockMut::append_run(&mut blocks, RUN_BLOCKS_MIN + rng.below(200) as usize);
            if seed % 4 > 1 {
                blocks.push(BlockMut::dirty());
            }
        }
        if seed % 2 == 1 {
            blocks.retain(|_| !rng.one_in(20));
        }
        let mut number = 0u64;
        for piece in pieces_mut(&mut blocks) {
            assert_eq!(
                piece.as_ptr().addr() / SLAB_BYTES,
                (piece.as_ptr().addr() + piece.len() - 1) / SLAB_BYTES
            );
            for word in piece.chunks_exact_mut(8) {
                word.copy_from_slice(&number.to_le_bytes());
                number += 1;
            }
        }
        let blocks: Vec<Block> = blocks.into_iter().map(BlockMut::freeze).collect();
        assert_eq!(number as usize * 8, blocks.len() * BLOCK_SIZE);
        let words = blocks.iter().flat_map(|block| block.chunks_exact(8));
        assert!(words.enumerate().all(|(at, word)| *word == (at as u64).to_le_bytes()));
        let all: Vec<&[u8]> = pieces(&blocks).collect();
        assert!(all.len() < blocks.len() / 4, "{} pieces of {} blocks", all.len(), blocks.len());
        for piece in &all {
            assert_eq!(
                piece.as_ptr().addr() / SLAB_BYTES,
                (piece.as_ptr().addr() + piece.len() - 1) / SLAB_BYTES
            );
        }
        assert!(
            all.concat().chunks_exact(8).enumerate().all(|(at, word)| *word == (at as u64).to_le_bytes())
        );
    }
}
