//! `cairn restore -i`: look around in a dump, mark files, and extract them, as often as needed.
//!
//! Commands come from a person or from a script. A failure is reported at once, and the exit code
//! shows it at the end.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use cairn_bsddump::{Names, ROOT};

use super::words::{Word, split};
use super::{Chosen, Open};
use crate::exit::Failure;
use crate::output::name;

const HELP: &str = "\
ls [PATH...]      list directories; * marks what will be extracted
cd PATH           go to a directory
pwd               show the present directory
add [PATH...]     mark files, and directories with all in them
delete [PATH...]  remove marks
extract           extract what is marked, and remove the marks
quit              end
help              show this
Paths may be quoted as in a shell, and have the patterns *, ? and [...].";

/// Extracts the marked files. False if a file is missing or damaged, which was reported.
type Extract<'a> = &'a mut dyn FnMut(&Chosen) -> Result<bool, Failure>;

/// A path, as names from the root.
type Steps = Vec<Vec<u8>>;

/// Runs commands until they end. True if all of them succeeded.
pub(super) fn run(
    open: &Open,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    extract: Extract<'_>,
) -> Result<bool, Failure> {
    let mut session = Session { open, here: Vec::new(), marked: BTreeSet::new(), good: true };
    let mut has_extracted = false;
    loop {
        write!(output, "cairn restore > ")?;
        output.flush()?;
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            writeln!(output)?;
            return Ok(session.good);
        }
        let Ok(words) = split(&line) else {
            session.good = false;
            writeln!(output, "a quote or a backslash ends nothing in this line")?;
            continue;
        };
        let Some((command, paths)) = words.split_first() else { continue };
        let command = command.bytes();
        // Scripts for Linux `restore` answer its questions for a volume and for the mode of the
        // root here.
        let is_answer = has_extracted
            && paths.is_empty()
            && (command.iter().all(u8::is_ascii_digit) || [&b"y"[..], b"n"].contains(&&command[..]));
        match command.as_slice() {
            _ if is_answer => continue,
            b"quit" | b"exit" | b"q" => return Ok(session.good),
            b"extract" if session.marked.is_empty() => {
                writeln!(output, "nothing is marked; `add PATH` marks it")?;
            }
            b"extract" => {
                let names = &open.names;
                let marked = std::mem::take(&mut session.marked);
                let chosen =
                    marked.into_iter().filter_map(|path| names.find(&path).map(|number| (path, number)));
                session.good &= extract(&chosen.collect())?;
            }
            _ => {
                let whole = session.whole(&line, paths);
                session.run(&command, whole.as_deref().unwrap_or(paths), output)?;
            }
        }
        has_extracted = command == b"extract";
    }
}

struct Session<'a> {
    open: &'a Open,
    here: Steps,
    marked: BTreeSet<Vec<u8>>,
    good: bool,
}

impl Session<'_> {
    /// One unquoted path with spaces: if the dump has that path, and not all of its words.
    fn whole(&self, line: &[u8], paths: &[Word]) -> Option<Vec<Word>> {
        let is_there = |path: &Word| {
            let mut found = resolve(self.open, &self.here, path).into_iter();
            found.any(|steps| self.open.names.find(&steps.join(&b'/')).is_some())
        };
        if paths.len() < 2 || paths.iter().all(is_there) {
            return None;
        }
        let line = line.trim_ascii();
        let rest = line.iter().position(u8::is_ascii_whitespace).map(|at| line[at..].trim_ascii())?;
        let whole = Word::literal(rest);
        is_there(&whole).then(|| vec![whole])
    }

    fn run(&mut self, command: &[u8], paths: &[Word], output: &mut dyn Write) -> Result<(), Failure> {
        match command {
            b"help" | b"?" => writeln!(output, "{HELP}")?,
            b"pwd" => writeln!(output, "/{}", name(&self.here.join(&b'/')))?,
            b"cd" if paths.len() > 1 => self.refuse(output, "`cd` takes one path")?,
            b"ls" | b"cd" | b"add" | b"delete" => {
                for steps in self.found(paths, output)? {
                    self.act(command, steps, output)?;
                }
            }
            _ => {
                let message = format!("unknown command {}; `help` lists the commands", name(command));
                self.refuse(output, &message)?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, output: &mut dyn Write, message: &str) -> Result<(), Failure> {
        self.good = false;
        Ok(writeln!(output, "{message}")?)
    }

    /// The paths that the words of a command match: the current directory if there are none.
    fn found(&mut self, paths: &[Word], output: &mut dyn Write) -> Result<Vec<Steps>, Failure> {
        if paths.is_empty() {
            return Ok(vec![self.here.clone()]);
        }
        let mut all = Vec::new();
        for path in paths {
            let found = resolve(self.open, &self.here, path);
            if found.is_empty() {
                let message = format!("{}: no such file in the dump", name(&path.bytes()));
                self.refuse(output, &message)?;
            }
            all.extend(found);
        }
        Ok(all)
    }

    fn act(&mut self, command: &[u8], steps: Steps, output: &mut dyn Write) -> Result<(), Failure> {
        let full = steps.join(&b'/');
        let names = &self.open.names;
        let Some(number) = names.find(&full) else {
            let message = format!("/{}: no such file in the dump", name(&full));
            return self.refuse(output, &message);
        };
        match command {
            b"cd" if !names.is_directory(number) => {
                let message = format!("/{}: not a directory in the dump", name(&full));
                self.refuse(output, &message)?;
            }
            b"cd" => self.here = steps,
            b"ls" => list(self.open, &full, number, &self.marked, output)?,
            b"add" if !self.open.has(number) => {
                let message = format!("/{}", self.open.lacks(&full));
                self.refuse(output, &message)?;
            }
            b"add" => self.marked.extend(with_all_below(names, &full, number)),
            _ => {
                let gone: BTreeSet<Vec<u8>> = with_all_below(names, &full, number).into_iter().collect();
                self.marked.retain(|path| !gone.contains(path));
            }
        }
        Ok(())
    }
}

/// The paths that a word matches, relative to `here`. A pattern matches names in the dump; a name
/// matches itself.
fn resolve(open: &Open, here: &Steps, path: &Word) -> Vec<Steps> {
    let mut found = vec![if path.is_absolute() { Vec::new() } else { here.clone() }];
    for part in path.names() {
        if part.is_pattern() {
            found = found.iter().flat_map(|above| below(open, above, &part)).collect();
            continue;
        }
        for steps in &mut found {
            match part.bytes().as_slice() {
                b"." => {}
                b".." => drop(steps.pop()),
                name => steps.push(name.to_vec()),
            }
        }
        // Only some matches of a pattern have the rest of the path.
        if path.is_pattern() {
            found.retain(|steps| open.names.find(&steps.join(&b'/')).is_some());
        }
    }
    found
}

/// The entries of a directory that a pattern matches.
fn below(open: &Open, above: &Steps, pattern: &Word) -> Vec<Steps> {
    let directory = open.names.find(&above.join(&b'/'));
    let entries = directory.and_then(|number| open.names.entries(number)).unwrap_or(&[]);
    let fits = entries.iter().filter(|entry| open.has(entry.number) && pattern.matches(&entry.name));
    fits.map(|entry| [above.as_slice(), std::slice::from_ref(&entry.name)].concat()).collect()
}

fn with_all_below(names: &Names, path: &[u8], number: u32) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    if number != ROOT {
        paths.push(path.to_vec());
    }
    names.walk(number, &mut |below, _| {
        paths.push(if path.is_empty() { below.to_vec() } else { [path, b"/", below].concat() });
    });
    paths
}

fn list(
    open: &Open,
    path: &[u8],
    number: u32,
    marked: &BTreeSet<Vec<u8>>,
    output: &mut dyn Write,
) -> Result<(), Failure> {
    let mut show = |path: &[u8], called: &[u8], number: u32| {
        let mark = if marked.contains(path) { '*' } else { ' ' };
        let end = if open.names.is_directory(number) { "/" } else { "" };
        writeln!(output, "{mark}{number:>10} {}{end}", crate::output::name(called))
    };
    let Some(entries) = open.names.entries(number) else {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        return Ok(show(path, name, number)?);
    };
    for entry in entries.iter().filter(|entry| open.has(entry.number)) {
        let below = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
        show(&below, &entry.name, entry.number)?;
    }
    Ok(())
}
