//! Rules on Rust text: the head of a file, its length, words that mean "not finished", `unsafe`,
//! and real time, threads and randomness outside the layers that own them.

use crate::text::{code_only, has_word};
use crate::{File, Finding};

/// Lines of code that are not tests, past which a file has more than one concept.
const LINES_MAX: usize = 1000;

/// Words that mark unfinished code. Written apart so that this file does not contain them.
pub(crate) const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
    concat!("db", "g!"),
];

/// The folders with code that the compiler does not check.
const UNCHECKED_FOLDERS: &[&str] = &["crates/device/", "crates/frontend/fuse-ring/"];

/// The places where the program meets the machine: these own the threads and read the clock.
const EDGES: &[&str] = &[
    "crates/device/",
    "crates/server/",
    "crates/cli/",
    "crates/csi/",
    "crates/frontend/",
    "bench/",
    "conformance/",
    "fuzz/",
    "suite/",
    "tidy/",
    "sim/src/main.rs",
];

/// Things that the engine must get from its caller instead of the machine, so that the simulator
/// can replace them.
pub(crate) const FROM_THE_MACHINE: &[(&str, &str)] = &[
    (concat!("SystemTime::", "now"), "take a `cairn_base::Clock` as a parameter"),
    (concat!("Instant::", "now"), "take a `cairn_base::Clock` as a parameter"),
    (concat!("thread::", "spawn"), "be called by the caller's threads; the server owns the threads"),
    (concat!("thread::", "Builder"), "be called by the caller's threads; the server owns the threads"),
    (concat!("thread::", "scope"), "be called by the caller's threads; the server owns the threads"),
    (concat!("thread::", "sleep"), "wait on a condition with a limit that the caller gives"),
    (concat!("rand::", "rng"), "take a `cairn_base::Rng` as a parameter"),
    (concat!("thread_", "rng"), "take a `cairn_base::Rng` as a parameter"),
];

/// Columns of a line of comment. Tables and code in comments may be wider.
const COMMENT_COLUMNS_MAX: usize = 100;

/// The lines of comment that are too wide.
fn wide_comments(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let text = comment.trim_start_matches(['/', '!']).trim_start();
        in_code ^= text.starts_with("```");
        let columns = line.chars().count();
        // A string over several lines may look like a comment.
        let is_apart = in_code || text.starts_with('|') || line.ends_with('\\');
        if columns > COMMENT_COLUMNS_MAX && !is_apart {
            let message = format!("a comment of {columns} columns; wrap it at {COMMENT_COLUMNS_MAX}");
            findings.push(Finding::new(&file.path, number, message));
        }
    }
    findings
}

/// Runs every rule on one Rust file.
pub fn source(file: &File) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut findings = wide_comments(file);
    let code = code_only(&file.text);
    let product = if file.is_test() { 0 } else { product_lines(&code) };
    if !file.is_test() {
        if !file.text.starts_with("//!") {
            findings.push(Finding::new(
                &file.path,
                1,
                "open with `//!`: what the file is, and its invariants",
            ));
        }
        if product > LINES_MAX {
            let message = format!("{product} lines of code that are no tests; split at {LINES_MAX}");
            findings.push(Finding::new(&file.path, 0, message));
        }
    }
    for (number, line) in (1..).zip(file.text.lines()) {
        for word in UNFINISHED {
            if has_word(line, word.trim_end_matches('!')) && line.contains(word) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{word}`: finish it, or leave it out"),
                ));
            }
        }
    }
    let is_unchecked = UNCHECKED_FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    let at_an_edge = EDGES.iter().any(|folder| file.path.starts_with(folder));
    for (number, line) in (1..).zip(code.lines()) {
        if !is_unchecked && has_word(line, concat!("un", "safe")) {
            let advice = "unchecked code lives only in crates/device and crates/frontend/fuse-ring";
            findings.push(Finding::new(&file.path, number, advice));
        }
        if at_an_edge || number > product {
            continue;
        }
        for (text, instead) in FROM_THE_MACHINE {
            if has_word(line, text) {
                findings.push(Finding::new(&file.path, number, format!("`{text}` here: {instead}")));
            }
        }
    }
    findings
}

/// Lines up to the first inline module of tests; all if there is none.
pub(crate) fn product_lines(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod ") && pair[1].contains('{')
    });
    tests.unwrap_or(lines.len())
}
