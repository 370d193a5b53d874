//! Objects about configuration files, of `cairn config check --json`.

use std::path::PathBuf;

use serde::Serialize;

/// A fault in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigFinding {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// The setting, if it is about one.
    pub key: Option<String>,
    /// The fault, in one sentence.
    pub message: String,
    /// The probably intended line, as it would be in the file.
    pub meant: Option<String>,
}

/// A setting that a later file has with another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overridden {
    /// The setting.
    pub key: String,
    /// The file that set it first.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// As written there.
    pub value: String,
    /// The file that is later, and so holds.
    pub by_path: PathBuf,
    /// From 1.
    pub by_line: usize,
    /// As written there.
    pub by_value: String,
}

/// The result of a check of a configuration.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfigCheck {
    /// The files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Faults; a server does not start with any.
    pub findings: Vec<ConfigFinding>,
    /// Settings with different values in two places.
    pub overridden: Vec<Overridden>,
}
