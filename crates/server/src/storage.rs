//! Files and disks of the machine, as volumes and adopted devices use them alike.

pub(crate) mod claims;
pub(crate) mod files;
pub(crate) mod histories;
pub(crate) mod place;
pub(crate) mod seen;
pub(crate) mod settled;
