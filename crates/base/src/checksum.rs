//! Checksums: XXH3-128 for blocks, kept in the block's parent; CRC-32C for log records.

use twox_hash::XxHash3_128;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// XXH3-128 (seed 0) of a block or a run of bytes, little-endian.
///
/// It finds accidents (rot, torn and misdirected writes), and does not protect against an
/// adversary.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Checksum(pub [u8; 16]);

impl Checksum {
    /// The checksum of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes).to_le_bytes())
    }

    /// The checksum of bytes that are in pieces: that of all of them in one.
    pub fn of_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut hasher = XxHash3_128::new();
        pieces.for_each(|piece| hasher.write(piece));
        Self(hasher.finish_128().to_le_bytes())
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

/// CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of bytes that continue with `bytes`, after those whose CRC-32C is `crc` (0 for the
/// first).
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}
