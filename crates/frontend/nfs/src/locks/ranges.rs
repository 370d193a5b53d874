//! The locks of one file: ranges of bytes, with the rules of POSIX.
//!
//! Invariants:
//! - Locks of one owner do not overlap, and two of one kind do not touch: they are merged.
//! - Locks of two owners overlap only if both are shared.

use std::sync::Arc;

use crate::locks::host::Owner;

/// A range of bytes, which has one at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Range {
    /// `length` bytes from `offset` on; 0 for all. `None` for a range past the largest offset.
    pub(crate) fn new(offset: u64, length: u64) -> Option<Self> {
        let last = match length {
            0 => u64::MAX,
            length => offset.checked_add(length - 1)?,
        };
        Some(Self { first: offset, last })
    }

    /// The length as a client has it: 0 up to the largest offset.
    pub(crate) fn length(self) -> u64 {
        if self.last == u64::MAX { 0 } else { self.last - self.first + 1 }
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn touches(self, other: Self) -> bool {
        self.meets(other)
            || self.last.checked_add(1) == Some(other.first)
            || other.last.checked_add(1) == Some(self.first)
    }

    fn with(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The parts before and after another range that it meets.
    fn without(self, other: Self) -> [Option<Self>; 2] {
        let before = (self.first < other.first).then(|| Self { first: self.first, last: other.first - 1 });
        let after = (self.last > other.last).then(|| Self { first: other.last + 1, last: self.last });
        [before, after]
    }
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) range: Range,
    pub(crate) exclusive: bool,
    pub(crate) owner: Arc<Owner>,
}

/// The locks of a file.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    held: Vec<Held>,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn all(&self) -> &[Held] {
        &self.held
    }

    /// The locks of others that are in the way of a lock.
    pub(crate) fn conflicts<'a>(
        &'a self,
        owner: &'a Owner,
        range: Range,
        exclusive: bool,
    ) -> impl Iterator<Item = &'a Held> {
        self.held.iter().filter(move |held| {
            (exclusive || held.exclusive) && held.range.meets(range) && *held.owner != *owner
        })
    }

    /// Whether an owner has all of a range, of that kind.
    pub(crate) fn has(&self, owner: &Owner, range: Range, exclusive: bool) -> bool {
        let is_it = |held: &Held| {
            held.exclusive == exclusive
                && held.range.first <= range.first
                && held.range.last >= range.last
                && *held.owner == *owner
        };
        self.held.iter().any(is_it)
    }

    /// Gives an owner a range, which conflicts with no other owner, or (`None`) takes it. Earlier
    /// locks of the owner in the range end.
    pub(crate) fn set(&mut self, owner: &Arc<Owner>, range: Range, kind: Option<bool>) {
        let mut whole = range;
        let mut parts = Vec::new();
        self.held.retain(|held| {
            if *held.owner != **owner {
                return true;
            }
            if Some(held.exclusive) == kind {
                if held.range.touches(range) {
                    whole = whole.with(held.range);
                    return false;
                }
            } else if held.range.meets(range) {
                let part = |range| Held { range, ..held.clone() };
                parts.extend(held.range.without(range).into_iter().flatten().map(part));
                return false;
            }
            true
        });
        self.held.append(&mut parts);
        if let Some(exclusive) = kind {
            self.held.push(Held { range: whole, exclusive, owner: Arc::clone(owner) });
        }
    }

    /// The parts of an owner's locks in a range.
    pub(crate) fn within(&self, owner: &Owner, range: Range) -> Vec<(Range, bool)> {
        let part = |held: &Held| {
            let part =
                Range { first: held.range.first.max(range.first), last: held.range.last.min(range.last) };
            (held.range.meets(range) && *held.owner == *owner).then_some((part, held.exclusive))
        };
        self.held.iter().filter_map(part).collect()
    }

    /// Ends all locks of some owners. True if there were any.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&Owner) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|held| !is_gone(&held.owner));
        self.held.len() < before
    }
}
