//! Requests of CSI checked: sizes, capabilities, parameters.

use std::collections::HashMap;

use cairn_proto_csi::v1;
use tonic::Status;
use v1::volume_capability::AccessType;
use v1::volume_capability::access_mode::Mode;

use crate::names::CSI_NAME_MAX;

/// Sizes are multiples of a block of Cairn, in bytes.
const BLOCK: u64 = 4096;
/// The size if a request names none.
const SIZE_DEFAULT: u64 = 1 << 30;
/// The smallest volume.
const SIZE_MIN: u64 = 1 << 20;
/// The smallest volumes of the file systems, as their tools refuse smaller ones.
const EXT4_MIN: u64 = 16 << 20;
const XFS_MIN: u64 = 300 << 20;
/// Space of a volume beyond its disk for snapshots, in percent of the disk.
const RESERVE_PERCENT: u64 = 100;
const RESERVE_PERCENT_MAX: u64 = 10_000;
/// Space for structures: of the smallest volume, and the part of its size.
const STRUCTURES_MIN: u64 = 64 << 20;
const STRUCTURES_PART: u64 = 64;
/// Parameters of the sidecars, which are passed through.
const OF_SIDECARS: &str = "csi.storage.k8s.io/";
/// Parameters of Cairn.
const RESERVE: &str = "snapshotReservePercent";

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    pub(crate) fn parse(name: &str) -> Result<Self, Status> {
        match name {
            "" | "ext4" => Ok(FileSystem::Ext4),
            "xfs" => Ok(FileSystem::Xfs),
            other => {
                Err(Status::invalid_argument(format!("the file system {other} is not supported: ext4, xfs")))
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    fn size_min(self) -> u64 {
        match self {
            FileSystem::Ext4 => EXT4_MIN,
            FileSystem::Xfs => XFS_MIN,
        }
    }
}

/// The use of a volume that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    /// None: a block device.
    pub(crate) file_system: Option<FileSystem>,
    /// Options of the mount.
    pub(crate) flags: Vec<String>,
    /// It may only be read.
    pub(crate) read_only: bool,
    /// It is published at one path of the node at most.
    pub(crate) single: bool,
}

impl Use {
    /// Reads a capability.
    pub(crate) fn of(capability: Option<&v1::VolumeCapability>) -> Result<Self, Status> {
        let capability =
            capability.ok_or_else(|| Status::invalid_argument("there is no volume capability"))?;
        let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
        let (read_only, single) = match mode {
            Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => (false, false),
            Mode::SingleNodeSingleWriter => (false, true),
            Mode::SingleNodeReaderOnly => (true, false),
            Mode::Unknown => {
                return Err(Status::invalid_argument("the volume capability has no access mode"));
            }
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
                let message = format!(
                    "the access mode {} is not supported: a volume is offered to one node at a time",
                    mode.as_str_name()
                );
                return Err(Status::invalid_argument(message));
            }
        };
        let (file_system, flags) = match &capability.access_type {
            None => return Err(Status::invalid_argument("the volume capability is neither block nor mount")),
            Some(AccessType::Block(_)) => (None, Vec::new()),
            Some(AccessType::Mount(mount)) => {
                if mount.mount_flags.iter().any(|flag| flag.is_empty() || flag.contains([',', '\0'])) {
                    return Err(Status::invalid_argument("a mount flag is empty or contains a comma"));
                }
                (Some(FileSystem::parse(&mount.fs_type)?), mount.mount_flags.clone())
            }
        };
        Ok(Self { file_system, flags, read_only, single })
    }

    /// Reads all capabilities that a volume must have.
    pub(crate) fn all(capabilities: &[v1::VolumeCapability]) -> Result<Vec<Self>, Status> {
        match capabilities {
            [] => Err(Status::invalid_argument("there is no volume capability")),
            some => some.iter().map(|capability| Self::of(Some(capability))).collect(),
        }
    }
}

/// A range of sizes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The smallest; none if the request names none.
    pub(crate) required: Option<u64>,
    /// The largest.
    limit: Option<u64>,
}

impl Sizes {
    /// Reads a range.
    pub(crate) fn of(range: Option<&v1::CapacityRange>) -> Result<Self, Status> {
        let field = |value: i64| match u64::try_from(value) {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(Status::invalid_argument("a size is negative")),
        };
        let Some(range) = range else { return Ok(Self { required: None, limit: None }) };
        let sizes = Self { required: field(range.required_bytes)?, limit: field(range.limit_bytes)? };
        match (sizes.required, sizes.limit) {
            (Some(required), Some(limit)) if required > limit => {
                Err(Status::invalid_argument("the required size is above the limit"))
            }
            _ => Ok(sizes),
        }
    }

    /// The size of a new volume: at least `least`, and what the range asks for.
    pub(crate) fn choose(&self, least: u64) -> Result<u64, Status> {
        let wanted = match (self.required, self.limit) {
            (Some(required), _) => required,
            (None, Some(limit)) => limit.min(SIZE_DEFAULT),
            (None, None) => SIZE_DEFAULT,
        };
        let size = wanted.max(least).max(SIZE_MIN).checked_next_multiple_of(BLOCK);
        let size = size.filter(|size| i64::try_from(*size).is_ok());
        let size = size.ok_or_else(|| Status::out_of_range("the size is too large"))?;
        match self.limit {
            Some(limit) if size > limit => Err(Status::out_of_range(format!(
                "the volume needs {size} bytes, above the limit of {limit} bytes"
            ))),
            _ => Ok(size),
        }
    }

    /// Whether a volume of that size satisfies the range.
    pub(crate) fn admit(&self, bytes: u64) -> bool {
        self.required.is_none_or(|required| bytes >= required)
            && self.limit.is_none_or(|limit| bytes <= limit)
    }
}

/// The smallest size for these uses.
pub(crate) fn size_min(uses: &[Use]) -> u64 {
    uses.iter().filter_map(|one| one.file_system).map(FileSystem::size_min).max().unwrap_or(0)
}

/// The length of the block space for a disk: the disk, space for snapshots of it, and structures.
pub(crate) fn space_of(disk: u64, reserve_percent: u64) -> u64 {
    let reserve = u128::from(disk) * u128::from(reserve_percent) / 100;
    let data = disk.saturating_add(u64::try_from(reserve).unwrap_or(u64::MAX / 2));
    let structures = (data / STRUCTURES_PART).max(STRUCTURES_MIN);
    (data.saturating_add(structures) / BLOCK + 1) * BLOCK
}

/// The space for snapshots that the parameters of a storage class ask for, in percent of the disk.
pub(crate) fn reserve(parameters: &HashMap<String, String>) -> Result<u64, Status> {
    let mut percent = RESERVE_PERCENT;
    for (key, value) in parameters {
        match key.as_str() {
            RESERVE => {
                let parsed = value.parse().ok().filter(|percent| *percent <= RESERVE_PERCENT_MAX);
                percent = parsed.ok_or_else(|| {
                    Status::invalid_argument(format!("{RESERVE} is {value}, not 0 to {RESERVE_PERCENT_MAX}"))
                })?;
            }
            key if key.starts_with(OF_SIDECARS) => {}
            other => {
                return Err(Status::invalid_argument(format!("unknown parameter {other}: {RESERVE} exists")));
            }
        }
    }
    Ok(percent)
}

/// Refuses an empty or long name.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    match name {
        "" => Err(Status::invalid_argument("there is no name")),
        long if long.len() > CSI_NAME_MAX => {
            Err(Status::invalid_argument(format!("the name has more than {CSI_NAME_MAX} bytes")))
        }
        _ => Ok(()),
    }
}

/// Refuses an empty field.
pub(crate) fn check_there(field: &str, what: &str) -> Result<(), Status> {
    match field {
        "" => Err(Status::invalid_argument(format!("there is no {what}"))),
        _ => Ok(()),
    }
}

/// Bytes as CSI has them. No size of Cairn is larger.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Most entries of an answer; none for no limit.
pub(crate) fn entries_max(asked: i32) -> Result<Option<usize>, Status> {
    match usize::try_from(asked) {
        Ok(0) => Ok(None),
        Ok(max) => Ok(Some(max)),
        Err(_) => Err(Status::invalid_argument("the number of entries is negative")),
    }
}
