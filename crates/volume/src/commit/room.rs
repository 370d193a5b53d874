//! Consistency points that find no room below: on the file system of a sparse file, or in a
//! history. And those that cannot read a block, as the network that it comes from is away.
//!
//! Nothing has failed then, and accepted changes are in memory. Blocks wait for places again
//! ([`Volume::place`]), and no other change is accepted until there is room
//! ([`State::lacks_room`](crate::memory::state::State)).
//!
//! 1. *Before the superblock* the work of the consistency point is undone, except that its
//!    generation stays frozen ([`Left`]). The next one commits it first, without a rider: the rider
//!    of the first one was refused, and is not applied later.
//!    So is one that cannot read a block over a network now. It is tried again every second, and
//!    changes and flushes continue meanwhile, as far as memory and the log have room.
//! 2. *At the superblock* it is unknown whether a slot has it. A consistency point without a rider
//!    is kept as it is ([`Sealed`]) and written again before anything else. Any other ends the
//!    volume.
//!
//! A caller that derives its own work from the results of consistency points takes
//! [`Volume::commit_turn`], which has done both before.

use std::sync::Arc;

use crate::commit::pending::Commit;
use crate::commit::pending::Sealed;
use crate::commit::rider::{Done, Rider};
use crate::commit::space::label_bytes;
use crate::error::VolumeError;
use crate::locks::MutexGuard;
use crate::volume::Volume;

impl Volume {
    /// The room that a consistency point needs outside the block space (tables, the intent log, the
    /// superblock) is reserved before it begins.
    pub(crate) fn take_label_room(&self, commit: &mut Commit) -> Result<(), VolumeError> {
        if !commit.label_has_room {
            let length = label_bytes(&commit.superblock.layout);
            match self.store.device().allocate(0, length).map_err(VolumeError::from) {
                Err(error) if error.is_room() => return self.settle(Err(VolumeError::NoRoomBelow)),
                // The writes themselves report any other error.
                _ => commit.label_has_room = true,
            }
        }
        Ok(())
    }

    /// The turn of a caller that derives its own work from the results of consistency points. An
    /// earlier one that was begun and found no room is finished first.
    pub(crate) fn commit_turn(self: &Arc<Self>) -> Result<MutexGuard<'_, Commit>, VolumeError> {
        let mut commit = self.commit.lock();
        self.finish_left(&mut commit)?;
        Ok(commit)
    }

    /// Commits generations that earlier consistency points have frozen without finding room.
    pub(crate) fn finish_left(
        self: &Arc<Self>,
        commit: &mut MutexGuard<'_, Commit>,
    ) -> Result<(), VolumeError> {
        if commit.sealed.is_some() {
            self.state.lock().check_open()?;
        }
        if let Some(sealed) = commit.sealed.take() {
            let outcome = self.seal(commit, *sealed, true);
            self.settle(outcome)?;
        }
        if commit.left.is_some() {
            self.commit_or_wait(commit, Rider::None)?;
        }
        Ok(())
    }

    /// One consistency point. Without room below the state is unchanged, except that its generation
    /// is frozen, and waits for the next one.
    pub(crate) fn commit_or_wait(
        self: &Arc<Self>,
        commit: &mut MutexGuard<'_, Commit>,
        rider: Rider,
    ) -> Result<Done, VolumeError> {
        let (maps, lost, began) = {
            let mut state = self.state.lock();
            state.taken.clear();
            (state.since_maps.clone(), state.lost_since.clone(), state.since_began.clone())
        };
        let moves_log = matches!(rider, Rider::Log(_));
        let outcome = self.commit_locked(commit, rider);
        let waits =
            |error: &VolumeError| matches!(error, VolumeError::NoRoomBelow) || error.is_out_of_reach();
        if outcome.as_ref().is_err_and(waits) && commit.sealed.is_none() {
            if moves_log {
                self.log.lock().stay();
            }
            let mut state = self.state.lock();
            // Nothing that can be read has named them.
            for vbn in std::mem::take(&mut state.taken) {
                state.used.clear(vbn);
            }
            state.since_maps = maps;
            state.lost_since.extend(lost);
            state.since_began = began;
        }
        self.settle(outcome)
    }

    /// Handles the outcome of a consistency point that failed.
    fn settle<T>(&self, outcome: Result<T, VolumeError>) -> Result<T, VolumeError> {
        if let Err(reason) = &outcome {
            let mut state = self.state.lock();
            if matches!(reason, VolumeError::NoRoomBelow) {
                state.note_no_room(self.clock.monotonic());
            } else if reason.is_out_of_reach() {
                state.note_out_of_reach(self.clock.monotonic(), reason);
            } else if state.frozen.is_some() || matches!(reason, VolumeError::Device(_)) {
                // Any other failure after the freeze must not be retried as if nothing had
                // happened. Without changes to freeze a snapshot's table and the superblock are
                // written all the same, and the device may have failed there.
                state.latch(reason);
            }
            self.settled.notify_all();
        }
        outcome
    }

    /// Writes the superblock of a consistency point whose other blocks are durable, and installs
    /// it. Without a rider it `waits` when there is no room for that. With a rider the caller must
    /// know whether the superblock was written. That is unknown here, so the volume ends, as after
    /// any other error.
    pub(crate) fn seal(
        &self,
        commit: &mut Commit,
        mut sealed: Sealed,
        waits: bool,
    ) -> Result<(), VolumeError> {
        match self.write_superblock(&sealed.superblock) {
            Err(error) if waits && error.is_room() => {
                commit.sealed = Some(Box::new(sealed));
                return Err(VolumeError::NoRoomBelow);
            }
            outcome => outcome?,
        }
        let (removed, replaced) = (std::mem::take(&mut sealed.removed), std::mem::take(&mut sealed.replaced));
        self.install(commit, sealed);
        if !removed.is_empty() {
            self.state.lock().removed.extend(removed);
            self.work.notify_one();
        }
        self.store.forget_nodes(&replaced);
        self.sort_releases();
        Ok(())
    }
}
