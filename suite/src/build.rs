//! Test programs as cargo reports them: one JSON message a line.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// `PACKAGE TARGET`, such as `cairn-cli mirrors`.
    pub name: String,
    /// The file to run.
    pub executable: PathBuf,
    /// The folder of its package. Cargo runs tests there, so they rely on it.
    pub folder: PathBuf,
    /// Whether it may run other programs of the workspace: an integration test of a package that is
    /// not one of [`SERVE_THEMSELVES`].
    pub runs_others: bool,
}

/// Packages whose integration tests start their servers as threads.
const SERVE_THEMSELVES: &[&str] =
    &["cairn-frontend-nbd", "cairn-frontend-iscsi", "cairn-history", "cairn-stream", "cairn-bucket"];

/// The test program in one line of cargo's messages. Other messages and other lines have none.
pub fn parse(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let package = package_name(message["package_id"].as_str()?);
    let kinds = message["target"]["kind"].as_array()?;
    Some(Program {
        name: format!("{package} {target}"),
        executable: executable.into(),
        folder,
        runs_others: kinds.iter().any(|kind| kind == "test") && !SERVE_THEMSELVES.contains(&package),
    })
}

/// The name in a package id: `path+file:///a/crates/cli#cairn-cli@0.1.0`, or `...crates/cli#0.1.0`
/// when the folder has the name of the package.
fn package_name(id: &str) -> &str {
    let (place, rest) = id.split_once('#').unwrap_or((id, id));
    match rest.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}
