//! Volumes: created, cloned, expanded, deleted, listed.

use cairn_api as api;
use cairn_proto_csi::v1;
use tonic::Status;
use v1::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

use super::Controller;
use super::publish::held_by;
use super::requests::{
    Sizes, Use, check_name, check_there, entries_max, reserve, signed, size_min, space_of,
};
use crate::cairn::if_there;
use crate::errors::status;
use crate::names::{LUN, parse_token, token_after};

/// The origin of a new volume.
struct Origin {
    volume: String,
    /// In Cairn.
    snapshot: String,
    /// Bytes of the disk in it.
    bytes: u64,
}

impl Controller {
    /// Creates a volume, empty or with the content of a snapshot or of another volume.
    pub fn create_volume(&self, asked: &v1::CreateVolumeRequest) -> Result<v1::CreateVolumeResponse, Status> {
        check_name(&asked.name)?;
        let uses = Use::all(&asked.volume_capabilities)?;
        let sizes = Sizes::of(asked.capacity_range.as_ref())?;
        let percent = reserve(&asked.parameters)?;
        if !asked.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("there are no parameters that can be changed"));
        }
        let name = self.options.prefix.name_of(&asked.name);
        let _turn = self.turns.take(&name)?;
        let source = asked.volume_content_source.as_ref().and_then(|source| source.r#type.clone());
        let there = self.cairn.volume(&name)?;
        let origin = match &source {
            None => None,
            Some(source) => Some(self.origin(source, &name, there.is_some())?),
        };
        let least = origin.as_ref().map_or(0, |origin| origin.bytes).max(size_min(&uses));
        if let (Some(origin), Some(required)) = (&origin, sizes.required)
            && required < origin.bytes
        {
            let message =
                format!("the source has {} bytes, more than the {required} of the request", origin.bytes);
            return Err(Status::out_of_range(message));
        }
        let wanted = sizes.choose(least)?;
        let bytes = match there {
            None => self.make_volume(&name, origin.as_ref(), wanted, percent)?,
            Some(there) => self.complete_volume(&there, origin.as_ref(), &sizes, wanted, percent)?,
        };
        self.close_unless_held(&name)?;
        let volume = v1::Volume {
            capacity_bytes: signed(bytes),
            volume_id: name,
            content_source: source.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            ..v1::Volume::default()
        };
        Ok(v1::CreateVolumeResponse { volume: Some(volume) })
    }

    /// Finds the origin of a clone. For a clone of a volume, the snapshot is made when the clone
    /// does not exist yet.
    fn origin(&self, source: &Source, clone: &str, is_there: bool) -> Result<Origin, Status> {
        match source {
            Source::Snapshot(SnapshotSource { snapshot_id }) => {
                let absent = || Status::not_found(format!("there is no snapshot {snapshot_id}"));
                let (volume, snapshot) = self.options.prefix.snapshot(snapshot_id).ok_or_else(absent)?;
                let found = self.cairn.snapshots(volume)?;
                let full = format!("{volume}@{snapshot}");
                if !found.iter().any(|one| one.name == full) {
                    return Err(absent());
                }
                let bytes = self.bytes_in(volume, snapshot)?;
                let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
                Ok(Origin { volume, snapshot, bytes })
            }
            Source::Volume(VolumeSource { volume_id }) => {
                let absent = || Status::not_found(format!("there is no volume {volume_id}"));
                let volume = self.options.prefix.volume(volume_id).ok_or_else(absent)?;
                let disk = self.cairn.disk(volume)?.ok_or_else(absent)?;
                let snapshot = self.options.prefix.for_clone(clone);
                let full = format!("{volume}@{snapshot}");
                let mut found = self.cairn.snapshots(volume)?.iter().any(|one| one.name == full);
                if !found && !is_there {
                    let new = api::CreateSnapshot { name: snapshot.clone() };
                    let path = format!("/v1/volumes/{volume}/snapshots");
                    let _: api::Snapshot = self.cairn.post(&path, &new).map_err(|error| status(&error))?;
                    found = true;
                }
                let bytes = if found { self.bytes_in(volume, &snapshot)? } else { disk.size_bytes };
                Ok(Origin { volume: volume.to_owned(), snapshot, bytes })
            }
        }
    }

    /// Bytes of the disk of a volume in a snapshot of it.
    pub(super) fn bytes_in(&self, volume: &str, snapshot: &str) -> Result<u64, Status> {
        let found = self.cairn.ranges(volume, Some(snapshot), Some(snapshot), 0, 1);
        found.map(|found| found.size_bytes).map_err(|error| status(&error))
    }

    fn make_volume(
        &self,
        name: &str,
        origin: Option<&Origin>,
        bytes: u64,
        percent: u64,
    ) -> Result<u64, Status> {
        match origin {
            None => {
                let new = api::CreateVolume {
                    name: name.to_owned(),
                    size_bytes: Some(space_of(bytes, percent)),
                    devices: Vec::new(),
                    log_device: None,
                    history: None,
                    bucket: None,
                    cache: None,
                    no_schedule: true,
                };
                let _: api::Volume = self.cairn.post("/v1/volumes", &new).map_err(|error| status(&error))?;
                self.make_disk(name, bytes)?;
            }
            Some(origin) => {
                let new = api::CreateClone {
                    volume: origin.volume.clone(),
                    snapshot: origin.snapshot.clone(),
                    name: name.to_owned(),
                };
                let _: api::VolumeClone =
                    self.cairn.post("/v1/clones", &new).map_err(|error| status(&error))?;
                self.close_unless_held(name)?;
                self.grow(name, bytes, percent)?;
            }
        }
        Ok(bytes)
    }

    fn make_disk(&self, name: &str, bytes: u64) -> Result<(), Status> {
        let new = api::CreateLun { name: LUN.to_owned(), size_bytes: bytes };
        let path = format!("/v1/volumes/{name}/luns");
        self.cairn.post::<api::Lun>(&path, &new).map(drop).map_err(|error| status(&error))
    }

    /// Completes a volume that was begun by an earlier call, or checks that it is the wanted one.
    fn complete_volume(
        &self,
        there: &api::Volume,
        origin: Option<&Origin>,
        sizes: &Sizes,
        wanted: u64,
        percent: u64,
    ) -> Result<u64, Status> {
        let name = &there.name;
        if let Some(problem) = &there.problem {
            return Err(Status::unavailable(format!("the volume {name} is not in service: {problem}")));
        }
        let expected = origin.map(|origin| format!("{}@{}", origin.volume, origin.snapshot));
        if there.clone_of != expected {
            return Err(Status::already_exists(format!(
                "the volume {name} exists with another content source"
            )));
        }
        let Some(disk) = self.cairn.disk(name)? else {
            if there.snapshots > 0 {
                return Err(Status::failed_precondition(format!(
                    "the volume {name} was deleted, and others depend on its snapshots; use another name"
                )));
            }
            // It was cut off before it had a disk.
            self.grow_space(name, there.size_bytes, space_of(wanted, percent))?;
            self.make_disk(name, wanted)?;
            return Ok(wanted);
        };
        if sizes.admit(disk.size_bytes) {
            return Ok(disk.size_bytes);
        }
        // A clone that is as long as its source may have been cut off before it grew.
        if origin.is_some_and(|origin| origin.bytes == disk.size_bytes) && disk.size_bytes < wanted {
            self.grow(name, wanted, percent)?;
            return Ok(wanted);
        }
        let message = format!("the volume {name} exists with {} bytes", disk.size_bytes);
        Err(Status::already_exists(message))
    }

    /// Grows the disk of a volume to `bytes`, and first the volume; does nothing if it is longer.
    fn grow(&self, name: &str, bytes: u64, percent: u64) -> Result<u64, Status> {
        let absent = || Status::not_found(format!("there is no volume {name}"));
        let there = self.cairn.volume(name)?.ok_or_else(absent)?;
        let disk = self.cairn.disk(name)?.ok_or_else(absent)?;
        if disk.size_bytes >= bytes {
            return Ok(disk.size_bytes);
        }
        // As much more as the disk gets, so that a volume keeps its space for snapshots.
        let space = space_of(bytes, percent).max(there.size_bytes.saturating_add(bytes - disk.size_bytes));
        self.grow_space(name, there.size_bytes, space)?;
        let resize = api::ResizeLun { size_bytes: bytes, allow_shrink: false };
        let body = serde_json::to_value(&resize).map_err(|error| Status::internal(error.to_string()))?;
        let path = format!("/v1/volumes/{name}/luns/{LUN}");
        let done = self.cairn.api.call(crate::cairn::Verb::Patch, &path, Some(body));
        done.map_err(|error| status(&error))?;
        Ok(bytes)
    }

    fn grow_space(&self, name: &str, now: u64, space: u64) -> Result<(), Status> {
        if now >= space {
            return Ok(());
        }
        let grow = api::GrowVolume { size_bytes: Some(space) };
        let path = format!("/v1/volumes/{name}/grow");
        self.cairn.post::<api::Volume>(&path, &grow).map(drop).map_err(|error| status(&error))
    }

    /// Makes a volume larger. It may be published.
    pub fn expand_volume(
        &self,
        asked: &v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let range = asked.capacity_range.as_ref();
        let sizes = Sizes::of(Some(range.ok_or_else(|| Status::invalid_argument("there is no size"))?))?;
        let required = sizes.required.ok_or_else(|| Status::invalid_argument("there is no required size"))?;
        let absent = || Status::not_found(format!("there is no volume {}", asked.volume_id));
        let name = self.options.prefix.volume(&asked.volume_id).ok_or_else(absent)?;
        let _turn = self.turns.take(name)?;
        let disk = self.cairn.disk(name)?.ok_or_else(absent)?;
        let bytes = match disk.size_bytes >= required {
            true => disk.size_bytes,
            false => self.grow(name, sizes.choose(0)?, 0)?,
        };
        Ok(v1::ControllerExpandVolumeResponse {
            capacity_bytes: signed(bytes),
            node_expansion_required: true,
        })
    }

    /// Deletes a volume. One with snapshots, or with clones, loses its disk at once and the rest
    /// when the last of them is deleted.
    pub fn delete_volume(&self, asked: &v1::DeleteVolumeRequest) -> Result<v1::DeleteVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let done = v1::DeleteVolumeResponse {};
        let Some(name) = self.options.prefix.volume(&asked.volume_id) else { return Ok(done) };
        let _turn = self.turns.take(name)?;
        let Some(there) = self.cairn.volume(name)? else { return Ok(done) };
        if let Some(holder) = self.cairn.export(name)?.as_ref().and_then(|export| held_by(name, export)) {
            let message = format!("the volume {name} is published to the node {}", holder.node.name);
            return Err(Status::failed_precondition(message));
        }
        let is_needed = self.has_live_snapshot(&there)?;
        let deleted = match is_needed {
            true => false,
            false => match self.cairn.delete(&format!("/v1/volumes/{name}")) {
                Ok(()) => true,
                Err(_) if self.has_clone(name)? => false,
                Err(error) => if_there::<()>(Err(error)).map(|_| true)?,
            },
        };
        if !deleted {
            if_there(self.cairn.delete(&format!("/v1/volumes/{name}/luns/{LUN}")))?;
            return Ok(done);
        }
        self.clear_origin(there.clone_of.as_deref());
        Ok(done)
    }

    fn has_live_snapshot(&self, volume: &api::Volume) -> Result<bool, Status> {
        let found = self.cairn.snapshots_of(volume)?;
        Ok(found.iter().any(|one| self.options.prefix.snapshot(&one.name).is_some()))
    }

    fn has_clone(&self, volume: &str) -> Result<bool, Status> {
        let all: Vec<api::VolumeClone> = self.cairn.get("/v1/clones").map_err(|error| status(&error))?;
        Ok(all.iter().any(|clone| clone.of.split('@').next() == Some(volume)))
    }

    /// Deletes the rest of the origin of a deleted clone, and so on up to its own origin.
    /// A failure leaves it for the next start of a controller.
    pub(super) fn clear_origin(&self, origin: Option<&str>) {
        let mut next = origin.map(str::to_owned);
        while let Some(origin) = next.take() {
            let volume = origin.split('@').next().unwrap_or_default();
            if !self.options.prefix.owns(volume) {
                return;
            }
            match self.clear(volume) {
                Ok(above) => next = above,
                Err(error) => tracing::warn!(volume, %error, "the rest of a deleted volume stays for now"),
            }
        }
    }

    /// Deletes the hidden snapshots of a volume that no clone needs, and the volume if it is
    /// deleted for CSI and nothing depends on it any more. Returns the origin of a deleted volume.
    pub(super) fn clear(&self, volume: &str) -> Result<Option<String>, Status> {
        let Some(there) = self.cairn.volume(volume)? else { return Ok(None) };
        let snapshots = self.cairn.snapshots_of(&there)?;
        let of = |full: &str| full.split_once('@').map_or(String::new(), |(_, name)| name.to_owned());
        let names: Vec<String> = snapshots.iter().map(|one| of(&one.name)).collect();
        let is_deleted = self.cairn.disk(volume)?.is_none()
            // One without disk and snapshots is one whose creation was cut off. A clone is created
            // with its disk.
            && (!names.is_empty() || there.clone_of.is_some())
            && !names.iter().any(|name| self.options.prefix.owns(name));
        // The server refuses while there is a clone.
        if is_deleted && self.cairn.delete(&format!("/v1/volumes/{volume}")).is_ok() {
            return Ok(there.clone_of);
        }
        for name in names.iter().filter(|name| self.options.prefix.is_hidden(name)) {
            // The last snapshot goes with the volume: one without disk and snapshots is one whose
            // creation was cut off.
            if !is_deleted {
                let _ = self.cairn.delete(&format!("/v1/volumes/{volume}/snapshots/{name}"));
            }
        }
        Ok(None)
    }

    /// Clears the rests of deleted volumes and snapshots that an earlier controller left.
    pub fn clear_all(&self) -> Result<(), Status> {
        for volume in self.cairn.volumes()?.into_iter().filter(|volume| volume.snapshots > 0) {
            let above = self.clear(&volume.name)?;
            self.clear_origin(above.as_deref());
        }
        Ok(())
    }

    /// Lists volumes.
    pub fn list_volumes(&self, asked: &v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, Status> {
        let max = entries_max(asked.max_entries)?;
        let after = match asked.starting_token.as_str() {
            "" => None,
            token => {
                Some(parse_token(token).ok_or_else(|| Status::aborted("the starting token is unknown"))?)
            }
        };
        let exports = self.cairn.exports()?;
        let rest = exports.iter().filter_map(|export| Some((self.cairn.volume_of(export)?, export)));
        let mut rest = rest.filter(|(name, _)| after.is_none_or(|after| *name > after));
        let entry = |(name, export): (&str, &api::Export)| v1::list_volumes_response::Entry {
            volume: Some(v1::Volume {
                capacity_bytes: signed(export.size_bytes),
                volume_id: name.to_owned(),
                ..v1::Volume::default()
            }),
            status: Some(v1::list_volumes_response::VolumeStatus {
                published_node_ids: held_by(name, export).iter().map(|held| held.node.to_string()).collect(),
            }),
        };
        let entries: Vec<_> = rest.by_ref().take(max.unwrap_or(usize::MAX)).map(entry).collect();
        let last = entries.last().and_then(|entry| entry.volume.as_ref());
        let next_token = match (rest.next(), last) {
            (Some(_), Some(last)) => token_after(&last.volume_id),
            _ => String::new(),
        };
        Ok(v1::ListVolumesResponse { entries, next_token })
    }

    /// The free space of the server. Volumes take space as they fill.
    pub fn capacity(&self, asked: &v1::GetCapacityRequest) -> Result<v1::GetCapacityResponse, Status> {
        reserve(&asked.parameters)?;
        if Use::all(&asked.volume_capabilities).is_err() && !asked.volume_capabilities.is_empty() {
            return Ok(v1::GetCapacityResponse::default());
        }
        let found: api::Status = self.cairn.get("/v1/status").map_err(|error| status(&error))?;
        let free = found.room.map_or(0, |room| room.free_bytes);
        Ok(v1::GetCapacityResponse { available_capacity: signed(free), ..v1::GetCapacityResponse::default() })
    }

    /// Whether a volume can be used in these ways.
    pub fn validate(
        &self,
        asked: &v1::ValidateVolumeCapabilitiesRequest,
    ) -> Result<v1::ValidateVolumeCapabilitiesResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        if asked.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("there is no volume capability"));
        }
        let absent = || Status::not_found(format!("there is no volume {}", asked.volume_id));
        let name = self.options.prefix.volume(&asked.volume_id).ok_or_else(absent)?;
        self.cairn.disk(name)?.ok_or_else(absent)?;
        let unsupported = |error: Status| v1::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: error.message().to_owned(),
        };
        if let Err(error) = Use::all(&asked.volume_capabilities).and_then(|_| reserve(&asked.parameters)) {
            return Ok(unsupported(error));
        }
        let confirmed = v1::validate_volume_capabilities_response::Confirmed {
            volume_context: asked.volume_context.clone(),
            volume_capabilities: asked.volume_capabilities.clone(),
            parameters: asked.parameters.clone(),
            mutable_parameters: asked.mutable_parameters.clone(),
        };
        Ok(v1::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }
}
