//! The stamp of the moment that lies a given time in the past, by the monotonic clock.
//!
//! While the wall clock advances, stamps follow it. While it is behind the last stamp, because it
//! was set back, each stamp is one nanosecond after the previous one. Both are noted here, by
//! elapsed time, for as long as the history is open. Earlier times are known only if the clock was
//! not set since.

use std::collections::VecDeque;
use std::time::Duration;

/// The two clocks are not read at the same moment: they may differ by this much without either
/// having been set.
const READ_APART_NS: u64 = 50_000_000;
/// Stamps of moments that are closer together are one note.
const NOTE_NS: u64 = 10_000_000;
/// Notes at most, of 32 bytes each. Older ones are merged, or dropped where that gains nothing.
const NOTES_MAX: usize = 8192;
/// Notes are merged that are closer together than their age divided by this.
const MERGED_PART: u64 = 256;
/// A clock that was set by at most this in total counts as never set: this, or the age divided by
/// [`SET_PART`].
const SET_NS: u64 = 1_000_000_000;
const SET_PART: u64 = 1000;

/// From a moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    passed: u64,
    stamp: u64,
    /// Stamps follow the passing time; otherwise they stand still.
    goes: bool,
    /// The last stamp until then. A clock that has just caught up may be a little less.
    last: u64,
}

impl Note {
    /// The wall clock minus the elapsed time.
    fn ahead(&self) -> i128 {
        i128::from(self.stamp) - i128::from(self.passed)
    }

    fn reaches(&self, passed: i128) -> u64 {
        if !self.goes {
            return self.stamp;
        }
        let stamp = u64::try_from(passed + self.ahead()).unwrap_or(0);
        if passed < i128::from(self.passed) { stamp } else { stamp.max(self.last) }
    }
}

/// The stamp of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StampAt {
    /// The last stamp up to that moment, or a time after it and before the next stamp.
    pub(crate) stamp: u64,
    /// Set if stamps stood still then: the first one of that stretch.
    pub(crate) stands_from: Option<u64>,
}

/// The notes, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Elapsed {
    notes: VecDeque<Note>,
    /// There were older notes.
    forgot: bool,
}

impl Elapsed {
    /// Notes the readings of both clocks, and the last stamp.
    pub(crate) fn note(&mut self, now: u64, passed: Duration, last: u64) {
        let passed = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let goes = last <= now.saturating_add(READ_APART_NS);
        let note = Note { passed, stamp: if goes { now } else { last }, goes, last };
        let Some(before) = self.notes.back() else { return self.notes.push_back(note) };
        let is_known = match (before.goes, goes) {
            (true, true) => before.ahead().abs_diff(note.ahead()) <= u128::from(READ_APART_NS),
            (false, false) => before.stamp == last,
            _ => false,
        };
        if is_known {
            return;
        }
        let second = self.notes.len().checked_sub(2).map(|at| self.notes[at]);
        let is_close = |second: Note| !second.goes && passed.saturating_sub(second.passed) < NOTE_NS;
        if !goes && !before.goes && second.is_some_and(is_close) {
            self.notes.pop_back();
        }
        self.notes.push_back(note);
        if self.notes.len() > NOTES_MAX {
            self.merge(passed);
        }
    }

    fn merge(&mut self, now: u64) {
        let mut kept: VecDeque<Note> = VecDeque::with_capacity(self.notes.len());
        let all: Vec<Note> = self.notes.drain(..).collect();
        for (at, note) in all.iter().enumerate() {
            let between = kept.back().zip(all.get(at + 1)).is_some_and(|(before, after)| {
                let apart = after.passed.saturating_sub(before.passed);
                !before.goes
                    && !note.goes
                    && !after.goes
                    && apart < now.saturating_sub(after.passed) / MERGED_PART
            });
            if !between {
                kept.push_back(*note);
            }
        }
        // Room for as many again as it takes to be worth a look.
        while kept.len() > NOTES_MAX / 4 * 3 {
            kept.pop_front();
            self.forgot = true;
        }
        self.notes = kept;
    }

    /// The stamp of the moment `ago`, of a history that began at `began`; `None` if it is unknown.
    pub(crate) fn find(&self, ago: Duration, passed: Duration, began: u64) -> Option<StampAt> {
        let at = i128::try_from(passed.as_nanos()).ok()? - i128::try_from(ago.as_nanos()).ok()?;
        let after = self.notes.partition_point(|note| i128::from(note.passed) <= at);
        let Some(index) = after.checked_sub(1) else {
            return self.before_all(at, ago, began).map(|stamp| StampAt { stamp, stands_from: None });
        };
        let note = self.notes[index];
        let mut stamp = note.reaches(at);
        // The clock may have been set back earlier than that was noticed; no stamp was assigned in
        // between.
        if let Some(next) = self.notes.get(after).filter(|next| !next.goes) {
            stamp = stamp.min(next.stamp);
        }
        let stands = || self.notes.range(..=index).rev().take_while(|note| !note.goes).last();
        let stands_from = if note.goes { None } else { stands().map(|first| first.stamp) };
        Some(StampAt { stamp, stands_from })
    }

    /// For a moment before the first note: assumes that the clock was not set in between.
    fn before_all(&self, at: i128, ago: Duration, began: u64) -> Option<u64> {
        let first = *self.notes.front()?;
        if self.forgot || !first.goes {
            return None;
        }
        // Nothing was before.
        if first.stamp.abs_diff(began) < SET_NS {
            return Some(first.reaches(at).min(began.saturating_sub(1)));
        }
        let most = (ago.as_nanos() / u128::from(SET_PART)).max(u128::from(SET_NS));
        let steady = |note: &Note| note.goes && note.ahead().abs_diff(first.ahead()) <= most;
        self.notes.iter().all(steady).then(|| first.reaches(at))
    }
}

#[cfg(test)]
#[path = "tests/elapsed.rs"]
mod tests;
