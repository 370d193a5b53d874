//! `cairn restore -r`: a whole tree out of a dump of level 0 and those of higher levels after it,
//! including the files renamed, removed and replaced between them.
//!
//! A file in the tree records the inode number of each of its files, so that the next dump can be
//! compared with the tree. It is written last, once all else is on the disk. An interrupted restore
//! leaves its work directory, and must start over from level 0 elsewhere. That file exists from the
//! beginning, in the work directory: an empty one remains from a restore that has changed nothing
//! yet, or that was complete except for it.
//!
//! # Order
//! 1. Directories that are elsewhere now, and one name of each file that has lost all its names,
//!    are moved to the work directory.
//! 2. Names that are gone or mean something else are removed, then directories that are gone, the
//!    deepest first.
//! 3. Directories come to their places, from the root down; files that stayed as they were get
//!    their names, and so do those that this dump has, as the dumps before had them.
//! 4. Files of the dump are created: in place if their names are free, and otherwise in the work
//!    directory, from which they then replace the files with their names. Content that a damaged
//!    dump lacks is not lost here. Files of which the dump has only the attributes keep their
//!    content, and get their names.
//! 5. Directories get their owners, modes and times.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;

use cairn_api::ErrorKind;
use cairn_bsddump::{Attribute, Entry, Inode, Kind, Names, ROOT};
use serde::{Deserialize, Serialize};

use super::host::Target;
use super::makers::Manner;
use super::{Open, files_of};
use crate::exit::Failure;
use crate::output::name;

/// The state of the tree, for the next dump.
const STATE: &str = ".cairn-restore.json";
/// Where things wait while names change.
const WORK: &str = ".cairn-restore.work";
/// The later [`STATE`], in the work directory: while it has this name, the tree is incomplete.
const NEXT: &str = ".cairn-restore.work/state";

/// The dumps restored so far.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    /// Date of the last dump, in seconds since 1970.
    date: u32,
    /// Its level.
    level: u32,
    /// All restored dumps, in this order.
    dumps: Vec<Applied>,
    /// Directories: number, name and kind (`DT_*` of the format) of each entry.
    directories: BTreeMap<u32, Vec<(u32, Vec<u8>, u32)>>,
}

/// A dump that was restored.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Applied {
    /// Its date, in seconds since 1970.
    date: u32,
    /// The dump has the changes since then; 0 for everything.
    since: u32,
    /// The inodes in the dump, and their times of change. Empty for a dump of everything.
    changed: Vec<(u32, i64)>,
}

/// A name: the directory's number, and the name in it.
type Name = (u32, Vec<u8>);

/// A tree by numbers.
#[derive(Default)]
struct Tree {
    names: Names,
    /// Where each directory but the root is.
    directories: HashMap<u32, Name>,
    /// Names of each file.
    files: HashMap<u32, Vec<Name>>,
    /// Directories from the root down.
    order: Vec<u32>,
}

impl Tree {
    /// The files and directories that can be reached from the root.
    fn of(names: &Names) -> Self {
        let mut tree = Self::default();
        let mut waiting = std::collections::VecDeque::from([ROOT]);
        let mut entered = HashSet::from([ROOT]);
        while let Some(directory) = waiting.pop_front() {
            let entries = names.entries(directory).unwrap_or(&[]);
            tree.order.push(directory);
            tree.names.insert(directory, entries.to_vec());
            for entry in entries {
                let name = (directory, entry.name.clone());
                if !names.is_directory(entry.number) {
                    tree.files.entry(entry.number).or_default().push(name);
                } else if entered.insert(entry.number) {
                    tree.directories.insert(entry.number, name);
                    waiting.push_back(entry.number);
                }
            }
        }
        tree
    }

    /// The path of a directory; `staged` are those that are in the work directory.
    fn path(&self, directory: u32, staged: &HashSet<u32>) -> Vec<u8> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = directory;
        while at != ROOT {
            if staged.contains(&at) {
                names.push(format!("{WORK}/{at}").into_bytes());
                break;
            }
            let Some((parent, name)) = self.directories.get(&at) else { break };
            names.push(name.clone());
            at = *parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    fn path_of(&self, name: &Name, staged: &HashSet<u32>) -> Vec<u8> {
        let directory = self.path(name.0, staged);
        if directory.is_empty() { name.1.clone() } else { [&directory[..], b"/", &name.1].concat() }
    }
}

pub(super) fn run(open: &mut Open, target: &Target) -> Result<(), Failure> {
    if !open.names.is_directory(ROOT) {
        let next = "use another copy of the dump; or extract the rest with -x, which puts the files of the root into lost+found";
        return Err(Failure::new(ErrorKind::Damaged, "the dump has no root directory", next));
    }
    let (old, dumps) = load(open, target)?;
    let mut merged = old.names.clone();
    let used = open.reader.used();
    for (number, entries) in names_now(&old.names, open) {
        merged.insert(number, entries);
    }
    let gone: Vec<u32> = merged.directories().filter(|number| !used.contains(*number)).collect();
    gone.into_iter().for_each(|number| merged.remove(number));
    // A number of a directory may be that of a file now.
    files_now(open).into_iter().for_each(|number| merged.remove(number));
    for number in merged.directories().collect::<Vec<_>>() {
        let entries = merged.entries(number).unwrap_or(&[]).to_vec();
        merged.insert(number, entries.into_iter().filter(|entry| used.contains(entry.number)).collect());
    }
    if take_own(&mut merged) {
        let path = WORK.as_bytes();
        open.note(path, Err(io::Error::other("a restore has this name for itself")));
    }
    let new = Tree::of(&merged);
    if open.lacks_names() {
        let mut nameless = open.reader.dumped().clone();
        let named = new.files.keys().chain(new.directories.keys()).chain([&ROOT]);
        named.for_each(|number| nameless.remove(*number));
        open.nameless = nameless.count();
    }
    target.place(WORK.as_bytes())?.make_directory()?;
    let next = target.place(NEXT.as_bytes())?.make_file()?;
    let opened = open_up(&old, &new, open, target);
    let staged = change_names(&old, &new, open, target)?;
    for (number, mode) in opened {
        let path = new.path(number, &HashSet::new());
        let closed = target.place(&path).and_then(|place| place.close_again(mode));
        open.note(&path, closed);
    }
    let nowhere = HashSet::new();
    let mut names_of = |number: u32| {
        let names = new.files.get(&number)?;
        Some(names.iter().map(|name| new.path_of(name, &nowhere)).collect())
    };
    let mut alone = |inode: &Inode, attributes: &[Attribute]| {
        let Some(from) = content_of(&old, &new, &staged, inode.number) else { return Err(missing()) };
        let from = target.place(&from)?;
        // Inode numbers are reused: the file with this one now may be another, with an old time.
        if !from.is_like(inode)? {
            return Err(missing());
        }
        for name in fresh_names(&old, &new, inode.number) {
            from.link_to(&target.place(&new.path_of(name, &nowhere))?)?;
        }
        target.dress(&from, inode, attributes).and(from.take_others(attributes))
    };
    open.make_files(target, Manner::Aside(WORK), &mut names_of, &mut alone)?;
    for number in new.order.iter().rev() {
        if let Some((inode, attributes)) = open.directories.get(number) {
            let path = new.path(*number, &HashSet::new());
            let path = if path.is_empty() { b".".to_vec() } else { path };
            let dressed = target.place(&path).and_then(|place| {
                // Those that it has not any more; of a directory that is damaged in the dump not
                // all may be known.
                let taken = if open.hurt.contains(number) { Ok(()) } else { place.take_others(attributes) };
                target.dress(&place, inode, attributes).and(taken)
            });
            open.note(&path, dressed);
        }
    }
    staged.iter().try_for_each(|number| target.place(format!("{WORK}/{number}").as_bytes())?.clear())?;
    save(open, target, &new, dumps, next)?;
    // A report about a file names all its names, also those in directories that the dump lacks.
    open.names = new.names;
    target.place(WORK.as_bytes())?.remove_directory()?;
    // The names that a restore has for itself have changed the time of the root, which got it
    // before.
    if let Some((inode, _)) = open.directories.get(&ROOT) {
        let timed = target.place(b".").and_then(|place| place.set_times(inode));
        open.note(b".", timed);
    }
    Ok(())
}

/// The path of the content of a file that the dump lacks, after the renames.
fn content_of(old: &Tree, new: &Tree, staged: &[u32], number: u32) -> Option<Vec<u8>> {
    let names = |tree: &Tree| tree.files.get(&number).map_or(Vec::new(), Vec::clone);
    let before = names(old);
    let stayed = names(new).into_iter().find(|name| before.contains(name));
    let stayed = stayed.map(|name| new.path_of(&name, &HashSet::new()));
    stayed.or_else(|| staged.contains(&number).then(|| format!("{WORK}/{number}").into_bytes()))
}

/// The names of a file that it did not have before.
fn fresh_names<'a>(old: &Tree, new: &'a Tree, number: u32) -> Vec<&'a Name> {
    let before = old.files.get(&number).map_or(&[][..], Vec::as_slice);
    let names = new.files.get(&number).map_or(&[][..], Vec::as_slice);
    names.iter().filter(|name| !before.contains(name)).collect()
}

fn missing() -> io::Error {
    io::Error::other("neither this dump nor those before it have it")
}

/// Numbers in the dump that are not directories according to its directories.
fn files_now(open: &Open) -> HashSet<u32> {
    let (names, dumped) = (&open.names, open.reader.dumped());
    let all = names.directories().flat_map(|number| names.entries(number).unwrap_or(&[]));
    let is_file = |entry: &&Entry| entry.kind != Some(Kind::Directory) && !names.is_directory(entry.number);
    all.filter(is_file).map(|entry| entry.number).filter(|number| dumped.contains(*number)).collect()
}

/// The names in the directories that the dump has. A damaged or lost directory keeps its earlier
/// names, unless they are known to be removed: otherwise the damage would cost files that are not
/// part of this dump.
fn names_now(before: &Names, open: &Open) -> BTreeMap<u32, Vec<Entry>> {
    let entries = |number| open.names.entries(number).unwrap_or(&[]);
    let mut now: BTreeMap<u32, Vec<Entry>> =
        open.names.directories().map(|number| (number, entries(number).to_vec())).collect();
    let (used, dumped, files) = (open.reader.used(), open.reader.dumped(), files_now(open));
    let is_lost = |number: &u32| {
        dumped.contains(*number) && !open.names.is_directory(*number) && !files.contains(number)
    };
    let unsure: Vec<u32> = open.hurt.iter().copied().chain(before.directories().filter(is_lost)).collect();
    if unsure.is_empty() {
        return now;
    }
    let is_fresh = |above: u32, entry: &Entry| before.lookup(above, &entry.name) != Some(entry.number);
    // A damaged one can call them anything.
    let whole = now.iter().filter(|(above, _)| !open.hurt.contains(above));
    let fresh = whole.flat_map(|(above, names)| names.iter().filter(|entry| is_fresh(*above, entry)));
    let moved: HashSet<u32> = fresh.map(|entry| entry.number).collect();
    for number in unsure {
        let names = now.entry(number).or_default();
        // A name that belongs to another file now must be that of a file in the dump, unless the
        // dump is wrong.
        names.retain(|entry| {
            let known = before.lookup(number, &entry.name).filter(|known| used.contains(*known));
            known.is_none_or(|known| known == entry.number) || dumped.contains(entry.number)
        });
        let told: HashSet<Vec<u8>> = names.iter().map(|entry| entry.name.clone()).collect();
        let left = before.entries(number).unwrap_or(&[]).iter();
        let left = left.filter(|entry| !told.contains(&entry.name) && !moved.contains(&entry.number));
        names.extend(left.cloned());
    }
    now
}

/// Removes the names that a restore reserves in the root: a dumped file there would overwrite the
/// state of this tree. A dump of a restored tree has the files of that earlier restore, which are
/// not needed. True if the work directory was one of them.
fn take_own(names: &mut Names) -> bool {
    let mut entries = names.entries(ROOT).unwrap_or(&[]).to_vec();
    let has_work = entries.iter().any(|entry| entry.name == WORK.as_bytes());
    entries.retain(|entry| entry.name != WORK.as_bytes() && entry.name != STATE.as_bytes());
    names.insert(ROOT, entries);
    has_work
}

/// Whether the change succeeded. A conflict with changes by others since the last level is
/// reported, and costs only the file concerned.
fn is_done(open: &mut Open, path: &[u8], outcome: io::Result<()>) -> Result<bool, Failure> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    let Err(error) = outcome else { return Ok(true) };
    match error.kind() {
        AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory | NotFound => {
            open.note(path, Err(error));
            Ok(false)
        }
        _ => Err(ended(path, error)),
    }
}

/// The failure of a restore that has changed a tree, and can't continue.
fn ended(path: &[u8], error: io::Error) -> Failure {
    let mut failure = Failure::from(error);
    failure.body.message = format!("./{}: {}", name(path), failure.body.message);
    failure.body.next =
        "put it right, and start over with the dump of level 0 in an empty directory".to_owned();
    failure
}

/// Lets this user, if not root, change the names in directories that are changed, moved or removed,
/// regardless of their modes. Returns the directories whose mode this dump does not set in the end,
/// with that mode. A failure is reported when a change in the directory fails.
fn open_up(old: &Tree, new: &Tree, open: &Open, target: &Target) -> Vec<(u32, u32)> {
    let mut opened = Vec::new();
    if target.is_root() {
        return opened;
    }
    // From the root down: a directory is accessible only after its parents.
    for number in old.order.iter().filter(|number| **number != ROOT) {
        let (is_dumped, later) = (open.directories.contains_key(number), new.directories.get(number));
        if !is_dumped && later.is_some() && later == old.directories.get(number) {
            continue;
        }
        let place = target.place(&old.path(*number, &HashSet::new()));
        if let Ok(Some(mode)) = place.and_then(|place| place.open_up())
            && !is_dumped
            && later.is_some()
        {
            opened.push((*number, mode));
        }
    }
    opened
}

/// Steps 1 to 3. Returns the files that are in the work directory.
fn change_names(old: &Tree, new: &Tree, open: &mut Open, target: &Target) -> Result<Vec<u32>, Failure> {
    let mut staged = HashSet::new();
    let work = |number: u32| target.place(format!("{WORK}/{number}").as_bytes());
    let moved = |number: &u32| {
        new.directories.get(number).is_some_and(|name| old.directories.get(number) != Some(name))
    };
    for number in old.order.iter().rev().filter(|number| **number != ROOT && moved(number)) {
        let path = old.path(*number, &staged);
        let outcome = target.place(&path).and_then(|place| place.move_to(&work(*number)?));
        if is_done(open, &path, outcome)? {
            staged.insert(*number);
        }
    }
    let mut staged_files = Vec::new();
    let dumped = files_of(open.reader.dumped(), &open.names);
    for (number, names) in &old.files {
        let Some(later) = new.files.get(number) else { continue };
        if !names.iter().any(|name| later.contains(name)) {
            let path = old.path_of(&names[0], &staged);
            let outcome = target.place(&path).and_then(|place| place.move_file_to(&work(*number)?));
            // Files in the dump as well, as their content there may be damaged. Otherwise a file
            // that others removed goes unnoticed.
            let is_staged = outcome.is_ok() || !dumped.contains(*number) && is_done(open, &path, outcome)?;
            if is_staged {
                staged_files.push(*number);
            }
        }
    }
    for (number, names) in &old.files {
        // The number may be a directory's now, at the same place.
        let later = new.files.get(number).map_or(&[][..], Vec::as_slice);
        for name in names.iter().filter(|name| !later.contains(name)) {
            let path = old.path_of(name, &staged);
            let outcome = target.place(&path).and_then(|place| place.clear());
            is_done(open, &path, outcome)?;
        }
    }
    for number in old.order.iter().rev().filter(|number| **number != ROOT) {
        if !new.directories.contains_key(number) {
            let path = old.path(*number, &staged);
            match target.place(&path).and_then(|place| place.remove_directory()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => {
                    is_done(open, &path, outcome)?;
                }
            }
        }
    }
    let nowhere = HashSet::new();
    for number in &new.order {
        let path = new.path(*number, &nowhere);
        let path = if path.is_empty() { b".".to_vec() } else { path };
        // New files in it get the rights in the dump, and no others.
        let takes_list = open.directories.contains_key(number) && !open.hurt.contains(number);
        let bring = || {
            let place = target.place(&path)?;
            if staged.contains(number) {
                work(*number)?.move_to(&place)?;
            } else if *number != ROOT {
                place.make_directory()?;
            }
            if takes_list { place.take_default_list() } else { Ok(()) }
        };
        let outcome = bring();
        if staged.contains(number) {
            // It would stay where it waits.
            outcome.map_err(|error| ended(&path, error))?;
        } else {
            is_done(open, &path, outcome)?;
        }
    }
    for (number, names) in &new.files {
        let is_dumped = dumped.contains(*number);
        // Others give a number again: there it may be another file's by now.
        if is_dumped && open.reader.may_have_attributes_alone() {
            continue;
        }
        let Some(from) = content_of(old, new, &staged_files, *number) else {
            if !is_dumped {
                open.note(&new.path_of(&names[0], &nowhere), Err(missing()));
            }
            continue;
        };
        for name in fresh_names(old, new, *number) {
            let path = new.path_of(name, &nowhere);
            let outcome = target.place(&from).and_then(|from| from.link_to(&target.place(&path)?));
            // For a file in the dump, a failure is reported when the file is created.
            if !is_dumped {
                is_done(open, &path, outcome)?;
            }
        }
        // It has its names, until the file in the dump replaces it.
        if is_dumped && staged_files.contains(number) {
            target.place(&from)?.clear()?;
        }
    }
    Ok(staged_files)
}

/// The tree that earlier dumps left, and those dumps, after checking that this dump follows them.
fn load(open: &Open, target: &Target) -> Result<(Tree, Vec<Applied>), Failure> {
    let label = open.reader.label();
    let mut names = target.names()?;
    if let Some(at) = names.iter().position(|name| name == WORK.as_bytes()) {
        names.remove(at);
        match target.place(WORK.as_bytes())?.remove_directory() {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return Err(cut_off()),
            removed => removed?,
        }
    }
    if label.since == 0 {
        if names.iter().any(|name| name != b"lost+found") {
            return Err(Failure::new(
                ErrorKind::NotEmpty,
                "a dump of level 0 is restored into an empty directory, and this one is not",
                "name an empty one with --to, or take single files out with -x",
            ));
        }
        return Ok((Tree { order: vec![ROOT], ..Tree::default() }, Vec::new()));
    }
    let usage = |message: String, next: &str| Failure::new(ErrorKind::Usage, message, next);
    let Some(state) = read_state(target)? else {
        let message =
            format!("this is a dump of level {}, and no dump was restored here before it", label.level);
        return Err(usage(message, "restore the dump of level 0 first, with -r into the same directory"));
    };
    if label.since > state.date {
        let message = format!(
            "this dump has the changes since second {}, and the last one restored here is of {}",
            label.since, state.date
        );
        return Err(usage(message, "restore the dump in between first"));
    }
    // Dates are whole seconds: two levels may have one.
    let is_later = (label.date, label.level) > (state.date, state.level);
    if !is_later {
        let message = "this dump is not newer than the last one that was restored here".to_owned();
        return Err(usage(message, "restore dumps in the order in which they were made"));
    }
    if label.since < state.date && is_given_up(&state.dumps, open) {
        let message = format!(
            "other dumps that were restored here have what changed since second {}, and this one knows nothing of it: it is a dump of something else, or the volume was rolled back between them",
            label.since
        );
        let next =
            "restore its dump of level 0 into an empty directory, and then only those on which it was made";
        return Err(usage(message, next));
    }
    let mut names = Names::new();
    for (directory, entries) in state.directories {
        let entry =
            |(number, name, mode): (u32, Vec<u8>, u32)| Entry { number, kind: Kind::of_mode(mode), name };
        names.insert(directory, entries.into_iter().map(entry).collect());
    }
    take_own(&mut names);
    Ok((Tree::of(&names), state.dumps))
}

/// Whether a file here is of a dump that is not an ancestor of this one. This dump has all changes
/// since its base. If another dump brought a later change to a file that is in use and not in this
/// dump, the file has reverted, which only a rollback does. Changes within one second cannot be
/// distinguished.
fn is_given_up(dumps: &[Applied], open: &Open) -> bool {
    let (since, used, dumped) = (open.reader.label().since, open.reader.used(), open.reader.dumped());
    let is_unknown = |(number, changed): &(u32, i64)| {
        *changed > i64::from(since) && used.contains(*number) && !dumped.contains(*number)
    };
    dumps.iter().any(|dump| dump.since == 0 && dump.date > since || dump.changed.iter().any(is_unknown))
}

fn cut_off() -> Failure {
    Failure::new(
        ErrorKind::NotEmpty,
        "an earlier restore into this directory was interrupted",
        "start over with the dump of level 0 in an empty directory",
    )
}

fn read_state(target: &Target) -> Result<Option<State>, Failure> {
    let Some(bytes) = target.read(STATE.as_bytes())? else { return Ok(None) };
    let state: Option<State> = serde_json::from_slice(&bytes).ok();
    // A user with write access here must not direct the restore outside of this directory.
    let is_good = |(_, name, _): &(u32, Vec<u8>, u32)| Entry::is_good_name(name);
    let are_good = |state: &State| state.directories.values().flatten().all(is_good);
    match state.filter(|state| state.version == 1 && are_good(state)) {
        Some(state) => Ok(Some(state)),
        None => Err(Failure::new(
            ErrorKind::Damaged,
            format!("{STATE} is damaged, or of a newer version"),
            "start over with the dump of level 0 in an empty directory",
        )),
    }
}

fn save(
    open: &mut Open,
    target: &Target,
    tree: &Tree,
    mut dumps: Vec<Applied>,
    next: File,
) -> Result<(), Failure> {
    let label = open.reader.label();
    let changed = std::mem::take(&mut open.changed);
    dumps.push(Applied { date: label.date, since: label.since, changed });
    let entries = |number: &u32| {
        let entries = tree.names.entries(*number).unwrap_or(&[]).iter();
        entries.map(|e| (e.number, e.name.clone(), e.kind.map_or(0, Kind::mode))).collect()
    };
    let directories = tree.order.iter().map(|number| (*number, entries(number))).collect();
    let state = State { version: 1, date: label.date, level: label.level, dumps, directories };
    let bytes = serde_json::to_vec(&state).map_err(io::Error::from)?;
    Ok(target.conclude(next, &target.place(NEXT.as_bytes())?, &bytes, STATE.as_bytes())?)
}
