//! Changes that are in memory: taken from clients, and not in a committed root yet.
//!
//! # Invariants
//! 1. The lock of the state is never held across device I/O.
//! 2. A change is in exactly one generation: the open one, or the frozen one that a consistency
//!    point commits.
//! 3. No change is taken that the volume may not have the space to commit. Changes that free space
//!    may use most of the reserve.

pub(crate) mod change;
pub(crate) mod file;
pub(crate) mod number_hash;
pub(crate) mod numbers;
pub(crate) mod overlay;
pub(crate) mod path;
pub(crate) mod roots;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod write;
