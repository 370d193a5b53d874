//! Limits that only NBD has; `cairn_frontend_session::limits` has the others.

/// Writes from this length on have the rest of their payload received straight into blocks.
pub(crate) const LONG_WRITE_BYTES: u32 = 32 << 10;
