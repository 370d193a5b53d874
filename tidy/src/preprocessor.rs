//! A preprocessor of mdBook: it gives the book its pages from outside of `docs`, and mends links
//! that leave the book.
//!
//! mdBook calls `cairn-tidy book` with the book as JSON on standard input, and reads the changed
//! one from standard output. The links of the documents are right in a checkout, where they may
//! lead to code. A book has no code: such a link leads to the repository if `source` in `book.toml`
//! is its address, and becomes a text that shows the path under the mouse otherwise.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::documents::resolve;

/// The folder of the pages.
const PAGES: &str = "docs";

/// Pages whose text is a document at the root of the repository.
const FROM_THE_ROOT: &[(&str, &str)] = &[
    ("docs/architecture.md", "ARCHITECTURE.md"),
    ("docs/development/contributing.md", "CONTRIBUTING.md"),
    ("docs/reference/changes.md", "CHANGELOG.md"),
];

/// Reads a book from standard input and writes it, changed, to standard output.
pub fn preprocess(read: impl Fn(&str) -> Result<String>) -> Result<()> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let value: Value = serde_json::from_str(&input).context("standard input is no book of mdBook")?;
    let source = value[0]["config"]["preprocessor"]["repository"]["source"].as_str().map(str::to_owned);
    let mut book = value[1].clone();
    change(&mut book, &read, source.as_deref())?;
    writeln!(std::io::stdout(), "{book}")?;
    Ok(())
}

/// Changes every chapter below `value`.
fn change(value: &mut Value, read: &impl Fn(&str) -> Result<String>, source: Option<&str>) -> Result<()> {
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| change(item, read, source)),
        Value::Object(fields) => {
            let page = fields.get("path").and_then(Value::as_str).map(|path| format!("{PAGES}/{path}"));
            if let (Some(page), Some(Value::String(content))) = (page, fields.get_mut("content")) {
                let root = FROM_THE_ROOT.iter().find(|(stub, _)| *stub == page);
                let (document, text) = match root {
                    Some((_, document)) => (*document, read(document)?),
                    None => (page.as_str(), content.clone()),
                };
                *content = mend_links(&text, document, &page, source);
            }
            fields.values_mut().try_for_each(|field| change(field, read, source))
        }
        _ => Ok(()),
    }
}

/// The text of `document`, with its links as `page` of the book needs them.
pub fn mend_links(text: &str, document: &str, page: &str, source: Option<&str>) -> String {
    let from_the_root: BTreeMap<&str, &str> =
        FROM_THE_ROOT.iter().map(|(stub, document)| (*document, *stub)).collect();
    let mut out = String::new();
    // Every second part is inside of a code fence.
    for (index, part) in text.split_inclusive("\n```").enumerate() {
        if index % 2 == 1 {
            out.push_str(part);
            continue;
        }
        let mut rest = part;
        while let Some((before, after)) = rest.split_once("](") {
            let Some((target, tail)) = after.split_once(')') else { break };
            let (path, anchor) = target.split_once('#').map_or((target, ""), |(path, anchor)| (path, anchor));
            out.push_str(before);
            rest = tail;
            if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                out.push_str(&format!("]({target})"));
                continue;
            }
            let resolved = resolve(document, path);
            let resolved = from_the_root.get(resolved.as_str()).map_or(resolved.as_str(), |stub| stub);
            let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
            match (resolved.strip_prefix("docs/"), source, out.rfind('[')) {
                (Some(_), ..) => out.push_str(&format!("]({}{anchor})", relative(page, resolved))),
                (None, Some(source), _) => out.push_str(&format!("]({source}/{resolved}{anchor})")),
                (None, None, Some(label)) => {
                    let words = out.split_off(label).split_off(1);
                    out.push_str(&format!("<span title=\"{resolved}\">{words}</span>"));
                }
                (None, None, None) => out.push_str(&format!("]({target})")),
            }
        }
        out.push_str(rest);
    }
    out
}

/// `target` as seen from `page`, both from the root of the repository.
fn relative(page: &str, target: &str) -> String {
    let folder: Vec<&str> = page.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect();
    let parts: Vec<&str> = target.split('/').collect();
    let shared = folder.iter().zip(&parts).take_while(|(left, right)| left == right).count();
    let up = std::iter::repeat_n("..", folder.len() - shared);
    up.chain(parts[shared..].iter().copied()).collect::<Vec<_>>().join("/")
}
