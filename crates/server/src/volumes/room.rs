//! Commands on a volume whose writes wait for room in its history: a command that needs a
//! consistency point is refused before it begins, with the reason.
//!
//! A write that waits for room is never abandoned. So a thread, which may wait for any time, writes
//! the data in memory out beforehand; the command waits a moment for it. Each volume has only one
//! such thread: later commands wait for the same one.

use std::time::{Duration, Instant};

use cairn_api::ErrorKind;
use cairn_api::remedy::volume_kind;

use crate::error::ServerError;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::volumes::under::Under;

/// Time for which a command waits for room in a history before it is refused: room that becomes
/// free by itself does so within it.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl OpenVolume {
    /// Makes acknowledged data durable, while the volume is open with a history under it: after it
    /// closes no request waits for room any more. Refused if that takes longer than [`PATIENCE`]:
    /// the thread keeps waiting, the caller does not.
    pub(crate) fn write_out_over_history(&self) -> Result<(), ServerError> {
        // A read-only volume writes nothing more: it may still be reverted, and refuses all other
        // commands itself.
        if self.under.is_none() || self.volume.status().latched.is_some() {
            return Ok(());
        }
        let mut rounds = self.writing_out.rounds.lock();
        // A running round may lack data acknowledged since it began.
        let mine = rounds.begun + 1;
        let mut waited = Duration::ZERO;
        loop {
            if rounds.over >= mine {
                return match &rounds.outcome {
                    Some(Ok(())) => Ok(()),
                    Some(Err(error)) if volume_kind(error) == ErrorKind::NoSpace => Err(self.lacks_room()),
                    Some(Err(error)) => Err(ServerError::volume(&self.name)(error.clone())),
                    None => Err(ServerError::Bug),
                };
            }
            if rounds.begun == rounds.over {
                let (writing_out, volume) = (self.writing_out.clone(), self.volume.clone());
                std::thread::Builder::new()
                    .name("write out".to_owned())
                    .spawn(move || writing_out.run(&volume))
                    .map_err(|source| ServerError::Thread { what: "a consistency point", source })?;
                rounds.begun += 1;
            }
            let turn = Instant::now();
            self.writing_out.moved.wait_for(&mut rounds, LOOK_EVERY);
            if self.waits_for_room() {
                waited += turn.elapsed();
            }
            if waited > PATIENCE {
                return Err(self.lacks_room());
            }
        }
    }

    /// Refuses an operation that needs a consistency point, before it begins, if there is no room
    /// for one: if writes wait, or have failed.
    pub(crate) fn refuse_without_room(&self) -> Result<(), ServerError> {
        match self.volume.status() {
            status if status.lacks_room && status.latched.is_none() => Err(self.no_room_below()),
            _ => self.write_out_over_history(),
        }
    }

    /// The same for a writable volume, only if the history has a floor that can leave no room for a
    /// consistency point: frequent callers do not make needless ones.
    pub(crate) fn refuse_if_floor_leaves_no_room(&self) -> Result<(), ServerError> {
        let has_floor =
            |under: &Under| under.history().status().window.floor > Duration::ZERO && !self.is_destination();
        match self.under.as_ref().is_some_and(has_floor) {
            true => self.refuse_without_room(),
            false => Ok(()),
        }
    }

    /// Refuses an operation that would wait for room with the writes, but needs no consistency
    /// point of its own: an update of a mirror, which makes its own consistency points, and a
    /// clone.
    pub(crate) fn refuse_while_writes_wait(&self) -> Result<(), ServerError> {
        let mut waited = Duration::ZERO;
        let mut calm = Duration::ZERO;
        // A waiting write checks for room now and then, and does not count as waiting meanwhile.
        while waited <= PATIENCE {
            if self.waits_for_room() {
                (waited, calm) = (waited + LOOK_EVERY, Duration::ZERO);
            } else if waited.is_zero() || calm > PATIENCE {
                return Ok(());
            } else {
                calm += LOOK_EVERY;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(self.lacks_room())
    }

    /// Whether something waits for room in its history.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.under.as_ref().is_some_and(|under| under.history().status().waiting > 0)
    }

    fn lacks_room(&self) -> ServerError {
        ServerError::Volumes(VolumesError::OverHistory {
            volume: self.name.clone(),
            kind: ErrorKind::NoSpace,
            why: "what was written last has no room in its history, which is full and has nothing that is older than its floor; what was asked was not begun",
            next: "let old history go (`cairn history window VOLUME --floor TIME` with a shorter one, or `--floor off`), and do this again",
        })
    }
}

/// True for a refusal for lack of room in a history beneath its floor.
pub(crate) fn is_of_full_history(error: &ServerError) -> bool {
    matches!(error, ServerError::Volumes(VolumesError::OverHistory { kind: ErrorKind::NoSpace, .. }))
}

/// The error for an operation that has begun, and waits now.
pub(crate) fn waits_with_writes(volume: &str) -> ServerError {
    ServerError::Volumes(VolumesError::OverHistory {
        volume: volume.to_owned(),
        kind: ErrorKind::NoSpace,
        why: "what was asked has been begun, and waits with the writes for room in its history: it comes when there is some",
        next: "allow old history to be discarded (`cairn history window VOLUME --floor TIME` with a shorter time, or `--floor off`), and it resumes at once",
    })
}
