//! Snapshots: created, deleted, listed.

use cairn_api::{self as api, ErrorKind};
use cairn_proto_csi::v1;
use tonic::Status;

use super::Controller;
use super::requests::{check_name, check_there, entries_max, signed};
use crate::cairn::if_there;
use crate::errors::status;
use crate::names::{parse_token, token_after};

impl Controller {
    fn show_snapshot(&self, found: &api::Snapshot) -> Result<Option<v1::Snapshot>, Status> {
        let Some((volume, snapshot)) = self.options.prefix.snapshot(&found.name) else { return Ok(None) };
        // Absent: it was deleted meanwhile.
        let ranges = if_there(self.cairn.ranges(volume, Some(snapshot), Some(snapshot), 0, 1))?;
        Ok(ranges.map(|ranges| v1::Snapshot {
            size_bytes: signed(ranges.size_bytes),
            snapshot_id: found.name.clone(),
            source_volume_id: volume.to_owned(),
            creation_time: Some(prost_types::Timestamp {
                seconds: signed(found.created_ms / 1000),
                nanos: i32::try_from(found.created_ms % 1000).unwrap_or(0) * 1_000_000,
            }),
            ready_to_use: true,
            ..v1::Snapshot::default()
        }))
    }

    /// Creates a snapshot of a volume.
    pub fn create_snapshot(
        &self,
        asked: &v1::CreateSnapshotRequest,
    ) -> Result<v1::CreateSnapshotResponse, Status> {
        check_name(&asked.name)?;
        check_there(&asked.source_volume_id, "source volume id")?;
        if let Some(key) = asked.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
            return Err(Status::invalid_argument(format!("unknown parameter {key}: there is none")));
        }
        let absent = || Status::not_found(format!("there is no volume {}", asked.source_volume_id));
        let volume = self.options.prefix.volume(&asked.source_volume_id).ok_or_else(absent)?;
        let name = self.options.prefix.name_of(&asked.name);
        let full = format!("{volume}@{name}");
        let _turn = self.turns.take(&name)?;
        self.cairn.disk(volume)?.ok_or_else(absent)?;
        for other in self.cairn.volumes()?.iter().filter(|other| other.snapshots > 0) {
            let taken = format!("{}@{name}", other.name);
            let found = self.cairn.snapshots_of(other)?.into_iter().find(|one| one.name == taken);
            match found {
                Some(found) if found.name == full => {
                    return Ok(v1::CreateSnapshotResponse { snapshot: self.show_snapshot(&found)? });
                }
                Some(_) => {
                    let message = format!("the snapshot {} exists of another volume", asked.name);
                    return Err(Status::already_exists(message));
                }
                None => {}
            }
        }
        let new = api::CreateSnapshot { name };
        let path = format!("/v1/volumes/{volume}/snapshots");
        let made: api::Snapshot = self.cairn.post(&path, &new).map_err(|error| status(&error))?;
        Ok(v1::CreateSnapshotResponse { snapshot: self.show_snapshot(&made)? })
    }

    /// Deletes a snapshot. One with clones gets a hidden name, and is deleted with the last clone.
    pub fn delete_snapshot(
        &self,
        asked: &v1::DeleteSnapshotRequest,
    ) -> Result<v1::DeleteSnapshotResponse, Status> {
        check_there(&asked.snapshot_id, "snapshot id")?;
        let done = v1::DeleteSnapshotResponse {};
        let Some((volume, snapshot)) = self.options.prefix.snapshot(&asked.snapshot_id) else {
            return Ok(done);
        };
        let _turn = self.turns.take(snapshot)?;
        let found = self.cairn.snapshots(volume)?;
        if !found.iter().any(|one| one.name == asked.snapshot_id) {
            return Ok(done);
        }
        let path = format!("/v1/volumes/{volume}/snapshots/{snapshot}");
        // Of a deleted volume the last snapshot is deleted with the volume: one without a disk and
        // without snapshots is one whose creation was cut off.
        let is_last = self.cairn.disk(volume)?.is_none() && found.len() == 1;
        if is_last {
            self.hide(volume, snapshot, &path)?;
        } else {
            match self.cairn.delete(&path) {
                Ok(()) => {}
                Err(error) if error.error == ErrorKind::Busy => {
                    if !self.is_cloned(&asked.snapshot_id)? {
                        return Err(status(&error));
                    }
                    self.hide(volume, snapshot, &path)?;
                }
                Err(error) => if_there::<()>(Err(error)).map(drop)?,
            }
        }
        let above = self.clear(volume)?;
        self.clear_origin(above.as_deref());
        Ok(done)
    }

    fn is_cloned(&self, snapshot: &str) -> Result<bool, Status> {
        let all: Vec<api::VolumeClone> = self.cairn.get("/v1/clones").map_err(|error| status(&error))?;
        Ok(all.iter().any(|clone| clone.of == snapshot))
    }

    /// Gives a snapshot a name that no list of CSI shows.
    fn hide(&self, volume: &str, snapshot: &str, path: &str) -> Result<(), Status> {
        for name in self.options.prefix.hidden(snapshot) {
            let rename = api::RenameSnapshot { name };
            let renamed: Result<api::Snapshot, _> = self.cairn.post(&format!("{path}/rename"), &rename);
            match renamed {
                Err(error) if error.error == ErrorKind::Taken => {}
                Err(error) => return if_there::<()>(Err(error)).map(drop),
                Ok(_) => return Ok(()),
            }
        }
        Err(Status::internal(format!("{volume} has too many deleted snapshots with the name {snapshot}")))
    }

    /// Lists snapshots.
    pub fn list_snapshots(
        &self,
        asked: &v1::ListSnapshotsRequest,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        let max = entries_max(asked.max_entries)?;
        let after = match asked.starting_token.as_str() {
            "" => None,
            token => {
                Some(parse_token(token).ok_or_else(|| Status::aborted("the starting token is unknown"))?)
            }
        };
        let wanted = |id: &str| asked.snapshot_id.is_empty() || asked.snapshot_id == id;
        let of = match asked.snapshot_id.as_str() {
            "" => asked.source_volume_id.as_str(),
            id => match self.options.prefix.snapshot(id) {
                Some((volume, _))
                    if asked.source_volume_id.is_empty() || asked.source_volume_id == volume =>
                {
                    volume
                }
                _ => return Ok(v1::ListSnapshotsResponse::default()),
            },
        };
        let mut ids = Vec::new();
        for volume in self.cairn.volumes()? {
            if volume.snapshots > 0 && (of.is_empty() || of == volume.name) {
                let found = self.cairn.snapshots_of(&volume)?;
                let ours = found.into_iter().filter(|one| self.options.prefix.snapshot(&one.name).is_some());
                ids.extend(ours.filter(|one| wanted(&one.name)));
            }
        }
        ids.retain(|one| after.is_none_or(|after| one.name.as_str() > after));
        ids.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut entries: Vec<v1::list_snapshots_response::Entry> = Vec::new();
        let mut next_token = String::new();
        let mut last = "";
        for found in &ids {
            if max.is_some_and(|max| entries.len() >= max) {
                next_token = token_after(last);
                break;
            }
            if let Some(snapshot) = self.show_snapshot(found)? {
                entries.push(v1::list_snapshots_response::Entry { snapshot: Some(snapshot) });
                last = &found.name;
            }
        }
        Ok(v1::ListSnapshotsResponse { entries, next_token })
    }

    /// One snapshot.
    pub fn snapshot(&self, asked: &v1::GetSnapshotRequest) -> Result<v1::GetSnapshotResponse, Status> {
        check_there(&asked.snapshot_id, "snapshot id")?;
        let absent = || Status::not_found(format!("there is no snapshot {}", asked.snapshot_id));
        let (volume, _) = self.options.prefix.snapshot(&asked.snapshot_id).ok_or_else(absent)?;
        let found = self.cairn.snapshots(volume)?;
        let found = found.iter().find(|one| one.name == asked.snapshot_id).ok_or_else(absent)?;
        let snapshot = self.show_snapshot(found)?.ok_or_else(absent)?;
        Ok(v1::GetSnapshotResponse { snapshot: Some(snapshot) })
    }
}
