//! Dumps: images of a volume and their restore, BSD dumps of files, and the files for either that
//! a client hands over, and dumps in [folders](folders) that people may look into.

pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod folders;
pub(crate) mod handover;
pub(crate) mod images;
pub(crate) mod past_cache;
