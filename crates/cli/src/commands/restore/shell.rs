//! `cairn restore -i`: look around in a dump and mark what is wanted.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use cairn_bsddump::{Names, ROOT};

use super::{Chosen, Open};
use crate::exit::Failure;
use crate::output::name;

const HELP: &str = "\
ls [PATH]      what is in a directory; * marks what will be extracted
cd PATH        go there
pwd            where this is
add [PATH]     mark a file, or a directory with all in it
delete [PATH]  take the mark away
extract        extract what is marked, and end
quit           end without extracting
help           this";

/// Talks until something is to be extracted (paths and numbers) or the user has enough.
pub(super) fn run(
    open: &Open,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<Option<Chosen>, Failure> {
    let names = &open.names;
    let mut here: Vec<Vec<u8>> = Vec::new();
    let mut marked: BTreeSet<Vec<u8>> = BTreeSet::new();
    loop {
        write!(output, "cairn restore > ")?;
        output.flush()?;
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            writeln!(output)?;
            return Ok(None);
        }
        let line = line.trim_ascii();
        let (command, path) = match line.iter().position(|byte| byte.is_ascii_whitespace()) {
            Some(at) => (&line[..at], line[at..].trim_ascii()),
            None => (line, &[][..]),
        };
        let steps = resolve(&here, path);
        let full = steps.join(&b'/');
        let found = names.find(&full);
        match (command, found) {
            (b"", _) => {}
            (b"help" | b"?", _) => writeln!(output, "{HELP}")?,
            (b"pwd", _) => writeln!(output, "/{}", name(&here.join(&b'/')))?,
            (b"quit" | b"exit" | b"q", _) => return Ok(None),
            (b"extract", _) if marked.is_empty() => {
                writeln!(output, "nothing is marked; `add PATH` marks it")?;
            }
            (b"extract", _) => {
                let numbers = marked.iter().filter_map(|path| Some((path.clone(), names.find(path)?)));
                return Ok(Some(numbers.collect()));
            }
            (b"ls" | b"cd" | b"add" | b"delete", None) => {
                writeln!(output, "/{}: there is no such file in the dump", name(&full))?;
            }
            (b"cd", Some(number)) if !names.is_directory(number) => {
                writeln!(output, "/{}: this is no directory in the dump", name(&full))?;
            }
            (b"cd", Some(_)) => here = steps,
            (b"ls", Some(number)) => list(open, &full, number, &marked, output)?,
            (b"add", Some(number)) if !open.has(number) => writeln!(output, "/{}", open.lacks(&full))?,
            (b"add" | b"delete", Some(number)) => {
                let paths = with_all_below(names, &full, number);
                if command == b"add" {
                    marked.extend(paths);
                } else {
                    for path in &paths {
                        marked.remove(path);
                    }
                }
            }
            _ => {
                let command = name(command);
                writeln!(output, "there is no command {command}; `help` lists those that exist")?;
            }
        }
    }
}

/// Names from the root to a path, as seen from `here`.
fn resolve(here: &[Vec<u8>], path: &[u8]) -> Vec<Vec<u8>> {
    let mut steps = if path.starts_with(b"/") { Vec::new() } else { here.to_vec() };
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(steps.pop()),
            _ => steps.push(name.to_vec()),
        }
    }
    steps
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
