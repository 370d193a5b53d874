//! Stand-alone structures: a magic number and a version come first, a checksum of everything before
//! it comes last.
//!
//! [`open`] checks in one order: size, magic number, version, checksum, place. The version comes
//! before the checksum: a later version may use another checksum, and must still be named. The
//! fields are the caller's to check. Structures with their checksum elsewhere (in the parent, or in
//! their middle) share only [`layout::check_version`](crate::layout::check_version).

use cairn_base::{Checksum, crc32c};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, Structure, layout};

/// A structure on the device or in a file that is sealed in this way.
pub(crate) trait Sealed: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// Its name in errors, which also selects its version.
    const STRUCTURE: Structure;
    /// Its first bytes.
    const MAGIC: &'static [u8];
    /// Its version (32 bits) follows the magic number. Parts of a larger structure have none of
    /// their own.
    const HAS_VERSION: bool = true;
    /// Its last bytes.
    const SUM: Sum = Sum::Xxh3;
}

/// The checksum at the end of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    /// XXH3-128.
    Xxh3,
    /// CRC-32C.
    Crc32c,
}

impl Sum {
    const fn size(self) -> usize {
        match self {
            Sum::Xxh3 => size_of::<Checksum>(),
            Sum::Crc32c => 4,
        }
    }

    fn matches(self, body: &[u8], stored: &[u8]) -> bool {
        match self {
            Sum::Xxh3 => Checksum::of(body).0 == *stored,
            Sum::Crc32c => crc32c(body).to_le_bytes() == *stored,
        }
    }

    fn write(self, body: &[u8], place: &mut [u8]) {
        match self {
            Sum::Xxh3 => place.copy_from_slice(&Checksum::of(body).0),
            Sum::Crc32c => place.copy_from_slice(&crc32c(body).to_le_bytes()),
        }
    }
}

/// Parses the structure in `bytes`, which are all of it. `is_here` compares its recorded place with
/// the place that it was read from.
pub(crate) fn open<T: Sealed>(bytes: &[u8], is_here: impl FnOnce(&T) -> bool) -> Result<&T, FormatError> {
    const { assert!(size_of::<T>() >= T::MAGIC.len() + 4 + T::SUM.size()) };
    let structure = T::STRUCTURE;
    let raw = T::ref_from_bytes(bytes).map_err(|_| FormatError::Magic(structure))?;
    let rest = bytes.strip_prefix(T::MAGIC).ok_or(FormatError::Magic(structure))?;
    if T::HAS_VERSION {
        let version = rest.first_chunk().ok_or(FormatError::Magic(structure))?;
        layout::check_version(structure, u32::from_le_bytes(*version))?;
    }
    let (body, sum) = bytes.split_at(bytes.len() - T::SUM.size());
    if !T::SUM.matches(body, sum) {
        return Err(FormatError::Checksum(structure));
    }
    if !is_here(raw) {
        return Err(FormatError::Misplaced(structure));
    }
    Ok(raw)
}

/// Writes the structure over `bytes`, which have its size, with its checksum. Panics on any other
/// size.
pub(crate) fn seal<T: Sealed>(raw: &T, bytes: &mut [u8]) {
    bytes.copy_from_slice(raw.as_bytes());
    debug_assert!(bytes.starts_with(T::MAGIC), "a {} begins with its magic number", T::STRUCTURE);
    let (body, place) = bytes.split_at_mut(bytes.len() - T::SUM.size());
    T::SUM.write(body, place);
}
