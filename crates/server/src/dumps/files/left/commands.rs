//! Commands on the leftovers of dumps of files: the methods of the server for it.

use std::sync::Arc;

use cairn_volume::{Snapshot, VolumeError};

use crate::daemon::server::Server;
use crate::dumps::files::FileDumpsDocument;
use crate::dumps::files::left::change;
use crate::error::ServerError;
use crate::state;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;

impl Server {
    /// Deletes the snapshots that dumps have left in all volumes, after the death of a server. Runs
    /// after the clones and the mounts are open, which may use them.
    pub(crate) fn clear_left_dumps(&self) {
        self.volumes.all().iter().for_each(|open| self.clear_left_dumps_of(open));
    }

    /// The same for one volume, while dumps of it may be running.
    pub(crate) fn clear_left_dumps_of(&self, open: &Arc<OpenVolume>) {
        // On a mirror the source decides which snapshots there are.
        if open.is_destination() {
            return;
        }
        if let Err(error) = self.take_left_away(open) {
            tracing::warn!(volume = open.name, %error, "could not delete the snapshots that dumps have left");
        }
    }

    fn take_left_away(&self, open: &Arc<OpenVolume>) -> Result<(), ServerError> {
        let path = self.dates_path(&open.name);
        let left: Vec<String> = {
            let at_work = open.dates.lock();
            let noted = state::load::<FileDumpsDocument>(&path)?.unwrap_or_default().making;
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
                        tracing::info!(
                            volume = open.name,
                            snapshot = name,
                            "deleted a snapshot that a dump has left"
                        );
                    }
                    Err(ServerError::Volumes(VolumesError::Volume {
                        source: VolumeError::NoSuchSnapshot(_),
                        ..
                    })) => {}
                    Err(error) => return Err(error),
                },
                // It was never created, or a user has deleted or renamed it.
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
