//! Attributes as NFS has them.

use cairn_files::{NodeKind, SetTime, Stat};
use cairn_proto_nfs::{self as wire, Attributes, DeviceNumbers, Kind, Time, WccAttributes};

const NS: i64 = 1_000_000_000;
const BLOCK_BYTES: u64 = cairn_base::BLOCK_SIZE as u64;

/// A time that NFS has no number for becomes the nearest one that it has.
pub(crate) fn time(ns: i64) -> Time {
    match u32::try_from(ns.div_euclid(NS)) {
        Ok(seconds) => Time { seconds, nanoseconds: ns.rem_euclid(NS) as u32 },
        Err(_) if ns < 0 => Time::default(),
        Err(_) => Time { seconds: u32::MAX, nanoseconds: 0 },
    }
}

/// A time of a client.
pub(crate) fn ns(time: Time) -> i64 {
    i64::from(time.seconds) * NS + i64::from(time.nanoseconds).min(NS - 1)
}

pub(crate) fn set_time(time: wire::SetTime) -> Option<SetTime> {
    match time {
        wire::SetTime::Keep => None,
        wire::SetTime::Now => Some(SetTime::Now),
        wire::SetTime::At(time) => Some(SetTime::At(ns(time))),
    }
}

pub(crate) fn kind(kind: NodeKind) -> Kind {
    match kind {
        NodeKind::File => Kind::File,
        NodeKind::Directory => Kind::Directory,
        NodeKind::SymbolicLink => Kind::SymbolicLink,
        NodeKind::CharacterDevice => Kind::CharacterDevice,
        NodeKind::BlockDevice => Kind::BlockDevice,
        NodeKind::Fifo => Kind::Fifo,
        NodeKind::Socket => Kind::Socket,
    }
}

/// The numbers of a device from Linux's 32 bits.
fn device(number: u32) -> DeviceNumbers {
    DeviceNumbers { major: number >> 8 & 0xfff, minor: number & 0xff | number >> 12 & 0xf_ff00 }
}

/// Linux's 32 bits for the numbers of a device; `None` if they do not fit.
pub(crate) fn device_number(numbers: DeviceNumbers) -> Option<u32> {
    let DeviceNumbers { major, minor } = numbers;
    (major <= 0xfff && minor <= 0xf_ffff).then_some(minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12)
}

/// The attributes of a file, as the file `file_id` of a file system.
pub(crate) fn attributes(stat: &Stat, file_system: u64, file_id: u64) -> Attributes {
    Attributes {
        kind: kind(stat.kind),
        mode: stat.mode & 0o7777,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.bytes,
        used: stat.blocks * BLOCK_BYTES,
        device: device(stat.device),
        file_system,
        file_id,
        accessed: time(stat.accessed_ns),
        modified: time(stat.modified_ns),
        changed: time(stat.changed_ns),
    }
}

/// The attributes before a change.
pub(crate) fn before(stat: &Stat) -> WccAttributes {
    WccAttributes { size: stat.bytes, modified: time(stat.modified_ns), changed: time(stat.changed_ns) }
}
