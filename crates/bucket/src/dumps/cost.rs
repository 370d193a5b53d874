//! The requests and the room of a dump in a bucket before it is made, and their price.

use super::upload::PIECE_BYTES;

/// Bytes of a gigabyte as stores bill it.
const GB: f64 = 1e9;
/// Bytes of an index, about.
const INDEX_BYTES: u64 = 1000;
/// Bytes of blocks for each byte of a skeleton, about: a record of 1 MiB has a head and a run of 60
/// bytes.
const BYTES_PER_SKELETON_BYTE: u64 = 16_000;

/// Plain bytes for each byte that encryption adds: 16 bytes for 64 KiB.
const ENCRYPTED_BYTES_PER_BYTE: u64 = 4096;

/// List prices in dollars, of one region of one vendor in 2026: a measure, not an offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// A thousand requests that put, list or lock.
    pub puts_1000: f64,
    /// A thousand requests that get or look.
    pub gets_1000: f64,
    /// A gigabyte for a month.
    pub gb_month: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { puts_1000: 0.005, gets_1000: 0.0004, gb_month: 0.023 }
    }
}

/// Requests and room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Objects that stay.
    pub objects: u64,
    /// Requests that put or list. Deletes are free.
    pub puts: u64,
    /// Requests that get or look.
    pub gets: u64,
    /// Bytes that stay.
    pub bytes: u64,
}

impl Cost {
    /// A dump of at most `bytes` in `parts` parts. With `locked` each object is locked too.
    pub fn of_dump(bytes: u64, parts: u32, on_another: bool, locked: bool) -> Self {
        let parts = u64::from(parts);
        let pieces = bytes.div_ceil(parts.max(1)).div_ceil(PIECE_BYTES as u64).max(1) * parts;
        let objects = 2 * parts + 1;
        // To begin, finish, and put a skeleton; then `begun` and the index.
        let puts = pieces + 3 * parts + 2;
        // One check of each part, and of the dump below.
        let gets = parts + if on_another { 3 } else { 0 };
        let locks = if locked { parts + 1 } else { 0 };
        Self {
            objects,
            puts: puts + locks,
            gets: gets + locks,
            bytes: bytes + bytes / BYTES_PER_SKELETON_BYTE + INDEX_BYTES,
        }
    }

    /// The same in an encrypted bucket. It has a map after the pieces of each part. A look at a
    /// part reads its header and its map. The key is read once.
    pub fn encrypted(self, parts: u32) -> Self {
        let parts = u64::from(parts);
        let pieces = self.bytes / PIECE_BYTES as u64 + parts;
        Self {
            objects: self.objects,
            puts: self.puts + parts,
            gets: self.gets + 3 * parts + 1,
            bytes: self.bytes + self.bytes / ENCRYPTED_BYTES_PER_BYTE + 100 * (pieces + self.objects),
        }
    }

    /// The price of the requests in dollars, once.
    pub fn once(&self, prices: &Prices) -> f64 {
        (self.puts as f64 * prices.puts_1000 + self.gets as f64 * prices.gets_1000) / 1000.0
    }

    /// The price of the room in dollars, each month.
    pub fn monthly(&self, prices: &Prices) -> f64 {
        self.bytes as f64 / GB * prices.gb_month
    }
}
