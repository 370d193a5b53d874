//! The server's commands for adopted devices.

use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};

use crate::daemon::server::Server;
use crate::devices::open::OpenDevice;
use crate::error::ServerError;
use crate::exports::error::ExportsError;
use crate::exports::target_names::present_of;
use crate::volumes::VolumeView;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

impl Server {
    pub(crate) fn list_devices(&self) -> Vec<api::Device> {
        let mut devices = self.devices.list(&|name| self.uris(name));
        // A closed device has no known length.
        for device in devices.iter_mut().filter(|device| device.size_bytes > 0) {
            device.target = Some(self.target(&device.name));
        }
        devices
    }

    pub(crate) fn adopt_device(&self, request: &api::AdoptDevice) -> Result<api::Device, ServerError> {
        let lun = |place: &str| place.strip_prefix("lun:").map(str::to_owned);
        let luns = [lun(&request.origin), request.history.as_deref().and_then(lun)];
        for lun in luns.iter().flatten() {
            // Its clients' writes would get past the history, or into it.
            self.refuse_open_export(lun)?;
        }
        self.refuse_second_target(&request.name)?;
        if self.devices.is_free(&request.name) {
            // Settings that a kill may have left of an earlier device of that name. If the origin
            // is a LUN, the settings of the LUN apply.
            self.access.forget(|export| present_of(export) == request.name)?;
        }
        self.devices.adopt(request)?;
        // Sessions that were opened in between.
        for lun in luns.iter().flatten() {
            self.end_late(lun);
        }
        let device = self.devices.show(&request.name, &|name| self.uris(name))?;
        Ok(api::Device { target: Some(self.target(&device.name)), ..device })
    }

    /// True for the name of a volume that no adopted device has.
    fn is_volume(&self, name: &str) -> bool {
        matches!(self.devices.get(name), Err(ServerError::NotFound { .. }))
            && !matches!(self.volumes.get(name), Err(ServerError::NotFound { .. }))
    }

    /// The device of that name, or the one under the volume of that name.
    fn remembering(&self, name: &str) -> Result<Arc<OpenDevice>, ServerError> {
        if self.is_volume(name) { self.volumes.get(name)?.history() } else { self.devices.get(name) }
    }

    pub(crate) fn show_history(&self, name: &str) -> Result<api::HistoryStatus, ServerError> {
        // A history under a volume is not an export.
        let exported = !self.is_volume(name);
        let uris = |name: &str| if exported { self.uris(name) } else { Vec::new() };
        let mut status = self.remembering(name)?.show_history(&uris);
        if !exported {
            let open = self.volumes.get(name)?;
            let views = open.views();
            status.views = views.iter().map(|(view, shown)| self.show_view(&open, view, shown)).collect();
            status.views.extend(open.closed_views());
        }
        Ok(status)
    }

    /// Names the present instant of a device; for a volume, including all earlier writes.
    pub(crate) fn create_mark(
        &self,
        name: &str,
        request: &api::CreateMark,
    ) -> Result<api::Mark, ServerError> {
        let device = self.remembering(name)?;
        if self.is_volume(name) {
            let open = self.volumes.get(name)?;
            if !open.is_destination() {
                open.refuse_without_room()?;
            }
        }
        device.mark(request)
    }

    /// Takes the store of a history as it is, which is older than it was.
    pub(crate) fn accept_older(
        &self,
        name: &str,
        request: &api::AcceptOlder,
    ) -> Result<api::AcceptedOlder, ServerError> {
        if !self.is_volume(name) {
            return self.devices.accept_older(name, request.dry_run);
        }
        self.opening(name, || self.volumes.accept_older(name, request.dry_run))
    }

    pub(crate) fn set_window(
        &self,
        name: &str,
        window: &api::Window,
    ) -> Result<api::HistoryStatus, ServerError> {
        let device = self.remembering(name)?;
        device.set_window(window)?;
        self.show_history(name)
    }

    /// Makes the store of a history larger.
    pub(crate) fn grow_history(
        &self,
        name: &str,
        request: &api::GrowHistory,
    ) -> Result<api::HistoryStatus, ServerError> {
        self.remembering(name)?.grow_store(request.size_bytes)?;
        self.show_history(name)
    }

    /// Refuses while clients have the export open.
    fn refuse_open_export(&self, name: &str) -> Result<(), ServerError> {
        match self.sessions_named(name) {
            0 => Ok(()),
            sessions => Err(ServerError::Exports(ExportsError::InUse { name: name.to_owned(), sessions })),
        }
    }

    /// The same under both names that a device on a LUN has.
    fn refuse_open_device(&self, device: &str) -> Result<(), ServerError> {
        self.refuse_open_export(device)?;
        self.devices.lun_of(device).map_or(Ok(()), |lun| self.refuse_open_export(&lun))
    }

    pub(crate) fn release_device(
        self: &Arc<Self>,
        device: &str,
        query: api::ReleaseQuery,
    ) -> Result<api::Job, ServerError> {
        self.refuse_open_device(device)?;
        let lun = self.devices.lun_of(device);
        let without_history = query.without_history == Some(true);
        let given_up = without_history && self.devices.release_without_history(device)?;
        if given_up || self.devices.release_plain(device)? {
            [Some(device), lun.as_deref()].into_iter().flatten().for_each(|name| self.end_late(name));
            self.plans.forget(|subject| subject == device);
            self.access.forget(|name| present_of(name) == device)?;
            return self.jobs.start("release", device, |_| Ok(None));
        }
        let Some(open) = self.devices.begin_release(device)? else {
            self.access.forget(|name| present_of(name) == device)?;
            return self.jobs.start("release", device, |_| Ok(None));
        };
        // Sessions that were opened in between; no later ones can be.
        if let Err(unfinished) = self.close_device(device, lun.as_deref()) {
            self.devices.stop_release(&open, &unfinished);
            return Err(unfinished);
        }
        let (devices, access, plans) = (self.devices.clone(), self.access.clone(), self.plans.clone());
        let mine = open.clone();
        let name = device.to_owned();
        let work = move |progress: &Progress| {
            devices.release(&mine, progress)?;
            plans.forget(|subject| subject == name);
            // Not earlier: if the release stops, access to the device must stay restricted as
            // before.
            access.forget(|export| present_of(export) == name).map(|()| None)
        };
        let begun = self.jobs.start("release", device, work);
        begun.inspect_err(|error| self.devices.stop_release(&open, error))
    }

    pub(crate) fn create_view(
        &self,
        device: &str,
        request: &api::CreateView,
    ) -> Result<api::View, ServerError> {
        if self.is_volume(device) {
            return self.create_volume_view(device, request);
        }
        let (view, at_ns, writable) = self.devices.show_instant(device, request)?;
        let name = format!("{device}@{view}");
        Ok(api::View { uris: self.uris(&name), name, at_ns, writable, problem: None })
    }

    /// Shows all of a volume at an instant.
    fn create_volume_view(&self, volume: &str, request: &api::CreateView) -> Result<api::View, ServerError> {
        self.remembering(volume)?;
        if request.writable {
            return Err(ServerError::Volumes(VolumesError::OverHistory {
                volume: volume.to_owned(),
                kind: ErrorKind::Usage,
                why: "an instant of a whole volume takes no writes",
                next: "look into it with `cairn history view`, or bring the volume back with `cairn history revert`, which can be undone",
            }));
        }
        let (name, view) = self.volumes.show_instant(volume, request)?;
        tracing::info!(volume, view = name, at_ns = view.at_ns(), "shows an instant");
        Ok(self.show_view(&*self.volumes.get(volume)?, &name, &view))
    }

    /// A view of a volume, with where its LUNs are.
    fn show_view(&self, open: &OpenVolume, name: &str, view: &VolumeView) -> api::View {
        let name = format!("{}@{name}", open.name);
        let luns = open.luns.readable_in(view.image()).unwrap_or_default();
        let uris = luns.iter().flat_map(|lun| self.uris(&format!("{name}/{}", lun.name))).collect();
        api::View { uris, name, at_ns: view.at_ns(), writable: false, problem: None }
    }

    fn delete_volume_view(&self, volume: &str, view: &str) -> Result<(), ServerError> {
        let full = format!("{volume}@{view}");
        self.refuse_if_in_use(&full, |export| export.volume == volume && export.snapshot == Some(view))?;
        self.mounts.refuse_if_mounted(&full, |of, name| of == volume && name == Some(view))?;
        self.nfs_exports.refuse_if_exported(|of, name| of == volume && name == Some(view))?;
        self.volumes.hide_instant(volume, view)?;
        let inside = format!("{full}/");
        self.access.forget(|name| name.starts_with(&inside))
    }

    /// Deletes a view or, with its writes, a clone; refused if `writable` does not match.
    pub(crate) fn delete_view(
        &self,
        device: &str,
        view: &str,
        writable: Option<bool>,
    ) -> Result<(), ServerError> {
        if self.is_volume(device) {
            return self.delete_volume_view(device, view);
        }
        self.devices.refuse_other_kind(device, view, writable)?;
        self.refuse_open_export(&format!("{device}@{view}"))?;
        self.devices.hide_instant(device, view)?;
        self.access.forget(|name| name == format!("{device}@{view}"))
    }

    /// Ends the sessions of a device, under both names that one on a LUN has; the count of them.
    fn close_device(&self, device: &str, lun: Option<&str>) -> Result<u64, ServerError> {
        let of_lun = lun.map_or(Ok(0), |lun| self.close_named(lun));
        Ok((self.close_named(device)? + of_lun?) as u64)
    }

    /// Closes the sessions of an export that were opened during its removal.
    pub(crate) fn end_late(&self, lun: &str) {
        if let Err(unfinished) = self.close_named(lun) {
            tracing::warn!(%unfinished, "closed sessions still wait for their disk");
        }
    }

    pub(crate) fn revert_device(
        &self,
        device: &str,
        request: &api::Revert,
    ) -> Result<api::Reverted, ServerError> {
        if self.is_volume(device) {
            return self.revert_volume(device, request);
        }
        let open = self.devices.get(device)?;
        let at = &open.settled(&request.instant())?;
        // Refused before any session ends for nothing.
        let held = open.view(at)?;
        open.check_revert(at)?;
        let lun = self.devices.lun_of(device);
        if request.dry_run {
            let of_lun = lun.map_or(0, |lun| self.sessions_named(&lun));
            let sessions = of_lun + self.sessions_named(device);
            return Ok(api::Reverted::would(held.instant().0, sessions));
        }
        // The caches of clients are from another time. A write that waits for the revert would be
        // the first one after it.
        let mut sessions_ended = self.close_device(device, lun.as_deref())?;
        let (at_ns, undo) = open.revert(at)?;
        // Those that came back meanwhile.
        sessions_ended += self.close_device(device, lun.as_deref())?;
        Ok(api::Reverted { at_ns, undo, sessions_ended, findings: Vec::new(), dry_run: false })
    }
}
