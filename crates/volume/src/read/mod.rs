//! Reading: from a root to blocks, through a cache. It also compares roots, and walks all that a
//! root reaches.
//!
//! # Invariants
//! 1. Every block is verified by the checksum in its pointer before it is used.
//! 2. A block that does not verify is reported as damaged, and is never served.
//! 3. When trees are compared, parts that are the same block in both are skipped.

pub(crate) mod block_set;
pub(crate) mod compare;
pub(crate) mod difference;
pub(crate) mod fresh;
pub(crate) mod image;
pub(crate) mod inodes;
pub(crate) mod nodes;
pub(crate) mod region;
pub(crate) mod small;
pub(crate) mod store;
pub(crate) mod tree;
pub(crate) mod walk;
