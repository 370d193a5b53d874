//! The word of a source's owner that a mirror may take its role: for a time, and once.
//!
//! `reverse.json` in the folder of the volume has it, so that a restart of the server takes nothing back that the owner has said. It is taken by one mirror, in the file too, before
//! the volume gives way, and gone afterwards. A crash in between leaves one that is taken: where the volume has given way it goes with the next start, as the volume follows then, and
//! where it has not, the mirror that took it may come again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_base::Clock;
use cairn_mirror::Relationship;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::now_ms;
use super::roles::ALLOWED_MS;
use crate::error::ServerError;
use crate::identity::Fingerprint;
use crate::state;

/// Which mirror took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taker {
    fingerprint: Fingerprint,
    relationship: u64,
}

impl Taker {
    pub(super) fn new(fingerprint: Fingerprint, relationship: Relationship) -> Self {
        Self { fingerprint, relationship: relationship.0 }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Consent {
    until_ms: u64,
    taken: Option<Taker>,
    /// The end by the clock that is never set, in the run of the program in which it was given: a wall clock that is put back makes it no longer.
    #[serde(skip)]
    ends: Option<Duration>,
}

impl Consent {
    fn is_for(&self, taker: Taker, clock: &dyn Clock) -> bool {
        !self.is_over(clock) && self.taken.is_none_or(|other| other == taker)
    }

    fn is_over(&self, clock: &dyn Clock) -> bool {
        self.until_ms <= now_ms(clock) || self.ends.is_some_and(|ends| ends <= clock.monotonic())
    }
}

/// Those of all volumes of a server, by name. Held while a file is written: two mirrors come one after the other.
#[derive(Default)]
pub(super) struct Consents {
    given: Mutex<BTreeMap<String, Consent>>,
}

fn file(folder: &Path) -> PathBuf {
    folder.join("reverse.json")
}

/// Removes the file, durably.
fn remove(folder: &Path) -> Result<(), ServerError> {
    let path = file(folder);
    match std::fs::remove_file(&path) {
        Ok(()) => state::sync_parent(&path).map_err(ServerError::path("write", &path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(ServerError::path("remove", &path)(error)),
    }
}

impl Consents {
    /// What the folder of a volume says. One that follows has given way: whatever is there was used. What can't be read is no consent, and keeps no server from starting.
    pub(super) fn recall(&self, name: &str, folder: &Path, follows: bool) {
        let found = match follows {
            true => remove(folder).map(|()| None),
            // One that is damaged is none, and `status` has it.
            false => state::load::<Consent>(&file(folder)),
        };
        match found {
            Ok(Some(consent)) => drop(self.given.lock().insert(name.to_owned(), consent)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(volume = name, %error, "what its owner has said of a change of roles is not known");
            }
        }
    }

    /// Lets a mirror take over for so long; until when, in milliseconds since 1970.
    pub(super) fn give(
        &self,
        name: &str,
        folder: &Path,
        for_ms: u64,
        clock: &dyn Clock,
    ) -> Result<u64, ServerError> {
        self.write(name, folder, for_ms, None, clock)
    }

    /// What a mirror took and used stands for it again, and for no other: what it was used for is done once more.
    pub(super) fn renew(
        &self,
        name: &str,
        folder: &Path,
        taker: Taker,
        clock: &dyn Clock,
    ) -> Result<(), ServerError> {
        self.write(name, folder, ALLOWED_MS, Some(taker), clock).map(drop)
    }

    fn write(
        &self,
        name: &str,
        folder: &Path,
        for_ms: u64,
        taken: Option<Taker>,
        clock: &dyn Clock,
    ) -> Result<u64, ServerError> {
        let mut given = self.given.lock();
        let until_ms = now_ms(clock).saturating_add(for_ms);
        let ends = clock.monotonic().saturating_add(Duration::from_millis(for_ms));
        let consent = Consent { until_ms, taken, ends: Some(ends) };
        state::save(&file(folder), &consent)?;
        given.insert(name.to_owned(), consent);
        Ok(until_ms)
    }

    /// No mirror may take over any more: the owner has said so, or it was used.
    pub(super) fn end(&self, name: &str, folder: &Path) -> Result<(), ServerError> {
        let mut given = self.given.lock();
        // Whatever becomes of the file.
        given.remove(name);
        remove(folder)
    }

    /// The volume is gone, and its folder with it.
    pub(super) fn forget(&self, name: &str) {
        self.given.lock().remove(name);
    }

    /// Whether a mirror could take it.
    pub(super) fn may_take(&self, name: &str, taker: Taker, clock: &dyn Clock) -> bool {
        self.given.lock().get(name).is_some_and(|consent| consent.is_for(taker, clock))
    }

    /// Takes it for one mirror, and writes that down; false when there is none, or another mirror has it.
    pub(super) fn take(
        &self,
        name: &str,
        folder: &Path,
        taker: Taker,
        clock: &dyn Clock,
    ) -> Result<bool, ServerError> {
        let mut given = self.given.lock();
        let Some(consent) = given.get_mut(name) else { return Ok(false) };
        if !consent.is_for(taker, clock) {
            return Ok(false);
        }
        let taken = Consent { taken: Some(taker), ..consent.clone() };
        state::save(&file(folder), &taken)?;
        *consent = taken;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
