//! `cairn restore`: restores files from a BSD dump onto this machine. It also reads dumps of Linux
//! `dump`, and needs no server.

pub mod host;
mod makers;
mod rebuild;
mod shell;
pub mod volumes;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_api::ErrorKind;
use cairn_bsddump::{Attribute, Damage, Entry, Inode, InodeMap, Kind, Names, ROOT, ReadError, Reader};

use crate::arguments::Restore;
use crate::exit::{Failure, PARTLY_DONE};
use crate::output::{Output, name, note_line, print_line, put_name};
use host::Target;
use makers::Manner;

/// The directory of files whose names are lost, by their numbers: see [`Open::name_lost`].
const LOST: &str = "lost+found";
/// The number of that directory, which no inode has.
const LOST_NUMBER: u32 = 0;
/// Files that can be listed there. A damaged or forged map can claim hundreds of millions of files:
/// past this limit only files that the dump really contains get a name.
const LOST_LISTED: u64 = 1 << 16;
/// Files without a name that are reported one by one if they are not found.
const NAMELESS_TOLD: usize = 1000;
/// Reported names that two files have.
const DOUBLED_TOLD: usize = 1000;
/// The remedy for a file that a dump of a higher level lacks.
const LOWER: &str =
    "extract it from the dump of the next lower level that has it: `cairn restore -t` lists a dump";

/// Gives an existing file its attributes and its names, as the dump has nothing else of it.
type Alone<'a> = &'a mut dyn FnMut(&Inode, &[Attribute]) -> io::Result<()>;

/// The chosen paths, with their numbers; a directory before its entries.
type Chosen = Vec<(Vec<u8>, u32)>;

/// A dump that is being read: its names are known, its files come one after the other.
struct Open {
    reader: Reader<Box<dyn Read>>,
    names: Names,
    /// The directories that the dump has.
    directories: BTreeMap<u32, (Inode, Vec<Attribute>)>,
    /// The damaged ones among them: they may have more names.
    hurt: HashSet<u32>,
    /// Names that belong to another file in their directories already: the number of the directory,
    /// and the skipped entry.
    doubled: Vec<(u32, Entry)>,
    /// Number of files and directories without a name, because the directories with their names are
    /// damaged or lost.
    nameless: u64,
    /// Those of them that are not listed in the directory for that, as they are too many, and its
    /// name.
    unlisted: InodeMap,
    lost: Vec<u8>,
    /// The first file after them.
    first: Option<Inode>,
    /// The dump has only the changes since another one.
    is_increment: bool,
    /// The files read so far, and their last changes, in seconds since 1970.
    changed: Vec<(u32, i64)>,
    /// Problems besides those that the reader reports.
    troubles: Vec<String>,
}

/// Runs the command.
pub fn run(asked: &Restore, output: Output) -> Result<(), Failure> {
    refuse_by_hand(asked, output)?;
    let mut open = Open::new(volumes::open(asked, output)?)?;
    let wanted: Vec<&[u8]> = asked.paths.iter().map(|path| path.as_os_str().as_bytes()).collect();
    if asked.rebuild {
        let target = target(&asked.to)?;
        rebuild::run(&mut open, &target)?;
        return open.report(output);
    }
    open.name_lost();
    if asked.interactive {
        // A dump is read from its beginning to its end: for each extraction.
        let mut extract = |chosen: &Chosen| {
            let mut again = Open::new(volumes::open(asked, output)?)?;
            again.name_lost();
            again.extract(chosen, &target(&asked.to)?)?;
            Ok(again.say(again.troubles(&BTreeSet::new()), output))
        };
        let all = shell::run(&open, &mut io::stdin().lock(), &mut io::stdout().lock(), &mut extract)?;
        return if all { Ok(()) } else { Err(Failure::silent(PARTLY_DONE)) };
    } else {
        let chosen = open.choose(&wanted)?;
        if asked.list {
            open.list(&chosen, output);
            return open.report_names(output);
        }
        open.extract(&chosen, &target(&asked.to)?)?;
    }
    open.report(output)
}

/// Looking around takes commands from standard input, and answers them.
fn refuse_by_hand(asked: &Restore, output: Output) -> Result<(), Failure> {
    let usage = |message, next| Err(Failure::new(ErrorKind::Usage, message, next));
    match asked.interactive {
        true if asked.file.as_os_str() == "-" => usage(
            "the dump and the commands would both come through standard input",
            "write the dump to a file first, or extract files with -x PATH...",
        ),
        true if output.json => {
            usage("-i talks to people, and not in JSON", "use -t to list and -x PATH... to take out")
        }
        _ => Ok(()),
    }
}

fn target(path: &Path) -> Result<Target, Failure> {
    Target::open(path).map_err(|error| {
        let next = "name a directory that exists with --to";
        Failure::new(ErrorKind::Usage, format!("{}: {error}", path.display()), next)
    })
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let is_full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        if let ReadError::Output(error) = &error {
            let (kind, next) = match is_full(error) {
                true => {
                    (ErrorKind::NoSpace, "free space there, and begin again: with -r in an empty directory")
                }
                false => (ErrorKind::Failed, "put it right, and begin again: with -r in an empty directory"),
            };
            return Failure::new(kind, format!("cannot write the restored files: {error}"), next);
        }
        let (kind, next) = match error {
            ReadError::NoMaps => (ErrorKind::Damaged, "use another copy of the dump"),
            ReadError::Input(_) => (ErrorKind::Failed, "correct it and run the command again"),
            ReadError::NotTheFirst(_) | ReadError::OtherVolume { .. } | ReadError::NoVolume { .. } => {
                (ErrorKind::Usage, "name all volumes of the dump in order, with -f A,B,C or -M")
            }
            _ => (ErrorKind::Usage, "name a file that `cairn dump` or Linux `dump` wrote"),
        };
        Failure::new(kind, error, next)
    }
}

impl Open {
    fn new(reader: Reader<Box<dyn Read>>) -> Result<Self, Failure> {
        let is_increment = reader.label().since > 0;
        let mut open = Self {
            reader,
            names: Names::new(),
            directories: BTreeMap::new(),
            hurt: HashSet::new(),
            doubled: Vec::new(),
            nameless: 0,
            unlisted: InodeMap::new(),
            lost: Vec::new(),
            first: None,
            is_increment,
            changed: Vec::new(),
            troubles: Vec::new(),
        };
        while let Some(inode) = open.reader.next_inode()? {
            if inode.kind != Kind::Directory {
                open.first = Some(inode);
                break;
            }
            let (entries, content) = open.reader.entries()?;
            let others = open.names.insert(inode.number, entries);
            if !content.whole || !others.is_empty() {
                open.hurt.insert(inode.number);
            }
            let left = DOUBLED_TOLD.saturating_sub(open.doubled.len());
            open.doubled.extend(others.into_iter().take(left).map(|entry| (inode.number, entry)));
            if open.is_increment {
                open.changed.push((inode.number, inode.changed.seconds));
            }
            open.directories.insert(inode.number, (inode, content.attributes));
        }
        Ok(open)
    }

    /// Directories that the map of the dump lists, and that are missing in it.
    fn lost_directories(&self) -> BTreeSet<u32> {
        let all = self.names.directories().flat_map(|number| self.names.entries(number).unwrap_or(&[]));
        let lost = all.filter(|entry| entry.kind == Some(Kind::Directory)).map(|entry| entry.number);
        let lost = lost.chain([ROOT]).filter(|number| !self.names.is_directory(*number));
        lost.filter(|number| self.reader.dumped().contains(*number)).collect()
    }

    /// Whether names that the dump had are lost with their directory.
    fn lacks_names(&self) -> bool {
        !self.hurt.is_empty() || !self.lost_directories().is_empty() || !self.cut_off().is_empty()
    }

    /// Directories that no way from the root leads to. Of those that lead to each other these are
    /// the first.
    fn cut_off(&self) -> BTreeSet<u32> {
        let (mut reached, dumped) = (HashSet::new(), self.reader.dumped());
        // True when that leads to something in the dump that nothing led to before.
        let mut reach = |from: u32| {
            let mut waiting = if reached.insert(from) { vec![from] } else { Vec::new() };
            let mut has_more = false;
            while let Some(number) = waiting.pop() {
                has_more |= dumped.contains(number);
                let entries = self.names.entries(number).unwrap_or(&[]).iter();
                waiting.extend(entries.map(|entry| entry.number).filter(|number| reached.insert(*number)));
            }
            has_more
        };
        reach(ROOT);
        let all = self.names.directories().flat_map(|number| self.names.entries(number).unwrap_or(&[]));
        let named: HashSet<u32> = all.map(|entry| entry.number).collect();
        let mut left: Vec<u32> = self.names.directories().collect();
        left.sort_unstable_by_key(|number| (named.contains(number), *number));
        left.into_iter().filter(|number| reach(*number)).collect()
    }

    /// Names the files of the dump that have no entry in any directory by their numbers, in a
    /// directory for them.
    fn name_lost(&mut self) {
        if !self.lacks_names() {
            return;
        }
        let mut nameless = self.reader.dumped().clone();
        let all = self.names.directories().flat_map(|number| self.names.entries(number).unwrap_or(&[]));
        all.map(|entry| entry.number).chain([ROOT]).for_each(|number| nameless.remove(number));
        // Those that the map has not could have any number: the map does not grow for them.
        let (known, unknown): (Vec<u32>, Vec<u32>) =
            self.cut_off().into_iter().partition(|number| self.reader.dumped().contains(*number));
        known.into_iter().for_each(|number| nameless.insert(number));
        self.nameless = nameless.count() + unknown.len() as u64;
        if self.nameless == 0 {
            return;
        }
        if self.nameless > LOST_LISTED {
            self.unlisted = files_of(&nameless, &self.names);
            nameless = nameless.without(&self.unlisted);
        }
        let entry = |number: u32, name: String, kind| Entry { number, kind, name: name.into_bytes() };
        let listed = nameless.iter().chain(unknown);
        let entries = listed.map(|number| entry(number, number.to_string(), None)).collect();
        let mut root = self.names.entries(ROOT).unwrap_or(&[]).to_vec();
        // The dump may have one of its own.
        let mut free = (0..).map(|number| match number {
            0 => LOST.to_owned(),
            number => format!("{LOST}.{number}"),
        });
        let name = free.find(|name| root.iter().all(|entry| entry.name != name.as_bytes()));
        let name = name.unwrap_or_default();
        self.lost = name.clone().into_bytes();
        root.push(entry(LOST_NUMBER, name, Some(Kind::Directory)));
        self.names.insert(ROOT, root);
        self.names.insert(LOST_NUMBER, entries);
    }

    /// The wanted paths (all, if none are given) and all below them, with their numbers.
    fn choose(&self, wanted: &[&[u8]]) -> Result<Chosen, Failure> {
        let mut chosen = Vec::new();
        if wanted.is_empty() {
            self.names.walk(ROOT, &mut |path, entry| chosen.push((path.to_vec(), entry.number)));
            return Ok(chosen);
        }
        for path in wanted {
            let names: Vec<&[u8]> =
                path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
            let path = names.join(&b'/');
            let Some(number) = self.names.find(&path).or_else(|| self.unlisted_at(&path)) else {
                let message = format!("there is no {} in the dump", name(&path));
                let next = "`cairn restore -t -f DUMP` lists the dump";
                return Err(Failure::new(ErrorKind::NotFound, message, next));
            };
            if !path.is_empty() && !self.has(number) {
                return Err(Failure::new(ErrorKind::NotFound, self.lacks(&path), LOWER));
            }
            if !path.is_empty() {
                chosen.push((path.clone(), number));
            }
            self.names.walk(number, &mut |below, entry| {
                let path = if path.is_empty() { below.to_vec() } else { [&path[..], b"/", below].concat() };
                chosen.push((path, entry.number));
            });
        }
        Ok(chosen)
    }

    /// The number of a path in the directory of files without names, if that does not list it.
    fn unlisted_at(&self, path: &[u8]) -> Option<u32> {
        let number = path.strip_prefix(self.lost.as_slice())?.strip_prefix(b"/")?;
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        self.unlisted.contains(number).then_some(number)
    }

    /// Whether the dump has a file, and not its name alone.
    fn has(&self, number: u32) -> bool {
        self.reader.dumped().contains(number) || self.names.is_directory(number)
    }

    /// The message for a file of which the dump has only the name.
    fn lacks(&self, path: &[u8]) -> String {
        let path = name(path);
        if !self.is_increment {
            return format!("{path} has a name in the dump, and is not in it");
        }
        format!("{path} is not in this dump, as it did not change since the one on which this one was made")
    }

    fn list(&self, chosen: &[(Vec<u8>, u32)], output: Output) {
        let dumped = chosen.iter().filter(|(_, number)| self.reader.dumped().contains(*number));
        if output.json {
            let show = |(of, number): &(Vec<u8>, u32)| {
                let mut entry = serde_json::json!({ "number": number });
                put_name(&mut entry, "path", &[b"/", &of[..]].concat());
                entry
            };
            output.show(&dumped.map(show).collect::<Vec<_>>(), |_| String::new());
            return;
        }
        dumped.for_each(|(path, number)| print_line(&format!("{number:>10}\t./{}", name(path))));
    }

    /// Creates the chosen files, as far as the dump has them.
    fn extract(&mut self, chosen: &[(Vec<u8>, u32)], target: &Target) -> Result<(), Failure> {
        let mut paths = names_of(chosen);
        let mut made: Chosen = Vec::new();
        // Parent directories that are created get the attributes in the dump; existing ones are not
        // changed.
        for (path, number) in self.ways(chosen) {
            match target.place(&path).and_then(|place| place.make_directory()) {
                Ok(true) => made.push((path, number)),
                Ok(false) => {}
                Err(error) => self.troubles.push(trouble(&path, &error)),
            }
        }
        for (path, number) in chosen.iter().filter(|(_, number)| self.names.is_directory(*number)) {
            match target.place(path).and_then(|place| place.make_directory()) {
                Ok(_) => made.push((path.clone(), *number)),
                Err(error) => self.troubles.push(trouble(path, &error)),
            }
        }
        // An existing file with its name may be any file.
        let alone: Alone<'_> = &mut |_, _| {
            let why = "the dump has its attributes alone, as they are all that changed: its content is in a dump of a lower level";
            Err(io::Error::other(why))
        };
        // A file without a name that is not listed gets one when it is read.
        let lost = chosen.iter().find(|(_, number)| *number == LOST_NUMBER).map(|(path, _)| path);
        let unlisted = std::mem::take(&mut self.unlisted);
        let unnamed = |number: u32| {
            let lost = lost.filter(|_| unlisted.contains(number))?;
            Some(vec![[&lost[..], b"/", number.to_string().as_bytes()].concat()])
        };
        let mut names = |number: u32| paths.remove(&number).or_else(|| unnamed(number));
        self.make_files(target, Manner::InPlace, &mut names, alone)?;
        // From the bottom up: creating files changes the time of a directory. A file with the name
        // of a directory is not from the dump.
        for (path, number) in made.into_iter().rev() {
            if let Some((inode, attributes)) = self.directories.get(&number) {
                let dressed = target.place(&path).and_then(|place| target.dress(&place, inode, attributes));
                self.note(&path, dressed);
            }
        }
        Ok(())
    }

    /// The parent directories of the chosen files that were not chosen themselves, from the root
    /// down.
    fn ways(&self, chosen: &[(Vec<u8>, u32)]) -> Chosen {
        let own: HashSet<&[u8]> = chosen.iter().map(|(path, _)| path.as_slice()).collect();
        let mut ways: BTreeSet<&[u8]> = BTreeSet::new();
        for (path, _) in chosen {
            let ends = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
            // The parents of a known directory are known.
            ends.map(|end| &path[..end])
                .take_while(|way| !own.contains(way) && ways.insert(way))
                .for_each(drop);
        }
        ways.into_iter().filter_map(|way| Some((way.to_vec(), self.names.find(way)?))).collect()
    }

    /// Creates all files except directories, under the names that `names` has for their numbers, in
    /// the order of the dump.
    fn make_files(
        &mut self,
        target: &Target,
        manner: Manner<'_>,
        names: &mut dyn FnMut(u32) -> Option<Vec<Vec<u8>>>,
        alone: Alone<'_>,
    ) -> Result<(), Failure> {
        let (first, reader, changed) = (self.first.take(), &mut self.reader, &mut self.changed);
        let is_increment = self.is_increment;
        // Otherwise two threads would make a file at once that a damaged dump has twice.
        let mut given = HashSet::new();
        let (outcome, troubles) = makers::run(target, manner, |makers| {
            let mut next = first;
            while let Some(inode) = next {
                if is_increment {
                    changed.push((inode.number, inode.changed.seconds));
                }
                let is_new = inode.kind != Kind::Directory && !given.contains(&inode.number);
                if let Some(names) = is_new.then(|| names(inode.number)).flatten() {
                    given.insert(inode.number);
                    if reader.has_attributes_alone() {
                        let content = reader.content(&mut |_, _| Ok(()))?;
                        makers.note(&names, alone(&inode, &content.attributes));
                    } else {
                        makers.take(reader, &inode, names)?;
                    }
                }
                next = reader.next_inode()?;
            }
            Ok(())
        });
        self.troubles.extend(troubles);
        outcome
    }

    fn note(&mut self, path: &[u8], outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.troubles.push(trouble(path, &error));
        }
    }

    /// Reports damaged and missing files by name.
    fn report(&self, output: Output) -> Result<(), Failure> {
        self.tell(self.troubles(&BTreeSet::new()), output)
    }

    /// The same where nothing was read but names.
    fn report_names(&self, output: Output) -> Result<(), Failure> {
        let told = self.troubles(&self.lost_directories());
        // Programs get only the lists if there are no problems.
        if told.is_empty() { Ok(()) } else { self.tell(told, output) }
    }

    /// Damaged and missing files by name, including `lost`.
    fn troubles(&self, lost: &BTreeSet<u32>) -> Vec<String> {
        let mut paths: HashMap<u32, Vec<Vec<u8>>> = HashMap::from([(ROOT, vec![b".".to_vec()])]);
        self.names.walk(ROOT, &mut |path, entry| {
            let known = paths.entry(entry.number).or_default();
            // A directory has only one name, even if a damaged dump has several.
            if known.is_empty() || !self.names.is_directory(entry.number) {
                known.push([b"./", path].concat());
            }
        });
        // For each of its names: the user may know only one of them.
        let tell = |number: u32, what: &str| match paths.get(&number) {
            Some(paths) => paths.iter().map(|path| format!("{}: {what}", name(path))).collect(),
            None => vec![format!("file {number} (its name is lost): {what}")],
        };
        let one = |line: String| vec![line];
        let mut lines = self.troubles.clone();
        for damage in self.reader.damage() {
            lines.extend(match damage {
                Damage::Skipped { record, records } => one(format!(
                    "{records} record(s) from record {record} of the dump on are damaged or missing"
                )),
                Damage::Hurt { number } => tell(*number, "damaged in the dump"),
                // All of them come below.
                Damage::Missing { .. } => Vec::new(),
                Damage::Truncated => one(match self.reader.volume() {
                    1 => "the dump is cut off".to_owned(),
                    last => format!("the dump is cut off after volume {last}, the last one that was given"),
                }),
            });
        }
        let doubled = self.doubled.iter().map(|name| (name, "another file has the same name in the dump"));
        let refused = self.reader.refused().iter().map(|name| (name, "no file can have this name"));
        for ((directory, entry), why) in doubled.chain(refused) {
            let above = paths.get(directory).and_then(|paths| paths.first());
            let above = above.map_or_else(|| format!("directory {directory}"), |path| name(path));
            let (called, number) = (name(&entry.name), entry.number);
            lines.push(format!("{above}/{called}: {why}; file {number} does not get it"));
        }
        let missing = self.reader.missing();
        let named: BTreeSet<u32> = paths.keys().copied().filter(|number| missing.contains(*number)).collect();
        let mut nameless = missing.clone();
        named.iter().for_each(|number| nameless.remove(*number));
        let lost = lost.iter().copied().filter(|number| !missing.contains(*number));
        let told = named.iter().copied().chain(nameless.iter().take(NAMELESS_TOLD)).chain(lost);
        lines.extend(told.flat_map(|number| tell(number, "not found in the dump")));
        let more = nameless.count().saturating_sub(NAMELESS_TOLD as u64);
        if more > 0 {
            lines.push(format!("{more} more files whose names are lost: not found in the dump"));
        }
        if self.nameless > 0 {
            lines.push(format!(
                "{} files or directories have lost their names with those: `cairn restore -x` has them in {LOST}, by their numbers",
                self.nameless
            ));
        }
        lines
    }

    fn tell(&self, lines: Vec<String>, output: Output) -> Result<(), Failure> {
        if self.say(lines, output) { Ok(()) } else { Err(Failure::silent(PARTLY_DONE)) }
    }

    /// The same; true if there are no problems.
    fn say(&self, lines: Vec<String>, output: Output) -> bool {
        if output.json {
            print_line(&serde_json::json!({ "message_type": "troubles", "troubles": lines }).to_string());
        }
        if lines.is_empty() {
            return true;
        }
        if !output.json {
            lines.iter().for_each(|line| note_line(line));
            note_line("everything else is there");
        }
        false
    }
}

fn trouble(path: &[u8], error: &io::Error) -> String {
    format!("./{}: {error}", name(path))
}

/// Numbers in a dump that are not directories in it.
fn files_of(map: &InodeMap, names: &Names) -> InodeMap {
    let mut files = map.clone();
    names.directories().for_each(|number| files.remove(number));
    files
}

/// The names of each chosen number. A path chosen twice counts once.
fn names_of(chosen: &[(Vec<u8>, u32)]) -> HashMap<u32, Vec<Vec<u8>>> {
    let mut names: HashMap<u32, Vec<Vec<u8>>> = HashMap::new();
    let mut seen: HashSet<(u32, &[u8])> = HashSet::with_capacity(chosen.len());
    for (path, number) in chosen {
        if seen.insert((*number, path)) {
            names.entry(*number).or_default().push(path.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests;
