//! Which instants are kept: windows and cuts.

use std::collections::BTreeSet;

use cairn_format::history::{Granularity, Thinned};

/// The granularity, the coarser ones of older history, and the instants that are kept in any case.
pub(crate) struct Timeline {
    granularity: Granularity,
    /// The youngest first; only those that have thinned something. The end of each stretch is a
    /// kept instant.
    thinned: Vec<Thinned>,
    /// No write has the stamp of a cut: versions up to it are before, the rest after.
    cuts: BTreeSet<u64>,
}

/// The last end of an interval up to `at`. All writes up to it are in its image.
pub(crate) fn end_before(at: u64, interval: u64) -> Option<u64> {
    ((at + 1) / interval * interval).checked_sub(1)
}

impl Timeline {
    pub(crate) fn new(granularity: Granularity) -> Self {
        Self { granularity, thinned: Vec::new(), cuts: BTreeSet::new() }
    }

    pub(crate) fn cut(&mut self, at: u64) {
        self.cuts.insert(at);
    }

    pub(crate) fn uncut(&mut self, at: u64) {
        self.cuts.remove(&at);
    }

    /// Forgets cuts before `start`.
    pub(crate) fn forget_before(&mut self, start: u64) {
        self.cuts = self.cuts.split_off(&start);
    }

    /// Sets the steps to thin by from now on.
    pub(crate) fn thin(&mut self, steps: &[Thinned]) {
        self.thinned = steps.iter().copied().filter(|step| step.until_ns > 0).collect();
    }

    /// True when no kept instant is between writes of these two stamps.
    pub(crate) fn same_window(&self, earlier: u64, later: u64) -> bool {
        let kept = || self.kept_by_granularity(later - 1).is_some_and(|kept| kept >= earlier);
        earlier >= later || !kept() && self.cuts.range(earlier..later).next().is_none()
    }

    /// The last instant up to `at` that is kept, without regard to the window. All writes up to it
    /// are in its image.
    pub(crate) fn kept_before(&self, at: u64) -> Option<u64> {
        self.kept_by_granularity(at).max(self.cuts.range(..=at).next_back().copied())
    }

    /// The granularity at an instant, and the stretch of the timeline that has it: after the first,
    /// up to the second.
    fn stretch(&self, at: u64) -> (Granularity, Option<u64>, Option<u64>) {
        let mut stretch = (self.granularity, None, None);
        for step in &self.thinned {
            if at > step.until_ns {
                stretch.1 = Some(step.until_ns);
                break;
            }
            stretch = (Granularity::Interval(step.every_ns), None, Some(step.until_ns));
        }
        stretch
    }

    /// Whether the kept instant for `at` is as near as the owner wants: `at` itself, or the last
    /// mark where only marks are kept.
    pub(crate) fn is_kept_near(&self, at: u64) -> bool {
        match self.stretch(at).0 {
            Granularity::EveryWrite | Granularity::Marks => true,
            Granularity::Interval(_) => self.kept_before(at) == Some(at),
        }
    }

    fn kept_by_granularity(&self, at: u64) -> Option<u64> {
        let (granularity, after, _) = self.stretch(at);
        match granularity {
            Granularity::EveryWrite => Some(at),
            Granularity::Interval(ns) => end_before(at, ns).max(after),
            Granularity::Marks => after,
        }
    }

    /// The first instant from `at` on that is kept, if it is known already.
    pub(crate) fn kept_after(&self, at: u64) -> Option<u64> {
        let cut = self.cuts.range(at..).next().copied();
        let (granularity, _, until) = self.stretch(at);
        let next = match granularity {
            Granularity::EveryWrite => Some(at),
            Granularity::Interval(ns) => {
                let end = (at / ns + 1).saturating_mul(ns) - 1;
                Some(until.map_or(end, |until| until.min(end)))
            }
            Granularity::Marks => until,
        };
        match (cut, next) {
            (Some(cut), Some(next)) => Some(cut.min(next)),
            (cut, next) => cut.or(next),
        }
    }
}
