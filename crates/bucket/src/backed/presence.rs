//! Which blocks are local, in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_base::Mutex;

use super::base::Base;
use crate::images::{ImageId, REGION_BLOCKS};

const WORDS: usize = REGION_BLOCKS / 64;

/// A bit for each block of a region.
pub type Bits = [u64; WORDS];

/// Blocks of a region: the first place and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) region: u32,
    pub(super) place: u16,
    pub(super) count: u16,
}

/// A change of the presence, in the order in which it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// These blocks are local.
    Local(Mark),
    /// These are not any more.
    Absent(Mark),
    /// Absent blocks are read from this image.
    Base(Base),
}

/// Bits `place..place + count`.
pub(super) fn bits_of(place: usize, count: usize) -> Bits {
    let mut bits = [0; WORDS];
    for (number, word) in bits.iter_mut().enumerate() {
        let (first, last) = (number * 64, number * 64 + 64);
        let (from, to) = (place.max(first), (place + count).min(last));
        if from < to {
            *word = (u64::MAX >> (64 - (to - from))) << (from - first);
        }
    }
    bits
}

/// The parts of a range of blocks in each region: the region, the first place and how many.
pub(super) fn pieces(first: u64, end: u64) -> impl Iterator<Item = (u32, usize, usize)> {
    let mut at = first;
    std::iter::from_fn(move || {
        let region = u32::try_from(at / REGION_BLOCKS as u64).ok().filter(|_| at < end)?;
        let (place, from) = (at % REGION_BLOCKS as u64, at);
        at = (at - place + REGION_BLOCKS as u64).min(end);
        Some((region, place as usize, (at - from) as usize))
    })
}

pub(super) fn has(bits: &Bits, place: usize) -> bool {
    bits[place / 64] >> (place % 64) & 1 == 1
}

/// Runs of set bits: the first place and how many.
pub(super) fn runs(bits: &Bits) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in (0..REGION_BLOCKS).filter(|place| has(bits, *place)) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == place => *count += 1,
            _ => runs.push((place, 1)),
        }
    }
    runs
}

/// See the module.
pub(super) struct Presence {
    /// A bit for each region that is lacking. It changes with the state locked.
    lacking: Box<[AtomicU64]>,
    /// Lacking regions.
    count: AtomicUsize,
    /// Marks that are not durable yet, also while they are written.
    unsaved: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    /// The image of absent blocks.
    base: Base,
    /// The local blocks of lacking regions that have some.
    partial: HashMap<u32, Box<Bits>>,
    pending: Vec<Change>,
}

/// A copy for the presence file.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) base: Base,
    /// A bit for each lacking region.
    pub(super) lacking: Vec<u64>,
    /// The local blocks of lacking regions that have some.
    pub(super) partial: HashMap<u32, Box<Bits>>,
}

impl Presence {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        let Snapshot { base, lacking, partial } = snapshot;
        let count = lacking.iter().map(|word| word.count_ones() as usize).sum();
        Self {
            lacking: lacking.into_iter().map(AtomicU64::new).collect(),
            count: AtomicUsize::new(count),
            unsaved: AtomicUsize::new(0),
            state: Mutex::new(State { base, partial, pending: Vec::new() }),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn lacking(&self) -> u64 {
        self.count.load(Ordering::Acquire) as u64
    }

    /// Whether marks are waiting to be durable.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved.load(Ordering::Acquire) > 0
    }

    pub(super) fn unsaved(&self) -> usize {
        self.unsaved.load(Ordering::Acquire)
    }

    pub(super) fn is_lacking(&self, region: u64) -> bool {
        let word = usize::try_from(region / 64).ok().and_then(|at| self.lacking.get(at));
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (region % 64) & 1 == 1)
    }

    /// The first lacking region from `from` on.
    pub(super) fn next_lacking(&self, from: u64) -> Option<u32> {
        let first = usize::try_from(from / 64).ok()?;
        for (at, word) in self.lacking.iter().enumerate().skip(first) {
            let mut bits = word.load(Ordering::Acquire);
            if at == first {
                bits &= u64::MAX << (from % 64);
            }
            if bits != 0 {
                return u32::try_from(at as u64 * 64 + u64::from(bits.trailing_zeros())).ok();
            }
        }
        None
    }

    /// Blocks of a region that are not local; none if it is not lacking.
    pub(super) fn absent(&self, region: u32) -> Option<Bits> {
        if !self.is_lacking(u64::from(region)) {
            return None;
        }
        let state = self.state.lock();
        if !self.is_lacking(u64::from(region)) {
            return None;
        }
        let local = state.partial.get(&region);
        Some(local.map_or([u64::MAX; WORDS], |local| local.map(|word| !word)))
    }

    /// Regions of which a part is local.
    pub(super) fn partial(&self) -> usize {
        self.state.lock().partial.len()
    }

    /// Blocks of a region are local from now on. Their bytes are on the local device.
    pub(super) fn mark(&self, region: u32, bits: &Bits) {
        if !self.is_lacking(u64::from(region)) {
            return;
        }
        let mut state = self.state.lock();
        if !self.is_lacking(u64::from(region)) {
            return;
        }
        let local = state.partial.entry(region).or_insert_with(|| Box::new([0; WORDS]));
        let mut new = [0; WORDS];
        for ((word, bits), new) in local.iter_mut().zip(bits).zip(&mut new) {
            *new = bits & !*word;
            *word |= bits;
        }
        let is_whole = local.iter().all(|word| *word == u64::MAX);
        let marks: Vec<Mark> = match is_whole {
            true => vec![Mark { region, place: 0, count: REGION_BLOCKS as u16 }],
            false => {
                let mark = |(place, count)| Mark { region, place: place as u16, count: count as u16 };
                runs(&new).into_iter().map(mark).collect()
            }
        };
        for mark in marks {
            match state.pending.last_mut() {
                Some(Change::Local(last))
                    if last.region == region && last.place + last.count == mark.place =>
                {
                    last.count += mark.count;
                }
                _ => {
                    state.pending.push(Change::Local(mark));
                    self.unsaved.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        if is_whole {
            state.partial.remove(&region);
            if let Some(word) = self.lacking.get(region as usize / 64) {
                word.fetch_and(!(1 << (region % 64)), Ordering::AcqRel);
            }
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The image of absent blocks.
    pub(super) fn base(&self) -> Base {
        self.state.lock().base
    }

    /// Absent blocks are read from `base` from now on.
    pub(super) fn rebase(&self, base: Base) {
        let mut state = self.state.lock();
        state.base = base;
        state.pending.push(Change::Base(base));
        self.unsaved.fetch_add(1, Ordering::AcqRel);
    }

    /// Local blocks of a region, but those in `keep`, are absent from now on, if the image is still
    /// `base`. Returns which ones. The caller has the lock of the region.
    pub(super) fn evict(&self, base: ImageId, region: u32, keep: &Bits) -> Option<Bits> {
        let mut state = self.state.lock();
        if state.base.image != base {
            return None;
        }
        let word = self.lacking.get(region as usize / 64)?;
        let was_lacking = self.is_lacking(u64::from(region));
        let local = match (was_lacking, state.partial.get(&region)) {
            (false, _) => [u64::MAX; WORDS],
            (true, Some(local)) => **local,
            (true, None) => return None,
        };
        let (mut stays, mut gone) = (local, local);
        for ((stays, gone), keep) in stays.iter_mut().zip(&mut gone).zip(keep) {
            *stays &= keep;
            *gone &= !keep;
        }
        if gone == [0; WORDS] {
            return None;
        }
        let is_empty = stays == [0; WORDS];
        let marks = match is_empty {
            true => vec![(0, REGION_BLOCKS)],
            false => runs(&gone),
        };
        for (place, count) in marks {
            let mark = Mark { region, place: place as u16, count: count as u16 };
            state.pending.push(Change::Absent(mark));
            self.unsaved.fetch_add(1, Ordering::AcqRel);
        }
        match is_empty {
            true => drop(state.partial.remove(&region)),
            false => drop(state.partial.insert(region, Box::new(stays))),
        }
        if !was_lacking {
            self.count.fetch_add(1, Ordering::AcqRel);
            word.fetch_or(1 << (region % 64), Ordering::AcqRel);
        }
        Some(gone)
    }

    /// Repeats a change that a presence file has.
    pub(super) fn replay(&self, change: Change) {
        match change {
            Change::Local(mark) => self.mark(mark.region, &bits_of(mark.place.into(), mark.count.into())),
            Change::Absent(mark) => {
                let keep = bits_of(mark.place.into(), mark.count.into()).map(|word| !word);
                let base = self.base().image;
                self.evict(base, mark.region, &keep);
            }
            Change::Base(base) => self.state.lock().base = base,
        }
    }

    /// The marks that are not durable. They count as unsaved until [`Presence::saved`].
    pub(super) fn take(&self) -> Vec<Change> {
        std::mem::take(&mut self.state.lock().pending)
    }

    /// The marks could not be written, and nothing was lost.
    pub(super) fn give_back(&self, marks: Vec<Change>) {
        let mut state = self.state.lock();
        let newer = std::mem::replace(&mut state.pending, marks);
        state.pending.extend(newer);
    }

    /// That many marks are durable.
    pub(super) fn saved(&self, count: usize) {
        self.unsaved.fetch_sub(count, Ordering::AcqRel);
    }

    /// A copy of everything, and how many marks it makes superfluous.
    pub(super) fn snapshot(&self) -> (Snapshot, Vec<Change>) {
        let mut state = self.state.lock();
        let lacking = self.lacking.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let snapshot = Snapshot { base: state.base, lacking, partial: state.partial.clone() };
        (snapshot, std::mem::take(&mut state.pending))
    }

    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> u64 {
        let state = self.state.lock();
        let partial = state.partial.capacity() * 17 + state.partial.len() * (size_of::<Bits>() + 16);
        (self.lacking.len() * 8 + partial + state.pending.capacity() * size_of::<Change>()) as u64
    }
}
