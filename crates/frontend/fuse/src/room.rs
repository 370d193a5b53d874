//! Room for writes: which files' writes the kernel may cache, and room that is freed as the kernel
//! forgets files without names.
//!
//! A cached write has succeeded for the program before the server gets it. When it might not fit,
//! the kernel does not cache it (`FOPEN_DIRECT_IO`): then the write itself fails, and reads return
//! only stored data. A file that was opened while there was plenty of room, and is written until
//! there is none, fails at the latest at its close. When its last user has closed it, the server
//! has the kernel forget its cache of the file.
//!
//! A file that has lost its last name keeps its blocks until the kernel forgets it. The kernel does
//! so within the call that removes it, and reports it with the next requests. So an operation
//! without room waits a moment for that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::FileId;
use parking_lot::{Condvar, Mutex};

use crate::operations::{FileSystem, errno};
use crate::shown::Slot;

/// With less room than this, in the volume or in a quota tree, the kernel does not cache writes. It
/// is more than the kernel caches of a mount on most machines (a hundredth of the limit for dirty
/// pages).
const KEPT_BACK_ROOM: u64 = 1 << 30;
/// Bytes that directories and nodes take in addition to the written data.
const BESIDE: u64 = 1 << 20;
/// How long an operation without room waits for the kernel to forget files.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the kernel may forget other files meanwhile.
const ROUNDS: u32 = 64;

/// The kernel's forgetting of files, and the threads that wait for it.
#[derive(Default)]
pub(crate) struct Forgetting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: u32,
    /// Counts how often the kernel has forgotten files.
    rounds: u64,
    /// The number of nameless files at the last wait that timed out: the remaining ones are in use.
    in_vain: u64,
}

impl Forgetting {
    /// Files were forgotten.
    pub(crate) fn has_come_round(&self) {
        self.state.lock().rounds += 1;
        self.changed.notify_all();
    }

    /// Waits, until a thread waits for the next files to be forgotten.
    pub(crate) fn rest(&self, most: Duration) {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.waiting == 0, most);
    }

    /// Waits while there is no room and the kernel forgets files, and once for the `kept` files
    /// that have lost their names so far.
    fn wait_while(&self, kept: u64, is_short: impl Fn() -> bool) {
        for _ in 0..ROUNDS {
            let seen = self.state.lock().rounds;
            if !is_short() {
                return;
            }
            let mut state = self.state.lock();
            if state.in_vain == kept {
                return;
            }
            state.waiting += 1;
            self.changed.notify_all();
            let waited = self.changed.wait_while_for(&mut state, |state| state.rounds == seen, PATIENCE);
            state.waiting -= 1;
            if waited.timed_out() {
                state.in_vain = kept;
            }
        }
    }
}

impl FileSystem {
    /// Whether the kernel may cache writes of a program to a file that it opens now. It must, if
    /// the program could not map the file otherwise.
    pub(crate) fn may_keep_writes_back(&self, slot: &Slot, file: FileId) -> Result<bool, i32> {
        let maps_all = self.maps_all.load(Ordering::Relaxed);
        Ok(!maps_all || slot.tree.room(file).map_err(errno)?.bytes >= KEPT_BACK_ROOM)
    }

    /// Waits a moment for room that is freed as the kernel forgets files without names, when that
    /// many bytes and files do not fit.
    pub(crate) fn wait_for_room(&self, slot: &Slot, file: FileId, bytes: u64, files: u64) {
        let (nameless, kept) = slot.tree.nameless();
        if nameless == 0 {
            return;
        }
        let is_short = || {
            let room = slot.tree.room(file);
            slot.tree.nameless().0 > 0
                && room.is_ok_and(|room| room.bytes < bytes.saturating_add(BESIDE) || room.files < files)
        };
        self.forgetting.wait_while(kept, is_short);
    }
}
