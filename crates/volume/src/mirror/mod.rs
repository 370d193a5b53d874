//! The volume as one side of a mirror: the source's list of blocks, the destination's receiver, and
//! changes of role.
//!
//! # Invariants
//! 1. A received block is written to its own place, or to the redirect area while an image that is
//!    shown has that place.
//! 2. A destination shows one whole image. It changes to the next image in one superblock write.
//! 3. A destination believes neither the maps nor the descent that its source sends before it has
//!    checked them.

pub(crate) mod claims;
pub(crate) mod descent;
pub(crate) mod have;
pub(crate) mod instant;
pub(crate) mod keeps_fresh;
pub(crate) mod kept;
pub(crate) mod lag;
pub(crate) mod reached;
pub(crate) mod receive;
pub(crate) mod roles;
