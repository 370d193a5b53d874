//! The index of tests: each test of the repository by crate, with the first sentence of its
//! document.

use std::collections::BTreeMap;

use crate::{File, Package};

/// A test, and the first sentence of its doc comment if it has one.
pub type Test = (String, Option<String>);

/// The tests of each folder of a package.
pub fn tests(files: &[File], packages: &[Package]) -> BTreeMap<String, Vec<Test>> {
    let mut index: BTreeMap<String, Vec<Test>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let is_of = |package: &&Package| file.path.starts_with(&format!("{}/", package.folder));
        // A package can be inside the folder of another one.
        let package = packages.iter().filter(is_of).max_by_key(|package| package.folder.len());
        let Some(package) = package else { continue };
        let found = tests_of(&file.text);
        if !found.is_empty() {
            index.entry(package.folder.clone()).or_default().extend(found);
        }
    }
    index.values_mut().for_each(|tests| tests.sort());
    index
}

/// The functions with an attribute that ends in `test`.
fn tests_of(text: &str) -> Vec<Test> {
    let mut found = Vec::new();
    let mut is_test = false;
    let mut document = None;
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            document.get_or_insert_with(|| comment.trim().to_owned());
        } else if let Some(attribute) = line.strip_prefix("#[") {
            is_test |= attribute.split([']', '(']).next().is_some_and(|name| name.ends_with("test"));
        } else if !line.starts_with("//") {
            if let Some((_, function)) = line.split_once("fn ").filter(|_| is_test) {
                let name = function.split(['(', '<']).next().unwrap_or_default();
                let sentence = document.take().map(|text: String| first_sentence(&text));
                found.push((name.to_owned(), sentence));
            }
            (is_test, document) = (false, None);
        }
    }
    found
}

fn first_sentence(text: &str) -> String {
    text.split_once(". ").map_or(text, |(sentence, _)| sentence).trim_end_matches('.').to_owned()
}
