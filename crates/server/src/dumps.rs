//! Dumps: images of a volume and their restore, BSD dumps of files, and the files for either that
//! a client hands over.

pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod handover;
pub(crate) mod images;
pub(crate) mod past_cache;
