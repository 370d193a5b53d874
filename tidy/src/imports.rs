//! Rules on imports between the files of a crate: no large circles, and one door to the server.
//!
//! An arrow leads from a file to the file that defines what the first one names, by `use` or by a
//! path in its code. A re-export is followed to the definition. `mod` is no arrow, and tests have
//! none. Files in a circle reach each other along arrows: nobody can read one without the others.
//!
//! `Server` of `crates/server` holds every room, and its methods stand in `impl Server` blocks of
//! the rooms. It gets no exemption: a file with such a block imports `daemon/server.rs`, so no file
//! that the server needs may import that one. Such blocks have files of their own, `commands.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::{code_only, has_word};
use crate::{File, Finding};

/// Folders of crates, and how many files one circle in them has at most.
const CIRCLES: &[(&str, usize)] = &[("crates/server/src/", 4)];

/// Crates that one file of another crate may name, and no other file of it.
const DOORS: &[(&str, &str, &str)] =
    &[("crates/cli/src/", "cairn_server", "crates/cli/src/commands/serve.rs")];

/// Where a module stands in its crate: the names on the way to it.
type Module = Vec<String>;

/// What a file imports.
#[derive(Default)]
struct Imports {
    /// Paths from the root of the crate.
    named: BTreeSet<Vec<String>>,
    /// Names that others can import from here, with the paths that they stand for.
    passed_on: BTreeMap<String, Vec<String>>,
}

/// Circles of imports that have too many files.
pub fn circles(files: &[File]) -> Vec<Finding> {
    CIRCLES.iter().flat_map(|(folder, files_max)| circles_in(files, folder, *files_max)).collect()
}

fn circles_in(files: &[File], folder: &str, files_max: usize) -> Vec<Finding> {
    let too_large = |circle: &BTreeSet<String>| circle.len() > files_max;
    let finding = |circle: BTreeSet<String>| {
        let all: Vec<&str> = circle.iter().map(String::as_str).collect();
        let message = format!(
            "{} files import each other in a circle, and {files_max} may: {}; move what both sides need to a file that imports neither",
            circle.len(),
            all.join(", ")
        );
        Finding::new(&format!("{folder}{}", all[0]), 0, message)
    };
    circles_of(files, folder).into_iter().filter(too_large).map(finding).collect()
}

/// The circles of more than one file among the files of a crate, the largest first.
pub fn circles_of(files: &[File], folder: &str) -> Vec<BTreeSet<String>> {
    let product = |file: &&File| file.is_rust() && !file.is_test() && file.path.starts_with(folder);
    let files: BTreeMap<Module, (&str, String)> = files
        .iter()
        .filter(product)
        .map(|file| {
            (module(&file.path[folder.len()..]), (&file.path[folder.len()..], product_code(&file.text)))
        })
        .collect();
    let modules: BTreeSet<&Module> = files.keys().collect();
    let imports: BTreeMap<&Module, Imports> =
        files.iter().map(|(module, (_, code))| (module, imports(module, code, &modules))).collect();
    let arrows: BTreeMap<&Module, BTreeSet<&Module>> = imports
        .iter()
        .map(|(module, found)| {
            let targets = found.named.iter().filter_map(|path| definition(path, &imports, 0));
            // What the root of a crate has is passed on by it.
            (*module, targets.filter(|target| target != module && !target.is_empty()).collect())
        })
        .collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        arrows.keys().map(|module| (*module, reached_from(module, &arrows))).collect();
    let circle = |module: &&Module| {
        let back = |other: &&&Module| reached.get(**other).is_some_and(|of_other| of_other.contains(module));
        reached.get(module).into_iter().flatten().filter(back).copied().collect::<BTreeSet<_>>()
    };
    let circles: BTreeSet<BTreeSet<&Module>> = arrows.keys().map(circle).filter(|it| it.len() > 1).collect();
    let paths = |circle: BTreeSet<&Module>| {
        circle
            .into_iter()
            .filter_map(|module| files.get(module))
            .map(|(path, _)| (*path).to_owned())
            .collect()
    };
    let mut circles: Vec<BTreeSet<String>> = circles.into_iter().map(paths).collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// A crate is named where it may be.
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

/// The module of a file.
fn module(path: &str) -> Module {
    let mut names: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|last| last == "mod" || last == "lib") {
        names.pop();
    }
    names
}

/// The code of a file without prose, and without its tests.
fn product_code(text: &str) -> String {
    let mut code = code_only(text);
    if let Some(tests) = code.find("#[cfg(test)]\nmod tests {") {
        code.truncate(tests);
    }
    code
}

fn imports(module: &Module, code: &str, modules: &BTreeSet<&Module>) -> Imports {
    let (statements, rest) = use_statements(code);
    let mut found = Imports::default();
    for (is_passed_on, tree) in statements {
        for (path, name) in expanded(&tree) {
            let Some(path) = from_root(&path, module, modules) else { continue };
            if is_passed_on {
                found.passed_on.insert(name.clone(), path.clone());
            }
            if !is_passed_on || rest.lines().any(|line| has_word(line, &name)) {
                found.named.insert(path);
            }
        }
    }
    found.named.extend(paths_in(&rest).iter().filter_map(|path| from_root(path, module, modules)));
    found
}

/// The `use` statements of some code, each with whether others can import by it; and the code without them.
fn use_statements(code: &str) -> (Vec<(bool, String)>, String) {
    let (mut statements, mut rest) = (Vec::new(), String::new());
    let mut left = code;
    while !left.is_empty() {
        let line = left.split_inclusive('\n').next().unwrap_or(left);
        let start = line.trim_start();
        let visibility = start.strip_prefix("pub").map(|after| match after.strip_prefix('(') {
            Some(inside) => inside.split_once(')').map_or("", |(_, after)| after),
            None => after,
        });
        match visibility.unwrap_or(start).trim_start().strip_prefix("use ") {
            Some(tree) => {
                let at = line.len() - tree.len();
                let length = left[at..].find(';').unwrap_or(left.len() - at);
                statements.push((visibility.is_some(), left[at..at + length].to_owned()));
                left = left.get(at + length + 1..).unwrap_or_default();
            }
            None => {
                rest.push_str(line);
                left = &left[line.len()..];
            }
        }
    }
    (statements, rest)
}

/// The paths of a tree of imports, each with the name that it gets.
fn expanded(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    let Some((prefix, inside)) = tree.split_once('{') else {
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim().to_owned())),
            None => (tree, None),
        };
        let mut names: Vec<String> = path.split("::").map(|name| name.trim().to_owned()).collect();
        if names.len() > 1 && names.last().is_some_and(|last| last == "self") {
            names.pop();
        }
        let name = alias.or_else(|| names.last().cloned()).unwrap_or_default();
        return vec![(names, name)];
    };
    let mut before: Vec<String> = prefix.split("::").map(|name| name.trim().to_owned()).collect();
    before.retain(|name| !name.is_empty());
    let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for character in inside.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match (character, depth) {
            (',', 0) => parts.push(String::new()),
            _ => parts.last_mut().expect("there is a part").push(character),
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    let whole = |part: &String| {
        let of_part = expanded(part).into_iter();
        let own = before.clone();
        of_part
            .map(move |(path, name)| {
                let is_self = path.len() == 1 && path[0] == "self";
                let name =
                    if is_self && name == "self" { own.last().cloned().unwrap_or_default() } else { name };
                let rest = if is_self { Vec::new() } else { path };
                (own.iter().cloned().chain(rest).collect(), name)
            })
            .collect::<Vec<_>>()
    };
    parts.flat_map(whole).collect()
}

/// The paths of two names or more in some code.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let wordlike = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    let words = code.split(|character: char| !wordlike(character)).filter(|word| word.contains("::"));
    words
        .map(|word| {
            word.split("::").take_while(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|path| path.len() > 1)
        .collect()
}

/// A path from the root of the crate; none of one that leads to another crate, or is no path of modules.
fn from_root(path: &[String], module: &Module, modules: &BTreeSet<&Module>) -> Option<Vec<String>> {
    let joined =
        |base: &[String], rest: &[String]| -> Vec<String> { base.iter().chain(rest).cloned().collect() };
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(joined(module, &path[1..])),
        "super" => {
            let up = path.iter().take_while(|name| *name == "super").count();
            Some(joined(module.get(..module.len().checked_sub(up)?)?, &path[up..]))
        }
        _ => {
            let child = joined(module, &path[..1]);
            modules.contains(&child).then(|| joined(module, path))
        }
    }
}

/// The module that defines what a path names.
fn definition<'a>(
    path: &[String],
    imports: &BTreeMap<&'a Module, Imports>,
    passed: usize,
) -> Option<&'a Module> {
    let length = (0..=path.len()).rev().find(|length| imports.contains_key(&path[..*length].to_vec()))?;
    let (module, found) = imports.get_key_value(&path[..length].to_vec())?;
    let passed_on = path.get(length).and_then(|name| found.passed_on.get(name));
    match passed_on {
        // A path that comes back to itself is none.
        Some(next) if passed < 8 => {
            let whole: Vec<String> = next.iter().chain(&path[length + 1..]).cloned().collect();
            definition(&whole, imports, passed + 1)
        }
        _ => Some(module),
    }
}

/// All modules that arrows lead to from one.
fn reached_from<'a>(
    module: &'a Module,
    arrows: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        for target in arrows.get(module).into_iter().flatten() {
            if reached.insert(*target) {
                next.push(target);
            }
        }
    }
    reached
}
