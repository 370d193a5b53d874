//! The free space of the file system that holds the data directory. The thread of notifications
//! looks: a file system may not answer, and a status shows the last result.

use std::path::Path;

use cairn_api as api;
use cairn_base::ByteSize;
use parking_lot::Mutex;

/// A file system with less free space than both of these is nearly full: a part of it, and bytes.
const FREE_PERCENT: u64 = 5;
const FREE_BYTES: u64 = 4 << 30;

/// Whether a file system is nearly full, whatever a volume may still take of it.
pub(crate) fn is_nearly_full(free_bytes: u64, size_bytes: u64) -> bool {
    free_bytes < FREE_BYTES && free_bytes / FREE_PERCENT < size_bytes / 100
}

/// The result of the last look: free bytes, and the size.
#[derive(Debug, Default)]
pub(crate) struct Home(Mutex<Option<(u64, u64)>>);

impl Home {
    /// Looks. A failure to do so is no problem of its own: the file system may be of a kind that
    /// does not say.
    pub(crate) fn look(&self, dir: &Path) {
        let found = rustix::fs::statvfs(dir).ok().map(|system| {
            let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
            (bytes(system.f_bavail), bytes(system.f_blocks))
        });
        *self.0.lock() = found;
    }

    /// The problem that it is nearly full.
    pub(crate) fn problem(&self, dir: &Path) -> Option<api::Problem> {
        let (free, size) = self.0.lock().filter(|(free, size)| is_nearly_full(*free, *size))?;
        let place = dir.display();
        Some(api::Problem {
            subject: "server".to_owned(),
            message: format!(
                "the file system of the data directory ({place}) is nearly full: {} of {} is free",
                ByteSize(free),
                ByteSize(size)
            ),
            next: "free space there, or enlarge it; without space no settings and no snapshots of schedules are saved".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_system_is_not_nearly_full_with_gigabytes_left() {
        assert!(!is_nearly_full(10 << 30, 10 << 40));
        assert!(is_nearly_full(1 << 30, 100 << 30));
        assert!(!is_nearly_full(10 << 20, 64 << 20));
        assert!(is_nearly_full(1 << 20, 64 << 20));
    }
}
