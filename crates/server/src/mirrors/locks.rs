//! Locks of a mirror's snapshots against this server's own administrator, as in the compliance mode
//! of object stores.
//!
//! A snapshot that exists while a lock is in force stays until its age reaches the length of that
//! lock. A shorter lock, or none, applies only to later snapshots. Until then no command to this
//! server deletes or renames the snapshot: that waits for the end of the lock. The owner of the
//! lock key can lift the locks earlier, for a time that `cairn status` shows.
//!
//! The ends of the locks are kept with the mirror (`mirror.json`) and go along through every change
//! of its role and source.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_base::{SnapshotId, Timestamp};
use cairn_mirror::{Birth, Destination, Locked};
use cairn_volume::Inspection;
use chrono_tz::Tz;
use sha2::{Digest, Sha256};

use super::unread::UNTIL_SAID_MS;
use super::{Mirrors, Relation};
use crate::error::ServerError;
use crate::mirrors::document::{Born, MirrorDocument, millis, now_ms};
use crate::mirrors::role_error::RoleError;
use crate::schedules::timetable;
use crate::state;

mod commands;

/// A shorter lock key could be guessed.
const KEY_BYTES_MIN: usize = 16;
/// Time for which locks are lifted, by default.
const LIFTED_MS: u64 = 15 * 60_000;
/// Interval at which the births of locked snapshots are saved: time that passed while the server
/// was stopped does not count for a lock unless it is proven.
const NOTE_EVERY: Duration = Duration::from_secs(3600);

/// The stored form of a lock key; none for an empty one.
pub(super) fn digest(key: &str) -> Result<Option<String>, ServerError> {
    match key.len() {
        0 => Ok(None),
        1..KEY_BYTES_MIN => Err(ServerError::Invalid {
            fault: "the lock key is shorter than 16 bytes",
            next: "use a file with at least 16 random bytes, such as from `openssl rand -hex 32`",
        }),
        _ => Ok(Some(URL_SAFE_NO_PAD.encode(Sha256::digest(key.as_bytes())))),
    }
}

/// A moment for a person to read.
fn moment(at_ms: u64) -> String {
    let at = timetable::in_zone(at_ms, Tz::UTC);
    at.map(|at| at.format("%Y-%m-%d %H:%M UTC").to_string()).unwrap_or_default()
}

impl MirrorDocument {
    /// The lock that its owner has set. If only its existence is known, its length is unknown.
    pub(super) fn lock(&self) -> Option<Duration> {
        self.lock_ms.filter(|lock| *lock != UNTIL_SAID_MS).map(Duration::from_millis)
    }

    /// Writes down how long the snapshots stay.
    pub(super) fn note_births(&mut self, destination: &Destination) {
        let births = destination.births();
        let keeps = self.lock_ms.is_some() || births.iter().any(|birth| birth.lock.is_some());
        self.births = keeps.then(|| births.into_iter().map(Born::from).collect());
        self.births_ns = keeps.then(|| destination.volume().clock().now().0);
    }

    /// Takes over the locks of the volume's snapshots, when it gets another role or source.
    pub(super) fn locks_of(&mut self, before: &Self) {
        self.lock_ms = before.lock_ms;
        self.lock_key.clone_from(&before.lock_key);
        self.births.clone_from(&before.births);
        self.births_ns = before.births_ns;
    }
}

impl Relation {
    /// The present document, with the births of its snapshots.
    pub(super) fn known(&self) -> MirrorDocument {
        let mut known = self.document.lock().clone();
        known.note_births(&self.destination);
        known
    }

    /// Refuses another lock key while a snapshot is locked: otherwise the holder of only the token
    /// could lift the locks with it.
    pub(super) fn refuse_lock_key(&self) -> Result<(), ServerError> {
        let locked = self.destination.locked();
        match locked.is_empty() {
            true => Ok(()),
            false => Err(RoleError::LockKeyStays { volume: self.name.clone(), locked: locked.len() }.into()),
        }
    }
}

impl Mirrors {
    /// The snapshots of a volume whose locks are in force.
    pub(crate) fn locked(&self, name: &str) -> Vec<Locked> {
        let known = self.relations.lock().get(name).cloned();
        match known {
            Some(relation) => relation.destination.locked(),
            None => self.locked_by_file(&self.volumes.folder(name).join("mirror.json")),
        }
    }

    /// The same for a volume that is not open, according to its document. An unreadable one is
    /// ignored.
    fn locked_by_file(&self, path: &Path) -> Vec<Locked> {
        let document = state::load::<MirrorDocument>(path).ok().flatten();
        let Some(MirrorDocument { births: Some(births), births_ns: Some(looked), .. }) = document else {
            return Vec::new();
        };
        let births: Vec<Birth> = births.into_iter().map(Birth::from).collect();
        Birth::left(&births, Timestamp(looked), self.clock.now())
    }

    fn refuse(&self, name: &str, locked: &[Locked]) -> Result<(), ServerError> {
        let Some(last) = locked.iter().max_by_key(|one| one.left) else { return Ok(()) };
        let has_key =
            self.relations.lock().get(name).is_some_and(|known| known.document.lock().lock_key.is_some());
        Err(RoleError::Locked {
            volume: name.to_owned(),
            snapshot: last.name.clone(),
            others: locked.len() - 1,
            until: moment(now_ms(&*self.clock).saturating_add(millis(last.left))),
            has_key,
        }
        .into())
    }

    /// Refuses an operation that would destroy a volume with a locked snapshot.
    pub(crate) fn refuse_locked(&self, name: &str) -> Result<(), ServerError> {
        self.refuse(name, &self.locked(name))
    }

    /// Refuses to delete or rename a snapshot that is locked.
    pub(crate) fn refuse_locked_snapshot(&self, name: &str, snapshot: SnapshotId) -> Result<(), ServerError> {
        self.refuse_losing(name, &[snapshot])
    }

    /// Refuses an operation that would delete a locked snapshot.
    pub(crate) fn refuse_losing(&self, name: &str, lost: &[SnapshotId]) -> Result<(), ServerError> {
        let mut locked = self.locked(name);
        locked.retain(|one| lost.contains(&one.snapshot));
        self.refuse(name, &locked)
    }

    /// Refuses to bring a volume back to an instant before it had a snapshot that is locked.
    pub(crate) fn refuse_going_back(&self, name: &str, then: &Inspection) -> Result<(), ServerError> {
        let mut locked = self.locked(name);
        locked.retain(|one| one.snapshot.0 >= then.numbers.snapshot);
        self.refuse(name, &locked)
    }

    /// Refuses to give up a mirror's file while its previous generation has locks.
    pub(crate) fn refuse_forgetting_locks(&self, name: &str, previous: &Path) -> Result<(), ServerError> {
        let mut locked = self.locked_by_file(previous);
        if let Ok(open) = self.volumes.get(name) {
            locked.retain(|one| open.volume.snapshot(one.snapshot).is_some());
        }
        self.refuse(name, &locked)
    }

    /// Saves the births of snapshots from time to time: after a stop there is no other record of
    /// the server's running time.
    pub(super) fn note_locks(&self, relation: &Relation) {
        let now = self.clock.monotonic();
        {
            let mut live = relation.live.lock();
            let noted = *live.locks_noted.get_or_insert(now);
            if now.saturating_sub(noted) < NOTE_EVERY {
                return;
            }
            live.locks_noted = Some(now);
        }
        self.save_locks(relation);
    }

    pub(super) fn save_locks(&self, relation: &Relation) {
        if relation.destination.locked().is_empty() {
            return;
        }
        let mut document = relation.document.lock();
        document.note_births(&relation.destination);
        if let Err(error) = relation.save_known(&document) {
            tracing::warn!(mirror = relation.name, %error, "could not save the births of its locked snapshots");
        }
    }
}

#[cfg(test)]
mod tests;
