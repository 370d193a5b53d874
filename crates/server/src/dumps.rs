//! Dumps: images of a volume in files and their restore, BSD dumps of files, and the files that a client hands over for either.

pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod handover;
pub(crate) mod images;
pub(crate) mod past_cache;
