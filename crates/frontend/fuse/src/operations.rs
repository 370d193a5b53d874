//! The operations of the kernel on the trees that a mount shows.
//!
//! The kernel checks permissions (`default_permissions`) and keeps locks: a mount is the only way
//! into a tree from outside, also where it appears in several places. With a write-back cache the
//! kernel decides a file's size and times while the file is open for writing. So a close brings the
//! data here, and an fsync brings it here and makes it durable.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::FileId;
use cairn_device::Segments;
use cairn_files::{
    Allocate, New, NodeKind, Owner, Rename, SetStat, SetTime, SetXattr, Stat, Tree, TreeError,
};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::attributes::{S_ISGID, S_ISUID, attr_out, no_entry, ns_of, statx_out};
use crate::caller::Caller;
use crate::directory;
use crate::node::{BASE, Node, SNAPSHOTS, TIMES};
use crate::received::BlockWrite;
use crate::received::WRITE_MAX;
use crate::request::{Operation, Request};
use crate::room::Forgetting;
use crate::shown::{Shown, Slot};
use crate::times::{TIMES_NAME, by_time};

/// The name below which every directory shows its snapshots. It is in no listing.
pub(crate) const SNAPSHOTS_NAME: &[u8] = b".snapshot";
/// The attribute that gives a program rights; a write removes it.
const CAPABILITY: &[u8] = b"security.capability";
/// Bits of a file handle: the file has [`CAPABILITY`].
const HANDLE_CAPABILITY: u64 = 1;
/// It was opened with [`FOPEN_DIRECT_IO`].
const HANDLE_DIRECT: u64 = 2;
/// The maximum number of bytes that one request copies: others must be served as well.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a copy between two trees that are in memory.
const COPY_PIECE: usize = 1 << 20;

/// Fields that the kernel sends of an inode on its own: cached times, with the handle of a file
/// that it happens to have open.
const KEPT_BACK: u32 = fattr::MTIME | fattr::CTIME | fattr::FH;
const O_ACCMODE: u32 = 3;
/// The number is the kernel's, and not the same on all machines.
pub(crate) const O_DIRECT: u32 =
    if cfg!(any(target_arch = "aarch64", target_arch = "arm")) { 0o200000 } else { 0o40000 };
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const S_IXGRP: u32 = 0o010;

/// The answer to a request: bytes after the header, or an error's number.
pub(crate) type Answer = Result<Vec<u8>, i32>;

/// The file system of one mount.
pub(crate) struct FileSystem {
    pub(crate) shown: Shown,
    /// Files that are open for writing. The kernel may hold data of these that is not here.
    writers: Mutex<HashMap<FileId, Writers>>,
    /// Files for which the kernel still shows data that could not be stored.
    lost: Mutex<HashSet<FileId>>,
    pub(crate) forgetting: Forgetting,
    /// The kernel allows mappings of files without write-back (Linux 6.6 and later).
    pub(crate) maps_all: AtomicBool,
}

/// The writers of an open file.
#[derive(Default)]
struct Writers {
    count: u32,
    /// Bytes of it went into the kernel's cache meanwhile.
    is_cached: bool,
}

pub(crate) fn errno(error: TreeError) -> i32 {
    let number = error.errno();
    if number == errno::EIO {
        tracing::error!(%error, "a file operation failed");
    }
    number
}

fn bytes(value: impl IntoBytes + zerocopy::Immutable) -> Vec<u8> {
    value.as_bytes().to_vec()
}

impl FileSystem {
    pub(crate) fn new(shown: Shown) -> Self {
        Self {
            shown,
            writers: Mutex::default(),
            lost: Mutex::default(),
            forgetting: Forgetting::default(),
            maps_all: AtomicBool::new(true),
        }
    }

    /// True when the answer needs data that the kernel has not sent yet: see [`crate::session`].
    pub(crate) fn wants_data_first(&self, request: &Request<'_>) -> bool {
        matches!(request.operation, Operation::Lseek(_)) && self.is_written(request.header.nodeid)
    }

    /// The numbers of the files that are open for writing.
    pub(crate) fn written(&self) -> Vec<u64> {
        let number = |file: &FileId| Node { slot: BASE, file: *file }.number().ok();
        self.writers.lock().keys().filter_map(number).collect()
    }

    fn is_written(&self, number: u64) -> bool {
        self.shown.file(number).is_ok_and(|(_, file)| self.writers.lock().contains_key(&file))
    }

    /// Whether the kernel may cache bytes from before a write that bypassed its cache: those that
    /// it read between the beginning of that write and its end. It drops those itself when the
    /// program waits for the write, but not for an asynchronous write (Linux 6.18,
    /// `fuse_aio_complete`).
    pub(crate) fn may_be_outdated_by(&self, node: u64, write: &fuse_write_in) -> bool {
        let is_past = write.flags & O_DIRECT != 0 || write.fh & HANDLE_DIRECT != 0;
        let goes_past = is_past && write.write_flags & FUSE_WRITE_CACHE == 0;
        let is_cached = |file| self.writers.lock().get(&file).is_some_and(|writers| writers.is_cached);
        goes_past && self.shown.file(node).is_ok_and(|(_, file)| is_cached(file))
    }

    /// Executes a request. FORGET and INIT have no answer of this kind.
    pub(crate) fn answer(&self, request: &Request<'_>) -> Answer {
        let header = &request.header;
        let node = header.nodeid;
        match &request.operation {
            Operation::Lookup { name } => self.lookup(node, name),
            Operation::GetAttr => self.get_attributes(node),
            Operation::Statx => self.statx(node),
            Operation::SetAttr(arguments) => self.set_attributes(header, arguments),
            Operation::ReadLink => {
                let (slot, file) = self.shown.file(node)?;
                slot.tree.read_link(file).map_err(errno)
            }
            Operation::SymLink { name, target } => {
                let new = new(header, 0o120_777, 0, 0);
                self.make(node, name, |tree, directory| tree.make_link(directory, name, target, &new))
            }
            Operation::MkNod { arguments, name } => {
                let new = new(header, arguments.mode, arguments.umask, arguments.rdev);
                self.make(node, name, |tree, directory| tree.make(directory, name, &new))
            }
            Operation::MkDir { arguments, name } => {
                let new = new(header, arguments.mode, arguments.umask, 0);
                self.make(node, name, |tree, directory| tree.make_directory(directory, name, &new))
            }
            Operation::Unlink { name } => {
                let (slot, directory) = self.shown.file(node)?;
                slot.tree.unlink(directory, name).map(|()| Vec::new()).map_err(errno)
            }
            Operation::RmDir { name } => {
                let (slot, directory) = self.shown.file(node)?;
                slot.tree.remove_directory(directory, name).map(|()| Vec::new()).map_err(errno)
            }
            Operation::Rename { newdir, flags, name, new_name } => {
                self.rename(header, name, *newdir, new_name, *flags)
            }
            Operation::Link { oldnodeid, name } => {
                let file = self.beside(node, *oldnodeid)?;
                self.make(node, name, |tree, directory| tree.link(file, directory, name))
            }
            Operation::Open(arguments) => self.open(node, arguments.flags).map(bytes),
            Operation::Create { arguments, name } => self.create(header, arguments, name),
            Operation::TmpFile { arguments } => self.create_unnamed(header, arguments),
            Operation::Read(arguments) => self.read(node, arguments).map(|data| data.to_vec()),
            Operation::Write { arguments, data } => {
                let offset = arguments.offset;
                self.write(node, arguments, |tree, file, is_kept_back| match is_kept_back {
                    true => tree.write_back(file, offset, data),
                    false => tree.write(file, offset, data),
                })
            }
            Operation::StatFs => self.space(),
            Operation::Release(arguments) => self.release(node, arguments.flags),
            Operation::Fsync | Operation::FsyncDir => {
                let (slot, file) = self.shown.file(node)?;
                slot.tree.sync(file).map(|()| Vec::new()).map_err(errno)
            }
            Operation::SetXattr { flags, kills_group_id, name, value } => {
                if *kills_group_id {
                    self.take_group_id(node)?;
                }
                self.set_xattr(node, name, value, *flags)
            }
            Operation::GetXattr { size, name } => self.xattr(node, name, *size),
            Operation::ListXattr { size } => self.xattrs(node, *size),
            Operation::RemoveXattr { name } => {
                let (slot, file) = self.shown.file(node)?;
                slot.tree.remove_xattr(file, name).map(|()| Vec::new()).map_err(errno)
            }
            Operation::OpenDir => self.open_directory(node).map(bytes),
            Operation::ReadDir(arguments) => directory::read(&self.shown, node, arguments, false),
            Operation::ReadDirPlus(arguments) => directory::read(&self.shown, node, arguments, true),
            Operation::ReleaseDir => self.release(node, 0),
            Operation::Fallocate(arguments) => self.allocate(header, arguments),
            Operation::Lseek(arguments) => self.seek(node, arguments),
            Operation::CopyFileRange(arguments) => self.copy(header, arguments),
            // An interrupt comes too late for anything here; the kernel sends no more of them after
            // this.
            Operation::Interrupt | Operation::Other => Err(errno::ENOSYS),
            Operation::Init { .. }
            | Operation::Destroy
            | Operation::Forget { .. }
            | Operation::BatchForget { .. } => Err(errno::EPROTO),
        }
    }

    /// The bytes that a READ asks for, fewer at the end of the file.
    pub(crate) fn read(&self, node: u64, arguments: &fuse_read_in) -> Result<Segments, i32> {
        let (slot, file) = self.shown.file(node)?;
        let length = (arguments.size as usize).min(WRITE_MAX);
        if arguments.flags & O_DIRECT == 0
            && arguments.fh & HANDLE_DIRECT == 0
            && !slot.tree.is_read_only()
            && let Some(writers) = self.writers.lock().get_mut(&file)
        {
            writers.is_cached = true;
        }
        slot.tree.read_shared(file, arguments.offset, length).map_err(errno)
    }

    fn lookup(&self, node: u64, name: &[u8]) -> Answer {
        match name {
            b"." => return self.lookup_itself(node),
            b".." => return self.lookup_parent(node),
            _ => {}
        }
        let (node_of, slot) = self.shown.find(node)?;
        let Some(slot) = slot else { return self.lookup_snapshot(node_of, name) };
        if name == SNAPSHOTS_NAME
            && let Some(number) = self.shown.snapshots_in(&slot, node_of.file)
        {
            return Ok(bytes(directory::snapshots_entry(number?, &self.shown.snapshots())));
        }
        let found = match slot.tree.lookup(node_of.file, name) {
            Ok(stat) => Some(stat),
            Err(TreeError::NotFound) => None,
            Err(error) => return Err(errno(error)),
        };
        let may_keep = self.shown.may_keep(&slot, node, name);
        let told = found.map_or(Ok(no_entry()), |stat| self.shown.entry(&slot, &stat))?;
        Ok(bytes(if may_keep { told } else { fuse_entry_out { entry_valid: 0, ..told } }))
    }

    /// The kernel's question about a number in a handle that it gave out and has forgotten since
    /// (NFS).
    fn lookup_itself(&self, node: u64) -> Answer {
        match self.shown.find(node)? {
            (at, Some(slot)) => {
                let stat = slot.tree.stat(at.file).map_err(errno)?;
                self.shown.entry(&slot, &stat).map(bytes)
            }
            (_, None) => Ok(bytes(directory::snapshots_entry(node, &self.shown.snapshots()))),
        }
    }

    /// The directory that a directory of a handle is in; that of a snapshot is the `.snapshot` of
    /// the root.
    fn lookup_parent(&self, node: u64) -> Answer {
        let (root, top) = self.shown.file(FUSE_ROOT_ID)?;
        let (slot, parent) = match self.shown.find(node)? {
            (at, None) if at.slot == TIMES => {
                let number = Node { slot: SNAPSHOTS, file: at.file }.number()?;
                return Ok(bytes(directory::snapshots_entry(number, &self.shown.snapshots())));
            }
            (at, None) => (root, at.file),
            (at, Some(slot)) if at.file == slot.tree.root() && !Arc::ptr_eq(&slot, &root) => {
                let number = self.shown.snapshots_in(&root, top).ok_or(errno::ESTALE)??;
                return Ok(bytes(directory::snapshots_entry(number, &self.shown.snapshots())));
            }
            (at, Some(slot)) => {
                let parent = slot.tree.parent(at.file).map_err(errno)?;
                (slot, parent)
            }
        };
        let stat = slot.tree.stat(parent).map_err(errno)?;
        self.shown.entry(&slot, &stat).map(bytes)
    }

    /// A directory as it is in a snapshot: numbers of files are the same in all images.
    fn lookup_snapshot(&self, at: Node, name: &[u8]) -> Answer {
        let (directory, is_by_time) = (at.file, at.slot == TIMES);
        if name == TIMES_NAME && !is_by_time {
            let number = Node { slot: TIMES, file: directory }.number()?;
            return Ok(bytes(directory::snapshots_entry(number, &self.shown.snapshots())));
        }
        let slot = if is_by_time {
            let snapshots = by_time(self.shown.snapshots());
            let found = snapshots.iter().find(|(time, _)| time.as_bytes() == name);
            let (time, snapshot) = found.ok_or(errno::ENOENT)?;
            self.shown.snapshot(snapshot, Some(time))?
        } else {
            let snapshots = self.shown.snapshots();
            let found = snapshots.iter().find(|snapshot| snapshot.name.as_bytes() == name);
            self.shown.snapshot(found.ok_or(errno::ENOENT)?, None)?
        };
        let file = directory::in_snapshot(&self.shown, &slot, directory)?;
        let stat = slot.tree.stat(file).map_err(errno)?;
        directory::snapshot_entry(&self.shown, &slot, directory, &stat).map(bytes)
    }

    fn get_attributes(&self, node: u64) -> Answer {
        match self.shown.find(node)? {
            (at, Some(slot)) => {
                let stat = slot.tree.stat(at.file).map_err(errno)?;
                Ok(bytes(attr_out(node, &stat)))
            }
            (_, None) => Ok(bytes(directory::snapshots_attributes(node, &self.shown.snapshots()))),
        }
    }

    fn statx(&self, node: u64) -> Answer {
        match self.shown.find(node)? {
            (at, Some(slot)) => {
                let stat = slot.tree.stat(at.file).map_err(errno)?;
                Ok(bytes(statx_out(node, &stat)))
            }
            (_, None) => Ok(bytes(directory::snapshots_statx(node, &self.shown.snapshots()))),
        }
    }

    fn set_attributes(&self, header: &fuse_in_header, arguments: &fuse_setattr_in) -> Answer {
        let node = header.nodeid;
        let (slot, file) = self.shown.file(node)?;
        // Of a file without names the kernel is the only one that has times, and keeps them as long
        // as it knows the file.
        if arguments.valid & !KEPT_BACK == 0 && arguments.valid != 0 && slot.tree.is_nameless(file) {
            let stat = slot.tree.stat(file).map_err(errno)?;
            return Ok(bytes(attr_out(node, &stat)));
        }
        // A file system above this one (overlayfs) has found that its caller may not keep the
        // rights, and asks with its own rights, which may. The kernel strips the contents of that
        // request, as this side clears rights by itself.
        let asks_nothing = arguments.valid & !(fattr::FH | fattr::LOCKOWNER) == 0;
        if asks_nothing && !slot.tree.is_read_only() {
            self.take_rights(header, &slot, file, true)?;
            let stat = slot.tree.stat(file).map_err(errno)?;
            return Ok(bytes(attr_out(node, &stat)));
        }
        // For a new length it does not even send that, so that the caller is examined.
        if arguments.valid & (fattr::SIZE | fattr::KILL_SUIDGID) == fattr::SIZE {
            self.take_rights(header, &slot, file, false)?;
        }
        let given = |bit: u32| arguments.valid & bit != 0;
        let time = |bit: u32, now: u32, seconds: u64, ns: u32| match (given(now), given(bit)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::At(ns_of(seconds, ns))),
            (false, false) => None,
        };
        let mut change = SetStat {
            mode: given(fattr::MODE).then_some(arguments.mode & 0o7777),
            uid: given(fattr::UID).then_some(arguments.uid),
            gid: given(fattr::GID).then_some(arguments.gid),
            bytes: given(fattr::SIZE).then_some(arguments.size),
            accessed: time(fattr::ATIME, fattr::ATIME_NOW, arguments.atime, arguments.atimensec),
            modified: time(fattr::MTIME, fattr::MTIME_NOW, arguments.mtime, arguments.mtimensec),
            changed_ns: given(fattr::CTIME).then(|| ns_of(arguments.ctime, arguments.ctimensec)),
            ..SetStat::default()
        };
        let other_owner = given(fattr::UID) || given(fattr::GID);
        if other_owner || given(fattr::SIZE) || given(fattr::KILL_SUIDGID) {
            let stat = slot.tree.stat(file).map_err(errno)?;
            if change.mode.is_none() && (other_owner || given(fattr::KILL_SUIDGID)) {
                change.mode = without_rights(&stat);
            }
            if stat.has_xattrs && stat.kind == NodeKind::File {
                drop_capability(&slot.tree, file).map_err(errno)?;
            }
        }
        match slot.tree.set(file, &change) {
            Ok(stat) => Ok(bytes(attr_out(node, &stat))),
            // The kernel caches times, that of an unlink as well, and also sends them for a file
            // that is gone with its last name. An error would stay with the file system, and
            // `syncfs`, with which a snapshot begins, would report it to its next caller. A program
            // that has the file open still finds it.
            Err(TreeError::NotFound) if arguments.valid & !KEPT_BACK == 0 => Ok(bytes(fuse_attr_out {
                attr: fuse_attr { ino: node, ..fuse_attr::default() },
                ..fuse_attr_out::default()
            })),
            Err(error) => Err(errno(error)),
        }
    }

    fn make(
        &self,
        node: u64,
        name: &[u8],
        act: impl FnOnce(&Tree, FileId) -> Result<Stat, TreeError>,
    ) -> Answer {
        let (slot, directory) = self.shown.file(node)?;
        if name == SNAPSHOTS_NAME && self.shown.snapshots_in(&slot, directory).is_some() {
            return Err(errno::EEXIST);
        }
        self.wait_for_room(&slot, directory, 0, 1);
        let stat = act(&slot.tree, directory).map_err(errno)?;
        self.shown.entry(&slot, &stat).map(bytes)
    }

    /// The file of a number that must be in the tree of another one. To the kernel all trees are
    /// one file system, and a file of a snapshot has the number here that it has in the live tree.
    fn beside(&self, node: u64, other: u64) -> Result<FileId, i32> {
        let ((slot, _), (other_slot, file)) = (self.shown.file(node)?, self.shown.file(other)?);
        if Arc::ptr_eq(&slot, &other_slot) { Ok(file) } else { Err(errno::EXDEV) }
    }

    fn rename(
        &self,
        header: &fuse_in_header,
        name: &[u8],
        newdir: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer {
        let (slot, from) = self.shown.file(header.nodeid)?;
        let to = self.beside(header.nodeid, newdir)?;
        let mode = match flags & !RENAME_WHITEOUT {
            0 => Rename::Replace,
            RENAME_NOREPLACE => Rename::NoReplace,
            RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(errno::EINVAL),
        };
        let of_snapshots = name == SNAPSHOTS_NAME || new_name == SNAPSHOTS_NAME;
        if of_snapshots && self.shown.snapshots_in(&slot, from).is_some() {
            return Err(errno::EPERM);
        }
        let owner = Owner { uid: header.uid, gid: header.gid };
        let whiteout = (flags & RENAME_WHITEOUT != 0).then_some(owner);
        let renamed = slot.tree.rename_and_leave(from, name, to, new_name, mode, whiteout);
        renamed.map(|_| Vec::new()).map_err(errno)
    }

    fn open(&self, node: u64, flags: u32) -> Result<fuse_open_out, i32> {
        // The kernel knows a file that it has open, so that it stays.
        let (slot, file) = self.shown.file(node)?;
        let stat = slot.tree.stat(file).map_err(errno)?;
        let (mut handle, mut open_flags) = (0, FOPEN_KEEP_CACHE);
        if flags & O_ACCMODE != 0 {
            if slot.tree.is_read_only() {
                return Err(errno::EROFS);
            }
            if stat.has_xattrs && slot.tree.xattr(file, CAPABILITY).is_ok() {
                handle |= HANDLE_CAPABILITY;
            }
            if !self.may_keep_writes_back(&slot, file)? {
                handle |= HANDLE_DIRECT;
                open_flags = FOPEN_DIRECT_IO;
            }
            self.writers.lock().entry(file).or_default().count += 1;
        }
        Ok(fuse_open_out { fh: handle, open_flags, backing_id: 0 })
    }

    fn open_directory(&self, node: u64) -> Result<fuse_open_out, i32> {
        let mut open_flags = 0;
        if let (at, Some(slot)) = self.shown.find(node)? {
            if slot.tree.is_read_only() {
                let moves_on = node == FUSE_ROOT_ID && !self.shown.is_live();
                open_flags = if moves_on { 0 } else { FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR };
            } else {
                slot.tree.stat(at.file).map_err(errno)?;
            }
        }
        Ok(fuse_open_out { fh: 0, open_flags, backing_id: 0 })
    }

    fn release(&self, node: u64, flags: u32) -> Answer {
        if flags & O_ACCMODE != 0
            && let (at, Some(slot)) = self.shown.find(node)?
            && !slot.tree.is_read_only()
        {
            let mut writers = self.writers.lock();
            if let Some(open) = writers.get_mut(&at.file) {
                open.count -= 1;
                if open.count == 0 {
                    writers.remove(&at.file);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Records that a cached write has failed. True when no program has the file open for writing:
    /// the kernel can then be made to show the stored content. Otherwise the file's last close does
    /// that.
    pub(crate) fn loses(&self, node: u64) -> bool {
        let Ok((_, file)) = self.shown.file(node) else { return false };
        let is_closed = !self.writers.lock().contains_key(&file);
        if !is_closed {
            self.lost.lock().insert(file);
        }
        is_closed
    }

    /// True when such a file has lost its last writer: from now on the kernel can be made to show
    /// the stored content.
    pub(crate) fn lost_and_closed(&self, node: u64) -> bool {
        let Ok((_, file)) = self.shown.file(node) else { return false };
        !self.writers.lock().contains_key(&file) && self.lost.lock().remove(&file)
    }

    /// The kernel knows files less: each by its number, with how many times.
    pub(crate) fn forget(&self, numbers: impl IntoIterator<Item = (u64, u64)>) {
        self.shown.forget(numbers);
        self.forgetting.has_come_round();
    }

    fn create(&self, header: &fuse_in_header, arguments: &fuse_create_in, name: &[u8]) -> Answer {
        let new = new(header, arguments.mode, arguments.umask, 0);
        let made = self.make(header.nodeid, name, |tree, directory| tree.make(directory, name, &new))?;
        self.and_open(made, arguments)
    }

    fn create_unnamed(&self, header: &fuse_in_header, arguments: &fuse_create_in) -> Answer {
        let (slot, directory) = self.shown.file(header.nodeid)?;
        let new = new(header, arguments.mode, arguments.umask, 0);
        let stat = slot.tree.make_unnamed(directory, &new).map_err(errno)?;
        let answer =
            self.shown.entry(&slot, &stat).map(bytes).and_then(|entry| self.and_open(entry, arguments));
        // The kernel, which has got the answer, holds it from here on; otherwise it is gone.
        slot.tree.release(stat.file);
        answer
    }

    /// The lookup answer of a new file, followed by the answer for an open one.
    fn and_open(&self, mut entry: Vec<u8>, arguments: &fuse_create_in) -> Answer {
        let number = u64::from_ne_bytes(entry[..8].try_into().map_err(|_| errno::EIO)?);
        // Without the answer the kernel does not know the file.
        let open = self.open(number, arguments.flags).inspect_err(|_| self.forget([(number, 1)]))?;
        entry.extend(open.as_bytes());
        Ok(entry)
    }

    /// Does a write whose data is in blocks.
    pub(crate) fn write_blocks(&self, write: BlockWrite) -> Answer {
        let BlockWrite { header, arguments, blocks } = write;
        let (offset, length) = (arguments.offset, arguments.size as usize);
        self.write(header.nodeid, &arguments, |tree, file, is_kept_back| {
            tree.write_blocks(file, offset, length, blocks, is_kept_back)
        })
    }

    fn write(
        &self,
        node: u64,
        arguments: &fuse_write_in,
        act: impl FnOnce(&Tree, FileId, bool) -> Result<usize, TreeError>,
    ) -> Answer {
        let (slot, file) = self.shown.file(node)?;
        if arguments.write_flags & FUSE_WRITE_KILL_SUIDGID != 0 {
            let stat = slot.tree.stat(file).map_err(errno)?;
            if let Some(mode) = without_rights(&stat) {
                let change = SetStat { mode: Some(mode), ..SetStat::default() };
                slot.tree.set(file, &change).map_err(errno)?;
            }
        }
        if arguments.fh & HANDLE_CAPABILITY != 0 {
            drop_capability(&slot.tree, file).map_err(errno)?;
        }
        // For written-back data the kernel itself sends the time of the program's write.
        let is_kept_back = arguments.write_flags & FUSE_WRITE_CACHE != 0;
        self.wait_for_room(&slot, file, arguments.size.into(), 0);
        let written = act(&slot.tree, file, is_kept_back).map_err(|error| match error {
            // A close reports the failure of cached writes as one of two errors, and EDQUOT is
            // neither.
            TreeError::Quota if is_kept_back => errno(TreeError::NoSpace),
            error => errno(error),
        })?;
        Ok(bytes(fuse_write_out { size: written as u32, padding: 0 }))
    }

    fn space(&self) -> Answer {
        let (slot, _) = self.shown.file(FUSE_ROOT_ID)?;
        let space = slot.tree.statfs().map_err(errno)?;
        Ok(bytes(fuse_kstatfs {
            blocks: space.blocks,
            bfree: space.free,
            bavail: space.free,
            files: space.files,
            ffree: space.files_free,
            bsize: space.block_bytes,
            namelen: space.name_max,
            frsize: space.block_bytes,
            ..fuse_kstatfs::default()
        }))
    }

    fn set_xattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32) -> Answer {
        let (slot, file) = self.shown.file(node)?;
        let mode = match flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(errno::EINVAL),
        };
        slot.tree.set_xattr(file, name, value, mode).map(|()| Vec::new()).map_err(errno)
    }

    fn xattr(&self, node: u64, name: &[u8], size: u32) -> Answer {
        let (at, Some(slot)) = self.shown.find(node)? else { return Err(errno::ENODATA) };
        sized(slot.tree.xattr(at.file, name).map_err(errno)?, size)
    }

    fn xattrs(&self, node: u64, size: u32) -> Answer {
        let (at, Some(slot)) = self.shown.find(node)? else { return sized(Vec::new(), size) };
        let mut list = Vec::new();
        for name in slot.tree.xattrs(at.file).map_err(errno)? {
            list.extend(name);
            list.push(0);
        }
        sized(list, size)
    }

    /// The access control list was set by a user that is not in the file's group and may not use
    /// its rights.
    fn take_group_id(&self, node: u64) -> Result<(), i32> {
        let (slot, file) = self.shown.file(node)?;
        let mode = slot.tree.stat(file).map_err(errno)?.mode & 0o7777;
        let change = SetStat { mode: Some(mode & !S_ISGID), ..SetStat::default() };
        if mode & S_ISGID != 0 { slot.tree.set(file, &change).map(|_| ()).map_err(errno) } else { Ok(()) }
    }

    /// Clears the bits that give rights after a change of content other than a write (for writes
    /// the kernel decides), unless the caller may keep them. The group's bit is also cleared when
    /// the caller is not in the file's group. With `is_asked` the kernel has found that the caller
    /// may not keep them, also for a directory that gets an access control list.
    fn take_rights(
        &self,
        header: &fuse_in_header,
        slot: &Slot,
        file: FileId,
        is_asked: bool,
    ) -> Result<(), i32> {
        let stat = slot.tree.stat(file).map_err(errno)?;
        let mode = stat.mode & 0o7777;
        let has_some = stat.kind == NodeKind::File || is_asked && stat.kind == NodeKind::Directory;
        if !has_some || mode & (S_ISUID | S_ISGID) == 0 {
            return Ok(());
        }
        let caller = Caller::of(header.pid);
        if !is_asked && caller.as_ref().is_some_and(|caller| caller.may_keep_rights) {
            return Ok(());
        }
        let foreign = if caller.is_some_and(|caller| caller.is_in(stat.gid)) { 0 } else { S_ISGID };
        let left = without_rights(&stat).unwrap_or(mode) & !foreign;
        let change = SetStat { mode: Some(left), ..SetStat::default() };
        if left == mode { Ok(()) } else { slot.tree.set(file, &change).map(|_| ()).map_err(errno) }
    }

    fn allocate(&self, header: &fuse_in_header, arguments: &fuse_fallocate_in) -> Answer {
        let (slot, file) = self.shown.file(header.nodeid)?;
        const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
        const ZERO_AND_KEEP: u32 = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
        let mode = match arguments.mode {
            0 => Allocate::Extend,
            FALLOC_KEEP_SIZE => Allocate::Keep,
            PUNCH => Allocate::Punch,
            FALLOC_ZERO_RANGE => Allocate::Zero { keep: false },
            ZERO_AND_KEEP => Allocate::Zero { keep: true },
            _ => return Err(errno::EOPNOTSUPP),
        };
        self.take_rights(header, &slot, file, false)?;
        self.wait_for_room(&slot, file, arguments.length, 0);
        let done = slot.tree.allocate(file, arguments.offset, arguments.length, mode);
        done.map(|()| Vec::new()).map_err(errno)
    }

    fn seek(&self, node: u64, arguments: &fuse_lseek_in) -> Answer {
        let (slot, file) = self.shown.file(node)?;
        let found = match arguments.whence {
            SEEK_DATA => slot.tree.seek_data(file, arguments.offset),
            SEEK_HOLE => slot.tree.seek_hole(file, arguments.offset),
            _ => return Err(errno::EINVAL),
        };
        Ok(bytes(fuse_lseek_out { offset: found.map_err(errno)? }))
    }

    fn copy(&self, header: &fuse_in_header, arguments: &fuse_copy_file_range_in) -> Answer {
        let (from_slot, from) = self.shown.file(header.nodeid)?;
        let (to_slot, to) = self.shown.file(arguments.nodeid_out)?;
        self.take_rights(header, &to_slot, to, false)?;
        let length = arguments.len.min(COPY_BYTES_MAX);
        self.wait_for_room(&to_slot, to, length, 0);
        let copied = if Arc::ptr_eq(&from_slot, &to_slot) {
            let (tree, at, onto) = (&to_slot.tree, arguments.off_in, arguments.off_out);
            tree.copy_range(from, at, to, onto, length).map_err(errno)?
        } else {
            copy_between(
                &from_slot.tree,
                (from, arguments.off_in),
                &to_slot.tree,
                (to, arguments.off_out),
                length,
            )
            .map_err(errno)?
        };
        Ok(bytes(fuse_write_out { size: copied as u32, padding: 0 }))
    }
}

fn new(header: &fuse_in_header, mode: u32, umask: u32, device: u32) -> New {
    New { mode, uid: header.uid, gid: header.gid, device, umask }
}

/// Copies bytes of a file out of a snapshot, each file with its start offset. Returns how many:
/// copied bytes stay, and a request for the rest gets the error.
fn copy_between(
    from_tree: &Tree,
    (from, from_offset): (FileId, u64),
    to_tree: &Tree,
    (to, to_offset): (FileId, u64),
    length: u64,
) -> Result<u64, TreeError> {
    let mut copied = 0;
    while copied < length {
        let piece = (length - copied).min(COPY_PIECE as u64) as usize;
        let data = match from_tree.read(from, from_offset.saturating_add(copied), piece) {
            Ok(data) if data.is_empty() => break,
            Ok(data) => data,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        };
        match to_tree.write(to, to_offset.saturating_add(copied), &data) {
            Ok(count) => copied += count as u64,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}

/// A mode without the bits that give rights; `None` when it has none of them. A write or another
/// owner clears them, as `should_remove_suid` of the kernel does.
fn without_rights(stat: &Stat) -> Option<u32> {
    if stat.kind != NodeKind::File {
        return None;
    }
    let mode = stat.mode & 0o7777;
    let group = if mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    let left = mode & !(S_ISUID | group);
    (left != mode).then_some(left)
}

fn drop_capability(tree: &Tree, file: FileId) -> Result<(), TreeError> {
    match tree.remove_xattr(file, CAPABILITY) {
        Err(TreeError::NoAttribute) => Ok(()),
        outcome => outcome,
    }
}

/// A value for a caller with room for `size` bytes, or its length for a caller that passes 0.
fn sized(value: Vec<u8>, size: u32) -> Answer {
    match size {
        0 => Ok(bytes(fuse_getxattr_out { size: value.len() as u32, padding: 0 })),
        size if (size as usize) < value.len() => Err(errno::ERANGE),
        _ => Ok(value),
    }
}
