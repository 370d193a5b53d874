//! Changes of role: a destination becomes writable ([`Volume::failover`]), and a volume that was
//! written to becomes a destination for the other side's images ([`Volume::demote`]).
//!
//! A demoted volume still shows its *own head*, the last state written to it. The superblock write
//! that changes the role also makes a snapshot of it, and the cursor names that snapshot with no
//! time of arrival. So the superblock alone tells which state it shows:
//!
//! | role | cursor | state |
//! |---|---|---|
//! | normal | any | it takes writes |
//! | destination | none | it waits for its first image |
//! | destination | a snapshot, received at some time | it shows that image of its source |
//! | destination | a snapshot, not received | it shows its own head |
//!
//! # Invariants
//! 1. A write is acknowledged only if the head has it: changes wait from the freeze of the last
//!    generation to the new role, and are refused then.
//! 2. The own head stays, whole, until an image is committed on top of it; that is one superblock
//!    write. Before it [`Volume::failover`] takes everything back.
//! 3. An image replaces the own head only when it descends from it, or when the caller gave the
//!    head up ([`crate::Receiver::give_up_head`]). In the second case the snapshots that only this
//!    side has go with the head.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_format::{Cursor, Role, Root, SEGMENTS_MAX};

use crate::commit::pending::Commit;
use crate::commit::rider::Rider;
use crate::commit::space::{add_destination_areas, device_blocks};
use crate::error::VolumeError;
use crate::locks::MutexGuard;
use crate::past::snapshots::join;
use crate::read::compare::Maps;
use crate::volume::{Snapshot, Volume};

/// The content of a volume that another copy, with which it has snapshots in common, lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The newest snapshot that is common.
    pub common: Option<Snapshot>,
    /// The active state has changed since it.
    pub head: bool,
    /// Snapshots that only this side has, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Blocks that the active state and those snapshots have and no common snapshot has.
    pub blocks: u64,
}

impl Volume {
    /// Makes a destination a normal volume, with the last image that was committed, or with its own
    /// head.
    ///
    /// # Errors
    /// [`VolumeError::WrongRole`], [`VolumeError::TransferInProgress`]; [`VolumeError::Damaged`] or
    /// [`VolumeError::Device`] when its inodes can't be read. The volume is then still a
    /// destination.
    pub fn failover(self: &Arc<Self>) -> Result<(), VolumeError> {
        self.without_transfer(|| {
            let mut commit = self.commit_turn()?;
            // Changes wait until the required facts of the image are known.
            let _waiting = self.hold_changes();
            self.become_writable(&mut commit)
        })
    }

    /// The same right after a demotion. The caller holds `commit` and the changes.
    pub(crate) fn take_back(
        self: &Arc<Self>,
        commit: &mut MutexGuard<'_, Commit>,
    ) -> Result<(), VolumeError> {
        self.without_transfer(|| self.become_writable(commit))
    }

    fn without_transfer(&self, change: impl FnOnce() -> Result<(), VolumeError>) -> Result<(), VolumeError> {
        {
            let mut state = self.state.lock();
            if state.role == Role::Normal {
                return Err(VolumeError::WrongRole(Role::Normal));
            }
            if state.receiving {
                return Err(VolumeError::TransferInProgress);
            }
            // Nor does one begin before the role has changed: it would write where blocks are
            // allocated by then.
            state.receiving = true;
        }
        let outcome = change();
        self.state.lock().receiving = false;
        self.work.notify_all();
        outcome
    }

    fn become_writable(self: &Arc<Self>, commit: &mut MutexGuard<'_, Commit>) -> Result<(), VolumeError> {
        // Before the role changes, as it may fail: files that the source had removed and not yet
        // freed, which are freed here from now on, since maps, and how tall the trees are.
        self.find_special_files()?;
        self.commit_holding(commit, Rider::Failover)?;
        // The arrivals of an unfinished transfer are in places that are allocatable from now on.
        self.state.lock().arrivals = None;
        Ok(())
    }

    /// Makes a normal volume a destination that shows its own head, and makes a snapshot of that
    /// (held, with `held`). The device must already have [`Volume::device_bytes_as_destination`].
    ///
    /// # Errors
    /// As [`Volume::create_snapshot`]; [`VolumeError::DeviceTooSmall`]. The volume is then
    /// unchanged.
    pub fn demote(self: &Arc<Self>, name: &str, held: bool) -> Result<Snapshot, VolumeError> {
        let mut commit = self.commit_turn()?;
        self.check_room_as_destination(&commit)?;
        let _waiting = self.hold_changes();
        let done = self.commit_holding(&mut commit, Rider::Demote(name.to_owned(), held))?;
        self.work.notify_all();
        done.snapshot.as_ref().map(Snapshot::from).ok_or(VolumeError::Closed)
    }

    pub(crate) fn check_room_as_destination(&self, commit: &Commit) -> Result<(), VolumeError> {
        let mut layout = commit.superblock.layout.clone();
        add_destination_areas(&mut layout);
        let need = device_blocks(&layout) * BLOCK_SIZE as u64;
        let have = self.store.device().geometry().length;
        if have < need {
            return Err(VolumeError::DeviceTooSmall { need, have });
        }
        if layout.segments.len() > SEGMENTS_MAX {
            return Err(VolumeError::TooManySegments);
        }
        Ok(())
    }

    /// Bytes of device that this volume needs as a destination: its block space, a redirect area
    /// and a have map.
    pub fn device_bytes_as_destination(&self) -> u64 {
        let mut layout = self.commit.lock().superblock.layout.clone();
        add_destination_areas(&mut layout);
        device_blocks(&layout) * BLOCK_SIZE as u64
    }

    /// The snapshot of the last state written here, while a destination shows it.
    pub fn own_head(&self) -> Option<Snapshot> {
        let state = self.state.lock();
        let Cursor { snapshot, received } = state.cursor;
        let own = state.role == Role::Destination && snapshot != SnapshotId(0) && received == Cursor::OWN;
        state.snapshots.get(snapshot).filter(|_| own).map(Snapshot::from)
    }

    /// The content here that a copy with the snapshots `common` lacks: counted from maps, after a
    /// consistency point.
    pub fn divergence(self: &Arc<Self>, common: &[SnapshotId]) -> Result<Divergence, VolumeError> {
        if self.status_role() == Role::Normal {
            self.consistency_point()?;
        }
        let (entries, committed, parent) = {
            let state = self.state.lock();
            (state.snapshots.all(), state.committed.clone(), state.parent)
        };
        let maps = Maps { store: &self.store, redirects: &committed.redirects };
        let roots_of = |id: SnapshotId| -> Vec<Root> {
            entries.iter().filter(|entry| entry.id == id).map(|entry| entry.root).collect()
        };
        let newest = entries.iter().rfind(|entry| common.contains(&entry.id));
        let mut runs = maps.only_in(&committed.root, &roots_of(parent))?;
        let mut own = Vec::new();
        for entry in entries.iter().filter(|entry| !common.contains(&entry.id)) {
            runs.extend(maps.only_in(&entry.root, &roots_of(entry.parent))?);
            own.push(Snapshot::from(entry));
        }
        Ok(Divergence {
            common: newest.map(Snapshot::from),
            head: newest.is_none_or(|newest| newest.root.changed != committed.root.changed),
            snapshots: own,
            blocks: join(runs).iter().map(|(_, count)| count).sum(),
        })
    }
}
