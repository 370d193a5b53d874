//! Block status: extents of the device and changed blocks, as contexts of NBD.

use cairn_device::DeviceError;
use cairn_proto_nbd::constants::{NBD_STATE_HOLE, NBD_STATE_ZERO, QEMU_STATE_DIRTY};
use cairn_proto_nbd::limits::EXTENTS_MAX;
use cairn_proto_nbd::{Context, ContextKind, StatusExtent};

use crate::exports::Export;

/// Extents that are read to find one of maximum length.
const EXTENTS_FOR_ONE: usize = 64;

/// The status of `length` bytes from `offset` in `context`: at least one extent, none empty,
/// neighbours of a kind joined, not past the length.
pub(crate) fn block_status(
    export: &Export,
    context: &Context,
    offset: u64,
    length: u64,
    one: bool,
) -> Result<Vec<StatusExtent>, DeviceError> {
    let limit = if one { EXTENTS_FOR_ONE } else { EXTENTS_MAX };
    let mut joined = Joined { extents: Vec::new(), left: length };
    match &context.kind {
        ContextKind::Allocation => {
            for extent in export.device.extents(offset, length, limit)? {
                let hole = if extent.hole { NBD_STATE_HOLE } else { 0 };
                let zero = if extent.zero { NBD_STATE_ZERO } else { 0 };
                joined.push(extent.length, hole | zero);
            }
        }
        ContextKind::ChangedSince(snapshot) => {
            let changed = export.changed.as_ref().ok_or(DeviceError::OutOfService)?;
            for (length, changed) in changed.changed_since(snapshot, offset, length, limit)? {
                joined.push(length, if changed { QEMU_STATE_DIRTY } else { 0 });
            }
        }
    }
    let Joined { mut extents, .. } = joined;
    if extents.is_empty() {
        // Nothing is known, so all counts: as data, or as changed.
        let flags = if context.kind == ContextKind::Allocation { 0 } else { QEMU_STATE_DIRTY };
        extents.push(StatusExtent { length, flags });
    }
    if one {
        extents.truncate(1);
    }
    Ok(extents)
}

struct Joined {
    extents: Vec<StatusExtent>,
    left: u64,
}

impl Joined {
    fn push(&mut self, length: u64, flags: u32) {
        let length = length.min(self.left);
        self.left -= length;
        match self.extents.last_mut() {
            Some(last) if last.flags == flags => last.length += length,
            _ if length > 0 => self.extents.push(StatusExtent { length, flags }),
            _ => {}
        }
    }
}
