//! The consent of a source's owner that one mirror may take its role: for a time, and once.
//!
//! `reverse.json` in the folder of the volume holds it, so that it survives a restart of the
//! server. It names its mirror. It is removed once the volume has become the destination. After a
//! crash in between, the next start removes it if the volume is a destination, as the volume
//! follows then; otherwise the same mirror may request again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_base::Clock;
use cairn_mirror::Relationship;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::mirrors::document::{ALLOWED_MS, now_ms};
use crate::peers::identity::Fingerprint;
use crate::state;

/// Which mirror it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taker {
    fingerprint: Fingerprint,
    relationship: u64,
}

impl Taker {
    pub(crate) fn new(fingerprint: Fingerprint, relationship: Relationship) -> Self {
        Self { fingerprint, relationship: relationship.0 }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Consent {
    until_ms: u64,
    /// Named in the singular since a consent was for the first mirror that took it. Without a
    /// mirror it is for none.
    #[serde(rename = "taken")]
    mirror: Option<Taker>,
    /// The end by the monotonic clock, in the process in which it was given: a wall clock that is
    /// set back does not extend it.
    #[serde(skip)]
    ends: Option<Duration>,
}

impl Consent {
    fn is_for(&self, taker: Taker, clock: &dyn Clock) -> bool {
        !self.is_over(clock) && self.mirror == Some(taker)
    }

    fn is_over(&self, clock: &dyn Clock) -> bool {
        self.until_ms <= now_ms(clock) || self.ends.is_some_and(|ends| ends <= clock.monotonic())
    }
}

/// Those of all volumes of a server, by name. Held while a file is written.
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
    /// Loads the consent in the folder of a volume. A volume that follows has become the
    /// destination: any consent there was used. An unreadable file is not a consent, and does not
    /// prevent a start.
    pub(super) fn recall(&self, name: &str, folder: &Path, follows: bool) {
        let found = match follows {
            true => remove(folder).map(|()| None),
            // A damaged one does not count, and `status` reports it.
            false => state::load::<Consent>(&file(folder)),
        };
        match found {
            Ok(Some(consent)) => drop(self.given.lock().insert(name.to_owned(), consent)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot read the consent to a change of roles");
            }
        }
    }

    /// Lets one mirror take over for the given time. Returns its end, in milliseconds since 1970.
    pub(super) fn give(
        &self,
        name: &str,
        folder: &Path,
        (mirror, for_ms): (Taker, u64),
        clock: &dyn Clock,
    ) -> Result<u64, ServerError> {
        let mut given = self.given.lock();
        let until_ms = now_ms(clock).saturating_add(for_ms);
        let ends = clock.monotonic().saturating_add(Duration::from_millis(for_ms));
        let consent = Consent { until_ms, mirror: Some(mirror), ends: Some(ends) };
        state::save(&file(folder), &consent)?;
        given.insert(name.to_owned(), consent);
        Ok(until_ms)
    }

    /// A mirror has used its consent, and must repeat the change of roles.
    pub(super) fn renew(
        &self,
        name: &str,
        folder: &Path,
        mirror: Taker,
        clock: &dyn Clock,
    ) -> Result<(), ServerError> {
        self.give(name, folder, (mirror, ALLOWED_MS), clock).map(drop)
    }

    /// No mirror may take over any more: the owner has withdrawn the consent, or it was used.
    pub(super) fn end(&self, name: &str, folder: &Path) -> Result<(), ServerError> {
        let mut given = self.given.lock();
        // Even if the file cannot be removed.
        given.remove(name);
        remove(folder)
    }

    /// The volume is gone, and its folder with it.
    pub(super) fn forget(&self, name: &str) {
        self.given.lock().remove(name);
    }

    /// Whether a mirror may take over.
    pub(super) fn allows(&self, name: &str, mirror: Taker, clock: &dyn Clock) -> bool {
        self.given.lock().get(name).is_some_and(|consent| consent.is_for(mirror, clock))
    }
}

#[cfg(test)]
mod tests;
