//! Big-endian fields of CDBs and parameter lists. Bytes past the end read as zero, so that no
//! length can cause a panic.

/// Fields of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes([self.u8(at), self.u8(at + 1)])
    }

    pub(crate) fn u24(self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.u8(at), self.u8(at + 1), self.u8(at + 2)])
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    pub(crate) fn bit(self, at: usize, bit: u8) -> bool {
        self.u8(at) >> bit & 1 == 1
    }

    /// The bytes from `at` on, at most `length` of them.
    pub(crate) fn slice(self, at: usize, length: usize) -> &'a [u8] {
        let rest = self.0.get(at..).unwrap_or_default();
        &rest[..length.min(rest.len())]
    }
}
