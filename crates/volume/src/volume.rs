//! The volume object: its parts, and the entry points for threads.
//!
//! Lock order: `directory`, then `turn`, then `commit`, then `log`, then `state`. Only the first
//! four are held across device I/O. A change of the root directory holds `directory`. A writer that
//! waits for room in a nearly full volume holds `turn`. Consistency points and their riders hold
//! `commit`, and flushes hold `log`. Otherwise reads and writes take `state` alone, for memory
//! operations.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::locks::{Condvar, Mutex};
use cairn_base::{Clock, Generation, LogId, SnapshotId, Timestamp, VolumeId};
use cairn_format::{Cursor, Role, Root, SnapshotEntry};

use crate::commit::pending::Commit;
use crate::error::VolumeError;
use crate::limits::{CONSISTENCY_INTERVAL, Memory, PLACE_BLOCKS, ROOM_INTERVAL, WRITE_BACK_AT};
use crate::log::intent::{LogUse, LogWriter};
use crate::memory::state::State;
use crate::read::store::Store;

/// A write-anywhere volume on a device. Callers' threads call in; it starts none.
pub struct Volume {
    /// How many volumes this process opened before. Code that locks several volumes locks them in
    /// this order.
    pub(crate) number: u64,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) memory: Memory,
    pub(crate) commit: Mutex<Commit>,
    pub(crate) log: Mutex<LogWriter>,
    /// The part of the log's state that is visible while a flush holds the log.
    pub(crate) log_use: Arc<Mutex<LogUse>>,
    /// Held while names of the root directory change; before all others.
    pub(crate) directory: Mutex<()>,
    /// Held by the writer that may currently wait for room.
    pub(crate) turn: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Writes landed, a consistency point ended, or the volume latched.
    pub(crate) settled: Condvar,
    /// There is background work.
    pub(crate) work: Condvar,
    /// Signals that blocks wait for places; [`Volume::write_back`] waits for it.
    pub(crate) arrivals: Condvar,
    pub(crate) flushes: AtomicU64,
    pub(crate) consistency_points: AtomicU64,
    /// Holds back writers.
    pub(crate) held_back: OnceLock<HoldBack>,
}

/// Whether a device below takes more writes of clients, with this many blocks that wait in memory.
/// It is called under a lock, and does not wait.
pub type HoldBack = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number, never given again.
    pub id: SnapshotId,
    /// Its name, unique in the volume.
    pub name: String,
    /// The consistency point that it is.
    pub generation: Generation,
    /// When it was made, by the clock of the volume's owner at the time.
    pub created: Timestamp,
    /// The snapshot that it descends from; 0 for none.
    pub parent: SnapshotId,
    /// Where its tree starts.
    pub root: Root,
    /// It may not be deleted.
    pub held: bool,
}

impl From<&SnapshotEntry> for Snapshot {
    fn from(entry: &SnapshotEntry) -> Self {
        Self {
            id: entry.id,
            name: entry.name.clone(),
            generation: entry.root.generation,
            created: entry.root.created,
            parent: entry.parent,
            root: entry.root,
            held: entry.held,
        }
    }
}

/// How a volume is.
#[derive(Debug, Clone)]
pub struct VolumeStatus {
    /// Which volume.
    pub id: VolumeId,
    /// Owner of its data, or destination of a mirror.
    pub role: Role,
    /// The last consistency point.
    pub generation: Generation,
    /// When its content last changed, as of the last consistency point.
    pub changed: Timestamp,
    /// Block space of this copy, in blocks: a destination's may be longer than that of the image
    /// which it shows.
    pub blocks: u64,
    /// Blocks in use by the active state or snapshots.
    pub used: u64,
    /// Blocks that writes can take.
    pub free: u64,
    /// Blocks that the active state reaches.
    pub active: u64,
    /// Blocks kept back for consistency points and deletes.
    pub reserve: u64,
    /// Changes in memory that no consistency point has.
    pub dirty: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// Blocks of intent log in use.
    pub log_used: u64,
    /// Blocks of intent log.
    pub log_blocks: u64,
    /// The log that is on a device of its own.
    pub log_device: Option<LogId>,
    /// The device of the log failed since opening. Nothing is lost: the log is in the label area
    /// since then, unless it was moved again.
    pub log_left: bool,
    /// Flushes that the log made durable, since opening.
    pub flushes: u64,
    /// Consistency points since opening.
    pub consistency_points: u64,
    /// Blocks of a destination that are not at home yet.
    pub redirected: u64,
    /// The image that a destination holds.
    pub cursor: Cursor,
    /// Why the volume is read-only.
    pub latched: Option<VolumeError>,
    /// The layer below the volume has no room for accepted changes. The volume takes no other
    /// change until it has.
    pub lacks_room: bool,
}

impl Volume {
    /// Which volume.
    pub fn id(&self) -> VolumeId {
        self.store.volume()
    }

    /// Holds back writes of clients while `takes` returns false. Consistency points, and what they
    /// need, continue: the device keeps room for them. Only the first call counts.
    pub fn hold_back_unless(&self, takes: HoldBack) {
        let _ = self.held_back.set(takes);
    }

    /// Whether it was closed: nothing of it can be read any more.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// The current role of this copy.
    pub fn status_role(&self) -> Role {
        self.state.lock().role
    }

    /// The generation that changes of now go into.
    pub fn open_generation(&self) -> Generation {
        self.state.lock().open.generation
    }

    /// How it is. Waits for no device.
    pub fn status(&self) -> VolumeStatus {
        let log = *self.log_use.lock();
        let state = self.state.lock();
        let root = &state.committed.root;
        VolumeStatus {
            id: self.id(),
            role: state.role,
            generation: root.generation,
            changed: root.changed,
            blocks: state.used.blocks(),
            used: state.used.blocks() - state.used.free(),
            free: state.used.free().saturating_sub(state.promised(0) + state.reserve()),
            active: root.used,
            reserve: state.reserve(),
            dirty: state.open.changes + state.frozen.as_ref().map_or(0, |f| f.overlay().changes),
            snapshots: state.snapshots.len() as u64,
            log_used: log.used,
            log_blocks: log.blocks,
            log_device: log.device,
            log_left: state.log_left && log.device.is_none(),
            flushes: self.flushes.load(std::sync::atomic::Ordering::Relaxed),
            consistency_points: self.consistency_points.load(std::sync::atomic::Ordering::Relaxed),
            redirected: state.committed.redirects.iter().map(|run| run.count).sum(),
            cursor: state.cursor,
            latched: state.latched.clone(),
            lacks_room: state.lacks_room.is_some(),
        }
    }

    /// One round of background work: writes blocks that wait in memory, runs a consistency point
    /// that is due, frees removed files, moves redirected blocks home. Waits at most `patience`
    /// when there is no work.
    ///
    /// # Errors
    /// The failure that latched the volume. Background work is then over.
    pub fn background(self: &Arc<Self>, patience: Duration) -> Result<(), VolumeError> {
        let mut state = self.state.lock();
        state.check_mendable()?;
        if state.inodes_are_lost() {
            self.work.wait_for(&mut state, patience);
            drop(state);
            self.look_for_inodes();
            return Ok(());
        }
        if let Some(tried) = state.lacks_room {
            let wait = (tried + ROOM_INTERVAL).saturating_sub(self.clock.monotonic());
            if wait.is_zero() {
                drop(state);
                return match self.consistency_point() {
                    Ok(_) | Err(VolumeError::NoRoomBelow) => Ok(()),
                    Err(error) => Err(error),
                };
            }
            self.work.wait_for(&mut state, patience.min(wait));
            return Ok(());
        }
        if state.role == Role::Destination {
            // A running transfer has its own record of the blocks in use.
            if !state.receiving {
                state.settle_releases();
            }
            if !state.receiving && !state.committed.redirects.is_empty() {
                drop(state);
                if self.move_home()? > 0 {
                    return Ok(());
                }
                state = self.state.lock();
            }
            self.work.wait_for(&mut state, patience);
            return Ok(());
        }
        state.settle_releases();
        if self.wants_write_back(&state) {
            let limit = self.write_back_at_once(&state);
            drop(state);
            return self.place(limit, u64::MAX).map(drop);
        }
        if self.is_due(&state) {
            let wait = state.out_of_reach.map_or(Duration::ZERO, |tried| {
                (tried + ROOM_INTERVAL).saturating_sub(self.clock.monotonic())
            });
            if wait.is_zero() {
                drop(state);
                return match self.consistency_point() {
                    Err(error) if error.is_out_of_reach() => Ok(()),
                    outcome => outcome.map(drop),
                };
            }
            self.work.wait_for(&mut state, patience.min(wait));
            return Ok(());
        }
        // Without room for the nodes that it changes a removed file waits until snapshots are
        // deleted.
        if !state.removed.is_empty() && state.has_room_to_free(0) {
            drop(state);
            if self.free_removed()? {
                return Ok(());
            }
            state = self.state.lock();
        }
        if !state.committed.redirects.is_empty() {
            drop(state);
            if self.move_home()? > 0 {
                return Ok(());
            }
            state = self.state.lock();
        }
        let until_due = match state.changed_since {
            Some(since) => (since + CONSISTENCY_INTERVAL).saturating_sub(self.clock.monotonic()),
            None => patience,
        };
        self.work.wait_for(&mut state, patience.min(until_due));
        Ok(())
    }

    /// One round of write-back alone: writes blocks that wait in memory to their places. Waits at
    /// most `patience` when there are few.
    ///
    /// [`Volume::background`] does this too, a batch at a time, and a device idles while the next
    /// batch is made. One or two threads that call this in addition keep several batches in flight,
    /// also during a consistency point.
    ///
    /// # Errors
    /// The failure that latched the volume. Write-back is then over.
    pub fn write_back(self: &Arc<Self>, patience: Duration) -> Result<(), VolumeError> {
        let mut state = self.state.lock();
        state.check_mendable()?;
        if !state.inodes_are_lost() && self.wants_write_back(&state) {
            let limit = self.write_back_at_once(&state);
            drop(state);
            return self.place(limit, u64::MAX).map(drop);
        }
        self.arrivals.wait_for(&mut state, patience);
        Ok(())
    }

    pub(crate) fn wants_write_back(&self, state: &State) -> bool {
        let dirty = self.memory.dirty_blocks;
        let most = if state.open.is_scattered() { (dirty / 4).max(WRITE_BACK_AT) } else { WRITE_BACK_AT };
        state.lacks_room.is_none() && state.open.unplaced >= most.min(dirty / 2)
    }

    /// Blocks of one batch of write-back. Blocks of a batch get their places in the order of the
    /// file, so a long batch of scattered blocks can later be read in order with few requests.
    fn write_back_at_once(&self, state: &State) -> usize {
        if state.open.is_scattered() {
            (self.memory.dirty_blocks as usize / 2).max(PLACE_BLOCKS)
        } else {
            PLACE_BLOCKS
        }
    }

    /// Whether a consistency point should run now: by age, by the number of changes, by the log, or
    /// as space runs short.
    fn is_due(&self, state: &State) -> bool {
        if state.out_of_reach.is_some() && state.frozen.is_some() {
            return true;
        }
        if state.open.is_empty() {
            return false;
        }
        let aged = state
            .changed_since
            .is_some_and(|since| self.clock.monotonic().saturating_sub(since) >= CONSISTENCY_INTERVAL);
        let short = state.used.free() < 2 * state.promised(0) + 2 * state.reserve();
        let log_pressed = self.log.try_lock().is_some_and(|log| log.is_pressed());
        aged || state.open.weight() >= self.memory.changes_soft
            || log_pressed
            || (short && state.open.changes > 1024)
    }

    /// Commits the changes in memory; afterwards every call fails.
    pub fn close(self: &Arc<Self>) -> Result<(), VolumeError> {
        let latched = self.state.lock().latched.is_some();
        let outcome = match latched {
            true => Ok(()),
            // Without the blocks that a consistency point needs, the log has all changes.
            false => match self.consistency_point() {
                Err(error) if error.is_out_of_reach() => self.write_to_log(),
                outcome => outcome.map(drop),
            },
        };
        self.state.lock().closed = true;
        self.work.notify_all();
        self.arrivals.notify_all();
        self.settled.notify_all();
        outcome
    }

    /// Keeps changes of several parts (a directory entry and its inode) in one generation: while
    /// the guard lives no generation ends.
    pub fn compound(self: &Arc<Self>) -> Compound<'_> {
        let mut state = self.state.lock();
        while state.freezing || state.rolling_back {
            self.settled.wait(&mut state);
        }
        state.compounds += 1;
        Compound { volume: self }
    }
}

/// Keeps the open generation open; see [`Volume::compound`]. Not to be held across
/// [`Volume::write`] of more than a few blocks, which may need a consistency point.
pub struct Compound<'a> {
    volume: &'a Arc<Volume>,
}

impl<'a> Compound<'a> {
    pub(crate) fn volume(&self) -> &'a Arc<Volume> {
        self.volume
    }
}

impl Drop for Compound<'_> {
    fn drop(&mut self) {
        self.volume.state.lock().compounds -= 1;
        self.volume.settled.notify_all();
    }
}
