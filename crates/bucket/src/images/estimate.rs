//! The requests and the room of a mirror in a bucket before it is made, and their price.

use crate::dumps::{Cost, Prices};

const HOUR: u64 = 3600;
/// Hours of a month.
const MONTH_HOURS: u64 = 730;
/// Bytes of an entry of a table.
const ENTRY_BYTES: u64 = 32;
/// Bytes of a root without its changes, about.
const ROOT_BYTES: u64 = 5000;

/// How a volume is used, as far as its mirror in a bucket depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageLoad {
    /// Seconds between two images.
    pub every_seconds: u64,
    /// Bytes that an image has and the one before has not.
    pub changed_bytes: u64,
    /// Regions that are put for that.
    pub changed_regions: u64,
    /// Bytes of these.
    pub put_bytes: u64,
    /// Bytes of the newest image in the bucket.
    pub stored_bytes: u64,
    /// Images that are kept.
    pub kept: u64,
    /// Seconds between two expirations of images.
    pub expire_seconds: u64,
}

/// The cost of a month. `bytes` and `objects` are the room at its end.
pub fn monthly(load: &ImageLoad, since_max: u32) -> Cost {
    let seconds = MONTH_HOURS * HOUR;
    let updates = seconds / load.every_seconds.max(1);
    let expirations = seconds / load.expire_seconds.max(1);
    let checkpoints = updates / u64::from(since_max).max(1) + expirations;
    // Regions and a root; a checkpoint with one list on the way, mostly; an expiration writes one
    // checkpoint and root, and so does its sweep.
    let puts = updates * (load.changed_regions + 1) + checkpoints * 2 + expirations * 2;
    // Two looks at the next epoch. A sweep reads the root of each expired image.
    let gets = updates * 3 + expirations * 8;
    // A kept image needs what has changed since, at most.
    let bytes = load.stored_bytes + load.kept * (load.put_bytes + ROOT_BYTES);
    let tables = (load.stored_bytes >> 22) * ENTRY_BYTES * 3;
    let objects = (load.stored_bytes >> 22) + load.kept * (load.changed_regions + 2);
    Cost { objects, puts, gets, bytes: bytes + tables }
}

/// The price of a month in dollars: requests, and room.
pub fn price(cost: &Cost, prices: &Prices) -> f64 {
    cost.once(prices) + cost.monthly(prices)
}
