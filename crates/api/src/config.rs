//! Objects about configuration files, of `cairn config check --json`.

use std::path::PathBuf;

use serde::Serialize;

/// What is wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigFinding {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// The setting, if it is about one.
    pub key: Option<String>,
    /// What is wrong, in one sentence.
    pub message: String,
    /// What was probably meant, as it would stand in the file.
    pub meant: Option<String>,
}

/// A setting that a later file has with another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overridden {
    /// The setting.
    pub key: String,
    /// Where it was said first.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// As it stands there.
    pub value: String,
    /// The file that is later, and so holds.
    pub by_path: PathBuf,
    /// From 1.
    pub by_line: usize,
    /// As it stands there.
    pub by_value: String,
}

/// What a look at a configuration found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfigCheck {
    /// The files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// What is wrong; a server does not start on it.
    pub findings: Vec<ConfigFinding>,
    /// What is said twice with different values.
    pub overridden: Vec<Overridden>,
}
