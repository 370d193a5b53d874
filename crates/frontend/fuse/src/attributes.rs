//! Attributes of files as the kernel takes them.

use cairn_base::BLOCK_SIZE;
use cairn_files::{NodeKind, Stat};

use crate::abi::*;

/// Seconds that the kernel may cache an answer. A mounted tree changes only through this mount, and
/// a notice revokes answers that change otherwise.
const KEPT_SECONDS: u64 = 86_400;
/// Units of `st_blocks` in a block.
const SECTORS_PER_BLOCK: u64 = (BLOCK_SIZE / 512) as u64;
/// Bits of a mode that run the file with the rights of its owner or group.
pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
/// The entry type of a directory (`DT_DIR`).
pub(crate) const DT_DIR: u32 = 4;

/// Seconds and nanoseconds; the kernel reads the seconds as signed.
fn time(ns: i64) -> (i64, u32) {
    (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) as u32)
}

/// Nanoseconds since 1970 of a time in a request; a time out of range becomes the nearest valid
/// one.
pub(crate) fn ns_of(seconds: u64, nanoseconds: u32) -> i64 {
    (seconds as i64).saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds))
}

/// The type of an entry in a directory (`DT_*`).
pub(crate) fn entry_type(mode: u32) -> u32 {
    mode >> 12 & 0xf
}

/// The attributes of a file that the kernel calls `number`.
pub(crate) fn attr(number: u64, stat: &Stat) -> fuse_attr {
    let ((atime, atimensec), (mtime, mtimensec), (ctime, ctimensec)) =
        (time(stat.accessed_ns), time(stat.modified_ns), time(stat.changed_ns));
    fuse_attr {
        ino: number,
        size: stat.bytes,
        blocks: stat.blocks * SECTORS_PER_BLOCK,
        atime: atime as u64,
        mtime: mtime as u64,
        ctime: ctime as u64,
        atimensec,
        mtimensec,
        ctimensec,
        mode: stat.mode,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}

/// Seconds that the kernel may cache attributes. A change of content clears the bits that give
/// rights, but the kernel keeps using its cached ones: so it must ask for such a file each time.
fn kept_seconds(stat: &Stat) -> u64 {
    let gives_rights = stat.kind == NodeKind::File && stat.mode & (S_ISUID | S_ISGID) != 0;
    if gives_rights { 0 } else { KEPT_SECONDS }
}

/// The answer to a lookup. `generation` distinguishes the meaning of the kernel's number in a
/// handle that it gave out (NFS) before this mount.
pub(crate) fn entry(number: u64, generation: u32, stat: &Stat) -> fuse_entry_out {
    fuse_entry_out {
        nodeid: number,
        generation: u64::from(generation),
        entry_valid: KEPT_SECONDS,
        attr_valid: kept_seconds(stat),
        attr: attr(number, stat),
        ..fuse_entry_out::default()
    }
}

/// The answer to a lookup of a missing name, which the kernel may cache as well.
pub(crate) fn no_entry() -> fuse_entry_out {
    fuse_entry_out { entry_valid: KEPT_SECONDS, ..fuse_entry_out::default() }
}

/// The answer to GETATTR.
pub(crate) fn attr_out(number: u64, stat: &Stat) -> fuse_attr_out {
    fuse_attr_out { attr_valid: kept_seconds(stat), attr: attr(number, stat), ..fuse_attr_out::default() }
}

/// The answer to STATX, which alone has the time of birth.
pub(crate) fn statx_out(number: u64, stat: &Stat) -> fuse_statx_out {
    let at = |ns| {
        let (tv_sec, tv_nsec) = time(ns);
        fuse_sx_time { tv_sec, tv_nsec, reserved: 0 }
    };
    // Twelve bits of major, twenty of minor number, as the kernel's `new_decode_dev` has them.
    let (major, minor) = ((stat.device >> 8) & 0xfff, stat.device & 0xff | (stat.device >> 12) & 0xf_ff00);
    fuse_statx_out {
        attr_valid: kept_seconds(stat),
        stat: fuse_statx {
            mask: STATX_BASIC_STATS_AND_BTIME,
            blksize: BLOCK_SIZE as u32,
            nlink: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode as u16,
            ino: number,
            size: stat.bytes,
            blocks: stat.blocks * SECTORS_PER_BLOCK,
            atime: at(stat.accessed_ns),
            btime: at(stat.created_ns),
            ctime: at(stat.changed_ns),
            mtime: at(stat.modified_ns),
            rdev_major: major,
            rdev_minor: minor,
            ..fuse_statx::default()
        },
        ..fuse_statx_out::default()
    }
}
