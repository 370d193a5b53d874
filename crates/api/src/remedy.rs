//! Errors of the engine, as the API answers them: the kind of each, and the step that comes next.
//!
//! The server and the command line both meet them. The server keeps its own errors beside the code
//! that raises them.

use cairn_device::DeviceError;
use cairn_stream::{DumpError, StreamError};
use cairn_volume::VolumeError;

use crate::{ErrorBody, ErrorKind};

/// What to do where the system gives no thread.
pub const NO_THREAD_NEXT: &str = "raise the limit of threads that the server has met (`TasksMax=` of its unit, `ulimit -u` of its user, the `pids` limit of its container), or see to the memory of the machine, and do this again";

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

/// What to do about an error of a device.
pub fn device_next(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::NoSpace { .. } => "free some space under the data directory",
        DeviceError::Corrupt { .. } => {
            "run `cairn volume check`; restore what it names from a snapshot or a mirror"
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

/// What to do about an error of `volume`.
pub fn volume_next(volume: &str, error: &VolumeError) -> String {
    match error {
        VolumeError::Device(error) => device_next(error).into(),
        VolumeError::Damaged { .. } | VolumeError::Label(_) | VolumeError::MapContradicts { .. } => {
            format!("run `cairn volume check {volume}`; restore what it names from a snapshot or the mirror")
        }
        VolumeError::TooManySegments => "make a mirror anew (`cairn mirror delete`, `cairn mirror create`); of another volume make an image dump (`cairn image dump`), and a new one of that (`cairn image restore`)".into(),
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
        VolumeError::NoSuchFile(_) => format!("see what there is with `cairn lun list {volume}`"),
        VolumeError::NoSuchSnapshot(_) | VolumeError::NameTaken => {
            format!("see the snapshots with `cairn snapshot list {volume}`")
        }
        VolumeError::Cloned(_) => {
            format!(
                "`cairn clone list` shows the clones: `cairn clone delete` deletes one; `cairn image levels {volume}` shows an unfinished dump: go on with it \
                 (`cairn image dump {volume} --resume`) or give it up (`cairn image levels {volume} --give-up`)"
            )
        }
        VolumeError::Held(_) => {
            "a mirror needs it as the base of its next update (update that mirror first, or revoke the peer), or it is the base of \
             image dumps (`cairn image levels VOLUME --forget LEVEL`)"
                .replace("VOLUME", volume)
        }
        VolumeError::TransferInProgress => {
            "wait until the transfer is over; `cairn mirror status` shows it".into()
        }
        VolumeError::OtherHead => "run the command again: it is made with what there is now".into(),
        VolumeError::Contradicts(_) => format!(
            "the source may be in other hands: `cairn mirror pause {volume}`, and look for who has its keys; what is here stays as it is and is served. Once the source can be trusted again, make a new mirror of it beside this one with `cairn mirror create --as NAME`; without it, `cairn mirror failover {volume}` goes on with what is here"
        ),
        VolumeError::Refused(_) => "update the mirror again; if it stays, make a new one".into(),
        VolumeError::Latched(reason) => match volume_kind(reason) {
            ErrorKind::NoSpace => "make room on the file system of its device, then restart the server".into(),
            _ => "mend the device, then restart the server".into(),
        },
        VolumeError::InodesLost(_) => format!(
            "a mirror that has them gives them back by itself (`cairn mirror status` says whether one answers), and the volume takes changes at once; else fail over to a mirror, go on \
             from a snapshot (`cairn snapshot list {volume}`, then `cairn clone create {volume}@SNAPSHOT NEW`), or restore an image dump"
        ),
        VolumeError::LogDamaged { .. } => format!(
            "fail over to the mirror, or restore the device; `cairn volume log {volume} --discard-lost` opens at the last \
             consistency point, without what was flushed since"
        ),
        VolumeError::OlderThanLog { .. } => format!(
            "put the devices of the volume back as they were when the log was last in use; to go on from the backup, `cairn volume log {volume} --discard-lost` opens at its consistency point, without the log (-n says first what that is)"
        ),
        VolumeError::LogMissing { .. } | VolumeError::LogOther { .. } | VolumeError::NotALog { .. } => {
            log_next(volume)
        }
        VolumeError::LogDevice(error) => device_next(error).into(),
        VolumeError::LogTaken { .. } => {
            "name another device, or clear this one if its volume is gone (`blkdiscard`, or zeroes in its first 128 KiB)"
                .into()
        }
        VolumeError::LogTooSmall { .. } => "name a larger device: 2 MiB do, 64 MiB are used at most".into(),
        VolumeError::NotAVolume { .. } => "check that these are the right devices".into(),
        VolumeError::NotEmpty => "name another device, or delete the volume that is on it".into(),
        VolumeError::InvalidName => "choose another name".into(),
        VolumeError::WrongRole(_) => "see its role with `cairn volume list`".into(),
        VolumeError::Closed => "start the server again".into(),
    }
}

/// What to do about the log device of `volume` when it is not there.
pub fn log_next(volume: &str) -> String {
    format!(
        "bring the log device back, and the volume is opened within seconds; if it is lost for good, `cairn volume log {volume} \
         --discard-lost` opens at the last consistency point, without what was flushed since"
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

/// What to do about an error of a dump.
pub fn dump_next(error: &DumpError) -> &'static str {
    match error {
        DumpError::Head { .. } => "check that this is a file that `cairn image dump` wrote",
        DumpError::Cut { .. } | DumpError::GivenUp { .. } => {
            "where it was made, go on with it (`cairn image dump VOLUME --resume`) or make it again; what is there of it can be restored with --accept-damage if it was cut off, not given up"
        }
        DumpError::Damaged { .. } | DumpError::TableLost { .. } => {
            "see what is lost with `cairn image verify`, and restore the rest with --accept-damage; or use another copy of the file"
        }
        DumpError::MissingPart { .. } => "name all files of the dump",
        DumpError::MissingBase { .. } => {
            "name all dumps that it builds on as well; `cairn image ls` says what each file was made against"
        }
        DumpError::DoublePart { .. }
        | DumpError::OtherVolume { .. }
        | DumpError::Contradiction { .. }
        | DumpError::TwoFull { .. } => {
            "name only files that belong together; `cairn image ls` says what each is"
        }
        DumpError::TwoCopies { .. } => {
            "name only the dumps of the copy that you want, with that of everything; `cairn image ls` says what each is"
        }
        DumpError::OtherFile { .. } => {
            "name the files of the dump in the order of its parts with --to; a file that is emptied (`truncate -s 0`) is written anew"
        }
        DumpError::Changed { .. } => "name the file that it was, or a copy of that",
        DumpError::OtherBegin { .. } => "begin another dump in its place with `cairn image dump --anew`",
        DumpError::NamedTooEarly { .. } => {
            "somebody has changed it since it got its name: rename it to FILE.partial, and go on once more"
        }
        DumpError::Read { .. } => "check the file and its rights",
        DumpError::Stream(StreamError::NoThread(_)) => NO_THREAD_NEXT,
        DumpError::Stream(StreamError::Cancelled) => "run it again when you are sure; nothing is left of it",
        DumpError::Stream(StreamError::BaseMissing { .. }) => "name a base that is older than what is dumped",
        DumpError::Stream(StreamError::TooSmall { .. }) => "give a larger --size, or none",
        DumpError::Stream(StreamError::Io(_)) => "make room or mend where it goes to, and run it again",
        DumpError::Stream(_) => "run `cairn volume check` where it was dumped",
    }
}

impl From<DumpError> for ErrorBody {
    fn from(error: DumpError) -> Self {
        ErrorBody::new(dump_kind(&error), &error, dump_next(&error))
    }
}
