//! The files of dumps: opened here, with the rights of whoever runs the command, and handed over to the server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cairn_server::HANDOVER_FILES_MAX;
use cairn_server::api::ErrorKind;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::client::Place;
use crate::exit::Failure;

/// Where a part of a dump goes.
pub struct Target {
    file: File,
    /// The file under its temporary name, and under its own: it gets that once it is whole.
    names: Option<(PathBuf, PathBuf)>,
    called: String,
}

impl Target {
    /// Standard output.
    pub fn pipe() -> Result<Self, Failure> {
        let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { file, names: None, called: "the pipe".to_owned() })
    }

    /// A file for each path; with one path and several `streams`, `PATH.1` to `PATH.N`.
    pub fn open_all(paths: &[PathBuf], streams: Option<u32>, overwrite: bool) -> Result<Vec<Self>, Failure> {
        let wrong =
            |message: String| Failure::new(ErrorKind::Usage, message, "see `cairn image dump --help`");
        let streams = streams.map_or(paths.len(), |streams| streams as usize);
        let paths = match paths {
            [one] if streams > 1 => {
                (1..=streams).map(|number| PathBuf::from(format!("{}.{number}", one.display()))).collect()
            }
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
        paths.iter().map(|path| Self::open(path, overwrite)).collect()
    }

    /// A file under its temporary name; a device or pipe as it is.
    pub fn open(path: &Path, overwrite: bool) -> Result<Self, Failure> {
        let called = path.display().to_string();
        let failed = |error: std::io::Error| opening(path, &error);
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            // A tape, a named pipe, /dev/null: nothing to rename.
            let file = File::options().write(true).open(path).map_err(failed)?;
            return Ok(Self { file, names: None, called });
        }
        refuse_existing(path, overwrite)?;
        let temporary = PathBuf::from(format!("{called}.partial"));
        let file = File::create(&temporary).map_err(failed)?;
        Ok(Self { file, names: Some((temporary, path.to_owned())), called })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The part is whole and durable: it gets its name.
    pub fn keep(mut self) -> Result<String, Failure> {
        if let Some((temporary, path)) = self.names.take() {
            fs::rename(&temporary, &path).map_err(|error| opening(&path, &error))?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())?;
        }
        Ok(std::mem::take(&mut self.called))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((temporary, _)) = self.names.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Refuses a file that is there, unless it may be replaced.
pub fn refuse_existing(path: &Path, overwrite: bool) -> Result<(), Failure> {
    if overwrite || !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let next = "name another file, or replace it with --overwrite";
    Err(Failure::new(ErrorKind::Taken, format!("{} exists", path.display()), next))
}

/// What a file is called in messages.
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

/// A file that can't be opened.
pub fn opening(path: &Path, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Failed,
    };
    Failure::new(
        kind,
        format!("{}: {error}", path.display()),
        "check the path and its rights, and run it again",
    )
}

/// Files that the server has. Dropping this ends what it does with them.
pub struct Handed {
    connection: BufReader<UnixStream>,
    /// What a request names them by.
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

    /// The connection, for who says on it that all is kept, or ends it.
    pub fn line(&self) -> std::io::Result<UnixStream> {
        self.connection.get_ref().try_clone()
    }
}
