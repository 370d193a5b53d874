//! The numbers of files and snapshots, which are given once: both sides of a mirror tell things
//! apart by them.

use std::sync::Arc;

use cairn_format::Role;

use crate::volume::Volume;

/// The next numbers that a volume gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// To a file.
    pub file: u64,
    /// To a snapshot.
    pub snapshot: u64,
}

impl Volume {
    /// The next numbers. What has one of these or a higher one was not made here: of a copy of this
    /// volume that went on, or after this device was set back.
    pub fn numbers(&self) -> Numbers {
        let state = self.state.lock();
        Numbers { file: state.next_file, snapshot: state.next_snapshot }
    }

    /// Gives no number below these any more. For a volume whose device shows an earlier time again:
    /// its mirrors know what was made since then by its number, and would take for that what gets
    /// the same one. To be called after each opening, before anything else; what is on the device
    /// does not change by it. Not for a destination, whose numbers are its source's.
    pub fn skip_numbers(self: &Arc<Self>, numbers: Numbers) {
        let mut commit = self.commit.lock();
        let mut state = self.state.lock();
        if state.role == Role::Destination {
            return;
        }
        commit.superblock.next_snapshot = commit.superblock.next_snapshot.max(numbers.snapshot);
        state.next_snapshot = state.next_snapshot.max(numbers.snapshot);
        state.next_file = state.next_file.max(numbers.file);
    }
}
