//! What a scenario gets and gives, and the list of all.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use cairn_base::Rng;

use crate::database::On;

/// What a scenario runs with.
#[derive(Debug, Clone)]
pub struct World {
    /// The program under test.
    pub cairn: PathBuf,
    /// Where its data goes; empty, and the scenario's own.
    pub folder: PathBuf,
    /// Decides the moments of kills, and what our own clients do.
    pub seed: u64,
    /// Sizes for seconds instead of minutes.
    pub short: bool,
    /// A kill loses what was not flushed, as in a power cut: each volume is rehearsed with `--lose-unflushed`.
    pub power_cuts: bool,
}

impl World {
    /// The random numbers of one round: a round replays without those before it.
    pub(crate) fn rng(&self, round: u32) -> Rng {
        Rng::new(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(round)))
    }
}

/// What was counted in a run.
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

/// How a scenario ended; what it found wrong is an error.
#[derive(Debug)]
pub enum Verdict {
    /// All held.
    Passed(Facts),
    /// This machine cannot run it.
    Skipped {
        /// What is missing.
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

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "blocks",
        shows: "our own clients write, trim, flush and take snapshots; what an answered flush covered is there after each kill",
        rounds: 50,
        run: crate::blocks::run,
    },
    Scenario {
        name: "fio",
        shows: "fio's verify: a job that ended is whole after kills in the middle of later ones",
        rounds: 50,
        run: crate::fio::run,
    },
    Scenario {
        name: "copies",
        shows: "nbdcopy and qemu-img convert, killed in the middle and repeated; qemu-img compare and check",
        rounds: 50,
        run: crate::copies::run,
    },
    Scenario {
        name: "database",
        shows: "PostgreSQL under pgbench on an ext4 of a LUN: it comes up after each kill, with every acknowledged transaction",
        rounds: 50,
        run: |world, rounds| crate::database::killed(world, rounds, On::Lun),
    },
    Scenario {
        name: "database-mirror",
        shows: "the same from the mirror after failover, with every transaction that was acknowledged before the last image",
        rounds: 50,
        run: |world, rounds| crate::database::mirrored(world, rounds, On::Lun),
    },
    Scenario {
        name: "database-files",
        shows: "PostgreSQL on the files of a volume: likewise",
        rounds: 50,
        run: |world, rounds| crate::database::killed(world, rounds, On::Files),
    },
    Scenario {
        name: "database-files-mirror",
        shows: "the same from the mirror of those files after failover",
        rounds: 50,
        run: |world, rounds| crate::database::mirrored(world, rounds, On::Files),
    },
    Scenario {
        name: "initiator",
        shows: "PostgreSQL through qemu's iSCSI initiator on disks that remember by copy-on-write and redirect-on-write: kills that the initiator gets over, and those \
                that it does not outlive; marks; what pgbench does on each",
        rounds: 20,
        run: crate::initiator::run,
    },
    Scenario {
        name: "rewind",
        shows: "PostgreSQL on a file or LUN that is adopted with each placement: DROP TABLE under load, views and clones of instants, a revert and its undoing, a release; kills under \
                load and in each command; every acknowledged transaction is back",
        rounds: 20,
        run: crate::rewind::run,
    },
    Scenario {
        name: "fsx",
        shows: "fsx on an ext4 of a LUN; after a kill e2fsck finds nothing, and fsx goes on",
        rounds: 50,
        run: crate::fsx::run,
    },
    Scenario {
        name: "posix",
        shows: "pjdfstest on the files of a volume finds nothing but what conformance/pjdfstest.txt lists",
        rounds: 1,
        run: crate::files::posix,
    },
    Scenario {
        name: "xfstests",
        shows: "the generic tests of xfstests (the quick ones; in two rounds all) on the files of volumes find nothing but what conformance/xfstests.txt lists",
        rounds: 1,
        run: crate::xfstests::run,
    },
    Scenario {
        name: "files-fsx",
        shows: "fsx on the files of a volume finds nothing, and after a kill of the server it begins anew",
        rounds: 50,
        run: crate::files::exerciser,
    },
    Scenario {
        name: "git",
        shows: "git on the files of a volume: after each kill it has every commit that it acknowledged, and fsck finds nothing",
        rounds: 50,
        run: crate::files::git,
    },
    Scenario {
        name: "build",
        shows: "a build on the files of a volume: after each kill its sources are what they were, and it builds",
        rounds: 20,
        run: crate::files::build,
    },
    Scenario {
        name: "full",
        shows: "a volume that its client fills, and empties again",
        rounds: 10,
        run: crate::full::volume,
    },
    Scenario {
        name: "host-full",
        shows: "the file system under a volume is full before the volume is",
        rounds: 5,
        run: crate::full::host,
    },
    Scenario {
        name: "memory",
        shows: "the memory limit, also with clients that ask for much and take nothing",
        rounds: 3,
        run: crate::crowd::memory,
    },
    Scenario {
        name: "snapshots",
        shows: "10,000 snapshots of a volume in use",
        rounds: 1,
        run: crate::crowd::snapshots,
    },
    Scenario {
        name: "luns",
        shows: "1,000 LUNs: made, listed, exported, opened",
        rounds: 1,
        run: crate::crowd::luns,
    },
    Scenario {
        name: "connections",
        shows: "200 sessions at once, and one too many",
        rounds: 50,
        run: crate::crowd::connections,
    },
    Scenario {
        name: "deaf",
        shows: "clients that stop reading their replies",
        rounds: 10,
        run: crate::rude::deaf,
    },
    Scenario {
        name: "cut",
        shows: "clients that go in the middle of a write",
        rounds: 100,
        run: crate::rude::cut,
    },
    Scenario {
        name: "stalled",
        shows: "a mirror whose other side stalls without breaking the connection",
        rounds: 5,
        run: crate::stalled::run,
    },
];
