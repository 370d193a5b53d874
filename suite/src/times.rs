//! How long each program took, to start the slowest first.
//!
//! A run leaves its times in the target folder. A fresh checkout has none, so the slowest programs
//! at the time of writing are listed here. A wrong order only costs time.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Program;

/// The slowest programs, with seconds.
const SLOWEST: &[(&str, u64)] = &[
    ("cairn-cli rewinds", 170),
    ("cairn-sim cairn_sim", 165),
    ("cairn-conformance killed", 140),
    ("cairn-volume cairn_volume", 100),
    ("cairn-mirror cairn_mirror", 70),
    ("cairn-server cairn_server", 60),
    ("cairn-fuzz short_runs", 60),
    ("cairn-cli csi", 52),
    ("cairn-cli mounts", 48),
    ("cairn-cli hanging", 43),
    ("cairn-cli backups", 42),
    ("cairn-frontend-iscsi libiscsi", 40),
    ("cairn-cli damaged_state", 38),
    ("cairn-cli roles", 37),
    ("cairn-cli groups", 37),
    ("cairn-cli buckets", 35),
    ("cairn-conformance pressed", 34),
    ("cairn-cli scrubs", 33),
    ("cairn-cli histories", 33),
    ("cairn-cli links", 30),
    ("cairn-cli restores", 30),
    ("cairn-cli resumed_dumps", 30),
    ("cairn-stream cairn_stream", 30),
    ("cairn-frontend-nbd waiting", 30),
    ("cairn-cli group_roles", 29),
    ("cairn-cli mirrors", 27),
    ("cairn-cli images", 25),
    ("cairn-history cairn_history", 25),
    ("cairn-cli dumps", 23),
    ("cairn-cli devices", 21),
    ("cairn-cli continuous", 20),
];

/// Seconds of an unknown program.
const UNKNOWN_SECONDS: u64 = 5;

/// Seconds by the name of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times(BTreeMap<String, u64>);

impl Times {
    /// The times that a run left in `file`. A file that is missing or damaged counts as empty.
    pub fn load(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Leaves the times for the next run. Best effort: they only decide an order.
    pub fn save(&self, file: &Path) {
        if let Ok(text) = serde_json::to_string_pretty(&self.0) {
            std::fs::write(file, text).ok();
        }
    }

    /// Notes that a program took `seconds`.
    pub fn note(&mut self, name: &str, seconds: u64) {
        self.0.insert(name.to_owned(), seconds);
    }

    fn seconds(&self, name: &str) -> u64 {
        let listed = || SLOWEST.iter().find(|(slow, _)| *slow == name).map(|(_, seconds)| *seconds);
        self.0.get(name).copied().or_else(listed).unwrap_or(UNKNOWN_SECONDS)
    }

    /// Sorts programs by time, the fastest first: a run takes them from the end.
    pub fn sort(&self, programs: &mut [Program]) {
        programs.sort_by_key(|program| (self.seconds(&program.name), program.name.clone()));
    }
}
