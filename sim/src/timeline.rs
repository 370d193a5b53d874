//! The events of a run: a digest of all of them, and lines for readers.

use std::fmt::Write;

/// The explanation above a printed run.
pub const LEGEND: &str = "\
step   the how many-th action of the run
side   whose: vol (a volume on its own), src and dst (a mirror's ends)
io     device operations of that side's device since it was last powered on (writes, trims and flushes; a cut falls on one)
gen    the generation of its last consistency point
free   blocks that writes can take
what   the action and its outcome; ! is a fault that the run injected, = what was found and compared
";

/// The head of the columns.
pub const HEAD: &str = "  step side    io   gen   free  what";

/// The state of a side when a line is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    /// Operations of the device since it was powered on.
    pub operations: u64,
    /// The last consistency point.
    pub generation: u64,
    /// Blocks that writes can take.
    pub free: u64,
}

/// Collects the events of a run.
#[derive(Debug)]
pub struct Timeline {
    step: u64,
    digest: u64,
    print: bool,
    /// The last lines, for the report of a failure.
    recent: std::collections::VecDeque<String>,
}

const RECENT: usize = 25;

impl Timeline {
    /// An empty one, that prints its lines as they come if `print`.
    pub fn new(print: bool) -> Self {
        Self { step: 0, digest: 0xcbf2_9ce4_8422_2325, print, recent: std::collections::VecDeque::new() }
    }

    /// The next action begins.
    pub fn step(&mut self) {
        self.step += 1;
    }

    /// Records an event.
    pub fn note(&mut self, side: &str, at: Standing, what: &str) {
        let mut line = String::new();
        let Standing { operations, generation, free } = at;
        // Writing to a string can't fail.
        let _ = write!(line, "{:>6} {side:<4} {operations:>5} {generation:>5} {free:>6}  {what}", self.step);
        self.observe(line.bytes());
        if self.print {
            println!("{line}");
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    /// Adds bytes that were seen to the digest (FNV-1a).
    pub fn observe(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The digest of everything so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The last lines.
    pub fn recent(&self) -> impl Iterator<Item = &str> {
        self.recent.iter().map(String::as_str)
    }
}
