//! The write amplification of two layouts of a mirror in a bucket: regions of block space that are
//! written whole, and packs of changed blocks with a cleaner. `docs/bucket-images.md` has the table
//! and the decision.

use std::collections::BTreeSet;

use cairn_base::Rng;

/// Blocks of a region, and of a pack.
const REGION: usize = 1024;
const NONE: u32 = u32::MAX;

/// A block space with live blocks that logical overwrites free at random.
struct Space {
    place: Vec<u32>,
    used: Vec<bool>,
    /// Free blocks of each unit of the allocator, by count.
    free: Vec<usize>,
    emptiest: BTreeSet<(usize, usize)>,
    unit: usize,
    /// The position of the allocator: it uses a unit once from end to end, and then chooses the
    /// emptiest one.
    at: usize,
}

impl Space {
    fn new(blocks: usize, unit: usize, full: f64) -> Self {
        let units = blocks / unit;
        let mut space = Self {
            place: vec![NONE; (blocks as f64 * full) as usize],
            used: vec![false; blocks],
            free: vec![unit; units],
            emptiest: (0..units).map(|number| (unit, number)).collect(),
            unit,
            at: 0,
        };
        let all: Vec<u32> = (0..space.place.len() as u32).collect();
        space.write(&all, &mut |_| {});
        space
    }

    fn change(&mut self, number: usize, by: isize) {
        self.emptiest.remove(&(self.free[number], number));
        self.free[number] = self.free[number].strict_add_signed(by);
        self.emptiest.insert((self.free[number], number));
    }

    /// Writes some blocks into the emptiest units, and then frees their old places. An image does
    /// the same while its base is held until it is in the bucket.
    fn write(&mut self, blocks: &[u32], put: &mut impl FnMut(usize)) {
        let mut old = Vec::new();
        for block in blocks {
            loop {
                if self.at.is_multiple_of(self.unit) {
                    let (free, number) = self.emptiest.last().copied().expect("a unit");
                    assert!(free > 0, "the volume is full");
                    self.at = number * self.unit;
                }
                if !self.used[self.at] {
                    break;
                }
                self.at += 1;
            }
            let at = self.at;
            self.used[at] = true;
            self.change(at / self.unit, -1);
            let before = std::mem::replace(&mut self.place[*block as usize], at as u32);
            if before != NONE {
                old.push(before as usize);
            }
            put(at / REGION);
            self.at += 1;
        }
        for at in old {
            self.used[at] = false;
            self.change(at / self.unit, 1);
        }
    }
}

/// Regions and live blocks that are put for each block that is written, for images of `batch`
/// random blocks.
fn regions(blocks: usize, unit: usize, full: f64, batch: usize) -> (f64, f64) {
    let mut rng = Rng::new(1);
    let mut space = Space::new(blocks, unit, full);
    let logical = space.place.len();
    let images = logical * 4 / batch;
    let (mut puts, mut put_blocks, mut written) = (0_u64, 0_u64, 0_u64);
    for image in 0..images {
        let chosen: BTreeSet<u32> = (0..batch).map(|_| rng.below(logical as u64) as u32).collect();
        let chosen: Vec<u32> = chosen.into_iter().collect();
        let mut regions = BTreeSet::new();
        space.write(&chosen, &mut |region| {
            regions.insert(region);
        });
        if image < images / 2 {
            continue;
        }
        written += chosen.len() as u64;
        puts += regions.len() as u64;
        for region in regions {
            put_blocks +=
                space.used[region * REGION..(region + 1) * REGION].iter().filter(|used| **used).count()
                    as u64;
        }
    }
    (put_blocks as f64 / written as f64, puts as f64 / written as f64)
}

/// The same for packs of changed blocks and a greedy cleaner that keeps the same share of the room
/// live.
fn packs(blocks: usize, full: f64, batch: usize) -> (f64, f64) {
    let mut rng = Rng::new(1);
    let logical = (blocks as f64 * full) as usize;
    let mut pack_of = vec![NONE; logical];
    let mut members: Vec<Vec<u32>> = Vec::new();
    let mut live: Vec<usize> = Vec::new();
    let mut emptiest: BTreeSet<(usize, u32)> = BTreeSet::new();
    let (mut stored, mut puts, mut put_blocks, mut written) = (0, 0_u64, 0_u64, 0_u64);
    let images = logical * 4 / batch;
    let all: Vec<u32> = (0..logical as u32).collect();
    for image in 0..=images {
        let first = image == 0;
        let chosen: Vec<u32> = match first {
            true => all.clone(),
            false => {
                let chosen: BTreeSet<u32> = (0..batch).map(|_| rng.below(logical as u64) as u32).collect();
                chosen.into_iter().collect()
            }
        };
        let new = chosen.len() as u64;
        let mut waiting = chosen;
        for block in &waiting {
            let pack = std::mem::replace(&mut pack_of[*block as usize], NONE);
            if pack != NONE {
                emptiest.remove(&(live[pack as usize], pack));
                live[pack as usize] -= 1;
                emptiest.insert((live[pack as usize], pack));
            }
        }
        while stored + waiting.len() > blocks {
            let (_, pack) = emptiest.pop_first().expect("a pack");
            let blocks = std::mem::take(&mut members[pack as usize]);
            stored -= blocks.len();
            waiting.extend(blocks.into_iter().filter(|block| pack_of[*block as usize] == pack));
        }
        let count = image > images / 2;
        for chunk in waiting.chunks(REGION) {
            let pack = members.len() as u32;
            chunk.iter().for_each(|block| pack_of[*block as usize] = pack);
            members.push(chunk.to_vec());
            live.push(chunk.len());
            emptiest.insert((chunk.len(), pack));
            stored += chunk.len();
            if count {
                puts += 1;
                put_blocks += chunk.len() as u64;
            }
        }
        written += if count { new } else { 0 };
    }
    (put_blocks as f64 / written as f64, puts as f64 / written as f64)
}

#[test]
#[ignore = "takes minutes; its table is in docs/bucket-images.md"]
fn amplification_of_regions_and_of_packs() {
    const BLOCKS: usize = 2 << 20;
    println!(
        "full, batch: regions 4 MiB, regions 128 MiB, packs (blocks put per block written; puts per 1000)"
    );
    for batch in [500, 5000] {
        for full in [0.5, 0.7, 0.8, 0.9] {
            let show = |(blocks, puts): (f64, f64)| format!("{blocks:.2} / {:.2}", puts * 1000.0);
            println!(
                "{full} {batch}: {} | {} | {}",
                show(regions(BLOCKS, REGION, full, batch)),
                show(regions(BLOCKS, 32 * REGION, full, batch)),
                show(packs(BLOCKS, full, batch)),
            );
        }
    }
}

#[test]
fn regions_amplify_less_than_twice_at_half_full() {
    let (blocks, _) = regions(64 * REGION, REGION, 0.5, 1000);
    assert!((1.0..2.0).contains(&blocks), "{blocks}");
}
