//! Room for what is written: of which files the kernel may keep writes back, and room that comes as
//! it forgets files without names.
//!
//! A write that the kernel keeps back has succeeded for the program before the server hears of it.
//! Where it might not fit, the kernel does not keep it back (`FOPEN_DIRECT_IO`): then the write
//! itself fails, and nothing is shown that is not kept. A file that was opened while there was
//! plenty of room, and is written until there is none, fails at the latest at its close. When its
//! last user has closed it, the server has the kernel forget what it shows of the file.
//!
//! A file that has lost its last name keeps its blocks until the kernel forgets it, which it does
//! within the call that removes it, and says beside the next requests. So what finds no room waits
//! a moment for that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::FileId;
use parking_lot::{Condvar, Mutex};

use crate::operations::{FileSystem, errno};
use crate::shown::Slot;

/// With less room than this, in the volume or in a quota tree, writes are not kept back by the
/// kernel: more than it keeps back of a mount on most machines (a hundredth of what may wait to be
/// written).
const KEPT_BACK_ROOM: u64 = 1 << 30;
/// Bytes that directories and nodes take beside what is written.
const BESIDE: u64 = 1 << 20;
/// How long what finds no room waits for the kernel to forget files.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the kernel may forget something else meanwhile.
const ROUNDS: u32 = 64;

/// What the kernel forgets, and who waits for that.
#[derive(Default)]
pub(crate) struct Forgetting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: u32,
    /// Counts how often the kernel has forgotten something.
    rounds: u64,
    /// Files that had lost their last name when somebody waited in vain: somebody uses those that
    /// are left.
    in_vain: u64,
}

impl Forgetting {
    /// Files were forgotten.
    pub(crate) fn has_come_round(&self) {
        self.state.lock().rounds += 1;
        self.changed.notify_all();
    }

    /// Waits, for as long as nobody waits for what is forgotten next.
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
    /// Whether the kernel may keep back what a program writes to a file that it opens now. It has
    /// to where the program could not map the file otherwise.
    pub(crate) fn may_keep_writes_back(&self, slot: &Slot, file: FileId) -> Result<bool, i32> {
        let maps_all = self.maps_all.load(Ordering::Relaxed);
        Ok(!maps_all || slot.tree.room(file).map_err(errno)?.bytes >= KEPT_BACK_ROOM)
    }

    /// Waits a moment for room that comes as the kernel forgets files without names, where so many
    /// bytes and files do not fit beside them.
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
