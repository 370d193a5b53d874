//! Reverts a volume over a history to an earlier instant: a mirror to an image that it showed, any
//! other to its state then.
//!
//! This pauses a mirror, as its next update would otherwise bring the reverted changes back. Its
//! images, its cursor and the received part of a transfer are all in the volume and revert
//! together. So it reports its reverted state to the source, and receives the missing changes: from
//! a snapshot that both still have, or by comparing checksums, whose price is reported first. The
//! source's record of changes does not go back so far, and is not used.

use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};

use super::{Claim, Mirrors};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::volumes::error::VolumesError;

impl Server {
    /// Reverts a writable volume to an instant.
    pub(crate) fn revert_volume(
        &self,
        name: &str,
        request: &api::Revert,
    ) -> Result<api::Reverted, ServerError> {
        if self.volumes.get(name)?.is_destination() {
            return Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: name.to_owned(),
                kind: ErrorKind::WrongRole,
                why: "it is a mirror, whose next update would bring the same again",
                next: "use `cairn mirror rewind`, which pauses it first",
            }));
        }
        let at = &request.instant();
        match request.dry_run {
            true => self.would_bring_back(name, at),
            false => self.mirrors.alone(name, || self.bring_back(name, at)),
        }
    }

    /// Reverts a mirror to the image that it showed at an instant, and pauses it.
    pub(crate) fn rewind_mirror(
        &self,
        name: &str,
        request: &api::Revert,
    ) -> Result<api::Reverted, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.refuse_taking_writes(&relation)?;
        let open = self.volumes.get(name)?;
        if self.is_followed(&open)? {
            return Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: name.to_owned(),
                kind: ErrorKind::WrongRole,
                why: "it has mirrors of its own, which would be ahead of it",
                next: "fail over one of them instead, or forget them first with `cairn mirror forget`",
            }));
        }
        let at = &open.history()?.settled(&request.instant())?;
        if request.dry_run {
            return self.would_bring_back(name, at);
        }
        // Refused before anything is changed.
        drop(self.volumes.check_revert(&open, at)?);
        drop(open);
        let was_paused = relation.document.lock().paused;
        self.mirrors.keep(&relation, |document| document.paused = true)?;
        let outcome = self.mirrors.alone(name, || {
            // The last contact counts from an image that is not visible any more.
            self.mirrors.keep(&relation, |document| document.contact = None)?;
            self.bring_back(name, at)
        });
        if outcome.is_err()
            && !was_paused
            && let Ok(now) = self.mirrors.get(name)
        {
            self.mirrors.keep(&now, |document| document.paused = false)?;
        }
        outcome
    }
}

impl Mirrors {
    /// Does something with a volume while no transfer into it runs or begins. Afterwards it may be
    /// another opening of the volume.
    pub(crate) fn alone<T>(
        &self,
        name: &str,
        act: impl FnOnce() -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let known = self.relations.lock().get(name).cloned();
        let Some(relation) = known else { return act() };
        relation.settle()?;
        {
            let mut live = relation.live.lock();
            if live.running {
                return Err(ServerError::Busy { name: name.to_owned(), by: "an update runs" });
            }
            live.running = true;
        }
        // Nothing runs any more when this goes, also where a bug has ended it.
        let _claim = Claim(&relation);
        let outcome = act();
        match self.volumes.get(name) {
            Ok(open) if Arc::ptr_eq(&open.volume, relation.destination.volume()) => {}
            opened => {
                // A caller that waits for the old one, as to pause it, gets an error that asks for
                // a retry.
                relation.retire();
                self.relations.lock().remove(name);
                if let Ok(open) = opened {
                    self.take_in(&open);
                }
            }
        }
        outcome
    }
}
