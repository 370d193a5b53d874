//! Errors of the engine, as the API answers them: the kind of each, and the step that comes next.
//!
//! The server and the command line both meet them. The server keeps its own errors beside the code
//! that raises them.

use cairn_device::DeviceError;
use cairn_stream::{DumpError, StreamError};
use cairn_volume::VolumeError;

use crate::{ErrorBody, ErrorKind};

/// The next step if the system gives no thread.
pub const NO_THREAD_NEXT: &str = "raise the thread limit of the server (`TasksMax=` of its unit, `ulimit -u` of its user, the `pids` limit of its container) or free memory, then run the command again";

/// The kind of an error of the operating system.
pub fn io_kind(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::AddrInUse => ErrorKind::PortTaken,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::NoSpace,
        Io::ReadOnlyFilesystem | Io::PermissionDenied => ErrorKind::ReadOnly,
        Io::NotFound => ErrorKind::NotFound,
        Io::InvalidData => ErrorKind::Damaged,
        _ => ErrorKind::Failed,
    }
}

/// The kind of an error of a device.
pub fn device_kind(error: &DeviceError) -> ErrorKind {
    match error {
        DeviceError::NoSpace { .. } => ErrorKind::NoSpace,
        DeviceError::Corrupt { .. } => ErrorKind::Damaged,
        DeviceError::ReadOnly => ErrorKind::ReadOnly,
        DeviceError::Io { source, .. } => io_kind(source),
        _ => ErrorKind::Failed,
    }
}

/// The next step after an error of a device.
pub fn device_next(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::NoSpace { .. } => "free some space under the data directory",
        DeviceError::Corrupt { .. } => {
            "run `cairn volume check`; restore the damage that it names from a snapshot or a mirror"
        }
        DeviceError::ReadOnly => "make the device writable",
        _ => "see the kernel's log (dmesg) for the device",
    }
}

/// The kind of an error of a volume.
pub fn volume_kind(error: &VolumeError) -> ErrorKind {
    match error {
        VolumeError::Device(error) => device_kind(error),
        VolumeError::Damaged { .. } => ErrorKind::Damaged,
        VolumeError::NotAVolume { .. }
        | VolumeError::Label(_)
        | VolumeError::MapContradicts { .. }
        | VolumeError::LogDamaged { .. }
        | VolumeError::OlderThanLog { .. }
        | VolumeError::LogOther { .. }
        | VolumeError::NotALog { .. } => ErrorKind::VolumeDamaged,
        VolumeError::LogMissing { .. } => ErrorKind::NotFound,
        VolumeError::LogDevice(error) => device_kind(error),
        VolumeError::NotEmpty | VolumeError::LogTaken { .. } => ErrorKind::NotEmpty,
        VolumeError::DeviceTooSmall { .. } | VolumeError::LogTooSmall { .. } => ErrorKind::TooSmall,
        VolumeError::Size { .. } => ErrorKind::WrongSize,
        VolumeError::InvalidName => ErrorKind::Usage,
        VolumeError::NoSpace
        | VolumeError::NoRoomBelow
        | VolumeError::TableFull
        | VolumeError::TooManySegments => ErrorKind::NoSpace,
        VolumeError::NoSuchFile(_) | VolumeError::NoSuchSnapshot(_) => ErrorKind::NotFound,
        VolumeError::NameTaken => ErrorKind::Taken,
        VolumeError::Held(_)
        | VolumeError::Cloned(_)
        | VolumeError::TransferInProgress
        | VolumeError::OtherHead => ErrorKind::Busy,
        VolumeError::WrongRole(_) => ErrorKind::WrongRole,
        VolumeError::Contradicts(_) => ErrorKind::Contradicted,
        VolumeError::Refused(_) => ErrorKind::Diverged,
        VolumeError::Latched(_) | VolumeError::InodesLost(_) => ErrorKind::ReadOnly,
        VolumeError::Closed => ErrorKind::Interrupted,
    }
}

/// The next step after an error of `volume`.
pub fn volume_next(volume: &str, error: &VolumeError) -> String {
    match error {
        VolumeError::Device(error) => device_next(error).into(),
        VolumeError::Damaged { .. } | VolumeError::Label(_) | VolumeError::MapContradicts { .. } => {
            format!("run `cairn volume check {volume}`; restore the damage that it names from a snapshot or the mirror")
        }
        VolumeError::TooManySegments => "for a mirror: delete and create it again (`cairn mirror delete`, `cairn mirror create`); for another volume: dump and restore it (`cairn image dump`, `cairn image restore`)".into(),
        VolumeError::NoRoomBelow => {
            format!("free space on the file system of its devices; {volume} takes writes again by itself")
        }
        VolumeError::NoSpace | VolumeError::TableFull => {
            format!(
                "delete snapshots (`cairn snapshot list {volume}`) or LUNs, or grow it with `cairn volume grow {volume}`"
            )
        }
        VolumeError::Size { .. } => "choose a size in that range".into(),
        VolumeError::DeviceTooSmall { .. } => "name larger or more devices, or choose a smaller size".into(),
        VolumeError::NoSuchFile(_) => format!("list what exists with `cairn lun list {volume}`"),
        VolumeError::NoSuchSnapshot(_) | VolumeError::NameTaken => {
            format!("see the snapshots with `cairn snapshot list {volume}`")
        }
        VolumeError::Cloned(_) => {
            format!(
                "delete the clone (`cairn clone list`, `cairn clone delete`); for an unfinished dump (`cairn image levels {volume}`), resume it \
                 (`cairn image dump {volume} --resume`) or abandon it (`cairn image levels {volume} --give-up`)"
            )
        }
        VolumeError::Held(_) => {
            "a mirror needs it as the base of its next update: update that mirror first, or revoke the peer; or it is the base of \
             image dumps (`cairn image levels VOLUME --forget LEVEL`)"
                .replace("VOLUME", volume)
        }
        VolumeError::TransferInProgress => {
            "wait until the transfer is over; `cairn mirror status` shows it".into()
        }
        VolumeError::OtherHead => "run the command again; it then uses the present state".into(),
        VolumeError::Contradicts(_) => format!(
            "an attacker may control the source: run `cairn mirror pause {volume}` and check the source and its keys; the data here is unchanged and still served. When the source is trusted again, make a second mirror of it with `cairn mirror create --as NAME`; otherwise, `cairn mirror failover {volume}` makes this copy writable"
        ),
        VolumeError::Refused(_) => "update the mirror again; if it stays, make a new one".into(),
        VolumeError::Latched(reason) => match volume_kind(reason) {
            ErrorKind::NoSpace => "free space on the file system of its device, then restart the server".into(),
            _ => "repair the device, then restart the server".into(),
        },
        VolumeError::InodesLost(_) => format!(
            "a mirror that has them restores them by itself (`cairn mirror status` shows whether one answers), and the volume then takes changes; otherwise fail over to a mirror, continue \
             from a snapshot (`cairn snapshot list {volume}`, then `cairn clone create {volume}@SNAPSHOT NEW`), or restore an image dump"
        ),
        VolumeError::LogDamaged { .. } => format!(
            "fail over to the mirror, or restore the device; `cairn volume log {volume} --discard-lost` opens at the last \
             consistency point, without the writes flushed since"
        ),
        VolumeError::OlderThanLog { .. } => format!(
            "restore the devices of the volume to their state of when the log was last in use; to use the backup instead, `cairn volume log {volume} --discard-lost` opens it at its consistency point, without the log (-n shows that point)"
        ),
        VolumeError::LogMissing { .. } | VolumeError::LogOther { .. } | VolumeError::NotALog { .. } => {
            log_next(volume)
        }
        VolumeError::LogDevice(error) => device_next(error).into(),
        VolumeError::LogTaken { .. } => {
            "name another device, or clear this one if its volume is gone (`blkdiscard`, or zeroes in its first 128 KiB)"
                .into()
        }
        VolumeError::LogTooSmall { .. } => "name a larger device: at least 2 MiB; at most 64 MiB are used".into(),
        VolumeError::NotAVolume { .. } => "check that these are the right devices".into(),
        VolumeError::NotEmpty => "name another device, or delete the volume that is on it".into(),
        VolumeError::InvalidName => "choose another name".into(),
        VolumeError::WrongRole(_) => "see its role with `cairn volume list`".into(),
        VolumeError::Closed => "start the server again".into(),
    }
}

/// The next step if the log device of `volume` is missing.
pub fn log_next(volume: &str) -> String {
    format!(
        "bring the log device back, and the volume is opened within seconds; if it is lost for good, `cairn volume log {volume} \
         --discard-lost` opens at the last consistency point, without the writes flushed since"
    )
}

/// The kind of an error of a dump.
pub fn dump_kind(error: &DumpError) -> ErrorKind {
    match error {
        DumpError::Head { .. }
        | DumpError::Cut { .. }
        | DumpError::GivenUp { .. }
        | DumpError::Damaged { .. }
        | DumpError::TableLost { .. } => ErrorKind::Damaged,
        // An object of a bucket is shorter than listed.
        DumpError::Read { source, .. } if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            ErrorKind::Damaged
        }
        DumpError::Read { source, .. } => io_kind(source),
        DumpError::MissingPart { .. } | DumpError::MissingBase { .. } => ErrorKind::NotFound,
        DumpError::OtherBegin { .. } => ErrorKind::Diverged,
        DumpError::Changed { .. } => ErrorKind::Damaged,
        DumpError::NamedTooEarly { .. } => ErrorKind::Damaged,
        DumpError::DoublePart { .. }
        | DumpError::OtherVolume { .. }
        | DumpError::Contradiction { .. }
        | DumpError::OtherFile { .. }
        | DumpError::TwoCopies { .. }
        | DumpError::TwoFull { .. } => ErrorKind::Usage,
        DumpError::Stream(error) => match error {
            StreamError::Io(source) => io_kind(source),
            StreamError::Volume(error) => volume_kind(error),
            StreamError::TooSmall { .. } => ErrorKind::WrongSize,
            StreamError::BaseMissing { .. } => ErrorKind::Usage,
            StreamError::Cancelled => ErrorKind::Interrupted,
            StreamError::NoThread(_) => ErrorKind::Failed,
            _ => ErrorKind::Damaged,
        },
    }
}

/// The next step after an error of a dump.
pub fn dump_next(error: &DumpError) -> &'static str {
    match error {
        DumpError::Head { .. } => "check that this is a file that `cairn image dump` wrote",
        DumpError::Cut { .. } | DumpError::GivenUp { .. } => {
            "on its server, resume it (`cairn image dump VOLUME --resume`) or make it again; a truncated dump can be restored in part with `cairn image restore --accept-damage`, an abandoned one cannot"
        }
        DumpError::Damaged { .. } | DumpError::TableLost { .. } => {
            "list the damage with `cairn image verify`, and restore the rest with `cairn image restore --accept-damage`; or use another copy of the file"
        }
        DumpError::MissingPart { .. } => "name all files of the dump",
        DumpError::MissingBase { .. } => {
            "name all dumps that it builds on, too; `cairn image list` shows the base of each file"
        }
        DumpError::DoublePart { .. }
        | DumpError::OtherVolume { .. }
        | DumpError::Contradiction { .. }
        | DumpError::TwoFull { .. } => {
            "name only files that belong together; `cairn image list` describes each"
        }
        DumpError::TwoCopies { .. } => {
            "name only the dumps of one copy, with the full dump; `cairn image list` describes each"
        }
        DumpError::OtherFile { .. } => {
            "name the files of the dump in the order of its parts with --to; an empty file (`truncate -s 0`) is written again"
        }
        DumpError::Changed { .. } => "name the original file, or a copy of it",
        DumpError::OtherBegin { .. } => "start a new dump with `cairn image dump --anew`",
        DumpError::NamedTooEarly { .. } => {
            "another program changed it since it got its name: rename it to FILE.partial, and resume again"
        }
        DumpError::Read { .. } => "check the file and its permissions",
        DumpError::Stream(StreamError::NoThread(_)) => NO_THREAD_NEXT,
        DumpError::Stream(StreamError::Cancelled) => "run it again if needed; nothing was kept",
        DumpError::Stream(StreamError::BaseMissing { .. }) => "name a base that is older than what is dumped",
        DumpError::Stream(StreamError::TooSmall { .. }) => "give a larger --size, or leave it out",
        DumpError::Stream(StreamError::Io(_)) => {
            "free space on the destination or repair it, then run the command again"
        }
        DumpError::Stream(_) => "run `cairn volume check` where it was dumped",
    }
}

impl From<DumpError> for ErrorBody {
    fn from(error: DumpError) -> Self {
        ErrorBody::new(dump_kind(&error), &error, dump_next(&error))
    }
}
