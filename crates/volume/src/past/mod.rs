//! Earlier states of the volume: snapshots, clones of them, and the maps of blocks that came after
//! one.
//!
//! # Invariants
//! 1. No block that a snapshot reaches is written.
//! 2. A root shares blocks only with its neighbours in the tree of descent: its parent, its
//!    children and its siblings.
//! 3. A since map may have more blocks than came since its beginning, but never fewer.

pub(crate) mod clones;
pub(crate) mod evictable;
pub(crate) mod names;
pub(crate) mod since;
pub(crate) mod since_map;
pub(crate) mod snapshots;
