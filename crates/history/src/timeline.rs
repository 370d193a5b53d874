//! Which instants are kept: windows and cuts.

use std::collections::BTreeSet;

use cairn_format::history::Granularity;

/// The granularity, and the instants that are kept whatever it is.
pub(crate) struct Timeline {
    granularity: Granularity,
    /// No write has the stamp of a cut: what is up to it is before, the rest after.
    cuts: BTreeSet<u64>,
}

impl Timeline {
    pub(crate) fn new(granularity: Granularity) -> Self {
        Self { granularity, cuts: BTreeSet::new() }
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

    /// True when no instant that is kept lies between writes of these two stamps.
    pub(crate) fn same_window(&self, earlier: u64, later: u64) -> bool {
        let within = match self.granularity {
            Granularity::EveryWrite => earlier == later,
            Granularity::Interval(ns) => earlier / ns == later / ns,
            Granularity::Marks => true,
        };
        within && (earlier >= later || self.cuts.range(earlier..later).next().is_none())
    }

    /// The last instant up to `at` that is kept, without regard to the window. All writes up to it are in its image.
    pub(crate) fn kept_before(&self, at: u64) -> Option<u64> {
        let cut = self.cuts.range(..=at).next_back().copied();
        match self.granularity {
            Granularity::EveryWrite => Some(at),
            Granularity::Interval(ns) => cut.max((at / ns * ns).checked_sub(1)),
            Granularity::Marks => cut,
        }
    }

    /// The first instant from `at` on that is kept, if it is known already.
    pub(crate) fn kept_after(&self, at: u64) -> Option<u64> {
        let cut = self.cuts.range(at..).next().copied();
        match self.granularity {
            Granularity::EveryWrite => Some(at),
            Granularity::Interval(ns) => {
                let end = (at / ns + 1).saturating_mul(ns) - 1;
                Some(cut.map_or(end, |cut| cut.min(end)))
            }
            Granularity::Marks => cut,
        }
    }
}
