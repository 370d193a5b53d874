//! Names in a volume: LUNs today. A LUN is a file without holes in its promise: a disk of fixed size that clients see.
//!
//! [`Luns`] keeps the root directory; [`LunDevice`] makes a [`cairn_device::Device`] of a file, of the active state or of an image.

mod directory;
mod error;
mod lun;
mod lun_device;

pub use error::FilesError;
pub use lun::{LunInfo, Luns};
pub use lun_device::LunDevice;

#[cfg(test)]
mod tests;
