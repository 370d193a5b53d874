//! Commands on a volume whose writes wait for room in its history: what needs a consistency point
//! is refused before anything of it is begun, and says why.
//!
//! A write that waits for room is given up by nobody, so what is in memory is written out
//! beforehand, by a thread that may wait for as long as it takes; whoever asks waits for that for a
//! moment. There is one such thread a volume, however often somebody asks: who comes while it
//! waits, waits with it.

use std::time::{Duration, Instant};

use cairn_api::ErrorKind;
use cairn_api::remedy::volume_kind;

use crate::error::ServerError;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::volumes::under::Under;

/// How long a command waits for room in a history before it is refused: what time gives by itself
/// comes within it.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl OpenVolume {
    /// Makes durable what was answered, as long as the volume is open and has a history under it:
    /// once it closes nothing waits for room any more. Refused where that waits longer than an
    /// administrator would: it goes on waiting, and nothing else does.
    pub(crate) fn write_out_over_history(&self) -> Result<(), ServerError> {
        // One that is read-only writes nothing more: it may be brought back all the same, and
        // refuses all else by itself.
        if self.under.is_none() || self.volume.status().latched.is_some() {
            return Ok(());
        }
        let mut rounds = self.writing_out.rounds.lock();
        // A round that is under way may lack what was answered since it began.
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

    /// Refuses what needs a consistency point where there is no room for one, before anything of it
    /// is begun: where writes wait, and where they have failed.
    pub(crate) fn refuse_without_room(&self) -> Result<(), ServerError> {
        match self.volume.status() {
            status if status.lacks_room && status.latched.is_none() => Err(self.no_room_below()),
            _ => self.write_out_over_history(),
        }
    }

    /// The same of a volume that takes writes, as far as there is a floor for which a consistency
    /// point can find no room: whoever asks often makes none for nothing.
    pub(crate) fn refuse_if_floor_leaves_no_room(&self) -> Result<(), ServerError> {
        let has_floor =
            |under: &Under| under.history().status().window.floor > Duration::ZERO && !self.is_destination();
        match self.under.as_ref().is_some_and(has_floor) {
            true => self.refuse_without_room(),
            false => Ok(()),
        }
    }

    /// Refuses what would wait with its writes for room, and needs no consistency point of its own:
    /// an update of a mirror, whose consistency points are those of its updates, and a clone.
    pub(crate) fn refuse_while_writes_wait(&self) -> Result<(), ServerError> {
        let mut waited = Duration::ZERO;
        let mut calm = Duration::ZERO;
        // What waits looks for room now and then, and does not wait meanwhile.
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

/// True of a refusal for want of room in a history beneath its floor.
pub(crate) fn is_of_full_history(error: &ServerError) -> bool {
    matches!(error, ServerError::Volumes(VolumesError::OverHistory { kind: ErrorKind::NoSpace, .. }))
}

/// Of what has been begun, and waits by now.
pub(crate) fn waits_with_writes(volume: &str) -> ServerError {
    ServerError::Volumes(VolumesError::OverHistory {
        volume: volume.to_owned(),
        kind: ErrorKind::NoSpace,
        why: "what was asked has been begun, and waits with the writes for room in its history: it comes when there is some",
        next: "allow old history to be discarded (`cairn history window VOLUME --floor TIME` with a shorter time, or `--floor off`), and it resumes at once",
    })
}
