//! One length of windows (a granularity of history, or the interval of a mirror) and its counts.
//!
//! A version of a block is *retained* when the next write of the block is in another window (2007
//! paper, section 3.1). All is counted at that next write, from the times of both: nothing is kept
//! for a block and a granularity.

/// Phases of the first window that are tried for the mean of Claim 3.1.
pub(crate) const PHASES: usize = 16;

/// Counts of one length.
#[derive(Clone)]
pub(crate) struct Grain {
    /// The length, in nanoseconds.
    pub(crate) ns: u64,
    /// Where the window of the present request begins, by phase; before 0 for the first one.
    start: [i64; PHASES],
    end: [i64; PHASES],
    /// Versions that are not retained, by phase.
    pub(crate) replaced: [u64; PHASES],
    /// Of phase 0, those that are not retained, by the band of the write cache that they were in.
    pub(crate) replaced_in_band: Vec<u64>,
    /// Sum of the distances that are shorter than a window, and how many.
    pub(crate) short_sum: u128,
    pub(crate) short: u64,
    /// Phase 0, the present window: its number, writes, and those replaced in it.
    window: u64,
    window_writes: u64,
    window_replaced: u64,
    /// Windows before it.
    done_writes: u64,
    done_replaced: u64,
    /// Blocks that a mirror with an active map would send: written in a window and not trimmed
    /// before its end.
    pub(crate) kept: u64,
    kept_before: u64,
    kept_max: u64,
}

impl Grain {
    pub(crate) fn new(ns: u64, bands: usize) -> Self {
        Self {
            ns,
            start: [i64::MIN; PHASES],
            end: [i64::MIN; PHASES],
            replaced: [0; PHASES],
            replaced_in_band: vec![0; bands],
            short_sum: 0,
            short: 0,
            window: 0,
            window_writes: 0,
            window_replaced: 0,
            done_writes: 0,
            done_replaced: 0,
            kept: 0,
            kept_before: 0,
            kept_max: 0,
        }
    }

    /// Advances time to `at`.
    pub(crate) fn advance(&mut self, at: u64) {
        let now = at as i64;
        for phase in 0..PHASES {
            if now < self.end[phase] {
                continue;
            }
            let shift = (u128::from(self.ns) * phase as u128 / PHASES as u128) as u64;
            let window = (at + shift) / self.ns;
            self.start[phase] = (window * self.ns) as i64 - shift as i64;
            self.end[phase] = self.start[phase].saturating_add_unsigned(self.ns);
            if phase == 0 && window != self.window {
                self.done_writes += std::mem::take(&mut self.window_writes);
                self.done_replaced += std::mem::take(&mut self.window_replaced);
                self.kept_max = self.kept_max();
                self.kept_before = self.kept;
                self.window = window;
            }
        }
    }

    /// A block is written now for the first time.
    pub(crate) fn first(&mut self) {
        self.window_writes += 1;
        self.kept += 1;
    }

    /// A block is written now, `distance` after the write at `before`; that version was in `band`
    /// of the write cache and `live` unless it was trimmed.
    pub(crate) fn again(&mut self, before: u64, distance: u64, band: usize, live: bool) {
        self.window_writes += 1;
        if distance >= self.ns {
            self.kept += 1;
            return;
        }
        self.short += 1;
        self.short_sum += u128::from(distance);
        let before = before as i64;
        for (start, replaced) in self.start.iter().zip(&mut self.replaced) {
            *replaced += u64::from(before >= *start);
        }
        if before >= self.start[0] {
            self.window_replaced += 1;
            self.replaced_in_band[band] += 1;
            self.kept += u64::from(!live);
        } else {
            self.kept += 1;
        }
    }

    /// A live block that was written at `before` is trimmed now.
    pub(crate) fn trim(&mut self, before: u64) {
        self.kept -= u64::from(before as i64 >= self.start[0]);
    }

    /// The most that a mirror with an active map would send at the end of one window.
    pub(crate) fn kept_max(&self) -> u64 {
        self.kept_max.max(self.kept - self.kept_before)
    }

    /// Writes, and versions not retained, in windows of phase 0 that ended by `last`, the time of
    /// the last request.
    pub(crate) fn completed(&self, last: u64) -> (u64, u64) {
        let ended = (u128::from(self.window) + 1) * u128::from(self.ns) <= u128::from(last);
        match ended {
            true => (self.done_writes + self.window_writes, self.done_replaced + self.window_replaced),
            false => (self.done_writes, self.done_replaced),
        }
    }
}
