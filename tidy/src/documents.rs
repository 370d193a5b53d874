//! Rules on the documents: named things must exist, and existing ones must be named.

use std::collections::BTreeSet;

use crate::text::{backticked, cells, is_rule, without_fences};
use crate::{File, Finding, Package};

/// Lines of README that fit a screen.
const SCREEN_LINES: usize = 40;

/// The commands that README's first screen must show.
const FIRST_COMMANDS: &[&str] = &["cargo run --release -- demo", "./test"];

/// Every relative link of a Markdown file leads to a file or folder of the repository.
pub fn links(document: &File, files: &[File]) -> Vec<Finding> {
    if !document.path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, target) in link_targets(&document.text) {
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let resolved = resolve(&document.path, path);
        let leads_somewhere =
            files.iter().any(|file| file.path == resolved || file.path.starts_with(&format!("{resolved}/")));
        if !leads_somewhere {
            findings.push(Finding::new(&document.path, number, format!("`{target}` leads nowhere")));
        }
    }
    findings
}

/// Where the links of a Markdown text lead, with their lines.
pub(crate) fn link_targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    without_fences(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.map(move |target| (number, target))
    })
}

/// `link` as seen from `document`, without `.` and `..`.
pub(crate) fn resolve(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// README's first screen: a title, one sentence, one picture, the two commands.
pub fn readme(readme: &File) -> Vec<Finding> {
    let screen: Vec<&str> = readme.text.lines().take(SCREEN_LINES).collect();
    let mut findings = Vec::new();
    let mut demand = |holds: bool, message: &str| {
        if !holds {
            findings.push(Finding::new(&readme.path, 1, format!("the first screen needs {message}")));
        }
    };
    demand(screen.first().is_some_and(|line| line.starts_with("# ")), "a title on its first line");
    let sentence = screen.iter().skip(1).find(|line| !line.trim().is_empty());
    let is_prose = |line: &&&str| line.chars().next().is_some_and(char::is_alphabetic);
    demand(sentence.filter(is_prose).is_some(), "one sentence after the title");
    let fences = screen.iter().filter(|line| line.starts_with("```")).count();
    demand(fences >= 2, "a picture in a code fence");
    for command in FIRST_COMMANDS {
        demand(screen.iter().any(|line| line.contains(command)), &format!("the command `{command}`"));
    }
    findings
}

/// ARCHITECTURE.md links to the folder of every crate.
pub fn architecture_names_every_crate(document: &File, packages: &[Package]) -> Vec<Finding> {
    packages
        .iter()
        .filter(|package| !document.text.contains(&format!("]({}", package.folder)))
        .map(|package| Finding::new(&document.path, 0, format!("has no link to {}", package.folder)))
        .collect()
}

/// docs/dependencies.md has a table row for every direct dependency, and none for a removed one.
pub fn dependencies(document: &File, packages: &[Package]) -> Vec<Finding> {
    let used: BTreeSet<&str> =
        packages.iter().flat_map(|package| package.foreign.iter().map(String::as_str)).collect();
    let mut findings = Vec::new();
    let mut described = BTreeSet::new();
    for (number, line) in (1..).zip(document.text.lines()) {
        let Some(cells) = cells(line) else { continue };
        for name in cells.first().into_iter().flat_map(|cell| backticked(cell)) {
            described.insert(name);
            if !used.contains(name) {
                let message = format!("`{name}` is described here, but nothing depends on it");
                findings.push(Finding::new(&document.path, number, message));
            }
        }
    }
    for name in used.difference(&described) {
        let message = format!("`{name}` has no line: what it saves, and what was considered instead");
        findings.push(Finding::new(&document.path, 0, message));
    }
    findings
}

/// In each table whose last column is headed by a word with "test", every row names a test there,
/// and every test named exists.
pub fn guarantees(document: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tables = 0;
    let mut lines = (1..).zip(document.text.lines()).peekable();
    while let Some((_, line)) = lines.next() {
        let Some(head) = cells(line) else { continue };
        let with_tests = head.last().is_some_and(|cell| cell.to_lowercase().contains("test"));
        tables += usize::from(with_tests);
        while let Some((number, row)) = lines.next_if(|(_, line)| cells(line).is_some()) {
            let row = cells(row).unwrap_or_default();
            if !with_tests || is_rule(&row) {
                continue;
            }
            let named: Vec<&str> = row.last().into_iter().flat_map(|cell| backticked(cell)).collect();
            if named.is_empty() {
                findings.push(Finding::new(&document.path, number, "a promise without the name of its test"));
            }
            for name in named.into_iter().filter(|name| !has_test(files, name)) {
                findings.push(Finding::new(&document.path, number, format!("no test is called `{name}`")));
            }
        }
    }
    if tables == 0 {
        findings.push(Finding::new(&document.path, 0, "has no table whose last column names tests"));
    }
    findings
}

/// Whether a Rust file has a test function of this name; of `a::b::name` the last part counts.
fn has_test(files: &[File], name: &str) -> bool {
    let function = format!("fn {}(", name.rsplit("::").next().unwrap_or(name));
    files.iter().filter(|file| file.is_rust()).any(|file| {
        let lines: Vec<&str> = file.text.lines().collect();
        lines.iter().enumerate().any(|(index, line)| {
            let attributes = lines[..index].iter().rev().take_while(|line| {
                let line = line.trim();
                line.starts_with("#[") || line.starts_with("//")
            });
            line.contains(&function) && attributes.into_iter().any(|line| line.contains("test"))
        })
    })
}
