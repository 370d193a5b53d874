//! Names of iSCSI targets and numbers of their ports.

use crate::names::ExportName;

/// The number of a target's port at its unit: that of a disk's own name, and that of the device
/// which a LUN was adopted as.
pub(crate) const OWN_PORT: u8 = 1;

pub(crate) const DEVICE_PORT: u8 = 2;

/// The prefix of every target's name.
pub(crate) const PREFIX: &str = "iqn.2026-11.io.cairn:";

/// The target of an export.
pub(crate) fn target_name(export: &str) -> String {
    match ExportName::parse(export) {
        Some(ExportName { volume, snapshot: Some(snapshot), lun }) => {
            format!("{PREFIX}{volume}.{snapshot}.{lun}")
        }
        _ => format!("{PREFIX}{}", export.replace(['/', '@'], ".")),
    }
}

/// The export whose settings apply to `export`: that of its present.
pub(crate) fn present_of(export: &str) -> String {
    match (ExportName::parse(export), export.split_once('@')) {
        (Some(name), _) => format!("{}/{}", name.volume, name.lun),
        (None, Some((device, _))) => device.to_owned(),
        (None, None) => export.to_owned(),
    }
}
