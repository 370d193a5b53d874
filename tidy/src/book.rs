//! Rules on the book: its summary lists every page, every link and anchor resolves, and each page
//! is short and names its readers.

use std::collections::BTreeSet;

use crate::documents::{link_targets, resolve};
use crate::text::without_fences;
use crate::{File, Finding};

/// The pages of the book, from the root of the repository.
const PAGES: &str = "docs/";

/// The list of the pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Bytes of a page, past which it has more than one purpose.
const PAGE_BYTES_MAX: u64 = 15 << 10;

/// Pages that may be longer, and why.
const LONG_PAGES: &[(&str, &str)] = &[
    ("docs/format.md", "the norm of the disk format: one document, compared with the code"),
    ("docs/reference/commands.md", "generated from the program"),
];

/// Pages that need not begin with their reader, and why.
const WITHOUT_READER: &[(&str, &str)] = &[("docs/format.md", "the norm begins with what it covers")];

/// The summary lists each page once and nothing else.
pub fn summary(files: &[File]) -> Vec<Finding> {
    let Some(summary) = files.iter().find(|file| file.path == SUMMARY) else {
        return vec![Finding::new(SUMMARY, 0, "is missing: it lists the pages of the book")];
    };
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    for (number, target) in link_targets(&summary.text) {
        let page = resolve(SUMMARY, target);
        if !listed.insert(page.clone()) {
            findings.push(Finding::new(SUMMARY, number, format!("lists {page} twice")));
        }
    }
    for page in pages(files).filter(|page| !listed.contains(&page.path)) {
        findings.push(Finding::new(&page.path, 0, format!("is not in {SUMMARY}")));
    }
    findings
}

/// Each page has a maximum size, and its first paragraph names its readers.
pub fn pages_are_short_and_name_their_reader(files: &[File]) -> Vec<Finding> {
    let is_in = |table: &[(&str, &str)], page: &File| table.iter().any(|(path, _)| page.path == *path);
    let mut findings = Vec::new();
    for page in pages(files) {
        if page.length > PAGE_BYTES_MAX && !is_in(LONG_PAGES, page) {
            let message = format!("{} bytes; split it: a page has {PAGE_BYTES_MAX} at most", page.length);
            findings.push(Finding::new(&page.path, 0, message));
        }
        let mut lines = page.text.lines().filter(|line| !line.trim().is_empty());
        let title = lines.next().unwrap_or_default();
        let first = lines.next().unwrap_or_default();
        if !title.starts_with("# ") {
            findings.push(Finding::new(&page.path, 1, "open with a title"));
        }
        if !first.starts_with("For ") && !is_in(WITHOUT_READER, page) {
            findings.push(Finding::new(&page.path, 3, "begin with the reader: `For administrators ...`"));
        }
    }
    findings
}

/// Every anchor of a link is a heading of the page that it leads to.
pub fn anchors(document: &File, files: &[File]) -> Vec<Finding> {
    if !document.path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, target) in link_targets(&document.text) {
        let Some((path, anchor)) = target.split_once('#') else { continue };
        if target.contains("://") {
            continue;
        }
        let page = if path.is_empty() { document.path.clone() } else { resolve(&document.path, path) };
        // Another rule reports a broken path.
        let Some(page) = files.iter().find(|file| file.path == page) else { continue };
        if page.path.ends_with(".md") && !headings(&page.text).any(|heading| heading == anchor) {
            let message = format!("`{target}`: {} has no heading `#{anchor}`", page.path);
            findings.push(Finding::new(&document.path, number, message));
        }
    }
    findings
}

fn pages(files: &[File]) -> impl Iterator<Item = &File> {
    files
        .iter()
        .filter(|file| file.path.starts_with(PAGES) && file.path.ends_with(".md") && file.path != SUMMARY)
}

/// The anchors of a page, as mdBook and GitHub make them of its headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    without_fences(text).filter_map(|(_, line)| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len() && heading.starts_with(' ')).then(|| slug(heading.trim()))
    })
}

fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}
