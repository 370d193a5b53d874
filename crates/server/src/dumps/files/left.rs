//! Snapshots that dumps make for themselves, and those that a server which died has left.
//!
//! Each is noted in `dates.json` before it is created, and the note is removed after it. So the
//! note identifies the leftovers of a dump. A snapshot of such a name without a note belongs to an
//! owner, and is never touched: it is from a schedule with such a label, or from the time when
//! owners could assign such names.
//!
//! One that is in use by now (it is held, cloned, mounted, or has a session) stays, with its note.
//! The next dump and the next start check it again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_volume::{Snapshot, VolumeError};

use super::FileDumpsDocument;
use crate::error::ServerError;
use crate::names::DUMP_PREFIX;
use crate::peers::token::random_name;
use crate::state;
use crate::volumes::open::OpenVolume;

mod commands;

/// A snapshot that a dump makes for itself. [`Own::end`] deletes it; if that is not called, or
/// fails, the next dump deletes it.
pub(super) struct Own {
    open: Arc<OpenVolume>,
    path: PathBuf,
    name: String,
}

impl Own {
    /// Makes it, with the hooks of the volume around it.
    pub(super) fn make(open: &Arc<OpenVolume>, path: &Path) -> Result<(Self, Snapshot), ServerError> {
        let name = format!("{DUMP_PREFIX}{}", &random_name()[..8]);
        // A note of a name that an owner uses would let the owner's snapshot be deleted.
        if open.volume.snapshot_named(&name).is_some() {
            return Err(ServerError::Taken { what: "snapshot", name: format!("{}@{name}", open.name) });
        }
        change(open, path, |at_work, document| {
            at_work.insert(name.clone());
            document.making.push(name.clone());
        })?;
        let own = Self { open: open.clone(), path: path.to_owned(), name };
        let make = || open.volume.create_snapshot(&own.name);
        let failed = ServerError::volume(&open.name);
        match open.snapshot_with(make).and_then(|made| made.map_err(failed)) {
            Ok(snapshot) => Ok((own, snapshot)),
            Err(error) => {
                own.end();
                Err(error)
            }
        }
    }

    /// Deletes it.
    pub(super) fn end(self) {
        let volume = &self.open.volume;
        let deleted = match volume.snapshot_named(&self.name) {
            Some(snapshot) => volume.delete_snapshots(&[snapshot.id]).map(drop),
            None => Ok(()),
        };
        let is_gone = matches!(deleted, Ok(()) | Err(VolumeError::NoSuchSnapshot(_)));
        if let Err(error) = deleted {
            tracing::warn!(volume = self.open.name, snapshot = self.name, %error, "a dump's snapshot stays until the next dump");
        }
        let noted = change(&self.open, &self.path, |at_work, document| {
            at_work.remove(&self.name);
            if is_gone {
                document.making.retain(|name| *name != self.name);
            }
        });
        if let Err(error) = noted {
            tracing::warn!(volume = self.open.name, snapshot = self.name, %error, "the record of a dump's snapshot stays until the next dump");
        }
    }
}

/// Changes the content of `dates.json`. The names at work in memory are changed in any case.
fn change(
    open: &OpenVolume,
    path: &Path,
    by: impl FnOnce(&mut HashSet<String>, &mut FileDumpsDocument),
) -> Result<(), ServerError> {
    let mut at_work = open.dates.lock();
    let loaded = state::load::<FileDumpsDocument>(path);
    let (mut document, failed) = match loaded {
        Ok(document) => (document.unwrap_or_default(), None),
        Err(error) => (FileDumpsDocument::default(), Some(error)),
    };
    by(&mut at_work, &mut document);
    match failed {
        None => state::save(path, &document),
        Some(error) => Err(error),
    }
}
