//! The one table from failures of a device to errors of NBD.

use cairn_device::{Action, DeviceError};
use cairn_proto_nbd::NbdError;

/// The client's error for `error`.
pub(crate) fn nbd_error(error: &DeviceError) -> NbdError {
    match error {
        DeviceError::Io { .. } | DeviceError::Corrupt { .. } => NbdError::Io,
        DeviceError::NoSpace { .. } => NbdError::NoSpace,
        DeviceError::OutOfRange { action: Action::Write | Action::WriteZeroes, .. } => NbdError::NoSpace,
        DeviceError::OutOfRange { .. } | DeviceError::Unaligned { .. } => NbdError::Invalid,
        DeviceError::ReadOnly => NbdError::NotPermitted,
        DeviceError::OutOfService | DeviceError::Withdrawn => NbdError::Shutdown,
    }
}
