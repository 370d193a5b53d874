//! The numbers of files and snapshots, which are never reused: both sides of a mirror identify
//! objects by them.

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
    /// The next numbers. An object with one of these or a higher one was not made here: it belongs
    /// to a copy of this volume that continued, or to this device before it was set back.
    pub fn numbers(&self) -> Numbers {
        let state = self.state.lock();
        Numbers { file: state.next_file, snapshot: state.next_snapshot }
    }

    /// Assigns no number below these any more. For a volume whose device shows an earlier time
    /// again: its mirrors know later changes by their numbers, and would mistake new ones with the
    /// same numbers for them. Call it after each opening, before anything else. It does not change
    /// the device. Not for a destination, whose numbers are its source's.
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
