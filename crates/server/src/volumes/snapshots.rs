//! Snapshots of an open volume, by name.

use cairn_volume::Snapshot;

use crate::error::ServerError;
use crate::volumes::open::OpenVolume;

/// A closure for `map_err` that knows which snapshot it is about.
pub(crate) fn named<'a>(
    volume: &'a str,
    full: &'a str,
) -> impl Fn(cairn_volume::VolumeError) -> ServerError + 'a {
    move |source| match source {
        cairn_volume::VolumeError::NameTaken => {
            ServerError::Taken { what: "snapshot", name: full.to_owned() }
        }
        source => ServerError::volume(volume)(source),
    }
}

pub(crate) fn find_snapshot(open: &OpenVolume, name: &str) -> Result<Snapshot, ServerError> {
    let found = open.volume.snapshots().into_iter().find(|snapshot| snapshot.name == name);
    found.ok_or_else(|| open.no_snapshot(name))
}
