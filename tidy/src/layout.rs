//! Rules on folders and files as such.

use crate::{File, Finding};

/// Folders named after a kind of code and not after its subject.
const KINDS: &[&str] = &["utils", "util", "common", "helpers", "helper", "types", "misc", "shared"];

/// Bytes past which a file does not belong into the history.
const LENGTH_MAX: u64 = 5 << 20;

/// No folder or module is named after a kind, and no file is large.
pub fn layout(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let named_after_kind =
        file.path.split('/').find(|part| KINDS.contains(&part.strip_suffix(".rs").unwrap_or(part)));
    if let Some(part) = named_after_kind {
        let message = format!("`{part}` names a kind; name the layer or the concept");
        findings.push(Finding::new(&file.path, 0, message));
    }
    if file.length > LENGTH_MAX {
        let message = format!("{} bytes; nothing over {LENGTH_MAX} is tracked", file.length);
        findings.push(Finding::new(&file.path, 0, message));
    }
    findings
}
