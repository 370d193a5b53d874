//! The kernel's structs: requests and answers of FUSE, as `linux/fuse.h` has them at version 7.39.
//!
//! Names are the kernel's own. All numbers are of the machine's byte order, as kernel and server
//! are one machine. No struct has padding that is not named.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that this speaks; the kernel's may be newer or older.
pub(crate) const FUSE_KERNEL_VERSION: u32 = 7;
pub(crate) const FUSE_KERNEL_MINOR_VERSION: u32 = 39;
/// The oldest kernel that is served: 4.20, the first with as many pages in a request as one likes.
pub(crate) const FUSE_KERNEL_MINOR_MIN: u32 = 28;
/// The node that the root of every mount is.
pub(crate) const FUSE_ROOT_ID: u64 = 1;

macro_rules! kernel_structs {
    ($($name:ident { $($field:ident: $type:ty,)+ } = $bytes:literal;)+) => {$(
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)+ }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )+};
}

kernel_structs! {
    fuse_in_header {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    } = 40;
    fuse_out_header { len: u32, error: i32, unique: u64, } = 16;
    fuse_attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    } = 88;
    fuse_entry_out {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: fuse_attr,
    } = 128;
    fuse_attr_out { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: fuse_attr, } = 104;
    fuse_init_in {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
    } = 16;
    fuse_init_out {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        unused: [u32; 6],
    } = 64;
    fuse_forget_in { nlookup: u64, } = 8;
    fuse_forget_one { nodeid: u64, nlookup: u64, } = 16;
    fuse_batch_forget_in { count: u32, dummy: u32, } = 8;
    fuse_setattr_in {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    } = 88;
    fuse_mknod_in { mode: u32, rdev: u32, umask: u32, padding: u32, } = 16;
    fuse_mkdir_in { mode: u32, umask: u32, } = 8;
    fuse_rename_in { newdir: u64, } = 8;
    fuse_rename2_in { newdir: u64, flags: u32, padding: u32, } = 16;
    fuse_link_in { oldnodeid: u64, } = 8;
    fuse_open_in { flags: u32, open_flags: u32, } = 8;
    fuse_create_in { flags: u32, mode: u32, umask: u32, open_flags: u32, } = 16;
    fuse_open_out { fh: u64, open_flags: u32, backing_id: i32, } = 16;
    fuse_release_in { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, } = 24;
    fuse_read_in {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    } = 40;
    fuse_write_in {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    } = 40;
    fuse_write_out { size: u32, padding: u32, } = 8;
    fuse_kstatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    } = 80;
    fuse_fsync_in { fh: u64, fsync_flags: u32, padding: u32, } = 16;
    fuse_setxattr_in { size: u32, flags: u32, } = 8;
    fuse_setxattr_ext_in { setxattr_flags: u32, padding: u32, } = 8;
    fuse_getxattr_in { size: u32, padding: u32, } = 8;
    fuse_getxattr_out { size: u32, padding: u32, } = 8;
    fuse_fallocate_in { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, } = 32;
    fuse_lseek_in { fh: u64, offset: u64, whence: u32, padding: u32, } = 24;
    fuse_lseek_out { offset: u64, } = 8;
    fuse_copy_file_range_in {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    } = 56;
    fuse_dirent { ino: u64, off: u64, namelen: u32, r#type: u32, } = 24;
    fuse_statx_in { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, } = 24;
    fuse_sx_time { tv_sec: i64, tv_nsec: u32, reserved: i32, } = 16;
    fuse_statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: fuse_sx_time, btime: fuse_sx_time, ctime: fuse_sx_time,
        mtime: fuse_sx_time, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    } = 256;
    fuse_statx_out {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: fuse_statx,
    } = 288;
    fuse_notify_inval_inode_out { ino: u64, off: i64, len: i64, } = 24;
    fuse_notify_retrieve_out { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, } = 32;
    fuse_notify_inval_entry_out { parent: u64, namelen: u32, flags: u32, } = 16;
}

/// The operation of a request.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// The options agreed at INIT, as bits of 64.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Which fields of [`fuse_setattr_in`] are meant.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// How the kernel handles an open file. Reads and writes of this handle bypass the kernel's cache.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1;
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub(crate) const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// The write comes out of the kernel's cache.
pub(crate) const FUSE_WRITE_CACHE: u32 = 1;
/// A write clears the bits that give rights.
pub(crate) const FUSE_WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// An access control list takes the set-group-id bit with it.
pub(crate) const FUSE_SETXATTR_ACL_KILL_SGID: u32 = 1;
/// The fields of an answer to STATX: all fields of `stat`, and the time of birth.
pub(crate) const STATX_BASIC_STATS_AND_BTIME: u32 = 0xfff;

/// Notices that the server sends unasked.
pub(crate) const FUSE_NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const FUSE_NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const FUSE_NOTIFY_RETRIEVE: i32 = 5;
/// All names must be looked up again (Linux 6.16 and later).
pub(crate) const FUSE_NOTIFY_INC_EPOCH: i32 = 8;

/// Errors that are given here and not by the tree, as Linux numbers them.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EXDEV: i32 = 18;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const ERANGE: i32 = 34;
    pub(crate) const ENOSYS: i32 = 38;
    pub(crate) const ENODATA: i32 = 61;
    pub(crate) const EPROTO: i32 = 71;
    pub(crate) const EOVERFLOW: i32 = 75;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const ESTALE: i32 = 116;
}
