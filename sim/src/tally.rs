//! What runs were made of, in numbers.

use std::ops::AddAssign;

/// Counts of one run, or of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Runs.
    pub seeds: u64,
    /// Writes, trims and flushes of all devices.
    pub operations: u64,
    /// Messages between mirrors.
    pub messages: u64,
    /// Moments at which cuts were tried in a copy of the world.
    pub points: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Connections that broke, and messages that came twice, garbled or not at all.
    pub breaks: u64,
    /// Refusals for want of space.
    pub full: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.messages += other.messages;
        self.points += other.points;
        self.cuts += other.cuts;
        self.breaks += other.breaks;
        self.full += other.full;
    }
}
