//! The SPC-1-like workload: eight streams for each BSU over three ASUs.
//!
//! | stream | share | reads | length | addresses |
//! |---|---|---|---|---|
//! | ASU1-1 | .035 | 50 % | 1 | uniform |
//! | ASU1-2 | .281 | 50 % | 1 | hot spot at 15 %, size 5 % |
//! | ASU1-3 | .070 | 100 % | SMIX | sequential: start 20 % + U(40 %), run 10 % |
//! | ASU1-4 | .210 | 50 % | 1 | hot spot at 70 %, size 5 % |
//! | ASU2-1 | .018 | 30 % | 1 | uniform |
//! | ASU2-2 | .070 | 30 % | 1 | hot spot at 47 %, size 5 % |
//! | ASU2-3 | .035 | 100 % | SMIX | sequential, as ASU1-3 |
//! | ASU3-1 | .281 | 0 % | SMIX | sequential: start U(70 %), run 30 % |
//!
//! The publication does not define the walk over a hot spot exactly. Here each request of such a
//! stream takes a step. It goes from its leaf of 8 blocks up to level 7 of a binary tree, and on
//! with probability .44 a level up to the top. Then it goes down to a uniformly chosen leaf under
//! that node. A read takes the leaf's blocks in turn; a write a random one of them or the next to
//! be read, with even chances. Of 100 writes that are not repetitions themselves the stream's next
//! write repeats 15.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cairn_base::Rng;

use super::{UNIT, fraction, gap};
use crate::{TraceOp, TraceRecord};

/// Requests of a BSU in a second.
const RATE: f64 = 50.0;
/// Shares of the capacity.
const ASUS: [f64; 3] = [0.45, 0.45, 0.10];
/// Blocks of a leaf of a hot spot.
const LEAF: u64 = 8;
/// Level that each step climbs to.
const CLIMB: u32 = 7;
/// Chance to climb one more.
const CLIMB_ON: f64 = 0.44;
/// The share of repeated writes.
const AGAIN: f64 = 0.15;
/// Lengths of sequential requests, in blocks, and their weights.
const SMIX: [(u64, u64); 5] = [(1, 10), (2, 6), (4, 5), (8, 2), (16, 2)];

#[derive(Clone, Copy)]
enum Places {
    Uniform,
    HotSpot { at: f64 },
    Sequential { start: f64, spread: f64, run: f64 },
}

struct Kind {
    asu: u32,
    share: f64,
    reads: f64,
    places: Places,
}

const HOT_SIZE: f64 = 0.05;

const KINDS: [Kind; 8] = {
    const SCAN: Places = Places::Sequential { start: 0.2, spread: 0.4, run: 0.1 };
    [
        Kind { asu: 0, share: 0.035, reads: 0.5, places: Places::Uniform },
        Kind { asu: 0, share: 0.281, reads: 0.5, places: Places::HotSpot { at: 0.15 } },
        Kind { asu: 0, share: 0.070, reads: 1.0, places: SCAN },
        Kind { asu: 0, share: 0.210, reads: 0.5, places: Places::HotSpot { at: 0.70 } },
        Kind { asu: 1, share: 0.018, reads: 0.3, places: Places::Uniform },
        Kind { asu: 1, share: 0.070, reads: 0.3, places: Places::HotSpot { at: 0.47 } },
        Kind { asu: 1, share: 0.035, reads: 1.0, places: SCAN },
        Kind {
            asu: 2,
            share: 0.281,
            reads: 0.0,
            places: Places::Sequential { start: 0.0, spread: 0.7, run: 0.3 },
        },
    ]
};

/// A stream of one BSU.
struct Stream {
    kind: usize,
    rng: Rng,
    /// The leaf of the walk, and the next of its blocks to be read.
    leaf: u64,
    next: u64,
    /// Of a sequential stream: its next block, and the end of its run.
    at: u64,
    end: u64,
    /// A write that is to be done again: its block and length.
    again: Option<(u64, u64)>,
}

/// The workload.
pub struct Spc1 {
    /// When each stream's next request is.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    streams: Vec<Stream>,
    blocks: [u64; 3],
    until_ns: u64,
}

impl Spc1 {
    /// The devices, by number.
    pub const DEVICES: [&str; 3] = ["ASU1", "ASU2", "ASU3"];

    /// `bsus` business scaling units on `capacity_bytes` for `seconds`. The paper excludes ASU3, a
    /// log, from its measurements.
    pub fn new(bsus: u32, capacity_bytes: u64, seconds: f64, with_asu3: bool, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let blocks = ASUS.map(|share| ((capacity_bytes as f64 * share) as u64 / UNIT).max(1024));
        let mut streams = Vec::new();
        let mut due = BinaryHeap::new();
        for _ in 0..bsus {
            for (kind, what) in KINDS.iter().enumerate().filter(|(_, what)| with_asu3 || what.asu != 2) {
                let mut own = rng.fork();
                due.push(Reverse((gap(&mut own, RATE * what.share), streams.len())));
                let leaves = (blocks[what.asu as usize] as f64 * HOT_SIZE) as u64 / LEAF;
                let leaf = own.below(leaves.max(1));
                streams.push(Stream { kind, rng: own, leaf, next: 0, at: 0, end: 0, again: None });
            }
        }
        Self { due, streams, blocks, until_ns: (seconds * 1e9) as u64 }
    }
}

impl Iterator for Spc1 {
    type Item = TraceRecord;

    fn next(&mut self) -> Option<TraceRecord> {
        let Reverse((at_ns, index)) = self.due.pop()?;
        if at_ns >= self.until_ns {
            return None;
        }
        let stream = &mut self.streams[index];
        let kind = &KINDS[stream.kind];
        self.due.push(Reverse((at_ns + gap(&mut stream.rng, RATE * kind.share), index)));
        let (op, block, length) = stream.request(kind, self.blocks[kind.asu as usize]);
        Some(TraceRecord { at_ns, device: kind.asu, op, offset: block * UNIT, length: length * UNIT })
    }
}

impl Stream {
    fn request(&mut self, kind: &Kind, blocks: u64) -> (TraceOp, u64, u64) {
        let op = if fraction(&mut self.rng) < kind.reads { TraceOp::Read } else { TraceOp::Write };
        if op == TraceOp::Write
            && let Some((block, length)) = self.again.take()
        {
            return (op, block, length);
        }
        let (block, length) = match kind.places {
            Places::Uniform => (self.rng.below(blocks), 1),
            Places::HotSpot { at } => {
                let first = (blocks as f64 * at) as u64;
                let leaves = ((blocks as f64 * HOT_SIZE) as u64 / LEAF).max(1);
                (first + self.walk(leaves, op), 1)
            }
            Places::Sequential { start, spread, run } => {
                let length = self.smix();
                if self.at + length > self.end {
                    let from = start + spread * fraction(&mut self.rng);
                    self.at = (blocks as f64 * from) as u64;
                    self.end = (self.at + (blocks as f64 * run) as u64).min(blocks).max(self.at + length);
                }
                let at = self.at;
                self.at += length;
                (at, length)
            }
        };
        if op == TraceOp::Write && fraction(&mut self.rng) < AGAIN {
            self.again = Some((block, length));
        }
        (op, block, length)
    }

    /// A step of the walk; the block in the hot spot.
    fn walk(&mut self, leaves: u64, op: TraceOp) -> u64 {
        let top = leaves.next_power_of_two().trailing_zeros();
        let mut level = CLIMB.min(top);
        while level < top && fraction(&mut self.rng) < CLIMB_ON {
            level += 1;
        }
        let under = self.leaf >> level << level;
        let width = (1u64 << level).min(leaves - under);
        self.leaf = under + self.rng.below(width);
        let block = match op {
            TraceOp::Write if fraction(&mut self.rng) < 0.5 => self.rng.below(LEAF),
            TraceOp::Write => self.next,
            _ => {
                let block = self.next;
                self.next = (self.next + 1) % LEAF;
                block
            }
        };
        self.leaf * LEAF + block
    }

    fn smix(&mut self) -> u64 {
        let all: u64 = SMIX.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.below(all);
        for (length, weight) in SMIX {
            if at < weight {
                return length;
            }
            at -= weight;
        }
        1
    }
}
