//! The files of dumps: opened here, with the rights of the user of the command, and passed to the
//! server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use cairn_api::HANDOVER_FILES_MAX;
use cairn_api::client::Place;
use cairn_bsddump::{RECORD, VolumeLabel};
use cairn_format::dump::DumpHeader;
use rustix::fs::SeekFrom;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::exit::Failure;

/// The mode of a file of a dump.
const PRIVATE: u32 = 0o600;

/// Bytes that are checked at once.
const PIECE: usize = 1 << 20;

/// The destination of a part of a dump.
pub struct Target {
    file: File,
    names: Option<Names>,
    called: String,
}

/// A file under its temporary name, and under its own: it gets that once it is whole.
struct Names {
    temporary: PathBuf,
    path: PathBuf,
    /// It is removed if the dump fails.
    passing: bool,
}

impl Target {
    /// Standard output.
    pub fn pipe() -> Result<Self, Failure> {
        let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { file, names: None, called: "the pipe".to_owned() })
    }

    /// A file for each of the paths. With `overwrite` existing files are replaced, with `anew` the
    /// parts of interrupted dumps.
    pub fn open_all(paths: &[PathBuf], overwrite: bool, anew: bool) -> Result<Vec<Self>, Failure> {
        let mut targets =
            paths.iter().map(|path| Self::look(path, overwrite, anew)).collect::<Result<Vec<_>, _>>()?;
        // No file is truncated before all of them may be. The server truncates the parts of an
        // interrupted dump, after it has discarded that dump.
        targets.iter_mut().filter(|target| !anew || target.is_new()).try_for_each(Self::empty)?;
        Ok(targets)
    }

    /// A file for the path.
    pub fn open(path: &Path, overwrite: bool) -> Result<Self, Failure> {
        let mut target = Self::look(path, overwrite, false)?;
        target.empty()?;
        Ok(target)
    }

    fn look(path: &Path, overwrite: bool, anew: bool) -> Result<Self, Failure> {
        let called = path.display().to_string();
        let existing = fs::metadata(path).ok();
        if existing.as_ref().is_some_and(|found| !found.is_file()) {
            // A tape, a named pipe, a disk, /dev/null: nothing to rename.
            let is_disk = existing.is_some_and(|found| found.file_type().is_block_device());
            // The system refuses a disk that is mounted, or in use by another device.
            let exclusive = if is_disk { rustix::fs::OFlags::EXCL.bits() as i32 } else { 0 };
            let opened = File::options().write(true).custom_flags(exclusive).open(path);
            let file = opened.map_err(|error| match error.kind() {
                std::io::ErrorKind::ResourceBusy => in_use(&called),
                _ => opening(path, &error),
            })?;
            return Ok(Self { file, names: None, called });
        }
        if existing.is_some() && !overwrite {
            return Err(exists(&called));
        }
        let temporary = temporary(path);
        let failed = |error: std::io::Error| opening(&temporary, &error);
        let mut options = File::options();
        // A dump contains the files of all users, so only its owner may read it.
        options.read(true).write(true).mode(PRIVATE);
        let (file, passing) = match options.clone().create_new(true).open(&temporary) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                (options.open(&temporary).map_err(failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        let names = Some(Names { temporary: temporary.clone(), path: path.to_owned(), passing });
        let target = Self { file, names, called };
        claim(&target.file, &temporary)?;
        if !passing && !is_left_by_a_dump(&target.file).map_err(failed)? {
            return Err(Failure::new(
                ErrorKind::Taken,
                format!("{} is there, and is nothing that a dump has left", temporary.display()),
                "move it away, or name another file",
            ));
        }
        if !passing && !overwrite && !anew && dump_in(&target.file).is_some() {
            return Err(Failure::new(
                ErrorKind::Taken,
                format!("{} is part of an unfinished image dump", temporary.display()),
                "resume that dump with --resume; or name another file, or overwrite it with --overwrite",
            ));
        }
        target.keep_private()?;
        Ok(target)
    }

    /// An existing file may be accessible to others.
    fn keep_private(&self) -> Result<(), Failure> {
        let private = fs::Permissions::from_mode(PRIVATE);
        self.file.set_permissions(private).map_err(|error| opening(Path::new(&self.called), &error))
    }

    /// Whether opening it here has created the file.
    fn is_new(&self) -> bool {
        self.names.as_ref().is_some_and(|names| names.passing)
    }

    /// The file under its temporary name has nothing any more, and its name survives a power cut.
    fn empty(&mut self) -> Result<(), Failure> {
        let Some(names) = &mut self.names else { return Ok(()) };
        self.file
            .set_len(0)
            .and_then(|()| sync_folder(&names.path))
            .map_err(|error| opening(&names.temporary, &error))?;
        names.passing = true;
        Ok(())
    }

    /// The file of a part that was cut: under its temporary name, or under its own when it got that
    /// already.
    pub fn reopen(path: &Path, overwrite: bool) -> Result<Self, Failure> {
        let called = path.display().to_string();
        let temporary = temporary(path);
        let existing = fs::metadata(path);
        if existing.as_ref().is_ok_and(|found| !found.is_file()) {
            return Err(not_resumable());
        }
        match File::options().read(true).write(true).open(&temporary) {
            Ok(_) if existing.is_ok() && !overwrite => Err(exists(&called)),
            Ok(file) => {
                let names =
                    Some(Names { temporary: temporary.clone(), path: path.to_owned(), passing: false });
                let target = Self { file, names, called };
                claim(&target.file, &temporary)?;
                target.keep_private()?;
                Ok(target)
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(opening(&temporary, &error)),
            Err(_) if existing.is_ok() => {
                // The process that renamed it may have been killed before the name was durable, and
                // the file counts from now on.
                sync_folder(path).map_err(|error| opening(path, &error))?;
                let file = File::open(path).map_err(|error| opening(path, &error))?;
                let target = Self { file, names: None, called };
                claim(&target.file, path)?;
                Ok(target)
            }
            Err(_) => Err(Failure::new(
                ErrorKind::NotFound,
                format!("neither {} nor {called} is there", temporary.display()),
                "mount its file system, or give its present place with --to FILE (the file is FILE.partial); or make another dump with --anew",
            )),
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it can be read again, unlike a pipe or a device.
    pub fn lasts(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.is_file())
    }

    /// Whether dropping this removes the file while it is incomplete.
    pub fn passes(&mut self, passing: bool) {
        if let Some(names) = &mut self.names {
            names.passing = passing;
        }
    }

    /// The part is whole and durable: it gets its name.
    pub fn keep(mut self) -> Result<String, Failure> {
        if let Some(names) = self.names.take() {
            give_name(&names.temporary, &names.path)?;
        }
        Ok(std::mem::take(&mut self.called))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(names) = self.names.take()
            && names.passing
        {
            let _ = fs::remove_file(names.temporary);
        }
    }
}

/// No two dumps write the same file: its lock belongs to the open file, which the server shares
/// with the client.
pub fn claim(file: &File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(Failure::new(
            ErrorKind::Busy,
            format!("{} is written by another dump", path.display()),
            "wait until that is over, or name another file",
        )),
        // Some file systems have no locks.
        _ => Ok(()),
    }
}

/// Gives a part that is whole and durable its name, which is durable as well then.
pub fn give_name(temporary: &Path, path: &Path) -> Result<(), Failure> {
    let renamed = fs::rename(temporary, path).and_then(|()| sync_folder(path));
    renamed.map_err(|error| opening(path, &error))
}

/// As many open files as the system gives: a dump may have thousands of volumes, each open until
/// all are whole.
pub fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Refuses an existing file, unless it may be replaced.
pub fn refuse_existing(path: &Path, overwrite: bool) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && !overwrite => Err(exists(&path.display().to_string())),
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

/// The name of a file until it is complete.
pub fn temporary(path: &Path) -> PathBuf {
    with_end(path, ".partial")
}

/// A path with a suffix; all of its bytes are kept.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The id of the dump that a file is a part of.
pub fn dump_in(file: &File) -> Option<String> {
    let mut head = [0; DumpHeader::SIZE];
    // The writer of the file begins at the present offset.
    file.read_exact_at(&mut head, 0).ok()?;
    Some(DumpHeader::parse(&head).ok()?.dump.to_string())
}

/// Whether a file with a temporary name may be the remainder of a dump, which a new one overwrites:
/// any other file belongs to the user. After a power cut, bytes that were not on the disk yet are
/// zero.
fn is_left_by_a_dump(file: &File) -> std::io::Result<bool> {
    let mut head = [0; RECORD];
    let mut have = 0;
    while let Some(rest) = head.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, have as u64)? {
            0 => break,
            count => have += count,
        }
    }
    let head = &head[..have];
    if DumpHeader::may_begin(head) || VolumeLabel::may_begin(head) {
        return Ok(true);
    }
    // Images of disks and of file systems may begin with as many zeroes.
    let is_nothing = has_nothing(file);
    // The writer of the file begins at the present offset.
    rustix::fs::seek(file, SeekFrom::Start(0))?;
    is_nothing
}

/// Whether a file has zeroes alone. Its holes are not read.
fn has_nothing(file: &File) -> std::io::Result<bool> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        // If holes cannot be found, all of it is data.
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            found => found.unwrap_or(at),
        };
        match file.read_at(&mut piece, at)? {
            0 => return Ok(true),
            count if piece[..count].iter().any(|byte| *byte != 0) => return Ok(false),
            count => at += count as u64,
        }
    }
}

fn exists(called: &str) -> Failure {
    let next = "name another file, or replace it with --overwrite";
    Failure::new(ErrorKind::Taken, format!("{called} exists"), next)
}

fn in_use(called: &str) -> Failure {
    Failure::new(
        ErrorKind::Busy,
        format!("{called} is in use: it is mounted, or a part of a volume or of something else"),
        "name another disk or a file; the data on this one would be lost",
    )
}

/// A pipe or a device was named for a dump that is to be resumed.
pub fn not_resumable() -> Failure {
    Failure::new(
        ErrorKind::Usage,
        "a dump into a pipe or a device cannot be resumed, because its data cannot be read back",
        "make another dump with --anew; a dump into files with --to FILE can be resumed",
    )
}

/// The requested paths: with one path and several `streams`, `PATH.1` to `PATH.N`.
pub fn of_streams(paths: &[PathBuf], streams: Option<u32>) -> Result<Vec<PathBuf>, Failure> {
    let wrong = |message: String| Failure::new(ErrorKind::Usage, message, "see `cairn image dump --help`");
    let streams = streams.map_or(paths.len(), |streams| streams as usize);
    let paths = match paths {
        [one] if streams > 1 => (1..=streams).map(|number| with_end(one, &format!(".{number}"))).collect(),
        paths if paths.len() == streams => paths.to_vec(),
        paths => {
            return Err(wrong(format!(
                "{streams} streams go to as many files, or to one name, not to {}",
                paths.len()
            )));
        }
    };
    if paths.len() > HANDOVER_FILES_MAX {
        return Err(wrong(format!("a dump has at most {HANDOVER_FILES_MAX} parts")));
    }
    Ok(paths)
}

/// The name of a file in messages.
pub fn called(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

/// Opens files to read; `-` is standard input.
pub fn open_sources(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let open = |path: &PathBuf| match path.as_os_str() == "-" {
        true => Ok(File::from(std::io::stdin().as_fd().try_clone_to_owned()?)),
        false => File::open(path).map_err(|error| opening(path, &error)),
    };
    paths.iter().map(open).collect()
}

/// Whether an open file is a dump that can be read at any place. A file whose offset is not 0, as
/// that of standard input may be, has other bytes before the dump: it is read from there, as a pipe
/// is.
pub fn is_read_anywhere(file: &File) -> std::io::Result<bool> {
    Ok(file.metadata()?.is_file() && rustix::fs::tell(file)? == 0)
}

/// A file that can't be opened.
pub fn opening(path: &Path, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Failed,
    };
    let next = match kind {
        ErrorKind::NoSpace => "free space there, or name another place, and run it again",
        _ => "check the path and its rights, and run it again",
    };
    Failure::new(kind, format!("{}: {error}", path.display()), next)
}

/// Files passed to the server. Dropping this cancels its work with them.
pub struct Handed {
    connection: BufReader<UnixStream>,
    /// The name of the files in a request.
    pub ticket: String,
}

impl Handed {
    /// Hands files over to the server at `place`.
    pub fn give<'a>(place: &Place, files: impl Iterator<Item = &'a File>) -> Result<Self, Failure> {
        let socket = match place {
            Place::Data(dir) => dir.join("handover.sock"),
            Place::Unix(control) => control.with_file_name("handover.sock"),
            Place::Tcp(..) => {
                return Err(Failure::new(
                    ErrorKind::Usage,
                    "the server gets open files, and these do not go over TCP",
                    "run the command on the server's machine with --data DIR, for example by `ssh HOST cairn image ...`",
                ));
            }
        };
        let failed = |error: std::io::Error| {
            let next = "start one with `cairn serve`, or name its directory with --data";
            Failure::new(
                ErrorKind::Failed,
                format!("no server takes files at {}: {error}", socket.display()),
                next,
            )
        };
        let connection = UnixStream::connect(&socket).map_err(failed)?;
        let descriptors: Vec<BorrowedFd<'_>> = files.map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDOVER_FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&connection, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|error| failed(error.into()))?;
        let mut connection = BufReader::new(connection);
        let mut ticket = String::new();
        connection.read_line(&mut ticket).map_err(failed)?;
        Ok(Self { connection, ticket: ticket.trim().to_owned() })
    }

    /// The connection, to report on it that all is durable, or to close it.
    pub fn line(&self) -> std::io::Result<UnixStream> {
        self.connection.get_ref().try_clone()
    }
}

#[cfg(test)]
mod tests;
