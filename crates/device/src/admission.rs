//! Which requests a device takes: the checks that every device makes before it does anything.

use crate::{Action, DeviceError, Geometry, Request};

impl Request {
    /// The kind, offset and length of a request, in bytes; `None` for a flush, which has no place.
    pub fn range(&self) -> Option<(Action, u64, u64)> {
        match self {
            Request::Read { offset, length } => Some((Action::Read, *offset, u64::from(*length))),
            Request::Write { offset, data, .. } => Some((Action::Write, *offset, data.len() as u64)),
            Request::Flush => None,
            Request::Trim { offset, length, .. } => Some((Action::Trim, *offset, *length)),
            Request::WriteZeroes { offset, length, .. } => Some((Action::WriteZeroes, *offset, *length)),
            Request::Prefetch { offset, length } => Some((Action::Read, *offset, *length)),
        }
    }

    /// True when it changes bytes.
    pub fn is_mutation(&self) -> bool {
        matches!(self, Request::Write { .. } | Request::Trim { .. } | Request::WriteZeroes { .. })
    }
}

impl Geometry {
    /// Refuses unsupported requests: writes to a read-only device, unaligned requests, requests
    /// past the end (checked in this order).
    pub fn admit(&self, request: &Request) -> Result<(), DeviceError> {
        if self.read_only && request.is_mutation() {
            return Err(DeviceError::ReadOnly);
        }
        let Some((action, offset, length)) = request.range() else { return Ok(()) };
        let alignment = u64::from(self.alignment);
        if !offset.is_multiple_of(alignment) || !length.is_multiple_of(alignment) {
            return Err(DeviceError::Unaligned { action, offset, length, alignment: self.alignment });
        }
        self.admit_range(action, offset, length)
    }

    /// Refuses `offset..offset + length` when it reaches past the end. The alignment does not
    /// matter.
    pub fn admit_range(&self, action: Action, offset: u64, length: u64) -> Result<(), DeviceError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(DeviceError::OutOfRange { action, offset, length, end: self.length }),
        }
    }
}
