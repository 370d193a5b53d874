//! The API's commands for volumes, LUNs and snapshots: they look names up, respect sessions, and
//! name errors.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_api::{self as api, file_of_finding};
use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_files::{
    ChangeKind, LunInfo, NodeKind, Tree, TreeChange, TreeError, check_tree, path_bytes, path_text,
};
use cairn_history::HistoryView;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{CheckDepth, CheckProgress, Inspection, Role, Snapshot, VolumeError};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::bucket::error::BucketMirrorError;
use crate::mirrors::error::MirrorsError;
use crate::names;
use crate::names::{ExportName, IMAGE_PREFIX};
use crate::schedules;
use crate::volumes::NewVolume;
use crate::volumes::disks::{blocks_of, new_volume_id};
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::{find_snapshot, named};
use crate::work::background;

impl Server {
    pub(crate) fn create_volume(&self, request: &api::CreateVolume) -> Result<api::Volume, ServerError> {
        if let Some(bucket) = &request.bucket {
            return self.create_in_bucket(request, bucket);
        }
        if request.cache.is_some() {
            return Err(ServerError::Invalid {
                fault: "a cache is for a volume in a bucket",
                next: "give --bucket too, or leave out --cache-disk, --cache-size and --lag",
            });
        }
        let blocks = request.size_bytes.map(blocks_of).transpose()?;
        let now_ms = self.clock.now().0 / 1_000_000;
        // In place with the volume: a crash leaves both or neither.
        let schedule = |folder: &Path| schedules::write_default(folder, now_ms);
        let new = NewVolume {
            name: &request.name,
            id: new_volume_id(),
            role: Role::Normal,
            blocks,
            devices: &request.devices,
            log_device: request.log_device.as_deref(),
            history: request.history.as_ref(),
            beside: if request.no_schedule { None } else { Some(&schedule) },
        };
        self.refuse_second_history(&new)?;
        let open = self.volumes.create(&new)?;
        tracing::info!(volume = request.name, "made a volume");
        Ok(open.show())
    }

    pub(crate) fn move_log(&self, name: &str, request: &api::MoveLog) -> Result<api::Volume, ServerError> {
        let open = self.volumes.move_log(name, request.device.as_deref())?;
        tracing::info!(volume = name, device = request.device, "moved the intent log");
        Ok(open.show())
    }

    pub(crate) fn discard_log(&self, name: &str, dry_run: bool) -> Result<api::DiscardedLog, ServerError> {
        let outcome = self.volumes.discard_log(name, dry_run);
        // Also when nothing had to be thrown away.
        if let Ok(open) = self.volumes.get(name) {
            self.mirrors.take_in(&open);
        }
        outcome
    }

    /// Opens the volumes whose missing devices are available now, and then the adopted devices,
    /// which may be in one of those.
    pub(crate) fn open_waiting(&self) {
        self.volumes.open_waiting(&|open| self.take_in_volume(open));
        self.devices.open_waiting();
    }

    /// Whether a volume or a device waits for a disk that may come yet.
    pub(crate) fn waits_for_devices(&self) -> bool {
        self.volumes.waits_for_devices() || self.devices.waits_for_devices()
    }

    /// Starts the mirror and other state of a volume that was opened after the start.
    pub(crate) fn take_in_volume(&self, open: &Arc<OpenVolume>) {
        self.mirrors.take_in(open);
        self.bucket_mirrors.take_in(open);
        self.drills.read(&open.name);
        self.clear_left_dumps_of(open);
    }

    /// Checks that a volume can be deleted.
    pub(crate) fn check_delete_volume(&self, name: &str) -> Result<(), ServerError> {
        self.mirrors.refuse_if_followed(name)?;
        self.mirrors.refuse_locked(name)?;
        self.bucket_mirrors.refuse_if_mirrored(name)?;
        self.devices.refuse_adopted(name, None)?;
        self.refuse_while_dumped(name)?;
        if self.volumes.get(name).is_ok() {
            self.refuse_if_in_use(name, |export| export.volume == name)?;
            self.mounts.refuse_if_mounted(name, |volume, _| volume == name)?;
        }
        self.nfs_exports.refuse_if_exported(|volume, _| volume == name)?;
        self.volumes.refuse_if_cloned(name)
    }

    /// A dump whose volume is removed would end without a reason.
    pub(crate) fn refuse_while_dumped(&self, name: &str) -> Result<(), ServerError> {
        match self.jobs.is_running(&["image dump", "file dump"], name) {
            true => Err(ServerError::Busy { name: name.to_owned(), by: "a dump of it runs" }),
            false => Ok(()),
        }
    }

    pub(crate) fn delete_volume(&self, name: &str) -> Result<(), ServerError> {
        self.check_delete_volume(name)?;
        self.bucket_mirrors.end_homes(name)?;
        if let Err(error) = self.volumes.delete(name) {
            self.volumes.get(name).iter().for_each(|open| self.bucket_mirrors.take_in(open));
            return Err(error);
        }
        self.mirrors.forget(name);
        self.drills.forget_volume(name);
        self.plans.forget(|subject| subject.split('/').next() == Some(name));
        self.access.forget_volume(name)?;
        tracing::info!(volume = name, "deleted a volume");
        Ok(())
    }

    pub(crate) fn create_clone(&self, request: &api::CreateClone) -> Result<api::VolumeClone, ServerError> {
        let api::CreateClone { volume, snapshot, name } = request;
        let open = self.volumes.get(volume)?;
        // Its snapshot is kept between two consistency points, and one that waits for room would
        // have this wait, too.
        open.refuse_while_writes_wait()?;
        if let Ok(Some(image)) = open.past(snapshot) {
            for lun in open.luns.list_in(&image).map_err(ServerError::files(volume))? {
                self.refuse_second_target(&format!("{name}/{}", lun.name))?;
            }
        }
        self.clone_as(volume, snapshot, name, false)?;
        tracing::info!(clone = name, of = format!("{volume}@{snapshot}"), "made a clone");
        self.volumes.show_clone(name)
    }

    /// Makes a clone, with the same access settings as its parent.
    pub(crate) fn clone_as(
        &self,
        volume: &str,
        snapshot: &str,
        name: &str,
        temporary: bool,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        // Before it becomes visible.
        let settle = || self.access.copy(volume, name);
        self.volumes.clone_as(volume, snapshot, name, temporary, &settle)
    }

    pub(crate) fn check_delete_clone(&self, name: &str) -> Result<(), ServerError> {
        self.volumes.show_clone(name)?;
        self.check_delete_volume(name)
    }

    pub(crate) fn delete_clone(&self, name: &str) -> Result<(), ServerError> {
        self.volumes.show_clone(name)?;
        self.delete_volume(name)
    }

    pub(crate) fn grow_volume(
        &self,
        name: &str,
        request: &api::GrowVolume,
    ) -> Result<api::Volume, ServerError> {
        let open = self.writable(name)?;
        open.grow(request.size_bytes)?;
        Ok(open.show())
    }

    pub(crate) fn check_volume(&self, name: &str, deep: bool) -> Result<api::Job, ServerError> {
        let open = self.volumes.get(name)?;
        let name = name.to_owned();
        self.jobs.start("volume check", &name.clone(), move |progress| {
            background::step_back();
            progress.phase("checking");
            let block = BLOCK_SIZE as u64;
            let depth = if deep { CheckDepth::Everything } else { CheckDepth::Structures };
            let mut on = |at: CheckProgress| {
                // How much the structures are is not known before they were read.
                progress.bytes(at.blocks * block, if deep { at.blocks_total * block } else { 0 });
                match progress.cancelled().load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let report = open.volume.check_to(depth, &mut on).map_err(ServerError::volume(&name))?;
            if report.interrupted {
                return Err(ServerError::Cancelled);
            }
            open.find_paths(report.findings.iter().filter_map(file_of_finding));
            let mut findings: Vec<_> =
                report.findings.iter().map(|finding| open.show_finding(finding)).collect();
            progress.phase("checking files");
            let is_cancelled = || progress.cancelled().load(Ordering::Relaxed);
            findings.extend(tree_findings(&open, deep, &is_cancelled)?);
            Ok(Some(api::JobOutcome::Check(api::CheckResult { volume: name, findings })))
        })
    }

    pub(crate) fn scrub_volume(
        &self,
        name: &str,
        request: &api::ScrubRequest,
    ) -> Result<api::Scrub, ServerError> {
        self.volumes.get(name)?.set_scrub(request, &*self.clock)
    }

    pub(crate) fn list_luns(&self, volume: &str) -> Result<Vec<api::Lun>, ServerError> {
        let open = self.volumes.get(volume)?;
        let luns = open.luns.list().map_err(ServerError::files(volume))?;
        Ok(luns.iter().map(|lun| self.show_lun(volume, lun)).collect())
    }

    pub(crate) fn create_lun(&self, volume: &str, request: &api::CreateLun) -> Result<api::Lun, ServerError> {
        names::check("LUN", &request.name)?;
        let open = self.writable(volume)?;
        let name = format!("{volume}/{}", request.name);
        self.refuse_second_target(&name)?;
        open.refuse_without_room()?;
        open.luns.create(&request.name, request.size_bytes).map_err(ServerError::files(&name))?;
        let earlier_settings = self.is_shown(&open, &request.name);
        if !earlier_settings {
            // Snapshots that had an earlier one have gone since.
            self.access.forget(|export| export == name)?;
        }
        Ok(api::Lun { earlier_settings, ..self.find_lun(&open, &request.name)? })
    }

    pub(crate) fn resize_lun(
        &self,
        volume: &str,
        lun: &str,
        request: &api::ResizeLun,
    ) -> Result<api::Lun, ServerError> {
        let open = self.writable(volume)?;
        let name = format!("{volume}/{lun}");
        self.devices.refuse_adopted(volume, Some(lun))?;
        open.refuse_without_room()?;
        open.luns.resize(lun, request.size_bytes, request.allow_shrink).map_err(ServerError::files(&name))?;
        self.find_lun(&open, lun)
    }

    pub(crate) fn check_delete_lun(&self, volume: &str, lun: &str) -> Result<Arc<OpenVolume>, ServerError> {
        let open = self.writable(volume)?;
        let name = format!("{volume}/{lun}");
        self.find_lun(&open, lun)?;
        self.devices.refuse_adopted(volume, Some(lun))?;
        self.refuse_if_in_use(&name, |export| {
            export.volume == volume && export.snapshot.is_none() && export.lun == lun
        })?;
        open.refuse_without_room()?;
        Ok(open)
    }

    pub(crate) fn delete_lun(&self, volume: &str, lun: &str) -> Result<(), ServerError> {
        let open = self.check_delete_lun(volume, lun)?;
        let name = format!("{volume}/{lun}");
        open.luns.delete(lun).map_err(ServerError::files(&name))?;
        self.plans.forget(|subject| subject == name);
        self.access.retire(&name, self.is_shown(&open, lun))
    }

    /// Whether a LUN has settings, and the past of its volume has one of that name: a client
    /// without access to a LUN must not see its past, or the state after a rollback. An unreadable
    /// snapshot may have one.
    fn is_shown(&self, open: &OpenVolume, lun: &str) -> bool {
        let has = |snapshot: &Snapshot| {
            let image = open.volume.image(Some(snapshot.id));
            image.map_or(true, |image| open.luns.is_in(&image, lun).unwrap_or(true))
        };
        self.access.is_set(&format!("{}/{lun}", open.name))
            && (open.history().is_ok() || open.volume.snapshots().iter().any(has))
    }

    fn find_lun(&self, open: &OpenVolume, lun: &str) -> Result<api::Lun, ServerError> {
        let name = format!("{}/{lun}", open.name);
        open.luns.find(lun).map(|info| self.show_lun(&open.name, &info)).map_err(ServerError::files(&name))
    }

    fn show_lun(&self, volume: &str, lun: &LunInfo) -> api::Lun {
        let name = format!("{volume}/{}", lun.name);
        api::Lun {
            uris: self.uris(&name),
            target: self.target(&name),
            name,
            size_bytes: lun.bytes,
            created_ms: lun.created.0 / 1_000_000,
            earlier_settings: false,
        }
    }

    pub(crate) fn list_snapshots(&self, volume: &str) -> Result<Vec<api::Snapshot>, ServerError> {
        let open = self.volumes.get(volume)?;
        Ok(open.volume.snapshots().iter().map(|snapshot| show_snapshot(volume, snapshot)).collect())
    }

    pub(crate) fn create_snapshot(&self, volume: &str, name: &str) -> Result<api::Snapshot, ServerError> {
        names::check_snapshot(name)?;
        let open = self.writable(volume)?;
        open.refuse_name_of_view(name)?;
        let full = format!("{volume}@{name}");
        let make = || open.volume.create_snapshot(name);
        let snapshot = open.snapshot_with(make)?.map_err(named(volume, &full))?;
        Ok(show_snapshot(volume, &snapshot))
    }

    /// Checks that a snapshot can be deleted.
    pub(crate) fn check_delete_snapshot(&self, volume: &str, name: &str) -> Result<Snapshot, ServerError> {
        let open = self.writable(volume)?;
        let snapshot = find_snapshot(&open, name)?;
        let full = format!("{volume}@{name}");
        self.refuse_if_in_use(&full, |export| export.volume == volume && export.snapshot == Some(name))?;
        self.mounts.refuse_if_mounted(&full, |of, snapshot| of == volume && snapshot == Some(name))?;
        self.nfs_exports.refuse_if_exported(|of, snapshot| of == volume && snapshot == Some(name))?;
        self.refuse_if_held(volume, &snapshot)?;
        self.groups.refuse_needed(volume, name)?;
        self.mirrors.refuse_locked_snapshot(volume, snapshot.id)?;
        if open.volume.is_cloned(snapshot.id) {
            let source = cairn_volume::VolumeError::Cloned(snapshot.id);
            return Err(ServerError::Volumes(VolumesError::Volume { volume: volume.to_owned(), source }));
        }
        Ok(snapshot)
    }

    pub(crate) fn delete_snapshot(&self, volume: &str, name: &str) -> Result<api::Freed, ServerError> {
        let snapshot = self.check_delete_snapshot(volume, name)?;
        let (open, full) = (self.writable(volume)?, format!("{volume}@{name}"));
        open.refuse_without_room()?;
        let freed = open.volume.delete_snapshots(&[snapshot.id]).map_err(named(volume, &full))?;
        Ok(api::Freed { freed_bytes: freed * BLOCK_SIZE as u64 })
    }

    /// The space that a deletion of a snapshot would free, alone and with its neighbours.
    pub(crate) fn snapshot_frees(&self, volume: &str, name: &str) -> Result<api::SnapshotFrees, ServerError> {
        let open = self.volumes.get(volume)?;
        let snapshot = find_snapshot(&open, name)?;
        let full = format!("{volume}@{name}");
        let frees = |ids: &[SnapshotId]| {
            let blocks = open.volume.would_free(ids).map_err(named(volume, &full))?;
            Ok::<_, ServerError>(blocks * BLOCK_SIZE as u64)
        };
        let all = open.volume.snapshots();
        let place = all.iter().position(|one| one.id == snapshot.id);
        let earlier = place.and_then(|place| all.get(place.checked_sub(1)?));
        let later = place.and_then(|place| all.get(place + 1));
        let with = |other: &Snapshot| {
            let bytes = frees(&[snapshot.id, other.id])?;
            Ok::<_, ServerError>(api::FreesWith { name: format!("{volume}@{}", other.name), bytes })
        };
        let both = earlier.zip(later).map(|(one, other)| frees(&[one.id, snapshot.id, other.id]));
        Ok(api::SnapshotFrees {
            alone_bytes: frees(&[snapshot.id])?,
            with_earlier: earlier.map(with).transpose()?,
            with_later: later.map(with).transpose()?,
            with_both_bytes: both.transpose()?,
            name: full.clone(),
        })
    }

    /// The files that differ between two snapshots, or between one and the volume as it is.
    pub(crate) fn diff_snapshots(
        &self,
        volume: &str,
        from: &str,
        to: Option<&str>,
    ) -> Result<Vec<api::FileChange>, ServerError> {
        let open = self.volumes.get(volume)?;
        // A mirror shows a snapshot, perhaps not its newest one.
        let shown = if to.is_none() { self.groups.shown_by(&open)? } else { None };
        let to = to.or(shown.as_ref().map(|shown| shown.name.as_str()));
        let failed = |name: Option<&str>, error| {
            let called = name.map_or(volume.to_owned(), |name| format!("{volume}@{name}"));
            ServerError::tree(&called)(error)
        };
        let tree = |name: Option<&str>| -> Result<Option<Tree>, ServerError> {
            match Tree::of_image(open.image_of(name)?) {
                Err(TreeError::NoTree) => Ok(None),
                tree => tree.map(Some).map_err(|error| failed(name, error)),
            }
        };
        let (before, after) = (tree(Some(from))?, tree(to)?);
        let changes = match (&before, &after) {
            (None, None) => Vec::new(),
            (Some(before), Some(after)) => after.changes_since(before).map_err(|error| failed(to, error))?,
            // Before the first file was stored there is no tree.
            (None, Some(after)) => after.all_as(ChangeKind::Created).map_err(|error| failed(to, error))?,
            (Some(before), None) => {
                before.all_as(ChangeKind::Deleted).map_err(|error| failed(Some(from), error))?
            }
        };
        let from_root = |path: Option<Vec<u8>>| path.map(|path| [b"/", &path[..]].concat());
        let text = |path: &Option<Vec<u8>>| path.as_ref().map(|path| path_text(path));
        let raw = |path: &Option<Vec<u8>>| path.as_ref().and_then(|path| path_bytes(path));
        let show = |change: TreeChange| {
            let (path, from) = (from_root(change.path), from_root(change.from));
            api::FileChange {
                path: text(&path),
                path_bytes: raw(&path),
                change: match change.kind {
                    ChangeKind::Created => api::FileChangeKind::Created,
                    ChangeKind::Changed => api::FileChangeKind::Changed,
                    ChangeKind::Renamed => api::FileChangeKind::Renamed,
                    ChangeKind::Linked => api::FileChangeKind::Linked,
                    ChangeKind::Unlinked => api::FileChangeKind::Unlinked,
                    ChangeKind::Deleted => api::FileChangeKind::Deleted,
                },
                from: text(&from),
                from_bytes: raw(&from),
                number: change.file.0,
                directory: change.node == NodeKind::Directory,
            }
        };
        Ok(changes.into_iter().map(show).collect())
    }

    pub(crate) fn rename_snapshot(
        &self,
        volume: &str,
        name: &str,
        new_name: &str,
    ) -> Result<api::Snapshot, ServerError> {
        names::check_snapshot(new_name)?;
        let open = self.writable(volume)?;
        let snapshot = find_snapshot(&open, name)?;
        open.refuse_name_of_view(new_name)?;
        // Its users find it by its name.
        self.refuse_if_base(volume, name)?;
        self.groups.refuse_needed(volume, name)?;
        self.mirrors.refuse_locked_snapshot(volume, snapshot.id)?;
        // The next start would search for it under its mounted name.
        let before = format!("{volume}@{name}");
        self.mounts.refuse_if_mounted(&before, |of, snapshot| of == volume && snapshot == Some(name))?;
        self.nfs_exports.refuse_if_exported(|of, snapshot| of == volume && snapshot == Some(name))?;
        let full = format!("{volume}@{new_name}");
        open.refuse_without_room()?;
        open.volume.rename_snapshot(snapshot.id, new_name).map_err(named(volume, &full))?;
        Ok(show_snapshot(volume, &find_snapshot(&open, new_name)?))
    }

    /// Holds a snapshot, or releases it; only the mirror releases the base of its next update.
    pub(crate) fn hold_snapshot(
        &self,
        volume: &str,
        name: &str,
        held: bool,
    ) -> Result<api::Snapshot, ServerError> {
        let open = self.writable(volume)?;
        let snapshot = find_snapshot(&open, name)?;
        let full = format!("{volume}@{name}");
        if !held {
            self.refuse_if_base(volume, name)?;
        }
        open.refuse_without_room()?;
        open.volume.hold_snapshot(snapshot.id, held).map_err(named(volume, &full))?;
        Ok(show_snapshot(volume, &find_snapshot(&open, name)?))
    }

    /// Refuses to release or delete a snapshot that a mirror needs or may need for its next update.
    fn refuse_if_base(&self, volume: &str, name: &str) -> Result<(), ServerError> {
        if name.starts_with(MIRROR_PREFIX) {
            self.followers.check_known()?;
            self.peers.check_known()?;
        }
        let full = format!("{volume}@{name}");
        if let Some(mirror) = self.bucket_mirrors.owner_of(volume, name) {
            return Err(BucketMirrorError::HeldFor { name: full, mirror }.into());
        }
        let (followers, leftovers) = self.followers();
        let is_base = |base: Option<&str>| base.is_some_and(|base| base == name || base == full);
        let mirror =
            followers.iter().filter(|f| f.volume == volume && is_base(f.base.as_deref())).map(|f| &f.name);
        let left =
            leftovers.iter().filter(|l| l.volume == volume && is_base(l.base.as_deref())).map(|l| &l.name);
        match mirror.chain(left).next() {
            Some(mirror) => Err(ServerError::Mirrors(MirrorsError::HeldForMirror {
                name: full,
                volume: volume.to_owned(),
                mirror: mirror.clone(),
            })),
            None => Ok(()),
        }
    }

    /// Refuses to delete a held snapshot, and names the holder.
    fn refuse_if_held(&self, volume: &str, snapshot: &Snapshot) -> Result<(), ServerError> {
        if !snapshot.held {
            return Ok(());
        }
        self.refuse_if_base(volume, &snapshot.name)?;
        // Those of dumps have their own way out.
        if snapshot.name.starts_with(IMAGE_PREFIX) {
            return Ok(());
        }
        Err(ServerError::Volumes(VolumesError::SnapshotHeld { name: format!("{volume}@{}", snapshot.name) }))
    }

    /// Rolls back one volume that is not in a group failover.
    pub(crate) fn rollback_alone(&self, volume: &str, name: &str) -> Result<api::Snapshot, ServerError> {
        self.groups.refuse_if_unfinished(volume)?;
        self.rollback(volume, name)
    }

    /// Checks that one volume can be rolled back to a snapshot.
    pub(crate) fn check_rollback(&self, volume: &str, name: &str) -> Result<(), ServerError> {
        self.groups.refuse_if_unfinished(volume)?;
        find_snapshot(&*self.writable(volume)?, name)?;
        self.devices.refuse_adopted(volume, None)?;
        self.mounts.refuse_if_live(volume)
    }

    pub(crate) fn rollback(&self, volume: &str, name: &str) -> Result<api::Snapshot, ServerError> {
        let open = self.writable(volume)?;
        let snapshot = find_snapshot(&open, name)?;
        self.devices.refuse_adopted(volume, None)?;
        // The kernel's cache of mounted files would be mixed with the older state.
        let _still = self.mounts.keep_still(volume);
        self.mounts.refuse_if_live(volume)?;
        // A failover of a group continues despite mounts left from before.
        if self.groups.is_live(&open) {
            self.mounts.refuse_if_left(volume)?;
        }
        open.refuse_without_room()?;
        self.forget_dumps_past(&open, &snapshot)?;
        // The disks change under their clients, which must not continue with their caches.
        let mine = |export: &ExportName<'_>| export.volume == volume && export.snapshot.is_none();
        let closed = self.close_sessions(mine)?;
        let undo = open.volume.rollback(snapshot.id).map_err(named(volume, &format!("{volume}@{name}")))?;
        // Those that came back meanwhile.
        let closed = closed + self.end_sessions(mine);
        tracing::info!(volume, snapshot = name, closed, undo = undo.name, "rolled back");
        Ok(show_snapshot(volume, &undo))
    }

    /// Refuses a history of the name that an adopted device has: the name would be ambiguous for
    /// `cairn history`.
    pub(crate) fn refuse_second_history(&self, new: &NewVolume<'_>) -> Result<(), ServerError> {
        match self.devices.get(new.name) {
            Err(ServerError::NotFound { .. }) => Ok(()),
            _ if new.history.is_none() => Ok(()),
            _ => Err(ServerError::Taken { what: "device", name: new.name.to_owned() }),
        }
    }

    /// Refuses an instant that reverting a volume would refuse. While the view exists the instant
    /// stays; the returned state of the volume is that of the instant.
    fn check_bring_back(
        &self,
        open: &OpenVolume,
        at: &api::Instant,
    ) -> Result<(HistoryView, Inspection), ServerError> {
        let name = open.name.as_str();
        let found = self.volumes.check_revert(open, at)?;
        self.mirrors.refuse_going_back(name, &found.1)?;
        self.groups.refuse_alone(name)?;
        self.devices.refuse_adopted(name, None)?;
        self.mounts.refuse_if_mounted(name, |volume, _| volume == name)?;
        self.nfs_exports.refuse_if_exported(|volume, _| volume == name)?;
        self.mounts.refuse_if_left(name)?;
        Ok(found)
    }

    /// A preview of [`Server::bring_back`].
    pub(crate) fn would_bring_back(
        &self,
        name: &str,
        at: &api::Instant,
    ) -> Result<api::Reverted, ServerError> {
        let open = self.volumes.get(name)?;
        let at = &open.history()?.settled(at)?;
        let (held, _) = self.check_bring_back(&open, at)?;
        open.write_out_over_history()?;
        let sessions = self.sessions_of(|export| export.volume == name).len();
        Ok(api::Reverted::would(held.instant().0, sessions))
    }

    /// Reverts a volume to an instant of its history, excluding other operations; its clients
    /// reconnect.
    pub(crate) fn bring_back(&self, name: &str, at: &api::Instant) -> Result<api::Reverted, ServerError> {
        let open = self.volumes.get(name)?;
        let at = &open.history()?.settled(at)?;
        let _still = self.mounts.keep_still(name);
        let (_held, then) = self.check_bring_back(&open, at)?;
        // Refused before any session ends for nothing.
        open.write_out_over_history()?;
        // The caches of clients are from another time, also those of snapshots: later ones will not
        // exist.
        let mine = |export: &ExportName<'_>| export.volume == name;
        let mut ended = 0;
        let outcome = self.forget_dumps_since(&open, then.created, || {
            ended = self.close_sessions(mine)?;
            // Acknowledged data in memory must not be lost with a revert that is refused.
            open.write_out_over_history()?;
            self.volumes.revert(name, at)
        });
        let ended = ended + self.close_sessions_before(&open);
        let (opened, reverted) = outcome?;
        let (generation, findings) = (opened.volume.status().generation.0, reverted.findings.len());
        tracing::warn!(volume = name, generation, findings, undo = reverted.undo, "reverted to an instant");
        Ok(api::Reverted { sessions_ended: ended as u64, ..reverted })
    }

    /// The volume, unless it is a mirror, whose source determines its content.
    pub(crate) fn writable(&self, name: &str) -> Result<std::sync::Arc<OpenVolume>, ServerError> {
        let open = self.volumes.get(name)?;
        open.refuse_read_only_image()?;
        if open.is_destination() {
            return Err(ServerError::Mirrors(MirrorsError::IsDestination { volume: name.to_owned() }));
        }
        Ok(open)
    }
}

fn show_snapshot(volume: &str, snapshot: &Snapshot) -> api::Snapshot {
    api::Snapshot {
        name: format!("{volume}@{}", snapshot.name),
        id: snapshot.id.0,
        generation: snapshot.generation.0,
        created_ms: snapshot.created.0 / 1_000_000,
        held: snapshot.held,
    }
}

/// The faults of the tree of files of a volume, and with `deep` also of its snapshots.
fn tree_findings(
    open: &OpenVolume,
    deep: bool,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Vec<api::CheckFinding>, ServerError> {
    let snapshots = if deep { open.volume.snapshots() } else { Vec::new() };
    let states = std::iter::once(None).chain(snapshots.into_iter().map(Some));
    let mut findings = Vec::new();
    for snapshot in states {
        if is_cancelled() {
            return Err(ServerError::Cancelled);
        }
        let found = match open.volume.image(snapshot.as_ref().map(|snapshot| snapshot.id)) {
            Ok(image) => check_tree(&image),
            // Deleted meanwhile.
            Err(VolumeError::NoSuchSnapshot(_)) => continue,
            Err(error) => return Err(ServerError::volume(&open.name)(error)),
        };
        let named = snapshot.map(|snapshot| format!("{}@{}", open.name, snapshot.name));
        let of = named.as_ref().map(|named| format!(" [{named}]")).unwrap_or_default();
        let show = |message: String| api::CheckFinding {
            message: format!("{message}{of}"),
            lun: None,
            path: None,
            path_bytes: None,
            snapshot: named.clone(),
        };
        match found {
            Ok(found) => findings.extend(found.iter().map(|finding| show(finding.to_string()))),
            // The reason why it can't be read was reported before.
            Err(TreeError::Damaged(_)) => findings.push(show("the tree of files cannot be read".to_owned())),
            Err(TreeError::Volume(error)) => return Err(ServerError::volume(&open.name)(error)),
            Err(error) => findings.push(show(error.to_string())),
        }
    }
    Ok(findings)
}
