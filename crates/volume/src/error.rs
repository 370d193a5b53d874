//! Errors of a volume, by kind.

use cairn_base::{FileId, Generation, Lba, LogId, SnapshotId, Vbn, VolumeId};
use cairn_device::{Action, DeviceError};
use cairn_format::{FANOUT, FormatError, INODES_PER_BLOCK, NodeAddress, Role};

use crate::known_files::{ACTIVE_MAP, INODE_FILE};

/// Where a damaged block belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Block `lba` of a file.
    Data {
        /// The file.
        file: FileId,
        /// The block in it.
        lba: Lba,
    },
    /// A node of a file's tree.
    Node(NodeAddress),
    /// A block that is known by its vbn alone.
    Unknown,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inodes = |f: &mut std::fmt::Formatter<'_>, first: u64, blocks: u64| {
            let number = |block: u64| block.saturating_mul(INODES_PER_BLOCK);
            let last = number(first.saturating_add(blocks)).saturating_sub(1);
            write!(f, "the inodes of files {} to {last}", number(first))
        };
        match *self {
            Place::Data { file: INODE_FILE, lba } => inodes(f, lba.0, 1),
            Place::Data { file: ACTIVE_MAP, lba } => write!(f, "block {lba} of the map of blocks in use"),
            Place::Data { file, lba } => write!(f, "block {lba} of file {file}"),
            Place::Node(NodeAddress { file, level, index }) => {
                write!(f, "node {index} at level {level} of ")?;
                match file {
                    INODE_FILE => {
                        let blocks = FANOUT.saturating_pow(u32::from(level));
                        inodes(f, index.saturating_mul(blocks), blocks)
                    }
                    ACTIVE_MAP => f.write_str("the map of blocks in use"),
                    file => write!(f, "file {file}"),
                }
            }
            Place::Unknown => f.write_str("a block of an unknown file"),
        }
    }
}

/// The record kept here that the source contradicts. An honest source never contradicts one, even
/// after it lost data: its checksums still verify, but its content differs from the earlier
/// content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradiction {
    /// Other bytes for a block of a snapshot that stays.
    Content(SnapshotId),
    /// Other bytes for a block in use here, with the same checksum.
    Forged(Vbn),
    /// An image reaches a block that its own map leaves out.
    Map,
    /// An image reaches a block in two places.
    Twice,
    /// A block is younger than the image that reaches it, or a snapshot older than its parent.
    Birth,
    /// A number in the list of snapshots is one that no volume gives.
    List,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Contradiction::Content(snapshot) => {
                write!(f, "it sent other content for a block of snapshot {snapshot}, which stays here")
            }
            Contradiction::Forged(vbn) => {
                write!(
                    f,
                    "it sent other content with the same checksum for block {vbn}, which is in use here"
                )
            }
            Contradiction::Map => {
                f.write_str("its image reaches a block that its map of blocks in use leaves out")
            }
            Contradiction::Twice => f.write_str("its image reaches the same block in two places"),
            Contradiction::Birth => f.write_str("its image reaches a block that is younger than the image"),
            Contradiction::List => f.write_str("its list of snapshots has a number that no volume gives"),
        }
    }
}

/// Why a volume refused or failed. Cloning is cheap: the first failure latches, and later calls
/// return it again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// The device below failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device holds no volume.
    #[error(
        "the device holds no Cairn volume: neither superblock verifies ({first}; the other: {second}). If it should, do not format it; check that this is the right device"
    )]
    NotAVolume {
        /// Of the first slot.
        first: FormatError,
        /// Of the second slot.
        second: FormatError,
    },
    /// The device holds a volume, or other data that formatting would destroy.
    #[error("the device holds a volume already; delete that volume first or name another device")]
    NotEmpty,
    /// The device is shorter than the superblock requires.
    #[error("the device has {have} bytes and the volume needs {need}: name a larger device")]
    DeviceTooSmall {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// A size out of the format's range.
    #[error("a volume has {min} to {max} blocks of 4 KiB, not {blocks}")]
    Size {
        /// Asked.
        blocks: u64,
        /// Fewest.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A block does not have the checksum that its parent names, or is no such structure. It is not
    /// served.
    #[error(
        "block {vbn} is damaged: {place} cannot be read; restore it from a snapshot's export or the mirror"
    )]
    Damaged {
        /// Where it is.
        vbn: Vbn,
        /// The place of the block in a tree.
        place: Place,
    },
    /// The active map contradicts the trees: a reached block is marked free, or an unreached block
    /// is marked in use. No sound volume leaves a device in this state. The volume writes nothing
    /// more.
    #[error(
        "the active map contradicts the trees at block {vbn}: nothing more is written to this volume; run `cairn volume check`, and fail over to the mirror or restore it"
    )]
    MapContradicts {
        /// The block.
        vbn: Vbn,
    },
    /// A structure in the label area is damaged.
    #[error("the label area is damaged: {0}; run `cairn volume check`")]
    Label(FormatError),
    /// The intent log is damaged before its end: flushed writes would be lost.
    #[error(
        "the intent log is damaged at record {sequence}, before its end: opening would lose flushed writes. Fail over to the mirror, or restore the device"
    )]
    LogDamaged {
        /// The record.
        sequence: u64,
    },
    /// The volume's device was restored from a backup, and its log, on a device of its own, was
    /// not.
    #[error(
        "the volume is older than its intent log: its devices are at generation {volume}, and the log has writes of generation {log}, which belong to a state that no longer exists"
    )]
    OlderThanLog {
        /// Of the newest superblock.
        volume: Generation,
        /// Of a record.
        log: Generation,
    },
    /// The superblock names a log device, and none was given.
    #[error(
        "the intent log {log} is on a device of its own, which is missing: opening without it would lose flushed writes. Bring the device back; if it is lost for good, `cairn volume log --discard-lost` opens at the last consistency point"
    )]
    LogMissing {
        /// The log that is wanted.
        log: LogId,
    },
    /// The log device holds another log: of another volume, or one that this volume has left.
    #[error(
        "the device holds intent log {found} of volume {volume}, not the log {expected} that this volume uses: name the right device"
    )]
    LogOther {
        /// The log that is wanted.
        expected: LogId,
        /// The volume that the device's log is of.
        volume: VolumeId,
        /// The log on the device.
        found: LogId,
    },
    /// The device holds no log: neither copy of its header verifies.
    #[error(
        "the device holds no intent log: neither header verifies ({first}; the other: {second}). Check that it is the right device; if the log is lost for good, `cairn volume log --discard-lost` opens at the last consistency point"
    )]
    NotALog {
        /// Of the first copy.
        first: FormatError,
        /// Of the second copy.
        second: FormatError,
    },
    /// A device that should get a log has one.
    #[error(
        "the device holds intent log {log} of volume {volume}: name another device, or clear it if that volume is gone (`wipefs` does not know it; `blkdiscard`, or zeroes in its first 128 KiB)"
    )]
    LogTaken {
        /// The volume that the device's log is of.
        volume: VolumeId,
        /// The log on the device.
        log: LogId,
    },
    /// The log device is shorter than a log needs, or than this log is.
    #[error(
        "the log device has {have} bytes and the intent log needs {need}: name a larger device, or the one that the log was made on"
    )]
    LogTooSmall {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// The log device failed.
    #[error("the device of the intent log failed: {0}")]
    LogDevice(DeviceError),
    /// No block is free.
    #[error("the volume is full: delete snapshots or LUNs, trim, or grow it with `cairn volume grow`")]
    NoSpace,
    /// The layer below the volume (a file system that holds a sparse file, or a history) has no
    /// room for a write. The accepted changes stay in memory. The volume writes them once there is
    /// room.
    #[error(
        "the file system below the volume is full: writes in memory wait for space, and no other write is accepted until then"
    )]
    NoRoomBelow,
    /// The snapshot table or the redirect map is full.
    #[error("the label area has no room for another entry: delete snapshots that are no longer needed")]
    TableFull,
    /// The volume has been grown so often that the superblock can't name another segment.
    #[error("the volume has reached the limit of segments in its superblock: it has been grown too often")]
    TooManySegments,
    /// No such file in this image.
    #[error("file {0} does not exist")]
    NoSuchFile(FileId),
    /// No such snapshot.
    #[error("snapshot {0} does not exist; `cairn snapshot list` shows the snapshots")]
    NoSuchSnapshot(SnapshotId),
    /// A snapshot of that name exists.
    #[error("a snapshot of that name exists; choose another name or delete it first")]
    NameTaken,
    /// Empty, too long, or with a character that names may not have.
    #[error(
        "a name has 1 to 128 bytes of letters, digits, '.', '_', '-' and ':', and does not start with '-' or '.'"
    )]
    InvalidName,
    /// It is held.
    #[error("snapshot {0} is held: a mirror or its owner needs it; release it first")]
    Held(SnapshotId),
    /// A clone is based on the snapshot, or an image dump of it can still be resumed.
    #[error("snapshot {0} is the base of a clone or of an unfinished image dump")]
    Cloned(SnapshotId),
    /// Writes to a destination, or receiving into a normal volume.
    #[error("this volume is {}", match .0 { Role::Destination => "the destination of a mirror and read-only; `cairn mirror failover` makes it writable", Role::Normal => "not the destination of a mirror" })]
    WrongRole(Role),
    /// Another receiver is active.
    #[error("another transfer into this volume is in progress; wait for it or abort it")]
    TransferInProgress,
    /// The object of the change no longer exists.
    #[error(
        "the volume was rolled back, or its mirror shows a newer image: open files are of the earlier state and must be opened again"
    )]
    OtherHead,
    /// The received data contradicts the records kept here, or itself. An honest source never sends
    /// such data.
    #[error("the source contradicts the data kept here: {0}; nothing was changed")]
    Contradicts(Contradiction),
    /// The received data is inconsistent.
    #[error("the transfer was refused: {0}; nothing of it was kept")]
    Refused(&'static str),
    /// A write or flush of metadata failed; the volume takes no more writes.
    #[error(
        "the volume is read-only since a write to its device failed ({0}); repair the device and restart the server"
    )]
    Latched(Box<VolumeError>),
    /// Some unreadable inodes are required for every consistency point: a since map may be among
    /// them, or inodes changed since the last one. Changes resume once they can be read.
    #[error(
        "the volume takes no changes until {} can be read: its last consistency point wrote them, or they were changed since",
        place_of(.0)
    )]
    InodesLost(Box<VolumeError>),
    /// It was closed.
    #[error("the volume is closed")]
    Closed,
}

impl VolumeError {
    /// The error that later calls return once the volume takes no changes for that reason.
    pub fn of_latched(reason: VolumeError) -> Self {
        match reason {
            VolumeError::InodesLost(_) => reason,
            reason => VolumeError::Latched(Box::new(reason)),
        }
    }

    /// A device below has no room for a write. The device has not failed: the same write may
    /// succeed later.
    pub(crate) fn is_room(&self) -> bool {
        matches!(self, VolumeError::NoRoomBelow | VolumeError::Device(DeviceError::NoSpace { .. }))
    }

    /// The same error, with a lack of room below reported as such.
    pub(crate) fn of_room(self) -> Self {
        if self.is_room() { VolumeError::NoRoomBelow } else { self }
    }

    /// A block could not be read over a network now. Nothing has failed permanently: the same work
    /// may succeed later.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        matches!(self, VolumeError::Device(error @ DeviceError::Io { action: Action::Read, .. }) if is_out_of_reach(error))
    }

    /// A block is damaged or unreadable, on a device that otherwise answers.
    pub fn is_of_a_block(&self) -> bool {
        match self {
            VolumeError::Damaged { .. } => true,
            VolumeError::Device(error) => is_of_a_place(error),
            _ => false,
        }
    }

    /// The error for the clients of a device, for a request of `length` bytes at `offset`.
    pub fn to_device(&self, offset: u64, length: u64) -> DeviceError {
        match self {
            VolumeError::Device(error) => error.clone(),
            VolumeError::NoSpace
            | VolumeError::NoRoomBelow
            | VolumeError::TableFull
            | VolumeError::TooManySegments => DeviceError::NoSpace { offset, length },
            VolumeError::Damaged { .. } | VolumeError::Label(_) => DeviceError::Corrupt { offset, length },
            VolumeError::WrongRole(_) | VolumeError::Latched(_) | VolumeError::InodesLost(_) => {
                DeviceError::ReadOnly
            }
            _ => DeviceError::OutOfService,
        }
    }
}

/// Describes the block that cannot be read.
fn place_of(error: &VolumeError) -> String {
    match error {
        VolumeError::Damaged { place, .. } => place.to_string(),
        error => format!("inodes ({error})"),
    }
}

/// An error of a place, and not of the whole device. One that knows its own damage, as a history
/// does, has other words for it.
pub(crate) fn is_of_a_place(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Io { .. } | DeviceError::Corrupt { .. }) && !is_out_of_reach(error)
}

/// A device over a network cannot reach the place now. Nothing is known about the block: it is no
/// damage, and no finding.
pub(crate) fn is_out_of_reach(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Io { source, .. } if source.kind() == std::io::ErrorKind::NetworkDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_told_by_the_files_that_suffer() {
        let data = |file, lba| Place::Data { file, lba: Lba(lba) }.to_string();
        let node = |file, level, index| Place::Node(NodeAddress { file, level, index }).to_string();
        assert_eq!(data(FileId(7), 3), "block 3 of file 7");
        assert_eq!(node(FileId(7), 2, 1), "node 1 at level 2 of file 7");
        assert_eq!(data(INODE_FILE, 3), "the inodes of files 96 to 127");
        assert_eq!(node(INODE_FILE, 1, 2), "node 2 at level 1 of the inodes of files 8064 to 12095");
        assert!(node(INODE_FILE, 200, u64::MAX).contains("18446744073709551615"), "no number overflows");
        assert_eq!(data(ACTIVE_MAP, 3), "block 3 of the map of blocks in use");
        assert_eq!(node(ACTIVE_MAP, 1, 2), "node 2 at level 1 of the map of blocks in use");
    }
}
