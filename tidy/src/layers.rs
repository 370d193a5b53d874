//! Imports point down: the table of the order of crates.

use crate::Finding;

/// From the command line down to the words that all use. A crate imports only crates of later rows;
/// two crates of one row do not know each other. The folders are the architecture, so a new crate
/// means a new entry here.
pub const LAYERS: &[&[&str]] = &[
    &["sim", "suite", "tidy", "bench", "conformance", "fuzz/targets"],
    &["crates/cli"],
    &["crates/server"],
    &["crates/web", "crates/csi"],
    &["crates/api"],
    &["crates/frontend/nbd", "crates/frontend/iscsi", "crates/frontend/fuse", "crates/frontend/nfs"],
    &["crates/frontend/session", "crates/frontend/fuse-ring"],
    &["crates/mirror"],
    &["crates/oidc"],
    &["crates/bucket", "crates/notify"],
    &["crates/bsddump"],
    &["crates/stream"],
    &["crates/trace"],
    &["crates/files"],
    &["crates/volume"],
    &["crates/history"],
    &["crates/proto/nbd", "crates/proto/iscsi", "crates/proto/nfs", "crates/proto/csi"],
    &["crates/format"],
    &["crates/device"],
    &["crates/base"],
];

/// A member of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// As in its manifest.
    pub name: String,
    /// From the root of the repository.
    pub folder: String,
    /// Direct dependencies inside the workspace, and whether only tests have them.
    pub ours: Vec<(String, bool)>,
    /// Direct dependencies from elsewhere, of every kind.
    pub foreign: Vec<String>,
}

/// Every package has a place in the table and imports only packages below it. Tests may look up (a
/// suite of a lower layer run on a higher one), but never at packages beside the path.
pub fn layers(packages: &[Package]) -> Vec<Finding> {
    let row = |folder: &str| LAYERS.iter().position(|row| row.contains(&folder));
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let Some(own) = row(&package.folder) else {
            findings.push(Finding::new(&manifest, 0, "has no place in LAYERS of tidy/src/layers.rs"));
            continue;
        };
        for (name, for_tests) in &package.ours {
            let Some(other) = packages.iter().find(|other| other.name == *name) else { continue };
            let below = row(&other.folder).is_some_and(|other| other > own || (*for_tests && other > 0));
            if !below && other.name != package.name {
                let message = format!("imports {name}, which does not lie below it: imports point down");
                findings.push(Finding::new(&manifest, 0, message));
            }
        }
    }
    findings
}
