//! A directory of this machine that files are restored into.
//!
//! A dump is made by somebody else. Every step down is taken without following symbolic links, so that nothing is written outside, whatever
//! the dump or the directory has.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_bsddump::{Attribute, Inode, Kind, Time};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};

/// The directory.
pub struct Target {
    root: OwnedFd,
    /// Owners can be set.
    is_root: bool,
}

/// A name in a directory that is open.
pub struct Place {
    directory: OwnedFd,
    name: Vec<u8>,
}

impl Target {
    /// Opens a directory that exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = fs::open(path, DIRECTORY, Mode::empty())?;
        Ok(Self { root, is_root: rustix::process::geteuid().is_root() })
    }

    /// The names in it.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let directory = fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let names = fs::Dir::read_from(&directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        let names: io::Result<Vec<Vec<u8>>> = names.collect();
        Ok(names?.into_iter().filter(|name| name != b"." && name != b"..").collect())
    }

    /// What a file in it has; none when there is no such file.
    pub fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(&self.root, name, flags, Mode::empty()) {
            Ok(file) => {
                let mut bytes = Vec::new();
                File::from(file).read_to_end(&mut bytes)?;
                Ok(Some(bytes))
            }
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a file in it anew, whole or not at all.
    pub fn replace(&self, name: &[u8], bytes: &[u8]) -> io::Result<()> {
        let fresh = self.place(&[name, b".new"].concat())?;
        let mut file = fresh.make_file()?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fresh.move_to(&self.place(name)?)
    }

    /// The place of a path. Directories on the way are made where they are missing, for nobody else to look into until they get their own mode.
    pub fn place(&self, path: &[u8]) -> io::Result<Place> {
        let (way, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        let mut directory = fs::openat(&self.root, ".", DIRECTORY, Mode::empty())?;
        for step in way.split(|byte| *byte == b'/').filter(|step| !step.is_empty()) {
            directory = match fs::openat(&directory, step, DIRECTORY, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => {
                    fs::mkdirat(&directory, step, Mode::RWXU)?;
                    fs::openat(&directory, step, DIRECTORY, Mode::empty())?
                }
                opened => opened?,
            };
        }
        Ok(Place { directory, name: name.to_vec() })
    }

    /// Gives a file its owner, mode, extended attributes and times. What this user may not set is left; what fails otherwise is the error.
    pub fn dress(&self, place: &Place, inode: &Inode, attributes: &[Attribute]) -> io::Result<()> {
        let name = place.name.as_slice();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if self.is_root {
            let owner = (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)));
            fs::chownat(&place.directory, name, owner.0, owner.1, nofollow)?;
        }
        let mut failed = None;
        for attribute in attributes {
            // By way of the open directory: `lsetxattr` knows no directory to start from.
            let path = place.through_proc();
            let set = fs::lsetxattr(
                &path,
                OsStr::from_bytes(&attribute.name),
                &attribute.value,
                XattrFlags::empty(),
            );
            let may = self.is_root || attribute.name.starts_with(b"user.");
            if let Err(error) = set
                && may
            {
                failed = Some(error);
            }
        }
        if inode.kind != Kind::Symlink {
            fs::chmodat(
                &place.directory,
                name,
                Mode::from_raw_mode(inode.permissions.into()),
                AtFlags::empty(),
            )?;
        }
        let times =
            Timestamps { last_access: timespec(inode.accessed), last_modification: timespec(inode.modified) };
        fs::utimensat(&place.directory, name, &times, nofollow)?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// A step down: a directory, and not by way of a link.
const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Place {
    /// Makes a directory, or takes the one that is there.
    pub fn make_directory(&self) -> io::Result<()> {
        match fs::mkdirat(&self.directory, self.name.as_slice(), Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => {
                fs::openat(&self.directory, self.name.as_slice(), DIRECTORY, Mode::empty())?;
                Ok(())
            }
            made => Ok(made?),
        }
    }

    /// Makes a file, in place of whatever has the name unless that is a directory.
    pub fn make_file(&self) -> io::Result<File> {
        self.clear()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.directory, self.name.as_slice(), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(file.into())
    }

    /// Makes a symbolic link.
    pub fn make_link(&self, target: &[u8]) -> io::Result<()> {
        self.clear()?;
        Ok(fs::symlinkat(target, &self.directory, self.name.as_slice())?)
    }

    /// Makes a device, pipe or socket.
    pub fn make_special(&self, inode: &Inode) -> io::Result<()> {
        let kind = match inode.kind {
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::Block => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        self.clear()?;
        let device = fs::makedev(inode.device.0, inode.device.1);
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(fs::mknodat(&self.directory, self.name.as_slice(), kind, mode, device)?)
    }

    /// Gives the file here another name as well.
    pub fn link_to(&self, other: &Place) -> io::Result<()> {
        other.clear()?;
        let flags = AtFlags::empty();
        Ok(fs::linkat(&self.directory, self.name.as_slice(), &other.directory, other.name.as_slice(), flags)?)
    }

    /// Takes the file or directory here elsewhere, over whatever file is there.
    pub fn move_to(&self, other: &Place) -> io::Result<()> {
        Ok(fs::renameat(&self.directory, self.name.as_slice(), &other.directory, other.name.as_slice())?)
    }

    /// Takes the name away; it may be gone already. Not a directory's.
    pub fn clear(&self) -> io::Result<()> {
        match fs::unlinkat(&self.directory, self.name.as_slice(), AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            gone => Ok(gone?),
        }
    }

    /// Takes an empty directory away.
    pub fn remove_directory(&self) -> io::Result<()> {
        Ok(fs::unlinkat(&self.directory, self.name.as_slice(), AtFlags::REMOVEDIR)?)
    }

    fn through_proc(&self) -> Vec<u8> {
        use std::os::fd::AsRawFd;
        let mut path = format!("/proc/self/fd/{}/", self.directory.as_raw_fd()).into_bytes();
        path.extend(&self.name);
        path
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}
