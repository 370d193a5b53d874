//! A directory of this machine that files are restored into.
//!
//! A dump is not trusted. No step down follows symbolic links, so that nothing is written outside,
//! regardless of the content of the dump or the directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use cairn_bsddump::{Attribute, Inode, Kind, Time};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};

/// The directory.
pub struct Target {
    root: OwnedFd,
    /// Owners can be set.
    is_root: bool,
    /// The owner of new files: user and group.
    own: (u32, u32),
}

/// A name in a directory that is open.
pub struct Place {
    directory: Rc<OwnedFd>,
    name: Vec<u8>,
}

/// The last directory used: the next file is mostly created there too, which saves walking down for
/// each.
#[derive(Default)]
pub struct Stand(Option<(Vec<u8>, Rc<OwnedFd>)>);

impl Target {
    /// Opens a directory that exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = fs::open(path, DIRECTORY, Mode::empty())?;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(Self { root, is_root: user.is_root(), own: (user.as_raw(), group.as_raw()) })
    }

    /// Whether this user may do everything.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// The names in it.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let directory = fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let names = fs::Dir::read_from(&directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        let names: io::Result<Vec<Vec<u8>>> = names.collect();
        Ok(names?.into_iter().filter(|name| name != b"." && name != b"..").collect())
    }

    /// The content of a file in it; none if the file does not exist.
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

    /// Writes this content to a file created in it, and renames the file, after all earlier files
    /// are on the disk; durable when it returns.
    pub fn conclude(&self, mut file: File, from: &Place, bytes: &[u8], name: &[u8]) -> io::Result<()> {
        let directory = fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        file.write_all(bytes)?;
        fs::syncfs(&directory)?;
        // On a FUSE file system the kernel writes only its own cached data.
        file.sync_all()?;
        from.move_to(&self.place(name)?)?;
        Ok(fs::fsync(&directory)?)
    }

    /// The place of a path. Missing parent directories are created, inaccessible to other users
    /// until they get their own mode.
    pub fn place(&self, path: &[u8]) -> io::Result<Place> {
        self.place_from(&mut Stand::default(), path)
    }

    /// The same for a caller that creates one file after the other, and moves no directory
    /// meanwhile.
    pub fn place_from(&self, stand: &mut Stand, path: &[u8]) -> io::Result<Place> {
        let (way, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        let directory = match &stand.0 {
            Some((here, directory)) if here == way => directory.clone(),
            _ => {
                let directory = Rc::new(self.walk(way)?);
                stand.0 = Some((way.to_vec(), directory.clone()));
                directory
            }
        };
        Ok(Place { directory, name: name.to_vec() })
    }

    fn walk(&self, way: &[u8]) -> io::Result<OwnedFd> {
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
        Ok(directory)
    }

    /// The initial mode of a file that gets its attributes at once: its own, if that never gives
    /// more rights than the final one; otherwise a mode for the owner only.
    pub fn first_mode(&self, inode: &Inode, attributes: &[Attribute]) -> Mode {
        let is_own = !self.is_root || (inode.uid, inode.gid) == self.own;
        // An access list can give the group less than the mode does.
        if is_own && attributes.is_empty() {
            Mode::from_raw_mode(inode.permissions.into()) & (Mode::RWXU | Mode::RWXG | Mode::RWXO)
        } else {
            OWNER
        }
    }

    /// The same as [`Target::dress`], for a new file that is still open. Attributes that it has
    /// already are not set again.
    pub fn dress_open(&self, file: &File, inode: &Inode, attributes: &[Attribute]) -> io::Result<()> {
        let now = fs::fstat(file)?;
        let is_given = self.is_root && (now.st_uid, now.st_gid) != (inode.uid, inode.gid);
        if is_given {
            fs::fchown(file, Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)))?;
        }
        let set = |attribute: &Attribute| {
            let name = OsStr::from_bytes(&attribute.name);
            fs::fsetxattr(file, name, &attribute.value, XattrFlags::empty())
        };
        let set = self.set_attributes(attributes, set);
        let owner = if is_given { (inode.uid, inode.gid) } else { (now.st_uid, now.st_gid) };
        let mode = set.mode(inode).difference(rights_of_others(inode, owner));
        // Another owner takes bits away, and a list of rights has its own.
        if is_given || !attributes.is_empty() || Mode::from_raw_mode(now.st_mode) != mode {
            fs::fchmod(file, mode)?;
        }
        fs::futimens(file, &times(inode))?;
        set.told()
    }

    /// Sets extended attributes with `set`, as many as possible.
    fn set_attributes(
        &self,
        attributes: &[Attribute],
        set: impl Fn(&Attribute) -> rustix::io::Result<()>,
    ) -> AttributesSet {
        let may = |attribute: &Attribute| {
            self.is_root
                || attribute.name.starts_with(b"user.")
                || attribute.name.starts_with(b"system.posix_acl_")
        };
        let mut outcome = AttributesSet::default();
        for attribute in attributes {
            if let Err(error) = set(attribute) {
                outcome.lacks_list |= attribute.name == ACCESS_LIST;
                if may(attribute) {
                    outcome.failed = Some(error);
                }
            }
        }
        outcome
    }

    /// Gives a file its owner, mode, extended attributes and times. Attributes that this user may
    /// not set are skipped; any other failure is the error.
    pub fn dress(&self, place: &Place, inode: &Inode, attributes: &[Attribute]) -> io::Result<()> {
        let name = place.name.as_slice();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if self.is_root {
            let owner = (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)));
            fs::chownat(&place.directory, name, owner.0, owner.1, nofollow)?;
        }
        // By way of the open directory: `lsetxattr` knows no directory to start from.
        let set = |attribute: &Attribute| {
            let name = OsStr::from_bytes(&attribute.name);
            fs::lsetxattr(place.through_proc(), name, &attribute.value, XattrFlags::empty())
        };
        let set = self.set_attributes(attributes, set);
        if inode.kind != Kind::Symlink {
            let found = fs::statat(&place.directory, name, nofollow)?;
            let others = rights_of_others(inode, (found.st_uid, found.st_gid));
            place.set_mode(set.mode(inode).difference(others))?;
        }
        place.set_times(inode)?;
        set.told()
    }
}

/// The outcome of setting extended attributes.
#[derive(Default)]
struct AttributesSet {
    /// The last error, except for attributes that this user may not set.
    failed: Option<rustix::io::Errno>,
    /// There is an access list, which this file system does not accept.
    lacks_list: bool,
}

impl AttributesSet {
    /// The mode that a file gets. With an access list its group bits are the mask of the list:
    /// without the list they would give the group those rights.
    fn mode(&self, inode: &Inode) -> Mode {
        let mode = Mode::from_raw_mode(inode.permissions.into());
        if self.lacks_list { mode.difference(Mode::RWXG) } else { mode }
    }

    fn told(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// For its owner alone.
pub const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);
/// The attribute with the access list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The attribute with the access list that new files in a directory inherit.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// Extended attributes that users set, not the system: those are removed if a dump has them no
/// longer.
const GIVEN: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];
/// Seconds by which a file system may change a time that it keeps: FAT does so.
const TIME_KEPT: u64 = 2;
/// Bytes of all names of extended attributes of a file at most (`XATTR_LIST_MAX`).
const NAMES_MAX: usize = 65_536;
/// A step down: a directory, and not by way of a link.
const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Place {
    /// Creates a directory, or uses the existing one; true if it was created.
    pub fn make_directory(&self) -> io::Result<bool> {
        match fs::mkdirat(&self.directory, self.name.as_slice(), Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => {
                fs::openat(&self.directory, self.name.as_slice(), DIRECTORY, Mode::empty())?;
                Ok(false)
            }
            made => Ok(made.map(|()| true)?),
        }
    }

    /// Creates the file of an inode, without owner and times: a regular file, which is open then; a
    /// symbolic link to `target`; a device, pipe or socket.
    ///
    /// # Errors
    /// `AlreadyExists` when something has the name.
    pub fn make(&self, inode: &Inode, target: &[u8], mode: Mode) -> io::Result<Option<File>> {
        Ok(match inode.kind {
            Kind::Regular => Some(self.create(mode)?),
            Kind::Symlink => fs::symlinkat(target, &self.directory, self.name.as_slice()).map(|()| None)?,
            _ => self.create_special(inode).map(|()| None)?,
        })
    }

    /// Does it in place of whatever has the name, unless that is a directory.
    pub fn instead<T>(&self, make: impl Fn(&Self) -> io::Result<T>) -> io::Result<T> {
        match make(self) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.clear()?;
                make(self)
            }
            made => made,
        }
    }

    /// Makes a file, in place of whatever has the name unless that is a directory.
    pub fn make_file(&self) -> io::Result<File> {
        self.instead(|place| place.create(OWNER))
    }

    /// Makes a symbolic link, likewise.
    pub fn make_link(&self, target: &[u8]) -> io::Result<()> {
        self.instead(|place| Ok(fs::symlinkat(target, &place.directory, place.name.as_slice())?))
    }

    /// Makes a device, pipe or socket, likewise.
    pub fn make_special(&self, inode: &Inode) -> io::Result<()> {
        self.instead(|place| place.create_special(inode))
    }

    fn create(&self, mode: Mode) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.directory, self.name.as_slice(), flags, mode)?.into())
    }

    fn create_special(&self, inode: &Inode) -> io::Result<()> {
        let kind = match inode.kind {
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::Block => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        let device = fs::makedev(inode.device.0, inode.device.1);
        Ok(fs::mknodat(&self.directory, self.name.as_slice(), kind, OWNER, device)?)
    }

    /// Whether the file here can be that of an inode of which a dump has only the attributes: a
    /// file with another time of modification is a different one.
    pub fn is_like(&self, inode: &Inode) -> io::Result<bool> {
        let found = fs::statat(&self.directory, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_as_old = found.st_mtime.abs_diff(inode.modified.seconds) <= TIME_KEPT;
        Ok(Kind::of_mode(found.st_mode) == Some(inode.kind) && is_as_old)
    }

    /// Gives the file here another name as well.
    pub fn link_to(&self, other: &Place) -> io::Result<()> {
        other.instead(|other| {
            let (from, to) = (self.name.as_slice(), other.name.as_slice());
            Ok(fs::linkat(&self.directory, from, &other.directory, to, AtFlags::empty())?)
        })
    }

    /// Moves the file or directory elsewhere, and replaces any file there.
    pub fn move_to(&self, other: &Place) -> io::Result<()> {
        Ok(fs::renameat(&self.directory, self.name.as_slice(), &other.directory, other.name.as_slice())?)
    }

    /// The same, but never a directory, which a user may have created here since.
    pub fn move_file_to(&self, other: &Place) -> io::Result<()> {
        let found = fs::statat(&self.directory, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Err(rustix::io::Errno::ISDIR.into()),
            _ => self.move_to(other),
        }
    }

    /// Removes the name; it may be missing already. Not a directory's.
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

    /// Gives the file of this name the times of an inode.
    pub fn set_times(&self, inode: &Inode) -> io::Result<()> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        Ok(fs::utimensat(&self.directory, self.name.as_slice(), &times(inode), nofollow)?)
    }

    /// Gives the file of this name a mode: never the target of a symbolic link.
    fn set_mode(&self, mode: Mode) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fs::openat(&self.directory, self.name.as_slice(), flags, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&found)?.st_mode) == FileType::Symlink {
            return Err(rustix::io::Errno::LOOP.into());
        }
        // The kernel sets no mode by such a descriptor itself.
        Ok(fs::chmod(proc_path(&found), mode)?)
    }

    /// Lets the owner of a directory change its entries. Returns the earlier mode, if that did not.
    pub fn open_up(&self) -> io::Result<Option<u32>> {
        let found = fs::openat(&self.directory, self.name.as_slice(), DIRECTORY, Mode::empty())?;
        let mode = Mode::from_raw_mode(fs::fstat(&found)?.st_mode);
        if mode.contains(Mode::RWXU) {
            return Ok(None);
        }
        fs::chmod(proc_path(&found), mode | Mode::RWXU)?;
        Ok(Some(mode.as_raw_mode()))
    }

    /// Gives it back the mode that it had before [`Place::open_up`].
    pub fn close_again(&self, mode: u32) -> io::Result<()> {
        self.set_mode(Mode::from_raw_mode(mode))
    }

    /// Removes the access list that new files in a directory inherit.
    pub fn take_default_list(&self) -> io::Result<()> {
        match fs::lremovexattr(self.through_proc(), DEFAULT_LIST) {
            // The attributes of another user's directory cannot be set either; the attempt to set
            // them reports that.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => Ok(()),
            gone => Ok(gone?),
        }
    }

    /// Removes extended attributes except those in `kept`. Attributes that the system sets by
    /// itself stay.
    pub fn take_others(&self, kept: &[Attribute]) -> io::Result<()> {
        let mut names = vec![0; NAMES_MAX];
        let length = match fs::llistxattr(self.through_proc(), &mut names[..]) {
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            listed => listed?,
        };
        for name in names[..length].split(|byte| *byte == 0) {
            let is_given = GIVEN.iter().any(|beginning| name.starts_with(beginning));
            if is_given && !kept.iter().any(|attribute| attribute.name == name) {
                fs::lremovexattr(self.through_proc(), name)?;
            }
        }
        Ok(())
    }

    /// By way of the open directory, for calls that know no directory to start from.
    fn through_proc(&self) -> Vec<u8> {
        [&proc_path(&self.directory)[..], b"/", &self.name].concat()
    }
}

fn proc_path(open: &OwnedFd) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", open.as_raw_fd()).into_bytes()
}

/// The bits that run a program with the rights of its owner or its group, if these differ from the
/// dumped ones: it was not meant to run with the rights of the new owner.
fn rights_of_others(inode: &Inode, owner: (u32, u32)) -> Mode {
    // On a directory the bit sets the group of new files.
    if inode.kind != Kind::Regular {
        return Mode::empty();
    }
    let user = if inode.uid == owner.0 { Mode::empty() } else { Mode::SUID };
    let group = if inode.gid == owner.1 { Mode::empty() } else { Mode::SGID };
    user | group
}

fn times(inode: &Inode) -> Timestamps {
    Timestamps { last_access: timespec(inode.accessed), last_modification: timespec(inode.modified) }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}
