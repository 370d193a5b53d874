//! The volumes of a dump: split here, with the rights of the user of the command, from the pipe
//! into which the server writes them in a row.
//!
//! A volume gets its name when the whole dump is complete, and the server records the date of the
//! dump only then. The server waits until the client reports that the last volume is durable.

use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use cairn_api::ErrorKind;
use cairn_api::client::Client;
use cairn_bsddump::{Options, RECORD, VOLUME_RECORDS_MIN};

use super::super::image::files::{
    Handed, Target, allow_many_files, claim, give_name, opening, refuse_existing, temporary,
};
use super::super::restore::volumes::is_end_of;
use crate::arguments::Dump;
use crate::exit::Failure;

/// Bytes that are read at once if the kernel does not splice them.
const PIECE: usize = 1 << 16;

/// The names of the volumes.
enum Names {
    These(Vec<PathBuf>),
    /// A number of three digits follows it.
    Prefix(PathBuf),
}

/// How a dump is cut.
pub struct Volumes {
    names: Names,
    /// The requested records.
    pub records: u64,
    /// Bytes of each volume but the last.
    bytes: u64,
    overwrite: bool,
}

/// The name of a volume: the prefix and its number.
pub fn numbered(prefix: &Path, number: u32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("{number:03}"));
    name.into()
}

/// `A,B,C` as paths.
pub fn listed(names: &Path) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let names = names.as_os_str().as_bytes().split(|byte| *byte == b',');
    names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name))).collect()
}

/// Searches these files for a complete dump, of any number of volumes, whose volumes have no names
/// yet because the command was killed at its end. The date of such a dump may be recorded, and
/// later levels may be based on it, so it is not overwritten. With permission to replace it, its
/// volumes get their names, and stay until another dump is complete.
///
/// # Errors
/// [`ErrorKind::Taken`] if such a dump exists and must not be replaced; [`ErrorKind::Busy`] while
/// another dump is being made there.
pub fn keep_whole(paths: &[PathBuf], overwrite: bool) -> Result<(), Failure> {
    for (index, last) in paths.iter().enumerate() {
        let partial = temporary(last);
        if !partial.is_file() || !is_end_of(&partial, index as u32 + 1)? {
            continue;
        }
        claim(&File::open(&partial).map_err(|error| opening(&partial, &error))?, &partial)?;
        if !overwrite {
            return Err(Failure::new(
                ErrorKind::Taken,
                format!("{} is the end of a whole dump, which has no name yet", partial.display()),
                "if `cairn dump --dates` has that dump, later levels stand on it: take `.partial` off the name of each of its files; if not, remove them. With --overwrite they get their names, and are replaced once this dump is whole",
            ));
        }
        for path in &paths[..=index] {
            let partial = temporary(path);
            if partial.is_file() {
                give_name(&partial, path)?;
            }
        }
    }
    Ok(())
}

/// `/dev/null` and `/dev/zero`.
fn keeps_nothing(path: &Path) -> bool {
    let sinks = [rustix::fs::makedev(1, 3), rustix::fs::makedev(1, 5)];
    path.metadata().is_ok_and(|found| found.file_type().is_char_device() && sinks.contains(&found.rdev()))
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Usage, message.into(), "see `cairn dump --help`")
}

impl Volumes {
    /// The requested volumes; none for a dump in one piece.
    pub fn of(asked: &Dump) -> Result<Option<Self>, Failure> {
        let records = match (asked.records, &asked.volume_size) {
            (Some(records), _) => records,
            (None, Some(size)) if size.0 < VOLUME_RECORDS_MIN * RECORD as u64 => {
                return Err(wrong(format!("a volume has {VOLUME_RECORDS_MIN} KiB at least")));
            }
            (None, Some(size)) => size.0 / RECORD as u64,
            (None, None) => return Ok(None),
        };
        let Some(file) = &asked.file else { return Ok(None) };
        if file.as_os_str() == "-" {
            return Err(wrong("volumes are files or tapes, and standard output is one pipe"));
        }
        let names = match asked.multi_volume {
            true => Names::Prefix(file.clone()),
            false => Names::These(listed(file)),
        };
        let options = Options { volume_records: Some(records), ..Options::default() };
        let bytes = options.volume_bytes().unwrap_or(u64::MAX);
        let volumes = Self { names, records, bytes, overwrite: asked.overwrite };
        volumes.refuse_existing()?;
        keep_whole(&volumes.begun(), volumes.overwrite)?;
        Ok(Some(volumes))
    }

    /// Refuses files at the start that would be in the way later.
    fn refuse_existing(&self) -> Result<(), Failure> {
        let prefix = match &self.names {
            Names::These(paths) => {
                let twice = paths.iter().enumerate().find(|(index, path)| paths[..*index].contains(path));
                if let Some((_, path)) = twice {
                    return Err(wrong(format!("{} is named twice", path.display())));
                }
                if let Some(path) = paths.iter().find(|path| keeps_nothing(path)) {
                    return Err(Failure::new(
                        ErrorKind::Usage,
                        format!("{} keeps nothing, and the dump would count", path.display()),
                        "to see how long one takes, make it without volumes: it does not count then",
                    ));
                }
                return paths.iter().try_for_each(|path| refuse_existing(path, self.overwrite));
            }
            Names::Prefix(prefix) => prefix,
        };
        let begins = prefix.file_name().ok_or_else(|| wrong("the prefix of the volumes is a directory"))?;
        let begins = begins.as_encoded_bytes();
        let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        for entry in fs::read_dir(folder).map_err(|error| opening(folder, &error))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.as_encoded_bytes().strip_prefix(begins);
            if number.is_some_and(|digits| digits.len() >= 3 && digits.iter().all(u8::is_ascii_digit)) {
                refuse_existing(&folder.join(&name), self.overwrite)?;
            }
        }
        Ok(())
    }

    /// The volumes that there are, whole or not.
    fn begun(&self) -> Vec<PathBuf> {
        match &self.names {
            Names::These(paths) => paths.clone(),
            Names::Prefix(prefix) => {
                let all = (1..).map(|number| numbered(prefix, number));
                all.take_while(|path| path.exists() || temporary(path).exists()).collect()
            }
        }
    }

    fn path(&self, number: u32) -> Result<PathBuf, Failure> {
        match &self.names {
            Names::Prefix(prefix) => Ok(numbered(prefix, number)),
            Names::These(paths) => paths.get(number as usize - 1).cloned().ok_or_else(|| {
                Failure::new(
                    ErrorKind::NoSpace,
                    format!("the dump continues after the {} volume(s) that -f names", paths.len()),
                    "name more or larger ones, or let it make as many as it takes with -M",
                )
            }),
        }
    }

    /// Reads volumes from the pipe until it ends, and puts them where they belong.
    fn cut(&self, mut from: PipeReader) -> Result<Vec<Target>, Failure> {
        let mut made = Vec::new();
        let mut buffer = vec![0; PIECE];
        loop {
            // A volume begins only when it has data.
            let most = self.bytes.min(PIECE as u64) as usize;
            let first = read_some(&mut from, &mut buffer[..most])?;
            if first == 0 {
                return Ok(made);
            }
            let path = self.path(made.len() as u32 + 1)?;
            let target = Target::open(&path, self.overwrite)?;
            let failed = |error: io::Error| opening(&path, &error);
            let mut file: &File = target.file();
            file.write_all(&buffer[..first]).map_err(failed)?;
            io::copy(&mut (&mut from).take(self.bytes - first as u64), &mut file).map_err(failed)?;
            let kind = file.metadata().map_err(failed)?.file_type();
            // Tapes have no such thing.
            if kind.is_file() || kind.is_block_device() {
                file.sync_all().map_err(failed)?;
            }
            made.push(target);
        }
    }
}

fn read_some(from: &mut PipeReader, buffer: &mut [u8]) -> Result<usize, Failure> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// The volumes while they are written.
pub struct Cutting {
    /// The files passed to the server.
    pub handed: Handed,
    line: UnixStream,
    thread: JoinHandle<Result<Vec<Target>, Failure>>,
}

impl Cutting {
    /// Passes a pipe to the server, and splits its output.
    pub fn start(volumes: Volumes, client: &Client) -> Result<Self, Failure> {
        allow_many_files();
        let (from, into) = io::pipe()?;
        let into = File::from(OwnedFd::from(into));
        let handed = Handed::give(client.place(), std::iter::once(&into))?;
        let (line, mut own) = (handed.line()?, handed.line()?);
        let work = move || {
            let cut = volumes.cut(from);
            // For a dump that failed at the server it is useless, and does no harm.
            let told = match &cut {
                Ok(_) => own.write_all(b"k"),
                Err(_) => own.shutdown(Shutdown::Both),
            };
            drop(told);
            cut
        };
        let thread = std::thread::Builder::new().name("volumes".to_owned()).spawn(work)?;
        Ok(Self { handed, line, thread })
    }

    /// The server has finished, with this `outcome`. Gives the volumes their names, and returns
    /// these. Unless the dump `is_over`, its date may be recorded: then no volume is removed.
    pub fn end<T>(
        self,
        outcome: Result<Option<T>, Failure>,
        is_over: bool,
    ) -> Result<Option<(T, String)>, Failure> {
        let is_whole = matches!(outcome, Ok(Some(_)));
        if !is_whole {
            // Otherwise the server may keep writing, and the pipe never ends.
            let _ = self.line.shutdown(Shutdown::Both);
        }
        let cut = self.thread.join().map_err(|_| {
            Failure::new(ErrorKind::Failed, "cutting the dump into volumes failed", "run it again")
        })?;
        // A failure here is the cause of the failure there.
        let mut made = cut?;
        if !is_over {
            made.iter_mut().for_each(|target| target.passes(false));
        }
        let outcome = outcome.map_err(|failure| if is_over { failure } else { super::stays(failure) });
        let Some(result) = outcome? else { return Ok(None) };
        // The date is recorded: if a volume does not get its name, it keeps its temporary one, and
        // so do those after it.
        made.iter_mut().for_each(|target| target.passes(false));
        let names = made.into_iter().map(Target::keep).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(super::stays)?;
        let told = match &names[..] {
            [one] => one.clone(),
            [first, .., last] => format!("{} volumes, {first} to {last}", names.len()),
            [] => String::new(),
        };
        Ok(Some((result, told)))
    }
}
