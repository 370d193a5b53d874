//! Files of a crate that import each other in a circle: a reader of one has to know all of them.
//!
//! An import is a `use` of a path in the crate, or such a path in the code. A name that another
//! module re-exports counts as an import of the file that has it. Tests do not count, nor does the
//! root of a crate, which re-exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::source::product_lines;
use crate::text::code_only;
use crate::{File, Finding, Package};

/// Files that a circle may have.
const LARGEST: usize = 4;

/// Crates that have a larger circle. The numbers must only fall.
const LARGER: &[(&str, usize)] = &[
    ("crates/server", 4),
    ("crates/history", 13),
    ("crates/files", 8),
    ("crates/cli", 7),
    ("crates/frontend/iscsi", 7),
    ("fuzz/targets", 6),
];

/// The path of a module from the root of its crate.
type Module = Vec<String>;

/// Every crate has no larger circle of imports than it may.
pub fn import_circles(packages: &[Package], files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let folder = package.folder.as_str();
        let larger = LARGER.iter().find(|(name, _)| *name == folder);
        let most = larger.map_or(LARGEST, |(_, most)| *most);
        for circle in circles(folder, files).into_iter().filter(|circle| circle.len() > most) {
            let names: Vec<String> = circle.iter().map(|path| path.display().to_string()).collect();
            let message = format!(
                "{} files import each other in a circle, and {most} may: {}",
                names.len(),
                names.join(", ")
            );
            findings.push(Finding::new(folder, 0, message));
        }
    }
    findings
}

/// The circles of imports in the crate in `folder`, the largest first.
pub fn circles(folder: &str, files: &[File]) -> Vec<Vec<PathBuf>> {
    let tree = Tree::of(folder, files);
    let arrows = tree.arrows();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        arrows.keys().map(|module| (module, reached(module, &arrows))).collect();
    let mut circles = Vec::new();
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    for module in arrows.keys() {
        let mutual = |other: &&&Module| reached.get(**other).is_some_and(|all| all.contains(module));
        let circle: Vec<&Module> = reached[module].iter().filter(mutual).copied().collect();
        if circle.len() > 1 && circle.iter().all(|other| seen.insert(other)) {
            circles.push(circle.iter().map(|module| PathBuf::from(&tree.modules[*module].path)).collect());
        }
    }
    circles.sort_by_key(|circle: &Vec<PathBuf>| std::cmp::Reverse(circle.len()));
    circles
}

/// All that a module imports, directly or by way of others.
fn reached<'a>(module: &'a Module, arrows: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        for other in arrows.get(module).into_iter().flatten() {
            if reached.insert(other) {
                next.push(other);
            }
        }
    }
    reached
}

/// A file of a crate.
struct Source {
    path: String,
    /// The paths that it imports, and whether it re-exports them.
    uses: Vec<(bool, Module)>,
    /// Paths in the code.
    paths: Vec<Module>,
}

/// The files of a crate, by module.
struct Tree {
    modules: BTreeMap<Module, Source>,
}

impl Tree {
    fn of(folder: &str, files: &[File]) -> Self {
        let mut modules: BTreeMap<Module, Source> = BTreeMap::new();
        let root = format!("{folder}/src/");
        for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
            let Some(within) = file.path.strip_prefix(&root) else { continue };
            let mut module: Module = within.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            // Explored schedules are tests, in folders of their own if there are many.
            if module.iter().any(|part| part == "schedules") {
                continue;
            }
            if module.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
                module.pop();
            }
            let code = code_only(&file.text);
            let code: Vec<&str> = code.lines().take(product_lines(&code)).collect();
            let (uses, rest) = statements(&code.join("\n"));
            let source = modules.entry(module).or_insert_with(|| Source {
                path: file.path.clone(),
                uses: Vec::new(),
                paths: Vec::new(),
            });
            source.uses.extend(uses);
            source.paths.extend(paths(&rest));
        }
        Self { modules }
    }

    /// The modules that each one imports, but for the root.
    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, source) in self.modules.iter().filter(|(module, _)| !module.is_empty()) {
            let paths = source.uses.iter().map(|(_, path)| path).chain(&source.paths);
            let targets = paths.filter_map(|path| self.resolve(&self.absolute(module, path)?, 0));
            let others = targets.filter(|target| !target.is_empty() && target != module);
            arrows.insert(module.clone(), others.collect());
        }
        arrows
    }

    /// A path from the root of the crate; none where it leads out of it.
    fn absolute(&self, module: &Module, path: &Module) -> Option<Module> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
            child => {
                let inner = [module.as_slice(), &[child.to_owned()]].concat();
                self.modules.contains_key(&inner).then(|| [module.as_slice(), path].concat())
            }
        }
    }

    /// The module of a path's target.
    fn resolve(&self, path: &Module, depth: usize) -> Option<Module> {
        let length = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let module = path[..length].to_vec();
        let exported = path.get(length).filter(|_| depth < 8).and_then(|name| {
            let exports = self.modules[&module].uses.iter().filter(|(public, _)| *public);
            let mut found = exports.filter(|(_, path)| path.last() == Some(name));
            let (_, target) = found.next()?;
            let target = [self.absolute(&module, target)?, path[length + 1..].to_vec()].concat();
            (target != *path).then(|| self.resolve(&target, depth + 1))?
        });
        Some(exported.unwrap_or(module))
    }
}

/// The paths of `use` statements, with whether they re-export, and the code without these.
fn statements(code: &str) -> (Vec<(bool, Module)>, String) {
    let (mut uses, mut rest) = (Vec::new(), String::with_capacity(code.len()));
    let mut left = code;
    while let Some(at) = left.find("use ") {
        let before = &left[..at];
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(end) = left[at..].find(';').filter(|_| is_word) else {
            rest.push_str(&left[..at + 4]);
            left = &left[at + 4..];
            continue;
        };
        let line = before.rsplit(['\n', ';', '}']).next().unwrap_or_default();
        let public = line.trim_start().starts_with("pub");
        expand(&left[at + 4..at + end], &Vec::new(), &mut |path| uses.push((public, path)));
        rest.push_str(before);
        left = &left[at + end..];
    }
    rest.push_str(left);
    (uses, rest)
}

/// Calls `found` with each path of a tree of imports. A name is the one in the module that has it.
fn expand(tree: &str, before: &Module, found: &mut dyn FnMut(Module)) {
    let tree = tree.trim();
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, Some(group.trim_end().trim_end_matches('}'))),
        None => (tree.split(" as ").next().unwrap_or_default(), None),
    };
    let parts = head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
    let path: Module = before.iter().cloned().chain(parts).collect();
    let Some(group) = group else {
        let is_self = path.len() > 1 && path.last().is_some_and(|part| part == "self");
        return found(if is_self { path[..path.len() - 1].to_vec() } else { path });
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..at].trim().is_empty() {
                    expand(&group[start..at], &path, found);
                }
                start = (at + 1).min(group.len());
            }
            _ => {}
        }
    }
}

/// The paths in code that begin at the root, at the module or above it.
fn paths(code: &str) -> Vec<Module> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_part(c));
    let inner = words.filter(|word| ["crate::", "super::", "self::"].iter().any(|at| word.starts_with(at)));
    let parts = |word: &str| word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    inner.map(parts).collect()
}
