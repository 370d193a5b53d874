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
    /// Whether it may run `cairn`: an integration test of a package that is not one of
    /// [`SERVE_THEMSELVES`].
    pub runs_cairn: bool,
}

/// Packages whose integration tests start their servers as threads.
const SERVE_THEMSELVES: &[&str] =
    &["cairn-frontend-nbd", "cairn-frontend-iscsi", "cairn-history", "cairn-stream", "cairn-bucket"];

/// A message of cargo that a program is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Built {
    /// A test program.
    Test(Program),
    /// The program `cairn`.
    Cairn,
}

/// One line of cargo's messages. Other messages and other lines are ignored.
pub fn parse(line: &str) -> Option<Built> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str()?;
    let target = message["target"]["name"].as_str()?;
    if !is_test {
        return (target == "cairn").then_some(Built::Cairn);
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = package_name(message["package_id"].as_str()?);
    let kinds = message["target"]["kind"].as_array()?;
    Some(Built::Test(Program {
        name: format!("{package} {target}"),
        executable: executable.into(),
        folder,
        runs_cairn: kinds.iter().any(|kind| kind == "test") && !SERVE_THEMSELVES.contains(&package),
    }))
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
