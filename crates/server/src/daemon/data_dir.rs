//! The data directory: its lock, and its files.
//!
//! ```text
//! DIR/lock                       held by the running server
//! DIR/control.sock               the API; mode 0600
//! DIR/handover.sock              files that the command line hands over for image dumps and restores; mode 0600
//! DIR/nbd.sock                   NBD, always there
//! DIR/restoring                  a restore of the state is running, or was cut
//! DIR/reserve                    room for a start on a full file system
//! DIR/identity.pem               key and certificate
//! DIR/peers.json                 invitations and pinned peers
//! DIR/mounts.json                the mounts, to be mounted again
//! DIR/nfs.json                   the directories that are exported over NFS
//! DIR/nfs-locks.json             the clients that have locks over NFS
//! DIR/buckets.json               object stores, and the sources of their credentials
//! DIR/http-token                 an administrator's token of the API over TCP, once that was requested
//! DIR/authority.pem              the key and root of the authority that issues certificates for clients
//! DIR/tokens.json                the other tokens: roles, volumes, and a digest of each
//! DIR/oidc.json                  the identity provider with its secret, and its rules for people
//! DIR/fleet.json                 other servers that this one shows, each with a token
//! DIR/audit.jsonl                changes and refused tries by actor; older lines in audit.jsonl.N
//! DIR/notify.json                targets of notifications, with their secrets
//! DIR/notify.desks.json          the problems that each target was sent, and messages that wait
//! DIR/devices/NAME.json           where an adopted device and its history are, and its views
//! DIR/devices/NAME.seen           the end of its history when the server last looked
//! DIR/devices/NAME@CLONE.store    the blocks that were written to a clone
//! DIR/exports.json               the permitted clients of restricted exports; secrets of CHAP
//! DIR/reservations.json          persistent reservations of iSCSI initiators
//! DIR/volumes/NAME/volume.json   the devices of a volume, of its intent log, and of the history under it
//! DIR/volumes/NAME/volume.img    its device, unless another one was named
//! DIR/volumes/NAME/dumps.json    the last image dump of each level, and an unfinished one
//! DIR/volumes/NAME/dates.json    the dates of its BSD dumps
//! DIR/volumes/NAME/names.N       which directories have which files, as of the last BSD dump of level N
//! DIR/volumes/NAME/had.PATH.N    which files the last BSD dump of level N of a part of it had
//! DIR/volumes/NAME/schedules.json  its schedules of snapshots
//! DIR/volumes/NAME/hooks.json   commands around its snapshots
//! DIR/volumes/NAME/governor.json  the limits on the cost of mirrors for its clients
//! DIR/volumes/NAME/scrub.json    the progress of its scrub, and the damage found
//! DIR/volumes/NAME/drill.json    the drills of a mirror
//! DIR/groups.json               volumes that belong together
//! DIR/followers.json             the mirrors of its volumes, as last seen
//! DIR/volumes/NAME/views.json    its views of instants, when it is over a history
//! DIR/volumes/NAME/history.seen  the end of the history under it when the server last looked
//! DIR/volumes/NAME/mirror.json   the source that it follows, if it is a mirror
//! ....json.old                   the previous generation of some of them
//! ....json.damaged               an unreadable one that was set aside
//! ```

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use cairn_frontend_nbd::{Address, ListenError, Listener};

use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::exports::mounts;
use crate::peers::token::random_bytes;
use crate::state;

pub(crate) mod backup;
pub(crate) mod guard;

/// Room for the needs of a start. A start on a full file system gives it up.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: usize = 64 << 10;

/// Bytes that a path in a unix socket address has (`sun_path` without its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// The time during which a server that answers no request is assumed to be ending, and the interval
/// between two attempts at its lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
const LOCK_ROUND: Duration = Duration::from_millis(20);
/// The time that a killed server has to end by itself.
const DEAD_PATIENCE: Duration = Duration::from_secs(3);
/// The locks of the machine and their holders: number, kind, mode, process, and file by device and
/// inode.
const LOCKS: &str = "/proc/locks";
/// The time that a server has for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// The directory, held for this process until it is dropped.
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if there is none (for the owner alone), and takes its lock.
    pub(crate) fn open(path: &Path) -> Result<Self, ServerError> {
        guard::make_folder(path).map_err(ServerError::path("create", path))?;
        let path = path.canonicalize().map_err(ServerError::path("open", path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(ServerError::path("write to", &path))?;
        let began = Instant::now();
        let until = began + LOCK_PATIENCE;
        let (mut told, mut was_cut) = (false, false);
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // The kernel releases the lock of a killed server only after it has finished the
                // server's requests to its disks.
                Err(fs::TryLockError::WouldBlock)
                    if !answers(&path.join("control.sock")) && Instant::now() < until =>
                {
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(path = %path.display(), "waits for a server that has this directory and answers nobody, as one that was killed does for a moment");
                    }
                    if !was_cut && began.elapsed() > DEAD_PATIENCE && is_killed(holder(&lock)) {
                        was_cut = true;
                        mounts::cut_off_of_killed(&path);
                    }
                    std::thread::sleep(LOCK_ROUND);
                }
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(ServerError::Daemon(DaemonError::DataDirBusy { path }));
                }
                Err(fs::TryLockError::Error(source)) => {
                    return Err(ServerError::Path { action: "lock", path: lock_path, source });
                }
            }
        }
        if path.join(backup::RESTORING).exists() {
            return Err(ServerError::Daemon(DaemonError::StatePart { path }));
        }
        guard::close(&path)?;
        let volumes = path.join("volumes");
        guard::make_folder(&volumes).map_err(ServerError::path("create", &volumes))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where volumes live.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.path.join("volumes")
    }

    /// Where adopted devices are named.
    pub(crate) fn devices(&self) -> PathBuf {
        self.path.join("devices")
    }

    /// The NBD socket.
    pub(crate) fn nbd_socket(&self) -> Result<PathBuf, ServerError> {
        self.socket("nbd.sock")
    }

    fn socket(&self, name: &str) -> Result<PathBuf, ServerError> {
        let path = self.path.join(name);
        // Sockets are made beside their places under a name that is a little longer.
        if path.as_os_str().len() + 3 > MAX_SOCKET_PATH {
            return Err(ServerError::Daemon(DaemonError::SocketPath { path }));
        }
        Ok(path)
    }

    /// Listens on the control socket.
    pub(crate) fn listen_control(&self) -> Result<(UnixListener, PathBuf), ServerError> {
        self.listen_private("control.sock")
    }

    /// Listens where the command line hands files over.
    pub(crate) fn listen_handover(&self) -> Result<(UnixListener, PathBuf), ServerError> {
        self.listen_private("handover.sock")
    }

    /// Listens on a socket for the owner alone. Other users cannot reach it before it has its mode,
    /// because only the owner can enter the directory. It is made under another name and moved to
    /// its place, which needs only a directory entry of a full file system. An old socket belongs
    /// to a dead server, because this process holds the lock.
    fn listen_private(&self, name: &str) -> Result<(UnixListener, PathBuf), ServerError> {
        let place = self.socket(name)?;
        let born = self.path.join(format!(".{name}"));
        let listen = || -> io::Result<UnixListener> {
            // Versions before this one made it in a folder.
            let _ = fs::remove_dir_all(self.path.join(".sock"));
            let _ = fs::remove_file(&born);
            let listener = UnixListener::bind(&born)?;
            fs::set_permissions(&born, Permissions::from_mode(0o600))?;
            fs::rename(&born, &place)?;
            Ok(listener)
        };
        let listener = self.with_reserve(listen).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ServerError::Daemon(DaemonError::NoRoomForSocket { path: self.path.clone() })
            }
            _ => ServerError::Daemon(DaemonError::Listen {
                address: format!("unix:{}", place.display()),
                source,
            }),
        })?;
        Ok((listener, place))
    }

    /// Executes an action that a start needs. If the file system is full, this gives up the room
    /// that is reserved for starts, and executes the action again.
    pub(crate) fn with_reserve<T>(&self, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match act() {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                fs::remove_file(self.path.join(RESERVE)).map_err(|_| error)?;
                tracing::warn!(path = %self.path.display(), "its file system is full: the room that is kept for a start is given up");
                act()
            }
            outcome => outcome,
        }
    }

    /// Keeps room for the next start on a full file system, as far as there is any now.
    pub(crate) fn keep_reserve(&self) {
        let path = self.path.join(RESERVE);
        if path.exists() {
            return;
        }
        if let Err(error) = state::replace(&path, &vec![0xff; RESERVE_BYTES]) {
            tracing::warn!(path = %path.display(), %error, "no room is kept for a start on a full file system");
        }
    }

    /// Listens on the NBD socket, which is for the owner alone as well.
    pub(crate) fn listen_nbd(&self, place: &Path) -> Result<Listener, ServerError> {
        let address = Address::Unix(place.to_owned());
        let listen = || match Listener::bind(&address) {
            Err(ListenError::Failed { source, .. }) => Err(source),
            outcome => Ok(outcome),
        };
        let listener = self.with_reserve(listen).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ServerError::Daemon(DaemonError::NoRoomForSocket { path: self.path.clone() })
            }
            _ => ListenError::Failed { address: address.clone(), source }.into(),
        })??;
        fs::set_permissions(place, Permissions::from_mode(0o600))
            .map_err(ServerError::path("set the mode of", place))?;
        Ok(listener)
    }

    /// The bearer token of the API over TCP, made at first use.
    pub(crate) fn http_token(&self) -> Result<String, ServerError> {
        let path = self.path.join("http-token");
        match fs::read(&path) {
            Ok(bytes) => match usable_token(&bytes) {
                Some(token) => return Ok(token),
                None => {
                    let aside = self.path.join("http-token.damaged");
                    fs::rename(&path, &aside).map_err(ServerError::path("set aside", &path))?;
                    tracing::warn!(
                        path = %path.display(),
                        aside = %aside.display(),
                        "THE TOKEN OF THE API OVER TCP WAS DAMAGED (it has 32 printable characters at least), and a new one was made: copy it to every client that has the old one"
                    );
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(ServerError::Path { action: "read", path, source }),
        }
        let token: String = random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
        state::replace(&path, format!("{token}\n").as_bytes()).map_err(ServerError::path("write", &path))?;
        Ok(token)
    }
}

/// The token in the file, if it is usable. The API accepts no weaker one.
fn usable_token(bytes: &[u8]) -> Option<String> {
    let token = std::str::from_utf8(bytes).ok()?.trim();
    (token.len() >= 32 && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| token.to_owned())
}

/// The process that has the lock of a file, as far as the kernel tells.
fn holder(lock: &File) -> Option<u32> {
    let meta = lock.metadata().ok()?;
    let (device, inode) = (meta.dev(), meta.ino());
    let file = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    let locks = fs::read_to_string(LOCKS).ok()?;
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(4);
        let (process, of) = (fields.next()?, fields.next()?);
        (of == file).then(|| process.parse().ok()).flatten()
    })
}

/// Whether a process has ended except for threads that cannot end. Its state follows its name,
/// which ends with the last bracket.
fn is_killed(process: Option<u32>) -> bool {
    let stat = process.and_then(|process| fs::read_to_string(format!("/proc/{process}/stat")).ok());
    stat.is_some_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// True if a server answers there, with any content. A killed server accepts connections for a
/// moment longer, and does not answer.
fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read(&mut [0])
    };
    ask().is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_token_is_set_aside_and_made_anew() {
        let scratch = tempfile::tempdir().unwrap();
        let data = DataDir::open(scratch.path()).unwrap();
        let first = data.http_token().unwrap();
        assert_eq!(data.http_token().unwrap(), first);
        let path = scratch.path().join("http-token");
        for damage in [&b""[..], b"short\n", &[0; 65], &[0xff; 65]] {
            fs::write(&path, damage).unwrap();
            let token = data.http_token().unwrap();
            assert!(token.len() >= 32 && token != first);
            assert_eq!(data.http_token().unwrap(), token, "it is kept");
            assert_eq!(fs::read(scratch.path().join("http-token.damaged")).unwrap(), damage);
        }
        let own = "chosen-by-its-owner-and-long-enough";
        fs::write(&path, own).unwrap();
        assert_eq!(data.http_token().unwrap(), own);
    }

    #[test]
    fn lock_of_a_server_that_ends_is_waited_for_and_one_that_answers_is_busy() {
        let scratch = tempfile::tempdir().unwrap();
        let held = DataDir::open(scratch.path()).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        let held = DataDir::open(scratch.path()).expect("it has ended meanwhile");
        ends.join().unwrap();
        let (listener, _) = held.listen_control().unwrap();
        // It is killed, and its socket takes connections as long as the kernel has not come to
        // that.
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop((listener, held));
        });
        let held = DataDir::open(scratch.path()).expect("it took connections, and answered nobody");
        ends.join().unwrap();
        let (listener, _) = held.listen_control().unwrap();
        let serves = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            // A client that disconnects before its request gets no answer.
            stream.read_exact(&mut [0; b"GET / HTTP/1.0\r\n\r\n".len()])?;
            stream.write_all(b"HTTP/1.0 404\r\n\r\n")
        });
        let began = Instant::now();
        assert!(matches!(
            DataDir::open(scratch.path()),
            Err(ServerError::Daemon(DaemonError::DataDirBusy { .. }))
        ));
        assert!(began.elapsed() < LOCK_PATIENCE);
        serves.join().unwrap().unwrap();
    }
}
