//! Snapshots that dumps make for themselves, and those that a server which died has left.
//!
//! Each is noted in `dates.json` before it is made, and the note goes after it. So what a dump has left is known by its note; a snapshot of such a name without one is an owner's (of a schedule
//! that is labelled so, or of the time when owners could give such names), and is never touched.
//!
//! One that somebody uses by now (it is held, cloned, mounted, or has a session) stays, with its note. The next dump and the next start look at it again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_volume::{Snapshot, VolumeError};

use super::{DUMP_PREFIX, Document};
use crate::error::ServerError;
use crate::server::Server;
use crate::state;
use crate::token::random_name;
use crate::volumes::OpenVolume;

/// A snapshot that a dump makes for itself. It goes by [`Own::end`]; when that does not come, or fails, the next dump takes it away.
pub(super) struct Own {
    open: Arc<OpenVolume>,
    path: PathBuf,
    name: String,
}

impl Own {
    /// Makes it, with the hooks of the volume around it.
    pub(super) fn make(open: &Arc<OpenVolume>, path: &Path) -> Result<(Self, Snapshot), ServerError> {
        let name = format!("{DUMP_PREFIX}{}", &random_name()[..8]);
        // A note of a name that an owner has would give his away.
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
            tracing::warn!(volume = self.open.name, snapshot = self.name, %error, "a dump's snapshot stays noted until the next dump");
        }
    }
}

/// Changes what `dates.json` says. Of the two the names at work are changed in any case.
fn change(
    open: &OpenVolume,
    path: &Path,
    by: impl FnOnce(&mut HashSet<String>, &mut Document),
) -> Result<(), ServerError> {
    let mut at_work = open.dates.lock();
    let loaded = state::load::<Document>(path);
    let (mut document, failed) = match loaded {
        Ok(document) => (document.unwrap_or_default(), None),
        Err(error) => (Document::default(), Some(error)),
    };
    by(&mut at_work, &mut document);
    match failed {
        None => state::save(path, &document),
        Some(error) => Err(error),
    }
}

impl Server {
    /// Takes away what dumps have left in any volume whose server died. After the clones and the mounts are there, which may use it.
    pub(crate) fn clear_left_dumps(&self) {
        self.volumes.all().iter().for_each(|open| self.clear_left_dumps_of(open));
    }

    /// The same of one volume, beside dumps of it that are at work.
    pub(crate) fn clear_left_dumps_of(&self, open: &Arc<OpenVolume>) {
        // On a mirror the source decides which snapshots there are.
        if open.is_destination() {
            return;
        }
        if let Err(error) = self.take_left_away(open) {
            tracing::warn!(volume = open.name, %error, "what dumps have left is not taken away");
        }
    }

    fn take_left_away(&self, open: &Arc<OpenVolume>) -> Result<(), ServerError> {
        let path = self.dates_path(&open.name);
        let left: Vec<String> = {
            let at_work = open.dates.lock();
            let noted = state::load::<Document>(&path)?.unwrap_or_default().making;
            noted.into_iter().filter(|name| !at_work.contains(name)).collect()
        };
        for name in left {
            match open.volume.snapshot_named(&name) {
                Some(snapshot) if self.mirrors.refuse_locked_snapshot(&open.name, snapshot.id).is_err() => {}
                Some(snapshot) if self.is_used(open, &snapshot) => {
                    tracing::info!(
                        volume = open.name,
                        snapshot = name,
                        "a snapshot that a dump has left is in use, and stays"
                    );
                    continue;
                }
                Some(snapshot) => match open.write_out_over_history().and_then(|()| {
                    let gone = open.volume.delete_snapshots(&[snapshot.id]);
                    gone.map_err(ServerError::volume(&open.name))
                }) {
                    Ok(_) => {
                        tracing::info!(volume = open.name, snapshot = name, "took away what a dump has left");
                    }
                    Err(ServerError::Volume { source: VolumeError::NoSuchSnapshot(_), .. }) => {}
                    Err(error) => return Err(error),
                },
                // It was never made, or somebody has deleted or renamed it.
                None => {}
            }
            change(open, &path, |_, document| document.making.retain(|noted| *noted != name))?;
        }
        Ok(())
    }

    fn is_used(&self, open: &OpenVolume, snapshot: &Snapshot) -> bool {
        let (volume, name) = (open.name.as_str(), snapshot.name.as_str());
        let full = format!("{volume}@{name}");
        let of =
            |export: &crate::names::ExportName<'_>| export.volume == volume && export.snapshot == Some(name);
        snapshot.held
            || open.volume.is_cloned(snapshot.id)
            || self.refuse_if_in_use(&full, of).is_err()
            || self.mounts.refuse_if_mounted(&full, |of, shown| of == volume && shown == Some(name)).is_err()
    }
}
