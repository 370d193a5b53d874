//! Paths of files of a volume that were found of late.

use std::collections::HashMap;
use std::time::Instant;

use cairn_api::FileIn;
use parking_lot::Mutex;

/// When it was found; `None` for a file without a path.
pub(super) type FoundPath = (Instant, Option<Vec<u8>>);

/// Paths that were found of late.
#[derive(Default)]
pub(crate) struct Paths {
    pub(super) known: Mutex<HashMap<FileIn, FoundPath>>,
}
