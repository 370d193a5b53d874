//! The input of a restore: a file, a pipe, or the volumes of a dump in order. Volumes in files are
//! checked before any file is made: one that is missing, out of order or of another dump is
//! reported.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use cairn_bsddump::{NextVolume, RECORD, Reader, VolumeLabel};

use super::super::dump::volumes::{listed, numbered};
use super::super::image::files::{allow_many_files, opening};
use crate::arguments::Restore;
use crate::exit::Failure;
use crate::output::{Output, note_line};

type Source = Box<dyn Read>;

/// Records of a volume to search for one that identifies it, if the label does not: more than a
/// header and its pieces.
const LOOKED_AT: usize = 1100;
/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Opens the requested input.
pub fn open(asked: &Restore, output: Output) -> Result<Reader<Source>, Failure> {
    let file = &asked.file;
    let paths = match asked.multi_volume {
        true => numbered_from(file)?,
        // A file may have a comma in its name.
        false if !file.exists() && listed(file).len() > 1 => listed(file),
        false => vec![file.clone()],
    };
    if let [one] = &paths[..]
        && !asked.multi_volume
    {
        let from: Source = match one.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => Box::new(open_file(one)?),
        };
        return Ok(Reader::open(Box::new(BufReader::with_capacity(BUFFER, from)) as Source)?);
    }
    allow_many_files();
    let files = paths.iter().map(|path| Ok((path.clone(), open_file(path)?)));
    let files = files.collect::<Result<Vec<_>, Failure>>()?;
    look(&files, output)?;
    let mut files = files.into_iter().map(|(_, file)| file);
    let source = |file: File| Box::new(BufReader::with_capacity(BUFFER, file)) as Source;
    let first = files.next().map(source).ok_or_else(|| missing(file))?;
    let next: NextVolume<Source> = Box::new(move |_| Ok(files.next().map(source)));
    Ok(Reader::open_volumes(first, next)?)
}

fn missing(path: &Path) -> Failure {
    let message = format!("{}: No such file or directory", path.display());
    Failure::new(ErrorKind::NotFound, message, "name the dump with -f")
}

fn open_file(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let message = format!("{}: {error}", path.display());
            Failure::new(ErrorKind::NotFound, message, "name the dump with -f")
        }
        _ => opening(path, &error),
    })
}

/// `PREFIX001` and so on, as many as there are. A gap does not end them.
fn numbered_from(prefix: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for number in 1.. {
        let path = numbered(prefix, number);
        if !path.exists() {
            break;
        }
        let is_last = is_end_of(&path, number)?;
        paths.push(path);
        if is_last {
            // Higher numbers belong to a longer dump that this one replaced.
            return Ok(paths);
        }
    }
    let wanted = numbered(prefix, paths.len() as u32 + 1);
    if paths.is_empty() {
        return Err(missing(&wanted));
    }
    let beyond = (2..=16).map(|more| numbered(prefix, paths.len() as u32 + more)).find(|path| path.exists());
    match beyond {
        None => Ok(paths),
        Some(beyond) => Err(Failure::new(
            ErrorKind::NotFound,
            format!("{} is missing, and {} is there", wanted.display(), beyond.display()),
            "put it back; or restore a part from the volumes before it with -f A,B,C",
        )),
    }
}

/// Whether a file is volume `number` of a dump and has its end.
pub fn is_end_of(path: &Path, number: u32) -> Result<bool, Failure> {
    if !path.metadata().is_ok_and(|meta| meta.is_file()) {
        return Ok(false);
    }
    let file = open_file(path)?;
    let Some(at) = (file.metadata()?.len() / RECORD as u64).checked_sub(1) else { return Ok(false) };
    let last = record_at(path, &file, at * RECORD as u64)?;
    let label = last.and_then(|record| VolumeLabel::of(&record));
    Ok(label.is_some_and(|label| label.is_end && u32::try_from(label.volume) == Ok(number)))
}

/// Whether the files are the volumes of one dump, in order, as far as that is known before they are
/// read.
fn look(files: &[(PathBuf, File)], output: Output) -> Result<(), Failure> {
    let mut dump = None;
    for (index, (path, file)) in files.iter().enumerate() {
        // A tape can't be read twice; its label is checked when its turn comes.
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            continue;
        }
        let Some(label) = label_of(path, file)? else {
            // The reader reports a fault of the first volume.
            if index == 0 {
                continue;
            }
            let message = format!("{} is not a volume of a BSD dump", path.display());
            return Err(Failure::new(ErrorKind::Usage, message, NEXT));
        };
        let wanted = index as i32 + 1;
        let is_of_it = *dump.get_or_insert((label.date, label.since)) == (label.date, label.since);
        if !is_of_it || label.volume != wanted {
            let what = if is_of_it { "the dump" } else { "another dump" };
            let message = format!(
                "{} is volume {} of {what}, and volume {wanted} is needed here",
                path.display(),
                label.volume
            );
            return Err(Failure::new(ErrorKind::Usage, message, NEXT));
        }
    }
    if let Some((path, file)) = files.last()
        && !ends(path, file)?
        && !output.json
        && !output.quiet
    {
        let next = files.len() + 1;
        note_line(&format!(
            "the dump continues after {}: volume {next} is missing; reading the rest",
            path.display()
        ));
    }
    Ok(())
}

const NEXT: &str = "name all volumes of one dump in order, with -f A,B,C or -M";

/// The first record that identifies the volume: that is the label, unless it is damaged.
fn label_of(path: &Path, file: &File) -> Result<Option<VolumeLabel>, Failure> {
    for index in 0..LOOKED_AT {
        let Some(record) = record_at(path, file, (index * RECORD) as u64)? else { return Ok(None) };
        if let Some(label) = VolumeLabel::of(&record) {
            return Ok(Some(label));
        }
    }
    Ok(None)
}

/// Whether the last volume has the end of the dump. For anything but a regular file this is
/// unknown, and assumed.
fn ends(path: &Path, file: &File) -> Result<bool, Failure> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(true);
    }
    let Some(at) = (meta.len() / RECORD as u64).checked_sub(1) else { return Ok(false) };
    let last = record_at(path, file, at * RECORD as u64)?;
    Ok(last.and_then(|record| VolumeLabel::of(&record)).is_some_and(|label| label.is_end))
}

fn record_at(path: &Path, file: &File, at: u64) -> Result<Option<[u8; RECORD]>, Failure> {
    use std::os::unix::fs::FileExt;
    let mut record = [0; RECORD];
    match file.read_exact_at(&mut record, at) {
        Ok(()) => Ok(Some(record)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(opening(path, &error)),
    }
}
