//! Crates that one file of another crate may name: its door.

use crate::text::{code_only, has_word};
use crate::{File, Finding};

/// The folder, the crate that it names, and the file that may.
const DOORS: &[(&str, &str, &str)] =
    &[("crates/cli/src/", "cairn_server", "crates/cli/src/commands/serve.rs")];

/// A crate is named by its door alone.
pub fn doors(file: &File) -> Vec<Finding> {
    let code = if file.is_rust() { code_only(&file.text) } else { String::new() };
    let mut findings = Vec::new();
    for (folder, word, door) in DOORS {
        if !file.path.starts_with(folder) || file.path == *door {
            continue;
        }
        for (number, _) in (1..).zip(code.lines()).filter(|(_, line)| has_word(line, word)) {
            findings.push(Finding::new(&file.path, number, format!("`{word}` is named in {door} alone")));
        }
    }
    findings
}
