//! Failures of a device, as the table of sense data knows them.

use cairn_device::{Action, DeviceError};
use cairn_proto_iscsi::scsi::{Failure, Sense};

/// The sense data for `error`.
pub(crate) fn sense(error: &DeviceError) -> Sense {
    Sense::of_failure(match error {
        DeviceError::Io { action: Action::Read | Action::Extents | Action::Open, .. } => Failure::Read,
        DeviceError::Io { .. } => Failure::Write,
        DeviceError::Corrupt { .. } => Failure::Damaged,
        DeviceError::NoSpace { .. } => Failure::NoSpace,
        DeviceError::OutOfRange { .. } => Failure::OutOfRange,
        DeviceError::Unaligned { .. } => Failure::Refused,
        DeviceError::ReadOnly => Failure::ReadOnly,
        DeviceError::OutOfService | DeviceError::Withdrawn => Failure::OutOfService,
    })
}
