//! Limits on one peer's use of a source.

/// Mirrors of one volume that one peer can have. Each takes a record of changes and a held
/// snapshot.
pub const MIRRORS_PER_PEER: usize = 16;
/// Snapshots of one volume that are held for the mirrors of one peer. A mirror needs up to two, and
/// so does each mirror of it.
pub const HELD_PER_PEER: usize = 64;
