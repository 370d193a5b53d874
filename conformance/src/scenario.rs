//! The inputs and outputs of a scenario.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use cairn_base::Rng;

/// The parameters of a scenario.
#[derive(Debug, Clone)]
pub struct World {
    /// The program under test.
    pub cairn: PathBuf,
    /// The folder for its data; empty, and the scenario's own.
    pub folder: PathBuf,
    /// Decides the moments of kills, and the work of our own clients.
    pub seed: u64,
    /// Sizes for seconds instead of minutes.
    pub short: bool,
    /// A kill loses unflushed data, as in a power cut: each volume is rehearsed with
    /// `--lose-unflushed`.
    pub power_cuts: bool,
}

impl World {
    /// The random numbers of one round: a round replays without the earlier ones.
    pub(crate) fn rng(&self, round: u32) -> Rng {
        Rng::new(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(round)))
    }
}

/// The counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts(BTreeMap<&'static str, u64>);

impl Facts {
    /// Counts `count` more of `what`.
    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Keeps the greatest `value` of `what`.
    pub(crate) fn max(&mut self, what: &'static str, value: u64) {
        let entry = self.0.entry(what).or_default();
        *entry = value.max(*entry);
    }

    /// How many of `what`.
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut comma = "";
        for (what, count) in &self.0 {
            write!(f, "{comma}{count} {what}")?;
            comma = ", ";
        }
        Ok(())
    }
}

/// How a scenario ended; a fault that it found is an error.
#[derive(Debug)]
pub enum Verdict {
    /// All held.
    Passed(Facts),
    /// This machine cannot run it.
    Skipped {
        /// The missing program or module.
        needs: String,
        /// A kernel does not have it, so that no package helps: never an error.
        kernel: bool,
    },
}

impl Verdict {
    /// A program is missing.
    pub(crate) fn without(program: &str) -> Self {
        Verdict::Skipped { needs: format!("{program} is not installed"), kernel: false }
    }
}

/// A run of one kind.
pub struct Scenario {
    /// On the command line.
    pub name: &'static str,
    /// In one line.
    pub shows: &'static str,
    /// Rounds of a long run when none are given.
    pub rounds: u32,
    /// Runs it.
    pub run: fn(&World, u32) -> Result<Verdict>,
}
