//! Mounts: made by the kernel itself for root, by `fusermount3` for others; and unmounted again,
//! also those of a server that died.
//!
//! A mount that is unmounted lazily, or whose directory was removed, has no place any more and ends
//! when its last user leaves. Its users can be listed, and cut off.
//!
//! No thread of this process uses a mount of its own. Its request to the kernel would wait for an
//! answer by this process, and for ever if the process is killed. Such a thread cannot be ended,
//! and keeps the connection open whose closing would end all waiting. So the process would not end,
//! and neither would the programs that work in the mount. A separate program asks instead.

use std::ffi::CString;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::FileId;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::MountError;
use crate::operations::FileSystem;
use crate::session::Connection;
use crate::shown::{Shown, View};
use crate::users::users_of;

/// The kind of file system that the kernel lists.
const KIND: &str = "fuse.cairn";
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// With `-f`, has the file system of a path written.
const SYNC: &str = "sync";
/// The environment variable for the socket on which the helper returns the device; it is its
/// standard input.
const HELPER_SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");
/// Bytes that the kernel reads ahead; its own choice is an eighth of it, and each request costs a
/// change of processes.
const READ_AHEAD_KIB: u32 = 1024;
/// How long the end of a mount is waited for.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The mounts of this process.
const TABLE: &str = "/proc/self/mountinfo";
/// The kernel's control of FUSE: a directory for each connection, called by the minor number of its
/// file system, with a file that ends it.
const CONTROL: (&str, &str) = ("fusectl", "/sys/fs/fuse/connections");

/// The kernel's number of a file system: major and minor.
pub(crate) type DeviceNumber = (u32, u32);

/// How it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// Other users than the one of the server get in. Root's mounts are for all anyway; others need
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Device files are devices. Root only.
    pub devices: bool,
    /// Set-user-id bits count. Root only.
    pub set_user_id: bool,
}

/// A mount. Dropping it leaves it mounted as long as the process lives.
pub struct Mount {
    point: PathBuf,
    device: DeviceNumber,
    connection: Arc<Connection>,
}

impl Mount {
    /// Mounts `view` on the directory `point`, and serves it on threads of its own. `source` is the
    /// name in the kernel's lists, such as `vol0@monday`. `on_end` is called when it is unmounted
    /// and has no users.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn start(
        point: &Path,
        source: &str,
        view: View,
        options: MountOptions,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, MountError> {
        let given = point;
        let point = given.canonicalize().and_then(|path| {
            let is_directory = path.metadata()?.is_dir();
            if is_directory { Ok(path) } else { Err(std::io::ErrorKind::NotADirectory.into()) }
        });
        let point = point.map_err(|source| MountError::Directory { path: given.to_owned(), source })?;
        let read_only = !matches!(view, View::Live(_));
        let shown = Shown::new(view)?;
        let device = if rustix::process::geteuid().is_root() {
            mount_as_root(&point, source, read_only, options)?
        } else {
            mount_with_helper(&point, source, read_only, options)?
        };
        let started = Connection::start(device, FileSystem::new(shown), source, on_end);
        let taken_back = |_: &std::io::Error| drop(unmount(&point, true));
        let connection = started.inspect_err(taken_back)?;
        let device = device_at(&point).inspect_err(taken_back)?;
        read_ahead(device);
        Ok(Self { point, device, connection })
    }

    /// Its first mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// True when the kernel has released it.
    pub fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// Moves a mount of a mirror to the image that it shows now: path lookups from the root use it
    /// from now on. Also has the kernel forget snapshots that are deleted or renamed, so that their
    /// blocks can be reused.
    ///
    /// Takes locks of the kernel: do not call it from a thread that holds a resource needed by a
    /// file operation.
    pub fn refresh(&self) {
        match self.connection.files.shown.follow() {
            Ok(Some(names)) => {
                self.connection.forget_content(crate::abi::FUSE_ROOT_ID);
                for name in names {
                    self.connection.forget_name(crate::abi::FUSE_ROOT_ID, &name);
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(point = %self.point.display(), %error, "a mount stays at its image");
            }
        }
        let shown = &self.connection.files.shown;
        let gone = shown.gone();
        if gone.is_empty() {
            return;
        }
        for directory in shown.looked_into() {
            gone.iter().for_each(|name| self.connection.forget_name(directory, name.as_bytes()));
        }
        // The kernel does not know snapshots that were only listed, and so does not forget them.
        shown.drop_unknown();
    }

    /// The directories on which it is mounted, for this process: of one that was shown elsewhere as
    /// well not only the first.
    ///
    /// # Errors
    /// When the table of mounts can't be read; a mount without a place is not an error.
    pub fn places(&self) -> std::io::Result<Vec<PathBuf>> {
        let mine = |line: Line| (line.device == self.device && line.whole).then_some(line.path);
        Ok(lines()?.into_iter().filter_map(mine).collect())
    }

    /// Has the kernel send the written data that it still caches. Concurrent writes may come later.
    ///
    /// # Errors
    /// When data could not be written.
    pub fn collect(&self) -> std::io::Result<()> {
        if !self.connection.files.shown.is_live() || self.has_ended() {
            return Ok(());
        }
        // Another file system can cover it.
        if let Some(place) = self.places()?.iter().find(|place| is_on(place, self.device)) {
            return sync(place);
        }
        self.collect_files();
        Ok(())
    }

    /// The same file by file, when there is no place for a call for all of them: it was unmounted,
    /// and programs still write to their open files.
    fn collect_files(&self) {
        for number in self.connection.files.written() {
            self.connection.forget_content(number);
        }
    }

    /// Has the kernel look a name up again that the server itself has created in the live tree, or
    /// removed: the kernel caches names, missing names and listings.
    ///
    /// Takes locks of the kernel: as [`Mount::refresh`].
    pub fn forget_name(&self, directory: FileId, name: &[u8]) {
        let shown = &self.connection.files.shown;
        if !shown.is_live() || self.has_ended() {
            return;
        }
        let Ok((slot, _)) = shown.file(crate::abi::FUSE_ROOT_ID) else { return };
        let Ok(number) = shown.number(&slot, directory) else { return };
        self.connection.forget_name(number, name);
        // The listing, and the time of its last change.
        self.connection.forget_content(number);
    }

    /// Its users, such as `bash (1234)`, as far as they can be found.
    pub fn users(&self) -> Vec<String> {
        users_of(self.device)
    }

    /// Ends it, wherever it is mounted and whatever uses it: every operation of programs on it
    /// fails from now on. Their writes so far are collected first.
    ///
    /// # Errors
    /// When the kernel has no control of FUSE here, or it does not end.
    pub fn cut(&self) -> Result<(), MountError> {
        self.collect_files();
        if !self.has_ended() {
            cut(self.device.1)?;
        }
        match self.wait_for_end() {
            true => Ok(()),
            false => Err(MountError::System(std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// Waits until it is unmounted and has no users; false on a time-out.
    pub fn wait_for_end(&self) -> bool {
        self.connection.wait_for_end(END_PATIENCE)
    }
}

fn mount_as_root(
    point: &Path,
    source: &str,
    read_only: bool,
    options: MountOptions,
) -> Result<OwnedFd, MountError> {
    let device = File::options().read(true).write(true).open(DEVICE).map_err(no_device)?;
    let mode = point.metadata().map_or(0o040_000, |meta| meta.mode() & 0o170_000);
    let data = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let data = CString::new(data).map_err(std::io::Error::from)?;
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (read_only, MountFlags::RDONLY),
        (!options.devices, MountFlags::NODEV),
        (!options.set_user_id, MountFlags::NOSUID),
    ] {
        flags.set(flag, wanted);
    }
    rustix::mount::mount(source, point, KIND, flags, data.as_c_str())
        .map_err(|error| MountError::Refused { path: point.to_owned(), reason: error.to_string() })?;
    Ok(device.into())
}

fn no_device(error: std::io::Error) -> MountError {
    match error.kind() {
        std::io::ErrorKind::NotFound => MountError::NoDevice,
        _ => MountError::System(error),
    }
}

/// The helper opens the device, mounts it, and sends it back on a socket.
fn mount_with_helper(
    point: &Path,
    source: &str,
    read_only: bool,
    options: MountOptions,
) -> Result<OwnedFd, MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    let (own, theirs) = UnixStream::pair()?;
    let mut list = format!("default_permissions,subtype=cairn,fsname={source}");
    for (wanted, option) in [(read_only, ",ro"), (options.allow_other, ",allow_other")] {
        if wanted {
            list.push_str(option);
        }
    }
    let helper = Command::new(HELPER)
        .args(["-o", &list, "--"])
        .arg(point)
        .env(HELPER_SOCKET.0, HELPER_SOCKET.1)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    let device = receive_device(&own);
    let said = helper.wait_with_output()?;
    device.ok_or_else(|| {
        let reason = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        MountError::Refused { path: point.to_owned(), reason }
    })
}

fn no_helper(error: std::io::Error) -> MountError {
    match error.kind() {
        std::io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::System(error),
    }
}

fn receive_device(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Mounts the file system on `from` on another directory as well: one file system in two places,
/// with one cache and one set of locks.
///
/// # Errors
/// [`MountError::Refused`] for others than root.
pub fn show_also(from: &Path, at: &Path) -> Result<(), MountError> {
    rustix::mount::mount_bind(from, at)
        .map_err(|error| MountError::Refused { path: at.to_owned(), reason: error.to_string() })
}

/// Has the kernel write its cached data of the file system at `place`.
fn sync(place: &Path) -> std::io::Result<()> {
    let mut sync = Command::new(SYNC);
    match sync.arg("-f").arg("--").arg(place).env("LC_ALL", "C").stdin(Stdio::null()).output() {
        Ok(said) if said.status.success() => Ok(()),
        Ok(said) => Err(std::io::Error::other(String::from_utf8_lossy(&said.stderr).trim().to_owned())),
        // Better at that risk than not in the snapshot.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(rustix::fs::syncfs(File::open(place)?)?)
        }
        Err(error) => Err(error),
    }
}

/// Unmounts a directory; with `lazily` also while it is in use: it is removed from its place at
/// once, and ends with its last user.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::Refused`].
pub fn unmount(point: &Path, lazily: bool) -> Result<(), MountError> {
    // Unmounting writes it as well, on this thread. The next caller gets an error of that.
    let _ = sync(point);
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let refused = |reason: String| MountError::Refused { path: point.to_owned(), reason };
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(MountError::Busy { path: point.to_owned() }),
        Err(rustix::io::Errno::PERM) => {
            let mut helper = Command::new(HELPER);
            helper.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(point).stdin(Stdio::null());
            let said = helper.output().map_err(no_helper)?;
            let text = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            match said.status.success() {
                true => Ok(()),
                false if text.contains("busy") => Err(MountError::Busy { path: point.to_owned() }),
                false => Err(refused(text)),
            }
        }
        Err(error) => Err(refused(error.to_string())),
    }
}

/// The directories with Cairn's mounts, with the kernel's source name of each.
pub fn mounted() -> Vec<(PathBuf, String)> {
    lines().unwrap_or_default().into_iter().map(|line| (line.path, line.source)).collect()
}

/// Ends Cairn's mounts on these directories, whatever uses them and whichever process serves them:
/// every operation of programs on them fails from now on, and waiting ones return.
pub fn cut_all(places: &[PathBuf]) -> Vec<(PathBuf, Result<(), MountError>)> {
    let mounted = lines().unwrap_or_default().into_iter().filter(|line| places.contains(&line.path));
    mounted.map(|line| (line.path, cut(line.device.1))).collect()
}

/// Detects mounts and unmounts, without reading the table of mounts.
#[derive(Default)]
pub struct MountsWatch {
    table: Mutex<Option<File>>,
}

impl MountsWatch {
    /// True when the table has changed since the last call, and for the first; also when that is
    /// unknown.
    pub fn has_changed(&self) -> bool {
        let mut table = self.table.lock();
        let Some(open) = &*table else {
            *table = File::open(TABLE).ok();
            return true;
        };
        let mut watched = [PollFd::from_borrowed_fd(open.as_fd(), PollFlags::PRI)];
        poll(&mut watched, Some(&rustix::event::Timespec::default())).map_or(true, |ready| ready > 0)
    }
}

/// The fields of a line in the table of mounts about a mount of Cairn's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) path: PathBuf,
    pub(crate) source: String,
    pub(crate) device: DeviceNumber,
    /// Its root is mounted there, not a directory of it.
    pub(crate) whole: bool,
}

fn lines() -> std::io::Result<Vec<Line>> {
    // Names of other mounts can contain any bytes.
    let table = std::fs::read(TABLE)?;
    Ok(String::from_utf8_lossy(&table).lines().filter_map(mounted_line).collect())
}

/// A line of `mountinfo`: device in field 3, its root in field 4, place in field 5; kind and source
/// after the dash. Blanks are written as `\040`.
pub(crate) fn mounted_line(line: &str) -> Option<Line> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let whole = left.next()? == "/";
    let place = left.next()?;
    let mut right = right.split(' ');
    (right.next()? == KIND).then_some(())?;
    Some(Line {
        path: PathBuf::from(unescape(place)),
        source: unescape(right.next()?),
        device: (major.parse().ok()?, minor.parse().ok()?),
        whole,
    })
}

/// The file system that a path leads to. It is not asked itself: it may be one that answers no
/// more, or this process.
pub(crate) fn device_at(path: &Path) -> std::io::Result<DeviceNumber> {
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether the target of a path is on the file system.
pub(crate) fn is_on(path: &Path, device: DeviceNumber) -> bool {
    device_at(path).is_ok_and(|found| found == device)
}

/// Ends the connection with that number. Where the kernel's control is not mounted, it is for that
/// moment, which takes root.
fn cut(number: u32) -> Result<(), MountError> {
    let (kind, usual) = CONTROL;
    let write = |control: &Path| std::fs::write(control.join(number.to_string()).join("abort"), "1");
    match write(Path::new(usual)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        outcome => return Ok(outcome?),
    }
    let own = std::env::temp_dir().join(format!("cairn-fusectl-{}", std::process::id()));
    std::fs::create_dir(&own)?;
    let refused =
        |error: rustix::io::Errno| MountError::Refused { path: usual.into(), reason: error.to_string() };
    let mounted = rustix::mount::mount(kind, &own, kind, MountFlags::empty(), None).map_err(refused);
    let outcome = mounted.and_then(|()| {
        let written = write(&own);
        unmount(&own, true)?;
        Ok(written?)
    });
    std::fs::remove_dir(&own)?;
    outcome
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = (*first == b'\\').then(|| more.get(..3)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes the kernel read ahead further than by default. Only root may; without it, reading in order
/// is slower.
fn read_ahead((major, minor): DeviceNumber) {
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(setting, %error, "the kernel keeps its default read-ahead");
    }
}
